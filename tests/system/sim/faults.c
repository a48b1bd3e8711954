/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/system/sim/faults.h"

#include <errno.h>

#include "base/clock.h"
#include "base/util.h"
#include "tests/system/sim/again.h"
#include "tests/system/sim/history.h"

/* A server that was killed and is to be removed is started again if it was not removed in so
 * long. */
#define REMOVAL_NS (300 * TERN_NS_PER_MS)

const char *const fault_names[FAULT_COUNT] = {
#define X(kind, name, text) name,
	FAULT_KINDS(X)
#undef X
};

const char *const fault_texts[FAULT_COUNT] = {
#define X(kind, name, text) text,
	FAULT_KINDS(X)
#undef X
};

/* ---- whom a fault may hit ---- */

static bool is_alive(const struct job *j, const struct member *m)
{
	return !m->ended && !m->asked && !m->stalled && !m->doubled &&
	       !tern_sim_crashed(m->process) && !job_is_removed(j, m) &&
	       m->still_ns <= tern_sim_now_ns(j->sim);
}

/* Chooses a live one of `count` members from number `first` on. NULL: there is none. */
static struct member *pick(struct job *j, unsigned first, unsigned count)
{
	unsigned at = count ? (unsigned)history_below(count) : 0;

	for (unsigned i = 0; i < count; i++) {
		struct member *m = &j->members[first + (at + i) % count];

		if (is_alive(j, m))
			return m;
	}
	return NULL;
}

static struct member *pick_server(struct job *j)
{
	return pick(j, 0, j->servers);
}

static struct member *pick_other_server(struct job *j)
{
	return pick(j, 1, j->servers - 1);
}

/* A worker, if another one is left. */
static struct member *pick_worker(struct job *j)
{
	struct member *m = pick(j, j->servers, j->count - j->servers);

	for (unsigned i = j->servers; m && i < j->count; i++)
		if (&j->members[i] != m && is_alive(j, &j->members[i]))
			return m;
	return NULL;
}

/* ---- what a fault does ---- */

static bool kill_one(struct member *m)
{
	if (m)
		tern_sim_crash(m->process);
	return m;
}

/* Kills `count` members, also those that stand still or were asked to end. False: none of them was
 * well. */
static bool kill_all(struct job *j, unsigned first, unsigned count)
{
	bool any = false;

	for (unsigned i = first; i < first + count; i++) {
		struct member *m = &j->members[i];

		any = any || is_alive(j, m);
		if (!m->ended && !tern_sim_crashed(m->process))
			kill_one(m);
	}
	return any;
}

static bool ask_server(struct member *m)
{
	if (!m)
		return false;
	m->asked = true;
	tern_server_stop(m->server, "asked", true);
	return true;
}

static bool ask_worker(struct member *m)
{
	if (!m)
		return false;
	m->asked = true;
	tern_worker_ask_to_leave(m->worker, "asked");
	return true;
}

static bool ask_workers(struct job *j)
{
	struct member *m;
	bool any = false;

	while ((m = pick(j, j->servers, j->count - j->servers)))
		any = ask_worker(m);
	return any;
}

static bool add_worker(struct job *j, struct fault *fault)
{
	fault->victim = job_add_next_worker(j);
	return fault->victim;
}

/* A time that is mostly short, and in some seeds longer than the limits of the job. */
static uint64_t some_time(const struct job *j)
{
	if (history_below(3))
		return TERN_NS_PER_US * (1 + history_below(50000));
	return j->worker_timeout_ns + TERN_NS_PER_MS * history_below(1000);
}

static bool let_stand(struct job *j, struct fault *fault, struct member *m)
{
	uint64_t ns = some_time(j);

	if (!m)
		return false;
	fault->until_ns = m->still_ns = tern_sim_now_ns(j->sim) + ns;
	tern_sim_stall(m->process, ns);
	return true;
}

static void part(
	struct job *j, const struct member *a, const struct member *b, uint64_t ns)
{
	tern_sim_part(a->process, b->process, ns, -ECONNRESET);
	job_call_at(j, tern_sim_now_ns(j->sim) + ns);
}

static bool cut_link(struct job *j, struct fault *fault)
{
	struct member *a = pick_server(j), *b = pick(j, 0, j->count);
	uint64_t ns = history_below(2) ? j->reconnect_ns / 2 : 2 * j->reconnect_ns;

	if (!a || !b || a == b)
		return false;
	ns += history_below(ns);
	fault->until_ns = tern_sim_now_ns(j->sim) + ns;
	part(j, a, b, ns);
	return true;
}

/* The server stands still, and loses its connection to another process, which takes it for lost.
 * A user starts another one in its place. */
