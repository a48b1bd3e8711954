/* SPDX-License-Identifier: Apache-2.0 */
/* Channels; transfers (struct tern_xfer), each of which is one half of a rendezvous: a
 * send or a receive; and records, which store messages of the peer until the other half
 * or an answer is ready. */
#ifndef TERN_RENDEZVOUS_XFER_H
#define TERN_RENDEZVOUS_XFER_H

#include "rendezvous/peer.h"
#include "transport/gpu/stager.h"

/* After this many small tensors in a row the receives of a channel send no POST. */
#define TERN_SMALL_RUN 4u

struct tern_channel {
	struct tern_list node;
	struct tern_peer *peer;
	uint32_t number;
	/* Receives in a row, up to TERN_SMALL_RUN, whose room was larger than an EAGER, and
	 * whose tensor was not: recv.c. */
	uint8_t small_run;
};

/*
 *     send     QUEUED --EAGER sent-------------------------------------> ENDED
 *                |----RTS sent--> ANNOUNCED --the peer has read it-----> ENDED
 *                |                    | CTS: the peer cannot read
 *                |                    v
 *                +--POST-------> WRITING -> FINISHING -> UNACKED ------> ENDED
 *
 *     receive  POSTED --EAGER arrives--> [ALLOCATING] -> [LANDING] --------> ENDED
 *                |----POST sent--> ADVERTISED --DONE arrives---------------> ENDED
 *                |----RTS arrives: one of
 *                        PEEKING -> HELD until the caller releases it -----> ENDED
 *                        [ALLOCATING] -> READING --ATS queued--------------> ENDED
 *                        [ALLOCATING] -> ANSWERING (CTS) -> FILLING
 *                                                  --DONE--> [LANDING] ----> ENDED
 *
 *     both     most -> FLUSHING -> ENDED
 *
 * Not shown: a send that a POST takes is FINISHING at once if it is small or has failed; a
 * send that is FINISHING goes back to WRITING when its link is lost. A receive that is
 * ADVERTISED goes back to POSTED if an EAGER or RTS takes it, and one that is READING is
 * ANSWERING if the next link cannot read. Most states may end early, with an error.
 *
 * ALLOCATING: the receive waits until its pool has a free buffer. LANDING: the received
 * bytes are being copied to GPU memory. FLUSHING: the status of the transfer is decided,
 * but bytes of the peer are just being written into its memory, or a copy from or to GPU
 * memory is in progress. A receive that is HELD has ended; the caller reads the sender's
 * memory in place. If PEEKING turns out to be impossible, one of the two ways below it
 * follows.
 */
enum tern_xfer_state {
	TERN_XFER_QUEUED,     /* send: not announced yet */
	TERN_XFER_ANNOUNCED,  /* send: RTS (a tensor is ready) was sent */
	TERN_XFER_WRITING,    /* send: puts (RDMA writes) are being issued */
	TERN_XFER_FINISHING,  /* send: the last message, DONE or EAGER, is to be sent */
	TERN_XFER_UNACKED,    /* send: DONE was sent, and is not acknowledged yet */
	TERN_XFER_POSTED,     /* receive: waits for a send in the matching table */
	TERN_XFER_ADVERTISED, /* receive: POST, which announces the buffer, was sent */
	TERN_XFER_ALLOCATING, /* receive: matched, but the pool for its buffer is full */
	/* Receive: the fabric maps the sender's memory, to be read in place. */
	TERN_XFER_PEEKING,
	TERN_XFER_READING, /* receive: a get (RDMA read) is in progress */
	/* Receive: CTS, the answer to an RTS that this end cannot read, is to be sent. */
	TERN_XFER_ANSWERING,
	TERN_XFER_FILLING, /* receive: CTS was sent, so the peer writes into the buffer */
	/* Receive: all bytes have arrived in host memory, and are being copied to the
	 * GPU. */
	TERN_XFER_LANDING,
	TERN_XFER_FLUSHING,
	TERN_XFER_HELD,
	TERN_XFER_ENDED,
	TERN_XFER_STATE_COUNT
};

/* Whether a receive for which nothing has arrived has sent a WANT, which asks for a send
 * that has no credit: see want.c. */
