/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of when a server takes snapshots, and of one of a model that has diverged. Whole jobs are in the
 * simulator (scenario `snapshots`) and in tests/system/e2e/snapshots.py. */
#include "server/snapshot_state.h"
#include "tests/server/server_bed.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"

#define COUNT 100u

static const struct tern_ps_job job = {.slots = 1, .workers = 1, .steps = 2};

/* The job fails only once: nobody is told before that a snapshot has failed. */
static void told(void *arg, const struct tern_server_snapshot *snapshot)
{
	(void)arg;
	fail_msg("a snapshot has ended: %s", snapshot->why);
}

/* Opens a server that takes snapshots, whose process has lived since `since_ns`, and lets its job begin. */
static void begin(struct rig *rig, struct visitor *worker, uint64_t since_ns)
{
	open_rig(rig);
	rig->server->opts.snapshots.directory = "nowhere";
	rig->server->opts.snapshot = told;
	rig->server->history->snapshot_tried_ns = since_ns;
	join(rig, worker, &job, COUNT, 0);
	run_until(rig, &rig->server->running);
}

static void test_the_time_of_snapshots_does_not_begin_anew(void **state)
{
	static const uint64_t every_ns = 600 * TERN_NS_PER_S;
	struct visitor worker;
	struct rig rig;
	uint64_t first_ns;

	(void)state;
	begin(&rig, &worker, 0);
	first_ns = rig.server->history->snapshot_tried_ns;
	assert_true(first_ns > 0);
	assert_int_equal(rig.server->snapshots->timer.due_ns, first_ns + every_ns);
	close_rig(&rig);
	begin(&rig, &worker, first_ns);
	assert_int_equal(rig.server->history->snapshot_tried_ns, first_ns);
	assert_int_equal(rig.server->snapshots->timer.due_ns, first_ns + every_ns);
	close_rig(&rig);
}

static void test_the_time_of_snapshots_begins_at_the_end_of_the_last_one(void **state)
{
	const struct tern_server_snapshot failed = {.step = 1, .why = "no room"};
	struct visitor worker;
	struct rig rig;

	(void)state;
	begin(&rig, &worker, 1);
	status_snapshot_ended(rig.server, &failed);
	assert_true(rig.server->history->snapshot_tried_ns > 1);
	close_rig(&rig);
}

/* All chunks come to the last step, with a value that is no number. */
static void diverge(struct tern_server *s)
{
	static float g[COUNT] = {NAN};
	const float *const gradients[] = {g};

	for (uint32_t i = 0; i < s->chunk_count; i++) {
		struct chunk *c = &s->chunks[i];

		for (; c->version < job.steps; c->version++)
			chunk_apply(c, c->version, c->version + 1, gradients, 1, 1, 1);
		snapshots_step_made(c);
	}
}

/* Nothing but its last snapshot keeps the server, and the model has diverged: the job has failed. */
static void test_a_last_snapshot_that_has_diverged_ends_the_job(void **state)
{
	struct visitor worker;
	struct rig rig;

	(void)state;
	begin(&rig, &worker, 0);
	rig.server->bye_count = 1;
	server_maybe_end(rig.server);
	assert_true(rig.server->held);
	diverge(rig.server);
	run_until(&rig, &rig.server->over);
	assert_int_equal(rig.server->status, -EDOM);
	assert_non_null(strstr(rig.server->text, "after step 2 the parameters"));
	close_rig(&rig);
}

/* Only server 0 knows of all snapshots: others hear of the newest one when the job ends. */
static void test_the_end_of_a_job_names_its_newest_snapshot(void **state)
{
	static const struct {
		json_int_t named;
		uint64_t known;
	} cases[] = {{1, 1}, {2, 2}, {0, 0}, {-1, 0}, {3, 0}}; /* the job has 2 steps */

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(cases); i++) {
		struct tern_server_stats stats;
		struct visitor worker;
		struct rig rig;

		begin(&rig, &worker, 0);
		tern_talk_say(&worker.talk,
			json_pack("{s:s, s:s, s:I}", "type", "abort", "text", "the end",
				"snapshot", cases[i].named));
		run_until(&rig, &rig.server->over);
		tern_server_stats(rig.server, &stats);
		assert_int_equal(stats.snapshot_step, cases[i].known);
		close_rig(&rig);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_time_of_snapshots_does_not_begin_anew),
		cmocka_unit_test(
			test_the_time_of_snapshots_begins_at_the_end_of_the_last_one),
		cmocka_unit_test(test_a_last_snapshot_that_has_diverged_ends_the_job),
		cmocka_unit_test(test_the_end_of_a_job_names_its_newest_snapshot),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
