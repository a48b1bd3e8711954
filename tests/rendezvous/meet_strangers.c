/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests with a stranger: a peer that sends messages that no correct Tern sends, most of
 * them after a complete handshake. It uses a port of the fabric test bed, so the wrong
 * messages are sent over each fabric but the simulator. After a wrong message B must close
 * the stranger's connection, log the reason, and free the records (memory for received
 * messages) that the messages used. B's session with A must not be affected. Other errors
 * in the handshake, and those of the fabric's own frames (tcp), are in hostile.c.
 */
#include "tests/rendezvous/meet_scene.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/endian.h"
#include "base/util.h"
#include "rendezvous/rendezvous.h"

/* Messages that no correct peer sends in this state. */
static const struct {
	struct tern_header h;
	/* With this capability of the fabric the message is correct; 0: it is always
	 * wrong. */
	uint32_t unless;
} wrong[] = {
	{{.type = TERN_MSG_RTS, .shape = {TERN_U8, 1, {9}}, .bytes = 9}, 0},
	{{.type = TERN_MSG_RTS,
		 .flags = TERN_FLAG_REGION,
		 .shape = {TERN_U8, 1, {9}},
		 .bytes = 9},
		0},
	{{.type = TERN_MSG_RTS,
		 .flags = TERN_FLAG_REGION,
		 .shape = {TERN_U8, 1, {9}},
		 .bytes = 9,
		 .src = 0x10001},
		TERN_CAP_GET},
	{{.type = TERN_MSG_RTS, .shape = {TERN_U8, 1, {9}}, .bytes = 9, .src = 0x10001},
		TERN_CAP_PUT},
	{{.type = TERN_MSG_POST, .flags = TERN_FLAG_REGION, .bytes = 9}, 0},
	{{.type = TERN_MSG_POST, .bytes = 9, .src = 0x10001}, 0},
	{{.type = TERN_MSG_POST, .flags = TERN_FLAG_REGION, .bytes = 9, .src = 0x10001},
		TERN_CAP_PUT},
	/* A DONE of a rail, in which B ignores the shape, for a request that does not
	 * exist. */
	{{.type = TERN_MSG_DONE,
		 .flags = TERN_FLAG_RAIL,
		 .shape = {(enum tern_dtype)200, 0, {0}},
		 .bytes = 9,
		 .dst = 0x10001},
		0},
	/* Statuses that no message may have; and, the last one, that no CTS may have. */
	{{.type = TERN_MSG_ATS, .status = -EINPROGRESS, .dst = 0x10001}, 0},
	{{.type = TERN_MSG_ATS, .status = -EAGAIN, .dst = 0x10001}, 0},
	{{.type = TERN_MSG_ATS, .status = -4096, .dst = 0x10001}, 0},
	{{.type = TERN_MSG_DONE, .status = -EINPROGRESS, .dst = 0x10001}, 0},
	{{.type = TERN_MSG_CTS, .status = -EIO, .dst = 0x10001}, 0},
	/* Answers (MISS, or RTS and EAGER with `dst`) without a WANT before, and a WANT
	 * without an id. */
	{{.type = TERN_MSG_MISS, .dst = 0x10001}, 0},
	{{.type = TERN_MSG_MISS, .status = -EIO, .dst = 0x10001}, 0},
	{{.type = TERN_MSG_WANT, .key = 5}, 0},
	{{.type = TERN_MSG_RTS,
		 .shape = {TERN_U8, 1, {9}},
		 .bytes = 9,
		 .src = 0x10001,
		 .dst = 0x10001},
		0},
	{{.type = TERN_MSG_EAGER, .shape = {TERN_U8, 1, {9}}, .bytes = 9, .dst = 0x10001},
		0},
	/* Flags that only other message types may have; and, the last one, an EAGER with a
	 * tensor larger than the limit. */
	{{.type = TERN_MSG_HAVE, .flags = TERN_FLAG_RECV}, 0},
	{{.type = TERN_MSG_ATS, .flags = TERN_FLAG_REPLY, .dst = 0x10001}, 0},
	{{.type = TERN_MSG_FIN, .flags = TERN_FLAG_RECV}, 0},
	{{.type = TERN_MSG_DONE,
		 .flags = TERN_FLAG_REGION,
		 .status = -EIO,
		 .dst = 0x10001},
		0},
	{{.type = TERN_MSG_EAGER,
		 .shape = {TERN_U8, 1, {TERN_EAGER_MAX + 1}},
		 .bytes = TERN_EAGER_MAX + 1},
		0},
};

