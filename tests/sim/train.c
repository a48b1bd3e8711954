/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/scenario.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "client/worker.h"
#include "server/server.h"
#include "transport/sim.h"

#define MEMBERS_MAX 6

struct member {
	struct tern_sim_process *process;
	struct tern_context *ctx;
	struct tern_server *server;
	struct tern_worker *worker;
	bool ended;
	int status;
	char text[300];
};

struct job {
	struct tern_sim *sim;
	struct member members[MEMBERS_MAX];
	unsigned servers, workers, count;
	unsigned cut_permille, crash_permille;
	bool crashed;
	uint64_t next_ns;
};

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

static void server_ended(void *arg, int status, const char *text)
{
	struct member *m = arg;

	m->ended = true;
	m->status = status;
	snprintf(m->text, sizeof(m->text), "%s", text);
}

static void worker_ended(void *arg, int status, const char *text,
	const struct tern_worker_results *results)
{
	(void)results;
	server_ended(arg, status, text);
}

static void open_member(struct job *j, struct member *m, const char *role, unsigned i)
{
	struct tern_context_opts opts = {.eager_bytes = 512,
		.record_count = 512,
		.reconnect_ns = 100 * TERN_NS_PER_MS};
	char name[32];

	snprintf(name, sizeof(name), "%s %u", role, i);
	m->process = tern_sim_process_new(j->sim, name);
	opts.env = tern_sim_env(m->process);
	if (tern_context_new(tern_sim_domain(m->process), &opts, &m->ctx) < 0)
		tern_never("a context");
	tern_sim_drive(m->process, m->ctx);
}

static void start(struct job *j, const struct tern_model *model, double clip_norm)
{
	char addresses[MEMBERS_MAX][128];
	struct tern_ps_job job = {.steps = 4,
		.seed = 5,
		.slots = 4,
		.workers = j->workers,
		.batch = 4,
		.clip_norm = clip_norm,
		.servers = addresses,
		.server_count = j->servers};
	struct tern_ps_text why;

	tern_optimizer_parse("adam", &job.optimizer);
	j->count = j->servers + j->workers;
	for (unsigned i = 0; i < j->servers; i++) {
		struct member *m = &j->members[i];

		open_member(j, m, "server", i);
		snprintf(addresses[i], sizeof(addresses[i]), "sim://server-%u", i);
		if (tern_server_new(&(struct tern_server_opts){.domain = tern_sim_domain(
								       m->process),
					    .ctx = m->ctx,
					    .kernels = tern_kernels_cpu(),
					    .listen = addresses[i],
					    .staging_bytes = 1u << 20,
					    .ended = server_ended,
					    .arg = m},
			    &m->server) < 0)
			tern_never("a server");
	}
	for (unsigned i = 0; i < j->workers; i++) {
		struct member *m = &j->members[j->servers + i];

		open_member(j, m, "worker", i);
		if (tern_worker_new(&(struct tern_worker_opts){.domain = tern_sim_domain(
								       m->process),
					    .ctx = m->ctx,
					    .kernels = tern_kernels_cpu(),
					    .job = &job,
					    .index = i,
					    .model = model,
					    .train = data,
					    .save_path = "result",
					    .ended = worker_ended,
					    .arg = m},
			    &m->worker, &why) < 0)
			tern_never("a worker");
	}
}

static bool all_ended(void *arg)
{
	struct job *j = arg;

	for (unsigned i = 0; i < j->count; i++)
		if (!j->members[i].ended && !tern_sim_crashed(j->members[i].process))
			return false;
	return true;
}

/* Before that, servers wait for their workers, however long they take. */
static bool has_begun(const struct job *j)
{
	struct tern_server_stats stats;

	tern_server_stats(j->members[0].server, &stats);
	return stats.steps > 0;
}

