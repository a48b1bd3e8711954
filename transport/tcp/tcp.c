/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp fabric: opening, listening, connecting and ending. Sending and receiving are in
 * tx.c and rx.c, and their order in port.c.
 *
 * All failures and ends go through tcp_conn_end(): it closes the socket, and moves the
 * conn from every other list except port->conns to port->ended, so no further byte can be
 * written to memory. The current or next poll calls the callbacks. The conn is freed only
 * after `closed` was called.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include <tern/context.h>

#include "base/clock.h"
#include "tern-config.h"
#include "transport/tcp/tcp.h"

#define EAGER_BYTES 16384u
/* CHUNK_BYTES: bytes of one put on a conn that messages use too. The rendezvous layer
 * keeps at most four such puts in flight, so a message waits for at most four of them to
 * be sent. Smaller puts need more system calls and reach less bandwidth:
 * docs/log/performance.md. */
#define CHUNK_BYTES (512ull << 10)
#define BULK_BYTES  (2ull << 20)

static struct tcp_fabric *fabric_of(struct tcp_port *port)
{
	return tern_container_of(port->base.fabric, struct tcp_fabric, base);
}

/* ---- fabric ---- */

/* Uses epoll unless the options request io_uring; docs/log/performance.md has the
 * reasons. */
static int choose_engine(
	struct tcp_fabric *fabric, enum tern_tcp_engine asked, const char **why)
{
	fabric->engine = &tcp_epoll_engine;
	if (asked != TERN_TCP_URING)
		return 0;
#if TERN_HAVE_URING
	fabric->engine = &tcp_uring_engine;
	*why = "io_uring was asked for and the kernel refuses it (too old, a seccomp "
	       "filter or "
	       "kernel.io_uring_disabled)";
	return tcp_uring_engine.probe();
#else
	*why = "io_uring was asked for and this build has none (liburing)";
	return -ENOSYS;
#endif
}

static int choose_congestion(
	struct tcp_fabric *fabric, const char *asked, const char **why)
{
	const char *name = asked ? asked : "cubic";
	int fd, r;

	fd = tcp_socket_open(AF_INET, "", 0);
	if (fd == -EAFNOSUPPORT)
		fd = tcp_socket_open(AF_INET6, "", 0);
	if (fd < 0) {
		*why = "no TCP socket can be opened";
		return -ENODEV;
	}
	r = setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name));
	if (r == 0 && strlen(name) < sizeof(fabric->congestion))
		strcpy(fabric->congestion, name);
	close(fd);
	if (r == 0 || !asked)
		return 0;
	*why = "the kernel lacks, or does not allow, the TCP congestion control asked "
	       "for";
	return -ENOENT;
}

static int tcp_open(struct tern_domain *domain, const struct tern_domain_opts *opts,
	struct tern_fabric **out, const char **why)
{
	TERN_CLEANUP(tern_cleanup_free)
	struct tcp_fabric *fabric = calloc(1, sizeof(*fabric));
	int r;

	if (!fabric)
		return -ENOMEM;
	fabric->base.ops = &tern_tcp_fabric_ops;
	fabric->base.domain = domain;
	r = choose_engine(fabric, opts->tcp_engine, why);
	if (r == 0)
		r = choose_congestion(fabric, opts->tcp_congestion, why);
	if (r)
		return r;
	*why = NULL;
	*out = &TERN_TAKE(fabric)->base;
	return 0;
}

static bool tcp_required(const struct tern_domain_opts *opts)
{
	return opts->tcp_engine == TERN_TCP_URING;
}

static int tcp_auto_dial(const char *host_port, tern_auto_add *add, void *arg)
{
	return tern_addr_is_target(host_port) ? add(arg, host_port) : -EINVAL;
}

/* Names the default engine, epoll, and tells whether io_uring works here. */
static void tcp_about(char *out, size_t size)
{
	struct tcp_fabric asked;
	const char *why;
	int r = choose_engine(&asked, TERN_TCP_URING, &why);

	snprintf(
		out, size, "epoll (io_uring: %s)", r ? tern_status_text(r) : "works too");
}

static void tcp_close(struct tern_fabric *fabric)
{
	free(tern_container_of(fabric, struct tcp_fabric, base));
}

/* ---- port ---- */

