/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "transport/addr.h"

static bool scheme_is(const char *address, const char *scheme, const char **rest)
{
	size_t n = strlen(scheme);

	if (strncmp(address, scheme, n) != 0 || strncmp(address + n, "://", 3) != 0)
		return false;
	*rest = address + n + 3;
	return true;
}

static int add(struct tern_candidates *c, struct tern_fabric *fabric, const char *address)
{
	struct tern_candidate *at = &c->at[c->count];

	if (!fabric)
		return -ENODEV;
	if (c->count == TERN_CANDIDATES_MAX)
		return -E2BIG;
	if (!*address || strlen(address) >= sizeof(at->address))
		return -EINVAL;
	at->fabric = fabric;
	strcpy(at->address, address);
	c->count++;
	return 0;
}

/* "FABRIC://REST" of one fabric. */
static int add_named(
	struct tern_domain *domain, const char *address, struct tern_candidates *out)
{
	const char *colon = strstr(address, "://");

	if (!colon || colon == address)
		return -EINVAL;
	return add(out, tern_domain_fabric(domain, address, (size_t)(colon - address)),
		colon + 3);
}

/* "HOST:PORT" or "[HOST]:PORT" apart. */
static int split(const char *address, char *host, size_t size, const char **port)
{
	const char *colon = strrchr(address, ':');
	size_t n;

	if (!colon || !colon[1])
		return -EINVAL;
	n = (size_t)(colon - address);
	if (n >= 2 && address[0] == '[' && address[n - 1] == ']') {
		address++;
		n -= 2;
	}
	if (n >= size)
		return -EINVAL;
	memcpy(host, address, n);
	host[n] = 0;
	*port = colon + 1;
	return 0;
}

static bool same_host(const struct sockaddr *sa, int family, const void *address)
{
	if (!sa || sa->sa_family != family)
		return false;
	if (family == AF_INET)
		return memcmp(&((const struct sockaddr_in *)(const void *)sa)->sin_addr,
			       address, sizeof(struct in_addr)) == 0;
	return memcmp(&((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr,
		       address, sizeof(struct in6_addr)) == 0;
}

/* Is this numeric address one of our own? */
static bool is_local(const char *host)
{
	unsigned char address[sizeof(struct in6_addr)];
	struct ifaddrs *all;
	bool found = false;
	int family;

	if (!*host || strcmp(host, "localhost") == 0)
		return true;
	if (inet_pton(AF_INET, host, address) == 1)
		family = AF_INET;
	else if (inet_pton(AF_INET6, host, address) == 1)
		family = AF_INET6;
	else
		return false;
	if (family == AF_INET && address[0] == 127)
		return true;
	if (getifaddrs(&all) < 0)
		return false;
	for (struct ifaddrs *i = all; i && !found; i = i->ifa_next)
		found = same_host(i->ifa_addr, family, address);
	freeifaddrs(all);
	return found;
}

static const char *canonical(const char *host)
{
	if (strcmp(host, "localhost") == 0)
		return "127.0.0.1";
	if (!*host || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0)
		return "*";
	return host;
}

int tern_address_beside(const char *tcp_address, char *out, size_t size)
{
	char host[100];
	const char *port;
	int r = split(tcp_address, host, sizeof(host), &port);

	if (r < 0)
		return r;
	r = snprintf(out, size, "auto-%s:%s", canonical(host), port);
	return r < 0 || (size_t)r >= size ? -EINVAL : 0;
}

/* Of an address that is one of our own: where a listener at it is, and one at all. */
static void add_shm_at(
	struct tern_fabric *shm, const char *rest, struct tern_candidates *out)
{
	char host[100], name[128];
	const char *port;

	if (split(rest, host, sizeof(host), &port) < 0 || !is_local(host))
		return;
	if (tern_address_beside(rest, name, sizeof(name)) == 0)
		add(out, shm, name);
	if (strcmp(canonical(host), "*") != 0) {
		snprintf(name, sizeof(name), "auto-*:%s", port);
		add(out, shm, name);
	}
}

static bool is_numeric(const char *host)
{
	unsigned char address[sizeof(struct in6_addr)];

	return !*host || strcmp(host, "localhost") == 0 ||
	       inet_pton(AF_INET, host, address) == 1 ||
	       inet_pton(AF_INET6, host, address) == 1;
}

/* Schedulers such as Slurm give names only. */
static void add_shm(
	struct tern_domain *domain, const char *rest, struct tern_candidates *out)
{
	struct tern_fabric *shm = tern_domain_fabric(domain, "shm", 3);
	unsigned before = out->count;
	struct tern_addrs addrs = {0};
	char host[100], numeric[100];
	const char *port;

	if (!shm || split(rest, host, sizeof(host), &port) < 0)
		return;
	if (is_numeric(host)) {
		add_shm_at(shm, rest, out);
		return;
	}
	/* A name that is not known is told by the fabrics that need it. */
	if (tern_addr_resolve(rest, false, &addrs) < 0)
		return;
	for (unsigned i = 0; i < addrs.count && out->count == before; i++) {
		tern_addr_print(&addrs.addr[i], numeric, sizeof(numeric));
		add_shm_at(shm, numeric, out);
	}
}

bool tern_address_is_loopback(const char *tcp_address)
{
	unsigned char address[sizeof(struct in6_addr)];
	const char *port;
	char host[100];

	if (split(tcp_address, host, sizeof(host), &port) < 0)
		return false;
	if (strcmp(host, "localhost") == 0)
		return true;
	if (inet_pton(AF_INET, host, address) == 1)
		return address[0] == 127;
	return inet_pton(AF_INET6, host, address) == 1 &&
	       memcmp(address, &in6addr_loopback, sizeof(in6addr_loopback)) == 0;
}

static int add_address(
	struct tern_domain *domain, const char *address, struct tern_candidates *out)
{
	const char *rest;

	if (!scheme_is(address, "auto", &rest))
		return add_named(domain, address, out);
	add_shm(domain, rest, out);
	if (tern_domain_fabric(domain, "verbs", 5) && !tern_address_is_loopback(rest))
		add(out, tern_domain_fabric(domain, "verbs", 5), rest);
	return add(out, tern_domain_fabric(domain, "tcp", 3), rest);
}

/* The plus behind the first address of a list; NULL: it is the only one. A plus that no
 * "FABRIC://" follows is part of a name. */
static const char *end_of_first(const char *list)
{
	for (const char *c = strchr(list, '+'); c; c = strchr(c + 1, '+')) {
		size_t n = strspn(c + 1, "abcdefghijklmnopqrstuvwxyz-");

		if (n && strncmp(c + 1 + n, "://", 3) == 0)
			return c;
	}
	return NULL;
}

int tern_address_dial(
	struct tern_domain *domain, const char *list, struct tern_candidates *out)
{
	const char *plus = end_of_first(list);
	char one[160];
	int r;

	out->count = 0;
	for (; plus; list = plus + 1, plus = end_of_first(list)) {
		size_t bytes = (size_t)(plus - list);

		if (bytes >= sizeof(one))
			return -EINVAL;
		memcpy(one, list, bytes);
		one[bytes] = 0;
		r = add_address(domain, one, out);
		if (r < 0)
			return r;
	}
	return add_address(domain, list, out);
}

int tern_address_listen(struct tern_domain *domain, const char *address,
	struct tern_candidates *out, bool *is_auto)
{
	const char *rest;

	out->count = 0;
	*is_auto = scheme_is(address, "auto", &rest);
	if (*is_auto)
		return add(out, tern_domain_fabric(domain, "tcp", 3), rest);
	return add_named(domain, address, out);
}
