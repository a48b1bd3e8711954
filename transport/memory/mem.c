/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory: memory of the user, and slabs (blocks that pools are made of), which
 * this library maps in host memory or allocates on a GPU.
 *
 * A slab in host memory is a memfd, because the shm fabric passes it to a peer, which
 * maps it. The memfd is sealed before a peer gets it, so that no process can shrink it
 * while another uses it, and (since Linux 5.1) only the mapping made here can write to
 * it. A pool never stores its own data inside a slab: a peer must see only tensors, and
 * the CPU may not be able to read a slab on a GPU.
 *
 * Each memory gets an id that is never reused. So a message that arrives late may name
 * memory that no longer exists, but never other memory in its place.
 */
#include "transport/memory/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "base/util.h"
#include "transport/domain.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static void unmap_slab(struct tern_mem *mem)
{
	if (mem->gpu_owned)
		tern_gpu_free(mem->gpu, mem->address);
	else if (mem->gpu && mem->kind == TERN_MEM_HOST)
		tern_gpu_unlock(mem->gpu, mem->base);
	if (mem->dma_buf >= 0)
		close(mem->dma_buf);
	if (mem->fd < 0)
		return;
	if (mem->base)
		munmap(mem->base, mem->bytes);
	close(mem->fd);
	free(mem->asked_huge);
}

/* Returns a new memory id; 0 when all ids (1 to 2^32 - 1) are used up. */
static uint32_t next_id(struct tern_domain *domain)
{
	unsigned id = atomic_load(&domain->next_mem_id);

	while (id && !atomic_compare_exchange_weak(&domain->next_mem_id, &id, id + 1))
		;
	return id;
}

/* Registers `mem` with all fabrics. On failure frees `mem` and its slab too. */
static int finish_new(
	struct tern_domain *domain, struct tern_mem *mem, struct tern_mem **out)
{
	int status = -ENOMEM;

	mem->domain = domain;
	mem->id = next_id(domain);
	atomic_init(&mem->refs, 1);
	if (mem->id)
		status = tern_domain_register(domain, mem);
	if (status) {
		unmap_slab(mem);
		free(mem);
		return status;
	}
	if (mem->wrapped)
		tern_domain_hold(domain, TERN_TENANT_MEM);
	*out = mem;
	return 0;
}

/* True if the whole range is mapped. msync(MS_ASYNC) has no effect since Linux 2.6.19,
 * except to check that. */
static bool is_mapped(const char *base, uint64_t bytes)
{
	uint64_t in_page = (uintptr_t)base & ((uint64_t)sysconf(_SC_PAGESIZE) - 1);

	return msync((char *)(uintptr_t)base - in_page, bytes + in_page, MS_ASYNC) == 0 ||
	       errno != ENOMEM;
}

/* Allocates a zeroed tern_mem, with space for one registration per fabric of the
 * domain. */
static struct tern_mem *new_mem(const struct tern_domain *domain)
{
	struct tern_mem *mem =
		calloc(1, sizeof(*mem) + domain->fabric_count * sizeof(mem->regs[0]));

	if (mem)
		mem->fd = mem->dma_buf = -1;
	return mem;
}

static int wrap(struct tern_domain *domain, const void *base, uint64_t bytes,
	bool read_only, bool brief, struct tern_mem **out)
{
	struct tern_mem *mem;

	if (!domain || !base || !bytes || bytes > UINTPTR_MAX - (uintptr_t)base)
		return -EINVAL;
	if (!is_mapped(base, bytes))
		return -EFAULT;
	mem = new_mem(domain);
	if (!mem)
		return -ENOMEM;
	mem->base = (char *)(uintptr_t)base;
	mem->bytes = bytes;
	mem->read_only = read_only;
	mem->brief = brief;
	mem->wrapped = true;
	return finish_new(domain, mem, out);
}

int tern_mem_wrap(
	struct tern_domain *domain, void *base, uint64_t bytes, struct tern_mem **out)
{
	return wrap(domain, base, bytes, false, false, out);
}

