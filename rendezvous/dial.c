/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connecting to a peer, and reconnecting (dialling): which of its addresses is tried, how
 * long an attempt may take, the pauses between attempts, and how long a lost session may
 * take to return. (session.c has what follows when a link is up, and the end of a
 * session.)
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/sized.h"

#define CANDIDATE_NS TERN_NS_PER_S
/* Limit of an attempt of a lost session that has only one address: long enough for two
 * SYNs, which the kernel sends at 0 s and 1 s. */
#define ATTEMPT_NS       (2 * TERN_NS_PER_S)
#define BACKOFF_FIRST_NS (2 * TERN_NS_PER_MS)
#define BACKOFF_MAX_NS   (100 * TERN_NS_PER_MS)
/* A link that stayed up for this long was useful, even if no message waited to be
 * sent. */
#define LASTING_NS TERN_NS_PER_S
/* The session ends after this many consecutive links that came up and carried none of the
 * waiting messages, if this goes on for at least unreachable_ns. The cause is then a path
 * that passes small messages and drops large ones, or an end that refuses what the other
 * sends. Links that stayed up for LASTING_NS prove this. A link that was cut earlier
 * proves little: a path that breaks every few round trips does carry a large tensor now
 * and then. So FRUITLESS_EARLY such links count as one link that lasted. */
#define FRUITLESS_MAX 16u
/* Number of links cut earlier than after LASTING_NS that count as one that lasted. */
#define FRUITLESS_EARLY 16u
/* After every 4 consecutive fruitless links, another address is tried. */
#define FRUITLESS_MOVE 4u

/* ---- addresses ---- */

/* Number of addresses that may be tried. A session that has come up on one address uses
 * only that address and those after it in the list. */
static unsigned choices(const struct tern_peer *peer)
{
	return peer->dial.candidates.count - peer->dial.home;
}

/* Returns the time at which the present attempt to connect is given up. An address of a
 * host that never answers must not use up all the time; nor may an address on a fabric
 * that the host lacks use up the time of the addresses on other fabrics. */
uint64_t tern_peer_attempt_until(const struct tern_peer *peer)
{
	uint64_t now_ns = tern_peer_now_ns(peer);
	uint64_t left_ns =
		peer->dial.give_up_ns > now_ns ? peer->dial.give_up_ns - now_ns : 0;
	bool starts = peer->state == TERN_PEER_STATE_START;
	bool last =
		choices(peer) == 1 || (starts && peer->dial.tried + 1 == choices(peer));

	/* No other address is left, but the attempt is limited: the kernel repeats a SYN
	 * at growing intervals, so a new attempt notices sooner that the path is back. */
	if (last && !starts)
		return now_ns + TERN_MIN(left_ns, ATTEMPT_NS);
	/* If other addresses are left, leave some time to them. Any address of a lost
	 * session may be the one that works again. */
	return last ? peer->dial.give_up_ns
		    : now_ns + TERN_MIN(left_ns / 2, CANDIDATE_NS);
}

/* Moves to the next address that has not refused. False: every address was tried, so a
 * pause must come first. The last address of the list is never marked as refusing, so the
 * loop ends. */
static bool next_candidate(struct tern_peer *peer)
{
	bool all = false;

	do {
		unsigned at = peer->dial.candidate - peer->dial.home;

		peer->dial.candidate = peer->dial.home + (at + 1) % choices(peer);
		peer->dial.tried = (peer->dial.tried + 1) % choices(peer);
		all |= peer->dial.tried == 0;
	} while (peer->dial.refused & 1u << peer->dial.candidate);
	return !all;
}

/* Handles a refusal of the first connection at this address. The process that refused
 * need not be the peer: another program may use the name in shared memory that belongs to
 * a tcp port, or the peer's shared memory is of another version or user. So this address
 * is not tried again. True: it was the last address, so the refusal is final. */
