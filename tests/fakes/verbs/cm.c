/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Event channels, connection ids, and the events of the ids. Events of one id are
 * delivered in order; delayed events of two ids may overtake each other. A channel's fd
 * is readable while an event waits that no test holds, even if the event is not due yet
 * (see fake_verbs.h: otherwise a thread that sleeps could miss it).
 *
 * Where the real rdma_destroy_id() would block (until all events are acknowledged), this
 * one fails an assertion.
 */
#include "tests/fakes/verbs/verbs_world.h"

#include <sys/eventfd.h>

struct fake_event *fake_event_new(struct fake_id *id, enum rdma_cm_event_type type)
{
	struct fake_event *event = calloc(1, sizeof(*event));

	tern_assert(event);
	tern_list_init(&event->node);
	event->base.id = &id->base;
	event->base.event = type;
	event->owner = id;
	event->channel = FAKE_CHANNEL(id->base.channel);
	return event;
}

void fake_channel_update(struct fake_channel *channel)
{
	bool any = false;

	tern_list_for_each (n, &channel->events)
		any |= !fake_event_held(tern_list_entry(n, struct fake_event, node));
	fake_fd_set(channel->base.fd, &channel->readable, any);
}

/* Frees the id of a connection request that the user has not fetched. The connecting end
 * gets REJECTED, unless the request was lost or the wire is cut. */
static void unborn_free(struct fake_id *id)
{
	fake_events_drop(id);
	fake_id_cut(id);
	FAKE_CHANNEL(id->base.channel)->id_count--;
	tern_list_remove(&id->node);
	free(id);
}

static void event_drop(struct fake_event *event)
{
	tern_list_remove(&event->node);
	if (event->base.event == RDMA_CM_EVENT_CONNECT_REQUEST)
		unborn_free(FAKE_ID(event->base.id));
	free(event);
}

/* Drops the queued events of `id`. */
void fake_events_drop(struct fake_id *id)
{
	struct fake_channel *channel = FAKE_CHANNEL(id->base.channel);
	struct tern_list *n = channel->events.next;

	while (n != &channel->events) {
		struct fake_event *event = tern_list_entry(n, struct fake_event, node);

		n = n->next;
		if (event->owner == id) {
			event_drop(event);
			n = channel->events.next;
		}
	}
	fake_channel_update(channel);
}

void fake_event_post(struct fake_event *event)
{
	struct fake_id *id = FAKE_ID(event->base.id);

	if (fake_event_lost(event)) {
		if (event->base.event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			/* The test loses this connection request, so it is never
			 * answered. */
			id->peer->peer = NULL;
			id->peer = NULL;
		}
		event_drop(event);
		return;
	}
	event->due_step += fake_delay(fake.opts.cm_delay_steps);
	event->due_step = TERN_MAX(event->due_step, id->last_due_step);
	id->last_due_step = event->due_step;
	tern_list_push(&event->channel->events, &event->node);
	fake_channel_update(event->channel);
}

void fake_id_tell(struct fake_id *id, enum rdma_cm_event_type type, int status)
{
	struct fake_event *event = fake_event_new(id, type);

	event->base.status = status;
	fake_event_post(event);
}

bool fake_id_has_events(const struct fake_id *id)
{
	tern_list_for_each (n, &FAKE_CHANNEL(id->base.channel)->events) {
		if (tern_list_entry(n, struct fake_event, node)->base.id == &id->base)
			return true;
	}
	return false;
}

int fake_create_event_channel(struct rdma_event_channel **out)
{
	FAKE_ENTER("create_event_channel");
	*out = NULL;
	int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	struct fake_channel *channel = calloc(1, sizeof(*channel));
	tern_assert(channel);
	channel->base.fd = fd;
	tern_list_init(&channel->events);
	tern_list_push(&fake.channels, &channel->node);
	*out = &channel->base;
	return 0;
}

void fake_destroy_event_channel(struct rdma_event_channel *base)
{
	struct fake_channel *channel = FAKE_CHANNEL(base);

	FAKE_ENTER_ALWAYS("destroy_event_channel");
	tern_assert(channel->id_count == 0 && channel->unacked_count == 0);
	tern_assert(tern_list_empty(&channel->events));
	tern_list_remove(&channel->node);
	close(base->fd);
	free(channel);
}

static bool is_next(const struct fake_event *event)
{
	if (event->due_step > fake.step || fake_event_held(event))
		return false;
	for (struct tern_list *n = event->node.prev; n != &event->channel->events;
		n = n->prev) {
		if (tern_list_entry(n, struct fake_event, node)->base.id ==
			event->base.id)
			return false;
	}
	return true;
}

static struct fake_event *next_event(struct fake_channel *channel)
{
	tern_list_for_each (n, &channel->events) {
		struct fake_event *event = tern_list_entry(n, struct fake_event, node);

		if (is_next(event))
			return event;
	}
	return NULL;
}

int fake_get_cm_event(struct rdma_event_channel *base, struct rdma_cm_event **out)
{
	struct fake_channel *channel = FAKE_CHANNEL(base);
	struct fake_event *event;

	FAKE_ENTER("get_cm_event");
	fake_step();
	while ((event = next_event(channel))) {
		tern_list_remove(&event->node);
		fake_channel_update(channel);
		if (fake_id_fetches(event))
			break;
		free(event);
	}
	if (!event)
		return -EAGAIN;
	event->owner->unacked_count++;
	channel->unacked_count++;
	*out = &event->base;
	return 0;
}

int fake_ack_cm_event(struct rdma_cm_event *base)
{
	struct fake_event *event = tern_container_of(base, struct fake_event, base);

	FAKE_ENTER("ack_cm_event");
	tern_assert(event->owner->unacked_count > 0);
	event->owner->unacked_count--;
	event->channel->unacked_count--;
	free(event);
	return 0;
}

struct fake_id *fake_id_new(struct fake_channel *channel, void *context)
{
	struct fake_id *id = calloc(1, sizeof(*id));

	tern_assert(id);
	id->base.channel = &channel->base;
	id->base.context = context;
	id->base.ps = RDMA_PS_TCP;
	id->base.qp_type = IBV_QPT_RC;
	channel->id_count++;
	tern_list_push(&fake.ids, &id->node);
	return id;
}

int fake_create_id(
	struct rdma_event_channel *channel, struct rdma_cm_id **out, void *context)
{
	FAKE_ENTER("create_id");
	*out = NULL;
	if (!channel)
		/* Ids without a channel (librdmacm's synchronous mode) are not
		 * supported. */
		return -EINVAL;
	*out = &fake_id_new(FAKE_CHANNEL(channel), context)->base;
	return 0;
}

int fake_destroy_id(struct rdma_cm_id *base)
{
	struct fake_id *id = FAKE_ID(base);

	FAKE_ENTER("destroy_id");
	tern_assert(!base->qp && id->unacked_count == 0);
	fake_events_drop(id);
	fake_id_cut(id);
	FAKE_CHANNEL(base->channel)->id_count--;
	tern_list_remove(&id->node);
	free(id);
	return 0;
}

/* As the real retire_id(), which may destroy the id later; this one destroys it at
 * once. */
void fake_retire_id(struct rdma_cm_id *id)
{
	fake_destroy_id(id);
}
