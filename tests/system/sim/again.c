/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members that are made anew, of jobs that go back to a snapshot. A server that has crashed, or was
 * asked to end, comes again at another address, which it tells a server that runs. If there is
 * none, or a worker has not heard yet where another server is, it comes at its old address, as a
 * user has to do it then. All others come at theirs. Some workers that have crashed never come.
 * Servers are removed, also lost ones, and some of them are added again, at other addresses.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "ps/snapshot.h"
#include "server/memory.h"
#include "tests/system/sim/again.h"
#include "tests/system/sim/followers.h"
#include "tests/system/sim/program.h"

/* As in tools/role.c: how long a process waits at most before it is made anew. */
#define BACK_PAUSE_NS (200 * TERN_NS_PER_MS)

bool job_is_server(const struct job *j, const struct member *m)
{
	return m < j->members + j->servers;
}

bool job_is_complete(const struct job *j)
{
	for (unsigned i = 0; i < j->count; i++)
		if (j->members[i].ended && j->members[i].status == 0)
			return true;
	return false;
}

bool job_is_lost(const struct member *m)
{
	return tern_sim_crashed(m->process) || m->doubled ||
	       (m->ended &&
		       (m->asked || (m->server && (m->server->stats.drained ||
							  m->server->stats.replaced))));
}

/* ---- which servers the job has ---- */

/* True if the view, NULL for the first one, has server i. */
static bool has_server(const struct tern_view *view, unsigned i)
{
	return !view || tern_view_find(view, i) != UINT32_MAX;
}

/* The view that the process knows; NULL: only the first, or it tells nobody, since it is lost, or a
 * server that has no part in its view. */
static const struct tern_view *view_of(const struct job *j, const struct member *m)
{
	const struct tern_view *view =
		job_is_server(j, m) ? tern_server_view(m->server) : m->view;

	if (job_is_lost(m) || !view || view->number == 0)
		return NULL;
	if (job_is_server(j, m) && !has_server(view, (unsigned)(m - j->members)))
		return NULL;
	return view;
}

const struct tern_view *job_view(const struct job *j)
{
	const struct tern_view *newest = NULL;

	for (unsigned i = 0; i < j->count; i++) {
		const struct tern_view *view = view_of(j, &j->members[i]);

		if (view && (!newest || view->number > newest->number))
			newest = view;
	}
	return newest;
}

static unsigned server_count(const struct job *j)
{
	const struct tern_view *view = job_view(j);

	return view ? view->count : j->servers;
}

bool job_is_removed(const struct job *j, const struct member *m)
{
	return job_is_server(j, m) &&
	       !has_server(job_view(j), (unsigned)(m - j->members));
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
	bool stays_away = m->stays_away && (!job_is_server(j, m) || job_is_removed(j, m));

	return j->goes_back && !job_is_complete(j) && !stays_away &&
	       (job_is_lost(m) || goes_back(m) || has_failed_early(m));
}

bool job_has_removed(const struct job *j, const struct member *m)
{
	return j->goes_back && job_is_removed(j, m) && (!job_is_lost(m) || m->stays_away);
}

bool job_is_too_late(const struct job *j, const struct member *m)
{
	if (!job_is_complete(j) || (!m->again && !m->still_ns && !m->program))
		return false;
	if (job_is_server(j, m))
		return !m->server->running;
	/* A session makes its worker anew without the member's help. */
	return !m->worker->begun || (m->program && !m->ended && m->worker->over);
}

void job_on_moved(void *seat, uint32_t server, const char *address)
{
	struct member *m = ((struct seat *)seat)->member;
	uint32_t index = tern_view_find(m->view, server);

	snprintf(m->view->servers[index], sizeof(m->view->servers[0]), "%s", address);
	if (!m->view->added[index])
		snprintf(m->servers[server], sizeof(m->servers[0]), "%s", address);
}

bool job_on_viewed(void *seat, const struct tern_view *view)
{
	struct member *m = ((struct seat *)seat)->member;

	*m->view = *view;
	return tern_view_locate(m->view, m->servers, MEMBERS_MAX);
}

static void know_servers(const struct job *j, struct member *m)
{
	m->servers = malloc(sizeof(j->addresses));
	m->view = calloc(1, sizeof(*m->view));
	tern_assert(m->servers && m->view);
	memcpy(m->servers, j->addresses, sizeof(j->addresses));
	tern_view_of_job(
		&(struct tern_ps_job){.servers = m->servers, .server_count = j->servers},
		m->view);
}

static bool knows_others(
	const struct job *j, const struct member *worker, const struct member *server)
{
	const struct tern_view *newest = job_view(j), *view = worker->view;

	if (view->number != (newest ? newest->number : 0))
		return false;
	for (uint32_t k = 0; k < view->count; k++) {
		unsigned i = view->numbers[k];

		if (&j->members[i] != server &&
			strcmp(view->servers[k], j->addresses[i]) != 0)
			return false;
	}
	return true;
}

