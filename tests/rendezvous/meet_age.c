/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of sessions that have existed for long. Their 32-bit counters have wrapped, and
 * no longer tell how much was sent since the session began. The test advances the
 * counters to values at, before and after every power of two at which something could
 * wrap, by different amounts for different counters. Then the session must do everything
 * that a new one can: move tensors, survive a lost connection, make rails (additional
 * connections).
 */
#include "tests/rendezvous/meet.h"

#include <errno.h>

#include "base/clock.h"
#include "base/util.h"
#include "rendezvous/rendezvous.h"

#define SMALL_COUNT 150u
#define LARGE_BYTES 300000u /* so large that rails are made */
#define RAIL_COUNT  2u

static struct tern_peer_stats stats_of(const struct end *end)
{
	struct tern_peer_stats stats;

	tern_peer_stats(end->peer, &stats);
	return stats;
}

/* True if all messages sent by `from` are received and acknowledged, and both ends agree
 * on the credits (rights to send a message). */
static bool is_told(const struct tern_peer *from, const struct tern_peer *to)
{
	return from->stats.messages_sent == to->stats.messages_received &&
	       from->stream.tx_seq == to->stream.rx_seq &&
	       from->stream.acked == from->stream.tx_seq &&
	       from->stream.retain.count == 0 && from->stream.sent_count == 0 &&
	       from->stream.credit_rx.granted == to->stream.credit_tx.granted;
}

/* Advances the counters of both ends as if `from` had sent `seq` more messages, of which
 * `credits` used a credit each. */
static void set_forward(
	struct tern_peer *from, struct tern_peer *to, uint32_t seq, uint32_t credits)
{
	from->stream.tx_seq += seq;
	from->stream.acked += seq;
	from->dial.lost_acked += seq;
	to->stream.rx_seq += seq;
	to->stream.told_ack += seq;
	from->stream.credit_tx.granted += credits;
	from->stream.credit_tx.used += credits;
	to->stream.credit_rx.granted += credits;
	to->stream.credit_rx.received += credits;
	to->stream.credit_rx.told += credits;
	to->stream.credit_rx.grown_at += credits;
}

/* Changes each free slot of the id table so that its next id is the last one before the
 * generation number wraps. */
static void age_ids(struct tern_peer *peer)
{
	for (uint32_t i = 0; i < peer->ids.slot_count; i++)
		if (!peer->ids.slots[i].xfer)
			peer->ids.slots[i].generation = UINT16_MAX;
}

static void age_epoch(struct tern_peer *peer, uint32_t epoch)
{
	peer->epoch = epoch;
	peer->link->epoch = epoch;
	for (unsigned i = 1; i < TERN_RAILS_MAX; i++)
		if (peer->rails.link[i])
			peer->rails.link[i]->epoch = epoch;
}

struct age {
	/* By how many messages, and by how many credits, the counters of the direction from
	 * A to B are advanced. From B to A the two amounts are swapped. */
	uint32_t seq, credits;
	uint32_t epoch;
};

/* Advances all counters. It first waits until nothing is in flight, since a message in
 * flight would carry the old values. */
static void age(struct meet *meet, const struct age *by)
{
	struct tern_peer *a = meet->ends[A].peer, *b = meet->ends[B].peer;

	MEET_PUMP(meet, is_told(a, b) && is_told(b, a));
	set_forward(a, b, by->seq, by->credits);
	set_forward(b, a, by->credits, by->seq);
	age_ids(a);
	age_ids(b);
	age_epoch(a, by->epoch);
	age_epoch(b, by->epoch);
}

static void exchange(struct meet *meet, unsigned from, uint64_t step)
{
	static struct call send[SMALL_COUNT + 1], recv[SMALL_COUNT + 1];
	struct end *a = &meet->ends[from], *b = &meet->ends[!from];

	for (unsigned i = 0; i <= SMALL_COUNT; i++) {
		uint64_t bytes = i == SMALL_COUNT ? LARGE_BYTES
				 : i % 10 == 0    ? MEET_EAGER + 1 + i
						  : i;
		struct tern_buf data = end_data(a, SLAB, bytes, i + step);
		struct tern_buf room = end_memory(b, SLAB, bytes);

		if (i % 2)
			assert_int_equal(call_recv(&recv[i], b, i, step, &room, 0), 0);
		assert_int_equal(call_send(&send[i], a, i, step, &data, 0), 0);
		if (i % 2 == 0)
			assert_int_equal(call_recv(&recv[i], b, i, step, &room, 0), 0);
	}
	MEET_PUMP(meet,
		calls_over(send, SMALL_COUNT + 1) && calls_over(recv, SMALL_COUNT + 1));
	for (unsigned i = 0; i <= SMALL_COUNT; i++) {
		assert_int_equal(send[i].req.status, 0);
		call_check(&recv[i], send[i].buf.bytes, i + step);
	}
	box_free(&a->box);
	box_free(&b->box);
}

