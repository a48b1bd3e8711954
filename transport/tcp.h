/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the tcp fabric. Who does what:
 *
 *     tcp.c         fabric, listening, connecting, ending; the vtable
 *     tcp_port.c    poll and arm: whose turn it is
 *     tcp_socket.c  how sockets are made
 *     tcp_tx.c      what leaves a conn
 *     tcp_rx.c      what arrives at one
 *     tcp_alive.c   whether the kernel at its other end answers
 *     tcp_epoll.c, tcp_uring.c   how the kernel says which sockets are ready
 *
 * Data always moves with plain non-blocking socket calls: spinning, they are what
 * measures fastest. The engine is only asked which of many sockets are ready, and for a
 * descriptor to sleep on.
 */
#ifndef TERN_TRANSPORT_TCP_H
#define TERN_TRANSPORT_TCP_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/list.h"
#include "transport/addr.h"
#include "transport/fabric.h"
#include "transport/window.h"
#include "transport/mem.h"
#include "transport/tcp_wire.h"

/* Bytes read at once when it is not known what will come, and when it is likely that a
 * put's data comes, which would have to be copied out of the stage. */
#define TCP_STAGE_BYTES     (64u << 10)
#define TCP_STAGE_PUT_BYTES 4096u
/* One system call moves at most this. A turn of one conn ends with the call that reaches
 * it: what has come for another, and the answer to a message, wait for the turn's end.
 * With so few conns that they are one peer's, nobody else waits, and it may be more. And
 * calls are shorter while small tensors move over another conn: for some polls behind the
 * second of two messages with data that are close together. (A single one may answer a
 * large tensor.) */
#define TCP_CALL_BYTES       (1u << 20)
#define TCP_LONE_CALL_BYTES  (4u << 20)
#define TCP_SHORT_CALL_BYTES (256u << 10)
#define TCP_SHORT_POLLS      16u
#define TCP_TALK_POLLS       64u
/* Up to this many conns are simply read, one after the other, without asking the engine:
 * each that has nothing adds about 0.5 us to a round trip, asking io_uring 1 us (epoll
 * the same 0.5 us). */
#define TCP_DIRECT_MAX 2
/* In that mode the engine is asked for new conns and the like every so many polls. */
#define TCP_ASK_POLLS 32
/* How long a closed conn may take to get rid of what it has. */
#define TCP_LINGER_NS TERN_NS_PER_S
/* Largest message of a peer that is not known yet (conn->owner not set). */
#define TCP_STRANGER_BYTES 4096u

struct tcp_port;
struct tcp_engine_ops;

/* ---- sockets: tcp_socket.c ---- */

/* Non-blocking, close-on-exec, without delay, with the fabric's congestion control. The
 * descriptor or a negative errno. `congestion` may be empty, `unreachable_ns` 0
 * (fabric.h). */
int tcp_socket_open(int family, const char *congestion, uint64_t unreachable_ns);
void tcp_socket_options(int fd, const char *congestion, uint64_t unreachable_ns);

/* ---- the engine seam: tcp_epoll.c, tcp_uring.c ---- */

enum tcp_watch_kind {
	TCP_WATCH_CONN,
	TCP_WATCH_LSN,
	TCP_WATCH_TIMER,
};

/* A descriptor in whose readiness we take an interest. Events are EPOLLIN and so on,
 * which have the values of POLLIN and so on. */
struct tcp_watch {
	enum tcp_watch_kind kind;
	int fd;
	uint32_t want;             /* events we wait for */
	uint32_t set;              /* events that the kernel was told to wait for */
	uint32_t got;              /* events that happened and were not handled */
	struct tern_list ready;    /* in port->ready while got != 0 */
	struct tern_list unsynced; /* in port->unsynced while want != set */
	uint32_t slot;             /* io_uring: slot + 1 of its name; 0: none */
};

struct tcp_engine_ops {
	const char *name;
	bool asked_for_free; /* after a sleep, collect makes no system call */
	/* 0, or why the kernel refuses: -ENOSYS, -EPERM, -ENOMEM, -EMFILE. NULL: it never
	 * does. */
	int (*probe)(void);
	int (*init)(struct tcp_port *port);
	void (*fini)(struct tcp_port *port);
	/* Tells the kernel watch->want; sets watch->set. -EAGAIN: not just now;
	 * -ENOMEM, -ENOSPC: never. */
	int (*sync)(struct tcp_port *port, struct tcp_watch *watch);
	/* Before its descriptor is closed. Nothing is reported for it afterwards. */
	void (*remove)(struct tcp_port *port, struct tcp_watch *watch);
	/* Reports what is ready with tcp_watch_got(), without waiting. */
	void (*collect)(struct tcp_port *port);
	/* After 0 the descriptor is readable when there is something to collect, now too.
	 */
	int (*arm)(struct tcp_port *port);
	int (*fd)(struct tcp_port *port);
};

extern const struct tcp_engine_ops tcp_epoll_engine;
extern const struct tcp_engine_ops tcp_uring_engine; /* with TERN_HAVE_URING */

