/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of GPUDirect RDMA between two contexts on simulated devices: when and how GPU
 * memory is registered with network cards, when it is staged (copied through host memory)
 * instead, and when the writes of a card are flushed. The CPU cannot access the GPU's
 * memory, except where nvidia-peermem is simulated. At the end of each test no simulated
 * object may be open.
 */
#include "tests/harness/cmocka.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/util.h"
#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/fakes/verbs/fake_verbs.h"
#include "transport/domain.h"

#define BYTES     (3u << 19)
#define ALLOCATED (BYTES + 3 * 4096)
#define VERBS     "verbs://10.7.0.2:0"
#define OK(call)  assert_int_equal(call, CUDA_SUCCESS)

struct end {
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_peer *peer;
	struct tern_channel *channel;
	struct tern_listener *listeners[2];
	struct tern_mem *mem;
	CUdeviceptr at;
};

/* ends[0] listens and receives, ends[1] connects and sends. */
struct rig {
	struct fake_cuda_opts cuda;
	struct fake_verbs_opts verbs;
	const struct tern_cuda_api *api;
	CUcontext context;
	/* The memory belongs to no context, so Tern cannot export it. by_fd: it is wrapped
	 * with a dma-buf that the test has exported before. */
	bool pooled, by_fd;
	struct end ends[2];
	struct tern_req send, recv;
	unsigned fd_count;
	uint64_t step;
	unsigned char expected[BYTES], came[BYTES];
};

static unsigned count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned count = 0;

	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static struct rig *rig_new(void)
{
	struct rig *rig = calloc(1, sizeof(*rig));

	assert_non_null(rig);
	rig->cuda = fake_cuda_defaults();
	rig->verbs = fake_verbs_defaults();
	return rig;
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	((struct end *)arg)->peer = peer;
}

static void turn(struct rig *rig)
{
	assert_true(tern_progress(rig->ends[0].ctx) >= 0);
	assert_true(tern_progress(rig->ends[1].ctx) >= 0);
}

#define PUMP(rig, cond)                                                                  \
	do {                                                                             \
		uint64_t until_ns_ = tern_clock_ns() + 20 * TERN_NS_PER_S;               \
		while (!(cond)) {                                                        \
			turn(rig);                                                       \
			assert_true(tern_clock_ns() < until_ns_);                        \
		}                                                                        \
	} while (0)

