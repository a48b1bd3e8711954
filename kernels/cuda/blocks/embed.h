/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Embeddings, as functions of one block. Forward is a gather of rows of the table.
 * Backward: dtable[id] is the sum of dy[i] over all i with ids[i] == id, added in the
 * order of i, as on the CPU and with the same bits. A block computes TERN_COLUMNS columns
 * of one row of the table. It needs the list of all i with that id, in order, and gets it
 * in one of two ways, with the same result:
 *
 *     embed_scan    reads all ids and keeps its own: one launch, best for small tables
 *     embed_sorted  finds its run in the positions sorted by id. The sort is stable:
 *                   radix passes over 4 bits, each made of sort_count (digits of each
 *                   tile), sort_scan (where each tile's digits go) and sort_move
 *
 * All threads together load rows of dy into shared memory; then one thread per column
 * adds them. So an id that occurs often costs additions, but no waits for memory.
 */
#ifndef TERN_KERNELS_CUDA_BLOCKS_EMBED_H
#define TERN_KERNELS_CUDA_BLOCKS_EMBED_H

#include "kernels/cuda/blocks/layers.h"

/* ---- forward: y[rows][width] = table[ids[rows]][width] ---- */

struct tern_cuda_gather {
	float *y;
	const float *table;
	const int32_t *ids;
	/* over rows * width elements; with quads only if no quad crosses the end of a
	 * row */
	struct tern_span span;
	uint64_t width;
};

TERN_BODY const float *tern_gather_from(const struct tern_cuda_gather *a, uint64_t e)
{
	uint64_t column = tern_column(e, a->width), row = (e - column) / a->width;

	return a->table + (uint64_t)a->ids[row] * a->width + column;
}

TERN_BODY void tern_gather_one(const struct tern_cuda_gather *a, uint64_t e)
{
	a->y[e] = *tern_gather_from(a, e);
}

TERN_BODY void tern_gather_quad(const struct tern_cuda_gather *a, uint64_t e)
{
	tern_quad_put(a->y + e, tern_quad_get(tern_gather_from(a, e)));
}

TERN_BODY void tern_block_gather(const struct tern_cuda_gather *a, uint64_t block)
{
	TERN_EACH_QUAD(a, &a->span, block, tern_gather_quad, tern_gather_one)
}

/* ---- a stable sort of (id, position) by id, four bits at a time ---- */

#define TERN_SORT_BITS    4u
#define TERN_SORT_DIGITS  (1u << TERN_SORT_BITS)
#define TERN_SORT_THREADS 256u
#define TERN_SORT_ITEMS   8u /* consecutive ids that one thread handles */
#define TERN_SORT_TILE    (TERN_SORT_THREADS * TERN_SORT_ITEMS)
#define TERN_SORT_CELLS   (TERN_SORT_DIGITS * TERN_SORT_THREADS)

/* One pass of the radix sort. counts[digit][tile] is first the number of the tile's ids
 * with this digit; after the scan it is the output position of the first of them. */
struct tern_cuda_sort {
	const int32_t *ids;
	/* NULL in the first pass: the positions are 0, 1, 2, ... */
	const uint32_t *positions;
	int32_t *ids_out;
	uint32_t *positions_out, *counts;
	uint64_t rows, tiles;
	uint32_t shift;
};

TERN_BODY uint32_t tern_digit(const struct tern_cuda_sort *a, uint64_t i)
{
	return ((uint32_t)a->ids[i] >> a->shift) & (TERN_SORT_DIGITS - 1);
}

TERN_BODY void tern_block_sort_count(const struct tern_cuda_sort *a, uint64_t block)
{
	TERN_SHARED uint32_t counts[TERN_SORT_DIGITS];

	TERN_EACH (t, TERN_SORT_THREADS)
		if (t < TERN_SORT_DIGITS)
			counts[t] = 0;
	TERN_BARRIER();
	/* The order of atomic increments does not change the counts. */
	TERN_EACH (t, TERN_SORT_THREADS)
		for (unsigned k = 0; k < TERN_SORT_ITEMS; k++) {
			uint64_t i = block * TERN_SORT_TILE + k * TERN_SORT_THREADS + t;

			if (i < a->rows)
				TERN_COUNT_UP(&counts[tern_digit(a, i)]);
		}
	TERN_BARRIER();
	TERN_EACH (t, TERN_SORT_THREADS)
		if (t < TERN_SORT_DIGITS)
			a->counts[t * a->tiles + block] = counts[t];
}

/*
 * Prefix sums: sums[t] becomes the sum of sums[0..t], in eight steps that add the element
 * 1, 2, 4, ... before (Hillis, Steele 1986). `other` is a second array of the same size.
 * As the number of steps is even, the result is in `sums` again.
 */
#define TERN_SUM_UP_TO(sums, other)                                                      \
	for (unsigned reach = 1; reach < TERN_SORT_THREADS; reach *= 4) {                \
		TERN_EACH (t, TERN_SORT_THREADS)                                         \
			(other)[t] = (sums)[t] + (t >= reach ? (sums)[t - reach] : 0);   \
		TERN_BARRIER();                                                          \
		TERN_EACH (t, TERN_SORT_THREADS)                                         \
			(sums)[t] = (other)[t] +                                         \
				    (t >= 2 * reach ? (other)[t - 2 * reach] : 0);       \
		TERN_BARRIER();                                                          \
	}

/* In one block: replaces each count by the sum of the counts before it. */
TERN_BODY void tern_block_sort_scan(const struct tern_cuda_sort *a, uint64_t block)
{
	TERN_SHARED uint32_t sums[TERN_SORT_THREADS], other[TERN_SORT_THREADS];
	uint64_t cells = TERN_SORT_DIGITS * a->tiles;
	uint64_t own = (cells + TERN_SORT_THREADS - 1) / TERN_SORT_THREADS;

	(void)block;
	TERN_EACH (t, TERN_SORT_THREADS) {
		sums[t] = 0;
		for (uint64_t i = t * own; i < (t + 1) * own && i < cells; i++)
			sums[t] += a->counts[i];
	}
	TERN_BARRIER();
	TERN_SUM_UP_TO(sums, other)
	TERN_EACH (t, TERN_SORT_THREADS) {
		uint32_t before = t > 0 ? sums[t - 1] : 0;

		for (uint64_t i = t * own; i < (t + 1) * own && i < cells; i++) {
			uint32_t count = a->counts[i];

			a->counts[i] = before;
			before += count;
		}
	}
}

/*
 * Moves the ids of a tile to their places in the output. cells[digit][thread] counts the
 * digits of each thread's consecutive ids; the prefix sums of the cells are the places of
 * the ids within the sorted tile.
 */
TERN_BODY void tern_block_sort_move(const struct tern_cuda_sort *a, uint64_t block)
{
	TERN_SHARED uint16_t cells[TERN_SORT_CELLS];
	TERN_SHARED uint32_t sums[TERN_SORT_THREADS], other[TERN_SORT_THREADS];
	TERN_SHARED uint32_t starts[TERN_SORT_DIGITS];

	TERN_EACH (t, TERN_SORT_THREADS) {
		uint64_t first = block * TERN_SORT_TILE + t * TERN_SORT_ITEMS;

		for (unsigned d = 0; d < TERN_SORT_DIGITS; d++)
			cells[d * TERN_SORT_THREADS + t] = 0;
		for (uint64_t i = first; i < first + TERN_SORT_ITEMS && i < a->rows; i++)
			cells[tern_digit(a, i) * TERN_SORT_THREADS + t]++;
	}
	TERN_BARRIER();
	TERN_EACH (t, TERN_SORT_THREADS) {
		sums[t] = 0;
		for (unsigned k = 0; k < TERN_SORT_DIGITS; k++)
			sums[t] += cells[t * TERN_SORT_DIGITS + k];
	}
	TERN_BARRIER();
	TERN_SUM_UP_TO(sums, other)
	TERN_EACH (t, TERN_SORT_THREADS) {
		uint32_t before = t > 0 ? sums[t - 1] : 0;

		for (unsigned k = 0; k < TERN_SORT_DIGITS; k++) {
			uint16_t *cell = &cells[t * TERN_SORT_DIGITS + k];
			uint32_t count = *cell;

			*cell = (uint16_t)before;
			before += count;
		}
	}
	TERN_BARRIER();
	TERN_EACH (t, TERN_SORT_THREADS)
		if (t < TERN_SORT_DIGITS)
			starts[t] = cells[t * TERN_SORT_THREADS];
	TERN_BARRIER();
	TERN_EACH (t, TERN_SORT_THREADS) {
		uint64_t first = block * TERN_SORT_TILE + t * TERN_SORT_ITEMS;

		for (uint64_t i = first; i < first + TERN_SORT_ITEMS && i < a->rows;
			i++) {
			uint32_t d = tern_digit(a, i);
			uint32_t rank = cells[d * TERN_SORT_THREADS + t]++;
			uint64_t to = a->counts[d * a->tiles + block] + rank - starts[d];

			a->ids_out[to] = a->ids[i];
			a->positions_out[to] =
				a->positions ? a->positions[i] : (uint32_t)i;
		}
	}
}

/* ---- backward: dtable[table_rows][width] ---- */

/* columns of one block, so that a warp reads 128 bytes of a row */
#define TERN_COLUMNS       32u
#define TERN_EMBED_THREADS 256u
/* rows of dy that a block loads at a time */
#define TERN_EMBED_STAGE 128u
/* ids that a block reads at a time */
#define TERN_EMBED_SCAN (4u * TERN_EMBED_THREADS)

struct tern_cuda_scatter {
	float *dtable;
	const float *dy;
	/* for embed_sorted: sorted, in the order of `positions` */
	const int32_t *ids;
	/* for embed_sorted only: position of each id before sorting */
	const uint32_t *positions;
	uint64_t rows, width, column_blocks;
};

/* The operands of a block: columns first .. first + 31 of the rows dy[list[0..count)]. */
struct tern_addends {
	const float *dy;
	const uint32_t *list;
	uint64_t count, width, first;
};

/* Loads 32 columns of up to TERN_EMBED_STAGE rows of the list, from list[at] on, into the
 * array `stage` in shared memory. */
TERN_BODY void tern_stage(
	const struct tern_addends *x, float *stage, uint64_t at, unsigned t)
{
	uint64_t column = x->first + t % TERN_COLUMNS;

	TERN_UNROLL
	for (unsigned k = 0; k < TERN_EMBED_STAGE * TERN_COLUMNS / TERN_EMBED_THREADS;
		k++) {
		unsigned slot = k * TERN_EMBED_THREADS + t, row = slot / TERN_COLUMNS;

		if (at + row < x->count && column < x->width)
			stage[slot] = x->dy[x->list[at + row] * x->width + column];
	}
}

TERN_BODY float tern_add_staged(const struct tern_addends *x, float sum,
	const float *stage, uint64_t at, unsigned t)
{
	if (x->first + t < x->width)
		for (unsigned row = 0; row < TERN_EMBED_STAGE && at + row < x->count;
			row++)
			sum += stage[row * TERN_COLUMNS + t];
	return sum;
}

/* Adds all rows of the list to sums[TERN_MINE(t)], for threads t below 32 (one per
 * column). Ends with a barrier, unless the list is empty. */
#define TERN_ADD_LIST(x, stage, sums)                                                    \
	for (uint64_t at = 0; at < (x)->count; at += TERN_EMBED_STAGE) {                 \
		TERN_EACH (t, TERN_EMBED_THREADS)                                        \
			tern_stage(x, stage, at, t);                                     \
		TERN_BARRIER();                                                          \
		TERN_EACH (t, TERN_EMBED_THREADS)                                        \
			if (t < TERN_COLUMNS)                                            \
				(sums)[TERN_MINE(t)] = tern_add_staged(                  \
					x, (sums)[TERN_MINE(t)], stage, at, t);          \
		TERN_BARRIER();                                                          \
	}

TERN_BODY void tern_put_sum(const struct tern_cuda_scatter *a, uint64_t id,
	uint64_t first, unsigned t, float sum)
{
	if (t < TERN_COLUMNS && first + t < a->width)
		a->dtable[id * a->width + first + t] = sum;
}

/* Returns the number of ids (which are sorted) that are less than `id`. */
TERN_BODY uint64_t tern_below(const struct tern_cuda_scatter *a, uint64_t id)
{
	uint64_t low = 0, high = a->rows;

	while (low < high) {
		uint64_t mid = (low + high) / 2;

		if ((uint64_t)a->ids[mid] < id)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

TERN_BODY void tern_block_embed_sorted(const struct tern_cuda_scatter *a, uint64_t block)
{
	TERN_SHARED float stage[TERN_EMBED_STAGE * TERN_COLUMNS];
	uint64_t id = block / a->column_blocks, begin = tern_below(a, id);
	struct tern_addends x;
	float sums[TERN_KEPT(TERN_EMBED_THREADS)] = {0};

	x.dy = a->dy;
	x.list = a->positions + begin;
	x.count = tern_below(a, id + 1) - begin;
	x.width = a->width;
	x.first = block % a->column_blocks * TERN_COLUMNS;
	TERN_ADD_LIST(&x, stage, sums)
	TERN_EACH (t, TERN_EMBED_THREADS)
		tern_put_sum(a, id, x.first, t, sums[TERN_MINE(t)]);
}

/* Returns a bit mask: which of the four ids from ids[i] on equal `id`. */
TERN_BODY unsigned tern_matches(
	const struct tern_cuda_scatter *a, uint64_t i, uint64_t id)
{
	unsigned bits = 0;

	TERN_UNROLL
	for (unsigned k = 0; k < 4; k++)
		if (i + k < a->rows && (uint64_t)a->ids[i + k] == id)
			bits |= 1u << k;
	return bits;
}

TERN_BODY void tern_block_embed_scan(const struct tern_cuda_scatter *a, uint64_t block)
{
	TERN_SHARED float stage[TERN_EMBED_STAGE * TERN_COLUMNS];
	TERN_SHARED uint32_t list[TERN_EMBED_SCAN];
	TERN_SHARED uint32_t ends[TERN_EMBED_THREADS], other[TERN_EMBED_THREADS];
	uint64_t id = block / a->column_blocks;
	struct tern_addends x;
	unsigned bits[TERN_KEPT(TERN_EMBED_THREADS)];
	float sums[TERN_KEPT(TERN_EMBED_THREADS)] = {0};

	x.dy = a->dy;
	x.list = list;
	x.width = a->width;
	x.first = block % a->column_blocks * TERN_COLUMNS;
	for (uint64_t from = 0; from < a->rows; from += TERN_EMBED_SCAN) {
		TERN_EACH (t, TERN_EMBED_THREADS) {
			unsigned b = tern_matches(a, from + 4u * t, id);

			bits[TERN_MINE(t)] = b;
			ends[t] = (b & 1) + (b >> 1 & 1) + (b >> 2 & 1) + (b >> 3);
		}
		TERN_BARRIER();
		TERN_SUM_UP_TO(ends, other)
		TERN_EACH (t, TERN_EMBED_THREADS) {
			uint32_t to = t > 0 ? ends[t - 1] : 0;

			for (unsigned k = 0; k < 4; k++)
				if (bits[TERN_MINE(t)] >> k & 1)
					list[to++] = (uint32_t)(from + 4u * t + k);
		}
		TERN_BARRIER();
		x.count = ends[TERN_EMBED_THREADS - 1];
		TERN_ADD_LIST(&x, stage, sums)
		/* The next round overwrites `list` and `ends`, which other threads may
		 * still read: TERN_ADD_LIST() has no barrier if the list is empty. */
		TERN_BARRIER();
	}
	TERN_EACH (t, TERN_EMBED_THREADS)
		tern_put_sum(a, id, x.first, t, sums[TERN_MINE(t)]);
}

#endif
