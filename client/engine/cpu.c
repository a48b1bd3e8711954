/* SPDX-License-Identifier: Apache-2.0 */
/* The engine that computes on the CPU: it calls model.c with a table of kernels, and owns
 * the memory for the activations. */
#include <errno.h>
#include <stdio.h>

#include "base/util.h"
#include "client/engine/engine.h"

struct cpu_engine {
	struct tern_engine engine;
	const struct tern_kernels *kernels;
	struct tern_workspace *workspace;
};

static struct cpu_engine *cpu_of(struct tern_engine *engine)
{
	return tern_container_of(engine, struct cpu_engine, engine);
}

static int gradient(struct tern_engine *engine, const struct tern_engine_params *params,
	float *grads, void (*ready)(void *arg, uint64_t first, uint64_t count), void *arg,
	struct tern_result *result)
{
	struct cpu_engine *e = cpu_of(engine);

	*result = tern_model_gradient(engine->model, e->kernels, params->values, grads,
		&engine->batch, e->workspace, ready, arg);
	return 0;
}

static int evaluate(struct tern_engine *engine, const struct tern_engine_params *params,
	float *scores, struct tern_result *result)
{
	struct cpu_engine *e = cpu_of(engine);

	*result = tern_model_evaluate(engine->model, e->kernels, params->values,
		&engine->batch, e->workspace, scores);
	return 0;
}

static int sample(struct tern_engine *engine, const struct tern_engine_params *params,
	float temperature, float u, int32_t *symbol)
{
	struct cpu_engine *e = cpu_of(engine);

	*symbol = tern_model_sample(engine->model, e->kernels, params->values,
		engine->batch.ids, temperature, u, e->workspace);
	return 0;
}

static void cpu_free(struct tern_engine *engine)
{
	struct cpu_engine *e = cpu_of(engine);

	tern_workspace_free(e->workspace);
	free(engine->batch.x);
	free(engine->batch.ids);
	free(engine->batch.labels);
	free(e);
}

static int make_room(struct cpu_engine *e)
{
	const struct tern_model *m = e->engine.model;
	struct tern_batch *batch = &e->engine.batch;
	size_t rows = e->engine.rows, floats, symbols;

	tern_model_record(m, &floats, &symbols);
	e->workspace = tern_workspace_new(m, rows);
	batch->labels = calloc(rows, sizeof(*batch->labels));
	if (symbols)
		batch->ids = calloc(rows * symbols, sizeof(*batch->ids));
	else
		batch->x = calloc(rows * floats + 1, sizeof(*batch->x));
	return e->workspace && batch->labels && (batch->ids || batch->x) ? 0 : -ENOMEM;
}

int tern_engine_cpu_new(const struct tern_kernels *kernels,
	const struct tern_model *model, size_t rows, struct tern_engine **out)
{
	static const struct tern_engine_ops ops = {
		.gradient = gradient,
		.evaluate = evaluate,
		.sample = sample,
		.free = cpu_free,
	};
	struct cpu_engine *e = calloc(1, sizeof(*e));
	int r;

	if (!e)
		return -ENOMEM;
	e->engine.ops = &ops;
	e->engine.model = model;
	e->engine.rows = TERN_MAX(rows, (size_t)TERN_ENGINE_ROWS);
	e->kernels = kernels;
	snprintf(e->engine.name, sizeof(e->engine.name), "the CPU (%s)", kernels->name);
	snprintf(e->engine.fingerprint, sizeof(e->engine.fingerprint), "%s",
		tern_kernels_fingerprint(kernels));
	r = make_room(e);
	if (r < 0)
		cpu_free(&e->engine);
	else
		*out = &e->engine;
	return r;
}
