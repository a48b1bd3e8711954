/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests in which most of the functions that the fabric calls fail once: in their first
 * call, in their second, and so on, for a few calls. The operation then works or ends with one status; nothing may
 * crash, hang or stay open. Functions that release an object never fail in these tests,
 * since their caller could not react.
 */
#include "tests/transport/verbs/verbs_bed.h"

#include <poll.h>

#include "transport/domain.h"

static const char *const functions[] = {"get_cm_event", "create_id", "set_option",
	"bind_addr", "listen", "resolve_addr", "resolve_route", "create_qp", "connect",
	"accept", "reject", "disconnect", "notify", "query_device", "query_port",
	"query_gid", "alloc_pd", "reg_mr", "create_comp_channel", "create_cq",
	"resize_cq", "get_cq_event", "create_srq", "get_async_event", "poll_cq",
	"post_send", "post_recv", "post_srq_recv", "req_notify_cq"};

/* Polls both ends, and sleeps between polls whenever arm() allows it. */
static void sleepy_turn(struct bed *bed)
{
	struct pollfd fds[2];
	bool idle = true;

	for (unsigned i = 0; i < 2; i++) {
		struct side *side = &bed->sides[i];
		int r = side->fabric->ops->arm(side->port);

		idle &= r == 0;
		fds[i] = (struct pollfd){
			.fd = side->fabric->ops->fd(side->port), .events = POLLIN};
	}
	if (idle)
		poll(fds, 2, 20);
	bed_turn(bed);
}

#define SLEEPY_PUMP(bed_, cond) PUMP_WITH(sleepy_turn(bed_), "verbs", cond)

static bool ended(const struct link *link)
{
	return !link || link->closed_count;
}

static struct link *accepted_link(struct side *side)
{
	return side->accepted_count ? tern_list_entry(side->links.prev, struct link, node)
				    : NULL;
}

static bool all_done(const struct load *load)
{
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(load->puts); i++)
		if (!load->puts[i].done_count || !load->gets[i].done_count)
			return false;
	return true;
}

/* Opens a conn, moves data both ways and closes the conn, unless the conn fails before.
 * `lose`: B does not get the event that the conn is established. */
static void live_once(struct bed *bed, bool lose)
{
	struct link *a, *b;
	struct load load, back;

	if (lose)
		fake_verbs_lose_cm(RDMA_CM_EVENT_ESTABLISHED, FAKE_VERBS_PASSIVE, 1);
	a = bed_dial(bed);
	SLEEPY_PUMP(bed, a->up || a->closed_count);
	if (a->conn)
		link_say(a, 100);
	SLEEPY_PUMP(bed, a->closed_count || accepted_link(&bed->sides[B]));
	b = accepted_link(&bed->sides[B]);
	if (a->conn && b && b->conn) {
		load_init(&load, a, b, 50000);
		load_init(&back, b, a, 50000);
		SLEEPY_PUMP(bed, (load_push(&load), load_push(&back),
					 (all_done(&load) && all_done(&back)) ||
						 ended(a) || ended(b)));
	}
	if (a->conn)
		link_close(a, true);
	SLEEPY_PUMP(bed, ended(a) && (!b || ended(b)));
	assert_true(a->closed_count == 1 && (!b || b->closed_count == 1));
}

static void fail_in_life(const char *function, unsigned nth, unsigned variant)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();
	struct bed *bed;

	opts.fake.max_srq = variant % 2 ? 0 : 64;
	opts.fake.keep_stale_cqes = variant % 2;
	opts.fake.max_cqe = variant == 2 ? 400 : 65536;
	opts.verbs = variant == 2 ? "from=10.7.0.1,tc=8" : NULL;
	bed = verbs_bed_new(&opts);
	for (unsigned i = 0; i < 2; i++)
		/* Creates the side's pool now, before calls fail. */
		side_memory(&bed->sides[i], SLAB, 64);
	fake_verbs_fail(function, nth, ENOMEM);
	live_once(bed, variant == 2);
	verbs_bed_free(bed);
}

