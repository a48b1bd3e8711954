/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flow control. A credit is the right to send one message that may have to wait at the
 * receiver for its other half (EAGER, RTS, POST). A message that the receiver asked for
 * by a WANT needs none (want.c). Each message that uses a credit may occupy one record (a
 * preallocated structure) at the receiver, and a peer never holds more credits than there
 * are records for it. So memory is bounded whatever the peers do.
 *
 * Each peer has TERN_CREDIT_OWN records that no other peer can use. Credits beyond these
 * come from a pool of records that all peers share. So the number of peers is not
 * limited, and a peer that connects late can always work.
 *
 * Counters are cumulative and wrap. `granted` travels in every header, so a lost or
 * repeated header does no harm. Invariants: used never exceeds granted; both only grow
 * (but a sender takes back the credit of a message that it could not send); the sum, over
 * all peers, of the promised records (granted - received + held) beyond each peer's own
 * is at most the pool.
 *
 * A window is the number of records that may be promised to a peer. It grows when the
 * peer says that it is starved: it has sends that wait for a credit. The cause is either
 * a lack of records, if all granted ones are in use, or the peer's pace: it sends faster
 * than grants reach it. In the second case the window grows only while much of the pool
 * is left. A window shrinks, by not renewing grants, when its peer has not been starved
 * for a while, or when it grew for the pace and is larger than what is left for all
 * others. A new peer gets a share of what is left in the pool, so that something remains
 * for the peers that come later.
 */
#ifndef TERN_RENDEZVOUS_CREDIT_H
#define TERN_RENDEZVOUS_CREDIT_H

#include "base/util.h"

#define TERN_CREDIT_MIN   8u
#define TERN_CREDIT_OWN   16u
#define TERN_CREDIT_FIRST 64u
#define TERN_CREDIT_MAX   1024u
/* The first window of a peer takes at most 1/16 of what is left in the pool. */
#define TERN_CREDIT_SHARE 16u

/* Sender side: credits that the peer has granted us. */
struct tern_credit_tx {
	uint32_t granted, used;
};

static inline bool tern_credit_take(struct tern_credit_tx *tx)
{
	if (tx->used == tx->granted)
		return false;
	tx->used++;
	return true;
}

/* Takes the grant (`credit`) of a received header; older grants are ignored. False if it
 * would leave us more than TERN_CREDIT_MAX unused credits, which no correct peer
 * grants. */
static inline bool tern_credit_update(struct tern_credit_tx *tx, uint32_t granted)
{
	if (tern_seq_before(granted, tx->granted))
		return true;
	if (granted - tx->used > TERN_CREDIT_MAX)
		return false;
	tx->granted = granted;
	return true;
}

/* Records of a context that all its peers share, besides each peer's own. */
struct tern_credit_pool {
	uint32_t total, promised;
};

/* Receiver side: credits that we grant the peer. */
struct tern_credit_rx {
	struct tern_credit_pool *pool;
	uint32_t granted;  /* credits granted in all (cumulative), as in headers */
	uint32_t received; /* messages received that used a credit, cumulative */
	uint32_t held;     /* records that store messages of this peer now */
	/* Most records that may be promised to the peer: its unused credits and its stored
	 * messages count. */
	uint32_t window;
	uint32_t told; /* value of `granted` in the last header that we sent */
	/* Value of tern_credit_over() when the window was last enlarged. */
	uint32_t grown_at;
	/* The peer was starved (sends waited) since the last tern_credit_idle(). */
	bool starved;
	bool waiting; /* the peer was starved since new grants were last sent to it */
};

static inline uint32_t tern_credit_promised(const struct tern_credit_rx *rx)
{
	return rx->granted - rx->received + rx->held;
}

/* Number of promised records that come from the shared pool. */
static inline uint32_t tern_credit_shared(const struct tern_credit_rx *rx)
{
	uint32_t promised = tern_credit_promised(rx);

	return promised > TERN_CREDIT_OWN ? promised - TERN_CREDIT_OWN : 0;
}

static inline uint32_t tern_credit_left(const struct tern_credit_pool *pool)
{
	return pool->total - pool->promised;
}

/* Grants credits up to the window, as far as the peer's own records and the pool
 * allow. */
static inline void tern_credit_fill(struct tern_credit_rx *rx)
{
	uint32_t promised = tern_credit_promised(rx), shared = tern_credit_shared(rx);
	uint32_t want = rx->window > promised ? rx->window - promised : 0;
	uint32_t own = promised < TERN_CREDIT_OWN ? TERN_CREDIT_OWN - promised : 0;

	rx->granted += TERN_MIN(want, own + tern_credit_left(rx->pool));
	rx->pool->promised += tern_credit_shared(rx) - shared;
}

