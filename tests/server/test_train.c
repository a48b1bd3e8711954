/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of whole jobs. In sync mode the result must not depend on the numbers of servers
 * and workers, on the fabric, or on which workers are lost during the job.
 */
#include "tests/server/train_bed.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/endian.h"

#define DONE 99 /* value of `stage` after the end of a mishap */
/* Status of a worker that is meant to give up; no other code uses this errno. */
#define EXPECTED ENOTTY

struct outcome {
	char *bytes;
	size_t size;
	struct tern_worker_results results;
	struct engine_results engine;
	struct tern_server_stats stats;
};

/* A mishap (loss or failure) of workers during training: called between turns; `stage` is
 * its own state. */
typedef void mishap(struct member *workers, unsigned *stage);

/* Runs a job. It must succeed for all members that were not lost and did not give up. */
static struct outcome train_with(const struct setup *setup, mishap *happens)
{
	struct member members[MEMBERS_MAX] = {0};
	unsigned count = setup->servers + setup->workers;
	char addresses[MEMBERS_MAX][128], save[64];
	struct tern_model *model = make_model(setup);
	uint64_t limit = tern_clock_ns() + 30 * TERN_NS_PER_S;
	struct outcome out = {0};
	unsigned stage = 0;
	FILE *f;

	snprintf(save, sizeof(save), "/tmp/tern-train-%d.safetensors", (int)getpid());
	start_servers(members, setup, addresses);
	start_workers(members + setup->servers, setup, model, addresses, save);
	while (!all_ended(members, count) && tern_clock_ns() < limit) {
		step_all(members, count);
		if (happens)
			happens(members + setup->servers, &stage);
	}
	assert_int_equal(stage, happens ? DONE : 0);
	for (unsigned i = 0; i < count; i++) {
		if (members[i].closed ||
			(happens && members[i].worker && members[i].status == -EXPECTED))
			continue;
		if (!members[i].ended || members[i].status)
			fprintf(stderr, "member %u: %d %s\n", i, members[i].status,
				members[i].text);
		assert_true(members[i].ended);
		assert_int_equal(members[i].status, 0);
	}
	tern_server_stats(members[0].server, &out.stats);
	for (unsigned i = setup->servers; i < count; i++)
		if (members[i].results.finisher && !members[i].closed) {
			out.results = members[i].results;
			out.engine = members[i].computer->results;
		}
	close_members(members, count);
	tern_model_free(model);
	f = fopen(save, "rb");
	assert_non_null(f);
	out.bytes = malloc(1u << 20);
	out.size = fread(out.bytes, 1, 1u << 20, f);
	fclose(f);
	unlink(save);
	return out;
}

static struct outcome train(const struct setup *setup)
{
	return train_with(setup, NULL);
}

static void expect_same_with(
	const struct outcome *a, const struct setup *setup, mishap *happens)
{
	struct outcome b = train_with(setup, happens);

	assert_true(b.results.finisher);
	assert_true(isfinite(b.engine.test_accuracy));
	assert_int_equal(a->size, b.size);
	assert_memory_equal(a->bytes, b.bytes, a->size);
	free(b.bytes);
}

static void expect_same(const struct outcome *a, const struct setup *setup)
{
	expect_same_with(a, setup, NULL);
}

/* More gradients are in flight than a connection accepts, and than the servers have
 * memory for. */
static void test_one_worker_may_compute_many_slots(void **state)
{
	static const struct setup others[] = {
		{"shm", "mlp:512,480", "sgd", 1, 1, 16, 3, TERN_MODE_SYNC, 0},
		{"shm", "mlp:512,480", "sgd", 2, 1, 16, 3, TERN_MODE_SYNC, 0},
		{"shm", "mlp:512,480", "sgd", 1, 3, 16, 3, TERN_MODE_SYNC, 0.05},
		{"tcp", "mlp:512,480", "sgd", 1, 2, 16, 3, TERN_MODE_SYNC, 0},
	};
	struct outcome one = train(&(struct setup){
		"tcp", "mlp:512,480", "sgd", 1, 1, 16, 3, TERN_MODE_SYNC, 0});
	struct outcome clipped = train(&(struct setup){
		"tcp", "mlp:512,480", "sgd", 1, 6, 16, 3, TERN_MODE_SYNC, 0.05});

	(void)state;
	staging_bytes = 1;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(others); i++)
		expect_same(others[i].clip_norm > 0 ? &clipped : &one, &others[i]);
	free(one.bytes);
	free(clipped.bytes);
	staging_bytes = 0;
}

