/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sending half of a rendezvous.
 *
 *     tern_send --- a POST is held ---> claim: WRITING -> FINISHING -> UNACKED -> end
 *         |         (small data: an EAGER addressed to the POST: FINISHING -> end)
 *         +-- small: EAGER -> end
 *         +-- RTS: ANNOUNCED --ATS--> end                  (the peer read it)
 *                       +------CTS--> WRITING -> ...       (the peer cannot read)
 *
 * The state WRITING is in write.c. A send that nothing keeps from sending its first
 * message sends it in tern_send_begin(). The other sends wait in the matching table.
 *
 * EAGER (the tensor in a message) and RTS (a tensor is ready) need a credit. A send
 * without a credit waits in the list `starved`, until a credit arrives or the peer asks
 * for this send (want.c).
 *
 * Which send does a POST (an announced receive buffer) belong to? The receiver matches
 * our EAGERs and RTSs, in the order of arrival, with its oldest receive of the triple
 * (channel, key, step). So if a POST crossed an EAGER or RTS of the same triple on the
 * wire, its receive takes that message, and the POST must be dropped. The POST's header
 * says which of our messages the receiver had handled when it sent the POST (`ack`);
 * tern_send_crossed() looks among the EAGERs and RTSs sent after that. While a send writes
 * into the buffer of a POST (CLAIM in the table), no other send of its triple may be
 * announced: the announcement would arrive first and take the receive of that POST.
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>

#include "transport/memory/mem.h"

static const struct tern_triple *triple_of(const struct tern_xfer *x)
{
	return &x->node.triple;
}

static struct tern_xfer *find_send(
	struct tern_peer *peer, const struct tern_triple *triple)
{
	struct tern_match_node *n =
		tern_match_find(&peer->match, triple, TERN_MATCH_SEND);

	return n ? tern_container_of(n, struct tern_xfer, node) : NULL;
}

/* Returns the record of the oldest POST that waits for a send of this triple, and removes
 * it from the matching table. NULL: there is none. */
static struct tern_record *take_post(
	struct tern_peer *peer, const struct tern_triple *triple)
{
	struct tern_match_node *n =
		tern_match_take(&peer->match, triple, TERN_MATCH_POST);

	return n ? tern_container_of(n, struct tern_record, node) : NULL;
}

/* True if the tensor is sent inside one EAGER message. This depends on limits of the
 * session only, so a reconnect cannot change it. */
static bool is_small(const struct tern_xfer *x)
{
	if (!x->buf.bytes)
		return true;
	if (x->stage.stager) /* the CPU cannot read the bytes of GPU memory */
		return false;
	return x->buf.bytes <= (tern_mem_is_slab(x->buf.mem) ? x->peer->eager_mapped_bytes
							     : x->peer->eager_bytes);
}

/* ---- pairing ---- */

/* Ends the peer's access to the region that the RTS of x announced, or was about to
 * announce. The peer can only read there, so no write can be in progress, and the call
 * has its effect immediately. */
static void unexpose(struct tern_xfer *x)
{
	if (!x->exposed)
		return;
	x->exposed = false;
	x->peer->port->ops->withdraw(x->peer->port, &x->op, &x->region);
}

/* Lets the send x write into a buffer that the peer announced by a POST. `record` has the
 * buffer's region and size. */
static void claim(struct tern_xfer *x, struct tern_record *record)
{
	struct tern_peer *peer = x->peer;

	tern_match_remove(&peer->match, &x->node);
	tern_match_add(&peer->match, &x->node, TERN_MATCH_CLAIM);
	tern_list_remove(&x->queue);
	x->starving = false;
	x->announced = true;
	unexpose(x);
	tern_xfer_write_into(x, record->src);
	x->region = record->region;
	x->stale = record->stale;
	if (tern_xfer_clashes(x, &record->name))
		x->result = -EEXIST;
	else if (x->buf.bytes > record->bytes)
		x->result = -EMSGSIZE;
	tern_record_free(record);
	if (x->result < 0 || is_small(x)) {
		tern_xfer_enter(x, TERN_XFER_FINISHING);
		tern_xfer_pend(x);
	} else {
		tern_xfer_enter(x, TERN_XFER_WRITING);
		tern_write_queue(x);
		tern_peer_pump(peer);
	}
}

