/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See reduce.h. Each pair of type and operator is a plain loop that the compiler
 * vectorises. The whole switch is compiled twice on x86-64, for every processor and for
 * AVX2. Each element takes the same IEEE operations in both, so their results have the same
 * bits.
 */
#include "kernels/reduce.h"

#include "base/util.h"
#include "kernels/bf16.h"
#include "kernels/half.h"

#define INLINE static inline __attribute__((always_inline))

/* The iterations of the next loop do not depend on each other through memory: `out` is one
 * of the inputs, or overlaps none. */
#ifdef __clang__
/* With a sanitizer clang cannot vectorise some of the loops, and would warn. */
#pragma clang diagnostic ignored "-Wpass-failed"
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

bool tern_combine_works(enum tern_dtype dtype, enum tern_combine how)
{
	if (tern_dtype_bytes(dtype) == 0 || (unsigned)how >= TERN_COMBINE_COUNT)
		return false;
	return (how != TERN_COMBINE_OR && how != TERN_COMBINE_AND) || dtype == TERN_U8;
}

#define LOOP(T, expr)                                                                    \
	do {                                                                             \
		INDEPENDENT for (size_t i = 0; i < count; i++)                           \
		{                                                                        \
			T x = a[i], y = b[i];                                            \
			out[i] = (expr);                                                 \
		}                                                                        \
	} while (0)

/* Which of two NaNs their sum is, and the sign of a new NaN, depend on the compiler and the
 * processor. So that results do not, sums and products have one NaN. */
INLINE float one_nan_float(float x)
{
	return x == x ? x : __builtin_nanf("");
}

INLINE double one_nan_double(double x)
{
	return x == x ? x : __builtin_nan("");
}

