/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code that the tests of the tcp fabric share: two ports in one process, and raw sockets
 * that connect to them. A test that is listed with both_engines() runs once with each I/O
 * engine (io_uring, epoll); the engine is the cmocka state of the test.
 */
#ifndef TERN_TESTS_TRANSPORT_TCP_TCP_WORLD_H
#define TERN_TESTS_TRANSPORT_TCP_TCP_WORLD_H

#include "tests/harness/cmocka.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include <tern/context.h>

#include "base/clock.h"
#include "base/rng.h"
#include "transport/tcp/tcp.h"

#define MESSAGE_BYTES 20000u

struct side;

/* Events that one side has seen on one conn; conn->user points to this. */
struct seen {
	struct tern_conn *conn; /* NULL after the conn has closed */
	struct side *side;
	unsigned up_count, message_count, writable_count, closed_count;
	int status;
	size_t last_bytes;
	char last[MESSAGE_BYTES];
	int owner; /* owner of memory and conns: only its address matters */
};

struct side {
	struct tern_port *port;
	struct tern_lsn *lsn;
	struct seen seen[16];
	unsigned seen_count;
	bool strangers; /* true: conns get no owner, as before a handshake */
	int (*on_message)(struct seen *seen, const char *data, size_t bytes);
	void (*on_accepted)(struct seen *seen);
};

struct world {
	struct tern_env env;
	struct tern_env_ops env_ops;
	struct tern_fabric *fabric;
	struct side client, server;
};

static inline struct seen *side_adopt(struct side *side, struct tern_conn *conn)
{
	struct seen *seen = &side->seen[side->seen_count++];

	assert_true(side->seen_count <= TERN_ARRAY_SIZE(side->seen));
	seen->conn = conn;
	seen->side = side;
	conn->user = seen;
	conn->owner = side->strangers ? NULL : &seen->owner;
	return seen;
}

static inline void on_accepted(void *arg, struct tern_lsn *lsn, struct tern_conn *conn)
{
	struct side *side = arg;
	struct seen *seen = side_adopt(side, conn);

	assert_ptr_equal(lsn, side->lsn);
	seen->up_count++;
	if (side->on_accepted)
		side->on_accepted(seen);
}

static inline void on_up(void *arg, struct tern_conn *conn)
{
	struct seen *seen = conn->user;

	assert_ptr_equal(seen->side, arg);
	assert_int_equal(seen->closed_count, 0);
	seen->up_count++;
}

static inline int on_message(
	void *arg, struct tern_conn *conn, const void *data, size_t bytes)
{
	struct seen *seen = conn->user;

	assert_ptr_equal(seen->side, arg);
	assert_int_equal((uintptr_t)data % 64, 0);
	assert_int_equal(seen->closed_count, 0);
	assert_true(bytes <= MESSAGE_BYTES);
	seen->message_count++;
	seen->last_bytes = bytes;
	memcpy(seen->last, data, bytes);
	return seen->side->on_message ? seen->side->on_message(seen, data, bytes) : 0;
}

static inline void on_writable(void *arg, struct tern_conn *conn)
{
	struct seen *seen = conn->user;

	assert_ptr_equal(seen->side, arg);
	seen->writable_count++;
}

static inline void on_closed(void *arg, struct tern_conn *conn, int status)
{
	struct seen *seen = conn->user;

	assert_ptr_equal(seen->side, arg);
	assert_int_equal(seen->closed_count, 0);
	seen->closed_count++;
	seen->status = status;
	seen->conn = NULL;
}

static inline void quiet_log(
	struct tern_env *env, enum tern_log_level level, const char *line)
{
	(void)env;
	(void)level;
	(void)line;
}

static inline void world_start_with(
	struct world *w, enum tern_tcp_engine engine, uint64_t unreachable_ns)
{
	static const struct tern_port_handler handler = {
		.accepted = on_accepted,
		.up = on_up,
		.message = on_message,
		.writable = on_writable,
		.closed = on_closed,
	};
	struct tern_domain_opts opts = {.tcp_engine = engine};
	const char *why = NULL;

	memset(w, 0, sizeof(*w));
	w->env_ops = *tern_env_system()->ops;
	w->env_ops.log = quiet_log;
	w->env = (struct tern_env){.ops = &w->env_ops, .log_level = TERN_LOG_DEBUG};
	assert_int_equal(tern_tcp_fabric_ops.open(NULL, &opts, &w->fabric, &why), 0);
	for (int i = 0; i < 2; i++) {
		struct side *side = i ? &w->server : &w->client;
		struct tern_port_opts port = {
			&w->env, &handler, side, MESSAGE_BYTES, NULL, unreachable_ns};

		assert_int_equal(
			w->fabric->ops->port_new(w->fabric, &port, &side->port), 0);
	}
	assert_int_equal(
		w->fabric->ops->listen(w->server.port, "127.0.0.1:0", &w->server.lsn), 0);
}

