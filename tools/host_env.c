/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs and files on threads of their own.
 *
 *     submit -> waiting -> [job thread: run] -> events -> [poll: progress, done]
 *     file   -> files   -> [file thread]     -> file_events -> [poll: done]
 *
 * One mutex covers the four lists, and the fields `link` and `signals` of every job in
 * them. It is held for a few instructions only, never over run() or a system call on a
 * file; a job or an operation takes milliseconds, so there is nothing to gain from
 * anything cleverer. What is polled in a tight loop is one atomic count, without the
 * lock.
 *
 * A job is in the list of events at most once: a signal that finds it there just adds its
 * bit. poll() takes one job at a time, with its bits, so that a job that is still running
 * may be put back the moment the lock is gone.
 */
#include "tools/host_env.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "base/clock.h"
#include "tools/host_file.h"
#include "tools/stack.h"

enum {
	JOB_SIGNALLED = 1,
	JOB_FINISHED = 2,
};

struct host_env {
	struct tern_env env;
	struct host_env_opts opts;
	pthread_mutex_t lock;
	pthread_cond_t job_cond, file_cond;
	struct tern_list waiting, events, files, file_events;
	atomic_uint event_count; /* of both lists of events; written under the lock */
	bool stopping;
	atomic_uint ended_count;
	unsigned thread_count; /* of `threads`; the file thread comes first */
	pthread_t threads[HOST_ENV_JOB_THREADS_MAX + 1];
};

static struct host_env *host_of(struct tern_env *env)
{
	return tern_container_of(env, struct host_env, env);
}

/* With the lock held. */
static void job_event(struct host_env *host, struct tern_job *job, unsigned bit)
{
	if (!job->signals) {
		tern_list_push(&host->events, &job->link);
		host->event_count++;
	}
	job->signals |= bit;
}

static void wake(struct host_env *host)
{
	if (host->env.wake)
		host->env.wake(host->env.wake_arg);
}

/* ---- threads ---- */

static void *job_thread(void *arg)
{
	struct host_env *host = arg;

	pthread_mutex_lock(&host->lock);
	for (;;) {
		struct tern_job *job;

		while (!host->stopping && tern_list_empty(&host->waiting))
			pthread_cond_wait(&host->job_cond, &host->lock);
		if (host->stopping)
			break;
		job = tern_list_entry(
			tern_list_pop(&host->waiting), struct tern_job, link);
		pthread_mutex_unlock(&host->lock);
		job->run(job);
		pthread_mutex_lock(&host->lock);
		job_event(host, job, JOB_FINISHED);
		pthread_mutex_unlock(&host->lock);
		/* `job` may be gone by now: its done() may have run. */
		wake(host);
		pthread_mutex_lock(&host->lock);
	}
	pthread_mutex_unlock(&host->lock);
	atomic_fetch_add(&host->ended_count, 1);
	return NULL;
}

static void *file_thread(void *arg)
{
	struct host_env *host = arg;

	pthread_mutex_lock(&host->lock);
	for (;;) {
		struct tern_file_op *op;

		while (!host->stopping && tern_list_empty(&host->files))
			pthread_cond_wait(&host->file_cond, &host->lock);
		if (tern_list_empty(&host->files))
			break;
		op = tern_list_entry(
			tern_list_pop(&host->files), struct tern_file_op, link);
		pthread_mutex_unlock(&host->lock);
		host_file_run(op);
		pthread_mutex_lock(&host->lock);
		tern_list_push(&host->file_events, &op->link);
		host->event_count++;
		pthread_mutex_unlock(&host->lock);
		wake(host);
		pthread_mutex_lock(&host->lock);
	}
	pthread_mutex_unlock(&host->lock);
	atomic_fetch_add(&host->ended_count, 1);
	return NULL;
}

/* ---- operations ---- */

static uint64_t host_now_ns(struct tern_env *env)
{
	(void)env;
	return tern_now_ns(tern_env_system());
}

static uint64_t host_ticks(struct tern_env *env)
{
	(void)env;
	return tern_clock_ticks();
}

static uint64_t host_random(struct tern_env *env)
{
	(void)env;
	return tern_random(tern_env_system());
}

static void host_log(struct tern_env *env, enum tern_log_level level, const char *line)
{
	struct tern_env *system = tern_env_system();

	(void)env;
	system->ops->log(system, level, line);
}

static int host_submit(struct tern_env *env, struct tern_job *job)
{
	struct host_env *host = host_of(env);
	int r = 0;

	pthread_mutex_lock(&host->lock);
	if (host->stopping) {
		r = -ECANCELED;
	} else {
		job->signals = 0;
		tern_list_push(&host->waiting, &job->link);
		pthread_cond_signal(&host->job_cond);
	}
	pthread_mutex_unlock(&host->lock);
	return r;
}

static void host_signal(struct tern_env *env, struct tern_job *job)
{
	struct host_env *host = host_of(env);

	pthread_mutex_lock(&host->lock);
	job_event(host, job, JOB_SIGNALLED);
	pthread_mutex_unlock(&host->lock);
	wake(host);
}

static int host_file(struct tern_env *env, struct tern_file_op *op)
{
	struct host_env *host = host_of(env);
	int r = 0;

	pthread_mutex_lock(&host->lock);
	if (host->stopping) {
		r = -ECANCELED;
	} else {
		op->data = NULL;
		op->bytes = 0;
		tern_list_push(&host->files, &op->link);
		pthread_cond_signal(&host->file_cond);
	}
	pthread_mutex_unlock(&host->lock);
	return r;
}

