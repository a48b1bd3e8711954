/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code that the tests of the shm fabric share: ports that record their events, memory for
 * gets, and child processes.
 */
#ifndef TERN_TESTS_TRANSPORT_SHM_SHM_END_H
#define TERN_TESTS_TRANSPORT_SHM_SHM_END_H

#include "tests/harness/cmocka.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "transport/domain.h"
#include "transport/shm/shm.h"

#define MESSAGE_BYTES 4096u
#define ENDS_CONNS    8

/* Functions of a simulated CUDA driver, used by the domains of the ends; NULL: no GPU. */
static const void *cuda_api;
static bool cuda_ipc_self;

/* One port, and the events that it has reported. */
struct end {
	struct tern_domain *domain;
	struct tern_port *port;
	struct tern_lsn *lsn;
	/* Conns, in the order in which they were accepted or came up. */
	struct tern_conn *conns[ENDS_CONNS];
	unsigned conn_count;
	unsigned closed_count;
	int closed_status; /* status of the conn that closed last */
	uint64_t message_count;
	uint64_t bad_count; /* messages whose number is not the expected next one */
	unsigned writable_count;
	char last[MESSAGE_BYTES]; /* contents of the last message */
	size_t last_bytes;
	int message_status;    /* what the message handler returns */
	bool close_on_message; /* the message handler closes the conn */
	bool close_on_accept;  /* the accept handler closes conn and listener */
	bool echo;
};

static inline void on_accepted(void *arg, struct tern_lsn *lsn, struct tern_conn *conn)
{
	struct end *end = arg;

	assert_ptr_equal(lsn, end->lsn);
	assert_true(end->conn_count < ENDS_CONNS);
	end->conns[end->conn_count++] = conn;
	conn->owner = end;
	if (end->close_on_accept) {
		end->port->ops->lsn_close(lsn);
		end->lsn = NULL;
		end->port->ops->conn_close(conn, false);
	}
}

static inline void on_up(void *arg, struct tern_conn *conn)
{
	struct end *end = arg;

	assert_true(end->conn_count < ENDS_CONNS);
	end->conns[end->conn_count++] = conn;
}

static inline int on_message(
	void *arg, struct tern_conn *conn, const void *data, size_t bytes)
{
	struct end *end = arg;
	uint64_t number;

	assert_int_equal((uintptr_t)data % 64, 0);
	assert_true(bytes <= MESSAGE_BYTES);
	memcpy(end->last, data, bytes);
	end->last_bytes = bytes;
	if (bytes >= sizeof(number)) {
		memcpy(&number, data, sizeof(number));
		end->bad_count += number != end->message_count;
	}
	end->message_count++;
	if (end->close_on_message)
		end->port->ops->conn_close(conn, false);
	if (end->echo)
		assert_int_equal(end->port->ops->send(conn, data, bytes, NULL, 0), 0);
	return end->message_status;
}

static inline void on_writable(void *arg, struct tern_conn *conn)
{
	struct end *end = arg;

	(void)conn;
	end->writable_count++;
}

static inline void on_closed(void *arg, struct tern_conn *conn, int status)
{
	struct end *end = arg;

	end->closed_count++;
	end->closed_status = status;
	for (unsigned i = 0; i < end->conn_count; i++)
		if (end->conns[i] == conn)
			end->conns[i] = NULL;
}

static const struct tern_port_handler handler = {
	.accepted = on_accepted,
	.up = on_up,
	.message = on_message,
	.writable = on_writable,
	.closed = on_closed,
};

static inline void quiet_log(
	struct tern_env *env, enum tern_log_level level, const char *line)
{
	(void)env;
	(void)level;
	(void)line;
}

/* The environment of the system, but without a log: misbehaving peers would cause many
 * warnings. */
static inline struct tern_env *quiet_env(void)
{
	static struct tern_env_ops ops;
	static struct tern_env env;

	ops = *tern_env_system()->ops;
	ops.log = quiet_log;
	env = *tern_env_system();
	env.ops = &ops;
	return &env;
}

static inline void end_init_sized(struct end *end, bool no_cma, uint32_t message_bytes)
{
	const struct tern_domain_opts opts = {.no_cma = no_cma};
	const struct tern_domain_hooks hooks = {
		.cuda_api = cuda_api, .cuda_ipc_self = cuda_ipc_self};
	struct tern_port_opts port_opts = {
		.env = quiet_env(),
		.handler = &handler,
		.arg = end,
		.message_bytes = message_bytes,
	};
	struct tern_fabric *fabric;

	*end = (struct end){.closed_status = 1};
	assert_int_equal(tern_domain_new_hooked(&opts, &hooks, &end->domain), 0);
	fabric = tern_domain_fabric(end->domain, "shm", 3);
	assert_non_null(fabric);
	assert_int_equal(fabric->ops->port_new(fabric, &port_opts, &end->port), 0);
}

static inline void end_init(struct end *end, bool no_cma)
{
	end_init_sized(end, no_cma, MESSAGE_BYTES);
}

static inline int end_poll(struct end *end)
{
	return end->port->ops->poll(end->port, 64);
}

static inline bool end_has_conns(const struct end *end)
{
	for (unsigned i = 0; i < end->conn_count; i++)
		if (end->conns[i])
			return true;
	return false;
}

