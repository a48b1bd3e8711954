/* SPDX-License-Identifier: Apache-2.0 */
/* A peer: a session with another context (usually of another process). The session
 * survives its links (fabric connections): when a link is lost, the session continues on
 * a new one. */
#ifndef TERN_RENDEZVOUS_PEER_H
#define TERN_RENDEZVOUS_PEER_H

#include "base/clock.h"
#include "base/map.h"
#include "rendezvous/address.h"
#include "rendezvous/key.h"
#include "rendezvous/link.h"
#include "rendezvous/load.h"
#include "rendezvous/retain.h"

/* Size of arrays indexed by rail number: 0 is the main link, 1 to 8 are rails (further
 * connections, which carry puts). */
#define TERN_RAILS_MAX 9u

/*
 *     START --handshake done--> UP <----------> LOST
 *       |                       |  link lost,     |
 *       |                       |  link back      |
 *       +-----------------------+-----------------+--> DOWN
 *
 * LOST -> DOWN: the time to reconnect has passed, the peer refused, or its process has
 * ended. Freeing a peer in any state makes it DOWN. The orderly goodbye (FIN in both
 * directions) takes place in state UP.
 */
enum tern_peer_state {
	TERN_PEER_STATE_START,
	TERN_PEER_STATE_UP,
	TERN_PEER_STATE_LOST,
	TERN_PEER_STATE_DOWN,
};

/* Largest number of puts (RDMA writes) in flight on one link. It is low, because a
 * message on the link is sent after the puts that were issued before it. */
#define TERN_CONN_PUTS 4u

struct tern_put_op {
	struct tern_op op;
	/* The send that the put belongs to; NULL: the entry is free. */
	struct tern_xfer *xfer;
	/* Staging slot (page-locked host buffer) with the data; NULL: the data is
	 * in the tensor. */
	struct tern_stage_slot *slot;
	uint64_t bytes;
};

/* An EAGER or RTS (announced tensor) of ours that the peer may not have handled yet. If a
 * POST (announced buffer) or WANT of the peer for the same triple arrives, the two
 * messages may have crossed on the wire. */
struct tern_sent {
	struct tern_match_node node;
	uint32_t seq;
};
#define TERN_SENT_MAX TERN_CREDIT_MAX

/* Largest number of unanswered WANTs of a peer. By a WANT, a receive asks for a send that
 * has no credit: want.c. */
#define TERN_WANTS_MAX 16u
/* Number of late answers of a peer (late_count) from which on no tern_recv_any() asks it:
 * as many as the arrivals that its credits allow. */
#define TERN_LATE_MAX TERN_CREDIT_MAX

/* An entry of the table of request ids. An id on the wire is generation << 16 | index of
 * the entry; generations start at 1. */
struct tern_slot {
	struct tern_xfer *xfer; /* the request with this id; NULL: the entry is free */
	uint32_t next;          /* index of the next free entry */
	uint16_t generation;
};

/* Connecting and reconnecting (dialling), and the decision to give up: dial.c. */
struct tern_dial {
	/*
	 * Timer in the states START and LOST, and after our FIN (goodbye) was sent. When
	 * it fires, the next address is dialled, or the session waits longer, or the
	 * session ends. It is set when an attempt to connect has failed, when the link is
	 * lost, and when FIN was sent (session.c).
	 */
	struct tern_timer retry;
	/* Time after which no further attempt to connect begins; at the end that
	 * accepted: until which a lost session may return. */
	uint64_t give_up_ns;
	uint64_t backoff_ns; /* upper limit of the pause before the next attempt */
	uint64_t up_ns;      /* time at which the main link came up */
	/* The lost link was useful (was_of_use() in dial.c): dial without a pause. */
	bool at_once;

	/* The end that dials: addresses to try, in order. */
	struct tern_candidates candidates;
	/* Indices into `candidates`: of the address in use, and of the address on which
	 * the session first came up. */
	unsigned candidate, home;
	unsigned tried;   /* consecutive addresses tried without success */
	unsigned refused; /* bit set of the addresses that refused the first connection */
	/* For each address, the status of the last attempt there; 0: none has failed. */
	int failures[TERN_CANDIDATES_MAX];

