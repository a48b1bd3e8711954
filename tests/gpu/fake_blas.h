/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated cuBLAS on the simulated driver: it computes matrix products by their
 * definition, as work in the stream. It refuses the leading dimensions that the real one
 * refuses, and asserts the settings that make results repeatable.
 */
#ifndef TERN_TESTS_GPU_FAKE_BLAS_H
#define TERN_TESTS_GPU_FAKE_BLAS_H

#include "kernels/cuda/cublas.h"

/* Registers the kernels of the simulated cuBLAS; to be called after each
 * fake_cuda_reset(), which removes them. */
void fake_blas_register(void);
extern const struct tern_cublas_api fake_blas;
/* Status that the next call of create or of sgemm returns; 0: it succeeds. */
extern int fake_blas_create_fails, fake_blas_sgemm_fails;

#endif
