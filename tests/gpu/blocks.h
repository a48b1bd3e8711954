/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels for the simulated driver: the functions of a block that the GPU runs, on
 * the CPU. As loops (blocks.c), which is fast and shows the arithmetic; or with a thread
 * for each of the GPU's (threads.c), which is slow and shows, under ThreadSanitizer, that
 * the barriers stand where they must. The last block comes first, since nothing may
 * depend on their order.
 */
#ifndef TERN_TESTS_GPU_BLOCKS_H
#define TERN_TESTS_GPU_BLOCKS_H

#include "tests/gpu/gpu.h"

extern const enum gpu_scale gpu_blocks_scale; /* what they are fast enough for */
/* After each fake_cuda_reset(), which withdraws kernels. */
void gpu_register_blocks(void);

#endif
