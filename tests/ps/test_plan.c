/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the plan, which divides the parameters into chunks and these among the
 * servers: every element is in exactly one chunk, the chunks are the same for any number
 * of servers, and the servers' shares are nearly equal. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "ps/plan.h"

static const uint64_t counts[] = {1, 15, 16, 17, 4095, 4096, 4097, 8192, 32769, 100001,
	262144, 262145, 1000003, 16777216, 16777217, 25000000, 268435457, 4294967297};
static const uint32_t servers[] = {1, 2, 3, 4, 7, 8, 16, 100, 256};

/* A job with one tensor, which is in *all. */
static struct tern_ps_job job_of(
	struct tern_param *all, uint64_t element_count, uint32_t server_count)
{
	*all = (struct tern_param){.count = element_count};
	return (struct tern_ps_job){.params = all,
		.param_count = 1,
		.element_count = element_count,
		.server_count = server_count};
}

static int plan_of(struct tern_plan *plan, uint64_t element_count, uint32_t server_count)
{
	struct tern_param all;
	struct tern_ps_job job = job_of(&all, element_count, server_count);

	return tern_plan_init(plan, &job);
}

static void check_cut(const struct tern_plan *plan, uint64_t count)
{
	uint64_t next = 0, bytes = plan->chunk_elements * sizeof(float);

	assert_int_equal(plan->element_count, count);
	assert_int_equal(bytes % 64, 0);
	assert_true(bytes >= 16384 && bytes <= 1048576);
	/* Unless limited by a size, a chunk is an eighth of a small model's parameters, and
	 * a 64th of a large one's, rounded up to a multiple of 64 bytes. */
	if (bytes > 16384 && bytes < 1048576 && bytes != 131072) {
		uint64_t share = bytes < 131072 ? 8 : 64;

		assert_true(bytes * share >= count * sizeof(float));
		assert_true((bytes - 64) * share < count * sizeof(float));
	}
	for (uint32_t i = 0; i < plan->chunk_count; i++) {
		const struct tern_chunk *c = &plan->chunks[i];

		assert_int_equal(c->first, next);
		assert_true(c->count > 0);
		if (i + 1 < plan->chunk_count)
			assert_int_equal(c->count, plan->chunk_elements);
		assert_true(c->count <= plan->chunk_elements);
		assert_true(c->server < plan->server_count);
		next += c->count;
	}
	assert_int_equal(next, count);
}

static void test_chunks_cover_every_element_once(void **state)
{
	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(counts); i++)
		for (size_t s = 0; s < TERN_ARRAY_SIZE(servers); s++) {
			struct tern_plan plan;

			assert_int_equal(plan_of(&plan, counts[i], servers[s]), 0);
			check_cut(&plan, counts[i]);
			tern_plan_fini(&plan);
			assert_null(plan.chunks);
		}
}

static void test_shares_are_known_without_the_chunks(void **state)
{
	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(counts); i++)
		for (size_t s = 0; s < TERN_ARRAY_SIZE(servers); s++) {
			struct tern_plan_share found[256] = {{0}};
			struct tern_plan plan, measured;
			struct tern_param all;
			struct tern_ps_job whole = job_of(&all, counts[i], servers[s]);

			assert_int_equal(plan_of(&plan, counts[i], servers[s]), 0);
			for (uint32_t c = 0; c < plan.chunk_count; c++) {
				found[plan.chunks[c].server].chunk_count++;
				found[plan.chunks[c].server].element_count +=
					plan.chunks[c].count;
			}
			assert_int_equal(tern_plan_measure(&measured, &whole), 0);
			assert_null(measured.chunks);
			for (uint32_t j = 0; j < servers[s]; j++) {
				struct tern_plan_share share =
					tern_plan_share(&measured, &whole, j);

				assert_int_equal(share.chunk_count, found[j].chunk_count);
				assert_int_equal(
					share.element_count, found[j].element_count);
			}
			tern_plan_fini(&plan);
		}
}

