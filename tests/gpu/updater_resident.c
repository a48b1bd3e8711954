/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of chunks whose parameters and gradients are in the GPU's memory (on_device):
 * updates, by one thread and by several, must give the same bits as on the CPU. */
#include "tests/gpu/updater.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "ps/sum.h"

#define COUNT 2003u /* elements of a chunk, not a multiple of any block size */
#define SLOTS 70u
/* Buffers begin at multiples of 64 bytes, as those of a pool. */
#define PLACE (tern_align_up(COUNT * sizeof(float), 64) / sizeof(float))

static float gradients[SLOTS][COUNT];

static void make_gradients(void)
{
	struct tern_rng rng = {.seed = 5};

	for (unsigned i = 0; i < SLOTS; i++)
		for (unsigned j = 0; j < COUNT; j++)
			gradients[i][j] = tern_unit_f32(tern_rng_next(&rng)) - 0.5f;
}

/* ---- the device ---- */

struct machine {
	CUdevice device;
	CUcontext context;
	CUdeviceptr memory;
	struct tern_optimizer optimizer;
	struct tern_updater *updaters[2]; /* the CPU's, and the GPU's */
};

static float *machine_open(struct machine *m, const char *optimizer, unsigned places)
{
	char why[400];

	assert_int_equal(tern_optimizer_parse(optimizer, &m->optimizer), 0);
	m->optimizer.weight_decay = 0.01f;
	assert_int_equal(updater_api->device_get(&m->device, 0), CUDA_SUCCESS);
	assert_int_equal(
		updater_api->primary_ctx_retain(&m->context, m->device), CUDA_SUCCESS);
	assert_int_equal(updater_api->ctx_push_current(m->context), CUDA_SUCCESS);
	assert_int_equal(
		updater_api->mem_alloc(&m->memory, places * PLACE * sizeof(float)),
		CUDA_SUCCESS);
	updater_api->ctx_pop_current(NULL);
	assert_int_equal(tern_updater_cpu_new(tern_kernels_cpu(), &m->updaters[0]), 0);
	assert_int_equal(
		tern_updater_cuda_new(updater_api, 0, &m->updaters[1], why, sizeof(why)),
		0);
	return (float *)(uintptr_t)m->memory;
}

static void machine_close(struct machine *m)
{
	for (int i = 0; i < 2; i++)
		tern_updater_free(m->updaters[i]);
	updater_api->ctx_push_current(m->context);
	updater_api->mem_free(m->memory);
	updater_api->ctx_pop_current(NULL);
	updater_api->primary_ctx_release(m->device);
}

/* ---- a chunk in both memories ---- */

/* The same chunk in memory of the host (0) and of the GPU (1). */
struct twins {
	struct tern_updater *const *updaters;
	struct tern_updater_chunk *chunks[2];
	unsigned slots;
	float host_w[2][COUNT], host_g[SLOTS][COUNT], back[COUNT];
	float *w[2][2]; /* [memory][parity of the version] */
	float *g[2][SLOTS];
	double squares[2];
	const struct updater_skips *skips; /* of the next step; NULL: none */
};

/* Number of places (of PLACE floats) in the GPU's memory that a struct twins takes. */
static unsigned places_of(unsigned slots)
{
	return 2 + slots;
}

static void set_gradients(struct twins *t)
{
	for (unsigned i = 0; i < t->slots; i++) {
		memcpy(t->host_g[i], gradients[i], sizeof(t->host_g[i]));
		assert_int_equal(tern_updater_copy(t->updaters[1], t->chunks[1],
					 t->g[1][i], gradients[i]),
			0);
	}
}

