/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of sleeping: an armed port of the tcp fabric must wake its program for every
 * event, and for nothing else, with few conns and with many. */
#include "tests/transport/tcp/tcp_world.h"

#include <linux/sockios.h>
#include <pthread.h>
#include <sys/ioctl.h>

static const struct tern_fabric_ops *const ops = &tern_tcp_fabric_ops;

static char window_memory[1 << 20], window_source[1 << 20];

/* Sleeps until one of the ports has something to do, then polls both. Fails the test if
 * nothing wakes it within 20 s. */
static void sleep_and_poll(struct world *w)
{
	struct tern_port *ports[2] = {w->client.port, w->server.port};
	struct pollfd fds[2];
	bool ready = false;

	for (int i = 0; i < 2; i++) {
		int r = ops->arm(ports[i]);

		assert_true(r == 0 || r == -EAGAIN);
		ready |= r != 0;
		fds[i] = (struct pollfd){ops->fd(ports[i]), POLLIN, 0};
	}
	if (poll(fds, 2, ready ? 0 : 20000) == 0 && !ready)
		fail_msg("slept through an event");
	world_poll(w);
}

static int echo(struct seen *seen, const char *data, size_t bytes)
{
	assert_int_equal(ops->send(seen->conn, data, bytes, NULL, 0), 0);
	return 0;
}

static void test_a_sleeper_is_woken_for_everything(void **state)
{
	struct tern_mem from = mem_of(window_source, sizeof(window_source));
	struct tern_mem to = mem_of(window_memory, sizeof(window_memory));
	struct tern_region region;
	struct tern_conn *conn;
	struct seen *client, *server;
	struct world w;

	world_start_or_skip(&w, state);
	w.server.on_message = echo;
	while (ops->arm(w.server.port) != 0)
		ops->poll(w.server.port, 64);
	assert_int_equal(
		ops->connect(w.client.port, ops->lsn_address(w.server.lsn), &conn), 0);
	client = side_adopt(&w.client, conn);
	while (!client->up_count || !w.server.seen_count)
		sleep_and_poll(&w);
	server = &w.server.seen[0];
	assert_int_equal(
		ops->expose(server->conn, &to, 0, to.bytes, TERN_ACCESS_WRITE, &region),
		0);
	for (unsigned i = 1; i <= 200; i++) {
		struct test_op op = {.op.done = test_op_done};

		if (i % 20 == 0)
			assert_int_equal(
				ops->put(conn, &op.op, &from, 0, from.bytes, &region, 0),
				0);
		assert_int_equal(ops->send(conn, "12345678", 8, NULL, 0), 0);
		while (client->message_count < i || (i % 20 == 0 && !op.done_count))
			sleep_and_poll(&w);
	}
	assert_int_equal(ops->withdraw(w.server.port, NULL, &region), 0);
	ops->conn_close(conn, true);
	while (!client->closed_count || !server->closed_count)
		sleep_and_poll(&w);
	world_stop(&w);
}

static void test_an_idle_port_stays_asleep(void **state)
{
	struct seen *client[6], *server[6];
	struct world w;

	world_start_or_skip(&w, state);
	for (int i = 0; i < 6; i++)
		world_connect(&w, &client[i], &server[i]);
	for (int i = 0; i < 2; i++) {
		struct tern_port *port = i ? w.server.port : w.client.port;
		struct pollfd pollfd = {ops->fd(port), POLLIN, 0};
		int tries = 0;

		for (; ops->arm(port) && tries < 100; tries++)
			ops->poll(port, 64);
		assert_true(tries < 100);
		assert_int_equal(poll(&pollfd, 1, 20), 0);
	}
	world_stop(&w);
}

