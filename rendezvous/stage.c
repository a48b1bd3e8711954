/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging: tensors in GPU memory that the fabric of the link does not reach (if it does:
 * direct.c) are copied through page-locked host memory. Each end stages independently;
 * the messages do not show it.
 *
 *     send, the fabric puts     pieces: copied to a slot on the host, put from there
 *     send, the peer reads      all of it copied to a bounce buffer, then the RTS
 *     receive, EAGER            its payload copied to a slot, then to the GPU: LANDING
 *     receive, by get           pieces: get to a slot, copied to the GPU; then ATS
 *     receive, the peer puts    a bounce buffer in the CTS; after DONE copied: LANDING
 *     receive, the peer lends   lend.c; for host memory, pieces copied through slots
 *
 * A slot is a staging slot: a page-locked buffer of the stager (stager.h), for a piece of
 * a tensor. A bounce buffer is page-locked too, and holds a whole tensor. LANDING is the
 * state of a receive whose data is being copied to the GPU. A slot that a transfer holds
 * is in one phase:
 *
 *     send:  COPYING -> READY -> MOVING (put) -> given back
 *     get:   (IDLE ->) MOVING (get) -> COPYING -> given back
 *     lent:  (IDLE ->) COPYING -> given back
 *
 * A transfer that no longer needs a slot marks it as dropped; the slot is freed when the
 * device or the fabric has finished with it. A transfer does not end while one of its
 * copies is in progress: it waits in state FLUSHING, and its peer is reported DOWN only
 * after that.
 *
 * The peer writes only into bounce buffers that the receive took after it was matched
 * (CTS), never into a buffer that was advertised before (POST). So a bounce buffer is
 * held only as long as the data needs, and one of the holders can always proceed. This is
 * not true of a bounce buffer that the peer reads: the send holds it until the receive is
 * posted.
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>
#include <string.h>

/* Size of one copy from lent GPU memory (lend.c): it takes about 20 us over NVLink at
 * 450 GB/s. */
#define LENT_PIECE_BYTES ((uint64_t)8 << 20)

/* Least size of a piece in a staging slot. */
#define PIECE_BYTES_MIN ((uint64_t)512 << 10)

enum phase { IDLE, COPYING, READY, MOVING };

static void slot_ready(struct tern_stage_wait *wait, struct tern_stage_slot *slot);

static uint64_t bytes_of(const struct tern_xfer *x)
{
	return x->is_send ? x->buf.bytes
			  : tern_req_of((struct tern_xfer *)(uintptr_t)x)->bytes;
}

/* Counts a staged transfer. Logs only the first one, and the first one after a change to
 * another fabric. */
static void tell(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;

	peer->stats.staged_count++;
	if (peer->stage_told == peer->port)
		return;
	peer->stage_told = peer->port;
	tern_log(x->rdv->ctx->env, TERN_LOG_INFO,
		"%s: GPU memory is staged through page-locked memory (%s)", peer->name,
		peer->fabric_name);
}

/* Returns the size of a piece that begins at offset `at` of the tensor. A staging slot
 * has the size at which copies are fast, but a tensor of at most four slots is cut into
 * four pieces (fewer if they would be smaller than PIECE_BYTES_MIN), so that the fabric
 * moves one piece while the next is copied. */
static uint64_t piece_at(const struct tern_xfer *x, uint64_t at)
{
	uint64_t quarter = tern_align_up(bytes_of(x) / 4, 64 << 10);
	uint64_t most = TERN_MIN(TERN_MAX(quarter, PIECE_BYTES_MIN), TERN_STAGE_BYTES);

	return TERN_MIN(bytes_of(x) - at, most);
}

/* ---- copies ---- */

static bool is_over(const struct tern_xfer *x)
{
	return x->stage.copies == 0 && tern_list_empty(&x->stage.slots) &&
	       (x->stage.status || x->stage.landed == bytes_of(x));
}

