/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Round trips of tensors in GPU memory between two processes: over shm, where the
 * receiver's GPU copies them (CUDA IPC) if the driver allows that, and over tcp, where
 * they are staged (copied through page-locked host memory). The same round trips in host
 * memory are measured in turn, on the same connection. A sample is the time of `times`
 * round trips; both processes poll. In a smoke run they sleep instead of polling, because
 * on a machine with few cores that runs other tests, processes that poll may keep each
 * other from the cores for seconds. The note of a row says how many transfers used CUDA
 * IPC and how many were staged.
 *
 * usage: gpu_moves [--smoke], which prints samples as gpu_rates does.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/util.h"
#include "bench/gpu/device.h"

#define ROUNDS_MAX 16

struct moves {
	struct bench_gpu gpu;
	int socket; /* socket to the other process, for the address and the end */
	bool second, sleeps;
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_peer *peer;
	struct tern_channel *channel;
	/* index 0: host memory, 1: GPU memory */
	struct tern_pool *pools[2];
	struct tern_buf bufs[2];
	uint64_t step, largest;
	unsigned rounds, times;
};

static void require(int status, const char *what)
{
	if (status < 0)
		bench_fail(1, "%s: %s", what, tern_status_text(status));
}

static void progress(struct moves *m)
{
	int r = m->sleeps ? tern_wait_any(m->ctx, TERN_NS_PER_S / 100)
			  : tern_progress(m->ctx);

	if (r != -ETIMEDOUT)
		require(r, "progress");
}

/* ---- connecting the two processes ---- */

/* Receives a message of the other process from the socket. Returns false if none is there
 * yet. Exits if the other process has ended. */
static bool hear(struct moves *m, char *text, size_t size, int flags)
{
	ssize_t r = recv(m->socket, text, size, flags);

	if (r == 0)
		bench_fail(1, "the other process has ended");
	return r > 0;
}

static void say(struct moves *m, const char *text, size_t bytes)
{
	if (send(m->socket, text, bytes, MSG_NOSIGNAL) < 0)
		bench_fail(1, "the other process has ended");
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	((struct moves *)arg)->peer = peer;
}

/* Connects the two processes. The first one listens and sends its address to the
 * second. Neither gives up after some time, because the socket shows if the other process
 * has ended. */
