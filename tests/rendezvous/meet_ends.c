/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of how sessions with a peer begin and end: addresses, refusals, secrets,
 * versions, orderly ends, and connections that are cut and restored.
 */
#include "tests/rendezvous/meet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/util.h"
#include "rendezvous/peer.h"
#include "rendezvous/rendezvous.h"

static void test_peers_know_each_others_names(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];

	MEET_PUMP(meet, b->up_count || b->accepted_count);
	assert_non_null(strstr(tern_peer_name(a->peer), "end B"));
	assert_non_null(strstr(tern_peer_name(b->peer), "end A"));
	assert_string_equal(tern_peer_fabric(a->peer), instance->fabric);
	assert_string_equal(tern_peer_fabric(b->peer), instance->fabric);
	meet_free(meet);
}

static void test_requests_may_be_posted_before_it_is_up(const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();
	struct meet *meet = meet_new_apart(instance, &opts, &opts);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct call send[4] = {0}, recv[4] = {0};
	struct tern_buf data, room;

	meet_dial(meet);
	assert_string_equal(tern_peer_fabric(a->peer), "");
	for (unsigned i = 0; i < 4; i++) {
		uint64_t bytes = i < 2 ? 100 : 100000;

		data = end_data(a, SLAB, bytes, i);
		room = end_memory(a, SLAB, bytes);
		if (i % 2)
			assert_int_equal(call_send(&send[i], a, i, 1, &data, 0), 0);
		else
			assert_int_equal(call_recv(&recv[i], a, i, 1, &room, 0), 0);
	}
	MEET_PUMP(meet, b->channel);
	for (unsigned i = 0; i < 4; i++) {
		uint64_t bytes = i < 2 ? 100 : 100000;

		data = end_data(b, SLAB, bytes, i);
		room = end_memory(b, SLAB, bytes);
		if (i % 2)
			assert_int_equal(call_recv(&recv[i], b, i, 1, &room, 0), 0);
		else
			assert_int_equal(call_send(&send[i], b, i, 1, &data, 0), 0);
	}
	MEET_PUMP(meet, calls_over(send, 4) && calls_over(recv, 4));
	for (unsigned i = 0; i < 4; i++)
		call_check(&recv[i], i < 2 ? 100 : 100000, i);
	meet_free(meet);
}

static void test_malformed_addresses_are_einval_at_once(const struct instance *instance)
{
	static const char *const wrong[] = {"", "://", "tcp", "tcp:", "tcp:/",
		"127.0.0.1:5000", "tcp://", "tcp://127.0.0.1", "tcp://127.0.0.1:99999",
		NULL};
	struct tern_context_opts opts = meet_opts();
	struct meet *meet = meet_new_apart(instance, &opts, &opts);
	struct tern_context *ctx = meet->ends[A].ctx;
	struct tern_listener *listener;
	struct tern_peer *peer;

	for (unsigned i = 0; wrong[i]; i++) {
		int r = tern_connect(ctx, wrong[i], NULL, &peer);

		if (r != -EINVAL &&
			!(r == -ENODEV && strncmp(wrong[i], "tcp://", 6) == 0))
			fail_msg("connect to \"%s\": %d", wrong[i], r);
		r = tern_listen(ctx, wrong[i], NULL, NULL, NULL, &listener);
		if (r != -EINVAL &&
			!(r == -ENODEV && strncmp(wrong[i], "tcp://", 6) == 0))
			fail_msg("listen at \"%s\": %d", wrong[i], r);
	}
	assert_int_equal(tern_listen(ctx, tern_listener_address(meet->listener), NULL,
				 NULL, NULL, &listener),
		-EADDRINUSE);
	meet_free(meet);
}

