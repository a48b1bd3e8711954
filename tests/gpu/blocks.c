/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/blocks.h"

#include <string.h>

#include "base/util.h"

/* The threads per block of element-by-element kernels are those of the launch, since
 * bench/gpu/threads.c launches them with several numbers. The other kernels have a fixed
 * number. */
static _Thread_local unsigned quad_threads;
#define TERN_QUAD_THREADS quad_threads
#include "kernels/cuda/blocks/list.h"
#include "tests/fakes/cuda/fake_cuda.h"

const enum gpu_scale gpu_blocks_scale = GPU_SOME;

#define RUN(name, type, threads)                                                         \
	static void run_##name(const struct fake_cuda_launch *launch)                    \
	{                                                                                \
		type args;                                                               \
                                                                                         \
		quad_threads = launch->block[0];                                         \
		tern_assert(launch->block[0] == (threads) && launch->block[1] == 1);     \
		tern_assert(launch->grid[1] == 1 && launch->shared_bytes == 0);          \
		memcpy(&args, launch->params[0], sizeof(args));                          \
		for (uint64_t block = launch->grid[0]; block-- > 0;)                     \
			tern_block_##name(&args, block);                                 \
	}

TERN_CUDA_KERNELS(RUN)

void gpu_register_blocks(void)
{
#define REGISTER(name, type, threads)                                                    \
	fake_cuda_kernel(                                                                \
		"tern_cuda_" #name, run_##name, 1, (const size_t[]){sizeof(type)});

	TERN_CUDA_KERNELS(REGISTER)
}
