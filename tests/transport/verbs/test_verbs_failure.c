/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of failures below conns of the verbs fabric: devices, queue pairs, cables,
 * refused work requests. A conn that such a failure ends must end once, as must each of
 * its operations, and other conns must not be affected.
 */
#include "tests/transport/verbs/verbs_bed.h"
#include "transport/verbs/verbs.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

/* A bed in which B listens at the addresses of all devices. Each of A's conns starts at
 * the device to which it goes. */
static struct bed *two_rails(struct verbs_bed_opts opts)
{
	opts.verbs = "retry=7";
	opts.listen = "0.0.0.0:0";
	return verbs_bed_new(&opts);
}

static struct link *dial_device(struct bed *bed, unsigned device)
{
	const char *at = bed->sides[B].fabric->ops->lsn_address(bed->lsn);
	char to[BED_ADDRESS_MAX];

	snprintf(to, sizeof(to), "10.7.0.%u%s", device + 1, strrchr(at, ':'));
	return bed_dial_at(bed, A, to);
}

static void pair_on(struct bed *bed, unsigned device, struct link **a, struct link **b)
{
	unsigned before = bed->sides[B].accepted_count;

	*a = dial_device(bed, device);
	PUMP(bed, (*a)->up && bed->sides[B].accepted_count > before);
	*b = tern_list_entry(bed->sides[B].links.prev, struct link, node);
}

static void push_all(struct load *load)
{
	while (load_push(load))
		;
}

/* Sends messages and starts puts and gets, as many as the fabric accepts, and waits until a
 * put is done and a message has arrived. */
static void start_load(struct load *load)
{
	push_all(load);
	PUMP(load->link->side->bed,
		(load_push(load), load->puts[0].done_count && load->other->heard));
	push_all(load);
}

/* ---- devices ---- */

static void remove_under_load(unsigned seed)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();
	struct link *a[2], *b[2];
	struct load load[2];
	struct bed *bed;

	opts.fake.seed = seed;
	opts.fake.delay_steps = seed % 3 * 20;
	opts.fake.cm_delay_steps = seed % 2 * 40;
	opts.fake.keep_stale_cqes = seed % 2;
	opts.fake.max_srq = seed % 4 < 2 ? 64 : 0;
	opts.fake.piece_bytes = 4096;
	bed = two_rails(opts);
	for (unsigned i = 0; i < 2; i++)
		pair_on(bed, i, &a[i], &b[i]);
	load_init(&load[0], a[0], b[0], 300000);
	load_init(&load[1], b[0], a[0], 300000);
	start_load(&load[0]);
	start_load(&load[1]);
	for (unsigned i = 0; i < seed; i++)
		bed_turn(bed);
	fake_verbs_remove_device(0);
	check_ends(a[0], -ENETDOWN);
	check_ends(b[0], -ENETDOWN);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(
			load_ended(&load[i], -ENETDOWN) + load_ended(&load[i], 0),
			load[i].put_count + load[i].get_count);
	check_works(a[1], b[1]);
	check_ends(dial_device(bed, 0), -EHOSTUNREACH);
	pair_on(bed, 1, &a[0], &b[0]);
	check_works(a[0], b[0]);
	check_works(a[1], b[1]);
	verbs_bed_free(bed);
}

static void test_a_removed_device_ends_every_op_and_the_next_conn_uses_the_other(
	void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= ROUNDS(24); seed++)
		remove_under_load(seed);
}

static void test_a_device_removed_while_conns_come_up(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();

	(void)state;
	for (unsigned turns = 0; turns < 300; turns += 300 / ROUNDS(75)) {
		struct bed *bed;
		struct link *a;

		opts.fake.cm_delay_steps = 20;
		opts.fake.seed = turns + 1;
		bed = two_rails(opts);
		a = dial_device(bed, 0);
		for (unsigned i = 0; i < turns; i++)
			bed_turn(bed);
		fake_verbs_remove_device(0);
		PUMP(bed, a->closed_count);
		assert_true(a->status < 0);
		bed_settle(bed);
		assert_int_equal(fake_verbs_live().qps, 0);
		verbs_bed_free(bed);
	}
}

/* The device at which B listens is removed and added again, more often than a domain has
 * places for devices. Each time B's listener must return at the same address. */
