/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests with two processes, one of which is killed. The child process opens the fabric.
 * It listens, and lets its peer access memory; or it connects, and, if the fabric has puts,
 * puts into the memory of its peer, the parent. It is killed at some moment. In the parent every operation must
 * end, `closed` must be called once, and the parent's memory must no longer be accessed.
 *
 * The child inherits no state of the fabric, since the program is started anew.
 */
#include "tests/harness/bed.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "base/util.h"
#include "transport/domain.h"

#define CHILD_BYTES (8u << 20)
#define CHILD_SEED  3u

/* ---- the child ---- */

struct child {
	struct tern_fabric *fabric;
	struct tern_port *port;
	struct tern_conn *conn;
	struct tern_buf buf;
	/* The parent's region; zeros: the parent has sent none yet. */
	struct tern_region region;
	struct tern_op op;
	bool busy;
};

static void require(bool ok)
{
	if (!ok)
		_exit(3);
}

static void child_accepted(void *arg, struct tern_lsn *lsn, struct tern_conn *conn)
{
	struct child *child = arg;
	struct tern_region region;

	(void)lsn;
	conn->owner = conn;
	require(child->fabric->ops->expose(conn, child->buf.mem, child->buf.offset,
			child->buf.bytes, TERN_ACCESS_READ | TERN_ACCESS_WRITE,
			&region) == 0);
	require(child->fabric->ops->send(conn, &region, sizeof(region), NULL, 0) == 0);
}

static void child_up(void *arg, struct tern_conn *conn)
{
	(void)arg;
	conn->owner = conn;
}

static void child_done(struct tern_op *op, int status)
{
	struct child *child = op->conn->user;

	(void)status;
	child->busy = false;
}

static int child_message(
	void *arg, struct tern_conn *conn, const void *data, size_t bytes)
{
	struct child *child = arg;

	if (bytes == sizeof(child->region) && conn == child->conn)
		memcpy(&child->region, data, bytes);
	return 0;
}

static void child_writable(void *arg, struct tern_conn *conn)
{
	(void)arg;
	(void)conn;
}

static void child_closed(void *arg, struct tern_conn *conn, int status)
{
	(void)arg;
	(void)conn;
	(void)status;
}

/* Starts the next put, if none is in flight, the fabric can put, and the parent has sent a
 * region. */
static void child_push(struct child *child)
{
	const struct tern_fabric_ops *ops = child->fabric->ops;

	if (child->busy || child->region.word[0] + child->region.word[1] == 0)
		return;
	child->op.done = child_done;
	if (child->conn->caps & (TERN_CAP_PUT | TERN_CAP_WINDOW_PUT))
		child->busy =
			ops->put(child->conn, &child->op, child->buf.mem,
				child->buf.offset, CHILD_BYTES, &child->region, 0) == 0;
}

void conformance_child(const struct instance *instance, int in, int out)
{
	static const struct tern_port_handler handler = {
		.accepted = child_accepted,
		.up = child_up,
		.message = child_message,
		.writable = child_writable,
		.closed = child_closed,
	};
	static const struct tern_pool_opts pool_opts = {.slab_bytes = 16u << 20};
	static struct child child;
	struct tern_port_opts opts = {.env = tern_env_system(),
		.handler = &handler,
		.arg = &child,
		.message_bytes = MESSAGE_BYTES};
	const char *name = instance->fabric;
	char address[BED_ADDRESS_MAX] = "";
	struct tern_domain *domain;
	struct tern_pool *pool;
	struct tern_lsn *lsn;

	require(tern_domain_new_hooked(&instance->opts, &instance->hooks, &domain) == 0);
	child.fabric = tern_domain_fabric(domain, name, strlen(name));
	require(child.fabric->ops->port_new(child.fabric, &opts, &child.port) == 0);
	require(tern_pool_new(domain, &pool_opts, &pool) == 0);
	require(tern_pool_get(pool, CHILD_BYTES, &child.buf) == 0);
	buf_fill(&child.buf, CHILD_SEED);
	if (in >= 0) {
		require(read(in, address, sizeof(address)) == sizeof(address));
		require(child.fabric->ops->connect(child.port, address, &child.conn) ==
			0);
		child.conn->user = &child;
	} else {
		instance->address(address, 0);
		require(child.fabric->ops->listen(child.port, address, &lsn) == 0);
		snprintf(address, sizeof(address), "%s",
			child.fabric->ops->lsn_address(lsn));
		require(write(out, address, sizeof(address)) == sizeof(address));
	}
	for (;;) {
		struct timespec pause = {.tv_nsec = 50000};

		if (child.fabric->ops->poll(child.port, 64) == 0)
			nanosleep(&pause, NULL);
		child_push(&child);
	}
}

