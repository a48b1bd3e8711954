/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of matching: the k-th send of a (channel, key, step) meets the k-th receive of
 * the same, in whatever order they are posted, however many there are, and whatever else
 * is transferred.
 */
#include "tests/rendezvous/meet.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "rendezvous/rendezvous.h"
#include "transport/context.h"

enum { SAME = 12 };

/* Posts sends and receives of one (channel, key, step). Each of the low 24 bits of `plan`
 * chooses whether a send or a receive comes next; with bit 30 set, a turn follows each. */
static void same_triple(struct meet *meet, unsigned plan, uint64_t key)
{
	static const uint64_t sizes[] = {10, MEET_EAGER + 100, 0, 70000, 500};
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct call send[SAME] = {0}, recv[SAME] = {0};
	unsigned sent = 0, posted = 0;

	while (sent < SAME || posted < SAME) {
		bool is_send =
			posted == SAME || (sent < SAME && (plan >> (sent + posted)) % 2);

		if (is_send) {
			struct tern_buf data = end_data(a, SLAB,
				sizes[(sent + plan) % TERN_ARRAY_SIZE(sizes)], sent);

			assert_int_equal(
				call_send(&send[sent++], a, key, 1, &data, 0), 0);
		} else {
			struct tern_buf room = end_memory(b, SLAB, 70000);

			assert_int_equal(call_recv(&recv[posted], b, key, 1,
						 posted % 4 == 3 ? NULL : &room,
						 posted % 4 == 3 ? TERN_RECV_ALLOC : 0),
				0);
			posted++;
		}
		if (plan & (1u << 30))
			meet_turn(meet);
	}
	MEET_PUMP(meet, calls_over(recv, SAME));
	for (unsigned i = 0; i < SAME; i++) {
		call_check(&recv[i], sizes[(i + plan) % TERN_ARRAY_SIZE(sizes)], i);
		if (i % 4 == 3)
			tern_release(&recv[i].req);
	}
	MEET_PUMP(meet, calls_over(send, SAME));
	for (unsigned i = 0; i < SAME; i++)
		assert_int_equal(send[i].req.status, 0);
}

static void test_the_kth_send_meets_the_kth_receive(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct tern_rng rng = {.seed = 4};

	same_triple(meet, 0, 1);           /* all receives before all sends */
	same_triple(meet, 0xffffffffu, 2); /* all sends before all receives */
	same_triple(meet, 0x55555555u, 3);
	for (unsigned i = 0; i < 40; i++)
		same_triple(meet, (unsigned)tern_rng_next(&rng), 10 + i % 5);
	meet_free(meet);
}

static void test_keys_and_steps_meet_in_any_order(const struct instance *instance)
{
	enum { COUNT = 200 };
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	static struct call send[COUNT], recv[COUNT];

	for (unsigned round = 0; round < 3; round++) {
		for (unsigned i = 0; i < COUNT; i++) {
			unsigned j = i * 77 % COUNT, k = COUNT - 1 - i;
			struct tern_buf data = end_data(a, SLAB, 100 + j * 97, j);
			struct tern_buf room = end_memory(b, SLAB, 100 + k * 97);

			if (round != 0)
				assert_int_equal(
					call_recv(&recv[k], b, k / 10, k % 10, &room, 0),
					0);
			assert_int_equal(
				call_send(&send[j], a, j / 10, j % 10, &data, 0), 0);
			if (round == 0)
				assert_int_equal(
					call_recv(&recv[k], b, k / 10, k % 10, &room, 0),
					0);
			if (round == 2)
				meet_turn(meet);
		}
		MEET_PUMP(meet, calls_over(recv, COUNT) && calls_over(send, COUNT));
		for (unsigned i = 0; i < COUNT; i++)
			call_check(&recv[i], 100 + i * 97, i);
	}
	meet_free(meet);
}

