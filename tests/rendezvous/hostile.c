/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attacks a listening tcp port with hostile bytes. A child process is the server. This
 * process sends over raw sockets: random bytes, truncated frames, wrong values in every
 * field of the frame header and of the rendezvous header after a correct handshake,
 * handshakes that never end, and too many connections. After each attack the server must
 * serve a correct client, and in the end it must exit with success. If the server is
 * built with the address sanitizer, an invalid memory access kills it.
 */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "tests/harness/cmocka.h"

#include <tern/tern.h>

#include "base/clock.h"
#include "base/endian.h"
#include "base/rng.h"
#include "base/util.h"
#include "rendezvous/wire.h"
#include "tests/rendezvous/hostile_frame.h"
#include "tests/rendezvous/hostile_host.h"
#include "transport/admission.h"

/* ---- raw ends ---- */

static int raw_dial(const struct host *host)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(
		connect(fd, (const struct sockaddr *)&host->at, sizeof(host->at)), 0);
	return fd;
}

/* Sends all bytes, or stops when the server has closed the connection. */
static void raw_send(int fd, const void *data, size_t bytes)
{
	const char *p = data;

	while (bytes > 0) {
		ssize_t n = send(fd, p, bytes, MSG_NOSIGNAL);

		if (n < 0)
			return;
		p += n;
		bytes -= (size_t)n;
	}
}

/* Reads until the server closes the connection; false if it does not. */
static bool raw_hung_up(int fd)
{
	uint64_t until_ns = tern_clock_ns() + HOST_PATIENCE_NS;
	char sink[4096];

	while (tern_clock_ns() < until_ns) {
		struct pollfd p = {fd, POLLIN, 0};

		if (poll(&p, 1, 1000) == 1 && recv(fd, sink, sizeof(sink), 0) <= 0)
			return true;
	}
	return false;
}

