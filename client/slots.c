/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients. The slots of this worker are computed one after the other, each by one job;
 * while it runs, it says from which element on its gradient is final, and the chunks
 * beyond are sent, the last layer's first.
 *
 * A slot's records and its result follow from (seed, step, slot) and the version alone,
 * so it does not matter who computes it.
 */
#include "client/internal.h"

#include <errno.h>
#include <math.h>

/* What the simulator charges for a slot. */
#define SLOT_COST_NS 200000u

/* ---- batches ---- */

int batch_new(const struct tern_dataset *data, size_t rows, struct tern_batch *out)
{
	size_t width = data->width ? data->width : 1;

	*out = (struct tern_batch){.rows = rows};
	out->labels = calloc(rows, sizeof(*out->labels));
	if (data->kind == TERN_DATA_TEXT)
		out->ids = calloc(rows * width, sizeof(*out->ids));
	else
		out->x = calloc(rows * width, sizeof(*out->x));
	if (out->labels && (out->ids || out->x))
		return 0;
	batch_free(out);
	return -ENOMEM;
}

void batch_free(struct tern_batch *batch)
{
	free(batch->x);
	free(batch->ids);
	free(batch->labels);
	*batch = (struct tern_batch){0};
}

/* ---- sending ---- */

/* In async mode every step of every worker is a slot of its own. */
static uint64_t slot_id(const struct tern_worker *w, const struct slot *slot)
{
	if (w->job.mode == TERN_MODE_ASYNC)
		return w->version * w->job.workers + w->opts.index;
	return w->version * w->job.slots + slot->number;
}

static void part_sent(struct tern_req *req)
{
	struct gradient_part *part = req->arg;
	struct tern_worker *w = part->slot->worker;

	part->slot->sends_out--;
	if (!w->over && w->state == WORKER_RUNNING)
		slots_run(w); /* perhaps this buffer was waited for */
}

static void send_chunk(struct tern_worker *w, struct slot *slot, uint32_t chunk)
{
	const struct tern_chunk *c = &w->plan.chunks[chunk];
	struct gradient_part *part = &slot->parts[chunk];
	struct tern_tensor tensor = {
		.buf = slot->gradient, .shape = tern_shape_1d(TERN_F32, c->count)};
	uint64_t step = w->job.mode == TERN_MODE_ASYNC ? w->version : slot_id(w, slot);

	tensor.buf.offset += c->first * sizeof(float);
	tensor.buf.bytes = c->count * sizeof(float);
	part->slot = slot;
	part->req.done = part_sent;
	part->req.arg = part;
	slot->sends_out++;
	w->byte_count += tensor.buf.bytes;
	tern_send(w->servers[c->server].data, &part->req, c->gradient_key, step, &tensor,
		NULL, 0);
}

static void send_ready(struct tern_worker *w, uint64_t first)
{
	struct slot *slot = &w->slots[w->slot_at];

	while (!w->over && w->unsent > 0 && w->plan.chunks[w->unsent - 1].first >= first)
		send_chunk(w, slot, --w->unsent);
}

/* ---- computing ---- */

static void say_ready(void *arg, uint64_t first)
{
	struct tern_worker *w = arg;

	/* Release: the gradient behind `first` is written before the context's thread,
	 * which acquires it in on_progress, reads it to send it. */
	atomic_store_explicit(&w->ready_first, first, memory_order_release);
	tern_job_signal(&w->job_item);
}

static void compute(struct tern_job *job)
{
	struct tern_worker *w = tern_container_of(job, struct tern_worker, job_item);
	struct slot *slot = &w->slots[w->slot_at];
	uint64_t base = slot_id(w, slot) * w->job.batch;

	for (uint32_t j = 0; j < w->job.batch; j++)
		w->records[j] =
			tern_permutation_at(w->job.seed, w->opts.train->count, base + j);
	tern_dataset_batch(w->opts.train, w->records, w->job.batch, &w->batch);
	w->result = tern_model_gradient(w->opts.model, w->opts.kernels,
		versions_current(w), tern_buf_ptr(&slot->gradient), &w->batch,
		w->workspace, say_ready, w);
}

static void on_progress(struct tern_job *job)
{
	struct tern_worker *w = tern_container_of(job, struct tern_worker, job_item);

	if (w->computing)
		send_ready(
			w, atomic_load_explicit(&w->ready_first, memory_order_acquire));
}

static void computed(struct tern_job *job)
{
	struct tern_worker *w = tern_container_of(job, struct tern_worker, job_item);
	double loss = w->result.loss / w->job.batch;

	w->record_count += w->job.batch;
	send_ready(w, 0);
	w->computing = false;
	if (w->over)
		return;
	if (!isfinite(loss)) {
		worker_fail(w, -ERANGE,
			"step %llu: the loss is no longer a number: a lower learning "
			"rate "
			"may help",
			(unsigned long long)w->version + 1);
		return;
	}
	w->step_loss = w->slot_at == 0 ? loss : w->step_loss + loss;
	if (++w->slot_at == w->slot_count) {
		w->step_loss /= w->slot_count;
		w->losses[w->loss_count++ % WORKER_LOSS_WINDOW] = w->step_loss;
	}
	if (w->missing[(w->version + 1) & 1] == 0)
		versions_complete(w, w->version + 1);
	else
		slots_run(w);
}

void slots_run(struct tern_worker *w)
{
	struct slot *slot = &w->slots[w->slot_at];

	if (w->computing || w->over || w->slot_at >= w->slot_count ||
		w->missing[w->version & 1] > 0)
		return;
	if (slot->sends_out > 0)
		return; /* its buffer is still being read: part_sent comes */
	w->computing = true;
	w->unsent = w->plan.chunk_count;
	atomic_store_explicit(&w->ready_first, UINT64_MAX, memory_order_relaxed);
	w->job_item.run = compute;
	w->job_item.done = computed;
	w->job_item.progress = on_progress;
	worker_submit(w, &w->job_item, SLOT_COST_NS);
}

/* ---- birth and death ---- */

static int init_slot(struct tern_worker *w, uint32_t number)
{
	struct slot *slot = &w->slots[w->slot_count++];

	slot->worker = w;
	slot->number = number;
	slot->parts = calloc(w->plan.chunk_count, sizeof(*slot->parts));
	if (!slot->parts)
		return -ENOMEM;
	return tern_pool_get(
		w->pool, w->job.element_count * sizeof(float), &slot->gradient);
}

int slots_init(struct tern_worker *w)
{
	int r = 0;

	w->slots = calloc(w->job.slots + 1u, sizeof(*w->slots));
	w->records = calloc(w->job.batch, sizeof(*w->records));
	w->workspace = tern_workspace_new(w->opts.model, w->job.batch);
	if (!w->slots || !w->records || !w->workspace)
		return -ENOMEM;
	r = batch_new(w->opts.train, w->job.batch, &w->batch);
	if (r == 0 && w->job.mode == TERN_MODE_ASYNC)
		return init_slot(w, 0);
	for (uint32_t i = 0; r == 0 && i < w->job.slots; i++)
		if (tern_slot_owner(&w->job, i) == w->opts.index)
			r = init_slot(w, i);
	return r;
}

void slots_fini(struct tern_worker *w)
{
	for (uint32_t i = 0; i < w->slot_count; i++) {
		tern_pool_put(w->pool, &w->slots[i].gradient);
		free(w->slots[i].parts);
	}
	batch_free(&w->batch);
	tern_workspace_free(w->workspace);
	free(w->records);
	free(w->slots);
}
