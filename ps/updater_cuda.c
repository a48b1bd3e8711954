/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA updater. Parameters, the optimizer's state and the sum of a two-phase step
 * stay on the device. Gradients are copied to it from the server's memory, one launch
 * adds up to TERN_SUM_MAX of them and applies the optimizer, and the new parameters are
 * copied to the memory from which they are sent. Longer sums are built from groups as in
 * ps/sum.c, but of whole chunks: each level of the tree has TERN_SUM_MAX buffers
 * ("rooms"), which are reused in stream order.
 *
 * There is one stream and one set of rooms, so one chunk is processed at a time: a lock
 * is held during each call, on threads that exist to compute.
 */
#include "ps/updater_cuda.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/cuda_context.h"
#include "base/util.h"
#include "kernels/cuda/table.h"

#define LEVELS_MAX 11u /* levels of a tree with 2^32 leaves */

struct cuda_updater {
	struct tern_updater updater;
	pthread_mutex_t lock; /* protects everything below, and the device */
	struct tern_cuda_context gpu;
	CUstream stream;
	struct tern_cuda_kernels *kernels;
	int status; /* first error of the call in progress */
	char note[400];
	atomic_bool has_note; /* read without the lock, as a hint */
	bool pageable;        /* a note about unlocked memory was made */

	double *squares; /* on the device, in `words`, and on the host */
	double host_squares;
	CUdeviceptr words;
	/* [levels][TERN_SUM_MAX][room_count] */
	CUdeviceptr rooms;
	unsigned levels;
	uint64_t room_count; /* elements */
	uint64_t bytes;      /* device memory in bytes */
};

struct cuda_chunk {
	struct tern_updater_chunk chunk;
	CUdeviceptr memory;
	uint64_t bytes;
	float *w, *m, *v, *mean; /* on the device */
	bool holds;              /* w has the result of the last update */
};

static struct cuda_updater *cuda_of(struct tern_updater *u)
{
	return tern_container_of(u, struct cuda_updater, updater);
}

static struct cuda_chunk *chunk_of(struct tern_updater_chunk *c)
{
	return tern_container_of(c, struct cuda_chunk, chunk);
}

/* Calls the driver or the kernels' table, unless an earlier call has failed. */
#define DO(u, call, what)                                                                \
	((u)->status == 0                                                                \
			? (void)((u)->status = tern_cuda_check(&(u)->gpu, (call), what)) \
			: (void)0)
#define KERNEL(u, call)                                                                  \
	((u)->status == 0 ? (void)((u)->status = kernel_check(u, call)) : (void)0)

static int kernel_check(struct cuda_updater *u, int status)
{
	if (status < 0)
		snprintf(u->gpu.error, sizeof(u->gpu.error), "cuda:%u: %s",
			u->gpu.ordinal, tern_cuda_kernels_error(u->kernels));
	return status;
}

/* ---- a call ---- */

/* Enters the context. leave() must follow, also if this returns false. */
static bool enter(struct cuda_updater *u)
{
	pthread_mutex_lock(&u->lock);
	u->status = tern_cuda_context_enter(&u->gpu);
	return u->status == 0;
}

/* Waits until the stream is idle, also after a failure, and leaves the context.
 * Returns the status; the line about a failure goes to `error` (of the size of the
 * context's; NULL: nowhere). */
static int leave(struct cuda_updater *u, bool entered, char *error)
{
	int r;

	if (entered) {
		DO(u, u->gpu.api->stream_synchronize(u->stream), "computing");
		if (u->status < 0)
			u->gpu.api->stream_synchronize(u->stream);
		tern_cuda_context_leave(&u->gpu);
	}
	r = u->status;
	if (r < 0 && error)
		memcpy(error, u->gpu.error, sizeof(u->gpu.error));
	pthread_mutex_unlock(&u->lock);
	return r;
}

