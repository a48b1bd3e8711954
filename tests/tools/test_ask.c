/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of questions to a server that runs on a thread of its own. */
#include "tests/server/server_bed.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/ask.h"

#define NOBODY "tcp://127.0.0.1:9"

struct bed {
	struct rig rig;
	pthread_t thread;
	atomic_bool over;
	struct ask ask;
	json_t *answer;
	const char *from;
	struct message error;
};

static void *serve(void *arg)
{
	struct bed *bed = arg;

	while (!bed->over)
		if (tern_progress(bed->rig.at.ctx) == 0)
			usleep(100);
	return NULL;
}

static void start_serving(struct bed *bed)
{
	bed->over = false;
	assert_int_equal(pthread_create(&bed->thread, NULL, serve, bed), 0);
}

/* Opens a server, and the means to ask it after `others`, which is "" or ends with a comma. */
static void open_bed(struct bed *bed, const char *others)
{
	struct ask_settings settings = {.wait_s = 20};
	char join[400];

	*bed = (struct bed){0};
	open_rig(&bed->rig);
	bed->rig.server->opts.goes_back = true;
	snprintf(
		join, sizeof(join), "%s%s", others, tern_server_address(bed->rig.server));
	settings.join = join;
	assert_int_equal(ask_open(&bed->ask, "asker", &settings, &bed->error), 0);
	start_serving(bed);
}

static void stop_serving(struct bed *bed)
{
	bed->over = true;
	assert_int_equal(pthread_join(bed->thread, NULL), 0);
}

static void close_bed(struct bed *bed)
{
	if (!bed->over)
		stop_serving(bed);
	json_decref(bed->answer);
	ask_close(&bed->ask);
	close_rig(&bed->rig);
}

/* A guest may say this to any server without a job, and is answered "known". */
static json_t *good_question(void)
{
	return json_pack("{s:s, s:I, s:s}", "type", "address", "server", (json_int_t)1,
		"address", "tcp://127.0.0.1:10");
}

static int ask_it(struct bed *bed, json_t *question, const char *type)
{
	return ask_job(&bed->ask, question, type, &bed->answer, &bed->from, &bed->error);
}

static void test_a_question_is_answered(void **state)
{
	struct bed bed;

	(void)state;
	open_bed(&bed, "");
	assert_int_equal(ask_it(&bed, good_question(), "known"), 0);
	assert_string_equal(tern_talk_type(bed.answer), "known");
	assert_string_equal(bed.from, tern_server_address(bed.rig.server));
	close_bed(&bed);
}

static void test_one_server_that_can_be_reached_is_enough(void **state)
{
	struct bed bed;

	(void)state;
	open_bed(&bed, NOBODY "," NOBODY ",");
	assert_int_equal(ask_it(&bed, good_question(), "known"), 0);
	assert_string_equal(bed.from, tern_server_address(bed.rig.server));
	close_bed(&bed);
}

static void test_a_refusal_is_told_with_its_reason(void **state)
{
	struct bed bed;

	(void)state;
	open_bed(&bed, "");
	assert_int_equal(
		ask_it(&bed, json_pack("{s:s}", "type", "what"), "that"), -EACCES);
	assert_non_null(strstr(bed.error.text, tern_server_address(bed.rig.server)));
	assert_non_null(strstr(bed.error.text,
		" refuses: its message is of type \"what\", which a process that has not "
		"joined does not send"));
	assert_null(bed.answer);
	close_bed(&bed);
}

static void test_a_server_that_ends_is_dialled_until_the_time_is_over(void **state)
{
	struct bed bed;

	(void)state;
	open_bed(&bed, "");
	stop_serving(&bed);
	tern_server_stop(bed.rig.server, "it was asked to end", false);
	start_serving(&bed);
	bed.ask.wait_ns = 500000000;
	assert_int_equal(ask_it(&bed, good_question(), "known"), -ETIMEDOUT);
	assert_non_null(strstr(bed.error.text, "no answer: tcp://"));
	close_bed(&bed);
}

static void test_nobody_answers(void **state)
{
	struct bed bed;

	(void)state;
	open_bed(&bed, "");
	bed.ask.wait_ns = 300000000;
	assert_int_equal(ask_at(&bed.ask, NOBODY, good_question(), "known", &bed.answer,
				 &bed.error),
		-ETIMEDOUT);
	assert_string_equal(bed.error.text, "no answer: " NOBODY ": Connection refused");
	stop_serving(&bed);
	assert_int_equal(ask_it(&bed, good_question(), "known"), -ETIMEDOUT);
	assert_non_null(strstr(bed.error.text, ": Connection timed out"));
	close_bed(&bed);
}

static _Thread_local bool sleeps_late;

/* Takes the place of the C library's poll(), whose header may define it inline: with sleeps_late,
 * this thread is kept from going on for a second, as on a host with too much to do. */
int late_poll(struct pollfd *fds, nfds_t count, int timeout_ms) __asm__("poll");

int late_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
	const struct timespec second = {.tv_sec = 1};
	const struct timespec limit = {
		.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000L};

	if (sleeps_late)
		nanosleep(&second, NULL);
	return ppoll(fds, count, timeout_ms < 0 ? NULL : &limit, NULL);
}

static void test_what_came_before_the_time_was_over_is_heard(void **state)
{
	struct bed bed;
	int r;

	(void)state;
	open_bed(&bed, "");
	bed.ask.wait_ns = 300000000;
	sleeps_late = true;
	r = ask_at(&bed.ask, NOBODY, good_question(), "known", &bed.answer, &bed.error);
	sleeps_late = false;
	assert_int_equal(r, -ETIMEDOUT);
	assert_string_equal(bed.error.text, "no answer: " NOBODY ": Connection refused");
	close_bed(&bed);
}

static bool stop(void *arg)
{
	unsigned *left = arg;

	return --*left == 0;
}

static void test_whoever_asks_can_stop(void **state)
{
	unsigned left = 3;
	struct bed bed;

	(void)state;
	open_bed(&bed, "");
	stop_serving(&bed);
	bed.ask.stop = stop;
	bed.ask.arg = &left;
	assert_int_equal(ask_it(&bed, good_question(), "known"), -EINTR);
	close_bed(&bed);
}

static void test_wrong_input_is_told(void **state)
{
	static const char *const wrong[] = {NULL, "", "tcp://host", "a:1,,b:2"};
	struct message error;
	struct ask ask;

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(wrong); i++) {
		struct ask_settings settings = {.wait_s = 1, .join = wrong[i]};

		assert_int_equal(ask_open(&ask, "asker", &settings, &error), -EINVAL);
		assert_non_null(strstr(error.text, "--join"));
		ask_close(&ask);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_question_is_answered),
		cmocka_unit_test(test_one_server_that_can_be_reached_is_enough),
		cmocka_unit_test(test_a_refusal_is_told_with_its_reason),
		cmocka_unit_test(
			test_a_server_that_ends_is_dialled_until_the_time_is_over),
		cmocka_unit_test(test_nobody_answers),
		cmocka_unit_test(test_what_came_before_the_time_was_over_is_heard),
		cmocka_unit_test(test_whoever_asks_can_stop),
		cmocka_unit_test(test_wrong_input_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
