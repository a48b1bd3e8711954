/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seam: what a fabric (verbs, tcp, shm, sim) provides, and nothing else of it is seen
 * above. A fabric moves bytes between registered memories and delivers short messages; it
 * knows nothing of keys, requests or tensors.
 *
 *     fabric   one per domain: devices, registrations              thread-safe
 *     port     one per context: queues, listening sockets, fds     the context's thread
 *     lsn      one per listening address of a port                 the context's thread
 *     conn     one per connection: reliable, ordered               the context's thread
 *
 * Order. On one conn, messages and puts take effect at the peer in the order of the calls
 * that returned 0: a message sent behind a put is delivered when all bytes of the put are
 * visible to the peer's CPU. A get is ordered with nothing.
 *
 * Blocking. No call blocks, waits or calls a handler, except poll(), which calls handlers
 * and op->done(). Handlers and done() may call everything but poll() and port_free().
 * What send() and put() took may wait in buffers until the next poll() or arm().
 *
 * Failure. A conn fails once: every op on it is completed with the status, then the
 * `closed` handler is called as the last thing, and then the conn is gone: nothing of the
 * fabric and no peer can touch memory through it any more, nor read it in place: peek()
 * delays the `closed` of the conn's other end. Bytes of a failed conn may or
 * may not have arrived. What a peer sends wrong (frame, length, region) is -EPROTO on its
 * own conn, with a log line that names the peer, and touches no other.
 *
 * Memory is (mem, offset), never a bare pointer, except for message bytes, which are
 * short and copied.
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
	TERN_CAP_IMM =
		1 << 3, /* put can carry 32 bits to the peer (verbs; not used yet) */
	TERN_CAP_DEVICE = 1 << 4, /* memory of another kind than the host's may be
				     reached: see reaches() (verbs) */
	TERN_CAP_BOUND = 1 << 5,  /* the end of the conn is the end of the peer's process:
				     a  reconnect is pointless (shm) */
	TERN_CAP_UNGUARDED = 1 << 6, /* what a region lets the peer reach is an agreement:
					the fabric does not enforce its bounds, its owner
					or its withdrawal (verbs with keys) */
	TERN_CAP_LEND = 1 << 7, /* offer(), borrow(): a GPU of one end may read memory of
				   one of the other's itself (shm) */
};

/*
 * The right to reach a range of memory, as it travels on the wire: 48 bytes, of which the
 * last 16 stay at home if they are zero; opaque to all but the fabric that made it. The
 * holder addresses it by offsets from its start.
 */
struct tern_region {
	uint64_t word[6];
};

enum tern_access {
	TERN_ACCESS_READ = 1,
	TERN_ACCESS_WRITE = 2,
};

/* Memory of a GPU of the peer's that one of ours reads, until repay(). */
struct tern_loan {
	struct tern_gpu *gpu; /* whose copies reach it; NULL: nothing is lent */
	uint64_t address;     /* for them */
	void *priv;           /* the fabric's */
};

/* A piece of work of the fabric. The caller owns it until done() runs, once, in poll().
 */
struct tern_op {
	void (*done)(struct tern_op *op, int status);
	struct tern_conn *conn; /* set by put() and get() */
	uint64_t priv[8];       /* the fabric's */
};

