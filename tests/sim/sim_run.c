/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs scenarios in the simulator, a seed at a time:
 *
 *     sim_run [--scenario NAME] [--seeds FIRST:COUNT] [--verbose]
 *
 * A seed that fails is printed with the command that runs it again, alone and talking.
 */
#include "tests/sim/scenario.h"

#include "tern-config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void print_line(const char *line)
{
	fprintf(stderr, "%s\n", line);
}

static const struct {
	const char *name;
	bool (*run)(uint64_t seed, bool verbose, uint64_t *hash);
	uint64_t repeat; /* every so many seeds: twice, to see that it does the same */
} scenarios[] = {
	{"storm", scenario_storm, 50},
	{"train", scenario_train, 50},
	{"async", scenario_async, 50},
#if TERN_HAVE_CUDA
	{"gpu-storm", scenario_gpu_storm, 50},
#endif
};

#define SCENARIO_COUNT (sizeof(scenarios) / sizeof(scenarios[0]))

static bool run_seed(const char *program, size_t i, uint64_t seed, bool verbose)
{
	uint64_t first = 0, second = 0;
	bool good = scenarios[i].run(seed, verbose, &first);

	if (good && seed % scenarios[i].repeat == 0) {
		good = scenarios[i].run(seed, false, &second) && first == second;
		if (!good)
			fprintf(stderr, "the second run of the seed went another way\n");
	}
	if (!good)
		printf("FAILED: %s --scenario %s --seeds %llu:1 --verbose\n", program,
			scenarios[i].name, (unsigned long long)seed);
	return good;
}

static int usage(void)
{
	fprintf(stderr, "usage: sim_run [--scenario storm|train|async|gpu-storm] "
			"[--seeds FIRST:COUNT] [--verbose]\n");
	return 2;
}

int main(int argc, char **argv)
{
	unsigned long long first = 0, count = 100;
	const char *only = NULL;
	bool verbose = false, good = true;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--verbose") == 0)
			verbose = true;
		else if (strcmp(argv[i], "--scenario") == 0 && i + 1 < argc)
			only = argv[++i];
		else if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc &&
			 sscanf(argv[i + 1], "%llu:%llu", &first, &count) == 2)
			i++;
		else
			return usage();
	}
	for (size_t i = 0; i < SCENARIO_COUNT; i++) {
		unsigned long long failed = 0;

		if (only && strcmp(only, scenarios[i].name) != 0)
			continue;
		for (unsigned long long seed = first; seed < first + count && failed < 5;
			seed++)
			failed += !run_seed(argv[0], i, seed, verbose);
		printf("sim: %s: seeds %llu to %llu: %llu failed\n", scenarios[i].name,
			first, first + count - 1, failed);
		good = good && failed == 0;
	}
	return good ? 0 : 1;
}
