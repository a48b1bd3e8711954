/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of the tcp fabric. Its files:
 *
 *     tcp.c         fabric, listening, connecting, ending; the vtable
 *     port.c        poll and arm: the order in which conns send and receive
 *     socket.c      how sockets are made
 *     tx.c          sending on a conn
 *     rx.c          receiving on a conn
 *     alive.c       detects that the peer's host no longer answers
 *     epoll.c, uring.c   the engines: how the kernel reports which sockets are ready
 *
 * Data always moves by plain non-blocking socket calls, which were measured to be the
 * fastest for a spinning thread. The engine (epoll or io_uring) only reports which of
 * many sockets are ready, and provides a descriptor to sleep on.
 */
#ifndef TERN_TRANSPORT_TCP_TCP_H
#define TERN_TRANSPORT_TCP_TCP_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/list.h"
#include "transport/addr.h"
#include "transport/fabric.h"
#include "transport/exposure.h"
#include "transport/memory/mem.h"
#include "transport/tcp/wire.h"

/* Number of bytes that one call reads into the stage (the port's receive buffer).
 * TCP_STAGE_PUT_BYTES applies when the data of a put is likely to follow, since that data
 * would have to be copied out of the stage. */
#define TCP_STAGE_BYTES     (64u << 10)
#define TCP_STAGE_PUT_BYTES 4096u
/*
 * One system call moves about TCP_CALL_BYTES at most, and the turn of a conn ends with
 * the call that reaches this limit. Other conns, and answers to messages, must wait until
 * the turn ends. With at most TCP_DIRECT_MAX conns, at most one other conn waits, so a
 * call moves up to TCP_LONE_CALL_BYTES.
 *
 * While one conn carries small tensors, calls on the other conns are limited to
 * TCP_SHORT_CALL_BYTES, so that the small tensors wait less. This limit begins with two
 * messages with data on one conn within TCP_TALK_POLLS polls, and lasts TCP_SHORT_POLLS
 * polls. (A single such message may only be the answer to a large tensor.)
 */
#define TCP_CALL_BYTES       (1u << 20)
#define TCP_LONE_CALL_BYTES  (4u << 20)
#define TCP_SHORT_CALL_BYTES (256u << 10)
#define TCP_SHORT_POLLS      16u
#define TCP_TALK_POLLS       64u
/* With at most this many conns, poll() reads each conn directly, without asking the
 * engine which sockets are ready. Each conn without data adds about 0.5 us to a round
 * trip; asking adds 1 us with io_uring and 0.5 us with epoll. */
#define TCP_DIRECT_MAX 2
/* With at most TCP_DIRECT_MAX conns, the engine is asked for other events, such as new
 * connections, only once in this many polls, unless a conn is connecting or the thread
 * has slept. */
#define TCP_ASK_POLLS 32
/* Time limit for a closed conn to send the data that it has accepted before, and to get
 * the peer's FIN. */
#define TCP_LINGER_NS TERN_NS_PER_S
/* Largest message of a peer that has not finished its handshake (conn->owner not set). */
#define TCP_STRANGER_BYTES 4096u

struct tcp_port;
struct tcp_engine_ops;

/* ---- sockets: socket.c ---- */

/* Opens a socket: non-blocking, close-on-exec, TCP_NODELAY, with this congestion control
 * ("": the system's default). Returns the descriptor or a negative errno.
 * `unreachable_ns` (fabric.h) limits the interval of retransmissions; 0: no limit. */
int tcp_socket_open(int family, const char *congestion, uint64_t unreachable_ns);
void tcp_socket_options(int fd, const char *congestion, uint64_t unreachable_ns);

/* ---- interface of the engines: epoll.c, uring.c ---- */

enum tcp_watch_kind {
	TCP_WATCH_CONN,
	TCP_WATCH_LSN,
	TCP_WATCH_TIMER,
};

/* A descriptor whose readiness the engine watches. Event bits are EPOLLIN and so on,
 * which equal POLLIN and so on. */
struct tcp_watch {
	enum tcp_watch_kind kind;
	int fd;
	uint32_t want; /* events that the port wants to be notified of */
	uint32_t set;  /* events that the kernel was asked to report */
	/* Events that have occurred and were not handled yet. */
	uint32_t got;
	struct tern_list ready;    /* in port->ready while got != 0 */
	struct tern_list unsynced; /* in port->unsynced while want != set */
	/* io_uring engine: index of its struct uring_name + 1; 0: none */
	uint32_t entry;
};

