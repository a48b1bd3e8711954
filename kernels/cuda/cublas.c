/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/cublas.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/util.h"

/* By name where the system knows it, and where the toolkit is usually installed. */
static const char *const libraries[] = {
	"libcublas.so.13",
	"libcublas.so.12",
	"/usr/local/cuda/lib64/libcublas.so.13",
	"/usr/local/cuda/lib64/libcublas.so.12",
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
static pthread_once_t once = PTHREAD_ONCE_INIT;

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

static void load(void)
{
	for (size_t i = 0; i < TERN_ARRAY_SIZE(libraries) && !loaded; i++) {
		void *library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);

		if (!library)
			continue;
		loaded = resolve(library);
		if (!loaded)
			dlclose(library);
	}
	if (!loaded && !reason[0])
		snprintf(reason, sizeof(reason),
			"cuBLAS (libcublas.so.13 or .12) is not installed");
}

int tern_cublas_load(const struct tern_cublas_api **out, const char **why)
{
	pthread_once(&once, load);
	*why = loaded ? NULL : reason;
	*out = loaded ? &table : NULL;
	return loaded ? 0 : -ENOSYS;
}
