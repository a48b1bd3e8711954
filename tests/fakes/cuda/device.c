/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices of the simulated driver and their primary contexts. A context is destroyed by
 * its last release. At that time no memory, stream, module or event of the context may
 * exist, unless the context is corrupted: then all of it is freed, since a corrupted
 * context has no other way to free anything.
 */
#include "tests/fakes/cuda/cuda_world.h"

#define STACK_MAX 16

/* The calling thread's stack of pushed contexts. */
static _Thread_local struct fake_device *stack[STACK_MAX];
static _Thread_local unsigned depth;

void fake_gpus_open(void)
{
	memset(fake_world.devices, 0, sizeof(fake_world.devices));
	for (int i = 0; i < FAKE_CUDA_MAX_DEVICES; i++)
		fake_world.devices[i].index = i;
}

void fake_contexts_forget(void)
{
	depth = 0;
}

static struct fake_device *device_of(CUdevice device)
{
	return device >= 0 && (unsigned)device < fake_world.opts.device_count
		       ? &fake_world.devices[device]
		       : NULL;
}

static CUresult init(unsigned flags)
{
	FAKE_ENTER("init");
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (fake_world.opts.device_count == 0)
		return CUDA_ERROR_NO_DEVICE;
	fake_world.inited = true;
	return CUDA_SUCCESS;
}

static CUresult driver_get_version(int *out)
{
	FAKE_ENTER("driver_get_version");
	*out = fake_world.opts.driver_version;
	return CUDA_SUCCESS;
}

#define ENTER_DEVICE(name, ordinal)                                                      \
	FAKE_ENTER(name);                                                                \
	struct fake_device *device = device_of(ordinal);                                 \
	if (!fake_world.inited)                                                          \
		return CUDA_ERROR_NOT_INITIALIZED;                                       \
	if (!device)                                                                     \
	return CUDA_ERROR_INVALID_DEVICE

static CUresult device_get_count(int *out)
{
	FAKE_ENTER("device_get_count");
	if (!fake_world.inited)
		return CUDA_ERROR_NOT_INITIALIZED;
	*out = (int)fake_world.opts.device_count;
	return CUDA_SUCCESS;
}

static CUresult device_get(CUdevice *out, int ordinal)
{
	ENTER_DEVICE("device_get", ordinal);
	*out = device->index;
	return CUDA_SUCCESS;
}

static CUresult device_get_name(char *out, int bytes, CUdevice ordinal)
{
	ENTER_DEVICE("device_get_name", ordinal);
	if (fake_world.opts.alike)
		snprintf(out, (size_t)bytes, "Simulated GPU");
	else
		snprintf(out, (size_t)bytes, "Simulated GPU %d", device->index);
	return CUDA_SUCCESS;
}

static CUresult device_get_uuid(CUuuid *out, CUdevice ordinal)
{
	ENTER_DEVICE("device_get_uuid", ordinal);
	for (int i = 0; i < (int)sizeof(out->bytes); i++)
		out->bytes[i] = (char)(16 * device->index + i);
	return CUDA_SUCCESS;
}

static CUresult device_get_pci_bus_id(char *out, int bytes, CUdevice ordinal)
{
	ENTER_DEVICE("device_get_pci_bus_id", ordinal);
	snprintf(out, (size_t)bytes, "FA4E:%02X:00.0", 0x1a + device->index);
	return CUDA_SUCCESS;
}

static CUresult device_total_mem(size_t *out, CUdevice ordinal)
{
	ENTER_DEVICE("device_total_mem", ordinal);
	*out = fake_world.opts.mem_bytes;
	return CUDA_SUCCESS;
}

/* Value of the attribute; -1: the driver does not know it. */
static int attribute_of(const struct fake_device *device, CUdevice_attribute attribute)
{
	const struct fake_cuda_opts *o = &fake_world.opts;

	switch ((int)attribute) {
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		return o->major;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		return o->minor;
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		return 8;
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		return 1024;
	case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
		return 32;
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
		return 1;
	case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
		return o->map_host;
	case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
		return o->copy_engines;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
		return o->compute_mode;
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
		return o->rdma;
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS:
		return o->rdma_flush;
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
		return o->rdma_order;
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
		return o->vmm;
	case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
		return o->old_driver ? -1 : o->dma_buf;
	case 125: /* CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED */
		return o->old_driver ? -1 : o->ipc;
	case 134: /* CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID */
		if (o->old_driver)
			return -1;
		return o->numa_node < 0 ? INT32_MAX : o->numa_node + device->index;
	default:
		return -1;
	}
}

static CUresult device_get_attribute(
	int *out, CUdevice_attribute attribute, CUdevice ordinal)
{
	ENTER_DEVICE("device_get_attribute", ordinal);
	int value = attribute_of(device, attribute);
	if (value < 0)
		return CUDA_ERROR_INVALID_VALUE;
	*out = value == INT32_MAX ? -1 : value;
	return CUDA_SUCCESS;
}

/* ---- contexts ---- */

