/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of CUDA kernels for layers. Embeddings must have the same bits as on the CPU.
 * Dense layers and losses must be close to float64, or to the CPU's (which is tested
 * against float64), and have the same bits in a second run.
 */
#include "tests/gpu/gpu.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* ---- dense ---- */

struct shape {
	uint64_t rows, in, out;
};

static const struct shape shapes[] = {{33, 7, 3}, {70, 40, 67}, {33, 17, 1}, {1, 1, 1},
	{5, 1, 4}, {32, 65, 10}, {70, 130, 67}, {3, 64, 128}, {0, 3, 5}, {100, 20, 33}};
static const size_t few_shapes = 2;
static const struct shape large = {1024, 784, 1024};

/* Element (i, j) of a matrix product in float64: the sum over l of a(i, l) * b(l, j). */
static double product(
	const float *a, const float *b, uint64_t depth, uint64_t a_step, uint64_t b_step)
{
	double sum = 0;

	for (uint64_t l = 0; l < depth; l++)
		sum += (double)a[l * a_step] * (double)b[l * b_step];
	return sum;
}

static void check_forward(struct tern_cuda_kernels *k, const struct shape *s, bool relu)
{
	struct twin x = floats_new(s->rows * s->in, 0), w = floats_new(s->in * s->out, 4);
	struct twin b = floats_new(s->out, 0), y = floats_new(s->rows * s->out, 4);
	/* The second result has the same alignment, since cuBLAS may choose its kernel by
	 * the alignment. */
	struct twin again = floats_new(s->rows * s->out, 4);
	double most = 1e-5 * sqrt((double)s->in);

	assert_done(k, tern_cuda_dense_forward(k, y.dev, x.dev, w.dev, b.dev, s->rows,
			       s->in, s->out, relu));
	assert_done(k, tern_cuda_dense_forward(k, again.dev, x.dev, w.dev, b.dev, s->rows,
			       s->in, s->out, relu));
	gpu_down(&y);
	gpu_down(&again);
	assert_memory_equal(y.host, again.host, y.bytes);
	/* Checks all elements of a small result, and some of a large one. */
	for (uint64_t e = 0; e < s->rows * s->out; e += 1 + s->rows * s->out / 10000) {
		uint64_t i = e / s->out, j = e % s->out;
		double wanted = (double)host_f32(&b)[j] +
				product(host_f32(&x) + i * s->in, host_f32(&w) + j, s->in,
					1, s->out);

		assert_near(
			(double)host_f32(&y)[e], relu ? fmax(0, wanted) : wanted, most);
	}
	twin_free(&x);
	twin_free(&w);
	twin_free(&b);
	twin_free(&y);
	twin_free(&again);
}

struct gradients {
	struct twin dx, dw, db, dy;
};

/* Computes the gradients from a copy of dy, since the kernels may overwrite dy. */
static struct gradients gradients_of(struct tern_cuda_kernels *k, const struct shape *s,
	const struct twin *dy, const struct twin *y, const struct twin *x,
	const struct twin *w, bool relu, bool with_x)
{
	struct gradients g = {floats_new(s->rows * s->in, 0),
		floats_new(s->in * s->out, 4), floats_new(s->out, 0), copy_new(dy, 4)};

	assert_done(k,
		tern_cuda_dense_backward(k, with_x ? g.dx.dev : NULL, g.dw.dev, g.db.dev,
			g.dy.dev, y->dev, x->dev, w->dev, s->rows, s->in, s->out, relu));
	gpu_down(&g.dx);
	gpu_down(&g.dw);
	gpu_down(&g.db);
	gpu_down(&g.dy);
	return g;
}

static void gradients_free(struct gradients *g)
{
	twin_free(&g->dx);
	twin_free(&g->dw);
	twin_free(&g->db);
	twin_free(&g->dy);
}

