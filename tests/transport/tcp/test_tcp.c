/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the tcp fabric between two ports over the loopback interface: what arrives, in
 * which order, and how a conn ends. Hostile peers are in test_tcp_hostile.c. */
#include "tests/transport/tcp/tcp_world.h"

static const struct tern_fabric_ops *const ops = &tern_tcp_fabric_ops;

/* ---- connecting ---- */

static void test_both_ends_come_up_and_name_each_other(void **state)
{
	struct seen *client, *server;
	struct world w;

	world_start_or_skip(&w, state);
	world_connect(&w, &client, &server);
	assert_int_equal(client->up_count, 1);
	assert_int_equal(client->conn->caps, TERN_CAP_PUT);
	assert_int_equal(strncmp(client->conn->name, "tcp 127.0.0.1:", 14), 0);
	assert_int_equal(strncmp(server->conn->name, "tcp 127.0.0.1:", 14), 0);
	assert_string_equal(client->conn->name + 4, ops->lsn_address(w.server.lsn));
	world_stop(&w);
}

static void test_malformed_addresses_are_refused_at_once(void **state)
{
	static const char *const bad[] = {"", "host", "7000", "::1:7000", "[::1:7000",
		"[]:7000", "host:", "host:70000", "host:-1", "host:http", "ho st:7000",
		"a/b:7000", "host:0", "[::1]7000", ":0"};
	struct tern_conn *conn;
	struct tern_lsn *lsn;
	struct world w;

	world_start_or_skip(&w, state);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(bad); i++) {
		assert_int_equal(ops->connect(w.client.port, bad[i], &conn), -EINVAL);
		/* Port 0 is wrong only for connecting, so these addresses are not tried
		 * for listening. */
		if (!strstr(bad[i], ":0"))
			assert_int_equal(
				ops->listen(w.client.port, bad[i], &lsn), -EINVAL);
	}
	assert_int_equal(ops->listen(w.client.port, "192.0.2.1:0", &lsn), -EADDRNOTAVAIL);
	assert_int_equal(ops->listen(w.client.port, ops->lsn_address(w.server.lsn), &lsn),
		-EADDRINUSE);
	world_stop(&w);
}

static void test_listeners_print_what_to_connect_to(void **state)
{
	static const char *const good[] = {":0", "localhost:0", "0.0.0.0:0"};
	struct world w;

	world_start_or_skip(&w, state);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(good); i++) {
		struct seen *client, *server;

		ops->lsn_close(w.server.lsn);
		assert_int_equal(ops->listen(w.server.port, good[i], &w.server.lsn), 0);
		world_connect(&w, &client, &server);
	}
	world_stop(&w);
}

static void test_a_closed_listener_refuses_and_its_conns_stay(void **state)
{
	struct seen *client, *server, *late;
	struct tern_conn *conn;
	char address[80];
	struct world w;

	world_start_or_skip(&w, state);
	world_connect(&w, &client, &server);
	/* Makes the engine watch the listener, as before a sleep. */
	ops->arm(w.server.port);
	snprintf(address, sizeof(address), "%s", ops->lsn_address(w.server.lsn));
	ops->lsn_close(w.server.lsn);
	w.server.lsn = NULL;
	assert_int_equal(ops->connect(w.client.port, address, &conn), 0);
	late = side_adopt(&w.client, conn);
	world_until(&w, late->closed_count);
	assert_int_equal(late->status, -ECONNREFUSED);
	assert_int_equal(late->up_count, 0);
	/* The address can be used again at once. */
	assert_int_equal(ops->listen(w.server.port, address, &w.server.lsn), 0);
	assert_int_equal(ops->send(client->conn, "12345678", 8, NULL, 0), 0);
	world_until(&w, server->message_count == 1);
	world_stop(&w);
}

static void test_the_next_address_of_a_name_is_tried(void **state)
{
	char address[80];
	struct tern_conn *conn;
	struct seen *seen;
	struct world w;

	world_start_or_skip(&w, state);
	/* "localhost" may resolve to ::1 first, where no process listens. */
	snprintf(address, sizeof(address), "localhost:%s",
		strrchr(ops->lsn_address(w.server.lsn), ':') + 1);
	assert_int_equal(ops->connect(w.client.port, address, &conn), 0);
	seen = side_adopt(&w.client, conn);
	world_until(&w, seen->up_count && w.server.seen_count);
	world_stop(&w);
}

