/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients. A slot is a share of each step's records. The slots of this worker are
 * computed one after the other, in the order of their numbers, by the computer
 * (compute.h). It reports which elements of the gradient are final, and each chunk is
 * sent when all of its elements are.
 *
 * The records of a slot and its result depend on (seed, step, slot) and the version
 * alone, so any worker may compute it. Slots of a lost worker are added here (lease.c).
 * Gradients that the servers were told to expect are always sent: this worker stays at a
 * version until it has computed all slots that it has taken, even if the next version is
 * complete because the lost worker had sent their gradients before.
 */
#include "client/worker_state.h"

#include <errno.h>
#include <math.h>

#include "client/data/permutation.h"
#include "ps/marks.h"

/* ---- sending ---- */

/* Returns a number that is unique for each gradient of the job. In async mode a worker
 * computes one gradient in each of its steps, and `slot` is not used. */
static uint64_t slot_id(
	const struct tern_ps_job *job, uint32_t index, uint64_t version, uint32_t slot)
{
	if (job->mode == TERN_MODE_ASYNC)
		return version * job->workers + index;
	return version * job->slots + slot;
}

uint64_t slots_first_record(
	const struct tern_ps_job *job, uint32_t index, uint64_t version, uint32_t slot)
{
	return slot_id(job, index, version, slot) * job->batch;
}

static void part_sent(struct tern_req *req)
{
	struct gradient_part *part = req->arg;
	struct room *room = part->room;
	struct tern_worker *w = room->worker;

	/* A send fails if the connection to its server has ended. The server may still
	 * read the buffer in place for a moment, so the buffer is not used again; this
	 * worker is about to end in any case. -EMSGSIZE is no failure: the server had the
	 * gradient from another worker already. */
	if (req->status < 0 && req->status != -EMSGSIZE) {
		worker_failed(w, (uint32_t)(part - room->parts), req->status);
		return;
	}
	room->sends_out--;
	slots_run(w); /* a slot may have waited for this buffer */
}

static void send_chunk(struct tern_worker *w, struct room *room, uint32_t chunk)
{
	const struct tern_chunk *c = &w->plan.chunks[chunk];
	struct gradient_part *part = &room->parts[chunk];
	struct tern_tensor tensor = rooms_tensor(room, chunk);
	uint64_t step = w->job.mode == TERN_MODE_ASYNC
				? w->version
				: slot_id(&w->job, w->opts.index, w->version, room->slot);

	if (marks_send(w, chunk, step))
		tensor.shape = room->omitted ? tern_marks_omitted_shape(&tensor.shape)
					     : tern_marks_shape(&tensor.shape);
	part->room = room;
	part->req.done = part_sent;
	part->req.arg = part;
	room->sends_out++;
	w->byte_count += tensor.buf.bytes;
	tern_send(w->servers[c->server].data, &part->req, c->gradient_key, step, &tensor,
		NULL, 0);
}

/* ---- what the computer says ---- */

static void enter(struct room *room, enum room_state next)
{
	static const uint8_t edges[] = {
		[ROOM_IDLE] = 1 << ROOM_COMPUTING,
		[ROOM_COMPUTING] = 1 << ROOM_IDLE | 1 << ROOM_REVOKED,
		[ROOM_REVOKED] = 1 << ROOM_IDLE,
	};

	tern_assert(edges[room->state] >> next & 1);
	room->state = next;
}

static struct room *room_of(struct tern_work *work)
{
	return tern_container_of(work, struct room, work);
}

uint64_t tern_work_record(const struct tern_work *work, uint32_t j)
{
	if (work->record_count == 0)
		return work->first + j;
	return tern_permutation_at(work->seed, work->record_count, work->first + j);
}

/* Sends the chunks that are final. The last one may have to wait (keep.c). */
static void send_ready(struct tern_worker *w, struct room *room)
{
	uint32_t chunk;

	while (room->state == ROOM_COMPUTING &&
		(w->ready.taken + 1 < w->plan.chunk_count || !keep_holds_last(w)) &&
		ready_take(&w->ready, &chunk))
		send_chunk(w, room, chunk);
}

