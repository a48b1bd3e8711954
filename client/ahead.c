/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which slots (shares of each step's records) this worker will compute next, so that a
 * program can load their records early. The slots of a worker change only when another
 * worker is lost, or comes, or when a worker is slow. Until then it computes the same slots in every step, in the
 * order of their numbers (slots.c), and the list below is what comes.
 */
#include <limits.h>

#include "base/sized.h"
#include "client/session.h"
#include "client/session_state.h"
#include "client/worker_state.h"

/* Returns the slot of this worker with the lowest number from `from` on; with `pending`,
 * of those that have not begun in the present step. NULL: there is none. */
static const struct slot *find_slot(
	const struct tern_worker *w, uint64_t from, bool pending)
{
	const struct slot *found = NULL;

	for (uint32_t i = 0; i < w->slot_count; i++) {
		const struct slot *slot = &w->slots[i];

		if (slot->number >= from && (slot->pending || !pending) && !slot->moved &&
			(!found || slot->number < found->number))
			found = slot;
	}
	return found;
}

/* A list iterator. */
struct ahead {
	const struct tern_worker *worker;
	uint64_t version, from;
};

/* Moves on to the next slot that has not begun. False: the worker knows of none. */
static bool next_ahead(struct ahead *a, uint32_t *slot)
{
	const struct tern_worker *w = a->worker;
	const struct slot *found = NULL;

	/* A spare worker gets its slots, and learns its version, from a loss, or when it is let
	 * in during the steps. The others hear from a server with which version the job
	 * begins. */
	if (w->spare || !w->welcomed || w->state > WORKER_RUNNING ||
		!find_slot(w, 0, false))
		return false;
	while (!found && a->version < w->my_steps) {
		found = find_slot(w, a->from, w->begun && a->version == w->version);
		a->version += !found;
		a->from = found ? found->number + 1ull : 0;
	}
	if (found)
		*slot = found->number;
	return found;
}

/* Returns the slot that the worker has begun or announced, and the program has not got;
 * NULL: there is none. The second time of a slot that is computed twice does not count. */
static const struct tern_work *waiting(const struct tern_session *s)
{
	const struct tern_slot *slot = &s->slot;

	/* The program may hold an early slot that was revoked. */
	if (slot->work && (!slot->held || slot->early))
		return s->verify.phase == VERIFY_SECOND ? NULL : slot->work;
	return slot->held ? NULL : slot->announced;
}

int tern_session_ahead_sized(struct tern_session *s, struct tern_slot_info *infos,
	size_t info_bytes, uint32_t count)
{
	const struct tern_work *first = waiting(s), *announced = s->slot.announced;
	struct ahead a = {.worker = s->worker};
	struct tern_slot_info own;
	uint32_t found = 0, slot;

	if (!s->started || s->ended || s->final)
		return 0;
	a.version = s->worker->version;
	if (announced) {
		a.version = announced->version;
		a.from = announced->slot + 1ull;
	}
	for (; found < TERN_MIN(count, (uint32_t)INT_MAX); found++) {
		if (found == 0 && first)
			own = session_info(s, first->version, first->slot);
		else if (next_ahead(&a, &slot))
			own = session_info(s, a.version, slot);
		else
			break;
		tern_write_sized((char *)infos + found * info_bytes, info_bytes, &own,
			sizeof(own));
	}
	return (int)found;
}

uint64_t tern_session_record(
	const struct tern_session *s, uint64_t step, uint32_t slot, uint32_t j)
{
	const struct tern_ps_job *job = &s->job;

	/* Any thread may be here, so the worker, which may be another one soon, is not used. */
	if (!s->started || job->records == 0 || j >= job->batch ||
		(job->mode == TERN_MODE_ASYNC ? slot > 0 : slot >= job->slots))
		return UINT64_MAX;
	return tern_work_record(
		&(struct tern_work){.seed = job->seed,
			.record_count = job->records,
			.first = slots_first_record(job, s->index, step, slot)},
		j);
}
