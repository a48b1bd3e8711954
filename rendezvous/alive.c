/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keep-alive: finds out whether a peer still exists. While the peer is UP and not idle,
 * its timer `tick` fires four times per suspect_ns, and at least once a second. If nothing
 * was received since the last tick, it sends a PING, adds to the time of silence, and
 * reports the peer as SUSPECT after suspect_ns. A late tick counts as one interval: a
 * pause of our own process is not silence of the peer.
 *
 * Silence alone never ends a peer (unless the user set dead_ns), since a program may
 * compute for minutes without handling its peers. A link ends when the peer's host does
 * not answer the fabric (unanswered_ns in fabric.h). The end that dialled closes the link
 * early and dials again: a new connection finds out soonest that the path is back, since
 * the kernel repeats data on the old one at growing intervals. The end that accepted can
 * only wait for the new connection, and gives up the peer after unreachable_ns.
 *
 * Only one PING is sent until something is received: more PINGs would fill the room for
 * messages, and would not make the host answer sooner.
 *
 * A peer is idle if nothing but PINGs was sent or received for some time, and all PINGs
 * were answered. Its next tick comes after half of that time, so that idle peers cost
 * almost nothing; tern_peer_stir() ends this. Ticks of idle peers coincide, so that one
 * wake-up of the process serves many peers. A PING postpones the next tick at both ends,
 * and the end that dialled has the later tick. So normally the end that accepted, which
 * often has many peers, sends the PING, and then both ends have received something. If it
 * sends no PING, the end that dialled does.
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>

/* Upper limit of the tick interval of an idle peer, as a multiple of suspect_ns. */
#define IDLE_SUSPECTS 5u
/* At the end that dialled, the tick of an idle peer is later by 1/ASKED_LATER of the
 * interval. */
#define ASKED_LATER 5u
#define GROUP_PEERS 128u /* about as many idle peers are probed in one wake-up (1 ms) */
/* The end that dialled closes its link when the peer's host has not answered for
 * 1/REDIAL_PART of unreachable_ns. */
#define REDIAL_PART 4u

static void set_tick(struct tern_peer *peer, uint64_t due_ns)
{
	tern_timer_set(peer->rdv->ctx, &peer->alive.tick, due_ns);
}

/* Tick interval of a peer that is not idle. Ticks are also needed for upkeep, so they
 * come at least once a second, however long suspect_ns is. */
static uint64_t busy_tick_ns(const struct tern_peer *peer)
{
	uint64_t quarter_ns = peer->rdv->ctx->opts.suspect_ns / 4;

	return TERN_MAX(TERN_MIN(quarter_ns, TERN_NS_PER_S), 1u);
}

/* Tick interval of an idle peer: half of the time for which it has been idle, within
 * bounds that limit the delay until a dead peer is noticed. */
static uint64_t idle_tick_ns(const struct tern_peer *peer, uint64_t now_ns)
{
	const struct tern_context_opts *opts = &peer->rdv->ctx->opts;
	uint64_t most_ns = TERN_MIN(
		opts->unreachable_ns / 2, tern_ns_times(opts->suspect_ns, IDLE_SUSPECTS));

	most_ns = TERN_MIN(most_ns, opts->dead_ns / 2);
	return TERN_MIN((now_ns - peer->alive.quiet_since_ns) / 2, most_ns);
}

/*
 * Returns the time of an idle peer's next tick, a multiple of the busy tick interval. The
 * end that sends the PINGs (the acceptor) chooses the same time for all its idle peers,
 * or for one group of them, because a wake-up and cold caches cost more than the PINGs;
 * each context chooses other times. The tick of the other end (the dialler) is late
 * enough that the PING has arrived by then.
 */
static uint64_t idle_due_ns(const struct tern_peer *peer, uint64_t now_ns, uint64_t in_ns)
{
	const struct tern_rdv *rdv = peer->rdv;
	uint64_t step_ns = busy_tick_ns(peer), steps = in_ns / step_ns;
	uint64_t groups = 1 + rdv->peer_count / GROUP_PEERS;
	uint64_t turn = rdv->incarnation + peer->token % groups * steps / groups;
	uint64_t last = now_ns / step_ns + steps;

	if (peer->dialler)
		return (last + steps / ASKED_LATER + 1) * step_ns;
	return (last - (last + turn) % steps) * step_ns;
}

void tern_peer_wake(struct tern_peer *peer)
{
	uint64_t now_ns = tern_peer_now_ns(peer);

	peer->alive.drowsy = false;
	peer->alive.quiet_since_ns = now_ns;
	if (peer->state == TERN_PEER_STATE_UP)
		set_tick(peer, now_ns + busy_tick_ns(peer));
}

static void sleep_until_next_tick(struct tern_peer *peer, uint64_t now_ns)
{
	uint64_t idle_ns = idle_tick_ns(peer, now_ns);

	peer->alive.drowsy = !peer->alive.silent_ns && idle_ns > busy_tick_ns(peer);
	set_tick(peer, peer->alive.drowsy ? idle_due_ns(peer, now_ns, idle_ns)
					  : now_ns + busy_tick_ns(peer));
}

