/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Going on from memory. When a job goes back, servers that have lived have their chunks in memory, at the
 * step that the job was at. If all of them have, the job goes on from there, and no step is made again.
 *
 * Let m be the lowest version of a chunk on any server. A worker computes gradients for version m + 1
 * only when it has that version of all chunks. So no chunk can be beyond m + 1, and a chunk at
 * m + 1 still has its parameters of version m: only the update to m + 2 overwrites them. The job goes
 * on at m on all servers. A chunk at m + 1 is "ahead": it sends its version m, gathers the gradients
 * of step m as the others do, since workers compute them for all chunks, and counts them in a norm.
 * But its version m + 1 is made already, so the gradients are dropped (sync.c).
 *
 * Each server names its lowest version and the life of the job that it belongs to ("welcome",
 * "peer"). Workers and server 0 take the lowest of all, which "start" tells the other servers. If a server
 * has nothing in memory, since it was started again, or something of another life, then all
 * forget what they have, and go back to a snapshot (back.c).
 */
#include "server/memory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "server/blobs.h"
#include "server/membership.h"
#include "server/snapshot_state.h"

static void chunk_fini(struct tern_chunk_memory *kept)
{
	free(kept->w);
	free(kept->previous);
	free(kept->state.m);
	free(kept->state.v);
	free(kept->skipped);
}

void tern_server_memory_free(struct tern_server_memory *memory)
{
	if (!memory)
		return;
	for (uint32_t i = 0; i < memory->chunk_count; i++)
		chunk_fini(&memory->chunks[i]);
	free(memory->chunks);
	for (unsigned i = 0; i < TERN_BLOBS; i++)
		tern_blob_fini(&memory->blobs[i]);
	tern_ps_job_fini(&memory->job);
	free(memory);
}

/* ---- keeping it ---- */

static int keep_previous(struct chunk *c, void **out)
{
	size_t bytes = chunk_version_bytes(c);

	*out = malloc(bytes);
	if (!*out)
		return -ENOMEM;
	return chunk_get_version(c, c->made - 1, *out);
}

static int keep_chunk(struct chunk *c, struct tern_chunk_memory *out)
{
	struct tern_updater *u = c->server->opts.updater;
	size_t bytes = c->plan->count * sizeof(float);
	bool has_m = tern_updater_has_m(&c->kept->opts);
	bool has_v = tern_updater_has_v(&c->kept->opts);
	uint32_t tensor_count;
	int r;

	out->version = c->made;
	out->w = malloc(bytes);
	out->state.m = has_m ? malloc(bytes) : NULL;
	out->state.v = has_v ? malloc(bytes) : NULL;
	if (!out->w || (has_m && !out->state.m) || (has_v && !out->state.v))
		return -ENOMEM;
	r = tern_updater_copy(u, c->kept, out->w, chunk_w(c, c->made));
	if (r == 0 && c->made > c->oldest)
		r = keep_previous(c, &out->previous);
	if (r == 0)
		r = tern_updater_get_state(u, c->kept, &out->state);
	return r == 0 ? skip_copy(c, &out->skipped, &tensor_count) : r;
}

/* True if each chunk is whole, and a step was made. */
static bool is_whole(const struct tern_server *s)
{
	for (uint32_t i = 0; i < s->chunk_count; i++)
		if (s->chunks[i].status < 0 || s->chunks[i].made == 0)
			return false;
	return true;
}

static int keep_chunks(struct tern_server *s, struct tern_server_memory *memory)
{
	int r = tern_ps_job_copy(&memory->job, &s->job);

	memory->index = s->index;
	memory->life = s->life;
	memory->snapshot_step = s->snapshot_step;
	memory->step = s->job.steps;
	memory->chunks = calloc(s->chunk_count + 1u, sizeof(*memory->chunks));
	if (!memory->chunks)
		return -ENOMEM;
	memory->chunk_count = s->chunk_count;
	for (unsigned i = 0; r == 0 && i < TERN_BLOBS; i++)
		r = tern_blob_copy(&memory->blobs[i], &s->blobs[i]);
	for (uint32_t i = 0; r == 0 && i < s->chunk_count; i++) {
		r = keep_chunk(&s->chunks[i], &memory->chunks[i]);
		memory->step = TERN_MIN(memory->step, memory->chunks[i].version);
	}
	return r;
}

