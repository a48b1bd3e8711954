/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of requests that end early: tern_cancel() in every state, tern_peer_free() and
 * tern_context_free() with requests in flight. Each request must end exactly once. After
 * its end the memory belongs to the caller again, and the library must no longer write to
 * it.
 */
#include "tests/rendezvous/meet.h"

#include <errno.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"

static void check_still_works(struct meet *meet)
{
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	static uint64_t key = 1u << 20;

	for (unsigned i = 0; i < 2; i++) {
		struct tern_buf data = end_data(a, SLAB, i ? 50000 : 50, 1);
		struct tern_buf room = end_memory(b, SLAB, 50000);
		struct call send = {0}, recv = {0};

		assert_int_equal(call_recv(&recv, b, ++key, 0, &room, 0), 0);
		assert_int_equal(call_send(&send, a, key, 0, &data, 0), 0);
		MEET_PUMP(meet, call_over(&send) && call_over(&recv));
		assert_int_equal(send.req.status, 0);
		call_check(&recv, data.bytes, 1);
	}
}

static void test_an_unmatched_receive_leaves_as_if_never_posted(
	const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];

	for (unsigned i = 0; i < 12; i++) {
		uint64_t bytes = i % 2 ? 100 : 100000;
		unsigned flags = i / 2 % 3 == 1   ? TERN_RECV_ALLOC
				 : i / 2 % 3 == 2 ? TERN_RECV_PEEK
						  : 0;
		struct tern_buf data = end_data(a, SLAB, bytes, i);
		struct tern_buf room[2] = {
			end_data(b, SLAB, bytes, 99), end_memory(b, SLAB, bytes)};
		struct call send = {0}, recv[2] = {0};

		for (unsigned j = 0; j < 2; j++)
			assert_int_equal(call_recv(&recv[j], b, i, 1,
						 flags ? NULL : &room[j], flags),
				0);
		if (i >= 6)
			meet_settle(meet);
		tern_cancel(&recv[0].req);
		/* tern_cancel() itself does not call done(); tern_progress() does. */
		assert_int_equal(recv[0].done_count, 0);
		MEET_PUMP(meet, call_over(&recv[0]));
		assert_int_equal(recv[0].req.status, -ECANCELED);
		assert_int_equal(call_send(&send, a, i, 1, &data, 0), 0);
		MEET_PUMP(meet, call_over(&recv[1]));
		call_check(&recv[1], bytes, i);
		if (flags)
			tern_release(&recv[1].req);
		MEET_PUMP(meet, call_over(&send));
		assert_int_equal(send.req.status, 0);
		assert_true(buf_holds(&room[0], 99));
	}
	check_still_works(meet);
	meet_free(meet);
}

static void test_an_unmatched_send_can_be_cancelled(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];

	for (unsigned i = 0; i < 8; i++) {
		uint64_t bytes = i % 2 ? 100 : 100000;
		struct tern_buf data = end_data(a, SLAB, bytes, 3);
		struct tern_buf room = end_memory(b, SLAB, bytes);
		struct call send = {0}, recv = {0};

		assert_int_equal(call_send(&send, a, i, 1, &data, 0), 0);
		if (i >= 4)
			meet_settle(meet);
		tern_cancel(&send.req);
		MEET_PUMP(meet, call_over(&send));
		assert_true(send.req.status == -ECANCELED ||
			    (bytes == 100 && send.req.status == 0));
		/* The caller may overwrite the memory after the end of the send. */
		buf_fill(&data, 66);
		meet_settle(meet);
		/* Allowed: the receive ends as cancelled, gets the tensor as it was, or
		 * waits for another send. Never may it get the overwritten bytes. */
		assert_int_equal(call_recv(&recv, b, i, 1, &room, 0), 0);
		meet_settle(meet);
		if (!call_over(&recv))
			tern_cancel(&recv.req);
		MEET_PUMP(meet, call_over(&recv));
		if (recv.req.status == 0)
			call_check(&recv, bytes, 3);
		else
			assert_int_equal(recv.req.status, -ECANCELED);
	}
	check_still_works(meet);
	meet_free(meet);
}

struct mess {
	uint64_t bytes;
	unsigned flags; /* flags of the receive */
	bool sender_first, sender_cancels;
	enum memory memory;
};

/* Waits until a send and its receive have ended, one of which was cancelled. If the other
 * one does not end, the two had not been matched, and it is cancelled, too. */
