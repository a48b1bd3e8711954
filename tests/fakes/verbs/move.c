/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Executes posted send requests, piece by piece. A queue pair does two things at once:
 * the stream of SENDs and WRITEs, in order, and the responses to its READs, in order. A
 * READ starts when all SENDs and WRITEs before it are done; later SENDs and WRITEs may
 * overtake up to init_depth READs, unless they are fenced. Requests complete in the order
 * of posting, whichever was executed first.
 *
 * Every piece looks up its memory registration again, so memory that was deregistered
 * meanwhile is not accessed. A request fails only when it is the oldest, so an error
 * always concerns the request at sq_next.
 */
#include "tests/fakes/verbs/verbs_world.h"

/* Memory to copy from or to: a list of ranges in a protection domain, one range of a
 * remote key, or bytes of the provider itself. */
struct place {
	const struct ibv_pd *pd;
	const struct ibv_sge *sges;
	int sge_count;
	int access;
	uint8_t *own;
};

static uint8_t *registered(const struct place *place, const struct ibv_sge *sge)
{
	const struct fake_mr *mr = fake_mr_find(sge->lkey);
	uint64_t offset;

	if (!mr || mr->base.pd != place->pd ||
		(mr->access & place->access) != place->access)
		return NULL;
	offset = sge->addr - (uintptr_t)mr->base.addr;
	if (offset > mr->base.length || sge->length > mr->base.length - offset)
		return NULL;
	return mr->memory + offset;
}

/* Address of byte `offset` of the place; *bytes: how many bytes follow it without a gap.
 * NULL: the memory is not registered for this access. */
static uint8_t *locate(const struct place *place, uint64_t offset, uint64_t *bytes)
{
	if (place->own) {
		*bytes = UINT64_MAX;
		return place->own + offset;
	}
	for (int i = 0; i < place->sge_count; i++) {
		const struct ibv_sge *sge = &place->sges[i];

		if (offset < sge->length) {
			uint8_t *base = registered(place, sge);

			*bytes = sge->length - offset;
			return base ? base + offset : NULL;
		}
		offset -= sge->length;
	}
	tern_never("fake verbs: a copy past its end");
}

enum copied { COPIED, BAD_FROM, BAD_TO };

static enum copied copy(
	const struct place *to, const struct place *from, uint64_t offset, uint64_t bytes)
{
	while (bytes > 0) {
		uint64_t to_bytes, from_bytes;
		uint8_t *source = locate(from, offset, &from_bytes);
		uint8_t *target = locate(to, offset, &to_bytes);

		if (!source || !target)
			return source ? BAD_TO : BAD_FROM;
		uint64_t room = TERN_MIN(to_bytes, from_bytes);
		uint64_t n = TERN_MIN(bytes, room);
		memmove(target, source, n);
		offset += n;
		bytes -= n;
	}
	return COPIED;
}

static struct place local_place(const struct fake_qp *qp, const struct fake_send *wr)
{
	return (struct place){.pd = qp->base.pd,
		.sges = wr->sges,
		.sge_count = wr->sge_count,
		.access = wr->opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0,
		.own = wr->flags & IBV_SEND_INLINE ? wr->inline_data : NULL};
}

/* The remote memory of a READ or WRITE. Its whole range is checked for each piece; real
 * devices check it at the first packet of a message. The range is stored in `*sge`, to
 * which the returned place points. */
static struct place remote_place(
	const struct fake_qp *qp, const struct fake_send *wr, struct ibv_sge *sge)
{
	*sge = (struct ibv_sge){
		.addr = wr->remote_addr, .length = (uint32_t)wr->bytes, .lkey = wr->rkey};
	return (struct place){.pd = qp->peer->base.pd,
		.sges = sge,
		.sge_count = 1,
		.access = wr->opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ
							 : IBV_ACCESS_REMOTE_WRITE};
}

