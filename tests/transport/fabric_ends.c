/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of how conns begin and end: addresses, refusals, close with and without flush,
 * listeners that are closed while their conns stay open, and many conns at once.
 */
#include "tests/harness/bed.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "transport/domain.h"

#define MANY 200

static void test_connect_comes_up_at_both_ends(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct link *a, *b;

	assert_string_equal(bed->sides[A].fabric->ops->name, instance->fabric);
	bed_pair(bed, &a, &b);
	assert_false(strcmp(a->conn->name, "") == 0);
	assert_true(a->conn->eager_bytes > 0);
	assert_int_equal(a->conn->caps, b->conn->caps);
	bed_free(bed);
}

static void test_malformed_addresses_are_einval(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct side *side = &bed->sides[A];
	const struct tern_fabric_ops *ops = side->fabric->ops;

	for (unsigned i = 0; instance->malformed[i]; i++) {
		struct tern_lsn *lsn = NULL;
		struct tern_conn *conn = NULL;

		if (ops->listen(side->port, instance->malformed[i], &lsn) != -EINVAL)
			fail_msg("listen takes \"%s\"", instance->malformed[i]);
		if (ops->connect(side->port, instance->malformed[i], &conn) != -EINVAL)
			fail_msg("connect takes \"%s\"", instance->malformed[i]);
	}
	bed_free(bed);
}

static void test_an_address_in_use_is_eaddrinuse(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct side *side = &bed->sides[A];
	const struct tern_fabric_ops *ops = side->fabric->ops;
	struct tern_lsn *lsn = NULL;
	struct link *a, *b;

	assert_int_equal(
		ops->listen(side->port, ops->lsn_address(bed->lsn), &lsn), -EADDRINUSE);
	assert_int_equal(
		ops->listen(bed->sides[B].port, ops->lsn_address(bed->lsn), &lsn),
		-EADDRINUSE);
	bed_pair(bed, &a, &b); /* the first listener must still accept */
	bed_free(bed);
}

static void test_an_address_of_another_machine_is_eaddrnotavail(
	const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct side *side = &bed->sides[A];
	struct tern_lsn *lsn = NULL;

	if (!instance->elsewhere)
		SKIP(bed, "this fabric has no address of another machine");
	assert_int_equal(side->fabric->ops->listen(side->port, instance->elsewhere, &lsn),
		-EADDRNOTAVAIL);
	bed_free(bed);
}

static void test_connect_to_nobody_is_refused(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	char address[BED_ADDRESS_MAX];
	struct link *a;

	instance->nobody(address);
	for (int i = 0; i < 3; i++) {
		a = bed_dial_at(bed, A, address);
		PUMP(bed, a->closed_count);
		assert_false(a->up);
		assert_int_equal(a->status, -ECONNREFUSED);
	}
	bed_free(bed);
}

static void redial(struct link *link)
{
	struct link *next;
	int *left = link->arg;

	if (--*left == 0)
		return;
	next = bed_dial(link->side->bed);
	next->on_closed = redial;
	next->on_up = link->on_up;
	next->arg = left;
}

static void hang_up(struct link *link)
{
	link_close(link, false);
}

static void test_closed_and_up_may_connect_and_close(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct link *a = bed_dial(bed);
	int left = 40;

	a->on_closed = redial;
	a->on_up = hang_up;
	a->arg = &left;
	PUMP(bed, left == 0);
	bed_free(bed);
}

static void test_close_is_told_once_at_both_ends(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);

	for (int from_b = 0; from_b < 2; from_b++) {
		struct link *end[2];

		bed_pair(bed, &end[0], &end[1]);
		link_close(end[from_b], false);
		/* Closing the same end again has no effect. */
		link_close(end[from_b], false);
		link_close(end[from_b], true);
		PUMP(bed, end[0]->closed_count && end[1]->closed_count);
		assert_int_equal(end[from_b]->status, 0);
		assert_int_equal(end[!from_b]->status, -ECONNRESET);
		bed_settle(bed);
		assert_int_equal(end[0]->closed_count, 1);
		assert_int_equal(end[1]->closed_count, 1);
	}
	bed_free(bed);
}

static void test_both_ends_may_close_at_once(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct link *a, *b;

	for (int flush = 0; flush < 2; flush++) {
		bed_pair(bed, &a, &b);
		link_say_surely(a, 100);
		link_say_surely(b, 100);
		link_close(a, flush);
		link_close(b, flush);
		PUMP(bed, a->closed_count && b->closed_count);
		assert_int_equal(a->status, 0);
		assert_int_equal(b->status, 0);
	}
	bed_free(bed);
}

