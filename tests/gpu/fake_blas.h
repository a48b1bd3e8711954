/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuBLAS on the simulated driver: its matrix product, by the book, in the stream. It
 * refuses leading dimensions that the real one refuses, and asserts that it was set up so
 * that its results can be repeated.
 */
#ifndef TERN_TESTS_GPU_FAKE_BLAS_H
#define TERN_TESTS_GPU_FAKE_BLAS_H

#include "kernels/cuda/cublas.h"

/* After each fake_cuda_reset(). */
void fake_blas_register(void);
extern const struct tern_cublas_api fake_blas;
/* The next call of create, or of sgemm, gives this status. */
extern int fake_blas_create_fails, fake_blas_sgemm_fails;

#endif
