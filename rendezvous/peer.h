/* SPDX-License-Identifier: Apache-2.0 */
/* A session with another context, which survives its links. */
#ifndef TERN_RENDEZVOUS_PEER_H
#define TERN_RENDEZVOUS_PEER_H

#include "base/clock.h"
#include "rendezvous/address.h"
#include "rendezvous/key.h"
#include "rendezvous/link.h"
#include "rendezvous/retain.h"

#define TERN_RAILS_MAX 9u /* 8, and the main link if it is not one of them */

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

/* Dialling, and when to give up: dial.c. */
struct tern_dial {
	/*
	 * Fires in LOST, START and after the goodbye: dials the next address, looks
	 * whether the session may still return, or ends it. Set when an attempt has
	 * failed, when the link is lost, and when FIN was said (session.c).
	 */
	struct tern_timer retry;
	uint64_t give_up_ns; /* time after which no attempt begins */
	uint64_t backoff_ns; /* pause before the next attempt */
	uint64_t up_ns;      /* time at which the link came up */
	bool at_once;        /* the lost link had carried something: no pause */

	struct tern_candidates candidates; /* dialler: addresses to try, in order */
	unsigned candidate, home; /* address in use; first address on which it came up */
	unsigned tried;           /* consecutive addresses tried without success */
	unsigned refused; /* bit set of the addresses that refused the first connection */

	/* State of the last lost link, and of the links that carried nothing since. */
	uint32_t lost_acked, lost_rx_seq, fruitless, fruitless_parts;
	uint64_t fruitless_ns; /* start of the present series of fruitless links */
};

/* Whether the peer is heard, and how often it is asked: alive.c. */
struct tern_alive {
	/*
	 * Fires while the peer is UP, a quarter of `suspect_ns` after the last time, less
	 * often for an idle peer: upkeep, and a PING if nothing was heard.
	 */
	struct tern_timer tick;
	bool heard;   /* something was received since the last tick */
	bool stirred; /* something but PINGs was sent or received since the last tick */
	bool pinged;  /* a PING was sent and nothing was received since */
	bool drowsy;  /* idle: ticks come less often */
	bool suspect; /* the user was told SUSPECT */
	uint64_t silent_ns; /* duration of the silence since a PING was not answered */
	uint64_t quiet_since_ns; /* time of the last message other than a PING */
	uint64_t tended_ns;      /* time of the last periodic upkeep (credits, rails) */
};

/* Connections that carry puts: rail.c. */
struct tern_rails {
	struct tern_link *link[TERN_RAILS_MAX]; /* [0] is not used; NULL: not up */
	/* bulk_bytes of the link, or of the last one if there is none: fabric.h. */
	uint64_t bulk_bytes;
	bool bulk;         /* a tensor of at least that size was transferred */
	uint32_t failures; /* consecutive rail failures */
	/* Earliest time of the next dial of a rail, which the tick looks at. */
	uint64_t after_ns;
	struct tern_put_op put_ops[TERN_RAILS_MAX][TERN_CONN_PUTS]; /* by link */
	unsigned put_op_count;                                      /* number in use */
};

/* Messages, numbered and kept until they are acknowledged: stream.c. */
struct tern_stream {
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
	uint8_t pings_due; /* PINGs that could not be sent for lack of room */
	bool renewed_last; /* the next turn belongs to messages that are sent again */
	struct tern_deferred tell_call;
	struct tern_sent *sent; /* ring of TERN_SENT_MAX; NULL until first used */
	uint32_t sent_first, sent_count;
};

/* Lists of what waits for room or for a credit: pump.c. */
struct tern_pump {
	bool running, serving_starved;
	struct tern_list pending; /* xfers with a message to send but no room for it */
	struct tern_list starved; /* xfers with a message that needs a credit */
	/* Transfers with puts to issue; [1]: those on bulk connections. */
	struct tern_list writing[2];
	struct tern_list answers; /* records with an answer to be sent */
};

/* Receives that ask for a send without a credit, and answers to them: want.c. */
struct tern_want {
	/* For our receives: */
	struct tern_list unasked; /* receives that may have to send a WANT */
	uint32_t asks_out;        /* WANTs without an answer yet */
	uint32_t asks_lost; /* WANTs whose receive has ended: only a MISS can answer */
	uint32_t missed_count, behind_count;
	bool they_starve; /* sends of the peer wait for credits */
	/* Of our sends: a receive of the peer has been answered by MISS, so HAVE is sent
	 * when a send waits. */
	bool watching;
	uint32_t miss_seq;
	/* Ids of WANTs to be answered by MISS. */
	uint32_t misses[TERN_WANTS_MAX], miss_count;
};

