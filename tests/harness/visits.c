/* SPDX-License-Identifier: Apache-2.0 */
/*
 * visits INSTANCE BYTES: prints the functions through which one tensor passes, at both
 * ends of a connection. visits.py compiles this program so that the two hooks below are
 * called at the start and end of every function of Tern, and reads the output: from
 * tern_send() on, a line for each function that is entered (+ and its address in the
 * program) or left (- and the address).
 *
 * The receive is posted first, and WARM_UP tensors are sent before the traced one. Calls
 * of tern_progress() that find nothing to do are left out.
 */
#include <tern/tern.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/instance.h"

#define WARM_UP   20u
#define TURNS_MAX 1000000u
#define CALLS_MAX (1u << 20)

extern const char __executable_start[];

static struct call {
	uintptr_t at;
	char what;
} calls[CALLS_MAX];
static unsigned call_count;
static bool tracing;

void __cyg_profile_func_enter(void *function, void *site);
void __cyg_profile_func_exit(void *function, void *site);

static void note(void *function, char what)
{
	if (!tracing)
		return;
	if (call_count == CALLS_MAX)
		abort();
	calls[call_count++] =
		(struct call){(uintptr_t)function - (uintptr_t)__executable_start, what};
}

void __cyg_profile_func_enter(void *function, void *site)
{
	(void)site;
	note(function, '+');
}

void __cyg_profile_func_exit(void *function, void *site)
{
	(void)site;
	note(function, '-');
}

struct end {
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_pool *pool;
	struct tern_peer *peer;
	struct tern_channel *channel;
	struct tern_buf buf;
};

static void require(int status, const char *what)
{
	if (status >= 0)
		return;
	fprintf(stderr, "visits: %s: %s\n", what, tern_status_text(status));
	exit(1);
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	((struct end *)arg)->peer = peer;
}

static void turn(struct end e[2])
{
	for (int i = 0; i < 2; i++) {
		unsigned before = call_count;
		int count = tern_progress(e[i].ctx);

		require(count, "progress");
		if (count == 0)
			call_count = before;
	}
}

static void make(struct end *e, const struct instance *instance, uint64_t bytes)
{
	struct tern_pool_opts opts = {.slab_bytes = 4u << 20};

	require(tern_domain_new_hooked(&instance->opts, &instance->hooks, &e->domain),
		"a domain");
	require(tern_context_new(e->domain, NULL, &e->ctx), "a context");
	require(tern_pool_new(e->domain, &opts, &e->pool), "a pool");
	require(tern_pool_get(e->pool, bytes, &e->buf), "a buffer");
}

static void unmake(struct end *e)
{
	tern_context_free(e->ctx);
	tern_pool_put(e->pool, &e->buf);
	tern_pool_free(e->pool);
	tern_domain_free(e->domain);
}

static void join(struct end e[2], const struct instance *instance)
{
	struct tern_listener *listener;
	char address[BED_ADDRESS_MAX], url[BED_ADDRESS_MAX + 16];

	instance->address(address, 0);
	snprintf(url, sizeof(url), "%s://%s", instance->fabric, address);
	require(tern_listen(e[1].ctx, url, NULL, on_accept, &e[1], &listener), "listen");
	require(tern_connect(e[0].ctx, tern_listener_address(listener), NULL, &e[0].peer),
		"connect");
	for (unsigned i = 0; !e[1].peer; i++) {
		turn(e);
		require(i < TURNS_MAX ? 0 : -ETIMEDOUT, "connecting");
	}
	for (int i = 0; i < 2; i++)
		require(tern_channel_open(e[i].peer, 1, &e[i].channel), "a channel");
}

static void carry(struct end e[2], uint64_t step, uint64_t bytes, bool trace)
{
	struct tern_tensor tensor = {e[0].buf, tern_shape_1d(TERN_U8, bytes)};
	struct tern_req send = {0}, recv = {0};

	require(tern_recv(e[1].channel, &recv, 1, step, &e[1].buf, NULL, 0), "receive");
	for (unsigned i = 0; i < 1000; i++)
		turn(e);
	tracing = trace;
	require(tern_send(e[0].channel, &send, 1, step, &tensor, NULL, 0), "send");
	for (unsigned i = 0; send.status == -EINPROGRESS || recv.status == -EINPROGRESS;
		i++) {
		turn(e);
		require(i < TURNS_MAX ? 0 : -ETIMEDOUT, "a tensor");
	}
	tracing = false;
	require(send.status, "send");
	require(recv.status, "receive");
}

int main(int argc, char **argv)
{
	const struct instance *instance =
		argc == 3 ? instance_find(argv[1], strlen(argv[1])) : NULL;
	uint64_t bytes = instance ? strtoull(argv[2], NULL, 10) : 0;
	const char *missing =
		instance && instance->unavailable ? instance->unavailable() : NULL;
	struct end e[2] = {0};

	if (!instance || !bytes || missing) {
		fprintf(stderr, "visits: %s\n",
			missing ? missing : "usage: visits INSTANCE BYTES");
		return missing ? 77 : 2;
	}
	for (int i = 0; i < 2; i++)
		make(&e[i], instance, bytes);
	join(e, instance);
	for (uint64_t step = 0; step <= WARM_UP; step++)
		carry(e, step, bytes, step == WARM_UP);
	for (int i = 0; i < 2; i++)
		unmake(&e[i]);
	for (unsigned i = 0; i < call_count; i++)
		printf("%c%zx\n", calls[i].what, (size_t)calls[i].at);
	return 0;
}
