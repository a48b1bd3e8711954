/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA IPC: another process of this host reads GPU memory directly. The owner makes a
 * handle of the allocation and sends it; the reader opens it on a device of its own and
 * gets an address for its copies. A process cannot open its own handles; within a process
 * the address itself is used.
 *
 * The driver keeps an opened allocation alive after the owner's process has ended, and
 * also after the owner has freed it, though its manual does not promise the latter.
 * Threads as in gpu.h.
 */
#ifndef TERN_TRANSPORT_GPU_IPC_H
#define TERN_TRANSPORT_GPU_IPC_H

#include <stdbool.h>
#include <stdint.h>

struct tern_domain;
struct tern_gpu;

/* What the owner sends: a range of GPU memory. */
struct tern_ipc_handle {
	unsigned char allocation[64]; /* the CUipcMemHandle */
	uint64_t offset, bytes;       /* of the range within the allocation */
	uint64_t address;             /* of the range, in the owner's process */
};
_Static_assert(sizeof(struct tern_ipc_handle) == 88, "no padding");

/* A range of GPU memory that a device of this process can read. */
struct tern_ipc_mapping {
	struct tern_gpu *gpu;
	uint64_t address, bytes;
	uint64_t opened; /* address to close later; 0: memory of this process */
};

/* True if this build supports CUDA IPC. */
bool tern_ipc_is_built(void);

/* Makes a handle of (address, bytes). -ENOTSUP: memory that cannot be shared (of the
 * driver's memory pools, say), or a driver or a device that cannot share any. */
int tern_ipc_export(const struct tern_gpu *gpu, uint64_t address, uint64_t bytes,
	struct tern_ipc_handle *out);

/*
 * Opens a peer's handle on the first device in use by the domain that can open it; no
 * further device is brought into use for it. own_process: the owner is this process, so
 * the handle is not opened (a tool that counts errors of the driver would count it).
 * -ENODEV: the domain uses no device yet; -EBUSY: an earlier allocation at the same
 * addresses is still open here; -ENOTSUP: no device can read it, or the handle
 * contradicts itself.
 */
int tern_ipc_open(struct tern_domain *domain, const struct tern_ipc_handle *handle,
	bool own_process, struct tern_ipc_mapping *out);
/* Closes what tern_ipc_open() opened. No copy may be under way. */
void tern_ipc_close(struct tern_ipc_mapping *mapping);

#endif
