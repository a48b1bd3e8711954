/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of jobs that cannot start or continue. If a job must end, the end and its cause
 * must be reported to every remaining process. */
#include "server/membership.h"
#include "tests/server/train_bed.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/rendezvous.h"

#define FOR_EVER 1000000u

static void test_without_any_worker_the_job_fails_with_the_first_cause(void **state)
{
	const struct setup setup = {
		"shm", "softmax", "sgd", 2, 2, 2, FOR_EVER, TERN_MODE_SYNC, 0};
	struct job j;

	(void)state;
	job_start(&j, &setup);
	until_step(&j, 3, 5);
	worker_give_up(j.m[3].worker, -ENOMEM, "nothing works here");
	JOB_UNTIL(&j, j.m[2].has_more);
	close_member(&j.m[2]);
	job_run_out(&j);
	assert_int_equal(j.m[3].status, -ENOMEM);
	for (int i = 0; i < 2; i++) {
		/* Server 1 is told by server 0, which alone knows whether another worker comes. */
		assert_int_equal(j.m[i].status, i == 0 ? -EPIPE : -ECANCELED);
		assert_non_null(strstr(j.m[i].text, "no worker is left: worker 1"));
		assert_non_null(strstr(j.m[i].text, "nothing works here"));
	}
	job_close(&j);
}

/* ---- before the training starts ---- */

/* If a worker is lost before the start, the other workers wait for a replacement, and
 * train with it. */
static void test_a_loss_before_the_start_makes_room_for_another(void **state)
{
	const struct setup all = {"shm", "softmax", "sgd", 2, 3, 3, 5, TERN_MODE_SYNC, 0};
	struct job j;

	(void)state;
	job_start(&j, &all);
	/* The third worker is lost before it has sent a message. */
	close_member(&j.m[4]);
	until_joined(&j, 0, 2);
	until_joined(&j, 1, 2);
	close_member(&j.m[3]);
	until_joined(&j, 0, 1);
	until_joined(&j, 1, 1);
	job_join(&j, 2);
	job_join(&j, 1);
	job_run_out(&j);
	check_good(&j, 0);
	job_close(&j);
}

/* A worker hears before the steps that it is cut off. If it has been in the job, it ends with -EAGAIN, after
 * which its process makes it anew. */
static void test_a_worker_whose_place_is_freed_before_the_start_comes_again(void **state)
{
	const struct setup two = {"tcp", "softmax", "sgd", 1, 2, 2, 5, TERN_MODE_SYNC, 0};
	struct job j;

	(void)state;
	for (int returns = 0; returns < 2; returns++) {
		job_open(&j, &two);
		job_join(&j, 0);
		until_joined(&j, 0, 1);
		j.m[1].worker->opts.goes_back = true;
		j.m[1].worker->opts.returns = returns;
		lease_tell_lost(j.m[0].server->workers[0], j.m[0].server->workers[0],
			"it has failed");
		until_ended(&j, 1, 1);
		assert_int_equal(j.m[1].status, returns ? -EAGAIN : -ECONNABORTED);
		assert_non_null(strstr(j.m[1].text, "it has failed"));
		job_close(&j);
	}
}

/* The server drops the first message of a worker that it has just accepted: the worker
 * must send it again. */
static void test_a_worker_that_was_not_heard_joins_again(void **state)
{
	const struct setup one = {"tcp", "softmax", "sgd", 1, 1, 1, 5, TERN_MODE_SYNC, 0};
	uint64_t limit_ns = tern_clock_ns() + 30 * TERN_NS_PER_S;
	struct server_peer *guest;
	struct job j;

	(void)state;
	job_start(&j, &one);
	while (tern_list_empty(&j.m[0].server->peers) && tern_clock_ns() < limit_ns) {
		step_all(&j.m[1], 1);
		step_all(&j.m[0], 1);
	}
	guest = tern_list_first(&j.m[0].server->peers, struct server_peer, node);
	assert_false(j.m[0].server->has_job);
	tern_talk_skip(&guest->talk);
	JOB_UNTIL(&j, !guest->talk.skips);
	assert_false(j.m[0].server->has_job);
	job_run_out(&j);
	check_good(&j, 0);
	job_close(&j);
}

