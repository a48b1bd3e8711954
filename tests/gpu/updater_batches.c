/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the CUDA updater (optimizer steps on a GPU) when calls of several threads are
 * executed together as a batch; on the simulated driver. */
#include "tests/gpu/updater.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/rng.h"
#include "base/util.h"
#include "tests/fakes/cuda/fake_cuda.h"

#define COUNT 100u

/* While the gate is closed, a wait for the end of a batch does not return. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool open;
	unsigned waiting;
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static CUresult CUDAAPI query_at_gate(CUevent event)
{
	pthread_mutex_lock(&gate.lock);
	gate.waiting++;
	pthread_cond_broadcast(&gate.changed);
	while (!gate.open)
		pthread_cond_wait(&gate.changed, &gate.lock);
	gate.waiting--;
	pthread_mutex_unlock(&gate.lock);
	return fake_cuda_api()->event_query(event);
}

static void gate_wait_for(unsigned waiting)
{
	pthread_mutex_lock(&gate.lock);
	while (gate.waiting < waiting)
		pthread_cond_wait(&gate.changed, &gate.lock);
	pthread_mutex_unlock(&gate.lock);
}

static void gate_set(bool open)
{
	pthread_mutex_lock(&gate.lock);
	gate.open = open;
	pthread_cond_broadcast(&gate.changed);
	pthread_mutex_unlock(&gate.lock);
}

#define NOISE (1u << 19)

static float *noise; /* random floats; each gradient is a different part of them */

/* Memory that can be page-locked. A copy to other memory waits for the stream within the
 * call, so nothing would stay queued while the gate is closed. */
static float *map_floats(unsigned count)
{
	float *p = mmap(NULL, count * sizeof(float), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(p != MAP_FAILED);
	return p;
}

static void make_noise(void)
{
	struct tern_rng rng = {.seed = 11};

	noise = map_floats(NOISE);
	for (unsigned i = 0; i < NOISE; i++)
		noise[i] = tern_unit_f32(tern_rng_next(&rng)) - 0.5f;
}

/* A thread that calls the updaters for its own chunk. */
struct caller {
	struct tern_optimizer *optimizer;
	unsigned count, gradients;
	/* Adds the gradients up in one call, and updates from the sum in another one. */
	bool sums;
	/* Skips its first elements, and has made more updates of the others than steps. */
	bool skips;
	float scale, clip;
	pthread_t thread;
	struct tern_updater *updaters[2]; /* [0]: the CPU's, [1]: CUDA's */
	struct tern_updater_chunk *chunks[2];
	float *w[2];
	double squares[2];
	uint64_t step;
	int status; /* result of the CUDA updater */
};

static int caller_step(struct caller *c, unsigned i)
{
	const struct tern_updater_segment segments[] = {
		{.count = 7}, {.optimizer = c->optimizer,
				      .first = 7,
				      .count = c->count - 7,
				      .update = c->step + 3}};
	const float *g[16];
	struct tern_updater_step step = {.step = c->step,
		.w_in = c->w[i],
		.w_out = c->w[i],
		.gradients = g,
		.gradient_count = c->gradients,
		.scale = c->scale,
		.clip = c->clip,
		.segments = c->skips ? segments : NULL,
		.segment_count = TERN_ARRAY_SIZE(segments)};
	int r = 0;

	for (unsigned j = 0; j < c->gradients; j++)
		g[j] = noise + (c->count + 13 * j + 7 * c->step) % (NOISE - c->count);
	if (c->sums) {
		r = tern_updater_sum(c->updaters[i], c->chunks[i], g, c->gradients,
			c->scale, &c->squares[i]);
		step.gradients = NULL;
		step.scale = 1;
	}
	return r ? r : tern_updater_update(c->updaters[i], c->chunks[i], &step);
}

static void *call(void *arg)
{
	struct caller *c = arg;

	c->status = caller_step(c, 1);
	return NULL;
}

static void caller_open(
	struct caller *c, struct tern_updater *cpu, struct tern_updater *cuda)
{
	const struct tern_updater_opts opts = {.optimizer = c->optimizer,
		.count = c->count,
		.gradient_count = c->gradients,
		.two_phase = c->sums};

	c->updaters[0] = cpu;
	c->updaters[1] = cuda;
	c->step = 0;
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(
			tern_updater_chunk_new(c->updaters[i], &opts, &c->chunks[i]), 0);
		c->w[i] = map_floats(c->count);
		memcpy(c->w[i], noise + c->count / 3, c->count * sizeof(float));
	}
	tern_updater_pin(cuda, c->w[1], c->count * sizeof(float));
}

