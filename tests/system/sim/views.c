/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs whose servers change often (server/view.c): servers are removed, also lost ones, and added
 * again, one after the other or at once. Meanwhile server 0 is killed while a view is handed on,
 * and so are other servers; and workers are killed or stand still, so that they come with an old list of
 * servers. Workers of new numbers come at any time, so that views of servers and of workers follow
 * each other, and all workers are asked to end, or killed.
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
#include "tests/system/sim/program.h"
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
	uint32_t newest;      /* number of the last one */
	/* The server 0 that has agreed to remove a server and has not made the next view yet, and the
	 * number of the view before; NULL: none has. */
	const struct tern_server *decider;
	uint32_t old_number;
} play;

/* How many seeds have come to so many views. */
static unsigned seeds_with[VIEWS_MAX + 1];
static uint64_t counted_seed = UINT64_MAX;

static enum fault_kind choose_kind(void)
{
	static const enum fault_kind kinds[] = {FAULT_REMOVED, FAULT_REMOVED,
		FAULT_LOST_REMOVED, FAULT_ADDED, FAULT_ADDED, FAULT_ADDED,
		FAULT_ZERO_KILLED, FAULT_ZERO_KILLED, FAULT_SERVER_KILLED,
		FAULT_WORKER_KILLED, FAULT_WORKER_STANDS, FAULT_WORKER_ADDED,
		FAULT_WORKER_ADDED, FAULT_WORKER_ADDED, FAULT_WORKERS_ASKED,
		FAULT_WORKERS_KILLED};

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

/* ---- what holds of views ---- */

static void complain(struct job *j, unsigned server, const char *what)
{
	fprintf(stderr, "views: server %u %s\n", server, what);
	j->broken = true;
}

static uint32_t newest_number(const struct job *j)
{
	const struct tern_view *view = job_view(j);

	return view ? view->number : 0;
}

/* Server 0 has agreed to remove a server of the view with this number. */
static void expect_view(const struct job *j, uint32_t number)
{
	play.decider = j->members[0].server;
	play.old_number = number;
}

/* A server 0 that has agreed to remove a server makes the next view when the job goes back, unless
 * it is killed before that. */
static void check_removal(struct job *j)
{
	const struct member *zero = &j->members[0];

	if (!play.decider)
		return;
	if (tern_sim_crashed(zero->process) || newest_number(j) > play.old_number)
		play.decider = NULL;
	else if (zero->server != play.decider && zero->server->running)
		complain(j, 0, "has forgotten that it removes a server");
}

/* A server knows its number, and ends for good only if its newest view does not have it. */
static void check_servers(struct job *j)
{
	for (unsigned i = 0; i < j->servers; i++) {
		const struct tern_server *s = j->members[i].server;
		struct tern_server_stats stats;

		tern_server_stats(s, &stats);
		if (stats.has_job && stats.index != i)
			complain(j, i, "takes itself for another one");
		if (stats.drained && tern_view_find(tern_server_view(s), i) != UINT32_MAX)
			complain(j, i, "takes itself for removed");
	}
}

/* ---- what happens ---- */

static void act(struct job *j)
{
	struct fault *fault = &play.acts[play.next];
	uint32_t number = newest_number(j);
	/* If it does not know the newest view, that one may count instead of its own. */
	bool zero_knows = j->members[0].server->view.number == number;

	if (fault->kind == FAULT_ADDED) {
		fault->victim = find_removed(j);
		if (!fault->victim) /* none was removed yet */
			fault->kind = FAULT_REMOVED;
	}
	if (!fault_inject(j, fault))
		return;
	if (fault->kind == FAULT_REMOVED && zero_knows)
		expect_view(j, number);
	wait_for_next();
}

static bool live(void *arg)
{
	struct job *j = arg;
	bool ended;

	play.views += newest_number(j) > play.newest;
	play.newest = TERN_MAX(play.newest, newest_number(j));
	if (!j->broken) {
		check_removal(j);
		check_servers(j);
	}
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
	play.next = play.views = play.newest = 0;
	play.decider = NULL;
	for (unsigned i = 0; i < play.count; i++)
		play.acts[i] = (struct fault){.kind = choose_kind()};
	play.acts[0].kind = FAULT_REMOVED;
	play.acts[1].kind = FAULT_WORKER_ADDED;
	if (history_below(2))
		play.acts[2].kind = FAULT_WORKERS_ASKED;
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
	bool good;

	if (seed % 4 == 1) {
		program_describe(&job, seed / 4 % 2 ? (unsigned)(seed / 8 % 128) : 0);
		program_choose_types(&job, seed / 2);
	}
	good = seed % 4 == 2 ? train_run(&opts, &job, 8 + random % 8, hash)
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
