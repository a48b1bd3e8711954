/* SPDX-License-Identifier: Apache-2.0 */
/*
 * life URL [SECONDS]: a session that exists for long. It sends small tensors as fast as
 * it can, for an hour or SECONDS, and checks each of them. Every five seconds (or 20
 * times in all, if that is more often) its connection is cut (on fabrics that can
 * reconnect), and it sends a tensor large enough to use rails (additional connections).
 * On tcp an hour means more than 2^31 messages, on most machines more than 2^32. After
 * the first tenth of the time, the memory of the process must not grow by more than
 * GROWTH_MAX.
 *
 * One thread serves both ends in turn. Exit code 0: success.
 */
#include <tern/tern.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/util.h"
#include "rendezvous/rendezvous.h"

#define CHANNEL     1u
#define PAIR_COUNT  256u
#define SMALL_BYTES 32u
#define LARGE_BYTES (4ull << 20)
#define LARGE_KEY   1000u
#define RAIL_COUNT  2u
#define EVENT_NS    (5 * TERN_NS_PER_S)
#define HANG_NS     (60 * TERN_NS_PER_S)
/* Allowed growth of resident memory in bytes, since malloc and the kernel round sizes
 * up. */
#define GROWTH_MAX (4ll << 20)

static _Noreturn void fail(const char *what, int status)
{
	fprintf(stderr, "life: %s: %s\n", what, tern_status_text(status));
	exit(1);
}

static void require(int status, const char *what)
{
	if (status < 0)
		fail(what, status);
}

struct pair {
	struct tern_req send, recv;
	struct tern_tensor tensor;
	struct tern_buf room;
	uint64_t step;
};

struct life {
	struct tern_domain *domain;
	struct tern_context *ctx[2];
	struct tern_listener *listener;
	struct tern_peer *peer[2];
	struct tern_channel *channel[2];
	struct tern_pool *pool;
	struct pair pairs[PAIR_COUNT], large;
	uint64_t moved, recovered, made_rails;
};

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct life *l = arg;

	l->peer[1] = peer;
}

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct life *l = arg;

	(void)peer;
	if (event == TERN_PEER_DOWN)
		fail("the session ended", status);
	l->recovered += event == TERN_PEER_RECOVERED;
}

static void progress(struct life *l)
{
	for (int i = 0; i < 2; i++)
		require(tern_progress(l->ctx[i]), "progress");
}

#define PROGRESS_UNTIL(l, cond, what)                                                    \
	do {                                                                             \
		uint64_t until_ns_ = tern_clock_ns() + HANG_NS;                          \
		while (!(cond)) {                                                        \
			progress(l);                                                     \
			if (tern_clock_ns() > until_ns_)                                 \
				fail(what, -ETIMEDOUT);                                  \
		}                                                                        \
	} while (0)

/* ---- tensors ---- */

static void pair_init(struct life *l, struct pair *p, uint64_t bytes)
{
	require(tern_pool_get(l->pool, bytes, &p->tensor.buf), "memory");
	require(tern_pool_get(l->pool, bytes, &p->room), "memory");
	p->tensor.shape = tern_shape_1d(TERN_U8, bytes);
}

static void pair_start(struct life *l, struct pair *p, uint64_t key)
{
	*(uint64_t *)tern_buf_ptr(&p->tensor.buf) = ++p->step;
	require(tern_recv(l->channel[1], &p->recv, key, p->step, &p->room, NULL, 0),
		"a receive");
	require(tern_send(l->channel[0], &p->send, key, p->step, &p->tensor, NULL, 0),
		"a send");
}

static bool pair_is_over(const struct pair *p)
{
	return tern_test(&p->send) != -EINPROGRESS && tern_test(&p->recv) != -EINPROGRESS;
}

static void pair_check(const struct pair *p)
{
	require(p->send.status, "a send");
	require(p->recv.status, "a receive");
	if (*(uint64_t *)tern_buf_ptr(&p->room) != p->step)
		fail("another tensor came than was sent", -EILSEQ);
}

static bool pairs_are_over(const struct life *l)
{
	for (unsigned i = 0; i < PAIR_COUNT; i++)
		if (!pair_is_over(&l->pairs[i]))
			return false;
	return true;
}

static void flow(struct life *l, uint64_t until_ns)
{
	while (tern_clock_ns() < until_ns) {
		for (unsigned i = 0; i < PAIR_COUNT; i++)
			pair_start(l, &l->pairs[i], i);
		PROGRESS_UNTIL(l, pairs_are_over(l), "small tensors");
		for (unsigned i = 0; i < PAIR_COUNT; i++)
			pair_check(&l->pairs[i]);
		l->moved += PAIR_COUNT;
	}
}

/* ---- events during the session ---- */

/* True if all rails are connected. The main link is one of them, unless large tensors
 * have connections of their own. */
