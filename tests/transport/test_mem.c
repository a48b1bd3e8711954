/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of registered memory and of the domain, with two fabrics made for these tests. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/util.h"
#include "transport/domain.h"

#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static struct {
	int registered, unregistered, opened, closed;
	int fail_open, fail_register; /* status of the injected failure; 0: none */
} fakes[2];

static int number_of(const struct tern_fabric_ops *ops)
{
	return ops->name[0] == 't'; /* 0: "shm", 1: "tcp" */
}

static int fake_open(int n, struct tern_fabric **out, const char **why)
{
	static struct tern_fabric fabrics[2];

	if (fakes[n].fail_open) {
		*why = "it was told to fail";
		return fakes[n].fail_open;
	}
	fakes[n].opened++;
	fabrics[n] = (struct tern_fabric){0};
	*out = &fabrics[n];
	return 0;
}

static int open_shm(struct tern_domain *domain, const struct tern_domain_opts *opts,
	struct tern_fabric **out, const char **why)
{
	(void)domain;
	(void)opts;
	return fake_open(0, out, why);
}

static int open_tcp(struct tern_domain *domain, const struct tern_domain_opts *opts,
	struct tern_fabric **out, const char **why)
{
	(void)domain;
	(void)opts;
	return fake_open(1, out, why);
}

static void fake_close(struct tern_fabric *fabric)
{
	fakes[number_of(fabric->ops)].closed++;
}

static int fake_register(struct tern_fabric *fabric, struct tern_mem *mem, void **reg)
{
	int n = number_of(fabric->ops);

	if (fakes[n].fail_register)
		return fakes[n].fail_register;
	__atomic_fetch_add(&fakes[n].registered, 1, __ATOMIC_RELAXED);
	*reg = mem->base + n;
	return 0;
}

static void fake_unregister(struct tern_fabric *fabric, struct tern_mem *mem, void *reg)
{
	int n = number_of(fabric->ops);

	assert_ptr_equal(reg, mem->base + n);
	__atomic_fetch_add(&fakes[n].unregistered, 1, __ATOMIC_RELAXED);
}

static const struct tern_fabric_ops fake_shm = {.name = "shm",
	.open = open_shm,
	.close = fake_close,
	.mem_register = fake_register,
	.mem_unregister = fake_unregister};
static bool wants_uring(const struct tern_domain_opts *opts)
{
	return opts->tcp_engine == TERN_TCP_URING;
}

static const struct tern_fabric_ops fake_tcp = {.name = "tcp",
	.required = wants_uring,
	.open = open_tcp,
	.close = fake_close,
	.mem_register = fake_register,
	.mem_unregister = fake_unregister};
static const struct tern_fabric_ops fake_sim = {.name = "sim", .simulated = true};

const struct tern_fabric_ops *const tern_fabric_table[] = {
	&fake_shm, &fake_tcp, &fake_sim, NULL};

static struct tern_domain *new_domain(void)
{
	struct tern_domain *domain;

	memset(fakes, 0, sizeof(fakes));
	assert_int_equal(tern_domain_new(NULL, &domain), 0);
	return domain;
}

static void test_wrapped_memory_is_registered_once_with_every_fabric(void **state)
{
	struct tern_domain *domain = new_domain();
	struct tern_domain_stats stats;
	struct tern_mem *mem;
	char bytes[300];

	(void)state;
	assert_int_equal(tern_mem_wrap(domain, bytes, sizeof(bytes), &mem), 0);
	assert_int_equal(fakes[0].registered, 1);
	assert_int_equal(fakes[1].registered, 1);
	tern_domain_stats(domain, &stats);
	assert_int_equal(stats.registration_count, 2);
	assert_int_equal(stats.registered_bytes, sizeof(bytes));
	assert_ptr_equal(tern_mem_base(mem), bytes);
	assert_int_equal(tern_mem_bytes(mem), sizeof(bytes));
	assert_int_equal(tern_mem_kind(mem), TERN_MEM_HOST);
	assert_ptr_equal(tern_mem_reg(mem, 1), bytes + 1);
	assert_ptr_equal(tern_buf_ptr(&(struct tern_buf){mem, 7, 1}), bytes + 7);
	tern_mem_put(mem);
	assert_int_equal(fakes[0].unregistered, 1);
	assert_int_equal(fakes[1].unregistered, 1);
	tern_domain_stats(domain, &stats);
	assert_int_equal(stats.registration_count, 2);
	assert_int_equal(stats.registered_bytes, 0);
	tern_mem_put(NULL);
	tern_domain_free(domain);
	assert_int_equal(fakes[0].closed, 1);
	tern_domain_free(NULL);
}

