/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots change hands while the news of it is late somewhere. Random disturbances hardly
 * ever meet these moments, so each seed plays one of three scripts, at a random time and
 * with random pauses. Server 0 decides; server 1 is the one that hears late.
 *
 * Late taker: worker A dies; B, a spare, is given its slots, and stands still before it
 * has all of the version to compute from. B is lost, too, and C has the slots. Then B
 * goes on and takes them at server 1, which knows nothing of B's loss: too old a taking.
 *
 * Late gradient: server 0 loses A; server 1 stands still, and then hears in one go that B
 * has A's slots and A's own gradient.
 *
 * Ahead: A gets a step ahead of B, which waits for server 1, and dies: what B is given
 * and has to send is there already, so steps complete without it.
 */
#include "tests/sim/scenario.h"

#include <errno.h>

#include "base/clock.h"
#include "base/util.h"
#include "client/internal.h"
#include "tests/sim/ledger.h"

#define RECONNECT_NS (2 * TERN_NS_PER_MS)

struct script {
	struct job job;
	void (*step)(struct script *s);
	unsigned phase;
	struct tern_sim_event alarm; /* the next phase */
	struct member *a, *b;
};

static uint64_t now(const struct script *s)
{
	return tern_sim_now_ns(s->job.sim);
}

static uint64_t between(struct script *s, uint64_t from_us, uint64_t to_us)
{
	return (from_us + tern_rng_below(tern_sim_rng(s->job.sim), to_us - from_us)) *
	       TERN_NS_PER_US;
}

/* The world looks at the script at the next event, and this is one. */
static void rings(struct tern_sim_event *event)
{
	(void)event;
}

static void wait_for(struct script *s, uint64_t in_ns)
{
	s->alarm.happen = rings;
	tern_sim_at(s->job.sim, &s->alarm, now(s) + in_ns);
}

static void next_phase(struct script *s, uint64_t in_ns)
{
	s->phase++;
	wait_for(s, in_ns);
}

static struct tern_sim_process *server(const struct script *s, unsigned i)
{
	return s->job.members[i].process;
}

static const struct tern_server *decider(const struct script *s)
{
	return s->job.members[0].server;
}

static struct member *worker(struct script *s, uint32_t index)
{
	return &s->job.members[s->job.servers + index];
}

static void part(
	struct script *s, struct member *m, unsigned i, uint64_t for_ns, int status)
{
	(void)s;
	tern_sim_part(m->process, s->job.members[i].process, for_ns, status);
}

/* The job may go on without it: what becomes of it does not matter. */
static void give_up(struct member *m)
{
	m->stalled = true;
}

/* Of the version that it follows from, all chunks of the other server are here. */
static bool lacks_only(const struct tern_worker *w, uint32_t server)
{
	for (uint32_t i = 0; i < w->plan.chunk_count; i++)
		if (w->plan.chunks[i].server != server &&
			w->parts[w->follow_from & 1][i].req.status == -EINPROGRESS)
			return false;
	return true;
}

static void late_taker(struct script *s)
{
	switch (s->phase) {
	case 0:
		s->a = worker(s, (uint32_t)tern_rng_below(
					 tern_sim_rng(s->job.sim), s->job.plan.slots));
		tern_sim_crash(s->a->process);
		next_phase(s, 0);
		break;
	case 1: /* server 0 is about to tell B */
		if (decider(s)->generation == 0)
			return;
		s->b = worker(s, decider(s)->leases[s->a - worker(s, 0)].owner->index);
		give_up(s->b);
		next_phase(s, 0);
		break;
	case 2: /* B, a spare, gets its version from server 1 a little later */
		if (!s->b->worker->follows)
			return;
		tern_sim_stall(server(s, 1), between(s, 1500, 2500));
		next_phase(s, 0);
		break;
	case 3:
		if (!lacks_only(s->b->worker, 1))
			return;
		tern_sim_stall(s->b->process, between(s, 6000, 12000));
		part(s, s->b, 0, 40 * TERN_NS_PER_MS, -ECONNRESET);
		tern_sim_part(
			server(s, 0), server(s, 1), between(s, 12000, 16000), -ETIMEDOUT);
		next_phase(s, 0);
		break;
	default:
		break;
	}
}