/* With the lock held. */
static struct tern_list *take(struct host_env *host, struct tern_list *from)
{
	struct tern_list *node = tern_list_pop(from);

	if (node)
		host->event_count--;
	return node;
}

static int poll_jobs(struct host_env *host)
{
	struct tern_list *node;
	int n = 0;

	for (;; n++) {
		struct tern_job *job;
		unsigned bits;

		pthread_mutex_lock(&host->lock);
		node = take(host, &host->events);
		job = node ? tern_list_entry(node, struct tern_job, link) : NULL;
		bits = job ? atomic_exchange(&job->signals, 0) : 0;
		pthread_mutex_unlock(&host->lock);
		if (!job)
			return n;
		if ((bits & JOB_SIGNALLED) && job->progress)
			job->progress(job);
		if (bits & JOB_FINISHED)
			job->done(job);
	}
}

static int poll_files(struct host_env *host)
{
	for (int n = 0;; n++) {
		struct tern_list *node;
		struct tern_file_op *op;

		pthread_mutex_lock(&host->lock);
		node = take(host, &host->file_events);
		pthread_mutex_unlock(&host->lock);
		if (!node)
			return n;
		op = tern_list_entry(node, struct tern_file_op, link);
		op->done(op);
	}
}

static int host_poll(struct tern_env *env)
{
	struct host_env *host = host_of(env);
	int n;

	if (!atomic_load_explicit(&host->event_count, memory_order_relaxed))
		return 0;
	n = poll_jobs(host);
	return n + poll_files(host);
}

/* ---- life ---- */

static int start_threads(struct host_env *host, const pthread_attr_t *attr)
{
	unsigned jobs = host->opts.job_thread_count ? host->opts.job_thread_count : 1;

	tern_assert(jobs <= HOST_ENV_JOB_THREADS_MAX);
	for (unsigned i = 0; i <= jobs; i++) {
		int r = pthread_create(
			&host->threads[i], attr, i ? job_thread : file_thread, host);

		if (r)
			return -r;
		host->thread_count++;
	}
	return 0;
}

/* By default a thread's stack is as large as the main thread's was allowed to be when the
 * process began (ulimit -s), which may be too little. */
static int start_all(struct host_env *host)
{
	pthread_attr_t attr;
	size_t bytes;
	int r;

	pthread_attr_init(&attr);
	pthread_attr_getstacksize(&attr, &bytes);
	if (bytes < STACK_BYTES)
		pthread_attr_setstacksize(&attr, STACK_BYTES);
	r = start_threads(host, &attr);
	pthread_attr_destroy(&attr);
	return r;
}

int host_env_new(const struct host_env_opts *opts, struct tern_env **out)
{
	static const struct tern_env_ops ops = {
		.now_ns = host_now_ns,
		.ticks = host_ticks,
		.random = host_random,
		.log = host_log,
		.submit = host_submit,
		.signal = host_signal,
		.file = host_file,
		.poll = host_poll,
	};
	struct host_env *host = calloc(1, sizeof(*host));
	int r;

	if (!host)
		return -ENOMEM;
	host->env.ops = &ops;
	if (opts)
		host->opts = *opts;
	pthread_mutex_init(&host->lock, NULL);
	pthread_cond_init(&host->job_cond, NULL);
	pthread_cond_init(&host->file_cond, NULL);
	tern_list_init(&host->waiting);
	tern_list_init(&host->events);
	tern_list_init(&host->files);
	tern_list_init(&host->file_events);
	r = start_all(host);
	if (r) {
		host_env_free(&host->env);
		return r;
	}
	*out = &host->env;
	return 0;
}

static void ask_to_end(struct host_env *host)
{
	pthread_mutex_lock(&host->lock);
	host->stopping = true;
	pthread_cond_broadcast(&host->job_cond);
	pthread_cond_broadcast(&host->file_cond);
	pthread_mutex_unlock(&host->lock);
}

bool host_env_ends(struct tern_env *env, unsigned ms)
{
	struct host_env *host = host_of(env);
	uint64_t limit_ns = tern_clock_ns() + ms * TERN_NS_PER_MS;

	ask_to_end(host);
	while (atomic_load(&host->ended_count) < host->thread_count) {
		if (tern_clock_ns() >= limit_ns)
			return false;
		nanosleep(&(struct timespec){.tv_nsec = TERN_NS_PER_MS}, NULL);
	}
	return true;
}

void host_env_stop(struct tern_env *env)
{
	struct host_env *host = host_of(env);
	struct tern_list *node;

	ask_to_end(host);
	while (host->thread_count)
		pthread_join(host->threads[--host->thread_count], NULL);
	/* Nobody runs any more; what is left is dropped, not completed. */
	tern_list_init(&host->waiting);
	tern_list_init(&host->events);
	while ((node = tern_list_pop(&host->file_events)))
		free(tern_list_entry(node, struct tern_file_op, link)->data);
	host->event_count = 0;
}

void host_env_free(struct tern_env *env)
{
	struct host_env *host;

	if (!env)
		return;
	host_env_stop(env);
	host = host_of(env);
	pthread_cond_destroy(&host->file_cond);
	pthread_cond_destroy(&host->job_cond);
	pthread_mutex_destroy(&host->lock);
	free(host);
}
