/* SPDX-License-Identifier: Apache-2.0 */
/* See bed.h. This file has the parts of which each end of the bed consists (domain, port,
 * links, messages), and the pumping of both ends. */
#include "tests/harness/bed.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/rng.h"
#include "transport/domain.h"

#define PATIENCE_NS    (20 * TERN_NS_PER_S)
#define PATIENCE_TURNS 20000000u
#define SETTLE_TURNS   80

/* ---- environment ---- */

static uint64_t log_env_now(struct tern_env *env)
{
	(void)env;
	return tern_clock_ns();
}

static uint64_t log_env_random(struct tern_env *env)
{
	(void)env;
	return tern_random(tern_env_system());
}

static void log_env_log(struct tern_env *env, enum tern_log_level level, const char *line)
{
	struct log_env *log = tern_container_of(env, struct log_env, env);
	char *slot = log->lines[log->count++ % TERN_ARRAY_SIZE(log->lines)];

	(void)level;
	snprintf(slot, sizeof(log->lines[0]), "%s", line);
	/* The product's log helps to understand a failed test. */
	printf("# log: %s\n", line);
}

void log_env_init(struct log_env *log)
{
	static const struct tern_env_ops ops = {
		.now_ns = log_env_now,
		.random = log_env_random,
		.log = log_env_log,
	};

	log->env.ops = &ops;
	log->env.log_level = TERN_LOG_WARN;
}

bool log_env_has(const struct log_env *log, const char *text)
{
	for (unsigned i = 0; i < TERN_MIN(log->count, TERN_ARRAY_SIZE(log->lines)); i++)
		if (strstr(log->lines[i], text))
			return true;
	return false;
}

/* ---- handlers ---- */

static struct link *link_new(
	struct side *side, struct tern_conn *conn, struct tern_lsn *lsn)
{
	struct link *link = calloc(1, sizeof(*link));

	assert_non_null(link);
	link->side = side;
	link->conn = conn;
	link->lsn = lsn;
	tern_list_push(&side->links, &link->node);
	conn->user = link;
	conn->owner = link;
	assert_ptr_equal(conn->port, side->port);
	return link;
}

/* Checks that a conn with a capability has the function for it in the fabric's table. The
 * function may be there without the capability, since one table serves conns of different
 * kinds. */
static void check_calls(bool capable, bool there)
{
	if (capable)
		assert_true(there);
}

static void check_up(const struct tern_conn *conn)
{
	const struct tern_fabric_ops *ops = conn->port->ops;

	assert_true(conn->caps & (TERN_CAP_PUT | TERN_CAP_GET));
	check_calls(conn->caps & TERN_CAP_PUT, ops->put);
	check_calls(conn->caps & TERN_CAP_GET, ops->get);
	check_calls(conn->caps & TERN_CAP_PEEK, ops->peek);
	check_calls(conn->caps & TERN_CAP_PEEK, ops->unpeek);
	assert_true(conn->chunk_bytes > 0);
	assert_non_null(memchr(conn->name, 0, sizeof(conn->name)));
	assert_true(conn->name[0] != 0);
}

static void on_accepted(void *arg, struct tern_lsn *lsn, struct tern_conn *conn)
{
	struct side *side = arg;
	struct link *link;

	assert_true(side->polling);
	assert_ptr_equal(lsn->port, side->port);
	link = link_new(side, conn, lsn);
	link->up = true;
	side->accepted_count++;
	check_up(conn);
	if (side->on_accepted)
		side->on_accepted(link);
}

static struct link *link_of(void *arg, struct tern_conn *conn)
{
	struct side *side = arg;
	struct link *link = conn->user;

	assert_true(side->polling);
	assert_non_null(link);
	assert_ptr_equal(link->conn, conn);
	assert_int_equal(link->closed_count, 0);
	return link;
}

static void on_up(void *arg, struct tern_conn *conn)
{
	struct link *link = link_of(arg, conn);

	assert_false(link->up);
	assert_null(link->lsn);
	link->up = true;
	check_up(conn);
	if (link->on_up)
		link->on_up(link);
}

static void check_numbered(struct link *link, const void *data, size_t bytes)
{
	uint64_t head[2];

	assert_in_range(bytes, SAY_HEAD_BYTES, link->conn->port->message_bytes);
	memcpy(head, data, sizeof(head));
	assert_int_equal(head[0], link->heard);
	assert_int_equal(head[1], bytes - SAY_HEAD_BYTES);
	assert_true(
		pattern_holds((const char *)data + SAY_HEAD_BYTES, head[1], head[0], 0));
	link->heard++;
	link->heard_bytes += head[1];
}

static int on_message(void *arg, struct tern_conn *conn, const void *data, size_t bytes)
{
	struct link *link = link_of(arg, conn);

	assert_true(link->up);
	assert_int_equal((uintptr_t)data % 64, 0);
	if (link->on_message)
		return link->on_message(link, data, bytes);
	check_numbered(link, data, bytes);
	if (link->on_heard)
		link->on_heard(link);
	return 0;
}