/* Periodic upkeep of credits and rails. Its rate is limited, so that a talkative peer
 * cannot speed it up. */
static void tend(struct tern_peer *peer, uint64_t now_ns)
{
	if (now_ns - peer->alive.tended_ns < busy_tick_ns(peer))
		return;
	peer->alive.tended_ns = now_ns;
	tern_credit_idle(&peer->stream.credit_rx);
	if (peer->dialler)
		tern_rails_dial(peer);
}

/* Called when something was received from the peer. The tick is set before the event is
 * reported, because the user's callback may end the peer or post a request. */
static void heard_of(struct tern_peer *peer, uint64_t now_ns)
{
	peer->alive.heard = peer->alive.pinged = false;
	peer->alive.silent_ns = 0;
	sleep_until_next_tick(peer, now_ns);
	if (peer->alive.suspect) {
		peer->alive.suspect = false;
		tern_peer_report(peer, TERN_PEER_RECOVERED, 0);
	}
}

void tern_peer_pinged(struct tern_peer *peer)
{
	uint64_t now_ns;

	/* The peer is not idle, so its next tick comes soon, and sees by `heard` that
	 * something was received. */
	if (peer->alive.stirred || peer->alive.suspect)
		return;
	now_ns = tern_peer_now_ns(peer);
	tend(peer, now_ns);
	heard_of(peer, now_ns);
}

/* ---- silence ---- */

bool tern_link_is_unreachable(const struct tern_link *link)
{
	const struct tern_fabric_ops *ops = link->conn->port->ops;
	uint64_t most_ns = link->rdv->ctx->opts.unreachable_ns;

	if (link->peer->dialler)
		most_ns /= REDIAL_PART;
	return ops->unanswered_ns && ops->unanswered_ns(link->conn) >= most_ns;
}

bool tern_link_awaits_program(const struct tern_link *link)
{
	return link->rdv->ctx->opts.dead_ns == TERN_NEVER &&
	       !tern_link_is_unreachable(link);
}

/* True if this end has dialled a lost session, and the peer's host has accepted the
 * connection and still answers. The peer's program may be busy, so the time to give up
 * starts again. */
bool tern_peer_is_patient(struct tern_peer *peer, const struct tern_link *link)
{
	const struct tern_context_opts *opts = &peer->rdv->ctx->opts;

	if (link->state != TERN_LINK_WAIT_ANSWER || link->rail ||
		peer->state != TERN_PEER_STATE_LOST || !tern_link_awaits_program(link))
		return false;
	peer->dial.give_up_ns = tern_ns_add(tern_peer_now_ns(peer),
		TERN_MAX(opts->reconnect_ns, opts->unreachable_ns));
	return true;
}

/* Checks the rails separately, since their network path may differ from that of the main
 * link. A rail that is unreachable is closed, which also ends the main link. True: that
 * happened. */
static bool lost_a_rail(struct tern_peer *peer)
{
	for (unsigned i = 1; i < TERN_RAILS_MAX; i++) {
		struct tern_link *rail = peer->rails.link[i];

		if (rail && rail->state == TERN_LINK_UP &&
			tern_link_is_unreachable(rail)) {
			tern_link_close(rail, -ETIMEDOUT, false);
			return true;
		}
	}
	return false;
}

/* Ends the peer if its program was silent for dead_ns. Ends the peer or, at the end that
 * dialled, only the main link if the peer's host does not answer. True: one of these
 * happened. */
static bool gave_up(struct tern_peer *peer)
{
	if (peer->alive.silent_ns >= peer->rdv->ctx->opts.dead_ns)
		tern_peer_down(peer, -ETIMEDOUT);
	else if (!tern_link_is_unreachable(peer->link))
		return false;
	else if (peer->dialler)
		tern_peer_cut(peer, -ETIMEDOUT);
	else
		tern_peer_down(peer, -ETIMEDOUT);
	return true;
}

static void ask(struct tern_peer *peer)
{
	if (!peer->alive.pinged)
		tern_stream_ping(peer, false);
	peer->alive.pinged = true;
}

void tern_peer_tick(struct tern_timer *timer)
{
	struct tern_peer *peer = tern_container_of(timer, struct tern_peer, alive.tick);
	const struct tern_context_opts *opts = &peer->rdv->ctx->opts;
	uint64_t now_ns = tern_peer_now_ns(peer);

	if (peer->alive.stirred)
		peer->alive.quiet_since_ns = now_ns;
	peer->alive.stirred = false;
	tend(peer, now_ns);
	if (lost_a_rail(peer))
		return;
	if (peer->alive.heard) {
		heard_of(peer, now_ns);
		return;
	}
	/* Adds one busy tick interval, even after the longer interval of an idle peer:
	 * the peer had no reason to send anything before it got a PING. */
	peer->alive.silent_ns += busy_tick_ns(peer);
	sleep_until_next_tick(peer, now_ns);
	if (gave_up(peer))
		return;
	if (peer->alive.silent_ns >= opts->suspect_ns && !peer->alive.suspect) {
		peer->alive.suspect = true;
		tern_peer_report(peer, TERN_PEER_SUSPECT, -ETIMEDOUT);
	}
	ask(peer);
}