static void test_a_domain_given_up_goes_with_what_lives_in_it(void **state)
{
	struct tern_domain *domain = new_domain();
	struct tern_mem *a, *b;
	char bytes[300];

	(void)state;
	assert_int_equal(tern_mem_wrap(domain, bytes, sizeof(bytes), &a), 0);
	assert_int_equal(tern_mem_wrap(domain, bytes, 8, &b), 0);
	tern_domain_free(domain);
	assert_int_equal(fakes[0].closed, 0);
	tern_mem_put(a);
	assert_int_equal(fakes[0].closed, 0);
	tern_mem_put(b);
	assert_int_equal(fakes[0].unregistered, 2);
	assert_int_equal(fakes[0].closed, 1);
}

static void test_impossible_ranges_are_refused(void **state)
{
	struct tern_domain *domain = new_domain();
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct tern_mem *mem;
	char byte, *map;

	(void)state;
	assert_int_equal(tern_mem_wrap(domain, NULL, 1, &mem), -EINVAL);
	assert_int_equal(tern_mem_wrap(domain, &byte, 0, &mem), -EINVAL);
	assert_int_equal(tern_mem_wrap(domain, &byte, UINT64_MAX, &mem), -EINVAL);
	map = mmap(NULL, 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(map, MAP_FAILED);
	munmap(map + page, page);
	assert_int_equal(tern_mem_wrap(domain, map + page - 1, 1, &mem), 0);
	tern_mem_put(mem);
	assert_int_equal(tern_mem_wrap(domain, map + page - 1, 2, &mem), -EFAULT);
	assert_int_equal(tern_mem_wrap_readonly(domain, map + page, 1, &mem), -EFAULT);
	munmap(map, page);
	assert_int_equal(tern_mem_new_slab(domain, UINT64_MAX, false, &mem), -ENOMEM);
	assert_int_equal(tern_mem_new_slab(domain, 0, false, &mem), -ENOMEM);
	tern_domain_free(domain);
}

static void test_a_refused_registration_leaves_nothing_behind(void **state)
{
	struct tern_domain *domain = new_domain();
	struct tern_domain_stats stats;
	struct tern_mem *mem;
	char byte;

	(void)state;
	fakes[1].fail_register = -ENOMEM;
	assert_int_equal(tern_mem_wrap(domain, &byte, 1, &mem), -ENOMEM);
	assert_int_equal(tern_mem_new_slab(domain, 4096, false, &mem), -ENOMEM);
	assert_int_equal(fakes[0].registered, 2);
	assert_int_equal(fakes[0].unregistered, 2);
	assert_int_equal(fakes[1].unregistered, 0);
	tern_domain_stats(domain, &stats);
	assert_int_equal(stats.registered_bytes, 0);
	tern_domain_free(domain);
}

static void *wrap_many(void *arg)
{
	static char bytes[64];
	uint32_t *ids = calloc(500, sizeof(*ids));

	for (int i = 0; i < 500; i++) {
		struct tern_mem *mem;

		if (tern_mem_wrap(arg, bytes, sizeof(bytes), &mem))
			abort();
		ids[i] = mem->id;
		tern_mem_put(mem);
	}
	return ids;
}

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static void test_ids_are_never_given_twice(void **state)
{
	struct tern_domain *domain = new_domain();
	pthread_t threads[4];
	uint32_t all[2000];

	(void)state;
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, wrap_many, domain), 0);
	for (int i = 0; i < 4; i++) {
		void *ids;

		assert_int_equal(pthread_join(threads[i], &ids), 0);
		memcpy(all + 500 * i, ids, 500 * sizeof(*all));
		free(ids);
	}
	qsort(all, 2000, sizeof(*all), compare);
	for (int i = 0; i < 2000; i++)
		assert_int_equal(all[i], i + 1);
	atomic_store(&domain->next_mem_id, UINT32_MAX);
	{
		struct tern_mem *mem;

		assert_int_equal(tern_mem_wrap(domain, all, 4, &mem), 0);
		tern_mem_put(mem);
		assert_int_equal(tern_mem_wrap(domain, all, 4, &mem), -ENOMEM);
		assert_int_equal(tern_mem_wrap(domain, all, 4, &mem), -ENOMEM);
	}
	tern_domain_free(domain);
}

static void test_a_slab_cannot_be_shrunk_under_its_readers(void **state)
{
	struct tern_domain *domain = new_domain();
	struct tern_mem *mem;
	char *peer;

	(void)state;
	assert_int_equal(tern_mem_new_slab(domain, 5000, true, &mem), 0);
	assert_int_equal(tern_mem_bytes(mem), 8192);
	assert_int_equal(ftruncate(mem->fd, 4096), -1);
	assert_int_equal(fcntl(mem->fd, F_GET_SEALS) & ALL_SEALS, ALL_SEALS);
	peer = mmap(NULL, 8192, PROT_READ, MAP_SHARED, mem->fd, 0);
	assert_ptr_not_equal(peer, MAP_FAILED);
	mem->base[8191] = 42;
	assert_int_equal(peer[8191], 42);
	munmap(peer, 8192);
	tern_mem_put(mem);
	tern_domain_free(domain);
}

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

