/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of what two idle peers send, and how soon one notices that the other is gone. The
 * tests set the clock. Each test runs over tcp and over shm.
 */
#include "tests/harness/cmocka.h"

#include <errno.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/util.h"
#include "transport/context.h"

#define STEP_NS    (50 * TERN_NS_PER_MS)
#define STEP_TURNS 50 /* turns within which a message is received */
#define STEP_PER_S 20u
#define SUSPECT_NS TERN_NS_PER_S
#define DEAD_NS    (10 * TERN_NS_PER_S)
#define IDLE_STEPS (60 * STEP_PER_S)
#define TURNS_MAX  10000000
#define PEERS      50u
/* Step of the clock while peers connect. It is longer than the interval at which shm looks
 * for new connections. */
#define MEET_NS (100 * TERN_NS_PER_US)

static uint64_t clock_ns;

static uint64_t now_ns(struct tern_env *env)
{
	(void)env;
	return clock_ns;
}

struct end {
	struct tern_env_ops ops;
	struct tern_env env;
	struct tern_context *ctx;
	struct tern_peer *peers[PEERS];
	unsigned peer_count, up_count, suspect_count, down_count;
	int down_status;
};

static struct tern_domain *domain;
static struct end ends[2];

static void peer_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct end *end = arg;

	(void)peer;
	end->up_count += event == TERN_PEER_UP;
	end->suspect_count += event == TERN_PEER_SUSPECT;
	end->down_count += event == TERN_PEER_DOWN;
	if (event == TERN_PEER_DOWN)
		end->down_status = status;
}

static void accepted(struct tern_peer *peer, void *arg)
{
	struct tern_peer_opts opts = {.event = peer_event, .arg = arg};
	struct end *end = arg;

	tern_peer_set_opts(peer, &opts);
	end->peers[end->peer_count++] = peer;
	end->up_count++;
}

static void turn(struct end *end)
{
	assert_true(tern_progress(end->ctx) >= 0);
}

/* Advances the clock, and progresses only the ends from `first` to `last`. */
static void step(unsigned first, unsigned last)
{
	clock_ns += STEP_NS;
	for (int i = 0; i < STEP_TURNS; i++)
		for (unsigned j = first; j <= last; j++)
			turn(&ends[j]);
}

static void open_end(struct end *end)
{
	struct tern_context_opts opts = {.suspect_ns = SUSPECT_NS, .dead_ns = DEAD_NS};

	*end = (struct end){0};
	end->env = *tern_env_system();
	end->ops = *end->env.ops;
	end->ops.now_ns = now_ns;
	end->ops.ticks = NULL;
	end->env.ops = &end->ops;
	end->env.log_level = TERN_LOG_ERROR;
	assert_int_equal(tern_context_new_in(domain, &opts, &end->env, &end->ctx), 0);
}

static void add_peer(const char *address)
{
	struct tern_peer_opts opts = {.event = peer_event, .arg = &ends[0]};
	unsigned count = ends[0].peer_count + 1;
	int turns = 0;

	assert_int_equal(
		tern_connect(ends[0].ctx, address, &opts, &ends[0].peers[count - 1]), 0);
	ends[0].peer_count++;
	while (ends[0].up_count < count || ends[1].up_count < count) {
		clock_ns += MEET_NS;
		turn(&ends[0]);
		turn(&ends[1]);
		assert_true(turns++ < TURNS_MAX);
	}
}

/* Opens two ends, and `count` sessions between them; ends[0] dials. */
static void meet_many(const char *address, unsigned count)
{
	struct tern_listener *listener;

	clock_ns = tern_clock_ns();
	assert_int_equal(tern_domain_new(NULL, &domain), 0);
	open_end(&ends[0]);
	open_end(&ends[1]);
	assert_int_equal(
		tern_listen(ends[1].ctx, address, NULL, accepted, &ends[1], &listener),
		0);
	for (unsigned i = 0; i < count; i++) {
		add_peer(tern_listener_address(listener));
		step(0, 1);
	}
}

static void meet(const char *address)
{
	meet_many(address, 1);
}

