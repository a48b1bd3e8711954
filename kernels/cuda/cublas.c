/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/cublas.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/util.h"

/* Where cuBLAS is searched, the newest version first: by name, in the system's library
 * folders, and in the usual folder of the CUDA toolkit. */
static const struct {
	int major;
	const char *name;
} libraries[] = {
	{13, "libcublas.so.13"},
	{13, "/usr/local/cuda/lib64/libcublas.so.13"},
	{12, "libcublas.so.12"},
	{12, "/usr/local/cuda/lib64/libcublas.so.12"},
};

static const struct {
	const char *name;
	size_t at;
} symbols[] = {
#define SYMBOL(field, name)                                                              \
	{                                                                                \
		name, offsetof(struct tern_cublas_api, field)                            \
	}
	SYMBOL(create, "cublasCreate_v2"),
	SYMBOL(destroy, "cublasDestroy_v2"),
	SYMBOL(get_version, "cublasGetVersion_v2"),
	SYMBOL(set_stream, "cublasSetStream_v2"),
	SYMBOL(set_workspace, "cublasSetWorkspace_v2"),
	SYMBOL(set_math_mode, "cublasSetMathMode"),
	SYMBOL(set_atomics_mode, "cublasSetAtomicsMode"),
	SYMBOL(sgemm, "cublasSgemm_v2"),
	SYMBOL(status_string, "cublasGetStatusString"),
};

static struct tern_cublas_api table;
static bool loaded;
static char reason[256];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool tried;

static bool resolve(void *library)
{
	for (size_t i = 0; i < TERN_ARRAY_SIZE(symbols); i++) {
		void **to = (void **)(void *)((char *)&table + symbols[i].at);

		*to = dlsym(library, symbols[i].name);
		if (*to)
			continue;
		snprintf(reason, sizeof(reason), "cuBLAS has no %s", symbols[i].name);
		return false;
	}
	return true;
}

static void load(int driver)
{
	for (size_t i = 0; i < TERN_ARRAY_SIZE(libraries) && !loaded; i++) {
		void *library = driver / 1000 >= libraries[i].major
					? dlopen(libraries[i].name, RTLD_NOW | RTLD_LOCAL)
					: NULL;

		if (!library)
			continue;
		loaded = resolve(library);
		if (!loaded)
			dlclose(library);
	}
	if (!loaded && !reason[0])
		snprintf(reason, sizeof(reason),
			"there is no libcublas.so.13 or .12 that suits the driver (CUDA "
			"%d.%d)",
			driver / 1000, driver % 1000 / 10);
}

int tern_cublas_load(const struct tern_cuda_api *api, const struct tern_cublas_api **out,
	const char **why)
{
	int driver = 0;

	pthread_mutex_lock(&lock);
	if (!tried && api->driver_get_version(&driver) == CUDA_SUCCESS) {
		load(driver);
		tried = true;
	}
	pthread_mutex_unlock(&lock);
	*why = loaded      ? NULL
	       : reason[0] ? reason
			   : "the driver does not report its version";
	*out = loaded ? &table : NULL;
	return loaded ? 0 : -ENOSYS;
}
