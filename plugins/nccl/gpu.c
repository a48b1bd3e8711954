/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory: net.h. NCCL is told that a device moves GPU memory only if its connections
 * can go by RDMA, and every RDMA device of this host takes GPU memory, since
 * Tern registers it with all of them. Otherwise NCCL copies to host memory itself, piece
 * by piece while other pieces move. That is faster than copies that Tern would make.
 *
 * Connections of such a device go by RDMA or not at all. If Tern copied to GPU memory, NCCL
 * could read wrong data: its kernels for the protocols LL and LL128 do not wait for the end
 * of a receive, but for flags between the data, and a GPU's copies are in no order.
 *
 * MEMORY_DMABUF: NCCL checks that its GPU can export one. MEMORY_CUDA: nvidia-peermem
 * takes the memory of any GPU.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/nccl/net.h"

static _Atomic int kinds[DEVICES_MAX]; /* without MEMORY_HOST */

/* All ports of all RDMA devices, to be freed; NULL: there are none. */
static struct tern_rdma_device *rdma_ports(struct tern_domain *domain, int *count)
{
	struct tern_rdma_device *ports;

	*count = tern_rdma_devices(domain, NULL, 0);
	if (*count <= 0)
		return NULL;
	ports = calloc((size_t)*count, sizeof(*ports));
	if (ports && tern_rdma_devices(domain, ports, (unsigned)*count) < *count)
		*count = 0; /* one was removed meanwhile, or there is no memory */
	return ports;
}

/* The kinds of GPU memory that every RDMA device takes. */
static int kinds_of_all(struct tern_domain *domain)
{
	int count, all = MEMORY_CUDA | MEMORY_DMABUF;
	struct tern_rdma_device *ports = rdma_ports(domain, &count);

	if (!ports || count == 0)
		all = 0;
	for (int i = 0; i < count && ports; i++) {
		if (!(ports[i].gpu_ways & TERN_GPU_BY_DMA_BUF))
			all &= ~MEMORY_DMABUF;
		if (!(ports[i].gpu_ways & TERN_GPU_BY_PEERMEM))
			all &= ~MEMORY_CUDA;
	}
	free(ports);
	return all;
}

static void refuse(struct tern_peer *peer, void *arg)
{
	(void)arg;
	tern_peer_free(peer);
}

/* True if an RDMA device has this address of the host, and listeners use it. */
static bool is_rdma(struct tern_context *ctx, const char *by, const char *host)
{
	struct tern_listener *listener;
	char address[100];
	int r;

	/* auto:// uses no RDMA device for loopback addresses. */
	if (strcmp(by, "auto") == 0 &&
		(strncmp(host, "127.", 4) == 0 || strcmp(host, "[::1]") == 0))
		return false;
	snprintf(address, sizeof(address), "verbs://%s:0", host);
	r = tern_listen(ctx, address, NULL, refuse, NULL, &listener);
	if (r == 0)
		tern_listener_free(listener);
	return r == 0;
}

bool gpu_find(void)
{
	const char *by = settings_fabric(net_warn);
	struct tern_domain *domain = NULL;
	struct tern_context *ctx = NULL;
	const struct device *devices;
	unsigned count = devices_find(&devices);
	int all = 0, any = 0;

	if (by && strcmp(by, "tcp") != 0 && tern_domain_new(NULL, &domain) == 0)
		all = kinds_of_all(domain);
	if (all && tern_context_new(domain, NULL, &ctx) < 0)
		all = 0;
	for (unsigned i = 0; i < count; i++) {
		int own = all && is_rdma(ctx, by, devices[i].address) ? all : 0;

		atomic_store(&kinds[i], own);
		any |= own;
	}
	tern_context_free(ctx);
	tern_domain_free(domain);
	return any;
}

int gpu_kinds(int device)
{
	if (device < 0 || device >= (int)DEVICES_MAX)
		return MEMORY_HOST;
	return MEMORY_HOST | atomic_load(&kinds[device]);
}

void gpu_refusals(struct tern_domain *domain, char *out, size_t size)
{
	int count;
	struct tern_rdma_device *ports = rdma_ports(domain, &count);
	size_t used = 0;

	*out = '\0';
	for (int i = 0; i < count && ports; i++)
		if (*ports[i].gpu_refusal && ports[i].port == 1 && used < size)
			used += (size_t)snprintf(out + used, size - used, "%s%s: %s",
				used ? "; " : "", ports[i].name, ports[i].gpu_refusal);
	free(ports);
}
