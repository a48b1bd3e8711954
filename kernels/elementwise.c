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

#define FOR_EACH_N(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)

/* The caller copies the pointers to `in`, so that the compiler knows that writing dst
 * does not change them. dst may be one of src: element j is read before it is written. */
#define SUM_CASE(N)                                                                      \
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
		FOR_EACH_N(SUM_CASE)
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

/* The gradient of element j, for N inputs. Each of the macros below has the loop of one
 * optimizer over the elements; the scalars `c` are constant in the loop. */
#define GRADIENT(N) (tree(in, N, j) * scale * clip + c.decay * w_in[j])

#define SGD_CASE(N)                                                                      \
	case N:                                                                          \
		INDEPENDENT for (size_t j = 0; j < count; j++) w_out[j] =                \
			w_in[j] - c.lr * GRADIENT(N);                                    \
		break;

#define MOMENTUM_CASE(N)                                                                 \
	case N:                                                                          \
		INDEPENDENT for (size_t j = 0; j < count; j++)                           \
		{                                                                        \
			float mj = c.momentum * m[j] + GRADIENT(N);                      \
			m[j] = mj;                                                       \
			w_out[j] = w_in[j] - c.lr * mj;                                  \
		}                                                                        \
		break;

#define ADAGRAD_CASE(N)                                                                  \
	case N:                                                                          \
		INDEPENDENT for (size_t j = 0; j < count; j++)                           \
		{                                                                        \
			float g = GRADIENT(N);                                           \
			float vj = v[j] + g * g;                                         \
			v[j] = vj;                                                       \
			w_out[j] = w_in[j] - c.lr * g / (sqrtf(vj) + c.epsilon);         \
		}                                                                        \
		break;

#define ADAM_CASE(N)                                                                     \
	case N:                                                                          \
		INDEPENDENT for (size_t j = 0; j < count; j++)                           \
		{                                                                        \
			float g = GRADIENT(N);                                           \
			float mj = c.beta1 * m[j] + c.rest1 * g;                         \
			float vj = c.beta2 * v[j] + c.rest2 * (g * g);                   \
			m[j] = mj;                                                       \
			v[j] = vj;                                                       \
			w_out[j] =                                                       \
				w_in[j] - c.lr * (mj * c.unbias1) /                      \
						  (sqrtf(vj * c.unbias2) + c.epsilon);   \
		}                                                                        \
		break;

static void update(const struct tern_optimizer *o, uint64_t step, float *w_out,
	const float *w_in, float *m, float *v, const float *const *grads, unsigned n,
	float scale, float clip, size_t count)
{
	const struct tern_scalars c = tern_scalars_of(o, step);
	const float *in[TERN_SUM_MAX];

	memcpy(in, grads, n * sizeof(*in));
	switch (o->kind) {
	case TERN_OPT_SGD:
		switch (n) {
			FOR_EACH_N(SGD_CASE)
		default:
			break;
		}
		break;
	case TERN_OPT_MOMENTUM:
		switch (n) {
			FOR_EACH_N(MOMENTUM_CASE)
		default:
			break;
		}
		break;
	case TERN_OPT_ADAGRAD:
		switch (n) {
			FOR_EACH_N(ADAGRAD_CASE)
		default:
			break;
		}
		break;
	case TERN_OPT_ADAM:
		switch (n) {
			FOR_EACH_N(ADAM_CASE)
		default:
			break;
		}
		break;
	}
}

/* ---- casts ---- */

static inline uint32_t bits_of(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

static inline float float_of(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

static void f32_to_bf16(uint16_t *dst, const float *src, size_t count)
{
	for (size_t j = 0; j < count; j++) {
		uint32_t u = bits_of(src[j]);
		uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
		/* Sets the quiet bit, so that a NaN stays a NaN when its low bits are cut
		 * off. */
		uint32_t quiet = (u >> 16) | 0x40;

		dst[j] = (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
	}
}

static void bf16_to_f32(float *dst, const uint16_t *src, size_t count)
{
	for (size_t j = 0; j < count; j++)
		dst[j] = float_of((uint32_t)src[j] << 16);
}

/*
 * Converts float to f16. Numbers below the smallest normal f16 are rounded by the FPU:
 * adding 0.5 leaves the nearest multiple of 2^-24 in the low bits. Larger numbers are
 * rounded with integer operations on their bits.
 */
static void f32_to_f16(uint16_t *dst, const float *src, size_t count)
{
	for (size_t j = 0; j < count; j++) {
		uint32_t u = bits_of(src[j]);
		uint32_t sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;
		uint32_t normal = (a - 0x38000000 + 0xfff + ((a >> 13) & 1)) >> 13;
		uint32_t small = bits_of(float_of(a) + 0.5f) - 0x3f000000;
		uint32_t special = a > 0x7f800000 ? 0x7e00 | ((a >> 13) & 0x3ff) : 0x7c00;
		uint32_t h = a < 0x38800000 ? small : normal;

		h = a >= 0x477ff000 ? special : h;
		dst[j] = (uint16_t)(h | sign);
	}
}

static void f16_to_f32(float *dst, const uint16_t *src, size_t count)
{
	for (size_t j = 0; j < count; j++) {
		uint32_t h = src[j], sign = (h & 0x8000) << 16, a = h & 0x7fff;
		/* The exponent bias of the two types differs by 112. Multiplying by 2^112
		 * also handles subnormal numbers. */
		uint32_t finite = bits_of(float_of(a << 13) * 0x1p112f);
		uint32_t special =
			0x7f800000 | (a & 0x3ff) << 13 | (a > 0x7c00 ? 0x400000 : 0);

		dst[j] = float_of((a >= 0x7c00 ? special : finite) | sign);
	}
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
