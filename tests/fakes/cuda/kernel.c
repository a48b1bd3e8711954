/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules and kernels of the simulated driver. The image of a module is not read: every
 * module contains all kernels that the test has registered. A launch is checked against
 * limits (threads, shared memory) that all supported devices have.
 */
#include "tests/fakes/cuda/cuda_world.h"

#define THREADS_MAX        1024
#define SHARED_BYTES       (48 << 10)
#define SHARED_OPTIN_BYTES (227 << 10)

void fake_cuda_kernel(const char *name,
	void (*run)(const struct fake_cuda_launch *launch), unsigned param_count,
	const size_t *param_bytes)
{
	struct fake_kernel *kernel = calloc(1, sizeof(*kernel));

	FAKE_LOCK();
	tern_assert(kernel && param_count <= FAKE_CUDA_MAX_PARAMS);
	tern_assert(strlen(name) < sizeof(kernel->name));
	strcpy(kernel->name, name);
	kernel->run = run;
	kernel->param_count = param_count;
	for (unsigned i = 0; i < param_count; i++)
		kernel->param_bytes[i] = param_bytes[i];
	tern_list_push(&fake_world.kernels, &kernel->node);
}

void fake_kernels_forget(void)
{
	struct tern_list *n;

	while ((n = tern_list_pop(&fake_world.kernels)))
		free(tern_list_entry(n, struct fake_kernel, node));
}

static const struct fake_kernel *kernel_named(const char *name)
{
	tern_list_for_each (n, &fake_world.kernels) {
		const struct fake_kernel *kernel =
			tern_list_entry(n, struct fake_kernel, node);

		if (strcmp(kernel->name, name) == 0)
			return kernel;
	}
	return NULL;
}

/* ---- modules ---- */

static struct fake_module *module_of(CUmodule handle)
{
	tern_list_for_each (n, &fake_world.modules) {
		struct fake_module *module = tern_list_entry(n, struct fake_module, node);

		if ((void *)module == (void *)handle)
			return module;
	}
	tern_never("fake cuda: not a module");
}

static struct fake_function *function_of(CUfunction handle)
{
	tern_list_for_each (n, &fake_world.modules) {
		struct fake_module *module = tern_list_entry(n, struct fake_module, node);

		tern_list_for_each (m, &module->functions) {
			struct fake_function *function =
				tern_list_entry(m, struct fake_function, node);

			if ((void *)function == (void *)handle)
				return function;
		}
	}
	tern_never("fake cuda: not a function, or of a module that is gone");
}

static CUresult module_load_data_ex(CUmodule *out, const void *image, unsigned count,
	CUjit_option *options, void **values)
{
	FAKE_ENTER_UNSAFE("module_load_data_ex");
	struct fake_module *module;
	if (!image || (count && (!options || !values)))
		return CUDA_ERROR_INVALID_VALUE;
	module = calloc(1, sizeof(*module));
	tern_assert(module);
	module->device = device;
	tern_list_init(&module->functions);
	tern_list_push(&fake_world.modules, &module->node);
	*out = (CUmodule)(void *)module;
	return CUDA_SUCCESS;
}

static void module_free(struct fake_module *module)
{
	struct tern_list *n;

	while ((n = tern_list_pop(&module->functions)))
		free(tern_list_entry(n, struct fake_function, node));
	tern_list_remove(&module->node);
	free(module);
}

void fake_modules_drop(struct fake_device *device)
{
	tern_list_for_each_safe (n, &fake_world.modules) {
		struct fake_module *module = tern_list_entry(n, struct fake_module, node);

		if (module->device == device)
			module_free(module);
	}
}

static CUresult module_unload(CUmodule handle)
{
	FAKE_ENTER_UNSAFE("module_unload");
	struct fake_module *module = module_of(handle);
	(void)device;
	module_free(module);
	return CUDA_SUCCESS;
}

static CUresult module_get_function(CUfunction *out, CUmodule handle, const char *name)
{
	FAKE_ENTER_CTX("module_get_function");
	struct fake_module *module = module_of(handle);
	const struct fake_kernel *kernel = kernel_named(name);
	struct fake_function *function;
	(void)device;
	if (!kernel)
		return CUDA_ERROR_NOT_FOUND;
	function = calloc(1, sizeof(*function));
	tern_assert(function);
	function->module = module;
	function->kernel = kernel;
	function->shared_max_bytes = SHARED_BYTES;
	tern_list_push(&module->functions, &function->node);
	*out = (CUfunction)(void *)function;
	return CUDA_SUCCESS;
}

/* ---- launches ---- */

static bool is_possible(
	const struct fake_function *function, const struct fake_cuda_launch *launch)
{
	const unsigned *grid = launch->grid, *block = launch->block;

	return grid[0] && grid[1] && grid[2] && block[0] && block[1] && block[2] &&
	       grid[0] <= INT32_MAX && grid[1] <= UINT16_MAX && grid[2] <= UINT16_MAX &&
	       block[2] <= 64 && (uint64_t)block[0] * block[1] <= THREADS_MAX &&
	       (uint64_t)block[0] * block[1] * block[2] <= THREADS_MAX &&
	       launch->shared_bytes <= (unsigned)function->shared_max_bytes;
}

/* Copies the parameters, since the caller may reuse their memory before the kernel
 * runs. */
static void keep_params(struct fake_op *op, void **params)
{
	const struct fake_kernel *kernel = op->kernel;
	size_t bytes = 0;
	char *at;

	for (unsigned i = 0; i < kernel->param_count; i++)
		bytes += tern_align_up(kernel->param_bytes[i], 16);
	op->owned = at = aligned_alloc(16, bytes + 16);
	tern_assert(at);
	for (unsigned i = 0; i < kernel->param_count; i++) {
		op->params[i] = memcpy(at, params[i], kernel->param_bytes[i]);
		at += tern_align_up(kernel->param_bytes[i], 16);
	}
	op->launch.params = op->params;
}

static CUresult launch_kernel(CUfunction handle, unsigned grid_x, unsigned grid_y,
	unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
	unsigned shared_bytes, CUstream stream_handle, void **params, void **extra)
{
	FAKE_ENTER_CTX("launch_kernel");
	const struct fake_function *function = function_of(handle);
	struct fake_stream *stream = fake_stream_of(stream_handle);
	const struct fake_cuda_launch launch = {
		.grid = {grid_x, grid_y, grid_z},
		.block = {block_x, block_y, block_z},
		.shared_bytes = shared_bytes,
	};
	struct fake_op *op;
	(void)device;
	if (function->module->device != stream->device)
		return CUDA_ERROR_INVALID_HANDLE;
	if (extra || !is_possible(function, &launch) ||
		(function->kernel->param_count && !params))
		return CUDA_ERROR_INVALID_VALUE;
	op = fake_op_new(FAKE_OP_KERNEL);
	op->kernel = function->kernel;
	op->launch = launch;
	keep_params(op, params);
	fake_stream_put(stream, op);
	return CUDA_SUCCESS;
}

void fake_kernel_entries(struct tern_cuda_api *api)
{
	api->module_load_data_ex = module_load_data_ex;
	api->module_unload = module_unload;
	api->module_get_function = module_get_function;
	api->launch_kernel = launch_kernel;
}
