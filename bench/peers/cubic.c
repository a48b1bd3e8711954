/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into peers that have no option for it: sets cubic on all their TCP sockets,
 * whatever the system's default is, as on those of Tern and of the plain programs.
 * Accepted sockets inherit it from the listening one.
 */
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

__attribute__((visibility("default"))) int socket(int family, int type, int protocol)
{
	static int (*next)(int, int, int);
	int fd;

	if (!next)
		next = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
	fd = next(family, type, protocol);
	if (fd >= 0 && (family == AF_INET || family == AF_INET6) &&
		(type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK)) == SOCK_STREAM)
		setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
	return fd;
}
