/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lock, and not a queue of calls, joins the threads: a call acts at once on the thread
 * that makes it, so that its errors are returned at once, a send leaves without waiting
 * for another thread to wake up, and there is nothing whose length must be bounded. The
 * lock goes round in turns (turns.h), and whoever drives the context gives it back while
 * it sleeps and between two rounds of progress.
 *
 * A thread that waits for something is a `waiter`. The first waiter drives the context
 * itself, so the event that it waits for wakes no other thread. The others sleep; after
 * each round of progress those that have their answers are woken. When a driver has its
 * own, another waiter drives, or, for a moment, nobody: most threads soon wait again. Only
 * if none does for LULL_NS the progress thread drives the context, until one waits. Calls of
 * tern_shared_poll() make rounds without driving, and nobody drives for POLLED_NS after one.
 *
 *     DRIVEN_BY_THREAD --a thread waits--> DRIVEN_BY_WAITER <--a thread waits--+
 *            ^                                    |                           |
 *            |                                    +--none waits--> DRIVEN_BY_NOBODY
 *            +------------------after LULL_NS, or more to do-------------+
 */
#include "host/shared.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <tern/channel.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/sized.h"
#include "host/secret.h"
#include "transport/context.h"

/* Rounds of progress that a caller makes before it leaves the rest to the driver: a put or get
 * of one chunk over shm (1 MiB) takes four, and the one after it finds nothing to do. */
#define ROUNDS_MAX 5u
#define LULL_NS    TERN_NS_PER_MS
#define POLLED_NS  (10 * TERN_NS_PER_MS)

static _Thread_local char last_text[700];

/* Number of forks that this process descends from since the library was loaded. */
static unsigned fork_count;

static void count_fork(void)
{
	fork_count++;
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, count_fork);
}

const char *tern_shared_text(void)
{
	return last_text;
}

int shared_complain(int status, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(last_text, sizeof(last_text), fmt, ap);
	va_end(ap);
	return status;
}

/* ---- the lock ---- */

/* Sets one of the fields that a waiter sleeps on. */
static void tell_waiter(struct tern_shared *shared, struct shared_waiter *w, bool *field)
{
	pthread_mutex_lock(&shared->lock.mutex);
	*field = true;
	pthread_cond_signal(&w->cond);
	pthread_mutex_unlock(&shared->lock.mutex);
}

/* Wakes the waiters that have their answer. */
static void serve_waiters(struct tern_shared *shared)
{
	struct tern_list *node = shared->waiters.next, *next;

	for (; node != &shared->waiters; node = next) {
		struct shared_waiter *w =
			tern_list_entry(node, struct shared_waiter, node);

		next = node->next;
		if (!shared->status && !w->is_answered(w))
			continue;
		tern_list_remove(&w->node);
		tell_waiter(shared, w, &w->awake);
	}
}

/* Makes one round of progress and wakes waiters. Returns what tern_progress() returned. */
static int progress(struct tern_shared *shared)
{
	int n = tern_progress(shared->ctx);

	if (n < 0)
		shared->status = n;
	if (n)
		serve_waiters(shared);
	return n;
}

/* Prepares the context for the sleep of its driver. Returns false if there is something to
 * do. */
static bool arm(struct tern_shared *shared)
{
	int r = tern_arm(shared->ctx);

	if (r < 0 && r != -EAGAIN) {
		shared->status = r;
		serve_waiters(shared);
	}
	return r == 0;
}

static void kick(struct tern_shared *shared)
{
	const uint64_t one = 1;

	/* The counter cannot overflow: the progress thread empties it. */
	(void)!write(shared->kick_fd, &one, sizeof(one));
}

/* Makes the progress that the caller has caused, such as sending a message, on the
 * caller's thread. To wake another one for it would take several times as long. The driver
 * is woken only if there is more to do and nobody polls. */
static void settle(struct tern_shared *shared)
{
	for (unsigned i = 0; i < ROUNDS_MAX && !shared->status; i++)
		if (progress(shared) == 0 && (!shared->asleep || arm(shared)))
			return;
	if (shared->asleep) {
		tern_context_rouse(shared->ctx);
	} else if (shared->driver != DRIVEN_BY_NOBODY || !shared->is_polled) {
		shared->driver = DRIVEN_BY_THREAD;
		kick(shared);
	}
}

/* Called before a thread that does not drive gives the lock: messages leave now, unless
 * the driver is awake and takes the lock next, and a driver that has its answer wakes up.
 * That comes last, since a round of progress would take the wake-up back. */
