/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a peer (a session with another context): how it comes up, is lost, returns,
 * and ends. (dial.c connects to peers; alive.c watches them while they are up.) The timer
 * `retry` starts the next attempt to connect at the end that dials, and decides at both
 * ends when to give up.
 *
 * A session ends in two steps. First tern_peer_down() stops everything and closes the
 * links. When the last link carries nothing any more and the last copy from or to a GPU
 * has ended, nothing writes into the memory of requests any more. Then end_call() ends
 * the requests, except sends that the peer still reads in place.
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/escape.h"
#include "base/sized.h"
#include "rendezvous/window.h"

/* Interval at which an acceptor checks whether a lost session, whose time to return is
 * over, is nevertheless returning. */
#define RETURNING_NS (50 * TERN_NS_PER_MS)

static void end_call(struct tern_deferred *deferred);
static void retry(struct tern_timer *timer);

void tern_peer_end_soon(struct tern_peer *peer)
{
	tern_defer(peer->rdv->ctx, &peer->end_call);
}

void tern_peer_report(struct tern_peer *peer, enum tern_peer_event event, int status)
{
	static const char *const names[] = {[TERN_PEER_UP] = "up",
		[TERN_PEER_SUSPECT] = "suspect",
		[TERN_PEER_RECOVERED] = "recovered",
		[TERN_PEER_DOWN] = "down"};

	tern_log(peer->rdv->ctx->env, TERN_LOG_DEBUG, "%s: %s: %s", peer->name,
		names[event], status ? tern_status_text(status) : "ok");
	if (!peer->freed && peer->opts.event && (peer->dialler || peer->accepted))
		peer->opts.event(peer, event, status, peer->opts.arg);
}

void tern_peer_say_wrong(
	struct tern_peer *peer, const void *message, size_t bytes, const char *why)
{
	static const char fmt[] = "%s: protocol error: %s: %s";
	struct tern_context *ctx = peer->rdv->ctx;
	const char *type = bytes >= TERN_HEADER_BYTES
				   ? tern_message_name(tern_header_type(message))
				   : "message";

	if (peer->secret || ctx->opts.secret)
		tern_log(ctx->env, TERN_LOG_WARN, fmt, peer->name, type, why);
	else
		tern_log_stranger(ctx->env, fmt, peer->name, type, why);
}

/* ---- birth ---- */

static void init_lists(struct tern_peer *peer)
{
	struct tern_list *lists[] = {&peer->stream.wait_ack, &peer->xfers,
		&peer->pump.pending, &peer->pump.starved, &peer->pump.writing[0],
		&peer->pump.writing[1], &peer->pump.answers, &peer->records,
		&peer->offering, &peer->want.unasked, &peer->want.barred, &peer->channels,
		&peer->links, &peer->renewals, &peer->held, &peer->end_call.node,
		&peer->stream.tell_call.node};

	for (size_t i = 0; i < TERN_ARRAY_SIZE(lists); i++)
		tern_list_init(lists[i]);
}

static void set_opts(struct tern_peer *peer, const struct tern_peer_opts *opts)
{
	peer->opts = *opts;
	snprintf(peer->own_name, sizeof(peer->own_name), "%s",
		opts->name ? opts->name : "");
	peer->opts.name = peer->own_name;
	/* The string opts->secret belongs to the caller; the session uses a copy made at
	 * its start. */
	peer->opts.secret = NULL;
}

int tern_peer_set_opts_sized(
	struct tern_peer *peer, const struct tern_peer_opts *opts, size_t opts_bytes)
{
	struct tern_peer_opts own;
	int r = tern_read_sized(&own, sizeof(own), opts, opts_bytes);

	if (r == 0)
		set_opts(peer, &own);
	return r;
}

struct tern_peer *tern_peer_new(struct tern_rdv *rdv, const struct tern_peer_opts *opts)
{
	struct tern_peer *peer = calloc(1, sizeof(*peer));
	uint32_t first = rdv->ctx->first_seq;

