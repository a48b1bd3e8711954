/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts and gets with GPU memory at one end or at both. Their bytes travel as tensors do
 * (send.c, recv.c), which have ways to and from GPU memory: staged, direct or lent. The
 * end that accesses the window cuts its request into parts. For each part both ends post
 * a half, on a channel that no program can open:
 *
 *     the other end                         owner
 *     MOVE (window, range)              -->
 *     put: a send                       -->  a receive, into the window
 *     get: a receive                    <--  a send, from the window
 *                                       <--  MOVED (status), after its half has ended
 *
 * A part is over when this end's half has ended and MOVED has arrived. MOVE and MOVED are
 * numbered and kept, and so are the messages of the halves: parts go on on the next link
 * when a link is lost. A MOVE may arrive before the window is opened again there, so it
 * carries the capability.
 *
 * The half of the other end must not wait for a half that fails alone: an end that refuses
 * a part posts an empty half, and so does one whose half cannot be posted, or whose send
 * fails before the other end has heard of it. An empty receive has no room, and an empty
 * send no bytes. A send whose receive has ended already is dropped (keep_arrival() in
 * recv.c).
 */
#include "rendezvous/window.h"

#include <errno.h>

#include "base/endian.h"
#include "rendezvous/rendezvous.h"

/* ---- halves ---- */

static int try_to_post(struct tern_move *move, bool is_send, const struct tern_buf *buf)
{
	struct tern_channel *channel = move->peer->windows.channel;
	const struct tern_tensor tensor = {
		.buf = *buf, .shape = tern_shape_1d(TERN_U8, buf->bytes)};

	return is_send ? tern_send(channel, &move->req, move->id, move->get, &tensor,
				 NULL, 0)
		       : tern_recv(
				 channel, &move->req, move->id, move->get, buf, NULL, 0);
}

static void post_empty(struct tern_move *move, bool is_send, int status)
{
	static const struct tern_buf nothing;
	int r;

	move->status = status;
	move->empty = true;
	r = try_to_post(move, is_send, &nothing);
	tern_assert(r == 0);
}

static void post(struct tern_move *move, bool is_send, const struct tern_buf *buf)
{
	int r = move->status ? move->status : try_to_post(move, is_send, buf);

	if (r < 0)
		post_empty(move, is_send, r);
}

/* Called when this end's half has ended. True: it was a send that has failed, of which the
 * other end knows nothing, and an empty one follows it. */
static bool goes_on(struct tern_move *move, bool is_send)
{
	int status = move->req.status;

	if (!is_send || status == 0 || tern_xfer_of(&move->req)->announced ||
		move->empty || move->answered ||
		move->peer->state == TERN_PEER_STATE_DOWN)
		return false;
	post_empty(move, true, status);
	return true;
}

/* Makes a part, and with the first one the channel. NULL: no memory. */
static struct tern_move *move_new(struct tern_peer *peer, uint32_t id, bool get)
{
	struct tern_peer_windows *w = &peer->windows;
	struct tern_move *move = tern_list_first(&w->spare_moves, struct tern_move, node);

	if (!w->channel &&
		tern_channel_open_any(peer, TERN_CHANNEL_WINDOWS, &w->channel) == -ENOMEM)
		return NULL;
	if (move)
		tern_list_remove(&move->node);
	else
		move = malloc(sizeof(*move));
	if (!move)
		return NULL;
	*move = (struct tern_move){.peer = peer, .id = id, .get = get};
	tern_list_init(&move->node);
	return move;
}

/* Keeps the memory of a part for the next one. */
static void move_free(struct tern_move *move)
{
	tern_list_remove(&move->node);
	tern_list_push(&move->peer->windows.spare_moves, &move->node);
}

/* ---- the end that accesses the window ---- */

/* Ends a part, whose request goes on, or ends with the session. */
static void over(struct tern_move *move, int status)
{
	struct tern_wreq *x = move->access;
	struct tern_peer *peer = move->peer;
	struct tern_peer_windows *w = &peer->windows;

	move_free(move);
	w->move_count--;
	w->moved_count++;
	/* The requests that waited for the end of a part take their turns first. */
	tern_list_splice(&w->behind_moves, &w->active);
	tern_list_splice(&w->active, &w->behind_moves);
	x->parts_out--;
	if (!x->status)
		x->status = status;
	tern_windows_due(peer);
	if (x->parts_out)
		return;
	if (peer->state != TERN_PEER_STATE_DOWN)
		tern_wreq_activate(x);
	else if (x->status) /* or tern_window_down_access() ends it soon */
		tern_wreq_complete(x, x->status);
}

/* Status of a part of which both halves have ended. */
static int result(const struct tern_move *move)
{
	if (move->status || move->req.status)
		return move->status ? move->status : move->req.status;
	return move->req.bytes == move->bytes ? 0 : -EPROTO;
}

static void own_half_ended(struct tern_req *req)
{
	struct tern_move *move = tern_container_of(req, struct tern_move, req);
	struct tern_peer *peer = move->peer;

	if (goes_on(move, !move->get))
		return;
	move->ended = true;
	if (move->answered)
		over(move, result(move));
	else if (peer->state == TERN_PEER_STATE_DOWN)
		over(move, peer->cause ? peer->cause : -ESHUTDOWN);
	tern_peer_pump(peer);
}

uint64_t tern_move_bytes(const struct tern_wreq *x, uint64_t left)
{
	uint64_t most = x->rdv->ctx->domain->opts.bounce_bytes;

	most = most ? TERN_MIN(most, TERN_MOVE_BYTES) : TERN_MOVE_BYTES;
	return TERN_MIN(left, most);
}

