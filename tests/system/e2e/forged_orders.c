/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of `tern bench --serve` that sends orders which no tern bench sends
 * (tools/bench_hosts.c). Prints one line for each: its name, and the server's answer.
 *
 *     forged_orders ADDRESS
 */
#include <stdio.h>
#include <stdlib.h>

#include <tern/tern.h>

#include "base/endian.h"
#include "base/util.h"

#define SECOND       1000000000ull
#define ORDER_BYTES  48u
#define REPORT_BYTES 4096u

/* An order: the message in which a client of tern bench tells the server what to do. A right
 * order has version 3, `flags` of at most 31 (16 together with 2), `receive` and
 * `collective` of at most 2, and with `collective` a size that is a multiple of 8. */
struct order {
	const char *name;
	uint32_t bytes; /* length of the message */
	uint32_t version, flags, receive, inflight;
	uint64_t size, warmup, rounds, collective;
};

static const struct order orders[] = {
	{"short", 8, 3, 0, 0, 1, 8, 2, 2, 0},
	{"long", 64, 3, 0, 0, 1, 8, 2, 2, 0},
	{"version", ORDER_BYTES, 1, 0, 0, 1, 8, 2, 2, 0},
	{"flags", ORDER_BYTES, 3, 32, 0, 1, 8, 2, 2, 0},
	{"receive", ORDER_BYTES, 3, 0, 3, 1, 8, 2, 2, 0},
	{"no-flight", ORDER_BYTES, 3, 0, 0, 0, 8, 2, 2, 0},
	{"inflight", ORDER_BYTES, 3, 0, 0, UINT32_MAX, 8, 2, 2, 0},
	{"no-size", ORDER_BYTES, 3, 0, 0, 1, 0, 2, 2, 0},
	{"size", ORDER_BYTES, 3, 0, 0, 1, UINT64_MAX, 2, 2, 0},
	{"memory", ORDER_BYTES, 3, 0, 0, 1024, 1ull << 30, 2, 2, 0},
	{"no-warmup", ORDER_BYTES, 3, 0, 0, 1, 8, 0, 2, 0},
	{"warmup", ORDER_BYTES, 3, 0, 0, 1, 8, UINT64_MAX, 2, 0},
	{"no-rounds", ORDER_BYTES, 3, 0, 0, 1, 8, 2, 0, 0},
	{"rounds", ORDER_BYTES, 3, 0, 0, 1, 8, 2, UINT64_MAX, 0},
	{"collective", ORDER_BYTES, 3, 0, 0, 1, 8, 2, 2, 3},
	{"no-answers", ORDER_BYTES, 3, 16, 0, 1, 8, 2, 2, 0},
	{"uneven", ORDER_BYTES, 3, 0, 0, 1, 12, 2, 2, 1},
};

static struct tern_domain *domain;
static struct tern_context *ctx;
static bool gone;

static void must(const char *what, int status)
{
	if (status == 0)
		return;
	fprintf(stderr, "forged_orders: %s: %s\n", what, tern_status_text(status));
	exit(1);
}

static void event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	(void)peer, (void)status, (void)arg;
	gone |= event == TERN_PEER_DOWN;
}

static void put(unsigned char *p, const struct order *o)
{
	tern_put_le32(p, o->version);
	tern_put_le32(p + 4, o->flags);
	tern_put_le32(p + 8, o->receive);
	tern_put_le32(p + 12, o->inflight);
	tern_put_le64(p + 16, o->size);
	tern_put_le64(p + 24, o->warmup);
	tern_put_le64(p + 32, o->rounds);
	tern_put_le64(p + 40, o->collective);
}

/* Sends the order and prints the text of the server's report, which begins at byte 24. */
static void forge(const char *address, const struct order *o, struct tern_mem *mem)
{
	const struct tern_peer_opts opts = {.event = event, .name = "forger"};
	struct tern_tensor order = {
		.buf = {mem, 0, o->bytes}, .shape = tern_shape_1d(TERN_U8, o->bytes)};
	struct tern_buf room = {mem, REPORT_BYTES, REPORT_BYTES};
	const char *text = (const char *)tern_buf_ptr(&room) + 24;
	struct tern_req sent = {0}, heard = {0};
	struct tern_channel *channel;
	struct tern_peer *peer;
	int r;

	gone = false;
	put(tern_buf_ptr(&order.buf), o);
	must(address, tern_connect(ctx, address, &opts, &peer));
	must("the talk", tern_channel_open(peer, 0, &channel));
	must("the report",
		tern_recv(channel, &heard, tern_key("bench.report"), 0, &room, NULL, 0));
	must("the order",
		tern_send(channel, &sent, tern_key("bench.order"), 0, &order, NULL, 0));
	r = tern_wait(ctx, &heard, 30 * SECOND);
	printf("%s: %s\n", o->name, r ? tern_status_text(r) : text);
	tern_peer_close(peer);
	while (!gone)
		tern_wait_any(ctx, SECOND);
	tern_peer_free(peer);
}

int main(int argc, char **argv)
{
	static unsigned char memory[2 * REPORT_BYTES];
	struct tern_mem *mem;

	if (argc != 2) {
		fputs("usage: forged_orders ADDRESS\n", stderr);
		return 2;
	}
	must("domain", tern_domain_new(NULL, &domain));
	must("context", tern_context_new(domain, NULL, &ctx));
	must("memory", tern_mem_wrap(domain, memory, sizeof(memory), &mem));
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(orders); i++)
		forge(argv[1], &orders[i], mem);
	tern_context_free(ctx);
	tern_mem_put(mem);
	tern_domain_free(domain);
	return 0;
}
