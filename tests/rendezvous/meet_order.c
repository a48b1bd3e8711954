/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests that sends can be received in any order, however many earlier sends are waiting:
 * more than there are credits (rights to send a message) and records (memory for received
 * messages). TERN_TEST_SENDS sets the number of sends, for a manual or a long run.
 */
#include "tests/rendezvous/meet.h"

#include <errno.h>
#include <stdlib.h>

#include "base/rng.h"
#include "base/util.h"
#include "rendezvous/rendezvous.h"

#define RECORDS    100u
#define LARGE      70000u
#define LARGEST    (1u << 20)
#define SIZE_COUNT 8u
#define AT_ONCE    24u /* receives that are posted at a time */

/* Tensor sizes. The key chooses the size: the send with key k has sizes[size_of(k)]
 * bytes. */
static const uint64_t sizes[SIZE_COUNT] = {
	0, 1, 100, MEET_EAGER, MEET_EAGER + 1, 20000, LARGE, LARGEST};

struct crowd {
	struct meet *meet;
	/* For each end (A, B) and size: the bytes to send. */
	struct tern_buf data[2][SIZE_COUNT];
	struct tern_buf rooms[2][AT_ONCE];
	unsigned count;
	struct call *sends[2];
	struct call recvs[2][AT_ONCE];
};

static unsigned sends_asked_for(unsigned otherwise)
{
	const char *text = getenv("TERN_TEST_SENDS");

	return text ? (unsigned)strtoul(text, NULL, 10) : otherwise;
}

static struct tern_context_opts few_records(void)
{
	struct tern_context_opts opts = meet_opts();

	opts.record_count = RECORDS;
	return opts;
}

static struct crowd *crowd_new(const struct instance *instance,
	const struct tern_context_opts *opts, unsigned count)
{
	struct crowd *c = calloc(1, sizeof(*c));

	assert_non_null(c);
	c->meet = meet_new_with(instance, opts, opts);
	c->count = count;
	for (unsigned e = 0; e < 2; e++) {
		for (unsigned i = 0; i < SIZE_COUNT; i++)
			c->data[e][i] = end_data(&c->meet->ends[e], SLAB, sizes[i], i);
		for (unsigned i = 0; i < AT_ONCE; i++)
			c->rooms[e][i] = end_memory(&c->meet->ends[e], SLAB, LARGE);
		c->sends[e] = calloc(count, sizeof(struct call));
		assert_non_null(c->sends[e]);
	}
	return c;
}

static void crowd_free(struct crowd *c)
{
	meet_free(c->meet);
	free(c->sends[A]);
	free(c->sends[B]);
	free(c);
}

/* Index of the size of key `k`: k % SIZE_COUNT, but for most keys size 0 replaces the
 * largest size, since a GPU or a simulated device copies all its bytes. */
static unsigned size_of(unsigned k)
{
	return k % SIZE_COUNT == SIZE_COUNT - 1 && k % 128 != 127 ? 0 : k % SIZE_COUNT;
}

static void send_one(struct crowd *c, unsigned from, unsigned k, uint64_t step)
{
	assert_int_equal(call_send(&c->sends[from][k], &c->meet->ends[from], k, step,
				 &c->data[from][size_of(k)], 0),
		0);
}

/* Posts the receive of key `k` into the caller's memory, into the pool, or in place,
 * depending on `k`, so that all kinds are used. */
static void recv_one(
	struct crowd *c, unsigned to, unsigned slot, unsigned k, uint64_t step)
{
	static const unsigned kinds[] = {0, TERN_RECV_ALLOC, TERN_RECV_PEEK, 0, 0};
	unsigned flags = sizes[size_of(k)] > LARGE || k % SIZE_COUNT == 3
				 ? kinds[1 + k / SIZE_COUNT % 2]
				 : 0;

	assert_int_equal(call_recv(&c->recvs[to][slot], &c->meet->ends[to], k, step,
				 flags ? NULL : &c->rooms[to][slot], flags),
		0);
}

static void check_one(struct crowd *c, unsigned to, unsigned slot, unsigned k)
{
	struct call *call = &c->recvs[to][slot];

	call_check(call, sizes[size_of(k)], size_of(k));
	if (call->req.peeked || call->req.buf.mem != c->rooms[to][slot].mem)
		tern_release(&call->req);
}

