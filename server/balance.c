/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots move from slow workers to others. A step takes as long as its slowest worker, that is, the
 * largest product of a worker's number of slots and its time for one. Workers tell how long they
 * compute ("progress"). If another worker would be done with one slot more in two thirds of that
 * time, server 0 moves a slot to it (change.c). The sum of a step does not depend on who computes
 * what, so the bytes of the result are the same.
 *
 * Times differ from slot to slot for many reasons. So a worker counts as slow by the shortest of its
 * last times, and the one that takes the slot as fast by the longest. Times of the slots that a
 * worker had before a move do not count after it, which also limits how often slots move.
 */
#include "server/balance.h"

#include <string.h>

#include "base/clock.h"
#include "server/server_state.h"

/* Steps that are shorter gain less than the stop between two steps costs. */
#define STEP_LEAST_NS (10 * TERN_NS_PER_MS)

void balance_note(struct balance_times *times, uint64_t ns)
{
	times->ns[times->count++ % BALANCE_SLOTS] = TERN_MAX(ns, 1u);
}

void balance_forget(struct balance_times *times)
{
	*times = (struct balance_times){0};
}

/* The longest of the last times, or the shortest; 0: they are too few. */
static uint64_t extreme_ns(const struct balance_times *times, bool longest)
{
	uint64_t ns = times->ns[0];

	if (times->count < BALANCE_SLOTS)
		return 0;
	for (uint32_t i = 1; i < BALANCE_SLOTS; i++)
		ns = longest ? TERN_MAX(ns, times->ns[i]) : TERN_MIN(ns, times->ns[i]);
	return ns;
}

static uint64_t times(uint64_t count, uint64_t ns)
{
	return ns && count > UINT64_MAX / ns ? UINT64_MAX : count * ns;
}

/* The longest time of a slot of those workers that are not slower than all others; 0: none is known.
 * A worker that has computed nothing yet is taken to be like them. */
static uint64_t usual_ns(
	const struct balance_worker *workers, uint32_t count, uint32_t slowest)
{
	uint64_t ns = 0;

	for (uint32_t i = 0; i < count; i++)
		if (i != slowest)
			ns = TERN_MAX(ns, extreme_ns(workers[i].times, true));
	return ns;
}

bool balance_find(const struct balance_worker *workers, uint32_t count, uint32_t *from,
	uint32_t *to)
{
	uint64_t step_ns = 0, least_ns = UINT64_MAX, usual;

	for (uint32_t i = 0; i < count; i++) {
		uint64_t ns =
			times(workers[i].slots, extreme_ns(workers[i].times, false));

		if (ns <= step_ns)
			continue;
		step_ns = ns;
		*from = i;
	}
	if (step_ns < STEP_LEAST_NS)
		return false;
	usual = usual_ns(workers, count, *from);
	for (uint32_t i = 0; i < count; i++) {
		uint64_t slot_ns = extreme_ns(workers[i].times, true), ns;

		if (i == *from || !workers[i].takes)
			continue;
		slot_ns = slot_ns ? slot_ns : usual;
		ns = slot_ns ? times(workers[i].slots + 1ull, slot_ns) : UINT64_MAX;
		if (ns >= least_ns)
			continue;
		least_ns = ns;
		*to = i;
	}
	return least_ns <= step_ns / 3 * 2;
}

/* True if the worker can take one more slot. It has a buffer for it if it has none or several slots;
 * a second buffer may be more than its memory holds. One that takes a slot of a lost worker just now
 * is left in peace. A server's budget for gradients stays as it is, and has room for some that come
 * before their turn (sync.c). */
static bool can_take(
	const struct tern_server *s, const struct server_peer *p, uint32_t slots)
{
	if (!lease_is_live(p) || p->leaving || p->gone || p->stalled)
		return false;
	if (slots == 0)
		return true;
	return p->follows && p->times.count >= BALANCE_SLOTS &&
	       slots >= TERN_GRADIENT_BUFFERS && s->staging_bytes >= s->staging_most &&
	       s->staging_bytes <= STAGING_MOST / 2;
}

bool balance_find_move(
	const struct tern_server *s, const uint32_t *loads, uint32_t *from, uint32_t *to)
{
	struct balance_worker *workers = calloc(s->job.workers, sizeof(*workers));
	bool found;

	if (!workers) /* all slots stay, which is right, too */
		return false;
	for (uint32_t i = 0; i < s->job.workers; i++)
		workers[i] = (struct balance_worker){.times = &s->workers[i]->times,
			.slots = loads[i],
			.takes = can_take(s, s->workers[i], loads[i])};
	found = balance_find(workers, s->job.workers, from, to);
	free(workers);
	return found;
}