static void part(void)
{
	for (unsigned i = 0; i < 2; i++) {
		for (unsigned j = 0; j < ends[i].peer_count; j++)
			tern_peer_free(ends[i].peers[j]);
		tern_context_free(ends[i].ctx);
	}
	tern_domain_free(domain);
}

static uint64_t said(void)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < 2; i++) {
		for (unsigned j = 0; j < ends[i].peer_count; j++) {
			struct tern_peer_stats stats;

			tern_peer_stats(ends[i].peers[j], &stats);
			sum += stats.messages_sent;
		}
	}
	return sum;
}

static uint64_t said_in(unsigned steps)
{
	uint64_t before = said();

	for (unsigned i = 0; i < steps; i++)
		step(0, 1);
	return said() - before;
}

/* Advances the clock for one end until `*count`, a number of events that the end has
 * seen, is no longer 0; returns the number of steps. */
static unsigned steps_until(unsigned end, const unsigned *count)
{
	unsigned steps = 0;

	while (!*count) {
		step(end, end);
		assert_true(++steps < 2 * IDLE_STEPS);
	}
	return steps;
}

static void check_well(void)
{
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(ends[i].suspect_count, 0);
		assert_int_equal(ends[i].down_count, 0);
	}
}

static void test_the_longer_it_is_quiet_the_less_is_said(void **state)
{
	uint64_t first, then;

	meet(*state);
	first = said_in(4 * STEP_PER_S);
	assert_true(first >= 4); /* each end sends PINGs and answers those of the other */
	said_in(20 * STEP_PER_S);
	then = said_in(IDLE_STEPS);
	/* One PING and its answer in each 5 * suspect_ns; only one end sends PINGs. */
	assert_in_range(then, 2 * 60 / 5 - 2, 2 * 60 / 5 + 2);
	check_well();
	part();
}

/* Idle peers get their PINGs together, even if they connected at different times, so one
 * wake-up serves all. */
static void test_idle_peers_are_asked_together(void **state)
{
	unsigned busy_steps = 0;

	meet_many(*state, PEERS);
	said_in(IDLE_STEPS);
	for (unsigned i = 0; i < IDLE_STEPS; i++)
		busy_steps += said_in(1) > 0;
	assert_in_range(busy_steps, 60 / 5, 2 * 60 / 5);
	check_well();
	part();
}

static void test_silence_after_long_quiet_is_noticed(void **state)
{
	for (unsigned end = 0; end < 2; end++) {
		unsigned suspect, dead;

		meet(*state);
		said_in(IDLE_STEPS);
		check_well();
		suspect = steps_until(end, &ends[end].suspect_count);
		dead = suspect + steps_until(end, &ends[end].down_count);
		assert_in_range(suspect, STEP_PER_S / 2, 8 * STEP_PER_S);
		assert_in_range(dead, 9 * STEP_PER_S, 17 * STEP_PER_S);
		assert_int_equal(ends[end].down_status, -ETIMEDOUT);
		part();
	}
}

/* After a new request, a lost peer is noticed as soon as in a session that was never
 * idle. */
static void test_a_request_ends_the_quiet(void **state)
{
	struct tern_channel *channel;
	struct tern_buf none = {0};
	struct tern_req req = {0};

	meet(*state);
	said_in(IDLE_STEPS);
	check_well();
	assert_int_equal(tern_channel_open(ends[0].peers[0], 1, &channel), 0);
	assert_int_equal(tern_recv(channel, &req, 1, 1, &none, NULL, 0), 0);
	assert_in_range(
		steps_until(0, &ends[0].suspect_count), STEP_PER_S / 2, 2 * STEP_PER_S);
	part();
	assert_int_equal(tern_test(&req), -ECANCELED);
}

static char tcp[] = "tcp://127.0.0.1:0", shm[] = "shm://*";

#define ON_BOTH(test)                                                                    \
	{#test " (tcp)", test, NULL, NULL, tcp},                                         \
	{                                                                                \
#test " (shm)", test, NULL, NULL, shm                                    \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_BOTH(test_the_longer_it_is_quiet_the_less_is_said),
		ON_BOTH(test_idle_peers_are_asked_together),
		ON_BOTH(test_silence_after_long_quiet_is_noticed),
		ON_BOTH(test_a_request_ends_the_quiet),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
