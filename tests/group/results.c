/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance of the collectives: what they compute. Every rank's result is compared with a
 * reference, byte by byte. */
#include "tests/group/ranks.h"

#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "tests/group/reference.h"

static const uint32_t sizes[] = {1, 2, 3, 4, 5, 8};

/* One operation at all ranks. */
struct job {
	struct ranks *ranks;
	enum group_job {
		ALLREDUCE,
		REDUCE,
		BROADCAST,
		GATHER,
		SCATTER,
		ALL_GATHER,
		REDUCE_SCATTER,
		ALL_TO_ALL
	} kind;
	enum tern_dtype dtype;
	enum tern_reduction how;
	uint64_t count; /* elements: of the tensor, or of one part */
	uint32_t root;
	bool in_place;
	uint64_t seed;
	struct tern_buf in[RANKS_MAX], out[RANKS_MAX];
	unsigned char *given[RANKS_MAX]; /* copies of `in` */
	struct turn turns[RANKS_MAX];
};

static uint64_t parts_in(const struct job *job)
{
	return job->kind == SCATTER || job->kind == REDUCE_SCATTER ||
			       job->kind == ALL_TO_ALL
		       ? job->ranks->count
		       : 1;
}

static uint64_t parts_out(const struct job *job)
{
	return job->kind == GATHER || job->kind == ALL_GATHER || job->kind == ALL_TO_ALL
		       ? job->ranks->count
		       : 1;
}

static void prepare(struct job *job)
{
	uint64_t part = job->count * tern_dtype_bytes(job->dtype);

	for (uint32_t i = 0; i < job->ranks->count; i++) {
		struct rank *rank = &job->ranks->of[i];
		uint64_t in = part * parts_in(job), out = part * parts_out(job);

		job->out[i] = rank_memory(rank, out);
		if (!job->in_place)
			job->in[i] = rank_memory(rank, in);
		else if (out >= in)
			job->in[i] = out == in ? job->out[i]
					       : buf_part(&job->out[i], i * part, part);
		else {
			job->in[i] = rank_memory(rank, in);
			job->out[i] = buf_part(&job->in[i], i * part, part);
		}
		job->given[i] = malloc(in + 1);
		assert_non_null(job->given[i]);
		reference_fill(job->dtype, job->given[i], job->count * parts_in(job),
			job->seed + i, false);
		if (in)
			memcpy(tern_buf_ptr(&job->in[i]), job->given[i], in);
		turn_init(&job->turns[i], rank);
	}
}

static int start(struct job *job, uint32_t i)
{
	struct tern_group *g = job->ranks->of[i].group;
	struct tern_group_req *req = &job->turns[i].req;
	const struct tern_buf *in = &job->in[i], *out = &job->out[i];

	switch (job->kind) {
	case ALLREDUCE:
		return tern_allreduce(g, req, job->dtype, job->how, in, out);
	case REDUCE:
		return tern_reduce(g, req, job->dtype, job->how, in,
			i == job->root ? out : NULL, job->root);
	case BROADCAST:
		return tern_broadcast(g, req, in, job->root);
	case GATHER:
		return tern_gather(g, req, in, i == job->root ? out : NULL, job->root);
	case SCATTER:
		return tern_scatter(g, req, i == job->root ? in : NULL, out, job->root);
	case ALL_GATHER:
		return tern_all_gather(g, req, in, out);
	case REDUCE_SCATTER:
		return tern_reduce_scatter(g, req, job->dtype, job->how, in, out);
	case ALL_TO_ALL:
		return tern_all_to_all(g, req, in, out);
	}
	return -EINVAL;
}

