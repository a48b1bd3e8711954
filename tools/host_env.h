/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment of a real process: the system's clock, randomness and log, threads that
 * run tasks, and one thread for files. These are the only threads that Tern starts.
 */
#ifndef TERN_TOOLS_HOST_ENV_H
#define TERN_TOOLS_HOST_ENV_H

#include <stdbool.h>

#include "base/env.h"

#define HOST_ENV_TASK_THREADS_MAX 64

struct host_env_opts {
	unsigned task_thread_count; /* 0: one */
};

/* Makes an environment. opts may be NULL. -ENOMEM, -EAGAIN: no threads are available. */
int host_env_new(const struct host_env_opts *opts, struct tern_env **out);

/*
 * Ends the threads. A running task is finished, a waiting task is dropped, and every
 * waiting file operation is executed (so that nothing to be saved is lost). Their done()
 * is not called, now or later, and submit and file return -ECANCELED. Tasks and operations
 * must stay in place until this returns; env->wake must be callable until then. A second
 * call does nothing.
 */
void host_env_stop(struct tern_env *env);

/* First half of host_env_stop(), which must follow: asks the threads to end and waits
 * for at most `ms`. False: one of them still computes. */
bool host_env_ends(struct tern_env *env, unsigned ms);

/* Stops it first. NULL is allowed. */
void host_env_free(struct tern_env *env);

#endif