static void copy_up(
	struct cuda_updater *u, const float *to, const float *from, uint64_t count)
{
	DO(u,
		u->gpu.api->memcpy_htod_async(
			(CUdeviceptr)(uintptr_t)to, from, count * sizeof(*to), u->stream),
		"copying up");
}

static void copy_down(struct cuda_updater *u, void *to, const void *from, uint64_t bytes)
{
	DO(u,
		u->gpu.api->memcpy_dtoh_async(
			to, (CUdeviceptr)(uintptr_t)from, bytes, u->stream),
		"copying down");
}

/* ---- sums ---- */

static float *room(const struct cuda_updater *u, unsigned level, unsigned i)
{
	float *rooms = (float *)(uintptr_t)u->rooms;

	return rooms + (level * TERN_SUM_MAX + i) * u->room_count;
}

static void sum_tree(struct cuda_updater *u, float *dst, const float *const *src,
	unsigned n, uint64_t count);

/* The inputs of the tree's top, on the device: see ps/sum.c. */
static unsigned top(struct cuda_updater *u, const float **in, const float *const *src,
	unsigned n, uint64_t count)
{
	unsigned span = 1, groups = 0, level = 0;

	while (n > span * TERN_SUM_MAX) {
		span *= TERN_SUM_MAX;
		level++;
	}
	tern_assert(level < u->levels);
	for (unsigned lo = 0; lo < n; lo += span, groups++) {
		float *to = room(u, level, groups);

		if (level == 0)
			copy_up(u, to, src[lo], count);
		else
			sum_tree(u, to, src + lo, TERN_MIN(span, n - lo), count);
		in[groups] = to;
	}
	return groups;
}

static void sum_tree(struct cuda_updater *u, float *dst, const float *const *src,
	unsigned n, uint64_t count)
{
	const float *in[TERN_SUM_MAX];
	unsigned groups = top(u, in, src, n, count);

	KERNEL(u, tern_cuda_sum(u->kernels, dst, in, groups, 1.0f, count));
}

/* ---- updates ---- */

static void put_update(struct cuda_updater *u, const struct cuda_chunk *c,
	const struct tern_updater_step *step)
{
	uint64_t count = c->chunk.opts.count;
	struct tern_cuda_tensor t = {
		.w_out = c->w, .w_in = c->w, .m = c->m, .v = c->v, .count = count};
	unsigned groups = 1;

	if (!c->holds)
		copy_up(u, c->w, step->w_in, count);
	t.grads[0] = c->mean;
	if (step->gradients)
		groups = top(u, t.grads, step->gradients, step->gradient_count, count);
	KERNEL(u, tern_cuda_update(u->kernels, c->chunk.opts.optimizer, step->step, &t, 1,
			  groups, step->gradients ? step->scale : 1.0f, step->clip));
	copy_down(u, step->w_out, c->w, count * sizeof(*c->w));
}

static int update(struct tern_updater *updater, struct tern_updater_chunk *chunk,
	const struct tern_updater_step *step)
{
	struct cuda_updater *u = cuda_of(updater);
	struct cuda_chunk *c = chunk_of(chunk);
	bool entered = enter(u);
	int r;

	if (entered)
		put_update(u, c, step);
	r = leave(u, entered, chunk->error);
	c->holds = r == 0;
	return r;
}

static int sum(struct tern_updater *updater, struct tern_updater_chunk *chunk,
	const float *const *gradients, unsigned gradient_count, float scale,
	double *squares)
{
	struct cuda_updater *u = cuda_of(updater);
	struct cuda_chunk *c = chunk_of(chunk);
	const float *in[TERN_SUM_MAX];
	uint64_t count = chunk->opts.count;
	bool entered = enter(u);
	unsigned groups;

	if (entered) {
		groups = top(u, in, gradients, gradient_count, count);
		KERNEL(u, tern_cuda_sum(u->kernels, c->mean, in, groups, scale, count));
		KERNEL(u, tern_cuda_sum_squares(u->kernels, u->squares, c->mean, count));
		copy_down(u, &u->host_squares, u->squares, sizeof(*u->squares));
		DO(u, u->gpu.api->stream_synchronize(u->stream), "computing");
		*squares = u->host_squares;
	}
	return leave(u, entered, chunk->error);
}

