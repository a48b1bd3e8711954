/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic on buffers: one table of functions per device, one suite of tests for every
 * table. All matrices are row-major and dense; counts are elements, not bytes; pointers
 * need the alignment of their type only and outputs overlap inputs only where it says so.
 *
 * Results are a pure function of the inputs, bit for bit, for one table on one processor:
 * sums have a fixed order, nothing is contracted (-ffp-contract=off) unless written so,
 * and no function starts a thread. tern_kernels_fingerprint() names everything that the
 * bits depend on.
 */
#ifndef TERN_KERNELS_H
#define TERN_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include <tern/types.h>

enum tern_optimizer_kind {
	TERN_OPT_SGD,
	TERN_OPT_MOMENTUM,
	TERN_OPT_ADAGRAD,
	TERN_OPT_ADAM,
};

/*
 * w: parameter, g: mean gradient (+ weight_decay * w), t: step counted from 1.
 *   sgd       w -= lr g
 *   momentum  m = momentum m + g;  w -= lr m                          (Polyak 1964)
 *   adagrad   v += g^2;  w -= lr g / (sqrt(v) + epsilon)              (Duchi et al. 2011)
 *   adam      m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g^2;
 *             w -= lr (m / (1-beta1^t)) / (sqrt(v / (1-beta2^t)) + epsilon)
 *                                                                 (Kingma, Ba 2015)
 * v of adagrad starts at initial_accumulator, everything else at 0.
 */
struct tern_optimizer {
	enum tern_optimizer_kind kind;
	float lr, momentum, beta1, beta2, epsilon, weight_decay, initial_accumulator;
};

/* Name as on the command line; fills the defaults of that optimizer. -EINVAL. */
int tern_optimizer_parse(const char *name, struct tern_optimizer *out);
const char *tern_optimizer_name(enum tern_optimizer_kind kind);
/* "sgd, momentum, ..." for messages. */
const char *tern_optimizer_names(void);
/* How many state vectors (m, v) it keeps: 0, 1 or 2, and their names. */
unsigned tern_optimizer_state_count(enum tern_optimizer_kind kind);
const char *tern_optimizer_state_name(enum tern_optimizer_kind kind, unsigned index);

/* Most inputs of one sum. Longer sums are built from groups of this size, which are whole
 * subtrees of the same tree. */
#define TERN_SUM_MAX 8

struct tern_kernels {
	const char *name; /* "avx512", "avx2", "portable" */

	/*
	 * dst[j] = scale * tree(src[0..n)[j]), 1 <= n <= TERN_SUM_MAX, with
	 * tree(lo, hi) = tree(lo, mid) + tree(mid, hi), mid = lo + the largest power of
	 * two below hi - lo. One pass over memory. dst may be one of src. scale 1 is
	 * exact.
	 */
	void (*sum)(float *dst, const float *const *src, unsigned n, float scale,
		size_t count);

	/* Sum of squares in float64, in a fixed order: the partial of a norm. */
	double (*sum_squares)(const float *x, size_t count);

	/*
	 * One fused pass: g = scale * tree(grads[0..n)), then the optimizer: reads w_in,
	 * m, v, writes w_out (may be w_in), m, v (NULL where the kind has none). step
	 * from 1. `clip` multiplies g once more (1: no clipping).
	 */
	void (*update)(const struct tern_optimizer *opt, uint64_t step, float *w_out,
		const float *w_in, float *m, float *v, const float *const *grads,
		unsigned n, float scale, float clip, size_t count);

	/* Casts, round to nearest even; NaN stays NaN, overflow becomes infinity. */
	void (*f32_to_f16)(uint16_t *dst, const float *src, size_t count);
	void (*f16_to_f32)(float *dst, const uint16_t *src, size_t count);
	void (*f32_to_bf16)(uint16_t *dst, const float *src, size_t count);
	void (*bf16_to_f32)(float *dst, const uint16_t *src, size_t count);

	/* y[rows][out] = x[rows][in] w[in][out] + b[out], then max(0, .) if relu. */
	void (*dense_forward)(float *y, const float *x, const float *w, const float *b,
		size_t rows, size_t in, size_t out, int relu);
	/*
	 * Gradients of it. dy[rows][out] is of y; if relu, it is first zeroed in place
	 * where y == 0. dw[in][out], db[out] are written, dx[rows][in] too unless NULL.
	 */
	void (*dense_backward)(float *dx, float *dw, float *db, float *dy, const float *y,
		const float *x, const float *w, size_t rows, size_t in, size_t out,
		int relu);
	/*
	 * logits[rows][classes], labels[rows] in [0, classes). Returns the summed
	 * cross-entropy in float64; dlogits (may be logits, or NULL) = (softmax - onehot)
	 * / rows; *correct (may be NULL) counts rows whose largest logit (the first of
	 * equals) is the label's.
	 */
	double (*softmax_xent)(float *dlogits, const float *logits, const int32_t *labels,
		size_t rows, size_t classes, size_t *correct);
	/* y[rows][width] = table[ids[rows]][width]; ids in [0, table rows). */
	void (*embed_forward)(float *y, const float *table, const int32_t *ids,
		size_t rows, size_t width);
	/* dtable[table_rows][width] = 0, then dtable[ids[i]] += dy[i] in the order of i.
	 */
	void (*embed_backward)(float *dtable, const float *dy, const int32_t *ids,
		size_t rows, size_t width, size_t table_rows);
};

/* The widest table this processor runs; TERN_KERNELS=avx512|avx2|portable in the
 * environment of the process picks another (an unknown or unsupported one is ignored; the
 * tools refuse it before, see tools/device.h). Also pins OpenBLAS to one thread. */
const struct tern_kernels *tern_kernels_cpu(void);
/*
 * Takes the memory that matrix products need beside their operands, which the process
 * keeps. Without this the first product takes it, and OpenBLAS asks for it over and over,
 * without a word or an end, if there is none. Once, before any thread computes; twice is
 * harmless. -ENOMEM: fewer than TERN_KERNELS_BYTES are to be had.
 */
#define TERN_KERNELS_BYTES (320ull << 20)
int tern_kernels_reserve(void);
const struct tern_kernels *tern_kernels_named(const char *name);

/* "avx512 openblas 0.3.21 SkylakeX": equal strings, equal bits. Static storage. */
const char *tern_kernels_fingerprint(const struct tern_kernels *kernels);

#endif
