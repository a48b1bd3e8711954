/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cancelling requests that the other end knows of. The end that cancels sends CANCEL. If
 * the other end has not started the transfer, it forgets the announced request and
 * answers CANCEL_ACK. If it has, the request ends in the usual way: by the other end's
 * ATS or DONE, or by an EAGER that crossed CANCEL. A sender that writes, or gets a CTS,
 * stops and sends DONE with -ECANCELED, so both halves end with the same status.
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>

int tern_cancel_say(struct tern_xfer *x)
{
	struct tern_header h = {
		.type = TERN_MSG_CANCEL,
		.flags = x->is_send ? 0 : TERN_FLAG_RECV,
		.src = x->id,
	};
	int r;

	if (!x->cancelled || x->cancel_told)
		return 0;
	r = tern_stream_send(x->peer, &h, NULL, NULL);
	if (r == 0)
		x->cancel_told = true;
	return r;
}

/* Stops our send that writes into the buffer of the peer's receive `id`. */
static void stop_writing(struct tern_peer *peer, uint32_t id)
{
	struct tern_xfer *x = tern_xfer_by_their_id(peer, id);

	if (x && (x->state == TERN_XFER_WRITING || x->state == TERN_XFER_FINISHING))
		tern_send_cancel(x);
}

int tern_on_cancel(struct tern_peer *peer, const struct tern_header *h)
{
	bool of_recv = h->flags & TERN_FLAG_RECV;
	struct tern_record *record = tern_record_by_id(peer, of_recv, h->src);

	if (record && record->node.waits) {
		tern_match_remove(&peer->match, &record->node);
		if (!of_recv)
			peer->arrival_count--;
		tern_record_answer(record, TERN_MSG_CANCEL_ACK, -ECANCELED);
	} else if (of_recv) {
		stop_writing(peer, h->src);
	}
	return 0;
}

int tern_on_cancel_ack(struct tern_peer *peer, const struct tern_header *h)
{
	struct tern_xfer *x = tern_xfer_by_id(peer, h->dst);
	bool of_recv = h->flags & TERN_FLAG_RECV;

	if (!x || x->is_send == of_recv || !x->cancelled)
		return 0;
	if (x->state == TERN_XFER_ADVERTISED || x->state == TERN_XFER_ANNOUNCED)
		tern_xfer_end(x, -ECANCELED);
	return 0;
}
