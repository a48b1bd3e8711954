/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shm fabric through its vtable: two ports in this process, a port in a forked process,
 * and peers that speak to its socket without being a fabric (raw_*), to do what a fabric
 * never would.
 */
#include "tests/cmocka.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "transport/domain.h"
#include "transport/shm.h"

#define MESSAGE_BYTES 4096u
#define ENDS_CONNS    8

/* One port and what it reported. */
struct end {
	struct tern_domain *domain;
	struct tern_port *port;
	struct tern_lsn *lsn;
	struct tern_conn *conns[ENDS_CONNS]; /* accepted or up, in that order */
	unsigned conn_count;
	unsigned closed_count;
	int closed_status; /* of the last one closed */
	uint64_t message_count;
	uint64_t bad_count; /* messages that were not the next expected */
	unsigned writable_count;
	char last[MESSAGE_BYTES]; /* message */
	size_t last_bytes;
	int message_status;    /* what the handler returns */
	bool close_on_message; /* the handler closes the conn */
	bool close_on_accept;  /* the handler closes conn and listener */
	bool echo;
};

static void on_accepted(void *arg, struct tern_lsn *lsn, struct tern_conn *conn)
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

static void on_up(void *arg, struct tern_conn *conn)
{
	struct end *end = arg;

	assert_true(end->conn_count < ENDS_CONNS);
	end->conns[end->conn_count++] = conn;
}

static int on_message(void *arg, struct tern_conn *conn, const void *data, size_t bytes)
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

static void on_writable(void *arg, struct tern_conn *conn)
{
	struct end *end = arg;

	(void)conn;
	end->writable_count++;
}

static void on_closed(void *arg, struct tern_conn *conn, int status)
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

static void quiet_log(struct tern_env *env, enum tern_log_level level, const char *line)
{
	(void)env;
	(void)level;
	(void)line;
}

/* The system's, without the warnings that hostile peers are meant to cause. */
static struct tern_env *quiet_env(void)
{
	static struct tern_env_ops ops;
	static struct tern_env env;

	ops = *tern_env_system()->ops;
	ops.log = quiet_log;
	env = *tern_env_system();
	env.ops = &ops;
	return &env;
}

static void end_init_sized(struct end *end, bool no_cma, uint32_t message_bytes)
{
	const struct tern_domain_opts opts = { .no_cma = no_cma };
	struct tern_port_opts port_opts = {
		.env = quiet_env(),
		.handler = &handler,
		.arg = end,
		.message_bytes = message_bytes,
	};
	struct tern_fabric *fabric;

	*end = (struct end){ .closed_status = 1 };
	assert_int_equal(tern_domain_new(&opts, &end->domain), 0);
	fabric = tern_domain_fabric(end->domain, "shm", 3);
	assert_non_null(fabric);
	assert_int_equal(fabric->ops->port_new(fabric, &port_opts, &end->port), 0);
}

static void end_init(struct end *end, bool no_cma)
{
	end_init_sized(end, no_cma, MESSAGE_BYTES);
}

static int end_poll(struct end *end)
{
	return end->port->ops->poll(end->port, 64);
}

static bool end_has_conns(const struct end *end)
{
	for (unsigned i = 0; i < end->conn_count; i++)
		if (end->conns[i])
			return true;
	return false;
}

static void end_fini(struct end *end)
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

static uint64_t now_ms(void)
{
	return tern_now_ns(tern_env_system()) / 1000000;
}

static void end_poll_other(struct end *end)
{
	if (end)
		end_poll(end);
}

