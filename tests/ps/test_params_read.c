/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of reading a job's parameters from a file that anybody may have written: what is
 * converted, and which words a file is refused with. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/endian.h"
#include "base/rng.h"
#include "base/util.h"
#include "kernels/bf16.h"
#include "kernels/half.h"
#include "ps/params_file.h"

static const struct tern_param params[] = {
	{.name = "a.weight", .shape = {TERN_F32, 2, {2, 3}}, .first = 0, .count = 6},
	{.name = "b", .shape = {TERN_F32, 1, {2}}, .first = 6, .count = 2},
};
static const float weights[6] = {1, -2, 0.5f, -0.0f, 0x1p-14f, 65504};
static const float bias[2] = {3, -4};
static float flat[8];
static struct tern_ps_text why;

/* Builds a file of the tensors, parses it and reads the parameters. Returns the status. */
static int read_list(const struct tern_safetensor *tensors, size_t count)
{
	struct iovec parts[64];
	struct tern_safetensors *file;
	size_t bytes = 0;
	char *data, *at;
	int r;

	assert_int_equal(tern_safetensors_build(tensors, count, NULL, 0, parts), 0);
	for (size_t i = 0; i <= count; i++)
		bytes += parts[i].iov_len;
	data = at = malloc(bytes);
	for (size_t i = 0; i <= count; i++) {
		if (parts[i].iov_len)
			memcpy(at, parts[i].iov_base, parts[i].iov_len);
		at += parts[i].iov_len;
	}
	free(parts[0].iov_base);
	assert_int_equal(tern_safetensors_parse("f", data, bytes, &file, &why), 0);
	memset(flat, 0x55, sizeof(flat));
	r = tern_params_file_read(file, params, 2, flat, &why);
	tern_safetensors_free(file);
	free(data);
	return r;
}

/* Reads a file whose a.weight has this type and these elements, and whose b is right. */
static int read_weights(enum tern_dtype dtype, const void *data)
{
	const struct tern_safetensor tensors[] = {
		{.name = "b", .shape = {TERN_F32, 1, {2}}, .data = bias},
		{.name = "a.weight", .shape = {dtype, 2, {2, 3}}, .data = data},
	};

	return read_list(tensors, 2);
}

static void test_tensors_of_any_order_find_their_places(void **state)
{
	(void)state;
	assert_int_equal(read_weights(TERN_F32, weights), 0);
	assert_memory_equal(flat, weights, sizeof(weights));
	assert_memory_equal(flat + 6, bias, sizeof(bias));
}

/* The bytes that the package safetensors 0.8.0 of Python writes for two arrays. */
static void test_a_file_of_the_reference_implementation_is_read(void **state)
{
	static const char header[] =
		"{\"a.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]"
		"},"
		"\"b\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[24,28]}} ";
	static const unsigned char b[4] = {0x00, 0x42, 0x00, 0xc4};
	char data[8 + sizeof(header) - 1 + 28], *at = data + 8 + sizeof(header) - 1;
	struct tern_safetensors *file;

	(void)state;
	tern_put_le64(data, sizeof(header) - 1);
	memcpy(data + 8, header, sizeof(header) - 1);
	for (unsigned i = 0; i < 6; i++) {
		uint32_t bits;

		memcpy(&bits, &weights[i], sizeof(bits));
		tern_put_le32(at + 4 * i, bits);
	}
	memcpy(at + 24, b, sizeof(b));
	assert_int_equal(tern_safetensors_parse("f", data, sizeof(data), &file, &why), 0);
	assert_int_equal(tern_params_file_read(file, params, 2, flat, &why), 0);
	assert_memory_equal(flat, weights, sizeof(weights));
	assert_memory_equal(flat + 6, bias, sizeof(bias));
	tern_safetensors_free(file);
}

static void test_half_types_become_float32_without_loss(void **state)
{
	struct tern_rng rng = {.seed = 5};

	(void)state;
	for (unsigned round = 0; round < 3000; round++) {
		uint16_t half[6];
		float f16[6], bf16[6];

		for (unsigned i = 0; i < 6; i++) {
			half[i] = (uint16_t)tern_rng_next(&rng);
			f16[i] = tern_f16_value(half[i]);
			bf16[i] = tern_bf16_value(half[i]);
		}
		assert_int_equal(read_weights(TERN_F16, half), 0);
		assert_memory_equal(flat, f16, sizeof(f16));
		assert_int_equal(read_weights(TERN_BF16, half), 0);
		assert_memory_equal(flat, bf16, sizeof(bf16));
	}
}

