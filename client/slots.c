/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients. A slot is a share of each step's records. The slots of this worker are
 * computed one after the other, in the order of their numbers, each by one task. While
 * the task runs, it reports which elements of the gradient are final, and each chunk is
 * sent when all of its elements are.
 *
 * The records of a slot and its result depend on (seed, step, slot) and the version
 * alone, so any worker may compute it. Slots of a lost worker are added here (lease.c).
 * Gradients that the servers were told to expect are always sent: this worker stays at a
 * version until it has sent all slots that are taken, even if the next version is
 * complete because the lost worker had sent them before.
 */
#include "client/worker_state.h"

#include <errno.h>
#include <math.h>

#include "client/data/permutation.h"

/* Virtual time for a slot in the simulator. */
#define SLOT_COST_NS 200000u

/* ---- sending ---- */

/* Number that is unique for each slot of each step. In async mode every step of every
 * worker is a slot. */
static uint64_t slot_id(const struct tern_worker *w, uint32_t slot)
{
	if (w->job.mode == TERN_MODE_ASYNC)
		return w->version * w->job.workers + w->opts.index;
	return w->version * w->job.slots + slot;
}

static void part_sent(struct tern_req *req)
{
	struct gradient_part *part = req->arg;
	struct room *room = part->room;
	struct tern_worker *w = room->worker;

	/* A send fails if the connection to its server is lost. The server may still
	 * read the buffer in place for a moment, so the buffer is not used again: this
	 * worker is about to end. -EMSGSIZE is no failure: the server had the gradient
	 * from another worker. */
	if (req->status < 0 && req->status != -EMSGSIZE) {
		worker_failed(w, (uint32_t)(part - room->parts), req->status);
		return;
	}
	room->sends_out--;
	if (!w->over && w->state <= WORKER_RUNNING)
		slots_run(w); /* a slot may have waited for this buffer */
}

static void send_chunk(struct tern_worker *w, struct room *room, uint32_t chunk)
{
	const struct tern_chunk *c = &w->plan.chunks[chunk];
	struct gradient_part *part = &room->parts[chunk];
	struct tern_tensor tensor = {
		.buf = room->gradient, .shape = tern_shape_1d(TERN_F32, c->count)};
	uint64_t step =
		w->job.mode == TERN_MODE_ASYNC ? w->version : slot_id(w, room->slot);

	tensor.buf.offset += c->first * sizeof(float);
	tensor.buf.bytes = c->count * sizeof(float);
	part->room = room;
	part->req.done = part_sent;
	part->req.arg = part;
	room->sends_out++;
	w->byte_count += tensor.buf.bytes;
	tern_send(w->servers[c->server].data, &part->req, c->gradient_key, step, &tensor,
		NULL, 0);
}

static void send_ready(struct tern_worker *w)
{
	uint32_t chunk;

	while (!w->over && ready_take(&w->ready, &chunk))
		send_chunk(w, w->room, chunk);
}

/* ---- computing ---- */

static void say_ready(void *arg, uint64_t first, uint64_t count)
{
	struct tern_worker *w = arg;

	ready_say(&w->ready, first, count);
	tern_task_signal(&w->task);
}

static void compute(struct tern_task *task)
{
	struct tern_worker *w = tern_container_of(task, struct tern_worker, task);
	const struct tern_engine_params params = versions_current(w);
	uint64_t base = slot_id(w, w->slot->number) * w->job.batch;

	for (uint32_t j = 0; j < w->job.batch; j++)
		w->records[j] =
			tern_permutation_at(w->job.seed, w->opts.train->count, base + j);
	tern_dataset_batch(
		w->opts.train, w->records, w->job.batch, &w->opts.engine->batch);
	w->compute_status = rooms_announce(w, w->room);
	if (w->compute_status == 0)
		w->compute_status = tern_engine_gradient(w->opts.engine, &params,
			tern_vector(&w->room->gradient), say_ready, w, &w->result);
}

static void on_progress(struct tern_task *task)
{
	struct tern_worker *w = tern_container_of(task, struct tern_worker, task);

	if (w->computing)
		send_ready(w);
}