static int say_move(struct tern_wreq *x, uint32_t id, uint64_t offset, uint64_t bytes)
{
	const struct tern_window_desc *desc = &x->remote->desc;
	unsigned char capability[TERN_CAPABILITY_BYTES];
	struct tern_header h = {.type = TERN_MSG_WINDOW_MOVE,
		.flags = x->kind == TERN_WREQ_GET ? TERN_FLAG_RECV : 0,
		.key = desc->id,
		.step = offset,
		.bytes = bytes,
		.src = id};

	tern_put_le64(capability, desc->capability[0]);
	tern_put_le64(capability + 8, desc->capability[1]);
	return tern_stream_send(x->peer, &h, capability, NULL);
}

int tern_move_start(struct tern_wreq *x, const struct tern_piece *piece, uint64_t bytes)
{
	struct tern_peer_windows *w = &x->peer->windows;
	struct tern_buf local = {piece->local.mem, piece->local.offset + x->moved, bytes};
	bool get = x->kind == TERN_WREQ_GET;
	struct tern_move *move;

	if (w->move_count == TERN_MOVES_MAX)
		return -EAGAIN;
	do
		w->last_move++;
	while (!w->last_move);
	move = move_new(x->peer, w->last_move, get);
	if (!move) {
		x->status = -ENOMEM;
		return 0;
	}
	if (say_move(x, move->id, piece->remote_offset + x->moved, bytes) < 0) {
		move_free(move);
		return -EAGAIN;
	}
	move->access = x;
	move->bytes = bytes;
	tern_list_push(&w->moves, &move->node);
	w->move_count++;
	x->parts_out++;
	move->req.done = own_half_ended;
	post(move, !get, &local);
	return 0;
}

int tern_move_on_moved(struct tern_peer *peer, const struct tern_header *h)
{
	tern_list_for_each (n, &peer->windows.moves) {
		struct tern_move *move = tern_list_entry(n, struct tern_move, node);

		if (move->id != h->dst || move->answered)
			continue;
		move->answered = true;
		if (!move->status)
			move->status = h->status;
		if (move->ended)
			over(move, result(move));
		return 0;
	}
	return -EPROTO;
}

/* ---- the owner ---- */

static void owners_half_ended(struct tern_req *req)
{
	struct tern_move *move = tern_container_of(req, struct tern_move, req);
	struct tern_peer *peer = move->peer;
	struct tern_window *window = move->window;

	move->window = NULL;
	if (window)
		tern_window_unhold(window);
	if (goes_on(move, move->get))
		return;
	move->ended = true;
	if (!move->status)
		move->status = req->status;
	tern_windows_due(peer);
	if (peer->state == TERN_PEER_STATE_DOWN)
		tern_moves_down(peer);
	tern_peer_pump(peer);
}

int tern_move_on_move(struct tern_peer *peer, const struct tern_header *h)
{
	struct tern_peer_windows *w = &peer->windows;
	bool get = h->flags & TERN_FLAG_RECV;
	struct tern_buf range = {0};
	struct tern_move *move;

	if (!h->src || !h->bytes || h->bytes > TERN_MOVE_BYTES ||
		w->served_count == TERN_MOVES_MAX)
		return -EPROTO;
	move = move_new(peer, h->src, get);
	if (!move) {
		/* The MOVE counts as handled, so a new link would not bring it again. */
		tern_peer_down(peer, -ENOMEM);
		return 0;
	}
	tern_list_push(&w->served, &move->node);
	w->served_count++;
	move->status = tern_window_hold(peer, h, &move->window, &range);
	move->req.done = owners_half_ended;
	post(move, get, &range);
	return 0;
}

static void served(struct tern_move *move)
{
	move->peer->windows.served_count--;
	move_free(move);
}

int tern_move_answer(struct tern_peer *peer)
{
	tern_list_for_each_safe (n, &peer->windows.served) {
		struct tern_move *move = tern_list_entry(n, struct tern_move, node);
		struct tern_header h = {.type = TERN_MSG_WINDOW_MOVED,
			.dst = move->id,
			.status = (int16_t)move->status};

		if (!move->ended)
			continue;
		if (tern_stream_send(peer, &h, NULL, NULL) < 0)
			return -EAGAIN;
		served(move);
	}
	return 0;
}

bool tern_moves_unanswered(const struct tern_peer *peer)
{
	tern_list_for_each (n, &peer->windows.served)
		if (tern_list_entry(n, struct tern_move, node)->ended)
			return true;
	return false;
}

bool tern_moves_use(const struct tern_peer *peer, const struct tern_window *window)
{
	tern_list_for_each (n, &peer->windows.served)
		if (tern_list_entry(n, struct tern_move, node)->window == window)
			return true;
	return false;
}

/* ---- the end of the session ---- */

void tern_moves_down(struct tern_peer *peer)
{
	int status = peer->cause ? peer->cause : -ESHUTDOWN;

	tern_list_for_each_safe (n, &peer->windows.served) {
		struct tern_move *move = tern_list_entry(n, struct tern_move, node);

		if (move->ended)
			served(move);
	}
	tern_list_for_each_safe (n, &peer->windows.moves) {
		struct tern_move *move = tern_list_entry(n, struct tern_move, node);

		if (move->ended)
			over(move, status);
	}
}

void tern_moves_fini(struct tern_peer *peer)
{
	struct tern_peer_windows *w = &peer->windows;
	struct tern_list *n;

	tern_assert(tern_list_empty(&w->moves) && tern_list_empty(&w->served));
	while ((n = tern_list_pop(&w->spare_moves)))
		free(tern_list_entry(n, struct tern_move, node));
}
