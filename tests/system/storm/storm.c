/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/system/storm/storm.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "tests/harness/pattern.h"

#define CANARY 0xa5

struct half {
	struct storm *storm;
	struct tern_req req;
	/* Of a send: the data; of a receive into the caller's memory: that memory. */
	struct tern_buf buf;
	struct tern_pool *pool; /* pool to which `buf` belongs */
	const struct storm_memory *memory;
	struct tern_shape shape;
	/* number: how many requests of the same triple (channel, key, step) this end
	 * posted before. */
	unsigned triple, number;
	unsigned flags;
	bool is_send, posted, ended, cancelled, small_room, released;
	unsigned done_count;
	/* Of a receive: number of the send that it got, plus 1; 0: not known. */
	unsigned got;
};

/* One direction of the storm: the sends of one end and the receives of the other. */
struct way {
	struct half *sends, *recvs;
	unsigned sent, received; /* numbers of requests posted so far */
	unsigned taken;          /* receives that have ended */
	/* The triple (channel, key, step) of each request; both have the same triples, in
	 * different orders. */
	unsigned *send_triples, *recv_triples;
	/* For each triple: requests posted so far. */
	unsigned *send_counts, *recv_counts;
	struct storm_end from, to;
};

struct storm {
	struct storm_opts opts;
	struct tern_rng rng;
	struct way ways[2];
	unsigned posted, ended, delivered;
	/* `lossy`: cancelled or failed requests may break the numbering of sends and
	 * receives. */
	bool down, lossy;
	char error[300], suspicion[300];
};

