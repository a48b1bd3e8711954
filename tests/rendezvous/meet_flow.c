/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of a running session: rails (additional connections), consistent statistics, no
 * memory registration after the first transfers, and two threads that sleep while there
 * is nothing to do.
 */
#include "tests/rendezvous/meet.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"

/* ---- rails ---- */

static void test_rails_carry_everything(const struct instance *instance)
{
	enum { COUNT = 10 };
	static const uint64_t sizes[COUNT] = {24u << 20, 100, 65536, 65537, 131071,
		1u << 20, 5000, 4u << 20, 262144 + 9, 0};

	for (unsigned rails = 1; rails <= 4; rails++) {
		struct tern_context_opts a_opts = meet_opts(), b_opts = meet_opts();
		struct call send[COUNT] = {0}, recv[COUNT] = {0};
		struct meet *meet;

		a_opts.rail_count = rails;
		a_opts.bulk_bytes = b_opts.bulk_bytes = 65537;
		/* Has no effect: the end that connects chooses the number of rails. */
		b_opts.rail_count = rails % 2 ? rails : 1;
		meet = meet_new_with(instance, &a_opts, &b_opts);
		for (unsigned round = 0; round < 2; round++) {
			struct end *from = &meet->ends[round], *to = &meet->ends[!round];

			meet_settle(meet);
			for (unsigned i = 0; i < COUNT; i++) {
				struct tern_buf data = end_data(from, SLAB, sizes[i], i);
				struct tern_buf room = end_memory(to, SLAB, sizes[i]);
				bool first = (i + rails) % 2;

				if (first)
					assert_int_equal(
						call_recv(&recv[i], to, i, 1, &room, 0),
						0);
				assert_int_equal(
					call_send(&send[i], from, i, 1, &data, 0), 0);
				if (!first)
					assert_int_equal(
						call_recv(&recv[i], to, i, 1, &room, 0),
						0);
			}
			MEET_PUMP(
				meet, calls_over(recv, COUNT) && calls_over(send, COUNT));
			for (unsigned i = 0; i < COUNT; i++)
				call_check(&recv[i], sizes[i], i);
		}
		meet_free(meet);
	}
}

/* ---- statistics ---- */

static uint64_t by_path(const struct tern_peer_stats *stats)
{
	return stats->eager_count + stats->put_count + stats->get_count +
	       stats->peek_count;
}

/* True if B copies A's tensors, which are in GPU memory, by CUDA IPC: over shm, if the
 * driver has IPC and B uses the GPU, too. */
static bool goes_by_ipc(const struct instance *instance)
{
	bool reader_uses_gpu = instance->uses_gpu || (instance->gpus & 1 << B);

	return instance->ipc && strncmp(instance->fabric, "shm", 3) == 0 &&
	       (instance->gpus & 1 << A) && reader_uses_gpu;
}

static void test_statistics_add_up(const struct instance *instance)
{
	enum { COUNT = 30 };
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct tern_peer_stats stats[2];
	uint64_t total = 0;

	for (unsigned i = 0; i < COUNT; i++) {
		uint64_t bytes = i % 2 ? 100 + i : 50000 + i;
		struct tern_buf data = end_data(a, SLAB, bytes, i);
		struct tern_buf room = end_memory(b, SLAB, bytes);
		struct call send = {0}, recv = {0};

		assert_int_equal(call_recv(&recv, b, i, 1, i % 3 ? &room : NULL,
					 i % 3 ? 0 : TERN_RECV_PEEK),
			0);
		assert_int_equal(call_send(&send, a, i, 1, &data, 0), 0);
		MEET_PUMP(meet, call_over(&recv));
		if (i % 3 == 0)
			tern_release(&recv.req);
		MEET_PUMP(meet, call_over(&send));
		total += bytes;
	}
	meet_settle(meet);
	tern_peer_stats(a->peer, &stats[A]);
	tern_peer_stats(b->peer, &stats[B]);
	assert_int_equal(stats[A].bytes_sent, total);
	assert_int_equal(stats[B].bytes_received, total);
	assert_int_equal(stats[A].bytes_received + stats[B].bytes_sent, 0);
	assert_int_equal(stats[A].messages_sent, stats[B].messages_received);
	assert_int_equal(stats[B].messages_sent, stats[A].messages_received);
	assert_int_equal(by_path(&stats[A]), COUNT);
	assert_int_equal(by_path(&stats[B]), COUNT);
	assert_int_equal(stats[A].eager_count, instance->gpus & 1 << A ? 0 : COUNT / 2);
	assert_int_equal(stats[A].eager_count, stats[B].eager_count);
	assert_int_equal(stats[A].put_count, stats[B].put_count);
	/* The end whose memory is read cannot tell a get from a peek. */
	assert_int_equal(stats[A].get_count + stats[A].peek_count,
		stats[B].get_count + stats[B].peek_count);
	assert_int_equal(stats[A].ipc_count, goes_by_ipc(instance) ? COUNT : 0);
	assert_int_equal(stats[B].ipc_count, stats[A].ipc_count);
	if (goes_by_ipc(instance))
		assert_int_equal(stats[A].staged_count + stats[B].staged_count, 0);
	assert_int_equal(stats[A].reconnect_count + stats[B].reconnect_count, 0);
	meet_free(meet);
}