/* Polls until `condition`, and fails the test if that takes absurdly long. */
#define UNTIL(a, b, condition)                                                             \
	do {                                                                               \
		uint64_t limit_ms_ = now_ms() + 20000;                                     \
		while (!(condition)) {                                                     \
			end_poll(a);                                                       \
			end_poll_other(b);                                                 \
			if (now_ms() > limit_ms_)                                          \
				fail_msg("never: %s", #condition);                         \
		}                                                                          \
	} while (0)
#define NONE ((struct end *)NULL)

static void end_listen(struct end *end)
{
	assert_int_equal(end->port->ops->listen(end->port, "*", &end->lsn), 0);
}

static struct tern_conn *end_connect(struct end *end, const char *address)
{
	struct tern_conn *conn;

	assert_int_equal(end->port->ops->connect(end->port, address, &conn), 0);
	return conn;
}

/* Two ports in this process, connected. */
struct duo {
	struct end a, b; /* a connected to b */
};

static void duo_init(struct duo *duo, bool no_cma)
{
	end_init(&duo->a, no_cma);
	end_init(&duo->b, no_cma);
	end_listen(&duo->b);
	end_connect(&duo->a, duo->b.port->ops->lsn_address(duo->b.lsn));
	UNTIL(&duo->a, &duo->b, duo->a.conn_count && duo->b.conn_count);
	duo->a.conns[0]->owner = &duo->a;
}

static void duo_fini(struct duo *duo)
{
	end_fini(&duo->a);
	end_fini(&duo->b);
}

static int send_number(struct tern_conn *conn, uint64_t number, size_t payload_bytes)
{
	static const char payload[MESSAGE_BYTES];

	return conn->port->ops->send(conn, &number, sizeof(number), payload, payload_bytes);
}

static void test_messages_arrive_in_order_both_ways(void **state)
{
	struct duo duo;
	uint64_t a_sent = 0, b_sent = 0;

	(void)state;
	duo_init(&duo, false);
	while (duo.a.message_count < 5000 || duo.b.message_count < 5000) {
		while (a_sent < 5000 && send_number(duo.a.conns[0], a_sent, a_sent % 4000) == 0)
			a_sent++;
		while (b_sent < 5000 && send_number(duo.b.conns[0], b_sent, b_sent % 100) == 0)
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
			TERN_CAP_GET | TERN_CAP_PEEK | TERN_CAP_BOUND);
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
	/* The sleeper is woken for the room. */
	assert_int_equal(poll(&(struct pollfd){ .fd = duo.a.port->ops->fd(duo.a.port),
					 .events = POLLIN },
					 1, 20000),
			1);
	UNTIL(&duo.a, NONE, duo.a.writable_count);
	assert_int_equal(duo.a.writable_count, 1);
	assert_int_equal(send_number(duo.a.conns[0], sent, 1000), 0);
	duo_fini(&duo);
}

/* A get or peek and how it ended. */
struct work {
	struct tern_op op;
	int status; /* 1: it has not */
	struct tern_conn *close; /* by done() */
};

static void work_done(struct tern_op *op, int status)
{
	struct work *work = tern_container_of(op, struct work, op);

	assert_int_equal(work->status, 1);
	work->status = status;
	if (work->close)
		work->close->port->ops->conn_close(work->close, false);
}

static struct work new_work(void)
{
	return (struct work){ .op = { .done = work_done }, .status = 1 };
}

/* Memory of an end: a slab or its own. */
static struct tern_mem *new_mem(struct end *end, bool slab, uint64_t bytes)
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

static void put_mem(struct tern_mem *mem, bool slab)
{
	void *base = slab ? NULL : mem->base;

	tern_mem_put(mem);
	free(base);
}

static void fill(struct tern_mem *mem, uint64_t seed)
{
	for (uint64_t i = 0; i + 8 <= mem->bytes; i += 8) {
		uint64_t word = (i + seed) * 0x9e3779b97f4a7c15ull;

		memcpy(mem->base + i, &word, 8);
	}
}

static struct tern_region expose(struct tern_conn *conn, struct tern_mem *mem,
		uint64_t offset, uint64_t bytes)
{
	struct tern_region region;

	assert_int_equal(conn->port->ops->expose(conn, mem, offset, bytes, TERN_ACCESS_READ,
					 &region),
			0);
	return region;
}

static int start_get(struct tern_conn *conn, struct work *work, struct tern_mem *mem,
		uint64_t bytes, const struct tern_region *region, uint64_t remote_offset)
{
	return conn->port->ops->get(conn, &work->op, mem, 0, bytes, region, remote_offset);
}

static void check_gets(bool slab, bool no_cma)
{
	const uint64_t sizes[] = { 0, 1, 4095, 262144, 262145, 3000001 };
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
		assert_int_equal(start_get(duo.a.conns[0], &work, target, sizes[i], &region, 77),
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
	assert_true(shm_conn_of(duo.a.conns[0])->cma); /* else the next line tests chunks */
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

/* Many at once, both ways, on every path. */
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
			assert_int_equal(end->port->ops->get(end->conns[0], &works[side][i].op,
							 targets[side], at, part,
							 &regions[!side], at),
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
	assert_int_equal(ops->peek(duo.a.conns[0], &work.op, &region, 8, 1000, &seen), -EAGAIN);
	UNTIL(&duo.a, &duo.b, work.status != 1);
	assert_int_equal(work.status, 0);
	assert_int_equal(ops->peek(duo.a.conns[0], &work.op, &region, 8, 1000, &seen), 0);
	assert_memory_equal(seen, slab->base + 72, 1000);
	slab->base[72] ^= 1;
	assert_memory_equal(seen, slab->base + 72, 1000);
	region = expose(duo.b.conns[0], user, 0, 65536);
	assert_int_equal(ops->peek(duo.a.conns[0], &other.op, &region, 0, 8, &seen), -ENOTSUP);
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
		duo.b.conns[0]->owner = &duo.a; /* now it is another's region */
	assert_int_equal(start_get(duo.a.conns[0], &work, target, 8192, &region, 0), 0);
	UNTIL(&duo.a, &duo.b, work.status != 1);
	assert_int_equal(work.status, -EACCES);
	assert_int_equal(target->base[0], 0);
	/* The conn lives, and what is exposed again can be had. */
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
	/* Withdrawing needs no conn. */
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
	assert_int_equal(duo.a.port->ops->expose(duo.a.conns[0], mem, 0, 0, TERN_ACCESS_READ,
					 &extra),
			-EAGAIN);
	for (unsigned i = 0; i < SHM_EXPOSURE_COUNT; i += 2)
		assert_int_equal(duo.a.port->ops->withdraw(duo.a.port, NULL, &regions[i]), 0);
	for (unsigned i = 0; i < SHM_EXPOSURE_COUNT; i += 2)
		expose(duo.a.conns[0], mem, 0, 0);
	assert_int_equal(duo.a.port->ops->expose(duo.a.conns[0], mem, 0, 0, TERN_ACCESS_READ,
					 &extra),
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
			wrong.start += 1; /* ends one byte behind the slab */
		else if (kind == 4)
			wrong.start += 1; /* one byte behind the exposure */
		else
			wrong.start -= 1;
		memcpy(&region, &wrong, sizeof(wrong));
		status = start_get(duo.a.conns[0], &work, target, 65536, &region, 0);
		assert_int_equal(status, kind < 3 ? -ENOTCONN : 0);
		UNTIL(&duo.a, &duo.b, duo.a.closed_count && duo.b.closed_count);
		/* The memory's owner finds out when it is asked for chunks, else the reader. */
		assert_int_equal(kind < 4 ? duo.a.closed_status : duo.b.closed_status, -EPROTO);
		assert_int_equal(work.status == 1, kind < 3);
		assert_non_null(duo.a.conns[1]);
		assert_int_equal(start_get(duo.a.conns[1], &fine, target, 65536, &good, 0), 0);
		UNTIL(&duo.a, &duo.b, fine.status != 1);
		assert_int_equal(fine.status, 0);
		assert_memory_equal(target->base, source->base, 65536);
		put_mem(source, kind < 4);
		put_mem(target, false);
		duo_fini(&duo);
	}
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
		assert_int_equal(start_get(duo.a.conns[0], &first, target, 8, &region, 0), 0);
		UNTIL(&duo.a, &duo.b, first.status == 0);
		duo.b.port->ops->conn_close(duo.b.conns[0], false);
		UNTIL(&duo.b, NONE, duo.b.closed_count);
		/* a has not heard of it yet; b's memory may hold anything from now on. */
		assert_int_equal(start_get(duo.a.conns[0], &work, target, 65536, &region, 0), 0);
		UNTIL(&duo.a, NONE, duo.a.closed_count);
		assert_int_equal(work.status, -ECONNRESET);
		assert_int_equal(duo.a.closed_status, -ECONNRESET);
		put_mem(source, slab);
		put_mem(target, false);
		duo_fini(&duo);
	}
}

static void test_handlers_may_close(void **state)
{
	struct duo duo;
	struct end end;
	struct tern_mem *mem;
	struct tern_region region;
	struct work works[3] = { new_work(), new_work(), new_work() };

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
		assert_int_equal(start_get(duo.b.conns[0], &works[i], mem, 8, &region, 64), 0);
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
	const char *const bad[] = { "", "a b", "a/b", "a\nb", "\xc3\xa9",
		("0123456789012345678901234567890123456789012345678901234567890123456789"
		 "01234567890") };
	struct end end;
	struct tern_lsn *lsn, *again;
	struct tern_conn *conn;
	char name[64];

	(void)state;
	end_init(&end, false);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(bad); i++) {
		assert_int_equal(end.port->ops->listen(end.port, bad[i], &lsn), -EINVAL);
		assert_int_equal(end.port->ops->connect(end.port, bad[i], &conn), -EINVAL);
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
	/* The one that was accepted stays. */
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

/* Until something happens, by the descriptor alone. */
static void end_sleep(struct end *end)
{
	struct pollfd entry = { .fd = end->port->ops->fd(end->port), .events = POLLIN };

	if (end->port->ops->arm(end->port) == 0 && poll(&entry, 1, 20000) != 1) {
		fprintf(stderr, "a wake was lost\n");
		abort();
	}
	end_poll(end);
}

/* Runs `run` in a process of its own. */
static pid_t in_child(void (*run)(const char *address), const char *address)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid > 0)
		return pid;
	run(address);
	_exit(0);
}

static void child_must_end_well(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
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

/* Exposes one memory, tells its region, and sleeps until the conn ends. */
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
		/* The child dies; what is mapped of it stays readable until `closed`. */
		assert_int_equal(end.port->ops->peek(end.conns[0], &work.op, &region, 0,
						 3u << 20, &seen),
				0);
		assert_int_equal(kill(pid, SIGKILL), 0);
		assert_int_equal(waitpid(pid, NULL, 0), pid);
		assert_memory_equal(seen, want->base, 3u << 20);
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
	/* What it had sent came first. */
	assert_int_equal(end.message_count, 50);
	assert_int_equal(end.bad_count, 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	end_fini(&end);
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

/* From here on: peers that are no fabric. */

static struct sockaddr_un raw_address(const char *name, socklen_t *bytes)
{
	struct sockaddr_un address;
	int length = shm_address(name, &address);

	assert_true(length > 0);
	*bytes = (socklen_t)length;
	return address;
}

static int raw_connect(struct end *end)
{
	socklen_t bytes;
	struct sockaddr_un address =
			raw_address(end->port->ops->lsn_address(end->lsn), &bytes);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, bytes), 0);
	return fd;
}

static struct shm_note raw_note(enum shm_note_type type)
{
	return (struct shm_note){ .magic = SHM_NOTE_MAGIC, .version = SHM_NOTE_VERSION,
		.type = (uint16_t)type, .message_bytes = MESSAGE_BYTES };
}

/* A peer that shook hands, and can write what it likes into its area. */
struct raw {
	int fd;
	struct shm_area *own;
	char *ring;
};

static int raw_receive(struct end *end, int socket, struct shm_note *note)
{
	int fd, status;

	for (;;) {
		status = shm_note_receive(socket, note, &fd);
		if (status == 1 && fd >= 0)
			close(fd);
		if (status != -EAGAIN && !(status == 1 && note->type == SHM_WAKE))
			return status;
		end_poll(end);
	}
}

static void raw_init(struct raw *raw, struct end *end)
{
	const struct shm_note hello = raw_note(SHM_HELLO);
	struct shm_note welcome;
	unsigned before = end->conn_count;
	void *base;
	int fd;

	raw->fd = raw_connect(end);
	assert_int_equal(shm_memory_new(shm_area_bytes(MESSAGE_BYTES), &fd, &base), 0);
	raw->own = base;
	raw->ring = (char *)base + SHM_RING_OFFSET;
	assert_int_equal(shm_note_send(raw->fd, &hello, fd), 0);
	close(fd);
	assert_int_equal(raw_receive(end, raw->fd, &welcome), 1);
	assert_int_equal(welcome.type, SHM_WELCOME);
	assert_int_equal(end->conn_count, before + 1);
}

static void raw_fini(struct raw *raw)
{
	munmap(raw->own, shm_area_bytes(MESSAGE_BYTES));
	close(raw->fd);
}

/* The port still does its work. */
static void check_serves(struct end *end)
{
	struct end peer;

	end_init(&peer, false);
	end->conn_count = 0;
	end->message_count = end->bad_count = 0;
	end_connect(&peer, end->port->ops->lsn_address(end->lsn));
	UNTIL(&peer, end, peer.conn_count && end->conn_count);
	assert_int_equal(send_number(peer.conns[0], 0, 8), 0);
	UNTIL(&peer, end, end->message_count);
	assert_int_equal(end->bad_count, 0);
	end_fini(&peer);
	UNTIL(end, NONE, !end_has_conns(end));
}

static int raw_memory(off_t bytes, int seals)
{
	int fd = memfd_create("raw", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, bytes), 0);
	if (seals)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

/* What a listener says to a hello with this descriptor. */
static int refusal_of(struct end *end, const struct shm_note *hello, int fd)
{
	struct shm_note note;
	int socket = raw_connect(end), status;

	assert_int_equal(shm_note_send(socket, hello, fd), 0);
	if (fd >= 0)
		close(fd);
	status = raw_receive(end, socket, &note);
	close(socket);
	assert_int_equal(status, 1);
	assert_int_equal(note.type, SHM_REFUSE);
	return note.status;
}

static void test_areas_that_could_shrink_are_refused(void **state)
{
	const off_t bytes = (off_t)shm_area_bytes(MESSAGE_BYTES);
	const struct shm_note hello = raw_note(SHM_HELLO);
	struct end end;
	int pipes[2];

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	assert_int_equal(refusal_of(&end, &hello, raw_memory(bytes, 0)), -EPROTO);
	assert_int_equal(refusal_of(&end, &hello, raw_memory(bytes, F_SEAL_GROW)), -EPROTO);
	assert_int_equal(refusal_of(&end, &hello, raw_memory(bytes - 1, F_SEAL_SHRINK)),
			-EPROTO);
	assert_int_equal(refusal_of(&end, &hello, raw_memory(0, F_SEAL_SHRINK)), -EPROTO);
	assert_int_equal(refusal_of(&end, &hello, -1), -EPROTO);
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(refusal_of(&end, &hello, pipes[0]), -EPROTO);
	close(pipes[1]);
	assert_int_equal(end.conn_count, 0);
	check_serves(&end);
	end_fini(&end);
}

static void test_hello_of_another_version_is_refused_with_the_reason(void **state)
{
	struct shm_note hello = raw_note(SHM_HELLO);
	struct end end;

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	hello.version++;
	assert_int_equal(refusal_of(&end, &hello, -1), -EPROTONOSUPPORT);
	hello = raw_note(SHM_WELCOME);
	assert_int_equal(refusal_of(&end, &hello, -1), -EPROTO);
	hello = raw_note(SHM_HELLO);
	hello.message_bytes = UINT32_MAX;
	assert_int_equal(refusal_of(&end, &hello, -1), -EPROTO);
	check_serves(&end);
	end_fini(&end);
}

static void test_garbage_on_the_socket_does_no_harm(void **state)
{
	struct tern_rng { uint64_t s; } rng = { 99 };
	struct end end;
	int sockets[100];

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(sockets); i++) {
		unsigned char data[96];
		size_t bytes = 1 + i % sizeof(data);

		for (size_t j = 0; j < sizeof(data); j++) {
			rng.s = rng.s * 6364136223846793005ull + 1442695040888963407ull;
			data[j] = (unsigned char)(rng.s >> 56);
		}
		sockets[i] = raw_connect(&end);
		/* Every third of the right size and magic, so that what follows is tested. */
		if (i % 3 == 0) {
			const uint32_t magic = SHM_NOTE_MAGIC;

			memcpy(data, &magic, 4);
			bytes = sizeof(struct shm_note);
		}
		if (i % 10 != 9) /* some say nothing at all */
			assert_int_equal(send(sockets[i], data, bytes, MSG_NOSIGNAL), bytes);
		end_poll(&end);
	}
	check_serves(&end);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(sockets); i++)
		close(sockets[i]);
	check_serves(&end);
	assert_int_equal(shm_port_of(end.port)->conn_count, 0);
	end_fini(&end);
}