static void settle_for_driver(struct tern_shared *shared)
{
	if (shared->asleep || shared->driver == DRIVEN_BY_NOBODY)
		settle(shared);
	if (shared->asleep && shared->driving && shared->driving->awake)
		tern_context_rouse(shared->ctx);
}

static void give(struct tern_shared *shared)
{
	serve_waiters(shared); /* the caller may have changed what they wait for */
	settle_for_driver(shared);
	turns_give(&shared->lock);
}

int tern_shared_lock(struct tern_shared *shared)
{
	if (shared->fork_count != fork_count)
		return shared_complain(-ECHILD,
			"a shared context cannot be used by a child of the process that "
			"made it");
	turns_take(&shared->lock);
	return 0;
}

void tern_shared_unlock(struct tern_shared *shared)
{
	if (shared->fork_count == fork_count)
		give(shared);
}

int shared_enter(struct tern_shared *shared)
{
	int r = tern_shared_lock(shared);

	if (r < 0 || !shared->status)
		return r;
	r = shared->status;
	turns_give(&shared->lock);
	return shared_complain(r, "the context is broken: %s", tern_status_text(r));
}

void shared_leave(struct tern_shared *shared)
{
	give(shared);
}

/* ---- the driver ---- */

static struct timespec time_of(uint64_t ns)
{
	return (struct timespec){.tv_sec = (time_t)(ns / TERN_NS_PER_S),
		.tv_nsec = (long)(ns % TERN_NS_PER_S)};
}

/* Waits, without the lock, until one of the descriptors is readable or the time has
 * come. */
static void poll_until(
	struct tern_shared *shared, struct pollfd *pfds, nfds_t count, uint64_t until_ns)
{
	uint64_t now_ns = until_ns == TERN_NEVER ? 0 : tern_clock_ns();
	struct timespec left = time_of(until_ns - TERN_MIN(now_ns, until_ns));

	turns_give(&shared->lock);
	ppoll(pfds, count, until_ns == TERN_NEVER ? NULL : &left, NULL);
	turns_take(&shared->lock);
}

/* Makes a round of progress. Returns true if the driver can sleep now. If not, other
 * threads have had their turns. */
static bool drive(struct tern_shared *shared)
{
	if (progress(shared) == 0 && arm(shared))
		return true;
	if (turns_are_wanted(&shared->lock)) {
		turns_give(&shared->lock);
		turns_take(&shared->lock);
	}
	return false;
}

/* ---- the progress thread ---- */

static void set_lull_fd(struct tern_shared *shared)
{
	const struct itimerspec end = {.it_value = time_of(shared->lull_end_ns)};

	timerfd_settime(shared->lull_fd, TFD_TIMER_ABSTIME, &end, NULL);
	shared->lull_fd_is_set = true;
}

static void lull_fd_has_expired(struct tern_shared *shared)
{
	shared->lull_fd_is_set = false;
	if (shared->driver != DRIVEN_BY_NOBODY)
		return;
	if (tern_clock_ns() >= shared->lull_end_ns)
		shared->driver = DRIVEN_BY_THREAD;
	else
		set_lull_fd(shared);
}

/* Sleeps until the progress thread has something to do. As the driver it also waits for
 * the context; it may not be the driver any more when it wakes up. */
static void sleep_on_thread(struct tern_shared *shared)
{
	bool drives = shared->driver == DRIVEN_BY_THREAD;
	struct pollfd pfds[] = {{.fd = shared->kick_fd, .events = POLLIN},
		{.fd = shared->lull_fd, .events = POLLIN},
		{.fd = tern_context_fd(shared->ctx), .events = POLLIN}};
	uint64_t count;

	if (drives)
		shared->asleep = true;
	poll_until(shared, pfds, drives ? 3 : 2, TERN_NEVER);
	if (shared->driver == DRIVEN_BY_THREAD)
		shared->asleep = false;
	if (pfds[0].revents)
		(void)!read(shared->kick_fd, &count, sizeof(count));
	/* Nothing can be read if the timer was set again meanwhile. */
	if (pfds[1].revents && read(shared->lull_fd, &count, sizeof(count)) > 0)
		lull_fd_has_expired(shared);
}

static void *run(void *arg)
{
	struct tern_shared *shared = arg;

	turns_take(&shared->lock);
	while (!shared->closing && !shared->status)
		if (shared->driver != DRIVEN_BY_THREAD || drive(shared))
			sleep_on_thread(shared);
	turns_give(&shared->lock);
	return NULL;
}

/* ---- waiting ---- */

