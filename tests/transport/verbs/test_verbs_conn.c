/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of how conns of the verbs fabric are established, how that fails, and how they
 * end in order. */
#include <poll.h>

#include "tests/transport/verbs/verbs_bed.h"
#include "transport/verbs/verbs.h"

/* Connects to `to` and returns the status with which the conn ends. */
static int dial_status(struct bed *bed, const char *to)
{
	struct link *a = bed_dial_at(bed, A, to);

	PUMP(bed, a->closed_count);
	assert_false(a->up);
	return a->status;
}

/* ---- connecting fails ---- */

static void test_nobody_listens(void **state)
{
	struct bed *bed = verbs_bed_new(NULL);

	(void)state;
	assert_int_equal(dial_status(bed, "10.7.0.2:1027"), -ECONNREFUSED);
	verbs_bed_free(bed);
}

static void test_an_address_of_no_rdma_device_is_unreachable(void **state)
{
	struct bed *bed = verbs_bed_new(NULL);

	(void)state;
	assert_int_equal(dial_status(bed, "192.0.2.1:1027"), -EHOSTUNREACH);
	assert_int_equal(dial_status(bed, "198.51.100.1:1027"), -EHOSTUNREACH);
	verbs_bed_free(bed);
}

static void test_no_answer_is_a_timeout(void **state)
{
	struct bed *bed = verbs_bed_new(NULL);

	(void)state;
	assert_int_equal(dial_status(bed, "203.0.113.1:1027"), -ETIMEDOUT);
	verbs_bed_free(bed);
}

static void test_a_route_that_is_not_found_ends_the_conn(void **state)
{
	struct bed *bed = verbs_bed_new(NULL);

	(void)state;
	fake_verbs_fail("resolve_route", 1, EHOSTUNREACH);
	assert_int_equal(dial_status(bed, "10.7.0.2:1027"), -EHOSTUNREACH);
	verbs_bed_free(bed);
}

static void test_the_acceptors_reason_reaches_the_connector(void **state)
{
	struct bed *bed = verbs_bed_new(NULL);
	struct link *a, *b;

	(void)state;
	/* The first queue pair is A's. Creating the second one, B's, fails, and so does
	 * B's second attempt without inline data. */
	fake_verbs_fail("create_qp", 2, ENOMEM);
	fake_verbs_fail("create_qp", 3, ENOMEM);
	check_ends(bed_dial(bed), -ENOMEM);
	assert_true(log_env_has(&bed->sides[B].log, "refused"));
	assert_int_equal(bed->sides[B].accepted_count, 0);
	bed_pair(bed, &a, &b);
	check_works(a, b);
	verbs_bed_free(bed);
}

static void test_ends_that_disagree_on_messages_do_not_connect(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();
	struct bed *bed;

	(void)state;
	opts.b_message_bytes = 4096;
	bed = verbs_bed_new(&opts);
	check_ends(bed_dial(bed), -EPROTO);
	assert_true(log_env_has(&bed->sides[B].log, "10.7.0.1"));
	verbs_bed_free(bed);
}

/* An iWARP device ends a put before the peer has its bytes. */
static void test_puts_land_when_they_end_but_over_iwarp(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();

	(void)state;
	for (unsigned iwarp = 0; iwarp < 2; iwarp++) {
		struct link *a, *b;
		struct bed *bed;

		opts.fake.iwarp = iwarp ? UINT32_MAX : 0;
		bed = verbs_bed_new(&opts);
		bed_pair(bed, &a, &b);
		assert_int_equal(!(link_caps(a) & TERN_CAP_LANDS), iwarp);
		assert_int_equal(!(link_caps(b) & TERN_CAP_LANDS), iwarp);
		check_works(a, b);
		verbs_bed_free(bed);
	}
}

static void test_a_closed_listener_refuses_those_in_its_queue(void **state)
{
	struct bed *bed = verbs_bed_new(NULL);
	struct link *a[3];

	(void)state;
	for (unsigned i = 0; i < 3; i++)
		a[i] = bed_dial(bed);
	side_turns(&bed->sides[A], 300);
	bed->sides[B].fabric->ops->lsn_close(bed->lsn);
	bed->lsn = NULL;
	for (unsigned i = 0; i < 3; i++)
		check_ends(a[i], -ECONNREFUSED);
	assert_int_equal(bed->sides[B].accepted_count, 0);
	verbs_bed_free(bed);
}

