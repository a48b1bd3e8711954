/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a server has in memory when its job goes back (opts.goes_back): its share of the
 * parameters, with the optimizer's state, at the step that it was at. Another server that is made
 * with it (opts.from_memory) need not read a snapshot. See memory.c.
 */
#ifndef TERN_SERVER_MEMORY_H
#define TERN_SERVER_MEMORY_H

#include "ps/blob.h"
#include "ps/job.h"
#include "ps/updater.h"

struct tern_server;

/* A chunk. All vectors are in host memory, from malloc(). */
struct tern_chunk_memory {
	uint64_t version; /* of w, of the optimizer's state, and of `skipped` */
	float *w;
	/* The parameters of version - 1 as workers pull them: float32, or bf16 if the chunk has versions
	 * rounded to bf16. NULL: they are not in memory. */
	void *previous;
	struct tern_updater_state state;
	/* By how many updates each tensor of the chunk was left out of; NULL: none was. */
	uint64_t *skipped;
};

struct tern_server_memory {
	struct tern_ps_job job;
	uint32_t index; /* of the server in the job */
	/* A random number that server 0 draws when a job begins its steps at step 0 or from a snapshot.
	 * The steps that go on from memory keep it, so that a version of a chunk was made once for a
	 * life. */
	uint64_t life;
	/* The lowest version of a chunk: the server can go on from it. That of the job's last step if
	 * the server has no chunks. */
	uint64_t step;
	/* Step of the newest snapshot that the process went on from or heard of; 0: none. */
	uint64_t snapshot_step;
	struct tern_blob blobs[TERN_BLOBS]; /* of server 0 */
	struct tern_chunk_memory *chunks;   /* in the order of the job's plan */
	uint32_t chunk_count;
};

/*
 * What the server has in memory, for opts.from_memory of the next server: copies of its chunks, or
 * what it was itself made with, if its steps have not begun. Called after the server has ended with
 * -EAGAIN and the threads of its environment have ended, and before tern_server_free(). The caller
 * owns *out. *out is NULL if the server has nothing that the job can go on from: it was made with
 * nothing and its steps have not begun, no step was made, another server lacks what belongs to it, or the
 * job goes on with other servers. -ENOMEM, or an error of a copy from the GPU.
 *
 * The copies take 4 * (2 + v) bytes for each parameter of the share, where v is the number of the
 * optimizer's state vectors. The former server's own memory is still there until it is freed.
 */
int tern_server_keep(struct tern_server *server, struct tern_server_memory **out);

void tern_server_memory_free(struct tern_server_memory *memory); /* NULL: does nothing */

#endif
