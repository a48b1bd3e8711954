/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving half of a rendezvous. (An arrival is a stored EAGER or RTS of the peer
 * that came before its receive was posted.)
 *
 *     tern_recv --- an arrival waits ---> pair
 *         +-- POSTED --(room is large, the peer can put)--> ADVERTISED --DONE--> end
 *               |  EAGER or RTS arrives                          |
 *               +--> pair <--------------------------------------+
 *
 *     pair: EAGER: copy -> end
 *           RTS:   [ALLOCATING: until the pool has room]
 *                  PEEKING -> HELD, the caller reads in place until it releases
 *                  READING: get -> ATS -> end
 *                  ANSWERING: CTS -> FILLING --DONE--> end
 *
 * A receive that has sent no POST asks for its send by a WANT if the peer's sends lack
 * credits (want.c).
 *
 * A buffer in GPU memory is not advertised, and receiving into it takes a further step.
 * If it is staged (stage.c), the data is copied to the GPU: that of an EAGER or of puts
 * in state LANDING, that of gets in state READING. If the fabric has written into the GPU
 * memory by a get (direct.c), the data is made visible to the GPU before the ATS.
 *
 * A receive is advertised (announced by a POST) only if all older receives of its triple
 * (channel, key, step) are: the peer gives the oldest POST to its oldest send, and that
 * must be matched with our oldest receive. The peer drops a POST that crossed an EAGER or
 * RTS (see send.c), so an advertised receive may be paired with a message that arrives.
 *
 * On a channel whose last tensors were all small, although their receives had room for
 * large ones, no receive is advertised: each POST would be a message of its own for nothing.
 * The first large tensor costs an RTS and its answer; then the receives that wait are
 * advertised.
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>
#include <string.h>

static void pair(struct tern_xfer *x, struct tern_record *record);

static bool wants_pool(const struct tern_xfer *x)
{
	return x->flags & (TERN_RECV_ALLOC | TERN_RECV_PEEK);
}

static struct tern_xfer *oldest_recv(
	struct tern_peer *peer, const struct tern_triple *triple)
{
	struct tern_match_node *n =
		tern_match_find(&peer->match, triple, TERN_MATCH_RECV);

	return n ? tern_container_of(n, struct tern_xfer, node) : NULL;
}

/* True if the receive has room for a tensor that the peer does not send in an EAGER. */
static bool is_roomy(const struct tern_xfer *x)
{
	return !wants_pool(x) && x->buf.bytes > x->peer->eager_bytes;
}

/* True if a POST (announcement of the receive's buffer) is useful: the peer can put, and
 * tensors as large as the buffer are to be expected. Without a link, only the size counts:
 * the receive is queued, and the next link decides before a POST is sent. */
static bool may_advertise(const struct tern_xfer *x)
{
	const struct tern_peer *peer = x->peer;

	if (!is_roomy(x) || x->channel->small_run == TERN_SMALL_RUN)
		return false;
	return peer->state != TERN_PEER_STATE_UP ||
	       ((tern_peer_caps(peer) & TERN_CAP_PUT) && !x->stage.stager);
}

void tern_recv_begin(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;
	struct tern_match_node *n =
		tern_match_take(&peer->match, &x->node.triple, TERN_MATCH_ARRIVAL);

	if (n) {
		peer->arrival_count--;
		pair(x, tern_container_of(n, struct tern_record, node));
		return;
	}
	if (peer->fin_received) {
		tern_xfer_end(x, -ESHUTDOWN);
		return;
	}
	tern_match_add(&peer->match, &x->node, TERN_MATCH_RECV);
	if (may_advertise(x))
		tern_xfer_pend(x);
	else
		tern_want_later(x);
}

/* Returns the receive that takes a message of this triple which has found `x`: x itself;
 * or, if that is a proxy (any.c), the request that it stands for, or if that has ended, the
 * next receive of the triple. NULL: there is none. */
