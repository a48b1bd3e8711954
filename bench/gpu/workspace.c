/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrix products of a gradient with other sizes of cuBLAS's workspace, beside the
 * size that Tern gives it: for each dense layer of the models that compare.py trains, and
 * of two more, forward and backward. A table of kernels with another workspace is the shipped table
 * over functions of cuBLAS of which one is replaced: it sets the other workspace. So Tern
 * itself has no setting for it. The note of a row says whether the results have the same
 * bits as with the shipped workspace: the size decides which algorithms cuBLAS may
 * choose. For each size, a second run must give the bits of the first.
 *
 * usage: gpu_workspace [--smoke], which prints samples as gpu_rates does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "bench/gpu/device.h"

#define LAYERS_MAX 3u

/* 16 KiB is the least with which no function of cuBLAS fails, says its documentation. */
static const struct size {
	const char *name;
	size_t bytes;
} sizes[] = {
	{"16 KiB", 16u << 10},
	{"4 MiB", 4u << 20},
	{"32 MiB", 32u << 20}, /* the shipped size, beside itself */
	{"128 MiB", 128u << 20},
};

struct model {
	const char *name;
	uint64_t rows; /* rows of a batch */
	/* inputs of the first layer, and outputs of each layer; 0: no more layers */
	uint64_t widths[LAYERS_MAX + 1];
};

static const struct model models[] = {
	{"mlp:1024,1024, batch 1024", 1024, {784, 1024, 1024, 10}},
	{"charlm:16,16,256, batch 256", 256, {256, 256, 96}},
	{"mlp:256,128, batch 128", 128, {784, 256, 128, 10}},
	{"mlp:4096,4096, batch 32", 32, {784, 4096, 4096, 10}},
};
static const struct model small = {"mlp:16, batch 8", 8, {12, 16, 10}};

struct layer {
	uint64_t in, out;
	float *x, *w, *b, *dy;   /* inputs */
	float *y, *dx, *dw, *db; /* results, parts of `results` below */
};

struct workspace {
	struct bench_gpu gpu;
	const struct model *model;
	struct layer layers[LAYERS_MAX];
	unsigned layer_count;
	float *results; /* results of all layers, in device memory */
	size_t result_bytes;
	void *first, *second, *shipped; /* copies of the results in host memory */
	unsigned rounds, times;
};

/* A table of kernels, and the layers that it computes. */
struct side {
	struct workspace *s;
	struct tern_cuda_kernels *k;
};

/* ---- cuBLAS with its replaced function ---- */

static const struct tern_cublas_api *real;
static struct tern_cublas_api replaced;
static void *memory; /* the workspace: device memory of the largest size */
static const struct size *present;
/* Size of the workspace with which Tern ships: the size that its kernels pass to
 * set_workspace(). set_present() notes it, and sets present->bytes instead. */
static size_t shipped_bytes;

static int set_present(void *handle, void *workspace, size_t bytes)
{
	(void)workspace;
	shipped_bytes = bytes;
	return real->set_workspace(handle, memory, present->bytes);
}

static struct tern_cuda_kernels *open_size(struct workspace *s, const struct size *size)
{
	static const struct tern_cuda_sizes none;

	real = s->gpu.blas;
	replaced = *real;
	replaced.set_workspace = set_present;
	present = size;
	return bench_gpu_table(&s->gpu, &replaced, &none);
}

/* ---- the products of a gradient ---- */

static void run_layers(void *arg)
{
	const struct side *side = arg;
	struct tern_cuda_kernels *k = side->k;
	uint64_t rows = side->s->model->rows;

	for (unsigned i = 0; i < side->s->layer_count; i++) {
		const struct layer *l = &side->s->layers[i];

		bench_gpu_done(k, tern_cuda_dense_forward(k, l->y, l->x, l->w, l->b, rows,
					  l->in, l->out, false));
		bench_gpu_done(k, tern_cuda_dense_backward(k, l->dx, l->dw, l->db, l->dy,
					  l->y, l->x, l->w, rows, l->in, l->out, false));
	}
}

static void compute(struct side *side, void *results)
{
	struct workspace *s = side->s;

	bench_gpu_clear(&s->gpu, s->results, s->result_bytes);
	run_layers(side);
	bench_gpu_down(&s->gpu, results, s->results, s->result_bytes);
}

/* ---- preparing ---- */

