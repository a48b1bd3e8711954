/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the rendezvous layer: what its files share.
 *
 *     link     one fabric connection and its handshake                        hello.c
 *     peer     a session: survives its links; numbers messages, keeps what the other
 *              has not acknowledged, comes back with a new epoch
 *                                                  session.c dial.c stream.c alive.c
 *     channel  a name space of keys on a peer                                channel.c
 *     xfer     one half of a rendezvous, inside the caller's tern_req
 *                                                             xfer.c send.c recv.c
 *     stage    what an xfer needs where the fabric does not reach its memory   stage.c
 *     direct   the same where it reaches memory of a GPU                      direct.c
 *     lend     what the other end's GPU copies from where it is                  lend.c
 *     want     receives that ask for what a send without a credit holds        want.c
 *     record   a message of the peer's that waits for our half, or our answer to it
 *
 * Regions belong to a link: on the next one, perhaps of another fabric, they are told
 * anew (renew.c).
 *
 * Everything runs on the context's thread. docs/protocol.md tells how the halves pair.
 */
#ifndef TERN_RENDEZVOUS_RENDEZVOUS_H
#define TERN_RENDEZVOUS_RENDEZVOUS_H

#include <tern/channel.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/map.h"
#include "rendezvous/address.h"
#include "rendezvous/credit.h"
#include "rendezvous/key.h"
#include "rendezvous/match.h"
#include "rendezvous/retain.h"
#include "rendezvous/wire.h"
#include "transport/context.h"
#include "transport/stager.h"

#define TERN_RAILS_MAX   9u /* 8, and the main link where it is none of them */
#define TERN_RAIL_ECHOES 512u

/* ---- the layer, one per context ---- */

struct tern_rdv {
	struct tern_context *ctx;
	uint64_t incarnation;
	struct tern_match_secret match_secret;
	struct tern_list peers, links, listeners;
	struct tern_list half_open; /* the links of the count below, oldest first */
	uint32_t limbo_count;       /* see session.c */
	uint32_t half_open_count;   /* accepted links that have not proved themselves */

	struct tern_list completed; /* xfers whose done() is to run */
	struct tern_deferred complete_call;
	uint64_t ending_ns;      /* when its context was freed */
	bool said_who_reads;     /* listen.c */
	struct tern_map tokens;  /* the peers that came to us, by token */
	struct tern_list held;   /* as that of a peer, of peers that are gone */
	struct tern_list hungry; /* receives that wait for room in their pool */
	struct tern_timer feed_timer;
	struct tern_list bounceless; /* stage.c: xfers that wait for a bounce buffer */
	struct tern_deferred bounce_call;
	struct tern_timer bounce_timer;

	struct tern_list record_slabs; /* record.c */
	struct tern_list free_records;
	uint32_t record_count, peer_count;
	uint32_t wanted_count; /* records of WANTs: kept free, or of what answered one */
	struct tern_credit_pool credits;
};

static inline struct tern_rdv *tern_rdv_of(struct tern_context *ctx)
{
	return ctx->user.arg;
}

/* ---- links ---- */

/*
 *     dialler:   DIALLING -up-> WAIT_ANSWER -step 2-> UP
 *     acceptor:  WAIT_HELLO -step 1-> (WAIT_OLD ->) WAIT_PROOF -step 3-> UP
 *     any:       -> CLOSING -closed-> gone
 */
enum tern_link_state {
	TERN_LINK_DIALLING,
	TERN_LINK_WAIT_ANSWER,
	TERN_LINK_WAIT_HELLO,
	TERN_LINK_WAIT_OLD, /* the session's old link must be gone before the answer */
	TERN_LINK_WAIT_PROOF,
	TERN_LINK_UP,
	TERN_LINK_CLOSING,
};

struct tern_link {
	struct tern_list node;    /* rdv->links */
	struct tern_list of_peer; /* peer->links */
	struct tern_rdv *rdv;
	struct tern_conn *conn;
	enum tern_link_state state;
	struct tern_peer *peer; /* acceptor: NULL until step 1 told whose it is */
	struct tern_listener *listener;
	uint8_t rail;   /* 0: the main one */
	uint8_t unsaid; /* the step of a HELLO that found no room; 0: none */
	bool counted;   /* in rdv->half_open and its count */
	struct tern_list half_open;
	uint64_t late_ns; /* counted: when even without pressure its time is over */
	bool over;        /* its peer was told; `closed` is still to come */
	int verdict;      /* a status that outranks the one of `closed`; 0: none */
	uint32_t epoch;   /* proposed in step 1 */
	struct tern_hello theirs;
	uint8_t nonce[16];
	struct tern_timer timer; /* the handshake's limit */
	uint32_t *echoes;        /* rail.c: TERN_RAIL_ECHOES; NULL until first used */
	uint32_t echo_first, echo_count;
};

