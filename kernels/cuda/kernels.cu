/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU's kernels: each block function in the list TERN_CUDA_KERNELS becomes a kernel
 * named tern_cuda_NAME. Its argument stays in constant memory (__grid_constant__), and
 * the block function gets a pointer to it.
 */
#include "kernels/cuda/blocks/list.h"

#define DEFINE(name, type, threads)                                                      \
	extern "C" __global__ void __launch_bounds__(threads)                            \
		tern_cuda_##name(const __grid_constant__ type args)                      \
	{                                                                                \
		tern_block_##name(&args, blockIdx.x);                                    \
	}

TERN_CUDA_KERNELS(DEFINE)