static void test_messages_that_cannot_be_meant_end_their_session_only(
	const struct instance *instance)
{
	struct scene s;
	/* The stranger is still connected, since the last message of the list is correct on
	 * this fabric and was not sent. */
	bool waits = false;

	scene_init(&s, instance);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(wrong); i++) {
		if (!waits)
			stranger_comes(&s);
		/* A message that is correct on this fabric is not sent, and the stranger
		 * stays for the next one. If it closed the connection itself, B would wait
		 * for its return, and that session would end during the next check. */
		waits = (link_caps(s.link) & wrong[i].unless) != 0;
		if (!waits)
			scene_protocol_error(&s, &wrong[i].h);
		scene_undisturbed(&s, i);
	}
	scene_fini(&s);
}

static void test_strangers_that_break_the_protocol_cannot_fill_the_log(
	const struct instance *instance)
{
	static const struct tern_header bad = {.type = TERN_MSG_MISS, .dst = 0x10001};
	struct log_env *log;
	struct scene s;

	scene_init(&s, instance);
	log = &s.meet->ends[B].log;
	log->env.strangers.until_ns = UINT64_MAX; /* the limit's 10 s do not end */
	log->env.strangers.left = TERN_LOG_STRANGERS;
	log->count = 0;
	for (unsigned i = 0; i < TERN_LOG_STRANGERS + 4; i++) {
		stranger_comes(&s);
		scene_ends_session(&s, &bad);
	}
	assert_int_equal(log->count, TERN_LOG_STRANGERS);
	scene_fini(&s);
}

/* ---- answers to a WANT ---- */

#define WANTED_STEP 7u

static const struct tern_header starved = {.type = TERN_MSG_EAGER,
	.flags = TERN_FLAG_STARVED,
	.shape = {TERN_U8, 1, {9}},
	.bytes = 9};

static uint32_t wanted_count(struct scene *s)
{
	return tern_rdv_of(s->meet->ends[B].ctx)->wanted_count;
}

/* The stranger uses up all its credits with other messages, so B asks for the send of
 * `recv` with a WANT. `any`: `recv` is a tern_recv_any(). */
static void be_wanted_by(struct scene *s, struct call *recv, bool any)
{
	struct end *b = &s->meet->ends[B];
	struct tern_buf room = end_memory(b, SLAB, 9);
	struct tern_channel *channel;

	stranger_comes(s);
	assert_int_equal(tern_channel_open(s->caller, MEET_CHANNEL, &channel), 0);
	call_init(recv, b);
	assert_int_equal(any ? call_started(recv,
				       tern_recv_any(&channel, 1, &recv->req,
					       STRANGER_KEY, WANTED_STEP, &room, NULL, 0))
			     : call_recv_as(recv, channel, STRANGER_KEY, WANTED_STEP,
				       &room, NULL, 0),
		0);
	while (!s->want) {
		if (s->used != s->granted)
			stranger_says(s, &starved);
		else
			SCENE_PUMP(s, s->want || s->used != s->granted);
	}
	assert_int_equal(wanted_count(s), 1);
}

static void be_wanted(struct scene *s, struct call *recv)
{
	be_wanted_by(s, recv, false);
}

static void check_thrown_out(struct scene *s, unsigned down_before)
{
	SCENE_PUMP(s, s->link->closed_count);
	SCENE_PUMP(s, s->down_count > down_before);
	assert_int_equal(s->down_status, -EPROTO);
	assert_int_equal(wanted_count(s), 0);
	scene_undisturbed(s, 100 + down_before);
}

