/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing: puts the tensor of a send into the receiver's buffer, in chunks, over the main
 * link or over rails (rail.c).
 *
 * A send in state WRITING waits in one of the two lists `pump.writing` while it has puts
 * to issue. The sends of a list issue one chunk each in turn; an urgent one (TERN_URGENT)
 * keeps its turn. When all puts of a send were issued or it was cancelled, and the rails
 * have confirmed the puts that they carried, the send is FINISHING: DONE follows on the
 * main link (send.c).
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>

#define APART_CHUNKS 4u

/* ---- connections that carry the puts ---- */

static struct tern_put_op *free_op(struct tern_peer *peer, unsigned rail)
{
	for (unsigned i = 0; i < TERN_CONN_PUTS; i++)
		if (!peer->rails.put_ops[rail][i].xfer)
			return &peer->rails.put_ops[rail][i];
	return NULL;
}

static bool is_up(const struct tern_peer *peer, unsigned rail)
{
	return peer->rails.link[rail] && peer->rails.link[rail]->state == TERN_LINK_UP;
}

static bool any_is_up(const struct tern_peer *peer)
{
	for (unsigned i = 1; i < TERN_RAILS_MAX; i++)
		if (is_up(peer, i))
			return true;
	return false;
}

/* True if the tensor of x is bulk and goes over rails only, since a rail is up. */
static bool is_apart(const struct tern_xfer *x)
{
	return tern_is_bulk(x->peer, x->buf.bytes) && any_is_up(x->peer);
}

/* True if the puts of x use the main link only. This is so if they are repeated before
 * the DONE of x is sent again, since they must arrive before it. It is also so if the
 * tensor is not bulk, on fabrics where bulk tensors use rails only. */
static bool only_main(const struct tern_xfer *x, bool apart)
{
	return x->state != TERN_XFER_WRITING || (x->peer->rails.bulk_bytes && !apart);
}

/* True if chunks may be put over this rail at all, whether it has room now or not. */
static bool takes_chunks(const struct tern_peer *peer, unsigned rail)
{
	return rail == 0 ? !peer->rails.bulk_bytes : is_up(peer, rail);
}

/* If the tensor is bulk and goes over rails only, a chunk is larger, since no message waits
 * behind it. */
static uint64_t chunk_bytes(
	const struct tern_xfer *x, const struct tern_conn *conn, bool apart)
{
	uint64_t n = conn->chunk_bytes * (apart ? APART_CHUNKS : 1);

	return TERN_MIN(n, x->buf.bytes - x->issued);
}

/* The rail for the next chunk, of about so many bytes; TERN_RAILS_MAX: none has room, or
 * it is better to wait for one that has none. */
static unsigned next_rail(struct tern_xfer *x, uint64_t bytes)
{
	struct tern_peer *peer = x->peer;
	uint32_t up = 0, room = 0;
	unsigned rail;

	for (unsigned i = 0; i < TERN_RAILS_MAX; i++) {
		up |= takes_chunks(peer, i) ? tern_rail_bit(i) : 0;
		room |= free_op(peer, i) ? tern_rail_bit(i) : 0;
	}
	rail = tern_load_best(peer->rails.load, TERN_RAILS_MAX, up, room, x->rail, bytes,
		tern_now_ns(peer->rdv->ctx->env));
	if (rail < TERN_RAILS_MAX)
		x->rail = (uint8_t)(rail + 1);
	return rail;
}

/* Returns a free put operation for the next chunk, and the connection to use. NULL: the
 * chunk has to wait for room. */
static struct tern_put_op *next_op(
	struct tern_xfer *x, bool apart, struct tern_conn **conn)
{
	struct tern_peer *peer = x->peer;
	unsigned rail = 0;

	*conn = tern_peer_conn(peer);
	if (!only_main(x, apart))
		rail = next_rail(x, chunk_bytes(x, *conn, apart));
	if (rail == TERN_RAILS_MAX)
		return NULL;
	if (rail > 0) {
		x->rails_used |= (uint16_t)tern_rail_bit(rail);
		*conn = peer->rails.link[rail]->conn;
	}
	return free_op(peer, rail);
}

/* ---- puts ---- */

static unsigned rail_of(const struct tern_peer *peer, const struct tern_put_op *put)
{
	return (unsigned)(put - peer->rails.put_ops[0]) / TERN_CONN_PUTS;
}

/* Called when a put over the main link is done: if it was the last one, the time is known
 * that all took. (Those over rails are confirmed, rail.c.) */
static void main_has_carried(struct tern_peer *peer)
{
	for (unsigned i = 0; i < TERN_CONN_PUTS; i++)
		if (peer->rails.put_ops[0][i].xfer)
			return;
	tern_load_carried(&peer->rails.load[0], tern_now_ns(peer->rdv->ctx->env));
}

static void put_done(struct tern_op *op, int status)
{
	struct tern_put_op *put = tern_container_of(op, struct tern_put_op, op);
	struct tern_xfer *x = put->xfer;
	struct tern_peer *peer = x->peer;

	/* A put fails only with its link, whose failure is reported separately. */
	(void)status;
	if (put->slot)
		tern_stage_put_done(TERN_TAKE(put->slot));
	put->xfer = NULL;
	if (rail_of(peer, put) == 0)
		main_has_carried(peer);
	peer->rails.put_op_count--;
	x->puts_out--;
	if (x->acked && x->puts_out == 0)
		tern_xfer_end(x, x->result);
	tern_peer_pump(peer);
}

