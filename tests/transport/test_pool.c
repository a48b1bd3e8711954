/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of pools. churn() fills each buffer with a mark, and checks it when it gives the
 * buffer back, so that it notices buffers that overlap. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tern/context.h>
#include <tern/memory.h>

#include "base/rng.h"
#include "base/util.h"
#include "transport/memory/mem.h"

#define MIB (1ull << 20)

static struct tern_domain *domain;

static int open_domain(void **state)
{
	(void)state;
	return tern_domain_new(NULL, &domain);
}

static int close_domain(void **state)
{
	(void)state;
	tern_domain_free(domain);
	return 0;
}

static struct tern_pool *new_pool(uint64_t slab_bytes, uint64_t max_bytes)
{
	struct tern_pool_opts opts = {.slab_bytes = slab_bytes, .max_bytes = max_bytes};
	struct tern_pool *pool;

	assert_int_equal(tern_pool_new(domain, &opts, &pool), 0);
	return pool;
}

static struct tern_pool_stats stats_of(struct tern_pool *pool)
{
	struct tern_pool_stats stats;

	tern_pool_stats(pool, &stats);
	return stats;
}

/* Checks that every slab (memory that the pool divides) is one free block again: each
 * slab can be allocated as a whole. */
static void check_merged(struct tern_pool *pool, uint64_t slab_bytes)
{
	uint64_t slabs = stats_of(pool).slab_count;
	struct tern_buf bufs[16];

	assert_true(slabs <= TERN_ARRAY_SIZE(bufs));
	for (uint64_t i = 0; i < slabs; i++)
		assert_int_equal(tern_pool_get(pool, slab_bytes, &bufs[i]), 0);
	assert_int_equal(stats_of(pool).slab_count, slabs);
	for (uint64_t i = 0; i < slabs; i++)
		tern_pool_put(pool, &bufs[i]);
}

/* A random size up to `most`, of any order of magnitude. */
static uint64_t random_size(struct tern_rng *rng, uint64_t most)
{
	uint64_t bound = 1 + tern_rng_below(rng, 64 - (uint64_t)__builtin_clzll(most));

	return 1 + tern_rng_below(rng, TERN_MIN(1ull << bound, most));
}

struct held {
	struct tern_buf buf;
	unsigned char mark;
};

/* Takes a buffer and fills it with `mark`, so that a buffer that overlaps it would be
 * noticed. */
static void take(
	struct tern_pool *pool, struct held *held, uint64_t bytes, unsigned char mark)
{
	if (tern_pool_get(pool, bytes, &held->buf)) {
		held->buf.bytes = 0;
		return;
	}
	assert_int_equal(held->buf.bytes, bytes);
	assert_int_equal(held->buf.offset % 64, 0);
	assert_true(held->buf.offset + bytes <= tern_mem_bytes(held->buf.mem));
	held->mark = mark;
	memset(tern_buf_ptr(&held->buf), mark, bytes);
}

static void give(struct tern_pool *pool, struct held *held)
{
	const unsigned char *p = tern_buf_ptr(&held->buf);

	/* All bytes equal the mark if the first one does and each equals its
	 * predecessor. */
	if (p[0] != held->mark || memcmp(p, p + 1, held->buf.bytes - 1) != 0)
		fail_msg(
			"a buffer of %zu bytes was overwritten", (size_t)held->buf.bytes);
	tern_pool_put(pool, &held->buf);
	assert_null(held->buf.mem);
}

static void churn(struct tern_pool *pool, uint64_t seed, int rounds, uint64_t most)
{
	struct tern_rng rng = {.seed = seed};
	struct held held[64] = {0};

	for (int i = 0; i < rounds; i++) {
		struct held *h = &held[tern_rng_below(&rng, TERN_ARRAY_SIZE(held))];

		if (h->buf.bytes)
			give(pool, h);
		else
			take(pool, h, random_size(&rng, most), (unsigned char)(seed + i));
	}
	for (size_t i = 0; i < TERN_ARRAY_SIZE(held); i++) {
		if (held[i].buf.bytes)
			give(pool, &held[i]);
	}
}

