/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment of a context. All code below the tools gets time, randomness, logging,
 * files and computation from an environment and from nowhere else. This lets the
 * simulator run the real protocol, server and client in virtual time, from a seed.
 *
 * One tern_env belongs to one context and is used on that context's thread; only
 * tern_env_system() is shared. Tasks (computations) run on worker threads of the tools
 * (tools/host_env.c); the simulator runs them inline and gives them a duration in virtual
 * time. From submit until done(), a task touches only memory that was handed to it.
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

/* A computation that runs apart from the context's thread. The caller owns the structure
 * and keeps it in place until done() has run. */
struct tern_task {
	void (*run)(struct tern_task *task);  /* on a task thread; never blocks on I/O */
	void (*done)(struct tern_task *task); /* on the context's thread, after run() */
	/* Runs on the context's thread, some time after run() has called
	 * tern_task_signal(). May be NULL. */
	void (*progress)(struct tern_task *task);
	struct tern_env *env; /* set by tern_env_submit */
	uint64_t cost_ns;     /* virtual time that run() takes in the simulator */
	/* Private to the environment. */
	struct tern_list node;
	atomic_uint signals;
};

enum tern_file_kind {
	TERN_FILE_READ, /* reads the whole file into memory */
	/* Writes a whole file: to a temporary file that is synced and renamed to
	 * `path`. The directory is synced, too: the new file survives a power failure. */
	TERN_FILE_WRITE,
	TERN_FILE_LIST,   /* the names in the directory `path` */
	TERN_FILE_REMOVE, /* removes a file, and syncs its directory */
	/* Reads at most `most` bytes from byte `at` on. */
	TERN_FILE_READ_PIECE,
	/* Appends to a file that has `at` bytes; at 0: makes the file, which must not exist. The
	 * bytes are not synced, and a failure may leave some of them. */
	TERN_FILE_WRITE_PIECE,
	/* Syncs the file `path`, renames it to `to`, in the same directory, and syncs that. */
	TERN_FILE_PUBLISH,
};

/* A file operation. The caller owns the structure, and what it points to, until done()
 * has run. */
struct tern_file_op {
	enum tern_file_kind kind;
	const char *path;
	const struct iovec *parts; /* WRITE and WRITE_PIECE: the data, in this order */
	int part_count;
	const char *to;                        /* PUBLISH */
	uint64_t at, most;                     /* READ_PIECE, WRITE_PIECE */
	void (*done)(struct tern_file_op *op); /* on the context's thread */
	/* Result: 0 or a negative errno. A failed write leaves no half-written file. A
	 * process that is killed while it writes may leave a temporary file, with a name
	 * that begins with a dot. */
	int status;
	/* READ, READ_PIECE: the bytes, followed by a NUL; LIST: the names, in any order, without
	 * "." and "..", each followed by a NUL. In memory from malloc(), which the caller frees. */
	void *data;
	size_t bytes; /* READ, READ_PIECE: number of bytes, without the NUL; LIST: of all names */
	uint64_t all;          /* READ_PIECE: size of the file */
	struct tern_list node; /* private to the environment */
};

struct tern_env_ops {
	uint64_t (*now_ns)(struct tern_env *env); /* monotonic time */
	/* Reads a counter, which is cheaper than the clock. While the counter has grown
	 * by less than TERN_TICKS_LULL, now_ns() has grown by a few microseconds at most,
	 * so a polling caller need not read the clock. NULL: there is no such counter. */
	uint64_t (*ticks)(struct tern_env *env);
	/* A random number that peers cannot predict; in the simulator it follows from
	 * the seed. */
	uint64_t (*random)(struct tern_env *env);
	void (*log)(struct tern_env *env, enum tern_log_level level, const char *line);
	/* Starts a task. Never blocks. -ENOTSUP: this environment has no worker threads;
	 * -ECANCELED: they are being stopped. There are no other errors. */
	int (*submit)(struct tern_env *env, struct tern_task *task);
	/* Requests a call of the task's progress(). Called only from its run(). */
	void (*signal)(struct tern_env *env, struct tern_task *task);
	/* Starts a file operation. Returns the same errors as submit(). */
	int (*file)(struct tern_env *env, struct tern_file_op *op);
	/* Runs the done() and progress() callbacks of tasks and file operations that are
	 * due. Returns how many. NULL: the environment has no tasks and no files. */
	int (*poll)(struct tern_env *env);
};

/* Limits the log lines that strangers (anyone who can connect) may cause: `left` more
 * lines until `until_ns`; `dropped` counts those that were left out. See
 * tern_log_stranger(). */
#define TERN_LOG_STRANGERS 8u
struct tern_log_ration {
	uint64_t until_ns;
	uint32_t left, dropped;
};

struct tern_env {
	const struct tern_env_ops *ops;
	/* Lines above this level are neither formatted nor logged. DEFAULT: the level of
	 * the process, tern_log_set(). */
	enum tern_log_level log_level;
	/* Callback that makes the context call poll(). The context sets it; the
	 * environment may call it from any thread. */
	void (*wake)(void *arg);
	void *wake_arg;
	struct tern_log_ration strangers;
};

/* The environment of programs that only move tensors: it has time, randomness and logging
 * of the system, but no tasks and no files (-ENOTSUP). It is shared by all threads and
 * never freed. */
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

/* Logs one line of at most 511 bytes. Unprintable bytes are escaped (base/escape.h), so
 * the logged line may have up to 1,023 bytes. */
void tern_log(struct tern_env *env, enum tern_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Logs a warning about a peer that may be anybody: it has not completed its handshake, or
 * there is no cluster secret. Since a port scan must not fill the log, at most
 * TERN_LOG_STRANGERS lines are logged in 10 s; the first call after these 10 s also logs
 * how many were left out. Call it only on the thread of the environment's context. */
void tern_log_stranger(struct tern_env *env, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
