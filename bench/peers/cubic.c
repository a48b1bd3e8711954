/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library that is preloaded (LD_PRELOAD) into peers without an option for TCP's
 * congestion control. It sets cubic on all their TCP sockets, whatever the system's
 * default is, as Tern and the plain programs do on theirs. Accepted sockets inherit it
 * from the listening socket.
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
