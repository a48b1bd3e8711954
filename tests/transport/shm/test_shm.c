/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the shm fabric through its table of functions: conns and how they end,
 * messages, sleeping. */
#include "tests/transport/shm/shm_end.h"

#include <sys/resource.h>

static void test_messages_arrive_in_order_both_ways(void **state)
{
	struct duo duo;
	uint64_t a_sent = 0, b_sent = 0;

	(void)state;
	duo_init(&duo, false);
	while (duo.a.message_count < 5000 || duo.b.message_count < 5000) {
		while (a_sent < 5000 &&
			send_number(duo.a.conns[0], a_sent, a_sent % 4000) == 0)
			a_sent++;
		while (b_sent < 5000 &&
			send_number(duo.b.conns[0], b_sent, b_sent % 100) == 0)
			b_sent++;
		end_poll(&duo.a);
		end_poll(&duo.b);
	}
	assert_int_equal(duo.a.bad_count + duo.b.bad_count, 0);
	assert_true(duo.a.writable_count > 0);
	duo_fini(&duo);
}

static void test_conn_says_what_it_can_do(void **state)
{
	struct duo duo;
	char name[80];

	(void)state;
	duo_init(&duo, false);
	snprintf(name, sizeof(name), "shm pid %d", (int)getpid());
	assert_string_equal(duo.a.conns[0]->name, name);
	assert_string_equal(duo.b.conns[0]->name, name);
	assert_int_equal(duo.a.conns[0]->caps,
		TERN_CAP_GET | TERN_CAP_PEEK | TERN_CAP_BOUND | TERN_CAP_WINDOW_PUT |
			TERN_CAP_LANDS | (tern_ipc_is_built() ? TERN_CAP_LEND : 0));
	duo_fini(&duo);
}

static void test_full_ring_says_again_and_then_writable(void **state)
{
	struct duo duo;
	uint64_t sent = 0;

	(void)state;
	duo_init(&duo, false);
	while (send_number(duo.a.conns[0], sent, 1000) == 0)
		sent++;
	assert_true(sent > 100);
	for (int i = 0; i < 10; i++)
		end_poll(&duo.a);
	assert_int_equal(duo.a.writable_count, 0);
	assert_int_equal(duo.a.port->ops->arm(duo.a.port), 0);
	UNTIL(&duo.b, NONE, duo.b.message_count == sent);
	/* The sender sleeps, and must be woken when the ring has space again. */
	assert_int_equal(poll(&(struct pollfd){.fd = duo.a.port->ops->fd(duo.a.port),
				      .events = POLLIN},
				 1, 20000),
		1);
	UNTIL(&duo.a, NONE, duo.a.writable_count);
	assert_int_equal(duo.a.writable_count, 1);
	assert_int_equal(send_number(duo.a.conns[0], sent, 1000), 0);
	duo_fini(&duo);
}

static void test_close_ends_ops_and_delivers_what_was_sent(void **state)
{
	struct duo duo;
	struct tern_mem *source, *target;
	struct tern_region region;
	struct work work = new_work();

	(void)state;
	duo_init(&duo, true);
	source = new_mem(&duo.b, false, 65536);
	target = new_mem(&duo.a, false, 65536);
	region = expose(duo.b.conns[0], source, 0, 65536);
	assert_int_equal(start_get(duo.a.conns[0], &work, target, 65536, &region, 0), 0);
	for (uint64_t i = 0; i < 100; i++)
		assert_int_equal(send_number(duo.a.conns[0], i, 500), 0);
	duo.a.port->ops->conn_close(duo.a.conns[0], true);
	duo.a.port->ops->conn_close(duo.a.conns[0], true);
	assert_int_equal(send_number(duo.a.conns[0], 0, 0), -ENOTCONN);
	assert_int_equal(work.status, 1);
	UNTIL(&duo.a, NONE, duo.a.closed_count);
	assert_int_equal(duo.a.closed_status, 0);
	assert_int_equal(work.status, -ECANCELED);
	UNTIL(&duo.b, NONE, duo.b.closed_count);
	assert_int_equal(duo.b.closed_status, -ECONNRESET);
	assert_int_equal(duo.b.message_count, 100);
	assert_int_equal(duo.b.bad_count, 0);
	put_mem(source, false);
	put_mem(target, false);
	duo_fini(&duo);
}

