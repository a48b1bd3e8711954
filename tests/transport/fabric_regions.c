/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of regions (memory that a peer may access): who may use them, what they cover,
 * when they end, and what a peer with a wrong region can do. In these tests B owns the
 * memory. A accesses it by puts or gets, as far as the fabric has them.
 *
 * A refused access may end the peer's conn (for a put with -EPROTO at the owner of the
 * memory), the bytes may only be dropped, or the request refused: fabric.h allows each of
 * these, and so do the tests. The memory
 * must never be changed, and other conns must not be affected.
 */
#include "tests/harness/bed.h"

#include <errno.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"

#define ROOM_BYTES 4096u

/* Both ends with their memory: A's is private. Of B's, `room`, most tests expose the middle
 * third to A; the rest must never change. */
struct scene {
	struct bed *bed;
	struct link *a, *b;
	struct tern_buf mine, room;
};

static void scene_init(struct scene *scene, const struct instance *instance)
{
	scene->bed = bed_new(instance);
	scene->mine = side_memory(&scene->bed->sides[A], SLAB, ROOM_BYTES);
	scene->room = side_memory(&scene->bed->sides[B], SLAB, 3 * ROOM_BYTES);
	bed_pair(scene->bed, &scene->a, &scene->b);
	buf_fill(&scene->mine, 1);
	buf_fill(&scene->room, 2);
}

static struct tern_buf scene_middle(const struct scene *scene)
{
	return buf_part(&scene->room, ROOM_BYTES, ROOM_BYTES);
}

static void check_alive(struct bed *bed, struct link *from, struct link *to)
{
	uint64_t heard = to->heard;

	link_say_surely(from, 20);
	PUMP(bed, to->heard == heard + 1);
}

/* Tries a put that must not write. The conn may end, but B's memory must be unchanged. */
static void put_in_vain(struct scene *scene, struct link *from, struct link *to,
	const struct tern_region *region, uint64_t offset, uint64_t bytes)
{
	struct tern_buf part = buf_part(&scene->mine, 0, bytes);
	uint64_t said = from->said;
	struct work work = {0};
	int r;

	PUMP(scene->bed, (r = link_put(from, &work, &part, region, offset)) != -EAGAIN);
	assert_true(r <= 0);
	PUMP(scene->bed, link_say(from, 0) != -EAGAIN);
	PUMP(scene->bed,
		to->heard == said + 1 || (from->closed_count && to->closed_count));
	assert_true(buf_holds(&scene->room, 2));
	if (r == 0)
		PUMP(scene->bed, work.done_count);
	if (to->closed_count) {
		assert_int_equal(to->heard, said);
		assert_int_equal(to->status, -EPROTO);
		assert_true(from->status < 0);
	} else {
		check_alive(scene->bed, from, to);
	}
}

/* Tries a get that must not succeed. The conn may end, but A's memory must be
 * unchanged. */
static void get_in_vain(struct scene *scene, struct link *from, struct link *to,
	const struct tern_region *region, uint64_t offset, uint64_t bytes)
{
	struct tern_buf part = buf_part(&scene->mine, 0, bytes);
	struct work work = {0};
	int r;

	PUMP(scene->bed, (r = link_get(from, &work, &part, region, offset)) != -EAGAIN);
	assert_true(r <= 0);
	if (r == 0) {
		PUMP(scene->bed, work.done_count);
		assert_true(work.status < 0);
	}
	bed_settle(scene->bed);
	if (from->closed_count || to->closed_count)
		PUMP(scene->bed, from->closed_count && to->closed_count);
	else
		check_alive(scene->bed, from, to);
	assert_true(buf_holds(&scene->mine, 1));
}

static void scene_again(struct scene *scene)
{
	if (!scene->a->conn)
		bed_pair(scene->bed, &scene->a, &scene->b);
}

struct beyond {
	uint64_t offset, bytes;
};

