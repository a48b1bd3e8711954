/* SPDX-License-Identifier: Apache-2.0 */
/* See ranks.h. */
#include "tools/ranks.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "ps/job.h"
#include "tools/report.h"

/* Step numbers from here on are Slurm's own: the batch script, an interactive shell. */
#define SLURM_STEP_LIMIT 0xfffffff0ull

/* Variables that a launcher sets. */
struct launcher {
	const char *name;
	const char *rank;
	const char *sizes[3]; /* the first one that is set counts */
	/* Number of ranks on this host, or of hosts; NULL: the launcher does not say. */
	const char *local, *hosts;
	const char *job[5]; /* their values make the name of the run */
	bool (*is_here)(void);
	/* Do these values tell the run from others at the same time? NULL: if one is set. */
	bool (*is_named)(void);
};

static bool is_set(const char *name)
{
	const char *value = getenv(name);

	return value && *value;
}

static bool is_torchrun(void)
{
	return is_set("TORCHELASTIC_RUN_ID");
}

static bool is_slurm_step(void)
{
	const char *step = getenv("SLURM_STEP_ID");

	return step && *step && strtoull(step, NULL, 10) < SLURM_STEP_LIMIT;
}

/* In the order of precedence. */
static const struct launcher launchers[] = {
	{"torchrun", "RANK", {"WORLD_SIZE"}, "LOCAL_WORLD_SIZE", NULL,
		{"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"},
		is_torchrun, NULL},
	{"Open MPI", "OMPI_COMM_WORLD_RANK", {"OMPI_COMM_WORLD_SIZE"},
		"OMPI_COMM_WORLD_LOCAL_SIZE", NULL, {"PMIX_NAMESPACE"}, NULL, NULL},
	{"PMI", "PMI_RANK", {"PMI_SIZE"}, "MPI_LOCALNRANKS", NULL,
		/* the script of sbatch, which is no step, may run several mpiruns */
		{"SLURM_JOB_ID", "SLURM_STEP_ID"}, NULL, is_slurm_step},
	{"Slurm", "SLURM_PROCID", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, NULL,
		"SLURM_STEP_NUM_NODES",
		{"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}, is_slurm_step,
		NULL},
	{"the environment", "RANK", {"WORLD_SIZE"}, "LOCAL_WORLD_SIZE", NULL,
		{"MASTER_PORT"}, NULL, NULL},
};
#define BY_HAND (TERN_ARRAY_SIZE(launchers) - 1)

static const char *size_name(const struct launcher *l)
{
	unsigned i = 0;

	while (l->sizes[i + 1] && !is_set(l->sizes[i]))
		i++;
	return l->sizes[i];
}

static bool is_number(const char *text, uint64_t *out)
{
	char *end;

	if (!isdigit((unsigned char)*text))
		return false;
	errno = 0;
	*out = strtoull(text, &end, 10);
	return !errno && !*end;
}

static int read_variable(const char *name, uint64_t min, uint64_t max, uint64_t *out,
	struct message *error)
{
	const char *text = getenv(name);

	if (is_number(text, out) && *out >= min && *out <= max)
		return 0;
	return options_refuse(error,
		"%s=%.60s in the environment: must be a whole number, %llu to %llu", name,
		text, (unsigned long long)min, (unsigned long long)max);
}

/* Appends the value of a variable to the name of the run. Other characters than letters,
 * digits and -_. become _, since the name is that of a file. */
static void add_to_name(char *name, size_t bytes, const char *variable)
{
	size_t n = strlen(name);

	if (!is_set(variable))
		return;
	snprintf(name + n, bytes - n, ".%.40s", getenv(variable));
	for (char *c = name + n; *c; c++)
		if (!isalnum((unsigned char)*c) && !strchr("-_.", *c))
			*c = '_';
}

static void name_run(const struct launcher *l, struct ranks *out)
{
	snprintf(out->job, sizeof(out->job), "%s", l->rank);
	for (unsigned i = 0; l->job[i]; i++)
		add_to_name(out->job, sizeof(out->job), l->job[i]);
	out->named = l->is_named ? l->is_named() : strcmp(out->job, l->rank) != 0;
	add_to_name(out->job, sizeof(out->job), REPORT_JOB);
	out->named = out->named || is_set(REPORT_JOB);
}

/* True if the launcher says that all ranks are on this host. */
static bool are_on_one_host(const struct launcher *l, uint64_t size)
{
	uint64_t n;

	if (l->local && is_set(l->local))
		return is_number(getenv(l->local), &n) && n == size;
	return l->hosts && is_set(l->hosts) && is_number(getenv(l->hosts), &n) && n == 1;
}

/* Reads the variables of one launcher. out->size is 1 if they are not set. */
static int read_launcher(
	const struct launcher *l, struct ranks *out, struct message *error)
{
	const char *size = size_name(l);
	int r;

	*out = (struct ranks){.size = 1};
	if ((l->is_here && !l->is_here()) || (!is_set(l->rank) && !is_set(size)))
		return 0;
	if (!is_set(l->rank) || !is_set(size))
		return options_refuse(error,
			"%s is set in the environment and %s is not: a launcher that "
			"starts several of this process sets both; unset it, or give "
			"--alone, if there is none",
			is_set(size) ? size : l->rank, is_set(size) ? l->rank : size);
	r = read_variable(size, 1, TERN_WORKERS_MAX, &out->size, error);
	if (r == 0)
		r = read_variable(l->rank, 0, UINT32_MAX, &out->rank, error);
	if (r == 0 && out->rank >= out->size)
		return options_refuse(error,
			"%s=%s and %s=%s in the environment: the rank must be below the "
			"number of ranks",
			l->rank, getenv(l->rank), size, getenv(size));
	out->launcher = l->name;
	out->rank_name = l->rank;
	out->size_name = size;
	out->by_hand = l == &launchers[BY_HAND];
	out->one_host = are_on_one_host(l, out->size);
	name_run(l, out);
	return r;
}

/* Somebody has set RANK and WORLD_SIZE, perhaps for all ranks alike, which would make
 * each of them rank 0. */
static int check_by_hand(
	const struct ranks *found, const struct ranks *hand, struct message *error)
{
	if (hand->size == 1 || (hand->rank == found->rank && hand->size == found->size))
		return 0;
	return options_refuse(error,
		"RANK=%llu and WORLD_SIZE=%llu in the environment contradict %s=%llu and "
		"%s=%llu: unset the first two",
		(unsigned long long)hand->rank, (unsigned long long)hand->size,
		found->rank_name, (unsigned long long)found->rank, found->size_name,
		(unsigned long long)found->size);
}

int ranks_find(struct ranks *out, struct message *error)
{
	struct ranks hand;
	int r = 0;

	*out = (struct ranks){.size = 1};
	for (unsigned i = 0; r == 0 && i < BY_HAND && !out->launcher; i++)
		r = read_launcher(&launchers[i], out, error);
	if (r || (out->launcher && strcmp(out->rank_name, "RANK") == 0))
		return r;
	if (!out->launcher)
		return read_launcher(&launchers[BY_HAND], out, error);
	r = read_launcher(&launchers[BY_HAND], &hand, error);
	return r ? r : check_by_hand(out, &hand, error);
}
