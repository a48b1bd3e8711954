/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See info_cuda.h. Devices are queried through the same table of driver functions as in
 * training. sysfs adds what the driver does not report: the NUMA node, if the driver is
 * old, and whether nvidia-peermem is loaded.
 */
#include "tools/info_cuda.h"

#include <stdio.h>

#include "tern-config.h"
#include "tools/info_json.h"

#if TERN_HAVE_CUDA
#include <string.h>
#include <unistd.h>

#include "base/cuda_devices.h"
#include "base/util.h"

#define GIB (1024.0 * 1024.0 * 1024.0)

static json_t *version_text(int version)
{
	return json_sprintf("%d.%d", version / 1000, version % 1000 / 10);
}

static json_t *uuid_text(const uint8_t uuid[16])
{
	char text[64] = "GPU-";

	for (int i = 0; i < 16; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%02x",
			i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
	return json_string(text);
}

static int numa_node(const struct tern_cuda_device *device)
{
	char path[96];
	int node = -1;
	FILE *f;

	if (device->numa_node >= 0)
		return device->numa_node;
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", device->pci);
	f = fopen(path, "re");
	if (!f)
		return -1;
	if (fscanf(f, "%d", &node) != 1)
		node = -1;
	fclose(f);
	return node;
}

static bool has_peermem(void)
{
	return access("/sys/module/nvidia_peermem", F_OK) == 0;
}

static const char *kernels_name(enum tern_cuda_code code)
{
	switch (code) {
	case TERN_CUDA_CODE_NATIVE:
		return "native";
	case TERN_CUDA_CODE_PTX:
		return "ptx";
	case TERN_CUDA_CODE_OLD_DEVICE:
	case TERN_CUDA_CODE_OLD_DRIVER:
		break;
	}
	return "none";
}

static const char *flush_name(unsigned options)
{
	bool host = options & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST;
	bool stream = options & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_MEMOPS;

	return host && stream ? "host,stream"
	       : host         ? "host"
	       : stream       ? "stream"
			      : "none";
}

static const char *order_name(int order)
{
	return order >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES ? "all"
	       : order >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER     ? "owner"
								       : "none";
}

static json_t *describe_transfers(const struct tern_cuda_device *device)
{
	return json_pack("{si sb sb sb sb sb ss ss}", "copy_engines",
		device->copy_engine_count, "map_host", device->map_host, "ipc",
		device->ipc, "vmm", device->vmm, "gpudirect_rdma", device->rdma,
		"dma_buf", device->dma_buf, "rdma_flush", flush_name(device->rdma_flush),
		"rdma_order", order_name(device->rdma_order));
}

/* ---- peculiarities of a device ("differences") ---- */

static void differ_by_code(
	const struct tern_cuda_device *device, int driver_version, json_t *out)
{
	switch (device->code) {
	case TERN_CUDA_CODE_NATIVE:
		break;
	case TERN_CUDA_CODE_PTX:
		info_say(out,
			"kernels are compiled by the driver when they are first used");
		break;
	case TERN_CUDA_CODE_OLD_DEVICE:
		info_say(out,
			"no kernels: its capability is %d.%d; 8.0 or later is needed",
			device->major, device->minor);
		break;
	case TERN_CUDA_CODE_OLD_DRIVER:
		info_say(out,
			"no kernels: the driver is for CUDA %d.%d, and this tern was "
			"built with %d.%d",
			driver_version / 1000, driver_version % 1000 / 10,
			CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
		break;
	}
}

static void differ_by_mode(const struct tern_cuda_device *device, json_t *out)
{
	if (device->compute_mode == CU_COMPUTEMODE_PROHIBITED)
		info_say(out, "compute mode is prohibited: no process can use it");
	else if (device->compute_mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS)
		info_say(out, "compute mode is exclusive: one process at a time");
}

static void differ_by_transfers(
	const struct tern_cuda_device *device, bool peermem, json_t *out)
{
	if (!device->rdma)
		info_say(out, "the GPU has no GPUDirect RDMA: its tensors are staged in "
			      "page-locked memory");
	else if (!device->dma_buf && !peermem)
		info_say(out, "neither dma-buf nor nvidia-peermem: tensors are staged in "
			      "page-locked memory");
	if (!device->ipc)
		info_say(
			out, "no IPC: tensors between processes of this host are staged");
	if (device->copy_engine_count < 2)
		info_say(out, "copies in both directions take turns: copy engines: %d",
			device->copy_engine_count);
}

/* ---- description of the devices ---- */

static void set_memory_free(const struct tern_cuda_api *api,
	const struct tern_cuda_device *device, json_t *json, json_t *differences)
{
	uint64_t free_bytes = 0, total = 0;
	char text[160];
	CUresult result = tern_cuda_memory(api, device->handle, &free_bytes, &total);

	json_object_set_new(json, "memory_free_bytes",
		json_integer(result ? -1 : (json_int_t)free_bytes));
	if (result)
		info_say(differences, "no context can be made: %s",
			tern_cuda_text(api, result, text, sizeof(text)));
}

static json_t *describe_device(const struct tern_cuda_api *api,
	const struct tern_cuda_device *device, int driver_version, bool peermem)
{
	json_t *differences = json_array();
	json_t *json = json_pack("{ss so ss si so sI si ss so}", "name", device->name,
		"uuid", uuid_text(device->uuid), "pci", device->pci, "numa_node",
		numa_node(device), "capability",
		json_sprintf("%d.%d", device->major, device->minor), "memory_bytes",
		(json_int_t)device->mem_bytes, "multiprocessors",
		device->multiprocessor_count, "kernels", kernels_name(device->code),
		"transfers", describe_transfers(device));

	differ_by_code(device, driver_version, differences);
	differ_by_mode(device, differences);
	differ_by_transfers(device, peermem, differences);
	set_memory_free(api, device, json, differences);
	json_object_set_new(json, "differences", differences);
	return json;
}

/* Describes device `n`. A device that does not answer is listed too, so that the
 * following devices keep their numbers. */
static json_t *describe_nth(
	const struct tern_cuda_api *api, unsigned n, int driver_version, bool peermem)
{
	struct tern_cuda_device device;
	char text[160];
	CUresult result = tern_cuda_device_get(api, n, &device);

	if (result)
		return json_pack("{ss s[o]}", "name", "does not answer", "differences",
			json_sprintf("it does not answer: %s",
				tern_cuda_text(api, result, text, sizeof(text))));
	return describe_device(api, &device, driver_version, peermem);
}

static json_t *describe_all(const struct tern_cuda_api *api)
{
	json_t *devices = json_array();
	bool peermem = has_peermem();
	unsigned count = 0;
	int version = 0;

	api->driver_get_version(&version);
	tern_cuda_device_count(api, &count);
	for (unsigned i = 0; i < count; i++)
		json_array_append_new(devices, describe_nth(api, i, version, peermem));
	return json_pack("{so so sb so}", "driver", version_text(version), "toolkit",
		version_text(CUDA_VERSION), "peermem", peermem, "devices", devices);
}

json_t *info_cuda(const struct tern_cuda_api *api)
{
	const char *why = NULL;

	if (!api && tern_cuda_load(&api, &why))
		return json_pack("{ss}", "why", why);
	return describe_all(api);
}

/* ---- output as text ---- */

static double gib_of(const json_t *object, const char *name)
{
	return (double)json_integer_value(json_object_get(object, name)) / GIB;
}

static void print_transfers(json_t *transfers)
{
	const char *key;
	json_t *value;
	int n = 0;

	json_object_foreach(transfers, key, value)
	{
		if (n++ % 4 == 0)
			printf("%s    %-20s", n > 1 ? "\n" : "",
				n > 1 ? "" : "transfers");
		printf(" %s=", key);
		if (json_is_integer(value))
			printf("%lld", (long long)json_integer_value(value));
		else
			fputs(json_is_string(value)   ? json_string_value(value)
				: json_is_true(value) ? "yes"
						      : "no",
				stdout);
	}
	putchar('\n');
}

static void print_known(const json_t *device)
{
	long long node = json_integer_value(json_object_get(device, "numa_node"));

	printf(", capability %s, %lld multiprocessors, %.1f GiB",
		info_text(device, "capability"),
		(long long)json_integer_value(json_object_get(device, "multiprocessors")),
		gib_of(device, "memory_bytes"));
	if (gib_of(device, "memory_free_bytes") >= 0)
		printf(" (%.1f GiB free)", gib_of(device, "memory_free_bytes"));
	printf("\n    %-20s %s", "pci", info_text(device, "pci"));
	if (node >= 0)
		printf(", NUMA node %lld", node);
	printf(", %s\n", info_text(device, "uuid"));
	printf("    %-20s %s\n", "kernels", info_text(device, "kernels"));
	print_transfers(json_object_get(device, "transfers"));
}

static void print_device(size_t number, const json_t *device)
{
	char title[32];
	json_t *one;
	size_t i;

	snprintf(title, sizeof(title), "device %zu", number);
	printf("  %-22s %s", title, info_text(device, "name"));
	if (json_object_get(device, "capability"))
		print_known(device);
	else
		putchar('\n');
	json_array_foreach(json_object_get(device, "differences"), i, one)
	{
		printf("    %-20s %s\n", i ? "" : "differs", json_string_value(one));
	}
}

static void print_found(const json_t *cuda)
{
	json_t *one;
	size_t i;

	printf("  %-22s for CUDA %s; this tern was built with CUDA %s\n", "driver",
		info_text(cuda, "driver"), info_text(cuda, "toolkit"));
	printf("  %-22s %s\n", "nvidia-peermem",
		json_is_true(json_object_get(cuda, "peermem")) ? "loaded" : "not loaded");
	json_array_foreach(json_object_get(cuda, "devices"), i, one)
	{
		print_device(i, one);
	}
}

#else

json_t *info_cuda(const struct tern_cuda_api *api)
{
	(void)api;
	return json_pack("{ss}", "why", "this tern was built without CUDA");
}

static void print_found(const json_t *cuda)
{
	(void)cuda;
}

#endif

void info_cuda_print(const json_t *cuda)
{
	const char *why = json_string_value(json_object_get(cuda, "why"));

	puts("cuda");
	if (why)
		printf("  %-22s %s\n", "not here", why);
	else
		print_found(cuda);
}
