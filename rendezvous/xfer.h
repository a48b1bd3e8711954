/* SPDX-License-Identifier: Apache-2.0 */
/* Channels, the two halves of a rendezvous on them, and records of what the peer said. */
#ifndef TERN_RENDEZVOUS_XFER_H
#define TERN_RENDEZVOUS_XFER_H

#include "rendezvous/peer.h"
#include "transport/gpu/stager.h"

struct tern_channel {
	struct tern_list node;
	struct tern_peer *peer;
	uint32_t number;
};

/*
 *     send     QUEUED --EAGER sent-------------------------------------> ENDED
 *                |----RTS sent--> ANNOUNCED --the peer has read it-----> ENDED
 *                |                    | CTS: the peer cannot read
 *                |                    v
 *                +--POST-------> WRITING -> FINISHING -> UNACKED ------> ENDED
 *
 *     receive  POSTED --EAGER arrives------------------------> [LANDING] -> ENDED
 *                |----POST sent--> ADVERTISED --DONE arrives-> [LANDING] -> ENDED
 *                |----RTS arrives: one of
 *                        ALLOCATING   waits for room in the pool, then one of the others
 *                        PEEKING -> HELD until the caller releases it ----> ENDED
 *                        READING -> ANSWERING (ATS) ----------------------> ENDED
 *                        ANSWERING (CTS) -> FILLING --DONE--> [LANDING] --> ENDED
 *
 *     both     any -> FLUSHING -> ENDED
 *
 * LANDING: the received bytes are being copied to GPU memory. FLUSHING: the transfer has
 * failed or was cancelled, but bytes may still be written, or a copy of the stager is
 * under way.
 */
enum tern_xfer_state {
	TERN_XFER_QUEUED,     /* send: not announced yet */
	TERN_XFER_ANNOUNCED,  /* send: RTS was sent */
	TERN_XFER_WRITING,    /* send: puts are being issued */
	TERN_XFER_FINISHING,  /* send: DONE is to be sent */
	TERN_XFER_UNACKED,    /* send: DONE was sent */
	TERN_XFER_POSTED,     /* receive: waits in the table */
	TERN_XFER_ADVERTISED, /* receive: POST was sent */
	TERN_XFER_ALLOCATING, /* receive: matched, but its pool is full */
	TERN_XFER_PEEKING,    /* receive: the fabric maps the peer's memory */
	TERN_XFER_READING,    /* receive: a get is under way */
	TERN_XFER_ANSWERING,  /* receive: CTS or ATS is to be sent */
	TERN_XFER_FILLING,    /* receive: CTS was sent */
	/* receive: all bytes are here, and are being copied to the GPU. */
	TERN_XFER_LANDING,
	TERN_XFER_FLUSHING,
	TERN_XFER_HELD,
	TERN_XFER_ENDED,
	TERN_XFER_STATE_COUNT
};

/* WANT of a receive for which nothing has arrived: see want.c. */
enum tern_ask {
	TERN_ASK_NONE,
	TERN_ASK_OUT,    /* WANT was sent */
	TERN_ASK_MISSED, /* the peer had no such send, and will send HAVE */
};

/* Staging state of an xfer in GPU memory: see stage.c. */
struct tern_stage {
	struct tern_stager *stager;  /* NULL: the memory is host memory, or empty */
	struct tern_stage_wait wait; /* waits for a slot */
	struct tern_list slots;      /* slots that it holds, in the order of the tensor */
	struct tern_buf bounce;      /* mem NULL: none */
	/* Copy of the whole tensor: to or from the bounce buffer, or of lent memory. */
	struct tern_copy copy;
	struct tern_loan loan; /* receive: the lent source; gpu NULL: none */
	uint64_t asked;        /* bytes for which it has got slots on this link */
	uint64_t landed;       /* bytes that have arrived at their destination */
	uint32_t copies;       /* copies under way */
	int status;            /* error with which it ends; 0: none so far */
	uint32_t epoch;        /* epoch of the link for which `direct` was decided */
	bool direct;           /* the fabric accesses the GPU memory itself: direct.c */
	bool lent;             /* send: the peer's GPU copies the tensor directly */
};
/* True if both ends of the copy are host memory: staging is unused. */
static inline bool tern_stage_is_idle(const struct tern_stage *stage)
{
	return !stage->stager && !stage->loan.gpu;
}

