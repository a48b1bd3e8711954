/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copying a large tensor through the cache costs a read of every line that is about to be
 * overwritten, and throws out what the CPU would have used next. So large copies go
 * around it with non-temporal stores. Those are not ordered by the processor's usual
 * rules: each copy ends with a fence, so that a flag stored after it is seen after its
 * bytes.
 */
#include "transport/copy.h"

#include <stdint.h>
#include <string.h>

#include "base/util.h"
#include "transport/mem.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* Bytes until `dst` stands on a cache line, at most `bytes`. */
static size_t head_bytes(const void *dst, size_t bytes)
{
	return TERN_MIN((size_t)(-(uintptr_t)dst & 63), bytes);
}

static bool has_avx512(void)
{
	return __builtin_cpu_supports("avx512f");
}

__attribute__((target("avx512f"))) static void copy_avx512(
	void *dst, const void *src, size_t bytes)
{
	size_t head = head_bytes(dst, bytes);
	char *to = (char *)dst + head;
	const char *from = (const char *)src + head;
	size_t body = (bytes - head) & ~(size_t)255;

	memcpy(dst, src, head);
	for (size_t i = 0; i < body; i += 256) {
		__m512i a = _mm512_loadu_si512(from + i);
		__m512i b = _mm512_loadu_si512(from + i + 64);
		__m512i c = _mm512_loadu_si512(from + i + 128);
		__m512i d = _mm512_loadu_si512(from + i + 192);

		_mm512_stream_si512((void *)(to + i), a);
		_mm512_stream_si512((void *)(to + i + 64), b);
		_mm512_stream_si512((void *)(to + i + 128), c);
		_mm512_stream_si512((void *)(to + i + 192), d);
	}
	_mm_sfence();
	memcpy(to + body, from + body, bytes - head - body);
}

static bool has_avx2(void)
{
	return __builtin_cpu_supports("avx2");
}

__attribute__((target("avx2"))) static void copy_avx2(
	void *dst, const void *src, size_t bytes)
{
	size_t head = head_bytes(dst, bytes);
	char *to = (char *)dst + head;
	const char *from = (const char *)src + head;
	size_t body = (bytes - head) & ~(size_t)127;

	memcpy(dst, src, head);
	for (size_t i = 0; i < body; i += 128) {
		__m256i a = _mm256_loadu_si256((const void *)(from + i));
		__m256i b = _mm256_loadu_si256((const void *)(from + i + 32));
		__m256i c = _mm256_loadu_si256((const void *)(from + i + 64));
		__m256i d = _mm256_loadu_si256((const void *)(from + i + 96));

		_mm256_stream_si256((void *)(to + i), a);
		_mm256_stream_si256((void *)(to + i + 32), b);
		_mm256_stream_si256((void *)(to + i + 64), c);
		_mm256_stream_si256((void *)(to + i + 96), d);
	}
	_mm_sfence();
	memcpy(to + body, from + body, bytes - head - body);
}
#endif

static bool always(void)
{
	return true;
}

static void copy_portable(void *dst, const void *src, size_t bytes)
{
	memcpy(dst, src, bytes);
}

const struct tern_copy_way tern_copy_ways[] = {
#if defined(__x86_64__)
	{"avx512", has_avx512, copy_avx512},
	{"avx2", has_avx2, copy_avx2},
#endif
	{"portable", always, copy_portable},
	{NULL, NULL, NULL},
};

void tern_copy(void *dst, const void *src, size_t bytes, size_t whole)
{
	const struct tern_copy_way *way = tern_copy_ways;

	if (whole < TERN_COPY_STREAM_BYTES) {
		memcpy(dst, src, bytes);
		return;
	}
	while (!way->supported())
		way++;
	way->copy(dst, src, bytes);
}