struct family {
	pid_t pid;
	int pipe[2];
	struct bed *bed;
	char address[BED_ADDRESS_MAX];
};

/* Starts a child process, and creates the bed of the parent. `listens`: the child listens,
 * and family->address gets its address. Otherwise the child waits for an address on the
 * pipe, to which it connects. */
static void family_init(
	struct family *family, const struct instance *instance, bool listens)
{
	memset(family, 0, sizeof(*family));
	assert_int_equal(pipe(family->pipe), 0);
	family->pid = conformance_spawn(
		instance, listens ? -1 : family->pipe[0], family->pipe[1]);
	if (listens)
		assert_int_equal(
			read(family->pipe[0], family->address, sizeof(family->address)),
			sizeof(family->address));
	family->bed = bed_new(instance);
}

static void family_kill(struct family *family)
{
	int status;

	assert_int_equal(kill(family->pid, SIGKILL), 0);
	assert_int_equal(waitpid(family->pid, &status, 0), family->pid);
	/* The child was killed, and did not end by itself. */
	assert_true(WIFSIGNALED(status));
}

static void family_fini(struct family *family)
{
	bed_free(family->bed);
	close(family->pipe[0]);
	close(family->pipe[1]);
}

/* ---- the parent ---- */

static int keep_region(struct link *link, const void *data, size_t bytes)
{
	assert_int_equal(bytes, sizeof(link->region));
	memcpy(&link->region, data, bytes);
	link->heard++;
	return 0;
}

static struct link *family_dial(struct family *family)
{
	struct link *link = bed_dial_at(family->bed, A, family->address);

	link->on_message = keep_region;
	PUMP(family->bed, link->up && link->heard);
	return link;
}

static void check_bereaved(struct link *link)
{
	PUMP(link->side->bed, link->closed_count);
	assert_true(link->status == -ECONNRESET || link->status == -EPIPE);
}

static void test_an_idle_peer_that_dies_is_noticed(const struct instance *instance)
{
	struct family family;
	struct link *link, *more[5], *a, *b;

	family_init(&family, instance, true);
	link = family_dial(&family);
	for (int i = 0; i < 5; i++)
		more[i] = family_dial(&family);
	bed_pair(family.bed, &a, &b);
	family_kill(&family);
	check_bereaved(link);
	for (int i = 0; i < 5; i++)
		check_bereaved(more[i]);
	link = bed_dial_at(family.bed, A, family.address);
	PUMP(family.bed, link->closed_count);
	assert_int_equal(link->status, -ECONNREFUSED);
	link_say_surely(a, 10);
	PUMP(family.bed, b->heard == 1);
	family_fini(&family);
}

static void test_a_peer_that_dies_ends_every_op(const struct instance *instance)
{
	enum { OPS = 12 };

	for (int round = 0; round < 8; round++) {
		struct work work[OPS] = {0};
		struct family family;
		struct tern_buf mine;
		struct link *link;
		unsigned taken = 0;

		family_init(&family, instance, true);
		mine = side_memory(&family.bed->sides[A], SLAB, CHILD_BYTES);
		link = family_dial(&family);
		while (taken < OPS) {
			bool get = !(link_caps(link) & TERN_CAP_PUT) ||
				   ((link_caps(link) & TERN_CAP_GET) && round % 2);

			if ((get ? link_get : link_put)(
				    link, &work[taken], &mine, &link->region, 0) != 0)
				break;
			taken++;
		}
		for (int i = 0; i < round * 2; i++)
			bed_turn(family.bed);
		family_kill(&family);
		check_bereaved(link);
		for (unsigned i = 0; i < taken; i++)
			assert_int_equal(work[i].done_count, 1);
		family_fini(&family);
	}
}

