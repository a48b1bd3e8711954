/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of the CUDA updater, and how the updater is made and freed. The optimizer's
 * state and the mean gradient of a two-phase step stay on the device. If the server's
 * parameters are in host memory, the updater keeps a copy of them on the device.
 */
#include "ps/updater_cuda.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "ps/updater_cuda_state.h"

/* Bytes up to which the rooms of a lane (device memory for gradients) grow, so that
 * updates of several chunks can share a launch. If one chunk alone needs more, the rooms
 * are larger. */
#define ROOMS_SHARED (8ull << 20)

/* ---- a call ---- */

bool cuda_updater_enter(struct cuda_updater *u)
{
	pthread_mutex_lock(&u->lock);
	u->status = tern_cuda_context_enter(&u->gpu);
	return u->status == 0;
}

int cuda_updater_leave(struct cuda_updater *u, bool entered, char *error)
{
	int r = u->status;

	if (entered)
		tern_cuda_context_leave(&u->gpu);
	if (r < 0 && error)
		memcpy(error, u->gpu.error, sizeof(u->gpu.error));
	pthread_mutex_unlock(&u->lock);
	return r;
}

/* ---- memory ---- */

static void pin(struct tern_updater *updater, void *base, uint64_t bytes)
{
	struct cuda_updater *u = cuda_updater_of(updater);
	bool entered = cuda_updater_enter(u);

	/* A failure is only noted, since copies work without page-locking. If they fail
	 * too, they report the reason. */
	if (entered && tern_cuda_context_pin(&u->gpu, base, bytes) < 0 && !u->pageable) {
		snprintf(u->note, sizeof(u->note),
			"%.300s: copies go through other memory", u->gpu.error);
		u->pageable = true;
		atomic_store(&u->has_note, true);
	}
	cuda_updater_leave(u, entered, NULL);
}

static void unpin(struct tern_updater *updater)
{
	struct cuda_updater *u = cuda_updater_of(updater);
	bool entered = cuda_updater_enter(u);

	if (entered)
		tern_cuda_context_unpin(&u->gpu);
	cuda_updater_leave(u, entered, NULL);
}

/* Reads has_note without the lock: this is called after each chunk, when another thread
 * may hold the lock, for example to page-lock memory. */
static void take_note(struct tern_updater *updater, char *note, size_t bytes)
{
	struct cuda_updater *u = cuda_updater_of(updater);

	if (!atomic_exchange(&u->has_note, false))
		return;
	pthread_mutex_lock(&u->lock);
	snprintf(note, bytes, "%s", u->note);
	*u->note = '\0';
	pthread_mutex_unlock(&u->lock);
}

static uint64_t held_bytes(struct tern_updater *updater)
{
	struct cuda_updater *u = cuda_updater_of(updater);
	uint64_t held;

	pthread_mutex_lock(&u->lock);
	held = u->bytes;
	for (unsigned i = 0; i < CUDA_LANES; i++)
		held += tern_cuda_kernels_bytes(u->lanes[i].kernels);
	pthread_mutex_unlock(&u->lock);
	return held;
}

static void alloc(
	struct cuda_updater *u, CUdeviceptr *out, uint64_t bytes, const char *what)
{
	if (u->status < 0)
		return;
	u->status = tern_cuda_context_alloc(&u->gpu, out, bytes, what);
	if (u->status == 0)
		u->bytes += bytes;
}

static void release(struct cuda_updater *u, CUdeviceptr memory, uint64_t bytes)
{
	if (memory && u->gpu.api->mem_free(memory) == CUDA_SUCCESS)
		u->bytes -= bytes;
}

static void release_rooms(struct cuda_updater *u)
{
	release(u, u->rooms, CUDA_LANES * u->room_count * sizeof(float));
}

static void resize_rooms(struct cuda_updater *u, uint64_t count)
{
	CUdeviceptr rooms = 0;

	alloc(u, &rooms, CUDA_LANES * count * sizeof(float), "room for gradients");
	if (u->status < 0)
		return;
	release_rooms(u);
	u->rooms = rooms;
	u->room_count = count;
	for (unsigned i = 0; i < CUDA_LANES; i++)
		u->lanes[i].rooms = (float *)(uintptr_t)rooms + i * count;
}

/* Waits until no batch is under way, and lets none begin until let_lanes_go(). */
static void stop_lanes(struct cuda_updater *u)
{
	u->resizers++;
	for (unsigned i = 0; i < CUDA_LANES; i++)
		while (u->lanes[i].busy)
			pthread_cond_wait(&u->lane_free, &u->lock);
	u->status = 0; /* other threads had the lock, and may have set it */
}

static void let_lanes_go(struct cuda_updater *u)
{
	u->resizers--;
	cuda_updater_wake(u);
}

/* Number of floats that the rooms should have for a chunk that needs `needed` of them.
 * The number grows by doubling, so that making many chunks stops the lanes only a few
 * times. */