static void test_nothing_is_registered_after_warm_up(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct tern_buf data = end_data(a, SLAB, 200000, 1);
	struct tern_buf room = end_memory(b, SLAB, 200000);
	struct tern_domain_stats before[2], after;

	for (unsigned i = 0; i < 120; i++) {
		struct tern_buf part = buf_part(&data, 0, i % 2 ? 200000 - i : 60);
		unsigned flags = i % 3 == 1   ? TERN_RECV_ALLOC
				 : i % 3 == 2 ? TERN_RECV_PEEK
					      : 0;
		struct call send = {0}, recv = {0};

		if (i == 20)
			for (unsigned e = 0; e < 2; e++)
				tern_domain_stats(meet->ends[e].domain, &before[e]);
		assert_int_equal(
			call_recv(&recv, b, i % 7, i, flags ? NULL : &room, flags), 0);
		assert_int_equal(call_send(&send, a, i % 7, i, &part, 0), 0);
		MEET_PUMP(meet, call_over(&recv));
		call_check(&recv, part.bytes, 1);
		if (flags)
			tern_release(&recv.req);
		MEET_PUMP(meet, call_over(&send));
	}
	for (unsigned e = 0; e < 2; e++) {
		tern_domain_stats(meet->ends[e].domain, &after);
		assert_int_equal(after.registration_count, before[e].registration_count);
		assert_int_equal(after.registered_bytes, before[e].registered_bytes);
	}
	meet_free(meet);
}

/* ---- sleeping ---- */

/* End B in a thread of its own: it sends back each tensor that it receives, until an
 * empty one arrives. */
struct echo {
	struct end *end;
	struct tern_buf room;
	uint64_t rounds;
	const char *error;
};

static void echo_fail(struct echo *echo, bool ok, const char *what)
{
	if (!ok && !echo->error)
		echo->error = what;
}

static void *echo_run(void *arg)
{
	struct echo *echo = arg;
	struct tern_context *ctx = echo->end->ctx;

	for (uint64_t step = 0; !echo->error; step++) {
		struct tern_req recv = {0}, send = {0};
		struct tern_tensor tensor = {.buf = echo->room};
		int r = tern_recv(
			echo->end->channel, &recv, 1, step, &echo->room, NULL, 0);

		echo_fail(echo, r == 0, "tern_recv");
		if (r == 0)
			echo_fail(echo, tern_wait(ctx, &recv, 10 * TERN_NS_PER_S) == 0,
				"waiting for what comes");
		if (echo->error)
			break;
		tensor.buf.bytes = recv.bytes;
		tensor.shape = recv.shape;
		r = tern_send(echo->end->channel, &send, 2, step, &tensor, NULL, 0);
		echo_fail(echo, r == 0, "tern_send");
		if (r == 0)
			echo_fail(echo, tern_wait(ctx, &send, 10 * TERN_NS_PER_S) == 0,
				"waiting for what goes");
		if (recv.bytes == 0)
			break;
		echo->rounds++;
	}
	while (tern_wait_any(ctx, 50 * TERN_NS_PER_MS) == 0)
		; /* waits until the last message is sent and acknowledged */
	return NULL;
}

static void sleepers(
	const struct instance *instance, bool no_spin, uint64_t bytes, unsigned rounds)
{
	struct tern_context_opts opts = meet_opts();
	struct echo echo = {0};
	struct meet *meet;
	struct end *a;
	struct tern_buf data, room;
	pthread_t thread;

	opts.no_spin = no_spin;
	meet = meet_new_with(instance, &opts, &opts);
	a = &meet->ends[A];
	MEET_PUMP(meet, meet->ends[B].channel);
	data = end_data(a, SLAB, bytes, 1);
	room = end_memory(a, SLAB, bytes);
	echo.end = &meet->ends[B];
	echo.room = end_memory(&meet->ends[B], SLAB, bytes);
	echo.end->working = true;
	a->working = true;
	assert_int_equal(pthread_create(&thread, NULL, echo_run, &echo), 0);
	for (unsigned i = 0; i <= rounds; i++) {
		struct tern_buf part = buf_part(&data, 0, i == rounds ? 0 : bytes);
		struct call send = {0}, recv = {0};

		assert_int_equal(call_recv(&recv, a, 2, i, &room, 0), 0);
		assert_int_equal(call_send(&send, a, 1, i, &part, 0), 0);
		assert_int_equal(tern_wait(a->ctx, &send.req, 10 * TERN_NS_PER_S), 0);
		assert_int_equal(tern_wait(a->ctx, &recv.req, 10 * TERN_NS_PER_S), 0);
		assert_true(call_over(&send) && call_over(&recv));
		call_check(&recv, part.bytes, 1);
	}
	pthread_join(thread, NULL);
	echo.end->working = false;
	a->working = false;
	if (echo.error)
		fail_msg("the echo failed after %u rounds: %s", (unsigned)echo.rounds,
			echo.error);
	assert_int_equal(echo.rounds, rounds);
	meet_free(meet);
}