static void test_a_listener_returns_with_its_device(void **state)
{
	struct bed *bed = verbs_bed_new(NULL);
	struct link *a, *b;
	char at[BED_ADDRESS_MAX];

	(void)state;
	snprintf(at, sizeof(at), "%s", bed->sides[B].fabric->ops->lsn_address(bed->lsn));
	for (unsigned round = 0; round <= VERBS_DEVICES_MAX; round++) {
		bed_pair(bed, &a, &b);
		check_works(a, b);
		fake_verbs_remove_device(1);
		check_ends(b, -ENETDOWN);
		/* The missing device acknowledges nothing, so A's conn ends when A sends. */
		verbs_say_surely(a, 8);
		check_ends(a, -ETIMEDOUT);
		/* B looks for its device, which is not there, so A's attempt fails. */
		verbs_skip_ns(TERN_NS_PER_S);
		check_ends(bed_dial_at(bed, A, at), -ETIMEDOUT);
		assert_true(verbs_logged(bed, "device was removed"));
		fake_verbs_return_device(1);
		verbs_skip_ns(TERN_NS_PER_S);
		PUMP(bed, verbs_logged(bed, "again"));
	}
	assert_string_equal(bed->sides[B].fabric->ops->lsn_address(bed->lsn), at);
	bed_pair(bed, &a, &b);
	check_works(a, b);
	verbs_bed_free(bed);
}

static void test_a_listener_may_be_closed_while_its_device_is_gone(void **state)
{
	struct bed *bed = verbs_bed_new(NULL);

	(void)state;
	fake_verbs_remove_device(1);
	PUMP(bed, verbs_logged(bed, "device was removed"));
	verbs_bed_free(bed);
}

/* One device is at the NUMA node of this thread, the other one at a node that does not
 * exist. A listener for all addresses must choose the first one. */
static void test_listeners_are_at_the_nearest_device(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();
	unsigned node;

	(void)state;
	opts.listen = "0.0.0.0:0";
	assert_int_equal(getcpu(NULL, &node), 0);
	for (unsigned nearest = 0; nearest < 2; nearest++) {
		struct bed *bed;
		char want[BED_ADDRESS_MAX];

		opts.fake.nodes[nearest] = (int)node;
		opts.fake.nodes[!nearest] = (int)node + 1000;
		bed = verbs_bed_new(&opts);
		snprintf(want, sizeof(want), "10.7.0.%u:", nearest + 1);
		assert_ptr_equal(
			strstr(bed->sides[B].fabric->ops->lsn_address(bed->lsn), want),
			bed->sides[B].fabric->ops->lsn_address(bed->lsn));
		verbs_bed_free(bed);
	}
}

/* The GIDs of device 0 contain no IP address, though they look like IPv6. */
static void check_listens_at_device_1(const struct verbs_bed_opts *opts)
{
	struct bed *bed = verbs_bed_new(opts);
	const char *address = bed->sides[B].fabric->ops->lsn_address(bed->lsn);

	assert_ptr_equal(strstr(address, "10.7.0.2:"), address);
	verbs_bed_free(bed);
}

static void test_a_gid_that_is_not_of_roce_is_no_address(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();

	(void)state;
	opts.listen = "0.0.0.0:0";
	opts.fake.infiniband = 1u << 0;
	check_listens_at_device_1(&opts);
	opts.fake.infiniband = 0;
	opts.fake.iwarp = 1u << 0;
	check_listens_at_device_1(&opts);
}

static void test_what_was_made_of_a_removed_device_goes_without_a_conn(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();
	struct link *a, *b;
	struct bed *bed;
	unsigned mrs;

	(void)state;
	opts.one_domain = true;
	bed = two_rails(opts);
	side_memory(&bed->sides[A], SLAB, 1000);
	mrs = fake_verbs_live().mrs;
	assert_true(mrs >= 2);
	pair_on(bed, 0, &a, &b);
	link_close(a, false);
	check_ends(a, 0);
	PUMP(bed, b->closed_count);
	PUMP(bed, fake_verbs_live().qps == 0);
	bed_settle(bed);
	assert_int_equal(fake_verbs_live().cqs, 2);
	assert_int_equal(fake_verbs_live().pds, 2);
	fake_verbs_remove_device(0);
	bed_settle(bed);
	bed_settle(bed);
	assert_int_equal(fake_verbs_live().cqs, 0);
	/* All memory was registered with the other device, too, except the receive
	 * buffers of the removed device's conns. */
	assert_int_equal(fake_verbs_live().mrs, mrs / 2);
	assert_int_equal(fake_verbs_live().pds, 1);
	verbs_bed_free(bed);
}

/* Two ports share the device's descriptor for asynchronous events, so only one of them
 * reads the event of the failure. The conns of both ports must end. */
