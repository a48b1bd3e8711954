/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See hostile_host.h. The server sends back one tensor of each client, from memory of a
 * pool, and checks at its end that no buffer of the pool was lost.
 */
#include "tests/rendezvous/hostile_host.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/util.h"
#include "tests/harness/cmocka.h"
#include "transport/context.h"

#define KEY_IN     1u
#define KEY_OUT    2u
#define ECHO_BYTES 100000u

/* ---- the server, in a child process ---- */

struct guest {
	struct tern_peer *peer;
	struct tern_channel *channel;
	struct tern_req in, out;
	bool gone;
};

struct server {
	struct tern_context *ctx;
	struct tern_pool *pool;
	/* The clients. One whose connection was cut keeps its entry until the event
	 * TERN_PEER_DOWN. */
	struct guest guests[2048];
};

static void require(bool ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "server: %s\n", what);
		_exit(3);
	}
}

static void guest_left(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct guest *guest = arg;

	(void)peer;
	(void)status;
	if (event == TERN_PEER_DOWN)
		guest->gone = true;
}

static void guest_spoke(struct tern_req *req)
{
	struct guest *guest = req->arg;
	struct tern_tensor tensor = {req->buf, req->shape};

	if (req->status < 0)
		return;
	require(tern_send(guest->channel, &guest->out, KEY_OUT, 0, &tensor, NULL, 0) == 0,
		"tern_send");
}

static void guest_answered(struct tern_req *req)
{
	struct guest *guest = req->arg;

	tern_release(&guest->in);
}

static void guest_came(struct tern_peer *peer, void *arg)
{
	struct server *server = arg;
	struct guest *guest = NULL;
	struct tern_peer_opts opts = {.event = guest_left, .pool = server->pool};

	for (unsigned i = 0; i < TERN_ARRAY_SIZE(server->guests) && !guest; i++)
		if (!server->guests[i].peer)
			guest = &server->guests[i];
	require(guest, "no room for a guest");
	*guest = (struct guest){.peer = peer};
	opts.arg = guest;
	tern_peer_set_opts(peer, &opts);
	require(tern_channel_open(peer, HOST_CHANNEL, &guest->channel) == 0,
		"tern_channel_open");
	guest->in.done = guest_spoke;
	guest->in.arg = guest;
	guest->out.done = guest_answered;
	guest->out.arg = guest;
	require(tern_recv(guest->channel, &guest->in, KEY_IN, 0, NULL, NULL,
			TERN_RECV_ALLOC) == 0,
		"tern_recv");
}

static void quiet(struct tern_env *env, enum tern_log_level level, const char *line)
{
	(void)env;
	require(level != TERN_LOG_ERROR || !strstr(line, "internal"), line);
}

static uint64_t quiet_now(struct tern_env *env)
{
	(void)env;
	return tern_clock_ns();
}

static uint64_t quiet_random(struct tern_env *env)
{
	(void)env;
	return tern_random(tern_env_system());
}

static const struct tern_env_ops quiet_ops = {
	.now_ns = quiet_now, .random = quiet_random, .log = quiet};

/* Serves until the other end of the pipe `orders` is closed. */
static int serve(int orders, int out, const char *secret)
{
	static struct server server;
	static struct tern_env env = {.ops = &quiet_ops, .log_level = TERN_LOG_WARN};
	struct tern_pool_opts pool_opts = {
		.slab_bytes = 8u << 20, .max_bytes = 32u << 20};
	struct tern_context_opts opts = {.no_spin = true, .secret = secret};
	struct tern_pool_stats stats;
	struct tern_listener *listener;
	struct tern_domain *domain;
	char address[128] = "";

	require(tern_domain_new(NULL, &domain) == 0, "tern_domain_new");
	require(tern_pool_new(domain, &pool_opts, &server.pool) == 0, "tern_pool_new");
	require(tern_context_new_in(domain, &opts, &env, &server.ctx) == 0,
		"tern_context_new");
	require(tern_listen(server.ctx, "tcp://127.0.0.1:0", NULL, guest_came, &server,
			&listener) == 0,
		"tern_listen");
	snprintf(address, sizeof(address), "%s", tern_listener_address(listener));
	require(write(out, address, sizeof(address)) == sizeof(address), "write");
	for (;;) {
		struct pollfd p[2] = {
			{tern_context_fd(server.ctx), POLLIN, 0}, {orders, POLLIN, 0}};

		if (tern_arm(server.ctx) == 0)
			poll(p, 2, -1);
		require(tern_progress(server.ctx) >= 0, "tern_progress");
		for (unsigned i = 0; i < TERN_ARRAY_SIZE(server.guests); i++) {
			struct guest *guest = &server.guests[i];

			if (!guest->gone)
				continue;
			if (guest->in.status == 0 && guest->in.buf.mem &&
				guest->out.status != 0)
				tern_release(&guest->in);
			tern_peer_free(guest->peer);
			*guest = (struct guest){0};
		}
		if (p[1].revents)
			break;
	}
	tern_listener_free(listener);
	tern_context_free(server.ctx);
	tern_pool_stats(server.pool, &stats);
	require(stats.used_count == 0, "a buffer was lost");
	tern_pool_free(server.pool);
	tern_domain_free(domain);
	return 0;
}

