/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registration of GPU memory with RDMA devices: GPUDirect RDMA.
 *
 * The memory is registered as a dma-buf, the caller's (tern_mem_wrap_dmabuf()) or one
 * that the CUDA driver exports, if the device accepts it; otherwise by its address, if
 * the kernel module nvidia-peermem is loaded; otherwise not at all, which is no error:
 * tensors in this memory are staged in host memory. Registrations are used only if
 * every device in use has one, since the pieces of a tensor are sent over all rails
 * (parallel conns), and a region has the keys of all devices.
 */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include <tern/context.h>

#include "transport/gpu/ipc.h"
#include "transport/verbs/verbs.h"

static int by_dma_buf(struct verbs_fabric *fabric, struct verbs_device *device,
	const struct tern_mem *mem, struct ibv_mr **out)
{
	uint64_t offset = mem->dma_buf_offset;
	int fd = mem->dma_buf, r = 0;

	if (mem->dma_buf < 0)
		r = tern_gpu_dma_buf(mem->gpu, mem->address, mem->bytes, &fd, &offset);
	if (r)
		return r;
	r = fabric->api->reg_dmabuf_mr(device->pd, offset, mem->bytes, mem->address, fd,
		verbs_access(fabric, mem), out);
	if (mem->dma_buf < 0)
		close(fd); /* the registration keeps a reference to the dma-buf */
	return r;
}

static int by_address(struct verbs_fabric *fabric, struct verbs_device *device,
	const struct tern_mem *mem, struct ibv_mr **out)
{
	if (!tern_gpu_has_peermem(mem->gpu) || !fabric->api->has_peermem())
		return -ENOTSUP;
	return fabric->api->reg_mr(device->pd, (void *)(uintptr_t)mem->address,
		mem->bytes, verbs_access(fabric, mem), out);
}

static void explain(struct verbs_fabric *fabric, struct verbs_device *device, int dma_buf,
	int peermem, struct tern_env *env)
{
	snprintf(device->gpu_refusal, sizeof(device->gpu_refusal),
		"dma-buf: %s; nvidia-peermem: %s", tern_status_text(dma_buf),
		peermem == -ENOTSUP ? "not available" : tern_status_text(peermem));
	if (device->gpu_refused)
		return;
	device->gpu_refused = true;
	tern_log(env, TERN_LOG_INFO, "verbs: %s cannot access memory of the GPU: %s",
		fabric->api->device_name(device->context), device->gpu_refusal);
}

void verbs_gpu_register(struct verbs_fabric *fabric, struct verbs_device *device,
	struct verbs_reg *reg, struct tern_env *env)
{
	struct ibv_mr *mr;
	int dma_buf = by_dma_buf(fabric, device, reg->mem, &mr);
	int peermem = dma_buf ? by_address(fabric, device, reg->mem, &mr) : 0;

	if (dma_buf && peermem) {
		explain(fabric, device, dma_buf, peermem, env);
		return;
	}
	device->gpu_taken = true;
	device->gpu_refusal[0] = '\0';
	verbs_reg_set(reg, device->index, mr);
	reg->ways[device->index] = dma_buf ? "nvidia-peermem" : "dma-buf";
}

const char *verbs_gpu_reaches(
	const struct tern_fabric *fabric, const struct tern_mem *mem)
{
	struct verbs_reg *reg = tern_mem_reg(mem, fabric->index);

	return reg ? atomic_load(&reg->way) : NULL;
}

/* Asks the device's driver to register a dma-buf that does not exist: a driver that
 * registers dma-bufs looks for it (-EBADF), and any other one refuses the call. */
static bool takes_dma_bufs(struct verbs_fabric *fabric, struct verbs_device *device)
{
	struct ibv_pd *pd = device->pd;
	struct ibv_mr *mr;
	int r;

	if (!device->pd && fabric->api->alloc_pd(device->context, &pd))
		return false;
	r = fabric->api->reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE, &mr);
	if (!device->pd)
		fabric->api->dealloc_pd(pd);
	return r == -EBADF;
}

uint32_t verbs_gpu_ways(struct verbs_fabric *fabric, struct verbs_device *device)
{
	if (!tern_ipc_is_built() || fabric->opts.guard)
		return 0;
	if (device->dma_buf == VERBS_DMA_BUF_UNKNOWN)
		device->dma_buf = takes_dma_bufs(fabric, device) ? VERBS_DMA_BUF_YES
								 : VERBS_DMA_BUF_NO;
	return (device->dma_buf == VERBS_DMA_BUF_YES ? TERN_GPU_BY_DMA_BUF : 0) |
	       (fabric->api->has_peermem() ? TERN_GPU_BY_PEERMEM : 0);
}
