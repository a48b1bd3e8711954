/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors in GPU memory that a GPU of the other end copies directly (fabrics with
 * TERN_CAP_LEND: shm, by CUDA IPC). Tensors that cannot be transferred in this way are
 * staged (stage.c). The sender knows which of the two applies before it announces the
 * tensor:
 *
 *     send      offer the memory; once the peer has opened it: RTS with its region
 *     receive   borrow it, copy, repay it; then ATS
 *
 * The copy goes directly into GPU memory. Into host memory it goes through staging slots
 * (page-locked buffers), since the driver would block the thread until a direct copy to
 * memory that is not page-locked is done.
 *
 * A send waits in peer->offering until the peer has answered its offer, and blocks no
 * send of another (channel, key, step) meanwhile.
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>

/* Counts a tensor that is copied by CUDA IPC. Logs only the first one of each peer, since
 * a session never leaves a fabric that lends GPU memory. */
static void tell(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;

	if (peer->stats.ipc_count++ == 0)
		tern_log(x->rdv->ctx->env, TERN_LOG_INFO,
			"%s: GPU memory is copied by CUDA IPC (%s)", peer->name,
			peer->fabric_name);
}

/* ---- sending ---- */

int tern_lend_offer(struct tern_xfer *x)
{
	struct tern_conn *conn = tern_peer_conn(x->peer);
	int r;

	if (x->stage.lent)
		return 0;
	if (!(conn->caps & TERN_CAP_LEND))
		return -ENOTSUP;
	r = conn->port->ops->offer(conn, x->buf.mem);
	if (r == -ENOTSUP)
		return r;
	if (r < 0) {
		tern_list_push(&x->peer->offering, &x->queue);
		return 1;
	}
	x->stage.lent = true;
	tell(x);
	return 0;
}

void tern_lend_answered(struct tern_peer *peer)
{
	tern_list_splice(&peer->pump.pending, &peer->offering);
}

/* ---- receiving ---- */

static int borrow(struct tern_xfer *x)
{
	struct tern_conn *conn = tern_peer_conn(x->peer);
	int r;

	if (x->stage.loan.gpu)
		return 0;
	r = conn->port->ops->borrow(
		conn, &x->record->region, 0, tern_req_of(x)->bytes, &x->stage.loan);
	if (r == 0)
		tell(x);
	return r;
}

int tern_lend_borrow(struct tern_xfer *x)
{
	struct tern_stager *stager;
	int r;

	r = borrow(x);
	if (r < 0)
		return r == -ENOTSUP ? r : -EAGAIN;
	r = tern_context_stager(x->rdv->ctx, x->stage.loan.gpu, &stager);
	if (r < 0) {
		tern_recv_landed(x, r);
		return 0;
	}
	tern_stage_fetch(x, stager);
	return 0;
}

int tern_lend_repay(struct tern_xfer *x)
{
	if (!x->stage.loan.gpu)
		return 0;
	return x->peer->port->ops->repay(&x->stage.loan);
}
