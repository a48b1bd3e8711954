/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs; see gpu.h. Only primary contexts are used: all libraries of a process share them,
 * while a context made by another library could be destroyed while this library uses it.
 *
 * The CUDA driver answers the question which GPU an address belongs to only on threads
 * that have a current context. The calling thread may have none, and the GPU is not known
 * yet. So the question is asked in the primary context of each GPU that this process
 * uses, until one answers: unified addressing makes the answer the same in all of them.
 *
 * The GPUs are in a table of GPU_MAX entries; an entry in use has a context. The table
 * never moves, so that pointers into it stay valid.
 */
#include "transport/gpu/driver.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/env.h"
#include "transport/domain.h"

#define GPU_MAX 64u

struct tern_gpus {
	/* Protects all members below. It is held while a GPU is looked up or brought into
	 * use, also during the driver calls that this needs. Calls that get a struct
	 * tern_gpu do not take it. */
	pthread_mutex_t lock;
	const struct tern_cuda_api *api; /* NULL: the CUDA driver is not loaded yet */
	unsigned count;
	struct tern_gpu gpus[GPU_MAX];
};

int tern_gpus_open(struct tern_domain *domain)
{
	domain->gpus = calloc(1, sizeof(*domain->gpus));
	if (!domain->gpus)
		return -ENOMEM;
	pthread_mutex_init(&domain->gpus->lock, NULL);
	return 0;
}

void tern_gpus_close(struct tern_domain *domain)
{
	struct tern_gpus *gpus = domain->gpus;

	if (!gpus)
		return;
	for (unsigned i = 0; i < GPU_MAX; i++) {
		if (gpus->gpus[i].context)
			gpus->api->primary_ctx_release(gpus->gpus[i].device);
	}
	pthread_mutex_destroy(&gpus->lock);
	free(gpus);
	domain->gpus = NULL;
}

/* ---- the driver ---- */

static int complain(const struct tern_cuda_api *api, const char *call, CUresult result)
{
	char text[160];

	tern_log(tern_env_system(), TERN_LOG_WARN, "GPU memory: %s: %s", call,
		tern_cuda_text(api, result, text, sizeof(text)));
	return tern_cuda_status(result);
}

static int load(const struct tern_domain_hooks *hooks, const struct tern_cuda_api **out)
{
	const char *why = "";
	CUresult result;
	int r;

	if (hooks->cuda_api) {
		*out = hooks->cuda_api;
		result = (*out)->init(0);
		return result ? complain(*out, "cuInit", result) : 0;
	}
	r = tern_cuda_load(out, &why);
	if (r)
		tern_log(tern_env_system(), TERN_LOG_WARN, "GPU memory: %s", why);
	/* If the CUDA driver is missing or too old, tern_cuda_load() returns -ENOSYS.
	 * Return -ENODEV, because -ENOSYS would mean that this library was built without
	 * CUDA. */
	return r == -ENOSYS ? -ENODEV : r;
}

/* Loads the CUDA driver unless it is loaded already. The caller holds the lock. */
static int need_driver(struct tern_domain *domain)
{
	struct tern_gpus *gpus = domain->gpus;
	const struct tern_cuda_api *api;
	CUresult result;
	int count = 0, r;

	if (gpus->api)
		return 0;
	r = load(&domain->hooks, &api);
	if (r)
		return r;
	result = api->device_get_count(&count);
	if (result)
		return complain(api, "cuDeviceGetCount", result);
	gpus->count = TERN_MIN((unsigned)count, GPU_MAX);
	gpus->api = api;
	return 0;
}

static int attribute(const struct tern_gpu *gpu, CUdevice_attribute what)
{
	int value = 0;

	/* Older drivers do not know every attribute: an unknown attribute counts as 0. */
	return gpu->api->device_get_attribute(&value, what, gpu->device) ? 0 : value;
}

/* Decides how writes of network cards are made visible: to this GPU only, or to all GPUs
 * if there are several, since the others may read this GPU's memory. */
