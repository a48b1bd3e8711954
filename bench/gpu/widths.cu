/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels with another number of elements per thread, for gpu_threads: see widths.h.
 */
#include "kernels/cuda/blocks/widths.h"

#define DEFINE(name, type)                                                               \
	extern "C" __global__ void __launch_bounds__(TERN_QUAD_THREADS) TERN_WIDTH_NAME( \
		tern_cuda_##name, TERN_QUAD_ELEMENTS)(const __grid_constant__ type args) \
	{                                                                                \
		tern_block_##name(&args, blockIdx.x);                                    \
	}

TERN_WIDTH_KERNELS(DEFINE)
