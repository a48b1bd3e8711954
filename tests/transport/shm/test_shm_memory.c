/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of gets and peeks of the shm fabric in its three ways: from mapped slabs, by the
 * system call process_vm_readv, and in chunks that the owner copies. */
#include "tests/transport/shm/shm_end.h"

static void check_gets(bool slab, bool no_cma)
{
	const uint64_t sizes[] = {0, 1, 4095, 262144, 262145, 3000001};
	const uint64_t total = 4u << 20, start = 4099;
	struct duo duo;
	struct tern_mem *source, *target;
	struct tern_region region;

	duo_init(&duo, no_cma);
	source = new_mem(&duo.b, slab, total);
	target = new_mem(&duo.a, !slab, total);
	fill(source, 5);
	region = expose(duo.b.conns[0], source, start, total - start);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(sizes); i++) {
		struct work work = new_work();

		memset(target->base, 0x5a, total);
		assert_int_equal(
			start_get(duo.a.conns[0], &work, target, sizes[i], &region, 77),
			0);
		assert_int_equal(work.status, 1);
		UNTIL(&duo.a, &duo.b, work.status != 1);
		assert_int_equal(work.status, 0);
		assert_memory_equal(target->base, source->base + start + 77, sizes[i]);
		assert_int_equal((unsigned char)target->base[sizes[i]], 0x5a);
	}
	assert_int_equal(duo.b.port->ops->withdraw(duo.b.port, NULL, &region), 0);
	put_mem(source, slab);
	put_mem(target, !slab);
	duo_fini(&duo);
}

static void test_get_from_a_slab(void **state)
{
	(void)state;
	check_gets(true, false);
	check_gets(true, true);
}

static void test_get_of_user_memory_by_the_kernel(void **state)
{
	struct duo duo;

	(void)state;
	duo_init(&duo, false);
	/* Without CMA (process_vm_readv) check_gets() would test the copies in chunks
	 * instead. */
	assert_true(shm_conn_of(duo.a.conns[0])->cma);
	duo_fini(&duo);
	check_gets(false, false);
}

static void test_get_of_user_memory_by_chunks(void **state)
{
	struct duo duo;

	(void)state;
	duo_init(&duo, true);
	assert_false(shm_conn_of(duo.a.conns[0])->cma);
	duo_fini(&duo);
	check_gets(false, true);
}

/* Makes many gets at the same time, in both directions. */
static void check_many_gets(bool slab, bool no_cma)
{
	enum { COUNT = 24 };
	const uint64_t part = 100000, total = COUNT * part;
	struct duo duo;
	struct tern_mem *sources[2], *targets[2];
	struct tern_region regions[2];
	struct work works[2][COUNT];
	unsigned done = 0;

	duo_init(&duo, no_cma);
	for (int side = 0; side < 2; side++) {
		struct end *end = side ? &duo.b : &duo.a;

		sources[side] = new_mem(end, slab, total);
		targets[side] = new_mem(end, !slab, total);
		fill(sources[side], (uint64_t)side);
		regions[side] = expose(end->conns[0], sources[side], 0, total);
	}
	for (int i = 0; i < COUNT; i++) {
		for (int side = 0; side < 2; side++) {
			struct end *end = side ? &duo.b : &duo.a;
			uint64_t at = (uint64_t)i * part;

			works[side][i] = new_work();
			assert_int_equal(
				end->port->ops->get(end->conns[0], &works[side][i].op,
					targets[side], at, part, &regions[!side], at),
				0);
		}
	}
	while (done < 2 * COUNT) {
		end_poll(&duo.a);
		end_poll(&duo.b);
		done = 0;
		for (int i = 0; i < 2 * COUNT; i++)
			done += works[i / COUNT][i % COUNT].status == 0;
	}
	for (int side = 0; side < 2; side++) {
		assert_memory_equal(targets[side]->base, sources[!side]->base, total);
	}
	for (int side = 0; side < 2; side++) {
		put_mem(sources[side], slab);
		put_mem(targets[side], !slab);
	}
	duo_fini(&duo);
}

