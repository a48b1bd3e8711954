/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of struct tern_domain: the fabrics of this process and what they registered.
 */
#ifndef TERN_TRANSPORT_DOMAIN_H
#define TERN_TRANSPORT_DOMAIN_H

#include <pthread.h>
#include <stdatomic.h>

#include <tern/context.h>

#include "transport/fabric.h"
#include "transport/mem.h"

struct tern_domain {
	struct tern_domain_opts opts;
	struct tern_fabric *fabrics[TERN_FABRICS_MAX]; /* those that opened */
	unsigned fabric_count;
	const char
		*why[TERN_FABRICS_MAX]; /* by tern_fabric_table index; NULL: it opened */
	atomic_uint next_mem_id;
	atomic_ullong registration_count;
	atomic_ullong registered_bytes;
	atomic_uint
		live_count; /* contexts, pools and memories; 0 when the domain is freed */
};

/* Every fabric that was built in, in order of preference for `auto`; NULL-terminated. */
extern const struct tern_fabric_ops *const tern_fabric_table[];

/* The opened fabric of that name; NULL if it is unknown or did not open. */
struct tern_fabric *tern_domain_fabric(
	struct tern_domain *domain, const char *name, size_t name_bytes);

/* Registers `mem` with every fabric / undoes it. Counts. */
int tern_domain_register(struct tern_domain *domain, struct tern_mem *mem);
void tern_domain_unregister(struct tern_domain *domain, struct tern_mem *mem);

#endif
