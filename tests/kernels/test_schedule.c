/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the schedules of the learning rate, against values computed by hand, and
 * against the math library. test_torch.c compares them with torch. */
#include "tests/harness/cmocka.h"

#include <math.h>
#include <string.h>

#include "base/util.h"
#include "kernels/kernels.h"
#include "kernels/variants.h"

#define MOST TERN_SCHEDULE_STEPS_MAX

static void assert_lr(enum tern_schedule_kind kind, uint64_t warmup, uint64_t steps,
	double factor, uint64_t step, float wanted)
{
	const struct tern_schedule s = {kind, warmup, steps, factor};
	float got = tern_schedule_lr(&s, 1, step);

	if (memcmp(&got, &wanted, sizeof(got)) != 0)
		fail_msg("%s, warm-up %llu, steps %llu, factor %g: step %llu has %.9g, "
			 "not %.9g",
			tern_schedule_name(kind), (unsigned long long)warmup,
			(unsigned long long)steps, factor, (unsigned long long)step,
			(double)got, (double)wanted);
}

static void test_nothing_given_leaves_every_bit(void **state)
{
	const struct tern_schedule none = {0};
	static const float rates[] = {0.1f, 1.0f / 3, 1e-38f, 1e30f, -0.5f, 0};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(rates); i++) {
		float first = tern_schedule_lr(&none, rates[i], 1);
		float last = tern_schedule_lr(&none, rates[i], UINT64_MAX);

		assert_memory_equal(&first, &rates[i], sizeof(first));
		assert_memory_equal(&last, &rates[i], sizeof(last));
	}
}

static void test_warmup_rises_to_the_whole_rate(void **state)
{
	(void)state;
	assert_lr(TERN_SCHEDULE_CONSTANT, 4, 0, 0, 1, 0.25f);
	assert_lr(TERN_SCHEDULE_CONSTANT, 4, 0, 0, 3, 0.75f);
	assert_lr(TERN_SCHEDULE_CONSTANT, 4, 0, 0, 4, 1);
	assert_lr(TERN_SCHEDULE_CONSTANT, 4, 0, 0, 5, 1);
	assert_lr(TERN_SCHEDULE_CONSTANT, 1, 0, 0, 1, 1);
	assert_lr(TERN_SCHEDULE_CONSTANT, 3, 0, 0, 1, 1.0f / 3);
	assert_lr(TERN_SCHEDULE_CONSTANT, MOST, 0, 0, MOST / 2, 0.5f);
}

static void test_step_multiplies_every_so_many_steps(void **state)
{
	(void)state;
	assert_lr(TERN_SCHEDULE_STEP, 0, 10, 0.5, 1, 1);
	assert_lr(TERN_SCHEDULE_STEP, 0, 10, 0.5, 10, 1);
	assert_lr(TERN_SCHEDULE_STEP, 0, 10, 0.5, 11, 0.5f);
	assert_lr(TERN_SCHEDULE_STEP, 0, 10, 0.5, 41, 0.0625f);
	assert_lr(TERN_SCHEDULE_STEP, 0, 1, 0.1, 4, 0.001f);
	assert_lr(TERN_SCHEDULE_STEP, 0, 10, 1, 12345, 1);
	/* The warm-up does not move the changes. */
	assert_lr(TERN_SCHEDULE_STEP, 15, 10, 0.5, 15, 1);
	assert_lr(TERN_SCHEDULE_STEP, 15, 10, 0.5, 16, 0.5f);
	assert_lr(TERN_SCHEDULE_STEP, 15, 10, 0.5, 21, 0.25f);
	/* So many steps leave nothing. */
	assert_lr(TERN_SCHEDULE_STEP, 0, 1, 0.5, MOST, 0);
}

