/* SPDX-License-Identifier: Apache-2.0 */
/* What fuzz targets share: the input as a stream of small choices. */
#ifndef TERN_TESTS_FUZZ_FUZZ_H
#define TERN_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* libFuzzer calls it with each input. A finding is a crash, a sanitizer's report, or
 * time. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct fuzz {
	const uint8_t *data;
	size_t bytes;
};

/* The next `bytes` of the input, little-endian; zeros behind its end. */
static inline uint64_t fuzz_take(struct fuzz *f, size_t bytes)
{
	uint64_t value = 0;

	for (size_t i = 0; i < bytes && f->bytes; i++, f->bytes--)
		value |= (uint64_t)*f->data++ << (8 * i);
	return value;
}

static inline unsigned fuzz_below(struct fuzz *f, unsigned limit)
{
	return (unsigned)(fuzz_take(f, 1) % limit);
}

/* Of made-up messages (rendezvous/wire.h). Not NAME: the encoder would want one. Not
 * WIDE: it sets that itself. */
#define FUZZ_FLAGS                                                                       \
	(TERN_FLAG_REGION | TERN_FLAG_REPLY | TERN_FLAG_RECV | TERN_FLAG_STARVED |       \
		TERN_FLAG_RAIL | TERN_FLAG_MISSED)

/* A copy of exactly that size, so that a read behind it is seen. Freed by the caller. */
void *fuzz_copy(const void *data, size_t bytes);

#endif