enum tern_ask {
	TERN_ASK_NONE,
	TERN_ASK_OUT, /* WANT was sent, and is not answered yet */
	/* The peer has answered by MISS: no such send waits. When one begins to wait for
	 * a credit, the peer will send HAVE. */
	TERN_ASK_MISSED,
};

/* Staging of a transfer in GPU memory, i.e. its copies through page-locked host memory:
 * see stage.c. */
struct tern_stage {
	/* Makes the copies; NULL: the memory is host memory, or empty. */
	struct tern_stager *stager;
	/* Entry in the queue for a staging slot (page-locked buffer). */
	struct tern_stage_wait wait;
	/* Staging slots that the transfer holds, in the order of the tensor's bytes. */
	struct tern_list slots;
	/* Bounce buffer: page-locked memory for the whole tensor; mem NULL: none. */
	struct tern_buf bounce;
	/* The copy between the tensor and the bounce buffer, or a copy from memory that
	 * the sender's GPU lends. */
	struct tern_copy copy;
	/* Receive: GPU memory that the sender lends; gpu NULL: none. */
	struct tern_loan loan;
	/* Bytes of the tensor whose copy, or get into a slot, has begun on this link. */
	uint64_t asked;
	uint64_t landed; /* bytes of the tensor whose copying is complete */
	uint32_t copies; /* copies in progress */
	int status;      /* error with which the transfer will end; 0: none so far */
	uint32_t epoch;  /* epoch of the link for which `direct` was set */
	bool direct;     /* the fabric accesses the GPU memory itself: direct.c */
	bool lent;       /* send: the peer's GPU copies the tensor directly */
};
/* True if no GPU memory takes part in the transfer, so that it uses no member for
 * staging. */
static inline bool tern_stage_is_idle(const struct tern_stage *stage)
{
	return !stage->stager && !stage->loan.gpu;
}

/* Says which kind of request lies in a tern_req: the first byte of struct tern_xfer and of
 * struct tern_wreq (window.h). */
enum tern_req_kind {
	TERN_REQ_XFER,
	TERN_REQ_WINDOW,
	/* A struct tern_xfer whose peer is not known yet, or was never found: any.c. */
	TERN_REQ_ANY,
};

struct tern_xfer {
	uint8_t req_kind; /* TERN_REQ_XFER or TERN_REQ_ANY */
	/* Node in peer->xfers. After the end, node in a list `held` if the caller must
	 * still call tern_release(). */
	struct tern_list all;
	struct tern_list queue; /* node in the list in which it waits (pump.c), if any */
	/* Node in peer->renewals, while the transfer's region is to be announced
	 * again. */
	struct tern_list renewal;
	/* Send that writes into the buffer of the peer's receive `remote_id`: node in the
	 * map peer->theirs. */
	struct tern_map_node theirs;
	struct tern_match_node node;
	struct tern_channel *channel;
	/* NULL: the peer has ended, and the caller still holds what was received. */
	struct tern_peer *peer;
	struct tern_rdv *rdv;
	/* Receive in state HELD: port through which the peer's memory is read in
	 * place. */
	struct tern_port *port;
	struct tern_buf buf; /* send: the data; receive: the buffer to fill */
	/* Our own memory region while `exposed` is set, else a region of the peer. */
	struct tern_region region;
	/* Operation of the fabric: get, peek or withdraw; one at a time. */
	struct tern_op op;
	/* Receive: record of the RTS or EAGER that it was matched with. */
	struct tern_record *record;
	struct tern_name name;
	uint64_t issued; /* send: bytes for which puts were issued on this link */
	uint32_t id, remote_id, done_seq, puts_out;
	struct tern_stage stage;
	/* Receive with ALLOC or PEEK: pool that `buf` was taken from. */
	struct tern_pool *pool;
	int result;    /* final status, if it is already decided */
	uint8_t state; /* enum tern_xfer_state */
	uint8_t flags; /* enum tern_req_flags */
	uint8_t rail;  /* send: the rail to try next, modulo TERN_RAILS_MAX */
	/* Send: bit sets of the rails that carried its puts, of those that were asked to
	 * confirm these puts, and of those that have confirmed. */
	uint16_t rails_used, rails_asked, rails_confirmed;
	bool is_send, exposed, cancelled, cancel_told, acked;
	uint8_t ask; /* receive: enum tern_ask */
	/* Receive: it waits until it is the oldest of its triple (channel, key, step),
	 * and may then send a WANT. */
	bool behind;
	bool starving;  /* send: it is in peer->pump.starved */
	bool announced; /* send: the peer has heard of it */
	/* Send: id of the peer's receive that asked for it by a WANT; 0: none. */
	uint32_t wanted;
	/* For renew.c. `told`: the peer knows our region of this transfer. `stale`: the
	 * peer's region, in `region`, belongs to an earlier link. */
	bool told, stale;
	bool withdrawing; /* in FLUSHING: the fabric has not withdrawn the region yet */
	/* For any.c. `proxy`: a receive that waits for a tern_recv_any() on one of its
	 * channels. The others belong to the request of the tern_recv_any() itself. */
	bool proxy;
	int source;               /* what tern_recv_source() returns */
	struct tern_list proxies; /* kind TERN_REQ_ANY */
};

