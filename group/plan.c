/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rounds each piece of an operation takes. Everything here is a function of the
 * operation's signature, the group's size and hosts, and this rank: every rank computes its
 * own half of the same exchange. include/tern/group.h promises the order of the operations.
 *
 * Messages between two ranks within a piece have the same key and are matched in order. So
 * each rank must send to another rank in the order in which that rank receives.
 */
#include "group/group.h"

#include "base/util.h"

/* Pieces that an operation is cut into, if it is large enough, so that they overlap. */
#define PIECES_MIN (uint64_t)4
/* Overlap alone cuts no block below this size. */
#define BLOCK_MIN_BYTES (32u << 10)
/* All-gathers up to this size of `out` take the fewest rounds. */
#define GATHER_SMALL_BYTES (64u << 10)

/* The rounds of one piece that are being written. */
struct plan {
	const struct tern_group *g;
	const struct group_call *call;
	struct group_round *out;
	unsigned count;
	uint32_t element; /* bytes of one */
};

/* A ring of ranks, and the blocks that they exchange: either one piece of a tensor that is
 * cut into as many blocks as there are ranks, or the same piece of each part of a tensor. */
struct ring {
	const uint32_t *ranks; /* NULL: rank i is number i */
	uint32_t count, me;
	uint64_t start, bytes, stride; /* stride 0: cut [start, start + bytes) */
};

static uint32_t rank_at(const struct ring *ring, uint32_t i)
{
	return ring->ranks ? ring->ranks[i] : i;
}

/* (a - b) modulo n, for a < n, b <= 2 n. */
static uint32_t back(uint32_t a, uint32_t b, uint32_t n)
{
	return (a + 2 * n - b) % n;
}

/* Start of block i of `count` of a range of `bytes` bytes. */
static uint64_t cut(const struct plan *p, uint64_t bytes, uint32_t i, uint32_t count)
{
	uint64_t elements = bytes / p->element, each = elements / count;

	return (i * each + TERN_MIN((uint64_t)i, elements % count)) * p->element;
}

static uint64_t block_at(const struct plan *p, const struct ring *ring, uint32_t i)
{
	if (ring->stride)
		return i * ring->stride + ring->start;
	return ring->start + cut(p, ring->bytes, i, ring->count);
}

static uint64_t block_bytes(const struct plan *p, const struct ring *ring, uint32_t i)
{
	if (ring->stride)
		return ring->bytes;
	return cut(p, ring->bytes, i + 1, ring->count) -
	       cut(p, ring->bytes, i, ring->count);
}

static struct group_range in(uint64_t at)
{
	return (struct group_range){GROUP_IN, at};
}

static struct group_range out(uint64_t at)
{
	return (struct group_range){GROUP_OUT, at};
}

static struct group_range scratch(uint64_t at)
{
	return (struct group_range){GROUP_SCRATCH, at};
}

static struct group_round *add(struct plan *p)
{
	struct group_round *r = &p->out[p->count++];

	*r = (struct group_round){.send_to = GROUP_NOBODY, .recv_from = GROUP_NOBODY};
	return r;
}

static void sends(
	struct group_round *r, uint32_t rank, struct group_range range, uint64_t bytes)
{
	r->send_to = rank;
	r->send = range;
	r->send_bytes = bytes;
}

static void receives(
	struct group_round *r, uint32_t rank, struct group_range range, uint64_t bytes)
{
	r->recv_from = rank;
	r->recv = range;
	r->recv_bytes = bytes;
}

static void works(struct group_round *r, enum group_work work, struct group_range to,
	struct group_range a, struct group_range b, uint64_t bytes)
{
	r->work = work;
	r->to = to;
	r->a = a;
	r->b = b;
	r->bytes = bytes;
}

static void copies(
	struct plan *p, struct group_range to, struct group_range from, uint64_t bytes)
{
	works(add(p), GROUP_COPY, to, from, from, bytes);
}

static bool is_half(const struct group_call *call)
{
	return call->sig.dtype == TERN_F16 || call->sig.dtype == TERN_BF16;
}

/* ---- parts of algorithms ---- */

