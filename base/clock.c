/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <time.h>

static uint64_t read_clock(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * TERN_NS_PER_S + (uint64_t)ts.tv_nsec;
}

uint64_t tern_clock_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

uint64_t tern_clock_cpu_ns(void)
{
	return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}
