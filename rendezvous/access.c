/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Access to windows of the peer: puts, gets and notifications.
 *
 * A put or get is cut into parts. A part is one operation of the fabric, if the fabric can
 * access the window directly, and else one message, which the owner answers by DONE:
 *
 *     put   small             WRITE with the bytes
 *           the fabric puts   put, ...; after the last one FENCE, unless a put has landed
 *                             when the fabric says that it has ended (TERN_CAP_LANDS)
 *           else              WRITE with the region of our bytes, which the owner reads
 *                             (shm, where a system call that puts is not permitted)
 *     get   the fabric gets   get, ...
 *           else              READ with the region of our memory, into which the owner
 *                             puts
 *     both  with GPU memory   MOVE, and a send and a receive: window_move.c
 *
 * A put has landed when all its parts are over. Then its note is sent, if it has one, as a
 * NOTIFY; a notification of its own waits until the puts before it have landed. So the
 * owner need not know what a NOTIFY belongs to. NOTIFY is numbered and kept like other
 * messages, so that it is handled once; its acknowledgement ends the request.
 */
#include "rendezvous/window.h"

#include <errno.h>
#include <string.h>

#include "base/endian.h"
#include "rendezvous/rendezvous.h"
#include "transport/memory/mem.h"

/* ---- the end of requests ---- */

struct tern_wreq *tern_wreq_init(
	struct tern_req *req, struct tern_rdv *rdv, enum tern_wreq_kind kind)
{
	struct tern_wreq *x = tern_wreq_of(req);

	*x = (struct tern_wreq){
		.req_kind = TERN_REQ_WINDOW, .kind = (uint8_t)kind, .rdv = rdv};
	tern_list_init(&x->all);
	tern_list_init(&x->queue);
	tern_list_init(&x->puts);
	req->posted = TERN_REQ_POSTED;
	req->status = -EINPROGRESS;
	req->bytes = 0;
	req->data = NULL;
	req->peeked = false;
	req->buf = (struct tern_buf){0};
	memset(&req->shape, 0, sizeof(req->shape));
	return x;
}

static struct tern_req *req_of(struct tern_wreq *x)
{
	return (struct tern_req *)(void *)((char *)x - offsetof(struct tern_req, priv));
}

/* True while the request needs the window: it is not over, and has not landed. */
static bool needs_window(const struct tern_wreq *x)
{
	return x->remote &&
	       (x->state == TERN_WREQ_OPENING || x->state == TERN_WREQ_MOVING);
}

/* Called when a request no longer needs its window. */
static void leave_window(struct tern_wreq *x)
{
	struct tern_peer_windows *w = &x->peer->windows;
	bool held_up = !tern_list_empty(&w->saying);

	x->remote->moving--;
	tern_list_remove(&x->puts);
	if (held_up || x->remote->left_due)
		tern_windows_due(x->peer);
}

void tern_wreq_complete(struct tern_wreq *x, int status)
{
	struct tern_req *req = req_of(x);

	tern_assert(x->parts_out == 0);
	if (needs_window(x))
		leave_window(x);
	if (x->remote)
		x->remote->access_count--;
	tern_list_remove(&x->all);
	tern_list_remove(&x->queue);
	x->state = TERN_WREQ_ENDED;
	x->status = status;
	if (x->peer)
		tern_peer_maybe_finish(x->peer);
	if (!req->done) {
		req->status = status;
		return;
	}
	tern_list_push(&x->rdv->accesses_done, &x->queue);
	tern_defer(x->rdv->ctx, &x->rdv->complete_call);
}

void tern_wreq_run_completed(struct tern_rdv *rdv)
{
	struct tern_list *n;

	while ((n = tern_list_pop(&rdv->accesses_done))) {
		struct tern_wreq *x = tern_list_entry(n, struct tern_wreq, queue);
		struct tern_req *req = req_of(x);

		req->status = x->status;
		req->done(req);
	}
}

/* Called when all parts of a request are over. */
static void landed(struct tern_wreq *x)
{
	if (x->status || !x->has_note) {
		tern_wreq_complete(x, x->status);
		return;
	}
	leave_window(x);
	x->state = TERN_WREQ_SAYING;
	tern_list_push(&x->peer->windows.saying, &x->queue);
	tern_windows_due(x->peer);
}

/* ---- starting requests ---- */

