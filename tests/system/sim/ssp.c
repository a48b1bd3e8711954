/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenario of mode ssp:K, with the parameters of ledger.c, which show whose steps they
 * contain. Whenever a worker that has taken c steps computes a gradient, each chunk must
 * have at least the first c - K steps of every worker that the chunk's server takes for
 * alive. One worker is much slower than the others, which have to wait for it.
 */
#include "tests/system/sim/scenario.h"

#include <stdio.h>

#include "base/clock.h"
#include "client/engine_computer.h"
#include "tests/system/sim/ledger.h"

static struct job *now; /* the job that runs */
static unsigned wrong;

static struct member *member_of(const struct tern_engine *engine)
{
	struct member *m = &now->members[now->servers];

	while (m->engine != engine)
		m++;
	return m;
}

static bool is_live(unsigned chunk, unsigned worker)
{
	const struct member *m = &now->members[chunk % now->servers];

	return !m->ended && !tern_sim_crashed(m->process) && m->server->running &&
	       lease_is_live(m->server->workers[worker]);
}

/* Checks the parameters from which a worker computes the gradient of its step `taken`. */
static void check(const float *values, uint64_t taken)
{
	for (unsigned chunk = 0; chunk < LEDGER_CHUNKS; chunk++)
		for (unsigned i = 0; i < now->workers && taken >= now->ssp; i++) {
			uint64_t last =
				tern_ps_job_steps_of(&now->members[0].server->job, i);
			uint64_t due = TERN_MIN(taken - now->ssp + 1, last);
			uint64_t found = ledger_steps_in(now, values, i, chunk);

			if (found >= due || !is_live(chunk, i))
				continue;
			fprintf(stderr,
				"ssp: K = %llu: after %llu steps a worker has got chunk "
				"%u "
				"with %llu steps of worker %u, and %llu are due\n",
				(unsigned long long)now->ssp - 1,
				(unsigned long long)taken, chunk,
				(unsigned long long)found, i, (unsigned long long)due);
			wrong++;
		}
}

static int gradient(struct tern_engine *engine, const struct tern_engine_params *params,
	float *grads, void (*ready)(void *arg, uint64_t first, uint64_t count), void *arg,
	struct tern_result *result)
{
	struct member *m = member_of(engine);

	check(params->values, params->version);
	if (!m->hangs && m == &now->members[now->servers + now->workers / 2])
		m->computer->task.cost_ns = 5 * TERN_NS_PER_MS;
	return ledger_count_records(engine, params, grads, ready, arg, result);
}

static struct tern_engine *engine_new(void *model, size_t rows)
{
	static struct tern_engine_ops ops;
	struct tern_engine *engine = ledger_engine(model, rows);

	ops = *engine->ops;
	ops.gradient = gradient;
	engine->ops = &ops;
	return engine;
}

static bool nothing_was_wrong(const struct job *j)
{
	(void)j;
	return wrong == 0;
}

bool scenario_ssp(uint64_t seed, bool verbose, uint64_t *hash)
{
	struct job job = {.servers = 1 + (unsigned)(seed % 3),
		.workers = 2 + (unsigned)(seed / 2 % 5),
		.cut_permille = seed % 4 != 2 && seed % 3 ? 100 : 0,
		.hurt_permille = 30,
		.nap_permille = seed / 32 % 2 ? 20 : 0,
		.losses = seed % 5 > 1 ? (unsigned)(seed / 16 % 5) : 0,
		.stalls = seed % 7 == 3,
		.hangs = seed % 3 != 1,
		.worker_timeout_ns = 2 * TERN_NS_PER_S,
		.async = true,
		.ssp = 1 + seed % 4,
		.engine = engine_new,
		.also = nothing_was_wrong};

	now = &job;
	wrong = 0;
	return ledger_run(&job, seed, verbose, hash);
}
