/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sum of R gradients in the fixed tree of training.md, in one pass over memory, and
 * the update fused to it: piece by piece, so that what is read is still in the cache when
 * it is used. For R above TERN_SUM_MAX the tree is built from groups of TERN_SUM_MAX,
 * which are whole subtrees of it.
 *
 * Where R gradients are too many to be held at once, tern_sum_fold() adds up those that
 * come first, TERN_SUM_MAX at a time; eight partial sums of a level become one of the
 * next. Folding one group after the other holds the partial sums and TERN_SUM_MAX
 * gradients: 9 in all for R = 16, 15 for 64, 23 for 1,024.
 */
#ifndef TERN_PS_SUM_H
#define TERN_PS_SUM_H

#include "kernels/kernels.h"

struct tern_update {
	const struct tern_kernels *kernels;
	const struct tern_optimizer *optimizer;
	uint64_t step;        /* from 1 */
	float *w_out, *m, *v; /* m, v: NULL where the optimizer keeps none */
	const float *w_in;
	const float *const *gradients;
	unsigned gradient_count;
	float scale, clip;
	uint64_t count; /* elements */
};

void tern_update_run(const struct tern_update *update);

/* dst = scale * tree(gradients); returns the sum of squares of dst. */
double tern_sum_run(const struct tern_kernels *kernels, float *dst,
	const float *const *gradients, unsigned gradient_count, float scale,
	uint64_t count);

/* How many gradients each partial sum holds once tern_sum_fold() has folded all n. There are
 * at most TERN_SUM_MAX such sums: the inputs of the tree's top. */
uint32_t tern_sum_span(uint32_t n);

/* The most gradients and partial sums at one time, while n are folded in their order and
 * up to `window` that are not folded yet are held. */
uint32_t tern_sum_held_most(uint32_t n, uint32_t window);

/* How many of n are folded after the next tern_sum_fold(). */
uint32_t tern_sum_folded_next(uint32_t n, uint32_t folded);

/* Of n, `folded` have been folded: the last sum is in the place of this one, and includes
 * all from it on, whose places are free. folded > 0. */
uint32_t tern_sum_fold_start(uint32_t n, uint32_t folded);

/* Of n gradients, of which `folded` have been folded, folds the next group. A sum takes
 * the place of its first gradient: places[i] is the i-th gradient, or the sum that begins
 * with it. Others than those of the group and of these sums are not touched. */
void tern_sum_fold(const struct tern_kernels *kernels, float *const *places, uint32_t n,
	uint32_t folded, uint64_t count);

#endif