_Static_assert(sizeof(struct tern_xfer) <= sizeof(((struct tern_req *)0)->priv),
	"struct tern_xfer does not fit into tern_req.priv");

static inline enum tern_req_kind tern_req_kind_of(const struct tern_req *req)
{
	return (enum tern_req_kind) * (const uint8_t *)req->priv;
}

static inline struct tern_xfer *tern_xfer_of(struct tern_req *req)
{
	return (struct tern_xfer *)(void *)req->priv;
}

static inline struct tern_req *tern_req_of(struct tern_xfer *xfer)
{
	return (struct tern_req *)(void *)((char *)xfer -
					   offsetof(struct tern_req, priv));
}

/* Sets where a receive puts the tensor. With ALLOC or PEEK, `room` is ignored. */
static inline void tern_xfer_set_room(
	struct tern_xfer *x, const struct tern_buf *room, struct tern_stager *stager)
{
	x->stage.stager = stager;
	if (!(x->flags & (TERN_RECV_ALLOC | TERN_RECV_PEEK)))
		x->buf = *room;
}

/* A stored message of the peer, an EAGER, RTS or POST, that waits for our half of the
 * rendezvous, or whose answer is to be sent. */
struct tern_record {
	/* Node in the matching table while the message waits. */
	struct tern_match_node node;
	struct tern_list all;   /* node in peer->records; if free, in rdv->free_records */
	struct tern_list queue; /* node in peer->pump.answers, until the answer is sent */
	/* RTS, POST: node in the map peer->theirs, under `src`. */
	struct tern_map_node theirs;
	struct tern_peer *peer;
	/* The receive that the message was matched with, whose `record` is this one;
	 * NULL: none. */
	struct tern_xfer *xfer;
	unsigned char *payload; /* memory for the data of one EAGER */
	struct tern_shape shape;
	struct tern_region region;
	struct tern_name name;
	uint64_t bytes;
	uint32_t src;
	uint8_t type;   /* kind of the message: EAGER, RTS or POST */
	uint8_t answer; /* answer to be sent: ATS (read, or refused) or CANCEL_ACK */
	bool has_region;
	bool stale;  /* `region` belongs to an earlier link */
	bool wanted; /* the message answered a WANT, so it used no credit */
	/* The WANT was that of a tern_recv_any() that had ended: want.c. */
	bool late;
	int16_t status;  /* status that the answer carries */
	uint64_t number; /* EAGER or RTS that no receive waited for: order of arrival */
};

/* Kinds of keys in peer->theirs, which finds records and sends by the id of a request of
 * the peer. One request of the peer can have two entries: the record of its message and,
 * if it is a receive, our send that writes into its buffer. */
enum tern_theirs { TERN_THEIR_SEND, TERN_THEIR_RECV, TERN_WRITES_INTO };
static inline uint64_t tern_theirs_key(enum tern_theirs what, uint32_t id)
{
	return (uint64_t)what << 32 | id;
}

static inline struct tern_triple tern_header_triple(
	const struct tern_peer *peer, const struct tern_header *h)
{
	return tern_match_triple(&peer->match, h->key, h->step, h->channel);
}

/* Functions that channel.c defines: */
/* As tern_channel_open(), also for a channel that programs cannot open. */
int tern_channel_open_any(
	struct tern_peer *peer, uint32_t number, struct tern_channel **out);