/* Reads exactly `bytes` bytes; false if the stream ends before. */
static bool raw_read(int fd, void *to, size_t bytes)
{
	return recv(fd, to, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

static void raw_hello_of(
	int fd, uint8_t step, uint8_t rail, const struct tern_hello *answer)
{
	struct tern_hello hello = {
		.step = step,
		.rail = rail,
		.epoch = 1,
		.incarnation = 77,
		.first_seq = 0,
		.credit = 64,
		.eager_bytes = 16384,
	};
	_Alignas(8) unsigned char message[TERN_HELLO_MESSAGE_BYTES];

	if (answer)
		hello.token = answer->token;
	snprintf(hello.name, sizeof(hello.name), "a stranger");
	tern_hello_encode(&hello, message);
	hostile_send_message(fd, message, sizeof(message), 0);
}

static void raw_hello(int fd, uint8_t step, const struct tern_hello *answer)
{
	raw_hello_of(fd, step, 0, answer);
}

static int raw_ask(const struct host *host, struct tern_hello *answer)
{
	int fd = raw_dial(host);
	_Alignas(8) unsigned char message[TERN_HELLO_MESSAGE_BYTES];

	raw_hello(fd, 1, NULL);
	assert_true(hostile_read_start(fd, sizeof(message)));
	assert_true(raw_read(fd, message, sizeof(message)));
	assert_int_equal(tern_hello_decode(message, sizeof(message), answer), 0);
	assert_int_equal(answer->step, 2);
	return fd;
}

/* Connects and completes the handshake: from then on the server takes the socket for a
 * Tern peer. Returns the socket, and the server's HELLO in *answer. */
static int raw_guest(const struct host *host, struct tern_hello *answer)
{
	int fd = raw_ask(host, answer);

	assert_int_equal(answer->status, 0);
	raw_hello(fd, 3, answer);
	return fd;
}

/* Encodes message number `seq` of a peer after the handshake, with correct epoch and
 * counters. */
static size_t guest_message(
	uint8_t type, uint32_t seq, const struct tern_hello *answer, void *out)
{
	struct tern_header h = {.type = type,
		.epoch = 1,
		.seq = seq,
		.ack = answer->first_seq,
		.credit = 64,
		.channel = HOST_CHANNEL,
		.key = 99,
		.step = 3};

	if (type == TERN_MSG_EAGER || type == TERN_MSG_RTS || type == TERN_MSG_DONE) {
		h.shape = (struct tern_shape){TERN_F32, 2, {3, 5}};
		h.bytes = 60;
	}
	if (type == TERN_MSG_POST || type == TERN_MSG_CTS) {
		h.flags = TERN_FLAG_REGION;
		h.bytes = 100000;
	}
	if (type != TERN_MSG_EAGER)
		h.src = 0x10001;
	return tern_header_encode(&h, out);
}

static size_t first_message(uint8_t type, const struct tern_hello *answer, void *out)
{
	return guest_message(type, tern_type_is_sequenced(type) ? 1 : 0, answer, out);
}

/* ---- the attacks ---- */

static void test_noise_is_hung_up_on(void **state)
{
	static unsigned char noise[100000];
	struct tern_rng rng = {.seed = 2};
	struct host host;

	(void)state;
	host_init(&host, NULL);
	check_served(&host);
	for (unsigned i = 0; i < 60; i++) {
		size_t bytes = i < 40 ? 40 + i * 11 : sizeof(noise);
		int fd = raw_dial(&host);

		for (size_t j = 0; j < bytes; j++)
			noise[j] = i == 0   ? 0
				   : i == 1 ? 255
					    : (unsigned char)tern_rng_next(&rng);
		raw_send(fd, noise, bytes);
		assert_true(raw_hung_up(fd));
		close(fd);
		if (i % 10 == 0)
			check_served(&host);
	}
	check_served(&host);
	host_fini(&host);
}

static void test_truncated_frames_are_survived(void **state)
{
	_Alignas(8) unsigned char message[TERN_HEAD_MAX];
	unsigned char frame[HOSTILE_FRAME_MAX];
	struct tern_hello answer;
	struct host host;

	(void)state;
	host_init(&host, NULL);
	/* Closes the connection in the middle of HELLO 1, the first message of the
	 * handshake. */
	for (size_t cut = 1; cut < 200; cut += 7) {
		struct tern_hello hello = {.step = 1, .epoch = 1, .eager_bytes = 4096};
		int fd = raw_dial(&host);
		size_t bytes;

		tern_hello_encode(&hello, message);
		bytes = hostile_frame(frame, message, TERN_HELLO_MESSAGE_BYTES, 0);
		assert_true(cut < bytes);
		raw_send(fd, frame, cut);
		close(fd);
	}
	/* Closes the connection in the middle of the first message after the
	 * handshake. */
	for (size_t cut = 1; cut < 64; cut += 3) {
		int fd = raw_guest(&host, &answer);
		size_t bytes = first_message(TERN_MSG_RTS, &answer, message);

		hostile_frame(frame, message, bytes, 0);
		raw_send(fd, frame, cut);
		close(fd);
	}
	check_served(&host);
	host_fini(&host);
}

/* Inverts each byte of the header of a correct frame, one at a time, once with a wrong
 * and once with a corrected checksum. The server must close the connection. */
static void test_every_field_of_the_frame_may_be_wrong(void **state)
{
	_Alignas(8) unsigned char message[TERN_HEAD_MAX];
	unsigned char frame[HOSTILE_FRAME_MAX];
	struct tern_hello answer;
	struct host host;

	(void)state;
	host_init(&host, NULL);
	for (unsigned mend = 0; mend < 2; mend++) {
		for (size_t at = 0; at < HOSTILE_HEADER_BYTES; at++) {
			int fd = raw_guest(&host, &answer);
			size_t bytes = first_message(TERN_MSG_RTS, &answer, message);

			bytes = hostile_frame(frame, message, bytes, 0);
			frame[at] ^= 0xff;
			if (mend)
				hostile_mend(frame, bytes);
			raw_send(fd, frame, bytes);
			/* Ends the stream, since with some values the server rightly
			 * waits for more bytes. */
			shutdown(fd, SHUT_WR);
			assert_true(raw_hung_up(fd));
			close(fd);
			if (at % 8 == 0)
				check_served(&host);
		}
	}
	for (unsigned i = 0; i < HOSTILE_PUT_COUNT; i++) {
		int fd = raw_guest(&host, &answer);
		size_t bytes = hostile_put(frame, i);

		raw_send(fd, frame, bytes);
		shutdown(fd, SHUT_WR);
		assert_true(raw_hung_up(fd));
		close(fd);
	}
	check_served(&host);
	host_fini(&host);
}

/* Changes each byte of the header of every message type, one at a time. Which bits of the
 * byte change depends on its position and on the type. */
static void test_every_field_of_the_header_may_be_wrong(void **state)
{
	_Alignas(8) unsigned char message[TERN_HEAD_MAX + 64];
	struct tern_hello answer;
	struct host host;

	(void)state;
	host_init(&host, NULL);
	for (uint8_t type = 1; type < TERN_MSG_TYPE_COUNT; type++) {
		for (size_t at = 0; at < TERN_HEADER_BYTES; at++) {
			static const unsigned char wrong[] = {0xff, 0x80, 0x01};
			int fd = raw_guest(&host, &answer);
			size_t bytes = first_message(type, &answer, message);

			if (type == TERN_MSG_EAGER) {
				memset(message + bytes, 1, 60);
				bytes += 60;
			}
			message[at] ^= wrong[(at + type) % 3];
			hostile_send_message(
				fd, message, bytes, type == TERN_MSG_EAGER ? 60 : 0);
			/* Ends the stream, since the server accepts some changes (of a
			 * key or a step), and then waits for more messages. */
			shutdown(fd, SHUT_WR);
			assert_true(raw_hung_up(fd));
			close(fd);
		}
		check_served(&host);
	}
	host_fini(&host);
}

/* Header values that are wrong in any state: the server must close the connection. */
static void test_what_cannot_be_right_is_hung_up_on(void **state)
{
	static const struct {
		uint8_t type;
		size_t at;
		unsigned char value;
	} wrong[] = {
		{TERN_MSG_RTS, 0, 0}, /* wrong magic number */
		{TERN_MSG_RTS, 2, 9}, /* unknown version */
		{TERN_MSG_RTS, 3, 0}, /* unknown type */
		{TERN_MSG_RTS, 3, TERN_MSG_TYPE_COUNT},
		{TERN_MSG_RTS, 3, 14},   /* a RENEW with the fields of an RTS */
		{TERN_MSG_RTS, 3, 1},    /* a second HELLO */
		{TERN_MSG_RTS, 5, 0x80}, /* unknown flag */
		{TERN_MSG_RTS, 6, 13},   /* unknown dtype */
		{TERN_MSG_RTS, 6, 0},
		{TERN_MSG_RTS, 7, 9}, /* rank larger than the maximum */
		{TERN_MSG_RTS, 7, 255},
		{TERN_MSG_RTS, 8, 7},    /* wrong epoch */
		{TERN_MSG_RTS, 12, 9},   /* wrong sequence number */
		{TERN_MSG_RTS, 15, 9},   /* wrong sequence number */
		{TERN_MSG_RTS, 18, 99},  /* wrong acknowledgement */
		{TERN_MSG_RTS, 28, 255}, /* wrong size of the extension */
		{TERN_MSG_RTS, 28, 1},
		{TERN_MSG_RTS, 31, 1}, /* a positive status (errors are negative) */
		{TERN_MSG_RTS, 48, 1}, /* a byte count that does not fit the shape */
		{TERN_MSG_RTS, 55, 255},
		{TERN_MSG_EAGER, 49, 1},
		{TERN_MSG_DONE, 48, 9},
	};
	_Alignas(8) unsigned char message[TERN_HEAD_MAX + 64];
	struct tern_hello answer;
	struct host host;

	(void)state;
	host_init(&host, NULL);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(wrong); i++) {
		int fd = raw_guest(&host, &answer);
		size_t bytes = first_message(wrong[i].type, &answer, message);

		message[wrong[i].at] = wrong[i].value;
		hostile_send_message(fd, message, bytes, 0);
		if (!raw_hung_up(fd))
			fail_msg("case %u: the server did not close the connection", i);
		close(fd);
	}
	check_served(&host);
	host_fini(&host);
}

/* Messages in which each field is valid, but not their combination. The server must take
 * back the credit (right to send one message) that the wrong message used. The correct
 * message before it keeps its credit. */
static void test_messages_that_cannot_be_meant_are_hung_up_on(void **state)
{
	static const struct tern_header wrong[] = {
		/* an RTS without the id of its send */
		{.type = TERN_MSG_RTS, .shape = {TERN_F32, 2, {3, 5}}, .bytes = 60},
		/* an RTS (offer to read the tensor) with a region, which tcp cannot
		 * read */
		{.type = TERN_MSG_RTS,
			.flags = TERN_FLAG_REGION,
			.shape = {TERN_F32, 2, {3, 5}},
			.bytes = 60,
			.src = 0x10002},
		/* a POST without the id of its receive */
		{.type = TERN_MSG_POST, .flags = TERN_FLAG_REGION, .bytes = 100000},
		/* a POST without a region */
		{.type = TERN_MSG_POST, .bytes = 100000, .src = 0x10002},
		/* an EAGER with a tensor larger than the limit */
		{.type = TERN_MSG_EAGER,
			.shape = {TERN_U8, 1, {TERN_EAGER_MAX + 1}},
			.bytes = TERN_EAGER_MAX + 1},
	};
	static _Alignas(8) unsigned char message[TERN_MESSAGE_MAX];
	struct tern_hello answer;
	struct host host;

	(void)state;
	host_init(&host, NULL);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(wrong); i++) {
		struct tern_header h = wrong[i];
		int fd = raw_guest(&host, &answer);
		size_t bytes = first_message(TERN_MSG_RTS, &answer, message), payload;

		hostile_send_message(fd, message, bytes, 0);
		h.epoch = 1;
		h.seq = 2;
		h.ack = answer.first_seq;
		h.credit = 64;
		h.channel = HOST_CHANNEL;
		h.key = 99;
		bytes = tern_header_encode(&h, message);
		payload = h.type == TERN_MSG_EAGER ? h.bytes : 0;
		memset(message + bytes, 1, payload);
		hostile_send_message(fd, message, bytes + payload, payload);
		if (!raw_hung_up(fd))
			fail_msg("case %u: the server did not close the connection", i);
		close(fd);
		check_served(&host);
	}
	host_fini(&host);
}