static void test_cut_does_not_depend_on_the_servers(void **state)
{
	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(counts); i++) {
		struct tern_plan one;

		assert_int_equal(plan_of(&one, counts[i], 1), 0);
		for (size_t s = 0; s < TERN_ARRAY_SIZE(servers); s++) {
			struct tern_plan plan;

			assert_int_equal(plan_of(&plan, counts[i], servers[s]), 0);
			assert_int_equal(plan.chunk_count, one.chunk_count);
			for (uint32_t c = 0; c < one.chunk_count; c++) {
				const struct tern_chunk *a = &one.chunks[c];
				const struct tern_chunk *b = &plan.chunks[c];

				assert_int_equal(a->first, b->first);
				assert_int_equal(a->count, b->count);
				assert_true(a->gradient_key == b->gradient_key);
				assert_true(a->parameter_key == b->parameter_key);
			}
			tern_plan_fini(&plan);
		}
		tern_plan_fini(&one);
	}
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void test_keys_are_all_different(void **state)
{
	struct tern_plan plan;
	uint64_t *keys;

	(void)state;
	assert_int_equal(plan_of(&plan, 268435457, 4), 0);
	keys = malloc(2 * plan.chunk_count * sizeof(*keys));
	for (uint32_t i = 0; i < plan.chunk_count; i++) {
		keys[2 * i] = plan.chunks[i].gradient_key;
		keys[2 * i + 1] = plan.chunks[i].parameter_key;
	}
	qsort(keys, 2 * plan.chunk_count, sizeof(*keys), by_value);
	for (uint32_t i = 1; i < 2 * plan.chunk_count; i++)
		assert_true(keys[i] != keys[i - 1]);
	free(keys);
	tern_plan_fini(&plan);
}

static void test_servers_have_nearly_equal_shares(void **state)
{
	unsigned checked = 0;

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(counts); i++)
		for (size_t s = 0; s < TERN_ARRAY_SIZE(servers); s++) {
			struct tern_plan plan;
			uint64_t load[256] = {0}, low = UINT64_MAX, high = 0;

			assert_int_equal(plan_of(&plan, counts[i], servers[s]), 0);
			for (uint32_t c = 0; c < plan.chunk_count; c++)
				load[plan.chunks[c].server] += plan.chunks[c].count;
			for (uint32_t j = 0; j < servers[s]; j++) {
				low = TERN_MIN(low, load[j]);
				high = TERN_MAX(high, load[j]);
			}
			if (plan.chunk_count >= 32 * servers[s]) {
				assert_true((double)high <= 1.05 * (double)low);
				checked += servers[s] > 1;
			} else {
				assert_true(high - low <= plan.chunk_elements);
			}
			tern_plan_fini(&plan);
		}
	assert_true(checked >= 8);
}

/* ---- tensors of different types ---- */

#define TENSORS 40u

/* A job of tensors of random sizes and types, which are in `params`. */
static struct tern_ps_job random_job(
	struct tern_rng *rng, struct tern_param *params, uint32_t server_count)
{
	struct tern_ps_job job = {.params = params,
		.param_count = 1 + (uint32_t)tern_rng_below(rng, TENSORS),
		.server_count = server_count};
	uint64_t most = 1ull << tern_rng_below(rng, 22);

	for (uint32_t i = 0; i < job.param_count; i++) {
		params[i] = (struct tern_param){.first = job.element_count,
			.count = 1 + tern_rng_below(rng, most),
			.push_bf16 = tern_rng_below(rng, 2),
			.pull_bf16 = tern_rng_below(rng, 4) == 0};
		job.element_count += params[i].count;
	}
	return job;
}

/* Checks that the elements of a chunk, and no more that follow them, have its types. */
static void check_types(const struct tern_ps_job *job, const struct tern_plan *plan,
	const struct tern_chunk *c)
{
	uint64_t end = c->first + c->count;

	for (uint32_t i = tern_ps_job_tensor_at(job, c->first);
		i < job->param_count && job->params[i].first < end; i++) {
		assert_int_equal(job->params[i].push_bf16, c->push_bf16);
		assert_int_equal(job->params[i].pull_bf16, c->pull_bf16);
	}
	if (c->count < plan->chunk_elements && end < job->element_count) {
		const struct tern_param *next =
			&job->params[tern_ps_job_tensor_at(job, end)];

		assert_true(next->push_bf16 != c->push_bf16 ||
			    next->pull_bf16 != c->pull_bf16);
	}
}

static void check_mixed(const struct tern_ps_job *job)
{
	struct tern_plan plan, measured;
	struct tern_plan_share found[256] = {{0}};
	uint64_t next = 0, bf16 = 0;

	assert_int_equal(tern_plan_init(&plan, job), 0);
	assert_int_equal(tern_plan_measure(&measured, job), 0);
	for (uint32_t i = 0; i < plan.chunk_count; i++) {
		const struct tern_chunk *c = &plan.chunks[i];

		assert_int_equal(c->first, next);
		assert_true(c->count > 0 && c->count <= plan.chunk_elements);
		check_types(job, &plan, c);
		assert_int_equal(tern_plan_chunk_at(&plan, next), i);
		next += c->count;
		assert_int_equal(tern_plan_chunk_at(&plan, next - 1), i);
		found[c->server].chunk_count++;
		found[c->server].element_count += c->count;
		if (!c->push_bf16)
			continue;
		assert_int_equal(c->bf16_first, bf16);
		bf16 += c->count;
	}
	assert_int_equal(next, job->element_count);
	assert_int_equal(bf16, plan.bf16_count);
	assert_int_equal(measured.bf16_count, plan.bf16_count);
	assert_int_equal(measured.chunk_count, plan.chunk_count);
	for (uint32_t i = 0; i < job->server_count; i++) {
		struct tern_plan_share share = tern_plan_share(&measured, job, i);

		assert_int_equal(share.chunk_count, found[i].chunk_count);
		assert_int_equal(share.element_count, found[i].element_count);
	}
	tern_plan_fini(&plan);
}