/* Checks that the request may be posted. -EOVERFLOW: the
 * program's struct tern_req is too small for this library; -EBUSY: the request is posted,
 * or must be released first. */
int tern_req_check(const struct tern_req *req, size_t bytes);
/* Sets what the library sets in a request when it is posted. */
void tern_req_post(struct tern_req *req);
/* Checks the arguments of a receive, and sets *stager to what stages its room, if it is
 * needed. Returns 0 or what tern_recv() returns. */
int tern_recv_check(const struct tern_channel *channel, const struct tern_buf *room,
	const char *name, unsigned flags, struct tern_stager **stager);
/* Posts a receive whose tern_xfer is initialised. */
void tern_recv_post(struct tern_xfer *x, uint64_t key, uint64_t step, const char *name);

/* Functions that xfer.c defines: */
void tern_xfer_init(
	struct tern_xfer *x, struct tern_channel *channel, bool is_send, unsigned flags);
/* As tern_xfer_init(), for a receive whose channel tern_xfer_join() sets later. */
void tern_xfer_init_apart(struct tern_xfer *x, struct tern_rdv *rdv, unsigned flags);
void tern_xfer_join(struct tern_xfer *x, struct tern_channel *channel);
/* For each state, a bit set of the states that may follow it: the diagram at enum
 * tern_xfer_state, and the text below it. */
extern const uint32_t tern_xfer_edges[TERN_XFER_STATE_COUNT];
/* Changes the state. */
static inline void tern_xfer_enter(struct tern_xfer *x, enum tern_xfer_state next)
{
	tern_assert(tern_xfer_edges[x->state] & (1u << next));
	if (x->state == TERN_XFER_LANDING)
		x->peer->landing_count--;
	if (next == TERN_XFER_LANDING)
		x->peer->landing_count++;
	x->state = (uint8_t)next;
}
/* Lets the peer access the transfer's memory, and sets x->region; does nothing if the
 * peer has access already. Returns 0 or the error of the fabric's expose(). */
int tern_xfer_expose(struct tern_xfer *x, enum tern_access access);
/* Ends the peer's access to our region of x, if it has any. 0: done. -EINPROGRESS: bytes
 * of the peer are just being written into the memory; x is FLUSHING now, and ends with
 * `status` when that is over. */
int tern_xfer_withdraw(struct tern_xfer *x, int status);
void tern_xfer_log_clash(const struct tern_xfer *x, const struct tern_name *theirs);
/* True, with a log line, if both halves of the rendezvous have names and these differ. */
static inline bool tern_xfer_clashes(
	const struct tern_xfer *x, const struct tern_name *theirs)
{
	if (tern_likely(!tern_names_differ(&x->name, theirs)))
		return false;
	tern_xfer_log_clash(x, theirs);
	return true;
}
/* Ends the peer's access to the memory, then ends the transfer: at once, or when nothing
 * is being written or copied any more. */
void tern_xfer_end(struct tern_xfer *x, int status);
/* Ends the transfer. Call it only when neither the peer nor a copy accesses its
 * memory. */
void tern_xfer_complete(struct tern_xfer *x, int status);
/* Sets the status of a request that has ended, and lets done() run soon. */
void tern_xfer_report(struct tern_xfer *x, int status);
void tern_rdv_run_completed(struct tern_rdv *rdv);
/* The same, as the deferred call rdv->complete_call. */
void tern_rdv_complete_call(struct tern_deferred *deferred);

/* Functions that ids.c defines: */
/* Gives x an id, unless it has one. -EAGAIN: all 65535 ids are in use, or no memory. */
int tern_xfer_id(struct tern_xfer *x);
void tern_xfer_free_id(struct tern_xfer *x);
/* Frees the id of x, if it has one. */
static inline void tern_xfer_forget_id(struct tern_xfer *x)
{
	if (x->id)
		tern_xfer_free_id(x);
}
struct tern_xfer *tern_xfer_by_id(struct tern_peer *peer, uint32_t id);
/* Stores that the send x writes into the buffer of the peer's receive `id`. */
void tern_xfer_write_into(struct tern_xfer *x, uint32_t id);
/* Returns our send that writes into the buffer of the peer's receive `id`; NULL: there is
 * none. */
struct tern_xfer *tern_xfer_by_their_id(struct tern_peer *peer, uint32_t id);

