/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of what `tern info` prints about GPUs, on simulated GPUs. */
#include "tests/harness/cmocka.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tests/fakes/cuda/fake_cuda.h"
#include "tools/info_cuda.h"

static const struct tern_cuda_api *with(const struct fake_cuda_opts *opts)
{
	fake_cuda_reset(opts);
	fake_cuda_api()->init(0);
	return fake_cuda_api();
}

static json_t *device(json_t *cuda, size_t i)
{
	return json_array_get(json_object_get(cuda, "devices"), i);
}

static const char *text(json_t *object, const char *name)
{
	return json_string_value(json_object_get(object, name));
}

static json_int_t number(json_t *object, const char *name)
{
	return json_integer_value(json_object_get(object, name));
}

/* True if one of the listed differences begins with `begin`. */
static bool differs(json_t *one, const char *begin)
{
	json_t *line;
	size_t i;

	json_array_foreach(json_object_get(one, "differences"), i, line)
	{
		if (strncmp(json_string_value(line), begin, strlen(begin)) == 0)
			return true;
	}
	return false;
}

/* Returns the printed text, which the caller frees. */
static char *printed(const json_t *cuda)
{
	FILE *before = stdout;
	size_t bytes;
	char *out;

	stdout = open_memstream(&out, &bytes);
	assert_non_null(stdout);
	info_cuda_print(cuda);
	fclose(stdout);
	stdout = before;
	return out;
}

static void test_devices_are_listed(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	json_t *cuda, *one, *transfers;

	(void)state;
	opts.device_count = 2;
	opts.driver_version = 20010;
	cuda = info_cuda(with(&opts));
	assert_string_equal(text(cuda, "driver"), "20.1");
	assert_int_equal(json_array_size(json_object_get(cuda, "devices")), 2);
	one = device(cuda, 1);
	assert_string_equal(text(one, "name"), "Simulated GPU 1");
	assert_string_equal(text(one, "pci"), "fa4e:1b:00.0");
	assert_string_equal(
		text(one, "uuid"), "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f");
	assert_string_equal(text(one, "capability"), "9.0");
	assert_string_equal(text(one, "kernels"), "native");
	assert_int_equal(number(one, "numa_node"), 1);
	assert_int_equal(number(one, "memory_bytes"), 1 << 30);
	assert_int_equal(number(one, "memory_free_bytes"), 1 << 30);
	transfers = json_object_get(one, "transfers");
	assert_true(json_is_true(json_object_get(transfers, "dma_buf")));
	assert_string_equal(text(transfers, "rdma_order"), "owner");
	assert_string_equal(text(transfers, "rdma_flush"), "host");
	assert_int_equal(json_array_size(json_object_get(one, "differences")), 0);
	json_decref(cuda);
	fake_cuda_reset(NULL); /* asserts that no object of the driver is open */
}

static void test_what_a_device_lacks_is_a_difference(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	json_t *cuda;

	(void)state;
	opts.major = 7;
	opts.minor = 5;
	opts.rdma = opts.ipc = false;
	opts.copy_engines = 1;
	cuda = info_cuda(with(&opts));
	assert_string_equal(text(device(cuda, 0), "kernels"), "none");
	assert_true(differs(device(cuda, 0), "no kernels: its capability is 7.5; 8.0"));
	assert_true(differs(device(cuda, 0), "the GPU has no GPUDirect RDMA"));
	assert_true(differs(device(cuda, 0), "no IPC"));
	assert_true(differs(device(cuda, 0),
		"copies in both directions take turns: copy engines: 1"));
	json_decref(cuda);
	opts = fake_cuda_defaults();
	opts.major = 12;
	cuda = info_cuda(with(&opts));
	assert_string_equal(text(device(cuda, 0), "kernels"), "ptx");
	assert_true(differs(device(cuda, 0), "kernels are compiled by the driver"));
	json_decref(cuda);
	opts.driver_version = CUDA_VERSION - 1000;
	cuda = info_cuda(with(&opts));
	assert_true(differs(device(cuda, 0), "no kernels: the driver is for CUDA"));
	json_decref(cuda);
	fake_cuda_reset(NULL);
}

static void test_a_device_that_cannot_be_used_says_why(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	json_t *cuda;
	char *out;

	(void)state;
	opts.compute_mode = CU_COMPUTEMODE_PROHIBITED;
	cuda = info_cuda(with(&opts));
	assert_true(differs(device(cuda, 0), "compute mode is prohibited"));
	assert_true(differs(device(cuda, 0), "no context can be made: "));
	assert_int_equal(number(device(cuda, 0), "memory_free_bytes"), -1);
	json_decref(cuda);
	opts = fake_cuda_defaults();
	opts.device_count = 2;
	with(&opts);
	fake_cuda_fail("device_get_name", 1, CUDA_ERROR_UNKNOWN);
	cuda = info_cuda(fake_cuda_api());
	assert_int_equal(json_array_size(json_object_get(cuda, "devices")), 2);
	assert_true(differs(device(cuda, 0), "it does not answer: "));
	assert_string_equal(text(device(cuda, 1), "name"), "Simulated GPU 1");
	out = printed(cuda);
	assert_non_null(strstr(out, "  device 0               does not answer\n"));
	free(out);
	json_decref(cuda);
	fake_cuda_reset(NULL);
}

static void test_people_read_the_same(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	json_t *cuda;
	char *out;

	(void)state;
	opts.copy_engines = 1;
	opts.driver_version = 20010;
	cuda = info_cuda(with(&opts));
	/* Both are replaced, since the real values depend on this machine and its CUDA
	 * toolkit. */
	json_object_set_new(cuda, "peermem", json_false());
	json_object_set_new(cuda, "toolkit", json_string("13.0"));
	out = printed(cuda);
	assert_string_equal(out,
		"cuda\n"
		"  driver                 for CUDA 20.1; this tern was built with CUDA "
		"13.0\n"
		"  nvidia-peermem         not loaded\n"
		"  device 0               Simulated GPU 0, capability 9.0, "
		"8 multiprocessors, 1.0 GiB (1.0 GiB free)\n"
		"    pci                  fa4e:1a:00.0, NUMA node 0, "
		"GPU-00010203-0405-0607-0809-0a0b0c0d0e0f\n"
		"    kernels              native\n"
		"    transfers            copy_engines=1 map_host=yes ipc=yes vmm=yes\n"
		"                         gpudirect_rdma=yes dma_buf=yes rdma_flush=host "
		"rdma_order=owner\n"
		"    differs              copies in both directions take turns: copy "
		"engines: 1\n");
	free(out);
	json_decref(cuda);
	cuda = json_pack("{ss}", "why", "there is none");
	out = printed(cuda);
	assert_string_equal(out, "cuda\n  not here               there is none\n");
	free(out);
	json_decref(cuda);
	fake_cuda_reset(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_devices_are_listed),
		cmocka_unit_test(test_what_a_device_lacks_is_a_difference),
		cmocka_unit_test(test_a_device_that_cannot_be_used_says_why),
		cmocka_unit_test(test_people_read_the_same),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
