/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Intrusive hash table: finds by a 64-bit number what has a node in it. Removing twice is
 * harmless. Memory is allocated only to grow; where there is none, chains get longer and
 * nothing else happens. The hash is keyed by a secret, so that a peer that chooses the
 * numbers cannot choose such as fall together.
 */
#ifndef TERN_BASE_MAP_H
#define TERN_BASE_MAP_H

#include <stdint.h>

#include "base/list.h"

struct tern_map_node {
	struct tern_list chain; /* linked: it is in the map */
	uint64_t key;
};

/* Stays where it is. */
struct tern_map {
	struct tern_list *buckets; /* `first` until it grows */
	struct tern_list first;
	uint64_t secret;
	uint32_t mask, count; /* buckets - 1; nodes */
};

void tern_map_init(struct tern_map *map, uint64_t secret);
void tern_map_fini(struct tern_map *map); /* it must be empty */

static inline void tern_map_node_init(struct tern_map_node *node)
{
	tern_list_init(&node->chain);
}

/* The node must not be in a map already. */
void tern_map_add(struct tern_map *map, struct tern_map_node *node, uint64_t key);
void tern_map_remove(struct tern_map *map, struct tern_map_node *node);
/* The node of that key, or NULL. Where several nodes have the key, the one that was added
 * first. */
struct tern_map_node *tern_map_find(const struct tern_map *map, uint64_t key);

#endif
