/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots (ps/snapshot.h), between the files that take them (those of servers without a directory
 * are in store.h):
 *
 *     snapshot.c   this server's part: copies of the chunks, and the file
 *     snapshots.c  server 0: when snapshots are taken, and what the servers report
 *     snapshots_publish.c  server 0: the manifest, and removing what is not needed
 *     cut.c        in async mode: which gradients a snapshot has
 *     resume.c     loading one, before the steps
 *
 *     server 0:  IDLE --due--> TAKING --all parts are written--> PUBLISHING --> CLEANING --> IDLE
 *                                |                                                 ^
 *                                +--a server has failed, or heard of it too late --+
 *
 * Sync mode: server 0 names a step that is to come (after the last step, that one). When a chunk
 * comes to that step, the task that has updated it copies it before the next update can begin. So
 * the copies of all servers are of the same step, and training goes on while they are written. A
 * server holds at most one copy of its share.
 *
 * Async mode: there is no step that all chunks come to, so the servers agree on one number of steps
 * for each worker (cut.h). The step of such a snapshot is the sum of the numbers of steps that some chunk
 * has. They differ from the numbers of steps that all chunks have only if a step is torn.
 */
#ifndef TERN_SERVER_SNAPSHOT_STATE_H
#define TERN_SERVER_SNAPSHOT_STATE_H

#include "base/digest.h"
#include "ps/snapshot.h"
#include "server/cut.h"
#include "server/snapshots.h"

/* A chunk as it was at the end of the snapshot's step. The task of the chunk makes it. */
struct chunk_copy {
	float *w;
	struct tern_updater_state state;
	uint64_t *skipped; /* skip.c; NULL: every update was of all tensors */
	uint32_t tensor_count;
	/* async: by worker, how many of its steps the copy has; and whether it is made, or being
	 * made. Sync mode: NULL. */
	uint64_t *applied;
	bool begun;
	int status;
};

enum snapshots_state {
	SNAPSHOTS_IDLE,
	SNAPSHOTS_TAKING,
	SNAPSHOTS_PUBLISHING,
	SNAPSHOTS_CLEANING,
};

struct snapshots {
	struct tern_server *server;
	/* The snapshot that this server takes part in, or did last. */
	struct tern_snapshot_id id;

	struct cut cut; /* async */

	/* snapshot.c */
	bool taking;         /* this server's part is not written yet */
	uint32_t left_count; /* chunks that were not copied yet */
	struct iovec *iov;   /* the part: its header and vectors */
	uint32_t vector_count;
	uint64_t bytes, digest;
	char *path;
	struct tern_digest_stream stream;
	uint32_t digested_count; /* vectors of `iov` that the digest has */
	struct tern_task task;   /* computes the digest */
	struct tern_file_op op;

	struct remote_part *sending; /* remote_part.c; NULL: nothing was sent yet */
	struct store_part *
		*arriving; /* store_part.c, on server 0, by server; NULL: none yet */

	/* snapshots.c */
	enum snapshots_state state;
	struct tern_snapshot_part *parts; /* by server: what they have reported */
	bool *reported;
	uint32_t missing_count;
	bool failed, late;
	struct tern_blob blob; /* of the job, for the snapshot (blobs.c) */
	char why[300];         /* if failed: the first reason */
	uint64_t newest;       /* version of a chunk of server 0 */
	uint32_t done_count;   /* chunks of server 0 with the last version */
	/* How many steps ahead of server 0 the step of a snapshot is, at least. */
	uint64_t margin;
	uint64_t begun_ns, last_step; /* last_step: of the last one that was begun */
	bool asked;                   /* one is due as soon as none is being taken */
	bool on_request;              /* the present one was due so */
	bool final; /* that of the last step was begun, or can never be */
	struct tern_timer timer;
	struct tern_timer slow_timer; /* a line says what a snapshot waits for */

	/* snapshots_publish.c */
	bool owned;    /* the directory has this job's number (history->snapshot_owner) */
	bool disowned; /* it has another job's */
	char owner[20]; /* while it is written: the number of this job */
	char *manifest, *manifest_path, *zero_path;
	struct iovec zero_part;
	struct tern_file_op zero_op;
	char **stale; /* names of files to be removed */
	size_t stale_count;
};

/* snapshot.c */
/* Takes part in the snapshot `id`: copies each chunk when it comes to the step, and then
 * writes the part. The result is reported by snapshots_report(), perhaps in this call. */
void snapshot_take(struct tern_server *s, struct tern_snapshot_id id);
void snapshot_drop_copies(struct tern_server *s);
/* Async: copies the chunk before it applies the next gradient. */
void snapshot_copy_between(struct chunk *c);

/* snapshots.c */
/* A server's part was written (status 0), or was not: `why` says so. late: the server had
 * passed the step. */
struct snapshot_report {
	struct tern_snapshot_id id;
	uint64_t bytes, digest;
	const uint64_t *least; /* async: by worker (struct cut) */
	bool late;
	const char *why; /* NULL: the part is written */
};
void snapshots_report(struct tern_server *s, const struct snapshot_report *report);
/* True if server 0 has told the others to write their parts. */
bool snapshots_is_announced(const struct snapshots *n);
/* Changes the state, by an edge of the diagram. */
void snapshots_enter(struct snapshots *n, enum snapshots_state next);
void snapshots_tell(struct tern_server *s); /* calls opts.snapshot() */
/* A new blob is here, which the snapshot that is being taken may need. */
void snapshots_take_blob(struct tern_server *s, const struct tern_blob *blob);
void snapshots_cleaned(struct tern_server *s);

/* snapshots_publish.c */
void snapshots_publish(struct tern_server *s);
/* Removes what is not needed, and calls snapshots_cleaned(). */
void snapshots_clean(struct tern_server *s);

#endif
