/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of devices with small limits, and of rules that hold on every device: no queue
 * gets more work than it holds (the simulated device asserts this), credits, memory
 * registrations.
 */
#include "tests/transport/verbs/verbs_bed.h"

#include "transport/domain.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

/* Completion queue entries that one conn needs, and its receives, at the default queue
 * depth, while its port has few conns. */
#define CONN_ENTRIES  (256 + 128 + 4)
#define CONN_RECEIVES (128 + 4)

/* ---- queues ---- */

struct talk {
	struct link *link;
	unsigned count; /* messages to be sent in all */
	unsigned most;  /* size of the largest message */
	struct tern_rng rng;
};

static void talk_init(struct talk *talk, struct link *link, unsigned count, unsigned most,
	uint64_t seed)
{
	*talk = (struct talk){link, count, most, {.seed = seed}};
}

/* Sends up to 39 messages, until the fabric refuses one. */
static void talk_on(struct talk *talk)
{
	unsigned burst = (unsigned)tern_rng_below(&talk->rng, 40);

	while (burst-- > 0 && talk->link->said < talk->count) {
		/* Favours small messages: two of three are limited to 200 bytes. */
		unsigned most = tern_rng_below(&talk->rng, 3) ? TERN_MIN(talk->most, 200u)
							      : talk->most;

		if (verbs_say(talk->link, tern_rng_below(&talk->rng, most + 1ull)))
			return;
	}
}

static void talk_both_ways(
	struct link *a, struct link *b, unsigned count, unsigned most, uint64_t seed)
{
	struct talk ab, ba;

	talk_init(&ab, a, (unsigned)a->said + count, most, seed);
	talk_init(&ba, b, (unsigned)b->said + count, most, seed + 1000);
	PUMP(a->side->bed, (talk_on(&ab), talk_on(&ba),
				   b->heard == ab.count && a->heard == ba.count));
}

static void check_moves(struct link *a, struct link *b, uint64_t bytes, uint64_t seed)
{
	struct tern_buf here = side_memory(a->side, SLAB, bytes);
	struct tern_buf there = side_memory(b->side, SLAB, bytes);
	struct tern_buf back = side_memory(a->side, SLAB, bytes);
	struct tern_region region;
	struct work put = {0}, get = {0};

	region = link_expose(b, &there, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
	buf_fill(&here, seed);
	link_put_surely(a, &put, &here, &region, 0);
	link_say_surely(a, 10);
	PUMP(a->side->bed, b->heard == a->said);
	assert_true(buf_holds(&there, seed));
	PUMP(a->side->bed, put.done_count);
	assert_int_equal(put.status, 0);
	if (!(link_caps(a) & TERN_CAP_GET))
		return;
	link_get_surely(a, &get, &back, &region, 0);
	PUMP(a->side->bed, get.done_count);
	assert_int_equal(get.status, 0);
	assert_true(buf_holds(&back, seed));
}

static void exercise(const struct verbs_bed_opts *opts, uint64_t seed)
{
	struct bed *bed = verbs_bed_new(opts);
	struct link *a, *b;

	bed_pair(bed, &a, &b);
	talk_both_ways(a, b, 300, opts->message_bytes - SAY_HEAD_BYTES, seed);
	check_moves(a, b, 100001, seed);
	talk_both_ways(a, b, 50, 100, seed + 1);
	check_works(a, b);
	verbs_bed_free(bed);
}

static void test_the_shortest_queues_do(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();

	(void)state;
	opts.message_bytes = LONG_MESSAGE_BYTES;
	for (unsigned seed = 1; seed <= ROUNDS(12); seed++) {
		opts.fake.seed = seed;
		opts.fake.delay_steps = seed % 3 * 20;
		opts.fake.stall_percent = seed % 2 * 40;
		opts.fake.max_srq = seed % 4 < 2 ? 64 : 0;
		opts.fake.max_qp_wr = seed % 4 < 2 ? 16 : 8192;
		opts.verbs = seed % 5 ? "from=10.7.0.1,depth=16"
				      : "from=10.7.0.1,depth=16,guard=on";
		exercise(&opts, seed);
	}
}

static void test_any_inline_size_does(void **state)
{
	static const int sizes[] = {0, 1, 7, 8, 60, 256, 512};
	static const char *const asked[] = {"from=10.7.0.1,inline=0",
		"from=10.7.0.1,inline=8", "from=10.7.0.1,inline=256"};
	struct verbs_bed_opts opts = verbs_bed_defaults();

	(void)state;
	opts.message_bytes = MESSAGE_BYTES;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(sizes);
		i += TERN_ARRAY_SIZE(sizes) / ROUNDS(TERN_ARRAY_SIZE(sizes))) {
		for (unsigned k = 0; k < TERN_ARRAY_SIZE(asked); k++) {
			opts.fake.seed = i + 1;
			opts.fake.max_inline = sizes[i];
			opts.fake.grant_less_inline = (i + k) % 2;
			opts.fake.grant_more = k == 1;
			opts.verbs = asked[k];
			exercise(&opts, i * 10 + k);
		}
	}
}

