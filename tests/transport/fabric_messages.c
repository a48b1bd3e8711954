/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of messages: they arrive complete, in order and once, in every size, also while
 * the receiver is slow; and of what a message handler may do. (The bed checks the
 * alignment of every message, and its number unless the test sets on_message.)
 */
#include "tests/harness/bed.h"

#include <errno.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"

static void test_messages_arrive_in_order_both_ways(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct tern_rng rng = {.seed = 1};
	struct link *a, *b;

	bed_pair(bed, &a, &b);
	for (int i = 0; i < 1500; i++) {
		link_say_surely(a, tern_rng_below(&rng, SAY_MOST_BYTES + 1));
		link_say_surely(b, tern_rng_below(&rng, 200));
	}
	PUMP(bed, b->heard == a->said && a->heard == b->said);
	bed_settle(bed);
	assert_int_equal(b->heard, 1500);
	assert_int_equal(a->heard, 1500);
	bed_free(bed);
}

static void test_every_small_size_and_the_largest_arrive(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct link *a, *b;

	bed_pair(bed, &a, &b);
	for (size_t bytes = 0; bytes <= 260; bytes++)
		link_say_surely(a, bytes);
	for (size_t bytes = SAY_MOST_BYTES - 70; bytes <= SAY_MOST_BYTES; bytes++)
		link_say_surely(b, bytes);
	PUMP(bed, b->heard == a->said && a->heard == b->said);
	bed_free(bed);
}

struct raw {
	unsigned char bytes[MESSAGE_BYTES];
	size_t got;
	unsigned count;
};

static int keep_raw(struct link *link, const void *data, size_t bytes)
{
	struct raw *raw = link->arg;

	assert_in_range(bytes, 1, sizeof(raw->bytes));
	memcpy(raw->bytes, data, bytes);
	raw->got = bytes;
	raw->count++;
	return 0;
}

static void test_head_and_payload_meet_anywhere(const struct instance *instance)
{
	static const size_t heads[] = {8, 64, 136, MESSAGE_BYTES};
	static const size_t payloads[] = {0, 1, 7, 8, 63, 64, 65, 4000};
	struct bed *bed = bed_new(instance);
	struct raw raw = {0};
	unsigned char out[MESSAGE_BYTES];
	struct link *a, *b;
	unsigned sent = 0;

	bed_pair(bed, &a, &b);
	b->on_message = keep_raw;
	b->arg = &raw;
	for (size_t h = 0; h < TERN_ARRAY_SIZE(heads); h++) {
		for (size_t p = 0; p < TERN_ARRAY_SIZE(payloads); p++) {
			size_t bytes = heads[h] + payloads[p];
			int r;

			if (bytes > MESSAGE_BYTES)
				continue;
			pattern_fill(out, bytes, sent, 0);
			/* The pointer to the payload is ignored if the payload is
			 * empty. */
			PUMP(bed, (r = a->side->fabric->ops->send(a->conn, out, heads[h],
					   payloads[p] ? out + heads[h] : NULL,
					   payloads[p])) != -EAGAIN);
			assert_int_equal(r, 0);
			sent++;
			PUMP(bed, raw.count == sent);
			assert_int_equal(raw.got, bytes);
			assert_memory_equal(raw.bytes, out, bytes);
		}
	}
	bed_free(bed);
}

static void test_eagain_takes_nothing_and_writable_follows(
	const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct link *a, *b;

	if (bed->world)
		SKIP(bed, "this fabric never refuses a message for lack of space");
	bed_pair(bed, &a, &b);
	for (unsigned round = 0; round < 3; round++) {
		unsigned writable = a->writable_count;
		int r = 0;

		if (round == 0)
			assert_int_equal(writable, 0);
		bed->sides[B].asleep = true;
		/* Every fabric must refuse messages at some point: if it accepts 256 MiB,
		 * it has no limit. */
		for (unsigned i = 0; r == 0 && i < 32768; i++) {
			r = link_say(a, round == 1 && i < 4096 ? i % 40 : SAY_MOST_BYTES);
			if (r == 0 && i % 64 == 63)
				side_poll(&bed->sides[A], 64);
		}
		assert_int_equal(r, -EAGAIN);
		bed->sides[B].asleep = false;
		PUMP(bed, a->writable_count > writable);
		PUMP(bed, link_say(a, 5) == 0);
		PUMP(bed, b->heard == a->said);
	}
	bed_settle(bed);
	assert_int_equal(b->heard, a->said);
	bed_free(bed);
}

/* Sends until the fabric refuses a message, or 20000 are sent. The test calls it once for
 * each end; after that only `writable` does. */
static void say_more(struct link *link)
{
	while (link->said < 20000 && link_say(link, link->said % 900) == 0)
		;
}