static void test_impossible_words_in_an_area_cut_the_conn(void **state)
{
	struct end end;

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	for (int kind = 0; kind < 5; kind++) {
		const uint32_t length = MESSAGE_BYTES + 1;
		struct raw raw;

		end.conn_count = end.closed_count = 0;
		raw_init(&raw, &end);
		if (kind == 0) {
			atomic_store(&raw.own->tail, 1u << 30);
		} else if (kind == 1) {
			memcpy(raw.ring, &length, 4);
			atomic_store(&raw.own->tail, 8192);
		} else if (kind == 2) {
			atomic_store(&raw.own->asked, 5);
		} else if (kind == 3) {
			atomic_store(&raw.own->asks[0].bytes, UINT64_MAX);
			atomic_store(&raw.own->asked, 1);
		} else {
			atomic_store(&raw.own->head, 8);
			while (send_number(end.conns[0], 0, 1000) == 0)
				;
		}
		UNTIL(&end, NONE, end.closed_count);
		assert_int_equal(end.closed_status, -EPROTO);
		raw_fini(&raw);
	}
	assert_int_equal(end.message_count, 0);
	check_serves(&end);
	end_fini(&end);
}

static void test_unexpected_packets_cut_the_conn(void **state)
{
	struct end end;

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	for (int kind = 0; kind < 4; kind++) {
		static const int types[] = { SHM_HELLO, SHM_SLAB, SHM_REFUSE, 99 };
		struct shm_note note = raw_note((enum shm_note_type)types[kind]);
		struct raw raw;

		end.conn_count = end.closed_count = 0;
		raw_init(&raw, &end);
		assert_int_equal(shm_note_send(raw.fd, &note, raw.fd), 0);
		UNTIL(&end, NONE, end.closed_count);
		assert_int_equal(end.closed_status, -EPROTO);
		raw_fini(&raw);
	}
	check_serves(&end);
	end_fini(&end);
}

