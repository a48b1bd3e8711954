/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/cmocka.h"

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "transport/memory/copy.h"
#include "transport/memory/mem.h"

#define GUARD 256

static void fill(unsigned char *p, size_t bytes, uint64_t seed)
{
	struct tern_rng rng = {.seed = seed};

	for (size_t i = 0; i < bytes; i++)
		p[i] = (unsigned char)tern_rng_next(&rng);
}

/* Checks that `copy` has written the expected bytes, and no byte around them. */
static void check(void (*copy)(void *, const void *, size_t), unsigned char *room,
	const unsigned char *src, size_t at, size_t bytes)
{
	unsigned char *dst = room + GUARD + at;

	memset(dst - GUARD, 0xa5, GUARD);
	memset(dst, 0x5a, bytes);
	memset(dst + bytes, 0xa5, GUARD);
	copy(dst, src, bytes);
	assert_memory_equal(dst, src, bytes);
	for (size_t i = 0; i < GUARD; i++) {
		assert_int_equal(dst[-1 - (ptrdiff_t)i], 0xa5);
		assert_int_equal(dst[bytes + i], 0xa5);
	}
}

static void test_every_way_copies_at_every_alignment(void **state)
{
	static const size_t sizes[] = {0, 1, 63, 64, 65, 255, 256, 511, 1000, 4096};
	unsigned char *src = malloc(8192), *room = malloc(8192 + 2 * GUARD);

	(void)state;
	fill(src, 8192, 1);
	for (const struct tern_copy_way *way = tern_copy_ways; way->name; way++) {
		if (!way->supported()) {
			print_message(
				"SKIP: %s: this processor does not have it\n", way->name);
			continue;
		}
		for (size_t to = 0; to < 64; to++) {
			for (size_t from = 0; from < 64; from += 1 + to % 7) {
				for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes);
					i++)
					check(way->copy, room, src + from, to, sizes[i]);
			}
		}
	}
	free(src);
	free(room);
}

static void copy_whole(void *dst, const void *src, size_t bytes)
{
	tern_copy(dst, src, bytes, bytes);
}

static void copy_part(void *dst, const void *src, size_t bytes)
{
	tern_copy(dst, src, bytes, TERN_COPY_STREAM_BYTES);
}

static void test_small_parts_of_what_is_large(void **state)
{
	unsigned char *src = malloc(8192), *room = malloc(8192 + 2 * GUARD);

	(void)state;
	fill(src, 8192, 3);
	for (size_t i = 0; i < 64; i++)
		check(copy_part, room, src + i, 9 * i % 64, 61 * i);
	free(src);
	free(room);
}

static void test_sizes_around_the_threshold(void **state)
{
	size_t most = TERN_COPY_STREAM_BYTES + 8192;
	unsigned char *src = malloc(most), *room = malloc(most + 64 + 2 * GUARD);

	(void)state;
	fill(src, most, 2);
	for (size_t i = 0; i < 8; i++) {
		check(copy_whole, room, src + i, 9 * i % 64, TERN_COPY_STREAM_BYTES - 1);
		check(copy_whole, room, src + 5 * i, i, TERN_COPY_STREAM_BYTES);
		check(copy_whole, room, src + i, 3 * i, TERN_COPY_STREAM_BYTES + 777 * i);
	}
	free(src);
	free(room);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_way_copies_at_every_alignment),
		cmocka_unit_test(test_small_parts_of_what_is_large),
		cmocka_unit_test(test_sizes_around_the_threshold),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
