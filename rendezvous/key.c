/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/key.h"

#include <tern/channel.h>

#include "base/endian.h"
#include "base/util.h"

/* 64-bit FNV-1a hash (Fowler, Noll, Vo). The code is short, and speed is no concern,
 * since a program can compute the key of a name once and keep it. */
uint64_t tern_key(const char *name)
{
	uint64_t hash = 0xcbf29ce484222325;

	for (; *name; name++)
		hash = (hash ^ (uint8_t)*name) * 0x100000001b3;
	return hash;
}

/* ---- SipHash-2-4 (Aumasson, Bernstein: SipHash, a fast short-input PRF, 2012) ---- */

static uint64_t rotated(uint64_t x, unsigned bits)
{
	return x << bits | x >> (64 - bits);
}

static void sip_rounds(uint64_t v[4], unsigned count)
{
	while (count--) {
		v[0] += v[1];
		v[2] += v[3];
		v[1] = rotated(v[1], 13) ^ v[0];
		v[3] = rotated(v[3], 16) ^ v[2];
		v[0] = rotated(v[0], 32);
		v[2] += v[1];
		v[0] += v[3];
		v[1] = rotated(v[1], 17) ^ v[2];
		v[3] = rotated(v[3], 21) ^ v[0];
		v[2] = rotated(v[2], 32);
	}
}

static void sip_word(uint64_t v[4], uint64_t word)
{
	v[3] ^= word;
	sip_rounds(v, 2);
	v[0] ^= word;
}

static uint64_t siphash(const struct tern_name_key *key, const char *text, size_t bytes)
{
	uint64_t v[4] = {key->word[0] ^ 0x736f6d6570736575,
		key->word[1] ^ 0x646f72616e646f6d, key->word[0] ^ 0x6c7967656e657261,
		key->word[1] ^ 0x7465646279746573};
	unsigned char last[8] = {0};
	size_t i = 0;

	for (; i + 8 <= bytes; i += 8)
		sip_word(v, tern_get_le64((const unsigned char *)text + i));
	memcpy(last, text + i, bytes - i);
	last[7] = (unsigned char)bytes;
	sip_word(v, tern_get_le64(last));
	v[2] ^= 0xff;
	sip_rounds(v, 4);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

struct tern_name_key tern_name_key(const char *secret)
{
	struct tern_name_key key = {{0x7465726e6e616d65, 0}}, second = {{0, 1}};

	if (secret)
		key = (struct tern_name_key){{siphash(&key, secret, strlen(secret)),
			siphash(&second, secret, strlen(secret))}};
	return key;
}

void tern_name_set(
	struct tern_name *out, const struct tern_name_key *key, const char *name)
{
	size_t bytes = strlen(name), shown = TERN_MIN(bytes, sizeof(out->text));

	memset(out, 0, sizeof(*out));
	tern_put_le64(out->digest, siphash(key, name, bytes));
	out->bytes = (uint8_t)shown;
	memcpy(out->text, name + bytes - shown, shown);
	if (shown < bytes)
		memcpy(out->text, "...", 3);
}
