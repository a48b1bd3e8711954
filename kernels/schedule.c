/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/schedule.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#define PI 3.14159265358979323846

/*
 * cos(pi x) for x in [0, 1], within 1e-15. The functions of the math library round
 * differently on different machines (kernels/libm.c), so the Taylor series is used, for
 * an argument of at most pi / 4: the first term left out is below 3e-18. The differences
 * 1 - x and 0.5 - x are exact.
 */
static double cos_pi(double x)
{
	bool negative = x > 0.5, is_sin;
	double y, t, sum = 1;

	x = negative ? 1 - x : x;
	is_sin = x > 0.25;
	y = PI * (is_sin ? 0.5 - x : x); /* cos(pi x) = sin(pi (0.5 - x)) */
	t = y * y;
	/* 1 - t/(1*2) (1 - t/(3*4) (...)), for the sine 1 - t/(2*3) (1 - t/(4*5) (...)) */
	for (int n = 16 + is_sin; n > 1; n -= 2)
		sum = 1 - t / (double)(n * (n - 1)) * sum;
	if (is_sin)
		sum = y * sum;
	return negative ? -sum : sum;
}

/* factor^n by squaring, n below 2^40. */
static double power(double factor, uint64_t n)
{
	double result = 1;

	for (; n > 0; n /= 2) {
		if (n % 2)
			result = result * factor;
		factor = factor * factor;
	}
	return result;
}

/* A value on the way from the whole learning rate to the last one. `left` is the part of
 * the way that is left: 1 gives exactly 1, 0 exactly the last factor. */
static double between(const struct tern_schedule *s, double left)
{
	return left + s->factor * (1 - left);
}

/* x of schedule.h. */
static double progress(const struct tern_schedule *s, uint64_t t)
{
	if (t >= s->steps)
		return 1;
	return (double)(t - s->warmup) / (double)(s->steps - s->warmup);
}

/* Factor of the learning rate after the warm-up, t steps after the start. */
static double factor_at(const struct tern_schedule *s, uint64_t t)
{
	switch (s->kind) {
	case TERN_SCHEDULE_CONSTANT:
		return 1;
	case TERN_SCHEDULE_STEP:
		return power(s->factor, t / s->steps);
	case TERN_SCHEDULE_LINEAR:
		return between(s, 1 - progress(s, t));
	case TERN_SCHEDULE_COSINE:
		return between(s, (1 + cos_pi(progress(s, t))) / 2);
	}
	return 1;
}

float tern_schedule_lr(const struct tern_schedule *s, float lr, uint64_t step)
{
	double factor = step <= s->warmup ? (double)step / (double)s->warmup
					  : factor_at(s, step - 1);

	return (float)((double)lr * factor);
}

const char *tern_schedule_wrong(const struct tern_schedule *s)
{
	bool is_constant = s->kind == TERN_SCHEDULE_CONSTANT;
	bool is_step = s->kind == TERN_SCHEDULE_STEP;

	if (s->warmup > TERN_SCHEDULE_STEPS_MAX)
		return "warmup: expected at most 2^40";
	if (is_constant)
		return s->steps == 0 && s->factor == 0
			       ? NULL
			       : "steps, factor: expected 0 for a constant schedule";
	if (s->steps < 1 || s->steps > TERN_SCHEDULE_STEPS_MAX)
		return "steps: expected 1 to 2^40";
	if (!(s->factor >= 0 && s->factor <= 1) || (is_step && s->factor == 0))
		return is_step ? "factor: expected more than 0, at most 1"
			       : "factor: expected 0 to 1";
	return NULL;
}

const char *tern_schedule_name(enum tern_schedule_kind kind)
{
	static const char *const names[] = {"constant", "step", "linear", "cosine"};

	return names[kind];
}
