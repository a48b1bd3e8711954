/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code that sends and receives share: states, ids, exposure, their end, and the pump,
 * which continues them when there is room.
 *
 * An xfer that cannot proceed is in exactly one list: `pending` (no room in the stream),
 * `starved` (no credit), `unasked` (a receive: want.c), `writing` (puts to issue) or
 * `wait_ack`. The pump serves the lists in that order, so that answers and small messages
 * never wait behind bulk data.
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>
#include <string.h>

#define SLOTS_MAX  65535u
#define SLOTS_STEP 64u

void tern_xfer_init(
	struct tern_xfer *x, struct tern_channel *channel, bool is_send, unsigned flags)
{
	*x = (struct tern_xfer){
		.channel = channel,
		.peer = channel->peer,
		.rdv = channel->peer->rdv,
		.is_send = is_send,
		.flags = (uint8_t)flags,
		.state = is_send ? TERN_XFER_QUEUED : TERN_XFER_POSTED,
	};
	tern_list_init(&x->queue);
	tern_list_init(&x->renewal);
	tern_map_node_init(&x->theirs);
	tern_match_node_init(&x->node);
	tern_stage_init(&x->stage);
	tern_list_push(&channel->peer->xfers, &x->all);
	channel->peer->send_count += is_send;
}

/* Allowed transitions of states, as bits: the diagram in rendezvous.h. */
#define TO(state) (1u << TERN_XFER_##state)
static const uint32_t edges[TERN_XFER_STATE_COUNT] = {
	[TERN_XFER_QUEUED] =
		TO(ANNOUNCED) | TO(WRITING) | TO(FINISHING) | TO(FLUSHING) | TO(ENDED),
	[TERN_XFER_ANNOUNCED] = TO(WRITING) | TO(FINISHING) | TO(FLUSHING) | TO(ENDED),
	[TERN_XFER_WRITING] = TO(FINISHING) | TO(FLUSHING) | TO(ENDED),
	[TERN_XFER_FINISHING] = TO(WRITING) | TO(UNACKED) | TO(FLUSHING) | TO(ENDED),
	[TERN_XFER_UNACKED] = TO(FLUSHING) | TO(ENDED),
	[TERN_XFER_POSTED] = TO(ADVERTISED) | TO(ALLOCATING) | TO(PEEKING) | TO(READING) |
			     TO(ANSWERING) | TO(LANDING) | TO(FLUSHING) | TO(ENDED),
	[TERN_XFER_ADVERTISED] = TO(POSTED) | TO(FLUSHING) | TO(ENDED),
	[TERN_XFER_ALLOCATING] = TO(READING) | TO(ANSWERING) | TO(LANDING) | TO(ENDED),
	[TERN_XFER_PEEKING] =
		TO(ALLOCATING) | TO(READING) | TO(ANSWERING) | TO(HELD) | TO(ENDED),
	[TERN_XFER_READING] = TO(ANSWERING) | TO(FLUSHING) | TO(ENDED),
	[TERN_XFER_ANSWERING] = TO(FILLING) | TO(FLUSHING) | TO(ENDED),
	[TERN_XFER_FILLING] = TO(LANDING) | TO(FLUSHING) | TO(ENDED),
	[TERN_XFER_LANDING] = TO(FLUSHING) | TO(ENDED),
	[TERN_XFER_FLUSHING] = TO(ENDED),
	[TERN_XFER_HELD] = TO(ENDED),
};
#undef TO

void tern_xfer_enter(struct tern_xfer *x, enum tern_xfer_state next)
{
	tern_assert(edges[x->state] & (1u << next));
	if (x->state == TERN_XFER_LANDING)
		x->peer->landing_count--;
	if (next == TERN_XFER_LANDING)
		x->peer->landing_count++;
	x->state = (uint8_t)next;
}

struct tern_conn *tern_peer_conn(const struct tern_peer *peer)
{
	return peer->link->conn;
}

uint32_t tern_peer_caps(const struct tern_peer *peer)
{
	return peer->link ? peer->link->conn->caps : 0;
}

/* ---- ids ---- */

static int more_slots(struct tern_peer *peer)
{
	uint32_t count = TERN_MIN(TERN_MAX(peer->slot_count * 2, SLOTS_STEP), SLOTS_MAX);
	struct tern_slot *slots;

	if (count == peer->slot_count)
		return -EAGAIN;
	slots = realloc(peer->slots, count * sizeof(*slots));
	if (!slots)
		return -EAGAIN;
	for (uint32_t i = peer->slot_count; i < count; i++)
		slots[i] = (struct tern_slot){.next = i + 1, .generation = 1};
	peer->slots = slots;
	peer->free_slot = peer->slot_count;
	peer->slot_count = count;
	return 0;
}

