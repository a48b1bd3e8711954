/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies the bytes of get() and put() calls. An op (a get or put in progress) is in exactly
 * one list, which tells what the op waits for:
 *
 *     slab->waiting    the peer to pass the slab
 *     conn->copying    its turn: a piece is copied from the mapping, or by
 *                      process_vm_readv; a put always waits here
 *     conn->bouncing   a free chunk: then a piece can be requested
 *     conn->answering  answers to the requests for pieces
 *
 * One poll copies one piece per conn and kind of work, and takes ops in turn. So a
 * message or a small get that comes after a large get waits until a piece was copied, not
 * the whole. Several small gets are copied together up to the size of a piece: their
 * answers then leave together and wake the peer once.
 *
 * Chunks (buffers in the areas, ring.h) are used if process_vm_readv is turned off
 * (no_cma), is not permitted on the peer, or cannot read the memory (a device's). The
 * asker writes a request into asks[n % COUNT] of its area; the other end copies the bytes
 * into its chunk n % COUNT in its poll(); the asker copies them out, which frees the
 * chunk, so request n + COUNT may be made. Requests are answered in order, so two
 * counters suffice and nothing can overflow. A copy into a chunk takes place as a whole
 * between the check of the exposure and the return of poll(): after withdraw() the memory
 * is not read.
 */
#include "transport/shm/shm.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

static struct tern_op *first_op(struct tern_list *list)
{
	return shm_op_outer(tern_list_first(list, struct shm_op, node));
}

static void op_end(struct tern_op *op, int status)
{
	struct shm_op *inner = shm_op_of(op);

	tern_list_remove(&inner->node);
	if (inner->kind == SHM_OP_SLAB && inner->slab)
		shm_slab_drop(inner->slab);
	op->done(op, status);
}

void shm_op_start(struct shm_conn *conn, struct tern_op *op, struct shm_slab *slab)
{
	struct shm_op *inner = shm_op_of(op);
	bool direct = slab || conn->cma || inner->kind == SHM_OP_PUT;

	if (slab && !shm_slab_holds(slab, inner->remote, inner->bytes)) {
		/* The conn ends now; this op is completed with an error like all others
		 * of the conn. */
		tern_list_push(&conn->answering, &inner->node);
		shm_conn_blame(conn, "it sent a region outside its memory segment");
		return;
	}
	if (slab) {
		shm_slab_hold(slab);
		inner->slab = slab;
	}
	tern_list_push(
		direct || !inner->bytes ? &conn->copying : &conn->bouncing, &inner->node);
}

/* Orders earlier loads before later loads, like an acquire fence. Race detectors would
 * report an acquire fence here, since the loads race on purpose. */
static inline void order_loads(void)
{
#if defined(__x86_64__)
	__asm__ __volatile__("" ::: "memory");
#elif defined(__aarch64__)
	__asm__ __volatile__("dmb ishld" ::: "memory");
#else
	__sync_synchronize();
#endif
}

/*
 * Sets `gone`, which tells a peer that the bytes it is copying from us may change. Two
 * halves make this safe. In this function, the store of `gone` comes before every later
 * store to memory that was exposed, by this thread and by threads that it then allows to
 * write. In shm_peer_gone(), the loads of the bytes come before the load of `gone`. So a
 * peer that copied a byte written after `gone` was set also sees `gone`, and drops the
 * copy.
 *
 * A full fence is needed: a release store orders only the stores before it, not those
 * that follow. arm64 may reorder it with later stores. x86 may not, except with
 * non-temporal stores, as in tern_copy(), which a release fence on x86 does not order
 * either.
 */
void shm_say_gone(struct shm_conn *conn)
{
	atomic_store_explicit(&conn->own->gone, 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
}

/* The reader's half of shm_say_gone(). False: what was read before this call is good,
 * since the peer had not set `gone` yet. If the kernel or a GPU made the copy, it had read
 * the bytes before it reported the end of the copy. */
bool shm_peer_gone(const struct shm_conn *conn)
{
	order_loads();
	return atomic_load_explicit(&conn->peer->gone, memory_order_relaxed);
}

/* Reads memory of the peer's process. Returns the number of bytes read, or a negative
 * errno. */
static int64_t read_process(
	struct shm_conn *conn, const struct shm_op *op, uint64_t bytes)
{
	struct iovec here = {.iov_base = op->local + op->copied, .iov_len = bytes};
	struct iovec there = {.iov_base = (void *)(uintptr_t)(op->remote + op->copied),
		.iov_len = bytes};
	ssize_t n = process_vm_readv(conn->pid, &here, 1, &there, 1, 0);

	return n < 0 ? -errno : n;
}

/*
 * Sets `writing`, which tells the peer that this process may be writing to its memory.
 * False: the peer has closed the conn, and nothing may be written. The store of
 * `writing` comes before the load of `gone`; in the peer, the store of `gone` comes
 * before the load of `writing`, in awaits_writer(). So one of both sees the other, and a
 * peer that saw no writer can use its memory for something else.
 */
static bool write_begin(struct shm_conn *conn)
{
	atomic_store_explicit(&conn->own->writing, 1, memory_order_seq_cst);
	if (!atomic_load_explicit(&conn->peer->gone, memory_order_seq_cst))
		return true;
	atomic_store_explicit(&conn->own->writing, 0, memory_order_release);
	return false;
}

/* Writes to memory of the peer's process. Returns the number of bytes written, or a
 * negative errno; -ENOTCONN: the peer has closed the conn, or has ended. */
static int64_t write_process(
	struct shm_conn *conn, const struct shm_op *op, uint64_t bytes)
{
	int64_t n;

	if (!write_begin(conn))
		return -ENOTCONN;
	n = shm_process_write(
		conn, op->remote + op->copied, op->local + op->copied, bytes);
	atomic_store_explicit(&conn->own->writing, 0, memory_order_release);
	return n;
}

/* Ends a put after a failure of write_process(), or its conn if the peer is gone. */
static void put_failed(struct shm_conn *conn, struct tern_op *op, int64_t status)
{
	struct tern_env *env = conn->base.port->env;

	/* -ESRCH: the process is ending. Look, and do not rely on the last look. */
	if (status == -ESRCH)
		conn->there_ns = 0;
	if (status == -ENOTCONN || (status == -ESRCH && !shm_process_is_there(conn))) {
		shm_conn_part(conn, shm_peer_gone(conn));
		return;
	}
	tern_log(env, TERN_LOG_WARN, "%s: a put into its memory failed: %s%s",
		conn->base.name, tern_status_text((int)status),
		status == -EFAULT
			? ": memory of one end is read-only, or no longer mapped"
			: "");
	op_end(op, -EACCES);
}

/* Size of the next piece to copy, of the first op in conn->copying. */
static uint64_t piece_bytes(const struct shm_conn *conn)
{
	const struct shm_op *op = tern_list_first(&conn->copying, struct shm_op, node);

	return TERN_MIN(op->bytes - op->copied, (uint64_t)SHM_PIECE_BYTES);
}

static void copy_piece(struct shm_conn *conn)
{
	struct tern_op *outer = first_op(&conn->copying);
	struct shm_op *op = shm_op_of(outer);
	uint64_t bytes = piece_bytes(conn);

	if (bytes && op->kind == SHM_OP_SLAB) {
		tern_copy(op->local + op->copied,
			op->slab->base + op->remote + op->copied, bytes, op->bytes);
	} else if (bytes && op->kind == SHM_OP_PUT) {
		int64_t n = write_process(conn, op, bytes);

		if (n <= 0) {
			put_failed(conn, outer, n);
			return;
		}
		bytes = (uint64_t)n;
	} else if (bytes) {
		int64_t n = read_process(conn, op, bytes);

		if (n <= 0) {
			/* -EFAULT concerns only this memory (such as a device's memory).
			 * Any other error concerns the peer: it no longer permits
			 * reading, or it is ending. If it is alive, it can still copy the
			 * bytes into chunks. */
			conn->cma = conn->cma && n == -EFAULT;
			op->asked = op->copied;
			tern_list_remove(&op->node);
			tern_list_push(&conn->bouncing, &op->node);
			return;
		}
		bytes = (uint64_t)n;
	}
	op->copied += bytes;
	if (op->copied < op->bytes) {
		tern_list_remove(&op->node);
		tern_list_push(&conn->copying, &op->node);
	} else if (shm_peer_gone(conn)) {
		shm_conn_part(conn, true);
	} else {
		op_end(outer, 0);
	}
}

static bool may_copy(const struct shm_conn *conn)
{
	return conn->state == SHM_UP && !tern_list_empty(&conn->copying);
}

/* What the first op in conn->copying costs at least, as bytes to copy: a put is a system
 * call. */
static uint64_t least_cost(const struct shm_conn *conn)
{
	const struct shm_op *op = tern_list_first(&conn->copying, struct shm_op, node);

	return op->kind == SHM_OP_PUT ? 4096 : SHM_LINE;
}

/* Copies pieces of at most SHM_PIECE_BYTES in total. Returns the number of pieces. */
static int copy_pieces(struct shm_conn *conn)
{
	uint64_t left = SHM_PIECE_BYTES;
	int count = 0;

	while (left && may_copy(conn) && piece_bytes(conn) <= left) {
		left -= TERN_MIN(left, TERN_MAX(piece_bytes(conn), least_cost(conn)));
		copy_piece(conn);
		count++;
	}
	return count;
}

/* Requests one more piece from the peer, for the first get in conn->bouncing. */
static void ask_piece(struct shm_conn *conn)
{
	struct tern_op *outer = first_op(&conn->bouncing);
	struct shm_op *op = shm_op_of(outer);
	uint64_t bytes = TERN_MIN(op->bytes - op->asked, (uint64_t)SHM_CHUNK_BYTES);
	struct shm_ask *ask = &conn->own->asks[conn->asked % SHM_CHUNK_COUNT];

	conn->desks[conn->asked % SHM_CHUNK_COUNT] = (struct shm_desk){
		.op = outer,
		.target = op->local + op->asked,
		.bytes = bytes,
	};
	atomic_store_explicit(&ask->slot, op->slot, memory_order_relaxed);
	atomic_store_explicit(&ask->generation, op->id, memory_order_relaxed);
	atomic_store_explicit(
		&ask->address, op->remote + op->asked, memory_order_relaxed);
	atomic_store_explicit(&ask->bytes, bytes, memory_order_relaxed);
	/* Release: the request is written before the peer can see the new count. */
	atomic_store_explicit(&conn->own->asked, ++conn->asked, memory_order_release);
	conn->ring.published = true;
	op->asked += bytes;
	tern_list_remove(&op->node);
	tern_list_push(
		op->asked < op->bytes ? &conn->bouncing : &conn->answering, &op->node);
}

static void forget_desks(struct shm_conn *conn, const struct tern_op *op)
{
	for (unsigned i = 0; i < SHM_CHUNK_COUNT; i++)
		if (conn->desks[i].op == op)
			conn->desks[i].op = NULL;
}

static uint32_t answers_waiting(const struct shm_conn *conn)
{
	/* Acquire: the peer filled the chunk before it incremented the counter. */
	return atomic_load_explicit(&conn->peer->answered, memory_order_acquire) -
	       conn->taken;
}

static uint32_t asks_waiting(const struct shm_conn *conn)
{
	/* Acquire: the peer wrote the request before it incremented the counter. */
	return atomic_load_explicit(&conn->peer->asked, memory_order_acquire) -
	       conn->answered;
}

static void take_answer(struct shm_conn *conn)
{
	struct shm_port *port = shm_conn_port(conn);
	uint32_t n = conn->taken;
	struct shm_desk desk = conn->desks[n % SHM_CHUNK_COUNT];
	int refused = atomic_load_explicit(
		&conn->peer->statuses[n % SHM_CHUNK_COUNT], memory_order_relaxed);
	struct shm_op *op = desk.op ? shm_op_of(desk.op) : NULL;

	if (op && !refused)
		tern_copy(desk.target, shm_chunk(conn->peer, port->ring_bytes, n),
			desk.bytes, op->bytes);
	/* The peer reuses this chunk only after the next request for it. */
	conn->taken = n + 1;
	if (!op)
		return;
	op->copied += desk.bytes;
	if (refused) {
		forget_desks(conn, desk.op);
		op_end(desk.op, -EACCES);
	} else if (op->copied == op->bytes) {
		op_end(desk.op, 0);
	}
}

/* Answers one request of the peer. -EPROTO: the request is malformed. */
static int answer(struct shm_conn *conn)
{
	struct shm_port *port = shm_conn_port(conn);
	uint32_t n = conn->answered, index = n % SHM_CHUNK_COUNT;
	const struct shm_ask *ask = &conn->peer->asks[index];
	uint32_t slot = atomic_load_explicit(&ask->slot, memory_order_relaxed);
	uint32_t generation =
		atomic_load_explicit(&ask->generation, memory_order_relaxed);
	uint64_t address = atomic_load_explicit(&ask->address, memory_order_relaxed);
	uint64_t bytes = atomic_load_explicit(&ask->bytes, memory_order_relaxed);
	const struct shm_exposure *exposure = shm_exposure_find(conn, slot, generation);

	if (bytes > SHM_CHUNK_BYTES)
		return -EPROTO;
	if (exposure) {
		uint64_t offset = address - exposure->start;

		if (tern_mem_is_slab(exposure->mem) || !exposure->mem->base ||
			offset > exposure->bytes || bytes > exposure->bytes - offset)
			return -EPROTO;
		memcpy(shm_chunk(conn->own, port->ring_bytes, n),
			(const void *)(uintptr_t)address, bytes);
	}
	atomic_store_explicit(&conn->own->statuses[index], exposure ? 0 : -EACCES,
		memory_order_relaxed);
	/* Release: the chunk is filled before the peer can see the new count. */
	atomic_store_explicit(
		&conn->own->answered, ++conn->answered, memory_order_release);
	conn->ring.published = true;
	return 0;
}

static bool can_ask(const struct shm_conn *conn)
{
	return !tern_list_empty(&conn->bouncing) &&
	       conn->asked - conn->taken < SHM_CHUNK_COUNT;
}

bool shm_copy_ready(const struct shm_conn *conn)
{
	return !tern_list_empty(&conn->copying) || can_ask(conn) || asks_waiting(conn) ||
	       (conn->asked != conn->taken && answers_waiting(conn));
}

int shm_copy_step(struct shm_conn *conn)
{
	uint32_t waiting = asks_waiting(conn);
	int count = 0;

	if (waiting) {
		if (waiting > SHM_CHUNK_COUNT || answer(conn)) {
			shm_conn_blame(conn,
				"it asks for a copy of memory that is not exposed to it");
			return 1;
		}
		count++;
	}
	while (can_ask(conn))
		ask_piece(conn);
	if (conn->asked != conn->taken && (waiting = answers_waiting(conn))) {
		if (waiting > conn->asked - conn->taken) {
			shm_conn_blame(conn, "it answers a request that was not made");
			return count + 1;
		}
		take_answer(conn);
		count++;
	}
	return count + copy_pieces(conn);
}

static void fail_list(struct tern_list *list, int status)
{
	while (!tern_list_empty(list))
		op_end(first_op(list), status);
}

void shm_op_fail_all(struct shm_conn *conn, int status)
{
	tern_list_for_each (node, &conn->asking)
		fail_list(&tern_list_entry(node, struct shm_slab, node)->waiting, status);
	fail_list(&conn->copying, status);
	fail_list(&conn->bouncing, status);
	fail_list(&conn->answering, status);
}

void shm_op_release(struct shm_conn *conn, struct shm_slab *slab,
	struct tern_list *waiting, int status)
{
	while (!tern_list_empty(waiting)) {
		struct tern_op *op = first_op(waiting);

		if (status || shm_op_of(op)->kind == SHM_OP_PEEK) {
			op_end(op, status);
		} else {
			tern_list_remove(&shm_op_of(op)->node);
			shm_op_start(conn, op, slab);
		}
	}
}
