/* SPDX-License-Identifier: Apache-2.0 */
/* Socket addresses as text. */
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
 * HOST:PORT in all its forms: "10.0.0.7:7000", "[::1]:7000", "localhost:0", ":7000". An
 * empty host means every address of this machine when listening, this machine when
 * connecting. Other names than those of /etc/hosts are looked up in the DNS, which
 * blocks: callers that must not block give numbers. -EINVAL: malformed; -ENODATA: no
 * host has this name; -ENONET: nobody who knows names can be asked now.
 */
int tern_addr_resolve(const char *address, bool listening, struct tern_addrs *out);

/* "10.0.0.7:7000", "[::1]:7000". */
void tern_addr_print(const struct tern_addr *addr, char *out, size_t bytes);

#endif
