/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads the CUDA driver: see base/cuda.h. Only two functions of the driver
 * (cuDriverGetVersion and cuGetProcAddress_v2) are looked up by their exported names;
 * cuGetProcAddress_v2 returns the others, each in the version that its type in the table
 * has. (An exported name stands for some version of the function, with "_v2" or without,
 * and no header lists these for all functions.)
 */
#include "base/cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"

#define DRIVER "libcuda.so.1"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct tern_cuda_api table;
static int status;
static char reason[256];

static const struct entry {
	const char *name;
	int version;
	bool optional;
	size_t offset;
} entries[] = {
#define TERN_CUDA_CALL(field, name, version)                                             \
	{#name, version, false, offsetof(struct tern_cuda_api, field)},
#define TERN_CUDA_CALL_OPTIONAL(field, name, version)                                    \
	{#name, version, true, offsetof(struct tern_cuda_api, field)},
#include "base/cuda_calls.h"
};

static int refuse(int error, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static int refuse(int error, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(reason, sizeof(reason), fmt, ap);
	va_end(ap);
	return error;
}

static int open_driver(void **out)
{
	const char *error;

	*out = dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL);
	if (*out)
		return 0;
	error = dlerror();
	/* Other errors of dlopen() are shown in full: the text may name a library of
	 * another architecture, or one that the driver needs and that is missing. */
	if (!error || strstr(error, DRIVER ": cannot open shared object file: No such"))
		return refuse(-ENOSYS, DRIVER " was not found: no NVIDIA driver");
	return refuse(-ENOSYS, "%s", error);
}

static int check_version(void *driver)
{
	PFN_cuDriverGetVersion_v2020 get_version =
		(PFN_cuDriverGetVersion_v2020)dlsym(driver, "cuDriverGetVersion");
	CUresult result;
	int version = 0;

	if (!get_version)
		return refuse(-ENOSYS, DRIVER " is not a CUDA driver");
	result = get_version(&version);
	if (result == CUDA_ERROR_STUB_LIBRARY)
		return refuse(-ENOSYS, DRIVER " is the toolkit's stub, for linking only: "
					      "take it off the library path");
	if (result)
		return refuse(-ENOSYS,
			DRIVER " does not report its version: CUDA error %d", result);
	if (version < TERN_CUDA_DRIVER_MIN)
		return refuse(-ENOSYS, "the driver is for CUDA %d.%d; %d.%d is needed",
			version / 1000, version % 1000 / 10, TERN_CUDA_DRIVER_MIN / 1000,
			TERN_CUDA_DRIVER_MIN % 1000 / 10);
	return 0;
}

static int fill_table(void *driver)
{
	PFN_cuGetProcAddress_v12000 get_address =
		(PFN_cuGetProcAddress_v12000)dlsym(driver, "cuGetProcAddress_v2");

	if (!get_address)
		return refuse(-ENOSYS, DRIVER " has no cuGetProcAddress_v2");
	for (size_t i = 0; i < TERN_ARRAY_SIZE(entries); i++) {
		const struct entry *e = &entries[i];
		void *function = NULL;
		CUresult result = get_address(e->name, &function, e->version,
			CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL);

		if (!result && function)
			memcpy((char *)&table + e->offset, &function, sizeof(function));
		else if (!e->optional)
			return refuse(-ENOSYS, DRIVER " has no %s of version %d.%d",
				e->name, e->version / 1000, e->version % 1000 / 10);
	}
	return 0;
}

static int init_driver(void)
{
	char text[160];
	CUresult result = table.init(0);

	if (result == CUDA_ERROR_NO_DEVICE)
		return refuse(-ENODEV, "the driver has no CUDA device for this process");
	if (result)
		return refuse(tern_cuda_status(result), "cuInit: %s",
			tern_cuda_text(&table, result, text, sizeof(text)));
	return 0;
}

static void load(void)
{
	void *driver;

	status = open_driver(&driver);
	if (status)
		return;
	status = check_version(driver);
	status = status ? status : fill_table(driver);
	status = status ? status : init_driver();
}

int tern_cuda_load(const struct tern_cuda_api **out, const char **why)
{
	pthread_once(&once, load);
	*out = status ? NULL : &table;
	if (status)
		*why = reason;
	return status;
}

/* Sticky errors: the toolkit's cuda.h says of each that the process is left in an
 * inconsistent state, that the context cannot be used any more, or that it was
 * destroyed. */
bool tern_cuda_is_sticky(CUresult result)
{
	static const int sticky[] = {
		CUDA_ERROR_ECC_UNCORRECTABLE,
		CUDA_ERROR_NVLINK_UNCORRECTABLE,
		226, /* CUDA_ERROR_CONTAINED: not in cuda.h before 12.8 */
		CUDA_ERROR_ILLEGAL_ADDRESS,
		CUDA_ERROR_LAUNCH_TIMEOUT,
		CUDA_ERROR_CONTEXT_IS_DESTROYED,
		CUDA_ERROR_ASSERT,
		CUDA_ERROR_HARDWARE_STACK_ERROR,
		CUDA_ERROR_ILLEGAL_INSTRUCTION,
		CUDA_ERROR_MISALIGNED_ADDRESS,
		CUDA_ERROR_INVALID_ADDRESS_SPACE,
		CUDA_ERROR_INVALID_PC,
		CUDA_ERROR_LAUNCH_FAILED,
		721, /* CUDA_ERROR_TENSOR_MEMORY_LEAK: not in cuda.h before 12.8 */
		CUDA_ERROR_MPS_CLIENT_TERMINATED,
		CUDA_ERROR_EXTERNAL_DEVICE,
	};

	for (size_t i = 0; i < TERN_ARRAY_SIZE(sticky); i++) {
		if ((int)result == sticky[i])
			return true;
	}
	return false;
}

int tern_cuda_status(CUresult result)
{
	static const struct {
		CUresult result;
		int status;
	} known[] = {
		{CUDA_SUCCESS, 0},
		{CUDA_ERROR_NOT_READY, -EAGAIN},
		{CUDA_ERROR_OUT_OF_MEMORY, -ENOMEM},
		{CUDA_ERROR_INVALID_VALUE, -EINVAL},
		{CUDA_ERROR_INVALID_CONTEXT, -EINVAL},
		{CUDA_ERROR_INVALID_HANDLE, -EINVAL},
		{CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, -EINVAL},
		{CUDA_ERROR_NO_DEVICE, -ENODEV},
		{CUDA_ERROR_INVALID_DEVICE, -ENODEV},
		{CUDA_ERROR_DEVICE_UNAVAILABLE, -EBUSY},
		{CUDA_ERROR_NOT_SUPPORTED, -ENOTSUP},
		{CUDA_ERROR_NOT_PERMITTED, -EPERM},
		{CUDA_ERROR_NOT_FOUND, -ENOENT},
		{CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, -ENOENT},
		{CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, -EEXIST},
		{CUDA_ERROR_NO_BINARY_FOR_GPU, -ENOEXEC},
		{CUDA_ERROR_INVALID_IMAGE, -ENOEXEC},
		{CUDA_ERROR_INVALID_PTX, -ENOEXEC},
		{CUDA_ERROR_UNSUPPORTED_PTX_VERSION, -ENOEXEC},
		{CUDA_ERROR_JIT_COMPILER_NOT_FOUND, -ENOEXEC},
		{CUDA_ERROR_JIT_COMPILATION_DISABLED, -ENOEXEC},
	};

	if (tern_cuda_is_sticky(result))
		return -ENOTRECOVERABLE;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(known); i++) {
		if (known[i].result == result)
			return known[i].status;
	}
	return -EIO;
}

const char *tern_cuda_text(
	const struct tern_cuda_api *api, CUresult result, char *out, size_t bytes)
{
	const char *name = NULL, *text = NULL;

	if (api->get_error_name(result, &name) || !name ||
		api->get_error_string(result, &text) || !text)
		snprintf(out, bytes, "CUDA error %d", result);
	else
		snprintf(out, bytes, "%s (%s)", text, name);
	return out;
}