/* hello.c */
struct tern_link *tern_link_new(
	struct tern_rdv *rdv, struct tern_conn *conn, enum tern_link_state state);
void tern_link_hello(struct tern_link *link); /* sends step 1: a dialled link is up */
int tern_link_handshake(struct tern_link *link, const void *message, size_t bytes);
void tern_link_answer(struct tern_link *link); /* sends step 2 */
void tern_link_close(struct tern_link *link, int verdict, bool flush);
void tern_link_free(struct tern_link *link);
void tern_link_writable(struct tern_link *link); /* during the handshake */
/* May it be one (NULL: none)? -EINVAL: empty; -ENOTSUP: built without OpenSSL. */
int tern_secret_check(const char *secret);
int tern_secret_copy(char **to, const char *secret); /* -ENOMEM */
void tern_secret_free(char *secret);                 /* leaves no copy in memory */

/* ---- peers ---- */

/*
 *     START -handshake done-> UP <-> LOST -time is up, refused, or the process is gone->
 *     DOWN; from any state DOWN when freed. FIN is a detail of UP.
 */
enum tern_peer_state {
	TERN_PEER_STATE_START,
	TERN_PEER_STATE_UP,
	TERN_PEER_STATE_LOST,
	TERN_PEER_STATE_DOWN,
};

#define TERN_CONN_PUTS 4u /* few ahead of everything else: messages wait behind them */

struct tern_put_op {
	struct tern_op op;
	struct tern_xfer *xfer;       /* NULL: free */
	struct tern_stage_slot *slot; /* what it is put from; NULL: the tensor itself */
	uint64_t bytes;
};

/* An announced send that the peer may not have seen when it posted. */
struct tern_sent {
	struct tern_match_node node;
	uint32_t seq;
};
#define TERN_SENT_MAX TERN_CREDIT_MAX

/* WANTs that may be without an answer. */
#define TERN_WANTS_MAX 16u

/* A request id on the wire is generation << 16 | slot; generations start at 1. */
struct tern_slot {
	struct tern_xfer *xfer; /* NULL: free */
	uint32_t next;          /* of the free ones */
	uint16_t generation;
};

struct tern_peer {
	struct tern_list node;
	struct tern_rdv *rdv;
	struct tern_port *port; /* of the fabric that it was reached by */
	bool pumping, serving_starved;
	struct tern_peer_opts opts;
	char own_name[64], name[192];
	char address[80]; /* of the conn: `name` keeps that of the first one */
	char *secret; /* NULL: the context's */
	enum tern_peer_state state;
	bool dialler;
	bool accepted; /* acceptor: the user has been told of it */
	bool freed;    /* the user is done with it: no more events */
	bool in_limbo;
	bool finished; /* DOWN, and nothing of it is left */
	bool suspect;
	bool fin_wanted, fin_sent, fin_received;
	int cause; /* why it is lost or down */
	/* See dial.c: */
	uint32_t lost_acked, lost_rx_seq, fruitless, fruitless_parts;
	uint64_t fruitless_ns; /* since when */

	struct tern_candidates candidates; /* dialler: addresses to try, in order */
	unsigned candidate, home; /* the one in use; the first that it came up on */
	unsigned tried;           /* one after the other without success */
	unsigned refused;         /* a bit for each that refused the first connection */
	uint64_t give_up_ns;
	uint64_t backoff_ns;
	uint64_t up_ns;      /* when the link came up */
	bool redial_at_once; /* the lost link was of use */
	struct tern_timer retry;

	uint64_t token, their_incarnation;
	struct tern_map_node by_token; /* acceptor: rdv->tokens */
	uint32_t epoch;
	struct tern_link *link;                  /* the one in use: NULL unless UP */
	struct tern_link *rails[TERN_RAILS_MAX]; /* [0] is not used; NULL: not up */
	uint64_t bulk_bytes; /* the link's, of the last one if there is none: fabric.h */
	bool bulk;           /* a tensor of so many bytes has been met */
	uint32_t rail_failures;  /* in a row; */
	uint64_t rails_after_ns; /* no rail is dialled before then */
	struct tern_list links;  /* of it, in any state: the main one, rails, and what
				    is closing */
	uint32_t link_count;
	uint32_t over_count; /* ... of which only readers in place are left */
	const char *fabric_name;

