/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenario: both ends put into windows of each other, get from them and notify, while
 * connections are cut, fabrics break, processes are stalled or crash, requests are
 * cancelled, and windows are closed and made anew.
 *
 * A window consists of cells. At most one put is under way in a cell, and none while a
 * get reads the cell. So the contents of a cell are known, unless its last put failed. A
 * notification carries the number of the last put before it: when it is handled, every
 * cell that was not put to since must have its contents, and each notification is handled
 * once. After the end of a window, its memory is filled with CANARY, and must stay so.
 *
 * In the scenario gpu-windows some of the memory is in a simulated GPU, which fails in some
 * seeds.
 */
#include "tests/system/sim/scenario.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/window.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/util.h"
#include "tern-config.h"
#include "tests/harness/pattern.h"
#include "tests/system/storm/gpu.h"
#include "transport/context.h"
#include "transport/sim/sim.h"

#define CELLS      24u
#define CELL_BYTES 6000u
#define ROOM_BYTES ((uint64_t)CELLS * CELL_BYTES)
#define REQUESTS   120u
#define CANARY     0xa5

struct world;

enum kind { PUT, PUT_LIST, GET, NOTIFY, CLOSE };

struct saying {
	uint32_t number; /* of the notification */
	uint32_t cell;   /* of its own put; CELLS: it follows all puts before `serial` */
	uint64_t serial, generation;
};

/* A request of one end. */
struct ask {
	struct world *world;
	unsigned end;
	enum kind kind;
	struct tern_req req;
	struct tern_pool *pool; /* of `buf` */
	struct tern_buf buf;
	struct tern_piece pieces[3];
	unsigned piece_count;
	uint32_t cell;
	uint64_t serial;
	struct saying saying;
	bool noted, posted, ended, cancelled;
};

/* A cell as the end that puts into it knows it. */
struct cell {
	uint64_t serial; /* of the last put; 0: none */
	uint64_t bytes;
	bool busy, unknown;
	unsigned readers;
};

struct end {
	struct tern_sim_process *process;
	struct tern_context *ctx;
	struct tern_pool *pool;
	struct tern_pool *other; /* of the other kind; without a GPU: NULL */
	struct tern_peer *peer;
	struct tern_listener *listener, *listener_b;
	struct world *world;
	bool down;
	int status;

	/* The window of this end, into which the other one puts. */
	struct tern_buf room;
	struct tern_window *window;
	struct tern_window_desc desc;
	bool closing;

	/* This end's access to the window of the other. */
	struct tern_remote *remote;
	uint64_t generation; /* of the other end's window */
	struct cell cells[CELLS];
	uint64_t serial;
	uint32_t notes_sent;
	bool heard[2 * REQUESTS]; /* which of the peer's notifications were handled */
	struct ask asks[REQUESTS], close;
	unsigned asked, ended;
};

struct world {
	struct tern_sim *sim;
	const struct storm_memory *memory; /* of a simulated GPU; NULL: none */
	struct end ends[2];
	uint64_t next_step_ns, calm_ns;
	unsigned cut_permille, stall_permille, crash_permille, break_permille;
	unsigned cancel_permille, close_permille, gpu_fail_permille;
	bool crashed, broken;
	bool returns; /* connections can be restored */
	char error[200];
};