static void test_many_conns_are_all_served(void **state)
{
	struct seen *client[12], *server[12];
	struct world w;

	world_start_or_skip(&w, state);
	w.server.on_message = echo;
	for (unsigned i = 0; i < 12; i++) {
		world_connect(&w, &client[i], &server[i]);
		/* The fabric handles few conns and many conns in different ways: mixes
		 * them. */
		for (unsigned k = 0; k <= i; k++)
			assert_int_equal(
				ops->send(client[k]->conn, "12345678", 8, NULL, 0), 0);
		for (unsigned k = 0; k <= i; k++)
			world_until(&w, client[k]->message_count == i - k + 1);
	}
	for (unsigned i = 0; i < 12; i++) {
		ops->conn_close(client[i]->conn, i % 2);
		world_until(&w, server[i]->closed_count && client[i]->closed_count);
		for (unsigned k = i + 1; k < 12; k++) {
			unsigned before = client[k]->message_count;

			assert_int_equal(
				ops->send(client[k]->conn, "12345678", 8, NULL, 0), 0);
			world_until(&w, client[k]->message_count == before + 1);
		}
	}
	world_stop(&w);
}

/* ---- what a poll skips ---- */

static void await(int fd, short event)
{
	struct pollfd entry = {fd, event, 0};

	assert_int_equal(poll(&entry, 1, 20000), 1);
}

static int socket_of(const struct seen *seen)
{
	return tcp_conn_of(seen->conn)->watch.fd;
}

static void sleep_then_poll_once(struct tern_port *port)
{
	if (ops->arm(port) == 0)
		await(ops->fd(port), POLLIN);
	ops->poll(port, 64);
}

/* After arm() has sent data, the next poll may skip the socket, since no answer can have
 * come yet. But after a sleep it must read the socket. */
static void test_what_arm_has_sent_keeps_no_poll_from_finding_the_answer(void **state)
{
	struct seen *client, *server;
	struct world w;

	world_start_or_skip(&w, state);
	w.server.on_message = echo;
	world_connect(&w, &client, &server);
	for (unsigned i = 1; i <= 100; i++) {
		assert_int_equal(ops->send(client->conn, "12345678", 8, NULL, 0), 0);
		while (ops->arm(w.client.port))
			ops->poll(w.client.port, 64);
		while (server->message_count < i)
			ops->poll(w.server.port, 64);
		await(socket_of(client), POLLIN);
		await(ops->fd(w.client.port), POLLIN);
		ops->poll(w.client.port, 64);
		assert_int_equal(client->message_count, i);
	}
	world_stop(&w);
}

static void test_a_message_that_crosses_what_arm_sends_is_found_by_the_next_poll(
	void **state)
{
	struct seen *client, *server;
	struct world w;

	world_start_or_skip(&w, state);
	world_connect(&w, &client, &server);
	for (unsigned i = 1; i <= 100; i++) {
		assert_int_equal(ops->send(server->conn, "12345678", 8, NULL, 0), 0);
		ops->poll(w.server.port, 64);
		await(socket_of(client), POLLIN);
		assert_int_equal(ops->send(client->conn, "12345678", 8, NULL, 0), 0);
		sleep_then_poll_once(w.client.port);
		assert_int_equal(client->message_count, i);
		world_until(&w, server->message_count == i);
	}
	world_stop(&w);
}

/* Two raw peers of the server that do not read, and for each of them more data than its
 * socket can hold. */
struct blocked {
	struct world w;
	struct seen *seen[2];
	int fds[2];
	struct test_op puts[2];
};

#define BULK_BYTES (8u << 20)

static void blocked_start(struct blocked *b, void **state)
{
	static char bulk[BULK_BYTES];
	struct tern_mem from = mem_of(bulk, sizeof(bulk));
	const struct tern_region region = {{0}};
	const int small = 1;
	struct tern_port *port;

	world_start_or_skip(&b->w, state);
	port = b->w.server.port;
	for (int i = 0; i < 2; i++) {
		b->fds[i] = world_raw(&b->w, &b->seen[i]);
		b->puts[i] = (struct test_op){.op.done = test_op_done};
		assert_int_equal(setsockopt(socket_of(b->seen[i]), SOL_SOCKET, SO_SNDBUF,
					 &small, sizeof(small)),
			0);
		assert_int_equal(ops->put(b->seen[i]->conn, &b->puts[i].op, &from, 0,
					 sizeof(bulk), &region, 0),
			0);
	}
	/* Sends until the sockets are full, so that no event wakes the sleeping port. */
	for (;;) {
		struct pollfd entry = {ops->fd(port), POLLIN, 0};

		if (ops->arm(port) == 0 && poll(&entry, 1, 20) == 0)
			break;
		ops->poll(port, 64);
	}
}

