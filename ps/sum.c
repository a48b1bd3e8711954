/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/sum.h"

#include "base/util.h"

#define PIECE 2048u /* elements: 8 KiB of each operand at a time */

struct inputs {
	const float *const *vectors;
	unsigned count;
	bool bf16; /* the vectors are bf16 */
};

/* Adds up the vectors in the order of the tree, for the `count` elements that start at
 * `at`, into dst. */
static void sum_tree(const struct tern_kernels *k, float *dst, struct inputs src,
	uint64_t at, size_t count);

/* The elements of a vector from number `at` on, as float32: where they are, or widened into
 * `room`. */
static const float *piece(const struct tern_kernels *k, float *room, const float *vector,
	bool bf16, uint64_t at, size_t count)
{
	if (!bf16)
		return vector + at;
	k->bf16_to_f32(room, (const uint16_t *)(const void *)vector + at, count);
	return room;
}

/*
 * Computes the inputs of the last addition: the sums of at most TERN_SUM_MAX subtrees,
 * with `span` gradients each; span is a power of TERN_SUM_MAX. If span is 1, the inputs
 * are the gradients themselves; otherwise they are computed into `room`.
 */
static unsigned top(const struct tern_kernels *k, const float **in, float (*room)[PIECE],
	struct inputs src, uint64_t at, size_t count)
{
	unsigned span = 1, groups = 0, n = src.count;

	while (n > span * TERN_SUM_MAX)
		span *= TERN_SUM_MAX;
	for (unsigned lo = 0; lo < n; lo += span, groups++) {
		if (span == 1) {
			in[groups] = piece(
				k, room[groups], src.vectors[lo], src.bf16, at, count);
			continue;
		}
		sum_tree(k, room[groups],
			(struct inputs){
				src.vectors + lo, TERN_MIN(span, n - lo), src.bf16},
			at, count);
		in[groups] = room[groups];
	}
	return groups;
}

static void sum_tree(const struct tern_kernels *k, float *dst, struct inputs src,
	uint64_t at, size_t count)
{
	float room[TERN_SUM_MAX][PIECE];
	const float *in[TERN_SUM_MAX];
	unsigned groups = top(k, in, room, src, at, count);

	k->sum(dst, in, groups, 1.0f, count);
}

void tern_update_run(const struct tern_update *u)
{
	float room[TERN_SUM_MAX][PIECE];
	const float *in[TERN_SUM_MAX];
	const struct inputs src = {u->gradients, u->gradient_count, u->bf16};
	const uint64_t end = u->first + u->count;

	for (uint64_t at = u->first; at < end; at += PIECE) {
		size_t n = TERN_MIN((uint64_t)PIECE, end - at);
		unsigned groups = top(u->kernels, in, room, src, at, n);

		u->kernels->update(u->optimizer, u->step, u->w_out + at, u->w_in + at,
			u->m ? u->m + at : NULL, u->v ? u->v + at : NULL, in, groups,
			u->scale, u->clip, n);
		if (u->w_bf16)
			u->kernels->f32_to_bf16(u->w_bf16 + at, u->w_out + at, n);
	}
}

double tern_sum_run(const struct tern_kernels *kernels, float *dst,
	const float *const *gradients, unsigned gradient_count, bool bf16, float scale,
	uint64_t count)
{
	float room[TERN_SUM_MAX][PIECE];
	const float *in[TERN_SUM_MAX];
	const struct inputs src = {gradients, gradient_count, bf16};
	double squares = 0;

	for (uint64_t at = 0; at < count; at += PIECE) {
		size_t n = TERN_MIN((uint64_t)PIECE, count - at);
		unsigned groups = top(kernels, in, room, src, at, n);

		kernels->sum(dst + at, in, groups, scale, n);
		squares += kernels->sum_squares(dst + at, n);
	}
	return squares;
}

void tern_sum_bf16(const struct tern_kernels *kernels, float *dst,
	const float *const *gradients, unsigned gradient_count, uint64_t count)
{
	float room[TERN_SUM_MAX][PIECE];
	const float *in[TERN_SUM_MAX];
	const struct inputs src = {gradients, gradient_count, true};

	/* From the end to the begin: a piece of dst overwrites only elements of a gradient in
	 * dst's first half that were read before. */
	for (uint64_t end = count, at; end > 0; end = at) {
		at = (end - 1) / PIECE * PIECE;
		kernels->sum(dst + at, in, top(kernels, in, room, src, at, end - at),
			1.0f, end - at);
	}
}

/* ---- folding, in the order of the gradients ---- */

uint32_t tern_sum_span(uint32_t n)
{
	uint32_t span = 1;

	while (n > (uint64_t)span * TERN_SUM_MAX)
		span *= TERN_SUM_MAX;
	return span;
}

uint32_t tern_sum_held_most(uint32_t n, uint32_t window)
{
	uint32_t top = tern_sum_span(n), most = window;

	if (window >= n)
		return n;
	for (uint32_t span = TERN_SUM_MAX; span < top; span *= TERN_SUM_MAX)
		most += TERN_SUM_MAX - 1;
	if (top > 1)
		most += (n - 1) / top;
	return TERN_MIN(n, most);
}

uint32_t tern_sum_folded_next(uint32_t n, uint32_t folded)
{
	return n - folded > TERN_SUM_MAX ? folded + TERN_SUM_MAX : n;
}

/* Index of the first gradient of the group that contains the last folded gradient. A
 * group has up to TERN_SUM_MAX inputs, each one gradient (span 1) or the sum of
 * `span`. */
static uint32_t group_start(uint32_t folded, uint32_t span)
{
	return (folded - 1) / (span * TERN_SUM_MAX) * (span * TERN_SUM_MAX);
}

/* True if a group of inputs of `span` gradients each is complete when `folded` of n
 * gradients are folded: because the group is full, or because it is the last one. */
static bool ends_group(uint32_t n, uint32_t folded, uint32_t span)
{
	return folded == n || folded % (span * TERN_SUM_MAX) == 0;
}

uint32_t tern_sum_fold_start(uint32_t n, uint32_t folded)
{
	uint32_t top = tern_sum_span(n), start = folded - 1;

	for (uint32_t span = 1; span < top && ends_group(n, folded, span);
		span *= TERN_SUM_MAX)
		start = group_start(folded, span);
	return start;
}

void tern_sum_fold(float *const *places, uint32_t n, uint32_t folded,
	void (*add)(void *arg, float *dst, const float *const *in, unsigned count,
		bool gradients),
	void *arg)
{
	uint32_t end = tern_sum_folded_next(n, folded), top = tern_sum_span(n);
	const float *in[TERN_SUM_MAX];

	for (uint32_t span = 1; span < top && ends_group(n, end, span);
		span *= TERN_SUM_MAX) {
		uint32_t start = group_start(end, span), groups = 0;

		for (uint32_t i = start; i < end; i += span)
			in[groups++] = places[i];
		if (groups > 1 || span == 1)
			add(arg, places[start], in, groups, span == 1);
	}
}
