/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Credits: the right to send a message that may have to wait at the receiver for its
 * other half (EAGER, RTS, POST); what a receive asked for needs none (want.c). Each such
 * message may occupy one record there, so a peer holds never more credits than there are
 * records for it: memory is bounded whatever the peers do.
 *
 * Each peer brings TERN_CREDIT_OWN records, which no other can take; what it is promised
 * beyond them comes from a pool that all share. So the number of peers has no bound, and
 * one that comes late can always work.
 *
 * Counters are cumulative and wrap: `granted` travels in every header, so a lost or
 * repeated one does no harm. Invariants: used is never past granted; both only grow; the
 * sum over all peers of what each is promised (granted - received + held) beyond its own
 * records is at most the pool.
 *
 * Windows grow when a peer says that it is starved: of records, because all that it was
 * granted are held; or of the way, because what it was granted comes too late for how
 * fast it sends, and then only while plenty is left. They shrink, by not being granted
 * again, when it has not been starved for a while; or was of the way only, and its window
 * is more than what is left for all others. A new peer gets a share of what is left in
 * the pool, so that there is always something for those who need it.
 */
#ifndef TERN_RENDEZVOUS_CREDIT_H
#define TERN_RENDEZVOUS_CREDIT_H

#include "base/util.h"

#define TERN_CREDIT_MIN   8u
#define TERN_CREDIT_OWN   16u
#define TERN_CREDIT_FIRST 64u
#define TERN_CREDIT_MAX   1024u
#define TERN_CREDIT_SHARE 16u /* a new peer gets at most this part of what is left */

/* As a sender: what the peer lets us send. */
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

/* A header arrived; an older one, sent again, says nothing new. False: the absurd. */
static inline bool tern_credit_update(struct tern_credit_tx *tx, uint32_t granted)
{
	if (tern_seq_before(granted, tx->granted))
		return true;
	if (granted - tx->used > TERN_CREDIT_MAX)
		return false;
	tx->granted = granted;
	return true;
}

/* Records of a context that all its peers share, beside the own ones of each. */
struct tern_credit_pool {
	uint32_t total, promised;
};

/* As a receiver: what we let the peer send. */
struct tern_credit_rx {
	struct tern_credit_pool *pool;
	uint32_t granted;  /* cumulative; what headers carry */
	uint32_t received; /* cumulative; messages that took one */
	uint32_t held;     /* records in use now */
	uint32_t window;   /* what the peer should be able to have outstanding */
	uint32_t told;     /* `granted` as the peer last heard it */
	uint32_t grown_at; /* messages that were over when the window grew last */
	bool starved;      /* the peer said so since the last idle tick */
	bool waiting;      /* and since it was last told of new ones */
};

static inline uint32_t tern_credit_promised(const struct tern_credit_rx *rx)
{
	return rx->granted - rx->received + rx->held;
}

/* How many of them are the pool's. */
static inline uint32_t tern_credit_shared(const struct tern_credit_rx *rx)
{
	uint32_t promised = tern_credit_promised(rx);

	return promised > TERN_CREDIT_OWN ? promised - TERN_CREDIT_OWN : 0;
}

static inline uint32_t tern_credit_left(const struct tern_credit_pool *pool)
{
	return pool->total - pool->promised;
}

/* Grants up to the window, as far as its own records and the pool go. */
static inline void tern_credit_fill(struct tern_credit_rx *rx)
{
	uint32_t promised = tern_credit_promised(rx), shared = tern_credit_shared(rx);
	uint32_t want = rx->window > promised ? rx->window - promised : 0;
	uint32_t own = promised < TERN_CREDIT_OWN ? TERN_CREDIT_OWN - promised : 0;

	rx->granted += TERN_MIN(want, own + tern_credit_left(rx->pool));
	rx->pool->promised += tern_credit_shared(rx) - shared;
}

/* A new peer, with the least window until it is widened: it may be nobody. Its own
 * records are there. */
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

/* It has proved who it is. */
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

/* A message that takes a credit arrived. False: the peer had none left. */
static inline bool tern_credit_receive(struct tern_credit_rx *rx)
{
	if (rx->received == rx->granted)
		return false;
	rx->received++;
	rx->held++;
	return true;
}

/* Its record is free again. */
static inline void tern_credit_release(struct tern_credit_rx *rx)
{
	uint32_t shared = tern_credit_shared(rx);

	tern_assert(rx->held > 0 && rx->pool->promised >= shared);
	rx->held--;
	rx->pool->promised -= shared - tern_credit_shared(rx);
	tern_credit_fill(rx);
}

/* Messages whose records came and went. */
static inline uint32_t tern_credit_over(const struct tern_credit_rx *rx)
{
	return rx->received - rx->held;
}

/* A whole window has come and gone since it grew, and the peer still has to wait: it
 * sends faster than credits get to it. */
static inline bool tern_credit_is_outrun(const struct tern_credit_rx *rx)
{
	return tern_credit_over(rx) - rx->grown_at >= rx->window &&
	       rx->window <= tern_credit_left(rx->pool) / 4;
}

/* The peer is starved: a larger window, if nothing granted is still on its way to it, or
 * always is. */
static inline void tern_credit_grow(struct tern_credit_rx *rx)
{
	rx->starved = rx->waiting = true;
	if (rx->granted == rx->received || tern_credit_is_outrun(rx)) {
		rx->window = TERN_MIN(rx->window * 2, TERN_CREDIT_MAX);
		rx->grown_at = tern_credit_over(rx);
	}
	tern_credit_fill(rx);
}

/* For its pace alone the peer has more than is left for all others. Growing for pace
 * leaves one and a half times the new window or more, so such windows do not go up and
 * down: those that came first shrink until the later ones have about as much, and stay.
 */
static inline bool tern_credit_is_greedy(const struct tern_credit_rx *rx)
{
	return rx->granted != rx->received && rx->window > tern_credit_left(rx->pool);
}

/* Called now and then: shrinks what was not needed, and further if others may need it. */
static inline void tern_credit_idle(struct tern_credit_rx *rx)
{
	bool scarce = tern_credit_left(rx->pool) < rx->pool->total / 4;
	uint32_t least = scarce ? TERN_CREDIT_OWN : TERN_CREDIT_FIRST;

	if ((!rx->starved || tern_credit_is_greedy(rx)) && rx->window > least)
		rx->window = TERN_MAX(rx->window / 2, least);
	rx->starved = false;
}

/* Worth a message of its own: half a window that the peer has not heard of; or a single
 * one that it waits for. */
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
