/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA devices of this process, with what Tern decides by: whether its kernels run
 * there, and by which ways tensors get in and out.
 *
 * Nothing here needs a context, so asking costs no memory on a device, except for
 * tern_cuda_memory().
 */
#ifndef TERN_BASE_CUDA_DEVICES_H
#define TERN_BASE_CUDA_DEVICES_H

#include <stdint.h>

#include "base/cuda.h"

/*
 * Do our kernels run? They are built as machine code for capabilities 8.0 and 9.0 and as
 * PTX for 9.0:
 * - machine code runs on devices of its own major capability whose minor one is not
 * lower: 8.0 to 8.9, and 9.0;
 * - the driver compiles PTX for every later capability, if it knows that PTX: it must not
 *   be older than the toolkit that Tern was built with;
 * - machine code needs a driver of the toolkit's major version, or later (NVIDIA's "minor
 *   version compatibility").
 */
enum tern_cuda_code {
	TERN_CUDA_CODE_NATIVE,
	TERN_CUDA_CODE_PTX, /* compiled when it is loaded, which takes seconds once */
	TERN_CUDA_CODE_OLD_DEVICE, /* capability below 8.0: does not run */
	TERN_CUDA_CODE_OLD_DRIVER, /* does not run before the driver is updated */
};

enum tern_cuda_code tern_cuda_code(int driver_version, int major, int minor);

struct tern_cuda_device {
	CUdevice handle;
	char name[64];
	char pci[24]; /* as sysfs writes it: "0000:1b:00.0" */
	uint8_t uuid[16];
	int major, minor;   /* compute capability */
	uint64_t mem_bytes; /* of the device */
	int numa_node;      /* of the host, beside it; -1: the driver does not say */
	int multiprocessor_count;
	int copy_engine_count; /* copies at the same time, beside kernels; 0: none */
	int compute_mode;      /* CUcomputemode */
	enum tern_cuda_code code;
	bool map_host; /* kernels can read page-locked memory */
	bool ipc;      /* other processes can open its memory, and the table says how */
	bool vmm;      /* cuMemCreate and its kin */
	bool dma_buf;  /* its memory can be had as a dma-buf, and the table says how */
	bool rdma; /* network cards can reach its memory, by dma-buf or nvidia-peermem */
	unsigned rdma_flush; /* bits of CUflushGPUDirectRDMAWritesOptions */
	int rdma_order;      /* CUGPUDirectRDMAWritesOrdering: who sees what a card wrote
				without a flush */
};

/* How many there are for this process (CUDA_VISIBLE_DEVICES says which). */
CUresult tern_cuda_device_count(const struct tern_cuda_api *api, unsigned *out);

/* Number `ordinal` of them. An attribute that the driver does not know counts as missing;
 * other failures leave *out undefined. */
CUresult tern_cuda_device_get(
	const struct tern_cuda_api *api, unsigned ordinal, struct tern_cuda_device *out);

/* Memory that is free, of all that can be allocated. Makes the device's primary context
 * if this process has none, which takes time, and memory until it returns. */
CUresult tern_cuda_memory(const struct tern_cuda_api *api, CUdevice device,
	uint64_t *free_bytes, uint64_t *total_bytes);

#endif