void tcp_watch_init(struct tcp_watch *watch, enum tcp_watch_kind kind, int fd);
void tcp_watch_want(struct tcp_port *port, struct tcp_watch *watch, uint32_t want);
/* What the kernel is told has changed without us (a one-shot wait fired). */
void tcp_watch_spent(struct tcp_port *port, struct tcp_watch *watch);
void tcp_watch_got(struct tcp_port *port, struct tcp_watch *watch, uint32_t events);
void tcp_watch_remove(struct tcp_port *port, struct tcp_watch *watch);

/* ---- objects ---- */

struct tcp_fabric {
	struct tern_fabric base;
	const struct tcp_engine_ops *engine;
	char congestion[16]; /* "": the system's default */
};

struct tcp_port {
	struct tern_port base;
	const struct tcp_engine_ops *engine;
	int epoll_fd;            /* epoll engine */
	struct tcp_uring *uring; /* io_uring engine */

	struct tern_list conns; /* all, until `closed` was called */
	uint32_t conn_count, lsn_count, connecting_count;

	struct tern_list ready;    /* watches with events to handle */
	struct tern_list unsynced; /* watches the kernel must be told about */
	struct tern_list dirty; /* conns with something to send, and room in the socket */
	struct tern_list blocked;  /* conns whose socket is full */
	struct tern_list writable; /* conns that have room again after a -EAGAIN */
	struct tern_list
		lingering; /* conns that are closing, in the order of their deadlines */
	struct tern_list ended;                 /* conns whose `closed` must be called */
	struct tern_op *done_first, *done_last; /* whose done() must be called */

	struct tcp_watch
		timer; /* wakes a sleeper for the first deadline of `lingering` */
	struct tern_windows windows;
	char *stage; /* what arrives passes through here, unless it is a put's bulk */
	/* What is left in the stage because a poll had done enough: it goes first in the
	 * next. */
	struct {
		struct tcp_conn *conn; /* NULL: nothing is left */
		const char *data;
		size_t bytes;
	} rest;
	uint64_t unreachable_ns; /* fabric.h */
	int spare_fd; /* given up to accept and refuse a peer when descriptors are out */
	bool armed;   /* the caller may be coming from sleep: no poll since */
	uint32_t poll_count;
	const struct tcp_conn *talker; /* the last one with data in a message; compared
					  only */
	uint32_t polls, talked_at;     /* polls so far; of its message */
	uint32_t full_at;              /* the last in which a socket was full */
	uint32_t short_polls;          /* calls are short for so many more */
};

struct tcp_lsn {
	struct tern_lsn base;
	struct tcp_watch watch;
	char address[80];
};

/*
 *     CONNECTING -> UP -> FLUSHING -> LINGERING -> ENDED
 *
 * UP straight away for accepted ones. FLUSHING: close was asked for, what was taken is
 * still being sent. LINGERING: all is sent and a FIN behind it; waiting for the peer's.
 * Any state goes to ENDED on failure: the socket is closed and memory is out of reach
 * then, and only the callbacks are still to be called.
 */
enum tcp_state {
	TCP_CONNECTING,
	TCP_UP,
	TCP_FLUSHING,
	TCP_LINGERING,
	TCP_ENDED,
};

/* What tern_op.priv holds. May alias: it lies in an array of uint64_t. */
struct tcp_put {
	struct tern_op *next;
	const char *data; /* what is left of it */
	uint64_t bytes;
	uint64_t at; /* position in the tx stream of headers and messages it is sent at */
	int status;
} __attribute__((may_alias));

static inline struct tcp_put *tcp_put_of(struct tern_op *op)
{
	_Static_assert(
		sizeof(struct tcp_put) <= sizeof(op->priv), "tern_op is too small");
	return (struct tcp_put *)op->priv;
}

/* Headers and messages wait in a ring; puts wait in a list, each knowing the position in
 * the ring's stream at which its data belongs. */
struct tcp_tx {
	char *ring;
	uint32_t ring_bytes; /* a power of two */
	uint64_t head, tail; /* positions in the stream of what is in the ring */
	struct tern_op *first, *last;
	bool starved; /* a -EAGAIN was returned */
	bool dead; /* the socket takes no more; what arrived before is still to be read */
};

enum tcp_rx_state {
	TCP_RX_HEADER,
	TCP_RX_MESSAGE,
	TCP_RX_PUT,
};

struct tcp_rx {
	enum tcp_rx_state state;
	uint8_t header[TCP_FRAME_BYTES];
	uint32_t have;          /* bytes of the header or of the message that are here */
	struct tcp_frame frame; /* MESSAGE, PUT */
	uint32_t crc;           /* of the header */
	char *body;             /* a message that came in pieces; 64-byte aligned */
	char *target;           /* PUT: where the next byte goes; NULL: nowhere */
	uint64_t left;          /* PUT: bytes still to come */
	struct tern_list landing; /* in the window's list while target != NULL */
	uint8_t put_likely;       /* the last frames were puts, or one among them */
	bool dry; /* when it was last read, nothing was left in the socket or the stage,
		     and no frame incomplete */
	bool answered; /* since then something was sent: tcp_port.c */
	bool eof;
};