static void fail(struct world *w, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
static void fail(struct world *w, const char *fmt, ...)
{
	va_list ap;

	if (w->error[0])
		return;
	va_start(ap, fmt);
	vsnprintf(w->error, sizeof(w->error), fmt, ap);
	va_end(ap);
}

static struct end *other(struct end *e)
{
	return &e->world->ends[e == &e->world->ends[0]];
}

/* ---- contents ---- */

static bool is_on_gpu(const struct tern_buf *buf)
{
	return buf->bytes && tern_mem_kind(buf->mem) == TERN_MEM_CUDA;
}

/* The bytes of a buffer: in place, or a copy of those in the GPU. */
static uint8_t *bytes_of(const struct world *w, const struct tern_buf *buf)
{
	static uint8_t copy[ROOM_BYTES];

	if (!is_on_gpu(buf))
		return tern_buf_ptr(buf);
	w->memory->read(copy, tern_buf_cuda_address(buf), buf->bytes);
	return copy;
}

/* Puts back what was written into bytes_of(). */
static void put_back(
	const struct world *w, const struct tern_buf *buf, const uint8_t *bytes)
{
	if (is_on_gpu(buf))
		w->memory->write(tern_buf_cuda_address(buf), bytes, buf->bytes);
}

static void fill(const struct world *w, const struct tern_buf *buf, uint64_t serial)
{
	uint8_t *bytes = bytes_of(w, buf);

	pattern_fill(bytes, buf->bytes, serial, 0);
	put_back(w, buf, bytes);
}

static void fill_byte(const struct world *w, const struct tern_buf *buf, uint8_t byte)
{
	uint8_t *bytes = bytes_of(w, buf);

	if (buf->bytes)
		memset(bytes, byte, buf->bytes);
	put_back(w, buf, bytes);
}

static bool holds_byte(const struct world *w, const struct tern_buf *buf, uint8_t byte)
{
	return pattern_is_one_byte(bytes_of(w, buf), buf->bytes, byte);
}

/* True if a cell in the memory of the other end's window has its contents. */
static bool is_right(struct end *e, uint32_t cell)
{
	const struct cell *c = &e->cells[cell];
	struct tern_buf there = other(e)->room;

	there.offset += (uint64_t)cell * CELL_BYTES;
	there.bytes = c->bytes;
	return !c->serial || c->unknown ||
	       pattern_holds(bytes_of(e->world, &there), c->bytes, c->serial, 0);
}

/* ---- windows ---- */

static void make_window(struct end *e)
{
	struct end *o = other(e);

	fill_byte(e->world, &e->room, 0);
	if (tern_window_new(e->ctx, &e->room, TERN_WINDOW_READ | TERN_WINDOW_WRITE,
		    &e->window) < 0)
		tern_never("a window");
	tern_window_describe(e->window, &e->desc);
	e->closing = false;
	memset(o->cells, 0, sizeof(o->cells));
	o->generation++;
	if (tern_remote_open(o->peer, &e->desc, &o->remote) < 0)
		tern_never("a window of the peer");
}

static bool room_is_untouched(const struct end *e)
{
	return holds_byte(e->world, &e->room, CANARY);
}

static void closed(struct end *e)
{
	if (e->close.req.status)
		fail(e->world, "the end of a window has status %d", e->close.req.status);
	e->window = NULL;
	fill_byte(e->world, &e->room, CANARY);
}

/* When the window has ended, and no request of the other end refers to it any more, a new
 * one is made. */
static void maybe_reopen(struct end *e)
{
	struct end *o = other(e);

	if (!e->closing || e->window || e->down || o->down || e->world->crashed)
		return;
	for (unsigned i = 0; i < o->asked; i++)
		if (o->asks[i].posted && !o->asks[i].ended)
			return;
	if (!room_is_untouched(e))
		fail(e->world, "a window was written after its end");
	if (tern_remote_close(o->remote) < 0)
		fail(e->world, "a handle without requests is busy");
	make_window(e);
}

/* ---- the ends of requests ---- */

/* True if the driver of a GPU may have caused this status. */
static bool is_of_the_gpu(int status)
{
	return status < 0 && status != -EINPROGRESS && status != -EPROTO &&
	       status != -ESTALE && status != -ERANGE && status != -EACCES &&
	       status != -EINVAL && status != -ECANCELED;
}

static void check_status(const struct ask *a)
{
	const struct end *e = &a->world->ends[a->end];
	int status = a->req.status;
	bool may = status == 0 || e->down || a->world->crashed ||
		   (status == -ECANCELED && a->cancelled) ||
		   (a->world->gpu_fail_permille && a->kind != NOTIFY &&
			   is_of_the_gpu(status)) ||
		   (status == -ESTALE && a->kind != NOTIFY && a->world->close_permille) ||
		   /* The event DOWN comes after the end of the requests. */
		   (status < 0 && status != -ESTALE && status != -ECANCELED &&
			   a->world->stall_permille);

	if (status == -EINPROGRESS || !may)
		fail(a->world, "request of kind %d ended with %d", a->kind, status);
}

static void check_get(struct ask *a, struct cell *c)
{
	struct end *e = &a->world->ends[a->end];

	if (a->req.status == 0 && c->serial && !other(e)->closing &&
		!pattern_holds(bytes_of(a->world, &a->buf), c->bytes, c->serial, 0))
		fail(a->world, "a get of cell %u has not got put %llu", a->cell,
			(unsigned long long)c->serial);
}

static void on_done(struct tern_req *req)
{
	struct ask *a = req->arg;
	struct end *e = &a->world->ends[a->end];
	struct cell *c = &e->cells[a->cell < CELLS ? a->cell : 0];

	if (a->ended)
		fail(a->world, "a request ended twice");
	a->ended = true;
	check_status(a);
	if (a->kind == CLOSE) {
		closed(e);
		return;
	}
	e->ended++;
	if (a->kind == GET) {
		check_get(a, c);
		c->readers--;
	} else if (a->kind != NOTIFY) {
		c->busy = false;
		if (req->status)
			c->unknown = true;
		else if (!other(e)->closing && !is_right(e, a->cell))
			fail(a->world, "put %llu of cell %u has ended, and is not there",
				(unsigned long long)a->serial, a->cell);
	}
	if (a->noted && req->status == 0 && !other(e)->heard[a->saying.number])
		fail(a->world, "a notification has ended and was not handled");
	fill_byte(a->world, &a->buf, CANARY);
}

/* A notification of end `e` is handled at the other end. */
static void check_saying(struct end *e, const struct saying *s)
{
	if (s->generation != e->generation || other(e)->closing)
		return;
	for (uint32_t i = 0; i < CELLS; i++) {
		const struct cell *c = &e->cells[i];
		bool named = s->cell == CELLS || s->cell == i;

		if (named && c->serial <= s->serial && !is_right(e, i))
			fail(e->world, "a notification came before put %llu of cell %u%s",
				(unsigned long long)c->serial, i,
				c->busy ? ", which is under way" : "");
	}
}

static void on_note(struct tern_peer *peer, const void *data, size_t bytes, void *arg)
{
	struct end *e = arg;
	struct saying s;

	(void)peer;
	if (bytes != sizeof(s)) {
		fail(e->world, "a notification of %zu bytes", bytes);
		return;
	}
	memcpy(&s, data, sizeof(s));
	if (s.number >= TERN_ARRAY_SIZE(e->heard) || e->heard[s.number]) {
		fail(e->world, "notification %u was handled twice", s.number);
		return;
	}
	e->heard[s.number] = true;
	check_saying(other(e), &s);
}

/* ---- posting ---- */

static struct tern_rng *rng(const struct end *e)
{
	return tern_sim_rng(e->world->sim);
}

static const struct tern_note *make_note(
	struct end *e, struct ask *a, uint32_t cell, struct tern_note *note)
{
	a->saying = (struct saying){e->notes_sent++, cell, e->serial, e->generation};
	a->noted = true;
	*note = (struct tern_note){&a->saying, sizeof(a->saying)};
	return note;
}

static uint64_t random_bytes(struct end *e)
{
	switch (tern_rng_below(rng(e), 4)) {
	case 0:
		return tern_rng_below(rng(e), 65);
	case 1:
		return 511 + tern_rng_below(rng(e), 3);
	default:
		return tern_rng_below(rng(e), CELL_BYTES + 1);
	}
}

/* A list has the cell in three pieces, the last one first. */
static int put_list(struct end *e, struct ask *a, const struct tern_note *note)
{
	uint64_t third = a->buf.bytes / 3, at = 0;

	for (unsigned i = 0; i < 3; i++) {
		uint64_t bytes = i < 2 ? third : a->buf.bytes - at;

		a->pieces[2 - i] = (struct tern_piece){
			.local = {a->buf.mem, a->buf.offset + at, bytes},
			.remote_offset = (uint64_t)a->cell * CELL_BYTES + at};
		at += bytes;
	}
	return tern_put_list(e->remote, &a->req, a->pieces, 3, note);
}

static int post_put(struct end *e, struct ask *a)
{
	struct cell *c = &e->cells[a->cell];
	struct tern_note note;
	const struct tern_note *behind = NULL;

	*c = (struct cell){.serial = a->serial, .bytes = a->buf.bytes, .busy = true};
	fill(e->world, &a->buf, a->serial);
	if (tern_rng_below(rng(e), 3) == 0)
		behind = make_note(e, a, a->cell, &note);
	return a->kind == PUT_LIST ? put_list(e, a, behind)
				   : tern_put(e->remote, &a->req, &a->buf,
					     (uint64_t)a->cell * CELL_BYTES, behind);
}

static int post(struct end *e, struct ask *a)
{
	struct cell *c = &e->cells[a->cell];
	struct tern_note note;

	switch (a->kind) {
	case PUT:
	case PUT_LIST:
		a->serial = ++e->serial;
		return post_put(e, a);
	case GET:
		c->readers++;
		a->buf.bytes = c->bytes;
		return tern_get(
			e->remote, &a->req, &a->buf, (uint64_t)a->cell * CELL_BYTES);
	case NOTIFY:
		return tern_notify(e->peer, &a->req, make_note(e, a, CELLS, &note));
	case CLOSE:
		break;
	}
	return -EINVAL;
}

/* Posts one more request, if the cell that it needs is free. */
static void ask(struct end *e)
{
	static const enum kind kinds[] = {PUT, PUT, PUT, PUT_LIST, GET, GET, NOTIFY};
	struct ask *a = &e->asks[e->asked];
	uint32_t cell = (uint32_t)tern_rng_below(rng(e), CELLS);
	const struct cell *c = &e->cells[cell];
	int r;

	if (e->asked == REQUESTS || e->down || other(e)->closing)
		return;
	*a = (struct ask){.world = e->world,
		.end = (unsigned)(e - e->world->ends),
		.kind = kinds[tern_rng_below(rng(e), TERN_ARRAY_SIZE(kinds))],
		.cell = cell};
	a->req.done = on_done;
	a->req.arg = a;
	if (a->kind != NOTIFY && (c->busy || (a->kind == GET ? c->unknown : c->readers)))
		return;
	a->pool = e->other && tern_rng_below(rng(e), 2) ? e->other : e->pool;
	if (tern_pool_get(a->pool, a->kind == GET ? c->bytes : random_bytes(e), &a->buf) <
		0)
		return;
	e->asked++;
	a->posted = true;
	r = post(e, a);
	if (r < 0)
		fail(e->world, "a request of kind %d was refused: %d", a->kind, r);
}

static void cancel_one(struct end *e)
{
	struct ask *a;

	if (!e->asked)
		return;
	a = &e->asks[tern_rng_below(rng(e), e->asked)];
	if (a->posted && !a->ended) {
		a->cancelled = true;
		if (a->kind == PUT || a->kind == PUT_LIST)
			e->cells[a->cell].unknown = true;
		tern_cancel(&a->req);
	}
}

static void close_window(struct end *e)
{
	bool may_end = e->world->stall_permille; /* the session, by other causes */
	uint64_t timeout_ns = TERN_NEVER;

	if (e->closing || e->down)
		return;
	/* A short time is over while the other end still has requests under way. On a
	 * fabric whose connections do not return, and with GPU memory, that would end the
	 * session. */
	if ((may_end || (e->world->returns && !e->world->memory)) &&
		tern_rng_below(rng(e), 2))
		timeout_ns = 1 + tern_rng_below(rng(e), 400 * TERN_NS_PER_US);
	e->closing = true;
	e->close = (struct ask){.world = e->world,
		.end = (unsigned)(e - e->world->ends),
		.kind = CLOSE,
		.cell = CELLS,
		.posted = true,
		.req = {.done = on_done, .arg = &e->close}};
	if (tern_window_close(e->window, &e->close.req, timeout_ns) < 0)
		fail(e->world, "a window cannot be closed");
}

/* ---- the world ---- */

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct end *e = arg;

	(void)peer;
	if (event != TERN_PEER_DOWN)
		return;
	e->down = true;
	e->status = status;
}