static void test_many_gets_at_once_both_ways(void **state)
{
	(void)state;
	check_many_gets(true, false);
	check_many_gets(false, false);
	check_many_gets(false, true);
}

static void check_overtaking(bool slab, bool no_cma)
{
	const uint64_t total = 16u << 20;
	struct duo duo;
	struct tern_mem *source, *target;
	struct tern_region region;
	struct work large = new_work(), small = new_work();

	duo_init(&duo, no_cma);
	source = new_mem(&duo.b, slab, total);
	target = new_mem(&duo.a, false, total);
	memset(source->base, 1, total);
	region = expose(duo.b.conns[0], source, 0, total);
	assert_int_equal(start_get(duo.a.conns[0], &large, target, total, &region, 0), 0);
	assert_int_equal(start_get(duo.a.conns[0], &small, target, 100, &region, 0), 0);
	assert_int_equal(send_number(duo.b.conns[0], 0, 0), 0);
	UNTIL(&duo.a, &duo.b, small.status != 1 && duo.a.message_count);
	assert_int_equal(small.status, 0);
	assert_int_equal(large.status, 1);
	UNTIL(&duo.a, &duo.b, large.status != 1);
	assert_int_equal(large.status, 0);
	put_mem(source, slab);
	put_mem(target, false);
	duo_fini(&duo);
}

static void test_large_get_does_not_hold_up_what_is_small(void **state)
{
	(void)state;
	check_overtaking(true, false);
	check_overtaking(false, false);
	check_overtaking(false, true);
}

static void test_peek_reads_a_slab_in_place(void **state)
{
	struct duo duo;
	struct tern_mem *slab, *user;
	struct tern_region region;
	struct work work = new_work(), other = new_work();
	const struct tern_fabric_ops *ops;
	const void *seen = NULL;

	(void)state;
	duo_init(&duo, false);
	ops = duo.a.port->ops;
	slab = new_mem(&duo.b, true, 65536);
	user = new_mem(&duo.b, false, 65536);
	fill(slab, 9);
	region = expose(duo.b.conns[0], slab, 64, 60000);
	assert_int_equal(
		ops->peek(duo.a.conns[0], &work.op, &region, 8, 1000, &seen), -EAGAIN);
	UNTIL(&duo.a, &duo.b, work.status != 1);
	assert_int_equal(work.status, 0);
	assert_int_equal(ops->peek(duo.a.conns[0], &work.op, &region, 8, 1000, &seen), 0);
	assert_memory_equal(seen, slab->base + 72, 1000);
	slab->base[72] ^= 1;
	assert_memory_equal(seen, slab->base + 72, 1000);
	ops->unpeek(duo.a.port, seen);
	region = expose(duo.b.conns[0], user, 0, 65536);
	assert_int_equal(
		ops->peek(duo.a.conns[0], &other.op, &region, 0, 8, &seen), -ENOTSUP);
	put_mem(slab, true);
	put_mem(user, false);
	duo_fini(&duo);
}

static void check_refused_get(bool slab, bool no_cma, bool withdrawn)
{
	struct duo duo;
	struct tern_mem *source, *target;
	struct tern_region region;
	struct work work = new_work();

	duo_init(&duo, no_cma);
	source = new_mem(&duo.b, slab, 8192);
	target = new_mem(&duo.a, false, 8192);
	memset(target->base, 0, 8192);
	memset(source->base, 1, 8192);
	region = expose(duo.b.conns[0], source, 0, 8192);
	if (withdrawn)
		assert_int_equal(duo.b.port->ops->withdraw(duo.b.port, NULL, &region), 0);
	else
		/* From now on the conn has another owner than the region. */
		duo.b.conns[0]->owner = &duo.a;
	assert_int_equal(start_get(duo.a.conns[0], &work, target, 8192, &region, 0), 0);
	UNTIL(&duo.a, &duo.b, work.status != 1);
	assert_int_equal(work.status, -EACCES);
	assert_int_equal(target->base[0], 0);
	/* The conn stays up, and memory that is exposed again can be read. */
	duo.b.conns[0]->owner = &duo.b;
	region = expose(duo.b.conns[0], source, 0, 8192);
	work.status = 1;
	assert_int_equal(start_get(duo.a.conns[0], &work, target, 8192, &region, 0), 0);
	UNTIL(&duo.a, &duo.b, work.status != 1);
	assert_int_equal(work.status, 0);
	assert_int_equal(target->base[8191], 1);
	put_mem(source, slab);
	put_mem(target, false);
	duo_fini(&duo);
}

