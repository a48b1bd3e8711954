/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated driver as libcuda.so.1, for tests of the loader and of whole programs,
 * which find it through LD_LIBRARY_PATH. FAKE_CUDA in the environment describes the
 * machine, as NAME=VALUE,...:
 *
 *     devices=N version=V major=M minor=M mem=BYTES numa=N   as in struct fake_cuda_opts
 *     init=RESULT     result of the first call of cuInit
 *     old=1           old_driver of struct fake_cuda_opts
 *     missing=NAME    without the function NAME
 *     stub=1          cuDriverGetVersion() returns CUDA_ERROR_STUB_LIBRARY, as every call
 *                     of the toolkit's stub
 *     host=BYTES      host_limit_bytes of struct fake_cuda_opts
 *     late=1 alike=1  late_records and alike of struct fake_cuda_opts
 *     fail=FUNCTION:N:RESULT   the Nth call of the driver's FUNCTION returns RESULT
 *     fail2=FUNCTION:N:RESULT  a second fault of this kind
 *     break=KERNEL:N:RESULT    the Nth execution of the kernel corrupts its context
 *
 * The library also contains Tern's kernels, as loops on the CPU, and the functions of
 * cuBLAS: the simulated libcublas is empty, and links with this library.
 */
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/gpu/blocks.h"
#include "tests/gpu/fake_blas.h"

#define EXPORTED __attribute__((visibility("default")))

EXPORTED CUresult cuDriverGetVersion(int *out);
EXPORTED CUresult cuGetProcAddress_v2(const char *name, void **out, int version,
	cuuint64_t flags, CUdriverProcAddressQueryResult *found);

/* Copies the value of the entry `name` of FAKE_CUDA into `value`; "" if there is none. */
static const char *said(const char *name, char *value, size_t bytes)
{
	const char *all = getenv("FAKE_CUDA"), *at = all;
	size_t length = strlen(name);

	*value = '\0';
	while (at && *at) {
		size_t item = strcspn(at, ",");

		if (strncmp(at, name, length) == 0 && at[length] == '=' && item < bytes) {
			memcpy(value, at + length + 1, item - length - 1);
			value[item - length - 1] = '\0';
		}
		at += item + (at[item] == ',');
	}
	return value;
}

static long long number(const char *name, long long otherwise)
{
	char value[64];

	return *said(name, value, sizeof(value)) ? atoll(value) : otherwise;
}

/* Parses NAME:N:RESULT from FAKE_CUDA, and injects that fault with set(). */
static void set_fault(
	const char *name, void (*set)(const char *what, unsigned nth, CUresult result))
{
	char value[128], *nth, *result;

	if (!*said(name, value, sizeof(value)))
		return;
	nth = strchr(value, ':');
	result = nth ? strchr(nth + 1, ':') : NULL;
	tern_assert(result);
	*nth = '\0';
	set(value, (unsigned)atoi(nth + 1), (CUresult)atoi(result + 1));
}

static void set_up(void)
{
	static bool done;
	struct fake_cuda_opts opts = fake_cuda_defaults();

	if (done)
		return;
	done = true;
	opts.device_count = (unsigned)number("devices", opts.device_count);
	opts.driver_version = (int)number("version", opts.driver_version);
	opts.major = (int)number("major", opts.major);
	opts.minor = (int)number("minor", opts.minor);
	opts.numa_node = (int)number("numa", opts.numa_node);
	opts.mem_bytes = (uint64_t)number("mem", (long long)opts.mem_bytes);
	opts.old_driver = number("old", 0);
	opts.host_limit_bytes = (uint64_t)number("host", 0);
	opts.alike = number("alike", 0);
	opts.late_records = number("late", 0);
	/* The background thread is needed, since a whole program never calls
	 * fake_cuda_step(). */
	opts.background = true;
	fake_cuda_reset(&opts);
	if (number("init", 0))
		fake_cuda_fail("init", 1, (CUresult)number("init", 0));
	gpu_register_blocks();
	gpu_register_width_1();
	gpu_register_width_2();
	gpu_register_width_8();
	fake_blas_register();
	set_fault("fail", fake_cuda_fail);
	set_fault("fail2", fake_cuda_fail);
	set_fault("break", fake_cuda_break);
}

