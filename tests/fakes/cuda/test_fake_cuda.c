/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the simulated driver: memory, and when work happens. */
#include "tests/fakes/cuda/rig.h"

#include <semaphore.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_work_happens_when_it_is_waited_for(void **state)
{
	struct rig r;

	(void)state;
	rig_open(&r, NULL);
	OK(r.api->memcpy_htod_async(r.x, r.in, RIG_BYTES, r.a));
	OK(r.api->memcpy_dtoh_async(r.out, r.x, RIG_BYTES, r.a));
	/* The copy is not done yet, and reads page-locked memory when it is done: so it
	 * will copy the new bytes. */
	memset(r.in, 'j', RIG_BYTES);
	assert_int_equal(r.out[0], 'o');
	assert_int_equal(fake_cuda_queued(), 2);
	OK(r.api->stream_synchronize(r.a));
	assert_true(rig_out_is(&r, 'j'));
	assert_int_equal(fake_cuda_pageable_copies(), 0);
	rig_close(&r);
}

static void test_queries_bring_work_on_unless_it_is_held(void **state)
{
	struct rig r;

	(void)state;
	rig_open(&r, NULL);
	OK(r.api->memset_d8_async(r.x, 'm', RIG_BYTES, r.a));
	OK(r.api->memcpy_dtoh_async(r.out, r.x, RIG_BYTES, r.a));
	fake_cuda_hold(true);
	for (int i = 0; i < 10; i++)
		assert_int_equal(r.api->stream_query(r.a), CUDA_ERROR_NOT_READY);
	fake_cuda_hold(false);
	assert_int_equal(r.api->stream_query(r.a), CUDA_ERROR_NOT_READY);
	OK(r.api->stream_query(r.a));
	assert_true(rig_out_is(&r, 'm'));
	rig_close(&r);
}

static void test_streams_without_an_event_between_them_run_in_the_wrong_order(
	void **state)
{
	struct rig r;

	(void)state;
	rig_open(&r, NULL);
	OK(r.api->memset_d8_async(r.x, 'm', RIG_BYTES, r.b));
	OK(r.api->stream_synchronize(r.b));
	OK(r.api->memset_d8_async(r.x, 'n', RIG_BYTES, r.b));
	OK(r.api->memcpy_dtoh_async(r.out, r.x, RIG_BYTES, r.a));
	assert_true(rig_out_is(&r, 'm'));
	rig_close(&r);
}

static void test_an_event_orders_streams(void **state)
{
	struct rig r;
	CUevent event;

	(void)state;
	rig_open(&r, NULL);
	OK(r.api->event_create(&event, CU_EVENT_DISABLE_TIMING));
	/* The event was never recorded, so the call waits for nothing. */
	OK(r.api->stream_wait_event(r.a, event, 0));
	OK(r.api->memset_d8_async(r.x, 'm', RIG_BYTES, r.b));
	OK(r.api->event_record(event, r.b));
	OK(r.api->memset_d8_async(r.x, 'n', RIG_BYTES, r.b));
	OK(r.api->stream_wait_event(r.a, event, 0));
	/* A wait for an event refers to its latest record at the time of the call, not to
	 * later records. */
	OK(r.api->event_record(event, r.b));
	OK(r.api->memcpy_dtoh_async(r.out, r.x, RIG_BYTES, r.a));
	assert_true(rig_out_is(&r, 'm'));
	assert_int_equal(fake_cuda_queued(), 2);
	OK(r.api->event_synchronize(event));
	OK(r.api->event_query(event));
	assert_int_equal(fake_cuda_queued(), 0);
	OK(r.api->event_destroy(event));
	rig_close(&r);
}

static void test_events_tell_the_time_between_them(void **state)
{
	struct rig r;
	CUevent from, to, silent;
	float ms;

	(void)state;
	rig_open(&r, NULL);
	OK(r.api->event_create(&from, 0));
	OK(r.api->event_create(&to, 0));
	OK(r.api->event_create(&silent, CU_EVENT_DISABLE_TIMING));
	assert_int_equal(
		r.api->event_elapsed_time(&ms, from, to), CUDA_ERROR_INVALID_HANDLE);
	OK(r.api->event_record(from, r.a));
	OK(r.api->memset_d8_async(r.x, 'm', RIG_BYTES, r.a));
	OK(r.api->event_record(to, r.a));
	OK(r.api->event_record(silent, r.a));
	assert_int_equal(r.api->event_elapsed_time(&ms, from, to), CUDA_ERROR_NOT_READY);
	OK(r.api->event_synchronize(silent));
	OK(r.api->event_elapsed_time(&ms, from, to));
	assert_true(ms > 0);
	assert_int_equal(
		r.api->event_elapsed_time(&ms, from, silent), CUDA_ERROR_INVALID_HANDLE);
	OK(r.api->event_destroy(from));
	OK(r.api->event_destroy(to));
	OK(r.api->event_destroy(silent));
	rig_close(&r);
}

