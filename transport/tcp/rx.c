/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving on a tcp conn.
 *
 *     HEADER --message--> MESSAGE --whole--> HEADER
 *        \----put-------> PUT -----whole--> HEADER
 *
 * Received bytes pass through the port's stage, a buffer that all conns share. After each
 * read the stage is emptied: an incomplete header or message is kept in the conn (up to
 * 32 bytes of a header, or the body of a message). So an idle conn occupies no part of
 * the stage. (Only if a poll has reached its budget, unhandled bytes of one conn stay in
 * the stage until the next poll.) The bulk of a put is received directly into its target,
 * and the call that may complete it also receives the next header.
 *
 * A message that is complete in the stage and aligned is delivered without a copy. A
 * message whose header begins the stage is aligned: the stage is filled from 32 bytes
 * before a multiple of 64, so that the message after the header starts at that multiple.
 * Most other messages are copied into the conn's body buffer.
 *
 * header_arrived() checks every field of a header before anything is done with it, except
 * the CRC of a message: message_arrived() checks it, since it also covers the head.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#include "transport/tcp/tcp.h"

#define MESSAGE_ALIGN 64
/* Number of messages after a put during which another put is expected (and less is read
 * into the stage). */
#define PUT_LIKELY 8

int tcp_rx_init(struct tcp_rx *rx, uint32_t message_bytes)
{
	tern_list_init(&rx->landing);
	rx->body = aligned_alloc(
		MESSAGE_ALIGN, tern_align_up(message_bytes + 1, MESSAGE_ALIGN));
	return rx->body ? 0 : -ENOMEM;
}

void tcp_rx_fini(struct tcp_rx *rx)
{
	free(rx->body);
}

void tcp_rx_discard(struct tcp_conn *conn)
{
	conn->rx.target = NULL;
	tern_list_remove(&conn->rx.landing);
}

static void complain(struct tcp_conn *conn, const char *what)
{
	struct tcp_frame *frame = &conn->rx.frame;
	struct tern_env *env = conn->base.port->env;

	if (conn->base.owner)
		tern_log(env, TERN_LOG_WARN,
			"%s: cut: %s (frame of kind %u, %" PRIu64 " bytes)",
			conn->base.name, what, frame->kind, frame->bytes);
	else
		tern_log_stranger(env, "%s: cut: %s", conn->base.name, what);
	tcp_conn_end(conn, -EPROTO);
}

/* Recognizes the first bytes of other protocols, such as HTTP, whose clients have
 * connected to this port by mistake. */
static const char *name_stranger(const uint8_t *header)
{
	static const struct {
		const char *start, *what;
	} known[] = {
		{"GET ", "this looks like HTTP, not like Tern"},
		{"HEAD", "this looks like HTTP, not like Tern"},
		{"POST", "this looks like HTTP, not like Tern"},
		{"PUT ", "this looks like HTTP, not like Tern"},
		{"OPTI", "this looks like HTTP, not like Tern"},
		{"PRI ", "this looks like HTTP, not like Tern"},
		{"HTTP", "this looks like HTTP, not like Tern"},
		{"SSH-", "this looks like SSH, not like Tern"},
		{"\x16\x03\x01", "this looks like TLS, not like Tern"},
		{"\x16\x03\x03", "this looks like TLS, not like Tern"},
	};

	for (size_t i = 0; i < TERN_ARRAY_SIZE(known); i++)
		if (memcmp(header, known[i].start, strlen(known[i].start)) == 0)
			return known[i].what;
	return "not a frame";
}

static void put_arrives(struct tcp_conn *conn)
{
	struct tcp_port *port = tcp_conn_port(conn);
	struct tcp_rx *rx = &conn->rx;
	struct tern_exposure *exposure;
	int r;

	if (rx->crc != rx->frame.crc) {
		complain(conn, "damaged header");
		return;
	}
	if (!conn->base.owner || rx->frame.bytes == 0) {
		complain(conn, "unexpected put");
		return;
	}
	r = tern_exposure_find(&port->exposures, conn->base.owner, rx->frame.entry,
		rx->frame.generation, rx->frame.offset, rx->frame.bytes, &exposure);
	if (r == -EPROTO) {
		complain(conn, "a put to memory that is not exposed to it");
		return;
	}
	rx->target = NULL;
	if (r == 0) {
		rx->target = exposure->base + rx->frame.offset;
		tern_list_push(&exposure->landing, &rx->landing);
	}
	rx->left = rx->frame.bytes;
	rx->state = TCP_RX_PUT;
	rx->put_likely = PUT_LIKELY;
}

