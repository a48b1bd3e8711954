/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reliable-connection queue pairs: in state INIT when created, RTS when connected, and
 * ERR at the end. In ERR all posted requests, old and new, complete as flushed, signaled
 * or not, except for those in a shared receive queue. So every send request gets a
 * completion, or counts as completed with a later one.
 */
#include "tests/fakes/verbs/verbs_world.h"

#include <time.h>

void fake_qp_activate(struct fake_qp *qp)
{
	if (!tern_list_linked(&qp->active))
		tern_list_push(&fake.active, &qp->active);
}

static struct fake_send *send_at(struct fake_qp *qp, uint64_t index)
{
	return &qp->sq[index % qp->cap.max_send_wr];
}

static enum ibv_wc_opcode send_opcode(enum ibv_wr_opcode opcode)
{
	if (opcode == IBV_WR_RDMA_READ)
		return IBV_WC_RDMA_READ;
	return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM
		       ? IBV_WC_RDMA_WRITE
		       : IBV_WC_SEND;
}

/* Fills the fields that a failed completion leaves undefined (all but wr_id, status, qp_num
 * and vendor_err) with random values. */
static void wc_spoil(struct ibv_wc *wc)
{
	static const enum ibv_wc_opcode opcodes[] = {
		IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ, IBV_WC_RECV};

	wc->opcode = opcodes[tern_rng_below(&fake.rng, TERN_ARRAY_SIZE(opcodes))];
	wc->byte_len = (uint32_t)tern_rng_next(&fake.rng);
	wc->imm_data = (__be32)tern_rng_next(&fake.rng);
	wc->wc_flags = (unsigned)tern_rng_below(&fake.rng, 2) * IBV_WC_WITH_IMM;
	wc->vendor_err = 0xfa;
}

/* Completes the send request at index sq_next. */
void fake_send_complete(struct fake_qp *qp, enum ibv_wc_status status)
{
	struct fake_send *wr = send_at(qp, qp->sq_next);
	uint64_t index = qp->sq_next++;

	tern_assert(index < qp->sq_tail);
	if (status == IBV_WC_SUCCESS && !qp->sig_all && !(wr->flags & IBV_SEND_SIGNALED))
		return;
	struct fake_cqe *cqe = calloc(1, sizeof(*cqe));
	tern_assert(cqe);
	cqe->side = FAKE_SEND;
	cqe->sq_index = index;
	cqe->wc = (struct ibv_wc){.wr_id = wr->wr_id,
		.status = status,
		.opcode = send_opcode(wr->opcode),
		.byte_len = wr->opcode == IBV_WR_RDMA_READ ? (uint32_t)wr->bytes : 0,
		.qp_num = qp->base.qp_num};
	if (status != IBV_WC_SUCCESS)
		wc_spoil(&cqe->wc);
	fake_cqe_emit(qp, cqe);
}

/* Completes a receive. `wc` has the status and the fields that describe the message. */
void fake_recv_complete(struct fake_qp *qp, const struct fake_recv *recv,
	struct ibv_wc wc, bool solicited)
{
	struct fake_cqe *cqe = calloc(1, sizeof(*cqe));

	tern_assert(cqe);
	cqe->side = FAKE_RECV;
	cqe->rq = qp->rq;
	cqe->solicited = solicited;
	cqe->wc = wc;
	cqe->wc.wr_id = recv->wr_id;
	cqe->wc.qp_num = qp->base.qp_num;
	if (wc.status != IBV_WC_SUCCESS)
		wc_spoil(&cqe->wc);
	fake_cqe_emit(qp, cqe);
}

/* Reports that a queue pair in ERR has taken its last receive of the shared queue, when the
 * completions of all that it has taken are in the completion queue. */
void fake_qp_tell_last(struct fake_qp *qp)
{
	if (qp->base.state != IBV_QPS_ERR || !qp->base.srq || qp->last_wqe_reported ||
		qp->receiving || !tern_list_empty(&qp->delayed[FAKE_RECV]))
		return;
	qp->last_wqe_reported = true;
	fake_async_raise(
		FAKE_DEVICE(qp->base.context), IBV_EVENT_QP_LAST_WQE_REACHED, &qp->base);
}

