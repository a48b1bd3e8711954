/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sharing of simulated device memory with network cards, and of memory and events with
 * other processes. A dma-buf is a duplicate of the memory's memfd. A handle contains the
 * owner's process id and the memory's fd in it, so another process with a simulated
 * driver can open the memory until the owner frees it.
 */
#include "tests/fakes/cuda/cuda_world.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define PAGE 4096u

enum handle_kind { MEMORY = 0x5eed, EVENT };

struct handle {
	enum handle_kind kind;
	pid_t pid;
	int fd;
	uint64_t at, bytes; /* address and size in the process that owns the memory */
	/* Inode of the file, since the number `fd` may be reused for another file. */
	uint64_t inode;
};

_Static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle),
	"a handle fits into what carries it");
_Static_assert(sizeof(CUipcEventHandle) == sizeof(CUipcMemHandle), "and in that");

static struct handle handle_of(enum handle_kind kind, int fd)
{
	struct handle handle = {.kind = kind, .pid = getpid(), .fd = fd};
	struct stat st;

	tern_assert(fstat(fd, &st) == 0);
	handle.inode = st.st_ino;
	return handle;
}

/* Opens the file that the handle names, if the owner's fd still is that file. */
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

static CUresult check_handle(const struct handle *handle, enum handle_kind kind)
{
	if (handle->kind != kind)
		return CUDA_ERROR_INVALID_VALUE;
	return handle->pid == getpid() && !fake_world.opts.ipc_self
		       ? CUDA_ERROR_INVALID_CONTEXT
		       : CUDA_SUCCESS;
}

/* ---- network cards ---- */

static CUresult mem_get_handle_for_address_range(void *out, CUdeviceptr at, size_t bytes,
	CUmemRangeHandleType type, unsigned long long flags)
{
	FAKE_ENTER_CTX("mem_get_handle_for_address_range");
	const struct fake_mem *mem;
	if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags || bytes == 0 ||
		(at | bytes) % PAGE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!fake_world.opts.dma_buf)
		return CUDA_ERROR_NOT_SUPPORTED;
	/* The driver accepts ranges up to the end of the last, partly used page. */
	mem = fake_mem_find((void *)(uintptr_t)at, 1, 1u << FAKE_MEM_DEVICE);
	if (!mem || mem->pooled || mem->device != device ||
		(char *)(uintptr_t)at != mem->base ||
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
	if (!(fake_world.opts.rdma_flush & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST))
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
	struct handle handle;
	(void)device;
	if (!fake_world.opts.ipc)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!mem || mem->pooled || mem->base != (char *)(uintptr_t)at)
		return CUDA_ERROR_INVALID_VALUE;
	handle = handle_of(MEMORY, mem->fd);
	handle.at = (uintptr_t)mem->base;
	handle.bytes = mem->bytes;
	memset(out, 0, sizeof(*out));
	memcpy(out, &handle, sizeof(handle));
	return CUDA_SUCCESS;
}

static struct fake_mem *opened_before(const struct handle *handle)
{
	tern_list_for_each (n, &fake_world.mems) {
		struct fake_mem *mem = tern_list_entry(n, struct fake_mem, node);

		if (mem->kind == FAKE_MEM_OPENED && mem->inode == handle->inode)
			return mem;
	}
	return NULL;
}

/* True if this process still has memory open that its owner has freed, and the owner's
 * new memory has the same addresses. */
static bool is_in_the_way(const struct handle *handle)
{
	tern_list_for_each (n, &fake_world.mems) {
		struct fake_mem *mem = tern_list_entry(n, struct fake_mem, node);

		if (mem->kind == FAKE_MEM_OPENED && mem->owner == handle->pid &&
			mem->owner_at < handle->at + handle->bytes &&
			handle->at < mem->owner_at + mem->bytes)
			return true;
	}
	return false;
}

static CUresult ipc_open_mem_handle(CUdeviceptr *out, CUipcMemHandle from, unsigned flags)
{
	FAKE_ENTER_CTX("ipc_open_mem_handle");
	struct handle handle;
	struct fake_mem *mem;
	CUresult result;
	int fd;
	memcpy(&handle, &from, sizeof(handle));
	result = check_handle(&handle, MEMORY);
	if (result || flags & ~(unsigned)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return result ? result : CUDA_ERROR_INVALID_VALUE;
	mem = opened_before(&handle);
	if (!mem) {
		if (is_in_the_way(&handle))
			return CUDA_ERROR_ALREADY_MAPPED;
		fd = open_handle(&handle);
		if (fd < 0)
			return CUDA_ERROR_INVALID_VALUE;
		mem = fake_mem_map(fd, handle.bytes, device, NULL);
		mem->kind = FAKE_MEM_OPENED;
		mem->inode = handle.inode;
		mem->owner = handle.pid;
		mem->owner_at = handle.at;
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

/* ---- events of other processes ---- */

struct fake_shared *fake_shared_new(int fd)
{
	struct fake_shared *shared = calloc(1, sizeof(*shared));

	tern_assert(shared);
	shared->ref_count = 1;
	shared->fd = fd;
	if (fd < 0) {
		shared->fd = memfd_create("fake-cuda-event", MFD_CLOEXEC);
		tern_assert(shared->fd >= 0 && ftruncate(shared->fd, PAGE) == 0);
	}
	shared->page =
		mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, shared->fd, 0);
	tern_assert(shared->page != MAP_FAILED);
	return shared;
}

struct fake_shared *fake_shared_get(struct fake_shared *shared)
{
	shared->ref_count++;
	return shared;
}

void fake_shared_put(struct fake_shared *shared)
{
	if (!shared || --shared->ref_count > 0)
		return;
	munmap(shared->page, PAGE);
	close(shared->fd);
	free(shared);
}

static CUresult ipc_get_event_handle(CUipcEventHandle *out, CUevent event_handle)
{
	FAKE_ENTER_CTX("ipc_get_event_handle");
	const struct fake_event *event = fake_event_of(event_handle);
	struct handle handle;
	(void)device;
	if (!event->shared)
		return CUDA_ERROR_INVALID_HANDLE;
	handle = handle_of(EVENT, event->shared->fd);
	memset(out, 0, sizeof(*out));
	memcpy(out, &handle, sizeof(handle));
	return CUDA_SUCCESS;
}

static CUresult ipc_open_event_handle(CUevent *out, CUipcEventHandle from)
{
	FAKE_ENTER_CTX("ipc_open_event_handle");
	struct fake_event *event;
	struct handle handle;
	CUresult result;
	int fd;
	memcpy(&handle, &from, sizeof(handle));
	result = check_handle(&handle, EVENT);
	if (result)
		return result;
	fd = open_handle(&handle);
	if (fd < 0)
		return CUDA_ERROR_INVALID_VALUE;
	event = fake_cuevent_new(device, CU_EVENT_DISABLE_TIMING);
	event->shared = fake_shared_new(fd);
	*out = (CUevent)(void *)event;
	return CUDA_SUCCESS;
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