static void blocked_stop(struct blocked *b)
{
	for (int i = 0; i < 2; i++)
		close(b->fds[i]);
	world_stop(&b->w);
}

/* Reads all data that is waiting. */
static uint64_t drain(int fd)
{
	static char data[64 << 10];
	uint64_t total = 0;
	ssize_t n;

	while ((n = recv(fd, data, sizeof(data), MSG_DONTWAIT)) > 0)
		total += (size_t)n;
	return total;
}

static int unacknowledged(const struct seen *seen)
{
	int bytes;

	assert_int_equal(ioctl(socket_of(seen), SIOCOUTQ, &bytes), 0);
	return bytes;
}

/* Of two full sockets, one gets space again. A poll may skip full sockets, but the next
 * poll must not skip this one. */
static void test_of_two_full_sockets_the_one_with_room_is_found_polling(void **state)
{
	struct blocked b;

	blocked_start(&b, state);
	for (int round = 0; round < 20; round++) {
		const int i = round / 10;

		while (drain(b.fds[i]) || unacknowledged(b.seen[i]))
			;
		ops->poll(b.w.server.port, 64);
		ops->poll(b.w.server.port, 64);
		assert_true(unacknowledged(b.seen[i]) || drain(b.fds[i]));
	}
	assert_false(b.puts[0].done_count || b.puts[1].done_count);
	blocked_stop(&b);
}

static void test_of_two_full_sockets_the_one_with_room_wakes(void **state)
{
	struct blocked b;

	blocked_start(&b, state);
	for (int round = 0; round < 10; round++) {
		const int i = round / 5;

		while (drain(b.fds[i]) || unacknowledged(b.seen[i]))
			;
		do {
			sleep_then_poll_once(b.w.server.port);
		} while (!unacknowledged(b.seen[i]) && !drain(b.fds[i]));
	}
	assert_false(b.puts[0].done_count || b.puts[1].done_count);
	blocked_stop(&b);
}

/* ---- threads ---- */

static void *arm_both(void *arg)
{
	struct world *w = arg;

	while (ops->arm(w->client.port) || ops->arm(w->server.port))
		world_poll(w);
	return NULL;
}

/* A context may be used by one thread after another. A thread arms the ports and ends, and
 * then another thread sleeps on them: it must be woken for every event. */
static void test_a_port_outlives_the_thread_that_armed_it(void **state)
{
	struct seen *client, *server;
	pthread_t thread;
	struct world w;

	world_start_or_skip(&w, state);
	world_connect(&w, &client, &server);
	w.server.on_message = echo;
	assert_int_equal(pthread_create(&thread, NULL, arm_both, &w), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	for (unsigned i = 1; i <= 10; i++) {
		assert_int_equal(ops->send(client->conn, "12345678", 8, NULL, 0), 0);
		while (client->message_count < i)
			sleep_and_poll(&w);
	}
	world_stop(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		both_engines(test_a_sleeper_is_woken_for_everything),
		both_engines(test_an_idle_port_stays_asleep),
		both_engines(test_many_conns_are_all_served),
		both_engines(
			test_what_arm_has_sent_keeps_no_poll_from_finding_the_answer),
		both_engines(
			test_a_message_that_crosses_what_arm_sends_is_found_by_the_next_poll),
		both_engines(test_of_two_full_sockets_the_one_with_room_is_found_polling),
		both_engines(test_of_two_full_sockets_the_one_with_room_wakes),
		both_engines(test_a_port_outlives_the_thread_that_armed_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
