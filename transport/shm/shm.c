/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shm fabric: processes of one host, through memory that both have mapped. Its files:
 *
 *     ring.c       the lock-free ring of messages; announcing sleep and waking
 *     fd.c         sealed memory, and packets that carry descriptors
 *     conn.c       handshake, end of the peer, failure
 *     process.c    the peer's process: who it is, and what the system permits
 *     name.c       names of listeners of "auto://"
 *     region.c     exposures; how a get, a put or a peek begins
 *     copy.c       copying the bytes of gets and puts: slabs, process_vm_readv, chunks
 *     slab.c       slabs (memory segments of pools): passing, mapping, unmapping
 *     gpu.c        GPU memory, by CUDA IPC
 *     share.c      memory of this process that peers have open
 *     shm.c        fabric, port, listener, poll, arm
 *
 * Addresses are names: 1 to 80 printable characters except space and '/'; "*" listens at
 * a name that the fabric makes up. They are abstract Unix sockets of the network
 * namespace.
 *
 * While spinning, poll() reads two cache lines of each peer: the one on which its next
 * record would start, and the one with its indices and flags, which seldom changes and
 * must be read after each sent message anyway. It makes almost no system calls: sockets
 * are checked after a sleep, while a conn is being set up, ends, or waits for an answer,
 * and otherwise every LULL_NS. A process that is about to sleep sets a flag in its areas;
 * a peer that then writes something for it sends a WAKE over the socket, once per sleep.
 *
 * A conn that has been idle for DOZE_NS dozes if more than AWAKE_COUNT conns of the port
 * are awake: its sleep flag stays set, whether or not its port sleeps, and polls skip it
 * until something arrives on its socket or the caller uses it. So idle conns do not slow
 * down polls and arms. The cost is paid by the first message after the pause: a WAKE, and
 * about LULL_NS at most if the receiver spins. Dozing begins in arm(), or in poll() if
 * the port spins, in the same order: the flag is set, everything is checked once more
 * (see shm_bell_now()), and the flag stays set until the conn wakes.
 *
 * Costs of a conn: a poll and an arm scan the conns that do not doze, a few cache lines
 * each. A conn has two descriptors and two areas of shm_area_bytes() (1.6 MiB each for
 * messages of up to 64 KiB and their headers) of address space. A conn that was never
 * used has touched one page of each area; a used one also pages of the rings, few if
 * their consumers keep up (ring.h). The chunks are touched only if the peer reads memory
 * that is in no slab and cannot use process_vm_readv.
 */
#include "transport/shm/shm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>

#include "base/clock.h"
#include "transport/domain.h"

#define AWAKE_COUNT 32u
#define DOZE_NS     (10 * TERN_NS_PER_MS)
#define LULL_POLLS  8u /* number of polls between two checks of the clock */
#define LULL_NS     (50 * TERN_NS_PER_US)
#define EVENT_COUNT 32
/* Largest number of messages that one conn receives before the other conns have their
 * turn. */
#define TURN_COUNT 32

static int fabric_open(struct tern_domain *domain, const struct tern_domain_opts *opts,
	struct tern_fabric **out, const char **why)
{
	struct shm_fabric *fabric;
	void *base;
	int fd, status = shm_memory_new(SHM_RING_OFFSET, &fd, &base);

	if (status) {
		*why = "the system does not provide sealed shared memory (memfd_create)";
		return status == -ENOMEM ? status : -ENOSYS;
	}
	munmap(base, SHM_RING_OFFSET);
	close(fd);
	fabric = calloc(1, sizeof(*fabric));
	if (!fabric)
		return -ENOMEM;
	fabric->base.ops = &tern_shm_fabric_ops;
	fabric->base.domain = domain;
	fabric->no_cma = opts && opts->no_cma;
	*out = &fabric->base;
	return 0;
}

static void fabric_close(struct tern_fabric *fabric)
{
	struct shm_fabric *shm = tern_container_of(fabric, struct shm_fabric, base);

	free(shm);
}

static void port_release(struct shm_port *port)
{
	if (port->timer_fd >= 0)
		close(port->timer_fd);
	if (port->epoll_fd >= 0)
		close(port->epoll_fd);
	free(port->exposures);
	free(port->message);
	free(port);
}

static int port_new(struct tern_fabric *fabric, const struct tern_port_opts *opts,
	struct tern_port **out)
{
	struct shm_port *port = calloc(1, sizeof(*port));

