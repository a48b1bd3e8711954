/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of followers. A follower comes while a job makes its steps; whenever its server ends, it
 * has the bytes that the server has. What happens to a job whose servers are lost is in the
 * simulator (scenario `follow`).
 */
#include "server/follower.h"
#include "server/follow.h"
#include "server/follower_state.h"
#include "server/memory.h"
#include "tests/server/train_bed.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/host_env.h"

#define NEVER_ENDS 100000u /* steps */

/* ---- a process that follows ---- */

struct process {
	struct tern_env *env;
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_updater *updater;
	struct tern_follower *follower;
	bool ended;
	int status;
	char text[600], noted[600];
};

static void note(void *arg, const char *text)
{
	struct process *p = arg;

	snprintf(p->noted, sizeof(p->noted), "%s", text);
}

static void ended(void *arg, int status, const char *text)
{
	struct process *p = arg;

	p->ended = true;
	p->status = status;
	snprintf(p->text, sizeof(p->text), "%s", text);
}

static void open_process(struct process *p)
{
	const struct tern_context_opts opts = {.reconnect_ns = 50 * TERN_NS_PER_MS};

	*p = (struct process){0};
	assert_int_equal(host_env_new(NULL, &p->env), 0);
	assert_int_equal(tern_domain_new(NULL, &p->domain), 0);
	assert_int_equal(tern_context_new_in(p->domain, &opts, p->env, &p->ctx), 0);
	assert_int_equal(tern_updater_cpu_new(tern_kernels_cpu(), &p->updater), 0);
}

/* Lets an open process follow the server. */
static void begin(struct process *p, const char *server)
{
	assert_int_equal(
		tern_follower_new(&(struct tern_follower_opts){.domain = p->domain,
					  .ctx = p->ctx,
					  .updater = p->updater,
					  .server = server,
					  .listen = "tcp://127.0.0.1:0",
					  .note = note,
					  .ended = ended,
					  .arg = p},
			&p->follower),
		0);
}

static void follow(struct process *p, const char *server)
{
	open_process(p);
	begin(p, server);
}

static void close_process(struct process *p)
{
	host_env_stop(p->env);
	tern_context_free(p->ctx);
	tern_follower_free(p->follower);
	tern_updater_free(p->updater);
	tern_domain_free(p->domain);
	host_env_free(p->env);
}

static struct tern_follower_stats stats_of(const struct process *p)
{
	struct tern_follower_stats stats;

	tern_follower_stats(p->follower, &stats);
	return stats;
}

/* ---- jobs ---- */

static void take_snapshots(struct tern_server_opts *opts)
{
	opts->goes_back = true;
	opts->snapshots.directory = "/tmp";
}

static void name_types(struct tern_ps_job *job)
{
	for (uint32_t i = 0; i < job->param_count; i++)
		job->params[i].push_bf16 = job->params[i].pull_bf16 = i % 2;
}

static const struct setup usual = {.fabric = "tcp",
	.model = "mlp:512,64",
	.optimizer = "adam",
	.servers = 1,
	.workers = 2,
	.slots = 2,
	.steps = NEVER_ENDS};

static uint64_t step_of(const struct job *j)
{
	return j->m[0].server->chunks[0].version;
}

static void run(struct job *j, struct process *p)
{
	job_step(j);
	tern_progress(p->ctx);
}

/* Starts a job that makes steps. */
static void start(struct job *j, const struct setup *setup)
{
	job_start(j, setup);
	JOB_UNTIL(j, j->m[0].server->running && j->m[0].server->chunks[0].version > 3);
}

static void start_job(struct job *j)
{
	start(j, &usual);
}

