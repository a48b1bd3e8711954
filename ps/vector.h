/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of parameters and gradients: buffers of a pool, in host memory or in memory
 * of the GPU that computes with them.
 */
#ifndef TERN_PS_VECTOR_H
#define TERN_PS_VECTOR_H

#include <tern/memory.h>

/* The memory in which a process keeps, sends and receives its parameters and gradients.
 * All zero: host memory. */
struct tern_vector_memory {
	enum tern_mem_kind kind;
	uint32_t cuda_device; /* TERN_MEM_CUDA: number of the device in this process */
};

/* Address of the vector's first element, for the device that computes with the vector.
 * The CPU may use it only if the vector is in host memory. */
static inline float *tern_vector(const struct tern_buf *buf)
{
	if (buf->mem && tern_mem_kind(buf->mem) == TERN_MEM_CUDA)
		return (float *)(uintptr_t)tern_buf_cuda_address(buf);
	return tern_buf_ptr(buf);
}

/* GPU memory that the pool holds, in bytes; 0 if its memory is host memory, or if the
 * pool is NULL. */
static inline uint64_t tern_vector_device_bytes(
	const struct tern_vector_memory *memory, struct tern_pool *pool)
{
	struct tern_pool_stats stats = {0};

	if (memory->kind == TERN_MEM_CUDA && pool)
		tern_pool_stats(pool, &stats);
	return stats.slab_bytes;
}

#endif
