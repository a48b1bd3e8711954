/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One shm connection, from connect() until the `closed` handler was called.
 *
 * Two processes meet at an abstract Unix socket (SOCK_SEQPACKET). The kernel closes it
 * with the process, it leaves no file behind, preserves packet boundaries, and identifies
 * the process at the other end. The packet HELLO carries the connector's area (shared
 * memory, ring.h), WELCOME the acceptor's. From then on messages go through the areas,
 * and the socket is used for wake-ups, for notes about slabs and GPU memory, and to
 * detect the end of the peer.
 *
 * Both ends must have the same user id, or the other end must be root: a process of that
 * user could attach a debugger to this one anyway, so shared memory, process_vm_readv and
 * process_vm_writev give it no new power. The connector checks this too, since any process
 * can listen at an
 * abstract name. The kernel reports the process that called listen(), so that process
 * must also be the one that polls.
 *
 * The end of the peer's process shows twice: its sockets close first, its pidfd becomes
 * readable later. So after an end of file without a BYE the conn waits a moment for the
 * pidfd. It can then report -EPIPE (the process has ended, and cannot access memory any
 * more) instead of -ECONNRESET.
 *
 * Teardown: shm_conn_fail() stops everything immediately: after it no piece is copied and
 * no message delivered. shm_conn_reap(), called by poll(), then sets `gone` in our area
 * (a peer that was copying from our memory sees that the bytes may be inconsistent, and
 * drops them), sends BYE, ends the ops, calls `closed`, unmaps and frees.
 *
 * A peer that writes to our memory sets `writing` in its area before it looks whether our
 * `gone` is set, and clears it when the system call has returned. So if `writing` is not
 * set after our `gone` was set, it writes nothing any more; else shm_conn_reap() waits, for
 * one call usually, and as long as the peer is stopped in it at worst.
 *
 * A peer that reads our memory in place cannot drop what it has read. It sets `reading`
 * in its area before the first byte, and keeps its socket open until it reads no more,
 * even after its own conn has ended. So if the peer's `reading` is set after our `gone`
 * was set, shm_conn_reap() waits for the end of the socket or of the process before it
 * calls `closed`.
 */
#include "transport/shm/shm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"

#define DIAL_NS  (2 * TERN_NS_PER_MS)
#define HELLO_NS (5 * TERN_NS_PER_S)
/* Time to wait for the pidfd after an end of file: an ending process may have much memory
 * to free. */
#define EXIT_NS (800 * TERN_NS_PER_MS)

int shm_address(const char *name, struct sockaddr_un *address)
{
	size_t bytes = strlen(name);

	if (bytes == 0 || bytes > SHM_ADDRESS_MAX)
		return -EINVAL;
	for (size_t i = 0; i < bytes; i++)
		if (name[i] <= ' ' || name[i] == '/' || name[i] > '~')
			return -EINVAL;
	*address = (struct sockaddr_un){.sun_family = AF_UNIX};
	memcpy(address->sun_path, "\0tern/", 6);
	memcpy(address->sun_path + 6, name, bytes);
	return (int)(offsetof(struct sockaddr_un, sun_path) + 6 + bytes);
}

