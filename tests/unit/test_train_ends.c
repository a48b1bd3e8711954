/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that cannot go on: each end is told, with its cause, to all that are left. */
#include "tests/unit/train_bed.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_without_any_worker_the_job_fails_with_the_first_cause(void **state)
{
	const struct setup setup = {
		"shm", "softmax", "sgd", 2, 2, 2, 1000000, TERN_MODE_SYNC, 0};
	struct member m[4] = {0};
	char addresses[MEMBERS_MAX][128];
	struct tern_model *model = make_model(&setup);

	(void)state;
	start_servers(m, &setup, addresses);
	start_workers(m + 2, &setup, model, addresses, NULL);
	while (m[3].step < 5)
		step_all(m, 4);
	worker_give_up(m[3].worker, -ENOMEM, "nothing works here");
	while (!m[2].has_more)
		step_all(m, 4);
	close_member(&m[2]);
	run_out(m, 4);
	assert_int_equal(m[3].status, -ENOMEM);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(m[i].status, -EPIPE);
		assert_non_null(strstr(m[i].text, "no worker is left: worker 1"));
		assert_non_null(strstr(m[i].text, "nothing works here"));
	}
	close_members(m, 4);
	tern_model_free(model);
}

/* ---- before the start ---- */

static void until_joined(struct member *m, unsigned server, uint32_t count, unsigned all)
{
	while (m[server].server->joined_count != count)
		step_all(m, all);
}

/* The others wait for another one, and train with it. */
static void test_a_loss_before_the_start_makes_room_for_another(void **state)
{
	const struct setup all = {"shm", "softmax", "sgd", 2, 3, 3, 5, TERN_MODE_SYNC, 0};
	struct member m[7] = {0};
	char addresses[MEMBERS_MAX][128];
	struct tern_model *model = make_model(&all);

	(void)state;
	start_servers(m, &all, addresses);
	start_workers(m + 2, &all, model, addresses, NULL);
	/* The third never gets to say a word. */
	close_member(&m[4]);
	until_joined(m, 0, 2, 5);
	until_joined(m, 1, 2, 5);
	close_member(&m[3]);
	until_joined(m, 0, 1, 5);
	until_joined(m, 1, 1, 5);
	start_worker(&m[5], &all, model, addresses, NULL, 2);
	start_worker(&m[6], &all, model, addresses, NULL, 1);
	run_out(m, 7);
	for (int i = 0; i < 7; i++)
		assert_int_equal(m[i].status, 0);
	close_members(m, 7);
	tern_model_free(model);
}

static bool has_peer(const struct tern_server *s, const struct server_peer *p)
{
	tern_list_for_each (n, &s->peers)
		if (n == &p->node)
			return true;
	return false;
}

/* One that all have joined tells server 0; then one of them turns out to be wrong about
 * server 0, and leaves. */
static void test_a_server_that_was_complete_waits_again(void **state)
{
	const struct setup all = {"tcp", "softmax", "sgd", 2, 2, 2, 5, TERN_MODE_SYNC, 0};
	struct member m[5] = {0};
	char addresses[MEMBERS_MAX][128], wrong[2][128] = {"tcp://127.0.0.1:1"};
	struct tern_model *model = make_model(&all);

	(void)state;
	start_servers(m, &all, addresses);
	strcpy(wrong[1], addresses[1]);
	start_worker(&m[2], &all, model, wrong, NULL, 0);
	until_joined(m, 1, 1, 3);
	start_worker(&m[3], &all, model, addresses, NULL, 1);
	until_joined(m, 1, 2, 4);
	assert_non_null(m[1].server->to_zero);
	tern_worker_ask_to_leave(m[2].worker, "a typo");
	until_joined(m, 1, 1, 4);
	assert_false(m[0].ended || m[1].ended || m[3].ended);
	start_worker(&m[4], &all, model, addresses, NULL, 0);
	run_out(m, 5);
	for (int i = 0; i < 5; i++)
		assert_int_equal(m[i].status == 0, i != 2);
	close_members(m, 5);
	tern_model_free(model);
}

/* A third server that is never found, and server 0 misses the worker first: it forgets
 * the job, and server 1 hears of that, or complains about the loss before it does. */