struct tern_xfer {
	struct tern_list all;        /* in peer->xfers, later in rdv->held */
	struct tern_list queue;      /* in the one list that its state waits in */
	struct tern_list renewal;    /* in peer->renewals */
	struct tern_map_node theirs; /* send: in peer->theirs, by remote_id */
	struct tern_match_node node;
	struct tern_channel *channel;
	struct tern_peer *peer; /* NULL: HELD, and the peer was freed */
	struct tern_rdv *rdv;
	struct tern_port *port;    /* HELD: port through which the memory is read */
	struct tern_buf buf;       /* send: the data; receive: the room */
	struct tern_region region; /* own region while `exposed`, else the peer's */
	struct tern_op op;         /* get, peek or withdraw: one at a time */
	/* receive: the RTS (or EAGER) that it was matched with. */
	struct tern_record *record;
	struct tern_name name;
	uint64_t issued; /* send: bytes given to put in this epoch */
	uint32_t id, remote_id, done_seq, puts_out;
	struct tern_stage stage;
	struct tern_pool *pool; /* receive with ALLOC: pool of `buf` */
	int result;             /* final status, if it is already decided */
	uint8_t state;          /* enum tern_xfer_state */
	uint8_t flags;          /* enum tern_req_flags */
	uint8_t rail;           /* next rail to use; below, bit sets of rails: */
	uint16_t rails_used, rails_asked, rails_confirmed;
	bool is_send, exposed, cancelled, cancel_told, acked;
	uint8_t ask; /* receive: enum tern_ask */
	bool behind; /* receive: it may send a WANT once it is the oldest of its triple */
	bool starving;   /* send: it is in peer->pump.starved */
	uint32_t wanted; /* send: id of the receive that asked for it; 0: none */
	/* renew.c: `told`: the peer knows a region of ours; `stale`: the peer's
	 * region, in `region`, belongs to an earlier link. */
	bool told, stale;
	bool withdrawing; /* FLUSHING, until the fabric has withdrawn the region */
};

_Static_assert(sizeof(struct tern_xfer) <= sizeof(((struct tern_req *)0)->priv),
	"struct tern_xfer outgrew tern_req");

static inline struct tern_xfer *tern_xfer_of(struct tern_req *req)
{
	return (struct tern_xfer *)(void *)req->priv;
}

static inline struct tern_req *tern_req_of(struct tern_xfer *xfer)
{
	return (struct tern_req *)(void *)((char *)xfer -
					   offsetof(struct tern_req, priv));
}

struct tern_record {
	struct tern_match_node node; /* ARRIVAL or POST, while it waits */
	struct tern_list all;        /* in peer->records; if free, in rdv->free_records */
	struct tern_list queue;      /* in peer->pump.answers */
	struct tern_map_node theirs; /* RTS, POST: in peer->theirs, by src */
	struct tern_peer *peer;
	/* The receive that it was matched with, whose xfer->record it is. */
	struct tern_xfer *xfer;
	unsigned char *payload; /* room for the data of one EAGER */
	struct tern_shape shape;
	struct tern_region region;
	struct tern_name name;
	uint64_t bytes;
	uint32_t src;
	uint8_t type;   /* EAGER, RTS, POST */
	uint8_t answer; /* answer to be sent: ATS or CANCEL_ACK */
	bool has_region;
	bool stale;     /* its region belongs to an earlier link */
	bool wanted;    /* it answered a WANT, so it used no credit */
	int16_t status; /* status of the answer */
};

/* Kinds of keys in peer->theirs. One request of the peer can have two entries: its
 * record and, if it is a receive, the send that writes into it. */
enum tern_theirs { TERN_THEIR_SEND, TERN_THEIR_RECV, TERN_WRITES_INTO };
static inline uint64_t tern_theirs_key(enum tern_theirs what, uint32_t id)
{
	return (uint64_t)what << 32 | id;
}

