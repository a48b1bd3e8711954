/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the cost of registering memory for each message: round trips of a tensor from
 * the pool, and of memory that both ends register (tern_mem_wrap) before each message and
 * release after it.
 *
 *     registration FABRIC BYTES ROUNDS
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench/link.h"
#include "bench/pair.h"

#define DATA_KEY  1u
#define REPLY_KEY 2u

static uint64_t bytes, rounds;

/* Memory of a message. `once`: it comes from the pool, so it was registered only once. */
struct place {
	bool once;
	void *memory;
	struct tern_buf buf;
};

static void place_get(struct link *link, struct place *p)
{
	if (p->once)
		return;
	link_must("wrap", tern_mem_wrap(link->domain, p->memory, bytes, &p->buf.mem));
	p->buf.offset = 0;
	p->buf.bytes = bytes;
}

static void place_put(struct place *p)
{
	if (!p->once)
		tern_mem_put(p->buf.mem);
}

static void run(struct link *link, struct place *p, uint64_t first, uint64_t *trips_ns)
{
	struct tern_req data = {0}, reply = {0};
	struct tern_buf answer = link_take(link, 8);

	for (uint64_t n = first; n < first + rounds; n++) {
		uint64_t start_ns = bench_now_ns();

		place_get(link, p);
		if (link->sender) {
			link_receive(link, &reply, REPLY_KEY, n, &answer);
			link_send(link, &data, DATA_KEY, n, &p->buf, 0);
		} else {
			link_receive(link, &data, DATA_KEY, n, &p->buf);
		}
		link_wait(link, &data);
		if (!link->sender)
			link_send(link, &reply, REPLY_KEY, n, &answer, 0);
		link_wait(link, &reply);
		place_put(p);
		trips_ns[n - first] = bench_now_ns() - start_ns;
	}
	tern_pool_put(link->pool, &answer);
}

static void both(struct link *link)
{
	uint64_t *trips_ns = calloc(rounds, sizeof(*trips_ns));
	struct place pool = {.once = true, .buf = link_take(link, bytes)};
	struct place wrapped = {.memory = bench_memory(bytes, false)};

	run(link, &pool, 0, trips_ns); /* warm-up, not counted */
	run(link, &pool, rounds, trips_ns);
	if (link->sender)
		printf("{\"point\": \"from the pool\", \"p50_us\": %.3f}\n",
			(double)bench_percentile(trips_ns, rounds, 0.5) / 1e3);
	run(link, &wrapped, 2 * rounds, trips_ns);
	if (link->sender)
		printf("{\"point\": \"wrapped each time\", \"p50_us\": %.3f}\n",
			(double)bench_percentile(trips_ns, rounds, 0.5) / 1e3);
	free(trips_ns);
}

int main(int argc, char **argv)
{
	bytes = argc == 4 ? strtoull(argv[2], NULL, 10) : 0;
	rounds = argc == 4 ? strtoull(argv[3], NULL, 10) : 0;
	if (!bytes || !rounds)
		pair_die("usage: registration FABRIC BYTES ROUNDS");
	link_run(argv[1], bytes + (1u << 20), both, both);
	return 0;
}
