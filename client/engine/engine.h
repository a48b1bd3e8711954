/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine is where a model's arithmetic runs: the worker says what is to be computed
 * from which parameters, the engine computes it on the CPU (cpu.c) or on a GPU (cuda.c).
 * The worker knows nothing of devices, an engine nothing of workers.
 *
 * The batch is the engine's, since a device has wishes for the memory that it reads: who
 * wants a gradient fills `batch` first. Parameters and gradients are the caller's, flat
 * vectors in host memory; a device copies straight from and to them, best where they were
 * announced with tern_engine_pin().
 *
 * An engine is used by one thread at a time, any; its calls wait until all that they name
 * is done with, also when they fail. So the caller's memory is its own again with every
 * return.
 *
 * Errors are a negative errno with a line in `error`: -ENOTRECOVERABLE where nothing will
 * succeed on this device any more (base/cuda.h). The CPU's engine has none.
 */
#ifndef TERN_CLIENT_ENGINE_H
#define TERN_CLIENT_ENGINE_H

#include "client/models/model.h"

/* Batches of this many rows can always be evaluated. */
#define TERN_ENGINE_ROWS 256u

struct tern_engine;

/* Equal versions are equal values: a device copies them once. */
struct tern_engine_params {
	const float *values; /* of the whole model */
	uint64_t version;
};

struct tern_engine_ops {
	int (*pin)(struct tern_engine *engine, void *base, uint64_t bytes);
	void (*unpin)(struct tern_engine *engine);
	int (*gradient)(struct tern_engine *engine,
		const struct tern_engine_params *params, float *grads,
		void (*ready)(void *arg, uint64_t first), void *arg,
		struct tern_result *result);
	int (*evaluate)(struct tern_engine *engine,
		const struct tern_engine_params *params, float *scores,
		struct tern_result *result);
	int (*sample)(struct tern_engine *engine, const struct tern_engine_params *params,
		float temperature, float u, int32_t *symbol);
	void (*free)(struct tern_engine *engine);
};

/* All but `batch` and `note` is for reading. */
struct tern_engine {
	const struct tern_engine_ops *ops;
	const struct tern_model *model; /* the caller's, outlives the engine */
	struct tern_batch batch;        /* room for `rows` */
	size_t rows;
	char name[160];        /* "NVIDIA H200 (cuda:0), CUDA graphs, cuBLAS 13.0.2" */
	char fingerprint[128]; /* equal strings, equal bits */
	uint64_t device_bytes; /* of device memory that it holds */
	char error[400];       /* of the last call that failed */
	char note[400]; /* something worth a line; the caller empties it when it was told
			 */
};

/* For batches of at most `rows`, or of TERN_ENGINE_ROWS if that is more. -ENOMEM. */
int tern_engine_cpu_new(const struct tern_kernels *kernels,
	const struct tern_model *model, size_t rows, struct tern_engine **out);

/*
 * Parameters or gradients will be in this memory, until tern_engine_unpin(), which comes
 * before the memory goes. Whole slabs; the same one may be named again. 0 also if the
 * device cannot have it page-locked: `note` says so, and copies take longer.
 */
static inline int tern_engine_pin(struct tern_engine *e, void *base, uint64_t bytes)
{
	return e->ops->pin ? e->ops->pin(e, base, bytes) : 0;
}

static inline void tern_engine_unpin(struct tern_engine *e)
{
	if (e->ops->unpin)
		e->ops->unpin(e);
}

/* As tern_model_gradient, of `batch`. */
static inline int tern_engine_gradient(struct tern_engine *e,
	const struct tern_engine_params *params, float *grads,
	void (*ready)(void *arg, uint64_t first), void *arg, struct tern_result *result)
{
	return e->ops->gradient(e, params, grads, ready, arg, result);
}

/* As tern_model_evaluate, of `batch`. */
static inline int tern_engine_evaluate(struct tern_engine *e,
	const struct tern_engine_params *params, float *scores,
	struct tern_result *result)
{
	return e->ops->evaluate(e, params, scores, result);
}

/* As tern_model_sample, after the first row of ids in `batch`. */
static inline int tern_engine_sample(struct tern_engine *e,
	const struct tern_engine_params *params, float temperature, float u,
	int32_t *symbol)
{
	return e->ops->sample(e, params, temperature, u, symbol);
}

/* NULL is allowed. */
static inline void tern_engine_free(struct tern_engine *e)
{
	if (e)
		e->ops->free(e);
}

#endif