static uint64_t rooms_due(const struct cuda_updater *u, uint64_t needed)
{
	uint64_t count = TERN_MAX(u->room_count, 64u);

	while (count < u->rooms_wanted)
		count *= 2;
	return TERN_MAX(count, needed);
}

/* Enlarges the rooms for the gradients of a chunk with these options, and of all chunks
 * together up to ROOMS_SHARED bytes. If there is no memory for larger rooms, the old ones
 * stay, and that is an error only if they are too small for this chunk alone. */
static void make_rooms(struct cuda_updater *u, const struct tern_updater_opts *opts)
{
	uint64_t needed = cuda_updater_rooms(opts, opts->gradient_count);

	if (needed == 0)
		return;
	u->rooms_wanted =
		TERN_MIN(u->rooms_wanted + needed, ROOMS_SHARED / sizeof(float));
	if (rooms_due(u, needed) <= u->room_count)
		return;
	stop_lanes(u);
	/* While this thread waited, another one may have enlarged the rooms. */
	if (rooms_due(u, needed) > u->room_count)
		resize_rooms(u, rooms_due(u, needed));
	if (u->status == -ENOMEM && needed <= u->room_count) {
		u->status = 0;
		u->rooms_wanted = u->room_count;
	}
	let_lanes_go(u);
}

/* If `wanted`, takes a vector of the chunk's size from the chunk's memory, rounded up to
 * 256 bytes, and advances *at. Returns NULL if the memory is not allocated yet. */
static float *carve(const struct cuda_chunk *c, uint64_t *at, bool wanted)
{
	uint64_t here = *at;

	if (!wanted)
		return NULL;
	*at += tern_align_up(c->chunk.opts.count * sizeof(float), 256);
	return c->memory ? (float *)(uintptr_t)(c->memory + here) : NULL;
}

static uint64_t lay_out(struct cuda_chunk *c)
{
	uint64_t at = 0;

	c->w = carve(c, &at, !c->chunk.opts.on_device);
	c->m = carve(c, &at, tern_updater_has_m(&c->chunk.opts));
	c->v = carve(c, &at, tern_updater_has_v(&c->chunk.opts));
	c->mean = carve(c, &at, c->chunk.opts.two_phase);
	return at;
}

static void set_all(struct cuda_updater *u, float *to, uint64_t count, float value)
{
	unsigned bits;

	memcpy(&bits, &value, sizeof(bits));
	if (to)
		UPDATER_DO(u,
			u->gpu.api->memset_d32_async((CUdeviceptr)(uintptr_t)to, bits,
				count, u->lanes[0].stream),
			"the optimizer's state");
}

static void make_chunk(struct cuda_updater *u, struct cuda_chunk *c)
{
	const struct tern_cuda_api *api = u->gpu.api;
	CUstream stream = u->lanes[0].stream;
	const struct tern_updater_opts *opts = &c->chunk.opts;

	make_rooms(u, opts);
	c->bytes = lay_out(c);
	if (c->bytes)
		alloc(u, &c->memory, c->bytes, "a chunk's state");
	if (u->status < 0)
		return;
	lay_out(c);
	set_all(u, c->m, opts->count, 0);
	for (unsigned i = 0; c->v && i < tern_updater_segment_count(opts); i++) {
		struct tern_updater_segment s = tern_updater_segment(opts, i);

		set_all(u, c->v + s.first, s.count, s.optimizer->initial_accumulator);
	}
	UPDATER_DO(u, api->stream_synchronize(stream), "the optimizer's state");
	if (u->status < 0) /* the caller frees the memory: no queued work may use it */
		api->stream_synchronize(stream);
}

static void chunk_free(struct tern_updater *updater, struct tern_updater_chunk *chunk)
{
	struct cuda_updater *u = cuda_updater_of(updater);
	struct cuda_chunk *c = cuda_updater_chunk_of(chunk);
	bool entered = cuda_updater_enter(u);

	if (entered)
		release(u, c->memory, c->bytes);
	cuda_updater_leave(u, entered, NULL);
	free(c);
}

static int chunk_new(struct tern_updater *updater, const struct tern_updater_opts *opts,
	struct tern_updater_chunk **out)
{
	struct cuda_updater *u = cuda_updater_of(updater);
	struct cuda_chunk *c = calloc(1, sizeof(*c));
	bool entered;
	int r;

	if (!c) {
		snprintf(updater->error, sizeof(updater->error), "out of memory");
		return -ENOMEM;
	}
	c->chunk.opts = *opts;
	entered = cuda_updater_enter(u);
	if (entered)
		make_chunk(u, c);
	r = cuda_updater_leave(u, entered, updater->error);
	if (r < 0)
		chunk_free(updater, &c->chunk);
	else
		*out = &c->chunk;
	return r;
}

