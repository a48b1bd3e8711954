/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the declarations of kernels/cuda/cublas.h with cuBLAS's own header, where that
 * is installed. Nothing is run: if they differ, this file does not compile.
 */
#include <assert.h>
#include <cublas_api.h>

#include "kernels/cuda/cublas.h"

/* The parameter list of each function, once with cuBLAS's types and once with those of
 * Tern's table. */
#define CREATE(result, handle)           result(handle *)
#define DESTROY(result, handle)          result(handle)
#define GET_VERSION(result, handle)      result(handle, int *)
#define SET_STREAM(result, handle, type) result(handle, type)
#define SET_WORKSPACE(result, handle)    result(handle, void *, size_t)
#define SET_MODE(result, handle, mode)   result(handle, mode)
#define SGEMM(result, handle, operation)                                                 \
	result(handle, operation, operation, int, int, int, const float *,               \
		const float *, int, const float *, int, const float *, float *, int)

#define SAME(a, b)            static_assert(__builtin_types_compatible_p(a, b), #a)
#define THEIRS(function, ...) SAME(__typeof__(function), __VA_ARGS__)
#define OURS(field, ...)                                                                 \
	SAME(__typeof__(*((struct tern_cublas_api *)0)->field), __VA_ARGS__)

THEIRS(cublasCreate_v2, CREATE(cublasStatus_t, cublasHandle_t));
OURS(create, CREATE(int, void *));
THEIRS(cublasDestroy_v2, DESTROY(cublasStatus_t, cublasHandle_t));
OURS(destroy, DESTROY(int, void *));
THEIRS(cublasGetVersion_v2, GET_VERSION(cublasStatus_t, cublasHandle_t));
OURS(get_version, GET_VERSION(int, void *));
THEIRS(cublasSetStream_v2, SET_STREAM(cublasStatus_t, cublasHandle_t, cudaStream_t));
OURS(set_stream, SET_STREAM(int, void *, void *));
THEIRS(cublasSetWorkspace_v2, SET_WORKSPACE(cublasStatus_t, cublasHandle_t));
OURS(set_workspace, SET_WORKSPACE(int, void *));
THEIRS(cublasSetMathMode, SET_MODE(cublasStatus_t, cublasHandle_t, cublasMath_t));
OURS(set_math_mode, SET_MODE(int, void *, int));
THEIRS(cublasSetAtomicsMode,
	SET_MODE(cublasStatus_t, cublasHandle_t, cublasAtomicsMode_t));
OURS(set_atomics_mode, SET_MODE(int, void *, int));
THEIRS(cublasSgemm_v2, SGEMM(cublasStatus_t, cublasHandle_t, cublasOperation_t));
OURS(sgemm, SGEMM(int, void *, int));
THEIRS(cublasGetStatusString, const char *(cublasStatus_t));
OURS(status_string, const char *(int));

/* Tern's table declares an int or a void pointer in place of these cuBLAS types, which
 * are passed in the same way. */
static_assert(sizeof(cublasStatus_t) == sizeof(int), "a status");
static_assert(sizeof(cublasOperation_t) == sizeof(int), "an operation");
static_assert(sizeof(cublasMath_t) == sizeof(int), "a mode of arithmetic");
static_assert(sizeof(cublasAtomicsMode_t) == sizeof(int), "a mode of atomics");
static_assert(sizeof(cublasHandle_t) == sizeof(void *), "a handle");
static_assert(sizeof(cudaStream_t) == sizeof(CUstream), "a stream");

static_assert(CUBLAS_STATUS_SUCCESS == 0, "success");
static_assert(CUBLAS_OP_N == TERN_CUBLAS_N, "as it is");
static_assert(CUBLAS_OP_T == TERN_CUBLAS_T, "transposed");
static_assert(CUBLAS_DEFAULT_MATH == TERN_CUBLAS_DEFAULT_MATH, "default arithmetic");
static_assert(CUBLAS_TF32_TENSOR_OP_MATH == TERN_CUBLAS_TF32_MATH, "tf32");
static_assert(CUBLAS_ATOMICS_NOT_ALLOWED == TERN_CUBLAS_ATOMICS_NOT_ALLOWED, "atomics");