void tern_wreq_activate(struct tern_wreq *x)
{
	if (!tern_list_linked(&x->queue))
		tern_list_push(&x->peer->windows.active, &x->queue);
	tern_windows_due(x->peer);
}

void tern_wreq_stop(struct tern_wreq *x, int status)
{
	x->status = x->status ? x->status : status;
	if (x->parts_out || (x->fence_due && !x->fenced))
		tern_wreq_activate(x);
	else
		tern_wreq_complete(x, x->status);
}

/* Starts a request whose window is open, or ends it if the window lacks the right. */
void tern_wreq_begin(struct tern_wreq *x)
{
	uint32_t right = x->kind == TERN_WREQ_GET ? TERN_WINDOW_READ : TERN_WINDOW_WRITE;

	if (!(x->remote->about & right)) {
		tern_wreq_complete(x, -EACCES);
		return;
	}
	x->moves |= !!(x->remote->about & TERN_OPENED_MOVES);
	x->state = TERN_WREQ_MOVING;
	tern_wreq_activate(x);
}

/* ---- parts ---- */

static struct tern_part *part_new(struct tern_wreq *x, enum tern_part_kind kind)
{
	struct tern_peer_windows *w = &x->peer->windows;
	struct tern_part *part;

	if (w->free_part == TERN_PARTS_MAX)
		return NULL;
	part = &w->parts[w->free_part];
	w->free_part = part->next;
	part->access = x;
	part->kind = (uint8_t)kind;
	part->exposed = false;
	w->parts_out++;
	w->puts_out += kind == TERN_PART_PUT;
	w->gets_out += kind == TERN_PART_GET;
	x->parts_out++;
	return part;
}

static uint32_t part_id(const struct tern_part *part)
{
	return (uint32_t)part->generation << 16 |
	       (uint32_t)(part - part->peer->windows.parts);
}

static struct tern_part *part_by_id(struct tern_peer *peer, uint32_t id)
{
	uint32_t i = id & 0xffff;
	struct tern_part *part;

	if (!peer->windows.parts || i >= TERN_PARTS_MAX)
		return NULL;
	part = &peer->windows.parts[i];
	return part->kind == TERN_PART_MESSAGE && part->generation == id >> 16 ? part
									       : NULL;
}

/* Frees the entry of a part. The caller looks after its request. */
static void part_free(struct tern_part *part)
{
	struct tern_peer_windows *w = &part->peer->windows;

	w->parts_out--;
	w->puts_out -= part->kind == TERN_PART_PUT;
	w->gets_out -= part->kind == TERN_PART_GET;
	part->access->parts_out--;
	part->access = NULL;
	part->kind = TERN_PART_FREE;
	if (++part->generation == 0)
		part->generation = 1;
	part->next = w->free_part;
	w->free_part = (uint32_t)(part - w->parts);
}

/* Called when a part is over: another one may start, or its request may have landed. */
static void part_over(struct tern_part *part)
{
	struct tern_wreq *x = part->access;
	struct tern_peer *peer = part->peer;

	/* The end of a put that a FENCE follows says nothing of the link: the bytes may
	 * still be in a buffer of the system. */
	if (part->kind != TERN_PART_PUT || (x->remote->about & TERN_OPENED_LANDS))
		peer->windows.moved_count++;
	part_free(part);
	if (x->parts_out == 0)
		tern_wreq_activate(x);
	tern_windows_due(peer);
}

static void part_withdrawn(struct tern_op *op, int status)
{
	struct tern_part *part = tern_container_of(op, struct tern_part, op);
	struct tern_peer *peer = part->peer;

	(void)status;
	part_over(part);
	tern_peer_pump(peer);
}

/* Ends the owner's access to our memory that a part has exposed. False: bytes are just
 * being written into it, and part_withdrawn() follows. */
static bool withdraw(struct tern_part *part)
{
	struct tern_port *port = part->peer->port;

	if (!part->exposed)
		return true;
	part->exposed = false;
	part->op.done = part_withdrawn;
	if (port->ops->withdraw(port, &part->op, &part->region) != -EINPROGRESS)
		return true;
	part->kind = TERN_PART_WITHDRAWING;
	return false;
}

/* Called when the fabric has ended a put or get. If it failed, the link ends, and
 * tern_window_lost_access() begins again, except with -EACCES. */
