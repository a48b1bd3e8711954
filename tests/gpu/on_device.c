/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tests of the CUDA kernels' table on the first GPU of this machine. Without a driver
 * or a device it is skipped, with the reason.
 */
#include "tests/gpu/gpu.h"

#include <stdio.h>
#include <string.h>

static CUcontext context;

static int open_all(void **state)
{
	const char *blas = getenv("TERN_GPU_BLAS"), *why;

	(void)state;
	if (blas && strcmp(blas, "none") == 0)
		print_message("without cuBLAS: TERN_GPU_BLAS=none\n");
	else if (tern_cublas_load(gpu.api, &gpu.blas[0], &why) < 0)
		print_message("without cuBLAS: %s\n", why);
	return gpu_open_tables();
}

static int close_all(void **state)
{
	(void)state;
	gpu_close_tables();
	return 0;
}

static bool open_device(void)
{
	const struct tern_cuda_api *api = gpu.api;

	return api->device_get(&gpu.device, 0) == CUDA_SUCCESS &&
	       api->primary_ctx_retain(&context, gpu.device) == CUDA_SUCCESS &&
	       api->ctx_push_current(context) == CUDA_SUCCESS &&
	       api->stream_create_with_priority(&gpu.stream, CU_STREAM_NON_BLOCKING, 0) ==
		       CUDA_SUCCESS;
}

int main(int argc, char **argv)
{
	const char *why;
	int failed;

	if (tern_cuda_load(&gpu.api, &why) < 0) {
		printf("skip: %s\n", why);
		return 77;
	}
	gpu.scale = gpu_scale_asked_for();
	if (!open_device()) {
		printf("creating a context or a stream on the device failed\n");
		return 1;
	}
	failed = gpu_run(argc, argv, open_all, close_all);
	gpu.api->stream_destroy(gpu.stream);
	gpu.api->ctx_pop_current(NULL);
	gpu.api->primary_ctx_release(gpu.device);
	return failed;
}
