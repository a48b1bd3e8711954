/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of struct tern_mem, a range of registered memory, for the transport layer
 * only. See include/tern/memory.h for the public interface. */
#ifndef TERN_TRANSPORT_MEMORY_MEM_H
#define TERN_TRANSPORT_MEMORY_MEM_H

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/types.h>

#include <tern/memory.h>

#include "base/util.h"
#include "transport/gpu/gpu.h"

struct tern_mem {
	struct tern_domain *domain;
	enum tern_mem_kind kind;
	char *base; /* Address for the CPU; NULL: the CPU cannot access the memory. */
	uint64_t bytes;
	/* GPU memory: its GPU, and its `address` on that GPU. Host memory that this
	 * library has page-locked: the GPU whose copies use it. Otherwise NULL. */
	struct tern_gpu *gpu;
	uint64_t address;
	bool gpu_owned; /* GPU memory that this library allocated */
	/* GPU memory of tern_mem_wrap_dmabuf(): our duplicate of the caller's dma-buf, and
	 * where the memory starts in it. -1: RDMA devices get one that the driver
	 * exports. */
	int dma_buf;
	uint64_t dma_buf_offset;
	/* Created by the user with tern_mem_wrap() or one of its variants. */
	bool wrapped;
	/* Wrapped as read-only: tensors are sent from it, never received into it. */
	bool read_only;
	/* Too small and too short-lived for a registration (tern_mem_wrap_brief()). */
	bool brief;
	/* Memfd of a slab (host memory that this library maps, for a pool or for its own
	 * use), sealed by tern_memfd_seal(); the slab starts at offset 0 of the file. -1:
	 * the memory belongs to the user or is GPU memory. */
	int fd;
	uint32_t id;   /* unique in the domain, and never reused */
	uint32_t slab; /* number of this slab in its pool */
	bool huge;     /* allocated from reserved huge pages (hugetlbfs) */
	/* One flag for each TERN_HUGE_BYTES of a slab: set when the kernel was asked to
	 * put that part on a huge page. NULL: the kernel is never asked. */
	atomic_bool *asked_huge;
	/* Number of references that owners hold. Requests in flight and exposed regions
	 * hold none, so an owner must keep its reference until they have ended. */
	atomic_uint refs;
	/* Bit set, indexed by tern_fabric.index: fabrics whose device refused to register
	 * this host memory, or which register no brief memory. Transfers over those fabrics
	 * go through CPU copies. */
	atomic_uint copied;
	void *regs[]; /* registration of each fabric, indexed by tern_fabric.index */
};

static inline void *tern_mem_reg(const struct tern_mem *mem, unsigned fabric_index)
{
	return mem->regs[fabric_index];
}

static inline bool tern_mem_is_copied(const struct tern_mem *mem, unsigned fabric_index)
{
	return atomic_load_explicit(&mem->copied, memory_order_relaxed) &
	       (1u << fabric_index);
}

/* True for host memory in a memfd, which other processes on this host can map. */
static inline bool tern_mem_is_slab(const struct tern_mem *mem)
{
	return mem->fd >= 0;
}

/* CPU address of `offset` in host memory. The memory must not be GPU memory. */
static inline char *tern_mem_at(const struct tern_mem *mem, uint64_t offset)
{
	tern_assert(mem->kind == TERN_MEM_HOST);
	return mem->base + offset;
}

/* True if the `bytes` bytes at `offset` lie inside `mem`. */
static inline bool tern_mem_holds(
	const struct tern_mem *mem, uint64_t offset, uint64_t bytes)
{
	return offset <= mem->bytes && bytes <= mem->bytes - offset;
}

/*
 * Seals a memfd so that it may be passed to a peer: the size and the seals become fixed,
 * and only mappings that exist already can write (F_SEAL_FUTURE_WRITE, Linux 5.1). So map
 * the memfd writable before this call. An older kernel lets a peer map it writable, by
 * reopening it. *fd is replaced by a read-only descriptor if /proc is available to open
 * one. -errno: the memfd cannot be protected from shrinking.
 */
int tern_memfd_seal(int *fd);

/*
 * Makes a slab: a memfd that is mapped, sealed and registered with every fabric of the
 * domain. `bytes` is rounded up to the page size. If `huge` is set and `bytes` is a
 * multiple of 2 MiB, the slab uses reserved huge pages as long as there are enough. The
 * caller gets the first reference. -ENOMEM; errors of the fabrics' mem_register().
 */
int tern_mem_new_slab(
	struct tern_domain *domain, uint64_t bytes, bool huge, struct tern_mem **out);

/* Makes a slab (a block of memory for a pool) in GPU memory. Errors as
 * tern_mem_new_slab() and tern_gpu_alloc(). */
int tern_mem_new_cuda_slab(struct tern_domain *domain, struct tern_gpu *gpu,
	uint64_t bytes, struct tern_mem **out);

/* Makes a slab (a block of memory for a pool) of host memory that is page-locked for GPU
 * copies. */
int tern_mem_new_locked_slab(struct tern_domain *domain, struct tern_gpu *gpu,
	uint64_t bytes, struct tern_mem **out);

/* Makes a pool whose slabs are made by tern_mem_new_locked_slab(). */
int tern_pool_new_locked(struct tern_domain *domain, const struct tern_pool_opts *opts,
	struct tern_gpu *gpu, struct tern_pool **out);

/* Writes to every page of the slab now, so that first use causes no page faults. */
void tern_mem_prefault(struct tern_mem *mem);

#define TERN_HUGE_BYTES (2ull << 20)
#ifndef MADV_COLLAPSE /* since Linux 6.1 */
#define MADV_COLLAPSE 25
#endif

/*
 * Asks the kernel to put the range (offset, bytes) of a slab on huge pages. The caller
 * must have exclusive use of the range, whose contents must not matter, because the call
 * writes zeros into it; other data on the same huge pages keeps its contents. The kernel
 * is asked once for each huge page: if that fails, small pages stay. Since the kernel
 * allocates the memory immediately, the call asks for nothing if `bytes` exceeds a
 * quarter of the free memory. It uses MADV_COLLAPSE (Linux 6.1) because most systems
 * ignore the advice MADV_HUGEPAGE for shared memory
 * (/sys/kernel/mm/transparent_hugepage/shmem_enabled is "never"). Thread-safe.
 */
void tern_mem_ask_huge(struct tern_mem *mem, uint64_t offset, uint64_t bytes);

/* Maps a slab's memfd. One of at least TERN_HUGE_BYTES is mapped at a multiple of
 * TERN_HUGE_BYTES if such an address is free; at other addresses the kernel would map
 * huge pages of the file as small ones. Returns MAP_FAILED and sets errno as mmap(2)
 * does. Thread-safe. */
void *tern_map_slab(int fd, uint64_t bytes, int prot);

/* Maps a slab once more, so that what is written there stays there (MAP_PRIVATE): the
 * slab does not get it. The mapping has mem->bytes bytes, and belongs to the caller; it may
 * outlive the slab. -ENOTSUP: the memory is no slab, or on reserved huge pages; -errno of
 * mmap(2). */
int tern_mem_map_private(const struct tern_mem *mem, void **out);

/* Copies `bytes` to `dst`. `whole` is the size of the tensor that these bytes are part
 * of. If `whole` is TERN_COPY_STREAM_BYTES or more, non-temporal stores bypass the cache
 * (with AVX2 or AVX-512), even for a small part. The ranges must not overlap. */
#define TERN_COPY_STREAM_BYTES (4u << 20)
void tern_copy(void *dst, const void *src, size_t bytes, size_t whole);

#endif