static void end_both(struct meet *meet, struct call *send, struct call *recv)
{
	MEET_PUMP(meet, call_over(send) || call_over(recv));
	meet_settle(meet);
	if (!call_over(send))
		tern_cancel(&send->req);
	if (!call_over(recv))
		tern_cancel(&recv->req);
	MEET_PUMP(meet, call_over(send) && call_over(recv));
}

/* done() of a receive: if it got the tensor because the cancel came too late, checks and
 * releases it (with ALLOC and PEEK a receive holds memory). */
static void check_and_release(struct call *call)
{
	const struct mess *mess = call->arg;

	if (call->req.status < 0 || !mess->flags)
		return;
	call_check(call, mess->bytes, 3);
	tern_release(&call->req);
}

/* Starts a transfer, and cancels its send or its receive after `turns` turns. */
static void cancel_after(struct meet *meet, const struct mess *mess, unsigned turns)
{
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct tern_buf data = end_data(a, mess->memory, mess->bytes, 3);
	struct tern_buf room = end_memory(b, mess->memory, mess->bytes);
	struct call send = {0};
	struct call recv = {.then = check_and_release, .arg = (void *)(uintptr_t)mess};
	static uint64_t key;
	bool spoilt = false;

	key++;
	if (!mess->sender_first)
		assert_int_equal(call_recv(&recv, b, key, 1, mess->flags ? NULL : &room,
					 mess->flags),
			0);
	else
		assert_int_equal(call_send(&send, a, key, 1, &data, 0), 0);
	meet_settle(meet);
	if (mess->sender_first)
		assert_int_equal(call_recv(&recv, b, key, 1, mess->flags ? NULL : &room,
					 mess->flags),
			0);
	else
		assert_int_equal(call_send(&send, a, key, 1, &data, 0), 0);
	for (unsigned i = 0; i < turns; i++)
		meet_turn(meet);
	if (mess->sender_cancels && !call_over(&send))
		tern_cancel(&send.req);
	if (!mess->sender_cancels && !call_over(&recv))
		tern_cancel(&recv.req);
	/* If the receive advertised its memory (POST), send and receive are matched
	 * already, so the cancel ends both. */
	if (!mess->flags && !mess->sender_first && !(meet->instance->gpus & 1 << B) &&
		strcmp(meet->instance->fabric, "tcp") == 0)
		MEET_PUMP(meet, call_over(&send) && call_over(&recv));
	else
		end_both(meet, &send, &recv);
	if (recv.req.status == 0 && !mess->flags) {
		call_check(&recv, mess->bytes, 3);
	} else if (recv.req.status != 0) {
		assert_int_equal(recv.req.status, -ECANCELED);
		buf_fill(&room, 9);
		spoilt = true;
	}
	assert_true(send.req.status == 0 || send.req.status == -ECANCELED);
	/* A large send succeeds only after its bytes have arrived. */
	if (send.req.status == 0 && mess->bytes > MEET_EAGER && mess->sender_cancels)
		assert_int_equal(recv.req.status, 0);
	if (spoilt) {
		meet_settle(meet);
		assert_true(buf_holds(&room, 9));
	}
}

static void test_a_transfer_under_way_can_be_cancelled(const struct instance *instance)
{
	static const unsigned turns[] = {0, 1, 2, 3, 5, 8, 13, 40, 200};
	struct meet *meet = meet_new(instance);
	struct tern_pool_stats stats;

	for (unsigned i = 0; i < 3 * 2 * 2 * 2; i++) {
		struct mess mess = {
			.bytes = i % 2 ? 1u << 20 : 20000,
			.flags = i / 2 % 3 == 1   ? TERN_RECV_ALLOC
				 : i / 2 % 3 == 2 ? TERN_RECV_PEEK
						  : 0,
			.sender_first = i / 6 % 2,
			.sender_cancels = i / 12 % 2,
			.memory = i % 5 == 4 ? USER : SLAB,
		};

		for (unsigned t = 0; t < TERN_ARRAY_SIZE(turns); t++)
			cancel_after(meet, &mess, turns[t]);
	}
	check_still_works(meet);
	meet_settle(meet);
	tern_pool_stats(meet->ends[B].pool, &stats);
	assert_int_equal(stats.used_count, 0);
	meet_free(meet);
}

