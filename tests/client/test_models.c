/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of models on small data: gradients compared with difference quotients of the
 * loss; elements of the gradient that must not change after `ready` has announced them;
 * the error sentence for every refused model spec; initial values; the AUC (area under
 * the ROC curve).
 */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "client/models/model.h"

#define ROWS  12u
#define SMALL 1e-3f /* step of the difference quotients */

static struct tern_data_error error;

/* ---- data ---- */

static struct tern_dataset *read_data(const char *text, size_t bytes, const char *labels,
	size_t labels_bytes, uint32_t context)
{
	const struct tern_data_file data_file = {
		.path = "data", .data = text, .bytes = bytes};
	const struct tern_data_file labels_file = {
		.path = "labels", .data = labels, .bytes = labels_bytes};
	struct tern_dataset *out;

	if (tern_dataset_read(&data_file, labels ? &labels_file : NULL, context, 0, &out,
		    &error) < 0)
		fail_msg("%s", error.text);
	return out;
}

/* A data set with two classes and five features. */
static struct tern_dataset *two_classes(void)
{
	static const char text[] = "+1 1:0.5 3:-1.25\n-1 2:1 4:0.75 5:0.1\n"
				   "-1 1:-0.6 2:0.4\n+1 3:0.9 5:-1\n"
				   "+1 1:1.1 2:-0.7 4:0.3\n-1 4:-0.8 5:0.6\n";

	return read_data(text, sizeof(text) - 1, NULL, 0, 0);
}

/* A data set with three classes and images of 2 x 2. */
static struct tern_dataset *three_classes(void)
{
	static const char images[] = "\0\0\x08\x03\0\0\0\x04\0\0\0\x02\0\0\0\x02"
				     "\x10\x80\xff\x01\x70\x20\x05\xc0"
				     "\xe0\x44\x33\x90\x02\xf1\x61\x18";
	static const char labels[] = "\0\0\x08\x01\0\0\0\x04\0\x02\x01\x02";

	return read_data(images, sizeof(images) - 1, labels, sizeof(labels) - 1, 0);
}

static struct tern_dataset *text_of_context(uint32_t context)
{
	static const char text[] = "a tern returns to the same shore each year";

	return read_data(text, sizeof(text) - 1, NULL, 0, context);
}

/* ---- gradients ---- */

struct world {
	struct tern_dataset *data;
	struct tern_model *model;
	struct tern_workspace *ws;
	struct tern_batch batch;
	float *params, *grads, *seen;
	uint64_t size, last; /* last: last value that was passed to ready() as `first` */
	unsigned calls;
};

static void world_init(struct world *w, const char *spec, struct tern_dataset *data)
{
	struct tern_rng rng = {.seed = 22};
	uint64_t records[ROWS];

	*w = (struct world){.data = data};
	if (tern_model_new(spec, data, &w->model, &error) < 0)
		fail_msg("%s", error.text);
	w->ws = tern_workspace_new(w->model, ROWS);
	w->size = tern_model_size(w->model);
	w->last = w->size;
	w->params = malloc(w->size * sizeof(float));
	w->grads = malloc(w->size * sizeof(float));
	w->seen = malloc(w->size * sizeof(float));
	w->batch.x = malloc(ROWS * data->width * sizeof(float));
	w->batch.ids = malloc(ROWS * data->width * sizeof(int32_t));
	w->batch.labels = malloc(ROWS * sizeof(int32_t));
	w->batch.rows = ROWS;
	for (uint64_t i = 0; i < w->size; i++)
		w->params[i] = 1.4f * tern_unit_f32(tern_rng_next(&rng)) - 0.7f;
	for (unsigned i = 0; i < ROWS; i++)
		records[i] = (3 * i + 1) % data->count;
	tern_dataset_batch(data, records, ROWS, &w->batch);
}

static void world_fini(struct world *w)
{
	tern_workspace_free(w->ws);
	tern_model_free(w->model);
	tern_dataset_free(w->data);
	free(w->params);
	free(w->grads);
	free(w->seen);
	free(w->batch.x);
	free(w->batch.ids);
	free(w->batch.labels);
}

static double loss_at(struct world *w, uint64_t i, float value)
{
	float was = w->params[i];
	struct tern_result r;

	w->params[i] = value;
	r = tern_model_evaluate(
		w->model, tern_kernels_cpu(), w->params, &w->batch, w->ws, NULL);
	w->params[i] = was;
	return r.loss / ROWS;
}

