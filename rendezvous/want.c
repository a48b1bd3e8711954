/* SPDX-License-Identifier: Apache-2.0 */
/*
 * WANT, MISS and HAVE: receives ask for sends that wait for a credit. Whatever the order
 * in which sends were posted, the one that is received next is sent next
 * (docs/protocol.md, "Out of credits", has the proof).
 *
 *     receiver                                 sender
 *     WANT (triple, id)      -->   a send of the triple waits: it goes without a credit,
 *                            <--      EAGER or RTS with dst = id
 *                                  none waits:
 *                            <--      MISS (id); from now on it watches
 *                                  a send starts to wait while it watches:
 *                            <--      HAVE (triple)
 *     WANT ...
 *
 * The receiver sends a WANT when the sender is starved and has used every credit: then no
 * message that used a credit is in flight, and none can arrive before the sender has
 * handled the WANT. Only the oldest receive of a triple (channel, key, step) asks, and at
 * most TERN_WANTS_MAX receives at a time; for each of them a record is reserved. Neither
 * end keeps a list of the sends or receives that wait at the other end. A receive that
 * waits to ask is in `unasked`. If it is not the oldest of its triple when its turn
 * comes, it leaves the list and has `behind` set, until the older receives are matched.
 *
 * A tern_recv_any() asks each of its peers that is starved, by its proxies (any.c), and takes
 * the answer that comes first. The other answers wait as arrivals for the next receive of
 * the triple, and keep their records. So that a peer cannot pile them up, its proxies do
 * not ask while TERN_LATE_MAX of them wait.
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>

/* ---- receiver ---- */

void tern_want_later(struct tern_xfer *x)
{
	tern_list_push(&x->peer->want.unasked, &x->queue);
	if (tern_want_is_due(x->peer))
		tern_peer_pump(x->peer);
}

static int say_want(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;
	struct tern_header h = {
		.type = TERN_MSG_WANT,
		.channel = x->node.triple.channel,
		.key = x->node.triple.key,
		.step = x->node.triple.step,
	};
	int r = tern_xfer_id(x);

	if (r == 0)
		r = tern_records_want(x->rdv);
	if (r < 0)
		return r;
	h.src = x->id;
	r = tern_stream_send(peer, &h, NULL, NULL);
	if (r < 0) {
		x->rdv->wanted_count--;
		return r;
	}
	tern_list_remove(&x->queue);
	x->ask = TERN_ASK_OUT;
	peer->want.asks_out++;
	peer->stats.want_count++;
	return 0;
}

void tern_want_pump(struct tern_peer *peer)
{
	while (tern_want_is_due(peer)) {
		struct tern_xfer *x =
			tern_list_first(&peer->want.unasked, struct tern_xfer, queue);

		if (x->proxy && peer->want.late_count >= TERN_LATE_MAX) {
			tern_list_remove(&x->queue);
			tern_list_push(&peer->want.barred, &x->queue);
		} else if (!tern_match_before(&x->node)) {
			if (say_want(x) < 0)
				return;
		} else {
			tern_list_remove(&x->queue);
			x->behind = true;
			peer->want.behind_count++;
		}
	}
}

static void forget_ask(struct tern_xfer *x)
{
	if (x->ask == TERN_ASK_MISSED)
		x->peer->want.missed_count--;
	if (x->ask == TERN_ASK_OUT)
		x->peer->want.asks_lost++;
	x->ask = TERN_ASK_NONE;
}

static void come_forward(struct tern_xfer *x)
{
	if (x->behind)
		x->peer->want.behind_count--;
	x->behind = false;
}

void tern_want_leave(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;
	struct tern_match_node *n;

	if (!x->node.waits)
		return;
	forget_ask(x);
	come_forward(x);
	tern_match_remove(&peer->match, &x->node);
	if (peer->want.behind_count == 0)
		return;
	n = tern_match_find(&peer->match, &x->node.triple, TERN_MATCH_RECV);
	if (n && tern_container_of(n, struct tern_xfer, node)->behind) {
		struct tern_xfer *next = tern_container_of(n, struct tern_xfer, node);

		come_forward(next);
		tern_list_push(&peer->want.unasked, &next->queue);
	}
}

struct tern_xfer *tern_want_answered(struct tern_peer *peer, uint32_t id)
{
	struct tern_xfer *x = tern_xfer_by_id(peer, id);

	if (!x || x->is_send || x->ask != TERN_ASK_OUT)
		return NULL;
	peer->want.asks_out--;
	x->ask = TERN_ASK_NONE;
	return x;
}

int tern_want_on_miss(struct tern_peer *peer, const struct tern_header *h)
{
	struct tern_xfer *x = tern_want_answered(peer, h->dst);

	if (!x) { /* the receive was matched otherwise, or has ended: see asks_lost */
		if (peer->want.asks_lost == 0)
			return -EPROTO;
		peer->want.asks_lost--;
		peer->want.asks_out--;
	}
	peer->rdv->wanted_count--;
	if (!x)
		return 0;
	tern_xfer_forget_id(x);
	if (x->cancelled) {
		tern_xfer_end(x, -ECANCELED);
		return 0;
	}
	x->ask = TERN_ASK_MISSED;
	peer->want.missed_count++;
	return 0;
}

