/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs in sync mode with slow workers: server 0 moves slots from them to others
 * (server/balance.c), while workers are lost and come again. Which workers are slow may change.
 */
#include "tests/system/sim/scenario.h"
#include "tests/system/sim/train.h"

#include <stdio.h>

#include "base/clock.h"

#define SLOW_NS  (30 * TERN_NS_PER_MS)
#define MOODS_NS (3 * TERN_NS_PER_S) /* after this time other workers are slow */

static uint64_t first; /* of the workers that are slow in the beginning */

static uint64_t slow_ns(const struct job *j, const struct member *m)
{
	uint64_t mood = tern_sim_now_ns(j->sim) / MOODS_NS;

	return (m->index + first + mood) % j->workers < 1 + j->workers / 4 ? SLOW_NS : 0;
}

/* A slot has moved, if nobody was lost: some workers had less to do than the slow ones. */
static bool has_moved(const struct job *j)
{
	const struct tern_server *zero = j->members[0].server;

	if (zero->history->moved_count > 0)
		return true;
	fprintf(stderr, "balance: no slot was moved from a slow worker\n");
	return false;
}

bool scenario_balance(uint64_t seed, bool verbose, uint64_t *hash)
{
	struct tern_sim_opts opts = job_rough_sim_opts(seed, verbose);
	bool losses = seed % 3;
	/* 4 slots and up to two workers more, or 20 slots; many steps. */
	unsigned kind = 8 + (unsigned)(seed / 3 % 8), many = kind / 4 % 2;
	struct job job = {.servers = 1 + (unsigned)(seed % 4),
		.workers = (many ? 2 : 5) + (unsigned)(seed / 5 % (many ? 4 : 2)),
		.hurt_permille = 1,
		.nap_permille = seed / 2 % 4 == 3 ? 1 : 0,
		.all_nap = true,
		.losses = losses ? 3 : 0,
		.returns = losses ? 3 : 0,
		.keeps_one = true,
		.polite = seed / 7 % 2,
		.slow_ns = slow_ns,
		.also = losses ? NULL : has_moved,
		.worker_timeout_ns = 2 * TERN_NS_PER_S,
		.reconnect_ns = 2 * TERN_NS_PER_MS,
		.leave_ns = 100 * TERN_NS_PER_US};

	first = seed / 11;
	return train_run(&opts, &job, kind, hash);
}
