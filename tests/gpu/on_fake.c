/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tests of the CUDA kernels' table, on the simulated driver, and of errors of the
 * driver. They cover the arithmetic and the indexing of the kernels and the arguments
 * that the host passes; the barriers of a block and the code that nvcc generates only in
 * the programs that are built with ptx/ (see blocks.h).
 */
#include "tests/gpu/gpu.h"

#include <errno.h>
#include <string.h>

#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/gpu/blocks.h"
#include "tests/gpu/fake_blas.h"

static CUcontext context;

static void machine_open(void)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	const struct tern_cuda_api *api;

	opts.unguarded = true;
	fake_cuda_reset(&opts);
	gpu_register_blocks();
	fake_blas_register();
	gpu.api = api = fake_cuda_api();
	assert_int_equal(api->init(0), CUDA_SUCCESS);
	assert_int_equal(api->device_get(&gpu.device, 0), CUDA_SUCCESS);
	assert_int_equal(api->primary_ctx_retain(&context, gpu.device), CUDA_SUCCESS);
	assert_int_equal(api->ctx_push_current(context), CUDA_SUCCESS);
	assert_int_equal(
		api->stream_create_with_priority(&gpu.stream, CU_STREAM_NON_BLOCKING, 0),
		CUDA_SUCCESS);
}

/* The reset asserts that no object of the driver is open. */
static void machine_close(void)
{
	const struct tern_cuda_api *api = gpu.api;

	assert_int_equal(api->stream_destroy(gpu.stream), CUDA_SUCCESS);
	assert_int_equal(api->ctx_pop_current(NULL), CUDA_SUCCESS);
	assert_int_equal(api->primary_ctx_release(gpu.device), CUDA_SUCCESS);
	fake_cuda_reset(NULL);
}

/* ---- errors of the driver ---- */

static int open_table(const struct tern_cublas_api *blas, struct tern_cuda_kernels **out,
	char *why, size_t bytes)
{
	return tern_cuda_kernels_new(gpu.api, blas, gpu.device, gpu.stream,
		&(struct tern_cuda_sizes){.xent_rows = 10}, out, why, bytes);
}

static void test_each_refusal_at_the_start_has_a_line_and_leaves_nothing(void **state)
{
	static const struct {
		const char *function;
		unsigned nth;
		CUresult result;
		int error;
		const char *line;
	} cases[] = {
		{"module_load_data_ex", 1, CUDA_ERROR_NO_BINARY_FOR_GPU, -ENOEXEC,
			"loading the kernels"},
		{"module_get_function", 1, CUDA_ERROR_NOT_FOUND, 0, "tern_cuda_sum"},
		{"mem_alloc", 1, CUDA_ERROR_OUT_OF_MEMORY, -ENOMEM, "workspace"},
		{"device_get_name", 1, CUDA_ERROR_INVALID_DEVICE, 0, "name"},
	};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(cases); i++) {
		struct tern_cuda_kernels *k = NULL;
		char why[256] = "";
		int r;

		machine_open();
		fake_cuda_fail(cases[i].function, cases[i].nth, cases[i].result);
		r = open_table(&fake_blas, &k, why, sizeof(why));
		assert_true(r < 0 && (cases[i].error == 0 || r == cases[i].error));
		assert_non_null(strstr(why, cases[i].line));
		assert_null(k);
		machine_close();
	}
}

static void test_cublas_may_refuse_at_the_start_and_later(void **state)
{
	struct tern_cuda_kernels *k = NULL;
	char why[256];

	(void)state;
	machine_open();
	fake_blas_create_fails = 3;
	assert_int_equal(open_table(&fake_blas, &k, why, sizeof(why)), -EIO);
	assert_string_equal(why, "cublasCreate: the resource allocation failed");
	assert_int_equal(open_table(&fake_blas, &k, why, sizeof(why)), 0);
	fake_blas_sgemm_fails = 13;
	assert_int_equal(
		tern_cuda_dense_forward(k, NULL, NULL, NULL, NULL, 1, 1, 1, true), -EIO);
	assert_non_null(strstr(tern_cuda_kernels_error(k), "cublasSgemm"));
	tern_cuda_kernels_free(k);
	machine_close();
}

static void test_a_refused_launch_names_its_kernel(void **state)
{
	struct tern_cuda_kernels *k;
	char why[256];
	float *none = NULL;

	(void)state;
	machine_open();
	assert_int_equal(open_table(NULL, &k, why, sizeof(why)), 0);
	assert_string_equal(tern_cuda_kernels_error(k), "");
	fake_cuda_fail("launch_kernel", 1, CUDA_ERROR_INVALID_VALUE);
	assert_true(tern_cuda_sum(k, NULL, (const float *const *)&none, 1, 1, 5) < 0);
	assert_non_null(strstr(tern_cuda_kernels_error(k), "tern_cuda_sum: "));
	assert_int_equal(
		tern_cuda_sum(k, NULL, (const float *const *)&none, 1, 1, 1ull << 60),
		-EOVERFLOW);
	tern_cuda_kernels_free(k);
	machine_close();
}

