/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Example of a program that has threads and a poll loop of its own, and handles errors:
 * one thread gathers vectors from up to 64 others, adds them up and prints the sum.
 *
 *     gather ADDRESS SENDERS VECTORS     tcp://127.0.0.1:0 4 100
 *
 * - The process has one domain, and two pools: one for all senders, one for what arrives.
 * - Each thread has a context of its own, since a context takes no locks.
 * - The gatherer sleeps in poll(2) on its context's descriptor and on a signalfd, like a
 *   program that also waits for other events. Ctrl-C ends it in order.
 * - Memory comes from the pools, so no memory is registered while vectors are sent. When
 *   the senders' pool is full, a sender waits until another one gives a buffer back.
 * - Each function reports a failure by a status. The first failure ends the program, with
 *   exit code 1.
 *
 * Build it: cc gather.c $(pkg-config --cflags --libs tern) -pthread -o gather
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <tern/tern.h>

#define SECOND      1000000000ull
#define ELEMENTS    4096u
#define SENDERS_MAX 64u
#define VECTORS_MAX 1000000u
#define WINDOW      8u /* requests that each sender, and each source, has in flight */
#define CHANNEL     1u

static struct tern_domain *domain;
static struct tern_pool *pool;     /* of the senders */
static struct tern_pool *arrivals; /* of the gatherer: what arrives waits for no sender */
static char address[256];
static unsigned senders, vectors;

/* ---- errors: the first one is told, and ends all threads ---- */

static atomic_int failure;

static int fail(const char *what, int status)
{
	int none = 0;

	if (status < 0 && atomic_compare_exchange_strong(&failure, &none, status))
		fprintf(stderr, "gather: %s: %s\n", what, tern_status_text(status));
	return status;
}

/* The log function: prints a line of the library. Any thread may call it. */
static void log_line(enum tern_log_level level, const char *text, void *arg)
{
	(void)arg;
	fprintf(stderr, "gather: %s: %s\n", tern_log_level_name(level), text);
}

/* ---- senders: threads that wait for their own requests only ---- */

struct sender {
	pthread_t thread;
	struct tern_context *ctx;
	struct tern_peer *peer;
	struct tern_channel *channel;
	unsigned number;
	bool down;
	/* A posted request must stay in place, so the requests are kept here. bufs[i] is
	 * the buffer of reqs[i]; mem NULL: it is not posted. */
	struct tern_req reqs[WINDOW];
	struct tern_buf bufs[WINDOW];
};

static void sender_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct sender *s = arg;

	(void)peer;
	if (event != TERN_PEER_DOWN)
		return;
	s->down = true;
	fail("the gatherer", status);
}

/* Waits until request i has ended, and gives its buffer back. Returns the status of the
 * request; 0 also if it was not posted. */
static int finish(struct sender *s, unsigned i)
{
	int status = 0;

	if (s->bufs[i].mem)
		status = tern_wait(s->ctx, &s->reqs[i], TERN_NEVER);
	tern_pool_put(pool, &s->bufs[i]);
	return status;
}

/* Gives the buffers of the sends that have ended back to the pool. */
static int finish_ended(struct sender *s)
{
	int status = 0;

	for (unsigned i = 0; i < WINDOW && !status; i++) {
		if (s->bufs[i].mem && tern_test(&s->reqs[i]) != -EINPROGRESS)
			status = finish(s, i);
	}
	return status;
}

/* Takes a buffer from the senders' pool. While it is full, gives back what this sender
 * no longer needs (another one may wait for it), and tries again every millisecond or
 * sooner. */
static int take_buffer(struct sender *s, struct tern_buf *buf)
{
	int status = tern_pool_get(pool, ELEMENTS * sizeof(float), buf);

	while (status == -EAGAIN && !atomic_load(&failure)) {
		tern_wait_any(s->ctx, SECOND / 1000);
		status = finish_ended(s);
		if (!status)
			status = tern_pool_get(pool, ELEMENTS * sizeof(float), buf);
	}
	return status;
}

