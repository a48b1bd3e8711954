/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between GPU and host memory; see stager.h. A copy goes through these states:
 *
 *     waiting --an event is free--> under_way --its event has passed--> done()
 *
 * A copy that the CUDA driver refuses goes through the same states, so that copies end in
 * order and only in tern_progress().
 *
 * The memory of a copy may be reused when the CUDA event recorded after the copy has
 * passed, or when the CUDA context is corrupted (a sticky error), since then the GPU no
 * longer accesses memory. A non-sticky error does not prove that the GPU has stopped: the
 * copy fails, but ends only when its event has passed. If the event could not be
 * recorded, it is recorded later, which is equivalent, since it is then later in the
 * stream. If ERRORS_MAX queries in a row fail, the GPU is considered lost.
 *
 * Waking a sleeping context: cuLaunchHostFunc puts a call of tern_context_wake() into the
 * stream, at most once per copy. A corrupted CUDA context never runs that call and does
 * not report it, so a timer also makes the context poll, every LOOK_NS. In the simulator
 * nothing sleeps and time stands still while nothing happens, so there only the timer
 * does this, every SIM_NS.
 */
#include "transport/gpu/stager.h"

#include <errno.h>

#include "base/clock.h"
#include "transport/context.h"
#include "transport/gpu/driver.h"
#include "transport/memory/mem.h"

/* Largest number of copies in flight in one stream; more than one direction has staging
 * slots. */
#define EVENTS     8u
#define ERRORS_MAX 64u
/* Interval of polling for completed copies while the context sleeps, in addition to the
 * wake-up callback in the stream. */
#define LOOK_NS (100 * TERN_NS_PER_MS)
/* Interval of polling if no wake-up callback could be added to the stream. */
#define RELOOK_NS TERN_NS_PER_MS
#define SIM_NS    (5 * TERN_NS_PER_US) /* interval of polling in the simulator */

/* State of one direction of copies (enum tern_stage_way), with the staging slots for this
 * direction. */
struct lane {
	CUstream stream;
	CUevent events[EVENTS]; /* one per copy in flight, used in turn */
	uint32_t event_next, event_count;
	struct tern_list waiting, under_way; /* lists of copies, oldest first */
	/* copied: copies submitted to the stream; woken: those of them that precede the
	 * last wake-up callback. */
	uint32_t copied, woken;
	uint32_t error_count;  /* consecutive errors of event queries */
	struct tern_list free; /* list of free staging slots */
	struct tern_list waits;
};

struct tern_stager {
	struct tern_list node; /* in ctx->stagers */
	struct tern_context *ctx;
	struct tern_gpu *gpu;
	struct lane lanes[TERN_STAGE_WAYS];
	struct tern_mem *mem; /* memory of all staging slots */
	struct tern_stage_slot slots[TERN_STAGE_WAYS * TERN_STAGE_SLOTS];
	struct tern_deferred serve_call;
	struct tern_timer look;
	int lost; /* status with which all further copies fail; 0: the GPU works */
};

/* ---- copies ---- */

static void put_into_stream(struct tern_stager *s, struct lane *lane, struct tern_copy *c)
{
	const struct tern_cuda_api *api = s->gpu->api;
	CUresult result = tern_gpu_enter(s->gpu);

	if (result) {
		c->status = tern_cuda_status(result);
		return;
	}
	if (c->from)
		result = api->memcpy_dtod_async(
			c->device, c->from, c->bytes, lane->stream);
	else if (c->way == TERN_STAGE_DOWN)
		result = api->memcpy_dtoh_async(
			c->host, c->device, c->bytes, lane->stream);
	else
		result = api->memcpy_htod_async(
			c->device, c->host, c->bytes, lane->stream);
	if (result) {
		c->status = tern_cuda_status(result);
	} else {
		c->in_stream = true;
		c->event = (uint8_t)lane->event_next;
		lane->event_next = (lane->event_next + 1) % EVENTS;
		lane->event_count++;
		lane->copied++;
		c->marked = api->event_record(lane->events[c->event], lane->stream) ==
			    CUDA_SUCCESS;
	}
	tern_gpu_leave(s->gpu);
}

/* Submits waiting copies while CUDA events are free. Events are used and freed in
 * order. */
static void go_on(struct tern_stager *s, struct lane *lane)
{
	while (lane->event_count < EVENTS && !tern_list_empty(&lane->waiting)) {
		struct tern_list *n = tern_list_pop(&lane->waiting);
		struct tern_copy *c = tern_list_entry(n, struct tern_copy, node);

		c->status = s->lost;
		if (!s->lost)
			put_into_stream(s, lane, c);
		tern_list_push(&lane->under_way, n);
	}
}