/* Requests that the peer knows by id: ids.c. */
struct tern_ids {
	struct tern_slot *slots;
	uint32_t slot_count, free_slot;
};

struct tern_peer {
	struct tern_list node;
	struct tern_rdv *rdv;
	struct tern_port *port; /* port of the fabric of its connection */
	struct tern_peer_opts opts;
	char own_name[64], name[192];
	/* Address of the present connection; `name` keeps that of the first one. */
	char address[80];
	const char *fabric_name;
	char *secret; /* NULL: that of the context */
	struct tern_name_key name_key;

	enum tern_peer_state state;
	bool dialler;
	bool accepted;    /* acceptor: the user's accept() was called */
	bool in_accept;   /* accept() is running */
	bool has_records; /* it is counted in rdv->peer_count: record.c */
	bool freed;       /* freed by the user: no more events */
	bool finished;    /* DOWN, and nothing of it is left */
	bool fin_wanted, fin_sent, fin_received;
	/* FIN was received, and the receives without a sender have ended. */
	bool receives_over;
	int cause; /* reason of LOST or DOWN */
	uint64_t token, their_incarnation;
	struct tern_map_node by_token; /* acceptor: node in rdv->tokens */
	struct tern_deferred end_call; /* sends FIN, or finishes DOWN */

	uint32_t epoch;
	struct tern_link *link; /* the main link; NULL unless UP */
	/* All its links in any state: the main link, rails, and closing ones. */
	struct tern_list links;
	uint32_t link_count;
	/* Links that have ended but whose memory is still read in place. */
	uint32_t over_count;

	struct tern_dial dial;
	struct tern_alive alive;
	struct tern_stream stream;
	struct tern_pump pump;
	struct tern_want want;
	struct tern_ids ids;
	struct tern_rails rails;

	struct tern_list channels;
	struct tern_match match;
	struct tern_list xfers; /* all xfers of the peer, in the order of posting */
	struct tern_list held;  /* receives that have ended and were not released */
	uint32_t send_count, landing_count; /* numbers among xfers */
	/* By ids of the peer's requests: records of RTS and POST, and sends that write
	 * into the peer's memory. See tern_theirs_key(). */
	struct tern_map theirs;
	/* Transfers whose region must be announced anew: renew.c. */
	struct tern_list renewals;
	/* Sends whose memory was offered to the peer: lend.c. */
	struct tern_list offering;
	struct tern_list records; /* all records of this peer */
	uint32_t arrival_count;   /* records that wait for a receive */
	uint32_t copy_count;      /* copies of the stager under way */
	/* Ports for which it was logged that tensors are staged, and that they are
	 * not. */
	const struct tern_port *stage_told, *direct_told;

	uint32_t eager_bytes;        /* negotiated */
	uint32_t eager_mapped_bytes; /* for tensors in slabs; at most eager_bytes */
	struct tern_peer_stats stats;
};

/* True if xfers wait to send a message: a new one must queue behind them. */
static inline bool tern_peer_has_unsaid(const struct tern_peer *peer)
{
	return !tern_list_empty(&peer->pump.pending) ||
	       !tern_list_empty(&peer->pump.answers) ||
	       !tern_list_empty(&peer->pump.starved) ||
	       !tern_list_empty(&peer->renewals) || peer->stream.pings_due ||
	       peer->want.miss_count ||
	       peer->stream.retain.sent_count < peer->stream.retain.count;
}

/* True if a receive may send a WANT now: the peer has used all its credits and has
 * sends that wait. */
static inline bool tern_want_is_due(const struct tern_peer *peer)
{
	return peer->want.they_starve && !tern_list_empty(&peer->want.unasked) &&
	       peer->stream.credit_rx.granted == peer->stream.credit_rx.received &&
	       peer->want.asks_out < TERN_WANTS_MAX;
}

/* The connection of the main link; only while the peer is UP. */
static inline struct tern_conn *tern_peer_conn(const struct tern_peer *peer)
{
	return peer->link->conn;
}
static inline uint32_t tern_peer_caps(const struct tern_peer *peer)
{
	return peer->link ? peer->link->conn->caps : 0;
}

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
	peer->alive.stirred = true;
	if (tern_unlikely(peer->alive.drowsy))
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

#endif