	/* The stream: stream.c */
	uint32_t tx_seq, acked;    /* last given out; last acknowledged */
	uint32_t rx_seq, told_ack; /* last handled; last that the peer was told */
	uint64_t untold_bytes;
	struct tern_retain retain;
	struct tern_list wait_ack; /* sends in order of their DONE's seq */
	struct tern_credit_tx credit_tx;
	struct tern_credit_rx credit_rx;
	bool ack_due, starved_told;
	uint8_t pings_due; /* stream.c: that found no room */
	bool renewed_last; /* stream.c: now it is the turn of what is sent again */
	struct tern_deferred tell_call;
	struct tern_timer tick;
	bool heard;              /* anything, since the last tick */
	bool stirred;            /* something else than PINGs moved since */
	bool pinged;             /* a PING waits for something to be heard */
	bool drowsy;             /* the next tick is later than while something moves */
	uint64_t silent_ns;      /* since it was asked and has not answered */
	uint64_t quiet_since_ns; /* when something else than PINGs moved last */
	uint64_t tended_ns;      /* when what is due now and then was done last */
	struct tern_deferred end_call; /* FIN, or the last things of DOWN */

	/* Halves that wait, move, or are answered. */
	struct tern_match match;
	struct tern_list xfers;    /* all of them, in the order of their posting */
	struct tern_list renewals; /* renew.c: whose regions are to be told anew */
	struct tern_list held;     /* receives that ended and were not released */
	uint32_t send_count, landing_count; /* in xfers */
	bool receives_over; /* FIN was received, and receives without a sender ended */
	/* By the peer's ids: records of RTS and POST, and sends that write into its
	 * memory. See tern_theirs_key(). */
	struct tern_map theirs;
	struct tern_list pending;    /* something to say, no room to say it */
	struct tern_list starved;    /* something to say that takes a credit */
	struct tern_list writing[2]; /* puts to be issued; [1]: those put apart */
	struct tern_list answers;    /* records with an answer to be sent */
	struct tern_list offering;   /* lend.c: sends whose memory the peer was offered */
	struct tern_list records;    /* all of this peer's */
	struct tern_put_op put_ops[TERN_RAILS_MAX][TERN_CONN_PUTS]; /* of each link */
	unsigned put_op_count;                                      /* in use */
	struct tern_sent *sent; /* ring of TERN_SENT_MAX; NULL until first used */
	uint32_t sent_first, sent_count;
	uint32_t arrival_count; /* records that wait for a receive */
	uint32_t copy_count;    /* of the stager, under way */

	/* want.c, as a receiver: */
	struct tern_list unasked; /* receives that may have to ask */
	uint32_t asks_out;  /* WANTs without an answer yet */
	uint32_t asks_lost; /* ... whose receive has left: nothing but a MISS is due */
	uint32_t missed_count, behind_count;
	bool they_starve; /* sends of the peer wait for credits */
	/* and as a sender: */
	bool watching; /* a receive of the peer may have missed a send: say HAVE */
	uint32_t miss_seq;
	uint32_t misses[TERN_WANTS_MAX], miss_count; /* WANTs to be answered by MISS */
	/* That tensors are staged there was logged; that they are not. */
	const struct tern_port *stage_told, *direct_told;

	struct tern_list channels;
	struct tern_slot *slots; /* requests that the peer knows by id */
	uint32_t slot_count, free_slot;
	struct tern_name_key name_key;
	uint32_t eager_bytes;        /* negotiated */
	uint32_t eager_mapped_bytes; /* of what we send from slabs; at most eager_bytes */
	struct tern_peer_stats stats;
};

/* session.c */
struct tern_peer *tern_peer_new(struct tern_rdv *rdv, const struct tern_peer_opts *opts);
void tern_peer_link_up(struct tern_peer *peer, struct tern_link *link);
/* It is the peer's from now on. */
void tern_peer_add_link(struct tern_peer *peer, struct tern_link *link);
/* The token of one that came to us. */
void tern_peer_set_token(struct tern_peer *peer, uint64_t token);
/* Nothing comes over the link any more; and then, perhaps later, nobody reads memory in
 * place that was shown over it. */
void tern_peer_link_over(struct tern_peer *peer, struct tern_link *link, int status);
void tern_peer_link_closed(struct tern_peer *peer);
/* The end: every request ends with `status`, the links are cut. */
void tern_peer_down(struct tern_peer *peer, int status);
/* Cuts the link because the peer broke the protocol or a rule of ours. */
void tern_peer_cut(struct tern_peer *peer, int status);
/* Tells the log, and the user. */
void tern_peer_report(struct tern_peer *peer, enum tern_peer_event event, int status);
/* The last copy of the stager for it has ended. */
void tern_peer_settled(struct tern_peer *peer);
/* Something ended: perhaps it was the last before a FIN. */
void tern_peer_maybe_finish(struct tern_peer *peer);
struct tern_peer *tern_peer_by_token(
	struct tern_rdv *rdv, uint64_t token, uint64_t incarnation);
