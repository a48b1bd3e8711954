/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scalars of an update (one step of an update rule): the rule's settings, and factors
 * that depend on the step. They are computed once on the host, in one place, so that the
 * CPU's tables and the GPUs start from the same bits. The header is valid C and C++, for
 * nvcc.
 */
#ifndef TERN_KERNELS_SCALARS_H
#define TERN_KERNELS_SCALARS_H

/* The type in which update rules compute. A test that needs the same formulas in float64
 * defines both macros before it includes this header. */
#ifndef tern_real
#define tern_real      float
#define tern_real_sqrt sqrtf
#endif

struct tern_scalars {
	tern_real lr, clip, momentum, beta1, beta2, epsilon, decay;
	tern_real lr_decay;         /* lr * decay */
	tern_real rest1, rest2;     /* 1 - beta1, 1 - beta2 */
	tern_real unbias1, unbias2; /* 1 / (1 - beta1^step), and the same of beta2 */
};

#endif
