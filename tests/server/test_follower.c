/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of followers. A follower comes while a job makes its steps; whenever its server ends, it
 * has the bytes that the server has. What happens to a job whose servers are lost is in the
 * simulator (scenario `follow`).
 */
#include "server/blobs.h"
#include "server/follow.h"
#include "server/follower_state.h"
#include "server/memory.h"
#include "tests/server/follower_bed.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/host_env.h"

static void name_types(struct tern_ps_job *job)
{
	for (uint32_t i = 0; i < job->param_count; i++)
		job->params[i].push_bf16 = job->params[i].pull_bf16 = i % 2;
}

/* ---- the bytes ---- */

static void check_skips(const struct chunk *c, const struct tern_chunk_memory *a,
	const struct tern_chunk_memory *b)
{
	assert_int_equal(!a->skipped, !b->skipped);
	if (a->skipped)
		assert_memory_equal(a->skipped, b->skipped,
			skip_tensor_count(c) * sizeof(*a->skipped));
}

static void check_same(const struct chunk *c, const struct tern_chunk_memory *a,
	const struct tern_chunk_memory *b)
{
	size_t bytes = c->plan->count * sizeof(float);

	assert_memory_equal(a->w, b->w, bytes);
	assert_memory_equal(a->previous, b->previous, chunk_version_bytes(c));
	if (tern_updater_has_m(&c->kept->opts))
		assert_memory_equal(a->state.m, b->state.m, bytes);
	if (tern_updater_has_v(&c->kept->opts))
		assert_memory_equal(a->state.v, b->state.v, bytes);
	check_skips(c, a, b);
}

/* If the server ends during an update, one of both may have an update more: its bytes had not arrived at
 * the follower, or the server itself had not made it. */
static void check_chunk(const struct chunk *c, const struct tern_chunk_memory *a,
	const struct tern_chunk_memory *b)
{
	const struct tern_chunk_memory *old = a->version < b->version ? a : b;
	const struct tern_chunk_memory *new = old == a ? b : a;

	if (old->version == new->version) {
		check_same(c, a, b);
		return;
	}
	assert_int_equal(new->version, old->version + 1);
	if (!c->plan->pull_bf16)
		assert_memory_equal(
			new->previous, old->w, c->plan->count * sizeof(float));
}

/* Compares what the server and its follower have in memory. Both must have ended. Returns the number of
 * chunks of which they have the same version. */
static uint32_t compare(struct job *j, struct process *p)
{
	struct tern_server *s = j->m[0].server;
	struct tern_server_memory *server, *follower;
	uint32_t same = 0;

	host_env_stop(j->m[0].env);
	host_env_stop(p->env);
	assert_int_equal(tern_server_keep(s, &server), 0);
	assert_int_equal(tern_follower_keep(p->follower, &follower), 0);
	assert_non_null(server);
	assert_non_null(follower);
	assert_int_equal(server->chunk_count, follower->chunk_count);
	assert_true(server->life && server->life == follower->life);
	assert_int_equal(server->index, follower->index);
	assert_in_range(follower->step, server->step - 1, server->step + 1);
	for (uint32_t i = 0; i < server->chunk_count; i++) {
		check_chunk(&s->chunks[i], &server->chunks[i], &follower->chunks[i]);
		same += server->chunks[i].version == follower->chunks[i].version;
	}
	tern_server_memory_free(server);
	tern_server_memory_free(follower);
	return same;
}

/* True if the server waits for gradients, and its follower has made each version that the server has. */
static bool is_still(const struct tern_server *s, const struct process *p)
{
	for (uint32_t i = 0; i < s->chunk_count; i++) {
		const struct follower_chunk *k = &p->follower->chunks[i];

		if (s->chunks[i].state != CHUNK_GATHERING || k->busy ||
			k->version != s->chunks[i].version)
			return false;
	}
	return true;
}

/* Lets the workers stand still until the server and its follower have nothing left to do. */
static void stand_still(struct job *j, struct process *p)
{
	uint64_t limit_ns = tern_clock_ns() + 30 * TERN_NS_PER_S;

	while (!is_still(j->m[0].server, p)) {
		if (tern_progress(j->m[0].ctx) + tern_progress(p->ctx) == 0)
			usleep(50);
		assert_true(tern_clock_ns() < limit_ns);
	}
}

