/* SPDX-License-Identifier: Apache-2.0 */
/* Socket addresses. HOST:PORT is parsed here, because the system's functions expect host
 * and port apart and accept malformed text. Names are resolved by getaddrinfo(), which
 * blocks for names that only the DNS knows. */
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/addr.h"

/* True if all characters may occur in host names or numeric addresses, including
 * %scope. */
static bool host_valid(const char *host)
{
	for (; *host; host++) {
		if (!isalnum((unsigned char)*host) && !strchr("._-:%", *host))
			return false;
	}
	return true;
}

static bool port_valid(const char *port, bool listening)
{
	unsigned long value = 0;

	if (!*port || strlen(port) > 5)
		return false;
	for (; *port; port++) {
		if (*port < '0' || *port > '9')
			return false;
		value = value * 10 + (unsigned long)(*port - '0');
	}
	return value <= 65535 && (listening || value > 0);
}

int tern_addr_split(const char *address, char *host, size_t size, const char **port)
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

/* As tern_addr_split(), for a `host` buffer of 256 bytes; also refuses a host with
 * invalid characters. */
static int address_split(const char *address, char *host, const char **port)
{
	if (tern_addr_split(address, host, 256, port) < 0 || !host_valid(host))
		return -EINVAL;
	if (*address == '[')
		return *host ? 0 : -EINVAL;
	/* Without brackets around an IPv6 address, its last group cannot be distinguished
	 * from the port. */
	return strchr(host, ':') ? -EINVAL : 0;
}

bool tern_addr_is_target(const char *address)
{
	char host[256];
	const char *port;

	return address_split(address, host, &port) == 0 && port_valid(port, false);
}

/* Sets the addresses to try for listening on all interfaces of this machine: first [::],
 * whose socket accepts IPv6 and IPv4; then 0.0.0.0, for a machine without IPv6. */
static void targets_any(struct tern_addrs *out, uint16_t port)
{
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)&out->addr[0].sa;
	struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)&out->addr[1].sa;

	*v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
	*v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
	out->addr[0].len = sizeof(*v6);
	out->addr[1].len = sizeof(*v4);
	out->count = 2;
}

/* Translates an error of getaddrinfo() to a negative errno. */
static int status_of(int r)
{
	if (r == EAI_MEMORY)
		return -ENOMEM;
	return r == EAI_AGAIN || r == EAI_SYSTEM ? -ENONET : -ENODATA;
}

int tern_addr_resolve(const char *address, bool listening, struct tern_addrs *out)
{
	struct addrinfo hints = {
		.ai_flags = AI_NUMERICSERV,
		.ai_family = AF_UNSPEC,
		.ai_socktype = SOCK_STREAM,
	};
	struct addrinfo *found;
	char host[256];
	const char *port;
	int r;

	*out = (struct tern_addrs){0};
	if (address_split(address, host, &port) || !port_valid(port, listening))
		return -EINVAL;
	if (listening && !*host) {
		targets_any(out, (uint16_t)strtoul(port, NULL, 10));
		return 0;
	}
	r = getaddrinfo(*host ? host : NULL, port, &hints, &found);
	if (r)
		return status_of(r);
	for (struct addrinfo *ai = found; ai && out->count < TERN_ADDRS_MAX;
		ai = ai->ai_next) {
		struct tern_addr *addr = &out->addr[out->count];

		if (ai->ai_family != AF_INET && ai->ai_family != AF_INET6)
			continue;
		memcpy(&addr->sa, ai->ai_addr, ai->ai_addrlen);
		addr->len = ai->ai_addrlen;
		out->count++;
	}
	freeaddrinfo(found);
	return out->count ? 0 : -ENODATA;
}

