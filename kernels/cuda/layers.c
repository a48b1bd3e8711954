/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches the kernels of the layers. Matrix products use cuBLAS; without cuBLAS, and for
 * an inner size of 0, Tern's own kernel. All other parts use Tern's kernels; operations
 * on the same elements are combined into one kernel.
 */
#include <errno.h>
#include <limits.h>

#include "base/util.h"
#include "kernels/cuda/cuda_kernels.h"

/* ---- matrix products ---- */

/* A product of row-major matrices: c[m][n] = a b; a is a[m][k] or (transposed) a[k][m], b
 * is b[k][n] or (transposed) b[n][k]. */
struct product {
	float *c;
	const float *a, *b;
	bool a_transposed, b_transposed;
	uint64_t m, n, k;
};

static int multiply_tiled(struct tern_cuda_kernels *k, const struct product *p)
{
	const struct tern_cuda_matmul a = {.c = p->c,
		.a = p->a,
		.b = p->b,
		.m = p->m,
		.n = p->n,
		.k = p->k,
		.column_tiles = div_up(p->n, TERN_TILE),
		.a_transposed = p->a_transposed,
		.b_transposed = p->b_transposed};

	return cuda_launch(
		k, TERN_CUDA_matmul, div_up(p->m, TERN_TILE) * a.column_tiles, &a);
}

/* cuBLAS is column-major, so it reads a row-major matrix as its transpose. Therefore this
 * computes c' = b' a' (' means transposed). */
static int multiply_blas(struct tern_cuda_kernels *k, const struct product *p)
{
	const float one = 1.0f, zero = 0.0f;
	uint64_t lda = p->a_transposed ? p->m : p->k, ldb = p->b_transposed ? p->k : p->n;
	int status;

	if (p->m > INT_MAX || p->n > INT_MAX || p->k > INT_MAX)
		return cuda_fail(k, -EOVERFLOW,
			"a matrix is too large for cuBLAS, which counts in 32 bits");
	status = k->blas->sgemm(k->blas_handle,
		p->b_transposed ? TERN_CUBLAS_T : TERN_CUBLAS_N,
		p->a_transposed ? TERN_CUBLAS_T : TERN_CUBLAS_N, (int)p->n, (int)p->m,
		(int)p->k, &one, p->b, (int)ldb, p->a, (int)lda, &zero, p->c, (int)p->n);
	if (status)
		return cuda_fail(
			k, -EIO, "cublasSgemm: %s", k->blas->status_string(status));
	return 0;
}

static int multiply(struct tern_cuda_kernels *k, const struct product *p)
{
	if (p->m == 0 || p->n == 0)
		return 0;
	return k->blas && p->k > 0 ? multiply_blas(k, p) : multiply_tiled(k, p);
}

/* ---- dense layers ---- */

int tern_cuda_dense_forward(struct tern_cuda_kernels *k, float *y, const float *x,
	const float *w, const float *b, uint64_t rows, uint64_t in, uint64_t out,
	bool relu)
{
	const struct product p = {.c = y, .a = x, .b = w, .m = rows, .n = out, .k = in};
	const struct tern_cuda_bias a = {.y = y,
		.b = b,
		.span = cuda_span(rows * out, y, sizeof(*y)),
		.out = out,
		.relu = relu};
	int r = multiply(k, &p);

	return r < 0 ? r : cuda_launch(k, TERN_CUDA_bias, cuda_span_blocks(&a.span), &a);
}

int tern_cuda_dense_backward(struct tern_cuda_kernels *k, float *dx, float *dw, float *db,
	float *dy, const float *y, const float *x, const float *w, uint64_t rows,
	uint64_t in, uint64_t out, bool relu)
{
	const struct tern_cuda_bias_grad a = {
		.db = db, .dy = dy, .y = y, .rows = rows, .out = out, .relu = relu};
	const struct product to_w = {.c = dw,
		.a = x,
		.a_transposed = true,
		.b = dy,
		.m = in,
		.n = out,
		.k = rows};
	int r = cuda_launch(k, TERN_CUDA_bias_grad, div_up(out, TERN_BIAS_COLUMNS), &a);

	if (r == 0)
		r = multiply(k, &to_w);
	if (r == 0 && dx)
		r = tern_cuda_dense_backward_input(k, dx, dy, w, rows, in, out);
	return r;
}

