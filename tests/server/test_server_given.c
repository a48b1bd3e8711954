/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of given initial values: version 0 has those of one worker, the lowest that lives
 * and sends all of them, and nobody gets anything before. Visitors play the workers. */
#include "tests/server/server_bed.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

/* A job of three tensors of COUNT elements in one chunk, of which the first and the third
 * are given. */
#define COUNT   1000u
#define TENSORS 3u

struct giver {
	struct visitor v;
	struct tern_channel *data;
	struct tern_buf values;
	struct tern_req sends[TENSORS], version;
	bool sent[TENSORS], came;
};

static const struct tern_ps_job two = {.steps = 1, .slots = 2, .workers = 2};
static const struct tern_ps_job async = {
	.mode = TERN_MODE_ASYNC, .steps = 2, .slots = 2, .workers = 2};

static json_t *given_job(const struct rig *rig, const struct tern_ps_job *like,
	unsigned servers, uint64_t digest)
{
	json_t *job = job_of(rig, like, TENSORS, COUNT, servers), *tensor;
	size_t i;

	json_object_set_new(job, "steps", json_integer((json_int_t)like->steps));
	json_array_foreach(json_object_get(job, "params"), i, tensor)
	{
		if (i == 1)
			continue;
		json_object_set_new(tensor, "init", json_string("given"));
		json_object_set_new(tensor, "digest", json_integer((json_int_t)digest));
	}
	return job;
}

static void ended(struct tern_req *req)
{
	*(bool *)req->arg = true;
}

/* Makes worker `index` join. Its values are `value` and more. */
static void open_giver(struct rig *rig, struct giver *g, json_t *job, unsigned index)
{
	*g = (struct giver){.came = false};
	visit(rig, &g->v);
	say_join(&g->v, job, index);
	assert_int_equal(tern_channel_open(g->v.peer, TERN_PS_CHANNEL_DATA, &g->data), 0);
	g->version = (struct tern_req){.done = ended, .arg = &g->came};
	assert_int_equal(tern_recv(g->data, &g->version, tern_key("parameter/0"), 0, NULL,
				 NULL, TERN_RECV_ALLOC),
		0);
	assert_int_equal(
		tern_pool_get(rig->pool, TENSORS * COUNT * sizeof(float), &g->values), 0);
	for (unsigned i = 0; i < TENSORS * COUNT; i++)
		tern_vector(&g->values)[i] = (float)(10000 * index + i);
}

/* Sends `bytes` bytes of the values of tensor i. */
static void give(struct giver *g, unsigned i, uint64_t bytes)
{
	struct tern_tensor tensor = {.buf = g->values,
		.shape = tern_shape_1d(TERN_F32, bytes / sizeof(float))};

	tensor.buf.offset += i * COUNT * sizeof(float);
	tensor.buf.bytes = bytes;
	g->sends[i] = (struct tern_req){.done = ended, .arg = &g->sent[i]};
	assert_int_equal(tern_send(g->data, &g->sends[i], tern_given_key(), i * COUNT,
				 &tensor, NULL, 0),
		0);
}

static void give_all(struct rig *rig, struct giver *g)
{
	run_until(rig, &g->v.gives);
	give(g, 0, COUNT * sizeof(float));
	give(g, 2, COUNT * sizeof(float));
}

/* Waits for version 0, and checks that its given values are those of `from`. */
static void check_version(struct rig *rig, struct giver *g, unsigned from)
{
	const float *values;

	run_until(rig, &g->came);
	assert_int_equal(g->version.status, 0);
	assert_int_equal(g->version.bytes, TENSORS * COUNT * sizeof(float));
	values = g->version.data;
	for (unsigned i = 0; i < TENSORS * COUNT; i++)
		assert_true(
			values[i] == (i / COUNT == 1 ? 0 : (float)(10000 * from + i)));
	tern_release(&g->version);
}

/* Runs for a while, in which something wrong would happen. */
static void run_a_while(struct rig *rig)
{
	for (unsigned i = 0; i < 200; i++)
		step(rig);
}

static void open_two(struct rig *rig, struct giver *g, const struct tern_ps_job *like)
{
	open_rig(rig);
	for (unsigned i = 0; i < 2; i++)
		open_giver(rig, &g[i], given_job(rig, like, 1, 0), i);
}

