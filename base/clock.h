/* SPDX-License-Identifier: Apache-2.0 */
/* The only caller of clock_gettime. Environments and tools use it; nothing else does. */
#ifndef TERN_BASE_CLOCK_H
#define TERN_BASE_CLOCK_H

#include <stdint.h>

#define TERN_NS_PER_US 1000ull
#define TERN_NS_PER_MS 1000000ull
#define TERN_NS_PER_S  1000000000ull

uint64_t tern_clock_ns(void);     /* CLOCK_MONOTONIC */
uint64_t tern_clock_cpu_ns(void); /* processor time of this process, all threads */

#endif
