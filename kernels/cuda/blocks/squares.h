/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sum of squares in float64, in two passes, as functions of one block: see block.h.
 * The bits of the sum depend on the order of its additions, and so on the size of a quad,
 * which must be four elements here; the bits of element-by-element kernels do not.
 */
#ifndef TERN_KERNELS_CUDA_BLOCKS_SQUARES_H
#define TERN_KERNELS_CUDA_BLOCKS_SQUARES_H

#include "kernels/cuda/blocks/block.h"

#define TERN_REDUCE_THREADS 256u
#define TERN_PARTIALS_MAX   1024u

/* Adds up part[0..threads): each round adds the upper half to the lower half. `threads`
 * is a power of two. The sum is then in part[0]. */
#define TERN_ADD_HALVES(part, threads)                                                   \
	for (unsigned half = (threads) / 2; half > 0; half /= 2) {                       \
		TERN_EACH (t, threads)                                                   \
			if (t < half)                                                    \
				(part)[t] += (part)[t + half];                           \
		TERN_BARRIER();                                                          \
	}

/*
 * The first pass of a sum of squares: block b adds the squares of elements b * per_block
 * and following into partials[b]. The division into blocks depends on count alone, and
 * thread t takes quads t, t + 256, ... of its block for any alignment of x, so the bits
 * are a function of the elements.
 */
struct tern_cuda_squares {
	double *partials;
	const float *x;
	uint64_t count, per_block; /* per_block is a multiple of 4 */
	uint32_t quads;            /* x is aligned to 16 bytes, so quads can be loaded */
};

TERN_BODY struct tern_quad tern_squares_get(const struct tern_cuda_squares *a, uint64_t e)
{
	struct tern_quad q;

	if (a->quads && e + 4 <= a->count)
		return tern_quad_get(a->x + e);
	TERN_UNROLL
	for (unsigned k = 0; k < 4; k++)
		q.at[k] = e + k < a->count ? a->x[e + k] : 0.0f;
	return q;
}

TERN_BODY void tern_block_squares(const struct tern_cuda_squares *a, uint64_t block)
{
	TERN_SHARED double part[TERN_REDUCE_THREADS];
	uint64_t first = block * a->per_block, after = first + a->per_block;

	if (after > a->count)
		after = a->count;
	TERN_EACH (t, TERN_REDUCE_THREADS) {
		double sum[4] = {0};

		for (uint64_t e = first + 4u * t; e < after;
			e += 4 * TERN_REDUCE_THREADS) {
			struct tern_quad q = tern_squares_get(a, e);

			TERN_UNROLL
			for (unsigned k = 0; k < 4; k++)
				sum[k] += (double)q.at[k] * (double)q.at[k];
		}
		part[t] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
	}
	TERN_BARRIER();
	TERN_ADD_HALVES(part, TERN_REDUCE_THREADS)
	TERN_EACH (t, TERN_REDUCE_THREADS)
		if (t == 0)
			a->partials[block] = part[0];
}

/* The second pass of a sum of squares, in one block: *out = the sum of
 * partials[0..count). */
struct tern_cuda_total {
	double *out;
	const double *partials;
	uint64_t count;
};

TERN_BODY void tern_block_total(const struct tern_cuda_total *a, uint64_t block)
{
	TERN_SHARED double part[TERN_REDUCE_THREADS];

	(void)block;
	TERN_EACH (t, TERN_REDUCE_THREADS) {
		part[t] = 0;
		for (uint64_t i = t; i < a->count; i += TERN_REDUCE_THREADS)
			part[t] += a->partials[i];
	}
	TERN_BARRIER();
	TERN_ADD_HALVES(part, TERN_REDUCE_THREADS)
	TERN_EACH (t, TERN_REDUCE_THREADS)
		if (t == 0)
			*a->out = part[0];
}

#endif
