/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of keys. A key is a 64-bit hash that anybody may make collide; so a request that
 * has a name says it beside the key, and where two halves with names meet, they are
 * compared: two names for one key are an error, never a mix-up.
 *
 * What is said and compared is a digest of fixed size, keyed by the cluster secret, so
 * that who does not know that cannot make two names look the same. No table holds names:
 * one that is never used again costs nothing.
 */
#ifndef TERN_RENDEZVOUS_KEY_H
#define TERN_RENDEZVOUS_KEY_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define TERN_NAME_MAX 255u /* bytes of a name that a caller gives */

/* As it is on the wire. All zeros: there is no name. */
struct tern_name {
	uint8_t digest[8];
	uint8_t bytes; /* of text */
	char text[47]; /* for messages to users: the end of the name */
};
_Static_assert(sizeof(struct tern_name) == 56, "a name is part of the wire");

struct tern_name_key {
	uint64_t word[2];
};

/* What a session's names are digested with. `secret`: NULL, or the session's. */
struct tern_name_key tern_name_key(const char *secret);

void tern_name_set(
	struct tern_name *out, const struct tern_name_key *key, const char *name);

/* Both are there, and they are not the same. */
static inline bool tern_names_differ(const struct tern_name *a, const struct tern_name *b)
{
	return a->bytes && b->bytes &&
	       memcmp(a->digest, b->digest, sizeof(a->digest)) != 0;
}

#endif
