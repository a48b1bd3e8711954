/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element-by-element kernels, and the sum of squares. This file is compiled once for each
 * vector width (see meson.build; TERN_WIDTH names it). The loops are plain C that the
 * compiler vectorises. Every operation on an element is one IEEE operation with its own
 * rounding, and no two are fused. So the bits of an element depend neither on the vector
 * width nor on the element's position in the array.
 */
#include <math.h>
#include <string.h>

#include "kernels/bf16.h"
#include "kernels/half.h"
#include "kernels/variants.h"

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)
#define NAME(name)   PASTE(name##_, TERN_WIDTH)

/* Tells the compiler that the iterations of the next loop do not depend on each other
 * through memory, so that it vectorises the loop. */
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* ---- sums ---- */

/*
 * Adds element j of up to eight inputs in the order of tree(lo, hi) of docs/training.md,
 * written out. It is inlined with n constant, so that each n gets its own loop.
 */
static inline __attribute__((always_inline)) float tree(
	const float *const *src, unsigned n, size_t j)
{
	float a, b;

	switch (n) {
	case 1:
		return src[0][j];
	case 2:
		return src[0][j] + src[1][j];
	case 3:
		return (src[0][j] + src[1][j]) + src[2][j];
	default:
		a = (src[0][j] + src[1][j]) + (src[2][j] + src[3][j]);
		break;
	}
	switch (n) {
	case 4:
		return a;
	case 5:
		return a + src[4][j];
	case 6:
		return a + (src[4][j] + src[5][j]);
	case 7:
		return a + ((src[4][j] + src[5][j]) + src[6][j]);
	default:
		b = (src[4][j] + src[5][j]) + (src[6][j] + src[7][j]);
		return a + b;
	}
}

/* Calls X(N, ...) for each number of inputs. */
#define FOR_EACH_N(X, ...)                                                               \
	X(1, __VA_ARGS__)                                                                \
	X(2, __VA_ARGS__)                                                                \
	X(3, __VA_ARGS__)                                                                \
	X(4, __VA_ARGS__)                                                                \
	X(5, __VA_ARGS__)                                                                \
	X(6, __VA_ARGS__)                                                                \
	X(7, __VA_ARGS__)                                                                \
	X(8, __VA_ARGS__)

/* The caller copies the pointers to `in`, so that the compiler knows that writing dst
 * does not change them. dst may be one of src: element j is read before it is written. */
#define SUM_CASE(N, ...)                                                                 \
	case N:                                                                          \
		INDEPENDENT for (size_t j = 0; j < count; j++) dst[j] =                  \
			scale * tree(in, N, j);                                          \
		break;

static void sum(
	float *dst, const float *const *src, unsigned n, float scale, size_t count)
{
	const float *in[TERN_SUM_MAX];

	memcpy(in, src, n * sizeof(*in));
	switch (n) {
		FOR_EACH_N(SUM_CASE, )
	default:
		break;
	}
}

/* Uses sixteen partial sums for every vector width, and adds them in a fixed order at the
 * end, so that the bits do not depend on the width. */
static double sum_squares(const float *x, size_t count)
{
	double part[16] = {0};
	size_t j = 0;

	for (; j + 16 <= count; j += 16)
		for (size_t k = 0; k < 16; k++)
			part[k] += (double)x[j + k] * (double)x[j + k];
	for (size_t k = 0; j < count; j++, k++)
		part[k] += (double)x[j] * (double)x[j];
	for (size_t step = 8; step > 0; step /= 2)
		for (size_t k = 0; k < step; k++)
			part[k] += part[k + step];
	return part[0];
}

/* ---- optimizers ---- */

/* The loop of one rule (kernels/rules.h) for N gradients. N, HAS_M and HAS_V are constant
 * in it, and so are the scalars `c`. */
#define RULE_CASE(N, rule, HAS_M, HAS_V)                                                 \
	case N:                                                                          \
		INDEPENDENT for (size_t j = 0; j < count; j++)                           \
		{                                                                        \
			float mj = (HAS_M) ? m[j] : 0, vj = (HAS_V) ? v[j] : 0;          \
			w_out[j] = tern_rule_##rule(                                     \
				&c, tree(in, N, j) * scale, w_in[j], &mj, &vj);          \
			if (HAS_M)                                                       \
				m[j] = mj;                                               \
			if (HAS_V)                                                       \
				v[j] = vj;                                               \
		}                                                                        \
		break;

#define RULE(X, KIND, rule, HAS_M, HAS_V, ...)                                           \
	case TERN_OPT_##KIND:                                                            \
		switch (n) {                                                             \
			FOR_EACH_N(RULE_CASE, rule, HAS_M, HAS_V)                        \
		default:                                                                 \
			break;                                                           \
		}                                                                        \
		break;

static void update(const struct tern_optimizer *o, uint64_t step, float *w_out,
	const float *w_in, float *m, float *v, const float *const *grads, unsigned n,
	float scale, float clip, size_t count)
{
	const struct tern_scalars c = tern_scalars_of(o, step, clip);
	const float *in[TERN_SUM_MAX];

	memcpy(in, grads, n * sizeof(*in));
	switch (o->kind) {
		TERN_RULES(RULE, )
	}
}

/* ---- casts ---- */

static void f32_to_bf16(uint16_t *dst, const float *src, size_t count)
{
	for (size_t j = 0; j < count; j++)
		dst[j] = tern_bf16_of(src[j]);
}

static void bf16_to_f32(float *dst, const uint16_t *src, size_t count)
{
	for (size_t j = 0; j < count; j++)
		dst[j] = tern_bf16_value(src[j]);
}

static void f32_to_f16(uint16_t *dst, const float *src, size_t count)
{
	for (size_t j = 0; j < count; j++)
		dst[j] = tern_f16_of(src[j]);
}

static void f16_to_f32(float *dst, const uint16_t *src, size_t count)
{
	for (size_t j = 0; j < count; j++)
		dst[j] = tern_f16_value(src[j]);
}

void NAME(tern_elementwise)(struct tern_kernels *k)
{
	k->sum = sum;
	k->sum_squares = sum_squares;
	k->update = update;
	k->f32_to_f16 = f32_to_f16;
	k->f16_to_f32 = f16_to_f32;
	k->f32_to_bf16 = f32_to_bf16;
	k->bf16_to_f32 = bf16_to_f32;
}