static void test_what_is_peeked_outlives_its_process(const struct instance *instance)
{
	const void *data = NULL;
	struct family family;
	struct link *link;

	family_init(&family, instance, true);
	link = family_dial(&family);
	assert_int_equal(link_peek(link, &link->region, 0, CHILD_BYTES, &data), 0);
	assert_true(pattern_holds(data, 1000, CHILD_SEED, 0));
	family_kill(&family);
	assert_true(pattern_holds(data, CHILD_BYTES, CHILD_SEED, 0));
	check_bereaved(link);
	assert_true(pattern_holds(data, CHILD_BYTES, CHILD_SEED, 0));
	family.bed->sides[A].fabric->ops->unpeek(family.bed->sides[A].port, data);
	family_fini(&family);
}

static void test_a_dead_peer_reaches_no_memory(const struct instance *instance)
{
	for (int round = 0; round < 5; round++) {
		struct family family;
		struct tern_region region;
		struct tern_buf room;
		struct link *link;
		struct side *side;

		family_init(&family, instance, false);
		side = &family.bed->sides[B];
		room = side_memory(side, SLAB, CHILD_BYTES);
		memset(family.address, 0, sizeof(family.address));
		snprintf(family.address, sizeof(family.address), "%s",
			side->fabric->ops->lsn_address(family.bed->lsn));
		assert_int_equal(write(family.pipe[1], family.address, BED_ADDRESS_MAX),
			BED_ADDRESS_MAX);
		PUMP(family.bed, side->accepted_count == 1);
		link = tern_list_entry(side->links.next, struct link, node);
		region = link_expose(link, &room, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
		assert_int_equal(side->fabric->ops->send(
					 link->conn, &region, sizeof(region), NULL, 0),
			0);
		for (int i = 0; i < 20 + 60 * round; i++)
			bed_turn(family.bed);
		family_kill(&family);
		check_bereaved(link);
		buf_fill(&room, 9);
		bed_settle(family.bed);
		assert_true(buf_holds(&room, 9));
		side_withdraw(side, &region);
		family_fini(&family);
	}
}

static void test_a_stopped_peer_does_not_hold_up_close(const struct instance *instance)
{
	for (int flush = 0; flush < 2; flush++) {
		struct family family;
		struct link *link, *late;
		uint64_t word = 0;

		family_init(&family, instance, true);
		link = family_dial(&family);
		assert_int_equal(kill(family.pid, SIGSTOP), 0);
		for (int i = 0; i < 4000000; i++)
			if (link->side->fabric->ops->send(
				    link->conn, &word, 8, NULL, 0) != 0)
				break;
		late = bed_dial_at(family.bed, A, family.address);
		bed_settle(family.bed);
		link_close(link, flush);
		PUMP(family.bed, link->closed_count);
		assert_int_equal(link->status, 0);
		if (late->conn)
			link_close(late, flush);
		PUMP(family.bed, late->closed_count);
		family_kill(&family);
		family_fini(&family);
	}
}

const struct conformance_test conformance_death[] = {
	CONFORMANCE(test_an_idle_peer_that_dies_is_noticed, NEEDS_PROCESS),
	CONFORMANCE(test_a_peer_that_dies_ends_every_op, NEEDS_PROCESS),
	CONFORMANCE(test_what_is_peeked_outlives_its_process, NEEDS_PROCESS | NEEDS_PEEK),
	CONFORMANCE(test_a_dead_peer_reaches_no_memory, NEEDS_PROCESS),
	CONFORMANCE(test_a_stopped_peer_does_not_hold_up_close, NEEDS_PROCESS),
	{0},
};