static void end_open(struct rig *rig, struct end *end)
{
	const struct tern_domain_opts opts = {.verbs = "from=10.7.0.1"};
	const struct tern_domain_hooks hooks = {
		.cuda_api = rig->api, .verbs_api = fake_verbs_api()};
	const struct tern_context_opts ctx_opts = {.no_spin = true};
	int fd;

	assert_int_equal(tern_domain_new_hooked(&opts, &hooks, &end->domain), 0);
	assert_int_equal(tern_context_new(end->domain, &ctx_opts, &end->ctx), 0);
	OK(rig->api->ctx_push_current(rig->context));
	OK(rig->api->mem_alloc(&end->at, ALLOCATED));
	if (rig->by_fd)
		OK(rig->api->mem_get_handle_for_address_range(
			&fd, end->at, ALLOCATED, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	OK(rig->api->ctx_pop_current(NULL));
	if (rig->pooled)
		fake_cuda_make_pooled(end->at);
	/* Memory that neither starts nor ends at a page boundary. */
	assert_int_equal(rig->by_fd ? tern_mem_wrap_dmabuf(end->domain, end->at + 4160,
					      BYTES + 64, fd, 4160, &end->mem)
				    : tern_mem_wrap_cuda(end->domain, end->at + 4160,
					      BYTES + 64, &end->mem),
		0);
	if (rig->by_fd)
		close(fd); /* before any device is in use */
	assert_null(tern_mem_reached(end->mem));
}

/* `second`: the dialled list of addresses also has one for tcp, after that for verbs. */
static void rig_open(struct rig *rig, bool second)
{
	struct end *a = &rig->ends[0], *b = &rig->ends[1];
	char where[300];

	fake_verbs_reset(&rig->verbs);
	fake_cuda_reset(&rig->cuda);
	rig->fd_count = count_fds();
	rig->api = fake_cuda_api();
	OK(rig->api->init(0));
	OK(rig->api->primary_ctx_retain(&rig->context, 0));
	end_open(rig, a);
	end_open(rig, b);
	assert_int_equal(
		tern_listen(a->ctx, VERBS, NULL, on_accept, a, &a->listeners[0]), 0);
	assert_int_equal(tern_listen(a->ctx, "tcp://127.0.0.1:0", NULL, on_accept, a,
				 &a->listeners[1]),
		0);
	snprintf(where, sizeof(where), "%s%s%s", tern_listener_address(a->listeners[0]),
		second ? "+" : "", second ? tern_listener_address(a->listeners[1]) : "");
	assert_int_equal(tern_connect(b->ctx, where, NULL, &b->peer), 0);
	PUMP(rig, a->peer);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(
			tern_channel_open(rig->ends[i].peer, 1, &rig->ends[i].channel),
			0);
}

static void rig_free(struct rig *rig)
{
	for (unsigned i = 2; i-- > 0;)
		tern_context_free(rig->ends[i].ctx);
	for (unsigned i = 0; i < 2; i++) {
		tern_mem_put(rig->ends[i].mem);
		tern_domain_free(rig->ends[i].domain);
		OK(rig->api->ctx_push_current(rig->context));
		/* This fails in a corrupted context. */
		rig->api->mem_free(rig->ends[i].at);
		OK(rig->api->ctx_pop_current(NULL));
	}
	assert_int_equal(fake_verbs_live().mrs, 0);
	OK(rig->api->primary_ctx_release(0));
	fake_cuda_reset(NULL);
	fake_verbs_reset(NULL);
	assert_true(count_fds() <= rig->fd_count);
	free(rig);
}

/* ---- transfers ---- */

static void copy(struct rig *rig, CUdeviceptr at, void *host, bool up)
{
	CUstream stream;

	OK(rig->api->ctx_push_current(rig->context));
	OK(rig->api->stream_create_with_priority(&stream, CU_STREAM_NON_BLOCKING, 0));
	if (up)
		OK(rig->api->memcpy_htod_async(at, host, BYTES, stream));
	else
		OK(rig->api->memcpy_dtoh_async(host, at, BYTES, stream));
	OK(rig->api->stream_synchronize(stream));
	OK(rig->api->stream_destroy(stream));
	OK(rig->api->ctx_pop_current(NULL));
}

/* Posts the send and the receive of the next tensor, from GPU memory to GPU memory. */
static void start(struct rig *rig)
{
	struct tern_buf from = {.mem = rig->ends[1].mem, .offset = 64, .bytes = BYTES};
	struct tern_buf to = {.mem = rig->ends[0].mem, .offset = 64, .bytes = BYTES};
	struct tern_tensor tensor = {from, tern_shape_1d(TERN_U8, BYTES)};

	rig->step++;
	for (unsigned i = 0; i < BYTES; i++)
		rig->expected[i] = (unsigned char)(i * 7 + i / 251 + rig->step);
	copy(rig, tern_buf_cuda_address(&from), rig->expected, true);
	rig->send = rig->recv = (struct tern_req){0};
	assert_int_equal(
		tern_recv(rig->ends[0].channel, &rig->recv, 1, rig->step, &to, NULL, 0),
		0);
	assert_int_equal(tern_send(rig->ends[1].channel, &rig->send, 1, rig->step,
				 &tensor, NULL, 0),
		0);
}

static bool is_over(struct rig *rig)
{
	return tern_test(&rig->send) != -EINPROGRESS &&
	       tern_test(&rig->recv) != -EINPROGRESS;
}

static void finish(struct rig *rig)
{
	struct tern_buf to = {.mem = rig->ends[0].mem, .offset = 64, .bytes = BYTES};

	PUMP(rig, is_over(rig));
	assert_int_equal(rig->send.status, 0);
	assert_int_equal(rig->recv.status, 0);
	copy(rig, tern_buf_cuda_address(&to), rig->came, false);
	assert_memory_equal(rig->came, rig->expected, BYTES);
}

static void carry(struct rig *rig)
{
	start(rig);
	finish(rig);
}

/* Checks how many tensors the end has transferred directly, and how many staged. */
static void check_counts(struct rig *rig, unsigned end, unsigned direct, unsigned staged)
{
	struct tern_peer_stats stats;

	tern_peer_stats(rig->ends[end].peer, &stats);
	assert_int_equal(stats.direct_count, direct);
	assert_int_equal(stats.staged_count, staged);
}

static unsigned flushes(void)
{
	return fake_cuda_calls("flush_gpu_direct_rdma_writes");
}

/* ---- direct or staged ---- */

static void test_memory_goes_by_dma_buf(void **state)
{
	struct rig *rig = rig_new();
	unsigned up, down;

	(void)state;
	rig_open(rig, false);
	/* Each of the two ends has registered its memory with both devices. */
	assert_int_equal(fake_verbs_calls("reg_dmabuf_mr"), 4);
	up = fake_cuda_calls("memcpy_htod_async");
	down = fake_cuda_calls("memcpy_dtoh_async");
	carry(rig);
	carry(rig);
	check_counts(rig, 0, 2, 0);
	check_counts(rig, 1, 2, 0);
	/* The only copies are the test's own, in carry(). */
	assert_int_equal(fake_cuda_calls("memcpy_htod_async"), up + 2);
	assert_int_equal(fake_cuda_calls("memcpy_dtoh_async"), down + 2);
	assert_int_equal(fake_verbs_calls("reg_dmabuf_mr"), 4);
	rig_free(rig);
}

static void test_memory_goes_by_the_callers_dma_buf(void **state)
{
	struct tern_rdma_device devices[2];
	struct rig *rig = rig_new();

	(void)state;
	rig->pooled = rig->by_fd = true;
	rig_open(rig, false);
	carry(rig);
	check_counts(rig, 0, 1, 0);
	check_counts(rig, 1, 1, 0);
	/* Only the test has asked the driver for them. */
	assert_int_equal(fake_cuda_calls("mem_get_handle_for_address_range"), 2);
	assert_string_equal(tern_mem_reached(rig->ends[0].mem), "dma-buf");
	assert_int_equal(tern_rdma_devices(rig->ends[0].domain, devices, 2), 2);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(devices[i].gpu_ways, TERN_GPU_BY_DMA_BUF);
		assert_string_equal(devices[i].gpu_refusal, "");
	}
	rig_free(rig);
}

static void test_what_nobody_can_export_is_staged(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct tern_rdma_device devices[2];
		struct rig *rig = rig_new();

		/* Round 0: no dma-buf; round 1: device 1 takes none. */
		rig->pooled = true;
		rig->by_fd = i;
		rig->verbs.no_dma_buf = i << 1;
		rig_open(rig, false);
		carry(rig);
		check_counts(rig, 0, 0, 1);
		check_counts(rig, 1, 0, 1);
		assert_null(tern_mem_reached(rig->ends[0].mem));
		assert_int_equal(tern_rdma_devices(rig->ends[0].domain, devices, 2), 2);
		assert_string_equal(devices[1].gpu_refusal,
			i ? "dma-buf: Operation not supported; nvidia-peermem: not "
			    "available"
			  : "dma-buf: Invalid argument; nvidia-peermem: not available");
		assert_int_equal(devices[0].gpu_ways, TERN_GPU_BY_DMA_BUF);
		assert_int_equal(devices[1].gpu_ways, i ? 0 : TERN_GPU_BY_DMA_BUF);
		rig_free(rig);
	}
}

