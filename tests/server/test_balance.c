/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the rule by which slots move from slow workers to others. */
#include "server/balance.h"
#include "tests/harness/cmocka.h"

#include "base/clock.h"
#include "base/util.h"

#define MS TERN_NS_PER_MS

/* A worker that took `ms` for each of its last slots; 0: it has computed none. */
static struct balance_times all(uint64_t ms)
{
	struct balance_times times = {0};

	for (unsigned i = 0; ms && i < BALANCE_SLOTS; i++)
		balance_note(&times, ms * MS);
	return times;
}

static struct balance_worker worker(
	const struct balance_times *times, uint32_t slots, bool takes)
{
	return (struct balance_worker){.times = times, .slots = slots, .takes = takes};
}

/* Expects a move from `from` to `to`; from UINT32_MAX: none. */
static void expect(
	const struct balance_worker *workers, uint32_t count, uint32_t from, uint32_t to)
{
	uint32_t was_from = UINT32_MAX, was_to = UINT32_MAX;
	bool found = balance_find(workers, count, &was_from, &was_to);

	assert_int_equal(found, from != UINT32_MAX);
	if (!found)
		return;
	assert_int_equal(was_from, from);
	assert_int_equal(was_to, to);
}

static void test_a_spare_takes_the_slot_of_a_slow_worker(void **state)
{
	struct balance_times slow = all(400), usual = all(20), none = all(0);
	struct balance_worker workers[] = {worker(&usual, 1, false),
		worker(&slow, 1, false), worker(&none, 0, true)};

	(void)state;
	expect(workers, 3, 1, 2);
	workers[2].takes = false;
	expect(workers, 3, UINT32_MAX, 0);
	/* Nobody knows how fast a spare is if no other worker has computed. */
	workers[2].takes = true;
	workers[0].times = &none;
	expect(workers, 3, UINT32_MAX, 0);
}

static void test_the_worker_that_would_be_done_first_takes_it(void **state)
{
	struct balance_times slow = all(100), usual = all(30), fast = all(10);
	struct balance_worker workers[] = {worker(&usual, 3, true),
		worker(&slow, 2, true), worker(&fast, 8, true), worker(&usual, 2, true)};

	(void)state;
	expect(workers, 4, 1, 2); /* 200 ms; 9 slots in 90 ms, as 3 in 90 */
	workers[2].slots = 9;
	expect(workers, 4, 1, 3);
}

static void test_a_slot_moves_only_if_much_is_won(void **state)
{
	struct balance_times slow = all(100), usual = all(33);
	struct balance_worker workers[] = {
		worker(&slow, 1, true), worker(&usual, 1, true)};

	(void)state;
	expect(workers, 2, 0, 1); /* 66 of 100 ms */
	usual = all(34);
	expect(workers, 2, UINT32_MAX, 0);
	/* Steps of less than 10 ms stay as they are. */
	slow = all(9);
	usual = all(1);
	expect(workers, 2, UINT32_MAX, 0);
}

static void test_one_time_is_no_reason(void **state)
{
	struct balance_times slow = all(400), usual = all(20);
	struct balance_worker workers[] = {
		worker(&slow, 1, true), worker(&usual, 1, true)};

	(void)state;
	balance_note(&slow, 20 * MS); /* it was slow only before */
	expect(workers, 2, UINT32_MAX, 0);
	slow = all(400);
	balance_note(&usual, 300 * MS); /* the other one was slow once, too */
	expect(workers, 2, UINT32_MAX, 0);
	for (unsigned i = 1; i < BALANCE_SLOTS; i++)
		balance_note(&usual, 20 * MS);
	expect(workers, 2, UINT32_MAX, 0);
	balance_note(&usual, 20 * MS);
	expect(workers, 2, 0, 1);
	balance_forget(&slow);
	for (unsigned i = 1; i < BALANCE_SLOTS; i++)
		balance_note(&slow, 400 * MS);
	expect(workers, 2, UINT32_MAX, 0); /* too few times since then */
}

/* A worker tells the times, and they may be anything. */
static void test_the_largest_times_do_not_overflow(void **state)
{
	struct balance_times endless = {0}, usual = all(20);
	struct balance_worker workers[] = {
		worker(&usual, 1, true), worker(&endless, UINT32_MAX, true)};

	(void)state;
	for (unsigned i = 0; i < BALANCE_SLOTS; i++)
		balance_note(&endless, INT64_MAX);
	expect(workers, 2, 1, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_spare_takes_the_slot_of_a_slow_worker),
		cmocka_unit_test(test_the_worker_that_would_be_done_first_takes_it),
		cmocka_unit_test(test_a_slot_moves_only_if_much_is_won),
		cmocka_unit_test(test_one_time_is_no_reason),
		cmocka_unit_test(test_the_largest_times_do_not_overflow),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
