/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares many small tensors with one large one: the 161 parameter tensors of ResNet-50,
 * and one tensor of the same total size, sent step by step. A step ends when the receiver
 * has all tensors and has answered with 8 bytes.
 *
 *     many FABRIC STEPS
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench/link.h"
#include "bench/pair.h"
#include "bench/resnet50.h"

#define WARMUP    3u
#define REPLY_KEY 1000u

struct set {
	const char *name;
	unsigned count;
	struct tern_buf bufs[RESNET50_COUNT];
	struct tern_req reqs[RESNET50_COUNT];
	struct tern_buf reply;
	struct tern_req reply_req;
	uint64_t bytes;
};

static unsigned steps;

static void make(struct link *link, struct set *set, bool split)
{
	uint64_t elements = 0;

	*set = (struct set){.name = split ? "161 tensors" : "1 tensor"};
	for (unsigned i = 0; i < RESNET50_COUNT; i++)
		elements += resnet50_elements[i];
	set->bytes = elements * sizeof(float);
	set->count = split ? RESNET50_COUNT : 1;
	for (unsigned i = 0; i < set->count; i++)
		set->bufs[i] = link_take(
			link, split ? resnet50_elements[i] * sizeof(float) : set->bytes);
	set->reply = link_take(link, 8);
}

static void drop(struct link *link, struct set *set)
{
	for (unsigned i = 0; i < set->count; i++)
		tern_pool_put(link->pool, &set->bufs[i]);
	tern_pool_put(link->pool, &set->reply);
}

static void send_set(struct link *link, bool split)
{
	static struct set set;
	uint64_t start_ns = 0;

	make(link, &set, split);
	for (unsigned i = 0; i < set.count; i++)
		bench_fill(tern_buf_ptr(&set.bufs[i]), set.bufs[i].bytes, i);
	for (unsigned step = 0; step < steps + WARMUP; step++) {
		if (step == WARMUP)
			start_ns = bench_now_ns();
		link_receive(link, &set.reply_req, REPLY_KEY, step, &set.reply);
		for (unsigned i = 0; i < set.count; i++)
			link_send(link, &set.reqs[i], i, step, &set.bufs[i], 0);
		for (unsigned i = 0; i < set.count; i++)
			link_wait(link, &set.reqs[i]);
		link_wait(link, &set.reply_req);
	}
	printf("{\"point\": \"%s\", \"gb_per_s\": %.4f}\n", set.name,
		(double)set.bytes * steps / (double)(bench_now_ns() - start_ns));
	drop(link, &set);
}

static void receive_set(struct link *link, bool split)
{
	static struct set set;

	make(link, &set, split);
	for (unsigned i = 0; i < set.count; i++)
		link_receive(link, &set.reqs[i], i, 0, &set.bufs[i]);
	for (unsigned step = 0; step < steps + WARMUP; step++) {
		for (unsigned i = 0; i < set.count; i++) {
			link_wait(link, &set.reqs[i]);
			if (step == 0 && !bench_holds(tern_buf_ptr(&set.bufs[i]),
						 set.bufs[i].bytes, i))
				pair_die("tensor %u arrived with other contents", i);
		}
		for (unsigned i = 0; i < set.count && step + 1 < steps + WARMUP; i++)
			link_receive(link, &set.reqs[i], i, step + 1, &set.bufs[i]);
		link_send(link, &set.reply_req, REPLY_KEY, step, &set.reply, 0);
		link_wait(link, &set.reply_req);
	}
	drop(link, &set);
}

static void sender(struct link *link)
{
	send_set(link, true);
	link_tell(link, 0);
	link_hear(link);
	send_set(link, false);
}

static void receiver(struct link *link)
{
	receive_set(link, true);
	link_tell(link, 0);
	link_hear(link);
	receive_set(link, false);
}

int main(int argc, char **argv)
{
	steps = argc == 3 ? (unsigned)atoi(argv[2]) : 0;
	if (!steps)
		pair_die("usage: many FABRIC STEPS");
	link_run(argv[1], 128u << 20, sender, receiver);
	return 0;
}
