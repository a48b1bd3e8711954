/* SPDX-License-Identifier: Apache-2.0 */
/* Parsing, resolving and printing of socket addresses. */
#ifndef TERN_TRANSPORT_ADDR_H
#define TERN_TRANSPORT_ADDR_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#define TERN_ADDRS_MAX 8

struct tern_addr {
	struct sockaddr_storage sa;
	socklen_t len;
};

struct tern_addrs {
	struct tern_addr addr[TERN_ADDRS_MAX];
	unsigned count, next;
};

/*
 * Resolves HOST:PORT in all its forms: "10.0.0.7:7000", "[::1]:7000", "localhost:0",
 * ":7000". An empty host means every address of this machine when listening, and this
 * machine when connecting. A host name that is not in /etc/hosts is looked up in the DNS,
 * which blocks: callers that must not block pass numeric addresses. -EINVAL: malformed;
 * -ENODATA: no host has this name; -ENONET: no name server can be asked now; -ENOMEM.
 */
int tern_addr_resolve(const char *address, bool listening, struct tern_addrs *out);

/* True if the address is HOST:PORT in one of these forms, with a port to connect to. Looks
 * nothing up. */
bool tern_addr_is_target(const char *address);

/* Writes the address as text, as in "10.0.0.7:7000" or "[::1]:7000". */
void tern_addr_print(const struct tern_addr *addr, char *out, size_t bytes);

/* Splits "HOST:PORT" or "[HOST]:PORT"; *port points into `address`. The contents of
 * host and port are not checked. -EINVAL: there is no port, or the host has `size`
 * characters or more. */
int tern_addr_split(const char *address, char *host, size_t size, const char **port);

/* True if `host`, as tern_addr_split() returns it, is a numeric address without %scope,
 * "localhost", or "": it certainly needs no look-up in the DNS. */
bool tern_addr_is_numeric(const char *host);

/* True if `host` is a numeric address of this machine (without %scope), "localhost", or
 * "". */
bool tern_addr_is_local(const char *host);

/*
 * Calls `each` with HOST:PORT for each address of this machine at which a socket can be
 * reached that listens at `address`, as tern_addr_print() writes it: that one, or, if it is
 * 0.0.0.0 or [::], those of the interfaces that are up, IPv4 first. Loopback addresses are
 * told only if there are no others, link-local ones of IPv6 never. Returns 0 or -errno.
 */
int tern_addr_reached(
	const char *address, void (*each)(const char *host_port, void *arg), void *arg);

/* True if "HOST:PORT" names a loopback address, which no other host reaches. */
bool tern_addr_is_loopback(const char *address);

#endif
