/* SPDX-License-Identifier: Apache-2.0 */
/* Casts for workers, which have no table of kernels (kernels.h): that needs a library for
 * matrix products. The loops are compiled for AVX2, too, where that makes them faster. */
#include "kernels/bf16.h"

#include "base/util.h"

#define PIECE 2048u /* elements */

static inline __attribute__((always_inline)) void narrow_all(
	uint16_t *dst, const float *src, size_t count)
{
	for (size_t i = 0; i < count; i++)
		dst[i] = tern_bf16_of(src[i]);
}

static inline __attribute__((always_inline)) void widen_all(
	float *dst, const uint16_t *src, size_t count)
{
	for (size_t i = 0; i < count; i++)
		dst[i] = tern_bf16_value(src[i]);
}

#if defined(__x86_64__)

static __attribute__((target("avx2"))) void narrow_avx2(
	uint16_t *dst, const float *src, size_t count)
{
	narrow_all(dst, src, count);
}

static __attribute__((target("avx2"))) void widen_avx2(
	float *dst, const uint16_t *src, size_t count)
{
	widen_all(dst, src, count);
}

void tern_bf16_narrow(uint16_t *dst, const float *src, size_t count)
{
	if (__builtin_cpu_supports("avx2"))
		narrow_avx2(dst, src, count);
	else
		narrow_all(dst, src, count);
}

void tern_bf16_widen(float *dst, const uint16_t *src, size_t count)
{
	if (__builtin_cpu_supports("avx2"))
		widen_avx2(dst, src, count);
	else
		widen_all(dst, src, count);
}

#else

void tern_bf16_narrow(uint16_t *dst, const float *src, size_t count)
{
	narrow_all(dst, src, count);
}

void tern_bf16_widen(float *dst, const uint16_t *src, size_t count)
{
	widen_all(dst, src, count);
}

#endif

void tern_bf16_widen_in_place(float *values, size_t count)
{
	uint16_t piece[PIECE];

	/* From the end to the begin: a piece overwrites only what was widened before. */
	for (size_t end = count, at; end > 0; end = at) {
		at = (end - 1) / PIECE * PIECE;
		memcpy(piece, (const uint16_t *)(const void *)values + at,
			(end - at) * sizeof(*piece));
		tern_bf16_widen(values + at, piece, end - at);
	}
}