static bool is_refused(struct tern_server *s, const char *type)
{
	json_t *message = json_pack("{s:s, s:i, s:i, s:i}", "type", type, "slot", 0,
		"version", 0, "generation", 1);

	server_heard(&s->workers[0]->talk, message);
	json_decref(message);
	return s->workers[0]->refused;
}

/* No process waits for server 1, which has no chunk. So messages from a worker in the
 * middle of the job, or at its end, may reach server 1 before server 0's message to
 * start. */
static void check_may_come_before_the_start(enum tern_mode mode, const char *type)
{
	const struct setup all = {"tcp", "softmax", "sgd", 2, 1, 1, 5000, mode, 0};
	struct job j;

	job_start(&j, &all);
	JOB_UNTIL(&j, j.m[0].server->running && j.m[1].server->running);
	assert_int_equal(j.m[1].server->chunk_count, 0);
	assert_false(j.m[2].ended);
	for (unsigned i = 0; i < 2; i++) {
		j.m[i].server->running = false;
		/* As if the worker had no slot (gradients to compute). */
		j.m[i].server->workers[0]->follows = false;
	}
	assert_false(is_refused(j.m[1].server, type));
	if (strcmp(type, "where") != 0)
		assert_true(is_refused(j.m[0].server, type));
	job_close(&j);
}

static void test_only_a_server_without_a_chunk_hears_of_steps_before_the_start(
	void **state)
{
	(void)state;
	check_may_come_before_the_start(TERN_MODE_SYNC, "take");
	check_may_come_before_the_start(TERN_MODE_SYNC, "holds");
	check_may_come_before_the_start(TERN_MODE_SYNC, "where");
	check_may_come_before_the_start(TERN_MODE_ASYNC, "pull");
}

/* The first worker defines the job. The server forgets the job when no worker is
 * connected any more. */
static void test_a_job_without_workers_is_forgotten(void **state)
{
	const struct setup wrong = {
		"shm", "mlp:20", "adam", 1, 2, 2, 5, TERN_MODE_SYNC, 0};
	const struct setup right = {
		"shm", "softmax", "sgd", 1, 2, 4, 5, TERN_MODE_SYNC, 0.5};
	struct tern_model *typo = make_model(&wrong);
	struct job j;

	(void)state;
	job_open(&j, &right);
	start_worker(job_add(&j), &wrong, typo, j.addresses, NULL, 1);
	until_joined(&j, 0, 1);
	job_join(&j, 0);
	until_ended(&j, 2, 1);
	assert_non_null(strstr(j.m[2].text, "server 0 refused this worker"));
	tern_worker_ask_to_leave(j.m[1].worker, "a typo");
	JOB_UNTIL(&j, !j.m[0].server->has_job);
	job_join(&j, 0);
	job_join(&j, 1);
	job_run_out(&j);
	check_good(&j, 1u << 1 | 1u << 2);
	job_close(&j);
	tern_model_free(typo);
}

/* A server cannot receive the norm of its peer. The peer is still connected, so if this
 * were no error the job would wait for ever. */
static void test_a_norm_that_cannot_move_ends_the_job(void **state)
{
	const struct setup setup = {
		"tcp", "mlp:400", "sgd", 2, 2, 2, FOR_EVER, TERN_MODE_SYNC, 0.5};
	struct job j;

	(void)state;
	job_start(&j, &setup);
	until_step(&j, 2, 3);
	/* From here on the buffer is outside of its memory. */
	j.m[1].server->total.offset += 1u << 30;
	job_run_out(&j);
	/* Restores the buffer, so that the pool can take it back. */
	j.m[1].server->total.offset -= 1u << 30;
	for (int i = 4; i-- > 0;) {
		assert_int_not_equal(j.m[i].status, 0);
		assert_non_null(strstr(j.m[i].text, "a tensor did not come through"));
	}
	job_close(&j);
}