static void op_done(struct tern_op *op, int status)
{
	struct tern_part *part = tern_container_of(op, struct tern_part, op);
	struct tern_peer *peer = part->peer;

	if (status == -EACCES && !part->access->status)
		part->access->status = status;
	if (status == 0 || status == -EACCES) {
		part_over(part);
		tern_peer_pump(peer);
	} else {
		part_free(part);
	}
}

/* ---- starting parts ---- */

/* Sends a message about a part. On failure the part is freed. */
static int say_part(
	struct tern_part *part, struct tern_header *h, const void *payload, bool expose)
{
	h->src = part_id(part);
	if (expose) {
		h->flags = TERN_FLAG_REGION;
		h->region = part->region;
	}
	if (tern_window_say(part->peer, h, payload) == 0)
		return 0;
	/* The owner has not heard of the region, so nothing is written into it. */
	if (withdraw(part))
		part_free(part);
	return -EAGAIN;
}

/* Sends WRITE or READ. With `payload` the bytes travel in the message, else the owner
 * reads or writes our memory. */
static int say_bytes(struct tern_wreq *x, const struct tern_piece *piece, uint64_t bytes,
	const void *payload)
{
	bool get = x->kind == TERN_WREQ_GET;
	struct tern_conn *conn = tern_peer_conn(x->peer);
	struct tern_part *part = part_new(x, TERN_PART_MESSAGE);
	struct tern_header h = {
		.type = get ? TERN_MSG_WINDOW_READ : TERN_MSG_WINDOW_WRITE,
		.key = x->remote->desc.id,
		.step = piece->remote_offset + x->moved,
		.bytes = bytes,
	};

	if (!part)
		return -EAGAIN;
	if (!payload &&
		conn->port->ops->expose(conn, piece->local.mem,
			piece->local.offset + x->moved, bytes,
			get ? TERN_ACCESS_WRITE : TERN_ACCESS_READ, &part->region) < 0) {
		part_free(part);
		return -EAGAIN;
	}
	part->exposed = !payload;
	return say_part(part, &h, payload, !payload);
}

/* Starts a put or get of the fabric. */
static int start_op(struct tern_wreq *x, const struct tern_piece *piece, uint64_t bytes)
{
	struct tern_peer_windows *w = &x->peer->windows;
	bool get = x->kind == TERN_WREQ_GET;
	struct tern_conn *conn = tern_peer_conn(x->peer);
	uint64_t local = piece->local.offset + x->moved;
	uint64_t there = piece->remote_offset + x->moved;
	struct tern_part *part;
	int r;

	if (get ? w->gets_out == TERN_WINDOW_GETS : w->puts_out == TERN_CONN_PUTS)
		return -EAGAIN;
	part = part_new(x, get ? TERN_PART_GET : TERN_PART_PUT);
	if (!part)
		return -EAGAIN;
	part->op.done = op_done;
	r = get ? conn->port->ops->get(conn, &part->op, piece->local.mem, local, bytes,
			  &x->remote->region, there)
		: conn->port->ops->put(conn, &part->op, piece->local.mem, local, bytes,
			  &x->remote->region, there);
	if (r < 0) {
		part_free(part);
		return -EAGAIN;
	}
	if (!get && !(x->remote->about & TERN_OPENED_LANDS))
		x->fence_due = true;
	return 0;
}

/* Largest piece that is sent inside a WRITE; 0 where puts land without the owner's
 * program. */
static uint64_t payload_max(const struct tern_wreq *x)
{
	return x->remote->about & TERN_OPENED_LANDS ? 0 : x->peer->eager_bytes;
}

static int start_get(struct tern_wreq *x, const struct tern_piece *piece, uint64_t bytes)
{
	bool direct = (x->remote->about & TERN_OPENED_GET) &&
		      !tern_conn_copies(tern_peer_conn(x->peer), piece->local.mem);

	return direct ? start_op(x, piece, bytes) : say_bytes(x, piece, bytes, NULL);
}

static bool is_small(const struct tern_wreq *x, const struct tern_piece *piece)
{
	return x->kind == TERN_WREQ_PUT && piece->local.bytes <= payload_max(x);
}

