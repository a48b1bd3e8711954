/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that server 0 believes no wrong list of steps when it takes a snapshot in async mode. A
 * visitor plays server 1. (The simulator's scenario async-snapshots shows that right lists lead to
 * one instant.) */
#include "tests/server/server_bed.h"

#include <string.h>

#include "server/cut.h"

#define NUMBER 7u /* of the snapshot */

static const struct tern_ps_job async = {
	.mode = TERN_MODE_ASYNC, .steps = 5, .slots = 2, .workers = 2};

/* Begins a job of two workers, which make 3 and 2 steps, and two servers. */
static void open_pair(struct rig *rig, struct visitor *workers, struct visitor *second)
{
	open_rig(rig);
	rig->server->opts.snapshots.directory = "/tmp";
	for (unsigned i = 0; i < 2; i++) {
		visit(rig, &workers[i]);
		say_join(&workers[i], job_of(rig, &async, 1, 1000, 2), i);
		run_until(rig, &workers[i].welcome);
	}
	visit(rig, second);
	tern_talk_say(&second->talk,
		json_pack("{s:s, s:i, s:o, s:s, s:b}", "type", "peer", "server", 1, "job",
			job_of(rig, &async, 1, 1000, 2), "arithmetic", "", "snapshots",
			1));
	run_until(rig, &rig->server->running);
}

static void check_refused(const char *text, bool asked)
{
	struct visitor workers[2], second;
	struct rig rig;

	open_pair(&rig, workers, &second);
	if (asked)
		cut_begin(rig.server, NUMBER);
	tern_talk_say(&second.talk, json_loads(text, 0, NULL));
	run_until(&rig, &second.refused);
	if (!strstr(second.text, "\"cut\" was not asked for, or has no list of the steps "
				 "of 2 workers"))
		fail_msg("%s: %s", text, second.text);
	close_rig(&rig);
}

static void test_a_cut_that_was_not_asked_for_is_refused(void **state)
{
	(void)state;
	check_refused("{\"type\":\"cut\",\"number\":7,\"steps\":[0,0]}", false);
	check_refused("{\"type\":\"cut\",\"number\":8,\"steps\":[0,0]}", true);
}

static void test_wrong_steps_of_a_cut_are_refused(void **state)
{
	static const char *const texts[] = {
		"{\"type\":\"cut\",\"number\":7}",
		"{\"type\":\"cut\",\"number\":7,\"steps\":3}",
		"{\"type\":\"cut\",\"number\":7,\"steps\":[0]}",
		"{\"type\":\"cut\",\"number\":7,\"steps\":[0,0,0]}",
		"{\"type\":\"cut\",\"number\":7,\"steps\":[-1,0]}",
		"{\"type\":\"cut\",\"number\":7,\"steps\":[0,3]}",
		"{\"type\":\"cut\",\"number\":7,\"steps\":[0,\"1\"]}",
	};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(texts); i++)
		check_refused(texts[i], true);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_cut_that_was_not_asked_for_is_refused),
		cmocka_unit_test(test_wrong_steps_of_a_cut_are_refused),
	};

	return cmocka_run_group_tests_name("cut", tests, NULL, NULL);
}
