/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the connection from another server to server 0: server 0 may come late, have another job, or not be
 * at the address that is known. */
#include "server/membership.h"
#include "tests/server/train_bed.h"

#include <errno.h>
#include <string.h>

#include "rendezvous/rendezvous.h"

#define FOR_EVER 1000000u

static bool has_peer(const struct tern_server *s, const struct server_peer *p)
{
	tern_list_for_each (n, &s->peers)
		if (n == &p->node)
			return true;
	return false;
}

/* Makes a worker that has announced its end leave at once. It would otherwise wait for a
 * server that does not exist. */
static void leave_at_once(struct job *j, struct member *m)
{
	JOB_UNTIL(j, m->worker->over);
	tern_timer_set(m->ctx, &m->worker->end_timer, 0);
}

/* Starts two servers. Worker 0 has a wrong address of server 0; worker 1, which starts
 * later, has the right one. So server 1 is the only one that both workers join, and it
 * then looks for server 0 at the address that worker 0 has given. */
static void complete_server_1_alone(struct job *j, const struct setup *setup)
{
	char wrong[2][128] = {"tcp://127.0.0.1:1"};

	job_open(j, setup);
	strcpy(wrong[1], j->addresses[1]);
	start_worker(job_add(j), setup, j->model, wrong, NULL, 0);
	until_joined(j, 1, 1);
	job_join(j, 1);
	until_joined(j, 1, 2);
	assert_non_null(j->m[1].server->to_zero);
}

/* Server 1, which all workers have joined, connects to server 0. Then one of the workers
 * turns out to have a wrong address of server 0, and leaves: server 1 must wait for its
 * replacement. */
static void test_a_server_that_was_complete_waits_again(void **state)
{
	const struct setup all = {"tcp", "softmax", "sgd", 2, 2, 2, 5, TERN_MODE_SYNC, 0};
	struct job j;

	(void)state;
	complete_server_1_alone(&j, &all);
	tern_worker_ask_to_leave(j.m[2].worker, "a typo");
	leave_at_once(&j, &j.m[2]);
	JOB_UNTIL(&j, j.m[1].server->workers[0]->left);
	/* Ends the attempt to connect now. */
	j.m[1].server->to_zero->peer->dial.give_up_ns = 0;
	until_joined(&j, 1, 1);
	assert_false(j.m[0].ended || j.m[1].ended || j.m[3].ended);
	job_join(&j, 0);
	job_run_out(&j);
	check_good(&j, 1u << 2);
	job_close(&j);
}

/* Gives up the present attempt to reach server 0, and checks where it was, and begins the next one. */
static void fail_at(struct job *j, const char *address)
{
	struct tern_server *s = j->m[1].server;

	assert_string_equal(s->to_zero->zero, address);
	s->to_zero->peer->dial.give_up_ns = 0;
	JOB_UNTIL(j, !s->to_zero);
	tern_timer_set(j->m[1].ctx, &s->zero_timer, 0);
	JOB_UNTIL(j, s->to_zero);
}

/* A process has told server 1 that it is server 0, and the workers have joined another one. */
static void test_server_0_is_looked_for_at_both_addresses(void **state)
{
	const struct setup all = {"tcp", "softmax", "sgd", 2, 2, 2, 5, TERN_MODE_SYNC, 0};
	static const char workers_zero[] = "tcp://127.0.0.1:1";
	static char told[] = "tcp://127.0.0.1:2";
	struct server_peer *teller;
	struct job j;

	(void)state;
	complete_server_1_alone(&j, &all);
	teller = j.m[1].server->workers[0]; /* it has the number 0 */
	teller->address = told;
	fail_at(&j, workers_zero);
	fail_at(&j, workers_zero);
	fail_at(&j, told);
	fail_at(&j, workers_zero);
	fail_at(&j, told);
	teller->address = NULL;
	job_close(&j);
}

/* Server 0 has told server 1 to try again later; this makes server 1 try now. */
static void comes_again_now(struct job *j)
{
	tern_timer_set(j->m[1].ctx, &j->m[1].server->zero_timer, 0);
}

/* Server 1, which the worker has joined, connects to server 0 before the worker has told server 0 about the
 * job. */
static void test_a_server_that_comes_before_the_job_comes_again(void **state)
{
	const struct setup all = {"tcp", "softmax", "sgd", 2, 1, 1, 5, TERN_MODE_SYNC, 0};
	uint64_t limit_ns = tern_clock_ns() + 30 * TERN_NS_PER_S;
	struct job j;

	(void)state;
	job_start(&j, &all);
	while (!j.m[1].server->to_zero && tern_clock_ns() < limit_ns)
		step_all(&j.m[1], 2); /* runs server 1 and the worker, but not server 0 */
	while (j.m[1].server->to_zero && tern_clock_ns() < limit_ns)
		step_all(j.m, 2); /* runs the servers, but not the worker */
	assert_null(j.m[1].server->to_zero);
	assert_false(j.m[0].server->has_job);
	JOB_UNTIL(&j, j.m[0].server->has_job);
	comes_again_now(&j);
	job_run_out(&j);
	check_good(&j, 0);
	job_close(&j);
}

