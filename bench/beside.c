/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/beside.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/pair.h"
#include "bench/two.h"

#define MARK_BYTES ((size_t)1 << 20)

enum question { BYTES = 1, END };

static volatile uint64_t *mark_of(const void *tensor, size_t at)
{
	return (volatile uint64_t *)((char *)tensor + at);
}

void beside_mark(void *tensor, uint64_t number)
{
	for (size_t at = 0; at < BESIDE_LARGE_BYTES; at += MARK_BYTES)
		*mark_of(tensor, at) = number;
}

size_t beside_arrived(const void *tensor, uint64_t number)
{
	size_t bytes = 0;

	for (size_t at = 0; at < BESIDE_LARGE_BYTES; at += MARK_BYTES) {
		if (*mark_of(tensor, at) == number)
			bytes += MARK_BYTES;
	}
	return bytes < BESIDE_LARGE_BYTES ? bytes : BESIDE_LARGE_BYTES;
}

void beside_answer(int fd, uint64_t bytes)
{
	uint64_t question;

	two_hear(fd, &question, sizeof(question));
	if (question == END)
		_exit(0);
	two_tell(fd, &bytes, sizeof(bytes));
}

static uint64_t flowed_bytes(int fd)
{
	uint64_t word = BYTES;

	two_tell(fd, &word, sizeof(word));
	two_hear(fd, &word, sizeof(word));
	return word;
}

/* Measures round trips after as many that are not counted. */
static void measure(const struct beside_ops *ops, int fd, uint64_t rounds, const char *point)
{
	uint64_t *took_ns = calloc(rounds, sizeof(*took_ns)), before, begin_ns;
	double seconds;

	if (!took_ns)
		pair_die("no memory for %llu rounds", (unsigned long long)rounds);
	for (uint64_t i = 0; i < rounds; i++)
		ops->trip();
	before = flowed_bytes(fd);
	begin_ns = bench_now_ns();
	for (uint64_t i = 0; i < rounds; i++) {
		uint64_t start_ns = bench_now_ns();

		ops->trip();
		took_ns[i] = bench_now_ns() - start_ns;
	}
	seconds = (double)(bench_now_ns() - begin_ns) / 1e9;
	printf("{\"point\": \"%s\", \"p50_us\": %.3f, \"p99_us\": %.3f, "
	       "\"beside_gb_per_s\": %.3f}\n",
		point, (double)bench_percentile_ns(took_ns, rounds, 0.5) / 1e3,
		(double)bench_percentile_ns(took_ns, rounds, 0.99) / 1e3,
		(double)(flowed_bytes(fd) - before) / seconds / 1e9);
	fflush(stdout);
	free(took_ns);
}

int beside_main(int argc, char **argv, const struct beside_ops *ops)
{
	uint64_t rounds = argc > 1 ? strtoull(argv[argc - 1], NULL, 10) : 0, end = END;
	bool client;
	int fd;

	if (!rounds)
		pair_die("usage: %s", ops->usage);
	fd = two_fork(&client);
	if (!client)
		ops->serve(fd);
	ops->connect(fd);
	measure(ops, fd, rounds, "idle");
	ops->start_flows();
	measure(ops, fd, rounds, "beside tensors of 256 MB");
	two_tell(fd, &end, sizeof(end));
	_exit(0); /* without waiting for the large tensors */
}
