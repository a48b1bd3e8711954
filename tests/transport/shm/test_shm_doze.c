/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of dozing conns of the shm fabric (poll() skips a dozing conn until the peer
 * sends a WAKE over the socket, or this end uses the conn). No message may be lost, and
 * every event must be seen, by a port that sleeps and by one that spins. set_drowsy() lets
 * every idle conn of a port doze at once.
 */
#include "tests/transport/shm/shm_end.h"

#include <sched.h>

#define CONNS  ENDS_CONNS
#define ROUNDS 4000u
#define BALLS  3u

static void set_drowsy(struct end *end)
{
	shm_port_of(end->port)->awake_count = 0;
	shm_port_of(end->port)->doze_ns = 0;
}

static unsigned dozing_count(struct end *end)
{
	unsigned count = 0;

	for (unsigned i = 0; i < end->conn_count; i++)
		count += end->conns[i] && shm_conn_of(end->conns[i])->dozing;
	return count;
}

static void end_doze(struct end *end)
{
	struct pollfd entry = {.fd = end->port->ops->fd(end->port), .events = POLLIN};

	while (end->port->ops->arm(end->port) || poll(&entry, 1, 0))
		end_poll(end);
	assert_int_equal(dozing_count(end), end->conn_count - end->closed_count);
}

static void many_init(struct duo *duo, unsigned count)
{
	duo_init(duo, false);
	for (unsigned i = 1; i < count; i++) {
		end_connect(&duo->a, duo->b.port->ops->lsn_address(duo->b.lsn));
		UNTIL(&duo->a, &duo->b,
			duo->a.conn_count == i + 1 && duo->b.conn_count == i + 1);
	}
	set_drowsy(&duo->a);
	set_drowsy(&duo->b);
	end_doze(&duo->a);
	end_doze(&duo->b);
}

static bool is_readable(struct end *end)
{
	struct pollfd entry = {.fd = end->port->ops->fd(end->port), .events = POLLIN};

	return poll(&entry, 1, 20000) == 1;
}

static void test_only_those_that_are_used_are_looked_at(void **state)
{
	struct duo duo;

	(void)state;
	many_init(&duo, 4);
	shm_port_of(duo.a.port)->doze_ns = shm_port_of(duo.b.port)->doze_ns = UINT64_MAX;
	assert_int_equal(send_number(duo.a.conns[2], 0, 10), 0);
	UNTIL(&duo.a, &duo.b, duo.b.message_count == 1);
	assert_int_equal(dozing_count(&duo.a), 3);
	assert_int_equal(dozing_count(&duo.b), 3);
	shm_port_of(duo.a.port)->doze_ns = shm_port_of(duo.b.port)->doze_ns = 0;
	end_doze(&duo.a);
	end_doze(&duo.b);
	duo_fini(&duo);
}

/* In a program that never sleeps, too, conns doze: poll() looks only at those in use, whose
 * number is port->conn_count. */
static void test_a_port_that_spins_looks_only_at_those_that_are_used(void **state)
{
	struct duo duo;
	struct shm_port *port;

	(void)state;
	many_init(&duo, CONNS);
	port = shm_port_of(duo.b.port);
	port->awake_count = 2;
	for (uint64_t i = 0; i < 3 * CONNS; i++) {
		assert_int_equal(send_number(duo.a.conns[i % CONNS], i, 10), 0);
		UNTIL(&duo.b, &duo.a, duo.b.message_count == i + 1);
		UNTIL(&duo.b, NONE, port->conn_count <= port->awake_count);
	}
	assert_int_equal(duo.b.bad_count, 0);
	assert_int_equal(dozing_count(&duo.b), CONNS - 2);
	/* A conn in use does not doze. */
	port->doze_ns = UINT64_MAX;
	assert_int_equal(send_number(duo.a.conns[0], duo.b.message_count, 10), 0);
	UNTIL(&duo.b, &duo.a, duo.b.message_count == 3 * CONNS + 1);
	for (unsigned i = 0; i < 100; i++)
		end_poll(&duo.b);
	assert_in_range(port->conn_count, 1, 3);
	assert_false(shm_conn_of(duo.b.conns[0])->dozing);
	duo_fini(&duo);
}

