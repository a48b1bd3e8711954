/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the layers in every table of CPU kernels that this processor supports, against
 * loops in float64. Matrix products may come from a library that adds in its own order,
 * so they are close to the reference and not equal to it; but the same inputs must give
 * the same bits again.
 */
#include "tests/harness/cmocka.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "kernels/kernels.h"

static const struct tern_kernels *tables[3];
static size_t table_count;
static struct tern_rng rng = {.seed = 21};

static int find_tables(void **state)
{
	static const char *const names[] = {"avx512", "avx2", "portable"};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(names); i++) {
		const struct tern_kernels *k = tern_kernels_named(names[i]);

		if (k)
			tables[table_count++] = k;
	}
	return table_count > 0 ? 0 : -1;
}

static float *some(size_t count)
{
	float *x = malloc(count * sizeof(*x) + !count);

	assert_non_null(x);
	for (size_t j = 0; j < count; j++)
		x[j] = 2.0f * tern_unit_f32(tern_rng_next(&rng)) - 1.0f;
	return x;
}

static float *copy_of(const float *x, size_t count)
{
	float *y = malloc(count * sizeof(*y) + !count);

	assert_non_null(y);
	memcpy(y, x, count * sizeof(*y));
	return y;
}

static void assert_close(double got, double wanted, double most)
{
	if (!(fabs(got - wanted) <= most))
		fail_msg("got %.9g, wanted %.9g", got, wanted);
}

/* ---- dense ---- */

static void check_forward(
	const struct tern_kernels *k, size_t rows, size_t in, size_t out, int relu)
{
	float *x = some(rows * in), *w = some(in * out), *b = some(out);
	float *y = some(rows * out), *again = some(rows * out);

	k->dense_forward(y, x, w, b, rows, in, out, relu);
	k->dense_forward(again, x, w, b, rows, in, out, relu);
	assert_memory_equal(y, again, rows * out * sizeof(*y));
	for (size_t i = 0; i < rows; i++)
		for (size_t o = 0; o < out; o++) {
			double wanted = (double)b[o];

			for (size_t j = 0; j < in; j++)
				wanted += (double)x[i * in + j] * (double)w[j * out + o];
			if (relu && wanted < 0)
				wanted = 0;
			assert_close((double)y[i * out + o], wanted, 1e-5);
		}
	free(x);
	free(w);
	free(b);
	free(y);
	free(again);
}

struct gradients {
	double *dx, *dw, *db;
};

static struct gradients reference(const float *dy, const float *y, const float *x,
	const float *w, size_t rows, size_t in, size_t out, int relu)
{
	struct gradients g = {calloc(rows * in, sizeof(double)),
		calloc(in * out, sizeof(double)), calloc(out, sizeof(double))};

	for (size_t i = 0; i < rows; i++)
		for (size_t o = 0; o < out; o++) {
			double d = (double)dy[i * out + o];

			if (relu && y[i * out + o] == 0)
				continue;
			g.db[o] += d;
			for (size_t j = 0; j < in; j++) {
				g.dw[j * out + o] += d * (double)x[i * in + j];
				g.dx[i * in + j] += d * (double)w[j * out + o];
			}
		}
	return g;
}

static void check_backward(
	const struct tern_kernels *k, size_t rows, size_t in, size_t out, int relu)
{
	float *x = some(rows * in), *w = some(in * out), *b = some(out);
	float *y = some(rows * out), *dy = some(rows * out);
	float *first = copy_of(dy, rows * out);
	float *dx = some(rows * in), *dw = some(in * out), *db = some(out);
	struct gradients wanted;

	k->dense_forward(y, x, w, b, rows, in, out, relu);
	wanted = reference(dy, y, x, w, rows, in, out, relu);
	k->dense_backward(dx, dw, db, dy, y, x, w, rows, in, out, relu);
	for (size_t j = 0; j < rows * in; j++)
		assert_close((double)dx[j], wanted.dx[j], 1e-5);
	for (size_t j = 0; j < in * out; j++)
		assert_close((double)dw[j], wanted.dw[j], 1e-5);
	for (size_t j = 0; j < out; j++)
		assert_close((double)db[j], wanted.db[j], 1e-5);
	for (size_t j = 0; j < rows * out; j++)
		assert_true(dy[j] == (relu && y[j] == 0 ? 0 : first[j]));
	/* Without dx the other results must have the same bits. */
	memcpy(dy, first, rows * out * sizeof(*dy));
	memcpy(b, db, out * sizeof(*db));
	float *dw_before = copy_of(dw, in * out);

	k->dense_backward(NULL, dw, db, dy, y, x, w, rows, in, out, relu);
	assert_memory_equal(dw, dw_before, in * out * sizeof(*dw));
	assert_memory_equal(db, b, out * sizeof(*db));
	float *all[] = {x, w, b, y, dy, first, dx, dw, db, dw_before};

	for (size_t i = 0; i < TERN_ARRAY_SIZE(all); i++)
		free(all[i]);
	free(wanted.dx);
	free(wanted.dw);
	free(wanted.db);
}

static void test_dense_is_close_to_float64(void **state)
{
	static const size_t shapes[][3] = {
		{1, 1, 1}, {1, 7, 3}, {5, 1, 4}, {17, 33, 1}, {32, 65, 10}};

	(void)state;
	for (size_t t = 0; t < table_count; t++)
		for (size_t s = 0; s < TERN_ARRAY_SIZE(shapes); s++)
			for (int relu = 0; relu < 2; relu++) {
				const size_t *d = shapes[s];

				check_forward(tables[t], d[0], d[1], d[2], relu);
				check_backward(tables[t], d[0], d[1], d[2], relu);
			}
}

