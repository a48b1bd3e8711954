/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registration of GPU memory with RDMA devices: GPUDirect RDMA.
 *
 * The memory is registered as a dma-buf, if the CUDA driver exports one that the device
 * accepts; otherwise by its address, if the kernel module nvidia-peermem is loaded;
 * otherwise not at all, which is no error: tensors in this memory are staged in host
 * memory. Registrations are used only if every device in use has one, since the pieces of
 * a tensor are sent over all rails (parallel conns), and a region has the keys of all
 * devices.
 */
#include <errno.h>
#include <unistd.h>

#include "transport/verbs/verbs.h"

static int by_dma_buf(struct verbs_fabric *fabric, struct verbs_device *device,
	const struct tern_mem *mem, struct ibv_mr **out)
{
	uint64_t offset;
	int fd, r = tern_gpu_dma_buf(mem->gpu, mem->address, mem->bytes, &fd, &offset);

	if (r)
		return r;
	r = fabric->api->reg_dmabuf_mr(device->pd, offset, mem->bytes, mem->address, fd,
		verbs_access(fabric, mem), out);
	close(fd); /* the registration keeps its own reference to the dma-buf */
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
	if (device->gpu_refused)
		return;
	device->gpu_refused = true;
	tern_log(env, TERN_LOG_INFO,
		"verbs: %s cannot access memory of the GPU: dma-buf: %s; "
		"nvidia-peermem: %s",
		fabric->api->device_name(device->context), tern_status_text(dma_buf),
		peermem == -ENOTSUP ? "not available" : tern_status_text(peermem));
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
	verbs_reg_set(reg, device->index, mr);
	reg->ways[device->index] = dma_buf ? "nvidia-peermem" : "dma-buf";
}

const char *verbs_gpu_reaches(const struct tern_conn *conn, const struct tern_mem *mem)
{
	struct verbs_reg *reg = tern_mem_reg(mem, conn->port->fabric->index);

	return reg ? atomic_load(&reg->way) : NULL;
}