static void miss(struct scene *s, uint32_t id)
{
	stranger_says(s, &(struct tern_header){.type = TERN_MSG_MISS, .dst = id});
}

/* B receives another message of the stranger, which gives the stranger a credit. With it
 * the stranger sends an EAGER that completes `recv`, for which B has sent a WANT before.
 * Now the only correct answer to that WANT is MISS. */
static void take_the_receive(struct scene *s, struct call *recv)
{
	struct tern_header h = starved;
	struct tern_buf room = end_memory(&s->meet->ends[B], SLAB, 9);
	struct tern_channel *channel;
	struct call arrival = {0};

	assert_int_equal(tern_channel_open(s->caller, MEET_CHANNEL, &channel), -EEXIST);
	call_init(&arrival, &s->meet->ends[B]);
	assert_int_equal(
		call_recv_as(&arrival, channel, STRANGER_KEY, 0, &room, NULL, 0), 0);
	SCENE_PUMP(s, call_over(&arrival) && s->used != s->granted);
	h.step = WANTED_STEP;
	stranger_says(s, &h);
	SCENE_PUMP(s, call_over(recv));
	assert_int_equal(recv->req.status, 0);
	assert_int_equal(wanted_count(s), 1);
}

static void test_only_a_miss_that_is_due_is_believed(const struct instance *instance)
{
	struct tern_context_opts few_records = meet_opts();
	struct call recv = {0};
	struct scene s;

	few_records.record_count = 64;
	scene_init_with(&s, instance, &few_records);
	/* The MISS has an id for which B has sent no WANT. */
	be_wanted(&s, &recv);
	miss(&s, 0xdead);
	check_thrown_out(&s, 0);
	assert_int_equal(recv.req.status, -EPROTO);
	/* The receive has ended, so one MISS must come, and a second one is an error. */
	be_wanted(&s, &recv);
	take_the_receive(&s, &recv);
	miss(&s, s.want);
	SCENE_PUMP(&s, wanted_count(&s) == 0);
	assert_int_equal(s.down_count, 1);
	miss(&s, s.want);
	check_thrown_out(&s, 1);
	scene_fini(&s);
}

/* An EAGER has completed B's receive while B's WANT was on the way, so the stranger may
 * answer the WANT only by a MISS. It sends the tensor a second time: B must not write the
 * memory of the receive, and ends the session. */
static void test_data_for_a_receive_that_has_left_are_not_believed(
	const struct instance *instance)
{
	struct tern_context_opts few_records = meet_opts();
	struct call recv = {0};
	struct tern_header h = starved;
	struct scene s;

	few_records.record_count = 64;
	scene_init_with(&s, instance, &few_records);
	be_wanted(&s, &recv);
	take_the_receive(&s, &recv);
	h.step = WANTED_STEP;
	h.dst = s.want;
	stranger_says(&s, &h);
	check_thrown_out(&s, 0);
	scene_fini(&s);
}

/* The WANT of a tern_recv_any() may be answered once, also when the request has ended
 * meanwhile; not at all if another EAGER has completed it. */
static void test_a_receive_from_any_is_answered_once(const struct instance *instance)
{
	struct tern_context_opts few_records = meet_opts();
	struct call recv = {0};
	struct tern_header h = starved;
	struct scene s;

	few_records.record_count = 64;
	scene_init_with(&s, instance, &few_records);
	h.step = WANTED_STEP;
	be_wanted_by(&s, &recv, true);
	tern_cancel(&recv.req);
	SCENE_PUMP(&s, call_over(&recv));
	assert_int_equal(recv.req.status, -ECANCELED);
	h.dst = s.want;
	stranger_says(&s, &h);
	SCENE_PUMP(&s, s.caller->want.late_count == 1);
	assert_int_equal(wanted_count(&s), 1);
	stranger_says(&s, &h);
	check_thrown_out(&s, 0);

	be_wanted_by(&s, &recv, true);
	take_the_receive(&s, &recv);
	h.dst = s.want;
	stranger_says(&s, &h);
	check_thrown_out(&s, 1);
	scene_fini(&s);
}

