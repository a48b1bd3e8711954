/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving on a conn: frames, each in a slot. Every field of a frame is checked before
 * it is used; a malformed frame ends the conn.
 */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "transport/verbs/verbs.h"

static void deliver(struct verbs_conn *conn, const void *data, uint32_t bytes)
{
	struct tern_port *port = conn->base.port;
	int r;

	/* A conn that is closing reads frames only for their credits. */
	if (conn->state != VERBS_UP)
		return;
	r = port->handler->message(port->handler_arg, &conn->base, data, bytes);
	if (r)
		verbs_conn_end(conn, r);
}

/* Appends a part of a message that is longer than a slot, and delivers the message at
 * its end. */
static void assemble(struct verbs_conn *conn, const char *data, uint32_t bytes, bool end)
{
	uint32_t most = conn->base.port->message_bytes;

	if (bytes > most - conn->assembly_bytes) {
		verbs_conn_blame(conn, "a message is longer than agreed");
		return;
	}
	if (!conn->assembly)
		conn->assembly = aligned_alloc(64, tern_align_up(most, 64));
	if (!conn->assembly) {
		verbs_conn_end(conn, -ENOMEM);
		return;
	}
	memcpy(conn->assembly + conn->assembly_bytes, data, bytes);
	conn->assembly_bytes += bytes;
	if (!end)
		return;
	bytes = conn->assembly_bytes;
	conn->assembly_bytes = 0;
	deliver(conn, conn->assembly, bytes);
}

static void receive_put(struct verbs_conn *conn, const char *data, uint32_t bytes)
{
	struct verbs_port *port = verbs_conn_port(conn);
	struct tern_window *window;
	struct verbs_put put;
	int r;

	if (!port->windows.table || bytes <= sizeof(put)) {
		verbs_conn_blame(conn, "a put, and no memory is exposed");
		return;
	}
	memcpy(&put, data, sizeof(put));
	put.slot = le32toh(put.slot);
	put.generation = le32toh(put.generation);
	put.offset = le64toh(put.offset);
	bytes -= (uint32_t)sizeof(put);
	r = tern_window_find(&port->windows, conn->base.owner, put.slot, put.generation,
		put.offset, bytes, &window);
	if (r == -EPROTO)
		verbs_conn_blame(conn, "a put to memory that is not exposed to it");
	else if (r == 0)
		memcpy(window->base + put.offset, data + sizeof(put), bytes);
}

/* Counts a frame that used one of the peer's credits. */
static bool take_credit(struct verbs_conn *conn)
{
	if (conn->received - conn->told >= conn->granted) {
		verbs_conn_blame(conn, "it sends more than it has credits for");
		return false;
	}
	conn->received++;
	return true;
}

static void frame(struct verbs_conn *conn, enum verbs_frame_type type, const char *data,
	uint32_t bytes)
{
	switch (type) {
	case VERBS_MESSAGE:
		if (!take_credit(conn))
			return;
		if (conn->assembly_bytes)
			assemble(conn, data, bytes, true);
		else if (bytes == 0 || bytes > conn->base.port->message_bytes)
			verbs_conn_blame(
				conn, "a message is longer than agreed, or empty");
		else
			deliver(conn, data, bytes);
		return;
	case VERBS_MORE:
		if (take_credit(conn))
			assemble(conn, data, bytes, false);
		return;
	case VERBS_PUT:
		if (take_credit(conn))
			receive_put(conn, data, bytes);
		return;
	case VERBS_CREDIT:
		return;
	case VERBS_BYE:
		conn->eof = true;
		/* If we are closing ourselves, we still wait until our data has
		 * arrived. */
		if (conn->state == VERBS_UP)
			verbs_conn_end(conn, -ECONNRESET);
		return;
	}
	verbs_conn_blame(conn, "a frame of an unknown type");
}

void verbs_rx(struct verbs_conn *conn, uint32_t slot, uint32_t bytes)
{
	const char *at = verbs_slot_at(conn->queue, slot);
	struct verbs_frame head;

	if (conn->state == VERBS_ACCEPTING)
		verbs_cm_heard(conn);
	if (conn->state != VERBS_UP && conn->state != VERBS_FLUSHING)
		return;
	if (bytes < sizeof(head)) {
		verbs_conn_blame(conn, "a frame shorter than its header");
		return;
	}
	memcpy(&head, at, sizeof(head));
	verbs_tx_credit(conn, le32toh(head.credit));
	if (conn->state == VERBS_ENDING)
		return;
	frame(conn, head.type, at + sizeof(head), bytes - (uint32_t)sizeof(head));
	verbs_rx_settle(conn);
}

void verbs_rx_settle(struct verbs_conn *conn)
{
	/* A closing end may still need the credits for its last puts. */
	bool talks = conn->state == VERBS_UP ||
		     (conn->state == VERBS_FLUSHING && !conn->bye_sent);

	/* After -EAGAIN, the next completion tries again. */
	if (talks && conn->received - conn->told >= conn->granted / 2)
		verbs_tx_control(conn, VERBS_CREDIT);
}
