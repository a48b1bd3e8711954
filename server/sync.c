/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sync mode: v_{s+1} = opt(v_s, mean of all slots' gradients); a slot is one of the R
 * gradients of a step. Each chunk goes from version to version on its own; chunks wait
 * for each other only for a norm (norm.c) and for the staging budget.
 *
 * Flow control: a chunk receives gradients only after it has got its share of the staging
 * budget, so memory is bounded for any number of workers. Until then its gradients wait
 * in the workers' memory. Chunks queue for the budget in the order in which workers
 * produce gradients, the last layer first.
 *
 * Memory hardly grows with the number of slots R once there are more slots than the
 * window has (ps/sum.h, and the tree of docs/training.md). A chunk receives the gradients
 * of a window of slots, in their order, and folds them: it adds up the first eight of
 * them as soon as they are here. Then the window moves on. The window has room for at
 * least one slot of each worker. A worker of several slots has two buffers, so it computes
 * a slot while the gradient of the one before waits for its turn. A loss may give a worker
 * a slot that comes before those that it has computed: the worker then sends "holds", and
 * the computed gradients are received before their turn. So the first of all missing slots
 * is always being computed, or can be.
 *
 * Two numbers bound the memory of gradients. If their sum would exceed STAGING_MOST, the
 * job ends and says why:
 *
 *     staging_bytes  the budget. It is raised to what all chunks need if there are more
 *                    slots than workers, or if losses leave a worker with more slots than
 *                    buffers: a chunk for which the budget has no room would block a
 *                    buffer that the worker's next slot needs.
 *     wanted_bytes   gradients that are received before their turn, counted until the end
 *                    of the step: for each loss, and each slot that moves from a slow worker,
 *                    at most two of each remaining worker.
 *
 * On shared memory a gradient is read in the worker's memory if the job has no more slots
 * than workers, the slot has the worker's own number, gradients are not in GPU
 * memory, and few enough are read so (IN_PLACE_MAX). A worker with more slots needs its
 * buffer for the next one, so other gradients are copied.
 *
 * A gradient of bf16 fills the first half of its buffer, which has room for a partial sum of
 * float32.
 *
 * Exactly once: at most one receive is posted at a time for each (step, slot, chunk), and
 * none after one has succeeded. If a slot gets a new holder, the receive is posted anew
 * for it after the old receive has ended, and data that the chunk has already is refused
 * (lease.c). The holder of a slot sends each chunk of its gradient once for every
 * version, so each of its sends meets exactly one receive here.
 */
#include "server/membership.h"

#include <errno.h>

#include "ps/marks.h"
#include "ps/sum.h"
#include "server/follow.h"
#include "server/snapshots.h"

/* Largest number of gradients read in place, of one worker and of all. Each keeps its
 * send in flight and a record (rendezvous/record.c) in use until all slots are here, so
 * the limit is half of the 4,096 records (the default) that all peers share. Further
 * gradients are copied. */
#define IN_PLACE_MAX     128u
#define IN_PLACE_ALL_MAX 2048u

static bool is_two_phase(const struct chunk *c)
{
	return c->server->job.clip_norm > 0;
}

static uint64_t bytes_of(const struct chunk *c)
{
	return c->plan->count * sizeof(float);
}

static uint64_t staging_of(const struct chunk *c)
{
	return c->server->held_most * bytes_of(c);
}

/* True if there are too many slots to hold all their gradients: they are then folded,
 * that is, added into partial sums as they arrive. */
static bool folds(const struct tern_server *s)
{
	return s->window < s->job.slots;
}

static uint32_t slot_of(const struct gradient *g)
{
	return (uint32_t)(g - g->chunk->gradients);
}

/* ---- applying ---- */

/* Stops counting this gradient as read in place. */
static void leave_place(struct gradient *g)
{
	if (g->in_place)
		g->in_place->in_place_count--;
	g->in_place = NULL;
}

/* Called when the chunk's gradients of a step were added up: releases their memory. */
static void release(struct chunk *c)
{
	struct tern_server *s = c->server;

	for (uint32_t i = 0; i < s->job.slots; i++) {
		struct gradient *g = &c->gradients[i];

		g->arrived = g->wanted = false;
		if (g->in_place)
			tern_release(&g->req);
		leave_place(g);
		tern_pool_put(s->rooms, &g->room);
	}
	c->arrived_count = 0;
	c->folded = 0;
	s->staging_left += staging_of(c);
	s->wanted_bytes -= c->wanted_count * bytes_of(c);
	c->wanted_count = 0;
}

/* Changes the state, by an edge of the diagram in server_state.h. */
static void enter(struct chunk *c, enum chunk_state next)
{
	static const uint8_t edges[] = {
		[CHUNK_HOLDING] = 1 << CHUNK_GATHERING,
		[CHUNK_GATHERING] = 1 << CHUNK_SUMMING | 1 << CHUNK_APPLYING,
		[CHUNK_SUMMING] = 1 << CHUNK_WAITING,
		[CHUNK_WAITING] = 1 << CHUNK_APPLYING,
		[CHUNK_APPLYING] = 1 << CHUNK_HOLDING,
	};

	tern_assert(edges[c->state] >> next & 1);
	c->state = next;
}

/* Queues a chunk that is HOLDING for the staging budget, unless its last step is done. */
static void hold(struct chunk *c)
{
	struct tern_server *s = c->server;

	if (c->version < s->job.steps)
		tern_list_push(&s->holding, &c->node);
}

void sync_publish(struct chunk *c)
{
	struct tern_server *s = c->server;

	c->version++;
	s->stats.gradients_added += s->job.slots;
	if (s->over)
		return;
	chunk_publish(c);
	enter(c, CHUNK_HOLDING);
	snapshot_after_update(c);
	snapshots_step_made(c);
	hold(c);
	change_step_made(s);
	sync_next(s);
}

static void applied(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);

	if (c->arrived_count > 0)
		release(c);
	follow_updated(c);
	if (!chunk_failed(c) && !follow_holds(c))
		sync_publish(c);
}

