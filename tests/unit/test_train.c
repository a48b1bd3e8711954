/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole jobs in one process: servers and workers with contexts and job threads of their
 * own, driven in turn. What is trained must not depend on how many they are, what
 * connects them, or which of the workers are lost on the way.
 */
#include "tests/cmocka.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "client/internal.h"
#include "server/internal.h"
#include "tools/host_env.h"

#define MEMBERS_MAX 8
#define DONE        99     /* a mishap's last stage */
#define EXPECTED    ENOTTY /* what a worker that is to give up says; nobody else does */

struct member { /* a process of the job, in this one */
	struct tern_env *env;
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_server *server;
	struct tern_worker *worker;
	struct tern_engine *engine;   /* a worker's */
	struct tern_updater *updater; /* a server's */
	bool ended, closed;
	int status;
	char text[400];
	struct tern_worker_results results;
	uint64_t step;
	bool has_more, finishes; /* it was given slots; it evaluates and saves */
};

struct setup {
	const char *fabric, *model, *optimizer;
	unsigned servers, workers, slots;
	uint64_t steps;
	enum tern_mode mode;
	double clip_norm;
};

struct outcome {
	char *bytes;
	size_t size;
	struct tern_worker_results results;
	struct tern_server_stats stats;
};

static struct tern_dataset *data, *test;
static uint64_t staging_bytes; /* of servers; 0: their default */

/* ---- data: two classes apart by a plane, some noise ---- */

static int make_data(void **state)
{
	size_t room = 4u << 20, at = 0;
	char *text = malloc(room);
	struct tern_rng rng = {.seed = 7};
	struct tern_dataset *all;
	struct tern_data_error error;

	(void)state;
	for (int i = 0; i < 3000; i++) {
		float x[20], sum = 0;

		for (int j = 0; j < 20; j++) {
			x[j] = tern_unit_f32(tern_rng_next(&rng)) - 0.5f;
			sum += j % 2 ? x[j] : -x[j];
		}
		at += (size_t)snprintf(text + at, room - at, "%s", sum > 0 ? "+1" : "-1");
		for (int j = 0; j < 20; j++)
			at += (size_t)snprintf(
				text + at, room - at, " %d:%.5f", j, (double)x[j]);
		at += (size_t)snprintf(text + at, room - at, "\n");
	}
	if (tern_dataset_read(&(struct tern_data_file){"made up", text, at}, NULL, 0, 0,
		    &all, &error) < 0) {
		fprintf(stderr, "%s\n", error.text);
		return -1;
	}
	tern_dataset_range(all, 0, 2500, &data);
	tern_dataset_range(all, 2500, 500, &test);
	tern_dataset_free(all);
	free(text);
	return 0;
}

static int free_data(void **state)
{
	(void)state;
	tern_dataset_free(data);
	tern_dataset_free(test);
	return 0;
}

/* ---- members ---- */

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
	struct member *m = arg;

	server_ended(arg, status, text);
	m->results = *results;
}

static void progress(void *arg, const struct tern_worker_progress *progress)
{
	((struct member *)arg)->step = progress->step;
}

static void note(void *arg, const char *text)
{
	struct member *m = arg;

	m->has_more = m->has_more || !strstr(text, ": 0 of its slots");
}

static int finishing(void *arg, struct tern_ps_text *why)
{
	(void)why;
	((struct member *)arg)->finishes = true;
	return 0;
}

static void open_member(struct member *m)
{
	struct tern_context_opts opts = {0};

	assert_int_equal(host_env_new(NULL, &m->env), 0);
	assert_int_equal(tern_domain_new(NULL, &m->domain), 0);
	opts.env = m->env;
	assert_int_equal(tern_context_new(m->domain, &opts, &m->ctx), 0);
}

static void open_server(struct member *m)
{
	open_member(m);
	assert_int_equal(tern_updater_cpu_new(tern_kernels_cpu(), &m->updater), 0);
}

static void open_worker(struct member *m, const struct tern_model *model)
{
	open_member(m);
	assert_int_equal(
		tern_engine_cpu_new(tern_kernels_cpu(), model, 16, &m->engine), 0);
}

static void close_member(struct member *m)
{
	if (m->closed)
		return;
	m->closed = true;
	host_env_stop(m->env);
	tern_context_free(m->ctx);
	tern_server_free(m->server);
	tern_updater_free(m->updater);
	tern_worker_free(m->worker);
	tern_engine_free(m->engine);
	tern_domain_free(m->domain);
	host_env_free(m->env);
}