static void *host_bytes(size_t bytes)
{
	void *p = malloc(bytes);

	if (!p)
		bench_fail(1, "out of memory");
	return p;
}

/* Returns the memory at *at, and moves *at behind its `count` floats. */
static float *take(float **at, uint64_t count)
{
	float *p = *at;

	*at += count;
	return p;
}

static void open_model(struct workspace *s, const struct model *m)
{
	uint64_t total = 0;
	float *at;

	s->model = m;
	s->layer_count = 0;
	for (unsigned i = 0; i < LAYERS_MAX && m->widths[i + 1]; i++) {
		struct layer *l = &s->layers[s->layer_count++];

		*l = (struct layer){.in = m->widths[i], .out = m->widths[i + 1]};
		l->x = bench_gpu_floats(&s->gpu, m->rows * l->in, -1);
		l->w = bench_gpu_floats(&s->gpu, l->in * l->out, -1);
		l->b = bench_gpu_floats(&s->gpu, l->out, -1);
		l->dy = bench_gpu_floats(&s->gpu, m->rows * l->out, -1);
		total += (m->rows + 1) * l->out + (m->rows + l->out) * l->in;
	}
	s->result_bytes = total * sizeof(float);
	s->results = at = bench_gpu_alloc(&s->gpu, s->result_bytes);
	for (unsigned i = 0; i < s->layer_count; i++) {
		struct layer *l = &s->layers[i];

		l->y = take(&at, m->rows * l->out);
		l->dx = take(&at, m->rows * l->in);
		l->dw = take(&at, l->in * l->out);
		l->db = take(&at, l->out);
	}
	s->first = host_bytes(s->result_bytes);
	s->second = host_bytes(s->result_bytes);
	s->shipped = host_bytes(s->result_bytes);
}

static void close_model(struct workspace *s)
{
	free(s->first);
	free(s->second);
	free(s->shipped);
}

/* ---- measuring ---- */

static void run_size(struct workspace *s, struct side *shipped, const struct size *size)
{
	struct side other = {s, NULL};
	const struct bench_gpu_work ours = {run_layers, &other},
				    peer = {run_layers, shipped};
	char name[96], beside[32] = "the shipped size";
	struct bench_gpu_row row = {.name = name,
		.peer = beside,
		.times = s->times,
		.missing = s->gpu.blas ? NULL : s->gpu.no_blas};

	snprintf(name, sizeof(name), "products of %s, %s for cuBLAS", s->model->name,
		size->name);
	if (row.missing) {
		bench_gpu_row(&row);
		return;
	}
	other.k = open_size(s, size);
	snprintf(beside, sizeof(beside), "%zu MiB", shipped_bytes >> 20);
	compute(&other, s->first);
	compute(&other, s->second);
	compute(shipped, s->shipped);
	if (memcmp(s->first, s->second, s->result_bytes) != 0)
		row.wrong = "a second run gave other bits";
	row.note = memcmp(s->first, s->shipped, s->result_bytes) == 0 ? "the same bits"
								      : "other bits";
	bench_gpu_turns(&s->gpu, &ours, &peer, s->rounds, &row);
	tern_cuda_kernels_free(other.k);
}

static void run_model(struct workspace *s, const struct model *m)
{
	static const struct tern_cuda_sizes none;
	struct side shipped = {s, NULL};

	open_model(s, m);
	shipped.k = bench_gpu_table(&s->gpu, s->gpu.blas, &none);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(sizes); i++)
		run_size(s, &shipped, &sizes[i]);
	tern_cuda_kernels_free(shipped.k);
	close_model(s);
}

int main(int argc, char **argv)
{
	static const unsigned rounds[] = {2, 3, 9}, times[] = {1, 5, 50};
	static struct workspace s;
	enum bench_gpu_scale scale = bench_gpu_scale(argc, argv);

	bench_gpu_open(&s.gpu);
	memory = bench_gpu_alloc(&s.gpu, sizes[TERN_ARRAY_SIZE(sizes) - 1].bytes);
	s.rounds = rounds[scale];
	s.times = times[scale];
	if (scale == BENCH_GPU_FEW)
		run_model(&s, &small);
	else
		for (size_t i = 0; i < TERN_ARRAY_SIZE(models); i++)
			run_model(&s, &models[i]);
	bench_gpu_close(&s.gpu);
	return 0;
}
