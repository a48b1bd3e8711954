/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the rendezvous layer: declarations that its files share.
 *
 *     link     one fabric connection and its handshake                        hello.c
 *     peer     a session: survives its links; numbers messages, keeps those that the
 *              other end has not acknowledged, returns with a new epoch
 *                                                  session.c dial.c stream.c alive.c
 *     channel  a name space of keys on a peer                                channel.c
 *     xfer     one half of a rendezvous (a send or a receive), inside the caller's
 *              tern_req                                       xfer.c send.c recv.c
 *     stage    staging of an xfer whose memory the fabric does not reach       stage.c
 *     direct   transfers of GPU memory that the fabric reaches                direct.c
 *     lend     GPU memory that the other end's GPU copies directly              lend.c
 *     want     receives that ask for a send that waits for a credit             want.c
 *     record   a message of the peer that waits for our half, or for our answer
 *
 * Regions belong to a link. On the next link, perhaps of another fabric, they are
 * announced anew (renew.c).
 *
 * Everything runs on the context's thread. docs/protocol.md says how the halves are
 * matched.
 */
#ifndef TERN_RENDEZVOUS_RENDEZVOUS_H
#define TERN_RENDEZVOUS_RENDEZVOUS_H

#include <tern/channel.h>

#include <errno.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/map.h"
#include "rendezvous/address.h"
#include "rendezvous/credit.h"
#include "rendezvous/key.h"
#include "rendezvous/match.h"
#include "rendezvous/retain.h"
#include "rendezvous/wire.h"
#include "transport/admission.h"
#include "transport/context.h"
#include "transport/gpu/gpu.h"
#include "transport/gpu/stager.h"

#define TERN_RAILS_MAX   9u /* 8, and the main link if it is not one of them */
#define TERN_RAIL_ECHOES 512u

/* ---- the layer, one per context ---- */

struct tern_rdv {
	struct tern_context *ctx;
	uint64_t incarnation;
	struct tern_match_secret match_secret;
	struct tern_list peers, links, listeners;
	struct tern_admission half_open; /* accepted links, handshake not complete */
	uint32_t half_open_max;
	uint32_t refused_count; /* links with `refused` */

	struct tern_list completed; /* xfers whose done() is to run */
	struct tern_deferred complete_call;
	uint64_t ending_ns; /* time at which its context was freed */
	/* listen.c: it was logged which peer still reads our memory. */
	bool said_who_reads;
	struct tern_map tokens;  /* accepted peers, by token */
	struct tern_list held;   /* like peer->held, for peers that were freed */
	struct tern_list hungry; /* receives that wait for room in their pool */
	struct tern_timer feed_timer;
	struct tern_list bounceless; /* stage.c: xfers that wait for a bounce buffer */
	struct tern_deferred bounce_call;
	struct tern_timer bounce_timer;

	struct tern_list record_slabs; /* slabs of records: record.c */
	struct tern_list free_records;
	uint32_t record_count;
	uint32_t peer_count; /* peers that have records of their own */
	/* Records for WANTs: reserved, or used by the message that answered one. */
	uint32_t wanted_count;
	struct tern_credit_pool credits;
};

static inline struct tern_rdv *tern_rdv_of(struct tern_context *ctx)
{
	return ctx->user.arg;
}

/* ---- links ---- */

/*
 *     dialler:   DIALLING -up-> WAIT_ANSWER -step 2-> UP; the first link of a session:
 *                WAIT_ANSWER -step 2-> WAIT_WELCOME -a message-> UP
 *     acceptor:  WAIT_HELLO -step 1-> (WAIT_OLD ->) WAIT_PROOF -step 3-> UP
 *     any:       -> CLOSING -`closed`-> freed
 */
enum tern_link_state {
	TERN_LINK_DIALLING,
	TERN_LINK_WAIT_ANSWER,
	TERN_LINK_WAIT_WELCOME,
	TERN_LINK_WAIT_HELLO,
	/* Waits until the session's old link has ended, then answers. */
	TERN_LINK_WAIT_OLD,
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
	struct tern_peer *peer; /* acceptor: NULL until step 1 has told the session */
	struct tern_listener *listener;
	uint8_t rail; /* number of the rail; 0: the main link */
	/* Step of a HELLO that could not be sent for lack of room; 0: none. */
	uint8_t unsaid;
	struct tern_half_open half_open; /* in rdv->half_open */
	bool refused;   /* closing, but its refusal is still being sent */
	bool over;      /* its peer was told of the end; `closed` follows */
	int verdict;    /* status that overrides that of `closed`; 0: none */
	uint32_t epoch; /* proposed in step 1 */
	struct tern_hello theirs;
	uint8_t nonce[16];
	struct tern_timer timer; /* time limit of the handshake */
	uint32_t *echoes; /* rail.c: TERN_RAIL_ECHOES entries; NULL until first used */
	uint32_t echo_first, echo_count;
};

