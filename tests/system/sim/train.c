/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/system/sim/scenario.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "tests/system/sim/job.h"
#include "tests/system/sim/train.h"

static struct tern_dataset *data;

static void make_data(void)
{
	struct tern_rng rng = {.seed = 11};
	struct tern_data_error error;
	char *text = malloc(1u << 20);
	size_t at = 0;

	tern_assert(text);
	for (int i = 0; i < 200; i++) {
		at += (size_t)sprintf(text + at, "%d", tern_rng_next(&rng) % 2 ? 1 : -1);
		for (int j = 0; j < 10; j++)
			at += (size_t)sprintf(text + at, " %d:%.4f", j,
				(double)tern_unit_f32(tern_rng_next(&rng)));
		at += (size_t)sprintf(text + at, "\n");
	}
	if (tern_dataset_read(
		    &(struct tern_data_file){
			    .path = "made up", .data = text, .bytes = at},
		    NULL, 0, 0, &data, &error) < 0)
		tern_never("the data that this file makes");
	free(text);
}

/* The models: one of two chunks; and one whose gradient fits into a message, so that
 * servers do not wait for a slow worker. */
static const char *const models[] = {"mlp:150,20", "logreg"};

/* Kinds of jobs: the model is kind / 2 % 2; gradients are clipped if kind % 2; many slots
 * if kind / 4 % 2; many steps if kind / 8. */
#define KINDS 16u

/* For each kind, without and with slots that are left out (job_omits()): the parameters that an
 * undisturbed job with one worker and one server saves, computed once. */
static char *expected[2 * KINDS];
static size_t expected_bytes[2 * KINDS];

static bool compare(const struct job *j, unsigned kind)
{
	size_t bytes = 0;
	const void *result = tern_sim_disk_get(tern_sim_disk(j->sim), "result", &bytes);

	kind += j->omits ? KINDS : 0;

	if (!result) {
		fprintf(stderr, "train: nothing was saved\n");
		return false;
	}
	if (!expected[kind]) {
		expected[kind] = malloc(bytes);
		memcpy(expected[kind], result, bytes);
		expected_bytes[kind] = bytes;
	}
	if (bytes == expected_bytes[kind] && memcmp(result, expected[kind], bytes) == 0)
		return true;
	fprintf(stderr, "train: other bytes than undisturbed\n");
	return false;
}

/* Async mode: the saved parameters must equal those of the servers at the end. Not
 * checked after a loss, since gradients of the lost worker may have arrived later. */
static bool compare_with_servers(const struct job *j)
{
	const float *result = job_result(j);

	if (!result)
		return false;
	for (unsigned i = 0; i < j->servers && job_workers_left(j) == j->workers; i++) {
		const struct tern_server *s = j->members[i].server;

		for (uint32_t k = 0; k < s->chunk_count; k++) {
			const struct tern_chunk *c = s->chunks[k].plan;

			if (memcmp(result + c->first, chunk_w(&s->chunks[k], 0),
				    c->count * sizeof(float)) == 0)
				continue;
			fprintf(stderr, "train: not the parameters of the end\n");
			return false;
		}
	}
	return true;
}

/* ---- all workers are asked to leave ---- */

/* True when all workers have parameters. A worker without parameters fails when it is
 * asked to leave, instead of asking for permission. */
static bool all_have_begun(const struct job *j)
{
	for (unsigned i = j->servers; i < j->count; i++)
		if (!j->members[i].worker->begun)
			return false;
	return true;
}

static void ask_all_but_first(struct job *j)
{
	for (unsigned i = j->servers + 1; i < j->count; i++) {
		struct member *m = &j->members[i];

		m->asked = true;
		tern_worker_ask_to_leave(m->worker, "asked");
	}
	j->doomed = true;
}

/* Time for which a worker hangs: longer than any time limit. */
#define HUNG_NS (30 * TERN_NS_PER_S)

/* The job with members that hang. They crash after HUNG_NS. By then all other members must
 * have ended: none may wait for them longer than the time limit. */
static struct {
	struct tern_sim_event event;
	struct job *job;
} hung;

static void end_hung(struct tern_sim_event *event)
{
	struct job *j = hung.job;

	(void)event;
	for (unsigned i = 0; i < j->count; i++) {
		struct member *m = &j->members[i];

		if (m->stalled) {
			tern_sim_crash(m->process);
		} else if (!m->ended) {
			fprintf(stderr, "train: member %u waits for one that hangs\n", i);
			j->broken = true;
		}
	}
}

