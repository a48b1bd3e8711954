/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance of the collectives: calls that differ, ranks that are lost, stand still, leave
 * or do not call. Every other rank must get an error that names the rank, and none may
 * hang. */
#include "tests/group/ranks.h"

#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/util.h"
#include "group/group.h"

#define COUNT    4u
#define LIMIT_NS (400 * TERN_NS_PER_MS)
#define BYTES    20000u

struct call {
	enum { ALLREDUCE, BROADCAST, BARRIER, ALL_TO_ALL } kind;
	enum tern_dtype dtype;
	enum tern_reduction how;
	uint64_t bytes;
	uint32_t root;
};

static const struct call usual = {ALLREDUCE, TERN_F32, TERN_REDUCE_SUM, BYTES, 0};

static struct ranks *make(const struct instance *instance, uint32_t count)
{
	struct ranks *ranks = ranks_new(instance, count);
	struct tern_group_opts opts = ranks_opts();

	opts.timeout_ns = LIMIT_NS;
	ranks_group(ranks, &opts);
	return ranks;
}

static int start(struct turn *turn, const struct call *call)
{
	struct tern_group *g = turn->rank->group;
	struct tern_buf buf = rank_memory(turn->rank, call->bytes);

	memset(tern_buf_ptr(&buf), 1, call->bytes);
	switch (call->kind) {
	case ALLREDUCE:
		return tern_allreduce(g, &turn->req, call->dtype, call->how, &buf, &buf);
	case BROADCAST:
		return tern_broadcast(g, &turn->req, &buf, call->root);
	case BARRIER:
		return tern_barrier(g, &turn->req);
	case ALL_TO_ALL:
		return tern_all_to_all(g, &turn->req, &buf, &buf);
	}
	return -EINVAL;
}

static void start_all(struct ranks *ranks, struct turn *turns, const struct call *call)
{
	for (uint32_t i = 0; i < ranks->count; i++) {
		turn_init(&turns[i], &ranks->of[i]);
		assert_int_equal(start(&turns[i], call), 0);
	}
}

/* True if the group has failed at every rank but `but`. */
static bool all_failed(const struct ranks *ranks, uint32_t but)
{
	for (uint32_t i = 0; i < ranks->count; i++)
		if (i != but && tern_group_status(ranks->of[i].group) == 0)
			return false;
	return true;
}

static void assert_says(const struct rank *rank, const char *text)
{
	if (!strstr(tern_group_text(rank->group), text))
		fail_msg("rank %u: \"%s\" does not say \"%s\"", rank->number,
			tern_group_text(rank->group), text);
}

/* All ranks but `but` have an error that says `text`, and refuse further calls with it. */
static void check_failed(struct ranks *ranks, struct turn *turns, uint32_t but,
	int status, const char *text)
{
	for (uint32_t i = 0; i < ranks->count; i++) {
		struct rank *rank = &ranks->of[i];
		struct turn more;

		if (i == but)
			continue;
		if (status)
			assert_int_equal(tern_group_status(rank->group), status);
		assert_int_equal(turns[i].req.status, tern_group_status(rank->group));
		assert_says(rank, text);
		turn_init(&more, rank);
		assert_int_equal(start(&more, &usual), tern_group_status(rank->group));
		assert_int_equal(more.done_count, 0);
	}
}

/* Rank 1 makes its group with another layout, under which it would cut tensors in another
 * way. */
static void test_groups_that_differ_fail_at_all_ranks(const struct instance *instance)
{
	static const uint32_t hosts[] = {0, 1, 1};

	for (unsigned c = 0; c < 2; c++) {
		struct ranks *ranks = ranks_new(instance, 3);
		struct turn turns[RANKS_MAX];

		for (uint32_t i = 0; i < 3; i++) {
			struct tern_group_opts opts = ranks_opts();

			opts.timeout_ns = LIMIT_NS;
			opts.rank = i;
			opts.size = 3;
			opts.peers = ranks->of[i].peers;
			if (i == 1 && c == 0)
				opts.piece_bytes *= 2;
			else if (i == 1)
				opts.hosts = hosts;
			assert_int_equal(tern_group_new(ranks->of[i].ctx, &opts,
						 &ranks->of[i].group),
				0);
		}
		start_all(ranks, turns, &usual);
		RANKS_PUMP(ranks, turns_over(turns, 3) && all_failed(ranks, RANKS_MAX));
		check_failed(ranks, turns, RANKS_MAX, -EBADMSG,
			"differ in size, hosts or piece_bytes");
		ranks_free(ranks);
	}
}