static void test_a_server_outlives_a_job_that_server_0_has_forgotten(void **state)
{
	const struct setup two = {"tcp", "softmax", "sgd", 2, 1, 1, 5, TERN_MODE_SYNC, 0};
	const struct setup three = {
		"tcp", "softmax", "sgd", 3, 1, 1, 5, TERN_MODE_SYNC, 0};
	struct tern_model *model = make_model(&two);
	char addresses[MEMBERS_MAX][128];

	(void)state;
	for (int late = 0; late < 2; late++) {
		struct member m[4] = {0};

		start_servers(m, &two, addresses);
		strcpy(addresses[2], "tcp://127.0.0.1:1");
		start_worker(&m[2], &three, model, addresses, NULL, 0);
		while (!m[0].server->joined_count || !others_find(m[0].server, 1))
			step_all(m, 3);
		lease_lost(m[0].server->workers[0], false, "it is gone");
		if (late)
			while (m[1].server->to_zero)
				step_all(m, 3);
		lease_lost(m[1].server->workers[0], false, "it is gone");
		while (m[1].server->has_job && !m[0].ended && !m[1].ended)
			step_all(m, 3);
		start_worker(&m[3], &two, model, addresses, NULL, 0);
		run_out(m, 4);
		for (int i = 0; i < 4; i++)
			if ((m[i].status == 0) != (i != 2))
				fail_msg("member %d: %s", i, m[i].text);
		close_members(m, 4);
	}
	tern_model_free(model);
}

/* A tensor that broke on a connection to server 0 that is given up: it was no guest, and
 * has a guest's time to end. */
static void test_a_given_up_connection_to_server_0_ends(void **state)
{
	const struct setup two = {"tcp", "softmax", "sgd", 2, 2, 2, 5, TERN_MODE_SYNC, 0};
	struct tern_model *model = make_model(&two);
	char addresses[MEMBERS_MAX][128], wrong[2][128] = {"tcp://127.0.0.1:1"};
	struct server_peer *zero;
	struct member m[4] = {0};

	(void)state;
	start_servers(m, &two, addresses);
	strcpy(wrong[1], addresses[1]);
	start_worker(&m[2], &two, model, wrong, NULL, 0);
	until_joined(m, 1, 1, 3);
	start_worker(&m[3], &two, model, addresses, NULL, 1);
	until_joined(m, 1, 2, 4);
	zero = m[1].server->to_zero;
	start_again(m[1].server);
	server_broken(&zero->talk, -EIO);
	tern_timer_set(m[1].ctx, &zero->guest_timer, 0);
	while (has_peer(m[1].server, zero))
		step_all(m, 4);
	assert_false(m[1].ended);
	close_members(m, 4);
	tern_model_free(model);
}

/* The only chunk is server 0's, so its word to start reaches server 1 when the worker may
 * have said goodbye. */
static void test_a_server_that_hears_late_of_the_start_ends(void **state)
{
	const struct setup all = {"tcp", "softmax", "sgd", 2, 1, 1, 5, TERN_MODE_SYNC, 0};
	struct member m[3] = {0};
	char addresses[MEMBERS_MAX][128];
	struct tern_model *model = make_model(&all);

	(void)state;
	start_servers(m, &all, addresses);
	start_workers(m + 2, &all, model, addresses, NULL);
	while (!m[1].server->running)
		step_all(m, 3);
	m[1].server->running = false; /* as if it had not heard of it */
	while (!m[2].ended || m[1].server->bye_count == 0)
		step_all(m, 3);
	assert_false(m[1].ended);
	start_on_start(m[1].server);
	run_out(m, 3);
	for (int i = 0; i < 3; i++)
		assert_int_equal(m[i].status, 0);
	close_members(m, 3);
	tern_model_free(model);
}

