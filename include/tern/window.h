/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows: one-sided access to the memory of another process.
 *
 * The owner makes a window of a buffer and passes its descriptor on, by whatever way the
 * program likes: a tensor, a file, a store of keys. Whoever has the descriptor and a peer
 * that is connected to the owner opens the window there, and puts bytes into it and gets
 * bytes from it. The owner's program posts nothing for that, and windows take no part in
 * the matching of sends and receives. A notification tells the owner's program that puts
 * have landed.
 *
 *     owner                                     the other end
 *     tern_window_new(ctx, &buf, ...)
 *     tern_window_describe()  -- descriptor --> tern_remote_open(peer, &desc, &remote)
 *                                               tern_put(remote, ...), tern_get(...)
 *     notified() of the peer's options <------- tern_notify(peer, ...)
 *     tern_window_close()                       requests under way end with -ESTALE
 *
 * Whether the owner's program must call tern_progress() for an operation to end:
 *
 *              put                          get                         notify, close
 *     verbs    no: RDMA write               no: RDMA read               yes
 *     tcp      yes                          yes: the owner sends        yes
 *     shm      no: the kernel writes        no: the kernel or a         yes
 *              them                         mapping copies them
 *
 * tern_remote_open() asks the owner, so the first operation on a window needs the owner's
 * program on every fabric, and so does the first one after a lost connection. GPU memory
 * at either end needs it, too, since its bytes travel as tensors do (channel.h). On verbs,
 * memory that an RDMA device refuses to register, and the option guard=on, need it as
 * tcp does. On shm, with `no_cma`, or where the kernel forbids process_vm_writev (as under
 * another user's id, or in some containers), puts need it, and gets of memory that is in no
 * pool.
 *
 * Order. Puts and gets have no order among each other. A notification is handled by the
 * owner's program after all puts that were posted to the same peer before it have landed
 * (tern_notify), or after those of its own request (the argument `note` of tern_put). It
 * is handled once, also if connections are lost meanwhile.
 *
 * Lost connections. A session that returns on a new connection repeats the puts and
 * gets that have not ended, from their first byte; those with GPU memory go on where
 * they were. So until its request has ended, a range of a window that is being written
 * may change at any time.
 *
 * Protection. A descriptor has a random number of 128 bits, the capability. Without it
 * nobody can open the window, and the bounds of each access are checked: on tcp, on
 * verbs with guard=on, and with GPU memory, by the owner. On verbs a window of host
 * memory has a registration of its own, so its bounds are the device's to check, and
 * closing the window ends the registration. The capability does not protect a window
 * from a peer that has opened it, and on verbs it does not protect it from a peer that
 * guesses: a remote key (rkey) of an RDMA device has 32 bits, and holds for every
 * connection of this process on that device. On shm, a process that has mapped a pool's
 * memory can read all of it, and bounds are checked by the other end, which the system
 * permits to write to all memory of this process in any case (same user, or root). The
 * capability travels as other messages do, unencrypted.
 *
 * Memory: the window and the buffers of puts and gets may each be host or GPU memory,
 * and a list may have both. The GPU must have ended its work on a buffer before a put
 * or get is posted, and on the window before a peer accesses it: Tern knows nothing of
 * streams. What a put or get has written is visible to all work that is given to the
 * GPU after its end, or after the notification. Where peers on one host cannot use CUDA
 * IPC, a put or get may need a bounce buffer (bounce_bytes of the domain), and wait for
 * one until sends of GPU memory that hold them have been received.
 *
 * Threads: every function of this file must be called on the thread that uses the
 * context. Requests are those of channel.h: zeroed before the first use, kept in place
 * until they end, ended once, and done() runs in tern_progress() only. Callbacks may call
 * every function of this file, except those about a peer that is reported DOWN.
 */
#ifndef TERN_WINDOW_H
#define TERN_WINDOW_H

#include <tern/channel.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tern_window;
struct tern_remote;

/* ---- the owner ---- */

/* Rights of a window. */
enum tern_window_access {
	TERN_WINDOW_READ = 1 << 0,  /* peers may get */
	TERN_WINDOW_WRITE = 1 << 1, /* peers may put */
};

/* Tells another process how to open a window: 48 bytes without pointers or padding, the
 * same for every peer, to be copied as they are. Who has them may open the window. */
struct tern_window_desc {
	uint64_t incarnation;   /* random number of the owner's context */
	uint64_t id;            /* number of the window in that context; never reused */
	uint64_t capability[2]; /* random */
	uint64_t bytes;         /* size of the window */
	uint32_t kind;          /* enum tern_mem_kind */
	uint32_t access;        /* bit set of enum tern_window_access */
};

/*
 * Makes a window of `buf`, for the peers of this context. The caller keeps the memory
 * until tern_window_close() has ended. With the verbs fabric the memory is registered
 * once more.
 *
 * - -EINVAL: the buffer is empty or outside its memory, or `access` is 0 or unknown;
 * - -EACCES: TERN_WINDOW_WRITE for memory that was wrapped read-only;
 * - -ENOMEM, -EFAULT: as tern_mem_wrap(); GPU memory: also -EIO, -ENOTRECOVERABLE and the
 *   like, if the CUDA driver fails.
 */
TERN_API int tern_window_new(struct tern_context *ctx, const struct tern_buf *buf,
	unsigned access, struct tern_window **out);

/* Writes the descriptor of the window. */
TERN_API void tern_window_describe(
	const struct tern_window *window, struct tern_window_desc *out);

/*
 * Closes the window, which must not be used any more: no peer can open it from now on,
 * and each peer that has opened it is told. `req` ends with 0 when no peer can access
 * the memory any more; `req` may be NULL, if the memory lives as long as the context. A
 * peer whose program has not answered within timeout_ns has its connection cut: over
 * tcp and verbs the session then goes on with a new connection; over shm, and if bytes
 * from or to GPU memory are under way, the peer goes DOWN. (Where the peer just reads
 * other memory of this process in place, GPU memory that is on its way to it is in use
 * until the peer has released that.) timeout_ns 0: unreachable_ns of the context;
 * TERN_NEVER: no limit.
 *
 * Requests of peers that are under way in the window end with -ESTALE there; their bytes
 * may or may not be in the window.
 *
 * tern_context_free() closes windows that are still open. tern_cancel() has no effect on
 * `req`. Returns 0, -EBUSY or -EOVERFLOW as tern_send(), or -ENOMEM; after an error the
 * window is still open.
 */
TERN_API int tern_window_close_sized(struct tern_window *window, struct tern_req *req,
	size_t req_bytes, uint64_t timeout_ns);
static inline int tern_window_close(
	struct tern_window *window, struct tern_req *req, uint64_t timeout_ns)
{
	return tern_window_close_sized(window, req, sizeof(*req), timeout_ns);
}

/* ---- the other end ---- */

/*
 * Opens a window of the peer. The answer of the peer comes later: requests may be posted
 * at once, and end with the status of the refusal:
 *
 * - -ESTALE: the window is closed, or its context is not the one at the other end now;
 * - -EACCES: the descriptor is not that of the window.
 *
 * Opening the same window again returns the same handle, which must be closed as often as
 * it was opened. -ENOMEM.
 */
TERN_API int tern_remote_open(struct tern_peer *peer, const struct tern_window_desc *desc,
	struct tern_remote **out);

/* Gives the handle back. The last time, all requests on it must have ended (-EBUSY). A
 * handle that is not given back is freed with its peer. NULL is allowed. */
TERN_API int tern_remote_close(struct tern_remote *remote);

/* Bytes that a notification carries to the other program; they are copied when the
 * notification leaves, and must stay in place until the request has ended. */
struct tern_note {
	const void *data;
	size_t bytes; /* at most TERN_NOTE_MAX */
};
#define TERN_NOTE_MAX 4096u

/*
 * Writes `from` into the window, at remote_offset. The request ends with 0 when the bytes
 * are visible to the owner's program. If `note` is not NULL, a notification follows when
 * they are, and the request ends when the owner has handled it.
 *
 * Statuses of the request:
 *
 * - 0;
 * - -ESTALE, -EACCES: as tern_remote_open(); -ESTALE also if the owner closes the window
 *   meanwhile; -EACCES also if the window does not have this right;
 * - -ERANGE: the owner's window is smaller than its descriptor says;
 * - GPU memory, of either end: -EIO, -ENOTRECOVERABLE and the like, if the CUDA driver fails;
 *   -ENOMEM, -ENOBUFS: no page-locked memory for a bounce buffer;
 * - -ECANCELED: tern_cancel() was called, or the peer or the context was freed;
 * - the status of the peer that went down, or -ESHUTDOWN if one of the two ends closed in
 *   an orderly way. A notification may then have been handled or not.
 *
 * tern_cancel() stops a put or a get: what has not started does not start, and the
 * request ends when what has started is over. A part of the bytes may have been written,
 * and if the link is lost meanwhile, more of them until the next link is up.
 * A notification that has left is not cancelled.
 *
 * Returns 0, or one of these, and then done() does not run:
 *
 * - -ERANGE: the range is not inside the window;
 * - -EACCES: the window does not have this right, or (get) the memory of `to` was wrapped
 *   read-only;
 * - -EINVAL: the buffer is outside its memory; more than TERN_NOTE_MAX bytes;
 * - GPU memory: -EIO, -ENOTRECOVERABLE and the like, if the CUDA driver fails;
 * - -EBUSY, -EOVERFLOW: as tern_send(); -ENOMEM.
 */
TERN_API int tern_put_sized(struct tern_remote *remote, struct tern_req *req,
	size_t req_bytes, const struct tern_buf *from, uint64_t remote_offset,
	const struct tern_note *note);
static inline int tern_put(struct tern_remote *remote, struct tern_req *req,
	const struct tern_buf *from, uint64_t remote_offset, const struct tern_note *note)
{
	return tern_put_sized(remote, req, sizeof(*req), from, remote_offset, note);
}

/* Reads the bytes at remote_offset of the window into `to`. The request ends with 0 when
 * they are there. Statuses and return values are those of tern_put(); over shm also
 * status -EACCES: the system does not let this process read the owner's memory. */
TERN_API int tern_get_sized(struct tern_remote *remote, struct tern_req *req,
	size_t req_bytes, const struct tern_buf *to, uint64_t remote_offset);
static inline int tern_get(struct tern_remote *remote, struct tern_req *req,
	const struct tern_buf *to, uint64_t remote_offset)
{
	return tern_get_sized(remote, req, sizeof(*req), to, remote_offset);
}

/* A range in a list of puts or gets: local memory, and its place in the window. */
struct tern_piece {
	struct tern_buf local;
	uint64_t remote_offset;
};

/* As tern_put() and tern_get(), for `count` ranges with one end. The list `pieces` must
 * stay in place until the request has ended. Ranges have no order among each other. */
TERN_API int tern_put_list_sized(struct tern_remote *remote, struct tern_req *req,
	size_t req_bytes, const struct tern_piece *pieces, size_t count,
	const struct tern_note *note);
static inline int tern_put_list(struct tern_remote *remote, struct tern_req *req,
	const struct tern_piece *pieces, size_t count, const struct tern_note *note)
{
	return tern_put_list_sized(remote, req, sizeof(*req), pieces, count, note);
}
TERN_API int tern_get_list_sized(struct tern_remote *remote, struct tern_req *req,
	size_t req_bytes, const struct tern_piece *pieces, size_t count);
static inline int tern_get_list(struct tern_remote *remote, struct tern_req *req,
	const struct tern_piece *pieces, size_t count)
{
	return tern_get_list_sized(remote, req, sizeof(*req), pieces, count);
}

/*
 * Sends a notification to the program at the other end, behind all puts that were posted
 * to this peer before it and have not ended (those that fail do not hold it up). The
 * request ends with 0 when the other end has handled it. At the other end it is given to
 * notified() of struct tern_peer_opts; notifications to one peer arrive in the order in
 * which they were posted, except those that follow a put of their own.
 *
 * Return values: -EINVAL, -EBUSY, -EOVERFLOW, -ENOMEM as tern_put().
 */
TERN_API int tern_notify_sized(struct tern_peer *peer, struct tern_req *req,
	size_t req_bytes, const struct tern_note *note);
static inline int tern_notify(
	struct tern_peer *peer, struct tern_req *req, const struct tern_note *note)
{
	return tern_notify_sized(peer, req, sizeof(*req), note);
}

#ifdef __cplusplus
}
#endif
#endif
