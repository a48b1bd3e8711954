/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes and frees the CUDA engine, evaluates and samples.
 *
 * All memory but that of CUDA graphs is allocated at the start: device memory, and one
 * piece of page-locked memory (or of ordinary memory, if that is refused). Every call
 * enters the device's context and leaves it when both streams are idle. So nothing is
 * under way between calls: the owner of memory may free it, and the failure of one call
 * does not affect the next.
 *
 * There is one copy of the parameters on the device. The first pass that needs another
 * version overwrites it, layer by layer, concurrently with its own forward pass.
 */
#include "client/engine/cuda_internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"

static struct cuda_engine *cuda_of(struct tern_engine *engine)
{
	return tern_container_of(engine, struct cuda_engine, engine);
}

/* ---- calls ---- */

int cuda_kernel_check(struct cuda_engine *e, int status)
{
	if (status < 0)
		snprintf(e->gpu.error, sizeof(e->gpu.error), "cuda:%u: %s",
			e->gpu.ordinal, tern_cuda_kernels_error(e->kernels));
	return status;
}

void cuda_note(struct cuda_engine *e, const char *fmt, ...)
{
	char *note = e->engine.note;
	size_t room = sizeof(e->engine.note), used = strlen(note);
	va_list ap;

	if (used > 0 && used + 2 < room)
		used += (size_t)snprintf(note + used, room - used, "; ");
	va_start(ap, fmt);
	vsnprintf(note + used, room - used, fmt, ap);
	va_end(ap);
}

static void take_error(struct cuda_engine *e)
{
	if (e->status < 0)
		memcpy(e->engine.error, e->gpu.error, sizeof(e->gpu.error));
}

int cuda_enter(struct cuda_engine *e)
{
	e->status = tern_cuda_context_enter(&e->gpu);
	take_error(e);
	return e->status;
}

int cuda_leave(struct cuda_engine *e, const struct tern_engine_params *params)
{
	CUDA_DO(e, e->gpu.api->stream_synchronize(e->compute), "computing");
	e->holds = e->status == 0;
	e->version = params->version;
	if (e->status < 0) {
		/* Waits also for work that was queued before an error. */
		e->gpu.api->stream_synchronize(e->compute);
		e->gpu.api->stream_synchronize(e->copy);
	}
	take_error(e);
	tern_cuda_context_leave(&e->gpu);
	return e->status;
}

const float *cuda_fresh(
	const struct cuda_engine *e, const struct tern_engine_params *params)
{
	return e->holds && e->version == params->version ? NULL : params->values;
}

/* ---- evaluation ---- */

static void bring(struct cuda_engine *e, void *to, const void *from, uint64_t bytes)
{
	CUDA_DO(e,
		e->gpu.api->memcpy_dtoh_async(
			to, (CUdeviceptr)(uintptr_t)from, bytes, e->compute),
		"copying results to the host");
}

static void wait_for_results(struct cuda_engine *e)
{
	CUDA_DO(e, e->gpu.api->stream_synchronize(e->compute), "computing");
}

static void score(const struct cuda_engine *e, float *scores)
{
	for (size_t i = 0; i < e->engine.batch.rows; i++)
		scores[i] = e->logits[2 * i + 1] - e->logits[2 * i];
}

static int evaluate(struct tern_engine *engine, const struct tern_engine_params *params,
	float *scores, struct tern_result *result)
{
	struct cuda_engine *e = cuda_of(engine);
	size_t rows = engine->batch.rows, classes = engine->model->classes;
	const struct cuda_pass pass = {.rows = rows, .fresh = cuda_fresh(e, params)};
	bool scoring = scores && classes == 2;
	const float *logits;

	tern_assert(rows <= engine->rows);
	if (cuda_enter(e) < 0)
		return e->status;
	cuda_put_batch(e, rows, true);
	logits = cuda_put_forward(e, &pass);
	CUDA_KERNEL(e, tern_cuda_softmax_xent(e->kernels, e->result, NULL, logits,
			       e->labels, rows, classes));
	bring(e, &e->words->result, e->result, sizeof(*e->result));
	if (scoring)
		bring(e, e->logits, logits, rows * classes * sizeof(*logits));
	wait_for_results(e);
	if (e->status == 0 && scoring)
		score(e, scores);
	result->loss = e->words->result.loss;
	result->correct = e->words->result.correct;
	return cuda_leave(e, params);
}