static void close_two(struct rig *rig, struct giver *g)
{
	for (unsigned i = 0; i < 2; i++)
		tern_pool_put(rig->pool, &g[i].values);
	close_rig(rig);
}

/* ---- who gives ---- */

static void check_first_gives(const struct tern_ps_job *like)
{
	struct giver g[2];
	struct rig rig;

	open_two(&rig, g, like);
	run_until(&rig, &g[0].v.gives);
	run_a_while(&rig);
	assert_false(g[1].v.gives || g[0].came || g[1].came);
	give(&g[0], 2, COUNT * sizeof(float));
	run_until(&rig, &g[0].sent[2]);
	run_a_while(&rig);
	assert_false(g[0].came || g[1].came);
	give(&g[0], 0, COUNT * sizeof(float));
	check_version(&rig, &g[0], 0);
	check_version(&rig, &g[1], 0);
	assert_false(g[1].v.gives);
	assert_null(rig.server->given.parts);
	close_two(&rig, g);
}

static void test_the_lowest_worker_gives_before_anybody_gets_version_0(void **state)
{
	(void)state;
	check_first_gives(&two);
	check_first_gives(&async);
}

static void test_a_worker_with_other_values_is_refused(void **state)
{
	struct giver g[2];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	open_giver(&rig, &g[0], given_job(&rig, &two, 1, 5), 0);
	run_until(&rig, &g[0].v.welcome);
	open_giver(&rig, &g[1], given_job(&rig, &two, 1, 6), 1);
	run_until(&rig, &g[1].v.refused);
	assert_non_null(strstr(g[1].v.text, "tensor w0: "));
	assert_non_null(
		strstr(g[1].v.text, " gives it other initial values than the job"));
	close_two(&rig, g);
}

/* ---- the giver is lost ---- */

/* Worker 1 must be asked, although worker 0 has sent something, and version 0 must have
 * worker 1's values only. */
static void check_next_gives(struct rig *rig, struct giver *g)
{
	give_all(rig, &g[1]);
	check_version(rig, &g[1], 1);
	assert_false(g[0].came && g[0].version.status == 0);
	close_two(rig, g);
}

static void test_if_the_giver_is_lost_the_next_one_gives_everything(void **state)
{
	struct giver g[2];
	struct rig rig;

	(void)state;
	open_two(&rig, g, &two);
	run_until(&rig, &g[0].v.gives);
	give(&g[0], 0, COUNT * sizeof(float));
	run_until(&rig, &g[0].sent[0]);
	assert_false(g[1].v.gives);
	tern_peer_free(g[0].v.peer);
	check_next_gives(&rig, g);
}

static void test_a_giver_of_values_that_are_no_numbers_is_lost(void **state)
{
	static const float wrong[] = {NAN, INFINITY, -INFINITY};

	(void)state;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(wrong); i++) {
		struct giver g[2];
		struct rig rig;

		open_two(&rig, g, &two);
		tern_vector(&g[0].values)[2 * COUNT + 17] = wrong[i];
		give_all(&rig, &g[0]);
		run_until(&rig, &rig.server->workers[0]->lost);
		assert_non_null(
			strstr(rig.server->first_loss, "gives initial values that are no "
						       "numbers: value 17 of tensor w2"));
		check_next_gives(&rig, g);
	}
}

static void test_a_giver_of_too_few_or_too_many_values_is_lost(void **state)
{
	(void)state;
	for (int more = -4; more <= 4; more += 8) {
		struct giver g[2];
		struct rig rig;

		open_two(&rig, g, &two);
		run_until(&rig, &g[0].v.gives);
		give(&g[0], 0, (uint64_t)(4000 + more));
		run_until(&rig, &rig.server->workers[0]->lost);
		assert_non_null(strstr(rig.server->first_loss,
			more < 0
				? "gave 3996 bytes of initial values, f32, for chunk 0: "
				  "expected 4000 bytes, f32"
				: "gave 4004 bytes of initial values, f32, for chunk 0"));
		check_next_gives(&rig, g);
	}
}

