/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Former bugs of the verbs fabric, on simulated devices: each test repeats the sequence
 * of events that showed one.
 */
#include "tests/harness/bed.h"
#include "tests/fakes/verbs/fake_verbs.h"

#include <errno.h>
#include <stdio.h>

#include "transport/domain.h"

static struct fake_verbs_opts machine_opts;

static const char *machine(void)
{
	fake_verbs_reset(&machine_opts);
	return NULL;
}

static void address(char *out, unsigned number)
{
	(void)number;
	snprintf(out, BED_ADDRESS_MAX, "10.7.0.2:0");
}

static struct instance instance = {.name = "hazards",
	.fabric = "verbs",
	/* The kernel would take long to collect huge pages. */
	.opts = {.no_hugepages = true},
	.can_sleep = true,
	.alone = true,
	.address = address,
	.unavailable = machine};

static struct bed *begin(const char *options)
{
	machine_opts = fake_verbs_defaults();
	instance.opts.verbs = options;
	instance.hooks.verbs_api = fake_verbs_api();
	machine();
	return bed_new(&instance);
}

static int burst(struct link *link, const void *data, size_t bytes)
{
	(void)data;
	(void)bytes;
	fake_verbs_fail("post_send", 1, ENOMEM);
	for (int i = 0; i < 40; i++)
		if (link_say(link, 8))
			break;
	return 0;
}

/* B's message handler sends messages, and the device refuses to take their work requests:
 * the conn must end at both ends. */
static void test_refused_in_handler(void **state)
{
	struct bed *bed = begin("from=10.7.0.1");
	struct link *a, *b;

	(void)state;
	bed_pair(bed, &a, &b);
	b->on_message = burst;
	assert_int_equal(link_say(a, 8), 0);
	PUMP(bed, a->closed_count && b->closed_count);
	bed_free(bed);
}

/* The device refuses to take work requests in the middle of a guarded put (option
 * guard=on: the bytes go as messages): the put must end once, and the conn at both ends. */
static void test_refused_in_put(void **state)
{
	struct bed *bed = begin("from=10.7.0.1,guard=on");
	struct work work = {0};
	struct link *a, *b;

	(void)state;
	bed_pair(bed, &a, &b);
	struct tern_buf from = side_memory(&bed->sides[A], SLAB, 1 << 20);
	struct tern_buf to = side_memory(&bed->sides[B], SLAB, 1 << 20);
	struct tern_region region = link_expose(b, &to, TERN_ACCESS_WRITE);
	bed_settle(bed);
	fake_verbs_fail("post_send", 1, ENOMEM);
	assert_int_equal(link_put(a, &work, &from, &region, 0), 0);
	PUMP(bed, a->closed_count && b->closed_count);
	assert_int_equal(work.done_count, 1);
	bed_free(bed);
}

/* B destroys a queue pair whose messages have arrived, before it has polled them: the
 * receive buffers of these messages must return to B's shared receive queue. */
static void test_unpolled(void **state)
{
	struct bed *bed = begin("from=10.7.0.1");
	struct fake_verbs_qp qps[8];
	struct link *a, *b;

	(void)state;
	bed_pair(bed, &a, &b); /* this conn keeps the shared receive queue in existence */
	for (int i = 0; i < 3; i++) {
		struct link *x, *y;

		bed_pair(bed, &x, &y);
		bed_settle(bed);
		link_close(y, false); /* B's next poll ends this conn */
		bed->sides[B].asleep = true;
		for (int n = 0; n < 100; n++)
			link_say(x, 8);
		for (int n = 0; n < 200; n++)
			side_poll(&bed->sides[A], 64);
		bed->sides[B].asleep = false;
		PUMP(bed, x->closed_count && y->closed_count);
		bed_settle(bed);
	}
	unsigned count = fake_verbs_qps(qps, 8);
	assert_int_equal(count, 2);
	for (unsigned i = 0; i < count; i++) {
		print_message("device %u: %u receives posted\n", qps[i].device,
			qps[i].recv_count);
		assert_true(qps[i].recv_count >= 132);
	}
	bed_free(bed);
}

static int echo(struct link *link, const void *data, size_t bytes)
{
	(void)data;
	(void)bytes;
	for (struct tern_list *n = link->side->links.next; n != &link->side->links;
		n = n->next) {
		struct link *to = tern_container_of(n, struct link, node);

		if (to->conn && to->up)
			link_say(to, 1000);
	}
	return 0;
}

