/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of struct tern_domain: the fabrics of this process and what they registered.
 */
#ifndef TERN_TRANSPORT_DOMAIN_H
#define TERN_TRANSPORT_DOMAIN_H

#include <pthread.h>
#include <stdatomic.h>

#include <tern/context.h>

#include "transport/bounce.h"
#include "transport/fabric.h"
#include "transport/mem.h"

/* What a user makes in a domain. */
enum tern_tenant {
	TERN_TENANT_CONTEXT,
	TERN_TENANT_POOL,
	TERN_TENANT_MEM, /* wrapped: slabs go with their pools */
	TERN_TENANT_COUNT
};

struct tern_cuda_api;
struct tern_sim_process;
struct tern_verbs_api;

/* What tests put in place of what the machine has: NULL and false leave it. */
struct tern_domain_hooks {
	struct tern_sim_process *sim;           /* then `sim` is the only fabric: sim.h */
	const struct tern_verbs_api *verbs_api; /* rdma-core */
	const struct tern_cuda_api *cuda_api;   /* the GPU's driver */
	bool cuda_ipc_self; /* handles of CUDA IPC are used within one process, too */
};

struct tern_domain {
	struct tern_domain_opts opts;
	struct tern_domain_hooks hooks;
	struct tern_fabric *fabrics[TERN_FABRICS_MAX]; /* those that opened */
	unsigned fabric_count;
	const char
		*why[TERN_FABRICS_MAX]; /* by tern_fabric_table index; NULL: it opened */
	struct tern_gpus *gpus;         /* gpu.c; NULL: built without CUDA */
	struct tern_bounces bounces;
	atomic_uint next_mem_id;
	atomic_ullong registration_count;
	atomic_ullong registered_bytes;
	atomic_uint
		refs; /* the user's until tern_domain_free(), and one for each tenant */
	atomic_uint tenants[TERN_TENANT_COUNT];
};

/* tern_domain_new() with hooks. Both may be NULL, and are copied. */
int tern_domain_new_hooked(const struct tern_domain_opts *opts,
	const struct tern_domain_hooks *hooks, struct tern_domain **out);

/* Counts something of the user's that needs the domain / frees the domain with the last
 * of them, if the user has given it up. */
void tern_domain_hold(struct tern_domain *domain, enum tern_tenant tenant);
void tern_domain_drop(struct tern_domain *domain, enum tern_tenant tenant);

/* Every fabric that was built in, in order of preference for `auto`; NULL-terminated. */
extern const struct tern_fabric_ops *const tern_fabric_table[];

/* The opened fabric of that name; NULL if it is unknown or did not open. */
struct tern_fabric *tern_domain_fabric(
	struct tern_domain *domain, const char *name, size_t name_bytes);

/* Can the fabric of `conn` send from `mem` and receive into it? Else its bytes go through
 * memory of the host: stager.h, bounce.h. */
static inline bool tern_conn_reaches(
	const struct tern_conn *conn, const struct tern_mem *mem)
{
	return mem->kind == TERN_MEM_HOST ||
	       ((conn->caps & TERN_CAP_DEVICE) && conn->port->ops->reaches(conn, mem));
}

/* Does the fabric of `conn` copy what is in `mem`? Then peers cannot read it, and it
 * cannot be the target of a get(); all else is possible. */
static inline bool tern_conn_copies(
	const struct tern_conn *conn, const struct tern_mem *mem)
{
	return tern_mem_is_copied(mem, conn->port->fabric->index);
}

/* Registers `mem` with every fabric / undoes it. Counts. */
int tern_domain_register(struct tern_domain *domain, struct tern_mem *mem);
void tern_domain_unregister(struct tern_domain *domain, struct tern_mem *mem);

#endif
