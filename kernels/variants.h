/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the tables share, and the functions of the CPU's files. */
#ifndef TERN_KERNELS_VARIANTS_H
#define TERN_KERNELS_VARIANTS_H

#include "kernels/kernels.h"
#include "kernels/scalars.h"

/* optimizer.c: the scalars for step `step`, counted from 1. */
struct tern_scalars tern_scalars_of(const struct tern_optimizer *opt, uint64_t step);

/* elementwise.c, compiled once for each vector width: these fill in their part of a
 * table. */
void tern_elementwise_portable(struct tern_kernels *k);
void tern_elementwise_avx2(struct tern_kernels *k);
void tern_elementwise_avx512(struct tern_kernels *k);

/* layers.c: fills in the layers. `portable`: gives the same bits on every processor
 * with the same mathematical library. */
void tern_layers_fill(struct tern_kernels *k, bool portable);

/* matmul.c: c[m][n] = a b (+ c if `add`). a is a[m][k], or a[k][m] if transposed; b is
 * b[k][n], or b[n][k] if transposed. One thread. */
typedef void tern_matmul_fn(float *c, const float *a, bool a_transposed, const float *b,
	bool b_transposed, size_t m, size_t n, size_t k, bool add);
tern_matmul_fn tern_matmul;
tern_matmul_fn tern_matmul_portable; /* plain C, several times slower */
void tern_matmul_init(void);         /* limits OpenBLAS to one thread */
/* Name of the implementation: "openblas 0.3.21 SkylakeX", or TERN_MATMUL_PORTABLE.
 * Static storage. */
#define TERN_MATMUL_PORTABLE "portable matmul"
const char *tern_matmul_name(void);

/* libm.c: the functions of the mathematical library that are used, and a digest that
 * distinguishes libraries. */
struct tern_libm {
	double (*exp)(double x);
	double (*log)(double x);
	double (*pow)(double x, double y);
};
uint32_t tern_libm_digest(const struct tern_libm *libm);

#endif
