/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/scenario.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "tests/sim/job.h"

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
	if (tern_dataset_read(&(struct tern_data_file){"made up", text, at}, NULL, 0, 0,
		    &data, &error) < 0)
		tern_never("the data that this file makes");
	free(text);
}

/* What is trained: two chunks, or one that fits into a message, so that servers do not
 * wait for a worker that lags behind; with and without clipping. */
static const char *const models[] = {"mlp:150,20", "logreg"};

#define KINDS 8u /* the model by kind / 2 % 2, clipped if kind % 2, slots if kind / 4 */

/* The bytes of an undisturbed run with one of each, made once. */
static char *expected[KINDS];
static size_t expected_bytes[KINDS];

static bool compare(struct tern_sim *sim, unsigned kind)
{
	size_t bytes = 0;
	const void *result = tern_sim_file_get(sim, "result", &bytes);

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

/* In async mode: what was saved is what the servers have when it is over. A worker that
 * was lost may have sent them something after it was written off. */
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

/* ---- all are asked to end ---- */

static void ask_all_but_first(struct job *j)
{
	for (unsigned i = j->servers + 1; i < j->count; i++) {
		struct member *m = &j->members[i];

		m->asked = true;
		tern_worker_ask_to_leave(m->worker, "asked");
	}
	j->doomed = true;
}

static void stop_first(struct job *j)
{
	struct member *m = &j->members[j->servers];

	m->stalled = true;
	tern_sim_stall(m->process, 30 * TERN_NS_PER_S);
}

/* Worker 0, which would finish the job, has leave to go, and is not gone when the others
 * are asked. */
static void leave_one_by_one(struct job *j)
{
	struct member *m = &j->members[j->servers];

	if (j->stage == 0) {
		j->stage++;
		m->asked = true;
		tern_worker_ask_to_leave(m->worker, "asked");
	} else if (j->stage == 1 && j->members[0].server->workers[0]->may_go) {
		j->stage++;
		stop_first(j);
		ask_all_but_first(j);
	}
}

/* Worker 0 hangs, and nobody knows it yet. */
static void leave_a_hung_one(struct job *j)
{
	if (j->stage++)
		return;
	stop_first(j);
	ask_all_but_first(j);
}

static bool is_saved(const struct job *j)
{
	size_t bytes;

	if (tern_sim_file_get(j->sim, "interrupted", &bytes))
		return true;
	fprintf(stderr, "train: all were asked to end, and nobody saved\n");
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
							   : 4,
		.seed = 5,
		.slots = kind / 4 ? 20 : 4, /* more than are held at once */
		.batch = 4,
		.clip_norm = kind % 2 ? 0.01 : 0};
	tern_optimizer_parse("adam", &j->plan.optimizer);
	j->staging_bytes = 1u << 20;
	j->engine = new_engine;
	j->engine_arg = model;
	job_start(j, data);
	tern_sim_run(j->sim, job_disturb, j, 60 * TERN_NS_PER_S);
	good = job_judge(j);
	if (good && j->script)
		good = is_saved(j);
	if (good && !j->doomed)
		good = j->async ? compare_with_servers(j) : compare(j->sim, kind);
	job_finish(j);
	*hash = tern_sim_hash(j->sim);
	tern_sim_free(j->sim);
	tern_model_free(model);
	return good;
}

/* Nobody is lost but for want of progress: an engine hangs, a worker is stopped, or a
 * server is, which is no worker's fault. */
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
	static const uint32_t kinds[] = {TERN_CAP_PUT, TERN_CAP_PUT | TERN_CAP_GET,
		TERN_CAP_GET | TERN_CAP_PEEK | TERN_CAP_BOUND,
		TERN_CAP_PUT | TERN_CAP_GET | TERN_CAP_PEEK};
	struct tern_sim_opts opts = {.seed = seed,
		.caps = kinds[seed % 4],
		.eagain_permille = seed % 3 ? 50 : 0,
		.refuse_permille = 50,
		.chunk_bytes = 4000,
		.eager_bytes = 512,
		.file_fail_permille = seed % 5 == 4 ? 100 : 0, /* saved in the end */
		.log = verbose ? print_line : NULL};
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
	struct job plain = {.servers = 1, .workers = 1};
	uint64_t ignored;

	if (late)
		make_late(&job, seed);
	/* Who is cut off from a server for so long has lost it. */
	if (job.server_naps)
		job.cut_permille = 0;
	/* Somebody stays, but for a few. */
	if (job.losses >= job.workers && seed % 40 != 38)
		job.losses = job.workers - 1;
	if (async)
		return run(&opts, &job, kind % 4 / 2 * 2, hash);
	if (!expected[kind] && !run(&(struct tern_sim_opts){.caps = TERN_CAP_PUT}, &plain,
				       kind, &ignored))
		return false;
	return run(&opts, &job, kind, hash);
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
	struct tern_sim_opts opts = {.seed = seed,
		.caps = TERN_CAP_PUT | (seed / 4 % 2 ? TERN_CAP_GET : 0),
		.eagain_permille = seed % 3 ? 50 : 0,
		.chunk_bytes = 4000,
		.eager_bytes = 512,
		.log = verbose ? print_line : NULL};
	struct job job = {.servers = 1 + (unsigned)(seed / 2 % 2),
		.workers = 2 + (unsigned)(seed / 8 % 3),
		.worker_timeout_ns = 2 * TERN_NS_PER_S,
		.leave_ns = 500 * TERN_NS_PER_MS, /* two ticks of late.c */
		.script = seed % 2 ? leave_one_by_one : leave_a_hung_one,
		.async = seed % 2 && seed / 32 % 4 == 3};

	return run(&opts, &job, 0, hash);
}
