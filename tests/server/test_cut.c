/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of server 0 when it takes a snapshot in async mode: it believes no wrong list of steps, names
 * what a slow snapshot waits for, and begins none without workers. A visitor plays server 1. (The
 * simulator's scenario async-snapshots shows that right lists lead to one instant.) */
#include "tests/server/server_bed.h"

#include <string.h>

#include "server/snapshot_state.h"

#define NUMBER   7u      /* of the snapshot */
#define ELEMENTS 100000u /* server 0 has more than one chunk */

static const struct tern_ps_job async = {
	.mode = TERN_MODE_ASYNC, .steps = 5, .slots = 2, .workers = 2};

/* Begins a job of two workers, which make 3 and 2 steps, and two servers. */
static void open_pair(struct rig *rig, struct visitor *workers, struct visitor *second)
{
	open_rig(rig);
	rig->server->opts.snapshots.directory = "/tmp";
	for (unsigned i = 0; i < 2; i++) {
		visit(rig, &workers[i]);
		say_join(&workers[i], job_of(rig, &async, 1, ELEMENTS, 2), i);
		run_until(rig, &workers[i].welcome);
	}
	visit(rig, second);
	tern_talk_say(&second->talk,
		json_pack("{s:s, s:i, s:o, s:s, s:b}", "type", "peer", "server", 1, "job",
			job_of(rig, &async, 1, ELEMENTS, 2), "arithmetic", "",
			"snapshots", 1));
	run_until(rig, &rig->server->running);
}

static void check_refused(const char *text, bool asked)
{
	struct visitor workers[2], second;
	struct rig rig;

	open_pair(&rig, workers, &second);
	if (asked)
		cut_begin(rig.server, NUMBER);
	tern_talk_say(&second.talk, json_loads(text, 0, NULL));
	run_until(&rig, &second.refused);
	if (!strstr(second.text, "\"cut\" was not asked for, or has no list of the steps "
				 "of 2 workers"))
		fail_msg("%s: %s", text, second.text);
	close_rig(&rig);
}

static void test_a_cut_that_was_not_asked_for_is_refused(void **state)
{
	(void)state;
	check_refused("{\"type\":\"cut\",\"number\":7,\"steps\":[0,0]}", false);
	check_refused("{\"type\":\"cut\",\"number\":8,\"steps\":[0,0]}", true);
}

static void test_wrong_steps_of_a_cut_are_refused(void **state)
{
	static const char *const texts[] = {
		"{\"type\":\"cut\",\"number\":7}",
		"{\"type\":\"cut\",\"number\":7,\"steps\":3}",
		"{\"type\":\"cut\",\"number\":7,\"steps\":[0]}",
		"{\"type\":\"cut\",\"number\":7,\"steps\":[0,0,0]}",
		"{\"type\":\"cut\",\"number\":7,\"steps\":[-1,0]}",
		"{\"type\":\"cut\",\"number\":7,\"steps\":[0,3]}",
		"{\"type\":\"cut\",\"number\":7,\"steps\":[0,\"1\"]}",
	};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(texts); i++)
		check_refused(texts[i], true);
}

/* A snapshot holds a worker on one chunk, and defers its step before that on another chunk. */
static void test_a_worker_is_held_at_its_earliest_step(void **state)
{
	struct visitor workers[2], second;
	struct chunk *chunks;
	struct rig rig;

	(void)state;
	open_pair(&rig, workers, &second);
	assert_true(rig.server->chunk_count >= 2);
	chunks = rig.server->chunks;
	assert_true(async_held_at(rig.server, 0) == UINT64_MAX);
	chunks[0].streams[0].held = chunks[1].streams[0].deferred = true;
	chunks[0].streams[0].step = 2;
	chunks[1].streams[0].step = 1;
	assert_int_equal(async_held_at(rig.server, 0), 1);
	chunks[0].streams[0].step = 1;
	chunks[1].streams[0].step = 2;
	assert_int_equal(async_held_at(rig.server, 0), 1);
	assert_true(async_held_at(rig.server, 1) == UINT64_MAX);
	close_rig(&rig);
}

static char warned[200];

static void warning(void *arg, const char *text)
{
	(void)arg;
	snprintf(warned, sizeof(warned), "%s", text);
}

static void check_slow(struct rig *rig, const char *expected)
{
	struct tern_timer *timer = &rig->server->snapshots->slow_timer;

	timer->fire(timer);
	if (!strstr(warned, expected))
		fail_msg("expected \"%s\", got \"%s\"", expected, warned);
}

static void test_a_slow_snapshot_says_what_it_waits_for(void **state)
{
	struct visitor workers[2], second;
	struct snapshots *n;
	struct rig rig;

	(void)state;
	open_pair(&rig, workers, &second);
	rig.server->opts.warning = warning;
	n = rig.server->snapshots;
	n->newest = 1;
	snapshots_ask(rig.server);
	check_slow(&rig, "waits for the numbers of steps of server 1");
	tern_talk_say(
		&second.talk, json_pack("{s:s, s:I, s:[i, i]}", "type", "cut", "number",
				      (json_int_t)n->cut.number, "steps", 1, 0));
	run_until(&rig, &n->taking);
	check_slow(&rig, "waits for gradients of steps before the snapshot");
	cut_open(rig.server);
	check_slow(&rig, "waits for the part of server 0");
	n->reported[0] = true;
	check_slow(&rig, "waits for the part of server 1");
	close_rig(&rig);
}

static void test_no_last_snapshot_begins_without_workers(void **state)
{
	struct visitor workers[2], second;
	struct rig rig;

	(void)state;
	open_pair(&rig, workers, &second);
	lease_lost(rig.server->workers[0], false, "worker 0 was lost");
	assert_false(rig.server->over);
	lease_lost(rig.server->workers[1], false, "worker 1 was lost");
	assert_true(rig.server->over && !rig.server->all_done);
	assert_int_equal(rig.server->snapshots->state, SNAPSHOTS_IDLE);
	close_rig(&rig);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_cut_that_was_not_asked_for_is_refused),
		cmocka_unit_test(test_wrong_steps_of_a_cut_are_refused),
		cmocka_unit_test(test_a_worker_is_held_at_its_earliest_step),
		cmocka_unit_test(test_a_slow_snapshot_says_what_it_waits_for),
		cmocka_unit_test(test_no_last_snapshot_begins_without_workers),
	};

	return cmocka_run_group_tests_name("cut", tests, NULL, NULL);
}
