/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of struct tern_mem, for this layer only: what fabrics need to know of a
 * range. See include/tern/memory.h for the interface.
 */
#ifndef TERN_TRANSPORT_MEM_H
#define TERN_TRANSPORT_MEM_H

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/types.h>

#include <tern/memory.h>

#include "base/util.h"
#include "transport/gpu.h"

#define TERN_FABRICS_MAX 5

struct tern_mem {
	struct tern_domain *domain;
	enum tern_mem_kind kind;
	char *base; /* NULL: the CPU does not reach it */
	uint64_t bytes;
	/* The device that it is memory of, at `address`; or, for the host's, the one for
	 * whose copies we have page-locked it; NULL: neither. */
	struct tern_gpu *gpu;
	uint64_t address;
	bool gpu_owned; /* taken from the device by us */
	bool wrapped;   /* it is the user's */
	bool read_only; /* wrapped so: sent from, never received into */
	int fd; /* memfd that holds it from offset 0 (slabs), after tern_memfd_seal();
		   -1: memory of the user's */
	uint32_t id;   /* unique in the domain for its whole life, never reused */
	uint32_t slab; /* the pool's number for it (slabs) */
	bool huge;     /* on reserved huge pages */
	/* Of each TERN_HUGE_BYTES of a slab: has the kernel been asked to make them one
	 * huge page? NULL: it is never asked. */
	atomic_bool *asked_huge;
	atomic_uint refs; /* requests and exposures hold none: their owners do */
	void *regs[TERN_FABRICS_MAX]; /* by tern_fabric.index */
	/* Memory of the host's that a device of a fabric refused to register: one bit for
	 * each fabric, by tern_fabric.index. There its bytes are copied by the CPU. */
	atomic_uint copied;
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

/* Of the host's, and shared by a descriptor: what peers on this host can map. */
static inline bool tern_mem_is_slab(const struct tern_mem *mem)
{
	return mem->fd >= 0;
}

/* For the CPU: memory of the host only. */
static inline char *tern_mem_at(const struct tern_mem *mem, uint64_t offset)
{
	tern_assert(mem->kind == TERN_MEM_HOST);
	return mem->base + offset;
}

/* Does (offset, bytes) lie inside? */
static inline bool tern_mem_holds(
	const struct tern_mem *mem, uint64_t offset, uint64_t bytes)
{
	return offset <= mem->bytes && bytes <= mem->bytes - offset;
}

/*
 * Makes a memfd fit to be passed to a peer: to be called once it is mapped writable here,
 * which nobody can do afterwards. It keeps its size and its seals, and is written through
 * that mapping only (F_SEAL_FUTURE_WRITE, Linux 5.1); and *fd is replaced by a read-only
 * descriptor, where /proc is there to open one. -errno: it cannot be kept from shrinking.
 */
int tern_memfd_seal(int *fd);

/*
 * A new slab: a memfd, mapped and sealed, registered with every
 * fabric of the domain; on reserved huge pages if `huge`, bytes is a multiple
 * of 2 MiB and there are enough. References: 1.
 * bytes is rounded up to the page size. -ENOMEM.
 */
int tern_mem_new_slab(
	struct tern_domain *domain, uint64_t bytes, bool huge, struct tern_mem **out);

/* A new slab of the device's memory. Errors as tern_gpu_alloc(). */
int tern_mem_new_cuda_slab(struct tern_domain *domain, struct tern_gpu *gpu,
	uint64_t bytes, struct tern_mem **out);

/* A new slab of the host's that is page-locked for the copies of the domain's devices. */
int tern_mem_new_locked_slab(struct tern_domain *domain, struct tern_gpu *gpu,
	uint64_t bytes, struct tern_mem **out);

/* A pool of such slabs. */
int tern_pool_new_locked(struct tern_domain *domain, const struct tern_pool_opts *opts,
	struct tern_gpu *gpu, struct tern_pool **out);

/* Touches every page of it now. */
void tern_mem_prefault(struct tern_mem *mem);

#define TERN_HUGE_BYTES (2ull << 20)
#ifndef MADV_COLLAPSE /* Linux 6.1 */
#define MADV_COLLAPSE 25
#endif

/*
 * Asks the kernel to put (offset, bytes) of a slab, which the caller has to itself and in
 * which nothing is written yet, and what lies on the same huge pages, on huge pages. Once
 * for each: where the kernel cannot, pages stay small. It takes the memory at once, so it
 * is not asked for more than a quarter of what is free. It is asked so, and not by
 * advice, because systems commonly heed that for private memory only
 * (/sys/kernel/mm/transparent_hugepage/shmem_enabled is "never"). Linux 6.1. Any thread.
 */
void tern_mem_ask_huge(struct tern_mem *mem, uint64_t offset, uint64_t bytes);

/* Maps a slab's memfd, on a multiple of TERN_HUGE_BYTES if that is free: else huge pages
 * of the file are mapped as small ones. MAP_FAILED and errno, as mmap(2). Any thread. */
void *tern_map_slab(int fd, uint64_t bytes, int prot);

/*
 * Copies `bytes` into `dst`, a part of what has `whole` bytes: around the cache
 * (non-temporal stores) if that is TERN_COPY_STREAM_BYTES or more, however small the
 * part. Ranges must not overlap.
 */
#define TERN_COPY_STREAM_BYTES (4u << 20)
void tern_copy(void *dst, const void *src, size_t bytes, size_t whole);

#endif
