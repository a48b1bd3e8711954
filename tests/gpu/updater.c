/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/updater.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"

#define COUNT     3001u /* elements of a chunk: not a multiple of any block size */
#define SLOTS_MAX 70u

const struct tern_cuda_api *updater_api;
enum gpu_scale updater_scale = GPU_LARGE;

static float gradients[SLOTS_MAX][COUNT];
static const float *sources[SLOTS_MAX];

static void make_gradients(void)
{
	struct tern_rng rng = {.seed = 9};

	for (unsigned i = 0; i < SLOTS_MAX; i++) {
		sources[i] = gradients[i];
		for (unsigned j = 0; j < COUNT; j++)
			gradients[i][j] = tern_unit_f32(tern_rng_next(&rng)) - 0.5f;
	}
}

/* Two updaters that make the same steps: [0] on the CPU, [1] on the GPU. */
struct pair {
	struct tern_optimizer optimizer;
	struct tern_updater *updaters[2];
	struct tern_updater_chunk *chunks[2];
	float w[2][2][COUNT]; /* parameters: by updater, and by version % 2 */
	const struct updater_skips *skips; /* of the next step; NULL: none */
};

static void pair_open(
	struct pair *p, const char *optimizer, unsigned slots, bool two_phase)
{
	char why[400];

	p->skips = NULL;
	struct tern_updater_opts opts = {.optimizer = &p->optimizer,
		.count = COUNT,
		.gradient_count = slots,
		.two_phase = two_phase};

	assert_int_equal(tern_optimizer_parse(optimizer, &p->optimizer), 0);
	p->optimizer.weight_decay = 0.01f;
	assert_int_equal(tern_updater_cpu_new(tern_kernels_cpu(), &p->updaters[0]), 0);
	assert_int_equal(
		tern_updater_cuda_new(updater_api, 0, &p->updaters[1], why, sizeof(why)),
		0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(
			tern_updater_chunk_new(p->updaters[i], &opts, &p->chunks[i]), 0);
		for (unsigned j = 0; j < COUNT; j++)
			p->w[i][0][j] = (float)j / COUNT - 0.5f;
	}
}

static void pair_close(struct pair *p)
{
	for (int i = 0; i < 2; i++) {
		tern_updater_unpin(p->updaters[i]);
		tern_updater_chunk_free(p->updaters[i], p->chunks[i]);
		tern_updater_free(p->updaters[i]);
	}
}

static void update_both(
	struct pair *p, uint64_t step, const float *const *g, unsigned count, float clip)
{
	unsigned from = (step - 1) % 2, to = step % 2;

	for (int i = 0; i < 2; i++) {
		const struct tern_updater_step s = {.step = step,
			.w_in = p->w[i][from],
			.w_out = p->w[i][to],
			.gradients = g,
			.gradient_count = count,
			.scale = 1.0f / (float)count,
			.clip = clip,
			.segments = p->skips ? p->skips->segments : NULL,
			.segment_count = UPDATER_SEGMENTS};

		assert_int_equal(
			tern_updater_update(p->updaters[i], p->chunks[i], &s), 0);
	}
	assert_memory_equal(p->w[0][to], p->w[1][to], sizeof(p->w[0][to]));
	/* The mean of the same gradients is the same in every step. */
	if (p->optimizer.kind != TERN_OPT_MEAN)
		assert_memory_not_equal(p->w[0][to], p->w[0][from], sizeof(p->w[0][to]));
}

static void test_updates_have_the_cpus_bits(void **state)
{
	static const unsigned counts[] = {1, 9, SLOTS_MAX, 2, 3, 8, 21, 64, 65};
	size_t used = updater_scale == GPU_FEW ? 3 : TERN_ARRAY_SIZE(counts);

	(void)state;
	make_gradients();
	for (unsigned o = 0; o < TERN_OPT_COUNT; o++) {
		uint64_t hash = GPU_HASH_START;

		for (size_t i = 0; i < used; i++) {
			struct pair p;

			pair_open(&p, tern_optimizer_name(o), counts[i], false);
			for (uint64_t step = 1; step <= 3; step++)
				update_both(&p, step, sources, counts[i], 1.0f);
			hash = gpu_hash(hash, p.w[1], sizeof(p.w[1]));
			pair_close(&p);
		}
		print_message("hash of parameters by %s: %016llx\n",
			tern_optimizer_name(o), (unsigned long long)hash);
	}
}