int tern_cuda_dense_backward_input(struct tern_cuda_kernels *k, float *dx,
	const float *dy, const float *w, uint64_t rows, uint64_t in, uint64_t out)
{
	const struct product to_x = {.c = dx,
		.a = dy,
		.b = w,
		.b_transposed = true,
		.m = rows,
		.n = in,
		.k = out};

	return multiply(k, &to_x);
}

/* ---- softmax and cross-entropy ---- */

int tern_cuda_softmax_xent(struct tern_cuda_kernels *k, struct tern_cuda_result *result,
	float *dlogits, const float *logits, const int32_t *labels, uint64_t rows,
	uint64_t classes)
{
	const struct tern_cuda_xent a = {.dlogits = dlogits,
		.logits = logits,
		.labels = labels,
		.results = k->results,
		.rows = rows,
		.classes = classes};
	const struct tern_cuda_xent_total total = {.out = (struct tern_cuda_row *)result,
		.results = k->results,
		.rows = rows};
	int r;

	if (rows > k->sizes.xent_rows)
		return cuda_fail(k, -E2BIG,
			"softmax over %llu rows: the workspace has room for %llu",
			(unsigned long long)rows, (unsigned long long)k->sizes.xent_rows);
	r = cuda_launch(k, TERN_CUDA_xent, div_up(rows, TERN_XENT_ROWS), &a);
	return r < 0 ? r : cuda_launch(k, TERN_CUDA_xent_total, 1, &total);
}

/* ---- embeddings ---- */

int tern_cuda_embed_forward(struct tern_cuda_kernels *k, float *y, const float *table,
	const int32_t *ids, uint64_t rows, uint64_t width)
{
	struct tern_cuda_gather a = {.y = y,
		.table = table,
		.ids = ids,
		.span = cuda_span(rows * width, y, sizeof(*y)),
		.width = width};

	cuda_span_with(&a.span, table, sizeof(*table));
	if (a.span.shift || width % TERN_QUAD_ELEMENTS)
		a.span.quads = 0;
	return cuda_launch(k, TERN_CUDA_gather, cuda_span_blocks(&a.span), &a);
}

/* Sorts the ids, and the positions along with them; the result is in *ids and
 * *positions. */
static int sort(struct tern_cuda_kernels *k, const int32_t **ids,
	const uint32_t **positions, uint64_t rows, uint64_t table_rows)
{
	struct tern_cuda_sort a = {
		.counts = k->counts, .rows = rows, .tiles = div_up(rows, TERN_SORT_TILE)};
	unsigned pass = 0;
	int r = 0;

	do {
		a.ids = *ids;
		a.positions = *positions;
		a.ids_out = k->sorted_ids[pass % 2];
		a.positions_out = k->positions[pass % 2];
		a.shift = pass * TERN_SORT_BITS;
		r = cuda_launch(k, TERN_CUDA_sort_count, a.tiles, &a);
		if (r == 0)
			r = cuda_launch(k, TERN_CUDA_sort_scan, 1, &a);
		if (r == 0)
			r = cuda_launch(k, TERN_CUDA_sort_move, a.tiles, &a);
		*ids = a.ids_out;
		*positions = a.positions_out;
		pass++;
	} while (r == 0 && (table_rows - 1) >> (pass * TERN_SORT_BITS));
	return r;
}

int tern_cuda_embed_backward(struct tern_cuda_kernels *k, float *dtable, const float *dy,
	const int32_t *ids, uint64_t rows, uint64_t width, uint64_t table_rows)
{
	struct tern_cuda_scatter a = {.dtable = dtable,
		.dy = dy,
		.ids = ids,
		.rows = rows,
		.width = width,
		.column_blocks = div_up(width, TERN_COLUMNS)};
	bool sorted = cuda_embed_sorts(rows, table_rows);
	int r = 0;

	if (rows > k->sizes.embed_rows || table_rows > k->sizes.embed_table_rows)
		return cuda_fail(k, -E2BIG,
			"gradient of an embedding with %llu ids and a table of %llu "
			"rows: the workspace has room for %llu ids and %llu rows",
			(unsigned long long)rows, (unsigned long long)table_rows,
			(unsigned long long)k->sizes.embed_rows,
			(unsigned long long)k->sizes.embed_table_rows);
	if (sorted)
		r = sort(k, &a.ids, &a.positions, rows, table_rows);
	if (r < 0)
		return r;
	return cuda_launch(k, sorted ? TERN_CUDA_embed_sorted : TERN_CUDA_embed_scan,
		table_rows * a.column_blocks, &a);
}