/* Functions that pump.c defines: */
/* Queues x in `pending`: its next message is sent after those of the transfers that are
 * queued there already, now or when there is room. */
void tern_xfer_pend(struct tern_xfer *x);
/* Queues the send x, whose first message needs a credit, behind the sends that wait for
 * credits: as tern_xfer_pend() would do, but in fewer steps. False: x was not queued,
 * since no other send waits for a credit, transfers wait in `pending`, or there is no
 * room or no link. */
bool tern_pump_join_starved(struct tern_xfer *x);
void tern_peer_pump_now(struct tern_peer *peer);
/* Continues everything of this peer that can proceed now: it sends messages and answers,
 * issues puts, and says goodbye. */
static inline void tern_peer_pump(struct tern_peer *peer)
{
	if (tern_peer_has_unsaid(peer) || tern_want_is_due(peer) ||
		tern_write_waits(peer) || peer->windows.due || peer->fin_wanted ||
		peer->fin_received)
		tern_peer_pump_now(peer);
}

/* Functions that record.c defines: */
int tern_records_init(struct tern_rdv *rdv, uint32_t shared_count); /* -ENOMEM */
void tern_records_fini(struct tern_rdv *rdv);
/* Makes sure that there are records for one more peer, without reserving them.
 * -ENOMEM. */
int tern_records_spare(struct tern_rdv *rdv);
/* Reserves TERN_CREDIT_OWN records for a new peer before its first message, and
 * increments peer_count. tern_records_release() undoes that. */
int tern_records_reserve(struct tern_peer *peer); /* -ENOMEM */
void tern_records_release(struct tern_peer *peer);
/* Reserves one record for the message that answers a WANT, and increments wanted_count.
 * -ENOMEM. */
int tern_records_want(struct tern_rdv *rdv);
struct tern_record *tern_record_new(
	struct tern_peer *peer, const struct tern_header *header);
void tern_record_free(struct tern_record *record);
/* Returns the record of the RTS or POST of the peer's request `id`; NULL: there is
 * none. */
struct tern_record *tern_record_by_id(struct tern_peer *peer, bool is_recv, uint32_t id);
void tern_record_answer(struct tern_record *record, uint8_t type, int status);
/* tern_xfer_meet() matches a receive with a record. tern_xfer_part() separates the two,
 * and returns the record, or NULL if there is none. */
void tern_xfer_meet(struct tern_xfer *x, struct tern_record *record);
struct tern_record *tern_xfer_part(struct tern_xfer *x);
static inline unsigned char *tern_record_payload(const struct tern_record *record)
{
	return record->payload;
}

/* Functions that send.c defines: */
void tern_send_begin(struct tern_xfer *x);
bool tern_send_readable(struct tern_xfer *x);
/* Sends the next message of a send. -EAGAIN: no room now; -ENOBUFS: the message needs a
 * credit, and there is none. */
int tern_send_advance(struct tern_xfer *x);
void tern_send_cancel(struct tern_xfer *x);
void tern_send_acked(struct tern_peer *peer);
void tern_send_forget_sent(struct tern_peer *peer, uint32_t ack);
/* Called when a POST or WANT of the peer has arrived. True: it crossed an EAGER or RTS of
 * ours of this triple on the wire. That EAGER or RTS is forgotten, since it cancels only
 * one POST or WANT. */
bool tern_send_crossed(struct tern_peer *peer, const struct tern_triple *triple);
void tern_send_lost(struct tern_xfer *x);
int tern_send_on_post(struct tern_peer *peer, const struct tern_header *header);
int tern_send_on_cts(struct tern_peer *peer, const struct tern_header *header);
int tern_send_on_ats(struct tern_peer *peer, const struct tern_header *header);

/* Functions that write.c defines: */
/* Queues a send in state WRITING, whose puts the pump issues. */
void tern_write_queue(struct tern_xfer *x);
/* Issues the puts of all sends in the lists pump.writing, one chunk of each send in turn
 * (an urgent one keeps its turn), until there is no room. */
void tern_write_pump(struct tern_peer *peer);
/* Distributes the queued sends over the two lists pump.writing again, after a link or
 * rail has come up. */
void tern_write_sort(struct tern_peer *peer);
/* Issues all puts of a send again, before its DONE is sent again. -EAGAIN: no room, or
 * the send waits for the peer's region or for a staging slot; other errors: the GPU
 * cannot deliver the data any more. */