/* Posts the receives of these keys at the same time, and waits for all. */
static void receive(struct crowd *c, unsigned to, const unsigned *keys, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		recv_one(c, to, i, keys[i], 1);
	MEET_PUMP(c->meet, calls_over(c->recvs[to], count));
	for (unsigned i = 0; i < count; i++)
		check_one(c, to, i, keys[i]);
}

static struct tern_rdv *rdv_of(struct crowd *c, unsigned e)
{
	return tern_rdv_of(c->meet->ends[e].ctx);
}

/* Checks that no more records were allocated than the credits need, plus some for
 * answered WANTs (requests for one send). */
static void check_records(struct crowd *c, const uint32_t before[2])
{
	for (unsigned e = 0; e < 2; e++) {
		assert_in_range(rdv_of(c, e)->record_count, before[e], before[e] + 256);
		assert_int_equal(rdv_of(c, e)->wanted_count, 0);
	}
}

static void last_first(const struct instance *instance,
	const struct tern_context_opts *opts, unsigned count, bool both_ways)
{
	struct crowd *c = crowd_new(instance, opts, count);
	unsigned *order = calloc(count, sizeof(*order));
	struct tern_rng rng = {.seed = count};
	uint32_t before[2] = {rdv_of(c, A)->record_count, rdv_of(c, B)->record_count};

	for (unsigned i = 0; i < count; i++) {
		send_one(c, A, i, 1);
		if (both_ways)
			send_one(c, B, i, 1);
		order[i] = count - 1 - i;
	}
	meet_settle(c->meet);
	/* The sends of the second half are received first, in reverse order. Then those of
	 * the first half are received, in random order. */
	for (unsigned i = count / 2; i + 1 < count; i++) {
		unsigned j = i + (unsigned)tern_rng_below(&rng, count - i), k = order[i];

		order[i] = order[j];
		order[j] = k;
	}
	for (unsigned i = 0; i < count;) {
		unsigned n = i < 4 ? 1 : TERN_MIN(AT_ONCE, count - i);

		receive(c, B, order + i, n);
		if (both_ways)
			receive(c, A, order + i, n);
		i += n;
	}
	MEET_PUMP(c->meet, calls_over(c->sends[A], count) &&
				   (!both_ways || calls_over(c->sends[B], count)));
	meet_settle(c->meet);
	check_records(c, before);
	free(order);
	crowd_free(c);
}

static void test_the_last_of_many_sends_is_received_first(const struct instance *instance)
{
	struct tern_context_opts opts = few_records();

	last_first(instance, &opts, sends_asked_for(400), false);
}

static void test_two_crowds_that_cross_are_received_last_first(
	const struct instance *instance)
{
	struct tern_context_opts opts = few_records();

	last_first(instance, &opts, 300, true);
}

/* A posts more sends than any peer is ever granted credits, and B receives the last one
 * first. The number of records is the default. */
static void test_1100_sends_before_the_wanted_one_are_no_hindrance(
	const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();
	struct crowd *c = crowd_new(instance, &opts, 1100);
	unsigned last = c->count - 1;

	for (unsigned i = 0; i < c->count; i++)
		send_one(c, A, i, 1);
	meet_settle(c->meet);
	recv_one(c, B, 0, last, 1);
	MEET_PUMP(c->meet, call_over(&c->recvs[B][0]));
	check_one(c, B, 0, last);
	crowd_free(c);
}

/* B asks for a send that A does not have yet (WANT), and A answers so (MISS). When the
 * send is posted, it still meets the receive. */
static void test_a_receive_meets_a_send_that_comes_behind_the_crowd(
	const struct instance *instance)
{
	struct tern_context_opts opts = few_records();
	struct crowd *c = crowd_new(instance, &opts, 400);
	unsigned early = c->count - AT_ONCE;

	for (unsigned i = 0; i < early; i++)
		send_one(c, A, i, 1);
	meet_settle(c->meet);
	for (unsigned i = 0; i < AT_ONCE; i++)
		recv_one(c, B, i, early + i, 1);
	meet_settle(c->meet);
	for (unsigned i = 0; i < AT_ONCE; i++)
		assert_false(call_over(&c->recvs[B][i]));
	for (unsigned i = AT_ONCE; i-- > 0;)
		send_one(c, A, early + i, 1);
	MEET_PUMP(c->meet, calls_over(c->recvs[B], AT_ONCE));
	for (unsigned i = 0; i < AT_ONCE; i++)
		check_one(c, B, i, early + i);
	crowd_free(c);
}

