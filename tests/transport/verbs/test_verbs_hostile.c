/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of peers that are not Tern, or violate the protocol: a bare queue pair sends
 * anything to a port, or a region is forged. Each time only the conn concerned must end,
 * with -EPROTO in most cases, and mostly with a log line that names the conn.
 */
#include "tests/transport/verbs/verbs_bed.h"

#include <endian.h>

#include "tests/fakes/verbs/pair.h"
#include "transport/verbs/verbs.h"

/* B listens, and has one correct conn with A. A stranger (a bare queue pair) is on A's
 * machine. */
struct scene {
	struct bed *bed;
	struct link *a, *b;
	struct end raw;
	struct link *stranger; /* B's end of the stranger's conn */
	struct verbs_greeting heard;
	int reason; /* reason of the rejection; 0: the connection was accepted */
};

static int swallow(struct link *link, const void *data, size_t bytes)
{
	(void)data;
	link->heard_bytes += bytes;
	return 0;
}

static void on_stranger(struct link *link)
{
	link->on_message = swallow;
}

static void poll_both(struct scene *s, struct rdma_cm_event **event)
{
	*event = NULL;
	bed_turn(s->bed);
	(void)fake_verbs_api()->get_cm_event(s->raw.channel, event);
}

static struct rdma_cm_event *await(struct scene *s)
{
	struct rdma_cm_event *event;

	PUMP_WITH((void)0, "raw", (poll_both(s, &event), event != NULL));
	return event;
}

static void await_ack(struct scene *s, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = await(s);

	assert_int_equal(event->event, type);
	fake_verbs_api()->ack_cm_event(event);
}

static void scene_open(struct scene *s, const char *verbs)
{
	struct verbs_bed_opts opts = verbs_bed_defaults();

	memset(s, 0, sizeof(*s));
	opts.verbs = verbs;
	s->bed = verbs_bed_new(&opts);
	bed_pair(s->bed, &s->a, &s->b);
	s->bed->sides[B].on_accepted = on_stranger;
	end_open(&s->raw, 0, false);
}

static void scene_close(struct scene *s)
{
	check_works(s->a, s->b);
	end_close(&s->raw);
	verbs_bed_free(s->bed);
}

static uint16_t port_of(const char *text)
{
	return (uint16_t)strtoul(strrchr(text, ':') + 1, NULL, 10);
}

static struct verbs_greeting decent_greeting(void)
{
	return (struct verbs_greeting){.magic = htole32(VERBS_MAGIC),
		.version = htole16(VERBS_VERSION),
		.message_bytes = htole32(MESSAGE_BYTES),
		.window = htole32(128)};
}

static struct rdma_conn_param param_of(const void *data, size_t bytes)
{
	return (struct rdma_conn_param){.private_data = bytes ? data : NULL,
		.private_data_len = (uint8_t)bytes,
		.responder_resources = 4,
		.initiator_depth = 4,
		.retry_count = 7,
		.rnr_retry_count = 7};
}

static void knock(struct scene *s, const void *data, size_t bytes)
{
	const struct tern_verbs_api *api = fake_verbs_api();
	struct rdma_conn_param param = param_of(data, bytes);
	uint16_t port = port_of(s->bed->sides[B].fabric->ops->lsn_address(s->bed->lsn));
	struct rdma_cm_event *event;

	assert_int_equal(api->resolve_addr(s->raw.id, address("10.7.0.1", 0),
				 address("10.7.0.2", port), 1000),
		0);
	await_ack(s, RDMA_CM_EVENT_ADDR_RESOLVED);
	assert_int_equal(api->resolve_route(s->raw.id, 1000), 0);
	await_ack(s, RDMA_CM_EVENT_ROUTE_RESOLVED);
	assert_int_equal(end_qp(&s->raw), 0);
	assert_int_equal(api->connect(s->raw.id, &param), 0);
	event = await(s);
	if (event->event == RDMA_CM_EVENT_REJECTED)
		s->reason = event->status;
	else
		assert_int_equal(event->event, RDMA_CM_EVENT_ESTABLISHED);
	if (event->param.conn.private_data_len >= sizeof(s->heard))
		memcpy(&s->heard, event->param.conn.private_data, sizeof(s->heard));
	api->ack_cm_event(event);
}

static void come_in(struct scene *s)
{
	const struct verbs_greeting greeting = decent_greeting();

	knock(s, &greeting, sizeof(greeting));
	assert_int_equal(s->reason, 0);
	PUMP(s->bed, s->bed->sides[B].accepted_count == 2);
	s->stranger = tern_list_entry(s->bed->sides[B].links.prev, struct link, node);
}

/* ---- connection requests ---- */

