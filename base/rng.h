/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random numbers that are a pure function of their counter: the i-th number of a stream
 * can be computed by any process, without the numbers before it. So an initial value
 * depends only on (seed, name of the tensor, element), and the numbers of a training
 * slot (a fixed share of a step's batch) only on (seed, step, slot), never on the process
 * that computes them. The mixer is the finaliser of splitmix64 (Steele, Lea, Flood: Fast
 * splittable pseudorandom number generators, 2014), which passes BigCrush on counters.
 */
#ifndef TERN_BASE_RNG_H
#define TERN_BASE_RNG_H

#include <stdint.h>

static inline uint64_t tern_mix64(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

/* Number i of the stream (seed, a, b). */
static inline uint64_t tern_rng_at(uint64_t seed, uint64_t a, uint64_t b, uint64_t i)
{
	return tern_mix64(tern_mix64(tern_mix64(tern_mix64(seed) ^ a) ^ b) ^ i);
}

/* Converts random bits to a number uniform in [0, 1). It has 24 bits, which a float holds
 * exactly. */
static inline float tern_unit_f32(uint64_t r)
{
	return (float)(r >> 40) * 0x1p-24f;
}

/* A sequential generator for tests, the simulator and benchmarks. */
struct tern_rng {
	uint64_t seed, next;
};

static inline uint64_t tern_rng_next(struct tern_rng *rng)
{
	return tern_mix64(tern_mix64(rng->seed) ^ rng->next++);
}

/* Returns a number uniform in [0, n), n > 0; the bias is below 2^-32 for n < 2^32. */
static inline uint64_t tern_rng_below(struct tern_rng *rng, uint64_t n)
{
	return (uint64_t)(((unsigned __int128)tern_rng_next(rng) * n) >> 64);
}

#endif