/* B posts the receives of the last sends before A posts any send. They must get their
 * tensors. */
static void test_receives_posted_before_the_crowd_are_met(const struct instance *instance)
{
	struct tern_context_opts opts = few_records();
	struct crowd *c = crowd_new(instance, &opts, 400);
	unsigned early = c->count - AT_ONCE;

	for (unsigned i = 0; i < AT_ONCE; i++)
		recv_one(c, B, i, early + i, 1);
	meet_settle(c->meet);
	for (unsigned i = 0; i < c->count; i++)
		send_one(c, A, i, 1);
	MEET_PUMP(c->meet, calls_over(c->recvs[B], AT_ONCE));
	for (unsigned i = 0; i < AT_ONCE; i++)
		check_one(c, B, i, early + i);
	crowd_free(c);
}

/* After 300 other sends, sends and receives of one triple (channel, key, step) are
 * posted: the k-th send must meet the k-th receive. */
static void test_order_within_a_triple_holds_behind_the_crowd(
	const struct instance *instance)
{
	enum { CROWD = 300 };
	struct tern_context_opts opts = few_records();
	struct crowd *c = crowd_new(instance, &opts, CROWD + AT_ONCE);

	for (unsigned i = 0; i < CROWD; i++)
		send_one(c, A, i, 1);
	meet_settle(c->meet);
	for (unsigned i = 0; i < AT_ONCE; i++) {
		/* Gives each tensor a size of its own, by which the test recognises it. */
		unsigned of = i % 3 ? i : i + 1;
		struct tern_buf part = buf_part(&c->data[A][6], 0, 1 + of * 317);

		if (i % 2)
			assert_int_equal(call_recv(&c->recvs[B][i / 2], &c->meet->ends[B],
						 CROWD, 1, &c->rooms[B][i / 2], 0),
				0);
		assert_int_equal(call_send(&c->sends[A][CROWD + i], &c->meet->ends[A],
					 CROWD, 1, &part, 0),
			0);
	}
	for (unsigned i = AT_ONCE / 2; i < AT_ONCE; i++)
		assert_int_equal(call_recv(&c->recvs[B][i], &c->meet->ends[B], CROWD, 1,
					 &c->rooms[B][i], 0),
			0);
	MEET_PUMP(c->meet, calls_over(c->recvs[B], AT_ONCE));
	for (unsigned i = 0; i < AT_ONCE; i++)
		call_check(&c->recvs[B][i], 1 + (i % 3 ? i : i + 1) * 317, 6);
	crowd_free(c);
}

/* If a send is cancelled, its receive meets the next send of the same key and step;
 * likewise a cancelled receive. */
static void test_cancelled_halves_leave_the_crowd(const struct instance *instance)
{
	struct tern_context_opts opts = few_records();
	struct crowd *c = crowd_new(instance, &opts, 400);
	unsigned last = c->count - 1;
	uint32_t before[2] = {rdv_of(c, A)->record_count, rdv_of(c, B)->record_count};

	for (unsigned i = 0; i < last; i++)
		send_one(c, A, i, 1);
	meet_settle(c->meet);
	recv_one(c, B, 0, last, 1);
	recv_one(c, B, 1, last, 1);
	tern_cancel(&c->recvs[B][0].req); /* cancelled after or before its WANT is sent */
	MEET_PUMP(c->meet, call_over(&c->recvs[B][0]));
	assert_int_equal(c->recvs[B][0].req.status, -ECANCELED);
	tern_cancel(&c->sends[A][last - 1].req);
	recv_one(c, B, 2, last - 1, 1);
	/* If the tensor is in a GPU, a copy to staging memory may delay the send's end. */
	MEET_PUMP(c->meet, call_over(&c->sends[A][last - 1]));
	assert_int_equal(c->sends[A][last - 1].req.status, -ECANCELED);
	meet_settle(c->meet);
	send_one(c, A, last, 1);
	MEET_PUMP(c->meet, call_over(&c->recvs[B][1]));
	check_one(c, B, 1, last);
	assert_false(call_over(&c->recvs[B][2]));
	tern_cancel(&c->recvs[B][2].req);
	MEET_PUMP(c->meet, call_over(&c->recvs[B][2]));
	meet_settle(c->meet);
	check_records(c, before);
	crowd_free(c);
}

