/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cmocka.h"

#include <errno.h>

#include "base/util.h"
#include "ps/plan.h"

static void test_chunks_cover_everything_once(void **state)
{
	static const uint64_t sizes[] = {1, 15, 4096, 4097, 100000, 235146, 30000000};

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(sizes); i++) {
		struct tern_plan plan;
		uint64_t next = 0;

		assert_int_equal(tern_plan_init(&plan, sizes[i], 3), 0);
		for (uint32_t c = 0; c < plan.chunk_count; c++) {
			assert_int_equal(plan.chunks[c].first, next);
			assert_true(
				plan.chunks[c].count > 0 && plan.chunks[c].server < 3);
			assert_int_equal(plan.chunks[c].first % 16, 0); /* 64 bytes */
			next += plan.chunks[c].count;
		}
		assert_int_equal(next, sizes[i]);
		assert_true(plan.chunk_elements >= 4096 && plan.chunk_elements <= 262144);
		tern_plan_fini(&plan);
	}
}

static void test_the_cut_does_not_depend_on_servers(void **state)
{
	struct tern_plan one, many;

	(void)state;
	assert_int_equal(tern_plan_init(&one, 1000000, 1), 0);
	assert_int_equal(tern_plan_init(&many, 1000000, 7), 0);
	assert_int_equal(one.chunk_count, many.chunk_count);
	for (uint32_t c = 0; c < one.chunk_count; c++) {
		assert_int_equal(one.chunks[c].first, many.chunks[c].first);
		assert_int_equal(one.chunks[c].count, many.chunks[c].count);
		assert_int_equal(one.chunks[c].gradient_key, many.chunks[c].gradient_key);
	}
	tern_plan_fini(&one);
	tern_plan_fini(&many);
}

static void test_servers_share_bytes_evenly(void **state)
{
	(void)state;
	for (uint32_t servers = 1; servers <= 32; servers++) {
		/* From 32 full chunks for each server, the last chunk ragged. */
		uint64_t elements = 262144ull * 33 * servers + 77 * servers,
			 load[32] = {0};
		uint64_t most = 0, least = UINT64_MAX;
		struct tern_plan plan;

		assert_int_equal(tern_plan_init(&plan, elements, servers), 0);
		for (uint32_t c = 0; c < plan.chunk_count; c++)
			load[plan.chunks[c].server] += plan.chunks[c].count;
		for (uint32_t i = 0; i < servers; i++) {
			most = TERN_MAX(most, load[i]);
			least = TERN_MIN(least, load[i]);
		}
		if (plan.chunk_count >= 32 * servers)
			assert_true((double)most <= 1.05 * (double)least);
		tern_plan_fini(&plan);
	}
}

static void test_nothing_to_plan_is_refused(void **state)
{
	struct tern_plan plan;

	(void)state;
	assert_int_equal(tern_plan_init(&plan, 0, 1), -EINVAL);
	assert_int_equal(tern_plan_init(&plan, 10, 0), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_chunks_cover_everything_once),
		cmocka_unit_test(test_the_cut_does_not_depend_on_servers),
		cmocka_unit_test(test_servers_share_bytes_evenly),
		cmocka_unit_test(test_nothing_to_plan_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
