/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tests of the CUDA engine on the simulated driver, which works as late as possible,
 * so that the engine is caught if it announces a part of the gradient too early. Errors
 * are tested, too: each call of most functions of the driver fails once, while the engine
 * is created and in a step, and the device's context gets corrupted.
 */
#include "tests/gpu/engine.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/gpu/blocks.h"
#include "tests/gpu/fake_blas.h"

static void machine_open(const struct fake_cuda_opts *opts)
{
	fake_cuda_reset(opts);
	gpu_register_blocks();
	fake_blas_register();
	suite.api = fake_cuda_api();
	assert_int_equal(suite.api->init(0), CUDA_SUCCESS);
}

static int open_default(void **state)
{
	(void)state;
	machine_open(NULL);
	suite.blas = &fake_blas;
	return 0;
}

static int open_without_blas(void **state)
{
	(void)state;
	machine_open(NULL);
	suite.blas = NULL;
	return 0;
}

/* A driver that also does some work early, at random. */
static int open_lively(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();

	(void)state;
	opts.early_percent = 40;
	opts.seed = 3;
	machine_open(&opts);
	suite.blas = NULL;
	return 0;
}

/* The reset asserts that no object of the driver is open. */
static int close_machine(void **state)
{
	(void)state;
	fake_cuda_reset(NULL);
	return 0;
}

/* ---- CUDA graphs, and what replaces them ---- */

static void test_steps_are_replayed(void **state)
{
	struct world w;
	struct tern_engine *e;
	unsigned kernels;

	(void)state;
	world_open(&w, "charlm:6,4,20");
	e = cuda_engine(&w, false);
	world_pin(&w, e);
	for (unsigned at = 0; at < 4; at++)
		gradient(&w, e, at, at % 2, 0);
	kernels = fake_cuda_calls("launch_kernel");
	assert_int_equal(fake_cuda_live().graph_execs, 2);
	for (unsigned at = 4; at < 8; at++)
		gradient(&w, e, at, at % 2, 0);
	assert_int_equal(fake_cuda_calls("launch_kernel"), kernels);
	assert_int_equal(fake_cuda_live().graph_execs, 2);
	assert_int_equal(fake_cuda_pageable_copies(), 0);
	assert_non_null(
		strstr(e->name, "Simulated GPU 0 (cuda:0), CUDA graphs, cuBLAS "));
	assert_int_equal(fake_cuda_used_bytes(0), e->device_bytes);
	tern_engine_free(e);
	world_close(&w);
}

static void test_graphs_end_with_the_page_locking_that_they_were_made_for(void **state)
{
	struct world w;
	struct tern_engine *e;

	(void)state;
	world_open(&w, "mlp:32");
	e = cuda_engine(&w, false);
	for (unsigned round = 0; round < 2; round++) {
		world_pin(&w, e);
		for (unsigned at = 0; at < 4; at++)
			gradient(&w, e, at, at % 2, 0);
		assert_true(fake_cuda_live().graph_execs > 0);
		tern_engine_unpin(e);
		assert_int_equal(fake_cuda_live().graph_execs, 0);
	}
	tern_engine_free(e);
	world_close(&w);
}

static void test_a_driver_may_record_late(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	struct world w;
	struct tern_engine *e;

	(void)state;
	close_machine(NULL);
	opts.late_records = true;
	machine_open(&opts);
	world_open(&w, "mlp:40,24,16");
	e = cuda_engine(&w, false);
	world_pin(&w, e);
	for (unsigned at = 0; at < 4; at++)
		/* Asserts that each part was complete when it was announced. */
		gradient(&w, e, at, at % 2, 0);
	assert_string_equal(e->note, "");
	assert_int_equal(fake_cuda_live().graph_execs, 2);
	tern_engine_free(e);
	world_close(&w);
}

/* An engine that has made its first step, with plain launches. The next step is captured
 * into a graph. */
static struct tern_engine *engine_after_a_step(struct world *w)
{
	struct tern_engine *e;

	world_open(w, "mlp:32");
	e = cuda_engine(w, false);
	world_pin(w, e);
	gradient(w, e, 0, 0, 0);
	return e;
}

