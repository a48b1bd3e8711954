/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers of tensors in GPU memory, in one of three ways: staged (copied through
 * page-locked host memory, stage.c), direct (the fabric accesses GPU memory, direct.c),
 * or lent (a GPU of the other end copies it, lend.c). */
#ifndef TERN_RENDEZVOUS_STAGE_H
#define TERN_RENDEZVOUS_STAGE_H

#include <errno.h>

#include "rendezvous/xfer.h"
#include "transport/gpu/gpu.h"

/* Functions that direct.c defines: */
/* True if, on the present link, the fabric accesses the GPU memory of this transfer
 * itself. The answer does not change during the life of a link. */
bool tern_direct_chosen(struct tern_xfer *x);
void tern_direct_count(struct tern_xfer *x);
/* Counts a transfer that has started in stats.direct_count, if the fabric accesses its
 * GPU memory itself. */
static inline void tern_direct_started(struct tern_xfer *x)
{
	if (tern_unlikely(x->stage.stager != NULL) && !x->stage.bounce.mem &&
		tern_direct_chosen(x))
		tern_direct_count(x);
}
/* Called after the fabric has received into GPU memory: makes the bytes visible to the
 * GPU. Returns 0, or the status with which the request ends. */
static inline int tern_direct_settle(struct tern_xfer *x)
{
	return x->stage.stager ? tern_gpu_settle(x->buf.mem->gpu) : 0;
}

/* Functions that stage.c defines: */
/*
 * A transfer that involves GPU memory has a `stager`, which copies between GPU and host
 * memory. It is set when the transfer gets its memory, and for a receive from lent memory
 * when the copy starts. Later checks use `stager`, so a transfer between host memories
 * runs hardly any code of the files about GPUs.
 */
/* Finds the stager for `buf`; NULL if `buf` is host memory. Errors of
 * tern_context_stager(). */
static inline int tern_stage_open(
	struct tern_rdv *rdv, const struct tern_buf *buf, struct tern_stager **out)
{
	*out = NULL;
	if (tern_likely(!buf->bytes || buf->mem->kind == TERN_MEM_HOST))
		return 0;
	return tern_context_stager(rdv->ctx, buf->mem->gpu, out);
}
static inline void tern_stage_init(struct tern_stage *stage)
{
	tern_list_init(&stage->wait.node);
	tern_list_init(&stage->slots);
}
/* True if the transfer must be staged on the present link: its memory is GPU memory, and
 * the fabric does not access it itself. */
static inline bool tern_stage_needed(struct tern_xfer *x)
{
	return tern_unlikely(x->stage.stager != NULL) && !tern_direct_chosen(x);
}
/* Returns the next part of the tensor of x to put, in a staging slot (page-locked
 * buffer). NULL: no part is ready, and x is continued when one is; or the copy has failed
 * (stage.status). */
struct tern_stage_slot *tern_stage_next(struct tern_xfer *x);
/* tern_stage_put(): a put from the slot has started. tern_stage_put_done(): the put has
 * ended, and the slot is freed. */
void tern_stage_put(struct tern_stage_slot *slot);
void tern_stage_put_done(struct tern_stage_slot *slot);
/* Copies the tensor to a bounce buffer (page-locked memory for the whole tensor), which
 * the peer reads. 0: done; 1: x will be continued when the copy is done or a buffer is
 * free; or a negative status. */
int tern_stage_lay_out(struct tern_xfer *x);
/* Takes a bounce buffer for the peer to write into. 0: x has one; 1: x will be continued
 * when a buffer is free; or a negative status. */
int tern_stage_room(struct tern_xfer *x);
/* Copies the data of an EAGER from the record of x to the GPU, and frees the record. */
void tern_stage_eager(struct tern_xfer *x);
/* Reads the tensor from the peer in pieces, through staging slots. 0: in progress, or x
 * waits for a slot; -EAGAIN: the fabric has no room. */
int tern_stage_get(struct tern_xfer *x);
void tern_stage_land(struct tern_xfer *x); /* copies the bounce buffer to the GPU */
/* Copies the tensor from GPU memory that the peer lent (lend.c), with `stager`. If the
 * copy has to wait for a staging slot, this is called again for each slot that x gets. */
void tern_stage_fetch(struct tern_xfer *x, struct tern_stager *stager);
/* Called when x needs no staging slots any more: frees them, as soon as no copy or put
 * uses them. */
void tern_stage_drop(struct tern_xfer *x);
/* Called when the link was lost: the pieces of x are copied and sent or received again
 * from the first one, on the next link. */
void tern_stage_lost(struct tern_xfer *x);
/* Called when x has ended: frees its staging resources. */
void tern_stage_fini(struct tern_xfer *x);
void tern_rdv_stage_init(struct tern_rdv *rdv);
void tern_rdv_stage_fini(struct tern_rdv *rdv);

/* Functions that lend.c defines: */
/* Offers the GPU memory of the send x to the peer. 0: the peer's GPU can copy the tensor
 * directly; -ENOTSUP: it cannot; 1: x waits, and is continued when the peer has answered
 * the offer. */
int tern_lend_offer(struct tern_xfer *x);
/* Called when the peer may have answered an offer of GPU memory: the sends that wait for
 * the answer make their offers again. */
void tern_lend_answered(struct tern_peer *peer);
int tern_lend_borrow(struct tern_xfer *x);
/* Receives the tensor of x from lent GPU memory. 0: in progress, or ended; -EAGAIN: no
 * room; -ENOTSUP: the memory of the send was not lent. */
static inline int tern_lend_get(struct tern_xfer *x)
{
	bool may_be_lent = x->stage.loan.gpu || x->peer->link->conn->lent_count;

	return tern_unlikely(may_be_lent) ? tern_lend_borrow(x) : -ENOTSUP;
}
/* Gives lent GPU memory back to the peer, if x has borrowed any; call it when all copies
 * from this memory have ended. -ECONNRESET: the copied bytes may be inconsistent. */
int tern_lend_repay(struct tern_xfer *x);

#endif
