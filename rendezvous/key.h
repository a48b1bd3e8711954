/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of keys, as far as a peer's two ends have told each other. A key is a 64-bit
 * hash; its name travels once, with the first message that uses it, and both ends check
 * it against what they call the same key: two names for one key are an error, never a
 * mix-up.
 */
#ifndef TERN_RENDEZVOUS_KEY_H
#define TERN_RENDEZVOUS_KEY_H

#include <stdbool.h>
#include <stdint.h>

struct tern_key {
	uint64_t hash;
	bool told; /* the peer has been sent the name, or sent it itself */
	uint8_t bytes;
	char name[]; /* terminated */
};

struct tern_keys {
	struct tern_key **table; /* open addressing; NULL until first used */
	uint32_t mask, count;
};

void tern_keys_fini(struct tern_keys *keys);

/*
 * The entry of `hash`, made if need be. -EEXIST: it stands for another name, which *out
 * then gives; -EINVAL: the name is empty or longer than 255 bytes; -ENOMEM.
 */
int tern_keys_intern(struct tern_keys *keys, uint64_t hash, const char *name,
	uint8_t bytes, struct tern_key **out);

/* The peer has been sent the name of `hash`. */
void tern_key_told(struct tern_keys *keys, uint64_t hash);

#endif
