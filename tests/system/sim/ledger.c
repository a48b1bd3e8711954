/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenario with parameters that count how often each record was used. The "gradient" of a
 * record is a 1 at the record's own index in every chunk, and at a second index the
 * version of the parameters from which it was computed. With SGD at rate 1 the parameters
 * become minus the sum of all gradients. So the saved parameters show for each record and
 * chunk how often the record was applied, and from which version. No record occurs twice
 * in so short a job, so a record identifies its computation (slot and step, or in async
 * mode worker and step).
 *
 * Sync mode: each record must be applied once, from the version of its step, whichever
 * worker was lost. Async mode: once without a loss, else at most once.
 */
#include "tests/system/sim/scenario.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "client/data/permutation.h"
#include "client/models/layers.h"
#include "tests/system/sim/ledger.h"

#define RECORDS      200u
#define CHUNK_FLOATS 4096u /* smallest size of a chunk (see ps/plan.c) */
/* Offset of the versions in a chunk; before it are the counts of the records. */
#define VERSION_PLACE (CHUNK_FLOATS / 2)
#define SEED          5u
#define STEPS         5u

/* A data set whose record i has one feature, of value i. */
const struct tern_dataset *ledger_data(void)
{
	static struct tern_dataset *data;
	struct tern_data_error error;
	char text[RECORDS * 16];
	size_t at = 0;

	if (data)
		return data;
	for (unsigned i = 0; i < RECORDS; i++)
		at += (size_t)sprintf(text + at, "%d 0:%u\n", i % 2 ? 1 : -1, i);
	if (tern_dataset_read(
		    &(struct tern_data_file){
			    .path = "numbers", .data = text, .bytes = at},
		    NULL, 0, 0, &data, &error) < 0)
		tern_never("the data that this file makes");
	return data;
}

struct tern_model ledger_model(void)
{
	struct tern_model model = {.features = 1,
		.classes = 2,
		.param_count = 1,
		.size = (uint64_t)LEDGER_CHUNKS * CHUNK_FLOATS};

	model.params[0] = (struct tern_param){.name = "ledger",
		.shape = tern_shape_1d(TERN_F32, model.size),
		.count = model.size,
		.init = TERN_INIT_ZEROS};
	return model;
}

struct tern_ps_job ledger_plan(uint32_t slots)
{
	struct tern_ps_job plan = {
		.steps = STEPS, .seed = SEED, .slots = slots, .batch = 1};

	tern_optimizer_parse("sgd", &plan.optimizer);
	plan.optimizer.lr = 1.0f;
	return plan;
}

/* ---- the engine ---- */

int ledger_count_records(struct tern_engine *engine,
	const struct tern_engine_params *params, float *grads,
	void (*ready)(void *arg, uint64_t first, uint64_t count), void *arg,
	struct tern_result *result)
{
	memset(grads, 0, engine->model->size * sizeof(*grads));
	*result = (struct tern_result){0};
	for (size_t i = 0; i < engine->batch.rows; i++) {
		float *place = grads + (size_t)engine->batch.x[i];

		for (unsigned c = 0; c < LEDGER_CHUNKS; c++) {
			place[c * CHUNK_FLOATS] += 1;
			place[c * CHUNK_FLOATS + VERSION_PLACE] += (float)params->version;
		}
	}
	/* Each gradient's chunks become final in an order of their own. */
	for (unsigned i = 0; i < LEDGER_CHUNKS; i++)
		ready(arg,
			tern_permutation_at(params->version, LEDGER_CHUNKS,
				(uint64_t)engine->batch.x[0] * LEDGER_CHUNKS + i) *
				CHUNK_FLOATS,
			CHUNK_FLOATS);
	return 0;
}

static void engine_free(struct tern_engine *engine)
{
	free(engine->batch.x);
	free(engine->batch.labels);
	free(engine);
}

struct tern_engine *ledger_engine(void *model, size_t rows)
{
	static const struct tern_engine_ops ops = {
		.gradient = ledger_count_records, .free = engine_free};
	struct tern_engine *engine = calloc(1, sizeof(*engine));