static struct fake_send *wr_at(struct fake_qp *qp, uint64_t index)
{
	return &qp->sq[index % qp->cap.max_send_wr];
}

/* True if earlier READs have no response yet: then `wr` must not fail yet. */
static bool early(struct fake_qp *qp, const struct fake_send *wr)
{
	return wr != wr_at(qp, qp->sq_next);
}

/* Ends `qp` in the error state: `wr`, its oldest request, completes with `status`, all
 * others are flushed. False: earlier READs are not done yet, so `wr` does not fail
 * yet. */
static bool fail(
	struct fake_qp *qp, const struct fake_send *wr, enum ibv_wc_status status)
{
	if (early(qp, wr))
		return false;
	fake_send_complete(qp, status);
	fake_qp_error(qp);
	return true;
}

static bool fail_access(struct fake_qp *qp, const struct fake_send *wr)
{
	struct fake_qp *peer = qp->peer;

	if (early(qp, wr))
		return false;
	fake_async_raise(
		FAKE_DEVICE(peer->base.context), IBV_EVENT_QP_ACCESS_ERR, &peer->base);
	fail(qp, wr, IBV_WC_REM_ACCESS_ERR);
	fake_qp_error(peer);
	return true;
}

/* Ends both queue pairs: the peer's receive fails with `theirs`, the send `wr` with
 * `ours`. */
static bool fail_receive(struct fake_qp *qp, const struct fake_send *wr,
	enum ibv_wc_status theirs, enum ibv_wc_status ours)
{
	struct fake_qp *peer = qp->peer;

	if (early(qp, wr))
		return false;
	peer->receiving = false;
	fake_recv_complete(
		peer, &peer->inbound, (struct ibv_wc){.status = theirs}, false);
	fail(qp, wr, ours);
	fake_qp_error(peer);
	return true;
}

static bool sleeps(const struct fake_qp *qp)
{
	return FAKE_CQ(qp->base.send_cq)->armed != FAKE_NOT_ARMED &&
	       !fake_id_has_events(qp->id);
}

/* Called while the peer has no receive posted for the message: the request fails when its
 * retries are used up, or at once if the sender's thread may be asleep (it would make no
 * more steps). With rnr_retry 7 it never fails. */
static bool not_ready(struct fake_qp *qp, const struct fake_send *wr)
{
	if (qp->rnr_retry == 7)
		return false;
	if (qp->rnr_since_step == 0)
		qp->rnr_since_step = fake.step;
	if (qp->rnr_retry > 0 && !sleeps(qp) &&
		fake.step - qp->rnr_since_step < 8 * qp->rnr_retry)
		return false;
	return fail(qp, wr, IBV_WC_RNR_RETRY_EXC_ERR);
}

static bool take_receive(struct fake_qp *peer)
{
	if (!peer->receiving && !fake_rq_take(peer->rq, &peer->inbound))
		return false;
	peer->receiving = true;
	return true;
}

static void received(struct fake_qp *qp, const struct fake_send *wr)
{
	bool imm = wr->opcode == IBV_WR_SEND_WITH_IMM ||
		   wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	struct ibv_wc wc = {.status = IBV_WC_SUCCESS,
		.opcode = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM
				  ? IBV_WC_RECV_RDMA_WITH_IMM
				  : IBV_WC_RECV,
		.byte_len = (uint32_t)wr->bytes,
		.src_qp = qp->base.qp_num,
		.wc_flags = imm ? IBV_WC_WITH_IMM : 0};

	wc.imm_data = wr->imm;
	qp->rnr_since_step = 0;
	qp->peer->receiving = false;
	fake_recv_complete(
		qp->peer, &qp->peer->inbound, wc, wr->flags & IBV_SEND_SOLICITED);
}

static uint64_t piece(const struct fake_send *wr)
{
	return TERN_MIN(wr->bytes - wr->moved_bytes, (uint64_t)fake.opts.piece_bytes);
}