/* The server goes back with its job, and its follower hears it. */
static void lose_server(struct job *j, struct process *p)
{
	server_fail(j->m[0].server, -EAGAIN, "lost");
	BOTH_UNTIL(j, p, p->ended && j->m[0].ended);
	assert_int_equal(p->status, -EAGAIN);
	assert_true(stats_of(p).server_lives);
}

/* A follower comes, and is complete for some steps. */
static void follow_some_steps(struct job *j, struct process *p)
{
	uint64_t step;

	follow(p, j->addresses[0]);
	BOTH_UNTIL(j, p, stats_of(p).complete);
	step = stats_of(p).steps;
	BOTH_UNTIL(j, p, stats_of(p).steps > step + 8);
}

/* Lets a job make steps with a follower that comes meanwhile, and compares all chunks of both. */
/* Waits until the server has made some more steps, by itself. */
static void goes_on(struct job *j)
{
	uint64_t step = step_of(j);

	JOB_UNTIL(j, step_of(j) > step + 3);
	assert_false(j->m[0].ended);
}

static void check_follower(const struct setup *setup)
{
	struct process p;
	struct job j;

	adjust_server = take_snapshots;
	start_job(&j, setup);
	follow_some_steps(&j, &p);
	assert_true(j.m[0].server->chunk_count > 4);
	stand_still(&j, &p);
	lose_server(&j, &p);
	assert_int_equal(compare(&j, &p), j.m[0].server->chunk_count);
	close_process(&p);
	job_close(&j);
}

static void test_a_follower_has_the_bytes_of_its_server(void **state)
{
	(void)state;
	check_follower(&usual);
}

static void test_a_follower_has_the_bytes_with_each_optimizer(void **state)
{
	static const char *const optimizers[] = {
		"sgd", "momentum", "adagrad", "rmsprop", "adamw"};
	struct setup setup = usual;

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(optimizers); i++) {
		setup.optimizer = optimizers[i];
		check_follower(&setup);
	}
}

static void test_a_follower_has_the_bytes_with_clipping(void **state)
{
	struct setup setup = usual;

	(void)state;
	setup.clip_norm = 0.01;
	check_follower(&setup);
}

/* ---- the blob of the job ---- */

/* Lets the worker with slot 0 give a blob. Returns the worker. */
static struct tern_worker *give(struct job *j, struct process *p, const char *blob)
{
	struct tern_worker *w = j->m[1].worker;

	while (!w->computing || w->room->slot != 0 || w->keep.awaited) {
		job_step(j);
		if (p)
			tern_progress(p->ctx);
	}
	assert_int_equal(tern_work_keep(&w->room->work, blob, strlen(blob)), 0);
	return w;
}

static bool has_blob(const struct tern_server *s, const char *blob)
{
	return s->blobs[0].step && s->blobs[0].bytes == strlen(blob) &&
	       memcmp(s->blobs[0].data, blob, strlen(blob)) == 0;
}

static void test_a_worker_with_a_blob_waits_for_the_follower(void **state)
{
	const struct tern_worker *w;
	struct process p;
	uint64_t version;
	struct job j;

	(void)state;
	adjust_server = take_snapshots;
	start_job(&j, &usual);
	w = give(&j, NULL, "before it came");
	JOB_UNTIL(&j, has_blob(j.m[0].server, "before it came") && !w->keep.awaited);
	follow_some_steps(&j, &p);
	assert_true(has_blob(&p.follower->shard, "before it came"));
	w = give(&j, &p, "later");
	version = w->version;
	BOTH_UNTIL(&j, &p, w->version > version);
	assert_true(has_blob(j.m[0].server, "later"));
	assert_true(has_blob(&p.follower->shard, "later"));
	assert_true(p.follower->shard.blobs[0].step == version + 1);
	give(&j, &p, "waits");
	JOB_UNTIL(&j, has_blob(j.m[0].server, "waits"));
	for (unsigned i = 0; i < 1000; i++)
		job_step(&j);
	assert_true(w->keep.awaited);
	close_process(&p);
	JOB_UNTIL(&j, !w->keep.awaited);
	job_close(&j);
}

