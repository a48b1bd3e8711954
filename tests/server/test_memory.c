/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of what a server keeps in memory when its job goes back, and of a server that begins with it.
 * Whole jobs that go on from memory are in the simulator (scenario `back`) and in
 * tests/system/e2e/back.py. */
#include "server/memory.h"
#include "server/membership.h"
#include "tests/server/server_bed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bf16.h"
#include "tools/host_env.h"

#define COUNT 40000u
#define STEP  3u /* of the chunks with odd numbers; the others are one step behind */

static struct tern_ps_job job = {.slots = 1, .workers = 1, .steps = 9};

/* Values of a chunk, as they were before the server ended. */
struct values {
	float w[2][COUNT], m[COUNT],
		v[COUNT]; /* w: of the chunk's newest version and the one before */
};

static uint64_t version_of(const struct chunk *c)
{
	return c->number % 2 ? STEP : STEP - 1;
}

/* Makes the next version of the chunk. */
static void update(struct chunk *c)
{
	static float g[COUNT];
	const float *const gradients[] = {g};

	for (uint64_t i = 0; i < c->plan->count; i++)
		g[i] = (float)(i % 7) * 0.01f + (float)(c->version + c->number);
	chunk_apply(c, c->version, c->version + 1, gradients, 1, 1, 1);
	assert_int_equal(c->status, 0);
}

static void note_values(struct chunk *c, struct values *out)
{
	const struct tern_updater_state state = {.m = out->m, .v = out->v};
	size_t bytes = c->plan->count * sizeof(float);

	memcpy(out->w[0], chunk_w(c, c->made), bytes);
	assert_int_equal(chunk_get_version(c, c->made - 1, out->w[1]), 0);
	assert_int_equal(
		tern_updater_get_state(c->server->opts.updater, c->kept, &state), 0);
}

/* The job has Adam, and one tensor, which travels to workers as bf16 if `bf16`. */
static void describe(bool bf16)
{
	static struct tern_param param;

	tern_optimizer_parse("adam", &job.optimizer);
	param.pull_bf16 = bf16;
	job.params = &param;
}

/* Makes steps in a server, which then goes back. The last update of the last chunk was computed, but the
 * server has ended before it heard of that. `snapshot_step`: of the snapshot that it was loaded from. */
static struct tern_server_memory *live_from(
	struct rig *rig, struct values *values, uint64_t snapshot_step)
{
	static struct visitor worker; /* stays connected until the rig is closed */
	struct tern_server_memory *memory;

	open_rig(rig);
	rig->server->opts.goes_back = true;
	rig->server->snapshot_step = snapshot_step;
	join(rig, &worker, &job, COUNT, 0);
	run_until(rig, &rig->server->running);
	assert_true(rig->server->chunk_count % 2 == 0);
	for (uint32_t i = 0; i < rig->server->chunk_count; i++) {
		struct chunk *c = &rig->server->chunks[i];

		for (uint64_t v = 0; v < version_of(c); v++) {
			update(c);
			c->version += i + 1 < rig->server->chunk_count || v < STEP - 1;
		}
		assert_int_equal(skip_set(c, &(uint64_t){i + 1}), 0);
		note_values(c, &values[i]);
	}
	server_fail(rig->server, -EAGAIN, "lost");
	host_env_stop(rig->at.env);
	assert_int_equal(tern_server_keep(rig->server, &memory), 0);
	assert_non_null(memory);
	return memory;
}

static struct tern_server_memory *live(struct rig *rig, struct values *values)
{
	return live_from(rig, values, 0);
}

static void check_chunk(struct chunk *c, const struct values *expected, bool bf16)
{
	size_t bytes = c->plan->count * sizeof(float);
	uint64_t *skipped;
	uint32_t count;
	struct values *is = calloc(1, sizeof(*is));

	assert_non_null(is);
	assert_int_equal(c->version, STEP - 1);
	assert_int_equal(c->made, version_of(c));
	note_values(c, is);
	assert_memory_equal(is->w[0], expected->w[0], bytes);
	assert_memory_equal(is->m, expected->m, bytes);
	assert_memory_equal(is->v, expected->v, bytes);
	assert_memory_equal(is->w[1], expected->w[1], chunk_version_bytes(c));
	for (uint64_t i = 0; bf16 && i < c->plan->count; i++)
		assert_int_equal(((uint16_t *)tern_buf_ptr(&c->bf16[c->made & 1]))[i],
			tern_bf16_of(is->w[0][i]));
	assert_int_equal(skip_copy(c, &skipped, &count), 0);
	assert_int_equal(*skipped, c->number + 1);
	free(skipped);
	free(is);
}

/* The next server has the bytes of the former one. It begins at the lowest version of a chunk, and those
 * that are one step further keep the next version, too. */