static void test_one_read_at_a_time_does(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();
	struct tern_buf there, here[50];
	struct work gets[50] = {0};
	struct tern_region region;
	struct link *a, *b;
	struct bed *bed;

	(void)state;
	opts.fake.max_rd_atomic = 1;
	opts.fake.delay_steps = 10;
	bed = verbs_bed_new(&opts);
	bed_pair(bed, &a, &b);
	there = side_memory(&bed->sides[B], SLAB, 50 * 10000);
	buf_fill(&there, 7);
	region = link_expose(b, &there, TERN_ACCESS_READ);
	for (unsigned i = 0; i < 50; i++) {
		here[i] = side_memory(&bed->sides[A], SLAB, 10000);
		link_get_surely(a, &gets[i], &here[i], &region, i * 10000);
	}
	for (unsigned i = 0; i < 50; i++) {
		PUMP(bed, gets[i].done_count);
		assert_int_equal(gets[i].status, 0);
		assert_true(pattern_holds(tern_buf_ptr(&here[i]), 10000, 7, i * 10000));
	}
	verbs_bed_free(bed);
}

static void test_a_put_is_cut_to_what_one_work_request_carries(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();
	struct link *a, *b;
	struct bed *bed;

	(void)state;
	opts.fake.max_msg_bytes = 16384;
	for (unsigned i = 0; i < 2; i++) {
		opts.verbs = i ? "from=10.7.0.1,depth=16" : NULL;
		bed = verbs_bed_new(&opts);
		bed_pair(bed, &a, &b);
		check_moves(a, b, 1u << 20, 3);
		check_moves(a, b, 4097, 4);
		check_moves(a, b, 1, 5);
		verbs_bed_free(bed);
	}
}

/* ---- no resources for another conn ---- */

/*
 * B has one end of A's conn and both ends of a conn with itself, and its completion queue
 * has no space for a fourth end: B must refuse another conn of A, and the conns that exist
 * must go on. A's completion queue has space for A's second end.
 */
static void check_refused_fourth(struct verbs_bed_opts opts)
{
	char here[BED_ADDRESS_MAX];
	struct link *a, *b, *own[2];
	struct bed *bed;

	opts.verbs = "retry=7";
	opts.listen = "10.7.0.1:0";
	bed = verbs_bed_new(&opts);
	snprintf(here, sizeof(here), "%s",
		bed->sides[B].fabric->ops->lsn_address(bed->lsn));
	bed_pair(bed, &a, &b);
	own[0] = bed_dial_at(bed, B, here);
	PUMP(bed, own[0]->up && bed->sides[B].accepted_count == 2);
	own[1] = tern_list_entry(bed->sides[B].links.prev, struct link, node);
	for (unsigned i = 0; i < 3; i++)
		check_ends(bed_dial(bed), -ENOSPC);
	assert_true(log_env_has(&bed->sides[B].log, "refused"));
	check_works(a, b);
	check_works(own[0], own[1]);
	link_close(own[0], false);
	PUMP(bed, own[0]->closed_count && own[1]->closed_count);
	bed_pair(bed, &own[0], &own[1]);
	check_works(own[0], own[1]);
	check_works(a, b);
	verbs_bed_free(bed);
}