/* Continues x after something that it waited for has happened, such as the end of a
 * copy. */
static void go_on(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;

	if (x->state == TERN_XFER_FLUSHING) {
		if (x->stage.copies == 0 && !x->withdrawing)
			tern_xfer_complete(x, x->result);
	} else if (x->state == TERN_XFER_READING || x->state == TERN_XFER_LANDING) {
		if (is_over(x) && tern_lend_repay(x) == 0)
			tern_recv_landed(x, x->stage.status);
	} else if (x->state == TERN_XFER_QUEUED) {
		tern_xfer_pend(x); /* the tensor is in the bounce buffer now */
	} else if (x->state == TERN_XFER_WRITING) {
		tern_write_queue(x);
	}
	tern_peer_pump(peer);
}

static void copy_ended(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;

	x->stage.copies--;
	peer->copy_count--;
	go_on(x);
	if (peer->copy_count == 0)
		tern_peer_settled(peer);
}

static void start_copy(struct tern_xfer *x, struct tern_copy *copy,
	enum tern_stage_way way, uint64_t at, void *host, uint64_t bytes)
{
	x->stage.copies++;
	x->peer->copy_count++;
	tern_stager_copy(
		x->stage.stager, copy, way, x->buf.mem, x->buf.offset + at, host, bytes);
}

static void give_back(struct tern_stage_slot *slot)
{
	tern_list_remove(&slot->node);
	tern_stager_give(slot);
}

static void fail(struct tern_xfer *x, int status)
{
	if (!x->stage.status)
		x->stage.status = status;
	tern_list_remove(&x->stage.wait.node);
}

static void slot_copied(struct tern_copy *copy, int status)
{
	struct tern_stage_slot *slot =
		tern_container_of(copy, struct tern_stage_slot, copy);
	struct tern_xfer *x = slot->holder;

	if (slot->dropped) {
		give_back(slot);
	} else if (status) {
		fail(x, status);
		give_back(slot);
	} else if (x->is_send) {
		slot->phase = READY;
	} else {
		if (slot->way == TERN_STAGE_DOWN)
			tern_copy(tern_mem_at(x->buf.mem, x->buf.offset + slot->at),
				tern_stage_slot_data(slot), slot->bytes, bytes_of(x));
		x->stage.landed += slot->bytes;
		give_back(slot);
	}
	copy_ended(x);
}

static void copy_slot(struct tern_xfer *x, struct tern_stage_slot *slot)
{
	slot->phase = COPYING;
	slot->copy.done = slot_copied;
	start_copy(x, &slot->copy, slot->way, slot->at, tern_stage_slot_data(slot),
		slot->bytes);
}

static void hold(struct tern_xfer *x, struct tern_stage_slot *slot)
{
	slot->holder = x;
	slot->dropped = false;
	slot->phase = IDLE;
	slot->at = slot->bytes = 0;
	tern_list_push(&x->stage.slots, &slot->node);
}

static void wait_for_slot(struct tern_xfer *x, enum tern_stage_way way)
{
	bool urgent = x->is_send && (x->flags & TERN_URGENT);

	x->stage.wait.ready = slot_ready;
	tern_stager_wait(x->stage.stager, way, &x->stage.wait, urgent);
}

/* Takes a free staging slot. NULL: there is none; slot_ready() is called when one is
 * free. */
static struct tern_stage_slot *take(struct tern_xfer *x, enum tern_stage_way way)
{
	struct tern_stage_slot *slot = tern_stager_take(x->stage.stager, way);

	if (slot)
		hold(x, slot);
	else
		wait_for_slot(x, way);
	return slot;
}

/* ---- sending: pieces ---- */

static void fill(struct tern_xfer *x, struct tern_stage_slot *slot)
{
	if (x->stage.asked == 0)
		tell(x);
	slot->at = x->stage.asked;
	slot->bytes = piece_at(x, slot->at);
	x->stage.asked += slot->bytes;
	copy_slot(x, slot);
}