void tern_peer_destroy(struct tern_peer *peer);
static inline uint32_t tern_peer_first_seq(const struct tern_peer *peer)
{
	return peer->rdv->ctx->first_seq;
}

/* It does not come back. That is no loss if all that we said was heard, or if it had said
 * goodbye after all that it wanted to say. */
void tern_peer_give_up(struct tern_peer *peer, int status);
static inline uint64_t tern_peer_now_ns(const struct tern_peer *peer)
{
	return tern_now_ns(peer->rdv->ctx->env);
}
static inline void tern_peer_set_timer(
	struct tern_peer *peer, struct tern_timer *timer, uint64_t in_ns)
{
	tern_timer_set(peer->rdv->ctx, timer, tern_ns_add(tern_peer_now_ns(peer), in_ns));
}

/* dial.c */
void tern_dial(struct tern_peer *peer); /* the address whose turn it is, now */
/* An attempt has ended: another address, a pause, or the end. */
void tern_dial_failed(struct tern_peer *peer, int status);
/* No attempt at this address will end differently. */
bool tern_dial_is_final(int status);
/* How long the dialler waits for the link that it tries now. */
uint64_t tern_peer_attempt_until(const struct tern_peer *peer);
/* The link that was in use has ended, and nobody meant it to. */
void tern_dial_lost(struct tern_peer *peer, int status);
/* Nothing of the old epoch is left: what it carried starts over, and so may the link. */
void tern_dial_again(struct tern_peer *peer);

/* alive.c */
void tern_peer_tick(struct tern_timer *timer);
/* Of one whose conn is up: asks, and tells whether the peer's host has not answered for
 * too long. */
bool tern_link_is_unreachable(const struct tern_link *link);
/* The same of one on which an answer of the peer's program is due: may it be waited for
 * longer, because the host answers and silence is allowed? */
bool tern_link_awaits_program(const struct tern_link *link);
/* The handshake on `link` takes long. Is there reason to wait on? */
bool tern_peer_is_patient(struct tern_peer *peer, const struct tern_link *link);
void tern_peer_pinged(struct tern_peer *peer); /* it asked, or answered */
/* From now on it is looked after as while something moves. */
void tern_peer_wake(struct tern_peer *peer);
/* Something moves, or is asked for. */
static inline void tern_peer_stir(struct tern_peer *peer)
{
	peer->stirred = true;
	if (tern_unlikely(peer->drowsy))
		tern_peer_wake(peer);
}

/* stream.c */
/*
 * Says something: numbers it, keeps it until it is acknowledged, gives it to the fabric.
 * -EAGAIN: no room now, or no link; tern_peer_pump will be called when there is.
 * `header`: its counters are filled in. `xfer`: of a DONE, so that its puts can be
 * repeated; else NULL.
 */
int tern_stream_send(struct tern_peer *peer, struct tern_header *header,
	const void *payload, struct tern_xfer *xfer);
int tern_stream_receive(struct tern_peer *peer, const void *message, size_t bytes);
void tern_stream_up(struct tern_peer *peer, uint32_t their_rx_seq);
void tern_stream_lost(struct tern_peer *peer);
int tern_stream_flush(struct tern_peer *peer);       /* -EAGAIN: something still waits */
bool tern_stream_busy(const struct tern_peer *peer); /* unacknowledged or waiting */
void tern_stream_tell(struct tern_peer *peer);       /* ack and credit, soon */
int tern_stream_ack(struct tern_peer *peer); /* at once, if there is news; -EAGAIN */
/* Now, or as soon as there is room. */
void tern_stream_ping(struct tern_peer *peer, bool reply);
/* Without a number, at once, before what waits. -EAGAIN: no room. */
int tern_stream_bare(struct tern_peer *peer, struct tern_header *header);

/* ---- channels and transfers ----------------------------------------------------------
 */

struct tern_channel {
	struct tern_list node;
	struct tern_peer *peer;
	uint32_t number;
};

/*
 *     send:     QUEUED -> { (eager) | ANNOUNCED -> (read by the peer) | [POST, CTS]
 * WRITING -> FINISHING -> UNACKED } -> ENDED receive:  POSTED -> { (eager) | ADVERTISED |
 * ALLOCATING | PEEKING | READING | ANSWERING -> FILLING } -> (LANDING ->) ENDED both: ->
 * FLUSHING (bytes may still land, or a copy of the stager is under way) -> ENDED; a
 * peeked receive is HELD after its end until it is released
 */
