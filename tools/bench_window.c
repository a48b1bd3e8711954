/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The test window: the receiver has a window, and the sender puts into it and gets from it,
 * between two-sided sends of the same size. Batches of each operation take turns, so that
 * what the machine does meanwhile meets all of them alike; with one in flight a batch is
 * one operation. The last batch is one of sends: when the receiver has answered them all,
 * nothing else is under way.
 *
 * A put ends when its bytes are in the window, and one with a notification when the owner
 * has handled that, so both times contain a message and its answer. The send that they are
 * compared with is answered by 8 bytes of the other program (bench_end.c).
 */
#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "tools/bench_end.h"

#define BATCHES     8u /* how often each slot is used in a batch, with several slots */
#define BATCH_BYTES (1ull << 30)

/* Buffers and the request of one put or get. */
struct op {
	struct bench_window *window;
	struct tern_buf from, to;
	struct tern_req req;
	uint64_t n; /* number of the operation, of its kind */
	uint64_t start;
};

struct bench_window {
	struct bench_end *end;
	struct tern_buf desc;
	struct tern_req desc_req;
	struct tern_buf memory; /* receiver: of the window */
	struct tern_remote *remote;
	struct op *ops;
	enum bench_op kind;          /* of the present batch */
	uint64_t first, count;       /* of its operations: the number of the first one */
	uint64_t started, completed; /* operations of this batch */
	uint64_t start;              /* of this batch, by bench_end_clock() */
};

static void begin_batch(struct bench_window *w);

static uint64_t offset_of(const struct op *op)
{
	return (uint64_t)(op - op->window->ops) * op->window->end->config->size;
}

static void start_op(struct op *op, uint64_t n)
{
	static const struct tern_note note = {.data = "landed", .bytes = 6};
	struct bench_window *w = op->window;
	struct bench_end *e = w->end;
	int r;

	op->n = n;
	op->start = bench_end_clock(e);
	if (w->kind == BENCH_GET)
		r = tern_get(w->remote, &op->req, &op->to, offset_of(op));
	else
		r = tern_put(w->remote, &op->req, &op->from, offset_of(op),
			w->kind == BENCH_PUT ? NULL : &note);
	if (r)
		bench_end_fail(e, r, "starting a put or get: %s", tern_status_text(r));
}

/* Starts the next batch. The first pass over all kinds is the warm-up. */
static void next_batch(struct bench_window *w)
{
	const struct bench_config *c = w->end->config;
	uint64_t most = c->inflight == 1 ? 1 : BATCHES * (uint64_t)c->inflight;

	if (++w->kind == BENCH_OPS) {
		w->kind = 0;
		w->first += w->count;
		most = TERN_MIN(most, TERN_MAX(BATCH_BYTES / c->size, c->inflight));
		w->count = TERN_MIN(w->end->total - w->first, most);
	}
	if (w->first < w->end->total)
		begin_batch(w);
}

static void completed(struct bench_window *w)
{
	struct bench_end *e = w->end;

	if (++w->completed < w->count)
		return;
	if (w->first >= e->config->warmup)
		e->op_took[w->kind] += bench_end_clock(e) - w->start;
	next_batch(w);
}

static void op_done(struct tern_req *req)
{
	struct op *op = req->arg;
	struct bench_window *w = op->window;
	struct bench_end *e = w->end;
	enum bench_op kind = w->kind;

	if (req->status) {
		bench_end_fail(e, req->status, "a put or get: %s",
			tern_status_text(req->status));
		return;
	}
	if (op->n >= e->config->warmup)
		e->op_trips[kind][op->n - e->config->warmup] =
			bench_end_clock(e) - op->start;
	e->moved++;
	if (kind == BENCH_GET && op->n < e->config->inflight &&
		memcmp(tern_buf_ptr(&op->from), tern_buf_ptr(&op->to), op->to.bytes) != 0)
		bench_end_fail(e, -EBADMSG, "get %llu has brought wrong contents",
			(unsigned long long)op->n);
	else if (w->started < w->count)
		start_op(op, w->first + w->started++);
	completed(w);
}

static void begin_batch(struct bench_window *w)
{
	struct bench_end *e = w->end;

	w->started = w->completed = 0;
	w->start = bench_end_clock(e);
	if (w->kind == BENCH_SEND) {
		e->send_limit += w->count;
		bench_end_send_more(e);
		return;
	}
	while (!e->usage.status && w->started < w->count &&
		w->started < e->config->inflight) {
		struct op *op = &w->ops[w->started];

		start_op(op, w->first + w->started++);
	}
}