static void test_without_dma_bufs_it_goes_by_peermem(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct rig *rig = rig_new();

		/* Round 0: the GPU exports no dma-buf; round 1: the network cards accept
		 * none. */
		rig->cuda.dma_buf = i;
		rig->verbs.no_dma_buf = i ? ~0u : 0;
		rig->verbs.peermem = true;
		rig->cuda.unguarded = true;
		rig_open(rig, false);
		carry(rig);
		check_counts(rig, 0, 1, 0);
		check_counts(rig, 1, 1, 0);
		assert_string_equal(tern_mem_reached(rig->ends[0].mem), "nvidia-peermem");
		rig_free(rig);
	}
}

static void test_without_either_it_is_staged(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		struct rig *rig = rig_new();

		switch (i) {
		case 0: /* the GPU exports no dma-buf, and nvidia-peermem is not loaded */
			rig->cuda.dma_buf = false;
			break;
		case 1: /* the driver has no function for dma-bufs */
			rig->cuda.old_driver = true;
			break;
		case 2: /* the network cards accept no dma-buf */
			rig->verbs.no_dma_buf = ~0u;
			break;
		/* nvidia-peermem is loaded, but the GPU does not support it either. */
		case 3:
			rig->verbs.no_dma_buf = ~0u;
			rig->verbs.peermem = true;
			rig->cuda.rdma = false;
			break;
		}
		rig_open(rig, false);
		carry(rig);
		check_counts(rig, 0, 0, 1);
		check_counts(rig, 1, 0, 1);
		assert_int_equal(flushes(), 0);
		rig_free(rig);
	}
}

