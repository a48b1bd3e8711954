/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of sessions that lose and restore their link (connection): how often a session
 * dials, what it sends on a new link before it has resent all unacknowledged messages, and
 * links that are lost or late in the handshake; and of many peers that dial at once. */
#include "tests/rendezvous/meet.h"

#include <errno.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/util.h"
#include "rendezvous/rendezvous.h"

static bool can_come_back(const struct meet *meet)
{
	return !(tern_peer_caps(meet->ends[A].peer) & TERN_CAP_BOUND);
}

static void cut_when_recovered(struct end *end, enum tern_peer_event event)
{
	if (event == TERN_PEER_RECOVERED)
		tern_peer_cut(end->peer, -ECONNRESET);
}

/* Counts the links that are made in 1 s if the network passes handshakes but no data. It
 * needs virtual time, since a busy machine may not get far in a real second. */
static uint64_t links_of_a_second(const struct instance *instance, uint64_t waiting_bytes)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct call send = {0}, recv = {0};
	struct tern_peer_stats stats;
	uint64_t until_ns;

	a->on_event = cut_when_recovered;
	if (waiting_bytes) {
		struct tern_buf data = end_data(a, SLAB, waiting_bytes, 1);

		assert_int_equal(call_send(&send, a, 1, 1, &data, 0), 0);
	}
	until_ns = tern_now_ns(tern_context_env(a->ctx)) + TERN_NS_PER_S;
	tern_peer_cut(a->peer, -ECONNRESET);
	while (tern_now_ns(tern_context_env(a->ctx)) < until_ns)
		meet_turn(meet);
	assert_int_equal(a->down_count, 0);

	/* From here on the network passes data again. */
	a->on_event = NULL;
	if (waiting_bytes) {
		struct tern_buf room = end_memory(b, SLAB, waiting_bytes);

		assert_int_equal(call_recv(&recv, b, 1, 1, &room, 0), 0);
		MEET_PUMP(meet, call_over(&send) && call_over(&recv));
		call_check(&recv, waiting_bytes, 1);
	}
	tern_peer_stats(a->peer, &stats);
	meet_free(meet);
	return stats.reconnect_count;
}

static void test_links_of_no_use_come_ever_more_slowly(const struct instance *instance)
{
	static const uint64_t waiting[] = {0, 300000};

	if (!instance->world_new) {
		print_message("skipped: the test needs virtual time\n");
		skip();
	}
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(waiting); i++) {
		uint64_t count = links_of_a_second(instance, waiting[i]);

		/* The pauses between links double: 1 to 2 ms, 2 to 4 ms, ... up to 50 to
		 * 100 ms. */
		assert_in_range(count, 10, 30);
	}
}

static void cut_as_if_it_had_lasted(struct end *end, enum tern_peer_event event)
{
	struct tern_peer *a = end->meet->ends[A].peer;

	if (event != TERN_PEER_RECOVERED)
		return;
	a->dial.up_ns -= TERN_NS_PER_S;
	a->dial.fruitless_ns -= TERN_NS_PER_S;
	cut_when_recovered(end, event);
}

/* Counts the links that a session makes before it gives up, if none of them carries data:
 * B cuts each one before it has read A's messages. */
static uint64_t links_until_the_end(const struct instance *instance,
	void (*cut)(struct end *end, enum tern_peer_event event))
{
	struct tern_context_opts opts = meet_opts();
	struct tern_peer_stats stats;
	struct call send = {0};
	struct tern_buf data;
	struct meet *meet;
	struct end *a, *b;

	/* Limits the pause before each dial to 2 ms. */
	opts.reconnect_ns = 8 * TERN_NS_PER_MS;
	opts.unreachable_ns = 20 * TERN_NS_PER_MS;
	meet = meet_new_with(instance, &opts, &opts);
	a = &meet->ends[A];
	b = &meet->ends[B];
	b->on_event = cut;
	data = end_data(a, SLAB, 300000, 1);
	assert_int_equal(call_send(&send, a, 1, 1, &data, 0), 0);
	tern_peer_cut(b->peer, -ECONNRESET);
	MEET_PUMP(meet, a->down_count);
	assert_int_equal(a->down_status, -ECONNRESET);
	assert_int_equal(send.req.status, -ECONNRESET);
	tern_peer_stats(a->peer, &stats);
	meet_free(meet);
	return stats.reconnect_count;
}