static void test_a_closed_listener_ends_conns_that_are_half_open(void **state)
{
	struct bed *bed = verbs_bed_new(NULL);
	struct link *a;

	(void)state;
	fake_verbs_hold_cm(RDMA_CM_EVENT_ESTABLISHED, FAKE_VERBS_PASSIVE, true);
	a = bed_dial(bed);
	PUMP(bed, a->up);
	bed_settle(bed);
	bed->sides[B].fabric->ops->lsn_close(bed->lsn);
	bed->lsn = NULL;
	check_ends(a, -ECONNRESET);
	fake_verbs_hold_cm(RDMA_CM_EVENT_ESTABLISHED, FAKE_VERBS_PASSIVE, false);
	bed_settle(bed);
	assert_int_equal(bed->sides[B].accepted_count, 0);
	verbs_bed_free(bed);
}

static void close_listener(struct link *link)
{
	struct bed *bed = link->side->bed;

	link->side->fabric->ops->lsn_close(bed->lsn);
	bed->lsn = NULL;
}

static void test_the_accepted_handler_may_close_its_listener(void **state)
{
	struct bed *bed = verbs_bed_new(NULL);
	struct link *a;

	(void)state;
	bed->sides[B].on_accepted = close_listener;
	a = bed_dial(bed);
	PUMP(bed, a->up && bed->sides[B].accepted_count);
	check_works(a, tern_list_entry(bed->sides[B].links.prev, struct link, node));
	verbs_bed_free(bed);
}

/* A closes a conn after a number of turns, so that each state is met in which the conn can
 * be while it comes up. */
static void test_a_conn_may_be_closed_at_any_moment(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();

	(void)state;
	for (unsigned turns = 0; turns < 400; turns += 400 / ROUNDS(133)) {
		struct bed *bed;
		struct link *a;

		opts.fake.cm_delay_steps = 20;
		opts.fake.seed = turns + 1;
		bed = verbs_bed_new(&opts);
		a = bed_dial(bed);
		for (unsigned i = 0; i < turns; i++)
			bed_turn(bed);
		link_close(a, turns % 2);
		check_ends(a, a->up ? 0 : -ECANCELED);
		bed_settle(bed);
		verbs_bed_free(bed);
	}
}

/* ---- connecting ---- */

static struct link *only_link(struct side *side)
{
	assert_int_equal(side->accepted_count, 1);
	return tern_list_entry(side->links.prev, struct link, node);
}

static void test_a_message_may_come_before_the_news_that_the_conn_is_up(void **state)
{
	struct bed *bed = verbs_bed_new(NULL);
	struct link *a, *b;

	(void)state;
	fake_verbs_hold_cm(RDMA_CM_EVENT_ESTABLISHED, FAKE_VERBS_PASSIVE, true);
	a = bed_dial(bed);
	PUMP(bed, a->up);
	bed_settle(bed);
	assert_int_equal(bed->sides[B].accepted_count, 0);
	link_say_surely(a, 100);
	link_say_surely(a, 4000);
	PUMP(bed, bed->sides[B].accepted_count);
	b = only_link(&bed->sides[B]);
	PUMP(bed, b->heard == 2);
	fake_verbs_hold_cm(RDMA_CM_EVENT_ESTABLISHED, FAKE_VERBS_PASSIVE, false);
	check_works(a, b);
	only_link(&bed->sides[B]);
	verbs_bed_free(bed);
}

static void test_a_message_replaces_news_that_were_lost(void **state)
{
	struct bed *bed = verbs_bed_new(NULL);
	struct link *a;

	(void)state;
	fake_verbs_lose_cm(RDMA_CM_EVENT_ESTABLISHED, FAKE_VERBS_PASSIVE, 1);
	a = bed_dial(bed);
	PUMP(bed, a->up);
	link_say_surely(a, 0);
	PUMP(bed, bed->sides[B].accepted_count);
	check_works(a, only_link(&bed->sides[B]));
	verbs_bed_free(bed);
}

static void test_a_conn_that_never_came_up_at_the_acceptor_goes_with_its_peer(
	void **state)
{
	struct bed *bed = verbs_bed_new(NULL);
	struct link *a;

	(void)state;
	fake_verbs_lose_cm(RDMA_CM_EVENT_ESTABLISHED, FAKE_VERBS_PASSIVE, 1);
	a = bed_dial(bed);
	PUMP(bed, a->up);
	link_close(a, false);
	check_ends(a, 0);
	bed_settle(bed);
	assert_int_equal(bed->sides[B].accepted_count, 0);
	assert_int_equal(fake_verbs_live().qps, 0);
	verbs_bed_free(bed);
}