static float clip_factor(const struct chunk *c)
{
	return (float)c->clip;
}

/* Page-locks the staging buffers of this chunk's gradients (those that are not read in
 * place). */
static void pin_gradients(struct chunk *c)
{
	for (uint32_t i = 0; i < c->server->job.slots; i++)
		chunk_pin(c, &c->gradients[i].room);
}

/* Number of terms left to be added up: all gradients, or the last partial sums. */
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
	return 1.0f / (float)(c->server->job.slots - c->omitted_count);
}

static void apply_mean(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);

	chunk_apply(c, c->version, c->version + 1, NULL, 1, 1.0f, clip_factor(c));
}

static void apply_sum(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);

	pin_gradients(c);
	chunk_apply(
		c, c->version, c->version + 1, inputs(c), input_count(c), scale(c), 1.0f);
}

static void apply_followed(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);

	chunk_apply_mean(c, follow_mean(c), clip_factor(c));
}

/* The chunk is ahead (memory.c): its next version is made already. */
static void apply_nothing(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);

	c->status = 0;
	snapshot_in_update(c);
}

static void submit_apply(struct chunk *c)
{
	snapshot_before_update(c);
	chunk_submit(c,
		c->made > c->version ? apply_nothing
		: follow_mean(c)     ? apply_followed
		: is_two_phase(c)    ? apply_mean
				     : apply_sum,
		applied);
}

/* Makes the mean gradient, which the follower needs, too. */
static void make_mean(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);

	c->status = tern_updater_mean(c->server->opts.updater, c->kept, follow_mean(c),
		is_two_phase(c) ? NULL : inputs(c), input_count(c), scale(c));
}