void tern_addr_print(const struct tern_addr *addr, char *out, size_t bytes)
{
	char host[64], port[8];

	if (getnameinfo((const struct sockaddr *)&addr->sa, addr->len, host, sizeof(host),
		    port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV))
		snprintf(out, bytes, "?");
	else if (addr->sa.ss_family == AF_INET6)
		snprintf(out, bytes, "[%s]:%s", host, port);
	else
		snprintf(out, bytes, "%s:%s", host, port);
}

bool tern_addr_is_numeric(const char *host)
{
	unsigned char address[sizeof(struct in6_addr)];

	return !*host || strcmp(host, "localhost") == 0 ||
	       inet_pton(AF_INET, host, address) == 1 ||
	       inet_pton(AF_INET6, host, address) == 1;
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

bool tern_addr_is_local(const char *host)
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

/* ---- addresses of interfaces ---- */

struct reached {
	in_port_t port; /* in the network's byte order */
	void (*each)(const char *host_port, void *arg);
	void *arg;
	unsigned count;
};

static void tell(struct reached *r, const struct sockaddr *sa)
{
	struct tern_addr addr = {.len = sizeof(struct sockaddr_in)};
	char host_port[INET6_ADDRSTRLEN + 10];

	if (sa->sa_family == AF_INET6)
		addr.len = sizeof(struct sockaddr_in6);
	memcpy(&addr.sa, sa, addr.len);
	if (sa->sa_family == AF_INET6)
		((struct sockaddr_in6 *)(void *)&addr.sa)->sin6_port = r->port;
	else
		((struct sockaddr_in *)(void *)&addr.sa)->sin_port = r->port;
	tern_addr_print(&addr, host_port, sizeof(host_port));
	r->each(host_port, r->arg);
	r->count++;
}

static bool is_link_local(const struct sockaddr *sa)
{
	return sa->sa_family == AF_INET6 &&
	       IN6_IS_ADDR_LINKLOCAL(
		       &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr);
}

static void tell_family(
	struct reached *r, const struct ifaddrs *all, int family, unsigned loopback)
{
	for (const struct ifaddrs *i = all; i; i = i->ifa_next)
		if (i->ifa_addr && i->ifa_addr->sa_family == family &&
			(i->ifa_flags & (IFF_UP | IFF_LOOPBACK)) == (IFF_UP | loopback) &&
			!is_link_local(i->ifa_addr))
			tell(r, i->ifa_addr);
}

int tern_addr_reached(
	const char *address, void (*each)(const char *host_port, void *arg), void *arg)
{
	struct reached r = {.each = each, .arg = arg};
	struct ifaddrs *all;
	const char *port;
	char host[100];
	bool has_port = tern_addr_split(address, host, sizeof(host), &port) == 0;
	bool is_v6 = has_port && strcmp(host, "::") == 0;

	if (!has_port || (!is_v6 && strcmp(host, "0.0.0.0") != 0)) {
		each(address, arg);
		return 0;
	}
	r.port = htons((uint16_t)strtoul(port, NULL, 10));
	if (getifaddrs(&all) < 0)
		return -errno;
	for (unsigned loopback = 0; loopback <= IFF_LOOPBACK && !r.count;
		loopback += IFF_LOOPBACK) {
		tell_family(&r, all, AF_INET, loopback);
		if (is_v6)
			tell_family(&r, all, AF_INET6, loopback);
	}
	freeifaddrs(all);
	return r.count ? 0 : -EADDRNOTAVAIL;
}

bool tern_addr_is_loopback(const char *address)
{
	unsigned char numeric[sizeof(struct in6_addr)];
	const char *port;
	char host[100];

	if (tern_addr_split(address, host, sizeof(host), &port) < 0)
		return false;
	if (strcmp(host, "localhost") == 0)
		return true;
	if (inet_pton(AF_INET, host, numeric) == 1)
		return numeric[0] == 127;
	return inet_pton(AF_INET6, host, numeric) == 1 &&
	       memcmp(numeric, &in6addr_loopback, sizeof(in6addr_loopback)) == 0;
}
