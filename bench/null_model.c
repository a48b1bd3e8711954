/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model without arithmetic that replaces client/models/model.c in a build for
 * benchmarks: a training step then costs only what the parameter server costs. The
 * gradient of element i is (i % 8) / 8 and the learning rate 2^-10, so after s steps
 * parameter i is exactly -s 2^-10 (i % 8) / 8 for any number of workers. Every step
 * checks some parameters.
 *
 * The gradient is written once into each buffer and then pushed unchanged, as in the peers'
 * programs. The
 * model's spec names the sizes: "flat:BYTES", "mlp" (784-256-128-10) or "resnet50".
 */
#include "client/models/model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/resnet50.h"

#define RATE        (1.0f / 1024)
#define CHECKS      64u
#define PARAMS_MAX  RESNET50_COUNT
#define BUFFERS_MAX 16u

struct tern_model {
	struct tern_param params[PARAMS_MAX];
	char names[PARAMS_MAX][24];
	size_t count;
	uint64_t size;
	size_t floats; /* floats per record; records are not used */
};

struct tern_workspace {
	uint64_t steps;
	/* Gradient buffers that already contain the gradient. */
	const float *written[BUFFERS_MAX];
	unsigned written_count;
};

static void add_param(struct tern_model *m, uint64_t count)
{
	char *name = m->names[m->count];
	struct tern_param *p = &m->params[m->count];

	snprintf(name, sizeof(m->names[0]), "p%zu", m->count++);
	p->name = name;
	p->shape = tern_shape_1d(TERN_F32, count);
	p->first = m->size;
	p->count = count;
	p->init = TERN_INIT_ZEROS;
	m->size += count;
}

int tern_model_new(const char *spec, const struct tern_dataset *data,
	struct tern_model **out, struct tern_data_error *error)
{
	static const uint64_t mlp[] = {784 * 256, 256, 256 * 128, 128, 128 * 10, 10};
	struct tern_model *m = calloc(1, sizeof(*m));
	unsigned long long bytes;

	if (!m)
		return -ENOMEM;
	m->floats = data->width;
	if (sscanf(spec, "flat:%llu", &bytes) == 1 && bytes >= sizeof(float))
		add_param(m, bytes / sizeof(float));
	for (size_t i = 0; strcmp(spec, "mlp") == 0 && i < sizeof(mlp) / sizeof(*mlp);
		i++)
		add_param(m, mlp[i]);
	for (size_t i = 0; strcmp(spec, "resnet50") == 0 && i < RESNET50_COUNT; i++)
		add_param(m, resnet50_elements[i]);
	*out = m;
	if (m->size)
		return 0;
	snprintf(error->text, sizeof(error->text), "must be flat:BYTES, mlp or resnet50");
	free(m);
	return -EINVAL;
}

void tern_model_free(struct tern_model *model)
{
	free(model);
}

int tern_model_context(const char *spec, struct tern_data_error *error)
{
	(void)spec, (void)error;
	return 0;
}

const struct tern_param *tern_model_params(const struct tern_model *model, size_t *count)
{
	*count = model->count;
	return model->params;
}

uint64_t tern_model_size(const struct tern_model *model)
{
	return model->size;
}

void tern_model_record(const struct tern_model *model, size_t *floats, size_t *symbols)
{
	*floats = model->floats;
	*symbols = 0;
}

struct tern_workspace *tern_workspace_new(const struct tern_model *model, size_t rows)
{
	(void)model, (void)rows;
	return calloc(1, sizeof(struct tern_workspace));
}

void tern_workspace_free(struct tern_workspace *workspace)
{
	free(workspace);
}

static bool is_written(struct tern_workspace *w, const float *grads)
{
	for (unsigned i = 0; i < w->written_count; i++) {
		if (w->written[i] == grads)
			return true;
	}
	if (w->written_count < BUFFERS_MAX)
		w->written[w->written_count++] = grads;
	return false;
}

static float gradient_at(uint64_t i)
{
	return (float)(i % 8) / 8;
}

/* Checks some parameters, and so the arithmetic of the servers. If one is wrong, the
 * caller returns the loss NaN, which ends the job. */
static bool are_right(const float *params, uint64_t size, uint64_t steps)
{
	for (uint64_t k = 0; k < CHECKS; k++) {
		uint64_t i = size / CHECKS * k + k % 8;

		if (i < size && params[i] != -RATE * (float)steps * gradient_at(i))
			return false;
	}
	return true;
}

struct tern_result tern_model_gradient(const struct tern_model *model,
	const struct tern_kernels *kernels, const float *params, float *grads,
	const struct tern_batch *batch, struct tern_workspace *workspace,
	void (*ready)(void *arg, uint64_t first, uint64_t count), void *arg)
{
	struct tern_result result = {0};

	(void)kernels, (void)batch;
	if (!is_written(workspace, grads)) {
		for (uint64_t i = 0; i < model->size; i++)
			grads[i] = gradient_at(i);
	}
	if (!are_right(params, model->size, workspace->steps++))
		result.loss = (double)NAN;
	if (ready)
		ready(arg, 0, model->size);
	return result;
}

struct tern_result tern_model_evaluate(const struct tern_model *model,
	const struct tern_kernels *kernels, const float *params,
	const struct tern_batch *batch, struct tern_workspace *workspace, float *scores)
{
	(void)model, (void)kernels, (void)params, (void)workspace, (void)batch,
		(void)scores;
	return (struct tern_result){0};
}

double tern_auc(const float *scores, const int32_t *labels, size_t count)
{
	(void)scores, (void)labels, (void)count;
	return (double)NAN;
}

int32_t tern_model_sample(const struct tern_model *model,
	const struct tern_kernels *kernels, const float *params, const int32_t *ids,
	float temperature, float u, struct tern_workspace *workspace)
{
	(void)model, (void)kernels, (void)params, (void)ids, (void)temperature, (void)u,
		(void)workspace;
	return 0;
}

/* This repeats the prototype in client/models/layers.h, which cannot be included: it
 * defines a structure that has the same name as one in this file. */
int32_t tern_model_draw(
	const struct tern_model *model, const float *logits, float temperature, float u);

int32_t tern_model_draw(
	const struct tern_model *model, const float *logits, float temperature, float u)
{
	(void)model, (void)logits, (void)temperature, (void)u;
	return 0;
}