static bool refused_at_last(struct tern_peer *peer, int status)
{
	const struct tern_candidate *at = &peer->dial.candidates.at[peer->dial.candidate];

	if (peer->dial.candidate + 1 == peer->dial.candidates.count)
		return true;
	peer->dial.refused |= 1u << peer->dial.candidate;
	peer->token = 0; /* forget a session that was begun at this address */
	tern_log(peer->rdv->ctx->env, TERN_LOG_WARN,
		"%s: %s://%s refuses (%s): the next address is tried", peer->name,
		at->fabric->ops->name, at->address, tern_status_text(status));
	return false;
}

/* ---- attempts ---- */

static int start_link(struct tern_peer *peer)
{
	const struct tern_candidate *to = &peer->dial.candidates.at[peer->dial.candidate];
	struct tern_port *port;
	struct tern_conn *conn = NULL;
	struct tern_link *link = NULL;
	int r = tern_context_port(peer->rdv->ctx, to->fabric, &port);

	if (r == 0)
		r = port->ops->connect(port, to->address, &conn);
	if (r == 0) {
		link = tern_link_new(peer->rdv, conn, TERN_LINK_DIALLING);
		if (!link) {
			conn->user = NULL;
			port->ops->conn_close(conn, false);
			r = -ENOMEM;
		}
	}
	if (r < 0)
		return r;
	tern_peer_add_link(peer, link);
	tern_timer_set(peer->rdv->ctx, &link->timer, tern_peer_attempt_until(peer));
	return 0;
}

void tern_dial(struct tern_peer *peer)
{
	int r = start_link(peer);

	if (r < 0)
		tern_dial_failed(peer, r);
}

bool tern_dial_is_final(int status)
{
	return status == -EPROTONOSUPPORT || status == -EILSEQ || status == -EACCES ||
	       status == -EPROTO || status == -EINVAL || status == -ENODATA;
}

/* True: the session ends, because this attempt to connect failed with the status
 * `attempt`. `status`: for a lost session, why it was lost. */
static bool ends_dialling(struct tern_peer *peer, int attempt, int status)
{
	if (peer->state == TERN_PEER_STATE_START)
		return tern_dial_is_final(attempt) && refused_at_last(peer, attempt);
	/* -ESTALE: the other end does not have this session any more. */
	return tern_dial_is_final(status) || status == -EPIPE || attempt == -ESTALE;
}

/* Sets the timer to dial again after a random pause, whose upper limit doubles each time,
 * up to BACKOFF_MAX_NS. The pause is at most a quarter of reconnect_ns, because the other
 * end may give up after reconnect_ns. */
static void back_off(struct tern_peer *peer)
{
	uint64_t most_ns = TERN_MAX(peer->rdv->ctx->opts.reconnect_ns / 4, 1u);
	uint64_t half_ns = TERN_MIN(peer->dial.backoff_ns, most_ns) / 2;

	tern_peer_set_timer(peer, &peer->dial.retry,
		half_ns + tern_random(peer->rdv->ctx->env) % (half_ns + 1));
	peer->dial.backoff_ns = TERN_MIN(peer->dial.backoff_ns * 2, BACKOFF_MAX_NS);
}

void tern_dial_failed(struct tern_peer *peer, int status)
{
	int *failure = &peer->dial.failures[peer->dial.candidate];
	int attempt = status;

	/* Report why the session was lost, which is more useful than the failure of this
	 * attempt. */
	if (peer->state == TERN_PEER_STATE_LOST)
		status = status == -EPIPE ? status : peer->cause;
	/* The peer's host answers again, and says that no program listens there: the peer
	 * has probably ended, so give up after reconnect_ns. */
	if (peer->state == TERN_PEER_STATE_LOST && attempt == -ECONNREFUSED &&
		peer->dial.candidates.at[peer->dial.candidate].fabric ==
			peer->port->fabric)
		peer->dial.give_up_ns = TERN_MIN(peer->dial.give_up_ns,
			tern_ns_add(tern_peer_now_ns(peer),
				peer->rdv->ctx->opts.reconnect_ns));
	/* If this attempt has timed out, report the failure of an earlier attempt at this
	 * address, which is more specific. */
	if (peer->state == TERN_PEER_STATE_START && status == -ETIMEDOUT && *failure)
		status = *failure;
	*failure = status;
	peer->cause = status;
	/* -ESTALE: the other end does not have the session that this end has asked for:
	 * it was begun at another address, or the other end gave it up. Ask for a new
	 * session. */
	if (peer->state == TERN_PEER_STATE_START && attempt == -ESTALE)
		peer->token = 0;
	if (ends_dialling(peer, attempt, status)) {
		tern_peer_give_up(peer, status);
		return;
	}
	if (next_candidate(peer)) {
		tern_peer_set_timer(peer, &peer->dial.retry, 0);
		return;
	}
	if (tern_peer_now_ns(peer) >= peer->dial.give_up_ns) {
		tern_peer_give_up(peer, status);
		return;
	}
	back_off(peer);
}