static bool disturbed(void *arg)
{
	struct job *j = arg;

	if (tern_sim_now_ns(j->sim) >= j->next_ns) {
		j->next_ns = tern_sim_now_ns(j->sim) + 50 * TERN_NS_PER_US;
		if (tern_sim_dice(j->sim, j->cut_permille))
			tern_sim_cut(j->sim);
		if (!j->crashed && has_begun(j) &&
			tern_sim_dice(j->sim, j->crash_permille)) {
			j->crashed = true;
			tern_sim_crash(
				j->members[tern_rng_below(tern_sim_rng(j->sim), j->count)]
					.process);
		}
	}
	return all_ended(arg);
}

/* All well: every member ended with 0. One crashed: all others ended, with a reason. */
static bool judge(const struct job *j)
{
	bool good = true;

	for (unsigned i = 0; i < j->count; i++) {
		const struct member *m = &j->members[i];

		if (!m->ended ? !tern_sim_crashed(m->process)
			      : m->status && !j->crashed) {
			fprintf(stderr, "train: member %u: %s %d %s\n", i,
				m->ended ? "ended" : "hangs", m->status, m->text);
			good = false;
		}
		if (m->ended && m->status && !m->text[0]) {
			fprintf(stderr, "train: member %u failed without a word\n", i);
			good = false;
		}
	}
	return good;
}

static void finish(struct job *j)
{
	for (unsigned i = j->count; i-- > 0;) {
		struct member *m = &j->members[i];

		tern_sim_forget(m->process, m->ctx);
		tern_context_free(m->ctx);
		tern_server_free(m->server);
		tern_worker_free(m->worker);
	}
	for (unsigned i = j->count; i-- > 0;)
		tern_sim_process_free(j->members[i].process);
}

/* The bytes of an undisturbed run with one of each, made once. */
static char *expected[2];
static size_t expected_bytes[2];

static bool compare(struct tern_sim *sim, unsigned clipped)
{
	size_t bytes = 0;
	const void *result = tern_sim_file_get(sim, "result", &bytes);

	if (!result) {
		fprintf(stderr, "train: nothing was saved\n");
		return false;
	}
	if (!expected[clipped]) {
		expected[clipped] = malloc(bytes);
		memcpy(expected[clipped], result, bytes);
		expected_bytes[clipped] = bytes;
	}
	if (bytes == expected_bytes[clipped] &&
		memcmp(result, expected[clipped], bytes) == 0)
		return true;
	fprintf(stderr, "train: other bytes than undisturbed\n");
	return false;
}

static bool run(
	const struct tern_sim_opts *opts, struct job *j, unsigned clipped, uint64_t *hash)
{
	struct tern_data_error error;
	struct tern_model *model;
	bool good;

	if (!data)
		make_data();
	j->sim = tern_sim_new(opts);
	if (tern_model_new("mlp:150,20", data, &model, &error) < 0)
		tern_never("a model");
	start(j, model, clipped ? 0.01 : 0);
	tern_sim_run(j->sim, disturbed, j, 60 * TERN_NS_PER_S);
	good = judge(j);
	if (good && !j->crashed)
		good = compare(j->sim, clipped);
	finish(j);
	*hash = tern_sim_hash(j->sim);
	tern_sim_free(j->sim);
	tern_model_free(model);
	return good;
}

bool scenario_train(uint64_t seed, bool verbose, uint64_t *hash)
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
		.log = verbose ? print_line : NULL};
	struct job job = {.servers = 1 + seed % 2,
		.workers = 1 + seed / 2 % 4,
		.cut_permille = seed % 4 != 2 && seed % 3 ? 100 : 0,
		.crash_permille = seed % 10 == 7 ? 20 : 0};
	unsigned clipped = seed / 8 % 2;
	struct job plain = {.servers = 1, .workers = 1};
	uint64_t ignored;

	if (!expected[clipped] && !run(&(struct tern_sim_opts){.caps = TERN_CAP_PUT},
					  &plain, clipped, &ignored))
		return false;
	return run(&opts, &job, clipped, hash);
}