static void test_a_slow_large_one_does_not_hold_up_a_small_one(
	const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct tern_buf data = end_data(a, SLAB, 24u << 20, 1), little;
	struct tern_buf room = end_memory(b, SLAB, 24u << 20),
			corner = end_memory(b, SLAB, 64);
	struct call send[2] = {0}, recv[2] = {0};

	if (meet->world)
		MEET_SKIP(
			meet, "in virtual time the duration does not depend on the size");
	little = buf_part(&data, 0, 64);
	assert_int_equal(call_recv(&recv[0], b, 1, 1, &room, 0), 0);
	assert_int_equal(call_recv(&recv[1], b, 2, 1, &corner, 0), 0);
	meet_settle(meet);
	assert_int_equal(call_send(&send[0], a, 1, 1, &data, 0), 0);
	assert_int_equal(call_send(&send[1], a, 2, 1, &little, 0), 0);
	MEET_PUMP(meet, calls_over(recv, 2) && calls_over(send, 2));
	call_check(&recv[0], data.bytes, 1);
	call_check(&recv[1], 64, 1);
	assert_true(recv[1].order < recv[0].order);
	meet_free(meet);
}

static void test_an_urgent_send_goes_ahead(const struct instance *instance)
{
	enum { COUNT = 12 };
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct call send[COUNT + 1] = {0}, recv[COUNT + 1] = {0};

	for (unsigned i = 0; i <= COUNT; i++) {
		struct tern_buf room = end_memory(b, SLAB, 4u << 20);

		assert_int_equal(call_recv(&recv[i], b, i, 1, &room, 0), 0);
	}
	meet_settle(meet);
	for (unsigned i = 0; i <= COUNT; i++) {
		struct tern_buf data = end_data(a, SLAB, 4u << 20, i);

		assert_int_equal(
			call_send(&send[i], a, i, 1, &data, i == COUNT ? TERN_URGENT : 0),
			0);
	}
	MEET_PUMP(meet, calls_over(recv, COUNT + 1) && calls_over(send, COUNT + 1));
	for (unsigned i = 0; i <= COUNT; i++)
		call_check(&recv[i], 4u << 20, i);
	/* The urgent send was posted last. Only transfers that have started may end
	 * before it. */
	assert_true(recv[COUNT].order < recv[COUNT - 1].order);
	meet_free(meet);
}

static void many_posted_from(const struct instance *instance, bool sender_first,
	const struct tern_context_opts *opts, uint32_t first_seq)
{
	enum { COUNT = 600 };
	struct meet *meet = meet_new_apart(instance, opts, opts);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	static struct call send[COUNT], recv[COUNT];

	a->ctx->first_seq = b->ctx->first_seq = first_seq;
	meet_dial(meet);
	MEET_PUMP(meet, a->up_count && b->accepted_count);
	for (unsigned pass = 0; pass < 2; pass++) {
		bool sends = (pass == 0) == sender_first;

		for (unsigned i = 0; i < COUNT; i++) {
			uint64_t bytes = i % 3 == 0   ? 30000 + i
					 : i % 3 == 1 ? 100 + i
						      : i % 5;

			if (sends) {
				struct tern_buf data = end_data(a, SLAB, bytes, i);

				assert_int_equal(
					call_send(&send[i], a, i, 1, &data, 0), 0);
			} else {
				struct tern_buf room = end_memory(b, SLAB, bytes);

				assert_int_equal(
					call_recv(&recv[i], b, i, 1, &room, 0), 0);
			}
		}
		if (pass == 0)
			meet_settle(meet);
	}
	MEET_PUMP(meet, calls_over(recv, COUNT) && calls_over(send, COUNT));
	for (unsigned i = 0; i < COUNT; i++)
		call_check(&recv[i],
			i % 3 == 0   ? 30000 + i
			: i % 3 == 1 ? 100 + i
				     : i % 5,
			i);
	meet_free(meet);
}

static void many_posted(const struct instance *instance, bool sender_first,
	const struct tern_context_opts *opts)
{
	many_posted_from(instance, sender_first, opts, 0);
}

static void test_600_receives_are_met_by_600_sends(const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();

	many_posted(instance, false, &opts);
}

static void test_600_sends_are_met_by_600_receives(const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();

	many_posted(instance, true, &opts);
}

