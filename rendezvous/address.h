/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses: "FABRIC://REST" into what to try, in order. `auto` means shm to a peer on
 * this host, which listens there under a name made of the same host and port; else verbs,
 * where an RDMA device of this machine reaches the host; else tcp. Several addresses of
 * one peer are joined by "+".
 */
#ifndef TERN_RENDEZVOUS_ADDRESS_H
#define TERN_RENDEZVOUS_ADDRESS_H

#include "transport/domain.h"

#define TERN_CANDIDATES_MAX 8

struct tern_candidate {
	struct tern_fabric *fabric;
	char address[128];
};

struct tern_candidates {
	struct tern_candidate at[TERN_CANDIDATES_MAX];
	unsigned count;
};

/* Where to connect: an address, or several with pluses between them. -EINVAL: malformed;
 * -ENODEV: the fabric is not available here; -E2BIG: more than TERN_CANDIDATES_MAX. */
int tern_address_dial(
	struct tern_domain *domain, const char *list, struct tern_candidates *out);

/* Where to listen. For auto that is tcp: what else follows from the port it got. */
int tern_address_listen(struct tern_domain *domain, const char *address,
	struct tern_candidates *out, bool *is_auto);

/* The shm name beside the tcp address "HOST:PORT" of an auto listener. -EINVAL. */
int tern_address_beside(const char *tcp_address, char *out, size_t size);

/* Does "HOST:PORT" name the loopback, which no RDMA device has? */
bool tern_address_is_loopback(const char *tcp_address);

#endif
