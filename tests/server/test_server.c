/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a single server: with jobs that do not fit into memory, and with workers that
 * violate the protocol. */
#include "server/membership.h"
#include "tests/server/server_bed.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "rendezvous/rendezvous.h"
#include "transport/context.h"

/* ---- creating the server's chunks ---- */

static int (*chunk_new)(struct tern_updater *u, const struct tern_updater_opts *opts,
	struct tern_updater_chunk **out);
static atomic_bool may_be_made;

static int slow_chunk_new(struct tern_updater *u, const struct tern_updater_opts *opts,
	struct tern_updater_chunk **out)
{
	for (int i = 0; i < 1000 && !may_be_made; i++)
		usleep(1000);
	return chunk_new(u, opts, out);
}

static bool has_both(const struct tern_server *s)
{
	return s->workers && s->workers[0] && s->workers[1];
}

/* Gives the tensors of a job one kind of initial values after another. */
static json_t *with_initial_values(json_t *job)
{
	size_t i;
	json_t *tensor;

	json_array_foreach(json_object_get(job, "params"), i, tensor)
	{
		json_object_set_new(tensor, "init",
			json_string(tern_init_name((enum tern_init)(i % 4))));
		json_object_set_new(tensor, "a", json_real(-0.5));
		json_object_set_new(tensor, "b", json_real(2));
	}
	return job;
}

static void check_initial_values(unsigned tensors, uint64_t count)
{
	const struct tern_ps_job like = {.slots = 1, .workers = 1, .seed = 9};
	float *expected = malloc(tensors * count * sizeof(*expected));
	struct visitor v;
	struct rig rig;

	open_rig(&rig);
	visit(&rig, &v);
	say_join(&v, with_initial_values(job_of(&rig, &like, tensors, count, 1)), 0);
	run_until(&rig, &v.welcome);
	assert_int_equal(rig.server->job.param_count, tensors);
	for (unsigned i = 0; i < tensors; i++)
		tern_param_init(
			&rig.server->job.params[i], 9, 0, count, expected + i * count);
	for (uint32_t i = 0; i < rig.server->chunk_count; i++) {
		const struct chunk *c = &rig.server->chunks[i];

		assert_memory_equal(tern_vector(&c->w[0]), expected + c->plan->first,
			c->plan->count * sizeof(*expected));
	}
	free(expected);
	stop_and_close(&rig);
}

/* Chunks of several tensors, tensors of several chunks, and both of the same size. */
static void test_chunks_have_the_initial_values_of_their_tensors(void **state)
{
	(void)state;
	check_initial_values(150, 997);
	check_initial_values(3, 30011);
	check_initial_values(10, 4096);
	check_initial_values(1, 1);
}

static void test_workers_join_while_the_shard_is_made(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	uint64_t limit = tern_clock_ns() + 20 * TERN_NS_PER_S;
	struct tern_updater_ops slow;
	struct visitor v[2];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	slow = *rig.updater->ops;
	chunk_new = slow.chunk_new;
	slow.chunk_new = slow_chunk_new;
	rig.updater->ops = &slow;
	for (unsigned i = 0; i < 2; i++)
		join(&rig, &v[i], &job, 10000, i);
	while (!has_both(rig.server) && tern_clock_ns() < limit)
		step(&rig);
	assert_true(has_both(rig.server));
	assert_int_equal(rig.server->joined_count, 0);
	may_be_made = true;
	for (unsigned i = 0; i < 2; i++)
		run_until(&rig, &v[i].welcome);
	assert_true(rig.server->running);
	stop_and_close(&rig);
}

/* ---- the start in async mode ---- */

static struct tern_task *held_task;

static int hold_task(struct tern_env *env, struct tern_task *task)
{
	(void)env;
	held_task = task;
	return 0;
}

static void has_come(struct tern_req *req)
{
	assert_int_equal(req->status, 0);
	*(bool *)req->arg = true;
}

/* The first copies of the parameters must be made in tasks (other threads): on the
 * context's thread, the server could answer no message meanwhile. */
