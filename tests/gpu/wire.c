/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors in memory of a real GPU over the wire: two contexts of this process, over tcp
 * and over shm, the memory of either end or of both on the first device; 1 B to 64 MiB,
 * either half first. On the simulated driver the conformance list does the same and more;
 * this shows that the driver does what the simulated one does. Skipped without a device.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/cuda.h"
#include "base/rng.h"
#include "base/util.h"

#define LARGEST (64ull << 20)
#define WAIT_NS (20 * TERN_NS_PER_S)

struct end {
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_peer *peer;
	struct tern_channel *channel;
	struct tern_pool *pool;
	struct tern_buf buf;
};

static const struct tern_cuda_api *api;
static CUcontext context;
static CUstream stream;
static unsigned char *expected, *came;

static void require(bool ok, const char *what)
{
	if (ok)
		return;
	printf("failed: %s\n", what);
	exit(1);
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	((struct end *)arg)->peer = peer;
}

static void make(struct end *e, bool on_gpu)
{
	struct tern_pool_opts opts = {
		.slab_bytes = LARGEST, .kind = on_gpu ? TERN_MEM_CUDA : TERN_MEM_HOST};

	require(tern_domain_new(NULL, &e->domain) == 0, "a domain");
	require(tern_context_new(e->domain, NULL, &e->ctx) == 0, "a context");
	require(tern_pool_new(e->domain, &opts, &e->pool) == 0, "a pool");
	require(tern_pool_get(e->pool, LARGEST, &e->buf) == 0, "a buffer");
}

static void unmake(struct end *e)
{
	tern_context_free(e->ctx);
	tern_pool_put(e->pool, &e->buf);
	tern_pool_free(e->pool);
	tern_domain_free(e->domain);
}

static void join(struct end e[2], const char *address)
{
	struct tern_listener *listener;

	require(tern_listen(e[0].ctx, address, NULL, on_accept, &e[0], &listener) == 0,
		"listening");
	require(tern_connect(
			e[1].ctx, tern_listener_address(listener), NULL, &e[1].peer) == 0,
		"connecting");
	while (!e[0].peer)
		for (int i = 0; i < 2; i++)
			require(tern_progress(e[i].ctx) >= 0, "progress");
	for (int i = 0; i < 2; i++)
		require(tern_channel_open(e[i].peer, 1, &e[i].channel) == 0, "a channel");
}

static void write_all(const struct tern_buf *buf, const void *from, uint64_t bytes)
{
	uint64_t at = tern_buf_cuda_address(buf);

	if (!at) {
		memcpy(tern_buf_ptr(buf), from, bytes);
		return;
	}
	require(api->memcpy_htod_async(at, from, bytes, stream) == CUDA_SUCCESS &&
			api->stream_synchronize(stream) == CUDA_SUCCESS,
		"writing to the device");
}

static void read_all(void *to, const struct tern_buf *buf, uint64_t bytes)
{
	uint64_t at = tern_buf_cuda_address(buf);

	if (!at) {
		memcpy(to, tern_buf_ptr(buf), bytes);
		return;
	}
	require(api->memcpy_dtoh_async(to, at, bytes, stream) == CUDA_SUCCESS &&
			api->stream_synchronize(stream) == CUDA_SUCCESS,
		"reading from the device");
}

static void carry(struct end e[2], uint64_t step, uint64_t bytes, bool sender_first)
{
	struct tern_req send = {0}, recv = {0};
	struct tern_tensor tensor = {e[1].buf, tern_shape_1d(TERN_U8, bytes)};
	uint64_t limit_ns = tern_clock_ns() + WAIT_NS;

	for (uint64_t i = 0; i + 8 <= bytes + 8; i += 8) {
		uint64_t word = tern_mix64(step * 1000003 + i);

		memcpy(expected + i, &word, 8);
	}
	write_all(&e[1].buf, expected, bytes);
	memset(came, 0x5a, bytes);
	write_all(&e[0].buf, came, bytes);
	tensor.buf.bytes = bytes;
	for (int i = 0; i < 2; i++) {
		if ((i == 0) == sender_first)
			require(tern_send(e[1].channel, &send, 7, step, &tensor, NULL,
					0) == 0,
				"tern_send");
		else
			require(tern_recv(e[0].channel, &recv, 7, step, &e[0].buf, NULL,
					0) == 0,
				"tern_recv");
		for (int turns = 0; turns < 100; turns++) {
			tern_progress(e[0].ctx);
			tern_progress(e[1].ctx);
		}
	}
	while (tern_test(&send) == -EINPROGRESS || tern_test(&recv) == -EINPROGRESS) {
		for (int i = 0; i < 2; i++)
			require(tern_progress(e[i].ctx) >= 0, "progress");
		require(tern_clock_ns() < limit_ns, "a transfer hangs");
	}
	require(send.status == 0 && recv.status == 0, "a transfer");
	require(recv.bytes == bytes, "the size");
	read_all(came, &e[0].buf, bytes);
	require(memcmp(came, expected, bytes) == 0, "the bytes");
}

static void run(const char *address, bool from_gpu, bool to_gpu)
{
	static const uint64_t sizes[] = {1, 7, 4096, 65536, 524287, 524288, 524289,
		3u << 20, (16u << 20) + 1, LARGEST};
	struct tern_peer_stats stats;
	struct end e[2] = {0};
	uint64_t step = 0;

	make(&e[0], to_gpu);
	make(&e[1], from_gpu);
	join(e, address);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(sizes); i++)
		for (int sender_first = 0; sender_first < 2; sender_first++)
			carry(e, step++, sizes[i], sender_first);
	tern_peer_stats(e[0].peer, &stats);
	require(!to_gpu || stats.staged_count > 0, "staging at the receiver");
	tern_peer_stats(e[1].peer, &stats);
	require(!from_gpu || stats.staged_count > 0, "staging at the sender");
	printf("ok: %s: %s to %s: %llu tensors\n", tern_peer_fabric(e[1].peer),
		from_gpu ? "gpu" : "host", to_gpu ? "gpu" : "host",
		(unsigned long long)step);
	unmake(&e[1]);
	unmake(&e[0]);
}

int main(void)
{
	const char *why;
	char shm[64];
	CUdevice device;

	if (tern_cuda_load(&api, &why) < 0) {
		printf("skip: %s\n", why);
		return 77;
	}
	require(api->device_get(&device, 0) == CUDA_SUCCESS &&
			api->primary_ctx_retain(&context, device) == CUDA_SUCCESS &&
			api->ctx_push_current(context) == CUDA_SUCCESS &&
			api->stream_create_with_priority(
				&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS,
		"the device");
	expected = malloc(LARGEST + 8);
	came = malloc(LARGEST + 8);
	require(expected && came, "memory");
	snprintf(shm, sizeof(shm), "shm://gpu-wire-%d", (int)getpid());
	for (int ends = 1; ends < 4; ends++) {
		run("tcp://127.0.0.1:0", ends & 1, ends & 2);
		run(shm, ends & 1, ends & 2);
	}
	free(expected);
	free(came);
	api->stream_destroy(stream);
	api->ctx_pop_current(NULL);
	api->primary_ctx_release(device);
	return 0;
}
