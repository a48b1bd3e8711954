/* SPDX-License-Identifier: Apache-2.0 */
/* A gradient whose shape says that marks follow (ps/marks.h) counts only with its marks.
 * test_skip.c has the results of whole jobs. */
#include "tests/server/server_bed.h"

#include <string.h>

#include "ps/marks.h"
#include "rendezvous/peer.h"

#define COUNT 1000u

struct sender { /* what a worker sends, and the version that it gets after it */
	struct visitor v;
	struct tern_channel *channel;
	struct tern_req gradient_reqs[2], marks_req,
		version_req; /* by slot: of gradients */
	struct tern_buf gradient, zeros, marks;
	bool came;
};

static void has_come(struct tern_req *req)
{
	*(bool *)req->arg = req->status == 0;
}

static void sit_down(
	struct rig *rig, struct sender *s, const struct tern_ps_job *job, unsigned worker)
{
	*s = (struct sender){0};
	assert_int_equal(
		tern_pool_get(rig->pool, COUNT * sizeof(float), &s->gradient), 0);
	for (unsigned i = 0; i < COUNT; i++)
		((float *)tern_buf_ptr(&s->gradient))[i] = 1;
	assert_int_equal(tern_pool_get(rig->pool, COUNT * sizeof(float), &s->zeros), 0);
	memset(tern_buf_ptr(&s->zeros), 0, COUNT * sizeof(float));
	assert_int_equal(tern_pool_get(rig->pool, 8, &s->marks), 0);
	memset(tern_buf_ptr(&s->marks), 1, 8);
	join_well(rig, &s->v, job, worker);
	assert_int_equal(
		tern_channel_open(s->v.peer, TERN_PS_CHANNEL_DATA, &s->channel), 0);
	s->version_req = (struct tern_req){.done = has_come, .arg = &s->came};
	assert_int_equal(tern_recv(s->channel, &s->version_req, tern_key("parameter/0"),
				 1, NULL, NULL, TERN_RECV_ALLOC),
		0);
}

static void send_gradient(struct sender *s, unsigned slot, bool marked)
{
	struct tern_tensor tensor = {
		.buf = s->gradient, .shape = tern_shape_1d(TERN_F32, COUNT)};

	if (marked)
		tensor.shape = tern_marks_shape(&tensor.shape);
	assert_int_equal(tern_send(s->channel, &s->gradient_reqs[slot],
				 tern_key("gradient/0"), slot, &tensor, NULL, 0),
		0);
}

static void send_marks(struct sender *s, uint64_t bytes)
{
	struct tern_tensor tensor = {
		.buf = s->marks, .shape = tern_shape_1d(TERN_U8, bytes)};

	tensor.buf.bytes = bytes;
	assert_int_equal(tern_send(s->channel, &s->marks_req, tern_key("marks/0"), 0,
				 &tensor, NULL, 0),
		0);
}

/* Leaves slot 0 out of the first step. */
static void send_omitted(struct sender *s)
{
	struct tern_tensor tensor = {
		.buf = s->zeros, .shape = tern_shape_1d(TERN_F32, COUNT)};

	tensor.shape = tern_marks_omitted_shape(&tensor.shape);
	assert_int_equal(tern_send(s->channel, &s->gradient_reqs[0],
				 tern_key("gradient/0"), 0, &tensor, NULL, 0),
		0);
	send_marks(s, 1);
}

/* Waits until the server has received the gradient of slot 0 and waits for its marks. */
static void until_marks_are_awaited(struct rig *rig)
{
	const struct gradient *g;
	uint64_t limit = tern_clock_ns() + 20 * TERN_NS_PER_S;

	while (rig->server->chunk_count == 0 ||
		!(g = &rig->server->chunks[0].gradients[0])->from ||
		tern_test(&g->req) != 0) {
		step(rig);
		assert_true(tern_clock_ns() < limit);
	}
	for (unsigned i = 0; i < 200; i++)
		step(rig);
	assert_int_equal(rig->server->chunks[0].arrived_count, 0);
	assert_int_equal(rig->server->stats.gradients_added, 0);
}

/* Waits for version 1, in which all parameters must have this value. */
static void until_version(struct rig *rig, struct sender *s, float value)
{
	run_until(rig, &s->came);
	assert_int_equal(s->version_req.bytes, COUNT * sizeof(float));
	for (unsigned i = 0; i < COUNT; i++)
		assert_true(((const float *)s->version_req.data)[i] == value);
	tern_release(&s->version_req);
}

static void get_up(struct rig *rig, struct sender *s)
{
	tern_pool_put(rig->pool, &s->gradient);
	tern_pool_put(rig->pool, &s->zeros);
	tern_pool_put(rig->pool, &s->marks);
}

static void test_a_gradient_waits_for_its_marks(void **state)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	struct sender s;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	sit_down(&rig, &s, &job, 0);
	send_gradient(&s, 0, true);
	until_marks_are_awaited(&rig);
	send_marks(&s, 1);
	until_version(&rig, &s, 0);
	get_up(&rig, &s);
	stop_and_close(&rig);
}