/* Sends an RTS with a shape whose size in bytes overflows. The server must close the
 * connection. */
static void test_shapes_that_overflow_are_hung_up_on(void **state)
{
	static const struct tern_shape shapes[] = {
		{TERN_F64, 8,
			{1u << 31, 1u << 31, 1u << 31, 1u << 31, 1u << 31, 1u << 31,
				1u << 31, 1u << 31}},
		{TERN_F64, 1, {UINT64_MAX}},
		{TERN_F32, 1, {UINT64_MAX / 4 + 1}},
		{TERN_F32, 2, {1ull << 63, 2}},
		{TERN_F32, 3, {1ull << 40, 1ull << 40, 0}},
	};
	_Alignas(8) unsigned char message[TERN_HEAD_MAX];
	struct tern_hello answer;
	struct host host;

	(void)state;
	host_init(&host, NULL);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(shapes); i++) {
		int fd = raw_guest(&host, &answer);
		struct tern_header h = {.type = TERN_MSG_RTS,
			.epoch = 1,
			.seq = 1,
			.ack = answer.first_seq,
			.credit = 64,
			.channel = HOST_CHANNEL,
			.key = 4,
			.shape = shapes[i],
			.src = 0x10001};
		size_t bytes = tern_header_encode(&h, message);

		hostile_send_message(fd, message, bytes, 0);
		assert_true(raw_hung_up(fd));
		close(fd);
	}
	check_served(&host);
	host_fini(&host);
}

