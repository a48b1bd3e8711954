/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses of peers. Parses "FABRIC://REST" into a list of addresses to try, in order.
 * "auto://HOST:PORT" stands for the addresses that each fabric adds (auto_dial in
 * fabric.h), in the order of the table of fabrics. Several addresses of one peer are
 * joined by "+".
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

/* Parses an address to connect to, or several joined by "+". -EINVAL: malformed; -ENODEV:
 * the fabric is not available on this machine; -E2BIG: more than TERN_CANDIDATES_MAX
 * addresses. */
int tern_address_dial(
	struct tern_domain *domain, const char *list, struct tern_candidates *out);

/* Parses an address to listen at. For "auto", the result is the address on the fabric
 * that picks the port; the addresses on the other fabrics follow from it (auto_listen in
 * fabric.h). Errors: -EINVAL, -ENODEV as above. */
int tern_address_listen(struct tern_domain *domain, const char *address,
	struct tern_candidates *out, bool *is_auto);

#endif
