/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/endian.h"
#include "base/rng.h"
#include "base/util.h"
#include "ps/safetensors.h"

static struct tern_ps_text error;

/* Joins the parts to a file of exactly its size, so that a sanitizer notices a read
 * beyond the end. */
static void *join(const struct iovec *parts, size_t count, size_t *bytes)
{
	char *file, *at;

	*bytes = 0;
	for (size_t i = 0; i < count; i++)
		*bytes += parts[i].iov_len;
	file = at = malloc(*bytes);
	for (size_t i = 0; i < count; i++) {
		if (parts[i].iov_len)
			memcpy(at, parts[i].iov_base, parts[i].iov_len);
		at += parts[i].iov_len;
	}
	return file;
}

static void *file_of(const char *header, size_t data_bytes, size_t *bytes)
{
	size_t header_bytes = strlen(header);
	char *file = calloc(1, 8 + header_bytes + data_bytes);

	tern_put_le64(file, header_bytes);
	memcpy(file + 8, header, header_bytes);
	*bytes = 8 + header_bytes + data_bytes;
	return file;
}

static const float weights[6] = {1, 2, 3, 4, 5, 6};
static const float bias[1] = {-1};

/* The bytes of the test's tensors in a file: little-endian on every machine. */
static const unsigned char weight_bytes[24] = {0, 0, 0x80, 0x3f, 0, 0, 0, 0x40, 0, 0,
	0x40, 0x40, 0, 0, 0x80, 0x40, 0, 0, 0xa0, 0x40, 0, 0, 0xc0, 0x40};
static const unsigned char bias_bytes[4] = {0, 0, 0x80, 0xbf};

static const struct tern_safetensor tensors[] = {
	{.name = "fc1.weight", .shape = {TERN_F32, 2, {2, 3}}, .data = weights},
	{.name = "none", .shape = {TERN_F32, 1, {0}}},
	{.name = "a \"b\"", .shape = {TERN_F32, 0, {0}}, .data = bias},
};

static const struct tern_safetensors_metadata metadata[] = {
	{"step", "17"},
	{"by", "tern"},
};

static void test_a_written_file_has_these_bytes(void **state)
{
	static const char header[] =
		"{\"__metadata__\":{\"step\":\"17\",\"by\":\"tern\"},"
		"\"fc1.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,"
		"24]},"
		"\"none\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[24,24]},"
		"\"a "
		"\\\"b\\\"\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[24,28]}}";
	size_t length = tern_align_up(sizeof(header) - 1, 8), bytes;
	struct iovec parts[4];
	char *file;

	(void)state;
	assert_int_equal(tern_safetensors_build(tensors, 3, metadata, 2, parts), 0);
	file = join(parts, 4, &bytes);
	assert_int_equal(bytes, 8 + length + 28);
	assert_int_equal(tern_get_le64(file), length);
	assert_memory_equal(file + 8, header, sizeof(header) - 1);
	for (size_t i = sizeof(header) - 1; i < length; i++)
		assert_int_equal(file[8 + i], ' ');
	assert_memory_equal(file + 8 + length, weight_bytes, 24);
	assert_memory_equal(file + 8 + length + 24, bias_bytes, 4);
	free(parts[0].iov_base);
	free(file);
}

static void test_elements_of_any_byte_order_are_written_little_endian(void **state)
{
	static const unsigned char big[] = {1, 2, 3, 4, 5, 6, 7, 8, 0x3f, 0x80, 0, 0};
	static const unsigned char little[] = {8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0x80, 0x3f};
	const struct tern_safetensor both[] = {
		{.name = "u64", .shape = {TERN_U64, 1, {1}}, .data = big},
		{.name = "f32", .shape = {TERN_F32, 0, {0}}, .data = big + 8},
		{.name = "u8", .shape = {TERN_U8, 1, {3}}, .data = big},
	};
	struct iovec parts[4];

	(void)state;
	assert_int_equal(
		tern_safetensors_build_from(TERN_BIG_ENDIAN, both, 3, NULL, 0, parts), 0);
	assert_memory_equal(parts[1].iov_base, little, 8);
	assert_memory_equal(parts[2].iov_base, little + 8, 4);
	assert_memory_equal(parts[3].iov_base, big, 3);
	free(parts[0].iov_base);
	assert_int_equal(
		tern_safetensors_build_from(TERN_LITTLE_ENDIAN, both, 3, NULL, 0, parts),
		0);
	assert_ptr_equal(parts[1].iov_base, big);
	free(parts[0].iov_base);
}

