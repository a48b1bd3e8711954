/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending on a tcp conn. Headers and messages are copied into a ring. The data of a put
 * is not copied: its op waits in a list, with the position in the ring's byte stream at
 * which its data must be sent. One turn of a conn merges ring and list, and passes up to
 * tcp_call_bytes() to the kernel in one call. So many small messages cost one system
 * call, and a large put is not copied in user space.
 *
 * Invariant: the positions of the ops never decrease along the list and lie in [head,
 * tail], so bytes leave in the order of the calls.
 *
 * When ring and list are empty, the next message is put at the ring's beginning: a conn
 * that never has much to send uses little memory, and always the same cache lines.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "transport/tcp/tcp.h"

#define RING_BYTES_MIN (64u << 10)
#define PIECES_MAX     64

int tcp_tx_init(struct tcp_tx *tx, uint32_t message_bytes)
{
	uint32_t bytes = RING_BYTES_MIN;

	while (bytes < 4 * (message_bytes + TCP_FRAME_BYTES))
		bytes *= 2;
	tx->ring = malloc(bytes);
	tx->ring_bytes = bytes;
	return tx->ring ? 0 : -ENOMEM;
}

void tcp_tx_fini(struct tcp_tx *tx)
{
	free(tx->ring);
}

static size_t room(const struct tcp_tx *tx)
{
	return tx->ring_bytes - (size_t)(tx->tail - tx->head);
}

bool tcp_tx_empty(const struct tcp_tx *tx)
{
	return tx->head == tx->tail && !tx->first;
}

/* The contiguous part of the ring at stream position `pos`, of at most `bytes`. */
static struct iovec piece_at(const struct tcp_tx *tx, uint64_t pos, uint64_t bytes)
{
	uint64_t at = pos & (tx->ring_bytes - 1);

	return (struct iovec){tx->ring + at, TERN_MIN(bytes, tx->ring_bytes - at)};
}

static void append(struct tcp_tx *tx, const void *data, size_t bytes)
{
	struct iovec piece;

	for (; bytes; bytes -= piece.iov_len) {
		piece = piece_at(tx, tx->tail, bytes);
		memcpy(piece.iov_base, data, piece.iov_len);
		data = (const char *)data + piece.iov_len;
		tx->tail += piece.iov_len;
	}
}

/* Checks whether `bytes` may be added to the ring: 0, -ENOTCONN or -EAGAIN. If 0, the
 * conn is also queued for sending. */
static int admit(struct tcp_conn *conn, size_t bytes)
{
	struct tcp_port *port = tcp_conn_port(conn);

	if (conn->state != TCP_UP || conn->tx.dead)
		return -ENOTCONN;
	if (room(&conn->tx) < bytes) {
		conn->tx.starved = true;
		return -EAGAIN;
	}
	if (!tern_list_linked(&conn->send_link))
		tern_list_push(&port->dirty, &conn->send_link);
	return 0;
}

int tcp_conn_send(struct tern_conn *base, const void *head, size_t head_bytes,
	const void *payload, size_t payload_bytes)
{
	struct tcp_conn *conn = tcp_conn_of(base);
	struct tcp_frame frame = {
		.kind = TCP_MESSAGE,
		.bytes = head_bytes + payload_bytes,
		.head_bytes = (uint32_t)head_bytes,
	};
	uint8_t header[TCP_FRAME_BYTES];
	int r;

	tern_assert(head_bytes % 8 == 0 && head_bytes <= base->port->message_bytes &&
		    payload_bytes <= base->port->message_bytes - head_bytes);
	r = admit(conn, sizeof(header) + frame.bytes);
	if (r)
		return r;
	tcp_frame_put(header, &frame, head);
	append(&conn->tx, header, sizeof(header));
	append(&conn->tx, head, head_bytes);
	append(&conn->tx, payload, payload_bytes);
	if (payload_bytes)
		tcp_talks(conn);
	return 0;
}

int tcp_conn_put(struct tern_conn *base, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset)
{
	struct tcp_conn *conn = tcp_conn_of(base);
	struct tcp_tx *tx = &conn->tx;
	struct tcp_put *put = tcp_put_of(op);
	struct tcp_frame frame = {
		.kind = TCP_PUT,
		.bytes = bytes,
		.entry = (uint32_t)remote->word[0],
		.generation = (uint32_t)(remote->word[0] >> 32),
		.offset = remote_offset,
	};
	uint8_t header[TCP_FRAME_BYTES];
	int r;

	tern_assert(bytes > 0 && mem->kind == TERN_MEM_HOST &&
		    tern_mem_holds(mem, offset, bytes));
	r = admit(conn, sizeof(header));
	if (r)
		return r;
	tcp_frame_put(header, &frame, NULL);
	append(tx, header, sizeof(header));
	op->conn = base;
	*put = (struct tcp_put){
		.data = tern_mem_at(mem, offset),
		.bytes = bytes,
		.at = tx->tail,
	};
	if (tx->first)
		tcp_put_of(tx->last)->next = op;
	else
		tx->first = op;
	tx->last = op;
	return 0;
}

/* Collects the next data to send, about `most` bytes, as pieces for one system call.
 * Returns the number of pieces; *bytes is their total size. */