static bool wants_more(const struct tern_xfer *x)
{
	return x->stage.asked < bytes_of(x) && !x->stage.status;
}

static struct tern_stage_slot *first_in(struct tern_xfer *x, enum phase phase)
{
	tern_list_for_each (n, &x->stage.slots) {
		struct tern_stage_slot *slot =
			tern_list_entry(n, struct tern_stage_slot, node);

		if (slot->phase == phase && !slot->dropped)
			return slot;
	}
	return NULL;
}

struct tern_stage_slot *tern_stage_next(struct tern_xfer *x)
{
	while (wants_more(x)) {
		struct tern_stage_slot *slot = take(x, TERN_STAGE_DOWN);

		if (!slot)
			break;
		fill(x, slot);
	}
	return x->stage.status ? NULL : first_in(x, READY);
}

void tern_stage_put(struct tern_stage_slot *slot)
{
	slot->phase = MOVING;
}

void tern_stage_put_done(struct tern_stage_slot *slot)
{
	give_back(slot);
}

/* ---- receiving: pieces ---- */

static void got(struct tern_op *op, int status)
{
	struct tern_stage_slot *slot = tern_container_of(op, struct tern_stage_slot, op);
	struct tern_xfer *x = slot->holder;

	if (status == 0 && !slot->dropped) {
		copy_slot(x, slot);
		return;
	}
	/* Any failure other than -EACCES means that the link ends; tern_stage_lost() then
	 * starts the get again. */
	if (status == -EACCES && !slot->dropped)
		fail(x, status);
	give_back(slot);
	go_on(x);
}

int tern_stage_get(struct tern_xfer *x)
{
	struct tern_conn *conn = tern_peer_conn(x->peer);

	if (x->stage.asked == 0)
		tell(x);
	while (wants_more(x)) {
		struct tern_stage_slot *slot = first_in(x, IDLE);
		int r;

		if (!slot)
			slot = take(x, TERN_STAGE_UP);
		if (!slot)
			return 0;
		slot->at = x->stage.asked;
		slot->bytes = piece_at(x, slot->at);
		slot->op.done = got;
		r = conn->port->ops->get(conn, &slot->op, slot->mem, slot->offset,
			slot->bytes, &x->record->region, slot->at);
		if (r < 0)
			return -EAGAIN; /* x keeps the staging slot for its next get */
		slot->phase = MOVING;
		x->stage.asked += slot->bytes;
	}
	return 0;
}

/* Copies the data of the EAGER of x through a staging slot to the GPU. The record of the
 * EAGER is freed as soon as the bytes are in the slot. */
static void land_eager(struct tern_xfer *x, struct tern_stage_slot *slot)
{
	struct tern_record *record = tern_xfer_part(x);

	slot->bytes = record->bytes;
	memcpy(tern_stage_slot_data(slot), tern_record_payload(record), record->bytes);
	tern_record_free(record);
	copy_slot(x, slot);
}

void tern_stage_eager(struct tern_xfer *x)
{
	struct tern_stage_slot *slot = take(x, TERN_STAGE_UP);

	tell(x);
	if (slot)
		land_eager(x, slot);
}

/* Callback of the stager: gives a transfer a staging slot that it has waited for. */
static void slot_ready(struct tern_stage_wait *wait, struct tern_stage_slot *slot)
{
	struct tern_xfer *x = tern_container_of(wait, struct tern_xfer, stage.wait);

	hold(x, slot);
	if (x->state == TERN_XFER_LANDING) {
		land_eager(x, slot);
	} else if (x->peer->state != TERN_PEER_STATE_UP) {
		give_back(slot); /* the transfer starts again on the next link, or ends */
	} else if (x->state == TERN_XFER_READING) {
		tern_xfer_pend(x);
	} else {
		fill(x, slot);
		if (wants_more(x))
			wait_for_slot(x, TERN_STAGE_DOWN);
	}
}