struct tcp_engine_ops {
	const char *name;
	/* collect() needs no system call after a sleep (it reads a ring in shared memory), so
	 * the first poll may call it before it reads any socket. */
	bool collect_is_free;
	/* 0, or the error with which the kernel refuses this engine: -ENOSYS, -EPERM,
	 * -ENOMEM, -EMFILE. NULL: the engine always works. */
	int (*probe)(void);
	int (*init)(struct tcp_port *port);
	void (*fini)(struct tcp_port *port);
	/* Asks the kernel to report the events watch->want, and sets watch->set. -EAGAIN:
	 * try again later; -ENOMEM, -ENOSPC: the kernel cannot watch this descriptor. */
	int (*sync)(struct tcp_port *port, struct tcp_watch *watch);
	/* Stops watching. Must be called before the descriptor is closed. No event is
	 * reported for the watch afterwards. */
	void (*remove)(struct tcp_port *port, struct tcp_watch *watch);
	/* Calls tcp_watch_got() for ready descriptors, at most 64 in one call. Does not
	 * wait. */
	void (*collect)(struct tcp_port *port);
	/* Prepares for sleep. 0: the descriptor of fd() is readable as soon as collect()
	 * would report something. -EAGAIN: do not sleep, poll again. */
	int (*arm)(struct tcp_port *port);
	int (*fd)(struct tcp_port *port);
};

extern const struct tcp_engine_ops tcp_epoll_engine;
extern const struct tcp_engine_ops tcp_uring_engine; /* if built with TERN_HAVE_URING */

void tcp_watch_init(struct tcp_watch *watch, enum tcp_watch_kind kind, int fd);
void tcp_watch_want(struct tcp_port *port, struct tcp_watch *watch, uint32_t want);
/* Called by an engine when the kernel no longer watches the descriptor, because a
 * one-shot poll has completed. */
void tcp_watch_spent(struct tcp_port *port, struct tcp_watch *watch);
void tcp_watch_got(struct tcp_port *port, struct tcp_watch *watch, uint32_t events);
void tcp_watch_remove(struct tcp_port *port, struct tcp_watch *watch);

/* ---- objects ---- */

struct tcp_fabric {
	struct tern_fabric base;
	const struct tcp_engine_ops *engine;
	/* Name of the TCP congestion control; "": the system's default. */
	char congestion[16];
};

struct tcp_port {
	struct tern_port base;
	const struct tcp_engine_ops *engine;
	int epoll_fd;            /* used by the epoll engine */
	struct tcp_uring *uring; /* used by the io_uring engine */

	struct tern_list conns; /* all conns, until their `closed` handler was called */
	uint32_t conn_count, lsn_count, connecting_count;

	struct tern_list ready; /* watches with events to handle */
	/* Watches with want != set, about which the kernel must be told. */
	struct tern_list unsynced;
	struct tern_list dirty; /* conns with data to send whose socket may have space */
	struct tern_list blocked; /* conns with data to send whose socket is full */
	/* Conns whose send() or put() returned -EAGAIN, and which have space again. */
	struct tern_list writable;
	struct tern_list lingering; /* closing conns, in the order of their deadlines */
	struct tern_list ended;     /* conns whose `closed` handler must be called */
	struct tern_op *done_first, *done_last; /* ops whose done() must be called */

	/* Wakes a sleeping thread at the first deadline of `lingering`. */
	struct tcp_watch timer;
	struct tern_exposures exposures;
	/* Receive buffer for everything except the bulk of puts. */
	char *stage;
	/* Bytes left in the stage because a poll had reached its budget of events. The
	 * next poll handles these bytes first. */
	struct {
		struct tcp_conn *conn; /* NULL: no bytes are left */
		const char *data;
		size_t bytes;
	} rest;
	uint64_t unreachable_ns; /* as in struct tern_port_opts */
	/* Spare descriptor. If no further descriptor can be opened, it is closed to
	 * accept a peer and refuse it. */
	int spare_fd;
	/* arm() was called and no poll() since, so the caller may have slept */
	bool armed;
	uint32_t poll_count;
	/* Conn of the last message that had data (a small tensor). Compared, never
	 * dereferenced. */
	const struct tcp_conn *talker;
	/* polls: number of polls so far; talked_at: its value at the last message of
	 * `talker` */
	uint32_t polls, talked_at;
	uint32_t full_at; /* value of `polls` when a socket was last found full */
	/* Number of polls for which calls on conns other than `talker` are still limited
	 * to TCP_SHORT_CALL_BYTES. */
	uint32_t short_polls;
};

