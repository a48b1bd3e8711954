/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions after a reconnect: each end announces its own again on the new link.
 *
 * A region is a right to access memory (an exposure of tcp, a key of an RDMA device). It
 * belongs to a fabric, and the next link may use another fabric. So when a link is lost,
 * every region of the peer that is still needed becomes stale: no put or get uses it.
 * Then each end announces its own regions anew:
 *
 * - a message with a region that is sent again carries the request's new region;
 * - if the peer has handled the message already, a RENEW with the id of the request
 *   carries the new region.
 *
 * RENEWs and messages that are sent again alternate. RENEWs must not wait for those
 * messages, because a DONE that is sent again may itself wait for a RENEW of the peer.
 * And if every link is cut before all RENEWs were sent, so that they begin again each
 * time, the first waiting message still gets through.
 *
 * When a link is lost, all requests of the peer are visited once, since each may have a
 * region to announce. The receiver of a RENEW finds the request by its id.
 *
 * If the new fabric cannot read, an RTS is renewed without a region, and the receiver
 * answers with a CTS instead of reading. A transfer that began with puts continues with
 * puts, even if the new fabric can read.
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>

/* ---- the peer's regions ---- */

static bool writes(const struct tern_xfer *x)
{
	return x->is_send && x->remote_id;
}

void tern_renew_lost(struct tern_peer *peer)
{
	tern_list_for_each (n, &peer->records) {
		struct tern_record *record = tern_list_entry(n, struct tern_record, all);

		record->stale = record->has_region;
	}
	tern_list_for_each (n, &peer->xfers) {
		struct tern_xfer *x = tern_list_entry(n, struct tern_xfer, all);

		x->stale = writes(x);
	}
}

/* Called when the peer has announced the region of its RTS again: continues the receive
 * that was matched with this RTS and waits for the region, if there is one. */
static void go_on_reading(const struct tern_record *record)
{
	struct tern_xfer *x = record->xfer;

	if (x && (x->state == TERN_XFER_READING || x->state == TERN_XFER_PEEKING))
		tern_xfer_pend(x);
}

static int renew_record(struct tern_record *record, const struct tern_header *h)
{
	bool has_region = h->flags & TERN_FLAG_REGION;

	if (record->type == TERN_MSG_POST && !has_region)
		return -EPROTO;
	record->region = h->region;
	record->has_region = has_region;
	record->stale = false;
	if (record->type == TERN_MSG_RTS)
		go_on_reading(record);
	return 0;
}

static int renew_send(struct tern_xfer *x, const struct tern_header *h)
{
	if (!(h->flags & TERN_FLAG_REGION))
		return -EPROTO;
	x->region = h->region;
	x->stale = false;
	if (x->state == TERN_XFER_WRITING)
		tern_write_queue(x);
	return 0;
}

int tern_on_renew(struct tern_peer *peer, const struct tern_header *h)
{
	bool of_recv = h->flags & TERN_FLAG_RECV;
	struct tern_record *record;
	struct tern_xfer *x;

	if (!h->src)
		return -EPROTO;
	if ((h->flags & TERN_FLAG_REGION) && !of_recv &&
		!(tern_peer_caps(peer) & TERN_CAP_GET))
		return -EPROTO;
	record = tern_record_by_id(peer, of_recv, h->src);
	if (record && record->stale)
		return renew_record(record, h);
	x = of_recv ? tern_xfer_by_their_id(peer, h->src) : NULL;
	if (x && x->stale)
		return renew_send(x, h);
	return 0; /* this end does not know the request, or no longer needs its region */
}

/* ---- our own ---- */

/* Withdraws our regions of the old link, and stores the port of the new link. Regions are
 * withdrawn even if the port is the same: a region may depend on the devices that are
 * present. */
void tern_renew_move(struct tern_peer *peer, struct tern_port *port)
{
	tern_list_for_each (n, &peer->xfers)
		/* The old link and its rails are closed, so nothing can be written to the
		 * region any more, and the call has its effect immediately. */
		tern_assert(tern_xfer_withdraw(
				    tern_list_entry(n, struct tern_xfer, all), 0) == 0);
	peer->port = port;
	peer->fabric_name = port->ops->name;
}

void tern_renew_begin(struct tern_peer *peer)
{
	tern_list_for_each (n, &peer->xfers) {
		struct tern_xfer *x = tern_list_entry(n, struct tern_xfer, all);

		tern_list_remove(&x->renewal);
		if (x->told)
			tern_list_push(&peer->renewals, &x->renewal);
	}
}

/* Stores our present region of a transfer in *out; NULL: there is none, since the peer
 * cannot read the tensor on this link. Returns 0, or -EAGAIN: no region is free. */
static int region_of(struct tern_xfer *x, const struct tern_region **out)
{
	int r;

	*out = NULL;
	if (x->is_send && !tern_send_readable(x))
		return 0;
	r = tern_xfer_expose(x, x->is_send ? TERN_ACCESS_READ : TERN_ACCESS_WRITE);
	*out = &x->region;
	return r < 0 ? -EAGAIN : 0;
}

static int say_renew(struct tern_xfer *x)
{
	struct tern_header h = {.type = TERN_MSG_RENEW, .src = x->id};
	const struct tern_region *region;

	if (region_of(x, &region) < 0)
		return -EAGAIN;
	if (region) {
		h.flags |= TERN_FLAG_REGION;
		h.region = *region;
	}
	if (!x->is_send)
		h.flags |= TERN_FLAG_RECV;
	return tern_stream_bare(x->peer, &h);
}

int tern_renew_next(struct tern_peer *peer)
{
	struct tern_xfer *x = tern_list_first(&peer->renewals, struct tern_xfer, renewal);

	if (!x)
		return 0;
	/* If x->told was cleared meanwhile, the peer no longer needs our region of x. */
	if (x->told && say_renew(x) < 0)
		return -EAGAIN;
	tern_list_remove(&x->renewal);
	return 1;
}

/* Puts the request's present region into a message that is sent again. If the request has
 * ended, nobody uses the region, so it may be zeros. -EAGAIN: no region is free. */
int tern_renew_retained(struct tern_peer *peer, struct tern_retained *e)
{
	static const struct tern_region nowhere;
	const struct tern_region *region = &nowhere;
	void *head = tern_retain_data(&peer->stream.retain, e);
	struct tern_xfer *x;
	size_t head_bytes;

	if (!e->stale)
		return 0;
	x = tern_xfer_by_id(peer, tern_header_src(head));
	if (tern_header_type(head) == TERN_MSG_RTS &&
		!(x ? tern_send_readable(x) : tern_peer_caps(peer) & TERN_CAP_GET))
		region = NULL;
	if (x && x->told && region_of(x, &region) < 0)
		return -EAGAIN;
	head_bytes = tern_header_set_region(head, e->head_bytes, region);
	e->bytes -= e->head_bytes - (uint32_t)head_bytes;
	e->head_bytes = (uint32_t)head_bytes;
	e->stale = false;
	return 0;
}