static void test_a_sender_driven_by_writable_alone_never_stalls(
	const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct link *a, *b;

	bed_pair(bed, &a, &b);
	a->on_writable = say_more;
	b->on_writable = say_more;
	say_more(a);
	say_more(b);
	PUMP(bed, b->heard == 20000 && a->heard == 20000);
	bed_free(bed);
}

static void answer(struct link *link)
{
	if (link->heard < 500)
		assert_int_equal(link_say(link, link->heard % 300), 0);
}

static void test_handlers_may_answer(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct link *a, *b;

	bed_pair(bed, &a, &b);
	a->on_heard = answer;
	b->on_heard = answer;
	assert_int_equal(link_say(a, 64), 0);
	PUMP(bed, b->heard == 500);
	assert_int_equal(a->heard, 499);
	bed_free(bed);
}

static void say_at_once(struct link *link)
{
	for (int i = 0; i < 3; i++)
		assert_int_equal(link_say(link, 10), 0);
}

static void test_up_and_accepted_may_send(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct link *a, *b;

	bed->sides[B].on_accepted = say_at_once;
	a = bed_dial(bed);
	a->on_up = say_at_once;
	PUMP(bed, a->heard == 3);
	b = tern_list_entry(bed->sides[B].links.next, struct link, node);
	PUMP(bed, b->heard == 3);
	bed_free(bed);
}

static int refuse_third(struct link *link, const void *data, size_t bytes)
{
	unsigned *count = link->arg;

	(void)data;
	(void)bytes;
	return ++*count == 3 ? -EBADMSG : 0;
}

static void test_a_handler_that_refuses_a_message_cuts_the_conn(
	const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct link *a, *b, *a2, *b2;
	unsigned count = 0;

	bed_pair(bed, &a, &b);
	bed_pair(bed, &a2, &b2);
	b->on_message = refuse_third;
	b->arg = &count;
	for (int i = 0; i < 6; i++)
		assert_int_equal(link_say(a, 100), 0);
	PUMP(bed, b->closed_count && a->closed_count);
	assert_int_equal(count, 3); /* no message after the refused one was delivered */
	assert_int_equal(b->status, -EBADMSG);
	assert_int_equal(a->status, -ECONNRESET);
	link_say_surely(a2, 8);
	PUMP(bed, b2->heard == 1);
	bed_free(bed);
}

static void close_this(struct link *link)
{
	if (link->heard == 2)
		link_close(link, false);
}

static void test_a_handler_may_close_its_own_conn(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct link *a, *b;

	bed_pair(bed, &a, &b);
	b->on_heard = close_this;
	for (int i = 0; i < 20; i++)
		assert_int_equal(link_say(a, 100), 0);
	PUMP(bed, b->closed_count && a->closed_count);
	assert_int_equal(b->heard, 2); /* no message was delivered after the close */
	assert_int_equal(b->status, 0);
	assert_int_equal(a->status, -ECONNRESET);
	bed_free(bed);
}

static void close_other(struct link *link)
{
	struct link *other = link->arg;

	if (other->conn)
		link_close(other, false);
}

static void test_a_handler_may_close_another_conn(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct link *a[2], *b[2];

	bed_pair(bed, &a[0], &b[0]);
	bed_pair(bed, &a[1], &b[1]);
	for (int i = 0; i < 2; i++) {
		b[i]->on_heard = close_other;
		b[i]->arg = b[1 - i];
		for (int j = 0; j < 20; j++)
			assert_int_equal(link_say(a[i], 100), 0);
	}
	/* The first of the two conns that gets a message closes the other one, which must
	 * then get none. */
	PUMP(bed, b[0]->closed_count || b[1]->closed_count);
	bed_settle(bed);
	assert_int_equal(b[0]->closed_count + b[1]->closed_count, 1);
	assert_int_equal(b[0]->heard + b[1]->heard, 20);
	bed_free(bed);
}

static void dial_back(struct link *link)
{
	struct bed *bed = link->side->bed;
	const struct tern_fabric_ops *ops = link->side->fabric->ops;
	struct tern_lsn **lsn = link->arg;
	char address[BED_ADDRESS_MAX];

	if (link->heard > 1)
		return;
	bed->instance->address(address, 7);
	assert_int_equal(ops->listen(link->side->port, address, lsn), 0);
	bed_dial_at(bed, B, ops->lsn_address(*lsn));
	bed_dial_at(bed, B, ops->lsn_address(bed->lsn));
	ops->lsn_close(bed->lsn);
	bed->lsn = NULL;
}

static void test_a_handler_may_listen_connect_and_stop_listening(
	const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct side *side = &bed->sides[B];
	struct tern_lsn *lsn = NULL;
	struct link *a, *b;

	bed_pair(bed, &a, &b);
	b->on_heard = dial_back;
	b->arg = &lsn;
	assert_int_equal(link_say(a, 0), 0);
	/* The port is connected to itself through the new listener. */
	PUMP(bed, side->accepted_count == 2);
	link_say_surely(a, 100);
	PUMP(bed, b->heard == 2);
	side->fabric->ops->lsn_close(lsn);
	bed_free(bed);
}

