/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peer ZeroMQ: a socket of type PAIR at each end, over TCP. The sender's message refers to
 * its tensor without a copy, unless the tensor has at most COPY_BYTES bytes: then a copy is
 * cheaper than the bookkeeping. The receiver copies the message into its tensor. ZeroMQ's I/O
 * thread sleeps between events, so polling is not offered: in a pinned end it would take the
 * core that the I/O thread needs.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#include "bench/pair.h"

#define COPY_BYTES 1024u

static _Thread_local void *sock;
/* Number of messages that this end has sent, and whose tensors may be reused; the I/O thread
 * writes it too. */
static _Thread_local atomic_uint_fast64_t freed;
/* sent: tensors that this end has sent so far (not answers of 8 bytes); sent_before: the value
 * of `sent` before the present size */
static _Thread_local uint64_t sent, sent_before;

static void must(const char *what, int status)
{
	if (status < 0)
		pair_die("%s: %s", what, zmq_strerror(zmq_errno()));
}

/* Returns the context of the process; the first call makes it, with `threads` I/O threads: one
 * for each thread of the program. */
static void *get_context(unsigned threads)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static void *context;

	pthread_mutex_lock(&mutex);
	if (!context) {
		context = zmq_ctx_new();
		must("I/O threads", zmq_ctx_set(context, ZMQ_IO_THREADS, (int)threads));
	}
	pthread_mutex_unlock(&mutex);
	return context;
}

static void zeromq_open(struct pair *p)
{
	char address[64];
	size_t bytes = sizeof(address);
	int none = 0;

	sock = zmq_socket(get_context(p->threads ? p->threads : 1), ZMQ_PAIR);
	must("option", zmq_setsockopt(sock, ZMQ_SNDHWM, &none, sizeof(none)));
	must("option", zmq_setsockopt(sock, ZMQ_RCVHWM, &none, sizeof(none)));
	must("option", zmq_setsockopt(sock, ZMQ_LINGER, &none, sizeof(none)));
	if (p->sender) {
		pair_hear(p, address, sizeof(address));
		must("connect", zmq_connect(sock, address));
	} else {
		snprintf(address, sizeof(address), "tcp://%s:*", p->host);
		must("bind", zmq_bind(sock, address));
		must("address", zmq_getsockopt(sock, ZMQ_LAST_ENDPOINT, address, &bytes));
		pair_tell(p, address, sizeof(address));
	}
}

static void zeromq_begin(struct pair *p)
{
	(void)p;
	sent_before = sent;
}

static void sent_one(void *data, void *hint)
{
	(void)data;
	atomic_fetch_add((atomic_uint_fast64_t *)hint, 1);
}

/* Receives a message of exactly `bytes` bytes into `data`. */
static void get_message(void *data, size_t bytes)
{
	zmq_msg_t message;
	int got;

	zmq_msg_init(&message);
	do
		got = zmq_msg_recv(&message, sock, 0);
	while (got < 0 && errno == EINTR);
	must("receive", got);
	if (zmq_msg_size(&message) != bytes)
		pair_die("a message has %zu bytes, expected %zu", zmq_msg_size(&message),
			bytes);
	memcpy(data, zmq_msg_data(&message), bytes);
	zmq_msg_close(&message);
}

static void send_tensor(void *data, size_t bytes)
{
	zmq_msg_t message;

	sent++;
	if (bytes <= COPY_BYTES) {
		must("send", zmq_send(sock, data, bytes, 0));
		atomic_fetch_add(&freed, 1);
		return;
	}
	must("message", zmq_msg_init_data(&message, data, bytes, sent_one, &freed));
	must("send", zmq_msg_send(&message, sock, 0));
}

static void zeromq_post(struct pair *p, uint64_t n)
{
	send_tensor(pair_tensor(p, n), pair_bytes(p, n));
}

/* Waits until `count` tensors of this size may be reused. They are the first ones, since the I/O
 * thread calls sent_one() in the order of sending; but in steps a tensor of at most COPY_BYTES
 * counts at once, before others, and only after the wait for a step's last tensor all of them
 * may be reused. */
static void wait_until_freed(uint64_t count)
{
	while (atomic_load(&freed) < sent_before + count)
		sched_yield();
}

static void zeromq_await(struct pair *p, uint64_t n)
{
	unsigned char reply[PAIR_REPLY_BYTES];

	if (p->both_ways)
		get_message(pair_reply(p, n), pair_bytes(p, n));
	else if (pair_answered(p, n))
		get_message(reply, sizeof(reply));
	wait_until_freed(n + 1);
}

static void zeromq_receive(struct pair *p, uint64_t n)
{
	get_message(pair_tensor(p, n), pair_bytes(p, n));
}

static void zeromq_answer(struct pair *p, uint64_t n)
{
	static const unsigned char reply[PAIR_REPLY_BYTES];

	if (p->both_ways)
		send_tensor(pair_reply(p, n), pair_bytes(p, n));
	else if (pair_answered(p, n))
		must("send", zmq_send(sock, reply, sizeof(reply), 0));
}

static void zeromq_flush(struct pair *p)
{
	(void)p;
	wait_until_freed(sent - sent_before);
}

static const char *zeromq_version(void)
{
	static char text[24];
	int major, minor, patch;

	zmq_version(&major, &minor, &patch);
	snprintf(text, sizeof(text), "%d.%d.%d", major, minor, patch);
	return text;
}

int main(int argc, char **argv)
{
	return pair_main(argc, argv,
		&(struct pair_ops){.name = "ZeroMQ",
			.variants = "",
			.waits = "sleep",
			.both_ways = true,
			.threads = true,
			.version = zeromq_version,
			.open = zeromq_open,
			.begin = zeromq_begin,
			.post = zeromq_post,
			.await = zeromq_await,
			.receive = zeromq_receive,
			.answer = zeromq_answer,
			.flush = zeromq_flush});
}
