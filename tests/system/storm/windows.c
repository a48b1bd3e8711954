/* SPDX-License-Identifier: Apache-2.0 */
/*
 * windows INSTANCE [SEEDS [FIRST]]: both ends of a connection put into a window of each
 * other, get from it and notify each other over a real fabric, while connections are cut
 * and windows are closed and made anew. It is the small brother of the simulator's
 * scenario `windows`, which has more faults, and a time of its own.
 *
 * A window consists of cells. At most one request is under way in a cell, so its contents
 * are known unless its last put has failed. A notification carries the number of the last
 * put before it: when it is handled, all cells that no later put has changed must have
 * their contents. Each notification that has ended with 0 was handled once, and no
 * notification is handled twice. The memory of a window that has ended must not change.
 *
 * On fabrics whose connections do not return (shm) a cut ends the session, its requests
 * end with an error, and the ends connect again.
 */
#include "tests/harness/instance.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/tern.h>
#include <tern/window.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/util.h"
#include "rendezvous/rendezvous.h"
#include "tests/harness/pattern.h"

#define CELLS      16u
#define CELL_BYTES 40000u
#define ROOM_BYTES ((uint64_t)CELLS * CELL_BYTES)
#define ASKS       400u /* requests of each end */
#define FILLER     0xa5
#define HANG_NS    (60 * TERN_NS_PER_S)

struct world;

enum kind { PUT, GET, NOTIFY };

struct saying {
	uint32_t number; /* of the notification */
	uint32_t cell;   /* of its own put; CELLS: it follows all puts up to `put` */
	uint64_t put, generation;
};

struct ask {
	struct end *end;
	enum kind kind;
	struct tern_req req;
	struct tern_buf buf;
	uint32_t cell;
	uint64_t put;
	struct saying saying;
	bool noted, ended;
};

/* A cell as the end that puts into it knows it. */
struct cell {
	uint64_t put; /* number of the last put; 0: none */
	uint64_t bytes;
	bool busy, unknown;
};

struct end {
	struct world *world;
	struct end *other;
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_pool *pool;
	struct tern_peer *peer;
	bool down;
	struct tern_buf room; /* the memory of this end's window */
	struct tern_window *window;
	struct tern_req close;
	bool closing;
	/* This end's access to the other one's window. */
	struct tern_remote *remote;
	uint64_t generation;
	struct cell cells[CELLS];
	uint64_t put_count;
	uint32_t note_count;
	unsigned char heard[ASKS]; /* how often each note of the other was handled */
	struct ask asks[ASKS];
	unsigned asked, ended;
};

struct world {
	uint64_t seed;
	struct tern_rng rng;
	const struct instance *instance;
	struct tern_listener *listener;
	struct end ends[2];
	unsigned cut_count, close_count, failed_count;
	unsigned ended_at_cut; /* how many requests had ended at the last cut */
};

#define REQUIRE(w, cond, what)                                                           \
	do {                                                                             \
		if (!(cond)) {                                                           \
			fprintf(stderr, "windows: seed %llu: %s\n",                      \
				(unsigned long long)(w)->seed, what);                    \
			exit(1);                                                         \
		}                                                                        \
	} while (0)

static void progress(struct world *w)
{
	for (unsigned i = 0; i < 2; i++)
		REQUIRE(w, tern_progress(w->ends[i].ctx) >= 0, "tern_progress");
}

#define PROGRESS_UNTIL(w, cond, what)                                                    \
	do {                                                                             \
		uint64_t until_ns_ = tern_clock_ns() + HANG_NS;                          \
		while (!(cond)) {                                                        \
			progress(w);                                                     \
			REQUIRE(w, tern_clock_ns() < until_ns_, what);                   \
		}                                                                        \
	} while (0)

static uint64_t below(struct world *w, uint64_t n)
{
	return tern_rng_below(&w->rng, n);
}

/* ---- contents ---- */

/* True if a cell in the other end's memory has its contents. */
static bool is_right(const struct end *e, uint32_t cell)
{
	const struct cell *c = &e->cells[cell];
	const uint8_t *room = tern_buf_ptr(&e->other->room);

	return !c->put || c->unknown ||
	       pattern_holds(room + (uint64_t)cell * CELL_BYTES, c->bytes, c->put, 0);
}

