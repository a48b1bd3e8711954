/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sync mode: v_{s+1} = opt(v_s, mean of all slots' gradients). Each chunk goes its own
 * way from version to version; the only thing that chunks wait for each other for is a
 * norm (norm.c).
 *
 * Flow control: a chunk receives gradients only after it got its share of the staging
 * budget, so memory is bounded at any number of workers; until then its gradients wait in
 * the workers' memory. Chunks queue for it in the order in which workers produce
 * gradients, the last first.
 *
 * On shared memory the gradients are read where the worker wrote them.
 *
 * Exactly once: a receive is posted once for each (step, slot, chunk), and is the only
 * way in.
 */
#include "server/internal.h"

#include <errno.h>
#include <string.h>

static uint64_t staging_of(const struct chunk *c)
{
	return c->server->job.slots * c->plan->count * sizeof(float);
}

/* ---- applying ---- */

/* The gradients have been used: back to whom they belong. */
static void release(struct chunk *c)
{
	struct tern_server *s = c->server;

	for (uint32_t i = 0; i < s->job.slots; i++) {
		struct gradient *g = &c->gradients[i];

		g->arrived = false;
		if (g->room.mem)
			tern_pool_put(s->staging, &g->room);
		else
			tern_release(&g->req);
	}
	c->arrived_count = 0;
	s->staging_left += staging_of(c);
}

static void hold(struct chunk *c)
{
	struct tern_server *s = c->server;

	c->state = CHUNK_HOLDING;
	if (c->version < s->job.steps)
		tern_list_push(&s->holding, &c->node);
}

static void applied(struct tern_job *job)
{
	struct chunk *c = tern_container_of(job, struct chunk, job);
	struct tern_server *s = c->server;

	if (!c->mean)
		release(c);
	c->version++;
	s->stats.gradients_added += s->job.slots;
	if (s->over)
		return;
	chunk_publish(c);
	hold(c);
	sync_next(s);
}

static float clip_factor(const struct chunk *c)
{
	return (float)c->squares; /* what sync_apply left there */
}

static void apply_mean(struct tern_job *job)
{
	struct chunk *c = tern_container_of(job, struct chunk, job);
	const float *mean = c->mean;
	struct tern_update u =
		chunk_update(c, c->version + 1, &mean, 1, 1.0f, clip_factor(c));

	u.w_in = chunk_w(c, c->version);
	u.w_out = chunk_w(c, c->version + 1);
	tern_update_run(&u);
}

static void apply_sum(struct tern_job *job)
{
	struct chunk *c = tern_container_of(job, struct chunk, job);
	uint32_t slots = c->server->job.slots;
	struct tern_update u = chunk_update(
		c, c->version + 1, c->sources, slots, 1.0f / (float)slots, 1.0f);

	u.w_in = chunk_w(c, c->version);
	u.w_out = chunk_w(c, c->version + 1);
	tern_update_run(&u);
}

void sync_apply(struct chunk *c, double clip)
{
	c->squares = clip;
	c->state = CHUNK_APPLYING;
	/* The version before this one lies where the next is to be: wait for its readers.
	 */
	if (c->sends_out[(c->version + 1) & 1] == 0)
		chunk_submit(c, c->mean ? apply_mean : apply_sum, applied);
	else
		c->busy = true;
}

void sync_sends_ended(struct chunk *c)
{
	if (c->state != CHUNK_APPLYING || !c->busy ||
		c->sends_out[(c->version + 1) & 1] || c->server->over)
		return;
	c->busy = false;
	chunk_submit(c, c->mean ? apply_mean : apply_sum, applied);
}

/* ---- two phases ---- */

static void sum(struct tern_job *job)
{
	struct chunk *c = tern_container_of(job, struct chunk, job);
	uint32_t slots = c->server->job.slots;

	c->squares = tern_sum_run(c->server->opts.kernels, c->mean, c->sources, slots,
		1.0f / (float)slots, c->plan->count);
}

static void summed(struct tern_job *job)
{
	struct chunk *c = tern_container_of(job, struct chunk, job);

	release(c);
	c->state = CHUNK_WAITING;
	if (c->server->over)
		return;
	norm_chunk_summed(c);
	sync_next(c->server);
}

/* ---- gathering ---- */

static void all_here(struct chunk *c)
{
	for (uint32_t i = 0; i < c->server->job.slots; i++)
		c->sources[i] = c->gradients[i].req.data;
	if (c->mean) {
		c->state = CHUNK_SUMMING;
		chunk_submit(c, sum, summed);
	} else {
		sync_apply(c, 1.0);
	}
}

static void arrived(struct tern_req *req)
{
	struct gradient *g = req->arg;
	struct chunk *c = g->chunk;
	struct tern_server *s = c->server;

	if (s->over) {
		if (req->status == 0 && !g->room.mem)
			tern_release(req);
		return;
	}
	if (req->status < 0) {
		if (req->status == -EMSGSIZE)
			server_fail(s, -EPROTO,
				"chunk %u: a gradient of %llu bytes came, %llu fit",
				c->number, (unsigned long long)req->bytes,
				(unsigned long long)(c->plan->count * sizeof(float)));
		return; /* else the peer is down: reported there */
	}
	g->arrived = true;
	if (req->shape.dtype != TERN_F32 ||
		req->bytes != c->plan->count * sizeof(float)) {
		server_fail(s, -EPROTO, "chunk %u: a gradient of another shape came",
			c->number);
		return;
	}
	if (++c->arrived_count == s->job.slots)
		all_here(c);
}

static int gather_slot(struct chunk *c, uint32_t slot)
{
	struct tern_server *s = c->server;
	struct server_peer *worker = s->workers[tern_slot_owner(&s->job, slot)];
	struct gradient *g = &c->gradients[slot];
	bool in_place = strcmp(tern_peer_fabric(worker->peer), "shm") == 0;
	int r = 0;

	g->chunk = c;
	g->req.done = arrived;
	g->req.arg = g;
	if (!in_place)
		r = tern_pool_get(s->staging, c->plan->count * sizeof(float), &g->room);
	if (r < 0)
		return r;
	return tern_recv(worker->data, &g->req, c->plan->gradient_key,
		c->version * s->job.slots + slot, &g->room, NULL,
		in_place ? TERN_RECV_PEEK : 0);
}

static void gather(struct chunk *c)
{
	struct tern_server *s = c->server;

	s->staging_left -= staging_of(c);
	c->state = CHUNK_GATHERING;
	for (uint32_t i = 0; i < s->job.slots && !s->over; i++) {
		int r = gather_slot(c, i);

		if (r < 0)
			server_fail(s, r, "no room to receive gradients: %s",
				tern_status_text(r));
	}
}

void sync_next(struct tern_server *s)
{
	struct chunk *c;

	while (!s->over && (c = tern_list_first(&s->holding, struct chunk, node)) &&
		staging_of(c) <= s->staging_left) {
		tern_list_remove(&c->node);
		gather(c);
	}
}

void sync_start(struct tern_server *s)
{
	for (uint32_t i = 0; i < s->chunk_count; i++)
		chunk_publish(&s->chunks[i]);
	for (uint32_t i = s->chunk_count; i-- > 0;)
		hold(&s->chunks[i]);
	sync_next(s);
}
