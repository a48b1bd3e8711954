/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of peers that die or stop responding. In the first tests the peer is a child
 * process, which runs this program anew (conformance_child()). It listens, and sends back
 * each tensor: what it received under key ECHO_IN and step s, it sends under ECHO_OUT and
 * step s. It also sends a tensor under OFFERED, and receives four under TAKEN, of which
 * the tests use some. And it has a window.
 */
#include "tests/rendezvous/meet.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "base/clock.h"
#include "base/util.h"
#include "transport/context.h"
#include "transport/gpu/gpu.h"

#define CHILD_SEED  3u
#define CHILD_BYTES (4u << 20)

enum key { ECHO_IN = 1, ECHO_OUT = 2, OFFERED = 3, TAKEN = 4, NEVER = 5 };

/* ---- the child ---- */

static void require(bool ok)
{
	if (!ok)
		_exit(3);
}

struct child {
	struct tern_context *ctx;
	struct tern_channel *channel;
	struct tern_req echo_in, echo_out, offered, taken[4];
	struct tern_buf room, data, larder;
	uint64_t step;
};

static void child_listen_again(struct child *child)
{
	require(tern_recv(child->channel, &child->echo_in, ECHO_IN, ++child->step,
			&child->room, NULL, 0) == 0);
}

static void child_echo(struct tern_req *req)
{
	struct child *child = req->arg;
	struct tern_tensor tensor = {child->room, req->shape};

	if (req->status < 0)
		return;
	tensor.buf.bytes = req->bytes;
	require(tern_send(child->channel, &child->echo_out, ECHO_OUT, child->step,
			&tensor, NULL, 0) == 0);
}

static void child_echoed(struct tern_req *req)
{
	if (req->status == 0)
		child_listen_again(req->arg);
}

static void child_accept(struct tern_peer *peer, void *arg)
{
	struct child *child = arg;
	struct tern_tensor tensor = {child->data, tern_shape_1d(TERN_U8, CHILD_BYTES)};

	require(tern_channel_open(peer, MEET_CHANNEL, &child->channel) == 0);
	child->echo_in.done = child_echo;
	child->echo_out.done = child_echoed;
	child->echo_in.arg = child->echo_out.arg = child;
	child_listen_again(child);
	require(tern_send(child->channel, &child->offered, OFFERED, 0, &tensor, NULL,
			0) == 0);
	for (unsigned i = 0; i < 4; i++)
		require(tern_recv(child->channel, &child->taken[i], TAKEN, i,
				&child->larder, NULL, 0) == 0);
}

void conformance_child(const struct instance *instance, int in, int out)
{
	static struct child child;
	struct tern_context_opts opts = meet_opts();
	char rest[BED_ADDRESS_MAX], url[BED_ADDRESS_MAX] = "";
	struct tern_listener *listener;
	struct tern_domain *domain;
	struct tern_gpu *gpu;
	struct memory_box box, host;
	struct tern_window *window;
	struct tern_window_desc desc;
	struct tern_buf pane;

	(void)in;
	if (instance->gpus)
		device_memory->reset(true);
	require(tern_domain_new_hooked(&instance->opts, &instance->hooks, &domain) == 0);
	require(!instance->uses_gpu || tern_gpu_by_number(domain, 0, &gpu) == 0);
	require(tern_context_new(domain, &opts, &child.ctx) == 0);
	box_init(&box, domain);
	box.gpu = instance->gpus & 1 << B;
	child.room = box_take(&box, SLAB, 1u << 20);
	child.data = box_take(&box, SLAB, CHILD_BYTES);
	child.larder = box_take(&box, SLAB, CHILD_BYTES);
	buf_fill(&child.data, CHILD_SEED);
	instance->address(rest, 0);
	meet_url(instance, rest, url);
	require(tern_listen(child.ctx, url, NULL, child_accept, &child, &listener) == 0);
	memset(url, 0, sizeof(url));
	snprintf(url, sizeof(url), "%s", tern_listener_address(listener));
	require(write(out, url, sizeof(url)) == sizeof(url));
	box_init(&host, domain);
	pane = box_take(&host, SLAB, CHILD_BYTES);
	buf_fill(&pane, CHILD_SEED);
	require(tern_window_new(child.ctx, &pane, TERN_WINDOW_READ | TERN_WINDOW_WRITE,
			&window) == 0);
	tern_window_describe(window, &desc);
	require(write(out, &desc, sizeof(desc)) == sizeof(desc));
	for (;;)
		tern_wait_any(child.ctx, TERN_NS_PER_S);
}

/* ---- the parent ---- */