/* The first worker is the job, as long as it is here. */
static void test_a_job_without_workers_is_forgotten(void **state)
{
	const struct setup wrong = {
		"shm", "mlp:20", "adam", 1, 2, 2, 5, TERN_MODE_SYNC, 0};
	const struct setup right = {
		"shm", "softmax", "sgd", 1, 2, 4, 5, TERN_MODE_SYNC, 0.5};
	struct tern_model *typo = make_model(&wrong), *model = make_model(&right);
	struct member m[5] = {0};
	char addresses[MEMBERS_MAX][128];

	(void)state;
	start_servers(m, &right, addresses);
	start_worker(&m[1], &wrong, typo, addresses, NULL, 1);
	until_joined(m, 0, 1, 2);
	start_worker(&m[2], &right, model, addresses, NULL, 0);
	while (!m[2].ended)
		step_all(m, 3);
	assert_non_null(strstr(m[2].text, "server 0 refused this worker"));
	tern_worker_ask_to_leave(m[1].worker, "a typo");
	while (m[0].server->has_job)
		step_all(m, 3);
	start_worker(&m[3], &right, model, addresses, NULL, 0);
	start_worker(&m[4], &right, model, addresses, NULL, 1);
	run_out(m, 5);
	for (int i = 0; i < 5; i++)
		assert_int_equal(m[i].status == 0, i != 1 && i != 2);
	close_members(m, 5);
	tern_model_free(model);
	tern_model_free(typo);
}

/* A norm that cannot be received: the peer lives, and would be waited for for ever. */
static void test_a_norm_that_cannot_move_ends_the_job(void **state)
{
	const struct setup setup = {
		"tcp", "mlp:400", "sgd", 2, 2, 2, 1000000, TERN_MODE_SYNC, 0.5};
	struct member m[4] = {0};
	char addresses[MEMBERS_MAX][128];
	struct tern_model *model = make_model(&setup);

	(void)state;
	start_servers(m, &setup, addresses);
	start_workers(m + 2, &setup, model, addresses, NULL);
	while (m[2].step < 3)
		step_all(m, 4);
	m[1].server->total.offset += 1u << 30; /* outside of its memory */
	run_out(m, 4);
	m[1].server->total.offset -= 1u << 30; /* the pool gets it back */
	for (int i = 4; i-- > 0;) {
		assert_int_not_equal(m[i].status, 0);
		assert_non_null(strstr(m[i].text, "a tensor did not come through"));
	}
	close_members(m, 4);
	tern_model_free(model);
}

static char said[400]; /* by whoever waits */

static void say(void *arg, const char *text)
{
	(void)arg;
	snprintf(said, sizeof(said), "%s", text);
}

/* As if the time had come. */
static void fire(struct tern_timer *timer)
{
	*said = '\0';
	timer->fire(timer);
}

/* All parameters of the next version are here, and gradients are still on their way. */
static void expect_wait_for_room(struct tern_worker *w)
{
	struct version_part *parts = w->parts[(w->version + 1) & 1];
	int status[8];
	bool computing = w->computing;
	char text[300];

	assert_true(w->plan.chunk_count <= 8 && w->state == WORKER_RUNNING);
	for (uint32_t i = 0; i < w->plan.chunk_count; i++) {
		status[i] = parts[i].req.status;
		parts[i].req.status = 0;
	}
	w->computing = false;
	tern_worker_describe(w, text, sizeof(text));
	assert_non_null(strstr(text, "it waits for servers to take its gradients"));
	w->computing = computing;
	for (uint32_t i = 0; i < w->plan.chunk_count; i++)
		parts[i].req.status = status[i];
}

static void test_who_is_waited_for_is_said(void **state)
{
	const struct setup all = {"shm", "softmax", "sgd", 2, 3, 3, 5, TERN_MODE_SYNC, 0};
	struct member m[5] = {0};
	char addresses[MEMBERS_MAX][128];
	struct tern_model *model = make_model(&all);
	struct tern_worker *w;

	(void)state;
	start_servers(m, &all, addresses);
	start_worker(&m[2], &all, model, addresses, NULL, 1);
	w = m[2].worker;
	w->opts.waiting = say;
	fire(&w->wait_timer);
	assert_non_null(
		strstr(said, "no step for 10 s: it waits for server 0 at shm://"));
	until_joined(m, 0, 1, 3);
	m[0].server->opts.note = say;
	fire(&m[0].server->start_timer);
	assert_string_equal(
		said, "1 of 3 workers are here, waiting for worker 0, worker 2");
	while (w->state == WORKER_JOINING)
		step_all(m, 3);
	fire(&w->wait_timer);
	assert_string_equal(
		said, "no step for 20 s: it waits for other workers or servers to join");
	start_worker(&m[3], &all, model, addresses, NULL, 0);
	until_joined(m, 0, 2, 4);
	start_worker(&m[4], &all, model, addresses, NULL, 2);
	while (m[2].step < 2)
		step_all(m, 5);
	/* The others do not move: so some server has not got all it needs. */
	for (int turn = 0; turn < 2000 && !w->over; turn++)
		step_all(&m[2], 1);
	fire(&w->wait_timer); /* it has made steps since */
	assert_string_equal(said, "");
	fire(&w->wait_timer);
	assert_true(strstr(said, "parameters from server") || w->computing ||
		    w->state > WORKER_RUNNING);
	expect_wait_for_room(w);
	run_out(m, 5);
	fire(&w->wait_timer); /* it is over */
	assert_string_equal(said, "");
	close_members(m, 5);
	tern_model_free(model);
}