static void test_every_byte_of_a_hello_may_be_wrong(void **state)
{
	struct host host;

	(void)state;
	host_init(&host, NULL);
	for (size_t at = 0; at < TERN_HELLO_MESSAGE_BYTES; at++) {
		struct tern_hello hello = {.step = 1,
			.epoch = 1,
			.incarnation = 5,
			.credit = 64,
			.eager_bytes = 4096,
			.name = "x"};
		_Alignas(8) unsigned char message[TERN_HELLO_MESSAGE_BYTES];
		int fd = raw_dial(&host);

		tern_hello_encode(&hello, message);
		message[at] ^= at % 2 ? 0xff : 0x01;
		hostile_send_message(fd, message, sizeof(message), 0);
		shutdown(fd, SHUT_WR);
		assert_true(raw_hung_up(fd));
		close(fd);
	}
	check_served(&host);
	host_fini(&host);
}

static void test_a_flood_behind_a_good_handshake_is_survived(void **state)
{
	struct tern_rng rng = {.seed = 3};
	struct host host;

	(void)state;
	host_init(&host, NULL);
	for (unsigned i = 0; i < 60; i++) {
		struct tern_hello answer;
		int fd = raw_guest(&host, &answer);

		/* Sends 39 messages, though the server may close the connection sooner.
		 * Their epoch and sequence numbers are correct; of the bytes from the key
		 * on, except the byte count, about a third are random. */
		for (uint32_t sent = 0, seq = 1; sent < 39; sent++) {
			_Alignas(8) unsigned char message[TERN_HEAD_MAX];
			uint8_t type = (uint8_t)(2 + tern_rng_below(&rng,
							     TERN_MSG_TYPE_COUNT - 2));
			size_t bytes = guest_message(type, seq, &answer, message);

			for (size_t at = 32; at < bytes; at++)
				if (tern_rng_below(&rng, 3) == 0 && (at < 48 || at >= 56))
					message[at] =
						(unsigned char)tern_rng_below(&rng, 4);
			hostile_send_message(fd, message, bytes, 0);
			seq += tern_type_is_sequenced(type);
		}
		shutdown(fd, SHUT_WR);
		assert_true(raw_hung_up(fd));
		close(fd);
	}
	check_served(&host);
	host_fini(&host);
}

