/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of how conns of the tcp fabric end, and of callbacks that end them. */
#include "tests/transport/tcp/tcp_world.h"

#include <netinet/tcp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

static const struct tern_fabric_ops *const ops = &tern_tcp_fabric_ops;

static char window_memory[1 << 20], window_source[1 << 20];

/* ---- hosts that do not answer ---- */

static uint64_t option(struct seen *seen, int level, int name)
{
	socklen_t bytes = sizeof(int);
	int value;

	assert_int_equal(
		getsockopt(tern_container_of(seen->conn, struct tcp_conn, base)->watch.fd,
			level, name, &value, &bytes),
		0);
	return (uint64_t)value;
}

/* Checks the socket's options: keep-alives are frequent, and the kernel gives the host up
 * only after unreachable_ns. If that is TERN_NEVER, there are no keep-alives. */
static void check_keep_alives(struct seen *seen, uint64_t unreachable_ns)
{
	uint64_t interval_ns, most_ns = unreachable_ns / 100 + TERN_NS_PER_S;

	assert_int_equal(ops->unanswered_ns(seen->conn), 0);
	if (unreachable_ns == TERN_NEVER) {
		assert_int_equal(option(seen, SOL_SOCKET, SO_KEEPALIVE), 0);
		return;
	}
	assert_int_equal(option(seen, SOL_SOCKET, SO_KEEPALIVE), 1);
	assert_in_range(
		option(seen, IPPROTO_TCP, TCP_KEEPIDLE) * TERN_NS_PER_S, 1, most_ns);
	interval_ns = option(seen, IPPROTO_TCP, TCP_KEEPINTVL) * TERN_NS_PER_S;
	assert_in_range(interval_ns, TERN_NS_PER_S, most_ns);
	assert_true(option(seen, IPPROTO_TCP, TCP_KEEPCNT) * interval_ns >
		    unreachable_ns + 2 * interval_ns);
}

static void test_the_kernel_gives_no_host_up_before_the_caller_does(void **state)
{
	static const uint64_t times_ns[] = {1, TERN_NS_PER_S, 10 * TERN_NS_PER_S,
		99 * TERN_NS_PER_S, 127 * TERN_NS_PER_S, 200 * TERN_NS_PER_S - 1,
		3600 * TERN_NS_PER_S, 30 * 86400 * TERN_NS_PER_S, TERN_NEVER};

	(void)state;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(times_ns); i++) {
		struct seen *client, *server;
		struct world w;

		world_start_with(&w, TERN_TCP_EPOLL, times_ns[i]);
		world_connect(&w, &client, &server);
		check_keep_alives(client, times_ns[i]);
		check_keep_alives(server, times_ns[i]);
		world_stop(&w);
	}
}

/* ---- the end ---- */

static void test_close_with_flush_delivers_all_that_was_taken(void **state)
{
	struct tern_mem from = mem_of(window_source, sizeof(window_source));
	struct tern_mem to = mem_of(window_memory, sizeof(window_memory));
	struct test_op op = {.op.done = test_op_done};
	struct tern_region region;
	struct seen *client, *server;
	struct world w;

	world_start_or_skip(&w, state);
	world_connect(&w, &client, &server);
	for (size_t i = 0; i < sizeof(window_source); i++)
		window_source[i] = (char)(i * 5 + 2);
	assert_int_equal(
		ops->expose(server->conn, &to, 0, to.bytes, TERN_ACCESS_WRITE, &region),
		0);
	assert_int_equal(
		ops->put(client->conn, &op.op, &from, 0, to.bytes, &region, 0), 0);
	assert_int_equal(ops->send(client->conn, "goodbye!", 8, NULL, 0), 0);
	ops->conn_close(client->conn, true);
	assert_int_equal(ops->send(client->conn, "too late", 8, NULL, 0), -ENOTCONN);
	world_until(&w, client->closed_count && server->closed_count);
	assert_int_equal(client->status, 0);
	assert_int_equal(op.done_count, 1);
	assert_int_equal(op.status, 0);
	assert_int_equal(server->status, -ECONNRESET);
	assert_int_equal(server->message_count, 1);
	assert_memory_equal(window_source, window_memory, sizeof(window_memory));
	assert_int_equal(ops->withdraw(w.server.port, NULL, &region), 0);
	world_stop(&w);
}

