/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XXH64, as "XXH64 Algorithm Description" of the xxHash project specifies it: four lanes
 * take the words of each stripe of 32 bytes, are mixed into one, and then take the rest of
 * the bytes. A product of 64 bits for each word of 8 bytes makes the digest about as fast as
 * a copy in memory.
 */
#include "base/digest.h"

#include <string.h>

#include "base/endian.h"
#include "base/util.h"

#define PRIME_1 0x9e3779b185ebca87ull
#define PRIME_2 0xc2b2ae3d27d4eb4full
#define PRIME_3 0x165667b19e3779f9ull
#define PRIME_4 0x85ebca77c2b2ae63ull
#define PRIME_5 0x27d4eb2f165667c5ull

#define LANES        4u
#define STRIPE_BYTES (LANES * sizeof(uint64_t))
/* A block fits into the first cache together with its source. */
#define BLOCK_BYTES ((size_t)8 << 10)

_Static_assert(BLOCK_BYTES % STRIPE_BYTES == 0, "a block is whole stripes");

static uint64_t rotate(uint64_t x, unsigned bits)
{
	return x << bits | x >> (64 - bits);
}

static uint64_t take(uint64_t lane, uint64_t word)
{
	return rotate(lane + word * PRIME_2, 31) * PRIME_1;
}

static void begin(uint64_t *lanes)
{
	lanes[0] = PRIME_1 + PRIME_2;
	lanes[1] = PRIME_2;
	lanes[2] = 0;
	lanes[3] = -PRIME_1;
}

/* Takes all whole stripes of `bytes` bytes. */
static void take_stripes(uint64_t *lanes, const char *p, size_t bytes)
{
	uint64_t a = lanes[0], b = lanes[1], c = lanes[2], d = lanes[3];

	for (; bytes >= STRIPE_BYTES; bytes -= STRIPE_BYTES, p += STRIPE_BYTES) {
		a = take(a, tern_get_le64(p));
		b = take(b, tern_get_le64(p + 8));
		c = take(c, tern_get_le64(p + 16));
		d = take(d, tern_get_le64(p + 24));
	}
	lanes[0] = a;
	lanes[1] = b;
	lanes[2] = c;
	lanes[3] = d;
}

static uint64_t merge(const uint64_t *lanes)
{
	uint64_t x = rotate(lanes[0], 1) + rotate(lanes[1], 7) + rotate(lanes[2], 12) +
		     rotate(lanes[3], 18);

	for (unsigned i = 0; i < LANES; i++)
		x = (x ^ take(0, lanes[i])) * PRIME_1 + PRIME_4;
	return x;
}

/* Takes the bytes at p, which are those behind the last whole stripe of `bytes` in all. */
static uint64_t end(const uint64_t *lanes, const char *p, uint64_t bytes)
{
	uint64_t x = bytes < STRIPE_BYTES ? PRIME_5 : merge(lanes);
	size_t left = bytes % STRIPE_BYTES;

	x += bytes;
	for (; left >= 8; left -= 8, p += 8)
		x = rotate(x ^ take(0, tern_get_le64(p)), 27) * PRIME_1 + PRIME_4;
	for (; left >= 4; left -= 4, p += 4)
		x = rotate(x ^ tern_get_le32(p) * PRIME_1, 23) * PRIME_2 + PRIME_3;
	for (; left > 0; left--, p++)
		x = rotate(x ^ (uint8_t)*p * PRIME_5, 11) * PRIME_1;
	x = (x ^ x >> 33) * PRIME_2;
	x = (x ^ x >> 29) * PRIME_3;
	return x ^ x >> 32;
}

uint64_t tern_digest(const void *data, size_t bytes)
{
	uint64_t lanes[LANES];

	begin(lanes);
	take_stripes(lanes, data, bytes);
	return end(lanes, (const char *)data + (bytes - bytes % STRIPE_BYTES), bytes);
}

_Static_assert(sizeof((struct tern_digest_stream){0}.held) == STRIPE_BYTES,
	"a stream holds less than a stripe");

void tern_digest_begin(struct tern_digest_stream *s)
{
	*s = (struct tern_digest_stream){.bytes = 0};
	begin(s->lanes);
}

void tern_digest_add(struct tern_digest_stream *s, const void *data, size_t bytes)
{
	size_t held = s->bytes % STRIPE_BYTES, n;
	const char *p = data;

	if (!bytes)
		return;
	s->bytes += bytes;
	if (held) {
		n = TERN_MIN(bytes, STRIPE_BYTES - held);
		memcpy(s->held + held, p, n);
		if (held + n < STRIPE_BYTES)
			return;
		take_stripes(s->lanes, s->held, STRIPE_BYTES);
		p += n;
		bytes -= n;
	}
	take_stripes(s->lanes, p, bytes);
	memcpy(s->held, p + (bytes - bytes % STRIPE_BYTES), bytes % STRIPE_BYTES);
}

uint64_t tern_digest_end(const struct tern_digest_stream *s)
{
	return end(s->lanes, s->held, s->bytes);
}

uint64_t tern_digest_copy(void *to, const void *from, size_t bytes)
{
	uint64_t lanes[LANES];

	begin(lanes);
	for (size_t at = 0; at < bytes; at += BLOCK_BYTES) {
		size_t n = TERN_MIN(bytes - at, BLOCK_BYTES);

		memcpy((char *)to + at, (const char *)from + at, n);
		take_stripes(lanes, (char *)to + at, n);
	}
	return end(lanes, (const char *)to + (bytes - bytes % STRIPE_BYTES), bytes);
}
