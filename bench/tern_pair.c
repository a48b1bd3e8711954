/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tern as a program of pair.h, for what `tern bench` does not measure: steps of many
 * tensors, both directions, and several threads. The variant is the fabric. An end posts the
 * receive of the next message before it sends its own; the tensors are in a pool's memory. With
 * several threads, each has a context, and all share the domain.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "bench/link.h"
#include "bench/pair.h"

enum { DATA_KEY = 1, REPLY_KEY };

/* Requests of one slot. */
struct slot {
	struct tern_req data, reply;
};

static struct tern_domain *domain;
static pthread_once_t domain_once = PTHREAD_ONCE_INIT;

static _Thread_local struct link link;
static _Thread_local struct slot *slots;
/* all: memory of all tensors; reply: 8 bytes, for all answers if they are no tensors */
static _Thread_local struct tern_buf all, reply;

static struct slot *slot_of(const struct pair *p, uint64_t n)
{
	return &slots[pair_slot(p, n)];
}

static struct tern_buf buf_of(
	const struct pair *p, const unsigned char *tensor, uint64_t n)
{
	return (struct tern_buf){.mem = all.mem,
		.offset = all.offset + (uint64_t)(tensor - p->tensors),
		.bytes = pair_bytes(p, n)};
}

static struct tern_buf data_of(const struct pair *p, uint64_t n)
{
	return buf_of(p, pair_tensor(p, n), n);
}

static struct tern_buf reply_of(const struct pair *p, uint64_t n)
{
	return p->both_ways ? buf_of(p, pair_reply(p, n), n) : reply;
}

static void wait_for(const struct pair *p, struct tern_req *req)
{
	while (p->poll && tern_test(req) == -EINPROGRESS)
		tern_progress(link.ctx);
	link_wait(&link, req);
}

/*
 * As wait_for(), for the send or the receive of message n. tern_wait() makes progress even if the
 * request has ended, so that the bytes of small sends leave. If a message is not answered, the
 * other end does not wait for it, so progress is made only once in each `inflight` messages, which
 * then leave together, as with `tern bench`.
 */
static void wait_for_data(const struct pair *p, uint64_t n)
{
	struct tern_req *req = &slot_of(p, n)->data;
	int status = tern_test(req);

	if (status == -EINPROGRESS || pair_answered(p, n) || n % p->inflight == 0)
		wait_for(p, req);
	else
		link_must("a transfer", status);
}

static void make_domain(void)
{
	link_must("domain", tern_domain_new(NULL, &domain));
}

static unsigned char *tern_memory(struct pair *p, size_t bytes)
{
	pthread_once(&domain_once, make_domain);
	link = (struct link){.sender = p->sender, .fd = p->fd, .domain = domain};
	slots = calloc(p->inflight, sizeof(*slots));
	if (!slots)
		pair_die("no memory for %u slots", p->inflight);
	link_open(&link, p->variant, bytes + (1u << 20));
	reply = link_take(&link, PAIR_REPLY_BYTES);
	all = link_take(&link, bytes);
	return tern_buf_ptr(&all);
}

static void tern_open(struct pair *p)
{
	(void)p;
	link_meet(&link);
}

static void receive_data(struct pair *p, uint64_t n)
{
	struct tern_buf room = data_of(p, n);

	link_receive(&link, &slot_of(p, n)->data, DATA_KEY, n, &room);
}

static void tern_begin(struct pair *p)
{
	for (uint64_t n = 0; !p->sender && n < p->inflight && n < p->total; n++)
		receive_data(p, n);
}

static void tern_post(struct pair *p, uint64_t n)
{
	struct slot *slot = slot_of(p, n);
	struct tern_buf data = data_of(p, n), room = reply_of(p, n);

	if (pair_answered(p, n))
		link_receive(&link, &slot->reply, REPLY_KEY, n, &room);
	link_send(&link, &slot->data, DATA_KEY, n, &data, 0);
}

static void tern_await(struct pair *p, uint64_t n)
{
	wait_for_data(p, n);
	if (pair_answered(p, n))
		wait_for(p, &slot_of(p, n)->reply);
}

static void tern_receive(struct pair *p, uint64_t n)
{
	wait_for_data(p, n);
}

static void tern_answer(struct pair *p, uint64_t n)
{
	struct slot *slot = slot_of(p, n);
	struct tern_buf data = reply_of(p, n);

	if (n + p->inflight < p->total)
		receive_data(p, n + p->inflight);
	if (!pair_answered(p, n))
		return;
	if (p->both_ways && n >= p->inflight)
		wait_for(p, &slot->reply); /* the previous answer, which has arrived */
	link_send(&link, &slot->reply, REPLY_KEY, n, &data, 0);
	if (!p->both_ways)
		wait_for(p, &slot->reply);
}

static void tern_flush(struct pair *p)
{
	for (unsigned i = 0; p->both_ways && i < p->inflight; i++)
		wait_for(p, &slots[i].reply);
}

static void progress(struct pair *p)
{
	(void)p;
	link_must("progress", tern_progress(link.ctx));
}

int main(int argc, char **argv)
{
	return pair_main(argc, argv,
		&(struct pair_ops){.name = "Tern",
			.variants = "tcp,shm",
			.waits = "poll,sleep",
			.both_ways = true,
			.threads = true,
			.version = tern_version,
			.memory = tern_memory,
			.open = tern_open,
			.begin = tern_begin,
			.post = tern_post,
			.await = tern_await,
			.receive = tern_receive,
			.answer = tern_answer,
			.flush = tern_flush,
			.progress = progress});
}
