/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members that are made anew, of jobs that go back to a snapshot. A server that has crashed, or was
 * asked to end, comes again at another address, which it tells a server that runs. If there is
 * none, or a worker has not heard yet where another server is, it comes at its old address, as a
 * user has to do it then. All others come at theirs. Some workers that have crashed never come.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "ps/snapshot.h"
#include "tests/system/sim/job.h"

static bool is_server(const struct job *j, const struct member *m)
{
	return m < j->members + j->servers;
}

/* True if the results are safe, and nobody who is made anew is needed. */
static bool is_complete(const struct job *j)
{
	for (unsigned i = 0; i < j->count; i++)
		if (j->members[i].ended && j->members[i].status == 0)
			return true;
	return false;
}

/* True if the process is gone: it has crashed, or was asked to end. */
static bool is_lost(const struct member *m)
{
	return tern_sim_crashed(m->process) || (m->ended && m->asked);
}

/* A worker that heard of a loss before the first welcome, or was refused at the end of a job that
 * then went back: a user starts it again. */
static bool has_failed_early(const struct member *m)
{
	return m->ended && m->status < 0 && m->worker &&
	       (!m->worker->back_is_possible || strstr(m->text, "no worker is needed"));
}

/* True if the role would make the member anew (tools/role.h). */
static bool goes_back(const struct member *m)
{
	return m->ended && (m->status == -EAGAIN || m->results.cut);
}

bool job_comes_again(const struct job *j, const struct member *m)
{
	return j->goes_back && !is_complete(j) && !m->stays_away &&
	       (is_lost(m) || goes_back(m) || has_failed_early(m));
}

bool job_is_too_late(const struct job *j, const struct member *m)
{
	return m->again && is_complete(j) &&
	       (is_server(j, m) ? !m->server->running : !m->worker->begun);
}

void job_on_moved(void *member, uint32_t server, const char *address)
{
	struct member *m = member;

	snprintf(m->servers[server], sizeof(m->servers[server]), "%s", address);
}

static void know_servers(const struct job *j, struct member *m)
{
	m->servers = malloc(sizeof(j->addresses));
	tern_assert(m->servers);
	memcpy(m->servers, j->addresses, sizeof(j->addresses));
}

/* True if each worker knows where each other server is. */
static bool others_are_known(const struct job *j, unsigned server)
{
	for (unsigned i = j->servers; i < j->count; i++)
		for (unsigned k = 0; k < j->servers; k++)
			if (k != server && j->members[i].servers &&
				strcmp(j->members[i].servers[k], j->addresses[k]) != 0)
				return false;
	return true;
}

/* Another server, which runs; UINT_MAX: not all others run. */
static unsigned find_other(const struct job *j, unsigned server)
{
	unsigned other = UINT32_MAX;

	for (unsigned i = 0; i < j->servers; i++) {
		if (i == server)
			continue;
		if (is_lost(&j->members[i]))
			return UINT32_MAX;
		other = i;
	}
	return other;
}

/* Puts the member aside, and leaves what the next one has of it. */
static void bury(struct job *j, struct member *m)
{
	const struct member *old;

	if (!tern_sim_crashed(m->process))
		tern_sim_crash(m->process);
	j->former = realloc(j->former, (j->former_count + 1) * sizeof(*j->former));
	tern_assert(j->former);
	j->former[j->former_count++] = *m;
	old = &j->former[j->former_count - 1];
	*m = (struct member){
		.index = old->index, .again = true, .shown = 0, .servers = old->servers};
	j->former[j->former_count - 1].servers = NULL;
	memcpy(m->met, old->met, sizeof(m->met));
}

/* As tools/server.c does: the server begins with what server 0 has named. */
static void follow(
	const struct job *j, struct member *m, const struct tern_server_stats *stats)
{
	struct tern_snapshot_id id = {stats->told_step, stats->told_number};

	if (id.step)
		snprintf(m->told, sizeof(m->told), "%s/%s", j->snapshots.directory,
			tern_snapshot_manifest_name(id).text);
}