void tern_write_queue(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;

	tern_rails_expect(peer, x->buf.bytes);
	if (!tern_list_linked(&x->queue))
		tern_list_push(&peer->pump.writing[is_apart(x)], &x->queue);
}

void tern_write_sort(struct tern_peer *peer)
{
	struct tern_list all, *n;

	tern_list_init(&all);
	tern_list_splice(&all, &peer->pump.writing[0]);
	tern_list_splice(&all, &peer->pump.writing[1]);
	while ((n = tern_list_pop(&all)))
		tern_write_queue(tern_list_entry(n, struct tern_xfer, queue));
}

/* Issues the put of one chunk. */
static int put_chunk(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;
	bool apart = is_apart(x);
	struct tern_conn *conn;
	struct tern_put_op *put = next_op(x, apart, &conn);
	uint64_t n;
	struct tern_stage_slot *slot = NULL;
	struct tern_mem *mem = x->buf.mem;
	uint64_t offset = x->buf.offset + x->issued;
	int r;

	if (!put)
		return -EAGAIN;
	n = chunk_bytes(x, conn, apart);
	if (tern_stage_needed(x)) {
		slot = tern_stage_next(x);
		if (!slot)
			return x->stage.status ? x->stage.status : -EINPROGRESS;
		mem = slot->mem;
		offset = slot->offset;
		n = slot->bytes;
	}
	put->op.done = put_done;
	r = conn->port->ops->put(conn, &put->op, mem, offset, n, &x->region, x->issued);
	if (r < 0)
		return -EAGAIN;
	if (slot)
		tern_stage_put(slot);
	if (x->issued == 0)
		tern_direct_started(x);
	put->slot = slot;
	put->xfer = x;
	put->bytes = n;
	peer->rails.put_op_count++;
	tern_load_give(&peer->rails.load[rail_of(peer, put)], n,
		tern_now_ns(peer->rdv->ctx->env));
	x->puts_out++;
	x->issued += n;
	return 0;
}

/* Called when no more puts of x are to be issued, and the rails have confirmed theirs.
 * Puts and messages of the main link arrive in order, so DONE may be sent before its puts
 * complete. */
static void finish_writing(struct tern_xfer *x)
{
	tern_list_remove(&x->queue);
	if (x->cancelled)
		x->result = -ECANCELED;
	else if (x->stage.status)
		x->result = x->stage.status;
	if (!tern_stage_is_idle(&x->stage))
		tern_stage_drop(x);
	tern_xfer_enter(x, TERN_XFER_FINISHING);
	tern_list_push(&x->peer->pump.pending, &x->queue);
}

void tern_write_settled(struct tern_xfer *x)
{
	if (tern_rails_settle(x) == 0)
		finish_writing(x);
	tern_peer_pump(x->peer);
}

/* True if the rest of the tensor is not put: the send was cancelled, or a copy from the
 * GPU has failed. */
static bool is_over(const struct tern_xfer *x)
{
	return x->cancelled || x->stage.status;
}

/* True if the next put must wait until the peer has announced the region of its buffer
 * again, after a reconnect. */
static bool lacks_region(const struct tern_xfer *x)
{
	return x->stale && x->issued < x->buf.bytes && !is_over(x);
}

int tern_write_again(struct tern_xfer *x)
{
	int r = lacks_region(x) ? -EAGAIN : 0;

	while (r == 0 && x->issued < x->buf.bytes)
		r = put_chunk(x);
	return r == -EINPROGRESS ? -EAGAIN : r;
}

/* Issues the next put of a send. 0: issued, or the send is FINISHING; -EAGAIN: no room;
 * -EINPROGRESS: the send waits for a confirmation of its rails, for the peer's region, or
 * for a staging slot. */
static int write_chunk(struct tern_xfer *x)
{
	int r = 0;

	if (lacks_region(x))
		return -EINPROGRESS;
	if (!is_over(x) && x->issued < x->buf.bytes)
		r = put_chunk(x);
	if (!is_over(x) && (r < 0 || x->issued < x->buf.bytes))
		return r;
	r = tern_rails_settle(x);
	if (r == 0)
		finish_writing(x);
	return r;
}

static void pump_list(struct tern_list *writing)
{
	struct tern_list *n;

	while ((n = tern_list_pop(writing))) {
		struct tern_xfer *x = tern_list_entry(n, struct tern_xfer, queue);
		int r = write_chunk(x);

		if (x->state != TERN_XFER_WRITING || r == -EINPROGRESS)
			/* x has no puts to issue any more, or waits for something other
			 * than room for puts. */
			continue;
		if (r < 0 || (x->flags & TERN_URGENT))
			tern_list_push_front(writing, n);
		else
			tern_list_push(writing, n);
		if (r < 0)
			return;
	}
}

void tern_write_pump(struct tern_peer *peer)
{
	pump_list(&peer->pump.writing[0]);
	pump_list(&peer->pump.writing[1]);
}