	tern_assert(opts->message_bytes <= SHM_MESSAGE_MAX);
	if (!port)
		return -ENOMEM;
	port->base = (struct tern_port){
		.ops = &tern_shm_fabric_ops,
		.fabric = fabric,
		.env = opts->env,
		.handler = opts->handler,
		.handler_arg = opts->arg,
		.message_bytes = opts->message_bytes,
	};
	tern_list_init(&port->conns);
	tern_list_init(&port->dozing);
	tern_list_init(&port->closed);
	tern_list_init(&port->read);
	tern_list_init(&port->written);
	tern_list_init(&port->peeked);
	tern_list_init(&port->lsns);
	tern_list_init(&port->dead_lsns);
	port->awake_count = AWAKE_COUNT;
	port->doze_ns = DOZE_NS;
	port->slab_max = SHM_SLAB_COUNT;
	port->ring_bytes = shm_ring_bytes(opts->message_bytes);
	port->area_bytes = shm_area_bytes(opts->message_bytes);
	port->message = aligned_alloc(
		SHM_LINE, tern_align_up(opts->message_bytes + 1u, SHM_LINE));
	port->exposures = calloc(SHM_EXPOSURE_COUNT, sizeof(*port->exposures));
	port->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	port->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (!port->message || !port->exposures || port->epoll_fd < 0 ||
		port->timer_fd < 0 ||
		shm_watch_add(
			port, port->timer_fd, &port->timer_watch, SHM_WATCH_TIMER)) {
		int status = port->message && port->exposures ? -errno : -ENOMEM;

		port_release(port);
		return status;
	}
	*out = &port->base;
	return 0;
}

/* Frees the closed conns. Conns that are closed meanwhile wait for the next call, since a
 * handler that replaces each closed conn by a new one, which fails immediately, would
 * keep this loop running for ever. */
static int reap(struct shm_port *port)
{
	struct tern_list now;
	int count = 0;

	tern_list_init(&now);
	tern_list_splice(&now, &port->closed);
	tern_list_splice(&now, &port->written);
	while (!tern_list_empty(&now))
		count += shm_conn_reap(tern_list_first(&now, struct shm_conn, node));
	return count;
}

static void port_free(struct tern_port *base)
{
	struct shm_port *port = shm_port_of(base);

	/* Conns in the handshake whose listener was closed may be left; the layer above
	 * never knew them. */
	reap(port);
	tern_assert(!port->in_poll && tern_list_empty(&port->conns));
	tern_assert(tern_list_empty(&port->dozing));
	tern_assert(tern_list_empty(&port->closed) && tern_list_empty(&port->lsns));
	tern_assert(tern_list_empty(&port->read) && tern_list_empty(&port->written));
	tern_assert(tern_list_empty(&port->peeked));
	port_release(port);
}

static int bind_and_listen(struct shm_lsn *lsn)
{
	struct shm_port *port = shm_port_of(lsn->base.port);
	struct sockaddr_un address;
	int bytes = shm_address(lsn->address, &address);

	if (bytes < 0)
		return bytes;
	lsn->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (lsn->fd < 0 || bind(lsn->fd, (struct sockaddr *)&address, (socklen_t)bytes) ||
		listen(lsn->fd, 1024))
		return -errno;
	return shm_watch_add(port, lsn->fd, &lsn->watch, SHM_WATCH_LISTENER);
}

static int shm_listen(struct tern_port *base, const char *address, struct tern_lsn **out)
{
	struct shm_lsn *lsn = calloc(1, sizeof(*lsn));
	int status;

	if (!lsn)
		return -ENOMEM;
	lsn->base.port = base;
	lsn->fd = -1;
	tern_admission_init(&lsn->greeting, tern_random(base->env));
	if (strcmp(address, "*") == 0)
		snprintf(lsn->address, sizeof(lsn->address), "%d-%016llx", (int)getpid(),
			(unsigned long long)tern_random(base->env));
	else if (strlen(address) <= SHM_ADDRESS_MAX)
		snprintf(lsn->address, sizeof(lsn->address), "%s", address);
	status = bind_and_listen(lsn);
	if (status) {
		if (lsn->fd >= 0)
			close(lsn->fd);
		free(lsn);
		return status;
	}
	tern_list_push(&shm_port_of(base)->lsns, &lsn->node);
	*out = &lsn->base;
	return 0;
}

static const char *lsn_address(struct tern_lsn *lsn)
{
	return shm_lsn_of(lsn)->address;
}

