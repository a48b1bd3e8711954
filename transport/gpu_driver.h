/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of struct tern_gpu, for what calls the driver: gpu.c and stager.c. */
#ifndef TERN_TRANSPORT_GPU_DRIVER_H
#define TERN_TRANSPORT_GPU_DRIVER_H

#include "base/cuda.h"
#include "transport/gpu.h"

/* What is to be done before the devices see what a network card has written. */
enum tern_gpu_flush {
	TERN_GPU_ORDERED, /* nothing */
	TERN_GPU_FLUSH_OWNER,
	TERN_GPU_FLUSH_ALL,
	TERN_GPU_UNORDERED, /* there is nothing that would do */
};

struct tern_gpu {
	const struct tern_cuda_api *api;
	CUdevice device;
	unsigned number;
	CUcontext context; /* the primary one, retained; NULL: not used yet */
	bool dma_buf, peermem;
	enum tern_gpu_flush flush;
};

/* Makes its context the thread's until tern_gpu_leave(), which follows success only. */
static inline CUresult tern_gpu_enter(const struct tern_gpu *gpu)
{
	return gpu->api->ctx_push_current(gpu->context);
}

static inline void tern_gpu_leave(const struct tern_gpu *gpu)
{
	gpu->api->ctx_pop_current(NULL);
}

#endif
