/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A parameter server in plain C, without a library, in three variants.
 *
 * tcp: blocking sockets with cubic. A server adds received bytes to the sum in pieces of
 * at most 256 KiB, from whichever worker has sent some; it sends updated parameters piece
 * by piece. shm: gradients and parameters are in shared memory; workers copy theirs in
 * and out. inplace: as shm, without these two copies.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "bench/pair.h"
#include "bench/ps.h"

#define PIECE (PS_PIECE_BYTES / sizeof(float))

/* ---- variant tcp ---- */

/* in a worker: sockets to the servers; in a server: to the workers */
static int fds[PS_MOST];

static int new_socket(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) < 0)
		pair_die("cubic: %s", strerror(errno));
	return fd;
}

static void send_floats(int fd, const float *data, size_t count)
{
	const char *p = (const char *)data;

	for (size_t left = count * sizeof(float); left;) {
		ssize_t done = send(fd, p, left, MSG_NOSIGNAL);

		if (done <= 0)
			pair_die("send: %s", strerror(errno));
		p += done;
		left -= (size_t)done;
	}
}

static void receive_floats(int fd, float *data, size_t count)
{
	char *p = (char *)data;

	for (size_t left = count * sizeof(float); left;) {
		ssize_t done = recv(
			fd, p, left < 4 * PS_PIECE_BYTES ? left : 4 * PS_PIECE_BYTES, 0);

		if (done <= 0)
			pair_die("recv: %s", done ? strerror(errno) : "closed");
		p += done;
		left -= (size_t)done;
	}
}

static void accept_workers(struct ps *p)
{
	struct sockaddr_in at = {.sin_family = AF_INET};
	socklen_t length = sizeof(at);
	int listener = new_socket();

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(listener, (void *)&at, sizeof(at)) < 0 ||
		listen(listener, (int)p->workers) < 0 ||
		getsockname(listener, (void *)&at, &length) < 0)
		pair_die("listen: %s", strerror(errno));
	ps_tell_port(p, ntohs(at.sin_port));
	for (unsigned i = 0; i < p->workers; i++)
		fds[i] = accept(listener, NULL, NULL);
}

/* The state of receiving one worker's gradient. Complete floats are added to the sum at
 * once; the bytes of an incomplete float wait for the rest. */
struct arrival {
	size_t done; /* number of floats that were added */
	size_t odd;  /* number of bytes of an incomplete float, at the start of `piece` */
	float piece[PIECE + 1];
};

static void add_some(int fd, struct arrival *a, float *sums, size_t count)
{
	size_t left = (count - a->done) * sizeof(float) - a->odd;
	char *bytes = (char *)a->piece;
	ssize_t got = recv(
		fd, bytes + a->odd, left < PS_PIECE_BYTES ? left : PS_PIECE_BYTES, 0);
	size_t floats;

	if (got <= 0)
		pair_die("recv: %s", got ? strerror(errno) : "closed");
	a->odd += (size_t)got;
	floats = a->odd / sizeof(float);
	ps_add(sums + a->done, a->piece, floats);
	a->done += floats;
	a->odd %= sizeof(float);
	memmove(bytes, a->piece + floats, a->odd);
}

static void add_gradients(
	struct ps *p, struct arrival *arrivals, float *sums, size_t count)
{
	struct pollfd polls[PS_MOST];
	unsigned open = p->workers;

