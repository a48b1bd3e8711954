/* SPDX-License-Identifier: Apache-2.0 */
/* A copy whose stores bypass the cache (non-temporal stores): the fastest way for a core
 * to copy large tensors. */
#ifndef TERN_BENCH_COPY_H
#define TERN_BENCH_COPY_H

#include <stdbool.h>
#include <stddef.h>

/* Copies `bytes`, with the widest stores that the processor has. False: not implemented
 * for this processor, and nothing was copied. Both addresses must be multiples of 64. */
bool copy_around_cache(void *to, const void *from, size_t bytes);

#endif
