/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time that a worker needs for a gradient on the GPU, with CUDA graphs and with plain
 * launches: parameters to the GPU, forward, backward, gradients back, by the CPU's clock.
 * Each step has new parameters, as in training. Two engines of one process are measured
 * in turn (plain, graphs, graphs, plain). The note of a row counts how often the CUDA event
 * of a part of the gradient was done before the part was in host memory ("late"), so that
 * the engine had to spin until it was.
 *
 * usage: gpu_graphs [--smoke], which prints samples as gpu_rates does.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/util.h"
#include "bench/gpu/device.h"
#include "client/engine/cuda.h"

#define ROUNDS_MAX 16
#define FEATURES   784u
#define CLASSES    10u
#define PLAIN      1u

struct graphs {
	struct bench_gpu gpu;
	struct tern_model *model;
	/* index 0: with graphs, 1 (PLAIN): with plain launches */
	struct tern_engine *engines[2];
	/* parts of gradients that both engines have reported as arrived */
	uint64_t parts;
	size_t bytes; /* size of each array below */
	float *params[2], *grads[2];
	uint64_t version;
	unsigned rounds, times;
};

/* ---- preparing ---- */

static float *map_floats(size_t bytes)
{
	void *p = mmap(
		NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		bench_fail(1, "out of memory");
	return p;
}

static void require(const struct tern_engine *e, int status)
{
	if (status < 0)
		bench_fail(1, "%s", e->error);
}

static void fill_batch(struct tern_engine *e, size_t rows)
{
	struct tern_rng rng = {.seed = 5};

	e->batch.rows = rows;
	for (size_t i = 0; i < rows * FEATURES; i++)
		e->batch.x[i] = tern_unit_f32(tern_rng_next(&rng));
	for (size_t i = 0; i < rows; i++)
		e->batch.labels[i] = (int32_t)tern_rng_below(&rng, CLASSES);
}

static void open_engine(struct graphs *g, unsigned plain, size_t rows)
{
	const struct tern_engine_cuda_opts opts = {.api = g->gpu.api,
		.blas = g->gpu.blas,
		.model = g->model,
		.rows = rows,
		.no_graphs = plain == PLAIN};
	struct tern_engine **e = &g->engines[plain];
	char why[400];

	if (tern_engine_cuda_new(&opts, e, why, sizeof(why)) < 0)
		bench_fail(1, "%s", why);
	for (unsigned i = 0; i < 2; i++) {
		require(*e, tern_engine_pin(*e, g->params[i], g->bytes));
		require(*e, tern_engine_pin(*e, g->grads[i], g->bytes));
	}
	fill_batch(*e, rows);
}

static void open_model(struct graphs *g, const char *spec)
{
	const struct tern_dataset like = {
		.kind = TERN_DATA_DENSE, .width = FEATURES, .class_count = CLASSES};
	struct tern_data_error error = {{0}};
	const struct tern_param *params;
	size_t count;

	if (tern_model_new(spec, &like, &g->model, &error) < 0)
		bench_fail(1, "model %s: %s", spec, error.text);
	g->bytes = tern_align_up(tern_model_size(g->model) * sizeof(float), 4096);
	params = tern_model_params(g->model, &count);
	for (unsigned i = 0; i < 2; i++) {
		g->params[i] = map_floats(g->bytes);
		g->grads[i] = map_floats(g->bytes);
		for (size_t p = 0; p < count; p++)
			tern_param_init(&params[p], 11 + i, 0, params[p].count,
				g->params[i] + params[p].first);
	}
}

/* ---- measuring ---- */

static void count_part(void *arg, uint64_t first, uint64_t count)
{
	struct graphs *g = arg;

	(void)first, (void)count;
	g->parts++;
}

/* Computes one gradient with new parameters. The two buffers of parameters and gradients
 * are used in turn, so both engines get the same addresses in the same order. */
static void step(struct graphs *g, unsigned plain)
{
	unsigned parity = g->version % 2;
	const struct tern_engine_params params = {g->params[parity], ++g->version};
	struct tern_engine *e = g->engines[plain];
	struct tern_result result;

	require(e, tern_engine_gradient(
			   e, &params, g->grads[parity], count_part, g, &result));
}

static double time_us(struct graphs *g, unsigned plain)
{
	uint64_t start_ns = tern_clock_ns();

	for (unsigned i = 0; i < g->times; i++)
		step(g, plain);
	return (double)(tern_clock_ns() - start_ns) / 1000;
}

/* Returns why the two engines cannot be compared; NULL: they compute the same bits, and
 * one of them uses graphs. */
static const char *difference(struct graphs *g)
{
	float *wanted = map_floats(g->bytes);
	bool same;

	g->version = 0;
	step(g, PLAIN);
	memcpy(wanted, g->grads[0], g->bytes);
	g->version = 0;
	for (unsigned i = 0; i < 5; i++)
		step(g, !PLAIN);
	same = memcmp(wanted, g->grads[0], g->bytes) == 0;
	munmap(wanted, g->bytes);
	if (!same)
		return "the gradients differ";
	return strstr(g->engines[!PLAIN]->name, "CUDA graphs") &&
			       !*g->engines[!PLAIN]->note
		       ? NULL
		       : "the engine uses no graphs";
}

static void run_model(struct graphs *g, const char *spec, size_t rows)
{
	double ours[2 * ROUNDS_MAX], plain[2 * ROUNDS_MAX];
	char name[96], note[96];
	uint64_t late[2];
	const char *wrong;

	open_model(g, spec);
	for (unsigned i = 0; i < 2; i++)
		open_engine(g, i, rows);
	wrong = difference(g);
	g->parts = 0;
	for (unsigned i = 0; i < 2; i++)
		late[i] = g->engines[i]->late_events;
	for (unsigned i = 0; i < g->rounds; i++) {
		plain[2 * i] = time_us(g, PLAIN);
		for (unsigned j = 0; j < 2; j++)
			ours[2 * i + j] = time_us(g, !PLAIN);
		plain[2 * i + 1] = time_us(g, PLAIN);
	}
	snprintf(name, sizeof(name), "gradient of %s, batch %zu, graphs", spec, rows);
	snprintf(note, sizeof(note), "%llu of %llu events late with graphs, %llu without",
		(unsigned long long)(g->engines[!PLAIN]->late_events - late[!PLAIN]),
		(unsigned long long)g->parts / 2,
		(unsigned long long)(g->engines[PLAIN]->late_events - late[PLAIN]));
	bench_gpu_row(&(struct bench_gpu_row){.name = name,
		.peer = "plain launches",
		.goal = 1,
		.ours_us = ours,
		.ours_count = 2 * g->rounds,
		.peer_us = plain,
		.peer_count = 2 * g->rounds,
		.times = g->times,
		.wrong = wrong,
		.note = note});
	for (unsigned i = 0; i < 2; i++) {
		tern_engine_unpin(g->engines[i]);
		tern_engine_free(g->engines[i]);
		munmap(g->params[i], g->bytes);
		munmap(g->grads[i], g->bytes);
	}
	tern_model_free(g->model);
}

int main(int argc, char **argv)
{
	static const unsigned rounds[] = {2, 3, 9}, times[] = {3, 20, 200};
	static struct graphs g;
	enum bench_gpu_scale scale = bench_gpu_scale(argc, argv);

	bench_gpu_open(&g.gpu);
	g.rounds = rounds[scale];
	g.times = times[scale];
	if (scale == BENCH_GPU_FEW) {
		run_model(&g, "mlp:16", 8);
	} else {
		run_model(&g, "mlp:256,128", 128);
		run_model(&g, "mlp:1024,1024", 1024);
	}
	bench_gpu_close(&g.gpu);
	return 0;
}