static const struct beyond beyond[] = {
	{ROOM_BYTES, 1},
	{ROOM_BYTES - 1, 2},
	{0, 0 /* 0 stands for ROOM_BYTES + 1: see below */},
	{ROOM_BYTES + 1, 8},
	{UINT64_MAX, 1},
	{UINT64_MAX - 7, 8},
	{UINT64_MAX - ROOM_BYTES + 1, ROOM_BYTES},
	{(uint64_t)0 - ROOM_BYTES, 64},
	{(uint64_t)1 << 32, 8},
	{(uint64_t)1 << 63, 8},
};

static void out_of_bounds(const struct instance *instance, bool put)
{
	struct scene scene;

	scene_init(&scene, instance);
	scene.mine = side_memory(&scene.bed->sides[A], SLAB, 2 * ROOM_BYTES);
	buf_fill(&scene.mine, 1);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(beyond); i++) {
		struct tern_buf middle = scene_middle(&scene);
		struct tern_region region;
		uint64_t bytes = beyond[i].bytes ? beyond[i].bytes : ROOM_BYTES + 1;
		struct link *a2, *b2;

		scene_again(&scene);
		bed_pair(scene.bed, &a2, &b2);
		region = link_expose(
			scene.b, &middle, put ? TERN_ACCESS_WRITE : TERN_ACCESS_READ);
		if (put)
			put_in_vain(&scene, scene.a, scene.b, &region, beyond[i].offset,
				bytes);
		else
			get_in_vain(&scene, scene.a, scene.b, &region, beyond[i].offset,
				bytes);
		check_alive(scene.bed, a2, b2);
		side_withdraw(&scene.bed->sides[B], &region);
	}
	bed_free(scene.bed);
}

static void test_a_put_out_of_bounds_touches_nothing(const struct instance *instance)
{
	out_of_bounds(instance, true);
}

static void test_a_get_out_of_bounds_fails(const struct instance *instance)
{
	out_of_bounds(instance, false);
}

static void test_a_region_for_reading_cannot_be_written(const struct instance *instance)
{
	struct scene scene;
	struct tern_buf middle;
	struct tern_region region;

	scene_init(&scene, instance);
	middle = scene_middle(&scene);
	region = link_expose(scene.b, &middle, TERN_ACCESS_READ);
	put_in_vain(&scene, scene.a, scene.b, &region, 0, 64);
	bed_free(scene.bed);
}

static void test_a_region_for_writing_cannot_be_read(const struct instance *instance)
{
	struct scene scene;
	struct tern_buf middle;
	struct tern_region region;

	scene_init(&scene, instance);
	middle = scene_middle(&scene);
	region = link_expose(scene.b, &middle, TERN_ACCESS_WRITE);
	get_in_vain(&scene, scene.a, scene.b, &region, 0, 64);
	bed_free(scene.bed);
}

static void test_a_put_into_a_stale_region_touches_nothing(
	const struct instance *instance)
{
	struct scene scene;

	scene_init(&scene, instance);
	for (int i = 0; i < 20; i++) {
		struct tern_buf middle = scene_middle(&scene);
		struct tern_region stale, fresh;

		scene_again(&scene);
		stale = link_expose(scene.b, &middle, TERN_ACCESS_WRITE);
		side_withdraw(&scene.bed->sides[B], &stale);
		/* The new region most likely gets the table entry of the old one. */
		fresh = link_expose(scene.b, &middle, TERN_ACCESS_WRITE);
		assert_memory_not_equal(&stale, &fresh, sizeof(stale));
		put_in_vain(&scene, scene.a, scene.b, &stale, 0, 100);
		side_withdraw(&scene.bed->sides[B], &fresh);
	}
	bed_free(scene.bed);
}