static void caller_close(struct caller *c)
{
	for (unsigned i = 0; i < 2; i++) {
		tern_updater_chunk_free(c->updaters[i], c->chunks[i]);
		munmap(c->w[i], c->count * sizeof(float));
	}
}

static void start_call(struct caller *c)
{
	c->step++;
	assert_int_equal(pthread_create(&c->thread, NULL, call, c), 0);
}

/* Makes the same step on the CPU, and compares the results. */
static void check_call(struct caller *c)
{
	assert_int_equal(c->status, 0);
	assert_int_equal(caller_step(c, 0), 0);
	assert_memory_equal(c->w[0], c->w[1], c->count * sizeof(float));
	assert_true(fabs(c->squares[0] - c->squares[1]) <= 1e-9 * c->squares[0]);
}

/* Each caller makes a step: the first three find free lanes (streams), and the others
 * must wait. `function` (NULL: none) fails in its nth call after these three have queued
 * their work. Returns the number of batches. */
static unsigned step_of_callers(struct caller *callers, unsigned count,
	useconds_t wait_us, const char *function, unsigned nth)
{
	unsigned before = fake_cuda_calls("event_record");

	gate_set(false);
	for (unsigned i = 0; i < count; i++) {
		start_call(&callers[i]);
		gate_wait_for(TERN_MIN(i + 1, 3u));
		if (i == 2 && function)
			fake_cuda_fail(function, nth, CUDA_ERROR_UNKNOWN);
	}
	/* Time for the other callers to start waiting, which no call reports. */
	usleep(wait_us);
	gate_set(true);
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(pthread_join(callers[i].thread, NULL), 0);
	return fake_cuda_calls("event_record") - before;
}

static void open_updaters(
	struct tern_updater *updaters[2], const struct tern_cuda_api *api)
{
	char why[400];

	make_noise();
	assert_int_equal(tern_updater_cpu_new(tern_kernels_cpu(), &updaters[0]), 0);
	assert_int_equal(
		tern_updater_cuda_new(api, 0, &updaters[1], why, sizeof(why)), 0);
	tern_updater_pin(updaters[1], noise, NOISE * sizeof(float));
}

static void free_updaters(struct tern_updater *updaters[2])
{
	assert_int_equal(fake_cuda_pageable_copies(), 0);
	for (unsigned i = 0; i < 2; i++)
		tern_updater_free(updaters[i]);
	munmap(noise, NOISE * sizeof(float));
}

/* Repeats steps until one needs at most `most` batches. Each step must have the same bits
 * as on the CPU. Returns the kernel launches of the last step. */
static unsigned step_in_batches(struct caller *callers, unsigned count, unsigned most)
{
	struct tern_cuda_api api = *updater_api;
	struct tern_updater *updaters[2];
	unsigned launches = 0, batches = UINT_MAX;

	api.event_query = query_at_gate;
	open_updaters(updaters, &api);
	for (unsigned i = 0; i < count; i++)
		caller_open(&callers[i], updaters[0], updaters[1]);
	for (useconds_t us = 100; batches > most && us < 2000000; us *= 2) {
		unsigned before = fake_cuda_calls("launch_kernel");

		batches = step_of_callers(callers, count, us, NULL, 0);
		launches = fake_cuda_calls("launch_kernel") - before;
		for (unsigned i = 0; i < count; i++)
			check_call(&callers[i]);
	}
	assert_true(batches <= most);
	for (unsigned i = 0; i < count; i++)
		caller_close(&callers[i]);
	free_updaters(updaters);
	return launches;
}

#define CALLERS 12u

static void test_three_batches_are_under_way_and_the_next_is_one_launch(void **state)
{
	struct caller callers[CALLERS];
	struct tern_optimizer o;

	(void)state;
	assert_int_equal(tern_optimizer_parse("adagrad", &o), 0);
	for (unsigned i = 0; i < CALLERS; i++)
		callers[i] = (struct caller){.optimizer = &o,
			.count = COUNT + i,
			.gradients = 2,
			.scale = 0.5f,
			.clip = 1};
	assert_int_equal(step_in_batches(callers, CALLERS, 4), 4);
}

