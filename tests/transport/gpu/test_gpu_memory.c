/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of GPU memory as registered memory: wrapped, in pools, and with bounce buffers in
 * host memory. The tests run on the simulated driver; at the end of each test no object of
 * the driver may be open. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <tern/context.h>
#include <tern/memory.h>

#include "base/util.h"
#include "tests/fakes/cuda/fake_cuda.h"
#include "transport/domain.h"
#include "transport/gpu/gpu.h"

#define MIB      (1ull << 20)
#define OK(call) assert_int_equal(call, CUDA_SUCCESS)

/* The program that uses Tern: a context and an allocation on each device. */
struct user {
	const struct tern_cuda_api *api;
	struct tern_domain *domain;
	CUcontext contexts[2];
	CUdeviceptr at[2];
	unsigned count;
};

static void user_open(struct user *u, const struct fake_cuda_opts *opts, uint64_t bound)
{
	struct tern_domain_opts domain_opts = {.bounce_bytes = bound};
	struct tern_domain_hooks hooks = {0};

	*u = (struct user){.count = opts ? opts->device_count : 1};
	fake_cuda_reset(opts);
	u->api = fake_cuda_api();
	OK(u->api->init(0));
	for (unsigned i = 0; i < u->count; i++) {
		OK(u->api->primary_ctx_retain(&u->contexts[i], (CUdevice)i));
		OK(u->api->ctx_push_current(u->contexts[i]));
		OK(u->api->mem_alloc(&u->at[i], 10000));
		OK(u->api->ctx_pop_current(NULL));
	}
	hooks.cuda_api = u->api;
	assert_int_equal(tern_domain_new_hooked(&domain_opts, &hooks, &u->domain), 0);
}

static void user_close(struct user *u)
{
	CUcontext current;

	tern_domain_free(u->domain);
	OK(u->api->ctx_get_current(&current));
	assert_null(current); /* Tern has left no context on this thread */
	for (unsigned i = 0; i < u->count; i++) {
		OK(u->api->ctx_push_current(u->contexts[i]));
		OK(u->api->mem_free(u->at[i]));
		OK(u->api->ctx_pop_current(NULL));
		OK(u->api->primary_ctx_release((CUdevice)i));
	}
	fake_cuda_reset(NULL); /* asserts that no object of the driver is open */
}

static void test_wrapped_memory_knows_its_device(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	struct user u;

	(void)state;
	opts.device_count = 2;
	user_open(&u, &opts, 0);
	for (unsigned i = 0; i < 2; i++) {
		struct tern_mem *mem;
		struct tern_buf buf;

		assert_int_equal(
			tern_mem_wrap_cuda(u.domain, u.at[i] + 16, 9000, &mem), 0);
		assert_int_equal(tern_mem_kind(mem), TERN_MEM_CUDA);
		assert_int_equal(tern_mem_cuda_device(mem), i);
		assert_int_equal(tern_mem_cuda_address(mem), u.at[i] + 16);
		assert_int_equal(tern_mem_bytes(mem), 9000);
		assert_null(tern_mem_base(mem));
		buf = (struct tern_buf){.mem = mem, .offset = 100, .bytes = 1};
		assert_null(tern_buf_ptr(&buf));
		assert_int_equal(tern_buf_cuda_address(&buf), u.at[i] + 116);
		tern_mem_put(mem);
	}
	user_close(&u);
}

static bool is_guarded(const struct user *u, uint64_t address)
{
	unsigned on = 0;

	OK(u->api->ctx_push_current(u->contexts[0]));
	OK(u->api->pointer_get_attribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address));
	OK(u->api->ctx_pop_current(NULL));
	return on;
}

/* Tern sets the attribute SYNC_MEMOPS of the memory that it uses. Otherwise synchronous
 * copies may return before they are complete, and a send could be faster than the rest of
 * the copy. */
static void test_synchronous_copies_are_done_when_they_return(void **state)
{
	struct tern_pool_opts opts = {.slab_bytes = MIB, .kind = TERN_MEM_CUDA};
	struct tern_pool *pool;
	struct tern_mem *mem;
	struct tern_buf buf;
	struct user u;

	(void)state;
	user_open(&u, NULL, 0);
	assert_false(is_guarded(&u, u.at[0]));
	assert_int_equal(tern_mem_wrap_cuda(u.domain, u.at[0] + 16, 100, &mem), 0);
	assert_true(is_guarded(&u, u.at[0]));
	tern_mem_put(mem);
	assert_int_equal(tern_pool_new(u.domain, &opts, &pool), 0);
	assert_int_equal(tern_pool_get(pool, 100, &buf), 0);
	assert_true(is_guarded(&u, tern_buf_cuda_address(&buf)));
	tern_pool_put(pool, &buf);
	tern_pool_free(pool);
	user_close(&u);
}