static void check_gradient(const char *spec, struct tern_dataset *data)
{
	struct world w;
	struct tern_result r, plain;
	double largest = 0;

	world_init(&w, spec, data);
	/* Fills the gradient with NaN: the model must write every element. */
	memset(w.grads, 0xff, w.size * sizeof(float));
	r = tern_model_gradient(w.model, tern_kernels_cpu(), w.params, w.grads, &w.batch,
		w.ws, NULL, NULL);
	plain = tern_model_evaluate(
		w.model, tern_kernels_cpu(), w.params, &w.batch, w.ws, NULL);
	assert_true(r.loss == plain.loss);
	assert_int_equal(r.correct, plain.correct);
	for (uint64_t i = 0; i < w.size; i++) {
		float up = w.params[i] + SMALL, down = w.params[i] - SMALL;
		double wanted = (loss_at(&w, i, up) - loss_at(&w, i, down)) /
				((double)up - (double)down);

		largest = fmax(largest, fabs(wanted));
		if (!(fabs((double)w.grads[i] - wanted) <= 1e-3))
			fail_msg("%s: element %llu: gradient %g, difference %g", spec,
				(unsigned long long)i, (double)w.grads[i], wanted);
	}
	assert_true(largest > 0.02);
	world_fini(&w);
}

static void test_gradients_are_slopes_of_the_loss(void **state)
{
	(void)state;
	check_gradient("softmax", two_classes());
	check_gradient("softmax", three_classes());
	check_gradient("logreg", two_classes());
	check_gradient("mlp:8,6", two_classes());
	check_gradient("mlp:8,6", three_classes());
	check_gradient("charlm:3,4,8", text_of_context(3));
}

static void on_ready(void *arg, uint64_t first, uint64_t count)
{
	struct world *w = arg;

	assert_int_equal(first + count, w->last);
	memcpy(w->seen + first, w->grads + first, count * sizeof(float));
	w->last = first;
	w->calls++;
}

static void check_ready(const char *spec, struct tern_dataset *data, unsigned calls)
{
	struct world w;

	world_init(&w, spec, data);
	tern_model_gradient(w.model, tern_kernels_cpu(), w.params, w.grads, &w.batch,
		w.ws, on_ready, &w);
	assert_int_equal(w.last, 0);
	assert_int_equal(w.calls, calls);
	assert_memory_equal(w.seen, w.grads, w.size * sizeof(float));
	/* Without ready(), and with old values in the gradient: the result must have the
	 * same bits. */
	memset(w.grads, 0xff, w.size * sizeof(float));
	tern_model_gradient(w.model, tern_kernels_cpu(), w.params, w.grads, &w.batch,
		w.ws, NULL, NULL);
	assert_memory_equal(w.seen, w.grads, w.size * sizeof(float));
	world_fini(&w);
}

static void test_what_is_said_to_be_ready_does_not_change(void **state)
{
	(void)state;
	check_ready("softmax", three_classes(), 1);
	check_ready("logreg", two_classes(), 1);
	check_ready("mlp:8,6", two_classes(), 3);
	check_ready("charlm:3,4,8", text_of_context(3), 3);
}

static void test_a_workspace_serves_smaller_batches_too(void **state)
{
	struct world w;
	float *whole;
	double loss;

	(void)state;
	world_init(&w, "mlp:8,6", two_classes());
	loss = tern_model_evaluate(
		w.model, tern_kernels_cpu(), w.params, &w.batch, w.ws, NULL)
		       .loss;
	whole = w.batch.x;
	for (unsigned half = 0; half < 2; half++) {
		struct tern_batch part = w.batch;

		part.rows = ROWS / 2;
		part.x = whole + half * part.rows * w.data->width;
		part.labels += half * part.rows;
		loss -= tern_model_evaluate(
			w.model, tern_kernels_cpu(), w.params, &part, w.ws, NULL)
				.loss;
	}
	assert_true(fabs(loss) < 1e-4);
	world_fini(&w);
}

static void test_scores_are_log_odds_of_the_second_class(void **state)
{
	struct world w;
	float scores[ROWS];
	size_t right = 0;
	struct tern_result r;

	(void)state;
	world_init(&w, "logreg", two_classes());
	r = tern_model_evaluate(
		w.model, tern_kernels_cpu(), w.params, &w.batch, w.ws, scores);
	for (unsigned i = 0; i < ROWS; i++) {
		double z = (double)scores[i];

		right += (z > 0) == w.batch.labels[i];
		r.loss -= log1p(exp(w.batch.labels[i] ? -z : z));
	}
	assert_int_equal(right, r.correct);
	assert_true(fabs(r.loss) < 1e-4);
	world_fini(&w);
}

