/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Server 0 writes the part of another server, which has no directory (store.h).
 *
 * A part is written beside its place, and is renamed when it is complete, is as its digest says, and is
 * synced. No name, and no size beyond what the server's share can need, comes from the other server. One
 * piece is received while the one before is being written, so memory for two is enough. If the disk
 * fails, the rest is received all the same and dropped, and the other server is told at the end.
 */
#include "server/store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ps/marks.h"

/* Bytes of the header of a part for each vector, and besides. */
#define HEADER_OF_VECTOR 256u
#define HEADER_MORE      4096u
#define VECTORS          5u /* of a chunk: ps/snapshot.h */

struct store_part {
	struct server_peer *from;
	struct tern_snapshot_id id;
	uint64_t bytes, digest; /* that were announced */
	uint32_t piece;         /* size of all pieces but the last one */
	char *path, *aside;
	/* By parity of the piece's number. */
	struct tern_buf bufs[2];
	uint64_t received, written; /* bytes; those that were dropped are in `written` */
	struct tern_digest_stream stream;
	struct tern_req req;
	struct tern_file_op op;
	struct iovec data;
	bool receiving, writing;
	bool made;  /* the file `aside` was made */
	bool ended; /* the server was told */
	bool kept;  /* the part is on disk */
	char why[300];
};

static uint64_t part_key(void)
{
	return tern_key("snapshot/part");
}

/* The most that the part of this server can have: its chunks, with all vectors that there are. */
static uint64_t most_of(const struct tern_server *s, uint32_t server)
{
	uint64_t most = HEADER_MORE;

	for (uint32_t i = 0; i < s->plan.chunk_count; i++) {
		const struct tern_chunk *c = &s->plan.chunks[i];

		if (c->server != server)
			continue;
		most += 3 * sizeof(float) * c->count + VECTORS * HEADER_OF_VECTOR +
			sizeof(uint64_t) * tern_marks_span(&s->job, c).count;
		if (s->job.mode == TERN_MODE_ASYNC)
			most += sizeof(uint64_t) * s->job.workers;
	}
	return most;
}

static void say(const struct store_part *p, bool go, const char *why)
{
	json_t *message = json_pack("{s:s, s:I, s:I, s:b}", "type", "part", "step",
		(json_int_t)p->id.step, "number", (json_int_t)p->id.number, "go", go);

	if (why)
		json_object_set_new(message, "text", tern_talk_text(why));
	if (p->from->gone)
		json_decref(message);
	else
		tern_talk_say(&p->from->talk, message);
}

static void release(struct tern_server *s, struct store_part *p)
{
	for (unsigned i = 0; i < 2; i++)
		if (p->bufs[i].mem)
			tern_pool_put(s->pieces, &p->bufs[i]);
	free(TERN_TAKE(p->path));
	free(TERN_TAKE(p->aside));
}

static void answer(struct tern_server *s, struct store_part *p)
{
	p->ended = true;
	p->kept = !*p->why;
	say(p, false, p->kept ? NULL : p->why);
	release(s, p);
}

static void fail(struct store_part *p, const char *what, const char *why)
{
	if (!*p->why)
		snprintf(p->why, sizeof(p->why), "%.200s: %.80s", what, why);
}

/* ---- the file ---- */

static struct tern_server *server_of(const struct store_part *p)
{
	return p->from->server;
}

static void removed(struct tern_file_op *op)
{
	struct store_part *p = tern_container_of(op, struct store_part, op);

	if (!server_of(p)->over)
		answer(server_of(p), p);
}

static void published(struct tern_file_op *op)
{
	struct store_part *p = tern_container_of(op, struct store_part, op);

	if (server_of(p)->over)
		return;
	if (op->status < 0)
		fail(p, p->path, strerror(-op->status));
	answer(server_of(p), p);
}

