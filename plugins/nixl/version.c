/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which NIXL has loaded the plug-in. NIXL's libraries do not say their version. In a
 * wheel, libnixl.so lies in SITE/.nixl_cu12.mesonpy.libs/, and the name of the folder
 * SITE/nixl_cu12-1.5.1.dist-info has the version. For a NIXL that was built from its
 * sources, the variable TERN_NIXL_VERSION says it.
 */
#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/nixl/engine.h"

#define WHEEL_END ".mesonpy.libs"

/* Versions for which abi.hh was tried by tests/plugins/nixl_wheel.py. */
static const char *const known[] = {"1.0.0", "1.1.0", "1.2.0", "1.3.0", "1.3.1", "1.3.2",
	"1.4.0", "1.4.1", "1.5.0", "1.5.1"};

/* Finds the version of the wheel that a library is of. */
static bool read_wheel(const char *library, char *out, size_t size)
{
	char folder[1000], pattern[1200];
	const char *found, *end;
	char *slash, *name;
	glob_t matches;
	bool ok = false;

	if (strlen(library) >= sizeof(folder))
		return false;
	strcpy(folder, library);
	slash = strrchr(folder, '/');
	if (!slash)
		return false;
	*slash = '\0';
	slash = strrchr(folder, '/');
	if (!slash || slash[1] != '.')
		return false;
	*slash = '\0';
	name = slash + 2;
	slash = strstr(name, WHEEL_END);
	if (!slash)
		return false;
	*slash = '\0';
	snprintf(pattern, sizeof(pattern), "%s/%s-*.dist-info", folder, name);
	if (glob(pattern, 0, NULL, &matches) != 0)
		return false;
	if (matches.gl_pathc == 1) {
		found = strrchr(matches.gl_pathv[0], '/') + 1 + strlen(name) + 1;
		end = strstr(found, ".dist-info");
		snprintf(out, size, "%.*s", (int)(end - found), found);
		ok = true;
	}
	globfree(&matches);
	return ok;
}

static void list_known(char *out, size_t size)
{
	size_t used = 0;

	for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		used += (size_t)snprintf(
			out + used, size - used, "%s%s", i ? ", " : "", known[i]);
}

bool version_is_known(const void *caller)
{
	const char *given = getenv("TERN_NIXL_VERSION");
	char version[40] = "", all[300];
	Dl_info library;

	list_known(all, sizeof(all));
	if (given && *given) {
		snprintf(version, sizeof(version), "%s", given);
	} else if (dladdr(caller, &library) == 0 || !library.dli_fname ||
		   !read_wheel(library.dli_fname, version, sizeof(version))) {
		nixl_warn("the version of this NIXL is unknown, since it is not of a "
			  "wheel: set TERN_NIXL_VERSION to it (tried: %s)",
			all);
		return false;
	}
	for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (strcmp(version, known[i]) == 0)
			return true;
	nixl_warn("this plug-in was not tried with NIXL %s, only with %s: install one of "
		  "them, or a newer Tern",
		version, all);
	return false;
}