static void test_buffers_never_overlap_and_merge_back(void **state)
{
	static const uint64_t slab_sizes[] = {4096, 61440, 256 << 10, 1 << 20};

	(void)state;
	for (uint64_t seed = 1; seed <= 8; seed++) {
		uint64_t slab_bytes = slab_sizes[seed % TERN_ARRAY_SIZE(slab_sizes)];
		struct tern_pool *pool = new_pool(slab_bytes, seed * slab_bytes);

		churn(pool, seed, 4000, slab_bytes);
		assert_int_equal(stats_of(pool).used_count, 0);
		assert_int_equal(stats_of(pool).used_bytes, 0);
		assert_true(stats_of(pool).slab_bytes <= seed * slab_bytes);
		check_merged(pool, slab_bytes);
		tern_pool_free(pool);
	}
}

/* The pool keeps some freed blocks for requests of the same size, but must merge them if
 * a larger request needs them. One buffer stays allocated, so that the pool is not
 * empty. */
static void test_what_was_given_back_serves_other_sizes(void **state)
{
	enum { SLAB = 64 << 10, COUNT = SLAB / 64, REST = SLAB - 64 };
	struct tern_pool *pool = new_pool(SLAB, 2 * SLAB);
	struct tern_buf bufs[COUNT], half[2];

	(void)state;
	for (unsigned i = 0; i < COUNT; i++)
		assert_int_equal(tern_pool_get(pool, 64, &bufs[i]), 0);
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned i = 0; i < COUNT; i++)
			if (bufs[i].offset != REST)
				tern_pool_put(pool, &bufs[i]);
		assert_int_equal(tern_pool_get(pool, REST, &half[0]), 0);
		assert_int_equal(stats_of(pool).slab_count, 1);
		tern_pool_put(pool, &half[0]);
		for (unsigned i = 0; i < COUNT; i++)
			if (!bufs[i].mem)
				assert_int_equal(tern_pool_get(pool, 64, &bufs[i]), 0);
	}
	for (unsigned i = 0; i < COUNT; i++)
		tern_pool_put(pool, &bufs[i]);
	assert_int_equal(tern_pool_get(pool, SLAB / 2, &half[0]), 0);
	assert_int_equal(tern_pool_get(pool, SLAB / 2, &half[1]), 0);
	assert_int_equal(stats_of(pool).slab_count, 1);
	tern_pool_put(pool, &half[0]);
	tern_pool_put(pool, &half[1]);
	tern_pool_free(pool);
}

/* A large block is merged at once, and not kept for requests of the same size, since a
 * kept block cannot be merged. */
static void test_a_large_buffer_is_merged_at_once(void **state)
{
	enum { SLAB = 1 << 20 };
	struct tern_pool *pool = new_pool(SLAB, SLAB);
	struct tern_buf a, b, c, rest;

	(void)state;
	assert_int_equal(tern_pool_get(pool, SLAB / 4, &a), 0);
	assert_int_equal(tern_pool_get(pool, SLAB / 4, &b), 0);
	tern_pool_put(pool, &a);
	assert_int_equal(tern_pool_get(pool, SLAB / 8, &c), 0);
	tern_pool_put(pool, &b);
	assert_int_equal(tern_pool_get(pool, SLAB / 8 * 5, &rest), 0);
	tern_pool_put(pool, &c);
	tern_pool_put(pool, &rest);
	tern_pool_free(pool);
}

/* How many bytes of the mapping that starts at `base` are in huge pages. */
static uint64_t huge_bytes(const void *base)
{
	FILE *maps = fopen("/proc/self/smaps", "r");
	unsigned long start, end, kib = 0;
	char line[256];
	bool here = false;

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			here = start == (uintptr_t)base;
		else if (here && sscanf(line, "ShmemPmdMapped: %lu kB", &kib) == 1)
			break;
	}
	fclose(maps);
	return (uint64_t)kib << 10;
}

/* True if the kernel can provide a huge page of shared memory at present. */
static bool kernel_has_huge_pages(void)
{
	int fd = memfd_create("probe", MFD_CLOEXEC);
	char *map;
	bool has;

	assert_int_equal(ftruncate(fd, 4 * MIB), 0);
	map = tern_map_slab(fd, 4 * MIB, PROT_READ | PROT_WRITE);
	assert_ptr_not_equal(map, MAP_FAILED);
	*map = 1;
	has = madvise(map, 2 * MIB, MADV_COLLAPSE) == 0;
	munmap(map, 4 * MIB);
	close(fd);
	return has;
}

