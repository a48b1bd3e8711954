/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers, channels and requests: the rendezvous.
 *
 * A receiver posts where a key should land, a sender posts what the key holds, in either
 * order. The k-th send of a (channel, key, step) pairs with the k-th receive of the same;
 * among different triples there is no order. dtype and shape travel with the bytes.
 *
 * Requests are the caller's: zeroed before their first use ({0}), they must stay in place
 * until done() ran (or tern_test says something else than -EINPROGRESS). Each ends with
 * exactly one status, and may then be posted again, once what it holds is released.
 * Everything here is called on the context's thread.
 *
 * Callbacks run in tern_progress() of their context only (and so in tern_wait,
 * tern_wait_any and tern_context_free), never in the call that causes them. None of them
 * may block, throw or longjmp. What each may call:
 *
 *                                      accept()  event()  event() DOWN  done()  log
 *     tern_send, recv, cancel, release   yes       yes         no        yes    no
 *     tern_channel_open                  yes       yes         no        yes    no
 *     tern_peer_set_opts, close          yes       yes         no        yes    no
 *     tern_peer_free of this peer        yes       yes         yes       yes    no
 *     tern_peer_name and the like        yes       yes         yes       yes    no
 *     tern_connect, tern_listen          yes       yes         yes       yes    no
 *     tern_listener_free                 yes       yes         yes       yes    no
 *     pools, memory, tern_context_wake   yes       yes         yes       yes    no
 *     tern_progress, arm, wait, wait_any
 *       and tern_context_free (own ctx)  no        no          no        no     no
 *
 * "no" in the column DOWN is about the peer that went down: requests on others are
 * allowed, and so is tern_release of what a request on this one holds. "no" in the last
 * row stops the process. In done(), the request may be posted again or freed.
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
	TERN_PEER_UP,      /* connected; requests posted before now start to move */
	TERN_PEER_SUSPECT, /* silent, or its connection was lost and is being restored */
	TERN_PEER_RECOVERED, /* heard from again; nothing was lost */
	TERN_PEER_DOWN,      /* gone for good: every request has ended with `status`, but
				for sends that the peer still reads in place */
};

struct tern_peer_opts {
	/* `status`: why, for SUSPECT and DOWN (0: the peer said goodbye). May be NULL.
	 * DOWN comes once, unless the peer was freed before, and is the last; after it
	 * the only call allowed on the peer is tern_peer_free. The process of a peer that
	 * is DOWN may come again as another peer. */
	void (*event)(struct tern_peer *peer, enum tern_peer_event event, int status,
		void *arg);
	void *arg;
	/* How this end is to be called in the peer's messages. Copied; the first 63 bytes
	 * count, and any are allowed: what is not printable is shown escaped. NULL, also
	 * at one end only: it is called by its address alone. */
	const char *name;
	struct tern_pool *pool; /* where TERN_RECV_ALLOC receives come from, and PEEK
				   where the fabric cannot; may be NULL */
	/*
	 * The secret that both ends must know, for tern_listen and tern_connect; copied.
	 * NULL: the context's. tern_peer_set_opts ignores it: a peer has proved itself
	 * before anybody is told of it. The handshake is authenticated; bytes are not
	 * encrypted, and a secret that can be guessed can be guessed offline from one
	 * handshake: take 16 random bytes or more.
	 */
	const char *secret;
};

/*
 * Listens at `address`: "FABRIC://REST", FABRIC one of auto, verbs, tcp, shm, sim. For
 * auto, verbs and tcp REST is HOST:PORT, for verbs also HOST:PORT@DEVICE (port 0: the
 * system picks one; see tern_listener_address), for shm any name, for sim a number. auto
 * listens on tcp, for peers on this host on shm, and on verbs if an RDMA device has the
 * address.
 *
 * accept() is called once for each peer that completed the handshake, and takes the place
 * of its event UP. The peer is the program's from then on, to be freed by
 * tern_peer_free() or with the context; tern_peer_free() in accept() refuses it (the
 * other end goes DOWN with -ECONNRESET). tern_peer_address() says where it is. Its
 * options are the listener's
 * (`opts`, copied; NULL: none) until tern_peer_set_opts(); no event comes before accept()
 * has returned, so none is lost if it sets them.
 *
 * -EINVAL: address, or an empty secret; -ENOTSUP: a secret, and this library was built
 * without OpenSSL; -EADDRINUSE, -EADDRNOTAVAIL, -EACCES: from the system. A host name is
 * looked up in this call, which waits for that.
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

/* The address that peers connect to, with the port that was picked. Valid until
 * tern_listener_free. */
TERN_API const char *tern_listener_address(const struct tern_listener *listener);

/* Accepted peers stay. NULL is allowed. Who is in its handshake is cut. */
TERN_API void tern_listener_free(struct tern_listener *listener);