static void step_all(struct member *members, unsigned count)
{
	int n = 0;

	for (unsigned i = 0; i < count; i++)
		if (!members[i].closed)
			n += tern_progress(members[i].ctx);
	if (n == 0)
		usleep(50); /* the job threads want the processor */
}

static bool all_ended(const struct member *members, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (!members[i].ended && !members[i].closed)
			return false;
	return true;
}

static void start_servers(
	struct member *m, const struct setup *setup, char addresses[][128])
{
	for (unsigned i = 0; i < setup->servers; i++) {
		char listen[64];

		if (strcmp(setup->fabric, "shm") == 0)
			snprintf(listen, sizeof(listen), "shm://train-%d-%u",
				(int)getpid(), i);
		else
			snprintf(listen, sizeof(listen), "%s://127.0.0.1:0",
				setup->fabric);
		open_server(&m[i]);
		assert_int_equal(
			tern_server_new(&(struct tern_server_opts){.domain = m[i].domain,
						.ctx = m[i].ctx,
						.updater = m[i].updater,
						.staging_bytes = staging_bytes,
						.listen = listen,
						.ended = server_ended,
						.arg = &m[i]},
				&m[i].server),
			0);
		snprintf(addresses[i], 128, "%s", tern_server_address(m[i].server));
	}
}

static struct tern_model *make_model(const struct setup *setup)
{
	struct tern_data_error error;
	struct tern_model *model;

	assert_int_equal(tern_model_new(setup->model, data, &model, &error), 0);
	return model;
}

static void start_worker(struct member *m, const struct setup *setup,
	const struct tern_model *model, char addresses[][128], const char *save,
	unsigned index)
{
	struct tern_ps_job job = {.mode = setup->mode,
		.steps = setup->steps,
		.seed = 3,
		.slots = setup->slots,
		.workers = setup->workers,
		.batch = 16,
		.clip_norm = setup->clip_norm,
		.servers = addresses,
		.server_count = setup->servers};
	struct tern_ps_text why;

	tern_optimizer_parse(setup->optimizer, &job.optimizer);
	open_worker(m, model);
	assert_int_equal(tern_worker_new(&(struct tern_worker_opts){.domain = m->domain,
						 .ctx = m->ctx,
						 .engine = m->engine,
						 .job = &job,
						 .index = index,
						 .train = data,
						 .test = test,
						 .save_path = save,
						 .finishing = finishing,
						 .progress = progress,
						 .note = note,
						 .ended = worker_ended,
						 .arg = m},
				 &m->worker, &why),
		0);
}

static void start_workers(struct member *m, const struct setup *setup,
	const struct tern_model *model, char addresses[][128], const char *save)
{
	for (unsigned i = 0; i < setup->workers; i++)
		start_worker(&m[i], setup, model, addresses, save, i);
}

/* What happens to the workers while they train: called between turns. */
typedef void mishap(struct member *workers, unsigned *stage);

/* A job that comes to a good end for all that are left and did not give up. */
static struct outcome train_with(const struct setup *setup, mishap *happens)
{
	struct member members[MEMBERS_MAX] = {0};
	unsigned count = setup->servers + setup->workers;
	char addresses[MEMBERS_MAX][128], save[64];
	struct tern_model *model = make_model(setup);
	uint64_t limit = tern_clock_ns() + 30 * TERN_NS_PER_S;
	struct outcome out = {0};
	unsigned stage = 0;
	FILE *f;

	snprintf(save, sizeof(save), "/tmp/tern-train-%d.safetensors", (int)getpid());
	start_servers(members, setup, addresses);
	start_workers(members + setup->servers, setup, model, addresses, save);
	while (!all_ended(members, count) && tern_clock_ns() < limit) {
		step_all(members, count);
		if (happens)
			happens(members + setup->servers, &stage);
	}
	assert_int_equal(stage, happens ? DONE : 0);
	for (unsigned i = 0; i < count; i++) {
		if (members[i].closed ||
			(happens && members[i].worker && members[i].status == -EXPECTED))
			continue;
		if (!members[i].ended || members[i].status)
			fprintf(stderr, "member %u: %d %s\n", i, members[i].status,
				members[i].text);
		assert_true(members[i].ended);
		assert_int_equal(members[i].status, 0);
	}
	tern_server_stats(members[0].server, &out.stats);
	for (unsigned i = setup->servers; i < count; i++)
		if (members[i].results.finisher && !members[i].closed)
			out.results = members[i].results;
	for (unsigned i = count; i-- > 0;)
		close_member(&members[i]);
	tern_model_free(model);
	f = fopen(save, "rb");
	assert_non_null(f);
	out.bytes = malloc(1u << 20);
	out.size = fread(out.bytes, 1, 1u << 20, f);
	fclose(f);
	unlink(save);
	return out;
}

