/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools: slabs (large blocks of registered memory), divided into buffers by a two-level
 * segregated fit allocator (TLSF; Masmano, Ripoll, Crespo, Real: TLSF: a new dynamic
 * memory allocator for real-time systems, 2004). Free blocks are in lists by size class,
 * two bitmaps find the first class that surely fits, and neighbours are merged, so every
 * operation takes constant time, except when a slab is added.
 *
 * Programs that move tensors take and give back the same few sizes all the time. So a
 * block that is given back is first kept aside (not merged, not in a free list) for the
 * next request of exactly its size. At most the size of a sixteenth of a slab is kept
 * aside, since those blocks cannot be merged into larger ones. All blocks kept aside
 * become free when a request finds neither a block of its size kept aside nor a free
 * block that fits, and when it finds no block aside while no buffer is in use.
 *
 * TLSF writes a header in front of each block; this pool keeps the headers in a separate
 * array, with one entry per unit of 64 bytes of the slab. Only the entries at block
 * starts are used, and only touched pages of the array take memory. The headers are
 * outside the slab because peers map slabs, and because the CPU may not be able to access
 * a slab.
 *
 * Invariant: the blocks of a slab follow each other without a gap, no two free blocks are
 * neighbours, and an entry has units == 0 unless a block starts there. So giving back an
 * offset that was never handed out, or twice, is detected. A block kept aside is not
 * merged with its neighbours.
 *
 * A block is named by slab number and unit in 32 bits, which suffices for the largest
 * pool (TERN_POOL_BYTES_MAX, 64 GiB).
 */
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

#include "base/env.h"
#include "base/lock.h"
#include "base/sized.h"
#include "base/util.h"
#include "transport/domain.h"
#include "transport/memory/mem.h"

#define UNIT_BYTES 64ull
#define SLAB_BYTES (64ull << 20)
#define CLASS_BITS 5
#define CLASSES    (1u << CLASS_BITS)
#define LEVELS     (32 - CLASS_BITS)
#define NO_BLOCK   UINT32_MAX
#define IN_USE     (UINT32_MAX - 1) /* value of `next`: the block is in no list */
/* Value of `next`: the block is kept aside for the next request of its size; `prev` is
 * then the next block in that list. */
#define ASIDE       (UINT32_MAX - 2)
#define ASIDE_BITS  3
#define ASIDE_SIZES (1u << ASIDE_BITS)
/* Largest number of blocks of one size that are kept aside. Freeing them all takes about
 * 20 us. */
#define ASIDE_MOST      64u
#define OWN_CLASS_TRIES 8
#define GROUP_BITS      12
#define GROUP           (1u << GROUP_BITS)

struct block {
	/* Size of the block in units of 64 bytes; 0: no block starts here. */
	uint32_t units;
	/* Size of the preceding block in the slab; 0: this is the first block. */
	uint32_t prev_units;
	uint32_t next, prev; /* neighbours in the free list, if the block is in one */
};
#define ENTRIES_PER_LINE (64u / (uint32_t)sizeof(struct block))

/* List of blocks of one size that are kept aside for the next request of this size. */
struct aside {
	uint32_t units, count, head;
};

struct slab {
	struct tern_mem *mem;
	struct block *blocks;
};

struct tern_pool {
	struct tern_domain *domain;
	struct tern_pool_opts opts;
	/* GPU that has the slabs, or for whose copies slabs in host memory are
	 * page-locked; NULL: neither. */
	struct tern_gpu *gpu;
	uint32_t slab_units, slab_shift, slab_max;

	/* Held while a slab is made, which takes long. A thread that needs both locks
	 * takes this one before `lock`. */
	pthread_mutex_t grow_lock;
	struct tern_lock lock; /* protects all members below */
	uint32_t slab_count;
	struct slab *slabs; /* array of slab_max entries */
	uint32_t level_map;
	uint32_t class_map[LEVELS];
	uint32_t heads[LEVELS][CLASSES];
	struct aside aside[ASIDE_SIZES];
	/* Total size of the blocks kept aside, in units of 64 bytes. */
	uint32_t aside_units;
	struct tern_pool_stats stats;
	/* tern_pool_free() was called; the pool is freed when its last buffer is given
	 * back */
	bool given_up;
	bool is_users; /* made by the user; false: made by this library for its own use */
};

/*
 * Index, in the array of headers, of the header for `unit` (64 bytes of the slab).
 * Tensors of one size often lie a power of two apart; if the array were in the order of
 * units, their headers would share a few cache sets. So the upper bits of the unit
 * permute the cache lines within a group. (Measured for blocks of 1 MiB: 51 ns without
 * this permutation, 36 ns with it.)
 */