/* Sends one byte every 0.1 s: at that rate HELLO 1 alone would take 26 s, and the server
 * must close the connection sooner. */
static void test_a_slow_handshake_is_cut(void **state)
{
	struct tern_hello hello = {.step = 1, .epoch = 1, .eager_bytes = 4096};
	_Alignas(8) unsigned char message[TERN_HELLO_MESSAGE_BYTES];
	unsigned char frame[HOSTILE_FRAME_MAX];
	struct host host;
	bool cut = false;
	size_t bytes;
	int fd[2];

	(void)state;
	host_init(&host, NULL);
	tern_hello_encode(&hello, message);
	bytes = hostile_frame(frame, message, sizeof(message), 0);
	fd[0] = raw_dial(&host);
	fd[1] = raw_dial(&host); /* sends nothing at all */
	for (size_t at = 0; at < bytes && !cut; at++) {
		struct pollfd p = {fd[0], POLLIN, 0};
		char byte;

		raw_send(fd[0], frame + at, 1);
		if (poll(&p, 1, 100) == 1)
			cut = recv(fd[0], &byte, 1, 0) <= 0;
		if (at % 20 == 0)
			check_served(&host);
	}
	assert_true(cut);
	assert_true(raw_hung_up(fd[1]));
	close(fd[0]);
	close(fd[1]);
	host_fini(&host);
}

static void test_half_open_connections_do_not_lock_others_out(void **state)
{
	enum { COUNT = 200 };
	struct tern_hello answer;
	struct host host;
	int fd[COUNT];

	(void)state;
	host_init(&host, NULL);
	for (unsigned i = 0; i < COUNT; i++) {
		fd[i] = raw_dial(&host);
		if (i % 2)
			raw_hello(fd[i], 1, NULL);
	}
	check_served(&host);
	for (unsigned i = 0; i < COUNT; i++)
		close(fd[i]);
	for (unsigned i = 0; i < 40; i++)
		fd[i] = raw_guest(&host, &answer);
	check_served(&host);
	for (unsigned i = 0; i < 40; i++)
		close(fd[i]);
	check_served(&host);
	host_fini(&host);
}

/* A server limited to FEW_FILES open files allows HALF_OPEN connections in the
 * handshake. */
#define FEW_FILES   512u
#define HALF_OPEN   256u
#define NEWCOMERS   4u
#define OTHER_FILES 50u /* more than a server has open besides connections */

static void host_init_with_few_files(struct host *host)
{
	struct rlimit all, few;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
	few = all;
	few.rlim_cur = FEW_FILES;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	host_init(host, NULL);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
}

/* Waits until the server closes one of the connections, and returns its index. */
static unsigned first_hung_up(const int *fd, unsigned count)
{
	struct pollfd p[HALF_OPEN + 1];

	for (unsigned i = 0; i < count; i++)
		p[i] = (struct pollfd){fd[i], POLLIN, 0};
	assert_true(poll(p, count, HOST_PATIENCE_NS / TERN_NS_PER_MS) > 0);
	for (unsigned i = 0; i < count; i++)
		if (p[i].revents) {
			assert_true(raw_hung_up(fd[i]));
			return i;
		}
	return count;
}

static void test_who_is_late_gives_way_to_newcomers(void **state)
{
	int fd[HALF_OPEN + 1];
	struct host host;

	(void)state;
	host_init_with_few_files(&host);
	for (unsigned i = 0; i < HALF_OPEN; i++)
		fd[i] = raw_dial(&host);
	poll(NULL, 0, 1500);
	fd[HALF_OPEN] = raw_dial(&host);
	assert_int_equal(first_hung_up(fd, HALF_OPEN + 1), 0);
	for (unsigned i = 0; i <= HALF_OPEN; i++)
		close(fd[i]);
	check_served(&host);
	host_fini(&host);
}