static void test_nobody_there_is_econnrefused(const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();
	char rest[BED_ADDRESS_MAX], url[BED_ADDRESS_MAX];
	struct call send = {0}, recv = {0};
	struct meet *meet;
	struct end *a;
	struct tern_buf data;

	opts.connect_ns = TERN_NS_PER_S;
	meet = meet_new_apart(instance, &opts, &opts);
	a = &meet->ends[A];
	data = end_data(a, SLAB, 100000, 1);
	instance->nobody(rest);
	meet_url(instance, rest, url);
	meet_dial_at(meet, url);
	assert_int_equal(call_send(&send, a, 1, 1, &data, 0), 0);
	assert_int_equal(call_recv(&recv, a, 1, 1, &data, 0), 0);
	MEET_PUMP(meet, a->down_count);
	assert_int_equal(a->up_count, 0);
	assert_int_equal(a->down_status, -ECONNREFUSED);
	/* When the DOWN event comes, every request has ended. */
	assert_true(call_over(&send) && call_over(&recv));
	assert_int_equal(send.req.status, -ECONNREFUSED);
	assert_int_equal(recv.req.status, -ECONNREFUSED);
	meet_free(meet);
}

/* A starts to connect while B does not listen, and tries again until B listens. */
static void test_connect_tries_again(const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();
	struct meet *meet = meet_new_apart(instance, &opts, &opts);
	struct end *a = &meet->ends[A];
	char url[BED_ADDRESS_MAX];

	snprintf(url, sizeof(url), "%s", tern_listener_address(meet->listener));
	tern_listener_free(meet->listener);
	meet->listener = NULL;
	meet_dial_at(meet, url);
	meet_settle(meet);
	assert_int_equal(a->up_count + a->down_count, 0);
	meet_listen(meet, url);
	MEET_PUMP(meet, a->up_count);
	meet_free(meet);
}

static void secrets(
	const struct instance *instance, const char *ours, const char *theirs, bool match)
{
	struct tern_context_opts a_opts = meet_opts(), b_opts = meet_opts();
	struct meet *meet;
	struct end *a;

	a_opts.secret = ours;
	b_opts.secret = theirs;
	a_opts.connect_ns = 3 * TERN_NS_PER_S;
	meet = meet_new_apart(instance, &a_opts, &b_opts);
	a = &meet->ends[A];
	meet_dial(meet);
	MEET_PUMP(meet, a->up_count || a->down_count);
	if (match) {
		assert_int_equal(a->up_count, 1);
		MEET_PUMP(meet, meet->ends[B].accepted_count == 1);
	} else {
		assert_int_equal(a->up_count, 0);
		assert_int_equal(a->down_status, -EACCES);
		meet_settle(meet);
		assert_int_equal(meet->ends[B].accepted_count, 0);
	}
	meet_free(meet);
}

static bool any_link_is(const struct end *end, enum tern_link_state state)
{
	tern_list_for_each (n, &tern_rdv_of(end->ctx)->links)
		if (tern_list_entry(n, struct tern_link, node)->state == state)
			return true;
	return false;
}

/* Changes an end's incarnation number after the end has sent it: for the other end this
 * looks as if an attacker had changed it on the way. The proof of the secret covers the
 * number, so the handshake must fail. */
static void test_the_secret_proves_which_context_speaks(const struct instance *instance)
{
	static const enum tern_link_state waits[] = {
		[A] = TERN_LINK_WAIT_ANSWER, [B] = TERN_LINK_WAIT_PROOF};

	if (tern_secret_check("open sesame") < 0) {
		print_message("skipped: built without OpenSSL\n");
		skip();
	}
	for (unsigned i = A; i <= B; i++) {
		struct tern_context_opts opts = meet_opts();
		struct meet *meet;

		opts.secret = "open sesame";
		opts.connect_ns = 20 * TERN_NS_PER_S;
		meet = meet_new_apart(instance, &opts, &opts);
		meet_dial(meet);
		MEET_PUMP(meet, any_link_is(&meet->ends[i], waits[i]));
		tern_rdv_of(meet->ends[i].ctx)->incarnation++;
		MEET_PUMP(meet, !any_link_is(&meet->ends[i], waits[i]));
		/* The connecting end may try again, but the listening end has accepted no
		 * peer. */
		assert_int_equal(meet->ends[B].accepted_count, 0);
		meet_free(meet);
	}
}

static void test_the_secret_decides_who_may_talk(const struct instance *instance)
{
	secrets(instance, "open sesame", "open sesame", true);
	secrets(instance, "open sesame", "open sesam", false);
	secrets(instance, "open sesame", NULL, false);
	secrets(instance, NULL, "open sesame", false);
}