static uint32_t entry_of(uint32_t unit)
{
	return unit ^ ((unit >> GROUP_BITS) * 0x9e3779b1u >> (32 - GROUP_BITS) &
			      (GROUP - ENTRIES_PER_LINE));
}

static struct block *block_at(struct tern_pool *pool, uint32_t id)
{
	uint32_t unit = id & ((1u << pool->slab_shift) - 1);

	return &pool->slabs[id >> pool->slab_shift].blocks[entry_of(unit)];
}

/* ---- size classes ---- */

struct class
{
	uint32_t level, index;
};

/* The size class of a block of `units`. Each size below CLASSES is a class of its own. */
static struct class class_of(uint32_t units)
{
	uint32_t log;

	if (units < CLASSES)
		return (struct class){0, units};
	log = 31 - (uint32_t)__builtin_clz(units);
	return (struct class){
		log - CLASS_BITS + 1, (units >> (log - CLASS_BITS)) & (CLASSES - 1)};
}

/* The lowest size class in which every block has at least `units`. */
static struct class class_above(uint32_t units)
{
	if (units >= CLASSES)
		units += (1u << (31 - (uint32_t)__builtin_clz(units) - CLASS_BITS)) - 1;
	return class_of(units);
}

static void list_insert(struct tern_pool *pool, uint32_t id)
{
	struct block *block = block_at(pool, id);
	struct class c = class_of(block->units);
	uint32_t *head = &pool->heads[c.level][c.index];

	block->prev = NO_BLOCK;
	block->next = *head;
	if (*head != NO_BLOCK)
		block_at(pool, *head)->prev = id;
	*head = id;
	pool->class_map[c.level] |= 1u << c.index;
	pool->level_map |= 1u << c.level;
}

static void list_remove(struct tern_pool *pool, uint32_t id)
{
	struct block *block = block_at(pool, id);
	struct class c = class_of(block->units);

	if (block->next != NO_BLOCK)
		block_at(pool, block->next)->prev = block->prev;
	if (block->prev != NO_BLOCK) {
		block_at(pool, block->prev)->next = block->next;
	} else {
		pool->heads[c.level][c.index] = block->next;
		if (block->next == NO_BLOCK) {
			pool->class_map[c.level] &= ~(1u << c.index);
			if (!pool->class_map[c.level])
				pool->level_map &= ~(1u << c.level);
		}
	}
	block->next = IN_USE;
}

/* ---- blocks ---- */

/* Stores `units`, the new size of block `id`, in the header of the block that follows, if
 * any. */
static void set_prev_units(struct tern_pool *pool, uint32_t id, uint32_t units)
{
	uint32_t end = (id & ((1u << pool->slab_shift) - 1)) + units;

	if (end < pool->slab_units)
		block_at(pool, id + units)->prev_units = units;
}

static uint32_t find_free(struct tern_pool *pool, uint32_t units)
{
	struct class own = class_of(units), c = class_above(units);
	uint32_t map = c.level < LEVELS ? pool->class_map[c.level] & (~0u << c.index) : 0;
	uint32_t id = pool->heads[own.level][own.index];
	uint32_t tries = OWN_CLASS_TRIES + pool->slab_count;

	/* The block that became free last often has the size that is requested next. */
	if (id != NO_BLOCK && block_at(pool, id)->units >= units)
		return id;
	if (!map && c.level + 1 < LEVELS) {
		uint32_t levels = pool->level_map & (~0u << (c.level + 1));

		if (levels) {
			c.level = (uint32_t)__builtin_ctz(levels);
			map = pool->class_map[c.level];
		}
	}
	if (map)
		return pool->heads[c.level][__builtin_ctz(map)];
	/* The size class of the request itself may also contain blocks that are large
	 * enough. For sizes near a whole slab this is the only class, and it has at most
	 * one block per slab. */
	while (id != NO_BLOCK && block_at(pool, id)->units < units)
		id = --tries ? block_at(pool, id)->next : NO_BLOCK;
	return id;
}

/* Shortens block `id` to `units` and frees the rest. `id` must be in no list. */
static void split(struct tern_pool *pool, uint32_t id, uint32_t units)
{
	struct block *block = block_at(pool, id);
	uint32_t rest = block->units - units;

	if (!rest)
		return;
	block->units = units;
	*block_at(pool, id + units) = (struct block){.units = rest, .prev_units = units};
	set_prev_units(pool, id + units, rest);
	list_insert(pool, id + units);
}

