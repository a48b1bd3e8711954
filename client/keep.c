/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job's blob (ps/blob.h): the program gives it in slot 0 of a step, and server 0 keeps it.
 *
 *     worker with slot 0                server 0 (server/blobs.c)
 *     "keep"                    -->
 *                               <--     "kept"
 *     the last part of the gradient --> its server
 *
 * The last part of slot 0's gradient waits for the end of the slot, and then for the answer. So the
 * version after the step is complete only when server 0 has the step's blob. If this worker is lost
 * before, another one computes the slot, and its program gives the blob.
 */
#include "client/worker_state.h"

#include <errno.h>

/* ---- giving one ---- */

void keep_begin_slot(struct tern_worker *w)
{
	tern_blob_fini(&w->keep.given);
	w->keep.slot_ends = false;
}

bool keep_holds_last(const struct tern_worker *w)
{
	return w->job.mode == TERN_MODE_SYNC && w->room->slot == 0 && !w->keep.slot_ends;
}

int tern_work_keep(struct tern_work *work, const void *bytes, size_t size)
{
	struct room *room = tern_container_of(work, struct room, work);

	if (room->state != ROOM_COMPUTING)
		return 0;
	return tern_blob_set(&room->worker->keep.given, work->version + 1, bytes, size);
}

bool keep_awaits(struct tern_worker *w, double loss)
{
	struct worker_keep *keep = &w->keep;
	json_t *blob;

	if (!keep->given.step)
		return false;
	keep->awaited = true;
	keep->loss = loss;
	blob = tern_blob_json(&keep->given);
	if (!blob) {
		worker_give_up(w, -ENOMEM, "no memory to send the blob of the job");
		return true;
	}
	tern_talk_say(&w->servers[0].talk,
		json_pack("{s:s, s:o}", "type", "keep", "blob", blob));
	return true;
}

bool keep_stop(struct tern_worker *w)
{
	return TERN_TAKE(w->keep.awaited);
}

void keep_on_kept(struct worker_server *s, const json_t *message)
{
	struct tern_worker *w = s->worker;
	json_int_t step = json_integer_value(json_object_get(message, "step"));

	/* The answer may come when the slot was revoked. */
	if (s->index == 0 && w->keep.awaited && step == (json_int_t)w->keep.given.step) {
		w->keep.awaited = false;
		slots_end(w, w->keep.loss);
	}
}

/* ---- the one that this worker begins with ---- */

static bool take(struct tern_worker *w, const json_t *blob, unsigned place)
{
	int r = tern_blob_read(blob, w->job.steps, &w->keep.begins[place]);

	if (r == -ENOMEM)
		worker_give_up(w, r, "no memory for the blob of the job");
	else if (r < 0)
		worker_fail(w, -EPROTO,
			"server 0 sent a blob that cannot be right: expected at most %u "
			"bytes in base64, of a version from 1 to %llu",
			TERN_KEEP_MAX, (unsigned long long)w->job.steps);
	return r == 0;
}

bool keep_hear(struct worker_server *s, const json_t *message)
{
	const json_t *list = json_object_get(message, "blobs");

	for (unsigned i = 0; s->index == 0 && i < TERN_BLOBS; i++) {
		tern_blob_fini(&s->worker->keep.begins[i]);
		if (i < json_array_size(list) &&
			!take(s->worker, json_array_get(list, i), i))
			return false;
	}
	return true;
}

/* The newest of a version up to this one; NULL: there is none. */
static const struct tern_blob *find(const struct tern_worker *w, uint64_t version)
{
	const struct tern_blob *found = NULL;

	for (unsigned i = 0; i < TERN_BLOBS; i++) {
		const struct tern_blob *blob = &w->keep.begins[i];

		if (blob->step && blob->step <= version &&
			(!found || blob->step > found->step))
			found = blob;
	}
	return found;
}

void keep_begin(struct tern_worker *w, uint64_t version)
{
	static const struct tern_blob none = {0};
	const struct tern_blob *found = find(w, version);

	if (w->opts.kept)
		w->opts.kept(w->opts.arg, found ? found : &none);
	for (unsigned i = 0; i < TERN_BLOBS; i++)
		tern_blob_fini(&w->keep.begins[i]);
}

void keep_fini(struct tern_worker *w)
{
	tern_blob_fini(&w->keep.given);
	for (unsigned i = 0; i < TERN_BLOBS; i++)
		tern_blob_fini(&w->keep.begins[i]);
}