/* ---- rules of single parameters ---- */

static struct tern_param seen_params[16];
static uint32_t seen_count;

/* The same optimizer, but the chunks have segments. */
static void repeat_rule(struct tern_ps_job *job)
{
	job->rules[0] = job->optimizer;
	job->rule_count = 1;
	for (uint32_t i = 0; i < job->param_count; i++)
		job->params[i].rule = i % 2;
}

static void freeze_biases(struct tern_ps_job *job)
{
	repeat_rule(job);
	tern_optimizer_parse("sgd", &job->rules[0]);
	job->rules[0].lr = 0;
	seen_count = job->param_count;
	assert_true(seen_count <= TERN_ARRAY_SIZE(seen_params));
	memcpy(seen_params, job->params, seen_count * sizeof(*seen_params));
}

static void test_parameters_may_have_rules_of_their_own(void **state)
{
	static const struct setup setup = {
		"tcp", "mlp:300,40", "adam", 1, 1, 4, 30, TERN_MODE_SYNC, 0};
	static const struct setup other = {
		"shm", "mlp:300,40", "adam", 2, 2, 4, 30, TERN_MODE_SYNC, 0};
	struct outcome plain = train(&setup), frozen;
	const char *values;

	(void)state;
	adjust_job = repeat_rule;
	expect_same(&plain, &setup);
	adjust_job = freeze_biases;
	frozen = train(&setup);
	expect_same(&frozen, &other);
	adjust_job = NULL;
	/* A safetensors file: 8 bytes, the length of the header; the header; values. */
	values = frozen.bytes + 8 + tern_get_le64(frozen.bytes);
	for (uint32_t i = 0; i < seen_count; i++) {
		bool has_moved = false, is_bias = i % 2;

		for (uint64_t j = 0; j < 4 * seen_params[i].count; j++)
			has_moved = has_moved || values[4 * seen_params[i].first + j];
		assert_int_equal(has_moved, !is_bias);
	}
	free(plain.bytes);
	free(frozen.bytes);
}

/* ---- tests ---- */

static void test_the_same_bytes_whoever_computes(void **state)
{
	static const struct setup others[] = {
		{"shm", "mlp:300,40", "adam", 1, 2, 4, 30, TERN_MODE_SYNC, 0},
		{"tcp", "mlp:300,40", "adam", 1, 4, 4, 30, TERN_MODE_SYNC, 0},
		{"shm", "mlp:300,40", "adam", 2, 4, 4, 30, TERN_MODE_SYNC, 0},
		{"tcp", "mlp:300,40", "adam", 2, 3, 4, 30, TERN_MODE_SYNC, 0},
		{"auto", "mlp:300,40", "adam", 3, 1, 4, 30, TERN_MODE_SYNC, 0},
	};
	struct outcome one = train(&(struct setup){
		"tcp", "mlp:300,40", "adam", 1, 1, 4, 30, TERN_MODE_SYNC, 0});

	(void)state;
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		expect_same(&one, &others[i]);
	free(one.bytes);
}

static void test_clipping_gives_the_same_bytes_on_any_servers(void **state)
{
	struct outcome one = train(&(struct setup){
		"shm", "mlp:300", "momentum", 1, 1, 3, 20, TERN_MODE_SYNC, 0.05});
	struct outcome unclipped = train(&(struct setup){
		"shm", "mlp:300", "momentum", 1, 1, 3, 20, TERN_MODE_SYNC, 1e9});

	(void)state;
	assert_memory_not_equal(one.bytes, unclipped.bytes, one.size);
	expect_same(&one, &(struct setup){"tcp", "mlp:300", "momentum", 2, 2, 3, 20,
				  TERN_MODE_SYNC, 0.05});
	expect_same(&one, &(struct setup){"shm", "mlp:300", "momentum", 3, 3, 3, 20,
				  TERN_MODE_SYNC, 0.05});
	free(one.bytes);
	free(unclipped.bytes);
}

