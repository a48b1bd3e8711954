/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two faults in one job, each of all kinds (faults.h): fault A in some phase of an undisturbed job,
 * and fault B while the job recovers from A. The seed modulo the number of pairs is the pair, so
 * that as many seeds as there are pairs, one after the other, have each pair once; the seed
 * determines also the phase, the instants, the sizes and the fabric. The result must be that of an
 * undisturbed job: the same bytes, or each record applied once.
 *
 * A pair counts as reached if B was injected when the job had not recovered from A, as far as the
 * scenario can see (fault_recovers()).
 */
#include "tests/system/sim/scenario.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/util.h"
#include "server/snapshot_state.h"
#include "tests/system/sim/again.h"
#include "tests/system/sim/faults.h"
#include "tests/system/sim/history.h"
#include "tests/system/sim/ledger.h"
#include "tests/system/sim/train.h"

/* Pairs that make no sense, and why. */
static const struct {
	enum fault_kind a, b;
	const char *why;
} senseless[] = {
	{FAULT_DISK, FAULT_DISK, "a disk that is full, or fails, cannot become so"},
};

#define PAIRS (FAULT_COUNT * FAULT_COUNT - TERN_ARRAY_SIZE(senseless))

enum phase { PHASE_JOIN, PHASE_STEPS, PHASE_SNAPSHOT, PHASE_END, PHASE_COUNT };

static struct pair {
	struct fault a, b;
	enum phase phase;  /* of the undisturbed job in which A happens */
	unsigned instants; /* of that phase until A happens */
	uint64_t steps;    /* the step at which the phase begins */
	/* B happens after this time, and so many instants after the servers that A has killed are
	 * there again; or when the job has recovered from A. */
	uint64_t b_ns;
	unsigned b_instants;
	bool reached; /* the job had not recovered from A yet */
} pair;

/* How often each pair was run and reached; and the last seed that counts, since some seeds are run
 * twice. */
static struct {
	unsigned run, reached;
} cells[FAULT_COUNT][FAULT_COUNT];
static uint64_t counted_seed = UINT64_MAX;

static const char *why_senseless(enum fault_kind a, enum fault_kind b)
{
	for (size_t i = 0; i < TERN_ARRAY_SIZE(senseless); i++)
		if (senseless[i].a == a && senseless[i].b == b)
			return senseless[i].why;
	return NULL;
}

/* Chooses the pair of this number. */
static void choose(uint64_t number)
{
	unsigned k = 0;

	while (why_senseless(k / FAULT_COUNT, k % FAULT_COUNT) || number-- > 0)
		k++;
	pair = (struct pair){.a = {.kind = k / FAULT_COUNT, .first = true},
		.b = {.kind = k % FAULT_COUNT}};
}

/* ---- when A happens ---- */

static bool is_in_phase(const struct job *j)
{
	const struct tern_server *zero = j->members[0].server;
	struct tern_server_stats stats;

	if (pair.phase == PHASE_JOIN)
		return true;
	tern_server_stats(zero, &stats);
	if (!zero->running || stats.steps < pair.steps)
		return false;
	if (pair.phase == PHASE_SNAPSHOT)
		return zero->snapshots->state != SNAPSHOTS_IDLE;
	return pair.phase == PHASE_STEPS || zero->bye_count > 0 ||
	       stats.steps + 2 >= zero->job.steps;
}

static void maybe_a(struct job *j)
{
	if (!fault_is_ready(j, &pair.a) || !fault_is_ready(j, &pair.b) ||
		!is_in_phase(j) || (pair.instants && pair.instants--) ||
		!fault_inject(j, &pair.a))
		return;
	pair.b_ns = tern_sim_now_ns(j->sim);
	pair.b_instants = (unsigned)history_below(60);
	if (history_below(4) == 0) {
		pair.b_instants = 0;
		pair.b_ns += TERN_NS_PER_US * history_below(150000);
		job_call_at(j, pair.b_ns);
	}
}

/* ---- when B happens ---- */

/* True if the servers that were killed are there again: until then the others mostly wait. */
static bool servers_are_back(const struct job *j)
{
	for (unsigned i = 0; i < j->servers; i++)
		if (tern_sim_crashed(j->members[i].process) && !j->members[i].stays_away)
			return false;
	return true;
}

static void maybe_b(struct job *j)
{
	bool recovers = fault_recovers(j, &pair.a);

	if (recovers && tern_sim_now_ns(j->sim) < pair.b_ns)
		return;
	if (recovers && pair.b_instants && (!servers_are_back(j) || pair.b_instants--))
		return;
	if (fault_inject(j, &pair.b))
		pair.reached = recovers;
}

