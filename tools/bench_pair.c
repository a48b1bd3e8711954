/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both ends of a measurement. There are `inflight` slots; message n uses slot n %
 * inflight at both ends, so a slot's buffers are used by one message at a time. The
 * receiver posts the next receive of a slot before it answers, so the sender always meets
 * a posted receive: the measurement covers the steady state of training.
 *
 * The processes share only a socket pair, over which the receiver sends its address and,
 * at the end, its resource usage. Both processes are new for each measurement, because
 * resources of the RDMA libraries cannot be used in a forked child.
 */
#include "tools/bench_pair.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/util.h"

#define REPLY_BYTES 8
/* Without progress for this long, something is broken. */
#define LIMIT_NS (20 * TERN_NS_PER_S)

struct slot {
	struct pair_end *end;
	struct tern_buf data, reply;
	struct tern_req data_req, reply_req;
	bool data_busy, reply_busy;
	bool reply_due; /* receiver: an answer waits for the end of the last one */
	uint64_t n;     /* number of the present message of this slot */
	uint64_t start_ns;
};

/* The receiver's report at the end. */
struct usage {
	int status;
	uint64_t cpu_ns, registrations;
	struct bench_error error;
};

struct pair_end {
	const struct bench_config *config;
	bool sender;
	uint64_t total;
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_pool *pool;
	struct tern_listener *listener;
	struct tern_peer *peer;
	struct tern_channel *channel;
	bool up, down;
	uint64_t data_key, reply_key;
	struct slot *slots;
	uint64_t next;       /* sender: number of the next message */
	uint64_t done_count; /* messages that have ended at this end */
	uint64_t *trips_ns;  /* sender with reply_each: one per measured round */
	uint64_t start_ns, end_ns;
	uint64_t start_cpu_ns, start_registrations;
	struct usage usage;
};