static int send_one(struct sender *s, unsigned i, unsigned number)
{
	struct tern_tensor tensor = {.shape = tern_shape_1d(TERN_F32, ELEMENTS)};
	float *x;
	int status = take_buffer(s, &s->bufs[i]);

	if (status)
		return status;
	x = tern_buf_ptr(&s->bufs[i]);
	for (unsigned k = 0; k < ELEMENTS; k++)
		x[k] = 1;
	tensor.buf = s->bufs[i];
	status = tern_send(s->channel, &s->reqs[i], tern_key("vector"), number, &tensor,
		"vector", 0);
	if (status) /* the request was not taken, so it will never end */
		tern_pool_put(pool, &s->bufs[i]);
	return status;
}

static int send_all(struct sender *s)
{
	int status = 0;

	for (unsigned n = 0; n < vectors && !status && !atomic_load(&failure); n++) {
		status = finish(s, n % WINDOW);
		if (!status)
			status = send_one(s, n % WINDOW, n);
	}
	for (unsigned i = 0; i < WINDOW; i++) {
		int r = finish(s, i);

		status = status ? status : r;
	}
	return status;
}

/* The thread of one sender. send_all() waits for every send, so no request is posted any
 * more when the context is freed. */
static void *sender_main(void *arg)
{
	struct sender *s = arg;
	char name[32];
	struct tern_peer_opts opts = {.event = sender_event, .arg = s, .name = name};
	int status;

	snprintf(name, sizeof(name), "sender %u", s->number);
	status = fail("a context", tern_context_new(domain, NULL, &s->ctx));
	if (status == 0)
		status = fail(address, tern_connect(s->ctx, address, &opts, &s->peer));
	if (status == 0)
		status = fail(
			"a channel", tern_channel_open(s->peer, CHANNEL, &s->channel));
	if (status == 0)
		status = fail(name, send_all(s));
	if (status == 0)
		tern_peer_close(s->peer);
	while (status == 0 && !s->down && !atomic_load(&failure))
		tern_wait_any(s->ctx, SECOND / 10);
	tern_context_free(s->ctx); /* frees the peer, too */
	return NULL;
}

/* ---- the gatherer: a loop of its own ---- */

struct source {
	struct tern_peer *peer;
	struct tern_channel *channel;
	struct tern_req reqs[WINDOW];
	unsigned posted;
};

static struct source sources[SENDERS_MAX];
static unsigned source_count, down_count;
static double sum;

static void received(struct tern_req *req);

static int receive_next(struct source *s, struct tern_req *req)
{
	if (s->posted == vectors)
		return 0;
	req->done = received;
	req->arg = s;
	return tern_recv(s->channel, req, tern_key("vector"), s->posted++, NULL, "vector",
		TERN_RECV_PEEK);
}

/* Called in tern_progress() when a receive has ended. The vector is in the sender's
 * memory or in a buffer of `arrivals`: adds it to the sum, gives the memory back, and posts
 * the request again. */
static void received(struct tern_req *req)
{
	struct source *s = req->arg;
	const float *x = req->data;

	if (fail(tern_peer_name(s->peer), req->status))
		return;
	for (unsigned k = 0; k < req->bytes / sizeof(float); k++)
		sum += (double)x[k];
	tern_release(req);
	fail(tern_peer_name(s->peer), receive_next(s, req));
}

static void source_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	(void)arg;
	if (event != TERN_PEER_DOWN)
		return;
	fail(tern_peer_name(peer), status);
	down_count++;
}

static void accepted(struct tern_peer *peer, void *arg)
{
	struct source *s = &sources[source_count];
	struct tern_peer_opts opts = {
		.event = source_event, .arg = s, .pool = arrivals, .name = "gatherer"};
	int status;

	(void)arg;
	if (source_count == senders) {
		fprintf(stderr, "gather: %s is one too many\n", tern_peer_address(peer));
		tern_peer_free(peer);
		return;
	}
	source_count++;
	s->peer = peer;
	status = tern_peer_set_opts(peer, &opts);
	if (status == 0)
		status = tern_channel_open(peer, CHANNEL, &s->channel);
	for (unsigned i = 0; i < WINDOW && status == 0; i++)
		status = receive_next(s, &s->reqs[i]);
	fail(tern_peer_name(peer), status);
}