/* ---- answers to a POST ---- */

#define POSTED_BYTES 200000u /* more than fits into an EAGER */

/* The stranger connects, and gets B's POST (advertised memory) of `recv`. B sends none if
 * the fabric cannot put, and need not send one for memory in a GPU; then s->posted may
 * stay 0. */
static void be_posted(struct scene *s, struct call *recv)
{
	struct end *b = &s->meet->ends[B];
	struct tern_buf room = end_memory(b, SLAB, POSTED_BYTES);
	struct tern_channel *channel;

	stranger_comes(s);
	assert_int_equal(tern_channel_open(s->caller, MEET_CHANNEL, &channel), 0);
	call_init(recv, b);
	assert_int_equal(call_recv_as(recv, channel, STRANGER_KEY, 0, &room, NULL, 0), 0);
	if ((link_caps(s->link) & TERN_CAP_PUT) && !(s->instance->gpus & 1u << B))
		SCENE_PUMP(s, s->posted);
}

/* The stranger sends DONE: it claims that the tensor has `bytes` bytes, and that the put
 * ended with `status`. */
static void done_with(struct scene *s, int status, uint64_t bytes)
{
	stranger_says(s, &(struct tern_header){.type = TERN_MSG_DONE,
				 .status = (int16_t)status,
				 .shape = {TERN_U8, 1, {bytes}},
				 .bytes = bytes,
				 .dst = s->posted});
}

static void test_a_size_that_contradicts_its_status_is_not_believed(
	const struct instance *instance)
{
	struct call recv = {0};
	struct scene s;

	scene_init(&s, instance);
	be_posted(&s, &recv);
	if (!s.posted) {
		scene_fini(&s);
		print_message("skipped: the receive sends no POST\n");
		skip();
	}
	/* The tensor is too large for the receive's memory, and the status agrees:
	 * correct. */
	done_with(&s, -EMSGSIZE, POSTED_BYTES + 1);
	SCENE_PUMP(&s, call_over(&recv));
	assert_int_equal(recv.req.status, -EMSGSIZE);
	assert_int_equal(s.down_count, 0);
	/* The status claims success, but the tensor does not fit the memory. */
	be_posted(&s, &recv);
	done_with(&s, 0, POSTED_BYTES + 1);
	check_thrown_out(&s, 0);
	assert_int_equal(recv.req.status, -EPROTO);
	/* The status claims that the tensor is too large, but it fits. */
	be_posted(&s, &recv);
	done_with(&s, -EMSGSIZE, POSTED_BYTES);
	check_thrown_out(&s, 1);
	assert_int_equal(recv.req.status, -EPROTO);
	scene_fini(&s);
}

/* The stranger says FIN (goodbye), and then sends an EAGER that answers a receive: correct
 * ends may do so, if the fabric had no space for the EAGER before. B must ignore the EAGER,
 * and end the session without an error. */
static void test_data_behind_a_goodbye_change_nothing(const struct instance *instance)
{
	struct tern_header h = starved;
	struct scene s;

	scene_init(&s, instance);
	stranger_comes(&s);
	stranger_says(&s, &(struct tern_header){.type = TERN_MSG_FIN});
	SCENE_PUMP(&s, s.fin_seq);
	h.dst = 0x10001;
	stranger_says(&s, &h);
	s.ack = s.fin_seq;
	stranger_says(&s, &(struct tern_header){.type = TERN_MSG_HAVE});
	SCENE_PUMP(&s, s.down_count);
	assert_int_equal(s.down_status, 0);
	scene_undisturbed(&s, 0);
	scene_fini(&s);
}

/* Number of peers that stay in the handshake: more than one slab (unit of allocation) of
 * records serves. */
