/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products by OpenBLAS on one thread (one, two and three threads give three
 * different results), or by plain C with a fixed order of additions. Plain C is used if
 * OpenBLAS is not built in, and always for the table "portable", since OpenBLAS gives
 * different bits on different processors.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/util.h"
#include "kernels/variants.h"
#include "tern-config.h"

/* Computes c row by row: the inner loop runs along rows of c, and of b unless b is
 * transposed. */
void tern_matmul_portable(float *c, const float *a, bool a_transposed, const float *b,
	bool b_transposed, size_t m, size_t n, size_t k, bool add)
{
	for (size_t i = 0; i < m; i++) {
		float *row = c + i * n;

		if (!add)
			memset(row, 0, n * sizeof(*row));
		for (size_t l = 0; l < k; l++) {
			float x = a_transposed ? a[l * m + i] : a[i * k + l];

			for (size_t j = 0; j < n; j++)
				row[j] +=
					x * (b_transposed ? b[j * k + l] : b[l * n + j]);
		}
	}
}

#if TERN_HAVE_OPENBLAS
#include <cblas.h>

void tern_matmul(float *c, const float *a, bool a_transposed, const float *b,
	bool b_transposed, size_t m, size_t n, size_t k, bool add)
{
	cblas_sgemm(CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans,
		b_transposed ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n,
		(blasint)k, 1.0f, a, (blasint)(a_transposed ? m : k), b,
		(blasint)(b_transposed ? k : n), add ? 1.0f : 0.0f, c, (blasint)n);
}

void tern_matmul_init(void)
{
	openblas_set_num_threads(1);
}

/* Side of a matrix that is too large for OpenBLAS's kernel for small matrices, which
 * would allocate no buffer. */
#define RESERVE_SIDE 256u

int tern_kernels_reserve(void)
{
	static float a[RESERVE_SIDE * RESERVE_SIDE], c[RESERVE_SIDE * RESERVE_SIDE];
	void *room = mmap(NULL, TERN_KERNELS_BYTES, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	/* Tests whether OpenBLAS will get its memory: version 0.3, built for many
	 * processors, maps 256 MiB and keeps half of it. */
	if (room == MAP_FAILED)
		return -ENOMEM;
	munmap(room, TERN_KERNELS_BYTES);
	tern_matmul(
		c, a, false, a, false, RESERVE_SIDE, RESERVE_SIDE, RESERVE_SIDE, false);
	return 0;
}

const char *tern_matmul_name(void)
{
	static char name[64];
	char version[24] = "?";

	sscanf(openblas_get_config(), "OpenBLAS %23s", version);
	snprintf(name, sizeof(name), "openblas %s %s", version, openblas_get_corename());
	return name;
}
#else
void tern_matmul(float *c, const float *a, bool a_transposed, const float *b,
	bool b_transposed, size_t m, size_t n, size_t k, bool add)
{
	tern_matmul_portable(c, a, a_transposed, b, b_transposed, m, n, k, add);
}

void tern_matmul_init(void)
{
}

int tern_kernels_reserve(void)
{
	return 0;
}

const char *tern_matmul_name(void)
{
	return TERN_MATMUL_PORTABLE;
}
#endif