static void test_links_that_carry_nothing_are_the_end(const struct instance *instance)
{
	if (!instance->world_new) {
		print_message("skipped: the test needs virtual time\n");
		skip();
	}
	assert_int_equal(links_until_the_end(instance, cut_as_if_it_had_lasted), 16);
	/* A link that was cut early counts only a sixteenth of one that lasted, since a
	 * few such links may be chance. */
	assert_in_range(links_until_the_end(instance, cut_when_recovered), 255, 256);
}

/* If the lost link had carried data, the session dials the next one at once: an
 * unreliable network must not slow a busy session down. */
static void test_a_link_of_use_is_followed_at_once(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];

	if (!can_come_back(meet))
		MEET_SKIP(meet, "a session of this fabric cannot reconnect");
	for (unsigned round = 0; round < 8; round++) {
		struct tern_buf data = end_data(a, SLAB, 90000, round);
		struct tern_buf room = end_memory(b, SLAB, 90000);
		struct call send = {0}, recv = {0};

		assert_int_equal(call_recv(&recv, b, 1, round, &room, 0), 0);
		assert_int_equal(call_send(&send, a, 1, round, &data, 0), 0);
		MEET_PUMP(meet, call_over(&send) && call_over(&recv));
		call_check(&recv, 90000, round);
		tern_peer_cut(a->peer, -ECONNRESET);
		MEET_PUMP(meet, a->recovered_count == round + 1);
		assert_true(a->peer->dial.at_once);
	}
	meet_free(meet);
}

static bool is_replaying(const struct tern_peer *peer)
{
	return peer->state == TERN_PEER_STATE_UP &&
	       peer->stream.retain.sent_count < peer->stream.retain.count;
}

static uint64_t sent_by(const struct tern_peer *peer)
{
	struct tern_peer_stats stats;

	tern_peer_stats(peer, &stats);
	return stats.messages_sent;
}

/* Condition for MEET_PUMP, which lets the ends make turns alternately. True when A has sent
 * DONE (the tensor was put), and B, whose turn comes next, has not received it. */
static bool says_done(struct end *a, struct end *b, const struct call *send)
{
	const struct tern_xfer *x = (const void *)send->req.priv;

	if (x->state == TERN_XFER_UNACKED && b->asleep) {
		b->asleep = false;
		return true;
	}
	b->asleep = !b->asleep;
	a->asleep = !b->asleep;
	return false;
}

/* After a reconnect, A puts a large tensor again before it sends later messages. A PING
 * must not wait for that. */
static void test_a_ping_does_not_wait_for_what_is_sent_again(
	const struct instance *instance)
{
	enum { BYTES = 24 << 20 };
	struct tern_context_opts opts = meet_opts();
	struct call send = {0}, recv = {0};
	struct tern_buf data, room;
	struct meet *meet;
	struct end *a, *b;
	uint64_t before;

	/* So large a threshold that no rails are made. */
	opts.bulk_bytes = (uint64_t)1 << 40;
	opts.reconnect_ns = opts.dead_ns = 60 * TERN_NS_PER_S;
	meet = meet_new_with(instance, &opts, &opts);
	a = &meet->ends[A];
	b = &meet->ends[B];
	/* B need not advertise memory in a GPU (POST), and then A may not put. */
	if (!can_come_back(meet) || !(tern_peer_caps(a->peer) & TERN_CAP_PUT) ||
		(instance->gpus & 1 << B))
		MEET_SKIP(meet, "this fabric does not put a tensor again");
	data = end_data(a, SLAB, BYTES, 1);
	room = end_memory(b, SLAB, BYTES);
	assert_int_equal(call_recv(&recv, b, 1, 1, &room, 0), 0);
	meet_settle(meet);
	assert_int_equal(call_send(&send, a, 1, 1, &data, 0), 0);
	MEET_PUMP(meet, says_done(a, b, &send));
	tern_peer_cut(b->peer, -ECONNRESET); /* cut before B handles DONE */
	MEET_PUMP(meet, a->recovered_count && is_replaying(a->peer));
	before = sent_by(a->peer);
	/* The PING waits only for puts that the fabric has accepted already. */
	tern_stream_ping(a->peer, false);
	MEET_PUMP(meet, !a->peer->stream.pings_due);
	assert_true(is_replaying(a->peer));
	assert_int_equal(sent_by(a->peer), before + 1);
	MEET_PUMP(meet, call_over(&send) && call_over(&recv));
	call_check(&recv, BYTES, 1);
	assert_int_equal(a->down_count + b->down_count, 0);
	meet_free(meet);
}

