/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a job's tensors. Their types on the wire come back from the job's JSON, others are
 * refused, and a worker that states other ones has another job. Sizes and places need not fit
 * into 32 bits. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "ps/job.h"

static struct tern_ps_text why;

/* A job with one tensor, which is in *param, and one server. */
static struct tern_ps_job job_of(struct tern_param *param, bool push_bf16, bool pull_bf16)
{
	static char servers[1][128] = {"tcp://a:1"};
	struct tern_ps_job job = {.steps = 1,
		.slots = 1,
		.workers = 1,
		.batch = 1,
		.params = param,
		.param_count = 1,
		.element_count = 5,
		.servers = servers,
		.server_count = 1};

	*param = (struct tern_param){.name = "w",
		.shape = tern_shape_1d(TERN_F32, 5),
		.count = 5,
		.push_bf16 = push_bf16,
		.pull_bf16 = pull_bf16};
	tern_optimizer_parse("sgd", &job.optimizer);
	return job;
}

static void test_types_come_back(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		struct tern_param param;
		struct tern_ps_job job = job_of(&param, i & 1, i >> 1), read;
		char *text = tern_ps_job_encode(&job);

		assert_non_null(text);
		/* float32 takes no room in the text. */
		assert_int_equal(strstr(text, "\"push\"") != NULL, i & 1);
		assert_int_equal(strstr(text, "\"pull\"") != NULL, i >> 1);
		assert_int_equal(tern_ps_job_decode(text, strlen(text), &read, &why), 0);
		assert_int_equal(read.params[0].push_bf16, i & 1);
		assert_int_equal(read.params[0].pull_bf16, i >> 1);
		assert_false(tern_ps_job_differs(&job, &read, "it", &why));
		free(text);
		tern_ps_job_fini(&read);
	}
}

/* Decodes a job whose tensor has this value in this field. */
static int decode(const char *field, const char *value, struct tern_ps_job *out)
{
	struct tern_param param;
	struct tern_ps_job job = job_of(&param, true, true);
	json_t *root = tern_ps_job_json(&job);
	int r;

	json_object_set_new(json_array_get(json_object_get(root, "params"), 0), field,
		json_loads(value, JSON_DECODE_ANY, NULL));
	r = tern_ps_job_read(root, out, &why);
	json_decref(root);
	return r;
}

static void test_other_types_are_refused(void **state)
{
	static const char *const fields[] = {"push", "pull"};
	static const char *const values[] = {
		"\"f16\"", "\"BF16\"", "\"\"", "10", "null", "true", "[\"bf16\"]"};
	struct tern_ps_job job;
	char expected[100];

	(void)state;
	for (unsigned f = 0; f < 2; f++) {
		for (size_t i = 0; i < TERN_ARRAY_SIZE(values); i++) {
			assert_int_equal(decode(fields[f], values[i], &job), -EINVAL);
			snprintf(expected, sizeof(expected),
				"tensor w: %s: expected \"f32\" or \"bf16\", got %s",
				fields[f], values[i]);
			assert_string_equal(why.text, expected);
		}
		assert_int_equal(decode(fields[f], "\"f32\"", &job), 0);
		assert_int_equal(job.params[0].push_bf16, f == 1);
		assert_int_equal(job.params[0].pull_bf16, f == 0);
		tern_ps_job_fini(&job);
	}
}

static void differ(
	bool our_push, bool our_pull, bool push, bool pull, const char *expected)
{
	struct tern_param p, q;
	struct tern_ps_job ours = job_of(&p, our_push, our_pull);
	struct tern_ps_job theirs = job_of(&q, push, pull);

	assert_true(tern_ps_job_differs(&ours, &theirs, "worker 7", &why));
	assert_string_equal(why.text, expected);
}

static void test_a_difference_names_the_tensor_and_the_types(void **state)
{
	(void)state;
	differ(false, false, true, false,
		"tensor w: worker 7 pushes it as bf16, the job as f32");
	differ(true, true, false, true,
		"tensor w: worker 7 pushes it as f32, the job as bf16");
	differ(false, false, false, true,
		"tensor w: worker 7 pulls it as bf16, the job as f32");
	differ(true, true, true, false,
		"tensor w: worker 7 pulls it as f32, the job as bf16");
}

/* ---- large tensors ---- */

/* Sums of these do not fit into 32 bits, and the last but one does not fit by itself. */
static const uint64_t large[] = {1, 4294967295, 70000, 3000000000, 6000000000, 5};

static json_t *large_json(uint64_t more)
{
	struct tern_param param;
	struct tern_ps_job job = job_of(&param, false, false);
	json_t *root = tern_ps_job_json(&job), *params = json_object_get(root, "params");
	char name[8];

	json_array_clear(params);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(large); i++) {
		snprintf(name, sizeof(name), "t%zu", i);
		json_array_append_new(
			params, json_pack("{s:s, s:[I], s:s, s:f, s:f, s:i}", "name",
					name, "dims", (json_int_t)large[i], "init",
					"zeros", "a", 0.0, "b", 0.0, "rule", 0));
	}
	if (more)
		json_array_append_new(
			params, json_pack("{s:s, s:[I], s:s, s:f, s:f, s:i}", "name",
					"more", "dims", (json_int_t)more, "init", "zeros",
					"a", 0.0, "b", 0.0, "rule", 0));
	return root;
}

static void test_tensors_may_lie_beyond_32_bits(void **state)
{
	json_t *root = large_json(0);
	struct tern_ps_job job;
	uint64_t next = 0;

	(void)state;
	assert_int_equal(tern_ps_job_read(root, &job, &why), 0);
	for (uint32_t i = 0; i < job.param_count; i++) {
		const struct tern_param *p = &job.params[i];

		assert_true(p->first == next && p->count == large[i]);
		assert_int_equal(tern_ps_job_tensor_at(&job, p->first), i);
		next += p->count;
		assert_int_equal(tern_ps_job_tensor_at(&job, next - 1), i);
	}
	assert_true(job.element_count == next && next > 3ull << 32);
	tern_ps_job_fini(&job);
	json_decref(root);
}

/* 2^38 elements of float32 are 1 TiB. */
static void test_a_tensor_of_more_than_1_tib_is_refused(void **state)
{
	struct tern_ps_job job;
	json_t *root;

	(void)state;
	root = large_json(1ull << 38);
	assert_int_equal(tern_ps_job_read(root, &job, &why), 0);
	tern_ps_job_fini(&job);
	json_decref(root);
	root = large_json((1ull << 38) + 1);
	assert_int_equal(tern_ps_job_read(root, &job, &why), -EINVAL);
	assert_string_equal(why.text, "tensor more: dims: expected at most 1 TiB");
	json_decref(root);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_types_come_back),
		cmocka_unit_test(test_other_types_are_refused),
		cmocka_unit_test(test_a_difference_names_the_tensor_and_the_types),
		cmocka_unit_test(test_tensors_may_lie_beyond_32_bits),
		cmocka_unit_test(test_a_tensor_of_more_than_1_tib_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
