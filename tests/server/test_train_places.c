/* SPDX-License-Identifier: Apache-2.0 */
/* A worker whose job goes back knows a second address of a server, and tries both in turn
 * (client/places.c). */
#include "tests/server/train_bed.h"

#include <errno.h>
#include <string.h>

#define OTHER "tcp://127.0.0.1:9"
#define CLAIM                                                                            \
	",\"claim\":4611686018427387904" /* 2^62: that of a process that has been in the job */

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

/* Lets the next worker join, after `former` has ended: at the addresses to which that has turned. */
static struct member *join_next(struct job *j, const struct tern_worker *former)
{
	struct member *m = job_add(j);
	struct tern_worker_opts opts = former->opts;
	struct tern_ps_job job = former->job;
	struct tern_ps_text why;

	open_worker(m, j->model);
	job.servers = j->addresses;
	opts.domain = m->domain;
	opts.ctx = m->ctx;
	opts.computer = &m->computer->computer;
	opts.job = &job;
	opts.arg = m;
	assert_int_equal(tern_worker_new(&opts, &m->worker, &why), 0);
	return m;
}

static void run_alone(struct member *m)
{
	while (!m->ended)
		step_all(m, 1);
}

static void know(struct tern_worker *w, uint32_t server, enum tern_place_kind kind)
{
	snprintf(known.of[server].address, sizeof(known.of[server].address), OTHER);
	known.of[server].kind = kind;
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
	assert_int_equal(known.of[server].kind, TERN_PLACE_OWN);
	assert_int_equal(known.of[server].here, TERN_PLACE_FOLLOWER);
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
	assert_int_equal(known.of[0].kind, TERN_PLACE_FOLLOWER);
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
	know(w, 0, TERN_PLACE_FOLLOWER);
	close_member(&j.m[0]);
	JOB_UNTIL(&j, j.m[1].ended);
	assert_int_equal(j.m[1].status, -EAGAIN);
	assert_string_equal(known.moved_to, OTHER);
	assert_string_equal(known.of[0].address, j.addresses[0]);
	/* Steps were made with the server at its former address. */
	assert_int_equal(known.of[0].kind, TERN_PLACE_OWN);
	assert_int_equal(known.of[0].turns, 0);
	job_close(&j);
}

/* A worker tries the former address of a server only if the server does not answer at its present
 * address. */
static void test_a_lost_connection_leads_to_no_former_address(void **state)
{
	struct tern_worker *w;
	struct job j;

	(void)state;
	w = join(&j, &one);
	JOB_UNTIL(&j, w->begun);
	know(w, 0, TERN_PLACE_OWN);
	close_member(&j.m[0]);
	JOB_UNTIL(&j, j.m[1].ended);
	assert_int_equal(j.m[1].status, -EAGAIN);
	assert_int_equal(known.moved_count, 0);
	run_alone(join_next(&j, w));
	assert_int_equal(j.m[2].status, -EAGAIN);
	assert_string_equal(known.moved_to, OTHER);
	job_close(&j);
}

static void test_a_silent_server_is_looked_for_elsewhere(void **state)
{
	struct member *m;
	struct job j;

	(void)state;
	know(join(&j, &two), 1, TERN_PLACE_FOLLOWER);
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
	while (!w->servers[0].welcome) {
		step_all(&j.m[0], 1);
		step_all(&j.m[2], 1);
	}
	know(w, 0, TERN_PLACE_FOLLOWER);
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
	know(w, 0, TERN_PLACE_FOLLOWER); /* of its follower */
	assert_false(places_turn_at_last(w));
	know(w, 0, TERN_PLACE_NEW); /* of a process which says that it is this server */
	assert_true(places_turn_at_last(w));
	JOB_UNTIL(&j, j.m[1].ended);
	assert_string_equal(known.moved_to, OTHER);
	job_close(&j);
}

/* Two turns: from the server to OTHER, where nobody listens, and back. The server is never run. */
static void turn_twice(enum tern_place_kind kind)
{
	struct tern_worker *w;
	char own[128];
	struct job j;

	w = join(&j, &one);
	know(w, 0, kind);
	memcpy(own, j.addresses[0], sizeof(own));
	run_alone(&j.m[1]);
	assert_string_equal(known.of[0].address, own);
	assert_int_equal(known.of[0].kind, TERN_PLACE_OWN);
	assert_int_equal(known.of[0].here, kind);

	snprintf(j.addresses[0], sizeof(j.addresses[0]), "%s", known.moved_to);
	run_alone(join_next(&j, w));
	assert_int_equal(j.m[2].status, -EAGAIN);
	assert_int_equal(known.moved_count, 2);
	assert_string_equal(known.moved_to, own);
	assert_string_equal(known.of[0].address, OTHER);
	assert_int_equal(known.of[0].kind, kind);
	assert_int_equal(known.of[0].here, TERN_PLACE_OWN);
	assert_int_equal(known.of[0].turns, 2);
	assert_int_equal(known.of[0].silences, 0);
	job_close(&j);
}

