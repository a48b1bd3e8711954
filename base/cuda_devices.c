/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cuda_devices.h"

#include <ctype.h>
#include <string.h>

#include "base/util.h"

/* Numbers of device attributes that some versions of cuda.h since 12.0 lack, and that
 * older drivers do not know. */
#define ATTRIBUTE_IPC_EVENT    125
#define ATTRIBUTE_HOST_NUMA_ID 134

enum tern_cuda_code tern_cuda_code(int driver_version, int major, int minor)
{
	bool native = major == 8 || (major == 9 && minor == 0);

	if (major < 8)
		return TERN_CUDA_CODE_OLD_DEVICE;
	if (driver_version / 1000 < CUDA_VERSION / 1000)
		return TERN_CUDA_CODE_OLD_DRIVER;
	if (native)
		return TERN_CUDA_CODE_NATIVE;
	return driver_version >= CUDA_VERSION ? TERN_CUDA_CODE_PTX
					      : TERN_CUDA_CODE_OLD_DRIVER;
}

CUresult tern_cuda_device_count(const struct tern_cuda_api *api, unsigned *out)
{
	int count = 0;
	CUresult result = api->device_get_count(&count);

	*out = count > 0 ? (unsigned)count : 0;
	return result;
}

static int attribute(
	const struct tern_cuda_api *api, CUdevice device, int which, int otherwise)
{
	int value;

	return api->device_get_attribute(&value, (CUdevice_attribute)which, device)
		       ? otherwise
		       : value;
}

static CUresult get_identity(
	const struct tern_cuda_api *api, struct tern_cuda_device *out)
{
	CUuuid uuid;
	CUresult result = api->device_get_name(out->name, sizeof(out->name), out->handle);

	if (!result)
		result = api->device_get_pci_bus_id(
			out->pci, sizeof(out->pci), out->handle);
	if (!result)
		result = api->device_get_uuid(&uuid, out->handle);
	if (result)
		return result;
	memcpy(out->uuid, uuid.bytes, sizeof(out->uuid));
	for (char *p = out->pci; *p; p++)
		*p = (char)tolower((unsigned char)*p);
	return CUDA_SUCCESS;
}

static void get_abilities(const struct tern_cuda_api *api, struct tern_cuda_device *out)
{
	CUdevice d = out->handle;
	bool unified = attribute(api, d, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0);
	bool integrated = attribute(api, d, CU_DEVICE_ATTRIBUTE_INTEGRATED, 0);

	out->numa_node = attribute(api, d, ATTRIBUTE_HOST_NUMA_ID, -1);
	out->multiprocessor_count =
		attribute(api, d, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
	out->copy_engine_count =
		attribute(api, d, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 0);
	out->compute_mode = attribute(api, d, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0);
	out->map_host = attribute(api, d, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 0);
	/* According to the CUDA manual, the attribute for IPC events also tells whether
	 * IPC memory handles work. Older manuals, which lack the attribute, require
	 * unified addressing and a device other than Tegra. */
	out->ipc = attribute(api, d, ATTRIBUTE_IPC_EVENT, unified && !integrated) &&
		   api->ipc_get_mem_handle && api->ipc_open_mem_handle &&
		   api->ipc_close_mem_handle;
	out->vmm = attribute(
		api, d, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0);
	out->dma_buf = attribute(api, d, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0) &&
		       api->mem_get_handle_for_address_range;
	out->rdma = attribute(api, d, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 0);
	out->rdma_flush = (unsigned)attribute(
		api, d, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 0);
	out->rdma_order =
		attribute(api, d, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
			CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE);
}

CUresult tern_cuda_device_get(
	const struct tern_cuda_api *api, unsigned ordinal, struct tern_cuda_device *out)
{
	size_t bytes = 0;
	int version = 0;
	CUresult result;

	memset(out, 0, sizeof(*out));
	result = api->device_get(&out->handle, (int)ordinal);
	if (!result)
		result = api->driver_get_version(&version);
	if (!result)
		result = get_identity(api, out);
	if (!result)
		result = api->device_total_mem(&bytes, out->handle);
	if (!result)
		result = api->device_get_attribute(&out->major,
			CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, out->handle);
	if (!result)
		result = api->device_get_attribute(&out->minor,
			CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, out->handle);
	if (result)
		return result;
	out->mem_bytes = bytes;
	out->code = tern_cuda_code(version, out->major, out->minor);
	get_abilities(api, out);
	return CUDA_SUCCESS;
}

CUresult tern_cuda_memory(const struct tern_cuda_api *api, CUdevice device,
	uint64_t *free_bytes, uint64_t *total_bytes)
{
	size_t free_now = 0, total = 0;
	CUcontext context;
	CUresult result = api->primary_ctx_retain(&context, device), released;

	if (result)
		return result;
	result = api->ctx_push_current(context);
	if (!result) {
		result = api->mem_get_info(&free_now, &total);
		api->ctx_pop_current(NULL);
	}
	released = api->primary_ctx_release(device);
	*free_bytes = free_now;
	*total_bytes = total;
	return result ? result : released;
}
