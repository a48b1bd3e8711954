/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of sums and products of times (base/clock.h): what would overflow is TERN_NEVER. */
#include "tests/harness/cmocka.h"

#include "base/clock.h"

static void test_what_lies_behind_all_time_is_never(void **state)
{
	(void)state;
	assert_int_equal(tern_ns_add(5, 7), 12);
	assert_true(tern_ns_add(1, TERN_NEVER - 1) == TERN_NEVER);
	assert_true(tern_ns_add(2, TERN_NEVER - 1) == TERN_NEVER);
	assert_true(tern_ns_add(TERN_NEVER, 0) == TERN_NEVER);
	assert_true(tern_ns_add(TERN_NEVER, TERN_NEVER) == TERN_NEVER);
	assert_int_equal(tern_ns_times(5, 7), 35);
	assert_int_equal(tern_ns_times(0, TERN_NEVER), 0);
	assert_true(tern_ns_times(TERN_NEVER, 1) == TERN_NEVER);
	assert_true(tern_ns_times(TERN_NEVER / 2, 3) == TERN_NEVER);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_lies_behind_all_time_is_never),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
