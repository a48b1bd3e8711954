/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting what was killed again, in sync mode: the bytes of the result are those of a job that
 * was not killed. A worker alone is started while the others go on. When a server was killed,
 * or the last worker, all processes are started anew, and the servers go on from the newest
 * snapshot.
 */
#ifndef TERN_TOOLS_RESTART_H
#define TERN_TOOLS_RESTART_H

#include "tools/launch.h"

/* True if the job is to be started again, because of `cause`: it takes snapshots, and has not
 * been started again too often. The user was told, and settings->snapshots.resume is what the
 * servers need. The caller ends what is left of the job, and calls restart_pause(). */
bool restart_is_due(struct launch *l, struct launch_settings *settings,
	struct restarts *restarts, const char *cause);

/* Waits for a second, and twice as long each further time. Signals have their default
 * actions. */
void restart_pause(const struct restarts *restarts);

/* True if the worker was killed, server 0 has lost it and others go on: then launch_turn() will
 * start it again, and text gets ", and it is started again in ...". In async mode the servers
 * refuse it then, in words. */
bool restart_worker(struct launch *l, const struct child *c, char *text, size_t bytes);

/* A server has lost the worker. If its end was told before that, it may be started again now. */
void restart_late(struct launch *l, const struct child *c);

/* Starts workers again whose time has come. Called by launch_turn(). */
void restart_workers(struct launch *l);

#endif