static struct tern_peer_opts peer_opts(struct end *e)
{
	return (struct tern_peer_opts){.event = on_event, .arg = e, .notified = on_note};
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct end *e = arg;
	struct tern_peer_opts opts = peer_opts(e);

	e->peer = peer;
	tern_peer_set_opts(peer, &opts);
}

static void make_end(struct world *w, struct end *e, const char *name, uint64_t seed)
{
	bool on_gpu = w->memory && (seed % 3 + 1) & (e == &w->ends[0] ? 1 : 2);
	struct tern_pool_opts pool = {.slab_bytes = 2u << 20,
		.max_bytes = 4u << 20,
		.kind = on_gpu ? TERN_MEM_CUDA : TERN_MEM_HOST};
	struct tern_pool_opts other_kind = pool;
	struct tern_context_opts opts = {.eager_bytes = 512,
		.reconnect_ns = 100 * TERN_NS_PER_MS,
		.connect_ns = TERN_NS_PER_S,
		.rail_count = seed % 3 == 2 ? 4 : 1,
		.suspect_ns = 20 * TERN_NS_PER_MS,
		.dead_ns = 200 * TERN_NS_PER_MS};

	e->world = w;
	e->process = tern_sim_process_new(w->sim, name);
	other_kind.kind = on_gpu ? TERN_MEM_HOST : TERN_MEM_CUDA;
	if (tern_pool_new(tern_sim_domain(e->process), &pool, &e->pool) < 0 ||
		(w->memory && tern_pool_new(tern_sim_domain(e->process), &other_kind,
				      &e->other) < 0) ||
		tern_pool_get(e->pool, ROOM_BYTES, &e->room) < 0 ||
		tern_context_new_in(tern_sim_domain(e->process), &opts,
			tern_sim_env(e->process), &e->ctx) < 0)
		tern_never("an end of the windows");
	e->ctx->first_seq = UINT32_MAX - 40;
	tern_sim_drive(e->process, e->ctx);
}