static void mean_made(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);

	if (c->arrived_count > 0)
		release(c);
	if (chunk_failed(c) || c->server->over) {
		follow_updated(c);
		return;
	}
	follow_send(c);
	submit_apply(c);
	sync_next(c->server);
}

static void submit_update(struct chunk *c)
{
	if (c->made == c->version && follow_begin(c))
		chunk_submit(c, make_mean, mean_made);
	else
		submit_apply(c);
}

/* Version v + 1 overwrites v - 1, so the sends of v - 1 must have ended. */
static bool may_update(const struct chunk *c)
{
	return c->sends_out[(c->version + 1) & 1] == 0 &&
	       !change_holds(c->server, c->version + 1);
}

void sync_apply(struct chunk *c, double clip)
{
	c->clip = clip;
	enter(c, CHUNK_APPLYING);
	c->waits = !may_update(c);
	if (!c->waits)
		submit_update(c);
}

void sync_maybe_apply(struct chunk *c)
{
	if (c->state != CHUNK_APPLYING || !c->waits || !may_update(c) || c->server->over)
		return;
	c->waits = false;
	submit_update(c);
}

/* ---- two phases ---- */

static void sum(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);

	pin_gradients(c);
	c->status = tern_updater_sum(c->server->opts.updater, c->kept, inputs(c),
		input_count(c), scale(c), &c->squares);
}

static void summed(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);

	release(c);
	enter(c, CHUNK_WAITING);
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

	if (!omit_count(c))
		return;
	for (uint32_t i = 0; i < input_count(c); i++)
		c->sources[i] = c->sources[i * span];
	if (is_two_phase(c)) {
		enter(c, CHUNK_SUMMING);
		chunk_submit(c, sum, summed);
	} else {
		sync_apply(c, 1.0);
	}
}

/* True only for the slot of the worker's own number, in a job with no more slots
 * than workers: in-place reading blocks the worker's buffer until all slots are here, and
 * a worker has at most two. Never true if gradients are in GPU memory: the updater reads
 * no other memory then. */
static bool may_be_in_place(
	const struct tern_server *s, const struct server_peer *worker, uint32_t slot)
{
	uint32_t most = TERN_MIN(IN_PLACE_MAX, IN_PLACE_ALL_MAX / s->job.workers);

	return !shard_is_on_device(s) && s->job.slots <= s->job.workers &&
	       slot == worker->index && tern_peer_can_peek(worker->peer) &&
	       worker->in_place_count < most;
}

/* Receives the slot's gradient from its holder. Does nothing if the slot has no holder:
 * this function is called again when a worker takes the slot. */
static void receive(struct chunk *c, uint32_t slot)
{
	struct tern_server *s = c->server;
	struct server_peer *worker = s->leases[slot].holder;
	struct gradient *g = &c->gradients[slot];
	struct tern_buf room;
	int r = 0;

	if (!worker)
		return;
	g->req.done = arrived;
	g->req.arg = g;
	/* A receive from an earlier holder, now lost, may still count as in place and
	 * have room: undo both. */
	leave_place(g);
	tern_pool_put(s->rooms, &g->room);
	if (may_be_in_place(s, worker, slot)) {
		g->in_place = worker;
		worker->in_place_count++;
	} else {
		r = tern_pool_get(s->rooms, c->plan->count * sizeof(float), &g->room);
	}
	room = g->room;
	room.bytes = TERN_MIN(room.bytes, chunk_gradient_bytes(c));
	if (r == 0) {
		g->from = worker;
		r = tern_recv(worker->data, &g->req, c->plan->gradient_key,
			c->version * s->job.slots + slot, &room, NULL,
			g->in_place ? TERN_RECV_PEEK : 0);
	}
	if (r < 0)
		server_fail(s, r, "cannot receive a gradient: %s", tern_status_text(r));
}

/* True if the slot's gradient is to be received as soon as the chunk gathers. */
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

static void fold(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);

	c->status = tern_updater_fold(c->server->opts.updater, c->kept, c->sources,
		c->server->job.slots, c->folded);
}