/* Reduces block i of `from` at the rank with number i, around the ring; the owner writes it
 * to `to`. The partial results lie in the two halves of the scratch memory in turn. */
static void ring_reduce(struct plan *p, const struct ring *ring, enum group_area from,
	struct group_range to)
{
	uint32_t n = ring->count, me = ring->me;
	uint32_t next = rank_at(ring, (me + 1) % n), last = rank_at(ring, back(me, 1, n));

	for (uint32_t k = 0; k + 1 < n; k++) {
		struct group_round *r = add(p);
		uint32_t given = back(me, k + 1, n), got = back(me, k + 2, n);
		struct group_range mine = {from, block_at(p, ring, got)};
		struct group_range part = scratch(k % 2 * p->g->piece_bytes);
		bool final = k + 2 == n;

		sends(r, next,
			k == 0 ? (struct group_range){from, block_at(p, ring, given)}
			       : scratch((k + 1) % 2 * p->g->piece_bytes),
			block_bytes(p, ring, given));
		receives(r, last, part, block_bytes(p, ring, got));
		works(r, final ? GROUP_FINAL : GROUP_COMBINE, final ? to : part, part,
			mine, block_bytes(p, ring, got));
	}
}

/* As ring_reduce(), but every rank sends its elements straight to the owner, who adds them
 * in f32. The sum lies in the second half of the scratch memory. */
static void direct_reduce(struct plan *p, const struct ring *ring, struct group_range to)
{
	uint32_t n = ring->count, me = ring->me;
	uint64_t bytes = block_bytes(p, ring, me);
	struct group_range sum = scratch(p->g->piece_bytes), got = scratch(0);

	works(add(p), GROUP_WIDEN, sum, in(block_at(p, ring, me)), got, bytes);
	for (uint32_t k = 1; k < n; k++) {
		struct group_round *r = add(p);
		uint32_t owner = back(me, k, n);

		sends(r, rank_at(ring, owner), in(block_at(p, ring, owner)),
			block_bytes(p, ring, owner));
		receives(r, rank_at(ring, (me + k) % n), got, bytes);
		works(r, GROUP_WIDE, sum, got, got, bytes);
	}
	works(add(p), GROUP_NARROW, to, sum, sum, bytes);
}

static void reduce_blocks(struct plan *p, const struct ring *ring, struct group_range to)
{
	if (is_half(p->call) && ring->count > 2)
		direct_reduce(p, ring, to);
	else
		ring_reduce(p, ring, GROUP_IN, to);
}

/* Sends block i, which the rank with number i has in `out`, around the ring. */
static void ring_gather(struct plan *p, const struct ring *ring)
{
	uint32_t n = ring->count, me = ring->me;

	for (uint32_t k = 0; k + 1 < n; k++) {
		struct group_round *r = add(p);
		uint32_t given = back(me, k, n), got = back(me, k + 1, n);

		sends(r, rank_at(ring, (me + 1) % n), out(block_at(p, ring, given)),
			block_bytes(p, ring, given));
		receives(r, rank_at(ring, back(me, 1, n)), out(block_at(p, ring, got)),
			block_bytes(p, ring, got));
	}
}

/* Reduces the ranks to `power`, the largest power of two: in each pair of the first 2 x
 * (size - power) ranks only the even one takes part. */
struct fold {
	uint32_t power, pairs;
	uint32_t number; /* new number; GROUP_NOBODY: rank - 1 acts for it */
};

static struct fold fold_of(const struct tern_group *g)
{
	struct fold f = {.power = 1};

	while (f.power * 2 <= g->size)
		f.power *= 2;
	f.pairs = g->size - f.power;
	if (g->rank >= 2 * f.pairs)
		f.number = g->rank - f.pairs;
	else
		f.number = g->rank % 2 ? GROUP_NOBODY : g->rank / 2;
	return f;
}

static uint32_t unfold(const struct fold *f, uint32_t number)
{
	return number < f->pairs ? 2 * number : number + f->pairs;
}

