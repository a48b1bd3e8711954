/* SPDX-License-Identifier: Apache-2.0 */
/* See bench_end.h. */
#include "tools/bench_end.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/util.h"

#define REPLY_BYTES 8
/* A measurement is given up if no message completes for this long. */
#define LIMIT_NS (20 * TERN_NS_PER_S)

struct bench_slot {
	struct bench_end *end;
	struct tern_buf data, reply;
	struct tern_req data_req, reply_req;
	bool data_busy, reply_busy;
	/* receiver: a message has arrived, and is answered when the slot's previous
	 * answer is complete */
	bool reply_due;
	uint64_t n;     /* number of the message that uses this slot now */
	uint64_t start; /* of its round trip, by bench_end_clock() */
};

int bench_end_fail(struct bench_end *e, int status, const char *fmt, ...)
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

/* ---- contents of messages ---- */

/* Returns the 8 bytes at offset i of the contents of message n. From one word to the next
 * the value grows by a constant, so that compilers vectorise the loop. */
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

/* ---- functions for both ends: counting and posting messages ---- */

static bool answered(const struct bench_end *e, uint64_t n)
{
	return e->config->reply_each || n == e->config->warmup - 1 || n == e->total - 1;
}

uint64_t bench_end_clock(const struct bench_end *e)
{
	return e->ticks ? tern_clock_ticks() : tern_clock_ns();
}

/* How many ns a unit of bench_end_clock() takes, found over the whole measurement. */
static double trip_unit_ns(const struct bench_end *e)
{
	return e->ticks ? (double)(e->end_ns - e->start_ns) /
				  (double)(e->end_ticks - e->start_ticks)
			: 1;
}

static uint64_t registrations(const struct bench_end *e)
{
	struct tern_domain_stats stats;

	tern_domain_stats(e->domain, &stats);
	return stats.registration_count;
}

/* Counts a message that is complete at this end. The measurement starts when the last
 * message of the warm-up is complete, and ends with the last message of all. Here the
 * clock is read only at these two moments: reading it for each small message would take a
 * tenth of the time of a message. */
void bench_end_count(struct bench_end *e)
{
	e->done_count++;
	if (e->done_count == e->config->warmup) {
		e->start_ns = tern_clock_ns();
		e->start_ticks = tern_clock_ticks();
		e->start_cpu_ns = tern_clock_cpu_ns();
		e->start_registrations = registrations(e);
	}
	if (e->done_count == e->total) {
		e->end_ns = tern_clock_ns();
		e->end_ticks = tern_clock_ticks();
		e->usage.cpu_ns = tern_clock_cpu_ns() - e->start_cpu_ns;
		e->usage.registrations = registrations(e) - e->start_registrations;
	}
}

static const unsigned receive_flags[] = {
	[BENCH_RECEIVE_ROOM] = 0,
	[BENCH_RECEIVE_ALLOC] = TERN_RECV_ALLOC,
	[BENCH_RECEIVE_PEEK] = TERN_RECV_PEEK,
};

static int post(struct bench_slot *s, bool send, bool reply, uint64_t n)
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
	return r ? bench_end_fail(s->end, r, "posting a send or receive: %s",
			   tern_status_text(r))
		 : 0;
}

/* ---- the sender ---- */

/* Time at which message `n` is to start; 0: as soon as possible. */
static uint64_t due_ns(const struct bench_end *e, uint64_t n)
{
	if (!e->config->every_ns || n < e->config->warmup)
		return 0;
	return e->start_ns + (n - e->config->warmup) * e->config->every_ns;
}

/*
 * True if message `n` may be sent. The first measured message waits until all messages of
 * the warm-up are complete, so that none of them is in flight during the measurement.
 */
static bool may_start(const struct bench_end *e, uint64_t n)
{
	uint64_t due = n < e->send_limit ? due_ns(e, n) : 0;

	return n < e->send_limit &&
	       (n < e->config->warmup || e->done_count >= e->config->warmup) &&
	       (!due || tern_clock_ns() >= due);
}

static void start_message(struct bench_slot *s)
{
	struct bench_end *e = s->end;

	s->n = e->next++;
	if (e->config->rewrite && s->n >= e->config->inflight)
		fill(&s->data, s->n);
	if (e->config->reply_each)
		s->start = due_ns(e, s->n) ? due_ns(e, s->n) : bench_end_clock(e);
	if (answered(e, s->n) && post(s, false, true, s->n))
		return;
	post(s, true, false, s->n);
}