struct family {
	pid_t pid;
	int pipe[2];
	struct meet *meet; /* only its end A is used */
	struct end *end;
	uint64_t step;
	struct tern_window_desc desc; /* of the child's window */
};

static void family_init(struct family *family, const struct instance *instance,
	const struct tern_context_opts *opts)
{
	char url[BED_ADDRESS_MAX];

	memset(family, 0, sizeof(*family));
	assert_int_equal(pipe(family->pipe), 0);
	family->pid = conformance_spawn(instance, -1, family->pipe[1]);
	assert_int_equal(read(family->pipe[0], url, sizeof(url)), sizeof(url));
	assert_int_equal(read(family->pipe[0], &family->desc, sizeof(family->desc)),
		sizeof(family->desc));
	family->meet = meet_new_apart(instance, opts, opts);
	family->end = &family->meet->ends[A];
	meet_dial_at(family->meet, url);
	MEET_PUMP(family->meet, family->end->up_count);
}

static void family_kill(struct family *family)
{
	int status;

	assert_int_equal(kill(family->pid, SIGKILL), 0);
	assert_int_equal(waitpid(family->pid, &status, 0), family->pid);
	/* The child was killed, and did not end by itself. */
	assert_true(WIFSIGNALED(status));
}

static void family_fini(struct family *family)
{
	meet_free(family->meet);
	close(family->pipe[0]);
	close(family->pipe[1]);
}

static void family_echo(struct family *family, uint64_t bytes)
{
	struct tern_buf data = end_data(family->end, SLAB, bytes, 7);
	struct tern_buf room = end_memory(family->end, SLAB, bytes);
	struct call send = {0}, recv = {0};

	family->step++;
	assert_int_equal(
		call_recv(&recv, family->end, ECHO_OUT, family->step, &room, 0), 0);
	assert_int_equal(
		call_send(&send, family->end, ECHO_IN, family->step, &data, 0), 0);
	MEET_PUMP(family->meet, call_over(&send) && call_over(&recv));
	assert_int_equal(send.req.status, 0);
	call_check(&recv, bytes, 7);
}

enum { UNMATCHED_RECV, UNMATCHED_SEND, UNMATCHED_ALLOC, PULL, PUSH, CALLS };

static void test_a_peer_that_is_killed_ends_every_request(const struct instance *instance)
{
	static const unsigned turns[] = {0, 1, 2, 4, 8, 16, 64};
	struct tern_context_opts opts = meet_opts();

	for (unsigned i = 0; i < TERN_ARRAY_SIZE(turns); i++) {
		struct call calls[CALLS] = {0};
		struct family family;
		struct tern_buf data, room;
		struct end *end;

		family_init(&family, instance, &opts);
		end = family.end;
		family_echo(&family, 100);
		family_echo(&family, 500000);
		data = end_data(end, SLAB, CHILD_BYTES, 1);
		room = end_memory(end, SLAB, CHILD_BYTES);
		assert_int_equal(
			call_recv(&calls[UNMATCHED_RECV], end, NEVER, 0, &room, 0), 0);
		assert_int_equal(
			call_send(&calls[UNMATCHED_SEND], end, NEVER, 1, &data, 0), 0);
		assert_int_equal(call_recv(&calls[UNMATCHED_ALLOC], end, NEVER, 2, NULL,
					 TERN_RECV_ALLOC),
			0);
		assert_int_equal(
			call_recv(&calls[PULL], end, OFFERED, 0, i % 2 ? &room : NULL,
				i % 2 ? 0 : TERN_RECV_ALLOC),
			0);
		assert_int_equal(call_send(&calls[PUSH], end, TAKEN, i % 4, &data, 0), 0);
		for (unsigned t = 0; t < turns[i]; t++)
			meet_turn(family.meet);
		family_kill(&family);
		MEET_PUMP(family.meet, end->down_count);
		assert_true(end->down_status < 0);
		/* Every request must have ended before the DOWN event. */
		assert_true(calls_over(calls, CALLS));
		for (unsigned c = 0; c <= UNMATCHED_ALLOC; c++)
			assert_int_equal(calls[c].req.status, end->down_status);
		if (calls[PULL].req.status == 0) {
			call_check(&calls[PULL], CHILD_BYTES, CHILD_SEED);
			if (i % 2 == 0)
				tern_release(&calls[PULL].req);
		}
		buf_fill(&room, 9);
		meet_settle(family.meet);
		assert_true(buf_holds(&room, 9));
		family_fini(&family);
	}
}

/* Puts and gets of a window end when its process is killed, with the cause; afterwards
 * nobody touches their memory. */
