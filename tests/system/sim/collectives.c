/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenario: a group of two to eight ranks calls a random list of operations. The seed
 * chooses one of four troubles:
 *
 *     CUTS    connections are cut and processes stand still for a moment: every result
 *             must be right
 *     KILL    a rank crashes
 *     STALL   a rank stands still for longer than the time limit
 *     MUTE    a rank stops calling, but makes progress
 *
 * In the last three, every other rank must end every operation in time. If one of them has
 * an error, all have one, and it names the rank in trouble.
 */
#include "tests/system/sim/scenario.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/group.h>

#include "base/clock.h"
#include "base/util.h"
#include "transport/context.h"
#include "transport/sim/sim.h"

#define RANKS_MAX  8u
#define JOBS       40u
#define BYTES_MAX  6000u
#define TIMEOUT_NS (2 * TERN_NS_PER_S)
/* A quarter for the cut, and two ticks of an eighth. */
#define LATE_NS  (TIMEOUT_NS / 2)
#define LIMIT_NS (60 * TERN_NS_PER_S)

enum trouble { CUTS, KILL, STALL, MUTE, TROUBLE_COUNT };
enum kind {
	ALLREDUCE,
	BROADCAST,
	REDUCE_SCATTER,
	ALL_TO_ALL,
	UNEQUAL, /* an all-to-all whose parts have at most the job's size */
	BARRIER,
	KIND_COUNT
};

struct world;

struct job {
	enum kind kind;
	uint32_t part; /* elements (int32_t) of a part, or of the tensor */
	uint32_t root;
};

struct place {
	struct tern_group_req req;
	struct rank *rank;
	unsigned job;
	bool called, ended;
	uint64_t called_ns;
	int32_t in[BYTES_MAX / 4], out[BYTES_MAX / 4];
	struct tern_buf in_buf, out_buf;
	uint64_t in_bytes[RANKS_MAX], out_bytes[RANKS_MAX]; /* UNEQUAL */
};

struct rank {
	struct world *world;
	uint32_t number;
	struct tern_sim_process *process;
	struct tern_context *ctx;
	struct tern_listener *listener;
	struct tern_peer *peers[RANKS_MAX];
	struct tern_group *group;
	struct tern_mem *mem;
	struct place *places; /* JOBS */
	unsigned called, window;
	bool crashed;
};

struct world {
	struct tern_sim *sim;
	struct tern_rng *rng;
	enum trouble trouble;
	uint32_t count, victim;
	uint32_t hosts[RANKS_MAX];
	struct job jobs[JOBS];
	struct rank ranks[RANKS_MAX];
	unsigned quiet_from; /* MUTE: the victim calls no operation from this one on */
	const char *wrong;
};

static int32_t given(const struct place *p, uint32_t rank, uint32_t i)
{
	return (int32_t)(p->job * 1000003u + rank * 70001u + i * 31u);
}

static uint32_t parts(const struct world *w, const struct job *job)
{
	return job->kind == REDUCE_SCATTER || job->kind == ALL_TO_ALL ||
			       job->kind == UNEQUAL
		       ? w->count
		       : 1;
}

/* Elements that the rank `from` gives to the rank `to`: none, half of a part or a part. */
static uint32_t unequal(const struct place *p, uint32_t from, uint32_t to)
{
	const struct job *job = &p->rank->world->jobs[p->job];

	return job->part * ((p->job + 5 * from + 3 * to) % 3) / 2;
}

static int32_t unequal_given(
	const struct place *p, uint32_t from, uint32_t to, uint32_t i)
{
	return given(p, from, to * BYTES_MAX + i);
}

/* Writes `in`, and the sizes of all parts. */
static void fill_unequal(struct place *p)
{
	uint32_t n = p->rank->world->count, me = p->rank->number, at = 0;

	p->in_buf.bytes = p->out_buf.bytes = 0;
	for (uint32_t r = 0; r < n; r++) {
		for (uint32_t i = 0; i < unequal(p, me, r); i++)
			p->in[at++] = unequal_given(p, me, r, i);
		p->in_bytes[r] = 4ull * unequal(p, me, r);
		p->out_bytes[r] = 4ull * unequal(p, r, me);
		p->in_buf.bytes += p->in_bytes[r];
		p->out_buf.bytes += p->out_bytes[r];
	}
}

static void check_unequal(const struct place *p)
{
	uint32_t me = p->rank->number, at = 0;

	for (uint32_t r = 0; r < p->rank->world->count; r++)
		for (uint32_t i = 0; i < unequal(p, r, me); i++)
			if (p->out[at++] != unequal_given(p, r, me, i))
				p->rank->world->wrong = "unequal parts are wrong";
}