static void test_handlers_may_close(void **state)
{
	struct duo duo;
	struct end end;
	struct tern_mem *mem;
	struct tern_region region;
	struct work works[3] = {new_work(), new_work(), new_work()};

	(void)state;
	duo_init(&duo, false);
	duo.b.close_on_message = true;
	for (uint64_t i = 0; i < 5; i++)
		assert_int_equal(send_number(duo.a.conns[0], i, 0), 0);
	UNTIL(&duo.a, &duo.b, duo.a.closed_count && duo.b.closed_count);
	assert_int_equal(duo.b.message_count, 1);
	duo_fini(&duo);

	duo_init(&duo, false);
	duo.b.message_status = -EMSGSIZE;
	for (uint64_t i = 0; i < 5; i++)
		assert_int_equal(send_number(duo.a.conns[0], i, 0), 0);
	UNTIL(&duo.a, &duo.b, duo.a.closed_count && duo.b.closed_count);
	assert_int_equal(duo.b.message_count, 1);
	assert_int_equal(duo.b.closed_status, -EMSGSIZE);
	duo_fini(&duo);

	duo_init(&duo, false);
	mem = new_mem(&duo.a, true, 4096);
	region = expose(duo.a.conns[0], mem, 0, 4096);
	for (int i = 0; i < 3; i++) {
		works[i].close = duo.b.conns[0];
		assert_int_equal(
			start_get(duo.b.conns[0], &works[i], mem, 8, &region, 64), 0);
	}
	UNTIL(&duo.a, &duo.b, duo.b.closed_count);
	assert_int_equal(works[0].status, 0);
	assert_int_equal(works[1].status, -ECANCELED);
	assert_int_equal(works[2].status, -ECANCELED);
	put_mem(mem, true);
	duo_fini(&duo);

	end_init(&end, false);
	end_listen(&end);
	end.close_on_accept = true;
	end_connect(&end, end.port->ops->lsn_address(end.lsn));
	UNTIL(&end, NONE, end.closed_count == 2);
	assert_null(end.lsn);
	end_fini(&end);
}

static void test_addresses_are_checked(void **state)
{
	const char *const bad[] = {"", "a b", "a/b", "a\nb", "\xc3\xa9",
		("0123456789012345678901234567890123456789012345678901234567890123456789"
		 "01234567890")};
	struct end end;
	struct tern_lsn *lsn, *again;
	struct tern_conn *conn;
	char name[64];

	(void)state;
	end_init(&end, false);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(bad); i++) {
		assert_int_equal(end.port->ops->listen(end.port, bad[i], &lsn), -EINVAL);
		assert_int_equal(
			end.port->ops->connect(end.port, bad[i], &conn), -EINVAL);
	}
	snprintf(name, sizeof(name), "test-%d", (int)getpid());
	assert_int_equal(end.port->ops->listen(end.port, name, &lsn), 0);
	assert_string_equal(end.port->ops->lsn_address(lsn), name);
	assert_int_equal(end.port->ops->listen(end.port, name, &again), -EADDRINUSE);
	end.port->ops->lsn_close(lsn);
	assert_int_equal(end.port->ops->listen(end.port, name, &again), 0);
	end.port->ops->lsn_close(again);
	end_connect(&end, name);
	assert_int_equal(end.closed_count, 0);
	UNTIL(&end, NONE, end.closed_count);
	assert_int_equal(end.closed_status, -ECONNREFUSED);
	end_fini(&end);
}

static void test_listener_that_closes_resets_who_was_not_accepted(void **state)
{
	struct duo duo;

	(void)state;
	duo_init(&duo, false);
	end_connect(&duo.a, duo.b.port->ops->lsn_address(duo.b.lsn));
	duo.b.port->ops->lsn_close(duo.b.lsn);
	duo.b.lsn = NULL;
	UNTIL(&duo.a, NONE, duo.a.closed_count);
	assert_int_equal(duo.a.closed_status, -ECONNRESET);
	/* The conn that was accepted before stays open. */
	assert_int_equal(send_number(duo.a.conns[0], 0, 0), 0);
	UNTIL(&duo.a, &duo.b, duo.b.message_count);
	duo_fini(&duo);
}

static void test_ends_with_other_message_sizes_do_not_meet(void **state)
{
	struct end a, b;

	(void)state;
	end_init_sized(&a, false, 2048);
	end_init(&b, false);
	end_listen(&b);
	end_connect(&a, b.port->ops->lsn_address(b.lsn));
	UNTIL(&a, &b, a.closed_count);
	assert_int_equal(a.closed_status, -EPROTO);
	assert_int_equal(b.conn_count, 0);
	end_fini(&a);
	end_fini(&b);
}

