/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/blocks.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "tests/fakes/cuda/fake_cuda.h"

static _Thread_local unsigned thread_index;
static pthread_barrier_t meeting;

static void meet(void)
{
	pthread_barrier_wait(&meeting);
}

/* Replaces the definitions of block.h: a thread of the GPU is a thread of the process,
 * and the single block that runs at a time uses static memory as shared memory. */
#define TERN_BODY            static inline
#define TERN_EACH(t, count)  for (unsigned t = thread_index, once = 1; once; once = 0)
#define TERN_BARRIER()       meet()
#define TERN_SHARED          static
#define TERN_KEPT(count)     1
#define TERN_MINE(t)         0
#define TERN_COUNT_UP(place) ((void)__atomic_fetch_add(place, 1u, __ATOMIC_RELAXED))
#define TERN_UNROLL

#include "kernels/cuda/blocks/list.h"

const enum gpu_scale gpu_blocks_scale = GPU_FEW;

struct job {
	void (*block)(const void *args, uint64_t block);
	const void *args;
	uint64_t blocks;
	unsigned index;
	pthread_t thread;
};

static void *work(void *arg)
{
	const struct job *job = arg;

	thread_index = job->index;
	for (uint64_t block = job->blocks; block-- > 0;) {
		job->block(job->args, block);
		meet();
	}
	return NULL;
}

static void run(const struct fake_cuda_launch *launch, unsigned threads,
	void (*block)(const void *args, uint64_t block))
{
	static struct job jobs[1024];

	tern_assert(launch->block[0] == threads && threads <= TERN_ARRAY_SIZE(jobs));
	tern_assert(pthread_barrier_init(&meeting, NULL, threads) == 0);
	for (unsigned i = 0; i < threads; i++) {
		jobs[i] = (struct job){.block = block,
			.args = launch->params[0],
			.blocks = launch->grid[0],
			.index = i};
		tern_assert(pthread_create(&jobs[i].thread, NULL, work, &jobs[i]) == 0);
	}
	for (unsigned i = 0; i < threads; i++)
		pthread_join(jobs[i].thread, NULL);
	pthread_barrier_destroy(&meeting);
}

#define RUN(name, type, threads)                                                         \
	static void block_##name(const void *args, uint64_t block)                       \
	{                                                                                \
		tern_block_##name(args, block);                                          \
	}                                                                                \
                                                                                         \
	static void run_##name(const struct fake_cuda_launch *launch)                    \
	{                                                                                \
		run(launch, threads, block_##name);                                      \
	}

TERN_CUDA_KERNELS(RUN)

void gpu_register_blocks(void)
{
#define REGISTER(name, type, threads)                                                    \
	fake_cuda_kernel(                                                                \
		"tern_cuda_" #name, run_##name, 1, (const size_t[]){sizeof(type)});

	TERN_CUDA_KERNELS(REGISTER)
}