static void count_call(void *arg)
{
	++*(unsigned *)arg;
}

static void test_host_functions_run_in_their_place(void **state)
{
	unsigned calls = 0;
	struct rig r;

	(void)state;
	rig_open(&r, NULL);
	OK(r.api->launch_host_func(r.a, count_call, &calls));
	OK(r.api->memset_d8_async(r.x, 'm', RIG_BYTES, r.a));
	assert_int_equal(calls, 0);
	assert_true(fake_cuda_step());
	assert_int_equal(calls, 1);
	assert_int_equal(fake_cuda_queued(), 1);
	rig_close(&r);
	assert_int_equal(calls, 1);
}

static void test_a_stream_ends_its_work_after_it_was_destroyed(void **state)
{
	unsigned calls = 0;
	CUstream stream;
	struct rig r;

	(void)state;
	rig_open(&r, NULL);
	OK(r.api->stream_create_with_priority(&stream, 0, 0));
	OK(r.api->launch_host_func(stream, count_call, &calls));
	OK(r.api->stream_destroy(stream));
	assert_int_equal(calls, 0);
	assert_int_equal(fake_cuda_live().streams, 2);
	fake_cuda_run();
	assert_int_equal(calls, 1);
	rig_close(&r);
}

/* Copies between the device and host memory that is not page-locked: the driver reads the
 * source during the call, or returns only when the bytes have arrived at the
 * destination. */
static void test_copies_of_pageable_memory_are_staged_and_counted(void **state)
{
	unsigned char in[RIG_BYTES], out[RIG_BYTES];
	struct rig r;

	(void)state;
	rig_open(&r, NULL);
	memset(in, 'p', sizeof(in));
	OK(r.api->memcpy_htod_async(r.x, in, sizeof(in), r.a));
	memset(in, 'q', sizeof(in));
	OK(r.api->memcpy_dtoh_async(out, r.x, sizeof(out), r.a));
	assert_int_equal(out[0], 'p');
	assert_int_equal(out[RIG_BYTES - 1], 'p');
	assert_int_equal(fake_cuda_pageable_copies(), 2);
	OK(r.api->mem_host_register(out, sizeof(out), 0));
	assert_int_equal(r.api->mem_host_register(out + 1, 1, 0),
		CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	OK(r.api->memcpy_dtoh_async(out, r.x, sizeof(out), r.a));
	assert_int_equal(fake_cuda_pageable_copies(), 2);
	OK(r.api->stream_synchronize(r.a));
	OK(r.api->mem_host_unregister(out));
	assert_int_equal(
		r.api->mem_host_unregister(out), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	rig_close(&r);
}

/* Two page-locked ranges touch: one ends where the other starts. Unregistering the second
 * one must not find the first one. */
static void test_page_locked_neighbours_are_told_apart(void **state)
{
	struct rig r;
	static char memory[8192];

	(void)state;
	rig_open(&r, NULL);
	OK(r.api->mem_host_register(memory, 4096, 0));
	OK(r.api->mem_host_register(memory + 4096, 4096, 0));
	OK(r.api->mem_host_unregister(memory + 4096));
	OK(r.api->mem_host_unregister(memory));
	rig_close(&r);
}

static void test_values_and_copies_on_the_device(void **state)
{
	struct rig r;

	(void)state;
	rig_open(&r, NULL);
	OK(r.api->memset_d32_async(r.x, 0x01020304, RIG_BYTES / 4, r.a));
	OK(r.api->memcpy_dtod_async(r.y, r.x + 4, RIG_BYTES - 4, r.a));
	OK(r.api->memset_d8_async(r.y + RIG_BYTES - 4, 0, 4, r.a));
	OK(r.api->memcpy_dtoh_async(r.out, r.y, RIG_BYTES, r.a));
	assert_int_equal(
		r.api->memset_d32_async(r.x + 1, 0, 1, r.a), CUDA_ERROR_INVALID_VALUE);
	OK(r.api->stream_synchronize(r.a));
	assert_memory_equal(r.out, "\4\3\2\1\4\3\2\1", 8);
	assert_memory_equal(r.out + RIG_BYTES - 8, "\4\3\2\1\0\0\0\0", 8);
	rig_close(&r);
}

static void test_pointers_are_known(void **state)
{
	struct rig r;
	unsigned type, on = 1;
	int ordinal;
	CUdeviceptr base;
	size_t bytes;
	char none;

	(void)state;
	rig_open(&r, NULL);
	OK(r.api->pointer_get_attribute(
		&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, r.x + 5));
	assert_int_equal(type, CU_MEMORYTYPE_DEVICE);
	OK(r.api->pointer_get_attribute(
		&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)r.in));
	assert_int_equal(type, CU_MEMORYTYPE_HOST);
	OK(r.api->pointer_get_attribute(
		&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, r.y));
	assert_int_equal(ordinal, 0);
	OK(r.api->mem_get_address_range(&base, &bytes, r.y + 7));
	assert_true(base == r.y && bytes == RIG_BYTES);
	OK(r.api->pointer_set_attribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, r.x));
	assert_int_equal(
		r.api->pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
			(CUdeviceptr)(uintptr_t)&none),
		CUDA_ERROR_INVALID_VALUE);
	rig_close(&r);
}