static void test_close_without_flush_ends_every_op_once(void **state)
{
	struct tern_mem from = mem_of(window_source, sizeof(window_source));
	struct test_op op[3] = {{.op.done = test_op_done}, {.op.done = test_op_done},
		{.op.done = test_op_done}};
	struct tern_region region = {{0}};
	struct seen *client, *server;
	struct world w;

	world_start_or_skip(&w, state);
	world_connect(&w, &client, &server);
	for (int i = 0; i < 3; i++)
		assert_int_equal(
			ops->put(client->conn, &op[i].op, &from, 0, 100, &region, 0), 0);
	ops->conn_close(client->conn, false);
	assert_int_equal(op[0].done_count, 0);
	world_until(&w, client->closed_count && server->closed_count);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(op[i].done_count, 1);
		assert_int_equal(op[i].status, -ECANCELED);
	}
	assert_int_equal(client->status, 0);
	world_stop(&w);
}

static void test_close_gives_up_on_a_peer_that_does_not_read(void **state)
{
	static char data[16384];
	struct seen *server;
	struct world w;
	int fd, rc;

	world_start_or_skip(&w, state);
	fd = world_raw(&w, &server);
	while ((rc = ops->send(server->conn, data, 8, data, sizeof(data))) == 0)
		ops->poll(w.server.port, 64);
	assert_int_equal(rc, -EAGAIN);
	ops->conn_close(server->conn, true);
	/* The program sleeps, and the fabric must wake it when the time limit of the
	 * close is over. */
	while (!server->closed_count) {
		struct pollfd pollfd = {ops->fd(w.server.port), POLLIN, 0};

		if (ops->arm(w.server.port) == 0)
			assert_int_equal(poll(&pollfd, 1, 20000), 1);
		ops->poll(w.server.port, 64);
	}
	assert_int_equal(server->status, 0);
	close(fd);
	world_stop(&w);
}

static void test_a_killed_peer_is_noticed(void **state)
{
	struct tern_mem from = mem_of(window_source, sizeof(window_source));
	struct test_op op = {.op.done = test_op_done};
	struct tern_region region = {{0}};
	struct seen *server;
	struct world w;
	pid_t pid;
	int fd;

	world_start_or_skip(&w, state);
	fd = world_raw(&w, &server);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		pause();
		_exit(0);
	}
	close(fd); /* now only the child process has the socket */
	assert_int_equal(
		ops->put(server->conn, &op.op, &from, 0, from.bytes, &region, 0), 0);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	world_until(&w, server->closed_count);
	assert_int_equal(server->status, -ECONNRESET);
	assert_int_equal(op.done_count, 1);
	world_stop(&w);
}

