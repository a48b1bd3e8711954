/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The measurements of bench/connections.c for plain TCP sockets with an epoll server: 64
 * bytes are sent and 8 come back. The kernel's memory for a socket is not counted,
 * neither here nor in the other programs, since it is in no process's resident memory.
 *
 *     raw_connections COUNT,...
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/ask.h"
#include "bench/pair.h"

#define COUNTS_MAX 8
#define TRIPS      1000u
#define IDLE_NS    1000000000ull
#define BYTES      64u

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
	unsigned char data[BYTES];

	if (recv(fd, data, sizeof(data), MSG_WAITALL) != sizeof(data) ||
		send(fd, data, 8, MSG_NOSIGNAL) != 8)
		_exit(0); /* the client has exited */
}

static _Noreturn void serve(int fd)
{
	struct sockaddr_in at = {.sin_family = AF_INET};
	socklen_t length = sizeof(at);
	int listener = new_socket(), epoll = epoll_create1(EPOLL_CLOEXEC);

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(listener, (void *)&at, sizeof(at)) < 0 || listen(listener, 1024) < 0 ||
		getsockname(listener, (void *)&at, &length) < 0 ||
		send(fd, &at, sizeof(at), MSG_NOSIGNAL) != sizeof(at))
		pair_die("listen: %s", strerror(errno));
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

static int connect_one(const struct sockaddr_in *at)
{
	int fd = new_socket();

	if (connect(fd, (const void *)at, sizeof(*at)) < 0)
		pair_die("connect: %s", strerror(errno));
	return fd;
}

static void trip(int fd)
{
	unsigned char data[BYTES] = {0};

	if (send(fd, data, sizeof(data), MSG_NOSIGNAL) != sizeof(data) ||
		recv(fd, data, 8, MSG_WAITALL) != 8)
		pair_die("the server is gone");
}

static void measure(int fd, unsigned count)
{
	struct ask_result r = {.connections = count};
	uint64_t start_ns, before, took_ns[TRIPS];
	int *fds = calloc(count, sizeof(*fds));
	struct sockaddr_in at;

	if (recv(fd, &at, sizeof(at), MSG_WAITALL) != sizeof(at))
		pair_die("the server is gone");
	before = ask_own_memory() + ask_other(fd, ASK_MEMORY);
	start_ns = bench_now_ns();
	fds[0] = connect_one(&at);
	trip(fds[0]);
	r.first_byte_ns = bench_now_ns() - start_ns;
	start_ns = bench_now_ns();
	for (unsigned i = 1; i < count; i++)
		fds[i] = connect_one(&at);
	r.all_up_ns = bench_now_ns() - start_ns;
	for (unsigned i = 1; i < count; i++)
		trip(fds[i]);
	r.memory_bytes = ask_own_memory() + ask_other(fd, ASK_MEMORY) - before;
	for (unsigned i = 0; i < TRIPS; i++) {
		start_ns = bench_now_ns();
		trip(fds[0]);
		took_ns[i] = bench_now_ns() - start_ns;
	}
	r.trip_ns = bench_percentile_ns(took_ns, TRIPS, 0.5);
	r.idle_cpu_ns = bench_cpu_ns() + ask_other(fd, ASK_CPU);
	start_ns = bench_now_ns();
	poll(NULL, 0, (int)(IDLE_NS / 1000000));
	r.idle_cpu_ns = bench_cpu_ns() + ask_other(fd, ASK_CPU) - r.idle_cpu_ns;
	r.idle_ns = bench_now_ns() - start_ns;
	ask_print(&r);
	free(fds);
}

static void run(unsigned count)
{
	int fds[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
		pair_die("socketpair: %s", strerror(errno));
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(fds[0]);
		bench_pin(1);
		serve(fds[1]);
	}
	close(fds[1]);
	bench_pin(0);
	measure(fds[0], count);
}

int main(int argc, char **argv)
{
	uint64_t counts[COUNTS_MAX];
	unsigned n = argc == 2 ? bench_sizes(argv[1], counts, COUNTS_MAX) : 0;

	if (!n)
		pair_die("usage: raw_connections COUNT,...");
	ask_for_files();
	for (unsigned i = 0; i < n; i++) {
		int status;
		pid_t pid = fork();

		if (pid == 0) {
			run((unsigned)counts[i]);
			_exit(0);
		}
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
			return 1;
	}
	return 0;
}
