/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context's timers: a binary heap of pointers to timers that their users own. Each
 * timer knows its index in the heap, so moving or clearing a timer needs no search.
 * Invariant: heap[i]->place == i + 1, and no timer is due before its parent in the heap.
 */
#include <errno.h>

#include "transport/context.h"

static void place(struct tern_context *ctx, uint32_t at, struct tern_timer *timer)
{
	ctx->heap[at] = timer;
	timer->place = at + 1;
}

static void sift_up(struct tern_context *ctx, uint32_t at, struct tern_timer *timer)
{
	while (at > 0 && timer->due_ns < ctx->heap[(at - 1) / 2]->due_ns) {
		place(ctx, at, ctx->heap[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	place(ctx, at, timer);
}

static void sift_down(struct tern_context *ctx, uint32_t at, struct tern_timer *timer)
{
	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child >= ctx->timer_count)
			break;
		if (child + 1 < ctx->timer_count &&
			ctx->heap[child + 1]->due_ns < ctx->heap[child]->due_ns)
			child++;
		if (timer->due_ns <= ctx->heap[child]->due_ns)
			break;
		place(ctx, at, ctx->heap[child]);
		at = child;
	}
	place(ctx, at, timer);
}

/* Puts `timer` at index `at` of the heap, which must be free or hold `timer` already, and
 * restores the heap order. */
static void settle(struct tern_context *ctx, uint32_t at, struct tern_timer *timer)
{
	if (at > 0 && timer->due_ns < ctx->heap[(at - 1) / 2]->due_ns)
		sift_up(ctx, at, timer);
	else
		sift_down(ctx, at, timer);
}

int tern_timer_set(struct tern_context *ctx, struct tern_timer *timer, uint64_t due_ns)
{
	if (!timer->place && ctx->timer_count == ctx->heap_capacity) {
		uint32_t capacity = ctx->heap_capacity ? 2 * ctx->heap_capacity : 64;
		void *heap = reallocarray(ctx->heap, capacity, sizeof(*ctx->heap));

		if (!heap)
			return -ENOMEM;
		ctx->heap = heap;
		ctx->heap_capacity = capacity;
	}
	timer->due_ns = due_ns;
	if (!timer->place)
		timer->place = ++ctx->timer_count;
	settle(ctx, timer->place - 1, timer);
	return 0;
}

void tern_timer_clear(struct tern_context *ctx, struct tern_timer *timer)
{
	uint32_t at = timer->place - 1;
	struct tern_timer *last;

	if (!timer->place)
		return;
	timer->place = 0;
	last = ctx->heap[--ctx->timer_count];
	if (last != timer)
		settle(ctx, at, last);
}

uint64_t tern_context_next_ns(struct tern_context *ctx)
{
	return ctx->timer_count ? ctx->heap[0]->due_ns : TERN_NEVER;
}
