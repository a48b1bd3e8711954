/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of bulk data: put, get and peek, from and to pool memory and wrapped user memory:
 * which bytes arrive, when an operation is complete, and in what order operations take
 * effect.
 */
#include "tests/harness/bed.h"

#include <errno.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"

#define BULK_BYTES (64u << 20)
#define GUARD      64u

static const uint64_t sizes[] = {1, 7, 8, 63, 64, 65, 4095, 4096, 4097, 65536, 1000001};

/* True if all of `room` except `bytes` bytes at `offset` still has the pattern `seed`. */
static bool untouched_around(
	const struct tern_buf *room, uint64_t offset, uint64_t bytes, uint64_t seed)
{
	const char *base = tern_buf_ptr(room);

	return pattern_holds(base, offset, seed, 0) &&
	       pattern_holds(base + offset + bytes, room->bytes - offset - bytes, seed,
		       offset + bytes);
}

static void put_sizes(const struct instance *instance, enum memory from, enum memory to)
{
	struct bed *bed = bed_new(instance);
	struct tern_buf source = side_memory(&bed->sides[A], from, 1100000);
	struct tern_buf room = side_memory(&bed->sides[B], to, 1100000);
	struct tern_region region;
	struct link *a, *b;

	bed_pair(bed, &a, &b);
	buf_fill(&source, 5);
	region = link_expose(b, &room, TERN_ACCESS_WRITE);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(sizes); i++) {
		uint64_t bytes = sizes[i], at = 3 + 61 * i, off = GUARD + i;
		struct tern_buf part = buf_part(&source, at, bytes);
		uint64_t heard = b->heard;
		struct work work = {0};

		buf_fill(&room, 99);
		link_put_surely(a, &work, &part, &region, off);
		link_say_surely(a, 3);
		PUMP(bed, b->heard == heard + 1);
		assert_true(
			pattern_holds((char *)tern_buf_ptr(&room) + off, bytes, 5, at));
		assert_true(untouched_around(&room, off, bytes, 99));
		PUMP(bed, work.done_count);
		assert_int_equal(work.status, 0);
	}
	side_withdraw(&bed->sides[B], &region);
	bed_free(bed);
}

static void test_put_between_slabs(const struct instance *instance)
{
	put_sizes(instance, SLAB, SLAB);
}

static void test_put_from_and_into_user_memory(const struct instance *instance)
{
	put_sizes(instance, USER, USER);
}

/* Overwrites the source in done(): the fabric must not read it any more, since the old
 * bytes must arrive at the peer. */
static void spoil(struct work *work)
{
	struct tern_buf *buf = work->arg;

	memset(tern_buf_ptr(buf), 0xee, buf->bytes);
}

static void test_the_source_of_a_put_may_be_reused_when_done(
	const struct instance *instance)
{
	enum { COUNT = 24, BYTES = 300000 };
	struct bed *bed = bed_new(instance);
	struct tern_buf room = side_memory(&bed->sides[B], SLAB, COUNT * BYTES);
	struct tern_buf source[COUNT];
	struct work work[COUNT] = {0};
	struct tern_region region;
	struct link *a, *b;

	bed_pair(bed, &a, &b);
	region = link_expose(b, &room, TERN_ACCESS_WRITE);
	for (unsigned i = 0; i < COUNT; i++) {
		source[i] = side_memory(&bed->sides[A], i % 2 ? SLAB : USER, BYTES);
		buf_fill(&source[i], i);
		work[i].then = spoil;
		work[i].arg = &source[i];
		link_put_surely(a, &work[i], &source[i], &region, (uint64_t)i * BYTES);
	}
	link_say_surely(a, 0);
	PUMP(bed, b->heard == 1);
	for (unsigned i = 0; i < COUNT; i++) {
		struct tern_buf part = buf_part(&room, (uint64_t)i * BYTES, BYTES);

		assert_true(buf_holds(&part, i));
		PUMP(bed, work[i].done_count);
		assert_int_equal(work[i].status, 0);
	}
	bed_free(bed);
}