/* Adds the pairs in `out`. */
static void fold_in(struct plan *p, const struct fold *f, uint64_t bytes)
{
	uint32_t rank = p->g->rank;

	if (rank >= 2 * f->pairs)
		return;
	if (rank % 2) {
		sends(add(p), rank - 1, out(0), bytes);
		return;
	}
	receives(add(p), rank + 1, scratch(0), bytes);
	works(&p->out[p->count - 1], GROUP_COMBINE, out(0), out(0), scratch(0), bytes);
}

static void fold_out(struct plan *p, const struct fold *f, uint64_t bytes)
{
	uint32_t rank = p->g->rank;

	if (rank >= 2 * f->pairs)
		return;
	if (rank % 2)
		receives(add(p), rank - 1, out(0), bytes);
	else
		sends(add(p), rank + 1, out(0), bytes);
}

/* to = the operands in the order of the ranks' numbers. */
static void works_in_order(struct group_round *r, enum group_work work, uint64_t at,
	bool mine_first, uint64_t bytes)
{
	works(r, work, out(at), mine_first ? out(at) : scratch(0),
		mine_first ? scratch(0) : out(at), bytes);
}

/* Recursive doubling: in each round two ranks exchange all that they have. */
static void doubling(struct plan *p, uint64_t bytes)
{
	struct fold f = fold_of(p->g);

	copies(p, out(0), in(0), bytes);
	fold_in(p, &f, bytes);
	for (uint32_t d = 1; f.number != GROUP_NOBODY && d < f.power; d *= 2) {
		struct group_round *r = add(p);
		uint32_t other = f.number ^ d;

		sends(r, unfold(&f, other), out(0), bytes);
		receives(r, unfold(&f, other), scratch(0), bytes);
		works_in_order(r, d * 2 == f.power ? GROUP_FINAL : GROUP_COMBINE, 0,
			f.number < other, bytes);
	}
	fold_out(p, &f, bytes);
}

/* Recursive halving, which leaves each rank with one reduced block, and doubling, which
 * gives all blocks to all. */
static void halving(struct plan *p, uint64_t bytes)
{
	struct fold f = fold_of(p->g);
	uint32_t lo = 0, hi = f.power;

	copies(p, out(0), in(0), bytes);
	fold_in(p, &f, bytes);
	for (uint32_t d = f.power / 2; f.number != GROUP_NOBODY && d > 0; d /= 2) {
		struct group_round *r = add(p);
		uint32_t other = f.number ^ d, mid = lo + d;
		bool upper = f.number & d;
		uint32_t give = upper ? lo : mid;
		uint64_t at;

		lo = upper ? mid : lo;
		hi = upper ? hi : mid;
		at = cut(p, bytes, lo, f.power);
		sends(r, unfold(&f, other), out(cut(p, bytes, give, f.power)),
			cut(p, bytes, give + d, f.power) - cut(p, bytes, give, f.power));
		receives(r, unfold(&f, other), scratch(0),
			cut(p, bytes, hi, f.power) - at);
		works_in_order(r, d == 1 ? GROUP_FINAL : GROUP_COMBINE, at,
			f.number < other, cut(p, bytes, hi, f.power) - at);
	}
	for (uint32_t d = 1; f.number != GROUP_NOBODY && d < f.power; d *= 2) {
		struct group_round *r = add(p);
		uint32_t other = unfold(&f, f.number ^ d);
		uint64_t mine = cut(p, bytes, lo, f.power);
		uint64_t theirs = cut(p, bytes, lo ^ d, f.power);

		sends(r, other, out(mine), cut(p, bytes, lo + d, f.power) - mine);
		receives(r, other, out(theirs),
			cut(p, bytes, (lo ^ d) + d, f.power) - theirs);
		lo &= ~d;
	}
	fold_out(p, &f, bytes);
}

/* The ranks of each host give their elements to a leader, the leaders reduce them around
 * the ring of hosts, and give the result back. */