static inline struct tern_triple tern_header_triple(const struct tern_header *h)
{
	return (struct tern_triple){
		.key = h->key, .step = h->step, .channel = h->channel};
}

/* xfer.c */
void tern_xfer_init(
	struct tern_xfer *x, struct tern_channel *channel, bool is_send, unsigned flags);
/* Changes the state, by an edge of the diagram. */
void tern_xfer_enter(struct tern_xfer *x, enum tern_xfer_state next);
int tern_xfer_expose(struct tern_xfer *x, enum tern_access access);
/* Withdraws the exposed region. -EINPROGRESS: the xfer is FLUSHING now, and ends with
 * `status`. */
int tern_xfer_withdraw(struct tern_xfer *x, int status);
/* True, with a log line, if the matched halves have different names. */
bool tern_xfer_clashes(const struct tern_xfer *x, const struct tern_name *theirs);
/* Withdraws the region, then ends the xfer. */
void tern_xfer_end(struct tern_xfer *x, int status);
/* Ends the xfer: nothing accesses its memory any more. */
void tern_xfer_complete(struct tern_xfer *x, int status);
void tern_rdv_run_completed(struct tern_rdv *rdv);

/* ids.c */
int tern_xfer_id(struct tern_xfer *x); /* gives it an id; -EAGAIN: 65535 ids are in use */
void tern_xfer_forget_id(struct tern_xfer *x);
struct tern_xfer *tern_xfer_by_id(struct tern_peer *peer, uint32_t id);
/* Records that a send writes into the peer's receive `id`. */
void tern_xfer_write_into(struct tern_xfer *x, uint32_t id);
/* The send that writes into the peer's receive `id`; NULL: none. */
struct tern_xfer *tern_xfer_by_their_id(struct tern_peer *peer, uint32_t id);

/* pump.c */
/* Queues a message of this xfer behind those of all others of the peer. */
void tern_xfer_pend(struct tern_xfer *x);
/* Takes a credit if more than `keep` are left. */
bool tern_peer_credit(struct tern_peer *peer, uint32_t keep);
void tern_peer_pump_now(struct tern_peer *peer);
/* Lets everything proceed that can. */
static inline void tern_peer_pump(struct tern_peer *peer)
{
	if (tern_peer_has_unsaid(peer) || tern_want_is_due(peer) ||
		!tern_list_empty(&peer->pump.writing[0]) ||
		!tern_list_empty(&peer->pump.writing[1]) || peer->fin_wanted ||
		peer->fin_received)
		tern_peer_pump_now(peer);
}

/* record.c */
int tern_records_init(struct tern_rdv *rdv, uint32_t shared_count); /* -ENOMEM */
void tern_records_fini(struct tern_rdv *rdv);
/* Allocates the records of one more peer, without reserving them. -ENOMEM. */
int tern_records_spare(struct tern_rdv *rdv);
/* Reserves TERN_CREDIT_OWN records for a new peer and increments peer_count, before
 * its first message; release undoes that. */
int tern_records_reserve(struct tern_peer *peer); /* -ENOMEM */
void tern_records_release(struct tern_peer *peer);
/* Reserves one record for the answer to a WANT, and increments wanted_count. -ENOMEM. */
int tern_records_want(struct tern_rdv *rdv);
struct tern_record *tern_record_new(
	struct tern_peer *peer, const struct tern_header *header);
void tern_record_free(struct tern_record *record);
/* Record of the peer's request `id`; NULL: none. */
struct tern_record *tern_record_by_id(struct tern_peer *peer, bool is_recv, uint32_t id);
void tern_record_answer(struct tern_record *record, uint8_t type, int status);
/* Match the xfer with a record, and separate them: part returns the record, or NULL. */
void tern_xfer_meet(struct tern_xfer *x, struct tern_record *record);
struct tern_record *tern_xfer_part(struct tern_xfer *x);
static inline unsigned char *tern_record_payload(const struct tern_record *record)
{
	return record->payload;
}