static void test_a_device_that_failed_is_heard_of_by_every_port(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();

	(void)state;
	opts.one_domain = true;
	for (unsigned i = 0; i < 4; i++) {
		struct bed *bed = two_rails(opts);
		struct link *a, *b;

		pair_on(bed, 0, &a, &b);
		fake_verbs_hold_cm(RDMA_CM_EVENT_DEVICE_REMOVAL, FAKE_VERBS_ACTIVE, true);
		fake_verbs_hold_cm(
			RDMA_CM_EVENT_DEVICE_REMOVAL, FAKE_VERBS_PASSIVE, true);
		side_turns(&bed->sides[A], 20 * i);
		fake_verbs_remove_device(0);
		check_ends(a, -ENETDOWN);
		check_ends(b, -ENETDOWN);
		assert_true(verbs_logged(bed, "device fake_0 failed"));
		verbs_bed_free(bed);
	}
}

/* A port that uses the failed device sleeps while another port reads the event of the
 * failure. The event must wake the sleeping port, too. */
static void test_a_device_that_failed_wakes_a_sleeping_port(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();
	struct link *a, *b;
	struct side *side;
	struct bed *bed;

	(void)state;
	opts.one_domain = true;
	bed = two_rails(opts);
	side = &bed->sides[B];
	pair_on(bed, 0, &a, &b);
	bed_settle(bed);
	bed_settle(bed);
	while (side->fabric->ops->arm(side->port))
		side_poll(side, 64);
	fake_verbs_hold_cm(RDMA_CM_EVENT_DEVICE_REMOVAL, FAKE_VERBS_PASSIVE, true);
	fake_verbs_hold_completions(FAKE_VERBS_RECEIVES, true);
	fake_verbs_hold_completions(FAKE_VERBS_SENDS, true);
	side->asleep = true;
	fake_verbs_remove_device(0);
	check_ends(a, -ENETDOWN);
	assert_int_equal(poll(&(struct pollfd){.fd = side->fabric->ops->fd(side->port),
				      .events = POLLIN},
				 1, 0),
		1);
	side->asleep = false;
	check_ends(b, -ENETDOWN);
	verbs_bed_free(bed);
}

/* B's device is removed. No event reports that to A, but A's messages are no longer
 * acknowledged, so A's conn must end with -ETIMEDOUT. */
static void test_a_peer_whose_device_went_is_missed(void **state)
{
	struct bed *bed = verbs_bed_new(NULL);
	struct load load;
	struct link *a, *b;

	(void)state;
	bed_pair(bed, &a, &b);
	load_init(&load, a, b, 100000);
	start_load(&load);
	fake_verbs_remove_device(1);
	PUMP(bed, (load_push(&load), a->closed_count));
	assert_int_equal(a->status, -ETIMEDOUT);
	check_ends(b, -ENETDOWN);
	load_ended(&load, 0);
	check_ends(bed_dial(bed), -ETIMEDOUT);
	verbs_bed_free(bed);
}

/* ---- cables ---- */

static void test_a_cut_wire_ends_the_conn_and_a_new_one_comes_up_when_it_heals(
	void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= ROUNDS(10); seed++) {
		struct verbs_bed_opts opts = verbs_bed_defaults();
		struct load load, back;
		struct bed *bed;
		struct link *a, *b;

		opts.fake.seed = seed;
		opts.fake.delay_steps = seed % 2 * 30;
		bed = verbs_bed_new(&opts);
		bed_pair(bed, &a, &b);
		load_init(&load, a, b, 200000);
		load_init(&back, b, a, 200000);
		start_load(&load);
		push_all(&back);
		fake_verbs_cut(0, 1, true);
		load_push(&load);
		load_push(&back);
		PUMP(bed, (load_push(&load), a->closed_count));
		PUMP(bed, (load_push(&back), b->closed_count));
		assert_int_equal(a->status, -ETIMEDOUT);
		assert_int_equal(b->status, -ETIMEDOUT);
		load_ended(&load, 0);
		load_ended(&back, 0);
		check_ends(bed_dial(bed), -ETIMEDOUT);
		fake_verbs_cut(0, 1, false);
		bed_pair(bed, &a, &b);
		check_works(a, b);
		verbs_bed_free(bed);
	}
}

static void ask(struct link *link)
{
	if (link->conn)
		assert_int_equal(link->side->fabric->ops->unanswered_ns(link->conn), 0);
}

/* A asks whether B's network card answers, while no data moves and B does not poll. The
 * card answers until the path is cut; then A's conn must end. */