static void test_any_function_may_fail_in_the_life_of_a_conn(void **state)
{
	(void)state;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(functions); i++)
		for (unsigned nth = 1; nth <= ROUNDS(8); nth++)
			for (unsigned variant = 0; variant < 3; variant++)
				fail_in_life(functions[i], nth, variant);
}

/* Makes each function fail that is called when a conn ends after it has worked. */
static void test_any_function_may_fail_when_a_conn_ends(void **state)
{
	static const char *const at_end[] = {"poll_cq", "disconnect", "get_cm_event",
		"get_async_event", "get_cq_event", "req_notify_cq", "post_send",
		"post_recv", "post_srq_recv"};

	(void)state;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(at_end); i++) {
		for (unsigned nth = 1; nth <= ROUNDS(12); nth++) {
			struct verbs_bed_opts opts = verbs_bed_defaults();
			struct link *a, *b;
			struct bed *bed;

			opts.fake.max_srq = nth % 2 ? 0 : 64;
			opts.fake.keep_stale_cqes = nth % 4 < 2;
			bed = verbs_bed_new(&opts);
			bed_pair(bed, &a, &b);
			for (unsigned k = 0; k < 50; k++) {
				link_say(a, 1000);
				link_say(b, 1000);
			}
			fake_verbs_fail(at_end[i], nth, EIO);
			link_close(a, nth % 3 == 0);
			SLEEPY_PUMP(bed, a->closed_count && b->closed_count);
			verbs_bed_free(bed);
		}
	}
}

/* Opens everything up to a listener, and closes it again. True if all calls worked. */
static bool open_and_close(void)
{
	struct tern_domain_hooks hooks = {.verbs_api = fake_verbs_api()};
	struct tern_port_opts port_opts = {.message_bytes = MESSAGE_BYTES};
	static const struct tern_port_handler none;
	/* Without huge pages, which take the kernel long to collect: this function is
	 * called about 40 times. */
	struct tern_domain_opts opts = {.no_hugepages = true};
	struct tern_domain *domain;
	struct tern_fabric *fabric;
	struct tern_port *port;
	struct log_env log = {0};
	struct tern_lsn *lsn;
	int r;

	log_env_init(&log);
	port_opts.env = &log.env;
	port_opts.handler = &none;
	assert_int_equal(tern_domain_new_hooked(&opts, &hooks, &domain), 0);
	fabric = tern_domain_fabric(domain, "verbs", 5);
	if (!fabric) {
		tern_domain_free(domain);
		return false;
	}
	r = fabric->ops->port_new(fabric, &port_opts, &port);
	if (r == 0) {
		r = fabric->ops->listen(port, "10.7.0.1:0", &lsn);
		if (r == 0)
			fabric->ops->lsn_close(lsn);
		fabric->ops->port_free(port);
	}
	assert_true(r <= 0);
	tern_domain_free(domain);
	return r == 0;
}

static void test_any_function_may_fail_before_there_is_a_conn(void **state)
{
	static const char *const at_start[] = {"create_event_channel", "get_devices",
		"query_device", "query_port", "query_gid", "create_id", "bind_addr",
		"listen"};

	(void)state;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(at_start); i++) {
		for (unsigned nth = 1; nth <= 5; nth++) {
			fake_verbs_reset(NULL);
			fake_verbs_fail(at_start[i], nth, ENOMEM);
			open_and_close();
		}
	}
	fake_verbs_reset(NULL);
	assert_true(open_and_close());
	fake_verbs_reset(NULL);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_any_function_may_fail_in_the_life_of_a_conn),
		cmocka_unit_test(test_any_function_may_fail_when_a_conn_ends),
		cmocka_unit_test(test_any_function_may_fail_before_there_is_a_conn),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
