/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams and events of the simulated driver: when work is done. Each stream does its
 * work in order. If a stream waits for an event, the work before that event is done
 * first, in the stream in which the event was recorded. Other streams do nothing unless
 * a query, opts.early_percent or opts.background gives them a turn. Work is queued only
 * after the marks (recorded places in streams) that it waits for, so waiting always
 * ends.
 */
#include "tests/fakes/cuda/cuda_world.h"

static void advance(struct fake_stream *stream);

struct fake_stream *fake_stream_of(CUstream handle)
{
	if (!handle)
		tern_never("fake cuda: the default stream");
	tern_list_for_each (n, &fake_world.streams) {
		struct fake_stream *stream = tern_list_entry(n, struct fake_stream, node);

		if ((void *)stream == (void *)handle && !stream->destroyed)
			return stream;
	}
	tern_never("fake cuda: not a stream");
}

struct fake_event *fake_event_of(CUevent handle)
{
	tern_list_for_each (n, &fake_world.events) {
		struct fake_event *event = tern_list_entry(n, struct fake_event, node);

		if ((void *)event == (void *)handle)
			return event;
	}
	tern_never("fake cuda: not an event");
}

/* ---- marks ---- */

static struct fake_mark *mark_new(struct fake_stream *stream)
{
	struct fake_mark *mark = calloc(1, sizeof(*mark));

	tern_assert(mark);
	mark->ref_count = 1;
	mark->stream = stream;
	return mark;
}

struct fake_mark *fake_mark_get(struct fake_mark *mark)
{
	mark->ref_count++;
	return mark;
}

void fake_mark_put(struct fake_mark *mark)
{
	if (!mark || --mark->ref_count > 0)
		return;
	fake_graph_put(mark->capture);
	fake_shared_put(mark->shared);
	free(mark->tail);
	free(mark);
}

static bool is_done(const struct fake_mark *mark)
{
	return mark->done || (mark->shared && mark->shared->page->done >= mark->number);
}

static void set_done(struct fake_mark *mark)
{
	mark->done = true;
	mark->step = fake_world.step;
	if (mark->shared && mark->shared->page->done < mark->number)
		mark->shared->page->done = mark->number;
}

void fake_mark_done(struct fake_mark *mark)
{
	set_done(mark);
}

/* Called while a call waits for work of another process. Does a piece of work of this
 * process; if there is none, releases the lock for a short time, since the other process
 * may wait for work that another thread of this process must start. */
static void wait_outside(void)
{
	if (fake_world.held || !fake_streams_step())
		fake_rest();
}

/* Does some of the work that must be done before the mark is. */
static void approach(struct fake_mark *mark)
{
	if (mark->stream)
		advance(mark->stream);
	else
		wait_outside();
}

/* Does all work before the mark. It takes a reference to the mark, since the event may be
 * recorded again meanwhile, and then drops its reference. */
static void mark_run(struct fake_mark *mark)
{
	fake_mark_get(mark);
	while (!is_done(mark))
		approach(mark);
	fake_mark_put(mark);
}

/* ---- doing work ---- */

static void stream_free(struct fake_stream *stream)
{
	tern_list_remove(&stream->node);
	free(stream->tail);
	free(stream);
}

/* Drops the queued work of a corrupted context. Its marks count as done, so that nothing
 * waits for them. */
static void drop_ops(struct fake_stream *stream)
{
	struct fake_op *op;

	while ((op = tern_list_first(&stream->ops, struct fake_op, node))) {
		if (op->kind == FAKE_OP_RECORD)
			set_done(op->mark);
		tern_list_remove(&op->node);
		fake_op_free(op);
	}
}

static void drop_ops_of(struct fake_device *device)
{
	tern_list_for_each (n, &fake_world.streams) {
		struct fake_stream *stream = tern_list_entry(n, struct fake_stream, node);

		if (stream->device == device)
			drop_ops(stream);
	}
}

static void spoil(struct fake_stream *stream, CUresult result)
{
	fake_device_spoil(stream->device, result);
	drop_ops_of(stream->device);
}

static void do_op(struct fake_stream *stream, struct fake_op *op)
{
	CUresult result = CUDA_SUCCESS;

	fake_world.step++;
	if (op->kind == FAKE_OP_RECORD) {
		set_done(op->mark);
	} else if (op->kind != FAKE_OP_WAIT) {
		result = fake_op_do(op);
	}
	fake_op_free(op);
	if (result)
		spoil(stream, result);
}

/* Executes one node of a graph, unless only the last one is left. Returns whether it
 * did. */
