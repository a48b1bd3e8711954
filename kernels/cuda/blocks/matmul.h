/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrix product for tables without cuBLAS, as a function of one block. A block
 * computes a tile of 64 x 64 elements of c, and each thread 4 x 4 of them. The products
 * of an element are added in the order of k, each with a fused multiply-add. So the bits
 * of an element depend only on its row of a and its column of b. The kernel is meant for
 * correctness, not for speed: cuBLAS is several times faster.
 */
#ifndef TERN_KERNELS_CUDA_BLOCKS_MATMUL_H
#define TERN_KERNELS_CUDA_BLOCKS_MATMUL_H

#include "kernels/cuda/blocks/block.h"

#define TERN_TILE         64u
#define TERN_TILE_DEPTH   16u
#define TERN_TILE_THREADS 256u
#define TERN_TILE_SIDE    16u /* threads along one side of a tile */
#define TERN_TILE_OWN     4u  /* elements of one thread along one side of a tile */

/* A product of row-major matrices: c[m][n] = a b; a is a[m][k], or a[k][m] if transposed;
 * b is b[k][n], or b[n][k] if transposed. */
struct tern_cuda_matmul {
	float *c;
	const float *a, *b;
	uint64_t m, n, k, column_tiles;
	uint32_t a_transposed, b_transposed;
};

struct tern_tile { /* indexed by [depth][row of a, or column of b] */
	float a[TERN_TILE_DEPTH][TERN_TILE + 1], b[TERN_TILE_DEPTH][TERN_TILE + 1];
};

struct tern_tile_sums {
	float at[TERN_TILE_OWN][TERN_TILE_OWN];
};

/* Returns element (row, l) of an operand with `rows` rows of `depth` elements, which is
 * stored transposed if `by_depth`; 0 for an element outside. */
TERN_BODY float tern_operand(const float *x, uint32_t by_depth, uint64_t rows,
	uint64_t depth, uint64_t row, uint64_t l)
{
	if (row >= rows || l >= depth)
		return 0.0f;
	return by_depth ? x[l * rows + row] : x[row * depth + l];
}

/* Loads one operand's part of a tile into shared memory. Neighbouring threads read
 * neighbouring addresses. */
TERN_BODY void tern_tile_load(float (*to)[TERN_TILE + 1], const float *x,
	uint32_t by_depth, uint64_t rows, uint64_t depth, uint64_t first, uint64_t from,
	unsigned t)
{
	TERN_UNROLL
	for (unsigned i = 0; i < TERN_TILE * TERN_TILE_DEPTH / TERN_TILE_THREADS; i++) {
		unsigned slot = i * TERN_TILE_THREADS + t;
		unsigned row = by_depth ? slot % TERN_TILE : slot / TERN_TILE_DEPTH;
		unsigned l = by_depth ? slot / TERN_TILE : slot % TERN_TILE_DEPTH;

		to[l][row] =
			tern_operand(x, by_depth, rows, depth, first + row, from + l);
	}
}

TERN_BODY void tern_tile_multiply(
	struct tern_tile_sums *sums, const struct tern_tile *tile, unsigned t)
{
	unsigned row = t / TERN_TILE_SIDE, column = t % TERN_TILE_SIDE;

	for (unsigned l = 0; l < TERN_TILE_DEPTH; l++) {
		TERN_UNROLL
		for (unsigned i = 0; i < TERN_TILE_OWN; i++) {
			float x = tile->a[l][i * TERN_TILE_SIDE + row];

			TERN_UNROLL
			for (unsigned j = 0; j < TERN_TILE_OWN; j++)
				sums->at[i][j] =
					fmaf(x, tile->b[l][j * TERN_TILE_SIDE + column],
						sums->at[i][j]);
		}
	}
}

TERN_BODY void tern_tile_store(const struct tern_cuda_matmul *a,
	const struct tern_tile_sums *sums, uint64_t first_row, uint64_t first_column,
	unsigned t)
{
	TERN_UNROLL
	for (unsigned i = 0; i < TERN_TILE_OWN; i++) {
		uint64_t row = first_row + i * TERN_TILE_SIDE + t / TERN_TILE_SIDE;

		TERN_UNROLL
		for (unsigned j = 0; j < TERN_TILE_OWN; j++) {
			uint64_t column =
				first_column + j * TERN_TILE_SIDE + t % TERN_TILE_SIDE;

			if (row < a->m && column < a->n)
				a->c[row * a->n + column] = sums->at[i][j];
		}
	}
}

TERN_BODY void tern_block_matmul(const struct tern_cuda_matmul *a, uint64_t block)
{
	TERN_SHARED struct tern_tile tile;
	struct tern_tile_sums sums[TERN_KEPT(TERN_TILE_THREADS)] = {{{{0}}}};
	uint64_t row = block / a->column_tiles * TERN_TILE;
	uint64_t column = block % a->column_tiles * TERN_TILE;

	for (uint64_t from = 0; from < a->k; from += TERN_TILE_DEPTH) {
		TERN_EACH (t, TERN_TILE_THREADS) {
			tern_tile_load(
				tile.a, a->a, a->a_transposed, a->m, a->k, row, from, t);
			tern_tile_load(tile.b, a->b, !a->b_transposed, a->n, a->k, column,
				from, t);
		}
		TERN_BARRIER();
		TERN_EACH (t, TERN_TILE_THREADS)
			tern_tile_multiply(&sums[TERN_MINE(t)], &tile, t);
		TERN_BARRIER();
	}
	TERN_EACH (t, TERN_TILE_THREADS)
		tern_tile_store(a, &sums[TERN_MINE(t)], row, column, t);
}

#endif