static bool have_met(void *arg)
{
	struct world *w = arg;

	return (w->ends[0].peer && *tern_peer_fabric(w->ends[1].peer)) || w->ends[1].down;
}

static bool bring_up(struct world *w, uint64_t seed, bool two)
{
	struct tern_peer_opts opts;

	make_end(w, &w->ends[0], "zero", seed);
	make_end(w, &w->ends[1], "one", seed);
	tern_listen(w->ends[0].ctx, "sim://windows", NULL, on_accept, &w->ends[0],
		&w->ends[0].listener);
	if (two)
		tern_listen(w->ends[0].ctx, "sim-b://windows", NULL, on_accept,
			&w->ends[0], &w->ends[0].listener_b);
	opts = peer_opts(&w->ends[1]);
	tern_connect(w->ends[1].ctx,
		two ? "sim://windows+sim-b://windows" : "sim://windows", &opts,
		&w->ends[1].peer);
	if (tern_sim_run(w->sim, have_met, w, 10 * TERN_NS_PER_S) < 0 ||
		w->ends[1].down) {
		fail(w, "the peers did not meet");
		return false;
	}
	for (unsigned i = 0; i < 2; i++)
		make_window(&w->ends[i]);
	return true;
}

static void disturb(struct world *w)
{
	struct tern_rng *r = tern_sim_rng(w->sim);

	if (tern_sim_now_ns(w->sim) > w->calm_ns) {
		if (w->broken)
			tern_sim_break(w->sim, w->broken = false);
		return;
	}
	if (tern_sim_dice(w->sim, w->cut_permille))
		tern_sim_cut(w->sim);
	if (tern_sim_dice(w->sim, w->break_permille)) {
		w->broken = !w->broken;
		tern_sim_break(w->sim, w->broken);
	}
	if (tern_sim_dice(w->sim, w->stall_permille))
		tern_sim_stall(w->ends[tern_rng_below(r, 2)].process,
			tern_rng_below(r, 30 * TERN_NS_PER_MS));
	if (!w->crashed && tern_sim_dice(w->sim, w->crash_permille)) {
		w->crashed = true;
		tern_sim_crash(w->ends[tern_rng_below(r, 2)].process);
	}
}