/* B answers each message on all its conns, and the answers do not complete. So B uses
 * receive buffers for answers before its shared receive queue has got them back. */
static void test_srq_deficit(void **state)
{
	struct bed *bed = begin("from=10.7.0.1,depth=1024");
	struct link *a[24], *b[24];

	(void)state;
	unsigned pairs = 8;
	for (unsigned i = 0; i < pairs; i++) {
		bed_pair(bed, &a[i], &b[i]);
		b[i]->on_message = echo;
	}
	bed_settle(bed);
	for (unsigned i = 0; i < pairs; i++)
		while (link_say(a[i], 8) == 0)
			;
	for (int n = 0; n < 2000; n++)
		side_poll(&bed->sides[A], 0);
	fake_verbs_hold_completions(FAKE_VERBS_SENDS, true);
	uint64_t said = 0;
	for (int n = 0; n < 100; n++)
		side_poll(&bed->sides[B], 64);
	for (unsigned i = 0; i < pairs; i++)
		said += b[i]->said;
	print_message(
		"%u heard by link 0, %u said\n", (unsigned)b[0]->heard, (unsigned)said);
	fake_verbs_hold_completions(FAKE_VERBS_SENDS, false);
	bed_settle(bed);
	bed_free(bed);
}

static int armed_result;
static int arm_inside(struct link *link, const void *data, size_t bytes)
{
	uint64_t number = ((const uint64_t *)data)[0];

	(void)bytes;
	if (link->heard == 0)
		armed_result = link->side->port->ops->arm(link->side->port);
	assert_int_equal(number, link->heard);
	link->heard++;
	return 0;
}

/* B's message handler calls arm(), which is allowed: no message may be lost or be
 * delivered twice. */
static void test_arm_in_handler(void **state)
{
	struct bed *bed = begin("from=10.7.0.1");
	struct link *a, *b;

	(void)state;
	bed_pair(bed, &a, &b);
	b->on_message = arm_inside;
	for (int i = 0; i < 100; i++)
		assert_int_equal(link_say(a, 8), 0);
	for (int n = 0; n < 500; n++)
		side_poll(&bed->sides[A], 0);
	side_poll(&bed->sides[B], 1000);
	bed_settle(bed);
	bed_free(bed);
}

/* A's device is removed while no conn uses it: A must destroy its completion queue. */
static void test_idle_removed(void **state)
{
	struct bed *bed = begin("from=10.7.0.1");
	struct link *a, *b;

	(void)state;
	bed_pair(bed, &a, &b);
	link_close(a, true);
	PUMP(bed, a->closed_count && b->closed_count);
	bed_settle(bed);
	fake_verbs_remove_device(0);
	for (int i = 0; i < 500; i++)
		bed_turn(bed);
	assert_int_equal(fake_verbs_live().cqs, 1); /* B has one completion queue */
	bed_free(bed);
}

/* B exposes a region before it uses its second device. A put of A into that region over
 * the second device must succeed. */
static void test_other_rail(void **state)
{
	struct bed *bed = begin("from=10.7.0.1");
	struct work work = {0};
	struct tern_lsn *lsn;
	struct link *a, *b, *a2;

	(void)state;
	bed_pair(bed, &a, &b);
	struct tern_buf from = side_memory(&bed->sides[A], SLAB, 4096);
	struct tern_buf to = side_memory(&bed->sides[B], SLAB, 4096);
	struct tern_region region = link_expose(b, &to, TERN_ACCESS_WRITE);
	struct tern_port *port = bed->sides[B].port;
	assert_int_equal(port->ops->listen(port, "10.7.0.1:0", &lsn), 0);
	a2 = bed_dial_at(bed, A, port->ops->lsn_address(lsn));
	PUMP(bed, a2->up);
	assert_int_equal(link_put(a2, &work, &from, &region, 0), 0);
	PUMP(bed, work.done_count);
	print_message("put over the other rail: %d\n", work.status);
	assert_int_equal(work.status, 0);
	port->ops->lsn_close(lsn);
	bed_free(bed);
}

/* Both ends close with flush while each has a put in flight to a guarded region (option
 * guard=on: the bytes go as messages). The put needs more messages than a window of
 * credits. */
