/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots that two workers have computed. A slot of a lost worker is computed anew, also if some
 * of its chunks have reached their servers. Both computations must have the same bits. The
 * second worker says the digests of the beginnings of its chunks, and of which tensors it did
 * not push, and a server compares them with those of what it has (server/twice.c).
 */
#ifndef TERN_PS_TWICE_H
#define TERN_PS_TWICE_H

#include "base/digest.h"
#include "base/util.h"
#include "ps/plan.h"

/* A digest is that of the first bytes of a chunk's gradient, so that it costs little. */
#define TERN_TWICE_BYTES 1024u
/* Most digests of one message; those of further chunks are not said. */
#define TERN_TWICE_MAX 4096u

/* marks: those of the chunk (ps/marks.h), of `marks_bytes`; NULL: it has none. */
static inline uint64_t tern_twice_digest(const struct tern_chunk *c, const void *gradient,
	const uint8_t *marks, uint64_t marks_bytes)
{
	uint64_t bytes = c->count * (c->push_bf16 ? sizeof(uint16_t) : sizeof(float));
	uint64_t digest =
		tern_digest(gradient, TERN_MIN(bytes, (uint64_t)TERN_TWICE_BYTES));

	return marks ? digest ^ tern_digest(marks, marks_bytes) : digest;
}

#endif
