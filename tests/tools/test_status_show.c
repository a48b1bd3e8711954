/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the picture of a job that tern status and tern top show. */
#include "tests/harness/cmocka.h"

#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "tools/status.h"

/* The picture of an answer; the caller frees it. */
static char *show(const char *json, unsigned rows)
{
	json_t *answer = json_loads(json, 0, NULL);
	char *text = NULL;
	size_t bytes;
	FILE *to = open_memstream(&text, &bytes);

	assert_non_null(answer);
	assert_non_null(to);
	status_show(to, answer, rows);
	fclose(to);
	json_decref(answer);
	return text;
}

static void check(const char *json, unsigned rows, const char *wanted)
{
	char *text = show(json, rows);

	assert_string_equal(text, wanted);
	free(text);
}

static void check_has(const char *json, const char *wanted)
{
	char *text = show(json, 10);

	if (!strstr(text, wanted))
		fail_msg("'%s' is not in\n%s", wanted, text);
	free(text);
}

static void test_a_job_that_makes_steps(void **state)
{
	(void)state;
	check("{\"state\":\"steps\",\"uptime_s\":4000,\"step\":50,\"steps_per_s\":2.5,"
	      "\"samples_per_s\":2000,\"quiet_s\":0.1,\"loss\":0.25,\"lr\":0.001,"
	      "\"metrics\":{\"accuracy\":0.5,\"bad\":\"nan\"},\"waits_for\":\"worker 1\","
	      "\"job\":{\"mode\":\"sync\",\"steps\":100,\"tensors\":1,\"elements\":7,"
	      "\"optimizer\":\"adam\",\"slots\":2,\"batch\":16},"
	      "\"workers\":[{\"worker\":0,\"state\":\"joined\",\"slots\":2,\"name\":"
	      "\"w\"}],"
	      "\"recoveries\":{\"workers_lost\":0,\"workers_came\":0,\"back\":0}}",
		10,
		"state      makes steps; up 1 h 6 min\n"
		"step       50 of 100   2.5 steps/s   2000 samples/s   20 s left\n"
		"training   loss 0.25   lr 0.001   accuracy 0.5   bad nan\n"
		"job        sync, adam, 1 tensor of 7 parameters, 2 slots, batch 16\n"
		"\n"
		"worker  state    slots    loss       name\n"
		"0       joined   2        -          w\n");
}

static void test_what_went_wrong_is_told(void **state)
{
	(void)state;
	check_has("{\"state\":\"steps\",\"quiet_s\":29,\"step_s\":10}", "makes steps;");
	check_has("{\"state\":\"steps\",\"quiet_s\":31,\"step_s\":10}",
		"no progress for 31 s;");
	check_has("{\"state\":\"steps\",\"quiet_s\":1.9,\"step_s\":0.1}", "makes steps;");
	check_has("{\"state\":\"steps\",\"quiet_s\":2,\"step_s\":0.1}",
		"no progress for 2.0 s;");
	check_has("{\"state\":\"steps\",\"quiet_s\":90,\"waits_for\":\"worker 1\"}",
		"state      no progress for 1 min 30 s; up 0.0 s\nwaits for  worker 1\n");
	check_has(
		"{\"state\":\"back\",\"recoveries\":{\"workers_lost\":1,"
		"\"workers_came\":0,\"back\":2,\"back_for_s\":3,\"last_back_s\":100000}}",
		"the job goes back, for 3.0 s now");
	check_has("{\"recoveries\":{\"workers_lost\":1,\"workers_came\":0,\"back\":2,"
		  "\"last_back_s\":100000}}",
		"recovered  1 worker lost, 0 came; the job went back 2 times, the last "
		"time for 1 d 3 h\n");
	check_has("{\"snapshot\":{\"failures\":2,\"why\":\"no space\",\"taking\":9}}",
		"snapshot   none yet; that of step 9 is being taken\n"
		"           2 snapshots failed since: no space\n");
	check_has("{\"servers\":[{\"server\":0,\"state\":\"joined\",\"address\":\"a\","
		  "\"follower\":{\"address\":\"b\",\"complete\":true}},{\"server\":1,"
		  "\"state\":\"joined\",\"address\":\"c\",\"follower\":{\"address\":"
		  "\"d\",\"complete\":false,\"filled\":3,\"chunks\":12}}]}",
		"0       joined   a  followed by b\n"
		"1       joined   c  followed by d, which has 3 of 12 chunks\n");
	check_has("{\"partial\":\"gone\",\"server\":3}",
		"partial    only server 3 has answered, and server 0 knows more: gone\n");
}