static void test_so_have_updates_in_two_phases(void **state)
{
	(void)state;
	make_gradients();
	for (unsigned o = 0; o < TERN_OPT_COUNT; o++) {
		struct pair p;

		pair_open(&p, tern_optimizer_name(o), 11, true);
		for (uint64_t step = 1; step <= 3; step++) {
			double squares[2];

			for (int i = 0; i < 2; i++)
				assert_int_equal(tern_updater_sum(p.updaters[i],
							 p.chunks[i], sources + step, 11,
							 1.0f / 11, &squares[i]),
					0);
			assert_true(fabs(squares[0] - squares[1]) <= 1e-9 * squares[0]);
			update_both(&p, step, NULL, 1, 0.7f);
		}
		pair_close(&p);
	}
}

/* Segments with optimizers that keep no state, one vector of state, or two. */
#define SEGMENTS UPDATER_SEGMENTS

static void set_segments(struct tern_updater_segment *segments,
	const struct tern_optimizer *optimizers, unsigned optimizer_count)
{
	for (unsigned i = 0; i < SEGMENTS; i++) {
		uint64_t first = i * 11;

		segments[i] = (struct tern_updater_segment){
			.optimizer = &optimizers[i % 2 ? 0 : i / 2 % optimizer_count],
			.first = first,
			.count = i + 1 < SEGMENTS ? 11 : COUNT - first};
	}
}

static void test_segments_have_the_cpus_bits(void **state)
{
	static const char *const names[] = {"adam", "mean", "sgd", "adagrad"};
	struct tern_optimizer optimizers[TERN_ARRAY_SIZE(names)];
	struct tern_updater_segment segments[SEGMENTS];

	(void)state;
	make_gradients();
	for (size_t i = 0; i < TERN_ARRAY_SIZE(names); i++)
		tern_optimizer_parse(names[i], &optimizers[i]);
	set_segments(segments, optimizers, TERN_ARRAY_SIZE(names));
	for (unsigned count = 3; count <= 21; count += 18) {
		struct pair p;

		pair_open(&p, "sgd", count, false);
		for (int i = 0; i < 2; i++) {
			struct tern_updater_opts opts = p.chunks[i]->opts;

			tern_updater_chunk_free(p.updaters[i], p.chunks[i]);
			opts.optimizer = NULL;
			opts.segments = segments;
			opts.segment_count = SEGMENTS;
			assert_int_equal(tern_updater_chunk_new(
						 p.updaters[i], &opts, &p.chunks[i]),
				0);
		}
		for (uint64_t step = 1; step <= 3; step++)
			update_both(&p, step, sources, count, 1.0f);
		pair_close(&p);
	}
}

void updater_skip(struct updater_skips *s, const struct tern_optimizer *optimizer,
	uint64_t count, uint64_t step)
{
	s->rules[0] = s->rules[1] = *optimizer;
	for (unsigned i = 0; i < UPDATER_SEGMENTS; i++) {
		uint64_t first = i * 11;

		s->segments[i] = (struct tern_updater_segment){
			.optimizer = (i + step) % 3 ? &s->rules[i % 2] : NULL,
			.first = first,
			.count = i + 1 < UPDATER_SEGMENTS ? 11 : count - first,
			.update = step + i % 2 * 5};
	}
}

static void test_skipped_segments_have_the_cpus_bits(void **state)
{
	(void)state;
	make_gradients();
	for (unsigned two_phase = 0; two_phase < 2; two_phase++) {
		struct updater_skips skips;
		struct pair p;

		pair_open(&p, "adamw", 5, two_phase);
		for (uint64_t step = 1; step <= 5; step++) {
			double squares;

			updater_skip(&skips, &p.optimizer, COUNT, step);
			p.skips = step == 4 ? NULL : &skips;
			for (int i = 0; i < 2 && two_phase; i++)
				assert_int_equal(
					tern_updater_sum(p.updaters[i], p.chunks[i],
						sources + step, 5, 0.2f, &squares),
					0);
			update_both(&p, step, two_phase ? NULL : sources + step,
				two_phase ? 1 : 5, 0.7f);
		}
		pair_close(&p);
	}
}