static struct outcome train(const struct setup *setup)
{
	return train_with(setup, NULL);
}

static void expect_same_with(
	const struct outcome *a, const struct setup *setup, mishap *happens)
{
	struct outcome b = train_with(setup, happens);

	assert_true(b.results.finisher);
	assert_true(isfinite(b.results.test_accuracy));
	assert_int_equal(a->size, b.size);
	assert_memory_equal(a->bytes, b.bytes, a->size);
	free(b.bytes);
}

static void expect_same(const struct outcome *a, const struct setup *setup)
{
	expect_same_with(a, setup, NULL);
}

/* More gradients on their way than a connection takes, and than servers have room for. */
static void test_one_worker_may_compute_many_slots(void **state)
{
	static const struct setup others[] = {
		{"shm", "mlp:512,480", "sgd", 1, 1, 16, 3, TERN_MODE_SYNC, 0},
		{"shm", "mlp:512,480", "sgd", 2, 1, 16, 3, TERN_MODE_SYNC, 0},
		{"shm", "mlp:512,480", "sgd", 1, 3, 16, 3, TERN_MODE_SYNC, 0.05},
		{"tcp", "mlp:512,480", "sgd", 1, 2, 16, 3, TERN_MODE_SYNC, 0},
	};
	struct outcome one = train(&(struct setup){
		"tcp", "mlp:512,480", "sgd", 1, 1, 16, 3, TERN_MODE_SYNC, 0});
	struct outcome clipped = train(&(struct setup){
		"tcp", "mlp:512,480", "sgd", 1, 6, 16, 3, TERN_MODE_SYNC, 0.05});

	(void)state;
	staging_bytes = 1;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(others); i++)
		expect_same(others[i].clip_norm > 0 ? &clipped : &one, &others[i]);
	free(one.bytes);
	free(clipped.bytes);
	staging_bytes = 0;
}

/* ---- tests ---- */

static void test_the_same_bytes_whoever_computes(void **state)
{
	static const struct setup others[] = {
		{"shm", "mlp:300,40", "adam", 1, 2, 4, 30, TERN_MODE_SYNC, 0},
		{"tcp", "mlp:300,40", "adam", 1, 4, 4, 30, TERN_MODE_SYNC, 0},
		{"shm", "mlp:300,40", "adam", 2, 4, 4, 30, TERN_MODE_SYNC, 0},
		{"tcp", "mlp:300,40", "adam", 2, 3, 4, 30, TERN_MODE_SYNC, 0},
		{"auto", "mlp:300,40", "adam", 3, 1, 4, 30, TERN_MODE_SYNC, 0},
	};
	struct outcome one = train(&(struct setup){
		"tcp", "mlp:300,40", "adam", 1, 1, 4, 30, TERN_MODE_SYNC, 0});

	(void)state;
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		expect_same(&one, &others[i]);
	free(one.bytes);
}

static void test_clipping_gives_the_same_bytes_on_any_servers(void **state)
{
	struct outcome one = train(&(struct setup){
		"shm", "mlp:300", "momentum", 1, 1, 3, 20, TERN_MODE_SYNC, 0.05});
	struct outcome unclipped = train(&(struct setup){
		"shm", "mlp:300", "momentum", 1, 1, 3, 20, TERN_MODE_SYNC, 1e9});

	(void)state;
	assert_memory_not_equal(one.bytes, unclipped.bytes, one.size);
	expect_same(&one, &(struct setup){"tcp", "mlp:300", "momentum", 2, 2, 3, 20,
				  TERN_MODE_SYNC, 0.05});
	expect_same(&one, &(struct setup){"shm", "mlp:300", "momentum", 3, 3, 3, 20,
				  TERN_MODE_SYNC, 0.05});
	free(one.bytes);
	free(unclipped.bytes);
}