/* Element k of what rank i must have. */
static void expect(const struct job *job, uint32_t i, uint64_t k, void *out)
{
	const void *in[RANKS_MAX];
	uint64_t bytes = tern_dtype_bytes(job->dtype),
		 part = k / TERN_MAX(job->count, 1u);
	uint64_t at = k;
	uint32_t from = i;

	for (uint32_t r = 0; r < job->ranks->count; r++)
		in[r] = job->given[r];
	switch (job->kind) {
	case ALLREDUCE:
	case REDUCE:
		return reference_fold(job->dtype, (enum tern_combine)job->how,
			job->ranks->count, in, k, out);
	case REDUCE_SCATTER:
		return reference_fold(job->dtype, (enum tern_combine)job->how,
			job->ranks->count, in, i * job->count + k, out);
	case BROADCAST:
		from = job->root;
		break;
	case GATHER:
	case ALL_GATHER:
		from = (uint32_t)part;
		at = k % job->count;
		break;
	case SCATTER:
		from = job->root;
		at = i * job->count + k;
		break;
	case ALL_TO_ALL:
		from = (uint32_t)part;
		at = i * job->count + k % job->count;
		break;
	}
	memcpy(out, job->given[from] + at * bytes, bytes);
}

static void check(struct job *job, uint32_t i)
{
	uint64_t bytes = tern_dtype_bytes(job->dtype);
	const struct tern_buf *out = job->kind == BROADCAST ? &job->in[i] : &job->out[i];
	const unsigned char *got = tern_buf_ptr(out);
	unsigned char expected[8];

	assert_int_equal(job->turns[i].req.status, 0);
	if ((job->kind == REDUCE || job->kind == GATHER) && i != job->root)
		return;
	for (uint64_t k = 0; k < job->count * parts_out(job); k++) {
		expect(job, i, k, expected);
		if (memcmp(got + k * bytes, expected, bytes) == 0)
			continue;
		fail_msg("kind %d, %s, operator %d, %u ranks, rank %u, root %u: element "
			 "%llu of %llu is wrong",
			job->kind, tern_dtype_name(job->dtype), job->how,
			job->ranks->count, i, job->root, (unsigned long long)k,
			(unsigned long long)job->count);
	}
}

static void begin(struct job *job)
{
	prepare(job);
	for (uint32_t i = 0; i < job->ranks->count; i++)
		assert_int_equal(start(job, i), 0);
}

static void finish(struct job *job)
{
	RANKS_PUMP(job->ranks, turns_over(job->turns, job->ranks->count));
	for (uint32_t i = 0; i < job->ranks->count; i++)
		check(job, i);
	for (uint32_t i = 0; i < job->ranks->count; i++)
		free(job->given[i]);
}

static void run(struct ranks *ranks, struct job job)
{
	job.ranks = ranks;
	begin(&job);
	finish(&job);
}

static void free_memory(struct ranks *ranks)
{
	for (uint32_t i = 0; i < ranks->count; i++) {
		box_free(&ranks->of[i].box);
		box_init(&ranks->of[i].box, ranks->of[i].domain);
	}
}

static bool works(enum tern_dtype dtype, enum tern_reduction how)
{
	return tern_combine_works(dtype, (enum tern_combine)how);
}

/* Lengths that take every algorithm with pieces of 1 KiB, and end inside a piece. */
static void all_reductions(struct ranks *ranks, enum group_job kind)
{
	static const uint64_t counts[] = {0, 1, 37, 300, 1000, 5003};

	for (enum tern_dtype d = TERN_U8; d < TERN_DTYPE_COUNT; d++)
		for (enum tern_reduction how = 0; how <= TERN_REDUCE_AND; how++)
			for (unsigned c = 0; c < TERN_ARRAY_SIZE(counts); c++)
				if (works(d, how))
					run(ranks, (struct job){.kind = kind,
							   .dtype = d,
							   .how = how,
							   .count = counts[c],
							   .root = c % ranks->count,
							   .in_place = (c + d + how) % 2,
							   .seed = c});
	free_memory(ranks);
}

