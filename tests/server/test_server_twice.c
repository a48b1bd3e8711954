/* SPDX-License-Identifier: Apache-2.0 */
/* Worker 1 computes the slot of worker 0, whose gradient the server has already, and says the
 * digest of its own: the server notes once that they differ (ps/twice.h). */
#include "tests/server/server_bed.h"

#include <string.h>

#include "ps/marks.h"
#include "ps/twice.h"

#define COUNT 1000u

struct bed {
	struct rig rig;
	struct visitor v[2];
	struct tern_buf gradient;
	struct tern_buf marks;
	struct tern_req req, marks_req;
};

/* Sends the gradient of slot 0, for all tensors or without the only one. */
static void send_gradient(struct bed *b, bool marked)
{
	struct tern_tensor tensor = {
		.buf = b->gradient, .shape = tern_shape_1d(TERN_F32, COUNT)};
	struct tern_tensor marks = {.buf = b->marks, .shape = tern_shape_1d(TERN_U8, 1)};
	struct tern_channel *channel;

	assert_int_equal(
		tern_channel_open(b->v[0].peer, TERN_PS_CHANNEL_DATA, &channel), 0);
	if (marked) {
		tensor.shape = tern_marks_shape(&tensor.shape);
		assert_int_equal(tern_send(channel, &b->marks_req, tern_key("marks/0"), 0,
					 &marks, NULL, 0),
			0);
	}
	assert_int_equal(
		tern_send(channel, &b->req, tern_key("gradient/0"), 0, &tensor, NULL, 0),
		0);
}

static void bed_open(struct bed *b, const char *arithmetic, bool marked)
{
	struct tern_ps_job job = {.slots = 2, .workers = 2};

	*b = (struct bed){0};
	snprintf(job.arithmetic, sizeof(job.arithmetic), "%s", arithmetic);
	open_with_workers(&b->rig, b->v, &job);
	assert_int_equal(
		tern_pool_get(b->rig.pool, COUNT * sizeof(float), &b->gradient), 0);
	for (unsigned i = 0; i < COUNT; i++)
		((float *)tern_buf_ptr(&b->gradient))[i] = 1;
	assert_int_equal(tern_pool_get(b->rig.pool, 1, &b->marks), 0);
	*(uint8_t *)tern_buf_ptr(&b->marks) = 1;
	send_gradient(b, marked);
	while (b->rig.server->chunks[0].arrived_count == 0)
		step(&b->rig);
	tern_talk_close(&b->v[0].talk);
	tern_peer_free(b->v[0].peer);
	while (b->rig.server->lost_count == 0)
		step(&b->rig);
	tern_talk_say(&b->v[1].talk, json_pack("{s:s, s:i, s:i, s:i}", "type", "take",
					     "slot", 0, "version", 0, "generation", 1));
	*b->rig.noted = '\0';
}

static uint64_t digest(const struct bed *b)
{
	return tern_twice_digest(
		b->rig.server->chunks[0].plan, tern_buf_ptr(&b->gradient), NULL, 0);
}

/* Says this digest, and lets the server hear it. */
static void say(struct bed *b, int slot, int version, uint64_t value)
{
	tern_talk_say(&b->v[1].talk,
		json_pack("{s:s, s:i, s:i, s:[I]}", "type", "digests", "slot", slot,
			"version", version, "digests", (json_int_t)value));
	for (unsigned i = 0; i < 200; i++)
		step(&b->rig);
}

static void bed_close(struct bed *b)
{
	tern_pool_put(b->rig.pool, &b->gradient);
	tern_pool_put(b->rig.pool, &b->marks);
	stop_and_close(&b->rig);
}

static void test_two_computations_that_differ_are_told_once(void **state)
{
	struct bed b;

	(void)state;
	bed_open(&b, "same", false);
	say(&b, 0, 0, digest(&b));
	say(&b, 1, 0, digest(&b) ^ 1); /* nobody has sent slot 1 */
	say(&b, 0, 1, digest(&b) ^ 1); /* nor version 1 */
	assert_string_equal(b.rig.noted, "");
	say(&b, 0, 0, digest(&b) ^ 1);
	assert_non_null(strstr(b.rig.noted,
		"slot 0 of step 0 was computed by worker 0 and by worker 1, and their "
		"gradients differ in 1 chunk of this server, first in one with tensor "
		"w0: "));
	*b.rig.noted = '\0';
	say(&b, 0, 0, digest(&b) ^ 2);
	assert_string_equal(b.rig.noted, "");
	bed_close(&b);
}

static void test_marks_are_compared_too(void **state)
{
	const uint8_t marks = 1;
	struct bed b;
	uint64_t marked;

	(void)state;
	bed_open(&b, "same", true);
	marked = tern_twice_digest(
		b.rig.server->chunks[0].plan, tern_buf_ptr(&b.gradient), &marks, 1);
	say(&b, 0, 0, marked);
	assert_string_equal(b.rig.noted, "");
	say(&b, 0, 0, digest(&b)); /* as if it had pushed the tensor */
	assert_non_null(strstr(b.rig.noted, "differ in 1 chunk of this server"));
	bed_close(&b);
}

static void test_jobs_that_promise_no_bytes_are_not_compared(void **state)
{
	struct bed b;

	(void)state;
	bed_open(&b, "", false);
	say(&b, 0, 0, digest(&b) ^ 1);
	assert_string_equal(b.rig.noted, "");
	bed_close(&b);
}

static void test_digests_that_cannot_be_are_refused(void **state)
{
	static const int wrong[][2] = {{2, 0}, {-1, 0}, {0, -1}};

	(void)state;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(wrong) + 1; i++) {
		struct bed b;

		bed_open(&b, "same", false);
		if (i < TERN_ARRAY_SIZE(wrong))
			say(&b, wrong[i][0], wrong[i][1], 1);
		else
			tern_talk_say(&b.v[1].talk,
				json_pack("{s:s, s:i, s:i, s:[s]}", "type", "digests",
					"slot", 0, "version", 0, "digests", "1"));
		run_until(&b.rig, &b.v[1].refused);
		assert_non_null(strstr(b.v[1].text, "its message \"digests\" has slot "));
		bed_close(&b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_two_computations_that_differ_are_told_once),
		cmocka_unit_test(test_marks_are_compared_too),
		cmocka_unit_test(test_jobs_that_promise_no_bytes_are_not_compared),
		cmocka_unit_test(test_digests_that_cannot_be_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