#define BOTH_UNTIL(job_, process_, cond)                                                 \
	do {                                                                             \
		uint64_t limit_ns_ = tern_clock_ns() + 30 * TERN_NS_PER_S;               \
		while (!(cond)) {                                                        \
			run(job_, process_);                                             \
			if (tern_clock_ns() > limit_ns_)                                 \
				fail_msg("never happened: %s", #cond);                   \
		}                                                                        \
	} while (0)

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
static void check_follower(const struct setup *setup)
{
	struct process p;
	struct job j;

	adjust_server = take_snapshots;
	start(&j, setup);
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
	start_job(&j);
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

	start(&j, setup);
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

static void test_a_server_has_one_follower(void **state)
{
	struct process first, second;
	struct job j;

	(void)state;
	adjust_server = take_snapshots;
	start_job(&j);
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
	start_job(&j);
	follow(&first, j.addresses[0]);
	follow(&second, tern_follower_address(first.follower));
	BOTH_UNTIL(&j, &first, (tern_progress(second.ctx), *second.noted));
	assert_non_null(strstr(second.noted, "this is a follower, which does not serve"));
	close_process(&second);
	close_process(&first);
	job_close(&j);
}

/* The process is stopped: its server publishes nothing until it has waited long enough. */
static void test_a_follower_that_stands_still_is_dropped(void **state)
{
	struct process p;
	struct job j;
	uint64_t step;

	(void)state;
	adjust_server = take_snapshots;
	start_job(&j);
	j.m[0].server->opts.worker_timeout_ns = 2 * TERN_NS_PER_S;
	follow(&p, j.addresses[0]);
	BOTH_UNTIL(&j, &p, stats_of(&p).complete);
	JOB_UNTIL(&j, !follow_is_complete(j.m[0].server));
	step = step_of(&j);
	JOB_UNTIL(&j, step_of(&j) > step + 3);
	assert_false(j.m[0].ended);
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
	start_job(&j);
	follow(&p, j.addresses[0]);
	BOTH_UNTIL(&j, &p, stats_of(&p).complete);
	JOB_UNTIL(&j, follow_name_owing(j.m[0].server, text, sizeof(text)) > 0);
	assert_non_null(strstr(text, "server 0's follower at tcp://"));
	step = step_of(&j);
	close_process(&p);
	JOB_UNTIL(&j, step_of(&j) > step + 3);
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

/* The connection of the server with its follower. */
static struct server_peer *follower_of(const struct tern_server *s)
{
	tern_list_for_each (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if (p->is_follower)
			return p;
	}
	fail_msg("the server has no follower");
	return NULL;
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

/* Sends an update of chunk 0 that has `bytes` bytes, or the right number plus `more`, for version 0. */
static void check_wrong_update(uint64_t bytes, uint64_t more)
{
	struct wrong w = {0};
	struct tern_server *s;
	struct process p;
	struct job j;

	start_job(&j);
	s = j.m[0].server;
	follow(&p, j.addresses[0]);
	BOTH_UNTIL(&j, &p, stats_of(&p).complete);
	w.pool = s->staging;
	send_wrong(&w, follower_of(s)->data, s->chunks[0].plan->gradient_key,
		p.follower->chunks[0].version + 2,
		bytes ? bytes : follow_update_bytes(&s->chunks[0]) + more);
	expect_end(&j, &p, &w, "server 0 sent a wrong update of chunk 0: ");
	close_process(&p);
	job_close(&j);
}

static void test_a_wrong_update_ends_the_follower_alone(void **state)
{
	(void)state;
	adjust_server = take_snapshots;
	check_wrong_update(8, 0);
	check_wrong_update(0, 0);
	check_wrong_update(0, 8);
}

/* While the workers stand still, the server copies no state, so that the wrong one comes first. */
static void check_wrong_state(uint64_t bytes, uint64_t more)
{
	struct wrong w = {0};
	struct tern_server *s;
	struct process p;
	struct job j;

	start_job(&j);
	s = j.m[0].server;
	for (unsigned i = 0; i < 500; i++)
		tern_progress(j.m[0].ctx);
	follow(&p, j.addresses[0]);
	while (!s->follow) {
		tern_progress(j.m[0].ctx);
		tern_progress(p.ctx);
	}
	w.pool = s->staging;
	send_wrong(&w, follower_of(s)->data, s->chunks[1].plan->parameter_key, 0,
		bytes ? bytes : follow_state_bytes(&s->chunks[1]) + more);
	expect_end(&j, &p, &w, "server 0 sent a wrong state of chunk 1: ");
	close_process(&p);
	job_close(&j);
}

static void test_a_wrong_state_ends_the_follower_alone(void **state)
{
	(void)state;
	adjust_server = take_snapshots;
	check_wrong_state(8, 0);
	check_wrong_state(0, 0);
	check_wrong_state(0, 8);
}

static char left_note[600]; /* what the server says when it loses its follower */

static void keep_note(void *arg, const char *text)
{
	(void)arg;
	if (strstr(text, "goes on without its follower"))
		snprintf(left_note, sizeof(left_note), "%s", text);
}

static void take_snapshots_and_note(struct tern_server_opts *opts)
{
	take_snapshots(opts);
	opts->note = keep_note;
}

/* An acknowledgement of zeros comes before the follower has the update that it is of. */
static void check_wrong_acknowledgement(uint64_t bytes, const char *why)
{
	struct wrong w = {0};
	struct process p;
	struct job j;
	uint64_t step;

	*left_note = '\0';
	start_job(&j);
	follow(&p, j.addresses[0]);
	BOTH_UNTIL(&j, &p, stats_of(&p).complete);
	w.pool = p.follower->pool;
	send_wrong(&w, p.follower->data, p.follower->shard.chunks[0].plan->marks_key,
		p.follower->chunks[0].version + 2, bytes);
	BOTH_UNTIL(&j, &p, p.ended && w.ended && !follow_is_complete(j.m[0].server));
	assert_non_null(strstr(left_note, why));
	step = step_of(&j);
	JOB_UNTIL(&j, step_of(&j) > step + 3);
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
	start_job(&j);
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
		cmocka_unit_test(test_a_follower_has_the_bytes_if_slots_are_folded),
		cmocka_unit_test(test_a_follower_has_the_bytes_of_bf16_tensors),
		cmocka_unit_test(test_a_follower_has_the_bytes_over_shm),
		cmocka_unit_test(test_a_follower_is_at_most_an_update_away),
		cmocka_unit_test(test_a_follower_leaves_out_the_same_tensors),
		cmocka_unit_test(
			test_a_server_of_a_job_without_snapshots_is_not_followed),
		cmocka_unit_test(test_a_server_of_an_async_job_is_not_followed),
		cmocka_unit_test(test_a_follower_with_another_arithmetic_is_refused),
		cmocka_unit_test(test_a_server_has_one_follower),
		cmocka_unit_test(test_whoever_comes_to_a_follower_is_told_to_come_again),
		cmocka_unit_test(test_a_follower_that_stands_still_is_dropped),
		cmocka_unit_test(
			test_a_version_that_waits_for_a_lost_follower_is_published),
		cmocka_unit_test(test_a_wrong_update_ends_the_follower_alone),
		cmocka_unit_test(test_a_wrong_state_ends_the_follower_alone),
		cmocka_unit_test(test_a_follower_that_acknowledges_wrongly_is_dropped),
		cmocka_unit_test(test_an_early_acknowledgement_costs_no_update),
	};

	return cmocka_run_group_tests(tests, make_data, free_data);
}
