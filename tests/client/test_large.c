/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers of models whose sizes do not fit into 32 bits. The memory of such a model is made,
 * but hardly touched, so the tests need address space and little memory. A server that the
 * test plays sends and receives single chunks, of which the last ones lie beyond 16 GB.
 */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/session.h"
#include "client/worker_state.h"
#include "tools/host_env.h"

/* The largest model of a worker that has two slots in each step: four buffers of it fit into
 * a pool. */
#define MOST ((1ull << 32) - 1024)

struct end { /* one process, simulated within this one */
	struct tern_env *env;
	struct tern_domain *domain;
	struct tern_context *ctx;
};

/* The server that the test plays, and the session of one worker. */
struct rig {
	struct end at, guest;
	struct tern_listener *listener;
	struct tern_pool *pool;
	struct tern_talk talk;
	struct tern_channel *data;
	struct tern_session *session;
	uint64_t joined_elements; /* of the job that has joined */
	bool joined;
	unsigned ended_count; /* requests that have ended */
};

static void open_end(struct end *end)
{
	/* Huge pages would be touched when they are asked for. */
	const struct tern_domain_opts domain = {.no_hugepages = true};

	assert_int_equal(host_env_new(NULL, &end->env), 0);
	assert_int_equal(tern_domain_new(&domain, &end->domain), 0);
	assert_int_equal(tern_context_new_in(end->domain, NULL, end->env, &end->ctx), 0);
	/* A card that reads memory by itself would lock all of it. */
	if (tern_domain_pins_memory(end->domain)) {
		printf("skip: an RDMA device locks the memory\n");
		skip();
	}
}

static void close_end(struct end *end)
{
	tern_domain_free(end->domain);
	host_env_free(end->env);
}

static void heard(struct tern_talk *talk, const json_t *message)
{
	struct rig *rig = tern_container_of(talk, struct rig, talk);
	struct tern_ps_text why;
	struct tern_ps_job job;

	if (strcmp(tern_talk_type(message), "join") != 0)
		return;
	assert_int_equal(
		tern_ps_job_read(json_object_get(message, "job"), &job, &why), 0);
	rig->joined_elements = job.element_count;
	rig->joined = true;
	tern_ps_job_fini(&job);
}

static void broken(struct tern_talk *talk, int status)
{
	(void)talk;
	fail_msg("a request failed alone: %d", status);
}

static void event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	(void)peer;
	(void)status;
	if (event == TERN_PEER_DOWN)
		tern_talk_close(&((struct rig *)arg)->talk);
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct rig *rig = arg;

	tern_peer_set_opts(peer,
		&(struct tern_peer_opts){.event = event, .arg = rig, .pool = rig->pool});
	rig->talk = (struct tern_talk){
		.ctx = rig->at.ctx, .pool = rig->pool, .heard = heard, .broken = broken};
	assert_int_equal(tern_talk_open(&rig->talk, peer), 0);
	assert_int_equal(tern_channel_open(peer, TERN_PS_CHANNEL_DATA, &rig->data), 0);
}

static void open_rig(struct rig *rig)
{
	*rig = (struct rig){0};
	open_end(&rig->at);
	open_end(&rig->guest);
	assert_int_equal(tern_pool_new(rig->at.domain, NULL, &rig->pool), 0);
	assert_int_equal(tern_listen(rig->at.ctx, "tcp://127.0.0.1:0", NULL, on_accept,
				 rig, &rig->listener),
		0);
	assert_int_equal(tern_session_new(rig->guest.ctx,
				 &(struct tern_session_opts){
					 .join = tern_listener_address(rig->listener)},
				 &rig->session),
		0);
}

static void close_rig(struct rig *rig)
{
	host_env_stop(rig->at.env);
	host_env_stop(rig->guest.env);
	tern_context_free(rig->guest.ctx);
	tern_context_free(rig->at.ctx);
	tern_session_free(rig->session);
	tern_pool_free(rig->pool);
	close_end(&rig->guest);
	close_end(&rig->at);
}

static void step(struct rig *rig)
{
	if (tern_progress(rig->at.ctx) + tern_progress(rig->guest.ctx) == 0)
		usleep(50);
}

static void declare(struct rig *rig, const char *name, uint64_t count, bool bf16)
{
	uint32_t id;

	assert_int_equal(tern_session_tensor(rig->session,
				 &(struct tern_tensor_opts){.name = name,
					 .shape = tern_shape_1d(TERN_F32, count),
					 .push = bf16 ? TERN_BF16 : TERN_F32,
					 .pull = bf16 ? TERN_BF16 : TERN_F32},
				 &id),
		0);
}