/* ---- bounce buffers ---- */

static int get_bounce(struct tern_xfer *x)
{
	int r = tern_bounce_get(
		x->rdv->ctx->domain, x->buf.mem->gpu, bytes_of(x), &x->stage.bounce);

	if (r == -ENOBUFS)
		tern_log(x->rdv->ctx->env, TERN_LOG_WARN,
			"%s: a tensor of %llu bytes in GPU memory is larger than the "
			"%llu bytes that may be page-locked to stage it: raise "
			"bounce_bytes",
			x->peer->name, (unsigned long long)bytes_of(x),
			(unsigned long long)x->rdv->ctx->domain->opts.bounce_bytes);
	if (r < 0 && r != -EAGAIN)
		x->stage.status = r;
	return r;
}

/* Polls for a free bounce buffer after a pause. A buffer that this context gives back is
 * passed to the waiting transfers at once, but other contexts do not report when they
 * give one back. */
static void look_later(struct tern_rdv *rdv)
{
	if (!rdv->bounce_timer.place)
		tern_timer_set(rdv->ctx, &rdv->bounce_timer,
			tern_now_ns(rdv->ctx->env) + TERN_NS_PER_MS);
}

/* Gives bounce buffers to the transfers that wait for one, in the order of arrival: none
 * gets a buffer before those ahead of it. */
static void serve_bounceless(struct tern_rdv *rdv)
{
	struct tern_xfer *x;

	while ((x = tern_list_first(&rdv->bounceless, struct tern_xfer, queue))) {
		if (get_bounce(x) == -EAGAIN) {
			look_later(rdv);
			return;
		}
		tern_list_remove(&x->queue);
		tern_xfer_pend(x);
	}
}

static void bounce_given(struct tern_deferred *deferred)
{
	serve_bounceless(tern_container_of(deferred, struct tern_rdv, bounce_call));
}

static void bounce_looked(struct tern_timer *timer)
{
	serve_bounceless(tern_container_of(timer, struct tern_rdv, bounce_timer));
}

/* Makes x take or wait for a bounce buffer. 0: it has one; 1: it waits; or a negative
 * status. */
static int need_bounce(struct tern_xfer *x)
{
	struct tern_rdv *rdv = x->rdv;
	int r = x->stage.status;

	if (r || x->stage.bounce.mem)
		return r;
	r = tern_list_empty(&rdv->bounceless) ? get_bounce(x) : -EAGAIN;
	if (r != -EAGAIN)
		return r;
	tern_list_push(&rdv->bounceless, &x->queue);
	look_later(rdv);
	return 1;
}

static void bounce_copied(struct tern_copy *copy, int status)
{
	struct tern_xfer *x = tern_container_of(copy, struct tern_xfer, stage.copy);

	if (status)
		fail(x, status);
	else
		x->stage.landed = bytes_of(x);
	copy_ended(x);
}

static void copy_bounce(struct tern_xfer *x, enum tern_stage_way way)
{
	tell(x);
	x->stage.copy.done = bounce_copied;
	start_copy(
		x, &x->stage.copy, way, 0, tern_buf_ptr(&x->stage.bounce), bytes_of(x));
}

int tern_stage_lay_out(struct tern_xfer *x)
{
	int r = need_bounce(x);

	if (r || x->stage.landed == x->buf.bytes)
		return r;
	if (x->stage.copies == 0)
		copy_bounce(x, TERN_STAGE_DOWN);
	return 1;
}

int tern_stage_room(struct tern_xfer *x)
{
	return need_bounce(x);
}

void tern_stage_land(struct tern_xfer *x)
{
	copy_bounce(x, TERN_STAGE_UP);
}

/* ---- receiving: lent memory ---- */