static void test_region_that_is_not_exposed_is_refused_and_the_conn_lives(void **state)
{
	(void)state;
	for (int withdrawn = 0; withdrawn < 2; withdrawn++) {
		check_refused_get(true, false, withdrawn);
		check_refused_get(false, true, withdrawn);
	}
}

static void test_later_conn_of_the_same_owner_reaches_the_region(void **state)
{
	struct duo duo;
	struct tern_mem *source, *target;
	struct tern_region region;
	struct work work = new_work();

	(void)state;
	duo_init(&duo, true);
	source = new_mem(&duo.b, false, 8192);
	target = new_mem(&duo.a, false, 8192);
	fill(source, 3);
	region = expose(duo.b.conns[0], source, 0, 8192);
	duo.a.port->ops->conn_close(duo.a.conns[0], false);
	UNTIL(&duo.a, &duo.b, duo.a.closed_count && duo.b.closed_count);
	end_connect(&duo.a, duo.b.port->ops->lsn_address(duo.b.lsn));
	UNTIL(&duo.a, &duo.b, duo.a.conn_count == 2 && duo.b.conn_count == 2);
	assert_int_equal(start_get(duo.a.conns[1], &work, target, 8192, &region, 0), 0);
	UNTIL(&duo.a, &duo.b, work.status != 1);
	assert_int_equal(work.status, 0);
	assert_memory_equal(source->base, target->base, 8192);
	/* Revoking a region needs no conn. */
	duo.b.port->ops->conn_close(duo.b.conns[1], false);
	UNTIL(&duo.b, &duo.a, duo.b.closed_count == 2);
	assert_int_equal(duo.b.port->ops->withdraw(duo.b.port, NULL, &region), 0);
	assert_int_equal(duo.b.port->ops->withdraw(duo.b.port, NULL, &region), 0);
	put_mem(source, false);
	put_mem(target, false);
	duo_fini(&duo);
}

static void test_exposures_run_out_and_come_back(void **state)
{
	static struct tern_region regions[SHM_EXPOSURE_COUNT];
	struct tern_region extra;
	struct duo duo;
	struct tern_mem *mem;

	(void)state;
	duo_init(&duo, false);
	mem = new_mem(&duo.a, false, 64);
	for (unsigned i = 0; i < SHM_EXPOSURE_COUNT; i++)
		regions[i] = expose(duo.a.conns[0], mem, 0, i % 65);
	assert_int_equal(duo.a.port->ops->expose(
				 duo.a.conns[0], mem, 0, 0, TERN_ACCESS_READ, &extra),
		-EAGAIN);
	for (unsigned i = 0; i < SHM_EXPOSURE_COUNT; i += 2)
		assert_int_equal(
			duo.a.port->ops->withdraw(duo.a.port, NULL, &regions[i]), 0);
	for (unsigned i = 0; i < SHM_EXPOSURE_COUNT; i += 2)
		expose(duo.a.conns[0], mem, 0, 0);
	assert_int_equal(duo.a.port->ops->expose(
				 duo.a.conns[0], mem, 0, 0, TERN_ACCESS_READ, &extra),
		-EAGAIN);
	put_mem(mem, false);
	duo_fini(&duo);
}