static void computed(struct tern_task *task)
{
	struct tern_worker *w = tern_container_of(task, struct tern_worker, task);
	struct slot *slot = w->slot;
	double loss = w->result.loss / w->job.batch;

	worker_engine_note(w);
	if (w->compute_status < 0) {
		w->computing = false;
		worker_engine_failed(w, w->compute_status);
		return;
	}
	w->worked_ns = tern_now_ns(w->env);
	w->record_count += w->job.batch;
	send_ready(w);
	w->computing = false;
	if (w->over)
		return;
	/* Else the servers would wait for the rest for ever. */
	tern_assert(w->ready.taken == w->plan.chunk_count);
	if (!isfinite(loss)) {
		worker_fail(w, -ERANGE,
			"step %llu: the loss is no longer a number: a lower learning "
			"rate "
			"may help",
			(unsigned long long)w->version + 1);
		return;
	}
	slot->losses[slot->loss_count++ % WORKER_LOSS_WINDOW] = loss;
	w->step_loss = w->step_slots++ == 0 ? loss : w->step_loss + loss;
	if (w->missing[(w->version + 1) & 1] == 0 && !slots_are_due(w))
		versions_complete(w, w->version + 1);
	else
		slots_run(w);
}

bool slots_are_due(const struct tern_worker *w)
{
	for (uint32_t i = 0; i < w->slot_count; i++)
		if (w->slots[i].pending && w->slots[i].taken)
			return true;
	return w->computing;
}

/* Returns the slot to be computed next: the pending one with the lowest number; or
 * NULL. */
static struct slot *next_slot(struct tern_worker *w)
{
	struct slot *next = NULL;

	for (uint32_t i = 0; i < w->slot_count; i++) {
		struct slot *slot = &w->slots[i];

		if (slot->pending && (!next || slot->number < next->number))
			next = slot;
	}
	return next;
}

void slots_run(struct tern_worker *w)
{
	struct slot *slot;

	if (w->spare || w->computing || w->over || w->missing[w->version & 1] > 0)
		return;
	slot = next_slot(w);
	if (!slot)
		return;
	w->room = rooms_find(w);
	if (!w->room) {
		rooms_want(w, slot); /* part_sent() will call slots_run() */
		return;
	}
	if (!slot->taken)
		worker_take(w, slot);
	slot->pending = false;
	w->slot = slot;
	w->room->version = w->version;
	w->room->slot = slot->number;
	w->room->wanted = false;
	w->computing = true;
	ready_begin(&w->ready);
	w->task.run = compute;
	w->task.done = computed;
	w->task.progress = on_progress;
	worker_submit(w, &w->task, SLOT_COST_NS);
}

/* ---- making and freeing slots ---- */

int slots_add(struct tern_worker *w, uint32_t number, uint64_t generation)
{
	/* A slot of a lost worker must be computed for the present version. The slots
	 * that this worker has from the start wait for the first version. */
	w->slots[w->slot_count++] = (struct slot){.number = number,
		.generation = generation,
		.taken = generation == 0,
		.pending = generation != 0};
	/* After the last step nothing is computed, and no further buffer is needed. */
	if (w->state > WORKER_RUNNING ||
		w->room_count >= TERN_MIN(w->slot_count, TERN_GRADIENT_BUFFERS))
		return 0;
	return rooms_add(w, generation != 0);
}

void slots_begin(struct tern_worker *w)
{
	for (uint32_t i = 0; i < w->slot_count; i++)
		w->slots[i].pending = true;
	slots_run(w);
}

int slots_init(struct tern_worker *w)
{
	int r = 0;

	w->slots = calloc(w->job.slots + 1u, sizeof(*w->slots));
	w->records = calloc(w->job.batch, sizeof(*w->records));
	if (!w->slots || !w->records || ready_init(&w->ready, &w->plan) < 0)
		return -ENOMEM;
	if (w->job.mode == TERN_MODE_ASYNC)
		r = slots_add(w, 0, 0);
	for (uint32_t i = 0; r == 0 && w->job.mode == TERN_MODE_SYNC && i < w->job.slots;
		i++)
		if (tern_slot_owner(&w->job, i) == w->opts.index)
			r = slots_add(w, i, 0);
	return r;
}

void slots_fini(struct tern_worker *w)
{
	rooms_fini(w);
	ready_fini(&w->ready);
	free(w->records);
	free(w->slots);
}