/* Initialises the credits of a new peer, with the smallest window until
 * tern_credit_widen(). These credits are backed by records of the peer's own, which are
 * reserved before its first message is read. */
static inline void tern_credit_open(
	struct tern_credit_rx *rx, struct tern_credit_pool *pool, uint32_t first)
{
	*rx = (struct tern_credit_rx){.pool = pool,
		.granted = first,
		.received = first,
		.told = first,
		.grown_at = first,
		.window = TERN_CREDIT_MIN};
	tern_credit_fill(rx);
}

/* Widens the window of a new peer. Called when a peer that connected has completed the
 * handshake; for a peer that this end dials, before it. */
static inline void tern_credit_widen(struct tern_credit_rx *rx)
{
	uint32_t share = tern_credit_left(rx->pool) / TERN_CREDIT_SHARE;

	rx->window = TERN_MIN(TERN_CREDIT_OWN + share, TERN_CREDIT_FIRST);
	tern_credit_fill(rx);
}

static inline void tern_credit_close(struct tern_credit_rx *rx)
{
	if (!rx->pool)
		return;
	tern_assert(rx->held == 0);
	rx->pool->promised -= tern_credit_shared(rx);
	rx->pool = NULL;
}

/* Counts a message that used a credit. False: the peer had no credit left. */
static inline bool tern_credit_receive(struct tern_credit_rx *rx)
{
	if (rx->received == rx->granted)
		return false;
	rx->received++;
	rx->held++;
	return true;
}

/* Called when the record of a message of this peer is free again. */
static inline void tern_credit_release(struct tern_credit_rx *rx)
{
	uint32_t shared = tern_credit_shared(rx);

	tern_assert(rx->held > 0 && rx->pool->promised >= shared);
	rx->held--;
	rx->pool->promised -= shared - tern_credit_shared(rx);
	tern_credit_fill(rx);
}

/* Number of messages whose records are free again, cumulative. */
static inline uint32_t tern_credit_over(const struct tern_credit_rx *rx)
{
	return rx->received - rx->held;
}

/* For a starved peer. True if as many messages as the window has were received and their
 * records freed since the window was last enlarged, so that the peer sends faster than
 * grants reach it; and if at least four windows are left in the pool. */
static inline bool tern_credit_is_outrun(const struct tern_credit_rx *rx)
{
	return tern_credit_over(rx) - rx->grown_at >= rx->window &&
	       rx->window <= tern_credit_left(rx->pool) / 4;
}

/* Called when the peer reports that it is starved: doubles its window if the peer has
 * used every credit granted so far, or if grants reach it too late for its pace. */
static inline void tern_credit_grow(struct tern_credit_rx *rx)
{
	rx->starved = rx->waiting = true;
	if (rx->granted == rx->received || tern_credit_is_outrun(rx)) {
		rx->window = TERN_MIN(rx->window * 2, TERN_CREDIT_MAX);
		rx->grown_at = tern_credit_over(rx);
	}
	tern_credit_fill(rx);
}

/* True if a window was enlarged for its peer's pace, and is now larger than what is left
 * in the pool for all others. When a window is enlarged for pace, at least one and a half
 * times the new size stays in the pool. So windows do not oscillate: those that grew
 * earlier shrink until those that grew later are about as large, and then stay. */
static inline bool tern_credit_is_greedy(const struct tern_credit_rx *rx)
{
	return rx->granted != rx->received && rx->window > tern_credit_left(rx->pool);
}

/* Called periodically: shrinks a window that was not needed or is greedy, and further if
 * the pool is scarce. */
static inline void tern_credit_idle(struct tern_credit_rx *rx)
{
	bool scarce = tern_credit_left(rx->pool) < rx->pool->total / 4;
	uint32_t least = scarce ? TERN_CREDIT_OWN : TERN_CREDIT_FIRST;

	if ((!rx->starved || tern_credit_is_greedy(rx)) && rx->window > least)
		rx->window = TERN_MAX(rx->window / 2, least);
	rx->starved = false;
}

/* True if new grants are worth a message of their own: if no header has carried at least
 * half a window of them yet, or any grant while the peer waits for one. */
static inline bool tern_credit_worth_telling(const struct tern_credit_rx *rx)
{
	uint32_t enough = rx->waiting ? 1 : TERN_MAX(rx->window / 2, 1u);

	return rx->granted - rx->told >= enough;
}

static inline void tern_credit_told(struct tern_credit_rx *rx)
{
	if (rx->told != rx->granted)
		rx->waiting = false;
	rx->told = rx->granted;
}

#endif