enum tern_xfer_state {
	TERN_XFER_QUEUED,     /* send: not announced yet */
	TERN_XFER_ANNOUNCED,  /* send: RTS is out */
	TERN_XFER_WRITING,    /* send: puts are being issued */
	TERN_XFER_FINISHING,  /* send: DONE is to be said */
	TERN_XFER_UNACKED,    /* send: DONE is out */
	TERN_XFER_POSTED,     /* receive: waits in the table */
	TERN_XFER_ADVERTISED, /* receive: POST is out */
	TERN_XFER_ALLOCATING, /* receive: matched, its pool is empty */
	TERN_XFER_PEEKING,    /* receive: the fabric makes the peer's memory readable */
	TERN_XFER_READING,    /* receive: get */
	TERN_XFER_ANSWERING,  /* receive: CTS is to be said */
	TERN_XFER_FILLING,    /* receive: CTS is out */
	TERN_XFER_LANDING,    /* receive: all is here, and goes to the device */
	TERN_XFER_FLUSHING,
	TERN_XFER_HELD,
	TERN_XFER_ENDED,
	TERN_XFER_STATE_COUNT
};

/* What a receive that nothing has arrived for asked the peer: see want.c. */
enum tern_ask {
	TERN_ASK_NONE,
	TERN_ASK_OUT,    /* WANT is out */
	TERN_ASK_MISSED, /* the peer had nothing, and will say HAVE */
};

/* What an xfer whose memory is a GPU's has in addition: see stage.c. */
struct tern_stage {
	struct tern_stager *stager;  /* NULL: its memory is the host's, or it is empty */
	struct tern_stage_wait wait; /* for a slot */
	struct tern_list slots;      /* that it holds, in the order of the tensor */
	struct tern_buf bounce;      /* mem NULL: none */
	struct tern_copy copy; /* of all of it: between bounce and device, or lent */
	struct tern_loan loan; /* receive: what it is copied from; gpu NULL: none */
	uint64_t asked;        /* bytes for which it has had slots, on this link */
	uint64_t landed;       /* bytes that are where they are to be copied to */
	uint32_t copies;       /* under way */
	int status;            /* why it fails; 0: it does not */
	uint32_t epoch;        /* of the link that `direct` is about */
	bool direct;           /* the fabric is at the memory itself: direct.c */
	bool lent;             /* send: the peer's GPU copies it where it is */
};
/* Of the host's memory, from the host's memory: nothing above was ever touched. */
static inline bool tern_stage_is_idle(const struct tern_stage *stage)
{
	return !stage->stager && !stage->loan.gpu;
}

struct tern_xfer {
	struct tern_list all;        /* peer->xfers, then rdv->held */
	struct tern_list queue;      /* the one list that its state waits in */
	struct tern_list renewal;    /* peer->renewals */
	struct tern_map_node theirs; /* send: peer->theirs, by remote_id */
	struct tern_match_node node;
	struct tern_channel *channel;
	struct tern_peer *peer; /* NULL: HELD, and the peer is gone */
	struct tern_rdv *rdv;
	struct tern_port *port;     /* HELD: whose memory is being read */
	struct tern_buf buf;        /* send: data; receive: room */
	struct tern_region region;  /* own while `exposed`, else the peer's */
	struct tern_op op;          /* get, peek, withdraw: one at a time */
	struct tern_record *record; /* receive: the RTS (or EAGER) that it met */
	struct tern_name name;
	uint64_t issued; /* bytes given to put or get in this epoch */
	uint32_t id, remote_id, done_seq, puts_out;
	struct tern_stage stage;
	struct tern_pool *pool; /* receive with ALLOC: where buf is from */
	int result;             /* what it ends with, when that is already known */
	uint8_t state;          /* enum tern_xfer_state */
	uint8_t flags;          /* enum tern_req_flags */
	uint8_t rail;           /* whose turn it is; and sets of rails: */
	uint16_t rails_used, rails_asked, rails_confirmed;
	bool is_send, exposed, cancelled, cancel_told, acked;
	uint8_t ask;     /* receive: enum tern_ask */
	bool behind;     /* receive: it asks when it is the oldest of its triple */
	bool starving;   /* send: it stands in peer->starved */
	uint32_t wanted; /* send: the receive that asked for it; 0: none */
	/* renew.c: the peer knows a region of ours; the peer's region, in `region`, is of
	 * an earlier link. */
	bool told, stale;
	bool withdrawing; /* FLUSHING, and the fabric will say when it is done */
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
	struct tern_list all;        /* peer->records; free: rdv->free_records */
	struct tern_list queue;      /* peer->answers */
	struct tern_map_node theirs; /* RTS, POST: peer->theirs, by src */
	struct tern_peer *peer;
	struct tern_xfer *xfer; /* the receive that it met: xfer->record is this one */
	unsigned char *payload; /* room for the data of one EAGER */
	struct tern_shape shape;
	struct tern_region region;
	struct tern_name name;
	uint64_t bytes;
	uint32_t src;
	uint8_t type;   /* EAGER, RTS, POST */
	uint8_t answer; /* ATS or CANCEL_ACK: what is to be said */
	bool has_region;
	bool stale;     /* the region is of an earlier link */
	bool wanted;    /* it answered a WANT: no credit was taken for it */
	int16_t status; /* of the answer */
};