static void test_servers_of_different_arithmetic_do_not_clip_together(void **state)
{
	const struct setup setup = {
		"tcp", "mlp:300", "sgd", 2, 1, 1, 20, TERN_MODE_SYNC, 0.05};
	struct member members[3] = {0};
	char addresses[2][128];
	struct tern_model *model = make_model(&setup);
	uint64_t limit = tern_clock_ns() + 30 * TERN_NS_PER_S;

	(void)state;
	start_servers(members, &setup, addresses);
	strcpy(members[1].updater->fingerprint, "an abacus");
	start_workers(&members[2], &setup, model, addresses, NULL);
	while (!all_ended(members, 3) && tern_clock_ns() < limit)
		step_all(members, 3);
	for (unsigned i = 0; i < 3; i++)
		assert_true(members[i].ended && members[i].status < 0);
	assert_non_null(strstr(members[1].text, "server 1 computes with \"an abacus\""));
	for (unsigned i = 3; i-- > 0;)
		close_member(&members[i]);
	tern_model_free(model);
}

static void test_a_clip_that_never_clips_changes_nothing(void **state)
{
	struct outcome plain = train(
		&(struct setup){"tcp", "softmax", "sgd", 1, 2, 2, 20, TERN_MODE_SYNC, 0});

	(void)state;
	expect_same(&plain, &(struct setup){"tcp", "softmax", "sgd", 1, 2, 2, 20,
				    TERN_MODE_SYNC, 1e9});
	free(plain.bytes);
}

static void test_more_slots_than_one_sum_takes(void **state)
{
	struct outcome one = train(&(struct setup){
		"shm", "softmax", "adagrad", 1, 1, 21, 5, TERN_MODE_SYNC, 0});

	(void)state;
	expect_same(&one, &(struct setup){"tcp", "softmax", "adagrad", 1, 4, 21, 5,
				  TERN_MODE_SYNC, 0});
	free(one.bytes);
}

static void test_a_spare_worker_follows(void **state)
{
	struct outcome one = train(
		&(struct setup){"shm", "softmax", "sgd", 1, 1, 1, 10, TERN_MODE_SYNC, 0});

	(void)state;
	expect_same(&one,
		&(struct setup){"shm", "softmax", "sgd", 1, 3, 1, 10, TERN_MODE_SYNC, 0});
	free(one.bytes);
}

static void test_it_learns(void **state)
{
	struct outcome sync = train(&(struct setup){
		"shm", "logreg", "adagrad", 1, 2, 2, 400, TERN_MODE_SYNC, 0});
	struct outcome async = train(&(struct setup){
		"tcp", "mlp:32", "adam", 2, 3, 3, 1500, TERN_MODE_ASYNC, 0});
	uint64_t updates = 0;

	(void)state;
	assert_true(sync.results.test_accuracy > 0.95);
	assert_true(sync.results.test_auc > 0.98);
	assert_true(async.results.test_accuracy > 0.95);
	for (unsigned i = 0; i < TERN_STALENESS_BINS; i++)
		updates += async.stats.staleness[i];
	assert_int_equal(updates % 1500, 0);
	assert_int_equal(async.stats.steps, 1500);
	free(sync.bytes);
	free(async.bytes);
}

static void test_another_shape_is_refused_in_words(void **state)
{
	const struct setup small = {"shm", "mlp:8", "sgd", 1, 2, 2, 5, TERN_MODE_SYNC, 0};
	const struct setup large = {"shm", "mlp:9", "sgd", 1, 2, 2, 5, TERN_MODE_SYNC, 0};
	struct member m[4] = {0};
	char addresses[MEMBERS_MAX][128];
	struct tern_model *models[2] = {make_model(&small), make_model(&large)};
	uint64_t limit = tern_clock_ns() + 20 * TERN_NS_PER_S;

	(void)state;
	start_servers(m, &small, addresses);
	for (int i = 0; i < 2; i++) {
		struct tern_ps_job job = {.steps = 5,
			.slots = 2,
			.workers = 2,
			.batch = 16,
			.servers = addresses,
			.server_count = 1};
		struct tern_ps_text why;

		tern_optimizer_parse("sgd", &job.optimizer);
		open_worker(&m[1 + i], models[i]);
		assert_int_equal(
			tern_worker_new(
				&(struct tern_worker_opts){.domain = m[1 + i].domain,
					.ctx = m[1 + i].ctx,
					.engine = m[1 + i].engine,
					.job = &job,
					.index = (uint32_t)i,
					.train = data,
					.ended = worker_ended,
					.arg = &m[1 + i]},
				&m[1 + i].worker, &why),
			0);
		for (int turn = 0; turn < 300; turn++)
			step_all(m, 2 + (unsigned)i);
	}
	while (!m[2].ended && tern_clock_ns() < limit)
		step_all(m, 3);
	assert_int_equal(m[2].status, -EINVAL);
	assert_non_null(strstr(m[2].text, "fc1.weight: worker 1"));
	assert_non_null(strstr(m[2].text, "f32[20,9], the job f32[20,8]"));
	tern_worker_stop(m[1].worker, "enough");
	while (!all_ended(m, 3) && tern_clock_ns() < limit)
		step_all(m, 3);
	assert_true(all_ended(m, 3));
	assert_non_null(strstr(m[0].text, "worker 0"));
	assert_non_null(strstr(m[0].text, "enough"));
	for (int i = 3; i-- > 0;)
		close_member(&m[i]);
	tern_model_free(models[0]);
	tern_model_free(models[1]);
}

