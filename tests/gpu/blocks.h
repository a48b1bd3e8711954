/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA kernels for the simulated driver, which run on the CPU in one of two forms.
 * Compiled by the C compiler, with a loop over the threads of a block (blocks.c): fast,
 * and sanitizers and debuggers see the source. Or compiled by nvcc (ptx/): with the
 * barriers and the arithmetic that a GPU gets, and each access to memory is checked for
 * races.
 */
#ifndef TERN_TESTS_GPU_BLOCKS_H
#define TERN_TESTS_GPU_BLOCKS_H

#include "tests/gpu/gpu.h"

/* How many and how large test cases these kernels are fast enough for. */
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