	/* lost_acked and lost_rx_seq: values of stream.acked and stream.rx_seq when the
	 * last link was lost. fruitless: number of consecutive links that came up and
	 * carried none of the waiting messages; fruitless_parts: sum of the weights of
	 * these links (FRUITLESS_MAX in dial.c). */
	uint32_t lost_acked, lost_rx_seq, fruitless, fruitless_parts;
	uint64_t lost_moved; /* value of windows.moved_count at that time */
	/* Time at which the first of the fruitless links was lost. */
	uint64_t fruitless_ns;
};

/* Keep-alive: whether messages of the peer arrive, and how often it is probed:
 * alive.c. */
struct tern_alive {
	/*
	 * Periodic timer (tick) of a peer that is UP. Its interval is a quarter of
	 * suspect_ns, at most 1 s, or longer if the peer is idle. Each tick does upkeep,
	 * and sends a PING if nothing was received since the last tick, and since the
	 * last PING.
	 */
	struct tern_timer tick;
	bool heard; /* something was received since the last tick */
	/* Since the last tick, a request was posted or a message other than a PING was
	 * received. */
	bool stirred;
	bool pinged; /* a PING was sent, and nothing was received after it */
	/* This end has found the peer idle, so its own timer `tick` fires less often. */
	bool drowsy;
	/* The event SUSPECT was reported, and nothing was received after it. */
	bool suspect;
	/* Time for which nothing was received from the peer: a quarter of suspect_ns (at
	 * most 1 s) for each tick since then. */
	uint64_t silent_ns;
	/* Time of the last tick that found `stirred` set, or at which idleness ended. */
	uint64_t quiet_since_ns;
	uint64_t tended_ns; /* time of the last periodic upkeep (credits, rails) */
};

/* Rails: further connections of the session, which carry puts (RDMA writes): rail.c. */
struct tern_rails {
	/* Indexed by rail number. NULL: that rail is not up; [0] is not used. */
	struct tern_link *link[TERN_RAILS_MAX];
	/* Tensors of at least this size go over rails only, if a rail is up; smaller ones
	 * over the main link only. 0: every tensor uses the main link and all rails. Set
	 * whenever a main link comes up. */
	uint64_t bulk_bytes;
	/* A tensor of at least bulk_bytes, or a receive buffer of that size, was sent or
	 * announced by either end. */
	bool bulk;
	/* Attempts to connect a rail that failed since a rail or the main link last came
	 * up; counted up to RAIL_FAILURES_MAX. */
	uint32_t failures;
	/* Earliest time at which a rail may be dialled again, after an attempt has
	 * failed. */
	uint64_t after_ns;
	/* Puts in flight, indexed by rail number; [0]: the main link. */
	struct tern_put_op put_ops[TERN_RAILS_MAX][TERN_CONN_PUTS];
	struct tern_load load[TERN_RAILS_MAX];
	unsigned put_op_count; /* entries of put_ops in use, on all links */
};

/* The stream of messages, which are numbered and kept until they are acknowledged:
 * stream.c. */
struct tern_stream {
	/* Sequence numbers: of the last message that we sent, and of the last one that
	 * the peer has acknowledged. */
	uint32_t tx_seq, acked;
	/* Sequence numbers: of the last message of the peer that we handled, and of the
	 * last acknowledgement that we sent. */
	uint32_t rx_seq, told_ack;
	uint64_t untold_bytes;
	struct tern_retain retain;
	/* Sends whose DONE (the message after the last put) is not acknowledged yet, in
	 * the order of its sequence number. */
	struct tern_list wait_ack;
	struct tern_credit_tx credit_tx;
	struct tern_credit_rx credit_rx;
	bool ack_due, starved_told;
	/* PING_ASK, PING_REPLY: PINGs that are still to be sent, since the fabric had no
	 * room for them. */
	uint8_t pings_due;
	/* The last message that say_next() sent was a RENEW, so it is the turn of a
	 * kept message that waits to be sent. */
	bool renewed_last;
	struct tern_deferred tell_call;
	/* Ring buffer of TERN_SENT_MAX entries: see struct tern_sent. NULL until first
	 * used. */
	struct tern_sent *sent;
	/* sent_first, sent_count: oldest entry of `sent`, and number of entries.
	 * sent_apart: number of its newest entries that are not in the matching table
	 * yet. */
	uint32_t sent_first, sent_count, sent_apart;
};