static void test_a_name_nobody_has_ends_the_conn(void **state)
{
	struct tern_conn *conn;
	struct seen *seen;
	struct world w;

	world_start_or_skip(&w, state);
	assert_int_equal(ops->connect(w.client.port, "no-such-host.invalid:1", &conn), 0);
	seen = side_adopt(&w.client, conn);
	world_until(&w, seen->closed_count);
	assert_true(seen->status == -ENODATA || seen->status == -ENONET);
	world_stop(&w);
}

static void test_close_while_connecting_ends_the_conn(void **state)
{
	struct tern_conn *conn;
	struct seen *seen;
	struct world w;

	world_start_or_skip(&w, state);
	assert_int_equal(
		ops->connect(w.client.port, ops->lsn_address(w.server.lsn), &conn), 0);
	seen = side_adopt(&w.client, conn);
	ops->conn_close(conn, true);
	ops->conn_close(conn, false);
	assert_int_equal(ops->send(conn, "12345678", 8, NULL, 0), -ENOTCONN);
	world_until(&w, seen->closed_count);
	assert_int_equal(seen->up_count, 0);
	world_stop(&w);
}

/* ---- order ---- */

#define TARGET_BYTES (3u << 20)

/* Message i contains the size of the put before it, which filled the start of `target`
 * with bytes that depend on i. */
struct order {
	unsigned char *target;
	uint64_t next;
	unsigned wrong;
};

static struct order order;

static unsigned char order_byte(uint64_t i, uint64_t j)
{
	return (unsigned char)(i * 31 + j * 7 + (j >> 12));
}

static int check_order(struct seen *seen, const char *data, size_t bytes)
{
	uint64_t i = tern_get_le64(data), put_bytes = tern_get_le64(data + 8);

	(void)seen;
	order.wrong += i != order.next++;
	for (size_t j = 16; j < bytes; j++)
		order.wrong += (unsigned char)data[j] != order_byte(i, j);
	for (uint64_t j = 0; j < put_bytes; j++)
		order.wrong += order.target[j] != order_byte(i, j);
	return 0;
}

/* Sends `count` pairs of a put and a message, of random sizes, and waits for each pair
 * until its message has arrived. */
static void send_in_order(struct world *w, struct seen *client, struct seen *server,
	unsigned count, uint64_t largest, uint64_t seed)
{
	struct tern_rng rng = {seed, 0};
	unsigned char *source = malloc(TARGET_BYTES);
	struct tern_mem from = mem_of(source, TARGET_BYTES);
	struct tern_mem to = mem_of(calloc(1, TARGET_BYTES), TARGET_BYTES);
	struct test_op op = {.op.done = test_op_done};
	char message[MESSAGE_BYTES];
	struct tern_region region;

	order = (struct order){.target = (unsigned char *)to.base};
	w->server.on_message = check_order;
	assert_int_equal(ops->expose(server->conn, &to, 0, TARGET_BYTES,
				 TERN_ACCESS_WRITE, &region),
		0);
	for (uint64_t i = 0; i < count; i++) {
		uint64_t most = tern_rng_below(&rng, 8) ? 300 : largest;
		uint64_t put_bytes = tern_rng_below(&rng, most);
		uint64_t pay =
			tern_rng_below(&rng, tern_rng_below(&rng, 4) ? 200 : 19000);

		for (uint64_t j = 0; j < TERN_MAX(put_bytes, 16 + pay); j++) {
			source[j] = order_byte(i, j);
			if (j < MESSAGE_BYTES)
				message[j] = (char)source[j];
		}
		tern_put_le64(message, i);
		tern_put_le64(message + 8, put_bytes);
		op.done_count = put_bytes == 0;
		if (put_bytes)
			world_until(w, ops->put(client->conn, &op.op, &from, 0, put_bytes,
					       &region, 0) == 0);
		world_until(
			w, ops->send(client->conn, message, 16, message + 16, pay) == 0);
		world_until(w, op.done_count);
		assert_int_equal(op.done_count, 1);
		assert_int_equal(op.status, 0);
		/* Waits for the message, since the next put overwrites the bytes that it
		 * describes. */
		world_until(w, order.next == i + 1);
	}
	assert_int_equal(order.wrong, 0);
	assert_int_equal(ops->withdraw(w->server.port, NULL, &region), 0);
	w->server.on_message = NULL;
	free(source);
	free(to.base);
}