static void test_the_first_copies_of_async_mode_are_made_in_tasks(void **state)
{
	const struct tern_ps_job job = {
		.mode = TERN_MODE_ASYNC, .slots = 2, .workers = 2};
	struct tern_channel *channel;
	struct tern_req req[2];
	struct visitor v[2];
	bool came[2] = {0};
	struct tern_env_ops holding;
	const struct tern_env_ops *ops;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	join_well(&rig, &v[0], &job, 0);
	assert_int_equal(rig.server->chunk_count, 1);
	ops = rig.at.env->ops;
	holding = *ops;
	holding.submit = hold_task;
	rig.at.env->ops = &holding;
	join_well(&rig, &v[1], &job, 1);
	assert_true(rig.server->running);
	assert_non_null(held_task);
	for (unsigned i = 0; i < 2; i++)
		assert_false(rig.server->chunks[0].streams[i].sending);
	for (unsigned i = 0; i < 2; i++) {
		req[i] = (struct tern_req){.done = has_come, .arg = &came[i]};
		assert_int_equal(
			tern_channel_open(v[i].peer, TERN_PS_CHANNEL_DATA, &channel), 0);
		assert_int_equal(tern_recv(channel, &req[i], tern_key("parameter/0"), 0,
					 NULL, NULL, TERN_RECV_ALLOC),
			0);
	}
	rig.at.env->ops = ops;
	assert_int_equal(tern_env_submit(rig.at.env, held_task), 0);
	for (unsigned i = 0; i < 2; i++) {
		run_until(&rig, &came[i]);
		assert_int_equal(req[i].bytes, 1000 * sizeof(float));
		assert_memory_equal(
			req[i].data, chunk_w(&rig.server->chunks[0], 0), req[i].bytes);
		tern_release(&req[i]);
	}
	assert_int_equal(rig.server->chunks[0].version, 0);
	assert_int_equal(rig.server->stats.gradients_added, 0);
	stop_and_close(&rig);
}

/* ---- gradients ---- */

static void has_gone(struct tern_req *req)
{
	*(bool *)req->arg = true;
}

/* Sends a gradient of this shape to a server whose job has one worker and one parameter of
 * 1,000 elements, which is pushed as bf16 if `bf16`. `told`: the reason with which the server must end; NULL: the server must
 * apply the gradient. */
static void send_first_gradient(
	enum tern_mode mode, bool bf16, struct tern_shape shape, const char *told)
{
	struct tern_param types = {.push_bf16 = bf16};
	const struct tern_ps_job job = {
		.mode = mode, .slots = 1, .workers = 1, .params = &types};
	struct tern_tensor tensor = {.shape = shape};
	bool came = false, gone = false;
	uint64_t bytes;
	struct tern_req version = {.done = has_come, .arg = &came};
	struct tern_req gradient = {.done = has_gone, .arg = &gone};
	struct tern_channel *channel;
	struct visitor v;
	struct rig rig;

	open_rig(&rig);
	assert_int_equal(tern_shape_bytes(&shape, &bytes), 0);
	assert_int_equal(tern_pool_get(rig.pool, bytes, &tensor.buf), 0);
	memset(tern_buf_ptr(&tensor.buf), 0, tensor.buf.bytes);
	join_well(&rig, &v, &job, 0);
	assert_int_equal(tern_channel_open(v.peer, TERN_PS_CHANNEL_DATA, &channel), 0);
	assert_int_equal(tern_recv(channel, &version, tern_key("parameter/0"), 0, NULL,
				 NULL, TERN_RECV_ALLOC),
		0);
	run_until(&rig, &came);
	tern_release(&version);
	assert_int_equal(tern_send(channel, &gradient, tern_key("gradient/0"), 0, &tensor,
				 NULL, 0),
		0);
	if (told) {
		run_until(&rig, &rig.ended);
		assert_non_null(strstr(rig.text, told));
	} else {
		run_until(&rig, &gone);
		while (rig.server->stats.gradients_added == 0 && !rig.ended)
			step(&rig);
		assert_false(rig.ended);
	}
	tern_pool_put(rig.pool, &tensor.buf);
	close_rig(&rig);
}

