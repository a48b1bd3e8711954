/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment of a real process: the system's clock, randomness and log, threads that
 * run jobs, and one thread that does files. These are the only threads Tern ever starts.
 */
#ifndef TERN_TOOLS_HOST_ENV_H
#define TERN_TOOLS_HOST_ENV_H

#include <stdbool.h>

#include "base/env.h"

#define HOST_ENV_JOB_THREADS_MAX 64

struct host_env_opts {
	unsigned job_thread_count; /* 0: one */
};

/* opts may be NULL. -ENOMEM, -EAGAIN: no threads to be had. */
int host_env_new(const struct host_env_opts *opts, struct tern_env **out);

/*
 * Ends the threads: a job that is running is finished, one that waits is dropped, every
 * file operation that waits is carried out (what was to be saved is saved). No done() of
 * theirs is called then or later, and submit and file return -ECANCELED. Jobs and
 * operations must be in place until this returns; env->wake must be callable until then.
 * Twice is harmless.
 */
void host_env_stop(struct tern_env *env);

/* As the first half of host_env_stop(), which is to follow: asks the threads to end and
 * waits for at most `ms`. False: one of them still computes. */
bool host_env_ends(struct tern_env *env, unsigned ms);

/* Stops it first. NULL is allowed. */
void host_env_free(struct tern_env *env);

#endif
