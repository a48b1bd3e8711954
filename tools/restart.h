/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting a job again. When a server was killed, or the last worker, a launcher starts all
 * processes anew, and the servers go on from the newest snapshot. In sync mode the bytes of the
 * result are those of a job that was not killed.
 */
#ifndef TERN_TOOLS_RESTART_H
#define TERN_TOOLS_RESTART_H

#include "tools/launch.h"

struct restarts {
	uint64_t count, last_ns; /* in the last 10 minutes; time of the last one */
};

/* True if the job is to be started again, because of `cause`: it takes snapshots, and has not
 * been started again too often. The user was told, and settings->snapshots.resume is what the
 * servers need. The caller ends what is left of the job, and calls restart_pause(). */
bool restart_is_due(struct launch *l, struct launch_settings *settings,
	struct restarts *restarts, const char *cause);

/* Waits for a second, and twice as long each further time. Signals have their default
 * actions. */
void restart_pause(const struct restarts *restarts);

#endif