static bool double_server(struct job *j, struct fault *fault)
{
	struct member *m = pick_server(j), *other = pick(j, 0, j->count);
	uint64_t ns = 3 * j->reconnect_ns + TERN_NS_PER_MS * (20 + history_below(200));

	if (!m || !other || m == other || !m->server->running)
		return false;
	fault->until_ns = tern_sim_now_ns(j->sim) + ns;
	part(j, m, other, ns);
	tern_sim_stall(m->process, ns);
	m->doubled = true;
	return true;
}

static bool all_run(const struct job *j)
{
	for (unsigned i = 0; i < j->servers; i++)
		if (!job_is_removed(j, &j->members[i]) &&
			(tern_sim_crashed(j->members[i].process) || j->members[i].ended ||
				!j->members[i].server->running))
			return false;
	return true;
}

/* A disk that fails would also let a server read another snapshot than the others, so it fails
 * only during the steps. */
static bool spoil_disk(struct job *j, struct fault *fault)
{
	struct tern_sim_disk_opts *opts = tern_sim_disk_opts(history.disk);

	fault->until_ns =
		tern_sim_now_ns(j->sim) + TERN_NS_PER_MS * (2 + history_below(40));
	if (history_below(2) && all_run(j))
		opts->fail_permille = 300;
	else
		opts->capacity_bytes =
			history.disk->used_bytes + 1 + history_below(40000);
	job_call_at(j, fault->until_ns);
	return true;
}

static bool damage(struct job *j, const struct fault *fault)
{
	struct member *m = pick_server(j);

	if (!m || !history_damage())
		return false;
	return !fault->first || kill_one(m);
}

static bool jump(struct job *j)
{
	struct member *m = pick(j, 0, j->count);

	if (!m)
		return false;
	tern_sim_jump(m->process, history_below(4) ? history_below(20 * TERN_NS_PER_MS)
						   : history_below(3 * TERN_NS_PER_S));
	return true;
}

/* ---- servers that are removed and added ---- */

/* From now on the server stays away once it was removed, and is not started before that until the
 * time is up. */
static void keep_away(struct job *j, struct member *m)
{
	m->stays_away = true;
	m->again_ns = tern_sim_now_ns(j->sim) + REMOVAL_NS;
	job_call_at(j, m->again_ns);
}

static bool remove_live(struct job *j)
{
	struct member *m = pick_other_server(j);

	return m && job_remove(j, (unsigned)(m - j->members));
}

static bool remove_lost(struct job *j, struct fault *fault)
{
	struct member *m = pick_other_server(j);

	if (!kill_one(m))
		return false;
	fault->victim = m;
	keep_away(j, m);
	return true;
}

static bool add(struct job *j, struct fault *fault)
{
	fault->victim->stays_away = false;
	fault->victim->again_ns = tern_sim_now_ns(j->sim);
	return true;
}

bool fault_is_early(enum fault_kind kind)
{
	static const bool late[FAULT_COUNT] = {
		/* The job ends with the name of a server that is asked to end. */
		[FAULT_ZERO_ASKED] = true,
		[FAULT_SERVER_ASKED] = true,
		[FAULT_ADDED] = true, /* waits for the steps */
		[FAULT_DISK] =
			true, /* is refused, as a directory with a typing error is */
		[FAULT_DAMAGED] = true, /* there is no snapshot yet */
		[FAULT_TWICE] = true,   /* a server that has not begun is not replaced */
	};

	return !late[kind];
}

bool fault_is_ready(struct job *j, struct fault *fault)
{
	struct member *m = fault->victim;

	if (fault->kind == FAULT_DAMAGED)
		return history.whole_count > 1;
	if (fault->kind != FAULT_ADDED)
		return true;
	if (m && job_is_removed(j, m))
		return m->ended && all_run(j);
	if (m && m->stays_away && !tern_sim_crashed(m->process))
		return false;
	m = all_run(j) ? pick_other_server(j) : NULL;
	if (m && job_remove(j, (unsigned)(m - j->members))) {
		fault->victim = m;
		keep_away(j, m);
	}
	return false;
}

