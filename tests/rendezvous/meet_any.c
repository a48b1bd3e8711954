/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of tern_recv_any(): B receives from any of several peers, which are all in the
 * context of A. */
#include "tests/rendezvous/meet.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "rendezvous/rendezvous.h"

enum { FAN = 3, KEY = 5 };
#define SMALL 200u
#define LARGE (MEET_EAGER + 70000u)

/* The peers of B, in the order in which A connects them. */
struct fan {
	struct meet *meet;
	struct tern_listener *listener;
	struct tern_peer *out_peers[FAN], *in_peers[FAN]; /* at A, at B */
	struct tern_channel *out[FAN], *in[FAN];
	unsigned accepted_count, up_count, down_count;
};

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct fan *f = arg;

	(void)peer;
	(void)status;
	f->up_count += event == TERN_PEER_UP;
	f->down_count += event == TERN_PEER_DOWN;
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct fan *f = arg;
	struct tern_peer_opts opts = {
		.event = on_event, .arg = f, .pool = f->meet->ends[B].pool};
	unsigned i = f->accepted_count++;

	tern_peer_set_opts(peer, &opts);
	f->in_peers[i] = peer;
	assert_int_equal(tern_channel_open(peer, MEET_CHANNEL, &f->in[i]), 0);
}

static struct fan *fan_new(
	const struct instance *instance, const struct tern_context_opts *opts)
{
	struct fan *f = calloc(1, sizeof(*f));
	struct tern_context_opts normal = meet_opts();
	char rest[BED_ADDRESS_MAX], url[BED_ADDRESS_MAX];

	assert_non_null(f);
	f->meet = meet_new_apart(instance, opts ? opts : &normal, opts ? opts : &normal);
	instance->address(rest, 1);
	meet_url(instance, rest, url);
	assert_int_equal(
		tern_listen(f->meet->ends[B].ctx, url, NULL, on_accept, f, &f->listener),
		0);
	for (unsigned i = 0; i < FAN; i++) {
		struct tern_peer_opts peer_opts = {.event = on_event, .arg = f};

		assert_int_equal(tern_connect(f->meet->ends[A].ctx,
					 tern_listener_address(f->listener), &peer_opts,
					 &f->out_peers[i]),
			0);
		assert_int_equal(
			tern_channel_open(f->out_peers[i], MEET_CHANNEL, &f->out[i]), 0);
		MEET_PUMP(f->meet, f->accepted_count == i + 1 && f->up_count == i + 1);
	}
	return f;
}

static void fan_free(struct fan *f)
{
	struct meet *meet = f->meet;

	tern_listener_free(f->listener);
	meet_free(meet);
	free(f);
}

/* A sends `bytes` bytes of the pattern `seed` on its connection `i`. */
static void send_on(struct fan *f, struct call *call, unsigned i, uint64_t step,
	uint64_t bytes, uint64_t seed)
{
	struct tern_tensor tensor = {end_data(&f->meet->ends[A], SLAB, bytes, seed),
		tern_shape_1d(TERN_U8, bytes)};

	call_init(call, &f->meet->ends[A]);
	assert_int_equal(call_send_as(call, f->out[i], KEY, step, &tensor, NULL, 0), 0);
}

static void recv_on(struct fan *f, struct call *call, unsigned i, uint64_t step)
{
	struct tern_buf room = end_memory(&f->meet->ends[B], SLAB, LARGE);

	call_init(call, &f->meet->ends[B]);
	assert_int_equal(call_recv_as(call, f->in[i], KEY, step, &room, NULL, 0), 0);
}

static int recv_any_as(
	struct fan *f, struct call *call, uint64_t step, const char *name, unsigned flags)
{
	struct tern_buf room = end_memory(&f->meet->ends[B], SLAB, LARGE);
	bool own_room = !(flags & (TERN_RECV_ALLOC | TERN_RECV_PEEK));

	call_init(call, &f->meet->ends[B]);
	return call_started(call, tern_recv_any(f->in, FAN, &call->req, KEY, step,
					  own_room ? &room : NULL, name, flags));
}