static void test_a_full_completion_queue_refuses_the_next_conn_only(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();

	(void)state;
	opts.fake.max_cqe = 3 * CONN_ENTRIES + 10;
	check_refused_fourth(opts);
	opts.fake.grant_more = true;
	check_refused_fourth(opts);
}

/* A port that has more than VERBS_FEW conns gives the next ones shorter queues. When A's
 * device is removed, every request in the send queues is flushed at once: the completion
 * queue must hold them all (the simulated device asserts this). */
static void test_full_send_queues_of_many_conns_fit_the_completion_queue(void **state)
{
	enum { CONNS = 48, PUTS = 400 };
	static struct work works[CONNS][PUTS];
	struct verbs_bed_opts opts = verbs_bed_defaults();
	struct link *a[CONNS], *b[CONNS];
	struct tern_buf here, there;
	unsigned count = 0, ended = 0;
	struct bed *bed;

	(void)state;
	/* No more than a port asks for: 64 sends and 20 receives of each further conn. */
	opts.fake.max_cqe = 16 * CONN_ENTRIES + (CONNS - 16) * (64 + 20);
	bed = verbs_bed_new(&opts);
	here = side_memory(&bed->sides[A], SLAB, 8);
	there = side_memory(&bed->sides[B], SLAB, 8);
	memset(works, 0, sizeof(works));
	for (unsigned i = 0; i < CONNS; i++)
		bed_pair(bed, &a[i], &b[i]);
	bed_settle(bed);
	fake_verbs_hold_wire(true);
	for (unsigned i = 0; i < CONNS; i++) {
		struct tern_region region = link_expose(b[i], &there, TERN_ACCESS_WRITE);
		unsigned k = 0;

		while (k < PUTS && link_put(a[i], &works[i][k], &here, &region, 0) == 0)
			k++;
		assert_in_range(k, 1, PUTS - 1);
		count += k;
	}
	fake_verbs_hold_completions(FAKE_VERBS_SENDS, true);
	fake_verbs_remove_device(0);
	fake_verbs_hold_completions(FAKE_VERBS_SENDS, false);
	fake_verbs_hold_wire(false);
	for (unsigned i = 0; i < CONNS; i++)
		check_ends(a[i], -ENETDOWN);
	for (unsigned i = 0; i < CONNS; i++) {
		for (unsigned k = 0; k < PUTS; k++)
			ended += works[i][k].done_count;
	}
	assert_int_equal(ended, count);
	verbs_bed_free(bed);
}

static void test_conns_beyond_the_shared_receive_queue_have_their_own(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();
	struct link *a[6], *b[6];
	struct bed *bed;

	(void)state;
	opts.fake.max_srq_wr = 3 * CONN_RECEIVES;
	bed = verbs_bed_new(&opts);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(a); i++)
		bed_pair(bed, &a[i], &b[i]);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(a); i++) {
		check_works(a[i], b[i]);
		check_moves(a[i], b[i], 100000, i);
	}
	/* When a conn that uses the shared receive queue ends, the next conn can use the
	 * queue. */
	link_close(a[1], false);
	PUMP(bed, a[1]->closed_count && b[1]->closed_count);
	link_close(a[5], false);
	PUMP(bed, a[5]->closed_count && b[5]->closed_count);
	bed_pair(bed, &a[1], &b[1]);
	for (unsigned i = 0; i < 5; i++)
		check_works(a[i], b[i]);
	verbs_bed_free(bed);
}

/* ---- receive buffers that a device refuses to register ---- */

