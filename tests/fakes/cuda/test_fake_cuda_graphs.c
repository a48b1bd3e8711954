/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the simulated driver: kernels, and graphs of work. */
#include "tests/fakes/cuda/rig.h"

/* The kernel: to[i] = from[i] + add, for all threads of the grid. */
static void add_kernel(const struct fake_cuda_launch *launch)
{
	unsigned char *to = *(unsigned char **)launch->params[0];
	const unsigned char *from = *(const unsigned char **)launch->params[1];
	unsigned count = *(const unsigned *)launch->params[2];
	unsigned char add = *(const unsigned char *)launch->params[3];

	for (unsigned i = 0; i < launch->grid[0] * launch->block[0]; i++) {
		if (i < count)
			to[i] = (unsigned char)(from[i] + add);
	}
}

static CUmodule module;
static CUfunction function;

static void load(struct rig *r)
{
	static const size_t bytes[] = {
		sizeof(CUdeviceptr), sizeof(CUdeviceptr), sizeof(unsigned), 1};

	fake_cuda_kernel("add", add_kernel, TERN_ARRAY_SIZE(bytes), bytes);
	OK(r->api->module_load_data_ex(&module, "image", 0, NULL, NULL));
	OK(r->api->module_get_function(&function, module, "add"));
}

/* The parameters are local variables, which no longer exist when the kernel runs: the
 * driver must copy them. */
static CUresult launch(struct rig *r, CUstream stream, CUdeviceptr to, CUdeviceptr from,
	unsigned char add)
{
	unsigned count = RIG_BYTES;
	void *params[] = {&to, &from, &count, &add};

	return r->api->launch_kernel(
		function, 4, 1, 1, 256, 1, 1, 0, stream, params, NULL);
}

static void test_a_kernel_works_on_device_memory(void **state)
{
	struct rig r;

	(void)state;
	rig_open(&r, NULL);
	load(&r);
	OK(r.api->memset_d8_async(r.x, 40, RIG_BYTES, r.a));
	OK(launch(&r, r.a, r.y, r.x, 2));
	OK(r.api->memcpy_dtoh_async(r.out, r.y, RIG_BYTES, r.a));
	assert_true(rig_out_is(&r, 42));
	OK(r.api->module_unload(module));
	rig_close(&r);
}

