/* SPDX-License-Identifier: Apache-2.0 */
/* The part that sends and receives (transfers) share: states, access of the peer to their
 * memory, and the end. */
#include "rendezvous/rendezvous.h"

#include <errno.h>
#include <string.h>

#include "rendezvous/window.h"

static void init(struct tern_xfer *x, struct tern_rdv *rdv, bool is_send, unsigned flags)
{
	*x = (struct tern_xfer){
		.rdv = rdv,
		.is_send = is_send,
		.flags = (uint8_t)flags,
		.state = is_send ? TERN_XFER_QUEUED : TERN_XFER_POSTED,
	};
	tern_list_init(&x->queue);
	tern_list_init(&x->renewal);
	tern_list_init(&x->proxies);
	tern_map_node_init(&x->theirs);
	tern_match_node_init(&x->node);
	tern_stage_init(&x->stage);
}

void tern_xfer_init(
	struct tern_xfer *x, struct tern_channel *channel, bool is_send, unsigned flags)
{
	init(x, channel->peer->rdv, is_send, flags);
	tern_xfer_join(x, channel);
}

void tern_xfer_init_apart(struct tern_xfer *x, struct tern_rdv *rdv, unsigned flags)
{
	init(x, rdv, false, flags);
	x->req_kind = TERN_REQ_ANY;
}

/* False also for sends that window_move.c posts, perhaps because the peer wants it. */
static bool is_programs_send(const struct tern_xfer *x)
{
	return x->is_send && x->channel->number != TERN_CHANNEL_WINDOWS;
}

void tern_xfer_join(struct tern_xfer *x, struct tern_channel *channel)
{
	x->req_kind = TERN_REQ_XFER;
	x->channel = channel;
	x->peer = channel->peer;
	tern_list_push(&channel->peer->xfers, &x->all);
	channel->peer->send_count += is_programs_send(x);
}

#define TO(state) (1u << TERN_XFER_##state)
const uint32_t tern_xfer_edges[TERN_XFER_STATE_COUNT] = {
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

/* ---- names ---- */

void tern_xfer_log_clash(const struct tern_xfer *x, const struct tern_name *theirs)
{
	tern_log(x->rdv->ctx->env, TERN_LOG_ERROR,
		"%s: our name \"%.*s\" and the peer's name \"%.*s\" have the same key "
		"%016llx: rename one of them",
		x->peer->name, x->name.bytes, x->name.text, theirs->bytes, theirs->text,
		(unsigned long long)x->node.triple.key);
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
	tern_wreq_run_completed(rdv);
}

void tern_rdv_complete_call(struct tern_deferred *deferred)
{
	tern_rdv_run_completed(
		tern_container_of(deferred, struct tern_rdv, complete_call));
}

/* Removes x from the list in which it waits and from the matching table. */
static void leave(struct tern_xfer *x)
{
	tern_list_remove(&x->queue);
	if (x->is_send)
		tern_match_remove(&x->peer->match, &x->node);
	else
		tern_want_leave(x);
}

void tern_xfer_report(struct tern_xfer *x, int status)
{
	struct tern_req *req = tern_req_of(x);

	/* A caller that polls the status may reuse the request at once, so req->status is
	 * set only just before done(). */
	x->result = status;
	if (!req->done) {
		req->status = status;
		return;
	}
	tern_list_push(&x->rdv->completed, &x->queue);
	tern_defer(x->rdv->ctx, &x->rdv->complete_call);
}

/* Ends a transfer that leave() has taken out of its queue and of the matching table.
 * Removes x from all other lists and maps; done() runs later, in a deferred call. */
static void complete_after_leaving(struct tern_xfer *x, int status)
{
	struct tern_req *req = tern_req_of(x);
	bool held = x->state == TERN_XFER_HELD;

	tern_assert(!x->exposed);
	if (!tern_stage_is_idle(&x->stage))
		tern_stage_fini(x);
	tern_list_remove(&x->renewal);
	tern_map_remove(&x->peer->theirs, &x->theirs);
	tern_xfer_forget_id(x);
	tern_list_remove(&x->all);
	x->peer->send_count -= is_programs_send(x);
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
	tern_xfer_report(x, status);
}

void tern_xfer_complete(struct tern_xfer *x, int status)
{
	leave(x);
	complete_after_leaving(x, status);
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

/* Copies from or to a GPU that have started cannot be cancelled: x waits in state
 * FLUSHING until they end. Returns 0 if there are none. */
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
	leave(x);
	if (!tern_stage_is_idle(&x->stage))
		tern_stage_drop(x);
	if (tern_xfer_withdraw(x, status) == 0 && await_copies(x, status) == 0)
		complete_after_leaving(x, status);
}
