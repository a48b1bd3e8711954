/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of puts of the shm fabric, which the system makes: by process_vm_writev, and small
 * ones by the peer's memory as a file. */
#include "tests/transport/shm/shm_end.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROOM_BYTES (4u << 20)

static struct tern_region expose_for_puts(
	struct tern_conn *conn, struct tern_mem *mem, uint64_t offset, uint64_t bytes)
{
	struct tern_region region;

	assert_int_equal(conn->port->ops->expose(conn, mem, offset, bytes,
				 TERN_ACCESS_READ | TERN_ACCESS_WRITE, &region),
		0);
	return region;
}

static int start_put(struct tern_conn *conn, struct work *work, struct tern_mem *mem,
	uint64_t bytes, const struct tern_region *region, uint64_t remote_offset)
{
	return conn->port->ops->put(
		conn, &work->op, mem, 0, bytes, region, remote_offset);
}

/* Two ends, and memory of `b` into which `a` puts. */
struct scene {
	struct duo duo;
	struct tern_mem *source, *target;
	struct tern_region region;
	bool slab;
};

static void scene_init(struct scene *s, bool slab)
{
	duo_init(&s->duo, false);
	assert_true(s->duo.a.conns[0]->caps & TERN_CAP_WINDOW_PUT);
	s->slab = slab;
	s->source = new_mem(&s->duo.a, !slab, ROOM_BYTES);
	s->target = new_mem(&s->duo.b, slab, ROOM_BYTES);
	fill(s->source, 5);
	memset(s->target->base, 0x5a, ROOM_BYTES);
	s->region =
		expose_for_puts(s->duo.b.conns[0], s->target, 4099, ROOM_BYTES - 4099);
}

static void scene_fini(struct scene *s)
{
	s->duo.b.port->ops->withdraw(s->duo.b.port, NULL, &s->region);
	put_mem(s->source, !s->slab);
	put_mem(s->target, s->slab);
	duo_fini(&s->duo);
}

/* Lets the puts of this end be as in a system in which the peer's memory is no file. */
static void have_no_file(struct tern_conn *conn)
{
	shm_conn_of(conn)->memory_opened = true;
}

static void check_puts(bool slab, bool by_file)
{
	const uint64_t sizes[] = {1, 64, 4095, 8192, 8193, 262144, 262145, 3000001};
	struct scene s;

	scene_init(&s, slab);
	if (!by_file)
		have_no_file(s.duo.a.conns[0]);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(sizes); i++) {
		unsigned char *put = (unsigned char *)s.target->base + 4099 + 77;
		struct work work = new_work();

		memset(s.target->base, 0x5a, ROOM_BYTES);
		assert_int_equal(start_put(s.duo.a.conns[0], &work, s.source, sizes[i],
					 &s.region, 77),
			0);
		assert_int_equal(work.status, 1);
		/* The owner's port is not polled. */
		UNTIL(&s.duo.a, NONE, work.status != 1);
		assert_int_equal(work.status, 0);
		assert_memory_equal(put, s.source->base, sizes[i]);
		assert_int_equal(put[-1], 0x5a);
		assert_int_equal(put[sizes[i]], 0x5a);
	}
	assert_true((shm_conn_of(s.duo.a.conns[0])->memory_fd >= 0) == by_file);
	scene_fini(&s);
}

static void test_put_needs_no_program_of_the_owner(void **state)
{
	(void)state;
	check_puts(true, true);
	check_puts(false, true);
	check_puts(true, false);
	check_puts(false, false);
}

static void test_conn_cannot_put_where_the_kernel_does_not_permit_it(void **state)
{
	struct duo duo;

	(void)state;
	duo_init(&duo, true);
	assert_false(duo.a.conns[0]->caps & (TERN_CAP_WINDOW_PUT | TERN_CAP_LANDS));
	duo_fini(&duo);
}

static void test_put_and_get_of_one_region(void **state)
{
	struct scene s;
	struct work put = new_work(), get = new_work();

	(void)state;
	scene_init(&s, true);
	assert_int_equal(
		start_put(s.duo.a.conns[0], &put, s.source, 100000, &s.region, 8), 0);
	UNTIL(&s.duo.a, NONE, put.status != 1);
	memset(s.source->base, 0, 100000);
	assert_int_equal(
		start_get(s.duo.a.conns[0], &get, s.source, 100000, &s.region, 8), 0);
	UNTIL(&s.duo.a, &s.duo.b, get.status != 1);
	assert_int_equal(put.status, 0);
	assert_int_equal(get.status, 0);
	assert_memory_equal(s.source->base, s.target->base + 4099 + 8, 100000);
	scene_fini(&s);
}