static int sample(struct tern_engine *engine, const struct tern_engine_params *params,
	float temperature, float u, int32_t *symbol)
{
	struct cuda_engine *e = cuda_of(engine);
	const struct cuda_pass pass = {.rows = 1, .fresh = cuda_fresh(e, params)};
	const float *logits;

	if (cuda_enter(e) < 0)
		return e->status;
	cuda_put_batch(e, 1, false);
	logits = cuda_put_forward(e, &pass);
	bring(e, e->logits, logits, engine->model->classes * sizeof(*logits));
	wait_for_results(e);
	if (e->status == 0)
		*symbol = tern_model_draw(engine->model, e->logits, temperature, u);
	return cuda_leave(e, params);
}

/* ---- parameters in the device's memory ---- */

static CUresult fetch_on(struct cuda_engine *e, CUstream stream, float *to,
	const float *from, uint64_t count)
{
	CUresult result = e->gpu.api->memcpy_dtoh_async(
		to, (CUdeviceptr)(uintptr_t)from, count * sizeof(*to), stream);
	CUresult ended = e->gpu.api->stream_synchronize(stream);

	return result ? result : ended;
}

/* Uses its own stream and status, since another thread may use the engine at the same
 * time. */
static int fetch(struct tern_engine *engine, float *to, const float *from, uint64_t count,
	char *why, size_t why_bytes)
{
	struct cuda_engine *e = cuda_of(engine);
	const struct tern_cuda_api *api = e->gpu.api;
	CUstream stream = NULL;
	char text[160];
	CUresult result = api->ctx_push_current(e->gpu.handle);

	if (result == CUDA_SUCCESS) {
		result = api->stream_create_with_priority(
			&stream, CU_STREAM_NON_BLOCKING, 0);
		if (result == CUDA_SUCCESS) {
			result = fetch_on(e, stream, to, from, count);
			api->stream_destroy(stream);
		}
		api->ctx_pop_current(NULL);
	}
	if (result)
		snprintf(why, why_bytes, "cuda:%u: copying parameters to the host: %s",
			e->gpu.ordinal, tern_cuda_text(api, result, text, sizeof(text)));
	return tern_cuda_status(result);
}

/* ---- names ---- */

static void name_it(struct cuda_engine *e)
{
	const char *blas = strstr(e->engine.fingerprint, "cublas ");

	snprintf(e->engine.name, sizeof(e->engine.name), "%s (cuda:%u), %s, %s%s",
		e->gpu.device.name, e->gpu.ordinal,
		e->graphs_off || e->pageable ? "plain launches" : "CUDA graphs",
		blas ? "cuBLAS " : "products of its own",
		blas ? blas + strlen("cublas ") : "");
}

static int take_fingerprint(struct cuda_engine *e)
{
	const char *text = tern_cuda_kernels_fingerprint(e->kernels);

	if (snprintf(e->engine.fingerprint, sizeof(e->engine.fingerprint), "%s", text) <
		(int)sizeof(e->engine.fingerprint))
		return 0;
	snprintf(e->gpu.error, sizeof(e->gpu.error),
		"cuda:%u: its name is too long for a fingerprint: %s", e->gpu.ordinal,
		text);
	return -EOVERFLOW;
}

/* ---- page-locking ---- */