/* Opens as many connections as may be half-open at B. B gets no event that any of them is
 * established, and A sends nothing on them. */
static void fill_with_silent(struct bed *bed, struct link **silent)
{
	fake_verbs_hold_cm(RDMA_CM_EVENT_ESTABLISHED, FAKE_VERBS_PASSIVE, true);
	for (unsigned i = 0; i < VERBS_HALF_OPEN_MAX; i++) {
		silent[i] = bed_dial(bed);
		PUMP(bed, silent[i]->up);
	}
}

/* B has as many half-open connections as it may have, and all are silent. They may still
 * come up, so B refuses most new ones, before it creates a queue pair for them. But every
 * fourth new connection takes the place of the oldest silent one, so that nobody has to
 * wait for ever. */
static void test_the_silent_give_way_to_one_newcomer_in_four(void **state)
{
	struct bed *bed = verbs_bed_new(NULL);
	struct link *silent[VERBS_HALF_OPEN_MAX], *newest;
	uint64_t start_ns = tern_clock_ns();
	unsigned dials = 0;

	(void)state;
	fill_with_silent(bed, silent);
	do {
		assert_true(dials++ < 4);
		newest = bed_dial(bed);
		PUMP(bed, newest->up || newest->closed_count);
		if (!newest->up)
			check_ends(newest, -EMFILE);
	} while (!newest->up);
	/* On a slow machine the oldest silent connection is overdue by now, and any new
	 * one replaces it. */
	if (tern_clock_ns() - start_ns < TERN_OVERDUE_NS)
		assert_int_equal(dials, 4);
	check_ends(silent[0], -ECONNRESET);
	link_say_surely(newest, 0);
	PUMP(bed, bed->sides[B].accepted_count);
	check_works(newest, only_link(&bed->sides[B]));
	fake_verbs_hold_cm(RDMA_CM_EVENT_ESTABLISHED, FAKE_VERBS_PASSIVE, false);
	verbs_bed_free(bed);
}

/* ---- ends in order ---- */

/* B polls `idle` times before A sends, so that B sees the disconnect in a different one
 * of its later polls each time. */
static void test_messages_before_a_disconnect_are_delivered_first(void **state)
{
	(void)state;
	for (unsigned idle = 0; idle < 70; idle += 70 / ROUNDS(70)) {
		struct bed *bed = verbs_bed_new(NULL);
		struct link *a, *b;

		bed_pair(bed, &a, &b);
		side_turns(&bed->sides[B], idle);
		for (unsigned i = 0; i < 100; i++)
			assert_int_equal(link_say(a, 100), 0);
		side_turns(&bed->sides[A], 200);
		link_close(a, false);
		side_turns(&bed->sides[A], 2);
		assert_int_equal(a->closed_count, 1);
		for (unsigned i = 0; i < 200; i++)
			side_poll(&bed->sides[B], 1);
		assert_int_equal(b->heard, 100);
		check_ends(b, -ECONNRESET);
		verbs_bed_free(bed);
	}
}

static void test_a_flush_waits_no_longer_than_a_second(void **state)
{
	struct bed *bed = verbs_bed_new(NULL);
	struct link *a, *b;

	(void)state;
	bed_pair(bed, &a, &b);
	fake_verbs_hold_completions(FAKE_VERBS_SENDS, true);
	link_say_surely(a, 4000);
	link_close(a, true);
	side_turns(&bed->sides[A], 1000); /* B is not polled */
	assert_int_equal(a->closed_count, 0);
	verbs_skip_ns(2 * TERN_NS_PER_S);
	side_turns(&bed->sides[A], 2);
	check_ends(a, 0);
	check_ends(b, -ECONNRESET);
	assert_int_equal(b->heard, 1);
	verbs_bed_free(bed);
}

static void test_a_flush_wakes_a_sleeper_when_its_second_is_over(void **state)
{
	struct bed *bed = verbs_bed_new(NULL);
	struct side *side = &bed->sides[A];
	struct link *a, *b;
	uint64_t start_ns;

	(void)state;
	bed_pair(bed, &a, &b);
	bed_settle(bed);
	fake_verbs_hold_completions(FAKE_VERBS_SENDS, true);
	link_say_surely(a, 4000);
	start_ns = tern_clock_ns();
	link_close(a, true);
	while (!a->closed_count && tern_clock_ns() - start_ns < 10 * TERN_NS_PER_S) {
		struct pollfd fd = {
			.fd = side->fabric->ops->fd(side->port), .events = POLLIN};

		if (side->fabric->ops->arm(side->port) == 0)
			assert_int_equal(poll(&fd, 1, 5000), 1);
		side_poll(side, 64);
	}
	assert_int_equal(a->closed_count, 1);
	assert_int_equal(a->status, 0);
	assert_true(tern_clock_ns() - start_ns >= TERN_NS_PER_S);
	verbs_bed_free(bed);
}