static inline void world_start(struct world *w, enum tern_tcp_engine engine)
{
	world_start_with(w, engine, 0);
}

static inline int world_poll(struct world *w)
{
	int events = w->fabric->ops->poll(w->client.port, 64);

	return events + w->fabric->ops->poll(w->server.port, 64);
}

/* Polls both sides until `condition` holds; fails the test if that takes too long. */
#define world_until(w, condition)                                                        \
	do {                                                                             \
		uint64_t end_ns_ = tern_clock_ns() + 20 * TERN_NS_PER_S;                 \
		while (!(condition)) {                                                   \
			world_poll(w);                                                   \
			if (tern_clock_ns() > end_ns_)                                   \
				fail_msg("never came true: %s", #condition);             \
		}                                                                        \
	} while (0)

static inline bool side_closed(const struct side *side)
{
	for (unsigned i = 0; i < side->seen_count; i++)
		if (!side->seen[i].closed_count)
			return false;
	return true;
}

static inline void world_stop(struct world *w)
{
	const struct tern_fabric_ops *ops = w->fabric->ops;

	if (w->server.lsn)
		ops->lsn_close(w->server.lsn);
	for (int i = 0; i < 2; i++) {
		struct side *side = i ? &w->server : &w->client;

		for (unsigned k = 0; k < side->seen_count; k++)
			if (side->seen[k].conn)
				ops->conn_close(side->seen[k].conn, false);
	}
	world_until(w, side_closed(&w->client) && side_closed(&w->server));
	ops->port_free(w->client.port);
	ops->port_free(w->server.port);
	ops->close(w->fabric);
}

/* Connects the client to the server, waits until both ends are up, and returns both. */
static inline void world_connect(
	struct world *w, struct seen **client, struct seen **server)
{
	struct tern_conn *conn;
	unsigned before = w->server.seen_count;

	assert_int_equal(w->fabric->ops->connect(w->client.port,
				 w->fabric->ops->lsn_address(w->server.lsn), &conn),
		0);
	*client = side_adopt(&w->client, conn);
	world_until(w, (*client)->up_count && w->server.seen_count > before);
	*server = &w->server.seen[before];
}

static inline struct sockaddr_in world_sockaddr(const struct world *w)
{
	const char *address = w->fabric->ops->lsn_address(w->server.lsn);
	const char *port = strrchr(address, ':') + 1;

	return (struct sockaddr_in){
		.sin_family = AF_INET,
		.sin_port = htons((uint16_t)strtoul(port, NULL, 10)),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
}

/* Connects a raw socket to the server; *server is the server's conn. */
static inline int world_raw(struct world *w, struct seen **server)
{
	struct sockaddr_in sa = world_sockaddr(w);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	unsigned before = w->server.seen_count;

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	world_until(w, w->server.seen_count > before);
	*server = &w->server.seen[before];
	return fd;
}

/* Memory without a domain, which the tcp fabric does not need. */
static inline struct tern_mem mem_of(void *base, size_t bytes)
{
	return (struct tern_mem){.base = base, .bytes = bytes, .fd = -1};
}

struct test_op {
	struct tern_op op;
	unsigned done_count;
	int status;
};

static inline void test_op_done(struct tern_op *op, int status)
{
	struct test_op *t = tern_container_of(op, struct test_op, op);

	t->done_count++;
	t->status = status;
}

static inline int engine_of(void **state)
{
	return *(int *)*state;
}

/* An engine in the form of cmocka's `state`. */
static inline void **engine_state(int engine)
{
	static int engines[] = {TERN_TCP_URING, TERN_TCP_EPOLL};
	static void *states[2];

	states[0] = &engines[0];
	states[1] = &engines[1];
	return &states[engine == TERN_TCP_EPOLL];
}

static inline bool engine_refused(int engine)
{
	struct tern_domain_opts opts = {.tcp_engine = (enum tern_tcp_engine)engine};
	struct tern_fabric *fabric;
	const char *why;

	if (tern_tcp_fabric_ops.open(NULL, &opts, &fabric, &why))
		return true;
	fabric->ops->close(fabric);
	return false;
}

/* Opens a world for the engine of the test. If the machine lacks the engine, skips the
 * test with the reason. */
#define world_start_or_skip(w, state)                                                    \
	do {                                                                             \
		if (engine_refused(engine_of(state))) {                                  \
			print_message("skipped: the kernel refuses io_uring\n");         \
			skip();                                                          \
		}                                                                        \
		world_start(w, (enum tern_tcp_engine)engine_of(state));                  \
	} while (0)

#define both_engines(f)                                                                  \
	{#f " (io_uring)", f, NULL, NULL, *engine_state(TERN_TCP_URING)},                \
	{                                                                                \
#f " (epoll)", f, NULL, NULL, *engine_state(TERN_TCP_EPOLL)              \
	}

#endif
