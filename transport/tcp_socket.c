/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets as the tcp fabric wants them. */
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>

#include "base/clock.h"
#include "transport/tcp.h"

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44 /* Linux 6.15 */
#endif

/* What waits is sent again at least so often, and so is a closed window probed. Many
 * times before the peer is given up, and seldom enough that the kernel, which gives up
 * after 15 times, does not come first. */
#define ASK_PARTS  8u
#define RTO_MIN_NS TERN_NS_PER_S
#define RTO_MAX_NS (120 * TERN_NS_PER_S)

static void bound_retries(int fd, uint64_t unreachable_ns)
{
	uint64_t most_ns = TERN_MAX(unreachable_ns / ASK_PARTS, RTO_MIN_NS);
	int most_ms = (int)(TERN_MIN(most_ns, RTO_MAX_NS) / TERN_NS_PER_MS);

	/* An older kernel asks less often: what that costs is in docs/tuning.md. */
	setsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &most_ms, sizeof(most_ms));
}

void tcp_socket_options(int fd, const char *congestion, uint64_t unreachable_ns)
{
	int one = 1;

	/* Neither is needed to be right, so a kernel that refuses is left alone. An
	 * explicit wish for a congestion control was checked when the fabric was opened.
	 */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (*congestion)
		setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion,
			(socklen_t)strlen(congestion));
	if (unreachable_ns)
		bound_retries(fd, unreachable_ns);
}

int tcp_socket_open(int family, const char *congestion, uint64_t unreachable_ns)
{
	int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);

	if (fd < 0)
		return -errno;
	tcp_socket_options(fd, congestion, unreachable_ns);
	return fd;
}