static void test_samples_follow_the_probabilities(void **state)
{
	enum { DRAWS = 2000 };
	struct world w;
	unsigned drawn[256] = {0};
	struct tern_batch one;
	int32_t last = 0;

	(void)state;
	world_init(&w, "charlm:3,4,8", text_of_context(3));
	for (unsigned i = 0; i < DRAWS; i++) {
		int32_t s = tern_model_sample(w.model, tern_kernels_cpu(), w.params,
			w.batch.ids, 1.0f, (float)i / DRAWS, w.ws);

		assert_true(s >= last && (uint32_t)s < w.data->class_count);
		last = s;
		drawn[s]++;
	}
	one = w.batch;
	one.rows = 1;
	for (uint32_t c = 0; c < w.data->class_count; c++) {
		double p;

		one.labels[0] = (int32_t)c;
		p = exp(-tern_model_evaluate(
			w.model, tern_kernels_cpu(), w.params, &one, w.ws, NULL)
				 .loss);
		assert_true(fabs(drawn[c] - p * DRAWS) <= 2);
	}
	world_fini(&w);
}

/* ---- model specs ---- */

static void refused(const char *spec, struct tern_dataset *data, const char *word)
{
	struct tern_model *m = NULL;

	error.text[0] = 0;
	assert_int_equal(tern_model_new(spec, data, &m, &error), -EINVAL);
	assert_null(m);
	if (!strstr(error.text, word))
		fail_msg("%s: \"%s\" does not say \"%s\"", spec, error.text, word);
}

static void test_specs_that_are_none_are_refused_with_a_sentence(void **state)
{
	static const char *const specs[] = {"", "foo", "mlp", "mlp:", "mlp:0", "mlp:8,x",
		"mlp:8,", "mlp:-8", "mlp:+8", "mlp: 8", "mlp: -8", "mlp:8,,8", "mlp:8;8",
		"mlp:0x10", "mlp:1048577", "mlp:99999999999999999999999", "mlpx:8",
		"softmax:3", "softmaxx", "logreg:2", "charlm", "charlm:1,2",
		"charlm:1,2,3,4", "charlm:0,2,3", "charlm:3,4,", "charlm: 3,4,8",
		"mlp:1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"};
	struct tern_dataset *dense = two_classes(), *text = text_of_context(3);

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(specs); i++) {
		error.text[0] = 0;
		if (tern_model_context(specs[i], &error) != -EINVAL)
			fail_msg("\"%s\" is taken for a spec", specs[i]);
		assert_non_null(strstr(error.text, "expected"));
		refused(specs[i], dense, "expected");
		refused(specs[i], text, "expected");
	}
	tern_dataset_free(dense);
	tern_dataset_free(text);
}

static void test_specs_that_do_not_suit_the_data_are_refused(void **state)
{
	struct tern_dataset *two = two_classes(), *three = three_classes();
	struct tern_dataset *text = text_of_context(3);

	(void)state;
	refused("logreg", three, "3");
	refused("charlm:3,4,8", two, "text");
	refused("charlm:2,4,8", text, "context of 3");
	refused("softmax", text, "text");
	refused("mlp:8", text, "text");
	tern_dataset_free(two);
	tern_dataset_free(three);
	tern_dataset_free(text);
}

static void test_context_is_what_charlm_asks_for(void **state)
{
	(void)state;
	assert_int_equal(tern_model_context("charlm:16,4,8", &error), 16);
	assert_int_equal(tern_model_context("softmax", &error), 0);
	assert_int_equal(tern_model_context("logreg", &error), 0);
	assert_int_equal(tern_model_context("mlp:8,6", &error), 0);
}

/* ---- parameters ---- */

