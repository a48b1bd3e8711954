/* SPDX-License-Identifier: Apache-2.0 */
/* The system's clocks, and arithmetic on times. Only environments (base/env.h), tools,
 * tests and the wait for a GPU in ps/updater_cuda_batch.c read these clocks. All other
 * code asks its environment for the time, so that the simulator can run it in virtual
 * time. */
#ifndef TERN_BASE_CLOCK_H
#define TERN_BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include <tern/types.h>

#define TERN_NS_PER_US 1000ull
#define TERN_NS_PER_MS 1000000ull
#define TERN_NS_PER_S  1000000000ull

/*
 * Saturating sum and product of times: a result that does not fit is TERN_NEVER. Use
 * them for each time that a user gives, or that is computed from one: plain arithmetic
 * would wrap and turn "never" into "now".
 */
static inline uint64_t tern_ns_add(uint64_t a_ns, uint64_t b_ns)
{
	uint64_t sum_ns;

	return __builtin_add_overflow(a_ns, b_ns, &sum_ns) ? TERN_NEVER : sum_ns;
}

static inline uint64_t tern_ns_times(uint64_t ns, uint64_t factor)
{
	uint64_t product_ns;

	return __builtin_mul_overflow(ns, factor, &product_ns) ? TERN_NEVER : product_ns;
}

uint64_t tern_clock_ns(void);     /* CLOCK_MONOTONIC */
uint64_t tern_clock_cpu_ns(void); /* processor time of this process, all threads */

/* Reads a counter of the processor, which takes about a fifth of the time of
 * clock_gettime(); on processors other than x86-64 and arm64, reads the clock. The length
 * of a tick depends on the processor. While the counter has grown by less than
 * TERN_TICKS_LULL, at most about 4 us have passed. */
#if defined(__x86_64__)
#define TERN_TICKS_LULL 4096u /* 4 us at most: the counter runs at 1 to 5 GHz */
static inline uint64_t tern_clock_ticks(void)
{
	return __builtin_ia32_rdtsc();
}
#elif defined(__aarch64__)
#define TERN_TICKS_LULL 64u /* 4 us at most: the counter runs at 20 MHz to 1 GHz */
static inline uint64_t tern_clock_ticks(void)
{
	uint64_t ticks;

	__asm__ __volatile__("mrs %0, cntvct_el0" : "=r"(ticks));
	return ticks;
}
#else
#define TERN_TICKS_LULL 1000u
static inline uint64_t tern_clock_ticks(void)
{
	return tern_clock_ns();
}
#endif

/* True if the kernel keeps its own time by the counter that tern_clock_ticks() reads, and so
 * takes it to run at one speed, and alike on all cores. */
bool tern_clock_ticks_are_steady(void);

#endif
