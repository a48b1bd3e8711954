/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole jobs in one process: servers and workers with contexts and job threads of their
 * own, driven in turn. What is trained must not depend on how many they are or what
 * connects them.
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
#include "client/worker.h"
#include "server/server.h"
#include "tools/host_env.h"

#define MEMBERS_MAX 8

struct member { /* a process of the job, in this one */
	struct tern_env *env;
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_server *server;
	struct tern_worker *worker;
	bool ended;
	int status;
	char text[400];
	struct tern_worker_results results;
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

static void open_member(struct member *m)
{
	struct tern_context_opts opts = {0};

	assert_int_equal(host_env_new(NULL, &m->env), 0);
	assert_int_equal(tern_domain_new(NULL, &m->domain), 0);
	opts.env = m->env;
	assert_int_equal(tern_context_new(m->domain, &opts, &m->ctx), 0);
}

static void close_member(struct member *m)
{
	host_env_stop(m->env);
	tern_context_free(m->ctx);
	tern_server_free(m->server);
	tern_worker_free(m->worker);
	tern_domain_free(m->domain);
	host_env_free(m->env);
}

static void step_all(struct member *members, unsigned count)
{
	int n = 0;

	for (unsigned i = 0; i < count; i++)
		n += tern_progress(members[i].ctx);
	if (n == 0)
		usleep(50); /* the job threads want the processor */
}

static bool all_ended(const struct member *members, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (!members[i].ended)
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
		open_member(&m[i]);
		assert_int_equal(
			tern_server_new(&(struct tern_server_opts){.domain = m[i].domain,
						.ctx = m[i].ctx,
						.kernels = tern_kernels_cpu(),
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

static void start_workers(struct member *m, const struct setup *setup,
	const struct tern_model *model, char addresses[][128], const char *save)
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

	tern_optimizer_parse(setup->optimizer, &job.optimizer);
	for (unsigned i = 0; i < setup->workers; i++) {
		struct tern_ps_text why;

		open_member(&m[i]);
		assert_int_equal(
			tern_worker_new(&(struct tern_worker_opts){.domain = m[i].domain,
						.ctx = m[i].ctx,
						.kernels = tern_kernels_cpu(),
						.job = &job,
						.index = i,
						.model = model,
						.train = data,
						.test = test,
						.save_path = save,
						.ended = worker_ended,
						.arg = &m[i]},
				&m[i].worker, &why),
			0);
	}
}

static struct outcome train(const struct setup *setup)
{
	struct member members[MEMBERS_MAX] = {0};
	unsigned count = setup->servers + setup->workers;
	char addresses[MEMBERS_MAX][128], save[64];
	struct tern_model *model = make_model(setup);
	uint64_t limit = tern_clock_ns() + 30 * TERN_NS_PER_S;
	struct outcome out = {0};
	FILE *f;

	snprintf(save, sizeof(save), "/tmp/tern-train-%d.safetensors", (int)getpid());
	start_servers(members, setup, addresses);
	start_workers(members + setup->servers, setup, model, addresses, save);
	while (!all_ended(members, count) && tern_clock_ns() < limit)
		step_all(members, count);
	for (unsigned i = 0; i < count; i++) {
		if (!members[i].ended || members[i].status)
			fprintf(stderr, "member %u: %d %s\n", i, members[i].status,
				members[i].text);
		assert_true(members[i].ended);
		assert_int_equal(members[i].status, 0);
	}
	tern_server_stats(members[0].server, &out.stats);
	out.results = members[setup->servers].results;
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

static void expect_same(const struct outcome *a, const struct setup *setup)
{
	struct outcome b = train(setup);

	assert_int_equal(a->size, b.size);
	assert_memory_equal(a->bytes, b.bytes, a->size);
	free(b.bytes);
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
		open_member(&m[1 + i]);
		assert_int_equal(
			tern_worker_new(
				&(struct tern_worker_opts){.domain = m[1 + i].domain,
					.ctx = m[1 + i].ctx,
					.kernels = tern_kernels_cpu(),
					.job = &job,
					.index = (uint32_t)i,
					.model = models[i],
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_same_bytes_whoever_computes),
		cmocka_unit_test(test_clipping_gives_the_same_bytes_on_any_servers),
		cmocka_unit_test(test_a_clip_that_never_clips_changes_nothing),
		cmocka_unit_test(test_more_slots_than_one_sum_takes),
		cmocka_unit_test(test_a_spare_worker_follows),
		cmocka_unit_test(test_it_learns),
		cmocka_unit_test(test_another_shape_is_refused_in_words),
	};

	return cmocka_run_group_tests(tests, make_data, free_data);
}
