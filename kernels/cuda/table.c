/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creates and frees a struct tern_cuda_kernels: the module with the kernels, the
 * workspace, the cuBLAS handle, the fingerprint; and launches kernels. Everything that
 * can fail for lack of resources is allocated here, at the start.
 */
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "kernels/cuda/cuda_kernels.h"

extern const unsigned char tern_fatbin[];

/* Workspace for cuBLAS: as much as cuBLAS would allocate by itself on the largest
 * devices. Only with a fixed workspace does cuBLAS give the same results in all runs. */
#define BLAS_BYTES (32u << 20)
/* Numbers of ids for which embed_backward reads all ids for each row of the table
 * ("scans"): up to SCAN_ROWS_ANY with any table, up to SCAN_ROWS if ids times rows of the
 * table are at most SCAN_PAIRS. Otherwise it sorts the ids. On an H200 a scan takes some
 * 1.6 ns for each 1,000 pairs besides 2 us for each 1,000 ids, and sorting some 13 ns for
 * each row of the table besides 40 us. */
#define SCAN_ROWS_ANY 8192u
#define SCAN_ROWS     16384u
#define SCAN_PAIRS    (8u << 20)

static const struct {
	const char *name;
	unsigned threads;
} entries[] = {
#define ENTRY(name, type, threads) {"tern_cuda_" #name, threads},
	TERN_CUDA_KERNELS(ENTRY)
#undef ENTRY
};

static_assert(TERN_CUDA_SLOTS == TERN_SUM_MAX, "one sum is one launch");
static_assert(sizeof(struct tern_cuda_update) <= 4096, "arguments of a kernel");
static_assert(sizeof(struct tern_cuda_row) == sizeof(struct tern_cuda_result),
	"callers read a row of totals as a result");

/* ---- errors ---- */

int cuda_fail(struct tern_cuda_kernels *k, int error, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(k->error, sizeof(k->error), fmt, ap);
	va_end(ap);
	return error;
}

/* Converts the result of a driver call to 0 or a negative errno, and sets the error text.
 * `what` names what the call was to do. */
static int check(struct tern_cuda_kernels *k, CUresult result, const char *what)
{
	char text[160];

	if (result == CUDA_SUCCESS)
		return 0;
	return cuda_fail(k, tern_cuda_status(result), "%s: %s", what,
		tern_cuda_text(k->api, result, text, sizeof(text)));
}

static int check_blas(struct tern_cuda_kernels *k, int status, const char *what)
{
	if (status == 0)
		return 0;
	return cuda_fail(k, -EIO, "%s: %s", what, k->blas->status_string(status));
}

const char *tern_cuda_kernels_error(const struct tern_cuda_kernels *kernels)
{
	return kernels->error;
}

/* ---- launching kernels ---- */

int cuda_launch(struct tern_cuda_kernels *k, enum tern_cuda_kernel kernel,
	uint64_t blocks, const void *args)
{
	void *params[] = {(void *)(uintptr_t)args};

	if (blocks == 0)
		return 0;
	if (blocks > INT_MAX)
		return cuda_fail(k, -EOVERFLOW,
			"%s: %llu blocks are too many for a launch", entries[kernel].name,
			(unsigned long long)blocks);
	return check(k,
		k->api->launch_kernel(k->functions[kernel], (unsigned)blocks, 1, 1,
			entries[kernel].threads, 1, 1, 0, k->stream, params, NULL),
		entries[kernel].name);
}

/* ---- the workspace ---- */

bool cuda_embed_sorts(uint64_t rows, uint64_t table_rows)
{
	return rows > SCAN_ROWS ||
	       (rows > SCAN_ROWS_ANY && table_rows > SCAN_PAIRS / rows);
}

/* Takes `count` elements of `size` bytes from the workspace. Before the workspace is
 * allocated, it only counts the bytes and returns NULL. */
static void *carve(struct tern_cuda_kernels *k, uint64_t count, size_t size)
{
	uint64_t at = k->bytes;

	k->bytes = tern_align_up(at + count * size, 256);
	return k->memory ? (void *)(uintptr_t)(k->memory + at) : NULL;
}

static void lay_out(struct tern_cuda_kernels *k)
{
	const struct tern_cuda_sizes *s = &k->sizes;

	k->bytes = 0;
	k->partials = carve(k, TERN_PARTIALS_MAX, sizeof(double));
	k->results = carve(k, s->xent_rows, sizeof(*k->results));
	if (k->blas)
		k->blas_memory = carve(k, BLAS_BYTES, 1);
	if (!cuda_embed_sorts(s->embed_rows, s->embed_table_rows))
		return;
	for (int i = 0; i < 2; i++) {
		k->sorted_ids[i] = carve(k, s->embed_rows, sizeof(int32_t));
		k->positions[i] = carve(k, s->embed_rows, sizeof(uint32_t));
	}
	k->counts = carve(k, TERN_SORT_DIGITS * div_up(s->embed_rows, TERN_SORT_TILE),
		sizeof(uint32_t));
}

static int make_workspace(struct tern_cuda_kernels *k)
{
	char what[64];

	if (k->sizes.embed_rows > UINT32_MAX || k->sizes.embed_table_rows > INT32_MAX ||
		k->sizes.xent_rows > UINT32_MAX)
		return cuda_fail(k, -E2BIG, "more rows than 32 bits can count");
	lay_out(k);
	snprintf(what, sizeof(what), "%llu bytes of workspace on the device",
		(unsigned long long)k->bytes);
	int r = check(k, k->api->mem_alloc(&k->memory, k->bytes), what);

	if (r < 0)
		k->memory = 0;
	else
		lay_out(k);
	return r;
}

