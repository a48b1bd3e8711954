/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of a server that has a follower: what it refuses, and who is blamed while it waits. What the
 * follower has is in test_follower.c.
 */
#include "server/follow.h"
#include "server/membership.h"
#include "tests/server/follower_bed.h"

#include <errno.h>
#include <string.h>

static void end_both(struct job *j, struct process *p)
{
	assert_false(j->m[0].ended);
	close_process(p);
	job_close(j);
}

/* True if one chunk waits for the follower, and another one for the workers. */
static bool waits_for_both(const struct tern_server *s)
{
	bool gathers = false;

	for (uint32_t i = 0; i < s->chunk_count; i++)
		gathers = gathers || s->chunks[i].state == CHUNK_GATHERING;
	return gathers && follow_is_awaited(s);
}

/* Stops the follower at a moment at which it has acknowledged the updates of some chunks only. */
static void stand_still(struct job *j, struct process *p, const struct tern_server *s)
{
	do {
		BOTH_UNTIL(j, p, waits_for_both(s));
		for (int i = 0; i < 300; i++)
			job_step(j);
	} while (!waits_for_both(s));
}

/* A worker is lost, so others count as waiting for the workers that are left. While the follower stands
 * still, these wait for it, too. */
static void test_a_follower_that_stands_still_costs_no_worker(void **state)
{
	struct tern_server *s;
	char names[300];
	struct process p;
	struct job j;
	uint64_t ticks;

	(void)state;
	s = start_job(&j, &usual);
	s->tick_ns = 10 * TERN_NS_PER_MS;
	follow(&p, j.addresses[0]);
	BOTH_UNTIL(&j, &p, follow_is_complete(s));
	close_member(&j.m[2]);
	BOTH_UNTIL(&j, &p, s->lost_count == 1);
	stand_still(&j, &p, s);
	ticks = s->tick_count;
	JOB_UNTIL(&j, s->tick_count > ticks + 20);
	assert_true(follow_is_awaited(s));
	assert_int_equal(s->workers[0]->late_ns, 0);
	assert_true(late_name_owing(s, names, sizeof(names)) > 0);
	assert_non_null(strstr(names, "server 0's follower at tcp://"));
	end_both(&j, &p);
}

static void test_a_server_without_memory_for_it_refuses_a_follower(void **state)
{
	struct process p;
	struct job j;

	(void)state;
	start_job(&j, &usual)->opts.memory_bytes = 100000;
	follow(&p, j.addresses[0]);
	BOTH_UNTIL(&j, &p, p.ended);
	assert_int_equal(p.status, -EINVAL);
	assert_non_null(strstr(p.text, "no room for what following server 0 takes"));
	end_both(&j, &p);
}

static void test_a_follower_that_lost_a_tensor_follows_again(void **state)
{
	struct tern_server *s;
	struct process p;
	struct job j;

	(void)state;
	s = start_job(&j, &usual);
	follow(&p, j.addresses[0]);
	BOTH_UNTIL(&j, &p, follow_is_complete(s));
	server_broken(&follower_of(s)->talk, -EMSGSIZE);
	BOTH_UNTIL(&j, &p, p.ended);
	assert_int_equal(p.status, -EAGAIN);
	assert_true(stats_of(&p).server_lives);
	end_both(&j, &p);
}

/* A server whose process was asked to end goes back with its job, and ends. */
static void test_a_server_whose_process_ends_does_not_live_for_its_follower(void **state)
{
	struct tern_server *s;
	struct process p;
	struct job j;

	(void)state;
	s = start_job(&j, &usual);
	follow(&p, j.addresses[0]);
	BOTH_UNTIL(&j, &p, follow_is_complete(s));
	s->asked = true;
	server_fail(s, -EAGAIN, "asked to end");
	BOTH_UNTIL(&j, &p, p.ended && j.m[0].ended);
	assert_int_equal(p.status, -EAGAIN);
	assert_false(stats_of(&p).server_lives);
	close_process(&p);
	job_close(&j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_follower_that_stands_still_costs_no_worker),
		cmocka_unit_test(test_a_server_without_memory_for_it_refuses_a_follower),
		cmocka_unit_test(test_a_follower_that_lost_a_tensor_follows_again),
		cmocka_unit_test(
			test_a_server_whose_process_ends_does_not_live_for_its_follower),
	};

	adjust_server = take_snapshots;
	return cmocka_run_group_tests(tests, make_data, free_data);
}
