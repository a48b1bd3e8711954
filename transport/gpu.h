/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs of a domain: whose memory an address is, memory of theirs, and memory of the
 * host that their copies reach without the CPU (page-locked). Nothing of the driver's
 * headers is in here, so that whoever moves tensors can be built without the toolkit; in
 * such a build every call that gives a device says -ENOSYS.
 *
 * The driver is loaded at the first call that needs it, and a device's primary context is
 * kept from its first use until the domain goes. Everything here may be called from any
 * thread, and leaves the thread's current context as it was.
 */
#ifndef TERN_TRANSPORT_GPU_H
#define TERN_TRANSPORT_GPU_H

#include <stdbool.h>
#include <stdint.h>

struct tern_domain;
struct tern_gpu;

/* At the birth and the end of the domain. -ENOMEM. */
int tern_gpus_open(struct tern_domain *domain);
void tern_gpus_close(struct tern_domain *domain);

/* The device that has all of (address, bytes), bytes > 0. Errors as of
 * tern_mem_wrap_cuda(). */
int tern_gpu_of_memory(struct tern_domain *domain, uint64_t address, uint64_t bytes,
	struct tern_gpu **out);

/* Device `number` of this process. -ENODEV, -ENOMEM, -ENOSYS. */
int tern_gpu_by_number(
	struct tern_domain *domain, unsigned number, struct tern_gpu **out);
int tern_gpu_number(const struct tern_gpu *gpu);
/* The first device from `number` on that the domain uses already; NULL: none. */
struct tern_gpu *tern_gpu_in_use(struct tern_domain *domain, unsigned number);

/* Memory of the device. -ENOMEM. */
int tern_gpu_alloc(struct tern_gpu *gpu, uint64_t bytes, uint64_t *address);
/* The device must not be about to touch it. */
void tern_gpu_free(struct tern_gpu *gpu, uint64_t address);
/* From now on copies into and out of the allocation at `address` that are said to be
 * done are done: neither a card that sends from it overtakes them, nor do copies in
 * streams of our own, which wait for nobody else's. */
void tern_gpu_guard_copies(struct tern_gpu *gpu, uint64_t address);

/*
 * What network cards need (GPUDirect RDMA).
 *
 * A dma-buf that has (address, bytes) of the device's memory from *offset on; the caller
 * closes *fd. -ENOTSUP: the device or the driver has none; else what the driver says, of
 * memory that it does not export.
 */
int tern_gpu_dma_buf(struct tern_gpu *gpu, uint64_t address, uint64_t bytes, int *fd,
	uint64_t *offset);
/* Can cards have its memory by address, where nvidia-peermem is loaded? */
bool tern_gpu_has_peermem(const struct tern_gpu *gpu);
/* Can it be brought about that the devices see what a card has written? */
bool tern_gpu_settles(const struct tern_gpu *gpu);
/* Brings it about for all that has been written: work that is launched from now on sees
 * it. Takes some microseconds where the device does not order it by itself. Only if
 * tern_gpu_settles(). -EIO, -ENOTRECOVERABLE, ...: the driver. */
int tern_gpu_settle(struct tern_gpu *gpu);

/* Page-locks memory of the host for the copies of every device. -ENOMEM. */
int tern_gpu_lock(struct tern_gpu *gpu, void *base, uint64_t bytes);
void tern_gpu_unlock(struct tern_gpu *gpu, void *base);

#endif