static void test_a_message_finds_the_puts_before_it_done(void **state)
{
	struct seen *client, *server;
	struct world w;

	world_start_or_skip(&w, state);
	world_connect(&w, &client, &server);
	send_in_order(&w, client, server, 300, TARGET_BYTES, 1);
	world_stop(&w);
}

static void resize(struct seen *seen, int option, int bytes)
{
	int fd = tcp_conn_of(seen->conn)->watch.fd;

	assert_int_equal(setsockopt(fd, SOL_SOCKET, option, &bytes, sizeof(bytes)), 0);
}

static void test_tiny_socket_buffers_change_nothing(void **state)
{
	struct seen *client, *server;
	struct world w;

	world_start_or_skip(&w, state);
	world_connect(&w, &client, &server);
	resize(client, SO_SNDBUF, 1);
	resize(server, SO_RCVBUF, 8192);
	send_in_order(&w, client, server, 20, 100000, 2);
	world_stop(&w);
}

static void test_bulk_flows_among_many_conns(void **state)
{
	struct seen *client[6], *server[6];
	struct world w;

	world_start_or_skip(&w, state);
	for (int i = 0; i < 6; i++)
		world_connect(&w, &client[i], &server[i]);
	resize(client[3], SO_SNDBUF, 1);
	send_in_order(&w, client[3], server[3], 20, 300000, 6);
	world_stop(&w);
}

static int check_count(struct seen *seen, const char *data, size_t bytes)
{
	order.wrong += tern_get_le64(data) != order.next++ ||
		       bytes != 8 + tern_get_le64(data) % 4000;
	(void)seen;
	return 0;
}

static void test_many_messages_and_puts_queue_and_keep_their_order(void **state)
{
	static char source[1 << 16], target[1 << 16];
	struct tern_mem from = mem_of(source, sizeof(source)),
			to = mem_of(target, sizeof(target));
	struct seen *client, *server;
	struct test_op put_ops[64] = {0};
	struct tern_region region;
	struct world w;

	world_start_or_skip(&w, state);
	world_connect(&w, &client, &server);
	memset(target, 0, sizeof(target));
	for (size_t i = 0; i < sizeof(source); i++)
		source[i] = (char)(i * 13 + 1);
	assert_int_equal(ops->expose(server->conn, &to, 0, sizeof(target),
				 TERN_ACCESS_WRITE, &region),
		0);
	order = (struct order){0};
	w.server.on_message = check_count;
	for (uint64_t i = 0; i < 20000; i++) {
		struct test_op *op = &put_ops[i % 64];
		uint64_t at = i % 64 * 1024;

		world_until(&w, i < 64 || op->done_count);
		*op = (struct test_op){.op.done = test_op_done};
		world_until(&w, ops->put(client->conn, &op->op, &from, at, 1024, &region,
					at) == 0);
		world_until(&w, ops->send(client->conn, &i, 8, source, i % 4000) == 0);
	}
	world_until(&w, order.next == 20000);
	assert_int_equal(order.wrong, 0);
	assert_memory_equal(source, target, sizeof(source));
	assert_int_equal(ops->withdraw(w.server.port, NULL, &region), 0);
	world_stop(&w);
}

static void test_empty_and_largest_messages_arrive(void **state)
{
	char *data = calloc(1, MESSAGE_BYTES);
	struct seen *client, *server;
	struct world w;

	world_start_or_skip(&w, state);
	world_connect(&w, &client, &server);
	for (size_t i = 0; i < MESSAGE_BYTES; i++)
		data[i] = (char)(i * 3);
	assert_int_equal(ops->send(client->conn, NULL, 0, NULL, 0), 0);
	assert_int_equal(ops->send(client->conn, data, MESSAGE_BYTES, NULL, 0), 0);
	world_until(&w, server->message_count == 2);
	assert_int_equal(server->last_bytes, MESSAGE_BYTES);
	assert_memory_equal(server->last, data, MESSAGE_BYTES);
	assert_int_equal(
		ops->send(server->conn, data, 8, data + 8, MESSAGE_BYTES - 8), 0);
	world_until(&w, client->message_count == 1);
	assert_memory_equal(client->last, data, MESSAGE_BYTES);
	free(data);
	world_stop(&w);
}