int tern_write_again(struct tern_xfer *x);
/* Called when a rail has confirmed the puts of the send x. */
void tern_write_settled(struct tern_xfer *x);

/* Functions that recv.c defines: */
void tern_recv_begin(struct tern_xfer *x);
int tern_recv_advance(struct tern_xfer *x);
void tern_recv_cancel(struct tern_xfer *x);
void tern_recv_lost(struct tern_xfer *x);
int tern_recv_on_eager(struct tern_peer *peer, const struct tern_header *header);
int tern_recv_on_rts(struct tern_peer *peer, const struct tern_header *header);
int tern_recv_on_done(struct tern_peer *peer, const struct tern_header *header);
/* Called when all bytes of a staged receive, or of one from lent GPU memory, are in the
 * receive's memory (status 0), or when a copy has failed. */
void tern_recv_landed(struct tern_xfer *x, int status);
void tern_xfer_release(struct tern_xfer *x);
/* Lets the receives that wait for their pool (rdv->hungry) try to take a buffer again. */
void tern_rdv_feed(struct tern_rdv *rdv);

/* Functions that want.c defines: */
/* Called when no message for the receive x has arrived: queues x in `unasked`, from where
 * it sends a WANT if the peer's sends lack credits. */
void tern_want_later(struct tern_xfer *x);
void tern_want_pump(struct tern_peer *peer); /* sends the WANTs that may be sent now */
/* Removes the receive x from the matching table. The next receive of the same triple
 * (channel, key, step) may send a WANT then. */
void tern_want_leave(struct tern_xfer *x);
/* Called when the peer is DOWN, and so will answer no WANT any more. */
void tern_want_end(struct tern_peer *peer);
/* Returns our receive `id`, and marks its WANT as answered. NULL: the receive does not
 * exist, or has no unanswered WANT. */
struct tern_xfer *tern_want_answered(struct tern_peer *peer, uint32_t id);
/* Sends the MISS messages that are due. -EAGAIN: no room. */
int tern_want_say_misses(struct tern_peer *peer);
/* Called when the send x begins to wait for a credit: sends HAVE, if a receive of the
 * peer may wait for one. 0: sent, or not needed; -EAGAIN: no room. */
int tern_want_say_have(struct tern_xfer *x);
/* Called with each received header while `watching` is set: clears it if no receive of
 * the peer waits for a HAVE any more. */
void tern_want_watch(struct tern_peer *peer, const struct tern_header *header);
/* Called when the send x, which a WANT asked for, has ended without a message: the WANT
 * is answered by MISS (no such send). */
void tern_want_withdraw(struct tern_xfer *x);
int tern_want_on_want(struct tern_peer *peer, const struct tern_header *header);
int tern_want_on_have(struct tern_peer *peer, const struct tern_header *header);
int tern_want_on_miss(struct tern_peer *peer, const struct tern_header *header);

/* Called when a record whose flag `late` is set was freed. */
void tern_want_late_is_over(struct tern_peer *peer);

/* Functions that any.c defines: */
/* Called when a message has come for a proxy, which ends. Returns the request that it
 * stands for, which has become a receive on the same channel, but is not in the matching
 * table. NULL: that request has ended, or was matched with another message. */
struct tern_xfer *tern_any_take(struct tern_xfer *proxy);
void tern_any_cancel(struct tern_xfer *x);

/* Functions that cancel.c defines: */
int tern_on_cancel(struct tern_peer *peer, const struct tern_header *header);
int tern_on_cancel_ack(struct tern_peer *peer, const struct tern_header *header);
int tern_cancel_say(struct tern_xfer *x);

/* Functions that renew.c defines: */
void tern_renew_lost(struct tern_peer *peer);
void tern_renew_move(struct tern_peer *peer, struct tern_port *port);
void tern_renew_begin(struct tern_peer *peer);
/* Sends one waiting RENEW. 1: sent, or no longer needed; 0: none is left; -EAGAIN: no
 * room, or no region is free. */
int tern_renew_next(struct tern_peer *peer);
int tern_renew_retained(struct tern_peer *peer, struct tern_retained *e);
int tern_on_renew(struct tern_peer *peer, const struct tern_header *header);

#endif