static int port_start(struct tcp_port *port)
{
	int r;

	port->stage = aligned_alloc(64, TCP_STAGE_BYTES + 64);
	if (!port->stage || tern_exposures_init(&port->exposures))
		return -ENOMEM;
	port->spare_fd = eventfd(0, EFD_CLOEXEC);
	port->timer.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (port->spare_fd < 0 || port->timer.fd < 0)
		return -errno;
	r = fabric_of(port)->engine->init(port);
	if (r == 0)
		port->engine = fabric_of(port)->engine;
	return r;
}

static void tcp_port_free(struct tern_port *base)
{
	struct tcp_port *port = tcp_port_of(base);

	tern_assert(port->conn_count == 0 && port->lsn_count == 0);
	if (port->engine) {
		tcp_watch_remove(port, &port->timer);
		port->engine->fini(port);
	}
	tern_cleanup_close(&port->timer.fd);
	tern_cleanup_close(&port->spare_fd);
	tern_exposures_fini(&port->exposures);
	free(port->stage);
	free(port);
}

static int tcp_port_new(struct tern_fabric *fabric, const struct tern_port_opts *opts,
	struct tern_port **out)
{
	struct tcp_port *port = calloc(1, sizeof(*port));
	int r;

	if (!port)
		return -ENOMEM;
	port->base = (struct tern_port){
		.ops = &tern_tcp_fabric_ops,
		.fabric = fabric,
		.env = opts->env,
		.handler = opts->handler,
		.handler_arg = opts->arg,
		.message_bytes = opts->message_bytes,
	};
	port->unreachable_ns = opts->unreachable_ns;
	port->spare_fd = -1;
	tcp_watch_init(&port->timer, TCP_WATCH_TIMER, -1);
	tern_list_init(&port->conns);
	tern_list_init(&port->ready);
	tern_list_init(&port->unsynced);
	tern_list_init(&port->dirty);
	tern_list_init(&port->blocked);
	tern_list_init(&port->writable);
	tern_list_init(&port->lingering);
	tern_list_init(&port->ended);
	r = port_start(port);
	if (r) {
		tcp_port_free(&port->base);
		return r;
	}
	tcp_watch_want(port, &port->timer, EPOLLIN);
	*out = &port->base;
	return 0;
}

static int tcp_fd(struct tern_port *base)
{
	struct tcp_port *port = tcp_port_of(base);

	return port->engine->fd(port);
}

/* ---- conn ---- */

static void conn_discard(struct tcp_conn *conn)
{
	if (conn->watch.fd >= 0)
		close(conn->watch.fd);
	tcp_tx_fini(&conn->tx);
	tcp_rx_fini(&conn->rx);
	free(conn->targets);
	free(conn);
}

/* Makes a conn for the socket `fd` (-1: none yet). On failure `fd` is closed. */
static struct tcp_conn *conn_new(struct tcp_port *port, int fd, enum tcp_state state)
{
	struct tcp_conn *conn = calloc(1, sizeof(*conn));

	if (!conn) {
		tern_cleanup_close(&fd);
		return NULL;
	}
	tcp_watch_init(&conn->watch, TCP_WATCH_CONN, fd);
	tern_list_init(&conn->send_link);
	tern_list_init(&conn->writable_link);
	tern_list_init(&conn->end_link);
	if (tcp_tx_init(&conn->tx, port->base.message_bytes) ||
		tcp_rx_init(&conn->rx, port->base.message_bytes)) {
		conn_discard(conn);
		return NULL;
	}
	conn->base.port = &port->base;
	conn->base.caps = TERN_CAP_PUT;
	conn->base.eager_bytes = EAGER_BYTES;
	conn->base.chunk_bytes = CHUNK_BYTES;
	conn->base.bulk_bytes = BULK_BYTES;
	conn->state = state;
	tern_list_push(&port->conns, &conn->node);
	port->conn_count++;
	port->connecting_count += state == TCP_CONNECTING;
	return conn;
}

/* Changes the state. The diagram in tcp.h must have this transition (asserted). */
static void enter(struct tcp_conn *conn, enum tcp_state next)
{
	static const uint8_t edges[] = {
		[TCP_CONNECTING] = 1 << TCP_UP | 1 << TCP_ENDED,
		[TCP_UP] = 1 << TCP_FLUSHING | 1 << TCP_ENDED,
		[TCP_FLUSHING] = 1 << TCP_LINGERING | 1 << TCP_ENDED,
		[TCP_LINGERING] = 1 << TCP_ENDED,
		[TCP_ENDED] = 0,
	};

	tern_assert(edges[conn->state] >> next & 1);
	tcp_conn_port(conn)->connecting_count -= conn->state == TCP_CONNECTING;
	conn->state = next;
}