/* True if each worker knows where each server is, but perhaps this one. */
static bool others_are_known(const struct job *j, const struct member *server)
{
	for (unsigned i = j->servers; i < j->count; i++)
		if (j->members[i].view && !knows_others(j, &j->members[i], server))
			return false;
	return true;
}

/* True if the server was told of by no other than this one, and some worker has not heard of it. */
static bool only_one_knows(
	const struct job *j, const struct member *one, const struct member *server)
{
	unsigned i = (unsigned)(server - j->members);

	if (strcmp(server->met, j->addresses[one - j->members]) != 0)
		return false;
	for (unsigned k = j->servers; k < j->count; k++) {
		const struct tern_view *view = j->members[k].view;
		uint32_t at = view ? tern_view_find(view, i) : UINT32_MAX;

		if (at == UINT32_MAX || strcmp(view->servers[at], j->addresses[i]) != 0)
			return true;
	}
	return false;
}

/* Another server, which runs and is not about to be removed; UINT_MAX: not all others run. */
static unsigned find_other(const struct job *j, unsigned server)
{
	const struct tern_view *next = &j->members[0].server->next_view;
	const struct tern_view *view = job_view(j);
	unsigned other = UINT32_MAX;

	if (next->number <= (view ? view->number : 0))
		next = view;

	for (unsigned i = 0; i < j->servers; i++) {
		if (i == server || !has_server(view, i) || !has_server(next, i))
			continue;
		if (job_is_lost(&j->members[i]))
			return UINT32_MAX;
		other = i;
	}
	return other;
}

static void end_process(struct member *m)
{
	if (!tern_sim_crashed(m->process))
		tern_sim_crash(m->process);
}

/* Puts the member aside, and leaves what the next one has of it. */
static void bury(struct job *j, struct member *m)
{
	struct member *old = malloc(sizeof(*old));

	j->former = realloc(j->former, (j->former_count + 1) * sizeof(*j->former));
	tern_assert(j->former && old);
	j->former[j->former_count++] = old;
	*old = *m;
	old->seat->member = old;
	program_is_gone(old->program);
	*m = (struct member){.index = old->index,
		.again = true,
		.shown = 0,
		.has_begun = old->has_begun,
		.servers = TERN_TAKE(old->servers),
		.view = TERN_TAKE(old->view),
		.others = TERN_TAKE(old->others),
		.other_count = old->other_count,
		.places = TERN_TAKE(old->places)};
	memcpy(m->met, old->met, sizeof(m->met));
	memcpy(m->zero, old->zero, sizeof(m->zero));
	memcpy(m->address, old->address, sizeof(m->address));
}