static void test_a_private_mapping_shows_the_slab_and_keeps_its_own_writes(void **state)
{
	struct tern_pool *pool = new_pool(64 << 10, 64 << 10);
	char wrapped[64];
	struct tern_mem *of_user;
	struct tern_buf buf;
	void *base;
	char *slab, *map;

	(void)state;
	assert_int_equal(tern_pool_get(pool, 32 << 10, &buf), 0);
	slab = tern_buf_ptr(&buf);
	memset(slab, 1, 32 << 10);
	assert_int_equal(tern_mem_map_private(buf.mem, &base), 0);
	map = (char *)base + buf.offset;
	assert_int_equal(map[0], 1);
	slab[0] = 2;
	assert_int_equal(map[0], 2);
	map[0] = 3;
	slab[1] = 4;
	assert_int_equal(slab[0], 2);
	assert_int_equal(map[0], 3);
	assert_int_equal(map[1], 1);
	assert_int_equal(madvise(base, tern_mem_bytes(buf.mem), MADV_DONTNEED), 0);
	assert_int_equal(map[0], 2);
	assert_int_equal(map[1], 4);
	assert_int_equal(munmap(base, tern_mem_bytes(buf.mem)), 0);
	tern_pool_put(pool, &buf);
	tern_pool_free(pool);
	assert_int_equal(tern_mem_wrap(domain, wrapped, sizeof(wrapped), &of_user), 0);
	assert_int_equal(tern_mem_map_private(of_user, &base), -ENOTSUP);
	tern_mem_put(of_user);
}

static void test_large_buffers_lie_on_huge_pages(void **state)
{
	const struct tern_pool_opts opts = {.slab_bytes = 16 * MIB - 4096};
	struct tern_pool_stats stats;
	struct tern_pool *pool;
	struct tern_buf small, large, rest;
	const char *base;

	(void)state;
	if (!kernel_has_huge_pages()) {
		print_message("SKIP: the kernel makes no huge pages of shared memory\n");
		skip();
	}
	assert_int_equal(tern_pool_new(domain, &opts, &pool), 0);
	assert_int_equal(tern_pool_get(pool, 1000, &small), 0);
	base = tern_mem_base(small.mem);
	stats = stats_of(pool);
	assert_true(stats.huge || (uintptr_t)base % (2 * MIB) == 0);
	if (!stats.huge)
		assert_int_equal(huge_bytes(base), 0);
	memset(tern_buf_ptr(&small), 7, 1000);
	assert_int_equal(tern_pool_get(pool, 5 * MIB, &large), 0);
	if (!stats.huge && huge_bytes(base) < 4 * MIB)
		assert_false(kernel_has_huge_pages());
	/* With this one the buffers reach into the last 2 MiB of the slab, which lack 4096
	 * bytes for a whole huge page. */
	assert_int_equal(tern_pool_get(pool, 10 * MIB, &rest), 0);
	memset(tern_buf_ptr(&rest), 8, 10 * MIB);
	for (unsigned i = 0; i < 1000; i++)
		assert_int_equal(((unsigned char *)tern_buf_ptr(&small))[i], 7);
	tern_pool_put(pool, &small);
	tern_pool_put(pool, &large);
	tern_pool_put(pool, &rest);
	tern_pool_free(pool);
}

static void *make_pools(void *arg)
{
	for (unsigned i = 0; i < 150; i++) {
		struct tern_pool *pool = new_pool(4 * MIB, 4 * MIB);
		struct tern_buf small, large;

		if (tern_pool_get(pool, 64, &small) ||
			tern_pool_get(pool, 3 * MIB, &large))
			return arg;
		memset(tern_buf_ptr(&large), (int)i, 3 * MIB);
		tern_pool_put(pool, &large);
		tern_pool_put(pool, &small);
		tern_pool_free(pool);
	}
	return NULL;
}

/* Threads create pools at the same time: no mapping may replace one that another thread
 * has just made. */
static void test_threads_make_pools_at_once(void **state)
{
	pthread_t threads[3];
	void *failed;

	(void)state;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(threads); i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL, make_pools, threads), 0);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(threads); i++) {
		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
	}
}

static void test_giving_back_twice_is_noticed(void **state)
{
	struct tern_pool *pool = new_pool(4096, 4096);
	struct tern_buf buf, again;
	int status;
	pid_t pid;

	(void)state;
	assert_int_equal(tern_pool_get(pool, 64, &buf), 0);
	again = buf;
	tern_pool_put(pool, &buf);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		signal(SIGABRT, SIG_DFL);
		close(STDERR_FILENO);
		tern_pool_put(pool, &again);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	tern_pool_free(pool);
}

