/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Followers, as tools/follow.c and tools/server.c run them: each is a process that follows server i. When
 * the server is lost, it makes a server with what it has in memory, the candidate. When the candidate's
 * steps begin, it is the job's server i, and another follower comes. When server i lives, it follows
 * again.
 */
#include "tests/system/sim/followers.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "ps/snapshot.h"
#include "server/follow.h"
#include "server/follower_state.h"
#include "server/memory.h"
#include "tests/system/sim/again.h"

#define PAUSE_NS (TERN_NS_PER_MS) /* before a process makes a follower or a server anew */
#define RETURNS_NS                                                                       \
	(300 * TERN_NS_PER_MS) /* for which a server is waited for that lives */
/* How long a user waits for a follower to come in the place of a lost server. */
#define PATIENCE_NS TERN_NS_PER_S
#define WAIT_NS     (20 * TERN_NS_PER_S)
#define HURTS_MOST  3u  /* crashes and stops of one server's followers */
#define LOOK_TURNS  16u /* between two comparisons of all bytes */

struct standby {
	unsigned server;
	struct tern_sim_process *process; /* of the follower; NULL: none runs */
	struct tern_context *ctx;
	struct tern_updater *updater;
	struct tern_follower *follower;
	bool ended;
	int status;
	char text[300];
	char address[128], followed[128]; /* where it listens; of the server */
	struct tern_server_memory *memory;
	bool stands; /* it is about to become a candidate, or is one */
	struct member candidate;
	bool is_candidate;
	bool done;          /* it has heard that the job is complete */
	uint64_t again_ns;  /* when the next process is made; 0: not yet known */
	uint64_t stands_ns; /* since when it stands */
	unsigned starts, hurts;
	/* Followers that have ended, until they are freed. */
	struct grave {
		struct tern_sim_process *process;
		struct tern_context *ctx;
		struct tern_updater *updater;
		struct tern_follower *follower;
	} * graves;
	unsigned grave_count;
	/* Candidates that have ended. */
	struct member *former;
	unsigned former_count;
};

static void complain(struct job *j, const struct standby *b, const char *what)
{
	printf("server %u's follower: %s\n", b->server, what);
	j->broken = true;
}

static void ended(void *arg, int status, const char *text)
{
	struct standby *b = arg;

	b->ended = true;
	b->status = status;
	snprintf(b->text, sizeof(b->text), "%s", text);
}

static bool is_alive(const struct standby *b)
{
	return b->process && !tern_sim_crashed(b->process);
}

static void start_follower(struct job *j, struct standby *b)
{
	struct tern_context_opts opts = {.eager_bytes = 512,
		.record_count = 512,
		.reconnect_ns = j->reconnect_ns ? j->reconnect_ns : 100 * TERN_NS_PER_MS};
	char name[32];

	snprintf(name, sizeof(name), "follower %u", b->server);
	if (!b->memory || !*b->address)
		snprintf(b->address, sizeof(b->address), "sim://follower-%u-%u.%u",
			j->generation, b->server, ++b->starts);
	memcpy(b->followed, j->addresses[b->server], sizeof(b->followed));
	b->process = tern_sim_process_new(j->sim, name);
	if (tern_context_new_in(tern_sim_domain(b->process), &opts,
		    tern_sim_env(b->process), &b->ctx) < 0)
		tern_never("a context");
	tern_sim_drive(b->process, b->ctx);
	if (tern_updater_cpu_new(tern_kernels_cpu(), &b->updater) < 0)
		tern_never("an updater");
	b->ended = false;
	if (tern_follower_new(
		    &(struct tern_follower_opts){.domain = tern_sim_domain(b->process),
			    .ctx = b->ctx,
			    .updater = b->updater,
			    .omits = j->omits,
			    .server = b->followed,
			    .listen = b->address,
			    .wait_ns = b->memory ? RETURNS_NS : WAIT_NS,
			    .from_memory = b->memory,
			    .ended = ended,
			    .arg = b},
		    &b->follower) < 0)
		tern_never("a follower");
	b->memory = NULL;
}

/* Puts the follower's process aside. */
static void bury(struct standby *b)
{
	b->graves = realloc(b->graves, (b->grave_count + 1) * sizeof(*b->graves));
	tern_assert(b->graves);
	if (!tern_sim_crashed(b->process))
		tern_sim_crash(b->process);
	b->graves[b->grave_count++] =
		(struct grave){b->process, b->ctx, b->updater, b->follower};
	b->process = NULL;
	b->follower = NULL;
}

/* ---- candidates ---- */

static void know_job(struct member *m, const struct tern_server_memory *memory)
{
	const struct tern_ps_job *job = &memory->job;

	m->others = calloc(job->server_count, sizeof(*m->others));
	m->view = job->view ? calloc(1, sizeof(*m->view)) : NULL;
	tern_assert(m->others && (m->view || !job->view));
	if (m->view)
		tern_view_of_job(job, m->view);
	for (uint32_t i = 0; i < job->server_count; i++)
		if (i != memory->index)
			memcpy(m->others[m->other_count++], job->servers[i],
				sizeof(m->others[0]));
}