static void check_gradients(const struct gradients *g, const struct shape *s,
	const float *dy, const float *y, const float *x, const float *w, bool relu)
{
	const float *masked = g->dy.host;
	double most = 1e-5 * sqrt((double)(s->rows + s->out));

	for (uint64_t e = 0; e < s->rows * s->out; e++)
		assert_true(masked[e] == (relu && !(y[e] > 0) ? 0 : dy[e]));
	for (uint64_t j = 0; j < s->out; j++) {
		const float one = 1;

		assert_near((double)host_f32(&g->db)[j],
			product(masked + j, &one, s->rows, s->out, 0), most);
	}
	for (uint64_t e = 0; e < s->in * s->out; e += 1 + s->in * s->out / 10000)
		assert_near((double)host_f32(&g->dw)[e],
			product(x + e / s->out, masked + e % s->out, s->rows, s->in,
				s->out),
			most);
	for (uint64_t e = 0; e < s->rows * s->in; e += 1 + s->rows * s->in / 10000)
		assert_near((double)host_f32(&g->dx)[e],
			product(masked + e / s->in * s->out, w + e % s->in * s->out,
				s->out, 1, 1),
			most);
}

static void check_backward(struct tern_cuda_kernels *k, const struct shape *s, bool relu)
{
	struct twin x = floats_new(s->rows * s->in, 0), w = floats_new(s->in * s->out, 0);
	struct twin y = floats_new(s->rows * s->out, 0),
		    dy = floats_new(s->rows * s->out, 0);
	struct gradients one, two;

	for (uint64_t e = 0; e < s->rows * s->out; e++)
		host_f32(&y)[e] = fmaxf(0, host_f32(&y)[e]);
	gpu_up(&y);
	one = gradients_of(k, s, &dy, &y, &x, &w, relu, true);
	two = gradients_of(k, s, &dy, &y, &x, &w, relu, false);
	check_gradients(&one, s, dy.host, y.host, x.host, w.host, relu);
	assert_memory_equal(one.dw.host, two.dw.host, one.dw.bytes);
	assert_memory_equal(one.db.host, two.db.host, one.db.bytes);
	gradients_free(&one);
	gradients_free(&two);
	twin_free(&x);
	twin_free(&w);
	twin_free(&y);
	twin_free(&dy);
}

static void test_dense_is_close_to_float64_and_the_same_again(void **state)
{
	size_t used = gpu.scale == GPU_FEW ? few_shapes : TERN_ARRAY_SIZE(shapes);

	(void)state;
	/* GPU_FEW tests only the last table (Tern's own products), not cuBLAS. */
	for (size_t t = gpu.scale == GPU_FEW ? gpu.table_count - 1 : 0;
		t < gpu.table_count; t++)
		for (int relu = 0; relu < 2; relu++) {
			for (size_t s = 0; s < used; s++) {
				check_forward(gpu.tables[t], &shapes[s], relu);
				check_backward(gpu.tables[t], &shapes[s], relu);
			}
			if (gpu.scale == GPU_LARGE) {
				check_forward(gpu.tables[t], &large, relu);
				check_backward(gpu.tables[t], &large, relu);
			}
		}
}

/* ---- softmax and cross-entropy ---- */

struct xent {
	struct twin logits, labels, d, result;
	uint64_t rows, classes;
};

static struct xent xent_new(uint64_t rows, uint64_t classes, float magnitude)
{
	struct xent x = {.rows = rows,
		.classes = classes,
		.logits = floats_new(rows * classes, 4),
		.labels = twin_new(rows * sizeof(int32_t), 0),
		.d = floats_new(rows * classes, 0),
		.result = twin_new(sizeof(struct tern_cuda_result), 0)};

	for (uint64_t j = 0; j < rows * classes; j++)
		host_f32(&x.logits)[j] *= magnitude;
	for (uint64_t i = 0; i < rows; i++)
		((int32_t *)x.labels.host)[i] =
			(int32_t)tern_rng_below(&gpu_rng, classes);
	gpu_up(&x.logits);
	gpu_up(&x.labels);
	return x;
}

static void xent_free(struct xent *x)
{
	twin_free(&x->logits);
	twin_free(&x->labels);
	twin_free(&x->d);
	twin_free(&x->result);
}

static struct tern_cuda_result xent_run(struct xent *x, struct twin *d)
{
	struct tern_cuda_kernels *k = gpu.tables[0];
	struct tern_cuda_result result;

	assert_done(k, tern_cuda_softmax_xent(k, x->result.dev, d ? d->dev : NULL,
			       x->logits.dev, x->labels.dev, x->rows, x->classes));
	gpu_down(&x->result);
	if (d)
		gpu_down(d);
	memcpy(&result, x->result.host, sizeof(result));
	return result;
}