struct order {
	struct tern_buf room;
	uint64_t bad;
};

/* Message i comes after put i, which writes i to every byte of B's memory. So B sees i there, or
 * the number of a later put that is arriving just then. B looks at single bytes because nothing
 * larger is written at once: rxe copies byte by byte, and a word in the middle of two puts has
 * bytes of both, which may make a number below either (0x0000 between 0x00ff and 0x0100). */
static void check_order(struct link *link)
{
	struct order *order = link->arg;
	const uint8_t *bytes = tern_buf_ptr(&order->room);

	for (uint64_t i = 0; i < order->room.bytes; i++)
		order->bad += bytes[i] < link->heard;
}

static void test_a_message_comes_behind_the_puts_before_it(
	const struct instance *instance)
{
	enum { ROUNDS = UINT8_MAX };
	struct bed *bed = bed_new(instance);
	struct order order = {.room = side_memory(&bed->sides[B], SLAB, 40000)};
	struct tern_buf source[ROUNDS];
	static struct work work[ROUNDS];
	struct tern_region region;
	struct link *a, *b;

	memset(work, 0, sizeof(work));
	memset(tern_buf_ptr(&order.room), 0, order.room.bytes);
	bed_pair(bed, &a, &b);
	b->on_heard = check_order;
	b->arg = &order;
	region = link_expose(b, &order.room, TERN_ACCESS_WRITE);
	/* All puts write to the same place, so the last one determines the contents. */
	for (int i = 0; i < ROUNDS; i++) {
		source[i] = side_memory(&bed->sides[A], SLAB, order.room.bytes);
		memset(tern_buf_ptr(&source[i]), i + 1, source[i].bytes);
		link_put_surely(a, &work[i], &source[i], &region, 0);
		link_say_surely(a, i % 100);
	}
	PUMP(bed, b->heard == ROUNDS);
	assert_int_equal(order.bad, 0);
	assert_int_equal(*(uint8_t *)tern_buf_ptr(&order.room), ROUNDS);
	bed_free(bed);
}

static void test_a_put_that_is_refused_with_eagain_took_nothing(
	const struct instance *instance)
{
	enum { PUTS = 20000, BYTES = 65536 };
	struct bed *bed = bed_new(instance);
	struct tern_buf source = side_memory(&bed->sides[A], SLAB, BYTES);
	struct tern_buf room = side_memory(&bed->sides[B], SLAB, BYTES);
	struct work *work = calloc(PUTS, sizeof(*work));
	struct tern_region region;
	struct link *a, *b;
	unsigned taken = 0, writable;
	int r = 0;

	assert_non_null(work);
	if (bed->world) {
		free(work);
		SKIP(bed, "this fabric never refuses a put for lack of space");
	}
	bed_pair(bed, &a, &b);
	region = link_expose(b, &room, TERN_ACCESS_WRITE);
	bed->sides[B].asleep = true;
	writable = a->writable_count;
	while (taken < PUTS && (r = link_put(a, &work[taken], &source, &region, 0)) == 0)
		taken++;
	assert_int_equal(r, -EAGAIN);
	bed->sides[B].asleep = false;
	PUMP(bed, a->ops_out == 0 && a->writable_count > writable);
	for (unsigned i = 0; i < taken; i++) {
		assert_int_equal(work[i].done_count, 1);
		assert_int_equal(work[i].status, 0);
	}
	assert_int_equal(work[taken].done_count, 0);
	link_put_surely(a, &work[taken], &source, &region, 0);
	PUMP(bed, work[taken].done_count);
	bed_free(bed);
	free(work);
}

