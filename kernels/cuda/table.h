/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of kernels.h on the GPU. A struct tern_cuda_kernels (called the table)
 * belongs to one CUDA stream and is used by one thread at a time, with the device's
 * context current. A call queues work into the stream and returns, so its operands
 * (device addresses, as plain pointers of unified addressing) must stay valid until the
 * stream has executed the work. The workspace is allocated when the table is made, for
 * the sizes given then. The calls of the arithmetic do not allocate, wait or read back
 * results, so each can be captured into a CUDA graph. The graph repeats scalars, such as
 * an update's step, with their values at the capture.
 *
 * For one device and one fingerprint, results are a pure function of the inputs, bit for
 * bit: the order of sums depends on the sizes only, and floats are never added
 * atomically. Sum, update, casts and embeddings give the same bits as the CPU's tables
 * (except the payload of a NaN). Sums of squares, dense layers and losses are only close
 * to the CPU's. tern_cuda_kernels_fingerprint() names everything that the bits depend on.
 *
 * Calls return 0 or a negative errno: the tern_cuda_status() of the launch, -EIO for an
 * error of cuBLAS, -E2BIG for sizes beyond those given to tern_cuda_kernels_new(),
 * -EOVERFLOW for sizes beyond what a launch can count. tern_cuda_kernels_error() has a
 * text about it. Errors inside a kernel are reported by later calls on the stream.
 */
#ifndef TERN_KERNELS_CUDA_TABLE_H
#define TERN_KERNELS_CUDA_TABLE_H

#include <stdbool.h>

#include "base/cuda.h"
#include "kernels/cuda/cublas.h"
#include "kernels/kernels.h"

struct tern_cuda_kernels;

/* Largest sizes of later calls: the workspace is allocated for them. 0 for functions that
 * are not called. */
struct tern_cuda_sizes {
	uint64_t xent_rows;
	/* embed_backward: number of ids, of rows of the table */
	uint64_t embed_rows, embed_table_rows;
	bool tf32; /* matrix products may use TF32: inputs rounded to 11 bits */
};

/*
 * Makes a table. The caller keeps `stream`, which must exist until the table is freed. If
 * blas is NULL, matrix products use Tern's own kernel, which is several times slower, and
 * the fingerprint has "tiled". -ENOMEM, -ENOEXEC (no code for this device), ...: a text
 * is written to `why` (of `bytes` bytes).
 */
int tern_cuda_kernels_new(const struct tern_cuda_api *api,
	const struct tern_cublas_api *blas, CUdevice device, CUstream stream,
	const struct tern_cuda_sizes *sizes, struct tern_cuda_kernels **out, char *why,
	size_t bytes);
/* Waits for the stream's work and frees the table. The device's context must be
 * current. */
void tern_cuda_kernels_free(struct tern_cuda_kernels *kernels);

/* Identifies all that the bits of results depend on: "cuda NVIDIA H200 (132 x sm_90)
 * driver 13.0 cublas 13.0.2". Valid until the table is freed. */
const char *tern_cuda_kernels_fingerprint(const struct tern_cuda_kernels *kernels);
/* Text about the last call that failed; "" if none has failed. */
const char *tern_cuda_kernels_error(const struct tern_cuda_kernels *kernels);
/* Size of the table's workspace, in bytes of device memory. */
uint64_t tern_cuda_kernels_bytes(const struct tern_cuda_kernels *kernels);

/* ---- the functions of struct tern_kernels (kernels.h), on the GPU ---- */

int tern_cuda_sum(struct tern_cuda_kernels *k, float *dst, const float *const *src,
	unsigned n, float scale, uint64_t count);
/* Writes the sum to *out, which is in device memory. */
int tern_cuda_sum_squares(
	struct tern_cuda_kernels *k, double *out, const float *x, uint64_t count);

/* One tensor of an update. */
struct tern_cuda_tensor {
	float *w_out;
	const float *w_in; /* parameters before the step; may be w_out */
	float *m, *v;      /* state vectors; NULL if the optimizer has none */
	const float *grads[TERN_SUM_MAX];
	uint64_t count;
};

/* Makes one optimizer step on all tensors, with one kernel launch for every 33 of them
 * (for each of them, if the optimizer is `mean`). Empty tensors do not count. n: number of gradients of each tensor. */
int tern_cuda_update(struct tern_cuda_kernels *k, const struct tern_optimizer *opt,
	uint64_t step, const struct tern_cuda_tensor *tensors, size_t tensor_count,
	unsigned n, float scale, float clip);

int tern_cuda_f32_to_f16(
	struct tern_cuda_kernels *k, uint16_t *dst, const float *src, uint64_t count);
int tern_cuda_f16_to_f32(
	struct tern_cuda_kernels *k, float *dst, const uint16_t *src, uint64_t count);
int tern_cuda_f32_to_bf16(
	struct tern_cuda_kernels *k, uint16_t *dst, const float *src, uint64_t count);
int tern_cuda_bf16_to_f32(
	struct tern_cuda_kernels *k, float *dst, const uint16_t *src, uint64_t count);

int tern_cuda_dense_forward(struct tern_cuda_kernels *k, float *y, const float *x,
	const float *w, const float *b, uint64_t rows, uint64_t in, uint64_t out,
	bool relu);
/* The work for db and dw is queued before that for dx. */
int tern_cuda_dense_backward(struct tern_cuda_kernels *k, float *dx, float *dw, float *db,
	float *dy, const float *y, const float *x, const float *w, uint64_t rows,
	uint64_t in, uint64_t out, bool relu);

/* Computes only dx. If the layer has ReLU, dy must already be masked (set to 0 where y ==
 * 0) by a call of tern_cuda_dense_backward() with dx NULL. So work that needs only dw and
 * db can be queued between the two calls. */
int tern_cuda_dense_backward_input(struct tern_cuda_kernels *k, float *dx,
	const float *dy, const float *w, uint64_t rows, uint64_t in, uint64_t out);

struct tern_cuda_result { /* in device memory */
	double loss;
	uint64_t correct;
};
int tern_cuda_softmax_xent(struct tern_cuda_kernels *k, struct tern_cuda_result *result,
	float *dlogits, const float *logits, const int32_t *labels, uint64_t rows,
	uint64_t classes);

int tern_cuda_embed_forward(struct tern_cuda_kernels *k, float *y, const float *table,
	const int32_t *ids, uint64_t rows, uint64_t width);
int tern_cuda_embed_backward(struct tern_cuda_kernels *k, float *dtable, const float *dy,
	const int32_t *ids, uint64_t rows, uint64_t width, uint64_t table_rows);

#endif
