/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuBLAS on the simulated driver: its matrix product, by definition, in the stream. It
 * refuses the leading dimensions that the real one refuses, and asserts the settings that
 * make results repeatable.
 */
#ifndef TERN_TESTS_GPU_FAKE_BLAS_H
#define TERN_TESTS_GPU_FAKE_BLAS_H

#include "kernels/cuda/cublas.h"

/* Call it after each fake_cuda_reset(). */
void fake_blas_register(void);
extern const struct tern_cublas_api fake_blas;
/* Status of the next call of create, or of sgemm. */
extern int fake_blas_create_fails, fake_blas_sgemm_fails;

#endif
