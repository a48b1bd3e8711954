/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures for how long the kernel of the peer's host has not answered.
 *
 * All sent data probes that kernel: its TCP acknowledgement is the answer, whether or not
 * the peer's program reads. The local kernel retransmits data that is not acknowledged;
 * it sends window probes while the peer's window is closed, and keep-alives while there
 * is nothing to send. Keep-alives are switched on when the caller first asks about a
 * silent conn; the kernel does not send them while data waits. TCP_INFO reports how much
 * is unacknowledged, how often it was retransmitted, and when the last packet arrived.
 * TCP_USER_TIMEOUT does not help: it also ends a connection whose window probes are
 * answered, when the peer's program does not read.
 *
 * Retransmissions become rare. One that was lost while the path was cut proves nothing
 * about the time after it. So the time without an answer is counted from the first probe
 * to the last retransmission that was followed by another one, or that is OVERDUE_NS old.
 */
#include <netinet/tcp.h>

#include "base/clock.h"
#include "transport/tcp/tcp.h"

/* The interval of keep-alives is a hundredth of unreachable_ns, in whole seconds, plus
 * one second. The kernel ends the conn after 127 unanswered keep-alives, later than the
 * caller would. With a smaller limit or a shorter interval, the kernel would decide
 * instead of the caller. */
#define KEEP_ALIVE_PARTS 100u
#define KEEP_ALIVE_TRIES 127    /* the kernel's maximum */
#define KEEP_ALIVE_MAX_S 32767u /* the kernel's maximum */
#define OVERDUE_NS       TERN_NS_PER_S

static void keep_alive(struct tcp_conn *conn)
{
	uint64_t unreachable_ns = tcp_conn_port(conn)->unreachable_ns;
	uint64_t interval_s = unreachable_ns / KEEP_ALIVE_PARTS / TERN_NS_PER_S + 1;
	int one = 1, seconds = (int)interval_s, tries = KEEP_ALIVE_TRIES;

	/* A caller that never gives up a host, or only after about 38 days or more, needs
	 * no probes. */
	if (conn->question.keeps_alive || !unreachable_ns ||
		interval_s > KEEP_ALIVE_MAX_S)
		return;
	conn->question.keeps_alive = true;
	setsockopt(conn->watch.fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof(seconds));
	setsockopt(conn->watch.fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof(seconds));
	setsockopt(conn->watch.fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof(tries));
	setsockopt(conn->watch.fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
}

/* Time when the peer's kernel last answered: when the last acknowledgement or data was
 * received. Both are needed: data that acknowledges nothing new updates only the
 * second. */
static uint64_t answered_ns(const struct tcp_info *info, uint64_t now_ns)
{
	uint64_t ms = TERN_MIN(info->tcpi_last_ack_recv, info->tcpi_last_data_recv);

	return now_ns - TERN_MIN(ms * TERN_NS_PER_MS, now_ns);
}

static void take_stock(
	struct tcp_question *question, const struct tcp_info *info, uint64_t now_ns)
{
	uint32_t tries = (uint32_t)info->tcpi_retransmits + info->tcpi_probes;
	bool waits = info->tcpi_unacked || info->tcpi_probes;

	if (!waits || !question->asked_ns ||
		answered_ns(info, now_ns) > question->asked_ns) {
		question->asked_ns = question->last_ns = waits ? now_ns : 0;
		question->unanswered_ns = 0;
	} else if (tries != question->tries) {
		question->unanswered_ns = question->last_ns - question->asked_ns;
		question->last_ns = now_ns;
	} else if (now_ns - question->last_ns >= OVERDUE_NS) {
		question->unanswered_ns = question->last_ns - question->asked_ns;
	}
	question->tries = tries;
}

uint64_t tcp_unanswered_ns(struct tern_conn *base)
{
	struct tcp_conn *conn = tcp_conn_of(base);
	struct tcp_info info = {0};
	socklen_t bytes = sizeof(info);

	if (conn->state != TCP_UP ||
		getsockopt(conn->watch.fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) < 0)
		return 0; /* not up, or about to end */
	keep_alive(conn);
	take_stock(&conn->question, &info, tern_now_ns(base->port->env));
	return conn->question.unanswered_ns;
}

/* Without a reset, the kernel would go on retransmitting the conn's last data. This could
 * arrive when the path works again, perhaps before the connection that replaces this
 * one. */
void tcp_alive_abort(struct tcp_conn *conn)
{
	struct linger none = {.l_onoff = 1};

	setsockopt(conn->watch.fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
}
