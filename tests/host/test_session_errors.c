/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions of shared contexts: the errors that a user makes. No server runs. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/shared.h>

#include "base/clock.h"
#include "base/util.h"

#define LIMIT (60 * TERN_NS_PER_S)

static struct tern_session *session_of(struct tern_shared *shared, const char *join)
{
	struct tern_session *s;

	assert_int_equal(tern_shared_session(
				 shared, &(struct tern_session_opts){.join = join}, &s),
		0);
	return s;
}

static void declare(struct tern_shared *shared, struct tern_session *s, const char *name)
{
	uint32_t id;

	assert_int_equal(tern_shared_tensor(shared, s,
				 &(struct tern_tensor_opts){.name = name,
					 .shape = tern_shape_1d(TERN_F32, 10)},
				 &id),
		0);
}

static void test_what_is_missing_is_named(void **state)
{
	struct tern_shared *shared;
	struct tern_session *s;
	struct tern_job_opts job = {.steps = 1};

	(void)state;
	unsetenv("TERN_JOIN");
	unsetenv("TERN_WORKERS");
	assert_int_equal(tern_shared_new(NULL, &shared), 0);
	assert_int_equal(tern_shared_session(shared, NULL, &s), -EINVAL);
	assert_non_null(strstr(tern_shared_text(), "TERN_JOIN"));
	assert_int_equal(tern_shared_session(
				 shared, &(struct tern_session_opts){.join = "a,,b"}, &s),
		-EINVAL);
	assert_non_null(strstr(tern_shared_text(), "a,,b"));
	s = session_of(shared, "127.0.0.1:9");
	declare(shared, s, "w");
	assert_int_equal(tern_shared_start(shared, s, &job), -EINVAL);
	assert_non_null(strstr(tern_shared_text(), "TERN_WORKERS"));
	setenv("TERN_WORKERS", "two", 1);
	assert_int_equal(tern_shared_start(shared, s, &job), -EINVAL);
	assert_non_null(strstr(tern_shared_text(), "TERN_WORKERS=two"));
	setenv("TERN_WORKERS", "2", 1);
	setenv("TERN_INDEX", "2", 1);
	assert_int_equal(tern_shared_start(shared, s, &job), -EINVAL);
	assert_non_null(strstr(tern_shared_text(), "index 2 of 2 workers"));
	unsetenv("TERN_WORKERS");
	unsetenv("TERN_INDEX");
	job.workers = 1;
	setenv("TERN_VERIFY_FIRST", "-1", 1);
	assert_int_equal(tern_shared_start(shared, s, &job), -EINVAL);
	assert_string_equal(tern_shared_text(),
		"TERN_VERIFY_FIRST=-1: expected a number from 0 to 4294967295");
	unsetenv("TERN_VERIFY_FIRST");
	tern_shared_free(shared);
}

static void test_waits_for_servers_are_at_most_a_day(void **state)
{
	struct tern_session_opts opts = {.join = "127.0.0.1:9", .server_wait_s = 86401};
	struct tern_context *ctx;
	struct tern_shared *shared;
	struct tern_session *s;

	(void)state;
	assert_int_equal(tern_shared_new(NULL, &shared), 0);
	assert_int_equal(tern_shared_session(shared, &opts, &s), -EINVAL);
	assert_string_equal(
		tern_shared_text(), "server_wait_s: expected at most 86400, got 86401");
	ctx = tern_shared_context(shared);
	assert_int_equal(tern_session_new(ctx, &opts, &s), -EINVAL);
	opts.server_wait_s = 0;
	setenv("TERN_SERVER_WAIT", "1e9", 1);
	assert_int_equal(tern_shared_session(shared, &opts, &s), -EINVAL);
	assert_string_equal(tern_shared_text(),
		"TERN_SERVER_WAIT=1e9: expected a number from 0 to 86400");
	opts.server_wait_s = -1; /* none, whatever the environment says */
	assert_int_equal(tern_shared_session(shared, &opts, &s), 0);
	unsetenv("TERN_SERVER_WAIT");
	tern_shared_free(shared);
}

static void starts_badly(
	const struct tern_job_opts *job, const char *second, const char *words)
{
	struct tern_shared *shared;
	struct tern_session *s;
	struct tern_slot *slot;

	assert_int_equal(tern_shared_new(NULL, &shared), 0);
	s = session_of(shared, "127.0.0.1:9");
	declare(shared, s, "w");
	if (second)
		declare(shared, s, second);
	assert_int_equal(tern_shared_start(shared, s, job), -EINVAL);
	if (!strstr(tern_shared_text(), words))
		fail_msg("\"%s\" lacks \"%s\"", tern_shared_text(), words);
	assert_int_equal(tern_shared_next(shared, s, &slot, NULL, TERN_NEVER), -EINVAL);
	tern_shared_free(shared);
}