int tern_mem_wrap_readonly(struct tern_domain *domain, const void *base, uint64_t bytes,
	struct tern_mem **out)
{
	return wrap(domain, base, bytes, true, false, out);
}

int tern_mem_wrap_brief(struct tern_domain *domain, void *base, uint64_t bytes,
	bool writable, struct tern_mem **out)
{
	return wrap(domain, base, bytes, !writable, bytes <= TERN_MEM_BRIEF_BYTES, out);
}

/* `dma_buf`: -1, or the new memory's own, in which it starts at dma_buf_offset. On
 * failure it is closed. */
static int wrap_cuda(struct tern_domain *domain, uint64_t address, uint64_t bytes,
	int dma_buf, uint64_t dma_buf_offset, struct tern_mem **out)
{
	int TERN_CLEANUP(tern_cleanup_close) fd = dma_buf;
	struct tern_gpu *gpu;
	struct tern_mem *mem;
	int r = tern_gpu_of_memory(domain, address, bytes, &gpu);

	if (r)
		return r;
	mem = new_mem(domain);
	if (!mem)
		return -ENOMEM;
	mem->kind = TERN_MEM_CUDA;
	mem->gpu = gpu;
	mem->address = address;
	mem->bytes = bytes;
	mem->dma_buf = fd;
	mem->dma_buf_offset = dma_buf_offset;
	fd = -1;
	mem->wrapped = true;
	tern_gpu_guard_copies(gpu, address);
	return finish_new(domain, mem, out);
}

int tern_mem_wrap_cuda(struct tern_domain *domain, uint64_t address, uint64_t bytes,
	struct tern_mem **out)
{
	return wrap_cuda(domain, address, bytes, -1, 0, out);
}

int tern_mem_wrap_dmabuf(struct tern_domain *domain, uint64_t address, uint64_t bytes,
	int fd, uint64_t offset, struct tern_mem **out)
{
	uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
	off_t size = lseek(fd, 0, SEEK_END); /* dma-bufs tell their size so */
	int own;

	if (size < 0)
		return errno == EBADF ? -EBADF : -EINVAL;
	/* RDMA drivers require that the pages of the address are those of the dma-buf. */
	if (offset > (uint64_t)size || bytes > (uint64_t)size - offset ||
		(offset ^ address) % page_bytes)
		return -EINVAL;
	own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	return own < 0 ? -errno : wrap_cuda(domain, address, bytes, own, offset, out);
}

const char *tern_mem_reached(const struct tern_mem *mem)
{
	const char *way = NULL;

	if (mem->kind == TERN_MEM_HOST || !tern_gpu_settles(mem->gpu))
		return NULL;
	for (unsigned i = 0; i < mem->domain->fabric_count && !way; i++) {
		const struct tern_fabric *fabric = mem->domain->fabrics[i];

		if (fabric->ops->reaches)
			way = fabric->ops->reaches(fabric, mem);
	}
	return way;
}

int tern_mem_new_cuda_slab(struct tern_domain *domain, struct tern_gpu *gpu,
	uint64_t bytes, struct tern_mem **out)
{
	struct tern_mem *mem = new_mem(domain);
	int r;

	if (!mem)
		return -ENOMEM;
	mem->kind = TERN_MEM_CUDA;
	mem->gpu = gpu;
	mem->bytes = bytes;
	r = tern_gpu_alloc(gpu, bytes, &mem->address);
	if (r) {
		free(mem);
		return r;
	}
	mem->gpu_owned = true;
	tern_gpu_guard_copies(gpu, mem->address);
	return finish_new(domain, mem, out);
}

void tern_mem_put(struct tern_mem *mem)
{
	struct tern_domain *domain;
	bool wrapped;

	if (!mem)
		return;
	/* Acquire and release order: the thread that drops the last reference must see
	 * what the other threads did with the memory. */
	if (atomic_fetch_sub_explicit(&mem->refs, 1, memory_order_acq_rel) != 1)
		return;
	domain = mem->domain;
	wrapped = mem->wrapped;
	tern_domain_unregister(domain, mem);
	unmap_slab(mem);
	free(mem);
	if (wrapped)
		tern_domain_drop(domain, TERN_TENANT_MEM);
}