CUresult cuDriverGetVersion(int *out)
{
	set_up();
	if (number("stub", 0))
		return CUDA_ERROR_STUB_LIBRARY;
	return fake_cuda_api()->driver_get_version(out);
}

static const struct {
	const char *name;
	int version;
	size_t offset;
} entries[] = {
#define TERN_CUDA_CALL(field, name, version)                                             \
	{#name, version, offsetof(struct tern_cuda_api, field)},
#define TERN_CUDA_CALL_OPTIONAL(field, name, version)                                    \
	{#name, version, offsetof(struct tern_cuda_api, field)},
#include "base/cuda_calls.h"
};

/* Finds a function of the driver. It is not found if it first appeared in a newer version
 * of the driver than `version`. */
static void *find(const char *name, int version)
{
	void *function = NULL;

	for (size_t i = 0; i < TERN_ARRAY_SIZE(entries); i++) {
		if (strcmp(entries[i].name, name) == 0 && version >= entries[i].version)
			memcpy(&function,
				(const char *)fake_cuda_api() + entries[i].offset,
				sizeof(function));
	}
	return function;
}

CUresult cuGetProcAddress_v2(const char *name, void **out, int version, cuuint64_t flags,
	CUdriverProcAddressQueryResult *found)
{
	char missing[64];

	set_up();
	*out = NULL;
	if (flags != CU_GET_PROC_ADDRESS_LEGACY_STREAM ||
		version > number("version", fake_cuda_defaults().driver_version))
		return CUDA_ERROR_INVALID_VALUE;
	if (strcmp(said("missing", missing, sizeof(missing)), name) != 0)
		*out = find(name, version);
	if (found)
		*found = *out ? CU_GET_PROC_ADDRESS_SUCCESS
			      : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* ---- cuBLAS ---- */

EXPORTED int cublasCreate_v2(void **handle);
EXPORTED int cublasDestroy_v2(void *handle);
EXPORTED int cublasGetVersion_v2(void *handle, int *version);
EXPORTED int cublasSetStream_v2(void *handle, void *stream);
EXPORTED int cublasSetWorkspace_v2(void *handle, void *workspace, size_t bytes);
EXPORTED int cublasSetMathMode(void *handle, int mode);
EXPORTED int cublasSetAtomicsMode(void *handle, int mode);
EXPORTED int cublasSgemm_v2(void *handle, int op_a, int op_b, int m, int n, int k,
	const float *alpha, const float *a, int lda, const float *b, int ldb,
	const float *beta, float *c, int ldc);
EXPORTED const char *cublasGetStatusString(int status);

int cublasCreate_v2(void **handle)
{
	return fake_blas.create(handle);
}

int cublasDestroy_v2(void *handle)
{
	return fake_blas.destroy(handle);
}

int cublasGetVersion_v2(void *handle, int *version)
{
	return fake_blas.get_version(handle, version);
}

int cublasSetStream_v2(void *handle, void *stream)
{
	return fake_blas.set_stream(handle, stream);
}

int cublasSetWorkspace_v2(void *handle, void *workspace, size_t bytes)
{
	return fake_blas.set_workspace(handle, workspace, bytes);
}

int cublasSetMathMode(void *handle, int mode)
{
	return fake_blas.set_math_mode(handle, mode);
}

int cublasSetAtomicsMode(void *handle, int mode)
{
	return fake_blas.set_atomics_mode(handle, mode);
}

int cublasSgemm_v2(void *handle, int op_a, int op_b, int m, int n, int k,
	const float *alpha, const float *a, int lda, const float *b, int ldb,
	const float *beta, float *c, int ldc)
{
	return fake_blas.sgemm(
		handle, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

const char *cublasGetStatusString(int status)
{
	return fake_blas.status_string(status);
}