static void test_600_wait_their_turn_where_records_are_few(
	const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();

	opts.record_count = 64;
	many_posted(instance, true, &opts);
	many_posted(instance, false, &opts);
}

static void test_counters_wrap(const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();

	many_posted_from(instance, true, &opts, UINT32_MAX - 2);
	many_posted_from(instance, false, &opts, UINT32_MAX - 300);
}

/* Both ends have used up their credits (rights to send a message) at the same time:
 * neither may block the other. */
static void test_two_floods_that_cross_do_not_lock_up(const struct instance *instance)
{
	enum { COUNT = 1500 };
	struct tern_context_opts opts = meet_opts();
	struct meet *meet;
	static struct call send[2][COUNT], recv[2][COUNT];

	opts.record_count = 64;
	meet = meet_new_with(instance, &opts, &opts);
	for (unsigned e = 0; e < 2; e++) {
		struct tern_buf data = end_data(&meet->ends[e], SLAB, 9000, 5);

		for (unsigned i = 0; i < COUNT; i++) {
			struct tern_buf part = buf_part(&data, 0, i % 4 ? i : 9000);

			assert_int_equal(
				call_send(&send[e][i], &meet->ends[e], i, 2, &part, 0),
				0);
		}
	}
	meet_settle(meet);
	/* Both ends receive in the reverse order of the sends. */
	for (unsigned e = 0; e < 2; e++) {
		for (unsigned i = COUNT; i-- > 0;) {
			struct tern_buf room = end_memory(&meet->ends[e], SLAB, 9000);

			assert_int_equal(
				call_recv(&recv[e][i], &meet->ends[e], i, 2, &room, 0),
				0);
		}
	}
	for (unsigned e = 0; e < 2; e++) {
		MEET_PUMP(meet, calls_over(recv[e], COUNT) && calls_over(send[e], COUNT));
		for (unsigned i = 0; i < COUNT; i++)
			call_check(&recv[e][i], i % 4 ? i : 9000, 5);
	}
	meet_free(meet);
}

static void test_channels_are_name_spaces(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct tern_channel *a2, *b2, *a9, *b9, *twice;
	struct call send[3] = {0}, recv[3] = {0};
	struct tern_tensor tensor[3];
	struct tern_buf room[3];

	MEET_PUMP(meet, b->peer);
	assert_int_equal(tern_channel_open(a->peer, 2, &a2), 0);
	assert_int_equal(tern_channel_open(b->peer, 2, &b2), 0);
	assert_int_equal(tern_channel_open(a->peer, 0xfffffff0u, &a9), 0);
	assert_int_equal(tern_channel_open(a->peer, 2, &twice), -EEXIST);
	for (unsigned i = 0; i < 3; i++) {
		tensor[i].buf = end_data(a, SLAB, i == 1 ? 100000 : 100, i);
		tensor[i].shape = tern_shape_1d(TERN_U8, tensor[i].buf.bytes);
		room[i] = end_memory(b, SLAB, 100000);
		call_init(&send[i], a);
		call_init(&recv[i], b);
	}
	assert_int_equal(call_recv_as(&recv[0], b->channel, 1, 1, &room[0], NULL, 0), 0);
	assert_int_equal(call_send_as(&send[2], a9, 1, 1, &tensor[2], NULL, 0), 0);
	assert_int_equal(call_send_as(&send[1], a2, 1, 1, &tensor[1], NULL, 0), 0);
	assert_int_equal(
		call_send_as(&send[0], a->channel, 1, 1, &tensor[0], NULL, 0), 0);
	assert_int_equal(call_recv_as(&recv[1], b2, 1, 1, &room[1], NULL, 0), 0);
	MEET_PUMP(meet, calls_over(recv, 2) && calls_over(send, 2));
	/* B opens the channel only after a message for it has arrived. */
	assert_int_equal(tern_channel_open(b->peer, 0xfffffff0u, &b9), 0);
	assert_int_equal(call_recv_as(&recv[2], b9, 1, 1, &room[2], NULL, 0), 0);
	MEET_PUMP(meet, call_over(&recv[2]) && call_over(&send[2]));
	for (unsigned i = 0; i < 3; i++)
		call_check(&recv[i], tensor[i].buf.bytes, i);
	meet_free(meet);
}