static void go_pageable(struct cuda_engine *e)
{
	if (!e->pageable)
		cuda_note(e, "%s: copies go through other memory, without CUDA graphs",
			e->gpu.error);
	e->pageable = true;
	name_it(e);
}

static int pin(struct tern_engine *engine, void *base, uint64_t bytes)
{
	struct cuda_engine *e = cuda_of(engine);

	if (cuda_enter(e) < 0)
		return e->status;
	e->status = tern_cuda_context_pin(&e->gpu, base, bytes);
	if (e->status < 0 && e->status != -ENOTRECOVERABLE) {
		go_pageable(e);
		e->status = 0;
	}
	take_error(e);
	tern_cuda_context_leave(&e->gpu);
	return e->status;
}

static void unpin(struct tern_engine *engine)
{
	struct cuda_engine *e = cuda_of(engine);

	if (tern_cuda_context_enter(&e->gpu) < 0)
		return;
	/* The graphs name page-locked addresses, so they are freed too. */
	cuda_graphs_free(e);
	tern_cuda_context_unpin(&e->gpu);
	tern_cuda_context_leave(&e->gpu);
}

/* ---- room ---- */

/* Returns the address of `bytes` bytes of the memory at `base`, and advances *at beyond
 * them. If base is NULL, only advances *at: this measures how much memory is needed. */
static void *carve(void *base, uint64_t *at, uint64_t bytes)
{
	uint64_t here = *at;

	*at = tern_align_up(here + bytes, 256);
	return base ? (char *)base + here : NULL;
}

/* Bytes of `count` floats for each row of a batch; if that is more than 2^56, returns
 * 2^56, which no device has. */
static uint64_t floats(const struct cuda_engine *e, uint64_t count)
{
	const uint64_t most = 1ull << 56;

	if (count > most / sizeof(float) / e->engine.rows)
		return most;
	return e->engine.rows * count * sizeof(float);
}

static uint64_t lay_out_device(struct cuda_engine *e)
{
	const struct tern_model *m = e->engine.model;
	void *base = (void *)(uintptr_t)e->memory;
	uint64_t at = 0, ids = m->text ? m->context : 0;

	e->params = carve(base, &at, m->size * sizeof(float));
	e->grads = carve(base, &at, m->size * sizeof(float));
	e->result = carve(base, &at, sizeof(*e->result));
	e->one = carve(base, &at, sizeof(*e->one));
	e->labels = carve(base, &at, floats(e, 1));
	if (m->text) {
		e->ids = carve(base, &at, floats(e, ids));
		e->input = carve(base, &at, floats(e, ids * m->embed));
		e->dinput = carve(base, &at, floats(e, ids * m->embed));
	} else {
		e->x = carve(base, &at, floats(e, m->features));
	}
	for (unsigned i = 0; i < m->layer_count; i++) {
		e->y[i] = carve(base, &at, floats(e, m->layers[i].out));
		e->dy[i] = carve(base, &at, floats(e, m->layers[i].out));
	}
	return at;
}

static uint64_t lay_out_host(struct cuda_engine *e)
{
	const struct tern_model *m = e->engine.model;
	struct tern_batch *batch = &e->engine.batch;
	uint64_t at = 0;

	e->words = carve(e->host, &at, sizeof(*e->words));
	e->logits = carve(e->host, &at, floats(e, m->classes));
	batch->labels = carve(e->host, &at, floats(e, 1));
	if (m->text)
		batch->ids = carve(e->host, &at, floats(e, m->context));
	else
		batch->x = carve(e->host, &at, floats(e, m->features));
	return at;
}

