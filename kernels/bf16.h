/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bf16: the upper half of a float32, with its exponent and 7 bits of its significand. A cast
 * to bf16 rounds to the nearest value, ties to even; NaN stays NaN, and numbers too large for
 * bf16 become infinity. A cast to float32 changes no value.
 */
#ifndef TERN_KERNELS_BF16_H
#define TERN_KERNELS_BF16_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t tern_bf16_of(float value)
{
	uint32_t u, rounded, quiet;

	memcpy(&u, &value, sizeof(u));
	rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
	/* Sets the quiet bit, so that a NaN stays a NaN when its low bits are cut off. */
	quiet = (u >> 16) | 0x40;
	return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

static inline float tern_bf16_value(uint16_t h)
{
	uint32_t u = (uint32_t)h << 16;
	float value;

	memcpy(&value, &u, sizeof(value));
	return value;
}

/* bf16.c: casts of vectors, for whoever has no table of kernels. */
void tern_bf16_narrow(uint16_t *dst, const float *src, size_t count);
void tern_bf16_widen(float *dst, const uint16_t *src, size_t count);
/* Widens `count` values that lie at the begin of `values` in place. */
void tern_bf16_widen_in_place(float *values, size_t count);

#endif