/* A candidate without memory goes on from a snapshot, as a server that is made anew does. */
static void know_former(struct member *m, struct member *former)
{
	const struct tern_snapshot_id id = {
		former->server->stats.told_step, former->server->stats.told_number};

	m->others = TERN_TAKE(former->others);
	m->other_count = former->other_count;
	m->view = TERN_TAKE(former->view);
	if (id.step)
		snprintf(m->told, sizeof(m->told), "snapshots/%s",
			tern_snapshot_manifest_name(id).text);
}

static void start_candidate(struct job *j, struct standby *b)
{
	struct member *m = &b->candidate;

	*m = (struct member){.again = true};
	if (b->memory)
		know_job(m, b->memory);
	else
		know_former(m, &b->former[b->former_count - 1]);
	memcpy(m->follows, b->followed, sizeof(m->follows));
	m->memory = TERN_TAKE(b->memory);
	b->is_candidate = b->stands = true;
	j->resumes = j->has_snapshot(j);
	job_start_server(j, m, b->server, b->address);
}

static void bury_candidate(struct standby *b)
{
	b->former = realloc(b->former, (b->former_count + 1) * sizeof(*b->former));
	tern_assert(b->former);
	if (!tern_sim_crashed(b->candidate.process))
		tern_sim_crash(b->candidate.process);
	b->former[b->former_count++] = b->candidate;
	b->is_candidate = false;
}

/* The candidate's steps have begun: it is the job's server, and has no follower. */
static void take_place(struct job *j, struct standby *b)
{
	/* The former server lives, and may have made one step more than its follower has heard of. */
	j->forgets = j->forgets || !job_is_lost(&j->members[b->server]);
	job_replace_server(j, b->server, &b->candidate);
	memcpy(j->addresses[b->server], b->address, sizeof(b->address));
	j->members[b->server].has_begun = true;
	b->is_candidate = b->stands = false;
	*b->address = '\0';
}

/* The candidate has ended before its steps began. */
static void candidate_ended(struct job *j, struct standby *b)
{
	struct member *m = &b->candidate;
	bool follows_again = m->server->stats.follows_again;

	b->done = m->status == 0;
	if (m->status != -EAGAIN && !b->done && !job_is_complete(j)) {
		printf("%d %s\n", m->status, m->text);
		complain(j, b, "its server has failed");
	}
	if (m->status == -EAGAIN && tern_server_keep(m->server, &b->memory) < 0)
		tern_never("no memory");
	bury_candidate(b);
	b->stands = !follows_again;
	b->again_ns = 0;
}

static void tend_candidate(struct job *j, struct standby *b)
{
	struct member *m = &b->candidate;

	if (m->server->running)
		take_place(j, b);
	else if (m->ended)
		candidate_ended(j, b);
}

/* ---- followers ---- */

static bool is_time(struct job *j, struct standby *b)
{
	uint64_t now_ns = tern_sim_now_ns(j->sim);

	if (!b->again_ns) {
		b->again_ns = now_ns + 1 + tern_rng_below(tern_sim_rng(j->sim), PAUSE_NS);
		job_call_at(j, b->again_ns);
	}
	return now_ns >= b->again_ns;
}

/* The follower has ended, and lives: keeps what it has. */
static void follower_ended(struct job *j, struct standby *b)
{
	struct tern_follower_stats stats;

	tern_follower_stats(b->follower, &stats);
	if (tern_follower_keep(b->follower, &b->memory) < 0)
		tern_never("no memory");
	if (b->status != -EAGAIN && b->status != 0) {
		printf("%d %s\n", b->status, b->text);
		if (b->status != -ECANCELED)
			complain(j, b, "has failed");
	}
	b->done = b->status == 0;
	b->stands = b->memory && !stats.server_lives;
	b->stands_ns = tern_sim_now_ns(j->sim);
	bury(b);
	b->again_ns = 0;
}

static void start_next(struct job *j, struct standby *b)
{
	if (!j->has_begun || job_is_complete(j) || b->done || !is_time(j, b))
		return;
	b->again_ns = 0;
	if (b->stands)
		start_candidate(j, b);
	else
		start_follower(j, b);
}

/* A follower is lost, or stands still for longer than a worker may. */
static void disturb(struct job *j, struct standby *b)
{
	if (b->hurts == HURTS_MOST)
		return;
	if (tern_sim_dice(j->sim, 2)) {
		b->hurts++;
		tern_sim_crash(b->process);
		j->forgets = j->forgets || job_is_lost(&j->members[b->server]);
	} else if (tern_sim_dice(j->sim, 1)) {
		b->hurts++;
		tern_sim_stall(b->process, 2 * j->worker_timeout_ns);
	}
}

/* ---- checks ---- */

static bool is_complete(const struct standby *b)
{
	struct tern_follower_stats stats;

	if (!is_alive(b) || b->ended || b->follower->over)
		return false;
	tern_follower_stats(b->follower, &stats);
	return stats.complete;
}