/* The server at the address of server 0 never gets a job, so server 1 must give up after
 * a time limit. */
static void test_a_server_asks_for_a_job_until_its_limit(void **state)
{
	const struct setup all = {"tcp", "softmax", "sgd", 2, 1, 1, 5, TERN_MODE_SYNC, 0};
	uint64_t limit_ns = tern_clock_ns() + 30 * TERN_NS_PER_S;
	struct job j;

	(void)state;
	job_start(&j, &all);
	while (!j.m[1].server->to_zero && tern_clock_ns() < limit_ns)
		step_all(&j.m[1], 2); /* runs server 1 and the worker, but not server 0 */
	j.m[1].server->again_count = START_AGAIN_MAX - 2;
	for (unsigned i = 0; i < 2; i++) {
		while (j.m[1].server->to_zero && !j.m[1].server->over &&
			tern_clock_ns() < limit_ns)
			step_all(j.m, 2); /* runs the servers, but not the worker */
		assert_int_equal(j.m[1].server->over, i == 1);
		comes_again_now(&j);
		while (!j.m[1].server->to_zero && tern_clock_ns() < limit_ns)
			step_all(j.m, 2);
	}
	JOB_UNTIL(&j, j.m[1].ended && j.m[2].ended);
	assert_int_equal(j.m[1].status, -EPROTO);
	assert_non_null(strstr(j.m[1].text, "has had no job for 300 s"));
	assert_non_null(strstr(j.m[2].text, j.m[1].text));
	assert_false(j.m[0].ended);
	job_close(&j);
}

/* A third server is never found. Server 0 loses the worker first, and forgets the job.
 * Server 1 loses the worker before it is told that, or (`late`) afterwards. */
static void check_forgotten_job(bool late)
{
	const struct setup two = {"tcp", "softmax", "sgd", 2, 1, 1, 5, TERN_MODE_SYNC, 0};
	const struct setup three = {
		"tcp", "softmax", "sgd", 3, 1, 1, 5, TERN_MODE_SYNC, 0};
	struct job j;

	job_open(&j, &two);
	strcpy(j.addresses[2], "tcp://127.0.0.1:1");
	start_worker(job_add(&j), &three, j.model, j.addresses, NULL, 0);
	JOB_UNTIL(&j, j.m[0].server->joined_count && others_find(j.m[0].server, 1));
	lease_lost(j.m[0].server->workers[0], false, "it is gone");
	if (late)
		JOB_UNTIL(&j, !j.m[1].server->to_zero);
	lease_lost(j.m[1].server->workers[0], false, "it is gone");
	JOB_UNTIL(&j, !j.m[1].server->has_job || j.m[0].ended || j.m[1].ended);
	leave_at_once(&j, &j.m[2]);
	job_join(&j, 0);
	job_run_out(&j);
	check_good(&j, 1u << 2);
	job_close(&j);
}

static void test_a_server_outlives_a_job_that_server_0_has_forgotten(void **state)
{
	(void)state;
	check_forgotten_job(false);
	check_forgotten_job(true);
}

/* Server 1 has given up a connection to server 0, and a receive on that connection fails.
 * Although the other end is no guest (a process that has not joined), the connection gets
 * as much time to end as a guest's (guest_timer). */
static void test_a_given_up_connection_to_server_0_ends(void **state)
{
	const struct setup two = {"tcp", "softmax", "sgd", 2, 2, 2, 5, TERN_MODE_SYNC, 0};
	struct server_peer *zero;
	struct job j;

	(void)state;
	complete_server_1_alone(&j, &two);
	zero = j.m[1].server->to_zero;
	start_again(j.m[1].server);
	server_broken(&zero->talk, -EIO);
	tern_timer_set(j.m[1].ctx, &zero->guest_timer, 0);
	JOB_UNTIL(&j, !has_peer(j.m[1].server, zero));
	assert_false(j.m[1].ended);
	job_close(&j);
}

/* Server 0 has the only chunk, so its message to start may reach server 1 after the
 * worker has said goodbye to server 1. */
static void test_a_server_that_hears_late_of_the_start_ends(void **state)
{
	const struct setup all = {"tcp", "softmax", "sgd", 2, 1, 1, 5, TERN_MODE_SYNC, 0};
	struct job j;

	(void)state;
	job_start(&j, &all);
	JOB_UNTIL(&j, j.m[1].server->running);
	/* As if the message to start had not arrived yet. */
	j.m[1].server->running = false;
	JOB_UNTIL(&j, j.m[2].ended && j.m[1].server->bye_count);
	assert_false(j.m[1].ended);
	start_on_start(j.m[1].server, NULL);
	job_run_out(&j);
	check_good(&j, 0);
	job_close(&j);
}

