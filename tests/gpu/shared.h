/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code that the programs of the suite `gpu` share. TERN_GPU_SCALE in the environment
 * chooses how many cases they run and how large these are, since checkers such as
 * compute-sanitizer make everything many times slower. The tests of the engine and of the
 * updater also print hashes of results, so that the results of two processes can be
 * compared.
 */
#ifndef TERN_TESTS_GPU_SHARED_H
#define TERN_TESTS_GPU_SHARED_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* How many cases are run, and how large they are. */
enum gpu_scale { GPU_FEW, GPU_SOME, GPU_LARGE };

/* The value of TERN_GPU_SCALE: "few", "some", or anything else for GPU_LARGE. */
static inline enum gpu_scale gpu_scale_asked_for(void)
{
	const char *asked = getenv("TERN_GPU_SCALE");

	if (asked && strcmp(asked, "few") == 0)
		return GPU_FEW;
	return asked && strcmp(asked, "some") == 0 ? GPU_SOME : GPU_LARGE;
}

#define GPU_HASH_START 0xcbf29ce484222325ull

/* Continues the FNV-1a hash `hash` with `count` bytes; begin with GPU_HASH_START. */
static inline uint64_t gpu_hash(uint64_t hash, const void *bytes, size_t count)
{
	const unsigned char *at = bytes;

	for (size_t i = 0; i < count; i++)
		hash = (hash ^ at[i]) * 0x100000001b3ull;
	return hash;
}

#endif