/* Lists of transfers (struct tern_xfer) that wait for a credit, or for room: room is
 * there as long as the fabric accepts messages and puts, and a message can be kept until
 * it is acknowledged. See pump.c. */
struct tern_pump {
	bool running, serving_starved;
	/* Transfers with a message to send or a read to start. */
	struct tern_list pending;
	struct tern_list starved; /* sends whose first message waits for a credit */
	/* Sends with puts to issue: [1] over rails only (bulk), [0] all others. */
	struct tern_list writing[2];
	/* Messages of the peer (records) to which an answer is to be sent. */
	struct tern_list answers;
};

/* WANT (a receive asks for a send that has no credit) and its answers: want.c. */
struct tern_want {
	struct tern_list unasked; /* our receives that may have to send a WANT */
	uint32_t asks_out;        /* our WANTs that are not answered yet */
	/* Our unanswered WANTs whose receive was matched otherwise, or has ended: the
	 * answer can only be a MISS (no such send). */
	uint32_t asks_lost;
	/* missed_count: number of our receives whose WANT was answered by MISS, and which
	 * wait for a HAVE. behind_count: number of our receives that wait for an older
	 * receive of the same triple (channel, key, step). */
	uint32_t missed_count, behind_count;
	/* Number of answers to WANTs of tern_recv_any()s that had ended, which no other
	 * receive has taken. */
	uint32_t late_count;
	/* Proxies (any.c) that send no WANT, since there are too many late answers. */
	struct tern_list barred;
	bool they_starve; /* the peer's last header said that sends wait for credits */
	/* For our sends: a WANT of the peer was answered by MISS (no such send), so a
	 * send of ours that begins to wait for a credit sends HAVE. */
	bool watching;
	uint32_t miss_seq; /* sequence number of the last MISS that we sent */
	/* Ids of the peer's receives whose WANT we must still answer by MISS, and their
	 * number. */
	uint32_t misses[TERN_WANTS_MAX], miss_count;
};

/* Table of our requests that messages refer to by id: ids.c. */
struct tern_ids {
	struct tern_slot *slots;
	uint32_t slot_count, free_slot;
};

/* Largest number of a peer's OPENs (requests to open a window) that are not answered. */
#define TERN_OPENS_MAX 16u
/* Largest number of parts of puts and gets of windows that are under way in one
 * direction, and so of messages of the peer about them that are not answered. */
#define TERN_PARTS_MAX 64u
/* Largest number of parts with GPU memory (window_move.c) that are under way in one
 * direction. */
#define TERN_MOVES_MAX 16u
/* Largest size of a part with GPU memory: some 0.3 ms on a fast network, so that the copies of one part overlap
 * the transfer of another, and the bounce buffers of all take 64 MiB. */
#define TERN_MOVE_BYTES ((uint64_t)4 << 20)
/* The channel of those parts, which tern_channel_open() refuses. */
#define TERN_CHANNEL_WINDOWS UINT32_MAX

/* The answer to an OPEN, which is still to be sent. */
struct tern_open_answer {
	uint64_t id;  /* of the window */
	uint32_t dst; /* the peer's handle */
	int status;
};

/* Windows (one-sided access): window.h. */
struct tern_peer_windows {
	/* Something is to be sent or started. */
	bool due;
	/* A message found no room: no chunk of a tensor is put until it is sent. */
	bool starved;
	/* Parts of puts and gets that are over, and unnumbered messages of the peer about
	 * them that were answered. */
	uint64_t moved_count;
	bool dropped_note; /* a notification came, and the user has no notified() */