/* A NaN is neither smaller nor larger than anything, so it is asked for first. */
#define FLOATS(T)                                                                        \
	INLINE void combine_##T(enum tern_combine how, T *out, const T *a, const T *b,   \
		size_t count, uint32_t divisor)                                          \
	{                                                                                \
		T d = (T)divisor;                                                        \
		switch (how) {                                                           \
		case TERN_COMBINE_SUM:                                                   \
		case TERN_COMBINE_AVG:                                                   \
			if (divisor)                                                     \
				LOOP(T, one_nan_##T((x + y) / d));                       \
			else                                                             \
				LOOP(T, one_nan_##T(x + y));                             \
			break;                                                           \
		case TERN_COMBINE_MIN:                                                   \
			LOOP(T, x != x || x < y ? x : y);                                \
			break;                                                           \
		case TERN_COMBINE_MAX:                                                   \
			LOOP(T, x != x || x > y ? x : y);                                \
			break;                                                           \
		case TERN_COMBINE_PRODUCT:                                               \
			LOOP(T, one_nan_##T(x *y));                                      \
			break;                                                           \
		case TERN_COMBINE_OR:                                                    \
		case TERN_COMBINE_AND:                                                   \
		case TERN_COMBINE_COUNT:                                                 \
			tern_never("an operator of truth values on floats");             \
		}                                                                        \
	}

/* W is an unsigned type of at least 32 bits, in which sums and products wrap around. D has
 * the divisor with the sign of T. */
#define INTEGERS(T, W, D)                                                                \
	INLINE void combine_##T(enum tern_combine how, T *out, const T *a, const T *b,   \
		size_t count, uint32_t divisor)                                          \
	{                                                                                \
		D d = (D)divisor;                                                        \
		switch (how) {                                                           \
		case TERN_COMBINE_SUM:                                                   \
		case TERN_COMBINE_AVG:                                                   \
			if (divisor)                                                     \
				LOOP(T, (T)((D)(T)((W)x + (W)y) / d));                   \
			else                                                             \
				LOOP(T, (T)((W)x + (W)y));                               \
			break;                                                           \
		case TERN_COMBINE_MIN:                                                   \
			LOOP(T, x < y ? x : y);                                          \
			break;                                                           \
		case TERN_COMBINE_MAX:                                                   \
			LOOP(T, x > y ? x : y);                                          \
			break;                                                           \
		case TERN_COMBINE_PRODUCT:                                               \
			LOOP(T, (T)((W)x * (W)y));                                       \
			break;                                                           \
		case TERN_COMBINE_OR:                                                    \
			LOOP(T, (T)((x != 0) | (y != 0)));                               \
			break;                                                           \
		case TERN_COMBINE_AND:                                                   \
			LOOP(T, (T)((x != 0) & (y != 0)));                               \
			break;                                                           \
		case TERN_COMBINE_COUNT:                                                 \
			tern_never("no operator");                                       \
		}                                                                        \
	}

FLOATS(float)
FLOATS(double)
INTEGERS(uint8_t, uint32_t, uint64_t)
INTEGERS(int8_t, uint32_t, int64_t)
INTEGERS(uint16_t, uint32_t, uint64_t)
INTEGERS(int16_t, uint32_t, int64_t)
INTEGERS(uint32_t, uint32_t, uint64_t)
INTEGERS(int32_t, uint32_t, int64_t)
INTEGERS(uint64_t, uint64_t, uint64_t)
INTEGERS(int64_t, uint64_t, int64_t)

/* ---- f16 and bf16 ---- */

#define PIECE 512u /* elements that are computed in f32 at a time, on the stack */

INLINE void widen(enum tern_dtype dtype, float *out, const uint16_t *in, size_t count)
{
	if (dtype == TERN_F16)
		for (size_t i = 0; i < count; i++)
			out[i] = tern_f16_value(in[i]);
	else
		for (size_t i = 0; i < count; i++)
			out[i] = tern_bf16_value(in[i]);
}

INLINE void narrow(enum tern_dtype dtype, uint16_t *out, const float *in, size_t count)
{
	if (dtype == TERN_F16)
		for (size_t i = 0; i < count; i++)
			out[i] = tern_f16_of(in[i]);
	else
		for (size_t i = 0; i < count; i++)
			out[i] = tern_bf16_of(in[i]);
}

INLINE void combine_halves(enum tern_dtype dtype, enum tern_combine how, uint16_t *out,
	const uint16_t *a, const uint16_t *b, size_t count, uint32_t divisor)
{
	float x[PIECE], y[PIECE];

	for (size_t i = 0, n; i < count; i += n) {
		n = TERN_MIN(count - i, (size_t)PIECE);
		widen(dtype, x, a + i, n);
		widen(dtype, y, b + i, n);
		combine_float(how, x, x, y, n, divisor);
		narrow(dtype, out + i, x, n);
	}
}

INLINE void combine_wide(enum tern_dtype dtype, enum tern_combine how, float *acc,
	const uint16_t *in, size_t count)
{
	float y[PIECE];

	for (size_t i = 0, n; i < count; i += n) {
		n = TERN_MIN(count - i, (size_t)PIECE);
		widen(dtype, y, in + i, n);
		combine_float(how, acc + i, acc + i, y, n, 0);
	}
}

INLINE void narrow_divided(enum tern_dtype dtype, uint16_t *out, const float *acc,
	size_t count, uint32_t divisor)
{
	float x[PIECE], d = (float)(divisor ? divisor : 1);

	for (size_t i = 0, n; i < count; i += n) {
		n = TERN_MIN(count - i, (size_t)PIECE);
		for (size_t k = 0; k < n; k++)
			x[k] = acc[i + k] / d;
		narrow(dtype, out + i, x, n);
	}
}

/* ---- the switch over the types ---- */

INLINE void combine_any(enum tern_dtype dtype, enum tern_combine how, void *out,
	const void *a, const void *b, size_t n, uint32_t divisor)
{
	switch (dtype) {
	case TERN_U8:
		return combine_uint8_t(how, out, a, b, n, divisor);
	case TERN_I8:
		return combine_int8_t(how, out, a, b, n, divisor);
	case TERN_U16:
		return combine_uint16_t(how, out, a, b, n, divisor);
	case TERN_I16:
		return combine_int16_t(how, out, a, b, n, divisor);
	case TERN_U32:
		return combine_uint32_t(how, out, a, b, n, divisor);
	case TERN_I32:
		return combine_int32_t(how, out, a, b, n, divisor);
	case TERN_U64:
		return combine_uint64_t(how, out, a, b, n, divisor);
	case TERN_I64:
		return combine_int64_t(how, out, a, b, n, divisor);
	case TERN_F16:
		return combine_halves(TERN_F16, how, out, a, b, n, divisor);
	case TERN_BF16:
		return combine_halves(TERN_BF16, how, out, a, b, n, divisor);
	case TERN_F32:
		return combine_float(how, out, a, b, n, divisor);
	case TERN_F64:
		return combine_double(how, out, a, b, n, divisor);
	case TERN_DTYPE_NONE:
	case TERN_DTYPE_COUNT:
		tern_never("no element type");
	}
}

/* Defines the public functions for one set of vector instructions. */
#define VARIANT(name, attributes)                                                        \
	attributes static void combine_##name(enum tern_dtype dtype,                     \
		enum tern_combine how, void *out, const void *a, const void *b,          \
		size_t count, uint32_t divisor)                                          \
	{                                                                                \
		combine_any(dtype, how, out, a, b, count, divisor);                      \
	}                                                                                \
	attributes static void widen_##name(                                             \
		enum tern_dtype dtype, float *out, const void *in, size_t count)         \
	{                                                                                \
		widen(dtype, out, in, count);                                            \
	}                                                                                \
	attributes static void wide_##name(enum tern_dtype dtype, enum tern_combine how, \
		float *acc, const void *in, size_t count)                                \
	{                                                                                \
		combine_wide(dtype, how, acc, in, count);                                \
	}                                                                                \
	attributes static void narrow_##name(enum tern_dtype dtype, void *out,           \
		const float *acc, size_t count, uint32_t divisor)                        \
	{                                                                                \
		narrow_divided(dtype, out, acc, count, divisor);                         \
	}

VARIANT(plain, )
#if defined(__x86_64__)
VARIANT(avx2, __attribute__((target("avx2"))))
#define CALL(name, ...)                                                                  \
	(__builtin_cpu_supports("avx2") ? name##_avx2(__VA_ARGS__)                       \
					: name##_plain(__VA_ARGS__))
#else
#define CALL(name, ...) name##_plain(__VA_ARGS__)
#endif

void tern_combine(enum tern_dtype dtype, enum tern_combine how, void *out, const void *a,
	const void *b, size_t count, uint32_t divisor)
{
	CALL(combine, dtype, how, out, a, b, count, divisor);
}

void tern_combine_widen(enum tern_dtype dtype, float *out, const void *in, size_t count)
{
	CALL(widen, dtype, out, in, count);
}

void tern_combine_wide(enum tern_dtype dtype, enum tern_combine how, float *acc,
	const void *in, size_t count)
{
	CALL(wide, dtype, how, acc, in, count);
}

void tern_combine_narrow(enum tern_dtype dtype, void *out, const float *acc, size_t count,
	uint32_t divisor)
{
	CALL(narrow, dtype, out, acc, count, divisor);
}