/* Buffers have a size between two size classes. When one is freed and another one of the
 * same size is taken, the pool must use the freed block again, although a larger block is
 * free, which it would have to split. */
static void test_a_hole_is_filled_by_what_fits_it(void **state)
{
	struct tern_pool *pool = new_pool(MIB, MIB);
	struct tern_buf bufs[8], again[8];

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(bufs); i++)
		assert_int_equal(tern_pool_get(pool, 50000, &bufs[i]), 0);
	for (size_t i = 1; i < TERN_ARRAY_SIZE(bufs); i += 2) {
		uint64_t offset = bufs[i].offset;

		tern_pool_put(pool, &bufs[i]);
		assert_int_equal(tern_pool_get(pool, 50000, &again[i]), 0);
		assert_int_equal(again[i].offset, offset);
	}
	for (size_t i = 0; i < TERN_ARRAY_SIZE(bufs); i++)
		tern_pool_put(pool, i % 2 ? &again[i] : &bufs[i]);
	check_merged(pool, MIB);
	tern_pool_free(pool);
}

struct churner {
	pthread_t thread;
	struct tern_pool *pool;
	uint64_t seed;
};

static void *churn_thread(void *arg)
{
	struct churner *c = arg;

	churn(c->pool, c->seed, 2000, 16 << 10);
	return NULL;
}

static void test_threads_share_a_pool(void **state)
{
	struct tern_pool *pool = new_pool(256 << 10, 1 * MIB);
	struct churner c[4];

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(c); i++) {
		c[i] = (struct churner){.pool = pool, .seed = 100 + i};
		assert_int_equal(
			pthread_create(&c[i].thread, NULL, churn_thread, &c[i]), 0);
	}
	for (size_t i = 0; i < TERN_ARRAY_SIZE(c); i++)
		assert_int_equal(pthread_join(c[i].thread, NULL), 0);
	assert_int_equal(stats_of(pool).used_count, 0);
	check_merged(pool, 256 << 10);
	tern_pool_free(pool);
}

static void test_exhaustion_is_a_status_and_passes(void **state)
{
	struct tern_pool *pool = new_pool(4096, 0);
	struct tern_buf bufs[65];

	(void)state;
	for (int i = 0; i < 64; i++) {
		assert_int_equal(tern_pool_get(pool, 33, &bufs[i]), 0);
		for (int j = 0; j < i; j++)
			assert_int_not_equal(bufs[i].offset, bufs[j].offset);
	}
	assert_int_equal(stats_of(pool).used_bytes, 4096);
	assert_int_equal(tern_pool_get(pool, 1, &bufs[64]), -EAGAIN);
	assert_int_equal(stats_of(pool).exhausted_count, 1);
	tern_pool_put(pool, &bufs[31]);
	assert_int_equal(tern_pool_get(pool, 65, &bufs[64]), -EAGAIN);
	assert_int_equal(tern_pool_get(pool, 64, &bufs[31]), 0);
	for (int i = 0; i < 64; i++)
		tern_pool_put(pool, &bufs[i]);
	assert_int_equal(stats_of(pool).peak_bytes, 4096);
	check_merged(pool, 4096);
	tern_pool_free(pool);
}

static void test_slabs_are_added_up_to_the_limit(void **state)
{
	struct tern_pool *pool = new_pool(64 << 10, 200 << 10);
	struct tern_domain_stats before, after;
	struct tern_buf bufs[4];

	(void)state;
	assert_int_equal(stats_of(pool).slab_count, 1);
	for (int i = 0; i < 3; i++)
		assert_int_equal(tern_pool_get(pool, 40 << 10, &bufs[i]), 0);
	assert_int_equal(stats_of(pool).slab_count, 3);
	assert_ptr_not_equal(bufs[0].mem, bufs[1].mem);
	assert_int_equal(tern_pool_get(pool, 40 << 10, &bufs[3]), -EAGAIN);
	assert_null(bufs[3].mem);
	assert_int_equal(bufs[3].bytes, 0);
	tern_domain_stats(domain, &before);
	for (int i = 0; i < 3; i++)
		tern_pool_put(pool, &bufs[i]);
	assert_int_equal(stats_of(pool).slab_count, 3);
	check_merged(pool, 64 << 10);
	tern_domain_stats(domain, &after);
	assert_int_equal(after.registration_count, before.registration_count);
	assert_int_equal(after.registered_bytes, 3 * (64 << 10));
	tern_pool_free(pool);
	tern_domain_stats(domain, &after);
	assert_int_equal(after.registered_bytes, 0);
}