/* ---- memory ---- */

static void pin(struct tern_updater *updater, void *base, uint64_t bytes)
{
	struct cuda_updater *u = cuda_of(updater);
	bool entered = enter(u);

	/* The reason of the refusal does not matter: if copies fail too, they report
	 * it. */
	if (entered && tern_cuda_context_pin(&u->gpu, base, bytes) < 0 && !u->pageable) {
		snprintf(u->note, sizeof(u->note),
			"%.300s: copies go through other memory", u->gpu.error);
		u->pageable = true;
		atomic_store(&u->has_note, true);
	}
	leave(u, entered, NULL);
}

static void unpin(struct tern_updater *updater)
{
	struct cuda_updater *u = cuda_of(updater);
	bool entered = enter(u);

	if (entered)
		tern_cuda_context_unpin(&u->gpu);
	leave(u, entered, NULL);
}

/* Called after each chunk, while the device computes the next one under the lock. */
static void take_note(struct tern_updater *updater, char *note, size_t bytes)
{
	struct cuda_updater *u = cuda_of(updater);

	if (!atomic_exchange(&u->has_note, false))
		return;
	pthread_mutex_lock(&u->lock);
	snprintf(note, bytes, "%s", u->note);
	*u->note = '\0';
	pthread_mutex_unlock(&u->lock);
}

static uint64_t held_bytes(struct tern_updater *updater)
{
	struct cuda_updater *u = cuda_of(updater);
	uint64_t held;

	pthread_mutex_lock(&u->lock);
	held = u->bytes + tern_cuda_kernels_bytes(u->kernels);
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

static uint64_t rooms_bytes(unsigned levels, uint64_t room_count)
{
	return levels * TERN_SUM_MAX * room_count * sizeof(float);
}

static void release_rooms(struct cuda_updater *u)
{
	release(u, u->rooms, rooms_bytes(u->levels, u->room_count));
}

/* Makes rooms for the sums of such a chunk. Sizes are multiples of 16 bytes. The old
 * rooms stay if there is no memory for larger ones: other chunks use them. */
static void make_rooms(struct cuda_updater *u, const struct tern_updater_opts *opts)
{
	uint64_t leaves = TERN_SUM_MAX, room_count;
	unsigned levels = 1;
	CUdeviceptr rooms = 0;

	for (; leaves < opts->gradient_count; leaves *= TERN_SUM_MAX)
		levels++;
	tern_assert(levels <= LEVELS_MAX);
	if (u->rooms && levels <= u->levels && opts->count <= u->room_count)
		return;
	levels = TERN_MAX(levels, u->levels);
	room_count = TERN_MAX(tern_align_up(opts->count, 64), u->room_count);
	alloc(u, &rooms, rooms_bytes(levels, room_count), "room for gradients");
	if (u->status < 0)
		return;
	release_rooms(u);
	u->rooms = rooms;
	u->levels = levels;
	u->room_count = room_count;
}

/* Takes `count` floats from the chunk's memory, rounded up to 256 bytes. */
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
	enum tern_optimizer_kind kind = c->chunk.opts.optimizer->kind;
	uint64_t at = 0;

	c->w = carve(c, &at, true);
	c->m = carve(c, &at, tern_updater_has_m(kind));
	c->v = carve(c, &at, tern_updater_has_v(kind));
	c->mean = carve(c, &at, c->chunk.opts.two_phase);
	return at;
}

static void set_all(struct cuda_updater *u, float *to, uint64_t count, float value)
{
	unsigned bits;

	memcpy(&bits, &value, sizeof(bits));
	if (to)
		DO(u,
			u->gpu.api->memset_d32_async(
				(CUdeviceptr)(uintptr_t)to, bits, count, u->stream),
			"the optimizer's state");
}