static void folded(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);
	struct tern_server *s = c->server;
	uint32_t first;

	c->folding = false;
	c->folded = tern_sum_folded_next(s->job.slots, c->folded);
	first = tern_sum_fold_start(s->job.slots, c->folded);
	for (uint32_t i = first + 1; i < c->folded; i++)
		tern_pool_put(s->rooms, &c->gradients[i].room);
	if (chunk_failed(c) || s->over)
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

/* Called when a gradient has arrived or some were added up: starts the next addition, or
 * the update if no gradient is missing. */
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

/* Takes a gradient that has arrived, perhaps from a holder that was lost meanwhile. marks:
 * which tensors it lacks; NULL: none. */
static void take_in(struct gradient *g, struct server_peer *from, const uint8_t *marks)
{
	struct chunk *c = g->chunk;
	struct tern_server *s = c->server;
	uint32_t slot = slot_of(g);

	g->arrived = true;
	late_slot_ended(c, from);
	if (!chunk_takes(c, from->index, &g->req) || !omit_take(g, from))
		return;
	if (s->leases[slot].holder && s->leases[slot].holder != from)
		lease_refuse_extra(
			c, s->leases[slot].holder, slot, c->version, c->version);
	/* The cast is safe: only folding writes to sources, and a chunk whose gradients
	 * are folded reads none of them in place. */
	c->sources[slot] =
		g->in_place ? (float *)(uintptr_t)g->req.data : tern_vector(&g->room);
	twice_note(g, from, c->sources[slot], marks);
	c->arrived_count++;
	go_on(c);
}

static void did_not_arrive(struct gradient *g, struct server_peer *from, int status)
{
	struct chunk *c = g->chunk;
	uint32_t slot = slot_of(g);

	if (c->server->leases[slot].holder != from)
		receive(c, slot); /* the old holder was lost: receive from the new one */
	else
		tern_talk_failed(&from->talk, status);
}

/* The marks of a gradient are here, or its worker was lost before. Until then the gradient
 * has not arrived, and `from` says that it is being received. */
static void marked(void *arg, int status, const uint8_t *marks)
{
	struct gradient *g = arg;
	struct chunk *c = g->chunk;
	struct server_peer *from = TERN_TAKE(g->from);

	if (status == 0 && !c->server->over)
		skip_add(c, marks);
	if (status == 0 && !c->server->over) {
		take_in(g, from, marks);
		return;
	}
	if (g->in_place)
		tern_release(&g->req);
	if (!c->server->over)
		did_not_arrive(g, from, status); /* without its marks */
}