static void test_slabs_that_could_shrink_or_are_too_short_cut_the_conn(void **state)
{
	struct end end;
	struct tern_mem *target;

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	target = new_mem(&end, false, 8192);
	for (int kind = 0; kind < 3; kind++) {
		const struct shm_region forged = { .kind = SHM_REGION_SLAB, .mem_id = 5,
			.bytes = 8192 };
		struct shm_note note;
		struct tern_region region;
		struct work work = new_work();
		struct raw raw;
		int fd = raw_memory(kind == 1 ? 4096 : 8192, kind ? F_SEAL_SHRINK : 0);

		end.conn_count = end.closed_count = 0;
		raw_init(&raw, &end);
		memcpy(&region, &forged, sizeof(region));
		assert_int_equal(start_get(end.conns[0], &work, target, 8192, &region, 0), 0);
		assert_int_equal(raw_receive(&end, raw.fd, &note), 1);
		assert_int_equal(note.type, SHM_SLAB_ASK);
		assert_int_equal(note.mem_id, 5);
		note = raw_note(SHM_SLAB);
		note.mem_id = 5;
		assert_int_equal(shm_note_send(raw.fd, &note, fd), 0);
		UNTIL(&end, NONE, work.status != 1);
		assert_int_equal(work.status, kind == 2 ? 0 : -EPROTO);
		if (kind == 2)
			end.port->ops->conn_close(end.conns[0], false);
		UNTIL(&end, NONE, end.closed_count);
		assert_int_equal(end.closed_status, kind == 2 ? 0 : -EPROTO);
		close(fd);
		raw_fini(&raw);
	}
	put_mem(target, false);
	check_serves(&end);
	end_fini(&end);
}