/* Rank 0 gives rank 1 another number of bytes than rank 1 awaits: few, or whole pieces more
 * or less. */
static void test_unequal_parts_that_differ_are_named(const struct instance *instance)
{
	static const uint64_t given[] = {0, 8, 64, 2048, 4096},
			      due[] = {8, 0, 63, 4096, 1024};

	for (unsigned c = 0; c < TERN_ARRAY_SIZE(given); c++) {
		struct ranks *ranks = make(instance, 3);
		struct turn turns[RANKS_MAX];
		uint64_t in[3][3] = {{0, given[c], 5}}, out[3][3] = {{0}, {due[c]}, {5}};

		for (uint32_t i = 0; i < 3; i++) {
			struct rank *rank = &ranks->of[i];
			struct tern_buf from = rank_memory(rank, in[i][1] + in[i][2]);
			struct tern_buf to = rank_memory(rank, out[i][0]);

			turn_init(&turns[i], rank);
			assert_int_equal(tern_all_to_all_v(rank->group, &turns[i].req,
						 &from, in[i], &to, out[i]),
				0);
		}
		RANKS_PUMP(ranks, turns_over(turns, 3) && all_failed(ranks, RANKS_MAX));
		/* The other two may have ended before: what they have is right. */
		assert_int_equal(turns[1].req.status, -EBADMSG);
		for (uint32_t i = 0; i < 3; i++) {
			assert_int_equal(tern_group_status(ranks->of[i].group), -EBADMSG);
			assert_says(&ranks->of[i], "have different sizes there");
		}
		ranks_free(ranks);
	}
}

/* Rank 1 calls something else. */
static void differ(
	const struct instance *instance, const struct call *call, const char *text)
{
	struct ranks *ranks = make(instance, 3);
	struct turn turns[RANKS_MAX];

	for (uint32_t i = 0; i < 3; i++) {
		turn_init(&turns[i], &ranks->of[i]);
		assert_int_equal(start(&turns[i], i == 1 ? call : &usual), 0);
	}
	RANKS_PUMP(ranks, turns_over(turns, 3) && all_failed(ranks, RANKS_MAX));
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(tern_group_status(ranks->of[i].group), -EBADMSG);
		assert_says(&ranks->of[i], "operation 0 differs");
		assert_says(&ranks->of[i], text);
		assert_says(&ranks->of[i], "allreduce of 20000 bytes, f32, sum");
	}
	ranks_free(ranks);
}

static void test_calls_that_differ_fail_at_all_ranks(const struct instance *instance)
{
	struct call call = usual;

	call.bytes = 8;
	differ(instance, &call, "allreduce of 8 bytes, f32, sum");
	call = usual;
	call.dtype = TERN_I32;
	differ(instance, &call, "allreduce of 20000 bytes, i32, sum");
	call = usual;
	call.how = TERN_REDUCE_MAX;
	differ(instance, &call, "allreduce of 20000 bytes, f32, max");
	call = (struct call){.kind = BARRIER};
	differ(instance, &call, "barrier");
	call = (struct call){.kind = BROADCAST, .bytes = 100, .root = 1};
	differ(instance, &call, "broadcast of 100 bytes, root 1");
}

static void test_roots_that_differ_fail_at_all_ranks(const struct instance *instance)
{
	struct ranks *ranks = make(instance, 2);
	struct turn turns[RANKS_MAX];

	for (uint32_t i = 0; i < 2; i++) {
		turn_init(&turns[i], &ranks->of[i]);
		assert_int_equal(start(&turns[i], &(struct call){.kind = BROADCAST,
							  .bytes = 64,
							  .root = i}),
			0);
	}
	RANKS_PUMP(ranks, turns_over(turns, 2) && all_failed(ranks, RANKS_MAX));
	for (uint32_t i = 0; i < 2; i++) {
		assert_says(&ranks->of[i], "root 0");
		assert_says(&ranks->of[i], "root 1");
	}
	ranks_free(ranks);
}