static void check_next(bool bf16)
{
	struct values *values = calloc(16, sizeof(*values));
	struct tern_server_memory *memory;
	struct rig former, next;
	struct visitor worker;

	assert_non_null(values);
	describe(bf16);
	memory = live(&former, values);
	assert_int_equal(memory->step, STEP - 1);
	assert_true(memory->life && memory->life == former.server->life);
	close_rig(&former);
	open_rig_from(&next, memory);
	next.server->opts.goes_back = true;
	join(&next, &worker, &job, COUNT, 0);
	run_until(&next, &next.server->running);
	assert_null(next.server->from_memory);
	assert_int_equal(next.server->first_version, STEP - 1);
	assert_int_equal(next.server->life, memory_life(next.server));
	assert_string_equal(
		next.noted, "goes on at step 2, which all servers have in memory");
	for (uint32_t i = 0; i < next.server->chunk_count; i++)
		check_chunk(&next.server->chunks[i], &values[i], bf16);
	close_rig(&next);
	free(values);
}

static void test_the_next_server_has_the_bytes_of_the_former_one(void **state)
{
	(void)state;
	check_next(false);
}

static void test_so_it_has_those_of_versions_that_travel_as_bf16(void **state)
{
	(void)state;
	check_next(true);
}

/* The step that a job goes on at from memory is not that of a snapshot. */
static void test_a_job_names_only_snapshots_that_it_was_loaded_from(void **state)
{
	static const uint64_t loaded[] = {0, 1};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(loaded); i++) {
		struct tern_server_memory *memory;
		struct values *values = calloc(16, sizeof(*values));
		struct rig former, next;
		struct visitor worker;

		assert_non_null(values);
		describe(false);
		memory = live_from(&former, values, loaded[i]);
		close_rig(&former);
		open_rig_from(&next, memory);
		next.server->opts.goes_back = true;
		join(&next, &worker, &job, COUNT, 0);
		run_until(&next, &next.server->running);
		assert_int_equal(next.server->first_version, STEP - 1);
		assert_int_equal(back_newest(next.server), loaded[i]);
		server_fail(next.server, -EIO, "a failure");
		run_until(&next, &worker.aborted);
		assert_int_equal(worker.snapshot, loaded[i]);
		close_rig(&next);
		free(values);
	}
}

/* ---- when it is of no use ---- */

/* Opens a server that begins with what is in memory. The job has two workers, of which none has come. */
static void open_next(struct rig *next)
{
	struct values *values = calloc(16, sizeof(*values));
	struct tern_server_memory *memory;
	struct rig former;

	assert_non_null(values);
	describe(false);
	memory = live(&former, values);
	close_rig(&former);
	memory->job.workers = 2;
	open_rig_from(next, memory);
	next->server->opts.goes_back = next->server->opts.returns = true;
	next->server->opts.snapshots.directory = "nowhere";
	job.workers = 2;
	free(values);
}

static void close_next(struct rig *next)
{
	close_rig(next);
	job.workers = 1;
}

static void check_forgotten(struct rig *next)
{
	struct tern_server_memory *memory;

	run_until(next, &next->server->over);
	assert_int_equal(next->server->status, -EAGAIN);
	assert_non_null(strstr(next->server->text, "goes back to its newest snapshot"));
	assert_int_equal(tern_server_keep(next->server, &memory), 0);
	assert_null(memory);
	close_next(next);
}

static void join_next(struct rig *next, struct visitor *worker)
{
	join(next, worker, &job, COUNT, 0);
	run_until(next, &worker->welcome);
	next->server->workers[0]->goes_back = true;
}

static void test_a_server_whose_steps_have_not_begun_hands_it_on(void **state)
{
	struct tern_server_memory *memory;
	struct visitor worker;
	struct rig next;

	(void)state;
	open_next(&next);
	join_next(&next, &worker);
	server_fail(next.server, -EAGAIN, "lost");
	assert_int_equal(tern_server_keep(next.server, &memory), 0);
	assert_non_null(memory);
	assert_int_equal(memory->step, STEP - 1);
	tern_server_memory_free(memory);
	close_next(&next);
}

static void test_it_is_forgotten_if_another_server_lacks_it(void **state)
{
	struct visitor worker;
	struct rig next;

	(void)state;
	open_next(&next);
	join_next(&next, &worker);
	tern_talk_say(&worker.talk, json_pack("{s:s, s:s, s:b}", "type", "failed", "text",
					    "server 1 lacks it", "forget", 1));
	check_forgotten(&next);
}

static void test_it_is_forgotten_if_another_server_has_another_life(void **state)
{
	struct visitor worker, other;
	struct rig next;

	(void)state;
	open_next(&next);
	join_next(&next, &worker);
	visit(&next, &other);
	tern_talk_say(&other.talk,
		json_pack("{s:s, s:I, s:o, s:I, s:I, s:I}", "type", "peer", "server",
			(json_int_t)1, "job", job_of(&next, &job, 1, COUNT, 2), "version",
			(json_int_t)STEP - 1, "number", (json_int_t)0, "life",
			(json_int_t)next.server->life + 1));
	check_forgotten(&next);
}

