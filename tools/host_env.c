/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs tasks and file operations on threads.
 *
 *     submit -> waiting -> [task thread: run] -> events -> [poll: progress, done]
 *     file   -> files   -> [file thread]     -> file_events -> [poll: done]
 *
 * One mutex protects the four lists, and the fields `node` and `signals` of every task in
 * them. It is held for a few instructions only, never during run() or a system call on a
 * file. Tasks and operations take milliseconds, so lock-free queues would gain nothing.
 * The operation poll is called in a tight loop, so it first reads an atomic count of
 * events without the lock.
 *
 * A task is in the list `events` at most once: a further signal only sets a bit in
 * task->signals. poll() removes a task together with its bits, so a task that is still
 * running may be queued again as soon as the lock is released.
 */
#include "tools/host_env.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "base/clock.h"
#include "tools/host_file.h"
#include "tools/stack.h"

enum {
	TASK_SIGNALLED = 1,
	TASK_FINISHED = 2,
};

struct host_env {
	struct tern_env env;
	struct host_env_opts opts;
	pthread_mutex_t lock;
	pthread_cond_t task_cond, file_cond;
	struct tern_list waiting, events, files, file_events;
	/* number of entries in `events` and `file_events`; written under the lock */
	atomic_uint event_count;
	bool stopping;
	atomic_uint ended_count;
	unsigned thread_count; /* threads started; threads[0] is the file thread */
	pthread_t threads[HOST_ENV_TASK_THREADS_MAX + 1];
};

static struct host_env *host_of(struct tern_env *env)
{
	return tern_container_of(env, struct host_env, env);
}

/* Sets an event bit of a task and queues the task for poll(). The caller holds the
 * lock. */
static void task_event(struct host_env *host, struct tern_task *task, unsigned bit)
{
	if (!task->signals) {
		tern_list_push(&host->events, &task->node);
		host->event_count++;
	}
	task->signals |= bit;
}

static void wake(struct host_env *host)
{
	if (host->env.wake)
		host->env.wake(host->env.wake_arg);
}

/* ---- threads ---- */

static void *task_thread(void *arg)
{
	struct host_env *host = arg;

	pthread_mutex_lock(&host->lock);
	for (;;) {
		struct tern_task *task;

		while (!host->stopping && tern_list_empty(&host->waiting))
			pthread_cond_wait(&host->task_cond, &host->lock);
		if (host->stopping)
			break;
		task = tern_list_entry(
			tern_list_pop(&host->waiting), struct tern_task, node);
		pthread_mutex_unlock(&host->lock);
		task->run(task);
		pthread_mutex_lock(&host->lock);
		task_event(host, task, TASK_FINISHED);
		pthread_mutex_unlock(&host->lock);
		/* `task` may be freed by now, since poll() may have called its done(). */
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
			tern_list_pop(&host->files), struct tern_file_op, node);
		pthread_mutex_unlock(&host->lock);
		host_file_run(op);
		pthread_mutex_lock(&host->lock);
		tern_list_push(&host->file_events, &op->node);
		host->event_count++;
		pthread_mutex_unlock(&host->lock);
		wake(host);
		pthread_mutex_lock(&host->lock);
	}
	pthread_mutex_unlock(&host->lock);
	atomic_fetch_add(&host->ended_count, 1);
	return NULL;
}

/* ---- the operations of struct tern_env ---- */

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

static int host_submit(struct tern_env *env, struct tern_task *task)
{
	struct host_env *host = host_of(env);
	int r = 0;

	pthread_mutex_lock(&host->lock);
	if (host->stopping) {
		r = -ECANCELED;
	} else {
		task->signals = 0;
		tern_list_push(&host->waiting, &task->node);
		pthread_cond_signal(&host->task_cond);
	}
	pthread_mutex_unlock(&host->lock);
	return r;
}

static void host_signal(struct tern_env *env, struct tern_task *task)
{
	struct host_env *host = host_of(env);

	pthread_mutex_lock(&host->lock);
	task_event(host, task, TASK_SIGNALLED);
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
		tern_list_push(&host->files, &op->node);
		pthread_cond_signal(&host->file_cond);
	}
	pthread_mutex_unlock(&host->lock);
	return r;
}

/* Removes the first entry of `events` or `file_events`. NULL: the list is empty. The
 * caller holds the lock. */
static struct tern_list *take(struct host_env *host, struct tern_list *from)
{
	struct tern_list *node = tern_list_pop(from);

	if (node)
		host->event_count--;
	return node;
}

static int poll_tasks(struct host_env *host)
{
	struct tern_list *node;
	int n = 0;

	for (;; n++) {
		struct tern_task *task;
		unsigned bits;

		pthread_mutex_lock(&host->lock);
		node = take(host, &host->events);
		task = node ? tern_list_entry(node, struct tern_task, node) : NULL;
		bits = task ? atomic_exchange(&task->signals, 0) : 0;
		pthread_mutex_unlock(&host->lock);
		if (!task)
			return n;
		if ((bits & TASK_SIGNALLED) && task->progress)
			task->progress(task);
		if (bits & TASK_FINISHED)
			task->done(task);
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
		op = tern_list_entry(node, struct tern_file_op, node);
		op->done(op);
	}
}

static int host_poll(struct tern_env *env)
{
	struct host_env *host = host_of(env);
	int n;

	if (!atomic_load_explicit(&host->event_count, memory_order_relaxed))
		return 0;
	n = poll_tasks(host);
	return n + poll_files(host);
}

/* ---- creating, stopping and freeing the environment ---- */

static int start_threads(struct host_env *host, const pthread_attr_t *attr)
{
	unsigned tasks = host->opts.task_thread_count ? host->opts.task_thread_count : 1;

	tern_assert(tasks <= HOST_ENV_TASK_THREADS_MAX);
	for (unsigned i = 0; i <= tasks; i++) {
		int r = pthread_create(
			&host->threads[i], attr, i ? task_thread : file_thread, host);

		if (r)
			return -r;
		host->thread_count++;
	}
	return 0;
}

/* Starts all threads with a stack of at least STACK_BYTES. The default size is the
 * main thread's stack limit at the start of the process (ulimit -s), which may be too
 * small. */
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
	pthread_cond_init(&host->task_cond, NULL);
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
	pthread_cond_broadcast(&host->task_cond);
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
	/* All threads have ended. The remaining entries are dropped without calling
	 * done(). */
	tern_list_init(&host->waiting);
	tern_list_init(&host->events);
	while ((node = tern_list_pop(&host->file_events)))
		free(TERN_TAKE(tern_list_entry(node, struct tern_file_op, node)->data));
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
	pthread_cond_destroy(&host->task_cond);
	pthread_mutex_destroy(&host->lock);
	free(host);
}
