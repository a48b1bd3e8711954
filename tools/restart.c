/* SPDX-License-Identifier: Apache-2.0 */
/* See restart.h, and restart_state.h. */
#include "tools/restart_state.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define WINDOW_NS (600 * TERN_NS_PER_S)
/* Restarts of a process in 10 minutes, if the user does not give --restarts. */
#define MOST            3u
#define PAUSE_DOUBLINGS 5u /* the longest pause has 2^5 s */

uint64_t restart_most(const struct launch_settings *settings)
{
	if (settings->restarts != UINT64_MAX)
		return settings->restarts;
	return settings->snapshots.directory ? MOST : 0;
}

bool restart_is_wanted(const struct launch_settings *settings)
{
	return settings->snapshots.directory && restart_most(settings) > 0;
}

bool restart_count_at(struct tern_recent *restarts, uint64_t most, uint64_t now_ns)
{
	return tern_recent_count(restarts, WINDOW_NS, most, now_ns);
}

bool restart_count(struct tern_recent *restarts, uint64_t most)
{
	return restart_count_at(restarts, most, tern_clock_ns());
}

unsigned restart_pause_s(const struct tern_recent *restarts)
{
	return restarts->count < 2
		       ? 0
		       : 1u << TERN_MIN(restarts->count - 2, (uint64_t)PAUSE_DOUBLINGS);
}

void restart_describe_pause(
	const struct tern_recent *restarts, const char *what, char *text, size_t bytes)
{
	size_t n = (size_t)snprintf(text, bytes, "%s", what);

	if (restart_pause_s(restarts))
		snprintf(text + n, bytes - n, " in %u s", restart_pause_s(restarts));
}

void restart_describe_count(
	const struct tern_recent *restarts, uint64_t most, char *text, size_t bytes)
{
	snprintf(text, bytes, "(restart %llu, at most %llu in 10 minutes)",
		(unsigned long long)restarts->count, (unsigned long long)most);
}

/* Writes from where the job will go on. */
static void describe_origin(
	const struct launch_settings *settings, char *text, size_t bytes)
{
	struct tern_snapshot_id id;

	if (snapshots_newest(settings->snapshots.directory, &id) == 0)
		snprintf(text, bytes, "snapshot %s", tern_snapshot_short_name(id).text);
	else
		snprintf(text, bytes, "%s",
			settings->snapshots.resume ? "where it was resumed"
						   : "its first step");
}

void restart_tell(struct launch *l, const char *who, uint64_t number, const char *text)
{
	launch_report(l, l->command->name,
		json_pack("{ss ss* sI so}", "event", "restart", "who", who, "count",
			(json_int_t)number, "text", report_text(text)));
}

/* ---- all processes ---- */

bool restart_is_due(struct launch *l, struct launch_settings *settings,
	struct tern_recent *restarts, const char *cause)
{
	const char *directory = settings->snapshots.directory;
	char from[TERN_SNAPSHOT_NAME_BYTES + 20], how_often[80], text[900];
	uint64_t most = restart_most(settings);
	struct tern_snapshot_id id;

	if (!directory || l->exhausted || !restart_count(restarts, most))
		return false;
	describe_origin(settings, from, sizeof(from));
	if (snapshots_newest(directory, &id) == 0)
		settings->snapshots.resume = directory;
	restart_describe_count(restarts, most, how_often, sizeof(how_often));
	snprintf(text, sizeof(text),
		"%.600s: all processes are started again, and the job goes on from %s %s",
		cause, from, how_often);
	restart_tell(l, NULL, restarts->count, text);
	return true;
}

void restart_pause(const struct tern_recent *restarts)
{
	nanosleep(&(struct timespec){.tv_sec = restart_pause_s(restarts)}, NULL);
}

/* ---- when processes are started again ---- */

static void set_next(struct launch *l)
{
	l->next_again_ns = 0;
	for (unsigned i = 0; i < l->sup.child_count; i++)
		if (l->again_ns[i] &&
			(!l->next_again_ns || l->again_ns[i] < l->next_again_ns))
			l->next_again_ns = l->again_ns[i];
}