static void start_server(struct job *j, struct member *m)
{
	struct tern_server_stats stats;
	unsigned i = (unsigned)(m - j->members), other = find_other(j, i);
	bool moves = is_lost(m) && other != UINT32_MAX && others_are_known(j, i) &&
		     tern_sim_dice(j->sim, 800);

	tern_server_stats(m->server, &stats);
	if (is_lost(m))
		stats.told_step = 0;
	bury(j, m);
	follow(j, m, &stats);
	if (moves) {
		snprintf(j->addresses[i], sizeof(j->addresses[i]),
			"sim://server-%u-%u.%u", j->generation, i, ++j->moves);
		memcpy(m->met, j->addresses[other], sizeof(m->met));
	}
	job_start_server(j, i, *m->met ? m->met : NULL);
}

static void start_worker(struct job *j, struct member *m)
{
	bool lost = is_lost(m);
	unsigned index = m->index;

	bury(j, m);
	m->returned = true; /* and may come too late */
	if (lost)
		free(TERN_TAKE(m->servers));
	if (!m->servers)
		know_servers(j, m);
	job_start_worker(j, m, index, !lost);
}

static void wake_up(struct tern_sim_event *event)
{
	free(event);
}

/* Makes the simulator call job_make_again() at that time. */
static void call_at(struct tern_sim *sim, uint64_t at_ns)
{
	struct tern_sim_event *event = calloc(1, sizeof(*event));

	tern_assert(event);
	event->happen = wake_up;
	tern_sim_at(sim, event, at_ns);
}

/* True if another worker is there, or will be. */
static bool another_is_left(const struct job *j, const struct member *worker)
{
	for (unsigned i = j->servers; i < j->count; i++)
		if (&j->members[i] != worker && !j->members[i].stays_away)
			return true;
	return false;
}

static void make_again(struct job *j, struct member *m)
{
	uint64_t now_ns = tern_sim_now_ns(j->sim);

	if (!m->again_ns) {
		m->stays_away = !is_server(j, m) && is_lost(m) && another_is_left(j, m) &&
				tern_sim_dice(j->sim, 300);
		m->again_ns = now_ns +
			      TERN_NS_PER_US * (1 + tern_rng_below(tern_sim_rng(j->sim),
							    is_lost(m) ? 20000 : 500));
		call_at(j->sim, m->again_ns);
	}
	if (m->stays_away || now_ns < m->again_ns)
		return;
	j->resumes = j->has_snapshot(j);
	if (is_server(j, m))
		start_server(j, m);
	else
		start_worker(j, m);
}

/* A server crashes or is asked to end, or a worker crashes, at any time after the steps have begun
 * once: also while the job goes back. */
static void lose_one(struct job *j)
{
	bool server = j->falls && (!j->losses || tern_sim_dice(j->sim, 600));
	struct member *m = job_victim(
		j, server ? 0 : j->servers, server ? j->servers : j->count - j->servers);

	if (!m || is_complete(j))
		return;
	j->has_lost = true;
	if (server)
		j->falls--;
	else
		j->losses--;
	m->asked = server && tern_sim_dice(j->sim, 300);
	if (m->asked)
		tern_server_stop(m->server, "asked", true);
	else
		tern_sim_crash(m->process);
}

void job_make_again(struct job *j)
{
	j->has_begun = j->has_begun || j->members[0].server->running;
	if (j->has_begun && (j->falls || j->losses) && tern_sim_dice(j->sim, 2))
		lose_one(j);
	for (unsigned i = j->servers; i < j->count; i++)
		if (!j->members[i].servers)
			know_servers(j, &j->members[i]);
	for (unsigned i = 0; i < j->count; i++)
		if (job_comes_again(j, &j->members[i]))
			make_again(j, &j->members[i]);
}
