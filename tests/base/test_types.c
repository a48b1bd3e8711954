/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/cmocka.h"

#include <errno.h>

#include <tern/channel.h>

static void test_scalar_is_one_element(void **state)
{
	struct tern_shape s = {.dtype = TERN_F32, .rank = 0};
	uint64_t bytes = 0;

	(void)state;
	assert_int_equal(tern_shape_bytes(&s, &bytes), 0);
	assert_int_equal(bytes, 4);
}

static void test_zero_dimension_does_not_hide_an_overflow(void **state)
{
	struct tern_shape s = {.dtype = TERN_F64, .rank = 3, .dims = {0, UINT64_MAX, 16}};
	uint64_t bytes;

	(void)state;
	assert_int_equal(tern_shape_bytes(&s, &bytes), -EOVERFLOW);
	s.rank = 1;
	assert_int_equal(tern_shape_bytes(&s, &bytes), 0);
	assert_int_equal(bytes, 0);
}

static void test_unknown_dtype_and_rank_are_refused(void **state)
{
	struct tern_shape s = {.dtype = TERN_DTYPE_COUNT, .rank = 0};
	uint64_t bytes;

	(void)state;
	assert_int_equal(tern_shape_bytes(&s, &bytes), -EINVAL);
	s.dtype = TERN_U8;
	s.rank = TERN_RANK_MAX + 1;
	assert_int_equal(tern_shape_bytes(&s, &bytes), -EINVAL);
	s.rank = TERN_RANK_MAX;
	for (int i = 0; i < TERN_RANK_MAX; i++)
		s.dims[i] = 2;
	assert_int_equal(tern_shape_bytes(&s, &bytes), 0);
	assert_int_equal(bytes, 256);
}

/* Compares tern_key() with test vectors that the authors of FNV published: keys are part
 * of the wire format, so the hash must never change. */
static void test_keys_are_fnv_1a(void **state)
{
	(void)state;
	assert_true(tern_key("") == 0xcbf29ce484222325);
	assert_true(tern_key("a") == 0xaf63dc4c8601ec8c);
	assert_true(tern_key("foobar") == 0x85944171f73967e8);
	assert_true(tern_key("\xff") == (0xcbf29ce484222325 ^ 0xff) * 0x100000001b3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_scalar_is_one_element),
		cmocka_unit_test(test_zero_dimension_does_not_hide_an_overflow),
		cmocka_unit_test(test_unknown_dtype_and_rank_are_refused),
		cmocka_unit_test(test_keys_are_fnv_1a),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
