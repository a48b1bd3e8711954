/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that tensors live in.
 *
 * A tern_mem is a range that every fabric in use has been told about once ("registered").
 * Interfaces take (tern_mem, offset), never a bare pointer, so that memory of another
 * kind (a GPU's) goes through the same calls: see tern_mem_wrap_cuda(). A pool is a set
 * of large registered slabs carved into tensors in O(1), so nothing is registered after
 * warm-up.
 *
 * Threads: everything here may be called from any thread.
 */
#ifndef TERN_MEMORY_H
#define TERN_MEMORY_H

#include <tern/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tern_domain; /* see context.h */
struct tern_mem;
struct tern_pool;

enum tern_mem_kind {
	TERN_MEM_HOST = 0,
	TERN_MEM_CUDA = 1, /* of an NVIDIA GPU */
};

/*
 * Wraps memory that the caller owns and registers the whole range once. The caller keeps
 * it mapped, and writable, until tern_mem_put() and until every request on it has ended.
 * (If not, the CPU or a device meets a bad address: a signal, or the peer goes down with
 * -EFAULT.)
 * Ranges may overlap, and one may be wrapped twice: each is registered by itself, and a
 * tern_mem has no count of references: one wrap, one put.
 *
 * Some memory cannot be registered with an RDMA device: a mapping without the permission
 * to write, a shared mapping of a file (Linux 6.5), memory of another device. Tensors in
 * it go over RDMA all the same, copied by the CPU through registered memory, and a
 * warning in the log names the device and its reason. Other fabrics register nothing.
 *
 * -EINVAL: no domain, NULL or empty range, or one that ends behind all memory; -EFAULT:
 * some page of it is not mapped; -ENOMEM: no memory, or an RDMA device in use may not
 * lock that much (RLIMIT_MEMLOCK; the log says so).
 *
 * Fork: a child may use neither the domain nor what is wrapped in it. Registered memory
 * of the parent stays its own: Linux 5.12 and later copies such pages for the child, and
 * on older kernels rdma-core's fork support is switched on when a domain opens the verbs
 * fabric, by which the child lacks those pages (a whole page, whatever else lies on it).
 */
TERN_API int tern_mem_wrap(
	struct tern_domain *domain, void *base, uint64_t bytes, struct tern_mem **out);

/*
 * The same for memory that need not be writable, such as a file of weights mapped with
 * PROT_READ. It can be sent from; a receive into it is refused with -EACCES when it is
 * posted.
 */
TERN_API int tern_mem_wrap_readonly(struct tern_domain *domain, const void *base,
	uint64_t bytes, struct tern_mem **out);

/*
 * The same for memory of a GPU, from cuMemAlloc, cudaMalloc or whatever a framework took
 * it with: `address` is the device's, in this process. It belongs to the device's primary
 * context, and both must stay until tern_mem_put().
 *
 * Requests on it are ordinary ones, with these differences. The GPU's work that writes a
 * tensor must be done before it is sent, and what reads or writes a room before that is
 * received into: a request waits for no stream. (A synchronous copy or memset counts as
 * done when it returns: the driver is told to make it so for the whole allocation, and
 * for good.) When a receive has ended, all work that is launched from then on sees the
 * bytes. tern_req.data is NULL.
 *
 * -ENODEV: this machine has no driver or no device (a log line says which); -EINVAL: not
 * memory of one device's primary context from its first byte to its last; -ENOMEM;
 * -ENOSYS: built without CUDA.
 */
TERN_API int tern_mem_wrap_cuda(struct tern_domain *domain, uint64_t address,
	uint64_t bytes, struct tern_mem **out);

/* Unregisters what one of the calls above wrapped, and frees `mem`: once every request on
 * it has ended. NULL is allowed. */
TERN_API void tern_mem_put(struct tern_mem *mem);

/* First byte for the CPU; NULL if the CPU cannot address this kind of memory. */
TERN_API void *tern_mem_base(const struct tern_mem *mem);
TERN_API uint64_t tern_mem_bytes(const struct tern_mem *mem);
TERN_API enum tern_mem_kind tern_mem_kind(const struct tern_mem *mem);
/* Of memory of a GPU: its first byte as the device knows it, and the number of the device
 * among those of this process. 0 and -1 for the host's. */
TERN_API uint64_t tern_mem_cuda_address(const struct tern_mem *mem);
TERN_API int tern_mem_cuda_device(const struct tern_mem *mem);

/* A piece of registered memory: what a request sends from or receives into. */
struct tern_buf {
	struct tern_mem *mem;
	uint64_t offset; /* bytes from the start of mem */
	uint64_t bytes;
};

/* CPU address of the first byte; NULL where tern_mem_base is. */
TERN_API void *tern_buf_ptr(const struct tern_buf *buf);
/* The device's address of it; 0 for the host's memory. */
TERN_API uint64_t tern_buf_cuda_address(const struct tern_buf *buf);

#define TERN_POOL_BYTES_MAX (64ull << 30) /* the most for max_bytes */

struct tern_pool_opts {
	uint64_t slab_bytes; /* size of a slab; 0: 64 MiB. Largest possible allocation */
	uint64_t max_bytes;  /* the pool never holds more; 0: one slab */
	bool prefault;       /* touch every page now, not at first use (host) */
	enum tern_mem_kind kind;
	uint32_t cuda_device; /* TERN_MEM_CUDA: number of the device in this process */
};

/*
 * A new pool with its first slab allocated and registered: on reserved 2 MiB pages where
 * the system has them; else on ordinary ones, of which the kernel is asked to make huge
 * ones where a buffer of 2 MiB or more is first taken (Linux 6.1). Slabs are added up to
 * max_bytes when an allocation needs one, and kept until the pool goes: they are never
 * given back. -ENOMEM; -EINVAL: max_bytes < slab_bytes, above TERN_POOL_BYTES_MAX, or no
 * such kind; of kind CUDA also -ENODEV, -ENOSYS and the like, as tern_mem_wrap_cuda().
 */
TERN_API int tern_pool_new_sized(struct tern_domain *domain,
	const struct tern_pool_opts *opts, size_t opts_bytes, struct tern_pool **out);
static inline int tern_pool_new(struct tern_domain *domain,
	const struct tern_pool_opts *opts, struct tern_pool **out)
{
	return tern_pool_new_sized(domain, opts, sizeof(*opts), out);
}

/*
 * Gives the pool up. Buffers that are still handed out stay valid, an error in the log
 * says how many, and the pool is freed with the last of them. No peer may have it in its
 * options any more. NULL is allowed.
 */
TERN_API void tern_pool_free(struct tern_pool *pool);

/*
 * Takes `bytes` (0 is allowed and gives an empty, valid buffer), 64-byte aligned, in
 * constant time but for memory of 2 MiB and more that is used for the first time, whose
 * huge pages are made now. -EAGAIN: the pool is full now; -EMSGSIZE: larger than a slab;
 * *out is then as tern_pool_put() leaves it.
 */
TERN_API int tern_pool_get(struct tern_pool *pool, uint64_t bytes, struct tern_buf *out);

/* Gives a buffer back; `buf` is cleared. */
TERN_API void tern_pool_put(struct tern_pool *pool, struct tern_buf *buf);

struct tern_pool_stats {
	uint64_t slab_count, slab_bytes; /* held now, in all */
	uint64_t used_count, used_bytes; /* handed out now; bytes in whole units of 64 */
	uint64_t peak_bytes;             /* most ever handed out */
	uint64_t exhausted_count;        /* allocations that ended in -EAGAIN */
	bool huge;                       /* slabs are on reserved 2 MiB pages */
};
TERN_API void tern_pool_stats_sized(
	struct tern_pool *pool, struct tern_pool_stats *out, size_t out_bytes);
static inline void tern_pool_stats(struct tern_pool *pool, struct tern_pool_stats *out)
{
	tern_pool_stats_sized(pool, out, sizeof(*out));
}

#ifdef __cplusplus
}
#endif
#endif