static void start(struct tern_stager *s, struct tern_copy *c, enum tern_stage_way way,
	uint64_t bytes)
{
	struct lane *lane = &s->lanes[way];

	c->bytes = bytes;
	c->way = way;
	c->status = 0;
	c->in_stream = c->marked = false;
	tern_list_push(&lane->waiting, &c->node);
	go_on(s, lane);
}

void tern_stager_copy(struct tern_stager *s, struct tern_copy *c, enum tern_stage_way way,
	const struct tern_mem *mem, uint64_t offset, void *host, uint64_t bytes)
{
	tern_assert(bytes > 0 && mem->kind == TERN_MEM_CUDA && mem->gpu == s->gpu &&
		    tern_mem_holds(mem, offset, bytes));
	c->from = 0;
	c->device = mem->address + offset;
	c->host = host;
	start(s, c, way, bytes);
}

void tern_stager_fetch(struct tern_stager *s, struct tern_copy *c, uint64_t from,
	const struct tern_mem *mem, uint64_t offset, uint64_t bytes)
{
	bool to_host = mem->kind == TERN_MEM_HOST;

	tern_assert(bytes > 0 && from && mem->gpu && tern_mem_holds(mem, offset, bytes));
	c->from = to_host ? 0 : from;
	c->device = to_host ? from : mem->address + offset;
	c->host = to_host ? tern_mem_at(mem, offset) : NULL;
	start(s, c, to_host ? TERN_STAGE_DOWN : TERN_STAGE_UP, bytes);
}

/* Marks the GPU as lost: copies in flight and all later copies fail with `status`. */
static void lose(struct tern_stager *s, int status)
{
	if (!s->lost)
		tern_log(s->ctx->env, TERN_LOG_ERROR,
			"GPU %u: copies from and to it fail from now on: %s",
			s->gpu->number, tern_status_text(status));
	s->lost = status;
}

/* Handles a driver error that does not tell whether the copy has ended. 0: the GPU is
 * lost, so the copy ends; -EAGAIN: ask the driver again later. */
static int odd_answer(
	struct tern_stager *s, struct lane *lane, struct tern_copy *c, CUresult result)
{
	if (!c->status)
		c->status = tern_cuda_status(result);
	if (tern_cuda_is_sticky(result))
		lose(s, -ENOTRECOVERABLE);
	else if (++lane->error_count == ERRORS_MAX)
		lose(s, -EIO);
	return s->lost ? 0 : -EAGAIN;
}

/* Asks the driver whether the copy has ended: 0: yes; -EAGAIN: not yet. */
static int ask(struct tern_stager *s, struct lane *lane, struct tern_copy *c)
{
	const struct tern_cuda_api *api = s->gpu->api;
	CUresult result = tern_gpu_enter(s->gpu);

	if (result)
		return odd_answer(s, lane, c, result);
	if (!c->marked) {
		result = api->event_record(lane->events[c->event], lane->stream);
		c->marked = result == CUDA_SUCCESS;
	}
	if (!result)
		result = api->event_query(lane->events[c->event]);
	tern_gpu_leave(s->gpu);
	if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) {
		lane->error_count = 0;
		return result ? -EAGAIN : 0;
	}
	return odd_answer(s, lane, c, result);
}

static int poll_lane(struct tern_stager *s, struct lane *lane)
{
	struct tern_copy *c;
	int count = 0;

	while ((c = tern_list_first(&lane->under_way, struct tern_copy, node))) {
		if (!s->lost && c->in_stream && ask(s, lane, c) < 0)
			break;
		if (s->lost)
			c->status = s->lost;
		lane->event_count -= c->in_stream;
		tern_list_remove(&c->node);
		go_on(s, lane);
		count++;
		c->done(c, c->status);
	}
	return count;
}

static bool is_busy(const struct tern_stager *s)
{
	return !tern_list_empty(&s->lanes[TERN_STAGE_DOWN].under_way) ||
	       !tern_list_empty(&s->lanes[TERN_STAGE_UP].under_way);
}

static void look_later(struct tern_stager *s, uint64_t in_ns)
{
	tern_timer_set(s->ctx, &s->look, tern_ns_add(tern_now_ns(s->ctx->env), in_ns));
}

