/* SPDX-License-Identifier: Apache-2.0 */
/* Whole jobs in one process, of which one sends another a message that cannot be right; and what a worker says
 * that cannot save. */
#include "tests/server/train_bed.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOR_EVER 1000000u

/* Server 0 sends `text` by this talk to member 1, which must end with the reason `why`, and
 * so must the job. */
static void check_refused(
	struct job *j, struct tern_talk *talk, const char *text, const char *why)
{
	tern_talk_say(talk, json_loads(text, 0, NULL));
	job_run_out(j);
	assert_int_equal(j->m[1].status, -EPROTO);
	assert_non_null(strstr(j->m[1].text, why));
	job_close(j);
}

/* In a job of one server and one worker, server 0 sends `text` to the worker. */
static void check_worker_refuses(const char *text, const char *why)
{
	const struct setup setup = {
		"tcp", "softmax", "sgd", 1, 1, 1, FOR_EVER, TERN_MODE_SYNC, 0};
	struct job j;

	job_start(&j, &setup);
	until_step(&j, 1, 5);
	check_refused(&j, &j.m[0].server->workers[0]->talk, text, why);
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
	static const char *const moved[] = {
		"{\"type\":\"moved\",\"version\":9,\"generation\":1,\"slots\":[1]}",
		"{\"type\":\"moved\",\"version\":9,\"generation\":1,\"slots\":[-1]}",
		"{\"type\":\"moved\",\"version\":9,\"generation\":1,\"slots\":[\"0\"]}",
	};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(late); i++)
		check_worker_refuses(late[i], "expected the time in ns");
	for (size_t i = 0; i < TERN_ARRAY_SIZE(lost); i++)
		check_worker_refuses(lost[i], "server 0 gave slots to this worker");
	for (size_t i = 0; i < TERN_ARRAY_SIZE(moved); i++)
		check_worker_refuses(
			moved[i], "server 0 moved a slot to another worker: expected");
	check_worker_refuses("{\"type\":\"yours\",\"version\":9,\"generation\":1,"
			     "\"finisher\":0,\"slots\":[]}",
		"server 0 gave this worker slots in a message that cannot be right");
	check_worker_refuses("{\"type\":\"give\"}", "server 0 asked for initial values: "
						    "expected it once, before version 0");
}

/* Server 0 sends server 1 an impossible decision about worker 1. Server 1 must end the
 * job. */
static void check_server_refuses(const char *decision, const char *why)
{
	const struct setup setup = {
		"tcp", "softmax", "sgd", 2, 2, 2, FOR_EVER, TERN_MODE_SYNC, 0};
	struct job j;

	job_start(&j, &setup);
	until_step(&j, 2, 5);
	check_refused(&j, &others_find(j.m[0].server, 1)->talk, decision, why);
}

static void test_a_server_believes_no_decision_that_cannot_be(void **state)
{
	static const char *const decisions[] = {
		"{\"type\":\"lost\",\"worker\":1,\"generation\":-1,"
		"\"slots\":[[1],[]]}",
		"{\"type\":\"lost\",\"worker\":1,\"generation\":0,\"slots\":[[1],[]]}",
		"{\"type\":\"lost\",\"worker\":1,\"slots\":[[1],[]]}",
		"{\"type\":\"lost\",\"worker\":1,\"generation\":1}",
		"{\"type\":\"lost\",\"worker\":1,\"generation\":1,"
		"\"slots\":[[2],[]]}",
		"{\"type\":\"lost\",\"worker\":1,\"generation\":1,"
		"\"slots\":[[\"1\"],[]]}",
	};
	static const char *const pauses[] = {
		"{\"type\":\"pause\"}",
		"{\"type\":\"pause\",\"version\":\"9\"}",
		"{\"type\":\"pause\",\"version\":0}",
		"{\"type\":\"pause\",\"version\":9223372036854775807}",
	};
	/* No pause was before it. */
	static const char *const changes[] = {
		"{\"type\":\"change\"}",
		"{\"type\":\"change\",\"generation\":1,\"came\":[],\"moved\":[]}",
	};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(decisions); i++)
		check_server_refuses(
			decisions[i], "server 0 sent a wrong list of who has");
	for (size_t i = 0; i < TERN_ARRAY_SIZE(pauses); i++)
		check_server_refuses(pauses[i], "server 0 stops the steps at version");
	for (size_t i = 0; i < TERN_ARRAY_SIZE(changes); i++)
		check_server_refuses(changes[i],
			"server 0 sent a wrong list of workers that have come");
	check_server_refuses("{\"type\":\"giver\",\"worker\":0}",
		"expected it of a job that has given values");
	check_server_refuses("{\"type\":\"given\"}", "has not got the given initial");
}

/* ---- a new worker's place ---- */

static const struct setup two_of_each = {
	"tcp", "softmax", "sgd", 2, 2, 2, FOR_EVER, TERN_MODE_SYNC, 0};

/* The next view of the job, with one worker more. */
static struct tern_view next_view(const struct job *j)
{
	const struct tern_ps_job *job = &j->m[0].server->job;
	struct tern_view view;

	tern_view_of_job(job, &view);
	view.number++;
	view.workers++;
	return view;
}