static void test_few_conns_do_not_doze(void **state)
{
	struct duo duo;

	(void)state;
	many_init(&duo, 4);
	shm_port_of(duo.b.port)->awake_count = 3;
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(send_number(duo.a.conns[i], i, 10), 0);
	UNTIL(&duo.a, &duo.b, duo.b.message_count == 4);
	while (duo.b.port->ops->arm(duo.b.port))
		end_poll(&duo.b);
	assert_int_equal(dozing_count(&duo.b), 1);
	end_poll(&duo.b);
	duo_fini(&duo);
}

/* Each end in turn sleeps, and only the readable descriptor wakes it. */
static void test_a_message_wakes_who_sleeps(void **state)
{
	struct duo duo;

	(void)state;
	many_init(&duo, CONNS);
	for (uint64_t i = 0; i < 100; i++) {
		end_doze(&duo.a);
		end_doze(&duo.b);
		assert_int_equal(send_number(duo.a.conns[i % CONNS], i, 10), 0);
		end_poll(&duo.a);
		assert_true(is_readable(&duo.b));
		UNTIL(&duo.b, NONE, duo.b.message_count == i + 1);
		end_doze(&duo.a);
		end_doze(&duo.b);
		assert_int_equal(send_number(duo.b.conns[i * 3 % CONNS], i, 10), 0);
		end_poll(&duo.b);
		assert_true(is_readable(&duo.a));
		UNTIL(&duo.a, NONE, duo.a.message_count == i + 1);
	}
	assert_int_equal(duo.a.bad_count + duo.b.bad_count, 0);
	duo_fini(&duo);
}

/* If the program sends on a conn after arm(), the conn still tells the peer that this
 * port sleeps, so the peer's answer wakes the port. */
static void test_an_answer_wakes_who_sent_after_arming(void **state)
{
	struct duo duo;

	(void)state;
	many_init(&duo, 2);
	shm_port_of(duo.b.port)->awake_count = CONNS;
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(send_number(duo.a.conns[i], i, 10), 0);
	UNTIL(&duo.a, &duo.b, duo.b.message_count == 2);
	duo.b.echo = true;
	end_doze(&duo.a);
	/* b spins and the conn does not doze, so b finds the message without a WAKE. */
	assert_int_equal(send_number(duo.a.conns[0], 2, 10), 0);
	UNTIL(&duo.b, NONE, duo.b.message_count == 3);
	end_poll(&duo.b);
	assert_true(is_readable(&duo.a));
	UNTIL(&duo.a, NONE, duo.a.message_count == 1);
	duo_fini(&duo);
}

static void test_reading_memory_ends_it(void **state)
{
	struct duo duo;
	struct tern_mem *slab, *other, *target;

	(void)state;
	many_init(&duo, 2);
	slab = new_mem(&duo.b, true, 1u << 20);
	other = new_mem(&duo.b, false, 1u << 16);
	target = new_mem(&duo.a, false, 1u << 16);
	fill(slab, 1);
	fill(other, 2);
	duo.b.conns[0]->owner = &duo.b;
	for (unsigned i = 0; i < 6; i++) {
		struct tern_mem *source = i % 2 ? other : slab;
		struct tern_region region = expose(duo.b.conns[0], source, 0, 1u << 16);
		struct work work = new_work();

		end_doze(&duo.a);
		end_doze(&duo.b);
		memset(target->base, 0, 1u << 16);
		assert_int_equal(
			start_get(duo.a.conns[0], &work, target, 1u << 16, &region, 0),
			0);
		UNTIL(&duo.a, &duo.b, work.status <= 0);
		assert_int_equal(work.status, 0);
		assert_memory_equal(target->base, source->base, 1u << 16);
		assert_int_equal(
			duo.b.port->ops->withdraw(duo.b.port, &work.op, &region), 0);
	}
	put_mem(slab, true);
	put_mem(other, false);
	put_mem(target, false);
	duo_fini(&duo);
}

static void test_asking_for_a_slab_ends_it(void **state)
{
	struct work work = new_work();
	struct tern_region region;
	struct tern_mem *slab;
	const void *data;
	struct duo duo;

	(void)state;
	many_init(&duo, 2);
	slab = new_mem(&duo.b, true, 1u << 20);
	duo.b.conns[0]->owner = &duo.b;
	region = expose(duo.b.conns[0], slab, 0, 1u << 16);
	assert_int_equal(duo.a.port->ops->peek(
				 duo.a.conns[0], &work.op, &region, 0, 1u << 16, &data),
		-EAGAIN);
	assert_int_equal(dozing_count(&duo.a), 1);
	UNTIL(&duo.a, &duo.b, work.status <= 0);
	assert_int_equal(work.status, 0);
	assert_int_equal(duo.b.port->ops->withdraw(duo.b.port, &work.op, &region), 0);
	put_mem(slab, true);
	duo_fini(&duo);
}

