/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs of a domain: which device has an address, allocation of GPU memory, and
 * page-locked host memory for copies. No header of the CUDA driver is included here, so
 * that the layers above can be built without the toolkit; in such a build every function
 * that returns a device returns -ENOSYS.
 *
 * The driver is loaded at the first call that needs it. A device's primary context is
 * retained from its first use until the domain is freed. Every function may be called
 * from any thread, and leaves the thread's current CUDA context as it was.
 */
#ifndef TERN_TRANSPORT_GPU_GPU_H
#define TERN_TRANSPORT_GPU_GPU_H

#include <stdbool.h>
#include <stdint.h>

struct tern_domain;
struct tern_gpu;

/* Called when the domain is made and freed. -ENOMEM. */
int tern_gpus_open(struct tern_domain *domain);
void tern_gpus_close(struct tern_domain *domain);

/* Finds the device that has the whole range (address, bytes), bytes > 0. Errors as
 * tern_mem_wrap_cuda(). */
int tern_gpu_of_memory(struct tern_domain *domain, uint64_t address, uint64_t bytes,
	struct tern_gpu **out);

/* Finds device `number` of this process. -ENODEV, -ENOMEM, -ENOSYS. */
int tern_gpu_by_number(
	struct tern_domain *domain, unsigned number, struct tern_gpu **out);
int tern_gpu_number(const struct tern_gpu *gpu);
/* The first device, counted from `number`, that the domain already uses; NULL: none. */
struct tern_gpu *tern_gpu_in_use(struct tern_domain *domain, unsigned number);

/* Allocates memory of the device. -ENOMEM. */
int tern_gpu_alloc(struct tern_gpu *gpu, uint64_t bytes, uint64_t *address);
/* Frees memory of the device. No copy of it may be under way. */
void tern_gpu_free(struct tern_gpu *gpu, uint64_t address);
/* Makes synchronous copies into and out of the allocation at `address` complete before
 * they return, from now on. Without this, a network card or a copy in one of our
 * streams, which do not wait for other streams, could overtake a copy that the program
 * takes for finished. */
void tern_gpu_guard_copies(struct tern_gpu *gpu, uint64_t address);

/*
 * Exports (address, bytes) of the device's memory as a dma-buf, for network cards
 * (GPUDirect RDMA). The range starts at *offset of the dma-buf; the caller closes *fd.
 * -ENOTSUP: the device or the driver has no dma-buf; other errors: the driver refuses to
 * export this memory.
 */
int tern_gpu_dma_buf(struct tern_gpu *gpu, uint64_t address, uint64_t bytes, int *fd,
	uint64_t *offset);
/* True if network cards can register its memory by address while nvidia-peermem is
 * loaded. */
bool tern_gpu_has_peermem(const struct tern_gpu *gpu);
/* True if tern_gpu_settle() can make a network card's writes visible to this device. */
bool tern_gpu_settles(const struct tern_gpu *gpu);
/* Makes everything that network cards have written visible to GPU work launched from
 * now on. It takes some microseconds if the device does not order such writes by
 * itself. Only if tern_gpu_settles(). -EIO, -ENOTRECOVERABLE, ...: errors of the
 * driver. */
int tern_gpu_settle(struct tern_gpu *gpu);

/* Page-locks memory of the host for the copies of every device. -ENOMEM. */
int tern_gpu_lock(struct tern_gpu *gpu, void *base, uint64_t bytes);
void tern_gpu_unlock(struct tern_gpu *gpu, void *base);

#endif