/* Sends and receives with the same key but different names, as if the digests of the two
 * names collided: the receive must fail. */
static void collide(const struct instance *instance, uint64_t bytes, bool sender_first)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct tern_tensor tensor = {
		end_data(a, SLAB, bytes, 1), tern_shape_1d(TERN_U8, bytes)};
	struct tern_buf room = end_memory(b, SLAB, bytes);
	struct call send[2] = {0}, recv[2] = {0};

	for (unsigned i = 0; i < 2; i++) {
		call_init(&send[i], a);
		call_init(&recv[i], b);
	}
	if (!sender_first)
		assert_int_equal(
			call_recv_as(&recv[0], b->channel, 5, 1, &room, "bias", 0), 0);
	meet_settle(meet);
	assert_int_equal(
		call_send_as(&send[0], a->channel, 5, 1, &tensor, "weights", 0), 0);
	meet_settle(meet);
	if (sender_first)
		assert_int_equal(
			call_recv_as(&recv[0], b->channel, 5, 1, &room, "bias", 0), 0);
	MEET_PUMP(meet, call_over(&recv[0]));
	assert_int_equal(recv[0].req.status, -EEXIST);
	MEET_PUMP(meet, call_over(&send[0]));
	if (bytes > MEET_EAGER)
		assert_int_equal(send[0].req.status, -EEXIST);
	if (!meet->world) {
		assert_true((log_env_has(&a->log, "bias") &&
				    log_env_has(&a->log, "weights")) ||
			    (log_env_has(&b->log, "bias") &&
				    log_env_has(&b->log, "weights")));
	}
	/* The session continues, and other keys work. */
	assert_int_equal(call_recv_as(&recv[1], b->channel, 6, 1, &room, "same", 0), 0);
	assert_int_equal(call_send_as(&send[1], a->channel, 6, 1, &tensor, "same", 0), 0);
	MEET_PUMP(meet, call_over(&recv[1]) && call_over(&send[1]));
	call_check(&recv[1], bytes, 1);
	meet_free(meet);
}

/* Send and receive have the same key, and long names that are the same or differ only at
 * their beginning. A message has only the end of a long name, and a digest, by which the
 * receiver must tell the names apart. */
static void test_long_names_that_differ_are_told_apart(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	char names[2][256];

	for (unsigned i = 0; i < 2; i++) {
		memset(names[i], 'x', 255);
		names[i][255] = 0;
		names[i][0] = (char)('a' + i);
	}
	for (unsigned i = 0; i < 8; i++) {
		uint64_t bytes = i % 2 ? 100 : 50000;
		bool same = i / 2 % 2, sender_first = i / 4;
		struct tern_tensor tensor = {
			end_data(a, SLAB, bytes, i), tern_shape_1d(TERN_U8, bytes)};
		struct tern_buf room = end_memory(b, SLAB, bytes);
		struct call send = {0}, recv = {0};

		call_init(&send, a);
		call_init(&recv, b);
		for (unsigned j = 0; j < 2; j++) {
			if (sender_first == (j == 0))
				assert_int_equal(call_send_as(&send, a->channel, 5, i,
							 &tensor, names[0], 0),
					0);
			else
				assert_int_equal(call_recv_as(&recv, b->channel, 5, i,
							 &room, names[!same], 0),
					0);
			meet_settle(meet);
		}
		MEET_PUMP(meet, call_over(&recv) && call_over(&send));
		assert_int_equal(recv.req.status, same ? 0 : -EEXIST);
	}
	meet_free(meet);
}

static void test_a_key_of_two_names_is_eexist(const struct instance *instance)
{
	collide(instance, 100, false);
	collide(instance, 100, true);
	collide(instance, 100000, false);
	collide(instance, 100000, true);
}