	if (!peer)
		return NULL;
	peer->rdv = rdv;
	init_lists(peer);
	tern_map_init(&peer->theirs, rdv->match_secret.word[0]);
	tern_windows_init(&peer->windows, rdv->match_secret.word[0]);
	tern_map_node_init(&peer->by_token);
	peer->end_call.call = end_call;
	peer->dial.retry.fire = retry;
	peer->alive.tick.fire = tern_peer_tick;
	peer->stream.tx_seq = peer->stream.acked = first;
	if (tern_secret_copy(&peer->secret, opts->secret) < 0) {
		free(peer);
		return NULL;
	}
	peer->name_key =
		tern_name_key(peer->secret ? peer->secret : rdv->ctx->opts.secret);
	if (tern_match_init(&peer->match, &rdv->match_secret) < 0) {
		tern_secret_free(peer->secret);
		free(peer);
		return NULL;
	}
	tern_credit_open(&peer->stream.credit_rx, &rdv->credits, first);
	set_opts(peer, opts);
	tern_list_push(&rdv->peers, &peer->node);
	return peer;
}

/* For each state, a bit set of the states that may follow: the diagram in peer.h. */
#define TO(state) (1u << TERN_PEER_STATE_##state)
static const uint8_t edges[] = {
	[TERN_PEER_STATE_START] = TO(UP) | TO(DOWN),
	[TERN_PEER_STATE_UP] = TO(LOST) | TO(DOWN),
	[TERN_PEER_STATE_LOST] = TO(UP) | TO(DOWN),
	[TERN_PEER_STATE_DOWN] = 0,
};
#undef TO

void tern_peer_enter(struct tern_peer *peer, enum tern_peer_state next)
{
	tern_assert(edges[peer->state] >> next & 1);
	peer->state = next;
}

void tern_peer_set_token(struct tern_peer *peer, uint64_t token)
{
	peer->token = token;
	tern_map_add(&peer->rdv->tokens, &peer->by_token, token);
}

struct tern_peer *tern_peer_by_token(
	struct tern_rdv *rdv, uint64_t token, uint64_t incarnation)
{
	struct tern_map_node *n = tern_map_find(&rdv->tokens, token);
	struct tern_peer *peer =
		n ? tern_container_of(n, struct tern_peer, by_token) : NULL;

	return peer && peer->their_incarnation == incarnation &&
			       peer->state != TERN_PEER_STATE_DOWN
		       ? peer
		       : NULL;
}

void tern_peer_add_link(struct tern_peer *peer, struct tern_link *link)
{
	link->peer = peer;
	peer->link_count++;
	tern_list_push(&peer->links, &link->of_peer);
}

/* ---- links come and go ---- */

/* True: each end has sent its goodbye (FIN), and this end knows that the peer has
 * received ours. */
static bool has_parted(const struct tern_peer *peer)
{
	return peer->fin_sent && peer->fin_received &&
	       peer->stream.acked == peer->stream.tx_seq;
}

void tern_peer_give_up(struct tern_peer *peer, int status)
{
	bool well = peer->fin_sent &&
		    (peer->fin_received || peer->stream.acked == peer->stream.tx_seq);

	tern_peer_down(peer, well ? 0 : status);
}

/* Called when the peer has not answered our goodbye (FIN) in time. If its program has not
 * handled all our messages yet, but its host is alive and dead_ns is not set, waits
 * longer: otherwise messages would be lost. */
static void never_said_goodbye(struct tern_peer *peer)
{
	if (peer->stream.acked != peer->stream.tx_seq &&
		tern_link_awaits_program(peer->link))
		tern_peer_set_timer(
			peer, &peer->dial.retry, peer->rdv->ctx->opts.unreachable_ns);
	else
		tern_peer_give_up(peer, -ETIMEDOUT);
}

/*
 * True: a lost session may still return, although its time is over. If many sessions
 * return at the same time, or processor time is scarce, the new link of this session may
 * be delayed. It may be in its handshake; or links were accepted that have not named
 * their session yet; or this thread was busy with other work, and has not looked for new
 * links meanwhile.
 */
static bool may_be_returning(const struct tern_peer *peer)
{
	const struct tern_rdv *rdv = peer->rdv;
	uint64_t now_ns = tern_peer_now_ns(peer);

	if (peer->dialler || peer->state != TERN_PEER_STATE_LOST)
		return false;
	tern_list_for_each (n, &peer->links) {
		const struct tern_link *link =
			tern_list_entry(n, struct tern_link, of_peer);

		if (!link->rail && link->state != TERN_LINK_CLOSING)
			return true;
	}
	return now_ns < tern_ns_add(
				peer->dial.give_up_ns, rdv->ctx->opts.unreachable_ns) &&
	       (tern_admission_expects(&rdv->half_open, now_ns) ||
		       now_ns - peer->dial.retry.due_ns >= RETURNING_NS);
}