static void recv_any(struct fan *f, struct call *call, uint64_t step, unsigned flags)
{
	assert_int_equal(recv_any_as(f, call, step, NULL, flags), 0);
}

static void expect(struct fan *f, struct call *call, uint64_t bytes, uint64_t seed)
{
	MEET_PUMP(f->meet, call_over(call));
	call_check(call, bytes, seed);
}

static void expect_from(
	struct fan *f, struct call *call, int source, uint64_t bytes, uint64_t seed)
{
	expect(f, call, bytes, seed);
	assert_int_equal(tern_recv_source(&call->req), source);
}

static const uint64_t sizes[] = {SMALL, LARGE, 0};

static void test_what_has_arrived_first_is_taken(const struct instance *instance)
{
	struct fan *f = fan_new(instance, NULL);

	for (unsigned i = 0; i < TERN_ARRAY_SIZE(sizes); i++) {
		struct call send[FAN] = {0}, recv[FAN] = {0};
		static const unsigned order[FAN] = {2, 0, 1};

		for (unsigned k = 0; k < FAN; k++) {
			send_on(f, &send[k], order[k], i, sizes[i], k);
			meet_settle(f->meet);
		}
		for (unsigned k = 0; k < FAN; k++)
			recv_any(f, &recv[k], i, 0);
		for (unsigned k = 0; k < FAN; k++)
			expect_from(f, &recv[k], (int)order[k], sizes[i], k);
		MEET_PUMP(f->meet, calls_over(send, FAN));
	}
	fan_free(f);
}

/* Several peers send after the receive was posted: it takes the first one, and the other
 * sends are left to later receives of either kind. */
static void test_it_waits_and_takes_one(const struct instance *instance)
{
	struct fan *f = fan_new(instance, NULL);

	for (unsigned i = 0; i < TERN_ARRAY_SIZE(sizes); i++) {
		struct call send[FAN] = {0}, recv[FAN] = {0};

		recv_any(f, &recv[0], i, 0);
		meet_settle(f->meet);
		assert_false(call_over(&recv[0]));
		send_on(f, &send[1], 1, i, sizes[i], 1);
		expect_from(f, &recv[0], 1, sizes[i], 1);
		send_on(f, &send[0], 0, i, sizes[i], 0);
		send_on(f, &send[2], 2, i, sizes[i], 2);
		meet_settle(f->meet);
		recv_on(f, &recv[1], 2, i);
		recv_any(f, &recv[2], i, 0);
		expect(f, &recv[1], sizes[i], 2);
		expect_from(f, &recv[2], 0, sizes[i], 0);
		MEET_PUMP(f->meet, calls_over(send, FAN));
	}
	fan_free(f);
}

/* The receives of one peer are served in the order in which they were posted, whether
 * they are of this peer only or of any, and although large ones would be advertised. */
static void test_receives_of_both_kinds_keep_their_order(const struct instance *instance)
{
	struct fan *f = fan_new(instance, NULL);

	for (unsigned i = 0; i < TERN_ARRAY_SIZE(sizes); i++) {
		enum { COUNT = 6 };
		struct call send[COUNT] = {0}, recv[COUNT] = {0};

		for (unsigned k = 0; k < COUNT; k++)
			if (k % 3 == 1)
				recv_any(f, &recv[k], i, 0);
			else
				recv_on(f, &recv[k], 1, i);
		meet_settle(f->meet);
		for (unsigned k = 0; k < COUNT; k++)
			send_on(f, &send[k], 1, i, sizes[(i + k) % 3], k);
		for (unsigned k = 0; k < COUNT; k++)
			expect(f, &recv[k], sizes[(i + k) % 3], k);
		assert_int_equal(tern_recv_source(&recv[1].req), 1);
		MEET_PUMP(f->meet, calls_over(send, COUNT));
	}
	fan_free(f);
}

