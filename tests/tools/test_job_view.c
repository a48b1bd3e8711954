/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the list of a job's servers that a launcher keeps (tools/job_view.h): a server that is started
 * again reads what the first one has said, the newest list counts, and a malformed one is refused. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "tools/job_view.h"

/* The list of a job of three servers, of which server 1 was removed. */
static struct tern_view some_view(uint32_t number)
{
	struct tern_view view = {.number = number, .count = 2, .workers = 4};

	view.numbers[1] = 2;
	strcpy(view.servers[0], "tcp://a:1");
	strcpy(view.servers[1], "tcp://c:1");
	return view;
}

/* The launcher hears "begun" with this list. */
static void take(struct tern_view *known, const struct tern_view *said)
{
	json_t *event =
		json_pack("{s:s, s:o*}", "event", "begun", "view", job_view_json(said));

	job_view_take(known, event);
	json_decref(event);
}

static void test_a_server_that_is_started_again_reads_the_list(void **state)
{
	struct tern_view known = {0}, said = some_view(5), back;
	struct message why;
	char *text;

	(void)state;
	assert_null(job_view_text(&known, 0));
	take(&known, &said);
	text = job_view_text(&known, 2);
	assert_non_null(text);
	assert_int_equal(job_view_parse(text, &back, &why), 0);
	assert_int_equal(back.number, 5);
	assert_int_equal(back.count, 2);
	assert_int_equal(back.workers, 4);
	assert_int_equal(back.numbers[1], 2);
	assert_string_equal(back.servers[1], "tcp://c:1");
	free(text);
}

static void test_a_removed_server_gets_no_list(void **state)
{
	struct tern_view known = some_view(5);
	struct message why;

	(void)state;
	assert_true(job_view_has(&known, 2));
	assert_false(job_view_has(&known, 1));
	assert_null(job_view_text(&known, 1));
	assert_int_equal(job_view_check(&known, 2, true, &why), 0);
	assert_int_equal(job_view_check(&known, 1, true, &why), -EINVAL);
	assert_string_equal(
		why.text, "--view: the list does not have server 1 (--index)");
}

/* A server that is late may say an older list. The list that users have named is none. */
static void test_the_newest_list_counts(void **state)
{
	struct tern_view known = {0}, none = {0}, old = some_view(5), new = some_view(9);

	(void)state;
	assert_true(job_view_has(&known, 1));
	take(&known, &new);
	take(&known, &old);
	take(&known, &none);
	assert_int_equal(known.number, 9);
	/* An added server has moved. */
	strcpy(new.servers[1], "tcp://d:1");
	take(&known, &new);
	assert_string_equal(known.servers[1], "tcp://d:1");
}

static void test_a_malformed_list_is_refused(void **state)
{
	static const char *const texts[] = {"", "7", "[]", "{}", "{\"view\":1}",
		"{\"view\"",
		"{\"servers\":[\"tcp://"
		"a:1\"],\"view\":0,\"numbers\":[0],\"added\":[false],"
		"\"workers\":1}",
		"{\"servers\":[\"tcp://"
		"a:1\"],\"view\":3,\"numbers\":[1],\"added\":[false],"
		"\"workers\":1}",
		"{\"servers\":[\"tcp://"
		"a:1\"],\"view\":3,\"numbers\":[0],\"added\":[false],"
		"\"workers\":1} and more"};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(texts); i++) {
		struct message why;
		struct tern_view view;

		assert_int_equal(job_view_parse(texts[i], &view, &why), -EINVAL);
		assert_non_null(strstr(why.text, "expected the list"));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_server_that_is_started_again_reads_the_list),
		cmocka_unit_test(test_a_removed_server_gets_no_list),
		cmocka_unit_test(test_the_newest_list_counts),
		cmocka_unit_test(test_a_malformed_list_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