static void test_both_flush(void **state)
{
	struct bed *bed = begin("from=10.7.0.1,guard=on");
	struct work work[2] = {0};
	struct tern_buf from[2], to[2];
	struct tern_region region[2];
	struct link *l[2];

	(void)state;
	bed_pair(bed, &l[A], &l[B]);
	for (int i = 0; i < 2; i++) {
		from[i] = side_memory(&bed->sides[i], SLAB, 4 << 20);
		to[i] = side_memory(&bed->sides[i], SLAB, 4 << 20);
		buf_fill(&from[i], 5);
		region[i] = link_expose(l[i], &to[i], TERN_ACCESS_WRITE);
	}
	bed_settle(bed);
	for (int i = 0; i < 2; i++)
		assert_int_equal(link_put(l[i], &work[i], &from[i], &region[!i], 0), 0);
	link_close(l[A], true);
	link_close(l[B], true);
	PUMP(bed, l[A]->closed_count && l[B]->closed_count);
	assert_int_equal(work[A].status, 0);
	assert_int_equal(work[B].status, 0);
	bed_free(bed);
}

static struct tern_conn *up_conn;
static void p2_accepted(void *arg, struct tern_lsn *lsn, struct tern_conn *conn)
{
	(void)arg, (void)lsn, (void)conn;
}
static void p2_writable(void *arg, struct tern_conn *conn)
{
	(void)arg, (void)conn;
}
static void p2_up(void *arg, struct tern_conn *conn)
{
	(void)arg;
	up_conn = conn;
}
static int p2_message(void *arg, struct tern_conn *conn, const void *data, size_t bytes)
{
	(void)arg, (void)conn, (void)data, (void)bytes;
	return 0;
}
static void p2_closed(void *arg, struct tern_conn *conn, int status)
{
	(void)arg, (void)conn, (void)status;
	up_conn = NULL;
}
static void p2_done(struct tern_op *op, int status)
{
	(void)op, (void)status;
}

/* One port knows that the device has failed. Another port of the fabric does not know it
 * yet, and puts from memory that is registered only now: its conn must end. */
static void test_new_memory_on_dead_device(void **state)
{
	static const struct tern_port_handler handler = {
		.accepted = p2_accepted,
		.up = p2_up,
		.message = p2_message,
		.writable = p2_writable,
		.closed = p2_closed,
	};
	struct bed *bed = begin("from=10.7.0.1");
	struct side *side = &bed->sides[A];
	struct tern_op op = {.done = p2_done};
	struct tern_port *port;
	struct tern_conn *conn;
	struct link *a, *b;

	(void)state;
	bed_pair(bed, &a, &b);
	struct tern_buf to = side_memory(&bed->sides[B], SLAB, 4096);
	struct tern_region region = link_expose(b, &to, TERN_ACCESS_WRITE);
	assert_int_equal(side->port->ops->port_new(side->fabric,
				 &(struct tern_port_opts){.env = side->port->env,
					 .handler = &handler,
					 .message_bytes = MESSAGE_BYTES},
				 &port),
		0);
	assert_int_equal(port->ops->connect(
				 port, bed->lsn->port->ops->lsn_address(bed->lsn), &conn),
		0);
	for (int i = 0; i < 2000 && !up_conn; i++) {
		bed_turn(bed);
		port->ops->poll(port, 64);
	}
	assert_non_null(up_conn);
	fake_verbs_remove_device(0);
	for (int i = 0; i < 200; i++)
		side_poll(side, 64);
	struct tern_buf from = side_memory(side, USER, 1 << 20);
	int r = port->ops->put(conn, &op, from.mem, from.offset, 4096, &region, 0);
	print_message("put: %d\n", r);
	for (int i = 0; i < 1000; i++)
		port->ops->poll(port, 64);
	assert_null(up_conn);
	port->ops->port_free(port);
	bed_free(bed);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refused_in_handler),
		cmocka_unit_test(test_refused_in_put),
		cmocka_unit_test(test_unpolled),
		cmocka_unit_test(test_srq_deficit),
		cmocka_unit_test(test_arm_in_handler),
		cmocka_unit_test(test_idle_removed),
		cmocka_unit_test(test_other_rail),
		cmocka_unit_test(test_both_flush),
		cmocka_unit_test(test_new_memory_on_dead_device),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
