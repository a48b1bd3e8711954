/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers, channels and requests: how tensors are sent and received.
 *
 * A receiver posts where the tensor of a key is to go, and a sender posts the tensor, in
 * either order. The k-th send of a (channel, key, step) is matched with the k-th receive
 * of the same triple; there is no order between different triples. The dtype and the
 * shape travel with the bytes.
 *
 * The caller owns each struct tern_req. It must be zeroed ({0}) before its first use, and
 * stay in place until its done() has run or tern_test() no longer returns -EINPROGRESS. A
 * request ends exactly once, with one status. It may then be posted again, after
 * tern_release() if it holds a buffer or memory of the peer.
 *
 * Threads: every function of this file, except tern_key(), must be called on the thread
 * that uses the context.
 *
 * Callbacks run only inside tern_progress() of their context (and so inside tern_wait,
 * tern_wait_any and tern_context_free), never inside the call that causes them; only the
 * log function may run in any call. A callback must not block, throw or longjmp. It may
 * call these functions:
 *
 *                                      accept()  event()  event() DOWN  done()  log
 *     tern_send, recv, recv_any, cancel, release
 *                                        yes       yes         no        yes    no
 *     tern_channel_open                  yes       yes         no        yes    no
 *     tern_peer_set_opts, close          yes       yes         no        yes    no
 *     tern_peer_free of this peer        yes       yes         yes       yes    no
 *     tern_peer_name and the like        yes       yes         yes       yes    no
 *     tern_connect, tern_listen          yes       yes         yes       yes    no
 *     tern_listener_free, refuse_new     yes       yes         yes       yes    no
 *     pools, memory, tern_context_wake   yes       yes         yes       yes    no
 *     tern_progress, arm, wait, wait_any
 *       and tern_context_free (own ctx)  no        no          no        no     no
 *
 * "no" in the column DOWN concerns the peer that went down: its callback may use other
 * peers, and may call tern_release() for requests of this peer. A call of the last row
 * from a callback aborts the process. done() may post the request again or free it.
 */
#ifndef TERN_CHANNEL_H
#define TERN_CHANNEL_H

#include <errno.h>

#include <tern/context.h>
#include <tern/memory.h>
#include <tern/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tern_peer;
struct tern_channel;
struct tern_listener;

/* ---- peers ---- */

enum tern_peer_event {
	/* The peer is connected; requests that were posted earlier start to move. */
	TERN_PEER_UP,
	/* The peer is silent, or its connection was lost and is being restored. */
	TERN_PEER_SUSPECT,
	TERN_PEER_RECOVERED, /* the peer answers again; no data was lost */
	/* The connection has ended for good, or could not be made. Every request that was
	 * still posted has ended with `status` (-ESHUTDOWN if that is 0), except sends
	 * and puts whose data the peer still reads in place. */
	TERN_PEER_DOWN,
};

struct tern_peer_opts {
	/*
	 * Reports a change of the peer's state. `status` is the reason of SUSPECT and
	 * DOWN; 0 with DOWN means that one of the two ends closed in an orderly way. May
	 * be NULL.
	 *
	 * DOWN is reported once, unless the peer was freed before, and is the last event.
	 * After it the only calls allowed on the peer are tern_peer_free(), and
	 * tern_recv_any(), which does not wait for the peer. If the remote
	 * process connects again, it is a new struct tern_peer.
	 */
	void (*event)(struct tern_peer *peer, enum tern_peer_event event, int status,
		void *arg);
	void *arg;
	/* Name of this end, which the remote peer shows in its messages. It is copied; at
	 * most 63 bytes are used. Any bytes are allowed: unprintable ones are shown
	 * escaped. NULL: the remote peer shows the address only. */
	const char *name;
	/* Pool from which TERN_RECV_ALLOC receives take their buffers; also
	 * TERN_RECV_PEEK receives of tensors that cannot be read in place. Small tensors
	 * never can: their bytes travel in the first message. May be NULL. */
	struct tern_pool *pool;
	/*
	 * Secret that both ends must know; used by tern_listen and tern_connect. It is
	 * copied. NULL: the secret of the context. tern_peer_set_opts() ignores it,
	 * because a peer is reported only after it has proved that it knows the secret.
	 *
	 * The secret authenticates the handshake; tensors are not encrypted. An
	 * eavesdropper can test guesses of the secret offline against one recorded
	 * handshake, so use at least 16 random bytes.
	 */
	const char *secret;
	/* Is called for each notification of the peer (window.h). `data` is valid until it
	 * returns. It may call what event() may call. NULL: notifications are dropped,
	 * with a log line. */
	void (*notified)(
		struct tern_peer *peer, const void *data, size_t bytes, void *arg);
};

