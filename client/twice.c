/* SPDX-License-Identifier: Apache-2.0 */
/* Says the digests of a slot that another worker may have computed before: ps/twice.h. */
#include "ps/twice.h"

#include "client/worker_state.h"

static json_t *digests_for(
	const struct tern_worker *w, const struct room *room, uint32_t server)
{
	json_t *list = json_array();
	uint32_t count = 0;

	for (uint32_t i = 0; i < w->plan.chunk_count && count < TERN_TWICE_MAX; i++) {
		const struct tern_chunk *c = &w->plan.chunks[i];
		struct tern_tensor sent = rooms_tensor(room, i);
		uint64_t bytes;
		const uint8_t *marks;

		if (c->server != server)
			continue;
		marks = marks_of(w, i, &bytes);
		json_array_append_new(
			list, json_integer((json_int_t)tern_twice_digest(
				      c, tern_buf_ptr(&sent.buf), marks, bytes)));
		count++;
	}
	return list;
}

void twice_say(struct tern_worker *w, const struct room *room)
{
	/* The CPU cannot read gradients in GPU memory. */
	if (!room->taken_over || w->opts.memory.kind != TERN_MEM_HOST)
		return;
	for (uint32_t i = 0; i < w->job.server_count; i++)
		tern_talk_say(&w->servers[i].talk,
			json_pack("{s:s, s:I, s:I, s:o}", "type", "digests", "slot",
				(json_int_t)room->slot, "version",
				(json_int_t)room->version, "digests",
				digests_for(w, room, i)));
}
