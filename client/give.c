/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Initial values that this worker has (TERN_INIT_GIVEN). Every worker of the job has them,
 * and one gives them to the servers: the one that is asked (server/given.c). They wait in
 * the second version buffer, which is not used before version 0 is complete, so they take
 * no memory of their own. Version 0 is complete only when the servers have all of them, and
 * then nobody asks any more. Version buffers in GPU memory cannot be filled by the CPU:
 * then the values wait in a buffer of host memory.
 */
#include "client/worker_state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct give_part { /* a range of given values that is sent to a server */
	struct tern_req req;
	struct tern_worker *worker;
	uint32_t chunk;
	struct tern_given_range range;
};

static void sent(struct tern_req *req)
{
	const struct give_part *part = req->arg;

	if (part->worker->over)
		return;
	if (req->status < 0)
		worker_failed(part->worker, part->chunk, req->status);
	else
		part->worker->byte_count += part->range.count * sizeof(float);
}

static void send(struct give_part *part)
{
	struct tern_worker *w = part->worker;
	const struct tern_chunk *c = &w->plan.chunks[part->chunk];
	struct tern_tensor tensor = {.buf = w->give_values,
		.shape = tern_shape_1d(TERN_F32, part->range.count)};

	tensor.buf.offset += part->range.first * sizeof(float);
	tensor.buf.bytes = part->range.count * sizeof(float);
	part->req.done = sent;
	part->req.arg = part;
	tern_send(w->servers[c->server].data, &part->req, tern_given_key(),
		part->range.first, &tensor, NULL, 0);
}

void give_on_give(struct worker_server *s)
{
	struct tern_worker *w = s->worker;

	if (!w->has_given || s->was_given) {
		worker_fail(w, -EPROTO,
			"server %u asked for initial values: expected it once, before "
			"version 0 is complete, and of a job that has given values",
			s->number);
		return;
	}
	s->was_given = true;
	for (uint32_t i = 0; i < w->give_count; i++)
		if (w->plan.chunks[w->give_parts[i].chunk].server == s->index)
			send(&w->give_parts[i]);
}

/* ---- birth and death ---- */

/* Lists the ranges of all chunks. With parts NULL only counts them. */
static uint32_t list_parts(struct tern_worker *w, struct give_part *parts)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < w->plan.chunk_count; i++) {
		const struct tern_chunk *c = &w->plan.chunks[i];
		struct tern_given_range range = {c->first, 0};

		while (tern_given_next(&w->job, c, range.first + range.count, &range)) {
			if (parts)
				parts[count] = (struct give_part){
					.worker = w, .chunk = i, .range = range};
			count++;
		}
	}
	return count;
}

/* Sets w->give_values to the host memory in which the values wait. */
static int find_room(struct tern_worker *w)
{
	uint64_t bytes = w->job.element_count * sizeof(float);
	struct tern_pool_opts pool = {
		.slab_bytes = tern_align_up(bytes + 4096, PAGE_BYTES_MAX)};
	int r;

	if (w->opts.memory.kind == TERN_MEM_HOST) {
		w->give_values = w->w[1];
		return 0;
	}
	r = tern_pool_new(w->opts.domain, &pool, &w->give_pool);
	return r < 0 ? r : tern_pool_get(w->give_pool, bytes, &w->give_values);
}

int give_init(struct tern_worker *w)
{
	int r;

	if (!tern_given_any(&w->job))
		return 0;
	tern_assert(w->opts.given);
	r = find_room(w);
	if (r < 0)
		return r;
	w->give_count = list_parts(w, NULL);
	w->give_parts = calloc(w->give_count, sizeof(*w->give_parts));
	if (!w->give_parts)
		return -ENOMEM;
	list_parts(w, w->give_parts);
	for (uint32_t i = 0; i < w->job.param_count; i++) {
		const struct tern_param *p = &w->job.params[i];

		if (p->init == TERN_INIT_GIVEN)
			memcpy((float *)tern_buf_ptr(&w->give_values) + p->first,
				w->opts.given[i], p->count * sizeof(float));
	}
	w->has_given = true;
	return 0;
}

bool give_is_moving(const struct tern_worker *w)
{
	for (uint32_t i = 0; i < w->give_count; i++)
		if (w->give_parts[i].req.status == -EINPROGRESS)
			return true;
	return false;
}

void give_fini(struct tern_worker *w)
{
	free(w->give_parts);
	if (w->give_pool && w->give_values.mem)
		tern_pool_put(w->give_pool, &w->give_values);
	tern_pool_free(w->give_pool);
}
