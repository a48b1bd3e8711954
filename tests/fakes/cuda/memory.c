/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the simulated driver. Device memory is a memfd, so that it can be shared. It
 * is mapped twice: at its device address, which is accessible while a kernel runs and
 * PROT_NONE otherwise, and at a second address, the view, for the driver's own copies. An
 * allocation starts at a page boundary. The bytes between its end and the end of its last
 * page have a fixed pattern, which is checked when it is freed, and the next page is
 * never accessible.
 */
#include "tests/fakes/cuda/cuda_world.h"

#include <sys/mman.h>

#define PAGE 4096u
#define EDGE 0x5a /* byte that fills the rest of an allocation's last page */

static bool is_on_device(const struct fake_mem *mem)
{
	return mem->kind == FAKE_MEM_DEVICE || mem->kind == FAKE_MEM_OPENED;
}

static bool is_guarded(void)
{
	return !fake_world.opts.unguarded && !fake_world.unguarded_now;
}

static void open_mem(const struct fake_mem *mem, bool open)
{
	tern_assert(mprotect(mem->map, mem->map_bytes - PAGE,
			    open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0);
}

/* Makes device memory inaccessible to the host (`closed`), or accessible while a kernel
 * runs. Copies use the view instead, since changing a mapping is slow; a kernel's
 * accesses are not known beforehand, so it needs the device addresses. */
void fake_guard(bool closed)
{
	if (fake_world.opts.unguarded || fake_world.unguarded_now != closed)
		return;
	tern_list_for_each (n, &fake_world.mems) {
		const struct fake_mem *mem = tern_list_entry(n, struct fake_mem, node);

		if (is_on_device(mem))
			open_mem(mem, !closed);
	}
	fake_world.unguarded_now = !closed;
}

void *fake_view(const void *at, size_t bytes)
{
	const struct fake_mem *mem = fake_mem_find(at, bytes, FAKE_ON_DEVICE);

	return mem ? mem->view + ((const char *)at - mem->map) : (void *)(uintptr_t)at;
}

struct fake_mem *fake_mem_find(const void *at, size_t bytes, unsigned kinds)
{
	uintptr_t a = (uintptr_t)at;

	tern_list_for_each (n, &fake_world.mems) {
		struct fake_mem *mem = tern_list_entry(n, struct fake_mem, node);
		uintptr_t base = (uintptr_t)mem->base;

		if ((kinds & 1u << mem->kind) && a >= base && a - base <= mem->bytes &&
			bytes <= mem->bytes - (a - base))
			return mem;
	}
	return NULL;
}

static struct fake_mem *mem_new(enum fake_mem_kind kind, struct fake_device *device)
{
	struct fake_mem *mem = calloc(1, sizeof(*mem));

	tern_assert(mem);
	mem->kind = kind;
	mem->device = device;
	mem->fd = -1;
	mem->id = ++fake_world.next_mem_id;
	return mem;
}

struct fake_mem *fake_mem_map(
	int fd, size_t bytes, struct fake_device *device, void *hint)
{
	struct fake_mem *mem = mem_new(FAKE_MEM_DEVICE, device);
	size_t pages = tern_align_up(bytes, PAGE);

	mem->fd = fd;
	mem->map_bytes = pages + PAGE;
	mem->map =
		mmap(hint, mem->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	tern_assert(mem->map != MAP_FAILED);
	tern_assert(
		mmap(mem->map, pages, is_guarded() ? PROT_NONE : PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_FIXED, fd, 0) == mem->map);
	mem->view = mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	tern_assert(mem->view != MAP_FAILED);
	mem->base = mem->map;
	mem->bytes = bytes;
	tern_list_push(&fake_world.mems, &mem->node);
	return mem;
}

static void unmap(struct fake_mem *mem)
{
	munmap(mem->map, mem->map_bytes);
	munmap(mem->view, mem->map_bytes - PAGE);
	if (mem->fd >= 0)
		close(mem->fd);
}

void fake_mem_free(struct fake_mem *mem)
{
	switch (mem->kind) {
	case FAKE_MEM_DEVICE:
		for (char *p = mem->view + mem->bytes;
			p < mem->view + mem->map_bytes - PAGE; p++) {
			if (*p != EDGE)
				tern_never("fake cuda: a kernel wrote past the end of "
					   "the memory");
		}
		mem->device->used_bytes -= mem->bytes;
		fake_world.freed_at = mem->map;
		unmap(mem);
		break;
	case FAKE_MEM_OPENED:
		unmap(mem);
		break;
	case FAKE_MEM_HOST:
		free(mem->base);
		break;
	case FAKE_MEM_REGISTERED:
	case FAKE_MEM_KINDS:
		break;
	}
	tern_list_remove(&mem->node);
	free(mem);
}

void fake_mems_drop(struct fake_device *device)
{
	tern_list_for_each_safe (n, &fake_world.mems) {
		struct fake_mem *mem = tern_list_entry(n, struct fake_mem, node);

		if (mem->device == device)
			fake_mem_free(mem);
	}
}

/* ---- device memory ---- */

static CUresult mem_get_info(size_t *free_bytes, size_t *total_bytes)
{
	FAKE_ENTER_CTX("mem_get_info");
	*free_bytes = fake_world.opts.mem_bytes - device->used_bytes;
	*total_bytes = fake_world.opts.mem_bytes;
	return CUDA_SUCCESS;
}

/* Fills new memory with a random byte, so that a test notices if uninitialised memory is
 * read. After the first FILL_WHOLE bytes, only every FILL_PAGES-th page is filled, since
 * Linux needs a microsecond to provide each page. */
#define FILL_WHOLE (256u << 10)
#define FILL_PAGES 16u

static void fill(struct fake_mem *mem)
{
	int byte = (int)tern_rng_below(&fake_world.rng, 255) + 1;
	size_t whole = TERN_MIN(mem->bytes, (size_t)FILL_WHOLE);

	memset(mem->view, byte, whole);
	for (size_t at = whole; at < mem->bytes; at += FILL_PAGES * PAGE)
		memset(mem->view + at, byte, TERN_MIN(mem->bytes - at, (size_t)PAGE));
}

static CUresult mem_alloc(CUdeviceptr *out, size_t bytes)
{
	FAKE_ENTER_UNSAFE("mem_alloc");
	struct fake_mem *mem;
	int fd;
	if (bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes > fake_world.opts.mem_bytes - device->used_bytes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	fd = memfd_create("fake-cuda", MFD_CLOEXEC);
	tern_assert(fd >= 0 && ftruncate(fd, (off_t)tern_align_up(bytes, PAGE)) == 0);
	mem = fake_mem_map(fd, bytes, device, fake_world.freed_at);
	fill(mem);
	memset(mem->view + bytes, EDGE, tern_align_up(bytes, PAGE) - bytes);
	device->used_bytes += bytes;
	device->peak_bytes = TERN_MAX(device->peak_bytes, device->used_bytes);
	*out = (CUdeviceptr)(uintptr_t)mem->base;
	return CUDA_SUCCESS;
}

/* Finds the memory that starts at `base`. fake_mem_find() could find other memory, which
 * ends there. */
static struct fake_mem *mem_at(const void *base, enum fake_mem_kind kind)
{
	tern_list_for_each (n, &fake_world.mems) {
		struct fake_mem *mem = tern_list_entry(n, struct fake_mem, node);

		if (mem->kind == kind && mem->base == base)
			return mem;
	}
	return NULL;
}

static void must_be_idle(const struct fake_mem *mem)
{
	if (fake_streams_touch(mem))
		tern_never("fake cuda: queued work will touch the memory");
}

static CUresult mem_free(CUdeviceptr at)
{
	FAKE_ENTER_UNSAFE("mem_free");
	struct fake_mem *mem = mem_at((void *)(uintptr_t)at, FAKE_MEM_DEVICE);
	(void)device;
	if (!mem)
		return CUDA_ERROR_INVALID_VALUE;
	must_be_idle(mem);
	fake_mem_free(mem);
	return CUDA_SUCCESS;
}

static CUresult mem_get_address_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr at)
{
	FAKE_ENTER_CTX("mem_get_address_range");
	const struct fake_mem *mem =
		fake_mem_find((void *)(uintptr_t)at, 1, FAKE_ON_DEVICE);
	(void)device;
	if (!mem)
		return CUDA_ERROR_NOT_FOUND;
	if (base)
		*base = (CUdeviceptr)(uintptr_t)mem->base;
	if (bytes)
		*bytes = mem->bytes;
	return CUDA_SUCCESS;
}

/* ---- page-locked memory ---- */

static uint64_t locked_bytes(void)
{
	uint64_t sum = 0;

	tern_list_for_each (n, &fake_world.mems) {
		const struct fake_mem *mem = tern_list_entry(n, struct fake_mem, node);

		if (!is_on_device(mem))
			sum += mem->bytes;
	}
	return sum;
}

static bool is_too_much(size_t bytes)
{
	uint64_t limit = fake_world.opts.host_limit_bytes;

	return limit && (bytes > limit || locked_bytes() > limit - bytes);
}

static CUresult mem_host_alloc(void **out, size_t bytes, unsigned flags)
{
	FAKE_ENTER_UNSAFE("mem_host_alloc");
	struct fake_mem *mem;
	if (bytes == 0 ||
		flags & ~(unsigned)(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP |
				    CU_MEMHOSTALLOC_WRITECOMBINED))
		return CUDA_ERROR_INVALID_VALUE;
	if (is_too_much(bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	mem = mem_new(FAKE_MEM_HOST, device);
	mem->bytes = bytes;
	mem->base = aligned_alloc(PAGE, tern_align_up(bytes, PAGE));
	tern_assert(mem->base);
	memset(mem->base, (int)tern_rng_below(&fake_world.rng, 255) + 1, bytes);
	tern_list_push(&fake_world.mems, &mem->node);
	*out = mem->base;
	return CUDA_SUCCESS;
}

static CUresult mem_free_host(void *at)
{
	FAKE_ENTER_UNSAFE("mem_free_host");
	struct fake_mem *mem = mem_at(at, FAKE_MEM_HOST);
	(void)device;
	if (!mem)
		return CUDA_ERROR_INVALID_VALUE;
	must_be_idle(mem);
	fake_mem_free(mem);
	return CUDA_SUCCESS;
}

static bool overlaps_locked(const char *at, size_t bytes)
{
	uintptr_t a = (uintptr_t)at;

	tern_list_for_each (n, &fake_world.mems) {
		const struct fake_mem *mem = tern_list_entry(n, struct fake_mem, node);
		uintptr_t base = (uintptr_t)mem->base;

		if (!is_on_device(mem) && a < base + mem->bytes && base < a + bytes)
			return true;
	}
	return false;
}

static CUresult mem_host_register(void *at, size_t bytes, unsigned flags)
{
	FAKE_ENTER_UNSAFE("mem_host_register");
	struct fake_mem *mem;
	if (!at || bytes == 0 ||
		flags & ~(unsigned)(CU_MEMHOSTREGISTER_PORTABLE |
				    CU_MEMHOSTREGISTER_DEVICEMAP |
				    CU_MEMHOSTREGISTER_READ_ONLY))
		return CUDA_ERROR_INVALID_VALUE;
	if (overlaps_locked(at, bytes))
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	if (is_too_much(bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	mem = mem_new(FAKE_MEM_REGISTERED, device);
	mem->base = at;
	mem->bytes = bytes;
	tern_list_push(&fake_world.mems, &mem->node);
	return CUDA_SUCCESS;
}

static CUresult mem_host_unregister(void *at)
{
	FAKE_ENTER_UNSAFE("mem_host_unregister");
	struct fake_mem *mem = mem_at(at, FAKE_MEM_REGISTERED);
	(void)device;
	if (!mem)
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	must_be_idle(mem);
	fake_mem_free(mem);
	return CUDA_SUCCESS;
}

/* ---- what a pointer is ---- */

static CUresult describe(
	const struct fake_mem *mem, CUdeviceptr at, CUpointer_attribute what, void *out)
{
	switch ((int)what) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		if (mem->pooled)
			return CUDA_ERROR_INVALID_VALUE;
		*(CUcontext *)out = (CUcontext)(void *)mem->device;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)out =
			is_on_device(mem) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*(CUdeviceptr *)out = at;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (is_on_device(mem))
			return CUDA_ERROR_INVALID_VALUE;
		*(void **)out = (void *)(uintptr_t)at;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		*(unsigned *)out = mem->sync_memops;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)out = mem->id;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)out = mem->device->index;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)out = (CUdeviceptr)(uintptr_t)mem->base;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)out = mem->bytes;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(bool *)out = mem->kind == FAKE_MEM_DEVICE && !mem->pooled;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult pointer_get_attribute(void *out, CUpointer_attribute what, CUdeviceptr at)
{
	FAKE_ENTER_CTX("pointer_get_attribute");
	const struct fake_mem *mem =
		fake_mem_find((void *)(uintptr_t)at, 1, FAKE_ON_DEVICE | FAKE_LOCKED);
	(void)device;
	return mem ? describe(mem, at, what, out) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult pointer_set_attribute(
	const void *value, CUpointer_attribute what, CUdeviceptr at)
{
	FAKE_ENTER_CTX("pointer_set_attribute");
	struct fake_mem *mem = fake_mem_find((void *)(uintptr_t)at, 1, FAKE_ON_DEVICE);
	(void)device;
	if (!mem || mem->pooled || what != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return CUDA_ERROR_INVALID_VALUE;
	mem->sync_memops = *(const unsigned *)value;
	return CUDA_SUCCESS;
}

void fake_cuda_make_pooled(CUdeviceptr at)
{
	struct fake_mem *mem;

	pthread_mutex_lock(&fake_world.lock);
	mem = mem_at((void *)(uintptr_t)at, FAKE_MEM_DEVICE);
	tern_assert(mem);
	mem->pooled = true;
	pthread_mutex_unlock(&fake_world.lock);
}

void fake_memory_entries(struct tern_cuda_api *api)
{
	api->mem_get_info = mem_get_info;
	api->mem_alloc = mem_alloc;
	api->mem_free = mem_free;
	api->mem_get_address_range = mem_get_address_range;
	api->mem_host_alloc = mem_host_alloc;
	api->mem_free_host = mem_free_host;
	api->mem_host_register = mem_host_register;
	api->mem_host_unregister = mem_host_unregister;
	api->pointer_get_attribute = pointer_get_attribute;
	api->pointer_set_attribute = pointer_set_attribute;
}