static void by_host(struct plan *p, uint64_t piece, uint64_t start, uint64_t bytes)
{
	const struct tern_group *g = p->g;
	uint32_t *leaders = g->leaders;
	uint32_t host = g->host_of[g->rank], count = g->first[host + 1] - g->first[host];
	const uint32_t *ranks = g->members + g->first[host];
	uint32_t led = (uint32_t)(piece % count);
	struct ring ring = {leaders, g->host_count, host, start, bytes, 0};

	for (uint32_t h = 0; h < g->host_count; h++)
		leaders[h] =
			g->members[g->first[h] + piece % (g->first[h + 1] - g->first[h])];
	if (leaders[host] != g->rank) {
		sends(add(p), leaders[host], in(start), bytes);
		receives(add(p), leaders[host], out(start), bytes);
		return;
	}
	if (count == 1)
		copies(p, out(start), in(start), bytes);
	for (uint32_t k = 1; k < count; k++) {
		struct group_round *r = add(p);

		receives(r, ranks[(led + k) % count], scratch(0), bytes);
		works(r, GROUP_COMBINE, out(start), k == 1 ? in(start) : out(start),
			scratch(0), bytes);
	}
	ring_reduce(p, &ring, GROUP_OUT, out(block_at(p, &ring, host)));
	ring_gather(p, &ring);
	for (uint32_t k = 1; k < count; k++)
		sends(add(p), ranks[(led + k) % count], out(start), bytes);
}

/* Sends all of `bytes` from `area` down a tree whose root is the rank `root`. */
static void tree_down(struct plan *p, uint32_t root, uint64_t bytes)
{
	uint32_t n = p->g->size, place = back(p->g->rank, root, n), bit = 1;

	while (bit < n && !(place & bit))
		bit *= 2;
	if (place)
		receives(add(p), (back(place, bit, n) + root) % n, out(0), bytes);
	for (bit /= 2; bit > 0; bit /= 2)
		if (place + bit < n)
			sends(add(p), (place + bit + root) % n, out(0), bytes);
}

/* Reduces up the same tree. The partial result lies in the second half of the scratch
 * memory. */
static void tree_up(struct plan *p, uint32_t root, uint64_t bytes)
{
	uint32_t n = p->g->size, place = back(p->g->rank, root, n);
	struct group_range sum = scratch(p->g->piece_bytes);

	copies(p, sum, in(0), bytes);
	for (uint32_t bit = 1; bit < n; bit *= 2) {
		bool final = place == 0 && bit * 2 >= n;

		if (place & bit) {
			sends(add(p), (place - bit + root) % n, sum, bytes);
			return;
		}
		if (place + bit < n) {
			struct group_round *r = add(p);

			receives(r, (place + bit + root) % n, scratch(0), bytes);
			works(r, final ? GROUP_FINAL : GROUP_COMBINE,
				final ? out(0) : sum, sum, scratch(0), bytes);
		}
	}
}

/* ---- operations ---- */

enum algorithm { WHOLE_DOUBLING, WHOLE_HALVING, WHOLE_TREE, BY_HOST, BLOCKS };

static enum algorithm algorithm_of(
	const struct tern_group *g, const struct group_signature *sig)
{
	bool direct = (sig->dtype == TERN_F16 || sig->dtype == TERN_BF16) && g->size > 2;
	uint64_t small = TERN_MIN(TERN_GROUP_SMALL_BYTES, g->piece_bytes);
	uint64_t medium = TERN_MIN(TERN_GROUP_MEDIUM_BYTES, 2 * g->piece_bytes);

	if (sig->kind == GROUP_BROADCAST)
		return sig->bytes <= small ? WHOLE_TREE : BLOCKS;
	if (direct)
		return BLOCKS;
	if (sig->bytes <= small)
		return sig->kind == GROUP_REDUCE ? WHOLE_TREE : WHOLE_DOUBLING;
	if (sig->kind == GROUP_REDUCE)
		return BLOCKS;
	if (g->host_count > 1 && g->host_count < g->size)
		return BY_HOST;
	return sig->bytes <= medium && g->size >= 4 ? WHOLE_HALVING : BLOCKS;
}

/* Bytes of one block at most. Where halves are added in f32, the sum has the second half of
 * the scratch memory. */