#define HALF_OPEN_STRANGERS 24u

static void test_who_has_proved_nothing_takes_no_records(const struct instance *instance)
{
	const struct tern_rdv *rdv;
	uint32_t peer_count, record_count;
	struct scene s;

	scene_init(&s, instance);
	rdv = tern_rdv_of(s.meet->ends[B].ctx);
	peer_count = rdv->peer_count;
	record_count = rdv->record_count;
	for (unsigned i = 0; i < HALF_OPEN_STRANGERS; i++) {
		stranger_dials(&s);
		stranger_hello(&s, 1);
		SCENE_PUMP(&s, s.answer.step == 2);
		/* HELLO 2 grants the credits for the messages that the stranger may send
		 * right after its proof. */
		assert_int_equal(s.granted - s.used, TERN_CREDIT_MIN);
	}
	assert_int_equal(rdv->peer_count, peer_count);
	assert_int_equal(rdv->record_count, record_count);
	scene_undisturbed(&s, 0);
	scene_fini(&s);
}

/* ---- a WANT from the stranger ---- */

/* Largest number of sends of fill_the_way(): the 64 credits that the stranger (the test's
 * own peer) grants to B in say(). */
#define CROWD_MOST 64u
#define WANT_ID    0x10005u

static void send_to_stranger(
	struct scene *s, struct call *call, const struct tern_buf *buf, uint64_t step)
{
	struct tern_tensor tensor = {*buf, tern_shape_1d(TERN_U8, buf->bytes)};
	struct tern_channel *channel;

	tern_channel_open(s->caller, MEET_CHANNEL, &channel);
	call_init(call, &s->meet->ends[B]);
	assert_int_equal(
		call_send_as(call, channel, STRANGER_KEY, step, &tensor, NULL, 0), 0);
}

/* A turn in which B's sends fill the connection. With the capability BOUND (a lost
 * connection ends the session) the stranger is not polled, so it reads nothing; without it,
 * the stranger reads, but acknowledges nothing. */
static void turn_unread(struct scene *s)
{
	meet_turn(s->meet);
	if (!(link_caps(s->link) & TERN_CAP_BOUND))
		bed_turn(s->bed);
}

/* Posts sends of B until one of them has to wait. */
static void fill_the_way(struct scene *s, struct call *crowd, const struct tern_buf *data)
{
	const struct tern_retain *kept = &s->caller->stream.retain;

	for (unsigned i = 0; tern_list_empty(&s->caller->pump.pending); i++) {
		assert_true(i < CROWD_MOST);
		send_to_stranger(s, &crowd[i], data, i);
		PUMP_WITH(turn_unread(s), s->instance->name,
			kept->sent_count == kept->count);
	}
}

static void hear_the_miss(struct scene *s)
{
	while (!s->missed) {
		SCENE_PUMP(s, s->missed || s->heard != s->ack);
		s->ack = s->heard;
		stranger_says(s, &(struct tern_header){.type = TERN_MSG_CREDIT});
	}
	assert_int_equal(s->missed, WANT_ID);
}

/* The stranger asks for a send (WANT) that waits at B until the ones before it have left,
 * and B cancels it: B must send MISS. */
static void test_who_wants_what_is_cancelled_hears_miss(const struct instance *instance)
{
	const struct tern_header want = {
		.type = TERN_MSG_WANT, .step = WANTED_STEP + CROWD_MOST, .src = WANT_ID};
	struct tern_context_opts opts = meet_opts();
	struct call crowd[CROWD_MOST] = {0}, wanted = {0};
	struct tern_buf data;
	struct scene s;

	opts.eager_bytes = TERN_EAGER_MAX;
	scene_init_with(&s, instance, &opts);
	data = end_data(&s.meet->ends[B], SLAB, TERN_EAGER_MAX, 1);
	stranger_comes(&s);
	fill_the_way(&s, crowd, &data);
	send_to_stranger(&s, &wanted, &data, want.step);
	stranger_says(&s, &want);
	PUMP_WITH(turn_unread(&s), instance->name, tern_xfer_of(&wanted.req)->wanted);
	tern_cancel(&wanted.req);
	MEET_PUMP(s.meet, call_over(&wanted));
	assert_int_equal(wanted.req.status, -ECANCELED);
	hear_the_miss(&s);
	assert_int_equal(s.down_count, 0);
	scene_fini(&s);
}