	if (!engine)
		tern_never("an engine");
	engine->ops = &ops;
	engine->model = model;
	engine->rows = TERN_MAX(rows, TERN_ENGINE_ROWS);
	engine->batch.x = calloc(engine->rows, sizeof(*engine->batch.x));
	engine->batch.labels = calloc(engine->rows, sizeof(*engine->batch.labels));
	if (!engine->batch.x || !engine->batch.labels)
		tern_never("a batch");
	strcpy(engine->name, "ledger");
	strcpy(engine->fingerprint, "ledger");
	return engine;
}

void ledger_fill(uint64_t record, uint64_t version, float *gradient, uint64_t first,
	uint64_t count)
{
	memset(gradient, 0, count * sizeof(*gradient));
	for (uint64_t i = first; i < first + count; i++) {
		if (i % CHUNK_FLOATS == record)
			gradient[i - first] = 1;
		if (i % CHUNK_FLOATS == record + VERSION_PLACE)
			gradient[i - first] = (float)version;
	}
}

bool ledger_counts(uint64_t element)
{
	return element % VERSION_PLACE < RECORDS;
}

/* ---- the audit ---- */

/* What is expected of one record: how often it is applied, at least and at most, and from
 * which version. */
struct entry {
	/* Position in the endless sequence of records that the job uses. */
	uint64_t number;
	float least, most, version;
};

static struct entry expected(const struct job *j, uint64_t number)
{
	/* Records used per step. */
	uint64_t width = j->async ? j->workers : j->plan.slots;
	bool lost = job_workers_left(j) < j->workers;
	bool used = number < j->plan.steps * (j->async ? 1 : j->plan.slots) &&
		    !job_omits(j, number / width, (uint32_t)(number % width));

	return (struct entry){.number = number,
		.least = used && !(j->async && lost) ? 1 : 0,
		.most = used ? 1 : 0,
		.version = (float)(number / width)};
}

/* The record that the job uses at a position of its sequence. */
static uint64_t record_at(const struct job *j, uint64_t number)
{
	return j->no_records ? number : tern_permutation_at(SEED, RECORDS, number);
}

static bool is_right(
	const struct job *j, const float *w, const struct entry *e, unsigned chunk)
{
	const float *place = w + chunk * CHUNK_FLOATS + record_at(j, e->number);
	float mean_of = j->async ? 1 : (float)job_slots_counted(j);
	float times = roundf(-place[0] * mean_of * 100) / 100;
	float version = roundf(-place[VERSION_PLACE] * mean_of * 100) / 100;

	if ((times == e->least || times == e->most) && version == times * e->version)
		return true;
	fprintf(stderr,
		"ledger: record %llu, chunk %u: applied %g times, from versions that add "
		"up to %g; should be %g to %g times, from version %g\n",
		(unsigned long long)e->number, chunk, (double)times, (double)version,
		(double)e->least, (double)e->most, (double)e->version);
	return false;
}

uint64_t ledger_steps_in(
	const struct job *j, const float *w, unsigned worker, unsigned chunk)
{
	uint64_t steps = 0;

	for (uint64_t number = worker; number < j->plan.steps; number += j->workers)
		steps += w[chunk * CHUNK_FLOATS + record_at(j, number)] < -0.5f;
	return steps;
}

bool ledger_has_steps(
	const struct job *j, const float *chunk, unsigned worker, uint64_t steps)
{
	uint64_t step = 0;

	for (uint64_t number = worker; number < j->plan.steps; number += j->workers) {
		float times = roundf(-chunk[record_at(j, number)]);

		if (times != (step++ < steps ? 1.0f : 0.0f))
			return false;
	}
	return true;
}

/* The results reported by the worker that saved the parameters. */
static const struct tern_worker_results *said(const struct job *j)
{
	for (unsigned i = j->servers; i < j->count; i++) {
		const struct member *m = &j->members[i];

		if (m->ended && m->status == 0 && m->results.finisher)
			return &m->results;
	}
	return NULL;
}

static bool count_is_right(const struct job *j, const float *w)
{
	const struct tern_worker_results *results = said(j);
	uint64_t made = 0, torn = 0;

	for (unsigned i = 0; i < j->workers; i++) {
		uint64_t least = UINT64_MAX, most = 0;

		for (unsigned chunk = 0; chunk < LEDGER_CHUNKS; chunk++) {
			uint64_t steps = ledger_steps_in(j, w, i, chunk);

			least = TERN_MIN(least, steps);
			most = TERN_MAX(most, steps);
		}
		made += least;
		torn += most - least;
	}
	/* No results: the worker that saved has crashed before it could report. */
	if (!results || (results->steps_made == made && results->steps_torn == torn))
		return true;
	fprintf(stderr,
		"ledger: %llu steps were made and %llu torn, reported are %llu and "
		"%llu\n",
		(unsigned long long)made, (unsigned long long)torn,
		(unsigned long long)results->steps_made,
		(unsigned long long)results->steps_torn);
	return false;
}

