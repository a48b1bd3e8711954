/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/key.h"

#include <errno.h>
#include <string.h>

#include <tern/channel.h>

#include "base/util.h"

#define TABLE_FIRST 64u

/* FNV-1a (Fowler, Noll, Vo), of 64 bits: short, and names are hashed once. */
uint64_t tern_key(const char *name)
{
	uint64_t hash = 0xcbf29ce484222325;

	for (; *name; name++)
		hash = (hash ^ (uint8_t)*name) * 0x100000001b3;
	return hash;
}

void tern_keys_fini(struct tern_keys *keys)
{
	for (uint32_t i = 0; keys->table && i <= keys->mask; i++)
		free(keys->table[i]);
	free(keys->table);
	*keys = (struct tern_keys){0};
}

static struct tern_key **slot_of(struct tern_key **table, uint32_t mask, uint64_t hash)
{
	uint32_t i = (uint32_t)hash & mask;

	while (table[i] && table[i]->hash != hash)
		i = (i + 1) & mask;
	return &table[i];
}

/* At most half full, so that probing ends soon. */
static int make_room(struct tern_keys *keys)
{
	uint32_t size = keys->table ? (keys->mask + 1) * 2 : TABLE_FIRST;
	struct tern_key **table;

	if (keys->table && keys->count * 2 <= keys->mask)
		return 0;
	table = calloc(size, sizeof(struct tern_key *));
	if (!table)
		return -ENOMEM;
	for (uint32_t i = 0; keys->table && i <= keys->mask; i++)
		if (keys->table[i])
			*slot_of(table, size - 1, keys->table[i]->hash) = keys->table[i];
	free(keys->table);
	keys->table = table;
	keys->mask = size - 1;
	return 0;
}

int tern_keys_intern(struct tern_keys *keys, uint64_t hash, const char *name,
	uint8_t bytes, struct tern_key **out)
{
	struct tern_key **slot;
	int r = make_room(keys);

	if (r < 0)
		return r;
	slot = slot_of(keys->table, keys->mask, hash);
	if (!*slot) {
		struct tern_key *key = malloc(sizeof(*key) + bytes + 1u);

		if (!key)
			return -ENOMEM;
		*key = (struct tern_key){.hash = hash, .bytes = bytes};
		memcpy(key->name, name, bytes);
		key->name[bytes] = 0;
		*slot = key;
		keys->count++;
	}
	*out = *slot;
	return (*out)->bytes == bytes && memcmp((*out)->name, name, bytes) == 0 ? 0
										: -EEXIST;
}

void tern_key_told(struct tern_keys *keys, uint64_t hash)
{
	struct tern_key *key = *slot_of(keys->table, keys->mask, hash);

	if (key)
		key->told = true;
}
