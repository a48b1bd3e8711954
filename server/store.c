/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Server 0 reads the snapshot that it begins with, for servers that do not see its
 * directory (store.h).
 *
 * A guest can read the files of this snapshot only: it sends no names, but the number of
 * a part. It asks for one piece at a time. When it has that, this server may not have
 * heard so yet, so a guest has two pieces at most in memory here, and all guests together
 * have READINGS_MOST. Besides pieces a guest gets ANSWERS_MOST answers, so a guest that
 * asks and takes no answer cannot fill the memory for messages.
 */
#include "server/store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "server/membership.h"

#define READINGS_MOST 16u
#define OF_A_GUEST    2u
/* Answers to a guest besides pieces: with which snapshot this server begins, and why a
 * piece cannot be read. */
#define ANSWERS_MOST 2u

struct reading {               /* a piece on its way to a guest */
	struct tern_list node; /* in server->readings */
	struct tern_server *server;
	struct server_peer *guest; /* NULL: it is gone */
	char *path;
	bool sending; /* the piece is read */
	struct tern_file_op op;
	struct tern_buf buf;
	struct tern_req req;
};

static void drop(struct reading *r)
{
	struct tern_server *s = r->server;

	tern_list_remove(&r->node);
	s->reading_count--;
	if (r->buf.mem)
		tern_pool_put(s->pieces, &r->buf);
	free(r->op.data);
	free(r->path);
	free(r);
}

void store_left(const struct server_peer *guest)
{
	tern_list_for_each (n, &guest->server->readings) {
		struct reading *r = tern_list_entry(n, struct reading, node);

		if (r->guest == guest)
			r->guest = NULL;
	}
}

void store_fini(struct tern_server *s)
{
	while (!tern_list_empty(&s->readings))
		drop(tern_list_first(&s->readings, struct reading, node));
}

/* Counts the guest's pieces; *reads: the last one is not read yet. */
static unsigned count_of(const struct server_peer *guest, bool *reads)
{
	unsigned count = 0;

	*reads = false;
	tern_list_for_each (n, &guest->server->readings) {
		const struct reading *r = tern_list_entry(n, struct reading, node);

		if (r->guest != guest)
			continue;
		count++;
		*reads = *reads || !r->sending;
	}
	return count;
}

/* False: this server has no snapshots for others, which the guest is told, or it does not know yet
 * with which one it begins. */
static bool may_answer(struct server_peer *guest)
{
	struct tern_server *s = guest->server;

	if (view_own_number(s) != 0)
		server_refuse(guest,
			"this is server %u: --snapshots-via has the address of server 0",
			view_own_number(s));
	else if (!s->opts.snapshots.directory)
		server_refuse(guest,
			"server 0 was started without --snapshots: it has no directory "
			"for servers with --snapshots-via");
	else if (s->running || resume_is_searching(s))
		guests_ask_later(guest);
	else
		return true;
	return false;
}

/* Refuses a guest that has had all answers which it can need. */
static void answer(struct server_peer *guest, json_t *message)
{
	if (guest->answer_count == ANSWERS_MOST) {
		json_decref(message);
		server_refuse(guest,
			"it has had %u answers about the snapshot: expected no further "
			"question on this connection",
			ANSWERS_MOST);
		return;
	}
	guest->answer_count++;
	tern_talk_say(&guest->talk, message);
}

static void say_begins(struct server_peer *guest)
{
	const struct tern_snapshot *found = resume_found(guest->server);
	struct tern_snapshot_id id = {0};

	if (found)
		id = found->id;
	answer(guest, json_pack("{s:s, s:I, s:I}", "type", "begins", "step",
			      (json_int_t)id.step, "number", (json_int_t)id.number));
}

void store_on_begins(struct server_peer *guest, const json_t *message)
{
	(void)message;
	if (may_answer(guest))
		say_begins(guest);
}

bool store_reads(const struct server_peer *guest)
{
	bool reads;

	count_of(guest, &reads);
	return reads;
}

static uint64_t piece_key(void)
{
	return tern_key("snapshot/read");
}

static void sent(struct tern_req *req)
{
	drop(tern_container_of(req, struct reading, req));
}

/* Says why the piece cannot be read. The guest does not ask again, as if it had read the directory
 * itself. */
