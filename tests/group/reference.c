/* SPDX-License-Identifier: Apache-2.0 */
/* See reference.h. Nothing here is vectorised or cut into pieces. */
#include "tests/group/reference.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "kernels/bf16.h"
#include "kernels/half.h"

/* W is unsigned: it wraps around. Q has the sign of T, for quotients. */
#define FOLD_INTEGERS(T, W, Q)                                                           \
	static T fold_##T(                                                               \
		enum tern_combine how, unsigned n, const void *const *in, size_t i)      \
	{                                                                                \
		T x = ((const T *)in[0])[i];                                             \
		if (how == TERN_COMBINE_OR || how == TERN_COMBINE_AND)                   \
			x = x != 0;                                                      \
		for (unsigned k = 1; k < n; k++) {                                       \
			T y = ((const T *)in[k])[i];                                     \
			if (how == TERN_COMBINE_MIN)                                     \
				x = y < x ? y : x;                                       \
			else if (how == TERN_COMBINE_MAX)                                \
				x = y > x ? y : x;                                       \
			else if (how == TERN_COMBINE_PRODUCT)                            \
				x = (T)((W)x * (W)y);                                    \
			else if (how == TERN_COMBINE_OR)                                 \
				x = x || y;                                              \
			else if (how == TERN_COMBINE_AND)                                \
				x = x && y;                                              \
			else                                                             \
				x = (T)((W)x + (W)y);                                    \
		}                                                                        \
		return how == TERN_COMBINE_AVG ? (T)(x / (Q)n) : x;                      \
	}

FOLD_INTEGERS(uint8_t, uint64_t, uint64_t)
FOLD_INTEGERS(int8_t, uint64_t, int64_t)
FOLD_INTEGERS(uint16_t, uint64_t, uint64_t)
FOLD_INTEGERS(int16_t, uint64_t, int64_t)
FOLD_INTEGERS(uint32_t, uint64_t, uint64_t)
FOLD_INTEGERS(int32_t, uint64_t, int64_t)
FOLD_INTEGERS(uint64_t, uint64_t, uint64_t)
FOLD_INTEGERS(int64_t, uint64_t, int64_t)

#define FOLD_FLOATS(T)                                                                   \
	static T step_##T(enum tern_combine how, T x, T y)                               \
	{                                                                                \
		if (how == TERN_COMBINE_PRODUCT)                                         \
			return x * y;                                                    \
		if (how != TERN_COMBINE_MIN && how != TERN_COMBINE_MAX)                  \
			return x + y;                                                    \
		if (isnan(x) || isnan(y))                                                \
			return (T)NAN;                                                   \
		if (how == TERN_COMBINE_MIN)                                             \
			return x < y ? x : y;                                            \
		return x > y ? x : y;                                                    \
	}

FOLD_FLOATS(float)
FOLD_FLOATS(double)

static float load(enum tern_dtype dtype, const void *from, size_t i)
{
	if (dtype == TERN_F32)
		return ((const float *)from)[i];
	return dtype == TERN_F16 ? tern_f16_value(((const uint16_t *)from)[i])
				 : tern_bf16_value(((const uint16_t *)from)[i]);
}

static void store(enum tern_dtype dtype, void *to, size_t i, float x)
{
	if (dtype == TERN_F32)
		((float *)to)[i] = x;
	else if (dtype == TERN_F16)
		((uint16_t *)to)[i] = tern_f16_of(x);
	else
		((uint16_t *)to)[i] = tern_bf16_of(x);
}

static void fold_floats(enum tern_dtype dtype, enum tern_combine how, unsigned n,
	const void *const *in, size_t i, void *out)
{
	float x = load(dtype, in[0], i);

	for (unsigned k = 1; k < n; k++)
		x = step_float(how, x, load(dtype, in[k], i));
	store(dtype, out, 0, how == TERN_COMBINE_AVG ? x / (float)n : x);
}

static void fold_doubles(
	enum tern_combine how, unsigned n, const void *const *in, size_t i, double *out)
{
	double x = ((const double *)in[0])[i];

	for (unsigned k = 1; k < n; k++)
		x = step_double(how, x, ((const double *)in[k])[i]);
	*out = how == TERN_COMBINE_AVG ? x / n : x;
}

#define INTEGER(T)                                                                       \
	{                                                                                \
		T x = fold_##T(how, n, in, i);                                           \
		memcpy(out, &x, sizeof(x));                                              \
		return;                                                                  \
	}

void reference_fold(enum tern_dtype dtype, enum tern_combine how, unsigned n,
	const void *const *in, size_t i, void *out)
{
	switch (dtype) {
	case TERN_U8:
		INTEGER(uint8_t)
	case TERN_I8:
		INTEGER(int8_t)
	case TERN_U16:
		INTEGER(uint16_t)
	case TERN_I16:
		INTEGER(int16_t)
	case TERN_U32:
		INTEGER(uint32_t)
	case TERN_I32:
		INTEGER(int32_t)
	case TERN_U64:
		INTEGER(uint64_t)
	case TERN_I64:
		INTEGER(int64_t)
	case TERN_F16:
	case TERN_BF16:
	case TERN_F32:
		return fold_floats(dtype, how, n, in, i, out);
	case TERN_F64:
		return fold_doubles(how, n, in, i, out);
	case TERN_DTYPE_NONE:
	case TERN_DTYPE_COUNT:
		tern_never("no element type");
	}
}

static double any_number(uint64_t bits, bool any)
{
	if (!any)
		return (double)(bits % 5) - 2;
	return ((double)(bits >> 40) - 8e6) * 1e-3;
}

void reference_fill(
	enum tern_dtype dtype, void *to, size_t count, uint64_t seed, bool any)
{
	size_t bytes = tern_dtype_bytes(dtype);

	for (size_t i = 0; i < count; i++) {
		uint64_t bits = tern_rng_at(seed, dtype, i, 0);
		double number = any_number(bits, any);

		if (dtype == TERN_F64)
			((double *)to)[i] = number;
		else if (dtype == TERN_F16 || dtype == TERN_BF16 || dtype == TERN_F32)
			store(dtype, to, i, (float)number);
		else
			memcpy((char *)to + i * bytes, &bits, bytes);
	}
}