/* A server tells worker 1 a view, which the worker must refuse. */
static void check_grown_refused(unsigned server, void (*spoil)(struct tern_view *view))
{
	struct tern_view view;
	struct job j;

	job_start(&j, &two_of_each);
	until_step(&j, 3, 5);
	view = next_view(&j);
	if (spoil)
		spoil(&view);
	tern_talk_say(
		&j.m[server].server->workers[1]->talk, tern_view_json(&view, "grown"));
	job_run_out(&j);
	assert_int_equal(j.m[3].status, -EPROTO);
	assert_non_null(strstr(j.m[3].text, "has sent a wrong view: expected it from "
					    "server 0, with the job's servers and more "
					    "than 1 workers"));
	job_close(&j);
}

static void drop_worker_1(struct tern_view *view)
{
	view->workers = 1;
}

static void drop_server_1(struct tern_view *view)
{
	view->count = 1;
}

static void rename_server_1(struct tern_view *view)
{
	view->numbers[1] = 7;
}

static void add_two_workers(struct tern_view *view)
{
	view->workers++;
}

static void test_a_worker_believes_no_view_that_cannot_be(void **state)
{
	(void)state;
	check_grown_refused(0, drop_worker_1);
	check_grown_refused(0, drop_server_1);
	check_grown_refused(0, rename_server_1);
	check_grown_refused(1, NULL);
}

/* Server 0 lets a worker in with a view, which server 1 must refuse. */
static void check_change_refused(bool paused, void (*spoil)(struct tern_view *view))
{
	struct tern_talk *talk;
	struct tern_view view;
	json_t *change;
	struct job j;

	job_start(&j, &two_of_each);
	until_step(&j, 2, 5);
	talk = &others_find(j.m[0].server, 1)->talk;
	if (paused) {
		tern_talk_say(talk, json_pack("{s:s, s:I}", "type", "pause", "version",
					    (json_int_t)j.m[2].step + 100));
		JOB_UNTIL(&j, j.m[1].server->change.reached);
	}
	view = next_view(&j);
	if (spoil)
		spoil(&view);
	change = json_pack("{s:s, s:i, s:[], s:[], s:o}", "type", "change", "generation",
		1, "came", "moved", "view", tern_view_json(&view, "view"));
	tern_talk_say(talk, change);
	job_run_out(&j);
	assert_int_equal(j.m[1].status, -EPROTO);
	assert_non_null(strstr(j.m[1].text,
		"server 0 sent a wrong view with a change of workers: expected the same "
		"servers and 3 workers, once all chunks here have stopped"));
	job_close(&j);
}

static void test_a_server_believes_no_view_that_cannot_be(void **state)
{
	(void)state;
	check_change_refused(false, NULL);
	check_change_refused(true, add_two_workers);
	check_change_refused(true, drop_server_1);
	check_change_refused(true, rename_server_1);
}

/* ---- saving ---- */

static struct {
	char directory[64], path[80];
	unsigned saves_count; /* attempts that were prepared */
	int status;           /* of the next ones; 1: the directory is made */
	unsigned said_count;
	char said[600];
} saving;

static int make_directory(void *arg, struct tern_ps_text *why)
{
	(void)arg;
	saving.saves_count++;
	snprintf(why->text, sizeof(why->text), "the directory is not made");
	if (saving.status == 1)
		assert_int_equal(mkdir(saving.directory, 0777), 0);
	return saving.status < 0 ? saving.status : 0;
}

static void keep_reason(void *arg, const char *text)
{
	(void)arg;
	saving.said_count++;
	snprintf(saving.said, sizeof(saving.said), "%s", text);
}

/* Lets the worker try again at once, after this result of what prepares it. */
static void try_again(struct job *j, int status)
{
	struct tern_worker *w = j->m[1].worker;

	saving.status = status;
	JOB_UNTIL(j, w->save_timer.place);
	tern_timer_clear(w->opts.ctx, &w->save_timer);
	w->save_timer.fire(&w->save_timer);
}

static void test_each_attempt_to_save_makes_the_directory(void **state)
{
	static const struct setup setup = {
		"shm", "softmax", "sgd", 1, 1, 1, 2, TERN_MODE_SYNC, 0};
	struct tern_worker *w;
	struct job j;

	(void)state;
	snprintf(saving.directory, sizeof(saving.directory), "/tmp/tern-words-%d",
		(int)getpid());
	snprintf(saving.path, sizeof(saving.path), "%s/model", saving.directory);
	job_open(&j, &setup);
	start_worker(job_add(&j), &setup, j.model, j.addresses, saving.path, 0);
	w = j.m[1].worker;
	w->opts.finishing = make_directory;
	w->opts.unsaved = keep_reason;
	JOB_UNTIL(&j, w->save_timer.place);
	assert_int_equal(saving.said_count, 1);
	try_again(&j, -EACCES);
	assert_int_equal(saving.said_count, 2);
	assert_non_null(strstr(saving.said, "model: Permission denied: tried again"));
	try_again(&j, -EACCES);
	assert_int_equal(saving.said_count, 2);
	try_again(&j, 1);
	job_run_out(&j);
	assert_int_equal(j.m[1].status, 0);
	assert_int_equal(saving.saves_count, 4);
	assert_int_equal(unlink(saving.path), 0);
	assert_int_equal(rmdir(saving.directory), 0);
	job_close(&j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_worker_believes_no_number_that_cannot_be),
		cmocka_unit_test(test_a_server_believes_no_decision_that_cannot_be),
		cmocka_unit_test(test_a_worker_believes_no_view_that_cannot_be),
		cmocka_unit_test(test_a_server_believes_no_view_that_cannot_be),
		cmocka_unit_test(test_each_attempt_to_save_makes_the_directory),
	};

	return cmocka_run_group_tests(tests, make_data, free_data);
}