/* ---- another program, or another version of Tern, at the address ---- */

/* How the impostor (a program that is not this version of Tern) answers a HELLO. */
enum answer { OTHER_VERSION, NOT_A_HELLO, NOISE };

static int impostor_answers(struct link *link, const void *data, size_t bytes)
{
	enum answer answer = *(enum answer *)link->arg;
	_Alignas(64) unsigned char message[1024];
	int r;

	assert_in_range(bytes, TERN_HEADER_BYTES, sizeof(message));
	memcpy(message, data, bytes);
	if (answer == OTHER_VERSION)
		message[2] = TERN_WIRE_VERSION + 1;
	if (answer == NOT_A_HELLO)
		message[3] = TERN_MSG_PING;
	if (answer == NOISE)
		pattern_fill(message, bytes, 8, 0);
	r = link->side->fabric->ops->send(link->conn, message, bytes / 8 * 8, NULL, 0);
	return r == -EAGAIN ? 0 : r;
}

static enum answer the_answer;
static char why[200]; /* why the peer went DOWN, in words */

static void impostor_accepted(struct link *link)
{
	link->on_message = impostor_answers;
	link->arg = &the_answer;
}

/* Connects a context to an impostor: a port of the fabric test bed, which answers the
 * HELLO with `answer`. */
static int meet_impostor(const struct instance *instance, enum answer answer)
{
	struct tern_context_opts opts = meet_opts();
	struct bed *bed = bed_new_sized(instance, TERN_MESSAGE_MAX, TERN_MESSAGE_MAX);
	char url[BED_ADDRESS_MAX];
	struct meet *meet;
	struct end *a;
	int status;

	the_answer = answer;
	bed->sides[B].on_accepted = impostor_accepted;
	opts.connect_ns = 60 * TERN_NS_PER_S;
	meet = meet_new_apart(instance, &opts, &opts);
	a = &meet->ends[A];
	meet_url(instance, bed->sides[B].fabric->ops->lsn_address(bed->lsn), url);
	meet_dial_at(meet, url);
	PUMP_WITH((meet_turn(meet), bed_turn(bed)), instance->name, a->down_count);
	assert_int_equal(a->up_count, 0);
	status = a->down_status;
	tern_peer_why(a->peer, status, why, sizeof(why));
	meet_free(meet);
	bed_free(bed);
	return status;
}

static void test_another_version_is_eprotonosupport(const struct instance *instance)
{
	char expected[200];

	snprintf(expected, sizeof(expected),
		"the peer speaks version %u of the protocol and this process version %u: "
		"they are of different releases",
		TERN_WIRE_VERSION + 1, TERN_WIRE_VERSION);
	assert_int_equal(meet_impostor(instance, OTHER_VERSION), -EPROTONOSUPPORT);
	assert_string_equal(why, expected);
}

static void test_what_is_not_tern_is_eproto(const struct instance *instance)
{
	assert_int_equal(meet_impostor(instance, NOT_A_HELLO), -EPROTO);
	assert_string_equal(why, tern_status_text(-EPROTO));
	assert_int_equal(meet_impostor(instance, NOISE), -EPROTO);
}

/* The server at the address sends bytes that are not a frame of the fabric. */
static void test_another_server_is_eproto(const struct instance *instance)
{
	static const char greeting[] =
		"220 mail.example.org ESMTP ready, what can I do for you "
		"today?\r\nHTTP/1.1 400 Bad Request\r\n\r\n";
	struct tern_context_opts opts = meet_opts();
	struct sockaddr_in at = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t at_bytes = sizeof(at);
	char url[BED_ADDRESS_MAX];
	struct meet *meet;
	struct end *a;
	int fd, conn;

	fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(fd, 8), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &at_bytes), 0);
	snprintf(url, sizeof(url), "tcp://127.0.0.1:%u", (unsigned)ntohs(at.sin_port));
	opts.connect_ns = TERN_NS_PER_S;
	meet = meet_new_apart(instance, &opts, &opts);
	a = &meet->ends[A];
	meet_dial_at(meet, url);
	while (!a->down_count) {
		meet_turn(meet);
		conn = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
		if (conn < 0)
			continue;
		assert_int_equal(send(conn, greeting, sizeof(greeting), MSG_NOSIGNAL),
			sizeof(greeting));
		/* Ends the stream in order, since a reset could overtake the bytes. */
		shutdown(conn, SHUT_WR);
	}
	assert_int_equal(a->down_status, -EPROTO);
	meet_free(meet);
	close(fd);
}

