/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of keys. A key is a 64-bit hash, for which anyone can find two names with the
 * same hash. So a request with a name sends it beside the key. When a send and a receive
 * with names are matched, the names are compared: two names for one key are an error, and
 * tensors are never mixed up.
 *
 * The name is sent and compared as a digest of fixed size, keyed by the cluster secret:
 * whoever does not know the secret cannot make two names with the same digest. (If the
 * session has no secret, the key of the digest is a constant, and anyone can.) No table
 * of names is kept: a name that is never used again takes no memory.
 */
#ifndef TERN_RENDEZVOUS_KEY_H
#define TERN_RENDEZVOUS_KEY_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define TERN_NAME_MAX 255u /* longest name that a caller may give, in bytes */

/* A name, as sent on the wire. All zeros: the request has no name. */
struct tern_name {
	uint8_t digest[8];
	uint8_t bytes; /* length of `text` in bytes; 0: no name */
	/* The name, for messages to users; if it is longer: "..." and its last 44
	 * bytes. */
	char text[47];
};
_Static_assert(
	sizeof(struct tern_name) == 56, "struct tern_name must match the wire format");

struct tern_name_key {
	uint64_t word[2];
};

/* Returns the key for the digests of names in a session. `secret`: the secret of the
 * session; NULL: none. */
struct tern_name_key tern_name_key(const char *secret);

void tern_name_set(
	struct tern_name *out, const struct tern_name_key *key, const char *name);

/* True if both requests have a name and the names differ. */
static inline bool tern_names_differ(const struct tern_name *a, const struct tern_name *b)
{
	return a->bytes && b->bytes &&
	       memcmp(a->digest, b->digest, sizeof(a->digest)) != 0;
}

#endif