static void lsn_close(struct tern_lsn *base)
{
	struct shm_lsn *lsn = shm_lsn_of(base);
	struct shm_port *port = shm_port_of(base->port);

	tern_list_for_each_safe (node, &port->conns) {
		struct shm_conn *conn = tern_list_entry(node, struct shm_conn, node);

		if (conn->lsn == lsn)
			shm_conn_fail(conn, -ECANCELED);
	}
	epoll_ctl(port->epoll_fd, EPOLL_CTL_DEL, lsn->fd, NULL);
	close(lsn->fd);
	lsn->fd = -1;
	tern_list_remove(&lsn->node);
	if (port->in_poll)
		tern_list_push(&port->dead_lsns, &lsn->node);
	else
		free(lsn);
}

static int shm_send(struct tern_conn *base, const void *head, size_t head_bytes,
	const void *payload, size_t payload_bytes)
{
	struct shm_conn *conn = shm_conn_of(base);
	int status;

	tern_assert(payload_bytes <= base->port->message_bytes &&
		    head_bytes <= base->port->message_bytes - payload_bytes);
	if (conn->state != SHM_UP)
		return -ENOTCONN;
	shm_conn_rouse(conn);
	status = shm_ring_send(&conn->ring, head, head_bytes, payload, payload_bytes);
	if (status == -EPROTO) {
		shm_conn_blame(conn, "impossible indices in its shared memory ring");
		return -ENOTCONN;
	}
	conn->blocked |= status == -EAGAIN;
	return status;
}

/* Delivers at most `budget` messages of one conn in state UP or PARTING. Returns their
 * number. */
static int receive(struct shm_conn *conn, int budget)
{
	struct shm_port *port = shm_conn_port(conn);
	const struct tern_port_handler *handler = port->base.handler;
	const enum shm_state state = conn->state;
	int count = 0;

	while (count < budget && conn->state == state) {
		size_t bytes;
		int status = shm_ring_receive(
			&conn->ring, port->message, port->base.message_bytes, &bytes);

		if (status == 0)
			break;
		count++;
		if (status < 0) {
			shm_conn_blame(
				conn, "malformed record in its shared memory ring");
			break;
		}
		status = handler->message(
			port->base.handler_arg, &conn->base, port->message, bytes);
		if (status)
			shm_conn_fail(conn, status);
	}
	return count;
}

static int unblock(struct shm_conn *conn)
{
	struct shm_port *port = shm_conn_port(conn);
	int roomy = shm_ring_roomy(&conn->ring);

	if (roomy < 0)
		shm_conn_blame(conn, "impossible indices in its shared memory ring");
	if (roomy <= 0)
		return 0;
	conn->blocked = false;
	port->base.handler->writable(port->base.handler_arg, &conn->base);
	return 1;
}

static int feed(struct shm_conn *conn)
{
	struct shm_port *port = shm_conn_port(conn);

	conn->starved = false;
	port->base.handler->writable(port->base.handler_arg, &conn->base);
	return 1;
}

static bool wants_to_ask(const struct shm_conn *conn)
{
	return conn->asking_count || conn->gone_waits || conn->owed_count;
}

/* Sends waiting GONE notes, offers, answers and requests for slabs. True: some could not
 * be sent, because the socket is full. */
static bool ask_for_slabs(struct shm_conn *conn)
{
	bool left = shm_offers_make(conn);

	shm_answers_say(conn);
	left |= conn->owed_count;
	tern_list_for_each (node, &conn->asking) {
		struct shm_slab *slab = tern_list_entry(node, struct shm_slab, node);

		if (slab->state == SHM_SLAB_WANTED)
			shm_slab_ask(conn, slab);
		left |= slab->state == SHM_SLAB_WANTED;
	}
	return left;
}

static void ring_bell(struct shm_conn *conn)
{
	if (shm_bell(&conn->ring))
		shm_conn_wake(conn);
}

static int step_up(struct shm_conn *conn, int budget)
{
	int count = 0;

	ring_bell(conn);
	if (shm_ring_readable(&conn->ring))
		count = receive(conn, budget);
	if (conn->state == SHM_UP && shm_copy_ready(conn))
		count += shm_copy_step(conn);
	if (conn->state == SHM_UP && conn->blocked)
		count += unblock(conn);
	if (conn->state == SHM_UP && conn->starved && shm_slab_roomy(conn))
		count += feed(conn);
	if (conn->state == SHM_UP) {
		shm_gpu_step(conn);
		if (wants_to_ask(conn))
			(void)ask_for_slabs(conn);
		ring_bell(conn);
	}
	return count;
}