void *tern_mem_base(const struct tern_mem *mem)
{
	return mem->base;
}

uint64_t tern_mem_bytes(const struct tern_mem *mem)
{
	return mem->bytes;
}

enum tern_mem_kind tern_mem_kind(const struct tern_mem *mem)
{
	return mem->kind;
}

uint64_t tern_mem_cuda_address(const struct tern_mem *mem)
{
	return mem->kind == TERN_MEM_CUDA ? mem->address : 0;
}

int tern_mem_cuda_device(const struct tern_mem *mem)
{
	return mem->kind == TERN_MEM_CUDA ? tern_gpu_number(mem->gpu) : -1;
}

uint64_t tern_buf_cuda_address(const struct tern_buf *buf)
{
	uint64_t base = buf->mem ? tern_mem_cuda_address(buf->mem) : 0;

	return base ? base + buf->offset : 0;
}

void *tern_buf_ptr(const struct tern_buf *buf)
{
	return buf->mem && buf->mem->base ? buf->mem->base + buf->offset : NULL;
}

static void *map_aligned(int fd, uint64_t bytes, int prot, int flags)
{
	char *hint = NULL;

	if (bytes >= TERN_HUGE_BYTES) {
		uint64_t room = bytes + TERN_HUGE_BYTES;
		char *at = mmap(NULL, room, PROT_NONE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		/* Unmap the range and map the file there without MAP_FIXED. MAP_FIXED
		 * would replace a mapping that another thread may have made in the range
		 * meanwhile. */
		if (at != MAP_FAILED) {
			munmap(at, room);
			hint = at + (-(uintptr_t)at & (TERN_HUGE_BYTES - 1));
		}
	}
	return mmap(hint, bytes, prot, flags, fd, 0);
}

void *tern_map_slab(int fd, uint64_t bytes, int prot)
{
	return map_aligned(fd, bytes, prot, MAP_SHARED);
}

int tern_mem_map_private(const struct tern_mem *mem, void **out)
{
	/* A private copy of a reserved huge page takes another one, and SIGBUS says that
	 * there is none. */
	if (!tern_mem_is_slab(mem) || mem->huge)
		return -ENOTSUP;
	*out = map_aligned(
		mem->fd, mem->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE);
	return *out == MAP_FAILED ? -errno : 0;
}

int tern_memfd_seal(int *fd)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	char path[40];
	int reader;

	if (fcntl(*fd, F_ADD_SEALS, seals | F_SEAL_FUTURE_WRITE) &&
		fcntl(*fd, F_ADD_SEALS, seals))
		return -errno;
	/* The read-only descriptor and the seal each prevent writes by mistake. But a
	 * process with our user id could reopen the file for writing, in spite of the
	 * read-only descriptor; only the seal prevents that. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", *fd);
	reader = open(path, O_RDONLY | O_CLOEXEC);
	if (reader >= 0) {
		close(*fd);
		*fd = reader;
	}
	return 0;
}

/* Makes a mapped and sealed memfd and sets mem->fd, base, bytes and huge. On failure none
 * of them is set. */
static int map_slab(struct tern_mem *mem, uint64_t bytes, bool huge)
{
	unsigned flags =
		MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
	int TERN_CLEANUP(tern_cleanup_close) fd = memfd_create("tern-slab", flags);
	void *base;
	int status;

	if (fd < 0 || ftruncate(fd, (off_t)bytes))
		return -errno;
	/* mmap() reserves the huge pages, so that a lack of them is an error of this call
	 * and not a SIGBUS at a later access. */
	base = tern_map_slab(fd, bytes, PROT_READ | PROT_WRITE);
	if (base == MAP_FAILED)
		return -errno;
	status = tern_memfd_seal(&fd);
	if (status) {
		munmap(base, bytes);
		return status;
	}
	mem->fd = fd;
	fd = -1;
	mem->base = base;
	mem->bytes = bytes;
	mem->huge = huge;
	return 0;
}

static uint64_t free_bytes(void)
{
	struct sysinfo info;

	return sysinfo(&info) ? 0 : (uint64_t)info.freeram * info.mem_unit;
}

void tern_mem_ask_huge(struct tern_mem *mem, uint64_t offset, uint64_t bytes)
{
	uint64_t at = offset & ~(TERN_HUGE_BYTES - 1), end = offset + bytes;
	bool checked = false;

	if (!mem->asked_huge)
		return;
	for (; at < end && mem->bytes - at >= TERN_HUGE_BYTES; at += TERN_HUGE_BYTES) {
		atomic_bool *asked = &mem->asked_huge[at / TERN_HUGE_BYTES];

		if (atomic_load_explicit(asked, memory_order_relaxed))
			continue;
		if (!checked && bytes > free_bytes() / 4)
			return;
		checked = true;
		atomic_store_explicit(asked, true, memory_order_relaxed);
		/* Touch one page: MADV_COLLAPSE fails if no page of the range is
		 * present. */
		*(volatile char *)(mem->base + TERN_MAX(at, offset)) = 0;
		madvise(mem->base + at, TERN_HUGE_BYTES, MADV_COLLAPSE);
	}
}

/* Makes a slab (memory for a pool) that is mapped, but not registered with the fabrics
 * yet. */
static int new_mapped(
	struct tern_domain *domain, uint64_t bytes, bool huge, struct tern_mem **out)
{
	struct tern_mem *mem;
	uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);

	if (!bytes || bytes > INT64_MAX - page_bytes)
		return -ENOMEM;
	bytes = tern_align_up(bytes, page_bytes);
	mem = new_mem(domain);
	if (!mem)
		return -ENOMEM;
	if (!huge || bytes % TERN_HUGE_BYTES || map_slab(mem, bytes, true)) {
		if (map_slab(mem, bytes, false)) {
			free(mem);
			return -ENOMEM;
		}
		if (huge) {
			madvise(mem->base, bytes, MADV_HUGEPAGE);
			mem->asked_huge = calloc(
				bytes / TERN_HUGE_BYTES + 1, sizeof(*mem->asked_huge));
		}
	}
	*out = mem;
	return 0;
}