/* Starts the next part of a request. */
static int start_part(struct tern_wreq *x)
{
	const struct tern_piece *piece = &x->pieces[x->at];
	uint64_t left = piece->local.bytes - x->moved;
	uint64_t bytes = TERN_MIN(left, tern_peer_conn(x->peer)->chunk_bytes);
	int r = 0;

	if (x->moves) {
		bytes = tern_move_bytes(x, left);
		if (bytes)
			r = tern_move_start(x, piece, bytes);
	} else if (is_small(x, piece)) {
		bytes = left;
		if (bytes)
			r = say_bytes(x, piece, bytes, tern_buf_ptr(&piece->local));
	} else if (x->kind == TERN_WREQ_PUT) {
		r = x->remote->about & TERN_OPENED_PUT ? start_op(x, piece, bytes)
						       : say_bytes(x, piece, bytes, NULL);
	} else if (bytes) {
		r = start_get(x, piece, bytes);
	}
	if (r < 0)
		return r;
	x->moved += bytes;
	if (x->moved == piece->local.bytes) {
		x->at++;
		x->moved = 0;
	}
	return 0;
}

static int say_fence(struct tern_wreq *x)
{
	struct tern_header h = {.type = TERN_MSG_WINDOW_FENCE};
	struct tern_part *part = part_new(x, TERN_PART_MESSAGE);

	if (!part || say_part(part, &h, NULL, false) < 0)
		return -EAGAIN;
	x->fenced = true;
	return 0;
}

static bool has_more(const struct tern_wreq *x)
{
	return (x->status == 0 && x->at < x->count) || (x->fence_due && !x->fenced);
}

/* True while the request waits for the end of another part that window_move.c moves. */
static bool waits_for_moves(const struct tern_wreq *x)
{
	return x->moves && has_more(x) && x->peer->windows.move_count == TERN_MOVES_MAX;
}

/* Takes the next step of a request. */
static int step(struct tern_wreq *x)
{
	int r = 0;

	if (x->status == 0 && x->at < x->count)
		r = start_part(x);
	else if (has_more(x))
		r = say_fence(x);
	if (r < 0)
		return r;
	if (has_more(x))
		tern_list_push(&x->peer->windows.active, &x->queue);
	else if (x->parts_out == 0)
		landed(x);
	return 0;
}

/* Starts the next part of each request in turn, and ends those that have no more. Requests
 * that wait for moves hold up no others. */
static int pump_active(struct tern_peer *peer)
{
	struct tern_list *n;
	int r = 0;

	while (r == 0 && (n = tern_list_pop(&peer->windows.active))) {
		struct tern_wreq *x = tern_list_entry(n, struct tern_wreq, queue);

		if (waits_for_moves(x))
			tern_list_push(&peer->windows.behind_moves, n);
		else
			r = step(x);
		if (r < 0)
			tern_list_push_front(&peer->windows.active, n);
	}
	return r;
}

/* ---- saying things ---- */

static int say_open(struct tern_remote *remote)
{
	unsigned char capability[TERN_CAPABILITY_BYTES];
	struct tern_header h = {.type = TERN_MSG_WINDOW_OPEN,
		.key = remote->desc.id,
		.step = remote->desc.incarnation,
		.bytes = remote->desc.bytes,
		.src = remote->id};

	tern_put_le64(capability, remote->desc.capability[0]);
	tern_put_le64(capability + 8, remote->desc.capability[1]);
	return tern_window_say(remote->peer, &h, capability);
}

static int pump_asking(struct tern_peer *peer)
{
	struct tern_peer_windows *w = &peer->windows;
	struct tern_remote *remote;

	while (w->asks_out < TERN_OPENS_MAX &&
		(remote = tern_list_first(&w->asking, struct tern_remote, queue))) {
		if (say_open(remote) < 0)
			return -EAGAIN;
		tern_list_remove(&remote->queue);
		remote->state = TERN_REMOTE_ASKED;
		w->asks_out++;
	}
	return 0;
}

/* Sends LEFT for each window that no request of ours needs any more. */
static int pump_leaving(struct tern_peer *peer)
{
	tern_list_for_each_safe (n, &peer->windows.leaving) {
		struct tern_remote *remote =
			tern_list_entry(n, struct tern_remote, queue);
		struct tern_header h = {
			.type = TERN_MSG_WINDOW_LEFT, .key = remote->desc.id};

		if (remote->moving)
			continue;
		if (tern_window_say(peer, &h, NULL) < 0)
			return -EAGAIN;
		tern_list_remove(&remote->queue);
		remote->left_due = false;
		if (remote->users == 0)
			tern_remote_free(remote);
	}
	return 0;
}