static void test_a_stranger_does_not_disturb_a_listener(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct bed *bed = bed_new_sized(instance, TERN_MESSAGE_MAX, TERN_MESSAGE_MAX);
	const char *address = strstr(tern_listener_address(meet->listener), "://") + 3;
	struct link *link[8];
	struct tern_buf data = end_data(&meet->ends[A], SLAB, 100, 1);
	struct tern_buf room = end_memory(&meet->ends[B], SLAB, 100);
	struct call send = {0}, recv = {0};

	for (unsigned i = 0; i < 8; i++) {
		_Alignas(64) unsigned char noise[512];

		link[i] = bed_dial_at(bed, A, address);
		PUMP_WITH((meet_turn(meet), bed_turn(bed)), instance->name, link[i]->up);
		pattern_fill(noise, sizeof(noise), i, 0);
		assert_int_equal(bed->sides[A].fabric->ops->send(
					 link[i]->conn, noise, 8 + i * 64, NULL, 0),
			0);
	}
	for (unsigned i = 0; i < 8; i++) {
		PUMP_WITH((meet_turn(meet), bed_turn(bed)), instance->name,
			link[i]->closed_count);
		assert_true(link[i]->status < 0);
	}
	assert_int_equal(meet->ends[B].accepted_count, 1);
	assert_int_equal(call_recv(&recv, &meet->ends[B], 1, 1, &room, 0), 0);
	assert_int_equal(call_send(&send, &meet->ends[A], 1, 1, &data, 0), 0);
	MEET_PUMP(meet, call_over(&recv) && call_over(&send));
	call_check(&recv, 100, 1);
	bed_free(bed);
	meet_free(meet);
}

/* ---- orderly ends ---- */

static void test_close_comes_after_all_is_delivered(const struct instance *instance)
{
	enum { COUNT = 60 };

	for (unsigned side = 0; side < 2; side++) {
		struct meet *meet = meet_new(instance);
		struct end *from = &meet->ends[side], *to = &meet->ends[!side];
		struct call send[COUNT] = {0}, recv[COUNT] = {0}, late = {0};
		struct tern_buf room;

		MEET_PUMP(meet, meet->ends[B].peer);
		for (unsigned i = 0; i < COUNT; i++) {
			uint64_t bytes = i % 2 ? 60 : 60000;
			struct tern_buf data = end_data(from, SLAB, bytes, i);

			room = end_memory(to, SLAB, bytes);
			assert_int_equal(call_recv(&recv[i], to, i, 1, &room, 0), 0);
			assert_int_equal(call_send(&send[i], from, i, 1, &data, 0), 0);
		}
		assert_int_equal(call_recv(&late, to, 1000, 1, &room, 0), 0);
		tern_peer_close(from->peer);
		assert_int_equal(from->down_count, 0);
		MEET_PUMP(meet, from->down_count && to->down_count);
		assert_int_equal(from->down_status, 0);
		assert_int_equal(to->down_status, 0);
		assert_true(calls_over(send, COUNT) && calls_over(recv, COUNT));
		for (unsigned i = 0; i < COUNT; i++) {
			assert_int_equal(send[i].req.status, 0);
			call_check(&recv[i], i % 2 ? 60 : 60000, i);
		}
		/* No send matches this receive. */
		assert_int_equal(late.done_count, 1);
		assert_true(late.req.status < 0);
		assert_int_equal(from->suspect_count + to->suspect_count, 0);
		meet_free(meet);
	}
}

static void test_both_ends_may_say_goodbye_at_once(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);

	MEET_PUMP(meet, meet->ends[B].peer);
	tern_peer_close(meet->ends[A].peer);
	tern_peer_close(meet->ends[B].peer);
	MEET_PUMP(meet, meet->ends[A].down_count && meet->ends[B].down_count);
	assert_int_equal(meet->ends[A].down_status, 0);
	assert_int_equal(meet->ends[B].down_status, 0);
	meet_free(meet);
}

