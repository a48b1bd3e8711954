/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of struct tern_gpu, for the files that call the CUDA driver. */
#ifndef TERN_TRANSPORT_GPU_DRIVER_H
#define TERN_TRANSPORT_GPU_DRIVER_H

#include "base/cuda.h"
#include "transport/gpu/gpu.h"

/* What is needed to make data that a network card wrote visible to GPU work. */
enum tern_gpu_flush {
	TERN_GPU_ORDERED, /* nothing: the GPU orders such writes itself */
	TERN_GPU_FLUSH_OWNER,
	TERN_GPU_FLUSH_ALL,
	TERN_GPU_UNORDERED, /* nothing works: such writes may stay invisible */
};

struct tern_gpu {
	const struct tern_cuda_api *api;
	CUdevice device;
	unsigned number;
	/* Retained primary context; NULL: this domain does not use the GPU yet. */
	CUcontext context;
	bool dma_buf, peermem;
	enum tern_gpu_flush flush;
};

/* Makes the GPU's CUDA context current on the calling thread. If it succeeds, the caller
 * must call tern_gpu_leave() afterwards. */
static inline CUresult tern_gpu_enter(const struct tern_gpu *gpu)
{
	return gpu->api->ctx_push_current(gpu->context);
}

static inline void tern_gpu_leave(const struct tern_gpu *gpu)
{
	gpu->api->ctx_pop_current(NULL);
}

#endif
