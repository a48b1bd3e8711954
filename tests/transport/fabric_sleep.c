/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of sleeping: arm() and fd(). Some tests cause one event at a time, with both ends
 * in one thread. In others each end has a thread, which sleeps whenever it may, so that
 * each event for an end races with the end's going to sleep. If an event is lost, both
 * threads sleep for ever; a limit of ten seconds makes that a failure.
 */
#include "tests/harness/bed.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "transport/domain.h"

#define PATIENCE_MS 10000

/* ---- one thread ---- */

static bool side_readable(struct side *side, int timeout_ms)
{
	struct pollfd p = {.fd = side->fabric->ops->fd(side->port), .events = POLLIN};

	assert_true(p.fd >= 0);
	return poll(&p, 1, timeout_ms) == 1;
}

/* Polls until arm() reports that there is nothing to do, and the fd is not readable. */
static void side_fall_asleep(struct side *side)
{
	for (int i = 0; i < 1000; i++) {
		int r = side->fabric->ops->arm(side->port);

		assert_true(r == 0 || r == -EAGAIN);
		if (r == 0 && !side_readable(side, 0))
			return;
		side_poll(side, 64);
	}
	fail_msg("an idle port never falls asleep");
}

/* Waits until something that the other side has done makes the fd readable. */
static void side_wakes(struct side *side)
{
	struct patience patience = patience_new();

	while (!side_readable(side, 0)) {
		side->asleep = true;
		bed_turn(side->bed);
		assert_true(patience_left(&patience));
	}
	side->asleep = false;
}

static void test_an_idle_port_sleeps(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct link *a, *b;

	side_fall_asleep(&bed->sides[B]); /* B has only a listener, no conn */
	bed_pair(bed, &a, &b);
	link_say_surely(a, 100);
	PUMP(bed, b->heard == 1);
	bed_settle(bed);
	side_fall_asleep(&bed->sides[A]);
	side_fall_asleep(&bed->sides[B]);
	assert_false(side_readable(&bed->sides[A], 30));
	assert_false(side_readable(&bed->sides[B], 30));
	bed_free(bed);
}

static void test_every_event_wakes(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct side *side_a = &bed->sides[A], *side_b = &bed->sides[B];
	struct link *a, *b;

	side_fall_asleep(side_b);
	a = bed_dial(bed);
	side_wakes(side_b); /* a peer connects to B */
	PUMP(bed, a->up && side_b->accepted_count);
	b = tern_list_entry(side_b->links.next, struct link, node);
	for (uint64_t i = 0; i < 50; i++) {
		bed_settle(bed);
		side_fall_asleep(side_b);
		link_say_surely(a, i);
		side_wakes(side_b);
		PUMP(bed, b->heard == i + 1);
		side_fall_asleep(side_a);
		link_say_surely(b, i);
		side_wakes(side_a);
		PUMP(bed, a->heard == i + 1);
	}
	bed_settle(bed);
	side_fall_asleep(side_b);
	link_close(a, false);
	side_wakes(side_b); /* the peer has closed the conn */
	PUMP(bed, b->closed_count);
	side_fall_asleep(side_a);
	b = bed_dial(bed);
	link_close(b, false);
	/* An event that this side caused itself must wake it, too. */
	while (!b->closed_count) {
		if (side_a->fabric->ops->arm(side_a->port) == 0)
			assert_true(side_readable(side_a, PATIENCE_MS));
		side_poll(side_a, 64);
	}
	bed_free(bed);
}

static void test_arm_sends_what_waits(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct link *a, *b;

	bed_pair(bed, &a, &b);
	for (uint64_t i = 0; i < 20; i++) {
		bed_settle(bed);
		bed->sides[A].asleep = true;
		assert_int_equal(link_say(a, 50), 0);
		assert_int_equal(link_say(a, 50), 0);
		bed->sides[A].fabric->ops->arm(bed->sides[A].port);
		PUMP(bed, b->heard == 2 * i + 2);
		bed->sides[A].asleep = false;
	}
	bed_free(bed);
}

static void test_a_conn_that_is_up_wakes_its_maker(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct side *side = &bed->sides[A];
	char address[BED_ADDRESS_MAX];
	struct link *a;

	for (int i = 0; i < 20; i++) {
		struct patience patience = patience_new();

		instance->nobody(address);
		a = i % 2 ? bed_dial_at(bed, A, address) : bed_dial(bed);
		while (!a->up && !a->closed_count) {
			side->asleep = true;
			bed_turn(bed);
			if (side->fabric->ops->arm(side->port) == -EAGAIN ||
				side_readable(side, 0))
				side_poll(side, 64);
			assert_true(patience_left(&patience));
		}
		assert_int_equal(a->up, i % 2 == 0);
		side->asleep = false;
	}
	bed_free(bed);
}

/* ---- two threads ---- */

/* One end, in a thread of its own. Errors are kept for the main thread, which fails the
 * test. */