static void test_servers_of_different_arithmetic_do_not_clip_together(void **state)
{
	const struct setup setup = {
		"tcp", "mlp:300", "sgd", 2, 1, 1, 20, TERN_MODE_SYNC, 0.05};
	struct member members[3] = {0};
	char addresses[2][128];
	struct tern_model *model = make_model(&setup);
	uint64_t limit = tern_clock_ns() + 30 * TERN_NS_PER_S;

	(void)state;
	start_servers(members, &setup, addresses);
	strcpy(members[1].updater->fingerprint, "an abacus");
	start_workers(&members[2], &setup, model, addresses, NULL);
	while (!all_ended(&members[1], 2) && tern_clock_ns() < limit)
		step_all(members, 3);
	for (unsigned i = 1; i < 3; i++)
		assert_true(members[i].ended && members[i].status < 0);
	assert_non_null(strstr(members[1].text, "server 1 computes with \"an abacus\""));
	close_members(members, 3);
	tern_model_free(model);
}

static void test_a_clip_that_never_clips_changes_nothing(void **state)
{
	struct outcome plain = train(
		&(struct setup){"tcp", "softmax", "sgd", 1, 2, 2, 20, TERN_MODE_SYNC, 0});

	(void)state;
	expect_same(&plain, &(struct setup){"tcp", "softmax", "sgd", 1, 2, 2, 20,
				    TERN_MODE_SYNC, 1e9});
	free(plain.bytes);
}

static void test_more_slots_than_one_sum_takes(void **state)
{
	struct outcome one = train(&(struct setup){
		"shm", "softmax", "adagrad", 1, 1, 21, 5, TERN_MODE_SYNC, 0});

	(void)state;
	expect_same(&one, &(struct setup){"tcp", "softmax", "adagrad", 1, 4, 21, 5,
				  TERN_MODE_SYNC, 0});
	free(one.bytes);
}

static void test_a_spare_worker_gets_the_results(void **state)
{
	struct outcome one = train(
		&(struct setup){"shm", "softmax", "sgd", 1, 1, 1, 10, TERN_MODE_SYNC, 0});

	(void)state;
	expect_same(&one,
		&(struct setup){"shm", "softmax", "sgd", 1, 3, 1, 10, TERN_MODE_SYNC, 0});
	free(one.bytes);
}

/* Worker 1 has no slot (no gradients to compute), and from the second step on its context
 * is not run: the job must make its steps all the same. */
static void stop_a_spare(const char *fabric)
{
	const struct setup setup = {
		fabric, "mlp:400", "sgd", 1, 2, 1, 50, TERN_MODE_SYNC, 0};
	struct member m[3] = {0};
	char addresses[MEMBERS_MAX][128];
	struct tern_model *model = make_model(&setup);
	uint64_t limit = tern_clock_ns() + 20 * TERN_NS_PER_S;

	start_servers(m, &setup, addresses);
	start_workers(m + 1, &setup, model, addresses, NULL);
	while (m[1].step < 2)
		step_all(m, 3);
	while (m[1].step < setup.steps && tern_clock_ns() < limit)
		step_all(m, 2);
	assert_int_equal(m[1].step, setup.steps);
	run_out(m, 3);
	for (int i = 3; i-- > 0;)
		assert_int_equal(m[i].status, 0);
	close_members(m, 3);
	tern_model_free(model);
}

static void test_a_stopped_spare_holds_nobody_up_over_shm(void **state)
{
	(void)state;
	stop_a_spare("shm");
}

static void test_a_stopped_spare_holds_nobody_up_over_tcp(void **state)
{
	(void)state;
	stop_a_spare("tcp");
}

