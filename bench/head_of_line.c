/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures head-of-line blocking: round trips of a tensor of 4 KiB on an idle connection,
 * and on a connection that also carries tensors of 256 MB, two at a time.
 *
 *     head_of_line FABRIC ROUNDS
 *
 * What the large tensors move meanwhile is counted to the MiB, also of those that are not
 * complete: a fast machine may end none of them during the round trips. The sender writes
 * the step's number at the start of each MiB, and the receiver looks how many of these
 * marks have arrived.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench/link.h"
#include "bench/pair.h"

#define SMALL_BYTES 4096u
#define LARGE_BYTES (256ull * 1000 * 1000)
#define FLOWS       2u
#define MARK_BYTES  (1ull << 20)

enum { SMALL_KEY = 1, REPLY_KEY, LARGE_KEY };

struct flow {
	struct link *link;
	struct tern_buf buf;
	struct tern_req req;
	uint64_t key, step; /* of the next tensor */
	bool on;            /* start the next tensor when this one is complete */
};

static struct flow flows[FLOWS];
/* round trips to measure; large tensors that are complete */
static uint64_t rounds, completed;

static volatile uint64_t *flow_mark(const struct flow *f, uint64_t at)
{
	return (volatile uint64_t *)((char *)tern_buf_ptr(&f->buf) + at);
}

static void flow_start(struct flow *f)
{
	f->step++;
	if (f->link->sender) {
		for (uint64_t at = 0; at < LARGE_BYTES; at += MARK_BYTES)
			*flow_mark(f, at) = f->step;
		link_send(f->link, &f->req, f->key, f->step, &f->buf, 0);
	} else {
		link_receive(f->link, &f->req, f->key, f->step, &f->buf);
	}
}

/* Bytes that the receiver has got since the flows began, to the MiB. */
static uint64_t flowed_bytes(void)
{
	uint64_t bytes = completed * LARGE_BYTES;

	for (unsigned i = 0; i < FLOWS; i++)
		for (uint64_t at = 0; flows[i].on && at < LARGE_BYTES; at += MARK_BYTES)
			if (*flow_mark(&flows[i], at) == flows[i].step)
				bytes += MARK_BYTES;
	return bytes;
}

static void flow_done(struct tern_req *req)
{
	struct flow *f = req->arg;

	if (req->status && f->on)
		pair_die("a large tensor: %s", tern_status_text(req->status));
	completed++;
	if (f->on)
		flow_start(f);
}

static void start_flows(struct link *link)
{
	for (unsigned i = 0; i < FLOWS; i++) {
		flows[i] = (struct flow){.link = link,
			.buf = link_take(link, LARGE_BYTES),
			.key = LARGE_KEY + i,
			.on = true};
		flows[i].req.done = flow_done;
		flows[i].req.arg = &flows[i];
		flow_start(&flows[i]);
	}
}

/* Nanoseconds of each of `rounds` round trips, whose steps begin with `first`. */
static uint64_t *trips(struct link *link, uint64_t first)
{
	uint64_t *took_ns = calloc(rounds, sizeof(*took_ns));
	struct tern_buf small = link_take(link, SMALL_BYTES), reply = link_take(link, 8);
	struct tern_req data = {0}, answer = {0};

	for (uint64_t n = first; n < first + rounds; n++) {
		uint64_t start_ns = bench_now_ns();

		if (link->sender) {
			link_receive(link, &answer, REPLY_KEY, n, &reply);
			link_send(link, &data, SMALL_KEY, n, &small, TERN_URGENT);
		} else {
			link_receive(link, &data, SMALL_KEY, n, &small);
			link_wait(link, &data);
			link_send(link, &answer, REPLY_KEY, n, &reply, TERN_URGENT);
		}
		link_wait(link, &answer);
		if (link->sender)
			link_wait(link, &data);
		took_ns[n - first] = bench_now_ns() - start_ns;
	}
	tern_pool_put(link->pool, &small);
	tern_pool_put(link->pool, &reply);
	return took_ns;
}

/* Measures round trips after as many that are not counted. The receiver, which sees what
 * has arrived, tells the sender how many bytes a second the flows moved. */
static void measure(struct link *link, uint64_t first, const char *point)
{
	uint64_t *took_ns, begin_ns, before, bytes_per_s;

	free(trips(link, first));
	begin_ns = bench_now_ns();
	before = flowed_bytes();
	took_ns = trips(link, first + rounds);
	if (link->sender) {
		bytes_per_s = link_hear(link);
		printf("{\"point\": \"%s\", \"p50_us\": %.3f, \"p99_us\": %.3f, "
		       "\"beside_gb_per_s\": %.3f}\n",
			point, (double)bench_percentile_ns(took_ns, rounds, 0.5) / 1e3,
			(double)bench_percentile_ns(took_ns, rounds, 0.99) / 1e3,
			(double)bytes_per_s / 1e9);
	} else {
		uint64_t moved = flowed_bytes() - before;
		double took_s = (double)(bench_now_ns() - begin_ns) / 1e9;

		link_tell(link, (uint64_t)((double)moved / took_s));
	}
	free(took_ns);
}

static void both(struct link *link)
{
	measure(link, 0, "idle");
	start_flows(link);
	measure(link, 2 * rounds, "beside tensors of 256 MB");
	for (unsigned i = 0; i < FLOWS; i++)
		flows[i].on = false; /* starts no more tensors */
}

int main(int argc, char **argv)
{
	rounds = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
	if (!rounds)
		pair_die("usage: head_of_line FABRIC ROUNDS");
	link_run(argv[1], 2 * LARGE_BYTES + (2u << 20), both, both);
	return 0;
}
