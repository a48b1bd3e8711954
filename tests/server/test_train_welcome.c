/* SPDX-License-Identifier: Apache-2.0 */
/* Servers that go on from memory, of which one welcomes a worker late: until then the worker does not
 * know with which version the steps begin, whatever server 0 says. Server 1 stands still meanwhile. */
#include "tests/server/train_bed.h"

#include <string.h>

/* Opens a job of two servers that seem to have it in memory, and lets worker `index` join. Returns when
 * server 0 has welcomed it. */
static struct tern_worker *open_welcomed(
	struct job *j, const struct setup *setup, unsigned index)
{
	struct tern_worker *w;

	job_open(j, setup);
	for (unsigned i = 0; i < setup->servers; i++) {
		j->m[i].server->life = 1;
		j->m[i].server->goes_on = true;
	}
	w = job_join(j, index)->worker;
	while (!w->servers[0].welcome) {
		step_all(&j->m[0], 1);
		step_all(&j->m[2], 1);
	}
	assert_false(w->welcomed);
	return w;
}

/* Server 0 sends `text` to the worker, which has heard it when `heard` is set. */
static void tell(
	struct job *j, struct tern_worker *w, const char *text, const bool *heard)
{
	tern_talk_say(
		&j->m[0].server->workers[w->opts.index]->talk, json_loads(text, 0, NULL));
	while (!*heard) {
		step_all(&j->m[0], 1);
		step_all(&j->m[2], 1);
	}
}

static void test_no_slot_is_computed_before_all_welcomes(void **state)
{
	const struct setup setup = {
		"tcp", "softmax", "sgd", 2, 2, 2, 9, TERN_MODE_SYNC, 0};
	struct tern_worker *w;
	struct job j;

	(void)state;
	w = open_welcomed(&j, &setup, 0);
	tell(&j, w,
		"{\"type\":\"lost\",\"worker\":1,\"generation\":1,\"finisher\":0,"
		"\"slots\":[1]}",
		&j.m[2].has_more);
	assert_int_equal(w->slot_count, 2);
	assert_true(w->slots[1].pending);
	assert_false(w->computing || w->slots[1].taken);
	JOB_UNTIL(&j, w->welcomed);
	assert_false(w->computing); /* the version has not arrived */
	job_close(&j);
}

static void test_a_spare_worker_begins_after_all_welcomes(void **state)
{
	const struct setup setup = {
		"tcp", "softmax", "sgd", 2, 2, 1, 9, TERN_MODE_SYNC, 0};
	struct tern_worker *w;
	struct job j;

	(void)state;
	w = open_welcomed(&j, &setup, 1);
	tell(&j, w, "{\"type\":\"begun\"}", &w->heard_begun);
	assert_false(w->begun);
	JOB_UNTIL(&j, w->welcomed);
	assert_true(w->begun);
	job_close(&j);
}

/* ---- numbers of servers ---- */

/* The --index of each server, in the order of the workers' --join. */
static unsigned given[2], given_count;

static void give_number(struct tern_server_opts *opts)
{
	opts->index = given[given_count++];
	opts->has_number = true;
}

/* Starts a job whose servers were given these numbers. */
static void start_numbered(struct job *j, unsigned first, unsigned second)
{
	static const struct setup setup = {
		"tcp", "softmax", "sgd", 2, 1, 1, 3, TERN_MODE_SYNC, 0};

	given[0] = first;
	given[1] = second;
	given_count = 0;
	adjust_server = give_number;
	job_start(j, &setup);
	adjust_server = NULL;
}

static void check_number_refused(unsigned first, unsigned second, const char *why)
{
	struct job j;

	start_numbered(&j, first, second);
	JOB_UNTIL(&j, j.m[2].ended);
	assert_int_not_equal(j.m[2].status, 0);
	if (!strstr(j.m[2].text, why))
		fail_msg("\"%s\" is not in \"%s\"", why, j.m[2].text);
	assert_false(j.m[0].server->running || j.m[1].server->running);
	job_close(&j);
}

static void test_servers_with_their_numbers_serve(void **state)
{
	struct job j;

	(void)state;
	start_numbered(&j, 0, 1);
	job_run_out(&j);
	assert_int_equal(j.m[2].status, 0);
	job_close(&j);
}

static void test_a_worker_with_another_order_of_servers_is_refused(void **state)
{
	(void)state;
	check_number_refused(1, 0, "this server was started with --index ");
	check_number_refused(1, 0, "all workers must name the servers in the order");
}

static void test_of_two_servers_with_one_number_the_second_refuses(void **state)
{
	(void)state;
	check_number_refused(0, 0,
		"this server was started with --index 0, and is number 1 in the --join "
		"of worker 0");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_slot_is_computed_before_all_welcomes),
		cmocka_unit_test(test_a_spare_worker_begins_after_all_welcomes),
		cmocka_unit_test(test_servers_with_their_numbers_serve),
		cmocka_unit_test(test_a_worker_with_another_order_of_servers_is_refused),
		cmocka_unit_test(test_of_two_servers_with_one_number_the_second_refuses),
	};

	return cmocka_run_group_tests(tests, make_data, free_data);
}
