/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the tcp fabric. Its files:
 *
 *     tcp.c         fabric, listening, connecting, ending; the vtable
 *     port.c        poll and arm: which conn has its turn
 *     socket.c      how sockets are made
 *     tx.c          sending on a conn
 *     rx.c          receiving on a conn
 *     alive.c       whether the kernel at the remote end answers
 *     epoll.c, uring.c   the engines: how the kernel reports which sockets are ready
 *
 * Data always moves by plain non-blocking socket calls, which measured fastest while
 * spinning. The engine only reports which of many sockets are ready, and has a descriptor
 * to sleep on.
 */
#ifndef TERN_TRANSPORT_TCP_TCP_H
#define TERN_TRANSPORT_TCP_TCP_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/list.h"
#include "transport/addr.h"
#include "transport/fabric.h"
#include "transport/window.h"
#include "transport/memory/mem.h"
#include "transport/tcp/wire.h"

/* Bytes that one call reads into the stage: normally, and when a put's data is likely
 * to follow, since that would have to be copied out of the stage. */
#define TCP_STAGE_BYTES     (64u << 10)
#define TCP_STAGE_PUT_BYTES 4096u
/*
 * One system call moves at most TCP_CALL_BYTES, and the turn of a conn ends with the call
 * that reaches this. Data of other conns, and answers to messages, wait until the turn
 * ends. With at most TCP_DIRECT_MAX conns, which are a single peer's, nobody else waits,
 * and a call moves up to TCP_LONE_CALL_BYTES.
 *
 * While small tensors move over another conn, calls are limited to TCP_SHORT_CALL_BYTES:
 * for TCP_SHORT_POLLS polls after two messages with data within TCP_TALK_POLLS polls. (A
 * single such message may be the answer to a large tensor.)
 */
#define TCP_CALL_BYTES       (1u << 20)
#define TCP_LONE_CALL_BYTES  (4u << 20)
#define TCP_SHORT_CALL_BYTES (256u << 10)
#define TCP_SHORT_POLLS      16u
#define TCP_TALK_POLLS       64u
/* Up to this many conns are read in turn without asking the engine. Each conn without
 * data adds about 0.5 us to a round trip; asking adds 1 us with io_uring and 0.5 us
 * with epoll. */
#define TCP_DIRECT_MAX 2
/* With so few conns, the engine is asked for new conns and the like once in this many
 * polls. */
#define TCP_ASK_POLLS 32
/* Time for a closed conn to send what it has accepted. */
#define TCP_LINGER_NS TERN_NS_PER_S
/* Largest message of a peer that has not finished its handshake (conn->owner not set). */
#define TCP_STRANGER_BYTES 4096u

struct tcp_port;
struct tcp_engine_ops;

/* ---- sockets: socket.c ---- */

/* Opens a socket: non-blocking, close-on-exec, TCP_NODELAY, with the fabric's
 * congestion control. Returns the descriptor or a negative errno. `congestion` may be
 * empty, `unreachable_ns` (fabric.h) may be 0. */
int tcp_socket_open(int family, const char *congestion, uint64_t unreachable_ns);
void tcp_socket_options(int fd, const char *congestion, uint64_t unreachable_ns);

/* ---- interface of the engines: epoll.c, uring.c ---- */

enum tcp_watch_kind {
	TCP_WATCH_CONN,
	TCP_WATCH_LSN,
	TCP_WATCH_TIMER,
};

/* A descriptor whose readiness is watched. Event bits are EPOLLIN and so on, which
 * equal POLLIN and so on. */
struct tcp_watch {
	enum tcp_watch_kind kind;
	int fd;
	uint32_t want;             /* events that we want */
	uint32_t set;              /* events that the kernel was told to report */
	uint32_t got;              /* events that have happened and were not handled */
	struct tern_list ready;    /* in port->ready while got != 0 */
	struct tern_list unsynced; /* in port->unsynced while want != set */
	uint32_t entry;            /* io_uring: index of its name + 1; 0: none */
};

struct tcp_engine_ops {
	const char *name;
	bool asked_for_free; /* after a sleep, collect() needs no system call */
	/* 0, or the reason why the kernel refuses: -ENOSYS, -EPERM, -ENOMEM, -EMFILE.
	 * NULL: it never refuses. */
	int (*probe)(void);
	int (*init)(struct tcp_port *port);
	void (*fini)(struct tcp_port *port);
	/* Tells the kernel watch->want and sets watch->set. -EAGAIN: try again later;
	 * -ENOMEM, -ENOSPC: it will not work. */
	int (*sync)(struct tcp_port *port, struct tcp_watch *watch);
	/* Call this before the descriptor is closed. No event is reported for it
	 * afterwards. */
	void (*remove)(struct tcp_port *port, struct tcp_watch *watch);
	/* Reports ready descriptors through tcp_watch_got(), without waiting. */
	void (*collect)(struct tcp_port *port);
	/* After it returned 0, the descriptor of fd() is readable when there is
	 * something to collect, or already is. */
	int (*arm)(struct tcp_port *port);
	int (*fd)(struct tcp_port *port);
};