static void test_no_worker_waits_for_a_follower_that_is_being_filled(void **state)
{
	struct tern_blob blob = {0};
	struct tern_server *s;
	struct process p;
	struct job j;

	(void)state;
	adjust_server = take_snapshots;
	s = start_job(&j, &usual);
	follow(&p, j.addresses[0]);
	BOTH_UNTIL(&j, &p, s->follow);
	assert_int_equal(tern_blob_set(&blob, step_of(&j) + 1, "meanwhile", 9), 0);
	blobs_add(s, &blob);
	assert_false(follow_send_blob(s));
	assert_false(follow_owes_blob(s));
	BOTH_UNTIL(&j, &p, follow_is_complete(s));
	assert_true(stats_of(&p).complete);
	assert_true(has_blob(&p.follower->shard, "meanwhile"));
	assert_true(p.follower->blob_needed == blobs_find(s, UINT64_MAX)->step);
	close_process(&p);
	job_close(&j);
}

static void test_a_follower_has_the_bytes_if_slots_are_folded(void **state)
{
	struct setup setup = usual;

	(void)state;
	setup.slots = 20;
	check_follower(&setup);
	setup.clip_norm = 0.01;
	check_follower(&setup);
}

static void test_a_follower_has_the_bytes_of_bf16_tensors(void **state)
{
	struct setup setup = usual;

	(void)state;
	adjust_job = name_types;
	check_follower(&setup);
	setup.slots = 20;
	check_follower(&setup);
	setup.clip_norm = 0.01;
	check_follower(&setup);
	adjust_job = NULL;
}

static void test_a_follower_has_the_bytes_over_shm(void **state)
{
	struct setup setup = usual;

	(void)state;
	setup.fabric = "shm";
	check_follower(&setup);
}

/* In the middle of a step, server and follower may differ by an update of a chunk. */
static void test_a_follower_is_at_most_an_update_away(void **state)
{
	struct process p;
	struct job j;

	(void)state;
	adjust_server = take_snapshots;
	start_job(&j, &usual);
	follow_some_steps(&j, &p);
	lose_server(&j, &p);
	compare(&j, &p);
	close_process(&p);
	job_close(&j);
}

/* ---- tensors that are not pushed ---- */

static const char *const names[] = {"always", "never", "seldom"};

struct program { /* the only worker of a job, with a session */
	struct tern_session *session;
	uint32_t ids[TERN_ARRAY_SIZE(names)];
	bool skips; /* not all tensors are pushed in each step */
};

static void start_program(struct job *j, struct program *program)
{
	const struct tern_rule_opts rule = {.name = "adam"};
	struct member *m = job_add(j);

	open_member(m);
	assert_int_equal(tern_session_new(m->ctx,
				 &(struct tern_session_opts){.join = j->addresses[0]},
				 &m->session),
		0);
	program->session = m->session;
	for (size_t k = 0; k < TERN_ARRAY_SIZE(names); k++)
		assert_int_equal(tern_session_tensor(program->session,
					 &(struct tern_tensor_opts){.name = names[k],
						 .shape = tern_shape_1d(TERN_F32, 3000),
						 .init = TERN_INIT_UNIFORM,
						 .a = -1,
						 .b = 1,
						 .rule = &rule},
					 &program->ids[k]),
			0);
	assert_int_equal(tern_session_start(program->session,
				 &(struct tern_job_opts){
					 .workers = 1, .slots = 1, .steps = NEVER_ENDS}),
		0);
}

/* Computes the next slot, if it is due. */
static void compute(struct program *program)
{
	struct tern_slot_info info;
	struct tern_slot *slot;

	if (tern_session_next(program->session, &slot, &info) < 0)
		return;
	for (size_t k = 0; k < TERN_ARRAY_SIZE(names); k++) {
		float *g;

		if (program->skips && (k == 1 || (k == 2 && info.step % 3 > 0)))
			continue;
		g = tern_slot_gradient(slot, program->ids[k]);
		for (unsigned i = 0; i < 3000; i++)
			g[i] = (float)(i + info.step) / 1000 - 2;
		assert_int_equal(tern_slot_push(slot, program->ids[k], NULL), 0);
	}
	assert_int_equal(tern_slot_end(slot, 0), 0);
}

static bool has_skips(const struct tern_server *s)
{
	for (uint32_t i = 0; i < s->chunk_count; i++)
		if (s->chunks[i].skips)
			return true;
	return false;
}

/* `from_start`: the state has numbers of updates already when the follower gets it; else an update is the
 * first that has marks. */
