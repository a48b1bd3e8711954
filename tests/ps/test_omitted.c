/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the list of slots that were left out of their steps. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <stdlib.h>

#include "base/util.h"
#include "ps/marks.h"
#include "ps/omitted.h"

static void add(struct tern_omitted *list, uint64_t step, uint32_t slot, int expected)
{
	assert_int_equal(
		tern_omitted_add(list, (struct tern_omitted_slot){step, slot}), expected);
}

static void check(const struct tern_omitted *list, uint64_t last, const char *expected)
{
	json_t *json = tern_omitted_json(list, last);
	char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;

	if (expected)
		assert_string_equal(text, expected);
	else
		assert_null(json);
	free(text);
	json_decref(json);
}

static void test_slots_are_in_order_and_each_is_there_once(void **state)
{
	struct tern_omitted list = {0};

	(void)state;
	check(&list, UINT64_MAX, NULL);
	add(&list, 5, 1, 1);
	add(&list, 3, 7, 1);
	add(&list, 5, 0, 1);
	add(&list, 5, 1, 0);
	add(&list, 3, 7, 0);
	check(&list, UINT64_MAX, "[[3,7],[5,0],[5,1]]");
	check(&list, 4, "[[3,7]]");
	check(&list, 2, NULL);
	tern_omitted_fini(&list);
	assert_int_equal(list.count, 0);
}

static void test_a_full_list_takes_no_more(void **state)
{
	struct tern_omitted list = {0};

	(void)state;
	for (uint32_t i = 0; i < TERN_OMITTED_MAX; i++)
		add(&list, 1 + i / 7, i % 7, 1);
	add(&list, 1, 8, -E2BIG);
	add(&list, 1, 3, 0);
	assert_int_equal(list.count, TERN_OMITTED_MAX);
	tern_omitted_fini(&list);
}

static int read_text(struct tern_omitted *list, const char *text)
{
	json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);
	int r = tern_omitted_read(list, json, 9, 4);

	assert_non_null(json);
	json_decref(json);
	return r;
}

static void test_json_is_read_and_checked(void **state)
{
	static const char *const bad[] = {"{}", "1", "[1]", "[[1]]", "[[0,1]]",
		"[[1,-1]]", "[[10,1]]", "[[1,4]]", "[[1,1,1]]", "[[1.5,1]]",
		"[[\"1\",1]]"};
	struct tern_omitted list = {0};

	(void)state;
	assert_int_equal(tern_omitted_read(&list, NULL, 9, 4), 0);
	assert_int_equal(read_text(&list, "[[9,3],[1,0],[9,3]]"), 0);
	check(&list, 9, "[[1,0],[9,3]]");
	for (size_t i = 0; i < TERN_ARRAY_SIZE(bad); i++)
		if (read_text(&list, bad[i]) != -EINVAL)
			fail_msg("%s", bad[i]);
	tern_omitted_fini(&list);
}

static void test_the_shape_of_a_gradient_says_what_it_is(void **state)
{
	struct tern_shape plain = tern_shape_1d(TERN_F32, 7);
	struct tern_shape marked = tern_marks_shape(&plain);
	struct tern_shape omitted = tern_marks_omitted_shape(&plain);

	(void)state;
	assert_false(tern_marks_follow(&plain) || tern_marks_omitted(&plain));
	assert_true(tern_marks_follow(&marked) && !tern_marks_omitted(&marked));
	assert_true(tern_marks_follow(&omitted) && tern_marks_omitted(&omitted));
	assert_true(omitted.dtype == TERN_F32 && omitted.dims[2] == 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_slots_are_in_order_and_each_is_there_once),
		cmocka_unit_test(test_a_full_list_takes_no_more),
		cmocka_unit_test(test_json_is_read_and_checked),
		cmocka_unit_test(test_the_shape_of_a_gradient_says_what_it_is),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