/* With all places for handshakes taken, a new connection is refused, except that every
 * fourth one replaces the oldest silent one. The oldest of all has sent HELLO 1, so the
 * fourth newcomer replaces the second oldest. On a slow machine all may be overdue; then
 * nothing is checked. */
static void test_one_newcomer_in_four_takes_the_place_of_a_silent_one(void **state)
{
	uint64_t start_ns = tern_clock_ns();
	int fd[HALF_OPEN + 1];
	struct tern_hello answer;
	struct host host;

	(void)state;
	host_init_with_few_files(&host);
	fd[0] = raw_ask(&host, &answer);
	for (unsigned i = 1; i < HALF_OPEN; i++)
		fd[i] = raw_dial(&host);
	for (unsigned i = 0; i < NEWCOMERS; i++) {
		unsigned cut, newcomer = HALF_OPEN;

		fd[newcomer] = raw_dial(&host);
		cut = first_hung_up(fd, HALF_OPEN + 1);
		if (tern_clock_ns() - start_ns < TERN_OVERDUE_NS)
			assert_int_equal(cut, i < NEWCOMERS - 1 ? newcomer : 1);
		close(fd[newcomer]);
	}
	for (unsigned i = 0; i < HALF_OPEN; i++)
		close(fd[i]);
	check_served(&host);
	host_fini(&host);
}