struct sleeper {
	const struct instance *instance;
	bool listens;
	char *address; /* address of the listening end */
	sem_t *listening;
	/* `window`: messages in flight at a time; `rounds`: messages that each end sends. */
	unsigned window, rounds;
	/* Size and number of the puts (or gets, if the fabric cannot put) of the connecting
	 * end. put_bytes 0: both ends send messages instead. */
	uint32_t put_bytes;
	unsigned puts;

	struct tern_domain *domain;
	struct tern_fabric *fabric;
	struct tern_port *port;
	struct tern_conn *conn;
	struct tern_pool *pool;
	struct tern_buf room;
	struct tern_region region;
	struct tern_op ops[3];
	unsigned sent, owed, received, puts_started, puts_done;
	bool closed;
	const char *error; /* the first error of this thread */
};

#define STRING_OF_(x) #x
#define STRING_OF(x)  STRING_OF_(x)
#define SLEEPER_CHECK(s, cond)                                                           \
	do {                                                                             \
		if (!(cond) && !(s)->error)                                              \
			(s)->error = __FILE__ ":" STRING_OF(__LINE__) ": " #cond;        \
	} while (0)

static void sleeper_send(struct sleeper *s)
{
	unsigned char message[MESSAGE_BYTES / 4] = {0};

	while (s->owed > 0 && s->sent < s->rounds) {
		size_t bytes = 8 + 8 * (s->sent % (sizeof(message) / 8 - 1));
		int r;

		memcpy(message, &s->sent, sizeof(s->sent));
		r = s->fabric->ops->send(s->conn, message, bytes, NULL, 0);
		if (r == -EAGAIN)
			return;
		SLEEPER_CHECK(s, r == 0);
		s->owed--;
		s->sent++;
	}
}

static void sleeper_move(struct sleeper *s, struct tern_op *op)
{
	const struct tern_fabric_ops *ops = s->fabric->ops;
	int r;

	if (s->puts_started == s->puts)
		return;
	r = (s->conn->caps & TERN_CAP_PUT ? ops->put : ops->get)(
		s->conn, op, s->room.mem, s->room.offset, s->put_bytes, &s->region, 0);
	SLEEPER_CHECK(s, r == 0);
	s->puts_started++;
}

static void sleeper_done(struct tern_op *op, int status)
{
	struct sleeper *s = op->conn->user;

	SLEEPER_CHECK(s, status == 0);
	s->puts_done++;
	sleeper_move(s, op);
}

static void sleeper_begin(struct sleeper *s, struct tern_conn *conn)
{
	s->conn = conn;
	conn->user = s;
	conn->owner = s;
	if (s->put_bytes && s->listens) {
		SLEEPER_CHECK(
			s, s->fabric->ops->expose(conn, s->room.mem, s->room.offset,
				   s->room.bytes, TERN_ACCESS_READ | TERN_ACCESS_WRITE,
				   &s->region) == 0);
		SLEEPER_CHECK(s, s->fabric->ops->send(conn, &s->region, sizeof(s->region),
					 NULL, 0) == 0);
	}
	if (!s->put_bytes && !s->listens) {
		s->owed = s->window;
		sleeper_send(s);
	}
}

static void sleeper_accepted(void *arg, struct tern_lsn *lsn, struct tern_conn *conn)
{
	(void)lsn;
	sleeper_begin(arg, conn);
}

static void sleeper_up(void *arg, struct tern_conn *conn)
{
	sleeper_begin(arg, conn);
}

static int sleeper_message(
	void *arg, struct tern_conn *conn, const void *data, size_t bytes)
{
	struct sleeper *s = arg;
	unsigned number;

	(void)conn;
	if (s->put_bytes && !s->listens) {
		SLEEPER_CHECK(s, bytes == sizeof(s->region));
		memcpy(&s->region, data, sizeof(s->region));
		for (unsigned i = 0; i < TERN_ARRAY_SIZE(s->ops); i++) {
			s->ops[i].done = sleeper_done;
			sleeper_move(s, &s->ops[i]);
		}
		return 0;
	}
	memcpy(&number, data, sizeof(number));
	SLEEPER_CHECK(s, number == s->received);
	s->received++;
	s->owed++;
	sleeper_send(s);
	return 0;
}

static void sleeper_writable(void *arg, struct tern_conn *conn)
{
	(void)conn;
	sleeper_send(arg);
}

static void sleeper_closed(void *arg, struct tern_conn *conn, int status)
{
	struct sleeper *s = arg;

	(void)conn;
	SLEEPER_CHECK(s, status == (s->listens ? -ECONNRESET : 0));
	s->closed = true;
}