static void free_on_down(struct end *end, enum tern_peer_event event)
{
	if (event == TERN_PEER_DOWN) {
		tern_peer_free(end->peer);
		end->peer = NULL;
	}
}

static void test_a_peer_may_be_freed_in_its_last_event(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);

	MEET_PUMP(meet, meet->ends[B].peer);
	meet->ends[A].on_event = free_on_down;
	meet->ends[B].on_event = free_on_down;
	tern_peer_close(meet->ends[A].peer);
	MEET_PUMP(meet, meet->ends[A].down_count && meet->ends[B].down_count);
	meet_settle(meet);
	meet_free(meet);
}

/* When B frees its peer, A goes down at once, however long A's reconnect_ns and dead_ns
 * are. */
static void test_a_peer_that_was_freed_is_not_waited_for(const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();
	struct meet *meet;

	opts.reconnect_ns = opts.dead_ns = 3600 * TERN_NS_PER_S;
	meet = meet_new_with(instance, &opts, NULL);
	MEET_PUMP(meet, meet->ends[B].peer);
	tern_peer_free(meet->ends[B].peer);
	meet->ends[B].peer = NULL;
	MEET_PUMP(meet, meet->ends[A].down_count);
	assert_true(meet->ends[A].down_status < 0);
	meet_free(meet);
}

static void exchange(struct meet *meet, uint64_t step)
{
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct tern_buf data = end_data(a, SLAB, 90000, step);
	struct tern_buf room = end_memory(b, SLAB, 90000);
	struct call send = {0}, recv = {0};

	assert_int_equal(call_recv(&recv, b, 1, step, &room, 0), 0);
	assert_int_equal(call_send(&send, a, 1, step, &data, 0), 0);
	MEET_PUMP(meet, call_over(&recv) && call_over(&send));
	call_check(&recv, 90000, step);
}

/* Sets very long time limits. If "now + limit" wrapped, the time would be over at once;
 * but the session must stay up, reconnect, and try to connect for a long time. */
static void test_what_may_take_for_ever_does_not_end_at_once(
	const struct instance *instance)
{
	static const uint64_t long_ns[] = {
		TERN_NEVER, TERN_NEVER - 1, TERN_NEVER / 2 + 1, TERN_NEVER / 3};

	for (unsigned i = 0; i < TERN_ARRAY_SIZE(long_ns); i++) {
		struct tern_context_opts opts = meet_opts();
		char rest[BED_ADDRESS_MAX], url[BED_ADDRESS_MAX];
		struct meet *meet;
		struct end *a;

		opts.suspect_ns = opts.dead_ns = long_ns[i];
		opts.connect_ns = opts.reconnect_ns = long_ns[i];
		meet = meet_new_with(instance, &opts, &opts);
		a = &meet->ends[A];
		exchange(meet, 1);
		if (!(tern_peer_caps(a->peer) & TERN_CAP_BOUND)) {
			tern_peer_cut(a->peer, -ECONNRESET);
			MEET_PUMP(meet, a->recovered_count);
		}
		exchange(meet, 2);
		meet_settle(meet);
		assert_int_equal(a->down_count + meet->ends[B].down_count, 0);
		meet_free(meet);

		/* No program listens at the address, so each attempt to connect fails,
		 * and another one follows. */
		meet = meet_new_apart(instance, &opts, &opts);
		instance->nobody(rest);
		meet_url(instance, rest, url);
		meet_dial_at(meet, url);
		meet_settle(meet);
		assert_int_equal(meet->ends[A].down_count, 0);
		meet_free(meet);
	}
}

