/* SPDX-License-Identifier: Apache-2.0 */
/* The digest of 64 bits. The expected values are those of the Python package xxhash 3 (XXH64 0.8.4). */
#include "tests/harness/cmocka.h"

#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/util.h"

#define BYTES ((size_t)70000)

static unsigned char *make_bytes(void)
{
	unsigned char *bytes = malloc(BYTES);

	assert_non_null(bytes);
	for (size_t i = 0; i < BYTES; i++)
		bytes[i] = (unsigned char)(i * 37 + i / 256);
	return bytes;
}

static void test_digest_is_xxh64(void **state)
{
	static const struct {
		size_t bytes;
		uint64_t digest;
	} known[] = {
		{0, 0xef46db3751d8e999},
		{1, 0xe934a84adb052768},
		{3, 0xf5cd310a927fde3e},
		{4, 0xa9c00ae8f9b200f0},
		{7, 0x72b108a52e458e66},
		{8, 0x74c725313330d0cc},
		{12, 0x3a8dd8800255438a},
		{15, 0xa9e67596d9b0ba38},
		{31, 0x4513ec5ebc46d0d3},
		{32, 0x2c1f2ffa2ace16d3},
		{33, 0x62f3b71cd8263c47},
		{63, 0x2c9d78b9323007f3},
		{64, 0xcb86cfdc04a5148a},
		{100, 0x3f99fd1263b54f01},
		{1023, 0x137907506e0bda8a},
		{8192, 0xf636fa73a11378a2},
		{8196, 0xc072ec1c77e700cc},
		{70000, 0xa2f62ccbab9e4813},
	};
	unsigned char *bytes = make_bytes();

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(known); i++)
		assert_int_equal(tern_digest(bytes, known[i].bytes), known[i].digest);
	free(bytes);
}

/* Wherever the bytes are cut, and with empty parts. */
static void test_parts_have_the_digest_of_the_whole(void **state)
{
	unsigned char *bytes = make_bytes();

	(void)state;
	for (size_t whole = 0; whole < 200; whole++)
		for (size_t a = 0; a <= whole; a += 3)
			for (size_t b = a; b <= whole; b += 7) {
				struct tern_digest_stream s;

				tern_digest_begin(&s);
				tern_digest_add(&s, bytes, a);
				tern_digest_add(&s, NULL, 0);
				tern_digest_add(&s, bytes + a, b - a);
				tern_digest_add(&s, bytes + b, whole - b);
				assert_int_equal(
					tern_digest_end(&s), tern_digest(bytes, whole));
				assert_int_equal(s.bytes, whole);
			}
	free(bytes);
}

/* Also at every alignment. */
static void test_copy_has_the_digest_of_its_bytes(void **state)
{
	unsigned char *bytes = make_bytes(), *copy = malloc(BYTES);

	(void)state;
	assert_non_null(copy);
	for (size_t n = 0; n < BYTES - 8; n += n < 100 ? 1 : 1237) {
		const unsigned char *from = bytes + n % 7;

		memset(copy, 0, BYTES);
		assert_int_equal(
			tern_digest_copy(copy + n % 5, from, n), tern_digest(from, n));
		assert_memory_equal(copy + n % 5, from, n);
		assert_int_equal(copy[n % 5 + n], 0);
	}
	free(copy);
	free(bytes);
}

static void test_every_bit_counts(void **state)
{
	unsigned char *bytes = make_bytes();
	const size_t n = 9001;
	const uint64_t digest = tern_digest(bytes, n);
	float zeros[2] = {0.0f, -0.0f};

	(void)state;
	for (size_t bit = 0; bit < 8 * n; bit += bit < 600 ? 1 : 613) {
		bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
		assert_int_not_equal(tern_digest(bytes, n), digest);
		bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
	}
	assert_int_equal(tern_digest(bytes, n), digest);
	assert_int_not_equal(tern_digest(&zeros[0], sizeof(float)),
		tern_digest(&zeros[1], sizeof(float)));
	free(bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_digest_is_xxh64),
		cmocka_unit_test(test_parts_have_the_digest_of_the_whole),
		cmocka_unit_test(test_copy_has_the_digest_of_its_bytes),
		cmocka_unit_test(test_every_bit_counts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