static void test_what_was_written_is_read(void **state)
{
	struct iovec parts[4];
	struct tern_safetensors *parsed;
	const struct tern_safetensor *list;
	size_t bytes, count;
	void *file;

	(void)state;
	assert_int_equal(tern_safetensors_build(tensors, 3, metadata, 2, parts), 0);
	file = join(parts, 4, &bytes);
	free(parts[0].iov_base);
	assert_int_equal(tern_safetensors_parse("f", file, bytes, &parsed, &error), 0);
	list = tern_safetensors_list(parsed, &count);
	assert_int_equal(count, 3);
	for (size_t i = 0; i < 3; i++) {
		assert_string_equal(list[i].name, tensors[i].name);
		assert_true(tern_shape_equal(&list[i].shape, &tensors[i].shape));
		assert_ptr_equal(tern_safetensors_find(parsed, list[i].name), &list[i]);
		if (list[i].bytes)
			assert_memory_equal(list[i].data, i ? bias_bytes : weight_bytes,
				list[i].bytes);
	}
	assert_int_equal(list[0].bytes, 24);
	assert_null(tern_safetensors_find(parsed, "__metadata__"));
	assert_string_equal(tern_safetensors_metadata(parsed, "step"), "17");
	assert_null(tern_safetensors_metadata(parsed, "fc1.weight"));
	tern_safetensors_free(parsed);
	free(file);
	tern_safetensors_free(NULL);
}

static void test_an_empty_file_is_a_file(void **state)
{
	struct iovec part;
	struct tern_safetensors *parsed;
	size_t count;

	(void)state;
	assert_int_equal(tern_safetensors_build(NULL, 0, NULL, 0, &part), 0);
	assert_int_equal(part.iov_len, 16);
	assert_int_equal(
		tern_safetensors_parse("f", part.iov_base, part.iov_len, &parsed, &error),
		0);
	tern_safetensors_list(parsed, &count);
	assert_int_equal(count, 0);
	assert_null(tern_safetensors_metadata(parsed, "step"));
	tern_safetensors_free(parsed);
	free(part.iov_base);
}

static void test_impossible_tensors_are_not_written(void **state)
{
	struct tern_safetensor bad[2] = {tensors[0], tensors[0]};
	struct iovec parts[3];

	(void)state;
	assert_int_equal(tern_safetensors_build(bad, 2, NULL, 0, parts), -EINVAL);
	bad[1].name = "__metadata__";
	assert_int_equal(tern_safetensors_build(bad, 2, NULL, 0, parts), -EINVAL);
	bad[1].name = "\xff";
	assert_int_equal(tern_safetensors_build(bad, 2, NULL, 0, parts), -EINVAL);
	bad[1].name = "b";
	bad[1].shape.dtype = TERN_DTYPE_NONE;
	assert_int_equal(tern_safetensors_build(bad, 2, NULL, 0, parts), -EINVAL);
	bad[1].shape = (struct tern_shape){TERN_F64, 2, {1ull << 62, 8}};
	assert_int_equal(tern_safetensors_build(bad, 2, NULL, 0, parts), -EOVERFLOW);
	bad[1].shape = (struct tern_shape){TERN_U8, 1, {INT64_MAX}};
	assert_int_equal(tern_safetensors_build(bad, 2, NULL, 0, parts), -EOVERFLOW);
	bad[1].shape = (struct tern_shape){TERN_U8, 2, {0, UINT64_MAX}};
	assert_int_equal(tern_safetensors_build(bad, 2, NULL, 0, parts), -EOVERFLOW);
}

