/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sum of R gradients in the fixed tree of docs/training.md, in one pass over memory
 * and fused with the update. It works piece by piece, so that data is still in the cache
 * when it is used. If R is above TERN_SUM_MAX, the tree is built from groups of
 * TERN_SUM_MAX, which are whole subtrees of it.
 *
 * If R gradients are too many to be held at once, tern_sum_fold() adds up the first ones,
 * TERN_SUM_MAX at a time; eight partial sums of a level become one of the next level.
 * Folding one group after the other holds the partial sums and TERN_SUM_MAX gradients: 9
 * in all for R = 16, 15 for 64, 23 for 1,024.
 */
#ifndef TERN_PS_SUM_H
#define TERN_PS_SUM_H

#include "kernels/kernels.h"

struct tern_update {
	const struct tern_kernels *kernels;
	const struct tern_optimizer *optimizer;
	uint64_t step;        /* counted from 1 */
	float *w_out, *m, *v; /* m, v: NULL if the optimizer has none */
	const float *w_in;
	const float *const *gradients;
	unsigned gradient_count;
	float scale, clip;
	uint64_t count; /* elements */
};

void tern_update_run(const struct tern_update *update);

/* Computes dst = scale * tree(gradients); returns the sum of squares of dst. */
double tern_sum_run(const struct tern_kernels *kernels, float *dst,
	const float *const *gradients, unsigned gradient_count, float scale,
	uint64_t count);

/* Number of gradients in each partial sum after tern_sum_fold() has folded all n.
 * There are at most TERN_SUM_MAX such sums: the inputs of the tree's top. */
uint32_t tern_sum_span(uint32_t n);

/* Largest number of gradients and partial sums held at one time, if n gradients are
 * folded in order and up to `window` that are not folded yet are held. */
uint32_t tern_sum_held_most(uint32_t n, uint32_t window);

/* Number of the n gradients that are folded after the next tern_sum_fold(). */
uint32_t tern_sum_folded_next(uint32_t n, uint32_t folded);

/* If `folded` > 0 of n gradients have been folded: the place of the last partial sum.
 * It includes all gradients from that place on, whose other places are free. */
uint32_t tern_sum_fold_start(uint32_t n, uint32_t folded);

/* Folds the next group of n gradients, of which `folded` have been folded. A sum takes
 * the place of its first gradient: places[i] is the i-th gradient, or the sum that
 * begins with it. Only places of the group and of its sums are accessed. */
void tern_sum_fold(const struct tern_kernels *kernels, float *const *places, uint32_t n,
	uint32_t folded, uint64_t count);

#endif