static void test_both_ends_may_cancel_at_once(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];

	for (unsigned i = 0; i < 24; i++) {
		uint64_t bytes = i % 2 ? 1u << 20 : 50;
		struct tern_buf data = end_data(a, SLAB, bytes, 3);
		struct tern_buf room = end_memory(b, SLAB, bytes);
		struct call send = {0}, recv = {0};

		assert_int_equal(call_send(&send, a, i, 1, &data, 0), 0);
		assert_int_equal(call_recv(&recv, b, i, 1, &room, 0), 0);
		for (unsigned t = 0; t < i / 2; t++)
			meet_turn(meet);
		if (!call_over(&send))
			tern_cancel(&send.req);
		if (!call_over(&recv))
			tern_cancel(&recv.req);
		MEET_PUMP(meet, call_over(&send) && call_over(&recv));
		if (recv.req.status == 0)
			call_check(&recv, bytes, 3);
	}
	check_still_works(meet);
	meet_free(meet);
}

/* Cancels each request whose counterpart has ended, since the two may never be matched.
 * True when all have ended: a copy in progress may delay that. */
static bool all_end(struct call *send, struct call *recv, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		if (!call_over(&send[i]) && call_over(&recv[i]))
			tern_cancel(&send[i].req);
		if (!call_over(&recv[i]) && call_over(&send[i]))
			tern_cancel(&recv[i].req);
	}
	return calls_over(send, count) && calls_over(recv, count);
}

static void test_many_can_be_cancelled_in_any_order(const struct instance *instance)
{
	enum { COUNT = 400 };
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct tern_rng rng = {.seed = 12};
	static struct call send[COUNT], recv[COUNT];

	for (unsigned i = 0; i < COUNT; i++) {
		struct tern_buf data = end_data(a, SLAB, i % 2 ? 9000 : 90, i);
		struct tern_buf room = end_memory(b, SLAB, 9000);

		assert_int_equal(call_send(&send[i], a, i, 1, &data, 0), 0);
		assert_int_equal(call_recv(&recv[i], b, i, 1, &room, 0), 0);
	}
	for (unsigned i = 0; i < COUNT; i++) {
		unsigned j = (unsigned)tern_rng_below(&rng, COUNT);
		struct call *call = tern_rng_below(&rng, 2) ? &send[j] : &recv[j];

		if (!call_over(call))
			tern_cancel(&call->req);
		if (i % 16 == 0)
			meet_turn(meet);
	}
	meet_settle(meet);
	MEET_PUMP(meet, all_end(send, recv, COUNT));
	for (unsigned i = 0; i < COUNT; i++)
		if (recv[i].req.status == 0)
			call_check(&recv[i], i % 2 ? 9000 : 90, i);
	check_still_works(meet);
	meet_free(meet);
}

static void cancel_other(struct call *call)
{
	struct call *other = call->arg;

	if (!call_over(other))
		tern_cancel(&other->req);
}

static void test_done_may_cancel_another(const struct instance *instance)
{
	enum { COUNT = 20 };
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct call send = {0}, recv[COUNT] = {0};
	struct tern_buf data = end_data(a, SLAB, 100, 3);

	for (unsigned i = 0; i < COUNT; i++) {
		struct tern_buf room = end_memory(b, SLAB, 100000);

		recv[i].then = cancel_other;
		recv[i].arg = &recv[(i + 1) % COUNT];
		assert_int_equal(call_recv(&recv[i], b, i, 1, &room, 0), 0);
	}
	meet_settle(meet);
	assert_int_equal(call_send(&send, a, 4, 1, &data, 0), 0);
	MEET_PUMP(meet, calls_over(recv, COUNT) && call_over(&send));
	for (unsigned i = 0; i < COUNT; i++)
		assert_int_equal(recv[i].req.status, i == 4 ? 0 : -ECANCELED);
	check_still_works(meet);
	meet_free(meet);
}

enum { CROWD = 40 };

/* Posts requests of many kinds, so that they are in different states. After every ten sends
 * and ten receives it makes `turns` turns. */
static void crowd(struct meet *meet, struct call *send, struct call *recv, unsigned turns)
{
	struct end *a = &meet->ends[A], *b = &meet->ends[B];

	for (unsigned i = 0; i < CROWD; i++) {
		uint64_t bytes = i % 4 == 0 ? 1u << 20 : i % 4 == 1 ? 50 : 40000;
		struct tern_buf data = end_data(a, SLAB, bytes, i);
		struct tern_buf room = end_memory(b, SLAB, bytes);
		unsigned flags = i % 3 == 1   ? TERN_RECV_ALLOC
				 : i % 3 == 2 ? TERN_RECV_PEEK
					      : 0;
		/* The receives of the second half have keys that no send has. */
		uint64_t key = i < CROWD / 2 ? i : 100 + i;

		assert_int_equal(call_send(&send[i], a, i, 1, &data, 0), 0);
		assert_int_equal(
			call_recv(&recv[i], b, key, 1, flags ? NULL : &room, flags), 0);
		if (i % 10 == 9)
			for (unsigned t = 0; t < turns; t++)
				meet_turn(meet);
	}
}