/* Its context ends without a word to the group. */
static void lose(struct rank *rank)
{
	struct tern_group *g = rank->group;

	rank->group = NULL;
	rank_end(rank);
	tern_group_free(g);
}

static void test_a_lost_rank_is_named_by_all(const struct instance *instance)
{
	static const struct call calls[] = {
		{ALLREDUCE, TERN_F32, TERN_REDUCE_SUM, BYTES, 0},
		{BROADCAST, TERN_U8, 0, 4u << 20, 0}, {BARRIER, TERN_U8, 0, 0, 0},
		{ALL_TO_ALL, TERN_U8, 0, 4u << 20, 0}};

	for (unsigned c = 0; c < TERN_ARRAY_SIZE(calls); c++) {
		struct ranks *ranks = make(instance, COUNT);
		struct turn turns[RANKS_MAX];

		for (uint32_t i = 0; i < COUNT; i++) {
			turn_init(&turns[i], &ranks->of[i]);
			/* Rank 2 calls in half of the cases. */
			if (i != 2 || c % 2)
				assert_int_equal(start(&turns[i], &calls[c]), 0);
		}
		for (unsigned t = 0; t < 3; t++)
			ranks_turn(ranks);
		lose(&ranks->of[2]);
		RANKS_PUMP(ranks, turns_over(turns, COUNT));
		for (uint32_t i = 0; i < COUNT; i++)
			if (i != 2 && turns[i].req.status == 0)
				fail_msg("rank %u ended well without rank 2", i);
		check_failed(ranks, turns, 2, 0, "rank 2 (r2");
		ranks_free(ranks);
	}
}

static void test_a_stalled_rank_is_named_by_all(const struct instance *instance)
{
	for (unsigned c = 0; c < 2; c++) {
		struct ranks *ranks = make(instance, COUNT);
		struct turn turns[RANKS_MAX];
		struct call call = usual;

		call.bytes = c ? 8u << 20 : BYTES;
		start_all(ranks, turns, &call);
		ranks_turn(ranks);
		ranks->of[2].asleep = true;
		RANKS_PUMP(ranks, turns_over(turns, COUNT));
		check_failed(ranks, turns, 2, -ETIMEDOUT, "rank 2 (r2");
		/* The rest of the line depends on how busy the machine is. */
		assert_says(&ranks->of[0], "operation 0 (allreduce of");
		ranks->of[2].asleep = false;
		RANKS_PUMP(ranks, turns_over(turns, COUNT));
		assert_int_not_equal(turns[2].req.status, 0);
		ranks_free(ranks);
	}
}

static void test_a_rank_that_does_not_call_is_named_by_all(
	const struct instance *instance)
{
	struct ranks *ranks = make(instance, COUNT);
	struct turn turns[RANKS_MAX];

	start_all(ranks, turns, &usual);
	RANKS_PUMP(ranks, turns_over(turns, COUNT));
	for (uint32_t i = 0; i < COUNT; i++) {
		turn_init(&turns[i], &ranks->of[i]);
		if (i != 3)
			assert_int_equal(start(&turns[i], &usual), 0);
	}
	turns[3].done_count = 1;
	RANKS_PUMP(ranks, turns_over(turns, COUNT) && all_failed(ranks, RANKS_MAX));
	check_failed(ranks, turns, 3, -ETIMEDOUT, "rank 3 (r3");
	assert_says(&ranks->of[0], "operation 1 (allreduce of");
	assert_says(&ranks->of[0], "has called only 1 operations");
	assert_int_equal(tern_group_status(ranks->of[3].group), -ETIMEDOUT);
	ranks_free(ranks);
}

/* Rank 0 has done its part in the operation that rank 1 does not call, has left the group
 * and is gone. Rank 2 must not blame it. */