static void check_xent(uint64_t rows, uint64_t classes, float magnitude)
{
	struct xent x = xent_new(rows, classes, magnitude);
	struct twin wanted = floats_new(rows * classes, 0);
	struct tern_cuda_result one, two, three;
	size_t correct;
	double loss = tern_kernels_cpu()->softmax_xent(
		wanted.host, x.logits.host, x.labels.host, rows, classes, &correct);

	one = xent_run(&x, &x.d);
	assert_near(one.loss, loss, 1e-9 * (1 + fabs(loss)));
	assert_int_equal(one.correct, correct);
	for (uint64_t j = 0; j < rows * classes; j++)
		assert_near((double)host_f32(&x.d)[j], (double)host_f32(&wanted)[j],
			3e-7 / (double)rows);
	/* Without the gradient, and with the gradient in place: both must give the same
	 * bits. */
	two = xent_run(&x, NULL);
	assert_memory_equal(&one, &two, sizeof(one));
	three = xent_run(&x, &x.logits);
	assert_memory_equal(&one, &three, sizeof(one));
	assert_memory_equal(x.logits.host, x.d.host, x.d.bytes);
	xent_free(&x);
	twin_free(&wanted);
}

static void test_softmax_xent_is_close_to_the_cpu_and_the_same_again(void **state)
{
	static const float magnitudes[] = {1.0f, 30.0f, 1000.0f, 1e30f};

	size_t used = gpu.scale == GPU_FEW ? 2 : TERN_ARRAY_SIZE(magnitudes);

	(void)state;
	for (size_t m = 0; m < used; m++) {
		check_xent(1, 2, magnitudes[m]);
		check_xent(13, 10, magnitudes[m]);
		check_xent(3, 257, magnitudes[m]);
		check_xent(4, 1, magnitudes[m]);
		check_xent(gpu.scale == GPU_FEW ? 30 : 1030, 33, magnitudes[m]);
	}
	check_xent(0, 3, 1.0f);
}

static void test_first_of_equal_logits_counts_and_nan_is_above_nothing(void **state)
{
	static const float logits[][3] = {{1, 3, 3}, {3, 3, 1}, {0, 0, 0}, {1, NAN, 2},
		{NAN, 5, 6}, {-INFINITY, -INFINITY, -INFINITY}, {2, INFINITY, INFINITY}};
	const uint64_t rows = TERN_ARRAY_SIZE(logits);

	(void)state;
	for (int32_t label = 0; label < 3; label++) {
		struct xent x = xent_new(rows, 3, 1);
		size_t correct;

		memcpy(x.logits.host, logits, sizeof(logits));
		for (uint64_t i = 0; i < rows; i++)
			((int32_t *)x.labels.host)[i] = label;
		gpu_up(&x.logits);
		gpu_up(&x.labels);
		tern_kernels_cpu()->softmax_xent(
			NULL, x.logits.host, x.labels.host, rows, 3, &correct);
		assert_int_equal(xent_run(&x, NULL).correct, correct);
		xent_free(&x);
	}
}

/* ---- embeddings ---- */

struct embed {
	struct twin ids, table, y, dy, dtable;
	uint64_t rows, width, table_rows;
};

/* Returns an embedding whose ids are random: about a third of them are equal, and the
 * last row of a table with several rows never occurs. */
static struct embed embed_new(uint64_t rows, uint64_t width, uint64_t table_rows)
{
	struct embed e = {.rows = rows,
		.width = width,
		.table_rows = table_rows,
		.ids = twin_new(rows * sizeof(int32_t), 0),
		.table = floats_new(table_rows * width, 0),
		.y = floats_new(rows * width, width % 2 ? 4 : 0),
		.dy = floats_new(rows * width, 4),
		.dtable = floats_new(table_rows * width, 0)};

	for (uint64_t i = 0; i < rows; i++)
		((int32_t *)e.ids.host)[i] =
			tern_rng_below(&gpu_rng, 3) == 0
				? (int32_t)(table_rows / 2)
				: (int32_t)tern_rng_below(
					  &gpu_rng, table_rows - (table_rows > 1));
	gpu_up(&e.ids);
	return e;
}

