/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails: further connections to the same peer, over which the puts (RDMA writes) of large
 * tensors are spread.
 *
 * A rail carries puts, and one kind of message: DONE with the flag RAIL. When a sender
 * has issued all puts of a tensor, it sends this message on each rail that it used. The
 * receiver, whose fabric delivers the message after the puts, sends it back. When all
 * rails have answered, the sender sends the real DONE on the main link. So the receiver
 * need not know which rail carried which part, and the acknowledgement of DONE still
 * means that all data has arrived. This costs a large tensor on rails one round trip.
 *
 * When the main link ends, the rails are closed. When a rail breaks, its data may be
 * lost, so the main link is closed too, and the session continues with a new epoch
 * (number of the connection).
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>

#include "base/clock.h"

/* After this many failures the pause before the next attempt stays the same: 8 s, or less
 * if suspect_ns is less than 1 s. */
#define RAIL_FAILURES_MAX 6u
#define DIAL_NS           (5 * TERN_NS_PER_S)

/* ---- up and down ---- */

static bool exists(const struct tern_peer *peer, unsigned rail)
{
	if (peer->rails.link[rail])
		return true;
	tern_list_for_each (n, &peer->links) {
		const struct tern_link *link =
			tern_list_entry(n, struct tern_link, of_peer);

		if (link->rail == rail)
			return true;
	}
	return false;
}

/* Returns the address that a rail dials. The connections that carry puts use the peer's
 * addresses on the fabric in use in turn, beginning with that of the main link. So they
 * use several networks and devices, if the list has addresses of several. */
static const char *address_of(const struct tern_peer *peer, uint32_t rail)
{
	const struct tern_candidates *all = &peer->dial.candidates;
	const struct tern_candidate *found = &all->at[peer->dial.candidate];
	unsigned at = peer->dial.candidate;

	if (peer->rails.bulk_bytes)
		rail--;
	while (rail > 0) {
		at = (at + 1) % all->count;
		if (all->at[at].fabric == found->fabric) {
			found = &all->at[at];
			rail--;
		}
	}
	return found->address;
}

/* Dials a rail unless it is up or being dialled. If the attempt cannot even start, the
 * next tern_rails_dial() repeats it. */
static void dial(struct tern_peer *peer, uint32_t rail, uint64_t now_ns)
{
	struct tern_rdv *rdv = peer->rdv;
	struct tern_conn *conn;
	struct tern_link *link;

	if (exists(peer, rail) ||
		peer->port->ops->connect(peer->port, address_of(peer, rail), &conn) < 0)
		return;
	link = tern_link_new(rdv, conn, TERN_LINK_DIALLING);
	if (!link) {
		conn->user = NULL;
		peer->port->ops->conn_close(conn, false);
		return;
	}
	link->rail = (uint8_t)rail;
	tern_peer_add_link(peer, link);
	/* The time limit is at most DIAL_NS, since the user may set connect_ns to minutes
	 * for a peer that is not started yet. */
	tern_timer_set(rdv->ctx, &link->timer,
		tern_ns_add(now_ns, TERN_MIN(rdv->ctx->opts.connect_ns, DIAL_NS)));
}

/* Dials all rails that are not up. Called when the main link comes up, for the first bulk
 * tensor, and about once per keep-alive tick, since an acceptor that is not ready refuses
 * a rail. Each failure doubles the time until the next attempt. */
void tern_rails_dial(struct tern_peer *peer)
{
	uint64_t now_ns = tern_now_ns(peer->rdv->ctx->env);
	uint32_t last = peer->rdv->ctx->opts.rail_count;

	if (!(tern_peer_caps(peer) & TERN_CAP_PUT) ||
		(peer->rails.bulk_bytes && !peer->rails.bulk) ||
		now_ns < peer->rails.after_ns)
		return;
	if (!peer->rails.bulk_bytes)
		last--; /* the main link carries puts too, so it counts as one */
	for (uint32_t i = 1; i <= last; i++)
		dial(peer, i, now_ns);
}

/* Called when a rail has ended before it was up: sets the time of the next attempt. */
void tern_rail_failed(struct tern_peer *peer)
{
	const struct tern_context *ctx = peer->rdv->ctx;
	uint64_t first_ns = TERN_MIN(ctx->opts.suspect_ns, TERN_NS_PER_S) / 8;
	uint64_t pause_ns = first_ns << peer->rails.failures;

	peer->rails.after_ns = tern_now_ns(ctx->env) + pause_ns;
	if (peer->rails.failures < RAIL_FAILURES_MAX)
		peer->rails.failures++;
}

void tern_rails_make(struct tern_peer *peer)
{
	peer->rails.bulk = true;
	if (peer->dialler && peer->state == TERN_PEER_STATE_UP)
		tern_rails_dial(peer);
}

/* True if this link may become a rail of the peer: it belongs to the present main link's
 * epoch and fabric, and the rail with its number is not up. */
bool tern_rail_welcome(struct tern_peer *peer, const struct tern_link *link)
{
	return peer->state == TERN_PEER_STATE_UP && link->epoch == peer->epoch &&
	       link->conn->port == peer->port && link->rail < TERN_RAILS_MAX &&
	       !peer->rails.link[link->rail];
}

