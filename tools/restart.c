/* SPDX-License-Identifier: Apache-2.0 */
/* See restart.h. */
#include "tools/restart.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define WINDOW_NS (600 * TERN_NS_PER_S)
/* How often, if the user does not say. */
#define MOST            3u
#define PAUSE_DOUBLINGS 5u /* the longest pause has 2^5 s */
#define AGAIN           "it is started again"
#define NEW_FOLLOWER    "a new follower is started"

static uint64_t most_of(const struct launch_settings *settings)
{
	if (settings->restarts != UINT64_MAX)
		return settings->restarts;
	return settings->snapshots.directory ? MOST : 0;
}

bool restart_is_wanted(const struct launch_settings *settings)
{
	return settings->snapshots.directory && most_of(settings) > 0;
}

/* Counts one more restart. False: there were `most` in the last 10 minutes. */
static bool count(struct restarts *restarts, uint64_t most)
{
	uint64_t now_ns = tern_clock_ns();

	if (now_ns - restarts->last_ns > WINDOW_NS)
		restarts->count = 0;
	if (restarts->count >= most)
		return false;
	restarts->count++;
	restarts->last_ns = now_ns;
	return true;
}

/* Time before the next restart: none, then a second, and twice as long each further time. */
static unsigned pause_s(const struct restarts *restarts)
{
	return restarts->count < 2
		       ? 0
		       : 1u << TERN_MIN(restarts->count - 2, (uint64_t)PAUSE_DOUBLINGS);
}

/* Writes "it is started again in 2 s", with `what` as "it is started again", without a time if there
 * is no pause. */
static void describe_pause(
	const struct restarts *restarts, const char *what, char *text, size_t bytes)
{
	size_t n = (size_t)snprintf(text, bytes, "%s", what);

	if (pause_s(restarts))
		snprintf(text + n, bytes - n, " in %u s", pause_s(restarts));
}

/* Writes "(restart 1, at most 3 in 10 minutes)". */
static void describe_count(
	const struct restarts *restarts, uint64_t most, char *text, size_t bytes)
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

static void tell(struct launch *l, const char *who, uint64_t number, const char *text)
{
	launch_report(l, l->command->name,
		json_pack("{ss ss* sI so}", "event", "restart", "who", who, "count",
			(json_int_t)number, "text", report_text(text)));
}

/* ---- all processes ---- */

bool restart_is_due(struct launch *l, struct launch_settings *settings,
	struct restarts *restarts, const char *cause)
{
	const char *directory = settings->snapshots.directory;
	char from[TERN_SNAPSHOT_NAME_BYTES + 20], how_often[80], text[900];
	uint64_t most = most_of(settings);
	struct tern_snapshot_id id;

	if (!directory || l->exhausted || !count(restarts, most))
		return false;
	describe_origin(settings, from, sizeof(from));
	if (snapshots_newest(directory, &id) == 0)
		settings->snapshots.resume = directory;
	describe_count(restarts, most, how_often, sizeof(how_often));
	snprintf(text, sizeof(text),
		"%.600s: all processes are started again, and the job goes on from %s %s",
		cause, from, how_often);
	tell(l, NULL, restarts->count, text);
	return true;
}