/*
 * Listens at `address`, which is "FABRIC://REST". FABRIC is auto, verbs, tcp, shm or sim.
 * REST is
 *
 * - HOST:PORT for auto, verbs and tcp, and also HOST:PORT@DEVICE for verbs; with port 0
 *   the system picks one (see tern_listener_address);
 * - any name for shm;
 * - a number for sim.
 *
 * auto listens on tcp, on shm for peers of this host, and on verbs if an RDMA device has
 * the address.
 *
 * accept() is called once for each peer that has completed the handshake, instead of its
 * event UP. From then on the program owns the peer, which is freed by tern_peer_free() or
 * with the context. tern_peer_free() inside accept() refuses the peer: the remote end
 * goes DOWN with -ECONNRESET. tern_peer_address() returns the peer's address. The peer
 * has the listener's options (`opts`, copied; NULL: none) until tern_peer_set_opts()
 * changes them. No event is reported before accept() has returned, so accept() can set
 * the options without missing an event.
 *
 * Returns 0 or
 *
 * - -EINVAL: malformed address or empty secret;
 * - -ENOTSUP: a secret is set, but this library was built without OpenSSL;
 * - -ENODEV: the fabric is not available on this machine;
 * - -ENODATA: no host has this name; -ENONET: the name cannot be looked up now;
 * - -EADDRINUSE, -EADDRNOTAVAIL, -EACCES and the like: the system's error;
 * - -E2BIG: as tern_domain_new(); -ENOMEM.
 *
 * A host name is looked up inside this call, which blocks until the answer comes.
 */
TERN_API int tern_listen_sized(struct tern_context *ctx, const char *address,
	const struct tern_peer_opts *opts, size_t opts_bytes,
	void (*accept)(struct tern_peer *peer, void *arg), void *arg,
	struct tern_listener **out);
static inline int tern_listen(struct tern_context *ctx, const char *address,
	const struct tern_peer_opts *opts,
	void (*accept)(struct tern_peer *peer, void *arg), void *arg,
	struct tern_listener **out)
{
	return tern_listen_sized(ctx, address, opts, sizeof(*opts), accept, arg, out);
}

/* Address that peers can connect to, with the port that the system picked; over tcp and
 * auto with HOST as it was given, which may stand for all addresses of this machine. Valid
 * until tern_listener_free(). */
TERN_API const char *tern_listener_address(const struct tern_listener *listener);

#define TERN_ADDRESS_BYTES 128 /* of an address as text, with its end */

/*
 * Writes the addresses that peers can connect to, at most `max`, to `out`. Those of a
 * listener that listens at all addresses of this machine (HOST is empty, 0.0.0.0 or [::])
 * are read from the network interfaces that are up, anew in each call: IPv4 comes first,
 * in the system's order of interfaces; loopback addresses are there only if there are no
 * others, and link-local ones of IPv6 never. Over verbs, and of any other listener, it is
 * that of tern_listener_address(). Each can be passed to tern_connect(), alone or in a
 * list; which ones a peer reaches only the network knows. Returns how many there are,
 * which may be more than `max`, or -errno (-EADDRNOTAVAIL: no interface is up).
 */
TERN_API int tern_listener_addresses(const struct tern_listener *listener,
	char (*out)[TERN_ADDRESS_BYTES], unsigned max);

/* From now on accept() is not called: a new peer is refused with -ECONNREFUSED, and so
 * tries again until its connect_ns has passed. Unlike tern_listener_free(), this lets
 * accepted peers come back when their connection was lost. It is meant for a program that
 * is ending, and whose successor will listen at the same address. */
TERN_API void tern_listener_refuse_new(struct tern_listener *listener);

/* Stops listening. Accepted peers stay; a new peer that is still in its handshake is
 * refused. NULL is allowed. */
TERN_API void tern_listener_free(struct tern_listener *listener);

