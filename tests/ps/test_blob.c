/* SPDX-License-Identifier: Apache-2.0 */
/* Blobs as JSON: every size is read back, and only what was written so. */
#include "ps/blob.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <tern/train.h>

#include "tests/harness/cmocka.h"

static uint8_t bytes[TERN_KEEP_MAX + 1];

static void fill(void)
{
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 167 + (i >> 8));
}

static void check_size(size_t size)
{
	struct tern_blob blob = {0}, again;
	json_t *root;

	assert_int_equal(tern_blob_set(&blob, 7, bytes, size), 0);
	root = tern_blob_json(&blob);
	assert_non_null(root);
	assert_int_equal(tern_blob_read(root, 7, &again), 0);
	assert_true(again.step == 7 && again.bytes == size);
	if (size)
		assert_memory_equal(again.data, bytes, size);
	tern_blob_fini(&again);
	assert_int_equal(tern_blob_read(root, 6, &again), -EINVAL);
	json_decref(root);
	tern_blob_fini(&blob);
}

static void test_every_size_is_read_back(void **state)
{
	(void)state;
	fill();
	for (size_t size = 0; size < 70; size++)
		check_size(size);
	check_size(TERN_KEEP_MAX);
}

static void test_a_blob_that_is_too_large_is_refused(void **state)
{
	struct tern_blob blob = {0}, again;
	json_t *root;

	(void)state;
	assert_int_equal(tern_blob_set(&blob, 1, bytes, TERN_KEEP_MAX + 1), 0);
	root = tern_blob_json(&blob);
	assert_int_equal(tern_blob_read(root, 1, &again), -EINVAL);
	assert_null(again.data);
	json_decref(root);
	tern_blob_fini(&blob);
}

static void check_text(size_t size, const char *text, int expected)
{
	struct tern_blob blob;
	json_t *root = json_pack(
		"{s:i, s:I, s:s}", "step", 1, "bytes", (json_int_t)size, "data", text);

	assert_int_equal(tern_blob_read(root, 1, &blob), expected);
	tern_blob_fini(&blob);
	json_decref(root);
}

/* The examples of RFC 4648, section 10, and texts that are none. */
static void test_a_text_that_is_no_base64_is_refused(void **state)
{
	(void)state;
	check_text(0, "", 0);
	check_text(1, "Zg==", 0);
	check_text(2, "Zm8=", 0);
	check_text(3, "Zm9v", 0);
	check_text(6, "Zm9vYmFy", 0);
	check_text(1, "Zg", -EINVAL);
	check_text(1, "Zg=A", -EINVAL);
	check_text(1, "Zh==", -EINVAL); /* a bit beyond the byte */
	check_text(2, "Zm8=====", -EINVAL);
	check_text(3, "Zm9=", -EINVAL);
	check_text(3, "Zm-v", -EINVAL);
	check_text(3, "Zm v", -EINVAL);
	check_text(0, "Zm9v", -EINVAL);
}

static void test_nothing_is_a_blob_of_no_step(void **state)
{
	const struct tern_blob none = {0};
	struct tern_blob blob;

	(void)state;
	assert_null(tern_blob_json(&none));
	assert_int_equal(tern_blob_read(NULL, 1, &blob), -EINVAL);
	assert_int_equal(tern_blob_read(json_null(), 1, &blob), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_size_is_read_back),
		cmocka_unit_test(test_a_blob_that_is_too_large_is_refused),
		cmocka_unit_test(test_a_text_that_is_no_base64_is_refused),
		cmocka_unit_test(test_nothing_is_a_blob_of_no_step),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
