/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of struct tern_mem, for this layer only: what fabrics need to know of a
 * range. See include/tern/memory.h for the interface.
 */
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
	char *base; /* NULL: the CPU cannot access it */
	uint64_t bytes;
	/* GPU memory: the device that has it, at `address`. Host memory that we
	 * page-locked: the device whose copies use it. Otherwise NULL. */
	struct tern_gpu *gpu;
	uint64_t address;
	bool gpu_owned; /* GPU memory that this library allocated */
	bool wrapped;   /* wrapped by the user */
	bool read_only; /* wrapped read-only: sent from, never received into */
	/* The memfd of a slab, which holds it from offset 0, after tern_memfd_seal();
	 * -1: memory of the user. */
	int fd;
	uint32_t id;   /* unique in the domain for its whole life, never reused */
	uint32_t slab; /* slab: its number in the pool */
	bool huge;     /* on reserved huge pages */
	/* One flag for each TERN_HUGE_BYTES of a slab: the kernel was asked to make it
	 * a huge page. NULL: it is never asked. */
	atomic_bool *asked_huge;
	/* Requests and exposures hold no reference: the owners of the memory do. */
	atomic_uint refs;
	/* Bit set of the fabrics, by tern_fabric.index, whose device refused to
	 * register this host memory. For those fabrics the CPU copies its bytes. */
	atomic_uint copied;
	void *regs[]; /* of each fabric, by tern_fabric.index */
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

/* True for host memory in a memfd, which peers on this host can map. */
static inline bool tern_mem_is_slab(const struct tern_mem *mem)
{
	return mem->fd >= 0;
}

/* Address for the CPU; host memory only. */
static inline char *tern_mem_at(const struct tern_mem *mem, uint64_t offset)
{
	tern_assert(mem->kind == TERN_MEM_HOST);
	return mem->base + offset;
}

/* True if (offset, bytes) lies inside `mem`. */
static inline bool tern_mem_holds(
	const struct tern_mem *mem, uint64_t offset, uint64_t bytes)
{
	return offset <= mem->bytes && bytes <= mem->bytes - offset;
}

/*
 * Seals a memfd so that it may be passed to a peer. Call it after the memfd was mapped
 * writable here, since it cannot be mapped writable afterwards. The size and the seals
 * become fixed, and only the existing mapping can write (F_SEAL_FUTURE_WRITE, Linux 5.1).
 * *fd is replaced by a read-only descriptor if /proc is there to open one. -errno: the
 * memfd cannot be kept from shrinking.
 */
int tern_memfd_seal(int *fd);

/*
 * Makes a slab: a memfd that is mapped, sealed and registered with every fabric of the
 * domain. `bytes` is rounded up to the page size. If `huge` is set and `bytes` is a
 * multiple of 2 MiB, it uses reserved huge pages as long as there are enough. It starts
 * with one reference. -ENOMEM.
 */
int tern_mem_new_slab(
	struct tern_domain *domain, uint64_t bytes, bool huge, struct tern_mem **out);

/* Makes a slab of GPU memory. Errors as tern_gpu_alloc(). */
int tern_mem_new_cuda_slab(struct tern_domain *domain, struct tern_gpu *gpu,
	uint64_t bytes, struct tern_mem **out);

/* Makes a slab of host memory that is page-locked for copies of the domain's GPUs. */
int tern_mem_new_locked_slab(struct tern_domain *domain, struct tern_gpu *gpu,
	uint64_t bytes, struct tern_mem **out);

/* Makes a pool of slabs that tern_mem_new_locked_slab() makes. */
int tern_pool_new_locked(struct tern_domain *domain, const struct tern_pool_opts *opts,
	struct tern_gpu *gpu, struct tern_pool **out);

/* Touches every page of the slab now. */
void tern_mem_prefault(struct tern_mem *mem);

#define TERN_HUGE_BYTES (2ull << 20)
#ifndef MADV_COLLAPSE /* Linux 6.1 */
#define MADV_COLLAPSE 25
#endif

/*
 * Asks the kernel to put the range (offset, bytes) of a slab on huge pages. The caller
 * must have the range to itself and nothing may have been written to it; other data on
 * the same huge pages moves too. Each huge page is asked for once: if the kernel cannot
 * make it, small pages stay. Since the kernel takes the memory at once, the call asks for
 * at most a quarter of the free memory. It uses MADV_COLLAPSE (Linux 6.1) because most
 * systems ignore the advice for shared memory
 * (/sys/kernel/mm/transparent_hugepage/shmem_enabled is "never"). Any thread.
 */
void tern_mem_ask_huge(struct tern_mem *mem, uint64_t offset, uint64_t bytes);

/* Maps a slab's memfd at a multiple of TERN_HUGE_BYTES if that is free; elsewhere huge
 * pages of the file would be mapped as small ones. MAP_FAILED and errno as mmap(2).
 * Any thread. */
void *tern_map_slab(int fd, uint64_t bytes, int prot);

/*
 * Copies `bytes` to `dst`. `whole` is the size of the tensor that these bytes are part
 * of: if it is TERN_COPY_STREAM_BYTES or more, non-temporal stores bypass the cache, even
 * for a small part. The ranges must not overlap.
 */
#define TERN_COPY_STREAM_BYTES (4u << 20)
void tern_copy(void *dst, const void *src, size_t bytes, size_t whole);

#endif