/* ---- too large ---- */

/* The first of the workers of `setup`, which may be more than there are. */
static int open_first(struct member *m, const struct setup *setup,
	const struct tern_model *model, char addresses[][128], struct tern_ps_text *why)
{
	struct tern_ps_job job = {.mode = setup->mode,
		.steps = setup->steps,
		.slots = setup->slots,
		.workers = setup->workers,
		.batch = 16,
		.servers = addresses,
		.server_count = setup->servers};

	tern_optimizer_parse(setup->optimizer, &job.optimizer);
	if (!m->engine)
		open_worker(m, model);
	return tern_worker_new(&(struct tern_worker_opts){.domain = m->domain,
				       .ctx = m->ctx,
				       .engine = m->engine,
				       .job = &job,
				       .train = data,
				       .ended = worker_ended,
				       .arg = m},
		&m->worker, why);
}

/* All gradients of all slots are more than a pool holds; two are not. */
static void test_a_worker_needs_room_for_two_of_its_slots_only(void **state)
{
	struct setup setup = {
		"tcp", "mlp:2048,2048", "sgd", 1, 4096, 4096, 5, TERN_MODE_SYNC, 0};
	char addresses[1][128] = {"tcp://127.0.0.1:1"};
	struct tern_model *model = make_model(&setup);
	struct member m[2] = {0};
	struct tern_ps_text why;

	(void)state;
	assert_int_equal(open_first(&m[0], &setup, model, addresses, &why), 0);
	assert_int_equal(m[0].worker->room_count, 1);
	setup.workers = 1;
	assert_int_equal(open_first(&m[1], &setup, model, addresses, &why), 0);
	assert_int_equal(m[1].worker->slot_count, 4096);
	assert_int_equal(m[1].worker->room_count, 2);
	close_members(m, 2);
	tern_model_free(model);
}

static unsigned pin_count;

static int pin_or_break(struct tern_engine *e, void *base, uint64_t bytes)
{
	(void)base;
	(void)bytes;
	if (++pin_count < 3)
		return 0; /* the two versions */
	snprintf(e->error, sizeof(e->error), "the device is gone");
	return -EIO;
}

static void test_a_device_that_breaks_at_the_birth_of_a_worker_is_told(void **state)
{
	const struct setup setup = {
		"tcp", "softmax", "sgd", 1, 1, 1, 5, TERN_MODE_SYNC, 0};
	char addresses[1][128] = {"tcp://127.0.0.1:1"};
	struct tern_model *model = make_model(&setup);
	struct tern_engine_ops ops;
	struct member m = {0};
	struct tern_ps_text why;

	(void)state;
	open_worker(&m, model);
	ops = *m.engine->ops;
	ops.pin = pin_or_break;
	m.engine->ops = &ops;
	assert_int_equal(open_first(&m, &setup, model, addresses, &why), -EIO);
	assert_string_equal(why.text, "the device is gone");
	close_members(&m, 1);
	tern_model_free(model);
}

/* After a loss, where the gradients of all slots are more than a pool holds. */
static void test_a_loss_without_room_for_it_ends_the_job_in_words(void **state)
{
	const struct setup setup = {
		"tcp", "softmax", "sgd", 1, 2, 2, 1000000, TERN_MODE_SYNC, 0};
	struct tern_model *model = make_model(&setup);
	char addresses[1][128];
	struct member m[3] = {0};

	(void)state;
	start_servers(m, &setup, addresses);
	start_workers(m + 1, &setup, model, addresses, NULL);
	while (m[1].step < 5)
		step_all(m, 3);
	m[0].server->staging_most = 1ull << 40;
	close_member(&m[1]);
	run_out(m, 3);
	assert_non_null(strstr(m[0].text, "server 0 needs room for 2 gradients of "
					  "its share, 1099511627776 bytes"));
	assert_non_null(strstr(m[2].text, m[0].text));
	close_members(m, 3);
	tern_model_free(model);
}