static void step(struct world *w)
{
	for (unsigned i = 0; i < 2; i++) {
		struct end *e = &w->ends[i];

		if (tern_sim_crashed(e->process) || e->down)
			continue;
		maybe_reopen(e);
		for (uint64_t n = tern_rng_below(rng(e), 4); n > 0; n--)
			ask(e);
		if (tern_sim_dice(w->sim, w->cancel_permille))
			cancel_one(e);
		if (tern_sim_dice(w->sim, w->close_permille))
			close_window(e);
	}
	if (tern_sim_dice(w->sim, w->gpu_fail_permille))
		w->memory->refuse((unsigned)tern_rng_below(tern_sim_rng(w->sim), 64));
	disturb(w);
}

static bool end_is_over(const struct end *e)
{
	return tern_sim_crashed(e->process) ||
	       ((e->down || e->asked == REQUESTS) && e->ended == e->asked &&
		       (!e->closing || !e->window || e->close.ended));
}

static bool is_over(void *arg)
{
	struct world *w = arg;
	bool gone = w->crashed || w->ends[0].down || w->ends[1].down;

	if (w->error[0])
		return true;
	if (tern_sim_now_ns(w->sim) >= w->next_step_ns) {
		w->next_step_ns = tern_sim_now_ns(w->sim) + 20 * TERN_NS_PER_US;
		step(w);
		tern_sim_rouse(w->ends[0].process);
		tern_sim_rouse(w->ends[1].process);
	}
	for (unsigned i = 0; i < 2; i++) {
		const struct end *e = &w->ends[i];

		if (!end_is_over(e) ||
			(gone && !e->down && !tern_sim_crashed(e->process)))
			return false;
	}
	return true;
}

