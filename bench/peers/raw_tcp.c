/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peer "raw TCP": plain sockets, the limit of what the kernel gives. Cubic,
 * TCP_NODELAY; bytes are received directly into the tensor, at most 1 MiB per call, which
 * was the fastest. To poll, it calls a non-blocking recv in a loop; to sleep, the calls
 * block.
 *
 * plain: each message has calls of its own at each end. batched: messages wait in a buffer
 * until it is full or one of them asks for an answer, and the receiver takes as many bytes
 * as there are and copies them into the tensors; for the rate of small messages.
 *
 * In both directions, calls never block: two ends that both waited in send() for room, and
 * read nothing meanwhile, would wait for ever. An end that can neither send nor receive
 * polls on, or sleeps in poll().
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "bench/pair.h"

#define CALL_BYTES  (1u << 20)
#define BATCH_BYTES (64u << 10)

static _Thread_local int fd;
static _Thread_local int flags; /* of send() and recv(), unless --test both */
static _Thread_local bool batched;
/* The buffer of the variant `batched`. In a sender, the bytes before batch_end are to be sent; in
 * a receiver, those from batch_start to batch_end are to be copied into tensors. */
static _Thread_local unsigned char batch[BATCH_BYTES];
static _Thread_local size_t batch_start, batch_end;

static void open_socket(int s)
{
	int one = 1;

	setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) < 0)
		pair_die("cubic: %s", strerror(errno));
}

static void raw_open(struct pair *p)
{
	struct sockaddr_in at = {.sin_family = AF_INET};
	socklen_t length = sizeof(at);
	int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	inet_pton(AF_INET, p->host, &at.sin_addr);
	open_socket(s);
	if (p->sender) {
		pair_hear(p, &at, sizeof(at));
		if (connect(s, (void *)&at, sizeof(at)) < 0)
			pair_die("connect: %s", strerror(errno));
		fd = s;
	} else {
		if (bind(s, (void *)&at, sizeof(at)) < 0 || listen(s, 1) < 0 ||
			getsockname(s, (void *)&at, &length) < 0)
			pair_die("listen: %s", strerror(errno));
		pair_tell(p, &at, sizeof(at));
		fd = accept(s, NULL, NULL);
		open_socket(fd);
		close(s);
	}
	flags = p->poll ? MSG_DONTWAIT : 0;
	batched = strcmp(p->variant, "batched") == 0;
	if (batched && p->size_max > BATCH_BYTES)
		pair_die("batched is for messages of at most %u bytes", BATCH_BYTES);
}

/* Sends all bytes. While the socket is full, the answers are not read: they have 8 bytes each, and
 * fit into the socket's receive buffer. */
