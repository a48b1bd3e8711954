/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of struct tern_domain: the fabrics that this process has opened, and the
 * memory registered with them. */
#ifndef TERN_TRANSPORT_DOMAIN_H
#define TERN_TRANSPORT_DOMAIN_H

#include <pthread.h>
#include <stdatomic.h>

#include <tern/context.h>

#include "transport/gpu/bounce.h"
#include "transport/fabric.h"
#include "transport/memory/mem.h"

/* Kinds of objects that a user creates in a domain. As long as one exists, the domain is
 * not freed. */
enum tern_tenant {
	TERN_TENANT_CONTEXT,
	TERN_TENANT_POOL,
	/* Memory wrapped by the user; memory of a pool counts as the pool. */
	TERN_TENANT_MEM,
	TERN_TENANT_COUNT
};

struct tern_cuda_api;
struct tern_sim_process;
struct tern_verbs_api;

/* What tests use instead of this machine's own devices and libraries. NULL and false: no
 * replacement. */
struct tern_domain_hooks {
	struct tern_sim_process *sim; /* if set, only simulated fabrics open: sim.h */
	/* functions of rdma-core (libibverbs, librdmacm) */
	const struct tern_verbs_api *verbs_api;
	const struct tern_cuda_api *cuda_api; /* functions of the CUDA driver */
	bool cuda_ipc_self; /* use CUDA IPC handles within one process too */
};

struct tern_domain {
	struct tern_domain_opts opts;
	struct tern_domain_hooks hooks;
	struct tern_fabric **fabrics; /* the fabrics that opened, by tern_fabric.index */
	unsigned fabric_count;
	/* Reason why a fabric did not open, indexed by the row of tern_fabric_table;
	 * NULL: it opened. */
	const char **why;
	struct tern_gpus *gpus; /* the GPUs (gpu.c); NULL: built without CUDA */
	struct tern_bounces bounces;
	atomic_uint next_mem_id;
	atomic_ullong registration_count;
	atomic_ullong registered_bytes;
	/* One reference for the user until tern_domain_free(), and one for each object
	 * counted in tenants. */
	atomic_uint refs;
	atomic_uint tenants[TERN_TENANT_COUNT];
};

/* tern_domain_new() with hooks. opts and hooks may be NULL; both are copied. */
int tern_domain_new_hooked(const struct tern_domain_opts *opts,
	const struct tern_domain_hooks *hooks, struct tern_domain **out);

/* Increment and decrement the number of user objects that need the domain. The last
 * decrement frees the domain if the user has already called tern_domain_free(). */
void tern_domain_hold(struct tern_domain *domain, enum tern_tenant tenant);
void tern_domain_drop(struct tern_domain *domain, enum tern_tenant tenant);

/* All fabrics, also those that this build lacks (tern_fabric_ops.absent), in the order of
 * preference of `auto`; NULL-terminated. */
extern const struct tern_fabric_ops *const tern_fabric_table[];

/* Why the fabric `ops` did not open in the domain; NULL: it did open. */
const char *tern_domain_why(
	const struct tern_domain *domain, const struct tern_fabric_ops *ops);

/* True if a fabric that opened pins registered memory. */
bool tern_domain_pins_memory(const struct tern_domain *domain);

/* The opened fabric with this name; NULL: unknown, or it did not open. */
struct tern_fabric *tern_domain_fabric(
	struct tern_domain *domain, const char *name, size_t name_bytes);

/* True if the fabric of `conn` can send from `mem` and receive into it: always for host
 * memory, although the fabric may copy its bytes (tern_conn_copies()). If not, the bytes
 * are staged in host memory: stager.h, bounce.h. */
static inline bool tern_conn_reaches(
	const struct tern_conn *conn, const struct tern_mem *mem)
{
	return mem->kind == TERN_MEM_HOST ||
	       ((conn->caps & TERN_CAP_DEVICE) &&
		       conn->port->ops->reaches(conn->port->fabric, mem));
}

/* True if the fabric of `conn` could not register `mem` with each of its devices, so that
 * the CPU copies the bytes. Peers cannot read such memory and it cannot be the target of
 * a get(); everything else works. */
static inline bool tern_conn_copies(
	const struct tern_conn *conn, const struct tern_mem *mem)
{
	return tern_mem_is_copied(mem, conn->port->fabric->index);
}

/* Register `mem` with every fabric of the domain, and undo that. Both functions update
 * the domain's statistics. If a fabric fails, `mem` is registered with none, and its
 * error is returned. */
int tern_domain_register(struct tern_domain *domain, struct tern_mem *mem);
void tern_domain_unregister(struct tern_domain *domain, struct tern_mem *mem);

#endif
