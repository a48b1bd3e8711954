/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See copy.h. The stores have the same width as those of Tern (transport/memory/copy.c), and
 * four loads are done before four stores: with narrower stores, this copy, which the report
 * shows as a limit, would be slower than Tern.
 */
#include "bench/copy.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

/* A loop over blocks of four vectors; returns how many bytes it copied. */
#define COPY(NAME, TARGET, VECTOR, LOAD, STORE)                                          \
	__attribute__((target(TARGET))) static size_t NAME(                              \
		void *to, const void *from, size_t bytes)                                \
	{                                                                                \
		size_t count = bytes / sizeof(VECTOR) / 4 * 4;                           \
		const VECTOR *f = from;                                                  \
		VECTOR *t = to;                                                          \
                                                                                         \
		for (size_t i = 0; i < count; i += 4) {                                  \
			VECTOR a = LOAD(f + i), b = LOAD(f + i + 1);                     \
			VECTOR c = LOAD(f + i + 2), d = LOAD(f + i + 3);                 \
                                                                                         \
			STORE(t + i, a);                                                 \
			STORE(t + i + 1, b);                                             \
			STORE(t + i + 2, c);                                             \
			STORE(t + i + 3, d);                                             \
		}                                                                        \
		return count * sizeof(VECTOR);                                           \
	}

COPY(copy_avx512, "avx512f", __m512i, _mm512_load_si512, _mm512_stream_si512)
COPY(copy_avx2, "avx2", __m256i, _mm256_load_si256, _mm256_stream_si256)
COPY(copy_sse2, "sse2", __m128i, _mm_load_si128, _mm_stream_si128)

bool copy_around_cache(void *to, const void *from, size_t bytes)
{
	size_t done = __builtin_cpu_supports("avx512f") ? copy_avx512(to, from, bytes)
		      : __builtin_cpu_supports("avx2")  ? copy_avx2(to, from, bytes)
							: copy_sse2(to, from, bytes);

	memcpy((char *)to + done, (const char *)from + done, bytes - done);
	_mm_sfence();
	return true;
}
#else
bool copy_around_cache(void *to, const void *from, size_t bytes)
{
	(void)to, (void)from, (void)bytes;
	return false;
}
#endif
