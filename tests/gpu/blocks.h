/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels for the simulated driver: the block functions of the GPU, run on the CPU.
 * Either as loops (blocks.c), which is fast and tests the arithmetic; or with one thread
 * for each thread of the GPU (threads.c), which is slow and tests, under ThreadSanitizer,
 * that the barriers are where they must be. The last block runs first, since no result
 * may depend on the order of blocks.
 */
#ifndef TERN_TESTS_GPU_BLOCKS_H
#define TERN_TESTS_GPU_BLOCKS_H

#include "tests/gpu/gpu.h"

/* Size of cases for which they are fast enough. */
extern const enum gpu_scale gpu_blocks_scale;
/* Call it after each fake_cuda_reset(), which removes all kernels. */
void gpu_register_blocks(void);

#endif
