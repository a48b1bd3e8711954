/* SPDX-License-Identifier: Apache-2.0 */
/* A worker whose job goes back knows a second address of a server, and tries both in turn
 * (client/places.c). */
#include "tests/server/train_bed.h"

#include <string.h>

#define OTHER "tcp://127.0.0.1:9"

static const struct setup one = {"tcp", "softmax", "sgd", 1, 1, 1, 9, TERN_MODE_SYNC, 0};
static const struct setup two = {"tcp", "softmax", "sgd", 2, 1, 1, 9, TERN_MODE_SYNC, 0};

struct places {
	struct tern_worker_place of[TERN_SERVERS_MAX];
	unsigned moved_count;
	char moved_to[128];
};

static struct places known; /* of the worker under test */

static void moved(void *arg, uint32_t server, const char *address)
{
	(void)arg;
	(void)server;
	known.moved_count++;
	snprintf(known.moved_to, sizeof(known.moved_to), "%s", address);
}

/* Lets worker 0 join, as one whose job goes back. Its servers have not been run since. */
static struct tern_worker *join(struct job *j, const struct setup *setup)
{
	struct tern_worker *w;

	memset(&known, 0, sizeof(known));
	job_open(j, setup);
	w = job_join(j, 0)->worker;
	w->opts.goes_back = w->opts.returns = true;
	w->opts.places = known.of;
	w->opts.moved = moved;
	return w;
}

static void know(struct tern_worker *w, uint32_t server, bool is_fallback)
{
	snprintf(known.of[server].address, sizeof(known.of[server].address), OTHER);
	known.of[server].is_fallback = is_fallback;
	places_start(w);
}

/* Server 0 sends `text` to the worker. */
static void tell(struct job *j, const char *text)
{
	tern_talk_say(&j->m[0].server->workers[0]->talk, json_loads(text, 0, NULL));
}

/* The worker has turned to OTHER, and remembers the former address of the server. */
static void check_turned(const struct job *j, const struct member *m, uint32_t server)
{
	assert_int_equal(m->status, -EAGAIN);
	assert_int_equal(known.moved_count, 1);
	assert_string_equal(known.moved_to, OTHER);
	assert_string_equal(known.of[server].address, j->addresses[server]);
	assert_false(known.of[server].is_fallback);
	assert_int_equal(known.of[server].turns, 1);
}

static void test_a_server_tells_where_its_follower_is(void **state)
{
	struct tern_worker *w;
	struct job j;

	(void)state;
	w = join(&j, &one);
	JOB_UNTIL(&j, w->begun);
	tell(&j, "{\"type\":\"follower\",\"server\":1,\"address\":\"tcp://a:1\"}");
	tell(&j, "{\"type\":\"follower\",\"server\":\"0\",\"address\":\"tcp://a:2\"}");
	tell(&j, "{\"type\":\"follower\",\"server\":0,\"address\":3}");
	tell(&j, "{\"type\":\"follower\",\"server\":0,\"address\":\"" OTHER "\"}");
	JOB_UNTIL(&j, *known.of[0].address);
	assert_string_equal(known.of[0].address, OTHER);
	assert_true(known.of[0].is_fallback);
	assert_false(*known.of[1].address);
	tell(&j, "{\"type\":\"follower\",\"server\":0,\"address\":\"\"}");
	JOB_UNTIL(&j, !*known.of[0].address);
	assert_int_equal(known.moved_count, 0);
	job_close(&j);
}

static void test_a_lost_server_is_looked_for_at_its_follower(void **state)
{
	struct tern_worker *w;
	struct job j;

	(void)state;
	w = join(&j, &one);
	JOB_UNTIL(&j, w->begun);
	know(w, 0, true);
	close_member(&j.m[0]);
	JOB_UNTIL(&j, j.m[1].ended);
	assert_int_equal(j.m[1].status, -EAGAIN);
	assert_string_equal(known.moved_to, OTHER);
	assert_string_equal(known.of[0].address, j.addresses[0]);
	/* Steps were made with the server at its former address. */
	assert_true(known.of[0].is_fallback);
	assert_int_equal(known.of[0].turns, 0);
	job_close(&j);
}

static void test_a_silent_server_is_looked_for_elsewhere(void **state)
{
	struct member *m;
	struct job j;

	(void)state;
	know(join(&j, &two), 1, true);
	m = &j.m[2];
	while (!m->ended) {
		step_all(&j.m[0], 1);
		step_all(m, 1);
	}
	check_turned(&j, m, 1);
	assert_non_null(strstr(m->text, "server 1 is looked for at tcp:"));
	job_close(&j);
}

static void test_a_server_that_refuses_for_now_is_looked_for_elsewhere(void **state)
{
	struct tern_worker *w;
	struct job j;

	(void)state;
	w = join(&j, &two);
	know(w, 0, true);
	while (!w->servers[0].welcome) {
		step_all(&j.m[0], 1);
		step_all(&j.m[2], 1);
	}
	tell(&j, "{\"type\":\"refused\",\"text\":\"it follows\",\"later\":true}");
	while (!j.m[2].ended) {
		step_all(&j.m[0], 1);
		step_all(&j.m[2], 1);
	}
	check_turned(&j, &j.m[2], 0);
	job_close(&j);
}

static void test_a_server_that_has_welcomed_is_left_for_another_one_only(void **state)
{
	struct tern_worker *w;
	struct job j;

	(void)state;
	w = join(&j, &one);
	JOB_UNTIL(&j, w->servers[0].welcome);
	know(w, 0, true); /* of its follower */
	assert_false(places_turn_at_last(w));
	know(w, 0, false); /* of a process which says that it is this server */
	assert_true(places_turn_at_last(w));
	JOB_UNTIL(&j, j.m[1].ended);
	assert_string_equal(known.moved_to, OTHER);
	job_close(&j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_server_tells_where_its_follower_is),
		cmocka_unit_test(test_a_lost_server_is_looked_for_at_its_follower),
		cmocka_unit_test(test_a_silent_server_is_looked_for_elsewhere),
		cmocka_unit_test(
			test_a_server_that_refuses_for_now_is_looked_for_elsewhere),
		cmocka_unit_test(
			test_a_server_that_has_welcomed_is_left_for_another_one_only),
	};

	return cmocka_run_group_tests(tests, make_data, free_data);
}
