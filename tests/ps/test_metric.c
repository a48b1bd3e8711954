/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of metrics: names, bounded lists, and numbers in JSON. */
#include "tests/harness/cmocka.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/metric.h"

static void test_names_are_printable_ascii_without_blanks(void **state)
{
	static const char *const good[] = {
		"a", "accuracy", "val/top-5@epoch[3]", "~!\"\\"};
	static const char *const bad[] = {
		"", "a b", "a\n", "\tx", "a\x7f", "\303\266", "\033[31m"};
	char name[TERN_METRIC_NAME_MAX + 2];

	(void)state;
	for (unsigned i = 0; i < sizeof(good) / sizeof(*good); i++)
		assert_true(tern_metric_is_name(good[i]));
	for (unsigned i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_false(tern_metric_is_name(bad[i]));
	assert_false(tern_metric_is_name(NULL));
	memset(name, 'n', sizeof(name));
	name[TERN_METRIC_NAME_MAX] = '\0';
	assert_true(tern_metric_is_name(name));
	name[TERN_METRIC_NAME_MAX] = 'n';
	name[TERN_METRIC_NAME_MAX + 1] = '\0';
	assert_false(tern_metric_is_name(name));
}

static void test_a_list_has_a_bounded_number_of_names(void **state)
{
	struct tern_metrics list = {.count = 0};
	char name[16];

	(void)state;
	for (unsigned i = 0; i < TERN_METRICS_MAX; i++) {
		snprintf(name, sizeof(name), "m%u", i);
		tern_metrics_get(&list, name)->value = i;
	}
	assert_null(tern_metrics_get(&list, "one-more"));
	assert_int_equal(list.count, TERN_METRICS_MAX);
	assert_ptr_equal(tern_metrics_get(&list, "m7"), &list.list[7]);
	assert_true(list.list[7].value == 7);
}

static void test_numbers_that_are_not_finite_come_through_json(void **state)
{
	const double values[] = {
		0, -0.25, 1e300, 3, (double)NAN, (double)INFINITY, -(double)INFINITY};
	struct tern_metrics list = {.count = 0};
	char *text;
	double back;

	(void)state;
	for (unsigned i = 0; i < sizeof(values) / sizeof(*values); i++) {
		json_t *json = tern_metric_json(values[i]);

		assert_true(tern_metric_read(json, &back));
		assert_true(back == values[i] || (isnan(back) && isnan(values[i])));
		json_decref(json);
	}
	tern_metrics_get(&list, "loss")->value = (double)NAN;
	tern_metrics_get(&list, "rate")->value = -(double)INFINITY;
	json_t *object = tern_metrics_json(&list);

	text = json_dumps(object, JSON_COMPACT);
	assert_string_equal(text, "{\"loss\":\"nan\",\"rate\":\"-inf\"}");
	free(text);
	json_decref(object);
	object = json_string("infinite");
	assert_false(tern_metric_read(object, &back));
	json_decref(object);
	assert_false(tern_metric_read(NULL, &back));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names_are_printable_ascii_without_blanks),
		cmocka_unit_test(test_a_list_has_a_bounded_number_of_names),
		cmocka_unit_test(test_numbers_that_are_not_finite_come_through_json),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