static bool do_node(struct fake_stream *stream, struct fake_op *op)
{
	CUresult result;

	if (op->kind != FAKE_OP_GRAPH || op->run->left <= 1)
		return false;
	fake_world.step++;
	result = fake_op_do(op);
	if (result)
		spoil(stream, result);
	return true;
}

/* Does the next piece of work of the stream. If the stream waits for an event, does a
 * piece of work before that event instead. */
static void advance(struct fake_stream *stream)
{
	struct fake_op *op = tern_list_first(&stream->ops, struct fake_op, node);

	tern_assert(op);
	if (op->kind == FAKE_OP_WAIT && !is_done(op->mark)) {
		approach(op->mark);
		return;
	}
	if (do_node(stream, op))
		return;
	tern_list_remove(&op->node);
	do_op(stream, op);
}

void fake_stream_run(struct fake_stream *stream)
{
	while (!tern_list_empty(&stream->ops))
		advance(stream);
}

static bool is_ready(const struct fake_stream *stream)
{
	const struct fake_op *op = tern_list_first(&stream->ops, struct fake_op, node);

	return op && (op->kind != FAKE_OP_WAIT || is_done(op->mark));
}

bool fake_streams_step(void)
{
	/* The stream that has done a piece of work moves to the end of the list, so that
	 * repeated queries complete the work of every stream. */
	tern_list_for_each (n, &fake_world.streams) {
		struct fake_stream *stream = tern_list_entry(n, struct fake_stream, node);

		if (!is_ready(stream))
			continue;
		tern_list_remove(&stream->node);
		tern_list_push(&fake_world.streams, &stream->node);
		advance(stream);
		return true;
	}
	return false;
}

void fake_streams_early(void)
{
	if (fake_world.opts.early_percent == 0 || fake_world.held)
		return;
	tern_list_for_each (n, &fake_world.streams) {
		struct fake_stream *stream = tern_list_entry(n, struct fake_stream, node);

		if (is_ready(stream) && tern_rng_below(&fake_world.rng, 100) <
						fake_world.opts.early_percent)
			advance(stream);
	}
}

static void end_destroyed(void)
{
	tern_list_for_each_safe (n, &fake_world.streams) {
		struct fake_stream *stream = tern_list_entry(n, struct fake_stream, node);

		if (stream->destroyed && tern_list_empty(&stream->ops))
			stream_free(stream);
	}
}

/* A stream with queued work, or NULL. It searches from the start each time, since the
 * list of streams may change during a wait. */
static struct fake_stream *any_busy(const struct fake_device *device)
{
	tern_list_for_each (n, &fake_world.streams) {
		struct fake_stream *stream = tern_list_entry(n, struct fake_stream, node);

		if ((!device || stream->device == device) &&
			!tern_list_empty(&stream->ops))
			return stream;
	}
	return NULL;
}

void fake_streams_run(struct fake_device *device)
{
	struct fake_stream *stream;

	while ((stream = any_busy(device)))
		advance(stream);
	end_destroyed();
}

void fake_streams_drop(struct fake_device *device)
{
	drop_ops_of(device);
	tern_list_for_each_safe (n, &fake_world.streams) {
		struct fake_stream *stream = tern_list_entry(n, struct fake_stream, node);

		if (stream->device == device) {
			fake_capture_leave(stream);
			stream_free(stream);
		}
	}
}

bool fake_streams_touch(const struct fake_mem *mem)
{
	tern_list_for_each (n, &fake_world.streams) {
		const struct fake_stream *stream =
			tern_list_entry(n, struct fake_stream, node);

		tern_list_for_each (m, &stream->ops) {
			if (fake_op_touches(
				    tern_list_entry(m, struct fake_op, node), mem))
				return true;
		}
	}
	return false;
}

unsigned fake_streams_queued(void)
{
	unsigned count = 0;

	tern_list_for_each (n, &fake_world.streams) {
		const struct fake_stream *stream =
			tern_list_entry(n, struct fake_stream, node);

		tern_list_for_each (m, &stream->ops)
			count++;
	}
	return count;
}

void fake_stream_put(struct fake_stream *stream, struct fake_op *op)
{
	if (stream->capture)
		fake_capture_add(stream, op);
	else
		tern_list_push(&stream->ops, &op->node);
	fake_worker_call();
}

/* If another process has recorded the event since, makes that record the event's mark.
 * False: no process has ever recorded the event. */
static bool refresh(struct fake_event *event)
{
	uint64_t recorded = event->shared ? event->shared->page->recorded : 0;

	if (recorded && (!event->mark || event->mark->number != recorded)) {
		fake_mark_put(event->mark);
		event->mark = mark_new(NULL);
		event->mark->shared = fake_shared_get(event->shared);
		event->mark->number = recorded;
	}
	return event->mark;
}