int tern_want_on_have(struct tern_peer *peer, const struct tern_header *h)
{
	const struct tern_triple triple = tern_header_triple(peer, h);
	struct tern_match_node *n =
		tern_match_find(&peer->match, &triple, TERN_MATCH_RECV);
	struct tern_xfer *x = n ? tern_container_of(n, struct tern_xfer, node) : NULL;

	if (x && x->ask == TERN_ASK_MISSED) {
		forget_ask(x);
		tern_list_push(&peer->want.unasked, &x->queue);
	}
	return 0;
}

void tern_want_late_is_over(struct tern_peer *peer)
{
	peer->want.late_count--;
	tern_list_splice(&peer->want.unasked, &peer->want.barred);
	tern_peer_pump(peer);
}

void tern_want_end(struct tern_peer *peer)
{
	peer->rdv->wanted_count -= peer->want.asks_out;
	peer->want.asks_out = peer->want.asks_lost = 0;
	peer->want.miss_count = 0;
}

/* ---- sender ---- */

/* Called when no send of ours can answer the peer's WANT for its receive `id`: queues a
 * MISS (no such send). -EPROTO: the peer has sent more WANTs than it may. */
static int miss(struct tern_peer *peer, uint32_t id)
{
	if (peer->want.miss_count == TERN_WANTS_MAX)
		return -EPROTO;
	peer->want.misses[peer->want.miss_count++] = id;
	peer->want.watching = true;
	return 0;
}

int tern_want_say_misses(struct tern_peer *peer)
{
	while (peer->want.miss_count) {
		struct tern_header h = {
			.type = TERN_MSG_MISS, .dst = peer->want.misses[0]};

		if (tern_stream_send(peer, &h, NULL, NULL) < 0)
			return -EAGAIN;
		peer->want.miss_seq = peer->stream.tx_seq;
		peer->want.miss_count--;
		for (uint32_t i = 0; i < peer->want.miss_count; i++)
			peer->want.misses[i] = peer->want.misses[i + 1];
	}
	return 0;
}

/* Ends `watching` (the state in which a send that begins to wait for a credit sends HAVE)
 * if the peer needs no HAVE any more: its header has no flag MISSED, and was made after
 * the peer had handled our last MISS. */
void tern_want_watch(struct tern_peer *peer, const struct tern_header *h)
{
	if (!(h->flags & TERN_FLAG_MISSED) && peer->want.miss_count == 0 &&
		h->type != TERN_MSG_RENEW &&
		!tern_seq_before(h->ack, peer->want.miss_seq))
		peer->want.watching = false;
}

static int say_have(struct tern_xfer *x)
{
	struct tern_header h = {
		.type = TERN_MSG_HAVE,
		.channel = x->node.triple.channel,
		.key = x->node.triple.key,
		.step = x->node.triple.step,
	};

	return tern_stream_send(x->peer, &h, NULL, NULL);
}

int tern_want_say_have(struct tern_xfer *x)
{
	if (!x->peer->want.watching)
		return 0;
	/* The peer ignores a HAVE that overtakes the MISS of the same receive. */
	return tern_want_say_misses(x->peer) < 0 ? -EAGAIN : say_have(x);
}

int tern_want_on_want(struct tern_peer *peer, const struct tern_header *h)
{
	const struct tern_triple triple = tern_header_triple(peer, h);
	struct tern_match_node *n;
	struct tern_xfer *x;

	if (!h->src)
		return -EPROTO;
	/* An EAGER or RTS of ours crossed this WANT on the wire, and takes its receive:
	 * answer MISS (no such send). */
	if (tern_send_crossed(peer, &triple))
		return miss(peer, h->src);
	n = tern_match_find(&peer->match, &triple, TERN_MATCH_SEND);
	x = n ? tern_container_of(n, struct tern_xfer, node) : NULL;
	if (!x || x->wanted || tern_match_find(&peer->match, &triple, TERN_MATCH_CLAIM))
		return miss(peer, h->src);
	/* From now on no POST (announced buffer) of a correct peer takes this send. The
	 * peer sent the WANT for its oldest receive of the triple. That receive has sent
	 * no POST, and a later receive sends none while an older one has sent none. */
	x->wanted = h->src;
	if (x->starving) {
		x->starving = false;
		tern_list_remove(&x->queue);
		tern_xfer_pend(x);
	}
	return 0;
}

void tern_want_withdraw(struct tern_xfer *x)
{
	uint32_t id = x->wanted;

	x->wanted = 0;
	if (miss(x->peer, id) < 0)
		tern_peer_cut(x->peer, -EPROTO);
}
