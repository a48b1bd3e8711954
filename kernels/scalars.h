/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scalars of an update: optimizer settings and step-dependent factors. They are
 * computed once on the host, in one place, so that every table and every device starts
 * from the same bits. The header is valid C and C++, for nvcc.
 */
#ifndef TERN_KERNELS_SCALARS_H
#define TERN_KERNELS_SCALARS_H

struct tern_scalars {
	float lr, momentum, beta1, beta2, epsilon, decay;
	float rest1, rest2;     /* 1 - beta */
	float unbias1, unbias2; /* 1 / (1 - beta^step) */
};

#endif