static void test_accepted_peers_outlive_their_listener(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct tern_buf data = end_data(&meet->ends[A], SLAB, 90000, 1);
	struct tern_buf room = end_memory(&meet->ends[B], SLAB, 90000);
	struct call send = {0}, recv = {0};

	MEET_PUMP(meet, meet->ends[B].peer);
	tern_listener_free(meet->listener);
	meet->listener = NULL;
	assert_int_equal(call_recv(&recv, &meet->ends[B], 1, 1, &room, 0), 0);
	assert_int_equal(call_send(&send, &meet->ends[A], 1, 1, &data, 0), 0);
	MEET_PUMP(meet, call_over(&recv) && call_over(&send));
	call_check(&recv, 90000, 1);
	meet_free(meet);
}

/* A second peer connects while the listener refuses new peers. It is refused, and tries
 * again until another listener at the same address accepts it. */
static void test_a_refused_newcomer_gets_in_later(const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();
	struct tern_peer *late;
	char url[BED_ADDRESS_MAX];
	struct meet *meet;
	struct end *a, *b;

	opts.connect_ns = 60 * TERN_NS_PER_S;
	meet = meet_new_apart(instance, &opts, &opts);
	a = &meet->ends[A];
	b = &meet->ends[B];
	snprintf(url, sizeof(url), "%s", tern_listener_address(meet->listener));
	meet_dial(meet);
	MEET_PUMP(meet, a->up_count && b->accepted_count);
	tern_listener_refuse_new(meet->listener);
	assert_int_equal(tern_connect(a->ctx, url, NULL, &late), 0);
	MEET_PUMP(meet, late->cause == -ECONNREFUSED);
	meet_settle(meet);
	assert_int_equal(late->state, TERN_PEER_STATE_START);
	assert_int_equal(b->accepted_count, 1);
	tern_listener_free(meet->listener);
	meet->listener = NULL;
	meet_listen(meet, url);
	MEET_PUMP(meet, late->state == TERN_PEER_STATE_UP && b->accepted_count == 2);
	meet_free(meet);
}

/* ---- connections that are cut ---- */

#define ALL  (-1)
#define NONE (-2)

/* Cuts connected TCP sockets of this process: all, none, or the one with index `number`.
 * Returns how many there are: two for each connection between A and B. */
static unsigned cut_sockets(int number)
{
	unsigned count = 0;

	for (int fd = 3; fd < 512; fd++) {
		struct sockaddr_in at;
		socklen_t bytes = sizeof(at);

		if (getpeername(fd, (struct sockaddr *)&at, &bytes) < 0 ||
			at.sin_family != AF_INET)
			continue;
		if (number == ALL || number == (int)count)
			shutdown(fd, SHUT_RDWR);
		count++;
	}
	return count;
}

static void recover(const struct instance *instance, uint32_t rail_count)
{
	enum { COUNT = 60 };
	struct tern_context_opts opts = meet_opts();
	static struct call send[COUNT], recv[COUNT];
	struct meet *meet;
	struct end *a, *b;

	opts.rail_count = rail_count;
	opts.bulk_bytes = rail_count > 1 ? 100000 : 0;
	opts.reconnect_ns = 10 * TERN_NS_PER_S;
	meet = meet_new_with(instance, &opts, &opts);
	a = &meet->ends[A];
	b = &meet->ends[B];
	for (unsigned round = 0; round < 12; round++) {
		if (round == 6) /* accepted peers must still be able to reconnect */
			tern_listener_refuse_new(meet->listener);
		for (unsigned i = 0; i < COUNT; i++) {
			uint64_t bytes = i % 5 == 0 ? 700000 : i % 5 == 1 ? 5000 : 50 + i;
			struct tern_buf data = end_data(a, SLAB, bytes, i + round);
			struct tern_buf room = end_memory(b, SLAB, bytes);

			if ((i + round) % 3)
				assert_int_equal(
					call_recv(&recv[i], b, i, round, &room, 0), 0);
			assert_int_equal(call_send(&send[i], a, i, round, &data, 0), 0);
			if ((i + round) % 3 == 0)
				assert_int_equal(
					call_recv(&recv[i], b, i, round, &room, 0), 0);
			if (i % 8 == round % 8)
				meet_turn(meet);
			if (i == 20 + round * 3)
				assert_true(cut_sockets(
					round % 3 == 2 ? (int)round % 5 : ALL));
		}
		MEET_PUMP(meet, calls_over(send, COUNT) && calls_over(recv, COUNT));
		for (unsigned i = 0; i < COUNT; i++) {
			assert_int_equal(send[i].req.status, 0);
			call_check(&recv[i],
				i % 5 == 0   ? 700000
				: i % 5 == 1 ? 5000
					     : 50 + i,
				i + round);
		}
		box_free(&a->box);
		box_free(&b->box);
	}
	MEET_PUMP(meet, a->suspect_count == a->recovered_count);
	assert_int_equal(a->down_count + b->down_count, 0);
	meet_free(meet);
}