static char said[400]; /* last line that a process logged about what it waits for */

static void say(void *arg, const char *text)
{
	(void)arg;
	snprintf(said, sizeof(said), "%s", text);
}

static void say_note(void *arg, const char *text, bool comes)
{
	(void)comes;
	say(arg, text);
}

/* Calls the timer's function as if the timer were due. */
static void fire(struct tern_timer *timer)
{
	*said = '\0';
	timer->fire(timer);
}

/* Checks the line of a worker that has all parameters of the next version (this is
 * simulated) while its gradients are still being sent. */
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
	assert_non_null(
		strstr(text, "this worker waits for servers to take its gradients"));
	w->computing = computing;
	for (uint32_t i = 0; i < w->plan.chunk_count; i++)
		parts[i].req.status = status[i];
}

/* Only worker 1 has joined: checks what it and server 0 say that they wait for. */
static void expect_wait_for_others(struct job *j)
{
	struct tern_worker *w = j->m[2].worker;

	fire(&w->wait_timer);
	assert_non_null(strstr(
		said, "no step for 10 s: this worker waits for server 0 at shm://"));
	until_joined(j, 0, 1);
	j->m[0].server->opts.note = say_note;
	fire(&j->m[0].server->start_timer);
	assert_string_equal(
		said, "1 of 3 workers are here, waiting for worker 0, worker 2");
	JOB_UNTIL(j, w->state != WORKER_JOINING);
	fire(&w->wait_timer);
	assert_string_equal(said, "no step for 20 s: this worker waits for other workers "
				  "or servers to join");
}

static void test_who_is_waited_for_is_said(void **state)
{
	const struct setup all = {"shm", "softmax", "sgd", 2, 3, 3, 5, TERN_MODE_SYNC, 0};
	struct tern_worker *w;
	struct job j;

	(void)state;
	job_open(&j, &all);
	w = job_join(&j, 1)->worker;
	w->opts.waiting = say;
	expect_wait_for_others(&j);
	job_join(&j, 0);
	until_joined(&j, 0, 2);
	job_join(&j, 2);
	until_step(&j, 2, 2);
	/* Only this worker runs, so at least one server lacks gradients that it needs. */
	for (int turn = 0; turn < 2000 && !w->over; turn++)
		step_all(&j.m[2], 1);
	fire(&w->wait_timer); /* no line: the worker has made steps since the last one */
	assert_string_equal(said, "");
	fire(&w->wait_timer);
	assert_true(strstr(said, "parameters from server") || w->computing ||
		    w->state > WORKER_RUNNING);
	expect_wait_for_room(w);
	job_run_out(&j);
	fire(&w->wait_timer); /* no line: the job is over */
	assert_string_equal(said, "");
	job_close(&j);
}

/* ---- jobs that need too much memory ---- */

/* Opens worker 0 of `setup`; the setup may have more workers than the test starts. */
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
	engine_computer_describe(m->computer, &job);
	return tern_worker_new(&(struct tern_worker_opts){.domain = m->domain,
				       .ctx = m->ctx,
				       .computer = &m->computer->computer,
				       .job = &job,
				       .ended = worker_ended,
				       .arg = m},
		&m->worker, why);
}

/* The gradients of all slots (batches of a step) would need more memory than a pool may
 * have; those of two slots do not, and two suffice. */
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
		/* Succeeds for the memory of the two versions of the parameters. */
		return 0;
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

/* After the loss of a worker, the gradients of all slots of the remaining one would need
 * more memory than a pool may have. It has two slots and as many buffers, so that chunks
 * can still take turns. */