/* What a port reports. All are called in poll(). */
struct tern_port_handler {
	/* A peer connected to `lsn`: the new conn is up. */
	void (*accepted)(void *arg, struct tern_lsn *lsn, struct tern_conn *conn);
	/* A conn made with connect() is up. */
	void (*up)(void *arg, struct tern_conn *conn);
	/* One message, whole. The bytes (64-byte aligned) are the callee's to read until
	 * it returns. A non-zero return cuts the conn with that status. */
	int (*message)(void *arg, struct tern_conn *conn, const void *data, size_t bytes);
	/* After a -EAGAIN of send(), put() or offer(): worth trying again. */
	void (*writable)(void *arg, struct tern_conn *conn);
	/* The end, but for memory of ours that the peer reads in place: all that is said
	 * of `closed` holds for what is written. `closed` follows when the peer reads no
	 * more. Without readers it comes alone. May be NULL. */
	void (*ended)(void *arg, struct tern_conn *conn, int status);
	/* The end, see above. status: 0 after close(); -ECONNREFUSED, -ETIMEDOUT, ... if
	 * it never came up; -ECONNRESET: cut or EOF; -ETIMEDOUT, -ENETDOWN: the
	 * path was lost, nobody is known to be gone; -EPIPE: the peer's process is known
	 * to be gone; -EPROTO; -EFAULT: memory of ours that was named to the conn is not
	 * mapped any more, or not with the right to write. The conn must not be used when
	 * this returns. */
	void (*closed)(void *arg, struct tern_conn *conn, int status);
};

/* Of a status that a peer sent: may a request or a connection end with it? Others, above
 * all the one of requests that go on, are not passed to anybody. */
static inline bool tern_status_may_end(int status)
{
	return status <= 0 && status > -4096 && status != -EINPROGRESS &&
	       status != -EAGAIN;
}

struct tern_port_opts {
	struct tern_env *env;
	const struct tern_port_handler *handler;
	void *arg;               /* first argument of the handlers */
	uint32_t message_bytes;  /* largest message either way (both ends use the same) */
	const char *device;      /* verbs: the only device that it uses; NULL: all */
	uint64_t unreachable_ns; /* the caller gives up a conn whose unanswered_ns() has
				    come so far: questions are asked often enough for
				    that. 0: it never does */
};

struct tern_fabric_ops {
	const char *name; /* as in "tcp://" */

	/*
	 * Opens the devices of this process. -ENODEV, -ENOSYS: not on this machine, and
	 * *why points to a sentence (static storage) for `tern info`. -ENOMEM.
	 */
	int (*open)(struct tern_domain *domain, const struct tern_domain_opts *opts,
		struct tern_fabric **out, const char **why);
	void (*close)(struct tern_fabric *fabric);

	/*
	 * Makes `mem` known to the devices; called once per mem and fabric, before any
	 * other call that names it. *reg is kept by the caller and can be read with
	 * tern_mem_reg(). NULL if the fabric needs no registration. -ENOMEM.
	 */
	int (*mem_register)(struct tern_fabric *fabric, struct tern_mem *mem, void **reg);
	void (*mem_unregister)(
		struct tern_fabric *fabric, struct tern_mem *mem, void *reg);

	int (*port_new)(struct tern_fabric *fabric, const struct tern_port_opts *opts,
		struct tern_port **out);
	/* All conns and lsns must be gone. */
	void (*port_free)(struct tern_port *port);

	/*
	 * Listens at `address` (without "NAME://"). -EINVAL: malformed; -EADDRINUSE,
	 * -EADDRNOTAVAIL, -EACCES. lsn_address() gives what to connect to, valid as long
	 * as lsn.
	 */
	int (*listen)(struct tern_port *port, const char *address, struct tern_lsn **out);
	const char *(*lsn_address)(struct tern_lsn *lsn);
	void (*lsn_close)(struct tern_lsn *lsn); /* at once; accepted conns stay */

	/*
	 * Starts to connect; `up` or `closed` follows. Nothing may be sent before `up`.
	 * -EINVAL: malformed; -EMFILE, -ENOMEM. There is no time limit in here: the
	 * caller has one, and close()s.
	 */
	int (*connect)(
		struct tern_port *port, const char *address, struct tern_conn **out);

	/*
	 * Ends the conn: `closed` follows, with status 0 if it was up and healthy.
	 * Messages and puts already taken are still sent when `flush` is set and the peer
	 * takes them within a second; without it they may be lost. Calling it again is
	 * harmless.
	 */
	void (*conn_close)(struct tern_conn *conn, bool flush);

