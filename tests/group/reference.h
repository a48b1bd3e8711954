/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions computed one element at a time, as a reference for kernels/reduce.c and the
 * collectives. */
#ifndef TERN_TESTS_GROUP_REFERENCE_H
#define TERN_TESTS_GROUP_REFERENCE_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/reduce.h"

/* Writes element i of the reduction of in[0..n), from the left to the right. f16 and bf16
 * are computed in f32 and rounded once. */
void reference_fold(enum tern_dtype dtype, enum tern_combine how, unsigned n,
	const void *const *in, size_t i, void *out);

/* Fills `count` elements. Integers have any bits; floats are small whole numbers (in `any`:
 * any finite numbers), so that sums and products of eight of them are exact in every
 * order. */
void reference_fill(
	enum tern_dtype dtype, void *to, size_t count, uint64_t seed, bool any);

#endif