/* Number of conns for which a port must allocate more receive buffers. */
#define GROWING 6u

static void pair_at(
	struct bed *bed, struct tern_lsn *lsn, struct link **a, struct link **b)
{
	unsigned before = bed->sides[B].accepted_count;
	char address[BED_ADDRESS_MAX];

	snprintf(address, sizeof(address), "%s",
		bed->sides[B].fabric->ops->lsn_address(lsn));
	*a = bed_dial_at(bed, A, address);
	PUMP(bed, (*a)->up && bed->sides[B].accepted_count > before);
	*b = tern_list_entry(bed->sides[B].links.prev, struct link, node);
}

/* B uses devices 1 and 2. While device 2 refuses to register receive buffers, new conns on
 * device 1 and the old conn on device 2 must work. */
static void test_slots_that_one_device_refuses_are_of_no_concern_to_another(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();
	struct link *a[GROWING], *b[GROWING], *before[2], *after[2];
	struct tern_lsn *lsn;
	struct bed *bed;
	struct side *listener;
	unsigned calls;

	(void)state;
	opts.fake.device_count = 3;
	bed = verbs_bed_new(&opts);
	listener = &bed->sides[B];
	assert_int_equal(
		listener->fabric->ops->listen(listener->port, "10.7.0.3:0", &lsn), 0);
	pair_at(bed, lsn, &before[0], &before[1]);
	fake_verbs_refuse_at(2, EFAULT);
	calls = fake_verbs_calls("reg_mr");
	for (unsigned i = 0; i < GROWING; i++)
		bed_pair(bed, &a[i], &b[i]);
	assert_true(fake_verbs_calls("reg_mr") > calls);
	talk_both_ways(before[0], before[1], 1000, MESSAGE_BYTES - SAY_HEAD_BYTES, 1);
	fake_verbs_refuse_at(2, 0);
	pair_at(bed, lsn, &after[0], &after[1]);
	talk_both_ways(after[0], after[1], 1000, MESSAGE_BYTES - SAY_HEAD_BYTES, 2);
	check_works(before[0], before[1]);
	for (unsigned i = 0; i < GROWING; i++)
		check_works(a[i], b[i]);
	listener->fabric->ops->lsn_close(lsn);
	verbs_bed_free(bed);
}

/* B's device refuses to register more receive buffers, so B refuses a conn. When the device
 * takes them again, the next conn must come up. */
static void test_slots_that_a_device_refused_are_asked_for_again(void **state)
{
	struct link *a[GROWING + 1], *b[GROWING + 1], *link;
	unsigned count = 0;
	struct bed *bed;

	(void)state;
	bed = verbs_bed_new(NULL);
	bed_pair(bed, &a[0], &b[0]);
	fake_verbs_refuse_at(1, EFAULT);
	do {
		unsigned before = bed->sides[B].accepted_count;

		link = bed_dial(bed);
		PUMP(bed, link->closed_count ||
				  (link->up && bed->sides[B].accepted_count > before));
		if (link->closed_count)
			break;
		a[++count] = link;
		b[count] = tern_list_entry(bed->sides[B].links.prev, struct link, node);
	} while (count < GROWING);
	assert_true(link->closed_count);
	fake_verbs_refuse_at(1, 0);
	count++;
	bed_pair(bed, &a[count], &b[count]);
	for (unsigned i = 0; i <= count; i++)
		check_works(a[i], b[i]);
	verbs_bed_free(bed);
}

/* ---- memory that cannot be locked ---- */

struct captured {
	int saved_fd;
	FILE *file;
	struct rlimit limit;
};

/* Captures stderr, and sets a limit of locked memory, which the log line must name. */
static void capture(struct captured *c)
{
	struct rlimit low;

	assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &c->limit), 0);
	low = c->limit;
	low.rlim_cur = TERN_MIN(low.rlim_cur, (rlim_t)8 << 20);
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &low), 0);
	c->file = tmpfile();
	assert_non_null(c->file);
	fflush(stderr);
	c->saved_fd = dup(STDERR_FILENO);
	assert_int_equal(dup2(fileno(c->file), STDERR_FILENO), STDERR_FILENO);
}

