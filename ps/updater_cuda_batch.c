/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of the CUDA updater. Gradients are copied to the device from the
 * server's memory; one launch adds up at most TERN_SUM_MAX gradients of each chunk and
 * applies the optimizer; and the new parameters are copied to the memory from which they
 * are sent.
 *
 * Each thread calls for one chunk, and the calls of several threads share the device:
 *
 *     - There are CUDA_LANES lanes, each with a stream. So the copies of one batch to the
 *       device, the launches of another, and the copies of a third to the host overlap.
 *     - A call that finds a free lane takes all calls that wait, at most CUDA_BATCH_MAX,
 *       and runs them as one batch: it queues their work, waits once, and ends the
 *       calls of the other threads. So while the device keeps up, a batch is a single call,
 *       and chunks that become ready while all lanes are busy share launches and a wait.
 *     - A thread whose call waits polls for a short time before it sleeps: to wake 64
 *       sleeping threads (a model of 1 to 64 MiB has 64 chunks) takes longer than the
 *       updates.
 *     - Updates of one batch share a launch as long as they differ in nothing but the
 *       chunk and its gradients, their chunks have one optimizer each, and their
 *       gradients fit into the lane's rooms (device memory for gradients). The stream is
 *       in order, so the next launch uses the same rooms.
 *
 * Where parameters and gradients are in the device's memory (on_device), a launch reads
 * and writes them there, and an update copies nothing.
 *
 * If a batch fails, all its calls fail. Sums of more than TERN_SUM_MAX gradients are
 * built from groups as in ps/sum.c, but of whole chunks: each level of the tree has
 * TERN_SUM_MAX rooms.
 */
#include "ps/updater_cuda_state.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "ps/sum.h"

#define LEVELS_MAX 11u /* levels of a tree with 2^32 leaves */

enum call_kind { CALL_UPDATE, CALL_SUM, CALL_FOLD, CALL_COPY };

/* One call of an updater's function, on the stack of the calling thread. */
struct call {
	struct tern_list node; /* in updater->waiting, until a batch takes it */
	enum call_kind kind;
	struct cuda_chunk *chunk;
	/* A sum uses only gradients, gradient_count and scale; a fold gradient_count. */
	struct tern_updater_step step;
	double *squares;      /* sum: the result */
	float *const *places; /* fold */
	uint32_t folded;      /* fold */
	float *to;            /* copy */
	const float *from;    /* copy */
	int status;
	/* While the calling thread polls, it reads these two without the lock. After it
	 * has seen `ended` it returns, and this structure is gone. */
	atomic_bool ended;
	atomic_bool may_run; /* a lane is free: the thread may run the call */
	/* The thread sleeps until `changed` says that `ended` or `may_run` was set. */
	bool sleeps;
	pthread_cond_t changed;
};

struct batch {
	struct cuda_updater *u;
	struct cuda_lane *lane;
	struct call *calls[CUDA_BATCH_MAX];
	unsigned count;
	/* The next launch: updates whose copies to the device are queued. */
	struct tern_cuda_tensor tensors[CUDA_BATCH_MAX];
	const struct call *updates[CUDA_BATCH_MAX];
	unsigned update_count, groups;
	unsigned sum_count; /* sums that are queued in this batch */
	int status;         /* the first error of a driver call for this batch */
	char error[sizeof(((struct tern_cuda_context *)0)->error)];
};

/* Calls the driver, unless an earlier call has failed. */
#define DRIVER(b, call, what)                                                            \
	((b)->status == 0                                                                \
			? (void)((b)->status = tern_cuda_check_into(&(b)->u->gpu,        \
					 (call), what, (b)->error, sizeof((b)->error)))  \
			: (void)0)
/* Calls the kernels' table, unless an earlier call has failed. */
#define KERNEL(b, call)                                                                  \
	((b)->status == 0 ? (void)((b)->status = kernel_check((b), (call))) : (void)0)