/* ---- mishaps ---- */

static void first_worker_dies(struct member *workers, unsigned *stage)
{
	if (*stage == 0 && workers[0].step >= 4) {
		close_member(&workers[0]);
		*stage = DONE;
	}
}

static void two_die_at_once(struct member *workers, unsigned *stage)
{
	if (*stage == 0 && workers[1].step >= 4) {
		close_member(&workers[0]);
		close_member(&workers[2]);
		*stage = DONE;
	}
}

/* Worker 1's slot goes to worker 0, the first of those with the least to do. */
static void the_new_holder_dies(struct member *workers, unsigned *stage)
{
	if (*stage == 0 && workers[1].step >= 4) {
		close_member(&workers[1]);
		*stage = 1;
	} else if (*stage == 1 && workers[0].has_more) {
		close_member(&workers[0]);
		*stage = DONE;
	}
}

static void the_finisher_dies(struct member *workers, unsigned *stage)
{
	if (*stage == 0 && workers[0].finishes) {
		close_member(&workers[0]);
		*stage = 1;
	} else if (*stage == 1 && workers[1].finishes) {
		close_member(&workers[1]);
		*stage = DONE;
	}
}

static void one_gives_up(struct member *workers, unsigned *stage)
{
	if (*stage == 0 && workers[0].step >= 4) {
		worker_give_up(workers[1].worker, -EXPECTED, "enough of it");
		*stage = 1;
	} else if (*stage == 1 && workers[1].ended) {
		/* So nothing that the others need is taken away. */
		assert_true(workers[1].results.alone);
		*stage = DONE;
	}
}

/* The second of two servers misses a worker that is well, and still there for the first:
 * it is cut off there too. */
static void one_server_misses_it(struct member *workers, unsigned *stage)
{
	struct tern_server *second = workers[-1].server;

	if (*stage == 0 && workers[1].step >= 4) {
		lease_lost(second->workers[1], false, "worker 1 is not seen any more");
		*stage = 1;
	} else if (*stage == 1 && workers[1].ended) {
		/* Told, or cut off before it could be. */
		assert_true(strstr(workers[1].text, "goes on without this worker") ||
			    strstr(workers[1].text, "is gone: Connection reset"));
		workers[1].status = -EXPECTED;
		*stage = DONE;
	}
}

static void test_lost_workers_change_no_byte(void **state)
{
	static mishap *const mishaps[] = {first_worker_dies, two_die_at_once,
		the_new_holder_dies, the_finisher_dies, one_gives_up};
	static const struct setup setups[] = {
		{"shm", "mlp:300,40", "adam", 1, 3, 3, 30, TERN_MODE_SYNC, 0.05},
		{"tcp", "mlp:300,40", "adam", 2, 3, 3, 30, TERN_MODE_SYNC, 0.05},
		{"shm", "mlp:300,40", "adam", 3, 4, 3, 30, TERN_MODE_SYNC, 0.05},
	};
	struct outcome one = train(&(struct setup){
		"shm", "mlp:300,40", "adam", 1, 1, 3, 30, TERN_MODE_SYNC, 0.05});

	(void)state;
	for (size_t i = 0; i < sizeof(mishaps) / sizeof(mishaps[0]); i++)
		for (size_t j = 0; j < sizeof(setups) / sizeof(setups[0]); j++)
			if (mishaps[i] != the_new_holder_dies || setups[j].workers == 3)
				expect_same_with(&one, &setups[j], mishaps[i]);
	free(one.bytes);
}