static void make_window(struct end *e)
{
	struct tern_window_desc desc;
	struct end *o = e->other;

	memset(tern_buf_ptr(&e->room), 0, ROOM_BYTES);
	REQUIRE(e->world,
		tern_window_new(e->ctx, &e->room, TERN_WINDOW_READ | TERN_WINDOW_WRITE,
			&e->window) == 0,
		"tern_window_new");
	tern_window_describe(e->window, &desc);
	e->closing = false;
	memset(o->cells, 0, sizeof(o->cells));
	o->generation++;
	REQUIRE(e->world, tern_remote_open(o->peer, &desc, &o->remote) == 0,
		"tern_remote_open");
}

static void on_closed(struct tern_req *req)
{
	struct end *e = req->arg;

	REQUIRE(e->world, req->status == 0, "the end of a window has failed");
	e->window = NULL;
	memset(tern_buf_ptr(&e->room), FILLER, ROOM_BYTES);
}

static void close_window(struct end *e, uint64_t timeout_ns)
{
	e->closing = true;
	e->close = (struct tern_req){.done = on_closed, .arg = e};
	REQUIRE(e->world, tern_window_close(e->window, &e->close, timeout_ns) == 0,
		"tern_window_close");
	e->world->close_count++;
}

static void check_room(const struct end *e)
{
	REQUIRE(e->world, pattern_is_one_byte(tern_buf_ptr(&e->room), ROOM_BYTES, FILLER),
		"a window was written after its end");
}

/* ---- notifications ---- */

static void check_saying(const struct end *e, const struct saying *s)
{
	if (s->generation != e->generation || e->other->closing)
		return;
	for (uint32_t i = 0; i < CELLS; i++)
		if ((s->cell == CELLS || s->cell == i) && e->cells[i].put <= s->put)
			REQUIRE(e->world, is_right(e, i),
				"a notification came before a put that it follows");
}

static void on_note(struct tern_peer *peer, const void *data, size_t bytes, void *arg)
{
	struct end *e = arg;
	struct saying s;

	(void)peer;
	REQUIRE(e->world, bytes == sizeof(s), "a notification of another size");
	memcpy(&s, data, sizeof(s));
	REQUIRE(e->world, s.number < e->other->note_count, "a notification of nobody");
	REQUIRE(e->world, !e->heard[s.number]++, "a notification was handled twice");
	check_saying(e->other, &s);
}

/* ---- requests ---- */

static bool returns(const struct world *w)
{
	return strcmp(w->instance->fabric, "shm") != 0;
}

static void on_done(struct tern_req *req)
{
	struct ask *a = req->arg;
	struct end *e = a->end;
	struct world *w = e->world;
	struct cell *c = &e->cells[a->cell % CELLS];
	bool stale = req->status == -ESTALE && a->kind != NOTIFY && e->other->closing;

	REQUIRE(w, !a->ended, "a request ended twice");
	a->ended = true;
	e->ended++;
	w->failed_count += req->status < 0;
	REQUIRE(w, req->status == 0 || stale || !returns(w), "a request has failed");
	if (a->noted && req->status == 0)
		REQUIRE(w, e->other->heard[a->saying.number] == 1,
			"a notification has ended and was not handled");
	if (a->kind != NOTIFY)
		c->busy = false;
	if (a->kind == PUT && req->status)
		c->unknown = true;
	if (a->kind == PUT && req->status == 0 && !e->other->closing)
		REQUIRE(w, is_right(e, a->cell), "a put has ended and is not there");
	if (a->kind == GET && req->status == 0 && c->put && !c->unknown &&
		!e->other->closing)
		REQUIRE(w, pattern_holds(tern_buf_ptr(&a->buf), c->bytes, c->put, 0),
			"a get has other bytes than the last put");
	tern_pool_put(e->pool, &a->buf);
}

static const struct tern_note *make_note(struct ask *a, struct tern_note *note)
{
	struct end *e = a->end;

	a->saying = (struct saying){e->note_count++, a->kind == NOTIFY ? CELLS : a->cell,
		e->put_count, e->generation};
	a->noted = true;
	*note = (struct tern_note){&a->saying, sizeof(a->saying)};
	return note;
}

