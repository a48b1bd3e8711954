/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stager: copies between memory of a GPU and page-locked memory of the host, for
 * fabrics that reach only the latter. A context has one for each device in use. Nothing
 * here blocks or allocates once it is made.
 *
 * It has a stream for each way, in which copies are done in the order of the calls, and
 * slots: TERN_STAGE_SLOTS pieces of TERN_STAGE_BYTES for each way, which fabrics can send
 * from and receive into. Whoever finds none free waits; first come, first served.
 *
 * tern_progress() asks for what is done. Before the context sleeps, a wake is put into
 * the streams behind what is under way.
 */
#ifndef TERN_TRANSPORT_STAGER_H
#define TERN_TRANSPORT_STAGER_H

#include "base/list.h"
#include "transport/fabric.h"

#define TERN_STAGE_BYTES (512u << 10)
#define TERN_STAGE_SLOTS 4u

struct tern_context;
struct tern_gpu;
struct tern_stager;

enum tern_stage_way {
	TERN_STAGE_DOWN, /* from the device */
	TERN_STAGE_UP,   /* to it */
	TERN_STAGE_WAYS,
};

/*
 * A copy. The caller owns it, and must leave both ranges alone, until done() runs, once,
 * in tern_progress: with 0, then the bytes are there for whoever looks from now on; or
 * with a negative status (-EIO, -ENOTRECOVERABLE, ...), and then the device does not
 * touch the ranges any more either.
 */
struct tern_copy {
	void (*done)(struct tern_copy *copy, int status);
	/* The stager's. */
	struct tern_list link;
	uint64_t from;   /* memory that is lent to the device; 0: `host` */
	uint64_t device; /* our memory of it; or what is lent, for `host` */
	char *host;
	uint64_t bytes;
	enum tern_stage_way way;
	int status;
	bool in_stream, marked; /* marked: its event is recorded */
	uint8_t event;
};

/* A slot: TERN_STAGE_BYTES at (mem, offset). */
struct tern_stage_slot {
	struct tern_list link; /* of the free ones; else its holder's, as all below */
	struct tern_stager *stager;
	struct tern_mem *mem;
	uint64_t offset;
	enum tern_stage_way way;
	void *holder;
	uint64_t at, bytes; /* which piece of the holder's tensor is in it */
	struct tern_copy copy;
	struct tern_op op;
	uint8_t phase;
	bool dropped; /* the holder wants it no more */
};

/* Somebody who waits for a slot. */
struct tern_stage_wait {
	struct tern_list link; /* as tern_list_init() leaves it: does not wait */
	/* The slot is the waiter's now. Whoever gives it back in here does not wait again
	 * in here, or serving would not end. */
	void (*ready)(struct tern_stage_wait *wait, struct tern_stage_slot *slot);
};

/*
 * The context's stager for `gpu`, made at its first use, which takes milliseconds.
 * -ENOMEM: no page-locked memory, or none at all; -ENOTRECOVERABLE, -EIO, ...: the
 * driver.
 */
int tern_context_stager(
	struct tern_context *ctx, struct tern_gpu *gpu, struct tern_stager **out);

/* Starts to copy between (mem, offset), of the stager's device, and `host`, which is
 * page-locked. bytes > 0. */
void tern_stager_copy(struct tern_stager *stager, struct tern_copy *copy,
	enum tern_stage_way way, const struct tern_mem *mem, uint64_t offset, void *host,
	uint64_t bytes);

/* The same from `from`, which the stager's device reads (struct tern_loan), into memory
 * of a device, or of the host's that is page-locked. */
void tern_stager_fetch(struct tern_stager *stager, struct tern_copy *copy, uint64_t from,
	const struct tern_mem *mem, uint64_t offset, uint64_t bytes);

/* A free slot; NULL: none, or others wait for one. */
struct tern_stage_slot *tern_stager_take(
	struct tern_stager *stager, enum tern_stage_way way);
/* No copy and no fabric may be at it. */
void tern_stager_give(struct tern_stage_slot *slot);
/* ready() will be called when it is this one's turn, from a deferred call; unless it is
 * taken out of its list before. Urgent: it is the next one's. Waiting twice changes
 * nothing. */
void tern_stager_wait(struct tern_stager *stager, enum tern_stage_way way,
	struct tern_stage_wait *wait, bool urgent);

/* Where the CPU finds a slot's bytes. */
char *tern_stage_slot_data(const struct tern_stage_slot *slot);

/* ---- for the context ---- */

/* How many copies have ended. */
int tern_stagers_poll(struct tern_context *ctx);
/* Sees to it that the end of what is under way wakes the context. */
void tern_stagers_arm(struct tern_context *ctx);
/* Waits for the devices. Nobody may hold a slot or wait for one. */
void tern_stagers_free(struct tern_context *ctx);

#endif