static bool move_send(struct fake_qp *qp, struct fake_send *wr)
{
	struct fake_qp *peer = qp->peer;
	struct place from = local_place(qp, wr), to;
	uint64_t room = 0, n = piece(wr);

	if (!take_receive(peer))
		return not_ready(qp, wr);
	for (int i = 0; i < peer->inbound.sge_count; i++)
		room += peer->inbound.sges[i].length;
	if (room < wr->bytes)
		return fail_receive(qp, wr, IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR);
	to = (struct place){.pd = peer->base.pd,
		.sges = peer->inbound.sges,
		.sge_count = peer->inbound.sge_count,
		.access = IBV_ACCESS_LOCAL_WRITE};
	switch (copy(&to, &from, wr->moved_bytes, n)) {
	case BAD_FROM:
		return fail(qp, wr, IBV_WC_LOC_PROT_ERR);
	case BAD_TO:
		return fail_receive(qp, wr, IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR);
	case COPIED:
		break;
	}
	wr->moved_bytes += n;
	if (wr->moved_bytes == wr->bytes) {
		wr->done = true;
		received(qp, wr);
	}
	return true;
}

static bool move_write(struct fake_qp *qp, struct fake_send *wr)
{
	struct ibv_sge sge;
	struct place from = local_place(qp, wr), to = remote_place(qp, wr, &sge);
	uint64_t n = piece(wr);

	switch (copy(&to, &from, wr->moved_bytes, n)) {
	case BAD_FROM:
		return fail(qp, wr, IBV_WC_LOC_PROT_ERR);
	case BAD_TO:
		return fail_access(qp, wr);
	case COPIED:
		break;
	}
	wr->moved_bytes += n;
	if (wr->moved_bytes < wr->bytes)
		return true;
	if (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
		if (!take_receive(qp->peer))
			return not_ready(qp, wr) || n > 0;
		received(qp, wr);
	}
	wr->done = true;
	return true;
}

static bool move_read(struct fake_qp *qp, struct fake_send *wr)
{
	struct ibv_sge sge;
	struct place from = remote_place(qp, wr, &sge), to = local_place(qp, wr);
	uint64_t n = piece(wr);

	if (qp->init_depth == 0)
		return fail(qp, wr, IBV_WC_LOC_QP_OP_ERR);
	switch (copy(&to, &from, wr->moved_bytes, n)) {
	case BAD_FROM:
		return fail_access(qp, wr);
	case BAD_TO:
		return fail(qp, wr, IBV_WC_LOC_PROT_ERR);
	case COPIED:
		break;
	}
	wr->moved_bytes += n;
	wr->done = wr->moved_bytes == wr->bytes;
	return true;
}

static void complete_done(struct fake_qp *qp)
{
	while (qp->sq_next < qp->sq_tail && wr_at(qp, qp->sq_next)->done)
		fake_send_complete(qp, IBV_WC_SUCCESS);
}

/* Index of the oldest request that is not done: the oldest READ if `read`, else the
 * oldest SEND or WRITE. Returns sq_tail if none may run. *reads_before: number of READs
 * before it that are not done. */
static uint64_t oldest(struct fake_qp *qp, bool read, unsigned *reads_before)
{
	uint64_t i = qp->sq_next;

	*reads_before = 0;
	for (; i < qp->sq_tail; i++) {
		const struct fake_send *wr = wr_at(qp, i);
		bool is_read = wr->opcode == IBV_WR_RDMA_READ;

		if (wr->done)
			continue;
		if (is_read == read)
			break;
		if (!is_read)
			/* A READ that must wait for earlier SENDs and WRITEs. */
			return qp->sq_tail;
		++*reads_before;
	}
	return i;
}

