/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is a peer still there? Its timer `tick` fires four times per suspect_ns, and once a
 * second at least, while it is UP. If the other end was silent since the last one, it
 * says PING, counts the silence and makes the peer suspect. A tick that comes late counts
 * as one: our own standstill is no silence of theirs.
 *
 * Silence alone kills nobody (unless the user asked for that: dead_ns), since a program
 * may compute for minutes without a look at its peers. What ends a link is that the
 * peer's host does not answer the fabric (unanswered_ns in fabric.h). The end that
 * dialled cuts the link early and dials: a new connection is the quickest to find
 * that the path is back, as what waits on the old one is sent again ever more seldom. The
 * other end can only wait for that, and gives up the peer after all the time there is.
 *
 * PING is said once and then waits for its answer: many would fill the room that there is
 * for messages, and none of them would make the host answer sooner.
 *
 * Where nothing but PINGs has moved for a while, and all of them were answered, ticks
 * come after half that while, so that idle peers cost next to nothing; tern_peer_stir()
 * ends it. Ticks of idle peers fall together, so that one wake of the process serves
 * many. A PING puts the next one off at both ends, and the end that dialled has it later:
 * so the other one asks, which often has many peers, and both have heard. If it stops,
 * the end that dialled does.
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>

#define IDLE_SUSPECTS 5u   /* an idle peer is asked once in so many suspect_ns */
#define ASKED_LATER   5u   /* by the end that dialled: later by this part of the time */
#define GROUP_PEERS   128u /* asked at once: a millisecond's work */
#define REDIAL_PART   4u /* of unreachable_ns: the end that dialled cuts its link then */

static void set_tick(struct tern_peer *peer, uint64_t due_ns)
{
	tern_timer_set(peer->rdv->ctx, &peer->tick, due_ns);
}

/* While something moves. Upkeep goes on where silence is never suspect. */
static uint64_t busy_tick_ns(const struct tern_peer *peer)
{
	uint64_t quarter_ns = peer->rdv->ctx->opts.suspect_ns / 4;

	return TERN_MAX(TERN_MIN(quarter_ns, TERN_NS_PER_S), 1u);
}

/* Half of how long it has been quiet, within bounds that keep a death from staying
 * unnoticed for long. */
static uint64_t idle_tick_ns(const struct tern_peer *peer, uint64_t now_ns)
{
	const struct tern_context_opts *opts = &peer->rdv->ctx->opts;
	uint64_t most_ns = TERN_MIN(
		opts->unreachable_ns / 2, tern_ns_times(opts->suspect_ns, IDLE_SUSPECTS));

	most_ns = TERN_MIN(most_ns, opts->dead_ns / 2);
	return TERN_MIN((now_ns - peer->quiet_since_ns) / 2, most_ns);
}

/*
 * On a multiple of the busy tick. The end that asks has all its idle peers, or those of
 * one group, on the same, because a wake and cold caches cost more than the asking; each
 * context on another. The other end comes late enough to have been asked by then.
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

	peer->drowsy = false;
	peer->quiet_since_ns = now_ns;
	if (peer->state == TERN_PEER_STATE_UP)
		set_tick(peer, now_ns + busy_tick_ns(peer));
}

static void sleep_until_next_tick(struct tern_peer *peer, uint64_t now_ns)
{
	uint64_t idle_ns = idle_tick_ns(peer, now_ns);

	peer->drowsy = !peer->silent_ns && idle_ns > busy_tick_ns(peer);
	set_tick(peer, peer->drowsy ? idle_due_ns(peer, now_ns, idle_ns)
				    : now_ns + busy_tick_ns(peer));
}

/* What is to be done now and then. Not more often because the peer says more. */
static void tend(struct tern_peer *peer, uint64_t now_ns)
{
	if (now_ns - peer->tended_ns < busy_tick_ns(peer))
		return;
	peer->tended_ns = now_ns;
	tern_credit_idle(&peer->credit_rx);
	if (peer->dialler)
		tern_rails_dial(peer);
}

/* Timers first: whoever is told may end the peer, or ask for something. */
static void heard_of(struct tern_peer *peer, uint64_t now_ns)
{
	peer->heard = peer->pinged = false;
	peer->silent_ns = 0;
	sleep_until_next_tick(peer, now_ns);
	if (peer->suspect) {
		peer->suspect = false;
		tern_peer_report(peer, TERN_PEER_RECOVERED, 0);
	}
}

void tern_peer_pinged(struct tern_peer *peer)
{
	uint64_t now_ns;

	/* The next tick is soon: it sees that something was heard. */
	if (peer->stirred || peer->suspect)
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

/* The host that a lost session came back to has taken the connection. Its program may
 * have other things to do, and all the time there is starts anew. */
bool tern_peer_is_patient(struct tern_peer *peer, const struct tern_link *link)
{
	const struct tern_context_opts *opts = &peer->rdv->ctx->opts;

	if (link->state != TERN_LINK_WAIT_ANSWER || link->rail ||
		peer->state != TERN_PEER_STATE_LOST || !tern_link_awaits_program(link))
		return false;
	peer->give_up_ns = tern_ns_add(tern_peer_now_ns(peer),
		TERN_MAX(opts->reconnect_ns, opts->unreachable_ns));
	return true;
}

/* Whatever the main link says: its path may be another one. One that ends takes the main
 * link with it. True: that happened. */
static bool lost_a_rail(struct tern_peer *peer)
{
	for (unsigned i = 1; i < TERN_RAILS_MAX; i++) {
		struct tern_link *rail = peer->rails[i];

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
	if (peer->silent_ns >= peer->rdv->ctx->opts.dead_ns)
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
	if (!peer->pinged)
		tern_stream_ping(peer, false);
	peer->pinged = true;
}

void tern_peer_tick(struct tern_timer *timer)
{
	struct tern_peer *peer = tern_container_of(timer, struct tern_peer, tick);
	const struct tern_context_opts *opts = &peer->rdv->ctx->opts;
	uint64_t now_ns = tern_peer_now_ns(peer);

	if (peer->stirred)
		peer->quiet_since_ns = now_ns;
	peer->stirred = false;
	tend(peer, now_ns);
	if (lost_a_rail(peer))
		return;
	if (peer->heard) {
		heard_of(peer, now_ns);
		return;
	}
	/* It had no reason to say anything before it is asked. */
	peer->silent_ns += busy_tick_ns(peer);
	sleep_until_next_tick(peer, now_ns);
	if (gave_up(peer))
		return;
	if (peer->silent_ns >= opts->suspect_ns && !peer->suspect) {
		peer->suspect = true;
		tern_peer_report(peer, TERN_PEER_SUSPECT, -ETIMEDOUT);
	}
	ask(peer);
}