static void start_messages(struct bench_end *e)
{
	while (!e->usage.status && may_start(e, e->next)) {
		struct bench_slot *s = &e->slots[e->next % e->config->inflight];

		if (s->data_busy || s->reply_busy)
			return;
		start_message(s);
	}
}

void bench_end_send_more(struct bench_end *e)
{
	start_messages(e);
}

static void sender_done(struct bench_slot *s, bool reply)
{
	struct bench_end *e = s->end;

	if (reply && e->config->reply_each && s->n >= e->config->warmup)
		e->trips[s->n - e->config->warmup] = bench_end_clock(e) - s->start;
	/* A message is complete when its buffer may be reused and, if it is answered, the
	 * answer has arrived. */
	if (!s->data_busy && !s->reply_busy) {
		bench_end_count(e);
		if (e->window)
			bench_window_sent(e);
	}
	start_messages(e);
}

/* ---- the receiver ---- */

static void check_message(struct bench_slot *s)
{
	struct bench_end *e = s->end;
	struct tern_shape want = tern_shape_1d(TERN_U8, e->config->size);

	if (!tern_shape_equal(&s->data_req.shape, &want))
		bench_end_fail(e, -EBADMSG, "message %llu arrived with a wrong shape",
			(unsigned long long)s->n);
	else if (s->n < e->config->inflight &&
		 !holds(s->data_req.data, s->data_req.bytes, s->n))
		bench_end_fail(e, -EBADMSG, "message %llu arrived with wrong contents",
			(unsigned long long)s->n);
}

static void send_reply(struct bench_slot *s)
{
	uint64_t n = s->n;

	s->reply_due = false;
	if (s->end->config->receive != BENCH_RECEIVE_ROOM)
		tern_release(&s->data_req);
	/* The next receive is posted before the answer: see bench_end.h. */
	s->n += s->end->config->inflight;
	if (s->n < s->end->total && post(s, false, false, s->n))
		return;
	if (answered(s->end, n))
		post(s, true, true, n);
}

static void receiver_done(struct bench_slot *s, bool reply)
{
	struct bench_end *e = s->end;

	if (!reply) {
		check_message(s);
		bench_end_count(e);
		s->reply_due = true;
	}
	if (!e->usage.status && s->reply_due && !s->reply_busy)
		send_reply(s);
}

/* ---- functions for both ends: events and setup ---- */

static void request_done(struct bench_slot *s, bool reply, int status)
{
	struct bench_end *e = s->end;

	*(reply ? &s->reply_busy : &s->data_busy) = false;
	if (status)
		bench_end_fail(e, status, "a transfer: %s", tern_status_text(status));
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
	struct bench_end *e = arg;

	(void)peer;
	switch (event) {
	case TERN_PEER_UP:
		e->up = true;
		break;
	case TERN_PEER_DOWN:
		e->down = true;
		if (status)
			bench_end_fail(e, status, "the connection: %s",
				tern_status_text(status));
		break;
	case TERN_PEER_SUSPECT:
	case TERN_PEER_RECOVERED:
		break;
	}
}

/* The end of a put with a notification tells all that is measured. */
static void notified(struct tern_peer *peer, const void *data, size_t bytes, void *arg)
{
	(void)peer, (void)data, (void)bytes, (void)arg;
}

static void accepted(struct tern_peer *peer, void *arg)
{
	struct bench_end *e = arg;
	struct tern_peer_opts opts = {.event = peer_event, .arg = e};

	if (e->peer) { /* a second process has connected: close its connection */
		tern_peer_close(peer);
		return;
	}
	tern_peer_set_opts(peer, &opts);
	e->peer = peer;
	e->up = true;
}

bool bench_end_is_idle(const struct bench_end *e)
{
	for (uint32_t i = 0; e->slots && i < e->config->inflight; i++) {
		if (e->slots[i].data_busy || e->slots[i].reply_busy)
			return false;
	}
	return e->done_count == e->total;
}

bool bench_end_is_up(const struct bench_end *e)
{
	return e->up;
}

bool bench_end_is_down(const struct bench_end *e)
{
	return e->down;
}

/* Polls the context once, or sleeps until an event comes, at most 1 s. If messages have
 * set times of their start, a sender that sleeps also wakes when its next message is due,
 * and then sends it. Returns the status of the poll or wait. */