/* B's send waits for the stranger's answer to an offer of GPU memory. The stranger asks
 * for the send by a WANT, and B cancels it when nothing else is to be sent: B must send
 * the MISS in its next turns, without waiting for another message. */
static void test_who_wants_what_was_offered_and_is_cancelled_hears_miss(
	const struct instance *instance)
{
	enum { TURNS = 3 };
	const struct tern_header want = {.type = TERN_MSG_WANT, .src = WANT_ID};
	struct call wanted = {0};
	struct tern_buf data;
	struct scene s;
	uint32_t sent;

	scene_init(&s, instance);
	data = end_data(&s.meet->ends[B], SLAB, 100000, 1);
	stranger_comes(&s);
	send_to_stranger(&s, &wanted, &data, want.step);
	for (unsigned i = 0; i < TURNS; i++)
		meet_turn(s.meet);
	if (tern_list_empty(&s.caller->offering)) {
		print_message("skipped: this fabric offers no GPU memory to the peer\n");
		scene_fini(&s);
		skip();
	}
	stranger_says(&s, &want);
	PUMP_WITH(meet_turn(s.meet), instance->name, tern_xfer_of(&wanted.req)->wanted);
	sent = s.caller->stream.tx_seq;
	tern_cancel(&wanted.req);
	for (unsigned i = 0; i < TURNS; i++)
		meet_turn(s.meet);
	assert_int_equal(s.caller->stream.tx_seq, sent + 1);
	assert_int_equal(wanted.req.status, -ECANCELED);
	hear_the_miss(&s);
	scene_fini(&s);
}

/* A byte of HELLO and a value that makes the HELLO incompatible with this Tern. */
static const struct foreign {
	size_t at;
	unsigned char value;
	int status;
	const char *says; /* in the log */
} foreign[] = {
	{2, 77, -EPROTONOSUPPORT,
		"the peer speaks version 77 of the protocol and this process version"},
	{TERN_HEADER_BYTES + 152, TERN_LITTLE_ENDIAN + TERN_BIG_ENDIAN - TERN_BYTE_ORDER,
		-EILSEQ, "the peer's machine has the other byte order"},
};

static size_t foreign_hello(const struct foreign *how, uint8_t step, void *message)
{
	const struct tern_hello hello = {.step = step,
		.epoch = 1,
		.incarnation = 77,
		.token = step == 1 ? 0 : 5,
		.credit = 64,
		.eager_bytes = TERN_EAGER_MAX};

	tern_hello_encode(&hello, message);
	((unsigned char *)message)[how->at] = how->value;
	return TERN_HELLO_MESSAGE_BYTES;
}

static void test_who_dials_with_other_bytes_is_refused_in_words(
	const struct instance *instance)
{
	_Alignas(8) unsigned char message[TERN_HELLO_MESSAGE_BYTES];
	struct scene s;

	scene_init(&s, instance);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(foreign); i++) {
		size_t bytes = foreign_hello(&foreign[i], 1, message);

		stranger_dials(&s);
		SCENE_PUMP(&s, stranger_tries(&s, message, bytes, 0) == 0);
		SCENE_PUMP(&s, s.answer.step == 2 && s.link->closed_count);
		assert_int_equal(s.answer.status, foreign[i].status);
		assert_true(log_env_has(&s.meet->ends[B].log, foreign[i].says));
		scene_undisturbed(&s, i);
	}
	assert_int_equal(s.accepted_count, 0);
	scene_fini(&s);
}

