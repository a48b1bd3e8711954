/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stager: copies between GPU memory and page-locked host memory, for fabrics that can
 * access only host memory, and copies from GPU memory of a peer (struct tern_loan). A
 * context has one stager for each GPU whose copies it has needed. After a stager was
 * made, none of its calls blocks or allocates memory; only tern_stagers_free() waits.
 *
 * A stager has one CUDA stream for each direction, in which copies complete in the order
 * of the calls, and TERN_STAGE_SLOTS staging slots for each direction. A staging slot is
 * TERN_STAGE_BYTES of host memory from which fabrics can send or into which they can
 * receive. Requests for a slot are served in the order of arrival; an urgent request goes
 * to the front of the queue.
 *
 * tern_progress() polls for completed copies. Before the context sleeps, the stager adds
 * a wake-up callback to each stream that has copies in flight, after these.
 */
#ifndef TERN_TRANSPORT_GPU_STAGER_H
#define TERN_TRANSPORT_GPU_STAGER_H

#include "base/list.h"
#include "transport/fabric.h"

/* The GPU's copy engine takes some 2 us for each copy besides the time for its bytes: on
 * an H200, copies of 512 KiB reach 0.84 of the rate of one large copy, 2 MiB 0.96. */
#define TERN_STAGE_BYTES (2u << 20)
#define TERN_STAGE_SLOTS 4u

struct tern_context;
struct tern_gpu;
struct tern_stager;

enum tern_stage_way {
	TERN_STAGE_DOWN, /* from GPU to host memory */
	TERN_STAGE_UP,   /* from host memory, or a peer's GPU memory, to GPU memory */
	TERN_STAGE_WAYS,
};

/*
 * An asynchronous copy between GPU and host memory, or between two GPUs. The caller owns
 * the structure, and must not touch the source or the target until done() runs, exactly
 * once, in tern_progress(). Status 0: the copied bytes are visible to any reader.
 * Negative status (-EIO, -ENOTRECOVERABLE, ...): the copy failed, and the GPU no longer
 * accesses the memory, or is considered lost (stager.c).
 */
struct tern_copy {
	void (*done)(struct tern_copy *copy, int status);
	/* The members below are used by the stager only. */
	struct tern_list node;
	/* Source of a copy from GPU memory of a peer (struct tern_loan) to our GPU memory
	 * at `device`; 0: the copy is between `device` and `host`. */
	uint64_t from;
	/* Address in our GPU's memory; or, in a copy from a peer's GPU memory to `host`,
	 * the source. */
	uint64_t device;
	char *host;
	uint64_t bytes;
	enum tern_stage_way way;
	int status;
	/* in_stream: submitted to the CUDA stream; marked: its CUDA event was recorded */
	bool in_stream, marked;
	uint8_t event;
};

/* A staging slot: a buffer of TERN_STAGE_BYTES at (mem, offset). */
struct tern_stage_slot {
	/* In the stager's list of free slots. While the slot is taken, its holder may use
	 * this node. */
	struct tern_list node;
	struct tern_stager *stager;
	struct tern_mem *mem;
	uint64_t offset;
	enum tern_stage_way way;
	/* This and all members below belong to the holder of the slot. The stager sets
	 * `holder` to NULL when the slot is given back. */
	void *holder;
	/* Piece of the holder's tensor that is in the slot: offset and size in bytes. */
	uint64_t at, bytes;
	struct tern_copy copy;
	struct tern_op op;
	uint8_t phase;
	/* The holder has given up the transfer for which the slot is used. */
	bool dropped;
};

/* A request for a staging slot that waits until a slot is free. */
struct tern_stage_wait {
	/* In the stager's queue of requests. Initialise it by tern_list_init(); it is
	 * unlinked while this request is not queued. */
	struct tern_list node;
	/* Called with a free slot, which the waiter then holds. A callback that gives the
	 * slot back must not call tern_stager_wait() as well, or the loop that serves the
	 * queue would never end. */
	void (*ready)(struct tern_stage_wait *wait, struct tern_stage_slot *slot);
};

/* Returns the context's stager for `gpu`. The first call for a GPU makes the stager,
 * which takes milliseconds. -ENOMEM: no memory, page-locked or ordinary;
 * -ENOTRECOVERABLE, -EIO, ...: errors of the driver. */
int tern_context_stager(
	struct tern_context *ctx, struct tern_gpu *gpu, struct tern_stager **out);

/* Starts a copy between GPU memory at (mem, offset), on the stager's GPU, and `host`, in
 * page-locked memory. bytes > 0. */
void tern_stager_copy(struct tern_stager *stager, struct tern_copy *copy,
	enum tern_stage_way way, const struct tern_mem *mem, uint64_t offset, void *host,
	uint64_t bytes);

/* Starts a copy from the address `from` of a peer's GPU memory, which the stager's GPU
 * can read (struct tern_loan), to (mem, offset): GPU memory or page-locked host
 * memory. */
void tern_stager_fetch(struct tern_stager *stager, struct tern_copy *copy, uint64_t from,
	const struct tern_mem *mem, uint64_t offset, uint64_t bytes);

/* Takes a free staging slot; NULL: none is free, or others already wait for one. */
struct tern_stage_slot *tern_stager_take(
	struct tern_stager *stager, enum tern_stage_way way);
/* Gives a staging slot back. No copy and no fabric may use the slot any more. */
void tern_stager_give(struct tern_stage_slot *slot);
/* Queues a request for a staging slot: ready() is called later, in a deferred call,
 * unless `wait` was removed from its list before. An urgent request goes to the front of
 * the queue. If `wait` is queued already, nothing changes. */
void tern_stager_wait(struct tern_stager *stager, enum tern_stage_way way,
	struct tern_stage_wait *wait, bool urgent);

/* CPU address of the slot's buffer. */
char *tern_stage_slot_data(const struct tern_stage_slot *slot);

/* ---- for the context ---- */

/* Completes copies that have ended. Returns their number. */
int tern_stagers_poll(struct tern_context *ctx);
/* Arranges that the context is woken when the copies in flight have ended. */
void tern_stagers_arm(struct tern_context *ctx);
/* Waits for the GPUs' streams and frees the stagers. No slot may be held or waited
 * for. */
void tern_stagers_free(struct tern_context *ctx);

#endif