static void retry(struct tern_timer *timer)
{
	struct tern_peer *peer = tern_container_of(timer, struct tern_peer, dial.retry);

	if (peer->fin_sent && peer->state == TERN_PEER_STATE_UP)
		never_said_goodbye(peer);
	else if (may_be_returning(peer))
		tern_peer_set_timer(peer, &peer->dial.retry, RETURNING_NS);
	else if (peer->dialler &&
		 (tern_peer_now_ns(peer) < peer->dial.give_up_ns || !peer->cause))
		tern_dial(peer);
	else
		tern_peer_give_up(peer, peer->cause);
}

static void name_it(struct tern_peer *peer, const struct tern_link *link)
{
	char said[96];

	tern_escape(said, sizeof(said), link->theirs.name, strlen(link->theirs.name));
	if (said[0])
		snprintf(peer->name, sizeof(peer->name), "%s (%s)", said,
			link->conn->name);
	else
		snprintf(peer->name, sizeof(peer->name), "%s", link->conn->name);
}

/* Stores the peer's address: the part after the space in the name of a connection, such
 * as "tcp 10.0.0.7:41234". */
static void place_it(struct tern_peer *peer, const char *conn_name)
{
	const char *space = strchr(conn_name, ' ');

	snprintf(peer->address, sizeof(peer->address), "%s", space ? space + 1 : "");
}

/* A path that drops the packets of a fabric which is to be tried first costs speed, of which nobody is told
 * otherwise. Other failures are usual with addresses of several fabrics: not every host has each of them. */
static void say_what_did_not_answer(const struct tern_peer *peer)
{
	const struct tern_candidate *used =
		&peer->dial.candidates.at[peer->dial.candidate];

	for (unsigned i = 0; peer->dialler && i < peer->dial.candidate; i++) {
		const struct tern_candidate *c = &peer->dial.candidates.at[i];

		if (peer->dial.failures[i] == -ETIMEDOUT && c->fabric != used->fabric)
			tern_log(peer->rdv->ctx->env, TERN_LOG_WARN,
				"%s: session begins over %s: %s://%s has not answered",
				peer->name, peer->fabric_name, c->fabric->ops->name,
				c->address);
	}
}

static void first_up(struct tern_peer *peer, const struct tern_link *link)
{
	const struct tern_hello *theirs = &link->theirs;
	const struct tern_context_opts *opts = &peer->rdv->ctx->opts;
	uint32_t own = opts->eager_bytes ? opts->eager_bytes : link->conn->eager_bytes;

	peer->stream.rx_seq = peer->stream.told_ack = theirs->first_seq;
	peer->stream.credit_tx.used = theirs->first_seq;
	peer->stream.credit_tx.granted = theirs->first_seq;
	own = TERN_MIN(own, TERN_EAGER_MAX);
	peer->eager_bytes = TERN_MIN(own, theirs->eager_bytes);
	peer->eager_mapped_bytes = peer->eager_bytes;
	if (!opts->eager_bytes && link->conn->eager_mapped_bytes)
		peer->eager_mapped_bytes =
			TERN_MIN(peer->eager_bytes, link->conn->eager_mapped_bytes);
	peer->port = link->conn->port;
	peer->fabric_name = peer->port->ops->name;
	peer->dial.home = peer->dial.candidate;
	peer->dial.refused = 0;
	name_it(peer, link);
	say_what_did_not_answer(peer);
}

/* Continues a session on a new link, which may use another fabric than the former
 * link. */
static void next_up(struct tern_peer *peer, const struct tern_link *link)
{
	struct tern_port *port = link->conn->port;

	if (port != peer->port)
		tern_log(peer->rdv->ctx->env, TERN_LOG_WARN,
			"%s: session continues over %s: the %s connection was lost: %s",
			peer->name, port->ops->name, peer->fabric_name,
			tern_status_text(peer->cause));
	tern_renew_move(peer, port);
	tern_renew_begin(peer);
}

/* False: the counters in the peer's HELLO are impossible, given what this end has sent
 * and received. */
static bool plausible(struct tern_peer *peer, const struct tern_hello *theirs, bool first)
{
	if (!tern_credit_update(&peer->stream.credit_tx, theirs->credit))
		return false;
	return first || (!tern_seq_before(peer->stream.tx_seq, theirs->rx_seq) &&
				!tern_seq_before(theirs->rx_seq, peer->stream.acked));
}