static void test_the_end_of_one_that_dozes_is_told(void **state)
{
	struct duo duo;

	(void)state;
	many_init(&duo, 3);
	duo.a.port->ops->conn_close(duo.a.conns[1], false);
	UNTIL(&duo.a, NONE, duo.a.closed_count);
	assert_int_equal(duo.a.closed_status, 0);
	assert_true(is_readable(&duo.b));
	UNTIL(&duo.b, NONE, duo.b.closed_count);
	assert_int_equal(duo.b.closed_status, -ECONNRESET);
	end_doze(&duo.a);
	end_doze(&duo.b);
	duo_fini(&duo);
}

static void drowsy_child(const char *address)
{
	struct end end;

	end_init(&end, false);
	set_drowsy(&end);
	end.echo = true;
	for (unsigned i = 0; i < CONNS; i++)
		end_connect(&end, address);
	while (!end.closed_count)
		end_sleep(&end);
	_exit(end.closed_status == -ECONNRESET ? 0 : 1);
}

static pid_t drowsy_pair(struct end *end)
{
	pid_t pid;

	end_init(end, false);
	set_drowsy(end);
	end_listen(end);
	pid = in_child(drowsy_child, end->port->ops->lsn_address(end->lsn));
	while (end->conn_count < CONNS)
		end_sleep(end);
	return pid;
}

static void test_the_death_of_a_peer_that_dozes_is_told(void **state)
{
	struct end end;
	pid_t pid;

	(void)state;
	pid = drowsy_pair(&end);
	while (dozing_count(&end) < CONNS)
		end_doze(&end);
	kill(pid, SIGKILL);
	while (end.closed_count < CONNS)
		end_sleep(&end);
	assert_int_equal(end.closed_status, -EPIPE);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	end_fini(&end);
}

/* Sends messages back and forth. Each message races with the other end's going to sleep,
 * and with the dozing of its conn. */
static void exchange_with_one_that_dozes(void (*turn)(struct end *end))
{
	struct end end;
	uint64_t sent = 0;
	pid_t pid;

	pid = drowsy_pair(&end);
	while (end.message_count < ROUNDS) {
		while (sent < ROUNDS && sent < end.message_count + BALLS) {
			unsigned at = (unsigned)(sent * sent % 7) % CONNS;

			assert_int_equal(send_number(end.conns[at], sent, 40), 0);
			sent++;
		}
		turn(&end);
	}
	assert_int_equal(end.message_count, ROUNDS);
	end_fini(&end);
	child_must_end_well(pid);
}

static void spin(struct end *end)
{
	if (end_poll(end) == 0)
		sched_yield(); /* the other end may need this CPU */
}

static void test_two_that_doze_never_miss_a_message(void **state)
{
	(void)state;
	exchange_with_one_that_dozes(end_sleep);
}

static void test_one_that_spins_never_misses_a_message_on_a_conn_that_dozes(void **state)
{
	(void)state;
	exchange_with_one_that_dozes(spin);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_only_those_that_are_used_are_looked_at),
		cmocka_unit_test(
			test_a_port_that_spins_looks_only_at_those_that_are_used),
		cmocka_unit_test(test_few_conns_do_not_doze),
		cmocka_unit_test(test_a_message_wakes_who_sleeps),
		cmocka_unit_test(test_an_answer_wakes_who_sent_after_arming),
		cmocka_unit_test(test_reading_memory_ends_it),
		cmocka_unit_test(test_asking_for_a_slab_ends_it),
		cmocka_unit_test(test_the_end_of_one_that_dozes_is_told),
		cmocka_unit_test(test_the_death_of_a_peer_that_dozes_is_told),
		cmocka_unit_test(test_two_that_doze_never_miss_a_message),
		cmocka_unit_test(
			test_one_that_spins_never_misses_a_message_on_a_conn_that_dozes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
