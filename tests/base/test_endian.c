/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that data on the wire and in files has the same bytes on every machine. */
#include "tests/harness/cmocka.h"

#include <stdbool.h>

#include "base/endian.h"

static void test_numbers_are_little_endian_bytes(void **state)
{
	static const unsigned char expected[] = {8, 7, 6, 5, 4, 3, 2, 1};
	unsigned char bytes[8];

	(void)state;
	tern_put_le64(bytes, 0x0102030405060708);
	assert_memory_equal(bytes, expected, 8);
	assert_int_equal(tern_get_le64(expected), 0x0102030405060708);
	assert_int_equal(tern_get_le32(expected), 0x05060708);
	assert_int_equal(tern_get_le16(expected), 0x0708);
	assert_int_equal(tern_get_be32(expected), 0x08070605);
}

static void test_the_order_of_this_machine_is_known(void **state)
{
	const uint16_t one = 1;
	bool little = *(const unsigned char *)&one == 1;

	(void)state;
	assert_int_equal(TERN_BYTE_ORDER, little ? TERN_LITTLE_ENDIAN : TERN_BIG_ENDIAN);
	assert_int_equal(tern_byte_order_check(TERN_BYTE_ORDER), 0);
	assert_int_equal(tern_byte_order_check(3 - TERN_BYTE_ORDER), -EILSEQ);
	assert_int_equal(tern_byte_order_check(0), -EPROTO);
	assert_int_equal(tern_byte_order_check(3), -EPROTO);
}

static void test_elements_are_swapped_by_their_width(void **state)
{
	static const unsigned char from[] = {1, 2, 3, 4, 5, 6, 7, 8};
	static const unsigned char by[4][8] = {{1, 2, 3, 4, 5, 6, 7, 8},
		{2, 1, 4, 3, 6, 5, 8, 7}, {4, 3, 2, 1, 8, 7, 6, 5},
		{8, 7, 6, 5, 4, 3, 2, 1}};
	unsigned char to[8];

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		tern_swap_bytes(to, from, 8, 1u << i);
		assert_memory_equal(to, by[i], 8);
	}
	tern_swap_bytes(to, NULL, 0, 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_numbers_are_little_endian_bytes),
		cmocka_unit_test(test_the_order_of_this_machine_is_known),
		cmocka_unit_test(test_elements_are_swapped_by_their_width),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