static void header_arrived(struct tcp_conn *conn, const uint8_t *header)
{
	struct tcp_rx *rx = &conn->rx;
	uint32_t most = conn->base.port->message_bytes;

	if (!conn->base.owner)
		most = TERN_MIN(most, TCP_STRANGER_BYTES);
	if (!tcp_frame_get(&rx->frame, header, &rx->crc)) {
		complain(conn, name_stranger(header));
		return;
	}
	if (rx->frame.kind == TCP_PUT) {
		put_arrives(conn);
		return;
	}
	if (rx->frame.bytes > most || rx->frame.head_bytes > rx->frame.bytes ||
		rx->frame.head_bytes % 8) {
		complain(conn,
			"a message that is too long, or whose head has a wrong length");
		return;
	}
	rx->state = TCP_RX_MESSAGE;
	rx->have = 0;
	if (rx->put_likely)
		rx->put_likely--;
}

static void message_arrived(struct tcp_conn *conn, const char *data)
{
	struct tern_port *port = conn->base.port;
	struct tcp_rx *rx = &conn->rx;
	size_t bytes = rx->frame.bytes;
	int r;

	if (bytes > rx->frame.head_bytes)
		tcp_talks(conn);

	rx->state = TCP_RX_HEADER;
	rx->have = 0;
	if (tern_crc32c(rx->crc, data, rx->frame.head_bytes) != rx->frame.crc) {
		complain(conn, "damaged message");
		return;
	}
	r = port->handler->message(port->handler_arg, &conn->base, data, bytes);
	if (r)
		tcp_conn_end(conn, r);
}

/* Each take_*() function handles as many of the `bytes` bytes at `data` as it can, and
 * returns their number. */
static size_t take_header(struct tcp_conn *conn, const char *data, size_t bytes)
{
	struct tcp_rx *rx = &conn->rx;
	size_t n = TERN_MIN(bytes, TCP_FRAME_BYTES - rx->have);

	memcpy(rx->header + rx->have, data, n);
	rx->have += (uint32_t)n;
	if (rx->have == TCP_FRAME_BYTES) {
		rx->have = 0;
		header_arrived(conn, rx->header);
	}
	return n;
}

static size_t take_message(
	struct tcp_conn *conn, const char *data, size_t bytes, int *events)
{
	struct tcp_rx *rx = &conn->rx;
	size_t n = TERN_MIN(bytes, rx->frame.bytes - rx->have);
	bool whole = rx->have + n == rx->frame.bytes;

	if (whole && rx->have == 0 && (uintptr_t)data % MESSAGE_ALIGN == 0) {
		message_arrived(conn, data);
	} else {
		memcpy(rx->body + rx->have, data, n);
		rx->have += (uint32_t)n;
		if (whole)
			message_arrived(conn, rx->body);
	}
	*events += whole;
	return n;
}

static void put_landed(struct tcp_rx *rx, size_t bytes)
{
	rx->left -= bytes;
	if (rx->target)
		rx->target += bytes;
	if (rx->left == 0) {
		tern_list_remove(&rx->landing);
		rx->target = NULL;
		rx->state = TCP_RX_HEADER;
	}
}

static size_t take_put(struct tcp_rx *rx, const char *data, size_t bytes)
{
	size_t n = TERN_MIN(bytes, rx->left);

	if (rx->target)
		memcpy(rx->target, data, n);
	put_landed(rx, n);
	return n;
}

/* Handles all bytes, or stops when the conn is no longer UP. After `budget` messages the
 * remaining bytes stay in the stage. Returns the number of messages. */
static int take(struct tcp_conn *conn, const char *data, size_t bytes, int budget)
{
	struct tcp_port *port = tcp_conn_port(conn);
	struct tcp_rx *rx = &conn->rx;
	int events = 0;
	size_t n = 0;

	/* The second condition: a message of 0 bytes is complete without a further
	 * byte. */
	while (conn->state == TCP_UP &&
		(bytes || (rx->state == TCP_RX_MESSAGE && rx->frame.bytes == 0))) {
		if (events >= budget) {
			port->rest.conn = conn;
			port->rest.data = data;
			port->rest.bytes = bytes;
			break;
		}
		switch (rx->state) {
		case TCP_RX_HEADER:
			n = take_header(conn, data, bytes);
			break;
		case TCP_RX_MESSAGE:
			n = take_message(conn, data, bytes, &events);
			break;
		case TCP_RX_PUT:
			n = take_put(rx, data, bytes);
			break;
		}
		data += n;
		bytes -= n;
	}
	return events;
}