static void sleeper_open(struct sleeper *s, struct tern_lsn **lsn)
{
	static const struct tern_port_handler handler = {
		.accepted = sleeper_accepted,
		.up = sleeper_up,
		.message = sleeper_message,
		.writable = sleeper_writable,
		.closed = sleeper_closed,
	};
	static const struct tern_pool_opts pool_opts = {.slab_bytes = 1u << 21};
	struct tern_port_opts opts = {.env = tern_env_system(),
		.handler = &handler,
		.arg = s,
		.message_bytes = MESSAGE_BYTES};
	const char *name = s->instance->fabric;

	SLEEPER_CHECK(s, tern_domain_new_hooked(&s->instance->opts, &s->instance->hooks,
				 &s->domain) == 0);
	s->fabric = tern_domain_fabric(s->domain, name, strlen(name));
	SLEEPER_CHECK(s, tern_pool_new(s->domain, &pool_opts, &s->pool) == 0);
	SLEEPER_CHECK(s, tern_pool_get(s->pool, 1u << 20, &s->room) == 0);
	SLEEPER_CHECK(s, s->fabric->ops->port_new(s->fabric, &opts, &s->port) == 0);
	if (s->listens) {
		SLEEPER_CHECK(s, s->fabric->ops->listen(s->port, s->address, lsn) == 0);
		snprintf(s->address, BED_ADDRESS_MAX, "%s",
			s->fabric->ops->lsn_address(*lsn));
		sem_post(s->listening);
	} else {
		while (sem_wait(s->listening) < 0)
			;
		SLEEPER_CHECK(
			s, s->fabric->ops->connect(s->port, s->address, &s->conn) == 0);
	}
}

static bool sleeper_ready_to_close(const struct sleeper *s)
{
	if (s->listens)
		return false;
	return s->put_bytes ? s->puts_done == s->puts
			    : s->received == s->rounds && s->sent == s->rounds;
}

static void *sleeper_run(void *arg)
{
	struct sleeper *s = arg;
	struct tern_lsn *lsn = NULL;
	bool closing = false;

	sleeper_open(s, &lsn);
	while (!s->closed && !s->error) {
		int r = s->fabric->ops->arm(s->port);

		SLEEPER_CHECK(s, r == 0 || r == -EAGAIN);
		if (r == 0) {
			struct pollfd p = {s->fabric->ops->fd(s->port), POLLIN, 0};

			SLEEPER_CHECK(s, poll(&p, 1, PATIENCE_MS) == 1);
		}
		s->fabric->ops->poll(s->port, 16);
		if (!closing && sleeper_ready_to_close(s)) {
			closing = true;
			s->fabric->ops->conn_close(s->conn, true);
		}
	}
	if (s->error)
		return NULL; /* the test has failed, so nothing is closed */
	if (s->put_bytes && s->listens)
		SLEEPER_CHECK(s,
			s->fabric->ops->withdraw(s->port, &s->ops[0], &s->region) == 0);
	if (lsn)
		s->fabric->ops->lsn_close(lsn);
	s->fabric->ops->port_free(s->port);
	tern_pool_put(s->pool, &s->room);
	tern_pool_free(s->pool);
	tern_domain_free(s->domain);
	return NULL;
}

static void sleep_race(const struct instance *instance, const struct sleeper *like)
{
	char address[BED_ADDRESS_MAX];
	struct sleeper ends[2] = {*like, *like};
	pthread_t thread[2];
	sem_t listening;

	instance->address(address, 0);
	sem_init(&listening, 0, 0);
	for (int i = 0; i < 2; i++) {
		ends[i].instance = instance;
		ends[i].listens = i == 1;
		ends[i].address = address;
		ends[i].listening = &listening;
		assert_int_equal(
			pthread_create(&thread[i], NULL, sleeper_run, &ends[i]), 0);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	sem_destroy(&listening);
	for (int i = 0; i < 2; i++)
		if (ends[i].error)
			fail_msg("%s end: %s (sent %u, received %u, moved %u)",
				i ? "listening" : "connecting", ends[i].error,
				ends[i].sent, ends[i].received, ends[i].puts_done);
}

static void test_two_sleepers_lose_no_ping(const struct instance *instance)
{
	sleep_race(instance, &(struct sleeper){.window = 1, .rounds = 4000});
}

static void test_two_sleepers_lose_no_message_of_a_flood(const struct instance *instance)
{
	for (unsigned window = 3; window < 2000; window *= 11)
		sleep_race(instance, &(struct sleeper){.window = window, .rounds = 6000});
}

static void test_two_sleepers_lose_no_byte_of_bulk(const struct instance *instance)
{
	sleep_race(instance, &(struct sleeper){.puts = 60, .put_bytes = 1u << 20});
	sleep_race(instance, &(struct sleeper){.puts = 900, .put_bytes = 5000});
}

const struct conformance_test conformance_sleep[] = {
	CONFORMANCE(test_an_idle_port_sleeps, NEEDS_SLEEP),
	CONFORMANCE(test_every_event_wakes, NEEDS_SLEEP),
	CONFORMANCE(test_arm_sends_what_waits, NEEDS_SLEEP),
	CONFORMANCE(test_a_conn_that_is_up_wakes_its_maker, NEEDS_SLEEP),
	CONFORMANCE(test_two_sleepers_lose_no_ping, NEEDS_SLEEP),
	CONFORMANCE(test_two_sleepers_lose_no_message_of_a_flood, NEEDS_SLEEP),
	CONFORMANCE(test_two_sleepers_lose_no_byte_of_bulk, NEEDS_SLEEP),
	{0},
};
