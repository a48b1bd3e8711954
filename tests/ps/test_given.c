/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of given initial values: the digest is the same on all machines and notices every
 * change, and the ranges of all chunks are the given elements, each once. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "ps/given.h"

/* ---- the digest ---- */

/* These numbers must never change: workers of one job may run on different machines. */
static void test_a_digest_is_the_same_everywhere(void **state)
{
	static const float values[] = {0, -0.0f, 1, -1.5f, 0x1p-149f, 3.4028234e38f};

	(void)state;
	assert_true(tern_given_digest(values, 1) == 0xe220a8397b1dcdafull);
	assert_true(tern_given_digest(values, 6) == 0x6035d06598ae947cull);
}

static void test_a_digest_notices_every_bit_and_the_order(void **state)
{
	float values[257], other[257];
	struct tern_rng rng = {.seed = 3};
	uint64_t digest;

	(void)state;
	for (unsigned i = 0; i < 257; i++)
		values[i] = tern_unit_f32(tern_rng_next(&rng));
	digest = tern_given_digest(values, 257);
	assert_true(digest != tern_given_digest(values, 256));
	for (unsigned i = 0; i < 257 * 32; i++) {
		uint32_t bits;

		memcpy(other, values, sizeof(values));
		memcpy(&bits, &other[i / 32], sizeof(bits));
		bits ^= 1u << i % 32;
		memcpy(&other[i / 32], &bits, sizeof(bits));
		assert_true(digest != tern_given_digest(other, 257));
	}
	for (unsigned i = 1; i < 257; i++) {
		memcpy(other, values, sizeof(values));
		other[0] = values[i];
		other[i] = values[0];
		assert_true(digest != tern_given_digest(other, 257));
	}
}

/* ---- ranges ---- */

#define PARAMS 40u

/* A job of random tensors, of which some are given. */
static struct tern_ps_job random_job(struct tern_rng *rng, struct tern_param *params)
{
	struct tern_ps_job job = {.params = params};

	job.param_count = 1 + (uint32_t)tern_rng_below(rng, PARAMS - 1);
	for (uint32_t i = 0; i < job.param_count; i++) {
		uint64_t count = 1 + tern_rng_below(rng, i % 3 ? 100 : 20000);

		params[i] = (struct tern_param){.name = "w",
			.first = job.element_count,
			.count = count,
			.init = tern_rng_next(rng) % 2 ? TERN_INIT_GIVEN
						       : TERN_INIT_NORMAL};
		job.element_count += count;
	}
	return job;
}

static bool is_given(const struct tern_ps_job *job, uint64_t element)
{
	return job->params[tern_ps_job_tensor_at(job, element)].init == TERN_INIT_GIVEN;
}

/* Checks the ranges of one chunk. */
static void check_chunk(const struct tern_ps_job *job, const struct tern_chunk *c)
{
	uint64_t at = c->first, end = c->first + c->count;
	struct tern_given_range range;

	while (tern_given_next(job, c, at, &range)) {
		assert_true(range.first >= at && range.count > 0);
		assert_true(range.first + range.count <= end);
		for (; at < range.first; at++)
			assert_false(is_given(job, at));
		for (; at < range.first + range.count; at++)
			assert_true(is_given(job, at));
		/* The range is as long as it can be. */
		assert_true(at == end || !is_given(job, at));
	}
	for (; at < end; at++)
		assert_false(is_given(job, at));
}

static void test_the_ranges_of_all_chunks_are_the_given_elements(void **state)
{
	struct tern_rng rng = {.seed = 11};
	struct tern_param params[PARAMS];

	(void)state;
	for (unsigned k = 0; k < 100; k++) {
		struct tern_ps_job job = random_job(&rng, params);
		struct tern_plan plan;
		bool any = false;

		for (uint32_t i = 0; i < job.param_count; i++)
			any = any || params[i].init == TERN_INIT_GIVEN;
		assert_int_equal(tern_given_any(&job), any);
		job.server_count = 2;
		assert_int_equal(tern_plan_init(&plan, &job), 0);
		for (uint32_t i = 0; i < plan.chunk_count; i++)
			check_chunk(&job, &plan.chunks[i]);
		tern_plan_fini(&plan);
	}
}

/* ---- values ---- */

static void test_values_that_are_no_numbers_are_named(void **state)
{
	static const float wrong[] = {NAN, INFINITY, -INFINITY};
	float values[3] = {1, 2, 3}, none[3] = {NAN, NAN, NAN};
	const float *given[] = {none, values};
	struct tern_param params[] = {
		{.name = "made", .count = 3}, {.name = "mine", .count = 3}};
	struct tern_ps_job job = {.params = params, .param_count = 2};
	struct tern_ps_text why;

	(void)state;
	params[1].init = TERN_INIT_GIVEN;
	assert_int_equal(tern_given_describe(&job, given, true, &why), 0);
	assert_true(params[1].digest == tern_given_digest(values, 3));
	assert_true(params[0].digest == 0);
	assert_int_equal(tern_given_describe(&job, given, false, &why), 0);
	assert_true(params[1].digest == 0);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(wrong); i++) {
		values[2] = wrong[i];
		assert_int_equal(tern_given_describe(&job, given, true, &why), -EINVAL);
		assert_non_null(strstr(why.text, "tensor mine: initial value 2 is "));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_digest_is_the_same_everywhere),
		cmocka_unit_test(test_a_digest_notices_every_bit_and_the_order),
		cmocka_unit_test(test_the_ranges_of_all_chunks_are_the_given_elements),
		cmocka_unit_test(test_values_that_are_no_numbers_are_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
