/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adds up R gradients in a fixed order of additions (the tree of docs/training.md), and
 * applies the optimizer in the same pass over memory. The pass works piece by piece, so
 * that data is still in the cache when it is used. If R is above TERN_SUM_MAX, the tree
 * is built from groups of TERN_SUM_MAX, which are whole subtrees of it. Gradients of bf16
 * are widened to float32 piece by piece in the same pass, and added up as these.
 *
 * If a server receives fewer than R gradients at a time (a window, set_window() in
 * server/shard.c), tern_sum_fold() adds them up into partial sums as they arrive,
 * TERN_SUM_MAX at a time ("folding"); TERN_SUM_MAX (8) partial sums of a level become one
 * of the next level. Then memory holds only the partial sums and the gradients of the
 * window. With a window of 8 these are 9 vectors in all for R = 16, 15 for 64, 23 for
 * 1,024.
 */
#ifndef TERN_PS_SUM_H
#define TERN_PS_SUM_H

#include <stdbool.h>

#include "kernels/kernels.h"

struct tern_update {
	const struct tern_kernels *kernels;
	const struct tern_optimizer *optimizer;
	uint64_t step;        /* counted from 1 */
	float *w_out, *m, *v; /* m, v: NULL if the optimizer has none */
	const float *w_in;
	const float *const *gradients;
	unsigned gradient_count;
	bool bf16; /* the gradients are bf16, in place of float32 */
	float scale, clip;
	uint64_t first, count; /* the elements to update */
	/* If not NULL: w_out rounded to bf16 is also written here, by the same numbers of
	 * elements. */
	uint16_t *w_bf16;
};

void tern_update_run(const struct tern_update *update);

/* Adds up the gradients in the order of the tree, and writes scale times their sum to
 * dst. `bf16`: they are bf16. Returns the sum of squares of dst. */
double tern_sum_run(const struct tern_kernels *kernels, float *dst,
	const float *const *gradients, unsigned gradient_count, bool bf16, float scale,
	uint64_t count);

/* Adds up at most TERN_SUM_MAX gradients of bf16, as float32, into dst. One of them may lie
 * in the first half of dst. */
void tern_sum_bf16(const struct tern_kernels *kernels, float *dst,
	const float *const *gradients, unsigned gradient_count, uint64_t count);

/* Number of gradients in each partial sum (the last one may have fewer) when
 * tern_sum_fold() has folded all n gradients. At most TERN_SUM_MAX such sums are left. */
uint32_t tern_sum_span(uint32_t n);

/* Largest number of gradients and partial sums in memory at one time, if n gradients are
 * folded in order, and up to `window` of them are in memory before they are folded. */
uint32_t tern_sum_held_most(uint32_t n, uint32_t window);

/* Returns how many of n gradients are folded after the next tern_sum_fold(), if `folded`
 * are before. */
uint32_t tern_sum_folded_next(uint32_t n, uint32_t folded);

/* Returns the index in places[] of the last partial sum, when `folded` > 0 of n gradients
 * are folded. That sum contains the gradients from its index to folded - 1; the places
 * of these gradients, except the first, are free again. */
uint32_t tern_sum_fold_start(uint32_t n, uint32_t folded);

/* The first `folded` of n gradients are folded already: folds the next TERN_SUM_MAX (or
 * those that are left). A partial sum replaces its first gradient: places[i] is gradient
 * i, or the partial sum that begins with it. Only the places of this group and of the
 * sums that it completes are accessed, and only by calling `add`, which computes dst =
 * sum of in[0..count), where dst is in[0]. `gradients`: these are gradients, and no sums;
 * then `add` is called for a single one as well, so that it can change its type. */
void tern_sum_fold(float *const *places, uint32_t n, uint32_t folded,
	void (*add)(void *arg, float *dst, const float *const *in, unsigned count,
		bool gradients),
	void *arg);

#endif
