/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cmocka.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "ps/job.h"

static struct tern_ps_job example(void)
{
	static struct tern_param params[2] = {
		{.name = "fc1.weight",
			.shape = {.dtype = TERN_F32, .rank = 2, .dims = {4, 3}},
			.count = 12,
			.init = TERN_INIT_UNIFORM,
			.scale = 0.7f},
		{.name = "fc1.bias",
			.shape = {.dtype = TERN_F32, .rank = 1, .dims = {3}},
			.first = 12,
			.count = 3},
	};
	static char servers[2][128] = {"tcp://10.0.0.7:7000", "tcp://10.0.0.8:7000"};
	struct tern_ps_job job = {.steps = 10,
		.seed = 42,
		.slots = 4,
		.workers = 2,
		.batch = 128,
		.clip_norm = 0.5,
		.arithmetic = "avx2 openblas",
		.params = params,
		.param_count = 2,
		.element_count = 15,
		.servers = servers,
		.server_count = 2};

	tern_optimizer_parse("adam", &job.optimizer);
	return job;
}

static void test_a_job_survives_the_wire(void **state)
{
	struct tern_ps_job job = example(), back;
	struct tern_ps_text why;
	char *text = tern_ps_job_encode(&job);

	(void)state;
	assert_int_equal(tern_ps_job_decode(text, strlen(text), &back, &why), 0);
	assert_false(tern_ps_job_differs(&job, &back, "worker 1", &why));
	assert_int_equal(back.element_count, 15);
	assert_int_equal(back.params[1].first, 12);
	assert_string_equal(back.servers[1], job.servers[1]);
	tern_ps_job_fini(&back);
	free(text);
}

/* `from` in the text becomes `to`: refused, and the reason names `field`. */
static void refused(const char *from, const char *to, const char *field)
{
	struct tern_ps_job job = example(), back;
	struct tern_ps_text why;
	char *text = tern_ps_job_encode(&job), *at = strstr(text, from);
	char changed[4000];

	assert_non_null(at);
	snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(at - text), text, to,
		at + strlen(from));
	assert_int_equal(
		tern_ps_job_decode(changed, strlen(changed), &back, &why), -EINVAL);
	if (!strstr(why.text, field))
		fail_msg("\"%s\" does not name %s", why.text, field);
	free(text);
}

static void test_wrong_fields_are_named(void **state)
{
	(void)state;
	refused("\"sync\"", "\"sink\"", "mode");
	refused("\"steps\":10", "\"steps\":-1", "steps");
	refused("\"steps\":10", "\"steps\":1.5", "steps");
	refused("\"slots\":4", "\"slots\":0", "slots");
	refused("\"slots\":4", "\"slots\":99999", "slots");
	refused("\"workers\":2", "\"workers\":\"2\"", "workers");
	refused("\"batch\":128", "\"batch\":0", "batch");
	refused("\"adam\"", "\"eve\"", "optimizer");
	refused("\"beta1\"", "\"beta3\"", "beta1");
	refused("\"dims\":[4,3]", "\"dims\":[4,0]", "fc1.weight");
	refused("\"dims\":[4,3]", "\"dims\":[4294967296,4294967296,4294967296]",
		"fc1.weight");
	refused("\"dims\":[4,3]", "\"dims\":[1,1,1,1,1,1,1,1,1]", "fc1.weight");
	refused("\"fc1.bias\"", "\"\"", "name");
	refused("\"clip_norm\":0.5", "\"clip_norm\":-1", "clip_norm");
	refused("\"mode\":\"sync\"", "\"mode\":\"async\"", "clip_norm");
	refused("\"tcp://10.0.0.7:7000\"", "7", "servers");
	refused("{\"mode\"", "[{\"mode\"", "job");
}

static void test_changed_bytes_never_harm(void **state)
{
	struct tern_ps_job job = example(), back;
	char *text = tern_ps_job_encode(&job), *copy = strdup(text);
	size_t bytes = strlen(text);
	struct tern_rng rng = {.seed = 5};
	struct tern_ps_text why;

	(void)state;
	for (int round = 0; round < 5000; round++) {
		size_t n = tern_rng_below(&rng, bytes + 1);

		memcpy(copy, text, bytes);
		for (unsigned i = 0; i < 1 + tern_rng_below(&rng, 4); i++)
			copy[tern_rng_below(&rng, bytes)] = (char)tern_rng_next(&rng);
		if (tern_ps_job_decode(copy, round % 3 ? bytes : n, &back, &why) == 0)
			tern_ps_job_fini(&back);
		else
			assert_true(why.text[0]);
	}
	free(text);
	free(copy);
}

static void test_differences_are_told_in_a_line(void **state)
{
	struct tern_ps_job ours = example(), theirs;
	struct tern_ps_text why;

	(void)state;
	assert_int_equal(tern_ps_job_copy(&theirs, &ours), 0);
	theirs.params[0].shape.dims[1] = 5;
	assert_true(tern_ps_job_differs(&ours, &theirs, "worker 1", &why));
	assert_string_equal(why.text,
		"parameter fc1.weight: worker 1 has f32[4,5], the job f32[4,3]");
	theirs.slots = 8;
	assert_true(tern_ps_job_differs(&ours, &theirs, "worker 1", &why));
	assert_string_equal(why.text, "slots: worker 1 has 8, the job 4");
	strcpy(theirs.arithmetic, "portable");
	assert_true(tern_ps_job_differs(&ours, &theirs, "worker 1", &why));
	assert_non_null(strstr(why.text, "\"portable\""));
	tern_ps_job_fini(&theirs);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_job_survives_the_wire),
		cmocka_unit_test(test_wrong_fields_are_named),
		cmocka_unit_test(test_changed_bytes_never_harm),
		cmocka_unit_test(test_differences_are_told_in_a_line),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