static void put_bytes(const unsigned char *data, size_t bytes)
{
	while (bytes) {
		ssize_t done = send(fd, data, bytes, flags | MSG_NOSIGNAL);

		if (done < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (done <= 0)
			pair_die("send: %s", strerror(errno));
		data += done;
		bytes -= (size_t)done;
	}
}

/* Receives at least one byte, and returns how many. */
static size_t get_some(unsigned char *data, size_t bytes)
{
	for (;;) {
		ssize_t done = recv(fd, data, bytes, flags);

		if (done > 0)
			return (size_t)done;
		if (done == 0 || (errno != EAGAIN && errno != EINTR))
			pair_die("recv: %s", done ? strerror(errno) : "closed");
	}
}

static void get_bytes(unsigned char *data, size_t bytes)
{
	while (bytes) {
		size_t done = get_some(data, bytes < CALL_BYTES ? bytes : CALL_BYTES);

		data += done;
		bytes -= done;
	}
}

static void post_batched(struct pair *p, uint64_t n)
{
	if (batch_end + pair_bytes(p, n) > BATCH_BYTES) {
		put_bytes(batch, batch_end);
		batch_end = 0;
	}
	memcpy(batch + batch_end, pair_tensor(p, n), pair_bytes(p, n));
	batch_end += pair_bytes(p, n);
	if (pair_answered(p, n)) {
		put_bytes(batch, batch_end);
		batch_end = 0;
	}
}

static void receive_batched(struct pair *p, uint64_t n)
{
	unsigned char *to = pair_tensor(p, n);

	for (size_t left = pair_bytes(p, n); left;) {
		size_t bytes = batch_end - batch_start;

		if (!bytes) {
			batch_start = 0;
			batch_end = bytes = get_some(batch, BATCH_BYTES);
		}
		if (bytes > left)
			bytes = left;
		memcpy(to, batch + batch_start, bytes);
		batch_start += bytes;
		to += bytes;
		left -= bytes;
	}
}

/* ---- both directions ---- */

/* How far the tensors of the present size have moved in one direction. */
struct way {
	uint64_t begun; /* number of tensors that may move */
	uint64_t moved; /* number of tensors that have moved as a whole */
	size_t offset;  /* bytes of the next tensor that have moved */
};

/* `begun` is used in `out` only: it limits what may be sent. What comes in needs no limit,
 * because its memory is always free. */
static _Thread_local struct way out, in;

/* Returns the memory of tensor n that goes out or comes in: at the sender messages go out and
 * answers come in, at the receiver the reverse. */
static unsigned char *both_tensor(const struct pair *p, bool outgoing, uint64_t n)
{
	return p->sender == outgoing ? pair_tensor(p, n) : pair_reply(p, n);
}

/* Counts what a send() or recv() has moved; `bytes` is its result. False if nothing could move. */
static bool both_moved(const struct pair *p, struct way *way, ssize_t bytes)
{
	if (bytes <= 0) {
		if (bytes == 0 || (errno != EAGAIN && errno != EINTR))
			pair_die(
				"the connection: %s", bytes ? strerror(errno) : "closed");
		return false;
	}
	way->offset += (size_t)bytes;
	if (way->offset == pair_bytes(p, way->moved)) {
		way->offset = 0;
		way->moved++;
	}
	return true;
}

static bool both_send(const struct pair *p)
{
	if (out.moved == out.begun)
		return false;
	return both_moved(p, &out,
		send(fd, both_tensor(p, true, out.moved) + out.offset,
			pair_bytes(p, out.moved) - out.offset,
			MSG_DONTWAIT | MSG_NOSIGNAL));
}

static bool both_receive(const struct pair *p)
{
	size_t left = pair_bytes(p, in.moved) - in.offset;

	if (in.moved == p->total)
		return false;
	return both_moved(p, &in,
		recv(fd, both_tensor(p, false, in.moved) + in.offset,
			left < CALL_BYTES ? left : CALL_BYTES, MSG_DONTWAIT));
}

/* Moves bytes in both directions until `count` tensors have moved in the direction `way`. */
static void both_move(const struct pair *p, const struct way *way, uint64_t count)
{
	while (way->moved < count) {
		bool sent = both_send(p), received = both_receive(p);
		struct pollfd ready = {.fd = fd,
			.events = (short)((in.moved < p->total ? POLLIN : 0) |
					  (out.moved < out.begun ? POLLOUT : 0))};

		if (!sent && !received && !p->poll)
			poll(&ready, 1, -1);
	}
}

/* ---- what pair_main() calls ---- */

static void raw_begin(struct pair *p)
{
	(void)p;
	out = in = (struct way){0};
}

static void raw_post(struct pair *p, uint64_t n)
{
	if (p->both_ways) {
		out.begun++;
		both_send(p);
	} else if (batched)
		post_batched(p, n);
	else
		put_bytes(pair_tensor(p, n), pair_bytes(p, n));
}

static void raw_await(struct pair *p, uint64_t n)
{
	unsigned char reply[PAIR_REPLY_BYTES];

	if (p->both_ways)
		both_move(p, &in, n + 1); /* answer n is here, so message n has left */
	else if (pair_answered(p, n))
		get_bytes(reply, sizeof(reply));
}

static void raw_receive(struct pair *p, uint64_t n)
{
	if (p->both_ways)
		both_move(p, &in, n + 1);
	else if (batched)
		receive_batched(p, n);
	else
		get_bytes(pair_tensor(p, n), pair_bytes(p, n));
}

static void raw_answer(struct pair *p, uint64_t n)
{
	static const unsigned char reply[PAIR_REPLY_BYTES];

	if (p->both_ways) {
		out.begun++;
		both_send(p);
	} else if (pair_answered(p, n)) {
		put_bytes(reply, sizeof(reply));
	}
}

static void raw_flush(struct pair *p)
{
	if (p->both_ways)
		both_move(p, &out, out.begun);
}

static const char *raw_version(void)
{
	static struct utsname system;

	uname(&system);
	return system.release;
}

int main(int argc, char **argv)
{
	return pair_main(argc, argv,
		&(struct pair_ops){.name = "raw TCP",
			.variants = "plain,batched",
			.waits = "poll,sleep",
			.both_ways = true,
			.threads = true,
			.version = raw_version,
			.open = raw_open,
			.begin = raw_begin,
			.post = raw_post,
			.await = raw_await,
			.receive = raw_receive,
			.answer = raw_answer,
			.flush = raw_flush});
}
