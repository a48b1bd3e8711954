/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of transfers of tensors in the memory of a GPU: two contexts of this process,
 * over tcp and over shm, with the memory of either end or of both on the first device; 1
 * B to 64 MiB (less with a smaller scale); send or receive posted first. With
 * --processes: two processes over shm, for CUDA IPC. The conformance lists test more
 * cases, on the simulated driver; on a GPU this program shows that the real driver
 * behaves like the simulated one, with which it is also run. Skipped without a device.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/cuda.h"
#include "base/rng.h"
#include "base/util.h"
#include "tests/gpu/shared.h"

/* Smaller with the thread sanitizer, which takes seconds to fill 64 MiB. */
#ifdef __SANITIZE_THREAD__
#define LARGEST_OF_ALL ((16ull << 20) + 1)
#else
#define LARGEST_OF_ALL (64ull << 20)
#endif
/* A transfer counts as hung after this time and this number of turns without progress. */
#define IDLE_NS    (20 * TERN_NS_PER_S)
#define IDLE_TURNS 100000

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
static uint64_t largest = LARGEST_OF_ALL; /* size of the largest tensor in bytes */
static size_t size_count;                 /* number of the sizes that are used */
static uint64_t moved_ns;                 /* time of the last progress */
static unsigned idle_turns;               /* turns since the last progress */

static void require(bool ok, const char *what)
{
	if (ok)
		return;
	printf("failed: pid %d: %s\n", (int)getpid(), what);
	exit(1);
}

static void require_done(const struct tern_req *req, const char *what)
{
	if (req->status)
		printf("status %d\n", req->status);
	require(req->status == 0, what);
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	((struct end *)arg)->peer = peer;
}

static void make(struct end *e, bool on_gpu)
{
	const struct tern_context_opts patient = {.connect_ns = 60 * TERN_NS_PER_S};
	struct tern_pool_opts opts = {.slab_bytes = tern_align_up(largest, 1u << 20),
		.kind = on_gpu ? TERN_MEM_CUDA : TERN_MEM_HOST};

	require(tern_domain_new(NULL, &e->domain) == 0, "a domain");
	require(tern_context_new(e->domain, &patient, &e->ctx) == 0, "a context");
	require(tern_pool_new(e->domain, &opts, &e->pool) == 0, "a pool");
	require(tern_pool_get(e->pool, largest, &e->buf) == 0, "a buffer");
}

static void unmake(struct end *e)
{
	tern_context_free(e->ctx);
	tern_pool_put(e->pool, &e->buf);
	tern_pool_free(e->pool);
	tern_domain_free(e->domain);
}

static void has_moved(void)
{
	moved_ns = tern_clock_ns();
	idle_turns = 0;
}

static void turn(struct end *e)
{
	int count = tern_progress(e->ctx);

	require(count >= 0, "progress");
	if (count > 0)
		has_moved();
	else
		idle_turns++;
}

/* Fails only if a transfer makes no progress: a slow machine is no failure. */
static void require_motion(const char *what)
{
	require(idle_turns < IDLE_TURNS || tern_clock_ns() < moved_ns + IDLE_NS, what);
}

static const char *listen_at(struct end *e, const char *address)
{
	struct tern_listener *listener;

	require(tern_listen(e->ctx, address, NULL, on_accept, e, &listener) == 0,
		"listening");
	return tern_listener_address(listener);
}

static void open_channel(struct end *e)
{
	require(tern_channel_open(e->peer, 1, &e->channel) == 0, "a channel");
}

