/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table where the two halves of a rendezvous find each other: one per peer.
 * Everything that waits under a (channel, key, step) is a node in it, oldest first; a
 * node costs nothing but its place in what it belongs to. No allocation except when the
 * table grows.
 *
 * The nodes of one triple and kind form a ring, of which only the oldest hangs in the
 * hash table. So adding, finding the oldest and removing take the same time however many
 * nodes one triple has. The peer chooses triples, so the hash is keyed by a random secret
 * of the context: a peer that does not know it cannot choose triples that fall together.
 */
#ifndef TERN_RENDEZVOUS_MATCH_H
#define TERN_RENDEZVOUS_MATCH_H

#include <stdint.h>

#include "base/list.h"

enum tern_match_kind {
	TERN_MATCH_RECV,    /* ours: a receive that no sender has claimed */
	TERN_MATCH_SEND,    /* ours: a send that has not been announced or started */
	TERN_MATCH_CLAIM,   /* ours: a send that writes into a POST; until its DONE is out
			     */
	TERN_MATCH_ARRIVAL, /* theirs: an EAGER or RTS that met no receive */
	TERN_MATCH_POST,    /* theirs: room that is ready */
	TERN_MATCH_SENT, /* ours: an EAGER or RTS that the peer may not have seen yet */
	TERN_MATCH_KIND_COUNT
};

struct tern_triple {
	uint64_t key, step;
	uint32_t channel;
};

struct tern_match_node {
	struct tern_list bucket; /* linked: the oldest of its triple and kind */
	struct tern_list ring;   /* of its triple and kind */
	struct tern_triple triple;
	enum tern_match_kind kind;
	bool waits; /* it is in the table */
};

/* Random, and unknown to any peer. */
struct tern_match_secret {
	uint64_t word[3];
};

struct tern_match {
	struct tern_list *buckets;
	struct tern_match_secret secret;
	uint32_t shift, ring_count; /* there are 2^(64 - shift) buckets */
	/* Nodes by kind. Most are 0: then nothing is searched. */
	uint32_t count_of[TERN_MATCH_KIND_COUNT];
};

int tern_match_init(
	struct tern_match *match, const struct tern_match_secret *secret); /* -ENOMEM */
void tern_match_fini(struct tern_match *match);

static inline void tern_match_node_init(struct tern_match_node *node)
{
	tern_list_init(&node->bucket);
	tern_list_init(&node->ring);
	node->waits = false;
}

/* Under node->triple, behind all others of it. */
void tern_match_add(struct tern_match *match, struct tern_match_node *node,
	enum tern_match_kind kind);

/* Harmless if it is not in the table. */
void tern_match_remove(struct tern_match *match, struct tern_match_node *node);

/* The oldest node of this triple and kind; NULL: none. */
struct tern_match_node *tern_match_find(const struct tern_match *match,
	const struct tern_triple *triple, enum tern_match_kind kind);

/* The node of the same triple and kind that was added just before `node`, which is in the
 * table; NULL: `node` is the oldest. */
struct tern_match_node *tern_match_before(const struct tern_match_node *node);

#endif