static void captured_text(struct captured *c, char *out, size_t bytes)
{
	size_t n;

	fflush(stderr);
	assert_int_equal(dup2(c->saved_fd, STDERR_FILENO), STDERR_FILENO);
	close(c->saved_fd);
	rewind(c->file);
	n = fread(out, 1, bytes - 1, c->file);
	out[n] = 0;
	fclose(c->file);
	setrlimit(RLIMIT_MEMLOCK, &c->limit);
}

static void test_memory_that_cannot_be_registered_is_refused_and_conns_go_on(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();
	const uint64_t bytes = 32u << 20;
	struct captured captured;
	struct tern_mem *mem;
	struct link *a, *b;
	struct bed *bed;
	char text[4096];
	void *memory;

	(void)state;
	opts.fake.reg_limit_bytes = 16u << 20;
	bed = verbs_bed_new(&opts);
	memory = malloc(bytes);
	bed_pair(bed, &a, &b);
	capture(&captured);
	assert_int_equal(
		tern_mem_wrap(bed->sides[A].domain, memory, bytes, &mem), -ENOMEM);
	captured_text(&captured, text, sizeof(text));
	assert_non_null(strstr(text, "RLIMIT_MEMLOCK"));
	assert_non_null(strstr(text, "32 MiB"));
	check_works(a, b);
	assert_int_equal(tern_mem_wrap(bed->sides[A].domain, memory, 4u << 20, &mem), 0);
	tern_mem_put(mem);
	verbs_bed_free(bed);
	free(memory);
}

static void test_a_port_whose_devices_cannot_register_is_refused(void **state)
{
	struct fake_verbs_opts fake = fake_verbs_defaults();
	struct tern_domain_hooks hooks = {.verbs_api = fake_verbs_api()};
	const uint64_t bytes = 32u << 20;
	struct rlimit limit, low;
	struct tern_domain *domain;
	struct tern_fabric *verbs;
	struct tern_port *port;
	struct tern_mem *mem;
	struct log_env log;
	struct tern_port_opts port_opts = {.env = &log.env, .message_bytes = 4096};
	void *memory = malloc(bytes);

	(void)state;
	fake.reg_limit_bytes = 16u << 20;
	fake_verbs_reset(&fake);
	log_env_init(&log);
	assert_int_equal(tern_domain_new_hooked(NULL, &hooks, &domain), 0);
	verbs = tern_domain_fabric(domain, "verbs", 5);
	assert_int_equal(tern_mem_wrap(domain, memory, bytes, &mem), 0);
	assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
	low = limit;
	low.rlim_cur = TERN_MIN(low.rlim_cur, (rlim_t)8 << 20);
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &low), 0);
	assert_int_equal(verbs->ops->port_new(verbs, &port_opts, &port), -ENOMEM);
	assert_true(log_env_has(&log, "RLIMIT_MEMLOCK"));
	setrlimit(RLIMIT_MEMLOCK, &limit);
	tern_mem_put(mem);
	assert_int_equal(verbs->ops->port_new(verbs, &port_opts, &port), 0);
	verbs->ops->port_free(port);
	tern_domain_free(domain);
	free(memory);
}

/* ---- rules that always hold ---- */

static void test_nothing_is_registered_once_it_runs(void **state)
{
	struct bed *bed = verbs_bed_new(NULL);
	struct link *a, *b;
	unsigned calls;

	(void)state;
	for (unsigned i = 0; i < 8; i++) {
		bed_pair(bed, &a, &b);
		talk_both_ways(a, b, 300, 8000, i);
		if (i < 4)
			check_moves(a, b, 300000, i);
		link_close(a, i % 2);
		PUMP(bed, a->closed_count && b->closed_count);
		if (i == 3)
			calls = fake_verbs_calls("reg_mr");
	}
	assert_int_equal(fake_verbs_calls("reg_mr"), calls);
	verbs_bed_free(bed);
}

