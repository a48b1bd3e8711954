/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of many connections between two contexts: each connection comes up and works,
 * whatever resources the others hold. Each test runs over tcp with both engines, and over
 * shm.
 */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/util.h"
#include "rendezvous/rendezvous.h"

#define COUNT 400u
/* Number of open files that suffices: shm needs two for each end of a connection. */
#define FILES      (4 * COUNT + 100)
#define LIMIT_NS   (60 * TERN_NS_PER_S)
#define SENDS_MAX  TERN_CREDIT_OWN
#define LARGE      (64u << 10)
#define SLAB_BYTES (96ull << 20)

enum { DATA_KEY = 1, REPLY_KEY };

struct flow {
	struct tern_peer *peer;
	struct tern_channel *channel;
	struct tern_buf data, reply;
	struct tern_req reqs[SENDS_MAX], reply_req;
};

struct world {
	struct tern_domain *domain;
	struct tern_pool *pool;
	struct tern_context *server, *client;
	struct tern_listener *listener;
	struct flow accepted[COUNT], dialled[COUNT];
	unsigned accepted_count, up_count;
	int down_status; /* status of the first peer that went down with an error */
	uint64_t start_ns;
};

struct kind {
	const char *address;
	enum tern_tcp_engine engine;
};

static void peer_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct world *w = arg;

	(void)peer;
	w->up_count += event == TERN_PEER_UP;
	if (event == TERN_PEER_DOWN && status && !w->down_status)
		w->down_status = status;
}

static void accepted(struct tern_peer *peer, void *arg)
{
	struct world *w = arg;
	struct flow *f = &w->accepted[w->accepted_count++];

	f->peer = peer;
	assert_int_equal(tern_channel_open(peer, 1, &f->channel), 0);
}

static struct world *world_new(const struct kind *kind, uint32_t record_count)
{
	struct tern_domain_opts domain_opts = {.tcp_engine = kind->engine};
	struct tern_context_opts opts = {
		.record_count = record_count, .connect_ns = LIMIT_NS};
	struct tern_pool_opts pool = {.slab_bytes = SLAB_BYTES};
	struct world *w = calloc(1, sizeof(*w));
	int status;

	assert_non_null(w);
	w->start_ns = tern_clock_ns();
	status = tern_domain_new(&domain_opts, &w->domain);
	if (kind->engine == TERN_TCP_URING && (status == -ENOSYS || status == -EPERM)) {
		free(w);
		print_message("skipped: the kernel refuses io_uring\n");
		skip();
	}
	assert_int_equal(status, 0);
	assert_int_equal(tern_pool_new(w->domain, &pool, &w->pool), 0);
	assert_int_equal(tern_context_new(w->domain, &opts, &w->server), 0);
	assert_int_equal(tern_context_new(w->domain, &opts, &w->client), 0);
	assert_int_equal(
		tern_listen(w->server, kind->address, NULL, accepted, w, &w->listener),
		0);
	return w;
}

static void world_free(struct world *w)
{
	for (unsigned i = 0; i < COUNT; i++) {
		tern_peer_free(w->dialled[i].peer);
		tern_peer_free(w->accepted[i].peer);
	}
	tern_context_free(w->client);
	tern_context_free(w->server);
	for (unsigned i = 0; i < COUNT; i++) {
		tern_pool_put(w->pool, &w->dialled[i].data);
		tern_pool_put(w->pool, &w->dialled[i].reply);
		tern_pool_put(w->pool, &w->accepted[i].data);
	}
	tern_pool_free(w->pool);
	tern_domain_free(w->domain);
	free(w);
}

static void check_nothing_is_lost(const struct world *w)
{
	assert_int_equal(w->down_status, 0);
	assert_true(tern_clock_ns() - w->start_ns < LIMIT_NS);
}

static void turn(struct world *w)
{
	assert_true(tern_progress(w->server) >= 0);
	assert_true(tern_progress(w->client) >= 0);
	check_nothing_is_lost(w);
}

/* Calls tern_progress() until it can do no more without the other end. */
static void long_turn(struct tern_context *ctx)
{
	unsigned idle = 0;

	while (idle < 3) {
		int events = tern_progress(ctx);

		assert_true(events >= 0);
		idle = events ? 0 : idle + 1;
	}
}

static void start_to_dial(struct world *w)
{
	struct tern_peer_opts opts = {.event = peer_event, .arg = w};

	for (unsigned i = 0; i < COUNT; i++) {
		struct flow *f = &w->dialled[i];

		assert_int_equal(
			tern_connect(w->client, tern_listener_address(w->listener), &opts,
				&f->peer),
			0);
		assert_int_equal(tern_channel_open(f->peer, 1, &f->channel), 0);
	}
}

static bool all_are_up(const struct world *w)
{
	return w->up_count >= COUNT && w->accepted_count >= COUNT;
}

static void dial_all(struct world *w)
{
	start_to_dial(w);
	while (!all_are_up(w))
		turn(w);
}

static struct tern_buf take(struct world *w, uint64_t bytes, unsigned char mark)
{
	struct tern_buf buf;

	assert_int_equal(tern_pool_get(w->pool, bytes, &buf), 0);
	memset(tern_buf_ptr(&buf), mark, bytes);
	return buf;
}

static void send_on(struct flow *f, struct tern_req *req, uint64_t key, uint64_t step,
	const struct tern_buf *buf)
{
	struct tern_tensor tensor = {
		.buf = *buf, .shape = tern_shape_1d(TERN_U8, buf->bytes)};

	assert_int_equal(tern_send(f->channel, req, key, step, &tensor, NULL, 0), 0);
}