static void twins_open(
	struct twins *t, struct machine *m, float *places, unsigned slots, bool two_phase)
{
	t->updaters = m->updaters;
	t->slots = slots;
	t->skips = NULL;
	for (unsigned i = 0; i < 2; i++) {
		const struct tern_updater_opts opts = {.optimizer = &m->optimizer,
			.count = COUNT,
			.gradient_count = slots,
			.two_phase = two_phase,
			.on_device = i == 1};

		assert_int_equal(
			tern_updater_chunk_new(m->updaters[i], &opts, &t->chunks[i]), 0);
		t->w[0][i] = t->host_w[i];
		t->w[1][i] = places + i * PLACE;
	}
	for (unsigned i = 0; i < slots; i++) {
		t->g[0][i] = t->host_g[i];
		t->g[1][i] = places + (2 + i) * PLACE;
	}
	for (unsigned j = 0; j < COUNT; j++)
		t->host_w[0][j] = (float)j / COUNT - 0.5f;
	assert_int_equal(
		tern_updater_copy(m->updaters[1], t->chunks[1], t->w[1][0], t->host_w[0]),
		0);
	set_gradients(t);
}

static void twins_close(struct twins *t)
{
	for (int i = 0; i < 2; i++)
		tern_updater_chunk_free(t->updaters[i], t->chunks[i]);
}

/* Makes a step with chunk i. It writes the version with the parity of `step`, from the
 * version with the other parity; with `in_place`, version 0 from itself. Without
 * gradients (`g` NULL) the step uses the last sum. */
static int step_one(struct twins *t, unsigned i, uint64_t step, const float *const *g,
	unsigned count, bool in_place)
{
	unsigned to = in_place ? 0 : step % 2, from = in_place ? 0 : 1 - to;
	const struct tern_updater_step s = {.step = step,
		.w_in = t->w[i][from],
		.w_out = t->w[i][to],
		.gradients = g,
		.gradient_count = count,
		.scale = g ? 1.0f / (float)t->slots : 1.0f,
		.clip = 0.7f,
		.segments = t->skips ? t->skips->segments : NULL,
		.segment_count = UPDATER_SEGMENTS};

	return tern_updater_update(t->updaters[i], t->chunks[i], &s);
}

static void compare(struct twins *t, unsigned parity)
{
	assert_int_equal(
		tern_updater_copy(t->updaters[1], t->chunks[1], t->back, t->w[1][parity]),
		0);
	assert_memory_equal(t->back, t->host_w[parity], sizeof(t->back));
}

static const float *const *sources(struct twins *t, unsigned i)
{
	return (const float *const *)t->g[i];
}

/* ---- cases ---- */

static void test_updates_where_the_parameters_are(void **state)
{
	static const unsigned counts[] = {1, 9, SLOTS, 8, 65};
	size_t used = updater_scale == GPU_FEW ? 2 : TERN_ARRAY_SIZE(counts);
	static struct twins t;

	(void)state;
	make_gradients();
	for (unsigned o = 0; o < TERN_OPT_COUNT; o++) {
		struct machine m;
		float *places =
			machine_open(&m, tern_optimizer_name(o), places_of(SLOTS));

		for (size_t i = 0; i < used; i++) {
			bool in_place = i % 2 == 1;

			twins_open(&t, &m, places, counts[i], false);
			for (uint64_t step = 1; step <= 3; step++)
				for (unsigned k = 0; k < 2; k++)
					assert_int_equal(
						step_one(&t, k, step, sources(&t, k),
							counts[i], in_place),
						0);
			compare(&t, in_place ? 0 : 1);
			twins_close(&t);
		}
		machine_close(&m);
	}
}

static void test_segments_are_skipped_where_the_parameters_are(void **state)
{
	static struct twins t;
	struct updater_skips skips;
	struct machine m;
	float *places;

	(void)state;
	make_gradients();
	places = machine_open(&m, "adamw", places_of(SLOTS));
	for (unsigned in_place = 0; in_place < 2; in_place++) {
		twins_open(&t, &m, places, 3, false);
		t.skips = &skips;
		for (uint64_t step = 1; step <= 5; step++) {
			updater_skip(&skips, &m.optimizer, COUNT, step);
			for (unsigned k = 0; k < 2; k++)
				assert_int_equal(step_one(&t, k, step, sources(&t, k), 3,
							 in_place),
					0);
			compare(&t, in_place ? 0 : step % 2);
		}
		twins_close(&t);
	}
	machine_close(&m);
}

static void sum_one(struct twins *t, unsigned i)
{
	assert_int_equal(tern_updater_sum(t->updaters[i], t->chunks[i], sources(t, i),
				 t->slots, 1.0f / (float)t->slots, &t->squares[i]),
		0);
}