static void test_a_loss_needs_no_more_room_where_buffers_are_enough(void **state)
{
	const struct setup setup = {
		"tcp", "mlp:512,480", "sgd", 1, 2, 2, FOR_EVER, TERN_MODE_SYNC, 0};
	struct tern_server *s;
	uint64_t before, step;
	struct job j;

	(void)state;
	staging_bytes = 1;
	job_start(&j, &setup);
	staging_bytes = 0;
	s = j.m[0].server;
	until_step(&j, 1, 3);
	before = s->staging_bytes;
	s->staging_most = 1ull << 40;
	close_member(&j.m[1]);
	JOB_UNTIL(&j, j.m[2].has_more);
	step = j.m[2].step;
	until_step(&j, 2, step + 3);
	assert_int_equal(s->staging_bytes, before);
	assert_false(j.m[0].ended);
	job_close(&j);
}

static void test_a_loss_without_room_for_it_ends_the_job_in_words(void **state)
{
	const struct setup setup = {
		"tcp", "softmax", "sgd", 1, 3, 3, FOR_EVER, TERN_MODE_SYNC, 0};
	struct job j;

	(void)state;
	job_start(&j, &setup);
	until_step(&j, 1, 5);
	j.m[0].server->staging_most = 1ull << 40;
	close_member(&j.m[1]);
	JOB_UNTIL(&j, j.m[2].has_more || j.m[3].has_more);
	close_member(&j.m[2]);
	job_run_out(&j);
	assert_non_null(strstr(j.m[0].text,
		"with 3 slots and 1 workers, server 0 needs room for 3 gradients of its "
		"share, 1099511627776 bytes"));
	assert_non_null(strstr(j.m[3].text, j.m[0].text));
	job_close(&j);
}

/* ---- the text that explains an end ---- */

/* The text that explains an end may contain bytes from a name or a path that are not
 * UTF-8, or may be cut inside a character. */
static void test_an_end_is_told_whatever_its_text_is(void **state)
{
	const struct setup setup = {
		"shm", "softmax", "sgd", 1, 2, 2, FOR_EVER, TERN_MODE_SYNC, 0};
	char umlauts[601] = "";

	(void)state;
	for (int i = 0; i < 300; i++)
		strcat(umlauts, "\xc3\xbc");
	for (int who = 0; who < 2; who++) {
		struct job j;

		job_start(&j, &setup);
		JOB_UNTIL(&j, j.m[1].step >= 2 && j.m[2].step >= 2);
		if (who == 0)
			tern_server_stop(j.m[0].server, umlauts, false);
		else
			tern_worker_stop(j.m[1].worker, "caf\xe9 is closed");
		job_run_out(&j);
		assert_non_null(strstr(j.m[2].text, who ? "caf? is closed" : "????"));
		if (who == 1)
			assert_non_null(strstr(j.m[0].text, "caf? is closed"));
		job_close(&j);
	}
}

/* Starts a job whose worker has made all its steps, and fails to save. */
static struct tern_worker *start_unsaved(struct job *j)
{
	static const struct setup setup = {
		"shm", "softmax", "sgd", 1, 1, 1, 2, TERN_MODE_SYNC, 0};

	job_open(j, &setup);
	start_worker(job_add(j), &setup, j->model, j->addresses,
		"/no/such/directory/model", 0);
	JOB_UNTIL(j, j->m[1].worker->save_failed);
	return j->m[1].worker;
}

/* A worker that was stopped must not try to save again, and no process may wait for its
 * file. */
static void test_a_worker_that_was_stopped_does_not_try_to_save_again(void **state)
{
	struct tern_worker *w;
	struct job j;

	(void)state;
	w = start_unsaved(&j);
	assert_true(w->save_timer.place != 0);
	tern_worker_stop(w, "enough");
	assert_int_equal(w->save_timer.place, 0);
	job_run_out(&j);
	job_close(&j);
}