struct tcp_lsn {
	struct tern_lsn base;
	struct tcp_watch watch;
	char address[80];
};

/*
 * States of a connection:
 *
 *     CONNECTING -> UP -> FLUSHING -> LINGERING -> ENDED
 *
 * An accepted conn starts in UP. FLUSHING: close was asked for, and accepted data is
 * still being sent. LINGERING: all data and a FIN were sent; the conn waits for the
 * peer's FIN. A failure, or a close without `flush`, leads from any state to ENDED: the
 * socket is closed, memory is no longer accessed, and only the callbacks are still to be
 * called.
 */
enum tcp_state {
	TCP_CONNECTING,
	TCP_UP,
	TCP_FLUSHING,
	TCP_LINGERING,
	TCP_ENDED,
};

/* Contents of tern_op.priv for a put. may_alias: priv is an array of uint64_t. */
struct tcp_put {
	struct tern_op *next;
	const char *data; /* bytes that were not sent yet */
	uint64_t bytes;
	/* Position in the ring's byte stream: the data is sent before the ring's byte at
	 * this position. */
	uint64_t at;
	int status;
} __attribute__((may_alias));

static inline struct tcp_put *tcp_put_of(struct tern_op *op)
{
	_Static_assert(
		sizeof(struct tcp_put) <= sizeof(op->priv), "tern_op is too small");
	return (struct tcp_put *)op->priv;
}

/* Send queue of a conn. Headers and messages are copied into a ring. Puts wait in a list:
 * each has the position in the ring's byte stream at which its data must be sent. */
struct tcp_tx {
	char *ring;
	uint32_t ring_bytes; /* a power of two */
	/* Positions in the byte stream of the first byte in the ring, and of the end. */
	uint64_t head, tail;
	struct tern_op *first, *last;
	/* send() or put() returned -EAGAIN, so `writable` must be called later */
	bool starved;
	/* The socket takes no more data, but received data must still be read. */
	bool dead;
};

enum tcp_rx_state {
	TCP_RX_HEADER,
	TCP_RX_MESSAGE,
	TCP_RX_PUT,
};

struct tcp_rx {
	enum tcp_rx_state state;
	uint8_t header[TCP_FRAME_BYTES];
	/* Number of bytes of the header or message that have arrived. */
	uint32_t have;
	struct tcp_frame frame; /* the header, while the state is MESSAGE or PUT */
	uint32_t crc;           /* CRC computed over the received header */
	/* Buffer for a message that arrives in several pieces; 64-byte aligned. */
	char *body;
	/* If PUT: target of the next byte; NULL: the put's bytes are dropped. */
	char *target;
	uint64_t left; /* if PUT: number of bytes still to come */
	/* While target != NULL: in the list `landing` of the put's exposure (exposure.h), so
	 * that withdraw() can drop the rest of the put. */
	struct tern_list landing;
	uint8_t put_likely; /* greater than 0 if one of the last frames was a put */
	/* The last read emptied the socket and the stage, and ended at the end of a
	 * frame. */
	bool dry;
	bool answered; /* something was sent after `dry` was set: see port.c */
	bool eof;
};

/* State of probing whether the kernel of the peer's host answers: alive.c. */
struct tcp_question {
	/* Time of the first unanswered probe; 0: every probe was answered. */
	uint64_t asked_ns;
	uint64_t last_ns; /* time of the last retransmission of that probe */
	/* Time from the first probe to the last retransmission that is overdue. */
	uint64_t unanswered_ns;
	uint32_t tries; /* number of retransmissions, as counted by the kernel */
	/* TCP keep-alives are on: they probe while no data is in flight */
	bool keeps_alive;
};

/* A connection. Memory of an idle conn: this structure (below 1 KiB), and those pages of
 * tx.ring (at least 64 KiB and 4 messages) and rx.body (one message) that were ever used.
 * None of these grows. */
struct tcp_conn {
	struct tern_conn base;
	struct tcp_watch watch;
	enum tcp_state state;
	/* If ENDED: status to report to the `closed` handler. */
	int status;
	struct tern_list node;      /* in port->conns */
	struct tern_list send_link; /* in port->dirty or port->blocked */
	struct tern_list writable_link;
	struct tern_list end_link; /* in port->lingering or port->ended */
	uint64_t deadline_ns;      /* deadline of the states FLUSHING and LINGERING */
	struct tcp_tx tx;
	struct tcp_rx rx;
	struct tern_addrs *targets; /* if CONNECTING: addresses left to try */
	struct tcp_question question;
};

