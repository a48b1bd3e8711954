/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both ends start a send before they post the receive of the message that comes next: posting
 * it then takes no time of its own, since the sent message travels meanwhile. Libraries take in
 * messages mainly in wait(), so the receive is posted before the library sees the message for it.
 */
#include "bench/peers/tagged.h"

#include <stdlib.h>

static const struct tagged_ops *lib;

/* A buffer for answers, alone in its cache line. */
struct reply {
	_Alignas(64) unsigned char bytes[64];
};

static _Thread_local struct reply *replies; /* one for each slot */

static void receive_data(struct pair *p, uint64_t n)
{
	lib->receive(
		p, pair_slot(p, n), TAGGED_DATA, pair_tensor(p, n), pair_bytes(p, n));
}

static void tagged_begin(struct pair *p)
{
	if (!replies)
		replies = aligned_alloc(
			_Alignof(struct reply), p->inflight * sizeof(*replies));
	for (uint64_t n = 0; !p->sender && n < p->inflight && n < p->total; n++)
		receive_data(p, n);
}

static unsigned char *reply_of(const struct pair *p, uint64_t n)
{
	return p->both_ways ? pair_reply(p, n) : replies[pair_slot(p, n)].bytes;
}

static size_t reply_bytes(const struct pair *p, uint64_t n)
{
	return p->both_ways ? pair_bytes(p, n) : PAIR_REPLY_BYTES;
}

static void tagged_post(struct pair *p, uint64_t n)
{
	unsigned slot = pair_slot(p, n);

	lib->send(p, slot, TAGGED_DATA, pair_tensor(p, n), pair_bytes(p, n));
	if (pair_answered(p, n))
		lib->receive(p, slot, TAGGED_REPLY, reply_of(p, n), reply_bytes(p, n));
}

static void tagged_await(struct pair *p, uint64_t n)
{
	unsigned slot = pair_slot(p, n);

	lib->wait(p, slot, TAGGED_DATA);
	if (pair_answered(p, n))
		lib->wait(p, slot, TAGGED_REPLY);
}

static void tagged_receive(struct pair *p, uint64_t n)
{
	lib->wait(p, pair_slot(p, n), TAGGED_DATA);
}

/* In both directions, the slot's previous answer has arrived at the sender, so waiting for it
 * takes no time, and the function does not wait for the new answer. */
static void tagged_answer(struct pair *p, uint64_t n)
{
	unsigned slot = pair_slot(p, n);

	if (p->both_ways && n >= p->inflight)
		lib->wait(p, slot, TAGGED_REPLY);
	if (pair_answered(p, n))
		lib->send(p, slot, TAGGED_REPLY, reply_of(p, n), reply_bytes(p, n));
	if (n + p->inflight < p->total)
		receive_data(p, n + p->inflight);
	if (pair_answered(p, n) && !p->both_ways)
		lib->wait(p, slot, TAGGED_REPLY);
}

static void tagged_flush(struct pair *p)
{
	for (unsigned i = 0; p->both_ways && i < p->inflight; i++)
		lib->wait(p, i, TAGGED_REPLY);
}

int tagged_main(
	int argc, char **argv, struct pair_ops *pair, const struct tagged_ops *ops)
{
	lib = ops;
	pair->begin = tagged_begin;
	pair->post = tagged_post;
	pair->await = tagged_await;
	pair->receive = tagged_receive;
	pair->answer = tagged_answer;
	pair->flush = tagged_flush;
	pair->progress = ops->progress;
	pair->both_ways = true;
	return pair_main(argc, argv, pair);
}
