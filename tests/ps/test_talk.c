/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of control messages between processes of a job: messages of one piece and of many
 * arrive complete and in order, and malformed ones are reported as such. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/util.h"
#include "ps/job.h"
#include "ps/talk.h"

struct end {
	struct tern_talk talk;
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_pool *pool;
	struct tern_peer *peer;
	struct tern_req raw;
	unsigned heard_count;
	json_t *last; /* last message; NULL: none has come, or it was malformed */
	int broken_status;
};

static struct end ends[2];
static struct tern_listener *listener;

static void heard(struct tern_talk *talk, const json_t *message)
{
	struct end *e = tern_container_of(talk, struct end, talk);

	e->heard_count++;
	json_decref(e->last);
	e->last = message ? json_deep_copy(message) : NULL;
}

static void broken(struct tern_talk *talk, int status)
{
	tern_container_of(talk, struct end, talk)->broken_status = status;
}

static void open_talk(struct end *e, struct tern_peer *peer)
{
	e->peer = peer;
	e->talk = (struct tern_talk){
		.ctx = e->ctx, .pool = e->pool, .heard = heard, .broken = broken};
	assert_int_equal(tern_talk_open(&e->talk, peer), 0);
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	open_talk(arg, peer);
}

static void step(void)
{
	if (tern_progress(ends[0].ctx) + tern_progress(ends[1].ctx) == 0)
		usleep(50);
}

static int open_both(void **state)
{
	struct tern_peer *peer;

	(void)state;
	memset(ends, 0, sizeof(ends));
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(tern_domain_new(NULL, &ends[i].domain), 0);
		assert_int_equal(tern_context_new(ends[i].domain, NULL, &ends[i].ctx), 0);
		assert_int_equal(tern_pool_new(ends[i].domain, NULL, &ends[i].pool), 0);
	}
	assert_int_equal(tern_listen(ends[1].ctx, "tcp://127.0.0.1:0", NULL, on_accept,
				 &ends[1], &listener),
		0);
	assert_int_equal(
		tern_connect(ends[0].ctx, tern_listener_address(listener), NULL, &peer),
		0);
	open_talk(&ends[0], peer);
	while (!ends[1].peer)
		step();
	return 0;
}

/* The pools assert that all memory of the talks (channels for control messages) was
 * freed. */
static int close_both(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		tern_context_free(ends[i].ctx);
		assert_null(ends[i].talk.text);
		tern_pool_free(ends[i].pool);
		tern_domain_free(ends[i].domain);
		json_decref(ends[i].last);
	}
	return 0;
}

static void until_heard(unsigned count)
{
	uint64_t limit_ns = tern_clock_ns() + 20 * TERN_NS_PER_S;

	while (ends[1].heard_count < count && tern_clock_ns() < limit_ns)
		step();
	assert_int_equal(ends[1].heard_count, count);
}

/* A message whose text {"a":"x..."} has `bytes` bytes. */
static json_t *message_of(size_t bytes)
{
	char *text = malloc(bytes);
	json_t *message;

	memset(text, 'x', bytes);
	message = json_pack("{s:s#}", "a", text, (int)(bytes - 8));
	free(text);
	return message;
}

static void test_messages_of_any_length_arrive_whole(void **state)
{
	static const size_t piece = TERN_PS_PIECE_BYTES;
	const size_t sizes[] = {
		9, piece - 1, piece, piece + 1, 2 * piece - 1, 2 * piece, 1000003, 64};

	(void)state;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(sizes); i++) {
		json_t *message = message_of(sizes[i]);

		tern_talk_say(&ends[0].talk, json_incref(message));
		until_heard(i + 1);
		assert_true(json_equal(ends[1].last, message));
		json_decref(message);
	}
}