static bool run(struct world *w)
{
	uint64_t limit = tern_sim_now_ns(w->sim) + 4 * TERN_NS_PER_S;
	int r;

	w->calm_ns = tern_sim_now_ns(w->sim) + TERN_NS_PER_S / 2;
	do
		r = tern_sim_run(w->sim, is_over, w, 40 * TERN_NS_PER_US);
	while (r == -ETIMEDOUT && tern_sim_now_ns(w->sim) < limit);
	if (r < 0)
		fail(w, "it hangs: %u of %u and %u of %u requests have ended",
			w->ends[0].ended, w->ends[0].asked, w->ends[1].ended,
			w->ends[1].asked);
	return !w->error[0];
}

static void final_checks(struct world *w)
{
	bool whole = !w->crashed && !w->ends[0].down && !w->ends[1].down;

	if (!whole && !w->crashed && !w->stall_permille)
		fail(w, "a peer went down though links were only cut");
	for (unsigned i = 0; whole && i < 2; i++) {
		struct end *e = &w->ends[i];

		for (uint32_t c = 0; !other(e)->closing && c < CELLS; c++)
			if (!is_right(e, c))
				fail(w, "cell %u has not kept its contents", c);
	}
	for (unsigned i = 0; i < 2; i++)
		if (w->ends[i].close.ended && !w->ends[i].window &&
			!room_is_untouched(&w->ends[i]))
			fail(w, "a window was written after its end");
}

