/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots that are left out (tern server --on-nan skip): their loss is NaN or infinite.
 *
 * A worker whose servers leave slots out sends no part of a gradient before it knows the slot's
 * loss (tern_work_end()). So no server ever has a gradient of such a slot, and no step has to be
 * taken back. The worker sends zeros in its place, with marks that no tensor was pushed, and a shape that
 * says so (ps/marks.h). The loss follows from the job alone. So if this worker is killed, the worker that
 * takes over the slot leaves it out, too.
 */
#include "client/worker_state.h"

#include <errno.h>
#include <string.h>

static uint64_t largest_chunk(const struct tern_worker *w)
{
	uint64_t most = 0;

	for (uint32_t i = 0; i < w->plan.chunk_count; i++)
		most = TERN_MAX(most, w->plan.chunks[i].count);
	return most;
}

/* Makes the zeros in host memory, also if gradients are in memory of a GPU. */
static int make_zeros(struct tern_worker *w)
{
	uint64_t bytes = largest_chunk(w) * sizeof(float);
	struct tern_pool_opts opts = {
		.slab_bytes = tern_align_up(bytes + 4096, PAGE_BYTES_MAX)};
	int r;

	if (w->zeros_pool)
		return 0;
	opts.max_bytes = opts.slab_bytes;
	r = tern_pool_new(w->opts.domain, &opts, &w->zeros_pool);
	if (r == 0)
		r = tern_pool_get(w->zeros_pool, bytes, &w->zeros);
	if (r < 0) {
		tern_pool_free(TERN_TAKE(w->zeros_pool));
		return r == -EAGAIN ? -ENOMEM : r;
	}
	memset(tern_buf_ptr(&w->zeros), 0, bytes);
	return 0;
}

int omit_slot(struct tern_worker *w, struct room *room)
{
	int r = make_zeros(w);

	if (r < 0)
		return r;
	room->omitted = true;
	marks_begin(w);
	for (uint32_t i = 0; i < w->job.param_count; i++)
		marks_say(w, i);
	return 0;
}

void omit_fini(struct tern_worker *w)
{
	if (w->zeros_pool)
		tern_pool_put(w->zeros_pool, &w->zeros);
	tern_pool_free(w->zeros_pool);
}