/* What a request of the peer's is known by here. It can be known twice, as a record and,
 * if it is a receive, as the send that writes into it. */
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
void tern_xfer_enter(struct tern_xfer *x, enum tern_xfer_state next);
/* Waits for its turn to say something: behind all others of the peer. */
void tern_xfer_pend(struct tern_xfer *x);
/* Takes back what it exposed. -EINPROGRESS: it is FLUSHING now and ends with `status`. */
int tern_xfer_withdraw(struct tern_xfer *x, int status);
/* Says, if it is so, that the other half that it meets has another name. */
bool tern_xfer_clashes(const struct tern_xfer *x, const struct tern_name *theirs);
/* Withdraws, then ends it. */
void tern_xfer_end(struct tern_xfer *x, int status);
/* It meets the message of the peer's / gives it back: it may be NULL. */
void tern_xfer_meet(struct tern_xfer *x, struct tern_record *record);
struct tern_record *tern_xfer_part(struct tern_xfer *x);
/* A send is to write into the peer's receive `id`. */
void tern_xfer_write_into(struct tern_xfer *x, uint32_t id);
int tern_xfer_id(struct tern_xfer *x); /* gives it an id. -EAGAIN: 65535 are in use */
struct tern_xfer *tern_xfer_by_id(struct tern_peer *peer, uint32_t id);
int tern_xfer_expose(struct tern_xfer *x, enum tern_access access);

/* Does anybody wait to say something? Whoever comes now has to stand behind them. */
static inline bool tern_peer_has_unsaid(const struct tern_peer *peer)
{
	return !tern_list_empty(&peer->pending) || !tern_list_empty(&peer->answers) ||
	       !tern_list_empty(&peer->starved) || !tern_list_empty(&peer->renewals) ||
	       peer->pings_due || peer->miss_count ||
	       peer->retain.sent_count < peer->retain.count;
}

/* Has a receive to ask, and may it? The peer has used all that it was granted, and waits.
 */
static inline bool tern_want_is_due(const struct tern_peer *peer)
{
	return peer->they_starve && !tern_list_empty(&peer->unasked) &&
	       peer->credit_rx.granted == peer->credit_rx.received &&
	       peer->asks_out < TERN_WANTS_MAX;
}

void tern_peer_pump_now(struct tern_peer *peer);
/* Lets move what can. */
static inline void tern_peer_pump(struct tern_peer *peer)
{
	if (tern_peer_has_unsaid(peer) || tern_want_is_due(peer) ||
		!tern_list_empty(&peer->writing[0]) ||
		!tern_list_empty(&peer->writing[1]) || peer->fin_wanted ||
		peer->fin_received)
		tern_peer_pump_now(peer);
}

void tern_xfer_complete(
	struct tern_xfer *x, int status); /* nothing touches it any more */
void tern_rdv_run_completed(struct tern_rdv *rdv);
void tern_xfer_forget_id(struct tern_xfer *x);
bool tern_peer_credit(
	struct tern_peer *peer, uint32_t keep); /* takes one if > keep are left */
uint32_t tern_peer_caps(const struct tern_peer *peer);
struct tern_conn *tern_peer_conn(const struct tern_peer *peer);

/* The one of the peer's request `id`; NULL: none. */
struct tern_record *tern_record_by_id(struct tern_peer *peer, bool is_recv, uint32_t id);
/* The send that writes into the peer's receive `id`; NULL: none. */
struct tern_xfer *tern_xfer_by_their_id(struct tern_peer *peer, uint32_t id);
struct tern_record *tern_record_new(
	struct tern_peer *peer, const struct tern_header *header);
