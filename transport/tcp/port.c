/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poll and arm of the tcp fabric: the order in which conns send and receive.
 *
 * A port with at most TCP_DIRECT_MAX conns reads each of them in every poll, and asks the
 * engine (epoll or io_uring) which sockets are ready, listeners included, only in every
 * 32nd poll. So data that has arrived is read without asking first, and the kernel does
 * less work for sockets that it need not watch. With more conns, or while a conn is
 * connecting, every poll asks the engine. The kernel is told what to watch as late as
 * possible: before sleep, or before the engine is asked.
 *
 * With one conn, the first poll after a sleep reads the conn, and asks the engine only if
 * nothing was sent or received. With two conns, or with a full socket, that poll only
 * asks the engine, which costs no more than one failed read. (io_uring answers without a
 * system call, so it is asked in any case.)
 *
 * Peers can send more than the budget of a poll, again and again. So listeners, and conns
 * that are being set up, are handled in every 32nd poll however much was received.
 *
 * A poll that reads the conns directly skips sockets on which it would find nothing: a
 * socket that has been full since the last poll, and the socket of the only conn if it
 * was empty and something has been sent after that, which the peer cannot have answered
 * yet. Each such socket is skipped once and then tried again, whether or not the thread
 * has slept.
 *
 * A skipped socket is handled late but not forgotten: arm() tells the engine about every
 * conn, and the engine then checks its socket. epoll is level-triggered. A poll request
 * of io_uring checks the socket when it is added; a request that has completed keeps
 * arm() from returning 0 until it is collected, after which it is added anew.
 *
 * Received bytes stay in the stage (the port's receive buffer) only if a poll has reached
 * its budget, and then arm() returns -EAGAIN. All other unread bytes are in the socket,
 * where the engine sees them. So after arm() the descriptor is readable exactly when
 * there is work.
 *
 * Callbacks run only in poll(). Each list of callbacks to call is taken over as a whole
 * before it is walked: callbacks may change the port's lists, and what they add is
 * handled later in this poll or in the next one, so that no poll runs for ever.
 */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "base/clock.h"
#include "transport/tcp/tcp.h"

/* ---- watches ---- */

void tcp_watch_init(struct tcp_watch *watch, enum tcp_watch_kind kind, int fd)
{
	*watch = (struct tcp_watch){.kind = kind, .fd = fd};
	tern_list_init(&watch->ready);
	tern_list_init(&watch->unsynced);
}

static void note(struct tcp_port *port, struct tcp_watch *watch)
{
	tern_list_remove(&watch->unsynced);
	if (watch->want != watch->set)
		tern_list_push(&port->unsynced, &watch->unsynced);
}

void tcp_watch_want(struct tcp_port *port, struct tcp_watch *watch, uint32_t want)
{
	if (watch->want == want)
		return;
	watch->want = want;
	note(port, watch);
}

void tcp_watch_spent(struct tcp_port *port, struct tcp_watch *watch)
{
	watch->set = 0;
	note(port, watch);
}

void tcp_watch_got(struct tcp_port *port, struct tcp_watch *watch, uint32_t events)
{
	watch->got |= events;
	if (!tern_list_linked(&watch->ready))
		tern_list_push(&port->ready, &watch->ready);
}

void tcp_watch_remove(struct tcp_port *port, struct tcp_watch *watch)
{
	port->engine->remove(port, watch);
	tern_list_remove(&watch->ready);
	tern_list_remove(&watch->unsynced);
	watch->want = watch->set = watch->got = 0;
}

static struct tcp_conn *conn_of_watch(struct tcp_watch *watch)
{
	return tern_container_of(watch, struct tcp_conn, watch);
}

/* Asks the kernel to report the events that each watch wants. `direct`: conns are read
 * without asking the engine, so their watches are left as they are, except those of
 * connecting conns. */
static void sync_watches(struct tcp_port *port, bool direct)
{
	struct tern_list todo;

	tern_list_init(&todo);
	tern_list_splice(&todo, &port->unsynced);
	tern_list_for_each_safe (node, &todo) {
		struct tcp_watch *watch =
			tern_list_entry(node, struct tcp_watch, unsynced);
		bool conn = watch->kind == TCP_WATCH_CONN;
		int r;

		tern_list_remove(node);
		if (direct && conn && conn_of_watch(watch)->state != TCP_CONNECTING) {
			tern_list_push(&port->unsynced, node);
			continue;
		}
		r = port->engine->sync(port, watch);
		if (r == -EAGAIN)
			tern_list_push(&port->unsynced, node);
		else if (r && conn)
			tcp_conn_end(conn_of_watch(watch), r);
		else if (r)
			tern_log(port->base.env, TERN_LOG_ERROR,
				"tcp: the kernel cannot watch a listening socket: %s",
				tern_status_text(r));
	}
}

/* ---- callbacks ---- */

void tcp_port_done(struct tcp_port *port, struct tern_op *op, int status)
{
	tcp_put_of(op)->status = status;
	tcp_put_of(op)->next = NULL;
	if (port->done_first)
		tcp_put_of(port->done_last)->next = op;
	else
		port->done_first = op;
	port->done_last = op;
}

static int call_done(struct tcp_port *port)
{
	struct tern_op *op = port->done_first;
	int events = 0;

	for (port->done_first = NULL; op; events++) {
		/* Read `next` before done(), which may reuse op. */
		struct tern_op *next = tcp_put_of(op)->next;

		op->done(op, tcp_put_of(op)->status);
		op = next;
	}
	return events;
}

static int call_writable(struct tcp_port *port)
{
	struct tern_list todo, *node;
	int events = 0;

	tern_list_init(&todo);
	tern_list_splice(&todo, &port->writable);
	for (; (node = tern_list_pop(&todo)); events++) {
		struct tcp_conn *conn =
			tern_list_entry(node, struct tcp_conn, writable_link);

		port->base.handler->writable(port->base.handler_arg, &conn->base);
	}
	return events;
}

static int call_closed(struct tcp_port *port)
{
	struct tern_list todo, *node;
	int events = 0;

	tern_list_init(&todo);
	tern_list_splice(&todo, &port->ended);
	for (; (node = tern_list_pop(&todo)); events++) {
		struct tcp_conn *conn = tern_list_entry(node, struct tcp_conn, end_link);

		tcp_tx_abort(conn, conn->status ? conn->status : -ECANCELED);
		events += call_done(port);
		port->base.handler->closed(
			port->base.handler_arg, &conn->base, conn->status);
		tcp_conn_free(conn);
	}
	return events;
}

static int call_back(struct tcp_port *port)
{
	int events = 0;

	if (port->done_first)
		events += call_done(port);
	if (!tern_list_empty(&port->writable))
		events += call_writable(port);
	if (!tern_list_empty(&port->ended))
		events += call_closed(port);
	return events;
}

static bool calls_wait(const struct tcp_port *port)
{
	return port->done_first || !tern_list_empty(&port->writable) ||
	       !tern_list_empty(&port->ended);
}

/* ---- turns ---- */

static int transmit_all(struct tcp_port *port)
{
	struct tern_list todo;
	int events = 0;

	tern_list_init(&todo);
	tern_list_splice(&todo, &port->dirty);
	tern_list_for_each_safe (node, &todo) {
		events += tcp_tx_turn(tern_list_entry(node, struct tcp_conn, send_link));
	}
	/* Conns that have more data to send stay in port->dirty. */
	tern_list_splice(&port->dirty, &todo);
	return events;
}

static int receive_all(struct tcp_port *port, int budget)
{
	int events = 0;

	/* The iteration is safe: only tcp_conn_free() removes conns from this list, and
	 * no function called in this loop calls it. */
	tern_list_for_each (node, &port->conns) {
		struct tcp_conn *conn = tern_list_entry(node, struct tcp_conn, node);

		if (conn->state == TCP_CONNECTING || conn->state == TCP_ENDED)
			continue;
		/* Skip the only conn once: the peer cannot have answered yet. With two
		 * conns none is skipped, since reading the other conn may take long. */
		if (conn->rx.answered && port->conn_count == 1) {
			conn->rx.answered = false;
			continue;
		}
		events += tcp_rx_turn(conn, budget - events);
		if (events >= budget) {
			/* Start with the other conns in the next poll. */
			tern_list_remove(node);
			tern_list_push(&port->conns, node);
			break;
		}
	}
	return events;
}

static int conn_ready(struct tcp_conn *conn, uint32_t got, int budget)
{
	if (conn->state == TCP_CONNECTING)
		return tcp_conn_connected(conn);
	if (got & (EPOLLOUT | EPOLLERR | EPOLLHUP))
		tcp_tx_unblock(conn);
	if (got & (EPOLLIN | EPOLLERR | EPOLLHUP))
		return tcp_rx_turn(conn, budget);
	return 0;
}

static int ready(struct tcp_watch *watch, int budget)
{
	uint32_t got = watch->got;
	uint64_t expirations;

	watch->got = 0;
	switch (watch->kind) {
	case TCP_WATCH_CONN:
		return conn_ready(conn_of_watch(watch), got, budget);
	case TCP_WATCH_LSN:
		return tcp_lsn_accept(tern_container_of(watch, struct tcp_lsn, watch));
	case TCP_WATCH_TIMER:
		/* The timer only has to wake the thread: deadlines are checked in every
		 * poll. */
		if (read(watch->fd, &expirations, sizeof(expirations)) < 0)
			return 0;
		return 0;
	}
	return 0;
}

/* True for a conn that is up, which receives data and so is subject to the budget.
 * Listeners and connecting conns are handled even when the budget is used up. */
static bool receives(struct tcp_watch *watch)
{
	return watch->kind == TCP_WATCH_CONN &&
	       conn_of_watch(watch)->state != TCP_CONNECTING;
}

static int ask_engine(struct tcp_port *port, bool direct, int budget)
{
	struct tern_list todo, later, *node;
	int events = 0;

	sync_watches(port, direct);
	port->engine->collect(port);
	tern_list_init(&todo);
	tern_list_init(&later);
	tern_list_splice(&todo, &port->ready);
	while ((node = tern_list_pop(&todo))) {
		struct tcp_watch *watch = tern_list_entry(node, struct tcp_watch, ready);

		if (events >= budget && receives(watch))
			tern_list_push(&later, node);
		else
			events += ready(watch, budget - events);
	}
	tern_list_splice(&later, &port->ready);
	/* Events not handled now come before newer ones. */
	tern_list_splice(&port->ready, &later);
	return events;
}

static void end_overdue(struct tcp_port *port)
{
	uint64_t now_ns = tern_now_ns(port->base.env);

	tern_list_for_each_safe (node, &port->lingering) {
		struct tcp_conn *conn = tern_list_entry(node, struct tcp_conn, end_link);

		if (conn->deadline_ns > now_ns)
			break;
		tcp_conn_end(conn, 0);
	}
}

/* True if the engine must be asked although the conns are read directly or the budget is
 * used up, because otherwise new connections would wait too long. */
static bool must_ask(struct tcp_port *port)
{
	return port->connecting_count || ++port->poll_count % TCP_ASK_POLLS == 0;
}

/* True if the first poll after a sleep asks the engine which sockets are ready, instead
 * of reading each conn. */
static bool asks_first(const struct tcp_port *port, bool slept)
{
	return slept && (port->engine->collect_is_free || port->conn_count > 1 ||
				!tern_list_empty(&port->blocked));
}

int tcp_port_poll(struct tern_port *base, int budget)
{
	struct tcp_port *port = tcp_port_of(base);
	bool few = port->conn_count <= TCP_DIRECT_MAX, slept = port->armed;
	bool direct = few && !asks_first(port, slept);
	int events, received;

	budget = TERN_MAX(budget, 1);
	port->armed = false;
	port->polls++;
	port->short_polls -= port->short_polls > 0;
	/* A conn whose socket was full is tried again without asking the kernel whether
	 * the socket has space, but not in the very next poll. */
	if (direct && port->polls - port->full_at > 1)
		tern_list_splice(&port->dirty, &port->blocked);
	events = transmit_all(port);
	if (calls_wait(port))
		events += call_back(port);
	received = tcp_rx_rest(port, budget);
	if (direct && received < budget)
		received += receive_all(port, budget - received);
	if ((received < budget && (!direct || (slept && !events && !received))) ||
		must_ask(port))
		received += ask_engine(port, few, budget - received);
	if (!tern_list_empty(&port->lingering))
		end_overdue(port);
	if (!tern_list_empty(&port->dirty))
		events += transmit_all(port);
	if (calls_wait(port))
		events += call_back(port);
	return events + received;
}

/* Sets the timer to the first deadline of port->lingering, if there is one. */
static void set_timer(struct tcp_port *port)
{
	struct tcp_conn *conn =
		tern_list_first(&port->lingering, struct tcp_conn, end_link);
	struct itimerspec when = {0};
	uint64_t now_ns;

	if (!conn)
		return;
	now_ns = tern_now_ns(port->base.env);
	if (conn->deadline_ns > now_ns) {
		when.it_value.tv_sec =
			(time_t)((conn->deadline_ns - now_ns) / TERN_NS_PER_S);
		when.it_value.tv_nsec =
			(long)((conn->deadline_ns - now_ns) % TERN_NS_PER_S);
	} else {
		when.it_value.tv_nsec = 1;
	}
	timerfd_settime(port->timer.fd, 0, &when, NULL);
}

int tcp_port_arm(struct tern_port *base)
{
	struct tcp_port *port = tcp_port_of(base);

	if (!tern_list_empty(&port->dirty))
		transmit_all(port);
	if (calls_wait(port) || port->rest.conn || !tern_list_empty(&port->dirty) ||
		!tern_list_empty(&port->ready))
		return -EAGAIN;
	sync_watches(port, false);
	if (calls_wait(port) || !tern_list_empty(&port->unsynced))
		return -EAGAIN;
	set_timer(port);
	port->armed = true;
	return port->engine->arm(port);
}