static void join(struct moves *m, const char *listen_at)
{
	const struct tern_context_opts opts = {.connect_ns = TERN_NEVER};
	struct tern_listener *listener;
	char address[128] = "", byte;

	require(tern_context_new(m->domain, &opts, &m->ctx), "a context");
	m->peer = NULL;
	if (m->second) {
		while (!hear(m, address, sizeof(address) - 1, 0))
			continue;
		require(tern_connect(m->ctx, address, NULL, &m->peer), "connecting");
	} else {
		require(tern_listen(m->ctx, listen_at, NULL, on_accept, m, &listener),
			"listening");
		snprintf(address, sizeof(address), "%s", tern_listener_address(listener));
		say(m, address, sizeof(address));
	}
	while (!m->peer) {
		hear(m, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
		progress(m);
	}
	require(tern_channel_open(m->peer, 1, &m->channel), "a channel");
}

/* Ends the connection. Before that, waits until the other process is done, too: until then
 * it may need this process's acknowledgements. */
static void part(struct moves *m)
{
	char byte = 'p';

	say(m, &byte, 1);
	while (!hear(m, &byte, 1, MSG_DONTWAIT))
		progress(m);
	tern_context_free(m->ctx);
}

/* ---- round trips ---- */

static void finish(struct moves *m, struct tern_req *req, const char *what)
{
	while (tern_test(req) == -EINPROGRESS)
		progress(m);
	require(req->status, what);
}

static void send_one(struct moves *m, bool on_gpu, uint64_t bytes)
{
	struct tern_req req = {0};
	struct tern_tensor tensor = {m->bufs[on_gpu], tern_shape_1d(TERN_U8, bytes)};

	tensor.buf.bytes = bytes;
	require(tern_send(m->channel, &req, 7, m->step++, &tensor, NULL, 0), "tern_send");
	finish(m, &req, "a send");
}

static void receive_one(struct moves *m, bool on_gpu)
{
	struct tern_req req = {0};

	require(tern_recv(m->channel, &req, 7, m->step++, &m->bufs[on_gpu], NULL, 0),
		"tern_recv");
	finish(m, &req, "a receive");
}

static double time_us(struct moves *m, bool on_gpu, uint64_t bytes)
{
	uint64_t start_ns = tern_clock_ns();

	for (unsigned i = 0; i < m->times; i++) {
		if (m->second)
			receive_one(m, on_gpu);
		send_one(m, on_gpu, bytes);
		if (!m->second)
			receive_one(m, on_gpu);
	}
	return (double)(tern_clock_ns() - start_ns) / 1000;
}

static void tell(struct moves *m, uint64_t bytes, const double *gpu, const double *host)
{
	struct tern_peer_stats stats;
	char name[96], note[96];

	if (m->second)
		return;
	tern_peer_stats(m->peer, &stats);
	snprintf(name, sizeof(name), "%s: GPU memory of %llu KiB there and back",
		tern_peer_fabric(m->peer), (unsigned long long)bytes >> 10);
	snprintf(note, sizeof(note), "so far %llu by CUDA IPC, %llu staged",
		(unsigned long long)stats.ipc_count,
		(unsigned long long)stats.staged_count);
	bench_gpu_row(&(struct bench_gpu_row){.name = name,
		.peer = "host memory",
		.bytes = 2 * bytes,
		.ours_us = gpu,
		.ours_count = 2 * m->rounds,
		.peer_us = host,
		.peer_count = 2 * m->rounds,
		.times = m->times,
		.note = note});
}

static void run_size(struct moves *m, uint64_t bytes)
{
	double gpu[2 * ROUNDS_MAX], host[2 * ROUNDS_MAX];

	time_us(m, true, bytes);
	time_us(m, false, bytes);
	for (unsigned i = 0; i < m->rounds; i++) {
		host[2 * i] = time_us(m, false, bytes);
		for (unsigned j = 0; j < 2; j++)
			gpu[2 * i + j] = time_us(m, true, bytes);
		host[2 * i + 1] = time_us(m, false, bytes);
	}
	tell(m, bytes, gpu, host);
}

static void run_fabric(struct moves *m, const char *address)
{
	join(m, address);
	for (uint64_t bytes = 4096; bytes <= m->largest; bytes *= 16)
		run_size(m, bytes);
	if (m->largest > 16u << 20)
		run_size(m, m->largest);
	part(m);
}

/* ---- two processes ---- */

static void fill(struct moves *m)
{
	CUdeviceptr at = tern_buf_cuda_address(&m->bufs[1]);

	memset(tern_buf_ptr(&m->bufs[0]), 1, m->largest);
	bench_gpu_check(&m->gpu,
		m->gpu.api->memset_d8_async(at, 1, m->largest, m->gpu.stream),
		"filling memory");
	bench_gpu_check(
		&m->gpu, m->gpu.api->stream_synchronize(m->gpu.stream), "the stream");
}

static void run(struct moves *m)
{
	char shm[64];

	bench_gpu_open(&m->gpu);
	require(tern_domain_new(NULL, &m->domain), "a domain");
	for (unsigned i = 0; i < 2; i++) {
		const struct tern_pool_opts opts = {.slab_bytes = 64u << 20,
			.kind = i ? TERN_MEM_CUDA : TERN_MEM_HOST};

		require(tern_pool_new(m->domain, &opts, &m->pools[i]), "a pool");
		require(tern_pool_get(m->pools[i], m->largest, &m->bufs[i]), "a buffer");
	}
	fill(m);
	snprintf(shm, sizeof(shm), "shm://gpu-moves-%d", (int)getpid());
	run_fabric(m, shm);
	run_fabric(m, "tcp://127.0.0.1:0");
	for (unsigned i = 0; i < 2; i++) {
		tern_pool_put(m->pools[i], &m->bufs[i]);
		tern_pool_free(m->pools[i]);
	}
	tern_domain_free(m->domain);
	bench_gpu_close(&m->gpu);
}

/* The CUDA driver cannot be used after a fork, so each process loads it after the
 * fork. */
int main(int argc, char **argv)
{
	static const unsigned mib[] = {1, 4, 64}, rounds[] = {1, 2, 5},
			      times[] = {2, 3, 10};
	static struct moves m;
	enum bench_gpu_scale scale = bench_gpu_scale(argc, argv);
	int sockets[2], status;
	pid_t pid;

	m.largest = (uint64_t)mib[scale] << 20;
	m.sleeps = scale == BENCH_GPU_FEW;
	m.rounds = rounds[scale];
	m.times = times[scale];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) < 0)
		bench_fail(1, "the socket between the two processes cannot be created");
	pid = fork();
	if (pid < 0)
		bench_fail(1, "fork: the second process cannot be started");
	m.second = pid == 0;
	m.socket = sockets[m.second];
	close(sockets[!m.second]);
	run(&m);
	if (m.second)
		return 0;
	if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status))
		bench_fail(1, "the second process failed");
	return 0;
}
