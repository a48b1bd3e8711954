/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many connections to one server with Tern (ask.h): one context at each end.
 *
 *     connections FABRIC COUNT,...
 */
#include "bench/ask.h"
#include "bench/link.h"
#include "bench/pair.h"
#include "bench/two.h"

/* Keep-alive messages (PING) to an idle peer become rarer with time; after this time there is
 * one about every 5 s. */
#define QUIET_NS 12000000000ull

enum { DATA_KEY = 1, REPLY_KEY };

struct connection {
	struct tern_peer *peer;
	struct tern_channel *channel;
	struct tern_buf data, reply;
	struct tern_req data_req, reply_req;
	uint64_t step;
};

static const char *fabric;
static struct link link;
static struct connection *connections;
static unsigned accepted_count; /* at the server */
static char server[128];        /* the server's address */

static void open_link(int fd, unsigned count)
{
	link.fd = fd;
	connections = bench_memory(count * sizeof(*connections), false);
	link_open(&link, fabric, (uint64_t)count * 1024 + (1u << 20));
}

static void get_memory(struct connection *c)
{
	c->data = link_take(&link, ASK_BYTES);
	c->reply = link_take(&link, ASK_REPLY_BYTES);
}

static void post(struct connection *c, bool send, bool reply)
{
	struct tern_buf *buf = reply ? &c->reply : &c->data;
	struct tern_req *req = reply ? &c->reply_req : &c->data_req;
	uint64_t key = reply ? REPLY_KEY : DATA_KEY;

	link.channel = c->channel;
	if (send)
		link_send(&link, req, key, c->step, buf, 0);
	else
		link_receive(&link, req, key, c->step, buf);
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
	struct connection *c = &connections[accepted_count++];

	(void)arg;
	get_memory(c);
	c->peer = peer;
	link_must("channel", tern_channel_open(peer, 1, &c->channel));
	c->data_req.done = arrived;
	c->data_req.arg = c;
	post(c, false, false);
}

static void serve(int fd, unsigned count)
{
	struct tern_listener *listener;

	open_link(fd, count);
	link_listen(&link, accepted, NULL, &listener, server, sizeof(server));
	two_tell(fd, server, sizeof(server));
	link_serve(&link, ask_answer);
}

/* ---- the client ---- */

static void event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	(void)peer, (void)arg;
	if (event == TERN_PEER_DOWN)
		pair_die("a connection: %s", tern_status_text(status));
}

static void prepare(int fd, unsigned count)
{
	link.sender = true;
	open_link(fd, count);
	two_hear(fd, server, sizeof(server));
}

static void connect_one(unsigned i)
{
	struct tern_peer_opts opts = {.event = event};
	struct connection *c = &connections[i];

	get_memory(c);
	link_must("connecting", tern_connect(link.ctx, server, &opts, &c->peer));
	link_must("channel", tern_channel_open(c->peer, 1, &c->channel));
}

static void ask(unsigned i)
{
	struct connection *c = &connections[i];

	post(c, false, true);
	post(c, true, false);
}

static void get_answer(unsigned i)
{
	struct connection *c = &connections[i];

	link_wait(&link, &c->reply_req);
	link_wait(&link, &c->data_req);
	c->step++;
}

static void rest(uint64_t for_ns)
{
	uint64_t start_ns = bench_now_ns();

	while (bench_now_ns() - start_ns < for_ns)
		tern_wait_any(link.ctx, for_ns - (bench_now_ns() - start_ns));
}

int main(int argc, char **argv)
{
	fabric = argv[argc == 3 ? 1 : 0];
	return ask_main(argc == 3 ? argc : 0, argv,
		&(struct ask_ops){.usage = "connections FABRIC COUNT,...",
			.serve = serve,
			.prepare = prepare,
			.connect = connect_one,
			.ask = ask,
			.get_answer = get_answer,
			.rest = rest,
			.quiet_ns = QUIET_NS});
}