static void test_a_turn_does_not_change_who_has_told_an_address(void **state)
{
	(void)state;
	turn_twice(TERN_PLACE_FOLLOWER);
	turn_twice(TERN_PLACE_NEW);
}

/* Runs the worker until it has looked at its servers `times` more. */
static void look(struct member *m, unsigned times)
{
	uint64_t due_ns = m->worker->places_timer.due_ns;

	while (times && !m->ended) {
		step_all(m, 1);
		times -= m->worker->places_timer.due_ns != due_ns;
		due_ns = m->worker->places_timer.due_ns;
	}
}

static void test_a_connected_server_is_given_longer_each_time(void **state)
{
	struct tern_worker *w;
	struct member *m;
	struct job j;

	(void)state;
	w = join(&j, &two);
	m = &j.m[2];
	while (!w->servers[1].up) {
		step_all(&j.m[1], 1);
		step_all(m, 1);
	}
	assert_false(w->servers[1].welcome);
	know(w, 1, TERN_PLACE_FOLLOWER);
	known.of[1].silences = 9;            /* 1,024 s */
	w->joined_ns -= 500 * TERN_NS_PER_S; /* as if the worker waited for so long */
	look(m, 2);
	assert_false(m->ended);
	w->joined_ns -= 1000 * TERN_NS_PER_S;
	run_alone(m);
	check_turned(&j, m, 1);
	assert_int_equal(known.of[1].silences, 10);
	job_close(&j);
}

/* Server 0 has welcomed the worker, and tells it where server 1 is. */
static void test_a_worker_turns_to_an_address_that_others_tell(void **state)
{
	struct tern_worker *w;
	struct job j;

	(void)state;
	w = join(&j, &two);
	while (!w->servers[0].welcome) {
		step_all(&j.m[0], 1);
		step_all(&j.m[2], 1);
	}
	know(w, 1, TERN_PLACE_FOLLOWER);
	tell(&j, "{\"type\":\"address\",\"server\":1,\"address\":\"" OTHER "\"}");
	while (!j.m[2].ended) {
		step_all(&j.m[0], 1);
		step_all(&j.m[2], 1);
	}
	assert_int_equal(j.m[2].status, -EAGAIN);
	assert_string_equal(known.moved_to, OTHER);
	assert_string_equal(known.of[1].address, j.addresses[1]);
	assert_int_equal(known.of[1].kind, TERN_PLACE_OWN);
	assert_int_equal(known.of[1].here, TERN_PLACE_NEW);
	job_close(&j);
}

/* Both servers have welcomed the worker, whose job waits for another worker. Then server `from` says
 * that server 0 is at OTHER. The worker, which has turned to a process of claim `turned_to` before, turns to it
 * if `turns`. */
static void hear_again_of_0(
	unsigned from, const char *more, uint64_t turned_to, bool turns)
{
	static const struct setup half = {
		"tcp", "softmax", "sgd", 2, 2, 2, 9, TERN_MODE_SYNC, 0};
	struct tern_worker *w;
	char text[120];
	struct job j;

	w = join(&j, &half);
	JOB_UNTIL(&j, w->servers[0].welcome && w->servers[1].welcome);
	known.of[0].claim = turned_to;
	snprintf(text, sizeof(text),
		"{\"type\":\"address\",\"server\":0,\"address\":\"" OTHER "\"%s}", more);
	tern_talk_say(&j.m[from].server->workers[0]->talk, json_loads(text, 0, NULL));
	JOB_UNTIL(&j, turns ? j.m[2].ended : *known.of[0].address != '\0');
	assert_string_equal(turns ? known.moved_to : known.of[0].address, OTHER);
	assert_int_equal(known.moved_count, turns);
	if (turns)
		assert_int_equal(j.m[2].status, -EAGAIN);
	/* The process that has welcomed the worker is tried again if the other one cannot be reached. */
	if (turns && strcmp(more, CLAIM) == 0)
		assert_string_equal(known.of[0].address, j.addresses[0]);
	job_close(&j);
}

static void hear_of_0(unsigned from, const char *more, bool turns)
{
	hear_again_of_0(from, more, 0, turns);
}

/* Server 0 has not been in the job before. */
static void test_of_two_servers_the_one_with_the_higher_claim_counts(void **state)
{
	(void)state;
	hear_of_0(1, "", false);
	hear_of_0(1, CLAIM, true);
}

/* The worker has turned to a process of this claim before, and could not reach it, perhaps. */
static void test_a_worker_turns_once_to_a_process_with_a_higher_claim(void **state)
{
	(void)state;
	hear_again_of_0(1, CLAIM, 1ull << 62, false);
	hear_again_of_0(1, CLAIM, 1ull << 61, true);
}

static void test_a_server_that_makes_room_for_another_is_left(void **state)
{
	(void)state;
	hear_of_0(0, "", true);
}

