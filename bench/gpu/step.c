/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training steps of one process on the GPU: forward, loss, backward and Adam, always with
 * the same batch, which stays on the device. The parts that do not change from step to
 * step are captured into a CUDA graph once and launched again. Adam's scalars change with
 * each step, so the update is a separate launch. compare.py drives this program over a
 * pipe, in turns with the same training in PyTorch.
 *
 * usage: gpu_step MODEL FEATURES CLASSES BATCH fp32|tf32 FILE [--no-blas]
 *
 * MODEL is a model as for `tern train`. FEATURES: number of floats of a record, or of
 * symbols of context. FILE has the initial parameters (floats, in the model's order), the
 * batch's records (floats, or 32-bit symbols) and labels (32 bits). The first line on
 * stdout is JSON. Then each line on stdin gets an answer:
 *
 *     reset      start again from the initial parameters; answers "0 0"
 *     N          do N steps; answers the microseconds of the device for all of them, and
 *                the mean loss of the last step, before its update
 */
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "bench/gpu/device.h"
#include "client/models/model.h"

#define LAYERS_MAX 17u

struct layer {
	uint64_t w, b, in, out; /* w and b: offsets of weight and bias in `params` */
	float *y, *dy;
};

struct step {
	struct bench_gpu gpu;
	struct tern_cuda_kernels *k;
	struct tern_optimizer adam;
	bool text;
	uint64_t batch, features, classes;

	uint64_t size; /* number of parameters */
	float *initial, *params, *grads, *m, *v;
	float *x;  /* input of the first dense layer */
	float *dx; /* text models: gradient of x */
	/* Text models: size of the embedding table, which is at offset 0 of `params`. */
	uint64_t embed_width, embed_rows;
	int32_t *ids, *labels;
	struct layer layers[LAYERS_MAX];
	unsigned layer_count;
	struct tern_cuda_result *result;

	CUgraphExec graph;
	uint64_t step_count;
};

/* ---- one training step ---- */

static void forward(struct step *s)
{
	const float *x = s->x;

	if (s->text)
		bench_gpu_done(
			s->k, tern_cuda_embed_forward(s->k, s->x, s->params, s->ids,
				      s->batch * s->features, s->embed_width));
	for (unsigned i = 0; i < s->layer_count; i++) {
		const struct layer *l = &s->layers[i];

		bench_gpu_done(s->k, tern_cuda_dense_forward(s->k, l->y, x,
					     s->params + l->w, s->params + l->b, s->batch,
					     l->in, l->out, i + 1 < s->layer_count));
		x = l->y;
	}
}

static void backward(struct step *s)
{
	const struct layer *top = &s->layers[s->layer_count - 1];

	bench_gpu_done(s->k, tern_cuda_softmax_xent(s->k, s->result, top->dy, top->y,
				     s->labels, s->batch, s->classes));
	for (unsigned i = s->layer_count; i-- > 0;) {
		const struct layer *l = &s->layers[i];

		bench_gpu_done(
			s->k, tern_cuda_dense_backward(s->k, i > 0 ? l[-1].dy : s->dx,
				      s->grads + l->w, s->grads + l->b, l->dy, l->y,
				      i > 0 ? l[-1].y : s->x, s->params + l->w, s->batch,
				      l->in, l->out, i + 1 < s->layer_count));
	}
	if (s->text)
		bench_gpu_done(s->k,
			tern_cuda_embed_backward(s->k, s->grads, s->dx, s->ids,
				s->batch * s->features, s->embed_width, s->embed_rows));
}

static void update(struct step *s)
{
	const struct tern_cuda_tensor all = {.w_out = s->params,
		.w_in = s->params,
		.m = s->m,
		.v = s->v,
		.grads = {s->grads},
		.count = s->size};

	bench_gpu_done(s->k,
		tern_cuda_update(s->k, &s->adam, ++s->step_count, &all, 1, 1, 1, 1));
}

static void run_step(void *arg)
{
	struct step *s = arg;

	bench_gpu_check(&s->gpu, s->gpu.api->graph_launch(s->graph, s->gpu.stream),
		"the graph's launch");
	update(s);
}

/* Captures forward and backward into a graph. They run once before that, since libraries
 * do things at their first call that must not be captured. */
static void capture(struct step *s)
{
	const struct tern_cuda_api *api = s->gpu.api;
	CUgraph graph;

	forward(s);
	backward(s);
	bench_gpu_check(&s->gpu, api->stream_synchronize(s->gpu.stream), "the stream");
	bench_gpu_check(&s->gpu,
		api->stream_begin_capture(
			s->gpu.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
		"the capture's start");
	forward(s);
	backward(s);
	bench_gpu_check(&s->gpu, api->stream_end_capture(s->gpu.stream, &graph),
		"the capture's end");
	bench_gpu_check(
		&s->gpu, api->graph_instantiate(&s->graph, graph, 0), "the graph");
	api->graph_destroy(graph);
}

static void reset(struct step *s)
{
	uint64_t bytes = s->size * sizeof(float);

	bench_gpu_up(&s->gpu, s->params, s->initial, bytes);
	bench_gpu_clear(&s->gpu, s->m, bytes);
	bench_gpu_clear(&s->gpu, s->v, bytes);
	s->step_count = 0;
}

/* ---- preparing ---- */

static float *room(struct step *s, uint64_t count)
{
	return bench_gpu_alloc(&s->gpu, count * sizeof(float));
}

/* Derives the layers from the list of the model's parameters: (weight, bias) of each
 * layer, and for text models the embedding table before them. */
static void lay_out(struct step *s, const char *spec)
{
	const struct tern_dataset like = {
		.kind = s->text ? TERN_DATA_TEXT : TERN_DATA_DENSE,
		.width = (uint32_t)s->features,
		.class_count = (uint32_t)s->classes};
	struct tern_data_error error = {{0}};
	const struct tern_param *params;
	struct tern_model *model;
	size_t count;

	if (tern_model_new(spec, &like, &model, &error) < 0)
		bench_fail(2, "model %s: %s", spec, error.text);
	params = tern_model_params(model, &count);
	s->size = tern_model_size(model);
	if (s->text) {
		s->embed_rows = params[0].shape.dims[0];
		s->embed_width = params[0].shape.dims[1];
	}
	for (size_t i = s->text; i < count; i += 2) {
		struct layer *l = &s->layers[s->layer_count++];

		*l = (struct layer){.w = params[i].first,
			.b = params[i + 1].first,
			.in = params[i].shape.dims[0],
			.out = params[i].shape.dims[1]};
		l->y = room(s, s->batch * l->out);
		l->dy = room(s, s->batch * l->out);
	}
	tern_model_free(model);
}

static void read_up(struct step *s, FILE *file, void *to, uint64_t count)
{
	void *data = malloc(count * 4);

	if (!data || fread(data, 4, count, file) != count)
		bench_fail(2, "the file has too few parameters, records or labels");
	bench_gpu_up(&s->gpu, to, data, count * 4);
	free(data);
}

static void read_file(struct step *s, const char *path)
{
	FILE *file = fopen(path, "rb");

	s->initial = malloc(s->size * sizeof(float));
	if (!file || !s->initial)
		bench_fail(2, "%s: cannot be read", path);
	if (fread(s->initial, sizeof(float), s->size, file) != s->size)
		bench_fail(2, "%s: has fewer parameters than the model's %llu", path,
			(unsigned long long)s->size);
	read_up(s, file, s->text ? (void *)s->ids : s->x, s->batch * s->features);
	read_up(s, file, s->labels, s->batch);
	fclose(file);
}

static void prepare(struct step *s, char **argv, bool with_blas)
{
	struct tern_data_error error;
	int context = tern_model_context(argv[1], &error);
	struct tern_cuda_sizes sizes = {.tf32 = strcmp(argv[5], "tf32") == 0};

	if (context < 0)
		bench_fail(2, "model %s: %s", argv[1], error.text);
	s->text = context > 0;
	s->features = strtoul(argv[2], NULL, 10);
	s->classes = strtoul(argv[3], NULL, 10);
	s->batch = strtoul(argv[4], NULL, 10);
	lay_out(s, argv[1]);
	sizes.xent_rows = s->batch;
	if (s->text) {
		sizes.embed_rows = s->batch * s->features;
		sizes.embed_table_rows = s->embed_rows;
		s->dx = room(s, s->batch * s->features * s->embed_width);
		s->ids = (int32_t *)room(s, s->batch * s->features);
	}
	s->x = room(s, s->batch * s->features * (s->text ? s->embed_width : 1));
	s->labels = (int32_t *)room(s, s->batch);
	s->params = room(s, s->size);
	s->grads = room(s, s->size);
	s->m = room(s, s->size);
	s->v = room(s, s->size);
	s->result = bench_gpu_alloc(&s->gpu, sizeof(*s->result));
	s->k = bench_gpu_table(&s->gpu, with_blas ? s->gpu.blas : NULL, &sizes);
	tern_optimizer_parse("adam", &s->adam);
	read_file(s, argv[6]);
	reset(s);
	capture(s);
}

/* ---- answering the lines on stdin ---- */

static void answer(struct step *s, const char *line)
{
	unsigned long times = strtoul(line, NULL, 10);
	struct tern_cuda_result result;
	double us;

	if (strcmp(line, "reset\n") == 0) {
		reset(s);
		printf("0 0\n");
		return;
	}
	if (times == 0)
		bench_fail(
			2, "expected \"reset\" or a number of steps, not \"%s\"", line);
	us = bench_gpu_time_us(&s->gpu, run_step, s, (unsigned)times);
	bench_gpu_down(&s->gpu, &result, s->result, sizeof(result));
	printf("%.3f %.9g\n", us, result.loss / (double)s->batch);
}

int main(int argc, char **argv)
{
	static struct step s;
	bool no_blas = argc == 8 && strcmp(argv[7], "--no-blas") == 0;
	char line[64];

	if (argc != 7 && !no_blas)
		bench_fail(2,
			"usage: gpu_step MODEL FEATURES CLASSES BATCH fp32|tf32 FILE "
			"[--no-blas]");
	bench_gpu_open(&s.gpu);
	prepare(&s, argv, !no_blas);
	printf("{\"bytes\": %llu, \"workspace_bytes\": %llu, \"fingerprint\": \"%s\"}\n",
		(unsigned long long)(s.gpu.bytes + tern_cuda_kernels_bytes(s.k)),
		(unsigned long long)tern_cuda_kernels_bytes(s.k),
		tern_cuda_kernels_fingerprint(s.k));
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		answer(&s, line);
		fflush(stdout);
	}
	free(s.initial);
	s.gpu.api->graph_exec_destroy(s.graph);
	tern_cuda_kernels_free(s.k);
	bench_gpu_close(&s.gpu);
	return 0;
}
