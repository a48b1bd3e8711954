/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of a layer other than matrix products, as functions of one block. One kernel
 * adds the bias and applies ReLU. One masks dy by ReLU and sums it to the bias' gradient.
 * One computes softmax, cross-entropy and their gradient. A sum is split over a fixed
 * number of lanes. Each lane (one thread) adds its elements from the first to the last;
 * then the lanes are added by halves. So the bits depend on the shape and the elements,
 * never on the device.
 */
#ifndef TERN_KERNELS_CUDA_BLOCKS_LAYERS_H
#define TERN_KERNELS_CUDA_BLOCKS_LAYERS_H

#include "kernels/cuda/blocks/elementwise.h"
#include "kernels/cuda/blocks/squares.h"

/* ---- y[rows][out] += b[out]; then, if relu, max(0, .) ---- */

struct tern_cuda_bias {
	float *y;
	const float *b;
	struct tern_span span; /* over the rows * out elements of y */
	uint64_t out;
	uint32_t relu;
};

TERN_BODY float tern_biased(const struct tern_cuda_bias *a, float y, uint64_t column)
{
	float sum = y + a->b[column];

	return a->relu && !(sum > 0.0f) ? 0.0f : sum;
}

TERN_BODY void tern_bias_one(const struct tern_cuda_bias *a, uint64_t e)
{
	a->y[e] = tern_biased(a, a->y[e], e % a->out);
}

/* Returns the column of element e in a matrix with `out` columns. A 64-bit division takes
 * longer than the memory access, and nearly all layers need only 32 bits. */
TERN_BODY uint64_t tern_column(uint64_t e, uint64_t out)
{
	if (((e | out) >> 32) == 0)
		return (uint32_t)e % (uint32_t)out;
	return e % out;
}

TERN_BODY void tern_bias_quad(const struct tern_cuda_bias *a, uint64_t e)
{
	struct tern_quad q = tern_quad_get(a->y + e);
	uint64_t column = tern_column(e, a->out);

	TERN_UNROLL
	for (unsigned k = 0; k < TERN_QUAD_ELEMENTS; k++) {
		q.at[k] = tern_biased(a, q.at[k], column);
		column = column + 1 < a->out ? column + 1 : 0;
	}
	tern_quad_put(a->y + e, q);
}

TERN_BODY void tern_block_bias(const struct tern_cuda_bias *a, uint64_t block)
{
	TERN_EACH_QUAD(a, &a->span, block, tern_bias_quad, tern_bias_one)
}

/* ---- dy = 0 where y is not above 0 (if relu), db[out] = its column sums ---- */

/* A block has few columns, so that there are enough blocks for the whole device. A warp
 * reads 32 bytes of each of four rows: 32 bytes is the unit in which GPU memory moves
 * data. */
#define TERN_BIAS_COLUMNS 8u
#define TERN_BIAS_LANES   32u /* lane l adds rows l, l + 32, ... */
#define TERN_BIAS_THREADS (TERN_BIAS_COLUMNS * TERN_BIAS_LANES)
#define TERN_BIAS_AHEAD   8u /* rows that a lane reads before it adds them to its sum */

struct tern_cuda_bias_grad {
	float *db, *dy;
	const float *y; /* used only if relu */
	uint64_t rows, out;
	uint32_t relu;
};

/* Adds TERN_BIAS_AHEAD rows of a lane, from row i on, to `sum`. The source has all reads
 * before the writes: the compiler may not move a read before a write, since dy might be
 * y. */
TERN_BODY float tern_add_rows(
	const struct tern_cuda_bias_grad *a, float sum, uint64_t i, uint64_t column)
{
	float d[TERN_BIAS_AHEAD], y[TERN_BIAS_AHEAD];

	TERN_UNROLL
	for (unsigned k = 0; k < TERN_BIAS_AHEAD; k++) {
		uint64_t row = i + k * TERN_BIAS_LANES;

		d[k] = row < a->rows ? a->dy[row * a->out + column] : 0.0f;
		y[k] = a->relu && row < a->rows ? a->y[row * a->out + column] : 1.0f;
	}
	TERN_UNROLL
	for (unsigned k = 0; k < TERN_BIAS_AHEAD; k++) {
		uint64_t row = i + k * TERN_BIAS_LANES;

		if (row < a->rows) {
			float masked = y[k] > 0.0f ? d[k] : 0.0f;

			if (a->relu)
				a->dy[row * a->out + column] = masked;
			sum += masked;
		}
	}
	return sum;
}

