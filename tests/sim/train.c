/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/scenario.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "client/worker.h"
#include "server/internal.h"
#include "transport/sim.h"

#define MEMBERS_MAX 9

struct member {
	struct tern_sim_process *process;
	struct tern_context *ctx;
	struct tern_server *server;
	struct tern_worker *worker;
	struct tern_engine *engine;
	struct tern_updater *updater;
	bool ended;
	bool stalled; /* for so long that the others go on without it */
	int status;
	char text[300];
};

struct job {
	struct tern_sim *sim;
	struct member members[MEMBERS_MAX];
	unsigned servers, workers, count;
	unsigned cut_permille, hurt_permille, nap_permille;
	unsigned losses;   /* workers that are still to crash */
	bool server_falls; /* a server crashes: the end of the job */
	bool stalls;       /* a worker stands still */
	bool async;
	bool doomed;       /* a server has crashed, or the last worker */
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
	struct tern_ps_job job = {.mode = j->async ? TERN_MODE_ASYNC : TERN_MODE_SYNC,
		.steps = j->async ? 3 * j->workers + 1 : 4,
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
		if (tern_updater_cpu_new(tern_kernels_cpu(), &m->updater) < 0)
			tern_never("an updater");
		snprintf(addresses[i], sizeof(addresses[i]), "sim://server-%u", i);
		if (tern_server_new(&(struct tern_server_opts){.domain = tern_sim_domain(
								       m->process),
					    .ctx = m->ctx,
					    .updater = m->updater,
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
		if (tern_engine_cpu_new(tern_kernels_cpu(), model, 4, &m->engine) < 0)
			tern_never("an engine");
		if (tern_worker_new(&(struct tern_worker_opts){.domain = tern_sim_domain(
								       m->process),
					    .ctx = m->ctx,
					    .engine = m->engine,
					    .job = &job,
					    .index = i,
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

/* Before that, servers wait for their workers, however long they take; a worker that
 * joined and is lost ends the job. */
static bool has_begun(const struct job *j)
{
	struct tern_server_stats stats;

	tern_server_stats(j->members[0].server, &stats);
	return stats.steps > 0;
}

/* A random one of `count` members from `first` on that is still there; NULL: there is
 * none. */
static struct member *victim(struct job *j, unsigned first, unsigned count)
{
	unsigned at = (unsigned)tern_rng_below(tern_sim_rng(j->sim), count);

	for (unsigned i = 0; i < count; i++) {
		struct member *m = &j->members[first + (at + i) % count];

		if (!m->ended && !m->stalled && !tern_sim_crashed(m->process))
			return m;
	}
	return NULL;
}

static unsigned workers_left(const struct job *j)
{
	unsigned n = 0;

	for (unsigned i = j->servers; i < j->count; i++)
		n += !j->members[i].stalled && !tern_sim_crashed(j->members[i].process);
	return n;
}

/* One loss; more of them soon after the first, while it is being made up for. */
static void hurt(struct job *j)
{
	struct member *m = victim(j, j->servers, j->workers);

	if (j->losses && m) {
		j->losses--;
		j->hurt_permille = 200;
		tern_sim_crash(m->process);
		j->doomed = j->doomed || workers_left(j) == 0;
	} else if (j->stalls && m && workers_left(j) > 1) {
		j->stalls = false;
		m->stalled = true;
		tern_sim_stall(m->process, 30 * TERN_NS_PER_S);
	} else if (j->server_falls && (m = victim(j, 0, j->servers))) {
		j->server_falls = false;
		j->doomed = true;
		tern_sim_crash(m->process);
	}
}

/* A worker lags behind the others, and is not lost for it. */
static void nap(struct job *j)
{
	struct member *m = victim(j, j->servers, j->workers);

	if (m)
		tern_sim_stall(m->process,
			TERN_NS_PER_MS +
				tern_rng_below(tern_sim_rng(j->sim), 4 * TERN_NS_PER_MS));
}

static bool disturbed(void *arg)
{
	struct job *j = arg;

	if (tern_sim_now_ns(j->sim) >= j->next_ns) {
		j->next_ns = tern_sim_now_ns(j->sim) + 50 * TERN_NS_PER_US;
		if (tern_sim_dice(j->sim, j->cut_permille))
			tern_sim_cut(j->sim);
		if (tern_sim_dice(j->sim, j->nap_permille))
			nap(j);
		if (has_begun(j) && tern_sim_dice(j->sim, j->hurt_permille))
			hurt(j);
	}
	return all_ended(arg);
}

/* Whoever did not crash has ended: well, or the job was doomed; in words, or well. */
static bool judge(const struct job *j)
{
	bool good = true;

	for (unsigned i = 0; i < j->count; i++) {
		const struct member *m = &j->members[i];

		if (!m->ended ? !tern_sim_crashed(m->process)
			      : m->status && !j->doomed && !m->stalled) {
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
		tern_updater_free(m->updater);
		tern_worker_free(m->worker);
		tern_engine_free(m->engine);
	}
	for (unsigned i = j->count; i-- > 0;)
		tern_sim_process_free(j->members[i].process);
}

/* What is trained: two chunks, or one that fits into a message, so that servers do not
 * wait for a worker that lags behind; with and without clipping. */
static const char *const models[] = {"mlp:150,20", "logreg"};

#define KINDS 4u /* the model by kind / 2, clipped if kind % 2 */

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
	size_t bytes = 0;
	const char *result = tern_sim_file_get(j->sim, "result", &bytes);
	uint64_t header;

	if (!result) {
		fprintf(stderr, "train: nothing was saved\n");
		return false;
	}
	memcpy(&header, result, sizeof(header));
	result += sizeof(header) + header;
	for (unsigned i = 0; i < j->servers && workers_left(j) == j->workers; i++) {
		const struct tern_server *s = j->members[i].server;

		for (uint32_t k = 0; k < s->chunk_count; k++) {
			const struct tern_chunk *c = s->chunks[k].plan;

			if (memcmp(result + c->first * sizeof(float),
				    chunk_w(&s->chunks[k], 0),
				    c->count * sizeof(float)) == 0)
				continue;
			fprintf(stderr, "train: not the parameters of the end\n");
			return false;
		}
	}
	return true;
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
	if (tern_model_new(models[kind / 2], data, &model, &error) < 0)
		tern_never("a model");
	start(j, model, kind % 2 ? 0.01 : 0);
	tern_sim_run(j->sim, disturbed, j, 60 * TERN_NS_PER_S);
	good = judge(j);
	if (good && !j->doomed)
		good = j->async ? compare_with_servers(j) : compare(j->sim, kind);
	finish(j);
	*hash = tern_sim_hash(j->sim);
	tern_sim_free(j->sim);
	tern_model_free(model);
	return good;
}

static bool disturb(uint64_t seed, bool async, bool verbose, uint64_t *hash)
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
	struct job job = {.servers = 1 + (unsigned)(seed % 3),
		.workers = 1 + (unsigned)(seed / 2 % 6),
		.cut_permille = seed % 4 != 2 && seed % 3 ? 100 : 0,
		.hurt_permille = 30,
		.nap_permille = seed / 64 % 4 == 3 ? 20 : 0,
		.losses = seed % 5 > 1 ? (unsigned)(seed / 16 % 5) : 0,
		.stalls = seed % 7 == 3,
		.server_falls = seed % 10 == 7,
		.async = async};
	unsigned kind = (unsigned)(seed / 8 % 2 + (seed / 64 % 4 == 3 ? 2 : 0));
	struct job plain = {.servers = 1, .workers = 1};
	uint64_t ignored;

	/* Somebody stays, but for a few. */
	if (job.losses >= job.workers && seed % 40 != 38)
		job.losses = job.workers - 1;
	if (async)
		return run(&opts, &job, kind / 2 * 2, hash);
	if (!expected[kind] && !run(&(struct tern_sim_opts){.caps = TERN_CAP_PUT}, &plain,
				       kind, &ignored))
		return false;
	return run(&opts, &job, kind, hash);
}

bool scenario_train(uint64_t seed, bool verbose, uint64_t *hash)
{
	return disturb(seed, false, verbose, hash);
}

bool scenario_async(uint64_t seed, bool verbose, uint64_t *hash)
{
	return disturb(seed, true, verbose, hash);
}