static uint64_t block_max(const struct tern_group *g, const struct group_signature *sig)
{
	bool half = sig->dtype == TERN_F16 || sig->dtype == TERN_BF16;

	return half ? g->piece_bytes / 2 : g->piece_bytes;
}

/* Bytes that one piece of the operation covers: of the tensor, or of each of its parts. */
static uint64_t piece_span(const struct tern_group *g, const struct group_signature *sig)
{
	uint64_t whole = sig->bytes ? sig->bytes : 1, most, pieces, worthy;
	uint32_t blocks = 1;

	switch ((enum group_kind)sig->kind) {
	case GROUP_ALLREDUCE:
	case GROUP_REDUCE:
	case GROUP_BROADCAST:
		switch (algorithm_of(g, sig)) {
		case WHOLE_DOUBLING:
		case WHOLE_HALVING:
		case WHOLE_TREE:
			return whole;
		case BY_HOST:
			break;
		case BLOCKS:
			blocks = sig->kind == GROUP_BROADCAST ? 1 : g->size;
			break;
		}
		break;
	case GROUP_GATHER:
	case GROUP_SCATTER:
	case GROUP_ALL_GATHER:
	case GROUP_REDUCE_SCATTER:
		break;
	case GROUP_ALL_TO_ALL:
		whole = sig->bytes ? sig->bytes / g->size : 1;
		break;
	case GROUP_ALL_TO_ALL_V:
		return g->piece_bytes;
	case GROUP_BARRIER:
	case GROUP_KIND_COUNT:
		return 1;
	}
	most = block_max(g, sig) * blocks;
	pieces = (whole + most - 1) / most;
	worthy = whole / ((uint64_t)BLOCK_MIN_BYTES * blocks);
	if (pieces < PIECES_MIN && pieces < worthy)
		pieces = TERN_MIN(PIECES_MIN, worthy);
	return tern_align_up((whole + pieces - 1) / pieces, 64);
}

/* Pieces of this rank's largest part, and at least one, in which pairs compare the sizes of
 * their parts. Two ranks with different numbers of pieces exchange nothing in those that
 * only one of them has. */
static uint64_t pieces_of_unequal(
	const struct tern_group *g, const struct group_call *call)
{
	uint64_t most = 1;

	for (uint32_t i = 0; i < g->size; i++) {
		most = TERN_MAX(most, call->in_bytes[i]);
		most = TERN_MAX(most, call->out_bytes[i]);
	}
	return (most + g->piece_bytes - 1) / g->piece_bytes;
}

uint64_t group_plan_pieces(const struct tern_group *g, const struct group_call *call)
{
	uint64_t span = piece_span(g, &call->sig), bytes = call->sig.bytes;

	if (call->sig.kind == GROUP_BARRIER)
		return 1;
	if (call->sig.kind == GROUP_ALL_TO_ALL_V)
		return pieces_of_unequal(g, call);
	if (call->sig.kind == GROUP_ALL_TO_ALL)
		bytes /= g->size;
	return (bytes + span - 1) / span;
}

uint32_t group_plan_rounds_max(uint32_t size)
{
	return 2 * size + 64;
}

static void plan_alone(struct plan *p, const struct ring *ring)
{
	bool truth =
		p->call->sig.how == TERN_REDUCE_OR || p->call->sig.how == TERN_REDUCE_AND;
	bool reduces = p->call->sig.kind == GROUP_ALLREDUCE ||
		       p->call->sig.kind == GROUP_REDUCE ||
		       p->call->sig.kind == GROUP_REDUCE_SCATTER;

	if (p->call->sig.kind != GROUP_BARRIER && p->call->sig.kind != GROUP_BROADCAST)
		works(add(p), reduces && truth ? GROUP_COMBINE : GROUP_COPY,
			out(ring->start), in(ring->start), in(ring->start), ring->bytes);
}

static void plan_allreduce(struct plan *p, uint64_t piece, struct ring *ring)
{
	switch (algorithm_of(p->g, &p->call->sig)) {
	case WHOLE_DOUBLING:
		return doubling(p, p->call->sig.bytes);
	case WHOLE_HALVING:
		return halving(p, p->call->sig.bytes);
	case BY_HOST:
		return by_host(p, piece, ring->start, ring->bytes);
	case WHOLE_TREE:
	case BLOCKS:
		reduce_blocks(p, ring, out(block_at(p, ring, ring->me)));
		ring_gather(p, ring);
	}
}