/* Loop of the gatherer, until all senders have gone or something has failed: makes all
 * progress that is possible, then sleeps until the context has an event or a signal
 * comes. */
static void gather(struct tern_context *ctx, int signals)
{
	struct pollfd fds[] = {
		{.fd = tern_context_fd(ctx), .events = POLLIN},
		{.fd = signals, .events = POLLIN},
	};

	while (down_count < senders && !atomic_load(&failure)) {
		int count = tern_progress(ctx), status;

		if (count < 0)
			fail("progress", count);
		if (count != 0)
			continue;
		status = tern_arm(ctx);
		if (status == -EAGAIN)
			continue;
		/* poll() has a limit of 100 ms, since a sender thread that fails does not
		 * wake this thread. */
		if (fail("sleep", status) == 0 && poll(fds, 2, 100) > 0 && fds[1].revents)
			fail("asked to end", -ECANCELED);
	}
}

/* ---- the process ---- */

static int open_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	/* in this thread, and in all that it makes from now on */
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void run(struct tern_context **ctx, struct tern_listener **listener, int signals)
{
	static struct sender all[SENDERS_MAX];
	unsigned started = 0;

	while (started < senders) {
		struct sender *s = &all[started];

		s->number = started;
		if (fail("a thread", -pthread_create(&s->thread, NULL, sender_main, s)))
			break;
		started++;
	}
	gather(*ctx, signals);
	/* After a failure, senders may still wait for the gatherer. Freeing its context
	 * cuts their connections, and so ends their waits. */
	if (atomic_load(&failure)) {
		tern_listener_free(*listener);
		tern_context_free(*ctx);
		*listener = NULL;
		*ctx = NULL;
	}
	while (started > 0)
		pthread_join(all[--started].thread, NULL);
}

static unsigned number(const char *text, unsigned most)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (value >= 1 && value <= most && !*end)
		return (unsigned)value;
	fprintf(stderr, "gather: %s: must be 1 to %u\n", text, most);
	exit(2);
}

int main(int argc, char **argv)
{
	/* The pools are small on purpose, so that they are full with many senders. */
	struct tern_pool_opts pool_opts = {.slab_bytes = 1 << 20};
	struct tern_listener *listener = NULL;
	struct tern_context *ctx = NULL;
	int signals, status;

	if (argc != 4) {
		fprintf(stderr, "usage: gather ADDRESS SENDERS VECTORS\n");
		return 2;
	}
	senders = number(argv[2], SENDERS_MAX);
	vectors = number(argv[3], VECTORS_MAX);
	tern_log_set(TERN_LOG_WARN, log_line, NULL);
	signals = open_signals();
	status = fail("a domain", tern_domain_new(NULL, &domain));
	if (status == 0)
		status = fail("a pool", tern_pool_new(domain, &pool_opts, &pool));
	if (status == 0)
		status = fail("a pool", tern_pool_new(domain, &pool_opts, &arrivals));
	if (status == 0)
		status = fail("a context", tern_context_new(domain, NULL, &ctx));
	if (status == 0)
		status = fail(argv[1],
			tern_listen(ctx, argv[1], NULL, accepted, NULL, &listener));
	if (status == 0) {
		snprintf(address, sizeof(address), "%s", tern_listener_address(listener));
		run(&ctx, &listener, signals);
	}
	/* Each of these may use the ones that are freed after it. */
	tern_listener_free(listener);
	tern_context_free(ctx);
	tern_pool_free(arrivals);
	tern_pool_free(pool);
	tern_domain_free(domain);
	if (atomic_load(&failure))
		return 1;
	printf("%u vectors from each of %u: %.0f\n", vectors, senders, sum);
	return 0;
}