/* Starts a job of one worker. Its size, and so its memory, follow from the tensors. */
static int start(struct rig *rig, uint32_t slots)
{
	return tern_session_start(rig->session,
		&(struct tern_job_opts){.workers = 1, .slots = slots, .steps = 5});
}

static void has_ended(struct tern_req *req)
{
	assert_int_equal(req->status, 0);
	((struct rig *)req->arg)->ended_count++;
}

/* ---- chunks at the end of a large model ---- */

/* Values of a chunk that bf16 has as well, and that no other chunk has. */
static float value_of(const struct tern_chunk *c, uint64_t i)
{
	return (float)(i % 251) * (c->pull_bf16 ? -1 : 1);
}

static void *bytes_of(const struct tern_chunk *c, struct tern_buf *buf, bool bf16)
{
	void *room = tern_buf_ptr(buf);

	for (uint64_t i = 0; i < c->count; i++) {
		float value = value_of(c, i);
		uint32_t bits;

		memcpy(&bits, &value, sizeof(bits));
		if (bf16)
			((uint16_t *)room)[i] = (uint16_t)(bits >> 16);
		else
			((float *)room)[i] = value;
	}
	return room;
}

static uint64_t wire_bytes(const struct tern_chunk *c, bool bf16)
{
	return c->count * (bf16 ? sizeof(uint16_t) : sizeof(float));
}

/* Sends a chunk of version 0, which must get to its place, and nowhere else: not to where it
 * would be if its offset had 32 bits. */
static void send_version(struct rig *rig, struct tern_worker *w, uint32_t chunk)
{
	const struct tern_chunk *c = &w->plan.chunks[chunk];
	const float *all = tern_vector(&w->w[0]);
	const float *elsewhere =
		all + (uint32_t)(c->first * sizeof(float)) / sizeof(float);
	struct tern_tensor tensor = {
		.shape = tern_shape_1d(c->pull_bf16 ? TERN_BF16 : TERN_F32, c->count)};
	struct tern_req req = {.done = has_ended, .arg = rig};
	uint64_t bytes = wire_bytes(c, c->pull_bf16);
	uint32_t missing = w->missing[0];
	unsigned ended = rig->ended_count;

	assert_true(c->first * sizeof(float) > 1ull << 32);
	assert_int_equal(tern_pool_get(rig->pool, bytes, &tensor.buf), 0);
	bytes_of(c, &tensor.buf, c->pull_bf16);
	assert_int_equal(
		tern_send(rig->data, &req, c->parameter_key, 0, &tensor, NULL, 0), 0);
	while (rig->ended_count == ended || w->missing[0] == missing)
		step(rig);
	for (uint64_t i = 0; i < c->count; i++) {
		assert_true(all[c->first + i] == value_of(c, i));
		assert_true(elsewhere[i] == 0);
	}
	tern_pool_put(rig->pool, &tensor.buf);
}

/* The worker's computer hands over a chunk of a gradient, which the server receives. */
static void receive_gradient(
	struct rig *rig, struct tern_worker *w, struct room *room, uint32_t chunk)
{
	const struct tern_chunk *c = &w->plan.chunks[chunk];
	struct tern_req req = {.done = has_ended, .arg = rig};
	uint64_t bytes = wire_bytes(c, c->push_bf16);
	float *values = malloc(c->count * sizeof(*values));
	struct tern_buf buf, expected;
	unsigned ended = rig->ended_count;

	assert_non_null(values);
	for (uint64_t i = 0; i < c->count; i++)
		values[i] = value_of(c, i);
	assert_int_equal(tern_pool_get(rig->pool, bytes, &buf), 0);
	assert_int_equal(tern_pool_get(rig->pool, bytes, &expected), 0);
	assert_int_equal(
		tern_recv(rig->data, &req, c->gradient_key, 0, &buf, NULL, 0), 0);
	tern_work_put(&room->work, c->first, c->count, values);
	tern_work_final(&room->work, c->first, c->count);
	while (rig->ended_count == ended || room->sends_out)
		step(rig);
	assert_int_equal(req.bytes, bytes);
	assert_int_equal(req.shape.dtype, c->push_bf16 ? TERN_BF16 : TERN_F32);
	assert_memory_equal(
		tern_buf_ptr(&buf), bytes_of(c, &expected, c->push_bf16), bytes);
	tern_pool_put(rig->pool, &buf);
	tern_pool_put(rig->pool, &expected);
	free(values);
}