int tcp_rx_rest(struct tcp_port *port, int budget)
{
	struct tcp_conn *conn = port->rest.conn;

	if (!conn)
		return 0;
	port->rest.conn = NULL;
	return take(conn, port->rest.data, port->rest.bytes, budget);
}

/*
 * Chooses where the next received bytes go: first into the target of the put that is
 * being received, if more than TCP_STAGE_PUT_BYTES of this put are left, and then into
 * the stage (receive buffer). Returns the number of pieces; *direct is set if the first
 * piece is the put's target.
 */
static int places(struct tcp_conn *conn, char *stage, struct iovec *pieces, bool *direct)
{
	struct tcp_rx *rx = &conn->rx;
	size_t stage_bytes = TCP_STAGE_BYTES;
	size_t call_bytes = tcp_call_bytes(conn);
	int count = 0;

	*direct = conn->state == TCP_UP && rx->state == TCP_RX_PUT && rx->target &&
		  rx->left > TCP_STAGE_PUT_BYTES;
	if (*direct) {
		pieces[count++] =
			(struct iovec){rx->target, TERN_MIN(rx->left, call_bytes)};
		if (rx->left > call_bytes)
			return count;
		stage_bytes = TCP_STAGE_PUT_BYTES;
	} else if (rx->state == TCP_RX_HEADER && rx->put_likely) {
		stage_bytes = TCP_STAGE_PUT_BYTES;
	}
	pieces[count++] = (struct iovec){stage, stage_bytes};
	return count;
}

static ssize_t receive(int fd, struct iovec *pieces, int count)
{
	ssize_t n;

	do {
		n = count == 1 ? recv(fd, pieces->iov_base, pieces->iov_len, 0)
			       : readv(fd, pieces, count);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

/* Handles the end of receiving: the peer sends no more (status 0), or the socket has
 * failed. */
static void ended(struct tcp_conn *conn, int status)
{
	struct tcp_port *port = tcp_conn_port(conn);

	switch (conn->state) {
	case TCP_UP:
		tcp_conn_end(conn, tcp_status_of(status));
		break;
	case TCP_FLUSHING:
		if (status) {
			tcp_conn_end(conn, -ECONNRESET);
			break;
		}
		conn->rx.eof = true;
		tcp_watch_want(port, &conn->watch, conn->watch.want & ~(uint32_t)EPOLLIN);
		break;
	case TCP_LINGERING:
		tcp_conn_end(conn, 0);
		break;
	case TCP_CONNECTING:
	case TCP_ENDED:
		break;
	}
}

int tcp_rx_turn(struct tcp_conn *conn, int budget)
{
	/* At this address, a message that follows a 32-byte header is aligned to 64
	 * bytes. */
	char *stage = tcp_conn_port(conn)->stage + MESSAGE_ALIGN - TCP_FRAME_BYTES;
	size_t total = 0, asked = 0, direct_bytes;
	struct iovec pieces[2];
	int count, events = 0;
	bool direct;
	ssize_t n;

	if (conn->rx.eof)
		return 0;
	conn->rx.dry = false;
	do {
		if (total >= tcp_call_bytes(conn) || events >= budget)
			return events;
		count = places(conn, stage, pieces, &direct);
		asked = pieces[0].iov_len + (count > 1 ? pieces[1].iov_len : 0);
		n = receive(conn->watch.fd, pieces, count);
		if (n == -EAGAIN || n == -EWOULDBLOCK)
			break;
		if (n <= 0) {
			ended(conn, (int)n);
			return events + 1;
		}
		direct_bytes = direct ? TERN_MIN((size_t)n, pieces[0].iov_len) : 0;
		if (direct_bytes) {
			put_landed(&conn->rx, direct_bytes);
			events++;
		}
		events += take(conn, stage, (size_t)n - direct_bytes,
			TERN_MAX(budget - events, 1));
		total += (size_t)n;
	} while ((size_t)n == asked && conn->state != TCP_ENDED);
	conn->rx.dry = conn->rx.state == TCP_RX_HEADER && conn->rx.have == 0 &&
		       !tcp_conn_port(conn)->rest.conn;
	return events;
}
