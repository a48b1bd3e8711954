/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/beside.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/pair.h"
#include "bench/two.h"

#define MARK_BYTES ((size_t)1 << 20)
#define LIMIT_NS   4000000000ull
#define TAIL_LEAST 100u /* a p99 is printed of at least so many round trips */

static volatile uint64_t *mark_of(const void *tensor, size_t at)
{
	return (volatile uint64_t *)(void *)((char *)tensor + at);
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

/* The server's answer: how many bytes of large tensors had arrived at the time at_ns. The rate
 * is computed with at_ns and not with the time of the question, because a busy server answers
 * late. */
struct count {
	uint64_t bytes, at_ns;
};

void beside_answer(int fd, uint64_t bytes)
{
	struct count count = {bytes, bench_now_ns()};

	two_question(fd);
	two_tell(fd, &count, sizeof(count));
}

static struct count count_bytes(int fd)
{
	struct count count;

	two_ask(fd, 0, &count, sizeof(count));
	return count;
}

/* Makes `rounds` round trips; fewer, but at least one, if they take longer than LIMIT_NS.
 * Returns how many. */
static uint64_t run_trips(
	const struct beside_ops *ops, uint64_t rounds, uint64_t *took_ns)
{
	uint64_t begin_ns = bench_now_ns(), now_ns = begin_ns, n = 0;

	while (n < rounds && (n == 0 || now_ns - begin_ns < LIMIT_NS)) {
		uint64_t start_ns = now_ns;

		ops->trip();
		now_ns = bench_now_ns();
		took_ns[n++] = now_ns - start_ns;
	}
	return n;
}

/* Measures up to `rounds` round trips, after a warm-up of as many. */
static void measure(
	const struct beside_ops *ops, int fd, uint64_t rounds, const char *point)
{
	uint64_t *took_ns = calloc(rounds, sizeof(*took_ns)), n;
	struct count before, after;

	if (!took_ns)
		pair_die("no memory for %llu rounds", (unsigned long long)rounds);
	run_trips(ops, rounds, took_ns);
	before = count_bytes(fd);
	n = run_trips(ops, rounds, took_ns);
	after = count_bytes(fd);
	printf("{\"point\": \"%s\", \"p50_us\": %.3f, \"beside_gb_per_s\": %.3f", point,
		(double)bench_percentile(took_ns, n, 0.5) / 1e3,
		(double)(after.bytes - before.bytes) /
			(double)(after.at_ns - before.at_ns));
	if (n >= TAIL_LEAST)
		printf(", \"p99_us\": %.3f",
			(double)bench_percentile(took_ns, n, 0.99) / 1e3);
	printf("}\n");
	fflush(stdout);
	free(took_ns);
}

int beside_main(int argc, char **argv, const struct beside_ops *ops)
{
	uint64_t rounds = argc > 1 ? strtoull(argv[argc - 1], NULL, 10) : 0;
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
	two_end(fd);
	_exit(0); /* without waiting for the large tensors */
}