/* Merges block `id` with the block that follows it. Neither may be in a list. */
static void merge(struct tern_pool *pool, uint32_t id)
{
	struct block *block = block_at(pool, id);
	struct block *behind = block_at(pool, id + block->units);

	block->units += behind->units;
	behind->units = 0;
	set_prev_units(pool, id, block->units);
}

static bool is_free(struct tern_pool *pool, uint32_t id)
{
	uint32_t next = block_at(pool, id)->next;

	return next != IN_USE && next != ASIDE;
}

static void free_block(struct tern_pool *pool, uint32_t id)
{
	struct block *block = block_at(pool, id);
	uint32_t end = (id & ((1u << pool->slab_shift) - 1)) + block->units;

	if (end < pool->slab_units && is_free(pool, id + block->units)) {
		list_remove(pool, id + block->units);
		merge(pool, id);
	}
	if (block->prev_units && is_free(pool, id - block->prev_units)) {
		id -= block->prev_units;
		list_remove(pool, id);
		merge(pool, id);
	}
	list_insert(pool, id);
}

/* ---- put aside ---- */

/* The list in which blocks of this size are kept aside. Several sizes share a list, but
 * not at the same time. */
static struct aside *aside_of(struct tern_pool *pool, uint32_t units)
{
	return &pool->aside[units * 0x9e3779b1u >> (32 - ASIDE_BITS)];
}

/* Keeps the block aside for the next request of its size. False: its list is full or has
 * blocks of another size, or the blocks kept aside would exceed a sixteenth of a slab. */
static bool put_aside(struct tern_pool *pool, uint32_t id, struct block *block)
{
	struct aside *aside = aside_of(pool, block->units);

	if (!aside->count)
		aside->units = block->units;
	if (aside->units != block->units || aside->count == ASIDE_MOST ||
		pool->aside_units + block->units > pool->slab_units / 16)
		return false;
	block->next = ASIDE;
	block->prev = aside->head;
	aside->head = id;
	aside->count++;
	pool->aside_units += block->units;
	return true;
}

/* Takes a block of this size that was kept aside. NO_BLOCK: there is none. */
static uint32_t take_aside(struct tern_pool *pool, struct aside *aside, uint32_t units)
{
	uint32_t id = aside->head;
	struct block *block;

	if (!aside->count || aside->units != units)
		return NO_BLOCK;
	block = block_at(pool, id);
	aside->head = block->prev;
	aside->count--;
	pool->aside_units -= units;
	block->next = IN_USE;
	return id;
}

static bool free_all_aside(struct tern_pool *pool)
{
	bool any = false;

	for (uint32_t i = 0; i < ASIDE_SIZES; i++) {
		struct aside *aside = &pool->aside[i];

		for (; aside->count; any = true)
			free_block(pool, take_aside(pool, aside, aside->units));
	}
	return any;
}

/* ---- slabs ---- */

static uint64_t blocks_bytes(const struct tern_pool *pool)
{
	return tern_align_up(pool->slab_units, GROUP) * sizeof(struct block);
}

/* Allocates the zeroed array of block headers for one slab. The array uses small pages,
 * since most of its pages are never touched. */
static struct block *new_blocks(struct tern_pool *pool)
{
	void *blocks = mmap(NULL, blocks_bytes(pool), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (blocks == MAP_FAILED)
		return NULL;
	madvise(blocks, blocks_bytes(pool), MADV_NOHUGEPAGE);
	return blocks;
}

static int new_slab(struct tern_pool *pool, struct tern_mem **out)
{
	uint64_t bytes = pool->slab_units * UNIT_BYTES;

	if (pool->opts.kind == TERN_MEM_CUDA)
		return tern_mem_new_cuda_slab(pool->domain, pool->gpu, bytes, out);
	if (pool->gpu)
		return tern_mem_new_locked_slab(pool->domain, pool->gpu, bytes, out);
	return tern_mem_new_slab(
		pool->domain, bytes, !pool->domain->opts.no_hugepages, out);
}

static int add_slab(struct tern_pool *pool)
{
	struct slab slab = {.blocks = new_blocks(pool)};
	uint32_t id;
	int status;

	if (!slab.blocks)
		return -ENOMEM;
	status = new_slab(pool, &slab.mem);
	if (status) {
		munmap(slab.blocks, blocks_bytes(pool));
		return status;
	}
	if (pool->opts.prefault && slab.mem->base)
		tern_mem_prefault(slab.mem);
	tern_lock_take(&pool->lock);
	slab.mem->slab = pool->slab_count;
	slab.blocks[0].units = pool->slab_units;
	id = pool->slab_count << pool->slab_shift;
	pool->slabs[pool->slab_count++] = slab;
	list_insert(pool, id);
	pool->stats.slab_count++;
	pool->stats.slab_bytes += slab.mem->bytes;
	pool->stats.huge = slab.mem->huge && (pool->stats.huge || pool->slab_count == 1);
	tern_lock_give(&pool->lock);
	return 0;
}

static void destroy(struct tern_pool *pool)
{
	struct tern_domain *domain = pool->domain;
	bool is_users = pool->is_users;

	for (uint32_t i = 0; i < pool->slab_count; i++) {
		tern_mem_put(pool->slabs[i].mem);
		munmap(pool->slabs[i].blocks, blocks_bytes(pool));
	}
	pthread_mutex_destroy(&pool->grow_lock);
	free(pool->slabs);
	free(pool);
	if (is_users)
		tern_domain_drop(domain, TERN_TENANT_POOL);
}

static int check_opts(struct tern_pool_opts *opts)
{
	uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);

