/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of what operators ask of a server: that the job goes on without one of its servers
 * (tern drain), and that it ends (tern abort). */
#include "tests/server/server_bed.h"

#include <string.h>

static const struct tern_ps_job job = {.slots = 1, .workers = 2};

static void say(struct visitor *v, const char *text)
{
	tern_talk_say(&v->talk, json_loads(text, 0, NULL));
}

/* Opens a server that may go back, with a job of which one worker has joined. */
static void open_with_worker(struct rig *rig, struct visitor *worker)
{
	open_rig(rig);
	rig->server->opts.goes_back = true;
	join_well(rig, worker, &job, 0);
}

/* ---- a server is to be removed ---- */

static void drain(
	struct rig *rig, struct visitor *v, const char *number, const char *says)
{
	char text[100];

	snprintf(text, sizeof(text), "{\"type\":\"drain\",\"server\":%s}", number);
	visit(rig, v);
	say(v, text);
	run_until(rig, &v->refused);
	assert_non_null(strstr(v->text, says));
}

static void test_what_cannot_be_removed_stays(void **state)
{
	struct visitor worker, v[7];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	drain(&rig, &v[0], "1", "--snapshots");
	rig.server->opts.goes_back = true;
	drain(&rig, &v[1], "0", "server 0 decides");
	drain(&rig, &v[2], "1", "no worker has told it the job yet");
	drain(&rig, &v[3], "-1", "no number of a server");
	drain(&rig, &v[4], "256", "no number of a server");
	drain(&rig, &v[5], "\"1\"", "no number of a server");
	join_well(&rig, &worker, &job, 0);
	drain(&rig, &v[6], "1", "--snapshots"); /* the worker does not go back */
	assert_int_equal(rig.server->next_view.number, 0);
	close_rig(&rig);
}

static void drain_again(struct rig *rig, struct visitor *v, const bool *until)
{
	visit(rig, v);
	say(v, "{\"type\":\"drain\",\"server\":1,\"again\":true}");
	run_until(rig, until);
}

/* The process of server 0 is another one, perhaps, and has not heard of the removal. */
static void test_a_removal_that_is_asked_for_again_waits_for_the_job(void **state)
{
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	rig.server->opts.goes_back = true;
	drain_again(&rig, &v, &v.refused);
	assert_non_null(strstr(v.text, "no worker has told it the job yet"));
	assert_true(v.later);
	drain(&rig, &v, "1", "no worker has told it the job yet");
	assert_false(v.later);
	rig.server->opts.returns = true;
	drain(&rig, &v, "1", "no worker has told it the job yet");
	assert_true(v.later);
	close_rig(&rig);
}

static void test_a_removal_is_done_when_the_steps_have_begun(void **state)
{
	struct visitor asking[2], again, workers[2];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	rig.server->opts.goes_back = true;
	rig.server->view = (struct tern_view){.number = 5, .count = 1, .workers = 2};
	drain_again(&rig, &asking[0], &asking[0].draining);
	assert_false(asking[0].drained);
	drain(&rig, &again, "1", "has no server of this number");
	assert_false(again.later);
	rig.server->view.number = 0;
	join_well(&rig, &workers[0], &job, 0);
	join_well(&rig, &workers[1], &job, 1);
	run_until(&rig, &rig.server->running);
	drain_again(&rig, &asking[1], &asking[1].draining);
	assert_true(asking[1].drained);
	stop_and_close(&rig);
}

/* ---- an operator ends the job ---- */

static void test_a_wrong_end_is_refused(void **state)
{
	static const char *const wrong[] = {
		"{\"type\":\"end\"}",
		"{\"type\":\"end\",\"by\":\"ann\"}",
		"{\"type\":\"end\",\"by\":1,\"text\":\"\"}",
	};
	struct visitor v[TERN_ARRAY_SIZE(wrong)];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(wrong); i++) {
		visit(&rig, &v[i]);
		say(&v[i], wrong[i]);
		run_until(&rig, &v[i].refused);
		assert_non_null(strstr(v[i].text, "\"end\" is wrong"));
	}
	assert_false(rig.server->over);
	close_rig(&rig);
}