static int fail(struct pair_end *e, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* The first failure counts; later ones follow from it. */
static int fail(struct pair_end *e, int status, const char *fmt, ...)
{
	va_list ap;

	if (!e->usage.status) {
		e->usage.status = status;
		va_start(ap, fmt);
		vsnprintf(e->usage.error.text, sizeof(e->usage.error.text), fmt, ap);
		va_end(ap);
	}
	return status;
}

/* ---- contents ---- */

/* Word i of message n. The formula has constant steps, so that compilers vectorise it. */
static uint64_t word_of(uint64_t n, uint64_t i)
{
	return (n + 1) * 0x9e3779b97f4a7c15u + i * 0xd6e8feb86659fd93u;
}

static void fill(const struct tern_buf *buf, uint64_t n)
{
	unsigned char *p = tern_buf_ptr(buf);
	uint64_t whole = buf->bytes / 8 * 8, word;

	for (uint64_t i = 0; i < whole; i += 8) {
		word = word_of(n, i);
		memcpy(p + i, &word, 8);
	}
	word = word_of(n, whole);
	memcpy(p + whole, &word, buf->bytes - whole);
}

static bool holds(const void *data, uint64_t bytes, uint64_t n)
{
	const unsigned char *p = data;
	uint64_t whole = bytes / 8 * 8, word, wrong = 0;

	for (uint64_t i = 0; i < whole; i += 8) {
		memcpy(&word, p + i, 8);
		wrong |= word ^ word_of(n, i);
	}
	word = word_of(n, whole);
	return wrong == 0 && memcmp(p + whole, &word, bytes - whole) == 0;
}

/* ---- messages ---- */

static bool answered(const struct pair_end *e, uint64_t n)
{
	return e->config->reply_each || n == e->config->warmup - 1 || n == e->total - 1;
}

static uint64_t registrations(const struct pair_end *e)
{
	struct tern_domain_stats stats;

	tern_domain_stats(e->domain, &stats);
	return stats.registration_count;
}

/* Message n has ended at this end; it counts from the last message of the warm-up on.
 * The clock is read only when needed: for a small message it would take a tenth of the
 * time. */
static void count_message(struct pair_end *e)
{
	e->done_count++;
	if (e->done_count == e->config->warmup) {
		e->start_ns = tern_clock_ns();
		e->start_cpu_ns = tern_clock_cpu_ns();
		e->start_registrations = registrations(e);
	}
	if (e->done_count == e->total) {
		e->end_ns = tern_clock_ns();
		e->usage.cpu_ns = tern_clock_cpu_ns() - e->start_cpu_ns;
		e->usage.registrations = registrations(e) - e->start_registrations;
	}
}

static const unsigned receive_flags[] = {
	[BENCH_RECEIVE_ROOM] = 0,
	[BENCH_RECEIVE_ALLOC] = TERN_RECV_ALLOC,
	[BENCH_RECEIVE_PEEK] = TERN_RECV_PEEK,
};

static int post(struct slot *s, bool send, bool reply, uint64_t n)
{
	struct tern_req *req = reply ? &s->reply_req : &s->data_req;
	const struct tern_buf *buf = reply ? &s->reply : &s->data;
	struct tern_tensor tensor = {
		.buf = *buf, .shape = tern_shape_1d(TERN_U8, buf->bytes)};
	uint64_t key = reply ? s->end->reply_key : s->end->data_key;
	int r;

	*(reply ? &s->reply_busy : &s->data_busy) = true;
	if (send)
		r = tern_send(s->end->channel, req, key, n, &tensor, NULL, 0);
	else
		r = tern_recv(s->end->channel, req, key, n, buf, NULL,
			reply ? 0 : receive_flags[s->end->config->receive]);
	return r ? fail(s->end, r, "posting a request: %s", tern_status_text(r)) : 0;
}

/* ---- the sender ---- */

/*
 * True if message `n` may be sent. When a rate is measured, the measured part starts
 * after the warm-up was answered, so that none of its messages is in flight.
 */
static bool may_start(const struct pair_end *e, uint64_t n)
{
	return n < e->total &&
	       (n < e->config->warmup || e->done_count >= e->config->warmup);
}

static void start_message(struct slot *s)
{
	struct pair_end *e = s->end;

	s->n = e->next++;
	if (e->config->rewrite && s->n >= e->config->inflight)
		fill(&s->data, s->n);
	if (e->config->reply_each)
		s->start_ns = tern_clock_ns();
	if (answered(e, s->n) && post(s, false, true, s->n))
		return;
	post(s, true, false, s->n);
}

static void start_messages(struct pair_end *e)
{
	while (!e->usage.status && may_start(e, e->next)) {
		struct slot *s = &e->slots[e->next % e->config->inflight];

		if (s->data_busy || s->reply_busy)
			return;
		start_message(s);
	}
}

static void sender_done(struct slot *s, bool reply)
{
	struct pair_end *e = s->end;

	if (reply && e->config->reply_each && s->n >= e->config->warmup)
		e->trips_ns[s->n - e->config->warmup] = tern_clock_ns() - s->start_ns;
	/* The message has ended: the answer is here, and the buffer may be reused. An
	 * unanswered message of a rate has ended when its buffer is free; answered
	 * ones also wait for the answer. */
	if (!s->data_busy && !s->reply_busy)
		count_message(e);
	start_messages(e);
}

/* ---- the receiver ---- */

static void check_message(struct slot *s)
{
	struct pair_end *e = s->end;
	struct tern_shape want = tern_shape_1d(TERN_U8, e->config->size);

	if (!tern_shape_equal(&s->data_req.shape, &want))
		fail(e, -EBADMSG, "message %llu arrived with another shape",
			(unsigned long long)s->n);
	else if (s->n < e->config->inflight &&
		 !holds(s->data_req.data, s->data_req.bytes, s->n))
		fail(e, -EBADMSG, "message %llu arrived with other contents",
			(unsigned long long)s->n);
}

static void send_reply(struct slot *s)
{
	uint64_t n = s->n;

	s->reply_due = false;
	if (s->end->config->receive != BENCH_RECEIVE_ROOM)
		tern_release(&s->data_req);
	/* The receive is posted before the answer: see the head of this file. */
	s->n += s->end->config->inflight;
	if (s->n < s->end->total && post(s, false, false, s->n))
		return;
	if (answered(s->end, n))
		post(s, true, true, n);
}

static void receiver_done(struct slot *s, bool reply)
{
	struct pair_end *e = s->end;

	if (!reply) {
		check_message(s);
		count_message(e);
		s->reply_due = true;
	}
	if (!e->usage.status && s->reply_due && !s->reply_busy)
		send_reply(s);
}

/* ---- both ---- */

static void request_done(struct slot *s, bool reply, int status)
{
	struct pair_end *e = s->end;

	*(reply ? &s->reply_busy : &s->data_busy) = false;
	if (status)
		fail(e, status, "a transfer: %s", tern_status_text(status));
	else if (e->sender)
		sender_done(s, reply);
	else
		receiver_done(s, reply);
}

static void data_done(struct tern_req *req)
{
	request_done(req->arg, false, req->status);
}

static void reply_done(struct tern_req *req)
{
	request_done(req->arg, true, req->status);
}

static void peer_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct pair_end *e = arg;

	(void)peer;
	switch (event) {
	case TERN_PEER_UP:
		e->up = true;
		break;
	case TERN_PEER_DOWN:
		e->down = true;
		if (status)
			fail(e, status, "the connection: %s", tern_status_text(status));
		break;
	case TERN_PEER_SUSPECT:
	case TERN_PEER_RECOVERED:
		break;
	}
}