/* For some memory, such as virtual address ranges, the driver refuses to set the attribute
 * SYNC_MEMOPS. Tern must wrap such memory nevertheless. */
static void test_memory_that_cannot_be_told_to_goes_without(void **state)
{
	struct tern_mem *mem;
	struct user u;

	(void)state;
	user_open(&u, NULL, 0);
	fake_cuda_fail("pointer_set_attribute", 1, CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(tern_mem_wrap_cuda(u.domain, u.at[0], 100, &mem), 0);
	assert_int_equal(fake_cuda_calls("pointer_set_attribute"), 1);
	tern_mem_put(mem);
	user_close(&u);
}

/* Memory from cuMemAllocAsync() and virtual address ranges, such as PyTorch's expandable
 * segments, belong to no CUDA context. Tern must wrap them as memory of their device. */
static void test_memory_without_a_context_is_a_devices_memory(void **state)
{
	struct tern_mem *mem;
	struct user u;

	(void)state;
	user_open(&u, NULL, 0);
	fake_cuda_make_pooled(u.at[0]);
	assert_int_equal(tern_mem_wrap_cuda(u.domain, u.at[0], 100, &mem), 0);
	assert_int_equal(tern_mem_kind(mem), TERN_MEM_CUDA);
	assert_int_equal(tern_mem_cuda_device(mem), 0);
	tern_mem_put(mem);
	user_close(&u);
}

static void test_cards_get_no_page_of_another_allocation(void **state)
{
	struct tern_gpu *gpu;
	uint64_t offset;
	struct user u;
	int fd;

	(void)state;
	user_open(&u, NULL, 0);
	assert_int_equal(tern_gpu_by_number(u.domain, 0, &gpu), 0);
	assert_int_equal(tern_gpu_dma_buf(gpu, u.at[0] + 16, 8000, &fd, &offset), 0);
	assert_int_equal(offset, 16);
	close(fd);
	/* The allocation ends within its third page, which may contain another one, so it
	 * is not shared with network cards. */
	assert_true(tern_gpu_dma_buf(gpu, u.at[0] + 16, 9000, &fd, &offset) < 0);
	user_close(&u);
}

static void test_what_is_not_a_devices_memory_is_einval(void **state)
{
	static char host[100];
	struct tern_mem *mem;
	struct user u;

	(void)state;
	user_open(&u, NULL, 0);
	assert_int_equal(tern_mem_wrap_cuda(u.domain, 0, 100, &mem), -EINVAL);
	assert_int_equal(tern_mem_wrap_cuda(u.domain, u.at[0], 0, &mem), -EINVAL);
	assert_int_equal(
		tern_mem_wrap_cuda(u.domain, (uintptr_t)host, 100, &mem), -EINVAL);
	assert_int_equal(tern_mem_wrap_cuda(u.domain, u.at[0], 20000, &mem), -EINVAL);
	assert_int_equal(
		tern_mem_wrap_cuda(u.domain, u.at[0], UINT64_MAX - 5, &mem), -EINVAL);
	user_close(&u);
}

static int export_of(struct user *u)
{
	int fd;

	OK(u->api->ctx_push_current(u->contexts[0]));
	OK(u->api->mem_get_handle_for_address_range(
		&fd, u->at[0], 12288, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	OK(u->api->ctx_pop_current(NULL));
	return fd;
}

/* The number that the next descriptor will have: it shows whether one is left open. */
static int next_fd(void)
{
	int fd = dup(0);

	assert_true(fd >= 0);
	close(fd);
	return fd;
}

static void test_the_callers_dma_buf_stays_the_callers(void **state)
{
	struct tern_mem *mem;
	struct user u;
	int before, fd;

	(void)state;
	user_open(&u, NULL, 0);
	before = next_fd();
	fd = export_of(&u);
	assert_int_equal(
		tern_mem_wrap_dmabuf(u.domain, u.at[0] + 16, 9000, fd, 16, &mem), 0);
	assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC); /* it is still open */
	close(fd);
	assert_int_equal(tern_mem_kind(mem), TERN_MEM_CUDA);
	assert_int_equal(tern_mem_cuda_address(mem), u.at[0] + 16);
	assert_int_equal(tern_mem_bytes(mem), 9000);
	assert_null(tern_mem_reached(mem)); /* there is no RDMA device */
	tern_mem_put(mem);
	assert_int_equal(next_fd(), before);
	user_close(&u);
}

static void test_a_dma_buf_that_is_none_is_refused(void **state)
{
	static char host[100];
	struct rlimit limit, none;
	struct tern_mem *mem;
	struct user u;
	int before, fd, fds[2];

	(void)state;
	user_open(&u, NULL, 0);
	assert_int_equal(pipe(fds), 0);
	fd = export_of(&u);
	before = next_fd();
#define WRAP(address, bytes, of, offset)                                                 \
	tern_mem_wrap_dmabuf(u.domain, address, bytes, of, offset, &mem)
	assert_int_equal(WRAP(u.at[0], 100, -1, 0), -EBADF);
	assert_int_equal(WRAP(u.at[0], 100, fds[0], 0), -EINVAL);
	/* The dma-buf has 12288 bytes, the allocation 10000. */
	assert_int_equal(WRAP(u.at[0], 100, fd, 12288), -EINVAL);
	assert_int_equal(WRAP(u.at[0], 5000, fd, 8192), -EINVAL);
	assert_int_equal(WRAP(u.at[0], 100, fd, UINT64_MAX & ~4095ull), -EINVAL);
	assert_int_equal(WRAP(u.at[0] + 16, 100, fd, 0), -EINVAL);
	assert_int_equal(WRAP(u.at[0], 12000, fd, 0), -EINVAL);
	assert_int_equal(WRAP(u.at[0], 0, fd, 0), -EINVAL);
	assert_int_equal(WRAP((uintptr_t)host, 100, fd, (uintptr_t)host % 4096), -EINVAL);
	assert_int_equal(next_fd(), before);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	none = (struct rlimit){.rlim_cur = (rlim_t)before, .rlim_max = limit.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	assert_int_equal(WRAP(u.at[0], 100, fd, 0), -EMFILE);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
#undef WRAP
	close(fd);
	close(fds[0]);
	close(fds[1]);
	user_close(&u);
}

static void test_host_memory_has_no_device(void **state)
{
	static char host[100];
	struct tern_mem *mem;
	struct tern_buf buf;
	struct user u;

	(void)state;
	user_open(&u, NULL, 0);
	assert_int_equal(tern_mem_wrap(u.domain, host, sizeof(host), &mem), 0);
	buf = (struct tern_buf){.mem = mem, .bytes = 1};
	assert_int_equal(tern_mem_kind(mem), TERN_MEM_HOST);
	assert_int_equal(tern_mem_cuda_device(mem), -1);
	assert_int_equal(tern_mem_cuda_address(mem), 0);
	assert_int_equal(tern_buf_cuda_address(&buf), 0);
	tern_mem_put(mem);
	/* For host memory the driver is not called. */
	assert_int_equal(fake_cuda_calls("device_get_count"), 0);
	user_close(&u);
}

static void test_without_a_device_it_is_enodev(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	struct tern_pool_opts pool_opts = {.kind = TERN_MEM_CUDA};
	struct tern_domain_hooks hooks = {0};
	struct tern_domain *domain;
	struct tern_pool *pool;
	struct tern_mem *mem;

	(void)state;
	opts.device_count = 0;
	fake_cuda_reset(&opts);
	hooks.cuda_api = fake_cuda_api();
	assert_int_equal(tern_domain_new_hooked(NULL, &hooks, &domain), 0);
	assert_int_equal(tern_mem_wrap_cuda(domain, 4096, 100, &mem), -ENODEV);
	assert_int_equal(tern_pool_new(domain, &pool_opts, &pool), -ENODEV);
	tern_domain_free(domain);
	fake_cuda_reset(NULL);
}

/* One kind of driver call after another fails once: tern_mem_wrap_cuda() must then return
 * an error, and its next call must succeed. */
static void test_a_driver_that_refuses_is_a_status(void **state)
{
	static const char *const calls[] = {"device_get_count", "device_get",
		"primary_ctx_get_state", "primary_ctx_retain", "ctx_push_current",
		"pointer_get_attribute"};

	(void)state;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(calls); i++) {
		struct tern_mem *mem;
		struct user u;
		int r;

		user_open(&u, NULL, 0);
		fake_cuda_fail(calls[i], 1, CUDA_ERROR_NOT_PERMITTED);
		r = tern_mem_wrap_cuda(u.domain, u.at[0], 100, &mem);
		assert_true(r == -EPERM || r == -EINVAL);
		assert_int_equal(tern_mem_wrap_cuda(u.domain, u.at[0], 100, &mem), 0);
		tern_mem_put(mem);
		user_close(&u);
	}
}

static void test_a_pool_of_device_memory_is_carved_up(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	struct tern_pool_opts pool_opts = {.slab_bytes = MIB,
		.max_bytes = 3 * MIB,
		.kind = TERN_MEM_CUDA,
		.cuda_device = 1,
		.prefault = true};
	struct tern_pool_stats stats;
	struct tern_buf bufs[12];
	struct tern_pool *pool;
	struct user u;
	uint64_t before;

	(void)state;
	opts.device_count = 2;
	user_open(&u, &opts, 0);
	before = fake_cuda_used_bytes(1);
	assert_int_equal(tern_pool_new(u.domain, &pool_opts, &pool), 0);
	for (unsigned i = 0; i < 12; i++) {
		assert_int_equal(tern_pool_get(pool, MIB / 4, &bufs[i]), 0);
		assert_int_equal(tern_mem_cuda_device(bufs[i].mem), 1);
		assert_int_equal(tern_buf_cuda_address(&bufs[i]) % 64, 0);
		assert_null(tern_buf_ptr(&bufs[i]));
	}
	assert_int_equal(tern_pool_get(pool, 1, &(struct tern_buf){0}), -EAGAIN);
	assert_int_equal(fake_cuda_used_bytes(1), before + 3 * MIB);
	tern_pool_stats(pool, &stats);
	assert_int_equal(stats.slab_bytes, 3 * MIB);
	for (unsigned i = 0; i < 12; i++)
		tern_pool_put(pool, &bufs[i]);
	tern_pool_free(pool);
	assert_int_equal(fake_cuda_used_bytes(1), before);
	pool_opts.cuda_device = 2;
	assert_int_equal(tern_pool_new(u.domain, &pool_opts, &pool), -ENODEV);
	pool_opts.kind = 7;
	assert_int_equal(tern_pool_new(u.domain, &pool_opts, &pool), -EINVAL);
	user_close(&u);
}

static void test_a_device_that_is_full_is_enomem(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	struct tern_pool_opts pool_opts = {
		.slab_bytes = MIB, .max_bytes = 4 * MIB, .kind = TERN_MEM_CUDA};
	struct tern_buf bufs[2];
	struct tern_pool *pool;
	struct user u;

	(void)state;
	opts.mem_bytes = 2 * MIB;
	user_open(&u, &opts, 0);
	assert_int_equal(tern_pool_new(u.domain, &pool_opts, &pool), 0);
	assert_int_equal(tern_pool_get(pool, MIB, &bufs[0]), 0);
	assert_int_equal(tern_pool_get(pool, MIB, &bufs[1]), -EAGAIN);
	tern_pool_put(pool, &bufs[0]);
	tern_pool_free(pool);
	pool_opts.slab_bytes = 4 * MIB;
	assert_int_equal(tern_pool_new(u.domain, &pool_opts, &pool), -ENOMEM);
	user_close(&u);
}

/* ---- bounce buffers ---- */

static struct tern_gpu *gpu_of(struct user *u)
{
	struct tern_gpu *gpu;

	assert_int_equal(tern_gpu_by_number(u->domain, 0, &gpu), 0);
	return gpu;
}

static void test_bounce_buffers_stay_within_their_bound(void **state)
{
	struct tern_buf bufs[4];
	struct user u;

	(void)state;
	user_open(&u, NULL, 160 * MIB);
	/* The first two buffers fit into one slab of 64 MiB; the third needs another
	 * slab. */
	assert_int_equal(tern_bounce_get(u.domain, gpu_of(&u), 40 * MIB, &bufs[0]), 0);
	assert_int_equal(tern_bounce_get(u.domain, gpu_of(&u), 20 * MIB, &bufs[1]), 0);
	assert_int_equal(fake_cuda_live().registered_mems, 1);
	assert_ptr_equal(bufs[0].mem, bufs[1].mem);
	assert_int_equal(tern_bounce_get(u.domain, gpu_of(&u), 40 * MIB, &bufs[2]), 0);
	assert_int_equal(fake_cuda_live().registered_mems, 2);
	assert_int_equal(
		tern_bounce_get(u.domain, gpu_of(&u), 40 * MIB, &bufs[3]), -EAGAIN);
	assert_int_equal(
		tern_bounce_get(u.domain, gpu_of(&u), 161 * MIB, &bufs[3]), -ENOBUFS);
	tern_bounce_put(u.domain, &bufs[2]);
	assert_null(bufs[2].mem);
	assert_int_equal(tern_bounce_get(u.domain, gpu_of(&u), 40 * MIB, &bufs[3]), 0);
	/* The slab was kept for later buffers. */
	assert_int_equal(fake_cuda_live().registered_mems, 2);
	for (unsigned i = 0; i < 4; i++)
		if (bufs[i].mem)
			tern_bounce_put(u.domain, &bufs[i]);
	user_close(&u);
}

static void test_idle_bounce_slabs_make_room_for_a_large_one(void **state)
{
	struct tern_buf small, large;
	struct user u;

	(void)state;
	user_open(&u, NULL, 160 * MIB);
	assert_int_equal(tern_bounce_get(u.domain, gpu_of(&u), 100, &small), 0);
	assert_int_equal(
		tern_bounce_get(u.domain, gpu_of(&u), 150 * MIB, &large), -EAGAIN);
	tern_bounce_put(u.domain, &small);
	assert_int_equal(tern_bounce_get(u.domain, gpu_of(&u), 150 * MIB, &large), 0);
	assert_int_equal(fake_cuda_live().registered_mems, 1);
	tern_bounce_put(u.domain, &large);
	user_close(&u);
}

static void test_without_page_locked_memory_it_is_enomem(void **state)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();
	struct tern_buf bufs[2];
	struct user u;

	(void)state;
	opts.host_limit_bytes = 100 * MIB;
	user_open(&u, &opts, 0);
	assert_int_equal(tern_bounce_get(u.domain, gpu_of(&u), 60 * MIB, &bufs[0]), 0);
	/* -EAGAIN, since a buffer that is in use will be freed. */
	assert_int_equal(
		tern_bounce_get(u.domain, gpu_of(&u), 60 * MIB, &bufs[1]), -EAGAIN);
	tern_bounce_put(u.domain, &bufs[0]);
	assert_int_equal(
		tern_bounce_get(u.domain, gpu_of(&u), 101 * MIB, &bufs[1]), -ENOMEM);
	user_close(&u);
}

static void *wrap_many(void *arg)
{
	struct user *u = arg;

	for (unsigned i = 0; i < 200; i++) {
		struct tern_mem *mem;
		struct tern_buf buf;

		if (tern_mem_wrap_cuda(u->domain, u->at[0], 100 + i, &mem) ||
			tern_bounce_get(u->domain, mem->gpu, 1000, &buf))
			return u;
		tern_bounce_put(u->domain, &buf);
		tern_mem_put(mem);
	}
	return NULL;
}

static void test_threads_may_do_it_at_once(void **state)
{
	pthread_t threads[4];
	struct user u;

	(void)state;
	user_open(&u, NULL, 0);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, wrap_many, &u), 0);
	for (unsigned i = 0; i < 4; i++) {
		void *failed;

		pthread_join(threads[i], &failed);
		assert_null(failed);
	}
	user_close(&u);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_wrapped_memory_knows_its_device),
		cmocka_unit_test(test_synchronous_copies_are_done_when_they_return),
		cmocka_unit_test(test_memory_that_cannot_be_told_to_goes_without),
		cmocka_unit_test(test_memory_without_a_context_is_a_devices_memory),
		cmocka_unit_test(test_cards_get_no_page_of_another_allocation),
		cmocka_unit_test(test_what_is_not_a_devices_memory_is_einval),
		cmocka_unit_test(test_the_callers_dma_buf_stays_the_callers),
		cmocka_unit_test(test_a_dma_buf_that_is_none_is_refused),
		cmocka_unit_test(test_host_memory_has_no_device),
		cmocka_unit_test(test_without_a_device_it_is_enodev),
		cmocka_unit_test(test_a_driver_that_refuses_is_a_status),
		cmocka_unit_test(test_a_pool_of_device_memory_is_carved_up),
		cmocka_unit_test(test_a_device_that_is_full_is_enomem),
		cmocka_unit_test(test_bounce_buffers_stay_within_their_bound),
		cmocka_unit_test(test_idle_bounce_slabs_make_room_for_a_large_one),
		cmocka_unit_test(test_without_page_locked_memory_it_is_enomem),
		cmocka_unit_test(test_threads_may_do_it_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