static void test_a_cut_connection_comes_back_and_loses_nothing(
	const struct instance *instance)
{
	recover(instance, 1);
}

static void test_cut_rails_come_back_and_lose_nothing(const struct instance *instance)
{
	recover(instance, 3);
}

static void test_a_connection_that_cannot_come_back_is_down(
	const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();
	struct call send = {0}, recv = {0};
	struct tern_buf data, room;
	struct meet *meet;

	opts.reconnect_ns = 200 * TERN_NS_PER_MS;
	meet = meet_new_with(instance, &opts, &opts);
	data = end_data(&meet->ends[A], SLAB, 100000, 1);
	room = end_memory(&meet->ends[B], SLAB, 100000);
	MEET_PUMP(meet, meet->ends[B].peer);
	assert_int_equal(call_send(&send, &meet->ends[A], 1, 1, &data, 0), 0);
	assert_int_equal(call_recv(&recv, &meet->ends[B], 2, 1, &room, 0), 0);
	meet_settle(meet);
	tern_listener_free(meet->listener);
	meet->listener = NULL;
	assert_true(cut_sockets(ALL) >= 2);
	MEET_PUMP(meet, meet->ends[A].down_count && meet->ends[B].down_count);
	assert_true(meet->ends[A].down_status < 0 && meet->ends[B].down_status < 0);
	assert_true(call_over(&send) && call_over(&recv));
	assert_int_equal(send.req.status, meet->ends[A].down_status);
	assert_int_equal(recv.req.status, meet->ends[B].down_status);
	meet_free(meet);
}

/* ---- additional connections ---- */

static void move(struct meet *meet, unsigned from, uint64_t bytes, uint64_t step)
{
	struct end *a = &meet->ends[from], *b = &meet->ends[!from];
	struct tern_buf data = end_data(a, SLAB, bytes, step);
	struct tern_buf room = end_memory(b, SLAB, bytes);
	struct call send = {0}, recv = {0};

	assert_int_equal(call_recv(&recv, b, 1, step, &room, 0), 0);
	assert_int_equal(call_send(&send, a, 1, step, &data, 0), 0);
	MEET_PUMP(meet, call_over(&recv) && call_over(&send));
	call_check(&recv, bytes, step);
}

/* With the first large tensor the session makes a second connection, for large tensors
 * only (bulk). Tests this with sends from each end, and again after all connections were
 * lost. */
static void test_bulk_gets_a_connection_of_its_own(const struct instance *instance)
{
	for (unsigned from = 0; from < 2; from++) {
		struct tern_context_opts opts = meet_opts();
		struct meet *meet;
		struct end *a;
		unsigned before;

		opts.bulk_bytes = 100000;
		opts.reconnect_ns = 10 * TERN_NS_PER_S;
		meet = meet_new_with(instance, &opts, &opts);
		a = &meet->ends[A];
		move(meet, from, 99999, 1);
		before = cut_sockets(NONE);
		move(meet, from, 100000, 2);
		MEET_PUMP(meet, cut_sockets(NONE) == before + 2);
		move(meet, from, 1 << 20, 3); /* goes over the new bulk connection */
		cut_sockets(ALL);
		MEET_PUMP(meet, a->recovered_count == 1);
		MEET_PUMP(meet, cut_sockets(NONE) == before + 2);
		move(meet, from, 1 << 20, 4);
		meet_free(meet);
	}
}

/* The listener is gone when the second connection, for large tensors (bulk), is dialled.
 * So large tensors must go over the connection that exists. */