static void on_writable(void *arg, struct tern_conn *conn)
{
	struct link *link = link_of(arg, conn);

	assert_true(link->up);
	link->writable_count++;
	if (link->on_writable)
		link->on_writable(link);
}

static void on_closed(void *arg, struct tern_conn *conn, int status)
{
	struct link *link = link_of(arg, conn);

	assert_int_equal(link->ops_out, 0);
	assert_true(status <= 0);
	link->closed_count++;
	link->status = status;
	link->conn = NULL;
	if (link->on_closed)
		link->on_closed(link);
}

/* ---- sides ---- */

static const struct tern_port_handler handler = {
	.accepted = on_accepted,
	.up = on_up,
	.message = on_message,
	.writable = on_writable,
	.closed = on_closed,
};

const char *bed_unavailable(const struct instance *instance)
{
	const char *name = instance->fabric;
	const char *why = NULL;
	struct tern_domain *domain;
	int r;

	if (instance->unavailable)
		why = instance->unavailable();
	if (why || instance->world_new)
		return why; /* a simulated world needs nothing from this machine */
	r = tern_domain_new_hooked(&instance->opts, &instance->hooks, &domain);
	if (r < 0)
		return tern_status_text(r);
	if (!tern_domain_fabric(domain, name, strlen(name)))
		why = "not built in";
	for (unsigned i = 0; why && tern_fabric_table[i]; i++)
		if (strcmp(tern_fabric_table[i]->name, name) == 0)
			why = domain->why[i] ? domain->why[i] : "not opened, no reason";
	tern_domain_free(domain);
	return why;
}

struct tern_domain *instance_domain(
	const struct instance *instance, void *world, unsigned side)
{
	struct tern_domain *domain;

	if (world)
		return instance->world_domain(world, side);
	assert_int_equal(
		tern_domain_new_hooked(&instance->opts, &instance->hooks, &domain), 0);
	return domain;
}

static void side_init(struct side *side, struct bed *bed, unsigned number, uint32_t bytes)
{
	const struct instance *instance = bed->instance;
	struct tern_port_opts port_opts = {.handler = &handler, .arg = side};

	side->bed = bed;
	tern_list_init(&side->links);
	log_env_init(&side->log);
	side->domain = instance_domain(instance, bed->world, number);
	box_init(&side->box, side->domain);
	side->fabric = tern_domain_fabric(
		side->domain, instance->fabric, strlen(instance->fabric));
	assert_non_null(side->fabric);
	port_opts.env =
		bed->world ? instance->world_env(bed->world, number) : &side->log.env;
	port_opts.message_bytes = bytes;
	assert_int_equal(
		side->fabric->ops->port_new(side->fabric, &port_opts, &side->port), 0);
	assert_ptr_equal(side->port->ops, side->fabric->ops);
	assert_ptr_equal(side->port->fabric, side->fabric);
}

struct bed *bed_new_sized(
	const struct instance *instance, uint32_t a_bytes, uint32_t b_bytes)
{
	struct bed *bed = calloc(1, sizeof(*bed));
	char address[BED_ADDRESS_MAX];

	assert_non_null(bed);
	bed->instance = instance;
	if (instance->world_new)
		bed->world = instance->world_new();
	side_init(&bed->sides[A], bed, A, a_bytes);
	side_init(&bed->sides[B], bed, B, b_bytes);
	instance->address(address, 0);
	assert_int_equal(
		bed->sides[B].fabric->ops->listen(bed->sides[B].port, address, &bed->lsn),
		0);
	assert_non_null(bed->lsn);
	return bed;
}

struct bed *bed_new(const struct instance *instance)
{
	return bed_new_sized(instance, MESSAGE_BYTES, MESSAGE_BYTES);
}

static unsigned side_open_links(const struct side *side)
{
	unsigned count = 0;

	tern_list_for_each (node, &side->links) {
		struct link *link = tern_list_entry(node, struct link, node);

		count += link->closed_count == 0;
	}
	return count;
}

static void side_close_links(struct side *side)
{
	side->asleep = false;
	tern_list_for_each (node, &side->links) {
		struct link *link = tern_list_entry(node, struct link, node);

		if (link->conn)
			link_close(link, false);
	}
}

static void side_fini(struct side *side)
{
	struct tern_list *node;

	side->fabric->ops->port_free(side->port);
	box_free(&side->box);
	if (!side->bed->world)
		tern_domain_free(side->domain);
	while ((node = tern_list_pop(&side->links)))
		free(tern_list_entry(node, struct link, node));
}

static void withdraw_last(struct side *side)
{
	struct tern_region region = side->regions[side->region_count - 1];

	side_withdraw(side, &region);
}

