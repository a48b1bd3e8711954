/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server without a directory (opts.snapshots.via) asks server 0 with which snapshot it begins, and
 * reads what it needs of it (store.h). It does so over a connection of its own, since it has no job yet.
 *
 * A connection that is lost is made anew, and the reading goes on at the same place, for as long as this
 * server lives: server 0 may be started later, or go back. If server 0 begins with another snapshot
 * then, this server ends, and its process begins anew.
 */
#include "server/membership.h"
#include "server/store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

#define DIAL_AGAIN_NS (200 * TERN_NS_PER_MS)

struct remote {
	struct tern_server *server;
	struct tern_peer *peer;
	struct tern_talk talk;
	struct tern_channel *data;
	char address[TERN_ADDRESS_BYTES]; /* of server 0 */
	bool hears;                       /* `address` is what a worker has said last */
	bool closing, gone;
	bool rests;            /* nothing is to be read now: no connection is made */
	bool said_unreachable; /* noted already */
	bool said_refused;     /* noted already */
	struct tern_timer timer;
	bool told; /* server 0 has said with which snapshot it begins: `id`, step 0 for none */
	struct tern_snapshot_id id;
	/* The file that is being read, if `reading`: `have` of `all` bytes are here; all 0: its size
	 * is not known yet. */
	bool reading;
	bool said_lost; /* it was noted that a piece of this file is asked for again */
	uint32_t part;
	uint64_t most, all, have;
	char *file;
	/* The piece that is being received. */
	bool receiving;
	struct tern_buf buf;
	struct tern_req req;
};

static void dial_later(struct remote *r)
{
	struct tern_server *s = r->server;

	if (!s->told && !r->rests)
		tern_timer_set(
			s->opts.ctx, &r->timer, tern_now_ns(s->env) + DIAL_AGAIN_NS);
}

static void hang_up(struct remote *r)
{
	if (r->peer && !r->gone && !r->closing)
		tern_peer_close(r->peer);
	r->closing = true;
}

static void fail(struct remote *r, int status, const char *why)
{
	if (!r->server->over)
		resume_unread(r->server, status, why);
}

/* A piece was lost on its way: the connection is made anew, and the piece is asked for again. */
static void lose_piece(struct remote *r, int status)
{
	if (!r->said_lost)
		server_note(r->server,
			"a piece of a snapshot has not come from server 0 at %s: %s: it "
			"is asked for again",
			r->address, tern_status_text(status));
	r->said_lost = true;
	hang_up(r);
}

static void ask(struct remote *r)
{
	if (!r->told)
		tern_talk_say(&r->talk, json_pack("{s:s}", "type", "begins"));
	else if (r->reading && !r->receiving)
		tern_talk_say(&r->talk,
			json_pack("{s:s, s:I, s:I, s:I, s:I}", "type", "read", "step",
				(json_int_t)r->id.step, "number",
				(json_int_t)r->id.number, "part",
				r->part == TERN_SNAPSHOT_MANIFEST ? (json_int_t)-1
								  : (json_int_t)r->part,
				"at", (json_int_t)r->have));
}

void remote_read(struct tern_server *s, uint32_t part, uint64_t bytes)
{
	struct remote *r = s->remote;

	r->reading = true;
	r->part = part;
	r->most = bytes;
	r->all = r->have = 0;
	r->rests = r->said_lost = false;
	if (r->gone)
		dial_later(r);
	else if (!r->closing)
		ask(r);
}

/* ---- pieces ---- */

static void got(struct tern_req *req)
{
	struct remote *r = tern_container_of(req, struct remote, req);
	struct tern_server *s = r->server;
	uint64_t bytes = req->bytes;
	bool came = req->status == 0 || req->status == -EMSGSIZE;
	bool good = req->status == 0 && req->shape.dtype == TERN_U8 &&
		    bytes == r->buf.bytes && !s->over;

	r->receiving = false;
	if (good)
		memcpy(r->file + r->have, tern_buf_ptr(&r->buf), bytes);
	tern_pool_put(s->pieces, &r->buf);
	if (s->over)
		return;
	if (!came) {
		lose_piece(r, req->status);
		return;
	}
	if (!good) {
		fail(r, -EPROTO, "a piece has another size or type than it said");
		return;
	}
	r->have += bytes;
	if (r->have < r->all) {
		ask(r);
		return;
	}
	r->reading = false;
	resume_read(s, r->part, TERN_TAKE(r->file), r->all);
}