static void test_a_cancelled_one_takes_nothing(const struct instance *instance)
{
	struct fan *f = fan_new(instance, NULL);

	for (unsigned i = 0; i < TERN_ARRAY_SIZE(sizes); i++) {
		struct call send = {0}, any = {0}, recv = {0};

		recv_any(f, &any, i, 0);
		recv_on(f, &recv, 0, i);
		meet_settle(f->meet);
		tern_cancel(&any.req);
		tern_cancel(&any.req); /* before done(): no effect */
		MEET_PUMP(f->meet, call_over(&any));
		assert_int_equal(any.req.status, -ECANCELED);
		assert_int_equal(tern_recv_source(&any.req), -1);
		tern_release(&any.req);
		send_on(f, &send, 0, i, sizes[i], 7);
		expect(f, &recv, sizes[i], 7);
		MEET_PUMP(f->meet, call_over(&send));
	}
	fan_free(f);
}

/* Frees A's peer `i`, so that B's goes down. */
static void lose(struct fan *f, unsigned i)
{
	unsigned before = f->down_count;

	tern_peer_free(f->out_peers[i]);
	MEET_PUMP(f->meet, f->down_count == before + 1);
}

static void test_it_goes_on_without_peers_that_are_lost(const struct instance *instance)
{
	struct fan *f = fan_new(instance, NULL);
	struct call send = {0}, recv[3] = {0};

	recv_any(f, &recv[0], 1, 0);
	lose(f, 1);
	assert_false(call_over(&recv[0]));
	send_on(f, &send, 2, 1, LARGE, 1);
	expect_from(f, &recv[0], 2, LARGE, 1);
	/* Posted when a peer is down. */
	recv_any(f, &recv[1], 2, 0);
	lose(f, 2);
	assert_false(call_over(&recv[1]));
	lose(f, 0);
	MEET_PUMP(f->meet, call_over(&recv[1]));
	assert_int_equal(recv[1].req.status, f->in_peers[1]->cause);
	assert_int_equal(tern_recv_source(&recv[1].req), 1);
	/* Posted when all are down. */
	recv_any(f, &recv[2], 3, 0);
	MEET_PUMP(f->meet, call_over(&recv[2]));
	assert_int_equal(recv[2].req.status, f->in_peers[0]->cause);
	assert_int_equal(tern_recv_source(&recv[2].req), 0);
	fan_free(f);
}

/* A tensor that a lost peer has announced cannot be fetched any more. */
static void test_what_a_lost_peer_has_sent_is_not_taken(const struct instance *instance)
{
	struct fan *f = fan_new(instance, NULL);
	struct call send[2] = {0}, recv = {0};

	send_on(f, &send[0], 0, 1, SMALL, 1);
	meet_settle(f->meet);
	tern_peer_down(f->in_peers[0], -ECONNRESET);
	recv_any(f, &recv, 1, 0);
	send_on(f, &send[1], 1, 1, SMALL, 2);
	expect_from(f, &recv, 1, SMALL, 2);
	fan_free(f);
}

static void test_it_ends_with_the_first_lost_peer_if_all_are_needed(
	const struct instance *instance)
{
	struct fan *f = fan_new(instance, NULL);
	struct call send = {0}, recv[2] = {0};

	recv_any(f, &recv[0], 1, TERN_ANY_NEEDS_ALL);
	tern_peer_close(f->out_peers[0]);
	MEET_PUMP(f->meet, f->down_count == 2); /* both ends */
	assert_false(call_over(&recv[0]));
	lose(f, 1);
	MEET_PUMP(f->meet, call_over(&recv[0]));
	assert_int_equal(recv[0].req.status, f->in_peers[1]->cause);
	assert_int_equal(tern_recv_source(&recv[0].req), 1);
	/* A tensor that has arrived is taken nevertheless. */
	send_on(f, &send, 2, 1, SMALL, 1);
	meet_settle(f->meet);
	recv_any(f, &recv[1], 1, TERN_ANY_NEEDS_ALL);
	expect_from(f, &recv[1], 2, SMALL, 1);
	fan_free(f);
}