void bed_free(struct bed *bed)
{
	if (bed->lsn)
		bed->sides[B].fabric->ops->lsn_close(bed->lsn);
	side_close_links(&bed->sides[A]);
	side_close_links(&bed->sides[B]);
	PUMP(bed, side_open_links(&bed->sides[A]) == 0);
	PUMP(bed, side_open_links(&bed->sides[B]) == 0);
	for (unsigned i = 0; i < 2; i++)
		while (bed->sides[i].region_count > 0)
			withdraw_last(&bed->sides[i]);
	side_fini(&bed->sides[A]);
	side_fini(&bed->sides[B]);
	if (bed->world)
		bed->instance->world_free(bed->world);
	free(bed);
}

/* ---- turning ---- */

int side_poll(struct side *side, int budget)
{
	int events;

	side->polling = true;
	events = side->fabric->ops->poll(side->port, budget);
	side->polling = false;
	assert_true(events >= 0);
	return events;
}

/* Sleeps for 20 us, or for up to 1.3 ms if nothing has happened for a long time: then the
 * test waits for a timer, and polling would only take CPU time from other processes. */
static void pause_a_little(unsigned idle_pauses)
{
	struct timespec pause = {.tv_nsec = 20000L << TERN_MIN(idle_pauses / 8, 6u)};

	nanosleep(&pause, NULL);
}

static int turn(struct bed *bed)
{
	int events = 0;

	for (unsigned i = 0; i < 2; i++)
		if (!bed->sides[i].asleep)
			events += side_poll(&bed->sides[i], 64);
	if (bed->world)
		bed->instance->world_step(bed->world);
	return events;
}

void bed_turn(struct bed *bed)
{
	if (turn(bed) > 0 || bed->world)
		bed->idle_turns = 0;
	else if (++bed->idle_turns % 64 == 0)
		/* Gives the kernel time to deliver. */
		pause_a_little(bed->idle_turns / 64);
}

struct patience patience_new(void)
{
	/* Factor by which pumps wait longer, for slow emulated machines:
	 * tests/system/rdma sets it. */
	const char *more = getenv("TERN_TEST_PATIENCE");
	uint64_t factor = more ? strtoull(more, NULL, 10) : 1;

	return (struct patience){
		.until_ns = tern_clock_ns() + PATIENCE_NS * TERN_MAX(factor, 1ull)};
}

bool patience_left(struct patience *patience)
{
	return ++patience->turns < PATIENCE_TURNS && tern_clock_ns() < patience->until_ns;
}

void bed_settle(struct bed *bed)
{
	for (int i = 0; i < SETTLE_TURNS; i++) {
		turn(bed);
		if (!bed->world)
			pause_a_little(0);
	}
}

/* ---- links ---- */

struct link *bed_dial_at(struct bed *bed, enum side_name name, const char *address)
{
	struct side *side = &bed->sides[name];
	struct tern_conn *conn = NULL;

	assert_int_equal(side->fabric->ops->connect(side->port, address, &conn), 0);
	assert_non_null(conn);
	return link_new(side, conn, NULL);
}

struct link *bed_dial(struct bed *bed)
{
	return bed_dial_at(bed, A, bed->sides[B].fabric->ops->lsn_address(bed->lsn));
}

void bed_pair(struct bed *bed, struct link **a, struct link **b)
{
	unsigned before = bed->sides[B].accepted_count;

	*a = bed_dial(bed);
	PUMP(bed, (*a)->up && bed->sides[B].accepted_count > before);
	assert_int_equal(bed->sides[B].accepted_count, before + 1);
	*b = tern_list_entry(bed->sides[B].links.prev, struct link, node);
	assert_ptr_equal((*b)->lsn, bed->lsn);
}

int link_say(struct link *link, size_t bytes)
{
	_Alignas(64) uint64_t message[MESSAGE_BYTES / 8];
	size_t head = SAY_HEAD_BYTES;
	int r;

	assert_true(bytes <= SAY_MOST_BYTES);
	message[0] = link->said;
	message[1] = bytes;
	pattern_fill(message + 2, bytes, link->said, 0);
	/* Varies how the message is split into head and payload, since the split must not
	 * matter. */
	head += TERN_MIN(bytes / 8 * 8, 8 * (link->said % 9));
	r = link->side->fabric->ops->send(link->conn, message, head,
		(char *)message + head, SAY_HEAD_BYTES + bytes - head);
	/* send() must have copied or sent the message already. */
	memset(message, 0xa5, sizeof(message));
	if (r == 0)
		link->said++;
	return r;
}

void link_say_surely(struct link *link, size_t bytes)
{
	int r;

	PUMP(link->side->bed, (r = link_say(link, bytes)) != -EAGAIN);
	assert_int_equal(r, 0);
}

void link_close(struct link *link, bool flush)
{
	unsigned before = link->closed_count;

	link->side->fabric->ops->conn_close(link->conn, flush);
	/* close() must not call `closed` itself: only poll() may. */
	assert_int_equal(link->closed_count, before);
}
