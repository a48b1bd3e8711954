/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of a server that has a follower: what it refuses, and who is blamed while it waits. What the
 * follower has is in test_follower.c.
 */
#include "server/follow.h"
#include "server/follower.h"
#include "server/membership.h"
#include "tests/server/train_bed.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools/host_env.h"

#define NEVER_ENDS 100000u /* steps */

struct process { /* it follows server 0 of the job */
	struct member m;
	struct tern_follower *follower;
};

static void follower_ended(void *arg, int status, const char *text)
{
	struct process *p = arg;

	p->m.ended = true;
	p->m.status = status;
	snprintf(p->m.text, sizeof(p->m.text), "%s", text);
}

static void follow(struct process *p, const struct job *j)
{
	*p = (struct process){.follower = NULL};
	open_member(&p->m);
	assert_int_equal(tern_updater_cpu_new(tern_kernels_cpu(), &p->m.updater), 0);
	assert_int_equal(
		tern_follower_new(&(struct tern_follower_opts){.domain = p->m.domain,
					  .ctx = p->m.ctx,
					  .updater = p->m.updater,
					  .server = j->addresses[0],
					  .listen = "tcp://127.0.0.1:0",
					  .ended = follower_ended,
					  .arg = p},
			&p->follower),
		0);
}

static void close_process(struct process *p)
{
	host_env_stop(p->m.env);
	tern_context_free(p->m.ctx);
	tern_follower_free(p->follower);
	tern_updater_free(p->m.updater);
	tern_domain_free(p->m.domain);
	host_env_free(p->m.env);
}

#define BOTH_UNTIL(job_, process_, cond)                                                 \
	JOB_UNTIL(job_, (tern_progress((process_)->m.ctx), cond))

static void go_back(struct tern_server_opts *opts)
{
	opts->goes_back = true;
	opts->snapshots.directory = "/tmp";
}

static const struct setup usual = {.fabric = "tcp",
	.model = "mlp:512,64",
	.optimizer = "adam",
	.servers = 1,
	.workers = 2,
	.slots = 2,
	.steps = NEVER_ENDS};

static struct tern_server *start_job(struct job *j)
{
	adjust_server = go_back;
	job_start(j, &usual);
	JOB_UNTIL(j, j->m[0].server->running && j->m[0].server->chunks[0].version > 3);
	return j->m[0].server;
}

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
	s = start_job(&j);
	s->tick_ns = 10 * TERN_NS_PER_MS;
	follow(&p, &j);
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
	start_job(&j)->opts.memory_bytes = 100000;
	follow(&p, &j);
	BOTH_UNTIL(&j, &p, p.m.ended);
	assert_int_equal(p.m.status, -EINVAL);
	assert_non_null(strstr(p.m.text, "no room for what following server 0 takes"));
	end_both(&j, &p);
}

static struct server_peer *follower_of(const struct tern_server *s)
{
	tern_list_for_each (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if (p->is_follower)
			return p;
	}
	return NULL;
}

static void test_a_follower_that_lost_a_tensor_follows_again(void **state)
{
	struct tern_follower_stats stats;
	struct tern_server *s;
	struct process p;
	struct job j;

	(void)state;
	s = start_job(&j);
	follow(&p, &j);
	BOTH_UNTIL(&j, &p, follow_is_complete(s));
	server_broken(&follower_of(s)->talk, -EMSGSIZE);
	BOTH_UNTIL(&j, &p, p.m.ended);
	tern_follower_stats(p.follower, &stats);
	assert_int_equal(p.m.status, -EAGAIN);
	assert_true(stats.server_lives);
	end_both(&j, &p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_follower_that_stands_still_costs_no_worker),
		cmocka_unit_test(test_a_server_without_memory_for_it_refuses_a_follower),
		cmocka_unit_test(test_a_follower_that_lost_a_tensor_follows_again),
	};

	return cmocka_run_group_tests(tests, make_data, free_data);
}
