/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that the CPU's kernel files share; each comment names the file that defines
 * them. */
#ifndef TERN_KERNELS_VARIANTS_H
#define TERN_KERNELS_VARIANTS_H

#include "kernels/kernels.h"
#include "kernels/scalars.h"

/* optimizer.c: computes the scalars for step `step`, counted from 1. */
struct tern_scalars tern_scalars_of(
	const struct tern_optimizer *opt, uint64_t step, float clip);

/* elementwise.c, compiled once for each vector width: set the element-by-element
 * functions and sum_squares() of a table. */
void tern_elementwise_portable(struct tern_kernels *k);
void tern_elementwise_avx2(struct tern_kernels *k);
void tern_elementwise_avx512(struct tern_kernels *k);

/* layers.c: sets the functions for layers in a table. `portable`: chooses functions that
 * give the same bits on every processor with the same math library. */
void tern_layers_fill(struct tern_kernels *k, bool portable);

/* matmul.c: matrix product c[m][n] = a b (+ c if `add`), computed on one thread. a is
 * a[m][k], or a[k][m] if transposed; b is b[k][n], or b[n][k] if transposed. */
typedef void tern_matmul_fn(float *c, const float *a, bool a_transposed, const float *b,
	bool b_transposed, size_t m, size_t n, size_t k, bool add);
tern_matmul_fn tern_matmul;
tern_matmul_fn tern_matmul_portable; /* in plain C, several times slower */
void tern_matmul_init(void);         /* limits OpenBLAS to one thread */
/* matmul.c: name of the implementation of matrix products: "openblas 0.3.21 SkylakeX", or
 * TERN_MATMUL_PORTABLE. Static storage. */
#define TERN_MATMUL_PORTABLE "portable matmul"
const char *tern_matmul_name(void);

/* libm.c: the functions of the math library that Tern uses, and a digest of their results
 * that distinguishes libraries. */
struct tern_libm {
	double (*exp)(double x);
	double (*log)(double x);
	double (*pow)(double x, double y);
};
uint32_t tern_libm_digest(const struct tern_libm *libm);

#endif