static void conn_name(struct tcp_conn *conn, const struct tern_addr *addr)
{
	char text[76];

	tern_addr_print(addr, text, sizeof(text));
	snprintf(conn->base.name, sizeof(conn->base.name), "tcp %s", text);
}

/* Removes the socket from the engine and closes it. shutdown() is needed because close()
 * alone would not tell the peer while a child process holds a copy of the descriptor. */
static void conn_hang_up(struct tcp_conn *conn)
{
	if (conn->watch.fd < 0)
		return;
	tcp_watch_remove(tcp_conn_port(conn), &conn->watch);
	if (conn->question.unanswered_ns)
		tcp_alive_abort(conn);
	shutdown(conn->watch.fd, SHUT_RDWR);
	close(conn->watch.fd);
	conn->watch.fd = -1;
}

void tcp_conn_end(struct tcp_conn *conn, int status)
{
	struct tcp_port *port = tcp_conn_port(conn);

	if (conn->state == TCP_ENDED)
		return;
	enter(conn, TCP_ENDED);
	conn->status = status;
	conn_hang_up(conn);
	tcp_rx_discard(conn);
	if (port->rest.conn == conn)
		port->rest.conn = NULL;
	tern_list_remove(&conn->send_link);
	tern_list_remove(&conn->writable_link);
	tern_list_remove(&conn->end_link);
	tern_list_push(&port->ended, &conn->end_link);
}

void tcp_conn_free(struct tcp_conn *conn)
{
	tern_list_remove(&conn->node);
	tcp_conn_port(conn)->conn_count--;
	conn_discard(conn);
}

void tcp_conn_flushed(struct tcp_conn *conn)
{
	enter(conn, TCP_LINGERING);
	shutdown(conn->watch.fd, SHUT_WR);
	if (conn->rx.eof)
		tcp_conn_end(conn, 0);
}

static void tcp_conn_close(struct tern_conn *base, bool flush)
{
	struct tcp_conn *conn = tcp_conn_of(base);
	struct tcp_port *port = tcp_conn_port(conn);

	switch (conn->state) {
	case TCP_CONNECTING:
		tcp_conn_end(conn, -ECANCELED);
		break;
	case TCP_UP:
		if (!flush || conn->tx.dead) {
			tcp_conn_end(conn, 0);
			break;
		}
		enter(conn, TCP_FLUSHING);
		conn->deadline_ns = tern_now_ns(port->base.env) + TCP_LINGER_NS;
		tern_list_push(&port->lingering, &conn->end_link);
		tern_list_remove(&conn->writable_link);
		tcp_rx_discard(conn);
		if (tcp_tx_empty(&conn->tx))
			tcp_conn_flushed(conn);
		break;
	case TCP_FLUSHING:
	case TCP_LINGERING:
		if (!flush)
			tcp_conn_end(conn, 0);
		break;
	case TCP_ENDED:
		break;
	}
}

/* ---- connect ---- */

/* Starts to connect to the next address for which that is possible. Returns 0, or the
 * error of the last attempt; `r` if no address was left to try. */
static int connect_next(struct tcp_conn *conn, int r)
{
	struct tcp_port *port = tcp_conn_port(conn);
	struct tern_addrs *targets = conn->targets;

	while (targets->next < targets->count) {
		struct tern_addr *addr = &targets->addr[targets->next++];
		int fd = tcp_socket_open(addr->sa.ss_family, fabric_of(port)->congestion,
			port->unreachable_ns);

		if (fd < 0) {
			r = fd;
			continue;
		}
		if (connect(fd, (struct sockaddr *)&addr->sa, addr->len) == 0 ||
			errno == EINPROGRESS) {
			tcp_watch_init(&conn->watch, TCP_WATCH_CONN, fd);
			tcp_watch_want(port, &conn->watch, EPOLLOUT);
			conn_name(conn, addr);
			return 0;
		}
		r = -errno;
		close(fd);
	}
	return r;
}

static int tcp_connect(
	struct tern_port *base, const char *address, struct tern_conn **out)
{
	struct tcp_port *port = tcp_port_of(base);
	TERN_CLEANUP(tern_cleanup_free)
	struct tern_addrs *targets = malloc(sizeof(*targets));
	struct tcp_conn *conn;
	int r;

