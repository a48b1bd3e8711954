/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <stdio.h>
#include <string.h>
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

#if defined(__aarch64__)
#define COUNTER "arch_sys_counter\n"
#else
#define COUNTER "tsc\n"
#endif

bool tern_clock_ticks_are_steady(void)
{
	FILE *file = fopen(
		"/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
	char name[32] = "";
	bool steady;

	if (!file)
		return false;
	steady = fgets(name, sizeof(name), file) && strcmp(name, COUNTER) == 0;
	fclose(file);
	return steady;
}