static void check_turned_away(const void *data, size_t bytes, int status)
{
	struct scene s;

	scene_open(&s, NULL);
	knock(&s, data, bytes);
	/* 28: rejected by the other program ("consumer defined"). */
	assert_int_equal(s.reason, 28);
	assert_int_equal(le32toh(s.heard.magic), VERBS_MAGIC);
	assert_int_equal((int32_t)le32toh((uint32_t)s.heard.status), status);
	assert_true(verbs_logged(s.bed, "verbs 10.7.0.1"));
	assert_int_equal(s.bed->sides[B].accepted_count, 1);
	scene_close(&s);
}

static void test_a_bad_greeting_is_turned_away(void **state)
{
	struct verbs_greeting bad;

	(void)state;
	check_turned_away(NULL, 0, -EPROTO);
	bad = decent_greeting();
	check_turned_away(&bad, 7, -EPROTO);
	bad.magic++;
	check_turned_away(&bad, sizeof(bad), -EPROTO);
	bad = decent_greeting();
	bad.version = htole16(VERBS_VERSION + 1);
	check_turned_away(&bad, sizeof(bad), -EPROTONOSUPPORT);
	bad = decent_greeting();
	bad.message_bytes = htole32(MESSAGE_BYTES + 1);
	check_turned_away(&bad, sizeof(bad), -EPROTO);
	bad = decent_greeting();
	bad.window = htole32(VERBS_WINDOW_MANY - 1);
	check_turned_away(&bad, sizeof(bad), -EPROTO);
	bad.window = htole32(UINT16_MAX + 1);
	check_turned_away(&bad, sizeof(bad), -EPROTO);
	bad = decent_greeting();
	bad.device = htole32(VERBS_DEVICES_MAX);
	check_turned_away(&bad, sizeof(bad), -EPROTO);
}

/* ---- frames ---- */

/* Sends `bytes` bytes of the stranger's memory, at `offset`, as one SEND. */
static void say_raw(struct scene *s, uint32_t offset, uint32_t bytes)
{
	assert_int_equal(post_send(&s->raw, 1, offset, bytes), 0);
}

static void say_frame(struct scene *s, uint32_t credit, unsigned type, uint32_t payload)
{
	struct verbs_frame head = {.credit = credit, .type = (uint8_t)type};

	memcpy(s->raw.memory, &head, sizeof(head));
	say_raw(s, 0, sizeof(head) + payload);
}

static void check_thrown_out(struct scene *s, const char *why)
{
	check_ends(s->stranger, -EPROTO);
	assert_true(verbs_logged(s->bed, why));
	assert_true(verbs_logged(s->bed, "verbs 10.7.0.1"));
	scene_close(s);
}

static void test_a_bad_frame_ends_its_conn_only(void **state)
{
	const struct {
		unsigned type;
		uint32_t credit, payload;
		const char *why;
	} bad[] = {
		{0, 0, 8, "unknown type"},
		{6, 0, 8, "unknown type"},
		{255, 0, 0, "unknown type"},
		{VERBS_PUT, 0, 100, "was never offered memory"},
		{VERBS_MESSAGE, 1, 8, "more messages than were sent"},
		{VERBS_CREDIT, 0x7fffffff, 0, "more messages than were sent"},
		{VERBS_MESSAGE, 0, 0, "empty"},
		{VERBS_MESSAGE, 0, MESSAGE_BYTES + 1, "longer than agreed"},
		{VERBS_MORE, 0, MESSAGE_BYTES + 1, "longer than agreed"},
		{VERBS_MESSAGE, 0, VERBS_PAYLOAD + 1, "larger than a receive buffer"},
	};

	(void)state;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(bad); i++) {
		struct scene s;

		scene_open(&s, NULL);
		come_in(&s);
		say_frame(&s, bad[i].credit, bad[i].type, bad[i].payload);
		check_thrown_out(&s, bad[i].why);
	}
}

static void test_a_frame_without_a_head_ends_its_conn(void **state)
{
	(void)state;
	for (uint32_t bytes = 0; bytes < sizeof(struct verbs_frame); bytes++) {
		struct scene s;

		scene_open(&s, NULL);
		come_in(&s);
		say_raw(&s, 0, bytes);
		check_thrown_out(&s, "shorter than its header");
	}
}

static void test_a_message_without_an_end_has_a_limit(void **state)
{
	struct scene s;

	(void)state;
	scene_open(&s, NULL);
	come_in(&s);
	for (unsigned i = 0; i < 8; i++)
		say_frame(&s, 0, VERBS_MORE, MESSAGE_BYTES / 8);
	bed_settle(s.bed);
	assert_int_equal(s.stranger->closed_count, 0);
	say_frame(&s, 0, VERBS_MESSAGE, 1);
	check_thrown_out(&s, "longer than agreed");
}

