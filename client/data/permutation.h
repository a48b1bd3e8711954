/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which a job uses its records. */
#ifndef TERN_CLIENT_PERMUTATION_H
#define TERN_CLIENT_PERMUTATION_H

#include <stdint.h>

/*
 * Record n of the endless sequence of seeded permutations of 0..count-1, one per epoch.
 * It is a keyed bijection (a Feistel network with cycle walking), so any element is
 * computed on its own and nothing is stored.
 */
uint64_t tern_permutation_at(uint64_t seed, uint64_t count, uint64_t n);

#endif
