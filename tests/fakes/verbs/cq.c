/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completion queues and their channels. A completion first waits in its queue pair, in
 * order, until its delay is over or the completion queue is armed, and then enters the
 * completion queue. So completions of two queue pairs, and those of sends and receives of
 * one queue pair, may overtake each other, but never those of two sends, or of two
 * receives, of one queue pair.
 *
 * Invariant: entry_count + delayed_count <= cqe. Hardware would overrun the queue; the
 * simulated provider fails an assertion as soon as an overrun is possible.
 */
#include "tests/fakes/verbs/verbs_world.h"

#include <sys/eventfd.h>

static struct fake_cq *cq_of(const struct fake_qp *qp, enum fake_side side)
{
	return FAKE_CQ(side == FAKE_SEND ? qp->base.send_cq : qp->base.recv_cq);
}

static void disarm(struct fake_cq *cq)
{
	if (cq->armed != FAKE_NOT_ARMED)
		fake.armed_count--;
	cq->armed = FAKE_NOT_ARMED;
}

static void channel_update(struct fake_comp_channel *channel)
{
	fake_fd_set(
		channel->base.fd, &channel->readable, !tern_list_empty(&channel->events));
}

static void raise_event(struct fake_cq *cq)
{
	struct fake_comp_channel *channel = FAKE_COMP_CHANNEL(cq->base.channel);
	struct fake_cq_event *event = calloc(1, sizeof(*event));

	tern_assert(event);
	event->cq = cq;
	tern_list_push(&channel->events, &event->node);
	channel_update(channel);
}

static void enter(struct fake_cq *cq, struct fake_cqe *cqe)
{
	bool wanted = cq->armed == FAKE_ARMED ||
		      (cq->armed == FAKE_ARMED_SOLICITED &&
			      (cqe->solicited || cqe->wc.status != IBV_WC_SUCCESS));

	tern_list_push(&cq->entries, &cqe->node);
	cq->entry_count++;
	if (wanted) {
		disarm(cq);
		raise_event(cq);
	}
}

/* Takes ownership of `cqe`. It enters the completion queue at once if it has no delay or
 * the queue is armed, unless a completion of the same side (sends or receives) still
 * waits in front of it or a test holds that side. */
void fake_cqe_emit(struct fake_qp *qp, struct fake_cqe *cqe)
{
	struct fake_cq *cq = cq_of(qp, cqe->side);

	if (cq->entry_count + cq->delayed_count >= (unsigned)cq->base.cqe)
		tern_never("fake verbs: a completion queue is overrun");
	cqe->qp = qp;
	cqe->due_step = fake_delay(fake.opts.delay_steps);
	cq->delayed_count++;
	tern_list_push(&qp->delayed[cqe->side], &cqe->node);
	fake_cqes_deliver(qp);
	fake_qp_activate(qp);
}

static bool deliver_side(struct fake_qp *qp, enum fake_side side)
{
	struct fake_cq *cq = cq_of(qp, side);
	struct fake_cqe *cqe;
	bool any = false;

	while ((cqe = tern_list_first(&qp->delayed[side], struct fake_cqe, node))) {
		bool now = cqe->due_step <= fake.step || cq->armed != FAKE_NOT_ARMED;

		if (!now || fake_completions_held(side))
			break;
		tern_list_remove(&cqe->node);
		cq->delayed_count--;
		enter(cq, cqe);
		any = true;
	}
	return any;
}

bool fake_cqes_deliver(struct fake_qp *qp)
{
	bool sent = deliver_side(qp, FAKE_SEND);
	bool received = deliver_side(qp, FAKE_RECV);

	fake_qp_tell_last(qp);
	return received || sent;
}

void fake_cqes_hasten(struct fake_qp *qp)
{
	tern_list_for_each (n, &qp->delayed[FAKE_RECV])
		tern_list_entry(n, struct fake_cqe, node)->due_step = fake.step;
	deliver_side(qp, FAKE_RECV);
}

