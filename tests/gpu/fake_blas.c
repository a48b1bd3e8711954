/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/fake_blas.h"

#include <string.h>

#include "base/util.h"
#include "tests/fakes/cuda/fake_cuda.h"

int fake_blas_create_fails, fake_blas_sgemm_fails;

struct handle {
	CUmodule module;
	CUfunction gemm;
	CUstream stream;
	bool has_workspace, no_atomics;
};

struct gemm {
	bool a_transposed, b_transposed;
	int m, n, k, lda, ldb, ldc;
	float alpha, beta;
	const float *a, *b;
	float *c;
};

/* The matrix product: column-major, like cuBLAS. If beta is 0, c is not read. */
static void run(const struct fake_cuda_launch *launch)
{
	const struct gemm *g = launch->params[0];

	for (long j = 0; j < g->n; j++)
		for (long i = 0; i < g->m; i++) {
			float sum = 0, *c = &g->c[i + j * g->ldc];

			for (long l = 0; l < g->k; l++)
				sum += (g->a_transposed ? g->a[l + i * g->lda]
							: g->a[i + l * g->lda]) *
				       (g->b_transposed ? g->b[j + l * g->ldb]
							: g->b[l + j * g->ldb]);
			*c = g->alpha * sum + (g->beta != 0 ? g->beta * *c : 0);
		}
}

void fake_blas_register(void)
{
	fake_cuda_kernel("fake_blas_gemm", run, 1, (const size_t[]){sizeof(struct gemm)});
}

static int failing(int *which)
{
	int status = *which;

	*which = 0;
	return status;
}

static int destroy(void *handle)
{
	struct handle *h = handle;

	fake_cuda_api()->module_unload(h->module);
	free(h);
	return 0;
}

static int create(void **out)
{
	const struct tern_cuda_api *api = fake_cuda_api();
	struct handle *h;

	if (fake_blas_create_fails)
		return failing(&fake_blas_create_fails);
	h = calloc(1, sizeof(*h));
	tern_assert(h);
	if (api->module_load_data_ex(&h->module, "", 0, NULL, NULL)) {
		free(h);
		return 3;
	}
	if (api->module_get_function(&h->gemm, h->module, "fake_blas_gemm")) {
		destroy(h);
		return 3;
	}
	*out = h;
	return 0;
}

static int get_version(void *handle, int *version)
{
	(void)handle;
	*version = 130002;
	return 0;
}

static int set_stream(void *handle, void *stream)
{
	struct handle *h = handle;

	h->stream = stream;
	/* The real cuBLAS, too, forgets the workspace when the stream is set. */
	h->has_workspace = false;
	return 0;
}

static int set_workspace(void *handle, void *workspace, size_t bytes)
{
	struct handle *h = handle;

	h->has_workspace = workspace && (uintptr_t)workspace % 256 == 0 && bytes > 0;
	return 0;
}

static int set_math_mode(void *handle, int mode)
{
	(void)handle;
	return mode == TERN_CUBLAS_DEFAULT_MATH || mode == TERN_CUBLAS_TF32_MATH ? 0 : 7;
}

static int set_atomics_mode(void *handle, int mode)
{
	struct handle *h = handle;

	h->no_atomics = mode == TERN_CUBLAS_ATOMICS_NOT_ALLOWED;
	return 0;
}

static int sgemm(void *handle, int op_a, int op_b, int m, int n, int k,
	const float *alpha, const float *a, int lda, const float *b, int ldb,
	const float *beta, float *c, int ldc)
{
	struct handle *h = handle;
	struct gemm g = {.a_transposed = op_a == TERN_CUBLAS_T,
		.b_transposed = op_b == TERN_CUBLAS_T,
		.m = m,
		.n = n,
		.k = k,
		.lda = lda,
		.ldb = ldb,
		.ldc = ldc,
		.alpha = *alpha,
		.beta = *beta,
		.a = a,
		.b = b,
		.c = c};
	void *params[] = {&g};

	tern_assert(h->stream && h->has_workspace && h->no_atomics);
	if (fake_blas_sgemm_fails)
		return failing(&fake_blas_sgemm_fails);
	if (lda < (g.a_transposed ? k : m) || ldb < (g.b_transposed ? n : k) || ldc < m)
		return 7;
	return fake_cuda_api()->launch_kernel(
		       h->gemm, 1, 1, 1, 1, 1, 1, 0, h->stream, params, NULL)
		       ? 13
		       : 0;
}

static const char *status_string(int status)
{
	return status == 3    ? "the resource allocation failed"
	       : status == 13 ? "the function failed to launch on the GPU"
			      : "an unsupported value or parameter was passed";
}

const struct tern_cublas_api fake_blas = {.create = create,
	.destroy = destroy,
	.get_version = get_version,
	.set_stream = set_stream,
	.set_workspace = set_workspace,
	.set_math_mode = set_math_mode,
	.set_atomics_mode = set_atomics_mode,
	.sgemm = sgemm,
	.status_string = status_string};
