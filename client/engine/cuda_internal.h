/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the CUDA engine.
 *
 *     cuda.c       making and freeing the engine; evaluation, sampling
 *     cuda_pass.c  work queued into the streams: batches, parameters, forward, backward
 *     cuda_step.c  a gradient: the pass as plain launches or as a graph, and its progress
 */
#ifndef TERN_CLIENT_ENGINE_CUDA_INTERNAL_H
#define TERN_CLIENT_ENGINE_CUDA_INTERNAL_H

#include <stdatomic.h>

#include "base/cuda_context.h"
#include "client/engine/cuda.h"
#include "client/models/layers.h"
#include "kernels/cuda/table.h"

/* The parts of a model: the embedding and the layers. */
#define CUDA_PARTS_MAX  (TERN_LAYERS_MAX + 1u)
#define CUDA_GRAPHS_MAX 64u

/* A range of the flat vector: the parameters of one stage of the forward pass, whose
 * gradient one stage of the backward pass makes final. */
struct cuda_part {
	uint64_t first, count;
	CUevent up;    /* its parameters are on the device */
	CUevent final; /* its gradient is final on the device */
	CUevent down;  /* its gradient is in the caller's memory */
};

/* Results other than gradients and logits that are copied to the host. */
struct cuda_words {
	struct tern_cuda_result result;
	/* seen[i] is set to 1 by a copy that the device makes after that of part i's
	 * gradient, and so shows that the gradient has arrived. */
	_Atomic uint32_t seen[CUDA_PARTS_MAX];
};

/* A gradient that was captured into a CUDA graph, for these values of a cuda_pass. */
struct cuda_graph {
	const float *fresh;
	float *grads;
	size_t rows;
	CUgraphExec exec;
};

struct cuda_engine {
	struct tern_engine engine;
	struct tern_cuda_context gpu;
	CUstream compute, copy;
	struct tern_cuda_kernels *kernels;
	struct cuda_part parts[CUDA_PARTS_MAX];
	unsigned part_count;
	CUevent fork, join;
	int status; /* first error while work is queued */

	/* Device memory, in one allocation. */
	CUdeviceptr memory;
	uint64_t memory_bytes;
	float *params, *grads;
	float *x;
	int32_t *ids, *labels;
	float *input, *dinput; /* text: the embeddings, and their gradient */
	float *y[TERN_LAYERS_MAX], *dy[TERN_LAYERS_MAX];
	struct tern_cuda_result *result;
	uint32_t *one;

	/* Host memory, in one allocation, page-locked if that was possible. */
	void *host;
	bool host_locked;
	struct cuda_words *words;
	float *logits; /* [rows][classes] */

	/* `holds`: the device has all parameters of `version`. */
	bool holds;
	uint64_t version;

	/* Some memory is not page-locked, so no graphs are used; this was noted. */
	bool pageable;
	/* graphs_off: no graphs, since the caller wanted none or captures have failed. warm: a
	 * gradient was computed before. */
	bool graphs_off, warm;
	unsigned failed_captures; /* in a row */
	struct cuda_graph graphs[CUDA_GRAPHS_MAX];
	unsigned graph_count;
};

/* Calls the driver or the kernels' table, unless an earlier call of this pass has
 * failed. */
#define CUDA_DO(e, call, what)                                                           \
	((e)->status == 0                                                                \
			? (void)((e)->status = tern_cuda_check(&(e)->gpu, (call), what)) \
			: (void)0)
#define CUDA_KERNEL(e, call)                                                             \
	((e)->status == 0 ? (void)((e)->status = cuda_kernel_check(e, call)) : (void)0)

/* Returns `status`, the result of a call of the kernels' table. If the call failed,
 * copies the table's error line to e->gpu.error. */
int cuda_kernel_check(struct cuda_engine *e, int status);

/* One pass over the batch. */
struct cuda_pass {
	size_t rows;
	const float *fresh; /* parameters to copy to the device; NULL: it has them */
	float *grads;       /* destination of the gradients: the caller's memory */
	bool capturing;
};

/* cuda_pass.c: these queue work into the streams and do not wait for it. Errors are in
 * e->status. */
void cuda_put_batch(struct cuda_engine *e, size_t rows, bool labels);
/* Queues the forward pass. Returns where the logits will be. */
float *cuda_put_forward(struct cuda_engine *e, const struct cuda_pass *pass);
void cuda_put_gradient(struct cuda_engine *e, const struct cuda_pass *pass);

/* cuda_step.c */
int cuda_gradient(struct tern_engine *engine, const struct tern_engine_params *params,
	float *grads, void (*ready)(void *arg, uint64_t first, uint64_t count), void *arg,
	struct tern_result *result);
void cuda_graphs_free(struct cuda_engine *e);

/* cuda.c: every pass is between these two. cuda_leave() waits until both streams are idle
 * and returns the first error since cuda_enter(), or 0; after an error it also sets
 * engine.error. */
int cuda_enter(struct cuda_engine *e);
int cuda_leave(struct cuda_engine *e, const struct tern_engine_params *params);
/* Returns the parameters if they must be copied to the device, for cuda_pass.fresh; NULL:
 * the device has this version. */
const float *cuda_fresh(
	const struct cuda_engine *e, const struct tern_engine_params *params);
/* Appends a line to the engine's note. */
void cuda_note(struct cuda_engine *e, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