static void stop(struct member *m)
{
	m->stalled = true;
	tern_sim_stall(m->process, 2 * HUNG_NS);
}

/* Makes worker 0 hang. */
static void stop_first(struct job *j)
{
	stop(&j->members[j->servers]);
	hung.job = j;
	hung.event = (struct tern_sim_event){.happen = end_hung};
	tern_sim_at(j->sim, &hung.event, tern_sim_now_ns(j->sim) + HUNG_NS);
}

/* Worker 0 (the finisher, which saves) gets the permission to leave, and hangs before it
 * leaves. Then the others are asked to leave. */
static void leave_one_by_one(struct job *j)
{
	struct member *m = &j->members[j->servers];

	if (j->stage == 0 && all_have_begun(j)) {
		j->stage++;
		m->asked = true;
		tern_worker_ask_to_leave(m->worker, "asked");
	} else if (j->stage == 1 && j->members[0].server->workers[0]->may_go) {
		j->stage++;
		stop_first(j);
		ask_all_but_first(j);
	}
}

/* Worker 0 hangs, which no process has noticed yet, and the others are asked to leave. */
static void leave_a_hung_one(struct job *j)
{
	if (j->stage || !all_have_begun(j))
		return;
	j->stage++;
	stop_first(j);
	ask_all_but_first(j);
}

/* Worker 0 hangs, and then the last server is asked to end. */
static void interrupt_beside_a_hung_one(struct job *j)
{
	if (j->stage || !all_have_begun(j))
		return;
	j->stage++;
	stop_first(j);
	tern_server_stop(j->members[j->servers - 1].server, "asked", true);
	j->doomed = true;
}

/* Worker 0 and server 0, which would choose another worker, hang, and then server 1 is
 * asked to end. */
static void interrupt_beside_two_hung_ones(struct job *j)
{
	/* Without server 0, no worker gets the parameters of the first step any more. */
	if (j->stage || !all_have_begun(j) ||
		j->members[j->servers + 1].worker->version == 0)
		return;
	stop(&j->members[0]);
	interrupt_beside_a_hung_one(j);
}

static bool is_saved(const struct job *j)
{
	size_t bytes;

	if (tern_sim_disk_get(tern_sim_disk(j->sim), "interrupted", &bytes))
		return true;
	fprintf(stderr, "train: all that could were asked to end, and nobody saved\n");
	return false;
}

static struct tern_engine *new_engine(void *model, size_t rows)
{
	struct tern_engine *engine;

	if (tern_engine_cpu_new(tern_kernels_cpu(), model, rows, &engine) < 0)
		tern_never("an engine");
	return engine;
}

static bool run(
	const struct tern_sim_opts *opts, struct job *j, unsigned kind, uint64_t *hash)
{
	struct tern_data_error error;
	struct tern_model *model;
	bool good;

	if (!data)
		make_data();
	j->sim = tern_sim_new(opts);
	if (tern_model_new(models[kind / 2 % 2], data, &model, &error) < 0)
		tern_never("a model");
	j->plan = (struct tern_ps_job){.steps = j->script  ? 100000
						: j->async ? 3 * j->workers + 1
						: kind / 8 ? 150
							   : 4,
		.seed = 5,
		/* 20: more slots than a server holds gradients at a time. */
		.slots = kind / 4 % 2 ? 20 : 4,
		.batch = 4,
		.clip_norm = kind % 2 ? 0.01 : 0};
	tern_optimizer_parse("adam", &j->plan.optimizer);
	j->staging_bytes = 1u << 20;
	j->engine = new_engine;
	j->engine_arg = model;
	job_run(j, data);
	good = job_judge(j);
	if (good && j->script)
		good = is_saved(j);
	if (good && !j->doomed)
		good = j->async ? compare_with_servers(j) : compare(j, kind);
	job_finish(j);
	*hash = tern_sim_hash(j->sim);
	tern_sim_free(j->sim);
	tern_model_free(model);
	return good;
}

/* Computes the expected result of this kind, if that was not done before. */
static bool is_known(unsigned kind, bool omits)
{
	const struct tern_sim_opts opts = {.caps = TERN_CAP_PUT};
	struct job plain = {.servers = 1, .workers = 1, .omits = omits};
	uint64_t ignored;

	return expected[kind + (omits ? KINDS : 0)] || run(&opts, &plain, kind, &ignored);
}

