/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of base/cuda_devices.h, which describes CUDA devices, on simulated devices. */
#include "tests/harness/cmocka.h"

#include "base/cuda_devices.h"
#include "tests/fakes/cuda/fake_cuda.h"

static const struct tern_cuda_api *with(const struct fake_cuda_opts *opts)
{
	fake_cuda_reset(opts);
	assert_int_equal(fake_cuda_api()->init(0), CUDA_SUCCESS);
	return fake_cuda_api();
}

static struct tern_cuda_device get(const struct fake_cuda_opts *opts, unsigned ordinal)
{
	struct tern_cuda_device device;

	assert_int_equal(
		tern_cuda_device_get(with(opts), ordinal, &device), CUDA_SUCCESS);
	return device;
}

static void test_devices_are_described(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	struct tern_cuda_device device;
	unsigned count;

	(void)state;
	opts.device_count = 2;
	device = get(&opts, 1);
	assert_int_equal(tern_cuda_device_count(fake_cuda_api(), &count), CUDA_SUCCESS);
	assert_int_equal(count, 2);
	assert_string_equal(device.name, "Simulated GPU 1");
	assert_string_equal(device.pci, "fa4e:1b:00.0");
	assert_int_equal(device.uuid[15], 31);
	assert_int_equal(device.major, 9);
	assert_int_equal(device.minor, 0);
	assert_true(device.mem_bytes == 1u << 30);
	assert_int_equal(device.numa_node, 1);
	assert_int_equal(device.copy_engine_count, 3);
	assert_true(device.map_host && device.ipc && device.vmm && device.dma_buf &&
		    device.rdma);
	assert_int_equal(device.rdma_flush, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST);
	assert_int_equal(device.rdma_order, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
	assert_int_equal(tern_cuda_device_get(fake_cuda_api(), 2, &device),
		CUDA_ERROR_INVALID_DEVICE);
	fake_cuda_reset(NULL); /* asserts that no object of the driver is open */
}

static void test_what_a_driver_does_not_know_is_missing(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	struct tern_cuda_device device;

	(void)state;
	opts.old_driver = true;
	device = get(&opts, 0);
	assert_int_equal(device.numa_node, -1);
	assert_false(device.dma_buf || device.ipc);
	assert_true(device.rdma); /* true, since nvidia-peermem is loaded */
	fake_cuda_reset(NULL);
}

static void test_a_device_that_does_not_answer_fails(void **state)
{
	static const char *const calls[] = {"device_get", "device_get_name",
		"device_get_pci_bus_id", "device_get_uuid", "device_total_mem",
		"device_get_attribute"};
	struct tern_cuda_device device;

	(void)state;
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		with(NULL);
		fake_cuda_fail(calls[i], 1, CUDA_ERROR_UNKNOWN);
		assert_int_equal(tern_cuda_device_get(fake_cuda_api(), 0, &device),
			CUDA_ERROR_UNKNOWN);
	}
	fake_cuda_reset(NULL);
}

static void test_kernels_run_by_the_rule(void **state)
{
	const int major = CUDA_VERSION / 1000 * 1000, before = major - 10;

	(void)state;
	assert_int_equal(tern_cuda_code(CUDA_VERSION, 7, 5), TERN_CUDA_CODE_OLD_DEVICE);
	assert_int_equal(tern_cuda_code(CUDA_VERSION, 8, 0), TERN_CUDA_CODE_NATIVE);
	assert_int_equal(tern_cuda_code(CUDA_VERSION, 8, 9), TERN_CUDA_CODE_NATIVE);
	assert_int_equal(tern_cuda_code(CUDA_VERSION, 9, 0), TERN_CUDA_CODE_NATIVE);
	assert_int_equal(tern_cuda_code(CUDA_VERSION, 10, 0), TERN_CUDA_CODE_PTX);
	assert_int_equal(tern_cuda_code(CUDA_VERSION + 1000, 12, 1), TERN_CUDA_CODE_PTX);
	assert_int_equal(tern_cuda_code(major, 9, 0), TERN_CUDA_CODE_NATIVE);
	assert_int_equal(tern_cuda_code(before, 9, 0), TERN_CUDA_CODE_OLD_DRIVER);
	assert_int_equal(
		tern_cuda_code(CUDA_VERSION - 10, 10, 0), TERN_CUDA_CODE_OLD_DRIVER);
}

static void test_memory_is_asked_in_a_context_that_is_given_back(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	const struct tern_cuda_api *api = with(NULL);
	uint64_t free_bytes, total;

	(void)state;
	assert_int_equal(tern_cuda_memory(api, 0, &free_bytes, &total), CUDA_SUCCESS);
	assert_true(free_bytes == 1u << 30 && total == 1u << 30);
	fake_cuda_fail("mem_get_info", 1, CUDA_ERROR_UNKNOWN);
	assert_int_equal(
		tern_cuda_memory(api, 0, &free_bytes, &total), CUDA_ERROR_UNKNOWN);
	fake_cuda_fail("ctx_push_current", 1, CUDA_ERROR_INVALID_CONTEXT);
	assert_int_equal(tern_cuda_memory(api, 0, &free_bytes, &total),
		CUDA_ERROR_INVALID_CONTEXT);
	assert_int_equal(fake_cuda_live().contexts, 0);
	opts.compute_mode = CU_COMPUTEMODE_PROHIBITED;
	assert_int_equal(tern_cuda_memory(with(&opts), 0, &free_bytes, &total),
		CUDA_ERROR_DEVICE_UNAVAILABLE);
	fake_cuda_reset(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_devices_are_described),
		cmocka_unit_test(test_what_a_driver_does_not_know_is_missing),
		cmocka_unit_test(test_a_device_that_does_not_answer_fails),
		cmocka_unit_test(test_kernels_run_by_the_rule),
		cmocka_unit_test(test_memory_is_asked_in_a_context_that_is_given_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
