/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order in which records are used for training: a keyed bijection of 0..2^bits-1
 * (Luby, Rackoff: How to construct pseudorandom permutations, 1988), repeated until the
 * result is below count (Black, Rogaway: Ciphers with arbitrary finite domains, 2002).
 * bits is the smallest number that covers count, so this takes less than two steps on
 * average. If bits is odd the halves differ by one bit; they change places every round,
 * so an even number of rounds restores their places.
 */
#include "client/data/permutation.h"

#include "base/rng.h"
#include "base/util.h"

#define ROUNDS 8

uint64_t tern_permutation_at(uint64_t seed, uint64_t count, uint64_t n)
{
	uint64_t epoch, place, keys[ROUNDS];
	unsigned bits;

	tern_assert(count > 0);
	epoch = n / count;
	place = n % count;
	if (count == 1)
		return 0;
	bits = 64 - (unsigned)__builtin_clzll(count - 1);
	for (unsigned round = 0; round < ROUNDS; round++)
		keys[round] = tern_rng_at(seed, epoch, round, 0);
	do {
		unsigned left_bits = bits / 2, right_bits = bits - left_bits;
		uint64_t left = place >> right_bits;
		uint64_t right = place & ((1ull << right_bits) - 1);

		for (unsigned round = 0; round < ROUNDS; round++) {
			uint64_t mixed = tern_mix64(keys[round] ^ right);
			uint64_t next = left ^ (mixed & ((1ull << left_bits) - 1));
			unsigned next_bits = left_bits;

			left = right;
			left_bits = right_bits;
			right = next;
			right_bits = next_bits;
		}
		place = left << right_bits | right;
	} while (place >= count);
	return place;
}
