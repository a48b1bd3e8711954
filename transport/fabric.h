/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface between a fabric (verbs, tcp, shm, sim) and the layers above, which see
 * nothing else of it. A fabric moves bytes between registered memories and delivers short
 * messages; it knows nothing of keys, requests or tensors.
 *
 *     fabric   one per domain: devices, registrations              thread-safe
 *     port     one per context: queues, listening sockets, fds     the context's thread
 *     lsn      one per listening address of a port                 the context's thread
 *     conn     one per connection: reliable, ordered               the context's thread
 *
 * Order. On one conn, messages and puts take effect at the peer in the order of the calls
 * that returned 0: a message sent after a put is delivered when all bytes of the put are
 * visible to the peer's CPU. A get has no order relative to anything, nor has a put on a
 * conn with TERN_CAP_WINDOW_PUT.
 *
 * Blocking. No call blocks or waits, except that listen() and connect() look up a host
 * name in the DNS. Only poll() calls handlers and op->done(). Handlers and done() may
 * call everything but poll() and port_free(). Data accepted by send() and put() may wait
 * in buffers until the next poll() or arm(). What the `message` handler sends goes out
 * before its poll() returns, as far as the peer takes it; over tcp, what the other
 * handlers and done() send may wait.
 *
 * Failure. A conn fails once: every unfinished op on it is completed with an error (the
 * conn's status, or another one such as -ECANCELED), then the `closed` handler is called,
 * last. After that the conn no longer exists, and neither the fabric nor a peer can
 * access memory through it. This includes reading in place: while a peer reads with
 * peek(), the owner's `closed` is delayed. It does not include borrow(): copies of a
 * peer's GPU may still read lent memory. Bytes of a failed conn may or may not have
 * arrived. A wrong frame, length or region from a peer ends its own conn with -EPROTO and
 * a log line that names the peer (tern_log_stranger() limits the lines about peers
 * without a handshake); other conns are not affected.
 *
 * Memory of the caller is (mem, offset), never a bare pointer, except for message bytes,
 * which are short and copied.
 */
#ifndef TERN_TRANSPORT_FABRIC_H
#define TERN_TRANSPORT_FABRIC_H

#include <errno.h>

#include <tern/memory.h>
#include <tern/types.h>

#include "base/clock.h"
#include "base/env.h"

struct tern_domain_opts;
struct tern_rdma_device;
struct tern_fabric;
struct tern_port;
struct tern_lsn;
struct tern_conn;

/* Capabilities of a conn, fixed when it comes up. */
enum tern_caps {
	TERN_CAP_PUT = 1 << 0,  /* put() into a region of the peer */
	TERN_CAP_GET = 1 << 1,  /* get() from a region of the peer */
	TERN_CAP_PEEK = 1 << 2, /* peek(): the peer's memory can be read in place */
	/* put() can carry 32 bits of immediate data to the peer. Reserved: no fabric sets
	 * it. */
	TERN_CAP_IMM = 1 << 3,
	/* GPU memory may be directly accessible to the fabric; reaches() tells for which
	 * memory (verbs). */
	TERN_CAP_DEVICE = 1 << 4,
	/* The conn ends only for a reason at one of its ends (a process has ended, a
	 * close, a protocol error, ...), never because of a network. So a reconnect is
	 * pointless (shm). For a fabric of one host whose conns end only with a process.
	 * Its send() hands a message over at once if the peer has room. */
	TERN_CAP_BOUND = 1 << 5,
	/* The fabric does not enforce the bounds, the owner and the withdrawal
	 * (revocation) of a region: it trusts the peer to respect them (verbs, where a
	 * region holds RDMA keys). */
	TERN_CAP_UNGUARDED = 1 << 6,
	/* A GPU of one end may read GPU memory of the other end directly, by offer() and
	 * borrow() (shm). */
	TERN_CAP_LEND = 1 << 7,
	/* When op->done(0) of a put is called, the peer has the bytes, if its memory is
	 * not copied (tern_conn_copies() at the peer). */
	TERN_CAP_LANDS = 1 << 8,
	/* put() works, but is for windows only: a send and a receive meet faster by get()
	 * and peek() (shm, where the system copies a put on the thread that makes it).
	 * Such a put has no order relative to messages. */
	TERN_CAP_WINDOW_PUT = 1 << 9,
};

/* The right to access a range of memory, as it travels on the wire: 48 bytes; if the last
 * 16 are zero they are not sent. Only the fabric that made the region understands its
 * contents. The holder addresses the range by offsets from its start. */
struct tern_region {
	uint64_t word[6];
};

enum tern_access {
	TERN_ACCESS_READ = 1,
	TERN_ACCESS_WRITE = 2,
};

/* GPU memory of the peer that one of our GPUs reads directly, from borrow() until
 * repay(). */
struct tern_loan {
	/* Our GPU, whose copies can access the peer's memory; NULL: nothing is
	 * borrowed. */
	struct tern_gpu *gpu;
	uint64_t address; /* address of the peer's memory for copies that `gpu` makes */
	void *priv;       /* used by the fabric */
};

/* An asynchronous operation: a put() or get() that returned 0, a peek() that returned
 * -EAGAIN, a withdraw() that returned -EINPROGRESS. The caller must keep the structure
 * until the fabric calls done(), exactly once, in poll(). After any other result the
 * fabric does not use the structure. */
struct tern_op {
	void (*done)(struct tern_op *op, int status);
	struct tern_conn *conn; /* set by put() and get() */
	uint64_t priv[8];       /* used by the fabric */
};

/* Events that a port reports. All handlers are called in poll(). */
struct tern_port_handler {
	/* A peer connected to `lsn`: the new conn is up. */
	void (*accepted)(void *arg, struct tern_lsn *lsn, struct tern_conn *conn);
	/* A conn made with connect() is up. */
	void (*up)(void *arg, struct tern_conn *conn);
	/* One whole message. The callee may read the bytes (64-byte aligned) until it
	 * returns. A non-zero return cuts the conn with that status. */
	int (*message)(void *arg, struct tern_conn *conn, const void *data, size_t bytes);
	/* Called after send(), put(), get() or offer() returned -EAGAIN, when a retry may
	 * succeed. */
	void (*writable)(void *arg, struct tern_conn *conn);
	/* The conn has ended, but the peer still reads memory of ours in place. All ops
	 * are completed, and nothing writes to our memory through the conn any more;
	 * `closed` follows when the peer has stopped reading. If no memory is being
	 * read, only `closed` is called. May be NULL. */
	void (*ended)(void *arg, struct tern_conn *conn, int status);
	/*
	 * The conn has ended, and all its ops are completed. It must not be used after
	 * this returns. status:
	 *
	 * - 0: after close() of a conn that was up and had not failed before, also if the
	 *   peer ends it at the same time (tcp, with `flush`: or -ECONNRESET and the
	 *   like, if the rest cannot be sent);
	 * - -ECANCELED: after close() of a conn that was not up yet;
	 * - -ECONNREFUSED, -ETIMEDOUT, ...: the conn never came up;
	 * - -ECONNRESET: cut, or EOF;
	 * - -ETIMEDOUT, -ENETDOWN: the network path or our device was lost; the peer may
	 *   be alive;
	 * - -EPIPE: the peer's process is known to have ended;
	 * - -EPROTO: the peer violated the protocol;
	 * - -EFAULT: memory of ours that was given to the conn is no longer mapped, or no
	 *   longer writable;
	 * - what `message` returned;
	 * - others, such as -EIO, -EREMOTEIO, -ENOMEM: a device or this process failed.
	 */
	void (*closed)(void *arg, struct tern_conn *conn, int status);
};

/* True if a request or a connection may end with `status`, which came from a peer. Other
 * values are rejected, above all -EINPROGRESS, which marks a request that has not
 * ended. */
static inline bool tern_status_may_end(int status)
{
	return status <= 0 && status > -4096 && status != -EINPROGRESS &&
	       status != -EAGAIN;
}

struct tern_port_opts {
	struct tern_env *env;
	const struct tern_port_handler *handler;
	void *arg; /* first argument of the handlers */
	/* Largest message in either direction; both ends use the same value. */
	uint32_t message_bytes;
	/* Verbs: name of the RDMA device to use for addresses that name none
	 * (HOST:PORT@DEVICE); NULL: any device. */
	const char *device;
	/* The caller gives up a conn when unanswered_ns() reaches this (the end that
	 * dialled: a quarter of it, to dial again), so the fabric must probe the peer's
	 * host often enough to measure this time. 0, TERN_NEVER: the caller never gives
	 * up. */
	uint64_t unreachable_ns;
};

/* Callback of auto_dial(): adds one address to the list of those to try. 0; -EINVAL,
 * -E2BIG: the address cannot be used. */
typedef int tern_auto_add(void *arg, const char *address);

/* Functions and properties of one fabric: a row of tern_fabric_table (domain.h). */
struct tern_fabric_ops {
	const char *name;  /* as in "tcp://" */
	const char *title; /* name in the log line of a listener; NULL: `name` */
	/* Why this build contains only the name of the fabric, as text for people. NULL:
	 * the fabric is built in. */
	const char *absent;
	/* Version of the fabric's own protocol: what its two ends exchange besides the
	 * messages of the layer above. For `tern --version`; 0: it has no number. */
	unsigned wire_version;
	/* True: only simulated domains open this fabric, and they open no others. */
	bool simulated;
	/* Both ends of a conn are always on one host. Addresses are names, which any
	 * program may choose. */
	bool one_host;
	/* A listener of "auto://HOST:PORT" listens on this fabric first; if PORT is 0,
	 * the other fabrics use the port number that this fabric got. */
	bool picks_port;
	/* mem_register() pins pages, so a memory slab gets its huge pages before it is
	 * registered. */
	bool pins_memory;
	/* HOST:PORT at which a program listens by default; NULL: ":0", any free port at
	 * every address. */
	const char *default_listen;
	/* True if the options ask for something that only this fabric has:
	 * tern_domain_new() then fails if the fabric does not open. NULL: never. */
	bool (*required)(const struct tern_domain_opts *opts);

	/*
	 * Calls add() for each address at which a listener of "auto://HOST:PORT" may be
	 * reached over this fabric, best first. 0, also if there is none; the error of
	 * add(); -EINVAL: malformed; -ENODATA, -ENONET: as tern_addr_resolve(). NULL:
	 * `auto` does not use the fabric.
	 */
	int (*auto_dial)(const char *host_port, tern_auto_add *add, void *arg);
	/* Writes the address at which this fabric listens for a listener of
	 * "auto://HOST:PORT"; PORT is the number that the fabric with picks_port got.
	 * -EINVAL; -ENOTSUP: peers cannot reach HOST over this fabric. NULL: the fabric
	 * does not listen for `auto`, unless picks_port is set: then it listens at
	 * HOST:PORT itself. */
	int (*auto_listen)(const char *host_port, char *out, size_t size);

	/*
	 * Opens the devices for this process. -ENODEV, -ENOSYS: the fabric does not work
	 * on this machine, and *why is a sentence (static storage) for `tern info`. Other
	 * errors (-ENOMEM, a wrong option) make tern_domain_new() fail.
	 */
	int (*open)(struct tern_domain *domain, const struct tern_domain_opts *opts,
		struct tern_fabric **out, const char **why);
	void (*close)(struct tern_fabric *fabric);

	/*
	 * Registers `mem` with the devices; called once per mem and fabric, before any
	 * other call of the fabric that uses `mem`. The caller stores *reg, and
	 * tern_mem_reg() returns it. -ENOMEM. Both functions are NULL if the fabric needs
	 * no registration.
	 */
	int (*mem_register)(struct tern_fabric *fabric, struct tern_mem *mem, void **reg);
	void (*mem_unregister)(
		struct tern_fabric *fabric, struct tern_mem *mem, void *reg);

	int (*port_new)(struct tern_fabric *fabric, const struct tern_port_opts *opts,
		struct tern_port **out);
	/* Frees the port, which must have no conns and no lsns left. */
	void (*port_free)(struct tern_port *port);

	/*
	 * Listens at `address` (without "NAME://"). -EINVAL: malformed; -EADDRINUSE,
	 * -EADDRNOTAVAIL, -EACCES; -ENODEV: no such RDMA device; -EMFILE, -ENOMEM; errors
	 * of tern_addr_resolve(). lsn_address() returns the address to connect to, valid
	 * as long as lsn.
	 */
	int (*listen)(struct tern_port *port, const char *address, struct tern_lsn **out);
	const char *(*lsn_address)(struct tern_lsn *lsn);
	void (*lsn_close)(struct tern_lsn *lsn); /* stops now; accepted conns stay */

	/* Starts to connect; `up` or `closed` follows. Nothing may be sent before `up`.
	 * The fabric need not limit the time for this: the caller has a limit, and closes
	 * the conn. -EINVAL: malformed; -EMFILE, -ENOMEM; verbs also: -ENODEV,
	 * -EADDRNOTAVAIL (the device asked for), errors of tern_addr_resolve(). */
	int (*connect)(
		struct tern_port *port, const char *address, struct tern_conn **out);

	/*
	 * Ends the conn: `closed` follows, with status 0 if the conn was up and healthy.
	 * With `flush`, messages and puts that the conn has already accepted are still
	 * sent if the peer takes them within a second; without `flush` they may be lost.
	 * A second call does nothing, except that over tcp a call without `flush` ends a
	 * flush that is still going on.
	 */
	void (*conn_close)(struct tern_conn *conn, bool flush);

	/*
	 * Time for which the peer's host (its kernel, its NIC) has not answered a probe;
	 * 0: it answers, or (verbs) the fabric itself ends the conn when a probe stays
	 * unanswered. The peer's program takes no part: a program that does not poll
	 * counts as answering. The time counts only up to a probe whose answer is
	 * overdue, so a path that returned in time is never given up because nobody has
	 * probed it again.
	 *
	 * The call also starts a probe, if none is under way. That costs a system call or
	 * a posted operation, so callers call it a few times a second, and only for a
	 * conn that is up and silent. NULL: the fabric needs no probes (shm: the kernel
	 * reports the end of a process).
	 */
	uint64_t (*unanswered_ns)(struct tern_conn *conn);

	/*
	 * Sends one message: `head` (a multiple of 8 bytes), then `payload` of
	 * `payload_bytes`; together at most message_bytes. When it returns 0, both were
	 * copied or sent. -EAGAIN: the send queue is full and nothing was queued;
	 * `writable` follows. -ENOTCONN: the conn failed or was closed, `closed` follows.
	 * A message
	 * that is longer than the receiver's message_bytes ends the receiver's conn with
	 * -EPROTO.
	 */
	int (*send)(struct tern_conn *conn, const void *head, size_t head_bytes,
		const void *payload, size_t payload_bytes);

	/*
	 * Writes `bytes` (> 0) from (mem, offset) to `remote` + remote_offset. done(0):
	 * the source may be reused, which does not mean that the peer has the bytes (its
	 * answer to a message sent after the put proves that). Errors as send(); an idle
	 * conn accepts at least four puts of chunk_bytes before -EAGAIN, and one more for
	 * each completed put. While the peer takes nothing, put() must return -EAGAIN in
	 * the end, so that waiting puts are bounded. done(-EACCES): the system does not
	 * permit writing to the peer's memory; some bytes may be there, and the conn
	 * stays up (shm). Only with TERN_CAP_PUT or TERN_CAP_WINDOW_PUT.
	 */
	int (*put)(struct tern_conn *conn, struct tern_op *op, struct tern_mem *mem,
		uint64_t offset, uint64_t bytes, const struct tern_region *remote,
		uint64_t remote_offset);

	/*
	 * Reads `bytes` at `remote` + remote_offset into (mem, offset). done(0): the
	 * bytes have arrived in `mem`. done(-EACCES): the system does not permit reading
	 * the peer's memory; no bytes were copied and the conn stays up. Errors as
	 * send(). Only with TERN_CAP_GET.
	 */
	int (*get)(struct tern_conn *conn, struct tern_op *op, struct tern_mem *mem,
		uint64_t offset, uint64_t bytes, const struct tern_region *remote,
		uint64_t remote_offset);

	/*
	 * Returns where `bytes` at `remote` + remote_offset can be read in place, until
	 * unpeek(). The mapping outlives the conn, so the death of the peer does not take
	 * memory away from a reader. The bytes do not change when the conn ends either:
	 * at the end that owns them `closed` is called only after unpeek(), or after the
	 * reader's process has ended. -EAGAIN: not yet, op->done() tells when to try
	 * again. -ENOTSUP: not for this region (its memory is not in a slab, a memory
	 * segment that peers can map, or too many slabs are in use), use get().
	 * -ENOTCONN: as send(). Only with TERN_CAP_PEEK.
	 */
	int (*peek)(struct tern_conn *conn, struct tern_op *op,
		const struct tern_region *remote, uint64_t remote_offset, uint64_t bytes,
		const void **out);
	/* Ends one successful peek() of this port; `data` is the pointer that it
	 * returned. */
	void (*unpeek)(struct tern_port *port, const void *data);

	/*
	 * Lets the peer of `conn` access (mem, offset, bytes), also through any later
	 * conn of this port with the same conn->owner (a reconnect, another rail).
	 * Constant time, no system call, except that the first guarded region of a verbs
	 * port allocates a table (-ENOMEM). bytes may be 0. -EAGAIN: too many ranges are
	 * exposed; -ENOTSUP: the fabric cannot access this kind of memory (see
	 * tern_conn_reaches).
	 */
	int (*expose)(struct tern_conn *conn, struct tern_mem *mem, uint64_t offset,
		uint64_t bytes, enum tern_access access, struct tern_region *out);

	/*
	 * Revokes the access that expose() gave to a peer. 0: from now on the fabric does
	 * not access the memory for the peer. -EINPROGRESS: bytes are being written right
	 * now; op->done() tells when that has ended. If a peer uses the region later, its
	 * conn is cut, its bytes are dropped or its request is refused (a put that was
	 * already on its way at the withdrawal is no protocol violation).
	 *
	 * Regions that the peer reads in place, and those of a conn with
	 * TERN_CAP_UNGUARDED, are not protected by this: withdraw them after the peer has
	 * reported that it is done, or after `closed`. Needs no live conn.
	 */
	int (*withdraw)(struct tern_port *port, struct tern_op *op,
		const struct tern_region *region);

	/*
	 * Asks whether a GPU of the peer can read `mem`, which is GPU memory, directly.
	 * 0: yes, expose() it, now or later on this conn. -EAGAIN: the peer was asked,
	 * `writable` follows. -ENOTSUP: no; a later call asks again only if the peer
	 * could not open the memory for a passing reason (shm: the note AGAIN).
	 * -ENOTCONN. Only with TERN_CAP_LEND.
	 */
	int (*offer)(struct tern_conn *conn, const struct tern_mem *mem);
	/*
	 * Returns an address from which our GPU copies read `bytes` at `remote` +
	 * remote_offset. The address outlives the conn. -ENOTSUP: the region is not GPU
	 * memory that was offered, use get(). -ENOTCONN: the conn is not up, or was cut
	 * because the peer never offered this memory. Only with TERN_CAP_LEND.
	 */
	int (*borrow)(struct tern_conn *conn, const struct tern_region *remote,
		uint64_t remote_offset, uint64_t bytes, struct tern_loan *out);
	/* Ends one borrow(). No copy from the borrowed memory may be in flight any more.
	 * -ECONNRESET: the conn had already ended, or the peer had closed it, so copied
	 * bytes may be inconsistent; `closed` follows, or was called already. */
	int (*repay)(struct tern_loan *loan);

	/*
	 * Name of the method by which all devices in use access `mem`, which is not host
	 * memory ("dma-buf"); NULL: not all of them can access it. The answer may change
	 * when a device is added or removed; exposed regions and operations in flight
	 * stay valid as long as the conn is up. Only with TERN_CAP_DEVICE; otherwise
	 * `reaches` may be NULL.
	 */
	const char *(*reaches)(
		const struct tern_fabric *fabric, const struct tern_mem *mem);

	/* For `tern info`: the label of a detail about a working fabric, and the function
	 * that writes this detail. Both may be NULL. */
	const char *about_name;
	void (*about)(char *out, size_t size);
	/* Describes the RDMA devices in at most `max` entries, one for each port of a
	 * device. Returns the number of ports, which may be more. NULL: the fabric has no
	 * such devices. */
	int (*devices)(
		struct tern_fabric *fabric, struct tern_rdma_device *out, unsigned max);

	/*
	 * Sends waiting data, receives, completes operations and calls handlers; about
	 * `budget` events at most, so that one busy conn does not delay the others and
	 * the timers. (tcp and verbs handle new connections even when the budget is used
	 * up; verbs has the budget for each device.) Returns the number of events.
	 */
	int (*poll)(struct tern_port *port, int budget);
	/* Sends waiting data and prepares for sleep. 0: fd() becomes readable at the next
	 * event. -EAGAIN: an event is already pending, so call poll(). */
	int (*arm)(struct tern_port *port);
	/* the descriptor to sleep on; -1: the fabric has none (sim) */
	int (*fd)(struct tern_port *port);
};

/* The first members of the fabrics' own structures: struct tcp_conn begins with a struct
 * tern_conn, and so on. */
struct tern_fabric {
	const struct tern_fabric_ops *ops;
	struct tern_domain *domain;
	/* Index among the fabrics that the domain opened: see tern_mem_reg. */
	unsigned index;
};

struct tern_port {
	const struct tern_fabric_ops *ops;
	struct tern_fabric *fabric;
	struct tern_env *env;
	const struct tern_port_handler *handler;
	void *handler_arg;
	uint32_t message_bytes;
};

struct tern_lsn {
	struct tern_port *port;
	void *user; /* used by the layer above */
	/* Earliest time at which the next refused peer may be logged:
	 * tern_lsn_may_complain(). */
	uint64_t complain_ns;
};

/* True at most once a minute per listener: whether a refused peer may be logged now. A
 * refused peer retries again and again, and more than one line a minute would be
 * useless. */
static inline bool tern_lsn_may_complain(struct tern_lsn *lsn)
{
	uint64_t now_ns = tern_now_ns(lsn->port->env);

	if (now_ns < lsn->complain_ns)
		return false;
	lsn->complain_ns = now_ns + 60 * TERN_NS_PER_S;
	return true;
}

struct tern_conn {
	struct tern_port *port;
	uint32_t caps;        /* bit set of enum tern_caps */
	uint32_t eager_bytes; /* this fabric's default eager threshold */
	/* Default eager threshold for tensors in slabs (shared memory segments), if the
	 * peer can map them (shm); 0: as eager_bytes. */
	uint32_t eager_mapped_bytes;
	/* Best size of one put or get within a large transfer. The caller may use larger
	 * ones. */
	uint64_t chunk_bytes;
	/* Puts of at least this size should use another conn than messages do, because
	 * messages sent after a put wait until its bytes are sent. 0: another conn would
	 * bring nothing (shm, verbs). */
	uint64_t bulk_bytes;
	/* Number of GPU memories of the peer that this process has open for borrow(). */
	uint32_t lent_count;
	void *user; /* used by the layer above */
	/* Identifies the owner (a session) of the regions exposed on this conn. The
	 * caller sets it before it exposes memory or accepts puts. It is compared, never
	 * dereferenced. */
	void *owner;
	char name[80]; /* for log lines: "tcp 10.0.0.7:41234", "shm pid 812" */
};

/* The rows of tern_fabric_table (domain.h), in the order of preference of `auto`.
 * ROW(NAME) stands for tern_NAME_fabric_ops. */
#define TERN_FABRICS(ROW) ROW(shm) ROW(verbs) ROW(tcp) ROW(sim) ROW(sim_b)

#define TERN_FABRIC_DECLARE(name)                                                        \
	extern const struct tern_fabric_ops tern_##name##_fabric_ops;
#define TERN_FABRIC_POINTER(name) &tern_##name##_fabric_ops,
TERN_FABRICS(TERN_FABRIC_DECLARE)

#endif