static int drive_once(struct bench_end *e)
{
	uint64_t limit_ns = TERN_NS_PER_S, due = 0, now_ns;
	int r;

	if (e->sender && e->config->every_ns && e->next < e->send_limit)
		due = due_ns(e, e->next);
	if (e->config->sleep && due) {
		now_ns = tern_clock_ns();
		limit_ns = due > now_ns ? TERN_MIN(due - now_ns, limit_ns) : 0;
	}
	r = e->config->sleep ? tern_wait_any(e->ctx, limit_ns) : tern_progress(e->ctx);
	if (due)
		start_messages(e);
	return r;
}

int bench_end_drive(
	struct bench_end *e, bool (*until)(const struct bench_end *e), const char *what)
{
	uint64_t seen = e->done_count + e->moved, quiet_since_ns = tern_clock_ns();
	unsigned turns = 0;

	while (!e->usage.status && !until(e)) {
		int r = drive_once(e);

		if (r < 0 && r != -ETIMEDOUT)
			return bench_end_fail(e, r, "%s: %s", what, tern_status_text(r));
		if (!e->config->sleep && ++turns % 4096)
			continue;
		if (e->done_count + e->moved != seen) {
			seen = e->done_count + e->moved;
			quiet_since_ns = tern_clock_ns();
		} else if (tern_clock_ns() - quiet_since_ns > LIMIT_NS) {
			return bench_end_fail(e, -ETIMEDOUT,
				"%s: given up, since no message was completed for %d s",
				what, (int)(LIMIT_NS / TERN_NS_PER_S));
		}
	}
	return e->usage.status;
}

static int get_slots(struct bench_end *e)
{
	e->slots = calloc(e->config->inflight, sizeof(*e->slots));
	if (!e->slots)
		return -ENOMEM;
	for (uint32_t i = 0; i < e->config->inflight; i++) {
		struct bench_slot *s = &e->slots[i];
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

static int open_domain(struct bench_end *e)
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
	return bench_end_fail(e, -ENODEV, "--fabric %s: %s", fabric_name(fabric), why);
}

int bench_end_open(struct bench_end *e)
{
	struct tern_context_opts opts = {
		.no_spin = e->config->sleep, .secret = e->config->secret};
	int r = open_domain(e);

	if (e->usage.status)
		return r;
	if (r == 0)
		r = tern_context_new(e->domain, &opts, &e->ctx);
	return r ? bench_end_fail(e, r, "setting up: %s", tern_status_text(r)) : 0;
}

uint64_t bench_memory_parts(const struct bench_config *config)
{
	return config->window ? 3 : config->collective ? 2 : 1;
}

int bench_end_prepare(struct bench_end *e)
{
	struct tern_pool_opts opts = {.prefault = true};
	int r;

	e->data_key = tern_key("bench.data");
	e->reply_key = tern_key("bench.reply");
	opts.slab_bytes = tern_align_up(e->config->size + 128, 128) *
				  e->config->inflight * bench_memory_parts(e->config) +
			  (1u << 20);
	e->total = e->config->warmup + e->config->rounds;
	e->send_limit = e->config->window ? 0 : e->total;
	if (e->sender && e->config->reply_each) {
		/* A set time of a start is one of the clock. */
		e->ticks = !e->config->every_ns && tern_clock_ticks_are_steady();
		e->trips = calloc(e->config->rounds, sizeof(*e->trips));
		if (!e->trips)
			return bench_end_fail(e, -ENOMEM, "no memory for %llu rounds",
				(unsigned long long)e->config->rounds);
	}
	r = tern_pool_new(e->domain, &opts, &e->pool);
	if (r == 0)
		r = e->config->collective ? bench_group_prepare(e) : get_slots(e);
	if (r == 0 && e->config->window)
		r = bench_window_prepare(e);
	return r ? bench_end_fail(e, r, "setting up: %s", tern_status_text(r)) : 0;
}

void bench_end_cut(struct bench_end *e)
{
	tern_listener_free(TERN_TAKE(e->listener));
	tern_group_free(TERN_TAKE(e->group));
	tern_context_free(TERN_TAKE(e->ctx));
}

void bench_end_close(struct bench_end *e)
{
	bench_end_cut(e);
	for (uint32_t i = 0; e->slots && i < e->config->inflight; i++) {
		if (e->slots[i].data.mem)
			tern_pool_put(e->pool, &e->slots[i].data);
		if (e->slots[i].reply.mem)
			tern_pool_put(e->pool, &e->slots[i].reply);
	}
	bench_group_close(e);
	bench_window_close(e);
	tern_pool_free(e->pool);
	tern_domain_free(e->domain);
	free(e->slots);
	free(e->trips);
}

int bench_end_say_goodbye(struct bench_end *e)
{
	tern_group_free(TERN_TAKE(e->group));
	tern_peer_close(e->peer);
	return bench_end_drive(e, bench_end_is_down, "closing");
}

int bench_end_listen(struct bench_end *e)
{
	char address[128];
	int r;

	fabric_listen_address(&e->config->fabric, e->config->listen, "tern-bench",
		address, sizeof(address));
	r = tern_listen(e->ctx, address, NULL, accepted, e, &e->listener);
	if (r)
		return bench_end_fail(
			e, r, "listening at %s: %s", address, tern_status_text(r));
	return 0;
}

int bench_end_connect(struct bench_end *e, const char *address)
{
	struct tern_peer_opts opts = {.event = peer_event, .arg = e, .name = "bench"};
	int r = tern_connect(e->ctx, address, &opts, &e->peer);

	if (r == 0)
		r = bench_end_drive(e, bench_end_is_up, "connecting");
	return r ? bench_end_fail(
			   e, r, "connecting to %s: %s", address, tern_status_text(r))
		 : 0;
}

static int open_channel(struct bench_end *e)
{
	int r = tern_channel_open(e->peer, 1, &e->channel);

	return r ? bench_end_fail(e, r, "opening a channel: %s", tern_status_text(r)) : 0;
}

int bench_end_start_receiving(struct bench_end *e)
{
	const struct tern_peer_opts opts = {
		.event = peer_event, .arg = e, .pool = e->pool, .notified = notified};
	int r;

	tern_peer_set_opts(e->peer, &opts);
	if (e->config->collective)
		return bench_group_start(e);
	r = open_channel(e);
	for (uint32_t i = 0; i < e->config->inflight && i < e->total && r == 0; i++)
		r = post(&e->slots[i], false, false, i);
	return r == 0 && e->window ? bench_window_start(e) : r;
}

int bench_end_start_sending(struct bench_end *e)
{
	int r;

	if (e->config->collective)
		return bench_group_start(e);
	r = open_channel(e);
	if (r == 0 && e->window)
		bench_window_start(e);
	else if (r == 0)
		start_messages(e);
	return e->usage.status;
}

/* ---- process settings, and results ---- */

void bench_end_with_parent(pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent) /* the parent died before prctl() took effect */
		_exit(1);
}