static int32_t summed(const struct place *p, uint32_t i)
{
	uint32_t sum = 0;

	for (uint32_t r = 0; r < p->rank->world->count; r++)
		sum += (uint32_t)given(p, r, i);
	return (int32_t)sum;
}

static int32_t expected(const struct place *p, const struct job *job, uint32_t i)
{
	uint32_t me = p->rank->number;

	switch (job->kind) {
	case ALLREDUCE:
		return summed(p, i);
	case REDUCE_SCATTER:
		return summed(p, me * job->part + i);
	case BROADCAST:
		return given(p, job->root, i);
	case ALL_TO_ALL:
		return given(p, i / job->part, me * job->part + i % job->part);
	case UNEQUAL:
	case BARRIER:
	case KIND_COUNT:
		break;
	}
	return 0;
}

static void check(struct place *p)
{
	struct world *w = p->rank->world;
	const struct job *job = &w->jobs[p->job];
	const int32_t *out = job->kind == BROADCAST ? p->in : p->out;
	uint32_t count = job->part * (job->kind == ALL_TO_ALL ? w->count : 1);

	if (job->kind == UNEQUAL)
		return check_unequal(p);
	for (uint32_t i = 0; job->kind != BARRIER && i < count; i++)
		if (out[i] != expected(p, job, i))
			w->wrong = "an operation has a wrong result";
}

static void call_more(struct rank *rank);

static void on_done(struct tern_group_req *req)
{
	struct place *p = req->arg;
	struct world *w = p->rank->world;
	uint64_t took_ns = tern_sim_now_ns(w->sim) - p->called_ns;

	if (p->ended)
		w->wrong = "an operation has ended twice";
	p->ended = true;
	if (req->status == 0)
		check(p);
	else if (req->status != tern_group_status(p->rank->group))
		w->wrong = "an operation has another status than its group";
	if (took_ns > TIMEOUT_NS + LATE_NS &&
		(w->trouble != STALL || p->rank->number != w->victim))
		w->wrong = "an operation has ended too late";
	call_more(p->rank);
}

static int call(struct place *p)
{
	struct world *w = p->rank->world;
	const struct job *job = &w->jobs[p->job];
	struct tern_group *g = p->rank->group;
	uint64_t bytes = job->part * 4ull;

	for (uint32_t i = 0; i < job->part * parts(w, job); i++)
		p->in[i] = given(p, p->rank->number, i);
	p->in_buf.bytes = bytes * parts(w, job);
	p->out_buf.bytes = bytes * (job->kind == ALL_TO_ALL ? w->count : 1);
	p->req.done = on_done;
	p->req.arg = p;
	p->called_ns = tern_sim_now_ns(w->sim);
	switch (job->kind) {
	case ALLREDUCE:
		return tern_allreduce(
			g, &p->req, TERN_I32, TERN_REDUCE_SUM, &p->in_buf, &p->out_buf);
	case BROADCAST:
		return tern_broadcast(g, &p->req, &p->in_buf, job->root);
	case REDUCE_SCATTER:
		return tern_reduce_scatter(
			g, &p->req, TERN_I32, TERN_REDUCE_SUM, &p->in_buf, &p->out_buf);
	case ALL_TO_ALL:
		return tern_all_to_all(g, &p->req, &p->in_buf, &p->out_buf);
	case UNEQUAL:
		fill_unequal(p);
		return tern_all_to_all_v(
			g, &p->req, &p->in_buf, p->in_bytes, &p->out_buf, p->out_bytes);
	case BARRIER:
	case KIND_COUNT:
		break;
	}
	return tern_barrier(g, &p->req);
}

/* Calls operations, as long as not too many are under way. */
static void call_more(struct rank *rank)
{
	struct world *w = rank->world;
	unsigned open = 0;

	for (unsigned j = 0; j < rank->called; j++)
		open += rank->places[j].called && !rank->places[j].ended;
	while (rank->called < JOBS && open < rank->window) {
		struct place *p = &rank->places[rank->called];

		if (w->trouble == MUTE && rank->number == w->victim &&
			rank->called >= w->quiet_from)
			return;
		rank->called++;
		p->called = call(p) == 0;
		if (!p->called && tern_group_status(rank->group) == 0)
			w->wrong = "a call was refused";
		open += p->called;
	}
}