extern const struct tcp_engine_ops tcp_epoll_engine;
extern const struct tcp_engine_ops tcp_uring_engine; /* if built with TERN_HAVE_URING */

void tcp_watch_init(struct tcp_watch *watch, enum tcp_watch_kind kind, int fd);
void tcp_watch_want(struct tcp_port *port, struct tcp_watch *watch, uint32_t want);
/* For engines: the kernel no longer watches these events (a one-shot wait has fired). */
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

	struct tern_list conns; /* all conns, until their `closed` was called */
	uint32_t conn_count, lsn_count, connecting_count;

	struct tern_list ready;    /* watches with events to handle */
	struct tern_list unsynced; /* watches the kernel must be told about */
	struct tern_list dirty; /* conns with something to send, and room in the socket */
	struct tern_list blocked;   /* conns whose socket is full */
	struct tern_list writable;  /* conns that returned -EAGAIN and have room again */
	struct tern_list lingering; /* closing conns, in the order of their deadlines */
	struct tern_list ended;     /* conns whose `closed` must be called */
	struct tern_op *done_first, *done_last; /* ops whose done() must be called */

	struct tcp_watch timer; /* wakes a sleeper at the first deadline of `lingering` */
	struct tern_windows windows;
	/* Buffer through which received bytes pass, except the bulk of puts. */
	char *stage;
	/* Bytes left in the stage because a poll had reached its budget: the next poll
	 * takes them first. */
	struct {
		struct tcp_conn *conn; /* NULL: no bytes are left */
		const char *data;
		size_t bytes;
	} rest;
	uint64_t unreachable_ns; /* fabric.h */
	/* Closed to accept and refuse a peer when the process is out of descriptors. */
	int spare_fd;
	bool armed; /* set by arm: no poll since, so the caller may have slept */
	uint32_t poll_count;
	/* The conn with the last message that had data. Compared, never dereferenced. */
	const struct tcp_conn *talker;
	/* Number of polls so far; its value at talker's message. */
	uint32_t polls, talked_at;
	uint32_t full_at;     /* value of `polls` when a socket was full last */
	uint32_t short_polls; /* polls for which calls stay short */
};

struct tcp_lsn {
	struct tern_lsn base;
	struct tcp_watch watch;
	char address[80];
};

/*
 *     CONNECTING -> UP -> FLUSHING -> LINGERING -> ENDED
 *
 * An accepted conn starts in UP. FLUSHING: close was asked for, and accepted data is
 * still being sent. LINGERING: all data and a FIN were sent; the conn waits for the
 * peer's FIN. A failure leads from any state to ENDED: the socket is closed, memory is no
 * longer accessed, and only the callbacks are still to be called.
 */
enum tcp_state {
	TCP_CONNECTING,
	TCP_UP,
	TCP_FLUSHING,
	TCP_LINGERING,
	TCP_ENDED,
};

/* Layout of tern_op.priv for a put. may_alias: priv is an array of uint64_t. */
struct tcp_put {
	struct tern_op *next;
	const char *data; /* the bytes not sent yet */
	uint64_t bytes;
	uint64_t at; /* position in the stream of `ring` before which the data is sent */
	int status;
} __attribute__((may_alias));

static inline struct tcp_put *tcp_put_of(struct tern_op *op)
{
	_Static_assert(
		sizeof(struct tcp_put) <= sizeof(op->priv), "tern_op is too small");
	return (struct tcp_put *)op->priv;
}

/* Send queue. Headers and messages wait in a ring. Puts wait in a list, each with the
 * position in the ring's stream at which its data belongs. */
struct tcp_tx {
	char *ring;
	uint32_t ring_bytes; /* a power of two */
	/* Stream positions of the ring's contents: first byte, end. */
	uint64_t head, tail;
	struct tern_op *first, *last;
	bool starved; /* -EAGAIN was returned, so `writable` is due */
	bool dead; /* The socket takes no more data; received data is still to be read. */
};

enum tcp_rx_state {
	TCP_RX_HEADER,
	TCP_RX_MESSAGE,
	TCP_RX_PUT,
};

struct tcp_rx {
	enum tcp_rx_state state;
	uint8_t header[TCP_FRAME_BYTES];
	uint32_t have;          /* bytes of the header or message that have arrived */
	struct tcp_frame frame; /* MESSAGE, PUT */
	uint32_t crc;           /* CRC of the header */
	char *body;             /* a message that arrives in pieces; 64-byte aligned */
	char *target;           /* PUT: where the next byte goes; NULL: it is dropped */
	uint64_t left;          /* PUT: bytes still to come */
	/* While target != NULL: in the list of puts that the window (window.h) awaits
	 * before it may be given back. */
	struct tern_list landing;
	uint8_t put_likely; /* greater than 0 if puts were among the last frames */
	/* The last read left nothing in the socket or the stage, and no incomplete
	 * frame. */
	bool dry;
	bool answered; /* something was sent since then: port.c */
	bool eof;
};

