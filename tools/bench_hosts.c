/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A measurement between two hosts. The end with --serve receives; the end with --connect
 * sends, and decides what is measured. Both processes are new for each measurement, as in
 * bench_pair.c, so each measurement has its own connection, with this conversation
 * ("talk") on channel 0:
 *
 *     client                     server
 *       |  -------- order -------->  |   what is measured
 *       |  <------- report --------  |   ready; left out if the order is refused
 *       |  == messages, answers ==>  |   on channel 1 (bench_end.c)
 *       |  <------- report --------  |   what it took, or what was wrong
 *
 * While a measurement runs, no process of the server listens: another client that tries
 * to connect retries until its connect timeout. The server's next process (there is none
 * after the end of --once) listens before the client gets the last report. So a client
 * that makes several measurements always finds every fabric of the server's address
 * listening (an address "auto" lists several), and uses the same fabric each time.
 */
#include "tools/bench_hosts.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/endian.h"
#include "base/util.h"
#include "tools/bench_end.h"

#define VERSION      3u
#define ORDER_BYTES  48u
#define REPORT_BYTES (24u + sizeof(((struct bench_error *)NULL)->text))
/* One measurement may take at most 1 / MEMORY_PARTS of the server's memory. */
#define MEMORY_PARTS 4u

enum order_flags {
	ORDER_SLEEP = 1,
	ORDER_REPLY_EACH = 2,
	ORDER_PIN = 4,
	ORDER_LAST = 8,
	ORDER_WINDOW = 16,
};
#define ORDER_FLAGS                                                                      \
	(ORDER_SLEEP | ORDER_REPLY_EACH | ORDER_PIN | ORDER_LAST | ORDER_WINDOW)

struct host_end {
	struct bench_end end;
	struct bench_config config;
	struct tern_pool *pool; /* pool for the messages of the talk */
	struct tern_channel *talk;
	/* reports[0]: the server is ready; reports[1]: the result */
	struct tern_buf order, reports[2];
	struct tern_req order_req, report_reqs[2];
	bool pinned;
};

static struct host_end *host_of(const struct bench_end *e)
{
	return tern_container_of(e, struct host_end, end);
}

/* ---- the conversation of client and server ("talk") ---- */

static void put_order(void *to, const struct bench_config *c, bool pinned)
{
	unsigned char *p = to;

	tern_put_le32(p, VERSION);
	tern_put_le32(p + 4,
		(c->sleep ? ORDER_SLEEP : 0u) | (c->reply_each ? ORDER_REPLY_EACH : 0u) |
			(pinned ? ORDER_PIN : 0u) | (c->last ? ORDER_LAST : 0u) |
			(c->window ? ORDER_WINDOW : 0u));
	tern_put_le32(p + 8, (uint32_t)c->receive);
	tern_put_le32(p + 12, c->inflight);
	tern_put_le64(p + 16, c->size);
	tern_put_le64(p + 24, c->warmup);
	tern_put_le64(p + 32, c->rounds);
	tern_put_le64(p + 40, (uint64_t)c->collective);
}

static uint64_t memory_most(void)
{
	long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);

	return pages < 0 ? UINT64_MAX : (uint64_t)pages * (uint64_t)bytes / MEMORY_PARTS;
}

static bool is_possible(const struct bench_config *c)
{
	return c->size >= 1 && c->size <= BENCH_SIZE_MAX && c->inflight >= 1 &&
	       c->inflight <= BENCH_INFLIGHT_MAX && c->warmup >= 1 &&
	       c->warmup <= BENCH_ROUNDS_MAX && c->rounds >= 1 &&
	       c->rounds <= BENCH_ROUNDS_MAX &&
	       (!c->collective || c->size % BENCH_COLLECTIVE_BYTES == 0) &&
	       (!c->window || (c->reply_each && !c->collective));
}

