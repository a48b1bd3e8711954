/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The domain: opens the fabrics of this process once and registers all memory with each
 * of them. If a fabric does not work on this machine (-ENODEV, -ENOSYS), why[] has the
 * reason and the domain works without this fabric. tern_domain_new() fails if the options
 * require that fabric (tcp, for its engine), if the fabric is a simulated one, or if the
 * error is another one (-ENOMEM, a wrong option).
 *
 * Threads: the fabrics are fixed when tern_domain_new() returns, so they are read without
 * a lock; what changes later is atomic, or has a lock of its own (GPUs, bounce buffers).
 */
#include "transport/domain.h"

#include <errno.h>
#include <string.h>

#include "base/env.h"
#include "base/sized.h"

static bool may_be_missing(
	const struct tern_fabric_ops *ops, int status, const struct tern_domain *domain)
{
	if (domain->hooks.sim || (ops->required && ops->required(&domain->opts)))
		return false;
	return status == -ENODEV || status == -ENOSYS;
}

/* Opens one fabric. On failure *why is the reason, as for tern_fabric_ops.open(). */
static int open_ops(struct tern_domain *domain, const struct tern_fabric_ops *ops,
	struct tern_fabric **out, const char **why)
{
	*why = ops->absent;
	if (ops->absent)
		return -ENOSYS;
	*why = "it does not work on this machine";
	return ops->open(domain, &domain->opts, out, why);
}

static int open_fabric(struct tern_domain *domain, unsigned row)
{
	const struct tern_fabric_ops *ops = tern_fabric_table[row];
	struct tern_fabric *fabric = NULL;
	int status;

	if (ops->simulated != (domain->hooks.sim != NULL)) {
		domain->why[row] =
			domain->hooks.sim ? "this domain is simulated" : "only in tests";
		return 0;
	}
	status = open_ops(domain, ops, &fabric, &domain->why[row]);
	if (status)
		return may_be_missing(ops, status, domain) ? 0 : status;
	domain->why[row] = NULL;
	fabric->ops = ops;
	fabric->domain = domain;
	fabric->index = domain->fabric_count;
	domain->fabrics[domain->fabric_count++] = fabric;
	return 0;
}

static void close_domain(struct tern_domain *domain)
{
	while (domain->fabric_count > 0) {
		struct tern_fabric *fabric = domain->fabrics[--domain->fabric_count];

		fabric->ops->close(fabric);
	}
	tern_gpus_close(domain);
	free((char *)(uintptr_t)domain->opts.tcp_congestion);
	free(domain->fabrics);
	free(domain->why);
	free(domain);
}

static int open_fabrics(struct tern_domain *domain)
{
	unsigned rows = 0;
	int status = 0;

	while (tern_fabric_table[rows])
		rows++;
	tern_assert(rows <= 32); /* each fabric has a bit in tern_mem.copied */
	domain->fabrics = calloc(rows, sizeof(domain->fabrics[0]));
	domain->why = calloc(rows, sizeof(domain->why[0]));
	if (!domain->fabrics || !domain->why)
		return -ENOMEM;
	for (unsigned row = 0; row < rows && !status; row++)
		status = open_fabric(domain, row);
	return status;
}

int tern_domain_new_hooked(const struct tern_domain_opts *opts,
	const struct tern_domain_hooks *hooks, struct tern_domain **out)
{
	struct tern_domain *domain = calloc(1, sizeof(*domain));
	int status = 0;

	if (!domain)
		return -ENOMEM;
	if (opts)
		domain->opts = *opts;
	if (hooks)
		domain->hooks = *hooks;
	if (domain->opts.tcp_congestion) {
		domain->opts.tcp_congestion = strdup(domain->opts.tcp_congestion);
		if (!domain->opts.tcp_congestion)
			status = -ENOMEM;
	}
	atomic_init(&domain->next_mem_id, 1);
	atomic_init(&domain->refs, 1);
	tern_bounces_open(domain);
	if (!status)
		status = tern_gpus_open(domain);
	if (!status)
		status = open_fabrics(domain);
	if (status) {
		tern_bounces_close(domain);
		close_domain(domain);
		return status;
	}
	*out = domain;
	return 0;
}

int tern_domain_new_sized(
	const struct tern_domain_opts *opts, size_t opts_bytes, struct tern_domain **out)
{
	struct tern_domain_opts own;
	int r = tern_read_sized(&own, sizeof(own), opts, opts_bytes);

	return r < 0 ? r : tern_domain_new_hooked(&own, NULL, out);
}

void tern_domain_hold(struct tern_domain *domain, enum tern_tenant tenant)
{
	atomic_fetch_add(&domain->refs, 1);
	atomic_fetch_add(&domain->tenants[tenant], 1);
}

