/* SPDX-License-Identifier: Apache-2.0 */
/* See restart.h. */
#include "tools/restart.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

#define WINDOW_NS (600 * TERN_NS_PER_S)
/* How often, if the user does not say. */
#define MOST 3u

static uint64_t most_of(const struct launch_settings *settings)
{
	if (settings->restarts != UINT64_MAX)
		return settings->restarts;
	return settings->snapshots.directory ? MOST : 0;
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

/* Time before the next restart: a second, and twice as long each further time. */
static unsigned pause_s(const struct restarts *restarts)
{
	return 1u << (TERN_MIN(restarts->count, 6ull) - 1);
}

/* ---- all processes ---- */

bool restart_is_due(struct launch *l, struct launch_settings *settings,
	struct restarts *restarts, const char *cause)
{
	const char *directory = settings->snapshots.directory;
	char from[TERN_SNAPSHOT_NAME_BYTES + 20] = "at its first step", text[900];
	uint64_t most = most_of(settings);
	struct tern_snapshot_id id;

	if (!directory || !count(restarts, most))
		return false;
	if (snapshots_newest(directory, &id) == 0) {
		settings->snapshots.resume = directory;
		snprintf(from, sizeof(from), "from snapshot %s",
			tern_snapshot_short_name(id).text);
	} else if (settings->snapshots.resume) {
		snprintf(from, sizeof(from), "from where it was resumed");
	}
	snprintf(text, sizeof(text),
		"%.600s: all processes are started again, and the job goes on %s "
		"(restart "
		"%llu, at most %llu in 10 minutes)",
		cause, from, (unsigned long long)restarts->count,
		(unsigned long long)most);
	launch_report(l, l->command->name,
		json_pack("{ss sI so}", "event", "restart", "count",
			(json_int_t)restarts->count, "text", report_text(text)));
	return true;
}

void restart_pause(const struct restarts *restarts)
{
	nanosleep(&(struct timespec){.tv_sec = pause_s(restarts)}, NULL);
}

/* ---- one worker ---- */

static void set_next(struct launch *l)
{
	l->next_again_ns = 0;
	for (unsigned i = 0; i < l->sup.child_count; i++)
		if (l->again_ns[i] &&
			(!l->next_again_ns || l->again_ns[i] < l->next_again_ns))
			l->next_again_ns = l->again_ns[i];
}

/* True if nobody needs another worker any more, or this process is one of several ranks. */
static bool is_of_no_use(const struct launch *l)
{
	return l->failed_ns || l->sup.signal || l->served_ns || l->safe ||
	       l->opts.all_workers != l->opts.workers;
}

bool restart_worker(struct launch *l, const struct child *c, char *text, size_t bytes)
{
	unsigned i = launch_number(l, c);
	uint64_t most = most_of(l->opts.settings);

	/* A worker that had said goodbye before it was killed is not lost for server 0, which
	 * would not let another one in. */
	if (c->running || !WIFSIGNALED(c->status) || !l->missed[i] || l->again_ns[i] ||
		is_of_no_use(l) || !count(&l->restarts[i], most))
		return false;
	snprintf(text, bytes,
		", and it is started again in %u s (restart %llu, at most %llu in 10 "
		"minutes)",
		pause_s(&l->restarts[i]), (unsigned long long)l->restarts[i].count,
		(unsigned long long)most);
	l->again_ns[i] = tern_clock_ns() + pause_s(&l->restarts[i]) * TERN_NS_PER_S;
	set_next(l);
	return true;
}

void restart_late(struct launch *l, const struct child *c)
{
	char again[120], text[200];

	if (!l->told[launch_number(l, c)] || !restart_worker(l, c, again, sizeof(again)))
		return;
	snprintf(text, sizeof(text), "the servers have lost %s%s", c->name, again);
	launch_report(l, l->command->name,
		json_pack("{ss so}", "event", "note", "text", report_text(text)));
}

/* Starts a worker again, unless processes that it has left are still there: they are
 * killed. */
static void start(struct launch *l, struct child *c)
{
	unsigned i = launch_number(l, c);

	if (c->left) {
		kill(-c->pid, SIGKILL);
		return;
	}
	l->again_ns[i] = 0;
	l->died[i] = l->told[i] = l->ready[i] = false;
	free(l->missed[i]);
	l->missed[i] = NULL;
	l->sup.replaced = c;
	l->start_worker(l, i - (unsigned)l->opts.servers);
	l->sup.replaced = NULL;
}

void restart_workers(struct launch *l)
{
	uint64_t now_ns = tern_clock_ns();

	if (!l->next_again_ns || now_ns < l->next_again_ns || is_of_no_use(l))
		return;
	for (unsigned i = 0; i < l->sup.child_count; i++)
		if (l->again_ns[i] && now_ns >= l->again_ns[i])
			start(l, &l->sup.children[i]);
	set_next(l);
}
