/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cmocka.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "client/models/model.h"

#define ROWS 7

static struct tern_dataset *dense, *two, *text;

static struct tern_dataset *read_text(const char *data, uint32_t context)
{
	struct tern_data_file file = {"made up", data, strlen(data)};
	struct tern_data_error error = {""};
	struct tern_dataset *out = NULL;

	if (tern_dataset_read(&file, NULL, context, 0, &out, &error) < 0)
		fail_msg("%s", error.text);
	return out;
}

static int make_data(void **state)
{
	static char rows[4000];
	struct tern_rng rng = {.seed = 3};
	size_t at = 0;

	(void)state;
	for (int i = 0; i < 40; i++) {
		at += (size_t)snprintf(
			rows + at, sizeof(rows) - at, "%d", i % 2 ? 1 : -1);
		for (int j = 0; j < 5; j++)
			at += (size_t)snprintf(rows + at, sizeof(rows) - at, " %d:%.3f",
				j, (double)tern_unit_f32(tern_rng_next(&rng)) - 0.5);
		at += (size_t)snprintf(rows + at, sizeof(rows) - at, "\n");
	}
	two = read_text(rows, 0);
	text = read_text("the quick brown fox jumps over the lazy dog, and again", 3);
	/* Three classes: the same rows with other labels, as IDX would have them. */
	dense = calloc(1, sizeof(*dense));
	*dense = *two;
	dense->class_count = 3;
	return 0;
}

static int free_data(void **state)
{
	(void)state;
	free(dense);
	tern_dataset_free(two);
	tern_dataset_free(text);
	return 0;
}

static struct tern_batch make_batch(const struct tern_dataset *data)
{
	struct tern_batch batch = {.rows = ROWS};
	uint64_t records[ROWS];

	for (unsigned i = 0; i < ROWS; i++)
		records[i] = i * 3;
	batch.x = calloc(ROWS * data->width, sizeof(float));
	batch.ids = calloc(ROWS * data->width, sizeof(int32_t));
	batch.labels = calloc(ROWS, sizeof(int32_t));
	tern_dataset_batch(data, records, ROWS, &batch);
	if (data == dense)
		batch.labels[1] = batch.labels[4] = 2;
	return batch;
}

static void free_batch(struct tern_batch *batch)
{
	free(batch->x);
	free(batch->ids);
	free(batch->labels);
}

struct watch {
	const float *grads;
	float *copy;
	uint64_t first, size;
	unsigned calls;
};

static void on_ready(void *arg, uint64_t first)
{
	struct watch *w = arg;

	assert_true(first < w->first);
	memcpy(w->copy + first, w->grads + first, (w->first - first) * sizeof(float));
	w->first = first;
	w->calls++;
}

/* The mean gradient against differences of the loss, and what ready() said against the
 * end. */
static void check(const char *spec, const struct tern_dataset *data)
{
	const struct tern_kernels *k = tern_kernels_cpu();
	struct tern_batch batch = make_batch(data);
	struct tern_data_error error = {""};
	struct tern_workspace *ws;
	struct tern_model *m;
	const struct tern_param *params;
	float *w, *g;
	struct watch watch;
	size_t count;
	double scale = 0;
	uint64_t off = 0;

	assert_int_equal(tern_model_new(spec, data, &m, &error), 0);
	ws = tern_workspace_new(m, ROWS);
	watch = (struct watch){.size = tern_model_size(m), .first = tern_model_size(m)};
	w = calloc(watch.size, sizeof(float));
	g = calloc(watch.size, sizeof(float));
	watch.copy = calloc(watch.size, sizeof(float));
	watch.grads = g;
	params = tern_model_params(m, &count);
	for (uint32_t i = 0; i < count; i++) {
		tern_param_init(
			&params[i], 9, i, 0, params[i].count, w + params[i].first);
		for (uint64_t j = 0;
			params[i].init == TERN_INIT_ZERO && j < params[i].count; j++)
			w[params[i].first + j] =
				0.05f * (float)(j % 3); /* biases of use */
	}
	tern_model_gradient(m, k, w, g, &batch, ws, on_ready, &watch);
	assert_int_equal(watch.first, 0);
	assert_true(watch.calls >= 1);
	assert_memory_equal(watch.copy, g, watch.size * sizeof(float));
	for (uint64_t i = 0; i < watch.size; i++)
		scale = fmax(scale, fabs((double)g[i]));
	assert_true(scale > 0);
	for (uint64_t i = 0; i < watch.size; i++) {
		float kept = w[i], step = 1e-3f;
		double up, down;

		w[i] = kept + step;
		up = tern_model_evaluate(m, k, w, &batch, ws, NULL).loss;
		w[i] = kept - step;
		down = tern_model_evaluate(m, k, w, &batch, ws, NULL).loss;
		w[i] = kept;
		off += fabs((up - down) / (2 * (double)step) / ROWS - (double)g[i]) >
		       0.01 * scale + 1e-3;
	}
	/* Where a ReLU switches within the step, the difference is of two functions. */
	assert_true(off <= watch.size / 100);
	free(w);
	free(g);
	free(watch.copy);
	tern_workspace_free(ws);
	tern_model_free(m);
	free_batch(&batch);
}

