/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keep-alive: finds out whether a peer is still there. While the peer is UP, its timer
 * `tick` fires four times per suspect_ns, and at least once a second. If nothing was
 * received since the last tick, it sends a PING, counts the silence and reports the peer
 * as SUSPECT. A late tick counts as one interval: a pause of our own process is not
 * silence of the peer.
 *
 * Silence alone never ends a peer (unless the user set dead_ns), since a program may
 * compute for minutes without handling its peers. A link ends when the peer's host does
 * not answer the fabric (unanswered_ns in fabric.h). The end that dialled cuts the link
 * early and dials: a new connection finds out soonest that the path is back, since data
 * waiting on the old one is repeated ever more seldom. The other end can only wait for
 * that, and gives up the peer after unreachable_ns.
 *
 * A PING is sent once, and then its answer is awaited: more PINGs would fill the room for
 * messages, and would not make the host answer sooner.
 *
 * If only PINGs have moved for a while and all of them were answered, the next tick comes
 * after half that while, so that idle peers cost almost nothing; tern_peer_stir() ends
 * this. Ticks of idle peers coincide, so that one wake of the process serves many. A PING
 * postpones the next tick at both ends, and the end that dialled has the later tick. So
 * the accepting end, which often has many peers, sends the PING, and both ends have
 * received something. If it stops, the end that dialled sends PINGs.
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>

/* An idle peer is probed once in this many suspect_ns at most. */
#define IDLE_SUSPECTS 5u
/* The tick of the dialling end is later by this fraction of the time. */
#define ASKED_LATER 5u
#define GROUP_PEERS 128u /* peers probed at once: a millisecond of work */
/* The dialling end cuts its link after this fraction of unreachable_ns. */
#define REDIAL_PART 4u

static void set_tick(struct tern_peer *peer, uint64_t due_ns)
{
	tern_timer_set(peer->rdv->ctx, &peer->alive.tick, due_ns);
}

/* Tick interval while something moves. If silence never makes a peer suspect, ticks
 * are still needed for upkeep. */
static uint64_t busy_tick_ns(const struct tern_peer *peer)
{
	uint64_t quarter_ns = peer->rdv->ctx->opts.suspect_ns / 4;

	return TERN_MAX(TERN_MIN(quarter_ns, TERN_NS_PER_S), 1u);
}

/* Tick interval of an idle peer: half of its idle time, within bounds that limit the
 * delay until a death is noticed. */
static uint64_t idle_tick_ns(const struct tern_peer *peer, uint64_t now_ns)
{
	const struct tern_context_opts *opts = &peer->rdv->ctx->opts;
	uint64_t most_ns = TERN_MIN(
		opts->unreachable_ns / 2, tern_ns_times(opts->suspect_ns, IDLE_SUSPECTS));

	most_ns = TERN_MIN(most_ns, opts->dead_ns / 2);
	return TERN_MIN((now_ns - peer->alive.quiet_since_ns) / 2, most_ns);
}

/*
 * Time of the next idle tick, on a multiple of the busy interval. The end that sends the
 * PINGs uses the same multiple for all its idle peers, or for one group of them, because
 * a wake and cold caches cost more than the PINGs; each context uses another multiple.
 * The other end's tick is late enough that it has got the PING by then.
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

/* Periodic upkeep, limited in rate so that a talkative peer cannot speed it up. */
static void tend(struct tern_peer *peer, uint64_t now_ns)
{
	if (now_ns - peer->alive.tended_ns < busy_tick_ns(peer))
		return;
	peer->alive.tended_ns = now_ns;
	tern_credit_idle(&peer->stream.credit_rx);
	if (peer->dialler)
		tern_rails_dial(peer);
}

/* Something was received. Timers are set first: a callback may end the peer, or post a
 * request. */
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

	/* The next tick is soon, and will see that something was received. */
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

/* The host to which a lost session returned has accepted the connection. Its program
 * may be busy, so the whole time limit starts again. */
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

/* Checks the rails on their own, since their path may differ from that of the main
 * link. A rail that ends also ends the main link. True: that happened. */
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

/* True: the peer, or its link, has ended. */
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
	/* The peer had no reason to send anything before it got the PING. */
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