static struct tern_xfer *taker(struct tern_xfer *x, const struct tern_triple *triple)
{
	while (x && x->proxy) {
		struct tern_peer *peer = x->peer;
		struct tern_xfer *own = tern_any_take(x);

		x = own ? own : oldest_recv(peer, triple);
	}
	return x;
}

/* ---- advertising ---- */

/* Checks only the receive just before x: it was advertised only if all older ones
 * were. */
static bool older_ones_are_advertised(const struct tern_xfer *x)
{
	const struct tern_match_node *n = tern_match_before(&x->node);

	return !n || tern_container_of(n, struct tern_xfer, node)->state ==
			     TERN_XFER_ADVERTISED;
}

/* Lets the next run of the pump advertise the receive of this node, if it was not
 * advertised when it was posted. NULL: nothing. A receive that has asked for its send gets
 * it without a POST. */
static void reconsider(struct tern_match_node *n)
{
	struct tern_xfer *x = n ? tern_container_of(n, struct tern_xfer, node) : NULL;

	if (!x || x->proxy || x->state != TERN_XFER_POSTED || x->ask != TERN_ASK_NONE ||
		x->behind || !may_advertise(x))
		return;
	tern_list_remove(&x->queue);
	tern_list_push(&x->peer->pump.pending, &x->queue);
}

/* Called when a receive gets the bytes of an EAGER. */
static void note_small(struct tern_xfer *x)
{
	if (is_roomy(x) && x->channel->small_run < TERN_SMALL_RUN)
		x->channel->small_run++;
}

/* Called when a receive gets a tensor that is too large for an EAGER. `next`: of the next
 * receive of the triple. */
static void note_large(struct tern_xfer *x, struct tern_match_node *next)
{
	bool held_back = x->channel->small_run == TERN_SMALL_RUN;

	x->channel->small_run = 0;
	if (held_back)
		reconsider(next);
}

/*
 * Sends a POST, which announces the receive's buffer to the sender. A POST is optional,
 * since without it the sender announces its tensor. So if anything is missing (a credit,
 * an entry for the region) no POST is sent. The last credits are left to messages that
 * need them.
 */
static int say_post(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;
	struct tern_header h = {
		.type = TERN_MSG_POST,
		.flags = TERN_FLAG_REGION,
		.channel = x->channel->number,
		.key = x->node.triple.key,
		.step = x->node.triple.step,
		.bytes = x->buf.bytes,
	};
	int r;

	if (!may_advertise(x) || !older_ones_are_advertised(x))
		return 0;
	tern_rails_expect(peer, x->buf.bytes);
	if (tern_xfer_id(x) < 0 || tern_xfer_expose(x, TERN_ACCESS_WRITE) < 0)
		return 0;
	if (!tern_peer_credit(peer, TERN_CREDIT_MIN))
		return 0;
	h.src = x->id;
	h.region = x->region;
	if (x->name.bytes) {
		h.flags |= TERN_FLAG_NAME;
		h.name = &x->name;
	}
	r = tern_stream_send(peer, &h, NULL, NULL);
	if (r < 0) {
		peer->stream.credit_tx.used--;
		return r;
	}
	x->told = true;
	tern_xfer_enter(x, TERN_XFER_ADVERTISED);
	reconsider(tern_match_after(&x->node));
	return 0;
}

static int advertise(struct tern_xfer *x)
{
	int r = say_post(x);

	if (r == 0 && x->state == TERN_XFER_POSTED)
		tern_want_later(x);
	return r;
}

/* ---- pairing ---- */

/* Sends ATS, the answer to the RTS that x was matched with, with this status, and ends
 * x. */
static void answer_and_end(struct tern_xfer *x, int status)
{
	struct tern_record *record = tern_xfer_part(x);

	tern_record_answer(record, TERN_MSG_ATS, status);
	tern_xfer_end(x, status);
}

static void get_done(struct tern_op *op, int status)
{
	struct tern_xfer *x = tern_container_of(op, struct tern_xfer, op);
	int r = status == 0 ? tern_direct_settle(x) : 0;

	if (r < 0) {
		answer_and_end(x, r);
	} else if (status == 0) {
		x->peer->stats.get_count++;
		x->peer->stats.bytes_received += tern_req_of(x)->bytes;
		answer_and_end(x, 0);
	} else if (status == -EACCES) {
		answer_and_end(x, status);
	}
	/* Otherwise the link was lost, and tern_recv_lost() starts the get again. */
}