void restart_plan(struct launch *l, unsigned i)
{
	l->again_ns[i] =
		tern_clock_ns() + restart_pause_s(&l->restarts[i]) * TERN_NS_PER_S;
	set_next(l);
}

bool restart_is_useless(const struct launch *l)
{
	return l->failed_ns || l->sup.signal || l->served_ns || l->safe ||
	       l->opts.all_workers != l->opts.workers;
}

/* ---- one worker, while others go on ---- */

bool restart_worker(struct launch *l, const struct child *c, char *text, size_t bytes)
{
	unsigned i = launch_number(l, c);
	uint64_t most = restart_most(l->opts.settings);
	char again[60], how_often[80];

	/* A worker that had said goodbye before it was killed is not lost for server 0, which
	 * would not let another one in. */
	if (c->running || !WIFSIGNALED(c->status) || !l->missed[i] || l->again_ns[i] ||
		restart_is_useless(l) || !restart_count(&l->restarts[i], most))
		return false;
	restart_describe_pause(&l->restarts[i], RESTART_AGAIN, again, sizeof(again));
	restart_describe_count(&l->restarts[i], most, how_often, sizeof(how_often));
	snprintf(text, bytes, ", and %s %s", again, how_often);
	restart_plan(l, i);
	return true;
}

void restart_late(struct launch *l, const struct child *c)
{
	char again[160], text[240];

	if (!l->told[launch_number(l, c)] || !restart_worker(l, c, again, sizeof(again)))
		return;
	snprintf(text, sizeof(text), "the servers have lost %s%s", c->name, again);
	launch_report(l, l->command->name,
		json_pack("{ss so}", "event", "note", "text", report_text(text)));
}

/* ---- a job that goes back ---- */

/* True if the process was killed, or is a server with --snapshots that was asked to end: the
 * others wait for such a server, too. */
static bool was_killed(const struct launch *l, const struct child *c)
{
	int code;

	if (c->running || WIFSIGNALED(c->status))
		return !c->running;
	code = WEXITSTATUS(c->status);
	return !launch_is_worker(l, c) && (code > 128 || code == EXIT_REQUEUE);
}

/* True if a worker has exited by itself. Either the job is about to end, or its servers would wait
 * for a worker that nobody starts again. So the job does not go back in place. */
static bool has_left(const struct launch *l)
{
	for (unsigned i = 0; i < l->sup.child_count; i++)
		if (launch_is_worker(l, &l->sup.children[i]) &&
			!l->sup.children[i].running &&
			WIFEXITED(l->sup.children[i].status))
			return true;
	return false;
}

bool restart_takes(struct launch *l, const struct child *c)
{
	unsigned i = launch_number(l, c);

	if (!l->opts.goes_back || !l->begun || restart_is_useless(l) ||
		!was_killed(l, c) || has_left(l))
		return false;
	if (!launch_is_worker(l, c)) {
		l->at_steps[i] = l->known[i] = false;
		l->lost[i] = true;
	}
	l->undecided = true;
	return true;
}

bool restart_has_failed(const struct launch *l, const struct child *c)
{
	return !launch_is_worker(l, c) && l->unheard[launch_number(l, c)];
}

/* Returns the part of an address behind "tcp://"; NULL if no other process can listen at this
 * address (shm). */
static const char *reusable(const char *address)
{
	const char *rest = strstr(address, "://");

	return rest && strchr(rest + 3, ':') ? rest + 3 : NULL;
}

/* True if this server can tell all workers where another one is. */
static bool is_guide(const struct launch *l, unsigned i)
{
	return l->sup.children[i].running && l->known[i];
}

static bool has_guide(const struct launch *l)
{
	for (unsigned i = 0; i < l->opts.servers; i++)
		if (is_guide(l, i))
			return true;
	return false;
}

/* True if the workers will find the server when it is started again. */
static bool can_be_found(const struct launch *l, unsigned i)
{
	return has_guide(l) || reusable(l->addresses[i]);
}