int tern_stagers_poll(struct tern_context *ctx)
{
	int count = 0;

	tern_list_for_each (n, &ctx->stagers) {
		struct tern_stager *s = tern_list_entry(n, struct tern_stager, node);

		for (unsigned i = 0; i < TERN_STAGE_WAYS; i++)
			count += poll_lane(s, &s->lanes[i]);
		if (ctx->epoll_fd < 0 && is_busy(s) && !s->look.place)
			look_later(s, SIM_NS);
	}
	return count;
}

/* ---- waking ---- */

/* Callback in a CUDA stream; runs on a thread of the driver. */
static void CUDA_CB wake(void *arg)
{
	tern_context_wake(arg);
}

/* Adds a wake-up callback to the stream, if copies were submitted since the last one.
 * -EAGAIN: that was not possible, so the next copy to complete would not wake the
 * context. */
static int arm_lane(struct tern_stager *s, struct lane *lane)
{
	const struct tern_copy *next =
		tern_list_first(&lane->under_way, struct tern_copy, node);
	CUresult result;

	if (next && !next->in_stream)
		return -EAGAIN; /* the driver refused that copy: it has ended, without waking */
	if (!next || lane->woken == lane->copied)
		return 0;
	result = tern_gpu_enter(s->gpu);
	if (result)
		return -EAGAIN;
	result = s->gpu->api->launch_host_func(lane->stream, wake, s->ctx);
	tern_gpu_leave(s->gpu);
	if (result)
		return -EAGAIN;
	lane->woken = lane->copied;
	return 0;
}

void tern_stagers_arm(struct tern_context *ctx)
{
	tern_list_for_each (n, &ctx->stagers) {
		struct tern_stager *s = tern_list_entry(n, struct tern_stager, node);
		int r = 0;

		if (!is_busy(s))
			continue;
		for (unsigned i = 0; i < TERN_STAGE_WAYS; i++)
			r = arm_lane(s, &s->lanes[i]) ?: r;
		look_later(s, r || s->lost ? RELOOK_NS : LOOK_NS);
	}
}

static void looked(struct tern_timer *timer)
{
	/* The timer only wakes the context; tern_progress() then polls the copies. */
	(void)timer;
}

/* ---- slots ---- */

char *tern_stage_slot_data(const struct tern_stage_slot *slot)
{
	return tern_mem_at(slot->mem, slot->offset);
}

static struct tern_stage_slot *slot_pop(struct lane *lane)
{
	struct tern_list *n = tern_list_pop(&lane->free);

	return n ? tern_list_entry(n, struct tern_stage_slot, node) : NULL;
}

static void serve(struct tern_deferred *deferred)
{
	struct tern_stager *s =
		tern_container_of(deferred, struct tern_stager, serve_call);

	for (unsigned i = 0; i < TERN_STAGE_WAYS; i++) {
		struct lane *lane = &s->lanes[i];

		while (!tern_list_empty(&lane->free) && !tern_list_empty(&lane->waits)) {
			struct tern_stage_wait *wait =
				tern_list_entry(tern_list_pop(&lane->waits),
					struct tern_stage_wait, node);

			wait->ready(wait, slot_pop(lane));
		}
	}
}

static void serve_soon(struct tern_stager *s, const struct lane *lane)
{
	if (!tern_list_empty(&lane->waits) && !tern_list_empty(&lane->free))
		tern_defer(s->ctx, &s->serve_call);
}

struct tern_stage_slot *tern_stager_take(struct tern_stager *s, enum tern_stage_way way)
{
	struct lane *lane = &s->lanes[way];

	return tern_list_empty(&lane->waits) ? slot_pop(lane) : NULL;
}

void tern_stager_give(struct tern_stage_slot *slot)
{
	struct lane *lane = &slot->stager->lanes[slot->way];

	tern_list_remove(&slot->node);
	slot->holder = NULL;
	/* Put the slot in front, so that it is used next: it may still be in a cache. */
	tern_list_push_front(&lane->free, &slot->node);
	serve_soon(slot->stager, lane);
}

void tern_stager_wait(struct tern_stager *s, enum tern_stage_way way,
	struct tern_stage_wait *wait, bool urgent)
{
	struct lane *lane = &s->lanes[way];

	if (tern_list_linked(&wait->node))
		return;
	if (urgent)
		tern_list_push_front(&lane->waits, &wait->node);
	else
		tern_list_push(&lane->waits, &wait->node);
	serve_soon(s, lane);
}

/* ---- birth and end ---- */

