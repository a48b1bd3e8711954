/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets as the tcp fabric wants them. */
#include <errno.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <string.h>

#include "base/clock.h"
#include "transport/tcp.h"

void tcp_socket_options(int fd, const char *congestion, uint64_t silent_ns)
{
	unsigned silent_ms =
		(unsigned)TERN_MIN(silent_ns / TERN_NS_PER_MS, (uint64_t)INT_MAX);
	int one = 1;

	/* Neither is needed to be right, so a kernel that refuses is left alone. An
	 * explicit wish for a congestion control was checked when the fabric was opened.
	 */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (*congestion)
		setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion,
			(socklen_t)strlen(congestion));
	if (silent_ms)
		setsockopt(
			fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, sizeof(silent_ms));
}

int tcp_socket_open(int family, const char *congestion, uint64_t silent_ns)
{
	int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);

	if (fd < 0)
		return -errno;
	tcp_socket_options(fd, congestion, silent_ns);
	return fd;
}