static void embed_free(struct embed *e)
{
	twin_free(&e->ids);
	twin_free(&e->table);
	twin_free(&e->y);
	twin_free(&e->dy);
	twin_free(&e->dtable);
}

static void check_embed(uint64_t rows, uint64_t width, uint64_t table_rows)
{
	struct tern_cuda_kernels *k = gpu.tables[0];
	struct embed e = embed_new(rows, width, table_rows);
	float *y = malloc(e.y.bytes + 1), *dtable = malloc(e.dtable.bytes + 1);

	assert_true(y && dtable);
	tern_kernels_cpu()->embed_forward(y, e.table.host, e.ids.host, rows, width);
	assert_done(k,
		tern_cuda_embed_forward(k, e.y.dev, e.table.dev, e.ids.dev, rows, width));
	gpu_down(&e.y);
	assert_memory_equal(e.y.host, y, e.y.bytes);
	tern_kernels_cpu()->embed_backward(
		dtable, e.dy.host, e.ids.host, rows, width, table_rows);
	assert_done(k, tern_cuda_embed_backward(k, e.dtable.dev, e.dy.dev, e.ids.dev,
			       rows, width, table_rows));
	gpu_down(&e.dtable);
	assert_memory_equal(e.dtable.host, dtable, e.dtable.bytes);
	free(y);
	free(dtable);
	embed_free(&e);
}

static void test_embeddings_have_the_bits_of_the_cpu(void **state)
{
	(void)state;
	check_embed(0, 5, 3);
	check_embed(1, 1, 1);
	check_embed(40, 5, 7);
	check_embed(1025, 33, 9);
	if (gpu.scale == GPU_FEW)
		return;
	check_embed(1023, 16, 60);
	check_embed(4096, 16, 101);
	check_embed(8192, 3, 1100);
}

static void test_embeddings_of_many_rows_are_sorted_and_have_the_bits_of_the_cpu(
	void **state)
{
	(void)state;
	check_embed(16385, 3, 17);
	if (gpu.scale == GPU_FEW)
		return;
	check_embed(16385, 3, 1);
	check_embed(8193, 3, 1100);
	check_embed(20481, 33, 300);
	check_embed(20000, 5, 16);
	check_embed(GPU_EMBED_ROWS, 1, GPU_EMBED_TABLE_ROWS);
}

/* ---- graphs ---- */

struct step { /* memory of one step: a dense layer with a loss, and an embedding */
	struct twin x, w, b, y, dx, dw, db;
	struct xent xent;
	struct embed embed;
};

static const struct shape step_shape = {37, 20, 10};

static struct step step_new(void)
{
	const struct shape *s = &step_shape;

	return (struct step){.x = floats_new(s->rows * s->in, 0),
		.w = floats_new(s->in * s->out, 0),
		.b = floats_new(s->out, 0),
		.y = floats_new(s->rows * s->out, 0),
		.dx = floats_new(s->rows * s->in, 0),
		.dw = floats_new(s->in * s->out, 0),
		.db = floats_new(s->out, 0),
		.xent = xent_new(s->rows, s->out, 1),
		.embed = embed_new(50, 7, 9)};
}

static void step_put(struct tern_cuda_kernels *k, struct step *p)
{
	const struct shape *s = &step_shape;

	assert_done(k, tern_cuda_dense_forward(k, p->y.dev, p->x.dev, p->w.dev, p->b.dev,
			       s->rows, s->in, s->out, true));
	assert_done(k, tern_cuda_softmax_xent(k, p->xent.result.dev, p->xent.d.dev,
			       p->y.dev, p->xent.labels.dev, s->rows, s->out));
	assert_done(k, tern_cuda_dense_backward(k, p->dx.dev, p->dw.dev, p->db.dev,
			       p->xent.d.dev, p->y.dev, p->x.dev, p->w.dev, s->rows,
			       s->in, s->out, true));
	assert_done(k, tern_cuda_embed_backward(k, p->embed.dtable.dev, p->embed.dy.dev,
			       p->embed.ids.dev, p->embed.rows, p->embed.width,
			       p->embed.table_rows));
}

