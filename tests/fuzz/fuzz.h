/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that the fuzz targets share: they read the input as a sequence of small
 * numbers. */
#ifndef TERN_TESTS_FUZZ_FUZZ_H
#define TERN_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The fuzz target, called by libFuzzer with each input. It fails by a crash, a
 * sanitizer's report, or a timeout. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Called by libFuzzer once before that, with the arguments of main(), if a target has it. */
int LLVMFuzzerInitialize(int *argc, char ***argv);

struct fuzz {
	const uint8_t *data;
	size_t bytes;
};

/* Takes the next `bytes` bytes of the input as a little-endian number; zeros after the
 * input's end. */
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

/* Flags that a message made from the input may have (see rendezvous/wire.h). Not NAME,
 * since the encoder would need a name; nor WIDE, since the encoder sets it. */
#define FUZZ_FLAGS                                                                       \
	(TERN_FLAG_REGION | TERN_FLAG_REPLY | TERN_FLAG_RECV | TERN_FLAG_STARVED |       \
		TERN_FLAG_RAIL | TERN_FLAG_MISSED)

/* Returns a copy of the data in memory of exactly `bytes` bytes, so that a sanitizer
 * notices a read beyond the end. The caller frees it. */
void *fuzz_copy(const void *data, size_t bytes);

#endif