static void test_the_orderly_end_of_all_peers_ends_it(const struct instance *instance)
{
	struct fan *f = fan_new(instance, NULL);
	struct call any = {0};

	recv_any(f, &any, 1, TERN_ANY_NEEDS_ALL);
	for (unsigned i = 0; i < FAN; i++)
		tern_peer_close(f->out_peers[FAN - 1 - i]);
	MEET_PUMP(f->meet, call_over(&any));
	assert_int_equal(any.req.status, -ESHUTDOWN);
	fan_free(f);
}

static void test_a_peer_that_is_freed_is_left_out(const struct instance *instance)
{
	struct fan *f = fan_new(instance, NULL);
	struct call send = {0}, any[2] = {0};

	recv_any(f, &any[0], 1, 0);
	recv_any(f, &any[1], 2, TERN_ANY_NEEDS_ALL);
	tern_peer_free(f->in_peers[0]);
	MEET_PUMP(f->meet, call_over(&any[1]));
	assert_int_equal(any[1].req.status, -ECANCELED);
	assert_int_equal(tern_recv_source(&any[1].req), 0);
	send_on(f, &send, 1, 1, LARGE, 1);
	expect_from(f, &any[0], 1, LARGE, 1);
	fan_free(f);
}

static void test_the_end_of_its_context_ends_it(const struct instance *instance)
{
	struct fan *f = fan_new(instance, NULL);
	struct call any = {0};
	struct end *b = &f->meet->ends[B];

	recv_any(f, &any, 1, 0);
	tern_listener_free(f->listener);
	tern_listener_free(f->meet->listener);
	b->working = true;
	tern_context_free(TERN_TAKE(b->ctx));
	b->working = false;
	assert_true(call_over(&any));
	assert_int_equal(any.req.status, -ECANCELED);
	meet_free(f->meet);
	free(f);
}

static void test_it_takes_buffers_of_the_pool(const struct instance *instance)
{
	static const unsigned flags[] = {TERN_RECV_ALLOC, TERN_RECV_PEEK};
	struct fan *f = fan_new(instance, NULL);

	for (unsigned i = 0; i < TERN_ARRAY_SIZE(sizes) * TERN_ARRAY_SIZE(flags); i++) {
		struct call send = {0}, any = {0};

		recv_any(f, &any, i, flags[i % 2]);
		send_on(f, &send, i % FAN, i, sizes[i / 2], i);
		expect_from(f, &any, (int)(i % FAN), sizes[i / 2], i);
		tern_release(&any.req);
		MEET_PUMP(f->meet, call_over(&send));
	}
	fan_free(f);
}

static void test_its_name_is_compared(const struct instance *instance)
{
	struct fan *f = fan_new(instance, NULL);
	struct end *a = &f->meet->ends[A];
	static const char *const names[] = {"one", "another"};

	for (unsigned i = 0; i < 4; i++) {
		struct tern_tensor tensor = {
			end_data(a, SLAB, LARGE, i), tern_shape_1d(TERN_U8, LARGE)};
		struct call send = {0}, any = {0};
		bool early = i / 2;

		if (!early)
			assert_int_equal(recv_any_as(f, &any, i, "one", 0), 0);
		call_init(&send, a);
		assert_int_equal(
			call_send_as(&send, f->out[1], KEY, i, &tensor, names[i % 2], 0),
			0);
		meet_settle(f->meet);
		if (early)
			assert_int_equal(recv_any_as(f, &any, i, "one", 0), 0);
		MEET_PUMP(f->meet, call_over(&any) && call_over(&send));
		assert_int_equal(any.req.status, i % 2 ? -EEXIST : 0);
		assert_int_equal(tern_recv_source(&any.req), 1);
	}
	fan_free(f);
}