/* Starts a server again, with the newest list of the job's servers. Its --join names the servers that run.
 * Without a running server that all workers know, all servers listen at their former addresses again, so
 * --join also names those that do not run yet. */
static void start_server(struct launch *l, unsigned index)
{
	const char *directory = l->opts.settings->snapshots.directory;
	char join[sizeof(l->join)] = "", listen[128];
	struct launch_place place = {NULL, NULL, NULL, NULL, NULL};
	char *view = job_view_text(&l->view, index);
	bool guided = has_guide(l);
	struct tern_snapshot_id id;
	size_t n = 0;

	for (unsigned i = 0; i < l->opts.servers; i++)
		if (i != index && job_view_has(&l->view, i) &&
			(!guided || l->sup.children[i].running))
			n += (size_t)snprintf(join + n, sizeof(join) - n, "%s%.120s",
				n ? "," : "", l->addresses[i]);
	if (!guided) {
		/* A copy, since the address changes while this server listens. */
		snprintf(listen, sizeof(listen), "%s", reusable(l->addresses[index]));
		place.listen = listen;
	}
	if (n)
		place.join = join;
	else if (snapshots_newest(directory, &id) == 0)
		place.resume = directory;
	place.view = view;
	l->unheard[index] = true;
	launch_server(l, index, &place);
	free(view);
}

/* Writes from where the job goes on when this process is here again. Servers that all live have the
 * job in memory. (A server that was removed has ended.) */
static void describe_way_back(
	const struct launch *l, const struct child *c, char *text, size_t bytes)
{
	bool memory = launch_is_worker(l, c);
	char from[TERN_SNAPSHOT_NAME_BYTES + 20];
	struct tern_snapshot_id id;

	for (unsigned i = 0; i < l->opts.servers; i++)
		memory =
			memory && (!job_view_has(&l->view, i) ||
					  (l->sup.children[i].running && !l->unheard[i]));
	if (!memory && l->snapshot_step &&
		snapshots_newest(l->opts.settings->snapshots.directory, &id) == -ENOENT) {
		snprintf(text, bytes, "waits for its snapshots, which are gone");
		return;
	}
	describe_origin(l->opts.settings, from, sizeof(from));
	snprintf(text, bytes, "%s %s",
		memory ? "goes on from memory, or from" : "goes back to", from);
}

/* Plans to start a process again without which the job cannot go on, and tells the user. False: it
 * was started again too often. */
static bool plan_back(struct launch *l, const struct child *c)
{
	const struct launch_settings *settings = l->opts.settings;
	char way[TERN_SNAPSHOT_NAME_BYTES + 60], how[160], again[60], how_often[80],
		text[500];
	struct tern_recent *restarts = &l->restarts[launch_number(l, c)];

	if (!restart_count(restarts, restart_most(settings)))
		return false;
	supervise_describe(c, how, sizeof(how));
	describe_way_back(l, c, way, sizeof(way));
	restart_describe_pause(restarts, RESTART_AGAIN, again, sizeof(again));
	restart_describe_count(
		restarts, restart_most(settings), how_often, sizeof(how_often));
	snprintf(text, sizeof(text), "%s: %s, and the job %s %s", how, again, way,
		how_often);
	restart_tell(l, c->name, restarts->count, text);
	restart_plan(l, launch_number(l, c));
	l->went_back = true;
	return true;
}

/* The job cannot go on in place, since this process cannot be started again. */
static void strand(struct launch *l, const struct child *c, bool exhausted)
{
	l->stranded = c;
	l->exhausted = exhausted;
}

/* ---- deciding ---- */

/* True if the job goes on without this server, or the one whose follower this is. */
static bool is_removed(const struct launch *l, const struct child *c)
{
	if (launch_is_worker(l, c))
		return false;
	return !job_view_has(&l->view,
		launch_is_follower(l, c) ? restart_server_of(l, c) : launch_number(l, c));
}