/* What the kernel at the other end has been asked and has not answered: tcp_alive.c. */
struct tcp_question {
	uint64_t asked_ns;      /* the first time; 0: nothing waits for an answer */
	uint64_t last_ns;       /* the last time */
	uint64_t unanswered_ns; /* from the first to the last that is overdue */
	uint32_t tries;         /* as the kernel counts them */
	bool keeps_alive;       /* it also asks when there is nothing to send */
};

/* An idle conn costs this (below 1 KiB), and of tx.ring (64 KiB, or 4 messages) and
 * rx.body (one message) the pages that were ever touched. Nothing of it grows. */
struct tcp_conn {
	struct tern_conn base;
	struct tcp_watch watch;
	enum tcp_state state;
	int status;                 /* ENDED */
	struct tern_list link;      /* port->conns */
	struct tern_list send_link; /* port->dirty or port->blocked */
	struct tern_list writable_link;
	struct tern_list end_link; /* port->lingering or port->ended */
	uint64_t deadline_ns;      /* FLUSHING, LINGERING */
	struct tcp_tx tx;
	struct tcp_rx rx;
	struct tern_addrs *targets; /* CONNECTING */
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

/* A message with data has come or is to go. */
static inline void tcp_talks(struct tcp_conn *conn)
{
	struct tcp_port *port = tcp_conn_port(conn);

	if (port->talker == conn && port->polls - port->talked_at <= TCP_TALK_POLLS)
		port->short_polls = TCP_SHORT_POLLS;
	port->talker = conn;
	port->talked_at = port->polls;
}

/* What its calls may move now. */
static inline size_t tcp_call_bytes(struct tcp_conn *conn)
{
	const struct tcp_port *port = tcp_conn_port(conn);

	if (port->short_polls && port->talker != conn)
		return TCP_SHORT_CALL_BYTES;
	return port->conn_count <= TCP_DIRECT_MAX ? TCP_LONE_CALL_BYTES : TCP_CALL_BYTES;
}

/* ---- tcp.c ---- */

/* Goes to ENDED: closes the socket and lets go of all memory. The callbacks follow. */
void tcp_conn_end(struct tcp_conn *conn, int status);
/* What a failed call on its socket says of the conn. */
static inline int tcp_status_of(int status)
{
	return status == -ETIMEDOUT || status == -EFAULT ? status : -ECONNRESET;
}
/* After `closed` was called. */
void tcp_conn_free(struct tcp_conn *conn);
/* FLUSHING, and nothing left to send: sends the FIN. */
void tcp_conn_flushed(struct tcp_conn *conn);
/* CONNECTING, and the socket has news. How many events. */
int tcp_conn_connected(struct tcp_conn *conn);
/* A peer that connected. How many events. */
int tcp_lsn_accept(struct tcp_lsn *lsn);

/* ---- tcp_alive.c ---- */

uint64_t tcp_unanswered_ns(struct tern_conn *conn);
/* Nothing is sent any more once the socket is closed. */
void tcp_alive_abort(struct tcp_conn *conn);

/* ---- tcp_port.c ---- */

int tcp_port_poll(struct tern_port *port, int budget);
int tcp_port_arm(struct tern_port *port);
/* done() will be called. */
void tcp_port_done(struct tcp_port *port, struct tern_op *op, int status);

/* ---- tcp_tx.c ---- */

int tcp_tx_init(struct tcp_tx *tx, uint32_t message_bytes);
void tcp_tx_fini(struct tcp_tx *tx);
int tcp_conn_send(struct tern_conn *conn, const void *head, size_t head_bytes,
	const void *payload, size_t payload_bytes);
int tcp_conn_put(struct tern_conn *conn, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset);
bool tcp_tx_empty(const struct tcp_tx *tx);
/* One turn: sends until the socket is full or others should have theirs. How many events.
 */
int tcp_tx_turn(struct tcp_conn *conn);
/* The socket may have room again. */
void tcp_tx_unblock(struct tcp_conn *conn);
/* Ends every put that waits. */
void tcp_tx_abort(struct tcp_conn *conn, int status);

/* ---- tcp_rx.c ---- */

int tcp_rx_init(struct tcp_rx *rx, uint32_t message_bytes);
void tcp_rx_fini(struct tcp_rx *rx);
/* One turn: reads until the socket is empty, others should have theirs, or about `budget`
 * events have happened. How many did. Not while the port has a rest. */
int tcp_rx_turn(struct tcp_conn *conn, int budget);
/* Goes on with the port's rest, if it has one. */
int tcp_rx_rest(struct tcp_port *port, int budget);
/* What is left of a put under way goes nowhere. */
void tcp_rx_discard(struct tcp_conn *conn);

#endif
