/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stager: copies between GPU memory and page-locked host memory, for fabrics that
 * reach only the latter. A context has one for each device in use. Once it is made,
 * nothing in it blocks or allocates.
 *
 * It has one stream for each direction, in which copies complete in the order of the
 * calls, and TERN_STAGE_SLOTS slots for each direction. A slot is TERN_STAGE_BYTES of
 * host memory from which fabrics can send or into which they can receive. Requests for a
 * slot are served in the order of arrival.
 *
 * tern_progress() polls for completed copies. Before the context sleeps, a wake-up
 * callback is put into the streams behind the copies under way.
 */
#ifndef TERN_TRANSPORT_GPU_STAGER_H
#define TERN_TRANSPORT_GPU_STAGER_H

#include "base/list.h"
#include "transport/fabric.h"

#define TERN_STAGE_BYTES (512u << 10)
#define TERN_STAGE_SLOTS 4u

struct tern_context;
struct tern_gpu;
struct tern_stager;

enum tern_stage_way {
	TERN_STAGE_DOWN, /* from the device to the host */
	TERN_STAGE_UP,   /* from the host to the device */
	TERN_STAGE_WAYS,
};

/*
 * A copy. The caller owns it, and must not touch either range until done() runs, once, in
 * tern_progress(). Status 0: the bytes are visible to any reader from now on. Negative
 * status (-EIO, -ENOTRECOVERABLE, ...): the copy failed, and the device no longer
 * accesses the ranges.
 */
struct tern_copy {
	void (*done)(struct tern_copy *copy, int status);
	/* Used by the stager. */
	struct tern_list node;
	/* Source lent by a peer (struct tern_loan); 0: the source is `host`. */
	uint64_t from;
	/* Address on our device; for a loan, the source of a copy to `host`. */
	uint64_t device;
	char *host;
	uint64_t bytes;
	enum tern_stage_way way;
	int status;
	bool in_stream, marked; /* marked: its event is recorded */
	uint8_t event;
};

/* A slot: TERN_STAGE_BYTES at (mem, offset). */
struct tern_stage_slot {
	/* In the list of free slots; while taken, for the holder's use, as all below. */
	struct tern_list node;
	struct tern_stager *stager;
	struct tern_mem *mem;
	uint64_t offset;
	enum tern_stage_way way;
	void *holder;
	uint64_t at, bytes; /* the piece of the holder's tensor that is in the slot */
	struct tern_copy copy;
	struct tern_op op;
	uint8_t phase;
	bool dropped; /* the holder no longer needs it */
};

/* A waiter for a slot. */
struct tern_stage_wait {
	struct tern_list node; /* as tern_list_init() leaves it while it does not wait */
	/* Hands over the slot, which the waiter now owns. If the callback gives the
	 * slot back, it must not wait again inside the callback, or the loop that
	 * serves waiters would never end. */
	void (*ready)(struct tern_stage_wait *wait, struct tern_stage_slot *slot);
};

/*
 * Returns the context's stager for `gpu`. It is made at the first use, which takes
 * milliseconds. -ENOMEM: no memory, page-locked or ordinary; -ENOTRECOVERABLE, -EIO, ...:
 * errors of the driver.
 */
int tern_context_stager(
	struct tern_context *ctx, struct tern_gpu *gpu, struct tern_stager **out);

/* Starts a copy between (mem, offset), memory of the stager's device, and `host`,
 * page-locked memory. bytes > 0. */
void tern_stager_copy(struct tern_stager *stager, struct tern_copy *copy,
	enum tern_stage_way way, const struct tern_mem *mem, uint64_t offset, void *host,
	uint64_t bytes);

/* Starts a copy from address `from`, which the stager's device can read (struct
 * tern_loan), to GPU memory or page-locked host memory. */
void tern_stager_fetch(struct tern_stager *stager, struct tern_copy *copy, uint64_t from,
	const struct tern_mem *mem, uint64_t offset, uint64_t bytes);

/* Takes a free slot; NULL: none is free, or others wait for one. */
struct tern_stage_slot *tern_stager_take(
	struct tern_stager *stager, enum tern_stage_way way);
/* Gives a slot back. Neither a copy nor a fabric may use it any more. */
void tern_stager_give(struct tern_stage_slot *slot);
/* Queues a waiter: ready() is called from a deferred call when it is its turn, unless
 * it was removed from its list before. Urgent waiters come first. Waiting twice
 * changes nothing. */
void tern_stager_wait(struct tern_stager *stager, enum tern_stage_way way,
	struct tern_stage_wait *wait, bool urgent);

/* Address of the slot's bytes for the CPU. */
char *tern_stage_slot_data(const struct tern_stage_slot *slot);

/* ---- for the context ---- */

/* Completes copies that have ended. Returns how many. */
int tern_stagers_poll(struct tern_context *ctx); /* only if it has a stager */
/* Arranges that the end of the copies under way wakes the context. */
void tern_stagers_arm(struct tern_context *ctx);
/* Waits for the devices and frees the stagers. Nobody may hold a slot or wait for one. */
void tern_stagers_free(struct tern_context *ctx);

#endif