static void test_linear_falls_to_the_end(void **state)
{
	(void)state;
	assert_lr(TERN_SCHEDULE_LINEAR, 0, 4, 0, 1, 1);
	assert_lr(TERN_SCHEDULE_LINEAR, 0, 4, 0, 2, 0.75f);
	assert_lr(TERN_SCHEDULE_LINEAR, 0, 4, 0, 4, 0.25f);
	assert_lr(TERN_SCHEDULE_LINEAR, 0, 4, 0, 5, 0);
	assert_lr(TERN_SCHEDULE_LINEAR, 0, 4, 0, MOST, 0);
	assert_lr(TERN_SCHEDULE_LINEAR, 0, 4, 0.5, 3, 0.75f);
	assert_lr(TERN_SCHEDULE_LINEAR, 0, 4, 0.1, 5, 0.1f);
	assert_lr(TERN_SCHEDULE_LINEAR, 0, 4, 1, 3, 1);
	/* 2 steps of warm-up, then 4 to the end. */
	assert_lr(TERN_SCHEDULE_LINEAR, 2, 6, 0, 1, 0.5f);
	assert_lr(TERN_SCHEDULE_LINEAR, 2, 6, 0, 2, 1);
	assert_lr(TERN_SCHEDULE_LINEAR, 2, 6, 0, 3, 1);
	assert_lr(TERN_SCHEDULE_LINEAR, 2, 6, 0, 4, 0.75f);
	assert_lr(TERN_SCHEDULE_LINEAR, 2, 6, 0, 7, 0);
}

static void test_cosine_falls_to_the_end(void **state)
{
	/* cos(pi / 4) = sqrt(1 / 2), cos(pi / 3) = 1 / 2 */
	const float at_quarter = (float)((1 + sqrt(0.5)) / 2);

	(void)state;
	assert_lr(TERN_SCHEDULE_COSINE, 0, 4, 0, 1, 1);
	assert_lr(TERN_SCHEDULE_COSINE, 0, 4, 0, 2, at_quarter);
	assert_lr(TERN_SCHEDULE_COSINE, 0, 4, 0, 3, 0.5f);
	assert_lr(TERN_SCHEDULE_COSINE, 0, 4, 0, 4, (float)((1 - sqrt(0.5)) / 2));
	assert_lr(TERN_SCHEDULE_COSINE, 0, 4, 0, 5, 0);
	assert_lr(TERN_SCHEDULE_COSINE, 0, 4, 0, 9, 0); /* it does not rise again */
	assert_lr(TERN_SCHEDULE_COSINE, 0, 3, 0, 2, 0.75f);
	assert_lr(TERN_SCHEDULE_COSINE, 0, 3, 0, 3, 0.25f);
	assert_lr(TERN_SCHEDULE_COSINE, 0, 4, 0.5, 3, 0.75f);
	assert_lr(TERN_SCHEDULE_COSINE, 0, 4, 0.1, 5, 0.1f);
	assert_lr(TERN_SCHEDULE_COSINE, 10, 14, 0, 11, 1);
	assert_lr(TERN_SCHEDULE_COSINE, 10, 14, 0, 12, at_quarter);
	assert_lr(TERN_SCHEDULE_COSINE, 0, MOST, 0, MOST / 2 + 1, 0.5f);
}

static void test_a_warmup_may_be_longer_than_the_rest(void **state)
{
	static const enum tern_schedule_kind kinds[] = {
		TERN_SCHEDULE_LINEAR, TERN_SCHEDULE_COSINE};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(kinds); i++) {
		assert_lr(kinds[i], 8, 4, 0.25, 6, 0.75f);
		assert_lr(kinds[i], 8, 4, 0.25, 8, 1);
		assert_lr(kinds[i], 8, 4, 0.25, 9, 0.25f);
		assert_lr(kinds[i], 8, 8, 0.25, 8, 1);
		assert_lr(kinds[i], 8, 8, 0.25, 9, 0.25f);
		assert_lr(kinds[i], 0, 1, 0.25, 1, 1);
		assert_lr(kinds[i], 0, 1, 0.25, 2, 0.25f);
	}
}