static void cqe_free(struct fake_cqe *cqe)
{
	if (cqe->rq)
		cqe->rq->taken_count--;
	free(cqe);
}

static void forget_entries(struct fake_cq *cq, struct fake_qp *qp)
{
	tern_list_for_each_safe (n, &cq->entries) {
		struct fake_cqe *cqe = tern_list_entry(n, struct fake_cqe, node);

		if (cqe->qp != qp)
			continue;
		cqe->qp = NULL;
		if (cqe->rq == &qp->own_rq)
			cqe->rq = NULL;
		if (fake.opts.keep_stale_cqes)
			continue;
		tern_list_remove(n);
		cq->entry_count--;
		cqe_free(cqe);
	}
}

void fake_cqes_forget(struct fake_qp *qp)
{
	for (int side = FAKE_SEND; side <= FAKE_RECV; side++) {
		struct tern_list *n;

		while ((n = tern_list_pop(&qp->delayed[side]))) {
			cq_of(qp, side)->delayed_count--;
			cqe_free(tern_list_entry(n, struct fake_cqe, node));
		}
		forget_entries(cq_of(qp, side), qp);
	}
}

/* Called when the receive queue `rq` is destroyed: completions that are polled later must
 * not free slots of it. */
void fake_cqes_forget_rq(const struct fake_rq *rq)
{
	tern_list_for_each (n, &fake.cqs) {
		tern_list_for_each (
			e, &tern_list_entry(n, struct fake_cq, node)->entries) {
			struct fake_cqe *cqe = tern_list_entry(e, struct fake_cqe, node);

			if (cqe->rq == rq)
				cqe->rq = NULL;
		}
	}
}

static void take(struct fake_cq *cq, struct fake_cqe *cqe, struct ibv_wc *out)
{
	tern_list_remove(&cqe->node);
	cq->entry_count--;
	*out = cqe->wc;
	if (cqe->side == FAKE_SEND && cqe->qp)
		cqe->qp->sq_head = cqe->sq_index + 1;
	cqe_free(cqe);
}

int fake_poll_cq(struct ibv_cq *base, int count, struct ibv_wc *wcs)
{
	struct fake_cq *cq = FAKE_CQ(base);
	struct fake_cqe *cqe;
	int n = 0;

	FAKE_ENTER("poll_cq");
	fake_step();
	while (n < count && (cqe = tern_list_first(&cq->entries, struct fake_cqe, node)))
		take(cq, cqe, &wcs[n++]);
	return n;
}

/* Arms the queue: the next completion (with `solicited_only`: the next that is solicited
 * or failed) raises an event. Completions that are in the queue already raise none, so
 * the user must poll once more after arming. */
int fake_req_notify_cq(struct ibv_cq *base, int solicited_only)
{
	struct fake_cq *cq = FAKE_CQ(base);

	FAKE_CALL("req_notify_cq");
	if (fault_)
		return fault_;
	tern_assert(base->channel);
	if (cq->armed == FAKE_NOT_ARMED)
		fake.armed_count++;
	/* Arming for solicited completions does not undo arming for all. */
	if (cq->armed != FAKE_ARMED)
		cq->armed = solicited_only ? FAKE_ARMED_SOLICITED : FAKE_ARMED;
	fake_step();
	return 0;
}

int fake_create_comp_channel(struct ibv_context *device, struct ibv_comp_channel **out)
{
	FAKE_ENTER("create_comp_channel");
	if (FAKE_DEVICE(device)->removed)
		return -EIO;
	struct fake_comp_channel *channel = calloc(1, sizeof(*channel));
	tern_assert(channel);
	channel->base.context = device;
	channel->base.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	tern_assert(channel->base.fd >= 0);
	tern_list_init(&channel->events);
	tern_list_push(&fake.comp_channels, &channel->node);
	*out = &channel->base;
	return 0;
}

