/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scalars of an update (one optimizer step): the optimizer's settings, and factors
 * that depend on the step. They are computed once on the host, in one place, so that the
 * CPU's tables and the GPUs start from the same bits. The header is valid C and C++, for
 * nvcc.
 */
#ifndef TERN_KERNELS_SCALARS_H
#define TERN_KERNELS_SCALARS_H

struct tern_scalars {
	float lr, momentum, beta1, beta2, epsilon, decay;
	float rest1, rest2;     /* 1 - beta1, 1 - beta2 */
	float unbias1, unbias2; /* 1 / (1 - beta1^step), and the same of beta2 */
};

#endif
