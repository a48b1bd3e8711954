/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors in memory of a GPU that the fabric of the link reaches: GPUDirect RDMA.
 *
 *     send, the fabric puts     from where it lies
 *     send, the peer reads      it is exposed as other memory is
 *     receive, by get           to where it belongs; settled; then ATS
 *     receive, all else         staged: stage.c
 *
 * Into memory of a GPU only our own gets write. A room that the peer may write into, by a
 * POST or CTS, is one that it must be able to write into on the next link as well, which
 * may be of a fabric that does not reach it: that needs a bounce buffer, and those are
 * not held ahead. A get starts over on the next link in whatever way is right there.
 *
 * Whether the memory is reached may change while the link is up (a device comes or goes),
 * and pieces of both kinds would not make a tensor; so each xfer is asked about once for
 * each link. A link that cannot do what was chosen ends, and the next one has its own
 * choice.
 */
#include "rendezvous/rendezvous.h"

bool tern_direct_chosen(struct tern_xfer *x)
{
	const struct tern_peer *peer = x->peer;
	const struct tern_mem *mem = x->buf.mem;

	if (!peer->link)
		return false;
	if (x->stage.epoch != peer->epoch) {
		x->stage.epoch = peer->epoch;
		x->stage.direct = tern_conn_reaches(peer->link->conn, mem) &&
				  (x->is_send || tern_gpu_settles(mem->gpu));
	}
	return x->stage.direct;
}

/* Once for each fabric that a peer is on. */
static void tell(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;
	struct tern_conn *conn = tern_peer_conn(peer);
	const char *way = peer->port->ops->reaches(conn, x->buf.mem);

	/* NULL: since it was chosen, a device has come that does not reach it. */
	if (peer->direct_told == peer->port || !way)
		return;
	peer->direct_told = peer->port;
	tern_log(x->rdv->ctx->env, TERN_LOG_INFO, "%s: GPU memory goes directly (%s, %s)",
		peer->name, peer->fabric_name, way);
}

void tern_direct_started(struct tern_xfer *x)
{
	if (!x->stage.stager || x->stage.bounce.mem || !tern_direct_chosen(x))
		return;
	x->peer->stats.direct_count++;
	tell(x);
}

int tern_direct_settle(struct tern_xfer *x)
{
	return x->stage.stager ? tern_gpu_settle(x->buf.mem->gpu) : 0;
}