static void fail(struct storm *s, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
static void fail(struct storm *s, const char *fmt, ...)
{
	va_list ap;

	if (s->error[0])
		return; /* keep the first error, which is the most useful */
	va_start(ap, fmt);
	vsnprintf(s->error, sizeof(s->error), fmt, ap);
	va_end(ap);
}

/* Byte i of the contents of send `number` of a triple. The first 8 bytes identify the
 * send. */
/* Seed of the contents of a send of the half's triple. */
static uint64_t seed_of(const struct half *h, unsigned number)
{
	return (uint64_t)h->triple << 32 | number;
}

/* Returns the contents of a buffer: a buffer in host memory itself, or a copy of one in
 * GPU memory. give() writes the copy back to the GPU and frees it. */
static unsigned char *borrow(const struct half *h, const struct tern_buf *buf)
{
	uint64_t address = tern_buf_cuda_address(buf);
	unsigned char *p;

	if (!address || !buf->bytes)
		return tern_buf_ptr(buf);
	p = malloc(buf->bytes);
	h->memory->read(p, address, buf->bytes);
	return p;
}

static void give(const struct half *h, const struct tern_buf *buf, unsigned char *p)
{
	uint64_t address = tern_buf_cuda_address(buf);

	if (!address || !buf->bytes)
		return;
	h->memory->write(address, p, buf->bytes);
	free(p);
}

static void fill(const struct half *h)
{
	unsigned char *p = borrow(h, &h->buf);

	pattern_fill(p, h->buf.bytes, seed_of(h, h->number), 0);
	give(h, &h->buf, p);
}

/* Fills the buffer of a request that has ended with CANARY. The end of the storm checks
 * that nobody has written to it since. */
static void spoil(const struct half *h)
{
	unsigned char *p = borrow(h, &h->buf);

	if (h->buf.bytes)
		memset(p, CANARY, h->buf.bytes);
	give(h, &h->buf, p);
}

static bool matches(const struct half *h, const unsigned char *p, unsigned number)
{
	return pattern_holds(p, h->req.bytes, seed_of(h, number), 0);
}

/* ---- the ends of requests ---- */

static struct way *way_of(struct half *h)
{
	struct storm *s = h->storm;
	struct way *w = &s->ways[0];
	const struct half *all = h->is_send ? w->sends : w->recvs;

	return h >= all && h < all + s->opts.pair_count ? w : &s->ways[1];
}

static const struct half *send_with(
	const struct way *w, unsigned count, unsigned triple, unsigned number)
{
	for (unsigned i = 0; i < count; i++)
		if (w->sends[i].posted && w->sends[i].triple == triple &&
			w->sends[i].number == number)
			return &w->sends[i];
	return NULL;
}

/* Finds the send that a receive got, and checks the bytes. The send must have the
 * receive's own number, unless requests may be cancelled or fail: then check_order()
 * checks only the order. */
static bool is_delivered(struct half *h, const unsigned char *p)
{
	struct storm *s = h->storm;
	struct way *w = way_of(h);
	unsigned lowest = s->lossy ? 0 : h->number;
	unsigned highest = s->lossy ? w->send_counts[h->triple] : h->number + 1;

	for (unsigned n = lowest; n < highest; n++) {
		const struct half *sent = send_with(w, s->opts.pair_count, h->triple, n);

		if (!sent || sent->buf.bytes != h->req.bytes ||
			!tern_shape_equal(&sent->shape, &h->req.shape))
			continue;
		if (h->req.status == 0 && !matches(h, p, n))
			continue;
		if (h->req.bytes >= 8)
			h->got = n + 1;
		return true;
	}
	return false;
}

static void check_delivered(struct half *h)
{
	bool here = h->req.peeked || !tern_buf_cuda_address(&h->req.buf);
	unsigned char *p = here ? NULL : borrow(h, &h->req.buf);

	if (here ? is_delivered(h, h->req.data) : !h->req.data && is_delivered(h, p)) {
		if (!here)
			give(h, &h->req.buf, p);
		return;
	}
	fail(h->storm,
		"receive %u of triple %u (%llu bytes, flags %u, status %d): not what was "
		"sent",
		h->number, h->triple, (unsigned long long)h->req.bytes, h->flags,
		h->req.status);
}

static void check_end(struct half *h)
{
	struct storm *s = h->storm;
	int status = h->req.status;

	if (status == -EINPROGRESS)
		fail(s, "done() of a request that is still going on");
	else if (s->down)
		return;
	else if (status == 0 && !h->is_send)
		check_delivered(h);
	else if (status == -EMSGSIZE && s->opts.small_room_permille)
		return;
	else if (status == -ECANCELED && s->lossy)
		return;
	else if (status == -EIO && s->opts.copy_fail_permille)
		return;
	else if (status != 0 && !s->suspicion[0])
		/* This is an error only if the peer does not turn out to be down. */
		snprintf(s->suspicion, sizeof(s->suspicion),
			"%s %u of triple %u ended with %d (%s)",
			h->is_send ? "send" : "receive", h->number, h->triple, status,
			tern_status_text(status));
}

static void on_done(struct tern_req *req)
{
	struct half *h = req->arg;
	struct storm *s = h->storm;

	if (++h->done_count > 1) {
		fail(s, "a request ended twice");
		return;
	}
	check_end(h);
	h->ended = true;
	s->ended++;
	way_of(h)->taken += !h->is_send;
	s->delivered += req->status == 0;
	spoil(h);
	if (!h->is_send && h->flags && req->status == 0 && tern_rng_below(&s->rng, 2)) {
		tern_release(req);
		h->released = true;
	}
}

/* ---- posting requests ---- */

static uint64_t random_bytes(struct storm *s)
{
	uint32_t eager = s->opts.eager_bytes;

	switch (tern_rng_below(&s->rng, 8)) {
	case 0:
		return tern_rng_below(&s->rng, 3);
	case 1:
	case 2:
		return eager - 1 + tern_rng_below(&s->rng, 3);
	case 3:
	case 4:
		return tern_rng_below(&s->rng, s->opts.bytes_max + 1);
	default:
		return tern_rng_below(&s->rng, eager + 1);
	}
}

/* A random shape with `bytes` bytes. */
static struct tern_shape random_shape(struct storm *s, uint64_t bytes)
{
	struct tern_shape shape = tern_shape_1d(TERN_U8, bytes);

	if (bytes % 4 == 0 && tern_rng_below(&s->rng, 2))
		shape = tern_shape_1d(TERN_F32, bytes / 4);
	while (shape.rank < TERN_RANK_MAX && tern_rng_below(&s->rng, 3) == 0)
		shape.dims[shape.rank++] = 1;
	if (bytes == 1 && tern_rng_below(&s->rng, 2))
		shape.rank = 0;
	return shape;
}

static void start(
	struct storm *s, struct half *h, bool is_send, unsigned triple, unsigned *counts)
{
	h->storm = s;
	h->is_send = is_send;
	h->triple = triple;
	h->number = counts[h->triple]++;
	h->req.done = on_done;
	h->req.arg = h;
}

/* The key of a request's triple: four triples, with different steps, share a key. */
static uint64_t key_of(const struct half *h)
{
	return 1000 + h->triple / 4;
}

static const char *name_of(struct storm *s, const struct half *h)
{
	static const char *const names[] = {"zero", "one", "two", "three"};
	unsigned key = h->triple / 4;

	return key < TERN_ARRAY_SIZE(names) && tern_rng_below(&s->rng, 2) ? names[key]
									  : NULL;
}

static bool permille(struct storm *s, unsigned rate)
{
	return tern_rng_below(&s->rng, 1000) < rate;
}

/* Takes a buffer from one of the end's two pools, at random. */
static int get_memory(
	struct storm *s, struct half *h, const struct storm_end *end, uint64_t bytes)
{
	bool other = end->other && tern_rng_below(&s->rng, 2);

	h->pool = other ? end->other : end->pool;
	h->memory = end->memory;
	return tern_pool_get(h->pool, bytes, &h->buf);
}

static int post_send(struct storm *s, struct way *w)
{
	struct half *h = &w->sends[w->sent];
	struct tern_tensor tensor;
	uint64_t bytes = random_bytes(s);
	int r = get_memory(s, h, &w->from, bytes);

	if (r < 0)
		return r;
	start(s, h, true, w->send_triples[w->sent], w->send_counts);
	h->shape = random_shape(s, bytes);
	fill(h);
	tensor = (struct tern_tensor){.buf = h->buf, .shape = h->shape};
	h->posted = true;
	w->sent++;
	s->posted++;
	return tern_send(w->from.channel, &h->req, key_of(h), h->triple % 4, &tensor,
		name_of(s, h), permille(s, 100) ? TERN_URGENT : 0);
}

static int post_recv(struct storm *s, struct way *w)
{
	struct half *h = &w->recvs[w->received];
	static const unsigned kinds[] = {0, 0, TERN_RECV_ALLOC, TERN_RECV_PEEK};
	uint64_t room = s->opts.bytes_max + s->opts.eager_bytes + 1;
	unsigned flags = kinds[tern_rng_below(&s->rng, TERN_ARRAY_SIZE(kinds))];
	int r = 0;

	if (permille(s, s->opts.small_room_permille))
		room = tern_rng_below(&s->rng, s->opts.eager_bytes * 2);
	h->memory = w->to.memory;
	if (!flags)
		r = get_memory(s, h, &w->to, room);
	if (r < 0)
		return r;
	start(s, h, false, w->recv_triples[w->received], w->recv_counts);
	h->flags = flags;
	h->posted = true;
	w->received++;
	s->posted++;
	return tern_recv(w->to.channel, &h->req, key_of(h), h->triple % 4, &h->buf,
		name_of(s, h), flags);
}

static void cancel_one(struct storm *s, struct way *w)
{
	bool of_send = tern_rng_below(&s->rng, 2);
	unsigned count = of_send ? w->sent : w->received;
	struct half *h;

	if (!count)
		return;
	h = (of_send ? w->sends : w->recvs) + tern_rng_below(&s->rng, count);
	if (h->posted && !h->ended) {
		h->cancelled = true;
		tern_cancel(&h->req);
	}
}

static void release_one(struct storm *s, struct way *w)
{
	struct half *h;

	if (!w->received)
		return;
	h = &w->recvs[tern_rng_below(&s->rng, w->received)];
	if (h->ended && h->flags && h->req.status == 0 && !h->released) {
		h->released = true;
		tern_release(&h->req);
	}
}

/* Cancels the remaining requests: both ends have posted all requests, so those without a
 * counterpart would never end. */
static void end_leftovers(struct storm *s)
{
	for (int i = 0; i < 2; i++)
		for (unsigned j = 0; j < s->opts.pair_count; j++) {
			struct way *w = &s->ways[i];

			if (!w->sends[j].ended)
				tern_cancel(&w->sends[j].req);
			if (!w->recvs[j].ended)
				tern_cancel(&w->recvs[j].req);
			release_one(s, w);
		}
}

static bool may_receive(const struct storm *s, const struct way *w)
{
	return w->sent >= s->opts.lag &&
	       (!s->opts.open_most || w->received - w->taken < s->opts.open_most);
}

void storm_step(struct storm *s)
{
	bool all = true;

	for (int i = 0; i < 2; i++) {
		struct way *w = &s->ways[i];
		unsigned n = (unsigned)tern_rng_below(&s->rng, 4);

		while (n-- && w->sent < s->opts.pair_count && post_send(s, w) == 0)
			;
		n = (unsigned)tern_rng_below(&s->rng, 4);
		while (n-- && w->received < s->opts.pair_count && may_receive(s, w) &&
			post_recv(s, w) == 0)
			;
		if (permille(s, s->opts.cancel_permille))
			cancel_one(s, w);
		release_one(s, w);
		all = all && w->sent == s->opts.pair_count &&
		      w->received == s->opts.pair_count;
	}
	if (permille(s, s->opts.copy_fail_permille) && s->ways[0].from.memory)
		s->ways[0].from.memory->refuse((unsigned)tern_rng_next(&s->rng));
	if (all && s->lossy && tern_rng_below(&s->rng, 32) == 0)
		end_leftovers(s);
}

bool storm_is_over(const struct storm *s)
{
	return s->error[0] ||
	       (s->ended == s->opts.pair_count * 4 && s->posted == s->ended);
}

void storm_peer_down(struct storm *s)
{
	s->down = true;
}

const char *storm_error(const struct storm *s)
{
	return s->error[0] ? s->error : NULL;
}

void storm_print_left(const struct storm *s)
{
	for (int i = 0; i < 2; i++)
		for (unsigned j = 0; j < s->opts.pair_count; j++) {
			const struct way *w = &s->ways[i];
			const struct half *both[] = {&w->sends[j], &w->recvs[j]};

			for (int k = 0; k < 2; k++)
				if (both[k]->posted && !both[k]->ended)
					fprintf(stderr,
						"storm: way %d: %s %u of triple %u, %llu "
						"bytes, "
						"flags %u%s has not ended\n",
						i, k ? "receive" : "send",
						both[k]->number, both[k]->triple,
						(unsigned long long)both[k]->buf.bytes,
						both[k]->flags,
						both[k]->cancelled ? ", cancelled," : "");
		}
	fprintf(stderr, "storm: %u posted, %u ended\n", s->posted, s->ended);
}

unsigned storm_delivered(const struct storm *s)
{
	return s->delivered;
}

/* ---- creating and freeing ---- */

/* Chooses which of the remaining sends is the i-th to be received. */
static unsigned other_place(struct storm *s, unsigned i)
{
	unsigned left = s->opts.pair_count - i;

	switch (s->opts.order) {
	case STORM_NEAR:
		left = TERN_MIN(16u, left);
		break;
	case STORM_SHUFFLED:
		break;
	case STORM_LAST_FIRST:
		return i < left ? s->opts.pair_count - 1 - i : i;
	}
	return i + (unsigned)tern_rng_below(&s->rng, left);
}

/* Chooses random triples for the sends, and the same triples in another order for the
 * receives. With STORM_NEAR the orders are so similar that credits suffice. */
static void deal(struct storm *s, struct way *w)
{
	unsigned n = s->opts.pair_count;

	for (unsigned i = 0; i < n; i++)
		w->send_triples[i] = w->recv_triples[i] =
			(unsigned)tern_rng_below(&s->rng, s->opts.triple_count);
	for (unsigned i = 0; i < n; i++) {
		unsigned j = other_place(s, i);
		unsigned swap = w->recv_triples[i];

		w->recv_triples[i] = w->recv_triples[j];
		w->recv_triples[j] = swap;
	}
}

struct storm *storm_new(const struct storm_opts *opts, const struct storm_end ends[2])
{
	struct storm *s = calloc(1, sizeof(*s));

	s->opts = *opts;
	s->rng.seed = opts->seed;
	s->lossy = opts->cancel_permille || opts->copy_fail_permille;
	for (int i = 0; i < 2; i++) {
		struct way *w = &s->ways[i];
		unsigned *counts = calloc(opts->triple_count * 2, sizeof(*counts));

		w->sends = calloc(opts->pair_count, sizeof(*w->sends));
		w->recvs = calloc(opts->pair_count, sizeof(*w->recvs));
		w->send_counts = counts;
		w->recv_counts = counts + opts->triple_count;
		w->send_triples = calloc(opts->pair_count * 2, sizeof(*counts));
		w->recv_triples = w->send_triples + opts->pair_count;
		deal(s, w);
		w->from = ends[i];
		w->to = ends[!i];
	}
	return s;
}

static void end_half(struct storm *s, struct half *h)
{
	unsigned char *p = borrow(h, &h->buf);

	if (h->posted && !h->is_send && h->flags && h->req.status == 0 && !h->released)
		tern_release(&h->req);
	if (h->ended && !pattern_is_one_byte(p, h->buf.bytes, CANARY))
		fail(s, "a buffer was touched after its request had ended");
	give(h, &h->buf, p);
	if (h->posted && h->pool)
		tern_pool_put(h->pool, &h->buf);
}

/* Checks that the receives of a triple have got its sends in the order of posting. */
static void check_order(struct storm *s, const struct way *w)
{
	unsigned *last = calloc(s->opts.triple_count, sizeof(*last));

	for (unsigned i = 0; i < w->received; i++) {
		const struct half *h = &w->recvs[i];

		if (!h->got)
			continue;
		if (h->got <= last[h->triple])
			fail(s, "triple %u: send %u came to a later receive than send %u",
				h->triple, h->got - 1, last[h->triple] - 1);
		last[h->triple] = h->got;
	}
	free(last);
}

int storm_free(struct storm *s)
{
	int r;

	if (s->suspicion[0] && !s->down)
		fail(s, "%s", s->suspicion);

	for (int i = 0; i < 2; i++) {
		struct way *w = &s->ways[i];

		check_order(s, w);
		for (unsigned j = 0; j < s->opts.pair_count; j++) {
			end_half(s, &w->sends[j]);
			end_half(s, &w->recvs[j]);
		}
		free(w->sends);
		free(w->recvs);
		free(w->send_counts);
		free(w->send_triples);
	}
	if (s->error[0])
		fprintf(stderr, "storm: seed %llu: %s\n",
			(unsigned long long)s->opts.seed, s->error);
	r = s->error[0] ? -EIO : 0;
	free(s);
	return r;
}
