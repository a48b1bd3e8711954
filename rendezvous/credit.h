/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Credits: the right to send a message that may have to wait at the receiver for its
 * other half (EAGER, RTS, POST). A message that answers a WANT needs none (want.c). Each
 * message with a credit may occupy one record at the receiver, so a peer never holds more
 * credits than there are records for it: memory is bounded whatever the peers do.
 *
 * Each peer has TERN_CREDIT_OWN records, which no other can use. Credits beyond these
 * come from a pool that all peers share. So the number of peers is not limited, and a
 * late peer can always work.
 *
 * Counters are cumulative and wrap: `granted` travels in every header, so a lost or
 * repeated header does no harm. Invariants: used never exceeds granted; both only grow;
 * the sum, over all peers, of the promises (granted - received + held) beyond their own
 * records is at most the pool.
 *
 * A window grows when its peer says that it is starved. The cause is either a lack of
 * records, if all granted ones are held, or the pace: grants come too late for the speed
 * of the peer. In the second case the window grows only while plenty is left. A window
 * shrinks, by not renewing grants, when its peer has not been starved for a while, or
 * when it grew for its pace and is larger than what is left for all others. A new peer
 * gets a share of what is left in the pool, so that there is always something for those
 * who need it.
 */
#ifndef TERN_RENDEZVOUS_CREDIT_H
#define TERN_RENDEZVOUS_CREDIT_H

#include "base/util.h"

#define TERN_CREDIT_MIN   8u
#define TERN_CREDIT_OWN   16u
#define TERN_CREDIT_FIRST 64u
#define TERN_CREDIT_MAX   1024u
#define TERN_CREDIT_SHARE 16u /* a new peer gets at most this fraction of what is left */

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

/* Takes the grant of a header; older grants are ignored. False if the grant exceeds
 * TERN_CREDIT_MAX. */
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
	uint32_t granted;  /* cumulative, as in headers */
	uint32_t received; /* messages received that used a credit, cumulative */
	uint32_t held;     /* records in use now */
	/* Number of credits that the peer should be able to have outstanding. */
	uint32_t window;
	uint32_t told;     /* value of `granted` in the last header sent */
	uint32_t grown_at; /* value of tern_credit_over() when the window grew last */
	bool starved;      /* the peer was starved since the last idle tick */
	bool waiting;      /* the peer was starved since it was last sent new grants */
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

/* Opens the account of a new peer, with the smallest window until it has proved
 * itself. These credits are backed by records of its own, which are reserved before
 * its first message is read. */
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

/* The peer has completed the handshake: widens its window. */
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

/* The record of a message is free again. */
static inline void tern_credit_release(struct tern_credit_rx *rx)
{
	uint32_t shared = tern_credit_shared(rx);

	tern_assert(rx->held > 0 && rx->pool->promised >= shared);
	rx->held--;
	rx->pool->promised -= shared - tern_credit_shared(rx);
	tern_credit_fill(rx);
}

/* Number of messages whose records were used and freed. */
static inline uint32_t tern_credit_over(const struct tern_credit_rx *rx)
{
	return rx->received - rx->held;
}

/* True if a whole window was used and freed since it grew, and the peer is still
 * starved: it sends faster than grants reach it. */
static inline bool tern_credit_is_outrun(const struct tern_credit_rx *rx)
{
	return tern_credit_over(rx) - rx->grown_at >= rx->window &&
	       rx->window <= tern_credit_left(rx->pool) / 4;
}

/* The peer is starved: enlarges its window, if no grant is still on its way, or if
 * grants are always on their way. */
static inline void tern_credit_grow(struct tern_credit_rx *rx)
{
	rx->starved = rx->waiting = true;
	if (rx->granted == rx->received || tern_credit_is_outrun(rx)) {
		rx->window = TERN_MIN(rx->window * 2, TERN_CREDIT_MAX);
		rx->grown_at = tern_credit_over(rx);
	}
	tern_credit_fill(rx);
}

/* True if a window that grew for its peer's pace is larger than what is left for all
 * others. Growing for pace leaves at least one and a half times the new window, so
 * such windows do not oscillate: the earlier ones shrink until the later ones are
 * about as large, and stay. */
static inline bool tern_credit_is_greedy(const struct tern_credit_rx *rx)
{
	return rx->granted != rx->received && rx->window > tern_credit_left(rx->pool);
}

/* Called periodically: shrinks a window that was not needed, and further if others may
 * need it. */
static inline void tern_credit_idle(struct tern_credit_rx *rx)
{
	bool scarce = tern_credit_left(rx->pool) < rx->pool->total / 4;
	uint32_t least = scarce ? TERN_CREDIT_OWN : TERN_CREDIT_FIRST;

	if ((!rx->starved || tern_credit_is_greedy(rx)) && rx->window > least)
		rx->window = TERN_MAX(rx->window / 2, least);
	rx->starved = false;
}

/* True if new grants deserve a message of their own: half a window that was not sent
 * yet, or any grant that the peer waits for. */
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