	/*
	 * For how long the host of the peer (its kernel, its NIC) is known to have left
	 * what it was asked unanswered; 0: it answers. The peer's program takes no part
	 * in this: one that does not poll is well. The time is counted up to a question
	 * that should have been answered by now, so a path that is back in time is never
	 * given up because nobody has asked it again.
	 *
	 * The call asks: from then on the fabric sees to it that a question is under way.
	 * It costs a system call or a post, so callers call it a few times a second, and
	 * only for a conn that is up and on which nothing is heard. NULL: the fabric
	 * knows without asking (shm: the kernel tells of a process that ends).
	 */
	uint64_t (*unanswered_ns)(struct tern_conn *conn);

	/*
	 * One message: `head` (a multiple of 8 bytes), then `payload` of `payload_bytes`
	 * from memory; together at most message_bytes. Both are copied or gone when it
	 * returns 0. -EAGAIN: no room, nothing was taken, `writable` will come.
	 * -ENOTCONN: it failed, `closed` is on its way.
	 */
	int (*send)(struct tern_conn *conn, const void *head, size_t head_bytes,
		const void *payload, size_t payload_bytes);

	/*
	 * Writes `bytes` from (mem, offset) to `remote` + remote_offset. done(0): the
	 * source may be reused; says nothing of the peer (a message behind it does).
	 * Errors as send(). Only with TERN_CAP_PUT. bytes > 0.
	 */
	int (*put)(struct tern_conn *conn, struct tern_op *op, struct tern_mem *mem,
		uint64_t offset, uint64_t bytes, const struct tern_region *remote,
		uint64_t remote_offset);

	/*
	 * Reads `bytes` at `remote` + remote_offset into (mem, offset). done(0): they are
	 * there. done(-EACCES): the peer does not let us (permission outside our
	 * control); the bytes are not there and the conn lives. Errors as send(). Only
	 * with TERN_CAP_GET.
	 */
	int (*get)(struct tern_conn *conn, struct tern_op *op, struct tern_mem *mem,
		uint64_t offset, uint64_t bytes, const struct tern_region *remote,
		uint64_t remote_offset);

	/*
	 * Where `bytes` at `remote` + remote_offset can be read in place, until unpeek().
	 * The mapping outlives the conn, so that a peer's death takes no memory from
	 * under a reader. Nor do the bytes change when the conn ends: `closed` is not
	 * called at the end that owns them before they were given back, or the
	 * reader's process is gone. -EAGAIN: not yet; op->done() tells when to try again.
	 * -ENOTSUP: not this region (memory outside slabs): use get. Only with
	 * TERN_CAP_PEEK.
	 */
	int (*peek)(struct tern_conn *conn, struct tern_op *op,
		const struct tern_region *remote, uint64_t remote_offset, uint64_t bytes,
		const void **out);
	/* Ends one successful peek() of this port; `data` is what it gave. */
	void (*unpeek)(struct tern_port *port, const void *data);

	/*
	 * Lets the peer of `conn` reach (mem, offset, bytes), and any later conn of this
	 * port with the same conn->owner (a reconnect, another rail). Constant time, no
	 * system call. -EAGAIN: all entries are in use; -ENOTSUP: memory of a kind that
	 * the fabric does not reach (see tern_conn_reaches). bytes may be 0.
	 */
	int (*expose)(struct tern_conn *conn, struct tern_mem *mem, uint64_t offset,
		uint64_t bytes, enum tern_access access, struct tern_region *out);

	/*
	 * Ends it. 0: from now on the fabric does not touch the memory for the peer.
	 * -EINPROGRESS: bytes are landing right now; op->done() tells when they no longer
	 * do. A peer that uses the region later gets its conn cut or its bytes dropped (a
	 * put that crossed the withdrawal is no crime). Regions that the peer reads in
	 * place, and those of a conn with TERN_CAP_UNGUARDED, are not protected by this:
	 * withdraw when the peer has said that it is done, or is gone. Needs no live
	 * conn.
	 */
	int (*withdraw)(struct tern_port *port, struct tern_op *op,
		const struct tern_region *region);