/* An operator ends the job. `guest` has connected before, and has said nothing yet. */
static void end_by_operator(struct rig *rig, struct visitor *guest)
{
	static struct visitor operator;

	rig->server->opts.leave_ns = 1;
	visit(rig, guest);
	visit(rig, &operator);
	say(&operator, "{\"type\":\"end\",\"by\":\"ann\",\"text\":\"why\"}");
	run_until(rig, &rig->server->over);
	assert_string_equal(rig->server->text, "ann aborted the job: why");
}

static void is_told_of_the_end(struct rig *rig, struct visitor *v)
{
	run_until(rig, &v->down);
	assert_false(v->refused);
	assert_string_equal(v->text, "ann aborted the job: why");
}

static void is_to_come_again(struct rig *rig, struct visitor *v)
{
	run_until(rig, &v->refused);
	assert_false(v->aborted);
	assert_string_equal(v->text, "the server is ending");
}

/* The server of a job that may go back has ended, and still tells the job's processes that come. */
static void test_who_comes_after_an_end_is_told(void **state)
{
	static const char *const texts[] = {
		"{\"type\":\"address\",\"server\":1,\"address\":\"tcp://a:1\"}",
		"{\"type\":\"end\",\"by\":\"bob\",\"text\":\"\"}",
	};
	struct visitor worker, guest, late, other[TERN_ARRAY_SIZE(texts)];
	struct rig rig;

	(void)state;
	open_with_worker(&rig, &worker);
	end_by_operator(&rig, &guest);
	say_join(&guest, job_of(&rig, &job, 1, 1000, 1), 0);
	is_told_of_the_end(&rig, &guest);
	visit(&rig, &late);
	say_join(&late, job_of(&rig, &job, 1, 1000, 2), 0); /* an older list of servers */
	is_told_of_the_end(&rig, &late);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(texts); i++) {
		visit(&rig, &other[i]);
		say(&other[i], texts[i]);
		is_told_of_the_end(&rig, &other[i]);
	}
	close_rig(&rig);
}

static void test_strangers_who_come_after_an_end_come_again(void **state)
{
	static const char *const texts[] = {
		"{\"type\":\"status\"}",
		"{\"type\":\"drain\",\"server\":1}",
		"{\"type\":\"join\"}",
	};
	struct visitor worker, guest, v[TERN_ARRAY_SIZE(texts)];
	struct tern_ps_job other = job;
	struct rig rig;

	(void)state;
	open_with_worker(&rig, &worker);
	end_by_operator(&rig, &guest);
	other.seed++;
	say_join(&guest, job_of(&rig, &other, 1, 1000, 1), 0);
	is_to_come_again(&rig, &guest);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(texts); i++) {
		visit(&rig, &v[i]);
		say(&v[i], texts[i]);
		is_to_come_again(&rig, &v[i]);
	}
	close_rig(&rig);
}

/* A server whose workers have not come yet knows no job. If its job goes back, who comes is of it. */
static void test_a_server_without_a_job_tells_only_a_job_that_goes_back(void **state)
{
	(void)state;
	for (int returns = 0; returns < 2; returns++) {
		struct visitor guest;
		struct rig rig;

		open_rig(&rig);
		rig.server->opts.goes_back = true;
		rig.server->opts.returns = returns;
		end_by_operator(&rig, &guest);
		say_join(&guest, job_of(&rig, &job, 1, 1000, 1), 0);
		if (returns)
			is_told_of_the_end(&rig, &guest);
		else
			is_to_come_again(&rig, &guest);
		close_rig(&rig);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_cannot_be_removed_stays),
		cmocka_unit_test(
			test_a_removal_that_is_asked_for_again_waits_for_the_job),
		cmocka_unit_test(test_a_removal_is_done_when_the_steps_have_begun),
		cmocka_unit_test(test_a_wrong_end_is_refused),
		cmocka_unit_test(test_who_comes_after_an_end_is_told),
		cmocka_unit_test(test_strangers_who_come_after_an_end_come_again),
		cmocka_unit_test(
			test_a_server_without_a_job_tells_only_a_job_that_goes_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