/* hello.c */
/* Returns the number of half-open links that a context may have if its process may
 * have `file_max` files. */
uint32_t tern_half_open_max(uint64_t file_max);
struct tern_link *tern_link_new(
	struct tern_rdv *rdv, struct tern_conn *conn, enum tern_link_state state);
/* Changes the state, by an edge of the diagram. */
void tern_link_enter(struct tern_link *link, enum tern_link_state next);
/* Sends step 1, when a dialled link is up. */
void tern_link_hello(struct tern_link *link);
int tern_link_handshake(struct tern_link *link, const void *message, size_t bytes);
void tern_link_answer(struct tern_link *link); /* sends step 2 */
/* The acceptor's first message has arrived: a link in WAIT_WELCOME goes UP. */
void tern_link_welcomed(struct tern_link *link);
void tern_link_close(struct tern_link *link, int verdict, bool flush);
void tern_link_free(struct tern_link *link);
void tern_link_writable(struct tern_link *link); /* continues the handshake */
/* Logs that there is no memory for the records of the link's peer. Returns -ENOMEM,
 * with which the dialler goes on trying. */
int tern_link_lacks_memory(const struct tern_link *link);
/* Checks a secret (NULL: none). -EINVAL: empty; -ENOTSUP: built without OpenSSL. */
int tern_secret_check(const char *secret);
int tern_secret_copy(char **to, const char *secret); /* -ENOMEM */
void tern_secret_free(char *secret);                 /* erases it from memory */

/* ---- peers ---- */

/*
 *     START --handshake done--> UP <----------> LOST
 *       |                       |  link lost,     |
 *       |                       |  link back      |
 *       +-----------------------+-----------------+--> DOWN
 *
 * LOST -> DOWN: the time to reconnect has passed, the peer refused, or its process has
 * ended. Freeing a peer in any state makes it DOWN. An orderly goodbye (FIN) takes place
 * in UP.
 */
enum tern_peer_state {
	TERN_PEER_STATE_START,
	TERN_PEER_STATE_UP,
	TERN_PEER_STATE_LOST,
	TERN_PEER_STATE_DOWN,
};

/* Puts in flight per link: few, since messages wait behind them. */
#define TERN_CONN_PUTS 4u

struct tern_put_op {
	struct tern_op op;
	struct tern_xfer *xfer;       /* NULL: free */
	struct tern_stage_slot *slot; /* source of the put; NULL: the tensor itself */
	uint64_t bytes;
};

/* An EAGER or RTS that the peer may not have seen when it sent a POST. */
struct tern_sent {
	struct tern_match_node node;
	uint32_t seq;
};
#define TERN_SENT_MAX TERN_CREDIT_MAX

/* Largest number of WANTs without an answer. */
#define TERN_WANTS_MAX 16u

/* A slot of request ids. An id on the wire is generation << 16 | slot; generations
 * start at 1. */
struct tern_slot {
	struct tern_xfer *xfer; /* NULL: free */
	uint32_t next;          /* next free slot */
	uint16_t generation;
};

struct tern_peer {
	struct tern_list node;
	struct tern_rdv *rdv;
	struct tern_port *port; /* port of the fabric of its connection */
	bool pumping, serving_starved;
	struct tern_peer_opts opts;
	char own_name[64], name[192];
	/* Of the present connection; `name` keeps that of the first one. */
	char address[80];
	char *secret; /* NULL: that of the context */
	enum tern_peer_state state;
	bool dialler;
	bool accepted;    /* acceptor: the user's accept() was called */
	bool in_accept;   /* accept() is running */
	bool has_records; /* it is counted in rdv->peer_count: record.c */
	bool freed;       /* freed by the user: no more events */
	bool finished;    /* DOWN, and nothing of it is left */
	bool suspect;
	bool fin_wanted, fin_sent, fin_received;
	int cause; /* reason of LOST or DOWN */
	/* See dial.c: */
	uint32_t lost_acked, lost_rx_seq, fruitless, fruitless_parts;
	uint64_t fruitless_ns; /* start of the present series of fruitless links */