static void test_a_server_that_finds_itself_in_the_place_of_server_0_says_so(void **state)
{
	static const char *const fabrics[] = {"tcp", "shm", "auto"};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(fabrics); i++) {
		const struct setup setup = {
			fabrics[i], "mlp:300", "sgd", 2, 2, 2, 20, TERN_MODE_SYNC, 0};
		struct tern_model *model = make_model(&setup);
		struct member m[4] = {0};
		char addresses[MEMBERS_MAX][128];

		start_servers(m, &setup, addresses);
		start_worker(&m[2], &setup, model, addresses, NULL, 0);
		while (!m[1].server->has_job)
			step_all(m, 3);
		strcpy(m[1].server->workers[0]->zero, addresses[1]);
		start_worker(&m[3], &setup, model, addresses, NULL, 1);
		while (!all_ended(&m[1], 3))
			step_all(m, 4);
		for (int j = 1; j < 4; j++)
			assert_true(m[j].status < 0);
		assert_false(m[0].ended); /* it waits for another job */
		if (!strstr(m[1].text, "leads server 1 to server 1"))
			fail_msg("%s: %s", fabrics[i], m[1].text);
		close_members(m, 4);
		tern_model_free(model);
	}
}

static void test_a_second_server_of_a_number_or_of_another_job_is_refused(void **state)
{
	const struct setup setup = {
		"tcp", "softmax", "sgd", 2, 1, 1, 1000000, TERN_MODE_SYNC, 0};
	struct tern_model *model = make_model(&setup);
	char addresses[MEMBERS_MAX][128];

	(void)state;
	for (int other = 0; other < 2; other++) {
		struct member m[3] = {0};

		start_servers(m, &setup, addresses);
		start_workers(&m[2], &setup, model, addresses, NULL);
		while (m[2].step < 2)
			step_all(m, 3);
		m[1].server->job.steps += (uint64_t)other;
		m[1].server->to_zero = NULL;
		assert_int_equal(others_connect(m[1].server), 0);
		run_out(m, 3);
		assert_non_null(strstr(m[1].text, other ? "has 1000001, the job 1000000"
							: "number 1 is here already"));
		close_members(m, 3);
	}
	tern_model_free(model);
}

/* It leads to a server of which nobody has told yet what it is. */
static void test_a_server_that_comes_before_the_job_is_compared_with_it(void **state)
{
	const struct setup three = {"tcp", "softmax", "sgd", 3, 0, 0, 0, 0, 0};
	const struct setup two = {"tcp", "softmax", "sgd", 2, 2, 2, 5, TERN_MODE_SYNC, 0};
	const struct setup one = {"tcp", "softmax", "sgd", 1, 1, 1, 5, TERN_MODE_SYNC, 0};
	struct tern_model *model = make_model(&one);
	struct member m[6] = {0};
	char addresses[MEMBERS_MAX][128];

	(void)state;
	start_servers(m, &three, addresses);
	start_worker(&m[3], &two, model, addresses, NULL, 0);
	while (!m[1].server->has_job)
		step_all(m, 4);
	strcpy(m[1].server->workers[0]->zero, addresses[2]);
	start_worker(&m[4], &two, model, addresses, NULL, 1);
	while (!others_find(m[2].server, 1))
		step_all(m, 5);
	start_worker(&m[5], &one, model, &addresses[2], NULL, 0);
	while (!all_ended(&m[1], 5))
		step_all(m, 6);
	assert_non_null(strstr(m[1].text, "workers: server 1"));
	assert_false(m[0].ended);
	for (unsigned i = 1; i < 6; i++)
		assert_int_equal(m[i].status == 0, i == 2 || i == 5);
	close_members(m, 6);
	tern_model_free(model);
}

