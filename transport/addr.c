/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses. HOST:PORT is taken apart by hand, because the system's
 * functions want the two halves and forgive too much; names are resolved by getaddrinfo,
 * which blocks for those that only the DNS knows.
 */
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/addr.h"

/* Characters of names and of numeric addresses, with %scope. */
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

/* Splits into host (256 bytes) and *port, which points into `address`. */
static int address_split(const char *address, char *host, const char **port)
{
	const char *end = strrchr(address, ':');
	const char *start = address;
	size_t bytes;

	if (!end)
		return -EINVAL;
	*port = end + 1;
	if (*start == '[') {
		start++;
		if (end == address || *--end != ']')
			return -EINVAL;
	} else if (memchr(start, ':', (size_t)(end - start))) {
		return -EINVAL; /* an IPv6 address without brackets: where does it end? */
	}
	bytes = (size_t)(end - start);
	if (bytes >= 256 || (*address == '[' && !bytes))
		return -EINVAL;
	memcpy(host, start, bytes);
	host[bytes] = '\0';
	return host_valid(host) ? 0 : -EINVAL;
}

/* Every address of this machine: a socket of both families, or where there is no IPv6 one
 * of IPv4. */
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

/* Of a look-up that failed. */
static int status_of(int rc)
{
	if (rc == EAI_MEMORY)
		return -ENOMEM;
	return rc == EAI_AGAIN || rc == EAI_SYSTEM ? -ENONET : -ENODATA;
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
	int rc;

	*out = (struct tern_addrs){0};
	if (address_split(address, host, &port) || !port_valid(port, listening))
		return -EINVAL;
	if (listening && !*host) {
		targets_any(out, (uint16_t)strtoul(port, NULL, 10));
		return 0;
	}
	rc = getaddrinfo(*host ? host : NULL, port, &hints, &found);
	if (rc)
		return status_of(rc);
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