	struct tern_candidates candidates; /* dialler: addresses to try, in order */
	unsigned candidate, home; /* address in use; first address on which it came up */
	unsigned tried;           /* consecutive addresses tried without success */
	unsigned refused; /* bit set of the addresses that refused the first connection */
	uint64_t give_up_ns;
	uint64_t backoff_ns;
	uint64_t up_ns;      /* time at which the link came up */
	bool redial_at_once; /* the lost link had carried something */
	struct tern_timer retry;

	uint64_t token, their_incarnation;
	struct tern_map_node by_token; /* acceptor: node in rdv->tokens */
	uint32_t epoch;
	struct tern_link *link;                  /* the main link; NULL unless UP */
	struct tern_link *rails[TERN_RAILS_MAX]; /* [0] is not used; NULL: not up */
	/* bulk_bytes of the link, or of the last one if there is none: fabric.h. */
	uint64_t bulk_bytes;
	bool bulk;               /* a tensor of at least that size was transferred */
	uint32_t rail_failures;  /* consecutive rail failures */
	uint64_t rails_after_ns; /* earliest time of the next dial of a rail */
	/* All its links in any state: the main link, rails, and closing ones. */
	struct tern_list links;
	uint32_t link_count;
	/* Links that have ended but whose memory is still read in place. */
	uint32_t over_count;
	const char *fabric_name;

	/* The stream: stream.c */
	/* Seq of the last message sent, and the last one acknowledged. */
	uint32_t tx_seq, acked;
	/* Seq of the last message handled, and the last ack that was sent. */
	uint32_t rx_seq, told_ack;
	uint64_t untold_bytes;
	struct tern_retain retain;
	/* Sends that wait for the ack of their DONE, in the order of its seq. */
	struct tern_list wait_ack;
	struct tern_credit_tx credit_tx;
	struct tern_credit_rx credit_rx;
	bool ack_due, starved_told;
	uint8_t pings_due; /* PINGs that could not be sent for lack of room: stream.c */
	/* The next turn belongs to messages that are sent again: stream.c. */
	bool renewed_last;
	struct tern_deferred tell_call;
	struct tern_timer tick;
	bool heard; /* something was received since the last tick */
	/* Something other than PINGs was sent or received since the last tick. */
	bool stirred;
	bool pinged;        /* a PING was sent and nothing was received since */
	bool drowsy;        /* idle: ticks come less often */
	uint64_t silent_ns; /* duration of the silence since a PING was not answered */
	uint64_t quiet_since_ns; /* time of the last message other than a PING */
	uint64_t tended_ns;      /* time of the last periodic upkeep (credits, rails) */
	struct tern_deferred end_call; /* sends FIN, or finishes DOWN */

	/* Transfers and records. */
	struct tern_match match;
	struct tern_list xfers; /* all xfers of the peer, in the order of posting */
	/* Transfers whose region must be announced anew: renew.c. */
	struct tern_list renewals;
	struct tern_list held; /* receives that have ended and were not released */
	uint32_t send_count, landing_count; /* numbers among xfers */
	/* FIN was received, and the receives without a sender have ended. */
	bool receives_over;
	/* By ids of the peer's requests: records of RTS and POST, and sends that write
	 * into the peer's memory. See tern_theirs_key(). */
	struct tern_map theirs;
	struct tern_list pending; /* xfers with a message to send but no room for it */
	struct tern_list starved; /* xfers with a message that needs a credit */
	/* Transfers with puts to issue; [1]: those on bulk connections. */
	struct tern_list writing[2];
	struct tern_list answers; /* records with an answer to be sent */
	/* Sends whose memory was offered to the peer: lend.c. */
	struct tern_list offering;
	struct tern_list records; /* all records of this peer */
	struct tern_put_op put_ops[TERN_RAILS_MAX][TERN_CONN_PUTS]; /* by link */
	unsigned put_op_count;                                      /* number in use */
	struct tern_sent *sent; /* ring of TERN_SENT_MAX; NULL until first used */
	uint32_t sent_first, sent_count;
	uint32_t arrival_count; /* records that wait for a receive */
	uint32_t copy_count;    /* copies of the stager under way */