TERN_BODY void tern_block_bias_grad(const struct tern_cuda_bias_grad *a, uint64_t block)
{
	TERN_SHARED float part[TERN_BIAS_THREADS];
	uint64_t first = block * TERN_BIAS_COLUMNS;

	TERN_EACH (t, TERN_BIAS_THREADS) {
		uint64_t column = first + t % TERN_BIAS_COLUMNS;
		float sum = 0;

		if (column < a->out)
			for (uint64_t i = t / TERN_BIAS_COLUMNS; i < a->rows;
				i += TERN_BIAS_AHEAD * TERN_BIAS_LANES)
				sum = tern_add_rows(a, sum, i, column);
		part[t] = sum;
	}
	TERN_BARRIER();
	/* Adds the lanes by halves. Thread t belongs to lane t / TERN_BIAS_COLUMNS, so
	 * half of the threads is half of the lanes. Ends when one lane remains. */
	for (unsigned half = TERN_BIAS_THREADS / 2; half >= TERN_BIAS_COLUMNS;
		half /= 2) {
		TERN_EACH (t, TERN_BIAS_THREADS)
			if (t < half)
				part[t] += part[t + half];
		TERN_BARRIER();
	}
	TERN_EACH (t, TERN_BIAS_THREADS)
		if (t < TERN_BIAS_COLUMNS && first + t < a->out)
			a->db[first + t] = part[t];
}

/* ---- softmax and cross-entropy ---- */

#define TERN_XENT_LANES   32u /* lanes (threads) per row */
#define TERN_XENT_ROWS    4u  /* rows per block */
#define TERN_XENT_THREADS (TERN_XENT_LANES * TERN_XENT_ROWS)

struct tern_cuda_row { /* what one row adds to the result */
	double loss;
	uint64_t correct;
};

struct tern_cuda_xent {
	float *dlogits; /* gradient of the logits; may be `logits`, or NULL */
	const float *logits;
	const int32_t *labels;
	struct tern_cuda_row *results; /* one per row */
	uint64_t rows, classes;
};

struct tern_xent_top { /* the largest logit so far; of equal logits, the first */
	float value;
	uint64_t index;
};

/* Takes a logit into account for the maximum. A NaN is ignored here, as the CPU ignores
 * it in all logits but the first (see tern_block_xent()). */
TERN_BODY void tern_top_take(struct tern_xent_top *top, float value, uint64_t index)
{
	if (value > top->value || (value == top->value && index < top->index)) {
		top->value = value;
		top->index = index;
	}
}

TERN_BODY struct tern_xent_top tern_top_of_lane(
	const float *row, uint64_t classes, unsigned lane)
{
	struct tern_xent_top top = {-INFINITY, UINT64_MAX};

	for (uint64_t j = lane; j < classes; j += TERN_XENT_LANES)
		tern_top_take(&top, row[j], j);
	return top;
}

/* Sums exp(logit - top) over a lane's classes. The exponentials, rounded to float, stay
 * in d until the sum of all lanes is known. */
TERN_BODY double tern_exponentials_of_lane(
	float *d, const float *row, uint64_t classes, float top, unsigned lane)
{
	double sum = 0;

	for (uint64_t j = lane; j < classes; j += TERN_XENT_LANES) {
		double e = exp((double)(row[j] - top));

		sum += e;
		if (d)
			d[j] = (float)e;
	}
	return sum;
}

TERN_BODY void tern_gradient_of_lane(float *d, const struct tern_cuda_xent *a,
	uint64_t label, double sum, unsigned lane)
{
	for (uint64_t j = lane; j < a->classes; j += TERN_XENT_LANES) {
		float p = (float)((double)d[j] / sum);

		d[j] = (j == label ? p - 1.0f : p) / (float)a->rows;
	}
}