static void test_a_put_that_crossed_its_withdrawal_is_no_crime(
	const struct instance *instance)
{
	enum { BYTES = 4u << 20 };
	struct bed *bed = bed_new(instance);
	struct tern_buf source = side_memory(&bed->sides[A], SLAB, BYTES);
	struct tern_buf room = side_memory(&bed->sides[B], SLAB, BYTES);
	struct link *a, *b;

	bed_pair(bed, &a, &b);
	buf_fill(&source, 1);
	/* B revokes the region before the first byte of the put arrives, between two
	 * bytes, or after the last one. */
	for (int turns = 0; turns < 40; turns += 2) {
		struct tern_region region = link_expose(b, &room, TERN_ACCESS_WRITE);
		struct work work = {0};

		link_put_surely(a, &work, &source, &region, 0);
		for (int i = 0; i < turns; i++)
			bed_turn(bed);
		side_withdraw(&bed->sides[B], &region);
		buf_fill(&room, 9);
		check_alive(bed, a, b);
		assert_true(buf_holds(&room, 9));
		PUMP(bed, work.done_count);
		assert_int_equal(work.status, 0);
	}
	bed_free(bed);
}

static void test_another_owners_region_cannot_be_used(const struct instance *instance)
{
	struct scene scene;
	struct tern_buf middle;
	struct tern_region region;
	struct link *a2, *b2;

	scene_init(&scene, instance);
	middle = scene_middle(&scene);
	bed_pair(scene.bed, &a2, &b2);
	region = link_expose(scene.b, &middle, TERN_ACCESS_WRITE | TERN_ACCESS_READ);
	if (link_caps(a2) & TERN_CAP_PUT)
		put_in_vain(&scene, a2, b2, &region, 0, 64);
	check_alive(scene.bed, scene.a, scene.b);
	scene_again(&scene);
	if (!a2->conn)
		bed_pair(scene.bed, &a2, &b2);
	/* Skipped where a peek is possible: memory that is mapped read-only is readable
	 * for any process that has the mapping. */
	if ((link_caps(a2) & TERN_CAP_GET) && !(link_caps(a2) & TERN_CAP_PEEK))
		get_in_vain(&scene, a2, b2, &region, 0, 64);
	check_alive(scene.bed, scene.a, scene.b);
	bed_free(scene.bed);
}

static struct link *first_owner;

static void same_owner(struct link *link)
{
	link->conn->owner = first_owner;
}

/* Puts `mine` into B's region over conn `a`, or gets B's region into `mine`, and checks
 * that the bytes have arrived. */
static void reach(struct scene *scene, struct link *a, struct link *b,
	const struct tern_region *region, bool put)
{
	struct tern_buf middle = scene_middle(scene);
	uint64_t heard = b->heard;
	struct work work = {0};

	buf_fill(&scene->mine, 1);
	buf_fill(&scene->room, 2);
	if (put) {
		link_put_surely(a, &work, &scene->mine, region, 0);
		link_say_surely(a, 0);
		PUMP(scene->bed, b->heard == heard + 1);
		assert_true(buf_holds(&middle, 1));
	} else {
		link_get_surely(a, &work, &scene->mine, region, 0);
	}
	PUMP(scene->bed, work.done_count);
	assert_int_equal(work.status, 0);
	if (!put)
		assert_true(pattern_holds(
			tern_buf_ptr(&scene->mine), ROOM_BYTES, 2, ROOM_BYTES));
}

static void test_a_later_conn_of_the_same_owner_may_use_a_region(
	const struct instance *instance)
{
	struct scene scene;
	struct tern_buf middle;
	struct tern_region region[2];
	struct link *a2, *b2;
	uint32_t caps;

	scene_init(&scene, instance);
	middle = scene_middle(&scene);
	caps = link_caps(scene.a);
	region[0] = link_expose(scene.b, &middle, TERN_ACCESS_WRITE);
	region[1] = link_expose(scene.b, &middle, TERN_ACCESS_READ);
	first_owner = scene.b;
	scene.bed->sides[B].on_accepted = same_owner;
	for (int i = 0; i < 2; i++) {
		bed_pair(scene.bed, &a2, &b2);
		if (caps & TERN_CAP_PUT)
			reach(&scene, a2, b2, &region[0], true);
		if (caps & TERN_CAP_GET)
			reach(&scene, a2, b2, &region[1], false);
		if (i == 1)
			break;
		/* In round 1 the conn on which the regions were made is closed first, as
		 * after a reconnect. */
		link_close(a2, false);
		link_close(scene.a, false);
		PUMP(scene.bed, scene.b->closed_count && b2->closed_count);
	}
	side_withdraw(&scene.bed->sides[B], &region[0]);
	side_withdraw(&scene.bed->sides[B], &region[1]);
	bed_free(scene.bed);
}

