/* SPDX-License-Identifier: Apache-2.0 */
/* f16 (IEEE binary16): casts of one element, in forms that compilers vectorise. */
#ifndef TERN_KERNELS_HALF_H
#define TERN_KERNELS_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t tern_bits_of(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

static inline float tern_float_of(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

/*
 * Rounds to nearest, ties to even; NaN stays NaN, overflow becomes infinity. Numbers below
 * the smallest normal f16 are rounded by the FPU: adding 0.5 leaves the nearest multiple of
 * 2^-24 in the low bits. Larger numbers are rounded with integer operations on their bits.
 */
static inline uint16_t tern_f16_of(float value)
{
	uint32_t u = tern_bits_of(value);
	uint32_t sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;
	uint32_t normal = (a - 0x38000000 + 0xfff + ((a >> 13) & 1)) >> 13;
	uint32_t small = tern_bits_of(tern_float_of(a) + 0.5f) - 0x3f000000;
	uint32_t special = a > 0x7f800000 ? 0x7e00 | ((a >> 13) & 0x3ff) : 0x7c00;
	uint32_t h = a < 0x38800000 ? small : normal;

	h = a >= 0x477ff000 ? special : h;
	return (uint16_t)(h | sign);
}

static inline float tern_f16_value(uint16_t half)
{
	uint32_t h = half, sign = (h & 0x8000) << 16, a = h & 0x7fff;
	/* The exponent bias of the two types differs by 112. Multiplying by 2^112 also
	 * handles subnormal numbers. */
	uint32_t finite = tern_bits_of(tern_float_of(a << 13) * 0x1p112f);
	uint32_t special = 0x7f800000 | (a & 0x3ff) << 13 | (a > 0x7c00 ? 0x400000 : 0);

	return tern_float_of((a >= 0x7c00 ? special : finite) | sign);
}

#endif
