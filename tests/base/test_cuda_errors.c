/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the conversion of the CUDA driver's error codes to errno values. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <string.h>

#include "base/cuda.h"

static CUresult get_error_name(CUresult result, const char **out)
{
	*out = result == CUDA_ERROR_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : NULL;
	return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get_error_string(CUresult result, const char **out)
{
	(void)result;
	*out = "an illegal memory access was encountered";
	return CUDA_SUCCESS;
}

static void test_results_become_errnos(void **state)
{
	(void)state;
	assert_int_equal(tern_cuda_status(CUDA_SUCCESS), 0);
	assert_int_equal(tern_cuda_status(CUDA_ERROR_NOT_READY), -EAGAIN);
	assert_int_equal(tern_cuda_status(CUDA_ERROR_OUT_OF_MEMORY), -ENOMEM);
	assert_int_equal(tern_cuda_status(CUDA_ERROR_NO_BINARY_FOR_GPU), -ENOEXEC);
	assert_int_equal(tern_cuda_status(CUDA_ERROR_UNKNOWN), -EIO);
	assert_int_equal(tern_cuda_status((CUresult)4711), -EIO);
}

static void test_an_error_that_spoils_the_context_is_told_apart(void **state)
{
	(void)state;
	assert_true(tern_cuda_is_sticky(CUDA_ERROR_ILLEGAL_ADDRESS));
	assert_true(tern_cuda_is_sticky(CUDA_ERROR_LAUNCH_FAILED));
	assert_int_equal(tern_cuda_status(CUDA_ERROR_ILLEGAL_ADDRESS), -ENOTRECOVERABLE);
	assert_false(tern_cuda_is_sticky(CUDA_SUCCESS));
	assert_false(tern_cuda_is_sticky(CUDA_ERROR_OUT_OF_MEMORY));
	assert_false(tern_cuda_is_sticky(CUDA_ERROR_NOT_READY));
	assert_false(tern_cuda_is_sticky(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES));
}

static void test_a_text_names_the_error(void **state)
{
	const struct tern_cuda_api api = {
		.get_error_name = get_error_name,
		.get_error_string = get_error_string,
	};
	char text[128];

	(void)state;
	assert_string_equal(
		tern_cuda_text(&api, CUDA_ERROR_ILLEGAL_ADDRESS, text, sizeof(text)),
		"an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)");
	assert_string_equal(tern_cuda_text(&api, (CUresult)4711, text, sizeof(text)),
		"CUDA error 4711");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_results_become_errnos),
		cmocka_unit_test(test_an_error_that_spoils_the_context_is_told_apart),
		cmocka_unit_test(test_a_text_names_the_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