static inline struct tcp_port *tcp_port_of(struct tern_port *port)
{
	return tern_container_of(port, struct tcp_port, base);
}

static inline struct tcp_conn *tcp_conn_of(struct tern_conn *conn)
{
	return tern_container_of(conn, struct tcp_conn, base);
}

static inline struct tcp_port *tcp_conn_port(struct tcp_conn *conn)
{
	return tcp_port_of(conn->base.port);
}

/* Must be called when a message with data is received or queued on this conn. After two
 * such messages within TCP_TALK_POLLS polls, system calls on the other conns move fewer
 * bytes for some polls (tcp_call_bytes()), so that the next message does not wait
 * long. */
static inline void tcp_talks(struct tcp_conn *conn)
{
	struct tcp_port *port = tcp_conn_port(conn);

	if (port->talker == conn && port->polls - port->talked_at <= TCP_TALK_POLLS)
		port->short_polls = TCP_SHORT_POLLS;
	port->talker = conn;
	port->talked_at = port->polls;
}

/* Largest number of bytes, about, that one system call may now send or receive on this
 * conn. */
static inline size_t tcp_call_bytes(struct tcp_conn *conn)
{
	const struct tcp_port *port = tcp_conn_port(conn);

	if (port->short_polls && port->talker != conn)
		return TCP_SHORT_CALL_BYTES;
	return port->conn_count <= TCP_DIRECT_MAX ? TCP_LONE_CALL_BYTES : TCP_CALL_BYTES;
}

/* ---- tcp.c ---- */

/* Goes to ENDED: closes the socket and stops all use of memory. The callbacks are called
 * in the next poll. */
void tcp_conn_end(struct tcp_conn *conn, int status);
/* Translates the error of a socket call into the status with which the conn ends. */
static inline int tcp_status_of(int status)
{
	return status == -ETIMEDOUT || status == -EFAULT ? status : -ECONNRESET;
}
/* Frees the conn, after `closed` was called. */
void tcp_conn_free(struct tcp_conn *conn);
/* Called for a conn in FLUSHING when all data was sent: sends the FIN. */
void tcp_conn_flushed(struct tcp_conn *conn);
/* Called for a conn in CONNECTING when its socket has an event. Returns the number of
 * events. */
int tcp_conn_connected(struct tcp_conn *conn);
/* Accepts one peer. Returns the number of events. */
int tcp_lsn_accept(struct tcp_lsn *lsn);

/* ---- alive.c ---- */

uint64_t tcp_unanswered_ns(struct tern_conn *conn);
/* Makes the following close() reset the connection, so that the kernel sends no more data
 * on it. */
void tcp_alive_abort(struct tcp_conn *conn);

/* ---- port.c ---- */

int tcp_port_poll(struct tern_port *port, int budget);
int tcp_port_arm(struct tern_port *port);
/* Queues the op, so that the next poll calls op->done(). */
void tcp_port_done(struct tcp_port *port, struct tern_op *op, int status);

/* ---- tx.c ---- */

int tcp_tx_init(struct tcp_tx *tx, uint32_t message_bytes);
void tcp_tx_fini(struct tcp_tx *tx);
int tcp_conn_send(struct tern_conn *conn, const void *head, size_t head_bytes,
	const void *payload, size_t payload_bytes);
int tcp_conn_put(struct tern_conn *conn, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset);
bool tcp_tx_empty(const struct tcp_tx *tx);
/* Sends until the socket is full or the limit of one turn is reached. Returns the number
 * of events. */
int tcp_tx_turn(struct tcp_conn *conn);
/* Lets a conn whose socket was full send again in the next transmit_all(). Called when
 * the socket may have space. */
void tcp_tx_unblock(struct tcp_conn *conn);
/* Completes every waiting put with `status`. */
void tcp_tx_abort(struct tcp_conn *conn, int status);

/* ---- rx.c ---- */

int tcp_rx_init(struct tcp_rx *rx, uint32_t message_bytes);
void tcp_rx_fini(struct tcp_rx *rx);
/* Receives until the socket is empty, the limit of one turn is reached, or about `budget`
 * events have occurred. Returns the number of events. Must not be called while bytes are
 * left in the port's stage (receive buffer). */
int tcp_rx_turn(struct tcp_conn *conn, int budget);
/* Handles the bytes that are left in the port's stage (receive buffer), if any. */
int tcp_rx_rest(struct tcp_port *port, int budget);
/* Makes the conn drop the remaining bytes of the put that it is receiving. */
void tcp_rx_discard(struct tcp_conn *conn);

#endif