static void test_a_job_without_tensors_is_refused_at_once(void **state)
{
	const struct tern_job_opts job = {.workers = 1, .steps = 1};
	struct tern_shared *shared;

	(void)state;
	assert_int_equal(tern_shared_new(NULL, &shared), 0);
	assert_int_equal(
		tern_shared_start(shared, session_of(shared, "127.0.0.1:9"), &job),
		-EINVAL);
	assert_string_equal(tern_shared_text(),
		"the job has no tensors: declare them before the start");
	tern_shared_free(shared);
}

static void test_impossible_jobs_are_refused_at_once(void **state)
{
	const struct tern_job_opts good = {.workers = 1, .steps = 1};
	struct tern_job_opts job;

	(void)state;
	job = good;
	job.rule.name = "magic";
	starts_badly(&job, NULL, "rule magic: expected sgd");
	job = good;
	job.rule.lr = NAN;
	starts_badly(&job, NULL, "lr: expected a finite number");
	job = good;
	job.rule.beta1 = 0.5;
	starts_badly(&job, NULL, "beta1: expected 0, since the optimizer does not have");
	job = good;
	job.schedule.name = "steps";
	starts_badly(&job, NULL, "schedule steps: expected constant, step, linear");
	job.schedule.name = "step";
	starts_badly(&job, NULL, "schedule: steps: expected 1 to 2^40");
	job.schedule =
		(struct tern_schedule_opts){.name = "step", .steps = 2, .factor = NAN};
	starts_badly(&job, NULL, "factor: expected a number, got null");
	job = good;
	job.arithmetic = "\xff";
	starts_badly(&job, NULL, "arithmetic: expected a string below 128 characters");
	job = good;
	job.clip_norm = INFINITY;
	starts_badly(&job, NULL, "clip_norm: expected a finite number");
	job = good;
	job.mode = 7;
	starts_badly(&job, NULL, "mode 7: expected sync (0), async (1) or ssp (2)");
	job.mode = TERN_TRAIN_ASYNC;
	job.staleness = 1;
	starts_badly(&job, NULL, "staleness 1: expected a number up to 2^40 in mode ssp");
	job = good;
	job.rule.lr = -1;
	starts_badly(&job, NULL, "rule sgd: lr: expected more than 0, got -1");
	job.rule.lr = 1e-60;
	starts_badly(&job, NULL, "1e-60 is too small for a float32");
	job = good;
	job.slots = 5000;
	starts_badly(&job, NULL, "slots: expected an integer from 1 to 4096");
	job = good;
	job.records = 10;
	starts_badly(&job, NULL, "batch: expected");
	job = good;
	job.clip_norm = -1;
	starts_badly(&job, NULL, "clip_norm");
	starts_badly(&good, "w", "w");
}

static int declare_given(struct tern_shared *shared, struct tern_session *s,
	enum tern_init init, const float *values)
{
	uint32_t id;

	return tern_shared_tensor(shared, s,
		&(struct tern_tensor_opts){.name = "w",
			.shape = tern_shape_1d(TERN_F32, 3),
			.init = init,
			.values = values},
		&id);
}

static void test_given_values_are_checked(void **state)
{
	const struct tern_job_opts job = {.workers = 1, .steps = 1};
	const float values[] = {1, 2, -INFINITY};
	struct tern_shared *shared;
	struct tern_session *s;

	(void)state;
	assert_int_equal(tern_shared_new(NULL, &shared), 0);
	s = session_of(shared, "127.0.0.1:9");
	assert_int_equal(declare_given(shared, s, TERN_INIT_GIVEN, NULL), -EINVAL);
	assert_string_equal(tern_shared_text(),
		"tensor w: expected values, as its init is TERN_INIT_GIVEN");
	assert_int_equal(declare_given(shared, s, TERN_INIT_ZEROS, values), -EINVAL);
	assert_string_equal(tern_shared_text(),
		"tensor w: expected no values, as its init is not TERN_INIT_GIVEN");
	assert_int_equal(declare_given(shared, s, TERN_INIT_GIVEN, values), 0);
	assert_int_equal(tern_shared_start(shared, s, &job), -EINVAL);
	assert_string_equal(tern_shared_text(),
		"tensor w: initial value 2 is -inf: expected finite numbers");
	tern_shared_free(shared);
}

static void test_types_on_the_wire_are_checked(void **state)
{
	struct tern_tensor_opts tensor = {
		.name = "w", .shape = tern_shape_1d(TERN_F32, 3)};
	struct tern_shared *shared;
	struct tern_session *s;
	uint32_t id;

	(void)state;
	assert_int_equal(tern_shared_new(NULL, &shared), 0);
	s = session_of(shared, "127.0.0.1:9");
	tensor.push = TERN_F16;
	assert_int_equal(tern_shared_tensor(shared, s, &tensor, &id), -EINVAL);
	assert_string_equal(
		tern_shared_text(), "tensor w: push: expected f32 or bf16, got f16");
	tensor.push = TERN_BF16;
	tensor.pull = TERN_DTYPE_COUNT;
	assert_int_equal(tern_shared_tensor(shared, s, &tensor, &id), -EINVAL);
	assert_string_equal(
		tern_shared_text(), "tensor w: pull: expected f32 or bf16, got ?");
	tensor.pull = TERN_F32;
	assert_int_equal(tern_shared_tensor(shared, s, &tensor, &id), 0);
	tern_shared_free(shared);
}