int tern_xfer_id(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;
	uint32_t i;

	if (x->id)
		return 0;
	if (peer->free_slot == peer->slot_count && more_slots(peer) < 0)
		return -EAGAIN;
	i = peer->free_slot;
	peer->free_slot = peer->slots[i].next;
	peer->slots[i].xfer = x;
	x->id = (uint32_t)peer->slots[i].generation << 16 | i;
	return 0;
}

void tern_xfer_forget_id(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;
	uint32_t i = x->id & 0xffff;

	if (!x->id)
		return;
	peer->slots[i].xfer = NULL;
	if (++peer->slots[i].generation == 0)
		peer->slots[i].generation = 1;
	peer->slots[i].next = peer->free_slot;
	peer->free_slot = i;
	x->id = 0;
}

struct tern_xfer *tern_xfer_by_id(struct tern_peer *peer, uint32_t id)
{
	uint32_t i = id & 0xffff;

	if (i >= peer->slot_count || peer->slots[i].generation != id >> 16)
		return NULL;
	return peer->slots[i].xfer;
}

void tern_xfer_write_into(struct tern_xfer *x, uint32_t id)
{
	x->remote_id = id;
	tern_map_add(&x->peer->theirs, &x->theirs, tern_theirs_key(TERN_WRITES_INTO, id));
}

struct tern_xfer *tern_xfer_by_their_id(struct tern_peer *peer, uint32_t id)
{
	struct tern_map_node *n =
		tern_map_find(&peer->theirs, tern_theirs_key(TERN_WRITES_INTO, id));

	return n ? tern_container_of(n, struct tern_xfer, theirs) : NULL;
}

/* ---- names ---- */

bool tern_xfer_clashes(const struct tern_xfer *x, const struct tern_name *theirs)
{
	if (!tern_names_differ(&x->name, theirs))
		return false;
	tern_log(x->rdv->ctx->env, TERN_LOG_ERROR,
		"%s: \"%.*s\" here and \"%.*s\" there have the same key %016llx: rename "
		"one",
		x->peer->name, x->name.bytes, x->name.text, theirs->bytes, theirs->text,
		(unsigned long long)x->node.triple.key);
	return true;
}

/* ---- memory ---- */

int tern_xfer_expose(struct tern_xfer *x, enum tern_access access)
{
	struct tern_conn *conn = tern_peer_conn(x->peer);
	const struct tern_buf *buf = x->stage.bounce.mem ? &x->stage.bounce : &x->buf;
	int r;

	if (x->exposed)
		return 0;
	r = conn->port->ops->expose(
		conn, buf->mem, buf->offset, buf->bytes, access, &x->region);
	x->exposed = r == 0;
	return r;
}

/* ---- the end ---- */

void tern_rdv_run_completed(struct tern_rdv *rdv)
{
	struct tern_list *n;

	while ((n = tern_list_pop(&rdv->completed))) {
		struct tern_xfer *x = tern_list_entry(n, struct tern_xfer, queue);
		struct tern_req *req = tern_req_of(x);

		req->status = x->result;
		req->done(req);
	}
}

static void run_completed(struct tern_deferred *deferred)
{
	tern_rdv_run_completed(
		tern_container_of(deferred, struct tern_rdv, complete_call));
}

static void leave_table(struct tern_xfer *x)
{
	if (x->is_send)
		tern_match_remove(&x->peer->match, &x->node);
	else
		tern_want_leave(x);
}

void tern_xfer_complete(struct tern_xfer *x, int status)
{
	struct tern_rdv *rdv = x->peer->rdv;
	struct tern_req *req = tern_req_of(x);
	bool held = x->state == TERN_XFER_HELD;

	tern_assert(!x->exposed);
	if (!tern_stage_is_idle(&x->stage))
		tern_stage_fini(x);
	tern_list_remove(&x->queue);
	tern_list_remove(&x->renewal);
	tern_map_remove(&x->peer->theirs, &x->theirs);
	leave_table(x);
	tern_xfer_forget_id(x);
	tern_list_remove(&x->all);
	x->peer->send_count -= x->is_send;
	if (held || (status == 0 && x->pool))
		tern_list_push(&x->peer->held, &x->all);
	if (!held) {
		tern_xfer_enter(x, TERN_XFER_ENDED);
		if (status < 0 && x->pool)
			tern_pool_put(x->pool, &x->buf);
	}
	if (x->wanted)
		tern_want_withdraw(x);
	if (!x->is_send) {
		req->buf = x->buf;
		req->peeked = held;
		if (status == 0 && !held)
			req->data = tern_buf_ptr(&x->buf);
	}
	tern_peer_maybe_finish(x->peer);
	/* A caller that polls the status may reuse the request at once, so the status
	 * is set just before done(). */
	x->result = status;
	if (!req->done) {
		req->status = status;
		return;
	}
	tern_list_push(&rdv->completed, &x->queue);
	rdv->complete_call.call = run_completed;
	tern_defer(rdv->ctx, &rdv->complete_call);
}