void tern_work_final(struct tern_work *work, uint64_t first, uint64_t count)
{
	struct room *room = room_of(work);
	struct tern_worker *w = room->worker;

	tern_assert(room->state != ROOM_IDLE);
	if (room->state == ROOM_REVOKED)
		return;
	ready_say(&w->ready, first, count);
	if (w->omits) /* the servers see no progress of this slot before its loss is known */
		w->worked_ns = tern_now_ns(w->env);
	else
		send_ready(w, room);
}

void tern_work_unpushed(struct tern_work *work, uint32_t param)
{
	struct room *room = room_of(work);
	const struct tern_param *p = &room->worker->job.params[param];

	if (room->state == ROOM_COMPUTING)
		marks_say(room->worker, param);
	tern_work_final(work, p->first, p->count);
}

/* The computation for this room has ended, and its buffer is free again. Returns false if
 * the slot was revoked meanwhile: then the caller has nothing more to do. */
static bool let_go(struct room *room)
{
	bool revoked = room->state == ROOM_REVOKED;

	enter(room, ROOM_IDLE);
	if (!revoked)
		room->worker->computing = false;
	return !revoked;
}

/* Sends the gradient that was held back until the loss was known (omit.c). */
static void send_held(struct tern_worker *w, struct room *room, double loss)
{
	int r = isfinite(loss) ? 0 : omit_slot(w, room);

	if (r < 0)
		worker_give_up(w, r, "cannot leave slot %u of step %llu out: %s",
			room->slot, (unsigned long long)w->version + 1,
			tern_status_text(r));
	else
		send_ready(w, room);
}

static void count_loss(
	struct tern_worker *w, struct slot *slot, const struct room *room, double loss)
{
	slot->losses[slot->loss_count++ % WORKER_LOSS_WINDOW] = loss;
	w->step_weight += room->work.weight;
	w->step_loss += loss * room->work.weight;
}

void slots_end(struct tern_worker *w, double loss)
{
	struct slot *slot = w->slot;
	struct room *room = w->room;

	w->keep.slot_ends = true;
	if (w->omits && room->state == ROOM_COMPUTING)
		send_held(w, room, loss);
	else
		send_ready(w, room);
	if (!let_go(room))
		return;
	w->record_count += w->job.batch;
	/* Every chunk was sent: else the servers would wait for the rest for ever. */
	tern_assert(w->ready.taken == w->plan.chunk_count);
	if (!isfinite(loss) && !room->omitted) {
		worker_fail(w, -ERANGE,
			"slot %u of step %llu: the loss is no longer a number (%s): a "
			"lower learning rate may help",
			slot->number, (unsigned long long)w->version + 1,
			isnan(loss) ? "nan" : "infinite");
		return;
	}
	twice_say(w, room);
	if (!room->omitted)
		count_loss(w, slot, room, loss);
	if (slot->moved)
		slots_remove(w, slot);
	if (slots_complete_step(w))
		return;
	slots_run(w);
	early_run(w);
}

void tern_work_end(struct tern_work *work, double loss)
{
	struct room *room = room_of(work);
	struct tern_worker *w = room->worker;

	if (room->state == ROOM_REVOKED) {
		let_go(room);
		return;
	}
	w->worked_ns = tern_now_ns(w->env);
	w->slot_ns = w->worked_ns - room->begun_ns;
	if (!keep_awaits(w, loss))
		slots_end(w, loss);
}

void tern_work_fail(struct tern_work *work, int status, const char *text)
{
	struct room *room = room_of(work);

	if (let_go(room))
		worker_give_up(room->worker, status, "%s", text);
}

void tern_work_goes_on(struct tern_work *work)
{
	struct tern_worker *w = room_of(work)->worker;

	w->worked_ns = tern_now_ns(w->env);
}

/* ---- which slot is computed ---- */