static size_t gather(
	const struct tcp_tx *tx, size_t most, struct iovec *pieces, size_t *bytes)
{
	struct tern_op *op = tx->first;
	uint64_t pos = tx->head;
	size_t count = 0;

	for (*bytes = 0; count < PIECES_MAX && *bytes < most; count++) {
		uint64_t until = op ? tcp_put_of(op)->at : tx->tail;

		if (pos < until) {
			pieces[count] = piece_at(tx, pos, until - pos);
			pos += pieces[count].iov_len;
		} else if (op) {
			struct tcp_put *put = tcp_put_of(op);

			/* If the put's data is cut here, `most` is reached, so nothing is
			 * added after it. */
			pieces[count].iov_base = (void *)(uintptr_t)put->data;
			pieces[count].iov_len = TERN_MIN(put->bytes, most - *bytes);
			op = put->next;
		} else {
			break;
		}
		*bytes += pieces[count].iov_len;
	}
	return count;
}

/* Removes `bytes` that the kernel has accepted, and completes the puts that were sent. */
static int consume(struct tcp_conn *conn, size_t bytes)
{
	struct tcp_tx *tx = &conn->tx;
	int events = 0;

	while (bytes) {
		struct tern_op *op = tx->first;
		uint64_t until = op ? tcp_put_of(op)->at : tx->tail;
		size_t step;

		if (tx->head < until) {
			step = TERN_MIN(bytes, until - tx->head);
			tx->head += step;
			bytes -= step;
			continue;
		}
		tern_assert(op);
		step = TERN_MIN(bytes, tcp_put_of(op)->bytes);
		tcp_put_of(op)->data += step;
		tcp_put_of(op)->bytes -= step;
		bytes -= step;
		events = 1;
		if (tcp_put_of(op)->bytes == 0) {
			tx->first = tcp_put_of(op)->next;
			tcp_port_done(tcp_conn_port(conn), op, 0);
		}
	}
	if (tcp_tx_empty(tx))
		tx->head = tx->tail = 0;
	return events;
}

/* Handles an error of sending. The conn does not end yet if data that the peer sent
 * before (perhaps its last message) may still be read; reading then reports the error. */
static void broken(struct tcp_conn *conn, int status)
{
	tern_list_remove(&conn->send_link);
	tcp_watch_want(tcp_conn_port(conn), &conn->watch, EPOLLIN);
	if (conn->state == TCP_UP && !conn->rx.eof &&
		(status == -EPIPE || status == -ECONNRESET))
		conn->tx.dead = true;
	else
		tcp_conn_end(conn, tcp_status_of(status));
}

static void full(struct tcp_conn *conn)
{
	struct tcp_port *port = tcp_conn_port(conn);

	tern_list_remove(&conn->send_link);
	tern_list_push(&port->blocked, &conn->send_link);
	port->full_at = port->polls;
	tcp_watch_want(port, &conn->watch, conn->watch.want | EPOLLOUT);
}

void tcp_tx_unblock(struct tcp_conn *conn)
{
	struct tcp_port *port = tcp_conn_port(conn);

	if (!tern_list_linked(&conn->send_link))
		return;
	tern_list_remove(&conn->send_link);
	tern_list_push(&port->dirty, &conn->send_link);
}

static ssize_t transmit(int fd, struct iovec *pieces, size_t count)
{
	struct msghdr message = {.msg_iov = pieces};
	ssize_t n;

	message.msg_iovlen = (__typeof__(message.msg_iovlen))count; /* an int in musl */
	do {
		n = count == 1 ? send(fd, pieces->iov_base, pieces->iov_len, MSG_NOSIGNAL)
			       : sendmsg(fd, &message, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

static void starved_no_more(struct tcp_conn *conn)
{
	struct tcp_tx *tx = &conn->tx;

	if (tx->starved && conn->state == TCP_UP && room(tx) >= tx->ring_bytes / 2) {
		tx->starved = false;
		if (!tern_list_linked(&conn->writable_link))
			tern_list_push(
				&tcp_conn_port(conn)->writable, &conn->writable_link);
	}
}

int tcp_tx_turn(struct tcp_conn *conn)
{
	struct tcp_port *port = tcp_conn_port(conn);
	struct iovec pieces[PIECES_MAX];
	size_t asked, sent = 0, most = tcp_call_bytes(conn);
	int events = 0;

	while (!tcp_tx_empty(&conn->tx) && sent < most) {
		size_t count = gather(&conn->tx, most, pieces, &asked);
		ssize_t n = transmit(conn->watch.fd, pieces, count);

		if (n == -EAGAIN || n == -EWOULDBLOCK) {
			full(conn);
			return events;
		}
		if (n < 0) {
			broken(conn, (int)n);
			return events;
		}
		events += consume(conn, (size_t)n);
		starved_no_more(conn);
		sent += (size_t)n;
		if ((size_t)n < asked) {
			full(conn);
			return events;
		}
	}
	tcp_watch_want(port, &conn->watch, conn->watch.want & ~(uint32_t)EPOLLOUT);
	conn->rx.answered |= conn->rx.dry;
	conn->rx.dry = false;
	if (tcp_tx_empty(&conn->tx)) {
		tern_list_remove(&conn->send_link);
		if (conn->state == TCP_FLUSHING)
			tcp_conn_flushed(conn);
	}
	return events;
}

void tcp_tx_abort(struct tcp_conn *conn, int status)
{
	struct tcp_tx *tx = &conn->tx;

	while (tx->first) {
		struct tern_op *op = tx->first;

		tx->first = tcp_put_of(op)->next;
		tcp_port_done(tcp_conn_port(conn), op, status);
	}
	tx->head = tx->tail = 0;
}