static void test_a_conn_may_be_closed_before_it_is_up(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);

	for (int flush = 0; flush < 2; flush++) {
		struct link *a = bed_dial(bed);

		link_close(a, flush);
		PUMP(bed, a->closed_count);
		assert_false(a->up);
	}
	bed_settle(bed);
	bed_free(bed);
}

static void test_nothing_is_sent_after_close(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	uint64_t word = 0;
	struct link *a, *b;

	bed_pair(bed, &a, &b);
	bed->sides[A].asleep = true;
	link_close(b, false);
	PUMP(bed, b->closed_count);
	bed_settle(bed);
	/* B has closed the conn. A does not poll, so each send() may succeed or fail. */
	for (int i = 0; i < 10; i++) {
		int r = a->side->fabric->ops->send(a->conn, &word, 8, NULL, 0);

		assert_true(r == 0 || r == -ENOTCONN || r == -EAGAIN);
	}
	bed->sides[A].asleep = false;
	PUMP(bed, a->closed_count);
	bed_pair(bed, &a, &b);
	link_close(a, true);
	assert_int_equal(link_say(a, 0), -ENOTCONN);
	PUMP(bed, a->closed_count && b->closed_count);
	assert_int_equal(b->heard, 0);
	bed_free(bed);
}

static void test_close_with_flush_sends_what_was_taken(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	/* In rounds 1 and 2 A sends until the fabric refuses a message for lack of space,
	 * or up to this number of messages: the simulator never refuses one. */
	int most = bed->world ? 1000 : 100000;

	for (int round = 0; round < 3; round++) {
		struct link *a, *b;

		bed_pair(bed, &a, &b);
		/* In round 1 A closes before it has read these messages of B.
		 * Nevertheless B must get all of A's. */
		for (int i = 0; round && i < 20; i++)
			assert_int_equal(link_say(b, 400), 0);
		if (round)
			for (int i = 0; i < 50; i++)
				side_poll(&bed->sides[B], 16);
		bed->sides[B].asleep = true;
		for (int i = 0; i < (round ? most : 3) && link_say(a, 3000) == 0; i++)
			if (round == 2)
				side_poll(&bed->sides[A], 16);
		link_close(a, true);
		for (int i = 0; i < 3; i++)
			side_poll(&bed->sides[A], 16);
		bed->sides[B].asleep = false;
		PUMP(bed, a->closed_count && b->closed_count);
		assert_int_equal(a->status, 0);
		assert_int_equal(b->status, -ECONNRESET);
		assert_int_equal(b->heard, a->said);
	}
	bed_free(bed);
}

static void test_close_with_flush_waits_for_a_deaf_peer_only_so_long(
	const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct link *a, *b;

	if (bed->world)
		SKIP(bed, "this fabric never refuses a message for lack of space");
	bed_pair(bed, &a, &b);
	bed->sides[B].asleep = true;
	for (int i = 0; i < 32768 && link_say(a, SAY_MOST_BYTES) == 0; i++)
		;
	link_close(a, true);
	PUMP(bed, a->closed_count);
	assert_int_equal(b->closed_count, 0);
	bed->sides[B].asleep = false;
	PUMP(bed, b->closed_count);
	assert_true(b->heard <= a->said);
	bed_free(bed);
}

static void test_accepted_conns_outlive_their_listener(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	const struct tern_fabric_ops *ops = bed->sides[B].fabric->ops;
	char address[BED_ADDRESS_MAX];
	struct link *a, *b, *late;

	bed_pair(bed, &a, &b);
	strncpy(address, ops->lsn_address(bed->lsn), sizeof(address) - 1);
	address[sizeof(address) - 1] = 0;
	ops->lsn_close(bed->lsn);
	bed->lsn = NULL;
	late = bed_dial_at(bed, A, address);
	PUMP(bed, late->closed_count);
	assert_int_equal(late->status, -ECONNREFUSED);
	link_say_surely(a, 1000);
	link_say_surely(b, 1000);
	PUMP(bed, a->heard == 1 && b->heard == 1);
	/* The address can be used again at once. */
	assert_int_equal(ops->listen(bed->sides[B].port, address, &bed->lsn), 0);
	bed_pair(bed, &a, &b);
	link_say_surely(a, 1000);
	PUMP(bed, b->heard == 1);
	bed_free(bed);
}

