/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of loading the CUDA driver: the simulated one, as libcuda.so.1 on the library
 * path. A process can load the driver only once. So each test but the last one loads it in
 * child processes.
 */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cuda.h"

/* Loads the driver in a child process with the environment FAKE_CUDA=`machine`. Returns
 * the status of tern_cuda_load(). `why` gets the reason of an error; after success it gets
 * "all of it" if the driver has a function that is optional, else "". */
static int load(const char *machine, char *why, size_t bytes)
{
	int fds[2], status;
	ssize_t n;
	pid_t child;

	memset(why, 0, bytes);
	assert_int_equal(pipe(fds), 0);
	child = fork();
	if (child == 0) {
		const struct tern_cuda_api *api;
		const char *text = "";
		int r;

		setenv("FAKE_CUDA", machine, 1);
		r = tern_cuda_load(&api, &text);
		if (!r && api->mem_get_handle_for_address_range)
			text = "all of it";
		n = write(fds[1], text, strlen(text));
		_exit(n == (ssize_t)strlen(text) ? -r : 255);
	}
	close(fds[1]);
	assert_int_equal(waitpid(child, &status, 0), child);
	n = read(fds[0], why, bytes - 1);
	close(fds[0]);
	assert_true(n >= 0 && WIFEXITED(status));
	return -WEXITSTATUS(status);
}

static void test_the_table_is_filled(void **state)
{
	char why[256];

	(void)state;
	assert_int_equal(load("devices=2", why, sizeof(why)), 0);
	assert_string_equal(why, "all of it");
	/* The oldest supported version of the driver, which lacks the optional
	 * functions. */
	assert_int_equal(load("version=12000,old=1", why, sizeof(why)), 0);
	assert_string_equal(why, "");
}

static void test_a_driver_that_is_too_old_is_refused(void **state)
{
	char why[256];

	(void)state;
	assert_int_equal(load("version=11040", why, sizeof(why)), -ENOSYS);
	assert_string_equal(why, "the driver is for CUDA 11.4; 12.0 is needed");
}

static void test_a_driver_without_a_needed_function_is_refused(void **state)
{
	char why[256];

	(void)state;
	assert_int_equal(load("missing=cuMemAlloc", why, sizeof(why)), -ENOSYS);
	assert_string_equal(why, "libcuda.so.1 has no cuMemAlloc of version 3.2");
	assert_int_equal(load("missing=cuIpcGetMemHandle", why, sizeof(why)), 0);
}

static void test_no_device_and_failures_say_why(void **state)
{
	char why[256];

	(void)state;
	assert_int_equal(load("devices=0", why, sizeof(why)), -ENODEV);
	assert_string_equal(why, "the driver has no CUDA device for this process");
	assert_int_equal(load("init=802", why, sizeof(why)), -EIO);
	assert_string_equal(why,
		"cuInit: the simulated driver says so (CUDA_ERROR_SYSTEM_NOT_READY)");
	assert_int_equal(load("stub=1", why, sizeof(why)), -ENOSYS);
	assert_non_null(strstr(why, "the toolkit's stub"));
}

static void *load_again(void *arg)
{
	const struct tern_cuda_api **out = arg;
	const char *why;

	return tern_cuda_load(out, &why) ? arg : NULL;
}

static void test_threads_load_it_once(void **state)
{
	const struct tern_cuda_api *apis[8] = {0};
	pthread_t threads[8];
	int version;

	(void)state;
	for (int i = 0; i < 8; i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL, load_again, &apis[i]), 0);
	for (int i = 0; i < 8; i++) {
		void *failed;

		pthread_join(threads[i], &failed);
		assert_null(failed);
		assert_non_null(apis[i]);
		assert_ptr_equal(apis[i], apis[0]);
	}
	assert_int_equal(apis[0]->driver_get_version(&version), CUDA_SUCCESS);
	assert_int_equal(version, CUDA_VERSION);
}

int main(void)
{
	/* The last case loads the driver into this process, so it must stay last. */
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_table_is_filled),
		cmocka_unit_test(test_a_driver_that_is_too_old_is_refused),
		cmocka_unit_test(test_a_driver_without_a_needed_function_is_refused),
		cmocka_unit_test(test_no_device_and_failures_say_why),
		cmocka_unit_test(test_threads_load_it_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