static int post_put(struct ask *a)
{
	struct end *e = a->end;
	struct tern_note note;
	bool noted = below(e->world, 3) == 0;

	a->put = ++e->put_count;
	pattern_fill(tern_buf_ptr(&a->buf), a->buf.bytes, a->put, 0);
	e->cells[a->cell] =
		(struct cell){.put = a->put, .bytes = a->buf.bytes, .busy = true};
	return tern_put(e->remote, &a->req, &a->buf, (uint64_t)a->cell * CELL_BYTES,
		noted ? make_note(a, &note) : NULL);
}

static int post(struct ask *a)
{
	struct end *e = a->end;
	struct tern_note note;

	if (a->kind == PUT)
		return post_put(a);
	if (a->kind == NOTIFY)
		return tern_notify(e->peer, &a->req, make_note(a, &note));
	e->cells[a->cell].busy = true;
	return tern_get(e->remote, &a->req, &a->buf, (uint64_t)a->cell * CELL_BYTES);
}

/* Posts one more request, if its cell is free. */
static void ask(struct end *e)
{
	static const enum kind kinds[] = {PUT, PUT, PUT, GET, NOTIFY};
	struct world *w = e->world;
	struct ask *a = &e->asks[e->asked];
	uint64_t bytes = below(w, 3) ? below(w, CELL_BYTES + 1) : below(w, 600);

	if (e->asked == ASKS || e->down || e->other->closing || !e->remote)
		return;
	*a = (struct ask){.end = e,
		.kind = kinds[below(w, TERN_ARRAY_SIZE(kinds))],
		.cell = (uint32_t)below(w, CELLS),
		.req = {.done = on_done, .arg = a}};
	if (a->kind != NOTIFY && e->cells[a->cell].busy)
		return;
	if (a->kind == GET)
		bytes = e->cells[a->cell].bytes;
	if (tern_pool_get(e->pool, bytes, &a->buf) < 0)
		return;
	e->asked++;
	REQUIRE(w, post(a) == 0, "a request was refused");
}

/* ---- connections ---- */

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct end *e = arg;

	(void)peer;
	(void)status;
	if (event == TERN_PEER_DOWN)
		e->down = true;
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct end *e = arg;

	e->peer = peer;
}

static void join(struct world *w)
{
	struct tern_peer_opts opts = {
		.event = on_event, .arg = &w->ends[1], .notified = on_note};

	REQUIRE(w,
		tern_connect(w->ends[1].ctx, tern_listener_address(w->listener), &opts,
			&w->ends[1].peer) == 0,
		"tern_connect");
	PROGRESS_UNTIL(w,
		w->ends[0].peer && *tern_peer_fabric(w->ends[1].peer) && !w->ends[1].down,
		"the ends do not meet");
}

/* Ends a session that does not return, and its windows, and begins the next one. */
static void join_again(struct world *w)
{
	struct end *ends = w->ends;

	PROGRESS_UNTIL(w,
		ends[0].down && ends[1].down && ends[0].ended == ends[0].asked &&
			ends[1].ended == ends[1].asked,
		"a session that does not end");
	for (unsigned i = 0; i < 2; i++) {
		if (!ends[i].closing)
			close_window(&ends[i], TERN_NEVER);
		tern_peer_free(ends[i].peer);
		ends[i].peer = NULL;
		ends[i].remote = NULL;
		ends[i].down = false;
	}
	PROGRESS_UNTIL(w, !ends[0].window && !ends[1].window, "a window does not end");
	join(w);
	for (unsigned i = 0; i < 2; i++) {
		check_room(&ends[i]);
		make_window(&ends[i]);
	}
}

/* ---- the storm ---- */

/* Once the window has ended, and no request of the other end refers to it any more, a new
 * one is made. */
static void maybe_reopen(struct end *e)
{
	struct end *o = e->other;

	if (!e->closing || e->window || o->ended < o->asked || e->down || o->down)
		return;
	check_room(e);
	REQUIRE(e->world, tern_remote_close(o->remote) == 0, "tern_remote_close");
	make_window(e);
}

static void disturb(struct world *w)
{
	struct end *e = &w->ends[below(w, 2)];
	unsigned ended = w->ends[0].ended + w->ends[1].ended;

	if (e->down || e->other->down)
		return;
	if (ended >= w->ended_at_cut + 20 && below(w, 100) < 5) {
		w->ended_at_cut = ended;
		w->cut_count++;
		tern_peer_cut(e->peer, -ECONNRESET);
	} else if (below(w, 100) < 2 && !e->closing) {
		close_window(e, below(w, 2) ? TERN_NEVER : 1 + below(w, 200000));
	}
}