void job_replace_server(struct job *j, unsigned i, const struct member *now)
{
	struct member *m = &j->members[i];

	if (job_is_lost(m))
		end_process(m);
	else
		m->doubled = true;
	m->again_ns = 0;
	memcpy(m->address, j->addresses[i], sizeof(m->address));
	bury(j, m);
	free(TERN_TAKE(m->view));
	free(TERN_TAKE(m->others));
	*m = *now;
	m->seat->member = m;
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

/* As tools/server.c does, unless the process is lost: the server knows the newest view. */
static void keep_view(struct member *m)
{
	const struct tern_view *view = tern_server_view(m->server);

	free(TERN_TAKE(m->view));
	m->has_begun = !job_is_lost(m) && (m->has_begun || m->server->running);
	if (tern_server_zero(m->server))
		snprintf(m->zero, sizeof(m->zero), "%s", tern_server_zero(m->server));
	if (job_is_lost(m) || view->number == 0)
		return;
	m->view = malloc(sizeof(*view));
	tern_assert(m->view);
	*m->view = *view;
}

/* As tools/server.c does, unless the process is lost: the server has what it had in memory. */
static struct tern_server_memory *keep_memory(const struct member *m)
{
	struct tern_server_memory *memory = NULL;

	if (!job_is_lost(m) && tern_server_keep(m->server, &memory) < 0)
		tern_never("no memory");
	return memory;
}

static void start_server(struct job *j, struct member *m)
{
	struct tern_server_stats stats;
	struct tern_server_memory *memory = keep_memory(m);
	unsigned i = (unsigned)(m - j->members), other = find_other(j, i);
	bool added = job_is_removed(j, m);
	bool moves = added ||
		     (job_is_lost(m) && other != UINT32_MAX && others_are_known(j, m) &&
			     (m->doubled || tern_sim_dice(j->sim, 800)));

	tern_server_stats(m->server, &stats);
	if (job_is_lost(m)) {
		free(TERN_TAKE(m->others)); /* the lost process was a follower */
		m->other_count = 0;
		stats.told_step = 0;
		j->forgets = true; /* also where a follower was lost since */
	}
	other = added ? 0 : other;
	keep_view(m);
	if (!m->doubled || !moves) { /* its address is needed */
		m->doubled = false;
		end_process(m);
	}
	m->again_ns = 0;
	memcpy(m->address, j->addresses[i], sizeof(m->address));
	bury(j, m);
	m->memory = memory;
	follow(j, m, &stats);
	if (moves) {
		snprintf(j->addresses[i], sizeof(j->addresses[i]),
			"sim://server-%u-%u.%u", j->generation, i, ++j->moves);
		memcpy(m->met, j->addresses[other], sizeof(m->met));
	}
	job_start_server(j, m, i, j->addresses[i]);
}

/* A server in whose place another one is has woken up, and has heard that the job has gone back: its
 * process makes a server anew at its old address, as tools/server.c does. */
static void start_doubled(struct job *j, struct member *m)
{
	struct tern_server_stats stats;

	tern_server_stats(m->server, &stats);
	m->doubled = false;
	keep_view(m);
	end_process(m);
	bury(j, m);
	m->doubled = true;
	follow(j, m, &stats);
	job_start_server(j, m, m->index, m->address);
}

static void make_doubled_again(struct job *j, struct member *m)
{
	if (!m->doubled || !goes_back(m) || m->server->stats.drained ||
		m->server->stats.replaced || job_is_complete(j))
		return;
	if (!m->again_ns) {
		m->again_ns = tern_sim_now_ns(j->sim) + BACK_PAUSE_NS;
		job_call_at(j, m->again_ns);
	}
	if (tern_sim_now_ns(j->sim) >= m->again_ns)
		start_doubled(j, m);
}

static void start_worker(struct job *j, struct member *m)
{
	bool lost = job_is_lost(m);
	unsigned index = m->index;

	end_process(m);
	bury(j, m);
	m->returned = true; /* and may come too late */
	if (lost) {
		free(TERN_TAKE(m->servers));
		free(TERN_TAKE(m->view));
		free(TERN_TAKE(m->places));
	}
	if (!m->servers)
		know_servers(j, m);
	job_start_worker(j, m, index, !lost);
}

struct member *job_add_next_worker(struct job *j)
{
	unsigned index = j->count - j->servers;
	struct member *m = &j->members[j->count];

	if (j->count == MEMBERS_MAX || job_is_complete(j))
		return NULL;
	j->count++;
	know_servers(j, m);
	m->returned = true; /* and may come too late */
	job_start_worker(j, m, index, false);
	return m;
}

static void wake_up(struct tern_sim_event *event)
{
	free(event);
}

void job_call_at(struct job *j, uint64_t at_ns)
{
	struct tern_sim_event *event = calloc(1, sizeof(*event));

	tern_assert(event);
	event->happen = wake_up;
	tern_sim_at(j->sim, event, at_ns);
}

/* True if the job can do without this worker: another one is there, or will be, and the job has this
 * worker's number, since later numbers wait for that. */
static bool can_be_missed(const struct job *j, const struct member *worker)
{
	const struct tern_view *view = job_view(j);

	if (worker->index >= (view ? view->workers : j->workers))
		return false;
	for (unsigned i = j->servers; i < j->count; i++)
		if (&j->members[i] != worker && !j->members[i].stays_away)
			return true;
	return false;
}

static void make_again(struct job *j, struct member *m)
{
	uint64_t now_ns = tern_sim_now_ns(j->sim);

	if (!m->again_ns) {
		m->stays_away =
			job_is_server(j, m)
				? job_is_removed(j, m) && tern_sim_dice(j->sim, 400)
				: j->has_begun && job_is_lost(m) && can_be_missed(j, m) &&
					  tern_sim_dice(j->sim, 300);
		m->again_ns =
			now_ns +
			TERN_NS_PER_US * (1 + tern_rng_below(tern_sim_rng(j->sim),
						      job_is_lost(m) ? 20000 : 500));
		job_call_at(j, m->again_ns);
	}
	if (!job_comes_again(j, m) || now_ns < m->again_ns || followers_replace(j, m))
		return;
	j->resumes = j->has_snapshot(j);
	if (job_is_server(j, m))
		start_server(j, m);
	else if (!job_is_lost(m) || !followers_wait(j))
		start_worker(j, m);
}

/* A server crashes or is asked to end, or a worker crashes, at any time after the steps have begun
 * once: also while the job goes back. */
static void lose_one(struct job *j)
{
	bool server = j->falls && (!j->losses || tern_sim_dice(j->sim, 600));
	struct member *m = job_victim(
		j, server ? 0 : j->servers, server ? j->servers : j->count - j->servers);

	if (!m || job_is_complete(j) || followers_spare(j, m))
		return;
	j->has_lost = true;
	if (server)
		j->falls--;
	else
		j->losses--;
	m->asked = server && tern_sim_dice(j->sim, 300);
	followers_on_loss(j, m);
	if (m->asked)
		tern_server_stop(m->server, "asked", true);
	else
		tern_sim_crash(m->process);
}

bool job_remove(struct job *j, unsigned number)
{
	struct member *zero = &j->members[0];

	if (job_is_lost(zero) || zero->ended || server_count(j) < 2 || job_is_complete(j))
		return false;
	for (unsigned i = 0; i < j->servers; i++)
		if (only_one_knows(j, &j->members[number], &j->members[i]))
			return false;
	j->has_lost = true;
	return !tern_server_drain(zero->server, number);
}

/* A user removes a server, which may be lost. */
static void remove_one(struct job *j)
{
	const struct tern_view *view = job_view(j);
	unsigned count = server_count(j), i;

	if (count < 2)
		return;
	i = 1 + (unsigned)tern_rng_below(tern_sim_rng(j->sim), count - 1);
	if (job_remove(j, view ? view->numbers[i] : i))
		j->drains--;
}

/* The lowest version of a chunk; UINT64_MAX: the steps have not begun on all servers. */
static uint64_t find_step(const struct job *j)
{
	uint64_t step = UINT64_MAX;

	for (unsigned i = 0; i < j->servers; i++) {
		const struct member *m = &j->members[i];

		if (job_is_removed(j, m))
			continue;
		if (job_is_lost(m) || m->server->over || !m->server->running)
			return UINT64_MAX;
		for (uint32_t k = 0; k < m->server->chunk_count; k++)
			step = TERN_MIN(step, m->server->chunks[k].version);
	}
	return step;
}

/* True if some chunks have a version that others do not have yet, and still lack gradients for. */
static bool is_between_steps(const struct job *j)
{
	uint64_t lowest = find_step(j);
	bool ahead = false, lacks = false;

	for (unsigned i = 0; lowest != UINT64_MAX && i < j->servers; i++) {
		const struct tern_server *s = j->members[i].server;

		for (uint32_t k = 0; k < s->chunk_count; k++) {
			const struct chunk *c = &s->chunks[k];

			ahead = ahead || c->version > lowest;
			lacks = lacks ||
				(c->version == lowest && c->arrived_count < s->job.slots);
		}
	}
	return ahead && lacks;
}

static void lose_all_workers(struct job *j)
{
	struct member *m;

	if (job_is_complete(j))
		return;
	j->has_lost = true;
	while (j->losses && (m = job_victim(j, j->servers, j->count - j->servers))) {
		tern_sim_crash(m->process);
		j->losses--;
	}
}

/* No step is made again as long as no server is lost. */
static void check_step(struct job *j)
{
	const struct tern_view *view = job_view(j);
	uint32_t number = view ? view->number : 0;
	uint64_t step = find_step(j);

	for (unsigned i = 0; i < j->servers; i++)
		j->forgets = j->forgets || j->members[i].asked;
	if (step == UINT64_MAX) {
		j->stands = true;
		return;
	}
	if (step < j->step_made && number == j->view_made && !j->forgets) {
		printf("the job goes on at step %llu, and was at %llu\n",
			(unsigned long long)step, (unsigned long long)j->step_made);
		j->broken = true;
	}
	j->step_made = step;
	j->view_made = number;
	j->forgets = j->forgets && !j->stands;
	j->stands = false;
}

void job_make_again(struct job *j)
{
	j->has_begun = j->has_begun || j->members[0].server->running;
	check_step(j);
	if (j->has_begun && (j->falls || j->losses) && tern_sim_dice(j->sim, 2))
		lose_one(j);
	if (j->loses_all && j->losses && is_between_steps(j) &&
		tern_sim_dice(j->sim, 400))
		lose_all_workers(j);
	if (j->has_begun && j->drains && tern_sim_dice(j->sim, 10))
		remove_one(j);
	if (j->has_begun && j->adds && tern_sim_dice(j->sim, 5))
		j->adds -= job_add_next_worker(j) != NULL;
	for (unsigned i = j->servers; i < j->count; i++)
		if (!j->members[i].servers)
			know_servers(j, &j->members[i]);
	for (unsigned i = 0; i < j->count; i++)
		if (job_comes_again(j, &j->members[i]))
			make_again(j, &j->members[i]);
	for (unsigned i = 0; i < j->former_count; i++)
		make_doubled_again(j, j->former[i]);
	if (j->followed)
		followers_tend(j);
}