static void test_a_first_frame_that_is_bad_may_come_before_the_conn_is_up(void **state)
{
	const struct verbs_greeting greeting = decent_greeting();
	struct scene s;

	(void)state;
	scene_open(&s, NULL);
	fake_verbs_hold_cm(RDMA_CM_EVENT_ESTABLISHED, FAKE_VERBS_PASSIVE, true);
	knock(&s, &greeting, sizeof(greeting));
	say_frame(&s, 0, 77, 0);
	PUMP(s.bed, s.bed->sides[B].accepted_count == 2);
	s.stranger = tern_list_entry(s.bed->sides[B].links.prev, struct link, node);
	fake_verbs_hold_cm(RDMA_CM_EVENT_ESTABLISHED, FAKE_VERBS_PASSIVE, false);
	check_thrown_out(&s, "unknown type");
}

/* The stranger receives no messages, so B's send queue fills with grants of credits
 * (rights to send). Then B can grant no more, and the stranger sends without a credit. */
static void test_more_messages_than_credits_end_the_conn(void **state)
{
	struct scene s;
	unsigned count = 0;

	(void)state;
	scene_open(&s, "depth=16,from=10.7.0.1");
	come_in(&s);
	for (; count < 20000 && !s.stranger->closed_count; count++) {
		say_frame(&s, 0, VERBS_MESSAGE, 8);
		for (unsigned i = 0; i < 1000 && polled(&s.raw) == 0; i++)
			side_poll(&s.bed->sides[B], 64);
	}
	assert_in_range(count, 128, 19999);
	check_thrown_out(&s, "more than it has credits for");
}

static void test_a_put_past_a_guarded_window_ends_the_conn(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		struct verbs_put put = {.slot = i * 1000, .generation = i, .offset = 5};
		struct verbs_frame head = {.type = VERBS_PUT};
		struct tern_region region;
		struct verbs_region theirs;
		struct tern_buf buf;
		struct scene s;

		scene_open(&s, "guard=on,from=10.7.0.1");
		come_in(&s);
		buf = side_memory(&s.bed->sides[B], SLAB, 100);
		region = link_expose(i == 3 ? s.b : s.stranger, &buf, TERN_ACCESS_WRITE);
		verbs_region_decode(&region, &theirs);
		/* Round 2: beyond the end of the window; round 3: the window of another
		 * conn. Rounds 0 and 1: no window of B. */
		if (i == 2 || i == 3) {
			put.slot = (uint32_t)theirs.start;
			put.generation = (uint32_t)(theirs.start >> 32);
			put.offset = i == 2 ? 95 : 0;
		}
		memcpy(s.raw.memory, &head, sizeof(head));
		memcpy(s.raw.memory + sizeof(head), &put, sizeof(put));
		/* In round 0 the put ends with its header, without data. */
		say_raw(&s, 0, sizeof(head) + sizeof(put) + (i ? 6 : 0));
		check_thrown_out(
			&s, i ? "memory that is not exposed" : "a put without bytes");
	}
}

/* The stranger writes with an invalid memory key, which B's device detects: the conn must
 * end at B. */
static void test_a_write_with_a_bad_key_ends_both_ends(void **state)
{
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
	struct scene s;

	(void)state;
	scene_open(&s, NULL);
	come_in(&s);
	wr.wr.rdma.rkey = 0xdead00;
	assert_int_equal(post(&s.raw, wr, 0, 100), 0);
	PUMP(s.bed, s.stranger->closed_count);
	assert_true(s.stranger->status == -EPROTO || s.stranger->status == -ECONNRESET);
	scene_close(&s);
}

/* ---- regions ---- */

static void test_a_region_that_cannot_be_is_not_used(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 6; i++) {
		struct bed *bed = verbs_bed_new(NULL);
		struct link *a, *b, *c, *d;
		struct tern_buf here, there;
		struct verbs_region region;
		struct tern_region wire;
		struct work work = {0};
		uint64_t offset = 0;
		int r;

		bed_pair(bed, &a, &b);
		bed_pair(bed, &c, &d);
		here = side_memory(&bed->sides[A], SLAB, 4096);
		there = side_memory(&bed->sides[B], SLAB, 4096);
		wire = link_expose(b, &there, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
		verbs_region_decode(&wire, &region);
		if (i == 0)
			region.access = TERN_ACCESS_READ;
		else if (i == 1)
			region.bytes = 4095;
		else if (i == 2)
			region.guarded = 1;
		else if (i == 3)
			region.start = UINT64_MAX - 10;
		else if (i == 4)
			offset = UINT64_MAX - 5;
		else
			memset(region.keys, 0xee, sizeof(region.keys));
		verbs_region_encode(&region, &wire);
		r = link_put(a, &work, &here, &wire, offset);
		/* Wrong keys (5) are detected by the device, a wrong `guarded` (2) by the
		 * owner of the memory, all others by the sender. */
		assert_int_equal(r, i == 5 || i == 2 ? 0 : -ENOTCONN);
		check_ends(a, i == 5 ? -EREMOTEIO : i == 2 ? -ECONNRESET : -EPROTO);
		PUMP(bed, b->closed_count);
		assert_true(
			verbs_logged(bed, i == 2 ? "verbs 10.7.0.1" : "verbs 10.7.0.2"));
		check_works(c, d);
		verbs_bed_free(bed);
	}
}