static void get_sizes(const struct instance *instance, enum memory from, enum memory to)
{
	struct bed *bed = bed_new(instance);
	struct tern_buf source = side_memory(&bed->sides[B], from, 1100000);
	struct tern_buf room = side_memory(&bed->sides[A], to, 1100000);
	struct tern_region region;
	struct link *a, *b;
	int refused = 0;

	bed_pair(bed, &a, &b);
	buf_fill(&source, 5);
	region = link_expose(b, &source, TERN_ACCESS_READ);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(sizes); i++) {
		uint64_t bytes = sizes[i], at = 3 + 61 * i, off = GUARD + i;
		struct tern_buf part = buf_part(&room, off, bytes);
		struct work work = {0};

		buf_fill(&room, 99);
		link_get_surely(a, &work, &part, &region, at);
		PUMP(bed, work.done_count);
		if (work.status == -EACCES && from == USER) {
			refused++;
			/* The kernel refuses to read another process's memory. The conn
			 * must stay up, which is checked below. */
			continue;
		}
		assert_int_equal(work.status, 0);
		assert_true(pattern_holds(tern_buf_ptr(&part), bytes, 5, at));
		assert_true(untouched_around(&room, off, bytes, 99));
	}
	if (refused) {
		assert_int_equal(refused, TERN_ARRAY_SIZE(sizes));
		print_message("note: %s: get of user memory is refused by the system\n",
			instance->name);
	}
	link_say_surely(a, 0);
	PUMP(bed, b->heard == 1);
	side_withdraw(&bed->sides[B], &region);
	bed_free(bed);
}

static void test_get_between_slabs(const struct instance *instance)
{
	get_sizes(instance, SLAB, SLAB);
}

static void test_get_from_slab_into_user_memory(const struct instance *instance)
{
	get_sizes(instance, SLAB, USER);
}

static void test_get_from_user_memory(const struct instance *instance)
{
	get_sizes(instance, USER, SLAB);
}

static void test_many_gets_run_at_once(const struct instance *instance)
{
	enum { COUNT = 300, BYTES = 30000 };
	struct bed *bed = bed_new(instance);
	struct tern_buf source = side_memory(&bed->sides[B], SLAB, COUNT * BYTES);
	struct tern_buf room = side_memory(&bed->sides[A], SLAB, COUNT * BYTES);
	static struct work work[COUNT];
	struct tern_region region;
	struct link *a, *b;

	memset(work, 0, sizeof(work));
	bed_pair(bed, &a, &b);
	buf_fill(&source, 8);
	region = link_expose(b, &source, TERN_ACCESS_READ);
	for (unsigned i = 0; i < COUNT; i++) {
		struct tern_buf part = buf_part(&room, (uint64_t)i * BYTES, BYTES - i);

		link_get_surely(a, &work[i], &part, &region, (uint64_t)i * BYTES);
		if (i % 3 == 0)
			link_say_surely(a, 10);
	}
	PUMP(bed, a->ops_out == 0);
	for (unsigned i = 0; i < COUNT; i++) {
		struct tern_buf part = buf_part(&room, (uint64_t)i * BYTES, BYTES - i);

		assert_int_equal(work[i].status, 0);
		assert_true(pattern_holds(
			tern_buf_ptr(&part), part.bytes, 8, (uint64_t)i * BYTES));
	}
	PUMP(bed, b->heard == COUNT / 3);
	bed_free(bed);
}

static void test_peek_reads_in_place(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct tern_buf source = side_memory(&bed->sides[B], SLAB, 3000000);
	struct tern_region region;
	struct link *a, *b;
	const void *kept[8];
	unsigned count = 0;

	bed_pair(bed, &a, &b);
	buf_fill(&source, 4);
	region = link_expose(b, &source, TERN_ACCESS_READ);
	for (uint64_t at = 0; at < 2000000; at += 333333) {
		const void *data = NULL;

		assert_int_equal(link_peek(a, &region, at, 1000000, &data), 0);
		assert_true(pattern_holds(data, 1000000, 4, at));
		kept[count++] = data;
	}
	/* All results of peek() must stay readable until each is released. */
	for (unsigned i = 0; i < count; i++)
		assert_true(pattern_holds(kept[i], 1000000, 4, i * 333333));
	while (count > 0)
		a->side->fabric->ops->unpeek(a->side->port, kept[--count]);
	side_withdraw(&bed->sides[B], &region);
	bed_free(bed);
}