static void test_only_a_gradient_of_the_right_type_and_size_is_applied(void **state)
{
	const struct tern_shape right = tern_shape_1d(TERN_F32, 1000);
	const struct tern_shape bytes = tern_shape_1d(TERN_U8, 4000);
	const struct tern_shape half = tern_shape_1d(TERN_BF16, 1000);
	const enum tern_mode modes[] = {TERN_MODE_SYNC, TERN_MODE_ASYNC};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		send_first_gradient(modes[i], false, right, NULL);
		send_first_gradient(modes[i], false, bytes,
			"worker 0 sent a gradient of 4000 bytes, u8, for chunk 0: "
			"expected 4000 bytes, f32");
		send_first_gradient(modes[i], true, half, NULL);
		send_first_gradient(modes[i], true, right,
			"worker 0 sent a gradient of 4000 bytes, f32, for chunk 0: "
			"expected 2000 bytes, bf16");
		send_first_gradient(modes[i], false, half,
			"worker 0 sent a gradient of 2000 bytes, bf16, for chunk 0: "
			"expected 4000 bytes, f32");
	}
}

/* An updater like the rig's, but without what bf16 needs, as that of a GPU. */
static void test_bf16_is_refused_where_the_updater_lacks_it(void **state)
{
	struct tern_param types[2] = {{.push_bf16 = true}, {.pull_bf16 = true}};
	static const char *const words[] = {"push", "pull"};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		const struct tern_ps_job job = {
			.slots = 1, .workers = 1, .params = &types[i]};
		struct tern_updater_ops ops;
		char expected[100];
		struct visitor v;
		struct rig rig;

		open_rig(&rig);
		ops = *rig.updater->ops;
		ops.narrow = NULL;
		rig.updater->ops = &ops;
		join(&rig, &v, &job, 1000, 0);
		refused_alone(&rig, &v);
		snprintf(expected, sizeof(expected),
			"tensor w0: %s: expected f32, got bf16: this server updates "
			"parameters on the CPU",
			words[i]);
		assert_non_null(strstr(v.text, expected));
		close_rig(&rig);
	}
}

/* ---- jobs that need too much memory ---- */

static void test_a_worker_hears_what_there_is_no_room_for(void **state)
{
	const struct tern_ps_job job = {
		.mode = TERN_MODE_ASYNC, .slots = 4096, .workers = 4096};
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	join(&rig, &v, &job, 4u << 20, 0);
	refused_alone(&rig, &v);
	assert_non_null(strstr(v.text, "share of them has 16777216 bytes"));
	assert_non_null(strstr(v.text, "and it keeps 8193 copies"));
	assert_non_null(strstr(v.text, "it can hold 68719476736 bytes"));
	close_rig(&rig);
}

static void test_a_share_must_fit_into_the_memory_of_the_host(void **state)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	rig.server->opts.memory_bytes = 1u << 20;
	join(&rig, &v, &job, 1u << 18, 0);
	refused_alone(&rig, &v);
	assert_non_null(strstr(v.text, "it can hold 1048576 bytes"));
	close_rig(&rig);
}

/* The server adopts the job, and begins to make its chunks. Memory is made slab by slab, so the
 * test takes little of it. */
static void test_a_share_may_have_more_than_2_32_elements(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	const uint64_t count = 4300000000;
	const struct tern_server *s;
	const struct chunk *last;
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	s = rig.server;
	join(&rig, &v, &job, count, 0);
	while (s->made_count < 3)
		step(&rig);
	assert_int_equal(s->chunk_count, (count + (1u << 18) - 1) >> 18);
	last = &s->chunks[s->chunk_count - 1];
	assert_true(last->plan->first > UINT32_MAX);
	assert_true(last->plan->first + last->plan->count == count);
	/* Two gradients are held at a time. */
	assert_true(s->staging_most == 2 * count * sizeof(float));
	assert_int_equal(s->chunks[2].plan->first, 2u << 18);
	assert_true(chunk_w(&s->chunks[2], 0)[(1u << 18) - 1] == 0);
	stop_and_close(&rig);
}

/* Two versions of the parameters fit into memory, but not the mean gradient in
 * addition. */
static void test_what_an_update_keeps_must_fit_as_well(void **state)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1, .clip_norm = 1};
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	rig.server->opts.memory_bytes = 5u << 19;
	join(&rig, &v, &job, 1u << 18, 0);
	refused_alone(&rig, &v);
	assert_non_null(strstr(v.text, "it keeps 3 copies"));
	close_rig(&rig);
}

/* The job would have about 190 million chunks. Their list alone would take some GB and
 * minutes, so the job must be refused before the list is made. */
static void test_a_job_of_absurd_size_is_refused_before_anything_is_made(void **state)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	visit(&rig, &v);
	say_join(&v, job_of(&rig, &job, 180, 1ull << 38, 1), 0);
	refused_alone(&rig, &v);
	assert_non_null(strstr(v.text, "no room for the parameters"));
	close_rig(&rig);
}

