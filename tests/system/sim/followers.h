/* SPDX-License-Identifier: Apache-2.0 */
/* Followers of a simulated job's servers (server/follower.h). */
#ifndef TERN_TESTS_SYSTEM_SIM_FOLLOWERS_H
#define TERN_TESTS_SYSTEM_SIM_FOLLOWERS_H

#include "tests/system/sim/job.h"

/* Called at each instant: starts followers, lets some of them fall or stand still, makes servers of those
 * whose servers are lost, and checks what complete ones have. */
void followers_tend(struct job *j);
/* The server is about to be lost: the job may make steps again only if no complete follower has what
 * it has. */
void followers_on_loss(struct job *j, const struct member *server);
/* True if the server is to live for now: most servers fall when they have complete followers. */
bool followers_spare(const struct job *j, const struct member *server);
/* True if a follower is about to come in the place of this server, so that nobody starts it. */
bool followers_replace(const struct job *j, const struct member *server);
/* True if a follower is about to come in the place of a lost server. A user starts no worker then, whose
 * list of servers would be an old one. */
bool followers_wait(const struct job *j);
void followers_finish(struct job *j);

#endif