static void test_what_is_peeked_outlives_the_conn_and_keeps_its_owner_waiting(
	const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct tern_buf source = side_memory(&bed->sides[B], SLAB, 3000000);
	struct side *side = &bed->sides[A];
	const void *data = NULL;
	struct tern_region region;
	struct link *a, *b;

	buf_fill(&source, 4);
	for (int i = 0; i < 4; i++) {
		bed_pair(bed, &a, &b);
		region = link_expose(b, &source, TERN_ACCESS_READ);
		assert_int_equal(link_peek(a, &region, 0, source.bytes, &data), 0);
		link_close(i % 2 ? a : b, false);
		PUMP(bed, a->closed_count);
		bed_settle(bed);
		assert_int_equal(b->closed_count, 0);
		assert_true(pattern_holds(data, source.bytes, 4, 0));
		side->fabric->ops->unpeek(side->port, data);
		PUMP(bed, b->closed_count);
		side_withdraw(&bed->sides[B], &region);
	}
	bed_free(bed);
}

static void test_peek_sees_what_was_written_before_the_message(
	const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct tern_buf source = side_memory(&bed->sides[B], SLAB, 100000);
	const void *data = NULL;
	struct tern_region region;
	struct link *a, *b;

	bed_pair(bed, &a, &b);
	region = link_expose(b, &source, TERN_ACCESS_READ);
	assert_int_equal(link_peek(a, &region, 0, source.bytes, &data), 0);
	for (uint64_t i = 1; i < 50; i++) {
		buf_fill(&source, i);
		link_say_surely(b, 0);
		PUMP(bed, a->heard == i);
		assert_true(pattern_holds(data, source.bytes, i, 0));
	}
	a->side->fabric->ops->unpeek(a->side->port, data);
	bed_free(bed);
}

static void test_peek_outside_slabs_is_enotsup_or_right(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct tern_buf source = side_memory(&bed->sides[B], USER, 100000);
	const void *data = NULL;
	struct tern_region region;
	struct link *a, *b;
	int r;

	bed_pair(bed, &a, &b);
	buf_fill(&source, 4);
	region = link_expose(b, &source, TERN_ACCESS_READ);
	r = link_peek(a, &region, 0, source.bytes, &data);
	assert_true(r == 0 || r == -ENOTSUP);
	if (r == 0) {
		assert_true(pattern_holds(data, source.bytes, 4, 0));
		a->side->fabric->ops->unpeek(a->side->port, data);
	}
	link_say_surely(a, 0);
	PUMP(bed, b->heard == 1);
	bed_free(bed);
}

/* Transfers a buffer in pieces: the done() of each piece starts the next one, as in the
 * rendezvous. */
struct relay {
	struct tern_buf source, room;
	struct tern_region region;
	struct work work[4];
	uint64_t next, chunk, bytes;
};

static void relay_next(struct work *work)
{
	struct relay *relay = work->arg;
	struct link *link = work->link;
	uint64_t bytes = TERN_MIN(relay->chunk, relay->bytes - relay->next);
	struct tern_buf part;

	if (work->done_count)
		assert_int_equal(work->status, 0);
	if (bytes == 0)
		return;
	if (link_caps(link) & TERN_CAP_PUT) {
		part = buf_part(&relay->source, relay->next, bytes);
		assert_int_equal(
			link_put(link, work, &part, &relay->region, relay->next), 0);
	} else {
		part = buf_part(&relay->room, relay->next, bytes);
		assert_int_equal(
			link_get(link, work, &part, &relay->region, relay->next), 0);
	}
	relay->next += bytes;
}

/* Transfers 64 MiB from memory of kind `from` to memory of kind `to`, in pieces of at
 * most the conn's chunk_bytes: by puts if the fabric has them, else by gets. */