	/* Our windows that the peer accesses: window.c. */
	struct tern_map grants;   /* struct tern_grant, by the id of the window */
	struct tern_list granted; /* the same */
	struct tern_list closes;  /* grants whose CLOSE is to be sent */
	struct tern_job *jobs;    /* JOBS_MAX (window.c) entries; NULL until first used */
	struct tern_list jobs_due; /* jobs with bytes to move or a DONE to send */
	uint32_t job_count;        /* entries of `jobs` in use */
	uint32_t
		answered_count; /* of these: DONE was sent, and the fabric has not ended */
	uint32_t push_count;    /* of these: the fabric puts bytes to the peer */
	struct tern_open_answer answers[TERN_OPENS_MAX];
	uint32_t answer_count;

	/* Windows of the peer, and our requests: access.c. */
	struct tern_map handles;  /* struct tern_remote, by its id */
	struct tern_list remotes; /* the same */
	struct tern_list asking;  /* remotes whose OPEN is to be sent */
	struct tern_list leaving; /* remotes whose LEFT is to be sent */
	uint32_t asks_out;        /* OPENs that are not answered */
	uint32_t last_handle;
	/* TERN_PARTS_MAX entries, of which parts_out are in use; NULL until first
	 * used. */
	struct tern_part *parts;
	uint32_t free_part, parts_out;
	uint32_t puts_out, gets_out; /* of these: puts and gets of the fabric */
	/* Puts, gets and notifications that have not ended (struct tern_wreq), in the
	 * order of posting, and the lists in which they wait. */
	struct tern_list all, active, saying, unacked;
	/* Puts that have not landed, in the order of posting; the number of the last
	 * one. */
	struct tern_list puts;
	uint64_t last_put;

	/* Parts with GPU memory (struct tern_move): window_move.c. */
	struct tern_channel *channel; /* NULL until first used */
	struct tern_list moves;       /* of our requests */
	struct tern_list served;      /* of the peer's requests */
	struct tern_list spare_moves; /* memory for the next ones */
	/* Requests that wait until fewer than TERN_MOVES_MAX of ours are under way. */
	struct tern_list behind_moves;
	uint32_t move_count, served_count;
	uint32_t last_move; /* id of our last part */
};

struct tern_peer {
	struct tern_list node;
	struct tern_rdv *rdv;
	/* Port (this context's use of a fabric) of the present link; while there is none,
	 * of the last one. */
	struct tern_port *port;
	struct tern_peer_opts opts;
	char own_name[64], name[192];
	/* Address of the peer's end of the present connection; `name` keeps that of the
	 * first connection. */
	char address[80];
	const char *fabric_name;
	char *secret; /* NULL: the context's secret is used */
	struct tern_name_key name_key;

	enum tern_peer_state state;
	bool dialler;
	bool accepted;    /* at the end that accepted: the user's accept() was called */
	bool in_accept;   /* the user's accept() is running */
	bool has_records; /* TERN_CREDIT_OWN records are reserved for it: record.c */
	bool freed;       /* freed by the user: no more events */
	bool finished;    /* the event DOWN was reported */
	bool fin_wanted, fin_sent, fin_received;
	/* FIN (goodbye) was received, and the receives that no send will match have
	 * ended. */
	bool receives_over;
	int cause; /* status that says why the peer is LOST or DOWN */
	uint64_t token, their_incarnation;
	uint8_t other_version; /* version of the wire format that was refused; 0: none */
	/* How the secrets differ, in words; NULL: they do not, or no proof has come. */
	const char *other_secret;
	struct tern_map_node by_token; /* at the end that accepted: node in rdv->tokens */
	/* Deferred call: sends FIN (goodbye) to a peer that is UP, once that is possible,
	 * or ends the requests of a peer that is DOWN. */
	struct tern_deferred end_call;

