/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/cmocka.h"

#include "base/rng.h"
#include "transport/tcp/crc32c.h"

static void test_known_vectors(void **state)
{
	/* Test vectors of RFC 3720, appendix B.4, and the check value of catalogues of
	 * CRCs. */
	unsigned char zeros[32] = {0}, ones[32], rising[32];

	(void)state;
	for (unsigned char i = 0; i < 32; i++) {
		ones[i] = 0xff;
		rising[i] = i;
	}
	assert_int_equal(tern_crc32c(0, "123456789", 9), 0xe3069283);
	assert_int_equal(tern_crc32c(0, zeros, 32), 0x8a9136aa);
	assert_int_equal(tern_crc32c(0, ones, 32), 0x62a8ab43);
	assert_int_equal(tern_crc32c(0, rising, 32), 0x46dd794e);
	assert_int_equal(tern_crc32c(7, NULL, 0), 7);
}

static void test_both_ways_agree_at_every_length_and_alignment(void **state)
{
	struct tern_rng rng = {1, 0};
	unsigned char data[200];

	(void)state;
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (unsigned char)tern_rng_next(&rng);
	for (size_t start = 0; start < 9; start++) {
		for (size_t bytes = 0; start + bytes <= sizeof(data); bytes++) {
			uint32_t crc = tern_crc32c(0, data + start, bytes);

			assert_int_equal(
				crc, tern_crc32c_portable(0, data + start, bytes));
			assert_int_equal(crc,
				tern_crc32c(tern_crc32c(0, data + start, bytes / 3),
					data + start + bytes / 3, bytes - bytes / 3));
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_known_vectors),
		cmocka_unit_test(test_both_ways_agree_at_every_length_and_alignment),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
