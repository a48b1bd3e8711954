/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs whose servers change often (server/view.c): servers are removed, also lost ones, and added
 * again, one after the other or at once. Meanwhile server 0 is killed while a view is handed on,
 * and so are other servers; and workers are killed or stand still, so that they come with an old list of
 * servers.
 */
#include "tests/system/sim/scenario.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/util.h"
#include "ps/view.h"
#include "tests/system/sim/again.h"
#include "tests/system/sim/faults.h"
#include "tests/system/sim/history.h"
#include "tests/system/sim/ledger.h"
#include "tests/system/sim/train.h"

#define ACTS_MAX 12u
/* Numbers of views that are told apart. */
#define VIEWS_MAX 16u

static struct {
	struct fault acts[ACTS_MAX];
	unsigned count, next; /* acts of the job, and the one that is to come */
	unsigned instants;    /* until then, once the job goes on */
	bool at_once;         /* it does not wait for that */
	uint32_t views;       /* the job has had so many new ones */
} play;

/* How many seeds have come to so many views. */
static unsigned seeds_with[VIEWS_MAX + 1];
static uint64_t counted_seed = UINT64_MAX;

static enum fault_kind choose_kind(void)
{
	static const enum fault_kind kinds[] = {FAULT_REMOVED, FAULT_REMOVED,
		FAULT_LOST_REMOVED, FAULT_ADDED, FAULT_ADDED, FAULT_ADDED,
		FAULT_ZERO_KILLED, FAULT_ZERO_KILLED, FAULT_SERVER_KILLED,
		FAULT_WORKER_KILLED, FAULT_WORKER_STANDS};

	return kinds[history_below(TERN_ARRAY_SIZE(kinds))];
}

static void wait_for_next(void)
{
	play.next++;
	play.instants = (unsigned)history_below(30);
	play.at_once = history_below(3) == 0;
}

/* A server that was removed and stays away. NULL: there is none. */
static struct member *find_removed(struct job *j)
{
	for (unsigned i = 1; i < j->servers; i++) {
		struct member *m = &j->members[i];

		if (m->stays_away && job_is_removed(j, m) &&
			(m->ended || tern_sim_crashed(m->process)))
			return m;
	}
	return NULL;
}

/* True if the job has been given time to come to the next act. */
static bool is_time(const struct job *j)
{
	const struct fault *last = play.next ? &play.acts[play.next - 1] : NULL;

	if (!j->members[0].server->running && !play.at_once)
		return false;
	if (last && !play.at_once && fault_recovers(j, last))
		return false;
	return play.instants == 0 || play.instants-- == 0;
}

static void act(struct job *j)
{
	struct fault *fault = &play.acts[play.next];

	if (fault->kind == FAULT_ADDED) {
		fault->victim = find_removed(j);
		if (!fault->victim) /* none was removed yet */
			fault->kind = FAULT_REMOVED;
	}
	if (fault_inject(j, fault))
		wait_for_next();
}

static bool live(void *arg)
{
	struct job *j = arg;
	const struct tern_view *view = job_view(j);
	bool ended;

	if (view)
		play.views = TERN_MAX(play.views, view->number);
	history_look();
	if (j->has_begun && play.next < play.count && !job_is_complete(j) && is_time(j))
		act(j);
	for (unsigned i = 0; i < play.next; i++)
		fault_tend(j, &play.acts[i]);
	ended = job_disturb(j);
	history_look();
	return ended;
}

static void perform(struct job *j, const struct tern_dataset *data)
{
	history = (struct history){.job = j, .disk = tern_sim_disk_new(j->sim)};
	j->servers = 3 + (unsigned)history_below(2);
	j->workers = 2 + (unsigned)history_below(2);
	j->reconnect_ns = TERN_NS_PER_MS * (2 + history_below(50));
	history_keep(j);
	play.count = 5 + (unsigned)history_below(ACTS_MAX - 4);
	play.next = play.views = 0;
	for (unsigned i = 0; i < play.count; i++)
		play.acts[i] = (struct fault){.kind = choose_kind()};
	play.acts[0].kind = FAULT_REMOVED;
	play.instants = (unsigned)history_below(30);
	job_start(j, data);
	tern_sim_run(j->sim, live, j, 30 * TERN_NS_PER_S);
}

bool scenario_views(uint64_t seed, bool verbose, uint64_t *hash)
{
	uint64_t random = tern_mix64(seed);
	struct tern_sim_opts opts = job_rough_sim_opts(random, verbose);
	struct job job = {.servers = 1,
		.workers = 1,
		.cut_permille = random % 5 == 1 ? 50 : 0,
		.nap_permille = random % 7 == 1 ? 20 : 0,
		.worker_timeout_ns = 2 * TERN_NS_PER_S,
		.goes_back = true,
		.perform = perform};
	bool good = seed % 3 == 2 ? train_run(&opts, &job, 8 + random % 8, hash)
				  : ledger_run(&job, random, verbose, hash);

	if (seed != counted_seed)
		seeds_with[TERN_MIN(play.views, VIEWS_MAX)]++;
	counted_seed = seed;
	return good;
}

bool views_report(void)
{
	unsigned all = 0, several = 0;

	for (unsigned k = 0; k <= VIEWS_MAX; k++) {
		all += seeds_with[k];
		several += k > 1 ? seeds_with[k] : 0;
		if (seeds_with[k])
			printf("views: %u seeds with %u%s new views\n", seeds_with[k], k,
				k == VIEWS_MAX ? " or more" : "");
	}
	printf("views: %u of %u seeds had several new views, and most should\n", several,
		all);
	return 2 * several > all;
}