/* Reads the client's order. The client is not trusted: each field is checked. */
static int take_order(struct host_end *h)
{
	const unsigned char *p = tern_buf_ptr(&h->order);
	struct bench_config *c = &h->config;
	uint32_t version = tern_get_le32(p), flags = tern_get_le32(p + 4);
	uint32_t receive = tern_get_le32(p + 8);

	if (h->order_req.bytes != ORDER_BYTES || version != VERSION)
		return bench_end_fail(&h->end, -EPROTO,
			"the client is another version of tern bench: its protocol "
			"version is %u, not %u",
			version, VERSION);
	c->inflight = tern_get_le32(p + 12);
	c->size = tern_get_le64(p + 16);
	c->warmup = tern_get_le64(p + 24);
	c->rounds = tern_get_le64(p + 32);
	c->sleep = flags & ORDER_SLEEP;
	c->reply_each = flags & ORDER_REPLY_EACH;
	c->last = flags & ORDER_LAST;
	c->window = flags & ORDER_WINDOW;
	c->collective = (enum bench_collective)TERN_MIN(
		tern_get_le64(p + 40), BENCH_ALLTOALL + 1ull);
	if (flags & ~(uint32_t)ORDER_FLAGS || receive > BENCH_RECEIVE_PEEK ||
		(unsigned)c->collective > BENCH_ALLTOALL || !is_possible(c))
		return bench_end_fail(&h->end, -EPROTO,
			"the client's order is invalid: flags %x, receive %u, %u in "
			"flight, size %llu, warm-up %llu, rounds %llu",
			flags, receive, c->inflight, (unsigned long long)c->size,
			(unsigned long long)c->warmup, (unsigned long long)c->rounds);
	if (c->size > memory_most() / c->inflight / bench_memory_parts(c))
		return bench_end_fail(&h->end, -ENOMEM,
			"%u tensors of %llu bytes in flight are more than a quarter of "
			"the server's memory, which is its limit: %llu bytes",
			c->inflight, (unsigned long long)c->size,
			(unsigned long long)memory_most());
	c->receive = (enum bench_receive)receive;
	h->pinned = flags & ORDER_PIN;
	return 0;
}

static void put_report(void *to, const struct bench_usage *usage)
{
	unsigned char *p = to;

	tern_put_le32(p, (uint32_t)-usage->status);
	tern_put_le32(p + 4, 0);
	tern_put_le64(p + 8, usage->cpu_ns);
	tern_put_le64(p + 16, usage->registrations);
	memcpy(p + 24, usage->error.text, sizeof(usage->error.text));
}

/* Decodes report `i` of the server. Its status is -EPROTO if the report has a wrong
 * length. */
static struct bench_usage report_of(const struct host_end *h, unsigned i)
{
	const unsigned char *p = tern_buf_ptr(&h->reports[i]);
	struct bench_usage usage = {.status = -EPROTO};

	if (h->report_reqs[i].bytes != REPORT_BYTES) {
		snprintf(usage.error.text, sizeof(usage.error.text),
			"the server that answers is not tern bench --serve");
		return usage;
	}
	usage.status = -(int)(tern_get_le32(p) & INT32_MAX);
	usage.cpu_ns = tern_get_le64(p + 8);
	usage.registrations = tern_get_le64(p + 16);
	memcpy(usage.error.text, p + 24, sizeof(usage.error.text));
	usage.error.text[sizeof(usage.error.text) - 1] = '\0';
	return usage;
}

static int open_talk(struct host_end *h)
{
	struct tern_pool_opts opts = {.slab_bytes = 1u << 16};
	int r = tern_pool_new(h->end.domain, &opts, &h->pool);

	if (r == 0)
		r = tern_pool_get(h->pool, ORDER_BYTES, &h->order);
	for (unsigned i = 0; i < 2 && r == 0; i++)
		r = tern_pool_get(h->pool, REPORT_BYTES, &h->reports[i]);
	if (r == 0)
		r = tern_channel_open(h->end.peer, 0, &h->talk);
	return r ? bench_end_fail(&h->end, r, "setting up: %s", tern_status_text(r)) : 0;
}

/* Posts the send or the receive of one message of the talk, under the key `name`. */
static void say(struct host_end *h, bool send, const char *name, struct tern_req *req,
	const struct tern_buf *buf)
{
	struct tern_tensor tensor = {
		.buf = *buf, .shape = tern_shape_1d(TERN_U8, buf->bytes)};
	int r;

	if (send)
		r = tern_send(h->talk, req, tern_key(name), 0, &tensor, NULL, 0);
	else
		r = tern_recv(h->talk, req, tern_key(name), 0, buf, NULL, 0);
	if (r)
		bench_end_fail(&h->end, r,
			"a message to or from the other tern bench: %s",
			tern_status_text(r));
}

static bool has_ended(struct tern_req *req)
{
	return tern_test(req) != -EINPROGRESS;
}

static bool order_ended(const struct bench_end *e)
{
	return has_ended(&host_of(e)->order_req);
}

static bool report_ended(const struct bench_end *e)
{
	return has_ended(&host_of(e)->report_reqs[1]);
}

static bool ready_or_refused(const struct bench_end *e)
{
	return has_ended(&host_of(e)->report_reqs[0]) || report_ended(e);
}

static void close_host(struct host_end *h)
{
	bench_end_cut(&h->end); /* ends all requests, which use the buffers freed below */
	if (h->order.mem)
		tern_pool_put(h->pool, &h->order);
	for (unsigned i = 0; i < 2; i++)
		if (h->reports[i].mem)
			tern_pool_put(h->pool, &h->reports[i]);
	tern_pool_free(h->pool);
	bench_end_close(&h->end);
}

/* ---- the client ---- */