/*
 * Starts to connect to `address`; requests may be posted immediately. Failed attempts are
 * repeated until the context's connect_ns has passed. Then the peer goes DOWN with the
 * cause of the last failure (-ETIMEDOUT only if no attempt failed for another reason):
 *
 * - -ECONNREFUSED, -ETIMEDOUT, -EHOSTUNREACH and the like;
 * - -ENODATA: no host has this name;
 * - -ENONET: the name cannot be looked up now;
 * - -EPROTO: the remote program is not a Tern peer;
 * - -EPROTONOSUPPORT: the remote program speaks another version of the protocol;
 * - -EILSEQ: the remote machine has the opposite byte order;
 * - -EACCES: the secrets differ;
 * - -EINVAL: an address of a list, other than the first, is malformed;
 * - -ENOMEM: this process has no memory, or the remote one has none for another peer.
 *
 * After -ENODATA, -EPROTO, -EPROTONOSUPPORT, -EILSEQ, -EACCES or -EINVAL, a retry of the
 * same address cannot succeed: the next address of a list is tried, and after the last
 * one the peer goes DOWN immediately.
 *
 * Returns 0 or
 *
 * - -EINVAL: malformed address or empty secret;
 * - -ENOTSUP: a secret is set, but this library was built without OpenSSL;
 * - -ENODEV: the fabric is not available on this machine;
 * - -E2BIG: more than eight addresses (one with auto stands for up to four), or as
 *   tern_domain_new();
 * - -ENOMEM.
 *
 * The call does not block for numeric addresses and for names in /etc/hosts. Any other
 * host name is looked up by the system's resolver (getaddrinfo), in this call and again
 * in tern_progress() at each further attempt. A name server that does not answer blocks
 * that call for seconds; if that matters, look up names on a thread of your own.
 *
 * `address` may be a list, "verbs://10.1.0.7:5000+tcp://10.0.0.7:5000". The addresses are
 * tried in this order. A connection that is lost later may be restored on the address at
 * which it was first made, or on a later one of the list; requests continue.
 * "auto://HOST:PORT" stands for such a list: shm if HOST is this host, verbs, tcp. (A
 * peer that was reached by shm stays on shm: if that connection ends, the peer goes
 * DOWN.) The rails of a connection (rail_count) use the addresses of its fabric in turn.
 */
TERN_API int tern_connect_sized(struct tern_context *ctx, const char *address,
	const struct tern_peer_opts *opts, size_t opts_bytes, struct tern_peer **out);
static inline int tern_connect(struct tern_context *ctx, const char *address,
	const struct tern_peer_opts *opts, struct tern_peer **out)
{
	return tern_connect_sized(ctx, address, opts, sizeof(*opts), out);
}

/* Replaces all options except `secret`; opts NULL: none. The new options apply from the
 * next event on. Receives that have already taken buffers from the former pool keep using
 * that pool. The remote end goes on showing the name that it got in the handshake.
 * -E2BIG: as tern_domain_new(). */
TERN_API int tern_peer_set_opts_sized(
	struct tern_peer *peer, const struct tern_peer_opts *opts, size_t opts_bytes);
static inline int tern_peer_set_opts(
	struct tern_peer *peer, const struct tern_peer_opts *opts)
{
	return tern_peer_set_opts_sized(peer, opts, sizeof(*opts));
}

/* Description of the peer for messages: the name it gave itself and its address, as
 * "worker 3 (tcp 10.0.0.7:41234)", in printable characters; before it is connected, the
 * address given to tern_connect(). Valid until the peer is freed; the text changes when
 * the peer comes UP. */
TERN_API const char *tern_peer_name(const struct tern_peer *peer);
/* Name of the fabric that the peer is connected by: "tcp", "shm", ...; "" before it is
 * connected. It changes if the connection is restored on another fabric (see
 * tern_connect). Static storage. */
TERN_API const char *tern_peer_fabric(const struct tern_peer *peer);
/* Address of the remote end of the present or the last connection: "10.0.0.7:41234" over
 * tcp and verbs, "pid 812" over shm; "" before the first connection. Valid until the peer
 * is freed; the text changes when the connection changes. */
TERN_API const char *tern_peer_address(const struct tern_peer *peer);
/* True if TERN_RECV_PEEK would now read tensors of this peer's pools in place, except
 * small ones, which travel in the first message. False while there is no connection. */
TERN_API bool tern_peer_can_peek(const struct tern_peer *peer);