static bool rails_are_up(const struct tern_peer *peer)
{
	unsigned last = peer->rails.bulk_bytes ? RAIL_COUNT : RAIL_COUNT - 1;

	for (unsigned i = 1; i <= last; i++)
		if (!peer->rails.link[i])
			return false;
	return true;
}

static void lose_the_link(struct life *l)
{
	uint64_t before = l->recovered;

	if (tern_peer_caps(l->peer[0]) & TERN_CAP_BOUND)
		return;
	tern_peer_cut(l->peer[0], -ECONNRESET);
	PROGRESS_UNTIL(l, l->recovered >= before + 2, "a lost link did not come back");
}

static void make_rails(struct life *l)
{
	pair_start(l, &l->large, LARGE_KEY);
	PROGRESS_UNTIL(l, pair_is_over(&l->large), "a large tensor");
	pair_check(&l->large);
	if (!(tern_peer_caps(l->peer[0]) & TERN_CAP_PUT))
		return;
	PROGRESS_UNTIL(l, rails_are_up(l->peer[0]), "the rails did not come up");
	l->made_rails++;
}

static long long resident_bytes(void)
{
	long long all, resident = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	if (!file || fscanf(file, "%lld %lld", &all, &resident) != 2)
		fail("/proc/self/statm", -errno);
	fclose(file);
	return resident * sysconf(_SC_PAGESIZE);
}

static void live(struct life *l, uint64_t life_ns)
{
	uint64_t begin_ns = tern_clock_ns(), now_ns = begin_ns;
	uint64_t event_ns = TERN_MIN(EVENT_NS, life_ns / 20);
	long long first = 0, last = 0;

	while (now_ns - begin_ns < life_ns) {
		flow(l, now_ns + event_ns);
		lose_the_link(l);
		make_rails(l);
		now_ns = tern_clock_ns();
		last = resident_bytes();
		if (!first && now_ns - begin_ns > life_ns / 10)
			first = last;
		if (first && last > first + GROWTH_MAX) {
			fprintf(stderr, "life: memory grew from %lld to %lld bytes\n",
				first, last);
			exit(1);
		}
	}
	printf("life: %" PRIu64 " tensors, %" PRIu64 " links lost, rails made %" PRIu64
	       " times, %lld KiB resident, %lld KiB after a tenth of the time\n",
		l->moved, l->recovered / 2, l->made_rails, last >> 10, first >> 10);
}

static void begin(struct life *l, const char *url)
{
	const struct tern_context_opts opts = {.rail_count = RAIL_COUNT,
		.no_spin = true,
		.suspect_ns = HANG_NS / 4,
		.dead_ns = HANG_NS,
		.reconnect_ns = HANG_NS};
	const struct tern_pool_opts pool_opts = {
		.slab_bytes = 16u << 20, .max_bytes = 32u << 20};
	const struct tern_peer_opts peer_opts = {.event = on_event, .arg = l};

	require(tern_domain_new(NULL, &l->domain), "the domain");
	require(tern_pool_new(l->domain, &pool_opts, &l->pool), "the pool");
	for (int i = 0; i < 2; i++)
		require(tern_context_new(l->domain, &opts, &l->ctx[i]), "a context");
	require(tern_listen(l->ctx[1], url, &peer_opts, on_accept, l, &l->listener), url);
	require(tern_connect(l->ctx[0], tern_listener_address(l->listener), &peer_opts,
			&l->peer[0]),
		url);
	PROGRESS_UNTIL(l, l->peer[1], "the connection");
	for (int i = 0; i < 2; i++)
		require(tern_channel_open(l->peer[i], CHANNEL, &l->channel[i]),
			"a channel");
	for (unsigned i = 0; i < PAIR_COUNT; i++)
		pair_init(l, &l->pairs[i], SMALL_BYTES);
	pair_init(l, &l->large, LARGE_BYTES);
}

static void end(struct life *l)
{
	tern_listener_free(l->listener);
	for (int i = 0; i < 2; i++) {
		tern_peer_free(l->peer[i]);
		tern_context_free(l->ctx[i]);
	}
	for (unsigned i = 0; i < PAIR_COUNT; i++) {
		tern_pool_put(l->pool, &l->pairs[i].tensor.buf);
		tern_pool_put(l->pool, &l->pairs[i].room);
	}
	tern_pool_put(l->pool, &l->large.tensor.buf);
	tern_pool_put(l->pool, &l->large.room);
	tern_pool_free(l->pool);
	tern_domain_free(l->domain);
}

int main(int argc, char **argv)
{
	static struct life life;
	uint64_t seconds = argc > 2 ? strtoull(argv[2], NULL, 10) : 3600;

	if (argc < 2 || seconds == 0) {
		fprintf(stderr, "usage: life URL [SECONDS]\n");
		return 2;
	}
	begin(&life, argv[1]);
	live(&life, seconds * TERN_NS_PER_S);
	end(&life);
	return 0;
}