static void test_caller_gives_up_on_a_conn_that_is_not_up(void **state)
{
	struct end a, b;

	(void)state;
	end_init(&a, false);
	end_init(&b, false);
	end_listen(&b);
	a.port->ops->conn_close(end_connect(&a, b.port->ops->lsn_address(b.lsn)), true);
	UNTIL(&a, NONE, a.closed_count);
	assert_int_equal(a.closed_status, -ECANCELED);
	for (int i = 0; i < 10; i++)
		end_poll(&b);
	end_fini(&a);
	end_fini(&b);
}

static void echo_child(const char *address)
{
	struct end end;

	end_init(&end, false);
	end.echo = true;
	end_connect(&end, address);
	while (!end.closed_count)
		end_sleep(&end);
	_exit(end.closed_status == -ECONNRESET && end.bad_count == 0 ? 0 : 1);
}

static void test_sleepers_in_two_processes_never_miss_a_wake(void **state)
{
	struct end end;
	pid_t pid;

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	pid = in_child(echo_child, end.port->ops->lsn_address(end.lsn));
	while (!end.conn_count)
		end_sleep(&end);
	for (uint64_t i = 0; i < 3000; i++) {
		assert_int_equal(send_number(end.conns[0], i, 40), 0);
		while (end.message_count == i)
			end_sleep(&end);
	}
	assert_int_equal(end.bad_count, 0);
	end_fini(&end);
	child_must_end_well(pid);
}

static void flood_child(const char *address)
{
	struct end end;
	uint64_t sent = 0;

	end_init(&end, false);
	end_connect(&end, address);
	while (!end.conn_count)
		end_sleep(&end);
	while (sent < 30000) {
		if (send_number(end.conns[0], sent, sent % 600) == 0)
			sent++;
		else
			end_sleep(&end);
	}
	while (!end.closed_count)
		end_sleep(&end);
	_exit(0);
}

static void test_sender_that_sleeps_for_room_is_woken(void **state)
{
	struct end end;
	pid_t pid;

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	pid = in_child(flood_child, end.port->ops->lsn_address(end.lsn));
	while (end.message_count < 30000)
		end_sleep(&end);
	assert_int_equal(end.bad_count, 0);
	end_fini(&end);
	child_must_end_well(pid);
}

static void chatty_child(const char *address)
{
	struct end end;

	end_init(&end, false);
	end_connect(&end, address);
	while (!end.conn_count)
		end_sleep(&end);
	for (uint64_t i = 0; i < 50; i++)
		if (send_number(end.conns[0], i, 100))
			_exit(1);
	kill(getpid(), SIGKILL);
}

static void test_killed_peer_is_known_to_be_gone(void **state)
{
	struct end end;
	pid_t pid;

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	pid = in_child(chatty_child, end.port->ops->lsn_address(end.lsn));
	while (!end.closed_count)
		end_sleep(&end);
	assert_int_equal(end.closed_status, -EPIPE);
	/* Messages that the child sent before it was killed are delivered first. */
	assert_int_equal(end.message_count, 50);
	assert_int_equal(end.bad_count, 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	end_fini(&end);
}

static void test_listener_without_descriptors_goes_on_when_there_are_some(void **state)
{
	struct rlimit limit, low;
	struct end end;
	pid_t pid;
	int top;

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	top = dup(0);
	close(top);
	low = limit;
	low.rlim_cur = (rlim_t)top;
	pid = in_child(echo_child, end.port->ops->lsn_address(end.lsn));
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	while (!tern_list_first(&shm_port_of(end.port)->lsns, struct shm_lsn, node)
			->resume_ns)
		end_sleep(&end);
	assert_int_equal(end.conn_count, 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	while (!end.conn_count)
		end_sleep(&end);
	end_fini(&end);
	child_must_end_well(pid);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_messages_arrive_in_order_both_ways),
		cmocka_unit_test(test_conn_says_what_it_can_do),
		cmocka_unit_test(test_full_ring_says_again_and_then_writable),
		cmocka_unit_test(test_close_ends_ops_and_delivers_what_was_sent),
		cmocka_unit_test(test_handlers_may_close),
		cmocka_unit_test(test_addresses_are_checked),
		cmocka_unit_test(test_listener_that_closes_resets_who_was_not_accepted),
		cmocka_unit_test(test_ends_with_other_message_sizes_do_not_meet),
		cmocka_unit_test(test_caller_gives_up_on_a_conn_that_is_not_up),
		cmocka_unit_test(test_sleepers_in_two_processes_never_miss_a_wake),
		cmocka_unit_test(test_sender_that_sleeps_for_room_is_woken),
		cmocka_unit_test(test_killed_peer_is_known_to_be_gone),
		cmocka_unit_test(
			test_listener_without_descriptors_goes_on_when_there_are_some),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