static void test_gradients_are_those_of_the_loss(void **state)
{
	(void)state;
	check("softmax", dense);
	check("softmax", two);
	check("logreg", two);
	check("mlp:8", dense);
	check("mlp:8,6", two);
	check("charlm:3,4,8", text);
}

static void test_wrong_specs_are_refused_in_words(void **state)
{
	static const char *const wrong[] = {"", "foo", "mlp", "mlp:", "mlp:0", "mlp:8,",
		"mlp:8,x", "mlp:-3", "softmax:3", "charlm", "charlm:3,4",
		"charlm:1,2,3,4", "charlm:0,4,8", "mlp:99999999"};
	struct tern_data_error error;
	struct tern_model *m;

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		error.text[0] = 0;
		assert_int_equal(tern_model_new(wrong[i], two, &m, &error), -EINVAL);
		assert_true(strlen(error.text) > 10);
	}
	assert_int_equal(tern_model_new("logreg", dense, &m, &error), -EINVAL);
	assert_int_equal(tern_model_new("mlp:8", text, &m, &error), -EINVAL);
	assert_int_equal(tern_model_new("charlm:2,4,8", text, &m, &error), -EINVAL);
	assert_int_equal(tern_model_new("charlm:3,4,8", two, &m, &error), -EINVAL);
}

static void test_initial_values_do_not_depend_on_the_cut(void **state)
{
	const struct tern_param p = {
		.init = TERN_INIT_UNIFORM, .scale = 0.5f, .count = 100};
	float whole[100], cut[100];

	(void)state;
	tern_param_init(&p, 1, 2, 0, 100, whole);
	for (uint64_t at = 0; at < 100; at += 7)
		tern_param_init(&p, 1, 2, at, at + 7 > 100 ? 100 - at : 7, cut + at);
	assert_memory_equal(whole, cut, sizeof(whole));
	tern_param_init(&p, 1, 3, 0, 100, cut);
	assert_memory_not_equal(whole, cut, sizeof(whole));
	for (int i = 0; i < 100; i++)
		assert_true(whole[i] >= -0.5f && whole[i] < 0.5f);
}

static void test_area_under_the_curve(void **state)
{
	const float scores[6] = {0.1f, 0.4f, 0.4f, 0.8f, 0.9f, 0.2f};
	const int32_t labels[6] = {0, 0, 1, 1, 1, 0}, ones[2] = {1, 1};

	(void)state;
	/* Nine pairs: eight right, one tie. */
	assert_true(fabs(tern_auc(scores, labels, 6) - 8.5 / 9) < 1e-12);
	assert_true(isnan(tern_auc(scores, ones, 2)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_gradients_are_those_of_the_loss),
		cmocka_unit_test(test_wrong_specs_are_refused_in_words),
		cmocka_unit_test(test_initial_values_do_not_depend_on_the_cut),
		cmocka_unit_test(test_area_under_the_curve),
	};

	return cmocka_run_group_tests(tests, make_data, free_data);
}
