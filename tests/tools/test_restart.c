/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of how often a launcher starts a process again, and after which pause. */
#include "tests/harness/cmocka.h"

#include "tools/restart_state.h"

#define MOST 3u

static const uint64_t second = TERN_NS_PER_S, minute = 60 * TERN_NS_PER_S;
/* The host has been running for this long when a job begins. */
static const uint64_t start = 5000 * TERN_NS_PER_S;

/* A process that is killed every 9 minutes is never started more than twice in 10 minutes. */
static void test_restarts_that_are_far_apart_are_all_allowed(void **state)
{
	struct tern_recent restarts = {0};

	(void)state;
	for (unsigned i = 0; i < 100; i++)
		assert_true(restart_count_at(&restarts, MOST, start + i * 9 * minute));
	assert_int_equal(restarts.count, 2);
}

static void test_one_restart_too_many_in_ten_minutes_is_refused(void **state)
{
	struct tern_recent restarts = {0};

	(void)state;
	for (unsigned i = 0; i < MOST; i++)
		assert_true(restart_count_at(&restarts, MOST, start + i * 4 * minute));
	assert_false(restart_count_at(&restarts, MOST, start + 9 * minute));
	assert_false(restart_count_at(&restarts, MOST, start + 10 * minute - second));
	/* The refused ones do not count, and the first one is older than 10 minutes now. */
	assert_true(restart_count_at(&restarts, MOST, start + 10 * minute + second));
	assert_false(restart_count_at(&restarts, MOST, start + 13 * minute));
}

static void test_without_restarts_none_is_allowed(void **state)
{
	struct tern_recent restarts = {0};

	(void)state;
	assert_false(restart_count_at(&restarts, 0, start));
	assert_int_equal(restarts.count, 0);
}

static void test_pauses_become_longer_until_it_was_quiet(void **state)
{
	static const unsigned pauses[] = {0, 1, 2, 4, 8, 16, 32, 32};
	struct tern_recent restarts = {0};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(pauses); i++) {
		assert_true(restart_count_at(&restarts, 1000, start + i * second));
		assert_int_equal(restart_pause_s(&restarts), pauses[i]);
	}
	assert_true(restart_count_at(&restarts, 1000, start + 20 * minute));
	assert_int_equal(restart_pause_s(&restarts), 0);
	assert_true(restart_count_at(&restarts, 1000, start + 29 * minute));
	assert_int_equal(restart_pause_s(&restarts), 1);
}

/* The pauses keep the array of times from becoming full, however many restarts a user allows. */
static void test_pauses_bound_how_many_restarts_are_remembered(void **state)
{
	struct tern_recent restarts = {0};
	uint64_t now_ns = start, most = 0;

	(void)state;
	for (unsigned i = 0; i < 200; i++) {
		assert_true(restart_count_at(&restarts, 1000, now_ns));
		now_ns += restart_pause_s(&restarts) * second;
		most = TERN_MAX(most, restarts.count);
	}
	assert_int_equal(most, 24);
	assert_true(most < TERN_RECENT_KEPT);
}

static void test_the_oldest_restart_is_forgotten_if_there_are_too_many(void **state)
{
	struct tern_recent restarts = {0};

	(void)state;
	for (uint64_t i = 0; i < TERN_RECENT_KEPT + 5; i++)
		assert_true(restart_count_at(&restarts, 1000, start + i));
	assert_int_equal(restarts.count, TERN_RECENT_KEPT);
	assert_int_equal(restarts.times_ns[0], start + 5);
	assert_int_equal(restart_pause_s(&restarts), 32);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_restarts_that_are_far_apart_are_all_allowed),
		cmocka_unit_test(test_one_restart_too_many_in_ten_minutes_is_refused),
		cmocka_unit_test(test_without_restarts_none_is_allowed),
		cmocka_unit_test(test_pauses_become_longer_until_it_was_quiet),
		cmocka_unit_test(test_pauses_bound_how_many_restarts_are_remembered),
		cmocka_unit_test(
			test_the_oldest_restart_is_forgotten_if_there_are_too_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