static CUresult primary_ctx_retain(CUcontext *out, CUdevice ordinal)
{
	ENTER_DEVICE("primary_ctx_retain", ordinal);
	if (fake_world.opts.compute_mode == CU_COMPUTEMODE_PROHIBITED)
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	if (device->sticky)
		return device->sticky;
	device->retain_count++;
	*out = (CUcontext)(void *)device;
	return CUDA_SUCCESS;
}

/* Names the first open object of the device, for a message; NULL: nothing is open. */
static const char *what_is_open(const struct fake_device *device)
{
	static char text[80];

	tern_list_for_each (n, &fake_world.mems) {
		const struct fake_mem *mem = tern_list_entry(n, struct fake_mem, node);

		if (mem->device != device)
			continue;
		snprintf(text, sizeof(text), "%zu bytes of memory (kind %d)",
			(size_t)mem->bytes, (int)mem->kind);
		return text;
	}
	tern_list_for_each (n, &fake_world.streams) {
		if (tern_list_entry(n, struct fake_stream, node)->device == device)
			return "a stream";
	}
	tern_list_for_each (n, &fake_world.modules) {
		if (tern_list_entry(n, struct fake_module, node)->device == device)
			return "a module";
	}
	tern_list_for_each (n, &fake_world.events) {
		if (tern_list_entry(n, struct fake_event, node)->device == device)
			return "an event";
	}
	return NULL;
}

/* Frees everything in a corrupted context. */
static void drop_all(struct fake_device *device)
{
	tern_list_for_each_safe (n, &fake_world.events) {
		struct fake_event *event = tern_list_entry(n, struct fake_event, node);

		if (event->device == device)
			fake_event_free(event);
	}
	fake_streams_drop(device);
	fake_graph_execs_drop(device);
	fake_modules_drop(device);
	fake_mems_drop(device);
}

static CUresult primary_ctx_release(CUdevice ordinal)
{
	ENTER_DEVICE("primary_ctx_release", ordinal);
	if (device->retain_count == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (--device->retain_count > 0)
		return CUDA_SUCCESS;
	if (device->sticky)
		drop_all(device);
	fake_streams_run(device);
	if (what_is_open(device)) {
		fprintf(stderr, "fake cuda: open: %s\n", what_is_open(device));
		tern_never("fake cuda: a context ends with something open in it");
	}
	return CUDA_SUCCESS;
}

static CUresult primary_ctx_get_state(CUdevice ordinal, unsigned *flags, int *active)
{
	ENTER_DEVICE("primary_ctx_get_state", ordinal);
	*flags = device->flags;
	*active = device->retain_count > 0;
	return CUDA_SUCCESS;
}

CUresult fake_current(struct fake_device **out)
{
	struct fake_device *device = depth ? stack[depth - 1] : NULL;

	if (!fake_world.inited)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!device)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (device->retain_count == 0)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*out = device;
	return device->sticky;
}

static struct fake_device *context_of(CUcontext handle)
{
	struct fake_device *device = (struct fake_device *)(void *)handle;

	if (device < fake_world.devices ||
		device >= fake_world.devices + fake_world.opts.device_count)
		tern_never("fake cuda: not a context");
	return device;
}

static CUresult ctx_push_current(CUcontext handle)
{
	FAKE_ENTER("ctx_push_current");
	struct fake_device *device = context_of(handle);
	if (device->retain_count == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	tern_assert(depth < STACK_MAX);
	stack[depth++] = device;
	return CUDA_SUCCESS;
}

static CUresult ctx_pop_current(CUcontext *out)
{
	FAKE_ENTER("ctx_pop_current");
	if (depth == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	depth--;
	if (out)
		*out = (CUcontext)(void *)stack[depth];
	return CUDA_SUCCESS;
}

static CUresult ctx_get_current(CUcontext *out)
{
	FAKE_ENTER("ctx_get_current");
	*out = depth ? (CUcontext)(void *)stack[depth - 1] : NULL;
	return CUDA_SUCCESS;
}

static CUresult ctx_get_stream_priority_range(int *least, int *greatest)
{
	FAKE_ENTER_CTX("ctx_get_stream_priority_range");
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

void fake_device_spoil(struct fake_device *device, CUresult result)
{
	if (!device->sticky)
		device->sticky = result;
}

void fake_device_entries(struct tern_cuda_api *api)
{
	api->init = init;
	api->driver_get_version = driver_get_version;
	api->device_get_count = device_get_count;
	api->device_get = device_get;
	api->device_get_name = device_get_name;
	api->device_get_uuid = device_get_uuid;
	api->device_get_pci_bus_id = device_get_pci_bus_id;
	api->device_total_mem = device_total_mem;
	api->device_get_attribute = device_get_attribute;
	api->primary_ctx_retain = primary_ctx_retain;
	api->primary_ctx_release = primary_ctx_release;
	api->primary_ctx_get_state = primary_ctx_get_state;
	api->ctx_push_current = ctx_push_current;
	api->ctx_pop_current = ctx_pop_current;
	api->ctx_get_current = ctx_get_current;
	api->ctx_get_stream_priority_range = ctx_get_stream_priority_range;
}
