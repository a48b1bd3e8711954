/* SPDX-License-Identifier: Apache-2.0 */
/* Clock, pinning, memory and contents of tensors, for all programs of this folder. */
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/pair.h"

#define HUGE_BYTES (2u << 20)
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

void pair_die(const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	/* Only one write: the other end, a process of its own, may print a line as well. */
	fprintf(stderr, "%s: %s\n", program_invocation_short_name, text);
	_exit(1);
}

void pair_must(const char *what, int status, const char *text)
{
	if (status)
		pair_die("%s: %s (%d)", what, text, status);
}

uint64_t bench_now_ns(void)
{
	return tern_clock_ns();
}

uint64_t bench_cpu_ns(void)
{
	return tern_clock_cpu_ns();
}

bool bench_pin(unsigned n)
{
	cpu_set_t all, one;

	if (sched_getaffinity(0, sizeof(all), &all) < 0)
		return false;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &all) || n-- > 0)
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		return sched_setaffinity(0, sizeof(one), &one) == 0;
	}
	return false;
}

/* Maps memory at a multiple of 2 MiB, that of the file `fd` unless `fd` is -1, and touches
 * every page. Shared memory gets huge pages by MADV_COLLAPSE only, because the system's default
 * for it is not to use them; Tern does the same with its shared memory. */
static void *map_huge(size_t bytes, int flags, int fd)
{
	size_t whole = (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
	char *p = mmap(NULL, whole + HUGE_BYTES, PROT_NONE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		pair_die("no memory for %zu bytes", bytes);
	p += -(uintptr_t)p % HUGE_BYTES;
	if (mmap(p, whole, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0) != p)
		pair_die("no memory for %zu bytes", bytes);
	madvise(p, whole, MADV_HUGEPAGE);
	for (size_t i = 0; i < whole; i += 4096)
		((volatile char *)p)[i] = p[i];
	for (size_t i = 0; flags & MAP_SHARED && i < whole; i += HUGE_BYTES)
		madvise(p + i, HUGE_BYTES, MADV_COLLAPSE);
	return p;
}

void *bench_memory(size_t bytes, bool shared)
{
	return map_huge(bytes, MAP_ANONYMOUS | (shared ? MAP_SHARED : MAP_PRIVATE), -1);
}

void *bench_map(int fd, size_t bytes)
{
	return map_huge(bytes, MAP_SHARED, fd);
}

static int by_value(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

uint64_t bench_percentile(uint64_t *values, uint64_t count, double share)
{
	uint64_t rank = (uint64_t)((double)count * share + 0.999999);

	if (!count)
		return 0;
	qsort(values, count, sizeof(*values), by_value);
	if (rank > count)
		rank = count;
	return values[rank ? rank - 1 : 0];
}

unsigned bench_sizes(const char *text, uint64_t *out, unsigned most)
{
	unsigned count = 0;

	for (const char *p = text; *p; count++) {
		char *end;
		unsigned long long value = strtoull(p, &end, 10);

		if (end == p || count == most)
			pair_die("%s: not a list of at most %u numbers", text, most);
		if (*end == 'K' || *end == 'M' || *end == 'G')
			value <<= *end == 'K' ? 10 : *end == 'M' ? 20 : 30, end++;
		if (*end && *end != ',')
			pair_die("%s: '%c' is not K, M, G or a comma", text, *end);
		out[count] = value;
		p = *end ? end + 1 : end;
	}
	return count;
}

static uint64_t word_of(uint64_t n, uint64_t i)
{
	return (n + 1) * 0x9e3779b97f4a7c15u + i * 0xd6e8feb86659fd93u;
}

void bench_fill(unsigned char *p, size_t bytes, uint64_t n)
{
	size_t whole = bytes / 8 * 8;
	uint64_t word;

	for (size_t i = 0; i < whole; i += 8) {
		word = word_of(n, i);
		memcpy(p + i, &word, 8);
	}
	word = word_of(n, whole);
	memcpy(p + whole, &word, bytes - whole);
}

bool bench_holds(const unsigned char *p, size_t bytes, uint64_t n)
{
	size_t whole = bytes / 8 * 8;
	uint64_t word, wrong = 0;

	for (size_t i = 0; i < whole; i += 8) {
		memcpy(&word, p + i, 8);
		wrong |= word ^ word_of(n, i);
	}
	word = word_of(n, whole);
	return wrong == 0 && memcmp(p + whole, &word, bytes - whole) == 0;
}