/* Server 0 and its worker were started anew, and do not know that the job goes back. */
static void test_another_server_forgets_what_a_new_server_0_lacks(void **state)
{
	struct visitor worker, other;
	struct rig rig;

	(void)state;
	describe(false);
	open_rig(&rig);
	rig.server->opts.goes_back = true;
	visit(&rig, &worker);
	say_join(&worker, job_of(&rig, &job, 1, COUNT, 2), 0);
	run_until(&rig, &worker.welcome);
	visit(&rig, &other);
	tern_talk_say(&other.talk,
		json_pack("{s:s, s:I, s:o, s:I, s:I, s:I}", "type", "peer", "server",
			(json_int_t)1, "job", job_of(&rig, &job, 1, COUNT, 2), "version",
			(json_int_t)STEP - 1, "number", (json_int_t)0, "life",
			(json_int_t)1));
	run_until(&rig, &other.down);
	assert_true(other.aborted && !other.refused);
	assert_string_equal(other.text, "it does not have the job in memory");
	assert_false(rig.server->over);
	close_rig(&rig);
}

static void test_a_worker_of_another_job_is_refused_alone(void **state)
{
	struct visitor wrong, worker;
	struct rig next;

	(void)state;
	open_next(&next);
	job.steps++;
	join(&next, &wrong, &job, COUNT, 0);
	run_until(&next, &wrong.refused);
	assert_non_null(strstr(wrong.text, "steps: "));
	job.steps--;
	join_next(&next, &worker);
	assert_false(next.server->over);
	assert_non_null(next.server->from_memory);
	close_next(&next);
}

static void test_it_is_forgotten_if_the_server_has_another_number(void **state)
{
	struct visitor worker;
	struct rig next;

	(void)state;
	open_next(&next);
	next.server->from_memory->index = 1;
	join(&next, &worker, &job, COUNT, 0);
	check_forgotten(&next);
}

/* That worker's number is beyond those of the job, which gets one worker more with it. */
static void test_so_it_is_if_the_first_worker_is_to_be_added(void **state)
{
	struct visitor worker;
	struct rig next;

	(void)state;
	open_next(&next);
	next.server->from_memory->index = 1;
	join(&next, &worker, &job, COUNT, job.workers);
	check_forgotten(&next);
}

static void test_it_is_forgotten_if_the_job_has_other_servers(void **state)
{
	struct tern_server_memory *memory;
	struct rig next;

	(void)state;
	open_next(&next);
	next.server->view.number++;
	assert_int_equal(tern_server_keep(next.server, &memory), 0);
	assert_null(memory);
	close_next(&next);
}

static void test_it_is_forgotten_if_server_0_begins_another_life(void **state)
{
	struct visitor worker;
	struct rig next;
	json_t *start;

	(void)state;
	open_next(&next);
	join_next(&next, &worker);
	next.server->joined_count = job.workers;
	start = json_pack("{s:s, s:I, s:I}", "type", "start", "version",
		(json_int_t)STEP - 1, "life", (json_int_t)next.server->life + 1);
	start_on_start(next.server, start);
	json_decref(start);
	assert_false(next.server->running);
	check_forgotten(&next);
}

static void test_the_steps_do_not_begin_with_a_version_that_is_not_there(void **state)
{
	static const uint64_t steps[] = {0, STEP - 2, STEP, STEP + 1, UINT64_MAX};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(steps); i++) {
		struct visitor worker;
		struct rig next;

		open_next(&next);
		join_next(&next, &worker);
		assert_false(memory_begin(next.server, steps[i]));
		check_forgotten(&next);
	}
}

static void test_a_server_without_a_step_keeps_nothing(void **state)
{
	struct tern_server_memory *memory;
	struct visitor worker;
	struct rig rig;

	(void)state;
	describe(false);
	open_rig(&rig);
	rig.server->opts.goes_back = true;
	assert_int_equal(tern_server_keep(rig.server, &memory), 0);
	assert_null(memory);
	join(&rig, &worker, &job, COUNT, 0);
	run_until(&rig, &rig.server->running);
	server_fail(rig.server, -EAGAIN, "lost");
	assert_int_equal(tern_server_keep(rig.server, &memory), 0);
	assert_null(memory);
	close_rig(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_next_server_has_the_bytes_of_the_former_one),
		cmocka_unit_test(test_so_it_has_those_of_versions_that_travel_as_bf16),
		cmocka_unit_test(test_a_job_names_only_snapshots_that_it_was_loaded_from),
		cmocka_unit_test(test_a_server_whose_steps_have_not_begun_hands_it_on),
		cmocka_unit_test(test_it_is_forgotten_if_another_server_lacks_it),
		cmocka_unit_test(test_it_is_forgotten_if_another_server_has_another_life),
		cmocka_unit_test(test_another_server_forgets_what_a_new_server_0_lacks),
		cmocka_unit_test(test_a_worker_of_another_job_is_refused_alone),
		cmocka_unit_test(test_it_is_forgotten_if_the_server_has_another_number),
		cmocka_unit_test(test_so_it_is_if_the_first_worker_is_to_be_added),
		cmocka_unit_test(test_it_is_forgotten_if_the_job_has_other_servers),
		cmocka_unit_test(test_it_is_forgotten_if_server_0_begins_another_life),
		cmocka_unit_test(
			test_the_steps_do_not_begin_with_a_version_that_is_not_there),
		cmocka_unit_test(test_a_server_without_a_step_keeps_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