void host_init(struct host *host, const char *secret)
{
	int orders[2], out[2];
	unsigned port = 0;

	assert_int_equal(pipe(orders), 0);
	assert_int_equal(pipe(out), 0);
	host->secret = secret;
	host->pid = fork();
	assert_true(host->pid >= 0);
	if (host->pid == 0) {
		close(orders[1]);
		close(out[0]);
		exit(serve(orders[0], out[1], secret));
	}
	close(orders[0]);
	close(out[1]);
	host->orders = orders[1];
	assert_int_equal(read(out[0], host->address, sizeof(host->address)),
		sizeof(host->address));
	close(out[0]);
	assert_int_equal(sscanf(host->address, "tcp://127.0.0.1:%u", &port), 1);
	host->at = (struct sockaddr_in){.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
		.sin_port = htons((uint16_t)port)};
}

void host_fini(struct host *host)
{
	int status;

	close(host->orders);
	assert_int_equal(waitpid(host->pid, &status, 0), host->pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- a correct client ---- */

void check_served(const struct host *host)
{
	static struct tern_env env = {.ops = &quiet_ops, .log_level = TERN_LOG_WARN};
	struct tern_context_opts opts = {.no_spin = true, .secret = host->secret};
	struct tern_req send = {0}, recv = {0};
	static unsigned char data[ECHO_BYTES], back[ECHO_BYTES];
	static unsigned calls;
	uint64_t bytes = ++calls % 2 ? ECHO_BYTES : 100;
	struct tern_tensor tensor = {.shape = tern_shape_1d(TERN_U8, bytes)};
	struct tern_buf room;
	struct tern_context *ctx;
	struct tern_channel *channel;
	struct tern_domain *domain;
	struct tern_mem *mem[2];
	struct tern_peer *peer;

	for (unsigned i = 0; i < sizeof(data); i++)
		data[i] = (unsigned char)(i * 7 + calls);
	memset(back, 0, sizeof(back));
	assert_int_equal(tern_domain_new(NULL, &domain), 0);
	assert_int_equal(tern_mem_wrap(domain, data, sizeof(data), &mem[0]), 0);
	assert_int_equal(tern_mem_wrap(domain, back, sizeof(back), &mem[1]), 0);
	assert_int_equal(tern_context_new_in(domain, &opts, &env, &ctx), 0);
	assert_int_equal(tern_connect(ctx, host->address, NULL, &peer), 0);
	assert_int_equal(tern_channel_open(peer, HOST_CHANNEL, &channel), 0);
	tensor.buf = (struct tern_buf){mem[0], 0, bytes};
	room = (struct tern_buf){mem[1], 0, sizeof(back)};
	assert_int_equal(tern_recv(channel, &recv, KEY_OUT, 0, &room, NULL, 0), 0);
	assert_int_equal(tern_send(channel, &send, KEY_IN, 0, &tensor, NULL, 0), 0);
	assert_int_equal(tern_wait(ctx, &recv, HOST_PATIENCE_NS), 0);
	assert_int_equal(tern_wait(ctx, &send, HOST_PATIENCE_NS), 0);
	assert_memory_equal(data, back, bytes);
	tern_peer_free(peer);
	tern_context_free(ctx);
	tern_mem_put(mem[0]);
	tern_mem_put(mem[1]);
	tern_domain_free(domain);
}