bool bench_pin(unsigned n)
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

unsigned bench_core_count(void)
{
	cpu_set_t all;

	return sched_getaffinity(0, sizeof(all), &all) < 0 ? 1
							   : (unsigned)CPU_COUNT(&all);
}

static int by_value(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* Returns a percentile of the round trips, which are sorted, by nearest rank: the smallest
 * such that at least `share` (0 to 1) of all are not longer. */
static uint64_t percentile_ns(
	const struct bench_end *e, const uint64_t *trips, double share)
{
	uint64_t n = e->config->rounds, rank = (uint64_t)((double)n * share + 0.999999);
	uint64_t trip = trips[rank ? TERN_MIN(rank, n) - 1 : 0];

	return (uint64_t)((double)trip * trip_unit_ns(e) + 0.5);
}

void bench_end_summarise(const struct bench_end *e, const struct bench_usage *other,
	struct bench_result *result)
{
	uint64_t n = e->config->rounds;

	result->elapsed_ns = e->end_ns - e->start_ns;
	result->cpu_ns = e->usage.cpu_ns + other->cpu_ns;
	result->registrations = e->usage.registrations + other->registrations;
	if (!e->trips)
		return;
	qsort(e->trips, n, sizeof(*e->trips), by_value);
	result->p50_ns = percentile_ns(e, e->trips, 0.5);
	result->p99_ns = percentile_ns(e, e->trips, 0.99);
	result->p999_ns = percentile_ns(e, e->trips, 0.999);
	for (unsigned k = 0; e->window && k < BENCH_OPS; k++) {
		uint64_t *trips = k == BENCH_SEND ? e->trips : e->op_trips[k];

		qsort(trips, n, sizeof(*trips), by_value);
		result->ops[k] = (struct bench_op_result){
			.p50_ns = percentile_ns(e, trips, 0.5),
			.p99_ns = percentile_ns(e, trips, 0.99),
			.p999_ns = percentile_ns(e, trips, 0.999),
			.took_ns = (uint64_t)((double)e->op_took[k] * trip_unit_ns(e)),
		};
	}
}
