/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model without arithmetic that replaces client/models/model.c in a build for
 * benchmarks: a training step then costs only what the parameter server costs. The
 * gradient of element i is (i % 8) / 8 and the learning rate 2^-10, so after s steps
 * parameter i is exactly -s 2^-10 (i % 8) / 8 for any number of workers. Every step
 * checks some parameters.
 *
 * The gradient is written once into each buffer and then pushed unchanged, as in the peers'
 * programs. The model's spec names the sizes: "flat:BYTES", "mlp" (784-256-128-10) or
 * "resnet50". With "flat:BYTES,US" each gradient takes US microseconds of processor time.
 *
 * If TERN_NULL_STEPS is PATH, each worker notes in PATH.PID when it begins a gradient
 * (struct mark). The number of steps is then read from the parameters, because a job that
 * goes back to a snapshot makes some steps again, and a worker that comes later begins with
 * a later one.
 */
#include "client/models/model.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench/resnet50.h"

#define RATE        (1.0f / 1024)
#define CHECKS      64u
#define PARAMS_MAX  RESNET50_COUNT
#define BUFFERS_MAX 16u
/* Index of the parameter that tells the number of steps: its gradient is the largest. */
#define TELLING 7u

struct tern_model {
	struct tern_param params[PARAMS_MAX];
	char names[PARAMS_MAX][24];
	size_t count;
	uint64_t size;
	size_t floats;   /* floats per record; records are not used */
	uint64_t cpu_ns; /* processor time of a gradient */
};

/* At the time `ns` of CLOCK_MONOTONIC a worker had the parameters after `step` steps, and began
 * to compute a gradient with them. */
struct mark {
	uint64_t ns, step;
};

struct tern_workspace {
	uint64_t steps;
	int marks; /* file of struct mark; -1: none */
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
	unsigned long long bytes, cpu_us = 0;

	if (!m)
		return -ENOMEM;
	m->floats = data->width;
	if (sscanf(spec, "flat:%llu,%llu", &bytes, &cpu_us) >= 1 &&
		bytes >= sizeof(float))
		add_param(m, bytes / sizeof(float));
	m->cpu_ns = cpu_us * 1000;
	for (size_t i = 0; strcmp(spec, "mlp") == 0 && i < sizeof(mlp) / sizeof(*mlp);
		i++)
		add_param(m, mlp[i]);
	for (size_t i = 0; strcmp(spec, "resnet50") == 0 && i < RESNET50_COUNT; i++)
		add_param(m, resnet50_elements[i]);
	*out = m;
	if (m->size)
		return 0;
	snprintf(error->text, sizeof(error->text),
		"must be flat:BYTES[,US], mlp or resnet50");
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
	const char *path = getenv("TERN_NULL_STEPS");
	struct tern_workspace *w = calloc(1, sizeof(*w));
	char name[4096];

	(void)model, (void)rows;
	if (!w)
		return NULL;
	w->marks = -1;
	if (!path)
		return w;
	snprintf(name, sizeof(name), "%s.%d", path, (int)getpid());
	w->marks = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (w->marks >= 0)
		return w;
	fprintf(stderr, "TERN_NULL_STEPS: %s: %s\n", name, strerror(errno));
	free(w);
	return NULL;
}

void tern_workspace_free(struct tern_workspace *workspace)
{
	if (workspace && workspace->marks >= 0)
		close(workspace->marks);
	free(workspace);
}

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static float gradient_at(uint64_t i)
{
	return (float)(i % 8) / 8;
}

/* True if some of the values, which are spread over all, are `factor` times the gradient. */
static bool are_times(const float *values, uint64_t size, float factor)
{
	for (uint64_t k = 0; k < CHECKS; k++) {
		/* of each of the eight different gradients some */
		uint64_t i = size / CHECKS * k / 8 * 8 + k % 8;

		if (i < size && values[i] != factor * gradient_at(i))
			return false;
	}
	return true;
}

/* A job that goes back to a snapshot has new buffers, which may lie where old ones were: the
 * address alone does not tell that the gradient is there. */
static bool is_written(struct tern_workspace *w, const float *grads, uint64_t size)
{
	for (unsigned i = 0; i < w->written_count; i++) {
		if (w->written[i] == grads)
			return are_times(grads, size, 1);
	}
	if (w->written_count < BUFFERS_MAX)
		w->written[w->written_count++] = grads;
	return false;
}

/* Notes the beginning of a gradient, and returns after how many steps the parameters are.
 * Without a file of marks, or in a model that is too small to tell, steps are counted. */
static uint64_t begin_step(struct tern_workspace *w, const float *params, uint64_t size)
{
	struct mark mark;

	if (w->marks < 0 || size <= TELLING)
		return w->steps++;
	mark.ns = clock_ns(CLOCK_MONOTONIC);
	mark.step = (uint64_t)lroundf(params[TELLING] / (-RATE * gradient_at(TELLING)));
	if (write(w->marks, &mark, sizeof(mark)) != (ssize_t)sizeof(mark))
		fprintf(stderr, "TERN_NULL_STEPS: a step could not be noted\n");
	return mark.step;
}

/* Takes processor time as arithmetic does: a process that is kept from its core by others
 * takes longer. */
static void compute(uint64_t cpu_ns)
{
	uint64_t begin_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);

	while (cpu_ns && clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin_ns < cpu_ns)
		;
}

struct tern_result tern_model_gradient(const struct tern_model *model,
	const struct tern_kernels *kernels, const float *params, float *grads,
	const struct tern_batch *batch, struct tern_workspace *workspace,
	void (*ready)(void *arg, uint64_t first, uint64_t count), void *arg)
{
	struct tern_result result = {0};

	(void)kernels, (void)batch;
	if (!is_written(workspace, grads, model->size)) {
		for (uint64_t i = 0; i < model->size; i++)
			grads[i] = gradient_at(i);
	}
	/* This checks the arithmetic of the servers. The loss NaN ends the job. */
	if (!are_times(params, model->size,
		    -RATE * (float)begin_step(workspace, params, model->size)))
		result.loss = (double)NAN;
	compute(model->cpu_ns);
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