static enum tern_gpu_flush flush_of(const struct tern_gpu *gpu, unsigned count)
{
	int order = attribute(gpu, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
	int options =
		attribute(gpu, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
	bool others = count > 1;

	if (order >= (others ? CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES
			     : CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER))
		return TERN_GPU_ORDERED;
	if (!(options & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) ||
		!gpu->api->flush_gpu_direct_rdma_writes)
		return TERN_GPU_UNORDERED;
	return others ? TERN_GPU_FLUSH_ALL : TERN_GPU_FLUSH_OWNER;
}

static void ask_for_cards(struct tern_gpu *gpu, unsigned count)
{
	gpu->dma_buf = gpu->api->mem_get_handle_for_address_range &&
		       attribute(gpu, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
	gpu->peermem = attribute(gpu, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
	gpu->flush = flush_of(gpu, count);
}

/* Brings GPU `number` into use: retains its primary context. The caller holds the
 * lock. */
static int need_gpu(struct tern_gpus *gpus, unsigned number, struct tern_gpu **out)
{
	struct tern_gpu *gpu = &gpus->gpus[number];
	CUresult result = CUDA_SUCCESS;

	if (!gpu->context) {
		gpu->api = gpus->api;
		gpu->number = number;
		result = gpus->api->device_get(&gpu->device, (int)number);
		if (!result)
			result =
				gpus->api->primary_ctx_retain(&gpu->context, gpu->device);
		if (result)
			gpu->context = NULL;
		else
			ask_for_cards(gpu, gpus->count);
	}
	*out = gpu;
	return result ? complain(gpus->api, "cuDevicePrimaryCtxRetain", result) : 0;
}

int tern_gpu_by_number(struct tern_domain *domain, unsigned number, struct tern_gpu **out)
{
	struct tern_gpus *gpus = domain->gpus;
	int r;

	pthread_mutex_lock(&gpus->lock);
	r = need_driver(domain);
	if (!r && number >= gpus->count)
		r = -ENODEV;
	if (!r)
		r = need_gpu(gpus, number, out);
	pthread_mutex_unlock(&gpus->lock);
	return r;
}

int tern_gpu_number(const struct tern_gpu *gpu)
{
	return (int)gpu->number;
}

struct tern_gpu *tern_gpu_in_use(struct tern_domain *domain, unsigned number)
{
	struct tern_gpus *gpus = domain->gpus;
	struct tern_gpu *gpu = NULL;

	pthread_mutex_lock(&gpus->lock);
	for (; number < GPU_MAX && !gpu; number++)
		gpu = gpus->gpus[number].context ? &gpus->gpus[number] : NULL;
	pthread_mutex_unlock(&gpus->lock);
	return gpu;
}

/* ---- whose memory ---- */

/* The driver's attributes of the allocation that contains an address. */
struct owner {
	unsigned type; /* a CUmemorytype */
	int number;
	/* NULL: the memory has no single context (CUDA memory pools, virtual memory
	 * mappings). */
	CUcontext context;
};

static CUresult ask(
	const struct tern_cuda_api *api, CUdeviceptr address, struct owner *out)
{
	CUresult result = api->pointer_get_attribute(
		&out->type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);

	if (!result)
		result = api->pointer_get_attribute(
			&out->number, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
	if (result)
		return result;
	result = api->pointer_get_attribute(
		&out->context, CU_POINTER_ATTRIBUTE_CONTEXT, address);
	/* Drivers return this error for memory of cuMemAllocAsync() and cuMemCreate(). */
	if (result == CUDA_ERROR_INVALID_VALUE) {
		out->context = NULL;
		return CUDA_SUCCESS;
	}
	return result;
}

static CUresult ask_both_ends(const struct tern_cuda_api *api, CUdeviceptr address,
	uint64_t bytes, struct owner *out)
{
	struct owner last = {0};
	CUresult result = ask(api, address, out);

	if (!result)
		result = ask(api, address + bytes - 1, &last);
	if (!result && (last.type != out->type || last.number != out->number ||
			       last.context != out->context))
		result = CUDA_ERROR_INVALID_VALUE;
	return result;
}

/* Asks the driver which GPU owns the range, in the context of GPU `number`. Fails if this
 * process does not use that GPU. */
static CUresult ask_in(const struct tern_cuda_api *api, unsigned number,
	CUdeviceptr address, uint64_t bytes, struct owner *out)
{
	CUcontext context;
	CUdevice device;
	unsigned flags;
	int active = 0;
	CUresult result = api->device_get(&device, (int)number);

	if (!result)
		result = api->primary_ctx_get_state(device, &flags, &active);
	if (!result && !active)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		result = api->primary_ctx_retain(&context, device);
	if (result)
		return result;
	result = api->ctx_push_current(context);
	if (!result) {
		result = ask_both_ends(api, address, bytes, out);
		api->ctx_pop_current(NULL);
	}
	api->primary_ctx_release(device);
	return result;
}

/* Finds the GPU that owns the range. The caller holds the lock. */
static int find_owner(
	struct tern_gpus *gpus, CUdeviceptr address, uint64_t bytes, struct owner *out)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	for (unsigned i = 0; i < gpus->count && result; i++) {
		result = ask_in(gpus->api, i, address, bytes, out);
		if (tern_cuda_is_sticky(result))
			return tern_cuda_status(result);
	}
	if (result || out->type != CU_MEMORYTYPE_DEVICE || out->number < 0 ||
		(unsigned)out->number >= gpus->count)
		return -EINVAL;
	return 0;
}

int tern_gpu_of_memory(struct tern_domain *domain, uint64_t address, uint64_t bytes,
	struct tern_gpu **out)
{
	struct tern_gpus *gpus = domain->gpus;
	struct owner owner = {0};
	int r;

	if (!address || !bytes || bytes > UINT64_MAX - address)
		return -EINVAL;
	pthread_mutex_lock(&gpus->lock);
	r = need_driver(domain);
	if (!r)
		r = find_owner(gpus, address, bytes, &owner);
	if (!r)
		r = need_gpu(gpus, (unsigned)owner.number, out);
	if (!r && owner.context && owner.context != (*out)->context)
		r = -EINVAL;
	pthread_mutex_unlock(&gpus->lock);
	return r;
}

/* ---- memory ---- */

int tern_gpu_alloc(struct tern_gpu *gpu, uint64_t bytes, uint64_t *address)
{
	CUdeviceptr at = 0;
	CUresult result = tern_gpu_enter(gpu);

	if (!result) {
		result = gpu->api->mem_alloc(&at, bytes);
		tern_gpu_leave(gpu);
	}
	*address = at;
	return result ? complain(gpu->api, "cuMemAlloc", result) : 0;
}

void tern_gpu_free(struct tern_gpu *gpu, uint64_t address)
{
	if (tern_gpu_enter(gpu))
		return;
	gpu->api->mem_free(address);
	tern_gpu_leave(gpu);
}

/* The attribute cannot be set for some memory, such as virtual memory mappings. For such
 * memory the user must synchronize before sending, as the documentation requires. */
void tern_gpu_guard_copies(struct tern_gpu *gpu, uint64_t address)
{
	unsigned on = 1;

	if (tern_gpu_enter(gpu))
		return;
	gpu->api->pointer_set_attribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address);
	tern_gpu_leave(gpu);
}

int tern_gpu_lock(struct tern_gpu *gpu, void *base, uint64_t bytes)
{
	CUresult result = tern_gpu_enter(gpu);

	if (!result) {
		result = gpu->api->mem_host_register(
			base, bytes, CU_MEMHOSTREGISTER_PORTABLE);
		tern_gpu_leave(gpu);
	}
	return result ? complain(gpu->api, "cuMemHostRegister", result) : 0;
}

void tern_gpu_unlock(struct tern_gpu *gpu, void *base)
{
	if (tern_gpu_enter(gpu))
		return;
	gpu->api->mem_host_unregister(base);
	tern_gpu_leave(gpu);
}

/* ---- network cards ---- */

/* Exports whole pages: from the first page of the allocation to the last page of the
 * range. If the first or the last of these pages may also hold memory of another
 * allocation, which a network card must not access, nothing is exported. */
static CUresult export(
	struct tern_gpu *gpu, uint64_t address, uint64_t bytes, int *fd, uint64_t *offset)
{
	uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t end = tern_align_up(address + bytes, page_bytes);
	CUdeviceptr start;
	size_t allocated;
	CUresult result = gpu->api->mem_get_address_range(&start, &allocated, address);

	if (result)
		return result;
	if (start % page_bytes || end > start + allocated)
		return CUDA_ERROR_NOT_SUPPORTED;
	*offset = address - start;
	return gpu->api->mem_get_handle_for_address_range(
		fd, start, end - start, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
}

int tern_gpu_dma_buf(
	struct tern_gpu *gpu, uint64_t address, uint64_t bytes, int *fd, uint64_t *offset)
{
	CUresult result;

	if (!gpu->dma_buf)
		return -ENOTSUP;
	result = tern_gpu_enter(gpu);
	if (!result) {
		result = export(gpu, address, bytes, fd, offset);
		tern_gpu_leave(gpu);
	}
	return tern_cuda_status(result);
}

bool tern_gpu_has_peermem(const struct tern_gpu *gpu)
{
	return gpu->peermem;
}

bool tern_gpu_settles(const struct tern_gpu *gpu)
{
	return gpu->flush != TERN_GPU_UNORDERED;
}

int tern_gpu_settle(struct tern_gpu *gpu)
{
	CUresult result;

	if (gpu->flush == TERN_GPU_ORDERED)
		return 0;
	result = tern_gpu_enter(gpu);
	if (!result) {
		result = gpu->api->flush_gpu_direct_rdma_writes(
			CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
			gpu->flush == TERN_GPU_FLUSH_ALL
				? CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES
				: CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
		tern_gpu_leave(gpu);
	}
	return result ? complain(gpu->api, "cuFlushGPUDirectRDMAWrites", result) : 0;
}