static void test_it_learns(void **state)
{
	struct outcome sync = train(&(struct setup){
		"shm", "logreg", "adagrad", 1, 2, 2, 400, TERN_MODE_SYNC, 0});
	struct outcome async = train(&(struct setup){
		"tcp", "mlp:32", "adam", 2, 3, 3, 1500, TERN_MODE_ASYNC, 0});
	uint64_t updates = 0;

	(void)state;
	assert_true(sync.engine.test_accuracy > 0.95);
	assert_true(sync.engine.test_auc > 0.98);
	assert_true(async.engine.test_accuracy > 0.95);
	for (unsigned i = 0; i < TERN_STALENESS_BINS; i++)
		updates += async.stats.staleness[i];
	assert_int_equal(updates % 1500, 0);
	assert_int_equal(async.stats.steps, 1500);
	free(sync.bytes);
	free(async.bytes);
}

static void test_another_shape_is_refused_in_words(void **state)
{
	const struct setup small = {"shm", "mlp:8", "sgd", 1, 2, 2, 5, TERN_MODE_SYNC, 0};
	const struct setup large = {"shm", "mlp:9", "sgd", 1, 2, 2, 5, TERN_MODE_SYNC, 0};
	struct member m[4] = {0};
	char addresses[MEMBERS_MAX][128];
	struct tern_model *models[2] = {make_model(&small), make_model(&large)};
	uint64_t limit = tern_clock_ns() + 20 * TERN_NS_PER_S;

	(void)state;
	start_servers(m, &small, addresses);
	for (int i = 0; i < 2; i++) {
		struct tern_ps_job job = {.steps = 5,
			.slots = 2,
			.workers = 2,
			.batch = 16,
			.servers = addresses,
			.server_count = 1};
		struct tern_ps_text why;

		tern_optimizer_parse("sgd", &job.optimizer);
		open_worker(&m[1 + i], models[i]);
		engine_computer_describe(m[1 + i].computer, &job);
		assert_int_equal(
			tern_worker_new(
				&(struct tern_worker_opts){.domain = m[1 + i].domain,
					.ctx = m[1 + i].ctx,
					.computer = &m[1 + i].computer->computer,
					.job = &job,
					.index = (uint32_t)i,
					.ended = worker_ended,
					.arg = &m[1 + i]},
				&m[1 + i].worker, &why),
			0);
		for (int turn = 0; turn < 300; turn++)
			step_all(m, 2 + (unsigned)i);
	}
	while (!m[2].ended && tern_clock_ns() < limit)
		step_all(m, 3);
	assert_int_equal(m[2].status, -EINVAL);
	assert_non_null(strstr(m[2].text, "fc1.weight: worker 1"));
	assert_non_null(strstr(m[2].text, "f32[20,9], the job f32[20,8]"));
	tern_worker_stop(m[1].worker, "enough");
	/* The training has not started, so the server waits for another job. */
	while ((!m[1].ended || m[0].server->has_job) && tern_clock_ns() < limit)
		step_all(m, 3);
	assert_true(m[1].ended && !m[0].ended && !m[0].server->has_job);
	close_members(m, 3);
	tern_model_free(models[0]);
	tern_model_free(models[1]);
}

/* ---- mishaps ---- */

static void first_worker_dies(struct member *workers, unsigned *stage)
{
	if (*stage == 0 && workers[0].step >= 4) {
		close_member(&workers[0]);
		*stage = DONE;
	}
}

static void two_die_at_once(struct member *workers, unsigned *stage)
{
	if (*stage == 0 && workers[1].step >= 4) {
		close_member(&workers[0]);
		close_member(&workers[2]);
		*stage = DONE;
	}
}

/* The slot of lost worker 1 goes to worker 0, the first of those with the fewest slots;
 * then worker 0 dies, too. */
static void the_new_holder_dies(struct member *workers, unsigned *stage)
{
	if (*stage == 0 && workers[1].step >= 4) {
		close_member(&workers[1]);
		*stage = 1;
	} else if (*stage == 1 && workers[0].has_more) {
		close_member(&workers[0]);
		*stage = DONE;
	}
}