static void test_a_refused_registration_is_no_error(void **state)
{
	static const char *const calls[] = {
		"mem_get_address_range", "mem_get_handle_for_address_range"};
	/* Which of these calls fails. The first mem_get_address_range is made for shm, the
	 * second one for verbs. */
	static const unsigned nth[] = {2, 1};

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		struct rig *rig = rig_new();

		rig_open(rig, false);
		/* Makes the sender's registration with its first device fail. */
		tern_mem_put(rig->ends[1].mem);
		if (i < 2)
			fake_cuda_fail(calls[i], nth[i], CUDA_ERROR_NOT_PERMITTED);
		else
			fake_verbs_fail("reg_dmabuf_mr", 1, ENOMEM);
		assert_int_equal(
			tern_mem_wrap_cuda(rig->ends[1].domain, rig->ends[1].at + 4160,
				BYTES + 64, &rig->ends[1].mem),
			0);
		carry(rig);
		/* The sender's offer (RTS) has no region to read, so the sender puts. */
		check_counts(rig, 0, 0, 1);
		check_counts(rig, 1, 0, 1);
		rig_free(rig);
	}
}

/* Opens a second session, on device 2, so that the events of this device are read. */
static void use_third_device(struct rig *rig)
{
	struct tern_listener *listener;
	struct tern_peer *first = rig->ends[0].peer, *second;

	assert_int_equal(tern_listen(rig->ends[0].ctx, "verbs://10.7.0.3:0", NULL,
				 on_accept, &rig->ends[0], &listener),
		0);
	assert_int_equal(tern_connect(rig->ends[1].ctx, tern_listener_address(listener),
				 NULL, &second),
		0);
	PUMP(rig, rig->ends[0].peer != first);
	rig->ends[0].peer = first;
}

static void test_all_devices_in_use_must_reach_it(void **state)
{
	struct rig *rig = rig_new();

	(void)state;
	rig->verbs.device_count = 3;
	/* This device accepts no dma-buf, but no tensor of this test uses it. */
	rig->verbs.no_dma_buf = 1u << 2;
	rig_open(rig, false);
	use_third_device(rig);
	carry(rig);
	check_counts(rig, 0, 0, 1);
	check_counts(rig, 1, 0, 1);
	/* This transfer has begun staged, and stays so when the third device is removed. */
	start(rig);
	for (unsigned i = 0; i < 4; i++)
		turn(rig);
	fake_verbs_remove_device(2);
	finish(rig);
	check_counts(rig, 0, 0, 2);
	check_counts(rig, 1, 0, 2);
	for (unsigned i = 0; i < 1000; i++)
		turn(rig);
	carry(rig);
	check_counts(rig, 0, 1, 2);
	check_counts(rig, 1, 1, 2);
	rig_free(rig);
}

/* ---- writes of a network card ---- */

static void test_a_receive_is_flushed_where_the_driver_asks_for_it(void **state)
{
	static const struct {
		int order;
		unsigned device_count, flush_count;
	} cases[] = {
		{CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE, 1, 1},
		{CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER, 1, 0},
		{CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER, 2, 1},
		{CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES, 2, 0},
	};

	(void)state;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(cases); i++) {
		struct rig *rig = rig_new();

		rig->cuda.rdma_order = cases[i].order;
		rig->cuda.device_count = cases[i].device_count;
		rig_open(rig, false);
		carry(rig);
		check_counts(rig, 0, 1, 0);
		assert_int_equal(flushes(), cases[i].flush_count);
		rig_free(rig);
	}
}

static void test_a_flush_that_fails_ends_its_tensor_alone(void **state)
{
	struct rig *rig = rig_new();

	(void)state;
	rig->cuda.rdma_order = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE;
	rig_open(rig, false);
	fake_cuda_fail("flush_gpu_direct_rdma_writes", 1, CUDA_ERROR_UNKNOWN);
	start(rig);
	PUMP(rig, is_over(rig));
	assert_int_equal(rig->recv.status, -EIO);
	assert_int_equal(rig->send.status, -EIO);
	carry(rig);
	rig_free(rig);
}

static void nothing(const struct fake_cuda_launch *launch)
{
	(void)launch;
}

