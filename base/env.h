/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment: everything below the tools gets time, randomness, logging, files and
 * computation from here and from nowhere else. That is what lets the simulator run the
 * real protocol, server and client in virtual time, from a seed.
 *
 * One tern_env belongs to one context and is used on its thread. Jobs run elsewhere: on
 * threads that the tools own (tools/host_env.c), or inline at a virtual cost in the
 * simulator. A job touches only memory that was handed to it until its done() runs.
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

/* Computation. The caller owns it and keeps it in place until done() has run. */
struct tern_job {
	void (*run)(struct tern_job *job);  /* on a job thread; never blocks on I/O */
	void (*done)(struct tern_job *job); /* on the context's thread, after run() */
	void (*progress)(
		struct tern_job *job); /* on the context's thread, some time after
					  run() called tern_job_signal; may be NULL */
	struct tern_env *env;          /* set by tern_env_submit */
	uint64_t cost_ns; /* what run() costs in the simulator's virtual time */
	/* The environment's. */
	struct tern_list link;
	atomic_uint signals;
};

enum tern_file_kind {
	TERN_FILE_READ,  /* the whole file into memory */
	TERN_FILE_WRITE, /* a new file whole: written aside, synced, renamed over `path`
			  */
};

/* A file operation. The caller owns it and what it points to until done() has run. */
struct tern_file_op {
	enum tern_file_kind kind;
	const char *path;
	const struct iovec *parts; /* WRITE: what to write, in order */
	int part_count;
	void (*done)(struct tern_file_op *op); /* on the context's thread */
	int status; /* 0 or a negative errno; nothing half written */
	void *data; /* READ: the bytes, malloc'd, NUL-terminated; the caller frees them */
	size_t bytes;          /* READ: how many, without the NUL */
	struct tern_list link; /* the environment's */
};

struct tern_env_ops {
	uint64_t (*now_ns)(struct tern_env *env); /* monotonic */
	/* As long as this has grown by less than TERN_TICKS_LULL, now_ns() can only have
	 * grown by some microseconds, and nobody who polls need ask it. NULL: no such
	 * rule holds. */
	uint64_t (*ticks)(struct tern_env *env);
	uint64_t (*random)(
		struct tern_env *env); /* unpredictable to peers; seeded in sim */
	void (*log)(struct tern_env *env, enum tern_log_level level, const char *line);
	/* -ENOTSUP: this environment has no job threads; -ECANCELED: they are being
	 * stopped. Never blocks, never fails else. */
	int (*submit)(struct tern_env *env, struct tern_job *job);
	void (*signal)(struct tern_env *env, struct tern_job *job); /* from run() only */
	int (*file)(struct tern_env *env, struct tern_file_op *op); /* as submit */
	/* Runs done() and progress() of what happened since; how many. */
	int (*poll)(struct tern_env *env);
};

/* Lines that anybody can cause who can connect: so many in 10 s, then a count. */
#define TERN_LOG_STRANGERS 8u
struct tern_log_ration {
	uint64_t until_ns;
	uint32_t left, dropped;
};

struct tern_env {
	const struct tern_env_ops *ops;
	enum tern_log_level log_level; /* lines above it are not formatted; DEFAULT: the
					  process's, tern_log_set() */
	/* Set by the context: poll() has something to do. Called from any thread. */
	void (*wake)(void *arg);
	void *wake_arg;
	struct tern_log_ration strangers; /* starts zeroed */
};

/* Time, randomness and logging of the system; no jobs, no files: -ENOTSUP. For library
 * users who only move tensors. Thread-safe, shared, never freed. */
struct tern_env *tern_env_system(void);

static inline uint64_t tern_now_ns(struct tern_env *env)
{
	return env->ops->now_ns(env);
}

static inline uint64_t tern_random(struct tern_env *env)
{
	return env->ops->random(env);
}

static inline int tern_env_submit(struct tern_env *env, struct tern_job *job)
{
	job->env = env;
	return env->ops->submit(env, job);
}

static inline void tern_job_signal(struct tern_job *job)
{
	job->env->ops->signal(job->env, job);
}

static inline int tern_env_file(struct tern_env *env, struct tern_file_op *op)
{
	return env->ops->file(env, op);
}

static inline int tern_env_poll(struct tern_env *env)
{
	return env->ops->poll ? env->ops->poll(env) : 0;
}

/* Writes a line of at most 511 bytes to the environment's log: escaped (base/escape.h),
 * where bytes are not printable, it has at most 1,023. */
void tern_log(struct tern_env *env, enum tern_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* A warning about a peer that has not proved that it is one: a scan of ports must not
 * fill a log. TERN_LOG_STRANGERS lines in 10 s; the next one after them says how many
 * were left out. On the thread of the environment's context. */
void tern_log_stranger(struct tern_env *env, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