static void test_wrong_arguments_are_refused(const struct instance *instance)
{
	struct fan *f = fan_new(instance, NULL);
	struct tern_buf room = end_memory(&f->meet->ends[B], SLAB, SMALL);
	struct tern_channel *mixed[] = {f->in[0], f->out[0]};
	struct tern_peer_opts no_pool = {0};
	struct tern_req req = {0};

	assert_int_equal(tern_recv_source(&req), -1);
	assert_int_equal(tern_recv_any(f->in, 0, &req, KEY, 1, &room, NULL, 0), -EINVAL);
	assert_int_equal(tern_recv_any(mixed, 2, &req, KEY, 1, &room, NULL, 0), -EINVAL);
	assert_int_equal(tern_recv_any(f->in, FAN, &req, KEY, 1, NULL, NULL, 0), -EINVAL);
	assert_int_equal(
		tern_recv_any(f->in, FAN, &req, KEY, 1, &room, NULL, TERN_URGENT),
		-EINVAL);
	assert_int_equal(
		tern_recv(f->in[0], &req, KEY, 1, &room, NULL, TERN_ANY_NEEDS_ALL),
		-EINVAL);
	tern_peer_set_opts(f->in_peers[2], &no_pool);
	assert_int_equal(
		tern_recv_any(f->in, FAN, &req, KEY, 1, NULL, NULL, TERN_RECV_ALLOC),
		-EINVAL);
	assert_int_equal(tern_test(&req), -EINVAL);
	assert_int_equal(tern_recv_any(f->in, FAN, &req, KEY, 1, &room, NULL, 0), 0);
	assert_int_equal(tern_recv_any(f->in, FAN, &req, KEY, 1, &room, NULL, 0), -EBUSY);
	tern_cancel(&req);
	assert_int_equal(tern_test(&req), -ECANCELED);
	fan_free(f);
}

/* ---- peers without credits ---- */

enum { CROWD = 80 };

struct crowded_fan {
	struct fan *fan;
	struct call crowd[2][CROWD];
};

/* Posts so many sends on the connections 0 and 1, which nobody receives, that what is sent
 * there later has to wait for a credit. */
static struct crowded_fan *crowded_new(const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();
	struct crowded_fan *c = calloc(1, sizeof(*c));

	assert_non_null(c);
	opts.record_count = 1;
	c->fan = fan_new(instance, &opts);
	for (unsigned i = 0; i < 2; i++)
		for (unsigned k = 0; k < CROWD; k++)
			send_on(c->fan, &c->crowd[i][k], i, 1000 + k, SMALL, k);
	meet_settle(c->fan->meet);
	for (unsigned i = 0; i < 2; i++)
		assert_false(call_over(&c->crowd[i][CROWD - 1]));
	return c;
}

/* Receives the crowd, and checks that no record is kept for an answer to a WANT. */
static void crowded_free(struct crowded_fan *c)
{
	struct fan *f = c->fan;
	static struct call recv[2][CROWD];

	for (unsigned i = 0; i < 2; i++)
		for (unsigned k = 0; k < CROWD; k++)
			recv_on(f, &recv[i][k], i, 1000 + k);
	for (unsigned i = 0; i < 2; i++)
		for (unsigned k = 0; k < CROWD; k++)
			expect(f, &recv[i][k], SMALL, k);
	MEET_PUMP(f->meet, tern_rdv_of(f->meet->ends[B].ctx)->wanted_count == 0);
	for (unsigned i = 0; i < 2; i++) {
		MEET_PUMP(f->meet, calls_over(c->crowd[i], CROWD));
		assert_int_equal(f->in_peers[i]->want.late_count, 0);
		assert_int_equal(f->in_peers[i]->want.asks_out, 0);
	}
	fan_free(f);
	free(c);
}