/* Sends a text as it is, in one piece. */
static void say_raw(const char *text, size_t bytes)
{
	struct end *e = &ends[0];
	struct tern_tensor tensor = {.shape = tern_shape_1d(TERN_U8, bytes)};

	assert_int_equal(tern_pool_get(e->pool, bytes, &tensor.buf), 0);
	memcpy(tern_buf_ptr(&tensor.buf), text, bytes);
	e->raw = (struct tern_req){0};
	assert_int_equal(tern_send(e->talk.channel, &e->raw, tern_key("talk"),
				 e->talk.said_count++, &tensor, NULL, 0),
		0);
	while (tern_test(&e->raw) == -EINPROGRESS)
		step();
	tern_pool_put(e->pool, &tensor.buf);
}

static void test_what_is_no_object_is_none(void **state)
{
	static const char *const texts[] = {
		"[]", "", "{", "\xff\xfe", "{\"a\":1,\"a\":2}"};

	(void)state;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(texts); i++) {
		say_raw(texts[i], strlen(texts[i]));
		until_heard(i + 1);
		assert_null(ends[1].last);
		assert_string_equal(
			ends[1].talk.fault, "its message is not a JSON object");
	}
}

/* Sends {"a":[0,0,...]} with `count` parts (see ps/talk.h): the member "a" is one, and so is
 * each of the count - 1 zeros. */
static void say_parts(unsigned count)
{
	json_t *list = json_array();

	for (unsigned i = 1; i < count; i++)
		json_array_append_new(list, json_integer(0));
	tern_talk_say(&ends[0].talk, json_pack("{s:o}", "a", list));
}

/* A message of more than TERN_PS_PARTS_MAX parts is refused: parsed, it may need up to a
 * hundred times the memory of its text. Brackets and commas within a string are no
 * parts. */
static void test_a_message_of_too_many_parts_is_not_read(void **state)
{
	(void)state;
	say_parts(TERN_PS_PARTS_MAX);
	until_heard(1);
	assert_non_null(ends[1].last);
	say_parts(TERN_PS_PARTS_MAX + 1);
	until_heard(2);
	assert_null(ends[1].last);
	assert_string_equal(ends[1].talk.fault,
		"its JSON message has 65537 members and elements, and the limit here is "
		"65536");
	tern_talk_say(&ends[0].talk, json_pack("{s:s}", "a", ",[{\"[,{"));
	until_heard(3);
	assert_non_null(ends[1].last);
}

/* Bytes of each name of the job, with the NUL at its end. */
#define NAME_ROOM 61u

static struct tern_ps_job largest_job(void)
{
	struct tern_ps_job job = {.steps = 1ull << 40,
		.seed = UINT64_MAX,
		.slots = TERN_SLOTS_MAX,
		.workers = TERN_WORKERS_MAX,
		.batch = 1u << 24,
		.records = 1ull << 40,
		.data = UINT64_MAX,
		.params = calloc(TERN_PARAMS_MAX, sizeof(*job.params)),
		.param_count = TERN_PARAMS_MAX,
		.names = calloc(TERN_PARAMS_MAX, NAME_ROOM),
		.servers = calloc(TERN_SERVERS_MAX, sizeof(*job.servers)),
		.server_count = TERN_SERVERS_MAX};

	assert_true(job.params && job.names && job.servers);
	tern_optimizer_parse("adam", &job.optimizer);
	job.rule_count = TERN_JOB_RULES_MAX;
	for (unsigned i = 0; i < TERN_JOB_RULES_MAX; i++)
		job.rules[i] = job.optimizer;
	/* Long in JSON, where each of these characters is \u0001. */
	memset(job.arithmetic, 1, sizeof(job.arithmetic) - 1);
	for (unsigned i = 0; i < TERN_SERVERS_MAX; i++)
		memset(job.servers[i], 1, sizeof(job.servers[i]) - 1);
	for (unsigned i = 0; i < TERN_PARAMS_MAX; i++) {
		struct tern_param *p = &job.params[i];
		char *name = job.names + (size_t)i * NAME_ROOM;

		memset(name, 'x', NAME_ROOM - 1);
		snprintf(name, NAME_ROOM, "%u", i);
		name[strlen(name)] = 'x';
		p->name = name;
		p->shape = (struct tern_shape){.dtype = TERN_F32,
			.rank = TERN_RANK_MAX,
			.dims = {1ull << 38, 1, 1, 1, 1, 1, 1, 1}};
		p->init = TERN_INIT_UNIFORM;
		p->a = -1.17549449e-38f;
		p->b = 1.17549449e-38f;
	}
	return job;
}