static void test_launches_are_checked(void **state)
{
	struct rig r;
	CUfunction none;

	(void)state;
	rig_open(&r, NULL);
	load(&r);
	assert_int_equal(
		r.api->module_get_function(&none, module, "sub"), CUDA_ERROR_NOT_FOUND);
	assert_int_equal(
		r.api->launch_kernel(function, 0, 1, 1, 1, 1, 1, 0, r.a, NULL, NULL),
		CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(
		r.api->launch_kernel(function, 1, 1, 1, 1025, 1, 1, 0, r.a, NULL, NULL),
		CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(r.api->launch_kernel(function, 1, 1, 1, 1, 1, 1, (48 << 10) + 1,
				 r.a, NULL, NULL),
		CUDA_ERROR_INVALID_VALUE);
	OK(r.api->module_unload(module));
	rig_close(&r);
}

/* Captures a graph: copy in to x on stream a, y = x + 1 on stream b, copy y to out on
 * stream a. */
static CUgraphExec captured(struct rig *r)
{
	CUevent filled, added;
	CUgraph graph;
	CUgraphExec exec;

	OK(r->api->event_create(&filled, CU_EVENT_DISABLE_TIMING));
	OK(r->api->event_create(&added, CU_EVENT_DISABLE_TIMING));
	OK(r->api->stream_begin_capture(r->a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	OK(r->api->memcpy_htod_async(r->x, r->in, RIG_BYTES, r->a));
	OK(r->api->event_record(filled, r->a));
	OK(r->api->stream_wait_event(r->b, filled, 0));
	OK(launch(r, r->b, r->y, r->x, 1));
	OK(r->api->event_record(added, r->b));
	OK(r->api->stream_wait_event(r->a, added, 0));
	OK(r->api->memcpy_dtoh_async(r->out, r->y, RIG_BYTES, r->a));
	OK(r->api->stream_end_capture(r->a, &graph));
	assert_int_equal(fake_cuda_queued(), 0);
	assert_int_equal(
		r->api->stream_wait_event(r->b, added, 0), CUDA_ERROR_CAPTURED_EVENT);
	OK(r->api->graph_instantiate(&exec, graph, 0));
	OK(r->api->graph_destroy(graph));
	OK(r->api->event_destroy(filled));
	OK(r->api->event_destroy(added));
	return exec;
}

/* Captures a graph: copy in to x, copy the first half of x to out, record the event
 * `middle`, copy the second half of x to out. */
static CUgraphExec captured_in_halves(struct rig *r, CUevent middle)
{
	CUgraph graph;
	CUgraphExec exec;

	OK(r->api->stream_begin_capture(r->a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	OK(r->api->memcpy_htod_async(r->x, r->in, RIG_BYTES, r->a));
	OK(r->api->memcpy_dtoh_async(r->out, r->x, RIG_BYTES / 2, r->a));
	OK(r->api->event_record_with_flags(middle, r->a, CU_EVENT_RECORD_EXTERNAL));
	OK(r->api->memcpy_dtoh_async(
		r->out + RIG_BYTES / 2, r->x + RIG_BYTES / 2, RIG_BYTES / 2, r->a));
	OK(r->api->stream_end_capture(r->a, &graph));
	OK(r->api->graph_instantiate(&exec, graph, 0));
	OK(r->api->graph_destroy(graph));
	return exec;
}

static void test_an_external_event_comes_in_the_middle_of_each_launch(void **state)
{
	struct rig r;
	CUevent middle;
	CUgraphExec exec;

	(void)state;
	rig_open(&r, NULL);
	OK(r.api->event_create(&middle, CU_EVENT_DISABLE_TIMING));
	assert_int_equal(
		r.api->event_record_with_flags(middle, r.a, CU_EVENT_RECORD_EXTERNAL),
		CUDA_ERROR_INVALID_VALUE);
	exec = captured_in_halves(&r, middle);
	for (unsigned char value = 1; value < 4; value++) {
		memset(r.in, value, RIG_BYTES);
		OK(r.api->graph_launch(exec, r.a));
		OK(r.api->event_synchronize(middle));
		assert_int_equal(r.out[RIG_BYTES / 2 - 1], value);
		assert_int_not_equal(r.out[RIG_BYTES / 2], value);
		assert_true(rig_out_is(&r, value));
	}
	OK(r.api->graph_exec_destroy(exec));
	OK(r.api->event_destroy(middle));
	rig_close(&r);
}

static void test_a_graph_may_record_its_events_late(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	struct rig r;
	CUevent middle;
	CUgraphExec exec;

	(void)state;
	opts.late_records = true;
	rig_open(&r, &opts);
	OK(r.api->event_create(&middle, CU_EVENT_DISABLE_TIMING));
	exec = captured_in_halves(&r, middle);
	OK(r.api->graph_launch(exec, r.a));
	/* The graph has not recorded the event yet, so the call returns without
	 * waiting. */
	OK(r.api->event_synchronize(middle));
	assert_int_not_equal(r.out[0], 'i');
	assert_true(rig_out_is(&r, 'i'));
	OK(r.api->graph_exec_destroy(exec));
	OK(r.api->event_destroy(middle));
	rig_close(&r);
}

static void test_a_graph_does_its_work_at_each_launch(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 50; seed++) {
		struct fake_cuda_opts opts = fake_cuda_defaults();
		struct rig r;
		CUgraphExec exec;

		opts.seed = seed;
		rig_open(&r, &opts);
		load(&r);
		exec = captured(&r);
		for (unsigned char i = 0; i < 3; i++) {
			memset(r.in, i, RIG_BYTES);
			OK(r.api->graph_launch(exec, r.a));
			assert_true(rig_out_is(&r, i + 1));
		}
		OK(r.api->graph_exec_destroy(exec));
		OK(r.api->module_unload(module));
		rig_close(&r);
	}
}

static void test_branches_of_a_graph_run_in_any_order(void **state)
{
	unsigned seen = 0;

	(void)state;
	for (uint64_t seed = 0; seed < 50; seed++) {
		struct fake_cuda_opts opts = fake_cuda_defaults();
		CUevent event;
		CUgraph graph;
		CUgraphExec exec;
		struct rig r;

		opts.seed = seed;
		rig_open(&r, &opts);
		OK(r.api->event_create(&event, CU_EVENT_DISABLE_TIMING));
		OK(r.api->stream_begin_capture(r.a, CU_STREAM_CAPTURE_MODE_GLOBAL));
		OK(r.api->event_record(event, r.a));
		OK(r.api->stream_wait_event(r.b, event, 0));
		OK(r.api->memset_d8_async(r.x, 1, RIG_BYTES, r.b));
		OK(r.api->memset_d8_async(r.x, 2, RIG_BYTES, r.a));
		OK(r.api->event_record(event, r.b));
		OK(r.api->stream_wait_event(r.a, event, 0));
		OK(r.api->memcpy_dtoh_async(r.out, r.x, RIG_BYTES, r.a));
		OK(r.api->stream_end_capture(r.a, &graph));
		OK(r.api->graph_instantiate(&exec, graph, 0));
		OK(r.api->graph_launch(exec, r.a));
		OK(r.api->stream_synchronize(r.a));
		seen |= r.out[0];
		OK(r.api->graph_destroy(graph));
		OK(r.api->graph_exec_destroy(exec));
		OK(r.api->event_destroy(event));
		rig_close(&r);
	}
	assert_int_equal(seen, 3);
}

static void test_a_capture_is_spoilt_by_what_it_forbids(void **state)
{
	struct rig r;
	CUdeviceptr at;
	CUevent event;
	CUgraph graph;

	(void)state;
	rig_open(&r, NULL);
	OK(r.api->event_create(&event, CU_EVENT_DISABLE_TIMING));
	OK(r.api->stream_begin_capture(r.a, CU_STREAM_CAPTURE_MODE_GLOBAL));
	assert_int_equal(r.api->mem_alloc(&at, 1), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	assert_int_equal(r.api->stream_end_capture(r.a, &graph),
		CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	OK(r.api->stream_begin_capture(r.a, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(r.api->mem_alloc(&at, 1));
	OK(r.api->mem_free(at));
	assert_int_equal(
		r.api->stream_synchronize(r.a), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	assert_int_equal(r.api->stream_end_capture(r.a, &graph),
		CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	/* A query of a stream that is not captured fails the capture, too. */
	OK(r.api->stream_begin_capture(r.a, CU_STREAM_CAPTURE_MODE_GLOBAL));
	assert_int_equal(r.api->stream_query(r.b), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	assert_int_equal(
		r.api->event_query(event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	assert_int_equal(r.api->stream_end_capture(r.a, &graph),
		CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	/* Stream b joins the capture and is not joined back to stream a. */
	OK(r.api->stream_begin_capture(r.a, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(r.api->event_record(event, r.a));
	OK(r.api->stream_wait_event(r.b, event, 0));
	OK(r.api->memset_d8_async(r.x, 1, RIG_BYTES, r.b));
	assert_int_equal(r.api->stream_end_capture(r.b, &graph),
		CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	assert_int_equal(r.api->stream_end_capture(r.a, &graph),
		CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
	OK(r.api->stream_synchronize(r.b));
	OK(r.api->event_destroy(event));
	rig_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_kernel_works_on_device_memory),
		cmocka_unit_test(test_launches_are_checked),
		cmocka_unit_test(
			test_an_external_event_comes_in_the_middle_of_each_launch),
		cmocka_unit_test(test_a_graph_may_record_its_events_late),
		cmocka_unit_test(test_a_graph_does_its_work_at_each_launch),
		cmocka_unit_test(test_branches_of_a_graph_run_in_any_order),
		cmocka_unit_test(test_a_capture_is_spoilt_by_what_it_forbids),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