static void test_a_rank_that_has_left_is_not_blamed(const struct instance *instance)
{
	static const struct call call = {.kind = BROADCAST, .bytes = 64};
	struct ranks *ranks = make(instance, 3);
	struct turn turns[RANKS_MAX];

	for (uint32_t i = 0; i < 3; i++) {
		turn_init(&turns[i], &ranks->of[i]);
		if (i != 1)
			assert_int_equal(start(&turns[i], &call), 0);
	}
	RANKS_PUMP(ranks, turns[0].done_count);
	assert_int_equal(turns[0].req.status, 0);
	tern_group_free(ranks->of[0].group);
	ranks->of[0].group = NULL;
	tern_peer_close(ranks->of[0].peers[2]);
	RANKS_PUMP(ranks, ranks->of[2].down[0]);
	RANKS_PUMP(ranks, turns[2].done_count);
	assert_int_equal(turns[2].req.status, -ETIMEDOUT);
	assert_says(&ranks->of[2], "rank 1 (r1");
	assert_says(&ranks->of[2], "has called only 0 operations");
	ranks_free(ranks);
}

/* The limit of the operation is shorter than the interval of keep-alives that the limit of
 * the group gives. */
static void test_a_short_limit_blames_the_right_rank(const struct instance *instance)
{
	struct ranks *ranks = ranks_new(instance, COUNT);
	struct tern_group_opts opts = ranks_opts();
	struct turn turns[RANKS_MAX];

	ranks_group(ranks, &opts);
	start_all(ranks, turns, &usual);
	RANKS_PUMP(ranks, turns_over(turns, COUNT));
	for (uint32_t i = 0; i < COUNT; i++) {
		turn_init(&turns[i], &ranks->of[i]);
		turns[i].req.timeout_ns = LIMIT_NS;
		if (i != 2)
			assert_int_equal(start(&turns[i], &usual), 0);
	}
	turns[2].done_count = 1;
	RANKS_PUMP(ranks, turns_over(turns, COUNT) && all_failed(ranks, RANKS_MAX));
	check_failed(ranks, turns, 2, -ETIMEDOUT, "rank 2 (r2");
	assert_says(&ranks->of[0], "has called only 1 operations");
	ranks_free(ranks);
}

/* Rank 0 polls less often than a keep-alive is due. It is no process that was stopped, and
 * must end its operation, too. */
static void test_a_rank_that_polls_rarely_keeps_its_deadline(
	const struct instance *instance)
{
	struct ranks *ranks = ranks_new(instance, 2);
	struct tern_group_opts opts = ranks_opts();
	struct turn turn;

	opts.timeout_ns = 80 * TERN_NS_PER_MS;
	ranks_group(ranks, &opts);
	turn_init(&turn, &ranks->of[0]);
	assert_int_equal(start(&turn, &usual), 0);
	for (unsigned t = 0; t < 40 && !turn.done_count; t++) {
		usleep(50000);
		ranks_turn(ranks);
	}
	assert_int_equal(turn.done_count, 1);
	assert_int_equal(turn.req.status, -ETIMEDOUT);
	assert_says(&ranks->of[0], "rank 1 (r1");
	ranks_free(ranks);
}

static void test_a_rank_that_leaves_does_not_disturb_what_has_ended(
	const struct instance *instance)
{
	struct ranks *ranks = make(instance, 3);
	struct turn turns[RANKS_MAX];

	start_all(ranks, turns, &usual);
	RANKS_PUMP(ranks, turns[1].done_count);
	tern_group_free(ranks->of[1].group);
	ranks->of[1].group = NULL;
	RANKS_PUMP(ranks, turns_over(turns, 3));
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(turns[i].req.status, 0);
	for (uint32_t i = 0; i < 3; i += 2) {
		turn_init(&turns[i], &ranks->of[i]);
		start(&turns[i], &usual);
	}
	RANKS_PUMP(ranks, turns_over(turns, 3));
	check_failed(ranks, turns, 1, -ESHUTDOWN, "rank 1 (r1");
	ranks_free(ranks);
}

