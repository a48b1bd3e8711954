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
 * Memory does not grow with the number of slots R (training.md's tree, ps/sum.h): a chunk
 * receives the gradients of a window of slots, in their order, and adds up the first
 * eight of them as soon as they are here; the window moves on then. It has room for one
 * slot of each worker. A worker has two buffers, so it computes a slot while the one
 * before waits for its turn. A loss may give it a slot that comes before those that it
 * has computed: it says so ("holds"), and these are received before their turn. So the
 * slot that is first of all those missing is always being computed, or can be.
 *
 * On shared memory a gradient is read where the worker wrote it, if workers have one slot
 * each. A worker with more needs its buffer, and so does one that was given another's
 * slot: those are copied.
 *
 * Exactly once: one receive at a time is posted for each (step, slot, chunk), the only
 * way in, and none after one has ended well. When a slot has a new holder, the receive is
 * posted anew with it after the old one has ended, and what the chunk has already is
 * refused (lease.c): whoever holds a slot sends each chunk of its gradient once for every
 * version, so each of its sends meets exactly one receive here.
 */
#include "server/internal.h"

#include <errno.h>

#include "ps/sum.h"

/* A gradient that is read in place keeps its send in flight, and a record, until all
 * slots are here. So many of one worker, and of all: half of the records that there are.
 * The others are copied. */
#define IN_PLACE_MAX     128u
#define IN_PLACE_ALL_MAX 2048u

static bool is_two_phase(const struct chunk *c)
{
	return c->server->job.clip_norm > 0;
}

static uint64_t staging_of(const struct chunk *c)
{
	return c->server->held_most * c->plan->count * sizeof(float);
}

/* Are there too many slots to hold all their gradients? */
static bool folds(const struct tern_server *s)
{
	return s->window < s->job.slots;
}

/* ---- applying ---- */

/* It is not read in place, or no more. */
static void leave_place(struct gradient *g)
{
	if (g->in_place)
		g->in_place->in_place_count--;
	g->in_place = NULL;
}

/* The gradients have been used: back to whom they belong. */
static void release(struct chunk *c)
{
	struct tern_server *s = c->server;

	for (uint32_t i = 0; i < s->job.slots; i++) {
		struct gradient *g = &c->gradients[i];

		g->arrived = g->wanted = false;
		if (g->in_place)
			tern_release(&g->req);
		leave_place(g);
		tern_pool_put(s->staging, &g->room);
	}
	c->arrived_count = 0;
	c->folded = 0;
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

	if (!is_two_phase(c))
		release(c);
	if (chunk_failed(c))
		return;
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

/* Gradients that came over a network lie in the staging pool. */
static void pin_gradients(struct chunk *c)
{
	for (uint32_t i = 0; i < c->server->job.slots; i++)
		chunk_pin(c, &c->gradients[i].room);
}

/* What is left to be added up: all gradients, or the last sums. */
static uint32_t input_count(const struct chunk *c)
{
	const struct tern_server *s = c->server;
	uint32_t span = folds(s) ? tern_sum_span(s->job.slots) : 1;

	return (s->job.slots + span - 1) / span;
}

static const float *const *inputs(const struct chunk *c)
{
	return (const float *const *)c->sources;
}

static float scale(const struct chunk *c)
{
	return 1.0f / (float)c->server->job.slots;
}

static void apply_mean(struct tern_job *job)
{
	struct chunk *c = tern_container_of(job, struct chunk, job);

	chunk_apply(c, c->version, c->version + 1, NULL, 1, 1.0f, clip_factor(c));
}

static void apply_sum(struct tern_job *job)
{
	struct chunk *c = tern_container_of(job, struct chunk, job);

	pin_gradients(c);
	chunk_apply(
		c, c->version, c->version + 1, inputs(c), input_count(c), scale(c), 1.0f);
}

void sync_apply(struct chunk *c, double clip)
{
	c->squares = clip;
	c->state = CHUNK_APPLYING;
	/* The version before this one lies where the next is to be: wait for its readers.
	 */
	if (c->sends_out[(c->version + 1) & 1] == 0)
		chunk_submit(c, is_two_phase(c) ? apply_mean : apply_sum, applied);
	else
		c->busy = true;
}

void sync_sends_ended(struct chunk *c)
{
	if (c->state != CHUNK_APPLYING || !c->busy ||
		c->sends_out[(c->version + 1) & 1] || c->server->over)
		return;
	c->busy = false;
	chunk_submit(c, is_two_phase(c) ? apply_mean : apply_sum, applied);
}

/* ---- two phases ---- */

static void sum(struct tern_job *job)
{
	struct chunk *c = tern_container_of(job, struct chunk, job);

	pin_gradients(c);
	c->status = tern_updater_sum(c->server->opts.updater, c->kept, inputs(c),
		input_count(c), scale(c), &c->squares);
}

static void summed(struct tern_job *job)
{
	struct chunk *c = tern_container_of(job, struct chunk, job);

	release(c);
	c->state = CHUNK_WAITING;
	if (chunk_failed(c) || c->server->over)
		return;
	norm_chunk_summed(c);
	sync_next(c->server);
}

/* ---- gathering ---- */

static void arrived(struct tern_req *req);

static void all_here(struct chunk *c)
{
	uint32_t span = folds(c->server) ? tern_sum_span(c->server->job.slots) : 1;

	for (uint32_t i = 0; i < input_count(c); i++)
		c->sources[i] = c->sources[i * span];
	if (is_two_phase(c)) {
		c->state = CHUNK_SUMMING;
		chunk_submit(c, sum, summed);
	} else {
		sync_apply(c, 1.0);
	}
}

/* Only what a worker has had from the beginning, if that is one slot: the buffer is gone
 * until all slots are here, and a worker has two. */
static bool may_be_in_place(
	const struct tern_server *s, const struct server_peer *worker, uint32_t slot)
{
	uint32_t most = TERN_MIN(IN_PLACE_MAX, IN_PLACE_ALL_MAX / s->job.workers);

	return s->job.slots <= s->job.workers && slot == worker->index &&
	       tern_peer_can_peek(worker->peer) && worker->in_place_count < most;
}

/* From the slot's holder. Without one this comes again when somebody takes the slot. */
static void receive(struct chunk *c, uint32_t slot)
{
	struct tern_server *s = c->server;
	struct server_peer *worker = s->leases[slot].holder;
	struct gradient *g = &c->gradients[slot];
	int r = 0;

	if (!worker)
		return;
	g->req.done = arrived;
	g->req.arg = g;
	leave_place(g); /* and the room: of a holder that was lost */
	tern_pool_put(s->staging, &g->room);
	if (may_be_in_place(s, worker, slot)) {
		g->in_place = worker;
		worker->in_place_count++;
	} else {
		r = tern_pool_get(s->staging, c->plan->count * sizeof(float), &g->room);
	}
	if (r == 0) {
		g->from = worker;
		r = tern_recv(worker->data, &g->req, c->plan->gradient_key,
			c->version * s->job.slots + slot, &g->room, NULL,
			g->in_place ? TERN_RECV_PEEK : 0);
	}
	if (r < 0)
		server_fail(
			s, r, "no room to receive gradients: %s", tern_status_text(r));
}

/* Is the slot's gradient received as soon as the chunk gathers? */
static bool is_due(const struct chunk *c, uint32_t slot)
{
	return slot < c->folded + c->server->window || c->gradients[slot].wanted;
}

static void receive_due(struct chunk *c)
{
	struct tern_server *s = c->server;

	for (uint32_t i = c->folded; i < s->job.slots && !s->over; i++) {
		const struct gradient *g = &c->gradients[i];

		if (!g->arrived && !g->from && is_due(c, i))
			receive(c, i);
	}
}

static void go_on(struct chunk *c);

static void fold(struct tern_job *job)
{
	struct chunk *c = tern_container_of(job, struct chunk, job);

	tern_sum_fold(tern_kernels_cpu(), c->sources, c->server->job.slots, c->folded,
		c->plan->count);
}

static void folded(struct tern_job *job)
{
	struct chunk *c = tern_container_of(job, struct chunk, job);
	struct tern_server *s = c->server;
	uint32_t first;

	c->folding = false;
	c->folded = tern_sum_folded_next(s->job.slots, c->folded);
	first = tern_sum_fold_start(s->job.slots, c->folded);
	for (uint32_t i = first + 1; i < c->folded; i++)
		tern_pool_put(s->staging, &c->gradients[i].room);
	if (s->over)
		return;
	receive_due(c);
	if (!s->over)
		go_on(c);
}

static bool next_group_is_here(const struct chunk *c)
{
	uint32_t end = tern_sum_folded_next(c->server->job.slots, c->folded);

	for (uint32_t i = c->folded; i < end; i++)
		if (!c->gradients[i].arrived)
			return false;
	return true;
}

/* A gradient has come, or some have been added up. */
static void go_on(struct chunk *c)
{
	uint32_t slots = c->server->job.slots;

	if (c->arrived_count == slots && (!folds(c->server) || c->folded == slots)) {
		all_here(c);
	} else if (folds(c->server) && !c->folding && next_group_is_here(c)) {
		c->folding = true;
		chunk_submit(c, fold, folded);
	}
}

/* It is here, perhaps from a holder that was lost meanwhile. */
static void take_in(struct gradient *g, struct server_peer *from)
{
	struct chunk *c = g->chunk;
	struct tern_server *s = c->server;
	uint32_t slot = (uint32_t)(g - c->gradients);

	g->arrived = true;
	late_slot_ended(c, from);
	if (g->req.shape.dtype != TERN_F32 ||
		g->req.bytes != c->plan->count * sizeof(float)) {
		server_fail(s, -EPROTO, "chunk %u: a gradient of another shape came",
			c->number);
		return;
	}
	if (s->leases[slot].holder && s->leases[slot].holder != from)
		lease_refuse_extra(c, slot, c->version, c->version);
	/* Nobody writes to what is in place: there the sums are the updater's. */
	c->sources[slot] = (float *)(uintptr_t)g->req.data;
	c->arrived_count++;
	go_on(c);
}

static void arrived(struct tern_req *req)
{
	struct gradient *g = req->arg;
	struct chunk *c = g->chunk;
	struct tern_server *s = c->server;
	struct server_peer *from = TERN_TAKE(g->from);
	uint32_t slot = (uint32_t)(g - c->gradients);

	if (s->over) {
		if (req->status == 0 && g->in_place)
			tern_release(req);
	} else if (req->status == 0) {
		take_in(g, from);
	} else if (req->status == -EMSGSIZE) {
		server_fail(s, -EPROTO,
			"chunk %u: a gradient of %llu bytes came, %llu fit", c->number,
			(unsigned long long)req->bytes,
			(unsigned long long)(c->plan->count * sizeof(float)));
	} else if (s->leases[slot].holder != from) {
		receive(c, slot); /* the old holder is gone: from the new one */
	} else {
		tern_talk_failed(&from->talk, req->status);
	}
}

static bool has_all(const struct chunk *c)
{
	switch (c->state) {
	case CHUNK_HOLDING:
	case CHUNK_GATHERING:
		return false;
	case CHUNK_SUMMING:
	case CHUNK_WAITING:
	case CHUNK_APPLYING:
		return true;
	}
	tern_never("a chunk is in one of its states");
}

static void chunk_taken(struct chunk *c, uint32_t slot, uint64_t version)
{
	struct gradient *g = &c->gradients[slot];
	bool has = has_all(c) || g->arrived;
	uint64_t first_missing = c->version + (has ? 1 : 0);

	if (version < first_missing)
		lease_refuse_extra(c, slot, version, first_missing - 1);
	/* One that is posted with the old holder ends first: arrived() goes on. */
	if (c->state == CHUNK_GATHERING && !has && !g->from && is_due(c, slot))
		receive(c, slot);
}

/*
 * A worker sends the chunks of one slot and then those of the next. What the budget has
 * no room for yet waits there, in a buffer that is needed for the next slot; so
 * where a worker computes several slots, all chunks must have their share.
 */
static void widen_staging(struct tern_server *s)
{
	if (s->staging_most > STAGING_MOST) {
		server_fail(s, -ENOMEM,
			"no room to receive gradients: where a worker has several slots, "
			"server %u needs room for %u gradients of its share, %llu bytes; "
			"it can hold %llu: take more servers, or as many workers as "
			"slots",
			s->index, s->held_most, (unsigned long long)s->staging_most,
			STAGING_MOST);
		return;
	}
	if (s->staging_most > s->staging_bytes) {
		s->staging_left += s->staging_most - s->staging_bytes;
		s->staging_bytes = s->staging_most;
	}
}

void sync_taken(struct tern_server *s, uint32_t slot, uint64_t version)
{
	widen_staging(s);
	for (uint32_t i = 0; i < s->chunk_count && !s->over; i++)
		chunk_taken(&s->chunks[i], slot, version);
	sync_next(s);
}

static bool can_be_wanted(const struct chunk *c, uint32_t slot, uint64_t version)
{
	const struct gradient *g = &c->gradients[slot];

	return c->version == version && !has_all(c) && !g->arrived && !g->wanted;
}

static void chunk_wanted(struct chunk *c, uint32_t slot)
{
	struct gradient *g = &c->gradients[slot];

	g->wanted = true;
	if (c->state == CHUNK_GATHERING && !g->from)
		receive(c, slot);
}

/* The budget grows for good, so only for what is missing. */
void sync_wanted(struct tern_server *s, uint32_t slot, uint64_t version)
{
	bool wide = false;

	for (uint32_t i = 0; i < s->chunk_count && !s->over; i++) {
		if (!can_be_wanted(&s->chunks[i], slot, version))
			continue;
		if (!wide)
			widen_staging(s);
		wide = true;
		chunk_wanted(&s->chunks[i], slot);
	}
	if (wide)
		sync_next(s);
}

static void gather(struct chunk *c)
{
	struct tern_server *s = c->server;

	s->staging_left -= staging_of(c);
	c->state = CHUNK_GATHERING;
	for (uint32_t i = 0; i < s->job.slots; i++)
		c->gradients[i].chunk = c;
	receive_due(c);
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

bool sync_is_done(const struct tern_server *s)
{
	for (uint32_t i = 0; i < s->chunk_count; i++)
		if (s->chunks[i].version < s->job.steps)
			return false;
	return true;
}

void sync_start(struct tern_server *s)
{
	if (s->job.slots > s->job.workers)
		widen_staging(s);
	for (uint32_t i = 0; i < s->chunk_count; i++)
		chunk_publish(&s->chunks[i]);
	for (uint32_t i = s->chunk_count; i-- > 0;)
		hold(&s->chunks[i]);
	sync_next(s);
}
