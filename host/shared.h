/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a shared context. */
#ifndef TERN_HOST_SHARED_H
#define TERN_HOST_SHARED_H

#include <tern/shared.h>

#include <pthread.h>

#include "base/list.h"
#include "host/turns.h"

/* The driver of a context calls tern_progress() again and again, and sleeps until the next
 * event. */
enum shared_driver {
	DRIVEN_BY_THREAD, /* the progress thread */
	DRIVEN_BY_WAITER, /* a thread that waits */
	DRIVEN_BY_NOBODY, /* until lull_end_ns: the progress thread then takes over */
};

struct tern_shared {
	struct tern_domain *domain;
	struct tern_context *ctx;
	pthread_t thread;
	bool running; /* the thread was started */
	unsigned fork_count;
	/* Protects the context, the sessions and the fields below. */
	struct turns lock;
	bool closing;
	enum shared_driver driver;
	struct shared_waiter *driving; /* the waiter that drives the context, or NULL */
	bool asleep; /* the driver sleeps until the context has an event */
	/* The progress thread waits for both while it does not drive: an eventfd, and a
	 * timer that may expire before the end of the lull, but not after it. */
	int kick_fd, lull_fd;
	bool lull_fd_is_set;
	uint64_t lull_end_ns;
	bool is_polled; /* the lull follows a call of tern_shared_poll() */
	int status;     /* not 0: the context is broken, and nobody drives it any more */
	struct tern_list waiters;
	struct tern_list tenants;
};

/* Something that uses the context and is freed after it. */
struct shared_tenant {
	struct tern_list node;
	void (*free)(struct shared_tenant *tenant);
};

/* A thread that waits until is_answered(). */
struct shared_waiter {
	/* Returns true if the thread need not wait any more. Called with the lock held,
	 * on any thread, until it has returned true once. */
	bool (*is_answered)(struct shared_waiter *waiter);
	/* Private to shared.c. */
	struct tern_list node;
	pthread_cond_t cond;
	/* Protected by the mutex of the lock. awake: the thread has its answer, or the
	 * context is broken. drives: the thread has become the driver. */
	bool awake, drives;
};

/* Waits for `w`, with the lock held; other threads get the lock meanwhile. Returns 0,
 * -ETIMEDOUT, or the status of a broken context. */
int shared_wait_for(
	struct tern_shared *shared, struct shared_waiter *w, uint64_t timeout_ns);

/* Takes the lock. An error, with tern_shared_text(): it is not taken. */
int shared_enter(struct tern_shared *shared);
void shared_leave(struct tern_shared *shared);

/* Sets tern_shared_text(). Returns `status`. */
int shared_complain(int status, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