int shm_watch_add(
	struct shm_port *port, int fd, struct shm_watch *watch, enum shm_watch_kind kind)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = watch};

	watch->kind = kind;
	return epoll_ctl(port->epoll_fd, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

static void close_watched(struct shm_port *port, int *fd)
{
	if (*fd < 0)
		return;
	/* close() alone would not remove the descriptor from epoll, since a forked child
	 * of this process may hold a copy. */
	epoll_ctl(port->epoll_fd, EPOLL_CTL_DEL, *fd, NULL);
	close(*fd);
	*fd = -1;
}

void shm_conn_settle(struct shm_conn *conn)
{
	struct shm_port *port = shm_conn_port(conn);
	bool unsettled = conn->state < SHM_UP || conn->state == SHM_PARTING ||
			 (conn->state == SHM_UP && conn->asking_count);

	if (unsettled == conn->unsettled)
		return;
	if (unsettled)
		shm_conn_rouse(conn);
	conn->unsettled = unsettled;
	port->unsettled_count += unsettled ? 1 : -1u;
}

void shm_conn_doze(struct shm_conn *conn)
{
	struct shm_port *port = shm_conn_port(conn);

	conn->dozing = true;
	tern_list_remove(&conn->node);
	tern_list_push(&port->dozing, &conn->node);
	port->conn_count--;
}

void shm_conn_rise(struct shm_conn *conn)
{
	struct shm_port *port = shm_conn_port(conn);

	conn->dozing = false;
	conn->used_ns = port->looked_ns;
	tern_list_remove(&conn->node);
	tern_list_push(&port->conns, &conn->node);
	port->conn_count++;
	/* While the port sleeps, this conn's sleep flag stays set like those of the other
	 * conns; poll() then clears it with theirs. */
	if (!port->asleep)
		shm_awake(&conn->ring);
}

static void enter(struct shm_conn *conn, enum shm_state next)
{
	static const uint8_t edges[] = {
		[SHM_DIALLING] = 1 << SHM_GREETING | 1 << SHM_CLOSED,
		[SHM_GREETING] = 1 << SHM_UP | 1 << SHM_CLOSED,
		[SHM_ACCEPTING] = 1 << SHM_UP | 1 << SHM_CLOSED,
		[SHM_UP] = 1 << SHM_PARTING | 1 << SHM_CLOSED,
		[SHM_PARTING] = 1 << SHM_CLOSED,
		[SHM_CLOSED] = 0,
	};

	tern_assert(edges[conn->state] >> next & 1);
	conn->state = next;
	conn->due_ns = 0;
	shm_conn_settle(conn);
}

static void leave_greeting(struct shm_conn *conn)
{
	if (conn->lsn)
		tern_admission_remove(&conn->lsn->greeting, &conn->half_open);
	conn->lsn = NULL;
}

void shm_conn_fail(struct shm_conn *conn, int status)
{
	struct shm_port *port = shm_conn_port(conn);

	if (conn->state == SHM_CLOSED)
		return;
	shm_conn_rouse(conn);
	leave_greeting(conn);
	conn->status = status;
	enter(conn, SHM_CLOSED);
	tern_list_remove(&conn->node);
	tern_list_push(&port->closed, &conn->node);
	port->conn_count--;
}

void shm_conn_blame(struct shm_conn *conn, const char *what)
{
	tern_log(conn->base.port->env, TERN_LOG_WARN, "%s: cut: %s", conn->base.name,
		what);
	shm_conn_fail(conn, -EPROTO);
}

static struct shm_conn *conn_new(struct shm_port *port, enum shm_state state)
{
	struct shm_conn *conn = calloc(1, sizeof(*conn));

	if (!conn)
		return NULL;
	conn->base.port = &port->base;
	conn->base.caps = TERN_CAP_GET | TERN_CAP_PEEK | TERN_CAP_BOUND;
	conn->base.eager_bytes = SHM_EAGER_BYTES;
	conn->base.eager_mapped_bytes = SHM_MAPPED_BYTES;
	conn->base.chunk_bytes = SHM_GET_BYTES;
	conn->state = state;
	conn->fd = conn->pidfd = conn->memory_fd = -1;
	conn->probe_word = tern_random(port->base.env);
	tern_list_init(&conn->slabs);
	tern_list_init(&conn->asking);
	for (size_t i = 0; i < SHM_SLAB_BUCKETS; i++)
		tern_list_init(&conn->slab_buckets[i]);
	tern_list_init(&conn->offers);
	tern_list_init(&conn->views);
	tern_list_init(&conn->copying);
	tern_list_init(&conn->bouncing);
	tern_list_init(&conn->answering);
	tern_list_init(&conn->node);
	return conn;
}

static void hang_up(struct shm_conn *conn)
{
	/* close() alone would not tell the peer, since a forked child of this process may
	 * hold a copy. */
	if (conn->fd >= 0)
		shutdown(conn->fd, SHUT_RDWR);
	tern_cleanup_close(&conn->fd);
	free(conn);
}

/* Frees the conn. Its socket stays open, with this structure, as long as slabs of the
 * peer are read in place. */
static void conn_free(struct shm_conn *conn)
{
	struct shm_port *port = shm_conn_port(conn);

	shm_slab_free_all(conn);
	shm_gpu_end(conn);
	if (conn->peer)
		munmap(conn->peer, port->area_bytes);
	if (conn->own)
		munmap(conn->own, port->area_bytes);
	conn->own = conn->peer = NULL;
	free(conn->owed);
	conn->owed = NULL;
	conn->owed_count = 0;
	if (conn->fd >= 0)
		epoll_ctl(port->epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);
	close_watched(port, &conn->pidfd);
	tern_cleanup_close(&conn->memory_fd);
	if (!conn->held_count)
		hang_up(conn);
}

void shm_conn_say_reading(struct shm_conn *conn)
{
	/* Release: reading in place has ended before the peer can see the new value. */
	atomic_store_explicit(&conn->own->reading, conn->peek_count + conn->held_count,
		memory_order_release);
}

void shm_conn_drop(struct shm_conn *conn)
{
	conn->held_count--;
	if (conn->own)
		shm_conn_say_reading(conn);
	else if (!conn->held_count)
		hang_up(conn);
}

static int send_area(struct shm_conn *conn, enum shm_note_type type)
{
	struct shm_port *port = shm_conn_port(conn);
	struct shm_note note = {
		.magic = SHM_NOTE_MAGIC,
		.version = SHM_NOTE_VERSION,
		.type = (uint16_t)type,
		.message_bytes = port->base.message_bytes,
		.flags = tern_ipc_is_built() ? SHM_LENDS : 0,
		.probe_address = (uintptr_t)&conn->probe_word,
		.probe_word = conn->probe_word,
	};
	TERN_CLEANUP(tern_cleanup_close) int fd = -1;
	void *base;
	int status;

	status = shm_memory_new(port->area_bytes, &fd, &base);
	if (status)
		return status;
	conn->own = base;
	shm_area_init(conn->own, tern_random(port->base.env));
	return shm_note_send(conn->fd, &note, fd);
}

/* Starts the handshake after connect(2) has succeeded. */
static int greet(struct shm_conn *conn)
{
	struct shm_port *port = shm_conn_port(conn);
	int status = shm_process_identify(conn);

	if (!status)
		status = send_area(conn, SHM_HELLO);
	if (!status)
		status = shm_watch_add(
			port, conn->fd, &conn->socket_watch, SHM_WATCH_SOCKET);
	if (!status && conn->pidfd >= 0)
		status = shm_watch_add(
			port, conn->pidfd, &conn->process_watch, SHM_WATCH_PROCESS);
	return status;
}

static void dial(struct shm_conn *conn)
{
	struct sockaddr_un address;
	int bytes = shm_address(conn->address, &address), status;

	if (connect(conn->fd, (struct sockaddr *)&address, (socklen_t)bytes) == 0) {
		enter(conn, SHM_GREETING);
		status = greet(conn);
		if (status)
			shm_conn_fail(conn, status);
	} else if (errno == EAGAIN || errno == EINTR) {
		/* The listener's queue is full. No event reports when it has space again,
		 * so try again after a delay. */
		conn->due_ns = tern_now_ns(conn->base.port->env) + DIAL_NS;
	} else {
		shm_conn_fail(conn, -errno);
	}
}

static void add_conn(struct shm_conn *conn)
{
	struct shm_port *port = shm_conn_port(conn);

	tern_list_push(&port->conns, &conn->node);
	port->conn_count++;
	shm_conn_settle(conn);
}

int shm_connect(struct tern_port *port, const char *address, struct tern_conn **out)
{
	struct sockaddr_un checked;
	struct shm_conn *conn;

	if (shm_address(address, &checked) < 0)
		return -EINVAL;
	conn = conn_new(shm_port_of(port), SHM_DIALLING);
	if (!conn)
		return -ENOMEM;
	snprintf(conn->base.name, sizeof(conn->base.name), "shm %.70s", address);
	snprintf(conn->address, sizeof(conn->address), "%s", address);
	conn->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (conn->fd < 0) {
		int status = -errno;

		conn_free(conn);
		return status;
	}
	conn->known = true;
	add_conn(conn);
	dial(conn);
	*out = &conn->base;
	return 0;
}

static void refuse(struct shm_conn *conn, int status)
{
	const struct shm_note note = {
		.magic = SHM_NOTE_MAGIC,
		.version = SHM_NOTE_VERSION,
		.type = SHM_REFUSE,
		.status = status,
	};

	(void)shm_note_send(conn->fd, &note, -1);
	shm_conn_fail(conn, status);
}

/* Adds an accepted conn to those in the handshake. If there are too many, one of them is
 * cut, which may be another conn than this one. The conn must have its name, which tells
 * its source (transport/admission.h). */
static void enter_greeting(struct shm_conn *conn, struct shm_lsn *lsn)
{
	uint64_t now_ns = tern_now_ns(conn->base.port->env);
	struct tern_half_open *excess;

	conn->lsn = lsn;
	conn->due_ns = now_ns + HELLO_NS;
	tern_admission_add(&lsn->greeting, &conn->half_open, conn->base.name, now_ns);
	excess = tern_admission_excess(
		&lsn->greeting, &conn->half_open, SHM_GREETING_MAX, now_ns);
	if (excess)
		shm_conn_fail(
			tern_container_of(excess, struct shm_conn, half_open), -EMFILE);
}

/* True if the error means that this process or host lacks a resource, so the peer is not
 * at fault. */
static bool is_scarcity(int status)
{
	return status == -EMFILE || status == -ENFILE || status == -ENOMEM;
}

static void complain(struct shm_lsn *lsn, int status)
{
	if (tern_lsn_may_complain(&lsn->base))
		tern_log(lsn->base.port->env, TERN_LOG_WARN, "shm %s: cannot accept: %s",
			lsn->address, tern_status_text(status));
}

/* Takes one connection from the listener's queue: accepts or refuses it, and returns 1.
 * 0: there is none; a negative errno: see is_scarcity(). */
static int accept_one(struct shm_lsn *lsn)
{
	struct shm_port *port = shm_port_of(lsn->base.port);
	struct shm_conn *conn;
	int fd = accept4(lsn->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), status;

	if (fd < 0)
		return is_scarcity(-errno) ? -errno : 0;
	conn = conn_new(port, SHM_ACCEPTING);
	if (!conn) {
		close(fd);
		return 1;
	}
	conn->fd = fd;
	add_conn(conn);
	status = shm_process_identify(conn);
	if (!status)
		status = shm_watch_add(port, fd, &conn->socket_watch, SHM_WATCH_SOCKET);
	if (!status && conn->pidfd >= 0)
		status = shm_watch_add(
			port, conn->pidfd, &conn->process_watch, SHM_WATCH_PROCESS);
	if (status)
		refuse(conn, status);
	else
		enter_greeting(conn, lsn);
	return 1;
}

int shm_accept(struct shm_lsn *lsn)
{
	struct shm_port *port = shm_port_of(lsn->base.port);

	for (int i = 0; i < 16; i++) {
		int status = accept_one(lsn);

		if (status == 0)
			return i;
		if (status < 0) {
			/* Remove the listener from epoll until resume_ns: level-triggered
			 * epoll would report its waiting connections again and again. */
			epoll_ctl(port->epoll_fd, EPOLL_CTL_DEL, lsn->fd, NULL);
			lsn->resume_ns =
				tern_now_ns(port->base.env) + 50 * TERN_NS_PER_MS;
			complain(lsn, status);
			return i;
		}
	}
	return 16;
}

/* Handles the peer's HELLO or WELCOME: maps its area (shared memory, ring.h). */
static int take_area(struct shm_conn *conn, const struct shm_note *note, int fd)
{
	struct shm_port *port = shm_conn_port(conn);
	uint64_t bytes;
	void *base;
	int status;

	if (note->message_bytes != port->base.message_bytes) {
		tern_log_stranger(port->base.env,
			"%s: refused, because its messages have up to %u bytes, and ours "
			"up to %u: both processes must run the same version of Tern",
			conn->base.name, note->message_bytes, port->base.message_bytes);
		return -EPROTO;
	}
	status = shm_memory_map(fd, port->area_bytes, &base, &bytes);
	if (status)
		return status;
	if (bytes > port->area_bytes)
		munmap((char *)base + port->area_bytes, bytes - port->area_bytes);
	conn->peer = base;
	shm_process_probe(conn, note);
	if ((note->flags & SHM_LENDS) && tern_ipc_is_built())
		conn->base.caps |= TERN_CAP_LEND;
	return 0;
}

static void go_up(struct shm_conn *conn)
{
	struct shm_port *port = shm_conn_port(conn);
	const struct tern_port_handler *handler = port->base.handler;
	struct shm_lsn *lsn = conn->lsn;

	shm_ring_init(&conn->ring, conn->own, conn->peer, port->ring_bytes);
	leave_greeting(conn);
	enter(conn, SHM_UP);
	if (!lsn) {
		handler->up(port->base.handler_arg, &conn->base);
		return;
	}
	conn->known = true;
	handler->accepted(port->base.handler_arg, &lsn->base, &conn->base);
}

static void turn_away(struct shm_conn *conn, int status)
{
	if (is_scarcity(status))
		complain(conn->lsn, status);
	else
		tern_log_stranger(conn->base.port->env, "%s: refused: %s",
			conn->base.name, tern_status_text(status));
	refuse(conn, status);
}

static void on_hello(struct shm_conn *conn, const struct shm_note *note, int fd)
{
	int status = note->version == SHM_NOTE_VERSION ? 0 : -EPROTONOSUPPORT;

	if (!status && note->type != SHM_HELLO)
		status = -EPROTO;
	if (!status)
		status = take_area(conn, note, fd);
	if (!status)
		status = send_area(conn, SHM_WELCOME);
	if (!status) {
		go_up(conn);
		return;
	}
	turn_away(conn, status);
}

static void on_welcome(struct shm_conn *conn, const struct shm_note *note, int fd)
{
	int status = -EPROTO;

	if (note->type == SHM_REFUSE && note->status < 0 &&
		tern_status_may_end(note->status))
		status = note->status;
	else if (note->type == SHM_WELCOME && note->version == SHM_NOTE_VERSION)
		status = take_area(conn, note, fd);
	if (!status)
		go_up(conn);
	else
		shm_conn_fail(conn, status);
}

static void on_note(struct shm_conn *conn, const struct shm_note *note,
	const struct tern_ipc_handle *handle, int fd)
{
	switch ((enum shm_note_type)note->type) {
	case SHM_WAKE:
		return;
	case SHM_BYE:
		shm_conn_part(conn, true);
		return;
	case SHM_SLAB_ASK:
		shm_answer(conn, SHM_SLAB, note->mem_id, 0);
		return;
	case SHM_SLAB:
		shm_slab_arrived(conn, note, fd);
		return;
	case SHM_OFFER:
		shm_offer_arrived(conn, note, handle);
		return;
	case SHM_TAKEN:
		shm_offer_answered(conn, note);
		return;
	case SHM_GONE:
		if (!shm_view_gone(conn, note->mem_id))
			shm_slab_gone(conn, note->mem_id);
		return;
	case SHM_AGAIN:
		shm_offer_again(conn);
		return;
	case SHM_HELLO:
	case SHM_WELCOME:
	case SHM_REFUSE:
		break;
	}
	shm_conn_blame(conn, "unexpected packet on its socket");
}

static void on_end(struct shm_conn *conn)
{
	if (conn->state == SHM_UP)
		shm_conn_part(conn, false);
	else
		shm_conn_fail(conn, -ECONNRESET);
}

/* The peer no longer reads memory of this process in place, so shm_conn_reap() can
 * finish. */
static void now_unread(struct shm_conn *conn)
{
	if (conn->unread)
		return;
	conn->unread = true;
	tern_list_remove(&conn->node);
	tern_list_push(&shm_conn_port(conn)->closed, &conn->node);
}

/* Reads and drops packets until the end of file: after BYE was sent, only the end of file
 * is of interest. Returns the number of events. */
static int await_end(struct shm_conn *conn)
{
	char packet[sizeof(struct shm_note)];
	ssize_t n;

	for (int i = 0; i < 16; i++) {
		n = recv(conn->fd, packet, sizeof(packet), MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return i;
		if (n <= 0) {
			now_unread(conn);
			return i + 1;
		}
	}
	return 16;
}

int shm_conn_socket(struct shm_conn *conn)
{
	int count = 0;

	if (conn->over)
		return await_end(conn);
	shm_conn_rouse(conn);
	/* The limit keeps a peer that sends faster than this process reads from delaying
	 * other peers. */
	while (count < 16) {
		struct shm_note note;
		struct tern_ipc_handle handle;
		TERN_CLEANUP(tern_cleanup_close) int fd = -1;
		int status;

		if (conn->state == SHM_PARTING || conn->state == SHM_CLOSED)
			break;
		status = shm_note_receive(conn->fd, &note, &handle, &fd);
		if (status == -EAGAIN)
			break;
		count++;
		if (status == -EPROTO)
			shm_conn_blame(conn, "a packet on its socket is malformed");
		else if (status == -EILSEQ && conn->state == SHM_ACCEPTING)
			turn_away(conn, status);
		else if (status == -EMFILE || status == -EILSEQ)
			shm_conn_fail(conn, status);
		else if (status <= 0)
			on_end(conn);
		else if (conn->state == SHM_ACCEPTING)
			on_hello(conn, &note, fd);
		else if (conn->state == SHM_GREETING)
			on_welcome(conn, &note, fd);
		else
			on_note(conn, &note, &handle, fd);
		/* Usually no other note follows a WAKE; if one does, epoll reports it
		 * again. */
		if (status > 0 && note.type == SHM_WAKE)
			break;
	}
	return count;
}

void shm_conn_part(struct shm_conn *conn, bool bye)
{
	struct shm_port *port = shm_conn_port(conn);

	if (conn->state != SHM_UP)
		return;
	shm_ring_end(&conn->ring);
	enter(conn, SHM_PARTING);
	conn->bye = bye;
	/* Remove the socket from epoll: level-triggered epoll would report its end of
	 * file forever. */
	epoll_ctl(port->epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);
	if (!bye && conn->pidfd >= 0)
		conn->due_ns = tern_now_ns(port->base.env) + EXIT_NS;
}

void shm_conn_parted(struct shm_conn *conn)
{
	if (shm_process_has_exited(conn))
		shm_conn_fail(conn, -EPIPE);
	else if (conn->bye || !conn->due_ns)
		shm_conn_fail(conn, -ECONNRESET);
}

int shm_conn_due(struct shm_conn *conn, uint64_t now_ns)
{
	if (!conn->due_ns || now_ns < conn->due_ns)
		return 0;
	conn->due_ns = 0;
	if (conn->state == SHM_DIALLING)
		dial(conn);
	else if (conn->state == SHM_ACCEPTING)
		refuse(conn, -ETIMEDOUT);
	return 1;
}

void shm_conn_close(struct tern_conn *base, bool flush)
{
	struct shm_conn *conn = shm_conn_of(base);

	/* Sent messages are in memory that the peer has mapped, so the peer can read them
	 * even after this process has ended. So there is nothing to flush. */
	(void)flush;
	if (conn->state == SHM_UP)
		shm_conn_fail(conn, 0);
	else if (conn->state == SHM_PARTING)
		shm_conn_fail(conn, shm_process_has_exited(conn) ? -EPIPE : -ECONNRESET);
	else
		shm_conn_fail(conn, -ECANCELED);
}

void shm_conn_wake(struct shm_conn *conn)
{
	const struct shm_note note = {
		.magic = SHM_NOTE_MAGIC,
		.version = SHM_NOTE_VERSION,
		.type = SHM_WAKE,
	};

	/* -EAGAIN can be ignored: the peer has unread packets, and does not sleep before
	 * it has read them. Other errors mean the end of the socket, which epoll
	 * reports. */
	(void)shm_note_send(conn->fd, &note, -1);
}

int shm_conn_process(struct shm_conn *conn)
{
	struct shm_port *port = shm_conn_port(conn);

	epoll_ctl(port->epoll_fd, EPOLL_CTL_DEL, conn->pidfd, NULL);
	if (conn->over)
		now_unread(conn);
	else if (conn->state == SHM_UP)
		shm_conn_part(conn, false);
	else if (conn->state != SHM_PARTING)
		shm_conn_fail(conn, -ECONNRESET);
	return 1;
}

static void end_ops(struct shm_conn *conn)
{
	const struct shm_note bye = {
		.magic = SHM_NOTE_MAGIC,
		.version = SHM_NOTE_VERSION,
		.type = SHM_BYE,
	};

	if (conn->own) {
		/* Set `gone` before the ops are completed and `closed` is called: after
		 * that the caller may change the memory, and the peer must know. */
		shm_say_gone(conn);
		(void)shm_note_send(conn->fd, &bye, -1);
	}
	shm_op_fail_all(conn, conn->status ? conn->status : -ECANCELED);
	conn->over = true;
}

/* True: shm_conn_reap() must be called again, because the peer is just writing to memory of
 * this process. Call this after shm_say_gone(). A conn that the layer above does not know
 * has exposed nothing. */
static bool awaits_writer(struct shm_conn *conn)
{
	uint64_t now_ns;

	if (!conn->known || !conn->peer ||
		!atomic_load_explicit(&conn->peer->writing, memory_order_acquire) ||
		shm_process_has_exited(conn) || shm_process_has_hung_up(conn))
		return false;
	now_ns = tern_now_ns(conn->base.port->env);
	if (!conn->written_ns)
		conn->written_ns = now_ns;
	if (!conn->told_written && now_ns - conn->written_ns > TERN_NS_PER_S) {
		conn->told_written = true;
		tern_log(conn->base.port->env, TERN_LOG_WARN,
			"%s: the connection has ended, but the peer is in the middle of "
			"a write to memory of this process, as if it was stopped there; "
			"nothing of this peer can end before that call has",
			conn->base.name);
	}
	tern_list_push(&shm_conn_port(conn)->written, &conn->node);
	return true;
}

static bool is_read(const struct shm_conn *conn)
{
	return conn->peer && !shm_process_has_exited(conn) &&
	       atomic_load_explicit(&conn->peer->reading, memory_order_acquire);
}

/* True: shm_conn_reap() must wait until the peer closes its socket or its process ends,
 * because the peer still reads memory of this process in place. */
static bool awaits_reader(struct shm_conn *conn)
{
	struct shm_port *port = shm_conn_port(conn);

	if (conn->unread || !is_read(conn))
		return false;
	/* Remove the socket from epoll before adding it: it may or may not be there now,
	 * since shm_conn_part() removes it. */
	epoll_ctl(port->epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);
	if (shm_watch_add(port, conn->fd, &conn->socket_watch, SHM_WATCH_SOCKET))
		tern_log(port->base.env, TERN_LOG_ERROR,
			"%s: epoll cannot watch its socket, so this process cannot "
			"notice when the peer stops reading memory in place, which "
			"stays unused at least until the peer's process has ended",
			conn->base.name);
	tern_log(port->base.env, TERN_LOG_INFO,
		"%s: the connection has ended, but the peer still reads memory of this "
		"process in place; it cannot be reused until the peer has finished",
		conn->base.name);
	tern_list_push(&port->read, &conn->node);
	if (conn->known && port->base.handler->ended)
		port->base.handler->ended(
			port->base.handler_arg, &conn->base, conn->status);
	return true;
}

bool shm_conn_reap(struct shm_conn *conn)
{
	struct shm_port *port = shm_conn_port(conn);

	tern_list_remove(&conn->node);
	if (!conn->over)
		end_ops(conn);
	if (awaits_writer(conn) || (conn->known && awaits_reader(conn)))
		return false;
	if (conn->known)
		port->base.handler->closed(
			port->base.handler_arg, &conn->base, conn->status);
	conn_free(conn);
	return true;
}