static void test_withdraw_needs_no_conn(const struct instance *instance)
{
	struct scene scene;
	struct tern_region region[8];

	scene_init(&scene, instance);
	for (int i = 0; i < 8; i++)
		region[i] = link_expose(scene.b, &scene.room, TERN_ACCESS_WRITE);
	link_close(scene.a, false);
	PUMP(scene.bed, scene.a->closed_count && scene.b->closed_count);
	for (int i = 0; i < 8; i++) {
		struct work work = {0};

		/* No conn is left that could write, so the region is revoked at once. */
		assert_false(
			side_withdraw_start(&scene.bed->sides[B], &work, &region[i]));
	}
	bed_free(scene.bed);
}

static void test_nothing_lands_after_closed(const struct instance *instance)
{
	enum { BYTES = 16u << 20 };
	struct bed *bed = bed_new(instance);
	struct tern_buf source = side_memory(&bed->sides[A], SLAB, BYTES);
	struct tern_buf room = side_memory(&bed->sides[B], SLAB, BYTES);

	for (int round = 0; round < 6; round++) {
		struct work work = {0};
		struct tern_region region;
		struct link *a, *b;

		bed_pair(bed, &a, &b);
		region = link_expose(b, &room, TERN_ACCESS_WRITE);
		link_put_surely(a, &work, &source, &region, 0);
		for (int i = 0; i < round * 3; i++)
			bed_turn(bed);
		link_close(round % 2 ? a : b, false);
		PUMP(bed, b->closed_count);
		buf_fill(&room, 9);
		bed_settle(bed);
		assert_true(buf_holds(&room, 9));
		PUMP(bed, a->closed_count);
		assert_int_equal(work.done_count, 1);
		side_withdraw(&bed->sides[B], &region);
	}
	bed_free(bed);
}