static void test_both_may_say_bye_at_once(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();

	(void)state;
	for (unsigned seed = 1; seed <= ROUNDS(40); seed++) {
		struct bed *bed;
		struct link *a, *b;

		opts.fake.seed = seed;
		opts.fake.delay_steps = seed % 2 ? 100 : 0;
		opts.fake.cm_delay_steps = seed % 4 < 2 ? 100 : 0;
		opts.fake.keep_stale_cqes = seed % 3 == 0;
		bed = verbs_bed_new(&opts);
		bed_pair(bed, &a, &b);
		check_works(a, b);
		for (unsigned i = 0; i < 20; i++) {
			assert_int_equal(link_say(a, 500 * (i % 5)), 0);
			assert_int_equal(link_say(b, 500 * (i % 5)), 0);
		}
		if (seed % 5 == 0)
			fake_verbs_hold_completions(FAKE_VERBS_SENDS, true);
		link_close(a, true);
		link_close(b, true);
		for (unsigned i = 0; i < seed; i++)
			bed_turn(bed);
		fake_verbs_hold_completions(FAKE_VERBS_SENDS, false);
		check_ends(a, 0);
		check_ends(b, 0);
		verbs_bed_free(bed);
	}
}

static void test_a_flush_sends_what_was_taken(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();

	(void)state;
	for (unsigned seed = 1; seed <= ROUNDS(10); seed++) {
		struct work put = {0};
		struct tern_buf from, to;
		struct tern_region region;
		struct bed *bed;
		struct link *a, *b;

		opts.fake.seed = seed;
		opts.fake.delay_steps = 30;
		opts.fake.stall_percent = 50;
		opts.verbs = seed % 2 ? "from=10.7.0.1,guard=on" : "from=10.7.0.1";
		bed = verbs_bed_new(&opts);
		bed_pair(bed, &a, &b);
		from = side_memory(&bed->sides[A], SLAB, 3u << 20);
		to = side_memory(&bed->sides[B], SLAB, 3u << 20);
		buf_fill(&from, seed);
		region = link_expose(b, &to, TERN_ACCESS_WRITE);
		for (unsigned i = 0; i < 20; i++)
			link_say_surely(a, 8000);
		link_put_surely(a, &put, &from, &region, 0);
		link_close(a, true);
		check_ends(a, 0);
		assert_int_equal(put.status, 0);
		check_ends(b, -ECONNRESET);
		assert_int_equal(b->heard, 20);
		assert_true(buf_holds(&to, seed));
		verbs_bed_free(bed);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nobody_listens),
		cmocka_unit_test(test_an_address_of_no_rdma_device_is_unreachable),
		cmocka_unit_test(test_no_answer_is_a_timeout),
		cmocka_unit_test(test_a_route_that_is_not_found_ends_the_conn),
		cmocka_unit_test(test_the_acceptors_reason_reaches_the_connector),
		cmocka_unit_test(test_ends_that_disagree_on_messages_do_not_connect),
		cmocka_unit_test(test_puts_land_when_they_end_but_over_iwarp),
		cmocka_unit_test(test_a_closed_listener_refuses_those_in_its_queue),
		cmocka_unit_test(test_a_closed_listener_ends_conns_that_are_half_open),
		cmocka_unit_test(test_the_silent_give_way_to_one_newcomer_in_four),
		cmocka_unit_test(test_the_accepted_handler_may_close_its_listener),
		cmocka_unit_test(test_a_conn_may_be_closed_at_any_moment),
		cmocka_unit_test(
			test_a_message_may_come_before_the_news_that_the_conn_is_up),
		cmocka_unit_test(test_a_message_replaces_news_that_were_lost),
		cmocka_unit_test(
			test_a_conn_that_never_came_up_at_the_acceptor_goes_with_its_peer),
		cmocka_unit_test(test_messages_before_a_disconnect_are_delivered_first),
		cmocka_unit_test(test_a_flush_waits_no_longer_than_a_second),
		cmocka_unit_test(test_a_flush_wakes_a_sleeper_when_its_second_is_over),
		cmocka_unit_test(test_both_may_say_bye_at_once),
		cmocka_unit_test(test_a_flush_sends_what_was_taken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
