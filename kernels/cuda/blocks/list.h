/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of kernels: name, type of the single argument, threads per block. Three things
 * are generated from this list: the GPU's functions (kernels.cu), the host's numbers,
 * lookup and launch (cuda_kernels.h, table.c), and the CPU versions for tests.
 */
#ifndef TERN_KERNELS_CUDA_BLOCKS_LIST_H
#define TERN_KERNELS_CUDA_BLOCKS_LIST_H

#include "kernels/cuda/blocks/embed.h"
#include "kernels/cuda/blocks/matmul.h"

/* The two kernels of an optimizer. The rule `mean` has none: the sum is its kernel. */
#define TERN_UPDATE_KERNELS(X, KIND, name, ...)                                          \
	X(name, struct tern_cuda_update, TERN_QUAD_THREADS)                              \
	X(name##_slots, struct tern_cuda_update, TERN_QUAD_THREADS)

#define TERN_CUDA_KERNELS(X)                                                             \
	X(sum, struct tern_cuda_sum, TERN_QUAD_THREADS)                                  \
	TERN_OPTIMIZERS(TERN_UPDATE_KERNELS, X)                                          \
	X(f32_to_f16, struct tern_cuda_narrow, TERN_QUAD_THREADS)                        \
	X(f16_to_f32, struct tern_cuda_widen, TERN_QUAD_THREADS)                         \
	X(f32_to_bf16, struct tern_cuda_narrow, TERN_QUAD_THREADS)                       \
	X(bf16_to_f32, struct tern_cuda_widen, TERN_QUAD_THREADS)                        \
	X(squares, struct tern_cuda_squares, TERN_REDUCE_THREADS)                        \
	X(total, struct tern_cuda_total, TERN_REDUCE_THREADS)                            \
	X(bias, struct tern_cuda_bias, TERN_QUAD_THREADS)                                \
	X(bias_grad, struct tern_cuda_bias_grad, TERN_BIAS_THREADS)                      \
	X(xent, struct tern_cuda_xent, TERN_XENT_THREADS)                                \
	X(xent_total, struct tern_cuda_xent_total, TERN_REDUCE_THREADS)                  \
	X(gather, struct tern_cuda_gather, TERN_QUAD_THREADS)                            \
	X(sort_count, struct tern_cuda_sort, TERN_SORT_THREADS)                          \
	X(sort_scan, struct tern_cuda_sort, TERN_SORT_THREADS)                           \
	X(sort_move, struct tern_cuda_sort, TERN_SORT_THREADS)                           \
	X(embed_sorted, struct tern_cuda_scatter, TERN_EMBED_THREADS)                    \
	X(embed_scan, struct tern_cuda_scatter, TERN_EMBED_THREADS)                      \
	X(matmul, struct tern_cuda_matmul, TERN_TILE_THREADS)

#endif
