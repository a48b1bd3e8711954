/* SPDX-License-Identifier: Apache-2.0 */
/* See restart_state.h. */
#include "tools/restart_state.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define NEW_FOLLOWER "a new follower is started"

unsigned restart_server_of(const struct launch *l, const struct child *follower)
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
	struct tern_recent *restarts = &l->restarts[number];
	uint64_t most = restart_most(l->opts.settings);
	char when[60], how_often[80];

	if (!restart_count(restarts, most)) {
		snprintf(text, bytes,
			"server %u goes on without a follower (at most %llu restart%s in "
			"10 minutes)",
			i, (unsigned long long)most, most == 1 ? "" : "s");
		return;
	}
	restart_describe_pause(restarts, what, when, sizeof(when));
	restart_describe_count(restarts, most, how_often, sizeof(how_often));
	snprintf(text, bytes, "%s %s", when, how_often);
	restart_plan(l, number);
}

void restart_follower(struct launch *l, const struct child *c)
{
	unsigned i = restart_server_of(l, c);
	char how[160], again[200], text[500];

	free(TERN_TAKE(l->follower_addresses[i]));
	if (restart_is_useless(l) || l->aborted || l->completed)
		return;
	if (l->dismissed[i]) {
		restart_plan(l, launch_number(l, c));
		return;
	}
	supervise_describe(c, how, sizeof(how));
	plan_follower(l, i, RESTART_AGAIN, again, sizeof(again));
	snprintf(text, sizeof(text), "%s: %s", how, again);
	restart_tell(l, c->name, l->restarts[launch_number(l, c)].count, text);
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

bool restart_promote(struct launch *l, unsigned i)
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
	restart_tell(
		l, server->name, l->restarts[launch_number(l, follower)].count, text);
	return true;
}

void restart_settle_took_over(struct launch *l, unsigned i)
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
	l->took_over[restart_server_of(l, c)] = l->undecided = true;
}

void restart_dismiss(struct launch *l, unsigned i)
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