/* Returns the size from which a tensor is bulk (is sent on rails only) on this
 * connection; 0: none is. */
static uint64_t bulk_bytes_on(const struct tern_peer *peer, const struct tern_conn *conn)
{
	uint64_t asked = peer->rdv->ctx->opts.bulk_bytes;

	return conn->bulk_bytes && asked ? asked : conn->bulk_bytes;
}

/* Returns 0 if the session may start or continue on this link, otherwise the status with
 * which the link is closed. */
static int admit(struct tern_peer *peer, const struct tern_link *link, bool first)
{
	/* A later link must not be on a fabric whose connections cannot be restored
	 * (shm): there, no message is kept to be sent again. */
	if (peer->state == TERN_PEER_STATE_DOWN || peer->link ||
		(first ? !peer->dialler && !tern_link_may_accept(link)
		       : (link->conn->caps & TERN_CAP_BOUND) != 0))
		return -ECONNRESET;
	if (first)
		first_up(peer, link);
	if (!plausible(peer, &link->theirs, first))
		return -EPROTO;
	if (!peer->has_records && tern_records_reserve(peer) < 0)
		return tern_link_lacks_memory(link);
	return 0;
}

void tern_peer_link_up(struct tern_peer *peer, struct tern_link *link)
{
	bool first = peer->state == TERN_PEER_STATE_START;
	int r = admit(peer, link, first);

	if (r < 0) {
		tern_link_close(link, r, false);
		return;
	}
	tern_link_enter(link, TERN_LINK_UP);
	link->conn->owner = peer;
	peer->link = link;
	place_it(peer, link->conn->name);
	peer->epoch = link->epoch;
	peer->rails.bulk_bytes = bulk_bytes_on(peer, link->conn);
	peer->rails.load[0] = (struct tern_load){0};
	tern_peer_enter(peer, TERN_PEER_STATE_UP);
	peer->alive.heard = true;
	peer->alive.pinged = false;
	peer->alive.silent_ns = 0;
	peer->dial.up_ns = tern_peer_now_ns(peer);
	peer->dial.tried = 0;
	peer->rails.failures = 0;
	peer->rails.after_ns = 0;
	if (!first)
		next_up(peer, link);
	tern_write_sort(peer);
	tern_timer_clear(peer->rdv->ctx, &peer->dial.retry);
	if (peer->fin_sent)
		tern_peer_set_timer(
			peer, &peer->dial.retry, peer->rdv->ctx->opts.unreachable_ns);
	tern_peer_wake(peer);
	tern_stream_up(peer, first ? tern_peer_first_seq(peer) : link->theirs.rx_seq);
	tern_windows_up(peer);
	if (peer->dialler)
		tern_rails_dial(peer);
	if (!first) {
		peer->stats.reconnect_count++;
		peer->alive.suspect = false;
		tern_peer_report(peer, TERN_PEER_RECOVERED, 0);
	} else if (peer->dialler) {
		tern_peer_report(peer, TERN_PEER_UP, 0);
	} else {
		peer->accepted = true;
		tern_credit_widen(&peer->stream.credit_rx);
		tern_stream_welcome(peer);
		peer->in_accept = true;
		link->listener->accept(peer, link->listener->accept_arg);
		peer->in_accept = false;
	}
	tern_peer_pump(peer);
}

static void current_closed(struct tern_peer *peer, int status, uint32_t caps)
{
	status = status ? status : -ECONNRESET;
	peer->link = NULL;
	if (peer->state == TERN_PEER_STATE_DOWN)
		return;
	if (status == -EFAULT)
		tern_log(peer->rdv->ctx->env, TERN_LOG_ERROR,
			"%s: the memory of a request is no longer mapped, or is not "
			"writable: the session ends",
			peer->name);
	if (status == -EPROTO || status == -EFAULT)
		tern_peer_down(peer, status);
	else if (has_parted(peer) || (caps & TERN_CAP_BOUND) || status == -EPIPE)
		tern_peer_give_up(peer, status);
	else
		tern_dial_lost(peer, status);
}