static void await(struct world *w, struct tern_req *req)
{
	while (tern_test(req) == -EINPROGRESS)
		turn(w);
	assert_int_equal(tern_test(req), 0);
}

/* Sends a tensor to the server and back over each connection. */
static void echo_on_all(struct world *w, uint64_t bytes, uint64_t step)
{
	for (unsigned i = 0; i < COUNT; i++) {
		struct flow *to = &w->accepted[i], *from = &w->dialled[i];

		tern_pool_put(w->pool, &to->data);
		tern_pool_put(w->pool, &from->data);
		tern_pool_put(w->pool, &from->reply);
		to->data = take(w, bytes, 0);
		from->data = take(w, bytes, (unsigned char)(1 + i % 255));
		from->reply = take(w, bytes, 0);
		assert_int_equal(tern_recv(to->channel, &to->reqs[0], DATA_KEY, step,
					 &to->data, NULL, 0),
			0);
		assert_int_equal(tern_recv(from->channel, &from->reply_req, REPLY_KEY,
					 step, &from->reply, NULL, 0),
			0);
		send_on(from, &from->reqs[0], DATA_KEY, step, &from->data);
	}
	for (unsigned i = 0; i < COUNT; i++) {
		await(w, &w->accepted[i].reqs[0]);
		send_on(&w->accepted[i], &w->accepted[i].reply_req, REPLY_KEY, step,
			&w->accepted[i].data);
	}
	for (unsigned i = 0; i < COUNT; i++) {
		struct flow *from = &w->dialled[i];

		await(w, &from->reply_req);
		await(w, &from->reqs[0]);
		await(w, &w->accepted[i].reply_req);
		assert_memory_equal(
			tern_buf_ptr(&from->reply), tern_buf_ptr(&from->data), bytes);
	}
}

static void test_400_connections_come_up_and_work(void **state)
{
	struct world *w = world_new(*state, 0);

	dial_all(w);
	echo_on_all(w, 64, 1);
	echo_on_all(w, LARGE, 2);
	world_free(w);
}

/* Most dialling ends read the server's answers only after the server has given up their
 * handshake. They must connect again, and work. */
static void test_whoever_is_cut_in_the_handshake_comes_up_and_works(void **state)
{
	struct world *w = world_new(*state, 0);

	tern_rdv_of(w->server)->half_open_max = COUNT / 8;
	start_to_dial(w);
	while (!all_are_up(w)) {
		long_turn(w->client);
		long_turn(w->server);
		check_nothing_is_lost(w);
	}
	assert_int_equal(w->up_count, COUNT);
	assert_int_equal(w->accepted_count, COUNT);
	echo_on_all(w, 64, 1);
	world_free(w);
}

/* At first no tensor is received, and the shared records (memory for received messages) suffice
 * for only a few connections. Each connection can still send as much as its own records
 * hold, and loses nothing. */
static void test_each_has_records_that_no_other_can_take(void **state)
{
	struct world *w = world_new(*state, 64);

	dial_all(w);
	for (unsigned i = 0; i < COUNT; i++) {
		struct flow *f = &w->dialled[i];

		f->data = take(w, 64, (unsigned char)(1 + i % 255));
		for (unsigned n = 0; n < SENDS_MAX; n++)
			send_on(f, &f->reqs[n], DATA_KEY, n, &f->data);
	}
	for (unsigned i = 0; i < COUNT; i++)
		for (unsigned n = 0; n < SENDS_MAX; n++)
			await(w, &w->dialled[i].reqs[n]);
	for (unsigned i = 0; i < COUNT; i++) {
		struct flow *f = &w->accepted[i];

		f->data = take(w, 64, 0);
		for (unsigned n = 0; n < SENDS_MAX; n++) {
			assert_int_equal(tern_recv(f->channel, &f->reqs[n], DATA_KEY, n,
						 &f->data, NULL, 0),
				0);
			await(w, &f->reqs[n]);
		}
	}
	world_free(w);
}

static int open_files(void **state)
{
	struct rlimit files;

	(void)state;
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = TERN_MAX(files.rlim_cur, TERN_MIN(files.rlim_max, FILES));
	return setrlimit(RLIMIT_NOFILE, &files) || files.rlim_cur < FILES;
}

static struct kind epoll = {"tcp://127.0.0.1:0", TERN_TCP_EPOLL};
static struct kind uring = {"tcp://127.0.0.1:0", TERN_TCP_URING};
static struct kind shm = {"shm://*", TERN_TCP_AUTO};

int main(void)
{
	const struct CMUnitTest tests[] = {
		{"400 connections, tcp", test_400_connections_come_up_and_work, NULL,
			NULL, &epoll},
		{"400 connections, tcp with io_uring",
			test_400_connections_come_up_and_work, NULL, NULL, &uring},
		{"400 connections, shm", test_400_connections_come_up_and_work, NULL,
			NULL, &shm},
		{"cut in the handshake, tcp",
			test_whoever_is_cut_in_the_handshake_comes_up_and_works, NULL,
			NULL, &epoll},
		{"cut in the handshake, tcp with io_uring",
			test_whoever_is_cut_in_the_handshake_comes_up_and_works, NULL,
			NULL, &uring},
		{"cut in the handshake, shm",
			test_whoever_is_cut_in_the_handshake_comes_up_and_works, NULL,
			NULL, &shm},
		{"own records, tcp", test_each_has_records_that_no_other_can_take, NULL,
			NULL, &epoll},
		{"own records, tcp with io_uring",
			test_each_has_records_that_no_other_can_take, NULL, NULL, &uring},
		{"own records, shm", test_each_has_records_that_no_other_can_take, NULL,
			NULL, &shm},
	};

	return cmocka_run_group_tests(tests, open_files, NULL);
}
