/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Intrusive hash table that finds nodes by a 64-bit key. Removing a node twice is
 * harmless. Memory is allocated only when the table grows; if there is no memory, the
 * chains get longer, and nothing fails. The hash is keyed by a secret, so that a peer
 * that chooses the keys cannot make them collide.
 */
#ifndef TERN_BASE_MAP_H
#define TERN_BASE_MAP_H

#include <stdint.h>

#include "base/list.h"

struct tern_map_node {
	struct tern_list chain; /* linked while the node is in the map */
	uint64_t key;
};

/* Must not be moved in memory. */
struct tern_map {
	struct tern_list *buckets; /* points to `first` until the map grows */
	struct tern_list first;
	uint64_t secret;
	uint32_t mask, count; /* mask: number of buckets - 1; count: number of nodes */
};

void tern_map_init(struct tern_map *map, uint64_t secret);
void tern_map_fini(struct tern_map *map); /* the map must be empty */

static inline void tern_map_node_init(struct tern_map_node *node)
{
	tern_list_init(&node->chain);
}

/* Adds a node, which must not be in a map already. */
void tern_map_add(struct tern_map *map, struct tern_map_node *node, uint64_t key);
static inline void tern_map_remove(struct tern_map *map, struct tern_map_node *node)
{
	if (!tern_list_linked(&node->chain))
		return;
	map->count--;
	tern_list_remove(&node->chain);
}
/* Returns the node with that key, or NULL. If several nodes have the key, the one that
 * was added first. */
struct tern_map_node *tern_map_find(const struct tern_map *map, uint64_t key);

#endif
