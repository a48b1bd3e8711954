/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors in GPU memory that the fabric of the link accesses itself (GPUDirect RDMA).
 *
 *     send, the fabric puts     directly from GPU memory
 *     send, the peer reads      GPU memory is exposed like other memory
 *     receive, by get           directly into GPU memory; made visible to it; then ATS
 *     receive, all else         staged: stage.c
 *
 * Only our own gets write directly into GPU memory, never the peer's puts. The reason: a
 * buffer that the peer may write into, after a POST or CTS, must stay writable for it on
 * the next link, whose fabric may not reach GPU memory. That needs a bounce buffer
 * (stage.c), which a receive holds only after it was matched with a send. A get, in
 * contrast, starts again on the next link in whatever way works on that link.
 *
 * Whether the fabric reaches the memory may change while the link is up (a device is
 * added or removed). Since all pieces of one tensor must go the same way, the way is
 * chosen once per transfer and link. If the chosen way stops working, the link ends, and
 * the choice is made again on the next link.
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

/* Logs that the fabric accesses GPU memory directly: once, and again after a change to
 * another fabric. */
static void tell(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;
	const char *way = peer->port->ops->reaches(peer->port->fabric, x->buf.mem);

	/* `way` is NULL if a device that does not reach the memory was added after
	 * tern_direct_chosen() had decided. */
	if (peer->direct_told == peer->port || !way)
		return;
	peer->direct_told = peer->port;
	tern_log(x->rdv->ctx->env, TERN_LOG_INFO,
		"%s: GPU memory is accessed directly (%s, %s)", peer->name,
		peer->fabric_name, way);
}

void tern_direct_count(struct tern_xfer *x)
{
	x->peer->stats.direct_count++;
	tell(x);
}