void tern_peer_link_over(struct tern_peer *peer, struct tern_link *link, int status)
{
	bool main = peer->link == link;
	bool rail = link->rail && peer->rails.link[link->rail] == link;

	peer->over_count++;
	if (link->verdict)
		status = link->verdict;
	if (main)
		current_closed(peer, status, link->conn->caps);
	if (rail) {
		peer->rails.link[link->rail] = NULL;
		/* Data on the rail may be lost, so the session must resume on new links.
		 * After both goodbyes (FIN) the rail carries no data. */
		if (!peer->fin_sent || !peer->fin_received)
			tern_peer_cut(peer, status == -EFAULT ? status : -ECONNRESET);
	} else if (link->rail) {
		tern_rail_failed(peer);
	}
	if ((main || rail) && peer->state == TERN_PEER_STATE_LOST &&
		tern_rails_closed(peer))
		tern_dial_again(peer);
	if (!main && !link->rail && peer->state != TERN_PEER_STATE_DOWN) {
		if (peer->dialler)
			tern_dial_failed(peer, status ? status : -ECONNRESET);
		else if (!peer->accepted && peer->link_count == peer->over_count)
			tern_peer_down(peer, status);
	}
	if (peer->state == TERN_PEER_STATE_DOWN)
		tern_peer_end_soon(peer);
}

void tern_peer_link_closed(struct tern_peer *peer)
{
	peer->over_count--;
	peer->link_count--;
	if (peer->state == TERN_PEER_STATE_DOWN)
		tern_peer_end_soon(peer);
}

void tern_peer_cut(struct tern_peer *peer, int status)
{
	if (peer->link)
		tern_link_close(peer->link, status, false);
}

/* ---- the end ---- */

void tern_peer_down(struct tern_peer *peer, int status)
{
	struct tern_context *ctx = peer->rdv->ctx;

	if (peer->state == TERN_PEER_STATE_DOWN)
		return;
	tern_peer_enter(peer, TERN_PEER_STATE_DOWN);
	peer->cause = status;
	tern_timer_clear(ctx, &peer->dial.retry);
	tern_timer_clear(ctx, &peer->alive.tick);
	/* flush: messages already queued still reach the peer. This is needed if accept()
	 * refuses the peer, since a dialler that got no message dials again. */
	tern_list_for_each_safe (n, &peer->links)
		tern_link_close(tern_list_entry(n, struct tern_link, of_peer), status,
			status == 0 || peer->in_accept);
	tern_peer_end_soon(peer);
}

/* True: the peer may still read the data of this send in place, until it releases the
 * data or its process ends. Links that carry nothing any more, but are not closed, permit
 * only this kind of access. */
static bool may_be_read(const struct tern_xfer *x)
{
	return x->peer->link_count > 0 && x->is_send && x->exposed;
}

/* Ends all requests of a peer that is DOWN, except sends that the peer may still read in
 * place. No link carries anything any more, so nothing can write to the requests'
 * memory. */
static void end_requests(struct tern_peer *peer)
{
	int status = peer->cause ? peer->cause : -ESHUTDOWN;
	struct tern_list *n;

	tern_list_for_each (i, &peer->held) {
		struct tern_xfer *x = tern_list_entry(i, struct tern_xfer, all);

		x->record = NULL;
		x->peer = NULL;
	}
	tern_list_splice(&peer->rdv->held, &peer->held);
	tern_list_for_each_safe (i, &peer->xfers) {
		struct tern_xfer *x = tern_list_entry(i, struct tern_xfer, all);

		x->record = NULL;
		tern_assert(x->puts_out == 0);
		if (!may_be_read(x))
			tern_xfer_end(x, status);
	}
	tern_windows_down(peer, status);
	while ((n = peer->records.next) != &peer->records)
		tern_record_free(tern_list_entry(n, struct tern_record, all));
	tern_want_end(peer);
	tern_send_forget_sent(peer, peer->stream.tx_seq);
	tern_retain_fini(&peer->stream.retain);
	peer->arrival_count = 0;
}

static void say_fin(struct tern_peer *peer)
{
	struct tern_header h = {.type = TERN_MSG_FIN};

	if (tern_stream_send(peer, &h, NULL, NULL) == 0) {
		peer->fin_sent = true;
		tern_peer_set_timer(
			peer, &peer->dial.retry, peer->rdv->ctx->opts.unreachable_ns);
	}
}

static bool sends_left(const struct tern_peer *peer)
{
	return peer->send_count > 0 || !tern_list_empty(&peer->pump.answers) ||
	       !tern_list_empty(&peer->windows.all) || tern_moves_unanswered(peer);
}

/* Ends the receives that no send will match, since the peer has sent its goodbye (FIN). A
 * receive that is posted later ends at once, unless its message has arrived already. Those
 * of window_move.c have a send, for which the goodbye does not wait. */