static void decide_server(struct launch *l, unsigned i)
{
	const struct child *c = &l->sup.children[i];

	l->lost[i] = false;
	if (is_removed(l, c) || restart_promote(l, i))
		return;
	restart_dismiss(l, i);
	if (!can_be_found(l, i))
		strand(l, c, false);
	else if (!plan_back(l, c))
		strand(l, c, true);
}

/* Plans to start workers again that were killed. They need not wait until server 0 has lost them:
 * server 0 is not at the steps, and begins anew with their places free. */
static void decide_workers(struct launch *l)
{
	const struct child *killed = NULL;
	bool left = false;

	for (unsigned i = 0; i < l->sup.child_count; i++) {
		const struct child *c = &l->sup.children[i];

		if (!launch_is_worker(l, c))
			continue;
		if (was_killed(l, c) && !l->again_ns[i]) {
			if (plan_back(l, c))
				l->told[i] = true;
			else
				killed = c;
		}
		left = left || c->running || l->again_ns[i];
	}
	if (!left && killed)
		strand(l, killed, true);
}

static void decide(struct launch *l)
{
	l->undecided = false;
	for (unsigned i = 0; i < l->opts.servers; i++)
		if (l->took_over[i])
			restart_settle_took_over(l, i);
	for (unsigned i = 0; i < l->opts.servers && !l->stranded; i++)
		if (l->lost[i])
			decide_server(l, i);
	if (!l->stranded && !l->at_steps[0])
		decide_workers(l);
}

/* ---- starting ---- */

/* True if a follower can be told where this server is. */
static bool is_there(const struct launch *l, unsigned i)
{
	return l->sup.children[i].running && !l->unheard[i];
}

/* Starts a process again. If processes that its former program has started still run, they are
 * killed, and a later turn starts the process. */
static void start(struct launch *l, struct child *c)
{
	unsigned i = launch_number(l, c);

	if (is_removed(l, c)) {
		l->again_ns[i] = 0;
		return;
	}
	if (c->left) {
		kill(-c->pid, SIGKILL);
		return;
	}
	if (launch_is_follower(l, c) && !is_there(l, restart_server_of(l, c)))
		return; /* when its server listens */
	l->again_ns[i] = 0;
	if (i < l->opts.servers && !can_be_found(l, i)) {
		strand(l, c, false);
		return;
	}
	l->died[i] = l->told[i] = l->ready[i] = false;
	free(l->missed[i]);
	l->missed[i] = NULL;
	l->sup.replaced = c;
	if (launch_is_follower(l, c))
		restart_start_follower(l, restart_server_of(l, c));
	else if (launch_is_worker(l, c))
		l->start_worker(l, i - (unsigned)l->opts.servers);
	else
		start_server(l, i);
	l->sup.replaced = NULL;
}

bool restart_server_is_pending(const struct launch *l)
{
	for (unsigned i = 0; i < l->opts.servers; i++)
		if ((l->again_ns[i] || l->lost[i]) && !restart_is_useless(l))
			return true;
	return false;
}

void restart_end_removed(struct launch *l)
{
	for (unsigned i = 0; i < l->opts.servers; i++) {
		const struct child *c = &l->sup.children[i];

		if (c->running && l->unheard[i] && is_removed(l, c))
			kill(c->pid, SIGKILL);
	}
}

bool restart_is_pending(const struct launch *l)
{
	if (restart_is_useless(l))
		return false;
	for (unsigned i = 0; i < l->opts.servers + l->opts.workers; i++)
		if (l->again_ns[i])
			return true;
	return l->undecided;
}

void restart_turn(struct launch *l)
{
	if (restart_is_useless(l))
		return;
	if (l->undecided)
		decide(l);
	if (!l->next_again_ns || tern_clock_ns() < l->next_again_ns)
		return;
	for (unsigned i = 0; i < l->sup.child_count && !l->stranded; i++)
		if (l->again_ns[i] && tern_clock_ns() >= l->again_ns[i])
			start(l, &l->sup.children[i]);
	set_next(l);
}