static void take_down(struct world *w)
{
	for (int i = 1; i >= 0; i--) {
		tern_sim_forget(w->ends[i].process, w->ends[i].ctx);
		tern_context_free(w->ends[i].ctx);
	}
	for (int i = 1; i >= 0; i--) {
		struct end *e = &w->ends[i];

		for (unsigned j = 0; j < e->asked; j++) {
			struct ask *a = &e->asks[j];

			if (a->ended && !holds_byte(w, &a->buf, CANARY))
				fail(w, "a buffer was touched after its end");
			tern_pool_put(a->pool, &a->buf);
		}
		tern_pool_put(e->pool, &e->room);
		tern_pool_free(e->pool);
		tern_pool_free(e->other);
		tern_sim_process_free(e->process);
	}
}

/* memory: of a simulated GPU, whose driver is cuda_api; NULL: there is none. */
static bool scenario(uint64_t seed, bool verbose, uint64_t *hash,
	const struct storm_memory *memory, const void *cuda_api)
{
	const uint32_t kinds[] = {TERN_CAP_PUT, TERN_CAP_PUT | TERN_CAP_GET,
		TERN_CAP_GET | TERN_CAP_PEEK | TERN_CAP_BOUND |
			(seed / 4 % 2 ? 0 : TERN_CAP_WINDOW_PUT | TERN_CAP_LANDS),
		TERN_CAP_PUT | TERN_CAP_GET | TERN_CAP_PEEK |
			(seed / 4 % 2 ? 0 : TERN_CAP_LANDS)};
	static const unsigned free_kinds[] = {0, 1, 3};
	bool two = !(kinds[seed % 4] & TERN_CAP_BOUND), good;
	struct tern_sim_opts opts = {.seed = seed,
		.caps = kinds[seed % 4],
		.caps_b = kinds[free_kinds[seed / 4 % 3]],
		.eagain_permille = seed % 3 ? 100 : 0,
		.refuse_permille = 100,
		.slow_permille = seed % 3 == 2 ? 200 : 0,
		.delay_max_ns = 50 * TERN_NS_PER_US,
		.chunk_bytes = 1500,
		.eager_bytes = 512,
		.bulk_bytes = seed % 5 < 2 ? 3000 : 0,
		.cuda_api = cuda_api,
		.log = verbose ? print_line : NULL};
	struct world *w = calloc(1, sizeof(*w));

	tern_assert(w);
	w->memory = memory;
	w->cut_permille = seed % 2 ? 15 : 0;
	w->stall_permille = seed % 11 == 3 ? 20 : 0;
	w->crash_permille = seed % 13 == 4 ? 10 : 0;
	w->break_permille = two && seed / 12 % 2 ? 10 : 0;
	w->cancel_permille = seed % 5 == 1 ? 200 : 0;
	w->close_permille = seed % 3 == 1 ? 20 : 0;
	w->gpu_fail_permille = memory && seed % 5 == 4 ? 100 : 0;
	w->returns = two;
	w->sim = tern_sim_new(&opts);
	good = bring_up(w, seed, two) && run(w);
	if (good)
		final_checks(w);
	take_down(w);
	if (w->error[0])
		fprintf(stderr, "windows: %s\n", w->error);
	good = !w->error[0];
	*hash = tern_sim_hash(w->sim);
	tern_sim_free(w->sim);
	free(w);
	return good;
}

bool scenario_windows(uint64_t seed, bool verbose, uint64_t *hash)
{
	return scenario(seed, verbose, hash, NULL, NULL);
}

#if TERN_HAVE_CUDA
bool scenario_gpu_windows(uint64_t seed, bool verbose, uint64_t *hash)
{
	const struct storm_memory *memory = storm_gpu_open(seed, false);
	bool good = scenario(seed, verbose, hash, memory, storm_gpu_api());

	storm_gpu_close();
	return good;
}
#endif