/*
 * Starts to connect; requests may be posted straight away. With numeric addresses, or
 * names that are in /etc/hosts, it returns at once; another host name is asked of the
 * system's resolver (getaddrinfo) in this call and at each further attempt, in
 * tern_progress(), and a name server that does not answer blocks for seconds: look up
 * names on a thread of your own where that matters. Retries until the context's
 * connect_ns has passed, then the peer goes DOWN with the last cause: -ECONNREFUSED,
 * -ETIMEDOUT, -ENODATA (no host has this name), -ENONET (it cannot be looked up now),
 * -EPROTO (not a Tern peer), -EPROTONOSUPPORT (another version), -EILSEQ (a machine of
 * the other byte order), -EACCES (the secret does not match), -ENODATA (no host has this
 * name: not tried again), -ENONET (its name cannot be looked up now). Looking up a name
 * that only the DNS knows blocks. At once: -EINVAL, malformed address or empty secret;
 * -ENOTSUP, a secret without OpenSSL; -ENODEV, a fabric that is not available here;
 * -E2BIG, more than eight addresses.
 *
 * `address` may be several, "verbs://10.1.0.7:5000+tcp://10.0.0.7:5000": they are tried
 * in this order, and a connection that is lost later may come back on the one that it had
 * or on one behind it; no request notices. "auto://HOST:PORT" is such a list: shm if
 * HOST is this host, verbs, tcp. (A peer reached by shm shares its fate: that is not left
 * again.) The rails of a connection (rail_count) go to the addresses of its fabric in
 * turn.
 */
TERN_API int tern_connect_sized(struct tern_context *ctx, const char *address,
	const struct tern_peer_opts *opts, size_t opts_bytes, struct tern_peer **out);
static inline int tern_connect(struct tern_context *ctx, const char *address,
	const struct tern_peer_opts *opts, struct tern_peer **out)
{
	return tern_connect_sized(ctx, address, opts, sizeof(*opts), out);
}

/* Sets all of them, the copied name too; NULL: none. The next event follows them. A pool
 * that receives take buffers from stays in use by those. -E2BIG: see tern_domain_new. */
TERN_API int tern_peer_set_opts_sized(
	struct tern_peer *peer, const struct tern_peer_opts *opts, size_t opts_bytes);
static inline int tern_peer_set_opts(
	struct tern_peer *peer, const struct tern_peer_opts *opts)
{
	return tern_peer_set_opts_sized(peer, opts, sizeof(*opts));
}

/* For people: what the other end calls itself, and where it is, "worker 3 (tcp
 * 10.0.0.7:41234)"; the address given to tern_connect until it is connected. Printable.
 * Valid until the peer is freed; the text changes when the peer comes up. */
TERN_API const char *tern_peer_name(const struct tern_peer *peer);
/* "tcp", "shm", ...; "" until it is connected; another one after it moved (tern_connect).
 * Static storage. */
TERN_API const char *tern_peer_fabric(const struct tern_peer *peer);
/* Where the other end of the present connection, or the last one, is: "10.0.0.7:41234"
 * over tcp and verbs, "pid 812" over shm; "" before the first. Valid until the peer is
 * freed; the text changes with the connection. */
TERN_API const char *tern_peer_address(const struct tern_peer *peer);
/* Does TERN_RECV_PEEK read tensors of the peer's pools in place now? False while there is
 * no connection. */
TERN_API bool tern_peer_can_peek(const struct tern_peer *peer);

/*
 * Orderly end: sends already posted are waited for, then goodbye is said, and when the
 * peer has said it too the event DOWN comes with status 0. Receives that nobody served
 * end with -ESHUTDOWN. A peer that is told goodbye may still receive what had arrived; it
 * goes down when it has. While it does not (its program does not poll, or its sends are
 * not received), this end waits, without limit but for dead_ns and unreachable_ns: who
 * does not want to wait longer frees the peer. Before it is connected: nothing is waited
 * for if nothing was posted, else until connect_ns has passed. Twice is harmless.
 */
TERN_API void tern_peer_close(struct tern_peer *peer);

/* Cuts the connection if it is still there: requests end with -ECANCELED in a later
 * tern_progress, when nothing can touch their memory any more; until then they must stay.
 * No event is reported after this call, the peer and its channels are not to be used any
 * more. NULL is allowed. */
TERN_API void tern_peer_free(struct tern_peer *peer);

/* ---- channels ---- */

/* Channel `number` of this peer, 0 to UINT32_MAX: a name space of keys. Both ends open
 * the same number, in any order. There is no close: it costs some tens of bytes, and
 * lives until the peer is freed. -EEXIST: it is open already, and *out is that one;
 * -ENOMEM. */
TERN_API int tern_channel_open(
	struct tern_peer *peer, uint32_t number, struct tern_channel **out);

/* ---- requests ---- */

/* Where a tensor is and what it is. */
struct tern_tensor {
	struct tern_buf buf; /* send: the data. receive: the room (bytes = capacity) */
	struct tern_shape shape;
};

enum tern_req_flags {
	TERN_RECV_ALLOC = 1 << 0, /* receive into a buffer of the peer's pool */
	TERN_RECV_PEEK = 1 << 1,  /* receive in place, read-only, where the fabric can;
				     else as  TERN_RECV_ALLOC. Which of them: `peeked` */
	TERN_URGENT = 1 << 2, /* send: ahead of other large transfers to this peer, where
				 the fabric puts (tcp, verbs); no effect on shm */
};

