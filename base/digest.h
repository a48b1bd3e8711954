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
#include <sys/uio.h>

uint64_t tern_digest(const void *data, size_t bytes);

/* The digest of all parts, one after the other, and their number of bytes. */
uint64_t tern_digest_parts(const struct iovec *parts, int count, uint64_t *bytes);

/* Copies `bytes` bytes, and returns the digest of the copy. Each block is copied and then
 * read while it is in the processor's first cache, so memory is gone through once. */
uint64_t tern_digest_copy(void *to, const void *from, size_t bytes);

#endif