/* Called when a send of this triple (channel, key, step) has sent its message or has
 * ended: lets the oldest send that waits under the triple proceed. */
static void promote(struct tern_peer *peer, const struct tern_triple *triple)
{
	struct tern_xfer *next = find_send(peer, triple);
	struct tern_record *post;

	if (!next)
		return;
	post = take_post(peer, triple);
	if (post)
		claim(next, post);
	else if (!tern_match_find(&peer->match, triple, TERN_MATCH_CLAIM))
		tern_xfer_pend(next);
}

/* Removes x from the matching table, after its message was sent, and lets the next send
 * of its triple proceed. */
static void leave_table(struct tern_xfer *x)
{
	tern_match_remove(&x->peer->match, &x->node);
	promote(x->peer, triple_of(x));
}

/* Ends x, and lets the next send of its triple proceed. x stays valid after
 * tern_xfer_end(), because done() is deferred. */
static void end_and_promote(struct tern_xfer *x, int status)
{
	tern_xfer_end(x, status);
	promote(x->peer, triple_of(x));
}

/* ---- what the peer may not have seen ---- */

static struct tern_sent *sent_at(struct tern_peer *peer, uint32_t i)
{
	return &peer->stream.sent[(peer->stream.sent_first + i) % TERN_SENT_MAX];
}

static int remember_sent(struct tern_peer *peer, const struct tern_triple *triple)
{
	struct tern_sent *s;

	if (!(tern_peer_caps(peer) & TERN_CAP_PUT))
		return 0; /* without puts, the peer never announces a buffer (POST) */
	if (!peer->stream.sent)
		peer->stream.sent = malloc(TERN_SENT_MAX * sizeof(*peer->stream.sent));
	if (!peer->stream.sent || peer->stream.sent_count == TERN_SENT_MAX)
		return -EAGAIN;
	/* The ring buffer is empty most of the time, and then starts at its beginning, so
	 * that few of its pages are touched. */
	if (peer->stream.sent_count == 0)
		peer->stream.sent_first = 0;
	s = sent_at(peer, peer->stream.sent_count++);
	s->node.triple = *triple;
	s->node.waits = false;            /* tern_match_remove() reads only this */
	s->seq = peer->stream.tx_seq + 1; /* number of the message that is sent next */
	peer->stream.sent_apart++;
	return 0;
}

/* Undoes the last remember_sent(). No message was handled since. */
static void unremember_sent(struct tern_peer *peer)
{
	if (!(tern_peer_caps(peer) & TERN_CAP_PUT))
		return;
	peer->stream.sent_count--;
	peer->stream.sent_apart--;
}

void tern_send_forget_sent(struct tern_peer *peer, uint32_t ack)
{
	while (peer->stream.sent_count) {
		struct tern_sent *s = sent_at(peer, 0);

		if (tern_seq_before(ack, s->seq))
			return;
		tern_match_remove(&peer->match, &s->node);
		peer->stream.sent_first = (peer->stream.sent_first + 1) % TERN_SENT_MAX;
		peer->stream.sent_count--;
		peer->stream.sent_apart =
			TERN_MIN(peer->stream.sent_apart, peer->stream.sent_count);
	}
}

/* Most entries of stream.sent are forgotten before the peer sends any POST or WANT, so
 * they enter the matching table only here. */
bool tern_send_crossed(struct tern_peer *peer, const struct tern_triple *triple)
{
	for (; peer->stream.sent_apart; peer->stream.sent_apart--) {
		struct tern_match_node *n =
			&sent_at(peer, peer->stream.sent_count - peer->stream.sent_apart)
				 ->node;

		tern_match_node_init(n);
		tern_match_add(&peer->match, n, TERN_MATCH_SENT);
	}
	return tern_match_take(&peer->match, triple, TERN_MATCH_SENT) != NULL;
}

/* ---- saying things ---- */

