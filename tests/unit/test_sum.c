/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cmocka.h"

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "ps/sum.h"

#define SLOTS_MAX 100
#define COUNT     4500 /* more than two pieces */

static float *gradients[SLOTS_MAX];

static int make_gradients(void **state)
{
	struct tern_rng rng = {.seed = 1};

	(void)state;
	for (unsigned i = 0; i < SLOTS_MAX; i++) {
		gradients[i] = malloc(COUNT * sizeof(float));
		for (unsigned j = 0; j < COUNT; j++)
			gradients[i][j] = tern_unit_f32(tern_rng_next(&rng)) - 0.4f;
	}
	return 0;
}

static int free_gradients(void **state)
{
	(void)state;
	for (unsigned i = 0; i < SLOTS_MAX; i++)
		free(gradients[i]);
	return 0;
}

/* sum(lo, hi) of training.md, as it stands there. */
static float tree(unsigned lo, unsigned hi, unsigned j)
{
	unsigned power = 1;

	if (hi - lo == 1)
		return gradients[lo][j];
	while (power * 2 < hi - lo)
		power *= 2;
	return tree(lo, lo + power, j) + tree(lo + power, hi, j);
}

static void test_sum_is_the_tree_for_any_number_of_slots(void **state)
{
	static float got[COUNT];

	(void)state;
	for (unsigned n = 1; n <= SLOTS_MAX; n++) {
		float scale = 1.0f / (float)n;
		double squares = tern_sum_run(tern_kernels_cpu(), got,
			(const float *const *)gradients, n, scale, COUNT);
		double want = 0;

		for (unsigned j = 0; j < COUNT; j++) {
			float expected = scale * tree(0, n, j);

			assert_memory_equal(&got[j], &expected, sizeof(expected));
			want += (double)expected * (double)expected;
		}
		assert_true(squares > 0.999999 * want && squares < 1.000001 * want);
	}
}

static void test_update_uses_the_same_sum(void **state)
{
	static float sum[COUNT], two_steps[COUNT], fused[COUNT];
	struct tern_optimizer sgd;

	(void)state;
	tern_optimizer_parse("sgd", &sgd);
	for (unsigned n = 1; n <= SLOTS_MAX; n++) {
		const float *mean = sum;
		struct tern_update u = {.kernels = tern_kernels_cpu(),
			.optimizer = &sgd,
			.step = 1,
			.w_in = fused,
			.w_out = fused,
			.gradients = (const float *const *)gradients,
			.gradient_count = n,
			.scale = 1.0f / (float)n,
			.clip = 1,
			.count = COUNT};

		tern_sum_run(u.kernels, sum, u.gradients, n, u.scale, COUNT);
		tern_update_run(&u);
		u.w_in = u.w_out = two_steps;
		u.gradients = &mean;
		u.gradient_count = 1;
		u.scale = 1;
		tern_update_run(&u);
		assert_memory_equal(fused, two_steps, sizeof(fused));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sum_is_the_tree_for_any_number_of_slots),
		cmocka_unit_test(test_update_uses_the_same_sum),
	};

	return cmocka_run_group_tests(tests, make_gradients, free_gradients);
}