void fake_qp_flush(struct fake_qp *qp)
{
	const struct ibv_wc flushed = {.status = IBV_WC_WR_FLUSH_ERR};

	while (qp->sq_next < qp->sq_tail)
		fake_send_complete(qp, IBV_WC_WR_FLUSH_ERR);
	if (qp->receiving) {
		qp->receiving = false;
		fake_recv_complete(qp, &qp->inbound, flushed, false);
	}
	if (qp->base.srq) {
		fake_qp_tell_last(qp);
		return;
	}
	while (fake_rq_take(qp->rq, &qp->inbound))
		fake_recv_complete(qp, &qp->inbound, flushed, false);
}

void fake_qp_error(struct fake_qp *qp)
{
	if (qp->base.state == IBV_QPS_ERR)
		return;
	qp->base.state = IBV_QPS_ERR;
	fake_qp_flush(qp);
}

void fake_qp_connect(struct fake_qp *a, struct fake_qp *b)
{
	a->peer = b;
	b->peer = a;
}

/* Checks the requested queue sizes against the limits of the device. opts.grant_more
 * rounds up what is granted, as hardware does; opts.grant_less_inline lowers a request
 * for too much inline data to the limit. */
static int grant(struct ibv_qp_cap *cap, bool srq)
{
	const unsigned wr_max = (unsigned)fake.opts.max_qp_wr;
	const unsigned sge_max = (unsigned)fake.opts.max_sge;
	const unsigned inline_max = (unsigned)fake.opts.max_inline;

	if (cap->max_inline_data > inline_max && fake.opts.grant_less_inline)
		cap->max_inline_data = inline_max;
	if (srq)
		cap->max_recv_wr = cap->max_recv_sge = 0;
	if (cap->max_send_wr < 1 || cap->max_send_wr > wr_max ||
		cap->max_recv_wr > wr_max || cap->max_send_sge > sge_max ||
		cap->max_recv_sge > sge_max || cap->max_inline_data > inline_max)
		return -EINVAL;
	if (!fake.opts.grant_more)
		return 0;
	cap->max_send_wr = fake_round_up(cap->max_send_wr, wr_max);
	if (cap->max_recv_wr)
		cap->max_recv_wr = fake_round_up(cap->max_recv_wr, wr_max);
	if (cap->max_inline_data)
		cap->max_inline_data = fake_round_up(cap->max_inline_data, inline_max);
	return 0;
}

static void queues_alloc(struct fake_qp *qp)
{
	const struct ibv_qp_cap *cap = &qp->cap;

	qp->sq = calloc(cap->max_send_wr, sizeof(*qp->sq));
	qp->sq_sges = calloc(
		(size_t)cap->max_send_wr * cap->max_send_sge + 1, sizeof(*qp->sq_sges));
	qp->sq_inline = calloc((size_t)cap->max_send_wr * cap->max_inline_data + 1, 1);
	tern_assert(qp->sq && qp->sq_sges && qp->sq_inline);
	for (uint32_t i = 0; i < cap->max_send_wr; i++) {
		qp->sq[i].sges = &qp->sq_sges[(size_t)i * cap->max_send_sge];
		qp->sq[i].inline_data = &qp->sq_inline[(size_t)i * cap->max_inline_data];
	}
	fake_rq_init(&qp->own_rq, cap->max_recv_wr, cap->max_recv_sge);
	qp->rq = qp->base.srq ? &FAKE_SRQ(qp->base.srq)->rq : &qp->own_rq;
	qp->inbound_sges = calloc(qp->rq->sge_max + 1, sizeof(*qp->inbound_sges));
	tern_assert(qp->inbound_sges);
	qp->inbound.sges = qp->inbound_sges;
}