static int step(struct shm_conn *conn, int budget, uint64_t now_ns)
{
	int count = 0;

	switch (conn->state) {
	case SHM_UP:
		return step_up(conn, budget);
	case SHM_PARTING:
		count = receive(conn, budget) + shm_conn_due(conn, now_ns);
		if (conn->state == SHM_PARTING && !shm_ring_readable(&conn->ring))
			shm_conn_parted(conn);
		return count;
	case SHM_DIALLING:
	case SHM_ACCEPTING:
		return shm_conn_due(conn, now_ns);
	case SHM_GREETING:
	case SHM_CLOSED:
		break;
	}
	return 0;
}

static int on_event(struct shm_port *port, struct shm_watch *watch)
{
	struct shm_lsn *lsn;
	uint64_t count;

	switch (watch->kind) {
	case SHM_WATCH_TIMER:
		port->timer_ns = 0;
		return read(port->timer_fd, &count, sizeof(count)) > 0;
	case SHM_WATCH_LISTENER:
		lsn = tern_container_of(watch, struct shm_lsn, watch);
		return lsn->fd >= 0 ? shm_accept(lsn) : 0;
	case SHM_WATCH_SOCKET:
		return shm_conn_socket(
			tern_container_of(watch, struct shm_conn, socket_watch));
	case SHM_WATCH_PROCESS:
		return shm_conn_process(
			tern_container_of(watch, struct shm_conn, process_watch));
	}
	return 0;
}

static void resume_listeners(struct shm_port *port)
{
	tern_list_for_each (node, &port->lsns) {
		struct shm_lsn *lsn = tern_list_entry(node, struct shm_lsn, node);

		if (lsn->resume_ns && port->looked_ns >= lsn->resume_ns &&
			shm_watch_add(port, lsn->fd, &lsn->watch, SHM_WATCH_LISTENER) ==
				0)
			lsn->resume_ns = 0;
	}
}

static int look_at_sockets(struct shm_port *port)
{
	struct epoll_event events[EVENT_COUNT];
	int count = 0, n;

	port->looked_ns = tern_now_ns(port->base.env);
	n = epoll_wait(port->epoll_fd, events, EVENT_COUNT, 0);
	for (int i = 0; i < n; i++)
		count += on_event(port, events[i].data.ptr);
	resume_listeners(port);
	return count;
}

static void wake_up(struct shm_port *port)
{
	tern_list_for_each (node, &port->conns) {
		struct shm_conn *conn = tern_list_entry(node, struct shm_conn, node);

		if (conn->state == SHM_UP)
			shm_awake(&conn->ring);
	}
	port->asleep = false;
}

static void free_dead_lsns(struct shm_port *port)
{
	struct tern_list *node;

	while ((node = tern_list_pop(&port->dead_lsns)))
		free(tern_list_entry(node, struct shm_lsn, node));
}

static bool must_look(struct shm_port *port)
{
	if (port->asleep || port->unsettled_count)
		return true;
	if (++port->lull % LULL_POLLS)
		return false;
	return tern_now_ns(port->base.env) - port->looked_ns >= LULL_NS;
}

/* True if this conn has work for poll() that no descriptor would report. */
static bool has_work(struct shm_conn *conn)
{
	if (conn->state == SHM_PARTING)
		return !conn->due_ns || shm_ring_readable(&conn->ring);
	if (conn->state != SHM_UP)
		return false;
	return shm_ring_readable(&conn->ring) || shm_copy_ready(conn) ||
	       (conn->blocked && shm_ring_roomy(&conn->ring) != 0) ||
	       (conn->starved && shm_slab_roomy(conn));
}

/* True if the conn, which has no work, may doze: it has been idle for long enough, enough
 * other conns are awake, and its descriptors will report every further event. */
static bool may_doze(const struct shm_conn *conn)
{
	const struct shm_port *port = shm_conn_port(conn);

	return conn->state == SHM_UP && port->conn_count > port->awake_count &&
	       port->looked_ns - conn->used_ns >= port->doze_ns && !conn->blocked &&
	       !conn->starved && !wants_to_ask(conn) && !conn->refused_for_now;
}

/* Lets an idle conn doze while the port spins. As in arm(), the sleep flag is set before
 * the last check for work. */
static void doze_off(struct shm_conn *conn)
{
	shm_sleep(&conn->ring, false);
	if (has_work(conn))
		shm_awake(&conn->ring);
	else
		shm_conn_doze(conn);
}

