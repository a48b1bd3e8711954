/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of bf16, computed with float arithmetic and not as the code under test does. */
#ifndef TERN_TESTS_SYSTEM_SIM_BF16_NUMBERS_H
#define TERN_TESTS_SYSTEM_SIM_BF16_NUMBERS_H

#include <math.h>
#include <stdint.h>

#include "base/util.h"

/* Distance between the values of bf16 next to x, which is not 0: their significands have 8
 * bits. */
static inline float bf16_spacing(float x)
{
	int exponent;

	frexpf(x, &exponent);
	return ldexpf(1, exponent - 8);
}

/* The value of bf16 nearest to x, which is not tiny, computed with float arithmetic. */
static inline float bf16_nearest(float x)
{
	return x == 0 ? x : rintf(x / bf16_spacing(x)) * bf16_spacing(x);
}

/* Adds to a number, whose significand in bf16 is even, so little that it is rounded to the
 * same number: less than half the spacing, or just that much. To 0 it adds numbers below all
 * of bf16. */
static inline float bf16_blur(float value, uint64_t random)
{
	static const float parts[] = {-0.25f, 0.25f, 0.499f, 0.5f, 0};

	if (value == 0)
		return random % 64 ? 0 : ldexpf(1, -134);
	return value + parts[random % TERN_ARRAY_SIZE(parts)] * bf16_spacing(value);
}

#endif
