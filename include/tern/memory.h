/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that holds tensors.
 *
 * A tern_mem is a range of memory that was registered once with every fabric (RDMA, TCP,
 * shared memory) in use. Transfers take (tern_mem, offset), never a bare pointer, so that
 * GPU memory can be passed to the same functions (tern_mem_wrap_cuda). A pool allocates
 * tensors in constant time from slabs (large segments of registered memory), so that
 * nothing is registered after warm-up.
 *
 * Threads: every function of this file may be called from any thread.
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
	TERN_MEM_CUDA = 1, /* memory of an NVIDIA GPU */
};

/*
 * Registers `bytes` bytes at `base`, memory that the caller owns, with every fabric. The
 * caller keeps the range mapped and writable until tern_mem_put(), and until every
 * request that uses it has ended. (Otherwise the CPU or a device accesses a bad address:
 * the process gets a signal, or the peer goes down with -EFAULT.) Ranges may overlap, and
 * a range may be wrapped more than once: each call registers again, and each tern_mem
 * needs its own tern_mem_put().
 *
 * Some memory cannot be registered with an RDMA device: mappings that are not writable,
 * shared mappings of a file (Linux 6.5 and later), memory of another device. RDMA
 * transfers of such tensors still work: the CPU copies them through registered memory,
 * and a warning names the device and its reason. Other fabrics register nothing.
 *
 * - -EINVAL: no domain, a NULL or empty range, or a range that wraps around the address
 *   space;
 * - -EFAULT: a page of the range is not mapped;
 * - -ENOMEM: no memory, or an RDMA device in use may not lock that much (RLIMIT_MEMLOCK;
 *   a log line says so).
 *
 * Fork: a child process may use neither the domain nor memory wrapped in it. The parent's
 * registered memory keeps working: Linux 5.12 and later copies such pages for the child.
 * On older kernels rdma-core's fork support is switched on when a domain opens the verbs
 * fabric; it hides these pages from the child, including other data on the same pages.
 */
TERN_API int tern_mem_wrap(
	struct tern_domain *domain, void *base, uint64_t bytes, struct tern_mem **out);

/*
 * Registers memory as tern_mem_wrap() does, but the memory need not be writable, such as
 * a file of weights mapped with PROT_READ. Tensors in it can be sent; tern_recv() into it
 * fails with -EACCES.
 */
TERN_API int tern_mem_wrap_readonly(struct tern_domain *domain, const void *base,
	uint64_t bytes, struct tern_mem **out);

/*
 * Wraps memory for a few requests, such as a tensor that a framework passes for one
 * operation. It does what tern_mem_wrap() does, or tern_mem_wrap_readonly() without
 * `writable`, but RDMA devices register no range of up to TERN_MEM_BRIEF_BYTES: the CPU
 * copies its bytes through registered memory, which takes less time than to register it
 * with each device and to end that again. No warning says so.
 */
#define TERN_MEM_BRIEF_BYTES (64u << 10)
TERN_API int tern_mem_wrap_brief(struct tern_domain *domain, void *base, uint64_t bytes,
	bool writable, struct tern_mem **out);

/*
 * Registers GPU memory from cuMemAlloc, cudaMalloc or a framework, as tern_mem_wrap()
 * does for host memory. `address` is the device address in this process. The memory must
 * belong to the primary context of the device, or to no context (cuMemAllocAsync,
 * cuMemCreate); tensors in memory of the latter kind are staged (copied through host
 * memory). Neither the memory nor the CUDA context may be freed before tern_mem_put().
 *
 * Requests use GPU memory like host memory, with these differences:
 *
 * - A request does not wait for CUDA streams. Wait for the GPU work that writes a tensor
 *   before you send the tensor, and for the work that reads or writes a buffer before you
 *   receive into the buffer. (A synchronous copy or memset has finished when it returns:
 *   Tern makes the driver do so for the whole allocation, permanently.)
 * - GPU work that is launched after a receive has ended sees the received bytes.
 * - tern_req.data is NULL.
 *
 * Errors:
 *
 * - -ENODEV: this machine has no driver or no GPU; a log line says which;
 * - -EINVAL: the range is not entirely memory of one device, or belongs to a context that
 *   is not the primary one;
 * - -EIO, -ENOTRECOVERABLE and the like: the CUDA driver failed;
 * - -ENOSYS: this library was built without CUDA;
 * - -ENOMEM.
 */
TERN_API int tern_mem_wrap_cuda(struct tern_domain *domain, uint64_t address,
	uint64_t bytes, struct tern_mem **out);

/*
 * Registers GPU memory as tern_mem_wrap_cuda() does, but RDMA devices get it by the
 * caller's dma-buf: the range starts at `offset` of the dma-buf `fd`. It is for memory
 * that the caller can export and Tern cannot, such as memory of cuMemCreate().
 *
 * The caller keeps `fd` and may close it when this call has returned: Tern uses a
 * duplicate until tern_mem_put(), since an RDMA device may be brought into use later.
 *
 * Only RDMA devices use the dma-buf. Over shm and tcp, and if a device refuses the
 * dma-buf, tensors in this memory are moved as those of tern_mem_wrap_cuda(): by CUDA IPC,
 * by nvidia-peermem, or staged. tern_mem_reached() tells.
 *
 * Errors: those of tern_mem_wrap_cuda(), and
 *
 * - -EBADF: `fd` is not open;
 * - -EINVAL: `fd` is no dma-buf, the range ends behind its end, or `offset` and `address`
 *   have different places within a page;
 * - -EMFILE: the process has no descriptor left.
 */