static void check_params(const char *spec, struct tern_dataset *data)
{
	struct world w;
	size_t count;
	const struct tern_param *p;
	uint64_t next = 0;

	world_init(&w, spec, data);
	p = tern_model_params(w.model, &count);
	for (uint32_t i = 0; i < count; i++) {
		float *whole = malloc(p[i].count * sizeof(float));
		float *part = malloc(p[i].count * sizeof(float));
		uint64_t third = p[i].count / 3, bytes;
		struct tern_param other = p[i];
		bool some = false;

		assert_int_equal(p[i].first, next);
		next += p[i].count;
		assert_int_equal(tern_shape_bytes(&p[i].shape, &bytes), 0);
		assert_int_equal(bytes, p[i].count * sizeof(float));
		tern_param_init(&p[i], 7, 0, p[i].count, whole);
		tern_param_init(&p[i], 7, third, p[i].count - third, part + third);
		tern_param_init(&p[i], 7, 0, third, part);
		assert_memory_equal(whole, part, bytes);
		for (uint64_t j = 0; j < p[i].count; j++) {
			assert_true(p[i].a == -p[i].b && fabsf(whole[j]) <= p[i].b);
			some |= whole[j] != 0;
		}
		assert_int_equal(some, p[i].init == TERN_INIT_UNIFORM);
		tern_param_init(&p[i], 8, 0, p[i].count, part);
		assert_int_equal(memcmp(whole, part, bytes) != 0, some);
		other.name = "of another name";
		tern_param_init(&other, 7, 0, p[i].count, part);
		assert_int_equal(memcmp(whole, part, bytes) != 0, some);
		free(whole);
		free(part);
	}
	assert_int_equal(next, w.size);
	world_fini(&w);
}

static void test_initial_values_do_not_depend_on_who_computes_which(void **state)
{
	(void)state;
	check_params("softmax", three_classes());
	check_params("mlp:8,6", two_classes());
	check_params("charlm:3,4,8", text_of_context(3));
}

/* ---- the area under the curve ---- */

static void test_auc_counts_ties_half(void **state)
{
	static const float rising[] = {-2, 1, 3, 4}, tied[] = {5, 5, 5, 5};
	static const float mixed[] = {1, 2, 2, 3, 2};
	static const int32_t low_high[] = {0, 0, 1, 1}, high_low[] = {1, 1, 0, 0};
	static const int32_t of_mixed[] = {0, 0, 1, 1, 1};
	static const int32_t ones[] = {1, 1, 1, 1}, zeros[] = {0, 0, 0, 0};

	(void)state;
	assert_true(tern_auc(rising, low_high, 4) == 1);
	assert_true(tern_auc(rising, high_low, 4) == 0);
	assert_true(tern_auc(tied, low_high, 4) == 0.5);
	/* Six pairs of a positive and a negative record: four in the right order, and two
	 * ties. */
	assert_true(fabs(tern_auc(mixed, of_mixed, 5) - 5.0 / 6) < 1e-12);
	assert_true(isnan(tern_auc(rising, ones, 4)));
	assert_true(isnan(tern_auc(rising, zeros, 4)));
	assert_true(isnan(tern_auc(rising, zeros, 0)));
}

static void test_auc_is_the_share_of_pairs_in_order(void **state)
{
	enum { COUNT = 300 };
	struct tern_rng rng = {.seed = 23};
	float scores[COUNT];
	int32_t labels[COUNT];
	double won = 0, pairs = 0;

	(void)state;
	for (unsigned i = 0; i < COUNT; i++) {
		scores[i] = (float)tern_rng_below(&rng, 40);
		labels[i] = (int32_t)tern_rng_below(&rng, 2);
	}
	for (unsigned i = 0; i < COUNT; i++)
		for (unsigned j = 0; j < COUNT; j++)
			if (labels[i] > labels[j]) {
				won += scores[i] > scores[j]    ? 1
				       : scores[i] == scores[j] ? 0.5
								: 0;
				pairs++;
			}
	assert_true(fabs(tern_auc(scores, labels, COUNT) - won / pairs) < 1e-12);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_gradients_are_slopes_of_the_loss),
		cmocka_unit_test(test_what_is_said_to_be_ready_does_not_change),
		cmocka_unit_test(test_a_workspace_serves_smaller_batches_too),
		cmocka_unit_test(test_scores_are_log_odds_of_the_second_class),
		cmocka_unit_test(test_samples_follow_the_probabilities),
		cmocka_unit_test(test_specs_that_are_none_are_refused_with_a_sentence),
		cmocka_unit_test(test_specs_that_do_not_suit_the_data_are_refused),
		cmocka_unit_test(test_context_is_what_charlm_asks_for),
		cmocka_unit_test(test_initial_values_do_not_depend_on_who_computes_which),
		cmocka_unit_test(test_auc_counts_ties_half),
		cmocka_unit_test(test_auc_is_the_share_of_pairs_in_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