/* All is received, and written as far as that was possible. */
static void end(struct tern_server *s, struct store_part *p)
{
	uint64_t digest = tern_digest_end(&p->stream);
	char why[80];
	int r = 0;

	snprintf(why, sizeof(why),
		"its digest is %016" PRIx64 ", and the server said %016" PRIx64, digest,
		p->digest);
	if (digest != p->digest)
		fail(p, p->path, why);
	p->op = (struct tern_file_op){
		.kind = *p->why ? TERN_FILE_REMOVE : TERN_FILE_PUBLISH,
		.path = p->aside,
		.to = p->path,
		.done = *p->why ? removed : published};
	if (p->made)
		r = tern_env_file(s->env, &p->op);
	if (r < 0)
		fail(p, p->path, strerror(-r));
	if (r < 0 || !p->made)
		answer(s, p);
}

static void go_on(struct tern_server *s, struct store_part *p);

static void wrote(struct tern_file_op *op)
{
	struct store_part *p = tern_container_of(op, struct store_part, op);

	if (server_of(p)->over)
		return;
	p->writing = false;
	p->written += p->data.iov_len;
	p->made = true;
	if (op->status < 0)
		fail(p, p->path, strerror(-op->status));
	go_on(server_of(p), p);
}

static uint64_t size_of_next(const struct store_part *p, uint64_t at)
{
	return TERN_MIN(p->piece, p->bytes - at);
}

static struct tern_buf *buf_of(struct store_part *p, uint64_t at)
{
	return &p->bufs[at / p->piece % 2];
}

static void write_next(struct tern_server *s, struct store_part *p)
{
	int r;

	p->data = (struct iovec){
		tern_buf_ptr(buf_of(p, p->written)), size_of_next(p, p->written)};
	p->op = (struct tern_file_op){.kind = TERN_FILE_WRITE_PIECE,
		.path = p->aside,
		.parts = &p->data,
		.part_count = 1,
		.at = p->written,
		.done = wrote};
	r = tern_env_file(s->env, &p->op);
	p->writing = r == 0;
	if (r < 0)
		fail(p, p->path, strerror(-r));
}

/* ---- the pieces ---- */

static void got(struct tern_req *req)
{
	struct store_part *p = tern_container_of(req, struct store_part, req);
	struct tern_server *s = server_of(p);
	uint64_t bytes = size_of_next(p, p->received);

	p->receiving = false;
	if (s->over)
		return;
	if (req->status < 0 && req->status != -EMSGSIZE) {
		tern_talk_failed(&p->from->talk, req->status);
		return;
	}
	if (req->status < 0 || req->bytes != bytes || req->shape.dtype != TERN_U8) {
		server_refuse(p->from,
			"a piece of its part has %llu bytes, %s: expected %llu bytes, %s",
			(unsigned long long)req->bytes, tern_dtype_name(req->shape.dtype),
			(unsigned long long)bytes, tern_dtype_name(TERN_U8));
		return;
	}
	tern_digest_add(&p->stream, tern_buf_ptr(buf_of(p, p->received)), bytes);
	p->received += bytes;
	go_on(s, p);
}

static void receive_next(struct store_part *p)
{
	uint64_t number = p->received / p->piece;
	int r;

	p->req.done = got;
	r = tern_recv(p->from->data, &p->req, part_key(),
		((uint64_t)p->id.number << 32) + number, buf_of(p, p->received), NULL, 0);
	p->receiving = r == 0;
	if (r < 0)
		tern_talk_failed(&p->from->talk, r);
}

static void go_on(struct tern_server *s, struct store_part *p)
{
	if (!p->writing && p->written < p->received && !*p->why)
		write_next(s, p);
	if (!p->writing && *p->why)
		p->written = p->received;
	if (p->from->gone || p->from->refused)
		return;
	if (!p->receiving && p->received < p->bytes &&
		p->received - p->written <= p->piece)
		receive_next(p);
	if (p->written == p->bytes && !p->writing)
		end(s, p);
}

/* ---- birth and death ---- */