/* Its peers are freed as soon as they are down: see on_event() of ranks.c. */
static void test_a_rank_that_has_left_may_end(const struct instance *instance)
{
	struct ranks *ranks = make(instance, 3);
	struct turn turns[RANKS_MAX];

	start_all(ranks, turns, &usual);
	RANKS_PUMP(ranks, turns_over(turns, 3));
	tern_group_free(ranks->of[1].group);
	ranks->of[1].group = NULL;
	for (unsigned t = 0; t < 20; t++)
		ranks_turn(ranks);
	tern_peer_close(ranks->of[1].peers[0]);
	tern_peer_close(ranks->of[1].peers[2]);
	RANKS_PUMP(ranks, ranks->of[0].down[1] && ranks->of[2].down[1]);
	assert_int_equal(tern_group_status(ranks->of[0].group), 0);
	turn_init(&turns[0], &ranks->of[0]);
	start(&turns[0], &usual);
	RANKS_PUMP(ranks, turns_over(turns, 3) && tern_group_status(ranks->of[2].group));
	assert_int_equal(tern_group_status(ranks->of[0].group), -ESHUTDOWN);
	assert_says(&ranks->of[0], "rank 1 (r1");
	assert_says(&ranks->of[2], "rank 1 (r1");
	ranks_free(ranks);
}

static void test_freeing_a_group_ends_its_operations(const struct instance *instance)
{
	struct ranks *ranks = make(instance, 3);
	struct turn turns[RANKS_MAX];

	for (uint32_t i = 0; i < 2; i++) {
		turn_init(&turns[i], &ranks->of[i]);
		assert_int_equal(start(&turns[i], &usual), 0);
	}
	ranks_turn(ranks);
	turns[2] = turns[1];
	turns[2].done_count = 1;
	tern_group_free(ranks->of[0].group);
	ranks->of[0].group = NULL;
	RANKS_PUMP(ranks, turns_over(turns, 3));
	assert_int_equal(turns[0].req.status, -ECANCELED);
	assert_int_equal(turns[1].req.status, -ECANCELED);
	assert_says(&ranks->of[1], "rank 0 has left");
	ranks_free(ranks);
}

/* Rank 1 stands still and does not let go of the memory of large pieces, when rank 0 leaves
 * the group: before its deadline, or just after it. */
static void test_freeing_a_group_ends_operations_with_a_stalled_rank(
	const struct instance *instance)
{
	for (unsigned c = 0; c < 2; c++) {
		struct ranks *ranks = ranks_new(instance, 2);
		struct tern_group_opts opts = ranks_opts();
		struct turn turns[RANKS_MAX];
		struct call call = usual;

		opts.timeout_ns = LIMIT_NS;
		opts.piece_bytes = 1u << 20;
		ranks_group(ranks, &opts);
		call.bytes = 8u << 20;
		start_all(ranks, turns, &call);
		ranks->of[1].asleep = true;
		ranks_turn(ranks);
		if (c)
			RANKS_PUMP(ranks, tern_group_status(ranks->of[0].group));
		assert_int_equal(turns[0].done_count, 0);
		tern_group_free(ranks->of[0].group);
		ranks->of[0].group = NULL;
		RANKS_PUMP(ranks, turns_over(turns, 2));
		assert_int_equal(turns[0].req.status, c ? -ETIMEDOUT : -ECANCELED);
		ranks->of[1].asleep = false;
		RANKS_PUMP(ranks, turns_over(turns, 2));
		ranks_free(ranks);
	}
}

/* Rank 1 is no group, but a program that sends a note of its own making. */
struct stranger {
	struct ranks *ranks;
	struct turn turn; /* of rank 0 */
	struct tern_req req;
	struct tern_buf note;
};

