/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pump continues the requests of a peer when there is room for messages (the fabric's
 * send queue and the ring of kept messages are not full), or when a credit has come.
 *
 * A transfer is in at most one of these lists, which says what it waits for: `pending`
 * (room for its message), `starved` (a credit), `unasked` (a receive that may send a
 * WANT: want.c), `writing` (puts to issue: write.c), `wait_ack` (the acknowledgement of
 * its DONE), and for memory rdv->hungry (recv.c), `offering` (lend.c) and
 * rdv->bounceless (stage.c). The pump serves its lists so that answers and small messages
 * go before further puts of large data.
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>

#include "rendezvous/window.h"

static int advance(struct tern_xfer *x)
{
	return x->is_send ? tern_send_advance(x) : tern_recv_advance(x);
}

static int starve(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;

	if (tern_want_say_have(x) < 0)
		return -EAGAIN;
	tern_list_push(&peer->pump.starved, &x->queue);
	x->starving = true;
	peer->stats.credit_stall_count++;
	if (!peer->stream.starved_told)
		tern_stream_tell(peer);
	return 0;
}

bool tern_pump_join_starved(struct tern_xfer *x)
{
	const struct tern_peer *peer = x->peer;

	return !tern_list_empty(&peer->pump.starved) &&
	       tern_list_empty(&peer->pump.pending) &&
	       peer->state == TERN_PEER_STATE_UP && starve(x) == 0;
}

static int say_answer(struct tern_record *record)
{
	struct tern_header h = {
		.type = record->answer,
		.dst = record->src,
		.status = record->status,
		.flags = record->answer == TERN_MSG_CANCEL_ACK &&
					 record->type == TERN_MSG_POST
				 ? TERN_FLAG_RECV
				 : 0,
	};
	int r = tern_stream_send(record->peer, &h, NULL, NULL);

	if (r == 0)
		tern_record_free(record);
	return r;
}

static int pump_answers(struct tern_peer *peer)
{
	struct tern_record *record;

	if (peer->want.miss_count && tern_want_say_misses(peer) < 0)
		return -EAGAIN;
	while ((record = tern_list_first(&peer->pump.answers, struct tern_record, queue)))
		if (say_answer(record) < 0)
			return -EAGAIN;
	return 0;
}

static int pump_pending(struct tern_peer *peer)
{
	struct tern_list *n;

	while ((n = tern_list_pop(&peer->pump.pending))) {
		struct tern_xfer *x = tern_list_entry(n, struct tern_xfer, queue);
		int r = advance(x);

		if (r == -ENOBUFS)
			r = starve(x);
		if (r == -EAGAIN) {
			tern_list_push_front(&peer->pump.pending, n);
			return r;
		}
	}
	return 0;
}

static int pump_starved(struct tern_peer *peer)
{
	while (!tern_list_empty(&peer->pump.starved) &&
		peer->stream.credit_tx.granted != peer->stream.credit_tx.used) {
		struct tern_list *n = tern_list_pop(&peer->pump.starved);
		struct tern_xfer *x = tern_list_entry(n, struct tern_xfer, queue);
		int r;

		peer->pump.serving_starved = true;
		x->starving = false;
		r = advance(x);
		peer->pump.serving_starved = false;
		if (r < 0) {
			x->starving = true;
			tern_list_push_front(&peer->pump.starved, n);
			return r;
		}
	}
	return 0;
}

void tern_peer_pump_now(struct tern_peer *peer)
{
	if (peer->state != TERN_PEER_STATE_UP || peer->pump.running)
		return;
	peer->pump.running = true;
	/* Repeat from the start: a send whose puts were all issued has a DONE message to
	 * send, and RENEWs (regions announced again) alternate with other messages. */
	do {
		if (tern_stream_flush(peer) < 0 || pump_answers(peer) < 0 ||
			pump_pending(peer) < 0 || pump_starved(peer) < 0)
			break;
		if (tern_want_is_due(peer))
			tern_want_pump(peer);
		if (!tern_list_empty(&peer->renewals))
			/* RENEWs (regions announced again) wait, and large data would
			 * take their room. */
			continue;
		if (peer->windows.due)
			tern_windows_pump_now(peer);
		/* Large data would take the room of messages about windows, too. */
		if (tern_write_waits(peer) && !peer->windows.starved)
			tern_write_pump(peer);
	} while (!tern_list_empty(&peer->pump.pending) ||
		 !tern_list_empty(&peer->pump.answers) ||
		 !tern_list_empty(&peer->renewals));
	peer->pump.running = false;
	tern_peer_maybe_finish(peer);
}

void tern_xfer_pend(struct tern_xfer *x)
{
	if (!tern_list_linked(&x->queue))
		tern_list_push(&x->peer->pump.pending, &x->queue);
	tern_peer_pump(x->peer);
}