static void test_one_poll_is_bounded(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct side *side = &bed->sides[B];
	struct link *a, *b;
	unsigned sent = 0;
	int events;

	bed_pair(bed, &a, &b);
	bed_settle(bed);
	side->asleep = true;
	while (sent < 2000 && link_say(a, 0) == 0)
		sent++;
	bed_settle(bed);
	/* If fewer messages were waiting, this test would prove nothing. */
	assert_in_range(sent, 100, 2000);
	side->asleep = false;
	events = side_poll(side, 8);
	assert_true(events >= 0);
	assert_true(b->heard < 80); /* about 8 are expected */
	PUMP(bed, b->heard == sent);
	bed_settle(bed);
	assert_int_equal(side_poll(side, 64), 0); /* no event is left */
	bed_free(bed);
}

/* Sends small messages until 500 are in flight, or the fabric refuses one. */
static void flood(struct link *from, const struct link *to)
{
	while (from->said - to->heard < 500 && link_say(from, 0) == 0)
		;
}

static void flood_turn(struct bed *bed, struct link *a, struct link *b)
{
	flood(a, b);
	flood(b, a);
	bed_turn(bed);
}

/* Each poll of either end finds more messages than it may handle: new connections must
 * still come up. */
static void test_a_flood_keeps_nobody_from_connecting(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct link *a, *b, *second;

	bed_pair(bed, &a, &b);
	for (unsigned i = 0; i < 100; i++)
		flood_turn(bed, a, b);
	second = bed_dial(bed);
	PUMP_WITH(flood_turn(bed, a, b), instance->name,
		second->up && bed->sides[B].accepted_count == 2);
	link_close(second, false);
	PUMP_WITH(flood_turn(bed, a, b), instance->name, second->closed_count);
	PUMP(bed, a->heard == b->said && b->heard == a->said);
	bed_free(bed);
}

static int count_large(struct link *link, const void *data, size_t bytes)
{
	(void)data;
	assert_true(bytes <= link->conn->port->message_bytes);
	++*(unsigned *)link->arg;
	return 0;
}

/* Sends a message larger than the receiver's limit, as only a peer can that violates the
 * protocol. */
static void test_a_message_over_the_limit_is_not_delivered(
	const struct instance *instance)
{
	struct bed *bed = bed_new_sized(instance, MESSAGE_BYTES, MESSAGE_BYTES / 2);
	struct link *a = bed_dial(bed), *b = NULL;
	unsigned count = 0;

	PUMP(bed, a->closed_count || (a->up && bed->sides[B].accepted_count));
	if (a->closed_count == 0) {
		b = tern_list_entry(bed->sides[B].links.next, struct link, node);
		b->on_message = count_large;
		b->arg = &count;
		assert_int_equal(link_say(a, MESSAGE_BYTES / 2 + 64), 0);
		PUMP(bed, a->closed_count && b->closed_count);
		assert_int_equal(b->status, -EPROTO);
	}
	assert_true(a->status < 0);
	assert_int_equal(count, 0);
	bed_free(bed);
}

const struct conformance_test conformance_messages[] = {
	CONFORMANCE(test_messages_arrive_in_order_both_ways, NEEDS_NOTHING),
	CONFORMANCE(test_every_small_size_and_the_largest_arrive, NEEDS_NOTHING),
	CONFORMANCE(test_head_and_payload_meet_anywhere, NEEDS_NOTHING),
	CONFORMANCE(test_eagain_takes_nothing_and_writable_follows, NEEDS_NOTHING),
	CONFORMANCE(test_a_sender_driven_by_writable_alone_never_stalls, NEEDS_NOTHING),
	CONFORMANCE(test_handlers_may_answer, NEEDS_NOTHING),
	CONFORMANCE(test_up_and_accepted_may_send, NEEDS_NOTHING),
	CONFORMANCE(test_a_handler_that_refuses_a_message_cuts_the_conn, NEEDS_NOTHING),
	CONFORMANCE(test_a_handler_may_close_its_own_conn, NEEDS_NOTHING),
	CONFORMANCE(test_a_handler_may_close_another_conn, NEEDS_NOTHING),
	CONFORMANCE(test_a_handler_may_listen_connect_and_stop_listening, NEEDS_NOTHING),
	CONFORMANCE(test_one_poll_is_bounded, NEEDS_NOTHING),
	CONFORMANCE(test_a_flood_keeps_nobody_from_connecting, NEEDS_NOTHING),
	CONFORMANCE(test_a_message_over_the_limit_is_not_delivered, NEEDS_LIES),
	{0},
};
