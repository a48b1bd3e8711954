/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends one tensor from one process to another.
 *
 *     ping receive tcp://127.0.0.1:0      prints the address it listens at, and waits
 *     ping send ADDRESS                   sends 3 x 4 floats there
 *
 * Build it: cc ping.c $(pkg-config --cflags --libs tern) -o ping
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/tern.h>

#define SECOND 1000000000ull
static struct tern_peer *peer;
static bool gone;

static void must(const char *what, int status)
{
	if (status == 0)
		return;
	fprintf(stderr, "ping: %s: %s\n", what, tern_status_text(status));
	exit(1);
}

static void accepted(struct tern_peer *who, void *arg)
{
	(void)arg;
	peer = who;
}

static void event(
	struct tern_peer *who, enum tern_peer_event event, int status, void *arg)
{
	(void)who, (void)arg;
	gone = event == TERN_PEER_DOWN;
	must("the connection", gone ? status : 0);
}

int main(int argc, char **argv)
{
	static float x[12];
	struct tern_tensor tensor = {
		.shape = {.dtype = TERN_F32, .rank = 2, .dims = {3, 4}},
	};
	struct tern_peer_opts opts = {.event = event, .name = "ping"};
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_listener *listener = NULL;
	struct tern_channel *channel;
	struct tern_req req = {0};
	bool sends = argc == 3 && strcmp(argv[1], "send") == 0;

	if (argc != 3 || (!sends && strcmp(argv[1], "receive") != 0)) {
		fprintf(stderr, "usage: ping receive|send ADDRESS\n");
		return 2;
	}
	must("domain", tern_domain_new(NULL, &domain));
	must("context", tern_context_new(domain, NULL, &ctx));
	/* Memory is wrapped once, and is then registered for all transfers: a program that
	 * sends many tensors does not wrap it again. */
	must("memory", tern_mem_wrap(domain, x, sizeof(x), &tensor.buf.mem));
	tensor.buf.bytes = sizeof(x);
	if (sends) {
		must(argv[2], tern_connect(ctx, argv[2], &opts, &peer));
	} else {
		must(argv[2],
			tern_listen(ctx, argv[2], &opts, accepted, NULL, &listener));
		puts(tern_listener_address(listener));
		fflush(stdout);
	}
	while (!peer)
		tern_wait_any(ctx, SECOND);
	must("channel", tern_channel_open(peer, 1, &channel));

	/* The sender and the receiver name the same key and step. Either may call first. */
	for (int i = 0; sends && i < 12; i++)
		x[i] = (float)i;
	must("post",
		sends ? tern_send(channel, &req, tern_key("x"), 7, &tensor, "x", 0)
		      : tern_recv(channel, &req, tern_key("x"), 7, &tensor.buf, "x", 0));
	must("transfer", tern_wait(ctx, &req, 10 * SECOND));
	if (!sends)
		printf("received %s [%d, %d]: %g ... %g\n",
			tern_dtype_name(req.shape.dtype), (int)req.shape.dims[0],
			(int)req.shape.dims[1], (double)x[0], (double)x[11]);

	/* Both ends close. The event DOWN comes when everything sent has arrived. */
	tern_peer_close(peer);
	while (!gone)
		tern_wait_any(ctx, SECOND);
	tern_listener_free(listener);
	tern_context_free(ctx);
	tern_mem_put(tensor.buf.mem);
	tern_domain_free(domain);
	return 0;
}