static void crowd_check(struct call *send, struct call *recv, bool send_cancelled)
{
	for (unsigned i = 0; i < CROWD; i++) {
		struct call *cancelled = send_cancelled ? &send[i] : &recv[i];

		assert_int_equal(send[i].done_count, 1);
		assert_int_equal(recv[i].done_count, 1);
		assert_true(cancelled->req.status == 0 ||
			    cancelled->req.status == -ECANCELED);
	}
}

/* Releases the memory that a successful request holds. */
static void crowd_release(struct call *call)
{
	if (call->req.status == 0 && (call->req.peeked || call->req.buf.mem))
		tern_release(&call->req);
}

static void crowd_mark(struct call *recv)
{
	for (unsigned i = 0; i < CROWD; i++)
		if (i % 3 != 0)
			recv[i].then = crowd_release;
}

static void test_peer_free_ends_every_request(const struct instance *instance)
{
	for (unsigned side = 0; side < 2; side++) {
		for (unsigned turns = 0; turns < 12; turns += 3) {
			struct meet *meet = meet_new(instance);
			struct end *gone = &meet->ends[side], *left = &meet->ends[!side];
			struct call send[CROWD] = {0}, recv[CROWD] = {0};
			struct tern_peer *peer;
			unsigned events;

			crowd_mark(recv);
			MEET_PUMP(meet, meet->ends[B].peer);
			crowd(meet, send, recv, turns);
			events = gone->up_count + gone->suspect_count;
			peer = gone->peer;
			gone->working = true; /* lets this call run done() */
			tern_peer_free(peer);
			gone->working = false;
			gone->peer = NULL;
			MEET_PUMP(
				meet, calls_over(send, CROWD) && calls_over(recv, CROWD));
			crowd_check(send, recv, side == A);
			MEET_PUMP(meet, left->down_count);
			assert_int_equal(gone->up_count + gone->suspect_count, events);
			assert_int_equal(gone->down_count, 0);
			meet_free(meet);
		}
	}
}

static void test_context_free_ends_every_request(const struct instance *instance)
{
	for (unsigned side = 0; side < 2; side++) {
		for (unsigned turns = 0; turns < 12; turns += 3) {
			struct meet *meet = meet_new(instance);
			struct end *gone = &meet->ends[side];
			struct call send[CROWD] = {0}, recv[CROWD] = {0};
			struct tern_buf room = end_memory(&meet->ends[B], SLAB, 1u << 20);
			struct call last = {0};

			crowd_mark(recv);
			MEET_PUMP(meet, meet->ends[B].peer);
			assert_int_equal(
				call_recv(&last, &meet->ends[B], 0, 77, &room, 0), 0);
			crowd(meet, send, recv, turns);
			if (side == B)
				tern_listener_free(meet->listener);
			gone->working = true;
			tern_context_free(gone->ctx);
			gone->working = false;
			gone->ctx = NULL;
			gone->peer = NULL;
			for (unsigned i = 0; i < CROWD; i++)
				assert_int_equal(
					(side == A ? send : recv)[i].done_count, 1);
			if (side == B) { /* `last` is a receive of the freed context */
				assert_int_equal(last.req.status, -ECANCELED);
				buf_fill(&room, 9);
			}
			MEET_PUMP(
				meet, calls_over(send, CROWD) && calls_over(recv, CROWD));
			MEET_PUMP(meet, call_over(&last));
			if (side == B)
				assert_true(buf_holds(&room, 9));
			crowd_check(send, recv, side == A);
			meet_free(meet);
		}
	}
}

const struct conformance_test meet_cancel[] = {
	CONFORMANCE(test_an_unmatched_receive_leaves_as_if_never_posted, NEEDS_NOTHING),
	CONFORMANCE(test_an_unmatched_send_can_be_cancelled, NEEDS_NOTHING),
	CONFORMANCE(test_a_transfer_under_way_can_be_cancelled, NEEDS_NOTHING),
	CONFORMANCE(test_both_ends_may_cancel_at_once, NEEDS_NOTHING),
	CONFORMANCE(test_many_can_be_cancelled_in_any_order, NEEDS_NOTHING),
	CONFORMANCE(test_done_may_cancel_another, NEEDS_NOTHING),
	CONFORMANCE(test_peer_free_ends_every_request, NEEDS_NOTHING),
	CONFORMANCE(test_context_free_ends_every_request, NEEDS_NOTHING),
	{0},
};
