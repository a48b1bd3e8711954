/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of server 0 before the steps. The processes of a worker come and go on two servers, which do not
 * hear of them at the same time. */
#include "tests/server/server_bed.h"

static const struct tern_ps_job job = {.slots = 1, .workers = 2};

/* Server 1 says that these processes of the workers have joined it. */
static void come_as_server_1(
	struct rig *rig, struct visitor *server, int incarnation_0, int incarnation_1)
{
	visit(rig, server);
	tern_talk_say(&server->talk,
		json_pack("{s:s, s:i, s:o, s:[i, i], s:s, s:b}", "type", "peer", "server",
			1, "job", job_of(rig, &job, 1, 1, 2), "incarnations",
			incarnation_0, incarnation_1, "arithmetic", "", "snapshots", 0));
}

/* Server 1 says that it has lost a process of worker 0, and is sent away. */
static void lose_worker_0(struct rig *rig, struct visitor *server, int incarnation)
{
	come_as_server_1(rig, server, incarnation, 1);
	tern_talk_say(&server->talk,
		json_pack("{s:s, s:i, s:i, s:s}", "type", "lost", "worker", 0,
			"incarnation", incarnation, "text", "it failed"));
	run_until(rig, &server->again);
}

/* The process that the other server has lost has been replaced here by the next one. */
static void test_a_loss_of_an_earlier_process_costs_the_next_one_nothing(void **state)
{
	struct visitor worker, servers[2];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	visit(&rig, &worker);
	say_join(&worker, job_of(&rig, &job, 1, 1, 2), 0);
	run_until(&rig, &worker.welcome);
	lose_worker_0(&rig, &servers[0], 2);
	assert_int_equal(rig.server->joined_count, 1);
	lose_worker_0(&rig, &servers[1], 1);
	assert_int_equal(rig.server->joined_count, 0);
	close_rig(&rig);
}

/* Another server has an earlier process of worker 1, of which it will hear soon that it has left. */
static void test_the_steps_wait_until_all_servers_have_the_same_processes(void **state)
{
	struct visitor workers[2], servers[2];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	for (unsigned i = 0; i < 2; i++) {
		visit(&rig, &workers[i]);
		say_join(&workers[i], job_of(&rig, &job, 1, 1, 2), i);
		run_until(&rig, &workers[i].welcome);
	}
	come_as_server_1(&rig, &servers[0], 1, 7);
	while (!others_are_connected(rig.server))
		step(&rig);
	assert_false(rig.server->running);
	tern_talk_say(&servers[0].talk, json_pack("{s:s, s:i, s:i}", "type", "lost",
						"worker", 1, "incarnation", 7));
	run_until(&rig, &servers[0].again);
	come_as_server_1(&rig, &servers[1], 1, 1);
	run_until(&rig, &rig.server->running);
	close_rig(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			test_a_loss_of_an_earlier_process_costs_the_next_one_nothing),
		cmocka_unit_test(
			test_the_steps_wait_until_all_servers_have_the_same_processes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
