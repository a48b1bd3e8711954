/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA IPC: memory of a device that another process of this host reads itself. The owner
 * makes a handle of the allocation, which travels; the reader opens it on a device of its
 * own and has an address for its copies. A process cannot open its own handles: there the
 * address itself does.
 *
 * The driver keeps what is open alive when the owner is gone; when the owner has freed
 * it, too, though its manual does not promise that. Threads as in gpu.h.
 */
#ifndef TERN_TRANSPORT_GPU_IPC_H
#define TERN_TRANSPORT_GPU_IPC_H

#include <stdbool.h>
#include <stdint.h>

struct tern_domain;
struct tern_gpu;

/* What travels: a range of device memory. */
struct tern_ipc_handle {
	unsigned char allocation[64]; /* the CUipcMemHandle */
	uint64_t offset, bytes;       /* the range in it */
	uint64_t address;             /* of the range, in the owner's process */
};
_Static_assert(sizeof(struct tern_ipc_handle) == 88, "no padding");

/* A range that a device of ours reads. */
struct tern_ipc_mapping {
	struct tern_gpu *gpu;
	uint64_t address, bytes;
	uint64_t opened; /* what is to be closed; 0: it is memory of this process */
};

/* Does this build know of it? */
bool tern_ipc_is_built(void);

/* -ENOTSUP: memory that cannot be shared (of the driver's pools, say), or a driver or a
 * device that cannot share any. */
int tern_ipc_export(const struct tern_gpu *gpu, uint64_t address, uint64_t bytes,
	struct tern_ipc_handle *out);

/*
 * Opens what a peer sent, on the first device in use of the domain that can: none is
 * brought into use for it. own_process: the owner is this process, and the handle is not
 * tried (a tool that counts what the driver refuses would count it). -ENODEV: the domain
 * uses no device, by now; -EBUSY: what lay at its addresses before is still open here;
 * -ENOTSUP: no device can read it, or it is not what it says.
 */
int tern_ipc_open(struct tern_domain *domain, const struct tern_ipc_handle *handle,
	bool own_process, struct tern_ipc_mapping *out);
/* No copy may be under way. */
void tern_ipc_close(struct tern_ipc_mapping *mapping);

#endif