	/* want.c, for our receives: */
	struct tern_list unasked; /* receives that may have to send a WANT */
	uint32_t asks_out;        /* WANTs without an answer yet */
	uint32_t asks_lost; /* WANTs whose receive has ended: only a MISS can answer */
	uint32_t missed_count, behind_count;
	bool they_starve; /* sends of the peer wait for credits */
	/* want.c, for our sends: */
	/* A receive of the peer has been answered by MISS: send HAVE when a send
	 * waits. */
	bool watching;
	uint32_t miss_seq;
	/* Ids of WANTs to be answered by MISS. */
	uint32_t misses[TERN_WANTS_MAX], miss_count;
	/* Ports for which it was logged that tensors are staged, and that they are
	 * not. */
	const struct tern_port *stage_told, *direct_told;

	struct tern_list channels;
	struct tern_slot *slots; /* requests that the peer knows by id */
	uint32_t slot_count, free_slot;
	struct tern_name_key name_key;
	uint32_t eager_bytes;        /* negotiated */
	uint32_t eager_mapped_bytes; /* for tensors in slabs; at most eager_bytes */
	struct tern_peer_stats stats;
};

/* session.c */
struct tern_peer *tern_peer_new(struct tern_rdv *rdv, const struct tern_peer_opts *opts);
/* Changes the state, by an edge of the diagram. */
void tern_peer_enter(struct tern_peer *peer, enum tern_peer_state next);
void tern_peer_link_up(struct tern_peer *peer, struct tern_link *link);
/* Adds a link to the peer, which owns it from now on. */
void tern_peer_add_link(struct tern_peer *peer, struct tern_link *link);
/* Sets the token of an accepted peer. */
void tern_peer_set_token(struct tern_peer *peer, uint64_t token);
/* link_over: nothing arrives over the link any more. link_closed follows, perhaps
 * later: no peer reads memory in place through it any more. */
void tern_peer_link_over(struct tern_peer *peer, struct tern_link *link, int status);
void tern_peer_link_closed(struct tern_peer *peer);
/* Ends the peer: every request ends with `status`, and the links are cut. */
void tern_peer_down(struct tern_peer *peer, int status);
/* Cuts the link because the peer violated the protocol or a limit. */
void tern_peer_cut(struct tern_peer *peer, int status);
/* Logs an event and calls the user's event(). */
void tern_peer_report(struct tern_peer *peer, enum tern_peer_event event, int status);
/* The last copy of the stager for this peer has ended. */
void tern_peer_settled(struct tern_peer *peer);
/* Called when a request has ended: FIN is sent if it was the last one. */
void tern_peer_maybe_finish(struct tern_peer *peer);
struct tern_peer *tern_peer_by_token(
	struct tern_rdv *rdv, uint64_t token, uint64_t incarnation);
void tern_peer_destroy(struct tern_peer *peer);
static inline uint32_t tern_peer_first_seq(const struct tern_peer *peer)
{
	return peer->rdv->ctx->first_seq;
}

/* The peer will not return: DOWN. The status is 0 if it had handled all our messages,
 * or had sent its FIN after its own last message. */
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
void tern_dial(struct tern_peer *peer); /* dials the next address now */
/* An attempt has failed: dials another address, pauses, or gives up. */
void tern_dial_failed(struct tern_peer *peer, int status);
/* True if a further attempt at this address cannot succeed. */
bool tern_dial_is_final(int status);
/* Time until which the dialler waits for its present attempt. */
uint64_t tern_peer_attempt_until(const struct tern_peer *peer);
/* The main link has ended without our intention: starts to dial. */
void tern_dial_lost(struct tern_peer *peer, int status);
/* Nothing of the old epoch is left: its requests are restarted, and the dialler may
 * dial. */
void tern_dial_again(struct tern_peer *peer);

/* alive.c */
void tern_peer_tick(struct tern_timer *timer);
/* Probes the host of a link whose conn is up. True: the host has not answered for too
 * long. */
bool tern_link_is_unreachable(const struct tern_link *link);
/* For a link on which the peer's program owes an answer. True: wait longer, since its
 * host answers and silence is allowed. */
