/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/reduce.c against a reference that computes one element at a time: every type and
 * operator, lengths around the widths of vectors, in place and not. */
#include "tests/harness/cmocka.h"

#include <math.h>
#include <string.h>

#include "base/util.h"
#include "kernels/bf16.h"
#include "kernels/half.h"
#include "kernels/reduce.h"
#include "tests/group/reference.h"

#define COUNT_MAX 1100u

static _Alignas(64) unsigned char a[COUNT_MAX * 8], b[COUNT_MAX * 8], out[COUNT_MAX * 8];

static void check(
	enum tern_dtype dtype, enum tern_combine how, size_t count, uint32_t divisor)
{
	const void *in[2] = {a, b};
	size_t bytes = tern_dtype_bytes(dtype);
	char expected[8];

	reference_fill(dtype, a, COUNT_MAX, 1, true);
	reference_fill(dtype, b, COUNT_MAX, 2, true);
	memset(out, 0x5a, sizeof(out));
	tern_combine(dtype, how, out, a, b, count, divisor);
	for (size_t i = 0; i < count; i++) {
		reference_fold(dtype, how, 2, in, i, expected);
		assert_memory_equal(out + i * bytes, expected, bytes);
	}
	assert_int_equal(out[count * bytes], 0x5a);
	tern_combine(dtype, how, b, a, b, count, divisor);
	assert_memory_equal(out, b, count * bytes);
	reference_fill(dtype, b, COUNT_MAX, 2, true);
	tern_combine(dtype, how, a, a, b, count, divisor);
	assert_memory_equal(out, a, count * bytes);
}

static void test_every_type_and_operator_has_the_bits_of_the_reference(void **state)
{
	static const size_t counts[] = {0, 1, 3, 31, 32, 33, 511, 512, 513, 1025};

	(void)state;
	for (enum tern_dtype d = TERN_U8; d < TERN_DTYPE_COUNT; d++)
		for (enum tern_combine how = 0; how < TERN_COMBINE_COUNT; how++)
			for (size_t c = 0; c < sizeof(counts) / sizeof(*counts); c++)
				if (tern_combine_works(d, how))
					check(d, how, counts[c],
						how == TERN_COMBINE_AVG ? 2 : 0);
}

static void test_operators_of_truth_values_are_for_bytes_only(void **state)
{
	(void)state;
	assert_true(tern_combine_works(TERN_U8, TERN_COMBINE_OR));
	assert_true(tern_combine_works(TERN_U8, TERN_COMBINE_AND));
	assert_false(tern_combine_works(TERN_I8, TERN_COMBINE_OR));
	assert_false(tern_combine_works(TERN_F32, TERN_COMBINE_AND));
	assert_false(tern_combine_works(TERN_DTYPE_NONE, TERN_COMBINE_SUM));
	assert_false(tern_combine_works(TERN_F32, TERN_COMBINE_COUNT));
}

static void test_a_nan_wins_over_every_number(void **state)
{
	float x[4] = {NAN, 1, NAN, 2}, y[4] = {1, NAN, NAN, 3}, z[4];

	(void)state;
	for (enum tern_combine how = TERN_COMBINE_SUM; how <= TERN_COMBINE_PRODUCT;
		how++) {
		tern_combine(TERN_F32, how, z, x, y, 4, 0);
		assert_true(isnan(z[0]) && isnan(z[1]) && isnan(z[2]));
		assert_false(isnan(z[3]));
	}
}

/* Compilers and processors differ in which of two NaNs a sum is, and in the sign of a new
 * one. */
static void test_sums_and_products_have_one_nan(void **state)
{
	enum { COUNT = 37 };
	static const enum tern_combine hows[] = {
		TERN_COMBINE_SUM, TERN_COMBINE_AVG, TERN_COMBINE_PRODUCT};
	uint32_t x[COUNT], y[COUNT], z[COUNT];
	uint64_t x64[COUNT], y64[COUNT], z64[COUNT];

	(void)state;
	for (uint32_t i = 0; i < COUNT; i++) {
		x[i] = 0x7fc00001 + i;
		y[i] = i % 2 ? 0xffc01000 + i : 0x3f800000;
		x64[i] = 0x7ff8000000000001 + i;
		y64[i] = i % 2 ? 0xfff8000000010000 + i : 0x3ff0000000000000;
	}
	for (unsigned k = 0; k < TERN_ARRAY_SIZE(hows); k++) {
		uint32_t divisor = hows[k] == TERN_COMBINE_AVG ? 3 : 0;

		tern_combine(TERN_F32, hows[k], z, x, y, COUNT, divisor);
		tern_combine(TERN_F64, hows[k], z64, x64, y64, COUNT, divisor);
		for (unsigned i = 0; i < COUNT; i++) {
			assert_int_equal(z[i], 0x7fc00000);
			assert_true(z64[i] == 0x7ff8000000000000);
		}
	}
	x[0] = 0x7f800000;
	y[0] = 0xff800000;
	tern_combine(TERN_F32, TERN_COMBINE_SUM, z, x, y, 1, 0);
	assert_int_equal(z[0], 0x7fc00000);
}

static void test_halves_are_added_in_f32_and_rounded_once(void **state)
{
	/* In bf16, 256 + 1 is 256; in f32 all ones count. */
	uint16_t big = tern_bf16_of(256), one = tern_bf16_of(1), sum;
	float acc;

	(void)state;
	tern_combine_widen(TERN_BF16, &acc, &big, 1);
	for (int i = 0; i < 8; i++)
		tern_combine_wide(TERN_BF16, TERN_COMBINE_SUM, &acc, &one, 1);
	tern_combine_narrow(TERN_BF16, &sum, &acc, 1, 0);
	assert_true(tern_bf16_value(sum) == 264);
	tern_combine_narrow(TERN_BF16, &sum, &acc, 1, 8);
	assert_true(tern_bf16_value(sum) == 33);
	one = tern_f16_of(1);
	tern_combine_widen(TERN_F16, &acc, (uint16_t[]){tern_f16_of(2048)}, 1);
	for (int i = 0; i < 8; i++)
		tern_combine_wide(TERN_F16, TERN_COMBINE_SUM, &acc, &one, 1);
	tern_combine_narrow(TERN_F16, &sum, &acc, 1, 0);
	assert_true(tern_f16_value(sum) == 2056);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			test_every_type_and_operator_has_the_bits_of_the_reference),
		cmocka_unit_test(test_operators_of_truth_values_are_for_bytes_only),
		cmocka_unit_test(test_a_nan_wins_over_every_number),
		cmocka_unit_test(test_sums_and_products_have_one_nan),
		cmocka_unit_test(test_halves_are_added_in_f32_and_rounded_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