static void close_lane(struct tern_stager *s, struct lane *lane)
{
	const struct tern_cuda_api *api = s->gpu->api;

	tern_assert(tern_list_empty(&lane->waiting) && tern_list_empty(&lane->under_way));
	tern_assert(tern_list_empty(&lane->waits));
	if (lane->stream) {
		/* Wait until queued wake-up callbacks have run, since they use the
		 * context. */
		api->stream_synchronize(lane->stream);
		api->stream_destroy(lane->stream);
	}
	for (unsigned i = 0; i < EVENTS; i++) {
		if (lane->events[i])
			api->event_destroy(lane->events[i]);
	}
}

static void stager_free(struct tern_stager *s)
{
	if (tern_gpu_enter(s->gpu) == CUDA_SUCCESS) {
		for (unsigned i = 0; i < TERN_STAGE_WAYS; i++)
			close_lane(s, &s->lanes[i]);
		tern_gpu_leave(s->gpu);
	}
	tern_timer_clear(s->ctx, &s->look);
	tern_list_remove(&s->serve_call.node);
	tern_mem_put(s->mem);
	free(s);
}

void tern_stagers_free(struct tern_context *ctx)
{
	struct tern_list *n;

	while ((n = tern_list_pop(&ctx->stagers)))
		stager_free(tern_list_entry(n, struct tern_stager, node));
}

static CUresult open_lane(const struct tern_cuda_api *api, struct lane *lane)
{
	CUresult result = api->stream_create_with_priority(
		&lane->stream, CU_STREAM_NON_BLOCKING, 0);

	if (result)
		lane->stream = NULL;
	for (unsigned i = 0; i < EVENTS && !result; i++) {
		result = api->event_create(&lane->events[i], CU_EVENT_DISABLE_TIMING);
		if (result)
			lane->events[i] = NULL;
	}
	return result;
}

static int open_lanes(struct tern_stager *s)
{
	const struct tern_cuda_api *api = s->gpu->api;
	char text[160];
	CUresult result = tern_gpu_enter(s->gpu);

	if (!result) {
		for (unsigned i = 0; i < TERN_STAGE_WAYS && !result; i++)
			result = open_lane(api, &s->lanes[i]);
		tern_gpu_leave(s->gpu);
	}
	if (result)
		tern_log(s->ctx->env, TERN_LOG_WARN,
			"GPU %u: cannot make a stream for copies: %s", s->gpu->number,
			tern_cuda_text(api, result, text, sizeof(text)));
	return tern_cuda_status(result);
}

static void make_slots(struct tern_stager *s)
{
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(s->slots); i++) {
		struct tern_stage_slot *slot = &s->slots[i];

		slot->stager = s;
		slot->mem = s->mem;
		slot->offset = (uint64_t)i * TERN_STAGE_BYTES;
		slot->way = i / TERN_STAGE_SLOTS;
		tern_list_push(&s->lanes[slot->way].free, &slot->node);
	}
}

static void init_lists(struct tern_stager *s)
{
	tern_list_init(&s->node);
	tern_list_init(&s->serve_call.node);
	for (unsigned i = 0; i < TERN_STAGE_WAYS; i++) {
		tern_list_init(&s->lanes[i].waiting);
		tern_list_init(&s->lanes[i].under_way);
		tern_list_init(&s->lanes[i].free);
		tern_list_init(&s->lanes[i].waits);
	}
}

static int stager_new(
	struct tern_context *ctx, struct tern_gpu *gpu, struct tern_stager **out)
{
	struct tern_stager *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	s->ctx = ctx;
	s->gpu = gpu;
	s->serve_call.call = serve;
	s->look.fire = looked;
	init_lists(s);
	r = tern_mem_new_locked_slab(ctx->domain, gpu,
		(uint64_t)TERN_ARRAY_SIZE(s->slots) * TERN_STAGE_BYTES, &s->mem);
	if (!r)
		r = open_lanes(s);
	if (r) {
		stager_free(s);
		return r;
	}
	make_slots(s);
	tern_list_push(&ctx->stagers, &s->node);
	*out = s;
	return 0;
}

int tern_context_stager(
	struct tern_context *ctx, struct tern_gpu *gpu, struct tern_stager **out)
{
	tern_list_for_each (n, &ctx->stagers) {
		struct tern_stager *s = tern_list_entry(n, struct tern_stager, node);

		if (s->gpu == gpu) {
			*out = s;
			return 0;
		}
	}
	return stager_new(ctx, gpu, out);
}