static int kernel_check(struct batch *b, int status)
{
	if (status < 0)
		snprintf(b->error, sizeof(b->error), "cuda:%u: %s", b->u->gpu.ordinal,
			tern_cuda_kernels_error(b->lane->kernels));
	return status;
}

/* Copies between host and device memory, in any direction: the driver recognises the kind
 * of memory by the address. */
static void copy(struct batch *b, void *to, const void *from, uint64_t bytes)
{
	DRIVER(b,
		b->u->gpu.api->memcpy_async((CUdeviceptr)(uintptr_t)to,
			(CUdeviceptr)(uintptr_t)from, bytes, b->lane->stream),
		"copying");
}

/* ---- sums ---- */

/* Rounds a number of floats up to a multiple of 256 bytes. */
static uint64_t room_of(uint64_t count)
{
	return tern_align_up(count, 64);
}

/* Number of levels of the tree: 1 if one launch can add all gradients. */
static unsigned levels_of(unsigned gradient_count)
{
	uint64_t leaves = TERN_SUM_MAX;
	unsigned levels = 1;

	for (; leaves < gradient_count; leaves *= TERN_SUM_MAX)
		levels++;
	tern_assert(levels <= LEVELS_MAX);
	return levels;
}

uint64_t cuda_updater_rooms(const struct tern_updater_opts *opts, unsigned gradient_count)
{
	unsigned levels = levels_of(gradient_count);

	if (levels > 1)
		return room_of(opts->count) * levels * TERN_SUM_MAX;
	return opts->on_device ? 0 : room_of(opts->count) * gradient_count;
}

static uint64_t rooms_of(const struct call *call)
{
	bool reads = call->kind <= CALL_SUM && call->step.gradients;

	return reads ? cuda_updater_rooms(
			       &call->chunk->chunk.opts, call->step.gradient_count)
		     : 0;
}

/* The sum of the gradients of one call, which may take several launches. */
struct tree {
	struct batch *batch;
	float *rooms; /* the part of the lane's rooms for this call; NULL: it needs none */
	uint64_t count;
	bool on_device;
};

static void sum_tree(
	const struct tree *t, float *dst, const float *const *src, unsigned n);

/* Computes the inputs of the last addition on the device, as top() in ps/sum.c does on
 * the CPU. */
static unsigned top(
	const struct tree *t, const float **in, const float *const *src, unsigned n)
{
	unsigned span = 1, groups = 0, level = 0;

	while (n > span * TERN_SUM_MAX) {
		span *= TERN_SUM_MAX;
		level++;
	}
	for (unsigned lo = 0; lo < n; lo += span, groups++) {
		float *to;

		if (level == 0 && t->on_device) { /* it needs no room */
			in[groups] = src[lo];
			continue;
		}
		to = t->rooms + (level * TERN_SUM_MAX + groups) * room_of(t->count);
		if (level > 0)
			sum_tree(t, to, src + lo, TERN_MIN(span, n - lo));
		else
			copy(t->batch, to, src[lo], t->count * sizeof(*to));
		in[groups] = to;
	}
	return groups;
}

static void sum_tree(
	const struct tree *t, float *dst, const float *const *src, unsigned n)
{
	const float *in[TERN_SUM_MAX];
	unsigned groups = top(t, in, src, n);

	KERNEL(t->batch,
		tern_cuda_sum(t->batch->lane->kernels, dst, in, groups, 1.0f, t->count));
}

static unsigned inputs(struct batch *b, const struct call *call, const float **in)
{
	const struct tern_updater_opts *opts = &call->chunk->chunk.opts;
	uint64_t needed = rooms_of(call);
	const struct tree t = {.batch = b,
		.rooms = needed ? b->lane->rooms + b->lane->rooms_used : NULL,
		.count = opts->count,
		.on_device = opts->on_device};

	b->lane->rooms_used += needed;
	tern_assert(b->lane->rooms_used <= b->u->room_count);
	return top(&t, in, call->step.gradients, call->step.gradient_count);
}