static void bulk(const struct instance *instance, enum memory from, enum memory to)
{
	struct bed *bed = bed_new(instance);
	struct link *a, *b, *owner;
	struct relay relay = {.bytes = BULK_BYTES};
	bool put;

	bed_pair(bed, &a, &b);
	put = link_caps(a) & TERN_CAP_PUT;
	owner = b;
	relay.source = side_memory(&bed->sides[put ? A : B], from, BULK_BYTES);
	relay.room = side_memory(&bed->sides[put ? B : A], to, BULK_BYTES);
	buf_fill(&relay.source, 77);
	relay.region = put ? link_expose(owner, &relay.room, TERN_ACCESS_WRITE)
			   : link_expose(owner, &relay.source, TERN_ACCESS_READ);
	relay.chunk = TERN_MIN(a->conn->chunk_bytes, BULK_BYTES / 8);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(relay.work); i++) {
		relay.work[i].link = a;
		relay.work[i].then = relay_next;
		relay.work[i].arg = &relay;
		relay_next(&relay.work[i]);
	}
	PUMP(bed, relay.next == relay.bytes && a->ops_out == 0);
	link_say_surely(a, 0);
	PUMP(bed, b->heard == 1);
	assert_true(buf_holds(&relay.room, 77));
	bed_free(bed);
}

static void test_bulk_between_slabs(const struct instance *instance)
{
	bulk(instance, SLAB, SLAB);
}

static void test_bulk_into_user_memory(const struct instance *instance)
{
	bulk(instance, SLAB, USER);
}

static void test_transfers_register_nothing(const struct instance *instance)
{
	struct bed *bed = bed_new(instance);
	struct tern_domain_stats before[2], after;
	struct tern_buf source = side_memory(&bed->sides[A], SLAB, 100000);
	struct tern_buf room = side_memory(&bed->sides[B], SLAB, 100000);
	struct link *a, *b;

	bed_pair(bed, &a, &b);
	for (int i = 0; i < 2; i++)
		tern_domain_stats(bed->sides[i].domain, &before[i]);
	for (int i = 0; i < 30; i++) {
		struct tern_region region =
			link_expose(b, &room, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
		struct work work = {0};

		if (link_caps(a) & TERN_CAP_PUT) {
			link_put_surely(a, &work, &source, &region, 0);
			PUMP(bed, work.done_count);
		}
		if (link_caps(a) & TERN_CAP_GET) {
			link_get_surely(a, &work, &source, &region, 0);
			PUMP(bed, work.done_count);
		}
		side_withdraw(&bed->sides[B], &region);
	}
	for (int i = 0; i < 2; i++) {
		tern_domain_stats(bed->sides[i].domain, &after);
		assert_int_equal(after.registration_count, before[i].registration_count);
		assert_int_equal(after.registered_bytes, before[i].registered_bytes);
	}
	bed_free(bed);
}

const struct conformance_test conformance_memory[] = {
	CONFORMANCE(test_put_between_slabs, NEEDS_PUT),
	CONFORMANCE(test_put_from_and_into_user_memory, NEEDS_PUT),
	CONFORMANCE(test_the_source_of_a_put_may_be_reused_when_done, NEEDS_PUT),
	CONFORMANCE(test_a_message_comes_behind_the_puts_before_it, NEEDS_PUT),
	CONFORMANCE(test_a_put_that_is_refused_with_eagain_took_nothing, NEEDS_PUT),
	CONFORMANCE(test_get_between_slabs, NEEDS_GET),
	CONFORMANCE(test_get_from_slab_into_user_memory, NEEDS_GET),
	CONFORMANCE(test_get_from_user_memory, NEEDS_GET),
	CONFORMANCE(test_many_gets_run_at_once, NEEDS_GET),
	CONFORMANCE(test_peek_reads_in_place, NEEDS_PEEK),
	CONFORMANCE(test_what_is_peeked_outlives_the_conn_and_keeps_its_owner_waiting,
		NEEDS_PEEK),
	CONFORMANCE(test_peek_sees_what_was_written_before_the_message, NEEDS_PEEK),
	CONFORMANCE(test_peek_outside_slabs_is_enotsup_or_right, NEEDS_PEEK),
	CONFORMANCE(test_bulk_between_slabs, NEEDS_NOTHING),
	CONFORMANCE(test_bulk_into_user_memory, NEEDS_NOTHING),
	CONFORMANCE(test_transfers_register_nothing, NEEDS_NOTHING),
	{0},
};
