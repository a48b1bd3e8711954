/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses: "FABRIC://REST" into what to try, in order. `auto` means shm to a peer on
 * this host, which listens there under a name made of the same host and port, else tcp.
 */
#ifndef TERN_RENDEZVOUS_ADDRESS_H
#define TERN_RENDEZVOUS_ADDRESS_H

#include "transport/domain.h"

#define TERN_CANDIDATES_MAX 3

struct tern_candidate {
	struct tern_fabric *fabric;
	char address[128];
};

struct tern_candidates {
	struct tern_candidate at[TERN_CANDIDATES_MAX];
	unsigned count;
};

/* Where to connect. -EINVAL: malformed; -ENODEV: the fabric is not available here. */
int tern_address_dial(
	struct tern_domain *domain, const char *address, struct tern_candidates *out);

/* Where to listen: at[0] first; for auto the shm name follows from the port it got. */
int tern_address_listen(struct tern_domain *domain, const char *address,
	struct tern_candidates *out, bool *is_auto);

/* The shm name beside the tcp address "HOST:PORT" of an auto listener. -EINVAL. */
int tern_address_beside(const char *tcp_address, char *out, size_t size);

#endif