static void test_too_many_rules_are_refused(void **state)
{
	const struct tern_job_opts job = {.workers = 1, .steps = 1};
	struct tern_shared *shared;
	struct tern_session *s;
	char name[20];
	uint32_t id;

	(void)state;
	assert_int_equal(tern_shared_new(NULL, &shared), 0);
	s = session_of(shared, "127.0.0.1:9");
	for (unsigned i = 0; i < 40; i++) {
		/* Every rule occurs twice: 17 of them are too many, and not 34. */
		const struct tern_rule_opts rule = {
			.name = "momentum", .lr = 1 + i / 2 % 17};

		snprintf(name, sizeof(name), "t%02u", i);
		assert_int_equal(tern_shared_tensor(shared, s,
					 &(struct tern_tensor_opts){.name = name,
						 .shape = tern_shape_1d(TERN_F32, 1),
						 .rule = &rule},
					 &id),
			0);
	}
	assert_int_equal(tern_shared_start(shared, s, &job), -EINVAL);
	assert_string_equal(tern_shared_text(),
		"tensor t32: a job has at most 16 different rules of tensors");
	tern_shared_free(shared);
}

/* "No host has this name" is -ENODATA elsewhere, which would look like the end of all
 * steps. */
static void test_a_server_without_a_host_is_an_error(void **state)
{
	const struct tern_job_opts job = {.workers = 1, .steps = 1};
	struct tern_shared *shared;
	struct tern_session *s;
	struct tern_slot *slot;
	int r;

	(void)state;
	assert_int_equal(tern_shared_new(NULL, &shared), 0);
	s = session_of(shared, "nohost.invalid:7");
	declare(shared, s, "w");
	r = tern_shared_start(shared, s, &job);
	if (r == 0)
		r = tern_shared_next(shared, s, &slot, NULL, LIMIT);
	assert_true(r < 0 && r != -ENODATA);
	assert_non_null(strstr(tern_shared_text(), "nohost.invalid:7"));
	tern_shared_free(shared);
}

static void test_a_session_without_servers_ends(void **state)
{
	const struct tern_context_opts quick = {.connect_ns = 100 * TERN_NS_PER_MS};
	const struct tern_job_opts job = {.workers = 1, .steps = 1};
	struct tern_shared *shared;
	struct tern_session *s;
	struct tern_slot *slot;
	char text[200];

	(void)state;
	assert_int_equal(
		tern_shared_new(&(struct tern_shared_opts){.context = &quick}, &shared),
		0);
	s = session_of(shared, "tcp://127.0.0.1:9");
	declare(shared, s, "w");
	assert_int_equal(tern_shared_finisher(shared, s, TERN_NEVER), -EINVAL);
	assert_int_equal(tern_shared_ended(shared, s, TERN_NEVER), -EINVAL);
	assert_string_equal(tern_shared_text(), "the session has not started");
	assert_int_equal(tern_shared_describe(shared, s, text, sizeof(text)), 0);
	assert_string_equal(text, "the session has not started");
	assert_int_equal(tern_shared_metric(shared, s, "m", 1), -EINVAL);
	assert_string_equal(tern_shared_text(), "the session has not started");
	assert_int_equal(tern_shared_start(shared, s, &job), 0);
	assert_int_equal(
		tern_shared_next(shared, s, &slot, NULL, TERN_NEVER), -ECONNREFUSED);
	assert_non_null(strstr(
		tern_shared_text(), "server 0 at tcp://127.0.0.1:9: cannot be reached"));
	assert_int_equal(tern_shared_finisher(shared, s, TERN_NEVER), -ECONNREFUSED);
	assert_int_equal(tern_shared_ended(shared, s, TERN_NEVER), -ECONNREFUSED);
	tern_shared_free(shared);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_is_missing_is_named),
		cmocka_unit_test(test_waits_for_servers_are_at_most_a_day),
		cmocka_unit_test(test_a_job_without_tensors_is_refused_at_once),
		cmocka_unit_test(test_impossible_jobs_are_refused_at_once),
		cmocka_unit_test(test_given_values_are_checked),
		cmocka_unit_test(test_types_on_the_wire_are_checked),
		cmocka_unit_test(test_too_many_rules_are_refused),
		cmocka_unit_test(test_a_server_without_a_host_is_an_error),
		cmocka_unit_test(test_a_session_without_servers_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