	uint32_t epoch;
	/* Main link, which carries messages; NULL in the states START and LOST, and in
	 * DOWN when it has ended. */
	struct tern_link *link;
	/* All links of this peer in any state: the main link, rails, and closing ones. */
	struct tern_list links;
	uint32_t link_count;
	/* Number of links that carry nothing any more, but are not closed yet, since the
	 * peer still reads memory in place through them. */
	uint32_t over_count;

	struct tern_dial dial;
	struct tern_alive alive;
	struct tern_stream stream;
	struct tern_pump pump;
	struct tern_want want;
	struct tern_ids ids;
	struct tern_rails rails;
	struct tern_peer_windows windows;

	struct tern_list channels;
	struct tern_match match;
	struct tern_list xfers; /* all transfers of the peer, in the order of posting */
	/* Receives that have ended, and hold a buffer or memory of the peer, since the
	 * caller has not called tern_release() yet. */
	struct tern_list held;
	/* In `xfers`: number of the program's sends; number of receives in LANDING (copy
	 * to the GPU). */
	uint32_t send_count, landing_count;
	/* Finds, by the id of a request of the peer, the record of its RTS or POST,
	 * and our send that writes into its buffer. The keys are those of
	 * tern_theirs_key(). */
	struct tern_map theirs;
	/* Transfers whose memory region this end must announce again on the new link:
	 * renew.c. */
	struct tern_list renewals;
	/* Sends that wait until the peer has answered the offer of their GPU memory:
	 * lend.c. */
	struct tern_list offering;
	struct tern_list records; /* all records (stored messages) of this peer */
	uint32_t arrival_count;   /* stored EAGERs and RTSs that no receive has matched */
	uint32_t copy_count; /* copies from or to GPU memory in progress (stager.h) */
	/* The last port for which this end has logged that GPU memory is staged, and the
	 * last one for which it has logged that GPU memory is accessed directly. */
	const struct tern_port *stage_told, *direct_told;

	/* Largest tensor, in bytes, that is sent as an EAGER; negotiated in the
	 * handshake. */
	uint32_t eager_bytes;
	/* Largest tensor sent as an EAGER from a slab (pool memory), which the peer can
	 * map; at most eager_bytes. */
	uint32_t eager_mapped_bytes;
	struct tern_peer_stats stats;
};

/* True if PINGs, RENEWs (regions announced again) or kept messages wait to be sent. */
static inline bool tern_stream_waits(const struct tern_peer *peer)
{
	return peer->stream.pings_due || !tern_list_empty(&peer->renewals) ||
	       peer->stream.retain.sent_count < peer->stream.retain.count;
}

/* True if sends have puts to issue. */
static inline bool tern_write_waits(const struct tern_peer *peer)
{
	return !tern_list_empty(&peer->pump.writing[0]) ||
	       !tern_list_empty(&peer->pump.writing[1]);
}

/* True if messages wait to be sent. A new message must be queued after them. */
static inline bool tern_peer_has_unsaid(const struct tern_peer *peer)
{
	return !tern_list_empty(&peer->pump.pending) ||
	       !tern_list_empty(&peer->pump.answers) ||
	       !tern_list_empty(&peer->pump.starved) || peer->want.miss_count ||
	       tern_stream_waits(peer);
}

/* Takes a credit for sending a message, if more than `keep` credits are left. False: no
 * credit was taken, since there are too few, or transfers in `starved` wait for one, and
 * no other transfer may overtake them. */
static inline bool tern_peer_credit(struct tern_peer *peer, uint32_t keep)
{
	struct tern_credit_tx *tx = &peer->stream.credit_tx;

	if (!peer->pump.serving_starved && !tern_list_empty(&peer->pump.starved))
		return false;
	return tx->granted - tx->used > keep && tern_credit_take(tx);
}

/* True if a receive may send a WANT now: sends of the peer wait for credits, messages
 * that used all credits granted so far have arrived, and fewer than TERN_WANTS_MAX WANTs
 * are unanswered. */
static inline bool tern_want_is_due(const struct tern_peer *peer)
{
	return peer->want.they_starve && !tern_list_empty(&peer->want.unasked) &&
	       peer->stream.credit_rx.granted == peer->stream.credit_rx.received &&
	       peer->want.asks_out < TERN_WANTS_MAX;
}