void tern_recv_landed(struct tern_xfer *x, int status)
{
	struct tern_peer_stats *stats = &x->peer->stats;
	bool reading = x->state == TERN_XFER_READING;

	/* Data that arrived by puts was counted when its DONE arrived. */
	if (status == 0 && !x->stage.bounce.mem) {
		*(reading ? &stats->get_count : &stats->eager_count) += 1;
		stats->bytes_received += tern_req_of(x)->bytes;
	}
	if (reading)
		answer_and_end(x, status);
	else
		tern_xfer_end(x, status);
}

static int start_get(struct tern_xfer *x)
{
	struct tern_conn *conn = tern_peer_conn(x->peer);
	uint64_t bytes = tern_req_of(x)->bytes;
	int r;

	if (x->record->stale)
		return 0; /* renew.c continues x when it has the new region */
	if (!x->record->has_region || tern_conn_copies(conn, x->buf.mem)) {
		tern_xfer_enter(x, TERN_XFER_ANSWERING);
		tern_xfer_pend(x);
		return 0;
	}
	r = tern_lend_get(x);
	if (r != -ENOTSUP)
		return r;
	if (tern_stage_needed(x))
		return tern_stage_get(x);
	if (x->stage.status) { /* the copy to the GPU failed on an earlier link */
		answer_and_end(x, x->stage.status);
		return 0;
	}
	x->op.done = get_done;
	r = conn->port->ops->get(
		conn, &x->op, x->buf.mem, x->buf.offset, bytes, &x->record->region, 0);
	if (r < 0)
		return -EAGAIN;
	tern_direct_started(x);
	return 0;
}

/* Size of the memory that the peer may write into. */
static uint64_t capacity(const struct tern_xfer *x)
{
	return x->stage.bounce.mem ? x->stage.bounce.bytes : x->buf.bytes;
}

static int say_cts(struct tern_xfer *x)
{
	struct tern_header h = {.type = TERN_MSG_CTS, .flags = TERN_FLAG_REGION};
	int r;

	if (x->stage.stager) {
		r = tern_stage_room(x);
		if (r < 0)
			answer_and_end(x, r);
		if (r)
			return 0;
	}
	r = tern_xfer_id(x);
	if (r == 0)
		r = tern_xfer_expose(x, TERN_ACCESS_WRITE);
	if (r < 0)
		return -EAGAIN;
	h.src = x->id;
	h.dst = x->record->src;
	h.bytes = capacity(x);
	h.region = x->region;
	r = tern_stream_send(x->peer, &h, NULL, NULL);
	if (r < 0)
		return r;
	x->told = true;
	tern_xfer_enter(x, TERN_XFER_FILLING);
	tern_record_free(tern_xfer_part(x));
	return 0;
}

/* Called when x has a buffer that is large enough: copies the EAGER, gets the tensor, or
 * lets the peer write it. */
static void fetch(struct tern_xfer *x)
{
	const struct tern_record *record = x->record;
	struct tern_req *req = tern_req_of(x);

	if (record->type == TERN_MSG_EAGER && req->bytes && x->stage.stager) {
		tern_xfer_enter(x, TERN_XFER_LANDING);
		tern_stage_eager(x);
	} else if (record->type == TERN_MSG_EAGER) {
		if (req->bytes)
			memcpy(tern_buf_ptr(&x->buf), tern_record_payload(record),
				req->bytes);
		tern_record_free(tern_xfer_part(x));
		x->peer->stats.eager_count++;
		x->peer->stats.bytes_received += req->bytes;
		tern_xfer_end(x, 0);
	} else if (req->bytes == 0) {
		answer_and_end(x, 0);
	} else if (record->has_region) {
		tern_xfer_enter(x, TERN_XFER_READING);
		tern_xfer_pend(x);
	} else {
		tern_xfer_enter(x, TERN_XFER_ANSWERING);
		tern_xfer_pend(x);
	}
}