/* Sets up losses by lack of progress only: a worker's engine hangs, a worker is stopped,
 * or a server is stopped, for which no worker may be given up. */
static void make_late(struct job *j, uint64_t seed)
{
	j->servers = 2 + (unsigned)(seed / 8 % 2);
	j->workers = 2 + (unsigned)(seed / 2 % 5);
	j->hurt_permille = 300;
	j->losses = 0;
	j->hangs = seed % 3 == 1;
	j->stalls = seed % 3 == 2;
	j->server_naps = seed % 3 == 0;
	j->server_falls = false;
	j->worker_timeout_ns = 2 * TERN_NS_PER_S;
}

static bool disturb(uint64_t seed, bool async, bool late, bool verbose, uint64_t *hash)
{
	struct tern_sim_opts opts = job_rough_sim_opts(seed, verbose);
	struct job job = {.servers = 1 + (unsigned)(seed % 3),
		.workers = 1 + (unsigned)(seed / 2 % 6),
		.cut_permille = seed % 4 != 2 && seed % 3 ? 100 : 0,
		.hurt_permille = 30,
		.nap_permille = seed / 64 % 4 == 3 ? 20 : 0,
		.losses = seed % 5 > 1 ? (unsigned)(seed / 16 % 5) : 0,
		.polite = seed / 32 % 2,
		.stalls = seed % 7 == 3,
		.hangs = seed % 7 == 4,
		.server_naps = seed % 7 == 5,
		.worker_timeout_ns = seed % 7 > 3 ? 2 * TERN_NS_PER_S : 0,
		.server_falls = seed % 10 == 7,
		.async = async};
	unsigned kind = (unsigned)(seed / 8 % 2 + (seed / 64 % 4 == 3 ? 2 : 0) +
				   (seed % 11 < 4 ? 4 : 0));

	/* Some seeds: writing the file sometimes fails, but must succeed in the end. */
	opts.file_fail_permille = seed % 5 == 4 ? 100 : 0;
	if (late)
		make_late(&job, seed);
	/* Cuts are off, since a process that loses its connection to a stalled server
	 * would give the server up. */
	if (job.server_naps)
		job.cut_permille = 0;
	/* In most seeds at least one worker is left. */
	if (job.losses >= job.workers && seed % 40 != 38)
		job.losses = job.workers - 1;
	if (async)
		return run(&opts, &job, kind % 4 / 2 * 2, hash);
	return is_known(kind, false) && run(&opts, &job, kind, hash);
}

bool train_run(
	const struct tern_sim_opts *opts, struct job *j, unsigned kind, uint64_t *hash)
{
	return is_known(kind, j->omits) && run(opts, j, kind, hash);
}

bool scenario_train(uint64_t seed, bool verbose, uint64_t *hash)
{
	return disturb(seed, false, false, verbose, hash);
}

bool scenario_async(uint64_t seed, bool verbose, uint64_t *hash)
{
	return disturb(seed, true, false, verbose, hash);
}

bool scenario_late(uint64_t seed, bool verbose, uint64_t *hash)
{
	return disturb(seed, seed / 16 % 2, true, verbose, hash);
}

bool scenario_leaving(uint64_t seed, bool verbose, uint64_t *hash)
{
	struct tern_sim_opts opts = job_sim_opts(seed, verbose);
	static void (*const scripts[])(struct job *) = {leave_one_by_one,
		leave_a_hung_one, interrupt_beside_a_hung_one,
		interrupt_beside_two_hung_ones};
	unsigned script = (unsigned)(seed % TERN_ARRAY_SIZE(scripts));
	struct job job = {.servers = script == 3 ? 2 : 1 + (unsigned)(seed / 4 % 2),
		.workers = 2 + (unsigned)(seed / 12 % 3),
		/* Either shorter or longer than the time that a worker waits for
		 * permission to leave. */
		.worker_timeout_ns = (seed / 6 % 2 ? 2 : 20) * TERN_NS_PER_S,
		.leave_ns = 500 * TERN_NS_PER_MS,
		.script = scripts[script],
		.async = seed / 5 % 2};

	opts.caps |= seed / 4 % 2 ? TERN_CAP_GET : 0;
	opts.eagain_permille = seed % 3 ? 50 : 0;
	return run(&opts, &job, seed / 8 % 2 ? 2 : 0, hash);
}

/* ---- workers are lost, and others come in their places during the steps ---- */