/* Checks that the elements that belong to no record have kept their value. */
static bool others_are_zero(const struct job *j, const float *w)
{
	for (unsigned i = 0; i < LEDGER_CHUNKS * CHUNK_FLOATS; i++) {
		if (i % VERSION_PLACE < RECORDS || w[i] == 0 || (j->apart && j->apart(i)))
			continue;
		fprintf(stderr, "ledger: element %u, of no record, has become %g\n", i,
			(double)w[i]);
		return false;
	}
	return true;
}

/* The saved parameters without their initial values; NULL: nothing was saved. */
static const float *changes(const struct job *j)
{
	static float w[LEDGER_CHUNKS * CHUNK_FLOATS];
	const float *result = job_result(j);

	for (uint64_t i = 0; result && i < TERN_ARRAY_SIZE(w); i++)
		w[i] = result[i] - (j->initial ? j->initial(j, i) : 0);
	return result ? w : NULL;
}

bool ledger_is_right(const struct job *j)
{
	const float *w = changes(j);

	if (w && j->async && !count_is_right(j, w))
		return false;
	if (w && !others_are_zero(j, w))
		return false;
	for (uint64_t number = 0; w && number < RECORDS; number++) {
		struct entry e = expected(j, number);

		for (unsigned chunk = 0; chunk < LEDGER_CHUNKS; chunk++)
			if (!is_right(j, w, &e, chunk))
				return false;
	}
	return w;
}

/* ---- the scenarios ---- */

bool ledger_run(struct job *job, uint64_t seed, bool verbose, uint64_t *hash)
{
	struct tern_sim_opts opts = job_rough_sim_opts(seed, verbose);
	struct tern_model model = ledger_model();
	bool good;

	if (job->losses >= job->workers && !job->returns)
		job->losses = job->workers - 1;
	/* Most seeds: memory for the gradient of one chunk at a time; others: for all
	 * chunks. */
	job->staging_bytes = seed % 5 < 4 ? 1 : 1u << 20;
	job->plan = ledger_plan(1 + (uint32_t)(seed / 3 % (seed % 16 == 1 ? 39 : 13)));
	if (job->returns ||
		job->goes_back) { /* as many steps as the 200 records allow, so that others can come */
		job->plan = ledger_plan(2 + (uint32_t)(seed / 3 % 4));
		job->plan.steps = 200 / job->plan.slots;
	}
	if (job->async)
		job->plan.steps = (job->ssp || job->perform ? 6 : 3) * job->workers + 1;
	if (!job->engine)
		job->engine = ledger_engine;
	job->engine_arg = &model;
	job->sim = tern_sim_new(&opts);
	job_run(job, ledger_data());
	good = job_judge(job) &&
	       (job->doomed || (ledger_is_right(job) && (!job->also || job->also(job))));
	job_finish(job);
	*hash = tern_sim_hash(job->sim);
	tern_sim_free(job->sim);
	return good;
}

static bool run(uint64_t seed, bool async, bool verbose, uint64_t *hash)
{
	struct job job = {.servers = 1 + (unsigned)(seed % 3),
		.workers = 1 + (unsigned)(seed / 2 % 6),
		.cut_permille = seed % 4 != 2 && seed % 3 ? 100 : 0,
		.hurt_permille = 30,
		.nap_permille = seed / 32 % 2 ? 20 : 0,
		.losses = seed % 5 > 1 ? (unsigned)(seed / 16 % 5) : 0,
		.stalls = seed % 7 == 3,
		.async = async};

	return ledger_run(&job, seed, verbose, hash);
}

bool scenario_ledger(uint64_t seed, bool verbose, uint64_t *hash)
{
	return run(seed, false, verbose, hash);
}

bool scenario_async_ledger(uint64_t seed, bool verbose, uint64_t *hash)
{
	return run(seed, true, verbose, hash);
}
