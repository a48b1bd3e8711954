/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream of messages to and from a peer, which survives links: messages are numbered,
 * kept until the other end has handled them, and sent again on the next link, beginning
 * with the first one that was not handled.
 *
 * The `ack` and `credit` of a header are those of the moment at which the message was
 * made, also when it is sent again. So both counters never decrease from one message to
 * the next; other code relies on that (see send.c about POSTs). CREDIT and most messages
 * about windows (window.h) have no number, and are sent only when no numbered message
 * waits, so that their counters are in order too. A
 * PING that overtakes waiting messages carries the counters of the first of them. A RENEW
 * alternates with messages that are sent again, so its `ack` is not in order.
 *
 * On a fabric whose connections cannot be restored (TERN_CAP_BOUND) no message is kept.
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>
#include <string.h>

#include "rendezvous/window.h"

#define TELL_MESSAGES 64u
#define TELL_BYTES    (128u << 10)

/* Bits of tern_stream.pings_due: a PING, and the answer to a PING, that are still to be
 * sent. */
#define PING_ASK   1u
#define PING_REPLY 2u

static bool keeps(const struct tern_peer *peer)
{
	return !(tern_peer_caps(peer) & TERN_CAP_BOUND);
}

bool tern_stream_busy(const struct tern_peer *peer)
{
	return peer->stream.retain.count > 0;
}

static void stamp(const struct tern_peer *peer, struct tern_header *h, uint32_t seq)
{
	h->epoch = peer->epoch;
	h->seq = seq;
	h->ack = peer->stream.rx_seq;
	h->credit = peer->stream.credit_rx.granted;
	if (!tern_list_empty(&peer->pump.starved))
		h->flags |= TERN_FLAG_STARVED;
	if (peer->want.missed_count)
		h->flags |= TERN_FLAG_MISSED;
}

/* Called when a message has carried our counters (acknowledgement, credits, starved) to
 * the peer: none of them is to be sent any more. */
static void told(struct tern_peer *peer)
{
	peer->stream.told_ack = peer->stream.rx_seq;
	peer->stream.untold_bytes = 0;
	tern_credit_told(&peer->stream.credit_rx);
	peer->stream.ack_due = false;
	peer->stream.starved_told = !tern_list_empty(&peer->pump.starved);
}

static int give(struct tern_peer *peer, const void *head, size_t head_bytes,
	const void *payload, size_t payload_bytes)
{
	struct tern_conn *conn = tern_peer_conn(peer);

	/* The result is -EAGAIN even if the connection has failed, since the fabric
	 * reports that separately (handler `closed`). */
	if (conn->port->ops->send(conn, head, head_bytes, payload, payload_bytes) < 0)
		return -EAGAIN;
	peer->stats.messages_sent++;
	return 0;
}

static int give_kept(struct tern_peer *peer, const struct tern_retained *e)
{
	const unsigned char *copy = tern_retain_data(&peer->stream.retain, e);

	return give(peer, copy, e->head_bytes, copy + e->head_bytes,
		e->bytes - e->head_bytes);
}

/* Puts the data of a send again, before its DONE (the message after the last put) is sent
 * again. If the GPU cannot deliver the data any more, the DONE carries that error as its
 * status. */
static int repeat_puts(struct tern_peer *peer, struct tern_retained *e)
{
	int r = tern_write_again(e->xfer);

	if (r == 0 || r == -EAGAIN)
		return r;
	e->xfer->result = r;
	e->xfer = NULL;
	tern_header_set_status(tern_retain_data(&peer->stream.retain, e), r);
	return 0;
}

/* Sends a PING, if need be before messages that wait to be sent again. Those, with the
 * puts before each DONE, may be gigabytes, and without the PING the peer would take this
 * time for silence. The PING then carries the counters of the first waiting message, so
 * that counters stay in order. */
static int say_ping(struct tern_peer *peer, uint16_t flags)
{
	struct tern_header h = {.type = TERN_MSG_PING, .flags = flags};
	struct tern_retain *retain = &peer->stream.retain;
	bool ahead = retain->sent_count < retain->count;
	_Alignas(8) unsigned char head[TERN_HEAD_MAX];

	stamp(peer, &h, peer->stream.tx_seq);
	if (ahead) {
		const void *waiting = tern_retain_data(
			retain, tern_retain_at(retain, retain->sent_count));

		h.ack = tern_header_ack(waiting);
		h.credit = tern_header_credit(waiting);
	}
	if (give(peer, head, tern_header_encode(&h, head), NULL, 0) < 0)
		return -EAGAIN;
	if (!ahead)
		told(peer);
	return 0;
}