static bool sent_or_told(const struct bench_end *e)
{
	return bench_end_is_idle(e) || report_ended(e);
}

/* Waits for report `i` of the server. If it reports a failure, this end fails with it. */
static int hear(struct host_end *h, unsigned i, struct bench_usage *out)
{
	int r = bench_end_drive(&h->end, i == 0 ? ready_or_refused : report_ended,
		"waiting for the server");

	if (i == 0 && !has_ended(&h->report_reqs[0]))
		i = 1; /* instead of "ready" the server says why it refuses the order */
	if (r == 0)
		r = h->report_reqs[i].status;
	if (r)
		return bench_end_fail(&h->end, r, "the server: %s", tern_status_text(r));
	*out = report_of(h, i);
	return out->status ? bench_end_fail(&h->end, out->status, "server: %.200s",
				     out->error.text)
			   : 0;
}

static int check_address(struct bench_end *e)
{
	struct message why;

	if (fabric_check_address(e->domain, e->config->connect, &why) == 0)
		return 0;
	e->usage.error.input = true;
	return bench_end_fail(
		e, -EINVAL, "--connect %s: %s", e->config->connect, why.text);
}

static int measure(struct host_end *h, struct bench_result *result)
{
	struct bench_end *e = &h->end;
	struct bench_usage other;
	int r = bench_end_open(e);

	if (r == 0)
		r = check_address(e);
	if (r == 0)
		r = bench_end_prepare(e);
	if (r == 0)
		r = bench_end_connect(e, e->config->connect);
	if (r == 0)
		r = open_talk(h);
	if (r)
		return r;
	snprintf(result->fabric, sizeof(result->fabric), "%s", tern_peer_fabric(e->peer));
	put_order(tern_buf_ptr(&h->order), e->config, h->pinned);
	say(h, false, "bench.ready", &h->report_reqs[0], &h->reports[0]);
	say(h, false, "bench.report", &h->report_reqs[1], &h->reports[1]);
	say(h, true, "bench.order", &h->order_req, &h->order);
	r = hear(h, 0, &other);
	if (r == 0)
		r = bench_end_start_sending(e);
	if (r == 0)
		r = bench_end_drive(e, sent_or_told, "sending");
	if (r == 0)
		r = hear(h, 1, &other);
	if (r == 0)
		bench_end_summarise(e, &other, result);
	return r ? r : bench_end_say_goodbye(e);
}

int bench_hosts_run(const struct bench_config *config, struct bench_result *result,
	struct bench_error *error)
{
	struct host_end h = {.config = *config, .end.sender = true};
	int status;

	*result = (struct bench_result){0};
	h.end.config = &h.config;
	h.pinned = config->pin == BENCH_PIN_AUTO ? !config->sleep
						 : config->pin == BENCH_PIN_YES;
	result->pinned = h.pinned && bench_pin(0);
	measure(&h, result);
	status = h.end.usage.status;
	*error = h.end.usage.error;
	close_host(&h);
	return status;
}

/* ---- the server ---- */

/* Sends the result of the measurement, good or bad, and waits until the client has it. */
static void report(struct host_end *h)
{
	struct bench_end *e = &h->end;
	struct bench_usage usage = e->usage;

	if (e->down)
		return;
	e->usage = (struct bench_usage){0};
	put_report(tern_buf_ptr(&h->reports[1]), &usage);
	say(h, true, "bench.report", &h->report_reqs[1], &h->reports[1]);
	bench_end_drive(e, report_ended, "reporting");
	if (!e->down)
		bench_end_say_goodbye(e);
	if (usage.status)
		e->usage = usage;
}

static void receive(struct host_end *h)
{
	struct bench_end *e = &h->end;
	int r = bench_end_prepare(e);

	if (r == 0)
		r = bench_end_start_receiving(e);
	if (r)
		return;
	put_report(tern_buf_ptr(&h->reports[0]), &e->usage);
	say(h, true, "bench.ready", &h->report_reqs[0], &h->reports[0]);
	bench_end_drive(e, bench_end_is_idle, "receiving");
}

/* Tells the parent process that the next process may listen, and waits until it does. */
static void let_next_listen(const struct host_end *h, int fd)
{
	const struct bench_served served = {.measured = true, .config = h->config};
	char go;

	if (write(fd, &served, sizeof(served)) != sizeof(served) || read(fd, &go, 1) != 1)
		_exit(1); /* the parent has died */
}

/* Runs one measurement for the client that has connected. */
static void serve_client(struct host_end *h, int fd)
{
	struct bench_end *e = &h->end;

	if (open_talk(h))
		return;
	say(h, false, "bench.order", &h->order_req, &h->order);
	if (bench_end_drive(e, order_ended, "waiting for the client's order"))
		return;
	if (h->order_req.status) {
		bench_end_fail(e, h->order_req.status, "receiving the client's order: %s",
			tern_status_text(h->order_req.status));
		return;
	}
	if (take_order(h) == 0) {
		if (h->pinned)
			bench_pin(bench_core_count() > 1 ? 1 : 0);
		receive(h);
	}
	let_next_listen(h, fd);
	report(h);
}