static void test_a_capture_that_fails_is_told_once_and_done_without(void **state)
{
	struct world w;
	struct tern_engine *e;

	(void)state;
	e = engine_after_a_step(&w);
	/* The engine ends a capture a second time if the first attempt fails. The second
	 * attempt succeeds, so the capture counts as successful: the failed
	 * instantiations decide. */
	fake_cuda_fail("stream_end_capture", 1, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	fake_cuda_fail("graph_instantiate", 1, CUDA_ERROR_NOT_SUPPORTED);
	fake_cuda_fail("graph_instantiate", 2, CUDA_ERROR_NOT_SUPPORTED);
	gradient(&w, e, 1, 1, 0);
	assert_string_equal(e->note, ""); /* no note: the capture is tried once more */
	gradient(&w, e, 2, 0, 0);
	assert_non_null(strstr(e->note, "without CUDA graphs: cuda:0: "));
	*e->note = '\0';
	gradient(&w, e, 3, 1, 0);
	assert_string_equal(e->note, "");
	tern_engine_free(e);
	world_close(&w);
}

/* A kernel that the driver loads at its first use, within the capture, can fail the
 * capture like this. */
static void test_a_capture_that_fails_once_is_tried_again(void **state)
{
	struct world w;
	struct tern_engine *e;

	(void)state;
	e = engine_after_a_step(&w);
	fake_cuda_fail("graph_instantiate", 1, CUDA_ERROR_NOT_SUPPORTED);
	gradient(&w, e, 1, 1, 0);
	assert_int_equal(fake_cuda_calls("graph_launch"), 0);
	gradient(&w, e, 2, 0, 0);
	assert_int_equal(fake_cuda_calls("graph_launch"), 1);
	assert_string_equal(e->note, "");
	tern_engine_free(e);
	world_close(&w);
}

static void test_memory_that_cannot_be_locked_is_told_once_and_done_without(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	struct world w;
	struct tern_engine *e;

	(void)state;
	close_machine(NULL);
	opts.host_limit_bytes = 4096;
	machine_open(&opts);
	world_open(&w, "mlp:32");
	e = cuda_engine(&w, false);
	world_pin(&w, e);
	assert_non_null(strstr(e->note, "copies go through other memory"));
	assert_null(strchr(e->note, ';'));
	assert_non_null(strstr(e->name, "plain launches"));
	for (unsigned at = 0; at < 4; at++)
		gradient(&w, e, at, at % 2, 0);
	assert_true(fake_cuda_pageable_copies() > 0);
	assert_int_equal(fake_cuda_calls("stream_begin_capture"), 0);
	tern_engine_free(e);
	world_close(&w);
}

static void test_a_cublas_that_does_not_start_is_told_and_done_without(void **state)
{
	struct world w;
	struct tern_engine *e;

	(void)state;
	world_open(&w, "mlp:32");
	fake_blas_create_fails = 1;
	e = cuda_engine(&w, false);
	assert_non_null(strstr(e->note, "without cuBLAS: cuda:0: cublasCreate"));
	assert_non_null(strstr(e->fingerprint, " tiled"));
	gradient(&w, e, 0, 0, 0);
	tern_engine_free(e);
	world_close(&w);
}

/* ---- devices that are refused ---- */

static void refused(
	const struct fake_cuda_opts *opts, unsigned ordinal, int error, const char *says)
{
	struct tern_engine_cuda_opts want = {.rows = ROWS, .ordinal = ordinal};
	struct tern_engine *e = NULL;
	struct world w;
	char why[400] = "";

	machine_open(opts);
	world_open(&w, "mlp:32");
	want.api = suite.api;
	want.model = w.model;
	assert_int_equal(tern_engine_cuda_new(&want, &e, why, sizeof(why)), error);
	if (!strstr(why, says))
		print_message("%s: no \"%s\"\n", why, says);
	assert_non_null(strstr(why, says));
	assert_null(strchr(why, '\n'));
	world_close(&w);
	fake_cuda_reset(NULL);
}

static uint64_t bytes_of_an_engine(void)
{
	struct world w;
	struct tern_engine *e;
	uint64_t bytes;

	machine_open(NULL);
	suite.blas = NULL;
	world_open(&w, "mlp:32");
	e = cuda_engine(&w, false);
	bytes = e->device_bytes;
	tern_engine_free(e);
	world_close(&w);
	fake_cuda_reset(NULL);
	return bytes;
}

static void test_what_is_not_there_is_refused_in_a_line(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();

	(void)state;
	refused(&opts, 1, -ENODEV, "there is no cuda:1: the driver has 1 device, ");
	opts.major = 7;
	opts.minor = 5;
	refused(&opts, 0, -ENOEXEC, "compute capability 7.5; 8.0 or later");
	opts = fake_cuda_defaults();
	opts.driver_version = 12000;
	refused(&opts, 0, -ENOEXEC, "its driver is for CUDA 12.0");
	opts = fake_cuda_defaults();
	opts.mem_bytes = 20000;
	refused(&opts, 0, -ENOMEM,
		"out of device memory: the model with batches of 256 records needs ");
	opts.mem_bytes = bytes_of_an_engine() - 1;
	refused(&opts, 0, -ENOMEM, "bytes of workspace on the device: ");
	refused(&opts, 0, -ENOMEM, "KiB are free");
	opts = fake_cuda_defaults();
	opts.compute_mode = CU_COMPUTEMODE_PROHIBITED;
	refused(&opts, 0, -EBUSY, "making a context");
}

/* ---- every call fails once ---- */

static const char *const at_birth[] = {"device_get_count", "device_get",
	"device_get_attribute", "device_get_name", "driver_get_version",
	"primary_ctx_retain", "ctx_push_current", "ctx_get_stream_priority_range",
	"stream_create_with_priority", "event_create", "mem_alloc", "memset_d32_async",
	"module_load_data_ex", "module_get_function", "stream_synchronize"};

/* Creates an engine while the nth call of `function` fails (0: no call fails). Returns
 * the number of calls of `function`. */
static unsigned try_birth(const struct world *w, const char *function, unsigned nth)
{
	const struct tern_engine_cuda_opts want = {
		.api = suite.api, .blas = &fake_blas, .model = w->model, .rows = ROWS};
	struct tern_engine *e = NULL;
	char why[400] = "";
	unsigned calls;
	int r;

	machine_open(NULL);
	calls = fake_cuda_calls(function);
	if (nth)
		fake_cuda_fail(function, nth, CUDA_ERROR_UNKNOWN);
	r = tern_engine_cuda_new(&want, &e, why, sizeof(why));
	calls = fake_cuda_calls(function) - calls;
	if (r == 0)
		tern_engine_free(e);
	else
		assert_true(strlen(why) > 10 && r < 0);
	fake_cuda_reset(NULL); /* asserts that no object of the driver is open */
	return calls;
}

static void test_each_call_may_fail_at_birth(void **state)
{
	struct world w;

	(void)state;
	world_open(&w, "charlm:6,4,20");
	for (size_t i = 0; i < TERN_ARRAY_SIZE(at_birth); i++) {
		unsigned calls = try_birth(&w, at_birth[i], 0);

		assert_true(calls > 0);
		for (unsigned nth = 1; nth <= calls; nth++)
			try_birth(&w, at_birth[i], nth);
	}
	world_close(&w);
}

static const char *const in_a_step[] = {"ctx_push_current", "memcpy_htod_async",
	"memcpy_dtoh_async", "memcpy_async", "event_record", "event_record_with_flags",
	"stream_wait_event", "launch_kernel", "event_query", "stream_synchronize",
	"stream_begin_capture", "stream_end_capture", "graph_instantiate",
	"graph_launch"};

/* Makes three steps, the first with plain launches, while the nth call of `function`
 * fails (0: no call fails). Afterwards everything must work again. Returns the number of
 * calls of `function`. */
static unsigned try_steps(const struct world *w, const char *function, unsigned nth)
{
	const struct tern_engine_params params = {w->params[0], 1};
	struct tern_engine *e;
	struct tern_result result;
	unsigned calls, failures = 0;

	machine_open(NULL);
	suite.blas = NULL;
	e = cuda_engine(w, false);
	world_pin(w, e);
	calls = fake_cuda_calls(function);
	if (nth)
		fake_cuda_fail(function, nth, CUDA_ERROR_UNKNOWN);
	for (unsigned i = 0; i < 3; i++) {
		int r;

		world_fill(w, &e->batch, ROWS, i);
		r = tern_engine_gradient(e, &params, w->grads[0], NULL, NULL, &result);
		failures += r < 0;
		assert_true(r == 0 || strncmp(e->error, "cuda:0: ", 8) == 0);
	}
	assert_true(failures <= 1);
	calls = fake_cuda_calls(function) - calls;
	gradient(w, e, 0, 1, 1);
	tern_engine_unpin(e);
	tern_engine_free(e);
	fake_cuda_reset(NULL);
	return calls;
}

static void test_each_call_may_fail_in_a_step(void **state)
{
	struct world w;

	(void)state;
	world_open(&w, "charlm:6,4,20");
	for (size_t i = 0; i < TERN_ARRAY_SIZE(in_a_step); i++) {
		unsigned calls = try_steps(&w, in_a_step[i], 0);

		assert_true(calls > 0);
		for (unsigned nth = 1; nth <= calls; nth++)
			try_steps(&w, in_a_step[i], nth);
	}
	world_close(&w);
}

/* The model has so many layers that the engine polls for the first part until it gives up
 * polling, and sleeps. */
static void test_a_long_wait_for_a_part_may_fail(void **state)
{
	struct world w;
	unsigned calls;

	(void)state;
	world_open(&w, "mlp:8,8,8,8,8,8,8,8,8,8,8,8,8,8,8");
	calls = try_steps(&w, "event_synchronize", 0);
	assert_true(calls > 0);
	for (unsigned nth = 1; nth <= calls; nth++)
		try_steps(&w, "event_synchronize", nth);
	world_close(&w);
}

/* ---- a corrupted device ---- */

static bool breaks(const struct world *w, unsigned nth)
{
	const struct tern_engine_params params = {w->params[0], 1};
	struct tern_engine *e;
	struct tern_result result;
	int r = 0;

	machine_open(NULL);
	suite.blas = NULL;
	e = cuda_engine(w, false);
	world_pin(w, e);
	fake_cuda_break(NULL, nth, CUDA_ERROR_ILLEGAL_ADDRESS);
	for (unsigned i = 0; i < 3 && r == 0; i++) {
		world_fill(w, &e->batch, ROWS, i);
		r = tern_engine_gradient(e, &params, w->grads[0], NULL, NULL, &result);
	}
	if (r < 0) {
		assert_int_equal(r, -ENOTRECOVERABLE);
		assert_non_null(strstr(e->error, "CUDA_ERROR_ILLEGAL_ADDRESS"));
		assert_int_equal(tern_engine_evaluate(e, &params, NULL, &result), r);
	}
	tern_engine_unpin(e);
	tern_engine_free(e);
	fake_cuda_reset(NULL);
	return r < 0;
}

static void test_a_broken_device_is_a_status_and_a_line(void **state)
{
	struct world w;
	unsigned nth = 1;

	(void)state;
	world_open(&w, "charlm:6,4,20");
	while (breaks(&w, nth))
		nth++;
	assert_true(nth > 30);
	world_close(&w);
}

int main(void)
{
	const struct CMUnitTest cases[] = {
		cmocka_unit_test_setup_teardown(
			test_steps_are_replayed, open_default, close_machine),
		cmocka_unit_test_setup_teardown(
			test_graphs_end_with_the_page_locking_that_they_were_made_for,
			open_default, close_machine),
		cmocka_unit_test_setup_teardown(
			test_a_driver_may_record_late, open_default, close_machine),
		cmocka_unit_test_setup_teardown(
			test_a_capture_that_fails_is_told_once_and_done_without,
			open_default, close_machine),
		cmocka_unit_test_setup_teardown(
			test_a_capture_that_fails_once_is_tried_again, open_default,
			close_machine),
		cmocka_unit_test_setup_teardown(
			test_memory_that_cannot_be_locked_is_told_once_and_done_without,
			open_default, close_machine),
		cmocka_unit_test_setup_teardown(
			test_a_cublas_that_does_not_start_is_told_and_done_without,
			open_default, close_machine),
		cmocka_unit_test(test_what_is_not_there_is_refused_in_a_line),
		cmocka_unit_test(test_each_call_may_fail_at_birth),
		cmocka_unit_test(test_each_call_may_fail_in_a_step),
		cmocka_unit_test(test_a_long_wait_for_a_part_may_fail),
		cmocka_unit_test(test_a_broken_device_is_a_status_and_a_line),
	};

	return engine_run_cases(open_default, close_machine) +
	       engine_run_cases(open_without_blas, close_machine) +
	       engine_run_cases(open_lively, close_machine) +
	       cmocka_run_group_tests_name("on a simulated driver", cases, NULL, NULL);
}