/* The giver says that it is busy, as it would while it waits for another server. */
static void test_a_giver_that_sends_nothing_is_lost(void **state)
{
	struct giver g[2];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	rig.server->opts.worker_timeout_ns = 200 * TERN_NS_PER_MS;
	for (unsigned i = 0; i < 2; i++)
		open_giver(&rig, &g[i], given_job(&rig, &two, 1, 0), i);
	run_until(&rig, &g[0].v.gives);
	while (!rig.server->workers[0]->lost) {
		tern_talk_say(&g[0].v.talk, json_pack("{s:s}", "type", "busy"));
		run_a_while(&rig);
	}
	run_until(&rig, &g[1].v.gives);
	rig.server->opts.worker_timeout_ns = 30 * TERN_NS_PER_S;
	assert_non_null(strstr(rig.server->first_loss,
		"has made no progress for 0.2 s (--worker-timeout), and others wait for "
		"the initial values that it gives"));
	check_next_gives(&rig, g);
}

static void test_if_nobody_can_give_the_job_fails(void **state)
{
	struct giver g[2];
	struct rig rig;

	(void)state;
	open_two(&rig, g, &two);
	tern_vector(&g[0].values)[0] = tern_vector(&g[1].values)[0] = NAN;
	give_all(&rig, &g[0]);
	give_all(&rig, &g[1]);
	run_until(&rig, &rig.ended);
	assert_non_null(strstr(rig.text, "no worker is left: "));
	assert_non_null(strstr(rig.text, "value 0 of tensor w0"));
	assert_false(g[0].came && g[0].version.status == 0);
	assert_false(g[1].came && g[1].version.status == 0);
	close_two(&rig, g);
}

/* ---- messages that come too early ---- */

/* Worker 1 says something that belongs to the steps: it is refused or lost, and worker 0
 * can still give. */
static void check_too_early(
	const struct tern_ps_job *like, const char *message, const char *text)
{
	struct giver g[2];
	struct rig rig;

	open_two(&rig, g, like);
	run_until(&rig, &g[0].v.gives);
	tern_talk_say(&g[1].v.talk, json_loads(message, 0, NULL));
	run_until(&rig, &rig.server->workers[1]->lost);
	assert_true(strstr(rig.noted, text) || strstr(rig.server->first_loss, text));
	give_all(&rig, &g[0]);
	check_version(&rig, &g[0], 0);
	assert_false(g[1].came && g[1].version.status == 0);
	close_two(&rig, g);
}

static void test_no_step_is_taken_before_version_0(void **state)
{
	const struct tern_ps_job none = {.slots = 2, .workers = 2};

	(void)state;
	check_too_early(&two,
		"{\"type\":\"take\",\"slot\":0,\"version\":0,\"generation\":1}",
		"its message \"take\" came before the steps began");
	check_too_early(&async, "{\"type\":\"pull\"}",
		"its message \"pull\" came before the steps began");
	check_too_early(
		&two, "{\"type\":\"bye\"}", "it said goodbye before the last step");
	/* A job without steps. */
	check_too_early(
		&none, "{\"type\":\"bye\"}", "it said goodbye before the last step");
}

/* A worker without a slot is given one while version 0 is not complete, and asks for all
 * versions: it gets version 0 when everybody does. */
static void test_a_spare_worker_gets_no_unfinished_version(void **state)
{
	const struct tern_ps_job one = {.steps = 1, .slots = 1, .workers = 2};
	struct giver g[2];
	struct rig rig;

	(void)state;
	open_two(&rig, g, &one);
	run_until(&rig, &g[0].v.gives);
	tern_peer_free(g[0].v.peer);
	run_until(&rig, &g[1].v.gives);
	tern_talk_say(
		&g[1].v.talk, json_pack("{s:s, s:i}", "type", "follow", "version", 0));
	while (!rig.server->workers[1]->follows)
		step(&rig);
	run_a_while(&rig);
	assert_false(g[1].came);
	check_next_gives(&rig, g);
}

/* ---- several servers ---- */

/* A visitor plays server 1, and says what it has. */
static void open_second_server(struct rig *rig, struct visitor *v)
{
	visit(rig, v);
	tern_talk_say(
		&v->talk, json_pack("{s:s, s:i, s:o, s:s}", "type", "peer", "server", 1,
				  "job", given_job(rig, &two, 2, 0), "arithmetic", ""));
}

static void say_given(struct visitor *v, int worker)
{
	tern_talk_say(
		&v->talk, json_pack("{s:s, s:i}", "type", "given", "worker", worker));
}

