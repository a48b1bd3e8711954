/* SPDX-License-Identifier: Apache-2.0 */
/*
 * poll and arm of the tcp fabric: whose turn it is.
 *
 * A port with a few conns tries each of them in every poll and leaves the engine alone
 * but for every 32nd: what is there is read without a question before it, and sockets the
 * kernel was never asked to watch are cheaper on its side too. With more conns, or when
 * others than conns may have news, the engine tells which are ready. The kernel is told
 * what to watch at the last moment: before sleep, or before it is asked.
 *
 * The first poll behind a sleep with one conn tries it, and asks only if it had nothing.
 * With two, or with a full socket, it asks and tries nothing: one question costs no more
 * than one call in vain. (io_uring, which answers without a call, is asked in any case.)
 *
 * A conn can send more than a poll takes in, in every poll. So listeners, and conns that
 * are coming up, have their turn however much was received.
 *
 * Nor does a poll look where it is unlikely to find anything: at a socket that has been
 * full since the last poll, and at the only conn when it was empty and something has been
 * sent since, to which the peer cannot have answered yet. Both are left out once, and
 * then tried again, whether or not anybody sleeps.
 *
 * What a poll leaves out is late and not lost: arm() tells the engine of every conn, and
 * the engine looks at its socket then or later. epoll reports what is the case, not what
 * changed; a poll of io_uring looks when it is added, and one that has completed keeps
 * arm() from saying 0 until it was collected, after which it is added anew.
 *
 * Received bytes are kept back only when a poll had done enough, and then arm() says so.
 * Whatever else was not read is in the socket, where the engine sees it. So after arm()
 * the descriptor is readable exactly when there is work.
 *
 * Callbacks run only from poll. Lists are taken over whole before they are walked:
 * callbacks may change the port's as they like, and what they add is handled in the next
 * poll, so that no poll goes on for ever.
 */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "base/clock.h"
#include "transport/tcp.h"

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

/* Tells the kernel what we want; but for conns that are read without being asked for. */
static void sync_watches(struct tcp_port *port, bool direct)
{
	struct tern_list todo;

	tern_list_init(&todo);
	tern_list_splice(&todo, &port->unsynced);
	tern_list_for_each_safe (node, &todo) {
		struct tcp_watch *watch =
			tern_list_entry(node, struct tcp_watch, unsynced);
		bool conn = watch->kind == TCP_WATCH_CONN;
		int rc;

		tern_list_remove(node);
		if (direct && conn && conn_of_watch(watch)->state != TCP_CONNECTING) {
			tern_list_push(&port->unsynced, node);
			continue;
		}
		rc = port->engine->sync(port, watch);
		if (rc == -EAGAIN)
			tern_list_push(&port->unsynced, node);
		else if (rc && conn)
			tcp_conn_end(conn_of_watch(watch), rc);
		else if (rc)
			tern_log(port->base.env, TERN_LOG_ERROR,
				"tcp: the kernel cannot watch a listening socket: %s",
				tern_status_text(rc));
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
		struct tern_op *next =
			tcp_put_of(op)->next; /* op may be reused by done() */

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
	tern_list_splice(
		&port->dirty, &todo); /* those whose turn was over before they were */
	return events;
}

static int receive_all(struct tcp_port *port, int budget)
{
	int events = 0;

	/* Only tcp_conn_free() takes conns off this list, and nothing in here calls it.
	 */
	tern_list_for_each (node, &port->conns) {
		struct tcp_conn *conn = tern_list_entry(node, struct tcp_conn, link);

		if (conn->state == TCP_CONNECTING || conn->state == TCP_ENDED)
			continue;
		/* With a second conn, this poll may take long. */
		if (conn->rx.answered && port->conn_count == 1) {
			conn->rx.answered = false;
			continue;
		}
		events += tcp_rx_turn(conn, budget - events);
		if (events >= budget) {
			/* The others first, the next time. */
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
		/* What it is for is looked at in every poll: it only had to wake us. */
		if (read(watch->fd, &expirations, sizeof(expirations)) < 0)
			return 0;
		return 0;
	}
	return 0;
}

/* Whether it would use up the budget. The others come and go however much is received. */
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
	tern_list_splice(&port->ready, &later); /* unhandled ones before new ones */
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

/* Whether the engine has to be asked though conns are tried, or have used up the budget:
 * whoever connects waits for that. */
static bool must_ask(struct tcp_port *port)
{
	return port->connecting_count || ++port->poll_count % TCP_ASK_POLLS == 0;
}

/* Whether the engine is asked instead of trying. */
static bool asks_first(const struct tcp_port *port, bool slept)
{
	return slept && (port->engine->asked_for_free || port->conn_count > 1 ||
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
	/* A full socket is simply tried again, but not at once. */
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

/* The timer runs for the first deadline, if there is one. */
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
