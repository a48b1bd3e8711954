/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/updater.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"

#define COUNT     3001u /* elements of a chunk, not a multiple of any block size */
#define SLOTS_MAX 70u

const struct tern_cuda_api *updater_api;

static const char *const optimizers[] = {"sgd", "momentum", "adagrad", "adam"};

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

/* Both updaters side by side: 0 is the CPU's. */
struct pair {
	struct tern_optimizer optimizer;
	struct tern_updater *updaters[2];
	struct tern_updater_chunk *chunks[2];
	float w[2][2][COUNT]; /* by parity of the version */
};

static void pair_open(
	struct pair *p, const char *optimizer, unsigned slots, bool two_phase)
{
	char why[400];
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
			.clip = clip};

		assert_int_equal(
			tern_updater_update(p->updaters[i], p->chunks[i], &s), 0);
	}
	assert_memory_equal(p->w[0][to], p->w[1][to], sizeof(p->w[0][to]));
	assert_memory_not_equal(p->w[0][to], p->w[0][from], sizeof(p->w[0][to]));
}

static void test_updates_have_the_cpus_bits(void **state)
{
	static const unsigned counts[] = {1, 2, 3, 8, 9, 21, 64, 65, SLOTS_MAX};

	(void)state;
	make_gradients();
	for (size_t o = 0; o < TERN_ARRAY_SIZE(optimizers); o++)
		for (size_t i = 0; i < TERN_ARRAY_SIZE(counts); i++) {
			struct pair p;

			pair_open(&p, optimizers[o], counts[i], false);
			for (uint64_t step = 1; step <= 3; step++)
				update_both(&p, step, sources, counts[i], 1.0f);
			pair_close(&p);
		}
}

static void test_so_have_updates_in_two_phases(void **state)
{
	(void)state;
	make_gradients();
	for (size_t o = 0; o < TERN_ARRAY_SIZE(optimizers); o++) {
		struct pair p;

		pair_open(&p, optimizers[o], 11, true);
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

int updater_run_cases(CMFixtureFunction setup, CMFixtureFunction teardown)
{
	const struct CMUnitTest cases[] = {
		cmocka_unit_test_setup_teardown(
			test_updates_have_the_cpus_bits, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_so_have_updates_in_two_phases, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_chunks_of_other_sizes_share_the_room, setup, teardown),
	};

	return cmocka_run_group_tests_name("cuda updater", cases, NULL, NULL);
}