/* A worker may get a lost worker's slot even when no step is left to compute. */
static void test_a_slot_that_comes_after_the_last_step_needs_no_room(void **state)
{
	struct tern_worker *w;
	struct job j;

	(void)state;
	w = start_unsaved(&j);
	assert_int_equal(slots_add(w, 1, 1), 0);
	assert_int_equal(w->room_count, 1);
	tern_worker_stop(w, "enough");
	job_run_out(&j);
	job_close(&j);
}

/* ---- a loss while the servers stop for a worker that comes ---- */

static void take(struct server_peer *p, json_int_t slot, uint64_t version)
{
	json_t *message = json_pack("{s:s, s:I, s:I, s:I}", "type", "take", "slot", slot,
		"version", (json_int_t)version, "generation", (json_int_t)1);

	server_heard(&p->talk, message);
	json_decref(message);
}

/* Server 1 stands, and worker 0 takes slots of a loss by which server 0 has decided, and of which server 1
 * hears later. Then it must receive what server 0, which does not stand, may need; what belongs to
 * the version at which the servers stop waits for the end of the change. */
static void test_a_slot_is_taken_once_the_loss_is_known(void **state)
{
	const struct setup setup = {
		"tcp", "softmax", "sgd", 2, 2, 4, FOR_EVER, TERN_MODE_SYNC, 0};
	struct server_peer *taker;
	struct tern_server *s;
	json_t *decision;
	uint64_t version;
	struct job j;

	(void)state;
	job_start(&j, &setup);
	until_step(&j, 2, 5);
	s = j.m[1].server;
	taker = s->workers[0];
	version = s->chunks[0].version;
	s->change.version = version + 1;
	s->change.reached = true;
	take(taker, 1, version);
	take(taker, 3, version + 1);
	assert_int_equal(json_array_size(taker->kept), 2);
	decision = json_pack("{s:s, s:I, s:s, s:I, s:[[I, I], []]}", "type", "lost",
		"worker", (json_int_t)1, "text", "gone", "generation", (json_int_t)1,
		"slots", (json_int_t)1, (json_int_t)3);
	lease_on_decision(s->to_zero, decision);
	json_decref(decision);
	assert_ptr_equal(s->leases[1].holder, taker);
	assert_null(s->leases[3].holder);
	assert_int_equal(json_array_size(taker->kept), 1);
	s->change.reached = false;
	change_hear_kept(s);
	assert_null(taker->kept);
	job_close(&j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			test_without_any_worker_the_job_fails_with_the_first_cause),
		cmocka_unit_test(test_a_loss_before_the_start_makes_room_for_another),
		cmocka_unit_test(
			test_a_worker_whose_place_is_freed_before_the_start_comes_again),
		cmocka_unit_test(test_a_worker_that_was_not_heard_joins_again),
		cmocka_unit_test(
			test_only_a_server_without_a_chunk_hears_of_steps_before_the_start),
		cmocka_unit_test(test_a_job_without_workers_is_forgotten),
		cmocka_unit_test(test_a_norm_that_cannot_move_ends_the_job),
		cmocka_unit_test(test_who_is_waited_for_is_said),
		cmocka_unit_test(test_a_worker_needs_room_for_two_of_its_slots_only),
		cmocka_unit_test(
			test_a_device_that_breaks_at_the_birth_of_a_worker_is_told),
		cmocka_unit_test(test_a_loss_needs_no_more_room_where_buffers_are_enough),
		cmocka_unit_test(test_a_loss_without_room_for_it_ends_the_job_in_words),
		cmocka_unit_test(test_an_end_is_told_whatever_its_text_is),
		cmocka_unit_test(
			test_a_worker_that_was_stopped_does_not_try_to_save_again),
		cmocka_unit_test(
			test_a_slot_that_comes_after_the_last_step_needs_no_room),
		cmocka_unit_test(test_a_slot_is_taken_once_the_loss_is_known),
	};

	return cmocka_run_group_tests(tests, make_data, free_data);
}
