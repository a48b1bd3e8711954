/* SPDX-License-Identifier: Apache-2.0 */
#include "base/map.h"

#include "base/rng.h"

#define MOST_BUCKETS (1u << 30)

static struct tern_list *bucket_of(const struct tern_map *map, uint64_t key)
{
	return &map->buckets[tern_mix64(key ^ map->secret) & map->mask];
}

void tern_map_init(struct tern_map *map, uint64_t secret)
{
	*map = (struct tern_map){.secret = secret};
	tern_list_init(&map->first);
	map->buckets = &map->first;
}

void tern_map_fini(struct tern_map *map)
{
	tern_assert(map->count == 0);
	if (map->buckets != &map->first)
		free(map->buckets);
	map->buckets = NULL;
}

static void grow(struct tern_map *map)
{
	struct tern_list *old = map->buckets, *n;
	uint32_t old_count = map->mask + 1, count = 4 * old_count;
	struct tern_list *buckets = malloc(count * sizeof(*buckets));

	if (!buckets)
		return;
	for (uint32_t i = 0; i < count; i++)
		tern_list_init(&buckets[i]);
	map->buckets = buckets;
	map->mask = count - 1;
	for (uint32_t i = 0; i < old_count; i++)
		while ((n = tern_list_pop(&old[i])))
			tern_list_push(bucket_of(map, tern_list_entry(n,
							      struct tern_map_node, chain)
							      ->key),
				n);
	if (old != &map->first)
		free(old);
}

void tern_map_add(struct tern_map *map, struct tern_map_node *node, uint64_t key)
{
	if (map->count++ > map->mask && map->mask < MOST_BUCKETS)
		grow(map);
	node->key = key;
	tern_list_push(bucket_of(map, key), &node->chain);
}

struct tern_map_node *tern_map_find(const struct tern_map *map, uint64_t key)
{
	struct tern_list *bucket = bucket_of(map, key);

	tern_list_for_each (n, bucket) {
		struct tern_map_node *node =
			tern_list_entry(n, struct tern_map_node, chain);

		if (node->key == key)
			return node;
	}
	return NULL;
}