/* Does one piece of work of some stream, since a program may wait by repeated queries
 * only. */
static void turn(void)
{
	if (!fake_world.held)
		fake_streams_step();
}

/* ---- streams ---- */

static CUresult stream_create_with_priority(CUstream *out, unsigned flags, int priority)
{
	FAKE_ENTER_UNSAFE("stream_create_with_priority");
	struct fake_stream *stream;
	if (flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	fake_worker_need();
	stream = calloc(1, sizeof(*stream));
	tern_assert(stream);
	stream->device = device;
	stream->flags = flags;
	stream->priority = priority;
	tern_list_init(&stream->ops);
	tern_list_push(&fake_world.streams, &stream->node);
	*out = (CUstream)(void *)stream;
	return CUDA_SUCCESS;
}

static CUresult stream_destroy(CUstream handle)
{
	FAKE_ENTER_CTX("stream_destroy");
	struct fake_stream *stream = fake_stream_of(handle);
	(void)device;
	fake_capture_leave(stream);
	stream->destroyed = true;
	end_destroyed();
	return CUDA_SUCCESS;
}

/* Captured work is not executed, so a call cannot wait for it; an attempt, or a query of
 * the stream, invalidates the capture. */
static CUresult refuse_captured(struct fake_graph *capture)
{
	fake_capture_spoil(capture);
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult stream_synchronize(CUstream handle)
{
	FAKE_ENTER_UNSAFE("stream_synchronize");
	struct fake_stream *stream = fake_stream_of(handle);
	(void)device;
	if (stream->capture)
		return refuse_captured(stream->capture);
	fake_stream_run(stream);
	return stream->device->sticky;
}

static CUresult stream_query(CUstream handle)
{
	FAKE_ENTER_UNSAFE("stream_query");
	struct fake_stream *stream = fake_stream_of(handle);
	bool busy;
	(void)device;
	if (stream->capture)
		return refuse_captured(stream->capture);
	turn();
	busy = !tern_list_empty(&stream->ops);
	return stream->device->sticky ? stream->device->sticky
	       : busy                 ? CUDA_ERROR_NOT_READY
				      : CUDA_SUCCESS;
}

static CUresult stream_wait_event(CUstream handle, CUevent event_handle, unsigned flags)
{
	FAKE_ENTER_CTX("stream_wait_event");
	struct fake_stream *stream = fake_stream_of(handle);
	struct fake_event *event = fake_event_of(event_handle);
	struct fake_op *op;
	(void)device;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!refresh(event))
		return CUDA_SUCCESS;
	if (event->mark->capture) {
		if (!event->mark->capture->origin)
			return CUDA_ERROR_CAPTURED_EVENT;
		if (stream->capture && stream->capture != event->mark->capture)
			return CUDA_ERROR_STREAM_CAPTURE_MERGE;
		fake_capture_join(stream, event->mark);
		return CUDA_SUCCESS;
	}
	if (stream->capture) {
		fake_capture_spoil(stream->capture);
		return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	}
	op = fake_op_new(FAKE_OP_WAIT);
	op->mark = fake_mark_get(event->mark);
	fake_stream_put(stream, op);
	return CUDA_SUCCESS;
}

/* ---- events ---- */

struct fake_event *fake_cuevent_new(struct fake_device *device, unsigned flags)
{
	struct fake_event *event = calloc(1, sizeof(*event));

	tern_assert(event);
	event->device = device;
	event->flags = flags;
	tern_list_push(&fake_world.events, &event->node);
	return event;
}

void fake_event_free(struct fake_event *event)
{
	fake_mark_put(event->mark);
	fake_shared_put(event->shared);
	tern_list_remove(&event->node);
	free(event);
}

static CUresult event_create(CUevent *out, unsigned flags)
{
	FAKE_ENTER_CTX("event_create");
	struct fake_event *event;
	bool shared = flags & CU_EVENT_INTERPROCESS;
	if (flags & ~(unsigned)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING |
				CU_EVENT_INTERPROCESS) ||
		(shared && !(flags & CU_EVENT_DISABLE_TIMING)))
		return CUDA_ERROR_INVALID_VALUE;
	if (shared && !fake_world.opts.ipc)
		return CUDA_ERROR_NOT_SUPPORTED;
	event = fake_cuevent_new(device, flags);
	event->shared = shared ? fake_shared_new(-1) : NULL;
	*out = (CUevent)(void *)event;
	return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent handle)
{
	FAKE_ENTER_CTX("event_destroy");
	struct fake_event *event = fake_event_of(handle);
	(void)device;
	fake_event_free(event);
	return CUDA_SUCCESS;
}