/* Opens the fabrics' ports before connect_ns begins to count, since a fabric may have to
 * register much memory when it is first used. Failures are reported by the attempts to
 * connect. */
static void open_ports(struct tern_peer *peer)
{
	struct tern_port *port;

	for (unsigned i = 0; i < peer->dial.candidates.count; i++)
		tern_context_port(
			peer->rdv->ctx, peer->dial.candidates.at[i].fabric, &port);
}

int tern_connect_sized(struct tern_context *ctx, const char *address,
	const struct tern_peer_opts *opts, size_t opts_bytes, struct tern_peer **out)
{
	struct tern_candidates candidates;
	struct tern_peer_opts own;
	struct tern_peer *peer;
	int r = tern_read_sized(&own, sizeof(own), opts, opts_bytes);

	if (r == 0)
		r = tern_secret_check(own.secret);
	if (r == 0)
		r = tern_address_dial(ctx->domain, address, &candidates);
	if (r < 0)
		return r;
	peer = tern_peer_new(tern_rdv_of(ctx), &own);
	if (!peer)
		return -ENOMEM;
	r = tern_records_reserve(peer);
	if (r < 0) {
		tern_peer_destroy(peer);
		return r;
	}
	peer->dialler = true;
	tern_credit_widen(&peer->stream.credit_rx);
	peer->dial.candidates = candidates;
	peer->dial.backoff_ns = BACKOFF_FIRST_NS;
	snprintf(peer->name, sizeof(peer->name), "%s", address);
	open_ports(peer);
	peer->dial.give_up_ns = tern_ns_add(tern_peer_now_ns(peer), ctx->opts.connect_ns);
	r = start_link(peer);
	if (r == -EINVAL) { /* the address is malformed: a retry does not help */
		tern_peer_destroy(peer);
		return r;
	}
	if (r < 0)
		tern_peer_set_timer(peer, &peer->dial.retry, 0);
	*out = peer;
	return 0;
}

/* ---- a lost session ---- */

/*
 * Returns how long a lost session may take to return. If the path carries nothing, a
 * cable or a switch may be broken, so both ends wait for unreachable_ns. If the
 * connection was cut, the end that dials waits as long: if the peer has ended, its host
 * will refuse the next attempt (see tern_dial_failed). The acceptor gets no such refusal,
 * and a dialler that cut its link has most likely ended, so the acceptor waits only for
 * reconnect_ns. But if the dialler sent nothing for suspect_ns before, it may have lost
 * its path and be dialling again, so the acceptor waits longer.
 */
static uint64_t return_ns(const struct tern_peer *peer, int status)
{
	const struct tern_context_opts *opts = &peer->rdv->ctx->opts;
	bool path = status == -ETIMEDOUT || status == -EHOSTUNREACH ||
		    status == -ENETUNREACH || status == -ENETDOWN;

	uint64_t least_ns = 0;

	if (path || peer->dialler)
		least_ns = opts->unreachable_ns;
	else if (peer->alive.silent_ns >= opts->suspect_ns)
		least_ns = TERN_MIN(2 * ATTEMPT_NS, opts->unreachable_ns);
	return TERN_MAX(opts->reconnect_ns, least_ns);
}