static void test_chunks_of_other_sizes_share_the_room(void **state)
{
	struct pair p;
	struct tern_updater_chunk *small, *large;
	struct tern_updater_opts opts;
	static float w[4 * COUNT], g[4 * COUNT];
	const float *source = g;
	struct tern_updater_step step = {.step = 1,
		.w_in = w,
		.w_out = w,
		.gradients = &source,
		.gradient_count = 1,
		.scale = 1,
		.clip = 1};

	(void)state;
	make_gradients();
	pair_open(&p, "sgd", 2, false);
	opts = p.chunks[1]->opts;
	opts.count = 5;
	assert_int_equal(tern_updater_chunk_new(p.updaters[1], &opts, &small), 0);
	opts.count = 4 * COUNT;
	opts.gradient_count = 9;
	assert_int_equal(tern_updater_chunk_new(p.updaters[1], &opts, &large), 0);
	g[4 * COUNT - 1] = 1;
	assert_int_equal(tern_updater_update(p.updaters[1], large, &step), 0);
	assert_true(w[4 * COUNT - 1] == -p.optimizer.lr);
	assert_int_equal(tern_updater_update(p.updaters[1], small, &step), 0);
	update_both(&p, 1, sources, 2, 1.0f);
	tern_updater_chunk_free(p.updaters[1], small);
	tern_updater_chunk_free(p.updaters[1], large);
	pair_close(&p);
}

/* ---- calls of several threads ---- */

#define THREADS    12u
#define MANY_STEPS 20u
#define MANY_SLOTS 3u

/* A thread with its own chunk, in both updaters. */
struct worker {
	pthread_t thread;
	struct tern_updater *updaters[2];
	struct tern_updater_chunk *chunks[2];
	unsigned number, count;
	bool two_phase;
	float w[2][COUNT];
	double squares[2];
};

static unsigned slots_of(const struct worker *k)
{
	/* Most chunks have the same number of slots (gradients per step), so that they
	 * can share launches; chunk 0 has so many that they are added in a tree. */
	return k->number == 0 ? SLOTS_MAX : MANY_SLOTS;
}

static void one_step(struct worker *k, unsigned i, uint64_t step)
{
	unsigned slots = slots_of(k);
	const float *const *g = sources + (slots == MANY_SLOTS ? k->number : 0);
	struct tern_updater_step s = {.step = step,
		.w_in = k->w[i],
		.w_out = k->w[i],
		.gradients = g,
		.gradient_count = slots,
		.scale = 1.0f / (float)slots,
		.clip = 1};

	if (k->two_phase) {
		assert_int_equal(tern_updater_sum(k->updaters[i], k->chunks[i], g, slots,
					 s.scale, &k->squares[i]),
			0);
		s.gradients = NULL;
		s.scale = 1;
	}
	assert_int_equal(tern_updater_update(k->updaters[i], k->chunks[i], &s), 0);
}

static void *work(void *arg)
{
	struct worker *k = arg;

	for (uint64_t step = 1; step <= MANY_STEPS; step++)
		one_step(k, 1, step);
	return NULL;
}

static void worker_open(struct worker *k, const struct tern_optimizer *o)
{
	const struct tern_updater_opts opts = {.optimizer = o,
		.count = k->count,
		.gradient_count = slots_of(k),
		.two_phase = k->two_phase};

	for (int i = 0; i < 2; i++) {
		assert_int_equal(
			tern_updater_chunk_new(k->updaters[i], &opts, &k->chunks[i]), 0);
		for (unsigned j = 0; j < COUNT; j++)
			k->w[i][j] = (float)j / COUNT - 0.5f;
	}
}

static void worker_close(struct worker *k)
{
	assert_int_equal(pthread_join(k->thread, NULL), 0);
	for (uint64_t step = 1; step <= MANY_STEPS; step++)
		one_step(k, 0, step);
	assert_memory_equal(k->w[0], k->w[1], k->count * sizeof(float));
	assert_true(fabs(k->squares[0] - k->squares[1]) <= 1e-9 * k->squares[0]);
	for (int i = 0; i < 2; i++)
		tern_updater_chunk_free(k->updaters[i], k->chunks[i]);
}

static void test_threads_share_the_device(void **state)
{
	static struct worker workers[THREADS];
	struct pair p;

	(void)state;
	make_gradients();
	pair_open(&p, "adam", 1, false);
	for (unsigned i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){.number = i,
			.updaters = {p.updaters[0], p.updaters[1]},
			.count = i == 1 ? 7 : COUNT,
			.two_phase = i % 4 == 3};
		worker_open(&workers[i], &p.optimizer);
	}
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(
			pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	for (unsigned i = 0; i < THREADS; i++)
		worker_close(&workers[i]);
	pair_close(&p);
}

int updater_run_cases(CMFixtureFunction setup, CMFixtureFunction teardown)
{
	const struct CMUnitTest cases[] = {
		cmocka_unit_test_setup_teardown(
			test_updates_have_the_cpus_bits, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_so_have_updates_in_two_phases, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_segments_have_the_cpus_bits, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_skipped_segments_have_the_cpus_bits, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_chunks_of_other_sizes_share_the_room, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_threads_share_the_device, setup, teardown),
	};

	return cmocka_run_group_tests_name("cuda updater", cases, NULL, NULL);
}
