/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/sum.h"

#include "base/util.h"

#define PIECE 2048u /* elements: 8 KiB of each operand at a time */

/* tree(lo..lo+n) of the pieces that start at `at`, into dst. */
static void sum_tree(const struct tern_kernels *k, float *dst, const float *const *src,
	unsigned n, uint64_t at, size_t count);

/*
 * The inputs of the tree's top: at most TERN_SUM_MAX subtrees of `span` leaves each, with
 * span a power of TERN_SUM_MAX. Those of one leaf are read where they are, the others
 * from `room`.
 */
static unsigned top(const struct tern_kernels *k, const float **in, float (*room)[PIECE],
	const float *const *src, unsigned n, uint64_t at, size_t count)
{
	unsigned span = 1, groups = 0;

	while (n > span * TERN_SUM_MAX)
		span *= TERN_SUM_MAX;
	for (unsigned lo = 0; lo < n; lo += span, groups++) {
		if (span == 1) {
			in[groups] = src[lo] + at;
			continue;
		}
		sum_tree(k, room[groups], src + lo, TERN_MIN(span, n - lo), at, count);
		in[groups] = room[groups];
	}
	return groups;
}

static void sum_tree(const struct tern_kernels *k, float *dst, const float *const *src,
	unsigned n, uint64_t at, size_t count)
{
	float room[TERN_SUM_MAX][PIECE];
	const float *in[TERN_SUM_MAX];
	unsigned groups = top(k, in, room, src, n, at, count);

	k->sum(dst, in, groups, 1.0f, count);
}

void tern_update_run(const struct tern_update *u)
{
	float room[TERN_SUM_MAX][PIECE];
	const float *in[TERN_SUM_MAX];

	for (uint64_t at = 0; at < u->count; at += PIECE) {
		size_t n = TERN_MIN((uint64_t)PIECE, u->count - at);
		unsigned groups =
			top(u->kernels, in, room, u->gradients, u->gradient_count, at, n);

		u->kernels->update(u->optimizer, u->step, u->w_out + at, u->w_in + at,
			u->m ? u->m + at : NULL, u->v ? u->v + at : NULL, in, groups,
			u->scale, u->clip, n);
	}
}

double tern_sum_run(const struct tern_kernels *kernels, float *dst,
	const float *const *gradients, unsigned gradient_count, float scale,
	uint64_t count)
{
	float room[TERN_SUM_MAX][PIECE];
	const float *in[TERN_SUM_MAX];
	double squares = 0;

	for (uint64_t at = 0; at < count; at += PIECE) {
		size_t n = TERN_MIN((uint64_t)PIECE, count - at);
		unsigned groups =
			top(kernels, in, room, gradients, gradient_count, at, n);

		kernels->sum(dst + at, in, groups, scale, n);
		squares += kernels->sum_squares(dst + at, n);
	}
	return squares;
}