bool tern_link_awaits_program(const struct tern_link *link);
/* The handshake on `link` takes long. True: wait longer. */
bool tern_peer_is_patient(struct tern_peer *peer, const struct tern_link *link);
/* The peer has sent a PING or answered one. */
void tern_peer_pinged(struct tern_peer *peer);
/* Returns to the busy keep-alive interval. */
void tern_peer_wake(struct tern_peer *peer);
/* Called when something moves, or is posted. */
static inline void tern_peer_stir(struct tern_peer *peer)
{
	peer->stirred = true;
	if (tern_unlikely(peer->drowsy))
		tern_peer_wake(peer);
}

/* stream.c */
/*
 * Sends a message: numbers it, keeps it until it is acknowledged, gives it to the fabric.
 * Fills in the counters of `header`. `xfer`: for a DONE, the transfer whose puts may have
 * to be repeated; else NULL. -EAGAIN: no room now, or no link; tern_peer_pump() is called
 * when there is.
 */
int tern_stream_send(struct tern_peer *peer, struct tern_header *header,
	const void *payload, struct tern_xfer *xfer);
int tern_stream_receive(struct tern_peer *peer, const void *message, size_t bytes);
void tern_stream_up(struct tern_peer *peer, uint32_t their_rx_seq);
void tern_stream_lost(struct tern_peer *peer);
int tern_stream_flush(struct tern_peer *peer); /* -EAGAIN: something still waits */
/* Messages are unacknowledged or wait. */
bool tern_stream_busy(const struct tern_peer *peer);
void tern_stream_tell(struct tern_peer *peer);    /* sends ack and credit soon */
void tern_stream_welcome(struct tern_peer *peer); /* sends the acceptor's first message */
/* Sends an ack at once, if there is a new one; -EAGAIN. */
int tern_stream_ack(struct tern_peer *peer);
/* Sends a PING or its answer, now or when there is room. */
void tern_stream_ping(struct tern_peer *peer, bool reply);
/* Sends a message without a number, at once, ahead of waiting messages. -EAGAIN: no
 * room. */
int tern_stream_bare(struct tern_peer *peer, struct tern_header *header);

/* ---- channels and transfers ---- */

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
	bool starving;   /* send: it is in peer->starved */
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
	struct tern_list queue;      /* in peer->answers */
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
void tern_xfer_enter(struct tern_xfer *x, enum tern_xfer_state next);
/* Queues a message of this xfer behind those of all others of the peer. */
void tern_xfer_pend(struct tern_xfer *x);
/* Withdraws the exposed region. -EINPROGRESS: the xfer is FLUSHING now, and ends with
 * `status`. */
int tern_xfer_withdraw(struct tern_xfer *x, int status);
/* True, with a log line, if the matched halves have different names. */
bool tern_xfer_clashes(const struct tern_xfer *x, const struct tern_name *theirs);
/* Withdraws the region, then ends the xfer. */
void tern_xfer_end(struct tern_xfer *x, int status);
/* Match the xfer with a record, and separate them: part returns the record, or NULL. */
void tern_xfer_meet(struct tern_xfer *x, struct tern_record *record);
struct tern_record *tern_xfer_part(struct tern_xfer *x);
/* Records that a send writes into the peer's receive `id`. */
void tern_xfer_write_into(struct tern_xfer *x, uint32_t id);
int tern_xfer_id(struct tern_xfer *x); /* gives it an id; -EAGAIN: 65535 ids are in use */
struct tern_xfer *tern_xfer_by_id(struct tern_peer *peer, uint32_t id);
int tern_xfer_expose(struct tern_xfer *x, enum tern_access access);

/* True if xfers wait to send a message: a new one must queue behind them. */
static inline bool tern_peer_has_unsaid(const struct tern_peer *peer)
{
	return !tern_list_empty(&peer->pending) || !tern_list_empty(&peer->answers) ||
	       !tern_list_empty(&peer->starved) || !tern_list_empty(&peer->renewals) ||
	       peer->pings_due || peer->miss_count ||
	       peer->retain.sent_count < peer->retain.count;
}

/* True if a receive may send a WANT now: the peer has used all its credits and has
 * sends that wait. */
static inline bool tern_want_is_due(const struct tern_peer *peer)
{
	return peer->they_starve && !tern_list_empty(&peer->unasked) &&
	       peer->credit_rx.granted == peer->credit_rx.received &&
	       peer->asks_out < TERN_WANTS_MAX;
}