/* Uses ordinary memory if page-locked memory is refused. */
static int make_host_room(struct cuda_engine *e)
{
	uint64_t bytes = lay_out_host(e);
	int r = tern_cuda_check(&e->gpu,
		e->gpu.api->mem_host_alloc(&e->host, bytes, CU_MEMHOSTALLOC_PORTABLE),
		"page-locked memory for batches");

	e->host_locked = r == 0;
	if (r == -ENOTRECOVERABLE)
		return r;
	if (r < 0) {
		go_pageable(e);
		e->host = aligned_alloc(256, bytes);
	}
	if (!e->host) {
		snprintf(e->gpu.error, sizeof(e->gpu.error),
			"cuda:%u: out of memory for batches", e->gpu.ordinal);
		return -ENOMEM;
	}
	lay_out_host(e);
	memset(e->host, 0, bytes);
	return 0;
}

static int make_room(struct cuda_engine *e)
{
	char what[96];
	int r;

	snprintf(what, sizeof(what), "the model with batches of %zu records",
		e->engine.rows);
	e->memory_bytes = lay_out_device(e);
	r = tern_cuda_context_alloc(&e->gpu, &e->memory, e->memory_bytes, what);
	if (r < 0)
		return r;
	lay_out_device(e);
	r = make_host_room(e);
	if (r == 0)
		r = tern_cuda_check(&e->gpu,
			e->gpu.api->memset_d32_async(
				(CUdeviceptr)(uintptr_t)e->one, 1, 1, e->compute),
			"a word of memory");
	return r;
}

/* ---- making the engine ---- */

static int make_streams(struct cuda_engine *e)
{
	const struct tern_cuda_api *api = e->gpu.api;
	int least = 0, greatest = 0;
	int r = tern_cuda_check(&e->gpu,
		api->ctx_get_stream_priority_range(&least, &greatest),
		"stream priorities");

	if (r == 0)
		r = tern_cuda_check(&e->gpu,
			api->stream_create_with_priority(
				&e->compute, CU_STREAM_NON_BLOCKING, least),
			"a stream");
	if (r == 0)
		r = tern_cuda_check(&e->gpu,
			api->stream_create_with_priority(
				&e->copy, CU_STREAM_NON_BLOCKING, greatest),
			"a stream");
	return r;
}

static int make_event(struct cuda_engine *e, CUevent *out)
{
	/* A thread that waits for the event sleeps (tern_cuda_wait() polls for a moment
	 * first), and leaves the core to threads that move data. */
	return tern_cuda_check(&e->gpu,
		e->gpu.api->event_create(
			out, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC),
		"an event");
}

static int make_part(struct cuda_engine *e, uint64_t first, uint64_t count)
{
	struct cuda_part *p = &e->parts[e->part_count++];
	int r;

	p->first = first;
	p->count = count;
	r = make_event(e, &p->up);
	if (r == 0)
		r = make_event(e, &p->final);
	return r < 0 ? r : make_event(e, &p->down);
}

static int make_parts(struct cuda_engine *e)
{
	const struct tern_model *m = e->engine.model;
	int r = make_event(e, &e->fork);

	if (r == 0)
		r = make_event(e, &e->join);
	if (r == 0 && m->text)
		r = make_part(e, m->params[0].first, m->params[0].count);
	for (unsigned i = 0; i < m->layer_count && r == 0; i++) {
		const struct tern_layer *l = &m->layers[i];

		r = make_part(e, l->w, l->b + l->out - l->w);
	}
	return r;
}

static int open_kernels(struct cuda_engine *e, const struct tern_cublas_api *blas)
{
	const struct tern_model *m = e->engine.model;
	const struct tern_cuda_sizes sizes = {.xent_rows = e->engine.rows,
		.embed_rows = m->text ? e->engine.rows * m->context : 0,
		.embed_table_rows = m->text ? m->symbols : 0};
	char line[256], left[96];
	int r = tern_cuda_kernels_new(e->gpu.api, blas, e->gpu.device.handle, e->compute,
		&sizes, &e->kernels, line, sizeof(line));

	if (r == 0)
		return take_fingerprint(e);
	if (r == -EIO && blas) {
		cuda_note(e, "without cuBLAS: cuda:%u: %s", e->gpu.ordinal, line);
		return open_kernels(e, NULL);
	}
	*left = '\0';
	if (r == -ENOMEM)
		tern_cuda_context_free_text(&e->gpu, left, sizeof(left));
	snprintf(e->gpu.error, sizeof(e->gpu.error), "cuda:%u: %.200s%s", e->gpu.ordinal,
		line, left);
	return r;
}