/* What a name or a path brought along, and what was cut inside a character. */
static void test_an_end_is_told_whatever_its_text_is(void **state)
{
	const struct setup setup = {
		"shm", "softmax", "sgd", 1, 2, 2, 1000000, TERN_MODE_SYNC, 0};
	struct tern_model *model = make_model(&setup);
	char addresses[MEMBERS_MAX][128], umlauts[601] = "";

	(void)state;
	for (int i = 0; i < 300; i++)
		strcat(umlauts, "\xc3\xbc");
	for (int who = 0; who < 2; who++) {
		struct member m[3] = {0};

		start_servers(m, &setup, addresses);
		start_workers(m + 1, &setup, model, addresses, NULL);
		while (m[1].step < 2 || m[2].step < 2)
			step_all(m, 3);
		if (who == 0)
			tern_server_stop(m[0].server, umlauts, false);
		else
			tern_worker_stop(m[1].worker, "caf\xe9 is closed");
		run_out(m, 3);
		assert_non_null(strstr(m[2].text, who ? "caf? is closed" : "????"));
		if (who == 1)
			assert_non_null(strstr(m[0].text, "caf? is closed"));
		close_members(m, 3);
	}
	tern_model_free(model);
}

/* Nothing may be saved of it any more, and nobody waits for a file. */
static void test_a_worker_that_was_stopped_does_not_try_to_save_again(void **state)
{
	const struct setup setup = {
		"shm", "softmax", "sgd", 1, 1, 1, 2, TERN_MODE_SYNC, 0};
	struct tern_model *model = make_model(&setup);
	char addresses[MEMBERS_MAX][128];
	struct member m[2] = {0};

	(void)state;
	start_servers(m, &setup, addresses);
	start_workers(m + 1, &setup, model, addresses, "/no/such/directory/model");
	while (!m[1].worker->save_failed)
		step_all(m, 2);
	assert_true(m[1].worker->save_timer.slot != 0);
	tern_worker_stop(m[1].worker, "enough");
	assert_int_equal(m[1].worker->save_timer.slot, 0);
	run_out(m, 2);
	close_members(m, 2);
	tern_model_free(model);
}

/* A loss is told even when nobody has a step left to take. */
static void test_a_slot_that_comes_after_the_last_step_needs_no_room(void **state)
{
	const struct setup setup = {
		"shm", "softmax", "sgd", 1, 1, 1, 2, TERN_MODE_SYNC, 0};
	struct tern_model *model = make_model(&setup);
	char addresses[MEMBERS_MAX][128];
	struct member m[2] = {0};

	(void)state;
	start_servers(m, &setup, addresses);
	start_workers(m + 1, &setup, model, addresses, "/no/such/directory/model");
	while (!m[1].worker->save_failed)
		step_all(m, 2);
	assert_int_equal(slots_add(m[1].worker, 1, 1), 0);
	assert_int_equal(m[1].worker->room_count, 1);
	tern_worker_stop(m[1].worker, "enough");
	run_out(m, 2);
	close_members(m, 2);
	tern_model_free(model);
}

/* ---- messages that cannot be ---- */

static void until_step(struct member *m, unsigned worker, uint64_t step, unsigned all)
{
	while (m[worker].step < step)
		step_all(m, all);
}

/* Server 0 says it to the worker: the worker ends, and the job with it. */
static void check_worker_refuses(const char *text, const char *why)
{
	const struct setup setup = {
		"tcp", "softmax", "sgd", 1, 1, 1, 1000000, TERN_MODE_SYNC, 0};
	struct member m[2] = {0};
	char addresses[MEMBERS_MAX][128];
	struct tern_model *model = make_model(&setup);

	start_servers(m, &setup, addresses);
	start_workers(m + 1, &setup, model, addresses, NULL);
	until_step(m, 1, 5, 2);
	tern_talk_say(&m[0].server->workers[0]->talk, json_loads(text, 0, NULL));
	run_out(m, 2);
	assert_int_equal(m[1].status, -EPROTO);
	assert_non_null(strstr(m[1].text, why));
	close_members(m, 2);
	tern_model_free(model);
}