static void arrived(struct tern_req *req)
{
	struct gradient *g = req->arg;
	struct chunk *c = g->chunk;
	struct tern_server *s = c->server;
	struct server_peer *from = g->from;

	if (req->status == 0 && !s->over && tern_marks_follow(&req->shape)) {
		skip_receive(c, from, c->version * s->job.slots + slot_of(g), marked, g);
		return;
	}
	g->from = NULL;
	if (s->over) {
		if (req->status == 0 && g->in_place)
			tern_release(req);
	} else if (req->status == 0) {
		take_in(g, from, NULL);
	} else if (req->status == -EMSGSIZE) {
		chunk_takes(c, from->index, req);
	} else {
		did_not_arrive(g, from, req->status);
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
	tern_never("unknown state of a chunk");
}

static void chunk_taken(struct chunk *c, uint32_t slot, uint64_t version)
{
	struct gradient *g = &c->gradients[slot];
	bool has = has_all(c) || g->arrived;
	uint64_t first_missing = c->version + (has ? 1 : 0);

	if (version < first_missing)
		lease_refuse_extra(c, c->server->leases[slot].holder, slot, version,
			first_missing - 1);
	/* If a receive from the old holder is posted (g->from), it must end first:
	 * arrived() then receives from the new one. */
	if (c->state == CHUNK_GATHERING && !has && !g->from && is_due(c, slot))
		receive(c, slot);
}

/* Raises the budget for the rest of the job, so that every chunk has its share. */
static void widen_staging(struct tern_server *s)
{
	if (s->staging_most > STAGING_MOST) {
		server_fail(s, -ENOMEM,
			"no room to receive gradients: with %u slots and %u workers, "
			"server %u needs room for %u gradients of its share, %llu bytes; "
			"a server takes at most %llu for them, whatever its memory: use "
			"more servers, or as many workers as slots",
			s->job.slots, s->job.workers - s->lost_count, view_own_number(s),
			s->held_most, (unsigned long long)s->staging_most, STAGING_MOST);
		return;
	}
	if (s->staging_most > s->staging_bytes) {
		s->staging_left += s->staging_most - s->staging_bytes;
		s->staging_bytes = s->staging_most;
	}
}

/* True if no chunk may wait for the budget: a worker has more slots than buffers. A worker
 * sends the chunks of one slot and then those of the next, and begins a slot when one of
 * its buffers is free. So a chunk that waits would block a buffer that the next slot
 * needs. */
static bool needs_all_chunks(struct tern_server *s)
{
	for (uint32_t i = 0; i < s->job.workers; i++)
		s->workers[i]->slot_count = 0;
	for (uint32_t i = 0; i < s->job.slots; i++)
		if (++s->leases[i].owner->slot_count > TERN_GRADIENT_BUFFERS)
			return true;
	return false;
}

void sync_owners_changed(struct tern_server *s)
{
	if (s->over || s->staging_bytes >= s->staging_most || !needs_all_chunks(s))
		return;
	widen_staging(s);
	sync_next(s);
}

void sync_taken(struct tern_server *s, uint32_t slot, uint64_t version)
{
	sync_owners_changed(s);
	for (uint32_t i = 0; i < s->chunk_count && !s->over; i++)
		chunk_taken(&s->chunks[i], slot, version);
	sync_next(s);
}

static bool can_be_wanted(const struct chunk *c, uint32_t slot, uint64_t version)
{
	const struct gradient *g = &c->gradients[slot];

	return c->version == version && !has_all(c) && !g->arrived && !is_due(c, slot);
}

static void chunk_wanted(struct chunk *c, uint32_t slot)
{
	struct tern_server *s = c->server;
	struct gradient *g = &c->gradients[slot];

	g->wanted = true;
	c->wanted_count++;
	s->wanted_bytes += bytes_of(c);
	if (s->staging_bytes + s->wanted_bytes > STAGING_MOST)
		server_fail(s, -ENOMEM,
			"no room for gradients: those of slots that were taken over "
			"need %llu bytes beyond the %llu bytes that server %u has "
			"reserved, and it can hold %llu: use more servers",
			(unsigned long long)s->wanted_bytes,
			(unsigned long long)s->staging_bytes, view_own_number(s),
			STAGING_MOST);
	else if (c->state == CHUNK_GATHERING && !g->from)
		receive(c, slot);
}

void sync_wanted(struct tern_server *s, uint32_t slot, uint64_t version)
{
	for (uint32_t i = 0; i < s->chunk_count && !s->over; i++)
		if (can_be_wanted(&s->chunks[i], slot, version))
			chunk_wanted(&s->chunks[i], slot);
}

static void gather(struct chunk *c)
{
	struct tern_server *s = c->server;

	s->staging_left -= staging_of(c);
	enter(c, CHUNK_GATHERING);
	skip_begin(c);
	for (uint32_t i = 0; i < s->job.slots; i++)
		c->gradients[i].chunk = c;
	receive_due(c);
}

void sync_next(struct tern_server *s)
{
	struct chunk *c;

	while (!s->over && (c = tern_list_first(&s->holding, struct chunk, node)) &&
		!change_stops(s, c->version) && staging_of(c) <= s->staging_left) {
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
