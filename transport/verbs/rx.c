/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving on a verbs conn: each frame arrives in a receive slot. Every field of a frame
 * is checked before it is used; a malformed frame ends the conn. */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "transport/verbs/verbs.h"

static void deliver(struct verbs_conn *conn, const void *data, uint32_t bytes)
{
	struct tern_port *port = conn->base.port;
	int r;

	/* A conn that is closing delivers no messages. It still handles the credits in
	 * the headers of frames, and puts. */
	if (conn->state != VERBS_UP)
		return;
	r = port->handler->message(port->handler_arg, &conn->base, data, bytes);
	if (r)
		verbs_conn_end(conn, r);
}

/* Appends one part of a message that is longer than a slot. At the last part, delivers
 * the whole message. */
static void assemble(struct verbs_conn *conn, const char *data, uint32_t bytes, bool end)
{
	uint32_t most = conn->base.port->message_bytes;

	if (bytes > most - conn->assembly_bytes) {
		verbs_conn_blame(conn, "it sent a message longer than agreed");
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
	struct tern_exposure *exposure;
	struct verbs_put put;
	int r;

	if (bytes <= sizeof(put)) {
		verbs_conn_blame(conn, "it sent a put without bytes");
		return;
	}
	if (!port->exposures.table) {
		verbs_conn_blame(conn, "it sent a put, but was never offered memory");
		return;
	}
	memcpy(&put, data, sizeof(put));
	put.slot = le32toh(put.slot);
	put.generation = le32toh(put.generation);
	put.offset = le64toh(put.offset);
	bytes -= (uint32_t)sizeof(put);
	r = tern_exposure_find(&port->exposures, conn->base.owner, put.slot,
		put.generation, put.offset, bytes, &exposure);
	if (r == -EPROTO)
		verbs_conn_blame(conn, "a put to memory that is not exposed to it");
	else if (r == 0)
		memcpy(exposure->base + put.offset, data + sizeof(put), bytes);
}

/* Counts a frame that needed one of the peer's credits. False: the peer had no credit
 * left, and the conn ends. */
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
				conn, "it sent a message longer than agreed, or empty");
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
		/* If this end is closing too, it still waits until its own data has been
		 * sent. */
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
		verbs_conn_blame(conn, "it sent a frame shorter than its header");
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
	/* Credits are sent in FLUSHING too: a peer that is also closing may need them for
	 * its last puts. But no frame may follow this end's BYE. */
	bool talks = conn->state == VERBS_UP ||
		     (conn->state == VERBS_FLUSHING && !conn->bye_sent);

	/* If verbs_tx_control() returns -EAGAIN, the next completion leads to another
	 * try. */
	if (talks && conn->received - conn->told >= conn->granted / 2)
		verbs_tx_control(conn, VERBS_CREDIT);
}