static void test_a_worker_believes_no_number_that_cannot_be(void **state)
{
	static const char *const late[] = {
		"{\"type\":\"late\"}",
		"{\"type\":\"late\",\"silent_ns\":-1}",
		"{\"type\":\"late\",\"silent_ns\":1.5}",
	};
	static const char *const lost[] = {
		"{\"type\":\"lost\"}",
		"{\"type\":\"lost\",\"worker\":\"0\"}",
		"{\"type\":\"lost\",\"worker\":1,\"generation\":1,\"finisher\":0,"
		"\"slots\":[]}",
		"{\"type\":\"lost\",\"worker\":-1,\"generation\":-1,\"finisher\":0,"
		"\"slots\":[]}",
	};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(late); i++)
		check_worker_refuses(late[i], "does not say for how long");
	for (size_t i = 0; i < TERN_ARRAY_SIZE(lost); i++)
		check_worker_refuses(lost[i], "leases slots that cannot be leased");
}

/* Server 0 says to server 1 what it has decided about worker 1. */
static void check_server_refuses(const char *decision)
{
	const struct setup setup = {
		"tcp", "softmax", "sgd", 2, 2, 2, 1000000, TERN_MODE_SYNC, 0};
	struct member m[4] = {0};
	char addresses[MEMBERS_MAX][128];
	struct tern_model *model = make_model(&setup);

	start_servers(m, &setup, addresses);
	start_workers(m + 2, &setup, model, addresses, NULL);
	until_step(m, 2, 5, 4);
	tern_talk_say(&others_find(m[0].server, 1)->talk, json_loads(decision, 0, NULL));
	run_out(m, 4);
	assert_int_equal(m[1].status, -EPROTO);
	assert_non_null(strstr(m[1].text, "leases slots that cannot be leased"));
	close_members(m, 4);
	tern_model_free(model);
}

static void test_a_server_believes_no_decision_that_cannot_be(void **state)
{
	static const char *const decisions[] = {
		"{\"type\":\"lost\",\"worker\":1,\"generation\":-1,"
		"\"slots\":[[1],[]]}",
		"{\"type\":\"lost\",\"worker\":1,\"generation\":3,\"slots\":[[1],[]]}",
		"{\"type\":\"lost\",\"worker\":1,\"slots\":[[1],[]]}",
		"{\"type\":\"lost\",\"worker\":1,\"generation\":1}",
		"{\"type\":\"lost\",\"worker\":1,\"generation\":1,"
		"\"slots\":[[2],[]]}",
		"{\"type\":\"lost\",\"worker\":1,\"generation\":1,"
		"\"slots\":[[\"1\"],[]]}",
	};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(decisions); i++)
		check_server_refuses(decisions[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			test_without_any_worker_the_job_fails_with_the_first_cause),
		cmocka_unit_test(test_a_loss_before_the_start_makes_room_for_another),
		cmocka_unit_test(test_a_server_that_was_complete_waits_again),
		cmocka_unit_test(
			test_a_server_outlives_a_job_that_server_0_has_forgotten),
		cmocka_unit_test(test_a_given_up_connection_to_server_0_ends),
		cmocka_unit_test(test_a_server_that_hears_late_of_the_start_ends),
		cmocka_unit_test(test_a_job_without_workers_is_forgotten),
		cmocka_unit_test(test_a_norm_that_cannot_move_ends_the_job),
		cmocka_unit_test(test_who_is_waited_for_is_said),
		cmocka_unit_test(test_a_worker_needs_room_for_two_of_its_slots_only),
		cmocka_unit_test(
			test_a_device_that_breaks_at_the_birth_of_a_worker_is_told),
		cmocka_unit_test(test_a_loss_without_room_for_it_ends_the_job_in_words),
		cmocka_unit_test(
			test_a_server_that_finds_itself_in_the_place_of_server_0_says_so),
		cmocka_unit_test(
			test_a_second_server_of_a_number_or_of_another_job_is_refused),
		cmocka_unit_test(
			test_a_server_that_comes_before_the_job_is_compared_with_it),
		cmocka_unit_test(test_an_end_is_told_whatever_its_text_is),
		cmocka_unit_test(
			test_a_worker_that_was_stopped_does_not_try_to_save_again),
		cmocka_unit_test(
			test_a_slot_that_comes_after_the_last_step_needs_no_room),
		cmocka_unit_test(test_a_worker_believes_no_number_that_cannot_be),
		cmocka_unit_test(test_a_server_believes_no_decision_that_cannot_be),
	};

	return cmocka_run_group_tests(tests, make_data, free_data);
}