static int make(struct cuda_engine *e, const struct tern_engine_cuda_opts *opts)
{
	int r = make_streams(e);

	if (r == 0)
		r = make_parts(e);
	if (r == 0)
		r = make_room(e);
	if (r == 0)
		r = open_kernels(e, opts->blas);
	if (r == 0)
		r = tern_cuda_check(&e->gpu, e->gpu.api->stream_synchronize(e->compute),
			"the first work");
	if (r < 0)
		return r;
	e->engine.device_bytes = e->memory_bytes + tern_cuda_kernels_bytes(e->kernels);
	name_it(e);
	return 0;
}

/* ---- freeing the engine ---- */

static void free_event(const struct cuda_engine *e, CUevent event)
{
	if (event)
		e->gpu.api->event_destroy(event);
}

static void free_streams(struct cuda_engine *e)
{
	for (unsigned i = 0; i < e->part_count; i++) {
		free_event(e, e->parts[i].up);
		free_event(e, e->parts[i].final);
		free_event(e, e->parts[i].down);
	}
	free_event(e, e->fork);
	free_event(e, e->join);
	if (e->compute)
		e->gpu.api->stream_destroy(e->compute);
	if (e->copy)
		e->gpu.api->stream_destroy(e->copy);
}

/* On a corrupted device these calls fail, which does no harm: its memory is lost with
 * the context. */
static void free_device(struct cuda_engine *e)
{
	const struct tern_cuda_api *api = e->gpu.api;

	if (e->compute)
		api->stream_synchronize(e->compute);
	if (e->copy)
		api->stream_synchronize(e->copy);
	cuda_graphs_free(e);
	tern_cuda_kernels_free(e->kernels);
	if (e->memory)
		api->mem_free(e->memory);
	if (e->host_locked)
		api->mem_free_host(e->host);
	free_streams(e);
}

static void cuda_free(struct tern_engine *engine)
{
	struct cuda_engine *e = cuda_of(engine);

	if (e->gpu.handle && tern_cuda_context_enter(&e->gpu) == 0) {
		free_device(e);
		tern_cuda_context_leave(&e->gpu);
	}
	if (!e->host_locked)
		free(e->host);
	tern_cuda_context_close(&e->gpu);
	free(e);
}

int tern_engine_cuda_new(const struct tern_engine_cuda_opts *opts,
	struct tern_engine **out, char *why, size_t bytes)
{
	static const struct tern_engine_ops ops = {
		.pin = pin,
		.unpin = unpin,
		.gradient = cuda_gradient,
		.evaluate = evaluate,
		.sample = sample,
		.fetch = fetch,
		.free = cuda_free,
	};
	struct cuda_engine *e = calloc(1, sizeof(*e));
	int r;

	if (!e) {
		snprintf(why, bytes, "out of memory");
		return -ENOMEM;
	}
	e->engine.ops = &ops;
	e->engine.model = opts->model;
	e->engine.rows = TERN_MAX(opts->rows, (size_t)TERN_ENGINE_ROWS);
	e->graphs_off = opts->no_graphs;
	r = tern_cuda_context_open(&e->gpu, opts->api, opts->ordinal);
	if (r == 0)
		r = tern_cuda_context_enter(&e->gpu);
	if (r == 0) {
		r = make(e, opts);
		tern_cuda_context_leave(&e->gpu);
	}
	if (r == 0) {
		*out = &e->engine;
		return 0;
	}
	snprintf(why, bytes, "%s", e->gpu.error);
	cuda_free(&e->engine);
	return r;
}
