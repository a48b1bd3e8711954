/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters arrive chunk by chunk, directly in one of two flat buffers: version v in
 * buffer v mod 2. The receives of v+1 are posted when v is complete and all slots that
 * were begun from version v-1, whose buffer they use, are computed.
 *
 * A chunk that travels as bf16 arrives at the begin of its place and is widened there. The
 * last version of this worker travels as float32 in any case.
 */
#include "client/worker_state.h"

#include <errno.h>
#include <math.h>

#include "kernels/bf16.h"

int versions_init(struct tern_worker *w)
{
	int r = 0;

	for (int i = 0; i < 2 && r == 0; i++) {
		r = worker_get_vector(w, &w->w[i]);
		w->parts[i] = calloc(w->plan.chunk_count, sizeof(*w->parts[i]));
		if (!w->parts[i])
			r = -ENOMEM;
	}
	return r;
}

void versions_fini(struct tern_worker *w)
{
	for (int i = 0; i < 2; i++) {
		if (w->pool)
			tern_pool_put(w->pool, &w->w[i]);
		free(w->parts[i]);
	}
}

const struct tern_buf *versions_current(const struct tern_worker *w)
{
	return &w->w[w->version & 1];
}

static void report_step(struct tern_worker *w)
{
	double loss = w->step_weight > 0 ? w->step_loss / w->step_weight : NAN;

	if (w->step_weight > 0) {
		if (w->loss_count == 0)
			w->first_loss = loss;
		w->losses[w->loss_count++ % WORKER_LOSS_WINDOW] = loss;
		report_loss(w, loss, w->step_weight);
	}
	w->step_weight = w->step_loss = 0;
	if (w->opts.progress)
		w->opts.progress(
			w->opts.arg, &(struct tern_worker_progress){.step = w->version,
					     .loss = loss,
					     .records = w->record_count,
					     .bytes = w->byte_count});
}

void versions_complete(struct tern_worker *w, uint64_t version)
{
	w->version = version;
	w->spare = false;
	if (w->state == WORKER_FINISHING) {
		if (w->uncounted_count == 0)
			finish_run(w);
		return;
	}
	if (version > w->own_version)
		report_step(w);
	if (!w->begun)
		keep_begin(w, w->own_version);
	if (!w->begun && w->opts.begun)
		w->opts.begun(w->opts.arg, w->own_version);
	w->begun = true;
	report_say(w);
	if (version == w->my_steps) {
		finish_start(w);
		return;
	}
	if (!w->last_posted)
		versions_receive(w, version + 1);
	slots_begin(w);
}

/* True if this chunk of a version travels as bf16. */
static bool is_bf16(
	const struct tern_worker *w, const struct tern_chunk *chunk, uint64_t version)
{
	return chunk->pull_bf16 && version < w->my_steps;
}

static uint64_t bytes_of(
	const struct tern_worker *w, const struct tern_chunk *chunk, uint64_t version)
{
	return chunk->count *
	       (is_bf16(w, chunk, version) ? sizeof(uint16_t) : sizeof(float));
}

/* Checks what has arrived for a chunk; else ends the job. */
static bool is_right(struct tern_worker *w, const struct version_part *part)
{
	uint32_t number = (uint32_t)(part - w->parts[part->parity]);
	const struct tern_chunk *chunk = &w->plan.chunks[number];
	const struct tern_req *req = &part->req;
	enum tern_dtype dtype = is_bf16(w, chunk, part->version) ? TERN_BF16 : TERN_F32;
	uint64_t bytes = bytes_of(w, chunk, part->version);

	if (req->bytes == bytes && req->shape.dtype == dtype)
		return true;
	worker_fail(w, -EPROTO,
		"server %u sent %llu bytes, %s, for chunk %u: expected %llu bytes, %s",
		chunk->server, (unsigned long long)req->bytes,
		tern_dtype_name(req->shape.dtype), number, (unsigned long long)bytes,
		tern_dtype_name(dtype));
	return false;
}

static void arrived(struct tern_req *req)
{
	struct version_part *part = req->arg;
	struct tern_worker *w = part->worker;
	uint32_t number = (uint32_t)(part - w->parts[part->parity]);
	const struct tern_chunk *chunk = &w->plan.chunks[number];

	if (w->over)
		return;
	if (req->status < 0 && req->status != -EMSGSIZE) {
		worker_failed(w, number, req->status);
		return;
	}
	if (!is_right(w, part))
		return;
	if (is_bf16(w, chunk, part->version))
		tern_bf16_widen_in_place(
			tern_vector(&w->w[part->parity]) + chunk->first, chunk->count);
	w->byte_count += req->bytes;
	part->is_here = true;
	early_arrived(w);
	/* The whole next version may be here before the computer has ended a slot whose
	 * gradient was already sent: then tern_work_end() completes the version. */
	if (--w->missing[part->parity] == 0 && !slots_are_due(w) &&
		!spare_is_behind(w, part->version))
		versions_complete(w, part->version);
}

void versions_receive(struct tern_worker *w, uint64_t version)
{
	unsigned parity = version & 1;

	w->has_given = w->has_given && parity == 0;
	w->missing[parity] = w->plan.chunk_count;
	w->last_posted = w->last_posted || version == w->my_steps;
	for (uint32_t i = 0; i < w->plan.chunk_count; i++) {
		const struct tern_chunk *c = &w->plan.chunks[i];
		struct version_part *part = &w->parts[parity][i];
		struct tern_buf room = w->w[parity];

		part->worker = w;
		part->parity = parity;
		part->version = version;
		part->is_here = false;
		part->req.done = arrived;
		part->req.arg = part;
		room.offset += c->first * sizeof(float);
		room.bytes = bytes_of(w, c, version);
		tern_recv(w->servers[c->server].data, &part->req, c->parameter_key,
			version, &room, NULL, 0);
	}
}

void versions_pull(struct tern_worker *w)
{
	for (uint32_t i = 0; i < w->job.server_count; i++)
		tern_talk_say(&w->servers[i].talk, json_pack("{s:s}", "type", "pull"));
	versions_receive(w, w->version + 1);
}
