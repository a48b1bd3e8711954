/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of widths.h for the simulated driver, as loops of the C compiler. The build
 * compiles this file once for each number of elements per thread.
 */
#include "kernels/cuda/blocks/widths.h"

#include <string.h>

#include "base/util.h"
#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/gpu/blocks.h"

#define TEXT_OF(name) #name
#define TEXT(name)    TEXT_OF(name)

#define RUN(name, type)                                                                  \
	static void run_##name(const struct fake_cuda_launch *launch)                    \
	{                                                                                \
		type args;                                                               \
                                                                                         \
		tern_assert(launch->block[0] == TERN_QUAD_THREADS);                      \
		memcpy(&args, launch->params[0], sizeof(args));                          \
		for (uint64_t block = launch->grid[0]; block-- > 0;)                     \
			tern_block_##name(&args, block);                                 \
	}

TERN_WIDTH_KERNELS(RUN)

void TERN_WIDTH_NAME(gpu_register_width, TERN_QUAD_ELEMENTS)(void)
{
#define REGISTER(name, type)                                                             \
	fake_cuda_kernel(TEXT(TERN_WIDTH_NAME(tern_cuda_##name, TERN_QUAD_ELEMENTS)),    \
		run_##name, 1, (const size_t[]){sizeof(type)});

	TERN_WIDTH_KERNELS(REGISTER)
}