	/*
	 * Can a GPU of the peer's read `mem`, memory of a GPU, where it is? 0: expose()
	 * it, now or later on this conn. -EAGAIN: the peer was asked, `writable` will
	 * come. -ENOTSUP: no, for this conn. -ENOTCONN. Only with TERN_CAP_LEND.
	 */
	int (*offer)(struct tern_conn *conn, const struct tern_mem *mem);
	/*
	 * Where copies of ours read `bytes` at `remote` + remote_offset. The address
	 * outlives the conn. -ENOTSUP: a region of other memory: use get(). -ENOTCONN:
	 * the peer did not offer it, and the conn was cut. Only with TERN_CAP_LEND.
	 */
	int (*borrow)(struct tern_conn *conn, const struct tern_region *remote,
		uint64_t remote_offset, uint64_t bytes, struct tern_loan *out);
	/* Ends one borrow(): no copy is under way any more. -ECONNRESET: the peer had
	 * closed, so what was copied may be torn; the conn's end is on its way. */
	int (*repay)(struct tern_loan *loan);

	/*
	 * How all devices in use reach `mem`, of another kind than the host's, in a word
	 * for people ("dma-buf"); NULL: they do not. The answer may change when a device
	 * comes or goes; what is exposed or under way stays possible as long as
	 * the conn is up. Only with TERN_CAP_DEVICE; else the entry may be NULL.
	 */
	const char *(*reaches)(const struct tern_conn *conn, const struct tern_mem *mem);

	/* Describes up to `max` devices, one entry for each port. How many there are.
	 * NULL: the fabric has none. */
	int (*devices)(
		struct tern_fabric *fabric, struct tern_rdma_device *out, unsigned max);

	/*
	 * Sends what waits, receives, completes, calls handlers; at most about `budget`
	 * events, so that one busy conn does not keep the others and the timers waiting.
	 * (tcp: whoever has connected meanwhile comes on top.) How many events.
	 */
	int (*poll)(struct tern_port *port, int budget);
	/* Sends what waits and prepares for sleep: after 0, fd() becomes readable on the
	 * next event. -EAGAIN: there is one already: poll. */
	int (*arm)(struct tern_port *port);
	int (*fd)(struct tern_port *port); /* -1 if the fabric has none (sim) */
};

/* The heads of the providers' own structures. */
struct tern_fabric {
	const struct tern_fabric_ops *ops;
	struct tern_domain *domain;
	unsigned index; /* in the domain's table: see tern_mem_reg */
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
	void *user;           /* the caller's */
	uint64_t complain_ns; /* tern_lsn_may_complain: not before */
};

/* Has it been quiet for a minute? A peer that cannot be accepted tries again and again,
 * and one line says as much as hundreds. */
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
	uint32_t caps;               /* enum tern_caps */
	uint32_t eager_bytes;        /* this fabric's default eager threshold */
	uint32_t eager_mapped_bytes; /* the same for slabs, if the peer maps them; or 0 */
	uint64_t chunk_bytes;        /* best size of one put or get of a large transfer */
	uint64_t bulk_bytes; /* what is put stands before the messages behind it for as
				long as its bytes take: tensors of so many and more should
				be put over other conns. 0: no such thing (verbs) */
	void *user;          /* the caller's */
	void *owner;   /* set by the caller before it exposes or accepts anything: whom
			  regions   belong to. Compared, never followed */
	char name[80]; /* for messages: "tcp 10.0.0.7:41234", "shm pid 812" */
};

extern const struct tern_fabric_ops tern_tcp_fabric_ops;
extern const struct tern_fabric_ops tern_shm_fabric_ops;
extern const struct tern_fabric_ops tern_sim_fabric_ops;
extern const struct tern_fabric_ops tern_sim_b_fabric_ops;
extern const struct tern_fabric_ops tern_verbs_fabric_ops;

#endif
