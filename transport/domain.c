/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The domain: opens the fabrics of this process once and tells each of them about every
 * memory. A fabric that does not work on this machine leaves a sentence in why[] and the
 * rest goes on without it; only a fabric that was asked for by name (an engine of tcp,
 * the simulator) fails the domain.
 *
 * Threads: the fabrics are fixed when tern_domain_new returns, so they are read without a
 * lock; everything that changes later is a counter.
 */
#include "transport/domain.h"

#include <errno.h>
#include <string.h>

#include "base/env.h"
#include "base/sized.h"

static bool is_wanted(
	const struct tern_fabric_ops *ops, const struct tern_domain_hooks *hooks)
{
	bool sim = strncmp(ops->name, "sim", 3) == 0;

	return sim == (hooks->sim != NULL);
}

static bool may_be_missing(
	const struct tern_fabric_ops *ops, int status, const struct tern_domain *domain)
{
	if (domain->hooks.sim)
		return false;
	if (domain->opts.tcp_engine == TERN_TCP_URING && strcmp(ops->name, "tcp") == 0)
		return false;
	return status == -ENODEV || status == -ENOSYS;
}

static int open_fabric(struct tern_domain *domain, unsigned index)
{
	const struct tern_fabric_ops *ops = tern_fabric_table[index];
	struct tern_fabric *fabric = NULL;
	int status;

	if (!is_wanted(ops, &domain->hooks)) {
		domain->why[index] =
			domain->hooks.sim ? "this domain is simulated" : "only in tests";
		return 0;
	}
	domain->why[index] = "it does not work on this machine";
	status = ops->open(domain, &domain->opts, &fabric, &domain->why[index]);
	if (status)
		return may_be_missing(ops, status, domain) ? 0 : status;
	domain->why[index] = NULL;
	fabric->ops = ops;
	fabric->domain = domain;
	fabric->index = index;
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
	free(domain);
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
	for (unsigned i = 0; tern_fabric_table[i] && !status; i++) {
		tern_assert(i < TERN_FABRICS_MAX);
		status = open_fabric(domain, i);
	}
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
	/* Acquire and release: the last one out sees what the others did with it. */
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

int tern_rdma_devices_sized(struct tern_domain *domain, struct tern_rdma_device *out,
	size_t out_bytes, unsigned max)
{
	struct tern_fabric *verbs = tern_domain_fabric(domain, "verbs", strlen("verbs"));
	struct tern_rdma_device *own;
	int count;

	if (!verbs || !verbs->ops->devices)
		return 0;
	own = calloc((size_t)max + 1, sizeof(*own));
	if (!own)
		return -ENOMEM;
	count = verbs->ops->devices(verbs, own, max);
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
