/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors in GPU memory that the fabric of the link reaches: GPUDirect RDMA.
 *
 *     send, the fabric puts     directly from GPU memory
 *     send, the peer reads      GPU memory is exposed like other memory
 *     receive, by get           directly into GPU memory; made visible to it; then ATS
 *     receive, all else         staged: stage.c
 *
 * Only our own gets write directly into GPU memory. Room that the peer may write into, by
 * a POST or CTS, must stay writable for it on the next link, whose fabric may not reach
 * GPU memory. That needs a bounce buffer, and those are not held ahead. A get starts
 * again on the next link in whatever way works there.
 *
 * Whether the fabric reaches the memory may change while the link is up (a device comes
 * or goes). Since the pieces of one tensor must all go the same way, it is decided once
 * per xfer and link. If a link cannot do what was decided, it ends, and the next link
 * decides anew.
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

/* Logs it, once for each fabric that a peer is on. */
static void tell(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;
	struct tern_conn *conn = tern_peer_conn(peer);
	const char *way = peer->port->ops->reaches(conn, x->buf.mem);

	/* NULL: since the decision, a device was added that does not reach the memory. */
	if (peer->direct_told == peer->port || !way)
		return;
	peer->direct_told = peer->port;
	tern_log(x->rdv->ctx->env, TERN_LOG_INFO, "%s: GPU memory goes directly (%s, %s)",
		peer->name, peer->fabric_name, way);
}

void tern_direct_count(struct tern_xfer *x)
{
	x->peer->stats.direct_count++;
	tell(x);
}
