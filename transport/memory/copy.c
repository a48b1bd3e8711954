/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of large tensors bypass the cache with non-temporal stores, on x86-64 processors
 * with AVX2 or AVX-512; on others they are ordinary copies. A copy through the cache
 * would first read every line that it is about to overwrite, and would evict data that
 * the CPU needs next. The processor does not order non-temporal stores with other stores,
 * so a fence follows them in each copy: a flag that is stored after the copy becomes
 * visible after the copied bytes.
 */
#include "transport/memory/copy.h"

#include <stdint.h>
#include <string.h>

#include "base/util.h"
#include "transport/memory/mem.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* Number of bytes, at most `bytes`, until `dst` is aligned to a cache line. */
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
