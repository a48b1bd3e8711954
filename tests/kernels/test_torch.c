/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the update rules and schedules with torch.optim: torch_table.h has what torch
 * computes in float64 from the parameters and gradients below. Tern computes in float32,
 * and rounds each result of a few steps by about 1e-7 of its size; a wrong formula
 * differs by far more, since the steps are large.
 */
#include "tests/harness/cmocka.h"

#include <math.h>
#include <stdbool.h>

#include "base/util.h"
#include "kernels/kernels.h"
#include "tests/kernels/torch_table.h"

/* Largest difference: absolute, as parameters are below 4. */
#define TOLERANCE 2e-6

/* parameters() and gradients() of torch_table.py. */
static void parameters(float *w)
{
	for (unsigned j = 0; j < TORCH_ELEMENTS; j++)
		w[j] = (float)((int)(j * 37 % 64) - 32) / 16;
}

static void gradients(unsigned step, float *g)
{
	for (unsigned j = 0; j < TORCH_ELEMENTS; j++)
		g[j] = (float)((int)((step * step * 7 + j * 29) % 64) - 32) / 64;
	g[TORCH_ELEMENTS - 1] = 0;
}

static struct tern_optimizer optimizer_of(size_t i)
{
	struct tern_optimizer o;

	assert_int_equal(tern_optimizer_parse(torch_cases[i].rule, &o), 0);
	o.lr = torch_cases[i].lr;
	o.momentum = torch_cases[i].momentum;
	o.beta1 = torch_cases[i].beta1;
	o.beta2 = torch_cases[i].beta2;
	o.epsilon = torch_cases[i].epsilon;
	o.weight_decay = torch_cases[i].weight_decay;
	o.initial_accumulator = torch_cases[i].initial_accumulator;
	return o;
}

static void check(const struct tern_kernels *k, size_t i)
{
	const struct tern_optimizer o = optimizer_of(i);
	float w[TORCH_ELEMENTS], m[TORCH_ELEMENTS] = {0}, v[TORCH_ELEMENTS],
				 g[TORCH_ELEMENTS];
	const float *in[] = {g};

	parameters(w);
	for (unsigned j = 0; j < TORCH_ELEMENTS; j++)
		v[j] = o.initial_accumulator;
	for (unsigned step = 1; step <= TORCH_STEPS; step++) {
		const double *wanted = torch_cases[i].w[step - 1];

		gradients(step, g);
		k->update(&o, step, w, w, tern_optimizer_has_m(o.kind) ? m : NULL,
			tern_optimizer_has_v(o.kind) ? v : NULL, in, 1, 1, 1,
			TORCH_ELEMENTS);
		for (unsigned j = 0; j < TORCH_ELEMENTS; j++)
			if (!(fabs((double)w[j] - wanted[j]) <= TOLERANCE))
				fail_msg("%s, case %zu, step %u, element %u: %.9g, torch "
					 "has %.9g",
					torch_cases[i].rule, i, step, j, (double)w[j],
					wanted[j]);
	}
}

static void test_rules_do_what_torch_does(void **state)
{
	static const char *const names[] = {"avx512", "avx2", "portable"};

	(void)state;
	for (size_t t = 0; t < TERN_ARRAY_SIZE(names); t++) {
		const struct tern_kernels *k = tern_kernels_named(names[t]);

		for (size_t i = 0; k && i < TERN_ARRAY_SIZE(torch_cases); i++)
			check(k, i);
	}
}

static void test_defaults_are_those_of_torch(void **state)
{
	unsigned compared = 0;

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(torch_cases); i++) {
		const struct tern_optimizer theirs = optimizer_of(i);
		struct tern_optimizer ours;

		if (!torch_cases[i].defaults)
			continue;
		assert_int_equal(tern_optimizer_parse(torch_cases[i].rule, &ours), 0);
		assert_true(ours.lr == theirs.lr && ours.momentum == theirs.momentum);
		assert_true(ours.beta1 == theirs.beta1 && ours.beta2 == theirs.beta2);
		assert_true(ours.epsilon == theirs.epsilon);
		assert_true(ours.weight_decay == theirs.weight_decay);
		compared++;
	}
	assert_int_equal(compared, 3);
}

static void test_all_rules_for_models_are_compared(void **state)
{
	unsigned seen = 0;

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(torch_cases); i++)
		seen |= 1u << optimizer_of(i).kind;
	for (unsigned kind = 0; kind < TERN_OPT_COUNT; kind++)
		assert_int_equal(seen >> kind & 1, tern_optimizer_is_for_models(kind));
}

static void test_schedules_are_those_of_torch(void **state)
{
	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(torch_schedules); i++) {
		const struct tern_schedule *s = &torch_schedules[i].schedule;

		for (unsigned j = 0; j < TORCH_RATES; j++) {
			double got = (double)tern_schedule_lr(s, 1, s->warmup + 1 + j);

			/* Tern rounds to float. */
			if (!(fabs(got - torch_schedules[i].lr[j]) <= 0x1p-25))
				fail_msg("schedule %zu, step %u after the warm-up: %.9g, "
					 "torch has %.9g",
					i, j + 1, got, torch_schedules[i].lr[j]);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rules_do_what_torch_does),
		cmocka_unit_test(test_defaults_are_those_of_torch),
		cmocka_unit_test(test_all_rules_for_models_are_compared),
		cmocka_unit_test(test_schedules_are_those_of_torch),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
