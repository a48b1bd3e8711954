/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An early slot. A worker that has computed its slots of a version waits until all chunks
 * of the next version are here. Meanwhile it announces the slot that it will most likely
 * compute next, and the computer may read those parameters that are here already.
 *
 * Nothing else follows from it. The servers hear of the slot when it begins, so a loss can
 * still give this worker a slot of the older version, which is computed first; and no part
 * of a gradient can be sent before all of its parameters are here.
 */
#include "client/worker_state.h"

/* Returns the slot with which this worker begins a step; NULL: it has none. */
static const struct slot *first_slot(const struct tern_worker *w)
{
	const struct slot *first = NULL;

	for (uint32_t i = 0; i < w->slot_count; i++)
		if (!w->slots[i].moved && (!first || w->slots[i].number < first->number))
			first = &w->slots[i];
	return first;
}

/* True if no slot of the present version is left to be computed here, and the next version
 * is arriving, and is not the last one. */
static bool is_due(const struct tern_worker *w)
{
	if (w->job.mode != TERN_MODE_SYNC || w->state != WORKER_RUNNING || w->spare ||
		w->computing || w->is_announced || w->last_posted)
		return false;
	for (uint32_t i = 0; i < w->slot_count; i++)
		if (w->slots[i].pending)
			return false;
	return first_slot(w) && w->missing[(w->version + 1) & 1] > 0;
}

void early_run(struct tern_worker *w)
{
	const struct tern_computer_ops *ops = w->opts.computer->ops;

	if (!ops->announce || !is_due(w))
		return;
	w->is_announced = true;
	slots_describe(w, first_slot(w)->number, w->version + 1, &w->announced);
	ops->announce(w->opts.computer, &w->announced);
}

void early_arrived(struct tern_worker *w)
{
	if (w->is_announced && w->opts.computer->ops->arrived)
		w->opts.computer->ops->arrived(w->opts.computer);
}

void early_cancel(struct tern_worker *w)
{
	if (!w->is_announced)
		return;
	w->is_announced = false;
	w->opts.computer->ops->announce(w->opts.computer, NULL);
}

bool tern_work_is_here(const struct tern_work *work, uint64_t first, uint64_t count)
{
	const struct tern_worker *w =
		tern_container_of(work, struct tern_worker, announced);
	const struct version_part *parts = w->parts[work->version & 1];
	uint32_t last = tern_plan_chunk_at(&w->plan, first + count - 1);

	for (uint32_t i = tern_plan_chunk_at(&w->plan, first); i <= last; i++)
		if (!parts[i].is_here)
			return false;
	return true;
}

void tern_work_refuse(const struct tern_work *work, int status, const char *text)
{
	worker_give_up(tern_container_of((struct tern_work *)(uintptr_t)work,
			       struct tern_worker, announced),
		status, "%s", text);
}
