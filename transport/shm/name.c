/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses (names) of shm listeners for "auto://HOST:PORT": "auto-HOST:PORT", and
 * "auto-*:PORT" for a listener at every address of this host. Both ends derive the name
 * from the address alone. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "transport/addr.h"
#include "transport/shm/shm.h"

static const char *canonical(const char *host)
{
	if (strcmp(host, "localhost") == 0)
		return "127.0.0.1";
	if (!*host || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0)
		return "*";
	return host;
}

int shm_auto_listen(const char *host_port, char *out, size_t size)
{
	char host[100];
	const char *port;
	int r = tern_addr_split(host_port, host, sizeof(host), &port);

	if (r < 0)
		return r;
	r = snprintf(out, size, "auto-%s:%s", canonical(host), port);
	return r < 0 || (size_t)r >= size ? -EINVAL : 0;
}

/* For a numeric address of this host: adds the name of a listener at that address, and of
 * one at every address. False: the address belongs to another host. */
static bool add_numeric(const char *host_port, tern_auto_add *add, void *arg)
{
	char host[100], name[128];
	const char *port;

	if (tern_addr_split(host_port, host, sizeof(host), &port) < 0 ||
		!tern_addr_is_local(host))
		return false;
	if (shm_auto_listen(host_port, name, sizeof(name)) == 0)
		add(arg, name);
	if (strcmp(canonical(host), "*") != 0) {
		snprintf(name, sizeof(name), "auto-*:%s", port);
		add(arg, name);
	}
	return true;
}

int shm_auto_dial(const char *host_port, tern_auto_add *add, void *arg)
{
	struct tern_addrs addrs = {0};
	char host[100], numeric[100];
	const char *port;
	bool found = false;
	int r = tern_addr_split(host_port, host, sizeof(host), &port);

	if (r < 0)
		return r;
	if (tern_addr_is_numeric(host)) {
		add_numeric(host_port, add, arg);
		return 0;
	}
	/* Host names are resolved, since schedulers such as Slurm provide only names. */
	r = tern_addr_resolve(host_port, false, &addrs);
	for (unsigned i = 0; i < addrs.count && !found; i++) {
		tern_addr_print(&addrs.addr[i], numeric, sizeof(numeric));
		found = add_numeric(numeric, add, arg);
	}
	return r;
}
