/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots, for the rest of the server. snapshot_state.h has what their files share. */
#ifndef TERN_SERVER_SNAPSHOTS_H
#define TERN_SERVER_SNAPSHOTS_H

#include "server/server_state.h"

/* snapshot.c: called before the task that updates the chunk, in it, and after it. */
void snapshot_before_update(struct chunk *c);
void snapshot_in_update(struct chunk *c);
void snapshot_after_update(struct chunk *c);

/* snapshots.c */
/* True if the options of this server ask for snapshots. */
static inline bool snapshots_are_taken(const struct tern_server *s)
{
	return s->opts.snapshots.directory || s->opts.snapshots.via;
}
int snapshots_init(struct tern_server *s);
void snapshots_fini(struct tern_server *s);
void snapshots_start(struct tern_server *s); /* the steps begin */
void snapshots_end(struct tern_server *s); /* the server ends: no further one is begun */
void snapshots_step_made(const struct chunk *c); /* the chunk has its next version */
/* Server 0, async: no live worker has a step left. */
void snapshots_all_done(struct tern_server *s);
/* A snapshot is wanted now. */
void snapshots_ask(struct tern_server *s);
/* Server 0: the same, but one that is being taken already does not count. */
void snapshots_ask_anew(struct tern_server *s);
/* Server 0: when the last snapshot was begun; 0: it has failed. */
uint64_t snapshots_last_begun_ns(const struct tern_server *s);
/* True if the job is done, but for a snapshot: the server must not end yet. */
bool snapshots_hold_end(const struct tern_server *s);
void snapshots_on_begin(struct server_peer *zero, const json_t *message);
void snapshots_on_report(struct server_peer *server, const json_t *message);
void snapshots_on_lost(struct tern_server *s, uint32_t server);

/* resume.c */
int resume_init(struct tern_server *s);
void resume_fini(struct tern_server *s);
bool resume_is_searching(const struct tern_server *s);
bool resume_is_loading(const struct tern_server *s);
/* True if the job cannot go on from the snapshot; why->text says why. */
bool resume_differs(struct tern_server *s, const struct tern_ps_job *job, const char *who,
	struct tern_ps_text *why);
/* True if the job goes back, and the snapshot that this server has found is of another job than the worker's,
 * which has been in a job; why->text is for users. */
bool resume_is_foreign(struct server_peer *worker, const struct tern_ps_job *job,
	struct tern_ps_text *why);
/* Loads the values of this server's chunks, and calls shard_loaded(), perhaps in this call.
 * False: the job begins at step 0. */
bool resume_load(struct tern_server *s);
/* The step with which the worker begins: in sync mode the job's first version, in async mode the
 * number of its steps that all chunks have. */
uint64_t resume_step_of(const struct tern_server *s, uint32_t worker);

#endif