/* When tern_wait() has returned 0, the bytes have left this end: they arrive although
 * nothing polls it any more. */
static void test_what_was_waited_for_has_left(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct tern_buf data = end_data(a, SLAB, 100, 1);
	struct tern_buf room = end_memory(b, SLAB, 100);

	for (unsigned i = 0; i < 20; i++) {
		struct call send = {0}, recv = {0};

		assert_int_equal(call_recv(&recv, b, 1, i, &room, 0), 0);
		meet_settle(meet);
		a->asleep = true;
		assert_int_equal(call_send(&send, a, 1, i, &data, 0), 0);
		a->working = true;
		assert_int_equal(tern_wait(a->ctx, &send.req, UINT64_MAX), 0);
		a->working = false;
		/* The send has ended, so done() must have been called. */
		assert_int_equal(send.done_count, 1);
		MEET_PUMP(meet, call_over(&recv));
		a->asleep = false;
	}
	meet_free(meet);
}

/* A caller that polls the status may reuse a request as soon as it has ended. So the status
 * may change only inside tern_progress(), which then calls done() before it returns. */
static void test_no_request_says_that_it_ended_before_done(
	const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct tern_buf data = end_data(a, SLAB, 50000, 1);
	struct tern_buf room = end_memory(b, SLAB, 50000);

	for (unsigned i = 0; i < 20; i++) {
		struct tern_buf part = buf_part(&data, 0, i % 2 ? 100 : 50000);
		struct call send = {0}, recv = {0};

		assert_int_equal(call_send(&send, a, 1, i, &part, 0), 0);
		assert_int_equal(tern_test(&send.req), -EINPROGRESS);
		meet_settle(meet);
		assert_int_equal(call_recv(&recv, b, 1, i, &room, 0), 0);
		assert_int_equal(tern_test(&recv.req), -EINPROGRESS);
		if (i % 5 == 4) {
			tern_cancel(&recv.req);
			assert_int_equal(tern_test(&recv.req), -EINPROGRESS);
		}
		MEET_PUMP(meet, call_over(&send) && call_over(&recv));
	}
	meet_free(meet);
}

static void test_two_threads_wait_asleep(const struct instance *instance)
{
	sleepers(instance, true, 100, 600);
	sleepers(instance, true, 300000, 60);
}

static void test_two_threads_spin_and_sleep(const struct instance *instance)
{
	sleepers(instance, false, 100, 600);
}

static void test_a_wait_has_an_end(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A];
	struct tern_buf room = end_memory(a, SLAB, 100);
	struct call recv = {0};

	assert_int_equal(call_recv(&recv, a, 1, 1, &room, 0), 0);
	a->working = true;
	assert_int_equal(tern_wait(a->ctx, &recv.req, 0), -ETIMEDOUT);
	assert_int_equal(tern_wait(a->ctx, &recv.req, 5 * TERN_NS_PER_MS), -ETIMEDOUT);
	while (tern_wait_any(a->ctx, 5 * TERN_NS_PER_MS) == 0)
		;
	assert_int_equal(tern_wait_any(a->ctx, 0), -ETIMEDOUT);
	a->working = false;
	assert_int_equal(tern_test(&recv.req), -EINPROGRESS);
	tern_cancel(&recv.req);
	MEET_PUMP(meet, call_over(&recv));
	assert_int_equal(tern_wait(a->ctx, &recv.req, 0), -ECANCELED);
	meet_free(meet);
}

static void *wake_run(void *arg)
{
	tern_context_wake(arg);
	return NULL;
}

static void test_wake_wakes(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A];

	for (unsigned i = 0; i < 20; i++) {
		struct pollfd p = {tern_context_fd(a->ctx), POLLIN, 0};
		pthread_t thread;

		a->working = true;
		while (tern_arm(a->ctx) == -EAGAIN)
			tern_progress(a->ctx);
		a->working = false;
		assert_int_equal(pthread_create(&thread, NULL, wake_run, a->ctx), 0);
		assert_int_equal(poll(&p, 1, 10000), 1);
		pthread_join(thread, NULL);
		meet_turn(meet);
	}
	meet_free(meet);
}

const struct conformance_test meet_flow[] = {
	CONFORMANCE(test_rails_carry_everything, NEEDS_TCP),
	CONFORMANCE(test_statistics_add_up, NEEDS_NOTHING),
	CONFORMANCE(test_nothing_is_registered_after_warm_up, NEEDS_NOTHING),
	CONFORMANCE(test_what_was_waited_for_has_left, NEEDS_EAGER | NEEDS_SLEEP),
	CONFORMANCE(test_no_request_says_that_it_ended_before_done, NEEDS_NOTHING),
	CONFORMANCE(test_two_threads_wait_asleep, NEEDS_SLEEP),
	CONFORMANCE(test_two_threads_spin_and_sleep, NEEDS_SLEEP),
	CONFORMANCE(test_a_wait_has_an_end, NEEDS_SLEEP),
	CONFORMANCE(test_wake_wakes, NEEDS_SLEEP),
	{0},
};