/* The server has no memory for the data of the gradient's norm, since its staging pool is
 * full: it must refuse the job, and keep nothing of it. */
static void test_a_job_that_cannot_be_taken_leaves_nothing(void **state)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1, .clip_norm = 1};
	struct tern_buf all;
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	tern_pool_free(rig.server->staging);
	assert_int_equal(
		tern_pool_new(rig.at.domain, &(struct tern_pool_opts){.slab_bytes = 4096},
			&rig.server->staging),
		0);
	assert_int_equal(tern_pool_get(rig.server->staging, 4096, &all), 0);
	join(&rig, &v, &job, 1000, 0);
	refused_alone(&rig, &v);
	assert_non_null(strstr(v.text, "no room for the parameters"));
	tern_pool_put(rig.server->staging, &all);
	close_rig(&rig);
}

/* ---- a worker that is refused ---- */

/* A worker that is refused by one server tells all its servers that it fails. This server
 * must continue. */
static void test_a_worker_is_refused_with_one_sentence(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	struct visitor v[2];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	join_well(&rig, &v[0], &job, 0);
	join(&rig, &v[1], &job, 1000, 0);
	run_until(&rig, &v[1].refused);
	assert_string_equal(v[1].text, "worker 0 has joined already");
	tern_talk_say(
		&v[1].talk, json_pack("{s:s, s:s}", "type", "abort", "text", v[1].text));
	tern_peer_close(v[1].peer);
	run_until(&rig, &v[1].down);
	assert_int_equal(rig.refusals, 1);
	assert_false(rig.server->over);
	close_rig(&rig);
}

static void test_a_worker_joins_once(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	join(&rig, &v, &job, 1000, 0);
	run_until(&rig, &v.welcome);
	say_join(&v, job_of(&rig, &job, 1, 1000, 1), 0);
	run_until(&rig, &v.refused);
	assert_string_equal(v.text, "it has joined already, as worker 0");
	assert_false(rig.server->over);
	close_rig(&rig);
}

static void say(struct visitor *v, const char *text)
{
	tern_talk_say(&v->talk, json_loads(text, 0, NULL));
}

/* Opens a job of two workers, loses worker 0, and makes two processes want its place. */
static void open_with_two_that_come(struct rig *rig, const struct tern_ps_job *job,
	struct visitor *v, struct visitor *again)
{
	open_with_workers(rig, v, job);
	tern_peer_close(v[0].peer);
	run_until(rig, &rig->server->workers[0]->lost);
	join(rig, &again[0], job, 1000, 0);
	join(rig, &again[1], job, 1000, 0);
	run_until(rig, &again[1].refused);
}

static void test_one_worker_may_come_in_the_place_of_a_lost_one(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	struct visitor v[2], again[2];
	struct rig rig;

	(void)state;
	open_with_two_that_come(&rig, &job, v, again);
	assert_string_equal(again[1].text, "worker 0 has joined already");
	assert_true(again[0].welcome);
	assert_true(rig.server->workers[0]->lost);
	/* The job's only step needs nobody any more. */
	say(&again[0], "{\"type\":\"ready\"}");
	run_until(&rig, &again[0].refused);
	assert_string_equal(
		again[0].text, "the job is about to end: no worker is needed any more");
	assert_false(rig.server->over);
	close_rig(&rig);
}

static void test_in_async_mode_nobody_comes_for_a_lost_worker(void **state)
{
	const struct tern_ps_job job = {
		.slots = 2, .workers = 2, .mode = TERN_MODE_ASYNC};
	struct visitor v[2], again[2];
	struct rig rig;

	(void)state;
	open_with_two_that_come(&rig, &job, v, again);
	run_until(&rig, &again[0].refused);
	assert_string_equal(again[0].text, "worker 0 of this job was lost: in async mode "
					   "the job goes on without it, "
					   "and no new worker can take its place");
	close_rig(&rig);
}

/* Messages that a server refuses: from a worker that was not let in yet, and from one none of
 * whose slots was moved. */