/* ---- a listener that misbehaves ---- */

struct host {
	struct scene scene;
	struct rdma_cm_id *listener;
	struct link *caller;
	struct rdma_cm_event *request;
};

/* A connects to a bare listener; returns when the listener has the connection request. */
static void host_open(struct host *h)
{
	const struct tern_verbs_api *api = fake_verbs_api();
	char text[BED_ADDRESS_MAX];

	scene_open(&h->scene, NULL);
	h->listener = h->scene.raw.id;
	h->scene.raw.id = NULL;
	assert_int_equal(api->bind_addr(h->listener, address("10.7.0.1", 0)), 0);
	assert_int_equal(api->listen(h->listener, 8), 0);
	snprintf(text, sizeof(text), "10.7.0.1:%u",
		ntohs(h->listener->route.addr.src_sin.sin_port));
	h->caller = bed_dial_at(h->scene.bed, A, text);
	h->request = await(&h->scene);
	assert_int_equal(h->request->event, RDMA_CM_EVENT_CONNECT_REQUEST);
	h->scene.raw.id = h->request->id;
	api->ack_cm_event(h->request);
}

static void host_close(struct host *h)
{
	assert_int_equal(fake_verbs_api()->destroy_id(h->listener), 0);
	scene_close(&h->scene);
}

static void test_a_bad_answer_ends_the_conn(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 6; i++) {
		struct verbs_greeting bad = decent_greeting();
		struct rdma_conn_param param;
		struct host h;

		host_open(&h);
		if (i == 0)
			bad.magic = 0;
		else if (i == 1)
			bad.version = htole16(9);
		else if (i == 2)
			bad.message_bytes = 0;
		else if (i == 3)
			bad.window = 0;
		else if (i == 4)
			bad.device = UINT32_MAX;
		param = param_of(&bad, i == 5 ? 0 : sizeof(bad));
		assert_int_equal(end_qp(&h.scene.raw), 0);
		assert_int_equal(fake_verbs_api()->accept(h.scene.raw.id, &param), 0);
		check_ends(h.caller, i == 1 ? -EPROTONOSUPPORT : -EPROTO);
		assert_false(h.caller->up);
		assert_true(verbs_logged(h.scene.bed, "verbs 10.7.0.1"));
		host_close(&h);
	}
}

static void test_a_rejection_says_only_what_can_be_a_status(void **state)
{
	static const int32_t said[] = {-ENOMEM, 0, 5, -5000, INT32_MIN};

	(void)state;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(said); i++) {
		struct verbs_greeting greeting = decent_greeting();
		struct host h;

		host_open(&h);
		greeting.status = (int32_t)htole32((uint32_t)said[i]);
		assert_int_equal(fake_verbs_api()->reject(
					 h.scene.raw.id, &greeting, sizeof(greeting)),
			0);
		check_ends(h.caller, i == 0 ? -ENOMEM : -ECONNREFUSED);
		host_close(&h);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_bad_greeting_is_turned_away),
		cmocka_unit_test(test_a_bad_frame_ends_its_conn_only),
		cmocka_unit_test(test_a_frame_without_a_head_ends_its_conn),
		cmocka_unit_test(test_a_message_without_an_end_has_a_limit),
		cmocka_unit_test(
			test_a_first_frame_that_is_bad_may_come_before_the_conn_is_up),
		cmocka_unit_test(test_more_messages_than_credits_end_the_conn),
		cmocka_unit_test(test_a_put_past_a_guarded_window_ends_the_conn),
		cmocka_unit_test(test_a_write_with_a_bad_key_ends_both_ends),
		cmocka_unit_test(test_a_region_that_cannot_be_is_not_used),
		cmocka_unit_test(test_a_bad_answer_ends_the_conn),
		cmocka_unit_test(test_a_rejection_says_only_what_can_be_a_status),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