bool slots_complete_step(struct tern_worker *w)
{
	if (w->missing[(w->version + 1) & 1] > 0 || slots_are_due(w))
		return false;
	versions_complete(w, w->version + 1);
	return true;
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

void slots_describe(const struct tern_worker *w, uint32_t slot, uint64_t version,
	struct tern_work *work)
{
	*work = (struct tern_work){.version = version,
		.slot = slot,
		.batch = w->job.batch,
		.params = &w->w[version & 1],
		.seed = w->job.seed,
		.record_count = w->job.records,
		.first = slots_first_record(&w->job, w->opts.index, version, slot),
		.weight = 1};
}

static void begin(struct tern_worker *w, struct slot *slot, struct room *room)
{
	room->taken_over = !slot->taken;
	if (!slot->taken)
		worker_take(w, slot);
	slot->pending = false;
	room->version = w->version;
	room->slot = slot->number;
	room->wanted = room->omitted = false;
	room->begun_ns = tern_now_ns(w->env);
	slots_describe(w, slot->number, w->version, &room->work);
	room->work.gradient = &room->gradient;
	room->work.is_new_memory = !room->used;
	room->used = true;
	w->slot = slot;
	w->room = room;
	w->computing = true;
	w->is_announced = false;
	ready_begin(&w->ready);
	marks_begin(w);
	keep_begin_slot(w);
	enter(room, ROOM_COMPUTING);
	w->opts.computer->ops->begin(w->opts.computer, &room->work);
}

/* Returns the slot that can be begun now; NULL: none. Server 0 may give slots of a lost worker
 * before the welcome of another server has arrived: the version to begin with is unknown then. After
 * the last step slots of a lost worker may still be pending: they are not needed. */
static struct slot *due_slot(struct tern_worker *w)
{
	if (!w->welcomed || w->spare || w->computing || w->state > WORKER_RUNNING ||
		w->missing[w->version & 1] > 0)
		return NULL;
	return next_slot(w);
}

void slots_run(struct tern_worker *w)
{
	struct slot *slot;

	/* A computer that ends a slot within begin() calls this function again: the loop
	 * below then begins the next slot. */
	if (w->beginning)
		return;
	w->beginning = true;
	while ((slot = due_slot(w))) {
		struct room *room = rooms_find(w);

		if (!room) {
			rooms_want(w, slot); /* part_sent() will call slots_run() */
			break;
		}
		begin(w, slot, room);
	}
	w->beginning = false;
}

void slots_revoke(struct tern_worker *w)
{
	early_cancel(w);
	if (!w->computing)
		return;
	w->computing = false;
	enter(w->room, ROOM_REVOKED);
	if (keep_stop(w))
		enter(w->room, ROOM_IDLE);
	else if (w->opts.computer->ops->revoke)
		w->opts.computer->ops->revoke(w->opts.computer, &w->room->work);
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

struct slot *slots_find(const struct tern_worker *w, uint32_t number)
{
	for (uint32_t i = 0; i < w->slot_count; i++)
		if (w->slots[i].number == number && !w->slots[i].moved)
			return &w->slots[i];
	return NULL;
}

void slots_remove(struct tern_worker *w, struct slot *slot)
{
	struct slot *last = &w->slots[w->slot_count - 1];

	slot->pending = false;
	slot->moved = true;
	if (w->computing && w->slot == slot)
		return; /* tern_work_end() removes it */
	if (w->computing && w->slot == last)
		w->slot = slot;
	*slot = *last;
	w->slot_count--;
}

void slots_begin(struct tern_worker *w)
{
	for (uint32_t i = 0; i < w->slot_count; i++)
		w->slots[i].pending = !w->slots[i].moved;
	slots_run(w);
}

int slots_init(struct tern_worker *w)
{
	int r = 0;

	/* Each slot of the job, and one that was moved away while it is being computed. */
	w->slots = calloc(w->job.slots + 2u, sizeof(*w->slots));
	if (!w->slots || ready_init(&w->ready, &w->plan) < 0 || marks_init(w) < 0)
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
	marks_fini(w);
	omit_fini(w);
	free(w->slots);
}