/* Large: each rank reduces its block and gives it to the root. */
static void plan_reduce(struct plan *p, struct ring *ring)
{
	uint32_t root = p->call->sig.root, n = ring->count;
	struct group_range to = scratch(0);

	if (algorithm_of(p->g, &p->call->sig) == WHOLE_TREE)
		return tree_up(p, root, p->call->sig.bytes);
	if (ring->me == root)
		to = out(block_at(p, ring, root));
	reduce_blocks(p, ring, to);
	if (ring->me != root)
		return sends(add(p), root, to, block_bytes(p, ring, ring->me));
	for (uint32_t k = 1; k < n; k++) {
		uint32_t from = (root + k) % n;

		receives(add(p), from, out(block_at(p, ring, from)),
			block_bytes(p, ring, from));
	}
}

static void plan_broadcast(struct plan *p, const struct ring *ring)
{
	uint32_t n = ring->count, root = p->call->sig.root;
	uint32_t place = back(ring->me, root, n);

	if (algorithm_of(p->g, &p->call->sig) == WHOLE_TREE)
		return tree_down(p, root, p->call->sig.bytes);
	if (place)
		receives(add(p), back(ring->me, 1, n), out(ring->start), ring->bytes);
	if (place + 1 < n)
		sends(add(p), (ring->me + 1) % n, out(ring->start), ring->bytes);
}

static void plan_gather(struct plan *p, const struct ring *ring)
{
	uint32_t n = ring->count, root = p->call->sig.root;

	if (ring->me != root)
		return sends(add(p), root, in(ring->start), ring->bytes);
	copies(p, out(block_at(p, ring, root)), in(ring->start), ring->bytes);
	for (uint32_t k = 1; k < n; k++)
		receives(add(p), (root + k) % n, out(block_at(p, ring, (root + k) % n)),
			ring->bytes);
}

static void plan_scatter(struct plan *p, const struct ring *ring)
{
	uint32_t n = ring->count, root = p->call->sig.root;

	if (ring->me != root)
		return receives(add(p), root, out(ring->start), ring->bytes);
	copies(p, out(ring->start), in(block_at(p, ring, root)), ring->bytes);
	for (uint32_t k = 1; k < n; k++)
		sends(add(p), (root + k) % n, in(block_at(p, ring, (root + k) % n)),
			ring->bytes);
}

/* Recursive doubling for few small parts; otherwise the parts go around the ring. */
static void plan_all_gather(struct plan *p, const struct ring *ring)
{
	uint32_t n = ring->count, lo = ring->me;
	uint64_t part = ring->stride;

	copies(p, out(block_at(p, ring, ring->me)), in(ring->start), ring->bytes);
	if ((n & (n - 1)) || ring->bytes != part || n * part > GATHER_SMALL_BYTES)
		return ring_gather(p, ring);
	for (uint32_t d = 1; d < n; d *= 2) {
		struct group_round *r = add(p);

		sends(r, ring->me ^ d, out(lo * part), d * part);
		receives(r, ring->me ^ d, out((lo ^ d) * part), d * part);
		lo &= ~d;
	}
}

/* In each round pairs of ranks exchange their parts. In place, a part is sent before the
 * other one takes its room. */
static void plan_all_to_all(struct plan *p, const struct ring *ring)
{
	uint32_t n = ring->count, me = ring->me;

	for (uint32_t k = 0; k < n; k++) {
		uint32_t other = back(k, me, n);
		uint64_t at = block_at(p, ring, other);
		struct group_round *r = add(p);

		if (other == me) {
			works(r, GROUP_COPY, out(at), in(at), in(at), ring->bytes);
			continue;
		}
		sends(r, other, in(at), ring->bytes);
		receives(r, other, p->call->in_place ? scratch(0) : out(at), ring->bytes);
		if (p->call->in_place)
			works(r, GROUP_COPY, out(at), scratch(0), scratch(0),
				ring->bytes);
	}
}