static void refuse(const char *header, size_t data_bytes, const char *sentence)
{
	struct tern_safetensors *parsed = NULL;
	size_t bytes;
	void *file = file_of(header, data_bytes, &bytes);

	assert_int_equal(
		tern_safetensors_parse("f", file, bytes, &parsed, &error), -EINVAL);
	assert_null(parsed);
	/* The rest of the sentence, in place of '...', comes from the JSON library. */
	if (!strstr(sentence, "..."))
		assert_string_equal(error.text, sentence);
	else
		assert_memory_equal(error.text, sentence, strlen(sentence) - 3);
	free(file);
}

#define ENTRY(dtype, shape, offsets)                                                     \
	"{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_corrupt_files_are_refused_with_a_sentence(void **state)
{
	(void)state;
	refuse("[1]", 0, "f: byte 8: the header is not a JSON object");
	refuse("{\"a\":3}", 0, "f: tensor 'a': expected a dtype like \"F32\"");
	refuse("{\"a\":" ENTRY("F33", "[1]", "[0,4]") "}", 4,
		"f: tensor 'a': expected a dtype like \"F32\"");
	refuse("{\"a\":" ENTRY("F32", "4", "[0,4]") "}", 4,
		"f: tensor 'a': expected a shape of at most 8 dimensions");
	refuse("{\"a\":" ENTRY("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4,
		"f: tensor 'a': expected a shape of at most 8 dimensions");
	refuse("{\"a\":" ENTRY("F32", "[-1]", "[0,4]") "}", 4,
		"f: tensor 'a': expected whole numbers as the shape");
	refuse("{\"a\":" ENTRY("F32", "[1.5]", "[0,4]") "}", 4,
		"f: tensor 'a': expected whole numbers as the shape");
	refuse("{\"a\":" ENTRY("F32", "[1]", "[0,4,8]") "}", 4,
		"f: tensor 'a': expected data_offsets of two whole numbers");
	refuse("{\"a\":" ENTRY("F32", "[1]", "[0,\\\"4\\\"]") "}", 4,
		"f: byte 59: the header is not JSON: ...");
	refuse("{\"a\":" ENTRY("F32", "[1]", "[-4,0]") "}", 4,
		"f: tensor 'a': its data_offsets are outside of the file's data (is the "
		"file whole?)");
	refuse("{\"a\":" ENTRY("F32", "[1]", "[0,4]") "}", 3,
		"f: tensor 'a': its data_offsets are outside of the file's data (is the "
		"file whole?)");
	refuse("{\"a\":" ENTRY("F32", "[1]", "[4,0]") "}", 4,
		"f: tensor 'a': its data_offsets are outside of the file's data (is the "
		"file whole?)");
	refuse("{\"a\":" ENTRY("F32", "[1]", "[0,9223372036854775807]") "}", 4,
		"f: tensor 'a': its data_offsets are outside of the file's data (is the "
		"file whole?)");
	refuse("{\"a\":" ENTRY("F32", "[2]", "[0,4]") "}", 4,
		"f: tensor 'a': its data_offsets do not agree with its shape");
	refuse("{\"a\":" ENTRY("F32", "[4611686018427387904,4]", "[0,0]") "}", 0,
		"f: tensor 'a': its data_offsets do not agree with its shape");
	refuse("{\"a\":" ENTRY("F32", "[2]", "[0,8]") ",\"b\":" ENTRY(
		       "U8", "[4]", "[4,8]") "}",
		8, "f: tensor 'b': its data overlaps another's");
	refuse("{\"a\":" ENTRY("U8", "[2]", "[0,2]") ",\"b\":" ENTRY(
		       "U8", "[4]", "[4,8]") "}",
		8, "f: tensor 'b': there is a gap before its data");
	refuse("{\"a\":" ENTRY("U8", "[2]", "[0,2]") "}", 8,
		"f: the file has 8 bytes of data, but its tensors are 2 bytes in all");
	refuse("{\"a\":" ENTRY("U8", "[0]", "[0,0]") ",\"a\":" ENTRY(
		       "U8", "[0]", "[0,0]") "}",
		0, "f: byte 64: the header is not JSON: ...");
	refuse("{\"__metadata__\":3}", 0, "f: __metadata__: expected an object");
	refuse("{\"__metadata__\":{\"a\":3}}", 0,
		"f: __metadata__: 'a': expected a string");
}

static void test_a_wrong_length_is_told(void **state)
{
	struct tern_safetensors *parsed;
	char file[12] = {0};

	(void)state;
	assert_int_equal(tern_safetensors_parse("f", file, 7, &parsed, &error), -EINVAL);
	assert_string_equal(error.text, "f: 7 bytes: too short for a safetensors file");
	tern_put_le64(file, UINT64_MAX);
	assert_int_equal(tern_safetensors_parse("f", file, 12, &parsed, &error), -EINVAL);
	assert_string_equal(error.text, "f: byte 0: a header of 18446744073709551615 "
					"bytes: the file has 4 more (is "
					"it a safetensors file, and whole?)");
	tern_put_le64(file, 5);
	assert_int_equal(tern_safetensors_parse("f", file, 12, &parsed, &error), -EINVAL);
	tern_put_le64(file, 0);
	assert_int_equal(tern_safetensors_parse("f", file, 8, &parsed, &error), -EINVAL);
	assert_non_null(strstr(error.text, "the header is not JSON"));
}

static void test_every_truncation_is_noticed(void **state)
{
	struct iovec parts[4];
	struct tern_safetensors *parsed;
	size_t bytes;
	char *file;

	(void)state;
	assert_int_equal(tern_safetensors_build(tensors, 3, metadata, 2, parts), 0);
	file = join(parts, 4, &bytes);
	free(parts[0].iov_base);
	for (size_t cut = 0; cut < bytes; cut++) {
		void *exact = malloc(cut + 1);

		memcpy(exact, file, cut);
		error.text[0] = '\0';
		assert_int_equal(tern_safetensors_parse("f", exact, cut, &parsed, &error),
			-EINVAL);
		assert_true(error.text[0] != '\0');
		free(exact);
	}
	free(file);
}

static void test_changed_files_are_read_or_refused(void **state)
{
	struct tern_rng rng = {.seed = 3};
	struct iovec parts[4];
	size_t bytes, header_bytes;
	int accepted = 0;
	char *file, *changed;

	(void)state;
	assert_int_equal(tern_safetensors_build(tensors, 3, metadata, 2, parts), 0);
	header_bytes = parts[0].iov_len;
	file = join(parts, 4, &bytes);
	free(parts[0].iov_base);
	changed = malloc(bytes);
	for (int i = 0; i < 20000; i++) {
		struct tern_safetensors *parsed = NULL;
		int status;

		memcpy(changed, file, bytes);
		for (uint64_t n = 1 + tern_rng_below(&rng, 3); n > 0; n--)
			changed[tern_rng_below(&rng, header_bytes)] =
				"0123456789[]{}:,\"\\ -eF\xff"[tern_rng_below(&rng, 24)];
		error.text[0] = '\0';
		status = tern_safetensors_parse("f", changed, bytes, &parsed, &error);
		if (status == 0) {
			size_t count;
			const struct tern_safetensor *list =
				tern_safetensors_list(parsed, &count);

			for (size_t j = 0; j < count; j++)
				assert_true((const char *)list[j].data + list[j].bytes <=
					    changed + bytes);
			tern_safetensors_free(parsed);
			accepted++;
		} else {
			assert_int_equal(status, -EINVAL);
			assert_true(error.text[0] != '\0');
		}
	}
	assert_in_range(accepted, 500, 19500);
	free(changed);
	free(file);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_written_file_has_these_bytes),
		cmocka_unit_test(
			test_elements_of_any_byte_order_are_written_little_endian),
		cmocka_unit_test(test_what_was_written_is_read),
		cmocka_unit_test(test_an_empty_file_is_a_file),
		cmocka_unit_test(test_impossible_tensors_are_not_written),
		cmocka_unit_test(test_corrupt_files_are_refused_with_a_sentence),
		cmocka_unit_test(test_a_wrong_length_is_told),
		cmocka_unit_test(test_every_truncation_is_noticed),
		cmocka_unit_test(test_changed_files_are_read_or_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