static int shm_poll(struct tern_port *base, int budget)
{
	struct shm_port *port = shm_port_of(base);
	bool look = must_look(port);
	uint64_t now_ns;
	int count = 0;

	tern_assert(!port->in_poll);
	port->in_poll = true;
	if (port->asleep)
		wake_up(port);
	shm_gone_look(port);
	if (look)
		count = look_at_sockets(port);
	now_ns = port->unsettled_count ? tern_now_ns(base->env) : 0;
	for (uint32_t i = port->conn_count; i > 0 && port->conn_count; i--) {
		struct shm_conn *conn =
			tern_list_first(&port->conns, struct shm_conn, node);
		int events;

		if (count >= budget)
			break;
		tern_list_remove(&conn->node);
		tern_list_push(&port->conns, &conn->node);
		events = step(conn, TERN_MIN(budget - count, TURN_COUNT), now_ns);
		if (events)
			conn->used_ns = port->looked_ns;
		else if (tern_unlikely(may_doze(conn)))
			doze_off(conn);
		count += events;
	}
	if (!tern_list_empty(&port->closed) || !tern_list_empty(&port->written))
		count += reap(port);
	free_dead_lsns(port);
	port->in_poll = false;
	return count;
}

static void set_timer(struct shm_port *port, uint64_t due_ns)
{
	struct itimerspec spec = {.it_value = {0}};
	uint64_t now_ns;

	if (due_ns == port->timer_ns)
		return;
	port->timer_ns = due_ns;
	if (due_ns) {
		now_ns = tern_now_ns(port->base.env);
		due_ns = due_ns > now_ns ? due_ns - now_ns : 1;
		spec.it_value.tv_sec = (time_t)(due_ns / TERN_NS_PER_S);
		spec.it_value.tv_nsec = (long)(due_ns % TERN_NS_PER_S);
	}
	timerfd_settime(port->timer_fd, 0, &spec, NULL);
}

static void earlier(uint64_t *due_ns, uint64_t other_ns)
{
	if (other_ns && (!*due_ns || other_ns < *due_ns))
		*due_ns = other_ns;
}

static int shm_arm(struct tern_port *base)
{
	struct shm_port *port = shm_port_of(base);
	uint64_t due_ns = 0;
	bool work = !tern_list_empty(&port->closed);

	shm_gone_look(port);
	tern_list_for_each_safe (node, &port->conns) {
		struct shm_conn *conn = tern_list_entry(node, struct shm_conn, node);

		if (conn->state == SHM_UP) {
			ring_bell(conn);
			shm_sleep(&conn->ring, conn->blocked);
			if (wants_to_ask(conn) && ask_for_slabs(conn))
				earlier(&due_ns, tern_now_ns(base->env) + TERN_NS_PER_MS);
		}
		earlier(&due_ns, conn->due_ns);
		if (has_work(conn))
			work = true;
		else if (may_doze(conn))
			shm_conn_doze(conn);
	}
	if (work) {
		wake_up(port);
		return -EAGAIN;
	}
	if (!tern_list_empty(&port->written))
		earlier(&due_ns, tern_now_ns(base->env) + TERN_NS_PER_MS);
	tern_list_for_each (node, &port->lsns)
		earlier(&due_ns, tern_list_entry(node, struct shm_lsn, node)->resume_ns);
	set_timer(port, due_ns);
	port->asleep = true;
	return 0;
}

static int shm_fd(struct tern_port *port)
{
	return shm_port_of(port)->epoll_fd;
}

const struct tern_fabric_ops tern_shm_fabric_ops = {
	.name = "shm",
	.title = "shared memory",
	.wire_version = SHM_NOTE_VERSION,
	.one_host = true,
	.auto_dial = shm_auto_dial,
	.auto_listen = shm_auto_listen,
	.open = fabric_open,
	.close = fabric_close,
	.mem_register = shm_mem_register,
	.mem_unregister = shm_mem_unregister,
	.port_new = port_new,
	.port_free = port_free,
	.listen = shm_listen,
	.lsn_address = lsn_address,
	.lsn_close = lsn_close,
	.connect = shm_connect,
	.conn_close = shm_conn_close,
	.send = shm_send,
	.put = shm_put,
	.get = shm_get,
	.peek = shm_peek,
	.unpeek = shm_unpeek,
	.expose = shm_expose,
	.withdraw = shm_withdraw,
	.offer = shm_offer,
	.borrow = shm_borrow,
	.repay = shm_repay,
	.poll = shm_poll,
	.arm = shm_arm,
	.fd = shm_fd,
};
