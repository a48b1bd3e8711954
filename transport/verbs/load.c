/* SPDX-License-Identifier: Apache-2.0 */
/* Loads the module tern-verbs.so, which provides the functions of rdma-core: see
 * api.h. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>

#include "transport/verbs/api.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct tern_verbs_api *loaded;
static char reason[256];

static void load(void)
{
	/* Loaded by its name, without a path: the run paths of the program and of the
	 * library contain its folder. */
	void *module = dlopen(TERN_VERBS_MODULE, RTLD_NOW | RTLD_LOCAL);
	const struct tern_verbs_api *api;

	if (!module) {
		const char *error = dlerror();

		snprintf(reason, sizeof(reason), "%s", error ? error : "dlopen failed");
		return;
	}
	api = dlsym(module, TERN_VERBS_SYMBOL);
	if (!api || api->version != TERN_VERBS_API_VERSION) {
		snprintf(reason, sizeof(reason), "%s is of another version of Tern",
			TERN_VERBS_MODULE);
		dlclose(module);
		return;
	}
	loaded = api;
}

int tern_verbs_load(const struct tern_verbs_api **out, const char **why)
{
	pthread_once(&once, load);
	*out = loaded;
	if (loaded)
		return 0;
	*why = reason;
	return -ENOSYS;
}
