/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting what was killed again, in sync mode: the bytes of the result are those of a job that
 * was not killed.
 *
 *     killed                           what is started again
 *     a worker, others go on           this worker
 *     a server, or the last worker     with opts.goes_back these processes only: all others stay,
 *                                      and go back to the newest snapshot (server/back.c); else
 *                                      all processes
 *     a server with a follower         its follower takes its place (server/follower.h), all go on
 *                                      from memory, and another follower is started
 *     a follower                       this follower
 *
 * A follower may have taken the place of a server that hangs, or whose end is not seen yet. Then the
 * former process is killed, and another follower is started.
 *
 * A follower that lacks a part of its server's share, since it was started a moment ago, takes no
 * place: it is ended and started again with the server.
 *
 * A server that is started again must be found by the workers. Its new address is told to them by
 * a server that they know: one that still runs and with which the steps have begun. Without such
 * a server it listens at its former address. Over shm an address belongs to one process, so
 * there the job cannot go on in place then, and all processes are started again.
 *
 * A server that is started again gets the newest list of the job's servers (job_view.h). If all processes
 * were killed at once, no other one knows which servers an operator has removed.
 */
#ifndef TERN_TOOLS_RESTART_H
#define TERN_TOOLS_RESTART_H

#include "tools/launch.h"

/* True if a job of these settings may be started again after a server was killed. */
bool restart_is_wanted(const struct launch_settings *settings);

/* True if all processes are to be started again, because of `cause`: the job takes snapshots, and
 * nothing has been started again too often. The user was told, and settings->snapshots.resume is
 * what the servers need. The caller ends what is left of the job, and calls restart_pause(). */
bool restart_is_due(struct launch *l, struct launch_settings *settings,
	struct tern_recent *restarts, const char *cause);

/* Waits before all processes are started again: not before the first restart in 10 minutes, 1 s
 * before the second, and twice as long before each further one, at most 32 s. Each process that is
 * started again alone has the same pauses. Signals have their default actions meanwhile. */
void restart_pause(const struct tern_recent *restarts);

/* A process has ended. True if it was killed and the job goes on in place with another one, so the
 * job has not failed: restart_turn() sees to it, and sets l->stranded if that cannot be. */
bool restart_takes(struct launch *l, const struct child *c);

/* True if the process is a server that has ended before it listened again, since another program
 * has its former port, say. All processes may be started again then. */
bool restart_has_failed(const struct launch *l, const struct child *c);

/* True if the worker was killed, server 0 has lost it and others go on: then launch_turn() will
 * start it again, and text gets ", and it is started again (...)". In async mode the servers
 * refuse it then, in words. */
bool restart_worker(struct launch *l, const struct child *c, char *text, size_t bytes);

/* Starts the follower of a server. */
void restart_start_follower(struct launch *l, unsigned index);

/* A follower says that it has begun: it is the server now. restart_turn() exchanges the two
 * processes. */
void restart_took_over(struct launch *l, const struct child *c);

/* A follower has ended. It is started again when its server is there, unless the job ends, or that
 * happens too often: the job goes on in any case. */
void restart_follower(struct launch *l, const struct child *c);

/* A server has lost the worker. If its end was told before that, it may be started again now. */
void restart_late(struct launch *l, const struct child *c);

/* True if a server or a worker is to be started again, or restart_turn() is to decide that. No end of
 * a job waits for a follower. */
bool restart_is_pending(const struct launch *l);

/* True if a server is to be started again, or its loss is not decided yet. */
bool restart_server_is_pending(const struct launch *l);

/* Kills servers that were started again and do not listen yet, if the newest list (l->view) does not have
 * them any more: they would join the job as new servers. */
void restart_end_removed(struct launch *l);

/* Decides about processes that were killed, and starts those whose time has come. Called by
 * launch_turn(). */
void restart_turn(struct launch *l);

#endif
