/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment (struct tern_env) of a real process, unlike the simulator's: the
 * system's clock, randomness and log, threads that run tasks, and one thread for files.
 */
#ifndef TERN_TOOLS_HOST_ENV_H
#define TERN_TOOLS_HOST_ENV_H

#include <stdbool.h>

#include "base/env.h"

#define HOST_ENV_TASK_THREADS_MAX 64

struct host_env_opts {
	unsigned task_thread_count; /* threads that run tasks; 0 means one */
};

/* Makes an environment and starts its threads. opts may be NULL. -ENOMEM; -EAGAIN: no
 * more threads can be created. */
int host_env_new(const struct host_env_opts *opts, struct tern_env **out);

/*
 * Ends the threads. A running task is finished, a waiting task is dropped, and every
 * waiting file operation is executed, so that no file to be saved is lost. The done() of
 * these tasks and operations is not called, now or later. From now on the environment's
 * operations `submit` and `file` return -ECANCELED. The caller must not free tasks and
 * operations until this returns; env->wake must be callable until then. A second call
 * does nothing.
 */
void host_env_stop(struct tern_env *env);

/* First half of host_env_stop(), which must be called afterwards unless the process exits:
 * asks the threads to end, and waits at most `ms` milliseconds. False: a thread still
 * runs. */
bool host_env_ends(struct tern_env *env, unsigned ms);

/* Calls host_env_stop() first. NULL is allowed. */
void host_env_free(struct tern_env *env);

#endif
