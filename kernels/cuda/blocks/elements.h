/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations on one element: the tree of additions of gradients, and the casts (the
 * update rules are in kernels/rules.h). They do the same operations in the same order as
 * the CPU's tables (elementwise.c) and so give the same bits; only the payload of a NaN
 * that arithmetic produced may differ.
 */
#ifndef TERN_KERNELS_CUDA_BLOCKS_ELEMENTS_H
#define TERN_KERNELS_CUDA_BLOCKS_ELEMENTS_H

#include "kernels/cuda/blocks/block.h"
#include "kernels/rules.h"

/*
 * Adds x[0..n), n at most 8, in place, in the order of the tree of docs/training.md: in
 * each round x[i] and x[i + step] are already sums of `step` inputs (the last of them of
 * fewer, if no more are there). If the compiler knows n, only the additions remain.
 */
TERN_BODY float tern_element_tree(float *x, unsigned n)
{
	TERN_UNROLL
	for (unsigned step = 1; step < 8; step *= 2) {
		TERN_UNROLL
		for (unsigned i = 0; i + step < 8; i += 2 * step)
			if (i + step < n)
				x[i] += x[i + step];
	}
	return x[0];
}

/* Casts: kernels/elementwise.c explains them. The GPU's own conversions are not used,
 * because they give every NaN the same payload. */
TERN_BODY uint16_t tern_element_bf16(float f)
{
	uint32_t u = tern_bits_of(f);
	uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
	uint32_t quiet = (u >> 16) | 0x40;

	return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

TERN_BODY float tern_element_of_bf16(uint16_t h)
{
	return tern_float_of((uint32_t)h << 16);
}

TERN_BODY uint16_t tern_element_f16(float f)
{
	uint32_t u = tern_bits_of(f);
	uint32_t sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;
	uint32_t normal = (a - 0x38000000 + 0xfff + ((a >> 13) & 1)) >> 13;
	uint32_t small = tern_bits_of(tern_float_of(a) + 0.5f) - 0x3f000000;
	uint32_t special = a > 0x7f800000 ? 0x7e00 | ((a >> 13) & 0x3ff) : 0x7c00;
	uint32_t h = a < 0x38800000 ? small : normal;

	h = a >= 0x477ff000 ? special : h;
	return (uint16_t)(h | sign);
}

TERN_BODY float tern_element_of_f16(uint16_t half)
{
	uint32_t h = half, sign = (h & 0x8000) << 16, a = h & 0x7fff;
	uint32_t finite = tern_bits_of(tern_float_of(a << 13) * 0x1p112f);
	uint32_t special = 0x7f800000 | (a & 0x3ff) << 13 | (a > 0x7c00 ? 0x400000 : 0);

	return tern_float_of((a >= 0x7c00 ? special : finite) | sign);
}

#endif