static void test_a_full_conn_says_so_and_later_that_it_has_room(void **state)
{
	static char data[4096];
	struct seen *client, *server;
	unsigned sent = 0;
	struct world w;
	int r;

	world_start_or_skip(&w, state);
	world_connect(&w, &client, &server);
	/* The server does not poll: first the socket buffers fill, then the fabric's own
	 * buffer. */
	while ((r = ops->send(client->conn, data, 8, data, sizeof(data))) == 0) {
		sent++;
		ops->poll(w.client.port, 64);
	}
	assert_int_equal(r, -EAGAIN);
	assert_int_equal(client->writable_count, 0);
	world_until(&w, client->writable_count);
	assert_int_equal(ops->send(client->conn, data, 8, data, sizeof(data)), 0);
	world_until(&w, server->message_count == sent + 1);
	assert_int_equal(client->writable_count, 1);
	world_stop(&w);
}

static int echo(struct seen *seen, const char *data, size_t bytes)
{
	assert_int_equal(ops->send(seen->conn, data, bytes, NULL, 0), 0);
	return 0;
}

static void wait_for(const struct seen *seen, short event)
{
	struct pollfd entry = {tcp_conn_of(seen->conn)->watch.fd, event, 0};

	assert_int_equal(poll(&entry, 1, 20000), 1);
}

/* A poll may skip a socket that was empty and on which an answer was just sent. Here a
 * poll with a budget of 1 leaves a message unread, so the next poll must not skip the
 * socket. */
static void test_a_socket_of_which_a_poll_left_something_is_read_by_the_next(void **state)
{
	struct seen *client, *server;
	struct world w;

	world_start_or_skip(&w, state);
	w.server.on_message = echo;
	world_connect(&w, &client, &server);
	for (unsigned i = 0; i < 100; i++) {
		assert_int_equal(ops->send(client->conn, "12345678", 8, NULL, 0), 0);
		assert_int_equal(ops->send(client->conn, "12345678", 8, NULL, 0), 0);
		/* Sends both messages with one system call. */
		ops->poll(w.client.port, 64);
		wait_for(server, POLLIN);
		ops->poll(w.server.port, 1);
		if (server->message_count == 3 * i) /* this poll has skipped the socket */
			ops->poll(w.server.port, 1);
		assert_int_equal(server->message_count, 3 * i + 1);
		assert_int_equal(ops->send(client->conn, "12345678", 8, NULL, 0), 0);
		ops->poll(w.client.port, 64);
		wait_for(server, POLLIN);
		ops->poll(w.server.port, 64);
		assert_int_equal(server->message_count, 3 * i + 3);
		world_until(&w, client->message_count == 3 * i + 3);
	}
	world_stop(&w);
}

/* ---- windows ---- */

static char window_memory[1 << 20], window_source[1 << 20];

/* One poll reads only a part of a large put: other work, such as an answer to a message,
 * happens between polls and must not wait too long. */
