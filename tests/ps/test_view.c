/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the list of a job's servers (ps/view.h): it comes back from JSON as it was, a malformed
 * one is refused, and numbers stay when servers are removed and added. */
#include "tests/harness/cmocka.h"

#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "ps/view.h"

static char named[3][128] = {"tcp://a:1", "tcp://b:1", "tcp://c:1"};

/* View 1 of a job of three servers, of which the second one was removed, and one was added. */
static struct tern_view some_view(void)
{
	struct tern_view view;

	tern_view_of_job(
		&(struct tern_ps_job){.servers = named, .server_count = 3, .workers = 4},
		&view);
	view.number = 1;
	tern_view_remove(&view, 1);
	tern_view_add(&view, 7, "tcp://d:1");
	return view;
}

static void assert_some(const struct tern_view *view)
{
	assert_int_equal(view->number, 1);
	assert_int_equal(view->count, 3);
	assert_int_equal(view->workers, 4);
	assert_int_equal(tern_view_find(view, 0), 0);
	assert_int_equal(tern_view_find(view, 1), UINT32_MAX);
	assert_int_equal(tern_view_find(view, 2), 1);
	assert_int_equal(tern_view_find(view, 7), 2);
	assert_false(view->added[1]);
	assert_true(view->added[2]);
	assert_string_equal(view->servers[1], "tcp://c:1");
	assert_string_equal(view->servers[2], "tcp://d:1");
}

static void test_numbers_stay(void **state)
{
	struct tern_view view = some_view();

	(void)state;
	assert_some(&view);
}

static void test_a_view_comes_back(void **state)
{
	struct tern_view view = some_view(), back;
	json_t *message = tern_view_json(&view, "view");

	(void)state;
	assert_true(tern_view_read(message, &back));
	assert_some(&back);
	json_decref(message);
}

static void test_a_view_comes_back_through_a_job(void **state)
{
	struct tern_ps_job job = {.server_count = 3}, read = {.server_count = 3};
	struct tern_view view = some_view(), back;
	json_t *object = json_object();

	(void)state;
	tern_view_set_job(&view, &job);
	tern_view_write_job(object, &job);
	assert_true(tern_view_read_job(object, &read));
	read.servers = view.servers;
	read.workers = job.workers; /* the job's JSON has them beside its view */
	tern_view_of_job(&read, &back);
	assert_some(&back);
	json_decref(object);
}

/* The number of workers is a property of each view but the first, which users have named. */
static void test_a_job_has_the_workers_of_its_view(void **state)
{
	struct tern_ps_job job = {.server_count = 3, .workers = 2};
	struct tern_view view = some_view();

	(void)state;
	tern_view_set_job(&view, &job);
	assert_int_equal(job.workers, 4);
	view.number = 0;
	view.workers = 9;
	tern_view_set_job(&view, &job);
	assert_int_equal(job.workers, 4);
}

static void test_servers_are_compared_by_number_and_order(void **state)
{
	struct tern_ps_job job = {.servers = named, .server_count = 3};
	struct tern_view view;

	(void)state;
	tern_view_of_job(&job, &view);
	view.number = 1;
	view.workers = 9;
	assert_true(tern_view_has_servers_of(&view, &job));
	tern_view_remove(&view, 1);
	assert_false(tern_view_has_servers_of(&view, &job));
	tern_view_add(&view, 1, "tcp://b:1");
	assert_false(tern_view_has_servers_of(&view, &job));
	tern_view_set_job(&view, &job);
	assert_true(tern_view_has_servers_of(&view, &job));
}

/* Users of another host have named the servers by other addresses. */
static void test_named_servers_are_where_the_user_says(void **state)
{
	static char here[3][128] = {"tcp://x:1", "tcp://y:1", "tcp://z:1"};
	struct tern_view view = some_view();

	(void)state;
	assert_true(tern_view_locate(&view, here, 3));
	assert_string_equal(view.servers[1], "tcp://z:1");
	assert_string_equal(view.servers[2], "tcp://d:1");
}

