/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of a server without a directory (server/remote.c, remote_part.c), which reads the
 * snapshot that server 0 begins with, and sends its parts to it: wrong answers end it,
 * and a lost connection does not. A visitor plays server 0.
 */
#include "server/store.h"
#include "tests/server/server_bed.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "rendezvous/rendezvous.h"

#define ELEMENTS    100000u /* of two servers */
#define CHUNKS_MOST 8u

static const struct tern_ps_job sync_job = {.steps = 100, .slots = 1, .workers = 1};

static struct { /* the visitor */
	struct tern_listener *listener;
	struct tern_peer *peer;
	struct tern_talk talk;
	const char *begins, *piece; /* its answers */
	struct tern_shape sends;    /* with `piece`; rank 0: no tensor */
	struct tern_req req;
	struct tern_buf buf;
	struct tern_pool *pool;
	struct tern_context *ctx;
	bool asked;          /* for a piece */
	uint64_t part_bytes; /* of the part that the server has announced; 0: none */
} zero;

static void zero_sends(void)
{
	struct tern_tensor t = {.shape = zero.sends};
	struct tern_channel *data;
	uint64_t bytes;

	assert_int_equal(tern_shape_bytes(&zero.sends, &bytes), 0);
	assert_int_equal(tern_channel_open(zero.peer, TERN_PS_CHANNEL_DATA, &data), 0);
	assert_int_equal(tern_pool_get(zero.pool, bytes, &zero.buf), 0);
	memset(tern_buf_ptr(&zero.buf), 0, bytes);
	t.buf = zero.buf;
	zero.req = (struct tern_req){0};
	assert_int_equal(
		tern_send(data, &zero.req, tern_key("snapshot/read"), 0, &t, NULL, 0), 0);
}

static void zero_heard(struct tern_talk *talk, const json_t *message)
{
	const char *type = tern_talk_type(message);

	if (strcmp(type, "begins") == 0)
		tern_talk_say(talk, json_loads(zero.begins, 0, NULL));
	if (strcmp(type, "peer") == 0)
		tern_talk_say(talk, json_pack("{s:s, s:i, s:i}", "type", "start",
					    "version", 0, "life", 1));
	if (strcmp(type, "part") == 0)
		zero.part_bytes =
			(uint64_t)json_integer_value(json_object_get(message, "bytes"));
	if (strcmp(type, "read") != 0)
		return;
	zero.asked = true;
	tern_talk_say(talk, json_loads(zero.piece, 0, NULL));
	if (zero.sends.rank)
		zero_sends();
}

static void zero_broken(struct tern_talk *talk, int status)
{
	(void)talk;
	(void)status;
}

static void zero_accepts(struct tern_peer *peer, void *arg)
{
	(void)arg;
	zero.peer = peer;
	zero.talk = (struct tern_talk){.ctx = zero.ctx,
		.pool = zero.pool,
		.heard = zero_heard,
		.broken = zero_broken};
	assert_int_equal(tern_talk_open(&zero.talk, peer), 0);
}

/* Lets the server ask the visitor. */
static void ask(struct rig *rig, const char *begins, const char *piece)
{
	const struct tern_peer_opts opts = {.name = "zero"};

	open_rig(rig);
	zero.begins = begins;
	zero.piece = piece;
	zero.pool = rig->pool;
	zero.ctx = rig->guests.ctx;
	assert_int_equal(tern_listen(rig->guests.ctx, "tcp://127.0.0.1:0", &opts,
				 zero_accepts, NULL, &zero.listener),
		0);
	rig->server->opts.index = 1;
	rig->server->opts.snapshots.via = tern_listener_address(zero.listener);
	assert_int_equal(resume_init(rig->server), 0);
	assert_true(resume_is_searching(rig->server));
}

#define BEGINS "{\"type\":\"begins\",\"step\":7,\"number\":1}"