TERN_API int tern_mem_wrap_dmabuf(struct tern_domain *domain, uint64_t address,
	uint64_t bytes, int fd, uint64_t offset, struct tern_mem **out);

/*
 * The way in which all RDMA devices in use read and write this GPU memory themselves:
 * "dma-buf" or "nvidia-peermem". NULL: at least one of them cannot (tern_rdma_devices()
 * has its reason), or the GPU cannot see what they write; no device is in use yet, which
 * a context brings into use when it first listens or connects over verbs; or it is host
 * memory. The answer may change when a device is added or removed.
 */
TERN_API const char *tern_mem_reached(const struct tern_mem *mem);

/* Unregisters the memory and frees `mem`. Every request that uses the memory must have
 * ended. NULL is allowed. */
TERN_API void tern_mem_put(struct tern_mem *mem);

/* Address of the first byte for the CPU; NULL if the CPU cannot access this kind of
 * memory. */
TERN_API void *tern_mem_base(const struct tern_mem *mem);
TERN_API uint64_t tern_mem_bytes(const struct tern_mem *mem);
TERN_API enum tern_mem_kind tern_mem_kind(const struct tern_mem *mem);
/* For GPU memory: device address of its first byte, and number of the device in this
 * process. For host memory: 0 and -1. */
TERN_API uint64_t tern_mem_cuda_address(const struct tern_mem *mem);
TERN_API int tern_mem_cuda_device(const struct tern_mem *mem);

/* A part of registered memory: the data of a send, or the buffer that a receive fills
 * (its room). */
struct tern_buf {
	struct tern_mem *mem;
	uint64_t offset; /* in bytes, from the start of mem */
	uint64_t bytes;
};

/* Address of the buffer's first byte for the CPU; NULL if the CPU cannot access this
 * memory. */
TERN_API void *tern_buf_ptr(const struct tern_buf *buf);
/* Device address of the buffer's first byte; 0 for host memory. */
TERN_API uint64_t tern_buf_cuda_address(const struct tern_buf *buf);

#define TERN_POOL_BYTES_MAX (64ull << 30) /* largest max_bytes of a pool */

struct tern_pool_opts {
	/* Size of a slab (a segment of memory that the pool allocates from), and so the
	 * largest allocation; 0: 64 MiB. */
	uint64_t slab_bytes;
	uint64_t max_bytes; /* size up to which the pool may grow; 0: one slab */
	/* Host memory: the pool touches every page when it makes the slab, so that the
	 * first use of a buffer causes no page faults. */
	bool prefault;
	enum tern_mem_kind kind;
	uint32_t cuda_device; /* TERN_MEM_CUDA: number of the device in this process */
};

/*
 * Makes a pool with its first slab allocated and registered. The slab uses reserved 2 MiB
 * pages if the system has them. Otherwise it uses ordinary pages; when a buffer of at
 * least 2 MiB is taken from a part of the slab for the first time (with the verbs fabric:
 * when the slab is made), the kernel is asked to use huge pages for that part, unless
 * memory is short (Linux 6.1). Further slabs are added, up to max_bytes, when an
 * allocation needs one. Slabs are kept until the pool is freed.
 *
 * -ENOMEM; -EINVAL: max_bytes is less than slab_bytes or more than TERN_POOL_BYTES_MAX,
 * or `kind` is unknown. For GPU memory also the errors of tern_mem_wrap_cuda().
 */
TERN_API int tern_pool_new_sized(struct tern_domain *domain,
	const struct tern_pool_opts *opts, size_t opts_bytes, struct tern_pool **out);
static inline int tern_pool_new(struct tern_domain *domain,
	const struct tern_pool_opts *opts, struct tern_pool **out)
{
	return tern_pool_new_sized(domain, opts, sizeof(*opts), out);
}

/*
 * Releases the pool. Buffers that are still handed out stay valid: the pool is freed when
 * the last of them is given back, and a log line of level error says how many there are.
 * No peer's options may name the pool any more. NULL is allowed.
 */
TERN_API void tern_pool_free(struct tern_pool *pool);

/*
 * Takes a buffer of `bytes` bytes, aligned to 64 bytes, in constant time. It takes longer
 * if a slab must be added, and at the first use of memory for a buffer of 2 MiB or more,
 * whose huge pages are made then. 0 bytes are allowed and give an empty, valid buffer.
 * -EAGAIN: the pool has no free block of this size now, and cannot grow; -EMSGSIZE: the
 * buffer would be larger than a slab. After an error *out is cleared.
 */
TERN_API int tern_pool_get(struct tern_pool *pool, uint64_t bytes, struct tern_buf *out);

/* Gives a buffer back to its pool and clears `buf`. */
TERN_API void tern_pool_put(struct tern_pool *pool, struct tern_buf *buf);

struct tern_pool_stats {
	uint64_t slab_count, slab_bytes; /* slabs of the pool now, and their total size */
	/* Buffers that are handed out now, and their size; used_bytes counts whole units
	 * of 64 bytes. */
	uint64_t used_count, used_bytes;
	uint64_t peak_bytes;      /* highest used_bytes so far */
	uint64_t exhausted_count; /* allocations that returned -EAGAIN */
	bool huge;                /* the slabs use reserved 2 MiB pages */
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