static void put_sum(struct batch *b, const struct call *call)
{
	double *squares = b->lane->squares + b->sum_count++;
	struct tern_cuda_kernels *k = b->lane->kernels;
	uint64_t count = call->chunk->chunk.opts.count;
	const float *in[TERN_SUM_MAX];
	float *mean = call->chunk->mean;
	unsigned groups = inputs(b, call, in);

	KERNEL(b, tern_cuda_sum(k, mean, in, groups, call->step.scale, count));
	KERNEL(b, tern_cuda_sum_squares(k, squares, mean, count));
}

struct fold {
	struct batch *batch;
	uint64_t count;
};

static void add(void *arg, float *dst, const float *const *in, unsigned n, bool gradients)
{
	const struct fold *f = arg;

	(void)gradients;
	if (n > 1)
		KERNEL(f->batch, tern_cuda_sum(f->batch->lane->kernels, dst, in, n, 1.0f,
					 f->count));
}

static void put_fold(struct batch *b, const struct call *call)
{
	struct fold f = {b, call->chunk->chunk.opts.count};

	tern_sum_fold(call->places, call->step.gradient_count, call->folded, add, &f);
}

/* ---- updates ---- */

/* The segments of an update; `list` is NULL if its whole chunk has one optimizer. */
struct segments {
	const struct tern_updater_segment *list;
	unsigned count;
};

static struct segments segments_of(const struct call *call)
{
	const struct tern_updater_opts *opts = &call->chunk->chunk.opts;
	const struct tern_updater_step *step = &call->step;

	return step->segments ? (struct segments){step->segments, step->segment_count}
			      : (struct segments){opts->segments, opts->segment_count};
}

/* True if an earlier segment has the optimizer of segment i. */
static bool is_repeated(const struct segments *s, unsigned i)
{
	for (unsigned j = 0; j < i; j++)
		if (s->list[j].optimizer == s->list[i].optimizer)
			return true;
	return false;
}

/* The part of a prepared update that is one segment of its chunk. */
static struct tern_cuda_tensor segment_of(const struct tern_cuda_tensor *whole,
	const struct tern_updater_segment *s, unsigned groups)
{
	struct tern_cuda_tensor t = {.w_out = whole->w_out + s->first,
		.w_in = whole->w_in + s->first,
		.m = whole->m ? whole->m + s->first : NULL,
		.v = whole->v ? whole->v + s->first : NULL,
		.count = s->count};

	for (unsigned i = 0; i < groups; i++)
		t.grads[i] = whole->grads[i] + s->first;
	return t;
}

/* Launches the prepared update of a chunk that has segments: those with the optimizer of
 * segment number `like` together, as far as they fit into `tensors`. */
static void update_segments(struct batch *b, const struct call *call,
	const struct segments *all, unsigned like)
{
	const struct tern_optimizer *optimizer = all->list[like].optimizer;
	const struct tern_updater_step *step = &call->step;
	uint64_t update = all->list[like].update ? all->list[like].update : step->step;
	struct tern_cuda_tensor tensors[CUDA_BATCH_MAX];
	unsigned count = 0;

	for (unsigned i = like; i < all->count; i++) {
		const struct tern_updater_segment *s = &all->list[i];
		bool last = i + 1 == all->count;

		if (s->optimizer == optimizer)
			tensors[count++] = segment_of(&b->tensors[0], s, b->groups);
		if (count < CUDA_BATCH_MAX && !last)
			continue;
		KERNEL(b, tern_cuda_update(b->lane->kernels, optimizer, update, tensors,
				  count, b->groups, step->gradients ? step->scale : 1.0f,
				  step->clip));
		count = 0;
	}
}

/* Queues the copy of a segment that is skipped. Without on_device, the chunk's copy of the
 * parameters is updated in place. */
static void keep(struct batch *b, const struct tern_updater_segment *s)
{
	const struct tern_cuda_tensor *t = &b->tensors[0];

	if (t->w_out != t->w_in)
		copy(b, t->w_out + s->first, t->w_in + s->first,
			s->count * sizeof(*t->w_out));
}