static void use(const struct fake_qp *qp, bool used)
{
	FAKE_CQ(qp->base.send_cq)->qp_count += used ? 1 : -1u;
	FAKE_CQ(qp->base.recv_cq)->qp_count += used ? 1 : -1u;
	FAKE_PD(qp->base.pd)->use_count += used ? 1 : -1u;
	FAKE_DEVICE(qp->base.context)->qp_count += used ? 1 : -1u;
	if (qp->base.srq)
		FAKE_SRQ(qp->base.srq)->qp_count += used ? 1 : -1u;
}

/* Creates a queue pair. A NULL protection domain or completion queue (librdmacm's default
 * objects) is not supported. */
int fake_create_qp(
	struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	FAKE_ENTER("create_qp");
	if (!id->verbs || !pd || pd->context != id->verbs || id->qp || !attr->send_cq ||
		!attr->recv_cq || attr->send_cq->context != id->verbs ||
		attr->recv_cq->context != id->verbs || attr->qp_type != IBV_QPT_RC ||
		(attr->srq && attr->srq->context != id->verbs))
		return -EINVAL;
	if (FAKE_DEVICE(id->verbs)->removed)
		return -EIO;
	if (FAKE_DEVICE(id->verbs)->qp_count >= (unsigned)fake.opts.max_qp)
		return -ENOMEM;
	int r = grant(&attr->cap, attr->srq != NULL);
	if (r)
		return r;
	struct fake_qp *qp = calloc(1, sizeof(*qp));
	tern_assert(qp);
	qp->base = (struct ibv_qp){.context = id->verbs,
		.qp_context = attr->qp_context,
		.pd = pd,
		.send_cq = attr->send_cq,
		.recv_cq = attr->recv_cq,
		.srq = attr->srq,
		.qp_num = fake.next_qp_num,
		.state = IBV_QPS_INIT,
		.qp_type = IBV_QPT_RC};
	/* Queue pair numbers have 24 bits and are not consecutive. */
	fake.next_qp_num =
		(fake.next_qp_num + 1 + (uint32_t)tern_rng_below(&fake.rng, 200)) &
		0xffffff;
	qp->cap = attr->cap;
	qp->sig_all = attr->sq_sig_all;
	qp->id = FAKE_ID(id);
	qp->rnr_retry = 7;
	tern_list_init(&qp->active);
	tern_list_init(&qp->delayed[FAKE_SEND]);
	tern_list_init(&qp->delayed[FAKE_RECV]);
	queues_alloc(qp);
	use(qp, true);
	tern_list_push(&fake.qps, &qp->node);
	id->qp = &qp->base;
	id->pd = pd;
	id->srq = attr->srq;
	id->send_cq = attr->send_cq;
	id->recv_cq = attr->recv_cq;
	id->qp_type = IBV_QPT_RC;
	return 0;
}

/* Waits until the events of the queue pair are acknowledged, which another thread may be
 * about to do. It asserts that this happens within a time that no thread needs. */
static void await_acks(const struct fake_qp *qp)
{
	const struct timespec pause = {.tv_nsec = 100000};

	for (int i = 0; i < 20000 && qp->async_unacked_count > 0; i++) {
		pthread_mutex_unlock(&fake.lock);
		nanosleep(&pause, NULL);
		pthread_mutex_lock(&fake.lock);
	}
	tern_assert(qp->async_unacked_count == 0);
}

/* Destroys the queue pair of the id, after its events are acknowledged. The peer is not
 * informed, as with real devices. */
void fake_destroy_qp(struct rdma_cm_id *id)
{
	struct fake_qp *qp = FAKE_QP(id->qp);

	FAKE_ENTER_ALWAYS("destroy_qp");
	tern_assert(id->qp);
	await_acks(qp);
	fake_async_forget(FAKE_DEVICE(qp->base.context), qp);
	if (qp->receiving)
		qp->rq->taken_count--;
	fake_cqes_forget(qp);
	if (qp->peer)
		qp->peer->peer = NULL;
	use(qp, false);
	tern_list_remove(&qp->active);
	tern_list_remove(&qp->node);
	fake_rq_fini(&qp->own_rq);
	free(qp->inbound_sges);
	free(qp->sq);
	free(qp->sq_sges);
	free(qp->sq_inline);
	free(qp);
	id->qp = NULL;
	id->srq = NULL;
	id->send_cq = id->recv_cq = NULL;
}