static void test_a_worker_that_one_server_misses_is_cut_off_by_all(void **state)
{
	struct outcome one = train(&(struct setup){
		"shm", "mlp:300,40", "adam", 1, 1, 3, 30, TERN_MODE_SYNC, 0});

	(void)state;
	expect_same_with(&one,
		&(struct setup){
			"shm", "mlp:300,40", "adam", 2, 3, 3, 30, TERN_MODE_SYNC, 0},
		one_server_misses_it);
	free(one.bytes);
}

static void test_a_lost_worker_is_not_made_up_for_in_async_mode(void **state)
{
	struct outcome out = train_with(&(struct setup){"tcp", "mlp:32", "adam", 2, 3, 3,
						300, TERN_MODE_ASYNC, 0},
		first_worker_dies);

	(void)state;
	assert_true(out.results.finisher);
	assert_in_range(out.stats.steps, 204, 299);
	free(out.bytes);
}

/* Runs it until all that are left have ended. */
static void run_out(struct member *m, unsigned count)
{
	uint64_t limit = tern_clock_ns() + 30 * TERN_NS_PER_S;

	while (!all_ended(m, count) && tern_clock_ns() < limit)
		step_all(m, count);
	assert_true(all_ended(m, count));
}

static void test_without_any_worker_the_job_fails_with_the_first_cause(void **state)
{
	const struct setup setup = {
		"shm", "softmax", "sgd", 2, 2, 2, 1000000, TERN_MODE_SYNC, 0};
	struct member m[4] = {0};
	char addresses[MEMBERS_MAX][128];
	struct tern_model *model = make_model(&setup);

	(void)state;
	start_servers(m, &setup, addresses);
	start_workers(m + 2, &setup, model, addresses, NULL);
	while (m[3].step < 5)
		step_all(m, 4);
	worker_give_up(m[3].worker, -ENOMEM, "nothing works here");
	while (!m[2].has_more)
		step_all(m, 4);
	close_member(&m[2]);
	run_out(m, 4);
	assert_int_equal(m[3].status, -ENOMEM);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(m[i].status, -EPIPE);
		assert_non_null(strstr(m[i].text, "no worker is left: worker 1"));
		assert_non_null(strstr(m[i].text, "nothing works here"));
	}
	for (int i = 4; i-- > 0;)
		close_member(&m[i]);
	tern_model_free(model);
}

static void test_a_loss_before_all_have_joined_ends_the_job(void **state)
{
	const struct setup all = {"shm", "softmax", "sgd", 2, 3, 3, 5, TERN_MODE_SYNC, 0};
	struct member m[5] = {0};
	char addresses[MEMBERS_MAX][128];
	struct tern_model *model = make_model(&all);

	(void)state;
	start_servers(m, &all, addresses);
	start_workers(m + 2, &all, model, addresses, NULL);
	/* The third never gets to say a word. */
	close_member(&m[4]);
	while (m[2].worker->state == WORKER_JOINING ||
		m[3].worker->state == WORKER_JOINING)
		step_all(m, 5);
	close_member(&m[3]);
	run_out(m, 5);
	for (int i = 0; i < 3; i++) {
		assert_int_not_equal(m[i].status, 0);
		assert_non_null(strstr(m[i].text, "worker 1"));
		assert_non_null(strstr(m[i].text, "before all had joined"));
	}
	for (int i = 5; i-- > 0;)
		close_member(&m[i]);
	tern_model_free(model);
}

/* ---- too large ---- */

/* The first of the workers of `setup`, which may be more than there are. */
static int open_first(struct member *m, const struct setup *setup,
	const struct tern_model *model, char addresses[][128], struct tern_ps_text *why)
{
	struct tern_ps_job job = {.mode = setup->mode,
		.steps = setup->steps,
		.slots = setup->slots,
		.workers = setup->workers,
		.batch = 16,
		.servers = addresses,
		.server_count = setup->servers};

	tern_optimizer_parse(setup->optimizer, &job.optimizer);
	open_worker(m, model);
	return tern_worker_new(&(struct tern_worker_opts){.domain = m->domain,
				       .ctx = m->ctx,
				       .engine = m->engine,
				       .job = &job,
				       .train = data,
				       .ended = worker_ended,
				       .arg = m},
		&m->worker, why);
}