void tern_peer_pump_now(struct tern_peer *peer);
/* Lets everything proceed that can. */
static inline void tern_peer_pump(struct tern_peer *peer)
{
	if (tern_peer_has_unsaid(peer) || tern_want_is_due(peer) ||
		!tern_list_empty(&peer->writing[0]) ||
		!tern_list_empty(&peer->writing[1]) || peer->fin_wanted ||
		peer->fin_received)
		tern_peer_pump_now(peer);
}

void tern_xfer_complete(
	struct tern_xfer *x, int status); /* nothing accesses its memory any more */
void tern_rdv_run_completed(struct tern_rdv *rdv);
void tern_xfer_forget_id(struct tern_xfer *x);
/* Takes a credit if more than `keep` are left. */
bool tern_peer_credit(struct tern_peer *peer, uint32_t keep);
uint32_t tern_peer_caps(const struct tern_peer *peer);
struct tern_conn *tern_peer_conn(const struct tern_peer *peer);

/* Record of the peer's request `id`; NULL: none. */
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
/* `all` of a record that was never used; NULL: there is none. */
struct tern_list *tern_record_fresh(struct tern_rdv *rdv);
/* Allocates the records of one more peer, without reserving them. -ENOMEM. */
int tern_records_spare(struct tern_rdv *rdv);
/* Reserves TERN_CREDIT_OWN records for a new peer and increments peer_count, before
 * its first message; release undoes that. */
int tern_records_reserve(struct tern_peer *peer); /* -ENOMEM */
void tern_records_release(struct tern_peer *peer);
/* Reserves one record for the answer to a WANT, and increments wanted_count. -ENOMEM. */
int tern_records_want(struct tern_rdv *rdv);

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

/* recv.c */
void tern_recv_begin(struct tern_xfer *x);
int tern_recv_advance(struct tern_xfer *x);
void tern_recv_cancel(struct tern_xfer *x);
void tern_recv_lost(struct tern_xfer *x);
int tern_recv_on_eager(struct tern_peer *peer, const struct tern_header *header);
int tern_recv_on_rts(struct tern_peer *peer, const struct tern_header *header);
int tern_recv_on_done(struct tern_peer *peer, const struct tern_header *header);

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

void tern_xfer_release(struct tern_xfer *x);
void tern_rdv_feed(struct tern_rdv *rdv); /* lets receives in rdv->hungry try again */

/* All bytes of a receive are on the GPU (status 0), or the copy has failed. */
void tern_recv_landed(struct tern_xfer *x, int status);

/* direct.c */
/* True if, on the present link, the fabric accesses the GPU memory of this xfer
 * itself. The answer does not change during the life of a link. */
bool tern_direct_chosen(struct tern_xfer *x);
void tern_direct_count(struct tern_xfer *x);
/* Counts the transfer in direct_count, if it is one. */
static inline void tern_direct_started(struct tern_xfer *x)
{
	if (tern_unlikely(x->stage.stager != NULL) && !x->stage.bounce.mem &&
		tern_direct_chosen(x))
		tern_direct_count(x);
}
/* After the fabric has received into GPU memory: makes the bytes visible to the GPU.
 * 0, or the status of the request. */
static inline int tern_direct_settle(struct tern_xfer *x)
{
	return x->stage.stager ? tern_gpu_settle(x->buf.mem->gpu) : 0;
}

/* stage.c */
/*
 * Whether the memory of an xfer is in a GPU is asked once, when it gets its memory: then
 * `stager` is set. What follows looks at that only, so a tensor of host memory comes to
 * no file about GPUs.
 */
/* The stager for `buf`; NULL if it is host memory. Errors of tern_context_stager(). */
static inline int tern_stage_open(
	struct tern_rdv *rdv, const struct tern_buf *buf, struct tern_stager **out)
{
	*out = NULL;
	if (tern_likely(!buf->bytes || buf->mem->kind == TERN_MEM_HOST))
		return 0;
	return tern_context_stager(rdv->ctx, buf->mem->gpu, out);
}
static inline void tern_stage_init(struct tern_stage *stage)
{
	tern_list_init(&stage->wait.node);
	tern_list_init(&stage->slots);
}
/* True if the memory must be staged on the present link. */
static inline bool tern_stage_needed(struct tern_xfer *x)
{
	return tern_unlikely(x->stage.stager != NULL) && !tern_direct_chosen(x);
}
/* The next part of the tensor to put, in host memory; NULL: the stager will continue
 * the xfer when there is one. */