static void test_the_last_chunks_of_four_billion_elements_move(void **state)
{
	static struct rig rig;
	struct tern_worker *w;
	uint32_t last, last_bf16;

	(void)state;
	open_rig(&rig);
	declare(&rig, "a", 1000000000, false);
	declare(&rig, "b", MOST - 1000000000 - 100016, true);
	/* These tensors are not of whole cache lines, so they are behind the others. */
	declare(&rig, "c", 100001, false);
	declare(&rig, "d", 15, false);
	assert_int_equal(start(&rig, 2), 0);
	w = session_worker(rig.session);
	assert_int_equal(w->room_count, 2);
	while (!rig.joined)
		step(&rig);
	assert_true(rig.joined_elements == MOST);
	tern_talk_say(
		&rig.talk, json_pack("{s:s, s:i}", "type", "welcome", "version", 0));
	last = w->plan.chunk_count - 1;
	last_bf16 = tern_plan_chunk_at(&w->plan, MOST - 100017);
	assert_int_equal(last_bf16, last - 1);
	assert_true(w->plan.chunks[last_bf16].push_bf16);
	assert_true(w->plan.chunks[last_bf16].bf16_first * sizeof(uint16_t) > 1ull << 32);
	send_version(&rig, w, last);
	send_version(&rig, w, last_bf16);
	/* Begins a slot without version 0, of which most is missing. */
	ready_begin(&w->ready);
	w->rooms[0].state = ROOM_COMPUTING;
	receive_gradient(&rig, w, &w->rooms[0], last);
	receive_gradient(&rig, w, &w->rooms[0], last_bf16);
	w->rooms[0].state = ROOM_IDLE;
	close_rig(&rig);
}

/* ---- the largest model ---- */

static void assert_refused(struct rig *rig, uint32_t slots, const char *expected)
{
	assert_int_equal(start(rig, slots), -E2BIG);
	assert_string_equal(tern_session_text(rig->session), expected);
	close_rig(rig);
}

static void test_one_element_beyond_the_limit_is_refused(void **state)
{
	static struct rig rig;

	(void)state;
	open_rig(&rig);
	declare(&rig, "a", MOST - 7, false);
	declare(&rig, "b", 8, false);
	assert_refused(&rig, 2,
		"no room for the model: its parameters have 17179865152 bytes, and this "
		"worker needs them 4 times (two versions, and the gradient of two "
		"slots); "
		"it can hold 68719476736 bytes");
}

/* With one slot for each step a worker needs three buffers: a third of the pool, less a page
 * of 64 KiB. */
static void test_a_worker_of_one_slot_may_have_more(void **state)
{
	const uint64_t slab = TERN_POOL_BYTES_MAX / 3 / 65536 * 65536;
	const uint64_t most = (slab - 4096) / sizeof(float);
	static struct rig rig;

	(void)state;
	open_rig(&rig);
	declare(&rig, "a", most, false);
	assert_int_equal(start(&rig, 1), 0);
	assert_true(most > 5700000000);
	close_rig(&rig);
	open_rig(&rig);
	declare(&rig, "a", most + 1, false);
	assert_refused(&rig, 1,
		"no room for the model: its parameters have 22906466368 bytes, and this "
		"worker needs them 3 times (two versions, and the gradient of one slot); "
		"it can hold 68719476736 bytes");
}

/* The list of chunks of this model alone would take gigabytes. */
static void test_an_absurd_model_is_refused_before_anything_is_made(void **state)
{
	static struct rig rig;
	char name[16];

	(void)state;
	open_rig(&rig);
	for (unsigned i = 0; i < 1000; i++) {
		snprintf(name, sizeof(name), "t%03u", i);
		declare(&rig, name, 1ull << 38, false);
	}
	assert_refused(&rig, 2,
		"no room for the model: its parameters have 1099511627776000 bytes, and "
		"this worker needs them 4 times (two versions, and the gradient of two "
		"slots); it can hold 68719476736 bytes");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_last_chunks_of_four_billion_elements_move),
		cmocka_unit_test(test_one_element_beyond_the_limit_is_refused),
		cmocka_unit_test(test_a_worker_of_one_slot_may_have_more),
		cmocka_unit_test(test_an_absurd_model_is_refused_before_anything_is_made),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