static void the_finisher_dies(struct member *workers, unsigned *stage)
{
	if (*stage == 0 && workers[0].finishes) {
		close_member(&workers[0]);
		*stage = 1;
	} else if (*stage == 1 && workers[1].finishes) {
		close_member(&workers[1]);
		*stage = DONE;
	}
}

static void one_gives_up(struct member *workers, unsigned *stage)
{
	if (*stage == 0 && workers[0].step >= 4) {
		worker_give_up(workers[1].worker, -EXPECTED, "enough of it");
		*stage = 1;
	} else if (*stage == 1 && workers[1].ended) {
		/* Only this worker failed, and the job continues. */
		assert_true(workers[1].results.alone);
		*stage = DONE;
	}
}

/* The second of two servers counts a worker as lost that still works and is connected to
 * the first server. The first server must disconnect the worker, too. */
static void one_server_misses_it(struct member *workers, unsigned *stage)
{
	struct tern_server *second = workers[-1].server;

	if (*stage == 0 && workers[1].step >= 4) {
		lease_lost(second->workers[1], false, "worker 1 is not seen any more");
		*stage = 1;
	} else if (*stage == 1 && workers[1].ended) {
		/* The worker has received the decision, or was disconnected before. */
		assert_true(strstr(workers[1].text, "goes on without this worker") ||
			    strstr(workers[1].text, "is gone: Connection reset"));
		workers[1].status = -EXPECTED;
		*stage = DONE;
	}
}

static void test_lost_workers_change_no_byte(void **state)
{
	static mishap *const mishaps[] = {first_worker_dies, two_die_at_once,
		the_new_holder_dies, the_finisher_dies, one_gives_up};
	static const struct setup setups[] = {
		{"shm", "mlp:300,40", "adam", 1, 3, 3, 30, TERN_MODE_SYNC, 0.05},
		{"tcp", "mlp:300,40", "adam", 2, 3, 3, 30, TERN_MODE_SYNC, 0.05},
		{"shm", "mlp:300,40", "adam", 3, 4, 3, 30, TERN_MODE_SYNC, 0.05},
	};
	struct outcome one = train(&(struct setup){
		"shm", "mlp:300,40", "adam", 1, 1, 3, 30, TERN_MODE_SYNC, 0.05});

	(void)state;
	for (size_t i = 0; i < sizeof(mishaps) / sizeof(mishaps[0]); i++)
		for (size_t j = 0; j < sizeof(setups) / sizeof(setups[0]); j++)
			if (mishaps[i] != the_new_holder_dies || setups[j].workers == 3)
				expect_same_with(&one, &setups[j], mishaps[i]);
	free(one.bytes);
}

static void test_a_worker_that_one_server_misses_is_cut_off_by_all(void **state)
{
	struct outcome one = train(&(struct setup){
		"shm", "mlp:300,40", "adam", 1, 1, 3, 30, TERN_MODE_SYNC, 0});

	(void)state;
	expect_same_with(&one,
		&(struct setup){
			"shm", "mlp:300,40", "adam", 2, 3, 3, 30, TERN_MODE_SYNC, 0},
		one_server_misses_it);
	free(one.bytes);
}

static void test_a_lost_worker_is_not_made_up_for_in_async_mode(void **state)
{
	struct outcome out = train_with(&(struct setup){"tcp", "mlp:32", "adam", 2, 3, 3,
						300, TERN_MODE_ASYNC, 0},
		first_worker_dies);

	(void)state;
	assert_true(out.results.finisher);
	assert_in_range(out.stats.steps, 204, 299);
	free(out.bytes);
}

/* ---- gradients of older versions ---- */

static uint64_t oldest_version(const struct tern_server *s)
{
	uint64_t oldest = UINT64_MAX;

	for (uint32_t i = 0; i < s->chunk_count; i++)
		oldest = TERN_MIN(oldest, s->chunks[i].version);
	return oldest;
}

/* A chunk that still waits for the gradient of `slot`. NULL: none does, or some chunk has
 * not been updated yet. */