static void join(struct end e[2], const char *address)
{
	require(tern_connect(e[1].ctx, listen_at(&e[0], address), NULL, &e[1].peer) == 0,
		"connecting");
	has_moved();
	while (!e[0].peer) {
		for (int i = 0; i < 2; i++)
			turn(&e[i]);
		require_motion("nobody is accepted");
	}
	for (int i = 0; i < 2; i++)
		open_channel(&e[i]);
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

static const uint64_t sizes[] = {1, 7, 4096, 65536, 524287, 524288, 524289, 3u << 20,
	(8u << 20) - 1, (8u << 20) + 1, (16u << 20) + 1, LARGEST_OF_ALL};

static void choose_sizes(enum gpu_scale scale)
{
	size_count = TERN_ARRAY_SIZE(sizes) - (scale == GPU_FEW ? 3 : scale == GPU_SOME);
	largest = sizes[size_count - 1];
}

static void expect(uint64_t step, uint64_t bytes)
{
	for (uint64_t i = 0; i + 8 <= bytes + 8; i += 8) {
		uint64_t word = tern_mix64(step * 1000003 + i);

		memcpy(expected + i, &word, 8);
	}
}

static void fill_data(struct end *e, uint64_t bytes)
{
	write_all(&e->buf, expected, bytes);
}

static void spoil_room(struct end *e, uint64_t bytes)
{
	memset(came, 0x5a, bytes);
	write_all(&e->buf, came, bytes);
}

static void start_send(struct end *e, struct tern_req *req, uint64_t step, uint64_t bytes)
{
	struct tern_tensor tensor = {e->buf, tern_shape_1d(TERN_U8, bytes)};

	tensor.buf.bytes = bytes;
	require(tern_send(e->channel, req, 7, step, &tensor, NULL, 0) == 0, "tern_send");
}

static void start_recv(struct end *e, struct tern_req *req, uint64_t step)
{
	require(tern_recv(e->channel, req, 7, step, &e->buf, NULL, 0) == 0, "tern_recv");
}

static void check_room(struct end *e, const struct tern_req *req, uint64_t bytes)
{
	require(req->bytes == bytes, "the size");
	read_all(came, &e->buf, bytes);
	require(memcmp(came, expected, bytes) == 0, "the bytes");
}

static void carry(struct end e[2], uint64_t step, uint64_t bytes, bool sender_first)
{
	struct tern_req send = {0}, recv = {0};

	expect(step, bytes);
	fill_data(&e[1], bytes);
	spoil_room(&e[0], bytes);
	has_moved();
	for (int i = 0; i < 2; i++) {
		if ((i == 0) == sender_first)
			start_send(&e[1], &send, step, bytes);
		else
			start_recv(&e[0], &recv, step);
		for (int turns = 0; turns < 100; turns++) {
			turn(&e[0]);
			turn(&e[1]);
		}
	}
	while (tern_test(&send) == -EINPROGRESS || tern_test(&recv) == -EINPROGRESS) {
		turn(&e[0]);
		turn(&e[1]);
		require_motion("a transfer hangs");
	}
	require_done(&send, "a send");
	require_done(&recv, "a receive");
	check_room(&e[0], &recv, bytes);
}

static bool can_share(const struct end *e)
{
	CUipcMemHandle handle;

	return api->ipc_get_mem_handle &&
	       api->ipc_get_mem_handle(&handle, tern_mem_cuda_address(e->buf.mem)) ==
		       CUDA_SUCCESS;
}

/* Checks how tensors in GPU memory were moved: directly, by CUDA IPC, if both ends are in
 * GPU memory, the fabric is shm and the driver can share the memory; otherwise staged
 * (copied through host memory). */
static void check_way(const struct end *e, bool on_gpu, bool both)
{
	bool direct =
		both && strcmp(tern_peer_fabric(e->peer), "shm") == 0 && can_share(e);
	struct tern_peer_stats stats;

	tern_peer_stats(e->peer, &stats);
	if (direct)
		require(stats.ipc_count > 0 && stats.staged_count == 0, "CUDA IPC");
	else
		require(!on_gpu || stats.staged_count > 0, "staging");
}

static void tell(const struct end *e, bool from_gpu, bool to_gpu, uint64_t count)
{
	struct tern_peer_stats stats;

	tern_peer_stats(e->peer, &stats);
	printf("ok: %s: %s to %s: %llu tensors, %llu of them by CUDA IPC\n",
		tern_peer_fabric(e->peer), from_gpu ? "gpu" : "host",
		to_gpu ? "gpu" : "host", (unsigned long long)count,
		(unsigned long long)stats.ipc_count);
}

static void run(const char *address, bool from_gpu, bool to_gpu)
{
	struct end e[2] = {0};
	uint64_t step = 0;

	make(&e[0], to_gpu);
	make(&e[1], from_gpu);
	join(e, address);
	for (size_t i = 0; i < size_count; i++)
		for (int sender_first = 0; sender_first < 2; sender_first++)
			carry(e, step++, sizes[i], sender_first);
	check_way(&e[0], to_gpu, from_gpu && to_gpu);
	check_way(&e[1], from_gpu, from_gpu && to_gpu);
	tell(&e[1], from_gpu, to_gpu, step);
	unmake(&e[1]);
	unmake(&e[0]);
}

static int open_device(CUdevice *device)
{
	const char *why;

	if (tern_cuda_load(&api, &why) < 0) {
		printf("skip: %s\n", why);
		return 77;
	}
	require(api->device_get(device, 0) == CUDA_SUCCESS &&
			api->primary_ctx_retain(&context, *device) == CUDA_SUCCESS &&
			api->ctx_push_current(context) == CUDA_SUCCESS &&
			api->stream_create_with_priority(
				&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS,
		"the device");
	expected = malloc(largest + 8);
	came = malloc(largest + 8);
	require(expected && came, "memory");
	return 0;
}

static void close_device(CUdevice device)
{
	free(expected);
	free(came);
	api->stream_destroy(stream);
	api->ctx_pop_current(NULL);
	api->primary_ctx_release(device);
}

/* ---- two processes ---- */

/* Waits until the other process gets to the same point. Fails if that process has
 * ended. */
static void meet(struct end *e, int socket)
{
	char byte = 'm';
	ssize_t r;

	require(send(socket, &byte, 1, MSG_NOSIGNAL) == 1, "the other process");
	while ((r = recv(socket, &byte, 1, MSG_DONTWAIT)) < 0 && errno == EAGAIN)
		turn(e);
	require(r == 1, "the other process has ended");
}

static void finish(struct end *e, struct tern_req *req)
{
	has_moved();
	while (tern_test(req) == -EINPROGRESS) {
		turn(e);
		require_motion("a transfer hangs");
	}
	require_done(req, "a transfer");
}

static void carry_half(struct end *e, int socket, bool sends, uint64_t step)
{
	struct tern_req req = {0};
	uint64_t bytes = sizes[step / 2];
	bool first = sends == step % 2;

	expect(step, bytes);
	if (sends)
		fill_data(e, bytes);
	else
		spoil_room(e, bytes);
	for (int i = 0; i < 2; i++) {
		if ((i == 0) == first && sends)
			start_send(e, &req, step, bytes);
		else if ((i == 0) == first)
			start_recv(e, &req, step);
		meet(e, socket);
	}
	finish(e, &req);
	if (!sends)
		check_room(e, &req, bytes);
}

/* Runs one of the two processes: one sends (`sends`), the other one listens and
 * receives. */
static void run_half(int socket, bool sends, bool from_gpu, bool to_gpu)
{
	bool on_gpu = sends ? from_gpu : to_gpu;
	struct end e = {0};
	char address[80];
	uint64_t step = 0;

	snprintf(address, sizeof(address), "shm://gpu-wire-%d",
		(int)(sends ? getppid() : getpid()));
	make(&e, on_gpu);
	if (!sends)
		listen_at(&e, address);
	meet(&e, socket);
	if (sends)
		require(tern_connect(e.ctx, address, NULL, &e.peer) == 0, "connecting");
	while (!e.peer)
		turn(&e);
	open_channel(&e);
	for (; step < 2 * size_count; step++)
		carry_half(&e, socket, sends, step);
	check_way(&e, on_gpu, from_gpu && to_gpu);
	if (sends)
		tell(&e, from_gpu, to_gpu, step);
	meet(&e, socket); /* neither process ends before both have received everything */
	unmake(&e);
}

static int run_process(int socket, bool sends)
{
	CUdevice device;
	int r = open_device(&device);

	if (r)
		return r;
	for (int ends = 1; ends < 4; ends++)
		run_half(socket, sends, ends & 1, ends & 2);
	close_device(device);
	return 0;
}

/* Forks a second process. Both load the driver after the fork, since a driver that was
 * loaded before does not work in the child. */
static int run_processes(void)
{
	int sockets[2], status, r;
	pid_t pid;

	require(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "a socket");
	fflush(stdout);
	pid = fork();
	require(pid >= 0, "a process");
	close(sockets[pid > 0]);
	r = run_process(sockets[pid == 0], pid == 0);
	if (pid == 0)
		exit(r);
	require(waitpid(pid, &status, 0) == pid, "the other process");
	require(WIFEXITED(status) && WEXITSTATUS(status) == r, "the other process");
	return r;
}

int main(int argc, char **argv)
{
	char shm[64];
	CUdevice device;
	int r;

	choose_sizes(gpu_scale_asked_for());
	if (argc > 1 && strcmp(argv[1], "--processes") == 0)
		return run_processes();
	r = open_device(&device);
	if (r)
		return r;
	snprintf(shm, sizeof(shm), "shm://gpu-wire-%d", (int)getpid());
	for (int ends = 1; ends < 4; ends++) {
		run("tcp://127.0.0.1:0", ends & 1, ends & 2);
		run(shm, ends & 1, ends & 2);
	}
	close_device(device);
	return 0;
}