int tern_mem_new_slab(
	struct tern_domain *domain, uint64_t bytes, bool huge, struct tern_mem **out)
{
	struct tern_mem *mem;
	int r = new_mapped(domain, bytes, huge, &mem);

	if (r)
		return r;
	if (tern_domain_pins_memory(domain))
		tern_mem_ask_huge(mem, 0, mem->bytes);
	return finish_new(domain, mem, out);
}

int tern_mem_new_locked_slab(struct tern_domain *domain, struct tern_gpu *gpu,
	uint64_t bytes, struct tern_mem **out)
{
	struct tern_mem *mem;
	int r = new_mapped(domain, bytes, !domain->opts.no_hugepages, &mem);

	if (r)
		return r;
	/* Ask for huge pages now: registration and page-locking then pin the pages. */
	tern_mem_ask_huge(mem, 0, mem->bytes);
	r = tern_gpu_lock(gpu, mem->base, mem->bytes);
	if (r) {
		unmap_slab(mem);
		free(mem);
		return r;
	}
	mem->gpu = gpu;
	return finish_new(domain, mem, out);
}

void tern_mem_prefault(struct tern_mem *mem)
{
	uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);

	tern_mem_ask_huge(mem, 0, mem->bytes);
	if (madvise(mem->base, mem->bytes, MADV_POPULATE_WRITE) == 0)
		return;
	/* Linux before 5.14 has no MADV_POPULATE_WRITE. A slab contains zeros until its
	 * first use, so writing zeros changes nothing. */
	for (uint64_t at = 0; at < mem->bytes; at += page_bytes)
		*(volatile char *)(mem->base + at) = 0;
}