static int say_pings(struct tern_peer *peer)
{
	if ((peer->stream.pings_due & PING_ASK) && say_ping(peer, 0) < 0)
		return -EAGAIN;
	peer->stream.pings_due &= (uint8_t)~PING_ASK;
	if ((peer->stream.pings_due & PING_REPLY) && say_ping(peer, TERN_FLAG_REPLY) < 0)
		return -EAGAIN;
	peer->stream.pings_due = 0;
	return 0;
}

/* Sends the next kept message that waits. 1: it was sent; 0: none is left; -EAGAIN: no
 * room, or the message lacks something: its own region, or for its puts a staging slot or
 * a region that the peer has not announced again yet. */
static int send_next(struct tern_peer *peer)
{
	struct tern_retain *retain = &peer->stream.retain;
	struct tern_retained *e;

	if (retain->sent_count == retain->count)
		return 0;
	e = tern_retain_at(retain, retain->sent_count);
	if (tern_renew_retained(peer, e) < 0)
		return -EAGAIN;
	if (e->xfer && repeat_puts(peer, e) < 0)
		return -EAGAIN;
	if (give_kept(peer, e) < 0)
		return -EAGAIN;
	retain->sent_count++;
	return 1;
}

/* Sends the next RENEW (which announces a region again) or waiting message, the two in
 * turn. Whose turn it is, is remembered from call to call, because there may be room for
 * only one at a time. 1: sent; 0: nothing waits, so new messages may follow; -EAGAIN. */
static int say_next(struct tern_peer *peer)
{
	int renewed, sent;

	if (peer->stream.renewed_last) {
		sent = send_next(peer);
		peer->stream.renewed_last = sent < 0;
		return sent < 0 && tern_renew_next(peer) > 0 ? 1 : sent;
	}
	renewed = tern_renew_next(peer);
	peer->stream.renewed_last = renewed > 0;
	if (renewed > 0)
		return 1;
	sent = send_next(peer);
	return sent ? sent : renewed;
}

/* Sends waiting messages. Until all of them are sent, the pump issues no other puts, or
 * there might never be room for a waiting message. */
int tern_stream_flush_now(struct tern_peer *peer)
{
	int r;

	if (peer->stream.pings_due && say_pings(peer) < 0)
		return -EAGAIN;
	do
		r = say_next(peer);
	while (r > 0);
	return r;
}

/* Keeps a copy of a message and sends it, now or when there is room. `spare`: the number
 * of bytes by which the message may be longer when it is sent again. */
static int send_kept(struct tern_peer *peer, const void *head, size_t head_bytes,
	const void *payload, size_t payload_bytes, size_t spare, struct tern_xfer *xfer)
{
	struct tern_retained *e =
		tern_retain_add(&peer->stream.retain, head_bytes + payload_bytes + spare);
	unsigned char *copy;

	if (!e)
		return -EAGAIN;
	e->bytes -= (uint32_t)spare;
	copy = tern_retain_data(&peer->stream.retain, e);
	memcpy(copy, head, head_bytes);
	if (payload_bytes)
		memcpy(copy + head_bytes, payload, payload_bytes);
	e->seq = peer->stream.tx_seq + 1;
	e->head_bytes = (uint32_t)head_bytes;
	e->xfer = xfer;
	if (peer->stream.retain.sent_count + 1 == peer->stream.retain.count &&
		give_kept(peer, e) == 0)
		peer->stream.retain.sent_count++;
	return 0;
}

int tern_stream_send(struct tern_peer *peer, struct tern_header *header,
	const void *payload, struct tern_xfer *xfer)
{
	_Alignas(8) unsigned char head[TERN_HEAD_MAX];
	size_t payload_bytes = tern_header_payload_bytes(header);
	size_t head_bytes;
	int r;

	if (peer->state != TERN_PEER_STATE_UP)
		return -EAGAIN;
	stamp(peer, header, peer->stream.tx_seq + 1);
	head_bytes = tern_header_encode(header, head);
	if (keeps(peer))
		r = send_kept(peer, head, head_bytes, payload, payload_bytes,
			header->flags & TERN_FLAG_REGION ? TERN_REGION_SPARE : 0, xfer);
	else
		r = give(peer, head, head_bytes, payload, payload_bytes);
	if (r < 0)
		return r;
	peer->stream.tx_seq++;
	told(peer);
	return 0;
}

int tern_stream_bare(struct tern_peer *peer, struct tern_header *header)
{
	_Alignas(8) unsigned char head[TERN_HEAD_MAX];
	size_t bytes;

	stamp(peer, header, peer->stream.tx_seq);
	bytes = tern_header_encode(header, head);
	return give(peer, head, bytes, NULL, 0);
}

int tern_stream_apart(
	struct tern_peer *peer, struct tern_header *header, const void *payload)
{
	_Alignas(8) unsigned char head[TERN_HEAD_MAX];
	size_t bytes;