/* Puts the queue pair into ERR, or accepts (and ignores) a change of attributes that may
 * change in RTS. */
int fake_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
	FAKE_ENTER("modify_qp");
	if (mask & IBV_QP_STATE) {
		if (attr->qp_state == IBV_QPS_ERR) {
			fake_qp_error(FAKE_QP(base));
			return 0;
		}
		if (attr->qp_state != base->state)
			return -EINVAL;
	}
	if (base->state != IBV_QPS_RTS)
		return -EINVAL;
	return mask & ~(IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_MIN_RNR_TIMER |
			      IBV_QP_ACCESS_FLAGS)
		       ? -EINVAL
		       : 0;
}

static bool has_imm(enum ibv_wr_opcode opcode)
{
	return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static int check_send(const struct fake_qp *qp, const struct ibv_send_wr *wr)
{
	bool inlined = wr->send_flags & IBV_SEND_INLINE;
	uint64_t bytes = 0;

	if (wr->opcode > IBV_WR_RDMA_READ || (has_imm(wr->opcode) && fake.opts.no_imm) ||
		wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->cap.max_send_sge)
		return EINVAL;
	for (int i = 0; i < wr->num_sge; i++)
		bytes += wr->sg_list[i].length;
	if (inlined)
		return wr->opcode == IBV_WR_RDMA_READ || bytes > qp->cap.max_inline_data
			       ? EINVAL
			       : 0;
	return fake_sges_check(qp->base.pd, wr->sg_list, wr->num_sge);
}

static void take_inline(struct fake_send *to, const struct ibv_send_wr *wr)
{
	uint8_t *at = to->inline_data;

	for (int i = 0; i < wr->num_sge; i++) {
		if (wr->sg_list[i].length == 0)
			continue;
		memcpy(at, (const void *)(uintptr_t)wr->sg_list[i].addr,
			wr->sg_list[i].length);
		at += wr->sg_list[i].length;
	}
}

static void take_send(struct fake_qp *qp, const struct ibv_send_wr *wr)
{
	struct fake_send *to = send_at(qp, qp->sq_tail++);

	to->wr_id = wr->wr_id;
	to->opcode = wr->opcode;
	to->flags = wr->send_flags;
	to->imm = has_imm(wr->opcode) ? wr->imm_data : 0;
	to->remote_addr = wr->wr.rdma.remote_addr;
	to->rkey = wr->wr.rdma.rkey;
	to->bytes = to->moved_bytes = 0;
	to->done = false;
	to->status = IBV_WC_SUCCESS;
	to->sge_count = wr->num_sge;
	for (int i = 0; i < wr->num_sge; i++) {
		to->sges[i] = wr->sg_list[i];
		to->bytes += wr->sg_list[i].length;
	}
	if (wr->send_flags & IBV_SEND_INLINE)
		take_inline(to, wr);
}

static int post_list(
	struct fake_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	for (; wr; wr = wr->next) {
		int err = check_send(qp, wr);

		if (qp->sq_tail - qp->sq_head >= qp->cap.max_send_wr)
			err = ENOMEM;
		if (err) {
			*bad_wr = wr;
			return err;
		}
		take_send(qp, wr);
	}
	return 0;
}

int fake_post_send(
	struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	struct fake_qp *qp = FAKE_QP(base);
	int err;

	FAKE_CALL("post_send");
	err = fault_;
	if (err || (base->state != IBV_QPS_RTS && base->state != IBV_QPS_ERR)) {
		*bad_wr = wr;
		return err ? err : EINVAL;
	}
	err = post_list(qp, wr, bad_wr);
	if (base->state == IBV_QPS_ERR)
		fake_qp_flush(qp);
	else
		fake_qp_activate(qp);
	fake_step();
	return err;
}