static void accepted(struct tern_peer *peer, void *arg)
{
	struct pair_end *e = arg;
	struct tern_peer_opts opts = {.event = peer_event, .arg = e, .pool = e->pool};

	if (e->peer) { /* another process has found the port */
		tern_peer_close(peer);
		return;
	}
	tern_peer_set_opts(peer, &opts);
	e->peer = peer;
	e->up = true;
}

static bool idle(const struct pair_end *e)
{
	for (uint32_t i = 0; i < e->config->inflight; i++) {
		if (e->slots[i].data_busy || e->slots[i].reply_busy)
			return false;
	}
	return e->done_count == e->total;
}

static bool is_up(const struct pair_end *e)
{
	return e->up;
}

static bool is_down(const struct pair_end *e)
{
	return e->down;
}

/* Drives the context until `until` holds, something failed, or nothing happens any
 * more. */
static int drive(
	struct pair_end *e, bool (*until)(const struct pair_end *e), const char *what)
{
	uint64_t seen = e->done_count, quiet_since_ns = tern_clock_ns();
	unsigned turns = 0;

	while (!e->usage.status && !until(e)) {
		int r = e->config->sleep ? tern_wait_any(e->ctx, TERN_NS_PER_S)
					 : tern_progress(e->ctx);

		if (r < 0 && r != -ETIMEDOUT)
			return fail(e, r, "%s: %s", what, tern_status_text(r));
		if (!e->config->sleep && ++turns % 4096)
			continue;
		if (e->done_count != seen) {
			seen = e->done_count;
			quiet_since_ns = tern_clock_ns();
		} else if (tern_clock_ns() - quiet_since_ns > LIMIT_NS) {
			return fail(e, -ETIMEDOUT,
				"%s: given up after %d s in which no operation ended",
				what, (int)(LIMIT_NS / TERN_NS_PER_S));
		}
	}
	return e->usage.status;
}

static int get_slots(struct pair_end *e)
{
	e->slots = calloc(e->config->inflight, sizeof(*e->slots));
	if (!e->slots)
		return -ENOMEM;
	for (uint32_t i = 0; i < e->config->inflight; i++) {
		struct slot *s = &e->slots[i];
		bool has_room = e->sender || e->config->receive == BENCH_RECEIVE_ROOM;
		int r = 0;

		if (has_room)
			r = tern_pool_get(e->pool, e->config->size, &s->data);
		if (r == 0)
			r = tern_pool_get(e->pool, REPLY_BYTES, &s->reply);
		if (r)
			return r;
		s->end = e;
		s->n = i;
		s->data_req.done = data_done;
		s->reply_req.done = reply_done;
		s->data_req.arg = s->reply_req.arg = s;
		if (e->sender)
			fill(&s->data, i);
	}
	return 0;
}

static int open_domain(struct pair_end *e)
{
	const struct fabric_settings *fabric = &e->config->fabric;
	struct tern_domain_opts opts = fabric_domain_opts(fabric);
	const char *why;
	int r = tern_domain_new(&opts, &e->domain);

	if (r)
		return r;
	why = fabric_missing(fabric, e->domain);
	if (!why)
		return 0;
	e->usage.error.input = true;
	return fail(e, -ENODEV, "--fabric %s: %s", fabric_name(fabric), why);
}