/* ---- loading the kernels and cuBLAS ---- */

static int load_module(struct tern_cuda_kernels *k)
{
	int r = check(k,
		k->api->module_load_data_ex(&k->module, tern_fatbin, 0, NULL, NULL),
		"loading the kernels");

	if (r < 0)
		k->module = NULL;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(entries) && r == 0; i++)
		r = check(k,
			k->api->module_get_function(
				&k->functions[i], k->module, entries[i].name),
			entries[i].name);
	return r;
}

/* Creates and sets up the cuBLAS handle. The stream is set before the workspace, since
 * cublasSetStream() resets the workspace. */
static int open_blas(struct tern_cuda_kernels *k)
{
	const struct tern_cublas_api *b = k->blas;
	int r = check_blas(k, b->create(&k->blas_handle), "cublasCreate");

	if (r < 0) {
		k->blas_handle = NULL;
		return r;
	}
	r = check_blas(k, b->set_stream(k->blas_handle, k->stream), "cublasSetStream");
	if (r == 0)
		r = check_blas(k,
			b->set_workspace(k->blas_handle, k->blas_memory, BLAS_BYTES),
			"cublasSetWorkspace");
	if (r == 0)
		r = check_blas(k,
			b->set_math_mode(
				k->blas_handle, k->sizes.tf32 ? TERN_CUBLAS_TF32_MATH
							      : TERN_CUBLAS_DEFAULT_MATH),
			"cublasSetMathMode");
	if (r == 0)
		r = check_blas(k,
			b->set_atomics_mode(
				k->blas_handle, TERN_CUBLAS_ATOMICS_NOT_ALLOWED),
			"cublasSetAtomicsMode");
	return r;
}

/* ---- the fingerprint ---- */

/* Appends to the fingerprint the environment variables below, by which a user can make
 * cuBLAS compute differently. */
static void name_overrides(char *out, size_t bytes)
{
	static const struct {
		const char *variable, *name;
	} overrides[] = {{"NVIDIA_TF32_OVERRIDE", "tf32_override"},
		{"CUBLAS_EMULATE_SINGLE_PRECISION", "emulate"}};

	for (size_t i = 0; i < TERN_ARRAY_SIZE(overrides); i++) {
		const char *value = getenv(overrides[i].variable);
		size_t used = strlen(out);

		if (value)
			snprintf(out + used, bytes - used, " %s=%.4s", overrides[i].name,
				value);
	}
}

static int name_products(struct tern_cuda_kernels *k, char *out, size_t bytes)
{
	int version, r;

	if (!k->blas) {
		snprintf(out, bytes, "tiled");
		return 0;
	}
	r = check_blas(
		k, k->blas->get_version(k->blas_handle, &version), "cublasGetVersion");
	if (r < 0)
		return r;
	snprintf(out, bytes, "cublas %d.%d.%d%s", version / 10000, version / 100 % 100,
		version % 100, k->sizes.tf32 ? " tf32" : "");
	name_overrides(out, bytes);
	return 0;
}

static int take_fingerprint(struct tern_cuda_kernels *k, CUdevice device)
{
	char name[96] = "", products[80];
	int major, minor, units, driver, r;

	r = check(k, k->api->device_get_name(name, sizeof(name), device),
		"the device's name");
	if (r == 0)
		r = check(k,
			k->api->device_get_attribute(&major,
				CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device),
			"compute capability");
	if (r == 0)
		r = check(k,
			k->api->device_get_attribute(&minor,
				CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device),
			"compute capability");
	if (r == 0)
		r = check(k,
			k->api->device_get_attribute(
				&units, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
			"multiprocessor count");
	if (r == 0)
		r = check(k, k->api->driver_get_version(&driver), "driver version");
	if (r == 0)
		r = name_products(k, products, sizeof(products));
	if (r == 0)
		snprintf(k->fingerprint, sizeof(k->fingerprint),
			"cuda %s (%d x sm_%d%d) driver %d.%d %s", name, units, major,
			minor, driver / 1000, driver % 1000 / 10, products);
	return r;
}

const char *tern_cuda_kernels_fingerprint(const struct tern_cuda_kernels *kernels)
{
	return kernels->fingerprint;
}

uint64_t tern_cuda_kernels_bytes(const struct tern_cuda_kernels *kernels)
{
	return kernels->bytes;
}

/* ---- creating and freeing a struct tern_cuda_kernels ---- */

int tern_cuda_kernels_new(const struct tern_cuda_api *api,
	const struct tern_cublas_api *blas, CUdevice device, CUstream stream,
	const struct tern_cuda_sizes *sizes, struct tern_cuda_kernels **out, char *why,
	size_t bytes)
{
	struct tern_cuda_kernels *k = calloc(1, sizeof(*k));
	int r;

	if (!k) {
		snprintf(why, bytes, "out of memory");
		return -ENOMEM;
	}
	k->api = api;
	k->blas = blas;
	k->stream = stream;
	k->sizes = *sizes;
	r = load_module(k);
	if (r == 0)
		r = make_workspace(k);
	if (r == 0 && blas)
		r = open_blas(k);
	if (r == 0)
		r = take_fingerprint(k, device);
	if (r == 0) {
		*out = k;
		return 0;
	}
	snprintf(why, bytes, "%s", k->error);
	tern_cuda_kernels_free(k);
	return r;
}

void tern_cuda_kernels_free(struct tern_cuda_kernels *k)
{
	if (!k)
		return;
	k->api->stream_synchronize(k->stream);
	if (k->blas_handle)
		k->blas->destroy(k->blas_handle);
	if (k->memory)
		k->api->mem_free(k->memory);
	if (k->module)
		k->api->module_unload(k->module);
	free(k);
}