/* B asks for a send (WANT) that is waiting for the only bounce buffer, and A cancels it.
 * A must answer MISS at once, and B's receive must meet the next send of the triple.
 * Empty sends use up the credits. */
static void test_a_wanted_send_that_is_cancelled_is_answered(
	const struct instance *instance)
{
	enum {
		HOLDER = 6,
		WANTED = 14,
		CROWD = 300
	}; /* the sizes of HOLDER and WANTED are LARGE */
	struct tern_context_opts opts = few_records();
	struct instance tight = *instance;
	struct crowd *c;

	tight.opts.bounce_bytes = LARGE + LARGE / 2;
	c = crowd_new(&tight, &opts, CROWD * SIZE_COUNT);
	send_one(c, A, HOLDER, 1);
	meet_settle(c->meet);
	for (unsigned i = 0; i < CROWD; i++)
		send_one(c, A, i * SIZE_COUNT, 1);
	send_one(c, A, WANTED, 1);
	recv_one(c, B, 0, WANTED, 1);
	MEET_PUMP(c->meet, tern_xfer_of(&c->sends[A][WANTED].req)->wanted);
	tern_cancel(&c->sends[A][WANTED].req);
	/* No MISS is waiting: it was sent. */
	assert_int_equal(c->meet->ends[A].peer->want.miss_count, 0);
	MEET_PUMP(c->meet, call_over(&c->sends[A][WANTED]));
	assert_int_equal(c->sends[A][WANTED].req.status, -ECANCELED);
	MEET_PUMP(c->meet, rdv_of(c, B)->wanted_count == 0);
	assert_false(call_over(&c->recvs[B][0]));
	send_one(c, A, WANTED, 1);
	recv_one(c, B, 1, HOLDER, 1);
	MEET_PUMP(c->meet, calls_over(c->recvs[B], 2));
	check_one(c, B, 0, WANTED);
	check_one(c, B, 1, HOLDER);
	crowd_free(c);
}

/* Makes A handle a WANT for a send that A does not have, as if it had come from B. */
static int hear_want(struct end *a, uint32_t id)
{
	const struct tern_header want = {
		.type = TERN_MSG_WANT, .channel = MEET_CHANNEL, .key = id, .src = id};

	return tern_want_on_want(a->peer, &want);
}

/* A peer may have at most TERN_WANTS_MAX WANTs unanswered, so their answers need limited
 * memory, even while the fabric accepts no MISS. One more WANT is an error. */
static void test_a_peer_that_wants_more_than_it_may_is_refused(
	const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A];

	meet_settle(meet);
	assert_int_equal(hear_want(a, 0), -EPROTO);
	for (uint32_t id = 1; id <= TERN_WANTS_MAX; id++)
		assert_int_equal(hear_want(a, id), 0);
	assert_int_equal(a->peer->want.miss_count, TERN_WANTS_MAX);
	assert_int_equal(hear_want(a, TERN_WANTS_MAX + 1), -EPROTO);
	assert_int_equal(a->peer->want.miss_count, TERN_WANTS_MAX);
	for (uint32_t i = 0; i < TERN_WANTS_MAX; i++)
		assert_int_equal(a->peer->want.misses[i], i + 1);
	/* Restores A's state, since B did not really send these WANTs. */
	a->peer->want.miss_count = 0;
	a->peer->want.watching = false;
	meet_free(meet);
}

const struct conformance_test meet_order[] = {
	CONFORMANCE(test_the_last_of_many_sends_is_received_first, NEEDS_NOTHING),
	CONFORMANCE(test_two_crowds_that_cross_are_received_last_first, NEEDS_NOTHING),
	CONFORMANCE(
		test_1100_sends_before_the_wanted_one_are_no_hindrance, NEEDS_NOTHING),
	CONFORMANCE(
		test_a_receive_meets_a_send_that_comes_behind_the_crowd, NEEDS_NOTHING),
	CONFORMANCE(test_receives_posted_before_the_crowd_are_met, NEEDS_NOTHING),
	CONFORMANCE(test_order_within_a_triple_holds_behind_the_crowd, NEEDS_NOTHING),
	CONFORMANCE(test_cancelled_halves_leave_the_crowd, NEEDS_NOTHING),
	CONFORMANCE(test_a_wanted_send_that_is_cancelled_is_answered, NEEDS_BOUNCE),
	CONFORMANCE(test_a_peer_that_wants_more_than_it_may_is_refused, NEEDS_NOTHING),
	{0},
};