static void test_nothing_untimely_is_believed(void **state)
{
	static const char *const texts[] = {
		"{\"type\":\"ready\"}",
		"{\"type\":\"gave\",\"version\":1,\"slots\":[[0,1]]}",
		"{\"type\":\"paused\"}",
		"{\"type\":\"pause\",\"version\":3}",
	};
	const struct tern_ps_job job = {.slots = 2, .workers = 2};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(texts); i++) {
		struct visitor v[2], again[2];
		struct rig rig;

		open_with_workers(&rig, v, &job);
		say(&v[0], texts[i]);
		run_until(&rig, &v[0].refused);
		close_rig(&rig);
		if (i == 0)
			continue;
		open_with_two_that_come(&rig, &job, v, again);
		say(&again[0], texts[i]);
		run_until(&rig, &again[0].refused);
		assert_non_null(
			strstr(again[0].text, "which a worker that is not let in yet "
					      "does not send"));
		assert_false(rig.server->over);
		close_rig(&rig);
	}
}

static void test_a_goodbye_before_the_start_makes_room_for_another(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	struct visitor v, again;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	join_well(&rig, &v, &job, 0);
	say_bye(&v);
	run_until(&rig, &v.down);
	join_well(&rig, &again, &job, 0);
	assert_int_equal(rig.server->bye_count, 0);
	close_rig(&rig);
}

/* The start waits for a worker whose connection was lost. */
static void test_the_steps_begin_when_all_are_connected(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	struct visitor v[2];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	join_well(&rig, &v[0], &job, 0);
	rig.server->workers[0]->unlinked = true;
	join_well(&rig, &v[1], &job, 1);
	assert_false(rig.server->running);
	rig.server->workers[0]->unlinked = false;
	start_on_recovered(rig.server);
	assert_true(rig.server->running);
	stop_and_close(&rig);
}

/* A worker that was killed keeps its place until its connection is given up. Whoever asks
 * for the place meanwhile, or for another job, is asked to come back. */
static void test_the_place_of_a_lost_worker_may_become_free(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	const struct tern_ps_job other = {.slots = 4, .workers = 2};
	struct visitor v, same, different;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	join_well(&rig, &v, &job, 0);
	rig.server->workers[0]->unlinked = true;
	join(&rig, &same, &job, 1000, 0);
	join(&rig, &different, &other, 1000, 1);
	run_until(&rig, &same.again);
	run_until(&rig, &different.again);
	assert_false(same.welcome || different.welcome);
	/* The first worker has come back. */
	rig.server->workers[0]->unlinked = false;
	say_join(&same, job_of(&rig, &job, 1, 1000, 1), 0);
	say_join(&different, job_of(&rig, &other, 1, 1000, 1), 1);
	run_until(&rig, &same.refused);
	run_until(&rig, &different.refused);
	assert_non_null(strstr(same.text, "worker 0 has joined already"));
	assert_non_null(strstr(different.text, "slots"));
	close_rig(&rig);
}

static void test_the_place_of_a_worker_that_may_be_lost_is_free_soon(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	struct visitor v[2], again;
	struct rig rig;

	(void)state;
	open_with_workers(&rig, v, &job);
	rig.server->workers[0]->unlinked = true;
	join(&rig, &again, &job, 1000, 0);
	run_until(&rig, &again.again);
	stop_and_close(&rig);
}

/* While a server ends it refuses connections, and the workers of the next job try on. */
static void test_an_ending_server_lets_nobody_in(void **state)
{
	struct visitor before, late;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	visit(&rig, &before);
	until_peers(&rig, 1);
	tern_server_stop(rig.server, "enough", false);
	visit(&rig, &late);
	run_until(&rig, &rig.ended);
	for (uint64_t limit = tern_clock_ns() + 20 * TERN_NS_PER_S;
		late.peer->cause != -ECONNREFUSED && tern_clock_ns() < limit;)
		step(&rig);
	assert_int_equal(late.peer->cause, -ECONNREFUSED);
	assert_true(before.refused);
	assert_false(late.refused || late.down);
	close_rig(&rig);
}

static void test_a_goodbye_before_the_last_step_is_a_loss(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	struct visitor v[2];
	struct rig rig;

	(void)state;
	open_with_workers(&rig, v, &job);
	say_bye(&v[0]);
	run_until(&rig, &rig.server->workers[0]->lost);
	assert_int_equal(rig.server->bye_count, 0);
	assert_false(rig.server->over);
	close_rig(&rig);
}