static void test_last_words_of_a_peer_are_heard_though_sending_fails(void **state)
{
	struct tcp_frame frame = {.kind = TCP_MESSAGE, .bytes = 8, .head_bytes = 8};
	struct linger reset = {1, 0};
	uint8_t bytes[TCP_FRAME_BYTES + 8];
	struct seen *server;
	struct world w;
	int fd;

	world_start_or_skip(&w, state);
	fd = world_raw(&w, &server);
	memcpy(bytes + TCP_FRAME_BYTES, "goodbye!", 8);
	tcp_frame_put(bytes, &frame, bytes + TCP_FRAME_BYTES);
	assert_int_equal(send(fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	close(fd);
	ops->send(server->conn, "12345678", 8, NULL,
		0); /* this send fails in the first half of the next poll */
	world_until(&w, server->closed_count);
	assert_int_equal(server->status, -ECONNRESET);
	assert_int_equal(server->message_count, 1);
	assert_memory_equal(server->last, "goodbye!", 8);
	world_stop(&w);
}

/* ---- callbacks ---- */

static int close_on_message(struct seen *seen, const char *data, size_t bytes)
{
	(void)bytes;
	ops->conn_close(seen->conn, data[0] == 'f');
	return 0;
}

static int refuse_message(struct seen *seen, const char *data, size_t bytes)
{
	(void)seen;
	(void)data;
	(void)bytes;
	return -EACCES;
}

static void close_listener(struct seen *seen)
{
	ops->lsn_close(seen->side->lsn);
	seen->side->lsn = NULL;
}

static void test_a_conn_can_be_closed_in_its_own_message(void **state)
{
	struct world w;

	for (int flush = 0; flush < 2; flush++) {
		struct seen *client, *server;

		world_start_or_skip(&w, state);
		world_connect(&w, &client, &server);
		w.server.on_message = close_on_message;
		for (int i = 0; i < 3; i++)
			assert_int_equal(
				ops->send(client->conn, flush ? "flush..." : "cut.....",
					8, NULL, 0),
				0);
		world_until(&w, client->closed_count && server->closed_count);
		assert_int_equal(server->message_count, 1);
		assert_int_equal(server->status, 0);
		world_stop(&w);
	}
}

static void test_a_message_that_is_refused_cuts_with_its_status(void **state)
{
	struct seen *client, *server;
	struct world w;

	world_start_or_skip(&w, state);
	world_connect(&w, &client, &server);
	w.server.on_message = refuse_message;
	assert_int_equal(ops->send(client->conn, "12345678", 8, NULL, 0), 0);
	world_until(&w, client->closed_count && server->closed_count);
	assert_int_equal(server->status, -EACCES);
	assert_int_equal(client->status, -ECONNRESET);
	world_stop(&w);
}

static void test_a_listener_can_be_closed_when_it_accepts(void **state)
{
	struct seen *client, *server;
	struct world w;

	world_start_or_skip(&w, state);
	w.server.on_accepted = close_listener;
	world_connect(&w, &client, &server);
	assert_null(w.server.lsn);
	assert_int_equal(ops->send(client->conn, "12345678", 8, NULL, 0), 0);
	world_until(&w, server->message_count == 1);
	world_stop(&w);
}

/* ---- limits ---- */

static void test_a_peer_is_refused_when_descriptors_are_out(void **state)
{
	struct sockaddr_in sa;
	struct rlimit limit, low;
	struct seen *client, *server;
	struct world w;
	int fd, next;
	char byte;

	world_start_or_skip(&w, state);
	world_connect(&w, &client, &server);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	next = dup(fd);
	assert_true(next >= 0);
	close(next);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	low = limit;
	low.rlim_cur = (rlim_t)next;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	sa = world_sockaddr(&w);
	assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	world_until(&w, recv(fd, &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	close(fd);
	assert_int_equal(w.server.seen_count, 1);
	/* Descriptors are available again, so the next peer is accepted. */
	world_connect(&w, &client, &server);
	world_stop(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_kernel_gives_no_host_up_before_the_caller_does),
		both_engines(test_close_with_flush_delivers_all_that_was_taken),
		both_engines(test_close_without_flush_ends_every_op_once),
		both_engines(test_close_gives_up_on_a_peer_that_does_not_read),
		both_engines(test_a_killed_peer_is_noticed),
		both_engines(test_last_words_of_a_peer_are_heard_though_sending_fails),
		both_engines(test_a_conn_can_be_closed_in_its_own_message),
		both_engines(test_a_message_that_is_refused_cuts_with_its_status),
		both_engines(test_a_listener_can_be_closed_when_it_accepts),
		both_engines(test_a_peer_is_refused_when_descriptors_are_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