static int wait_for_client(struct bench_end *e)
{
	while (!e->usage.status && !e->up) {
		int r = tern_wait_any(e->ctx, TERN_NS_PER_S);

		if (r < 0 && r != -ETIMEDOUT)
			return bench_end_fail(e, r, "listening: %s", tern_status_text(r));
	}
	return e->usage.status;
}

static _Noreturn void be_server(pid_t parent, const struct bench_config *config, int fd)
{
	struct host_end h = {.config = *config};
	struct bench_served served = {0};

	bench_end_with_parent(parent);
	h.config.sleep = true; /* sleeps until the client's order arrives */
	h.end.config = &h.config;
	if (bench_end_open(&h.end) == 0 && bench_end_listen(&h.end) == 0) {
		snprintf(served.address, sizeof(served.address), "%s",
			tern_listener_address(h.end.listener));
		if (write(fd, &served, sizeof(served)) != sizeof(served))
			_exit(1);
		if (wait_for_client(&h.end) == 0) {
			tern_listener_free(TERN_TAKE(h.end.listener));
			snprintf(served.client, sizeof(served.client), "%s",
				tern_peer_address(h.end.peer));
			serve_client(&h, fd);
		}
	}
	served.config = h.config;
	served.status = h.end.usage.status;
	served.error = h.end.usage.error;
	close_host(&h);
	_exit(write(fd, &served, sizeof(served)) != sizeof(served));
}

/* The parent's view of a child process that serves one measurement. */
struct child {
	pid_t pid;
	/* socket to the child; negative: there is no child, and after start_child() this
	 * is the negative errno of the failure */
	int fd;
};

/* Reads the next struct bench_served that a child writes. A child that has died, or that
 * could not be started, gives one with a failure. */
static void hear_child(const struct child *child, struct bench_served *served)
{
	*served = (struct bench_served){
		.status = -EPIPE, .error.text = "the receiving process has died"};
	if (child->fd >= 0 && read(child->fd, served, sizeof(*served)) == sizeof(*served))
		return;
	served->status = child->fd < 0 ? child->fd : -EPIPE;
	if (child->fd < 0)
		snprintf(served->error.text, sizeof(served->error.text),
			"no process can be started: %s", strerror(-child->fd));
}

static struct child start_child(const struct bench_config *config)
{
	pid_t parent = getpid();
	struct child child = {0};
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
		return (struct child){.fd = -errno};
	child.pid = fork();
	if (child.pid == 0) {
		close(fds[0]);
		be_server(parent, config, fds[1]);
	}
	child.fd = child.pid < 0 ? -errno : fds[0];
	close(fds[1]);
	if (child.pid < 0)
		close(fds[0]);
	return child;
}

static void end_child(struct child *child)
{
	if (child->fd < 0)
		return;
	close(child->fd);
	waitpid(child->pid, NULL, 0);
	child->fd = -1;
}

/* Starts a child and waits until it listens or has failed. */
static int start_listening(const struct bench_config *config, struct child *child,
	struct bench_served *served)
{
	*child = start_child(config);
	hear_child(child, served);
	if (served->status)
		end_child(child);
	return served->status;
}

static bool is_end(const struct bench_served *served, bool once)
{
	return once && served->status == 0 && served->config.last;
}

int bench_hosts_serve(const struct bench_config *config, bool once,
	void (*listens)(const char *address), void (*serves)(const struct bench_served *),
	struct bench_error *error)
{
	struct bench_config c = *config;
	struct bench_served served, next_served = {0};
	struct child child, next = {.fd = -1};
	char address[sizeof(served.address)];

	if (start_listening(&c, &child, &served)) {
		*error = served.error;
		return served.status;
	}
	snprintf(address, sizeof(address), "%s", served.address);
	listens(address);
	/* The next processes use the same port, also if the system chose it (port 0). */
	c.listen = strstr(address, "://") + 3;
	for (;;) {
		hear_child(&child, &served);
		/* This child serves no further client: it has failed, or its measurement
		 * is done. */
		if (!is_end(&served, once) && start_listening(&c, &next, &next_served)) {
			end_child(&child);
			*error = next_served.error;
			return next_served.status;
		}
		if (served.measured && write(child.fd, "", 1) == 1)
			hear_child(&child, &served);
		end_child(&child);
		serves(&served);
		if (is_end(&served, once))
			return 0;
		if (next.fd < 0 && start_listening(&c, &next, &next_served)) {
			*error = next_served.error;
			return next_served.status;
		}
		child = next;
		next.fd = -1;
	}
}
