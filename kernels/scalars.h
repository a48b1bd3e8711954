/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an update's loop needs of the optimizer and the step: computed once on the host,
 * in one place, so that every table and every device starts from the same bits. Plain C
 * that is C++ too, for nvcc.
 */
#ifndef TERN_KERNELS_SCALARS_H
#define TERN_KERNELS_SCALARS_H

struct tern_scalars {
	float lr, momentum, beta1, beta2, epsilon, decay;
	float rest1, rest2;     /* 1 - beta */
	float unbias1, unbias2; /* 1 / (1 - beta^step) */
};

#endif