/* The fabric connection of the main link. Call it only while the peer is UP. */
static inline struct tern_conn *tern_peer_conn(const struct tern_peer *peer)
{
	return peer->link->conn;
}
static inline uint32_t tern_peer_caps(const struct tern_peer *peer)
{
	return peer->link ? peer->link->conn->caps : 0;
}

/* Functions that session.c defines: */
struct tern_peer *tern_peer_new(struct tern_rdv *rdv, const struct tern_peer_opts *opts);
/* Changes the state. The diagram at enum tern_peer_state must allow the transition. */
void tern_peer_enter(struct tern_peer *peer, enum tern_peer_state next);
void tern_peer_link_up(struct tern_peer *peer, struct tern_link *link);
/* Adds a link to the peer, which owns the link from now on. */
void tern_peer_add_link(struct tern_peer *peer, struct tern_link *link);
/* Sets the token (number of the session) of an accepted peer, by which
 * tern_peer_by_token() finds the peer. */
void tern_peer_set_token(struct tern_peer *peer, uint64_t token);
/* tern_peer_link_over(): the link carries nothing any more. tern_peer_link_closed()
 * follows, perhaps later: no peer reads memory in place through the link any more. */
void tern_peer_link_over(struct tern_peer *peer, struct tern_link *link, int status);
void tern_peer_link_closed(struct tern_peer *peer);
/* Ends the peer (state DOWN): its links are closed, and then every request ends with
 * `status` (0: with -ESHUTDOWN). */
void tern_peer_down(struct tern_peer *peer, int status);
/* Closes the main link, because the peer violated the protocol, a rail broke, or the
 * peer's host does not answer. `status` says which, and decides whether the session may
 * return. */
void tern_peer_cut(struct tern_peer *peer, int status);
/* Logs an event and calls the user's event(). */
void tern_peer_report(struct tern_peer *peer, enum tern_peer_event event, int status);
/* Logs that the peer has broken the protocol with this message. Without a cluster secret
 * anybody may be the peer, so the lines are as limited as those about strangers. */
void tern_peer_say_wrong(
	struct tern_peer *peer, const void *message, size_t bytes, const char *why);
/* Called when the last copy from or to GPU memory for this peer has ended: a peer that is
 * DOWN may end its requests now. */
void tern_peer_settled(struct tern_peer *peer);
/* Schedules the deferred call `end_call`. */
void tern_peer_end_soon(struct tern_peer *peer);
/* Called when something has happened for which the goodbye (FIN) may wait, such as the end
 * of a request. If the user closes the session, or the peer has sent FIN, schedules
 * end_call, which sends our FIN when nothing is left to wait for. */
static inline void tern_peer_maybe_finish(struct tern_peer *peer)
{
	if (peer->state == TERN_PEER_STATE_UP && (peer->fin_wanted || peer->fin_received))
		tern_peer_end_soon(peer);
}
struct tern_peer *tern_peer_by_token(
	struct tern_rdv *rdv, uint64_t token, uint64_t incarnation);
void tern_peer_destroy(struct tern_peer *peer);

/* Writes why the peer went DOWN with this status: as tern_status_text(), with what this end
 * knows besides. Names both versions of the wire format if they differ, and tells a wrong
 * secret from one that is missing here. Returns `text`. */
const char *tern_peer_why(
	const struct tern_peer *peer, int status, char *text, size_t bytes);
static inline uint32_t tern_peer_first_seq(const struct tern_peer *peer)
{
	return peer->rdv->ctx->first_seq;
}

/* Ends a peer that will not return: its state becomes DOWN. The status is 0 if our FIN
 * (goodbye) was sent, and the peer had handled all our messages or had sent its own FIN;
 * otherwise `status`. */
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

/* Functions that dial.c defines: */
void tern_dial(struct tern_peer *peer); /* dials the address `dial.candidate` now */
/* Called when an attempt to connect has failed: dials another address, pauses, or gives
 * up. */