	if (peer->state != TERN_PEER_STATE_UP || tern_stream_flush(peer) < 0)
		return -EAGAIN;
	stamp(peer, header, peer->stream.tx_seq);
	bytes = tern_header_encode(header, head);
	if (give(peer, head, bytes, payload, tern_header_payload_bytes(header)) < 0)
		return -EAGAIN;
	told(peer);
	return 0;
}

static int say_credit(struct tern_peer *peer)
{
	return tern_stream_apart(
		peer, &(struct tern_header){.type = TERN_MSG_CREDIT}, NULL);
}

void tern_stream_ping(struct tern_peer *peer, bool reply)
{
	if (peer->state != TERN_PEER_STATE_UP)
		return;
	peer->stream.pings_due |= reply ? PING_REPLY : PING_ASK;
	say_pings(peer);
}

/* Sends the dialler a message, by which it learns that it is accepted. If there is no
 * room now, the acknowledgement that tern_stream_up() has scheduled serves instead. */
void tern_stream_welcome(struct tern_peer *peer)
{
	say_credit(peer);
}

int tern_stream_ack(struct tern_peer *peer)
{
	return peer->stream.told_ack == peer->stream.rx_seq ? 0 : say_credit(peer);
}

static bool worth_telling(const struct tern_peer *peer)
{
	return peer->stream.ack_due ||
	       peer->stream.rx_seq - peer->stream.told_ack >= TELL_MESSAGES ||
	       peer->stream.untold_bytes >= TELL_BYTES ||
	       tern_credit_worth_telling(&peer->stream.credit_rx) ||
	       (!peer->stream.starved_told && !tern_list_empty(&peer->pump.starved));
}

/* Deferred call: sends our acknowledgement and credits, unless another message has
 * carried them meanwhile. */
static void tell_now(struct tern_deferred *deferred)
{
	struct tern_peer *peer =
		tern_container_of(deferred, struct tern_peer, stream.tell_call);

	if (peer->state == TERN_PEER_STATE_UP && worth_telling(peer))
		say_credit(peer);
}

void tern_stream_tell(struct tern_peer *peer)
{
	peer->stream.tell_call.call = tell_now;
	tern_defer(peer->rdv->ctx, &peer->stream.tell_call);
}

/* ---- receiving ---- */

static int on_fin(struct tern_peer *peer, const struct tern_header *h)
{
	(void)h;
	peer->fin_received = true;
	peer->stream.ack_due = true;
	tern_stream_tell(peer);
	tern_peer_maybe_finish(peer);
	return 0;
}

static int on_ping(struct tern_peer *peer, const struct tern_header *h)
{
	if (!(h->flags & TERN_FLAG_REPLY))
		tern_stream_ping(peer, true);
	tern_peer_pinged(peer);
	return 0;
}

static int on_credit(struct tern_peer *peer, const struct tern_header *h)
{
	(void)peer;
	(void)h;
	return 0; /* a CREDIT consists of its header, which was handled already */
}

static int (*const handlers[TERN_MSG_TYPE_COUNT])(
	struct tern_peer *peer, const struct tern_header *h) = {
	[TERN_MSG_EAGER] = tern_recv_on_eager,
	[TERN_MSG_POST] = tern_send_on_post,
	[TERN_MSG_RTS] = tern_recv_on_rts,
	[TERN_MSG_CTS] = tern_send_on_cts,
	[TERN_MSG_DONE] = tern_recv_on_done,
	[TERN_MSG_ATS] = tern_send_on_ats,
	[TERN_MSG_CREDIT] = on_credit,
	[TERN_MSG_CANCEL] = tern_on_cancel,
	[TERN_MSG_CANCEL_ACK] = tern_on_cancel_ack,
	[TERN_MSG_PING] = on_ping,
	[TERN_MSG_FIN] = on_fin,
	[TERN_MSG_RENEW] = tern_on_renew,
	[TERN_MSG_WANT] = tern_want_on_want,
	[TERN_MSG_HAVE] = tern_want_on_have,
	[TERN_MSG_MISS] = tern_want_on_miss,
	[TERN_MSG_WINDOW_OPEN] = tern_window_on_open,
	[TERN_MSG_WINDOW_OPENED] = tern_window_on_opened,
	[TERN_MSG_WINDOW_WRITE] = tern_window_on_write,
	[TERN_MSG_WINDOW_READ] = tern_window_on_read,
	[TERN_MSG_WINDOW_FENCE] = tern_window_on_fence,
	[TERN_MSG_WINDOW_DONE] = tern_window_on_done,
	[TERN_MSG_WINDOW_CLOSE] = tern_window_on_close,
	[TERN_MSG_WINDOW_LEFT] = tern_window_on_left,
	[TERN_MSG_NOTIFY] = tern_window_on_notify,
	[TERN_MSG_WINDOW_MOVE] = tern_move_on_move,
	[TERN_MSG_WINDOW_MOVED] = tern_move_on_moved,
};