static void test_it_asks_peers_without_credits(const struct instance *instance)
{
	struct crowded_fan *c = crowded_new(instance);
	struct fan *f = c->fan;

	for (unsigned i = 0; i < TERN_ARRAY_SIZE(sizes); i++) {
		struct call send[2] = {0}, recv[3] = {0};

		/* Only peer 1 has it: peer 0 answers that it has not. */
		send_on(f, &send[0], 1, i, sizes[i], 1);
		recv_any(f, &recv[0], i, 0);
		expect_from(f, &recv[0], 1, sizes[i], 1);
		/* Nobody has it yet. */
		recv_any(f, &recv[1], i, 0);
		meet_settle(f->meet);
		send_on(f, &send[1], 0, i, sizes[i], 2);
		expect_from(f, &recv[1], 0, sizes[i], 2);
		/* Cancelled while the peers may be answering. */
		recv_any(f, &recv[2], i, 0);
		tern_cancel(&recv[2].req);
		MEET_PUMP(f->meet, call_over(&recv[2]));
		assert_int_equal(recv[2].req.status, -ECANCELED);
		MEET_PUMP(f->meet, calls_over(send, 2));
	}
	crowded_free(c);
}

/* Both peers answer each receive, and one answer is too late: the next receive takes it. */
static void test_answers_that_come_too_late_are_kept(const struct instance *instance)
{
	enum { STEPS = 60 };
	struct crowded_fan *c = crowded_new(instance);
	struct fan *f = c->fan;
	static struct call send[2][STEPS], any[STEPS], recv[STEPS];
	unsigned most = 0, other;

	for (unsigned k = 0; k < STEPS; k++)
		for (unsigned i = 0; i < 2; i++)
			send_on(f, &send[i][k], i, k, SMALL, 2 * k + i);
	for (unsigned k = 0; k < STEPS; k++) {
		recv_any(f, &any[k], k, 0);
		MEET_PUMP(f->meet, call_over(&any[k]));
		meet_settle(f->meet);
		for (unsigned i = 0; i < 2; i++)
			most = TERN_MAX(most, f->in_peers[i]->want.late_count);
		call_check(
			&any[k], SMALL, 2 * k + (unsigned)tern_recv_source(&any[k].req));
	}
	assert_in_range(most, STEPS / 4, STEPS);
	for (unsigned k = 0; k < STEPS; k++) {
		other = 1 - (unsigned)tern_recv_source(&any[k].req);
		recv_on(f, &recv[k], other, k);
		expect(f, &recv[k], SMALL, 2 * k + other);
	}
	crowded_free(c);
}

/* A peer cannot make B keep late answers without limit: no tern_recv_any() asks it while
 * there are too many. It asks when one was taken. */
static void test_it_asks_again_when_a_late_answer_was_taken(
	const struct instance *instance)
{
	enum { STEPS = TERN_WANTS_MAX };
	struct crowded_fan *c = crowded_new(instance);
	struct fan *f = c->fan;
	static struct call send[STEPS], any[STEPS], recv[STEPS];
	struct call last_send = {0}, last = {0};

	for (unsigned k = 0; k < STEPS; k++)
		send_on(f, &send[k], 0, k, SMALL, k);
	send_on(f, &last_send, 0, STEPS, SMALL, 99);
	f->meet->ends[A].asleep = true; /* no WANT is answered */
	for (unsigned k = 0; k < STEPS; k++)
		recv_any(f, &any[k], k, 0);
	MEET_PUMP(f->meet, f->in_peers[0]->want.asks_out == STEPS);
	for (unsigned k = 0; k < STEPS; k++)
		tern_cancel(&any[k].req);
	f->meet->ends[A].asleep = false;
	MEET_PUMP(f->meet, f->in_peers[0]->want.late_count == STEPS);
	/* As if there had been so many more. */
	f->in_peers[0]->want.late_count += TERN_LATE_MAX - STEPS;
	recv_any(f, &last, STEPS, 0);
	meet_settle(f->meet);
	assert_false(call_over(&last));
	recv_on(f, &recv[0], 0, 0);
	expect_from(f, &last, 0, SMALL, 99);
	f->in_peers[0]->want.late_count -= TERN_LATE_MAX - STEPS;
	for (unsigned k = 1; k < STEPS; k++)
		recv_on(f, &recv[k], 0, k);
	for (unsigned k = 0; k < STEPS; k++)
		expect(f, &recv[k], SMALL, k);
	crowded_free(c);
}

