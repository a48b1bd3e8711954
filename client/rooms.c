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
 *
 * Gradients that are sent as bf16 have a buffer of their own in each room, since the computer
 * may still write to the float32 of one tensor when another tensor of the same chunk is
 * rounded.
 */
#include "client/worker_state.h"

#include <errno.h>
#include <string.h>

#include "kernels/bf16.h"

int rooms_init_bf16(struct tern_worker *w)
{
	uint64_t bytes = tern_align_up(w->plan.bf16_count * sizeof(uint16_t), 64) + 4096;
	/* The pool rounds sizes up, so it may need one slab more than there are buffers. */
	struct tern_pool_opts opts = {
		.slab_bytes = bytes, .max_bytes = (TERN_GRADIENT_BUFFERS + 1ull) * bytes};

	return tern_pool_new(w->opts.domain, &opts, &w->bf16_pool);
}

static uint16_t *bf16_of(const struct room *room, const struct tern_chunk *c)
{
	return (uint16_t *)tern_buf_ptr(&room->bf16) + c->bf16_first;
}

void tern_work_put(
	struct tern_work *work, uint64_t first, uint64_t count, const float *from)
{
	const struct room *room = tern_container_of(work, struct room, work);
	const struct tern_plan *plan = &room->worker->plan;
	float *to = tern_vector(&room->gradient);

	for (uint64_t at = first, end = first + count; at < end;) {
		const struct tern_chunk *c = &plan->chunks[tern_plan_chunk_at(plan, at)];
		uint64_t part = TERN_MIN(end, c->first + c->count) - at;
		const float *values = from ? from + (at - first) : to + at;

		if (c->push_bf16)
			tern_bf16_narrow(
				bf16_of(room, c) + (at - c->first), values, part);
		else if (from)
			memcpy(to + at, values, part * sizeof(*to));
		at += part;
	}
}

struct tern_tensor rooms_tensor(const struct room *room, uint32_t chunk)
{
	const struct tern_chunk *c = &room->worker->plan.chunks[chunk];
	struct tern_tensor tensor = {.buf = room->gradient,
		.shape = tern_shape_1d(c->push_bf16 ? TERN_BF16 : TERN_F32, c->count)};

	if (room->omitted) {
		tensor.buf = room->worker->zeros;
		tensor.buf.bytes =
			c->count * (c->push_bf16 ? sizeof(uint16_t) : sizeof(float));
	} else if (c->push_bf16) {
		tensor.buf = room->bf16;
		tensor.buf.offset += c->bf16_first * sizeof(uint16_t);
		tensor.buf.bytes = c->count * sizeof(uint16_t);
	} else {
		tensor.buf.offset += c->first * sizeof(float);
		tensor.buf.bytes = c->count * sizeof(float);
	}
	return tensor;
}

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
	if (r == 0 && w->bf16_pool) {
		r = tern_pool_get(
			w->bf16_pool, w->plan.bf16_count * sizeof(uint16_t), &room->bf16);
		if (r < 0)
			tern_pool_put(w->pool, &room->gradient);
	}
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
		tern_pool_put(w->bf16_pool, &w->rooms[i].bf16);
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