/* All gradients of all slots are more than a pool holds; one is not. */
static void test_a_worker_needs_room_for_its_own_slots_only(void **state)
{
	struct setup setup = {
		"tcp", "mlp:2048,2048", "sgd", 1, 4096, 4096, 5, TERN_MODE_SYNC, 0};
	char addresses[1][128] = {"tcp://127.0.0.1:1"};
	struct tern_model *model = make_model(&setup);
	struct member m[2] = {0};
	struct tern_ps_text why;

	(void)state;
	assert_int_equal(open_first(&m[0], &setup, model, addresses, &why), 0);
	setup.workers = 1;
	assert_int_equal(open_first(&m[1], &setup, model, addresses, &why), -E2BIG);
	assert_non_null(strstr(why.text, "this worker needs them 4098 times"));
	assert_non_null(strstr(why.text, "it can hold 68719476736 bytes"));
	for (int i = 0; i < 2; i++)
		close_member(&m[i]);
	tern_model_free(model);
}

/* After a loss, where the gradients of all slots are more than a pool holds. */
static void test_a_loss_without_room_for_it_ends_the_job_in_words(void **state)
{
	const struct setup setup = {
		"tcp", "softmax", "sgd", 1, 2, 2, 1000000, TERN_MODE_SYNC, 0};
	struct tern_model *model = make_model(&setup);
	char addresses[1][128];
	struct member m[3] = {0};

	(void)state;
	start_servers(m, &setup, addresses);
	start_workers(m + 1, &setup, model, addresses, NULL);
	while (m[1].step < 5)
		step_all(m, 3);
	m[0].server->staging_most = 1ull << 40;
	close_member(&m[1]);
	run_out(m, 3);
	assert_non_null(strstr(m[0].text, "server 0 needs room for all of a step, "
					  "1099511627776 bytes"));
	assert_non_null(strstr(m[2].text, m[0].text));
	for (int i = 3; i-- > 0;)
		close_member(&m[i]);
	tern_model_free(model);
}

static void test_a_server_that_finds_itself_in_the_place_of_server_0_says_so(void **state)
{
	static const char *const fabrics[] = {"tcp", "shm", "auto"};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(fabrics); i++) {
		const struct setup setup = {
			fabrics[i], "mlp:300", "sgd", 2, 2, 2, 20, TERN_MODE_SYNC, 0};
		struct tern_model *model = make_model(&setup);
		struct member m[4] = {0};
		char addresses[MEMBERS_MAX][128];

		start_servers(m, &setup, addresses);
		start_worker(&m[2], &setup, model, addresses, NULL, 0);
		while (!m[1].server->has_job)
			step_all(m, 3);
		strcpy(m[1].server->job.servers[0], addresses[1]);
		start_worker(&m[3], &setup, model, addresses, NULL, 1);
		run_out(m, 4);
		for (int j = 0; j < 4; j++)
			assert_true(m[j].status < 0);
		if (!strstr(m[1].text, "leads server 1 to server 1"))
			fail_msg("%s: %s", fabrics[i], m[1].text);
		for (int j = 4; j-- > 0;)
			close_member(&m[j]);
		tern_model_free(model);
	}
}

static void test_a_second_server_of_a_number_or_of_another_job_is_refused(void **state)
{
	const struct setup setup = {
		"tcp", "softmax", "sgd", 2, 1, 1, 1000000, TERN_MODE_SYNC, 0};
	struct tern_model *model = make_model(&setup);
	char addresses[MEMBERS_MAX][128];

	(void)state;
	for (int other = 0; other < 2; other++) {
		struct member m[3] = {0};

		start_servers(m, &setup, addresses);
		start_workers(&m[2], &setup, model, addresses, NULL);
		while (m[2].step < 2)
			step_all(m, 3);
		m[1].server->job.steps += (uint64_t)other;
		m[1].server->to_zero = NULL;
		assert_int_equal(others_connect(m[1].server), 0);
		run_out(m, 3);
		assert_non_null(strstr(m[1].text, other ? "has 1000001, the job 1000000"
							: "number 1 is here already"));
		for (int i = 3; i-- > 0;)
			close_member(&m[i]);
	}
	tern_model_free(model);
}