static void test_special_workers_come_first(void **state)
{
	static const char workers[] =
		"{\"workers\":[{\"worker\":0,\"state\":\"joined\",\"step\":5},"
		"{\"worker\":1,\"state\":\"joined\"},{\"worker\":2,\"state\":\"lost\"},"
		"{\"worker\":3,\"state\":\"joined\",\"owes\":\"slot 3 of step 1\","
		"\"silent_s\":8}]}";

	(void)state;
	check(workers, 3,
		"state      makes steps; up 0.0 s\n"
		"\n"
		"worker  state    step     loss       name\n"
		"2       lost     -        -          \n"
		"3       joined   -        -            owes slot 3 of step 1, silent "
		"for 8.0 "
		"s\n"
		"0       joined   5        -          \n"
		"and 1 more worker: --json lists all\n");
	check(workers, 0,
		"state      makes steps; up 0.0 s\n"
		"\n"
		"worker  state    step     loss       name\n"
		"and 4 more workers: --json lists all\n");
}

/* A server of another version, or a hostile one, may answer anything. */
static void test_any_answer_is_shown(void **state)
{
	static const char *const odd[] = {
		"{}",
		"{\"state\":5,\"job\":\"x\",\"workers\":{},\"servers\":7,\"metrics\":[1]"
		"}",
		"{\"workers\":[1,null,\"x\",[]],\"servers\":[[],{}],\"snapshot\":[]}",
		"{\"uptime_s\":-1e308,\"step\":1e308,\"steps_per_s\":1e-308,"
		"\"quiet_s\":1e308,\"job\":{\"steps\":1e308}}",
		"{\"metrics\":{\"\":1,\"a\":null,\"b\":[]},\"recoveries\":{\"back\":"
		"1e300}}",
		"{\"workers\":[{\"slots\":1e300,\"loss\":1e300,\"owes\":\"x\","
		"\"silent_s\":1e300}]}",
	};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(odd); i++) {
		char *text = show(odd[i], 10);

		assert_memory_equal(text, "state      ", 11);
		assert_int_equal(text[strlen(text) - 1], '\n');
		for (const char *at = text; *at; at++)
			assert_true(*at == '\n' || (*at >= ' ' && *at <= '~'));
		free(text);
	}
}

/* The answer of a job of 3 workers, whose first page has 2 of them, and a page after it. */
static bool add_page(const char *page, size_t *count)
{
	json_t *answer = json_loads("{\"job\":{\"workers\":3},\"workers\":[{},{}],"
				    "\"next\":2}",
		0, NULL);
	json_t *more = json_loads(page, 0, NULL);
	bool fits = status_add_page(answer, more);

	*count = json_array_size(json_object_get(answer, "workers"));
	json_decref(answer);
	json_decref(more);
	return fits;
}

static void test_pages_must_continue_each_other(void **state)
{
	static const char *const odd[] = {
		"{}",
		"{\"workers\":[]}",
		"{\"workers\":[],\"next\":3}",
		"{\"workers\":7}",
		"{\"workers\":[{},{}]}",
		"{\"workers\":[{}],\"next\":2}",
		"{\"workers\":[{}],\"next\":4}",
		"{\"workers\":[{}],\"next\":\"3\"}",
	};
	size_t count;

	(void)state;
	assert_true(add_page("{\"workers\":[{}]}", &count));
	assert_int_equal(count, 3);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(odd); i++) {
		assert_false(add_page(odd[i], &count));
		assert_int_equal(count, 2);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_job_that_makes_steps),
		cmocka_unit_test(test_what_went_wrong_is_told),
		cmocka_unit_test(test_special_workers_come_first),
		cmocka_unit_test(test_any_answer_is_shown),
		cmocka_unit_test(test_pages_must_continue_each_other),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