static inline void end_fini(struct end *end)
{
	for (unsigned i = 0; i < end->conn_count; i++)
		if (end->conns[i])
			end->port->ops->conn_close(end->conns[i], false);
	while (end_has_conns(end))
		end_poll(end);
	if (end->lsn)
		end->port->ops->lsn_close(end->lsn);
	end_poll(end);
	end->port->ops->port_free(end->port);
	tern_domain_free(end->domain);
}

static inline uint64_t now_ms(void)
{
	return tern_now_ns(tern_env_system()) / 1000000;
}

static inline void end_poll_other(struct end *end)
{
	if (end)
		end_poll(end);
}

/* Polls both ends (`b` may be NONE) until `condition` holds; fails the test if that takes
 * far too long. */
#define UNTIL(a, b, condition)                                                           \
	do {                                                                             \
		uint64_t limit_ms_ = now_ms() + 20000;                                   \
		while (!(condition)) {                                                   \
			end_poll(a);                                                     \
			end_poll_other(b);                                               \
			if (now_ms() > limit_ms_)                                        \
				fail_msg("never: %s", #condition);                       \
		}                                                                        \
	} while (0)
#define NONE ((struct end *)NULL)

static inline void end_listen(struct end *end)
{
	assert_int_equal(end->port->ops->listen(end->port, "*", &end->lsn), 0);
}

static inline struct tern_conn *end_connect(struct end *end, const char *address)
{
	struct tern_conn *conn;

	assert_int_equal(end->port->ops->connect(end->port, address, &conn), 0);
	return conn;
}

/* Two connected ports of this process. */
struct duo {
	struct end a, b; /* `a` has connected to `b` */
};

static inline void duo_init(struct duo *duo, bool no_cma)
{
	end_init(&duo->a, no_cma);
	end_init(&duo->b, no_cma);
	end_listen(&duo->b);
	end_connect(&duo->a, duo->b.port->ops->lsn_address(duo->b.lsn));
	UNTIL(&duo->a, &duo->b, duo->a.conn_count && duo->b.conn_count);
	duo->a.conns[0]->owner = &duo->a;
}

static inline void duo_fini(struct duo *duo)
{
	end_fini(&duo->a);
	end_fini(&duo->b);
}

static inline int send_number(
	struct tern_conn *conn, uint64_t number, size_t payload_bytes)
{
	static const char payload[MESSAGE_BYTES];

	return conn->port->ops->send(
		conn, &number, sizeof(number), payload, payload_bytes);
}

/* A get or peek, and how it ended. */
struct work {
	struct tern_op op;
	int status;              /* result; 1: not ended yet */
	struct tern_conn *close; /* conn that done() closes; or NULL */
};

static inline void work_done(struct tern_op *op, int status)
{
	struct work *work = tern_container_of(op, struct work, op);

	assert_int_equal(work->status, 1);
	work->status = status;
	if (work->close)
		work->close->port->ops->conn_close(work->close, false);
}

static inline struct work new_work(void)
{
	return (struct work){.op = {.done = work_done}, .status = 1};
}

/* Memory of an end: a slab (shared memory) or wrapped user memory. */
static inline struct tern_mem *new_mem(struct end *end, bool slab, uint64_t bytes)
{
	struct tern_mem *mem;
	void *base;

	if (slab) {
		assert_int_equal(tern_mem_new_slab(end->domain, bytes, false, &mem), 0);
	} else {
		base = malloc(bytes);
		assert_non_null(base);
		assert_int_equal(tern_mem_wrap(end->domain, base, bytes, &mem), 0);
	}
	return mem;
}

static inline void put_mem(struct tern_mem *mem, bool slab)
{
	void *base = slab ? NULL : mem->base;

	tern_mem_put(mem);
	free(base);
}

static inline void fill(struct tern_mem *mem, uint64_t seed)
{
	for (uint64_t i = 0; i + 8 <= mem->bytes; i += 8) {
		uint64_t word = (i + seed) * 0x9e3779b97f4a7c15ull;

		memcpy(mem->base + i, &word, 8);
	}
}

static inline struct tern_region expose(
	struct tern_conn *conn, struct tern_mem *mem, uint64_t offset, uint64_t bytes)
{
	struct tern_region region;

	assert_int_equal(conn->port->ops->expose(
				 conn, mem, offset, bytes, TERN_ACCESS_READ, &region),
		0);
	return region;
}

static inline int start_get(struct tern_conn *conn, struct work *work,
	struct tern_mem *mem, uint64_t bytes, const struct tern_region *region,
	uint64_t remote_offset)
{
	return conn->port->ops->get(
		conn, &work->op, mem, 0, bytes, region, remote_offset);
}

/* Sleeps in poll(2) until there is an event, and polls the port. Aborts the process if no
 * event comes within 20 s. */
static inline void end_sleep(struct end *end)
{
	struct pollfd entry = {.fd = end->port->ops->fd(end->port), .events = POLLIN};

	if (end->port->ops->arm(end->port) == 0 && poll(&entry, 1, 20000) != 1) {
		fprintf(stderr, "a wake-up was lost\n");
		abort();
	}
	end_poll(end);
}

/* Forks a child process that calls `run`. */
static inline pid_t in_child(void (*run)(const char *address), const char *address)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid > 0)
		return pid;
	run(address);
	_exit(0);
}

static inline void child_must_end_well(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#endif