static void test_every_op_ends_before_closed(const struct instance *instance)
{
	enum { OPS = 30, BYTES = 1u << 20 };
	struct bed *bed = bed_new(instance);
	struct tern_buf mine = side_memory(&bed->sides[A], SLAB, BYTES);
	struct tern_buf room = side_memory(&bed->sides[B], SLAB, BYTES);

	buf_fill(&room, 3);
	for (int round = 0; round < 8; round++) {
		struct work work[OPS] = {0};
		struct tern_region region;
		unsigned taken = 0;
		struct link *a, *b;

		bed_pair(bed, &a, &b);
		region = link_expose(b, &room, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
		while (taken < OPS) {
			bool get = !(link_caps(a) & TERN_CAP_PUT) ||
				   ((link_caps(a) & TERN_CAP_GET) && taken % 2);

			if ((get ? link_get : link_put)(
				    a, &work[taken], &mine, &region, 0))
				break;
			taken++;
		}
		assert_true(taken > 0);
		for (int i = 0; i < round; i++)
			bed_turn(bed);
		link_close(round % 2 ? a : b, false);
		PUMP(bed,
			/* When `closed` is called, the bed checks that all operations
			 * have ended. */
			a->closed_count && b->closed_count);
		for (unsigned i = 0; i < taken; i++)
			assert_int_equal(work[i].done_count, 1);
		side_withdraw(&bed->sides[B], &region);
	}
	bed_free(bed);
}

static void test_forged_regions_do_no_harm(const struct instance *instance)
{
	struct tern_rng rng = {.seed = 6};
	struct scene scene;

	scene_init(&scene, instance);
	for (int i = 0; i < 270; i++) {
		struct tern_buf middle = scene_middle(&scene);
		struct tern_region region, forged;
		struct link *a2, *b2;

		scene_again(&scene);
		region = link_expose(scene.b, &middle, TERN_ACCESS_READ);
		forged = region;
		if (i < 256)
			forged.word[i / 64] ^= 1ull << (i % 64);
		else
			for (int w = 0; w < 4; w++)
				forged.word[w] = i % 8 ? tern_rng_next(&rng) : UINT64_MAX;
		if (link_caps(scene.a) & TERN_CAP_PUT) {
			put_in_vain(&scene, scene.a, scene.b, &forged, 0, 512);
		} else {
			struct work work = {0};

			/* The forged region may name other bytes of the same mapping, so
			 * a get may succeed. */
			if (link_get(scene.a, &work, &scene.mine, &forged, 0) == 0)
				PUMP(scene.bed, work.done_count);
			bed_settle(scene.bed);
		}
		if (i % 50 == 0) {
			bed_pair(scene.bed, &a2, &b2);
			check_alive(scene.bed, a2, b2);
			link_close(a2, false);
		}
		side_withdraw(&scene.bed->sides[B], &region);
	}
	bed_free(scene.bed);
}

static void test_empty_exposures_are_allowed(const struct instance *instance)
{
	struct scene scene;
	struct tern_buf empty;
	struct tern_region region;

	scene_init(&scene, instance);
	empty = buf_part(&scene.room, ROOM_BYTES, 0);
	region = link_expose(scene.b, &empty, TERN_ACCESS_WRITE | TERN_ACCESS_READ);
	if ((link_caps(scene.a) & TERN_CAP_PUT) &&
		!(link_caps(scene.a) & TERN_CAP_UNGUARDED) && !scene.bed->world)
		put_in_vain(&scene, scene.a, scene.b, &region, 0, 1);
	side_withdraw(&scene.bed->sides[B], &region);
	/* An empty range at the end of the memory. */
	empty = buf_part(&scene.room, scene.room.bytes, 0);
	scene_again(&scene);
	region = link_expose(scene.b, &empty, TERN_ACCESS_READ);
	side_withdraw(&scene.bed->sides[B], &region);
	bed_free(scene.bed);
}

static void test_regions_run_out_and_come_back(const struct instance *instance)
{
	enum { MOST = 1 << 18 };
	struct scene scene;
	struct tern_region *region = calloc(MOST, sizeof(*region));
	const struct tern_fabric_ops *ops;
	struct tern_buf middle;
	struct link *a2, *b2;
	unsigned count = 0;
	int r = 0;

	assert_non_null(region);
	scene_init(&scene, instance);
	ops = scene.b->side->fabric->ops;
	middle = scene_middle(&scene);
	while (count < MOST &&
		(r = ops->expose(scene.b->conn, middle.mem, middle.offset, middle.bytes,
			 TERN_ACCESS_WRITE, &region[count])) == 0)
		count++;
	/* Suffices for 256 transfers on each of four channels. */
	assert_true(count >= 1024);
	if (count < MOST)
		assert_int_equal(r, -EAGAIN);
	/* New conns must come up even if the table of regions is full. */
	bed_pair(scene.bed, &a2, &b2);
	check_alive(scene.bed, a2, b2);
	for (unsigned i = 0; i < count; i += 2)
		side_withdraw(&scene.bed->sides[B], &region[i]);
	for (unsigned i = 0; i < count; i += 2)
		assert_int_equal(
			ops->expose(scene.b->conn, middle.mem, middle.offset,
				middle.bytes, TERN_ACCESS_READ | TERN_ACCESS_WRITE,
				&region[i]),
			0);
	reach(&scene, scene.a, scene.b, &region[count - 2 + count % 2],
		link_caps(scene.a) & TERN_CAP_PUT);
	for (unsigned i = 0; i < count; i++)
		side_withdraw(&scene.bed->sides[B], &region[i]);
	bed_free(scene.bed);
	free(region);
}

static void test_memory_that_comes_and_goes_is_never_mixed_up(
	const struct instance *instance)
{
	struct scene scene;

	scene_init(&scene, instance);
	for (uint64_t i = 10; i < 30; i++) {
		struct tern_pool_opts opts = {.slab_bytes = 1u << 21};
		struct side *side = &scene.bed->sides[B];
		struct tern_region region;
		struct work work = {0};
		struct tern_pool *pool;
		struct tern_buf buf;

		assert_int_equal(tern_pool_new(side->domain, &opts, &pool), 0);
		assert_int_equal(tern_pool_get(pool, ROOM_BYTES, &buf), 0);
		buf_fill(&buf, i);
		region = link_expose(scene.b, &buf, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
		if (link_caps(scene.a) & TERN_CAP_GET) {
			link_get_surely(scene.a, &work, &scene.mine, &region, 0);
			PUMP(scene.bed, work.done_count);
			assert_int_equal(work.status, 0);
			assert_true(buf_holds(&scene.mine, i));
		}
		if (link_caps(scene.a) & TERN_CAP_PUT) {
			buf_fill(&scene.mine, i + 100);
			link_put_surely(scene.a, &work, &scene.mine, &region, 0);
			check_alive(scene.bed, scene.a, scene.b);
			assert_true(buf_holds(&buf, i + 100));
			PUMP(scene.bed, work.done_count);
		}
		side_withdraw(side, &region);
		tern_pool_put(pool, &buf);
		tern_pool_free(pool);
	}
	bed_free(scene.bed);
}

static void test_what_a_peer_does_wrong_is_logged_with_its_name(
	const struct instance *instance)
{
	struct scene scene;
	struct tern_region region = {{0}};
	struct log_env *log;
	char name[80];

	scene_init(&scene, instance);
	log = &scene.bed->sides[B].log;
	strcpy(name, scene.b->conn->name);
	memset(&region, 0xff, sizeof(region));
	put_in_vain(&scene, scene.a, scene.b, &region, 0, 64);
	if (scene.bed->world || !scene.b->closed_count)
		SKIP(scene.bed,
			"the fabric only drops the bytes, or the log cannot be read");
	assert_true(log_env_has(log, name));
	bed_free(scene.bed);
}

const struct conformance_test conformance_regions[] = {
	CONFORMANCE(test_a_put_out_of_bounds_touches_nothing, NEEDS_PUT | NEEDS_LIES),
	CONFORMANCE(test_a_get_out_of_bounds_fails, NEEDS_GET | NEEDS_LIES),
	CONFORMANCE(test_a_region_for_reading_cannot_be_written, NEEDS_PUT | NEEDS_LIES),
	CONFORMANCE(test_a_region_for_writing_cannot_be_read, NEEDS_GET | NEEDS_LIES),
	CONFORMANCE(
		test_a_put_into_a_stale_region_touches_nothing, NEEDS_PUT | NEEDS_GUARD),
	CONFORMANCE(test_a_put_that_crossed_its_withdrawal_is_no_crime,
		NEEDS_PUT | NEEDS_GUARD),
	CONFORMANCE(test_another_owners_region_cannot_be_used, NEEDS_LIES),
	CONFORMANCE(test_a_later_conn_of_the_same_owner_may_use_a_region, NEEDS_NOTHING),
	CONFORMANCE(test_withdraw_needs_no_conn, NEEDS_NOTHING),
	CONFORMANCE(test_nothing_lands_after_closed, NEEDS_PUT),
	CONFORMANCE(test_every_op_ends_before_closed, NEEDS_NOTHING),
	CONFORMANCE(test_forged_regions_do_no_harm, NEEDS_LIES),
	CONFORMANCE(test_empty_exposures_are_allowed, NEEDS_NOTHING),
	CONFORMANCE(test_regions_run_out_and_come_back, NEEDS_NOTHING),
	CONFORMANCE(test_memory_that_comes_and_goes_is_never_mixed_up, NEEDS_NOTHING),
	CONFORMANCE(test_what_a_peer_does_wrong_is_logged_with_its_name,
		NEEDS_PUT | NEEDS_LIES),
	{0},
};