static void check_skips_follow(bool from_start)
{
	struct program program = {.skips = from_start};
	struct process p;
	struct job j;
	uint64_t step;

	adjust_server = take_snapshots;
	job_open(&j, &usual);
	start_program(&j, &program);
	JOB_UNTIL(&j, (compute(&program), j.m[0].server->running && step_of(&j) > 7));
	follow(&p, j.addresses[0]);
	BOTH_UNTIL(&j, &p, (compute(&program), stats_of(&p).complete));
	assert_true(has_skips(j.m[0].server) == from_start);
	program.skips = true;
	step = stats_of(&p).steps;
	BOTH_UNTIL(&j, &p, (compute(&program), stats_of(&p).steps > step + 8));
	assert_true(has_skips(j.m[0].server));
	stand_still(&j, &p);
	lose_server(&j, &p);
	assert_int_equal(compare(&j, &p), j.m[0].server->chunk_count);
	close_process(&p);
	job_close(&j);
}

static void test_a_follower_leaves_out_the_same_tensors(void **state)
{
	(void)state;
	check_skips_follow(true);
	check_skips_follow(false);
}

/* ---- who is refused, and who is lost ---- */

static void check_refused(const struct setup *setup, const char *why)
{
	struct process p;
	struct job j;
	uint64_t step;

	start_job(&j, setup);
	open_process(&p);
	if (strstr(why, "abacus"))
		snprintf(
			p.updater->fingerprint, sizeof(p.updater->fingerprint), "abacus");
	begin(&p, j.addresses[0]);
	BOTH_UNTIL(&j, &p, p.ended);
	assert_int_equal(p.status, -EINVAL);
	assert_non_null(strstr(p.text, why));
	step = step_of(&j);
	BOTH_UNTIL(&j, &p, step_of(&j) > step + 3);
	close_process(&p);
	job_close(&j);
}

static void test_a_server_of_a_job_without_snapshots_is_not_followed(void **state)
{
	(void)state;
	adjust_server = NULL;
	check_refused(&usual, "all servers need --snapshots");
}

static void go_back(struct tern_server_opts *opts)
{
	opts->goes_back = true;
}

static void test_a_server_of_an_async_job_is_not_followed(void **state)
{
	struct setup setup = usual;

	(void)state;
	setup.mode = TERN_MODE_ASYNC;
	adjust_server = go_back;
	check_refused(&setup, "a server is followed in ");
}

static void test_a_follower_with_another_arithmetic_is_refused(void **state)
{
	(void)state;
	adjust_server = take_snapshots;
	check_refused(&usual, "it computes with \"abacus\"");
}

static void omit_slots(struct tern_server_opts *opts)
{
	take_snapshots(opts);
	opts->omits = true;
}

static void test_a_follower_with_another_on_nan_is_refused(void **state)
{
	(void)state;
	adjust_server = omit_slots;
	check_refused(&usual,
		"it was started with --on-nan stop, and server 0 with --on-nan skip");
}

static void test_a_server_has_one_follower(void **state)
{
	struct process first, second;
	struct job j;

	(void)state;
	adjust_server = take_snapshots;
	start_job(&j, &usual);
	follow(&first, j.addresses[0]);
	BOTH_UNTIL(&j, &first, stats_of(&first).follows);
	follow(&second, j.addresses[0]);
	BOTH_UNTIL(&j, &first, (tern_progress(second.ctx), *second.noted));
	assert_non_null(
		strstr(second.noted, "server 0 has a follower already, at tcp://"));
	assert_false(second.ended);
	BOTH_UNTIL(&j, &first, (tern_progress(second.ctx), stats_of(&first).complete));
	/* The second one comes when the first is lost. */
	close_process(&first);
	BOTH_UNTIL(&j, &second, stats_of(&second).complete);
	close_process(&second);
	job_close(&j);
}

static void test_whoever_comes_to_a_follower_is_told_to_come_again(void **state)
{
	struct process first, second;
	struct job j;

	(void)state;
	adjust_server = take_snapshots;
	start_job(&j, &usual);
	follow(&first, j.addresses[0]);
	follow(&second, tern_follower_address(first.follower));
	BOTH_UNTIL(&j, &first, (tern_progress(second.ctx), *second.noted));
	assert_non_null(strstr(second.noted, "this is a follower, which does not serve"));
	/* The follower connects again twice, and does not repeat its reason. */
	for (unsigned k = 0; k < 2; k++) {
		BOTH_UNTIL(
			&j, &first, (tern_progress(second.ctx), second.follower->gone));
		BOTH_UNTIL(
			&j, &first, (tern_progress(second.ctx), !second.follower->gone));
	}
	BOTH_UNTIL(&j, &first, (tern_progress(second.ctx), second.follower->gone));
	assert_int_equal(second.noted_count, 1);
	close_process(&second);
	close_process(&first);
	job_close(&j);
}