/* True: the lost link was useful (it carried messages in either direction, or stayed up
 * for LASTING_NS), so the next one is dialled without a pause. Otherwise a pause is
 * needed: on a path that passes only handshakes, links would be made and lost without
 * end. */
static bool was_of_use(const struct tern_peer *peer)
{
	return peer->stream.acked != peer->dial.lost_acked ||
	       peer->stream.rx_seq != peer->dial.lost_rx_seq ||
	       peer->windows.moved_count != peer->dial.lost_moved ||
	       tern_peer_now_ns(peer) - peer->dial.up_ns >= LASTING_NS;
}

/* True if the lost link has carried some of what waited, or nothing waited. */
static bool has_progressed(const struct tern_peer *peer)
{
	bool waits = tern_stream_busy(peer) || !tern_list_empty(&peer->windows.all);

	return !waits || peer->stream.acked != peer->dial.lost_acked ||
	       peer->windows.moved_count != peer->dial.lost_moved;
}

/* Called when a link was lost. Counts consecutive links that carried none of the waiting
 * messages, puts and gets (fruitless links). True: there were too many. */
static bool is_fruitless(struct tern_peer *peer)
{
	bool progress = has_progressed(peer);
	uint64_t now_ns = tern_peer_now_ns(peer);

	peer->dial.at_once = was_of_use(peer);
	peer->dial.lost_acked = peer->stream.acked;
	peer->dial.lost_rx_seq = peer->stream.rx_seq;
	peer->dial.lost_moved = peer->windows.moved_count;
	if (progress) {
		peer->dial.fruitless = peer->dial.fruitless_parts = 0;
		return false;
	}
	if (peer->dial.fruitless++ == 0)
		peer->dial.fruitless_ns = now_ns;
	peer->dial.fruitless_parts +=
		now_ns - peer->dial.up_ns >= LASTING_NS ? FRUITLESS_EARLY : 1;
	return peer->dial.fruitless_parts >= FRUITLESS_MAX * FRUITLESS_EARLY &&
	       now_ns - peer->dial.fruitless_ns >= peer->rdv->ctx->opts.unreachable_ns;
}

void tern_dial_lost(struct tern_peer *peer, int status)
{
	if (is_fruitless(peer)) {
		tern_log(peer->rdv->ctx->env, TERN_LOG_WARN,
			"%s: %u connections in a row carried nothing: the session ends",
			peer->name, peer->dial.fruitless);
		tern_peer_down(peer, status);
		return;
	}
	if (peer->dialler && peer->dial.fruitless &&
		peer->dial.fruitless % FRUITLESS_MOVE == 0)
		next_candidate(peer);
	peer->dial.tried = 0;
	tern_peer_enter(peer, TERN_PEER_STATE_LOST);
	peer->cause = status;
	peer->dial.give_up_ns =
		tern_ns_add(tern_peer_now_ns(peer), return_ns(peer, status));
	tern_timer_clear(peer->rdv->ctx, &peer->alive.tick);
	tern_rails_close(peer);
	if (!peer->alive.suspect) {
		peer->alive.suspect = true;
		tern_peer_report(peer, TERN_PEER_SUSPECT, status);
	}
}

static void answer_waiting(struct tern_peer *peer)
{
	tern_list_for_each (n, &peer->links) {
		struct tern_link *link = tern_list_entry(n, struct tern_link, of_peer);

		if (link->state == TERN_LINK_WAIT_OLD) {
			tern_link_answer(link);
			return;
		}
	}
}

void tern_dial_again(struct tern_peer *peer)
{
	tern_stream_lost(peer);
	if (!peer->dialler)
		tern_peer_set_timer(
			peer, &peer->dial.retry, return_ns(peer, peer->cause));
	else if (peer->dial.at_once)
		tern_peer_set_timer(peer, &peer->dial.retry, 0);
	else
		back_off(peer);
	if (peer->dial.at_once)
		peer->dial.backoff_ns = BACKOFF_FIRST_NS;
	answer_waiting(peer);
}
