/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A digest of 64 bits of a run of bytes: XXH64 by Yann Collet, with the seed 0. Bytes that
 * differ have different digests but for a chance of about 2^-64. It is no protection
 * against somebody who looks for two runs with the same digest.
 */
#ifndef TERN_BASE_DIGEST_H
#define TERN_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

uint64_t tern_digest(const void *data, size_t bytes);

/* The digest of bytes that come piece by piece: begin, add any number of times, end. */
struct tern_digest_stream {
	uint64_t lanes[4], bytes; /* bytes: all that were added */
	char held[32];            /* the bytes behind the last whole stripe */
};
void tern_digest_begin(struct tern_digest_stream *stream);
void tern_digest_add(struct tern_digest_stream *stream, const void *data, size_t bytes);
uint64_t tern_digest_end(const struct tern_digest_stream *stream);

/* Copies `bytes` bytes, and returns the digest of the copy. Each block is copied and then
 * read while it is in the processor's first cache, so memory is gone through once. */
uint64_t tern_digest_copy(void *to, const void *from, size_t bytes);

#endif
