/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of credits (rights to send a message): how many a receiver grants, and when it
 * sends a message only to grant them. */
#include "tests/harness/cmocka.h"

#include "rendezvous/credit.h"

static struct tern_credit_pool pool = {.total = 4096};

static struct tern_credit_rx open_rx(void)
{
	struct tern_credit_rx rx;

	pool.promised = 0;
	tern_credit_open(&rx, &pool, 0);
	tern_credit_widen(&rx);
	tern_credit_told(&rx);
	return rx;
}

static void receive(struct tern_credit_rx *rx, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		assert_true(tern_credit_receive(rx));
}

static void test_half_a_window_is_worth_telling(void **state)
{
	struct tern_credit_rx rx = open_rx();

	(void)state;
	receive(&rx, TERN_CREDIT_FIRST);
	for (unsigned i = 0; i < TERN_CREDIT_FIRST / 2; i++) {
		assert_false(tern_credit_worth_telling(&rx));
		tern_credit_release(&rx);
	}
	assert_true(tern_credit_worth_telling(&rx));
}

static void test_a_starved_peer_is_told_of_every_credit(void **state)
{
	struct tern_credit_rx rx = open_rx();

	(void)state;
	receive(&rx, TERN_CREDIT_FIRST);
	tern_credit_release(&rx);
	assert_false(tern_credit_worth_telling(&rx));
	/* One credit is granted, but no message has told the sender. */
	tern_credit_grow(&rx);
	assert_int_equal(rx.window, TERN_CREDIT_FIRST);
	assert_true(tern_credit_worth_telling(&rx));
	tern_credit_told(&rx);
	assert_false(tern_credit_worth_telling(&rx));

	receive(&rx, 1);
	pool.promised = pool.total; /* other peers have all shared credits */
	tern_credit_grow(&rx);
	assert_false(tern_credit_worth_telling(&rx));
	tern_credit_told(&rx); /* a message was sent, and granted nothing new */
	tern_credit_release(&rx);
	assert_true(tern_credit_worth_telling(&rx));
}

static void test_a_starved_peer_gets_a_larger_window(void **state)
{
	struct tern_credit_rx rx = open_rx();

	(void)state;
	receive(&rx, TERN_CREDIT_FIRST);
	tern_credit_grow(&rx);
	assert_int_equal(rx.window, 2 * TERN_CREDIT_FIRST);
	assert_int_equal(rx.granted - rx.told, TERN_CREDIT_FIRST);
	assert_true(tern_credit_worth_telling(&rx));
}

/* Receives `count` messages, frees their records at once, and counts all grants as
 * sent. */
static void flow(struct tern_credit_rx *rx, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		receive(rx, 1);
		tern_credit_release(rx);
		tern_credit_told(rx);
	}
}

static void test_a_peer_that_outruns_its_credits_gets_a_larger_window(void **state)
{
	struct tern_credit_rx rx = open_rx();

	(void)state;
	for (unsigned window = TERN_CREDIT_FIRST; window < TERN_CREDIT_MAX; window *= 2) {
		flow(&rx, window - 1);
		tern_credit_grow(&rx);
		assert_int_equal(rx.window, window);
		flow(&rx, 1);
		tern_credit_grow(&rx);
		assert_int_equal(rx.window, 2 * window);
		assert_int_equal(tern_credit_promised(&rx), 2 * window);
	}
	flow(&rx, TERN_CREDIT_MAX);
	tern_credit_grow(&rx);
	assert_int_equal(rx.window, TERN_CREDIT_MAX);
	tern_credit_close(&rx);
}

static void test_who_outruns_leaves_most_of_the_rest_to_others(void **state)
{
	struct tern_credit_rx rx[40];

	(void)state;
	pool.promised = 0;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(rx); i++) {
		uint32_t left;

		tern_credit_open(&rx[i], &pool, 0);
		tern_credit_widen(&rx[i]);
		left = tern_credit_left(&pool);
		for (unsigned n = 0; n < 10; n++) {
			flow(&rx[i], rx[i].window);
			tern_credit_grow(&rx[i]);
		}
		assert_true(tern_credit_left(&pool) >= left / 2);
	}
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(rx); i++)
		tern_credit_close(&rx[i]);
	assert_int_equal(pool.promised, 0);
}

/* Simulates peers that send faster than their credits arrive, until tern_credit_idle(),
 * which shrinks a window, was called `ticks` times for each of them. */