/* ---- the world ---- */

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct rank *rank = arg;
	unsigned from = RANKS_MAX;

	if (sscanf(tern_peer_name(peer), "r%u ", &from) != 1 || from >= RANKS_MAX)
		tern_never("a peer with another name");
	rank->peers[from] = peer;
}

static void add_rank(struct world *w, uint32_t number)
{
	struct rank *rank = &w->ranks[number];
	char name[16], url[32];

	rank->world = w;
	rank->number = number;
	rank->window = 1 + (unsigned)tern_rng_below(w->rng, 6);
	rank->places = calloc(JOBS, sizeof(*rank->places));
	tern_assert(rank->places);
	snprintf(name, sizeof(name), "r%u", number);
	rank->process = tern_sim_process_new(w->sim, name);
	if (tern_context_new_in(tern_sim_domain(rank->process), NULL,
		    tern_sim_env(rank->process), &rank->ctx) < 0 ||
		tern_mem_wrap(tern_sim_domain(rank->process), rank->places,
			JOBS * sizeof(*rank->places), &rank->mem) < 0)
		tern_never("a rank");
	for (unsigned j = 0; j < JOBS; j++) {
		struct place *p = &rank->places[j];

		p->rank = rank;
		p->job = j;
		p->in_buf = (struct tern_buf){
			rank->mem, (uint64_t)((char *)p->in - (char *)rank->places), 0};
		p->out_buf = (struct tern_buf){
			rank->mem, (uint64_t)((char *)p->out - (char *)rank->places), 0};
	}
	snprintf(url, sizeof(url), "sim://%u", number + 1);
	if (tern_listen(rank->ctx, url, NULL, on_accept, rank, &rank->listener) < 0)
		tern_never("a listener");
	tern_sim_drive(rank->process, rank->ctx);
	for (uint32_t k = 0; k < number; k++) {
		struct tern_peer_opts opts = {.name = name};

		snprintf(url, sizeof(url), "sim://%u", k + 1);
		if (tern_connect(rank->ctx, url, &opts, &rank->peers[k]) < 0)
			tern_never("a connection");
	}
}

static bool connected(void *arg)
{
	struct world *w = arg;

	for (uint32_t i = 0; i < w->count; i++)
		for (uint32_t k = 0; k < w->count; k++)
			if (i != k && !w->ranks[i].peers[k])
				return false;
	return true;
}

static void make_jobs(struct world *w)
{
	for (unsigned j = 0; j < JOBS; j++) {
		struct job *job = &w->jobs[j];
		uint64_t most = BYTES_MAX / 4;

		job->kind = (enum kind)tern_rng_below(w->rng, KIND_COUNT);
		job->root = (uint32_t)tern_rng_below(w->rng, w->count);
		job->part = (uint32_t)tern_rng_below(
			w->rng, tern_rng_below(w->rng, 2) ? 100 / parts(w, job)
							  : most / parts(w, job));
	}
}

static void make_groups(struct world *w)
{
	bool hosts = tern_rng_below(w->rng, 2);
	uint32_t piece = 128u << tern_rng_below(w->rng, 4);

	for (uint32_t i = 0; i < w->count; i++) {
		struct rank *rank = &w->ranks[i];
		struct tern_group_opts opts = {.rank = i,
			.size = w->count,
			.peers = rank->peers,
			.number = 5,
			.hosts = hosts ? w->hosts : NULL,
			.timeout_ns = TIMEOUT_NS,
			.piece_bytes = piece,
			/* The ranks need not have the same number of lanes. */
			.lanes = 1 + (uint32_t)tern_rng_below(w->rng, 6)};

		if (tern_group_new(rank->ctx, &opts, &rank->group) < 0)
			tern_never("a group");
		call_more(rank);
	}
}

/* ---- troubles ---- */

/* True if every rank that can has ended all that it calls. */
static bool over(void *arg)
{
	struct world *w = arg;

	if (w->wrong)
		return true;
	for (uint32_t i = 0; i < w->count; i++) {
		struct rank *rank = &w->ranks[i];
		unsigned goal = JOBS;

		if (rank->crashed)
			continue;
		if (w->trouble == MUTE && i == w->victim)
			goal = w->quiet_from;
		if (rank->called < goal)
			return false;
		for (unsigned j = 0; j < rank->called; j++)
			if (rank->places[j].called && !rank->places[j].ended)
				return false;
	}
	return true;
}