static void test_a_dma_buf_holds_the_memory(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	struct rig r;
	char *map;
	int fd;

	(void)state;
	rig_open(&r, NULL);
	OK(r.api->memset_d8_async(r.x, 'm', RIG_BYTES, r.a));
	OK(r.api->stream_synchronize(r.a));
	OK(r.api->mem_get_handle_for_address_range(
		&fd, r.x, 4096, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(map != MAP_FAILED);
	assert_int_equal(map[RIG_BYTES - 1], 'm');
	memset(map, 'w', RIG_BYTES);
	munmap(map, 4096);
	close(fd);
	OK(r.api->flush_gpu_direct_rdma_writes(
		CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
		CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER));
	OK(r.api->memcpy_dtoh_async(r.out, r.x, RIG_BYTES, r.a));
	assert_true(rig_out_is(&r, 'w'));
	assert_int_equal(r.api->mem_get_handle_for_address_range(&fd, r.x, RIG_BYTES,
				 CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
		CUDA_ERROR_INVALID_VALUE);
	rig_close(&r);
	opts.dma_buf = false;
	opts.rdma_flush = 0;
	rig_open(&r, &opts);
	assert_int_equal(r.api->mem_get_handle_for_address_range(
				 &fd, r.x, 4096, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
		CUDA_ERROR_NOT_SUPPORTED);
	assert_int_equal(r.api->flush_gpu_direct_rdma_writes(
				 CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
				 CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER),
		CUDA_ERROR_NOT_SUPPORTED);
	rig_close(&r);
}

/* The child process of test_memory_is_opened_by_another_process(): writes to the parent's
 * device memory. */
static int write_through(CUipcMemHandle handle)
{
	struct rig r;
	CUdeviceptr at, again;

	/* The child does not call rig_open(), since its reset asserts that no objects are
	 * open, and the child has inherited the parent's open objects. */
	r.api = fake_cuda_api();
	OK(r.api->ipc_open_mem_handle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	OK(r.api->ipc_open_mem_handle(
		&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	assert_true(at == again);
	OK(r.api->stream_create_with_priority(&r.a, 0, 0));
	OK(r.api->memset_d8_async(at, 'c', RIG_BYTES, r.a));
	OK(r.api->stream_synchronize(r.a));
	OK(r.api->ipc_close_mem_handle(at));
	OK(r.api->ipc_close_mem_handle(at));
	return r.api->ipc_close_mem_handle(at) == CUDA_ERROR_INVALID_VALUE ? 0 : 1;
}

static void test_memory_is_opened_by_another_process(void **state)
{
	struct rig r;
	CUipcMemHandle handle;
	CUdeviceptr at;
	int status;
	pid_t child;

	(void)state;
	rig_open(&r, NULL);
	OK(r.api->ipc_get_mem_handle(&handle, r.x));
	assert_int_equal(
		r.api->ipc_open_mem_handle(&at, handle, 0), CUDA_ERROR_INVALID_CONTEXT);
	child = fork();
	if (child == 0)
		_exit(write_through(handle));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	OK(r.api->memcpy_dtoh_async(r.out, r.x, RIG_BYTES, r.a));
	assert_true(rig_out_is(&r, 'c'));
	rig_close(&r);
}

/* The child process of test_an_event_is_waited_for_by_another_process(): waits for the
 * parent's event, and reads the parent's memory. */
static int read_after(int from)
{
	CUipcMemHandle memory;
	CUipcEventHandle event;
	CUdeviceptr at;
	CUevent filled;
	struct rig r;

	rig_open(&r, NULL);
	assert_int_equal(read(from, &memory, sizeof(memory)), sizeof(memory));
	assert_int_equal(read(from, &event, sizeof(event)), sizeof(event));
	OK(r.api->ipc_open_mem_handle(&at, memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	OK(r.api->ipc_open_event_handle(&filled, event));
	OK(r.api->stream_wait_event(r.a, filled, 0));
	OK(r.api->memcpy_dtoh_async(r.out, at, RIG_BYTES, r.a));
	if (!rig_out_is(&r, 'e'))
		return 1;
	OK(r.api->event_query(filled));
	OK(r.api->event_destroy(filled));
	OK(r.api->ipc_close_mem_handle(at));
	rig_close(&r);
	return 0;
}

static void test_an_event_is_waited_for_by_another_process(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	CUipcMemHandle memory;
	CUipcEventHandle handle;
	CUevent event;
	struct rig r;
	int fds[2], status;
	pid_t child;

	(void)state;
	assert_int_equal(pipe(fds), 0);
	child = fork(); /* before the driver has started a thread */
	if (child == 0)
		_exit(read_after(fds[0]));
	opts.background = true;
	rig_open(&r, &opts);
	fake_cuda_hold(true);
	assert_int_equal(r.api->event_create(&event, CU_EVENT_INTERPROCESS),
		CUDA_ERROR_INVALID_VALUE);
	OK(r.api->event_create(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	OK(r.api->memset_d8_async(r.x, 'e', RIG_BYTES, r.a));
	OK(r.api->event_record(event, r.a));
	OK(r.api->ipc_get_mem_handle(&memory, r.x));
	OK(r.api->ipc_get_event_handle(&handle, event));
	assert_int_equal(write(fds[1], &memory, sizeof(memory)), sizeof(memory));
	assert_int_equal(write(fds[1], &handle, sizeof(handle)), sizeof(handle));
	usleep(20000); /* so that the child usually waits before the work is done */
	fake_cuda_hold(false);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	OK(r.api->event_query(event));
	OK(r.api->event_destroy(event));
	close(fds[0]);
	close(fds[1]);
	rig_close(&r);
}

static void post(void *arg)
{
	sem_post(arg);
}

static void test_work_goes_on_in_the_background_if_asked_for(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	struct rig r;
	sem_t done;

	(void)state;
	opts.background = true;
	sem_init(&done, 0, 0);
	rig_open(&r, &opts);
	OK(r.api->memset_d8_async(r.x, 'm', RIG_BYTES, r.a));
	OK(r.api->memcpy_dtoh_async(r.out, r.x, RIG_BYTES, r.a));
	OK(r.api->launch_host_func(r.a, post, &done));
	while (sem_wait(&done))
		;
	assert_int_equal(r.out[0], 'm');
	rig_close(&r);
	sem_destroy(&done);
}

/* The results of ordered work do not depend on when the driver does it, so every seed
 * must give the same. */
static void test_any_seed_does_ordered_work_alike(void **state)
{
	(void)state;
	for (uint64_t seed = 0; seed < 200; seed++) {
		struct fake_cuda_opts opts = fake_cuda_defaults();
		CUevent filled, read;
		struct rig r;

		opts.seed = seed;
		opts.early_percent = (unsigned)(seed % 101);
		rig_open(&r, &opts);
		OK(r.api->event_create(&filled, CU_EVENT_DISABLE_TIMING));
		OK(r.api->event_create(&read, CU_EVENT_DISABLE_TIMING));
		for (unsigned char i = 0; i < 4; i++) {
			OK(r.api->stream_wait_event(r.b, read, 0));
			OK(r.api->memset_d8_async(r.x, i, RIG_BYTES, r.b));
			OK(r.api->event_record(filled, r.b));
			OK(r.api->stream_wait_event(r.a, filled, 0));
			OK(r.api->memcpy_dtoh_async(r.out, r.x, RIG_BYTES, r.a));
			OK(r.api->event_record(read, r.a));
			if (seed % 2)
				assert_true(rig_out_is(&r, i));
		}
		assert_true(rig_out_is(&r, 3));
		OK(r.api->event_destroy(filled));
		OK(r.api->event_destroy(read));
		rig_close(&r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_work_happens_when_it_is_waited_for),
		cmocka_unit_test(test_queries_bring_work_on_unless_it_is_held),
		cmocka_unit_test(
			test_streams_without_an_event_between_them_run_in_the_wrong_order),
		cmocka_unit_test(test_an_event_orders_streams),
		cmocka_unit_test(test_events_tell_the_time_between_them),
		cmocka_unit_test(test_host_functions_run_in_their_place),
		cmocka_unit_test(test_a_stream_ends_its_work_after_it_was_destroyed),
		cmocka_unit_test(test_copies_of_pageable_memory_are_staged_and_counted),
		cmocka_unit_test(test_page_locked_neighbours_are_told_apart),
		cmocka_unit_test(test_values_and_copies_on_the_device),
		cmocka_unit_test(test_pointers_are_known),
		cmocka_unit_test(test_a_dma_buf_holds_the_memory),
		cmocka_unit_test(test_memory_is_opened_by_another_process),
		cmocka_unit_test(test_an_event_is_waited_for_by_another_process),
		cmocka_unit_test(test_work_goes_on_in_the_background_if_asked_for),
		cmocka_unit_test(test_any_seed_does_ordered_work_alike),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