static void test_of_two_servers_the_one_that_makes_steps_counts(void **state)
{
	(void)state;
	hear_of_0(1, ",\"serves\":true", true);
}

/* Server 1 cannot be reached. The process at server 0's other address may know where it is. */
static void test_a_worker_that_cannot_reach_a_server_asks_elsewhere(void **state)
{
	struct tern_worker *w;
	struct job j;

	(void)state;
	w = join(&j, &two);
	JOB_UNTIL(&j, w->servers[0].welcome);
	assert_false(places_ask_elsewhere(&w->servers[1]));
	know(w, 0, TERN_PLACE_OWN);
	assert_true(places_ask_elsewhere(&w->servers[1]));
	assert_int_equal(w->status, -EAGAIN);
	assert_non_null(strstr(w->text, "server 1 cannot be reached"));
	assert_string_equal(known.moved_to, OTHER);
	job_close(&j);
}

/* Server 0 does not have the job in memory. At its other address is the server whose follower it was,
 * perhaps, but not if nobody has said that it is a follower's address. */
static void test_the_job_in_memory_is_looked_for_once(void **state)
{
	struct tern_worker *w;
	struct job j;

	(void)state;
	w = join(&j, &two);
	JOB_UNTIL(&j, w->servers[0].welcome);
	assert_true(w->servers[0].lacks_memory);
	assert_false(places_look_for_memory(w));
	know(w, 0, TERN_PLACE_OWN);
	assert_false(places_look_for_memory(w));
	known.of[0].here = TERN_PLACE_FOLLOWER;
	known.of[0].searched = true;
	assert_false(places_look_for_memory(w));
	known.of[0].searched = false;
	assert_true(places_look_for_memory(w));
	assert_true(known.of[0].searched);
	assert_int_equal(w->status, -EAGAIN);
	assert_string_equal(known.moved_to, OTHER);
	job_close(&j);
}

static void test_a_worker_leaves_an_address_that_its_host_cannot_dial(void **state)
{
	struct tern_worker *w;
	struct job j;

	(void)state;
	w = join(&j, &one);
	know(w, 0, TERN_PLACE_OWN);
	run_alone(&j.m[1]);
	known.of[0].here = TERN_PLACE_FOLLOWER;
	snprintf(known.of[0].address, sizeof(known.of[0].address), OTHER);
	snprintf(j.addresses[0], sizeof(j.addresses[0]), "nofabric://somewhere");
	run_alone(join_next(&j, w));
	assert_int_equal(j.m[2].status, -EAGAIN);
	assert_string_equal(known.moved_to, OTHER);
	assert_string_equal(known.of[0].address, "nofabric://somewhere");
	job_close(&j);
}

/* A tensor of a killed server may fail long before the connection ends. */
static void test_a_worker_that_lost_a_tensor_goes_back(void **state)
{
	struct tern_worker *w;
	struct job j;

	(void)state;
	w = join(&j, &one);
	JOB_UNTIL(&j, w->begun);
	w->servers[0].talk.broken(&w->servers[0].talk, -EIO);
	JOB_UNTIL(&j, j.m[0].ended && j.m[1].ended);
	assert_int_equal(j.m[1].status, -EAGAIN);
	assert_non_null(strstr(j.m[0].text, "a tensor did not come through"));
	/* Server 0 ends a job whose last worker has failed, although it could go back. */
	assert_false(j.m[0].server->failed_last);
	job_close(&j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_server_tells_where_its_follower_is),
		cmocka_unit_test(test_a_lost_server_is_looked_for_at_its_follower),
		cmocka_unit_test(test_a_lost_connection_leads_to_no_former_address),
		cmocka_unit_test(test_a_silent_server_is_looked_for_elsewhere),
		cmocka_unit_test(
			test_a_server_that_refuses_for_now_is_looked_for_elsewhere),
		cmocka_unit_test(
			test_a_server_that_has_welcomed_is_left_for_another_one_only),
		cmocka_unit_test(test_a_turn_does_not_change_who_has_told_an_address),
		cmocka_unit_test(test_a_connected_server_is_given_longer_each_time),
		cmocka_unit_test(test_a_worker_that_lost_a_tensor_goes_back),
		cmocka_unit_test(test_a_worker_turns_to_an_address_that_others_tell),
		cmocka_unit_test(test_a_server_that_makes_room_for_another_is_left),
		cmocka_unit_test(
			test_of_two_servers_the_one_with_the_higher_claim_counts),
		cmocka_unit_test(
			test_a_worker_turns_once_to_a_process_with_a_higher_claim),
		cmocka_unit_test(test_of_two_servers_the_one_that_makes_steps_counts),
		cmocka_unit_test(test_a_worker_that_cannot_reach_a_server_asks_elsewhere),
		cmocka_unit_test(test_the_job_in_memory_is_looked_for_once),
		cmocka_unit_test(
			test_a_worker_leaves_an_address_that_its_host_cannot_dial),
	};

	return cmocka_run_group_tests(tests, make_data, free_data);
}
