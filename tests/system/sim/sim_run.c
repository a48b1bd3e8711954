/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs scenarios in the simulator, one seed at a time:
 *
 *     sim_run [--scenario NAME] [--seeds FIRST:COUNT] [--verbose | --count ENOUGH | --report]
 *
 * For a seed that fails, the command that runs it again alone, with log lines, is
 * printed; the fifth failure ends the scenario. With --count each seed runs in a process
 * of its own, so that a seed that crashes or never ends counts as a failure; nothing is
 * printed but how many failed, and the scenario ends when ENOUGH seeds have failed. With
 * --report a scenario that counts what it has come to prints that, and fails if something is missing.
 */
#include "tests/system/sim/scenario.h"

#include "tern-config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAILED_MOST 5u
/* Real time that a seed may take with --count; it normally takes milliseconds. */
#define SEED_LIMIT_S 20u

void print_line(const char *line)
{
	fprintf(stderr, "%s\n", line);
}

static const struct {
	const char *name;
	bool (*run)(uint64_t seed, bool verbose, uint64_t *hash);
	/* Every `repeat`-th seed is run twice, to check that both runs are equal. */
	uint64_t repeat;
	/* Prints what the seeds have come to. False: something is missing. NULL: there is no
	 * such report. */
	bool (*report)(void);
} scenarios[] = {
	{"storm", scenario_storm, 50, NULL},
	{"crowd", scenario_crowd, 50, NULL},
	{"windows", scenario_windows, 50, NULL},
	{"any", scenario_any, 50, NULL},
	{"train", scenario_train, 50, NULL},
	{"async", scenario_async, 50, NULL},
	{"late", scenario_late, 50, NULL},
	{"leaving", scenario_leaving, 50, NULL},
	{"start", scenario_start, 50, NULL},
	{"rejoin", scenario_rejoin, 50, NULL},
	{"rejoin-session", scenario_rejoin_session, 50, NULL},
	{"balance", scenario_balance, 50, NULL},
	{"snapshots", scenario_snapshots, 50, NULL},
	{"async-snapshots", scenario_async_snapshots, 50, NULL},
	{"back", scenario_back, 50, NULL},
	{"back-session", scenario_back_session, 50, NULL},
	{"omit", scenario_omit, 50, NULL},
	{"follow", scenario_follow, 50, NULL},
	{"pairs", scenario_pairs, 50, pairs_report},
	{"views", scenario_views, 80, views_report},
	{"ledger", scenario_ledger, 50, NULL},
	{"async-ledger", scenario_async_ledger, 50, NULL},
	{"ssp", scenario_ssp, 50, NULL},
	{"user", scenario_user, 50, NULL},
	{"session", scenario_session, 50, NULL},
	{"handover", scenario_handover, 50, NULL},
	{"arrivals", scenario_arrivals, 50, NULL},
	{"collectives", scenario_collectives, 50, NULL},
#if TERN_HAVE_CUDA
	{"gpu-storm", scenario_gpu_storm, 50, NULL},
	{"gpu-windows", scenario_gpu_windows, 50, NULL},
#endif
};

struct ask {
	unsigned long long first, count; /* the seeds to run */
	bool verbose;
	bool report;
	bool apart; /* --count: runs each seed in a child process */
	/* Number of failed seeds at which --count ends the scenario. */
	unsigned long long enough;
};

#define SCENARIO_COUNT (sizeof(scenarios) / sizeof(scenarios[0]))

static bool run_seed(const char *program, size_t i, uint64_t seed, bool verbose)
{
	uint64_t first = 0, second = 0;
	bool good = scenarios[i].run(seed, verbose, &first);

	if (good && seed % scenarios[i].repeat == 0) {
		good = scenarios[i].run(seed, false, &second) && first == second;
		if (!good)
			fprintf(stderr, "a second run of this seed had another result\n");
	}
	if (!good)
		printf("FAILED: %s --scenario %s --seeds %llu:1 --verbose\n", program,
			scenarios[i].name, (unsigned long long)seed);
	return good;
}

static bool run_apart(size_t i, uint64_t seed)
{
	int status = -1;
	pid_t child = fork();

	if (child == 0) {
		uint64_t hash = 0;

		alarm(SEED_LIMIT_S);
		_exit(freopen("/dev/null", "w", stderr) &&
					scenarios[i].run(seed, false, &hash)
				? 0
				: 1);
	}
	return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* Returns the number of seeds that failed. */
static unsigned long long run_scenario(
	const char *program, size_t i, const struct ask *ask)
{
	unsigned long long failed = 0, seed = ask->first;
	unsigned long long most = ask->apart ? ask->enough : FAILED_MOST;

	for (; seed < ask->first + ask->count && failed < most; seed++)
		failed += ask->apart ? !run_apart(i, seed)
				     : !run_seed(program, i, seed, ask->verbose);
	printf("sim: %s: seeds %llu to %llu: %llu failed\n", scenarios[i].name,
		ask->first, seed - 1, failed);
	if (ask->report && scenarios[i].report && !scenarios[i].report())
		failed++;
	return failed;
}

static int usage(void)
{
	fprintf(stderr, "usage: sim_run [--scenario NAME] [--seeds FIRST:COUNT] "
			"[--verbose | --count ENOUGH | --report]\nnames:");
	for (size_t i = 0; i < SCENARIO_COUNT; i++)
		fprintf(stderr, " %s", scenarios[i].name);
	fprintf(stderr, "\n");
	return 2;
}

int main(int argc, char **argv)
{
	struct ask ask = {.count = 100};
	const char *only = NULL;
	bool good = true;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--verbose") == 0)
			ask.verbose = true;
		else if (strcmp(argv[i], "--report") == 0)
			ask.report = true;
		else if (strcmp(argv[i], "--count") == 0 && i + 1 < argc &&
			 sscanf(argv[++i], "%llu", &ask.enough) == 1)
			ask.apart = true;
		else if (strcmp(argv[i], "--scenario") == 0 && i + 1 < argc)
			only = argv[++i];
		else if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc &&
			 sscanf(argv[i + 1], "%llu:%llu", &ask.first, &ask.count) == 2)
			i++;
		else
			return usage();
	}
	for (size_t i = 0; i < SCENARIO_COUNT; i++)
		if (!only || strcmp(only, scenarios[i].name) == 0)
			good = run_scenario(argv[0], i, &ask) == 0 && good;
	return good ? 0 : 1;
}