static void drop_ref(struct tern_domain *domain)
{
	/* Acquire and release order: the thread that drops the last reference must see
	 * what the other threads did with the domain. */
	if (atomic_fetch_sub_explicit(&domain->refs, 1, memory_order_acq_rel) != 1)
		return;
	tern_bounces_close(domain);
	close_domain(domain);
}

void tern_domain_drop(struct tern_domain *domain, enum tern_tenant tenant)
{
	atomic_fetch_sub(&domain->tenants[tenant], 1);
	drop_ref(domain);
}

void tern_domain_free(struct tern_domain *domain)
{
	unsigned counts[TERN_TENANT_COUNT], all = 0;

	if (!domain)
		return;
	for (unsigned i = 0; i < TERN_TENANT_COUNT; i++) {
		counts[i] = atomic_load(&domain->tenants[i]);
		all += counts[i];
	}
	if (all)
		tern_log(tern_env_system(), TERN_LOG_ERROR,
			"tern_domain_free: still in use: contexts: %u, pools: %u, "
			"wrapped memories: %u (%llu bytes are registered in all); the "
			"domain stays until they are freed",
			counts[TERN_TENANT_CONTEXT], counts[TERN_TENANT_POOL],
			counts[TERN_TENANT_MEM],
			(unsigned long long)atomic_load(&domain->registered_bytes));
	drop_ref(domain);
}

void tern_domain_stats_sized(
	struct tern_domain *domain, struct tern_domain_stats *out, size_t out_bytes)
{
	const struct tern_domain_stats stats = {
		.registration_count = atomic_load(&domain->registration_count),
		.registered_bytes = atomic_load(&domain->registered_bytes),
	};

	tern_write_sized(out, out_bytes, &stats, sizeof(stats));
}

static struct tern_fabric *with_devices(const struct tern_domain *domain)
{
	for (unsigned i = 0; i < domain->fabric_count; i++)
		if (domain->fabrics[i]->ops->devices)
			return domain->fabrics[i];
	return NULL;
}

int tern_rdma_devices_sized(struct tern_domain *domain, struct tern_rdma_device *out,
	size_t out_bytes, unsigned max)
{
	struct tern_fabric *fabric = with_devices(domain);
	struct tern_rdma_device *own;
	int count;

	if (!fabric)
		return 0;
	own = calloc((size_t)max + 1, sizeof(*own));
	if (!own)
		return -ENOMEM;
	count = fabric->ops->devices(fabric, own, max);
	for (unsigned i = 0; i < max && i < (unsigned)count; i++)
		tern_write_sized(
			(char *)out + i * out_bytes, out_bytes, &own[i], sizeof(own[i]));
	free(own);
	return count;
}

struct tern_fabric *tern_domain_fabric(
	struct tern_domain *domain, const char *name, size_t name_bytes)
{
	for (unsigned i = 0; i < domain->fabric_count; i++) {
		const char *own = domain->fabrics[i]->ops->name;

		if (strlen(own) == name_bytes && memcmp(own, name, name_bytes) == 0)
			return domain->fabrics[i];
	}
	return NULL;
}

const char *tern_domain_why(
	const struct tern_domain *domain, const struct tern_fabric_ops *ops)
{
	unsigned row = 0;

	while (tern_fabric_table[row] != ops)
		row++;
	return domain->why[row];
}

bool tern_domain_pins_memory(const struct tern_domain *domain)
{
	for (unsigned i = 0; i < domain->fabric_count; i++)
		if (domain->fabrics[i]->ops->pins_memory)
			return true;
	return false;
}

static void unregister_first(
	struct tern_domain *domain, struct tern_mem *mem, unsigned count)
{
	while (count-- > 0) {
		struct tern_fabric *fabric = domain->fabrics[count];

		if (fabric->ops->mem_unregister)
			fabric->ops->mem_unregister(
				fabric, mem, mem->regs[fabric->index]);
		mem->regs[fabric->index] = NULL;
	}
}

int tern_domain_register(struct tern_domain *domain, struct tern_mem *mem)
{
	for (unsigned i = 0; i < domain->fabric_count; i++) {
		struct tern_fabric *fabric = domain->fabrics[i];
		int status;

		if (!fabric->ops->mem_register)
			continue;
		status =
			fabric->ops->mem_register(fabric, mem, &mem->regs[fabric->index]);
		if (status) {
			unregister_first(domain, mem, i);
			return status;
		}
		atomic_fetch_add(&domain->registration_count, 1);
	}
	atomic_fetch_add(&domain->registered_bytes, mem->bytes);
	return 0;
}

void tern_domain_unregister(struct tern_domain *domain, struct tern_mem *mem)
{
	unregister_first(domain, mem, domain->fabric_count);
	atomic_fetch_sub(&domain->registered_bytes, mem->bytes);
}