/* ---- making and freeing the updater ---- */

static void open_kernels(struct cuda_updater *u, struct cuda_lane *lane)
{
	char line[256];

	if (u->status < 0)
		return;
	u->status = tern_cuda_kernels_new(u->gpu.api, NULL, u->gpu.device.handle,
		lane->stream, &(struct tern_cuda_sizes){0}, &lane->kernels, line,
		sizeof(line));
	if (u->status < 0)
		snprintf(u->gpu.error, sizeof(u->gpu.error), "cuda:%u: %s",
			u->gpu.ordinal, line);
}

static void open_lane(struct cuda_updater *u, struct cuda_lane *lane)
{
	const struct tern_cuda_api *api = u->gpu.api;

	UPDATER_DO(u,
		api->stream_create_with_priority(
			&lane->stream, CU_STREAM_NON_BLOCKING, 0),
		"a stream");
	UPDATER_DO(u,
		api->event_create(
			&lane->ended, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC),
		"an event");
	open_kernels(u, lane);
}

static void make(struct cuda_updater *u)
{
	size_t count = CUDA_LANES * CUDA_BATCH_MAX, bytes = count * sizeof(double);

	alloc(u, &u->squares, bytes, "sums of squares");
	UPDATER_DO(u, u->gpu.api->mem_host_alloc((void **)&u->host_squares, bytes, 0),
		"page-locked memory");
	if (u->status < 0)
		return;
	for (unsigned i = 0; i < CUDA_LANES; i++) {
		open_lane(u, &u->lanes[i]);
		u->lanes[i].squares =
			(double *)(uintptr_t)u->squares + i * CUDA_BATCH_MAX;
		u->lanes[i].host_squares = u->host_squares + i * CUDA_BATCH_MAX;
	}
	if (u->status < 0)
		return;
	snprintf(u->updater.name, sizeof(u->updater.name), "%s (cuda:%u)",
		u->gpu.device.name, u->gpu.ordinal);
	snprintf(u->updater.fingerprint, sizeof(u->updater.fingerprint), "%.127s",
		tern_cuda_kernels_fingerprint(u->lanes[0].kernels));
}

static void close_lane(struct cuda_updater *u, struct cuda_lane *lane)
{
	const struct tern_cuda_api *api = u->gpu.api;

	tern_cuda_kernels_free(lane->kernels);
	if (lane->ended)
		api->event_destroy(lane->ended);
	if (lane->stream)
		api->stream_destroy(lane->stream);
}

static void free_device(struct cuda_updater *u)
{
	for (unsigned i = 0; i < CUDA_LANES; i++)
		close_lane(u, &u->lanes[i]);
	release_rooms(u);
	release(u, u->squares, CUDA_LANES * CUDA_BATCH_MAX * sizeof(double));
	if (u->host_squares)
		u->gpu.api->mem_free_host(u->host_squares);
}

static void cuda_free(struct tern_updater *updater)
{
	struct cuda_updater *u = cuda_updater_of(updater);

	if (u->gpu.handle && tern_cuda_context_enter(&u->gpu) == 0) {
		free_device(u);
		tern_cuda_context_leave(&u->gpu);
	}
	tern_cuda_context_close(&u->gpu);
	pthread_cond_destroy(&u->lane_free);
	pthread_mutex_destroy(&u->lock);
	free(u);
}

int tern_updater_cuda_new(const struct tern_cuda_api *api, unsigned ordinal,
	struct tern_updater **out, char *why, size_t bytes)
{
	static const struct tern_updater_ops ops = {
		.chunk_new = chunk_new,
		.chunk_free = chunk_free,
		.update = cuda_updater_update,
		.sum = cuda_updater_sum,
		.fold = cuda_updater_fold,
		.copy = cuda_updater_copy,
		.get_state = cuda_updater_get_state,
		.set_state = cuda_updater_set_state,
		.pin = pin,
		.unpin = unpin,
		.take_note = take_note,
		.held_bytes = held_bytes,
		.free = cuda_free,
	};
	struct cuda_updater *u = calloc(1, sizeof(*u));

	if (!u) {
		snprintf(why, bytes, "out of memory");
		return -ENOMEM;
	}
	u->updater.ops = &ops;
	pthread_mutex_init(&u->lock, NULL);
	pthread_cond_init(&u->lane_free, NULL);
	tern_list_init(&u->waiting);
	u->status = tern_cuda_context_open(&u->gpu, api, ordinal);
	if (u->status == 0)
		u->status = tern_cuda_context_enter(&u->gpu);
	if (u->status == 0) {
		make(u);
		tern_cuda_context_leave(&u->gpu);
	}
	if (u->status == 0) {
		*out = &u->updater;
		return 0;
	}
	int r = u->status;
	snprintf(why, bytes, "%s", u->gpu.error);
	cuda_free(&u->updater);
	return r;
}
