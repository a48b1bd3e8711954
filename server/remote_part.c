/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server without a directory (opts.snapshots.via) sends its part of a snapshot to server 0 (store.h).
 * The pieces are copied one by one, WINDOW of them at a time, from the copies that any server makes
 * for a snapshot, so the memory that a part takes here is hardly more than with a directory.
 */
#include "server/store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define WINDOW 2u

struct remote_piece {
	struct remote_part *part;
	struct tern_buf buf;
	struct tern_req req;
};

struct remote_part {
	struct tern_server *server;
	struct tern_snapshot_id id;
	uint32_t piece; /* size of all pieces but the last one */
	bool goes;      /* server 0 has said "go" */
	bool awaited;   /* server 0 has not said how it has ended */
	/* The next piece, and where it begins: in vector `vector` of n->iov. */
	uint64_t copied, number;
	uint32_t vector;
	size_t at;
	unsigned out_count; /* pieces on their way */
	/* Server 0 has all of the last part, but this server has not heard so of each piece: the next
	 * part waits for that, since the requests are in use. */
	bool waits;
	struct remote_piece pieces[WINDOW];
};

/* Copies the next bytes of the part. */
static void copy(struct remote_part *p, char *to, uint64_t bytes)
{
	const struct snapshots *n = p->server->snapshots;

	p->copied += bytes;
	while (bytes) {
		const struct iovec *v = &n->iov[p->vector];
		size_t some = TERN_MIN(bytes, v->iov_len - p->at);

		memcpy(to, (char *)v->iov_base + p->at, some);
		to += some;
		bytes -= some;
		p->at += some;
		if (p->at == v->iov_len) {
			p->vector++;
			p->at = 0;
		}
	}
}

static void send_next(struct remote_piece *k);

/* Tells server 0 of the part of n->id, which follows when it says "go". */
static void announce(struct remote_part *p)
{
	struct tern_server *s = p->server;
	const struct snapshots *n = s->snapshots;
	char digest[20];

	*p = (struct remote_part){.server = s,
		.id = n->id,
		.piece = s->opts.snapshots.piece_bytes ? s->opts.snapshots.piece_bytes
						       : STORE_PIECE_MOST,
		.awaited = true};
	snprintf(digest, sizeof(digest), "%016" PRIx64, n->digest);
	if (!s->to_zero->gone)
		tern_talk_say(&s->to_zero->talk,
			json_pack("{s:s, s:I, s:I, s:I, s:I, s:s}", "type", "part",
				"step", (json_int_t)n->id.step, "number",
				(json_int_t)n->id.number, "bytes", (json_int_t)n->bytes,
				"piece", (json_int_t)p->piece, "digest", digest));
}

static void sent(struct tern_req *req)
{
	struct remote_piece *k = tern_container_of(req, struct remote_piece, req);
	struct remote_part *p = k->part;
	struct tern_server *s = p->server;

	tern_pool_put(s->pieces, &k->buf);
	p->out_count--;
	if (s->over || s->to_zero->gone)
		return;
	if (req->status < 0)
		tern_talk_failed(&s->to_zero->talk, req->status);
	else if (p->waits && p->out_count == 0)
		announce(p);
	else if (p->awaited) /* else n->iov is gone, or is that of the next snapshot */
		send_next(k);
}

static void send_next(struct remote_piece *k)
{
	struct remote_part *p = k->part;
	struct tern_server *s = p->server;
	uint64_t bytes = TERN_MIN(p->piece, s->snapshots->bytes - p->copied);
	struct tern_tensor tensor;
	int r;

	if (!bytes)
		return;
	r = tern_pool_get(s->pieces, bytes, &k->buf);
	if (r == 0) {
		copy(p, tern_buf_ptr(&k->buf), bytes);
		tensor = (struct tern_tensor){
			.buf = k->buf, .shape = tern_shape_1d(TERN_U8, bytes)};
		k->req.done = sent;
		r = tern_send(s->to_zero->data, &k->req, tern_key("snapshot/part"),
			((uint64_t)p->id.number << 32) + p->number++, &tensor, NULL, 0);
	}
	p->out_count += r == 0;
	if (r < 0)
		tern_talk_failed(&s->to_zero->talk, r);
}

int remote_send(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;

	if (!n->sending)
		n->sending = calloc(1, sizeof(*n->sending));
	if (!n->sending)
		return -ENOMEM;
	n->sending->server = s;
	n->sending->waits = n->sending->out_count > 0;
	if (!n->sending->waits)
		announce(n->sending);
	return 0;
}

/* True if server 0 may say this now: "go" once, and how the part has ended when it has all pieces, or
 * before "go". */
static bool is_awaited(const struct remote_part *p, json_int_t step, json_int_t number,
	bool go, bool failed)
{
	const struct snapshots *n;

	if (!p || !p->awaited || step != (json_int_t)p->id.step ||
		number != (json_int_t)p->id.number)
		return false;
	n = p->server->snapshots;
	if (!p->goes)
		return go || failed;
	return !go && p->copied == n->bytes;
}

void remote_on_part(struct server_peer *zero, const json_t *message)
{
	struct tern_server *s = zero->server;
	struct remote_part *p = s->snapshots ? s->snapshots->sending : NULL;
	json_int_t step = -1, number = -1;
	const char *why = NULL;
	int go = 0;

	if (json_unpack((json_t *)(uintptr_t)message, "{s:I, s:I, s:b, s?s}", "step",
		    &step, "number", &number, "go", &go, "text", &why) < 0 ||
		!is_awaited(p, step, number, go, why)) {
		server_fail(s, -EPROTO,
			"server 0 sent \"part\" of a part that it does not have");
		return;
	}
	if (!go) {
		p->awaited = false;
		snapshot_kept(s, why);
		return;
	}
	p->goes = true;
	for (unsigned i = 0; i < WINDOW && !s->over; i++) {
		p->pieces[i].part = p;
		send_next(&p->pieces[i]);
	}
}

void remote_part_fini(struct snapshots *n)
{
	for (unsigned i = 0; n->sending && i < WINDOW; i++)
		if (n->sending->pieces[i].buf.mem)
			tern_pool_put(n->server->pieces, &n->sending->pieces[i].buf);
	free(n->sending);
}
