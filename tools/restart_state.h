/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the two files behind restart.h share: restart.c (how often and when processes are
 * started again, and what becomes of servers and workers that were killed) and restart_followers.c
 * (followers: one takes the place of its server, and another one is started). */
#ifndef TERN_TOOLS_RESTART_STATE_H
#define TERN_TOOLS_RESTART_STATE_H

#include "tools/restart.h"

#define RESTART_AGAIN "it is started again"

/* ---- restart.c ---- */

/* Returns how many restarts of one process there may be in 10 minutes. */
uint64_t restart_most(const struct launch_settings *settings);
/* Counts a restart, and forgets those that are older than 10 minutes. False: there were `most` in
 * the last 10 minutes already, so the process must not be started again now. */
bool restart_count(struct tern_recent *restarts, uint64_t most);
/* As restart_count(), at a given time, for tests. */
bool restart_count_at(struct tern_recent *restarts, uint64_t most, uint64_t now_ns);
/* Returns the seconds to wait before the restart that was counted last: 0 for the first one in 10
 * minutes, 1 for the second, and twice as many for each further one, at most 32. */
unsigned restart_pause_s(const struct tern_recent *restarts);
/* Writes "it is started again in 2 s", with `what` as "it is started again", without a time if there
 * is no pause. */
void restart_describe_pause(
	const struct tern_recent *restarts, const char *what, char *text, size_t bytes);
/* Writes "(restart 1, at most 3 in 10 minutes)". */
void restart_describe_count(
	const struct tern_recent *restarts, uint64_t most, char *text, size_t bytes);
/* Reports the event "restart". `who` is the name of the process; NULL: all processes. `number` is
 * the number of its restarts in the last 10 minutes. */
void restart_tell(struct launch *l, const char *who, uint64_t number, const char *text);
/* Lets restart_turn() start a process again after its pause. */
void restart_plan(struct launch *l, unsigned number);
/* True if nobody needs another process any more, or this one is one of several ranks. */
bool restart_is_useless(const struct launch *l);

/* ---- restart_followers.c ---- */

/* Returns the number of the server whose follower this is. */
unsigned restart_server_of(const struct launch *l, const struct child *follower);
/* A server was killed. Its follower takes its place, if it has all of the server's share. Another
 * follower is started in the place of the killed process. False: the server has no such follower. */
bool restart_promote(struct launch *l, unsigned index);
/* A follower has begun as the server. The former server is killed, if it still runs: it would wait for
 * its job when all others have ended. restart_follower() sees to another follower then. */
void restart_settle_took_over(struct launch *l, unsigned index);
/* Ends a follower that lacks a part of what its server had. It is started again when another server
 * listens. */
void restart_dismiss(struct launch *l, unsigned index);

#endif