/* Number of registrations that a wrap of this kind makes. */
static unsigned registrations(struct tern_domain *domain, bool brief, uint64_t bytes)
{
	unsigned calls = fake_verbs_calls("reg_mr");
	char *base = malloc(bytes);
	struct tern_mem *mem;

	assert_int_equal(brief ? tern_mem_wrap_brief(domain, base, bytes, true, &mem)
			       : tern_mem_wrap(domain, base, bytes, &mem),
		0);
	tern_mem_put(mem);
	free(base);
	return fake_verbs_calls("reg_mr") - calls;
}

static void test_brief_memory_is_registered_only_if_it_is_large(void **state)
{
	struct bed *bed = verbs_bed_new(NULL);
	struct tern_domain *domain = bed->sides[A].domain;

	(void)state;
	assert_true(registrations(domain, false, TERN_MEM_BRIEF_BYTES) > 0);
	assert_int_equal(registrations(domain, true, TERN_MEM_BRIEF_BYTES), 0);
	assert_true(registrations(domain, true, TERN_MEM_BRIEF_BYTES + 1) > 0);
	verbs_bed_free(bed);
}

/* Sends messages in both directions, while the simulated device sometimes delays the
 * completions of sends, of receives or of both. */
static void talk_in_fits(
	struct link *a, struct link *b, unsigned count, unsigned most, uint64_t seed)
{
	struct tern_rng rng = {.seed = seed};
	struct talk ab, ba;
	bool done = false;

	talk_init(&ab, a, count, most, seed);
	talk_init(&ba, b, count, most, seed + 77);
	while (!done) {
		uint64_t dice = tern_rng_below(&rng, 8);

		fake_verbs_hold_completions(FAKE_VERBS_SENDS, dice & 1);
		fake_verbs_hold_completions(FAKE_VERBS_RECEIVES, (dice & 6) == 6);
		for (unsigned i = 0; i < 10; i++) {
			talk_on(&ab);
			talk_on(&ba);
			bed_turn(a->side->bed);
		}
		done = ab.count == a->said && ba.count == b->said;
	}
	fake_verbs_hold_completions(FAKE_VERBS_SENDS, false);
	fake_verbs_hold_completions(FAKE_VERBS_RECEIVES, false);
	PUMP(a->side->bed, b->heard == a->said && a->heard == b->said);
}

static void test_no_message_is_lost_whatever_completes_late(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();

	(void)state;
	for (unsigned seed = 1; seed <= 20; seed++) {
		struct link *a, *b;
		struct bed *bed;

		opts.fake.seed = seed;
		opts.fake.max_srq = seed % 2 ? 64 : 0;
		opts.verbs = seed % 3 ? NULL : "from=10.7.0.1,depth=16";
		bed = verbs_bed_new(&opts);
		bed_pair(bed, &a, &b);
		talk_in_fits(a, b, ROUNDS(10000), 24, seed);
		verbs_bed_free(bed);
	}
}

static void test_messages_of_many_frames_fit_a_small_window(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();

	(void)state;
	opts.message_bytes = LONG_MESSAGE_BYTES;
	for (unsigned seed = 1; seed <= ROUNDS(6); seed++) {
		struct link *a, *b;
		struct bed *bed;

		opts.fake.seed = seed;
		opts.fake.max_srq = seed % 2 ? 64 : 0;
		opts.fake.delay_steps = seed % 3 * 10;
		opts.verbs = seed % 2 ? "from=10.7.0.1,depth=16" : NULL;
		bed = verbs_bed_new(&opts);
		for (unsigned i = 0; i < 18; i++)
			bed_pair(bed, &a, &b);
		/* The window (messages in flight) of the last conn is only 16, since
		 * there are many conns. */
		talk_in_fits(a, b, 200, LONG_MESSAGE_BYTES - SAY_HEAD_BYTES, seed);
		for (size_t bytes = 0; bytes < 30000; bytes += 1 + bytes / 3)
			verbs_say_surely(a, bytes);
		for (size_t bytes = 8400; bytes < 8600; bytes++)
			verbs_say_surely(b, bytes);
		PUMP(bed, b->heard == a->said && a->heard == b->said);
		verbs_bed_free(bed);
	}
}

