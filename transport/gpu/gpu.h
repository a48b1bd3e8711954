/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs of a domain: finding the GPU to which an address belongs, allocating GPU
 * memory, and page-locking host memory for copies. No header of the CUDA driver is
 * included here, so that other layers can be built without the CUDA toolkit; in such a
 * build no function finds a GPU, and those that need one return -ENOSYS.
 *
 * The CUDA driver is loaded at the first call that needs it. A GPU's primary context is
 * retained from its first use until the domain is freed. Every function may be called
 * from any thread, and leaves the thread's current CUDA context as it was.
 */
#ifndef TERN_TRANSPORT_GPU_GPU_H
#define TERN_TRANSPORT_GPU_GPU_H

#include <stdbool.h>
#include <stdint.h>

struct tern_domain;
struct tern_gpu;

/* Initialise and free the GPU part of a domain. -ENOMEM. */
int tern_gpus_open(struct tern_domain *domain);
void tern_gpus_close(struct tern_domain *domain);

/* Finds the GPU whose memory contains the whole range (address, bytes), bytes > 0. Errors
 * as tern_mem_wrap_cuda(). */
int tern_gpu_of_memory(struct tern_domain *domain, uint64_t address, uint64_t bytes,
	struct tern_gpu **out);

/* Finds the GPU with this device number (as CUDA numbers them in this process). -ENODEV:
 * there is no such GPU, or no driver; -ENOSYS: built without CUDA; -ENOMEM, ...: errors
 * of the driver. */
int tern_gpu_by_number(
	struct tern_domain *domain, unsigned number, struct tern_gpu **out);
int tern_gpu_number(const struct tern_gpu *gpu);
/* The GPU in use by the domain with the lowest number from `number` on; NULL: none. */
struct tern_gpu *tern_gpu_in_use(struct tern_domain *domain, unsigned number);

/* Allocates memory on the GPU. -ENOMEM, ...: errors of the driver. */
int tern_gpu_alloc(struct tern_gpu *gpu, uint64_t bytes, uint64_t *address);
/* Frees memory on the GPU. No copy from or to this memory may be in flight. */
void tern_gpu_free(struct tern_gpu *gpu, uint64_t address);
/*
 * From now on, synchronous copies into and out of the allocation at `address` have
 * completed when they return (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS), unless CUDA cannot do
 * this for the memory, such as virtual memory mappings. By default CUDA may return
 * earlier. Then a network card, or a copy in one of our streams, which do not wait for
 * other streams, could overtake a copy that the program believes to be finished.
 */
void tern_gpu_guard_copies(struct tern_gpu *gpu, uint64_t address);

/*
 * Exports the range (address, bytes) of the GPU's memory as a dma-buf, for network cards
 * (GPUDirect RDMA). The range starts at *offset of the dma-buf; the caller closes *fd.
 * -ENOTSUP: the GPU or the driver does not support dma-buf, or a page of the range may
 * also hold memory of another allocation; other errors: the driver refuses to export this
 * memory.
 */
int tern_gpu_dma_buf(struct tern_gpu *gpu, uint64_t address, uint64_t bytes, int *fd,
	uint64_t *offset);
/* True if network cards can register this GPU's memory by address, provided that the
 * kernel module nvidia-peermem is loaded. */
bool tern_gpu_has_peermem(const struct tern_gpu *gpu);
/* True if tern_gpu_settle() can make a network card's writes visible to work on this
 * GPU. */
bool tern_gpu_settles(const struct tern_gpu *gpu);
/* Makes everything that network cards have already written visible to GPU work that is
 * launched after this call. It takes some microseconds if the GPU does not order such
 * writes by itself. Only if tern_gpu_settles() is true. -EIO, -ENOTRECOVERABLE, ...:
 * errors of the driver. */
int tern_gpu_settle(struct tern_gpu *gpu);

/* Page-locks host memory, for faster copies from and to every GPU. -ENOMEM, ...: errors
 * of the driver. */
int tern_gpu_lock(struct tern_gpu *gpu, void *base, uint64_t bytes);
void tern_gpu_unlock(struct tern_gpu *gpu, void *base);

#endif
