/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU's functions: each block function of the list, under the name tern_cuda_NAME.
 * The arguments stay in constant memory (__grid_constant__), and the kernels use pointers
 * to them.
 */
#include "kernels/cuda/blocks/list.h"

#define DEFINE(name, type, threads)                                                      \
	extern "C" __global__ void __launch_bounds__(threads)                            \
		tern_cuda_##name(const __grid_constant__ type args)                      \
	{                                                                                \
		tern_block_##name(&args, blockIdx.x);                                    \
	}

TERN_CUDA_KERNELS(DEFINE)
