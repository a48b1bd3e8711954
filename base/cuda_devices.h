/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA devices of this process, with the properties by which Tern decides whether its
 * kernels run on a device and how tensors get into its memory and out of it.
 *
 * Except for tern_cuda_memory(), no function of this file needs a CUDA context, so a
 * query takes no memory of a device.
 */
#ifndef TERN_BASE_CUDA_DEVICES_H
#define TERN_BASE_CUDA_DEVICES_H

#include <stdint.h>

#include "base/cuda.h"

/*
 * Whether Tern's kernels run on a device. They are built as machine code for compute
 * capabilities 8.0 and 9.0 and as PTX (portable assembly) for 9.0:
 *
 * - machine code runs on devices with the same major capability and the same or a higher
 *   minor one: 8.0 to 8.9, and 9.0;
 * - the driver compiles PTX for every later capability, if it knows that version of PTX:
 *   the driver must not be older than the toolkit that Tern was built with;
 * - machine code needs a driver of the toolkit's major version, or later (NVIDIA's "minor
 *   version compatibility").
 */
enum tern_cuda_code {
	TERN_CUDA_CODE_NATIVE,
	/* Runs after the driver has compiled the PTX at load time, which takes seconds
	 * the first time. */
	TERN_CUDA_CODE_PTX,
	TERN_CUDA_CODE_OLD_DEVICE, /* capability below 8.0: kernels do not run */
	TERN_CUDA_CODE_OLD_DRIVER, /* kernels do not run until the driver is updated */
};

enum tern_cuda_code tern_cuda_code(int driver_version, int major, int minor);

struct tern_cuda_device {
	CUdevice handle;
	char name[64];
	char pci[24]; /* as in sysfs: "0000:1b:00.0" */
	uint8_t uuid[16];
	int major, minor;   /* compute capability */
	uint64_t mem_bytes; /* memory of the device */
	/* NUMA node of the host that is closest to the device; -1: unknown */
	int numa_node;
	int multiprocessor_count;
	/* Number of copies that can run in parallel with each other and with kernels; 0:
	 * none, or unknown. */
	int copy_engine_count;
	int compute_mode; /* CUcomputemode */
	enum tern_cuda_code code;
	bool map_host; /* kernels can read page-locked host memory */
	/* CUDA IPC: other processes can open the device's memory, and the driver has the
	 * functions for that. */
	bool ipc;
	bool vmm; /* the device has virtual memory management: cuMemCreate and so on */
	/* The device's memory can be exported as a dma-buf, and the driver has the
	 * function for that. */
	bool dma_buf;
	/* Network cards can access the device's memory, by dma-buf or nvidia-peermem. */
	bool rdma;
	unsigned rdma_flush; /* bits of CUflushGPUDirectRDMAWritesOptions */
	/* CUGPUDirectRDMAWritesOrdering: whether data that a network card wrote becomes
	 * visible without a flush: to no GPU, to this GPU, or to all GPUs. */
	int rdma_order;
};

/* Number of devices that this process may use (CUDA_VISIBLE_DEVICES limits them). */
CUresult tern_cuda_device_count(const struct tern_cuda_api *api, unsigned *out);

/* Describes device `ordinal`. If the driver does not know the attribute of an optional
 * feature, the device counts as lacking that feature (CUDA IPC is then derived from other
 * attributes, and the NUMA node is unknown). Any other failure leaves *out undefined. */
CUresult tern_cuda_device_get(
	const struct tern_cuda_api *api, unsigned ordinal, struct tern_cuda_device *out);

/* Free memory and total memory of a device. If this process has no primary context of the
 * device, the call creates one and releases it before it returns. That takes time and,
 * meanwhile, memory of the device. */
CUresult tern_cuda_memory(const struct tern_cuda_api *api, CUdevice device,
	uint64_t *free_bytes, uint64_t *total_bytes);

#endif