static void with_every_size(const struct instance *instance, const uint32_t *hosts,
	void (*test)(struct ranks *ranks))
{
	for (unsigned n = 0; n < TERN_ARRAY_SIZE(sizes); n++) {
		struct ranks *ranks = ranks_new(instance, sizes[n]);
		struct tern_group_opts opts = ranks_opts();

		opts.hosts = hosts;
		ranks_group(ranks, &opts);
		test(ranks);
		ranks_free(ranks);
	}
}

static void allreduces(struct ranks *ranks)
{
	all_reductions(ranks, ALLREDUCE);
}

static void reduces(struct ranks *ranks)
{
	all_reductions(ranks, REDUCE);
}

static void reduce_scatters(struct ranks *ranks)
{
	all_reductions(ranks, REDUCE_SCATTER);
}

static void test_allreduce_of_every_type_operator_and_size(
	const struct instance *instance)
{
	with_every_size(instance, NULL, allreduces);
}

static void test_allreduce_on_several_hosts(const struct instance *instance)
{
	static const uint32_t hosts[RANKS_MAX] = {4, 9, 4, 1, 9, 9, 4, 9};

	with_every_size(instance, hosts, allreduces);
}

static void test_reduce_of_every_type_operator_and_size(const struct instance *instance)
{
	with_every_size(instance, NULL, reduces);
}

static void test_reduce_scatter_of_every_type_operator_and_size(
	const struct instance *instance)
{
	with_every_size(instance, NULL, reduce_scatters);
}

static void moves(struct ranks *ranks)
{
	static const enum group_job kinds[] = {
		BROADCAST, GATHER, SCATTER, ALL_GATHER, ALL_TO_ALL};
	static const uint64_t counts[] = {0, 1, 63, 1024, 2500, 9001};

	for (unsigned k = 0; k < TERN_ARRAY_SIZE(kinds); k++)
		for (unsigned c = 0; c < TERN_ARRAY_SIZE(counts); c++)
			for (unsigned v = 0; v < 2 * ranks->count; v++)
				run(ranks, (struct job){.kind = kinds[k],
						   .dtype = c % 2 ? TERN_U8 : TERN_F32,
						   .count = counts[c],
						   .root = v / 2,
						   .in_place = v % 2,
						   .seed = c + v});
	free_memory(ranks);
}

static void test_moves_of_every_size_root_and_place(const struct instance *instance)
{
	with_every_size(instance, NULL, moves);
}

/* Sizes of the parts that each rank gives to each other one: none, some bytes, or several
 * pieces. */
static uint64_t unequal_part(uint64_t seed, uint32_t from, uint32_t to)
{
	uint64_t x = tern_mix64(seed * 64 + from * 8 + to);

	return x % 3 == 0 ? 0 : x / 3 % (x % 3 == 1 ? 50 : 5000);
}

static unsigned char unequal_byte(uint32_t from, uint32_t to, uint64_t i)
{
	return (unsigned char)tern_mix64((uint64_t)(from * 8 + to) << 32 | i);
}

static void check_unequal(
	const struct tern_buf *out, const uint64_t *sizes_in, uint32_t count, uint32_t to)
{
	const unsigned char *got = tern_buf_ptr(out);

	for (uint32_t from = 0; from < count; from++)
		for (uint64_t i = 0; i < sizes_in[from]; i++)
			assert_int_equal(*got++, unequal_byte(from, to, i));
}