static int end_init(struct pair_end *e)
{
	struct tern_context_opts ctx_opts = {
		.no_spin = e->config->sleep, .secret = e->config->secret};
	struct tern_pool_opts pool_opts = {.prefault = true};
	int r;

	e->data_key = tern_key("bench.data");
	e->reply_key = tern_key("bench.reply");
	pool_opts.slab_bytes =
		tern_align_up(e->config->size + 128, 128) * e->config->inflight +
		(1u << 20);
	e->total = e->config->warmup + e->config->rounds;
	if (e->sender && e->config->reply_each) {
		e->trips_ns = calloc(e->config->rounds, sizeof(*e->trips_ns));
		if (!e->trips_ns)
			return fail(e, -ENOMEM, "no memory for %llu rounds",
				(unsigned long long)e->config->rounds);
	}
	r = open_domain(e);
	if (e->usage.status)
		return r;
	if (r == 0)
		r = tern_context_new(e->domain, &ctx_opts, &e->ctx);
	if (r == 0)
		r = tern_pool_new(e->domain, &pool_opts, &e->pool);
	if (r == 0)
		r = get_slots(e);
	return r ? fail(e, r, "setting up: %s", tern_status_text(r)) : 0;
}

static void end_fini(struct pair_end *e)
{
	tern_listener_free(e->listener);
	tern_context_free(e->ctx);
	for (uint32_t i = 0; e->slots && i < e->config->inflight; i++) {
		if (e->slots[i].data.mem)
			tern_pool_put(e->pool, &e->slots[i].data);
		if (e->slots[i].reply.mem)
			tern_pool_put(e->pool, &e->slots[i].reply);
	}
	tern_pool_free(e->pool);
	tern_domain_free(e->domain);
	free(e->slots);
	free(e->trips_ns);
}

static int say_goodbye(struct pair_end *e)
{
	tern_peer_close(e->peer);
	return drive(e, is_down, "closing");
}

/* ---- the two processes ---- */

static int run_receiver(struct pair_end *e, int fd)
{
	char address[128];
	ssize_t bytes;
	int r = end_init(e);

	if (r)
		return r;
	fabric_listen_address(&e->config->fabric, e->config->listen, "tern-bench",
		address, sizeof(address));
	r = tern_listen(e->ctx, address, NULL, accepted, e, &e->listener);
	if (r)
		return fail(e, r, "listening at %s: %s", address, tern_status_text(r));
	snprintf(address, sizeof(address), "%s", tern_listener_address(e->listener));
	bytes = write(fd, address, sizeof(address));
	if (bytes != sizeof(address))
		return fail(e, -EPIPE, "the sender is gone");
	r = drive(e, is_up, "accepting");
	if (r == 0)
		r = tern_channel_open(e->peer, 1, &e->channel);
	if (r)
		return fail(e, r, "opening a channel: %s", tern_status_text(r));
	for (uint32_t i = 0; i < e->config->inflight && i < e->total && r == 0; i++)
		r = post(&e->slots[i], false, false, i);
	if (r == 0)
		r = drive(e, idle, "receiving");
	return r ? r : say_goodbye(e);
}

static int run_sender(struct pair_end *e, int fd, struct bench_result *result)
{
	struct tern_peer_opts opts = {.event = peer_event, .arg = e, .name = "bench"};
	char address[128];
	int r = end_init(e);

	if (r)
		return r;
	/* A receiver that failed has sent the reason instead of the address;
	 * run_both() reads it. */
	if (recv(fd, address, sizeof(address), MSG_PEEK | MSG_TRUNC) != sizeof(address))
		return -EPIPE;
	if (read(fd, address, sizeof(address)) != sizeof(address))
		return fail(e, -EPIPE, "the receiver is gone");
	r = tern_connect(e->ctx, address, &opts, &e->peer);
	if (r == 0)
		r = drive(e, is_up, "connecting");
	if (r == 0)
		r = tern_channel_open(e->peer, 1, &e->channel);
	if (r)
		return fail(e, r, "connecting to %s: %s", address, tern_status_text(r));
	snprintf(result->fabric, sizeof(result->fabric), "%s", tern_peer_fabric(e->peer));
	start_messages(e);
	r = drive(e, idle, "sending");
	return r ? r : say_goodbye(e);
}

/* Pins the process to the n-th core that it may use; false if it has fewer. */
static bool pin(unsigned n)
{
	cpu_set_t all, one;

	if (sched_getaffinity(0, sizeof(all), &all) < 0)
		return false;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &all) || n-- > 0)
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		return sched_setaffinity(0, sizeof(one), &one) == 0;
	}
	return false;
}