static bool can_come_back(const struct meet *meet)
{
	return !(tern_peer_caps(meet->ends[A].peer) & TERN_CAP_BOUND);
}

static void lose_the_link(struct meet *meet)
{
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	unsigned before = a->recovered_count;

	if (!can_come_back(meet))
		return;
	tern_peer_cut(a->peer, -ECONNRESET);
	MEET_PUMP(meet,
		a->recovered_count > before && b->suspect_count == b->recovered_count);
}

static unsigned rails_up(const struct tern_peer *peer)
{
	unsigned count = 0;

	for (unsigned i = 1; i < TERN_RAILS_MAX; i++)
		count +=
			peer->rails.link[i] && peer->rails.link[i]->state == TERN_LINK_UP;
	return count;
}

/* True if the session has as many additional connections as it should: none on fabrics
 * that cannot put; RAIL_COUNT if large tensors have connections of their own (bulk_bytes);
 * else one less, since the main link is one of the rails. */
static bool has_its_rails(const struct meet *meet)
{
	const struct tern_peer *a = meet->ends[A].peer, *b = meet->ends[B].peer;
	unsigned wanted = a->rails.bulk_bytes ? RAIL_COUNT : RAIL_COUNT - 1;

	if (!(tern_peer_caps(a) & TERN_CAP_PUT))
		wanted = 0;
	return rails_up(a) == wanted && rails_up(b) == wanted;
}

/* True if the session uses no memory for received messages (records), and promises no
 * more credits than it may. */
static bool holds_nothing(const struct tern_peer *peer)
{
	const struct tern_credit_rx *rx = &peer->stream.credit_rx;

	return rx->held == 0 && tern_list_empty(&peer->records) &&
	       tern_credit_promised(rx) <= TERN_CREDIT_MAX &&
	       rx->pool->promised == tern_credit_shared(rx);
}

/* In virtual time the session has lost no connection but those that the test has cut. On a busy
 * machine, an emulated one above all, a device may give one up besides. */
static void check_reconnects(struct meet *meet)
{
	uint64_t count = stats_of(&meet->ends[A]).reconnect_count;
	uint64_t cuts = can_come_back(meet) ? 2 : 0;

	if (meet->instance->world_step)
		assert_int_equal(count, cuts);
	else
		assert_in_range(count, cuts, can_come_back(meet) ? UINT64_MAX : 0);
}

static void live_on(struct meet *meet, const struct age *by)
{
	struct end *a = &meet->ends[A], *b = &meet->ends[B];

	for (unsigned from = A; from <= B; from++)
		exchange(meet, from, 1);
	MEET_PUMP(meet, has_its_rails(meet));
	age(meet, by);
	exchange(meet, A, 2); /* the counters wrap during this exchange */
	for (unsigned round = 0; round < 2; round++) {
		lose_the_link(meet);
		exchange(meet, A, 3 + round);
		exchange(meet, B, 3 + round);
		MEET_PUMP(meet, has_its_rails(meet));
	}
	MEET_PUMP(meet, holds_nothing(a->peer) && holds_nothing(b->peer));
	assert_int_equal(a->down_count + b->down_count, 0);
	check_reconnects(meet);
}

static void test_a_session_of_2_to_the_33_messages_lives_on(
	const struct instance *instance)
{
	static const struct age ages[] = {
		{(1u << 31) - 300, 1u << 31, 1},
		{1u << 31, (1u << 31) + 1, (1u << 31) - 1},
		{UINT32_MAX - 200, 5, UINT32_MAX - 1},
		{UINT32_MAX, 3u << 30, UINT32_MAX},
		/* Both counters modulo 2^32: 2^33 + 2^31 + 7 messages, of which 2^33 used
		 * a credit. */
		{(1u << 31) + 7, 0, 7},
	};
	struct tern_context_opts opts = meet_opts();

	opts.bulk_bytes = 100000;
	opts.rail_count = RAIL_COUNT;
	/* Makes PINGs, which carry the counters, frequent. */
	opts.suspect_ns = 40 * TERN_NS_PER_MS;
	opts.reconnect_ns = opts.dead_ns = 60 * TERN_NS_PER_S;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(ages); i++) {
		struct meet *meet = meet_new_with(instance, &opts, &opts);

		live_on(meet, &ages[i]);
		meet_free(meet);
	}
}

const struct conformance_test meet_age[] = {
	CONFORMANCE(test_a_session_of_2_to_the_33_messages_lives_on, NEEDS_NOTHING),
	{0},
};