static void unequal_parts(struct ranks *ranks)
{
	uint32_t n = ranks->count;

	for (uint64_t seed = 0; seed < 20; seed++) {
		uint64_t given[RANKS_MAX][RANKS_MAX], got[RANKS_MAX][RANKS_MAX];
		struct tern_buf in[RANKS_MAX], out[RANKS_MAX];
		struct turn turns[RANKS_MAX];

		for (uint32_t i = 0; i < n; i++) {
			uint64_t leaves = 0, comes = 0;
			unsigned char *at;

			for (uint32_t k = 0; k < n; k++) {
				leaves += given[i][k] = unequal_part(seed, i, k);
				comes += got[i][k] = unequal_part(seed, k, i);
			}
			in[i] = rank_memory(&ranks->of[i], leaves);
			out[i] = rank_memory(&ranks->of[i], comes);
			at = tern_buf_ptr(&in[i]);
			for (uint32_t k = 0; k < n; k++)
				for (uint64_t b = 0; b < given[i][k]; b++)
					*at++ = unequal_byte(i, k, b);
		}
		for (uint32_t i = 0; i < n; i++) {
			turn_init(&turns[i], &ranks->of[i]);
			assert_int_equal(
				tern_all_to_all_v(ranks->of[i].group, &turns[i].req,
					&in[i], given[i], &out[i], got[i]),
				0);
		}
		RANKS_PUMP(ranks, turns_over(turns, n));
		for (uint32_t i = 0; i < n; i++) {
			assert_int_equal(turns[i].req.status, 0);
			check_unequal(&out[i], got[i], n, i);
		}
	}
	free_memory(ranks);
}

static void test_all_to_all_of_unequal_parts(const struct instance *instance)
{
	with_every_size(instance, NULL, unequal_parts);
}

/* Every rank must have the same bytes even where the order of additions decides them, and
 * for two ranks they are those of a + b. */
static void random_sums(struct ranks *ranks)
{
	static const uint64_t counts[] = {100, 400, 9999};

	for (unsigned c = 0; c < TERN_ARRAY_SIZE(counts); c++) {
		struct job job = {.ranks = ranks,
			.kind = ALLREDUCE,
			.dtype = TERN_F32,
			.count = counts[c],
			.how = TERN_REDUCE_SUM};
		const void *in[2] = {NULL, NULL};
		const float *first;

		prepare(&job);
		for (uint32_t i = 0; i < ranks->count; i++) {
			reference_fill(TERN_F32, job.given[i], job.count, 70 + i, true);
			memcpy(tern_buf_ptr(&job.in[i]), job.given[i], job.count * 4);
			in[i % 2] = job.given[i];
			assert_int_equal(start(&job, i), 0);
		}
		RANKS_PUMP(ranks, turns_over(job.turns, ranks->count));
		first = tern_buf_ptr(&job.out[0]);
		for (uint32_t i = 1; i < ranks->count; i++)
			assert_memory_equal(
				first, tern_buf_ptr(&job.out[i]), job.count * 4);
		for (uint64_t k = 0; ranks->count == 2 && k < job.count; k++) {
			float expected;

			reference_fold(TERN_F32, TERN_COMBINE_SUM, 2, in, k, &expected);
			assert_memory_equal(&first[k], &expected, 4);
		}
		for (uint32_t i = 0; i < ranks->count; i++)
			free(job.given[i]);
	}
}

static void test_every_rank_gets_the_same_bytes(const struct instance *instance)
{
	static const uint32_t hosts[RANKS_MAX] = {0, 0, 1, 1, 1, 2, 2, 0};

	with_every_size(instance, NULL, random_sums);
	with_every_size(instance, hosts, random_sums);
}

/* More operations than slots and lanes, of all kinds, whose ranks call at different
 * times. */
static void test_many_operations_are_under_way(const struct instance *instance)
{
	enum { COUNT = 60 };
	static struct job jobs[COUNT];
	struct ranks *ranks = ranks_new(instance, 4);
	struct tern_group_opts opts = ranks_opts();

	ranks_group(ranks, &opts);
	for (unsigned j = 0; j < COUNT; j++) {
		jobs[j] = (struct job){.ranks = ranks,
			.kind = j % 8,
			.dtype = j % 3 ? TERN_F32 : TERN_I16,
			.count = j * 97 % 4000,
			.root = j % 4,
			.seed = j};
		prepare(&jobs[j]);
	}
	for (uint32_t i = 0; i < 4; i++) {
		for (unsigned j = 0; j < COUNT; j++)
			assert_int_equal(start(&jobs[j], i), 0);
		for (unsigned t = 0; t < 20; t++)
			ranks_turn(ranks);
	}
	for (unsigned j = 0; j < COUNT; j++)
		finish(&jobs[j]);
	ranks_free(ranks);
}

