/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of struct tern_domain: the fabrics of this process and what they
 * registered. */
#ifndef TERN_TRANSPORT_DOMAIN_H
#define TERN_TRANSPORT_DOMAIN_H

#include <pthread.h>
#include <stdatomic.h>

#include <tern/context.h>

#include "transport/gpu/bounce.h"
#include "transport/fabric.h"
#include "transport/memory/mem.h"

/* Kinds of objects of the user that keep a domain alive. */
enum tern_tenant {
	TERN_TENANT_CONTEXT,
	TERN_TENANT_POOL,
	TERN_TENANT_MEM, /* memory wrapped by the user; slabs count with their pools */
	TERN_TENANT_COUNT
};

struct tern_cuda_api;
struct tern_sim_process;
struct tern_verbs_api;

/* Replacements that tests put in place of the machine's own. NULL and false: no
 * replacement. */
struct tern_domain_hooks {
	struct tern_sim_process *sim; /* if set, `sim` is the only fabric: sim.h */
	const struct tern_verbs_api *verbs_api; /* rdma-core */
	const struct tern_cuda_api *cuda_api;   /* the GPU's driver */
	bool cuda_ipc_self; /* use CUDA IPC handles within one process too */
};

struct tern_domain {
	struct tern_domain_opts opts;
	struct tern_domain_hooks hooks;
	struct tern_fabric **fabrics; /* the fabrics that opened, by tern_fabric.index */
	unsigned fabric_count;
	const char **why; /* reason, by the row of tern_fabric_table; NULL: it opened */
	struct tern_gpus *gpus; /* gpu.c; NULL: built without CUDA */
	struct tern_bounces bounces;
	atomic_uint next_mem_id;
	atomic_ullong registration_count;
	atomic_ullong registered_bytes;
	/* One for the user until tern_domain_free(), and one for each tenant. */
	atomic_uint refs;
	atomic_uint tenants[TERN_TENANT_COUNT];
};

/* tern_domain_new() with hooks. opts and hooks may be NULL; both are copied. */
int tern_domain_new_hooked(const struct tern_domain_opts *opts,
	const struct tern_domain_hooks *hooks, struct tern_domain **out);

/* Count an object of the user that needs the domain, and uncount it. The last drop
 * frees the domain if the user has released it. */
void tern_domain_hold(struct tern_domain *domain, enum tern_tenant tenant);
void tern_domain_drop(struct tern_domain *domain, enum tern_tenant tenant);

/* All fabrics of this build, in the order of preference of `auto`; NULL-terminated. */
extern const struct tern_fabric_ops *const tern_fabric_table[];

/* Why this fabric did not open in the domain; NULL: it did. */
const char *tern_domain_why(
	const struct tern_domain *domain, const struct tern_fabric_ops *ops);

/* True if a fabric that opened pins registered memory. */
bool tern_domain_pins_memory(const struct tern_domain *domain);

/* The opened fabric with this name; NULL: unknown, or it did not open. */
struct tern_fabric *tern_domain_fabric(
	struct tern_domain *domain, const char *name, size_t name_bytes);

/* True if the fabric of `conn` can send from `mem` and receive into it. If not, the
 * bytes are staged in host memory: stager.h, bounce.h. */
static inline bool tern_conn_reaches(
	const struct tern_conn *conn, const struct tern_mem *mem)
{
	return mem->kind == TERN_MEM_HOST ||
	       ((conn->caps & TERN_CAP_DEVICE) && conn->port->ops->reaches(conn, mem));
}

/* True if the fabric of `conn` refused to register `mem`, so that the CPU copies its
 * bytes. Peers cannot read such memory and it cannot be the target of a get();
 * everything else works. */
static inline bool tern_conn_copies(
	const struct tern_conn *conn, const struct tern_mem *mem)
{
	return tern_mem_is_copied(mem, conn->port->fabric->index);
}

/* Register `mem` with every fabric, and undo that. Both update the domain's
 * statistics. */
int tern_domain_register(struct tern_domain *domain, struct tern_mem *mem);
void tern_domain_unregister(struct tern_domain *domain, struct tern_mem *mem);

#endif
