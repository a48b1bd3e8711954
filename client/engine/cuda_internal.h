/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the CUDA engine.
 *
 *     cuda.c       its life; evaluation, sampling
 *     cuda_pass.c  what goes into the streams: batches, parameters, forward, backward
 *     cuda_step.c  a gradient: the pass as plain launches or as a graph, and its progress
 */
#ifndef TERN_CLIENT_ENGINE_CUDA_INTERNAL_H
#define TERN_CLIENT_ENGINE_CUDA_INTERNAL_H

#include <stdatomic.h>

#include "base/cuda_context.h"
#include "client/engine/cuda.h"
#include "client/models/internal.h"
#include "kernels/cuda/table.h"

/* The embedding, and the layers. */
#define CUDA_PARTS_MAX  (TERN_LAYERS_MAX + 1u)
#define CUDA_GRAPHS_MAX 64u

/* Of the flat vector: what one stage of the forward pass needs, and one of the backward
 * pass makes final. */
struct cuda_part {
	uint64_t first, count;
	CUevent up;    /* its parameters are on the device */
	CUevent final; /* its gradient is final there */
	CUevent down;  /* and here */
};

/* What comes down besides gradients. */
struct cuda_words {
	struct tern_cuda_result result;
	/* 1 behind a part's gradient: put there by the copy that follows it. */
	_Atomic uint32_t seen[CUDA_PARTS_MAX];
};

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
	int status; /* of what is being put into the streams: the first failure */

	/* On the device, in one allocation. */
	CUdeviceptr memory;
	uint64_t memory_bytes;
	float *params, *grads;
	float *x;
	int32_t *ids, *labels;
	float *input, *dinput; /* text: the embeddings, and their gradient */
	float *y[TERN_LAYERS_MAX], *dy[TERN_LAYERS_MAX];
	struct tern_cuda_result *result;
	uint32_t *one;

	/* On the host, in one allocation, page-locked if that was possible. */
	void *host;
	bool host_locked;
	struct cuda_words *words;
	float *logits; /* [rows][classes] */

	/* The version whose parameters are on the device. */
	bool holds;
	uint64_t version;

	bool pageable; /* some memory is not page-locked: no graphs, and it was said */
	bool graphs_off, warm;
	struct cuda_graph graphs[CUDA_GRAPHS_MAX];
	unsigned graph_count;
};

/* A call of the driver, or of the kernels' table, unless one of this pass has failed. */
#define CUDA_DO(e, call, what)                                                           \
	((e)->status == 0                                                                \
			? (void)((e)->status = tern_cuda_check(&(e)->gpu, (call), what)) \
			: (void)0)
#define CUDA_KERNEL(e, call)                                                             \
	((e)->status == 0 ? (void)((e)->status = cuda_kernel_check(e, call)) : (void)0)

/* A status of the kernels' table; its line becomes the device's. */
int cuda_kernel_check(struct cuda_engine *e, int status);

/* A pass over the batch. */
struct cuda_pass {
	size_t rows;
	const float *fresh; /* parameters to be copied up; NULL: they are there */
	float *grads;       /* where the gradients go, on the host */
	bool capturing;
};

/* cuda_pass.c: into the streams, in e->status. The caller waits. */
void cuda_put_batch(struct cuda_engine *e, size_t rows, bool labels);
/* Into the logits: returns where they are. */
float *cuda_put_forward(struct cuda_engine *e, const struct cuda_pass *pass);
void cuda_put_gradient(struct cuda_engine *e, const struct cuda_pass *pass);

/* cuda_step.c */
int cuda_gradient(struct tern_engine *engine, const struct tern_engine_params *params,
	float *grads, void (*ready)(void *arg, uint64_t first), void *arg,
	struct tern_result *result);
void cuda_graphs_free(struct cuda_engine *e);

/* cuda.c: the beginning and the end of everything that uses the device. Leaving waits, so
 * that nothing is under way; the status of it all, and after a failure the line. */
int cuda_enter(struct cuda_engine *e);
int cuda_leave(struct cuda_engine *e, const struct tern_engine_params *params);
const float *cuda_fresh(
	const struct cuda_engine *e, const struct tern_engine_params *params);
/* Adds it to what is still to be told. */
void cuda_note(struct cuda_engine *e, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
