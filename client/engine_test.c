/* SPDX-License-Identifier: Apache-2.0 */
/* See engine_test.h. */
#include "client/engine_test.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

#define ROWS TERN_ENGINE_ROWS

int engine_test_make_room(struct engine_test *test)
{
	const struct tern_dataset *set = test->set;

	if (set->kind != TERN_DATA_DENSE || set->class_count != 2)
		return 0;
	test->scores = calloc(set->count, sizeof(*test->scores));
	test->labels = calloc(set->count, sizeof(*test->labels));
	return test->scores && test->labels ? 0 : -ENOMEM;
}

void engine_test_fini(struct engine_test *test)
{
	free(test->scores);
	free(test->labels);
	*test = (struct engine_test){.engine = NULL};
}

/* Adds the results of the records from number `at` on, at most ROWS. */
static int add_batch(const struct engine_test *test,
	const struct tern_engine_params *params, uint64_t at, struct tern_result *sum)
{
	struct tern_batch *batch = &test->engine->batch;
	size_t rows = TERN_MIN((uint64_t)ROWS, test->set->count - at);
	uint64_t records[ROWS];
	struct tern_result one;
	int r;

	for (size_t i = 0; i < rows; i++)
		records[i] = at + i;
	tern_dataset_batch(test->set, records, rows, batch);
	r = tern_engine_evaluate(
		test->engine, params, test->scores ? test->scores + at : NULL, &one);
	if (r < 0)
		return r;
	if (test->scores)
		memcpy(test->labels + at, batch->labels, rows * sizeof(*test->labels));
	sum->loss += one.loss;
	sum->correct += one.correct;
	return test->stop(test->arg) ? -ECANCELED : 0;
}

int engine_test_run(const struct engine_test *test,
	const struct tern_engine_params *params, struct engine_test_results *out)
{
	uint64_t count = test->set->count;
	struct tern_result sum = {0};

	*out = (struct engine_test_results){(double)NAN, (double)NAN, (double)NAN};
	for (uint64_t at = 0; at < count; at += ROWS) {
		int r = add_batch(test, params, at, &sum);

		if (r < 0)
			return r;
	}
	out->loss = sum.loss / (double)count;
	if (!isfinite(out->loss))
		return -EDOM;
	out->accuracy = (double)sum.correct / (double)count;
	if (test->scores)
		out->auc = tern_auc(test->scores, test->labels, count);
	return 0;
}