static void late_gradient(struct script *s)
{
	switch (s->phase) {
	case 0:
		s->a = worker(s, (uint32_t)tern_rng_below(
					 tern_sim_rng(s->job.sim), s->job.workers));
		if (!s->a->worker->computing)
			return; /* it has sent all of the step, perhaps */
		give_up(s->a);
		part(s, s->a, 0, 40 * TERN_NS_PER_MS, -ECONNRESET);
		tern_sim_part(
			server(s, 0), server(s, 1), between(s, 8000, 12000), -ETIMEDOUT);
		tern_sim_stall(s->a->process, between(s, 2300, 2900));
		next_phase(s, between(s, 1500, 1900));
		break;
	case 1:
		tern_sim_stall(server(s, 1), between(s, 2500, 4000));
		next_phase(s, 0);
		break;
	default:
		break;
	}
}

/* It has sent all that is wanted of it, and waits for the next version, which is not
 * made. */
static bool waits(const struct script *s, const struct member *m)
{
	const struct tern_server *one = s->job.members[1].server;
	const struct tern_worker *w = m->worker;

	for (uint32_t i = 0; i < one->chunk_count; i++)
		if (one->chunks[i].version != w->version ||
			one->chunks[i].state != CHUNK_GATHERING)
			return false;

	for (uint32_t i = 0; i < w->room_count; i++)
		if (w->rooms[i].sends_out)
			return false;
	return !w->computing && !slots_are_due(w);
}

static void ahead(struct script *s)
{
	switch (s->phase) {
	case 0:
		s->a = worker(s, 1);
		s->b = worker(s, 0);
		tern_sim_stall(s->a->process, between(s, 2000, 4000));
		next_phase(s, 0);
		break;
	case 1:
		if (!waits(s, s->b))
			return;
		part(s, s->b, 1, 16 * TERN_NS_PER_MS, -ETIMEDOUT);
		next_phase(s, between(s, 7000, 10000));
		break;
	case 2:
		tern_sim_crash(s->a->process);
		next_phase(s, 0);
		break;
	default:
		break;
	}
}

static void play(struct job *j)
{
	struct script *s = tern_container_of(j, struct script, job);

	if (!s->alarm.slot)
		s->step(s);
}

bool scenario_handover(uint64_t seed, bool verbose, uint64_t *hash)
{
	static void (*const scripts[])(struct script *) = {
		late_taker, late_gradient, ahead};
	static const unsigned workers[] = {4, 3, 2}; /* the first with spares */
	struct tern_sim_opts opts = {.seed = seed,
		.caps = TERN_CAP_PUT,
		.chunk_bytes = 4000,
		.eager_bytes = 512,
		.log = verbose ? print_line : NULL};
	struct tern_model model = ledger_model();
	struct script s = {
		.job = {.servers = 2,
			.workers = workers[seed % 3],
			.staging_bytes = 1u << 20,
			.plan = ledger_plan(seed % 3 ? 6 + (uint32_t)(seed / 3 % 8) : 2),
			.reconnect_ns = RECONNECT_NS,
			.engine = ledger_engine,
			.engine_arg = &model,
			.script = play},
		.step = scripts[seed % 3]};
	bool good;

	s.job.sim = tern_sim_new(&opts);
	job_start(&s.job, ledger_data());
	wait_for(&s, between(&s, 200, 3000));
	tern_sim_run(s.job.sim, job_disturb, &s.job, 60 * TERN_NS_PER_S);
	good = job_judge(&s.job) && ledger_is_right(&s.job);
	job_finish(&s.job);
	*hash = tern_sim_hash(s.job.sim);
	tern_sim_free(s.job.sim);
	return good;
}