static void refuse(struct tern_xfer *x, int status)
{
	if (x->record->type == TERN_MSG_RTS) {
		answer_and_end(x, status);
		return;
	}
	tern_record_free(tern_xfer_part(x));
	tern_xfer_end(x, status);
}

static void feed(struct tern_timer *timer)
{
	struct tern_rdv *rdv = tern_container_of(timer, struct tern_rdv, feed_timer);

	tern_rdv_feed(rdv);
}

void tern_rdv_feed(struct tern_rdv *rdv)
{
	struct tern_list waiting, *n;

	tern_list_init(&waiting);
	tern_list_splice(&waiting, &rdv->hungry);
	while ((n = tern_list_pop(&waiting)))
		tern_recv_advance(tern_list_entry(n, struct tern_xfer, queue));
}

/* Lets x wait until its pool has a free buffer. A tern_release() in this context
 * continues the receives that wait immediately. Nothing reports a buffer that another
 * context or tern_pool_put() gives back, so a timer retries as well. */
static void wait_for_pool(struct tern_xfer *x)
{
	struct tern_rdv *rdv = x->peer->rdv;

	if (x->state != TERN_XFER_ALLOCATING)
		tern_xfer_enter(x, TERN_XFER_ALLOCATING);
	tern_list_push(&rdv->hungry, &x->queue);
	rdv->feed_timer.fire = feed;
	if (!rdv->feed_timer.place)
		tern_timer_set(rdv->ctx, &rdv->feed_timer,
			tern_now_ns(rdv->ctx->env) + TERN_NS_PER_MS);
}

static void allocate(struct tern_xfer *x)
{
	uint64_t bytes = tern_req_of(x)->bytes;
	int r = -ENOBUFS;

	if (x->peer->opts.pool)
		r = tern_pool_get(x->peer->opts.pool, bytes, &x->buf);
	if (r == -EAGAIN) {
		wait_for_pool(x);
	} else if (r < 0) {
		refuse(x, -ENOBUFS);
	} else {
		x->pool = x->peer->opts.pool;
		r = tern_stage_open(x->rdv, &x->buf, &x->stage.stager);
		if (r < 0)
			refuse(x, r);
		else
			fetch(x);
	}
}

static void peek_ready(struct tern_op *op, int status)
{
	struct tern_xfer *x = tern_container_of(op, struct tern_xfer, op);

	if (status == 0)
		tern_xfer_pend(x);
	/* Otherwise the link was lost, and tern_recv_lost() starts the peek again. */
}

/* Reads the sender's memory in place. If that is impossible, receives into a buffer from
 * the pool. Always returns 0. */
static int peek(struct tern_xfer *x)
{
	struct tern_req *req = tern_req_of(x);
	struct tern_conn *conn = tern_peer_conn(x->peer);
	const void *data = NULL;
	int r = -ENOTSUP;

	if (x->record->stale)
		return 0; /* renew.c continues x when it has the new region */
	if ((conn->caps & TERN_CAP_PEEK) && x->record->has_region) {
		x->op.done = peek_ready;
		r = conn->port->ops->peek(
			conn, &x->op, &x->record->region, 0, req->bytes, &data);
	}
	if (r == 0) {
		req->data = data;
		x->port = conn->port;
		x->peer->stats.peek_count++;
		x->peer->stats.bytes_received += req->bytes;
		tern_xfer_enter(x, TERN_XFER_HELD);
		tern_xfer_complete(x, 0);
	} else if (r == -ENOTSUP) {
		allocate(x);
	} /* else -EAGAIN: the fabric calls peek_ready() later */
	return 0;
}