static void test_a_cut_is_noticed_by_asking_where_nothing_moves(void **state)
{
	struct bed *bed = verbs_bed_new(NULL);
	struct link *a, *b;

	(void)state;
	bed_pair(bed, &a, &b);
	bed->sides[B].asleep = true;
	/* Asks more often than B's receive queue and A's send queue have entries. */
	for (unsigned i = 0; i < 1000; i++) {
		ask(a);
		bed_settle(bed);
	}
	assert_int_equal(a->closed_count, 0);
	fake_verbs_cut(0, 1, true);
	bed_settle(bed);
	assert_int_equal(a->closed_count, 0);
	PUMP(bed, (ask(a), a->closed_count));
	assert_int_equal(a->status, -ETIMEDOUT);
	bed->sides[B].asleep = false;
	PUMP(bed, (ask(b), b->closed_count));
	fake_verbs_cut(0, 1, false);
	verbs_bed_free(bed);
}

static void test_a_short_cut_is_survived(void **state)
{
	struct bed *bed = verbs_bed_new(NULL);
	struct link *a, *b;

	(void)state;
	bed_pair(bed, &a, &b);
	for (unsigned i = 0; i < 20; i++) {
		link_say_surely(a, 2000);
		fake_verbs_port(i % 2, false);
		for (unsigned turn = 0; turn < 10; turn++)
			bed_turn(bed);
		fake_verbs_port(i % 2, true);
	}
	check_works(a, b);
	verbs_bed_free(bed);
}

/* ---- queue pairs ---- */

static uint32_t qp_of(unsigned device)
{
	struct fake_verbs_qp qps[8];
	unsigned count = fake_verbs_qps(qps, TERN_ARRAY_SIZE(qps));

	for (unsigned i = 0; i < count; i++)
		if (qps[i].device == device)
			return qps[i].qp_num;
	fail_msg("device %u has no queue pair", device);
	return 0;
}

static void test_a_queue_pair_that_breaks_silently_ends_its_conn_only(void **state)
{
	(void)state;
	for (unsigned device = 0; device < 2; device++) {
		struct bed *bed = verbs_bed_new(NULL);
		struct load load;
		struct link *a[2], *b[2];

		bed_pair(bed, &a[0], &b[0]);
		bed_pair(bed, &a[1], &b[1]);
		load_init(&load, device ? b[0] : a[0], device ? a[0] : b[0], 100000);
		start_load(&load);
		fake_verbs_qp_break(qp_of(device));
		PUMP(bed, (load_push(&load), load.link->closed_count));
		assert_int_equal(load.link->status, -ETIMEDOUT);
		check_ends(load.other, -ECONNRESET);
		load_ended(&load, 0);
		check_works(a[1], b[1]);
		verbs_bed_free(bed);
	}
}

static void test_a_fatal_event_ends_an_idle_conn(void **state)
{
	(void)state;
	/* If both ends use the same device, either of them may read the event. */
	for (unsigned i = 0; i < 2; i++) {
		struct bed *bed = two_rails(verbs_bed_defaults());
		struct link *a[2], *b[2];
		struct fake_verbs_qp qps[4];

		pair_on(bed, 0, &a[0], &b[0]);
		pair_on(bed, 0, &a[1], &b[1]);
		assert_int_equal(fake_verbs_qps(qps, 4), 4);
		for (unsigned k = 0; k < 2; k++)
			fake_verbs_qp_fatal(qps[i].qp_num);
		/* One end gets the failure, the other one a disconnect. */
		PUMP(bed, a[0]->closed_count && b[0]->closed_count);
		assert_int_equal(TERN_MAX(a[0]->status, b[0]->status), -ENETDOWN);
		assert_int_equal(TERN_MIN(a[0]->status, b[0]->status), -ECONNRESET);
		check_works(a[1], b[1]);
		verbs_bed_free(bed);
	}
}

/* ---- each end in a thread of its own ---- */

struct thread {
	pthread_t id;
	struct link *link;
	struct load *load; /* NULL: no operations */
};

/* Polls and sleeps until the conn of this end is closed, for at most 20 s. */
static void *live(void *arg)
{
	struct thread *thread = arg;
	struct side *side = thread->link->side;
	uint64_t until_ns = tern_clock_ns() + 20 * TERN_NS_PER_S;

	while (!thread->link->closed_count && tern_clock_ns() < until_ns) {
		struct pollfd fd = {
			.fd = side->fabric->ops->fd(side->port), .events = POLLIN};

		if (thread->load)
			load_push(thread->load);
		if (side->fabric->ops->arm(side->port) == 0)
			poll(&fd, 1, 100);
		side_poll(side, 64);
	}
	return NULL;
}