static int say_notify(struct tern_wreq *x)
{
	struct tern_header h = {.type = TERN_MSG_NOTIFY, .bytes = x->note.bytes};

	if (tern_stream_send(x->peer, &h, x->note.data, NULL) < 0)
		return -EAGAIN;
	x->done_seq = x->peer->stream.tx_seq;
	x->state = TERN_WREQ_UNACKED;
	tern_list_remove(&x->queue);
	tern_list_push(&x->peer->windows.unacked, &x->queue);
	return 0;
}

/* Sends the notifications that no put holds up. Those of tern_notify() stay in their
 * order. */
static int pump_saying(struct tern_peer *peer)
{
	const struct tern_wreq *put =
		tern_list_first(&peer->windows.puts, struct tern_wreq, puts);

	tern_list_for_each_safe (n, &peer->windows.saying) {
		struct tern_wreq *x = tern_list_entry(n, struct tern_wreq, queue);

		if (x->kind == TERN_WREQ_NOTIFY && put && put->number <= x->number)
			continue;
		if (say_notify(x) < 0)
			return -EAGAIN;
	}
	return 0;
}

void tern_wreq_acked(struct tern_peer *peer)
{
	struct tern_wreq *x;

	while ((x = tern_list_first(&peer->windows.unacked, struct tern_wreq, queue)) &&
		!tern_seq_before(peer->stream.acked, x->done_seq))
		tern_wreq_complete(x, 0);
}

int tern_window_pump_access(struct tern_peer *peer)
{
	return pump_leaving(peer) < 0 || pump_asking(peer) < 0 || pump_saying(peer) < 0 ||
			       pump_active(peer) < 0
		       ? -EAGAIN
		       : 0;
}

/* ---- what the peer says ---- */

/* Bits of OPENED, without those that this end cannot use: over shm the system may permit the
 * owner to write to this process, and not the other way round. */
static uint32_t usable(const struct tern_peer *peer, const struct tern_header *h)
{
	bool puts = tern_peer_caps(peer) & (TERN_CAP_PUT | TERN_CAP_WINDOW_PUT);

	return puts ? h->channel : h->channel & ~(TERN_OPENED_PUT | TERN_OPENED_LANDS);
}

/* True if OPENED says what its fabric can do, and leaves a way for each right. */
static bool is_possible(const struct tern_peer *peer, const struct tern_header *h)
{
	uint32_t about = usable(peer, h), caps = tern_peer_caps(peer);
	bool has_region = h->flags & TERN_FLAG_REGION;

	if ((h->channel & ~TERN_OPENED_BITS) ||
		has_region != !!(h->channel & (TERN_OPENED_GET | TERN_OPENED_PUT)))
		return false;
	if (h->channel & TERN_OPENED_MOVES)
		return !(h->channel &
			 (TERN_OPENED_GET | TERN_OPENED_PUT | TERN_OPENED_LANDS));
	if (((about & TERN_OPENED_GET) && !(caps & TERN_CAP_GET)) ||
		((about & TERN_OPENED_LANDS) &&
			(!(about & TERN_OPENED_PUT) || !(caps & TERN_CAP_LANDS))))
		return false;
	if ((about & TERN_WINDOW_WRITE) && !(about & TERN_OPENED_PUT) &&
		!(caps & TERN_CAP_GET))
		return false;
	return !(about & TERN_WINDOW_READ) || (about & TERN_OPENED_GET) ||
	       (caps & TERN_CAP_PUT);
}

/* Ends a handle for good: requests that wait for the window end, and those that are under
 * way when their parts are over. */
static void remote_over(struct tern_remote *remote, int status)
{
	remote->state = TERN_REMOTE_OVER;
	remote->status = status;
	tern_list_for_each_safe (n, &remote->peer->windows.all) {
		struct tern_wreq *x = tern_list_entry(n, struct tern_wreq, all);

		if (x->remote != remote || !needs_window(x))
			continue;
		if (x->state == TERN_WREQ_OPENING)
			tern_wreq_complete(x, status);
		else
			tern_wreq_stop(x, status);
	}
}

static void remote_opened(struct tern_remote *remote, const struct tern_header *h)
{
	struct tern_list *n;

	remote->state = TERN_REMOTE_OPEN;
	remote->about = usable(remote->peer, h);
	remote->region = h->region;
	if (remote->users == 0) {
		tern_list_push(&remote->peer->windows.leaving, &remote->queue);
		return;
	}
	while ((n = tern_list_pop(&remote->waiting)))
		tern_wreq_begin(tern_list_entry(n, struct tern_wreq, queue));
}

