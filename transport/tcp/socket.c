/* SPDX-License-Identifier: Apache-2.0 */
/* Makes sockets with the options that the tcp fabric needs. */
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>

#include "base/clock.h"
#include "transport/tcp/tcp.h"

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44 /* since Linux 6.15 */
#endif

/*
 * Largest interval at which the kernel retransmits unacknowledged data and window probes:
 * an eighth of unreachable_ns (at least 1 s, at most 120 s), so that several
 * retransmissions go unanswered before the caller gives up the peer. It is also long
 * enough that the kernel, which gives up after 15 retransmissions, does not give up
 * first, unless unreachable_ns is above about a quarter of an hour: in that case the
 * session reconnects.
 */
#define ASK_PARTS  8u
#define RTO_MIN_NS TERN_NS_PER_S
#define RTO_MAX_NS (120 * TERN_NS_PER_S)

static void bound_retries(int fd, uint64_t unreachable_ns)
{
	uint64_t most_ns = TERN_MAX(unreachable_ns / ASK_PARTS, RTO_MIN_NS);
	int most_ms = (int)(TERN_MIN(most_ns, RTO_MAX_NS) / TERN_NS_PER_MS);

	/* An older kernel ignores this option and retransmits less often: docs/tuning.md
	 * describes the consequences. */
	setsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &most_ms, sizeof(most_ms));
}

void tcp_socket_options(int fd, const char *congestion, uint64_t unreachable_ns)
{
	int one = 1;

	/* None of these options is needed for correctness, so it does not matter if the
	 * kernel refuses one. A congestion control that the user chose was checked when
	 * the fabric was opened. */
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