static void test_names_of_any_length_meet(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	char name[300];

	for (unsigned i = 0; i < 60; i++) {
		uint64_t bytes = i % 2 ? 100 : 50000;
		struct tern_tensor tensor = {
			end_data(a, SLAB, bytes, i), tern_shape_1d(TERN_U8, bytes)};
		struct tern_buf room = end_memory(b, SLAB, bytes);
		struct call send = {0}, recv = {0};
		size_t length = 1 + i / 3 * 12;
		uint64_t key;

		memset(name, 'a' + (int)(i / 3), length);
		name[length] = 0;
		key = tern_key(name);
		assert_int_equal(key, tern_key(name));
		call_init(&send, a);
		call_init(&recv, b);
		assert_int_equal(call_recv_as(&recv, b->channel, key, i, &room,
					 i % 5 == 0 ? NULL : name, 0),
			0);
		assert_int_equal(call_send_as(&send, a->channel, key, i, &tensor,
					 i % 5 == 1 ? NULL : name, 0),
			0);
		MEET_PUMP(meet, call_over(&recv) && call_over(&send));
		call_check(&recv, bytes, i);
	}
	meet_free(meet);
}

/* Bytes allocated with malloc(). A sanitizer replaces malloc(), and then this counts
 * nothing. */
static size_t heap_bytes(void)
{
	return mallinfo2().uordblks;
}

static void test_names_that_come_once_cost_no_memory(const struct instance *instance)
{
	enum { COUNT = 6000, WARM = 500 };
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct tern_tensor tensor = {
		end_data(a, SLAB, 16, 1), tern_shape_1d(TERN_U8, 16)};
	struct tern_buf room = end_memory(b, SLAB, 16);
	size_t before = 0;

	for (unsigned i = 0; i < COUNT; i++) {
		struct call send = {0}, recv = {0};
		char name[64];

		snprintf(name, sizeof(name), "a gradient that nobody names again, %u", i);
		call_init(&send, a);
		call_init(&recv, b);
		assert_int_equal(call_recv_as(&recv, b->channel, tern_key(name), 1, &room,
					 name, 0),
			0);
		assert_int_equal(call_send_as(&send, a->channel, tern_key(name), 1,
					 &tensor, name, 0),
			0);
		MEET_PUMP(meet, call_over(&recv) && call_over(&send));
		call_check(&recv, 16, 1);
		if (i == WARM)
			before = heap_bytes();
	}
	assert_in_range(heap_bytes(), 0, before + (64u << 10));
	meet_free(meet);
}

struct chain {
	uint64_t step, last;
};

static void next_step(struct call *call)
{
	struct chain *chain = call->arg;
	struct end *end = call->end;

	assert_int_equal(call->req.status, 0);
	if (++chain->step >= chain->last)
		return;
	/* done() may post its own request again. */
	if (end->number == A)
		assert_int_equal(call_send(call, end, 1, chain->step, &call->buf, 0), 0);
	else
		assert_int_equal(call_recv(call, end, 1, chain->step, &call->buf, 0), 0);
}

static void test_done_may_post_the_next_one(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);

	for (unsigned large = 0; large < 2; large++) {
		uint64_t bytes = large ? 40000 : 40;
		struct tern_buf data = end_data(&meet->ends[A], SLAB, bytes, 1);
		struct tern_buf room = end_memory(&meet->ends[B], SLAB, bytes);
		struct chain chain[2] = {{large * 1000, large * 1000 + 300},
			{large * 1000, large * 1000 + 300}};
		struct call send = {.then = next_step, .arg = &chain[0]};
		struct call recv = {.then = next_step, .arg = &chain[1]};

		assert_int_equal(
			call_send(&send, &meet->ends[A], 1, chain[0].step, &data, 0), 0);
		assert_int_equal(
			call_recv(&recv, &meet->ends[B], 1, chain[1].step, &room, 0), 0);
		MEET_PUMP(meet,
			chain[0].step == chain[0].last && chain[1].step == chain[1].last);
		call_check(&recv, bytes, 1);
	}
	meet_free(meet);
}

/* True if the receive has told the sender where its room is. */
static bool is_advertised(struct call *recv)
{
	return tern_xfer_of(&recv->req)->state == TERN_XFER_ADVERTISED;
}