static void pair(struct tern_xfer *x, struct tern_record *record)
{
	struct tern_req *req = tern_req_of(x);

	tern_list_remove(&x->queue);
	tern_want_leave(x);
	tern_xfer_forget_id(x);
	x->told = false;
	if (tern_xfer_withdraw(x, -EPROTO) < 0) {
		/* The peer is just putting data into the advertised buffer, and yet has
		 * sent another message that takes this receive: a protocol violation. */
		tern_record_free(record);
		tern_peer_cut(x->peer, -EPROTO);
		return;
	}
	if (x->state == TERN_XFER_ADVERTISED)
		tern_xfer_enter(x, TERN_XFER_POSTED);
	tern_xfer_meet(x, record);
	req->shape = record->shape;
	req->bytes = record->bytes;
	if (record->type == TERN_MSG_EAGER)
		note_small(x);
	else if (req->bytes > x->peer->eager_bytes)
		note_large(x, tern_match_find(
				      &x->peer->match, &x->node.triple, TERN_MATCH_RECV));
	if (tern_xfer_clashes(x, &record->name)) {
		refuse(x, -EEXIST);
	} else if ((x->flags & TERN_RECV_PEEK) && record->has_region && req->bytes) {
		tern_xfer_enter(x, TERN_XFER_PEEKING);
		tern_xfer_pend(x);
	} else if (wants_pool(x)) {
		allocate(x);
	} else if (req->bytes > x->buf.bytes) {
		refuse(x, -EMSGSIZE);
	} else {
		fetch(x);
	}
}

int tern_recv_advance(struct tern_xfer *x)
{
	switch ((enum tern_xfer_state)x->state) {
	case TERN_XFER_POSTED:
		return advertise(x);
	case TERN_XFER_ADVERTISED: /* waits for room to send CANCEL */
	case TERN_XFER_FILLING:
		return tern_cancel_say(x);
	case TERN_XFER_ALLOCATING:
		allocate(x);
		return 0;
	case TERN_XFER_PEEKING:
		return peek(x);
	case TERN_XFER_READING:
		return start_get(x);
	case TERN_XFER_ANSWERING:
		return say_cts(x);
	case TERN_XFER_QUEUED:
	case TERN_XFER_ANNOUNCED:
	case TERN_XFER_WRITING:
	case TERN_XFER_FINISHING:
	case TERN_XFER_UNACKED:
	case TERN_XFER_LANDING:
	case TERN_XFER_FLUSHING:
	case TERN_XFER_HELD:
	case TERN_XFER_ENDED:
	case TERN_XFER_STATE_COUNT:
		break;
	}
	tern_never("no message is due in this state of a receive");
}

/* Called when the link was lost: the get or peek of x starts again on the next link. */
void tern_recv_lost(struct tern_xfer *x)
{
	x->cancel_told = false;
	if (x->state == TERN_XFER_READING)
		tern_stage_lost(x);
	if ((x->state == TERN_XFER_READING || x->state == TERN_XFER_PEEKING) &&
		!tern_list_linked(&x->queue))
		tern_list_push(&x->peer->pump.pending, &x->queue);
}

/* ---- what the peer says ---- */

/* Copies the data of an EAGER from the message into the caller's buffer, without a
 * record, and ends x. */
static void deliver(struct tern_xfer *x, const struct tern_header *h)
{
	struct tern_req *req = tern_req_of(x);

	req->shape = h->shape;
	req->bytes = h->bytes;
	note_small(x);
	if ((h->flags & TERN_FLAG_NAME) && tern_xfer_clashes(x, h->name)) {
		tern_xfer_end(x, -EEXIST);
		return;
	}
	if (h->bytes > x->buf.bytes) {
		tern_xfer_end(x, -EMSGSIZE);
		return;
	}
	if (h->bytes)
		memcpy(tern_buf_ptr(&x->buf), h->payload, h->bytes);
	x->peer->stats.eager_count++;
	x->peer->stats.bytes_received += h->bytes;
	tern_xfer_end(x, 0);
}

static struct tern_xfer *advertised(struct tern_peer *peer, uint32_t id)
{
	struct tern_xfer *x = tern_xfer_by_id(peer, id);

	if (!x || x->is_send)
		return NULL;
	return x->state == TERN_XFER_ADVERTISED || x->state == TERN_XFER_FILLING ? x
										 : NULL;
}

