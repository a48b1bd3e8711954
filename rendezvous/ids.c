/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds requests by the ids in messages: our own requests by their ids, and our sends by
 * the id of the peer's receive whose buffer they write into.
 *
 * An id consists of the index of a table entry (struct tern_slot) and the entry's
 * generation. When an entry is used again, its generation has changed, so a late message
 * finds nothing rather than another request. A request gets an id only when one of its
 * messages needs one.
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>

#define SLOTS_MAX  65535u
#define SLOTS_STEP 64u

static int more_slots(struct tern_peer *peer)
{
	uint32_t count =
		TERN_MIN(TERN_MAX(peer->ids.slot_count * 2, SLOTS_STEP), SLOTS_MAX);
	struct tern_slot *slots;

	if (count == peer->ids.slot_count)
		return -EAGAIN;
	slots = realloc(peer->ids.slots, count * sizeof(*slots));
	if (!slots)
		return -EAGAIN;
	for (uint32_t i = peer->ids.slot_count; i < count; i++)
		slots[i] = (struct tern_slot){.next = i + 1, .generation = 1};
	peer->ids.slots = slots;
	peer->ids.free_slot = peer->ids.slot_count;
	peer->ids.slot_count = count;
	return 0;
}

int tern_xfer_id(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;
	uint32_t i;

	if (x->id)
		return 0;
	if (peer->ids.free_slot == peer->ids.slot_count && more_slots(peer) < 0)
		return -EAGAIN;
	i = peer->ids.free_slot;
	peer->ids.free_slot = peer->ids.slots[i].next;
	peer->ids.slots[i].xfer = x;
	x->id = (uint32_t)peer->ids.slots[i].generation << 16 | i;
	return 0;
}

void tern_xfer_free_id(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;
	uint32_t i = x->id & 0xffff;

	peer->ids.slots[i].xfer = NULL;
	if (++peer->ids.slots[i].generation == 0)
		peer->ids.slots[i].generation = 1;
	peer->ids.slots[i].next = peer->ids.free_slot;
	peer->ids.free_slot = i;
	x->id = 0;
}

struct tern_xfer *tern_xfer_by_id(struct tern_peer *peer, uint32_t id)
{
	uint32_t i = id & 0xffff;

	if (i >= peer->ids.slot_count || peer->ids.slots[i].generation != id >> 16)
		return NULL;
	return peer->ids.slots[i].xfer;
}

void tern_xfer_write_into(struct tern_xfer *x, uint32_t id)
{
	x->remote_id = id;
	tern_map_add(&x->peer->theirs, &x->theirs, tern_theirs_key(TERN_WRITES_INTO, id));
}

struct tern_xfer *tern_xfer_by_their_id(struct tern_peer *peer, uint32_t id)
{
	struct tern_map_node *n =
		tern_map_find(&peer->theirs, tern_theirs_key(TERN_WRITES_INTO, id));

	return n ? tern_container_of(n, struct tern_xfer, theirs) : NULL;
}