static void test_an_owner_that_is_killed_ends_puts_and_gets(
	const struct instance *instance)
{
	static const unsigned turns[] = {0, 2, 8, 64};
	struct tern_context_opts opts = meet_opts();
	enum { COUNT = 8, BYTES = 500000 };

	for (unsigned i = 0; i < TERN_ARRAY_SIZE(turns); i++) {
		struct call calls[COUNT] = {0}, first = {0};
		struct tern_buf bufs[COUNT];
		struct tern_remote *remote;
		struct memory_box host;
		struct family family;
		struct end *end;

		family_init(&family, instance, &opts);
		end = family.end;
		box_init(&host, end->domain);
		assert_int_equal(tern_remote_open(end->peer, &family.desc, &remote), 0);
		bufs[0] = box_take(&host, SLAB, BYTES);
		call_init(&first, end);
		assert_int_equal(tern_get(remote, &first.req, &bufs[0], 0), 0);
		MEET_PUMP(family.meet, call_over(&first));
		assert_int_equal(first.req.status, 0);
		assert_true(buf_holds(&bufs[0], CHILD_SEED));
		for (unsigned c = 0; c < COUNT; c++) {
			bufs[c] = box_take(&host, SLAB, BYTES);
			call_init(&calls[c], end);
			assert_int_equal(c % 2 ? tern_get(remote, &calls[c].req, &bufs[c],
							 c * BYTES)
					       : tern_put(remote, &calls[c].req, &bufs[c],
							 c * BYTES, NULL),
				0);
		}
		for (unsigned t = 0; t < turns[i]; t++)
			meet_turn(family.meet);
		family_kill(&family);
		MEET_PUMP(family.meet, end->down_count);
		assert_true(calls_over(calls, COUNT));
		for (unsigned c = 0; c < COUNT; c++) {
			assert_true(calls[c].req.status == 0 ||
				    calls[c].req.status == end->down_status);
			buf_fill(&bufs[c], 9);
		}
		meet_settle(family.meet);
		for (unsigned c = 0; c < COUNT; c++)
			assert_true(buf_holds(&bufs[c], 9));
		tern_peer_free(end->peer);
		end->peer = NULL;
		box_free(&host);
		family_fini(&family);
	}
}

static void test_what_is_peeked_outlives_the_one_who_sent_it(
	const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();
	struct call recv = {0};
	struct family family;

	family_init(&family, instance, &opts);
	assert_int_equal(
		call_recv(&recv, family.end, OFFERED, 0, NULL, TERN_RECV_PEEK), 0);
	MEET_PUMP(family.meet, call_over(&recv));
	call_check(&recv, CHILD_BYTES, CHILD_SEED);
	family_kill(&family);
	call_check(&recv, CHILD_BYTES, CHILD_SEED);
	MEET_PUMP(family.meet, family.end->down_count);
	call_check(&recv, CHILD_BYTES, CHILD_SEED);
	tern_release(&recv.req);
	family_fini(&family);
}

static void test_a_stopped_peer_is_suspect_and_recovers(const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();
	struct family family;

	opts.suspect_ns = 150 * TERN_NS_PER_MS;
	family_init(&family, instance, &opts);
	for (unsigned i = 0; i < 2; i++) {
		family_echo(&family, 1000);
		assert_int_equal(kill(family.pid, SIGSTOP), 0);
		MEET_PUMP(family.meet, family.end->suspect_count == i + 1);
		assert_int_equal(kill(family.pid, SIGCONT), 0);
		MEET_PUMP(family.meet, family.end->recovered_count == i + 1);
	}
	family_echo(&family, 300000);
	assert_int_equal(family.end->down_count, 0);
	family_kill(&family);
	family_fini(&family);
}

static void test_a_silent_peer_is_dead_if_that_is_asked_for(
	const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();
	struct call send = {0}, recv = {0};
	struct family family;
	struct tern_buf data, room;

	opts.suspect_ns = 100 * TERN_NS_PER_MS;
	opts.dead_ns = 400 * TERN_NS_PER_MS;
	opts.reconnect_ns = 200 * TERN_NS_PER_MS;
	family_init(&family, instance, &opts);
	data = end_data(family.end, SLAB, CHILD_BYTES, 1);
	room = end_memory(family.end, SLAB, CHILD_BYTES);
	assert_int_equal(kill(family.pid, SIGSTOP), 0);
	assert_int_equal(call_send(&send, family.end, TAKEN, 0, &data, 0), 0);
	assert_int_equal(call_recv(&recv, family.end, OFFERED, 0, &room, 0), 0);
	MEET_PUMP(family.meet, family.end->down_count);
	assert_int_equal(family.end->suspect_count, 1);
	assert_int_equal(family.end->down_status, -ETIMEDOUT);
	assert_true(call_over(&send) && call_over(&recv));
	family_kill(&family);
	family_fini(&family);
}