static void fetch(struct tern_xfer *x, struct tern_copy *copy, uint64_t at,
	const struct tern_mem *mem, uint64_t offset, uint64_t bytes)
{
	x->stage.copies++;
	x->peer->copy_count++;
	tern_stager_fetch(
		x->stage.stager, copy, x->stage.loan.address + at, mem, offset, bytes);
}

static void fetch_by_slots(struct tern_xfer *x)
{
	while (wants_more(x)) {
		struct tern_stage_slot *slot = first_in(x, IDLE);

		if (!slot)
			slot = take(x, TERN_STAGE_DOWN);
		if (!slot)
			return;
		slot->at = x->stage.asked;
		slot->bytes = piece_at(x, slot->at);
		slot->phase = COPYING;
		slot->copy.done = slot_copied;
		x->stage.asked += slot->bytes;
		fetch(x, &slot->copy, slot->at, slot->mem, slot->offset, slot->bytes);
	}
}

static void fetched(struct tern_copy *copy, int status);

/* Copies the next piece of lent memory. A transfer copies one piece at a time, so that
 * small tensors get their turn between the pieces of a large one. */
static void fetch_straight(struct tern_xfer *x)
{
	uint64_t at = x->stage.asked,
		 bytes = TERN_MIN(bytes_of(x) - at, LENT_PIECE_BYTES);

	x->stage.asked += bytes;
	x->stage.copy.done = fetched;
	fetch(x, &x->stage.copy, at, x->buf.mem, x->buf.offset + at, bytes);
}

static void fetched(struct tern_copy *copy, int status)
{
	struct tern_xfer *x = tern_container_of(copy, struct tern_xfer, stage.copy);

	if (status)
		fail(x, status);
	else
		x->stage.landed = x->stage.asked;
	if (x->state == TERN_XFER_READING && x->peer->state == TERN_PEER_STATE_UP &&
		wants_more(x))
		fetch_straight(x);
	copy_ended(x);
}

void tern_stage_fetch(struct tern_xfer *x, struct tern_stager *stager)
{
	x->stage.stager = stager;
	if (!x->buf.mem->gpu)
		fetch_by_slots(x);
	else if (x->stage.copies == 0)
		fetch_straight(x);
}

/* ---- ends ---- */

void tern_stage_drop(struct tern_xfer *x)
{
	tern_list_remove(&x->stage.wait.node);
	tern_list_for_each_safe (n, &x->stage.slots) {
		struct tern_stage_slot *slot =
			tern_list_entry(n, struct tern_stage_slot, node);

		slot->dropped = true;
		if (slot->phase == READY || slot->phase == IDLE)
			give_back(slot);
	}
}

void tern_stage_lost(struct tern_xfer *x)
{
	tern_stage_drop(x);
	x->stage.asked = 0;
	x->stage.lent = false;
	if (x->state == TERN_XFER_READING)
		x->stage.landed = 0;
}

void tern_stage_fini(struct tern_xfer *x)
{
	struct tern_rdv *rdv = x->rdv;

	tern_assert(x->stage.copies == 0);
	(void)tern_lend_repay(x);
	tern_stage_drop(x);
	tern_assert(tern_list_empty(&x->stage.slots));
	if (!x->stage.bounce.mem)
		return;
	tern_bounce_put(rdv->ctx->domain, &x->stage.bounce);
	if (!tern_list_empty(&rdv->bounceless))
		tern_defer(rdv->ctx, &rdv->bounce_call);
}

void tern_rdv_stage_init(struct tern_rdv *rdv)
{
	tern_list_init(&rdv->bounceless);
	tern_list_init(&rdv->bounce_call.node);
	rdv->bounce_call.call = bounce_given;
	rdv->bounce_timer.fire = bounce_looked;
}

void tern_rdv_stage_fini(struct tern_rdv *rdv)
{
	tern_timer_clear(rdv->ctx, &rdv->bounce_timer);
	tern_list_remove(&rdv->bounce_call.node);
}