static void test_a_server_for_a_number_of_workers_refuses_another(void **state)
{
	const struct tern_ps_job three = {.slots = 3, .workers = 3},
				 two = {.slots = 2, .workers = 2};
	struct visitor v[2];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	rig.server->opts.workers = 2;
	join(&rig, &v[0], &three, 1000, 0);
	run_until(&rig, &v[0].refused);
	assert_non_null(strstr(v[0].text, "describes a job of 3, and this server was "
					  "started for 2 (--workers)"));
	join_well(&rig, &v[1], &two, 0);
	stop_and_close(&rig);
}

/* The launcher has one worker, which comes 9 s after an added one was here. Another added one has not come. */
static void test_added_workers_have_a_second_after_the_others(void **state)
{
	const struct tern_ps_job two = {.slots = 2, .workers = 2};
	struct tern_server *s;
	struct visitor v;
	uint64_t now_ns;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	s = rig.server;
	s->opts.returns = true;
	s->opts.absent_ns = 10 * TERN_NS_PER_S;
	join_well(&rig, &v, &two, 0);
	now_ns = tern_now_ns(s->env);
	assert_true(s->absent_timer.due_ns > now_ns + 8 * TERN_NS_PER_S);
	s->absent_since_ns = now_ns - 9 * TERN_NS_PER_S;
	s->opts.workers = 1;
	start_count_absent(s);
	assert_true(s->absent_timer.due_ns > now_ns + TERN_NS_PER_S / 2);
	s->absent_since_ns = now_ns;
	start_count_absent(s);
	assert_true(s->absent_timer.due_ns < now_ns + 5 * TERN_NS_PER_S);
	stop_and_close(&rig);
}

/* ---- what workers say of their progress ---- */

static void test_losses_and_metrics_of_workers_are_kept(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	const struct tern_metric *list;
	struct visitor v[2];
	struct rig rig;

	(void)state;
	open_with_workers(&rig, v, &job);
	list = rig.server->metrics.list;
	say(&v[0], "{\"type\":\"progress\",\"step\":1,\"loss\":0.5,\"weight\":2,"
		   "\"metrics\":[[\"a\",1.5,1],[\"b\",\"nan\",1]]}");
	while (rig.server->metrics.count < 2)
		step(&rig);
	/* This worker is behind the other one, so its value of `a` is older. */
	say(&v[1], "{\"type\":\"progress\",\"step\":0,"
		   "\"metrics\":[[\"a\",7,0],[\"c\",-1,0]]}");
	while (rig.server->metrics.count < 3)
		step(&rig);
	assert_true(list[0].value == 1.5 && list[0].step == 1);
	assert_true(isnan(list[1].value) && list[2].value == -1);
	assert_true(rig.server->workers[0]->loss == 0.5);
	assert_true(rig.server->workers[0]->loss_weight == 2);
	assert_true(rig.server->workers[1]->loss_weight == 0);
	stop_and_close(&rig);
}

static void test_a_malformed_progress_is_refused(void **state)
{
	static const char *const texts[] = {"\"loss\":1", "\"weight\":1",
		"\"loss\":1,\"weight\":0", "\"loss\":1,\"weight\":-1",
		"\"loss\":\"x\",\"weight\":1", "\"metrics\":{}", "\"metrics\":[1]",
		"\"metrics\":[[\"a\",1]]", "\"metrics\":[[\"a b\",1,1]]",
		"\"metrics\":[[\"a\",\"x\",1]]", "\"metrics\":[[\"a\",1,-1]]",
		"\"metrics\":[[\"a\",1,1.5]]", "\"metrics\":[[\"a\",1,2]]",
		"\"metrics\":[[\"\\u001b[m\",1,1]]"};
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	char text[120];

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(texts); i++) {
		struct visitor v[2];
		struct rig rig;

		open_with_workers(&rig, v, &job);
		snprintf(text, sizeof(text), "{\"type\":\"progress\",\"step\":1,%s}",
			texts[i]);
		say(&v[0], text);
		run_until(&rig, &v[0].refused);
		assert_non_null(strstr(v[0].text, "\"progress\" is malformed: expected"));
		assert_int_equal(rig.server->metrics.count, 0);
		close_rig(&rig);
	}
}

/* ---- workers that are asked to leave ---- */

/* If workers are asked to leave one after another, the server decides about a second
 * after the first of them has asked. */