static char left_note[600]; /* what the server says when it loses its follower */

static void keep_note(void *arg, const char *text, bool comes)
{
	(void)arg;
	(void)comes;
	if (strstr(text, "goes on without its follower"))
		snprintf(left_note, sizeof(left_note), "%s", text);
}

static void take_snapshots_and_note(struct tern_server_opts *opts)
{
	take_snapshots(opts);
	opts->note = keep_note;
}

/* The process is stopped: its server publishes nothing until it has waited long enough. */
static void test_a_follower_that_stands_still_is_dropped(void **state)
{
	struct process p;
	struct job j;

	(void)state;
	*left_note = '\0';
	adjust_server = take_snapshots_and_note;
	start_job(&j, &usual)->opts.worker_timeout_ns = 2 * TERN_NS_PER_S;
	follow(&p, j.addresses[0]);
	BOTH_UNTIL(&j, &p, follow_is_complete(j.m[0].server));
	JOB_UNTIL(&j, !follow_is_complete(j.m[0].server));
	assert_non_null(strstr(left_note, "it has not acknowledged an update for 2 s"));
	goes_on(&j);
	close_process(&p);
	job_close(&j);
}

static void test_a_version_that_waits_for_a_lost_follower_is_published(void **state)
{
	char text[200] = "";
	struct process p;
	struct job j;
	uint64_t step;

	(void)state;
	adjust_server = take_snapshots;
	start_job(&j, &usual);
	follow(&p, j.addresses[0]);
	BOTH_UNTIL(&j, &p, stats_of(&p).complete);
	JOB_UNTIL(&j, follow_name_owing(j.m[0].server, text, sizeof(text)) > 0);
	assert_non_null(strstr(text, "server 0's follower at tcp://"));
	step = step_of(&j);
	close_process(&p);
	JOB_UNTIL(&j, step_of(&j) > step + 3);
	job_close(&j);
}

/* ---- limits, and what else a follower hears ---- */

static void test_a_follower_without_memory_for_the_job_ends_alone(void **state)
{
	struct process p;
	struct job j;

	(void)state;
	adjust_server = take_snapshots;
	start_job(&j, &usual);
	open_process(&p);
	p.memory_bytes = 100000;
	begin(&p, j.addresses[0]);
	BOTH_UNTIL(&j, &p, p.ended);
	assert_int_equal(p.status, -E2BIG);
	assert_non_null(strstr(p.text, "cannot be followed: no room for "));
	goes_on(&j);
	close_process(&p);
	job_close(&j);
}

/* The server tells the step of its newest snapshot when the follower comes, and with each update. The
 * follower never takes an older one. */
static void test_a_follower_hears_of_the_newest_snapshot(void **state)
{
	struct tern_server *s;
	struct process p;
	struct job j;
	uint64_t step;

	(void)state;
	adjust_server = take_snapshots;
	s = start_job(&j, &usual);
	s->snapshot_step = 2;
	follow(&p, j.addresses[0]);
	BOTH_UNTIL(&j, &p, stats_of(&p).follows);
	assert_int_equal(p.follower->shard.snapshot_step, 2);
	BOTH_UNTIL(&j, &p, stats_of(&p).complete);
	s->snapshot_step = 7;
	BOTH_UNTIL(&j, &p, p.follower->shard.snapshot_step == 7);
	s->snapshot_step = 3;
	step = stats_of(&p).steps;
	BOTH_UNTIL(&j, &p, stats_of(&p).steps > step + 8);
	assert_int_equal(p.follower->shard.snapshot_step, 7);
	close_process(&p);
	job_close(&j);
}

/* ---- tensors that no server would send, and acknowledgements that no follower would ---- */

struct wrong { /* a tensor that the protocol does not have, of zeros unless a case says more */
	struct tern_req req;
	struct tern_pool *pool;
	struct tern_buf buf;
	bool ended;
};

static void wrong_ended(struct tern_req *req)
{
	*(bool *)req->arg = true;
}

static void make_wrong(struct wrong *w, uint64_t bytes)
{
	assert_int_equal(tern_pool_get(w->pool, bytes, &w->buf), 0);
	memset(tern_buf_ptr(&w->buf), 0, bytes);
}