static void describe(const struct tern_xfer *x, uint8_t type, struct tern_header *h)
{
	const struct tern_triple *triple = triple_of(x);

	*h = (struct tern_header){
		.type = type,
		.channel = triple->channel,
		.key = triple->key,
		.step = triple->step,
		.bytes = x->buf.bytes,
		.src = x->id,
		.dst = x->wanted ? x->wanted : x->remote_id,
		.shape = tern_req_of((struct tern_xfer *)(uintptr_t)x)->shape,
	};
	if (x->name.bytes && !x->remote_id) {
		h->flags |= TERN_FLAG_NAME;
		h->name = &x->name;
	}
}

static int say_eager(struct tern_xfer *x)
{
	struct tern_header h;
	int r;

	describe(x, TERN_MSG_EAGER, &h);
	r = tern_stream_send(x->peer, &h, tern_buf_ptr(&x->buf), NULL);
	if (r == 0) {
		x->peer->stats.eager_count++;
		x->peer->stats.bytes_sent += x->buf.bytes;
	}
	return r;
}

/* True if the peer can read the tensor of x, by a get, on this link. */
bool tern_send_readable(struct tern_xfer *x)
{
	if (!(tern_peer_caps(x->peer) & TERN_CAP_GET))
		return false;
	if (x->stage.stager)
		return !tern_stage_needed(x) || x->stage.lent || x->stage.bounce.mem;
	return !tern_conn_copies(tern_peer_conn(x->peer), x->buf.mem);
}

static int say_rts(struct tern_xfer *x)
{
	struct tern_header h;
	int r = tern_xfer_id(x);

	if (r == 0 && tern_send_readable(x))
		r = tern_xfer_expose(x, TERN_ACCESS_READ);
	if (r < 0)
		return r;
	describe(x, TERN_MSG_RTS, &h);
	if (x->exposed) {
		h.flags |= TERN_FLAG_REGION;
		h.region = x->region;
	}
	r = tern_stream_send(x->peer, &h, NULL, NULL);
	if (r < 0)
		return r;
	x->told = x->exposed;
	if (x->exposed)
		tern_direct_started(x);
	return 0;
}

/* Calls `say`, which sends an EAGER or RTS. The message takes a credit unless the peer
 * asked for the send by a WANT. -ENOBUFS: there is no credit; -EAGAIN: no room. */
static int say_first(struct tern_xfer *x, int (*say)(struct tern_xfer *x))
{
	struct tern_peer *peer = x->peer;
	int r;

	if (x->wanted) {
		r = say(x);
		if (r == 0)
			x->wanted = 0;
		x->announced = r == 0;
		return r < 0 ? -EAGAIN : 0;
	}
	if (!tern_peer_credit(peer, 0))
		return -ENOBUFS;
	r = remember_sent(peer, triple_of(x));
	if (r == 0) {
		r = say(x);
		if (r < 0)
			unremember_sent(peer);
	}
	x->announced = r == 0;
	if (r == 0)
		return 0;
	peer->stream.credit_tx.used--; /* give the credit back */
	return -EAGAIN;
}

static int announce_small(struct tern_xfer *x)
{
	int r = say_first(x, say_eager);

	if (r == 0)
		tern_xfer_end(x, 0);
	return r;
}

static int announce_large(struct tern_xfer *x)
{
	int r = say_first(x, say_rts);

	if (r == 0)
		tern_xfer_enter(x, TERN_XFER_ANNOUNCED);
	return r;
}

/* Sends the first message of a send: an EAGER, which ends the send, or an RTS. */
static int announce(struct tern_xfer *x)
{
	return is_small(x) ? announce_small(x) : announce_large(x);
}

/* Announces a send that has waited in the matching table. */
static int announce_waiting(struct tern_xfer *x)
{
	int r;

	/* This fabric has no put, so the peer must read the tensor: lend our GPU memory
	 * to the peer's GPU, or copy the tensor to a bounce buffer. */
	if (!is_small(x) && tern_stage_needed(x) &&
		!(tern_peer_caps(x->peer) & TERN_CAP_PUT)) {
		r = tern_lend_offer(x);
		if (r == -ENOTSUP)
			r = tern_stage_lay_out(x);
		if (r < 0)
			end_and_promote(x, r);
		if (r)
			return 0;
	}
	r = announce(x);
	if (r == 0)
		leave_table(x);
	return r;
}

