/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that the fuzz targets share: the input as a stream of small choices. */
#ifndef TERN_TESTS_FUZZ_FUZZ_H
#define TERN_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* libFuzzer calls this with each input. A finding is a crash, a sanitizer's report, or
 * a timeout. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct fuzz {
	const uint8_t *data;
	size_t bytes;
};

/* Takes the next `bytes` of the input, little-endian; zeros after its end. */
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

/* Flags of made-up messages (rendezvous/wire.h). Not NAME, since the encoder would
 * need a name. Not WIDE, which the encoder sets. */
#define FUZZ_FLAGS                                                                       \
	(TERN_FLAG_REGION | TERN_FLAG_REPLY | TERN_FLAG_RECV | TERN_FLAG_STARVED |       \
		TERN_FLAG_RAIL | TERN_FLAG_MISSED)

/* A copy in memory of exactly that size, so that a read beyond it is seen. The caller
 * frees it. */
void *fuzz_copy(const void *data, size_t bytes);

#endif