/*
 * ---- an end that does not poll ----
 *
 * From here on both ends are in this process. In the first two tests it does not poll one
 * of them for a while. For test_an_end_that_does_not_poll_loses_nothing,
 * TERN_TEST_PAUSE_S in the environment sets that time in seconds, and makes as much data
 * wait as in a real job.
 */

/* Attempts to get a peek: a fabric that can peek sometimes copies instead. */
#define PEEK_TRIES     50u
#define UNREACHABLE_NS (100 * TERN_NS_PER_MS)
#define BLOCK_BYTES    (64u << 10)
#define BLOCKS_MAX     1000u

static uint64_t pause_s(void)
{
	const char *text = getenv("TERN_TEST_PAUSE_S");

	return text ? strtoul(text, NULL, 10) : 0;
}

static void pump_for(struct meet *meet, struct end *end, uint64_t ns)
{
	struct tern_env *env = tern_context_env(end->ctx);
	uint64_t end_ns = tern_now_ns(env) + ns;

	while (tern_now_ns(env) < end_ns)
		meet_turn(meet);
}

static void wait_for(const struct instance *instance, unsigned sleeper)
{
	static struct call sends[BLOCKS_MAX + 1], recvs[BLOCKS_MAX + 1];
	unsigned count = pause_s() ? BLOCKS_MAX : BLOCKS_MAX / 10;
	uint64_t bulk_bytes = pause_s() ? 64u << 20 : 8u << 20;
	uint64_t pause_ns = pause_s() ? pause_s() * TERN_NS_PER_S : 3 * UNREACHABLE_NS;
	struct tern_context_opts opts = meet_opts();
	struct tern_buf bulk, block, room, rooms;
	struct end *from, *to;
	struct meet *meet;

	opts.suspect_ns = UNREACHABLE_NS / 6;
	opts.unreachable_ns = UNREACHABLE_NS;
	meet = meet_new_with(instance, &opts, &opts);
	from = &meet->ends[!sleeper];
	to = &meet->ends[sleeper];
	bulk = end_data(from, USER, bulk_bytes, 1);
	block = end_data(from, USER, BLOCK_BYTES, 2);
	room = end_memory(to, USER, bulk_bytes);
	rooms = end_memory(to, USER, (uint64_t)count * BLOCK_BYTES);
	assert_int_equal(call_recv(&recvs[count], to, count, 1, &room, 0), 0);
	for (unsigned i = 0; i < count; i++) {
		struct tern_buf part = buf_part(&rooms, i * BLOCK_BYTES, BLOCK_BYTES);

		assert_int_equal(call_recv(&recvs[i], to, i, 1, &part, 0), 0);
	}
	meet_settle(meet); /* so that the sender knows where to put each tensor (POST) */
	to->asleep = true;
	assert_int_equal(call_send(&sends[count], from, count, 1, &bulk, 0), 0);
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(call_send(&sends[i], from, i, 1, &block, 0), 0);
	pump_for(meet, from, pause_ns);
	assert_int_equal(from->down_count, 0);
	to->asleep = false;
	MEET_PUMP(meet, calls_over(sends, count + 1) && calls_over(recvs, count + 1));
	for (unsigned i = 0; i <= count; i++)
		assert_int_equal(sends[i].req.status, 0);
	call_check(&recvs[count], bulk_bytes, 1);
	for (unsigned i = 0; i < count; i++)
		call_check(&recvs[i], BLOCK_BYTES, 2);
	MEET_PUMP(meet, from->suspect_count == from->recovered_count);
	assert_int_equal(from->down_count + to->down_count, 0);
	meet_free(meet);
}

static void test_an_end_that_does_not_poll_loses_nothing(const struct instance *instance)
{
	wait_for(instance, A);
	wait_for(instance, B);
}

/* A closes the session while B does not poll. A must not go down before B has read A's
 * data, and B must lose none of them. */
