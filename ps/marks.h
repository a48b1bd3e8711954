/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Marks: which tensors of a chunk were not pushed in a slot. If all were pushed, as usual,
 * a worker sends no marks. Otherwise it sends them in a message of their own, with the same
 * step as the gradient, and the gradient's shape says so: it has two dimensions in place of
 * one, the first of which is 1. The elements of a marked tensor are sent, as zeros.
 *
 * A slot that is left out of its step (--on-nan skip, server/omit.c) sends zeros with the marks
 * of all tensors. The shape of its gradient has three dimensions, the first two of which are 1.
 *
 * The marks of a chunk are one bit for each tensor that has elements in it, in the order of
 * the job: bit i % 8 of byte i / 8 for the i-th of them. So the marks of a whole gradient
 * have at most one bit for each tensor, and two for one that lies in two chunks.
 */
#ifndef TERN_PS_MARKS_H
#define TERN_PS_MARKS_H

#include <tern/types.h>

#include "ps/job.h"
#include "ps/plan.h"

struct tern_marks_span { /* tensors of a job, by number */
	uint32_t first, count;
};

/* The tensors that have elements in the chunk. */
struct tern_marks_span tern_marks_span(
	const struct tern_ps_job *job, const struct tern_chunk *chunk);

/* Size of the marks of `count` tensors. */
static inline uint64_t tern_marks_bytes(uint32_t count)
{
	return (count + 7ull) / 8;
}

static inline bool tern_marks_has(const uint8_t *marks, uint32_t i)
{
	return marks[i / 8] >> i % 8 & 1;
}

static inline void tern_marks_add(uint8_t *marks, uint32_t i)
{
	marks[i / 8] |= (uint8_t)(1u << i % 8);
}

/* The shape of a gradient that comes with marks; `plain`, of one dimension, is that of one
 * that does not. */
struct tern_shape tern_marks_shape(const struct tern_shape *plain);

/* The shape of a gradient of a slot that is left out; `plain` as above. */
struct tern_shape tern_marks_omitted_shape(const struct tern_shape *plain);

/* True if a gradient of this shape comes with marks. */
bool tern_marks_follow(const struct tern_shape *shape);

/* True if a gradient of this shape, which comes with marks, is that of a slot that is left out. */
bool tern_marks_omitted(const struct tern_shape *shape);

#endif