	if (!opts->slab_bytes)
		opts->slab_bytes = SLAB_BYTES;
	if (!opts->max_bytes)
		opts->max_bytes = opts->slab_bytes;
	if (opts->max_bytes < opts->slab_bytes || opts->max_bytes > TERN_POOL_BYTES_MAX ||
		(opts->kind != TERN_MEM_HOST && opts->kind != TERN_MEM_CUDA))
		return -EINVAL;
	opts->slab_bytes = tern_align_up(opts->slab_bytes, page_bytes);
	opts->max_bytes = TERN_MAX(opts->max_bytes, opts->slab_bytes);
	return 0;
}

static int pool_new(struct tern_domain *domain, const struct tern_pool_opts *opts,
	struct tern_gpu *gpu, struct tern_pool **out)
{
	struct tern_pool_opts checked = *opts;
	struct tern_pool *pool;
	int status = check_opts(&checked);

	if (!status && checked.kind == TERN_MEM_CUDA)
		status = tern_gpu_by_number(domain, checked.cuda_device, &gpu);
	if (status)
		return status;
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return -ENOMEM;
	pool->domain = domain;
	pool->gpu = gpu;
	pool->opts = checked;
	pool->slab_units = (uint32_t)(checked.slab_bytes / UNIT_BYTES);
	pool->slab_shift = 32 - (uint32_t)__builtin_clz(pool->slab_units - 1);
	pool->slab_max = (uint32_t)(checked.max_bytes / checked.slab_bytes);
	pthread_mutex_init(&pool->grow_lock, NULL);
	for (unsigned i = 0; i < LEVELS; i++) {
		for (unsigned j = 0; j < CLASSES; j++)
			pool->heads[i][j] = NO_BLOCK;
	}
	pool->slabs = calloc(pool->slab_max, sizeof(*pool->slabs));
	status = pool->slabs ? add_slab(pool) : -ENOMEM;
	if (status) {
		destroy(pool);
		return status;
	}
	*out = pool;
	return 0;
}

int tern_pool_new_sized(struct tern_domain *domain, const struct tern_pool_opts *opts,
	size_t opts_bytes, struct tern_pool **out)
{
	struct tern_pool_opts own;
	int r = tern_read_sized(&own, sizeof(own), opts, opts_bytes);

	if (!r)
		r = pool_new(domain, &own, NULL, out);
	if (r)
		return r;
	(*out)->is_users = true;
	tern_domain_hold(domain, TERN_TENANT_POOL);
	return 0;
}

int tern_pool_new_locked(struct tern_domain *domain, const struct tern_pool_opts *opts,
	struct tern_gpu *gpu, struct tern_pool **out)
{
	return pool_new(domain, opts, gpu, out);
}

void tern_pool_free(struct tern_pool *pool)
{
	uint64_t count, bytes;

	if (!pool)
		return;
	tern_lock_take(&pool->lock);
	count = pool->stats.used_count;
	bytes = pool->stats.used_bytes;
	pool->given_up = true;
	tern_lock_give(&pool->lock);
	if (count == 0) {
		destroy(pool);
		return;
	}
	tern_log(tern_env_system(), TERN_LOG_ERROR,
		"tern_pool_free: still handed out: %llu buffers of %llu bytes; the pool "
		"stays until they are given back",
		(unsigned long long)count, (unsigned long long)bytes);
}

/* ---- get and put ---- */

/* Takes a block of this size from the blocks kept aside or from the free lists. NO_BLOCK:
 * there is none. */