/*
 * Closes the connection in an orderly way. Sends already posted are completed, then a
 * goodbye message is sent to the peer; when the peer has answered, the event DOWN is
 * reported with status 0. Receives that were not matched end with -ESHUTDOWN.
 *
 * The remote program may still post receives for tensors that had arrived before the
 * goodbye, and its end answers the goodbye only after that. If it does not post them, or
 * does not call tern_progress(), this end waits; only dead_ns and unreachable_ns limit
 * the wait. To stop waiting, call tern_peer_free().
 *
 * A peer that is not connected yet goes DOWN immediately if no request is posted.
 * Otherwise Tern goes on trying to connect until connect_ns has passed. A second call
 * does nothing.
 */
TERN_API void tern_peer_close(struct tern_peer *peer);

/* Closes the connection at once if it still exists. Requests end with -ECANCELED in a
 * later tern_progress(), when nothing can access their memory any more; they must stay in
 * place until then. No event is reported after this call. The peer and its channels must
 * not be used any more. NULL is allowed. */
TERN_API void tern_peer_free(struct tern_peer *peer);

/* ---- channels ---- */

/* Opens channel `number` of this peer. A channel is a name space of keys. Both ends open
 * the same number, in any order. A channel cannot be closed: it takes some tens of bytes
 * until the peer is freed. -EEXIST: the channel was already open, and *out is that
 * channel; -EINVAL: the number is UINT32_MAX, which Tern uses itself; -ENOMEM. */
TERN_API int tern_channel_open(
	struct tern_peer *peer, uint32_t number, struct tern_channel **out);

/* ---- requests ---- */

/* A tensor: where its bytes are, its dtype and its shape. */
struct tern_tensor {
	/* The data; buf.bytes must be the size of `shape`. */
	struct tern_buf buf;
	struct tern_shape shape;
};

enum tern_req_flags {
	TERN_RECV_ALLOC = 1 << 0, /* receive into a buffer of tern_peer_opts.pool */
	/* Receive: read the tensor in place, in the sender's memory, if that is possible;
	 * otherwise receive as with TERN_RECV_ALLOC. tern_req.peeked says which of the
	 * two happened. */
	TERN_RECV_PEEK = 1 << 1,
	/* Send this tensor before other large tensors to the same peer, if it is written
	 * into the receiver's memory (tcp, verbs); no effect if the receiver reads it
	 * (always over shm, often over verbs). */
	TERN_URGENT = 1 << 2,
	/* tern_recv_any: all peers are needed, so the request ends when the first of them
	 * fails. */
	TERN_ANY_NEEDS_ALL = 1 << 3,
};

/*
 * One send or receive: 912 bytes. The structure includes the library's own state of the
 * transfer, so that posting allocates nothing. While the request is posted, the library
 * keeps pointers to it: it must not be moved, copied or freed (by a vector that grows,
 * realloc, a coroutine's frame), nor lie in a stack frame that ends.
 */
struct tern_req {
	/* Set by the caller before posting. done() runs once when the request has ended;
	 * it may be NULL. */
	void (*done)(struct tern_req *req);
	void *arg;

	/* Set by the library when the request has ended. */
	int status; /* -EINPROGRESS until the end */
	/* Receive: shape of the tensor that was sent, also with -EMSGSIZE. */
	struct tern_shape shape;
	uint64_t bytes; /* size of the tensor that was sent, also with -EMSGSIZE */
	/* Receive: address of the tensor's first byte for the CPU, also with ALLOC and
	 * PEEK. NULL if the tensor is in GPU memory: then see `buf`, or the buffer that
	 * was passed to tern_recv(). */
	const void *data;
	/* Receive with ALLOC, or with PEEK if `peeked` is false: the buffer that holds
	 * the tensor. The caller owns it until tern_release(). */
	struct tern_buf buf;
	bool peeked; /* `data` is in the sender's memory: call tern_release() soon */

	/* Private to the library; the space is larger than this version needs. `posted`
	 * is TERN_REQ_POSTED from the first time that the request is posted, also after
	 * it has ended. */
	uint32_t posted;
	uint64_t priv[96];
};

#define TERN_REQ_POSTED 0x7e52e901u

/* 64-bit key of a name: the FNV-1a hash of its bytes. If two names have the same key, a
 * send and a receive with these names fail when they are matched: see tern_send(). */
