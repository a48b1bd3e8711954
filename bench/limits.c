/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the memory bandwidth of one core: memcpy, a copy that bypasses the cache
 * (memcpy where copy.h has none), and STREAM's triad a = b + s * c, which counts as three
 * transfers. Each bandwidth is the median of several passes.
 */
#include <stdio.h>
#include <string.h>

#include "bench/copy.h"
#include "bench/pair.h"

#define BYTES_MAX (64ul << 20)
#define PASSES    15

static unsigned char *a, *b, *c;

static void copy_memcpy(size_t bytes)
{
	memcpy(a, b, bytes);
	__asm__ volatile("" ::"r"(a) : "memory");
}

static void copy_around(size_t bytes)
{
	if (!copy_around_cache(a, b, bytes))
		copy_memcpy(bytes);
	__asm__ volatile("" ::"r"(a) : "memory");
}

static void triad(size_t bytes)
{
	float *x = (float *)(void *)a;
	const float *y = (const float *)(void *)b, *z = (const float *)(void *)c;

	for (size_t i = 0; i < bytes / sizeof(float); i++)
		x[i] = y[i] + 3.0f * z[i];
	__asm__ volatile("" ::"r"(a) : "memory");
}

/* Returns the bandwidth of `pass`. Small passes are repeated so often that the time to
 * read the clock does not matter. */
static double gb_per_s(void (*pass)(size_t), size_t bytes, unsigned transfers)
{
	size_t repeats = BYTES_MAX / bytes / 4 + 1;
	uint64_t took_ns[PASSES];

	for (int i = -2; i < PASSES; i++) {
		uint64_t start_ns = bench_now_ns();

		for (size_t k = 0; k < repeats; k++)
			pass(bytes);
		if (i >= 0)
			took_ns[i] = bench_now_ns() - start_ns;
	}
	return (double)(bytes * repeats * transfers) /
	       (double)bench_percentile(took_ns, PASSES, 0.5);
}

int main(void)
{
	static const size_t sizes[] = {64 << 10, 1 << 20, 16 << 20, BYTES_MAX};

	bench_pin(0);
	a = bench_memory(BYTES_MAX, false);
	b = bench_memory(BYTES_MAX, false);
	c = bench_memory(BYTES_MAX, false);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		printf("{\"size\": %zu, \"memcpy_gb_per_s\": %.3f, \"around_gb_per_s\": "
		       "%.3f, "
		       "\"triad_gb_per_s\": %.3f}\n",
			sizes[i], gb_per_s(copy_memcpy, sizes[i], 1),
			gb_per_s(copy_around, sizes[i], 1), gb_per_s(triad, sizes[i], 3));
	return 0;
}
