/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of cuBLAS that Tern calls, as a table of pointers. The library is loaded
 * at the first use, as the driver is (base/cuda.h). A test may use a table of its own
 * instead.
 */
#ifndef TERN_KERNELS_CUDA_CUBLAS_H
#define TERN_KERNELS_CUDA_CUBLAS_H

#include "base/cuda.h"

/* Values from cublas_api.h. Functions of cuBLAS return 0 on success. */
#define TERN_CUBLAS_N                   0
#define TERN_CUBLAS_T                   1
#define TERN_CUBLAS_DEFAULT_MATH        0
#define TERN_CUBLAS_TF32_MATH           3
#define TERN_CUBLAS_ATOMICS_NOT_ALLOWED 0

struct tern_cublas_api {
	int (*create)(void **handle);
	int (*destroy)(void *handle);
	int (*get_version)(void *handle, int *version);
	int (*set_stream)(void *handle, void *stream);
	int (*set_workspace)(void *handle, void *workspace, size_t bytes);
	int (*set_math_mode)(void *handle, int mode);
	int (*set_atomics_mode)(void *handle, int mode);
	/* All matrices are column-major: c[n][m] = alpha op(a) op(b) + beta c. */
	int (*sgemm)(void *handle, int op_a, int op_b, int m, int n, int k,
		const float *alpha, const float *a, int lda, const float *b, int ldb,
		const float *beta, float *c, int ldc);
	const char *(*status_string)(int status);
};

/*
 * Loads libcublas.so.13 or .12, but no later major version than the driver's, at the
 * first call in this process at which the driver reports its version; later calls return
 * the same result. Thread-safe. The library is never unloaded. -ENOSYS: it cannot be
 * loaded; *why is the reason, in static storage.
 */
int tern_cublas_load(const struct tern_cuda_api *api, const struct tern_cublas_api **out,
	const char **why);

#endif
