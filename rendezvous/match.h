/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matching table, in which sends and receives find each other; each peer has one.
 * Everything that waits under a (channel, key, step), a triple, is a node in it, oldest
 * first. A node is part of its owner, so the table allocates only when it grows.
 *
 * The nodes of one triple and kind form a ring, of which only the oldest is in the hash
 * table. So adding, finding the oldest and removing take constant time however many nodes
 * a triple has. The peer chooses the triples, so the hash is keyed by a random secret of
 * the context: a peer that does not know it cannot make triples collide.
 */
#ifndef TERN_RENDEZVOUS_MATCH_H
#define TERN_RENDEZVOUS_MATCH_H

#include <stdint.h>

#include "base/list.h"

enum tern_match_kind {
	TERN_MATCH_RECV, /* ours: a receive that is not matched with a send */
	TERN_MATCH_SEND, /* ours: a send that was neither announced nor started */
	/* ours: a send that answers a POST, until its DONE or EAGER was sent */
	TERN_MATCH_CLAIM,
	TERN_MATCH_ARRIVAL, /* the peer's: an EAGER or RTS that matched no receive yet */
	TERN_MATCH_POST, /* the peer's: a POST (receive buffer) that waits for a send */
	/* Ours: an EAGER or RTS that the peer may not have handled when it sent its last
	 * POST or WANT. */
	TERN_MATCH_SENT,
	TERN_MATCH_KIND_COUNT
};

/* A send and a receive belong together if their key, step and channel are equal.
 * tern_match_triple() makes a triple, and computes its hash. */
struct tern_triple {
	uint64_t key, step;
	uint32_t channel, hash;
};

struct tern_match_node {
	/* In a hash bucket, if the node is the oldest of its triple and kind. */
	struct tern_list bucket;
	/* List of all nodes of the same triple and kind, in order of age. */
	struct tern_list ring;
	struct tern_triple triple;
	enum tern_match_kind kind;
	bool waits; /* the node is in the matching table */
};

/* Random words that key the hash, so that peers cannot predict it. */
struct tern_match_secret {
	uint64_t word[3];
};

struct tern_match {
	struct tern_list *buckets;
	struct tern_match_secret secret;
	uint32_t shift, ring_count; /* shift: the table has 2^(32 - shift) buckets */
	/* Number of nodes of each kind in the table. Most counts are 0, and then no
	 * search is needed. */
	uint32_t count_of[TERN_MATCH_KIND_COUNT];
};

int tern_match_init(
	struct tern_match *match, const struct tern_match_secret *secret); /* -ENOMEM */
void tern_match_fini(struct tern_match *match);

/* Makes a triple. Its hash is valid in all tables with the same secret: the hash
 * XORs both halves of a 128-bit product, so that each bit of each factor can affect all
 * bits of the result. */
static inline struct tern_triple tern_match_triple(
	const struct tern_match *match, uint64_t key, uint64_t step, uint32_t channel)
{
	const uint64_t *secret = match->secret.word;
	unsigned __int128 product = (unsigned __int128)(key ^ secret[0]) *
				    (step ^ secret[1] ^ (channel * secret[2]));
	uint64_t folded = (uint64_t)product ^ (uint64_t)(product >> 64);

	return (struct tern_triple){.key = key,
		.step = step,
		.channel = channel,
		.hash = (uint32_t)(folded >> 32)};
}

static inline void tern_match_node_init(struct tern_match_node *node)
{
	tern_list_init(&node->bucket);
	tern_list_init(&node->ring);
	node->waits = false;
}

/* Adds a node under its triple (channel, key, step), as the newest node of this triple
 * and kind. */
void tern_match_add(struct tern_match *match, struct tern_match_node *node,
	enum tern_match_kind kind);

/* Removes a node that is in the table. */
void tern_match_remove_waiting(struct tern_match *match, struct tern_match_node *node);
/* Removes a node. Does nothing if it is not in the table, and then reads only `waits`. */
static inline void tern_match_remove(
	struct tern_match *match, struct tern_match_node *node)
{
	if (node->waits)
		tern_match_remove_waiting(match, node);
}

/* tern_match_find(), but searches even if the table has no node of this kind. */
struct tern_match_node *tern_match_search(const struct tern_match *match,
	const struct tern_triple *triple, enum tern_match_kind kind);
/* Returns the oldest node of this triple and kind; NULL: there is none. */
static inline struct tern_match_node *tern_match_find(const struct tern_match *match,
	const struct tern_triple *triple, enum tern_match_kind kind)
{
	return match->count_of[kind] ? tern_match_search(match, triple, kind) : NULL;
}

/* tern_match_take(), but searches even if the table has no node of this kind. */
struct tern_match_node *tern_match_search_and_remove(struct tern_match *match,
	const struct tern_triple *triple, enum tern_match_kind kind);
/* Removes the oldest node of this triple and kind, and returns it; NULL: there is
 * none. */
static inline struct tern_match_node *tern_match_take(struct tern_match *match,
	const struct tern_triple *triple, enum tern_match_kind kind)
{
	return match->count_of[kind] ? tern_match_search_and_remove(match, triple, kind)
				     : NULL;
}

/* Returns the node of the same triple and kind that was added just before `node`, which
 * must be in the table. NULL: `node` is the oldest. */
struct tern_match_node *tern_match_before(const struct tern_match_node *node);
/* Returns the node of the same triple and kind that was added just after `node`, which
 * must be in the table. NULL: `node` is the newest. */
struct tern_match_node *tern_match_after(const struct tern_match_node *node);

#endif