/* Many more peers dial than may be in the handshake at a time, in virtual time at the same
 * instant. All of them must be accepted in the end. */
static void test_a_thousand_who_come_at_once_all_get_in(const struct instance *instance)
{
	enum { COUNT = 1000 };
	static struct tern_peer *peers[COUNT];
	struct tern_context_opts opts = meet_opts();
	struct meet *meet;
	struct end *a, *b;

	if (!instance->world_new) {
		print_message("skipped: the test needs virtual time\n");
		skip();
	}
	meet = meet_new_apart(instance, &opts, &opts);
	a = &meet->ends[A];
	b = &meet->ends[B];
	for (unsigned i = 0; i < COUNT; i++)
		assert_int_equal(
			tern_connect(a->ctx, tern_listener_address(meet->listener), NULL,
				&peers[i]),
			0);
	MEET_PUMP(meet, b->accepted_count == COUNT);
	for (unsigned i = 0; i < COUNT; i++)
		MEET_PUMP(meet, peers[i]->state == TERN_PEER_STATE_UP);
	assert_int_equal(tern_rdv_of(b->ctx)->half_open.count, 0);
	meet_free(meet);
}

/* 300 peers dial at once, of which B lets only 64 be in the handshake at a time. All of
 * them must be accepted in the end, also over fabrics that themselves limit half-open
 * connections. */
static void test_more_than_may_be_half_open_all_get_in(const struct instance *instance)
{
	enum { COUNT = 300, HALF_OPEN = 64 };
	static struct tern_peer *peers[COUNT];
	struct tern_context_opts opts = meet_opts();
	struct meet *meet;
	struct end *a, *b;

	opts.connect_ns = 60 * TERN_NS_PER_S;
	opts.suspect_ns = 60 * TERN_NS_PER_S; /* a turn of so many peers may take long */
	meet = meet_new_apart(instance, &opts, &opts);
	a = &meet->ends[A];
	b = &meet->ends[B];
	tern_rdv_of(b->ctx)->half_open_max = HALF_OPEN;
	for (unsigned i = 0; i < COUNT; i++)
		assert_int_equal(
			tern_connect(a->ctx, tern_listener_address(meet->listener), NULL,
				&peers[i]),
			0);
	MEET_PUMP(meet, b->accepted_count == COUNT);
	for (unsigned i = 0; i < COUNT; i++)
		MEET_PUMP(meet, peers[i]->state == TERN_PEER_STATE_UP);
	assert_int_equal(b->accepted_count, COUNT);
	meet_free(meet);
}

static struct tern_link *link_in(const struct end *end, enum tern_link_state state)
{
	tern_list_for_each (n, &tern_rdv_of(end->ctx)->links) {
		struct tern_link *link = tern_list_entry(n, struct tern_link, node);

		if (link->state == state)
			return link;
	}
	return NULL;
}

/* Condition for MEET_PUMP, which lets the ends make turns alternately. True when B has sent
 * its HELLO 2 and A, which stays asleep, has not received it. */
static bool awaits_proof(struct end *a, struct end *b)
{
	if (!b->asleep && link_in(b, TERN_LINK_WAIT_PROOF))
		return true;
	b->asleep = !b->asleep;
	a->asleep = !b->asleep;
	return false;
}

/* The listening end's reconnect_ns is over, but a new link of the session is in its
 * handshake. The session must wait for the slow dialling end to complete it. */
static void test_a_session_in_its_handshake_is_waited_for(const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();
	struct meet *meet;
	struct end *a, *b;
	uint64_t due_ns;

	opts.reconnect_ns = 60 * TERN_NS_PER_S;
	meet = meet_new_with(instance, &opts, &opts);
	a = &meet->ends[A];
	b = &meet->ends[B];
	if (!can_come_back(meet))
		MEET_SKIP(meet, "a session of this fabric cannot reconnect");
	tern_peer_cut(a->peer, -ECONNRESET);
	MEET_PUMP(meet, awaits_proof(a, b));
	tern_peer_set_timer(b->peer, &b->peer->dial.retry, 0);
	due_ns = b->peer->dial.retry.due_ns;
	MEET_PUMP(meet, b->down_count || b->peer->dial.retry.due_ns > due_ns);
	assert_int_equal(b->down_count, 0);
	a->asleep = false;
	MEET_PUMP(meet, a->recovered_count && b->recovered_count);
	assert_int_equal(a->down_count + b->down_count, 0);
	meet_free(meet);
}

