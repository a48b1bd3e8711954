/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of the module tern-verbs.so: a background thread destroys the librdmacm ids of
 * connections that have ended.
 *
 * rdma_destroy_id() waits in the kernel until nothing refers to the id any more. If both
 * ends disconnect at the same time, this may take as long as the kernel retransmits the
 * disconnect: a minute was observed with Soft-RoCE on Linux 6.1. (Since 6.13 the kernel
 * avoids one such case, "IB/cm: Rework sending DREQ when destroying a cm_id".) No thread
 * of the program may block that long.
 *
 * One queue holds ids and event channels, and is served in order: each channel comes
 * after its ids. The thread is started for the first entry and runs as long as the
 * process. It is detached, so the process can end without it.
 *
 * Until an id is destroyed, events for it may still arrive, and its destruction waits
 * until they are acknowledged. So the code that reads events checks with
 * verbs_is_retired() whether it must ignore them. (The context of a retired id is NULL; a
 * new id, which may have the same address, has a context that is not NULL.)
 */
#include "transport/verbs/retire.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

struct retired {
	struct retired *next;
	struct rdma_cm_id *id; /* NULL: the entry is for the event channel */
	struct rdma_event_channel *channel;
};

static struct {
	pthread_mutex_t lock; /* protects all members below */
	pthread_cond_t more;
	/* list; the thread is destroying the first entry */
	struct retired *first, **last;
	bool started;
} queue = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.more = PTHREAD_COND_INITIALIZER,
	.last = &queue.first,
};

static void destroy(struct rdma_cm_id *id, struct rdma_event_channel *channel)
{
	if (id)
		rdma_destroy_id(id);
	else
		rdma_destroy_event_channel(channel);
}

static void *serve(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&queue.lock);
	for (;;) {
		struct retired *r = queue.first;

		if (!r) {
			pthread_cond_wait(&queue.more, &queue.lock);
			continue;
		}
		pthread_mutex_unlock(&queue.lock);
		destroy(r->id, r->channel);
		pthread_mutex_lock(&queue.lock);
		queue.first = r->next;
		if (!queue.first)
			queue.last = &queue.first;
		free(r);
	}
	return NULL;
}

/* Starts the background thread, with all signals blocked. The caller holds the lock. */
static bool start(void)
{
	pthread_attr_t attr;
	sigset_t all, before;
	pthread_t thread;

	if (queue.started)
		return true;
	sigfillset(&all);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	queue.started = pthread_create(&thread, &attr, serve, NULL) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return queue.started;
}

/* Queues an id, or (`id` is NULL) a channel, to be destroyed by the thread. If there is
 * no thread or no memory, destroys it immediately, which may block. */
static void retire(struct rdma_cm_id *id, struct rdma_event_channel *channel)
{
	struct retired *r = calloc(1, sizeof(*r));
	bool queued = false;

	pthread_mutex_lock(&queue.lock);
	if (r && start()) {
		*r = (struct retired){.id = id, .channel = channel};
		*queue.last = r;
		queue.last = &r->next;
		queued = true;
		pthread_cond_signal(&queue.more);
	}
	pthread_mutex_unlock(&queue.lock);
	if (queued)
		return;
	free(r);
	destroy(id, channel);
}

void verbs_retire_id(struct rdma_cm_id *id)
{
	id->context = NULL;
	retire(id, id->channel);
}

void verbs_retire_channel(struct rdma_event_channel *channel)
{
	bool waits = false;

	pthread_mutex_lock(&queue.lock);
	for (const struct retired *r = queue.first; r; r = r->next)
		waits |= r->channel == channel;
	pthread_mutex_unlock(&queue.lock);
	if (waits)
		retire(NULL, channel);
	else
		rdma_destroy_event_channel(channel);
}

bool verbs_is_retired(const struct rdma_cm_id *id)
{
	bool found = false;

	if (id->context)
		return false;
	pthread_mutex_lock(&queue.lock);
	for (const struct retired *r = queue.first; r; r = r->next)
		found |= r->id == id;
	pthread_mutex_unlock(&queue.lock);
	return found;
}