static void give_up(struct reading *r, const char *why)
{
	char text[300];

	snprintf(text, sizeof(text), "%.200s: %s", r->path ? r->path : "a part", why);
	answer(r->guest,
		json_pack("{s:s, s:o}", "type", "piece", "text", tern_talk_text(text)));
	drop(r);
}

/* The piece is in memory, and its buffer: sends it. */
static void send(struct reading *r)
{
	struct server_peer *guest = r->guest;
	struct tern_tensor tensor;
	int status;

	memcpy(tern_buf_ptr(&r->buf), r->op.data, r->op.bytes);
	free(TERN_TAKE(r->op.data));
	tensor = (struct tern_tensor){
		.buf = r->buf, .shape = tern_shape_1d(TERN_U8, r->op.bytes)};
	guests_stay(guest);
	tern_talk_say(&guest->talk,
		json_pack("{s:s, s:I, s:I, s:I}", "type", "piece", "at",
			(json_int_t)r->op.at, "bytes", (json_int_t)r->op.bytes, "all",
			(json_int_t)r->op.all));
	r->req.done = sent;
	r->sending = true;
	status = tern_send(guest->data, &r->req, piece_key(), r->op.at, &tensor, NULL, 0);
	if (status == 0)
		return;
	server_refuse_for_now(
		guest, "a piece cannot be sent: %s", tern_status_text(status));
	drop(r);
}

static void read_piece(struct tern_file_op *op)
{
	struct reading *r = tern_container_of(op, struct reading, op);
	struct server_peer *guest = r->guest;
	int status = op->status;

	/* guest_timer of a peer that has joined meanwhile must not be set again. */
	if (r->server->over || !guest || guest->gone || guest->refused ||
		server_has_joined(guest)) {
		drop(r);
		return;
	}
	if (status == 0 && op->bytes == 0)
		status = -ERANGE; /* the place is behind the end */
	if (status == 0)
		status = tern_pool_get(r->server->pieces, op->bytes, &r->buf);
	if (status == 0)
		send(r);
	else
		give_up(r, status == -ERANGE ? "it has no more bytes"
					     : tern_status_text(status));
}

static void start(struct server_peer *guest, uint32_t part, uint64_t at)
{
	struct tern_server *s = guest->server;
	struct reading *r = calloc(1, sizeof(*r));
	int status = -ENOMEM;

	if (!r) {
		server_refuse_for_now(guest, "no memory to read for it");
		return;
	}
	r->server = s;
	r->guest = guest;
	tern_list_push(&s->readings, &r->node);
	s->reading_count++;
	r->path = resume_path(s, part);
	r->op = (struct tern_file_op){.kind = TERN_FILE_READ_PIECE,
		.path = r->path,
		.at = at,
		.most = s->opts.snapshots.piece_bytes ? s->opts.snapshots.piece_bytes
						      : STORE_PIECE_MOST,
		.done = read_piece};
	if (r->path)
		status = tern_env_file(s->env, &r->op);
	if (status < 0)
		give_up(r, strerror(-status));
}

void store_on_read(struct server_peer *guest, const json_t *message)
{
	const struct tern_snapshot *found = resume_found(guest->server);
	json_int_t step = 0, number = -1, part = -2, at = -1;
	unsigned count;
	bool reads;

	if (!may_answer(guest))
		return;
	count = count_of(guest, &reads);
	if (json_unpack((json_t *)(uintptr_t)message, "{s:I, s:I, s:I, s:I}", "step",
		    &step, "number", &number, "part", &part, "at", &at) < 0 ||
		step < 1 || number < 0 || number > UINT32_MAX || part < -1 || at < 0 ||
		reads) {
		server_refuse(guest, "its message \"read\" is wrong: expected a "
				     "snapshot, a part and a "
				     "place, and one piece at a time");
		return;
	}
	if (!found || (uint64_t)step != found->id.step || number != found->id.number)
		say_begins(guest);
	else if (part >= found->part_count)
		server_refuse(guest, "part: expected an integer from -1 to %u",
			found->part_count - 1);
	else if (count >= OF_A_GUEST || guest->server->reading_count >= READINGS_MOST)
		guests_ask_later(guest);
	else
		start(guest, part < 0 ? TERN_SNAPSHOT_MANIFEST : (uint32_t)part,
			(uint64_t)at);
}