/* True if the piece is that which was asked for, and there is memory for the file. */
static bool takes(struct remote *r, json_int_t at, json_int_t bytes, json_int_t all)
{
	bool is_first = r->have == 0;

	if (!r->reading || r->receiving || at < 0 || (uint64_t)at != r->have ||
		bytes < 1 || bytes > STORE_PIECE_MOST || all < 1 ||
		(uint64_t)all > r->most || bytes > all - at ||
		(!is_first && (uint64_t)all != r->all)) {
		fail(r, -EPROTO, "it sends a piece that it was not asked for");
		return false;
	}
	if (is_first) {
		free(r->file);
		r->file = malloc((size_t)all + 1);
		r->all = (uint64_t)all;
	}
	if (r->file)
		r->file[all] = '\0';
	else
		fail(r, -ENOMEM, "no memory for a part");
	return r->file;
}

static void on_piece(struct remote *r, const json_t *message)
{
	const char *why = json_string_value(json_object_get(message, "text"));
	json_int_t at = -1, bytes = 0, all = 0;
	int status;

	if (why && r->reading && !r->receiving) {
		fail(r, -EIO, why);
		return;
	}
	json_unpack((json_t *)(uintptr_t)message, "{s:I, s:I, s:I}", "at", &at, "bytes",
		&bytes, "all", &all);
	if (!takes(r, at, bytes, all))
		return;
	status = tern_pool_get(r->server->pieces, (uint64_t)bytes, &r->buf);
	if (status < 0) {
		fail(r, -ENOMEM, "no memory for a piece of a part");
		return;
	}
	r->req.done = got;
	status = tern_recv(r->data, &r->req, tern_key("snapshot/read"), (uint64_t)at,
		&r->buf, NULL, 0);
	r->receiving = status == 0;
	if (status == 0)
		return;
	tern_pool_put(r->server->pieces, &r->buf);
	lose_piece(r, status);
}

/* ---- what server 0 says ---- */

static void on_begins(struct remote *r, const json_t *message)
{
	json_int_t step = -1, number = -1;
	struct tern_snapshot_id id;

	if (json_unpack((json_t *)(uintptr_t)message, "{s:I, s:I}", "step", &step,
		    "number", &number) < 0 ||
		step < 0 || number < 0 || number > UINT32_MAX) {
		fail(r, -EPROTO, "it does not say with which snapshot it begins");
		return;
	}
	id = (struct tern_snapshot_id){(uint64_t)step, (uint32_t)number};
	if (r->told && tern_snapshot_compare(id, r->id) != 0) {
		fail(r, -EAGAIN, "it begins with another snapshot now");
	} else if (!r->told) {
		r->told = true;
		r->id = id;
		resume_told(r->server, id);
	}
}

/* True if workers name another address of server 0 than the option: one of the two is old, and
 * another process may listen there. */
static bool has_two_addresses(const struct tern_server *s)
{
	return *s->heard_zero && strcmp(s->heard_zero, s->opts.snapshots.via) != 0;
}

/* A refusal while nothing is being read ends nothing: this server was silent for too long. */
static void on_refused(struct remote *r, const json_t *message)
{
	const char *text = json_string_value(json_object_get(message, "text"));
	bool later = json_is_true(json_object_get(message, "later"));

	if (!text)
		text = "it gives no reason";
	if (!later && (!r->told || r->reading) && !has_two_addresses(r->server)) {
		fail(r, -EINVAL, text);
		return;
	}
	if (!later && !r->said_refused && has_two_addresses(r->server)) {
		server_note(r->server,
			"%s does not answer as server 0: %s: this server goes on trying "
			"%s and %s",
			r->address, text, r->server->opts.snapshots.via,
			r->server->heard_zero);
		r->said_refused = true;
	}
	hang_up(r);
}