static void test_sizes_at_the_edges(void **state)
{
	struct tern_pool *pool = new_pool(100 << 10, 0);
	struct tern_buf buf;

	(void)state;
	assert_int_equal(tern_pool_get(pool, (100 << 10) + 1, &buf), -EMSGSIZE);
	assert_int_equal(tern_pool_get(pool, UINT64_MAX, &buf), -EMSGSIZE);
	for (uint64_t bytes = 99 << 10; bytes <= 100 << 10; bytes++) {
		assert_int_equal(tern_pool_get(pool, bytes, &buf), 0);
		tern_pool_put(pool, &buf);
	}
	assert_int_equal(tern_pool_get(pool, 0, &buf), 0);
	assert_non_null(tern_buf_ptr(&buf));
	assert_int_equal(stats_of(pool).used_count, 0);
	tern_pool_put(pool, &buf);
	tern_pool_put(pool, &buf);
	tern_pool_free(pool);
	tern_pool_free(NULL);
}

static void test_impossible_options_are_refused(void **state)
{
	struct tern_pool_opts opts = {.slab_bytes = 8192, .max_bytes = 4096};
	struct tern_pool *pool;

	(void)state;
	assert_int_equal(tern_pool_new(domain, &opts, &pool), -EINVAL);
	opts.max_bytes = (64ull << 30) + 1;
	assert_int_equal(tern_pool_new(domain, &opts, &pool), -EINVAL);
	opts = (struct tern_pool_opts){.max_bytes = 1 << 20};
	assert_int_equal(tern_pool_new(domain, &opts, &pool), -EINVAL);
}

static void test_the_largest_pool_can_be_made(void **state)
{
	struct tern_pool *pool = new_pool(64ull << 30, 64ull << 30);
	struct tern_buf a, b;

	(void)state;
	assert_int_equal(tern_pool_get(pool, 1, &a), 0);
	assert_int_equal(tern_pool_get(pool, (64ull << 30) - 64, &b), 0);
	assert_int_equal(tern_pool_get(pool, 1, &(struct tern_buf){0}), -EAGAIN);
	tern_pool_put(pool, &a);
	tern_pool_put(pool, &b);
	check_merged(pool, 64ull << 30);
	tern_pool_free(pool);
}

static void test_a_prefaulted_pool_is_zero(void **state)
{
	struct tern_pool_opts opts = {.slab_bytes = 1 << 20, .prefault = true};
	struct tern_pool *pool;
	struct tern_buf buf;
	const char *p;

	(void)state;
	assert_int_equal(tern_pool_new(domain, &opts, &pool), 0);
	assert_int_equal(tern_pool_get(pool, 1 << 20, &buf), 0);
	p = tern_buf_ptr(&buf);
	for (size_t i = 0; i < 1 << 20; i++)
		assert_int_equal(p[i], 0);
	tern_pool_put(pool, &buf);
	tern_pool_free(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_buffers_never_overlap_and_merge_back),
		cmocka_unit_test(test_what_was_given_back_serves_other_sizes),
		cmocka_unit_test(test_a_large_buffer_is_merged_at_once),
		cmocka_unit_test(
			test_a_private_mapping_shows_the_slab_and_keeps_its_own_writes),
		cmocka_unit_test(test_large_buffers_lie_on_huge_pages),
		cmocka_unit_test(test_threads_make_pools_at_once),
		cmocka_unit_test(test_giving_back_twice_is_noticed),
		cmocka_unit_test(test_a_hole_is_filled_by_what_fits_it),
		cmocka_unit_test(test_threads_share_a_pool),
		cmocka_unit_test(test_exhaustion_is_a_status_and_passes),
		cmocka_unit_test(test_slabs_are_added_up_to_the_limit),
		cmocka_unit_test(test_sizes_at_the_edges),
		cmocka_unit_test(test_impossible_options_are_refused),
		cmocka_unit_test(test_the_largest_pool_can_be_made),
		cmocka_unit_test(test_a_prefaulted_pool_is_zero),
	};

	return cmocka_run_group_tests(tests, open_domain, close_domain);
}
