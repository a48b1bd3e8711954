/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic on arrays of floats: one table of functions per set of vector instructions,
 * and one suite of tests for all tables. All matrices are row-major and dense; counts are
 * elements, not bytes; pointers need only the alignment of their type; outputs may
 * overlap inputs only where a comment says so.
 *
 * For one table on one processor, results are a pure function of the inputs, bit for bit:
 * sums have a fixed order, the compiler fuses no multiply-adds (-ffp-contract=off), and
 * no function starts a thread. tern_kernels_fingerprint() names everything else that the
 * bits depend on.
 */
#ifndef TERN_KERNELS_H
#define TERN_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tern/types.h>

#include "kernels/rules.h"
#include "kernels/schedule.h"

enum tern_optimizer_kind {
#define TERN_OPT_KIND_(X, KIND, ...) TERN_OPT_##KIND,
	TERN_RULES(TERN_OPT_KIND_, )
#undef TERN_OPT_KIND_
};
/* Number of kinds. Not an enumerator, so that the compiler does not warn about a switch
 * over the kinds that lacks it. */
#define TERN_OPT_ONE_(...) +1u
#define TERN_OPT_COUNT     (0u TERN_RULES(TERN_OPT_ONE_, ))

/* An update rule (kernels/rules.h has the formulas) with its settings; those that the
 * rule does not have are 0. v starts at initial_accumulator, m at 0. */
struct tern_optimizer {
	enum tern_optimizer_kind kind;
	float lr, momentum, beta1, beta2, epsilon, weight_decay, initial_accumulator;
	struct tern_schedule schedule; /* of lr */
};

/* Which values a setting may have. */
enum tern_range {
	TERN_RANGE_FRACTION,     /* 0 or more, and below 1 */
	TERN_RANGE_POSITIVE,     /* more than 0 */
	TERN_RANGE_NOT_NEGATIVE, /* 0 or more */
};

/* The settings besides the learning rate: numbers of tern_setting_name(). */
enum {
#define TERN_SETTING_NUMBER_(name, range) TERN_SETTING_##name,
	TERN_SETTINGS(TERN_SETTING_NUMBER_)
#undef TERN_SETTING_NUMBER_
		TERN_SETTING_COUNT
};
const char *tern_setting_name(unsigned setting); /* "weight_decay" */
/* True if the setting may have this value, which must be finite. */
bool tern_setting_allows(unsigned setting, float value);
/* Says which values it may have, as in "must be " or "expected ": "0 or more". */
const char *tern_setting_range(unsigned setting);
float *tern_optimizer_setting(struct tern_optimizer *o, unsigned setting);
float tern_optimizer_value(const struct tern_optimizer *o, unsigned setting);
/* True if the optimizer has the setting. */
bool tern_optimizer_has(enum tern_optimizer_kind kind, unsigned setting);

/* Finds an optimizer by its name, such as "adam", and fills in its default settings.
 * -EINVAL: no optimizer has this name. */
int tern_optimizer_parse(const char *name, struct tern_optimizer *out);
const char *tern_optimizer_name(enum tern_optimizer_kind kind);
/* False for `mean`, which replaces parameters instead of training them: it is not offered
 * for a whole model. */
bool tern_optimizer_is_for_models(enum tern_optimizer_kind kind);
/* The names of all optimizers for models, "sgd, momentum, ...", for error messages. */
const char *tern_optimizer_names(void);
/* True if the optimizer keeps a state vector m, or v. */
bool tern_optimizer_has_m(enum tern_optimizer_kind kind);
bool tern_optimizer_has_v(enum tern_optimizer_kind kind);

/* Largest number of inputs of one call of sum() or update(). A larger sum is made of
 * groups of this size, each of which is a whole subtree of the tree of additions. */
#define TERN_SUM_MAX 8

struct tern_kernels {
	const char *name; /* "avx512", "avx2" or "portable" */

	/*
	 * dst[j] = scale * tree(src[0..n)[j]), 1 <= n <= TERN_SUM_MAX, with tree(lo, hi)
	 * = tree(lo, mid) + tree(mid, hi), mid = lo + the largest power of two below hi -
	 * lo. Makes one pass over memory. dst may be one of src. A scale of 1 changes no
	 * bit.
	 */
	void (*sum)(float *dst, const float *const *src, unsigned n, float scale,
		size_t count);

