/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the files of the GPU's kernels (kernels/cuda) share. */
#ifndef TERN_KERNELS_CUDA_CUDA_KERNELS_H
#define TERN_KERNELS_CUDA_CUDA_KERNELS_H

#include "kernels/cuda/blocks/list.h"
#include "kernels/cuda/table.h"

enum tern_cuda_kernel {
#define NAME(name, type, threads) TERN_CUDA_##name,
	TERN_CUDA_KERNELS(NAME)
#undef NAME
		TERN_CUDA_KERNEL_COUNT
};

struct tern_cuda_kernels {
	const struct tern_cuda_api *api;
	/* NULL: matrix products use Tern's own kernel */
	const struct tern_cublas_api *blas;
	void *blas_handle;
	CUstream stream;
	CUmodule module;
	CUfunction functions[TERN_CUDA_KERNEL_COUNT];
	struct tern_cuda_sizes sizes;

	/* The workspace: one allocation of device memory, of which the pointers below are
	 * parts. */
	CUdeviceptr memory;
	uint64_t bytes;
	/* partial sums of a sum of squares: [TERN_PARTIALS_MAX] */
	double *partials;
	/* results of single rows of softmax: [sizes.xent_rows] */
	struct tern_cuda_row *results;
	/* two buffers of the sort, [sizes.embed_rows] each */
	int32_t *sorted_ids[2];
	/* sorted_ids, positions and counts are NULL unless embed_backward sorts for these
	 * sizes: cuda_embed_sorts(). */
	uint32_t *positions[2];
	uint32_t *counts;
	void *blas_memory;

	char fingerprint[256], error[256];
};

/* Queues a launch of a kernel with `blocks` blocks into the stream; does nothing if
 * `blocks` is 0. args: the kernel's argument structure, see list.h. */
int cuda_launch(struct tern_cuda_kernels *k, enum tern_cuda_kernel kernel,
	uint64_t blocks, const void *args);
/* Sets the error text of tern_cuda_kernels_error() and returns `error`. */
int cuda_fail(struct tern_cuda_kernels *k, int error, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* True if embed_backward sorts the ids first. Otherwise each block reads all ids. Both
 * ways give the same bits. */
bool cuda_embed_sorts(uint64_t rows, uint64_t table_rows);

/* Makes a span (the elements of an element-by-element kernel) of `count` elements. p is
 * the kernel's first operand, with elements of `size` bytes. */
struct tern_span cuda_span(uint64_t count, const void *p, size_t size);
/* Adds another operand to the span. Quads (four elements moved together) can be used only
 * if all operands have the same alignment. */
void cuda_span_with(struct tern_span *span, const void *p, size_t size);
uint64_t cuda_span_blocks(const struct tern_span *span);

static inline uint64_t div_up(uint64_t x, uint64_t n)
{
	return x / n + (x % n > 0);
}

#endif