static void step_free(struct step *p)
{
	struct twin *twins[] = {&p->x, &p->w, &p->b, &p->y, &p->dx, &p->dw, &p->db};

	for (size_t i = 0; i < TERN_ARRAY_SIZE(twins); i++)
		twin_free(twins[i]);
	xent_free(&p->xent);
	embed_free(&p->embed);
}

/* Launches the graph and compares its results; `wanted` has those of a step without a
 * graph. */
static void check_graph(CUgraphExec exec, struct twin *const *out,
	const struct twin *wanted, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		memset(out[i]->host, 0, out[i]->bytes);
		gpu_up(out[i]);
	}
	assert_int_equal(gpu.api->graph_launch(exec, gpu.stream), CUDA_SUCCESS);
	for (size_t i = 0; i < count; i++) {
		gpu_down(out[i]);
		assert_memory_equal(out[i]->host, wanted[i].host, wanted[i].bytes);
	}
}

static void test_a_step_in_a_graph_gives_the_same_bits_each_time(void **state)
{
	const struct tern_cuda_api *api = gpu.api;

	(void)state;
	for (size_t t = gpu.scale == GPU_FEW ? gpu.table_count - 1 : 0;
		t < gpu.table_count; t++) {
		struct step p = step_new();
		struct twin *out[] = {&p.y, &p.dx, &p.dw, &p.db, &p.xent.d,
			&p.xent.result, &p.embed.dtable};
		struct twin wanted[TERN_ARRAY_SIZE(out)];
		CUgraph graph;
		CUgraphExec exec;

		step_put(gpu.tables[t], &p);
		for (size_t i = 0; i < TERN_ARRAY_SIZE(out); i++) {
			gpu_down(out[i]);
			wanted[i] = copy_new(out[i], 0);
		}
		assert_int_equal(api->stream_begin_capture(
					 gpu.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
			CUDA_SUCCESS);
		step_put(gpu.tables[t], &p);
		assert_int_equal(
			api->stream_end_capture(gpu.stream, &graph), CUDA_SUCCESS);
		assert_int_equal(api->graph_instantiate(&exec, graph, 0), CUDA_SUCCESS);
		for (int again = gpu.scale == GPU_FEW; again < 2; again++)
			check_graph(exec, out, wanted, TERN_ARRAY_SIZE(out));
		api->graph_exec_destroy(exec);
		api->graph_destroy(graph);
		for (size_t i = 0; i < TERN_ARRAY_SIZE(out); i++)
			twin_free(&wanted[i]);
		step_free(&p);
	}
}

/* ---- what is refused ---- */

static void test_sizes_beyond_the_workspace_are_refused_with_a_line(void **state)
{
	struct tern_cuda_kernels *k = gpu.tables[0];

	(void)state;
	assert_int_equal(tern_cuda_softmax_xent(
				 k, NULL, NULL, NULL, NULL, GPU_XENT_ROWS + 1ull, 2),
		-E2BIG);
	assert_non_null(strstr(tern_cuda_kernels_error(k), "4097"));
	assert_int_equal(tern_cuda_embed_backward(
				 k, NULL, NULL, NULL, GPU_EMBED_ROWS + 1ull, 1, 1),
		-E2BIG);
	assert_int_equal(tern_cuda_embed_backward(
				 k, NULL, NULL, NULL, 1, 1, GPU_EMBED_TABLE_ROWS + 1ull),
		-E2BIG);
	assert_non_null(strstr(tern_cuda_kernels_error(k), "5001"));
}

int gpu_run_layers(CMFixtureFunction setup, CMFixtureFunction teardown)
{
	const struct CMUnitTest layers[] = {
		cmocka_unit_test(test_dense_is_close_to_float64_and_the_same_again),
		cmocka_unit_test(
			test_softmax_xent_is_close_to_the_cpu_and_the_same_again),
		cmocka_unit_test(
			test_first_of_equal_logits_counts_and_nan_is_above_nothing),
		cmocka_unit_test(test_embeddings_have_the_bits_of_the_cpu),
		cmocka_unit_test(
			test_embeddings_of_many_rows_are_sorted_and_have_the_bits_of_the_cpu),
		cmocka_unit_test(test_a_step_in_a_graph_gives_the_same_bits_each_time),
		cmocka_unit_test(test_sizes_beyond_the_workspace_are_refused_with_a_line),
	};

	return cmocka_run_group_tests(layers, setup, teardown);
}