static void flushed(struct tern_op *op, int status)
{
	struct tern_xfer *x = tern_container_of(op, struct tern_xfer, op);

	(void)status;
	x->withdrawing = false;
	if (x->stage.copies == 0)
		tern_xfer_complete(x, x->result);
}

int tern_xfer_withdraw(struct tern_xfer *x, int status)
{
	struct tern_port *port = x->peer->port;

	if (!x->exposed)
		return 0;
	x->exposed = false;
	x->op.done = flushed;
	if (port->ops->withdraw(port, &x->op, &x->region) != -EINPROGRESS)
		return 0;
	x->told = false;
	x->withdrawing = true;
	x->result = status;
	tern_xfer_enter(x, TERN_XFER_FLUSHING);
	return -EINPROGRESS;
}

/* Started copies cannot be cancelled: wait in FLUSHING. */
static int await_copies(struct tern_xfer *x, int status)
{
	if (x->stage.copies == 0)
		return 0;
	x->result = status;
	tern_xfer_enter(x, TERN_XFER_FLUSHING);
	return -EINPROGRESS;
}

void tern_xfer_end(struct tern_xfer *x, int status)
{
	tern_list_remove(&x->queue);
	leave_table(x);
	if (!tern_stage_is_idle(&x->stage))
		tern_stage_drop(x);
	if (tern_xfer_withdraw(x, status) == 0 && await_copies(x, status) == 0)
		tern_xfer_complete(x, status);
}

/* ---- records ---- */

void tern_xfer_meet(struct tern_xfer *x, struct tern_record *record)
{
	x->record = record;
	record->xfer = x;
}

struct tern_record *tern_xfer_part(struct tern_xfer *x)
{
	struct tern_record *record = TERN_TAKE(x->record);

	if (record)
		record->xfer = NULL;
	return record;
}

struct tern_record *tern_record_by_id(struct tern_peer *peer, bool is_recv, uint32_t id)
{
	struct tern_map_node *n = tern_map_find(&peer->theirs,
		tern_theirs_key(is_recv ? TERN_THEIR_RECV : TERN_THEIR_SEND, id));

	return n ? tern_container_of(n, struct tern_record, theirs) : NULL;
}

static void know_by_id(struct tern_record *record)
{
	tern_map_node_init(&record->theirs);
	if (record->type == TERN_MSG_EAGER)
		return;
	tern_map_add(&record->peer->theirs, &record->theirs,
		tern_theirs_key(
			record->type == TERN_MSG_POST ? TERN_THEIR_RECV : TERN_THEIR_SEND,
			record->src));
}

struct tern_record *tern_record_new(struct tern_peer *peer, const struct tern_header *h)
{
	struct tern_list *n = tern_list_pop(&peer->rdv->free_records);
	struct tern_record *record;

	if (!n)
		n = tern_record_fresh(peer->rdv);
	/* Credits never promise more records than there are. */
	tern_assert(n);
	record = tern_list_entry(n, struct tern_record, all);
	record->peer = peer;
	record->shape = h->shape;
	record->region = h->region;
	record->has_region = h->flags & TERN_FLAG_REGION;
	record->name.bytes = 0;
	if (h->flags & TERN_FLAG_NAME)
		record->name = *h->name;
	record->stale = false;
	record->wanted = !tern_type_takes_credit(h->type, h->dst);
	record->bytes = h->bytes;
	record->src = h->src;
	record->type = h->type;
	record->xfer = NULL;
	know_by_id(record);
	tern_match_node_init(&record->node);
	record->node.triple = tern_header_triple(h);
	tern_list_init(&record->queue);
	tern_list_push(&peer->records, &record->all);
	return record;
}

void tern_record_free(struct tern_record *record)
{
	struct tern_peer *peer = record->peer;

	tern_match_remove(&peer->match, &record->node);
	tern_map_remove(&peer->theirs, &record->theirs);
	tern_list_remove(&record->queue);
	tern_list_remove(&record->all);
	tern_list_push_front(&peer->rdv->free_records, &record->all);
	if (record->wanted) {
		peer->rdv->wanted_count--;
		return;
	}
	tern_credit_release(&peer->credit_rx);
	if (tern_credit_worth_telling(&peer->credit_rx))
		tern_stream_tell(peer);
}