/* ---- lost links ---- */

static bool can_come_back(const struct fan *f)
{
	return !(tern_peer_caps(f->out_peers[0]) & TERN_CAP_BOUND);
}

static void test_it_survives_lost_links(const struct instance *instance)
{
	struct fan *f = fan_new(instance, NULL);

	if (!can_come_back(f)) {
		fan_free(f);
		print_message("skipped: a session of this fabric cannot reconnect\n");
		skip();
	}
	if (strncmp(instance->name, "verbs", 5) == 0) {
		fan_free(f);
		print_message("skipped: an emulated RDMA device takes minutes for 600 "
			      "links\n");
		skip();
	}
	for (unsigned i = 0; i < 8 * TERN_ARRAY_SIZE(sizes); i++) {
		struct call send[FAN] = {0}, recv[FAN] = {0};
		uint64_t bytes = sizes[i / 8];
		unsigned got = 0;

		recv_any(f, &recv[0], i, 0);
		for (unsigned k = 0; k < FAN; k++)
			tern_peer_cut(f->in_peers[k], -ECONNRESET);
		for (unsigned k = 0; k < FAN; k++)
			send_on(f, &send[k], k, i, bytes, k);
		for (unsigned turns = 0; turns < i % 8 * 4; turns++)
			meet_turn(f->meet);
		for (unsigned k = 0; k < FAN; k++)
			tern_peer_cut(f->in_peers[k], -ECONNRESET);
		for (unsigned k = 1; k < FAN; k++)
			recv_any(f, &recv[k], i, 0);
		for (unsigned k = 0; k < FAN; k++) {
			MEET_PUMP(f->meet, call_over(&recv[k]));
			got |= 1u << tern_recv_source(&recv[k].req);
			call_check(&recv[k], bytes,
				(unsigned)tern_recv_source(&recv[k].req));
		}
		assert_int_equal(got, (1u << FAN) - 1);
		MEET_PUMP(f->meet, calls_over(send, FAN));
	}
	fan_free(f);
}

const struct conformance_test meet_any[] = {
	CONFORMANCE(test_what_has_arrived_first_is_taken, NEEDS_NOTHING),
	CONFORMANCE(test_it_waits_and_takes_one, NEEDS_NOTHING),
	CONFORMANCE(test_receives_of_both_kinds_keep_their_order, NEEDS_NOTHING),
	CONFORMANCE(test_a_cancelled_one_takes_nothing, NEEDS_NOTHING),
	CONFORMANCE(test_it_goes_on_without_peers_that_are_lost, NEEDS_NOTHING),
	CONFORMANCE(test_what_a_lost_peer_has_sent_is_not_taken, NEEDS_NOTHING),
	CONFORMANCE(
		test_it_ends_with_the_first_lost_peer_if_all_are_needed, NEEDS_NOTHING),
	CONFORMANCE(test_the_orderly_end_of_all_peers_ends_it, NEEDS_NOTHING),
	CONFORMANCE(test_a_peer_that_is_freed_is_left_out, NEEDS_NOTHING),
	CONFORMANCE(test_the_end_of_its_context_ends_it, NEEDS_NOTHING),
	CONFORMANCE(test_it_takes_buffers_of_the_pool, NEEDS_NOTHING),
	CONFORMANCE(test_its_name_is_compared, NEEDS_NOTHING),
	CONFORMANCE(test_wrong_arguments_are_refused, NEEDS_NOTHING),
	CONFORMANCE(test_it_asks_peers_without_credits, NEEDS_NOTHING),
	CONFORMANCE(test_answers_that_come_too_late_are_kept, NEEDS_NOTHING),
	CONFORMANCE(test_it_asks_again_when_a_late_answer_was_taken, NEEDS_NOTHING),
	CONFORMANCE(test_it_survives_lost_links, NEEDS_NOTHING),
	{0},
};