static void launch_segments(
	struct batch *b, const struct call *call, const struct segments *all)
{
	for (unsigned i = 0; i < all->count; i++) {
		if (!all->list[i].optimizer)
			keep(b, &all->list[i]);
		else if (!is_repeated(all, i))
			update_segments(b, call, all, i);
	}
}

/* Launches the prepared updates, queues the copies of their results, and frees the lane's
 * rooms for the next launch. */
static void launch(struct batch *b)
{
	const struct call *like = b->update_count ? b->updates[0] : NULL;
	struct segments segments = like ? segments_of(like) : (struct segments){0};

	if (segments.list) {
		launch_segments(b, like, &segments);
	} else if (like) {
		const struct tern_updater_step *step = &like->step;

		KERNEL(b, tern_cuda_update(b->lane->kernels,
				  like->chunk->chunk.opts.optimizer, step->step,
				  b->tensors, b->update_count, b->groups,
				  step->gradients ? step->scale : 1.0f, step->clip));
	}
	for (unsigned i = 0; i < b->update_count; i++)
		if (!b->updates[i]->chunk->chunk.opts.on_device)
			copy(b, b->updates[i]->step.w_out, b->tensors[i].w_out,
				b->tensors[i].count * sizeof(float));
	b->update_count = 0;
	b->lane->rooms_used = 0;
}

static void put_update(struct batch *b, const struct call *call)
{
	const struct cuda_chunk *c = call->chunk;
	struct tern_cuda_tensor *t = &b->tensors[b->update_count];
	bool on_device = c->chunk.opts.on_device;

	*t = (struct tern_cuda_tensor){.w_out = on_device ? call->step.w_out : c->w,
		.w_in = on_device ? call->step.w_in : c->w,
		.m = c->m,
		.v = c->v,
		.grads = {c->mean},
		.count = c->chunk.opts.count};
	if (!on_device && !c->holds)
		copy(b, c->w, call->step.w_in, t->count * sizeof(*c->w));
	b->groups = call->step.gradients ? inputs(b, call, t->grads) : 1;
	b->updates[b->update_count++] = call;
}

/* True if both updates can be one launch. Their numbers of inputs must be equal: these
 * follow from gradient_count; without gradients the only input is the chunk's own sum. */
static bool share_a_launch(const struct call *a, const struct call *b)
{
	const struct tern_updater_step *x = &a->step, *y = &b->step;

	return !segments_of(a).list && !segments_of(b).list &&
	       a->chunk->chunk.opts.optimizer == b->chunk->chunk.opts.optimizer &&
	       x->step == y->step && !x->gradients == !y->gradients &&
	       x->gradient_count == y->gradient_count && x->scale == y->scale &&
	       x->clip == y->clip;
}

static bool has_rooms_for(const struct batch *b, const struct call *call)
{
	return rooms_of(call) <= b->u->room_count - b->lane->rooms_used;
}

static void put(struct batch *b, const struct call *call)
{
	if (!has_rooms_for(b, call) || (call->kind == CALL_UPDATE && b->update_count &&
					       !share_a_launch(b->updates[0], call)))
		launch(b);
	switch (call->kind) {
	case CALL_UPDATE:
		put_update(b, call);
		return;
	case CALL_SUM:
		put_sum(b, call);
		return;
	case CALL_FOLD:
		put_fold(b, call);
		return;
	case CALL_COPY:
		copy(b, call->to, call->from,
			call->chunk->chunk.opts.count * sizeof(*call->to));
		return;
	}
	tern_never("unknown kind of a call");
}

/* ---- batches ---- */

static void queue_work(struct batch *b)
{
	for (unsigned i = 0; i < b->count; i++)
		put(b, b->calls[i]);
	launch(b);
	if (b->sum_count)
		copy(b, b->lane->host_squares, b->lane->squares,
			b->sum_count * sizeof(double));
	DRIVER(b, b->u->gpu.api->event_record(b->lane->ended, b->lane->stream),
		"an event");
}

/* Waits until the device has done the batch. Afterwards the stream is idle, also after a
 * failure. */
