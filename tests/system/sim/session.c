/* SPDX-License-Identifier: Apache-2.0 */
/* The scenario of jobs whose workers are simulated programs. */
#include "base/clock.h"
#include "tests/system/sim/ledger.h"
#include "tests/system/sim/program.h"
#include "tests/system/sim/scenario.h"

/* While a worker gives the initial values, it may crash, or be asked to leave. */
static void hurt_giver(struct job *j)
{
	const struct tern_server *s = j->members[0].server;
	struct member *m;

	if (!j->losses || !s->running || !s->given.has || s->given.begun ||
		!tern_sim_dice(j->sim, 60))
		return;
	m = &j->members[j->servers + s->given.chosen];
	if (m->ended || m->asked || m->stalled || tern_sim_crashed(m->process))
		return;
	j->losses--;
	m->asked = tern_sim_dice(j->sim, 300);
	if (m->asked)
		tern_worker_ask_to_leave(m->worker, "asked");
	else
		tern_sim_crash(m->process);
	j->doomed = j->doomed || job_workers_left(j) == 0;
}

bool scenario_rejoin_session(uint64_t seed, bool verbose, uint64_t *hash)
{
	struct job job = {.servers = 1 + (unsigned)(seed % 4),
		.workers = 2 + (unsigned)(seed / 2 % 4),
		.hurt_permille = 30,
		.nap_permille = seed / 32 % 2 ? 20 : 0,
		.all_nap = true,
		.losses = 8,
		.returns = 8,
		.keeps_one = true,
		.polite = true,
		.reconnect_ns = 2 * TERN_NS_PER_MS,
		.leave_ns = 100 * TERN_NS_PER_US};

	program_describe(&job, seed / 2 % 3 ? 1 + (unsigned)(seed / 3 % 127) : 0);
	return ledger_run(&job, seed, verbose, hash);
}

bool scenario_session(uint64_t seed, bool verbose, uint64_t *hash)
{
	/* If from_first, `layer.1` is given, whose values show who has given them. */
	bool from_first = seed / 2 % 3 == 2;
	unsigned given = seed / 2 % 3 ? (1 + (unsigned)(seed / 3 % 127)) | from_first : 0;
	struct job job = {.servers = 1 + (unsigned)(seed % 3),
		.workers = 1 + (unsigned)(seed / 2 % 6),
		.cut_permille = seed % 4 != 2 && seed % 3 ? 100 : 0,
		.hurt_permille = 30,
		.nap_permille = seed / 32 % 2 ? 20 : 0,
		.losses = (unsigned)(seed / 16 % 3) + (given && seed % 3),
		.polite = true,
		.fails = seed % 5 < 3,
		.hangs = seed % 7 == 3,
		.worker_timeout_ns = 2 * TERN_NS_PER_S,
		.async = seed % 8 == 5,
		.from_first = from_first,
		.prologue = hurt_giver};

	program_describe(&job, given);
	if (seed / 4 % 4)
		/* With + 1 seeds 0 to 33 come to all marks of tests/mutants. */
		program_choose_types(&job, seed + 1);
	if (!job.async && job.workers > 1 && seed % 3 != 1)
		job.fickle = 1 + (unsigned)(seed / 12 % (job.workers - 1));
	if (job.losses + job.fickle >= job.workers)
		job.losses = job.workers - job.fickle - 1;
	return ledger_run(&job, seed, verbose, hash);
}