static void heard(struct tern_talk *talk, const json_t *message)
{
	struct remote *r = tern_container_of(talk, struct remote, talk);
	const char *type = tern_talk_type(message);

	if (r->rests || r->server->over)
		return;
	if (strcmp(type, "begins") == 0)
		on_begins(r, message);
	else if (strcmp(type, "piece") == 0)
		on_piece(r, message);
	else if (strcmp(type, "again") == 0)
		ask(r);
	else if (strcmp(type, "refused") == 0)
		on_refused(r, message);
}

/* ---- the connection ---- */

static void broken(struct tern_talk *talk, int status)
{
	struct remote *r = tern_container_of(talk, struct remote, talk);

	(void)status;
	hang_up(r);
}

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct remote *r = arg;

	(void)peer;
	if (event == TERN_PEER_UP)
		r->said_unreachable = false;
	if (event != TERN_PEER_DOWN)
		return;
	if (status && !r->said_unreachable && !r->rests && !r->server->over)
		server_note(r->server,
			"server 0 at %s cannot be reached: %s: this server waits for it, "
			"since it keeps the snapshots",
			r->address, tern_status_text(status));
	r->said_unreachable = true;
	r->gone = true;
	tern_talk_close(&r->talk);
	dial_later(r);
}

static void dial(struct remote *r)
{
	struct tern_server *s = r->server;
	char name[32];
	int status;

	/* Either address may be an old one: both are tried in turns. */
	r->hears = !r->hears && has_two_addresses(s);
	snprintf(r->address, sizeof(r->address), "%s",
		r->hears ? s->heard_zero : s->opts.snapshots.via);
	snprintf(name, sizeof(name), "server %u", s->opts.index);
	r->gone = r->closing = false;
	r->talk = (struct tern_talk){.pool = s->talk_pool,
		.ctx = s->opts.ctx,
		.heard = heard,
		.broken = broken};
	status = tern_connect(s->opts.ctx, r->address,
		&(struct tern_peer_opts){
			.event = on_event, .arg = r, .name = name, .pool = s->staging},
		&r->peer);
	if (status == 0)
		status = tern_channel_open(r->peer, TERN_PS_CHANNEL_DATA, &r->data);
	if (status == 0)
		status = tern_talk_open(&r->talk, r->peer);
	if (status == 0) {
		ask(r);
		return;
	}
	r->gone = true;
	dial_later(r);
}

static void dial_again(struct tern_timer *timer)
{
	struct remote *r = tern_container_of(timer, struct remote, timer);

	if (r->rests || r->server->over || r->server->opts.ctx->ending)
		return;
	if (r->peer && (!r->gone || r->receiving || !tern_talk_is_idle(&r->talk))) {
		dial_later(r);
		return;
	}
	tern_peer_free(TERN_TAKE(r->peer));
	dial(r);
}

void remote_hear_zero(struct tern_server *s, const json_t *join)
{
	const json_t *servers = json_object_get(json_object_get(join, "job"), "servers");
	const char *zero = json_string_value(json_array_get(servers, 0));

	if (s->opts.snapshots.via && zero && members_is_address(zero))
		snprintf(s->heard_zero, sizeof(s->heard_zero), "%s", zero);
}

const char *remote_address(const struct tern_server *s)
{
	return s->remote->address;
}

/* ---- birth and death ---- */

int remote_ask(struct tern_server *s)
{
	struct remote *r = calloc(1, sizeof(*r));

	if (!r)
		return -ENOMEM;
	s->remote = r;
	r->server = s;
	r->timer.fire = dial_again;
	/* Not yet, since the server may still fail to be made. */
	tern_timer_set(s->opts.ctx, &r->timer, tern_now_ns(s->env));
	return 0;
}

void remote_rest(struct tern_server *s)
{
	struct remote *r = s->remote;

	if (!r)
		return;
	if (!r->rests)
		r->hears = !r->hears; /* dial() toggles it: server 0 has answered here */
	r->rests = true;
	tern_timer_clear(s->opts.ctx, &r->timer);
	hang_up(r);
}

void remote_end(struct tern_server *s)
{
	if (s->remote)
		tern_timer_clear(s->opts.ctx, &s->remote->timer);
}

void remote_fini(struct tern_server *s)
{
	struct remote *r = TERN_TAKE(s->remote);

	if (!r)
		return;
	if (r->buf.mem)
		tern_pool_put(s->pieces, &r->buf);
	free(r->file);
	free(r);
}
