/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels for the simulated driver: the functions of a block that the GPU runs, as
 * loops on the CPU. The last block comes first, since nothing may depend on their order.
 */
#ifndef TERN_TESTS_GPU_BLOCKS_H
#define TERN_TESTS_GPU_BLOCKS_H

/* After each fake_cuda_reset(), which withdraws kernels. */
void gpu_register_blocks(void);

#endif