/* True if the newest view that is known has the servers of this job. */
static bool has_servers_now(const struct tern_server *s, const struct tern_ps_job *job)
{
	return s->view.number == job->view || tern_view_has_servers_of(&s->view, job);
}

int tern_server_keep(struct tern_server *s, struct tern_server_memory **out)
{
	struct tern_server_memory *memory;
	int r;

	*out = NULL;
	if (!s->running) {
		if (s->from_memory && has_servers_now(s, &s->from_memory->job))
			*out = TERN_TAKE(s->from_memory);
		return 0;
	}
	if (!s->life || s->forgets || !has_servers_now(s, &s->job) || !is_whole(s))
		return 0;
	/* The copies for a snapshot that was not complete are as large as what is kept. */
	snapshot_drop_copies(s);
	memory = calloc(1, sizeof(*memory));
	r = memory ? keep_chunks(s, memory) : -ENOMEM;
	if (r < 0)
		tern_server_memory_free(memory);
	else
		*out = memory;
	return r;
}

/* ---- beginning with it ---- */

int memory_init(struct tern_server *s)
{
	int r = 0;

	s->from_memory = s->opts.from_memory;
	if (!s->from_memory)
		return 0;
	s->first_version = s->from_memory->step;
	s->life = s->from_memory->life;
	s->snapshot_step = s->from_memory->snapshot_step;
	for (unsigned i = 0; r == 0 && i < TERN_BLOBS; i++)
		r = tern_blob_copy(&s->blobs[i], &s->from_memory->blobs[i]);
	return r;
}

void memory_forget(struct tern_server *s, const char *why)
{
	tern_server_memory_free(TERN_TAKE(s->from_memory));
	server_fail(s, -EAGAIN, "%s: the job goes back to its newest snapshot", why);
}

uint64_t memory_life(const struct tern_server *s)
{
	return s->from_memory || s->goes_on ? s->life : 0;
}

uint64_t memory_lowest(const struct tern_server *s)
{
	uint64_t step = s->first_version;

	for (uint32_t i = 1; s->from_memory && i < s->job.server_count; i++)
		step = TERN_MIN(step, others_find(s, i)->begins_at);
	return step;
}

bool memory_fits(
	const struct tern_server *s, const struct tern_ps_job *job, uint32_t index)
{
	const struct tern_server_memory *memory = s->from_memory;
	struct tern_view view;

	tern_view_of_job(job, &view);
	return tern_view_has_servers_of(&view, &memory->job) && memory->index == index;
}

int memory_set(struct chunk *c)
{
	struct tern_server *s = c->server;
	struct tern_updater *u = s->opts.updater;
	const struct tern_chunk_memory *kept = &s->from_memory->chunks[c - s->chunks];
	int r;

	c->version = c->made = c->oldest = kept->version;
	r = tern_updater_copy(u, c->kept, chunk_w(c, c->version), kept->w);
	if (r == 0)
		r = tern_updater_set_state(u, c->kept, &kept->state);
	if (r == 0 && kept->skipped)
		r = skip_set(c, kept->skipped);
	if (r < 0)
		return r;
	chunk_round(c, c->version);
	return kept->previous ? chunk_set_version(c, --c->oldest, kept->previous) : 0;
}

/* Lets the chunk begin with `step`. False: it does not have that version. */
static bool begin_chunk(struct chunk *c, uint64_t step)
{
	if (step < c->oldest || step > c->made || c->made - step > 1)
		return false;
	c->version = step;
	return true;
}

bool memory_begin(struct tern_server *s, uint64_t step)
{
	char why[200];

	for (uint32_t i = 0; i < s->chunk_count; i++) {
		if (begin_chunk(&s->chunks[i], step))
			continue;
		snprintf(why, sizeof(why),
			"server %u cannot begin with step %llu: chunk %u is at %llu",
			view_own_number(s), (unsigned long long)step, s->chunks[i].number,
			(unsigned long long)s->chunks[i].made);
		memory_forget(s, why);
		return false;
	}
	s->first_version = step;
	blobs_begin(s, step);
	s->goes_on = true;
	tern_server_memory_free(TERN_TAKE(s->from_memory));
	server_note(s, "goes on at step %llu, which all servers have in memory",
		(unsigned long long)step);
	return true;
}