static bool has_write_seal(void)
{
	int fd = memfd_create("tern-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	bool has = fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0;

	assert_true(fd >= 0);
	close(fd);
	return has;
}

/* A peer that gets the memory's descriptor must not be able to write through it, or to
 * map it for writing. Where the kernel has the seal F_SEAL_FUTURE_WRITE (Linux 5.1), the
 * same holds for a descriptor that the peer opens for writing by means of /proc. */
static void test_a_slab_cannot_be_written_by_its_readers(void **state)
{
	struct tern_domain *domain = new_domain();
	struct tern_mem *mem;
	char path[40];
	int seals, again;

	(void)state;
	assert_int_equal(tern_mem_new_slab(domain, 1 << 20, false, &mem), 0);
	assert_int_equal(fcntl(mem->fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, mem->fd, 0),
		MAP_FAILED);
	seals = fcntl(mem->fd, F_GET_SEALS);
	assert_true(seals & F_SEAL_SEAL);
	if (has_write_seal()) {
		assert_true(seals & F_SEAL_FUTURE_WRITE);
		snprintf(path, sizeof(path), "/proc/self/fd/%d", mem->fd);
		again = open(path, O_RDWR | O_CLOEXEC);
		if (again >= 0) {
			assert_int_equal(write(again, "x", 1), -1);
			assert_ptr_equal(
				mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, again, 0),
				MAP_FAILED);
			close(again);
		}
	}
	tern_mem_put(mem);
	tern_domain_free(domain);
}

static void test_offsets_are_checked_without_overflow(void **state)
{
	struct tern_mem mem = {.bytes = 100};

	(void)state;
	assert_true(tern_mem_holds(&mem, 0, 100));
	assert_true(tern_mem_holds(&mem, 100, 0));
	assert_false(tern_mem_holds(&mem, 101, 0));
	assert_false(tern_mem_holds(&mem, 1, 100));
	assert_false(tern_mem_holds(&mem, UINT64_MAX, 2));
	assert_false(tern_mem_holds(&mem, 2, UINT64_MAX));
}

static void test_a_missing_fabric_is_named_and_done_without(void **state)
{
	struct tern_domain *domain;

	(void)state;
	memset(fakes, 0, sizeof(fakes));
	fakes[0].fail_open = -ENODEV;
	assert_int_equal(tern_domain_new(NULL, &domain), 0);
	assert_null(tern_domain_fabric(domain, "shm", 3));
	assert_null(tern_domain_fabric(domain, "sim", 3));
	assert_null(tern_domain_fabric(domain, "tc", 2));
	assert_non_null(tern_domain_fabric(domain, "tcp://", 3));
	assert_int_equal(tern_domain_fabric(domain, "tcp", 3)->index, 0);
	assert_string_equal(domain->why[0], "it was told to fail");
	assert_null(domain->why[1]);
	assert_non_null(domain->why[2]);
	tern_domain_free(domain);
	assert_int_equal(fakes[0].closed, 0);
	assert_int_equal(fakes[1].closed, 1);
}

static void test_an_engine_that_was_asked_for_must_work(void **state)
{
	struct tern_domain_opts opts = {.tcp_engine = TERN_TCP_URING};
	struct tern_domain *domain;

	(void)state;
	memset(fakes, 0, sizeof(fakes));
	fakes[1].fail_open = -ENOSYS;
	assert_int_equal(tern_domain_new(&opts, &domain), -ENOSYS);
	fakes[1].fail_open = -EPERM;
	assert_int_equal(tern_domain_new(&opts, &domain), -EPERM);
	assert_int_equal(fakes[0].opened, 2);
	assert_int_equal(fakes[0].closed, 2);
	fakes[1].fail_open = -ENOMEM;
	assert_int_equal(tern_domain_new(NULL, &domain), -ENOMEM);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			test_wrapped_memory_is_registered_once_with_every_fabric),
		cmocka_unit_test(test_a_domain_given_up_goes_with_what_lives_in_it),
		cmocka_unit_test(test_impossible_ranges_are_refused),
		cmocka_unit_test(test_a_refused_registration_leaves_nothing_behind),
		cmocka_unit_test(test_ids_are_never_given_twice),
		cmocka_unit_test(test_a_slab_cannot_be_shrunk_under_its_readers),
		cmocka_unit_test(test_a_slab_cannot_be_written_by_its_readers),
		cmocka_unit_test(test_offsets_are_checked_without_overflow),
		cmocka_unit_test(test_a_missing_fabric_is_named_and_done_without),
		cmocka_unit_test(test_an_engine_that_was_asked_for_must_work),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