static void test_a_later_leave_does_not_put_off_the_decision(void **state)
{
	const struct tern_ps_job job = {.slots = 3, .workers = 3};
	const struct tern_timer *timer;
	struct visitor v[3];
	uint64_t due_ns = 0;
	struct rig rig;

	(void)state;
	open_with_workers(&rig, v, &job);
	timer = &rig.server->leave_timer;
	for (unsigned i = 0; i < 2; i++) {
		tern_talk_say(&v[i].talk, json_pack("{s:s}", "type", "leave"));
		while (!rig.server->workers[i]->leaving)
			step(&rig);
		assert_true(timer->place);
		assert_true(i == 0 || timer->due_ns == due_ns);
		due_ns = timer->due_ns;
	}
	stop_and_close(&rig);
}

/* ---- requests that fail ---- */

/* The worker has no memory for a new version of the parameters. It would wait for ever,
 * and so would all others, so it must be lost. */
static void test_a_worker_that_refuses_a_version_is_lost(void **state)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	struct tern_pool_opts opts = {.slab_bytes = 4096};
	struct tern_channel *channel;
	struct tern_req req = {0};
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	assert_int_equal(tern_pool_new(rig.guests.domain, &opts, &rig.small), 0);
	join(&rig, &v, &job, 4u << 20, 0);
	tern_peer_set_opts(
		v.peer, &(struct tern_peer_opts){
				.event = visitor_event, .arg = &v, .pool = rig.small});
	assert_int_equal(tern_channel_open(v.peer, TERN_PS_CHANNEL_DATA, &channel), 0);
	assert_int_equal(tern_recv(channel, &req, tern_key("parameter/0"), 0, NULL, NULL,
				 TERN_RECV_ALLOC),
		0);
	run_until(&rig, &rig.ended);
	assert_int_equal(req.status, -ENOBUFS);
	assert_non_null(strstr(rig.text, "no worker is left"));
	assert_non_null(strstr(rig.text, "a tensor did not come through"));
	close_rig(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_chunks_have_the_initial_values_of_their_tensors),
		cmocka_unit_test(test_workers_join_while_the_shard_is_made),
		cmocka_unit_test(test_the_first_copies_of_async_mode_are_made_in_tasks),
		cmocka_unit_test(
			test_only_a_gradient_of_the_right_type_and_size_is_applied),
		cmocka_unit_test(test_bf16_is_refused_where_the_updater_lacks_it),
		cmocka_unit_test(test_a_worker_hears_what_there_is_no_room_for),
		cmocka_unit_test(test_a_share_must_fit_into_the_memory_of_the_host),
		cmocka_unit_test(test_a_share_may_have_more_than_2_32_elements),
		cmocka_unit_test(test_what_an_update_keeps_must_fit_as_well),
		cmocka_unit_test(
			test_a_job_of_absurd_size_is_refused_before_anything_is_made),
		cmocka_unit_test(test_a_job_that_cannot_be_taken_leaves_nothing),
		cmocka_unit_test(test_a_worker_is_refused_with_one_sentence),
		cmocka_unit_test(test_a_worker_joins_once),
		cmocka_unit_test(test_one_worker_may_come_in_the_place_of_a_lost_one),
		cmocka_unit_test(test_in_async_mode_nobody_comes_for_a_lost_worker),
		cmocka_unit_test(test_nothing_untimely_is_believed),
		cmocka_unit_test(test_a_goodbye_before_the_start_makes_room_for_another),
		cmocka_unit_test(test_the_steps_begin_when_all_are_connected),
		cmocka_unit_test(test_the_place_of_a_lost_worker_may_become_free),
		cmocka_unit_test(
			test_the_place_of_a_worker_that_may_be_lost_is_free_soon),
		cmocka_unit_test(test_an_ending_server_lets_nobody_in),
		cmocka_unit_test(test_a_goodbye_before_the_last_step_is_a_loss),
		cmocka_unit_test(test_a_server_for_a_number_of_workers_refuses_another),
		cmocka_unit_test(test_added_workers_have_a_second_after_the_others),
		cmocka_unit_test(test_losses_and_metrics_of_workers_are_kept),
		cmocka_unit_test(test_a_malformed_progress_is_refused),
		cmocka_unit_test(test_a_later_leave_does_not_put_off_the_decision),
		cmocka_unit_test(test_a_worker_that_refuses_a_version_is_lost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