	if (!targets)
		return -ENOMEM;
	r = tern_addr_resolve(address, false, targets);
	if (r == -EINVAL || r == -ENOMEM)
		return r;
	conn = conn_new(port, -1, TCP_CONNECTING);
	if (!conn)
		return -ENOMEM;
	snprintf(conn->base.name, sizeof(conn->base.name), "tcp %s", address);
	conn->targets = TERN_TAKE(targets);
	r = connect_next(conn, r);
	if (r)
		tcp_conn_end(conn, r);
	*out = &conn->base;
	return 0;
}

/* True if the socket is connected to itself. That can happen when it connects to an
 * ephemeral port of this machine at which no process listens (TCP simultaneous open). */
static bool is_itself(int fd)
{
	struct tern_addr a = {.len = sizeof(a.sa)}, b = {.len = sizeof(b.sa)};

	return getsockname(fd, (struct sockaddr *)&a.sa, &a.len) == 0 &&
	       getpeername(fd, (struct sockaddr *)&b.sa, &b.len) == 0 && a.len == b.len &&
	       memcmp(&a.sa, &b.sa, a.len) == 0;
}

int tcp_conn_connected(struct tcp_conn *conn)
{
	struct tcp_port *port = tcp_conn_port(conn);
	socklen_t len = sizeof(int);
	int r = 0;

	if (getsockopt(conn->watch.fd, SOL_SOCKET, SO_ERROR, &r, &len) < 0)
		r = errno;
	if (r == 0 && is_itself(conn->watch.fd))
		r = ECONNREFUSED;
	if (r) {
		conn_hang_up(conn);
		r = connect_next(conn, -r);
		if (r)
			tcp_conn_end(conn, r);
		return r != 0;
	}
	enter(conn, TCP_UP);
	free(TERN_TAKE(conn->targets));
	/* The socket is not watched until the thread is about to sleep or (with more than
	 * TCP_DIRECT_MAX conns) asks the engine: watching costs kernel time for every
	 * received byte, and the socket is almost always writable. */
	tcp_watch_remove(port, &conn->watch);
	tcp_watch_want(port, &conn->watch, EPOLLIN);
	port->base.handler->up(port->base.handler_arg, &conn->base);
	return 1;
}

/* ---- listen ---- */

/* Opens a listening socket at this address. Returns the descriptor or a negative
 * errno. */
