/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory for network cards and for other processes. A dma-buf is a duplicate of
 * the memory's memfd; a memory handle names the process and its fd, so that it can be
 * opened by another process that has a simulated driver, and by nobody once the owner has
 * freed it.
 */
#include "tests/fake_cuda/internal.h"

#include <fcntl.h>
#include <sys/stat.h>

#define PAGE 4096u

struct handle {
	uint32_t magic;
	pid_t pid;
	int fd, device;
	uint64_t bytes;
	uint64_t inode; /* fd numbers are used again */
};

#define MAGIC 0xfa4ec0da
_Static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle), "it travels in that");

static CUresult mem_get_handle_for_address_range(void *out, CUdeviceptr at, size_t bytes,
	CUmemRangeHandleType type, unsigned long long flags)
{
	FAKE_ENTER_CTX("mem_get_handle_for_address_range");
	const struct fake_mem *mem;
	if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags || bytes == 0 ||
		(at | bytes) % PAGE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!fake.opts.dma_buf)
		return CUDA_ERROR_NOT_SUPPORTED;
	/* Allocations are of whole pages, as far as this call goes. */
	mem = fake_mem_find((void *)(uintptr_t)at, 1, 1u << FAKE_MEM_DEVICE);
	if (!mem || mem->device != device || (char *)(uintptr_t)at != mem->base ||
		bytes > tern_align_up(mem->bytes, PAGE))
		return CUDA_ERROR_INVALID_VALUE;
	*(int *)out = fcntl(mem->fd, F_DUPFD_CLOEXEC, 0);
	return *(int *)out >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

static CUresult flush_gpu_direct_rdma_writes(
	CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope)
{
	FAKE_ENTER_CTX("flush_gpu_direct_rdma_writes");
	(void)device;
	if (!(fake.opts.rdma_flush & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST))
		return CUDA_ERROR_NOT_SUPPORTED;
	return target == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX &&
			       (scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER ||
				       scope ==
					       CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES)
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_VALUE;
}

/* ---- memory of other processes ---- */

static CUresult ipc_get_mem_handle(CUipcMemHandle *out, CUdeviceptr at)
{
	FAKE_ENTER_CTX("ipc_get_mem_handle");
	const struct fake_mem *mem =
		fake_mem_find((void *)(uintptr_t)at, 1, 1u << FAKE_MEM_DEVICE);
	struct handle handle = {.magic = MAGIC, .pid = getpid()};
	struct stat st;
	(void)device;
	if (!fake.opts.ipc)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!mem || mem->base != (char *)(uintptr_t)at)
		return CUDA_ERROR_INVALID_VALUE;
	tern_assert(fstat(mem->fd, &st) == 0);
	handle.fd = mem->fd;
	handle.device = mem->device->index;
	handle.bytes = mem->bytes;
	handle.inode = st.st_ino;
	memset(out, 0, sizeof(*out));
	memcpy(out, &handle, sizeof(handle));
	return CUDA_SUCCESS;
}

/* The fd that the handle names, if it is still what it was. */
static int open_handle(const struct handle *handle)
{
	char path[64];
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)handle->pid, handle->fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && (fstat(fd, &st) || st.st_ino != handle->inode)) {
		close(fd);
		return -1;
	}
	return fd;
}

static struct fake_mem *opened_before(const struct handle *handle)
{
	tern_list_for_each (n, &fake.mems) {
		struct fake_mem *mem = tern_list_entry(n, struct fake_mem, link);

		if (mem->kind == FAKE_MEM_OPENED && mem->inode == handle->inode)
			return mem;
	}
	return NULL;
}

static CUresult ipc_open_mem_handle(CUdeviceptr *out, CUipcMemHandle from, unsigned flags)
{
	FAKE_ENTER_CTX("ipc_open_mem_handle");
	struct handle handle;
	struct fake_mem *mem;
	int fd;
	memcpy(&handle, &from, sizeof(handle));
	if (handle.magic != MAGIC ||
		flags & ~(unsigned)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	if (handle.pid == getpid() && !fake.opts.ipc_self)
		return CUDA_ERROR_INVALID_CONTEXT;
	mem = opened_before(&handle);
	if (!mem) {
		fd = open_handle(&handle);
		if (fd < 0)
			return CUDA_ERROR_INVALID_VALUE;
		fake_guard(false);
		mem = fake_mem_map(fd, handle.bytes, device);
		mem->kind = FAKE_MEM_OPENED;
		mem->inode = handle.inode;
	}
	mem->open_count++;
	*out = (CUdeviceptr)(uintptr_t)mem->base;
	return CUDA_SUCCESS;
}

static CUresult ipc_close_mem_handle(CUdeviceptr at)
{
	FAKE_ENTER_CTX("ipc_close_mem_handle");
	struct fake_mem *mem =
		fake_mem_find((void *)(uintptr_t)at, 1, 1u << FAKE_MEM_OPENED);
	(void)device;
	if (!mem || mem->base != (char *)(uintptr_t)at)
		return CUDA_ERROR_INVALID_VALUE;
	if (--mem->open_count > 0)
		return CUDA_SUCCESS;
	if (fake_streams_touch(mem))
		tern_never("fake cuda: queued work will touch the memory");
	fake_mem_free(mem);
	return CUDA_SUCCESS;
}

static CUresult ipc_get_event_handle(CUipcEventHandle *out, CUevent event)
{
	FAKE_ENTER_CTX("ipc_get_event_handle");
	(void)device;
	(void)out;
	(void)event;
	return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult ipc_open_event_handle(CUevent *out, CUipcEventHandle from)
{
	FAKE_ENTER_CTX("ipc_open_event_handle");
	(void)device;
	(void)out;
	(void)from;
	return CUDA_ERROR_NOT_SUPPORTED;
}

void fake_share_entries(struct tern_cuda_api *api)
{
	api->mem_get_handle_for_address_range = mem_get_handle_for_address_range;
	api->flush_gpu_direct_rdma_writes = flush_gpu_direct_rdma_writes;
	api->ipc_get_mem_handle = ipc_get_mem_handle;
	api->ipc_open_mem_handle = ipc_open_mem_handle;
	api->ipc_close_mem_handle = ipc_close_mem_handle;
	api->ipc_get_event_handle = ipc_get_event_handle;
	api->ipc_open_event_handle = ipc_open_event_handle;
}