static struct tern_record *record_eager(
	struct tern_peer *peer, const struct tern_header *h)
{
	struct tern_record *record = tern_record_new(peer, h);

	if (h->bytes)
		memcpy(tern_record_payload(record), h->payload, h->bytes);
	return record;
}

/* Called when an EAGER was handled without a record: gives back its credit or, if it
 * answers a WANT, the record that was reserved for it. */
static void give_back(struct tern_peer *peer, const struct tern_header *h)
{
	if (h->dst) {
		peer->rdv->wanted_count--;
		return;
	}
	tern_credit_release(&peer->stream.credit_rx);
	if (tern_credit_worth_telling(&peer->stream.credit_rx))
		tern_stream_tell(peer);
}

static int take_eager(struct tern_xfer *x, const struct tern_header *h)
{
	struct tern_peer *peer = x->peer;

	if (wants_pool(x) || x->stage.stager) {
		pair(x, record_eager(peer, h));
	} else {
		deliver(x, h);
		give_back(peer, h);
	}
	return 0;
}

/* Keeps a message for a receive that is posted later. A receive of window_move.c was posted
 * before its send, so here it has ended. */
static void keep_arrival(struct tern_peer *peer, struct tern_record *record)
{
	if (tern_unlikely(record->node.triple.channel == TERN_CHANNEL_WINDOWS)) {
		if (record->type == TERN_MSG_RTS)
			tern_record_answer(record, TERN_MSG_ATS, -ESHUTDOWN);
		else
			tern_record_free(record);
		return;
	}
	tern_match_add(&peer->match, &record->node, TERN_MATCH_ARRIVAL);
	peer->arrival_count++;
	record->number = peer->rdv->arrival_number++;
	record->late = record->wanted;
	peer->want.late_count += record->late;
}

/* Returns how to handle an EAGER or RTS that answers a receive which does not exist. A
 * message that crossed the POST or WANT of a receive may take that receive, but then the
 * peer drops the POST, or answers the WANT by a MISS. So an EAGER or RTS that names a
 * receive finds it, unless the peer's goodbye has ended it: end_receives() in session.c.
 * Without a goodbye the answer is a protocol error. */
static int unknown_receive(const struct tern_peer *peer)
{
	return peer->receives_over ? 0 : -EPROTO;
}

/* Handles an EAGER (a message with the tensor) that answers our POST (announcement of a
 * buffer). */
static int take_addressed(struct tern_peer *peer, const struct tern_header *h)
{
	struct tern_xfer *x = advertised(peer, h->dst);

	if (!x)
		return unknown_receive(peer);
	/* A buffer in GPU memory is never advertised, so no correct peer sends bytes for
	 * it in an EAGER. */
	if (x->stage.stager && h->bytes)
		return -EPROTO;
	deliver(x, h);
	return 0;
}

int tern_recv_on_eager(struct tern_peer *peer, const struct tern_header *h)
{
	const struct tern_triple triple = tern_header_triple(peer, h);
	struct tern_xfer *x;

	/* The limit is the size of a record's payload. The limit that was negotiated
	 * (peer->eager_bytes) binds only the sender: the two ends may have negotiated it
	 * on links of different fabrics, if the first link failed immediately. */
	if (h->bytes > TERN_EAGER_MAX)
		return -EPROTO;
	x = h->dst ? tern_want_answered(peer, h->dst) : oldest_recv(peer, &triple);
	if (h->dst && !x)
		return take_addressed(peer, h);
	x = taker(x, &triple);
	if (x)
		return take_eager(x, h);
	keep_arrival(peer, record_eager(peer, h));
	return 0;
}