bool scenario_rejoin(uint64_t seed, bool verbose, uint64_t *hash)
{
	struct tern_sim_opts opts = job_rough_sim_opts(seed, verbose);
	/* Not on shared memory, and without norms, for which a server would wait. */
	bool parts = seed / 64 % 4 < 3 && seed % 4 != 2;
	unsigned kind = 8 + (unsigned)(seed / 4 % 8 & (parts ? ~1u : ~0u));
	struct job job = {.servers = 1 + (parts || seed % 5 > 0) + (seed % 5 > 2),
		.workers = 2 + (unsigned)(seed / 2 % 4),
		.cut_permille = parts && seed % 7 == 6 ? 30 : 0,
		.hurt_permille = 10,
		.nap_permille = seed / 64 % 2 ? 100 : 0,
		.all_nap = true,
		.losses = 8 + (unsigned)(seed / 16 % 8),
		.returns = 8 + (unsigned)(seed / 8 % 8),
		.keeps_one = seed % 10 != 9,
		.polite = parts || seed / 32 % 2,
		.parts = parts,
		/* A crash is known after this time, and others should come soon. */
		.reconnect_ns = (parts ? 50 : 2) * TERN_NS_PER_MS,
		.leave_ns = 100 * TERN_NS_PER_US};
	return is_known(kind, false) && run(&opts, &job, kind, hash);
}

/* ---- workers are lost before the steps begin ---- */

/* After this time all servers know of a loss, and another worker may take the place. */
#define AGAIN_NS (300 * TERN_NS_PER_MS)

struct start {
	struct job job;
	unsigned losses;
	uint64_t instants; /* instants of virtual time until the next loss */
	struct member *lost;
	/* Wakes the scenario when another worker may take the place. */
	struct tern_sim_event again;
};

/* Does nothing: the event only makes the simulator call the prologue at that time. */
static void may_come_again(struct tern_sim_event *event)
{
	(void)event;
}

/* Roughly the number of instants before the training starts; a loss comes at a random one
 * of them. */
static unsigned instants_of(const struct job *j)
{
	return 15 * j->servers * j->workers;
}

static bool has_started(const struct job *j)
{
	return j->members[0].server->running;
}

/* True if every server that knows the job has a free place for worker `index`. */
static bool has_place(const struct job *j, unsigned index)
{
	for (unsigned i = 0; i < j->servers; i++) {
		const struct tern_server *s = j->members[i].server;

		if (s->has_job && s->workers[index])
			return false;
	}
	return true;
}

static void lose_one(struct start *s)
{
	struct job *j = &s->job;
	struct tern_rng *rng = tern_sim_rng(j->sim);

	do
		s->lost = &j->members[j->servers +
				      tern_rng_below(rng, j->count - j->servers)];
	while (s->lost->asked || tern_sim_crashed(s->lost->process));
	s->lost->asked = tern_sim_dice(j->sim, 300);
	if (s->lost->asked)
		tern_worker_ask_to_leave(s->lost->worker, "asked");
	else
		tern_sim_crash(s->lost->process);
	s->losses--;
	s->again.happen = may_come_again;
	tern_sim_at(j->sim, &s->again, tern_sim_now_ns(j->sim) + AGAIN_NS);
}

/* Loses workers before the start, and adds others in their places. After server 0 has
 * started the training, a loss is handled as during the steps: no worker may join. */
static void lose_before_start(struct job *j)
{
	struct start *s = tern_container_of(j, struct start, job);

	if (has_started(j)) {
		j->doomed = job_workers_left(j) == 0;
	} else if (!s->lost) {
		if (s->losses && s->instants-- == 0)
			lose_one(s);
	} else if (!s->again.place && has_place(j, s->lost->worker->opts.index)) {
		job_add_worker(j, s->lost->worker->opts.index);
		s->lost = NULL;
		s->instants = tern_rng_below(tern_sim_rng(j->sim), instants_of(j));
	}
}

bool scenario_start(uint64_t seed, bool verbose, uint64_t *hash)
{
	struct tern_sim_opts opts = job_rough_sim_opts(seed, verbose);
	struct start s = {.job = {.servers = 1 + (unsigned)(seed / 2 % 3),
				  .workers = 1 + (unsigned)(seed / 8 % 4),
				  .prologue = lose_before_start},
		.losses = 1 + (unsigned)(seed % 2)};
	unsigned kind = (unsigned)(seed / 16 % 2);

	s.instants = seed * 7 % instants_of(&s.job);
	return is_known(kind, false) && run(&opts, &s.job, kind, hash);
}