static uint32_t get_block(struct tern_pool *pool, uint32_t units)
{
	uint32_t id = take_aside(pool, aside_of(pool, units), units);

	if (tern_likely(id != NO_BLOCK))
		return id;
	/* If no buffer is in use, free all blocks kept aside, so that each slab becomes
	 * one free block again. */
	if (!pool->stats.used_count)
		free_all_aside(pool);
	id = find_free(pool, units);
	if (id == NO_BLOCK && free_all_aside(pool))
		id = find_free(pool, units);
	if (id != NO_BLOCK) {
		list_remove(pool, id);
		split(pool, id, units);
	}
	return id;
}

static int try_get(struct tern_pool *pool, uint32_t units, struct tern_buf *out)
{
	struct tern_pool_stats *stats = &pool->stats;
	uint32_t id;

	tern_lock_take(&pool->lock);
	id = get_block(pool, units);
	if (id != NO_BLOCK) {
		out->mem = pool->slabs[id >> pool->slab_shift].mem;
		stats->used_count++;
		stats->used_bytes += units * UNIT_BYTES;
		stats->peak_bytes = TERN_MAX(stats->peak_bytes, stats->used_bytes);
	}
	tern_lock_give(&pool->lock);
	if (id == NO_BLOCK)
		return -EAGAIN;
	out->offset = (id & ((1u << pool->slab_shift) - 1)) * UNIT_BYTES;
	return 0;
}

/* Only one thread at a time makes a new slab; threads that waited for it first try to get
 * a block from that slab. */
static int get_from_new_slab(struct tern_pool *pool, uint32_t units, struct tern_buf *out)
{
	int status;

	pthread_mutex_lock(&pool->grow_lock);
	status = try_get(pool, units, out);
	/* The counter slab_count changes only while grow_lock is held. */
	if (status && pool->slab_count < pool->slab_max && add_slab(pool) == 0)
		status = try_get(pool, units, out);
	pthread_mutex_unlock(&pool->grow_lock);
	if (status) {
		tern_lock_take(&pool->lock);
		pool->stats.exhausted_count++;
		tern_lock_give(&pool->lock);
	}
	return status;
}

int tern_pool_get(struct tern_pool *pool, uint64_t bytes, struct tern_buf *out)
{
	uint32_t units;
	int status;

	*out = (struct tern_buf){0};
	if (bytes > pool->slab_units * UNIT_BYTES)
		return -EMSGSIZE;
	out->bytes = bytes;
	if (!bytes) {
		out->mem = pool->slabs[0].mem;
		out->offset = 0;
		return 0;
	}
	units = (uint32_t)((bytes + UNIT_BYTES - 1) / UNIT_BYTES);
	status = try_get(pool, units, out);
	if (tern_unlikely(status < 0))
		status = get_from_new_slab(pool, units, out);
	if (status < 0)
		*out = (struct tern_buf){0};
	else if (bytes >= TERN_HUGE_BYTES)
		tern_mem_ask_huge(out->mem, out->offset, bytes);
	return status;
}

static void put_block(struct tern_pool *pool, const struct tern_buf *buf)
{
	uint32_t slab = buf->mem->slab;
	uint32_t id = (slab << pool->slab_shift) + (uint32_t)(buf->offset / UNIT_BYTES);
	struct block *block;

	tern_assert(buf->offset < pool->slab_units * UNIT_BYTES);
	tern_assert(slab < pool->slab_count && pool->slabs[slab].mem == buf->mem);
	block = block_at(pool, id);
	/* The assertion fails if no buffer begins at this offset now: it was never handed
	 * out, or was given back before. */
	tern_assert(block->units && block->next == IN_USE);
	pool->stats.used_count--;
	pool->stats.used_bytes -= block->units * UNIT_BYTES;
	if (tern_unlikely(!put_aside(pool, id, block)))
		free_block(pool, id);
}

void tern_pool_put(struct tern_pool *pool, struct tern_buf *buf)
{
	bool last = false;

	if (buf->bytes) {
		tern_lock_take(&pool->lock);
		put_block(pool, buf);
		last = pool->given_up && !pool->stats.used_count;
		tern_lock_give(&pool->lock);
	}
	*buf = (struct tern_buf){0};
	if (tern_unlikely(last))
		destroy(pool);
}

void tern_pool_stats_sized(
	struct tern_pool *pool, struct tern_pool_stats *out, size_t out_bytes)
{
	struct tern_pool_stats stats;

	tern_lock_take(&pool->lock);
	stats = pool->stats;
	tern_lock_give(&pool->lock);
	tern_write_sized(out, out_bytes, &stats, sizeof(stats));
}