TERN_BODY void tern_block_xent(const struct tern_cuda_xent *a, uint64_t block)
{
	TERN_SHARED struct tern_xent_top tops[TERN_XENT_THREADS];
	TERN_SHARED double sums[TERN_XENT_THREADS];
	TERN_SHARED float chosen[TERN_XENT_ROWS];
	uint64_t first = block * TERN_XENT_ROWS;

	TERN_EACH (t, TERN_XENT_THREADS) {
		uint64_t i = first + t / TERN_XENT_LANES;

		if (i < a->rows) {
			const float *row = a->logits + i * a->classes;
			unsigned lane = t % TERN_XENT_LANES;

			tops[t] = tern_top_of_lane(row, a->classes, lane);
			/* On the CPU a NaN in the first logit stays the maximum: here
			 * infinity stands for it, so that index 0 wins. */
			if (lane == 0 && !(row[0] == row[0]))
				tern_top_take(&tops[t], INFINITY, 0);
			if (lane == 0)
				chosen[t / TERN_XENT_LANES] = row[a->labels[i]];
		}
	}
	TERN_BARRIER();
	for (unsigned half = TERN_XENT_LANES / 2; half > 0; half /= 2) {
		TERN_EACH (t, TERN_XENT_THREADS)
			if (t % TERN_XENT_LANES < half &&
				first + t / TERN_XENT_LANES < a->rows)
				tern_top_take(&tops[t], tops[t + half].value,
					tops[t + half].index);
		TERN_BARRIER();
	}
	TERN_EACH (t, TERN_XENT_THREADS) {
		uint64_t i = first + t / TERN_XENT_LANES;

		if (i < a->rows)
			sums[t] = tern_exponentials_of_lane(
				a->dlogits ? a->dlogits + i * a->classes : NULL,
				a->logits + i * a->classes, a->classes,
				tops[t - t % TERN_XENT_LANES].value, t % TERN_XENT_LANES);
	}
	TERN_BARRIER();
	for (unsigned half = TERN_XENT_LANES / 2; half > 0; half /= 2) {
		TERN_EACH (t, TERN_XENT_THREADS)
			if (t % TERN_XENT_LANES < half &&
				first + t / TERN_XENT_LANES < a->rows)
				sums[t] += sums[t + half];
		TERN_BARRIER();
	}
	TERN_EACH (t, TERN_XENT_THREADS) {
		unsigned lane = t % TERN_XENT_LANES, row = t / TERN_XENT_LANES;
		uint64_t i = first + row;

		if (i < a->rows) {
			uint64_t label = (uint64_t)a->labels[i];
			const struct tern_xent_top *top = &tops[t - lane];

			if (a->dlogits)
				tern_gradient_of_lane(a->dlogits + i * a->classes, a,
					label, sums[t - lane], lane);
			if (lane == 0) {
				double below = (double)(chosen[row] - top->value);

				a->results[i].loss = log(sums[t]) - below;
				a->results[i].correct = top->index == label;
			}
		}
	}
}

/* The second pass, in one block: sums loss and correct over the rows. */
struct tern_cuda_xent_total {
	struct tern_cuda_row *out;
	const struct tern_cuda_row *results;
	uint64_t rows;
};

TERN_BODY void tern_block_xent_total(const struct tern_cuda_xent_total *a, uint64_t block)
{
	TERN_SHARED double loss[TERN_REDUCE_THREADS];
	TERN_SHARED uint64_t correct[TERN_REDUCE_THREADS];

	(void)block;
	TERN_EACH (t, TERN_REDUCE_THREADS) {
		loss[t] = 0;
		correct[t] = 0;
		for (uint64_t i = t; i < a->rows; i += TERN_REDUCE_THREADS) {
			loss[t] += a->results[i].loss;
			correct[t] += a->results[i].correct;
		}
	}
	TERN_BARRIER();
	TERN_ADD_HALVES(loss, TERN_REDUCE_THREADS)
	TERN_ADD_HALVES(correct, TERN_REDUCE_THREADS)
	TERN_EACH (t, TERN_REDUCE_THREADS)
		if (t == 0) {
			a->out->loss = loss[0];
			a->out->correct = correct[0];
		}
}

#endif
