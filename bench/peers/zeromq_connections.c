/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many connections with ZeroMQ: a DEALER socket for each, and one ROUTER at the server. One
 * I/O thread at each end.
 *
 *     zeromq_connections COUNT,...
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "bench/ask.h"
#include "bench/pair.h"
#include "bench/two.h"

static void *context, **sockets;
static char address[64];

static void must(const char *what, int status)
{
	if (status < 0)
		pair_die("%s: %s", what, zmq_strerror(zmq_errno()));
}

static void open_context(unsigned sockets_max)
{
	context = zmq_ctx_new();
	must("sockets", zmq_ctx_set(context, ZMQ_MAX_SOCKETS, (int)sockets_max + 8));
}

/* Answers a request. A request that a ROUTER receives, and an answer that it sends, begin with a
 * frame that names the connection. */
static void answer(void *router)
{
	static const unsigned char reply[ASK_REPLY_BYTES];
	unsigned char data[ASK_BYTES];
	zmq_msg_t name;

	zmq_msg_init(&name);
	must("receive", zmq_msg_recv(&name, router, 0));
	if (zmq_recv(router, data, sizeof(data), 0) != sizeof(data))
		pair_die("a request has another size");
	must("send", zmq_msg_send(&name, router, ZMQ_SNDMORE));
	must("send", zmq_send(router, reply, sizeof(reply), 0));
}

static void serve(int fd, unsigned count)
{
	size_t bytes = sizeof(address);
	int backlog = 1024;
	void *router;

	(void)count;
	open_context(1);
	router = zmq_socket(context, ZMQ_ROUTER);
	must("backlog", zmq_setsockopt(router, ZMQ_BACKLOG, &backlog, sizeof(backlog)));
	must("bind", zmq_bind(router, "tcp://127.0.0.1:*"));
	must("address", zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, address, &bytes));
	two_tell(fd, address, sizeof(address));
	for (;;) {
		zmq_pollitem_t items[] = {{.socket = router, .events = ZMQ_POLLIN},
			{.fd = fd, .events = ZMQ_POLLIN}};

		must("poll", zmq_poll(items, 2, -1));
		if (items[0].revents)
			answer(router);
		if (items[1].revents)
			ask_answer(fd);
	}
}

static void prepare(int fd, unsigned count)
{
	two_hear(fd, address, sizeof(address));
	sockets = calloc(count, sizeof(*sockets));
	if (!sockets)
		pair_die("no memory for %u connections", count);
	open_context(count);
}

static void connect_one(unsigned i)
{
	sockets[i] = zmq_socket(context, ZMQ_DEALER);
	if (!sockets[i])
		must("socket", -1);
	must("connect", zmq_connect(sockets[i], address));
}

static void ask(unsigned i)
{
	static const unsigned char data[ASK_BYTES];

	must("send", zmq_send(sockets[i], data, sizeof(data), 0));
}

static void get_answer(unsigned i)
{
	unsigned char reply[ASK_REPLY_BYTES];

	if (zmq_recv(sockets[i], reply, sizeof(reply), 0) != sizeof(reply))
		pair_die("an answer has another size");
}

int main(int argc, char **argv)
{
	return ask_main(argc, argv,
		&(struct ask_ops){.usage = "zeromq_connections COUNT,...",
			.serve = serve,
			.prepare = prepare,
			.connect = connect_one,
			.ask = ask,
			.get_answer = get_answer});
}
