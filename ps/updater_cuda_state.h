/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations shared by the two files of the CUDA updater: updater_cuda.c makes and
 * frees the updater and its chunks, updater_cuda_batch.c does the arithmetic. */
#ifndef TERN_PS_UPDATER_CUDA_STATE_H
#define TERN_PS_UPDATER_CUDA_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/cuda_context.h"
#include "base/list.h"
#include "kernels/cuda/table.h"
#include "ps/updater.h"

#define CUDA_LANES     3u
#define CUDA_BATCH_MAX 32u /* calls of one batch */

/* A lane: a CUDA stream, with the memory that one batch of calls needs. */
struct cuda_lane {
	CUstream stream;
	CUevent ended; /* recorded at the end of a batch */
	struct tern_cuda_kernels *kernels;
	/* Device memory of room_count floats, to which the gradients of a launch are
	 * copied, and which has their partial sums. */
	float *rooms;
	uint64_t rooms_used;  /* floats of `rooms` in use until the next launch */
	double *squares;      /* device memory: [CUDA_BATCH_MAX] */
	double *host_squares; /* page-locked: [CUDA_BATCH_MAX] */
	bool busy;            /* a batch is running in this lane */
};

struct cuda_updater {
	struct tern_updater updater;
	/* Protects all members below, except the members of a lane whose `busy` is set:
	 * these (but not `busy`), and the chunks of its batch, belong to the thread that
	 * runs the batch and calls the driver without the lock. */
	pthread_mutex_t lock;
	pthread_cond_t lane_free;
	unsigned resizers; /* threads that are replacing the rooms: no batch may begin */
	struct tern_cuda_context gpu;
	/* First error of a driver call since the thread that holds the lock took it. The
	 * calls of a batch have a status of their own. */
	int status;
	char note[400];
	atomic_bool has_note; /* `note` has a text; read without the lock, as a hint */
	bool pageable;        /* page-locking has failed, and the failure was noted */

	struct tern_list waiting; /* calls that no batch has taken yet, in order */
	struct cuda_lane lanes[CUDA_LANES];
	/* Memory of which each lane has a part: cuda_lane.squares, rooms, host_squares. */
	CUdeviceptr squares, rooms;
	double *host_squares;
	uint64_t room_count; /* size of the rooms of one lane, in floats */
	/* Size of the rooms, in floats, that one launch with all chunks made so far would
	 * need, at most ROOMS_SHARED bytes (updater_cuda.c). Not reduced when a chunk is
	 * freed, but when no memory is left for larger rooms. */
	uint64_t rooms_wanted;
	uint64_t bytes; /* device memory held, without the workspaces of the kernels */
};

struct cuda_chunk {
	struct tern_updater_chunk chunk;
	CUdeviceptr memory;
	uint64_t bytes;
	float *w; /* device copy of the parameters; NULL: opts.on_device is set */
	float *m, *v, *mean; /* device memory; NULL if not used */
	bool holds;          /* w has the result of the last update */
};

static inline struct cuda_updater *cuda_updater_of(struct tern_updater *u)
{
	return tern_container_of(u, struct cuda_updater, updater);
}

static inline struct cuda_chunk *cuda_updater_chunk_of(struct tern_updater_chunk *c)
{
	return tern_container_of(c, struct cuda_chunk, chunk);
}

/* Calls the driver, unless an earlier call has failed. */
#define UPDATER_DO(u, call, what)                                                        \
	((u)->status == 0                                                                \
			? (void)((u)->status = tern_cuda_check(&(u)->gpu, (call), what)) \
			: (void)0)

/* Takes the lock and enters the CUDA context. If that fails, returns false, with the
 * error in u->status. cuda_updater_leave() must be called in both cases. */
bool cuda_updater_enter(struct cuda_updater *u);
/* Leaves the context if `entered`, and releases the lock. Returns u->status; after a
 * failure its reason is copied to `error`, which is as large as u->gpu.error, or NULL. */
int cuda_updater_leave(struct cuda_updater *u, bool entered, char *error);

/* Wakes the thread of the first waiting call, if a lane is free. */
void cuda_updater_wake(struct cuda_updater *u);

/* Size of a lane's rooms, in floats, that one call needs for a chunk with these options
 * and this number of gradients. */
uint64_t cuda_updater_rooms(
	const struct tern_updater_opts *opts, unsigned gradient_count);

int cuda_updater_update(struct tern_updater *u, struct tern_updater_chunk *c,
	const struct tern_updater_step *step);
int cuda_updater_sum(struct tern_updater *u, struct tern_updater_chunk *c,
	const float *const *gradients, unsigned gradient_count, float scale,
	double *squares);
int cuda_updater_fold(struct tern_updater *u, struct tern_updater_chunk *c,
	float *const *places, uint32_t gradient_count, uint32_t folded);
int cuda_updater_copy(struct tern_updater *u, struct tern_updater_chunk *c, float *to,
	const float *from);
int cuda_updater_get_state(struct tern_updater *u, struct tern_updater_chunk *c,
	const struct tern_updater_state *to);
int cuda_updater_set_state(struct tern_updater *u, struct tern_updater_chunk *c,
	const struct tern_updater_state *from);

#endif