static void stream(struct tern_credit_rx *rx, unsigned count, unsigned ticks)
{
	for (unsigned i = 0; i < ticks * count; i++) {
		tern_credit_idle(&rx[i % count]);
		for (unsigned n = 0; n < count; n++) {
			flow(&rx[n], rx[n].granted - rx[n].received);
			tern_credit_grow(&rx[n]);
		}
	}
}

static void test_who_came_first_shares_with_who_comes_later(void **state)
{
	enum { COUNT = 20 };
	struct tern_credit_rx rx[COUNT];
	uint32_t windows[COUNT];

	(void)state;
	pool.promised = 0;
	for (unsigned count = 1; count <= COUNT; count++) {
		uint32_t least = TERN_CREDIT_MAX, most = 0;

		tern_credit_open(&rx[count - 1], &pool, 0);
		tern_credit_widen(&rx[count - 1]);
		stream(rx, count, 10);
		for (unsigned i = 0; i < count; i++) {
			windows[i] = rx[i].window;
			least = TERN_MIN(least, windows[i]);
			most = TERN_MAX(most, windows[i]);
		}
		assert_true(least >= TERN_CREDIT_FIRST);
		assert_true(most <= 4 * least);
		/* From here on the windows (granted credits) must not change. */
		stream(rx, count, 10);
		for (unsigned i = 0; i < count; i++)
			assert_int_equal(rx[i].window, windows[i]);
	}
	for (unsigned i = 0; i < COUNT; i++)
		tern_credit_close(&rx[i]);
	assert_int_equal(pool.promised, 0);
}

static void test_records_in_use_are_not_greed(void **state)
{
	struct tern_credit_rx rx = open_rx();

	(void)state;
	receive(&rx, TERN_CREDIT_FIRST);
	tern_credit_grow(&rx);
	receive(&rx, TERN_CREDIT_FIRST);
	pool.promised = pool.total; /* other peers have all shared credits */
	tern_credit_grow(&rx);
	tern_credit_idle(&rx);
	assert_int_equal(rx.window, 4 * TERN_CREDIT_FIRST);
}

static void test_any_number_of_peers_has_its_own_and_a_share(void **state)
{
	static struct tern_credit_rx rx[1000];
	uint32_t shared = 0;

	(void)state;
	pool.promised = 0;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(rx); i++) {
		tern_credit_open(&rx[i], &pool, 0);
		assert_int_equal(rx[i].granted, TERN_CREDIT_MIN);
		tern_credit_widen(&rx[i]);
		assert_true(rx[i].granted >= TERN_CREDIT_OWN);
		assert_true(rx[i].granted <= TERN_CREDIT_FIRST);
		shared += tern_credit_shared(&rx[i]);
		assert_int_equal(pool.promised, shared);
	}
	assert_int_equal(rx[0].granted, TERN_CREDIT_FIRST);
	assert_true(tern_credit_left(&pool) > 0);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(rx); i++) {
		receive(&rx[i], TERN_CREDIT_OWN);
		for (unsigned n = 0; n < TERN_CREDIT_OWN; n++)
			tern_credit_release(&rx[i]);
		tern_credit_close(&rx[i]);
	}
	assert_int_equal(pool.promised, 0);
}

static void test_a_window_shrinks_further_where_others_need_it(void **state)
{
	struct tern_credit_rx rx = open_rx();

	(void)state;
	tern_credit_idle(&rx);
	assert_int_equal(rx.window, TERN_CREDIT_FIRST);
	pool.promised = pool.total - 10;
	for (unsigned i = 0; i < 8; i++)
		tern_credit_idle(&rx);
	assert_int_equal(rx.window, TERN_CREDIT_OWN);
	receive(&rx, TERN_CREDIT_FIRST);
	for (unsigned i = 0; i < TERN_CREDIT_FIRST; i++)
		tern_credit_release(&rx);
	assert_int_equal(
		pool.promised, pool.total - 10 - (TERN_CREDIT_FIRST - TERN_CREDIT_OWN));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_half_a_window_is_worth_telling),
		cmocka_unit_test(test_a_starved_peer_is_told_of_every_credit),
		cmocka_unit_test(test_a_starved_peer_gets_a_larger_window),
		cmocka_unit_test(
			test_a_peer_that_outruns_its_credits_gets_a_larger_window),
		cmocka_unit_test(test_who_outruns_leaves_most_of_the_rest_to_others),
		cmocka_unit_test(test_who_came_first_shares_with_who_comes_later),
		cmocka_unit_test(test_records_in_use_are_not_greed),
		cmocka_unit_test(test_any_number_of_peers_has_its_own_and_a_share),
		cmocka_unit_test(test_a_window_shrinks_further_where_others_need_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