static void send_made(struct wrong *w, struct tern_channel *channel, uint64_t key,
	uint64_t step, uint64_t bytes)
{
	struct tern_tensor tensor = {
		.buf = w->buf, .shape = tern_shape_1d(TERN_U8, bytes)};

	tensor.buf.bytes = bytes;
	w->req = (struct tern_req){.done = wrong_ended, .arg = &w->ended};
	assert_int_equal(tern_send(channel, &w->req, key, step, &tensor, NULL, 0), 0);
}

static void send_wrong(struct wrong *w, struct tern_channel *channel, uint64_t key,
	uint64_t step, uint64_t bytes)
{
	make_wrong(w, bytes);
	send_made(w, channel, key, step, bytes);
}

/* The follower ends with that reason, and the job goes on. */
static void expect_end(struct job *j, struct process *p, struct wrong *w, const char *why)
{
	uint64_t step;

	BOTH_UNTIL(j, p, p->ended && w->ended);
	assert_int_equal(p->status, -EPROTO);
	assert_non_null(strstr(p->text, why));
	step = step_of(j);
	JOB_UNTIL(j, step_of(j) > step + 3);
	tern_pool_put(w->pool, &w->buf);
}

struct wrong_kind {
	bool is_state;        /* of chunk 1; false: an update of chunk 0 */
	uint64_t bytes, more; /* size in bytes; if that is 0, the right one plus `more` */
	uint64_t version, snapshot; /* of an update: what it says, besides zeros */
};

/* While the workers stand still, the server copies no state, so that a wrong one comes first. */
static void follow_standing(struct job *j, struct process *p)
{
	const struct tern_server *s = j->m[0].server;

	for (unsigned i = 0; i < 500; i++)
		tern_progress(j->m[0].ctx);
	follow(p, j->addresses[0]);
	while (!s->follow) {
		tern_progress(j->m[0].ctx);
		tern_progress(p->ctx);
	}
}

static void send_kind(struct wrong *w, struct job *j, const struct process *p,
	const struct wrong_kind *kind)
{
	const struct tern_server *s = j->m[0].server;
	struct chunk *c = &s->chunks[kind->is_state];
	uint64_t right = kind->is_state ? follow_state_bytes(c) : follow_update_bytes(c);
	uint64_t bytes = kind->bytes ? kind->bytes : right + kind->more, next = 0;
	struct tern_channel *channel = follower_of(s)->data;

	w->pool = s->staging;
	make_wrong(w, TERN_MAX(bytes, sizeof(struct follow_head)));
	if (kind->is_state) {
		send_made(w, channel, c->plan->parameter_key, 0, bytes);
		return;
	}
	next = p->follower->chunks[0].version + 2;
	*(struct follow_head *)tern_buf_ptr(&w->buf) = (struct follow_head){
		.version = kind->version ? next : 0, .snapshot = kind->snapshot};
	send_made(w, channel, c->plan->gradient_key, next, bytes);
}

static void check_wrong(const struct wrong_kind *kind)
{
	struct wrong w = {0};
	struct process p;
	struct job j;

	start_job(&j, &usual);
	if (kind->is_state) {
		follow_standing(&j, &p);
	} else {
		follow(&p, j.addresses[0]);
		BOTH_UNTIL(&j, &p, stats_of(&p).complete);
	}
	send_kind(&w, &j, &p, kind);
	expect_end(&j, &p, &w,
		kind->is_state ? "server 0 sent a wrong state of chunk 1: "
			       : "server 0 sent a wrong update of chunk 0: ");
	close_process(&p);
	job_close(&j);
}

static void test_a_wrong_update_ends_the_follower_alone(void **state)
{
	static const struct wrong_kind kinds[] = {{.bytes = 8}, {.more = 0}, {.more = 8},
		{.version = 1, .snapshot = NEVER_ENDS + 1}};

	(void)state;
	adjust_server = take_snapshots;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(kinds); i++)
		check_wrong(&kinds[i]);
}

static void test_a_wrong_state_ends_the_follower_alone(void **state)
{
	static const struct wrong_kind kinds[] = {
		{true, .bytes = 8}, {true, .more = 0}, {true, .more = 8}};

	(void)state;
	adjust_server = take_snapshots;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(kinds); i++)
		check_wrong(&kinds[i]);
}

