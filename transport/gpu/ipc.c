/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA IPC; see ipc.h. If the driver refuses to share some memory, the tensor is
 * transferred in another way, so no refusal is logged as a failure.
 *
 * Data from a peer is trusted only as far as the driver confirms it: the handle must
 * open, and the range must lie inside the opened allocation.
 */
#include "transport/gpu/ipc.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "transport/gpu/driver.h"

_Static_assert(
	sizeof(CUipcMemHandle) == sizeof(((struct tern_ipc_handle *)0)->allocation),
	"a handle fits into what carries it");

bool tern_ipc_is_built(void)
{
	return true;
}

/* ---- the owner ---- */

static bool can_share(const struct tern_cuda_api *api)
{
	return api->ipc_get_mem_handle && api->ipc_open_mem_handle &&
	       api->ipc_close_mem_handle;
}

/* Makes the handle of a range that lies in one allocation. Must be called while the GPU's
 * CUDA context is current. */
static CUresult describe(const struct tern_cuda_api *api, uint64_t address,
	uint64_t bytes, struct tern_ipc_handle *out)
{
	CUipcMemHandle handle;
	CUdeviceptr base = 0;
	size_t size = 0;
	CUresult result = api->mem_get_address_range(&base, &size, address);

	/* A handle describes one allocation; a range that spans several has no handle. */
	if (!result && bytes > size - (address - base))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		result = api->ipc_get_mem_handle(&handle, base);
	if (result)
		return result;
	*out = (struct tern_ipc_handle){
		.offset = address - base, .bytes = bytes, .address = address};
	memcpy(out->allocation, &handle, sizeof(handle));
	return CUDA_SUCCESS;
}

int tern_ipc_export(const struct tern_gpu *gpu, uint64_t address, uint64_t bytes,
	struct tern_ipc_handle *out)
{
	CUresult result;

	if (!can_share(gpu->api) || tern_gpu_enter(gpu))
		return -ENOTSUP;
	result = describe(gpu->api, address, bytes, out);
	tern_gpu_leave(gpu);
	return result ? -ENOTSUP : 0;
}

/* ---- the reader ---- */

static bool lies_inside(const struct tern_ipc_handle *handle, uint64_t room)
{
	return handle->offset <= room && handle->bytes <= room - handle->offset;
}

/* Opens a peer's handle, and checks that its range lies in the opened allocation. Must be
 * called while the GPU's CUDA context is current. */
static CUresult open_there(const struct tern_cuda_api *api,
	const struct tern_ipc_handle *handle, CUdeviceptr *opened)
{
	CUipcMemHandle allocation;
	CUdeviceptr base = 0;
	size_t size = 0;
	CUresult result;

	memcpy(&allocation, handle->allocation, sizeof(allocation));
	result = api->ipc_open_mem_handle(
		opened, allocation, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	if (result)
		return result;
	result = api->mem_get_address_range(&base, &size, *opened);
	if (!result && !lies_inside(handle, size - (*opened - base)))
		result = CUDA_ERROR_INVALID_VALUE;
	if (result)
		api->ipc_close_mem_handle(*opened);
	return result;
}

static int open_on(struct tern_gpu *gpu, const struct tern_ipc_handle *handle,
	struct tern_ipc_mapping *out)
{
	CUdeviceptr opened = 0;
	CUresult result;

	if (!can_share(gpu->api) || tern_gpu_enter(gpu))
		return -ENOTSUP;
	result = open_there(gpu->api, handle, &opened);
	tern_gpu_leave(gpu);
	if (result)
		return result == CUDA_ERROR_ALREADY_MAPPED ? -EBUSY : -ENOTSUP;
	*out = (struct tern_ipc_mapping){.gpu = gpu,
		.address = opened + handle->offset,
		.bytes = handle->bytes,
		.opened = opened};
	return 0;
}

/* Uses the address as it is, without opening the handle: unified addressing makes it
 * valid in every context of the process. */
static int take_address(struct tern_domain *domain, const struct tern_ipc_handle *handle,
	struct tern_ipc_mapping *out)
{
	*out = (struct tern_ipc_mapping){
		.address = handle->address, .bytes = handle->bytes};
	return tern_gpu_of_memory(domain, handle->address, handle->bytes, &out->gpu)
		       ? -ENOTSUP
		       : 0;
}

int tern_ipc_open(struct tern_domain *domain, const struct tern_ipc_handle *handle,
	bool own_process, struct tern_ipc_mapping *out)
{
	struct tern_gpu *gpu = tern_gpu_in_use(domain, 0);
	int r = -ENODEV;

	if (!handle->bytes)
		return -ENOTSUP;
	if (own_process)
		return gpu ? take_address(domain, handle, out) : -ENODEV;
	while (gpu) {
		int here = open_on(gpu, handle, out);

		if (here == 0)
			return 0;
		if (r != -EBUSY)
			r = here;
		gpu = tern_gpu_in_use(domain, (unsigned)tern_gpu_number(gpu) + 1);
	}
	return r;
}

void tern_ipc_close(struct tern_ipc_mapping *mapping)
{
	if (!mapping->opened || tern_gpu_enter(mapping->gpu))
		return;
	mapping->gpu->api->ipc_close_mem_handle(mapping->opened);
	tern_gpu_leave(mapping->gpu);
}