static void test_a_poll_reads_a_bounded_part_of_a_put(void **state)
{
	enum { BULK_BYTES = 12u << 20 };
	char *bulk = calloc(2, BULK_BYTES);
	struct tern_mem from = mem_of(bulk, BULK_BYTES);
	struct tern_mem to = mem_of(bulk + BULK_BYTES, BULK_BYTES);
	struct test_op op = {.op.done = test_op_done};
	struct tern_region region;
	struct seen *client, *server;
	uint64_t landed = 0;
	struct world w;

	world_start_or_skip(&w, state);
	/* Makes more than TCP_DIRECT_MAX conns: with no more than that, no conn of another
	 * peer waits for its turn, and one poll may read more. */
	for (unsigned i = 0; i <= TCP_DIRECT_MAX; i++)
		world_connect(&w, &client, &server);
	resize(server, SO_RCVBUF, 4 << 20);
	assert_int_equal(
		ops->expose(server->conn, &to, 0, BULK_BYTES, TERN_ACCESS_WRITE, &region),
		0);
	assert_int_equal(
		ops->put(client->conn, &op.op, &from, 0, BULK_BYTES, &region, 0), 0);
	while (landed < BULK_BYTES) {
		struct tcp_rx *rx = &tcp_conn_of(server->conn)->rx;
		uint64_t before = landed;

		for (int i = 0; i < 20; i++) /* after these polls the sockets are full */
			ops->poll(w.client.port, 64);
		ops->poll(w.server.port, 64);
		if (rx->target)
			landed = BULK_BYTES - rx->left;
		else if (before)
			landed = BULK_BYTES;
		/* In one poll a conn is read once or twice. */
		assert_in_range(
			landed - before, 0, 2 * (TCP_CALL_BYTES + TCP_STAGE_BYTES));
	}
	assert_int_equal(ops->withdraw(w.server.port, NULL, &region), 0);
	world_stop(&w);
	free(bulk);
}

static void test_a_put_to_a_withdrawn_window_is_dropped(void **state)
{
	struct tern_mem from = mem_of(window_source, sizeof(window_source));
	struct tern_mem to = mem_of(window_memory, sizeof(window_memory));
	struct test_op op[2] = {{.op.done = test_op_done}, {.op.done = test_op_done}};
	struct tern_region old, new;
	struct seen *client, *server;
	struct world w;

	world_start_or_skip(&w, state);
	world_connect(&w, &client, &server);
	memset(window_source, 'x', sizeof(window_source));
	memset(window_memory, 0, sizeof(window_memory));
	assert_int_equal(
		ops->expose(server->conn, &to, 0, 5000, TERN_ACCESS_WRITE, &old), 0);
	assert_int_equal(ops->withdraw(w.server.port, NULL, &old), 0);
	/* Puts to a revoked window: once while its table entry is free, and once while
	 * another window uses the entry. */
	assert_int_equal(ops->put(client->conn, &op[0].op, &from, 0, 5000, &old, 0), 0);
	assert_int_equal(ops->send(client->conn, "message1", 8, NULL, 0), 0);
	world_until(&w, server->message_count == 1);
	assert_int_equal(
		ops->expose(server->conn, &to, 0, 100, TERN_ACCESS_WRITE, &new), 0);
	assert_int_equal((uint32_t)old.word[0], (uint32_t) new.word[0]);
	assert_int_equal(ops->put(client->conn, &op[1].op, &from, 0, 5000, &old, 0), 0);
	assert_int_equal(ops->send(client->conn, "message2", 8, NULL, 0), 0);
	world_until(&w, server->message_count == 2);
	for (size_t i = 0; i < 5000; i++)
		assert_int_equal(window_memory[i], 0);
	assert_int_equal(ops->withdraw(w.server.port, NULL, &new), 0);
	world_stop(&w);
}

static void test_withdrawing_in_the_middle_of_a_put_stops_it(void **state)
{
	struct tern_mem from = mem_of(window_source, sizeof(window_source));
	struct tern_mem to = mem_of(window_memory, sizeof(window_memory));
	struct test_op op = {.op.done = test_op_done};
	struct tern_region region;
	struct seen *client, *server;
	size_t landed = 0;
	struct world w;

	world_start_or_skip(&w, state);
	world_connect(&w, &client, &server);
	resize(client, SO_SNDBUF, 1);
	memset(window_source, 'x', sizeof(window_source));
	memset(window_memory, 0, sizeof(window_memory));
	assert_int_equal(
		ops->expose(server->conn, &to, 0, to.bytes, TERN_ACCESS_WRITE, &region),
		0);
	assert_int_equal(
		ops->put(client->conn, &op.op, &from, 0, to.bytes, &region, 0), 0);
	assert_int_equal(ops->send(client->conn, "message1", 8, NULL, 0), 0);
	world_until(&w, window_memory[0] == 'x');
	assert_int_equal(window_memory[to.bytes - 1], 0);
	assert_int_equal(ops->withdraw(w.server.port, NULL, &region), 0);
	while (window_memory[landed])
		landed++;
	world_until(&w, server->message_count == 1);
	for (size_t i = landed; i < to.bytes; i++)
		assert_int_equal(window_memory[i], 0);
	assert_int_equal(op.status, 0);
	world_stop(&w);
}

