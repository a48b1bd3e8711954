/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A parameter server in plain C, without a library, in three variants. In each, all
 * servers and workers work at the same time, in pieces: a server updates a piece as soon
 * as all workers have sent it, and answers with it at once.
 *
 * tcp: sockets with cubic; no send or receive blocks. Servers and workers move what they can on all
 * of their connections, in both directions, and sleep when nothing moves. shm: gradients and
 * parameters are in shared memory; a worker copies its gradient in and the parameters out.
 * inplace: as shm, without these two copies.
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

/* most bytes of one recv() of a worker; 1 MiB was the fastest */
#define CALL_BYTES (1u << 20)

/* A connection. Positions count bytes from the first round on: position x is byte x %
 * `bytes` of round x / `bytes`. */
struct link {
	int fd;
	size_t bytes;            /* bytes of a round, in one direction */
	uint64_t sent, received; /* positions */
	/* in a server: received bytes; those of an incomplete float are kept at the start */
	float piece[PIECE + 1];
};

/* in a worker: by server; in a server: by worker, in the order in which they connect */
static struct link links[PS_MOST];

static int new_socket(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) < 0)
		pair_die("cubic: %s", strerror(errno));
	return fd;
}

/* True if some bytes moved, false if the socket is full or empty. */
static bool moved(const char *what, ssize_t done, uint64_t *position)
{
	if (done < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (done <= 0)
		pair_die("%s: %s", what, done ? strerror(errno) : "closed");
	*position += (uint64_t)done;
	return true;
}

/* Sends some of the bytes before position `end`. `data` has the bytes of a whole round. Returns
 * false if nothing was sent. */
static bool send_some(struct link *l, const float *data, uint64_t end)
{
	size_t at = l->sent % l->bytes, left = l->bytes - at;

	if (l->sent == end)
		return false;
	if (left > end - l->sent)
		left = end - l->sent;
	return moved("send",
		send(l->fd, (const char *)data + at, left, MSG_NOSIGNAL | MSG_DONTWAIT),
		&l->sent);
}

/* Receives some of the bytes before position `end`, the end of a round. `data` has room for the
 * bytes of a whole round. Returns false if nothing was received. */
static bool receive_some(struct link *l, float *data, uint64_t end)
{
	size_t at = l->received % l->bytes, left = end - l->received;

	if (l->received == end)
		return false;
	return moved("recv",
		recv(l->fd, (char *)data + at, left < CALL_BYTES ? left : CALL_BYTES,
			MSG_DONTWAIT),
		&l->received);
}

/* Sleeps until something can move. writes[i]: there is something to send on links[i]. */
static void sleep_until_ready(unsigned count, const bool *writes)
{
	struct pollfd polls[PS_MOST];

	for (unsigned i = 0; i < count; i++) {
		short events = (short)(POLLIN | (writes[i] ? POLLOUT : 0));

		polls[i] = (struct pollfd){.fd = links[i].fd, .events = events};
	}
	if (poll(polls, count, -1) < 0)
		pair_die("poll: %s", strerror(errno));
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
		links[i].fd = accept(listener, NULL, NULL);
}

/* Receives some of a worker's gradient before position `end`, and adds its complete
 * floats to the sum. */
static bool add_some(struct link *l, float *sums, uint64_t end)
{
	size_t odd = l->received % sizeof(float),
	       left = l->bytes - l->received % l->bytes;
	float *to = sums + (l->received - odd) % l->bytes / sizeof(float);
	char *bytes = (char *)l->piece;
	uint64_t before = l->received;
	size_t floats;

	if (l->received == end)
		return false;
	if (!moved("recv",
		    recv(l->fd, bytes + odd,
			    left < PS_PIECE_BYTES ? left : PS_PIECE_BYTES, MSG_DONTWAIT),
		    &l->received))
		return false;
	odd += l->received - before;
	floats = odd / sizeof(float);
	ps_add(to, l->piece, floats);
	memmove(bytes, l->piece + floats, odd % sizeof(float));
	return true;
}

/* Updates all pieces after position `updated` that every worker has sent. Returns the
 * position after them. */
static uint64_t update(struct ps *p, float *params, float *sums, uint64_t updated)
{
	uint64_t complete = links[0].received;
	size_t bytes = links[0].bytes;

	for (unsigned w = 1; w < p->workers; w++) {
		if (links[w].received < complete)
			complete = links[w].received;
	}
	for (;;) {
		size_t at = updated % bytes;
		size_t n = bytes - at < PS_PIECE_BYTES ? bytes - at : PS_PIECE_BYTES;

		if (updated + n > complete)
			return updated;
		ps_apply(p, params + at / sizeof(float), sums + at / sizeof(float),
			n / sizeof(float));
		updated += n;
	}
}

static void serve_tcp(struct ps *p)
{
	size_t count = ps_first(p, p->index + 1) - ps_first(p, p->index);
	float *params = bench_memory(count * sizeof(float), false);
	float *sums = bench_memory(count * sizeof(float), false);
	uint64_t end = (uint64_t)p->rounds * count * sizeof(float), updated = 0;

	accept_workers(p);
	for (unsigned w = 0; w < p->workers; w++)
		links[w].bytes = count * sizeof(float);
	for (bool open = true; open;) {
		bool writes[PS_MOST], any = false;

		for (unsigned w = 0; w < p->workers; w++)
			any |= add_some(&links[w], sums, end);
		updated = update(p, params, sums, updated);
		open = updated < end;
		for (unsigned w = 0; w < p->workers; w++) {
			any |= send_some(&links[w], params, updated);
			writes[w] = links[w].sent < updated;
			open |= writes[w];
		}
		if (open && !any)
			sleep_until_ready(p->workers, writes);
	}
}

static void join_tcp(struct ps *p)
{
	for (unsigned s = 0; s < p->servers; s++) {
		struct sockaddr_in at = {.sin_family = AF_INET};

		at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		at.sin_port = htons((uint16_t)ps_port(p, s));
		links[s].fd = new_socket();
		if (connect(links[s].fd, (void *)&at, sizeof(at)) < 0)
			pair_die("connect: %s", strerror(errno));
		links[s].bytes = (ps_first(p, s + 1) - ps_first(p, s)) * sizeof(float);
	}
}

static void round_tcp(struct ps *p)
{
	uint64_t end[PS_MOST];

	for (unsigned s = 0; s < p->servers; s++)
		end[s] = links[s].sent + links[s].bytes;
	for (bool open = true; open;) {
		bool writes[PS_MOST], any = false;

		open = false;
		for (unsigned s = 0; s < p->servers; s++) {
			size_t first = ps_first(p, s);

			any |= send_some(&links[s], p->gradient + first, end[s]);
			any |= receive_some(&links[s], p->params + first, end[s]);
			writes[s] = links[s].sent < end[s];
			open |= links[s].received < end[s];
		}
		if (open && !any)
			sleep_until_ready(p->servers, writes);
	}
}

/* ---- variants shm and inplace ---- */

#define TURN (4 * PIECE) /* floats that are handed over at once */

/* Semaphores that count turns, by [server][worker]. pushed: turns whose gradient the worker has
 * handed over, and the server has not yet added. updated: turns whose parameters the server has
 * updated, and the worker has not yet taken. */
struct turns {
	sem_t pushed[PS_MOST][PS_MOST];
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

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Adds the elements [at, end) of all gradients, and updates the parameters. */
static void update_turn(struct ps *p, size_t at, size_t end)
{
	static float sums[PIECE];

	for (; at < end; at += PIECE) {
		size_t n = least(PIECE, end - at);

		for (unsigned w = 0; w < p->workers; w++)
			ps_add(sums, gradients[w] + at, n);
		ps_apply(p, params + at, sums, n);
	}
}

static void serve_shm(struct ps *p)
{
	size_t first = ps_first(p, p->index), end = ps_first(p, p->index + 1);

	for (unsigned r = 0; r < p->rounds; r++) {
		for (size_t at = first; at < end; at += TURN) {
			for (unsigned w = 0; w < p->workers; w++)
				wait_turn(&turns->pushed[p->index][w]);
			update_turn(p, at, least(at + TURN, end));
			for (unsigned w = 0; w < p->workers; w++)
				sem_post(&turns->updated[p->index][w]);
		}
	}
}

/* In a worker: hands its gradient to server s (`push`), or takes the parameters from it, for the
 * turn that begins `offset` elements after the server's first one. */
static void take_turn(struct ps *p, unsigned s, size_t offset, bool push)
{
	size_t at = ps_first(p, s) + offset, end = ps_first(p, s + 1);
	size_t bytes = least(TURN, end - at) * sizeof(float);
	bool copies = strcmp(p->variant, "shm") == 0;

	if (at >= end)
		return;
	if (!push)
		wait_turn(&turns->updated[s][p->index]);
	if (copies && push)
		memcpy(gradients[p->index] + at, p->gradient + at, bytes);
	else if (copies)
		memcpy(p->params + at, params + at, bytes);
	if (push)
		sem_post(&turns->pushed[s][p->index]);
}

/* One round of a worker. The variant inplace needs no copy of the parameters: a server
 * updates a turn only after all workers have pushed it in the next round, and then no
 * worker reads the parameters of this one. */
static void round_shm(struct ps *p)
{
	size_t most = p->count / p->servers + p->count % p->servers;

	for (int push = 1; push >= 0; push--) {
		for (size_t offset = 0; offset < most; offset += TURN) {
			for (unsigned s = 0; s < p->servers; s++)
				take_turn(p, s, offset, push);
		}
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