static void check_read_only(bool by_file)
{
	struct scene s;
	struct work put = new_work(), again = new_work();

	scene_init(&s, true);
	if (!by_file)
		have_no_file(s.duo.a.conns[0]);
	assert_int_equal(mprotect(s.target->base, ROOM_BYTES, PROT_READ), 0);
	assert_int_equal(
		start_put(s.duo.a.conns[0], &put, s.source, 64, &s.region, 0), 0);
	UNTIL(&s.duo.a, NONE, put.status != 1);
	assert_int_equal(put.status, -EACCES);
	assert_int_equal(mprotect(s.target->base, ROOM_BYTES, PROT_READ | PROT_WRITE), 0);
	assert_int_equal(
		start_put(s.duo.a.conns[0], &again, s.source, 64, &s.region, 0), 0);
	UNTIL(&s.duo.a, NONE, again.status != 1);
	assert_int_equal(again.status, 0);
	scene_fini(&s);
}

static void test_put_into_read_only_memory_fails_alone(void **state)
{
	(void)state;
	check_read_only(true);
	check_read_only(false);
}

static void test_put_to_a_region_for_gets_ends_the_conn(void **state)
{
	struct scene s;
	struct work put = new_work();
	struct tern_region region;

	(void)state;
	scene_init(&s, false);
	region = expose(s.duo.b.conns[0], s.target, 0, 64);
	assert_int_equal(
		start_put(s.duo.a.conns[0], &put, s.source, 64, &region, 0), -ENOTCONN);
	UNTIL(&s.duo.a, &s.duo.b, s.duo.a.closed_count && s.duo.b.closed_count);
	assert_int_equal(s.duo.a.closed_status, -EPROTO);
	scene_fini(&s);
}

/* The owner has closed the connection before the putting end runs. */
static void test_nothing_is_put_after_the_owner_has_closed(void **state)
{
	struct scene s;
	struct work put = new_work();

	(void)state;
	scene_init(&s, false);
	assert_int_equal(
		start_put(s.duo.a.conns[0], &put, s.source, 64, &s.region, 0), 0);
	s.duo.b.port->ops->conn_close(s.duo.b.conns[0], false);
	UNTIL(&s.duo.b, NONE, s.duo.b.closed_count);
	UNTIL(&s.duo.a, NONE, s.duo.a.closed_count);
	assert_true(put.status < 0);
	assert_int_equal((unsigned char)s.target->base[4099], 0x5a);
	scene_fini(&s);
}

/* The owner's area says so before its socket does. */
static void test_nothing_is_put_after_the_owner_has_set_gone(void **state)
{
	struct scene s;
	struct work put = new_work();

	(void)state;
	scene_init(&s, false);
	assert_int_equal(
		start_put(s.duo.a.conns[0], &put, s.source, 64, &s.region, 0), 0);
	shm_say_gone(shm_conn_of(s.duo.b.conns[0]));
	UNTIL(&s.duo.a, NONE, s.duo.a.closed_count);
	assert_true(put.status < 0);
	assert_int_equal((unsigned char)s.target->base[4099], 0x5a);
	UNTIL(&s.duo.b, NONE, s.duo.b.closed_count);
	scene_fini(&s);
}

/* `a` is as if stopped within the system call that writes. */
static void test_close_waits_for_the_system_call_that_writes(void **state)
{
	struct scene s;
	struct shm_conn *writer;

	(void)state;
	scene_init(&s, false);
	writer = shm_conn_of(s.duo.a.conns[0]);
	atomic_store(&writer->own->writing, 1);
	s.duo.b.port->ops->conn_close(s.duo.b.conns[0], false);
	for (int i = 0; i < 5; i++)
		end_sleep(&s.duo.b);
	assert_int_equal(s.duo.b.closed_count, 0);
	atomic_store(&writer->own->writing, 0);
	end_sleep(&s.duo.b);
	assert_int_equal(s.duo.b.closed_count, 1);
	scene_fini(&s);
}

static void writes_and_then_runs_another_program(const char *address)
{
	struct end end;

	end_init(&end, false);
	end_connect(&end, address);
	UNTIL(&end, NONE, end.conn_count);
	atomic_store(&shm_conn_of(end.conns[0])->own->writing, 1);
	send_number(end.conns[0], 0, 0);
	end_poll(&end);
	execlp("sleep", "sleep", "1000", NULL);
}

static void writes_for_ever(const char *address)
{
	struct end end;

	end_init(&end, false);
	end_connect(&end, address);
	UNTIL(&end, NONE, end.conn_count);
	atomic_store(&shm_conn_of(end.conns[0])->own->writing, 1);
	send_number(end.conns[0], 0, 0);
	end_poll(&end);
	for (;;)
		pause();
}

static void test_close_does_not_wait_for_a_writer_that_runs_another_program(void **state)
{
	struct end end;
	pid_t pid;

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	pid = in_child(writes_and_then_runs_another_program,
		end.port->ops->lsn_address(end.lsn));
	UNTIL(&end, NONE, end.message_count);
	end.port->ops->conn_close(end.conns[0], false);
	UNTIL(&end, NONE, end.closed_count);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	end_fini(&end);
}

static void test_close_does_not_wait_for_a_dead_writer(void **state)
{
	struct end end;
	pid_t pid;

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	pid = in_child(writes_for_ever, end.port->ops->lsn_address(end.lsn));
	UNTIL(&end, NONE, end.message_count);
	end.port->ops->conn_close(end.conns[0], false);
	for (int i = 0; i < 5; i++)
		end_sleep(&end);
	assert_int_equal(end.closed_count, 0);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	UNTIL(&end, NONE, end.closed_count);
	end_fini(&end);
}