static void give_none(struct tern_talk_budget *budget, uint64_t bytes)
{
	(void)budget;
	(void)bytes;
}

/* The job has the largest number of tensors, with eight dimensions each. */
static void test_a_message_has_room_for_the_largest_job(void **state)
{
	struct tern_talk_budget budget = {.bytes_left = TERN_PS_JOB_TEXT_MAX,
		.message = {TERN_PS_JOB_TEXT_MAX, TERN_PS_JOB_PARTS_MAX},
		.short_of = give_none};
	struct tern_ps_job job = largest_job(), read;
	struct tern_ps_text why;
	char *text = tern_ps_job_encode(&job);

	(void)state;
	ends[1].talk.budget = &budget;
	tern_talk_say(&ends[0].talk,
		json_pack("{s:s, s:I, s:I, s:o}", "type", "join", "worker", (json_int_t)0,
			"server", (json_int_t)0, "job", json_loads(text, 0, NULL)));
	until_heard(1);
	assert_string_equal(ends[1].talk.fault, "");
	assert_int_equal(
		tern_ps_job_read(json_object_get(ends[1].last, "job"), &read, &why), 0);
	assert_int_equal(read.param_count, TERN_PARAMS_MAX);
	tern_ps_job_fini(&read);
	tern_ps_job_fini(&job);
	free(text);
}

static void test_more_than_a_message_may_have_is_not_heard(void **state)
{
	char piece[TERN_PS_PIECE_BYTES];
	struct tern_talk_budget budget = {.bytes_left = 64u << 10,
		.message = {TERN_PS_TEXT_MAX, TERN_PS_PARTS_MAX},
		.short_of = give_none};

	(void)state;
	ends[1].talk.budget = &budget;
	memset(piece, ' ', sizeof(piece));
	for (unsigned i = 0; i < 17; i++)
		say_raw(piece, sizeof(piece));
	until_heard(1);
	assert_null(ends[1].last);
	assert_non_null(strstr(ends[1].talk.fault, "of more than 65536 bytes"));
	assert_int_equal(budget.bytes_left, 64u << 10);
}

/* The receive has memory for one piece of a message, so a larger tensor must be refused
 * without any memory being allocated for it. */
static void test_a_larger_piece_breaks_the_talk(void **state)
{
	char piece[TERN_PS_PIECE_BYTES + 1] = "{}";
	uint64_t limit_ns = tern_clock_ns() + 20 * TERN_NS_PER_S;

	(void)state;
	say_raw(piece, sizeof(piece));
	while (!ends[1].broken_status && tern_clock_ns() < limit_ns)
		step();
	assert_int_equal(ends[1].broken_status, -EMSGSIZE);
	assert_int_equal(ends[1].heard_count, 0);
}

int main(void)
{
#define TALK_TEST(name) cmocka_unit_test_setup_teardown(name, open_both, close_both)
	const struct CMUnitTest tests[] = {
		TALK_TEST(test_messages_of_any_length_arrive_whole),
		TALK_TEST(test_what_is_no_object_is_none),
		TALK_TEST(test_a_message_of_too_many_parts_is_not_read),
		TALK_TEST(test_a_message_has_room_for_the_largest_job),
		TALK_TEST(test_more_than_a_message_may_have_is_not_heard),
		TALK_TEST(test_a_larger_piece_breaks_the_talk),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
