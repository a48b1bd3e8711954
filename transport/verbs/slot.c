/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots: registered buffers of VERBS_SLOT_BYTES. Frames are received into them, and
 * frames that are too long to be sent inline are sent from them.
 *
 * For each device that a port uses there are separate slots, cut from slabs: a slab is
 * one registered memory of VERBS_SLAB_SLOTS slots. If a device refuses to register a
 * slab, that slab is freed immediately; the slots of other devices are not affected.
 *
 * The number of slots follows the number of conns: for each conn there are the slots that
 * it may have posted for receiving, and those that it is guaranteed for sending, so one
 * conn cannot use up the slots of another. A common reserve lets a busy conn use more.
 * Slabs are added when a conn is made, and stay as long as the port uses the device.
 */
#include <errno.h>
#include <string.h>

#include "transport/verbs/verbs.h"

static uint32_t total(const struct verbs_slots *slots)
{
	return slots->slab_count * VERBS_SLAB_SLOTS;
}

void verbs_slots_fini(struct verbs_queue *queue)
{
	struct verbs_slots *slots = &queue->slots;

	for (uint32_t i = 0; i < slots->slab_count; i++)
		tern_mem_put(slots->slabs[i]);
	free(slots->table);
}

/* Makes a slab, and checks that the queue's device could register it. */
static int new_slab(const struct verbs_queue *queue, struct tern_mem **out)
{
	struct tern_fabric *fabric = queue->port->base.fabric;
	struct tern_mem *slab;
	int r = tern_mem_new_slab(fabric->domain,
		(uint64_t)VERBS_SLAB_SLOTS * VERBS_SLOT_BYTES, false, &slab);

	if (r)
		return r;
	if (!verbs_lkey(slab, queue->device, fabric)) {
		tern_mem_put(slab);
		return -EIO;
	}
	*out = slab;
	return 0;
}

static int add_slab(struct verbs_queue *queue)
{
	struct verbs_slots *slots = &queue->slots;
	uint32_t first = total(slots);
	struct verbs_slot *table;
	int r;

	if (slots->slab_count == VERBS_SLABS_MAX)
		return -ENOMEM;
	table = realloc(slots->table, (first + VERBS_SLAB_SLOTS) * sizeof(*table));
	if (!table)
		return -ENOMEM;
	slots->table = table;
	r = new_slab(queue, &slots->slabs[slots->slab_count]);
	if (r)
		return r;
	slots->slab_count++;
	/* The free list is a stack. The new slots are pushed in reverse order, so that
	 * they are later taken in the order of their addresses. */
	for (uint32_t i = VERBS_SLAB_SLOTS; i-- > 0;) {
		table[first + i] = (struct verbs_slot){.next_free = slots->free};
		slots->free = first + i + 1;
	}
	slots->free_count += VERBS_SLAB_SLOTS;
	return 0;
}

int verbs_slots_grow(struct verbs_queue *queue, uint32_t count)
{
	struct verbs_slots *slots = &queue->slots;
	int r = 0;

	while (r == 0 && slots->free_count < slots->reserved + slots->owed + count +
						     VERBS_SEND_COMMON)
		r = add_slab(queue);
	return r;
}

static uint32_t pop(struct verbs_slots *slots, enum verbs_slot_place place, void *owner)
{
	uint32_t slot = slots->free - 1;
	struct verbs_slot *s = &slots->table[slot];

	tern_assert(slots->free_count > 0);
	slots->free = s->next_free;
	slots->free_count--;
	s->place = place;
	s->owner = owner;
	return slot;
}

static void push(struct verbs_slots *slots, uint32_t slot)
{
	struct verbs_slot *s = &slots->table[slot];

	s->place = VERBS_SLOT_FREE;
	s->owner = NULL;
	s->next_free = slots->free;
	slots->free = slot + 1;
	slots->free_count++;
}

/* ---- sending ---- */

uint32_t verbs_slot_count(const struct verbs_conn *conn)
{
	const struct verbs_slots *slots = &conn->queue->slots;
	uint32_t kept = slots->reserved + slots->owed;
	uint32_t common = slots->free_count - TERN_MIN(slots->free_count, kept);

	return common + (conn->slots_held < VERBS_SEND_SLOTS
					? VERBS_SEND_SLOTS - conn->slots_held
					: 0);
}

int verbs_slot_take(struct verbs_conn *conn)
{
	struct verbs_slots *slots = &conn->queue->slots;

	if (verbs_slot_count(conn) == 0)
		return -EAGAIN;
	if (conn->slots_held++ < VERBS_SEND_SLOTS)
		slots->reserved--;
	return (int)pop(slots, VERBS_SLOT_SENDING, conn);
}

void verbs_slot_give(struct verbs_queue *queue, uint32_t slot)
{
	struct verbs_slots *slots = &queue->slots;
	struct verbs_conn *conn = slots->table[slot].owner;

	tern_assert(slots->table[slot].place == VERBS_SLOT_SENDING);
	if (--conn->slots_held < VERBS_SEND_SLOTS)
		slots->reserved++;
	push(slots, slot);
}

