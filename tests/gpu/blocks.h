/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA kernels for the simulated driver, which run on the CPU in one of two forms. In
 * one form the C compiler compiles them, with a loop over the threads of a block
 * (blocks.c): this is fast, and sanitizers and debuggers see the source. In the other
 * form nvcc compiles them, and its code is translated to C (ptx/): they have the barriers
 * and the arithmetic that a GPU gets, and each access to memory is checked for races.
 */
#ifndef TERN_TESTS_GPU_BLOCKS_H
#define TERN_TESTS_GPU_BLOCKS_H

#include "tests/gpu/gpu.h"

/* The number and size of test cases for which these kernels are fast enough. */
extern const enum gpu_scale gpu_blocks_scale;
/* Registers the kernels; to be called after each fake_cuda_reset(), which removes
 * them. */
void gpu_register_blocks(void);
/* These three register the kernels that bench/gpu/threads.c measures with 1, 2 and 8
 * elements per thread. */
void gpu_register_width_1(void);
void gpu_register_width_2(void);
void gpu_register_width_8(void);

#endif