static void begin_driving(struct tern_shared *shared, struct shared_waiter *w)
{
	shared->driver = DRIVEN_BY_WAITER;
	shared->driving = w;
	/* If the progress thread sleeps as the driver, the next event wakes it once more. */
	shared->asleep = false;
}

static void sleep_on_waiter(struct tern_shared *shared, uint64_t deadline_ns)
{
	struct pollfd pfd = {.fd = tern_context_fd(shared->ctx), .events = POLLIN};

	shared->asleep = true;
	poll_until(shared, &pfd, 1, deadline_ns);
	shared->asleep = false;
}

/* Nobody drives for `ns` ns. */
static void begin_lull(struct tern_shared *shared, uint64_t ns)
{
	shared->driver = DRIVEN_BY_NOBODY;
	shared->driving = NULL;
	shared->is_polled = false;
	/* If the progress thread sleeps as the driver, the next event wakes it once more. */
	shared->asleep = false;
	shared->lull_end_ns = tern_clock_ns() + ns;
	if (!shared->lull_fd_is_set)
		set_lull_fd(shared);
}

/* Another waiter drives from now on. If there is none, nobody does for a moment. */
static void end_driving(struct tern_shared *shared)
{
	struct shared_waiter *w;

	if (!tern_list_empty(&shared->waiters)) {
		w = tern_list_first(&shared->waiters, struct shared_waiter, node);
		begin_driving(shared, w);
		tell_waiter(shared, w, &w->drives);
		return;
	}
	begin_lull(shared, LULL_NS);
}

/* Gives the lock, sleeps until the waiter is awake, is to drive, or the time has come, and
 * takes the lock again. */
static void sleep_until(
	struct tern_shared *shared, struct shared_waiter *w, uint64_t deadline_ns)
{
	const struct timespec until = time_of(deadline_ns);
	int r = 0;

	turns_give_into_mutex(&shared->lock);
	while (!w->awake && !w->drives && r != ETIMEDOUT)
		r = deadline_ns == TERN_NEVER
			    ? pthread_cond_wait(&w->cond, &shared->lock.mutex)
			    : pthread_cond_clockwait(&w->cond, &shared->lock.mutex,
				      CLOCK_MONOTONIC, &until);
	pthread_mutex_unlock(&shared->lock.mutex);
	turns_take(&shared->lock);
}

static bool is_too_late(uint64_t deadline_ns)
{
	return deadline_ns != TERN_NEVER && tern_clock_ns() >= deadline_ns;
}

int shared_wait_for(
	struct tern_shared *shared, struct shared_waiter *w, uint64_t timeout_ns)
{
	uint64_t deadline_ns = tern_ns_add(tern_clock_ns(), timeout_ns);

	if (w->is_answered(w))
		return 0;
	if (timeout_ns == 0)
		return shared_complain(-ETIMEDOUT, "there is no answer yet");
	w->awake = w->drives = false;
	pthread_cond_init(&w->cond, NULL);
	tern_list_push(&shared->waiters, &w->node);
	if (shared->driving) {
		settle_for_driver(shared);
		sleep_until(shared, w, deadline_ns);
	} else {
		begin_driving(shared, w);
	}
	while (shared->driving == w && !w->awake && !is_too_late(deadline_ns))
		if (drive(shared) && !w->awake)
			sleep_on_waiter(shared, deadline_ns);
	pthread_cond_destroy(&w->cond);
	if (!w->awake)
		tern_list_remove(&w->node);
	if (shared->driving == w)
		end_driving(shared);
	if (!w->awake)
		return shared_complain(-ETIMEDOUT, "timed out");
	return shared->status
		       ? shared_complain(shared->status, "the context is broken: %s",
				 tern_status_text(shared->status))
		       : 0;
}

struct request_waiter {
	struct shared_waiter waiter;
	struct tern_req *req;
};

static bool has_ended(struct shared_waiter *waiter)
{
	return tern_test(tern_container_of(waiter, struct request_waiter, waiter)->req) !=
	       -EINPROGRESS;
}

int tern_shared_wait(
	struct tern_shared *shared, struct tern_req *req, uint64_t timeout_ns)
{
	struct request_waiter w = {.waiter.is_answered = has_ended, .req = req};
	int r = shared_enter(shared);

	if (r < 0)
		return r;
	r = shared_wait_for(shared, &w.waiter, timeout_ns);
	if (r == 0)
		r = tern_test(req);
	shared_leave(shared);
	return r;
}

struct group_waiter {
	struct shared_waiter waiter;
	struct tern_group_req *req;
};