void restart_pause(const struct restarts *restarts)
{
	nanosleep(&(struct timespec){.tv_sec = pause_s(restarts)}, NULL);
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

static void plan(struct launch *l, unsigned i)
{
	l->again_ns[i] = tern_clock_ns() + pause_s(&l->restarts[i]) * TERN_NS_PER_S;
	set_next(l);
}

/* True if nobody needs another process any more, or this one is one of several ranks. */
static bool is_of_no_use(const struct launch *l)
{
	return l->failed_ns || l->sup.signal || l->served_ns || l->safe ||
	       l->opts.all_workers != l->opts.workers;
}

/* ---- one worker, while others go on ---- */

bool restart_worker(struct launch *l, const struct child *c, char *text, size_t bytes)
{
	unsigned i = launch_number(l, c);
	uint64_t most = most_of(l->opts.settings);
	char again[60], how_often[80];

	/* A worker that had said goodbye before it was killed is not lost for server 0, which
	 * would not let another one in. */
	if (c->running || !WIFSIGNALED(c->status) || !l->missed[i] || l->again_ns[i] ||
		is_of_no_use(l) || !count(&l->restarts[i], most))
		return false;
	describe_pause(&l->restarts[i], AGAIN, again, sizeof(again));
	describe_count(&l->restarts[i], most, how_often, sizeof(how_often));
	snprintf(text, bytes, ", and %s %s", again, how_often);
	plan(l, i);
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

/* True if the process was killed. A server with --snapshots that was asked to end leaves the
 * others waiting for it, too. */
static bool was_killed(const struct launch *l, const struct child *c)
{
	int code;

	if (c->running || WIFSIGNALED(c->status))
		return !c->running;
	code = WEXITSTATUS(c->status);
	return !launch_is_worker(l, c) && (code > 128 || code == EXIT_REQUEUE);
}

/* True if a worker has ended by itself. The job is about to end, or its servers would wait for
 * this worker. */
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

	if (!l->opts.goes_back || !l->begun || is_of_no_use(l) || !was_killed(l, c) ||
		has_left(l))
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

/* The part of an address behind "tcp://"; NULL if only the process that has had it can. */
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

/* Starts a server again, with the newest list of the job's servers. Without a server that all workers know,
 * the others are named, too, that will come again at their former addresses. */
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

	for (unsigned i = 0; i < l->opts.servers; i++)
		memory =
			memory && (!job_view_has(&l->view, i) ||
					  (l->sup.children[i].running && !l->unheard[i]));
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
	struct restarts *restarts = &l->restarts[launch_number(l, c)];

	if (!count(restarts, most_of(settings)))
		return false;
	supervise_describe(c, how, sizeof(how));
	describe_way_back(l, c, way, sizeof(way));
	describe_pause(restarts, AGAIN, again, sizeof(again));
	describe_count(restarts, most_of(settings), how_often, sizeof(how_often));
	snprintf(text, sizeof(text), "%s: %s, and the job %s %s", how, again, way,
		how_often);
	tell(l, c->name, restarts->count, text);
	plan(l, launch_number(l, c));
	l->went_back = true;
	return true;
}

static void strand(struct launch *l, const struct child *c, bool exhausted)
{
	l->stranded = c;
	l->exhausted = exhausted;
}

/* ---- followers ---- */

static unsigned server_of(const struct launch *l, const struct child *follower)
{
	return launch_number(l, follower) - (unsigned)(l->opts.servers + l->opts.workers);
}

/* True if the follower has been started once. */
static bool has_follower(const struct launch *l, unsigned i)
{
	return l->opts.followers && launch_number(l, launch_follower((struct launch *)l,
							     i)) < l->sup.child_count;
}

void restart_start_follower(struct launch *l, unsigned i)
{
	const struct launch_place place = {.follow = l->addresses[i]};

	l->dismissed[i] = false;
	launch_server(l, i, &place);
}

/* Plans to start the follower of a server, and writes "WHAT in 2 s (...)". */
static void plan_follower(
	struct launch *l, unsigned i, const char *what, char *text, size_t bytes)
{
	unsigned number = launch_number(l, launch_follower(l, i));
	struct restarts *restarts = &l->restarts[number];
	uint64_t most = most_of(l->opts.settings);
	char when[60], how_often[80];

	if (!count(restarts, most)) {
		snprintf(text, bytes,
			"server %u goes on without a follower (at most %llu restart%s in "
			"10 minutes)",
			i, (unsigned long long)most, most == 1 ? "" : "s");
		return;
	}
	describe_pause(restarts, what, when, sizeof(when));
	describe_count(restarts, most, how_often, sizeof(how_often));
	snprintf(text, bytes, "%s %s", when, how_often);
	plan(l, number);
}

void restart_follower(struct launch *l, const struct child *c)
{
	unsigned i = server_of(l, c);
	char how[160], again[200], text[500];

	free(TERN_TAKE(l->follower_addresses[i]));
	if (is_of_no_use(l) || l->aborted || l->completed)
		return;
	if (l->dismissed[i]) {
		plan(l, launch_number(l, c));
		return;
	}
	supervise_describe(c, how, sizeof(how));
	plan_follower(l, i, AGAIN, again, sizeof(again));
	snprintf(text, sizeof(text), "%s: %s", how, again);
	tell(l, c->name, l->restarts[launch_number(l, c)].count, text);
}

/* The follower is the server from now on. The former process of the server has the follower's place,
 * until another one is started there. */
static void exchange(struct launch *l, unsigned i)
{
	struct child *server = &l->sup.children[i], *follower = launch_follower(l, i);
	struct child former = *server;

	snprintf(former.name, sizeof(former.name), "%s", follower->name);
	*server = *follower;
	*follower = former;
	snprintf(server->name, sizeof(server->name), "server %u", i);
	free(l->addresses[i]);
	l->addresses[i] = TERN_TAKE(l->follower_addresses[i]);
	launch_write_join(l);
	l->went_back = true;
}

/* A server was killed. Its follower takes its place, if it has all of the server's share. Another
 * follower is started in the place of the killed process. */
static bool promote(struct launch *l, unsigned i)
{
	const struct child *server = &l->sup.children[i], *follower;
	char how[160], again[200], text[600];

	if (!has_follower(l, i))
		return false;
	follower = launch_follower(l, i);
	if (!follower->running || !launch_follows(l, i))
		return false;
	supervise_describe(server, how, sizeof(how));
	plan_follower(l, i, NEW_FOLLOWER, again, sizeof(again));
	snprintf(text, sizeof(text),
		"%s: its follower (pid %d) takes its place, and the job goes on from "
		"memory; %s",
		how, (int)follower->pid, again);
	exchange(l, i);
	tell(l, server->name, l->restarts[launch_number(l, follower)].count, text);
	return true;
}

/* A follower has begun as the server. The former server is killed, if it still runs: it would wait for
 * its job when all others have ended. restart_follower() sees to another follower then. */
static void settle_took_over(struct launch *l, unsigned i)
{
	const struct child *server = &l->sup.children[i],
			   *follower = launch_follower(l, i);
	char again[200] = "the former process is killed, since the job has lost it",
	     text[400];

	l->took_over[i] = false;
	if (!follower->running || l->dismissed[i])
		return;
	if (!server->running)
		plan_follower(l, i, NEW_FOLLOWER, again, sizeof(again));
	snprintf(text, sizeof(text),
		"%s (pid %d) has taken the place of %s (pid %d), and the job goes "
		"on from memory; %s",
		follower->name, (int)follower->pid, server->name, (int)server->pid,
		again);
	launch_report(l, l->command->name,
		json_pack("{ss so}", "event", "note", "text", report_text(text)));
	exchange(l, i);
	l->lost[i] = l->unheard[i] = false;
	launch_take_begun(l, server);
	if (follower->running)
		kill(follower->pid, SIGKILL);
}

void restart_took_over(struct launch *l, const struct child *c)
{
	/* The two processes are not exchanged now, while lines of one of them are read. */
	l->took_over[server_of(l, c)] = l->undecided = true;
}

/* True if the job goes on without this server, or the one whose follower this is. */
static bool is_removed(const struct launch *l, const struct child *c)
{
	if (launch_is_worker(l, c))
		return false;
	return !job_view_has(&l->view,
		launch_is_follower(l, c) ? server_of(l, c) : launch_number(l, c));
}

/* Ends a follower that lacks a part of what its server had. It is started again when another server
 * listens. */
static void dismiss(struct launch *l, unsigned i)
{
	const struct child *follower;

	if (!has_follower(l, i))
		return;
	follower = launch_follower(l, i);
	if (!follower->running)
		return;
	l->dismissed[i] = true;
	kill(follower->pid, SIGKILL);
}

static void decide_server(struct launch *l, unsigned i)
{
	const struct child *c = &l->sup.children[i];

	l->lost[i] = false;
	if (is_removed(l, c) || promote(l, i))
		return;
	dismiss(l, i);
	if (!can_be_found(l, i))
		strand(l, c, false);
	else if (!plan_back(l, c))
		strand(l, c, true);
}

/* Workers that were killed need not wait until server 0 has lost them: it begins anew, with
 * their places free. */
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
			settle_took_over(l, i);
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

/* Starts a process again, unless processes that it has left are still there: they are
 * killed. */
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
	if (launch_is_follower(l, c) && !is_there(l, server_of(l, c)))
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
		restart_start_follower(l, server_of(l, c));
	else if (launch_is_worker(l, c))
		l->start_worker(l, i - (unsigned)l->opts.servers);
	else
		start_server(l, i);
	l->sup.replaced = NULL;
}

bool restart_server_is_pending(const struct launch *l)
{
	for (unsigned i = 0; i < l->opts.servers; i++)
		if ((l->again_ns[i] || l->lost[i]) && !is_of_no_use(l))
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
	if (is_of_no_use(l))
		return false;
	for (unsigned i = 0; i < l->opts.servers + l->opts.workers; i++)
		if (l->again_ns[i])
			return true;
	return l->undecided;
}

void restart_turn(struct launch *l)
{
	if (is_of_no_use(l))
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
