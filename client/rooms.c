/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The buffers ("rooms") in which gradients are computed and from which they are sent.
 * There are at most two, however many slots (shares of each step's records) this worker
 * has. A buffer is free again when the computer (compute.h) has let go of it and the
 * servers have its whole gradient.
 *
 * Servers receive the gradients of a window of slots, in the order of slot numbers
 * (server/sync.c), and a worker computes its slots in the same order. So the gradient
 * that a server needs next is in one of these buffers, or is the next one to be computed,
 * or belongs to another worker. A slot of a lost worker breaks this rule: it may come
 * before the slots whose gradients fill the buffers. Then the worker sends "holds", and
 * the servers receive these gradients out of turn.
 */
#include "client/worker_state.h"

#include <errno.h>

int rooms_add(struct tern_worker *w, bool late)
{
	struct room *room = &w->rooms[w->room_count];
	uint64_t bytes = w->job.element_count * sizeof(float);
	int r;

	*room = (struct room){.worker = w};
	if (late)
		r = tern_pool_get(w->pool, bytes, &room->gradient);
	else
		r = worker_get_vector(w, &room->gradient);
	if (r < 0)
		return r == -EAGAIN ? -ENOMEM : r;
	w->room_count++;
	room->parts = calloc(w->plan.chunk_count, sizeof(*room->parts));
	return room->parts ? 0 : -ENOMEM;
}

void rooms_fini(struct tern_worker *w)
{
	for (uint32_t i = 0; i < w->room_count; i++) {
		tern_pool_put(w->pool, &w->rooms[i].gradient);
		free(w->rooms[i].parts);
	}
}

struct room *rooms_find(struct tern_worker *w)
{
	for (uint32_t i = 0; i < w->room_count; i++)
		if (w->rooms[i].state == ROOM_IDLE && w->rooms[i].sends_out == 0)
			return &w->rooms[i];
	return NULL;
}

void rooms_want(struct tern_worker *w, const struct slot *slot)
{
	for (uint32_t i = 0; i < w->room_count; i++) {
		struct room *room = &w->rooms[i];

		/* The gradient of an older version has reached all servers: only the
		 * completion of its sends was not handled yet. */
		if (room->slot < slot->number || room->wanted ||
			room->version != w->version || w->job.mode != TERN_MODE_SYNC)
			continue;
		room->wanted = true;
		for (uint32_t k = 0; k < w->job.server_count; k++)
			tern_talk_say(&w->servers[k].talk,
				json_pack("{s:s, s:I, s:I}", "type", "holds", "slot",
					(json_int_t)room->slot, "version",
					(json_int_t)room->version));
	}
}