static const struct chunk *chunk_that_waits(const struct tern_server *s, uint32_t slot)
{
	for (uint32_t i = 0; i < s->chunk_count && oldest_version(s) > 0; i++)
		if (s->chunks[i].state == CHUNK_GATHERING &&
			!s->chunks[i].gradients[slot].arrived)
			return &s->chunks[i];
	return NULL;
}

static void hear_holds(struct server_peer *worker, uint32_t slot, uint64_t version)
{
	json_t *message = json_pack(
		"{s:I, s:I}", "slot", (json_int_t)slot, "version", (json_int_t)version);

	lease_on_holds(worker, message);
	json_decref(message);
}

static unsigned wanted_count(const struct tern_server *s, uint32_t slot)
{
	unsigned count = 0;

	for (uint32_t i = 0; i < s->chunk_count; i++)
		count += s->chunks[i].gradients[slot].wanted;
	return count;
}

/* If a worker says that it holds the gradient of an older version, that gradient has
 * reached all servers, and the worker has only not handled the end of its send yet. So no
 * server may ask for this gradient. */
static void test_a_server_wants_no_gradient_of_an_older_version(void **state)
{
	const struct setup setup = {
		"tcp", "mlp:512,480", "sgd", 1, 2, 20, 20, TERN_MODE_SYNC, 0};
	const struct chunk *c;
	struct tern_server *s;
	struct job j;

	(void)state;
	job_start(&j, &setup);
	s = j.m[0].server;
	JOB_UNTIL(&j, (c = chunk_that_waits(s, 19)));
	hear_holds(s->workers[1], 19, oldest_version(s) - 1);
	assert_int_equal(wanted_count(s, 19), 0);
	assert_int_equal(s->wanted_bytes, 0);
	hear_holds(s->workers[1], 19, c->version);
	assert_true(c->gradients[19].wanted);
	assert_true(s->wanted_bytes > 0);
	job_run_out(&j);
	for (unsigned i = 0; i < j.count; i++)
		assert_int_equal(j.m[i].status, 0);
	assert_int_equal(s->wanted_bytes, 0);
	job_close(&j);
}

static void test_gradients_that_are_wanted_must_fit(void **state)
{
	const struct setup setup = {
		"tcp", "mlp:512,480", "sgd", 1, 2, 20, 1000000, TERN_MODE_SYNC, 0};
	const struct chunk *c;
	struct tern_server *s;
	struct job j;

	(void)state;
	job_start(&j, &setup);
	s = j.m[0].server;
	JOB_UNTIL(&j, (c = chunk_that_waits(s, 19)));
	s->wanted_bytes = STAGING_MOST - s->staging_bytes;
	hear_holds(s->workers[1], 19, c->version);
	job_run_out(&j);
	assert_non_null(strstr(j.m[0].text,
		"no room for gradients: those of slots that were taken over"));
	assert_non_null(strstr(j.m[1].text, j.m[0].text));
	job_close(&j);
}

/* True if one of the worker's two buffers has a gradient of the current version, and the
 * other one has not. */
static bool rooms_differ(const struct tern_worker *w)
{
	return w->room_count == 2 && w->version > 0 &&
	       (w->rooms[0].version == w->version) != (w->rooms[1].version == w->version);
}

static void test_a_worker_says_of_no_older_version_that_it_holds_it(void **state)
{
	/* The job has many steps, because the worker's two buffers differ only in some of
	 * them. */
	const struct setup setup = {
		"tcp", "mlp:300,40", "sgd", 1, 1, 3, 500, TERN_MODE_SYNC, 0};
	const struct slot first = {.number = 0};
	struct tern_worker *w;
	struct job j;

	(void)state;
	job_start(&j, &setup);
	w = j.m[1].worker;
	JOB_UNTIL(&j, rooms_differ(w));
	rooms_want(w, &first);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(w->rooms[i].wanted, w->rooms[i].version == w->version);
	job_run_out(&j);
	for (unsigned i = 0; i < j.count; i++)
		assert_int_equal(j.m[i].status, 0);
	job_close(&j);
}