static int listen_at(const struct tern_addr *addr, const char *congestion)
{
	int fd = tcp_socket_open(addr->sa.ss_family, congestion, 0);
	int one = 1, zero = 0;

	if (fd < 0)
		return fd;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (addr->sa.ss_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
	if (bind(fd, (const struct sockaddr *)&addr->sa, addr->len) < 0 ||
		listen(fd, SOMAXCONN) < 0) {
		int r = -errno;

		close(fd);
		return r;
	}
	return fd;
}

static int tcp_listen(struct tern_port *base, const char *address, struct tern_lsn **out)
{
	struct tcp_port *port = tcp_port_of(base);
	TERN_CLEANUP(tern_cleanup_free) struct tcp_lsn *lsn = calloc(1, sizeof(*lsn));
	struct tern_addr bound = {.len = sizeof(bound.sa)};
	struct tern_addrs targets;
	int fd = -EADDRNOTAVAIL, r;

	if (!lsn)
		return -ENOMEM;
	r = tern_addr_resolve(address, true, &targets);
	if (r)
		return r;
	/* Try the next address only if this machine does not have the current one, or not
	 * its address family. */
	for (; targets.next < targets.count; targets.next++) {
		fd = listen_at(&targets.addr[targets.next], fabric_of(port)->congestion);
		if (fd != -EAFNOSUPPORT && fd != -EADDRNOTAVAIL)
			break;
	}
	if (fd < 0)
		return fd == -EAFNOSUPPORT ? -EADDRNOTAVAIL : fd;
	if (getsockname(fd, (struct sockaddr *)&bound.sa, &bound.len) < 0) {
		r = -errno;
		close(fd);
		return r;
	}
	tern_addr_print(&bound, lsn->address, sizeof(lsn->address));
	tcp_watch_init(&lsn->watch, TCP_WATCH_LSN, fd);
	lsn->base.port = base;
	tcp_watch_want(port, &lsn->watch, EPOLLIN);
	port->lsn_count++;
	*out = &TERN_TAKE(lsn)->base;
	return 0;
}

static const char *tcp_lsn_address(struct tern_lsn *lsn)
{
	return tern_container_of(lsn, struct tcp_lsn, base)->address;
}

static void tcp_lsn_close(struct tern_lsn *base)
{
	struct tcp_lsn *lsn = tern_container_of(base, struct tcp_lsn, base);
	struct tcp_port *port = tcp_port_of(base->port);

	tcp_watch_remove(port, &lsn->watch);
	/* shutdown() frees the address immediately, even if the kernel or a child process
	 * still holds the socket. */
	shutdown(lsn->watch.fd, SHUT_RDWR);
	close(lsn->watch.fd);
	port->lsn_count--;
	free(lsn);
}

/* Refuses a waiting peer when no descriptor is left: closes the spare descriptor, accepts
 * the peer, and closes its socket. Otherwise the peer would wait forever, and the
 * readable listener would keep waking this thread. */
static void refuse(struct tcp_port *port, struct tcp_lsn *lsn)
{
	int fd;

	if (tern_lsn_may_complain(&lsn->base))
		tern_log(port->base.env, TERN_LOG_WARN,
			"tcp: peers at %s are refused: no more descriptors (ulimit -n)",
			lsn->address);
	tern_cleanup_close(&port->spare_fd);
	fd = accept4(lsn->watch.fd, NULL, NULL, SOCK_CLOEXEC);
	tern_cleanup_close(&fd);
	port->spare_fd = eventfd(0, EFD_CLOEXEC);
}

/* Accepts at most one peer per call, because the `accepted` callback may close the
 * listener. The engine reports further peers again. */
int tcp_lsn_accept(struct tcp_lsn *lsn)
{
	struct tcp_port *port = tcp_port_of(lsn->base.port);
	struct tern_addr addr = {.len = sizeof(addr.sa)};
	struct tcp_conn *conn;
	int fd;

	fd = accept4(lsn->watch.fd, (struct sockaddr *)&addr.sa, &addr.len,
		SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd < 0) {
		if (errno == EMFILE || errno == ENFILE)
			refuse(port, lsn);
		return 0;
	}
	tcp_socket_options(fd, fabric_of(port)->congestion, port->unreachable_ns);
	conn = conn_new(port, fd, TCP_UP);
	if (!conn)
		return 0;
	conn_name(conn, &addr);
	tcp_watch_want(port, &conn->watch, EPOLLIN);
	port->base.handler->accepted(port->base.handler_arg, &lsn->base, &conn->base);
	return 1;
}

/* ---- exposures ---- */

static int tcp_expose(struct tern_conn *conn, struct tern_mem *mem, uint64_t offset,
	uint64_t bytes, enum tern_access access, struct tern_region *out)
{
	tern_assert(conn->owner && tern_mem_holds(mem, offset, bytes));
	if (mem->kind != TERN_MEM_HOST)
		return -ENOTSUP;
	return tern_exposure_add(&tcp_port_of(conn->port)->exposures, conn->owner,
		tern_mem_at(mem, offset), bytes, access, out);
}

/* Never returns -EINPROGRESS: bytes of puts are written only in poll(), and the rest of a
 * put that is being received can be dropped. */
static int tcp_withdraw(
	struct tern_port *base, struct tern_op *op, const struct tern_region *region)
{
	struct tern_exposure *exposure =
		tern_exposure_withdraw(&tcp_port_of(base)->exposures, region);

	(void)op;
	tern_list_for_each_safe (node, &exposure->landing) {
		struct tcp_rx *rx = tern_list_entry(node, struct tcp_rx, landing);

		tcp_rx_discard(tern_container_of(rx, struct tcp_conn, rx));
	}
	return 0;
}

const struct tern_fabric_ops tern_tcp_fabric_ops = {
	.name = "tcp",
	.picks_port = true,
	.default_listen = "127.0.0.1:0",
	.required = tcp_required,
	.auto_dial = tcp_auto_dial,
	.open = tcp_open,
	.close = tcp_close,
	.port_new = tcp_port_new,
	.port_free = tcp_port_free,
	.listen = tcp_listen,
	.lsn_address = tcp_lsn_address,
	.lsn_close = tcp_lsn_close,
	.connect = tcp_connect,
	.conn_close = tcp_conn_close,
	.unanswered_ns = tcp_unanswered_ns,
	.send = tcp_conn_send,
	.put = tcp_conn_put,
	.expose = tcp_expose,
	.withdraw = tcp_withdraw,
	.about_name = "engine",
	.about = tcp_about,
	.poll = tcp_port_poll,
	.arm = tcp_port_arm,
	.fd = tcp_fd,
};
