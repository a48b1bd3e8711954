/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors in GPU memory: staged, direct, or lent. */
#ifndef TERN_RENDEZVOUS_STAGE_H
#define TERN_RENDEZVOUS_STAGE_H

#include <errno.h>

#include "rendezvous/xfer.h"
#include "transport/gpu/gpu.h"

/* direct.c */
/* True if, on the present link, the fabric accesses the GPU memory of this xfer
 * itself. The answer does not change during the life of a link. */
bool tern_direct_chosen(struct tern_xfer *x);
void tern_direct_count(struct tern_xfer *x);
/* Counts the transfer in direct_count, if it is one. */
static inline void tern_direct_started(struct tern_xfer *x)
{
	if (tern_unlikely(x->stage.stager != NULL) && !x->stage.bounce.mem &&
		tern_direct_chosen(x))
		tern_direct_count(x);
}
/* After the fabric has received into GPU memory: makes the bytes visible to the GPU.
 * 0, or the status of the request. */
static inline int tern_direct_settle(struct tern_xfer *x)
{
	return x->stage.stager ? tern_gpu_settle(x->buf.mem->gpu) : 0;
}

/* stage.c */
/*
 * Whether the memory of an xfer is in a GPU is asked once, when it gets its memory: then
 * `stager` is set. What follows looks at that only, so a tensor of host memory comes to
 * no file about GPUs.
 */
/* The stager for `buf`; NULL if it is host memory. Errors of tern_context_stager(). */
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
/* True if the memory must be staged on the present link. */
static inline bool tern_stage_needed(struct tern_xfer *x)
{
	return tern_unlikely(x->stage.stager != NULL) && !tern_direct_chosen(x);
}
/* The next part of the tensor to put, in host memory; NULL: the stager will continue
 * the xfer when there is one. */
struct tern_stage_slot *tern_stage_next(struct tern_xfer *x);
/* The fabric has taken the slot's data. */
void tern_stage_put(struct tern_stage_slot *slot);
void tern_stage_put_done(struct tern_stage_slot *slot);
/* Copies the tensor to a bounce buffer for the peer to read. 0: done; 1: the xfer will
 * be continued; or a negative status. */
int tern_stage_lay_out(struct tern_xfer *x);
/* Takes a bounce buffer for the peer to write into. Returns as tern_stage_lay_out(). */
int tern_stage_room(struct tern_xfer *x);
/* Copies the payload of its record to the GPU, and frees the record. */
void tern_stage_eager(struct tern_xfer *x);
int tern_stage_get(struct tern_xfer *x);   /* 0: under way; -EAGAIN: no room */
void tern_stage_land(struct tern_xfer *x); /* copies the bounce buffer to the GPU */
/* Copies lent memory by `stager`; called again for each slot that it waits for. */
void tern_stage_fetch(struct tern_xfer *x, struct tern_stager *stager);
/* The xfer needs no slots any more. */
void tern_stage_drop(struct tern_xfer *x);
/* The link was lost: all pieces start again. */
void tern_stage_lost(struct tern_xfer *x);
void tern_stage_fini(struct tern_xfer *x); /* the xfer has ended */
void tern_rdv_stage_init(struct tern_rdv *rdv);
void tern_rdv_stage_fini(struct tern_rdv *rdv);

/* lend.c */
/* 0: the peer's GPU copies the tensor directly; 1: the xfer will be continued;
 * -ENOTSUP: it cannot. */
int tern_lend_offer(struct tern_xfer *x);
/* The peer may have answered an offer: waiting sends ask again. */
void tern_lend_answered(struct tern_peer *peer);
int tern_lend_borrow(struct tern_xfer *x);
/* 0: under way, or ended; -EAGAIN; -ENOTSUP: the region in its record was not lent. */
static inline int tern_lend_get(struct tern_xfer *x)
{
	bool may_be_lent = x->stage.loan.gpu || x->peer->link->conn->lent_count;

	return tern_unlikely(may_be_lent) ? tern_lend_borrow(x) : -ENOTSUP;
}
/* All copies have ended. -ECONNRESET: the copied bytes may be inconsistent. */
int tern_lend_repay(struct tern_xfer *x);

#endif