static bool group_has_ended(struct shared_waiter *waiter)
{
	return tern_group_test(
		       tern_container_of(waiter, struct group_waiter, waiter)->req) !=
	       -EINPROGRESS;
}

int tern_shared_wait_group(
	struct tern_shared *shared, struct tern_group_req *req, uint64_t timeout_ns)
{
	struct group_waiter w = {.waiter.is_answered = group_has_ended, .req = req};
	int r = shared_enter(shared);

	if (r < 0)
		return r;
	r = shared_wait_for(shared, &w.waiter, timeout_ns);
	if (r == 0)
		r = tern_group_test(req);
	shared_leave(shared);
	return r;
}

int tern_shared_poll(struct tern_shared *shared)
{
	int n = shared_enter(shared);

	if (n < 0)
		return n;
	n = progress(shared);
	if (n < 0)
		shared_complain(n, "the context is broken: %s", tern_status_text(n));
	if (shared->driving) {
		give(shared);
		return n;
	}
	begin_lull(shared, POLLED_NS);
	shared->is_polled = true;
	turns_give(&shared->lock);
	return n;
}

/* ---- making and freeing ---- */

static int start_thread(struct tern_shared *shared)
{
	sigset_t all, old;
	int r;

	/* Signals are for the program's own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&shared->thread, NULL, run, shared);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r)
		return shared_complain(-r, "no thread: %s", strerror(r));
	pthread_setname_np(shared->thread, "tern-progress");
	shared->running = true;
	return 0;
}

/* Makes the context, with the secret of a file if the program gives none. */
static int make_context(struct tern_shared *shared, const struct tern_context_opts *given,
	const char *secret_file)
{
	struct tern_context_opts opts = given ? *given : (struct tern_context_opts){0};
	const char *named = secret_file ? secret_file : getenv("TERN_SECRET_FILE");
	struct secret secret;
	struct secret_error why;
	int r = 0;

	if (!opts.secret && named && *named) {
		r = secret_read_file(secret_file ? "secret file" : "TERN_SECRET_FILE",
			named, &secret, &why);
		if (r < 0)
			return shared_complain(r, "%s", why.text);
		opts.secret = secret.text;
	}
	r = tern_context_new(shared->domain, &opts, &shared->ctx);
	if (opts.secret == secret.text)
		explicit_bzero(&secret, sizeof(secret));
	return r < 0 ? shared_complain(r, "no context: %s", tern_status_text(r)) : 0;
}

int tern_shared_new_sized(
	const struct tern_shared_opts *opts, size_t opts_bytes, struct tern_shared **out)
{
	struct tern_shared *shared = calloc(1, sizeof(*shared));
	struct tern_shared_opts o;
	int r;

	if (!shared)
		return shared_complain(-ENOMEM, "no memory for a shared context");
	turns_init(&shared->lock);
	tern_list_init(&shared->waiters);
	tern_list_init(&shared->tenants);
	shared->fork_count = fork_count;
	shared->kick_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	shared->lull_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	r = shared->kick_fd < 0 || shared->lull_fd < 0
		    ? -errno
		    : tern_read_sized(&o, sizeof(o), opts, opts_bytes);
	if (r == 0)
		r = tern_domain_new(o.domain, &shared->domain);
	if (r == -E2BIG && !shared->domain && !o.domain)
		shared_complain(r, "the options have a field that this library lacks");
	else if (r < 0)
		shared_complain(r, "no domain: %s", tern_status_text(r));
	else
		r = make_context(shared, o.context, o.secret_file);
	if (r == 0)
		r = start_thread(shared);
	if (r < 0) {
		tern_shared_free(shared);
		return r;
	}
	*out = shared;
	return 0;
}

void tern_shared_free(struct tern_shared *shared)
{
	if (!shared || shared->fork_count != fork_count)
		return;
	if (shared->running) {
		turns_take(&shared->lock);
		shared->closing = true;
		kick(shared);
		turns_give(&shared->lock);
		pthread_join(shared->thread, NULL);
	}
	tern_context_free(shared->ctx);
	while (!tern_list_empty(&shared->tenants)) {
		struct shared_tenant *tenant =
			tern_list_first(&shared->tenants, struct shared_tenant, node);

		tern_list_remove(&tenant->node);
		tenant->free(tenant);
	}
	tern_domain_free(shared->domain);
	tern_cleanup_close(&shared->kick_fd);
	tern_cleanup_close(&shared->lull_fd);
	turns_fini(&shared->lock);
	free(shared);
}

struct tern_context *tern_shared_context(struct tern_shared *shared)
{
	return shared->ctx;
}