static void test_wrong_answers_of_server_0_end_the_server(void **state)
{
	static const struct {
		const char *begins, *piece, *why;
	} cases[] = {
		{"{\"type\":\"begins\"}", "", "does not say with which snapshot"},
		{"{\"type\":\"begins\",\"step\":-1,\"number\":1}", "", "does not say"},
		{"{\"type\":\"begins\",\"step\":1,\"number\":4294967296}", "",
			"does not say"},
		{"{\"type\":\"piece\",\"at\":0,\"bytes\":1,\"all\":1}", "",
			"not asked for"},
		{"{\"type\":\"refused\",\"text\":\"so\"}", "", "so"},
		{BEGINS, "{\"type\":\"piece\",\"text\":\"the disk is old\"}",
			"the disk is old"},
		{BEGINS, "{\"type\":\"begins\",\"step\":8,\"number\":1}",
			"another snapshot"},
		{BEGINS, "{\"type\":\"piece\"}", "not asked for"},
		{BEGINS, "{\"type\":\"piece\",\"at\":1,\"bytes\":1,\"all\":2}",
			"not asked for"},
		{BEGINS, "{\"type\":\"piece\",\"at\":0,\"bytes\":2,\"all\":1}",
			"not asked for"},
		{BEGINS, "{\"type\":\"piece\",\"at\":0,\"bytes\":0,\"all\":1}",
			"not asked for"},
		{BEGINS,
			"{\"type\":\"piece\",\"at\":0,\"bytes\":1048577,\"all\":2000000}",
			"not asked for"},
		{BEGINS, "{\"type\":\"piece\",\"at\":0,\"bytes\":1,\"all\":999999999999}",
			"not asked for"},
	};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(cases); i++) {
		bool is_refusal = strstr(cases[i].begins, "refused") != NULL;
		struct rig rig;

		ask(&rig, cases[i].begins, cases[i].piece);
		run_until(&rig, &rig.server->over);
		if (!strstr(rig.server->text, cases[i].why) ||
			!strstr(rig.server->text, "--snapshots-via") ||
			rig.server->stats.misused != is_refusal)
			fail_msg("case %zu: %s", i, rig.server->text);
		close_rig(&rig);
	}
}

static void test_a_wrong_piece_of_server_0_ends_the_server(void **state)
{
	const struct tern_shape shapes[] = {tern_shape_1d(TERN_U8, 3),
		tern_shape_1d(TERN_U8, 5), tern_shape_1d(TERN_F32, 1)};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(shapes); i++) {
		struct rig rig;

		zero.sends = shapes[i];
		ask(&rig, BEGINS, "{\"type\":\"piece\",\"at\":0,\"bytes\":4,\"all\":8}");
		run_until(&rig, &rig.server->over);
		assert_non_null(strstr(rig.server->text, "another size or type"));
		tern_pool_put(zero.pool, &zero.buf);
		close_rig(&rig);
	}
	zero.sends = (struct tern_shape){.rank = 0};
}

static bool noted_loss;

static void note_loss(void *arg, const char *text, bool comes)
{
	(void)arg;
	(void)comes;
	noted_loss = noted_loss || strstr(text, "a piece of a snapshot has not come");
}

/* Server 0 announces a piece, and cuts the connection in its place. */
static void test_a_lost_piece_is_noted_and_asked_for_again(void **state)
{
	struct rig rig;

	(void)state;
	noted_loss = false;
	ask(&rig, BEGINS, "{\"type\":\"piece\",\"at\":0,\"bytes\":4,\"all\":8}");
	rig.server->opts.note = note_loss;
	while (!noted_loss) {
		zero.asked = false;
		run_until(&rig, &zero.asked);
		for (unsigned i = 0; i < 1000; i++)
			step(&rig); /* the announcement arrives */
		tern_talk_close(&zero.talk);
		tern_peer_free(zero.peer);
		while (!tern_talk_is_idle(&zero.talk))
			step(&rig);
	}
	zero.asked = false;
	run_until(&rig, &zero.asked);
	assert_false(rig.server->over);
	close_rig(&rig);
}

/* tern_server_new() may still fail after it has prepared the question, and frees all
 * then. */
static void test_a_server_that_is_not_made_has_not_dialled(void **state)
{
	const struct tern_list *peers;
	struct rig rig;

	(void)state;
	ask(&rig, BEGINS, "");
	peers = &rig.server->listener->rdv->peers;
	assert_true(tern_list_empty(peers));
	resume_fini(rig.server);
	remote_end(rig.server);
	remote_fini(rig.server);
	for (unsigned i = 0; i < 1000; i++)
		step(&rig);
	assert_true(tern_list_empty(peers));
	close_rig(&rig);
}

/* Another process may listen where server 0 was, or a worker may name an old address. */
static void test_a_refusal_at_one_of_two_addresses_ends_nothing(void **state)
{
	uint64_t limit = tern_clock_ns() + 20 * TERN_NS_PER_S;
	struct rig rig;

	(void)state;
	ask(&rig, "{\"type\":\"refused\",\"text\":\"this is server 2\"}", "");
	strcpy(rig.server->heard_zero, "tcp://127.0.0.1:9");
	while (!strstr(rig.noted, "does not answer as server 0: this is server 2") &&
		!rig.server->over && tern_clock_ns() < limit)
		step(&rig);
	assert_false(rig.server->over);
	assert_non_null(strstr(rig.noted, "does not answer as server 0"));
	close_rig(&rig);
}