static void test_a_batch_may_have_calls_of_every_kind(void **state)
{
	struct caller callers[CALLERS];
	struct tern_optimizer o[2];

	(void)state;
	assert_int_equal(tern_optimizer_parse("adam", &o[0]), 0);
	assert_int_equal(tern_optimizer_parse("momentum", &o[1]), 0);
	for (unsigned i = 0; i < CALLERS; i++)
		callers[i] = (struct caller){.optimizer = &o[i == 5],
			.count = COUNT,
			.gradients = i == 6   ? 11
				     : i == 7 ? 1
					      : 3,
			.skips = i == 8 || i == 10,
			.scale = i == 4 ? 0.3f : 0.5f,
			.clip = i == 9 ? 0.7f : 1};
	assert_true(step_in_batches(callers, CALLERS, 4) >= 8);
}

static void test_a_batch_may_have_sums_and_updates(void **state)
{
	struct caller callers[CALLERS];
	struct tern_optimizer o;

	(void)state;
	assert_int_equal(tern_optimizer_parse("adam", &o), 0);
	for (unsigned i = 0; i < CALLERS; i++)
		callers[i] = (struct caller){.optimizer = &o,
			.count = COUNT + i,
			.gradients = 3,
			.sums = i % 2,
			.scale = 1,
			.clip = 0.9f};
	/* The batches: one for each of the first three callers, one for the first calls
	 * of all others, and later at most one for each of the six callers that have
	 * added up first. */
	step_in_batches(callers, CALLERS, 3 + 1 + 6);
}

static void test_a_batch_may_need_its_rooms_again(void **state)
{
	struct caller callers[8];
	struct tern_optimizer o;

	(void)state;
	assert_int_equal(tern_optimizer_parse("sgd", &o), 0);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(callers); i++)
		callers[i] = (struct caller){.optimizer = &o,
			.count = 300000 + i,
			.gradients = 2,
			.scale = 0.5f,
			.clip = 1};
	/* Each caller needs room for 2 * 300,000 floats, and a launch has room for 2 Mi
	 * floats (8 MiB): the five callers after the first three need two launches. */
	assert_int_equal(step_in_batches(callers, TERN_ARRAY_SIZE(callers), 4), 3 + 2);
}

/* Checks the results of a step, and returns how many calls have failed. After a failed
 * call, the device and the copies may have left anything in the caller's parameters, so
 * they are restored from the CPU's. */
static unsigned check_failures(struct caller *callers)
{
	unsigned failed = 0;

	for (unsigned i = 0; i < CALLERS; i++) {
		struct caller *c = &callers[i];

		if (c->status == 0) {
			check_call(c);
			continue;
		}
		failed++;
		assert_true(i >= 3);
		assert_true(strncmp(c->chunks[1]->error, "cuda:0: ", 8) == 0);
		memcpy(c->w[1], c->w[0], c->count * sizeof(float));
	}
	return failed;
}

static void check_that_all_go_on(struct caller *callers)
{
	for (unsigned i = 0; i < CALLERS; i++) {
		callers[i].step++;
		callers[i].status = caller_step(&callers[i], 1);
		check_call(&callers[i]);
	}
}

static void test_all_calls_of_a_batch_fail_together(void **state)
{
	static const char *const functions[] = {
		"memcpy_async", "launch_kernel", "event_record", "ctx_push_current"};
	struct tern_cuda_api api = *updater_api;
	struct tern_updater *updaters[2];
	struct caller callers[CALLERS];
	struct tern_optimizer o;

	(void)state;
	api.event_query = query_at_gate;
	assert_int_equal(tern_optimizer_parse("sgd", &o), 0);
	open_updaters(updaters, &api);
	for (unsigned i = 0; i < CALLERS; i++) {
		callers[i] = (struct caller){.optimizer = &o,
			.count = COUNT,
			.gradients = 2,
			.scale = 1,
			.clip = 1};
		caller_open(&callers[i], updaters[0], updaters[1]);
	}
	for (size_t f = 0; f < TERN_ARRAY_SIZE(functions); f++) {
		unsigned failed = 0;

		for (useconds_t us = 100; failed != CALLERS - 3 && us < 2000000;
			us *= 2) {
			step_of_callers(callers, CALLERS, us, functions[f], 1);
			failed = check_failures(callers);
			assert_true(failed > 0);
		}
		assert_int_equal(failed, CALLERS - 3);
		check_that_all_go_on(callers);
	}
	for (unsigned i = 0; i < CALLERS; i++)
		caller_close(&callers[i]);
	free_updaters(updaters);
}