static void stranger_starts(struct stranger *s, const struct instance *instance,
	uint32_t piece_bytes, uint64_t bytes)
{
	struct call call = usual;

	s->ranks = ranks_new(instance, 2);
	call.bytes = bytes;
	assert_int_equal(tern_group_new(s->ranks->of[0].ctx,
				 &(struct tern_group_opts){.size = 2,
					 .peers = s->ranks->of[0].peers,
					 .number = 7,
					 .piece_bytes = piece_bytes,
					 .timeout_ns = LIMIT_NS},
				 &s->ranks->of[0].group),
		0);
	turn_init(&s->turn, &s->ranks->of[0]);
	assert_int_equal(start(&s->turn, &call), 0);
	s->note = rank_memory(&s->ranks->of[1], 512);
	memset(tern_buf_ptr(&s->note), 0, 512);
}

static void stranger_says(struct stranger *s, uint64_t bytes)
{
	struct tern_channel *channel;
	struct tern_tensor tensor = {.buf = buf_part(&s->note, 0, bytes),
		.shape = tern_shape_1d(TERN_U8, bytes)};

	assert_int_equal(tern_channel_open(s->ranks->of[1].peers[0], 7, &channel), 0);
	assert_int_equal(tern_send(channel, &s->req, 1, 0, &tensor, NULL, 0), 0);
	s->ranks->of[0].asleep = true;
	RANKS_PUMP(s->ranks, tern_test(&s->req) != -EINPROGRESS);
	for (unsigned t = 0; t < 20; t++)
		ranks_turn(s->ranks);
	s->ranks->of[0].asleep = false;
}

/* The status of an operation that has ended is never -EINPROGRESS. */
static void test_a_note_with_an_impossible_status(const struct instance *instance)
{
	static const int32_t statuses[] = {-EINPROGRESS, 0, 5, INT32_MIN};

	for (unsigned c = 0; c < TERN_ARRAY_SIZE(statuses); c++) {
		struct stranger s = {0};
		struct group_note *note;

		stranger_starts(&s, instance, 1024, BYTES);
		note = tern_buf_ptr(&s.note);
		note->kind = GROUP_ABORT;
		note->status = statuses[c];
		stranger_says(&s, sizeof(*note));
		RANKS_PUMP(s.ranks, s.turn.done_count);
		assert_int_equal(s.turn.req.status, -EPROTO);
		ranks_free(s.ranks);
	}
}

/* A note that does not fit fails the group. The rank is still there, and its connection is
 * cut when it does not let go of the memory of large pieces. */
static void test_a_note_that_is_too_long(const struct instance *instance)
{
	struct stranger s = {0};

	stranger_starts(&s, instance, 1u << 20, 8u << 20);
	stranger_says(&s, 512);
	s.ranks->of[1].asleep = true;
	RANKS_PUMP(s.ranks, s.turn.done_count);
	assert_int_equal(s.turn.req.status, -EMSGSIZE);
	s.ranks->of[1].asleep = false;
	ranks_free(s.ranks);
}

static void test_results_do_not_go_to_readonly_memory(const struct instance *instance)
{
	static const float page[1024];
	struct ranks *ranks = make(instance, 2);
	struct rank *rank = &ranks->of[0];
	struct tern_buf in;
	struct tern_mem *mem;
	struct turn turn;

	assert_int_equal(
		tern_mem_wrap_readonly(rank->domain, page, sizeof(page), &mem), 0);
	in = (struct tern_buf){mem, 0, sizeof(page)};
	turn_init(&turn, rank);
	assert_int_equal(
		tern_allreduce(rank->group, &turn.req, TERN_F32, 0, &in, &in), -EACCES);
	assert_int_equal(tern_broadcast(rank->group, &turn.req, &in, 1), -EACCES);
	assert_int_equal(tern_broadcast(rank->group, &turn.req, &in, 0), 0);
	tern_group_free(rank->group);
	rank->group = NULL;
	RANKS_PUMP(ranks, turn.done_count);
	tern_mem_put(mem);
	ranks_free(ranks);
}