static void test_barrier_waits_for_all(const struct instance *instance)
{
	for (unsigned n = 0; n < TERN_ARRAY_SIZE(sizes); n++) {
		struct ranks *ranks = ranks_new(instance, sizes[n]);
		struct tern_group_opts opts = ranks_opts();
		struct turn turns[RANKS_MAX];

		ranks_group(ranks, &opts);
		for (uint32_t i = 0; i < sizes[n]; i++)
			turn_init(&turns[i], &ranks->of[i]);
		for (uint32_t i = 0; i < sizes[n]; i++) {
			for (unsigned t = 0; t < 50; t++)
				ranks_turn(ranks);
			for (uint32_t k = 0; k < i; k++)
				assert_int_equal(
					tern_group_test(&turns[k].req), -EINPROGRESS);
			assert_int_equal(
				tern_barrier(ranks->of[i].group, &turns[i].req), 0);
		}
		RANKS_PUMP(ranks, turns_over(turns, sizes[n]));
		for (uint32_t i = 0; i < sizes[n]; i++)
			assert_int_equal(turns[i].req.status, 0);
		ranks_free(ranks);
	}
}

/* Groups of some of the ranks share their peers with each other; they come and go more
 * often than a peer has records for messages that nobody receives. */
static void test_subgroups_share_peers_and_leave_nothing(const struct instance *instance)
{
	struct ranks *ranks = ranks_new(instance, 3);

	for (uint32_t round = 0; round < 300; round++) {
		struct turn turns[3];
		struct tern_group *g[3];
		uint32_t out = round % 3, count = 0;

		for (uint32_t i = 0; i < 3; i++) {
			struct tern_peer *peers[2];
			uint32_t k = 0;

			turn_init(&turns[i], &ranks->of[i]);
			if (i == out)
				continue;
			for (uint32_t m = 0; m < 3; m++)
				if (m != out)
					peers[k++] = ranks->of[i].peers[m];
			assert_int_equal(
				tern_group_new(ranks->of[i].ctx,
					&(struct tern_group_opts){.rank = count++,
						.size = 2,
						.peers = peers,
						.number = 100 + round,
						.piece_bytes = 128},
					&g[i]),
				0);
			assert_int_equal(tern_barrier(g[i], &turns[i].req), 0);
		}
		turns[out].done_count = 1;
		RANKS_PUMP(ranks, turns_over(turns, 3));
		for (uint32_t i = 0; i < 3; i++)
			if (i != out)
				tern_group_free(g[i]);
	}
	ranks_free(ranks);
}

const struct conformance_test group_results[] = {
	CONFORMANCE(test_allreduce_of_every_type_operator_and_size, NEEDS_NOTHING),
	CONFORMANCE(test_allreduce_on_several_hosts, NEEDS_NOTHING),
	CONFORMANCE(test_reduce_of_every_type_operator_and_size, NEEDS_NOTHING),
	CONFORMANCE(test_reduce_scatter_of_every_type_operator_and_size, NEEDS_NOTHING),
	CONFORMANCE(test_moves_of_every_size_root_and_place, NEEDS_NOTHING),
	CONFORMANCE(test_all_to_all_of_unequal_parts, NEEDS_NOTHING),
	CONFORMANCE(test_every_rank_gets_the_same_bytes, NEEDS_NOTHING),
	CONFORMANCE(test_many_operations_are_under_way, NEEDS_NOTHING),
	CONFORMANCE(test_barrier_waits_for_all, NEEDS_NOTHING),
	CONFORMANCE(test_subgroups_share_peers_and_leave_nothing, NEEDS_NOTHING),
	{NULL, NULL, 0},
};