static void end_receives(struct tern_peer *peer)
{
	peer->receives_over = true;
	tern_list_for_each_safe (n, &peer->xfers) {
		struct tern_xfer *x = tern_list_entry(n, struct tern_xfer, all);

		if (!x->is_send && x->channel->number != TERN_CHANNEL_WINDOWS &&
			(x->state == TERN_XFER_POSTED ||
				x->state == TERN_XFER_ADVERTISED))
			tern_xfer_end(x, -ESHUTDOWN);
	}
}

static void goodbye(struct tern_peer *peer)
{
	if (peer->state != TERN_PEER_STATE_UP)
		return;
	if (peer->fin_received && !peer->receives_over)
		end_receives(peer);
	if (!peer->fin_sent && ((peer->fin_wanted && !sends_left(peer)) ||
				       (peer->fin_received && peer->arrival_count == 0)))
		say_fin(peer);
	/* The peer goes down only when receives have taken all EAGERs and RTSs that
	 * arrived, and no received data is being copied to a GPU. */
	if (has_parted(peer) && peer->arrival_count == 0 && peer->landing_count == 0 &&
		tern_stream_ack(peer) == 0)
		tern_peer_down(peer, 0);
}

static void end_call(struct tern_deferred *deferred)
{
	struct tern_peer *peer = tern_container_of(deferred, struct tern_peer, end_call);

	if (peer->state != TERN_PEER_STATE_DOWN) {
		goodbye(peer);
		return;
	}
	/* A link that still carries something, or a copy from or to a GPU, may still
	 * access the memory of the requests. */
	if (peer->link_count > peer->over_count || peer->copy_count > 0)
		return;
	end_requests(peer);
	tern_rdv_run_completed(peer->rdv);
	if (!peer->finished) {
		peer->finished = true;
		if (!peer->accepted && !peer->dialler)
			peer->freed = true; /* the program never learned of this peer */
		tern_peer_report(peer, TERN_PEER_DOWN, peer->cause);
	}
	if (peer->freed && peer->link_count == 0)
		tern_peer_destroy(peer);
}

void tern_peer_settled(struct tern_peer *peer)
{
	if (peer->state == TERN_PEER_STATE_DOWN)
		tern_peer_end_soon(peer);
}

void tern_peer_close(struct tern_peer *peer)
{
	peer->fin_wanted = true;
	if (peer->state == TERN_PEER_STATE_START && tern_list_empty(&peer->xfers) &&
		tern_list_empty(&peer->windows.all))
		tern_peer_down(peer, 0);
	else
		tern_peer_maybe_finish(peer);
}

void tern_peer_free(struct tern_peer *peer)
{
	if (!peer || peer->freed)
		return;
	peer->freed = true;
	tern_peer_down(peer, -ECANCELED);
	if (peer->finished)
		tern_peer_end_soon(peer);
}

void tern_peer_destroy(struct tern_peer *peer)
{
	struct tern_list *n;

	while ((n = tern_list_pop(&peer->channels)))
		free(tern_list_entry(n, struct tern_channel, node));
	tern_list_remove(&peer->end_call.node);
	tern_list_remove(&peer->stream.tell_call.node);
	tern_credit_close(&peer->stream.credit_rx);
	tern_records_release(peer);
	tern_map_remove(&peer->rdv->tokens, &peer->by_token);
	tern_map_fini(&peer->theirs);
	tern_windows_fini(peer);
	tern_match_fini(&peer->match);
	free(peer->stream.sent);
	free(peer->ids.slots);
	tern_list_remove(&peer->node);
	tern_secret_free(peer->secret);
	free(peer);
}

/* ---- queries ---- */

const char *tern_peer_name(const struct tern_peer *peer)
{
	return peer->name;
}

const char *tern_peer_address(const struct tern_peer *peer)
{
	return peer->address;
}

bool tern_peer_can_peek(const struct tern_peer *peer)
{
	return tern_peer_caps(peer) & TERN_CAP_PEEK;
}

const char *tern_peer_fabric(const struct tern_peer *peer)
{
	return peer->fabric_name ? peer->fabric_name : "";
}

void tern_peer_stats_sized(
	const struct tern_peer *peer, struct tern_peer_stats *out, size_t out_bytes)
{
	tern_write_sized(out, out_bytes, &peer->stats, sizeof(peer->stats));
}