static void test_sums_where_the_gradients_are(void **state)
{
	static struct twins t;
	struct machine m;
	float *places;

	(void)state;
	make_gradients();
	places = machine_open(&m, "adam", places_of(SLOTS));
	for (unsigned slots = 3; slots < SLOTS; slots += 17) {
		twins_open(&t, &m, places, slots, true);
		for (uint64_t step = 1; step <= 2; step++)
			for (unsigned i = 0; i < 2; i++) {
				sum_one(&t, i);
				assert_int_equal(
					step_one(&t, i, step, NULL, 1, false), 0);
			}
		assert_true(fabs(t.squares[0] - t.squares[1]) <= 1e-9 * t.squares[0]);
		compare(&t, 0);
		twins_close(&t);
	}
	machine_close(&m);
}

/* Folds all gradients, group after group, and makes a step with the partial sums. */
static void fold_and_step(struct twins *t, unsigned i, uint64_t step)
{
	const float *in[TERN_SUM_MAX];
	unsigned span = tern_sum_span(t->slots), groups = 0;

	for (uint32_t folded = 0; folded < t->slots;
		folded = tern_sum_folded_next(t->slots, folded))
		assert_int_equal(tern_updater_fold(t->updaters[i], t->chunks[i], t->g[i],
					 t->slots, folded),
			0);
	for (unsigned k = 0; k < t->slots; k += span)
		in[groups++] = t->g[i][k];
	assert_int_equal(step_one(t, i, step, in, groups, false), 0);
}

static void test_gradients_are_folded_where_they_are(void **state)
{
	static struct twins t;
	struct machine m;
	float *places;

	(void)state;
	make_gradients();
	places = machine_open(&m, "momentum", places_of(SLOTS));
	for (unsigned slots = 9; slots <= SLOTS; slots += 61) {
		twins_open(&t, &m, places, slots, false);
		for (uint64_t step = 1; step <= 2; step++) {
			set_gradients(&t); /* folding has overwritten them */
			for (unsigned i = 0; i < 2; i++)
				fold_and_step(&t, i, step);
		}
		compare(&t, 0);
		twins_close(&t);
	}
	machine_close(&m);
}

#define THREADS      8u
#define THREAD_SLOTS 10u
#define THREAD_STEPS 12u

struct worker {
	pthread_t thread;
	struct twins twins;
};

static void *work(void *arg)
{
	struct twins *t = arg;

	for (uint64_t step = 1; step <= THREAD_STEPS; step++) {
		set_gradients(t);
		fold_and_step(t, 1, step);
	}
	return NULL;
}

static void test_threads_share_the_device_and_its_memory(void **state)
{
	static struct worker workers[THREADS];
	struct machine m;
	float *places;

	(void)state;
	make_gradients();
	places = machine_open(&m, "adagrad", THREADS * places_of(THREAD_SLOTS));
	for (unsigned i = 0; i < THREADS; i++)
		twins_open(&workers[i].twins, &m,
			places + i * places_of(THREAD_SLOTS) * PLACE, THREAD_SLOTS,
			false);
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(
			pthread_create(&workers[i].thread, NULL, work, &workers[i].twins),
			0);
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
	for (unsigned i = 0; i < THREADS; i++) {
		struct twins *t = &workers[i].twins;

		for (uint64_t step = 1; step <= THREAD_STEPS; step++) {
			set_gradients(t);
			fold_and_step(t, 0, step);
		}
		compare(t, 0);
		twins_close(t);
	}
	machine_close(&m);
}

int updater_run_resident(CMFixtureFunction setup, CMFixtureFunction teardown)
{
	const struct CMUnitTest cases[] = {
		cmocka_unit_test_setup_teardown(
			test_updates_where_the_parameters_are, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_segments_are_skipped_where_the_parameters_are, setup,
			teardown),
		cmocka_unit_test_setup_teardown(
			test_sums_where_the_gradients_are, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_gradients_are_folded_where_they_are, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_threads_share_the_device_and_its_memory, setup, teardown),
	};

	return cmocka_run_group_tests_name("in the GPU's memory", cases, NULL, NULL);
}