struct tern_stage_slot *tern_stage_next(struct tern_xfer *x);
/* The fabric has taken the slot's data. */
void tern_stage_put(struct tern_stage_slot *slot);
void tern_stage_put_done(struct tern_stage_slot *slot);
/* Copies the tensor to a bounce buffer for the peer to read. 0: done; 1: the xfer will
 * be continued; or a negative status. */
int tern_stage_lay_out(struct tern_xfer *x);
/* Takes a bounce buffer for the peer to write into. Returns as tern_stage_lay_out(). */
int tern_stage_room(struct tern_xfer *x);
/* Copies the payload of its record to the GPU, and frees the record. */
void tern_stage_eager(struct tern_xfer *x);
int tern_stage_get(struct tern_xfer *x);   /* 0: under way; -EAGAIN: no room */
void tern_stage_land(struct tern_xfer *x); /* copies the bounce buffer to the GPU */
/* Copies lent memory by `stager`; called again for each slot that it waits for. */
void tern_stage_fetch(struct tern_xfer *x, struct tern_stager *stager);
/* The xfer needs no slots any more. */
void tern_stage_drop(struct tern_xfer *x);
/* The link was lost: all pieces start again. */
void tern_stage_lost(struct tern_xfer *x);
void tern_stage_fini(struct tern_xfer *x); /* the xfer has ended */
void tern_rdv_stage_init(struct tern_rdv *rdv);
void tern_rdv_stage_fini(struct tern_rdv *rdv);

/* lend.c */
/* 0: the peer's GPU copies the tensor directly; 1: the xfer will be continued;
 * -ENOTSUP: it cannot. */
int tern_lend_offer(struct tern_xfer *x);
/* The peer may have answered an offer: waiting sends ask again. */
void tern_lend_answered(struct tern_peer *peer);
int tern_lend_borrow(struct tern_xfer *x);
/* 0: under way, or ended; -EAGAIN; -ENOTSUP: the region in its record was not lent. */
static inline int tern_lend_get(struct tern_xfer *x)
{
	bool may_be_lent = x->stage.loan.gpu || x->peer->link->conn->lent_count;

	return tern_unlikely(may_be_lent) ? tern_lend_borrow(x) : -ENOTSUP;
}
/* All copies have ended. -ECONNRESET: the copied bytes may be inconsistent. */
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
/* 1: one RENEW was sent; 0: none is left; -EAGAIN. */
int tern_renew_next(struct tern_peer *peer);
int tern_renew_retained(struct tern_peer *peer, struct tern_retained *e);
int tern_on_renew(struct tern_peer *peer, const struct tern_header *header);

/* rail.c */
void tern_rails_dial(struct tern_peer *peer);
bool tern_rail_welcome(struct tern_peer *peer, const struct tern_link *link);
void tern_rail_up(struct tern_link *link);
bool tern_rails_closed(const struct tern_peer *peer);
void tern_rails_close(struct tern_peer *peer);
/* True if a tensor of this size is sent on bulk connections, where there are any. */
static inline bool tern_is_bulk(const struct tern_peer *peer, uint64_t bytes)
{
	return peer->bulk_bytes && bytes >= peer->bulk_bytes;
}
void tern_rails_make(struct tern_peer *peer);
/* Called before a tensor of this size is sent or received. */
static inline void tern_rails_expect(struct tern_peer *peer, uint64_t bytes)
{
	if (tern_is_bulk(peer, bytes) && !peer->bulk)
		tern_rails_make(peer);
}
/* True if the tensor now goes over bulk connections. */
bool tern_rail_is_apart(const struct tern_xfer *x);
void tern_rail_failed(struct tern_peer *peer);
/* A free put for the next chunk, and the connection to use; NULL: no connection has
 * room. */
struct tern_put_op *tern_rail_next(struct tern_xfer *x, struct tern_conn **conn);
int tern_rails_settle(struct tern_xfer *x);
int tern_rail_message(struct tern_link *link, const void *message, size_t bytes);
void tern_rail_writable(struct tern_link *link);

struct tern_listener {
	struct tern_list node;
	struct tern_rdv *rdv;
	struct tern_peer_opts opts;
	char own_name[64];
	char *secret; /* NULL: that of the context */
	void (*accept)(struct tern_peer *peer, void *arg);
	void *accept_arg;
	char address[128];
	unsigned lsn_count;
	struct tern_lsn *lsns[]; /* at most one for each fabric */
};

#endif
