/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lock, and not a queue of calls, joins the threads: a call acts at once on the thread
 * that makes it, so that its errors are returned at once, a send leaves without waiting
 * for another thread to wake up, and there is nothing whose length must be bounded. The
 * lock goes round in turns (turns.h), and the progress thread gives it back while it sleeps
 * and between two rounds of progress.
 *
 * A thread that waits for something is a `waiter`. After each round of progress the
 * progress thread asks every waiter whether it has its answer, and wakes those that have.
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
#include <unistd.h>
#include <tern/channel.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/sized.h"
#include "host/secret.h"
#include "transport/context.h"

/* Rounds of progress that a caller makes before it leaves the rest to the progress
 * thread. */
#define ROUNDS_MAX 4u

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
		pthread_mutex_lock(&shared->lock.mutex);
		w->awake = true;
		pthread_cond_signal(&w->cond);
		pthread_mutex_unlock(&shared->lock.mutex);
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

/* Prepares the context for the sleep of the progress thread. Returns false if there is
 * something to do. */
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
 * caller's thread. To wake the progress thread for it would take several times as long.
 * It is woken only if there is more to do. */
static void settle(struct tern_shared *shared)
{
	for (unsigned i = 0; i < ROUNDS_MAX && !shared->status; i++)
		if (progress(shared) == 0 && arm(shared))
			return;
	kick(shared);
}

static void give(struct tern_shared *shared)
{
	serve_waiters(shared); /* the caller may have changed what they wait for */
	if (shared->asleep)
		settle(shared);
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

/* ---- the progress thread ---- */

static void sleep_for_events(struct tern_shared *shared)
{
	struct pollfd pfds[] = {{.fd = tern_context_fd(shared->ctx), .events = POLLIN},
		{.fd = shared->kick_fd, .events = POLLIN}};
	uint64_t kicks;

	shared->asleep = true;
	turns_give(&shared->lock);
	poll(pfds, TERN_ARRAY_SIZE(pfds), -1);
	if (pfds[1].revents)
		(void)!read(shared->kick_fd, &kicks, sizeof(kicks));
	turns_take(&shared->lock);
	shared->asleep = false;
}

static void *run(void *arg)
{
	struct tern_shared *shared = arg;

	turns_take(&shared->lock);
	while (!shared->closing && !shared->status) {
		if (progress(shared) == 0 && arm(shared)) {
			sleep_for_events(shared);
		} else if (turns_are_wanted(&shared->lock)) {
			turns_give(&shared->lock);
			turns_take(&shared->lock);
		}
	}
	turns_give(&shared->lock);
	return NULL;
}

/* ---- waiting ---- */

static struct timespec time_of(uint64_t ns)
{
	return (struct timespec){.tv_sec = (time_t)(ns / TERN_NS_PER_S),
		.tv_nsec = (long)(ns % TERN_NS_PER_S)};
}

/* Gives the lock, sleeps until the waiter is awake or the time has come, and takes the lock
 * again. */
static void sleep_until(
	struct tern_shared *shared, struct shared_waiter *w, uint64_t deadline_ns)
{
	const struct timespec until = time_of(deadline_ns);
	int r = 0;

	turns_give_into_mutex(&shared->lock);
	while (!w->awake && r != ETIMEDOUT)
		r = deadline_ns == TERN_NEVER
			    ? pthread_cond_wait(&w->cond, &shared->lock.mutex)
			    : pthread_cond_clockwait(&w->cond, &shared->lock.mutex,
				      CLOCK_MONOTONIC, &until);
	pthread_mutex_unlock(&shared->lock.mutex);
	turns_take(&shared->lock);
}

int shared_wait_for(
	struct tern_shared *shared, struct shared_waiter *w, uint64_t timeout_ns)
{
	uint64_t deadline_ns = tern_ns_add(tern_clock_ns(), timeout_ns);

	if (w->is_answered(w))
		return 0;
	if (timeout_ns == 0)
		return shared_complain(-ETIMEDOUT, "there is no answer yet");
	w->awake = false;
	pthread_cond_init(&w->cond, NULL);
	tern_list_push(&shared->waiters, &w->node);
	if (shared->asleep)
		settle(shared);
	sleep_until(shared, w, deadline_ns);
	pthread_cond_destroy(&w->cond);
	if (!w->awake) {
		tern_list_remove(&w->node);
		return shared_complain(-ETIMEDOUT, "timed out");
	}
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
	r = shared->kick_fd < 0 ? -errno
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
	turns_fini(&shared->lock);
	free(shared);
}

struct tern_context *tern_shared_context(struct tern_shared *shared)
{
	return shared->ctx;
}