/*
 * 912 bytes: the library's account of the transfer is in here, so that a post
 * allocates nothing. While it is posted the library has pointers to it: not to be moved,
 * copied or freed (a vector that grows, a coroutine's frame, realloc), nor on a stack
 * that is left.
 */
struct tern_req {
	/* Set by the caller before it posts. done may be NULL. */
	void (*done)(struct tern_req *req);
	void *arg;

	/* Set when the request has ended. */
	int status;              /* -EINPROGRESS until then */
	struct tern_shape shape; /* receive: what was sent, also with -EMSGSIZE */
	uint64_t bytes;          /* of the tensor sent, also with -EMSGSIZE */
	const void *data; /* receive: its first byte for the CPU (ALLOC and PEEK too);
			     NULL: it is in memory of a GPU, see `buf` or the room */
	struct tern_buf
		buf; /* receive with ALLOC: the buffer, the caller's until release */
	bool peeked; /* `data` is the sender's memory: release soon */

	/* Private. The room is larger than what this version needs. */
	uint32_t posted; /* TERN_REQ_POSTED: it was, perhaps it has ended */
	uint64_t priv[96];
};

#define TERN_REQ_POSTED 0x7e52e901u

/* 64-bit key of a name: FNV-1a of its bytes. Collisions of names in use are found: see
 * tern_send. */
TERN_API uint64_t tern_key(const char *name);

/*
 * Sends `tensor` under (key, step). Its buffer must stay unchanged until the request
 * ended: for small tensors that is when they left, for larger ones when the peer has
 * them. What the peer reads in place (TERN_RECV_PEEK) stays in use until the peer has
 * released it, or until its process has ended: no cancel, close or dead_ns ends such a
 * send earlier.
 *
 * `name` may be NULL, else has 1 to 255 bytes of any kind, and is read in this call only.
 * Where both halves have one, they are
 * compared when they meet: if they differ, -EEXIST and a log line with both (of long
 * names the last 47 bytes); a small send may have ended before.
 *
 * Ends with 0; -EMSGSIZE: the receiver's buffer is too small (both ends get this, but of
 * a small tensor that had left already only the receiver does); -EEXIST; -ECANCELED; or
 * the peer's status when it goes down (-ECONNRESET, -ETIMEDOUT, ...). Of memory of a GPU
 * also -EIO, -ENOTRECOVERABLE and the like: a copy from or to it failed, and the peer
 * lives; -ENOBUFS: it is larger than the domain's bounce_bytes, where such a buffer is
 * needed. Both ends get these, but for a send that failed before the peer knew of it, and
 * a receive that failed when the sender had been told that its bytes arrived.
 *
 * Returns 0 when the request was taken, and then done() will run, even if it fails.
 * -EBUSY: it is posted already and has not ended, or holds what is to be released first.
 * -EINVAL: shape and bytes differ, or the buffer is outside its memory; the first request
 * on a GPU also -ENOMEM, -ENOTRECOVERABLE, ...: there is nothing to copy through.
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
 * Receives into `room` (ignored, may be NULL, with ALLOC or PEEK). Returns and ends as
 * tern_send does; also -ENOBUFS: ALLOC and the pool cannot ever hold it. Refused at once:
 * -EINVAL, ALLOC without a pool in the peer's options; -EACCES, a room that was wrapped
 * read-only.
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

/* -EINPROGRESS, or the status it ended with; -EINVAL: it was never posted. */
static inline int tern_test(const struct tern_req *req)
{
	return req->posted == TERN_REQ_POSTED ? req->status : -EINVAL;
}

/*
 * Asks for an early end. The request still ends once, through done(), with -ECANCELED or
 * with what it came to first. A receive that was not matched leaves as if never posted; a
 * transfer under way ends with -ECANCELED at both ends.
 */
TERN_API void tern_cancel(struct tern_req *req);

/*
 * Gives back what a receive with ALLOC or PEEK holds. Once per such request that ended
 * with 0; nothing happens for one that holds nothing, or was never posted. What is read
 * in place can be read until then or until the context is freed, also when the peer is
 * gone; a buffer lives as long as its pool.
 */
TERN_API void tern_release(struct tern_req *req);

/* ---- statistics ---- */

struct tern_peer_stats {
	uint64_t messages_sent, messages_received;
	uint64_t bytes_sent, bytes_received;                    /* tensor bytes */
	uint64_t eager_count, put_count, get_count, peek_count; /* transfers, by path */
	uint64_t reconnect_count;
	uint64_t credit_stall_count; /* sends that had to wait for a credit */
	uint64_t want_count;         /* receives that asked for a send that waits so */
	uint64_t staged_count;       /* of memory of a GPU, through page-locked memory */
	uint64_t direct_count;       /* the same, read or written there by the device */
	uint64_t ipc_count;          /* the same, copied from where it is (CUDA IPC) */
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