void tern_record_free(struct tern_record *record);
void tern_record_answer(struct tern_record *record, uint8_t type, int status);

static inline unsigned char *tern_record_payload(const struct tern_record *record)
{
	return record->payload;
}

/* record.c */
int tern_records_init(struct tern_rdv *rdv, uint32_t shared_count); /* -ENOMEM */
void tern_records_fini(struct tern_rdv *rdv);
/* The `all` of one that was never used; NULL: there is none. */
struct tern_list *tern_record_fresh(struct tern_rdv *rdv);
/* Those that one more peer brings; counts it. -ENOMEM. */
int tern_records_reserve(struct tern_rdv *rdv);
/* Keeps one free for the answer of a WANT, and counts it in wanted_count. -ENOMEM. */
int tern_records_want(struct tern_rdv *rdv);

/* send.c */
void tern_send_begin(struct tern_xfer *x);
bool tern_send_readable(struct tern_xfer *x);
int tern_send_advance(struct tern_xfer *x); /* -EAGAIN: later; -ENOBUFS: wants a credit */
/* Issues puts. -EAGAIN; -EINPROGRESS: it waits for its rails, or for its region. */
int tern_send_write(struct tern_xfer *x);
void tern_send_resume(struct tern_xfer *x);  /* WRITING: it stands in line for that */
void tern_send_sort(struct tern_peer *peer); /* where they stand may have changed */
void tern_send_cancel(struct tern_xfer *x);
void tern_send_acked(struct tern_peer *peer);
void tern_send_forget_sent(struct tern_peer *peer, uint32_t ack);
void tern_send_lost(struct tern_xfer *x);
int tern_send_on_post(struct tern_peer *peer, const struct tern_header *header);
int tern_send_on_cts(struct tern_peer *peer, const struct tern_header *header);
int tern_send_on_ats(struct tern_peer *peer, const struct tern_header *header);

/* recv.c */
void tern_recv_begin(struct tern_xfer *x);
int tern_recv_advance(struct tern_xfer *x);
void tern_recv_cancel(struct tern_xfer *x);
void tern_recv_lost(struct tern_xfer *x);
int tern_recv_on_eager(struct tern_peer *peer, const struct tern_header *header);
int tern_recv_on_rts(struct tern_peer *peer, const struct tern_header *header);
int tern_recv_on_done(struct tern_peer *peer, const struct tern_header *header);

/* want.c */
void tern_want_later(struct tern_xfer *x);   /* nothing has arrived for it: it may ask */
void tern_want_pump(struct tern_peer *peer); /* lets those ask that may */
void tern_want_leave(struct tern_xfer *x);   /* out of the table: the next one may ask */
void tern_want_end(struct tern_peer *peer);  /* nobody will answer any more */
/* The receive `id`, whose WANT is answered; NULL: it has none out. */
struct tern_xfer *tern_want_answered(struct tern_peer *peer, uint32_t id);
int tern_want_say_misses(struct tern_peer *peer); /* -EAGAIN */
int tern_want_say_have(struct tern_xfer *x);      /* if the peer is to know. -EAGAIN */
/* A header arrived while we watch. */
void tern_want_watch(struct tern_peer *peer, const struct tern_header *header);
void tern_want_withdraw(struct tern_xfer *x); /* a wanted send ends without a message */
int tern_want_on_want(struct tern_peer *peer, const struct tern_header *header);
int tern_want_on_have(struct tern_peer *peer, const struct tern_header *header);
int tern_want_on_miss(struct tern_peer *peer, const struct tern_header *header);

void tern_xfer_release(struct tern_xfer *x);
void tern_rdv_feed(struct tern_rdv *rdv); /* tries the hungry again */

/* All its bytes are on the device (0), or will not be. */
void tern_recv_landed(struct tern_xfer *x, int status);

/* stage.c */
/* What `buf` needs: NULL if it is the host's. Errors: those of tern_context_stager. */
int tern_stage_open(
	struct tern_rdv *rdv, const struct tern_buf *buf, struct tern_stager **out);
void tern_stage_init(struct tern_xfer *x);
/* On the link that there is now: does its memory have to be staged? */
bool tern_stage_needed(struct tern_xfer *x);
/* The part of its tensor that is next to be put, in host memory; NULL: the stager will
 * let it go on. */
struct tern_stage_slot *tern_stage_next(struct tern_xfer *x);
void tern_stage_put(struct tern_stage_slot *slot); /* the fabric has it */
void tern_stage_put_done(struct tern_stage_slot *slot);
/* The tensor in a bounce buffer, for the peer to read. 0: it is there; 1: it will go on;
 * or a negative status. */