void tern_send_begin(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;
	const struct tern_triple *triple = triple_of(x);
	bool first = !find_send(peer, triple), free;
	struct tern_record *post = first ? take_post(peer, triple) : NULL;

	if (post) {
		claim(x, post);
		return;
	}
	free = first && !tern_match_find(&peer->match, triple, TERN_MATCH_CLAIM);
	/* Fast path: a send that need not wait is announced now, and is never in the
	 * matching table. A tensor in GPU memory is excluded, since it may have to be
	 * copied first. */
	if (free && !x->stage.stager && peer->state == TERN_PEER_STATE_UP &&
		!tern_peer_has_unsaid(peer) && announce(x) == 0)
		return;
	tern_match_add(&peer->match, &x->node, TERN_MATCH_SEND);
	if (free && !(is_small(x) && tern_pump_join_starved(x)))
		tern_xfer_pend(x);
}

/* Ends a send that writes into the buffer of a POST or CTS: sends DONE after the puts;
 * or, if the data is small and so was not put, an EAGER that names the POST. */
static int finish(struct tern_xfer *x)
{
	bool small = x->result == 0 && is_small(x);
	struct tern_header h;
	int r;

	if (small) {
		r = say_eager(x);
		if (r == 0)
			end_and_promote(x, 0);
		return r;
	}
	describe(x, TERN_MSG_DONE, &h);
	h.status = (int16_t)x->result;
	r = tern_stream_send(x->peer, &h, NULL, x->result == 0 ? x : NULL);
	if (r < 0)
		return r;
	x->done_seq = x->peer->stream.tx_seq;
	if (x->result == 0) {
		x->peer->stats.put_count++;
		x->peer->stats.bytes_sent += x->buf.bytes;
	}
	tern_xfer_enter(x, TERN_XFER_UNACKED);
	tern_list_push(&x->peer->stream.wait_ack, &x->queue);
	leave_table(x);
	return 0;
}

int tern_send_advance(struct tern_xfer *x)
{
	switch ((enum tern_xfer_state)x->state) {
	case TERN_XFER_QUEUED:
		return announce_waiting(x);
	case TERN_XFER_FINISHING:
		return finish(x);
	case TERN_XFER_ANNOUNCED: /* the send waits for room to send CANCEL */
		return tern_cancel_say(x);
	case TERN_XFER_WRITING:
	case TERN_XFER_UNACKED:
	case TERN_XFER_POSTED:
	case TERN_XFER_ADVERTISED:
	case TERN_XFER_ALLOCATING:
	case TERN_XFER_PEEKING:
	case TERN_XFER_READING:
	case TERN_XFER_ANSWERING:
	case TERN_XFER_FILLING:
	case TERN_XFER_LANDING:
	case TERN_XFER_FLUSHING:
	case TERN_XFER_HELD:
	case TERN_XFER_ENDED:
	case TERN_XFER_STATE_COUNT:
		break;
	}
	tern_never("no message is due in this state of a send");
}

void tern_send_acked(struct tern_peer *peer)
{
	struct tern_xfer *x;

	while ((x = tern_list_first(&peer->stream.wait_ack, struct tern_xfer, queue)) &&
		!tern_seq_before(peer->stream.acked, x->done_seq)) {
		tern_list_remove(&x->queue);
		x->acked = true;
		if (x->puts_out == 0)
			tern_xfer_end(x, x->result);
	}
}

/* Called when the link was lost, and perhaps the data of puts with it: if x has issued
 * puts, it puts its data again on the next link. */
void tern_send_lost(struct tern_xfer *x)
{
	tern_assert(x->puts_out == 0);
	x->cancel_told = false;
	x->rails_used = x->rails_asked = x->rails_confirmed = 0;
	tern_stage_lost(x);
	if (x->state == TERN_XFER_WRITING)
		tern_write_queue(x);
	if (x->issued == 0)
		return;
	x->issued = 0;
	if (x->state == TERN_XFER_FINISHING && x->result == 0) {
		tern_list_remove(&x->queue);
		tern_xfer_enter(x, TERN_XFER_WRITING);
		tern_write_queue(x);
	}
}

