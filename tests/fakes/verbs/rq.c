/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receive queues: rings of receive requests (buffers for messages), of one queue pair or
 * shared by several. Invariant: posted_count + taken_count <= slot_count. A slot (ring
 * entry) that a message has taken becomes free when the message's completion was polled,
 * as in hardware rings.
 */
#include "tests/fakes/verbs/verbs_world.h"

void fake_rq_init(struct fake_rq *rq, unsigned slot_count, unsigned sge_max)
{
	rq->slot_count = slot_count;
	rq->sge_max = sge_max;
	rq->slots = calloc(slot_count + 1, sizeof(*rq->slots));
	rq->sges = calloc((size_t)slot_count * sge_max + 1, sizeof(*rq->sges));
	tern_assert(rq->slots && rq->sges);
	for (unsigned i = 0; i < slot_count; i++)
		rq->slots[i].sges = &rq->sges[(size_t)i * sge_max];
}

void fake_rq_fini(struct fake_rq *rq)
{
	free(rq->slots);
	free(rq->sges);
}

/* Removes the oldest posted receive. `out->sges` must have space for sge_max entries. */
bool fake_rq_take(struct fake_rq *rq, struct fake_recv *out)
{
	if (rq->posted_count == 0)
		return false;
	struct fake_recv *slot = &rq->slots[rq->next % rq->slot_count];
	out->wr_id = slot->wr_id;
	out->sge_count = slot->sge_count;
	memcpy(out->sges, slot->sges, (size_t)slot->sge_count * sizeof(*slot->sges));
	rq->next++;
	rq->posted_count--;
	rq->taken_count++;
	return true;
}

/* 0 if each range lies in a memory registration of `pd`, else an errno. Empty ranges need
 * no registration. */
int fake_sges_check(const struct ibv_pd *pd, const struct ibv_sge *sges, int count)
{
	for (int i = 0; i < count; i++) {
		const struct fake_mr *mr = fake_mr_find(sges[i].lkey);

		if (sges[i].length == 0)
			continue;
		if (!mr || mr->base.pd != pd)
			return EINVAL;
		uint64_t offset = sges[i].addr - (uintptr_t)mr->base.addr;
		if (offset > mr->base.length || sges[i].length > mr->base.length - offset)
			return EINVAL;
	}
	return 0;
}

static int post(struct fake_rq *rq, const struct ibv_pd *pd, const struct ibv_recv_wr *wr)
{
	if (rq->posted_count + rq->taken_count >= rq->slot_count)
		return ENOMEM;
	if (wr->num_sge < 0 || (unsigned)wr->num_sge > rq->sge_max ||
		fake_sges_check(pd, wr->sg_list, wr->num_sge))
		return EINVAL;
	struct fake_recv *slot =
		&rq->slots[(rq->next + rq->posted_count) % rq->slot_count];
	slot->wr_id = wr->wr_id;
	slot->sge_count = wr->num_sge;
	if (wr->num_sge > 0)
		memcpy(slot->sges, wr->sg_list,
			(size_t)wr->num_sge * sizeof(*slot->sges));
	rq->posted_count++;
	return 0;
}

static int post_list(struct fake_rq *rq, const struct ibv_pd *pd, struct ibv_recv_wr *wr,
	struct ibv_recv_wr **bad_wr)
{
	for (; wr; wr = wr->next) {
		int err = post(rq, pd, wr);

		if (err) {
			*bad_wr = wr;
			return err;
		}
	}
	return 0;
}

int fake_post_recv(
	struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	struct fake_qp *qp = FAKE_QP(base);
	int err;

	FAKE_CALL("post_recv");
	err = fault_;
	if (err || base->srq || base->state == IBV_QPS_RESET) {
		*bad_wr = wr;
		return err ? err : EINVAL;
	}
	err = post_list(&qp->own_rq, base->pd, wr, bad_wr);
	if (base->state == IBV_QPS_ERR)
		fake_qp_flush(qp);
	fake_step();
	return err;
}

int fake_post_srq_recv(
	struct ibv_srq *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	int err;

	FAKE_CALL("post_srq_recv");
	err = fault_;
	if (err) {
		*bad_wr = wr;
		return err;
	}
	err = post_list(&FAKE_SRQ(base)->rq, base->pd, wr, bad_wr);
	fake_step();
	return err;
}

int fake_create_srq(
	struct ibv_pd *pd, struct ibv_srq_init_attr *attr, struct ibv_srq **out)
{
	struct fake_device *device = FAKE_DEVICE(pd->context);

	FAKE_ENTER("create_srq");
	*out = NULL;
	if (device->removed)
		return -EIO;
	if (fake.opts.max_srq == 0)
		return -EOPNOTSUPP;
	if (device->srq_count >= (unsigned)fake.opts.max_srq)
		return -ENOMEM;
	if (attr->attr.max_wr < 1 || attr->attr.max_wr > (unsigned)fake.opts.max_srq_wr ||
		attr->attr.max_sge > (unsigned)fake.opts.max_sge)
		return -EINVAL;
	struct fake_srq *srq = calloc(1, sizeof(*srq));
	tern_assert(srq);
	if (fake.opts.grant_more)
		attr->attr.max_wr =
			fake_round_up(attr->attr.max_wr, (unsigned)fake.opts.max_srq_wr);
	fake_rq_init(&srq->rq, attr->attr.max_wr, attr->attr.max_sge);
	srq->base.context = pd->context;
	srq->base.srq_context = attr->srq_context;
	srq->base.pd = pd;
	FAKE_PD(pd)->use_count++;
	device->srq_count++;
	tern_list_push(&fake.srqs, &srq->node);
	*out = &srq->base;
	return 0;
}

int fake_destroy_srq(struct ibv_srq *base)
{
	struct fake_srq *srq = FAKE_SRQ(base);

	FAKE_ENTER("destroy_srq");
	if (srq->qp_count > 0)
		return -EBUSY;
	fake_cqes_forget_rq(&srq->rq);
	FAKE_PD(base->pd)->use_count--;
	FAKE_DEVICE(base->context)->srq_count--;
	tern_list_remove(&srq->node);
	fake_rq_fini(&srq->rq);
	free(srq);
	return 0;
}