int tern_stage_lay_out(struct tern_xfer *x);
/* A bounce buffer for the peer to write into. The same. */
int tern_stage_room(struct tern_xfer *x);
void tern_stage_eager(struct tern_xfer *x); /* the payload of its record; frees that */
int tern_stage_get(struct tern_xfer *x);    /* 0: under way; -EAGAIN: no room */
void tern_stage_land(struct tern_xfer *x);  /* what is in the bounce buffer */
/* What was lent, by copies of `stager`; called again for each slot that it waits for. */
void tern_stage_fetch(struct tern_xfer *x, struct tern_stager *stager);
/* It wants no slots any more. */
void tern_stage_drop(struct tern_xfer *x);
/* The link is gone: pieces start over. */
void tern_stage_lost(struct tern_xfer *x);
void tern_stage_fini(struct tern_xfer *x); /* it has ended */
void tern_rdv_stage_init(struct tern_rdv *rdv);
void tern_rdv_stage_fini(struct tern_rdv *rdv);

/* direct.c */
/* On the link that there is now: does the fabric take its bytes from memory of a GPU, or
 * bring them there? The answer stays the same as long as the link does. */
bool tern_direct_chosen(struct tern_xfer *x);
void tern_direct_started(struct tern_xfer *x); /* counts it, if it is so */
/* After the fabric has received into its memory: brings about that the GPU sees it. 0, or
 * what the request ends with. */
int tern_direct_settle(struct tern_xfer *x);

/* lend.c */
/* 0: the peer's GPU copies it from where it is; 1: it will go on; -ENOTSUP: it does not.
 */
int tern_lend_offer(struct tern_xfer *x);
void tern_lend_answered(struct tern_peer *peer); /* perhaps: those who wait ask again */
/* 0: under way, or ended; -EAGAIN; -ENOTSUP: what its record names was not lent. */
int tern_lend_get(struct tern_xfer *x);
/* Its copies have ended. -ECONNRESET: what they brought may be torn. */
int tern_lend_repay(struct tern_xfer *x);

/* cancel.c */
int tern_on_cancel(struct tern_peer *peer, const struct tern_header *header);
int tern_on_cancel_ack(struct tern_peer *peer, const struct tern_header *header);
int tern_cancel_say(struct tern_xfer *x);

void tern_send_settled(struct tern_xfer *x); /* a rail has confirmed */

/* renew.c */
void tern_renew_lost(struct tern_peer *peer);
void tern_renew_move(struct tern_peer *peer, struct tern_port *port);
void tern_renew_begin(struct tern_peer *peer);
int tern_renew_next(struct tern_peer *peer); /* 1: said one; 0: none left; -EAGAIN */
int tern_renew_retained(struct tern_peer *peer, struct tern_retained *e);
int tern_on_renew(struct tern_peer *peer, const struct tern_header *header);

/* rail.c */
void tern_rails_dial(struct tern_peer *peer);
bool tern_rail_welcome(struct tern_peer *peer, const struct tern_link *link);
void tern_rail_up(struct tern_link *link);
bool tern_rails_closed(const struct tern_peer *peer);
void tern_rails_close(struct tern_peer *peer);
/* Is a tensor of so many bytes put apart from messages, where that can be? */
static inline bool tern_is_bulk(const struct tern_peer *peer, uint64_t bytes)
{
	return peer->bulk_bytes && bytes >= peer->bulk_bytes;
}
void tern_rails_make(struct tern_peer *peer);
/* A tensor of so many bytes is about to move, either way. */
static inline void tern_rails_expect(struct tern_peer *peer, uint64_t bytes)
{
	if (tern_is_bulk(peer, bytes) && !peer->bulk)
		tern_rails_make(peer);
}
bool tern_rail_is_apart(const struct tern_xfer *x); /* now */
void tern_rail_failed(struct tern_peer *peer);
/* What the next chunk is put with, and the connection that it goes over; NULL: none has
 * room. */
struct tern_put_op *tern_rail_next(struct tern_xfer *x, struct tern_conn **conn);
int tern_rails_settle(struct tern_xfer *x);
int tern_rail_message(struct tern_link *link, const void *message, size_t bytes);
void tern_rail_writable(struct tern_link *link);

struct tern_listener {
	struct tern_list node;
	struct tern_rdv *rdv;
	struct tern_lsn *lsns[3];
	unsigned lsn_count;
	struct tern_peer_opts opts;
	char own_name[64];
	char *secret; /* NULL: the context's */
	void (*accept)(struct tern_peer *peer, void *arg);
	void *accept_arg;
	char address[128];
};

#endif