static void test_goodbye_waits_for_an_end_that_does_not_poll(
	const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();
	struct call sends[8] = {0}, recvs[8] = {0};
	struct meet *meet;
	struct end *a, *b;

	opts.suspect_ns = UNREACHABLE_NS / 6;
	opts.unreachable_ns = UNREACHABLE_NS;
	meet = meet_new_with(instance, &opts, &opts);
	a = &meet->ends[A];
	b = &meet->ends[B];
	meet_settle(meet);
	b->asleep = true;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(sends); i++) {
		struct tern_buf data = end_data(a, SLAB, 100, i);

		assert_int_equal(call_send(&sends[i], a, i, 1, &data, 0), 0);
	}
	tern_peer_close(a->peer);
	pump_for(meet, a, 3 * UNREACHABLE_NS);
	assert_int_equal(a->down_count, 0);
	b->asleep = false;
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(recvs); i++) {
		struct tern_buf room = end_memory(b, SLAB, 100);

		assert_int_equal(call_recv(&recvs[i], b, i, 1, &room, 0), 0);
	}
	MEET_PUMP(meet, a->down_count && b->down_count);
	assert_int_equal(a->down_status, 0);
	assert_int_equal(b->down_status, 0);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(recvs); i++)
		call_check(&recvs[i], 100, i);
	meet_free(meet);
}

/* ---- memory that is read in place ---- */

/* B receives a tensor of A in place. False: the fabric cannot peek, or A's memory is in a
 * GPU, so that B gets a copy each time. */
static bool peek(struct meet *meet, struct call *send, struct call *recv)
{
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct tern_buf data = end_data(a, SLAB, 100000, 5);

	if (!tern_peer_can_peek(b->peer))
		return false;
	for (uint64_t step = 0; step < PEEK_TRIES; step++) {
		assert_int_equal(call_recv(recv, b, 1, step, NULL, TERN_RECV_PEEK), 0);
		assert_int_equal(call_send(send, a, 1, step, &data, 0), 0);
		MEET_PUMP(meet, call_over(recv));
		if (recv->req.peeked)
			return true;
		tern_release(&recv->req);
		MEET_PUMP(meet, call_over(send));
	}
	assert_true(meet->instance->gpus & 1 << A);
	return false;
}

/* How the ends part: B stops polling, the sender A frees its peer, or the reader B does. */
enum part { SILENCE, SENDER_LEAVES, READER_LEAVES, PARTS };

static void part(struct meet *meet, enum part how)
{
	struct end *a = &meet->ends[A], *b = &meet->ends[B];

	b->asleep = how == SILENCE;
	if (how == SILENCE)
		pump_for(meet, a, 4 * UNREACHABLE_NS);
	if (how == SENDER_LEAVES)
		tern_peer_free(TERN_TAKE(a->peer));
	if (how == READER_LEAVES)
		tern_peer_free(TERN_TAKE(b->peer));
	meet_settle(meet);
}

static void test_what_is_read_in_place_stays_whoever_leaves(
	const struct instance *instance)
{
	for (enum part how = SILENCE; how < PARTS; how++) {
		struct tern_context_opts opts = meet_opts(), normal = meet_opts();
		struct call send = {0}, recv = {0};
		struct meet *meet;

		opts.dead_ns = how == SILENCE ? UNREACHABLE_NS : 0;
		opts.suspect_ns = UNREACHABLE_NS / 2;
		meet = meet_new_with(instance, &opts, &normal);
		if (!peek(meet, &send, &recv))
			MEET_SKIP(meet, "this fabric reads no tensor in place");
		part(meet, how);
		assert_false(call_over(&send));
		call_check(&recv, 100000, 5);
		meet->ends[B].asleep = false;
		meet_settle(meet);
		assert_false(call_over(&send));
		call_check(&recv, 100000, 5);
		tern_release(&recv.req);
		MEET_PUMP(meet, call_over(&send));
		assert_true(send.req.status < 0);
		meet_free(meet);
	}
}

const struct conformance_test meet_death[] = {
	CONFORMANCE(test_an_owner_that_is_killed_ends_puts_and_gets, NEEDS_PROCESS),
	CONFORMANCE(test_a_peer_that_is_killed_ends_every_request, NEEDS_PROCESS),
	CONFORMANCE(test_what_is_peeked_outlives_the_one_who_sent_it, NEEDS_PROCESS),
	CONFORMANCE(test_a_stopped_peer_is_suspect_and_recovers, NEEDS_PROCESS),
	CONFORMANCE(test_a_silent_peer_is_dead_if_that_is_asked_for, NEEDS_PROCESS),
	CONFORMANCE(test_an_end_that_does_not_poll_loses_nothing, NEEDS_NOTHING),
	CONFORMANCE(test_what_is_read_in_place_stays_whoever_leaves, NEEDS_NOTHING),
	CONFORMANCE(test_goodbye_waits_for_an_end_that_does_not_poll, NEEDS_NOTHING),
	{0},
};