static void start(struct thread *thread, struct link *link, struct load *load)
{
	*thread = (struct thread){.link = link, .load = load};
	assert_int_equal(pthread_create(&thread->id, NULL, live, thread), 0);
}

/* Waits for the thread, whose conn must have ended. The end that reads the device's failure
 * first disconnects; the other end may see that disconnect before the failure. */
static void finish(struct thread *thread)
{
	assert_int_equal(pthread_join(thread->id, NULL), 0);
	assert_int_equal(thread->link->closed_count, 1);
	assert_true(
		thread->link->status == -ENETDOWN || thread->link->status == -ECONNRESET);
}

static void pause_ns(uint64_t ns)
{
	struct timespec pause = {.tv_nsec = (long)ns};

	nanosleep(&pause, NULL);
}

/* Two threads, each with a port, wait for events of the same device, and either may read
 * the event of a failure. The conns of both must end. */
static void test_a_fatal_event_may_be_read_by_the_thread_of_another_port(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();

	(void)state;
	for (unsigned i = 0; i < 30; i++) {
		struct fake_verbs_qp qps[4];
		struct thread threads[2];
		struct link *a, *b;
		struct bed *bed;

		opts.one_domain = i % 2;
		bed = two_rails(opts);
		pair_on(bed, 0, &a, &b);
		assert_int_equal(fake_verbs_qps(qps, 4), 2);
		start(&threads[0], a, NULL);
		start(&threads[1], b, NULL);
		pause_ns(i % 5 * 300000);
		fake_verbs_qp_fatal(qps[i / 2 % 2].qp_num);
		finish(&threads[0]);
		finish(&threads[1]);
		verbs_bed_free(bed);
	}
}

static void test_a_device_removed_under_two_threads(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();

	(void)state;
	for (unsigned i = 0; i < 20; i++) {
		struct thread threads[2];
		struct load loads[2];
		struct link *a, *b;
		struct bed *bed;

		opts.one_domain = i % 2;
		bed = two_rails(opts);
		pair_on(bed, 0, &a, &b);
		load_init(&loads[0], a, b, 100000);
		load_init(&loads[1], b, a, 100000);
		start(&threads[0], a, &loads[0]);
		start(&threads[1], b, &loads[1]);
		pause_ns(i % 5 * 300000);
		fake_verbs_remove_device(0);
		finish(&threads[0]);
		finish(&threads[1]);
		load_ended(&loads[0], 0);
		load_ended(&loads[1], 0);
		pair_on(bed, 1, &a, &b);
		check_works(a, b);
		verbs_bed_free(bed);
	}
}

/* ---- refused work requests ---- */

/* In the middle of put() the fabric's list of work requests is full, so the fabric posts
 * the list, and the device refuses it. The put must end, and the conn at both ends. */
static void test_a_refusal_in_the_midst_of_a_long_put(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();

	(void)state;
	opts.fake.max_msg_bytes = 4096;
	for (unsigned nth = 1; nth <= ROUNDS(12); nth++) {
		struct bed *bed = verbs_bed_new(&opts);
		struct work put = {0};
		struct tern_buf from, to;
		struct tern_region region;
		struct link *a, *b;

		bed_pair(bed, &a, &b);
		from = side_memory(&bed->sides[A], SLAB, 2u << 20);
		to = side_memory(&bed->sides[B], SLAB, 2u << 20);
		region = link_expose(b, &to, TERN_ACCESS_WRITE);
		bed_settle(bed);
		fake_verbs_fail("post_send", nth, ENOMEM);
		assert_int_equal(link_put(a, &put, &from, &region, 0), 0);
		check_ends(a, -ENETDOWN);
		assert_int_equal(put.status, -ENETDOWN);
		check_ends(b, -ECONNRESET);
		bed_settle(bed);
		verbs_bed_free(bed);
	}
}

static unsigned burst;

static void say_burst(struct link *link)
{
	for (unsigned i = 0; i < burst && link->conn; i++)
		link_say(link, 300);
}