/* State of probing the kernel at the remote end: alive.c. */
struct tcp_question {
	uint64_t asked_ns; /* time of the first unanswered probe; 0: none is unanswered */
	uint64_t last_ns;  /* time of its last repetition */
	uint64_t unanswered_ns; /* from the first probe to the last overdue repetition */
	uint32_t tries;         /* repetitions, as counted by the kernel */
	bool keeps_alive;       /* keep-alives are on, so it probes without data too */
};

/* Memory of an idle conn: this structure (below 1 KiB), and the pages of tx.ring (64
 * KiB, or 4 messages) and rx.body (one message) that were ever touched. None of it
 * grows. */
struct tcp_conn {
	struct tern_conn base;
	struct tcp_watch watch;
	enum tcp_state state;
	int status;                 /* status of ENDED */
	struct tern_list node;      /* port->conns */
	struct tern_list send_link; /* in port->dirty or port->blocked */
	struct tern_list writable_link;
	struct tern_list end_link; /* in port->lingering or port->ended */
	uint64_t deadline_ns;      /* of FLUSHING and LINGERING */
	struct tcp_tx tx;
	struct tcp_rx rx;
	struct tern_addrs *targets; /* CONNECTING: addresses left to try */
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

/* Notes that a message with data was received or is to be sent: system calls move less at
 * a time then, so that messages do not wait (tcp_call_bytes). */
static inline void tcp_talks(struct tcp_conn *conn)
{
	struct tcp_port *port = tcp_conn_port(conn);

	if (port->talker == conn && port->polls - port->talked_at <= TCP_TALK_POLLS)
		port->short_polls = TCP_SHORT_POLLS;
	port->talker = conn;
	port->talked_at = port->polls;
}

/* Largest number of bytes that one system call on this conn may move now. */
static inline size_t tcp_call_bytes(struct tcp_conn *conn)
{
	const struct tcp_port *port = tcp_conn_port(conn);

	if (port->short_polls && port->talker != conn)
		return TCP_SHORT_CALL_BYTES;
	return port->conn_count <= TCP_DIRECT_MAX ? TCP_LONE_CALL_BYTES : TCP_CALL_BYTES;
}

/* ---- tcp.c ---- */

/* Goes to ENDED: closes the socket and stops using any memory. The callbacks follow in
 * the next poll. */
void tcp_conn_end(struct tcp_conn *conn, int status);
/* Translates the error of a socket call into the status of its conn. */
static inline int tcp_status_of(int status)
{
	return status == -ETIMEDOUT || status == -EFAULT ? status : -ECONNRESET;
}
/* Frees the conn, after `closed` was called. */
void tcp_conn_free(struct tcp_conn *conn);
/* For a conn in FLUSHING with nothing left to send: sends the FIN. */
void tcp_conn_flushed(struct tcp_conn *conn);
/* For a conn in CONNECTING whose socket has an event. Returns the number of events. */
int tcp_conn_connected(struct tcp_conn *conn);
/* Accepts one peer. Returns the number of events. */
int tcp_lsn_accept(struct tcp_lsn *lsn);

/* ---- alive.c ---- */

uint64_t tcp_unanswered_ns(struct tern_conn *conn);
/* Resets the connection, so that nothing more is sent once the socket is closed. */
void tcp_alive_abort(struct tcp_conn *conn);

/* ---- port.c ---- */

int tcp_port_poll(struct tern_port *port, int budget);
int tcp_port_arm(struct tern_port *port);
/* Queues the op, so that the next poll calls its done(). */
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
/* One turn: sends until the socket is full or other conns should have their turn.
 * Returns the number of events. */
int tcp_tx_turn(struct tcp_conn *conn);
/* Called when the socket may have room again. */
void tcp_tx_unblock(struct tcp_conn *conn);
/* Ends every waiting put. */
void tcp_tx_abort(struct tcp_conn *conn, int status);

/* ---- rx.c ---- */

int tcp_rx_init(struct tcp_rx *rx, uint32_t message_bytes);
void tcp_rx_fini(struct tcp_rx *rx);
/* One turn: reads until the socket is empty, other conns should have their turn, or
 * about `budget` events have happened. Returns the number of events. Not to be called
 * while bytes are left in the port's stage. */
int tcp_rx_turn(struct tcp_conn *conn, int budget);
/* Handles the bytes left in the port's stage, if any. */
int tcp_rx_rest(struct tcp_port *port, int budget);
/* Drops the remaining bytes of the put that is being received. */
void tcp_rx_discard(struct tcp_conn *conn);

#endif