/* Conns end while messages for them have arrived and were not read: the receive buffers
 * must return to the shared receive queue. */
static void test_conns_that_end_in_the_midst_of_things_cost_the_others_nothing(
	void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct link *a, *b, *c, *d;
		struct bed *bed;

		opts.fake.keep_stale_cqes = i;
		bed = verbs_bed_new(&opts);
		bed_pair(bed, &a, &b);
		for (unsigned k = 0; k < 20; k++) {
			bed_pair(bed, &c, &d);
			while (verbs_say(c, 10) == 0)
				;
			side_turns(&bed->sides[A], 40);
			link_close(d, false);
			check_ends(d, 0);
			PUMP(bed, c->closed_count);
			check_works(a, b);
		}
		verbs_bed_free(bed);
	}
}

static void echo(struct link *link)
{
	(void)verbs_say(link, 8000);
}

/* B answers each message from a receive buffer, and sends complete late. Enough receive
 * buffers must stay free for the next messages. */
static void test_answers_leave_slots_to_receive_into(void **state)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();
	enum { CONNS = 6 };
	struct link *a[CONNS], *b[CONNS];
	struct bed *bed;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		opts.fake.max_srq = i ? 0 : 64;
		bed = verbs_bed_new(&opts);
		for (unsigned k = 0; k < CONNS; k++) {
			bed_pair(bed, &a[k], &b[k]);
			b[k]->on_heard = echo;
		}
		for (unsigned round = 0; round < ROUNDS(600); round++) {
			fake_verbs_hold_completions(
				FAKE_VERBS_SENDS, round % ROUNDS(300) < ROUNDS(250));
			for (unsigned k = 0; k < CONNS; k++)
				while (verbs_say(a[k], 10) == 0)
					;
			bed_turn(bed);
		}
		fake_verbs_hold_completions(FAKE_VERBS_SENDS, false);
		for (unsigned k = 0; k < CONNS; k++) {
			b[k]->on_heard = NULL;
			check_works(a[k], b[k]);
		}
		verbs_bed_free(bed);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_shortest_queues_do),
		cmocka_unit_test(test_any_inline_size_does),
		cmocka_unit_test(test_one_read_at_a_time_does),
		cmocka_unit_test(test_a_put_is_cut_to_what_one_work_request_carries),
		cmocka_unit_test(test_a_full_completion_queue_refuses_the_next_conn_only),
		cmocka_unit_test(
			test_full_send_queues_of_many_conns_fit_the_completion_queue),
		cmocka_unit_test(
			test_conns_beyond_the_shared_receive_queue_have_their_own),
		cmocka_unit_test(
			test_slots_that_one_device_refuses_are_of_no_concern_to_another),
		cmocka_unit_test(test_slots_that_a_device_refused_are_asked_for_again),
		cmocka_unit_test(
			test_memory_that_cannot_be_registered_is_refused_and_conns_go_on),
		cmocka_unit_test(test_a_port_whose_devices_cannot_register_is_refused),
		cmocka_unit_test(test_nothing_is_registered_once_it_runs),
		cmocka_unit_test(test_brief_memory_is_registered_only_if_it_is_large),
		cmocka_unit_test(test_no_message_is_lost_whatever_completes_late),
		cmocka_unit_test(test_messages_of_many_frames_fit_a_small_window),
		cmocka_unit_test(
			test_conns_that_end_in_the_midst_of_things_cost_the_others_nothing),
		cmocka_unit_test(test_answers_leave_slots_to_receive_into),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