static void wait_for(struct batch *b)
{
	const struct tern_cuda_api *api = b->u->gpu.api;

	DRIVER(b, tern_cuda_wait(api, b->lane->ended), "computing");
	if (b->status < 0)
		api->stream_synchronize(b->lane->stream);
}

/* Runs the batch without the updater's lock: the lane and the chunks are the batch's own
 * until it ends. */
static void compute(struct batch *b)
{
	CUresult result = b->u->gpu.api->ctx_push_current(b->u->gpu.handle);

	DRIVER(b, result, "entering the context");
	if (result != CUDA_SUCCESS)
		return;
	queue_work(b);
	wait_for(b);
	tern_cuda_context_leave(&b->u->gpu);
}

static void end_call(struct batch *b, struct call *call, const double **squares)
{
	struct cuda_chunk *c = call->chunk;
	bool sleeps = call->sleeps;

	call->status = b->status;
	if (call->status < 0)
		memcpy(c->chunk.error, b->error, sizeof(c->chunk.error));
	if (call->kind == CALL_SUM)
		*call->squares = *(*squares)++;
	if (call->kind == CALL_UPDATE)
		c->holds = call->status == 0;
	/* A thread that polls may return at once. One that sleeps needs the lock first. */
	atomic_store_explicit(&call->ended, true, memory_order_release);
	if (sleeps)
		pthread_cond_signal(&call->changed);
}

/* Fills the batch: takes `own`, the call of this thread, which may be anywhere in the
 * queue of waiting calls, and then the first calls of the queue. */
static void take_calls(struct batch *b, struct call *own)
{
	struct tern_list *node;

	tern_list_remove(&own->node);
	b->calls[b->count++] = own;
	while (b->count < CUDA_BATCH_MAX && (node = tern_list_pop(&b->u->waiting)))
		b->calls[b->count++] = tern_list_entry(node, struct call, node);
}

static struct cuda_lane *free_lane(struct cuda_updater *u)
{
	for (unsigned i = 0; i < CUDA_LANES && u->resizers == 0; i++)
		if (!u->lanes[i].busy)
			return &u->lanes[i];
	return NULL;
}

void cuda_updater_wake(struct cuda_updater *u)
{
	struct call *first = tern_list_first(&u->waiting, struct call, node);

	if (!first || !free_lane(u))
		return;
	atomic_store_explicit(&first->may_run, true, memory_order_relaxed);
	if (first->sleeps)
		pthread_cond_signal(&first->changed);
}

static void run_batch(struct cuda_updater *u, struct cuda_lane *lane, struct call *own)
{
	struct batch b = {.u = u, .lane = lane};
	const double *squares = lane->host_squares;

	lane->busy = true;
	take_calls(&b, own);
	cuda_updater_wake(u); /* for calls that the batch had no room for */
	pthread_mutex_unlock(&u->lock);
	compute(&b);
	pthread_mutex_lock(&u->lock);
	lane->busy = false;
	pthread_cond_broadcast(&u->lane_free);
	cuda_updater_wake(u);
	for (unsigned i = 0; i < b.count; i++)
		end_call(&b, b.calls[i], &squares);
}

/* Polls, without the lock, until the call has ended or may use a lane, or the time is
 * over. Returns true if it has ended; then the lock stays released. */
static bool poll_call(struct cuda_updater *u, struct call *call)
{
	uint64_t end_ns = tern_clock_ns() + TERN_CUDA_POLL_NS;

	pthread_mutex_unlock(&u->lock);
	do {
		if (atomic_load_explicit(&call->ended, memory_order_acquire))
			return true;
		tern_cpu_relax();
	} while (!atomic_load_explicit(&call->may_run, memory_order_relaxed) &&
		 tern_clock_ns() < end_ns);
	pthread_mutex_lock(&u->lock);
	return false;
}

/* Waits, with the lock, until the call has ended or may use a lane. */
static void sleep_call(struct cuda_updater *u, struct call *call)
{
	call->sleeps = true;
	pthread_cond_wait(&call->changed, &u->lock);
	call->sleeps = false;
}