TERN_API uint64_t tern_key(const char *name);

/*
 * Sends `tensor` under (key, step).
 *
 * The tensor's buffer must stay unchanged until the request has ended. The request of a
 * small tensor ends when the library has copied or sent the bytes, that of a larger one
 * when the peer has the bytes. If the peer reads the tensor in place (TERN_RECV_PEEK),
 * the request ends only when the peer has released the tensor, has freed its context, or
 * its process has ended: no cancel, close or dead_ns ends such a send earlier.
 *
 * `name` may be NULL or have 1 to 255 bytes of any kind; it is read in this call only. If
 * both the send and the receive have a name, the names are compared when the two requests
 * are matched. If they differ, both requests end with -EEXIST and a log line shows both
 * names (of a name of more than 47 bytes, "..." and the last 44 bytes); a small send may
 * have ended with 0 before.
 *
 * Statuses of the request:
 *
 * - 0: sent;
 * - -EMSGSIZE: the receiver's buffer is too small. Both ends get this status, except a
 *   small send, which may have ended with 0 before;
 * - -EEXIST: the names differ;
 * - -ECANCELED: tern_cancel() was called at either end, or the peer or the context was
 *   freed at this end;
 * - the status of the peer that went down (-ECONNRESET, -ETIMEDOUT, ...), or -ESHUTDOWN
 *   if one of the two ends closed in an orderly way;
 * - -EACCES: over shm, the receiver could not read the sender's memory;
 * - for GPU memory, -EIO, -ENOTRECOVERABLE and the like: a copy from or to the GPU
 *   failed; the peer stays up;
 * - for GPU memory, -ENOBUFS: the transfer needs a bounce buffer, and the tensor is
 *   larger than the domain's bounce_bytes.
 *
 * Both ends get these statuses for GPU memory, with two exceptions: a send that failed
 * before the peer knew of it, and a receive that failed after the send had ended (a small
 * one), or after the sender was told that its bytes had arrived.
 *
 * Returns 0 if the request was taken; done() will then run, even if the transfer fails.
 * Otherwise done() does not run:
 *
 * - -EBUSY: the request is posted and has not ended, or holds a buffer or memory that
 *   must be released first;
 * - -EINVAL: the shape is invalid or does not have buf.bytes bytes, the buffer is outside
 *   its memory, `name` is too long or empty, or a flag is not one of this function;
 * - -EOVERFLOW: req_bytes is smaller than the struct tern_req that this library needs;
 * - -ENOMEM, -ENOTRECOVERABLE, ...: for the first request on a GPU, the library's own
 *   buffers and streams could not be made.
 */
TERN_API int tern_send_sized(struct tern_channel *channel, struct tern_req *req,
	size_t req_bytes, uint64_t key, uint64_t step, const struct tern_tensor *tensor,
	const char *name, unsigned flags);
static inline int tern_send(struct tern_channel *channel, struct tern_req *req,
	uint64_t key, uint64_t step, const struct tern_tensor *tensor, const char *name,
	unsigned flags)
{
	return tern_send_sized(
		channel, req, sizeof(*req), key, step, tensor, name, flags);
}

/*
 * Receives the tensor of (key, step) into the buffer `room`. With ALLOC or PEEK, `room`
 * is ignored and may be NULL. Return values and statuses are those of tern_send(), and
 * also:
 *
 * - status -ENOBUFS: the tensor needs a buffer from the pool, and is larger than a slab
 *   of the pool; or PEEK could not read in place, and the peer's options have no pool;
 * - returns -EINVAL: ALLOC without a pool in the peer's options;
 * - returns -EACCES: the memory of `room` was wrapped read-only.
 */
TERN_API int tern_recv_sized(struct tern_channel *channel, struct tern_req *req,
	size_t req_bytes, uint64_t key, uint64_t step, const struct tern_buf *room,
	const char *name, unsigned flags);
static inline int tern_recv(struct tern_channel *channel, struct tern_req *req,
	uint64_t key, uint64_t step, const struct tern_buf *room, const char *name,
	unsigned flags)
{
	return tern_recv_sized(channel, req, sizeof(*req), key, step, room, name, flags);
}

