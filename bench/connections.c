/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures many connections to one server: the time until the first answer on a new
 * connection, how many connections come up per second, what each costs in memory and,
 * while idle, in processor time, and whether idle connections slow down a busy one. New
 * processes measure each number of connections.
 *
 *     connections FABRIC COUNT,...
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/ask.h"
#include "bench/link.h"
#include "bench/pair.h"

#define COUNTS_MAX 8
#define TRIPS      1000u
/* Time to wait, in ns, before idle connections are measured. Keep-alive messages
 * (PING) to an idle peer become rarer with time; after this wait there is one about
 * every 5 s. */
#define QUIET_NS    12000000000ull
#define MANY        1000u
#define IDLE_NS     5000000000ull
#define FEW_IDLE_NS 1000000000ull
#define BYTES       64u

enum { DATA_KEY = 1, REPLY_KEY };

struct connection {
	struct link *link;
	struct tern_peer *peer;
	struct tern_channel *channel;
	struct tern_buf data, reply;
	struct tern_req data_req, reply_req;
	uint64_t step;
};

static struct connection *connections;
static unsigned up_count;

static void get_memory(struct connection *c, struct link *link)
{
	c->link = link;
	c->data = link_take(link, BYTES);
	c->reply = link_take(link, 8);
}

static void post(struct connection *c, bool send, bool reply)
{
	struct tern_buf *buf = reply ? &c->reply : &c->data;
	struct tern_req *req = reply ? &c->reply_req : &c->data_req;
	uint64_t key = reply ? REPLY_KEY : DATA_KEY;

	c->link->channel = c->channel;
	if (send)
		link_send(c->link, req, key, c->step, buf, 0);
	else
		link_receive(c->link, req, key, c->step, buf);
}

/* ---- the server ---- */

static void arrived(struct tern_req *req)
{
	struct connection *c = req->arg;

	if (req->status)
		return; /* the client has exited */
	post(c, true, true);
	c->step++;
	post(c, false, false);
}

static void accepted(struct tern_peer *peer, void *arg)
{
	struct connection *c = &connections[up_count++];

	get_memory(c, arg);
	c->peer = peer;
	link_must("channel", tern_channel_open(peer, 1, &c->channel));
	c->data_req.done = arrived;
	c->data_req.arg = c;
	post(c, false, false);
}

static void serve(struct link *link)
{
	struct tern_listener *listener;
	char address[128];

	link_listen(link, accepted, link, &listener, address, sizeof(address));
	if (send(link->fd, address, sizeof(address), MSG_NOSIGNAL) != sizeof(address))
		pair_die("the client is gone");
	for (;;) {
		struct pollfd fds[] = {
			{.fd = tern_context_fd(link->ctx), .events = POLLIN},
			{.fd = link->fd, .events = POLLIN}};
		int r = tern_progress(link->ctx);

		link_must("progress", r);
		if (r > 0 || tern_arm(link->ctx) < 0)
			continue;
		poll(fds, 2, -1);
		if (fds[1].revents)
			ask_answer(link->fd);
	}
}

/* ---- the client ---- */

static void event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	(void)peer, (void)arg;
	up_count += event == TERN_PEER_UP;
	if (event == TERN_PEER_DOWN)
		pair_die("a connection: %s", tern_status_text(status));
}

static void connect_one(struct connection *c, struct link *link, const char *address)
{
	struct tern_peer_opts opts = {.event = event};

	get_memory(c, link);
	link_must("connecting", tern_connect(link->ctx, address, &opts, &c->peer));
	link_must("channel", tern_channel_open(c->peer, 1, &c->channel));
}

static void wait_until_up(struct link *link, unsigned count)
{
	while (up_count < count)
		link_must("waiting", tern_wait_any(link->ctx, 10 * IDLE_NS));
}

static void trip(struct connection *c)
{
	post(c, false, true);
	post(c, true, false);
	link_wait(c->link, &c->reply_req);
	link_wait(c->link, &c->data_req);
	c->step++;
}

static uint64_t memory_of_both(struct link *link)
{
	return ask_own_memory() + ask_other(link->fd, ASK_MEMORY);
}

static void do_nothing(struct link *link, uint64_t for_ns)
{
	uint64_t start_ns = bench_now_ns();

	while (bench_now_ns() - start_ns < for_ns)
		tern_wait_any(link->ctx, for_ns - (bench_now_ns() - start_ns));
}

/* Measures the processor time of idle connections. With few of them it is too small to
 * measure, so only many are measured for long. */
static void stay_idle(struct link *link, unsigned count, struct ask_result *r)
{
	uint64_t idle_ns = count < MANY ? FEW_IDLE_NS : IDLE_NS, start_ns, cpu_ns;

	if (count >= MANY)
		do_nothing(link, QUIET_NS);
	cpu_ns = bench_cpu_ns() + ask_other(link->fd, ASK_CPU);
	start_ns = bench_now_ns();
	do_nothing(link, idle_ns);
	r->idle_cpu_ns = bench_cpu_ns() + ask_other(link->fd, ASK_CPU) - cpu_ns;
	r->idle_ns = bench_now_ns() - start_ns;
}

static void measure(struct link *link, unsigned count)
{
	struct ask_result r = {.connections = count};
	uint64_t start_ns, before, took_ns[TRIPS];
	char address[128];

	if (recv(link->fd, address, sizeof(address), MSG_WAITALL) != sizeof(address))
		pair_die("the server is gone");
	before = memory_of_both(link);
	start_ns = bench_now_ns();
	connect_one(&connections[0], link, address);
	trip(&connections[0]);
	r.first_byte_ns = bench_now_ns() - start_ns;
	start_ns = bench_now_ns();
	for (unsigned i = 1; i < count; i++)
		connect_one(&connections[i], link, address);
	wait_until_up(link, count);
	r.all_up_ns = bench_now_ns() - start_ns;
	/* A round trip checks each connection, and lets it allocate what it needs. */
	for (unsigned i = 1; i < count; i++)
		trip(&connections[i]);
	r.memory_bytes = memory_of_both(link) - before;
	for (unsigned i = 0; i < TRIPS; i++) {
		start_ns = bench_now_ns();
		trip(&connections[0]);
		took_ns[i] = bench_now_ns() - start_ns;
	}
	r.trip_ns = bench_percentile_ns(took_ns, TRIPS, 0.5);
	stay_idle(link, count, &r);
	ask_print(&r);
}

static void run(const char *fabric, unsigned count)
{
	struct link link = {0};
	uint64_t end = ASK_END;

	up_count = 0;
	connections = bench_memory(count * sizeof(*connections), false);
	link_fork(&link);
	link_open(&link, fabric, (uint64_t)count * 1024 + (1u << 20));
	if (!link.sender)
		serve(&link);
	measure(&link, count);
	if (send(link.fd, &end, sizeof(end), MSG_NOSIGNAL) != sizeof(end))
		pair_die("the server is gone");
	wait(NULL);
}

int main(int argc, char **argv)
{
	uint64_t counts[COUNTS_MAX];
	unsigned n = argc == 3 ? bench_sizes(argv[2], counts, COUNTS_MAX) : 0;

	if (!n)
		pair_die("usage: connections FABRIC COUNT,...");
	ask_for_files();
	/* Each number of connections is measured in new processes, so that it does not
	 * affect the next one. */
	for (unsigned i = 0; i < n; i++) {
		int status;
		pid_t pid = fork();

		if (pid == 0) {
			run(argv[1], (unsigned)counts[i]);
			_exit(0);
		}
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
			return 1;
	}
	return 0;
}