int fake_destroy_comp_channel(struct ibv_comp_channel *base)
{
	struct fake_comp_channel *channel = FAKE_COMP_CHANNEL(base);

	FAKE_ENTER("destroy_comp_channel");
	if (channel->cq_count > 0)
		return -EBUSY;
	tern_assert(tern_list_empty(&channel->events));
	tern_list_remove(&channel->node);
	close(base->fd);
	free(channel);
	return 0;
}

int fake_get_cq_event(struct ibv_comp_channel *base, struct ibv_cq **out)
{
	struct fake_comp_channel *channel = FAKE_COMP_CHANNEL(base);

	FAKE_ENTER("get_cq_event");
	fake_step();
	struct tern_list *n = tern_list_pop(&channel->events);
	if (!n)
		return -EAGAIN;
	struct fake_cq_event *event = tern_list_entry(n, struct fake_cq_event, node);
	event->cq->unacked_count++;
	*out = &event->cq->base;
	free(event);
	channel_update(channel);
	return 0;
}

void fake_ack_cq_events(struct ibv_cq *base, unsigned count)
{
	struct fake_cq *cq = FAKE_CQ(base);

	FAKE_ENTER_ALWAYS("ack_cq_events");
	tern_assert(count <= cq->unacked_count);
	cq->unacked_count -= count;
}

static int entries_granted(int entries)
{
	int granted = 1;

	if (!fake.opts.grant_more)
		return entries;
	while (granted <= entries)
		granted *= 2;
	return TERN_MIN(granted - 1, fake.opts.max_cqe);
}

int fake_create_cq(struct ibv_context *device, int entries,
	struct ibv_comp_channel *channel, struct ibv_cq **out)
{
	FAKE_ENTER("create_cq");
	*out = NULL;
	if (FAKE_DEVICE(device)->removed)
		return -EIO;
	if (entries < 1 || entries > fake.opts.max_cqe ||
		(channel && channel->context != device))
		return -EINVAL;
	struct fake_cq *cq = calloc(1, sizeof(*cq));
	tern_assert(cq);
	cq->base.context = device;
	cq->base.channel = channel;
	cq->base.cqe = entries_granted(entries);
	tern_list_init(&cq->entries);
	tern_list_push(&fake.cqs, &cq->node);
	if (channel)
		FAKE_COMP_CHANNEL(channel)->cq_count++;
	*out = &cq->base;
	return 0;
}

int fake_resize_cq(struct ibv_cq *base, int entries)
{
	struct fake_cq *cq = FAKE_CQ(base);

	FAKE_ENTER("resize_cq");
	if (FAKE_DEVICE(base->context)->removed)
		return -EIO;
	if (entries < 1 || entries > fake.opts.max_cqe ||
		(unsigned)entries < cq->entry_count + cq->delayed_count)
		return -EINVAL;
	base->cqe = entries_granted(entries);
	return 0;
}

/* Destroys a completion queue. As in libibverbs, its events that were not fetched are
 * dropped, and fetched ones must have been acknowledged: where libibverbs would wait for
 * that, this one fails an assertion. */
int fake_destroy_cq(struct ibv_cq *base)
{
	struct fake_cq *cq = FAKE_CQ(base);
	struct tern_list *entry;

	FAKE_ENTER("destroy_cq");
	if (cq->qp_count > 0)
		return -EBUSY;
	tern_assert(cq->unacked_count == 0 && cq->delayed_count == 0);
	disarm(cq);
	while ((entry = tern_list_pop(&cq->entries)))
		cqe_free(tern_list_entry(entry, struct fake_cqe, node));
	if (base->channel) {
		struct fake_comp_channel *channel = FAKE_COMP_CHANNEL(base->channel);

		tern_list_for_each_safe (n, &channel->events) {
			struct fake_cq_event *event =
				tern_list_entry(n, struct fake_cq_event, node);

			if (event->cq == cq) {
				tern_list_remove(n);
				free(event);
			}
		}
		channel_update(channel);
		channel->cq_count--;
	}
	tern_list_remove(&cq->node);
	free(cq);
	return 0;
}