static void test_wrong_arguments_are_refused(const struct instance *instance)
{
	struct ranks *ranks = make(instance, 2);
	struct rank *rank = &ranks->of[0];
	struct tern_group *g = rank->group, *other;
	struct tern_buf buf = rank_memory(rank, 64), odd = buf_part(&buf, 0, 62);
	struct tern_buf half = buf_part(&buf, 0, 32), far = buf;
	struct tern_group_opts opts = {.size = 2, .peers = rank->peers, .number = 9};
	struct turn turn;

	turn_init(&turn, rank);
	far.offset += 1u << 30;
	assert_int_equal(tern_allreduce(g, &turn.req, TERN_F32, 0, &odd, &odd), -EINVAL);
	assert_int_equal(tern_allreduce(g, &turn.req, TERN_F32, 0, &buf, &half), -EINVAL);
	assert_int_equal(tern_allreduce(g, &turn.req, TERN_F32, 0, &far, &far), -EINVAL);
	assert_int_equal(
		tern_allreduce(g, &turn.req, TERN_F32, TERN_REDUCE_OR, &buf, &buf),
		-EINVAL);
	assert_int_equal(tern_allreduce(g, &turn.req, 99, 0, &buf, &buf), -EINVAL);
	assert_int_equal(tern_broadcast(g, &turn.req, &buf, 2), -EINVAL);
	assert_int_equal(tern_all_gather(g, &turn.req, &buf, &buf), -EINVAL);
	assert_int_equal(tern_gather(g, &turn.req, &buf, NULL, 0), -EINVAL);
	assert_int_equal(tern_group_test(&turn.req), -EINVAL);
	opts.rank = 2;
	assert_int_equal(tern_group_new(rank->ctx, &opts, &other), -EINVAL);
	opts.rank = 1; /* so that the missing peer is that of rank 0 */
	assert_int_equal(tern_group_new(rank->ctx, &opts, &other), -EINVAL);
	opts.rank = 0;
	opts.number = ranks_opts().number;
	assert_int_equal(tern_group_new(rank->ctx, &opts, &other), -EEXIST);
	opts.number = 9;
	opts.piece_bytes = 100;
	assert_int_equal(tern_group_new(rank->ctx, &opts, &other), -EINVAL);
	assert_int_equal(tern_barrier(g, &turn.req), 0);
	assert_int_equal(tern_barrier(g, &turn.req), -EBUSY);
	ranks_free(ranks);
}

const struct conformance_test group_failures[] = {
	CONFORMANCE(test_calls_that_differ_fail_at_all_ranks, NEEDS_NOTHING),
	CONFORMANCE(test_roots_that_differ_fail_at_all_ranks, NEEDS_NOTHING),
	CONFORMANCE(test_groups_that_differ_fail_at_all_ranks, NEEDS_NOTHING),
	CONFORMANCE(test_unequal_parts_that_differ_are_named, NEEDS_NOTHING),
	CONFORMANCE(test_a_lost_rank_is_named_by_all, NEEDS_NOTHING),
	CONFORMANCE(test_a_stalled_rank_is_named_by_all, NEEDS_NOTHING),
	CONFORMANCE(test_a_rank_that_does_not_call_is_named_by_all, NEEDS_NOTHING),
	CONFORMANCE(test_a_rank_that_has_left_is_not_blamed, NEEDS_NOTHING),
	CONFORMANCE(test_a_short_limit_blames_the_right_rank, NEEDS_NOTHING),
	CONFORMANCE(test_a_rank_that_polls_rarely_keeps_its_deadline, NEEDS_NOTHING),
	CONFORMANCE(
		test_a_rank_that_leaves_does_not_disturb_what_has_ended, NEEDS_NOTHING),
	CONFORMANCE(test_a_rank_that_has_left_may_end, NEEDS_NOTHING),
	CONFORMANCE(test_freeing_a_group_ends_its_operations, NEEDS_NOTHING),
	CONFORMANCE(
		test_freeing_a_group_ends_operations_with_a_stalled_rank, NEEDS_NOTHING),
	CONFORMANCE(test_a_note_with_an_impossible_status, NEEDS_NOTHING),
	CONFORMANCE(test_a_note_that_is_too_long, NEEDS_NOTHING),
	CONFORMANCE(test_results_do_not_go_to_readonly_memory, NEEDS_NOTHING),
	CONFORMANCE(test_wrong_arguments_are_refused, NEEDS_NOTHING),
	{NULL, NULL, 0},
};