static void open_pair(struct rig *rig, struct giver *g, struct visitor *second)
{
	open_rig(rig);
	for (unsigned i = 0; i < 2; i++) {
		open_giver(rig, &g[i], given_job(rig, &two, 2, 0), i);
		run_until(rig, &g[i].v.welcome);
	}
	open_second_server(rig, second);
}

static void check_described(const struct rig *rig, const char *words)
{
	char text[400];

	tern_server_describe(rig->server, text, sizeof(text));
	assert_non_null(strstr(text, words));
}

/* Worker 1 gives server 0 all values then. */
static void lose_worker_0(struct rig *rig, struct giver *g)
{
	tern_peer_free(g[0].v.peer);
	give_all(rig, &g[1]);
	while (rig->server->given.state != GIVEN_HERE)
		step(rig);
}

/* The steps begin when server 1 (`second`) has the values of worker 1, too. */
static void check_values_of_worker_1_count(
	struct rig *rig, struct giver *g, struct visitor *second)
{
	run_a_while(rig);
	assert_false(g[1].came || second->begins);
	say_given(second, 1);
	run_until(rig, &second->begins);
	check_version(rig, &g[1], 1);
	close_two(rig, g);
}

static void test_the_steps_begin_when_all_servers_have_the_values(void **state)
{
	struct visitor second;
	struct giver g[2];
	struct rig rig;

	(void)state;
	open_pair(&rig, g, &second);
	run_until(&rig, &g[0].v.gives);
	check_described(&rig, "for the initial values that it gives");
	give_all(&rig, &g[0]);
	run_until(&rig, &g[0].sent[2]);
	while (rig.server->given.state != GIVEN_HERE)
		step(&rig);
	run_a_while(&rig);
	assert_false(g[0].came || second.begins);
	check_described(&rig, "waits for other servers to have the initial values");
	/* Worker 0 is lost before server 1 has its values: all servers take those of
	 * worker 1, and what server 1 says about worker 0 counts no more. */
	lose_worker_0(&rig, g);
	say_given(&second, 0);
	check_values_of_worker_1_count(&rig, g, &second);
}

/* Server 1 has the values of worker 0, and server 0 has only those of worker 1. */
static void test_values_of_a_lost_worker_count_no_more(void **state)
{
	struct visitor second;
	struct giver g[2];
	struct rig rig;

	(void)state;
	open_pair(&rig, g, &second);
	run_until(&rig, &g[0].v.gives);
	say_given(&second, 0);
	run_until(&rig, &rig.server->given.has[1]);
	lose_worker_0(&rig, g);
	check_values_of_worker_1_count(&rig, g, &second);
}

static void test_a_report_that_cannot_be_ends_the_job(void **state)
{
	static const char *const wrong[] = {"{\"type\":\"given\"}",
		"{\"type\":\"given\",\"worker\":2}", "{\"type\":\"given\",\"worker\":-1}",
		"{\"type\":\"given\",\"worker\":0.0}"};

	(void)state;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(wrong); i++) {
		struct visitor second;
		struct giver g[2];
		struct rig rig;

		open_pair(&rig, g, &second);
		run_until(&rig, &g[0].v.gives);
		tern_talk_say(&second.talk, json_loads(wrong[i], 0, NULL));
		run_until(&rig, &rig.ended);
		assert_non_null(strstr(rig.text,
			"sent a message \"given\" about initial values: expected it of a "
			"job that has given values and has begun, with a worker from 0 "
			"to 1"));
		close_two(&rig, g);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			test_the_lowest_worker_gives_before_anybody_gets_version_0),
		cmocka_unit_test(test_a_worker_with_other_values_is_refused),
		cmocka_unit_test(test_if_the_giver_is_lost_the_next_one_gives_everything),
		cmocka_unit_test(test_a_giver_of_values_that_are_no_numbers_is_lost),
		cmocka_unit_test(test_a_giver_of_too_few_or_too_many_values_is_lost),
		cmocka_unit_test(test_a_giver_that_sends_nothing_is_lost),
		cmocka_unit_test(test_if_nobody_can_give_the_job_fails),
		cmocka_unit_test(test_no_step_is_taken_before_version_0),
		cmocka_unit_test(test_a_spare_worker_gets_no_unfinished_version),
		cmocka_unit_test(test_the_steps_begin_when_all_servers_have_the_values),
		cmocka_unit_test(test_values_of_a_lost_worker_count_no_more),
		cmocka_unit_test(test_a_report_that_cannot_be_ends_the_job),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