static bool same_state(const struct chunk *a, const struct chunk *b)
{
	size_t count = a->plan->count, bytes = count * sizeof(float);
	float *state = calloc(4 * count, sizeof(float));
	struct tern_updater_state mine = {.m = state, .v = state + count};
	struct tern_updater_state its = {.m = state + 2 * count, .v = state + 3 * count};
	bool same;

	tern_assert(state);
	tern_updater_get_state(a->server->opts.updater, a->kept, &mine);
	tern_updater_get_state(b->server->opts.updater, b->kept, &its);
	same = memcmp(mine.m, its.m, 2 * bytes) == 0 &&
	       memcmp(chunk_w(a, a->made), chunk_w(b, b->made), bytes) == 0;
	free(state);
	return same;
}

/* Checks that a complete follower has each version that was published, and the server's bytes. */
static void check_chunk(struct job *j, const struct standby *b, uint32_t i)
{
	const struct chunk *mine = &j->members[b->server].server->chunks[i];
	const struct follower_chunk *k = &b->follower->chunks[i];

	if (k->version < mine->version)
		complain(j, b, "lacks a version that was published");
	else if (k->version > mine->version + 1)
		complain(j, b, "has an update too many");
	else if (j->turns % LOOK_TURNS == 0 && k->chunk->made == mine->made &&
		 !same_state(mine, k->chunk))
		complain(j, b, "has other bytes than its server");
}

static void check(struct job *j, const struct standby *b)
{
	const struct member *m = &j->members[b->server];

	if (job_is_lost(m) || !m->server->running || m->server->over ||
		!follow_is_complete(m->server) || !is_complete(b) ||
		b->follower->shard.life != m->server->life)
		return;
	for (uint32_t i = 0; i < m->server->chunk_count && !j->broken; i++)
		check_chunk(j, b, i);
}

/* ---- all of it ---- */

static struct standby *standby_of(const struct job *j, const struct member *server)
{
	return j->standbys && job_is_server(j, server) ? j->standbys[server - j->members]
						       : NULL;
}

void followers_on_loss(struct job *j, const struct member *server)
{
	const struct standby *b = standby_of(j, server);

	if (j->followed && job_is_server(j, server) &&
		(!b || !is_complete(b) || !server->server->running ||
			server->server->over))
		j->forgets = true;
}

bool followers_spare(const struct job *j, const struct member *server)
{
	const struct standby *b = standby_of(j, server);

	return b && !is_complete(b) && !tern_sim_dice(j->sim, 30);
}

bool followers_replace(const struct job *j, const struct member *server)
{
	const struct standby *b = standby_of(j, server);

	/* Workers that have no other server to ask do not know where the follower is. */
	if (!b || (j->servers == 1 && !follow_is_complete(server->server)))
		return false;
	/* A candidate may know old addresses of the others only: a user starts the server then. */
	if (b->stands && tern_sim_now_ns(j->sim) - b->stands_ns > PATIENCE_NS)
		return false;
	return b->stands || b->is_candidate || b->memory ||
	       (is_alive(b) && b->follower && is_complete(b));
}

bool followers_wait(const struct job *j)
{
	for (unsigned i = 0; j->standbys && i < j->servers; i++)
		if (j->standbys[i] && followers_replace(j, &j->members[i]) &&
			job_is_lost(&j->members[i]))
			return true;
	return false;
}

static void tend(struct job *j, struct standby *b)
{
	if (b->is_candidate) {
		tend_candidate(j, b);
	} else if (!b->process) {
		start_next(j, b);
	} else if (tern_sim_crashed(b->process)) {
		bury(b);
		b->again_ns = 0;
	} else if (b->ended) {
		follower_ended(j, b);
	} else {
		disturb(j, b);
	}
	if (!b->is_candidate && b->process && !j->broken)
		check(j, b);
}

void followers_tend(struct job *j)
{
	if (!j->standbys) {
		j->standbys = calloc(MEMBERS_MAX, sizeof(*j->standbys));
		tern_assert(j->standbys);
	}
	for (unsigned i = 0; i < j->servers; i++) {
		if (!j->standbys[i]) {
			j->standbys[i] = calloc(1, sizeof(*j->standbys[i]));
			tern_assert(j->standbys[i]);
			j->standbys[i]->server = i;
		}
		tend(j, j->standbys[i]);
	}
}

static void finish(struct standby *b)
{
	if (b->process)
		bury(b);
	if (b->is_candidate)
		bury_candidate(b);
	for (unsigned i = 0; i < b->grave_count; i++) {
		struct grave *g = &b->graves[i];

		tern_sim_forget(g->process, g->ctx);
		tern_context_free(g->ctx);
		tern_follower_free(g->follower);
		tern_updater_free(g->updater);
		tern_sim_process_free(g->process);
	}
	for (unsigned i = 0; i < b->former_count; i++) {
		job_free_member(&b->former[i]);
		tern_sim_process_free(b->former[i].process);
	}
	tern_server_memory_free(b->memory);
	free(b->graves);
	free(b->former);
	free(b);
}

void followers_finish(struct job *j)
{
	for (unsigned i = 0; j->standbys && i < MEMBERS_MAX; i++)
		if (j->standbys[i])
			finish(j->standbys[i]);
	free(TERN_TAKE(j->standbys));
}
