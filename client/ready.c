/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ready.h"

#include <errno.h>
#include <stdlib.h>

#include "base/util.h"

int ready_init(struct ready *r, const struct tern_plan *plan)
{
	r->plan = plan;
	r->left = calloc(plan->chunk_count, sizeof(*r->left));
	r->order = calloc(plan->chunk_count, sizeof(*r->order));
	return r->left && r->order ? 0 : -ENOMEM;
}

void ready_fini(struct ready *r)
{
	free(r->left);
	free(r->order);
}

void ready_begin(struct ready *r)
{
	for (uint32_t i = 0; i < r->plan->chunk_count; i++)
		r->left[i] = r->plan->chunks[i].count;
	r->taken = 0;
	atomic_store_explicit(&r->final, 0, memory_order_relaxed);
}

static void add(struct ready *r, uint32_t chunk)
{
	uint32_t count = atomic_load_explicit(&r->final, memory_order_relaxed);

	r->order[count] = chunk;
	/* Release: the chunk's elements and its place in `order` are written before the
	 * thread that takes it, which acquires the count, reads them. */
	atomic_store_explicit(&r->final, count + 1, memory_order_release);
}

void ready_say(struct ready *r, uint64_t first, uint64_t count)
{
	uint64_t end = first + count;

	/* From the last chunk to the first, in the order in which back-propagation
	 * finishes layers. */
	while (end > first) {
		uint32_t chunk = tern_plan_chunk_at(r->plan, end - 1);
		uint64_t from = TERN_MAX(first, r->plan->chunks[chunk].first);

		tern_assert(r->left[chunk] >= end - from);
		r->left[chunk] -= end - from;
		if (r->left[chunk] == 0)
			add(r, chunk);
		end = from;
	}
}

bool ready_take(struct ready *r, uint32_t *chunk)
{
	if (r->taken == atomic_load_explicit(&r->final, memory_order_acquire))
		return false;
	*chunk = r->order[r->taken++];
	return true;
}