/* The stranger sends a HELLO 1 or a HELLO 3 with a status. B must refuse it, since only
 * HELLO 2 may contain a status. */
static void test_a_dialler_that_says_a_status_is_refused(const struct instance *instance)
{
	struct scene s;

	scene_init(&s, instance);
	for (unsigned i = 0; i < 4; i++) {
		uint8_t step = i < 2 ? 1 : 3;

		stranger_dials(&s);
		if (step == 3) {
			stranger_hello(&s, 1);
			SCENE_PUMP(&s, s.answer.step == 2);
		}
		stranger_hello_with(&s, step, -ECONNREFUSED, i % 2 ? TERN_EAGER_MAX : 0);
		SCENE_PUMP(&s, s.link->closed_count);
		scene_undisturbed(&s, i);
	}
	assert_int_equal(s.accepted_count, 0);
	scene_fini(&s);
}

/* The stranger listens, and answers HELLO 1 with an incompatible HELLO 2. */
static int stranger_answers(struct link *link, const void *data, size_t bytes)
{
	const struct foreign *how = link->side->bed->arg;
	_Alignas(8) unsigned char message[TERN_HELLO_MESSAGE_BYTES];

	(void)data;
	(void)bytes;
	assert_int_equal(link->side->fabric->ops->send(link->conn, message,
				 foreign_hello(how, 2, message), NULL, 0),
		0);
	return 0;
}

static void stranger_accepts(struct link *link)
{
	link->on_message = stranger_answers;
}

static void test_who_answers_with_other_bytes_is_refused_in_words(
	const struct instance *instance)
{
	char url[BED_ADDRESS_MAX];
	struct scene s;

	scene_init(&s, instance);
	meet_url(instance, s.bed->sides[B].fabric->ops->lsn_address(s.bed->lsn), url);
	s.bed->sides[B].on_accepted = stranger_accepts;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(foreign); i++) {
		const struct tern_peer_opts opts = {.event = scene_event, .arg = &s};
		struct tern_peer *peer;

		s.bed->arg = (void *)&foreign[i];
		s.down_count = 0;
		assert_int_equal(tern_connect(s.meet->ends[A].ctx, url, &opts, &peer), 0);
		SCENE_PUMP(&s, s.down_count);
		assert_int_equal(s.down_status, foreign[i].status);
		scene_undisturbed(&s, i);
	}
	scene_fini(&s);
}

const struct conformance_test meet_strangers[] = {
	CONFORMANCE(test_who_dials_with_other_bytes_is_refused_in_words, NEEDS_SLEEP),
	CONFORMANCE(test_a_dialler_that_says_a_status_is_refused, NEEDS_SLEEP),
	CONFORMANCE(test_who_has_proved_nothing_takes_no_records, NEEDS_SLEEP),
	CONFORMANCE(test_who_answers_with_other_bytes_is_refused_in_words, NEEDS_SLEEP),
	CONFORMANCE(
		test_messages_that_cannot_be_meant_end_their_session_only, NEEDS_SLEEP),
	CONFORMANCE(
		test_strangers_that_break_the_protocol_cannot_fill_the_log, NEEDS_SLEEP),
	CONFORMANCE(test_only_a_miss_that_is_due_is_believed, NEEDS_SLEEP),
	CONFORMANCE(test_data_for_a_receive_that_has_left_are_not_believed, NEEDS_SLEEP),
	CONFORMANCE(test_a_receive_from_any_is_answered_once, NEEDS_SLEEP),
	CONFORMANCE(test_a_size_that_contradicts_its_status_is_not_believed, NEEDS_SLEEP),
	CONFORMANCE(test_data_behind_a_goodbye_change_nothing, NEEDS_SLEEP),
	CONFORMANCE(
		test_who_wants_what_is_cancelled_hears_miss, NEEDS_SLEEP | NEEDS_EAGER_B),
	CONFORMANCE(
		test_who_wants_what_was_offered_and_is_cancelled_hears_miss, NEEDS_SLEEP),
	{0},
};