/* An acknowledgement of zeros comes before the follower has the update that it is of. */
static void check_wrong_acknowledgement(uint64_t bytes, const char *why)
{
	struct wrong w = {0};
	struct process p;
	struct job j;

	*left_note = '\0';
	start_job(&j, &usual);
	follow(&p, j.addresses[0]);
	BOTH_UNTIL(&j, &p, stats_of(&p).complete);
	w.pool = p.follower->pool;
	send_wrong(&w, p.follower->data, p.follower->shard.chunks[0].plan->marks_key,
		p.follower->chunks[0].version + 2, bytes);
	BOTH_UNTIL(&j, &p, p.ended && w.ended && !follow_is_complete(j.m[0].server));
	assert_non_null(strstr(left_note, why));
	goes_on(&j);
	tern_pool_put(w.pool, &w.buf);
	close_process(&p);
	job_close(&j);
}

static void test_a_follower_that_acknowledges_wrongly_is_dropped(void **state)
{
	static const char wrong[] = "it acknowledged an update that it was not sent";

	(void)state;
	adjust_server = take_snapshots_and_note;
	check_wrong_acknowledgement(8, wrong);
	check_wrong_acknowledgement(4, wrong);
	check_wrong_acknowledgement(16, "the receiver's buffer is too small");
	adjust_server = take_snapshots;
}

/* A right acknowledgement that comes too early counts, but the update is still sent and made. */
static void test_an_early_acknowledgement_costs_no_update(void **state)
{
	struct wrong w = {0};
	struct process p;
	struct job j;
	uint64_t version;

	(void)state;
	adjust_server = take_snapshots;
	start_job(&j, &usual);
	follow(&p, j.addresses[0]);
	BOTH_UNTIL(&j, &p, stats_of(&p).complete);
	version = p.follower->chunks[0].version + 2;
	w.pool = p.follower->pool;
	make_wrong(&w, sizeof(version));
	memcpy(tern_buf_ptr(&w.buf), &version, sizeof(version));
	send_made(&w, p.follower->data, p.follower->shard.chunks[0].plan->marks_key,
		version, sizeof(version));
	BOTH_UNTIL(&j, &p, w.ended && stats_of(&p).steps > version + 8);
	stand_still(&j, &p);
	lose_server(&j, &p);
	tern_pool_put(w.pool, &w.buf);
	assert_int_equal(compare(&j, &p), j.m[0].server->chunk_count);
	close_process(&p);
	job_close(&j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_follower_has_the_bytes_of_its_server),
		cmocka_unit_test(test_a_follower_has_the_bytes_with_each_optimizer),
		cmocka_unit_test(test_a_follower_has_the_bytes_with_clipping),
		cmocka_unit_test(test_a_worker_with_a_blob_waits_for_the_follower),
		cmocka_unit_test(
			test_no_worker_waits_for_a_follower_that_is_being_filled),
		cmocka_unit_test(test_a_follower_has_the_bytes_if_slots_are_folded),
		cmocka_unit_test(test_a_follower_has_the_bytes_of_bf16_tensors),
		cmocka_unit_test(test_a_follower_has_the_bytes_over_shm),
		cmocka_unit_test(test_a_follower_is_at_most_an_update_away),
		cmocka_unit_test(test_a_follower_leaves_out_the_same_tensors),
		cmocka_unit_test(
			test_a_server_of_a_job_without_snapshots_is_not_followed),
		cmocka_unit_test(test_a_server_of_an_async_job_is_not_followed),
		cmocka_unit_test(test_a_follower_with_another_arithmetic_is_refused),
		cmocka_unit_test(test_a_follower_with_another_on_nan_is_refused),
		cmocka_unit_test(test_a_server_has_one_follower),
		cmocka_unit_test(test_whoever_comes_to_a_follower_is_told_to_come_again),
		cmocka_unit_test(test_a_follower_that_stands_still_is_dropped),
		cmocka_unit_test(
			test_a_version_that_waits_for_a_lost_follower_is_published),
		cmocka_unit_test(test_a_follower_without_memory_for_the_job_ends_alone),
		cmocka_unit_test(test_a_follower_hears_of_the_newest_snapshot),
		cmocka_unit_test(test_a_wrong_update_ends_the_follower_alone),
		cmocka_unit_test(test_a_wrong_state_ends_the_follower_alone),
		cmocka_unit_test(test_a_follower_that_acknowledges_wrongly_is_dropped),
		cmocka_unit_test(test_an_early_acknowledgement_costs_no_update),
	};

	return cmocka_run_group_tests(tests, make_data, free_data);
}