	for (unsigned i = 0; i < p->workers; i++) {
		arrivals[i].done = arrivals[i].odd = 0;
		polls[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
	}
	while (open) {
		if (p->workers > 1 && poll(polls, p->workers, -1) < 0)
			pair_die("poll: %s", strerror(errno));
		for (unsigned i = 0; i < p->workers; i++) {
			if (polls[i].fd < 0 || (p->workers > 1 && !polls[i].revents))
				continue;
			add_some(fds[i], &arrivals[i], sums, count);
			if (arrivals[i].done == count) {
				/* This worker's gradient is complete: further bytes
				 * belong to the next round. */
				polls[i].fd = -1;
				open--;
			}
		}
	}
}

static void serve_tcp(struct ps *p)
{
	size_t count = ps_first(p, p->index + 1) - ps_first(p, p->index);
	float *params = bench_memory(count * sizeof(float), false);
	float *sums = bench_memory(count * sizeof(float), false);
	struct arrival *arrivals = calloc(p->workers, sizeof(*arrivals));

	accept_workers(p);
	for (unsigned r = 0; r < p->rounds; r++) {
		add_gradients(p, arrivals, sums, count);
		for (size_t i = 0; i < count; i += PIECE) {
			size_t n = count - i < PIECE ? count - i : PIECE;

			ps_apply(p, params + i, sums + i, n);
			for (unsigned w = 0; w < p->workers; w++)
				send_floats(fds[w], params + i, n);
		}
	}
}

static void join_tcp(struct ps *p)
{
	for (unsigned s = 0; s < p->servers; s++) {
		struct sockaddr_in at = {.sin_family = AF_INET};

		at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		at.sin_port = htons((uint16_t)ps_port(p, s));
		fds[s] = new_socket();
		if (connect(fds[s], (void *)&at, sizeof(at)) < 0)
			pair_die("connect: %s", strerror(errno));
	}
}

static void round_tcp(struct ps *p)
{
	for (unsigned s = 0; s < p->servers; s++)
		send_floats(fds[s], p->gradient + ps_first(p, s),
			ps_first(p, s + 1) - ps_first(p, s));
	for (unsigned s = 0; s < p->servers; s++)
		receive_floats(fds[s], p->params + ps_first(p, s),
			ps_first(p, s + 1) - ps_first(p, s));
}

/* ---- variants shm and inplace ---- */

struct turns {
	sem_t pushed[PS_MOST][PS_MOST]; /* semaphores, by [server][worker] */
	sem_t updated[PS_MOST][PS_MOST];
};

static struct turns *turns;
static float *gradients[PS_MOST], *params;

static void prepare(struct ps *p)
{
	if (strcmp(p->variant, "tcp") == 0)
		return;
	turns = bench_memory(sizeof(*turns), true);
	for (unsigned s = 0; s < p->servers; s++) {
		for (unsigned w = 0; w < p->workers; w++) {
			sem_init(&turns->pushed[s][w], 1, 0);
			sem_init(&turns->updated[s][w], 1, 0);
		}
	}
	params = bench_memory(p->count * sizeof(float), true);
	for (unsigned w = 0; w < p->workers; w++)
		gradients[w] = bench_memory(p->count * sizeof(float), true);
}

static void wait_turn(sem_t *turn)
{
	while (sem_wait(turn) < 0)
		;
}

static void serve_shm(struct ps *p)
{
	size_t first = ps_first(p, p->index), end = ps_first(p, p->index + 1);
	static float sums[PIECE];

	for (unsigned r = 0; r < p->rounds; r++) {
		for (unsigned w = 0; w < p->workers; w++)
			wait_turn(&turns->pushed[p->index][w]);
		for (size_t i = first; i < end; i += PIECE) {
			size_t n = end - i < PIECE ? end - i : PIECE;

			for (unsigned w = 0; w < p->workers; w++)
				ps_add(sums, gradients[w] + i, n);
			ps_apply(p, params + i, sums, n);
		}
		for (unsigned w = 0; w < p->workers; w++)
			sem_post(&turns->updated[p->index][w]);
	}
}

/* One round of a worker. The variant inplace needs no copy of the parameters: a server
 * updates them only after all workers have pushed the next gradient, and then no worker
 * reads them. */
static void round_shm(struct ps *p)
{
	bool copies = strcmp(p->variant, "shm") == 0;

	for (unsigned s = 0; s < p->servers; s++) {
		size_t first = ps_first(p, s), count = ps_first(p, s + 1) - first;

		if (copies)
			memcpy(gradients[p->index] + first, p->gradient + first,
				count * sizeof(float));
		sem_post(&turns->pushed[s][p->index]);
	}
	for (unsigned s = 0; s < p->servers; s++) {
		size_t first = ps_first(p, s), count = ps_first(p, s + 1) - first;

		wait_turn(&turns->updated[s][p->index]);
		if (copies)
			memcpy(p->params + first, params + first, count * sizeof(float));
	}
}

static void join_shm(struct ps *p)
{
	if (strcmp(p->variant, "inplace") != 0)
		return;
	memcpy(gradients[p->index], p->gradient, p->count * sizeof(float));
	p->params = params;
}

/* ---- all variants ---- */

static void serve(struct ps *p)
{
	(strcmp(p->variant, "tcp") == 0 ? serve_tcp : serve_shm)(p);
}

static void join(struct ps *p)
{
	(strcmp(p->variant, "tcp") == 0 ? join_tcp : join_shm)(p);
}

static void do_round(struct ps *p)
{
	(strcmp(p->variant, "tcp") == 0 ? round_tcp : round_shm)(p);
}

static const char *raw_version(void)
{
	static struct utsname system;

	uname(&system);
	return system.release;
}

int main(int argc, char **argv)
{
	return ps_main(argc, argv,
		&(struct ps_ops){.name = "raw C",
			.variants = "tcp,shm,inplace",
			.wait = "sleep",
			.version = raw_version,
			.prepare = prepare,
			.serve = serve,
			.join = join,
			.round = do_round});
}