static bool is_over(const struct end *e)
{
	return e->asked == ASKS && e->ended == ASKS && !e->closing && !e->down;
}

static void blow(struct world *w)
{
	uint64_t until_ns = tern_clock_ns() + HANG_NS;

	while (!is_over(&w->ends[0]) || !is_over(&w->ends[1])) {
		for (unsigned i = 0; i < 2; i++) {
			for (uint64_t n = below(w, 4); n > 0; n--)
				ask(&w->ends[i]);
			maybe_reopen(&w->ends[i]);
		}
		if (w->ends[0].asked < ASKS || w->ends[1].asked < ASKS)
			disturb(w);
		progress(w);
		if (w->ends[0].down || w->ends[1].down) {
			REQUIRE(w, !returns(w), "a session has ended");
			join_again(w);
		}
		REQUIRE(w, tern_clock_ns() < until_ns, "it hangs");
	}
	for (unsigned i = 0; i < 2 * CELLS; i++)
		REQUIRE(w, is_right(&w->ends[i % 2], i / 2),
			"a cell has not kept its contents");
}

static void make_end(struct world *w, unsigned i)
{
	const struct tern_pool_opts pool = {
		.slab_bytes = 4u << 20, .max_bytes = 64u << 20};
	const struct tern_context_opts opts = {.eager_bytes = 512,
		.connect_ns = HANG_NS,
		.reconnect_ns = HANG_NS,
		.log_level = TERN_LOG_ERROR};
	struct end *e = &w->ends[i];

	e->world = w;
	e->other = &w->ends[!i];
	REQUIRE(w,
		tern_domain_new_hooked(
			&w->instance->opts, &w->instance->hooks, &e->domain) == 0 &&
			tern_pool_new(e->domain, &pool, &e->pool) == 0 &&
			tern_pool_get(e->pool, ROOM_BYTES, &e->room) == 0 &&
			tern_context_new(e->domain, &opts, &e->ctx) == 0,
		"an end cannot be made");
	e->ctx->first_seq = UINT32_MAX - 40;
}

static void run(struct world *w)
{
	struct tern_peer_opts opts = {
		.event = on_event, .arg = &w->ends[0], .notified = on_note};
	char rest[BED_ADDRESS_MAX], where[2 * BED_ADDRESS_MAX];

	w->instance->address(rest, 0);
	snprintf(where, sizeof(where), "%s://%s", w->instance->fabric, rest);
	for (unsigned i = 0; i < 2; i++)
		make_end(w, i);
	REQUIRE(w,
		tern_listen(w->ends[0].ctx, where, &opts, on_accept, &w->ends[0],
			&w->listener) == 0,
		"tern_listen");
	join(w);
	for (unsigned i = 0; i < 2; i++)
		make_window(&w->ends[i]);
	blow(w);
	for (int i = 1; i >= 0; i--) {
		struct end *e = &w->ends[i];

		tern_context_free(e->ctx);
		tern_pool_put(e->pool, &e->room);
		tern_pool_free(e->pool);
		tern_domain_free(e->domain);
	}
}

int main(int argc, char **argv)
{
	uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 20;
	uint64_t first = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
	unsigned cuts = 0, closes = 0, failed = 0;
	const struct instance *instance;
	const char *why;

	instance = argc > 1 ? instance_find(argv[1], strlen(argv[1])) : NULL;
	if (!instance) {
		fprintf(stderr, "usage: windows INSTANCE [SEEDS [FIRST]]\n");
		return 2;
	}
	why = instance->unavailable ? instance->unavailable() : NULL;
	if (why) {
		printf("skipped: %s\n", why);
		return 77;
	}
	for (uint64_t seed = first; seed < first + count; seed++) {
		struct world *w = calloc(1, sizeof(*w));

		tern_assert(w);
		w->seed = w->rng.seed = seed;
		w->instance = instance;
		run(w);
		cuts += w->cut_count;
		closes += w->close_count;
		failed += w->failed_count;
		free(w);
	}
	printf("windows: %s: %llu seeds passed, %u cuts, %u windows closed, %u requests "
	       "ended with an error\n",
		argv[1], (unsigned long long)count, cuts, closes, failed);
	return 0;
}