/* ---- servers whose address of server 0 is wrong ---- */

static void check_server_that_finds_itself(const char *fabric)
{
	const struct setup setup = {
		fabric, "mlp:300", "sgd", 2, 2, 2, 20, TERN_MODE_SYNC, 0};
	struct job j;

	job_open(&j, &setup);
	job_join(&j, 0);
	JOB_UNTIL(&j, j.m[1].server->has_job);
	strcpy(j.m[1].server->workers[0]->zero, j.addresses[1]);
	job_join(&j, 1);
	until_ended(&j, 1, 3);
	for (int i = 1; i < 4; i++)
		assert_true(j.m[i].status < 0);
	assert_false(j.m[0].ended); /* the server still waits for another job */
	if (!strstr(j.m[1].text, "leads server 1 to server 1"))
		fail_msg("%s: %s", fabric, j.m[1].text);
	job_close(&j);
}

static void test_a_server_that_finds_itself_in_the_place_of_server_0_says_so(void **state)
{
	(void)state;
	check_server_that_finds_itself("tcp");
	check_server_that_finds_itself("shm");
	check_server_that_finds_itself("auto");
}

/* While the job makes steps, server 1 connects to server 0 a second time, now with a job
 * that has `more_steps` more steps. Server 0 must refuse it, and the reason with which
 * server 1 ends must contain `why`. */
static void check_second_server(uint64_t more_steps, const char *why)
{
	const struct setup setup = {
		"tcp", "softmax", "sgd", 2, 1, 1, FOR_EVER, TERN_MODE_SYNC, 0};
	struct job j;

	job_start(&j, &setup);
	until_step(&j, 2, 2);
	j.m[1].server->job.steps += more_steps;
	j.m[1].server->to_zero = NULL;
	assert_int_equal(others_connect(j.m[1].server), 0);
	job_run_out(&j);
	assert_non_null(strstr(j.m[1].text, why));
	job_close(&j);
}

static void test_a_second_server_of_a_number_or_of_another_job_is_refused(void **state)
{
	(void)state;
	check_second_server(0, "server 1 has joined already");
	check_second_server(1, "has 1000001, the job 1000000");
}

/* At the address of server 0 is a server without a job, which later gets another job: the
 * two jobs must be compared. */
static void test_a_server_that_comes_before_the_job_is_compared_with_it(void **state)
{
	const struct setup three = {"tcp", "softmax", "sgd", 3, 0, 0, 0, 0, 0};
	const struct setup two = {
		"tcp", "softmax", "sgd", 2, 2, 2, FOR_EVER, TERN_MODE_SYNC, 0};
	const struct setup one = {
		"tcp", "softmax", "sgd", 1, 1, 1, FOR_EVER, TERN_MODE_SYNC, 0};
	struct job j;

	(void)state;
	job_open(&j, &three);
	start_worker(job_add(&j), &two, j.model, j.addresses, NULL, 0);
	JOB_UNTIL(&j, j.m[1].server->has_job);
	strcpy(j.m[1].server->workers[0]->zero, j.addresses[2]);
	start_worker(job_add(&j), &two, j.model, j.addresses, NULL, 1);
	JOB_UNTIL(&j, j.m[1].server->to_zero);
	JOB_UNTIL(&j, !j.m[1].server->to_zero);
	start_worker(job_add(&j), &one, j.model, &j.addresses[2], NULL, 0);
	JOB_UNTIL(&j, j.m[5].step > 0);
	comes_again_now(&j);
	JOB_UNTIL(&j, j.m[1].ended && j.m[3].ended && j.m[4].ended);
	assert_non_null(strstr(j.m[1].text, "workers: server 1"));
	assert_false(j.m[0].ended || j.m[2].ended || j.m[5].ended);
	job_close(&j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_server_that_was_complete_waits_again),
		cmocka_unit_test(test_server_0_is_looked_for_at_both_addresses),
		cmocka_unit_test(test_a_server_that_comes_before_the_job_comes_again),
		cmocka_unit_test(test_a_server_asks_for_a_job_until_its_limit),
		cmocka_unit_test(
			test_a_server_outlives_a_job_that_server_0_has_forgotten),
		cmocka_unit_test(test_a_given_up_connection_to_server_0_ends),
		cmocka_unit_test(test_a_server_that_hears_late_of_the_start_ends),
		cmocka_unit_test(
			test_a_server_that_finds_itself_in_the_place_of_server_0_says_so),
		cmocka_unit_test(
			test_a_second_server_of_a_number_or_of_another_job_is_refused),
		cmocka_unit_test(
			test_a_server_that_comes_before_the_job_is_compared_with_it),
	};

	return cmocka_run_group_tests(tests, make_data, free_data);
}