static bool inject(struct job *j, struct fault *fault)
{
	switch (fault->kind) {
	case FAULT_ZERO_KILLED:
		return kill_one(pick(j, 0, 1));
	case FAULT_SERVER_KILLED:
		return kill_one(pick_other_server(j));
	case FAULT_SERVERS_KILLED:
		return kill_all(j, 0, j->servers);
	case FAULT_ZERO_ASKED:
		return ask_server(pick(j, 0, 1));
	case FAULT_SERVER_ASKED:
		return ask_server(pick_other_server(j));
	case FAULT_WORKER_KILLED:
		return kill_one(pick_worker(j));
	case FAULT_WORKERS_KILLED:
		return kill_all(j, j->servers, j->count - j->servers);
	case FAULT_WORKER_ASKED:
		return ask_worker(pick_worker(j));
	case FAULT_WORKERS_ASKED:
		return ask_workers(j);
	case FAULT_WORKER_ADDED:
		return add_worker(j, fault);
	case FAULT_WORKER_STANDS:
		return let_stand(j, fault, pick_worker(j));
	case FAULT_SERVER_STANDS:
		return let_stand(j, fault, pick_server(j));
	case FAULT_LINK_CUT:
		return cut_link(j, fault);
	case FAULT_REMOVED:
		return remove_live(j);
	case FAULT_LOST_REMOVED:
		return remove_lost(j, fault);
	case FAULT_ADDED:
		return add(j, fault);
	case FAULT_DISK:
		return spoil_disk(j, fault);
	case FAULT_DAMAGED:
		return damage(j, fault);
	case FAULT_TWICE:
		return double_server(j, fault);
	case FAULT_CLOCK:
		return jump(j);
	case FAULT_COUNT:
		break;
	}
	tern_never("a kind of fault");
}

static uint64_t step_of(const struct job *j)
{
	struct tern_server_stats stats;

	tern_server_stats(j->members[0].server, &stats);
	return stats.steps;
}

bool fault_inject(struct job *j, struct fault *fault)
{
	fault->step = step_of(j);
	fault->injected = inject(j, fault);
	j->has_lost = j->has_lost || fault->injected;
	return fault->injected;
}

void fault_tend(struct job *j, struct fault *fault)
{
	struct tern_sim_disk_opts *opts = tern_sim_disk_opts(history.disk);
	struct member *m = fault->victim;

	if (!fault->injected)
		return;
	if (fault->kind == FAULT_DISK &&
		(tern_sim_now_ns(j->sim) >= fault->until_ns || !all_run(j)))
		opts->fail_permille = 0;
	if (fault->kind == FAULT_DISK && tern_sim_now_ns(j->sim) >= fault->until_ns)
		opts->capacity_bytes = 0;
	if (fault->kind == FAULT_LOST_REMOVED && m &&
		job_remove(j, (unsigned)(m - j->members)))
		fault->victim = NULL;
}

/* ---- what can be seen of a recovery ---- */

/* A worker has left or is lost, and nobody is in its place yet. */
static bool has_free_place(const struct job *j)
{
	const struct member *zero = &j->members[0];

	for (unsigned i = j->servers; i < j->count; i++) {
		const struct member *m = &j->members[i];

		if (m->ended || m->asked || tern_sim_crashed(m->process) ||
			!m->worker->begun)
			return true;
	}
	return zero->server->running && zero->server->lost_count > 0;
}

/* A server that was asked to end is still there, or the job takes a snapshot to go back to. */
static bool is_about_to_go(const struct job *j)
{
	for (unsigned i = 0; i < j->servers; i++)
		if (j->members[i].asked)
			return true;
	return *j->members[0].server->back_text != '\0';
}

static bool goes_on(const struct job *j, const struct fault *fault)
{
	return step_of(j) > fault->step;
}

bool fault_recovers(const struct job *j, const struct fault *fault)
{
	const struct tern_server *zero = j->members[0].server;

	if (!all_run(j))
		return true;
	switch (fault->kind) {
	case FAULT_ZERO_ASKED:
	case FAULT_SERVER_ASKED:
	case FAULT_REMOVED:
	case FAULT_LOST_REMOVED:
		return is_about_to_go(j);
	case FAULT_ADDED:
		return !fault->victim->server->running || is_about_to_go(j);
	case FAULT_WORKER_KILLED:
	case FAULT_WORKERS_KILLED:
	case FAULT_WORKER_ASKED:
	case FAULT_WORKERS_ASKED:
	case FAULT_WORKER_ADDED:
		return has_free_place(j);
	case FAULT_WORKER_STANDS:
	case FAULT_SERVER_STANDS:
	case FAULT_LINK_CUT:
	case FAULT_TWICE:
		return tern_sim_now_ns(j->sim) < fault->until_ns || has_free_place(j);
	case FAULT_DISK:
		return tern_sim_now_ns(j->sim) < fault->until_ns ||
		       zero->history->failed_count > 0;
	case FAULT_CLOCK:
		return !goes_on(j, fault);
	case FAULT_ZERO_KILLED:
	case FAULT_SERVER_KILLED:
	case FAULT_SERVERS_KILLED:
	case FAULT_DAMAGED:
	case FAULT_COUNT:
		break;
	}
	return false;
}
