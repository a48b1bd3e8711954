/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues the work of one pass over a batch into two streams: `compute`, and `copy`, which
 * copies parameters to the device and gradients from it at the same time:
 *
 *     compute  batch up | layer 0 | layer 1 | ... loss | dw1 db1 | dx1 | dw0 db0 | result
 *     copy     w0 b0 up | w1 b1 up | ...                         | dw1 db1 down | dw0 ...
 *
 * A layer waits only for its own parameters, so the copy of the next layer's parameters
 * overlaps it. A gradient is copied as soon as it is final, which is before dx is
 * computed. Everything can be captured into a CUDA graph: nothing here waits for the
 * device or depends on computed values.
 */
#include "client/engine/cuda_internal.h"

#include "base/util.h"

static void copy_up(struct cuda_engine *e, void *to, const void *from, uint64_t bytes,
	CUstream stream, const char *what)
{
	CUDA_DO(e,
		e->gpu.api->memcpy_htod_async(
			(CUdeviceptr)(uintptr_t)to, from, bytes, stream),
		what);
}

static void copy_down(struct cuda_engine *e, void *to, const void *from, uint64_t bytes,
	CUstream stream, const char *what)
{
	CUDA_DO(e,
		e->gpu.api->memcpy_dtoh_async(
			to, (CUdeviceptr)(uintptr_t)from, bytes, stream),
		what);
}

/* Copies between the caller's parameters or gradients, which are in host memory or in the
 * device's, and the engine's own: the driver knows memory by its address. */
static void copy_vector(struct cuda_engine *e, float *to, const float *from,
	const struct cuda_part *part, const char *what)
{
	CUDA_DO(e,
		e->gpu.api->memcpy_async((CUdeviceptr)(uintptr_t)(to + part->first),
			(CUdeviceptr)(uintptr_t)(from + part->first),
			part->count * sizeof(float), e->copy),
		what);
}

/* Makes work that is queued into the stream `waiting` later start only after the work
 * that is in the stream `first` now. */
static void follow(struct cuda_engine *e, CUstream waiting, CUevent event, CUstream first)
{
	CUDA_DO(e, e->gpu.api->event_record(event, first), "an event");
	CUDA_DO(e, e->gpu.api->stream_wait_event(waiting, event, 0), "an event");
}

/* ---- copies to the device ---- */

void cuda_put_batch(struct cuda_engine *e, size_t rows, bool labels)
{
	const struct tern_model *m = e->engine.model;
	const struct tern_batch *batch = &e->engine.batch;

	if (m->text)
		copy_up(e, e->ids, batch->ids, rows * m->context * sizeof(*e->ids),
			e->compute, "copying a batch to the device");
	else
		copy_up(e, e->x, batch->x, rows * m->features * sizeof(*e->x), e->compute,
			"copying a batch to the device");
	if (labels)
		copy_up(e, e->labels, batch->labels, rows * sizeof(*e->labels),
			e->compute, "copying a batch to the device");
}

static void put_params(struct cuda_engine *e, const float *fresh)
{
	for (unsigned i = 0; i < e->part_count; i++) {
		const struct cuda_part *p = &e->parts[i];

		copy_vector(e, e->params, fresh, p, "copying parameters to the device");
		CUDA_DO(e, e->gpu.api->event_record(p->up, e->copy), "an event");
	}
}

static void wait_for_part(
	struct cuda_engine *e, const struct cuda_pass *pass, unsigned part)
{
	if (pass->fresh)
		CUDA_DO(e,
			e->gpu.api->stream_wait_event(e->compute, e->parts[part].up, 0),
			"an event");
}

/* ---- forward ---- */

static const float *input_of(const struct cuda_engine *e)
{
	return e->engine.model->text ? e->input : e->x;
}

float *cuda_put_forward(struct cuda_engine *e, const struct cuda_pass *pass)
{
	const struct tern_model *m = e->engine.model;
	const float *x = input_of(e);
	unsigned part = 0;

	follow(e, e->copy, e->fork, e->compute);
	if (pass->fresh)
		put_params(e, pass->fresh);
	if (m->text) {
		wait_for_part(e, pass, part++);
		CUDA_KERNEL(e, tern_cuda_embed_forward(e->kernels, e->input,
				       e->params + m->params[0].first, e->ids,
				       pass->rows * m->context, m->embed));
	}
	for (unsigned i = 0; i < m->layer_count; i++) {
		const struct tern_layer *l = &m->layers[i];

		wait_for_part(e, pass, part++);
		CUDA_KERNEL(e,
			tern_cuda_dense_forward(e->kernels, e->y[i], x, e->params + l->w,
				e->params + l->b, pass->rows, l->in, l->out, l->relu));
		x = e->y[i];
	}
	return e->y[m->layer_count - 1];
}

/* ---- backward ---- */

/* Queues the copy of a part's gradient, then the copy of a word that shows that the
 * gradient has arrived, and then the event `down`. */
static void put_down(struct cuda_engine *e, const struct cuda_pass *pass, unsigned part)
{
	const struct cuda_part *p = &e->parts[part];

	follow(e, e->copy, p->final, e->compute);
	copy_vector(e, pass->grads, e->grads, p, "copying gradients");
	copy_down(e, (void *)(uintptr_t)&e->words->seen[part], e->one, sizeof(*e->one),
		e->copy, "copying gradients");
	CUDA_DO(e,
		e->gpu.api->event_record_with_flags(p->down, e->copy,
			pass->capturing ? CU_EVENT_RECORD_EXTERNAL
					: CU_EVENT_RECORD_DEFAULT),
		"an event");
}

/* The gradients dw and db of layer i are copied before dx is computed. */
static void put_layer_back(
	struct cuda_engine *e, const struct cuda_pass *pass, unsigned i, unsigned part)
{
	const struct tern_layer *l = &e->engine.model->layers[i];
	float *dx = i > 0 ? e->dy[i - 1] : e->dinput;

	CUDA_KERNEL(e, tern_cuda_dense_backward(e->kernels, NULL, e->grads + l->w,
			       e->grads + l->b, e->dy[i], e->y[i],
			       i > 0 ? e->y[i - 1] : input_of(e), e->params + l->w,
			       pass->rows, l->in, l->out, l->relu));
	put_down(e, pass, part);
	if (dx)
		CUDA_KERNEL(e, tern_cuda_dense_backward_input(e->kernels, dx, e->dy[i],
				       e->params + l->w, pass->rows, l->in, l->out));
}

void cuda_put_gradient(struct cuda_engine *e, const struct cuda_pass *pass)
{
	const struct tern_model *m = e->engine.model;
	unsigned top = m->layer_count - 1, part = e->part_count;
	const float *logits;

	cuda_put_batch(e, pass->rows, true);
	logits = cuda_put_forward(e, pass);
	CUDA_KERNEL(e, tern_cuda_softmax_xent(e->kernels, e->result, e->dy[top], logits,
			       e->labels, pass->rows, m->classes));
	for (unsigned i = top + 1; i-- > 0;)
		put_layer_back(e, pass, i, --part);
	if (m->text) {
		CUDA_KERNEL(e, tern_cuda_embed_backward(e->kernels,
				       e->grads + m->params[0].first, e->dinput, e->ids,
				       pass->rows * m->context, m->embed, m->symbols));
		put_down(e, pass, --part);
	}
	follow(e, e->compute, e->join, e->copy);
	copy_down(e, &e->words->result, e->result, sizeof(*e->result), e->compute,
		"copying the loss to the host");
}