/* A user names the servers that the job has now, and not those with which it began. */
static void test_a_list_of_present_servers_is_understood(void **state)
{
	static char present[3][128] = {"tcp://a:1", "tcp://c:1", "tcp://d:1"};
	static char two[2][128] = {"tcp://x:1", "tcp://y:1"};
	struct tern_view view = some_view();

	(void)state;
	assert_true(tern_view_locate(&view, present, 3));
	assert_string_equal(view.servers[0], "tcp://a:1");
	assert_string_equal(view.servers[1], "tcp://c:1");
	assert_true(tern_view_locate(&view, two, 2));
	assert_string_equal(view.servers[0], "tcp://x:1");
	assert_string_equal(view.servers[1], "tcp://c:1");
	view.servers[1][0] = '\0';
	assert_false(tern_view_locate(&view, two, 2));
}

static void test_malformed_views_are_refused(void **state)
{
	static const char *const texts[] = {
		"{}",
		"{\"servers\":[\"a\"]}",
		"{\"servers\":[\"a\"],\"view\":1,\"numbers\":[0],\"added\":[false]}",
		"{\"workers\":0,\"servers\":[\"a\"],\"view\":1,\"numbers\":[0],\"added\":"
		"[false]}",
		"{\"workers\":4097,\"servers\":[\"a\"],\"view\":1,\"numbers\":[0],"
		"\"added\":[false]}",
		"{\"workers\":2,\"servers\":[],\"view\":1,\"numbers\":[],\"added\":[]}",
		"{\"workers\":2,\"servers\":[\"a\"],\"view\":0,\"numbers\":[0],\"added\":"
		"[false]}",
		"{\"workers\":2,\"servers\":[\"a\"],\"view\":-1,\"numbers\":[0],"
		"\"added\":[false]}",
		"{\"workers\":2,\"servers\":[\"a\"],\"view\":1e300,\"numbers\":[0],"
		"\"added\":[false]}",
		"{\"workers\":2,\"servers\":[\"a\"],\"view\":2147483648,\"numbers\":[0],"
		"\"added\":["
		"false]}",
		"{\"workers\":2,\"servers\":[\"a\"],\"view\":1,\"numbers\":[1],\"added\":"
		"[false]}",
		"{\"workers\":2,\"servers\":[\"a\"],\"view\":1,\"numbers\":[0,1],"
		"\"added\":[false]}",
		"{\"workers\":2,\"servers\":[\"a\"],\"view\":1,\"numbers\":[0],\"added\":"
		"[]}",
		"{\"workers\":2,\"servers\":[\"a\"],\"view\":1,\"numbers\":[0],\"added\":"
		"[0]}",
		"{\"workers\":2,\"servers\":[\"a\",\"b\"],\"view\":1,\"numbers\":[0,0],"
		"\"added\":["
		"false,"
		"false]}",
		"{\"workers\":2,\"servers\":[\"a\",\"b\"],\"view\":1,\"numbers\":[0,256],"
		"\"added\":["
		"false,"
		"true]}",
		"{\"workers\":2,\"servers\":[\"a\",\"\"],\"view\":1,\"numbers\":[0,1],"
		"\"added\":[false,"
		"true]}",
		"{\"workers\":2,\"servers\":[\"a\",7],\"view\":1,\"numbers\":[0,1],"
		"\"added\":[false,"
		"true]}",
	};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(texts); i++) {
		json_t *message = json_loads(texts[i], 0, NULL);
		struct tern_view view;

		assert_non_null(message);
		assert_false(tern_view_read(message, &view));
		json_decref(message);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_numbers_stay),
		cmocka_unit_test(test_a_view_comes_back),
		cmocka_unit_test(test_a_view_comes_back_through_a_job),
		cmocka_unit_test(test_a_job_has_the_workers_of_its_view),
		cmocka_unit_test(test_servers_are_compared_by_number_and_order),
		cmocka_unit_test(test_named_servers_are_where_the_user_says),
		cmocka_unit_test(test_a_list_of_present_servers_is_understood),
		cmocka_unit_test(test_malformed_views_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
