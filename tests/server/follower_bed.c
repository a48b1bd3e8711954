/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/server/follower_bed.h"

#include <stdio.h>
#include <string.h>

#include "tools/host_env.h"

const struct setup usual = {.fabric = "tcp",
	.model = "mlp:512,64",
	.optimizer = "adam",
	.servers = 1,
	.workers = 2,
	.slots = 2,
	.steps = NEVER_ENDS};

void take_snapshots(struct tern_server_opts *opts)
{
	opts->goes_back = true;
	opts->snapshots.directory = "/tmp";
}

struct tern_server *start_job(struct job *j, const struct setup *setup)
{
	job_start(j, setup);
	JOB_UNTIL(j, j->m[0].server->running && step_of(j) > 3);
	return j->m[0].server;
}

uint64_t step_of(const struct job *j)
{
	return j->m[0].server->chunks[0].version;
}

/* ---- a process that follows ---- */

static void note(void *arg, const char *text)
{
	struct process *p = arg;

	snprintf(p->noted, sizeof(p->noted), "%s", text);
	p->noted_count++;
}

static void ended(void *arg, int status, const char *text)
{
	struct process *p = arg;

	p->ended = true;
	p->status = status;
	snprintf(p->text, sizeof(p->text), "%s", text);
}

void open_process(struct process *p)
{
	const struct tern_context_opts opts = {.reconnect_ns = 50 * TERN_NS_PER_MS};

	*p = (struct process){0};
	assert_int_equal(host_env_new(NULL, &p->env), 0);
	assert_int_equal(tern_domain_new(NULL, &p->domain), 0);
	assert_int_equal(tern_context_new_in(p->domain, &opts, p->env, &p->ctx), 0);
	assert_int_equal(tern_updater_cpu_new(tern_kernels_cpu(), &p->updater), 0);
}

void begin(struct process *p, const char *server)
{
	assert_int_equal(
		tern_follower_new(&(struct tern_follower_opts){.domain = p->domain,
					  .ctx = p->ctx,
					  .updater = p->updater,
					  .server = server,
					  .listen = "tcp://127.0.0.1:0",
					  .memory_bytes = p->memory_bytes,
					  .note = note,
					  .ended = ended,
					  .arg = p},
			&p->follower),
		0);
}

void follow(struct process *p, const char *server)
{
	open_process(p);
	begin(p, server);
}

void close_process(struct process *p)
{
	host_env_stop(p->env);
	tern_context_free(p->ctx);
	tern_follower_free(p->follower);
	tern_updater_free(p->updater);
	tern_domain_free(p->domain);
	host_env_free(p->env);
}

struct tern_follower_stats stats_of(const struct process *p)
{
	struct tern_follower_stats stats;

	tern_follower_stats(p->follower, &stats);
	return stats;
}

struct server_peer *follower_of(const struct tern_server *s)
{
	tern_list_for_each (n, &s->peers) {
		struct server_peer *p = tern_list_entry(n, struct server_peer, node);

		if (p->is_follower)
			return p;
	}
	fail_msg("the server has no follower");
	return NULL;
}