/* Runs the call in a batch of this thread or of another one. Called with the lock, and
 * returns without it. */
static void run_locked(struct cuda_updater *u, struct call *call)
{
	bool polled = false;

	while (!atomic_load_explicit(&call->ended, memory_order_relaxed)) {
		struct cuda_lane *lane = free_lane(u);

		atomic_store_explicit(&call->may_run, false, memory_order_relaxed);
		if (lane && tern_list_linked(&call->node))
			run_batch(u, lane, call);
		else if (polled)
			sleep_call(u, call);
		else if (poll_call(u, call))
			return;
		polled = true;
	}
	pthread_mutex_unlock(&u->lock);
}

static int run(struct cuda_updater *u, struct call *call)
{
	pthread_cond_init(&call->changed, NULL);
	pthread_mutex_lock(&u->lock);
	tern_list_push(&u->waiting, &call->node);
	run_locked(u, call);
	pthread_cond_destroy(&call->changed);
	return call->status;
}

int cuda_updater_update(struct tern_updater *u, struct tern_updater_chunk *c,
	const struct tern_updater_step *step)
{
	struct call call = {
		.kind = CALL_UPDATE, .chunk = cuda_updater_chunk_of(c), .step = *step};

	return run(cuda_updater_of(u), &call);
}

int cuda_updater_sum(struct tern_updater *u, struct tern_updater_chunk *c,
	const float *const *gradients, unsigned gradient_count, float scale,
	double *squares)
{
	struct call call = {.kind = CALL_SUM,
		.chunk = cuda_updater_chunk_of(c),
		.step = {.gradients = gradients,
			.gradient_count = gradient_count,
			.scale = scale},
		.squares = squares};

	return run(cuda_updater_of(u), &call);
}

int cuda_updater_fold(struct tern_updater *u, struct tern_updater_chunk *c,
	float *const *places, uint32_t gradient_count, uint32_t folded)
{
	struct call call = {.kind = CALL_FOLD,
		.chunk = cuda_updater_chunk_of(c),
		.step = {.gradient_count = gradient_count},
		.places = places,
		.folded = folded};

	if (c->opts.on_device)
		return run(cuda_updater_of(u), &call);
	tern_updater_fold_on_cpu(
		tern_kernels_cpu(), places, gradient_count, folded, c->opts.count, false);
	return 0;
}

/* Copies a vector to, from or within memory of the GPU. */
static int copy_on_device(
	struct cuda_updater *u, struct cuda_chunk *c, float *to, const float *from)
{
	struct call call = {.kind = CALL_COPY, .chunk = c, .to = to, .from = from};

	return run(u, &call);
}

int cuda_updater_copy(struct tern_updater *u, struct tern_updater_chunk *c, float *to,
	const float *from)
{
	if (c->opts.on_device)
		return copy_on_device(
			cuda_updater_of(u), cuda_updater_chunk_of(c), to, from);
	memcpy(to, from, c->opts.count * sizeof(*to));
	return 0;
}

int cuda_updater_get_state(struct tern_updater *u, struct tern_updater_chunk *chunk,
	const struct tern_updater_state *to)
{
	struct cuda_chunk *c = cuda_updater_chunk_of(chunk);
	int r = 0;

	if (c->m)
		r = copy_on_device(cuda_updater_of(u), c, to->m, c->m);
	if (c->v && r == 0)
		r = copy_on_device(cuda_updater_of(u), c, to->v, c->v);
	return r;
}

int cuda_updater_set_state(struct tern_updater *u, struct tern_updater_chunk *chunk,
	const struct tern_updater_state *from)
{
	struct cuda_chunk *c = cuda_updater_chunk_of(chunk);
	int r = 0;

	if (c->m)
		r = copy_on_device(cuda_updater_of(u), c, c->m, from->m);
	if (c->v && r == 0)
		r = copy_on_device(cuda_updater_of(u), c, c->v, from->v);
	return r;
}
