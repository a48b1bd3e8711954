/* SPDX-License-Identifier: Apache-2.0 */
/* A copy whose stores bypass the cache (non-temporal stores): the fastest way for a core
 * to copy large tensors. */
#ifndef TERN_BENCH_COPY_H
#define TERN_BENCH_COPY_H

#include <stdbool.h>
#include <stddef.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Copies `bytes`. False: not implemented for this processor. Both addresses must be
 * multiples of 16, and `bytes` a multiple of 64. */
static inline bool copy_around_cache(void *to, const void *from, size_t bytes)
{
#ifdef __SSE2__
	__m128i *t = to;
	const __m128i *f = from;

	for (size_t i = 0; i < bytes / 16; i += 4) {
		__m128i a = _mm_load_si128(f + i), b = _mm_load_si128(f + i + 1);
		__m128i c = _mm_load_si128(f + i + 2), d = _mm_load_si128(f + i + 3);

		_mm_stream_si128(t + i, a);
		_mm_stream_si128(t + i + 1, b);
		_mm_stream_si128(t + i + 2, c);
		_mm_stream_si128(t + i + 3, d);
	}
	_mm_sfence();
	return true;
#else
	(void)to, (void)from, (void)bytes;
	return false;
#endif
}

#endif