/* It leads to a server of which nobody has told yet what it is. */
static void test_a_server_that_comes_before_the_job_is_compared_with_it(void **state)
{
	const struct setup three = {"tcp", "softmax", "sgd", 3, 0, 0, 0, 0, 0};
	const struct setup two = {"tcp", "softmax", "sgd", 2, 2, 2, 5, TERN_MODE_SYNC, 0};
	const struct setup one = {"tcp", "softmax", "sgd", 1, 1, 1, 5, TERN_MODE_SYNC, 0};
	struct tern_model *model = make_model(&one);
	struct member m[6] = {0};
	char addresses[MEMBERS_MAX][128];

	(void)state;
	start_servers(m, &three, addresses);
	start_worker(&m[3], &two, model, addresses, NULL, 0);
	while (!m[1].server->has_job)
		step_all(m, 4);
	strcpy(m[1].server->job.servers[0], addresses[2]);
	start_worker(&m[4], &two, model, addresses, NULL, 1);
	while (!others_find(m[2].server, 1))
		step_all(m, 5);
	start_worker(&m[5], &one, model, &addresses[2], NULL, 0);
	run_out(m, 6);
	assert_non_null(strstr(m[1].text, "slots: server 1"));
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(m[i].status == 0, i == 2 || i == 5);
	for (int i = 6; i-- > 0;)
		close_member(&m[i]);
	tern_model_free(model);
}

/* What a name or a path brought along, and what was cut inside a character. */
static void test_an_end_is_told_whatever_its_text_is(void **state)
{
	const struct setup setup = {
		"shm", "softmax", "sgd", 1, 2, 2, 1000000, TERN_MODE_SYNC, 0};
	struct tern_model *model = make_model(&setup);
	char addresses[MEMBERS_MAX][128], umlauts[601] = "";

	(void)state;
	for (int i = 0; i < 300; i++)
		strcat(umlauts, "\xc3\xbc");
	for (int who = 0; who < 2; who++) {
		struct member m[3] = {0};

		start_servers(m, &setup, addresses);
		start_workers(m + 1, &setup, model, addresses, NULL);
		while (m[1].step < 2 || m[2].step < 2)
			step_all(m, 3);
		if (who == 0)
			tern_server_stop(m[0].server, umlauts);
		else
			tern_worker_stop(m[1].worker, "caf\xe9 is closed");
		run_out(m, 3);
		assert_non_null(strstr(m[2].text, who ? "caf? is closed" : "????"));
		if (who == 1)
			assert_non_null(strstr(m[0].text, "caf? is closed"));
		for (int i = 3; i-- > 0;)
			close_member(&m[i]);
	}
	tern_model_free(model);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_same_bytes_whoever_computes),
		cmocka_unit_test(test_one_worker_may_compute_many_slots),
		cmocka_unit_test(test_clipping_gives_the_same_bytes_on_any_servers),
		cmocka_unit_test(test_a_clip_that_never_clips_changes_nothing),
		cmocka_unit_test(
			test_servers_of_different_arithmetic_do_not_clip_together),
		cmocka_unit_test(test_more_slots_than_one_sum_takes),
		cmocka_unit_test(test_a_spare_worker_follows),
		cmocka_unit_test(test_it_learns),
		cmocka_unit_test(test_another_shape_is_refused_in_words),
		cmocka_unit_test(test_lost_workers_change_no_byte),
		cmocka_unit_test(test_a_worker_that_one_server_misses_is_cut_off_by_all),
		cmocka_unit_test(test_a_lost_worker_is_not_made_up_for_in_async_mode),
		cmocka_unit_test(
			test_without_any_worker_the_job_fails_with_the_first_cause),
		cmocka_unit_test(test_a_loss_before_all_have_joined_ends_the_job),
		cmocka_unit_test(test_a_worker_needs_room_for_its_own_slots_only),
		cmocka_unit_test(test_a_loss_without_room_for_it_ends_the_job_in_words),
		cmocka_unit_test(
			test_a_server_that_finds_itself_in_the_place_of_server_0_says_so),
		cmocka_unit_test(
			test_a_second_server_of_a_number_or_of_another_job_is_refused),
		cmocka_unit_test(
			test_a_server_that_comes_before_the_job_is_compared_with_it),
		cmocka_unit_test(test_an_end_is_told_whatever_its_text_is),
	};

	return cmocka_run_group_tests(tests, make_data, free_data);
}
