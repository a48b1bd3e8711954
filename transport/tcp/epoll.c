/* SPDX-License-Identifier: Apache-2.0 */
/* The epoll engine. It uses level-triggered mode: a socket that was read in the meantime
 * without asking epoll is no longer reported, and the epoll descriptor, on which callers
 * sleep, is readable exactly as long as one of the sockets is ready. */
#include <errno.h>
#include <sys/epoll.h>

#include "transport/tcp/tcp.h"

#define EVENTS_MAX 64

static int epoll_init(struct tcp_port *port)
{
	port->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	return port->epoll_fd < 0 ? -errno : 0;
}

static void epoll_fini(struct tcp_port *port)
{
	close(port->epoll_fd);
}

static int epoll_sync(struct tcp_port *port, struct tcp_watch *watch)
{
	struct epoll_event event = {.events = watch->want, .data.ptr = watch};
	int how = watch->set ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;

	if (!watch->want)
		how = EPOLL_CTL_DEL;
	if (epoll_ctl(port->epoll_fd, how, watch->fd, &event) < 0)
		return -errno;
	watch->set = watch->want;
	return 0;
}

static void epoll_remove(struct tcp_port *port, struct tcp_watch *watch)
{
	/* close() alone would not remove the descriptor while a child process holds a
	 * copy. */
	if (watch->set)
		epoll_ctl(port->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
}

static void epoll_collect(struct tcp_port *port)
{
	struct epoll_event events[EVENTS_MAX];
	int n = epoll_wait(port->epoll_fd, events, EVENTS_MAX, 0);

	for (int i = 0; i < n; i++)
		tcp_watch_got(port, events[i].data.ptr, events[i].events);
}

static int epoll_arm(struct tcp_port *port)
{
	(void)port;
	return 0;
}

static int epoll_fd(struct tcp_port *port)
{
	return port->epoll_fd;
}

const struct tcp_engine_ops tcp_epoll_engine = {
	.name = "epoll",
	.init = epoll_init,
	.fini = epoll_fini,
	.sync = epoll_sync,
	.remove = epoll_remove,
	.collect = epoll_collect,
	.arm = epoll_arm,
	.fd = epoll_fd,
};