void tern_rail_up(struct tern_link *link)
{
	struct tern_peer *peer = link->peer;

	if (!tern_rail_welcome(peer, link)) {
		tern_link_close(link, -ECONNRESET, false);
		return;
	}
	tern_link_enter(link, TERN_LINK_UP);
	link->conn->owner = peer;
	peer->rails.link[link->rail] = link;
	peer->rails.load[link->rail] = (struct tern_load){0};
	peer->rails.failures = 0;
	tern_write_sort(peer);
	tern_peer_pump(peer);
}

bool tern_rails_closed(const struct tern_peer *peer)
{
	for (unsigned i = 1; i < TERN_RAILS_MAX; i++)
		if (peer->rails.link[i])
			return false;
	return true;
}

/* Closes all rails, also those that are not up yet, which would otherwise join the
 * session's next link. */
void tern_rails_close(struct tern_peer *peer)
{
	tern_list_for_each_safe (n, &peer->links) {
		struct tern_link *link = tern_list_entry(n, struct tern_link, of_peer);

		if (link->rail)
			tern_link_close(link, -ECONNRESET, false);
	}
}

/* ---- sending ---- */

static int say(struct tern_link *link, uint16_t flags, uint32_t src, uint32_t dst)
{
	struct tern_header h = {
		.type = TERN_MSG_DONE,
		.flags = TERN_FLAG_RAIL | flags,
		.epoch = link->epoch,
		.src = src,
		.dst = dst,
	};
	_Alignas(8) unsigned char head[TERN_HEAD_MAX];
	size_t bytes = tern_header_encode(&h, head);

	return link->conn->port->ops->send(link->conn, head, bytes, NULL, 0);
}

/* Called when all puts of x were issued: asks each rail that x used for a confirmation.
 * 0: every rail has confirmed; -EINPROGRESS: confirmations are awaited; -EAGAIN: a rail
 * could not be asked, so call this again. */
int tern_rails_settle(struct tern_xfer *x)
{
	for (unsigned i = 1; i < TERN_RAILS_MAX; i++) {
		struct tern_link *link = x->peer->rails.link[i];

		if (!(x->rails_used & ~x->rails_asked & tern_rail_bit(i)))
			continue;
		if (!link || tern_xfer_id(x) < 0 || say(link, 0, x->id, 0) < 0)
			return -EAGAIN;
		x->rails_asked |= (uint16_t)tern_rail_bit(i);
		x->peer->rails.load[i].asked = x->peer->rails.load[i].given;
	}
	return x->rails_asked == x->rails_confirmed ? 0 : -EINPROGRESS;
}

/* ---- receiving ---- */

/* Sends the confirmations for which there was no room before, oldest first. */
static int flush_echoes(struct tern_link *link)
{
	while (link->echo_count) {
		if (say(link, TERN_FLAG_REPLY, 0, link->echoes[link->echo_first]) < 0)
			return -EAGAIN;
		link->echo_first = (link->echo_first + 1) % TERN_RAIL_ECHOES;
		link->echo_count--;
	}
	return 0;
}

static int echo(struct tern_link *link, uint32_t id)
{
	if (!link->echoes)
		link->echoes = malloc(TERN_RAIL_ECHOES * sizeof(*link->echoes));
	if (!link->echoes)
		return -ENOMEM;
	if (link->echo_count == TERN_RAIL_ECHOES)
		/* The peer has sent more requests for confirmation than it may. */
		return -EPROTO;
	link->echoes[(link->echo_first + link->echo_count++) % TERN_RAIL_ECHOES] = id;
	flush_echoes(link);
	return 0;
}

static void confirmed(struct tern_link *link, uint32_t id)
{
	struct tern_xfer *x = tern_xfer_by_id(link->peer, id);
	struct tern_load *load = &link->peer->rails.load[link->rail];

	if (!x || !x->is_send || x->state != TERN_XFER_WRITING ||
		!(x->rails_asked & tern_rail_bit(link->rail)))
		return;
	if (load->given == load->asked)
		tern_load_carried(load, tern_now_ns(link->peer->rdv->ctx->env));
	x->rails_confirmed |= (uint16_t)tern_rail_bit(link->rail);
	tern_write_settled(x);
}

int tern_rail_message(struct tern_link *link, const void *message, size_t bytes)
{
	struct tern_header h;
	const char *why = "a message that may not be sent on a rail";
	int r = tern_header_decode(message, bytes, &h, &why);

	if (r == 0 && (h.type != TERN_MSG_DONE || !(h.flags & TERN_FLAG_RAIL) ||
			      h.epoch != link->epoch))
		r = -EPROTO;
	if (r < 0) {
		tern_peer_say_wrong(link->peer, message, bytes, why);
		return r;
	}
	link->peer->alive.heard = true;
	tern_peer_stir(link->peer);
	if (!(h.flags & TERN_FLAG_REPLY))
		return echo(link, h.src);
	confirmed(link, h.dst);
	return 0;
}

void tern_rail_writable(struct tern_link *link)
{
	flush_echoes(link);
	tern_peer_pump(link->peer);
}