static CUresult event_record(CUevent handle, CUstream stream_handle)
{
	FAKE_ENTER_CTX("event_record");
	struct fake_event *event = fake_event_of(handle);
	struct fake_stream *stream = fake_stream_of(stream_handle);
	struct fake_mark *mark = mark_new(stream);
	struct fake_op *op;
	(void)device;
	if (event->device != stream->device) {
		fake_mark_put(mark);
		return CUDA_ERROR_INVALID_HANDLE;
	}
	fake_mark_put(event->mark);
	event->mark = mark;
	if (event->shared) {
		mark->shared = fake_shared_get(event->shared);
		mark->number = ++event->shared->page->recorded;
	}
	if (stream->capture) {
		mark->capture = fake_graph_get(stream->capture);
		mark->tail_count = stream->tail_count;
		mark->tail = calloc(stream->tail_count + 1, sizeof(*mark->tail));
		tern_assert(mark->tail);
		for (unsigned i = 0; i < mark->tail_count; i++)
			mark->tail[i] = stream->tail[i];
		return CUDA_SUCCESS;
	}
	op = fake_op_new(FAKE_OP_RECORD);
	op->mark = fake_mark_get(mark);
	fake_stream_put(stream, op);
	return CUDA_SUCCESS;
}

/* With CU_EVENT_RECORD_EXTERNAL, the record becomes a node of the graph that is being
 * captured. After a launch, streams outside the graph can wait for the event. */
static CUresult event_record_with_flags(
	CUevent handle, CUstream stream_handle, unsigned flags)
{
	if (!(flags & CU_EVENT_RECORD_EXTERNAL))
		return flags ? CUDA_ERROR_INVALID_VALUE
			     : event_record(handle, stream_handle);
	FAKE_ENTER_CTX("event_record_with_flags");
	struct fake_stream *stream = fake_stream_of(stream_handle);
	struct fake_op *op;
	(void)device;
	if (!stream->capture || fake_event_of(handle)->shared)
		return CUDA_ERROR_INVALID_VALUE;
	op = fake_op_new(FAKE_OP_RECORD);
	op->event = handle;
	fake_stream_put(stream, op);
	return CUDA_SUCCESS;
}

struct fake_mark *fake_event_mark(CUevent handle, struct fake_stream *stream)
{
	struct fake_event *event = fake_event_of(handle);

	fake_mark_put(event->mark);
	event->mark = mark_new(stream);
	return fake_mark_get(event->mark);
}

static CUresult event_query(CUevent handle)
{
	FAKE_ENTER_UNSAFE("event_query");
	struct fake_event *event = fake_event_of(handle);
	(void)device;
	if (refresh(event) && event->mark->capture)
		return CUDA_ERROR_CAPTURED_EVENT;
	turn();
	if (event->device->sticky)
		return event->device->sticky;
	return !event->mark || is_done(event->mark) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult event_synchronize(CUevent handle)
{
	FAKE_ENTER_UNSAFE("event_synchronize");
	struct fake_event *event = fake_event_of(handle);
	(void)device;
	if (refresh(event) && event->mark->capture)
		return CUDA_ERROR_CAPTURED_EVENT;
	if (event->mark)
		mark_run(event->mark);
	return event->device->sticky;
}

static CUresult event_elapsed_time(float *out, CUevent from_handle, CUevent to_handle)
{
	FAKE_ENTER_CTX("event_elapsed_time");
	const struct fake_event *from = fake_event_of(from_handle),
				*to = fake_event_of(to_handle);
	(void)device;
	if ((from->flags | to->flags) & CU_EVENT_DISABLE_TIMING || !from->mark ||
		!to->mark)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!from->mark->done || !to->mark->done)
		return CUDA_ERROR_NOT_READY;
	*out = ((float)to->mark->step - (float)from->mark->step) * 1e-3f;
	return CUDA_SUCCESS;
}

void fake_stream_entries(struct tern_cuda_api *api)
{
	api->stream_create_with_priority = stream_create_with_priority;
	api->stream_destroy = stream_destroy;
	api->stream_synchronize = stream_synchronize;
	api->stream_query = stream_query;
	api->stream_wait_event = stream_wait_event;
	api->event_create = event_create;
	api->event_destroy = event_destroy;
	api->event_record = event_record;
	api->event_record_with_flags = event_record_with_flags;
	api->event_query = event_query;
	api->event_synchronize = event_synchronize;
	api->event_elapsed_time = event_elapsed_time;
}
