/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the CPU's updater: segments of a chunk that have different optimizers. The
 * same for the GPU's updater is in tests/gpu/updater.c. */
#include "tests/harness/cmocka.h"

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "ps/updater.h"

#define COUNT     5000u
#define GRADIENTS 11u
#define STEPS     3u

static float gradients[GRADIENTS][COUNT], w[2][COUNT];

/* Makes STEPS steps on the elements first to first + count of w, with a chunk of its
 * own. */
static void run(struct tern_updater *u, const struct tern_updater_opts *opts, float *at,
	uint64_t first, float clip)
{
	struct tern_updater_chunk *c;
	const float *in[GRADIENTS];
	double squares;

	assert_int_equal(tern_updater_chunk_new(u, opts, &c), 0);
	for (unsigned i = 0; i < GRADIENTS; i++)
		in[i] = gradients[i] + first;
	for (uint64_t step = 1; step <= STEPS; step++) {
		const struct tern_updater_step s = {.step = step,
			.w_in = at + first,
			.w_out = at + first,
			.gradients = opts->two_phase ? NULL : in,
			.gradient_count = GRADIENTS,
			.scale = opts->two_phase ? 1 : 1.0f / GRADIENTS,
			.clip = clip};

		if (opts->two_phase)
			assert_int_equal(tern_updater_sum(u, c, in, GRADIENTS,
						 1.0f / GRADIENTS, &squares),
				0);
		assert_int_equal(tern_updater_update(u, c, &s), 0);
	}
	tern_updater_chunk_free(u, c);
}

static void make_values(void)
{
	struct tern_rng rng = {.seed = 3};

	for (unsigned i = 0; i < GRADIENTS; i++)
		for (unsigned j = 0; j < COUNT; j++)
			gradients[i][j] = tern_unit_f32(tern_rng_next(&rng)) - 0.5f;
	for (unsigned j = 0; j < COUNT; j++)
		w[0][j] = w[1][j] = tern_unit_f32(tern_rng_next(&rng)) - 0.5f;
}

static void test_segments_have_the_bits_of_chunks_of_their_own(void **state)
{
	static const struct {
		const char *name;
		uint64_t count;
	} parts[] = {{"adam", 5}, {"mean", 3}, {"sgd", 2100}, {"adam", 700},
		{"adagrad", 1}, {"rmsprop", COUNT - 2809}};
	struct tern_updater_segment segments[TERN_ARRAY_SIZE(parts)];
	struct tern_optimizer optimizers[TERN_ARRAY_SIZE(parts)];
	struct tern_updater *u;

	(void)state;
	assert_int_equal(tern_updater_cpu_new(tern_kernels_named("portable"), &u), 0);
	for (unsigned two_phase = 0; two_phase < 2; two_phase++) {
		uint64_t first = 0;
		struct tern_updater_opts opts = {.segments = segments,
			.segment_count = TERN_ARRAY_SIZE(parts),
			.count = COUNT,
			.gradient_count = GRADIENTS,
			.two_phase = two_phase};

		make_values();
		for (size_t i = 0; i < TERN_ARRAY_SIZE(parts); i++) {
			struct tern_updater_opts own = {.optimizer = &optimizers[i],
				.count = parts[i].count,
				.gradient_count = GRADIENTS,
				.two_phase = two_phase};

			tern_optimizer_parse(parts[i].name, &optimizers[i]);
			optimizers[i].weight_decay = 0.01f;
			segments[i] =
				(struct tern_updater_segment){.optimizer = &optimizers[i],
					.first = first,
					.count = parts[i].count};
			run(u, &own, w[0], first, 0.7f);
			first += parts[i].count;
		}
		assert_int_equal(first, COUNT);
		run(u, &opts, w[1], 0, 0.7f);
		assert_memory_equal(w[0], w[1], sizeof(w[0]));
	}
	tern_updater_free(u);
}

/* Elements that are skipped in the second of three steps, or in all, against chunks of their
 * own that make only the other steps. */
static void test_segments_of_a_step_may_be_skipped(void **state)
{
	static const struct {
		uint64_t count;
		unsigned skipped; /* a bit for each step */
	} parts[] = {{5, 0}, {2100, 2}, {3, 7}, {COUNT - 2108, 1}};
	struct tern_updater_segment segments[TERN_ARRAY_SIZE(parts)];
	struct tern_optimizer adam, rules[TERN_ARRAY_SIZE(parts)];
	struct tern_updater_opts opts = {
		.optimizer = &adam, .count = COUNT, .gradient_count = 1};
	const float *in = gradients[0];
	static float versions[STEPS + 1][COUNT];
	struct tern_updater_chunk *c;
	struct tern_updater *u;
	uint64_t first = 0;

	(void)state;
	make_values();
	tern_optimizer_parse("adamw", &adam);
	assert_int_equal(tern_updater_cpu_new(tern_kernels_named("portable"), &u), 0);
	assert_int_equal(tern_updater_chunk_new(u, &opts, &c), 0);
	memcpy(versions[0], w[0], sizeof(w[0]));
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(parts); i++)
		segments[i] = (struct tern_updater_segment){.count = parts[i].count};
	for (unsigned step = 0; step < STEPS; step++) {
		first = 0;
		for (unsigned i = 0; i < TERN_ARRAY_SIZE(parts); i++) {
			bool skipped = parts[i].skipped >> step & 1;

			rules[i] = adam;
			segments[i].optimizer = skipped ? NULL : &rules[i];
			segments[i].first = first;
			segments[i].update += !skipped;
			first += parts[i].count;
		}
		assert_int_equal(tern_updater_update(u, c,
					 &(struct tern_updater_step){.step = step + 1,
						 .segments = segments,
						 .segment_count = TERN_ARRAY_SIZE(parts),
						 .w_in = versions[step],
						 .w_out = versions[step + 1],
						 .gradients = &in,
						 .gradient_count = 1,
						 .scale = 1,
						 .clip = 1}),
			0);
	}
	tern_updater_chunk_free(u, c);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(parts); i++) {
		const struct tern_updater_segment *s = &segments[i];

		opts.count = s->count;
		assert_int_equal(tern_updater_chunk_new(u, &opts, &c), 0);
		in = gradients[0] + s->first;
		for (uint64_t step = 1; step <= s->update; step++)
			assert_int_equal(tern_updater_update(u, c,
						 &(struct tern_updater_step){.step = step,
							 .w_in = w[0] + s->first,
							 .w_out = w[0] + s->first,
							 .gradients = &in,
							 .gradient_count = 1,
							 .scale = 1,
							 .clip = 1}),
				0);
		tern_updater_chunk_free(u, c);
	}
	assert_memory_equal(versions[STEPS], w[0], sizeof(w[0]));
	tern_updater_free(u);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_segments_have_the_bits_of_chunks_of_their_own),
		cmocka_unit_test(test_segments_of_a_step_may_be_skipped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
