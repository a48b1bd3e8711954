/* SPDX-License-Identifier: Apache-2.0 */
/* The layers of the CPU's tables: matrix products by OpenBLAS, or by plain C in the table
 * "portable" and without OpenBLAS (matmul.c); all other parts are in this file, with a
 * fixed order of additions. */
#include <math.h>
#include <string.h>

#include "base/util.h"
#include "kernels/variants.h"

static void forward(tern_matmul_fn *matmul, float *y, const float *x, const float *w,
	const float *b, size_t rows, size_t in, size_t out, int relu)
{
	for (size_t i = 0; i < rows; i++)
		memcpy(y + i * out, b, out * sizeof(*y));
	matmul(y, x, false, w, false, rows, out, in, true);
	for (size_t j = 0; relu && j < rows * out; j++)
		y[j] = y[j] > 0.0f ? y[j] : 0.0f;
}

static void backward(tern_matmul_fn *matmul, float *dx, float *dw, float *db, float *dy,
	const float *y, const float *x, const float *w, size_t rows, size_t in,
	size_t out, int relu)
{
	for (size_t j = 0; relu && j < rows * out; j++)
		dy[j] = y[j] > 0.0f ? dy[j] : 0.0f;
	memset(db, 0, out * sizeof(*db));
	for (size_t i = 0; i < rows; i++)
		for (size_t j = 0; j < out; j++)
			db[j] += dy[i * out + j];
	matmul(dw, x, true, dy, false, in, out, rows, false);
	if (dx)
		matmul(dx, dy, false, w, true, rows, in, out, false);
}

static void dense_forward(float *y, const float *x, const float *w, const float *b,
	size_t rows, size_t in, size_t out, int relu)
{
	forward(tern_matmul, y, x, w, b, rows, in, out, relu);
}

static void dense_backward(float *dx, float *dw, float *db, float *dy, const float *y,
	const float *x, const float *w, size_t rows, size_t in, size_t out, int relu)
{
	backward(tern_matmul, dx, dw, db, dy, y, x, w, rows, in, out, relu);
}

static void portable_forward(float *y, const float *x, const float *w, const float *b,
	size_t rows, size_t in, size_t out, int relu)
{
	forward(tern_matmul_portable, y, x, w, b, rows, in, out, relu);
}

static void portable_backward(float *dx, float *dw, float *db, float *dy, const float *y,
	const float *x, const float *w, size_t rows, size_t in, size_t out, int relu)
{
	backward(tern_matmul_portable, dx, dw, db, dy, y, x, w, rows, in, out, relu);
}

/* Computes one row: returns its loss, sets *best to the index of the largest logit, and
 * writes the softmax to p unless p is NULL. */
static double row_xent(
	float *p, const float *logits, int32_t label, size_t classes, size_t *best)
{
	float top = logits[0], chosen = logits[label];
	double sum = 0;

	*best = 0;
	for (size_t j = 1; j < classes; j++)
		if (logits[j] > top) {
			top = logits[j];
			*best = j;
		}
	for (size_t j = 0; j < classes; j++) {
		double e = exp((double)(logits[j] - top));

		sum += e;
		if (p)
			p[j] = (float)e;
	}
	for (size_t j = 0; p && j < classes; j++)
		p[j] = (float)((double)p[j] / sum);
	return log(sum) - (double)(chosen - top);
}

static double softmax_xent(float *dlogits, const float *logits, const int32_t *labels,
	size_t rows, size_t classes, size_t *correct)
{
	double loss = 0;
	size_t hits = 0;

	for (size_t i = 0; i < rows; i++) {
		float *d = dlogits ? dlogits + i * classes : NULL;
		size_t best, label = (size_t)labels[i];

		loss += row_xent(d, logits + i * classes, labels[i], classes, &best);
		hits += best == label;
		if (!d)
			continue;
		d[label] -= 1.0f;
		for (size_t j = 0; j < classes; j++)
			d[j] /= (float)rows;
	}
	if (correct)
		*correct = hits;
	return loss;
}

static void embed_forward(
	float *y, const float *table, const int32_t *ids, size_t rows, size_t width)
{
	for (size_t i = 0; i < rows; i++)
		memcpy(y + i * width, table + (size_t)ids[i] * width, width * sizeof(*y));
}

static void embed_backward(float *dtable, const float *dy, const int32_t *ids,
	size_t rows, size_t width, size_t table_rows)
{
	memset(dtable, 0, table_rows * width * sizeof(*dtable));
	for (size_t i = 0; i < rows; i++) {
		float *d = dtable + (size_t)ids[i] * width;

		for (size_t j = 0; j < width; j++)
			d[j] += dy[i * width + j];
	}
}

void tern_layers_fill(struct tern_kernels *k, bool portable)
{
	k->dense_forward = portable ? portable_forward : dense_forward;
	k->dense_backward = portable ? portable_backward : dense_backward;
	k->softmax_xent = softmax_xent;
	k->embed_forward = embed_forward;
	k->embed_backward = embed_backward;
}
