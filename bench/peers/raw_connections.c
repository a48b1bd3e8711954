/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many connections with plain TCP sockets and an epoll server. The kernel's memory for a
 * socket is not counted, neither here nor in the other programs, since it is in no
 * process's resident memory.
 *
 *     raw_connections COUNT,...
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/ask.h"
#include "bench/pair.h"
#include "bench/two.h"

static int *fds;
static struct sockaddr_in server;

static int new_socket(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	if (fd < 0)
		pair_die("socket: %s", strerror(errno));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
	return fd;
}

static void watch(int epoll, int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

	if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0)
		pair_die("epoll: %s", strerror(errno));
}

static void answer(int fd)
{
	unsigned char data[ASK_BYTES];

	if (recv(fd, data, sizeof(data), MSG_WAITALL) != sizeof(data) ||
		send(fd, data, ASK_REPLY_BYTES, MSG_NOSIGNAL) != ASK_REPLY_BYTES)
		_exit(0); /* the client has exited */
}

static void serve(int fd, unsigned count)
{
	struct sockaddr_in at = {.sin_family = AF_INET};
	socklen_t length = sizeof(at);
	int listener = new_socket(), epoll = epoll_create1(EPOLL_CLOEXEC);

	(void)count;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(listener, (void *)&at, sizeof(at)) < 0 || listen(listener, 1024) < 0 ||
		getsockname(listener, (void *)&at, &length) < 0)
		pair_die("listen: %s", strerror(errno));
	two_tell(fd, &at, sizeof(at));
	watch(epoll, listener);
	watch(epoll, fd);
	for (;;) {
		struct epoll_event events[64];
		int n = epoll_wait(epoll, events, 64, -1);

		for (int i = 0; i < n; i++) {
			if (events[i].data.fd == listener)
				watch(epoll, accept(listener, NULL, NULL));
			else if (events[i].data.fd == fd)
				ask_answer(fd);
			else
				answer(events[i].data.fd);
		}
	}
}

static void prepare(int fd, unsigned count)
{
	two_hear(fd, &server, sizeof(server));
	fds = calloc(count, sizeof(*fds));
	if (!fds)
		pair_die("no memory for %u connections", count);
}

static void connect_one(unsigned i)
{
	fds[i] = new_socket();
	if (connect(fds[i], (const void *)&server, sizeof(server)) < 0)
		pair_die("connect: %s", strerror(errno));
}

static void ask(unsigned i)
{
	static const unsigned char data[ASK_BYTES];

	if (send(fds[i], data, sizeof(data), MSG_NOSIGNAL) != sizeof(data))
		pair_die("the server is gone");
}

static void get_answer(unsigned i)
{
	unsigned char data[ASK_REPLY_BYTES];

	if (recv(fds[i], data, sizeof(data), MSG_WAITALL) != sizeof(data))
		pair_die("the server is gone");
}

int main(int argc, char **argv)
{
	return ask_main(argc, argv,
		&(struct ask_ops){.usage = "raw_connections COUNT,...",
			.serve = serve,
			.prepare = prepare,
			.connect = connect_one,
			.ask = ask,
			.get_answer = get_answer});
}
