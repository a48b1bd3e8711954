/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA devices of this process, with the properties by which Tern decides whether its
 * kernels run there and how tensors get in and out.
 *
 * Except for tern_cuda_memory(), nothing here needs a CUDA context, so asking takes no
 * memory of a device.
 */
#ifndef TERN_BASE_CUDA_DEVICES_H
#define TERN_BASE_CUDA_DEVICES_H

#include <stdint.h>

#include "base/cuda.h"

/*
 * Whether our kernels run on a device. They are built as machine code for capabilities
 * 8.0 and 9.0 and as PTX for 9.0:
 *
 * - machine code runs on devices of the same major capability whose minor one is not
 *   lower: 8.0 to 8.9, and 9.0;
 * - the driver compiles PTX for every later capability, if it knows that version of PTX:
 *   it must not be older than the toolkit that Tern was built with;
 * - machine code needs a driver of the toolkit's major version, or later (NVIDIA's "minor
 *   version compatibility").
 */
enum tern_cuda_code {
	TERN_CUDA_CODE_NATIVE,
	/* Compiled when it is loaded, which takes seconds the first time. */
	TERN_CUDA_CODE_PTX,
	TERN_CUDA_CODE_OLD_DEVICE, /* capability below 8.0: does not run */
	TERN_CUDA_CODE_OLD_DRIVER, /* does not run before the driver is updated */
};

enum tern_cuda_code tern_cuda_code(int driver_version, int major, int minor);

struct tern_cuda_device {
	CUdevice handle;
	char name[64];
	char pci[24]; /* as in sysfs: "0000:1b:00.0" */
	uint8_t uuid[16];
	int major, minor;   /* compute capability */
	uint64_t mem_bytes; /* memory of the device */
	int numa_node; /* NUMA node of the host next to it; -1: the driver does not say */
	int multiprocessor_count;
	int copy_engine_count; /* copies that can run at once, beside kernels; 0: none */
	int compute_mode;      /* CUcomputemode */
	enum tern_cuda_code code;
	bool map_host; /* kernels can read page-locked memory */
	bool ipc; /* other processes can open its memory, and the table has the calls */
	bool vmm; /* it has virtual memory management: cuMemCreate and so on */
	/* Its memory can be exported as a dma-buf, and the table has the call. */
	bool dma_buf;
	bool rdma; /* network cards can access its memory, by dma-buf or nvidia-peermem */
	unsigned rdma_flush; /* bits of CUflushGPUDirectRDMAWritesOptions */
	/* CUGPUDirectRDMAWritesOrdering: who sees a network card's writes without a
	 * flush. */
	int rdma_order;
};

/* Number of devices for this process (which CUDA_VISIBLE_DEVICES limits). */
CUresult tern_cuda_device_count(const struct tern_cuda_api *api, unsigned *out);

/* Describes device `ordinal`. An attribute that the driver does not know counts as
 * missing; other failures leave *out undefined. */
CUresult tern_cuda_device_get(
	const struct tern_cuda_api *api, unsigned ordinal, struct tern_cuda_device *out);

/* Free memory and total memory of a device. The call makes the device's primary
 * context if this process has none, which takes time, and memory until the call
 * returns. */
CUresult tern_cuda_memory(const struct tern_cuda_api *api, CUdevice device,
	uint64_t *free_bytes, uint64_t *total_bytes);

#endif