/* ---- where slots are ---- */

static uint64_t offset_of(uint32_t slot)
{
	return (uint64_t)(slot % VERBS_SLAB_SLOTS) * VERBS_SLOT_BYTES + VERBS_SLOT_PAD;
}

char *verbs_slot_at(const struct verbs_queue *queue, uint32_t slot)
{
	return tern_mem_at(queue->slots.slabs[slot / VERBS_SLAB_SLOTS], offset_of(slot));
}

struct ibv_sge verbs_slot_sge(
	const struct verbs_queue *queue, uint32_t slot, uint32_t bytes)
{
	const struct tern_mem *mem = queue->slots.slabs[slot / VERBS_SLAB_SLOTS];

	return (struct ibv_sge){
		.addr = (uintptr_t)verbs_slot_at(queue, slot),
		.length = bytes,
		.lkey = verbs_lkey(mem, queue->device, queue->port->base.fabric),
	};
}

/* ---- receiving ---- */

/* A linked list of receive work requests for free slots. */
struct batch {
	struct ibv_recv_wr wr[VERBS_BATCH];
	struct ibv_sge sge[VERBS_BATCH];
};

static uint32_t fill(
	struct batch *batch, struct verbs_queue *queue, void *owner, uint32_t count)
{
	uint32_t n = TERN_MIN(count, VERBS_BATCH);

	for (uint32_t i = 0; i < n; i++) {
		uint32_t slot = pop(&queue->slots, VERBS_SLOT_POSTED, owner);

		batch->sge[i] =
			verbs_slot_sge(queue, slot, VERBS_SLOT_BYTES - VERBS_SLOT_PAD);
		batch->wr[i] = (struct ibv_recv_wr){
			.wr_id = VERBS_ID_RECV | slot,
			.sg_list = &batch->sge[i],
			.num_sge = 1,
			.next = i + 1 < n ? &batch->wr[i + 1] : NULL,
		};
	}
	return n;
}

/* Frees the slots of the requests from `bad` on, which the device did not accept. Returns
 * their number. */
static uint32_t unfill(struct verbs_queue *queue, const struct ibv_recv_wr *bad)
{
	uint32_t count = 0;

	for (; bad; bad = bad->next, count++)
		push(&queue->slots, (uint32_t)bad->wr_id);
	return count;
}

int verbs_slots_post(struct verbs_conn *conn, uint32_t count)
{
	struct ibv_recv_wr *bad;
	struct batch batch;

	while (count > 0) {
		uint32_t n = fill(&batch, conn->queue, conn, count);
		int r = ibv_post_recv(conn->id->qp, batch.wr, &bad);

		if (r) {
			unfill(conn->queue, bad);
			return r > 0 ? -r : -EIO;
		}
		count -= n;
	}
	return 0;
}

static uint32_t deficit(const struct verbs_queue *queue)
{
	return queue->wanted - TERN_MIN(queue->wanted, queue->posted);
}

/* Adds `posted` and `wanted` to the numbers of receives that the queue has and should have,
 * and updates `owed`, the number that it lacks. Until these can be posted, so many free slots
 * are not used for sending. */
void verbs_queue_books(struct verbs_queue *queue, int posted, int wanted)
{
	struct verbs_slots *slots = &queue->slots;

	slots->owed -= deficit(queue);
	queue->posted += (uint32_t)posted;
	queue->wanted += (uint32_t)wanted;
	slots->owed += deficit(queue);
}

int verbs_slots_refill(struct verbs_queue *queue)
{
	struct ibv_recv_wr *bad;
	struct batch batch;

	while (queue->posted < queue->wanted) {
		uint32_t n = fill(&batch, queue, queue, queue->wanted - queue->posted);
		int r = ibv_post_srq_recv(queue->srq, batch.wr, &bad);

		if (r)
			n -= unfill(queue, bad);
		verbs_queue_books(queue, (int)n, 0);
		if (r)
			return r > 0 ? -r : -EIO;
	}
	return 0;
}

bool verbs_slot_is_shared(const struct verbs_queue *queue, uint32_t slot)
{
	return queue->slots.table[slot].owner == queue;
}

void verbs_slot_arrived(struct verbs_queue *queue, uint32_t slot)
{
	struct verbs_slots *slots = &queue->slots;

	tern_assert(slot < total(slots) && slots->table[slot].place == VERBS_SLOT_POSTED);
	push(slots, slot);
}

void verbs_slots_reclaim(struct verbs_queue *queue, const void *owner)
{
	struct verbs_slots *slots = &queue->slots;

	for (uint32_t i = 0; i < total(slots); i++) {
		struct verbs_slot *s = &slots->table[i];

		if (s->owner != owner)
			continue;
		if (s->place == VERBS_SLOT_SENDING)
			verbs_slot_give(queue, i);
		else
			push(slots, i);
	}
}