static void spoil(struct rig *rig)
{
	CUmodule module;
	CUfunction function;
	CUstream stream;

	fake_cuda_kernel("nothing", nothing, 0, NULL);
	fake_cuda_break("nothing", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
	OK(rig->api->ctx_push_current(rig->context));
	OK(rig->api->module_load_data_ex(&module, "", 0, NULL, NULL));
	OK(rig->api->module_get_function(&function, module, "nothing"));
	OK(rig->api->stream_create_with_priority(&stream, CU_STREAM_NON_BLOCKING, 0));
	OK(rig->api->launch_kernel(
		function, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){NULL}, NULL));
	assert_int_equal(
		rig->api->stream_synchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	OK(rig->api->ctx_pop_current(NULL));
}

static void test_a_device_that_breaks_is_enotrecoverable(void **state)
{
	struct rig *rig = rig_new();

	(void)state;
	rig->cuda.rdma_order = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE;
	rig_open(rig, false);
	start(rig);
	spoil(rig);
	PUMP(rig, is_over(rig));
	assert_int_equal(rig->recv.status, -ENOTRECOVERABLE);
	assert_int_equal(rig->send.status, -ENOTRECOVERABLE);
	rig_free(rig);
}

static void test_what_cannot_be_flushed_is_received_staged(void **state)
{
	struct rig *rig = rig_new();

	(void)state;
	rig->cuda.rdma_order = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE;
	rig->cuda.rdma_flush = CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_MEMOPS;
	rig_open(rig, false);
	carry(rig);
	assert_null(tern_mem_reached(rig->ends[0].mem));
	check_counts(rig, 0, 0, 1);
	check_counts(rig, 1, 1, 0); /* sending needs no flush, so it is direct */
	assert_int_equal(flushes(), 0);
	rig_free(rig);
}

/* ---- the session moves to another link ---- */

static void test_a_tensor_under_way_goes_on_over_tcp(void **state)
{
	(void)state;
	/* Cuts the link after this number of turns: before, during or after the get. */
	for (unsigned turns = 0; turns < 24; turns += 2) {
		struct rig *rig = rig_new();

		rig->verbs.piece_bytes = 4096;
		rig->verbs.delay_steps = 20;
		rig->verbs.seed = turns + 1;
		rig->verbs.retry_steps = 50;
		rig_open(rig, true);
		carry(rig);
		check_counts(rig, 0, 1, 0);
		start(rig);
		for (unsigned i = 0; i < turns; i++)
			turn(rig);
		fake_verbs_cut(0, 1, true);
		finish(rig);
		PUMP(rig, strcmp(tern_peer_fabric(rig->ends[1].peer), "tcp") == 0);
		carry(rig);
		rig_free(rig);
	}
}

static void test_a_held_get_starts_over_staged(void **state)
{
	struct rig *rig = rig_new();
	struct tern_peer_stats stats = {0};

	(void)state;
	rig_open(rig, true);
	start(rig);
	while (stats.direct_count == 0) {
		turn(rig);
		tern_peer_stats(rig->ends[0].peer, &stats);
		fake_verbs_hold_wire(stats.direct_count > 0);
	}
	fake_verbs_remove_device(0);
	fake_verbs_hold_wire(false);
	finish(rig);
	check_counts(rig, 0, 1, 1);
	check_counts(rig, 1, 1, 1);
	assert_string_equal(tern_peer_fabric(rig->ends[1].peer), "tcp");
	rig_free(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_memory_goes_by_dma_buf),
		cmocka_unit_test(test_memory_goes_by_the_callers_dma_buf),
		cmocka_unit_test(test_what_nobody_can_export_is_staged),
		cmocka_unit_test(test_without_dma_bufs_it_goes_by_peermem),
		cmocka_unit_test(test_without_either_it_is_staged),
		cmocka_unit_test(test_a_refused_registration_is_no_error),
		cmocka_unit_test(test_all_devices_in_use_must_reach_it),
		cmocka_unit_test(test_a_receive_is_flushed_where_the_driver_asks_for_it),
		cmocka_unit_test(test_a_flush_that_fails_ends_its_tensor_alone),
		cmocka_unit_test(test_a_device_that_breaks_is_enotrecoverable),
		cmocka_unit_test(test_what_cannot_be_flushed_is_received_staged),
		cmocka_unit_test(test_a_tensor_under_way_goes_on_over_tcp),
		cmocka_unit_test(test_a_held_get_starts_over_staged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