static void post_roomy(struct meet *meet, struct call *recv, uint64_t room)
{
	struct tern_buf buf = end_memory(&meet->ends[B], SLAB, room);

	*recv = (struct call){0};
	assert_int_equal(call_recv(recv, &meet->ends[B], 1, 1, &buf, 0), 0);
	meet_settle(meet);
}

static void serve(struct meet *meet, struct call *recv, uint64_t bytes)
{
	struct tern_buf data = end_data(&meet->ends[A], SLAB, bytes, 7);
	struct call send = {0};

	assert_int_equal(call_send(&send, &meet->ends[A], 1, 1, &data, 0), 0);
	MEET_PUMP(meet, call_over(recv) && call_over(&send));
	call_check(recv, bytes, 7);
	meet_settle(meet);
}

/* Room is advertised only while the tensors that come are large: a POST for each small one
 * would cost as much as the tensor. Those that wait are advertised after a large one. */
static void test_room_for_large_ones_is_advertised_when_they_come(
	const struct instance *instance)
{
	enum { WAITING = 3 };
	const uint64_t small = 100, large = 200000;
	struct meet *meet = meet_new(instance);
	struct call recv, waiting[WAITING];
	bool advertises;

	/* A small tensor of a GPU does not travel in an EAGER. */
	if (instance->gpus)
		MEET_SKIP(meet, "memory of a GPU is staged in other ways");
	meet_settle(meet);
	advertises = tern_peer_caps(meet->ends[B].peer) & TERN_CAP_PUT;
	for (unsigned turn = 0; turn < 2; turn++) {
		for (unsigned i = 0; i < TERN_SMALL_RUN; i++) {
			post_roomy(meet, &recv, large);
			assert_int_equal(is_advertised(&recv), advertises);
			serve(meet, &recv, small);
		}
		for (unsigned i = 0; i < WAITING; i++) {
			post_roomy(meet, &waiting[i], large);
			assert_false(is_advertised(&waiting[i]));
		}
		serve(meet, &waiting[0], large);
		for (unsigned i = 1; i < WAITING; i++)
			assert_int_equal(is_advertised(&waiting[i]), advertises);
		serve(meet, &waiting[1], large);
		serve(meet, &waiting[2], small);
		post_roomy(meet, &recv, large);
		assert_int_equal(is_advertised(&recv), advertises);
		serve(meet, &recv, large);
	}
	meet_free(meet);
}

const struct conformance_test meet_pairing[] = {
	CONFORMANCE(test_the_kth_send_meets_the_kth_receive, NEEDS_NOTHING),
	CONFORMANCE(test_keys_and_steps_meet_in_any_order, NEEDS_NOTHING),
	CONFORMANCE(test_a_slow_large_one_does_not_hold_up_a_small_one, NEEDS_NOTHING),
	/* Only on tcp, where the sender determines the order. Where the receiver reads the
	 * tensors (shm), the receiver does. */
	CONFORMANCE(test_an_urgent_send_goes_ahead, NEEDS_TCP),
	CONFORMANCE(test_600_receives_are_met_by_600_sends, NEEDS_NOTHING),
	CONFORMANCE(test_600_sends_are_met_by_600_receives, NEEDS_NOTHING),
	CONFORMANCE(test_600_wait_their_turn_where_records_are_few, NEEDS_NOTHING),
	CONFORMANCE(test_counters_wrap, NEEDS_NOTHING),
	CONFORMANCE(test_two_floods_that_cross_do_not_lock_up, NEEDS_NOTHING),
	CONFORMANCE(test_room_for_large_ones_is_advertised_when_they_come, NEEDS_NOTHING),
	CONFORMANCE(test_channels_are_name_spaces, NEEDS_NOTHING),
	CONFORMANCE(test_a_key_of_two_names_is_eexist, NEEDS_NOTHING),
	CONFORMANCE(test_long_names_that_differ_are_told_apart, NEEDS_NOTHING),
	CONFORMANCE(test_names_of_any_length_meet, NEEDS_NOTHING),
	CONFORMANCE(test_names_that_come_once_cost_no_memory, NEEDS_NOTHING),
	CONFORMANCE(test_done_may_post_the_next_one, NEEDS_NOTHING),
	{0},
};