static void test_bulk_shares_the_connection_where_there_is_no_other(
	const struct instance *instance)
{
	enum { COUNT = 6 };
	static const uint64_t bytes[COUNT] = {
		3 << 20, 100000, 64, 1 << 20, 200000, 64 << 10};
	struct tern_context_opts opts = meet_opts();
	struct call sends[2][COUNT] = {0}, recvs[2][COUNT] = {0};
	struct meet *meet;
	unsigned before;

	opts.bulk_bytes = 100000;
	meet = meet_new_with(instance, &opts, &opts);
	MEET_PUMP(meet, meet->ends[B].peer);
	tern_listener_free(meet->listener);
	meet->listener = NULL;
	before = cut_sockets(NONE);
	for (unsigned from = 0; from < 2; from++) {
		for (uint64_t i = 0; i < COUNT; i++) {
			struct end *a = &meet->ends[from], *b = &meet->ends[!from];
			struct tern_buf data = end_data(a, SLAB, bytes[i], i);
			struct tern_buf room = end_memory(b, SLAB, bytes[i]);

			assert_int_equal(
				call_recv(&recvs[from][i], b, 1, i, &room, 0), 0);
			assert_int_equal(
				call_send(&sends[from][i], a, 1, i, &data, 0), 0);
		}
	}
	for (unsigned from = 0; from < 2; from++) {
		for (uint64_t i = 0; i < COUNT; i++) {
			MEET_PUMP(meet,
				call_over(&recvs[from][i]) && call_over(&sends[from][i]));
			call_check(&recvs[from][i], bytes[i], i);
		}
	}
	meet_settle(meet);
	assert_int_equal(cut_sockets(NONE), before);
	assert_int_equal(meet->ends[A].suspect_count, 0);
	assert_int_equal(meet->ends[B].suspect_count, 0);
	meet_free(meet);
}

const struct conformance_test meet_ends[] = {
	CONFORMANCE(test_peers_know_each_others_names, NEEDS_NOTHING),
	CONFORMANCE(test_requests_may_be_posted_before_it_is_up, NEEDS_NOTHING),
	CONFORMANCE(test_malformed_addresses_are_einval_at_once, NEEDS_NOTHING),
	CONFORMANCE(test_nobody_there_is_econnrefused, NEEDS_NOTHING),
	CONFORMANCE(test_connect_tries_again, NEEDS_NOTHING),
	CONFORMANCE(test_the_secret_proves_which_context_speaks, NEEDS_NOTHING),
	CONFORMANCE(test_the_secret_decides_who_may_talk, NEEDS_NOTHING),
	CONFORMANCE(test_another_version_is_eprotonosupport, NEEDS_SLEEP),
	CONFORMANCE(test_what_is_not_tern_is_eproto, NEEDS_SLEEP),
	CONFORMANCE(test_another_server_is_eproto, NEEDS_TCP),
	CONFORMANCE(test_a_stranger_does_not_disturb_a_listener, NEEDS_SLEEP),
	CONFORMANCE(test_close_comes_after_all_is_delivered, NEEDS_NOTHING),
	CONFORMANCE(test_both_ends_may_say_goodbye_at_once, NEEDS_NOTHING),
	CONFORMANCE(test_a_peer_may_be_freed_in_its_last_event, NEEDS_NOTHING),
	CONFORMANCE(test_a_peer_that_was_freed_is_not_waited_for, NEEDS_NOTHING),
	CONFORMANCE(test_what_may_take_for_ever_does_not_end_at_once, NEEDS_NOTHING),
	CONFORMANCE(test_accepted_peers_outlive_their_listener, NEEDS_NOTHING),
	CONFORMANCE(test_a_refused_newcomer_gets_in_later, NEEDS_NOTHING),
	CONFORMANCE(test_a_cut_connection_comes_back_and_loses_nothing, NEEDS_TCP),
	CONFORMANCE(test_cut_rails_come_back_and_lose_nothing, NEEDS_TCP),
	CONFORMANCE(test_a_connection_that_cannot_come_back_is_down, NEEDS_TCP),
	CONFORMANCE(test_bulk_gets_a_connection_of_its_own, NEEDS_TCP),
	CONFORMANCE(test_bulk_shares_the_connection_where_there_is_no_other, NEEDS_TCP),
	{0},
};
