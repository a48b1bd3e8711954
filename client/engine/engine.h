/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine runs a model's arithmetic: the worker says what to compute from which
 * parameters, and the engine computes it on the CPU (cpu.c) or on a GPU (cuda.c). The
 * worker knows nothing of devices, an engine nothing of workers.
 *
 * The engine owns the batch, since a device may need special memory for it: before asking
 * for a gradient, the caller fills `batch`. The caller owns parameters and gradients,
 * flat vectors in host memory, or in memory of the engine's GPU. A device copies directly
 * from and to them; from and to host memory fastest if the memory was announced by
 * tern_engine_pin().
 *
 * Threads: any thread may use an engine, but only one at a time; tern_engine_fetch() may
 * be called at any time.
 * Its calls are synchronous, also when they fail, so after each return the caller may use
 * its memory again.
 *
 * Errors are a negative errno with a line in `error` (of tern_engine_fetch(): in `why`).
 * After -ENOTRECOVERABLE nothing will succeed on this device any more (base/cuda.h). The
 * CPU's engine has no errors.
 */
#ifndef TERN_CLIENT_ENGINE_H
#define TERN_CLIENT_ENGINE_H

#include "client/models/model.h"

/* Batches of this many rows can always be evaluated. */
#define TERN_ENGINE_ROWS 256u

struct tern_engine;

/* Parameters. Equal versions mean equal values: a device copies them once. */
struct tern_engine_params {
	const float *values; /* values of the whole model */
	uint64_t version;
};

struct tern_engine_ops {
	int (*pin)(struct tern_engine *engine, void *base, uint64_t bytes);
	void (*unpin)(struct tern_engine *engine);
	int (*gradient)(struct tern_engine *engine,
		const struct tern_engine_params *params, float *grads,
		void (*ready)(void *arg, uint64_t first, uint64_t count), void *arg,
		struct tern_result *result);
	int (*evaluate)(struct tern_engine *engine,
		const struct tern_engine_params *params, float *scores,
		struct tern_result *result);
	int (*sample)(struct tern_engine *engine, const struct tern_engine_params *params,
		float temperature, float u, int32_t *symbol);
	int (*fetch)(struct tern_engine *engine, float *to, const float *from,
		uint64_t count, char *why, size_t why_bytes);
	void (*free)(struct tern_engine *engine);
};

/* Callers may write only `batch` and `note`. */
struct tern_engine {
	const struct tern_engine_ops *ops;
	const struct tern_model *model; /* owned by the caller, outlives the engine */
	struct tern_batch batch;        /* has room for `rows` */
	size_t rows;
	char name[160];        /* "NVIDIA H200 (cuda:0), CUDA graphs, cuBLAS 13.0.2" */
	char fingerprint[128]; /* equal strings mean equal bits of results */
	uint64_t device_bytes; /* device memory that it holds */
	/* GPU: number of parts of gradients that were not in the caller's memory yet when
	 * their event fired (cuda_step.c). */
	uint64_t late_events;
	char error[400]; /* one line: why the last failed call failed */
	char note[400];  /* a line to be logged; the caller clears it after that */
};

/* Makes the CPU's engine for batches of at most `rows`, or TERN_ENGINE_ROWS if that is
 * more. -ENOMEM. */
int tern_engine_cpu_new(const struct tern_kernels *kernels,
	const struct tern_model *model, size_t rows, struct tern_engine **out);

/*
 * Announces host memory that will hold parameters or gradients. It must be a whole slab
 * (a segment from which a pool takes buffers); the same slab may be announced again.
 * tern_engine_unpin() must be called before the memory is released. Returns 0 also if the
 * device cannot page-lock the memory: then copies take longer, and the first time `note`
 * says so.
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

/* As tern_model_gradient(), for the records in `batch`. */
static inline int tern_engine_gradient(struct tern_engine *e,
	const struct tern_engine_params *params, float *grads,
	void (*ready)(void *arg, uint64_t first, uint64_t count), void *arg,
	struct tern_result *result)
{
	return e->ops->gradient(e, params, grads, ready, arg, result);
}

/* As tern_model_evaluate(), for the records in `batch`. */
static inline int tern_engine_evaluate(struct tern_engine *e,
	const struct tern_engine_params *params, float *scores,
	struct tern_result *result)
{
	return e->ops->evaluate(e, params, scores, result);
}

/* As tern_model_sample(), after the first row of ids in `batch`. */
static inline int tern_engine_sample(struct tern_engine *e,
	const struct tern_engine_params *params, float temperature, float u,
	int32_t *symbol)
{
	return e->ops->sample(e, params, temperature, u, symbol);
}

/* Copies `count` elements from memory of the engine's GPU to host memory (not for the
 * CPU's engine). Any thread may call this, also while another thread is in a call of this
 * engine. On failure `why` gets the reason in one line. */
static inline int tern_engine_fetch(struct tern_engine *e, float *to, const float *from,
	uint64_t count, char *why, size_t why_bytes)
{
	return e->ops->fetch(e, to, from, count, why, why_bytes);
}

/* Frees the engine. NULL is allowed. */
static inline void tern_engine_free(struct tern_engine *e)
{
	if (e)
		e->ops->free(e);
}

#endif