static void stops_and_then_runs_another_program(const char *address)
{
	struct end end;

	end_init(&end, false);
	end_connect(&end, address);
	UNTIL(&end, NONE, end.conn_count);
	send_number(end.conns[0], 0, 0);
	end_poll(&end);
	raise(SIGSTOP);
	execlp("sleep", "sleep", "1000", NULL);
}

static void await_program(pid_t pid, const char *wanted)
{
	char path[32], name[32] = "";
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
	for (unsigned i = 0; strncmp(name, wanted, strlen(wanted)) != 0; i++) {
		assert_true(i < 20000);
		usleep(1000);
		fd = open(path, O_RDONLY);
		assert_true(fd >= 0 && read(fd, name, sizeof(name) - 1) > 0);
		close(fd);
	}
}

static void check_another_program(bool by_file)
{
	struct shm_conn *conn;
	struct end end;
	uint64_t word;
	pid_t pid;

	end_init(&end, false);
	end_listen(&end);
	pid = in_child(
		stops_and_then_runs_another_program, end.port->ops->lsn_address(end.lsn));
	UNTIL(&end, NONE, end.message_count);
	conn = shm_conn_of(end.conns[0]);
	if (!by_file)
		have_no_file(&conn->base);
	word = conn->their_word;
	assert_int_equal(shm_process_write(conn, conn->their_address, &word, 8), 8);
	assert_int_equal(shm_process_write(conn, 8, &word, 8), -EFAULT);
	assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
	kill(pid, SIGCONT);
	await_program(pid, "sleep");
	conn->there_ns = 0;
	assert_int_equal(
		shm_process_write(conn, conn->their_address, &word, 8), -ENOTCONN);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	conn->there_ns = 0;
	assert_int_equal(
		shm_process_write(conn, conn->their_address, &word, 8), -ENOTCONN);
	end_fini(&end);
}

static void test_nothing_is_put_into_another_program(void **state)
{
	(void)state;
	check_another_program(true);
	check_another_program(false);
}

/* Many puts and messages at the same time, both ways. */
static void test_many_puts_beside_messages(void **state)
{
	enum { COUNT = 24 };
	const uint64_t part = 100000;
	struct duo duo;
	struct tern_mem *sources[2], *targets[2];
	struct tern_region regions[2];
	struct work works[2][COUNT];
	uint64_t sent = 0;
	unsigned done = 0;

	(void)state;
	duo_init(&duo, false);
	for (int side = 0; side < 2; side++) {
		struct end *end = side ? &duo.b : &duo.a;

		sources[side] = new_mem(end, side, COUNT * part);
		targets[side] = new_mem(end, !side, COUNT * part);
		fill(sources[side], (uint64_t)side);
		regions[side] =
			expose_for_puts(end->conns[0], targets[side], 0, COUNT * part);
	}
	for (int i = 0; i < 2 * COUNT; i++) {
		struct end *end = i % 2 ? &duo.b : &duo.a;
		struct work *work = &works[i % 2][i / 2];
		uint64_t at = (uint64_t)(i / 2) * part;

		*work = new_work();
		assert_int_equal(
			end->port->ops->put(end->conns[0], &work->op, sources[i % 2], at,
				part, &regions[!(i % 2)], at),
			0);
		sent += i % 2 == 0 && send_number(end->conns[0], sent, 100) == 0;
	}
	while (done < 2 * COUNT) {
		end_poll(&duo.a);
		end_poll(&duo.b);
		done = 0;
		for (int i = 0; i < 2 * COUNT; i++)
			done += works[i % 2][i / 2].status == 0;
	}
	UNTIL(&duo.a, &duo.b, duo.b.message_count == sent);
	for (int side = 0; side < 2; side++)
		assert_memory_equal(
			targets[!side]->base, sources[side]->base, COUNT * part);
	for (int side = 0; side < 2; side++) {
		put_mem(sources[side], side);
		put_mem(targets[side], !side);
	}
	duo_fini(&duo);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_put_needs_no_program_of_the_owner),
		cmocka_unit_test(
			test_conn_cannot_put_where_the_kernel_does_not_permit_it),
		cmocka_unit_test(test_put_and_get_of_one_region),
		cmocka_unit_test(test_put_into_read_only_memory_fails_alone),
		cmocka_unit_test(test_put_to_a_region_for_gets_ends_the_conn),
		cmocka_unit_test(test_nothing_is_put_after_the_owner_has_closed),
		cmocka_unit_test(test_close_waits_for_the_system_call_that_writes),
		cmocka_unit_test(
			test_close_does_not_wait_for_a_writer_that_runs_another_program),
		cmocka_unit_test(test_close_does_not_wait_for_a_dead_writer),
		cmocka_unit_test(test_nothing_is_put_after_the_owner_has_set_gone),
		cmocka_unit_test(test_nothing_is_put_into_another_program),
		cmocka_unit_test(test_many_puts_beside_messages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