static _Noreturn void be_receiver(const struct bench_config *config, int fd, bool pinned)
{
	struct pair_end e = {.config = config};
	ssize_t bytes;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (pinned)
		pin(1);
	run_receiver(&e, fd);
	end_fini(&e);
	bytes = write(fd, &e.usage, sizeof(e.usage));
	_exit(bytes != sizeof(e.usage));
}

static int by_value(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* Nearest rank: the smallest value that at least `share` of all do not exceed. */
static uint64_t percentile(const uint64_t *sorted, uint64_t n, double share)
{
	uint64_t rank = (uint64_t)((double)n * share + 0.999999);

	return sorted[rank ? TERN_MIN(rank, n) - 1 : 0];
}

static void summarise(
	const struct pair_end *e, const struct usage *other, struct bench_result *result)
{
	uint64_t n = e->config->rounds;

	result->elapsed_ns = e->end_ns - e->start_ns;
	result->cpu_ns = e->usage.cpu_ns + other->cpu_ns;
	result->registrations = e->usage.registrations + other->registrations;
	if (!e->trips_ns)
		return;
	qsort(e->trips_ns, n, sizeof(*e->trips_ns), by_value);
	result->p50_ns = percentile(e->trips_ns, n, 0.5);
	result->p99_ns = percentile(e->trips_ns, n, 0.99);
	result->p999_ns = percentile(e->trips_ns, n, 0.999);
}

/* This process sends, and its fork receives. */
static int run_both(const struct bench_config *config, struct bench_result *result,
	struct bench_error *error)
{
	struct pair_end e = {.config = config, .sender = true};
	struct usage other = {.status = -EPIPE, .error.text = "it died"};
	cpu_set_t cpus;
	int fds[2];
	pid_t pid;

	*result = (struct bench_result){0};
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
		return -errno;
	sched_getaffinity(0, sizeof(cpus), &cpus);
	result->pinned = CPU_COUNT(&cpus) >= 2 &&
			 (config->pin == BENCH_PIN_AUTO ? !config->sleep
							: config->pin == BENCH_PIN_YES);
	pid = fork();
	if (pid == 0) {
		close(fds[0]);
		be_receiver(config, fds[1], result->pinned);
	}
	close(fds[1]);
	if (pid < 0) {
		close(fds[0]);
		return -errno;
	}
	if (result->pinned)
		pin(0);
	run_sender(&e, fds[0], result);
	if (e.usage.status) {
		/* Cuts the connection, so that the receiver ends too, perhaps with the
		 * cause. */
		tern_context_free(TERN_TAKE(e.ctx));
		if (poll(&(struct pollfd){.fd = fds[0], .events = POLLIN}, 1, 1000) <= 0)
			kill(pid, SIGKILL);
	}
	/* The receiver's failure is the reason why the connection was lost. */
	if (read(fds[0], &other, sizeof(other)) == sizeof(other) &&
		other.status == -EBADMSG)
		e.usage.status = 0;
	if (other.status)
		fail(&e, other.status, "receiver: %.200s", other.error.text);
	waitpid(pid, NULL, 0);
	close(fds[0]);
	if (!e.usage.status)
		summarise(&e, &other, result);
	*error = e.usage.error;
	end_fini(&e);
	return e.usage.status;
}

/* Result that the sending process passes to the one that asked for the measurement. */
struct outcome {
	int status;
	struct bench_result result;
	struct bench_error error;
};

static _Noreturn void be_sender(const struct bench_config *config, int fd)
{
	struct outcome o = {0};
	ssize_t bytes;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	o.status = run_both(config, &o.result, &o.error);
	bytes = write(fd, &o, sizeof(o));
	_exit(bytes != sizeof(o));
}

int bench_pair_run(const struct bench_config *config, struct bench_result *result,
	struct bench_error *error)
{
	struct outcome o = {.status = -EPIPE, .error.text = "the sender died"};
	int fds[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0) {
		snprintf(error->text, sizeof(error->text), "%s", strerror(errno));
		return -errno;
	}
	pid = fork();
	if (pid == 0)
		be_sender(config, fds[1]);
	close(fds[1]);
	if (pid < 0)
		snprintf(o.error.text, sizeof(o.error.text), "%s", strerror(errno));
	else if (read(fds[0], &o, sizeof(o)) < 0)
		o.status = -errno;
	close(fds[0]);
	if (pid > 0)
		waitpid(pid, NULL, 0);
	*result = o.result;
	*error = o.error;
	return o.status;
}
