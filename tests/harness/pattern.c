/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/pattern.h"

#include <endian.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"

/* Word number i of the stream. */
static uint64_t word(uint64_t seed, uint64_t i)
{
	return htole64(tern_mix64(seed * 0x10001 + i));
}

void pattern_fill(void *to, uint64_t bytes, uint64_t seed, uint64_t start)
{
	uint8_t *p = to;

	while (bytes) {
		uint64_t w = word(seed, start / 8), skip = start % 8;
		uint64_t n = TERN_MIN(bytes, 8 - skip);

		if (n == 8)
			memcpy(p, &w, 8); /* of a constant size: one store */
		else
			memcpy(p, (uint8_t *)&w + skip, n);
		p += n;
		start += n;
		bytes -= n;
	}
}

bool pattern_holds(const void *at, uint64_t bytes, uint64_t seed, uint64_t start)
{
	const uint8_t *p = at;
	uint8_t want[4096];

	for (uint64_t i = 0; i < bytes;) {
		uint64_t n = TERN_MIN(bytes - i, sizeof(want));

		pattern_fill(want, n, seed, start + i);
		if (memcmp(p + i, want, n) != 0)
			return false;
		i += n;
	}
	return true;
}

bool pattern_is_one_byte(const void *at, uint64_t bytes, uint8_t value)
{
	const uint8_t *p = at;

	return !bytes || (p[0] == value && memcmp(p, p + 1, bytes - 1) == 0);
}
