/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table where the two halves of a rendezvous find each other: one per peer.
 * Everything that waits under a (channel, key, step) hangs in it as a node, oldest first;
 * a node costs nothing but its place in what it belongs to. No allocation except when the
 * table grows.
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
	struct tern_list link;
	struct tern_triple triple;
	enum tern_match_kind kind;
};

struct tern_match {
	struct tern_list *buckets;
	uint32_t shift, count;                    /* there are 2^(64 - shift) buckets */
	uint32_t count_of[TERN_MATCH_KIND_COUNT]; /* most are 0: then nothing is searched
						   */
};

int tern_match_init(struct tern_match *match); /* -ENOMEM */
void tern_match_fini(struct tern_match *match);

static inline void tern_match_node_init(struct tern_match_node *node)
{
	tern_list_init(&node->link);
}

/* Under node->triple, behind all others of it. */
void tern_match_add(struct tern_match *match, struct tern_match_node *node,
	enum tern_match_kind kind);

/* Harmless if it is not in the table. */
void tern_match_remove(struct tern_match *match, struct tern_match_node *node);

/* The oldest node of this triple and kind; NULL: none. */
struct tern_match_node *tern_match_find(const struct tern_match *match,
	const struct tern_triple *triple, enum tern_match_kind kind);

/* The next one behind `node` of the same triple and kind; NULL: none. */
struct tern_match_node *tern_match_next(
	const struct tern_match *match, const struct tern_match_node *node);

#endif