/* Connects to the server from the address 127.0.0.`last`, and sends nothing. */
static int silent_dial(const struct host *host, unsigned last)
{
	const struct sockaddr_in from = {.sin_family = AF_INET,
		.sin_addr.s_addr = htonl((INADDR_LOOPBACK & ~255u) | last)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (bind(fd, (const struct sockaddr *)&from, sizeof(from)) < 0 ||
		connect(fd, (const struct sockaddr *)&host->at, sizeof(host->at)) < 0)
		_exit(1);
	return fd;
}

/* Opens many connections, sends nothing, and opens another one for each that the server
 * closes. */
static _Noreturn void stay_silent(const struct host *host, unsigned last)
{
	enum { COUNT = 400 };
	struct pollfd p[COUNT];

	/* This child is killed if the process of the test ends. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (unsigned i = 0; i < COUNT; i++)
		p[i] = (struct pollfd){silent_dial(host, last), POLLIN, 0};
	for (;;) {
		poll(p, COUNT, -1);
		for (unsigned i = 0; i < COUNT; i++) {
			if (!p[i].revents)
				continue;
			close(p[i].fd);
			p[i].fd = silent_dial(host, last);
		}
	}
}

static void check_the_silent_do_not_lock_others_out(unsigned last)
{
	struct host host;
	pid_t silent;
	int status;

	host_init_with_few_files(&host);
	silent = fork();
	assert_true(silent >= 0);
	if (silent == 0)
		stay_silent(&host, last);
	/* As a rule the child opens more connections than the limit in this time. */
	poll(NULL, 0, 300);
	for (unsigned i = 0; i < 5; i++)
		check_served(&host);
	kill(silent, SIGKILL);
	assert_int_equal(waitpid(silent, &status, 0), silent);
	/* The child was killed, and did not end by itself. */
	assert_true(WIFSIGNALED(status));
	check_served(&host);
	host_fini(&host);
}

static void test_the_silent_do_not_lock_their_own_host_out(void **state)
{
	(void)state;
	check_the_silent_do_not_lock_others_out(1);
}

static void test_the_silent_do_not_lock_other_hosts_out(void **state)
{
	(void)state;
	check_the_silent_do_not_lock_others_out(2);
}

static unsigned open_files(pid_t pid)
{
	unsigned count = 0;
	char path[40];
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	assert_non_null(dir);
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

/* Silent connections take only a limited share of the server's descriptors, and other
 * clients can connect while they are open. */
static void test_three_thousand_silent_sockets_lock_nobody_out(void **state)
{
	enum { COUNT = 3000 };
	struct rlimit files;
	struct host host;
	static int fd[COUNT];

	(void)state;
	host_init_with_few_files(&host);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
	if (files.rlim_cur < COUNT + 100) {
		host_fini(&host);
		print_message("skip: the test needs 3,100 open files\n");
		skip();
	}
	/* From here on, only the limit of connections in the handshake restricts how many
	 * the server keeps. */
	assert_int_equal(prlimit(host.pid, RLIMIT_NOFILE, &files, NULL), 0);
	for (unsigned i = 0; i < COUNT; i++)
		fd[i] = silent_dial(&host, 1);
	check_served(&host);
	assert_true(open_files(host.pid) < HALF_OPEN + OTHER_FILES);
	for (unsigned i = 0; i < COUNT; i++)
		close(fd[i]);
	check_served(&host);
	host_fini(&host);
}

/* If a refused client does not close its connection, the server closes it after a time in
 * which the client can read the reason, and keeps only a few such connections. */
static void test_refused_connections_hold_few_descriptors(void **state)
{
	enum { COUNT = 400 };
	const struct tern_hello nobody = {.token = 12345};
	struct rlimit files;
	struct host host;
	static int fd[COUNT];
	char byte;

	(void)state;
	host_init_with_few_files(&host);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
	assert_int_equal(prlimit(host.pid, RLIMIT_NOFILE, &files, NULL), 0);
	for (unsigned i = 0; i < COUNT; i++) {
		fd[i] = raw_dial(&host);
		raw_hello(fd[i], 1, &nobody);
	}
	for (unsigned i = 0; i < COUNT; i++)
		/* Reads the refusal or the end of the stream. */
		(void)recv(fd[i], &byte, 1, 0);
	assert_true(open_files(host.pid) < HALF_OPEN / 2 + OTHER_FILES);
	check_served(&host);
	for (unsigned i = 0; i < COUNT; i++)
		close(fd[i]);
	host_fini(&host);
}

/* Hundreds of connections that ask to be rails (additional connections) of a session that
 * does not exist: the server must keep nothing of them. */
static void test_rails_of_nobody_leave_nothing_behind(void **state)
{
	static const uint8_t rails[] = {1, 3, 4, 5, 255};
	struct host host;

	(void)state;
	host_init(&host, NULL);
	for (unsigned i = 0; i < 300; i++) {
		int fd = raw_dial(&host);

		raw_hello_of(fd, 1, rails[i % TERN_ARRAY_SIZE(rails)], NULL);
		shutdown(fd, SHUT_WR);
		assert_true(raw_hung_up(fd));
		close(fd);
	}
	check_served(&host);
	host_fini(&host);
}

static void test_without_the_secret_nobody_gets_in(void **state)
{
	struct tern_hello answer;
	struct host host;

	(void)state;
	host_init(&host, "the secret");
	check_served(&host);
	for (unsigned i = 0; i < 10; i++) {
		/* The proof of this handshake is all zeros, so it must be refused. */
		int fd = raw_guest(&host, &answer);

		assert_true(raw_hung_up(fd));
		close(fd);
	}
	check_served(&host);
	host_fini(&host);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_noise_is_hung_up_on),
		cmocka_unit_test(test_truncated_frames_are_survived),
		cmocka_unit_test(test_every_field_of_the_frame_may_be_wrong),
		cmocka_unit_test(test_every_field_of_the_header_may_be_wrong),
		cmocka_unit_test(test_what_cannot_be_right_is_hung_up_on),
		cmocka_unit_test(test_messages_that_cannot_be_meant_are_hung_up_on),
		cmocka_unit_test(test_shapes_that_overflow_are_hung_up_on),
		cmocka_unit_test(test_every_byte_of_a_hello_may_be_wrong),
		cmocka_unit_test(test_a_flood_behind_a_good_handshake_is_survived),
		cmocka_unit_test(test_a_slow_handshake_is_cut),
		cmocka_unit_test(test_half_open_connections_do_not_lock_others_out),
		cmocka_unit_test(test_who_is_late_gives_way_to_newcomers),
		cmocka_unit_test(
			test_one_newcomer_in_four_takes_the_place_of_a_silent_one),
		cmocka_unit_test(test_the_silent_do_not_lock_their_own_host_out),
		cmocka_unit_test(test_the_silent_do_not_lock_other_hosts_out),
		cmocka_unit_test(test_three_thousand_silent_sockets_lock_nobody_out),
		cmocka_unit_test(test_refused_connections_hold_few_descriptors),
		cmocka_unit_test(test_rails_of_nobody_leave_nothing_behind),
		cmocka_unit_test(test_without_the_secret_nobody_gets_in),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