static void test_many_conns_live_side_by_side(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct side *side_b = &bed->sides[B];
	struct link *a[MANY];
	unsigned heard;

	for (unsigned i = 0; i < MANY; i++)
		a[i] = bed_dial(bed);
	PUMP(bed, side_b->accepted_count == MANY);
	for (unsigned i = 0; i < MANY; i++) {
		PUMP(bed, a[i]->up);
		for (unsigned j = 0; j < 3; j++)
			link_say_surely(a[i], i);
	}
	tern_list_for_each (node, &side_b->links) {
		struct link *b = tern_list_entry(node, struct link, node);

		PUMP(bed, b->heard == 3);
		link_say_surely(b, 99);
	}
	for (unsigned i = 0; i < MANY; i++)
		PUMP(bed, a[i]->heard == 1);
	/* A closes every second conn, in turn with and without flush; the other conns must
	 * not be affected. */
	for (unsigned i = 0; i < MANY; i += 2)
		link_close(a[i], i % 4 == 0);
	for (unsigned i = 0; i < MANY; i += 2)
		PUMP(bed, a[i]->closed_count);
	for (unsigned i = 1; i < MANY; i += 2)
		link_say_surely(a[i], 7);
	bed_settle(bed);
	heard = 0;
	tern_list_for_each (node, &side_b->links) {
		struct link *b = tern_list_entry(node, struct link, node);

		PUMP(bed, b->closed_count || b->heard == 4);
		heard += b->closed_count == 0;
	}
	assert_int_equal(heard, MANY / 2);
	bed_free(bed);
}

static void test_a_port_may_be_opened_again_and_again(const struct instance *instance)
{
	for (int i = 0; i < 10; i++) {
		struct bed *bed = bed_new(instance);
		struct link *a, *b;

		bed_pair(bed, &a, &b);
		link_say_surely(a, 1);
		PUMP(bed, b->heard == 1);
		bed_free(bed);
	}
}

static int fd_count(void)
{
	int count = 0;

	for (int fd = 0; fd < 4096; fd++)
		count += lseek(fd, 0, SEEK_CUR) >= 0 || errno != EBADF;
	return count;
}

static void test_no_descriptor_is_left_behind(const struct instance *instance)
{
	struct bed *bed;
	struct link *a, *b;
	char address[BED_ADDRESS_MAX];
	int before;

	instance->nobody(address);
	before = fd_count();
	bed = bed_new(instance);
	for (int i = 0; i < 8; i++) {
		struct link *lost = bed_dial_at(bed, A, address);

		bed_pair(bed, &a, &b);
		PUMP(bed, lost->closed_count);
		if (i < 6)
			link_close(i % 2 ? a : b, i < 3);
	}
	link_close(bed_dial(bed), false);
	bed_free(bed);
	/*
	 * Waits for descriptors that are closed later than their port: the verbs fabric
	 * destroys the event channels of its ports in a thread, which the kernel may delay
	 * (transport/verbs/retire.c). Since `before` may include a channel of an earlier
	 * test, the number may even become smaller.
	 */
	PUMP_WITH(usleep(1000), instance->name, fd_count() <= before);
}

const struct conformance_test conformance_ends[] = {
	CONFORMANCE(test_connect_comes_up_at_both_ends, NEEDS_NOTHING),
	CONFORMANCE(test_malformed_addresses_are_einval, NEEDS_NOTHING),
	CONFORMANCE(test_an_address_in_use_is_eaddrinuse, NEEDS_NOTHING),
	CONFORMANCE(test_an_address_of_another_machine_is_eaddrnotavail, NEEDS_NOTHING),
	CONFORMANCE(test_connect_to_nobody_is_refused, NEEDS_NOTHING),
	CONFORMANCE(test_closed_and_up_may_connect_and_close, NEEDS_NOTHING),
	CONFORMANCE(test_close_is_told_once_at_both_ends, NEEDS_NOTHING),
	CONFORMANCE(test_both_ends_may_close_at_once, NEEDS_NOTHING),
	CONFORMANCE(test_a_conn_may_be_closed_before_it_is_up, NEEDS_NOTHING),
	CONFORMANCE(test_nothing_is_sent_after_close, NEEDS_NOTHING),
	CONFORMANCE(test_close_with_flush_sends_what_was_taken, NEEDS_NOTHING),
	CONFORMANCE(
		test_close_with_flush_waits_for_a_deaf_peer_only_so_long, NEEDS_NOTHING),
	CONFORMANCE(test_accepted_conns_outlive_their_listener, NEEDS_NOTHING),
	CONFORMANCE(test_many_conns_live_side_by_side, NEEDS_NOTHING),
	CONFORMANCE(test_a_port_may_be_opened_again_and_again, NEEDS_NOTHING),
	CONFORMANCE(test_no_descriptor_is_left_behind, NEEDS_NOTHING),
	{0},
};