/* send.c */
void tern_send_begin(struct tern_xfer *x);
bool tern_send_readable(struct tern_xfer *x);
/* -EAGAIN: no room now; -ENOBUFS: needs a credit. */
int tern_send_advance(struct tern_xfer *x);
/* Issues puts. -EAGAIN: no room; -EINPROGRESS: waits for its rails, or for its region. */
int tern_send_write(struct tern_xfer *x);
/* Queues a send in WRITING for tern_send_write(). */
void tern_send_resume(struct tern_xfer *x);
/* Sorts WRITING sends into their lists again. */
void tern_send_sort(struct tern_peer *peer);
void tern_send_cancel(struct tern_xfer *x);
void tern_send_acked(struct tern_peer *peer);
void tern_send_forget_sent(struct tern_peer *peer, uint32_t ack);
void tern_send_lost(struct tern_xfer *x);
int tern_send_on_post(struct tern_peer *peer, const struct tern_header *header);
int tern_send_on_cts(struct tern_peer *peer, const struct tern_header *header);
int tern_send_on_ats(struct tern_peer *peer, const struct tern_header *header);
void tern_send_settled(struct tern_xfer *x); /* a rail has confirmed */

/* recv.c */
void tern_recv_begin(struct tern_xfer *x);
int tern_recv_advance(struct tern_xfer *x);
void tern_recv_cancel(struct tern_xfer *x);
void tern_recv_lost(struct tern_xfer *x);
int tern_recv_on_eager(struct tern_peer *peer, const struct tern_header *header);
int tern_recv_on_rts(struct tern_peer *peer, const struct tern_header *header);
int tern_recv_on_done(struct tern_peer *peer, const struct tern_header *header);
/* All bytes of a receive are on the GPU (status 0), or the copy has failed. */
void tern_recv_landed(struct tern_xfer *x, int status);
void tern_xfer_release(struct tern_xfer *x);
void tern_rdv_feed(struct tern_rdv *rdv); /* lets receives in rdv->hungry try again */

/* want.c */
/* Nothing has arrived for x: it may send a WANT. */
void tern_want_later(struct tern_xfer *x);
void tern_want_pump(struct tern_peer *peer); /* sends the WANTs that may be sent */
/* x leaves the table: the next receive may send a WANT. */
void tern_want_leave(struct tern_xfer *x);
void tern_want_end(struct tern_peer *peer); /* the peer will answer no WANT any more */
/* The receive `id`, whose WANT is now answered; NULL: it has sent none. */
struct tern_xfer *tern_want_answered(struct tern_peer *peer, uint32_t id);
int tern_want_say_misses(struct tern_peer *peer); /* -EAGAIN */
/* Sends HAVE if the peer waits for one; -EAGAIN. */
int tern_want_say_have(struct tern_xfer *x);
/* Looks at a received header while `watching` is set. */
void tern_want_watch(struct tern_peer *peer, const struct tern_header *header);
/* A send that a WANT asked for ends without a message. */
void tern_want_withdraw(struct tern_xfer *x);
int tern_want_on_want(struct tern_peer *peer, const struct tern_header *header);
int tern_want_on_have(struct tern_peer *peer, const struct tern_header *header);
int tern_want_on_miss(struct tern_peer *peer, const struct tern_header *header);

/* cancel.c */
int tern_on_cancel(struct tern_peer *peer, const struct tern_header *header);
int tern_on_cancel_ack(struct tern_peer *peer, const struct tern_header *header);
int tern_cancel_say(struct tern_xfer *x);

/* renew.c */
void tern_renew_lost(struct tern_peer *peer);
void tern_renew_move(struct tern_peer *peer, struct tern_port *port);
void tern_renew_begin(struct tern_peer *peer);
/* 1: one RENEW was sent; 0: none is left; -EAGAIN. */
int tern_renew_next(struct tern_peer *peer);
int tern_renew_retained(struct tern_peer *peer, struct tern_retained *e);
int tern_on_renew(struct tern_peer *peer, const struct tern_header *header);

#endif
