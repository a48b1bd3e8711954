/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of kernels.h on the GPU. A struct tern_cuda_kernels belongs to one
 * stream and is used by one thread at a time, with the device's context current: a call
 * puts work into the stream and returns, so what it names (device addresses, as plain
 * pointers of the device's unified addressing) has to stay until the stream has passed
 * it. Its workspace is allocated when it is made, for the sizes given then; no call
 * allocates, waits or reads back, so every call can be captured into a graph (numbers,
 * like an update's step, as they were then).
 *
 * Results are a pure function of the inputs, bit for bit, for one device and one
 * fingerprint: sums have an order that depends on the sizes only, and no float is added
 * atomically. Sum, update, casts and embeddings give the bits of the CPU's table (which
 * payload a NaN has excepted); sums of squares, dense layers and losses are close to it.
 * tern_cuda_kernels_fingerprint() names all that the bits depend on.
 *
 * Calls return 0 or a negative errno: what tern_cuda_status() makes of the driver's
 * answer to the launch, -EIO for cuBLAS', -E2BIG for sizes beyond those the object was
 * made for, -EOVERFLOW for sizes beyond what a launch can count.
 * tern_cuda_kernels_error() has the line to it. Errors of the kernels themselves come
 * with the stream's later calls.
 */
#ifndef TERN_KERNELS_CUDA_TABLE_H
#define TERN_KERNELS_CUDA_TABLE_H

#include <stdbool.h>

#include "base/cuda.h"
#include "kernels/cuda/cublas.h"
#include "kernels/kernels.h"

struct tern_cuda_kernels;

/* What the workspace has to do for; 0 where a function is not used. */
struct tern_cuda_sizes {
	uint64_t xent_rows;
	uint64_t embed_rows, embed_table_rows; /* of embed_backward */
	bool tf32; /* matrix products may round their inputs to 11 bits */
};

/*
 * `stream` is the caller's and outlives it. blas may be NULL: matrix products are then
 * Tern's own, which are several times slower, and the fingerprint says "tiled". -ENOMEM,
 * -ENOEXEC (no code for this device), ...: `why` (of `bytes` bytes) has the line.
 */
int tern_cuda_kernels_new(const struct tern_cuda_api *api,
	const struct tern_cublas_api *blas, CUdevice device, CUstream stream,
	const struct tern_cuda_sizes *sizes, struct tern_cuda_kernels **out, char *why,
	size_t bytes);
/* Waits for the stream. The context must be current. */
void tern_cuda_kernels_free(struct tern_cuda_kernels *kernels);

/* "cuda NVIDIA H200 (132 x sm_90) driver 13.0 cublas 13.0.2": lives as long as it. */
const char *tern_cuda_kernels_fingerprint(const struct tern_cuda_kernels *kernels);
/* Why the last call that failed did; "" if none. */
const char *tern_cuda_kernels_error(const struct tern_cuda_kernels *kernels);
/* Bytes of device memory that it holds. */
uint64_t tern_cuda_kernels_bytes(const struct tern_cuda_kernels *kernels);

/* ---- see struct tern_kernels for what each computes ---- */

int tern_cuda_sum(struct tern_cuda_kernels *k, float *dst, const float *const *src,
	unsigned n, float scale, uint64_t count);
/* Into *out, on the device. */
int tern_cuda_sum_squares(
	struct tern_cuda_kernels *k, double *out, const float *x, uint64_t count);

/* One tensor of an update. */
struct tern_cuda_tensor {
	float *w_out;
	const float *w_in; /* may be w_out */
	float *m, *v;      /* NULL where the optimizer keeps none */
	const float *grads[TERN_SUM_MAX];
	uint64_t count;
};

/* All tensors in one launch for every 33 of them. n: gradients of each. */
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
/* db and dw are put into the stream before dx. */
int tern_cuda_dense_backward(struct tern_cuda_kernels *k, float *dx, float *dw, float *db,
	float *dy, const float *y, const float *x, const float *w, uint64_t rows,
	uint64_t in, uint64_t out, bool relu);

/* dx alone, of a dy that was masked already: after a backward that had no dx, so that
 * something can be put between them that waits for dw and db only. */
int tern_cuda_dense_backward_input(struct tern_cuda_kernels *k, float *dx,
	const float *dy, const float *w, uint64_t rows, uint64_t in, uint64_t out);

struct tern_cuda_result { /* on the device */
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
