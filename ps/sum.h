/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sum of R gradients in the fixed tree of training.md, in one pass over memory, and
 * the update fused to it: piece by piece, so that what is read is still in the cache when
 * it is used. For R above TERN_SUM_MAX the tree is built from groups of TERN_SUM_MAX,
 * which are whole subtrees of it.
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

#endif