static void test_fingerprint_says_device_driver_and_products(void **state)
{
	struct tern_cuda_kernels *k;
	char why[256];

	(void)state;
	machine_open();
	assert_int_equal(open_table(NULL, &k, why, sizeof(why)), 0);
	assert_non_null(strstr(tern_cuda_kernels_fingerprint(k), "x sm_90) driver "));
	assert_non_null(strstr(tern_cuda_kernels_fingerprint(k), " tiled"));
	tern_cuda_kernels_free(k);
	assert_int_equal(open_table(&fake_blas, &k, why, sizeof(why)), 0);
	assert_non_null(strstr(tern_cuda_kernels_fingerprint(k), " cublas 13.0.2"));
	tern_cuda_kernels_free(k);
	machine_close();
}

static void test_fingerprint_says_what_overrides_cublas(void **state)
{
	struct tern_cuda_kernels *k;
	char why[256];

	(void)state;
	machine_open();
	setenv("NVIDIA_TF32_OVERRIDE", "0", 1);
	setenv("CUBLAS_EMULATE_SINGLE_PRECISION", "1", 1);
	assert_int_equal(open_table(&fake_blas, &k, why, sizeof(why)), 0);
	assert_non_null(strstr(tern_cuda_kernels_fingerprint(k),
		" cublas 13.0.2 tf32_override=0 emulate=1"));
	tern_cuda_kernels_free(k);
	/* Without cuBLAS (Tern's own matrix products), environment variables for cuBLAS
	 * do not matter. */
	assert_int_equal(open_table(NULL, &k, why, sizeof(why)), 0);
	assert_null(strstr(tern_cuda_kernels_fingerprint(k), "override"));
	tern_cuda_kernels_free(k);
	unsetenv("NVIDIA_TF32_OVERRIDE");
	unsetenv("CUBLAS_EMULATE_SINGLE_PRECISION");
	machine_close();
}

static void test_an_update_of_33_tensors_is_one_launch(void **state)
{
	struct tern_cuda_kernels *k;
	struct tern_cuda_tensor tensors[33];
	struct tern_optimizer o;
	struct twin x;
	char why[256];

	(void)state;
	machine_open();
	assert_int_equal(open_table(NULL, &k, why, sizeof(why)), 0);
	assert_int_equal(tern_optimizer_parse("sgd", &o), 0);
	x = twin_new(33 * sizeof(float), 0);
	for (unsigned i = 0; i < 33; i++)
		tensors[i] = (struct tern_cuda_tensor){.w_out = dev_f32(&x) + i,
			.w_in = dev_f32(&x) + i,
			.grads = {dev_f32(&x) + i},
			.count = 1};
	assert_done(k, tern_cuda_update(k, &o, 1, tensors, 33, 1, 1, 1));
	assert_int_equal(fake_cuda_calls("launch_kernel"), 1);
	gpu_down(&x);
	twin_free(&x);
	tern_cuda_kernels_free(k);
	machine_close();
}

static void test_cublas_is_loaded_or_a_line_says_why_not(void **state)
{
	const struct tern_cublas_api *blas, *again;
	const char *why, *same;
	int r;

	(void)state;
	machine_open();
	r = tern_cublas_load(gpu.api, &blas, &why);
	assert_true(r == 0 ? blas && !why : r == -ENOSYS && !blas && why);
	assert_int_equal(tern_cublas_load(gpu.api, &again, &same), r);
	assert_ptr_equal(again, blas);
	assert_ptr_equal(same, why);
	machine_close();
}

/* ---- */

static int open_all(void **state)
{
	(void)state;
	machine_open();
	gpu.blas[0] = &fake_blas;
	return gpu_open_tables();
}

static int close_all(void **state)
{
	(void)state;
	gpu_close_tables();
	machine_close();
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest refusals[] = {
		cmocka_unit_test(
			test_each_refusal_at_the_start_has_a_line_and_leaves_nothing),
		cmocka_unit_test(test_cublas_may_refuse_at_the_start_and_later),
		cmocka_unit_test(test_a_refused_launch_names_its_kernel),
		cmocka_unit_test(test_fingerprint_says_device_driver_and_products),
		cmocka_unit_test(test_fingerprint_says_what_overrides_cublas),
		cmocka_unit_test(test_an_update_of_33_tensors_is_one_launch),
		cmocka_unit_test(test_cublas_is_loaded_or_a_line_says_why_not),
	};
	int failed;

	gpu.scale = gpu_blocks_scale;
	failed = gpu_run(argc, argv, open_all, close_all);

	if (gpu_asked(argc, argv, "refusals"))
		failed += cmocka_run_group_tests(refusals, NULL, NULL);
	return failed;
}