static void test_peer_cannot_map_what_we_pass_writable(void **state)
{
	const struct shm_note hello = raw_note(SHM_HELLO);
	struct shm_note welcome;
	struct end end;
	void *base;
	int socket, fd, passed = -1, status;

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	socket = raw_connect(&end);
	assert_int_equal(shm_memory_new(shm_area_bytes(MESSAGE_BYTES), &fd, &base), 0);
	assert_int_equal(shm_note_send(socket, &hello, fd), 0);
	while ((status = shm_note_receive(socket, &welcome, &passed)) == -EAGAIN)
		end_poll(&end);
	assert_int_equal(status, 1);
	assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, passed, 0),
			MAP_FAILED);
	assert_int_equal(ftruncate(passed, 0), -1);
	munmap(base, shm_area_bytes(MESSAGE_BYTES));
	close(fd);
	close(passed);
	close(socket);
	end_fini(&end);
}

static void test_conn_that_ends_without_a_word_is_reset_if_its_process_lives(void **state)
{
	struct end end;
	struct raw raw;

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	raw_init(&raw, &end);
	raw_fini(&raw);
	while (!end.closed_count)
		end_sleep(&end);
	assert_int_equal(end.closed_status, -ECONNRESET);
	end_fini(&end);
}

static void test_connect_waits_for_a_place_in_the_listeners_queue(void **state)
{
	struct sockaddr_un address;
	struct shm_note hello;
	socklen_t bytes;
	struct end end;
	char name[64];
	int listener, fillers[16], count = 0, accepted = -1, fd, status;

	(void)state;
	end_init(&end, false);
	snprintf(name, sizeof(name), "full-%d", (int)getpid());
	address = raw_address(name, &bytes);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, bytes), 0);
	assert_int_equal(listen(listener, 1), 0);
	for (;;) {
		assert_true(count < 16);
		fillers[count] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
		if (connect(fillers[count++], (struct sockaddr *)&address, bytes))
			break;
	}
	end_connect(&end, name);
	for (int i = 0; i < 5; i++)
		end_poll(&end);
	assert_int_equal(end.closed_count, 0);
	for (int i = 0; i + 1 < count; i++)
		close(accept(listener, NULL, NULL));
	while (accepted < 0) {
		end_sleep(&end);
		accepted = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
	}
	while ((status = shm_note_receive(accepted, &hello, &fd)) == -EAGAIN)
		end_poll(&end);
	assert_int_equal(status, 1);
	assert_int_equal(hello.type, SHM_HELLO);
	close(fd);
	close(accepted);
	UNTIL(&end, NONE, end.closed_count);
	assert_int_equal(end.closed_status, -ECONNRESET);
	for (int i = 0; i < count; i++)
		close(fillers[i]);
	close(listener);
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
	while (!tern_list_first(&shm_port_of(end.port)->lsns, struct shm_lsn, link)->resume_ns)
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
		cmocka_unit_test(test_get_from_a_slab),
		cmocka_unit_test(test_get_of_user_memory_by_the_kernel),
		cmocka_unit_test(test_get_of_user_memory_by_chunks),
		cmocka_unit_test(test_many_gets_at_once_both_ways),
		cmocka_unit_test(test_large_get_does_not_hold_up_what_is_small),
		cmocka_unit_test(test_peek_reads_a_slab_in_place),
		cmocka_unit_test(test_region_that_is_not_exposed_is_refused_and_the_conn_lives),
		cmocka_unit_test(test_later_conn_of_the_same_owner_reaches_the_region),
		cmocka_unit_test(test_exposures_run_out_and_come_back),
		cmocka_unit_test(test_wrong_region_cuts_its_own_conn_only),
		cmocka_unit_test(test_close_ends_ops_and_delivers_what_was_sent),
		cmocka_unit_test(test_copy_from_a_peer_that_has_closed_is_not_called_good),
		cmocka_unit_test(test_handlers_may_close),
		cmocka_unit_test(test_addresses_are_checked),
		cmocka_unit_test(test_listener_that_closes_resets_who_was_not_accepted),
		cmocka_unit_test(test_ends_with_other_message_sizes_do_not_meet),
		cmocka_unit_test(test_caller_gives_up_on_a_conn_that_is_not_up),
		cmocka_unit_test(test_sleepers_in_two_processes_never_miss_a_wake),
		cmocka_unit_test(test_sender_that_sleeps_for_room_is_woken),
		cmocka_unit_test(test_get_between_processes),
		cmocka_unit_test(test_killed_peer_is_known_to_be_gone),
		cmocka_unit_test(test_killed_peer_ends_gets_in_flight),
		cmocka_unit_test(test_areas_that_could_shrink_are_refused),
		cmocka_unit_test(test_hello_of_another_version_is_refused_with_the_reason),
		cmocka_unit_test(test_garbage_on_the_socket_does_no_harm),
		cmocka_unit_test(test_impossible_words_in_an_area_cut_the_conn),
		cmocka_unit_test(test_unexpected_packets_cut_the_conn),
		cmocka_unit_test(test_slabs_that_could_shrink_or_are_too_short_cut_the_conn),
		cmocka_unit_test(test_peer_cannot_map_what_we_pass_writable),
		cmocka_unit_test(test_conn_that_ends_without_a_word_is_reset_if_its_process_lives),
		cmocka_unit_test(test_connect_waits_for_a_place_in_the_listeners_queue),
		cmocka_unit_test(test_listener_without_descriptors_goes_on_when_there_are_some),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
