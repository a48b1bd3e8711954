/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated user: code outside of the library that computes gradients, without tasks
 * and threads, in the way that client/compute.h allows. It takes its time, says what is
 * final in random pieces and in a random order, fails or hangs in the middle of a slot,
 * and goes on with a slot that was revoked. Its gradients count records (ledger.h).
 */
#ifndef TERN_TESTS_SYSTEM_SIM_USER_H
#define TERN_TESTS_SYSTEM_SIM_USER_H

#include "client/compute.h"
#include "tests/system/sim/job.h"

struct user;

/* Makes the user of a worker, whose context exists already. If the user finds that the
 * worker breaks a promise of client/compute.h, it sets j->broken. */
struct user *user_new(struct job *j, struct member *m);
struct tern_computer *user_computer(struct user *u);
/* Frees the user, after the worker's context. NULL is allowed. */
void user_free(struct user *u);

#endif