static void test_f64_is_read_if_float32_has_its_values(void **state)
{
	static const double wrong[] = {0.1, 1 + 0x1p-24, 1e300, -1e300, 0x1p-150};
	double wide[6];

	(void)state;
	for (unsigned i = 0; i < 6; i++)
		wide[i] = (double)weights[i];
	wide[4] = -(double)FLT_MAX;
	assert_int_equal(read_weights(TERN_F64, wide), 0);
	assert_true(flat[1] == -2 && signbit(flat[3]) && flat[4] == -FLT_MAX);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(wrong); i++) {
		wide[4] = wrong[i];
		assert_int_equal(read_weights(TERN_F64, wide), -EINVAL);
		assert_non_null(strstr(why.text, "tensor a.weight: value 4, the f64 "));
		assert_non_null(strstr(why.text, "save the tensor as f32"));
	}
}

/* A file with NaN or infinite values is read: tern_given_describe() refuses them afterwards. */
static void test_values_that_are_no_numbers_stay_so(void **state)
{
	double wide[6] = {(double)NAN, (double)INFINITY, -(double)INFINITY, 1, 2, 3};

	(void)state;
	assert_int_equal(read_weights(TERN_F64, wide), 0);
	assert_true(isnan(flat[0]) && isinf(flat[1]) && isinf(flat[2]) && flat[2] < 0);
}

static void test_integers_are_refused(void **state)
{
	static const int32_t whole[6] = {1, 2, 3, 4, 5, 6};

	(void)state;
	assert_int_equal(read_weights(TERN_I32, whole), -EINVAL);
	assert_string_equal(why.text, "tensor a.weight: the file has the dtype i32: "
				      "expected f32, f16, bf16 or f64");
}

static void test_another_shape_is_refused_and_a_transpose_named(void **state)
{
	struct tern_safetensor tensors[] = {
		{.name = "a.weight", .shape = {TERN_F32, 2, {3, 2}}, .data = weights},
		{.name = "b", .shape = {TERN_F32, 1, {2}}, .data = bias},
	};

	(void)state;
	assert_int_equal(read_list(tensors, 2), -EINVAL);
	assert_string_equal(why.text,
		"tensor a.weight: the file has f32[3,2], the model f32[2,3]: transpose "
		"it (Tern has [in, out], torch.nn.Linear [out, in])");
	tensors[0].shape = (struct tern_shape){TERN_F32, 1, {6}};
	assert_int_equal(read_list(tensors, 2), -EINVAL);
	assert_string_equal(
		why.text, "tensor a.weight: the file has f32[6], the model f32[2,3]");
}

static void test_missing_and_extra_tensors_are_listed(void **state)
{
	static const char both[] = "the file lacks tensors of the model: a.weight; the "
				   "file has tensors that the model lacks: b.0, b.1, ";
	struct tern_safetensor tensors[41] = {
		{.name = "b", .shape = {TERN_F32, 1, {2}}, .data = bias},
		{.name = "evil\n\x1b[1m", .shape = {TERN_F32, 1, {2}}, .data = bias}};
	char names[41][8];

	(void)state;
	assert_int_equal(read_list(tensors, 1), -EINVAL);
	assert_string_equal(why.text, "the file lacks tensors of the model: a.weight");
	assert_int_equal(read_list(tensors, 2), -EINVAL);
	assert_non_null(strstr(why.text, "that the model lacks: evil\\x0a\\x1b[1m"));
	for (unsigned i = 1; i < 41; i++) {
		snprintf(names[i], sizeof(names[i]), "b.%u", i - 1);
		tensors[i] = tensors[0];
		tensors[i].name = names[i];
	}
	assert_int_equal(read_list(tensors, 41), -EINVAL);
	assert_memory_equal(why.text, both, sizeof(both) - 1);
	assert_non_null(strstr(why.text, " more"));
	assert_true(strlen(why.text) < 370);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tensors_of_any_order_find_their_places),
		cmocka_unit_test(test_a_file_of_the_reference_implementation_is_read),
		cmocka_unit_test(test_half_types_become_float32_without_loss),
		cmocka_unit_test(test_f64_is_read_if_float32_has_its_values),
		cmocka_unit_test(test_values_that_are_no_numbers_stay_so),
		cmocka_unit_test(test_integers_are_refused),
		cmocka_unit_test(test_another_shape_is_refused_and_a_transpose_named),
		cmocka_unit_test(test_missing_and_extra_tensors_are_listed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