int tern_recv_on_rts(struct tern_peer *peer, const struct tern_header *h)
{
	const struct tern_triple triple = tern_header_triple(peer, h);
	bool has_region = h->flags & TERN_FLAG_REGION;
	struct tern_record *record;
	struct tern_xfer *x;

	/* If the RTS has a region, this end may read the tensor. If it has none, the
	 * peer puts the tensor, after a CTS. The fabric of this link must be able to do
	 * that. */
	if (!h->src ||
		!(tern_peer_caps(peer) & (has_region ? TERN_CAP_GET : TERN_CAP_PUT)))
		return -EPROTO;
	tern_rails_expect(peer, h->bytes);
	x = h->dst ? tern_want_answered(peer, h->dst) : oldest_recv(peer, &triple);
	if (h->dst && !x)
		return unknown_receive(peer);
	x = taker(x, &triple);
	record = tern_record_new(peer, h);
	if (x)
		pair(x, record);
	else
		keep_arrival(peer, record);
	return 0;
}

/* True if the status of a DONE fits the size of its tensor: a buffer that was large
 * enough cannot cause -EMSGSIZE, and one that was too small cannot end with 0. */
static bool fits_its_status(const struct tern_xfer *x, const struct tern_header *h)
{
	bool fits = h->bytes <= capacity(x);

	return h->status == 0 ? fits : h->status != -EMSGSIZE || !fits;
}

static int done(struct tern_peer *peer, const struct tern_header *h)
{
	struct tern_xfer *x = advertised(peer, h->dst);
	struct tern_req *req;

	if (!x)
		return 0;
	if (!fits_its_status(x, h))
		return -EPROTO;
	if (x->state == TERN_XFER_ADVERTISED && h->bytes > peer->eager_bytes)
		note_large(x, tern_match_after(&x->node));
	req = tern_req_of(x);
	req->shape = h->shape;
	req->bytes = h->bytes;
	if (h->status == 0) {
		peer->stats.put_count++;
		peer->stats.bytes_received += h->bytes;
	}
	if (h->status == 0 && h->bytes && x->stage.bounce.mem) {
		tern_list_remove(&x->queue);
		x->told = false;
		tern_xfer_enter(x, TERN_XFER_LANDING);
		tern_stage_land(x);
		return 0;
	}
	tern_xfer_end(x, h->status);
	return 0;
}

/* The sender's buffer stays in use until our acknowledgement of DONE (the message
 * after the last put) arrives. Unless the data must still be copied to the GPU, the
 * acknowledgement is sent after the done() callback of the receive: if the callback
 * posts the next receive, the POST of that receive carries it. */
int tern_recv_on_done(struct tern_peer *peer, const struct tern_header *h)
{
	int r = done(peer, h);

	peer->stream.ack_due = true;
	tern_stream_tell(peer);
	return r;
}

void tern_recv_cancel(struct tern_xfer *x)
{
	struct tern_peer *peer = x->peer;

	switch ((enum tern_xfer_state)x->state) {
	case TERN_XFER_POSTED:
		/* The receive has sent a WANT. The peer's answer will end it. */
		if (x->ask == TERN_ASK_OUT)
			x->cancelled = true;
		else
			tern_xfer_end(x, -ECANCELED);
		break;
	case TERN_XFER_ADVERTISED:
	case TERN_XFER_FILLING:
		x->cancelled = true;
		tern_xfer_pend(x);
		break;
	case TERN_XFER_ALLOCATING:
		refuse(x, -ECANCELED);
		break;
	case TERN_XFER_ANSWERING:
		tern_list_remove(&x->queue);
		answer_and_end(x, -ECANCELED);
		break;
	case TERN_XFER_PEEKING: /* too late: the transfer ends with its own status */
	case TERN_XFER_READING:
	case TERN_XFER_LANDING:
	case TERN_XFER_FLUSHING:
	case TERN_XFER_HELD:
	case TERN_XFER_ENDED:
		break;
	case TERN_XFER_QUEUED:
	case TERN_XFER_ANNOUNCED:
	case TERN_XFER_WRITING:
	case TERN_XFER_FINISHING:
	case TERN_XFER_UNACKED:
	case TERN_XFER_STATE_COUNT:
		tern_never("not a receive");
	}
	/* Now another receive may be the oldest of its triple (channel, key, step), and
	 * may ask for its send by a WANT. */
	tern_peer_pump(peer);
}