/*
 * Receives one tensor of (key, step) from any of `count` channels, which belong to peers of
 * one context. The array is read in this call only. tern_recv_source() says on which
 * channel the tensor has come.
 *
 * If tensors that no receive has taken have arrived on several of the channels, the one
 * that arrived first is taken. Otherwise the request waits on every channel, behind the
 * receives of the triple that were posted there before it and ahead of later ones. It takes
 * the first tensor that none of the earlier receives takes, and then goes on as if
 * tern_recv() had been called for that channel: it ends with an error if that peer goes
 * down. No other send is touched: it waits for the next receive.
 *
 * A peer that goes down while the request waits for a tensor is no longer waited for. When
 * none is left, the request ends with the status of the first peer that failed, or with
 * -ESHUTDOWN if all were closed in an orderly way. With TERN_ANY_NEEDS_ALL it ends with the
 * status of the first peer that fails; an orderly close of a peer is no failure.
 *
 * The peers do not learn of the room before they have announced a tensor. So a large
 * tensor takes a round trip more than with a tern_recv() that was posted early.
 *
 * Return values and statuses are those of tern_recv(), which must all be possible for each
 * of the channels, and also:
 *
 * - returns -EINVAL: count is 0 or above INT_MAX, or the channels are of several contexts;
 * - returns -ENOMEM: while the request waits, it takes about 1 KB for each channel.
 */
TERN_API int tern_recv_any_sized(struct tern_channel *const *channels, size_t count,
	struct tern_req *req, size_t req_bytes, uint64_t key, uint64_t step,
	const struct tern_buf *room, const char *name, unsigned flags);
static inline int tern_recv_any(struct tern_channel *const *channels, size_t count,
	struct tern_req *req, uint64_t key, uint64_t step, const struct tern_buf *room,
	const char *name, unsigned flags)
{
	return tern_recv_any_sized(
		channels, count, req, sizeof(*req), key, step, room, name, flags);
}

/* Index of the channel that a request of tern_recv_any(), which has ended, was matched on;
 * or of the peer whose end has ended the request. -1: neither, since it was cancelled
 * before. */
TERN_API int tern_recv_source(const struct tern_req *req);

/* Status of the request: -EINPROGRESS until it has ended; -EINVAL if it was never
 * posted. */
static inline int tern_test(const struct tern_req *req)
{
	return req->posted == TERN_REQ_POSTED ? req->status : -EINVAL;
}

/*
 * Asks for an early end of the request. The request still ends once, through done():
 * with -ECANCELED, or with the status that it reached first. A receive that was not
 * matched is removed. A transfer in progress is stopped if that is still possible, and
 * then ends with -ECANCELED at both ends.
 */
TERN_API void tern_cancel(struct tern_req *req);

/*
 * Gives back the buffer or the memory that a receive with ALLOC or PEEK holds. Call it
 * once for each such request that ended with 0. For a request that holds nothing, or was
 * never posted, it does nothing. If it is never called, memory read in place stays
 * readable until the context is freed, even if the peer is gone, and a buffer stays taken
 * as long as its pool exists.
 */
TERN_API void tern_release(struct tern_req *req);

/* ---- statistics ---- */

struct tern_peer_stats {
	uint64_t messages_sent, messages_received;
	uint64_t bytes_sent, bytes_received; /* tensor data, in bytes */
	/* Numbers of transfers, by how the bytes moved: in the first message; by a put
	 * into the receiver's memory; by a get from the sender's memory; not at all,
	 * since the receiver read them in place (the sending end counts these as
	 * gets). */
	uint64_t eager_count, put_count, get_count, peek_count;
	uint64_t reconnect_count;
	uint64_t credit_stall_count; /* sends that had to wait for a credit */
	/* Messages by which receives asked the peer for a send that has no credit. */
	uint64_t want_count;
	/* Transfers of GPU memory that were copied through page-locked host memory. */
	uint64_t staged_count;
	/* Transfers of GPU memory that the RDMA device accessed itself. */
	uint64_t direct_count;
	/* Transfers of the sender's GPU memory that the receiving process copied
	 * directly (CUDA IPC). */
	uint64_t ipc_count;
};
TERN_API void tern_peer_stats_sized(
	const struct tern_peer *peer, struct tern_peer_stats *out, size_t out_bytes);
static inline void tern_peer_stats(
	const struct tern_peer *peer, struct tern_peer_stats *out)
{
	tern_peer_stats_sized(peer, out, sizeof(*out));
}

#ifdef __cplusplus
}
#endif
#endif