static void test_a_refusal_in_a_handler(void **state)
{
	(void)state;
	for (burst = 10; burst <= 100; burst += 9) {
		struct bed *bed = verbs_bed_new(NULL);
		struct link *a, *b;

		bed_pair(bed, &a, &b);
		bed_settle(bed);
		b->on_heard = say_burst;
		assert_int_equal(link_say(a, 100), 0);
		side_turns(&bed->sides[A], 2);
		fake_verbs_fail("post_send", 1 + burst % 3, EINVAL);
		PUMP(bed, b->heard);
		for (unsigned i = 0; i < 4 && b->conn; i++)
			link_say(b, 10), bed_turn(bed);
		check_ends(b, -ENETDOWN);
		check_ends(a, -ECONNRESET);
		bed_settle(bed);
		verbs_bed_free(bed);
	}
}

/* Reading the completion queue fails once, so the conns that use it must end. The
 * completions that stay in the queue must not be attributed to later conns. */
static void test_a_completion_queue_that_cannot_be_read_ends_its_conns(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();

	(void)state;
	for (unsigned nth = 1; nth <= ROUNDS(80); nth++) {
		struct bed *bed;
		struct link *a, *b;

		opts.fake.keep_stale_cqes = true;
		opts.fake.max_srq = nth % 2 ? 64 : 0;
		bed = two_rails(opts);
		pair_on(bed, 0, &a, &b);
		for (unsigned i = 0; i < 100; i++)
			assert_int_equal(link_say(a, 100), 0);
		side_turns(&bed->sides[A], 200);
		link_close(nth % 4 < 2 ? a : b, false);
		side_turns(&bed->sides[A], 2);
		fake_verbs_fail("poll_cq", nth / 2 + 1, EIO);
		for (unsigned i = 0; i < 200; i++)
			side_poll(&bed->sides[B], 1);
		PUMP(bed, a->closed_count && b->closed_count);
		pair_on(bed, 1, &a, &b);
		check_works(a, b);
		verbs_bed_free(bed);
	}
}

/* Arming the completion queue fails. Since such a queue would never wake a sleeping
 * thread, the conns that use it must end. */
static void test_a_completion_queue_that_cannot_be_armed_ends_its_conns(void **state)
{
	struct bed *bed = two_rails(verbs_bed_defaults());
	struct side *side = &bed->sides[A];
	struct link *a, *b;
	int r;

	(void)state;
	pair_on(bed, 0, &a, &b);
	while (side_poll(side, 64) > 0)
		;
	fake_verbs_fail("req_notify_cq", 1, EIO);
	r = side->fabric->ops->arm(side->port);
	assert_int_equal(r, -EAGAIN);
	PUMP(bed, a->closed_count && b->closed_count);
	assert_true(verbs_logged(bed, "cannot read its completion queue"));
	pair_on(bed, 1, &a, &b);
	check_works(a, b);
	verbs_bed_free(bed);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			test_a_removed_device_ends_every_op_and_the_next_conn_uses_the_other),
		cmocka_unit_test(test_a_device_removed_while_conns_come_up),
		cmocka_unit_test(test_a_listener_returns_with_its_device),
		cmocka_unit_test(test_listeners_are_at_the_nearest_device),
		cmocka_unit_test(test_a_gid_that_is_not_of_roce_is_no_address),
		cmocka_unit_test(test_a_listener_may_be_closed_while_its_device_is_gone),
		cmocka_unit_test(
			test_what_was_made_of_a_removed_device_goes_without_a_conn),
		cmocka_unit_test(test_a_device_that_failed_is_heard_of_by_every_port),
		cmocka_unit_test(test_a_device_that_failed_wakes_a_sleeping_port),
		cmocka_unit_test(test_a_peer_whose_device_went_is_missed),
		cmocka_unit_test(
			test_a_cut_wire_ends_the_conn_and_a_new_one_comes_up_when_it_heals),
		cmocka_unit_test(test_a_cut_is_noticed_by_asking_where_nothing_moves),
		cmocka_unit_test(test_a_short_cut_is_survived),
		cmocka_unit_test(
			test_a_queue_pair_that_breaks_silently_ends_its_conn_only),
		cmocka_unit_test(test_a_fatal_event_ends_an_idle_conn),
		cmocka_unit_test(
			test_a_fatal_event_may_be_read_by_the_thread_of_another_port),
		cmocka_unit_test(test_a_device_removed_under_two_threads),
		cmocka_unit_test(test_a_refusal_in_the_midst_of_a_long_put),
		cmocka_unit_test(test_a_refusal_in_a_handler),
		cmocka_unit_test(
			test_a_completion_queue_that_cannot_be_read_ends_its_conns),
		cmocka_unit_test(
			test_a_completion_queue_that_cannot_be_armed_ends_its_conns),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