void tern_dial_failed(struct tern_peer *peer, int status);
/* True if an attempt that failed with `status` cannot succeed when it is repeated. */
bool tern_dial_is_final(int status);
/* Time at which the present attempt to connect is given up. */
uint64_t tern_peer_attempt_until(const struct tern_peer *peer);
/* Called when the main link has ended without our intention: the session becomes LOST, or
 * DOWN after too many links that carried nothing. */
void tern_dial_lost(struct tern_peer *peer, int status);
/* Called when the main link and all rails of a lost session have ended: restarts its
 * requests for the next link. The end that dials may then dial. */
void tern_dial_again(struct tern_peer *peer);

/* Functions that alive.c defines: */
void tern_peer_tick(struct tern_timer *timer);
/* Asks the fabric how long the peer's host has left everything on this link unanswered.
 * True: for unreachable_ns or longer (at the end that dialled: a quarter of it). */
bool tern_link_is_unreachable(const struct tern_link *link);
/* Called when the peer's program is late to answer on this link. True: wait longer, since
 * the peer's host still answers and dead_ns sets no limit. */
bool tern_link_awaits_program(const struct tern_link *link);
/* Called when the time for the handshake on `link` is over. True: wait longer, since the
 * peer's program may be busy. */
bool tern_peer_is_patient(struct tern_peer *peer, const struct tern_link *link);
/* Called when a PING or the answer to one was received. */
void tern_peer_pinged(struct tern_peer *peer);
/* Returns an idle peer to the short keep-alive interval. */
void tern_peer_wake(struct tern_peer *peer);
/* Called when a request is posted, or a message other than a PING was received. */
static inline void tern_peer_stir(struct tern_peer *peer)
{
	peer->alive.stirred = true;
	if (tern_unlikely(peer->alive.drowsy))
		tern_peer_wake(peer);
}

/* Functions that stream.c defines: */
/*
 * Sends a message: numbers it, keeps it until it is acknowledged (not over shm, see
 * stream.c), and passes it to the fabric. Fills in the counters of `header`. `xfer`: for a
 * DONE, the send whose puts must be repeated if the DONE is sent again; else NULL.
 * -EAGAIN: there is no room now, or no link; tern_peer_pump() is called when there is.
 */
int tern_stream_send(struct tern_peer *peer, struct tern_header *header,
	const void *payload, struct tern_xfer *xfer);
int tern_stream_receive(struct tern_peer *peer, const void *message, size_t bytes);
void tern_stream_up(struct tern_peer *peer, uint32_t their_rx_seq);
void tern_stream_lost(struct tern_peer *peer);
int tern_stream_flush_now(struct tern_peer *peer);
/* Sends the messages that wait; -EAGAIN: some still wait. */
static inline int tern_stream_flush(struct tern_peer *peer)
{
	return tern_unlikely(tern_stream_waits(peer)) ? tern_stream_flush_now(peer) : 0;
}
/* True if messages are kept, since they are not acknowledged or still wait to be sent. */
bool tern_stream_busy(const struct tern_peer *peer);
/* Sends our acknowledgement and credits soon, if another message has not carried them by
 * then and they are worth a message. */
void tern_stream_tell(struct tern_peer *peer);
/* Sends a message by which the dialler learns that it is accepted. */
void tern_stream_welcome(struct tern_peer *peer);
/* Sends an acknowledgement at once, unless the last one is up to date; -EAGAIN: no
 * room. */
int tern_stream_ack(struct tern_peer *peer);
/* Sends a PING or its answer, now or when there is room. */
void tern_stream_ping(struct tern_peer *peer, bool reply);
/* Sends a message without a sequence number, but only after all numbered messages that
 * wait. -EAGAIN: some of them still wait, or there is no room or no link. */
int tern_stream_apart(
	struct tern_peer *peer, struct tern_header *header, const void *payload);
/* Sends a message without a sequence number, at once, before messages that wait. -EAGAIN:
 * no room. */
int tern_stream_bare(struct tern_peer *peer, struct tern_header *header);

#endif
