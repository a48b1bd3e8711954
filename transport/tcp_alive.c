/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does the kernel at the other end answer?
 *
 * Whatever is sent is a question to it, and its acknowledgement the answer, whether the
 * program there reads or not. What is not acknowledged is sent again by our kernel. When
 * the peer's window is closed, it sends window probes; and when there is nothing to
 * send, keep-alives, which we ask for once the caller has become suspicious. (While data
 * waits there are no keep-alives.) TCP_INFO tells what is outstanding, how often it was
 * repeated, and when the last packet came. TCP_USER_TIMEOUT is of no use here: it also
 * ends a connection whose window probes are answered, because the program does not read.
 *
 * Repetitions become rare. A question that was asked while the path was cut says
 * nothing about the time until the next one. So the time without an answer is counted
 * from the first question to the last that was repeated in vain, or has waited for
 * OVERDUE_NS.
 */
#include <netinet/tcp.h>

#include "base/clock.h"
#include "transport/tcp.h"

#define KEEP_ALIVE_S 1 /* the least that there is */
#define OVERDUE_NS   TERN_NS_PER_S

static void keep_alive(struct tcp_conn *conn)
{
	/* With fewer tries, the kernel would decide instead of the caller. */
	int one = 1, seconds = KEEP_ALIVE_S, tries = 127;

	if (conn->question.keeps_alive)
		return;
	conn->question.keeps_alive = true;
	setsockopt(conn->watch.fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof(seconds));
	setsockopt(conn->watch.fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof(seconds));
	setsockopt(conn->watch.fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof(tries));
	setsockopt(conn->watch.fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
}

/* When the last packet came. Data acknowledges nothing new where all was acknowledged,
 * and then the kernel notes only the data. */
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
		return 0; /* its end is on its way */
	keep_alive(conn);
	take_stock(&conn->question, &info, tern_now_ns(base->port->env));
	return conn->question.unanswered_ns;
}

/* Else the kernel would go on sending a goodbye. It would arrive when the path is back,
 * perhaps before the connection that comes in this one's place. */
void tcp_alive_abort(struct tcp_conn *conn)
{
	struct linger none = {.l_onoff = 1};

	setsockopt(conn->watch.fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
}
