/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA IPC: another process of this host reads GPU memory directly. The owner of the
 * memory makes a handle of the allocation and sends the handle; the reader opens the
 * handle on one of its GPUs and gets an address for its copies. A process cannot open its
 * own handles; within one process the original address is used.
 *
 * The driver keeps an opened allocation alive after the owner's process has ended, and
 * also after the owner has freed it, though its manual does not promise the latter. All
 * functions may be called from any thread.
 */
#ifndef TERN_TRANSPORT_GPU_IPC_H
#define TERN_TRANSPORT_GPU_IPC_H

#include <stdbool.h>
#include <stdint.h>

struct tern_domain;
struct tern_gpu;

/* What the owner sends to describe a range of its GPU memory. */
struct tern_ipc_handle {
	unsigned char allocation[64]; /* the CUipcMemHandle */
	/* Position and size of the range within the allocation. */
	uint64_t offset, bytes;
	uint64_t address; /* address of the range in the owner's process */
};
_Static_assert(sizeof(struct tern_ipc_handle) == 88, "no padding");

/* A range of GPU memory of a peer that a GPU of this process can read. */
struct tern_ipc_mapping {
	struct tern_gpu *gpu;
	uint64_t address, bytes;
	/* Address to pass to cuIpcCloseMemHandle(); 0: the memory belongs to this
	 * process. */
	uint64_t opened;
};

/* True if this build supports CUDA IPC. */
bool tern_ipc_is_built(void);

/* Makes a handle of the range (address, bytes). -ENOTSUP: memory that cannot be shared
 * (such as memory of CUDA's memory pools, or of several allocations), or the driver or
 * the GPU does not support sharing. */
int tern_ipc_export(const struct tern_gpu *gpu, uint64_t address, uint64_t bytes,
	struct tern_ipc_handle *out);

/*
 * Opens a peer's handle on the first GPU in use by the domain that can open it; GPUs that
 * are not in use yet are not tried. own_process: the owner is this process, so the handle
 * is not opened (tools that count driver errors would count the attempt). -ENODEV: the
 * domain uses no GPU yet; -EBUSY: an earlier allocation at the same addresses is still
 * open in this process; -ENOTSUP: no GPU can read the memory, or the handle is
 * inconsistent.
 */
int tern_ipc_open(struct tern_domain *domain, const struct tern_ipc_handle *handle,
	bool own_process, struct tern_ipc_mapping *out);
/* Closes a mapping made by tern_ipc_open(). No copy from it may be in flight. */
void tern_ipc_close(struct tern_ipc_mapping *mapping);

#endif