static void test_wrong_region_cuts_its_own_conn_only(void **state)
{
	for (int kind = 0; kind < 6; kind++) {
		struct duo duo;
		struct tern_mem *source, *target;
		struct tern_region region, good;
		struct shm_region wrong;
		struct work work = new_work(), fine = new_work();
		int status;

		(void)state;
		duo_init(&duo, true);
		end_connect(&duo.a, duo.b.port->ops->lsn_address(duo.b.lsn));
		UNTIL(&duo.a, &duo.b, duo.a.conn_count == 2 && duo.b.conn_count == 2);
		source = new_mem(&duo.b, kind < 4, 65536);
		target = new_mem(&duo.a, false, 1u << 20);
		fill(source, 0);
		good = expose(duo.b.conns[0], source, 0, 65536);
		memcpy(&wrong, &good, sizeof(wrong));
		if (kind == 0)
			wrong.kind = 77;
		else if (kind == 1)
			wrong.bytes = 1000;
		else if (kind == 2)
			wrong.start = UINT64_MAX - 5;
		else if (kind == 3)
			wrong.start += 1; /* one byte beyond the end of the slab */
		else if (kind == 4)
			wrong.start += 1; /* one byte beyond the exposed memory */
		else
			wrong.start -= 1;
		memcpy(&region, &wrong, sizeof(wrong));
		status = start_get(duo.a.conns[0], &work, target, 65536, &region, 0);
		assert_int_equal(status, kind < 3 ? -ENOTCONN : 0);
		UNTIL(&duo.a, &duo.b, duo.a.closed_count && duo.b.closed_count);
		/* If the owner copies the chunks, the owner detects the error; otherwise
		 * the reader does. */
		assert_int_equal(
			kind < 4 ? duo.a.closed_status : duo.b.closed_status, -EPROTO);
		assert_int_equal(work.status == 1, kind < 3);
		assert_non_null(duo.a.conns[1]);
		assert_int_equal(
			start_get(duo.a.conns[1], &fine, target, 65536, &good, 0), 0);
		UNTIL(&duo.a, &duo.b, fine.status != 1);
		assert_int_equal(fine.status, 0);
		assert_memory_equal(target->base, source->base, 65536);
		put_mem(source, kind < 4);
		put_mem(target, false);
		duo_fini(&duo);
	}
}

static void test_copy_from_a_peer_that_has_closed_is_not_called_good(void **state)
{
	for (int slab = 0; slab < 2; slab++) {
		struct duo duo;
		struct tern_mem *source, *target;
		struct tern_region region;
		struct work first = new_work(), work = new_work();

		(void)state;
		duo_init(&duo, false);
		source = new_mem(&duo.b, slab, 65536);
		target = new_mem(&duo.a, false, 65536);
		region = expose(duo.b.conns[0], source, 0, 65536);
		assert_int_equal(
			start_get(duo.a.conns[0], &first, target, 8, &region, 0), 0);
		UNTIL(&duo.a, &duo.b, first.status == 0);
		duo.b.port->ops->conn_close(duo.b.conns[0], false);
		UNTIL(&duo.b, NONE, duo.b.closed_count);
		/* b has closed the conn, and a does not know that yet: b's memory may
		 * contain anything now, so the get must not succeed. */
		assert_int_equal(
			start_get(duo.a.conns[0], &work, target, 65536, &region, 0), 0);
		UNTIL(&duo.a, NONE, duo.a.closed_count);
		assert_int_equal(work.status, -ECONNRESET);
		assert_int_equal(duo.a.closed_status, -ECONNRESET);
		put_mem(source, slab);
		put_mem(target, false);
		duo_fini(&duo);
	}
}

/* Runs in the child process: exposes one memory, sends its region, and sleeps until the
 * conn ends. */
static void exposing_child(const char *address, bool slab, bool no_cma)
{
	struct end end;
	struct tern_mem *mem;
	struct tern_region region;

	end_init(&end, no_cma);
	end_connect(&end, address);
	while (!end.conn_count)
		end_sleep(&end);
	mem = new_mem(&end, slab, 3u << 20);
	fill(mem, 11);
	region = expose(end.conns[0], mem, 0, mem->bytes);
	if (end.port->ops->send(end.conns[0], &region, sizeof(region), NULL, 0))
		_exit(1);
	while (!end.closed_count)
		end_sleep(&end);
	_exit(0);
}