/* Near the end the learning rate is small, and its error is relative to 1. */
static void test_cosine_is_close_to_the_math_library(void **state)
{
	const double pi = 3.14159265358979323846;
	float before = 1;

	(void)state;
	for (uint64_t step = 1; step <= 10001; step++) {
		const struct tern_schedule s = {TERN_SCHEDULE_COSINE, 0, 10000, 0};
		float got = tern_schedule_lr(&s, 1, step);
		double wanted = (1 + cos(pi * (double)(step - 1) / 10000)) / 2;

		assert_true(fabs((double)got - wanted) <= 0x1p-24 * wanted + 1e-15);
		assert_true(got <= before);
		before = got;
	}
}

static void test_wrong_options_are_named(void **state)
{
	static const struct {
		struct tern_schedule s;
		const char *word; /* NULL: right */
	} cases[] = {
		{{TERN_SCHEDULE_CONSTANT, 0, 0, 0}, NULL},
		{{TERN_SCHEDULE_CONSTANT, MOST, 0, 0}, NULL},
		{{TERN_SCHEDULE_CONSTANT, MOST + 1, 0, 0}, "warmup"},
		{{TERN_SCHEDULE_CONSTANT, 0, 1, 0}, "steps"},
		{{TERN_SCHEDULE_CONSTANT, 0, 0, 0.5}, "factor"},
		{{TERN_SCHEDULE_STEP, 0, 1, 1}, NULL},
		{{TERN_SCHEDULE_STEP, 0, 0, 0.5}, "steps"},
		{{TERN_SCHEDULE_STEP, 0, 1, 0}, "factor"},
		{{TERN_SCHEDULE_LINEAR, 9, 1, 0}, NULL},
		{{TERN_SCHEDULE_LINEAR, 0, 0, 0}, "steps"},
		{{TERN_SCHEDULE_LINEAR, 0, MOST + 1, 0}, "steps"},
		{{TERN_SCHEDULE_LINEAR, 0, 1, 1.5}, "factor"},
		{{TERN_SCHEDULE_COSINE, 0, MOST, 1}, NULL},
		{{TERN_SCHEDULE_COSINE, 0, 0, 0}, "steps"},
		{{TERN_SCHEDULE_COSINE, 0, 1, -0.5}, "factor"},
		{{TERN_SCHEDULE_COSINE, 0, 1, (double)NAN}, "factor"},
	};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(cases); i++) {
		const char *wrong = tern_schedule_wrong(&cases[i].s);

		assert_int_equal(!wrong, !cases[i].word);
		if (wrong)
			assert_non_null(strstr(wrong, cases[i].word));
	}
}

static void test_updates_use_the_schedule(void **state)
{
	struct tern_optimizer o;

	(void)state;
	assert_int_equal(tern_optimizer_parse("adamw", &o), 0);
	o.schedule = (struct tern_schedule){TERN_SCHEDULE_LINEAR, 2, 6, 0};
	for (uint64_t step = 1; step <= 8; step++) {
		struct tern_scalars c = tern_scalars_of(&o, step, 1);

		assert_true(c.lr == tern_schedule_lr(&o.schedule, o.lr, step));
		assert_true(c.lr_decay == c.lr * o.weight_decay);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nothing_given_leaves_every_bit),
		cmocka_unit_test(test_warmup_rises_to_the_whole_rate),
		cmocka_unit_test(test_step_multiplies_every_so_many_steps),
		cmocka_unit_test(test_linear_falls_to_the_end),
		cmocka_unit_test(test_cosine_falls_to_the_end),
		cmocka_unit_test(test_a_warmup_may_be_longer_than_the_rest),
		cmocka_unit_test(test_cosine_is_close_to_the_math_library),
		cmocka_unit_test(test_wrong_options_are_named),
		cmocka_unit_test(test_updates_use_the_schedule),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