/* Condition for MEET_PUMP, which lets the ends make turns alternately. True when A has
 * sent the last message of the handshake and waits for B's first message. */
static bool awaits_welcome(struct end *a, struct end *b)
{
	if (link_in(a, TERN_LINK_WAIT_WELCOME))
		return true;
	b->asleep = !b->asleep;
	a->asleep = !b->asleep;
	return false;
}

/* For B the link is up, so B sends on it; A closes the link before it has received
 * anything. B must send the same messages again on the next link. */
static void test_what_was_sent_ahead_of_a_lost_welcome_comes(
	const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();
	struct call send = {0}, recv = {0};
	struct tern_link *link;
	struct tern_buf room;
	struct meet *meet;
	struct end *a, *b;

	opts.reconnect_ns = opts.connect_ns = 60 * TERN_NS_PER_S;
	meet = meet_new_apart(instance, &opts, &opts);
	a = &meet->ends[A];
	b = &meet->ends[B];
	meet_dial(meet);
	MEET_PUMP(meet, awaits_welcome(a, b));
	a->asleep = true;
	b->asleep = false;
	MEET_PUMP(meet, b->accepted_count);
	link = link_in(a, TERN_LINK_WAIT_WELCOME);
	if (link->conn->caps & TERN_CAP_BOUND)
		MEET_SKIP(meet, "a session of this fabric cannot reconnect");
	if (!b->channel)
		assert_int_equal(
			tern_channel_open(b->peer, MEET_CHANNEL, &b->channel), 0);
	room = end_data(b, SLAB, MEET_EAGER, 7);
	assert_int_equal(call_send(&send, b, 1, 1, &room, 0), 0);
	tern_link_close(link, -ETIMEDOUT, false);
	a->asleep = false;
	room = end_memory(a, SLAB, MEET_EAGER);
	assert_int_equal(call_recv(&recv, a, 1, 1, &room, 0), 0);
	MEET_PUMP(meet, call_over(&recv) && call_over(&send));
	call_check(&recv, MEET_EAGER, 7);
	assert_int_equal(a->down_count + b->down_count, 0);
	meet_free(meet);
}

/* B notices the lost link, and then does not poll for longer than reconnect_ns. A has
 * dialled in the meantime, so B must look for a new connection before it reports A as
 * down. */
static void test_who_was_busy_looks_before_it_gives_up(const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();
	struct meet *meet;
	struct end *a, *b;

	if (!instance->sockets) {
		print_message("skipped: the connections are not TCP sockets\n");
		skip();
	}
	opts.reconnect_ns = 50 * TERN_NS_PER_MS;
	meet = meet_new_with(instance, &opts, &opts);
	a = &meet->ends[A];
	b = &meet->ends[B];
	a->asleep = true;
	tern_peer_cut(a->peer, -ECONNRESET);
	MEET_PUMP(meet, b->peer->state == TERN_PEER_STATE_LOST);
	a->asleep = false;
	b->asleep = true;
	MEET_PUMP(meet, link_in(a, TERN_LINK_WAIT_ANSWER));
	usleep(200000);
	b->asleep = false;
	MEET_PUMP(meet, (a->recovered_count && b->recovered_count) || b->down_count);
	assert_int_equal(a->down_count + b->down_count, 0);
	meet_free(meet);
}

const struct conformance_test meet_links[] = {
	CONFORMANCE(test_a_thousand_who_come_at_once_all_get_in, NEEDS_NOTHING),
	CONFORMANCE(test_more_than_may_be_half_open_all_get_in, NEEDS_NOTHING),
	CONFORMANCE(test_a_session_in_its_handshake_is_waited_for, NEEDS_NOTHING),
	CONFORMANCE(test_what_was_sent_ahead_of_a_lost_welcome_comes, NEEDS_NOTHING),
	CONFORMANCE(test_who_was_busy_looks_before_it_gives_up, NEEDS_NOTHING),
	CONFORMANCE(test_links_of_no_use_come_ever_more_slowly, NEEDS_NOTHING),
	CONFORMANCE(test_links_that_carry_nothing_are_the_end, NEEDS_NOTHING),
	CONFORMANCE(test_a_link_of_use_is_followed_at_once, NEEDS_NOTHING),
	CONFORMANCE(test_a_ping_does_not_wait_for_what_is_sent_again, NEEDS_NOTHING),
	{0},
};