/* ---- what the peer says ---- */

int tern_send_on_post(struct tern_peer *peer, const struct tern_header *h)
{
	const struct tern_triple triple = tern_header_triple(peer, h);
	struct tern_record *record;
	struct tern_xfer *x;

	if (!(h->flags & TERN_FLAG_REGION) || !h->src ||
		!(tern_peer_caps(peer) & TERN_CAP_PUT))
		return -EPROTO;
	tern_rails_expect(peer, h->bytes);
	record = tern_record_new(peer, h);
	if (tern_send_crossed(peer, &triple)) {
		/* An EAGER or RTS of ours crossed this POST (announcement of a buffer) on
		 * the wire, and takes its receive: drop the POST. */
		tern_record_free(record);
		return 0;
	}
	x = find_send(peer, &triple);
	if (x)
		claim(x, record);
	else
		tern_match_add(&peer->match, &record->node, TERN_MATCH_POST);
	return 0;
}

static struct tern_xfer *announced(struct tern_peer *peer, uint32_t id)
{
	struct tern_xfer *x = tern_xfer_by_id(peer, id);

	return x && x->is_send && x->state == TERN_XFER_ANNOUNCED ? x : NULL;
}

int tern_send_on_cts(struct tern_peer *peer, const struct tern_header *h)
{
	struct tern_xfer *x = announced(peer, h->dst);

	if (!x)
		return 0; /* the CTS answers a send that has ended: it has no effect */
	if (!(h->flags & TERN_FLAG_REGION) || !h->src || h->bytes < x->buf.bytes ||
		!(tern_peer_caps(peer) & TERN_CAP_PUT))
		return -EPROTO;
	unexpose(x);
	x->told = false;
	tern_list_remove(&x->queue);
	tern_xfer_write_into(x, h->src);
	x->region = h->region;
	tern_xfer_enter(x, TERN_XFER_WRITING);
	tern_write_queue(x);
	tern_peer_pump(peer);
	return 0;
}

int tern_send_on_ats(struct tern_peer *peer, const struct tern_header *h)
{
	struct tern_xfer *x = announced(peer, h->dst);

	if (!x)
		return 0;
	if (h->status == 0) {
		peer->stats.get_count++;
		peer->stats.bytes_sent += x->buf.bytes;
	}
	tern_xfer_end(x, h->status);
	return 0;
}

/* ---- cancel ---- */

void tern_send_cancel(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;

	switch ((enum tern_xfer_state)x->state) {
	case TERN_XFER_QUEUED:
		end_and_promote(x, -ECANCELED);
		/* If the peer asked for this send by a WANT, a MISS (no such send) is due
		 * now. */
		tern_peer_pump(peer);
		break;
	case TERN_XFER_ANNOUNCED:
		x->cancelled = true;
		tern_xfer_pend(x);
		break;
	case TERN_XFER_WRITING: /* the pump stops the puts and sends DONE */
		x->cancelled = true;
		if (x->stale || x->stage.stager)
			tern_write_queue(x);
		tern_peer_pump(peer);
		break;
	case TERN_XFER_FINISHING:
		x->result = -ECANCELED;
		break;
	case TERN_XFER_UNACKED: /* too late: the transfer ends with its own status */
	case TERN_XFER_FLUSHING:
	case TERN_XFER_ENDED:
		break;
	case TERN_XFER_POSTED:
	case TERN_XFER_ADVERTISED:
	case TERN_XFER_ALLOCATING:
	case TERN_XFER_PEEKING:
	case TERN_XFER_READING:
	case TERN_XFER_ANSWERING:
	case TERN_XFER_FILLING:
	case TERN_XFER_LANDING:
	case TERN_XFER_HELD:
	case TERN_XFER_STATE_COUNT:
		tern_never("not a send");
	}
}