static void cut_and_stall(struct world *w)
{
	for (unsigned n = 0; n < 12 && !over(w); n++) {
		tern_sim_run(w->sim, over, w, tern_rng_below(w->rng, TERN_NS_PER_MS));
		if (tern_rng_below(w->rng, 2))
			tern_sim_cut(w->sim);
		else
			tern_sim_stall(w->ranks[tern_rng_below(w->rng, w->count)].process,
				tern_rng_below(w->rng, 100 * TERN_NS_PER_MS));
	}
}

static void make_trouble(struct world *w)
{
	struct rank *victim = &w->ranks[w->victim];

	if (w->trouble == CUTS)
		return cut_and_stall(w);
	if (w->trouble == MUTE)
		return;
	tern_sim_run(w->sim, over, w, tern_rng_below(w->rng, 3 * TERN_NS_PER_MS));
	if (w->trouble == STALL)
		return tern_sim_stall(victim->process, 3 * TIMEOUT_NS);
	victim->crashed = true;
	tern_sim_crash(victim->process);
}

static void judge(struct world *w)
{
	char name[16];
	unsigned failed = 0, survivors = 0;

	snprintf(name, sizeof(name), "rank %u (", w->victim);
	for (uint32_t i = 0; i < w->count; i++) {
		const struct tern_group *g = w->ranks[i].group;

		if (w->trouble != CUTS && i == w->victim)
			continue;
		survivors++;
		if (tern_group_status(g) == 0)
			continue;
		failed++;
		if (w->trouble != CUTS && !strstr(tern_group_text(g), name))
			w->wrong = "an error does not name the rank";
	}
	if (w->trouble == CUTS && failed)
		w->wrong = "a group has failed without a reason";
	if (failed && failed < survivors)
		w->wrong = "a group has failed at some ranks only";
	if (w->trouble == MUTE && failed < survivors)
		w->wrong = "nobody missed a rank that did not call";
}

static void free_rank(struct rank *rank)
{
	struct tern_group *g = rank->group;

	if (!rank->crashed)
		tern_group_free(g);
	tern_sim_forget(rank->process, rank->ctx);
	tern_listener_free(rank->listener);
	tern_context_free(rank->ctx);
	if (rank->crashed)
		tern_group_free(g);
	tern_mem_put(rank->mem);
	tern_sim_process_free(rank->process);
	free(rank->places);
}

static bool never(void *arg)
{
	(void)arg;
	return false;
}

bool scenario_collectives(uint64_t seed, bool verbose, uint64_t *hash)
{
	struct tern_sim_opts opts = {.seed = seed,
		.caps = seed % 3 ? TERN_CAP_PUT : TERN_CAP_GET | TERN_CAP_PEEK,
		.eagain_permille = 20,
		.log = verbose ? print_line : NULL};
	struct world *w = calloc(1, sizeof(*w));
	const char *wrong;

	tern_assert(w);
	w->sim = tern_sim_new(&opts);
	w->rng = tern_sim_rng(w->sim);
	w->trouble = (enum trouble)(seed % TROUBLE_COUNT);
	w->count = 2 + (uint32_t)tern_rng_below(w->rng, RANKS_MAX - 1);
	w->victim = (uint32_t)tern_rng_below(w->rng, w->count);
	w->quiet_from = (unsigned)tern_rng_below(w->rng, JOBS);
	for (uint32_t i = 0; i < w->count; i++)
		w->hosts[i] = (uint32_t)tern_rng_below(w->rng, 3);
	make_jobs(w);
	for (uint32_t i = 0; i < w->count; i++)
		add_rank(w, i);
	if (tern_sim_run(w->sim, connected, w, LIMIT_NS) < 0)
		w->wrong = "the ranks do not connect";
	else
		make_groups(w);
	make_trouble(w);
	if (!w->wrong && tern_sim_run(w->sim, over, w, LIMIT_NS) < 0)
		w->wrong = "a rank hangs";
	/* Lets a last abort arrive. */
	tern_sim_run(w->sim, never, w, TIMEOUT_NS);
	if (!w->wrong)
		judge(w);
	wrong = w->wrong;
	for (uint32_t i = 0; i < w->count && verbose && w->ranks[i].group; i++)
		fprintf(stderr, "rank %u: %u of %u called; %s\n", i, w->ranks[i].called,
			JOBS, tern_group_text(w->ranks[i].group));
	for (uint32_t i = 0; i < w->count; i++)
		free_rank(&w->ranks[i]);
	*hash = tern_sim_hash(w->sim);
	tern_sim_free(w->sim);
	free(w);
	if (wrong)
		fprintf(stderr, "seed %llu: %s\n", (unsigned long long)seed, wrong);
	return !wrong;
}