/* Lets a worker join, and the steps begin. */
static void begin_steps(struct rig *rig, struct visitor *worker)
{
	json_t *job;

	ask(rig, "{\"type\":\"begins\",\"step\":0,\"number\":0}", "");
	while (resume_is_searching(rig->server) || !tern_talk_is_idle(&zero.talk))
		step(rig);
	job = job_of(rig, &sync_job, 1, ELEMENTS, 2);
	json_array_set_new(json_object_get(job, "servers"), 0,
		json_string(tern_listener_address(zero.listener)));
	visit(rig, worker);
	tern_talk_say(&worker->talk,
		json_pack("{s:s, s:i, s:i, s:i, s:o}", "type", "join", "worker", 0,
			"incarnation", 1, "server", 1, "job", job));
	run_until(rig, &rig->server->running);
}

/* Server 0 begins a snapshot of this step. */
static void begin_snapshot(struct rig *rig, int step)
{
	tern_talk_say(&zero.talk, json_pack("{s:s, s:i, s:i}", "type", "snapshot", "step",
					  step, "number", 1));
	run_until(rig, &rig->server->snapshots->taking);
}

/* The worker sends all gradients of the first step. */
static void push(struct rig *rig, struct visitor *worker)
{
	static struct tern_req reqs[CHUNKS_MOST];
	struct tern_channel *data;
	struct tern_tensor t;

	assert_true(rig->server->chunk_count <= CHUNKS_MOST);
	assert_int_equal(tern_channel_open(worker->peer, TERN_PS_CHANNEL_DATA, &data), 0);
	assert_int_equal(
		tern_pool_get(zero.pool, ELEMENTS * sizeof(float), &zero.buf), 0);
	memset(tern_buf_ptr(&zero.buf), 0, ELEMENTS * sizeof(float));
	for (uint32_t i = 0; i < rig->server->chunk_count; i++) {
		const struct tern_chunk *c = rig->server->chunks[i].plan;

		t = (struct tern_tensor){
			.buf = zero.buf, .shape = tern_shape_1d(TERN_F32, c->count)};
		t.buf.bytes = c->count * sizeof(float);
		reqs[i] = (struct tern_req){0};
		assert_int_equal(
			tern_send(data, &reqs[i], c->gradient_key, 0, &t, NULL, 0), 0);
	}
}

static void say_of_part(bool go)
{
	tern_talk_say(&zero.talk, json_pack("{s:s, s:i, s:i, s:b}", "type", "part",
					  "step", 1, "number", 1, "go", go));
}

/* Server 0 says that it has a part before this server hears that the last piece was
 * taken. The next snapshot may have begun then. */
static void test_a_piece_taken_after_the_end_of_its_part_begins_none(void **state)
{
	struct tern_channel *data;
	struct visitor worker;
	struct tern_buf piece;
	struct rig rig;

	(void)state;
	zero.part_bytes = 0;
	begin_steps(&rig, &worker);
	begin_snapshot(&rig, 1);
	push(&rig, &worker);
	while (!zero.part_bytes)
		step(&rig);
	say_of_part(true);
	say_of_part(false);
	while (rig.server->snapshots->taking)
		step(&rig);
	begin_snapshot(&rig, 2);
	assert_int_equal(tern_channel_open(zero.peer, TERN_PS_CHANNEL_DATA, &data), 0);
	assert_int_equal(tern_pool_get(zero.pool, zero.part_bytes, &piece), 0);
	zero.req = (struct tern_req){0};
	assert_int_equal(tern_recv(data, &zero.req, tern_key("snapshot/part"),
				 (uint64_t)1 << 32, &piece, NULL, 0),
		0);
	while (zero.req.status == -EINPROGRESS)
		step(&rig);
	assert_int_equal(zero.req.status, 0);
	for (unsigned i = 0; i < 1000; i++)
		step(&rig);
	assert_false(rig.server->over);
	tern_pool_put(zero.pool, &piece);
	tern_pool_put(zero.pool, &zero.buf);
	close_rig(&rig);
}

/* A worker cannot make a server the first one of a job that has no directory. */
static void test_a_server_without_a_directory_is_not_server_0(void **state)
{
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	rig.server->opts.snapshots.via = "tcp://127.0.0.1:9";
	join(&rig, &v, &sync_job, 1000, 0);
	run_until(&rig, &v.refused);
	assert_non_null(strstr(v.text, "needs --snapshots DIR"));
	close_rig(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_wrong_answers_of_server_0_end_the_server),
		cmocka_unit_test(test_a_wrong_piece_of_server_0_ends_the_server),
		cmocka_unit_test(test_a_lost_piece_is_noted_and_asked_for_again),
		cmocka_unit_test(test_a_server_that_is_not_made_has_not_dialled),
		cmocka_unit_test(test_a_refusal_at_one_of_two_addresses_ends_nothing),
		cmocka_unit_test(
			test_a_piece_taken_after_the_end_of_its_part_begins_none),
		cmocka_unit_test(test_a_server_without_a_directory_is_not_server_0),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
