/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenario: a slot (the gradient of one batch of a step) is reassigned from a lost worker
 * to another one, and some process learns of it late. Random disturbances rarely hit
 * these moments, so each seed plays one of five scripts, at a random time and with random
 * pauses. Server 0 decides who has which slot; another server learns the decision late.
 *
 * Late taker: worker A dies. Worker B, a spare, gets A's slots, and is stalled before it
 * has the whole version of the parameters to compute from. B is lost too, and worker C
 * gets the slots. Then B continues and reports to server 1, which does not know of B's
 * loss, that it takes the slots: this report is obsolete.
 *
 * Late gradient: server 0 loses worker A. Server 1 is stalled, and then learns at the
 * same time that worker B has A's slots, and gets a gradient from A itself.
 *
 * Ahead: worker A is a step ahead of worker B, which waits for server 1. A dies. The
 * gradients that B is then assigned have arrived from A already, so steps complete
 * without B.
 *
 * Late beginning: server 0 starts the job, and a server that may have no parameters does
 * not know that yet. Worker A gives up. Worker B, which may be a spare, takes A's slots
 * at all servers.
 *
 * Loss upon loss: worker A has the first slot that is missing. It is stalled until all
 * other workers have filled their buffers, and dies. Then the worker that got A's slot
 * does the same, until one worker is left. Each loss makes the others hold gradients of
 * later steps, which is the most memory that a step may need.
 */
#include "tests/system/sim/scenario.h"

#include <errno.h>

#include "base/clock.h"
#include "base/util.h"
#include "client/worker_state.h"
#include "tests/system/sim/ledger.h"

#define RECONNECT_NS (2 * TERN_NS_PER_MS)
/* Longer than the time for which the scripts separate servers. */
#define LONG_NS (100 * TERN_NS_PER_MS)

/* Numbers of slots per step. SPARES: fewer than there are workers, so that some have
 * none. SLOTS_LEAST: two or three for each worker. MANY: far more than a server receives
 * at a time. */
#define SPARES      2u
#define SLOTS_LEAST 6u
#define MANY        66u

struct script {
	struct job job;
	void (*step)(struct script *s);
	unsigned phase;
	struct tern_sim_event alarm; /* wakes the script at the time of its next phase */
	struct member *a, *b;
	/* late_begin(): the server that learns late that the job has begun. */
	unsigned late;
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

/* Does nothing: the event only makes the simulator call the script at that time. */
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

/* Marks a worker that may be lost without harm, and whose exit status is not checked. */
static void give_up(struct member *m)
{
	m->stalled = true;
}

/* True if the worker has received all chunks of the parameters from which it is to start,
 * except perhaps those of `server`. */
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
	case 1: /* server 0 has chosen B, and is about to tell it */
		if (decider(s)->generation == 0)
			return;
		s->b = worker(s, decider(s)->leases[s->a - worker(s, 0)].owner->index);
		give_up(s->b);
		next_phase(s, 0);
		break;
	case 2: /* delays server 1's answer, from which B, a spare, gets its parameters */
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
			/* A has perhaps sent all gradients of the step: wait for the next
			 * step. */
			return;
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

/* True if the worker has sent all its gradients, and waits for the next version of the
 * parameters, which server 1 has not made yet. */
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

static void late_begin(struct script *s)
{
	struct tern_rng *rng = tern_sim_rng(s->job.sim);

	if (s->phase || !decider(s)->running)
		return;
	s->a = worker(s, (uint32_t)tern_rng_below(
				 rng, TERN_MIN(s->job.plan.slots, s->job.workers)));
	give_up(s->a);
	tern_sim_part(
		server(s, 0), server(s, s->late), between(s, 2000, 20000), -ECONNRESET);
	worker_give_up(s->a->worker, -EIO, "the engine is broken");
	s->phase++;
}

/* The worker that has the first slot of which server 0 still lacks the gradient; NULL:
 * there is none, or server 0 gathers no gradients. */
static struct member *first_missing(struct script *s)
{
	const struct chunk *c = &decider(s)->chunks[0];

	for (uint32_t k = 0; c->state == CHUNK_GATHERING && k < s->job.plan.slots; k++)
		if (!c->gradients[k].arrived)
			return worker(s, decider(s)->leases[k].owner->index);
	return NULL;
}

static void loss_upon_loss(struct script *s)
{
	struct member *m = first_missing(s);

	switch (s->phase) {
	case 0:
		if (!m || m == s->a || job_workers_left(&s->job) == 1)
			return;
		s->a = m;
		tern_sim_stall(m->process, LONG_NS);
		next_phase(s, between(s, 20000, 60000));
		break;
	default:
		tern_sim_crash(s->a->process);
		s->phase = 0;
		break;
	}
}

static void play(struct job *j)
{
	struct script *s = tern_container_of(j, struct script, job);

	if (!s->alarm.place)
		s->step(s);
}

static const struct plot {
	void (*step)(struct script *s);
	unsigned servers, late, workers;
	uint32_t slots; /* slots per step; 0: random, at least SLOTS_LEAST */
	uint64_t reconnect_ns;
} plots[] = {
	{late_taker, 2, 1, 4, SPARES, RECONNECT_NS},
	{late_gradient, 2, 1, 3, 0, RECONNECT_NS},
	{ahead, 2, 1, 2, 0, RECONNECT_NS},
	/* The model has three chunks of parameters, so server 3 has none. */
	{late_begin, 4, 3, 3, 0, LONG_NS},
	{late_begin, 4, 3, 3, SPARES, LONG_NS},
	{late_begin, 4, 1, 3, SPARES, LONG_NS},
	{loss_upon_loss, 2, 1, 8, MANY, RECONNECT_NS},
};

static struct tern_ps_job plan_of(const struct plot *plot, uint64_t seed)
{
	uint32_t more = (uint32_t)(seed / TERN_ARRAY_SIZE(plots) % 8);
	struct tern_ps_job plan =
		ledger_plan(plot->slots ? plot->slots : SLOTS_LEAST + more);

	/* Limits the steps: each slot of each step needs one of the 200 records of the
	 * data set. */
	if (plot->slots == MANY)
		plan.steps = 3;
	return plan;
}

bool scenario_handover(uint64_t seed, bool verbose, uint64_t *hash)
{
	const struct plot *plot = &plots[seed % TERN_ARRAY_SIZE(plots)];
	struct tern_sim_opts opts = job_sim_opts(seed, verbose);
	struct tern_model model = ledger_model();
	struct script s = {.job = {.servers = plot->servers,
				   .workers = plot->workers,
				   .staging_bytes = 1u << 20,
				   .plan = plan_of(plot, seed),
				   .reconnect_ns = plot->reconnect_ns,
				   .engine = ledger_engine,
				   .engine_arg = &model,
				   .prologue = plot->step == late_begin ? play : NULL,
				   .script = play},
		.step = plot->step,
		.late = plot->late};
	bool good;

	s.job.sim = tern_sim_new(&opts);
	job_start(&s.job, ledger_data());
	if (!s.job.prologue)
		wait_for(&s, between(&s, 200, 3000));
	tern_sim_run(s.job.sim, job_disturb, &s.job, 60 * TERN_NS_PER_S);
	good = job_judge(&s.job) && ledger_is_right(&s.job);
	job_finish(&s.job);
	*hash = tern_sim_hash(s.job.sim);
	tern_sim_free(s.job.sim);
	return good;
}
