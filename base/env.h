/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment: all code below the tools gets time, randomness, logging, files and
 * computation from here and from nowhere else. This lets the simulator run the real
 * protocol, server and client in virtual time, from a seed.
 *
 * One tern_env belongs to one context and is used on its thread. Tasks run elsewhere: on
 * threads of the tools (tools/host_env.c), or inline at a virtual cost in the simulator.
 * From submit until done() a task touches only memory that was handed to it.
 */
#ifndef TERN_BASE_ENV_H
#define TERN_BASE_ENV_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/uio.h>

#include <tern/log.h>

#include "base/list.h"

struct tern_env;

/* A computation. The caller owns it and keeps it in place until done() has run. */
struct tern_task {
	void (*run)(struct tern_task *task);  /* on a task thread; never blocks on I/O */
	void (*done)(struct tern_task *task); /* on the context's thread, after run() */
	/* Runs on the context's thread, some time after run() called
	 * tern_task_signal(). May be NULL. */
	void (*progress)(struct tern_task *task);
	struct tern_env *env; /* set by tern_env_submit */
	uint64_t cost_ns;     /* virtual time that run() takes in the simulator */
	/* Used by the environment. */
	struct tern_list node;
	atomic_uint signals;
};

enum tern_file_kind {
	TERN_FILE_READ, /* reads the whole file into memory */
	/* Writes a whole file: to a temporary file that is synced and renamed to
	 * `path`. */
	TERN_FILE_WRITE,
};

/* A file operation. The caller owns it, and what it points to, until done() has run. */
struct tern_file_op {
	enum tern_file_kind kind;
	const char *path;
	const struct iovec *parts; /* WRITE: the data, in order */
	int part_count;
	void (*done)(struct tern_file_op *op); /* on the context's thread */
	/* 0 or a negative errno; a failed write leaves no half-written file. */
	int status;
	/* READ: the bytes, from malloc(), with a NUL behind them; the caller frees
	 * them. */
	void *data;
	size_t bytes;          /* READ: number of bytes, without the NUL */
	struct tern_list node; /* used by the environment */
};

struct tern_env_ops {
	uint64_t (*now_ns)(struct tern_env *env); /* monotonic */
	/* A counter that is cheaper than the clock: while it has grown by less than
	 * TERN_TICKS_LULL, now_ns() has grown by a few microseconds at most, so a
	 * polling caller need not read the clock. NULL: there is no such counter. */
	uint64_t (*ticks)(struct tern_env *env);
	uint64_t (*random)(
		struct tern_env *env); /* unpredictable to peers; seeded in sim */
	void (*log)(struct tern_env *env, enum tern_log_level level, const char *line);
	/* Starts a task. Never blocks. -ENOTSUP: this environment has no task threads;
	 * -ECANCELED: they are being stopped. It has no other errors. */
	int (*submit)(struct tern_env *env, struct tern_task *task);
	void (*signal)(
		struct tern_env *env, struct tern_task *task); /* from run() only */
	/* Starts a file operation; errors as submit. */
	int (*file)(struct tern_env *env, struct tern_file_op *op);
	/* Runs the done() and progress() callbacks that are due. Returns how many. */
	int (*poll)(struct tern_env *env);
};

/* Limits log lines that anyone who can connect may cause: TERN_LOG_STRANGERS in 10 s,
 * then only their number. */
#define TERN_LOG_STRANGERS 8u
struct tern_log_ration {
	uint64_t until_ns;
	uint32_t left, dropped;
};

struct tern_env {
	const struct tern_env_ops *ops;
	/* Lines above this level are not formatted. DEFAULT: the level of the process,
	 * tern_log_set(). */
	enum tern_log_level log_level;
	/* Set by the context; called from any thread when poll() has something to do. */
	void (*wake)(void *arg);
	void *wake_arg;
	struct tern_log_ration strangers; /* starts zeroed */
};

/* The system's environment: time, randomness and logging, but no tasks and no files
 * (-ENOTSUP). It is for users of the library who only move tensors. Thread-safe,
 * shared, never freed. */
struct tern_env *tern_env_system(void);

static inline uint64_t tern_now_ns(struct tern_env *env)
{
	return env->ops->now_ns(env);
}

static inline uint64_t tern_random(struct tern_env *env)
{
	return env->ops->random(env);
}

static inline int tern_env_submit(struct tern_env *env, struct tern_task *task)
{
	task->env = env;
	return env->ops->submit(env, task);
}

static inline void tern_task_signal(struct tern_task *task)
{
	task->env->ops->signal(task->env, task);
}

static inline int tern_env_file(struct tern_env *env, struct tern_file_op *op)
{
	return env->ops->file(env, op);
}

static inline int tern_env_poll(struct tern_env *env)
{
	return env->ops->poll ? env->ops->poll(env) : 0;
}

/* Writes a line of at most 511 bytes to the environment's log. Unprintable bytes are
 * escaped (base/escape.h), so the logged line may have up to 1,023 bytes. */
void tern_log(struct tern_env *env, enum tern_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Logs a warning about a peer that has not completed its handshake. Since a port scan
 * must not fill the log, TERN_LOG_STRANGERS lines are logged in 10 s; the next line
 * after that says how many were left out. On the thread of the environment's context. */
void tern_log_stranger(struct tern_env *env, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