static void make_chunk(struct cuda_updater *u, struct cuda_chunk *c)
{
	const struct tern_updater_opts *opts = &c->chunk.opts;

	make_rooms(u, opts);
	c->bytes = lay_out(c);
	alloc(u, &c->memory, c->bytes, "a chunk's state");
	if (u->status < 0)
		return;
	lay_out(c);
	set_all(u, c->m, opts->count, 0);
	set_all(u, c->v, opts->count, opts->optimizer->initial_accumulator);
}

static void chunk_free(struct tern_updater *updater, struct tern_updater_chunk *chunk)
{
	struct cuda_updater *u = cuda_of(updater);
	struct cuda_chunk *c = chunk_of(chunk);
	bool entered = enter(u);

	if (entered)
		release(u, c->memory, c->bytes);
	leave(u, entered, NULL);
	free(c);
}

static int chunk_new(struct tern_updater *updater, const struct tern_updater_opts *opts,
	struct tern_updater_chunk **out)
{
	struct cuda_updater *u = cuda_of(updater);
	struct cuda_chunk *c = calloc(1, sizeof(*c));
	bool entered;
	int r;

	if (!c) {
		snprintf(updater->error, sizeof(updater->error), "out of memory");
		return -ENOMEM;
	}
	c->chunk.opts = *opts;
	entered = enter(u);
	if (entered)
		make_chunk(u, c);
	r = leave(u, entered, updater->error);
	if (r < 0)
		chunk_free(updater, &c->chunk);
	else
		*out = &c->chunk;
	return r;
}

/* ---- making and freeing the updater ---- */

static void open_kernels(struct cuda_updater *u)
{
	char line[256];

	if (u->status < 0)
		return;
	u->status = tern_cuda_kernels_new(u->gpu.api, NULL, u->gpu.device.handle,
		u->stream, &(struct tern_cuda_sizes){0}, &u->kernels, line, sizeof(line));
	if (u->status < 0)
		snprintf(u->gpu.error, sizeof(u->gpu.error), "cuda:%u: %s",
			u->gpu.ordinal, line);
}

static void make(struct cuda_updater *u)
{
	DO(u,
		u->gpu.api->stream_create_with_priority(
			&u->stream, CU_STREAM_NON_BLOCKING, 0),
		"a stream");
	alloc(u, &u->words, sizeof(*u->squares), "a word");
	u->squares = (double *)(uintptr_t)u->words;
	open_kernels(u);
	if (u->status < 0)
		return;
	snprintf(u->updater.name, sizeof(u->updater.name), "%s (cuda:%u)",
		u->gpu.device.name, u->gpu.ordinal);
	snprintf(u->updater.fingerprint, sizeof(u->updater.fingerprint), "%.127s",
		tern_cuda_kernels_fingerprint(u->kernels));
}

static void free_device(struct cuda_updater *u)
{
	const struct tern_cuda_api *api = u->gpu.api;

	if (u->stream)
		api->stream_synchronize(u->stream);
	tern_cuda_kernels_free(u->kernels);
	release_rooms(u);
	release(u, u->words, sizeof(*u->squares));
	if (u->stream)
		api->stream_destroy(u->stream);
}

static void cuda_free(struct tern_updater *updater)
{
	struct cuda_updater *u = cuda_of(updater);

	if (u->gpu.handle && tern_cuda_context_enter(&u->gpu) == 0) {
		free_device(u);
		tern_cuda_context_leave(&u->gpu);
	}
	tern_cuda_context_close(&u->gpu);
	pthread_mutex_destroy(&u->lock);
	free(u);
}

int tern_updater_cuda_new(const struct tern_cuda_api *api, unsigned ordinal,
	struct tern_updater **out, char *why, size_t bytes)
{
	static const struct tern_updater_ops ops = {
		.chunk_new = chunk_new,
		.chunk_free = chunk_free,
		.update = update,
		.sum = sum,
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