static void test_a_chunk_has_one_type(void **state)
{
	struct tern_rng rng = {.seed = 3};
	struct tern_param params[TENSORS];

	(void)state;
	for (unsigned k = 0; k < 300; k++) {
		struct tern_ps_job job =
			random_job(&rng, params, 1 + (uint32_t)tern_rng_below(&rng, 5));

		check_mixed(&job);
	}
}

/* A job of float32, or one that is bf16 throughout, has the chunks that it would have without
 * types. */
static void test_one_type_for_all_tensors_cuts_nothing(void **state)
{
	struct tern_param params[3] = {{.count = 70000}, {.count = 1}, {.count = 300000}};
	const struct tern_ps_job job = {.params = params,
		.param_count = 3,
		.element_count = 370001,
		.server_count = 2};

	(void)state;
	for (unsigned bf16 = 0; bf16 < 2; bf16++) {
		struct tern_plan plan, plain;

		for (unsigned i = 0; i < 3; i++)
			params[i].push_bf16 = params[i].pull_bf16 = bf16;
		assert_int_equal(tern_plan_init(&plan, &job), 0);
		assert_int_equal(plan_of(&plain, 370001, 2), 0);
		assert_int_equal(plan.chunk_count, plain.chunk_count);
		for (uint32_t i = 0; i < plan.chunk_count; i++) {
			assert_int_equal(plan.chunks[i].first, plain.chunks[i].first);
			assert_int_equal(plan.chunks[i].count, plain.chunks[i].count);
			assert_int_equal(plan.chunks[i].push_bf16, bf16);
		}
		tern_plan_fini(&plan);
		tern_plan_fini(&plain);
	}
}

/* Five tensors of 18 x 10^9 elements, whose places need more than 32 bits, in elements and in
 * bytes. */
static void test_a_plan_has_no_limit_at_32_bits(void **state)
{
	struct tern_param params[] = {{.count = 4294967297},
		{.count = 3, .push_bf16 = true}, {.count = 4294967295, .pull_bf16 = true},
		{.count = 5000000000, .push_bf16 = true},
		{.count = 4300000001, .push_bf16 = true, .pull_bf16 = true}};
	struct tern_ps_job job = {.params = params,
		.param_count = TERN_ARRAY_SIZE(params),
		.server_count = 3};

	(void)state;
	for (uint32_t i = 0; i < job.param_count; i++) {
		params[i].first = job.element_count;
		job.element_count += params[i].count;
	}
	assert_true(job.element_count > 4ull << 32);
	check_mixed(&job);
}

static void test_nothing_to_plan_and_far_too_much_are_refused(void **state)
{
	struct tern_plan plan;

	(void)state;
	assert_int_equal(plan_of(&plan, 0, 1), -EINVAL);
	assert_int_equal(plan_of(&plan, 1, 0), -EINVAL);
	/* Refused: a chunk has at most 2^18 elements, so there would be 2^32 chunks, and the
	 * number of chunks must fit into 32 bits. */
	assert_int_equal(plan_of(&plan, 1ull << 50, 1), -EINVAL);
	assert_int_equal(plan_of(&plan, (1ull << 50) + 1, 1), -EINVAL);
	assert_int_equal(plan_of(&plan, UINT64_MAX, 1), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_chunks_cover_every_element_once),
		cmocka_unit_test(test_shares_are_known_without_the_chunks),
		cmocka_unit_test(test_cut_does_not_depend_on_the_servers),
		cmocka_unit_test(test_keys_are_all_different),
		cmocka_unit_test(test_servers_have_nearly_equal_shares),
		cmocka_unit_test(test_a_chunk_has_one_type),
		cmocka_unit_test(test_one_type_for_all_tensors_cuts_nothing),
		cmocka_unit_test(test_a_plan_has_no_limit_at_32_bits),
		cmocka_unit_test(test_nothing_to_plan_and_far_too_much_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