	/* Returns the sum of the squares of x in float64, added in a fixed order: one
	 * tensor's part of a global norm. */
	double (*sum_squares)(const float *x, size_t count);

	/*
	 * One step of an optimizer, in one pass over memory: g = scale *
	 * tree(grads[0..n)), then the optimizer's formula (kernels/rules.h). Reads w_in, m and v; writes w_out (may be w_in), m and v. m
	 * and v are NULL if the optimizer has none. `step` counts from 1. `clip` is 1
	 * without gradient clipping.
	 */
	void (*update)(const struct tern_optimizer *opt, uint64_t step, float *w_out,
		const float *w_in, float *m, float *v, const float *const *grads,
		unsigned n, float scale, float clip, size_t count);

	/* Casts. They round to nearest even; NaN stays NaN, overflow becomes infinity. */
	void (*f32_to_f16)(uint16_t *dst, const float *src, size_t count);
	void (*f16_to_f32)(float *dst, const uint16_t *src, size_t count);
	void (*f32_to_bf16)(uint16_t *dst, const float *src, size_t count);
	void (*bf16_to_f32)(float *dst, const uint16_t *src, size_t count);

	/* y[rows][out] = x[rows][in] w[in][out] + b[out], then max(0, .) if relu. */
	void (*dense_forward)(float *y, const float *x, const float *w, const float *b,
		size_t rows, size_t in, size_t out, int relu);
	/*
	 * Gradients of dense_forward. dy[rows][out] is the gradient with respect to y. If
	 * relu, dy is first set to 0, in place, where y == 0. Writes dw[in][out] and
	 * db[out], and dx[rows][in] unless it is NULL.
	 */
	void (*dense_backward)(float *dx, float *dw, float *db, float *dy, const float *y,
		const float *x, const float *w, size_t rows, size_t in, size_t out,
		int relu);
	/*
	 * Softmax and cross-entropy of logits[rows][classes] for labels[rows] in [0,
	 * classes). Returns the loss summed over the rows, in float64. dlogits (may be
	 * logits, or NULL) = (softmax - onehot) / rows. *correct (if not NULL) is the
	 * number of rows whose largest logit (the first of equal ones) is that of the
	 * label.
	 */
	double (*softmax_xent)(float *dlogits, const float *logits, const int32_t *labels,
		size_t rows, size_t classes, size_t *correct);
	/* y[rows][width] = table[ids[rows]][width]; ids in [0, table rows). */
	void (*embed_forward)(float *y, const float *table, const int32_t *ids,
		size_t rows, size_t width);
	/* Sets dtable[table_rows][width] to 0, then adds dy[i] to dtable[ids[i]] in the
	 * order of i. */
	void (*embed_backward)(float *dtable, const float *dy, const int32_t *ids,
		size_t rows, size_t width, size_t table_rows);
};

/* Returns the table with the widest vector instructions that this processor has. The
 * environment variable TERN_KERNELS=avx512|avx2|portable chooses another table; an
 * unknown or unsupported name is ignored here (the `tern` program refuses it earlier, see
 * tools/device.h). Also limits OpenBLAS to one thread. */
const struct tern_kernels *tern_kernels_cpu(void);
/*
 * Makes OpenBLAS allocate the buffers that matrix products need besides their operands;
 * the process keeps them. Without this call the first product allocates them, and if
 * there is no memory OpenBLAS retries for ever without a message. Call it once, before
 * any thread computes; a second call changes nothing. -ENOMEM:
 * TERN_KERNELS_BYTES cannot be mapped. Does nothing in a build without OpenBLAS.
 */
#define TERN_KERNELS_BYTES (320ull << 20)
int tern_kernels_reserve(void);
const struct tern_kernels *tern_kernels_named(const char *name);

/* Identifies all that the bits of results depend on: "avx512 openblas 0.3.21 SkylakeX
 * libm 1b2c3d4e". Equal strings mean equal bits. Static storage. */
const char *tern_kernels_fingerprint(const struct tern_kernels *kernels);

#endif