int tern_window_on_opened(struct tern_peer *peer, const struct tern_header *h)
{
	struct tern_map_node *n = tern_map_find(&peer->windows.handles, h->dst);
	struct tern_remote *remote =
		n ? tern_container_of(n, struct tern_remote, by_id) : NULL;

	if (!remote || remote->state != TERN_REMOTE_ASKED ||
		(h->status == 0 && !is_possible(peer, h)))
		return -EPROTO;
	peer->windows.asks_out--;
	tern_windows_due(peer);
	if (h->status == 0 && h->bytes == remote->desc.bytes)
		remote_opened(remote, h);
	else if (remote->users == 0)
		tern_remote_free(remote);
	else
		remote_over(remote, h->status ? h->status : -ERANGE);
	return 0;
}

int tern_window_on_done(struct tern_peer *peer, const struct tern_header *h)
{
	struct tern_part *part = part_by_id(peer, h->dst);

	if (!part)
		return -EPROTO;
	if (h->status && !part->access->status)
		part->access->status = h->status;
	if (withdraw(part))
		part_over(part);
	return 0;
}

int tern_window_on_close(struct tern_peer *peer, const struct tern_header *h)
{
	tern_list_for_each (n, &peer->windows.remotes) {
		struct tern_remote *remote = tern_list_entry(n, struct tern_remote, all);

		if (remote->desc.id != h->key || remote->state != TERN_REMOTE_OPEN)
			continue;
		remote->left_due = true;
		/* A handle without users is about to leave anyway; it must not be opened
		 * again. */
		if (!tern_list_linked(&remote->queue))
			tern_list_push(&peer->windows.leaving, &remote->queue);
		remote_over(remote, -ESTALE);
		tern_windows_due(peer);
		return 0;
	}
	return 0;
}

/* ---- the link ---- */

static void parts_lost(struct tern_peer *peer)
{
	struct tern_peer_windows *w = &peer->windows;

	for (uint32_t i = 0; w->parts && i < TERN_PARTS_MAX; i++) {
		struct tern_part *part = &w->parts[i];

		if (part->kind == TERN_PART_FREE)
			continue;
		/* The fabric has ended its operations, so only messages are left, and
		 * nothing writes into our memory any more. */
		tern_assert(part->kind == TERN_PART_MESSAGE);
		tern_assert(withdraw(part));
		part_free(part);
	}
}

static void begin_again(struct tern_wreq *x)
{
	tern_list_remove(&x->queue);
	if (x->status) {
		tern_wreq_complete(x, x->status);
		return;
	}
	x->at = x->moved = 0;
	x->fence_due = x->fenced = false;
	x->state = TERN_WREQ_OPENING;
	tern_list_push(&x->remote->waiting, &x->queue);
}

static void ask_again(struct tern_remote *remote)
{
	tern_list_remove(&remote->queue);
	remote->left_due = false;
	if (remote->users == 0) {
		tern_remote_free(remote);
	} else if (remote->state != TERN_REMOTE_OVER) {
		remote->state = TERN_REMOTE_UNASKED;
		tern_list_push(&remote->peer->windows.asking, &remote->queue);
	}
}

void tern_window_lost_access(struct tern_peer *peer)
{
	struct tern_peer_windows *w = &peer->windows;

	parts_lost(peer);
	tern_list_for_each_safe (n, &w->all) {
		struct tern_wreq *x = tern_list_entry(n, struct tern_wreq, all);

		if (x->state == TERN_WREQ_MOVING && !x->moves)
			begin_again(x);
	}
	w->asks_out = 0;
	tern_list_for_each_safe (n, &w->remotes)
		ask_again(tern_list_entry(n, struct tern_remote, all));
}

void tern_window_down_access(struct tern_peer *peer, int status)
{
	tern_list_for_each_safe (n, &peer->windows.all) {
		struct tern_wreq *x = tern_list_entry(n, struct tern_wreq, all);

		/* Halves that window_move.c has posted end soon, and the request then. */
		if (x->parts_out && !x->status)
			x->status = status;
		if (!x->parts_out)
			tern_wreq_complete(x, status);
	}
	tern_list_for_each (n, &peer->windows.remotes) {
		struct tern_remote *remote = tern_list_entry(n, struct tern_remote, all);

		tern_list_remove(&remote->queue);
		if (remote->state != TERN_REMOTE_OVER)
			remote->status = status;
		remote->state = TERN_REMOTE_OVER;
	}
}