static void *make_large(void *arg)
{
	struct caller *c = arg;
	const struct tern_updater_opts opts = {.optimizer = c->optimizer,
		.count = c->count,
		.gradient_count = c->gradients};

	c->status = tern_updater_chunk_new(c->updaters[1], &opts, &c->chunks[1]);
	return NULL;
}

/* A batch may need larger buffers than exist. They must not be replaced while queued work
 * uses them: the simulated driver stops the program if such memory is freed. */
static void test_rooms_are_replaced_when_no_batch_is_under_way(void **state)
{
	struct tern_cuda_api api = *updater_api;
	struct tern_updater *updaters[2];
	struct caller callers[3], maker;
	struct tern_optimizer o;

	(void)state;
	api.event_query = query_at_gate;
	assert_int_equal(tern_optimizer_parse("adam", &o), 0);
	open_updaters(updaters, &api);
	gate_set(false);
	maker = (struct caller){.optimizer = &o, .count = 5000, .gradients = 9};
	maker.updaters[1] = updaters[1];
	for (unsigned i = 0; i < 3; i++) {
		callers[i] = (struct caller){.optimizer = &o,
			.count = COUNT,
			.gradients = 3,
			.scale = 1,
			.clip = 1};
		caller_open(&callers[i], updaters[0], updaters[1]);
	}
	for (unsigned i = 0; i < 3; i++)
		start_call(&callers[i]);
	gate_wait_for(3);
	assert_int_equal(pthread_create(&maker.thread, NULL, make_large, &maker), 0);
	usleep(20000); /* if all is well, nothing happens in this time */
	gate_set(true);
	assert_int_equal(pthread_join(maker.thread, NULL), 0);
	assert_int_equal(maker.status, 0);
	tern_updater_chunk_free(updaters[1], maker.chunks[1]);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(pthread_join(callers[i].thread, NULL), 0);
		check_call(&callers[i]);
		caller_close(&callers[i]);
	}
	free_updaters(updaters);
}

static void *many_calls(void *arg)
{
	struct caller *c = arg;

	for (c->step = 1; c->step <= 100 && c->status == 0; c->step++)
		c->status = caller_step(c, 1);
	return NULL;
}

static void test_chunks_are_made_beside_updates(void **state)
{
	struct caller callers[4], made[8];
	struct tern_updater *updaters[2];
	struct tern_optimizer o;

	(void)state;
	assert_int_equal(tern_optimizer_parse("adam", &o), 0);
	open_updaters(updaters, updater_api);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(callers); i++) {
		callers[i] = (struct caller){.optimizer = &o,
			.count = COUNT,
			.gradients = 3,
			.scale = 1,
			.clip = 1};
		caller_open(&callers[i], updaters[0], updaters[1]);
		assert_int_equal(
			pthread_create(&callers[i].thread, NULL, many_calls, &callers[i]),
			0);
	}
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(made);
		i++) { /* each chunk needs larger buffers than the one before */
		made[i] = (struct caller){.optimizer = &o,
			.count = COUNT << i,
			.gradients = 9,
			.scale = 1,
			.clip = 1};
		caller_open(&made[i], updaters[0], updaters[1]);
		made[i].step = 1;
		made[i].status = caller_step(&made[i], 1);
		check_call(&made[i]);
	}
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(callers); i++) {
		struct caller *c = &callers[i];

		assert_int_equal(pthread_join(c->thread, NULL), 0);
		for (c->step = 1; c->step < 100; c->step++)
			assert_int_equal(caller_step(c, 0), 0);
		check_call(c);
		caller_close(c);
	}
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(made); i++)
		caller_close(&made[i]);
	free_updaters(updaters);
}

int updater_run_batches(CMFixtureFunction setup, CMFixtureFunction teardown)
{
	const struct CMUnitTest cases[] = {
		cmocka_unit_test_setup_teardown(
			test_three_batches_are_under_way_and_the_next_is_one_launch,
			setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_a_batch_may_have_calls_of_every_kind, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_a_batch_may_have_sums_and_updates, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_a_batch_may_need_its_rooms_again, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_all_calls_of_a_batch_fail_together, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_rooms_are_replaced_when_no_batch_is_under_way, setup,
			teardown),
		cmocka_unit_test_setup_teardown(
			test_chunks_are_made_beside_updates, setup, teardown),
	};

	return cmocka_run_group_tests_name("batches", cases, NULL, NULL);
}
