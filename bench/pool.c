/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures malloc as `tern bench pool` measures Tern's pool: 256 pieces of memory are
 * allocated, and one at random is freed and allocated again. Prints the median over
 * batches.
 *
 *     pool SIZES ROUNDS
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench/pair.h"

#define WINDOW    256u
#define BATCH     1000u
#define SIZES_MAX 8

static uint64_t random_state = 1;

static void churn(void **out, size_t size, uint64_t rounds)
{
	for (uint64_t i = 0; i < rounds; i++) {
		void **one;

		random_state = random_state * 6364136223846793005u + 1442695040888963407u;
		one = &out[random_state >> 56];
		free(*one);
		*one = malloc(size);
		/* Without this write the compiler would remove free() and malloc(). */
		*(volatile char *)*one = 1;
	}
}

static double time_malloc_ns(size_t size, uint64_t rounds)
{
	uint64_t batch = rounds < BATCH ? rounds : BATCH, count = rounds / batch;
	uint64_t *took_ns = bench_memory(count * sizeof(*took_ns), false);
	void *out[WINDOW];

	for (unsigned i = 0; i < WINDOW; i++)
		out[i] = malloc(size);
	for (uint64_t i = 0; i < count; i++) {
		uint64_t start_ns = bench_now_ns();

		churn(out, size, batch);
		took_ns[i] = bench_now_ns() - start_ns;
	}
	for (unsigned i = 0; i < WINDOW; i++)
		free(out[i]);
	return (double)bench_percentile(took_ns, count, 0.5) / (double)batch;
}

int main(int argc, char **argv)
{
	uint64_t sizes[SIZES_MAX];
	uint64_t rounds = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;

	if (!rounds)
		pair_die("usage: pool SIZE,... ROUNDS");
	for (unsigned i = 0, n = bench_sizes(argv[1], sizes, SIZES_MAX); i < n; i++)
		printf("{\"size\": %llu, \"alloc_ns\": %.2f}\n",
			(unsigned long long)sizes[i], time_malloc_ns(sizes[i], rounds));
	return 0;
}