static void test_a_window_serves_every_conn_of_its_owner(void **state)
{
	struct tern_mem mem = mem_of(window_memory, sizeof(window_memory));
	struct test_op op = {.op.done = test_op_done};
	struct seen *client[2], *server[2];
	struct tern_region region;
	struct world w;

	world_start_or_skip(&w, state);
	world_connect(&w, &client[0], &server[0]);
	world_connect(&w, &client[1], &server[1]);
	server[1]->conn->owner = server[0]->conn->owner;
	memcpy(window_memory, "0000source", 10);
	assert_int_equal(
		ops->expose(server[0]->conn, &mem, 0, 4, TERN_ACCESS_WRITE, &region), 0);
	ops->conn_close(server[0]->conn, false);
	world_until(&w, server[0]->closed_count && client[0]->closed_count);
	assert_int_equal(ops->put(client[1]->conn, &op.op, &mem, 4, 3, &region, 1), 0);
	assert_int_equal(ops->send(client[1]->conn, "message1", 8, NULL, 0), 0);
	world_until(&w, server[1]->message_count == 1);
	assert_memory_equal(window_memory, "0sou", 4);
	assert_int_equal(ops->withdraw(w.server.port, NULL, &region), 0);
	world_stop(&w);
}

static void test_windows_run_out_and_come_back(void **state)
{
	struct tern_region *regions = calloc(TERN_EXPOSURES_MAX, sizeof(*regions));
	struct tern_mem mem = mem_of(window_memory, sizeof(window_memory));
	struct tern_region extra;
	struct seen *client, *server;
	struct world w;

	world_start_or_skip(&w, state);
	world_connect(&w, &client, &server);
	for (uint32_t i = 0; i < TERN_EXPOSURES_MAX; i++)
		assert_int_equal(ops->expose(server->conn, &mem, i, 1, TERN_ACCESS_WRITE,
					 &regions[i]),
			0);
	assert_int_equal(ops->expose(server->conn, &mem, 0, 1, TERN_ACCESS_WRITE, &extra),
		-EAGAIN);
	assert_int_equal(ops->withdraw(w.server.port, NULL, &regions[7]), 0);
	assert_int_equal(
		ops->expose(server->conn, &mem, 0, 1, TERN_ACCESS_WRITE, &regions[7]), 0);
	for (uint32_t i = 0; i < TERN_EXPOSURES_MAX; i++)
		assert_int_equal(ops->withdraw(w.server.port, NULL, &regions[i]), 0);
	free(regions);
	world_stop(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		both_engines(test_both_ends_come_up_and_name_each_other),
		both_engines(test_malformed_addresses_are_refused_at_once),
		both_engines(test_listeners_print_what_to_connect_to),
		both_engines(test_a_closed_listener_refuses_and_its_conns_stay),
		both_engines(test_the_next_address_of_a_name_is_tried),
		both_engines(test_a_name_nobody_has_ends_the_conn),
		both_engines(test_close_while_connecting_ends_the_conn),
		both_engines(test_a_message_finds_the_puts_before_it_done),
		both_engines(test_tiny_socket_buffers_change_nothing),
		both_engines(test_bulk_flows_among_many_conns),
		both_engines(test_many_messages_and_puts_queue_and_keep_their_order),
		both_engines(test_empty_and_largest_messages_arrive),
		both_engines(test_a_full_conn_says_so_and_later_that_it_has_room),
		both_engines(
			test_a_socket_of_which_a_poll_left_something_is_read_by_the_next),
		both_engines(test_a_poll_reads_a_bounded_part_of_a_put),
		both_engines(test_a_put_to_a_withdrawn_window_is_dropped),
		both_engines(test_withdrawing_in_the_middle_of_a_put_stops_it),
		both_engines(test_a_window_serves_every_conn_of_its_owner),
		both_engines(test_windows_run_out_and_come_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