void bench_window_sent(struct bench_end *e)
{
	completed(e->window);
}

/* ---- the descriptor, which the receiver sends ---- */

static void desc_moved(struct tern_req *req)
{
	struct bench_window *w = req->arg;
	struct bench_end *e = w->end;
	struct tern_window_desc desc;
	int r = req->status;

	if (r == 0 && !e->sender)
		return;
	if (r == 0 && req->bytes != sizeof(desc))
		r = -EPROTO;
	if (r == 0) {
		memcpy(&desc, tern_buf_ptr(&w->desc), sizeof(desc));
		r = tern_remote_open(e->peer, &desc, &w->remote);
	}
	if (r)
		bench_end_fail(e, r, "opening the window: %s", tern_status_text(r));
	else
		begin_batch(w);
}

int bench_window_start(struct bench_end *e)
{
	const unsigned access = TERN_WINDOW_READ | TERN_WINDOW_WRITE;
	struct bench_window *w = e->window;
	struct tern_tensor tensor = {
		.buf = w->desc, .shape = tern_shape_1d(TERN_U8, w->desc.bytes)};
	struct tern_window_desc desc;
	struct tern_window *window;
	uint64_t key = tern_key("bench.window");
	int r;

	if (e->sender) {
		r = tern_recv(e->channel, &w->desc_req, key, 0, &w->desc, NULL, 0);
	} else {
		r = tern_window_new(e->ctx, &w->memory, access, &window);
		if (r == 0) {
			tern_window_describe(window, &desc);
			memcpy(tern_buf_ptr(&w->desc), &desc, sizeof(desc));
			r = tern_send(e->channel, &w->desc_req, key, 0, &tensor, NULL, 0);
		}
	}
	return r ? bench_end_fail(e, r, "making the window: %s", tern_status_text(r)) : 0;
}

/* ---- memory ---- */

static int get_ops(struct bench_window *w)
{
	struct bench_end *e = w->end;
	uint64_t size = e->config->size;

	w->ops = calloc(e->config->inflight, sizeof(*w->ops));
	if (!w->ops)
		return -ENOMEM;
	for (unsigned k = 0; k < BENCH_OPS; k++) {
		if (k == BENCH_SEND)
			continue;
		e->op_trips[k] = calloc(e->config->rounds, sizeof(*e->op_trips[k]));
		if (!e->op_trips[k])
			return -ENOMEM;
	}
	for (uint32_t i = 0; i < e->config->inflight; i++) {
		struct op *op = &w->ops[i];
		int r = tern_pool_get(e->pool, size, &op->from);

		if (r == 0)
			r = tern_pool_get(e->pool, size, &op->to);
		if (r)
			return r;
		op->window = w;
		op->req.done = op_done;
		op->req.arg = op;
		memset(tern_buf_ptr(&op->from), (int)(i % 251) + 1, size);
		memset(tern_buf_ptr(&op->to), 0, size);
	}
	return 0;
}

int bench_window_prepare(struct bench_end *e)
{
	struct bench_window *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return -ENOMEM;
	e->window = w;
	w->end = e;
	w->count = e->config->warmup;
	w->desc_req.done = desc_moved;
	w->desc_req.arg = w;
	r = tern_pool_get(e->pool, sizeof(struct tern_window_desc), &w->desc);
	if (r == 0)
		r = e->sender
			    ? get_ops(w)
			    : tern_pool_get(e->pool,
				      e->config->size * e->config->inflight, &w->memory);
	return r;
}

void bench_window_close(struct bench_end *e)
{
	struct bench_window *w = e->window;

	for (uint32_t i = 0; w && w->ops && i < e->config->inflight; i++) {
		if (w->ops[i].from.mem)
			tern_pool_put(e->pool, &w->ops[i].from);
		if (w->ops[i].to.mem)
			tern_pool_put(e->pool, &w->ops[i].to);
	}
	if (!w)
		return;
	if (w->memory.mem)
		tern_pool_put(e->pool, &w->memory);
	if (w->desc.mem)
		tern_pool_put(e->pool, &w->desc);
	for (unsigned k = 0; k < BENCH_OPS; k++)
		if (k != BENCH_SEND)
			free(e->op_trips[k]);
	free(w->ops);
	free(w);
}
