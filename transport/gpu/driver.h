/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of struct tern_gpu, for what calls the driver: gpu.c and stager.c. */
#ifndef TERN_TRANSPORT_GPU_DRIVER_H
#define TERN_TRANSPORT_GPU_DRIVER_H

#include "base/cuda.h"
#include "transport/gpu/gpu.h"

/* What it takes to make data that a network card wrote visible to GPU work. */
enum tern_gpu_flush {
	TERN_GPU_ORDERED, /* nothing: the device orders such writes */
	TERN_GPU_FLUSH_OWNER,
	TERN_GPU_FLUSH_ALL,
	TERN_GPU_UNORDERED, /* nothing helps: such writes may stay invisible */
};

struct tern_gpu {
	const struct tern_cuda_api *api;
	CUdevice device;
	unsigned number;
	CUcontext context; /* retained primary context; NULL: not used yet */
	bool dma_buf, peermem;
	enum tern_gpu_flush flush;
};

/* Makes the GPU's context current on this thread. On success, tern_gpu_leave() must
 * follow. */
static inline CUresult tern_gpu_enter(const struct tern_gpu *gpu)
{
	return gpu->api->ctx_push_current(gpu->context);
}

static inline void tern_gpu_leave(const struct tern_gpu *gpu)
{
	gpu->api->ctx_pop_current(NULL);
}

#endif