void tern_record_answer(struct tern_record *record, uint8_t type, int status)
{
	record->answer = type;
	record->status = (int16_t)status;
	tern_list_push(&record->peer->answers, &record->queue);
	tern_peer_pump(record->peer);
}

static int say_answer(struct tern_record *record)
{
	struct tern_header h = {
		.type = record->answer,
		.dst = record->src,
		.status = record->status,
		.flags = record->answer == TERN_MSG_CANCEL_ACK &&
					 record->type == TERN_MSG_POST
				 ? TERN_FLAG_RECV
				 : 0,
	};
	int r = tern_stream_send(record->peer, &h, NULL, NULL);

	if (r == 0)
		tern_record_free(record);
	return r;
}

/* ---- the pump ---- */

bool tern_peer_credit(struct tern_peer *peer, uint32_t keep)
{
	struct tern_credit_tx *tx = &peer->credit_tx;

	/* Waiting xfers come first: none may overtake them. */
	if (!peer->serving_starved && !tern_list_empty(&peer->starved))
		return false;
	return tx->granted - tx->used > keep && tern_credit_take(tx);
}

static int advance(struct tern_xfer *x)
{
	return x->is_send ? tern_send_advance(x) : tern_recv_advance(x);
}

static int starve(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;

	if (tern_want_say_have(x) < 0)
		return -EAGAIN;
	tern_list_push(&peer->starved, &x->queue);
	x->starving = true;
	peer->stats.credit_stall_count++;
	if (!peer->starved_told)
		tern_stream_tell(peer);
	return 0;
}

static int pump_answers(struct tern_peer *peer)
{
	struct tern_record *record;

	if (tern_want_say_misses(peer) < 0)
		return -EAGAIN;
	while ((record = tern_list_first(&peer->answers, struct tern_record, queue)))
		if (say_answer(record) < 0)
			return -EAGAIN;
	return 0;
}

static int pump_pending(struct tern_peer *peer)
{
	struct tern_list *n;

	while ((n = tern_list_pop(&peer->pending))) {
		struct tern_xfer *x = tern_list_entry(n, struct tern_xfer, queue);
		int r = advance(x);

		if (r == -ENOBUFS)
			r = starve(x);
		if (r == -EAGAIN) {
			tern_list_push_front(&peer->pending, n);
			return r;
		}
	}
	return 0;
}

static int pump_starved(struct tern_peer *peer)
{
	while (!tern_list_empty(&peer->starved) &&
		peer->credit_tx.granted != peer->credit_tx.used) {
		struct tern_list *n = tern_list_pop(&peer->starved);
		struct tern_xfer *x = tern_list_entry(n, struct tern_xfer, queue);
		int r;

		peer->serving_starved = true;
		x->starving = false;
		r = advance(x);
		peer->serving_starved = false;
		if (r < 0) {
			x->starving = true;
			tern_list_push_front(&peer->starved, n);
			return r;
		}
	}
	return 0;
}

/* Large transfers take turns, one chunk each, until there is no room. */
static void pump_writing(struct tern_list *writing)
{
	struct tern_list *n;

	while ((n = tern_list_pop(writing))) {
		struct tern_xfer *x = tern_list_entry(n, struct tern_xfer, queue);
		int r = tern_send_write(x);

		if (x->state != TERN_XFER_WRITING || r == -EINPROGRESS)
			continue; /* it waits for the stream, or for its rails */
		if (r < 0 || (x->flags & TERN_URGENT))
			tern_list_push_front(writing, n);
		else
			tern_list_push(writing, n);
		if (r < 0)
			return;
	}
}

void tern_peer_pump_now(struct tern_peer *peer)
{
	if (peer->state != TERN_PEER_STATE_UP || peer->pumping)
		return;
	peer->pumping = true;
	/* Repeat from the start: transfers that finished writing have a pending DONE,
	 * and RENEWs give other messages a turn. */
	do {
		if (tern_stream_flush(peer) < 0 || pump_answers(peer) < 0 ||
			pump_pending(peer) < 0 || pump_starved(peer) < 0)
			break;
		tern_want_pump(peer);
		if (!tern_list_empty(&peer->renewals))
			continue; /* RENEWs wait, and bulk data would take their room */
		pump_writing(&peer->writing[0]);
		pump_writing(&peer->writing[1]);
	} while (!tern_list_empty(&peer->pending) || !tern_list_empty(&peer->answers) ||
		 !tern_list_empty(&peer->renewals));
	peer->pumping = false;
	tern_peer_maybe_finish(peer);
}

void tern_xfer_pend(struct tern_xfer *x)
{
	if (!tern_list_linked(&x->queue))
		tern_list_push(&x->peer->pending, &x->queue);
	tern_peer_pump(x->peer);
}
