/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the simulated driver: mistakes of its users, and injected faults. */
#include "tests/fakes/cuda/rig.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* True if act() kills the process and the driver prints `says` (NULL: prints nothing)
 * before. */
static bool dies(void (*act)(struct rig *rig), const char *says)
{
	char said[512] = "";
	int status, fds[2];
	struct rig r;
	pid_t child;

	assert_int_equal(pipe(fds), 0);
	child = fork();
	if (child == 0) {
		/* Resets the handlers, since a sanitizer would report the intended
		 * crash. */
		signal(SIGSEGV, SIG_DFL);
		signal(SIGABRT, SIG_DFL);
		dup2(fds[1], STDERR_FILENO);
		rig_open(&r, NULL);
		act(&r);
		_exit(0);
	}
	close(fds[1]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(read(fds[0], said, sizeof(said) - 1) >= 0);
	close(fds[0]);
	return WIFSIGNALED(status) && (says ? strstr(said, says) != NULL : !*said);
}

static void copy_beyond_the_end(struct rig *r)
{
	r->api->memcpy_htod_async(r->x + 1, r->in, RIG_BYTES, r->a);
}

static void copy_beyond_the_page_locked(struct rig *r)
{
	OK(r->api->mem_free(r->y));
	OK(r->api->mem_alloc(&r->y, 2 * RIG_BYTES));
	r->api->memcpy_htod_async(r->y, r->in, RIG_BYTES + 1, r->a);
}

static void touch_device_memory(struct rig *r)
{
	*(volatile char *)(uintptr_t)r->x = 1;
}

static void free_what_a_copy_will_read(struct rig *r)
{
	OK(r->api->memcpy_htod_async(r->x, r->in, RIG_BYTES, r->a));
	r->api->mem_free_host(r->in);
}

static void free_what_a_copy_will_write(struct rig *r)
{
	OK(r->api->memcpy_htod_async(r->x, r->in, RIG_BYTES, r->a));
	r->api->mem_free(r->x);
}

static void write_one_more(const struct fake_cuda_launch *launch)
{
	unsigned char *to = *(unsigned char **)launch->params[0];

	to[RIG_BYTES] = 0;
}

static void write_behind_the_end(struct rig *r)
{
	static const size_t bytes = sizeof(CUdeviceptr);
	void *params[] = {&r->x};
	CUfunction function;
	CUmodule module;

	fake_cuda_kernel("write", write_one_more, 1, &bytes);
	OK(r->api->module_load_data_ex(&module, "", 0, NULL, NULL));
	OK(r->api->module_get_function(&function, module, "write"));
	OK(r->api->launch_kernel(function, 1, 1, 1, 1, 1, 1, 0, r->a, params, NULL));
	OK(r->api->stream_synchronize(r->a));
	r->api->mem_free(r->x);
}

static void use_the_default_stream(struct rig *r)
{
	r->api->memset_d8_async(r->x, 0, 1, NULL);
}

static void use_a_stream_that_is_gone(struct rig *r)
{
	OK(r->api->stream_destroy(r->a));
	r->api->stream_query(r->a);
}

static void query(void *arg)
{
	struct rig *r = arg;

	r->api->stream_query(r->b);
}

static void call_from_a_host_function(struct rig *r)
{
	OK(r->api->launch_host_func(r->a, query, r));
	r->api->stream_synchronize(r->a);
}

static void end_a_context_in_use(struct rig *r)
{
	r->api->primary_ctx_release(0);
}

static void forget_to_close(struct rig *r)
{
	(void)r;
	fake_cuda_reset(NULL);
}

static void test_mistakes_that_corrupt_memory_assert(void **state)
{
	(void)state;
	assert_true(dies(copy_beyond_the_end, "out of bounds"));
	assert_true(dies(copy_beyond_the_page_locked, "end of page-locked memory"));
	assert_true(dies(touch_device_memory, NULL));
	assert_true(dies(free_what_a_copy_will_read, "queued work"));
	assert_true(dies(free_what_a_copy_will_write, "queued work"));
	assert_true(dies(write_behind_the_end, "past the end of the memory"));
	assert_true(dies(use_the_default_stream, "the default stream"));
	assert_true(dies(use_a_stream_that_is_gone, "not a stream"));
	assert_true(dies(call_from_a_host_function, "a host function"));
	assert_true(dies(end_a_context_in_use, "a context ends"));
	assert_true(dies(forget_to_close, "still open: 1 contexts, 2 device, 2 host"));
}

static void test_a_call_fails_on_request(void **state)
{
	struct rig r;
	CUdeviceptr at;

	(void)state;
	rig_open(&r, NULL);
	fake_cuda_fail("mem_alloc", 2, CUDA_ERROR_OUT_OF_MEMORY);
	OK(r.api->mem_alloc(&at, 1));
	OK(r.api->mem_free(at));
	assert_int_equal(r.api->mem_alloc(&at, 1), CUDA_ERROR_OUT_OF_MEMORY);
	OK(r.api->mem_alloc(&at, 1));
	OK(r.api->mem_free(at));
	assert_int_equal(fake_cuda_calls("mem_alloc"), 5);
	rig_close(&r);
}

static void test_memory_ends_at_its_limit(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	size_t free_bytes, total;
	struct rig r;
	CUdeviceptr at;
	void *host;

	(void)state;
	opts.mem_bytes = 10 * RIG_BYTES;
	opts.host_limit_bytes = 3 * RIG_BYTES;
	rig_open(&r, &opts);
	OK(r.api->mem_get_info(&free_bytes, &total));
	assert_int_equal(total, 10 * RIG_BYTES);
	assert_int_equal(free_bytes, 8 * RIG_BYTES);
	assert_int_equal(
		r.api->mem_alloc(&at, 8 * RIG_BYTES + 1), CUDA_ERROR_OUT_OF_MEMORY);
	OK(r.api->mem_alloc(&at, 8 * RIG_BYTES));
	OK(r.api->mem_free(at));
	assert_int_equal(fake_cuda_used_bytes(0), 2 * RIG_BYTES);
	assert_int_equal(fake_cuda_peak_bytes(0), 10 * RIG_BYTES);
	assert_int_equal(
		r.api->mem_host_alloc(&host, RIG_BYTES + 1, 0), CUDA_ERROR_OUT_OF_MEMORY);
	OK(r.api->mem_host_alloc(&host, RIG_BYTES, 0));
	OK(r.api->mem_free_host(host));
	rig_close(&r);
}

static void test_calls_need_a_context(void **state)
{
	struct rig r;
	CUdeviceptr at;

	(void)state;
	fake_cuda_reset(NULL);
	r.api = fake_cuda_api();
	assert_int_equal(
		r.api->primary_ctx_retain(&r.context, 0), CUDA_ERROR_NOT_INITIALIZED);
	OK(r.api->init(0));
	assert_int_equal(
		r.api->primary_ctx_retain(&r.context, 1), CUDA_ERROR_INVALID_DEVICE);
	assert_int_equal(r.api->mem_alloc(&at, 1), CUDA_ERROR_INVALID_CONTEXT);
	OK(r.api->primary_ctx_retain(&r.context, 0));
	OK(r.api->ctx_push_current(r.context));
	OK(r.api->mem_alloc(&at, 1));
	OK(r.api->mem_free(at));
	OK(r.api->primary_ctx_release(0));
	assert_int_equal(r.api->mem_alloc(&at, 1), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	OK(r.api->ctx_pop_current(NULL));
	assert_int_equal(r.api->ctx_pop_current(NULL), CUDA_ERROR_INVALID_CONTEXT);
	fake_cuda_reset(NULL);
}

static void no_work(const struct fake_cuda_launch *launch)
{
	(void)launch;
}

static void count_call(void *arg)
{
	++*(unsigned *)arg;
}

static void test_a_sticky_error_spoils_all_of_the_context(void **state)
{
	unsigned calls = 0;
	struct rig r;
	CUmodule module;
	CUfunction function;
	CUevent event;

	(void)state;
	rig_open(&r, NULL);
	fake_cuda_kernel("work", no_work, 0, NULL);
	OK(r.api->module_load_data_ex(&module, "", 0, NULL, NULL));
	OK(r.api->module_get_function(&function, module, "work"));
	OK(r.api->event_create(&event, 0));
	fake_cuda_break("work", 2, CUDA_ERROR_ILLEGAL_ADDRESS);
	for (int i = 0; i < 3; i++)
		OK(r.api->launch_kernel(function, 1, 1, 1, 1, 1, 1, 0, r.a, NULL, NULL));
	OK(r.api->launch_host_func(r.a, count_call, &calls));
	OK(r.api->event_record(event, r.a));
	OK(r.api->stream_wait_event(r.b, event, 0));
	/* After a sticky error, the call that waits or queries next reports it, and then
	 * all calls that need the context do. */
	assert_int_equal(r.api->stream_synchronize(r.b), CUDA_ERROR_ILLEGAL_ADDRESS);
	assert_int_equal(r.api->event_query(event), CUDA_ERROR_ILLEGAL_ADDRESS);
	assert_int_equal(r.api->mem_free(r.x), CUDA_ERROR_ILLEGAL_ADDRESS);
	assert_int_equal(calls, 0);
	assert_int_equal(fake_cuda_queued(), 0);
	/* The memory of a corrupted context is freed only by the context's end. */
	OK(r.api->ctx_pop_current(NULL));
	OK(r.api->primary_ctx_release(0));
	fake_cuda_reset(NULL);
}

static void test_an_old_driver_lacks_what_is_optional(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	struct rig r;
	int value;

	(void)state;
	opts.old_driver = true;
	rig_open(&r, &opts);
	assert_null(r.api->mem_get_handle_for_address_range);
	assert_null(r.api->ipc_open_mem_handle);
	assert_non_null(r.api->mem_alloc);
	assert_int_equal(r.api->device_get_attribute(
				 &value, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0),
		CUDA_ERROR_INVALID_VALUE);
	rig_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mistakes_that_corrupt_memory_assert),
		cmocka_unit_test(test_a_call_fails_on_request),
		cmocka_unit_test(test_memory_ends_at_its_limit),
		cmocka_unit_test(test_calls_need_a_context),
		cmocka_unit_test(test_a_sticky_error_spoils_all_of_the_context),
		cmocka_unit_test(test_an_old_driver_lacks_what_is_optional),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