static void slab_child(const char *address)
{
	exposing_child(address, true, false);
}

static void user_child(const char *address)
{
	exposing_child(address, false, false);
}

static void check_get_from_process(void (*run)(const char *), bool slab, bool no_cma)
{
	struct end end;
	struct tern_mem *target, *want;
	struct tern_region region;
	struct work work = new_work();
	const void *seen;
	pid_t pid;

	end_init(&end, no_cma);
	end_listen(&end);
	pid = in_child(run, end.port->ops->lsn_address(end.lsn));
	while (!end.message_count)
		end_sleep(&end);
	memcpy(&region, end.last, sizeof(region));
	target = new_mem(&end, false, 3u << 20);
	want = new_mem(&end, false, 3u << 20);
	fill(want, 11);
	assert_int_equal(start_get(end.conns[0], &work, target, 3u << 20, &region, 0), 0);
	while (work.status == 1)
		end_sleep(&end);
	assert_int_equal(work.status, 0);
	assert_memory_equal(target->base, want->base, 3u << 20);
	if (slab) {
		/* The child dies and the conn ends; the memory that was read in place
		 * must stay readable. */
		assert_int_equal(end.port->ops->peek(end.conns[0], &work.op, &region, 0,
					 3u << 20, &seen),
			0);
		assert_int_equal(kill(pid, SIGKILL), 0);
		assert_int_equal(waitpid(pid, NULL, 0), pid);
		while (!end.closed_count)
			end_sleep(&end);
		assert_memory_equal(seen, want->base, 3u << 20);
		end.port->ops->unpeek(end.port, seen);
	}
	put_mem(target, false);
	put_mem(want, false);
	end_fini(&end);
	if (!slab)
		child_must_end_well(pid);
}

static void test_get_between_processes(void **state)
{
	(void)state;
	check_get_from_process(slab_child, true, false);
	check_get_from_process(user_child, false, false);
	check_get_from_process(user_child, false, true);
}

static void test_killed_peer_ends_gets_in_flight(void **state)
{
	struct end end;
	struct tern_mem *target;
	struct tern_region region;
	struct work work = new_work();
	pid_t pid;

	(void)state;
	end_init(&end, true);
	end_listen(&end);
	pid = in_child(user_child, end.port->ops->lsn_address(end.lsn));
	while (!end.message_count)
		end_sleep(&end);
	memcpy(&region, end.last, sizeof(region));
	target = new_mem(&end, false, 3u << 20);
	assert_int_equal(kill(pid, SIGSTOP), 0);
	assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
	assert_int_equal(start_get(end.conns[0], &work, target, 3u << 20, &region, 0), 0);
	for (int i = 0; i < 100; i++)
		end_poll(&end);
	assert_int_equal(work.status, 1);
	assert_int_equal(kill(pid, SIGKILL), 0);
	while (!end.closed_count)
		end_sleep(&end);
	assert_int_equal(work.status, -EPIPE);
	assert_int_equal(end.closed_status, -EPIPE);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	put_mem(target, false);
	end_fini(&end);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_get_from_a_slab),
		cmocka_unit_test(test_get_of_user_memory_by_the_kernel),
		cmocka_unit_test(test_get_of_user_memory_by_chunks),
		cmocka_unit_test(test_many_gets_at_once_both_ways),
		cmocka_unit_test(test_large_get_does_not_hold_up_what_is_small),
		cmocka_unit_test(test_peek_reads_a_slab_in_place),
		cmocka_unit_test(
			test_region_that_is_not_exposed_is_refused_and_the_conn_lives),
		cmocka_unit_test(test_later_conn_of_the_same_owner_reaches_the_region),
		cmocka_unit_test(test_exposures_run_out_and_come_back),
		cmocka_unit_test(test_wrong_region_cuts_its_own_conn_only),
		cmocka_unit_test(
			test_copy_from_a_peer_that_has_closed_is_not_called_good),
		cmocka_unit_test(test_get_between_processes),
		cmocka_unit_test(test_killed_peer_ends_gets_in_flight),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
