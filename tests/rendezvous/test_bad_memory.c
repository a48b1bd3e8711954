/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of memory that a program makes inaccessible or read-only while a request uses it.
 * The kernel reports the bad address in the middle of a byte stream, so the connection is
 * lost. The session must end with -EFAULT instead of reconnecting: on a new connection the
 * transfer would fail again.
 */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/util.h"

#define BYTES_MAX (8u << 20)

struct end {
	struct tern_context *ctx;
	struct tern_peer *peer;
	struct tern_channel *channel;
	struct tern_mem *mem;
	char *memory;
	unsigned lost_count;
	int down_status; /* 1: the peer is not down */
};

struct pair {
	struct tern_domain *domain;
	struct tern_listener *listener;
	struct end ends[2];
};

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct end *end = arg;

	(void)peer;
	end->lost_count += event == TERN_PEER_SUSPECT;
	if (event == TERN_PEER_DOWN)
		end->down_status = status;
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	((struct end *)arg)->peer = peer;
}

static void turn(struct pair *p)
{
	tern_progress(p->ends[0].ctx);
	tern_progress(p->ends[1].ctx);
}

static void pair_open(struct pair *p)
{
	struct tern_domain_opts opts = {.tcp_engine = TERN_TCP_EPOLL};
	struct tern_peer_opts peer_opts[2];

	memset(p, 0, sizeof(*p));
	assert_int_equal(tern_domain_new(&opts, &p->domain), 0);
	for (unsigned i = 0; i < 2; i++) {
		struct end *end = &p->ends[i];

		end->down_status = 1;
		peer_opts[i] = (struct tern_peer_opts){.event = on_event, .arg = end};
		assert_int_equal(tern_context_new(p->domain, NULL, &end->ctx), 0);
		end->memory = mmap(NULL, BYTES_MAX, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		assert_ptr_not_equal(end->memory, MAP_FAILED);
		assert_int_equal(
			tern_mem_wrap(p->domain, end->memory, BYTES_MAX, &end->mem), 0);
	}
	assert_int_equal(tern_listen(p->ends[1].ctx, "tcp://127.0.0.1:0", &peer_opts[1],
				 on_accept, &p->ends[1], &p->listener),
		0);
	assert_int_equal(tern_connect(p->ends[0].ctx, tern_listener_address(p->listener),
				 &peer_opts[0], &p->ends[0].peer),
		0);
	while (!p->ends[1].peer)
		turn(p);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(
			tern_channel_open(p->ends[i].peer, 1, &p->ends[i].channel), 0);
}

static void pair_close(struct pair *p)
{
	tern_listener_free(p->listener);
	for (unsigned i = 0; i < 2; i++) {
		tern_peer_free(p->ends[i].peer);
		tern_context_free(p->ends[i].ctx);
		tern_mem_put(p->ends[i].mem);
		munmap(p->ends[i].memory, BYTES_MAX);
	}
	tern_domain_free(p->domain);
}

/* `bad`: which end has the bad memory, the sender (0) or the receiver (1). */
static void check_ends(unsigned bad, uint64_t bytes)
{
	struct tern_req send = {0}, receive = {0};
	struct tern_tensor tensor = {.shape = tern_shape_1d(TERN_U8, bytes)};
	struct tern_buf room;
	struct pair p;
	uint64_t until_ns;

	pair_open(&p);
	tensor.buf = (struct tern_buf){p.ends[0].mem, 0, bytes};
	room = (struct tern_buf){p.ends[1].mem, 0, bytes};
	/* The bad page is in the middle of a chunk (part of a transfer). So the kernel
	 * copies the beginning of the chunk before it finds the bad page. */
	assert_int_equal(mprotect(p.ends[bad].memory + bytes - (256u << 10), 4096,
				 bad == 0 ? PROT_NONE : PROT_READ),
		0);
	assert_int_equal(tern_recv(p.ends[1].channel, &receive, 1, 0, &room, NULL, 0), 0);
	assert_int_equal(tern_send(p.ends[0].channel, &send, 1, 0, &tensor, NULL, 0), 0);
	until_ns = tern_clock_ns() + 20 * TERN_NS_PER_S;
	while (p.ends[bad].down_status == 1 && tern_clock_ns() < until_ns)
		turn(&p);
	assert_int_equal(p.ends[bad].down_status, -EFAULT);
	assert_int_equal(p.ends[bad].lost_count, 0);
	assert_int_equal(tern_test(bad == 0 ? &send : &receive), -EFAULT);
	pair_close(&p);
}

static void test_a_bad_address_ends_the_session_and_says_so(void **state)
{
	/* The second size is large enough to use rails (additional connections). */
	static const uint64_t sizes[] = {1u << 20, BYTES_MAX};

	(void)state;
	for (unsigned bad = 0; bad < 2; bad++)
		for (unsigned i = 0; i < TERN_ARRAY_SIZE(sizes); i++)
			check_ends(bad, sizes[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_bad_address_ends_the_session_and_says_so),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
