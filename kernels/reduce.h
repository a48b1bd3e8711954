/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions of arrays of every element type, for the collectives (group/). The functions
 * have no state and need no table of kernels: a program that uses only the transport
 * links no library for matrix products.
 *
 * f16 and bf16 are computed in f32 and rounded once, to nearest, ties to even. Integers
 * wrap around as unsigned numbers do. Operand `a` stands left of `b` in every formula, and
 * the result depends on both operands' bits alone, so ranks that combine the same two
 * arrays in the same order get the same bytes. Sums and products have one NaN: positive,
 * quiet, without a payload.
 */
#ifndef TERN_KERNELS_REDUCE_H
#define TERN_KERNELS_REDUCE_H

#include <stddef.h>
#include <stdint.h>

#include <tern/types.h>

/* The values travel in the messages of a group and never change. */
enum tern_combine {
	TERN_COMBINE_SUM = 0,
	TERN_COMBINE_AVG = 1, /* a sum; the last step has a divisor */
	TERN_COMBINE_MIN = 2, /* NaN if one of the two is NaN */
	TERN_COMBINE_MAX = 3,
	TERN_COMBINE_PRODUCT = 4,
	/* Truth values of one byte, u8 only: any value but 0 is true; the result is 0 or
	 * 1. */
	TERN_COMBINE_OR = 5,
	TERN_COMBINE_AND = 6,
	TERN_COMBINE_COUNT
};

/* True if elements of this type can be reduced by this operator. */
bool tern_combine_works(enum tern_dtype dtype, enum tern_combine how);

/*
 * out[i] = a[i] (how) b[i]. `out` may be `a` or `b`; otherwise they do not overlap. A
 * divisor other than 0 belongs to AVG: the sum is divided by it before it is rounded, and
 * a quotient of integers is truncated towards 0.
 */
void tern_combine(enum tern_dtype dtype, enum tern_combine how, void *out, const void *a,
	const void *b, size_t count, uint32_t divisor);

/* For f16 and bf16: out[i] = in[i] as f32. */
void tern_combine_widen(enum tern_dtype dtype, float *out, const void *in, size_t count);
/* For f16 and bf16: acc[i] = acc[i] (how) in[i], in f32. */
void tern_combine_wide(enum tern_dtype dtype, enum tern_combine how, float *acc,
	const void *in, size_t count);
/* For f16 and bf16: out[i] = acc[i] / divisor (0: acc[i]), rounded. */
void tern_combine_narrow(enum tern_dtype dtype, void *out, const float *acc, size_t count,
	uint32_t divisor);

#endif