/* Worker 0, which would save, and server 0, which would choose another worker, hang when
 * server 1 is asked to end. Server 1 has no chunk, and the message to start has not reached
 * it yet. */
static void test_a_server_that_hears_late_of_the_start_chooses_who_saves(void **state)
{
	const struct setup all = {
		"tcp", "softmax", "sgd", 2, 2, 2, 5000, TERN_MODE_SYNC, 0};
	struct member *server, *worker;
	uint64_t limit_ns;
	struct job j;

	(void)state;
	job_start(&j, &all);
	server = &j.m[1];
	worker = &j.m[3];
	JOB_UNTIL(&j, server->server->running && worker->step > 0);
	server->server->running = false;
	server->server->opts.leave_ns = 100 * TERN_NS_PER_MS;
	tern_server_stop(server->server, "asked", true);
	limit_ns = tern_clock_ns() + 30 * TERN_NS_PER_S;
	while (!worker->worker->over && tern_clock_ns() < limit_ns) {
		tern_progress(server->ctx);
		tern_progress(worker->ctx);
	}
	assert_true(worker->worker->over);
	assert_true(worker->worker->interrupted);
	assert_int_equal(worker->worker->finisher, 1);
	job_close(&j);
}

static char not_saved[200];

static void keep_text(void *arg, const char *text)
{
	(void)arg;
	snprintf(not_saved, sizeof(not_saved), "%s", text);
}

static void test_an_interrupted_job_saves_numbers_only(void **state)
{
	const struct setup one = {
		"tcp", "softmax", "sgd", 1, 1, 1, 100, TERN_MODE_SYNC, 0};
	struct tern_worker *w;
	float *values, kept;
	struct job j;

	(void)state;
	job_start(&j, &one);
	w = j.m[1].worker;
	/* A thread of the worker that computes now would find the NAN. */
	JOB_UNTIL(&j, w->version >= 3 && !w->computing);
	values = tern_vector(versions_current(w));
	kept = values[1];
	values[1] = NAN;
	w->finisher = 0;
	w->opts.interrupted_path = "/nowhere/interrupted";
	w->opts.unsaved = keep_text;
	finish_interrupted(w);
	assert_false(w->saving);
	assert_non_null(strstr(not_saved, "its parameters are no longer numbers"));
	values[1] = kept;
	job_run_out(&j);
	assert_true(j.m[0].status == 0 && j.m[1].status == 0);
	job_close(&j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_same_bytes_whoever_computes),
		cmocka_unit_test(test_parameters_may_have_rules_of_their_own),
		cmocka_unit_test(test_one_worker_may_compute_many_slots),
		cmocka_unit_test(test_clipping_gives_the_same_bytes_on_any_servers),
		cmocka_unit_test(test_a_clip_that_never_clips_changes_nothing),
		cmocka_unit_test(
			test_servers_of_different_arithmetic_do_not_clip_together),
		cmocka_unit_test(test_more_slots_than_one_sum_takes),
		cmocka_unit_test(test_a_spare_worker_gets_the_results),
		cmocka_unit_test(test_a_stopped_spare_holds_nobody_up_over_shm),
		cmocka_unit_test(test_a_stopped_spare_holds_nobody_up_over_tcp),
		cmocka_unit_test(test_it_learns),
		cmocka_unit_test(test_another_shape_is_refused_in_words),
		cmocka_unit_test(test_lost_workers_change_no_byte),
		cmocka_unit_test(test_a_worker_that_one_server_misses_is_cut_off_by_all),
		cmocka_unit_test(test_a_lost_worker_is_not_made_up_for_in_async_mode),
		cmocka_unit_test(test_a_server_wants_no_gradient_of_an_older_version),
		cmocka_unit_test(test_gradients_that_are_wanted_must_fit),
		cmocka_unit_test(test_a_worker_says_of_no_older_version_that_it_holds_it),
		cmocka_unit_test(
			test_a_server_that_hears_late_of_the_start_chooses_who_saves),
		cmocka_unit_test(test_an_interrupted_job_saves_numbers_only),
	};

	return cmocka_run_group_tests(tests, make_data, free_data);
}
