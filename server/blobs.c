/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blobs of the job on server 0 (ps/blob.h). A worker gives one in slot 0 of step b - 1, for version
 * b, and goes on when it has the answer. So:
 *
 *     The blob of version b is here before version b is complete on all servers, and the next one comes
 *     only after that. When blob b comes, no server is below b - 1, so the job can go back, from memory
 *     or to a snapshot that is being taken, to b - 1 or a later version. The newest blob and the one
 *     before it are all that is needed.
 *
 * A follower of server 0 has the blobs as well. When it has an update of each chunk, the worker is
 * answered only when the follower has said that it has the blob. A snapshot that is being taken has
 * a copy of its own (snapshots.c), since it is published when training has gone on.
 */
#include <errno.h>

#include "server/blobs.h"
#include "server/follow.h"
#include "server/snapshot_state.h"

void blobs_fini(struct tern_server *s)
{
	for (unsigned i = 0; i < TERN_BLOBS; i++)
		tern_blob_fini(&s->blobs[i]);
}

const struct tern_blob *blobs_find(const struct tern_server *s, uint64_t version)
{
	for (unsigned i = 0; i < TERN_BLOBS; i++)
		if (s->blobs[i].step && s->blobs[i].step <= version)
			return &s->blobs[i];
	return NULL;
}

void blobs_begin(struct tern_server *s, uint64_t version)
{
	if (s->blobs[0].step <= version)
		return;
	tern_blob_fini(&s->blobs[0]);
	s->blobs[0] = s->blobs[1];
	s->blobs[1] = (struct tern_blob){0};
}

void blobs_add(struct tern_server *s, struct tern_blob *blob)
{
	if (blob->step <= s->blobs[0].step) { /* a slot that was computed twice */
		tern_blob_fini(blob);
		return;
	}
	tern_blob_fini(&s->blobs[1]);
	s->blobs[1] = s->blobs[0];
	s->blobs[0] = *blob;
	*blob = (struct tern_blob){0};
}

json_t *blobs_json(const struct tern_server *s, uint64_t version)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < TERN_BLOBS && s->index == 0; i++) {
		const struct tern_blob *blob = &s->blobs[i];

		if (blob->step && blob->step <= version &&
			json_array_append_new(list, tern_blob_json(blob)) < 0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

int blobs_read(struct tern_server *s, const json_t *list)
{
	for (size_t i = json_array_size(list); i-- > 0;) {
		struct tern_blob blob;
		int r = tern_blob_read(json_array_get(list, i), s->job.steps, &blob);

		if (r < 0)
			return r == -ENOMEM ? r : -EPROTO;
		blobs_add(s, &blob);
	}
	return 0;
}

/* ---- a worker gives one ---- */

static void answer(struct server_peer *worker)
{
	uint64_t step = worker->keep_step;

	worker->keep_step = 0;
	if (!worker->gone)
		tern_talk_say(&worker->talk, json_pack("{s:s, s:I}", "type", "kept",
						     "step", (json_int_t)step));
}

void blobs_followed(struct tern_server *s, uint64_t step)
{
	for (uint32_t i = 0; s->workers && i < s->job.workers; i++) {
		struct server_peer *p = s->workers[i];

		if (p && p->keep_step && p->keep_step <= step)
			answer(p);
	}
}

/* True if a worker may give this blob: each chunk of this server has the version that the step is
 * computed from. */
static bool is_in_time(const struct tern_server *s, uint64_t step)
{
	for (uint32_t i = 0; i < s->chunk_count; i++)
		if (s->chunks[i].version + 1 < step)
			return false;
	return s->index == 0;
}

void blobs_on_keep(struct server_peer *worker, const json_t *message)
{
	struct tern_server *s = worker->server;
	struct tern_blob blob;
	int r = tern_blob_read(json_object_get(message, "blob"), s->job.steps, &blob);
	uint64_t step = blob.step;

	if (r == 0 && !is_in_time(s, step)) {
		tern_blob_fini(&blob);
		r = -EINVAL;
	}
	if (r < 0) {
		server_refuse(
			worker, r == -ENOMEM ? "no memory for the blob of the job"
					     : "its message \"keep\" is wrong: expected "
					       "a blob of a step that is being computed");
		return;
	}
	late_progress(worker);
	worker->keep_step = step;
	if (step > s->blobs[0].step) {
		snapshots_take_blob(s, &blob);
		blobs_add(s, &blob);
		if (follow_send_blob(s))
			return;
	}
	tern_blob_fini(&blob);
	if (!follow_owes_blob(s))
		answer(worker);
}