static int check_counters(
	struct tern_peer *peer, const struct tern_header *h, const char **why)
{
	if (h->epoch != peer->epoch) {
		*why = "an epoch of another connection";
		return -EPROTO;
	}
	if (tern_type_is_sequenced(h->type) && h->seq != peer->stream.rx_seq + 1) {
		*why = "a sequence number out of order";
		return -EPROTO;
	}
	if (h->flags & TERN_FLAG_RAIL) {
		*why = "a message that may only be sent on a rail";
		return -EPROTO;
	}
	if (tern_seq_before(peer->stream.tx_seq, h->ack)) {
		*why = "an acknowledgement of a message that was never sent";
		return -EPROTO;
	}
	if (!tern_credit_update(&peer->stream.credit_tx, h->credit)) {
		*why = "a grant of more credits than allowed";
		return -EPROTO;
	}
	if (tern_type_takes_credit(h->type, h->dst) &&
		!tern_credit_receive(&peer->stream.credit_rx)) {
		*why = "a message for which the peer had no credit";
		return -EPROTO;
	}
	return 0;
}

static void take_counters(struct tern_peer *peer, const struct tern_header *h)
{
	peer->alive.heard = true;
	if (h->type != TERN_MSG_PING)
		tern_peer_stir(peer);
	peer->stats.messages_received++;
	if (tern_type_is_sequenced(h->type)) {
		peer->stream.rx_seq = h->seq;
		peer->stream.untold_bytes += h->type == TERN_MSG_EAGER ? h->bytes : 0;
		if (worth_telling(peer))
			tern_stream_tell(peer);
	}
	peer->want.they_starve = h->flags & TERN_FLAG_STARVED;
	if (peer->want.watching)
		tern_want_watch(peer, h);
	if (h->flags & TERN_FLAG_STARVED) {
		tern_credit_grow(&peer->stream.credit_rx);
		if (tern_credit_worth_telling(&peer->stream.credit_rx))
			tern_stream_tell(peer);
	}
	if (h->type != TERN_MSG_RENEW)
		tern_send_forget_sent(peer, h->ack);
	if (tern_seq_before(peer->stream.acked, h->ack)) {
		peer->stream.acked = h->ack;
		tern_retain_ack(&peer->stream.retain, h->ack);
		tern_send_acked(peer);
		tern_wreq_acked(peer);
	}
}

static int dispatch(struct tern_peer *peer, const struct tern_header *h)
{
	int r = handlers[h->type](peer, h);

	/* The handler refused the message before it was stored in a record, so nobody
	 * else releases its credit. */
	if (r < 0 && tern_type_takes_credit(h->type, h->dst))
		tern_credit_release(&peer->stream.credit_rx);
	return r;
}

int tern_stream_receive(struct tern_peer *peer, const void *message, size_t bytes)
{
	struct tern_header h;
	const char *why = "a field that is not allowed for its type";
	int r = tern_header_decode(message, bytes, &h, &why);

	if (r == 0)
		r = check_counters(peer, &h, &why);
	if (r == 0) {
		take_counters(peer, &h);
		/* No callback can have ended the peer, because done() is deferred. */
		tern_assert(peer->state == TERN_PEER_STATE_UP);
		r = dispatch(peer, &h);
	}
	if (r < 0) {
		tern_peer_say_wrong(peer, message, bytes, why);
		return r;
	}
	tern_peer_pump(peer);
	return 0;
}

/* ---- links come and go ---- */

void tern_stream_up(struct tern_peer *peer, uint32_t their_rx_seq)
{
	struct tern_retain *retain = &peer->stream.retain;

	peer->stream.pings_due = 0;
	/* All kept messages that the peer has not handled are sent again. sent_count is
	 * set first, since new messages must be queued after them. */
	retain->sent_count = 0;
	for (uint32_t i = 0; i < retain->count; i++) {
		struct tern_retained *e = tern_retain_at(retain, i);
		void *head = tern_retain_data(retain, e);

		tern_header_restamp(head, peer->epoch);
		e->stale = tern_header_has_region(head);
	}
	if (tern_seq_before(peer->stream.acked, their_rx_seq)) {
		peer->stream.acked = their_rx_seq;
		tern_retain_ack(retain, their_rx_seq);
		tern_send_acked(peer);
		tern_wreq_acked(peer);
	}
	/* Our last acknowledgement and credits may have been lost with the old link. */
	peer->stream.ack_due = true;
	tern_stream_tell(peer);
}

void tern_stream_lost(struct tern_peer *peer)
{
	tern_list_for_each_safe (n, &peer->xfers) {
		struct tern_xfer *x = tern_list_entry(n, struct tern_xfer, all);

		if (x->is_send)
			tern_send_lost(x);
		else
			tern_recv_lost(x);
	}
	tern_renew_lost(peer);
	tern_windows_lost(peer);
}
