/* SPDX-License-Identifier: Apache-2.0 */
/* Replacement for the GPU code in a build without the CUDA toolkit: no address belongs to
 * a GPU, and there is nothing to copy. */
#include <errno.h>

#include "base/util.h"
#include "transport/gpu/gpu.h"
#include "transport/gpu/ipc.h"
#include "transport/gpu/stager.h"

int tern_gpus_open(struct tern_domain *domain)
{
	(void)domain;
	return 0;
}

void tern_gpus_close(struct tern_domain *domain)
{
	(void)domain;
}

int tern_gpu_of_memory(struct tern_domain *domain, uint64_t address, uint64_t bytes,
	struct tern_gpu **out)
{
	(void)domain;
	(void)address;
	(void)bytes;
	(void)out;
	return -ENOSYS;
}

int tern_gpu_by_number(struct tern_domain *domain, unsigned number, struct tern_gpu **out)
{
	(void)domain;
	(void)number;
	(void)out;
	return -ENOSYS;
}

int tern_gpu_number(const struct tern_gpu *gpu)
{
	(void)gpu;
	return -1;
}

struct tern_gpu *tern_gpu_in_use(struct tern_domain *domain, unsigned number)
{
	(void)domain;
	(void)number;
	return NULL;
}

bool tern_ipc_is_built(void)
{
	return false;
}

int tern_ipc_export(const struct tern_gpu *gpu, uint64_t address, uint64_t bytes,
	struct tern_ipc_handle *out)
{
	(void)gpu;
	(void)address;
	(void)bytes;
	(void)out;
	return -ENOTSUP;
}

int tern_ipc_open(struct tern_domain *domain, const struct tern_ipc_handle *handle,
	bool own_process, struct tern_ipc_mapping *out)
{
	(void)domain;
	(void)handle;
	(void)own_process;
	(void)out;
	return -ENODEV;
}

void tern_ipc_close(struct tern_ipc_mapping *mapping)
{
	(void)mapping;
}

int tern_gpu_alloc(struct tern_gpu *gpu, uint64_t bytes, uint64_t *address)
{
	(void)gpu;
	(void)bytes;
	(void)address;
	return -ENOSYS;
}

void tern_gpu_free(struct tern_gpu *gpu, uint64_t address)
{
	(void)gpu;
	(void)address;
}

void tern_gpu_guard_copies(struct tern_gpu *gpu, uint64_t address)
{
	(void)gpu;
	(void)address;
}

int tern_gpu_dma_buf(
	struct tern_gpu *gpu, uint64_t address, uint64_t bytes, int *fd, uint64_t *offset)
{
	(void)gpu;
	(void)address;
	(void)bytes;
	(void)fd;
	(void)offset;
	return -ENOSYS;
}

bool tern_gpu_has_peermem(const struct tern_gpu *gpu)
{
	(void)gpu;
	return false;
}

bool tern_gpu_settles(const struct tern_gpu *gpu)
{
	(void)gpu;
	return false;
}

int tern_gpu_settle(struct tern_gpu *gpu)
{
	(void)gpu;
	return -ENOSYS;
}

int tern_gpu_lock(struct tern_gpu *gpu, void *base, uint64_t bytes)
{
	(void)gpu;
	(void)base;
	(void)bytes;
	return -ENOSYS;
}

void tern_gpu_unlock(struct tern_gpu *gpu, void *base)
{
	(void)gpu;
	(void)base;
}

int tern_context_stager(
	struct tern_context *ctx, struct tern_gpu *gpu, struct tern_stager **out)
{
	(void)ctx;
	(void)gpu;
	(void)out;
	return -ENOSYS;
}

void tern_stager_copy(struct tern_stager *stager, struct tern_copy *copy,
	enum tern_stage_way way, const struct tern_mem *mem, uint64_t offset, void *host,
	uint64_t bytes)
{
	(void)stager;
	(void)copy;
	(void)way;
	(void)mem;
	(void)offset;
	(void)host;
	(void)bytes;
	tern_never("a copy to or from a GPU in a build without GPUs");
}

void tern_stager_fetch(struct tern_stager *stager, struct tern_copy *copy, uint64_t from,
	const struct tern_mem *mem, uint64_t offset, uint64_t bytes)
{
	(void)stager;
	(void)copy;
	(void)from;
	(void)mem;
	(void)offset;
	(void)bytes;
	tern_never("a copy to or from a GPU in a build without GPUs");
}

struct tern_stage_slot *tern_stager_take(
	struct tern_stager *stager, enum tern_stage_way way)
{
	(void)stager;
	(void)way;
	return NULL;
}

void tern_stager_give(struct tern_stage_slot *slot)
{
	(void)slot;
}

void tern_stager_wait(struct tern_stager *stager, enum tern_stage_way way,
	struct tern_stage_wait *wait, bool urgent)
{
	(void)stager;
	(void)way;
	(void)wait;
	(void)urgent;
}

char *tern_stage_slot_data(const struct tern_stage_slot *slot)
{
	(void)slot;
	return NULL;
}

int tern_stagers_poll(struct tern_context *ctx)
{
	(void)ctx;
	return 0;
}

void tern_stagers_arm(struct tern_context *ctx)
{
	(void)ctx;
}

void tern_stagers_free(struct tern_context *ctx)
{
	(void)ctx;
}