/* Bytes of the part that lie in [start, start + span). */
static uint64_t share(uint64_t part, uint64_t start, uint64_t span)
{
	return part > start ? TERN_MIN(part - start, span) : 0;
}

static uint64_t sum(const uint64_t *parts, uint32_t count)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < count; i++)
		bytes += parts[i];
	return bytes;
}

/* As plan_all_to_all(). The first piece of a pair is exchanged even if it is empty: see
 * name_of_size() in lane.c. */
static void plan_unequal(struct plan *p, uint64_t start)
{
	const uint64_t *given = p->call->in_bytes, *got = p->call->out_bytes;
	uint32_t n = p->g->size, me = p->g->rank, other = back(0, me, n);
	uint64_t from = sum(given, other), to = sum(got, other);

	for (uint32_t k = 0; k < n; k++) {
		uint64_t leaves = share(given[other], start, p->g->piece_bytes);
		uint64_t comes = share(got[other], start, p->g->piece_bytes);

		if (other == me) {
			copies(p, out(to + start), in(from + start), leaves);
		} else if (start == 0 || leaves || comes) {
			struct group_round *r = add(p);

			if (start == 0 || leaves)
				sends(r, other, leaves ? in(from + start) : scratch(0),
					leaves);
			if (start == 0 || comes)
				receives(r, other, comes ? out(to + start) : scratch(0),
					comes);
		}
		from += given[other];
		to += got[other];
		if (++other == n)
			other = 0, from = 0, to = 0;
	}
}

/* After the round with distance d a rank knows that the d * 2 - 1 ranks before it have
 * called. */
static void plan_barrier(struct plan *p)
{
	uint32_t n = p->g->size, me = p->g->rank;

	for (uint32_t d = 1; d < n; d *= 2) {
		struct group_round *r = add(p);

		sends(r, (me + d) % n, scratch(0), 0);
		receives(r, back(me, d, n), scratch(0), 0);
	}
}

unsigned group_plan(const struct tern_group *g, const struct group_call *call,
	uint64_t piece, struct group_round *rounds)
{
	const struct group_signature *sig = &call->sig;
	uint32_t element = (uint32_t)tern_dtype_bytes(sig->dtype);
	struct plan p = {.g = g, .call = call, .out = rounds, .element = element};
	uint64_t span = piece_span(g, sig), start = piece * span;
	uint64_t whole =
		sig->kind == GROUP_ALL_TO_ALL ? sig->bytes / g->size : sig->bytes;
	struct ring ring = {NULL, g->size, g->rank, start,
		start < whole ? TERN_MIN(span, whole - start) : 0, 0};

	if (sig->kind == GROUP_ALL_TO_ALL_V) {
		plan_unequal(&p, start);
		return p.count;
	}
	if (g->size == 1) {
		plan_alone(&p, &ring);
		return p.count;
	}
	switch ((enum group_kind)sig->kind) {
	case GROUP_ALLREDUCE:
		plan_allreduce(&p, piece, &ring);
		break;
	case GROUP_REDUCE:
		plan_reduce(&p, &ring);
		break;
	case GROUP_BROADCAST:
		plan_broadcast(&p, &ring);
		break;
	case GROUP_GATHER:
		ring.stride = whole;
		plan_gather(&p, &ring);
		break;
	case GROUP_SCATTER:
		ring.stride = whole;
		plan_scatter(&p, &ring);
		break;
	case GROUP_ALL_GATHER:
		ring.stride = whole;
		plan_all_gather(&p, &ring);
		break;
	case GROUP_REDUCE_SCATTER:
		ring.stride = whole;
		reduce_blocks(&p, &ring, out(start));
		break;
	case GROUP_ALL_TO_ALL:
		ring.stride = whole;
		plan_all_to_all(&p, &ring);
		break;
	case GROUP_BARRIER:
		plan_barrier(&p);
		break;
	case GROUP_ALL_TO_ALL_V:
	case GROUP_KIND_COUNT:
		break;
	}
	return p.count;
}