static bool live(void *arg)
{
	struct job *j = arg;
	bool ended;

	history_look();
	if (!job_is_complete(j)) {
		if (!pair.a.injected)
			maybe_a(j);
		else if (!pair.b.injected)
			maybe_b(j);
	}
	fault_tend(j, &pair.a);
	fault_tend(j, &pair.b);
	ended = job_disturb(j);
	history_look();
	return ended;
}

/* ---- the job ---- */

static unsigned count_of(enum fault_kind kind)
{
	return (pair.a.kind == kind) + (pair.b.kind == kind);
}

static void perform(struct job *j, const struct tern_dataset *data)
{
	history = (struct history){.job = j, .disk = tern_sim_disk_new(j->sim)};
	j->servers = 2 + (unsigned)history_below(2) + count_of(FAULT_REMOVED) +
		     count_of(FAULT_LOST_REMOVED) + count_of(FAULT_ADDED);
	j->workers = 2 + (unsigned)history_below(3);
	j->reconnect_ns = TERN_NS_PER_MS * (2 + history_below(100));
	history_keep(j);
	j->snapshots.keep = 3;
	pair.phase = (enum phase)history_below(PHASE_COUNT);
	if (pair.phase == PHASE_JOIN &&
		!(fault_is_early(pair.a.kind) && fault_is_early(pair.b.kind)))
		pair.phase = PHASE_STEPS;
	pair.instants = (unsigned)history_below(pair.phase == PHASE_JOIN
							? 15 * j->servers * j->workers
						: pair.phase == PHASE_END ? 10
									  : 40);
	pair.steps = pair.phase == PHASE_END ? 0 : history_below(j->plan.steps / 2);
	job_start(j, data);
	tern_sim_run(j->sim, live, j, 60 * TERN_NS_PER_S);
}

static void count(uint64_t seed)
{
	if (seed == counted_seed)
		return;
	counted_seed = seed;
	cells[pair.a.kind][pair.b.kind].run++;
	cells[pair.a.kind][pair.b.kind].reached += pair.reached;
}

bool scenario_pairs(uint64_t seed, bool verbose, uint64_t *hash)
{
	uint64_t round = seed / PAIRS, random = tern_mix64(seed);
	struct tern_sim_opts opts = job_rough_sim_opts(random, verbose);
	struct job job = {.servers = 1,
		.workers = 1,
		.cut_permille = random % 4 != 2 && random % 5 == 1 ? 50 : 0,
		.nap_permille = random % 7 == 1 ? 20 : 0,
		.worker_timeout_ns = 2 * TERN_NS_PER_S,
		.goes_back = true,
		.perform = perform};
	bool good;

	choose(seed % PAIRS);
	good = round % 3 == 2 ? train_run(&opts, &job, 8 + random % 8, hash)
			      : ledger_run(&job, random, verbose, hash);
	if (!good)
		fprintf(stderr, "pairs: seed %llu: A: %s; B: %s, which was %s\n",
			(unsigned long long)seed, fault_texts[pair.a.kind],
			fault_texts[pair.b.kind],
			pair.reached ? "reached" : "not reached");
	count(seed);
	return good;
}

/* ---- the table ---- */

static void print_row(enum fault_kind a)
{
	printf("%-12s", fault_names[a]);
	for (unsigned b = 0; b < FAULT_COUNT; b++)
		if (why_senseless(a, b))
			printf("       -");
		else
			printf(" %3u/%-3u", cells[a][b].reached, cells[a][b].run);
	printf("\n");
}

bool pairs_report(void)
{
	unsigned missed = 0;

	printf("pairs: how often B was injected while the job recovered from A, of how "
	       "many seeds\n%-12s",
		"A \\ B");
	for (unsigned b = 0; b < FAULT_COUNT; b++)
		printf(" %-7.7s", fault_names[b]);
	printf("\n");
	for (unsigned a = 0; a < FAULT_COUNT; a++) {
		print_row(a);
		for (unsigned b = 0; b < FAULT_COUNT; b++)
			missed += !why_senseless(a, b) && cells[a][b].reached == 0;
	}
	for (unsigned k = 0; k < FAULT_COUNT; k++)
		printf("%s: %s\n", fault_names[k], fault_texts[k]);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(senseless); i++)
		printf("not %s, %s: %s\n", fault_names[senseless[i].a],
			fault_names[senseless[i].b], senseless[i].why);
	printf("pairs: %u of %u were never reached\n", missed, (unsigned)PAIRS);
	return missed == 0;
}