static void test_marks_have_a_bit_for_each_tensor(void **state)
{
	static const enum tern_mode modes[] = {TERN_MODE_SYNC, TERN_MODE_ASYNC};

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		const struct tern_ps_job job = {
			.mode = modes[i % 2], .slots = 1, .workers = 1};
		uint64_t bytes = i < 2 ? 0 : 2;
		struct sender s;
		struct rig rig;
		char told[100];

		open_rig(&rig);
		sit_down(&rig, &s, &job, 0);
		send_marks(&s, bytes);
		send_gradient(&s, 0, true);
		run_until(&rig, &rig.server->over);
		tern_timer_set(rig.at.ctx, &rig.server->end_timer, 0);
		run_until(&rig, &rig.ended);
		snprintf(told, sizeof(told),
			"worker 0 sent %u bytes of marks for chunk 0: expected 1",
			(unsigned)bytes);
		assert_non_null(strstr(rig.text, told));
		get_up(&rig, &s);
		close_rig(&rig);
	}
}

/* Worker 0 is lost, and worker 1 takes its slot. */
static void take_over(struct rig *rig, struct sender *s)
{
	tern_talk_close(&s[0].v.talk);
	tern_peer_free(s[0].v.peer);
	while (rig->server->lost_count == 0)
		step(rig);
	tern_talk_say(&s[1].v.talk, json_pack("{s:s, s:i, s:i, s:i}", "type", "take",
					    "slot", 0, "version", 0, "generation", 1));
}

/* Worker 0 is lost before its marks have come, and worker 1 sends a gradient in its place,
 * which has marks or not. */
static void lose(bool marked)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 2};
	struct sender s[2];
	struct rig rig;

	open_rig(&rig);
	for (unsigned i = 0; i < 2; i++)
		sit_down(&rig, &s[i], &job, i);
	send_gradient(&s[0], 0, true);
	until_marks_are_awaited(&rig);
	take_over(&rig, s);
	send_gradient(&s[1], 0, marked);
	if (marked)
		send_marks(&s[1], 1);
	until_version(&rig, &s[1], marked ? 0 : -0.01f);
	assert_int_equal(rig.server->stats.gradients_added, 1);
	for (unsigned i = 0; i < 2; i++)
		get_up(&rig, &s[i]);
	stop_and_close(&rig);
}

static void test_a_gradient_that_has_lost_its_marks_is_received_anew(void **state)
{
	(void)state;
	lose(false);
	lose(true);
}

/* The server has the gradient of worker 0 when worker 1 sends it again, with marks. They are
 * received, too. */
static void test_a_gradient_is_refused_with_its_marks(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	struct sender s[2];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	for (unsigned i = 0; i < 2; i++)
		sit_down(&rig, &s[i], &job, i);
	send_gradient(&s[0], 0, false);
	while (rig.server->chunk_count == 0 || rig.server->chunks[0].arrived_count == 0)
		step(&rig);
	take_over(&rig, s);
	send_marks(&s[1], 1);
	send_gradient(&s[1], 0, true);
	while (rig.server->stats.gradients_refused == 0)
		step(&rig);
	send_gradient(&s[1], 1, false);
	until_version(&rig, &s[1], -0.01f);
	for (unsigned i = 0; i < 200; i++)
		step(&rig);
	assert_int_equal(rig.server->workers[1]->peer->arrival_count, 0);
	for (unsigned i = 0; i < 2; i++)
		get_up(&rig, &s[i]);
	stop_and_close(&rig);
}

static void test_a_slot_that_is_left_out_does_not_count_in_the_mean(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 1};
	const struct tern_omitted *list;
	struct sender s;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	rig.server->opts.omits = true;
	sit_down(&rig, &s, &job, 0);
	send_omitted(&s);
	send_gradient(&s, 1, false);
	until_version(&rig, &s, -0.01f);
	list = &rig.server->history->omitted;
	assert_int_equal(list->count, 1);
	assert_true(list->slots[0].step == 1 && list->slots[0].slot == 0);
	get_up(&rig, &s);
	stop_and_close(&rig);
}

/* Leaves the only slot out, which ends the job with this text. */
static void leave_all_out(bool allowed, const char *text)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	struct sender s;
	struct rig rig;

	open_rig(&rig);
	rig.server->opts.omits = allowed;
	sit_down(&rig, &s, &job, 0);
	send_omitted(&s);
	run_until(&rig, &rig.server->over);
	tern_timer_set(rig.at.ctx, &rig.server->end_timer, 0);
	run_until(&rig, &rig.ended);
	assert_non_null(strstr(rig.text, text));
	get_up(&rig, &s);
	close_rig(&rig);
}

static void test_a_step_without_any_slot_ends_the_job(void **state)
{
	(void)state;
	leave_all_out(true, "step 1: the loss of each of its 1 slots is no longer a");
}

static void test_no_slot_is_left_out_without_the_option(void **state)
{
	(void)state;
	leave_all_out(false,
		"worker 0 leaves slot 0 of step 1 out, and this server was started "
		"without --on-nan skip");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_gradient_waits_for_its_marks),
		cmocka_unit_test(test_marks_have_a_bit_for_each_tensor),
		cmocka_unit_test(
			test_a_gradient_that_has_lost_its_marks_is_received_anew),
		cmocka_unit_test(test_a_gradient_is_refused_with_its_marks),
		cmocka_unit_test(test_a_slot_that_is_left_out_does_not_count_in_the_mean),
		cmocka_unit_test(test_a_step_without_any_slot_ends_the_job),
		cmocka_unit_test(test_no_slot_is_left_out_without_the_option),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