/* Makes room for the part, and names its files. -ENOMEM, -EAGAIN. */
static int prepare(struct tern_server *s, struct store_part *p)
{
	const char *directory = s->opts.snapshots.directory;
	struct tern_snapshot_name name = tern_snapshot_part_name(p->id, p->from->index);
	char aside[TERN_SNAPSHOT_NAME_BYTES + 32];
	int r = 0;

	snprintf(aside, sizeof(aside), ".%s.%016" PRIx64 ".new", name.text,
		tern_random(s->env));
	p->path = tern_snapshot_path(directory, name.text);
	p->aside = tern_snapshot_path(directory, aside);
	for (unsigned i = 0; i < 2 && r == 0; i++)
		r = tern_pool_get(s->pieces, p->piece, &p->bufs[i]);
	return p->path && p->aside ? r : -ENOMEM;
}

static void begin(struct server_peer *from, const struct store_part *announced)
{
	struct tern_server *s = from->server;
	struct snapshots *n = s->snapshots;
	struct store_part *p = n->arriving[from->index];
	int r;

	if (!p)
		p = n->arriving[from->index] = malloc(sizeof(*p));
	if (!p) {
		say(announced, false, "server 0: no memory");
		return;
	}
	*p = *announced;
	tern_digest_begin(&p->stream);
	r = prepare(s, p);
	if (r < 0) {
		fail(p, "server 0", r == -ENOMEM ? "no memory" : tern_status_text(r));
		answer(s, p);
		return;
	}
	say(p, true, NULL);
	go_on(s, p);
}

static bool read_part(const json_t *message, struct store_part *out)
{
	json_int_t step = 0, number = 0, bytes = 0, piece = 0;
	const char *digest = NULL;
	char end;

	if (json_unpack((json_t *)(uintptr_t)message, "{s:I, s:I, s:I, s:I, s:s}", "step",
		    &step, "number", &number, "bytes", &bytes, "piece", &piece, "digest",
		    &digest) < 0 ||
		step < 0 || number < 0 || number > UINT32_MAX || bytes < 1 || piece < 1 ||
		piece > STORE_PIECE_MOST || strlen(digest) != 16)
		return false;
	*out = (struct store_part){
		.id = {.step = (uint64_t)step, .number = (uint32_t)number},
		.bytes = (uint64_t)bytes,
		.piece = (uint32_t)piece};
	return sscanf(digest, "%16" SCNx64 "%c", &out->digest, &end) == 1;
}

/* True if the server may send this part now. */
static bool is_awaited(const struct server_peer *from, const struct store_part *part)
{
	const struct tern_server *s = from->server;
	const struct snapshots *n = s->snapshots;
	const struct store_part *last;

	if (!n || !s->opts.snapshots.directory || !snapshots_is_announced(n) ||
		tern_snapshot_compare(part->id, n->id) != 0 || n->reported[from->index])
		return false;
	last = n->arriving[from->index];
	return !last || (last->ended && tern_snapshot_compare(last->id, n->id) != 0);
}

void store_on_part(struct server_peer *from, const json_t *message)
{
	struct store_part part;

	if (!read_part(message, &part) || !is_awaited(from, &part)) {
		server_refuse(from, "its message \"part\" is of a part that it was not "
				    "asked for");
		return;
	}
	if (part.bytes > most_of(from->server, from->index)) {
		server_refuse(from, "its part has %llu bytes: expected at most %llu",
			(unsigned long long)part.bytes,
			(unsigned long long)most_of(from->server, from->index));
		return;
	}
	part.from = from;
	begin(from, &part);
}

bool store_has(const struct tern_server *s, uint32_t server,
	const struct snapshot_report *report)
{
	const struct store_part *p = s->snapshots->arriving[server];

	if (report->why || !p || tern_snapshot_compare(p->id, report->id) != 0)
		return true;
	return p->kept && p->bytes == report->bytes && p->digest == report->digest;
}

void store_parts_fini(struct snapshots *n)
{
	for (uint32_t i = 0; n->arriving && i < n->server->job.server_count; i++) {
		if (!n->arriving[i])
			continue;
		release(n->server, n->arriving[i]);
		free(n->arriving[i]);
	}
	free(n->arriving);
}