static bool move_stream(struct fake_qp *qp)
{
	unsigned reads_before;
	uint64_t i = oldest(qp, false, &reads_before);
	struct fake_send *wr = wr_at(qp, i);

	if (i == qp->sq_tail)
		return false;
	if (reads_before > 0 &&
		(reads_before > qp->init_depth || wr->flags & IBV_SEND_FENCE))
		return false;
	if (wr->bytes > fake.opts.max_msg_bytes)
		return fail(qp, wr, IBV_WC_LOC_LEN_ERR);
	return wr->opcode == IBV_WR_SEND || wr->opcode == IBV_WR_SEND_WITH_IMM
		       ? move_send(qp, wr)
		       : move_write(qp, wr);
}

static bool move_reads(struct fake_qp *qp)
{
	unsigned reads_before;
	uint64_t i = oldest(qp, true, &reads_before);
	struct fake_send *wr = wr_at(qp, i);

	if (i == qp->sq_tail)
		return false;
	tern_assert(i == qp->sq_next);
	if (wr->bytes > fake.opts.max_msg_bytes)
		return fail(qp, wr, IBV_WC_LOC_LEN_ERR);
	return move_read(qp, wr);
}

static bool move(struct fake_qp *qp)
{
	bool any = false;

	for (unsigned i = 0; i < fake.opts.pieces_per_step; i++) {
		bool moved = false;

		if (qp->base.state == IBV_QPS_RTS)
			moved |= move_reads(qp);
		if (qp->base.state == IBV_QPS_RTS)
			complete_done(qp);
		if (qp->base.state == IBV_QPS_RTS)
			moved |= move_stream(qp);
		if (qp->base.state == IBV_QPS_RTS)
			complete_done(qp);
		if (!moved)
			break;
		any = true;
	}
	return any;
}

static bool reachable(const struct fake_qp *qp)
{
	const struct fake_qp *peer = qp->peer;

	return peer && peer->base.state == IBV_QPS_RTS &&
	       !fake_wire_is_cut(
		       FAKE_DEVICE(qp->base.context), FAKE_DEVICE(peer->base.context));
}

/* Called while the peer does not answer: the oldest request fails after opts.retry_steps
 * (0: never), or at once if the sender's thread may be asleep (it would make no more
 * steps). Time while the connection is being established does not count. */
static bool stall(struct fake_qp *qp)
{
	if (qp->id->state != FAKE_ID_CONNECTED && qp->id->state != FAKE_ID_DISCONNECTED)
		return false;
	if (fake.opts.retry_steps == 0)
		return false;
	if (qp->stall_since_step == 0)
		qp->stall_since_step = fake.step;
	if (fake.step - qp->stall_since_step < fake.opts.retry_steps && !sleeps(qp))
		return false;
	return fail(qp, wr_at(qp, qp->sq_next), IBV_WC_RETRY_EXC_ERR);
}

static bool rests(void)
{
	return fake.opts.stall_percent > 0 &&
	       tern_rng_below(&fake.rng, 100) < fake.opts.stall_percent;
}

static bool work(struct fake_qp *qp, bool rush)
{
	if (qp->base.state != IBV_QPS_RTS || qp->sq_next == qp->sq_tail)
		return false;
	if (qp->fail_next)
		return fail(qp, wr_at(qp, qp->sq_next), IBV_WC_RETRY_EXC_ERR);
	if (fake_wire_is_held())
		return false;
	if (!reachable(qp))
		return stall(qp);
	qp->stall_since_step = 0;
	return !rush && rests() ? false : move(qp);
}

bool fake_qp_step(struct fake_qp *qp, bool rush)
{
	bool moved = work(qp, rush);

	moved |= fake_cqes_deliver(qp);
	if ((qp->base.state != IBV_QPS_RTS || qp->sq_next == qp->sq_tail) &&
		tern_list_empty(&qp->delayed[FAKE_SEND]) &&
		tern_list_empty(&qp->delayed[FAKE_RECV]))
		tern_list_remove(&qp->active);
	return moved;
}
