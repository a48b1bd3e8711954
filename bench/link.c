/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/link.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/pair.h"
#include "bench/two.h"

#define CHANNEL  1
#define LIMIT_NS (60ull * 1000000000u)

void link_must(const char *what, int status)
{
	if (status < 0)
		pair_die("%s: %s", what, tern_status_text(status));
}

void link_open(struct link *link, const char *fabric, uint64_t pool_bytes)
{
	struct tern_pool_opts pool = {.slab_bytes = pool_bytes, .prefault = true};
	struct tern_context_opts opts = {.no_spin = true};

	link->fabric = fabric;
	if (!link->domain)
		link_must("domain", tern_domain_new(NULL, &link->domain));
	link_must("context", tern_context_new(link->domain, &opts, &link->ctx));
	link_must("pool", tern_pool_new(link->domain, &pool, &link->pool));
}

void link_wait(struct link *link, struct tern_req *req)
{
	link_must("a transfer", tern_wait(link->ctx, req, LIMIT_NS));
}

void link_wait_for(struct link *link, const bool *flag)
{
	while (!*flag)
		link_must("waiting", tern_wait_any(link->ctx, LIMIT_NS));
}

void link_listen(struct link *link, void (*accept)(struct tern_peer *peer, void *arg),
	void *arg, struct tern_listener **listener, char *address, size_t bytes)
{
	bool shm = strcmp(link->fabric, "shm") == 0;

	if (shm)
		snprintf(address, bytes, "shm://bench-%d", (int)gettid());
	else
		snprintf(address, bytes, "%s://127.0.0.1:0", link->fabric);
	link_must("listening",
		tern_listen(link->ctx, address, NULL, accept, arg, listener));
	snprintf(address, bytes, "%s", tern_listener_address(*listener));
}

void link_serve(struct link *link, void (*answer)(int fd))
{
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
			answer(link->fd);
	}
}

/* ---- connecting the two processes ---- */

static void event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	(void)peer;
	((struct link *)arg)->is_up |= event == TERN_PEER_UP;
	if (event == TERN_PEER_DOWN && status)
		pair_die("the connection: %s", tern_status_text(status));
}

static void accepted(struct tern_peer *peer, void *arg)
{
	struct link *link = arg;

	link->peer = peer;
	link->is_up = true;
}

void link_meet(struct link *link)
{
	struct tern_peer_opts opts = {.event = event, .arg = link};
	struct tern_listener *listener;
	char address[128];

	if (link->sender) {
		two_hear(link->fd, address, sizeof(address));
		link_must("connecting",
			tern_connect(link->ctx, address, &opts, &link->peer));
	} else {
		link_listen(link, accepted, link, &listener, address, sizeof(address));
		two_tell(link->fd, address, sizeof(address));
	}
	link_wait_for(link, &link->is_up);
	link_must("channel", tern_channel_open(link->peer, CHANNEL, &link->channel));
}

void link_run(const char *fabric, uint64_t pool_bytes, void (*send_)(struct link *link),
	void (*receive)(struct link *link))
{
	struct link link = {0};
	char byte = 0;
	int status;

	link.fd = two_fork(&link.sender);
	link_open(&link, fabric, pool_bytes);
	link_meet(&link);
	(link.sender ? send_ : receive)(&link);
	if (!link.sender) {
		/* Waits until the sender is done, which may still read this process's memory. */
		two_hear(link.fd, &byte, 1);
		_exit(0);
	}
	two_tell(link.fd, &byte, 1);
	if (wait(&status) < 0 || status != 0)
		pair_die("the receiver ended with status %x", (unsigned)status);
}

struct tern_buf link_take(struct link *link, uint64_t bytes)
{
	struct tern_buf buf;

	link_must("the pool", tern_pool_get(link->pool, bytes, &buf));
	return buf;
}

void link_send(struct link *link, struct tern_req *req, uint64_t key, uint64_t step,
	const struct tern_buf *buf, unsigned flags)
{
	struct tern_tensor tensor = {
		.buf = *buf, .shape = tern_shape_1d(TERN_U8, buf->bytes)};

	link_must("send", tern_send(link->channel, req, key, step, &tensor, NULL, flags));
}

void link_receive(struct link *link, struct tern_req *req, uint64_t key, uint64_t step,
	const struct tern_buf *buf)
{
	link_must("receive", tern_recv(link->channel, req, key, step, buf, NULL, 0));
}