/* ---- softmax and cross-entropy ---- */

static double reference_xent(double *p, const float *logits, size_t label, size_t classes)
{
	double top = (double)logits[0], sum = 0;

	for (size_t j = 1; j < classes; j++)
		top = fmax(top, (double)logits[j]);
	for (size_t j = 0; j < classes; j++)
		sum += exp((double)logits[j] - top);
	for (size_t j = 0; j < classes; j++)
		p[j] = exp((double)logits[j] - top) / sum;
	return log(sum) - ((double)logits[label] - top);
}

static void check_softmax(
	const struct tern_kernels *k, size_t rows, size_t classes, float magnitude)
{
	size_t count = rows * classes, correct = 99, same = 99, hits = 0;
	float *logits = some(count), *d = some(count), *aliased;
	int32_t *labels = malloc(rows * sizeof(*labels));
	double *p = malloc(classes * sizeof(*p)), loss = 0, got, also;

	for (size_t j = 0; j < count; j++)
		logits[j] *= magnitude;
	for (size_t i = 0; i < rows; i++)
		labels[i] = (int32_t)tern_rng_below(&rng, classes);
	aliased = copy_of(logits, count);
	got = k->softmax_xent(d, logits, labels, rows, classes, &correct);
	assert_memory_equal(logits, aliased, count * sizeof(*logits));
	also = k->softmax_xent(aliased, aliased, labels, rows, classes, &same);
	assert_memory_equal(&got, &also, sizeof(got));
	assert_memory_equal(d, aliased, count * sizeof(*d));
	also = k->softmax_xent(NULL, logits, labels, rows, classes, NULL);
	assert_memory_equal(&got, &also, sizeof(got));
	for (size_t i = 0; i < rows; i++) {
		const float *row = logits + i * classes;
		size_t label = (size_t)labels[i], best = 0;

		loss += reference_xent(p, row, label, classes);
		for (size_t j = 0; j < classes; j++) {
			best = row[j] > row[best] ? j : best;
			assert_close((double)d[i * classes + j],
				(p[j] - (j == label)) / (double)rows, 1e-6);
		}
		hits += best == label;
	}
	assert_int_equal(correct, hits);
	assert_int_equal(same, hits);
	assert_close(got, loss, 1e-6 * (1 + fabs(loss)));
	free(logits);
	free(d);
	free(aliased);
	free(labels);
	free(p);
}

static void test_softmax_xent_is_close_to_float64(void **state)
{
	static const float magnitudes[] = {1.0f, 30.0f, 1000.0f, 1e30f};

	(void)state;
	for (size_t t = 0; t < table_count; t++)
		for (size_t m = 0; m < TERN_ARRAY_SIZE(magnitudes); m++) {
			check_softmax(tables[t], 1, 2, magnitudes[m]);
			check_softmax(tables[t], 13, 10, magnitudes[m]);
			check_softmax(tables[t], 3, 257, magnitudes[m]);
			check_softmax(tables[t], 4, 1, magnitudes[m]);
		}
}

static void test_first_of_equal_logits_counts(void **state)
{
	const float logits[] = {1, 3, 3, 3, 3, 1, 0, 0, 0};
	const int32_t labels[] = {1, 1, 0};
	size_t correct;

	(void)state;
	for (size_t t = 0; t < table_count; t++) {
		tables[t]->softmax_xent(NULL, logits, labels, 3, 3, &correct);
		assert_int_equal(correct, 2);
	}
}

/* ---- embeddings ---- */

static void test_embedding_reads_and_adds_rows(void **state)
{
	enum { ROWS = 40, WIDTH = 5, TABLE = 7 };
	int32_t ids[ROWS];

	(void)state;
	/* The last id, TABLE - 1, never occurs. */
	for (size_t i = 0; i < ROWS; i++)
		ids[i] = (int32_t)tern_rng_below(&rng, TABLE - 1);
	for (size_t t = 0; t < table_count; t++) {
		float *table = some(TABLE * WIDTH), *y = some(ROWS * WIDTH);
		float *dtable = some(TABLE * WIDTH), *dy = some(ROWS * WIDTH);
		float wanted[TABLE * WIDTH] = {0};

		tables[t]->embed_forward(y, table, ids, ROWS, WIDTH);
		tables[t]->embed_backward(dtable, dy, ids, ROWS, WIDTH, TABLE);
		for (size_t i = 0; i < ROWS; i++)
			for (size_t j = 0; j < WIDTH; j++) {
				size_t at = (size_t)ids[i] * WIDTH + j;

				assert_true(y[i * WIDTH + j] == table[at]);
				wanted[at] += dy[i * WIDTH + j];
			}
		/* The order of additions is defined, so the bits must be equal. */
		assert_memory_equal(dtable, wanted, sizeof(wanted));
		free(table);
		free(y);
		free(dtable);
		free(dy);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_dense_is_close_to_float64),
		cmocka_unit_test(test_softmax_xent_is_close_to_float64),
		cmocka_unit_test(test_first_of_equal_logits_counts),
		cmocka_unit_test(test_embedding_reads_and_adds_rows),
	};

	return cmocka_run_group_tests(tests, find_tables, NULL);
}
