/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See info_check.h. Every check runs in a process of its own, which is killed at a time
 * limit, so a driver that hangs stops neither the next check nor the command. The process
 * has both ends of a connection, each with its own domain, as if they were two processes.
 * Both ends sleep between events, so that wake-ups are checked too.
 *
 * The parent process opens no fabric, because a forked child could not use RDMA devices
 * that its parent has open.
 */
#include "tools/info_check.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/util.h"
#include "tools/info_json.h"
#include "tools/info_rdma.h"
#include "tools/output.h"
#include "transport/domain.h"

/* Time limits. PAIR_NS: for both ends to connect, transfer and close. CHILD_NS: for the
 * whole process of a check, because a driver may hang. */
#define PAIR_NS  (10 * TERN_NS_PER_S)
#define CHILD_NS (15 * TERN_NS_PER_S)
#define SLEEP_MS 100 /* longest sleep: a lost wake-up costs no more than this */

static const uint64_t sizes[] = {64, 1u << 20};
#define SIZES_TEXT "64 B and 1 MiB both ways"

/* What one check tests. */
struct target {
	int fabric;        /* index into fabric_names() */
	const char *verbs; /* value of --verbs */
	/* verbs: the device and its IP address; else NULL */
	const char *device, *address;
};

struct end {
	struct pair *pair;
	char verbs[512];
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_pool *pool;
	struct tern_peer *peer;
	struct tern_channel *channel;
	bool up, down;
};

struct pair {
	struct end end[2]; /* end[0] listens, end[1] connects */
	struct tern_listener *listener;
	uint64_t deadline_ns;
	char said[300]; /* last log line of the most severe level so far */
	enum tern_log_level level;
	char why[700]; /* text of the first failure; "": none */
};

static int fail(struct pair *p, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Records the first failure in p->why: what failed, the text of the errno `status` and, in
 * parentheses, p->said, if there is a log line. Returns `status`. */
static int fail(struct pair *p, int status, const char *fmt, ...)
{
	char what[160];
	va_list ap;

	if (!*p->why) {
		va_start(ap, fmt);
		vsnprintf(what, sizeof(what), fmt, ap);
		va_end(ap);
		snprintf(p->why, sizeof(p->why), "%s: %s%s%s%s", what,
			tern_status_text(status), *p->said ? " (" : "", p->said,
			*p->said ? ")" : "");
	}
	return status;
}

/* ---- driving both ends ---- */

static void event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct end *e = arg;

	(void)peer;
	switch (event) {
	case TERN_PEER_UP:
		e->up = true;
		break;
	case TERN_PEER_DOWN:
		e->down = true;
		if (status)
			fail(e->pair, status, "the connection");
		break;
	case TERN_PEER_SUSPECT:
	case TERN_PEER_RECOVERED:
		break;
	}
}

static void accepted(struct tern_peer *peer, void *arg)
{
	struct end *e = arg;
	struct tern_peer_opts opts = {.event = event, .arg = e};

	if (e->peer) { /* another process has connected: close its connection */
		tern_peer_close(peer);
		return;
	}
	tern_peer_set_opts(peer, &opts);
	e->peer = peer;
	e->up = true;
}

/* Sleeps until one of the two contexts has work to do, at most SLEEP_MS. */
static int sleep_both(struct pair *p)
{
	struct pollfd fds[2];

	for (int i = 0; i < 2; i++) {
		int r = tern_arm(p->end[i].ctx);

		if (r)
			return r == -EAGAIN ? 0 : fail(p, r, "waiting");
		fds[i] = (struct pollfd){
			.fd = tern_context_fd(p->end[i].ctx), .events = POLLIN};
	}
	poll(fds, 2, SLEEP_MS);
	return 0;
}

static int drive(struct pair *p, bool (*until)(const struct pair *), const char *what)
{
	while (!*p->why && !until(p)) {
		int n = tern_progress(p->end[0].ctx), m = tern_progress(p->end[1].ctx);

		if (n < 0 || m < 0)
			return fail(p, TERN_MIN(n, m), "%s", what);
		if (tern_clock_ns() > p->deadline_ns)
			return fail(p, -ETIMEDOUT, "%s", what);
		if (n + m == 0)
			sleep_both(p);
	}
	return *p->why ? -EIO : 0;
}

static bool both_up(const struct pair *p)
{
	return p->end[0].up && p->end[1].up;
}

static bool both_down(const struct pair *p)
{
	return p->end[0].down && p->end[1].down;
}

/* ---- moving one tensor ---- */

static struct tern_req out_req, in_req;

static bool both_done(const struct pair *p)
{
	(void)p;
	return tern_test(&out_req) != -EINPROGRESS && tern_test(&in_req) != -EINPROGRESS;
}

static unsigned char byte_at(uint64_t seed, uint64_t i)
{
	return (unsigned char)tern_rng_at(1, seed, 0, i);
}

/* Moves one tensor and compares every byte. The receiving memory is filled with the
 * inverse of each byte before, so that a byte that does not arrive is found. */
static int transfer(struct pair *p, struct tern_channel *from, struct tern_channel *to,
	struct tern_buf *out, struct tern_buf *in, uint64_t seed)
{
	struct tern_tensor tensor = {
		.buf = *out, .shape = tern_shape_1d(TERN_U8, out->bytes)};
	unsigned char *sent = tern_buf_ptr(out), *got = tern_buf_ptr(in);
	int r;

	for (uint64_t i = 0; i < out->bytes; i++) {
		sent[i] = byte_at(seed, i);
		got[i] = (unsigned char)~sent[i];
	}
	out_req = in_req = (struct tern_req){0};
	r = tern_recv(to, &in_req, tern_key("check"), seed, in, NULL, 0);
	if (r == 0)
		r = tern_send(from, &out_req, tern_key("check"), seed, &tensor, NULL, 0);
	if (r)
		return fail(p, r, "a request");
	r = drive(p, both_done, "a transfer");
	if (r == 0)
		r = out_req.status ? out_req.status : in_req.status;
	if (r)
		return fail(
			p, r, "a transfer of %llu bytes", (unsigned long long)out->bytes);
	for (uint64_t i = 0; i < out->bytes; i++) {
		if (got[i] != byte_at(seed, i))
			return fail(p, -EBADMSG,
				"byte %llu of %llu is not the one that was sent",
				(unsigned long long)i, (unsigned long long)out->bytes);
	}
	return tern_shape_equal(&in_req.shape, &tensor.shape)
		       ? 0
		       : fail(p, -EBADMSG,
				 "the shape that arrived is not the one that was sent");
}

static int move_one(struct pair *p, unsigned sender, uint64_t size, uint64_t seed)
{
	struct end *from = &p->end[sender], *to = &p->end[!sender];
	struct tern_buf out = {0}, in = {0};
	int r = tern_pool_get(from->pool, size, &out);

	if (r == 0)
		r = tern_pool_get(to->pool, size, &in);
	if (r)
		return fail(p, r, "memory");
	r = transfer(p, from->channel, to->channel, &out, &in, seed);
	if (r)
		return r; /* not freed: the fabric may still write to the memory */
	tern_pool_put(from->pool, &out);
	tern_pool_put(to->pool, &in);
	return 0;
}

/* ---- one check: two ends, and all its tensors ---- */

static bool has_option(const char *text, const char *name)
{
	size_t n = strlen(name);

	for (; text && *text; text += strcspn(text, ","), text += *text == ',') {
		if (strncmp(text, name, n) == 0 && text[n] == '=')
			return true;
	}
	return false;
}

/*
 * Sets the verbs options of one end. Appends device= to the user's options, and from=
 * (the local address) at the connecting end, so that both ends use the device that is
 * checked. At the connecting end nothing is appended if the user has given from=, and no
 * from= if the user has given gid=. If an option is given twice, the last one counts.
 */
static void set_verbs_options(const struct target *target, bool connects, struct end *e)
{
	const char *given = target->verbs;
	bool from = has_option(given, "from");
	size_t n = 0;

	if (given)
		n = (size_t)snprintf(e->verbs, sizeof(e->verbs), "%.300s,", given);
	if (!connects || !from)
		n += (size_t)snprintf(
			e->verbs + n, sizeof(e->verbs) - n, "device=%s,", target->device);
	if (connects && !from && !has_option(given, "gid"))
		n += (size_t)snprintf(
			e->verbs + n, sizeof(e->verbs) - n, "from=%s,", target->address);
	if (n)
		e->verbs[n - 1] = '\0';
}

static void keep_line(enum tern_log_level level, const char *line, void *arg)
{
	struct pair *p = arg;

	if (*p->said && level > p->level)
		return;
	p->level = level;
	snprintf(p->said, sizeof(p->said), "%s", line);
}

static int end_open(struct pair *p, unsigned index, const struct target *target)
{
	struct end *e = &p->end[index];
	struct tern_context_opts ctx_opts = {
		.log = keep_line, .log_arg = p, .log_level = TERN_LOG_INFO};
	struct tern_domain_opts domain_opts = {0};
	struct tern_pool_opts pool_opts = {.slab_bytes = 4u << 20};
	const char *missing = NULL;
	int r;

	e->pair = p;
	if (target->device) {
		set_verbs_options(target, index == 1, e);
		domain_opts.verbs = e->verbs;
	}
	r = tern_domain_new(&domain_opts, &e->domain);
	if (r == 0)
		missing = fabric_missing(
			&(struct fabric_settings){.choice = target->fabric}, e->domain);
	if (missing) {
		snprintf(p->why, sizeof(p->why), "%s", missing);
		return -ENODEV;
	}
	if (r == 0)
		r = tern_context_new(e->domain, &ctx_opts, &e->ctx);
	if (r == 0)
		r = tern_pool_new(e->domain, &pool_opts, &e->pool);
	return r ? fail(p, r, "setting up") : 0;
}

static int join(struct pair *p, const struct target *target)
{
	struct tern_peer_opts opts = {.event = event, .arg = &p->end[1], .name = "check"};
	char host[80], address[160];
	int r;

	/* An IPv6 address needs brackets before a port. */
	if (target->address)
		snprintf(host, sizeof(host),
			strchr(target->address, ':') ? "[%.70s]:0" : "%.70s:0",
			target->address);
	fabric_listen_address(&(struct fabric_settings){.choice = target->fabric},
		target->address ? host : NULL, "tern-check", address, sizeof(address));
	r = tern_listen(p->end[0].ctx, address, NULL, accepted, &p->end[0], &p->listener);
	if (r)
		return fail(p, r, "listening at %s", address);
	snprintf(address, sizeof(address), "%s", tern_listener_address(p->listener));
	r = tern_connect(p->end[1].ctx, address, &opts, &p->end[1].peer);
	if (r)
		return fail(p, r, "connecting to %s", address);
	r = drive(p, both_up, "connecting");
	for (int i = 0; i < 2 && r == 0; i++)
		r = tern_channel_open(p->end[i].peer, 1, &p->end[i].channel);
	return r ? fail(p, r, "opening a channel") : 0;
}

static int move_all(struct pair *p)
{
	uint64_t seed = 0;
	int r = 0;

	for (size_t i = 0; i < TERN_ARRAY_SIZE(sizes); i++) {
		for (unsigned sender = 0; sender < 2 && r == 0; sender++)
			r = move_one(p, sender, sizes[i], ++seed);
	}
	return r;
}

static void part(struct pair *p)
{
	tern_peer_close(p->end[1].peer);
	if (drive(p, both_down, "closing"))
		return;
	tern_listener_free(p->listener);
	for (int i = 0; i < 2; i++) {
		tern_peer_free(p->end[i].peer);
		tern_context_free(p->end[i].ctx);
		tern_pool_free(p->end[i].pool);
		tern_domain_free(p->end[i].domain);
	}
}

static json_t *check_pair(const struct target *target)
{
	struct pair p = {.deadline_ns = tern_clock_ns() + PAIR_NS};
	uint64_t start_ns = 0;
	double ms = 0;

	if (end_open(&p, 0, target) == 0 && end_open(&p, 1, target) == 0) {
		start_ns = tern_clock_ns();
		if (join(&p, target) == 0 && move_all(&p) == 0) {
			ms = (double)(tern_clock_ns() - start_ns) / 1e6;
			part(&p);
		}
	}
	if (*p.why)
		return json_pack("{sb ss}", "ok", false, "why", p.why);
	return json_pack("{sb sf}", "ok", true, "ms", ms);
}

/* ---- running a check in a child process ---- */

/* Lists what can be checked: the fabrics, with the reason why one does not work, and the
 * RDMA devices. Runs in a child. */
static json_t *list(const struct target *target)
{
	struct fabric_settings settings = {.verbs = target->verbs};
	struct tern_domain_opts opts = fabric_domain_opts(&settings);
	json_t *fabrics = json_object(), *rdma = NULL;
	struct tern_domain *domain;
	int r = tern_domain_new(&opts, &domain);

	if (r)
		return json_pack("{ss}", "why", tern_status_text(r));
	for (int i = FABRIC_AUTO + 1; i < fabric_count(); i++) {
		const char *why;

		settings.choice = i;
		why = fabric_missing(&settings, domain);
		json_object_set_new(
			fabrics, fabric_names()[i], why ? json_string(why) : json_null());
		if (fabric_row(i)->devices && !why)
			rdma = info_rdma(&settings, NULL, NULL);
	}
	tern_domain_free(domain);
	return json_pack("{so so*}", "fabrics", fabrics, "rdma", rdma);
}

static _Noreturn void be_child(
	json_t *(*work)(const struct target *), const struct target *target, int fd)
{
	json_t *result;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	result = work(target);
	_exit(json_dumpfd(result, fd, JSON_COMPACT) ? 1 : 0);
}

/* Reads to the end of the pipe, or until `text` is full. False: `deadline_ns` passed
 * before. */
static bool read_all(int fd, char *text, size_t bytes, uint64_t deadline_ns)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	size_t n = 0;

	for (;;) {
		uint64_t now_ns = tern_clock_ns();
		ssize_t got;

		if (now_ns >= deadline_ns)
			return false;
		if (poll(&pfd, 1, (int)((deadline_ns - now_ns) / TERN_NS_PER_MS) + 1) < 1)
			continue;
		got = n + 1 < bytes ? read(fd, text + n, bytes - n - 1) : 0;
		if (got <= 0)
			break;
		n += (size_t)got;
	}
	text[n] = '\0';
	return true;
}

/* Waits at most 1 s for the process to exit: a process that hangs in the kernel never
 * exits. */
static void reap(pid_t pid, int *status)
{
	const struct timespec turn = {.tv_nsec = 10 * TERN_NS_PER_MS};

	for (int i = 0; i < 100 && waitpid(pid, status, WNOHANG) == 0; i++)
		nanosleep(&turn, NULL);
}

/* Returns the result that the check's process has written. If there is none: {"why"},
 * which tells how the process ended. */
static json_t *conclude(pid_t pid, bool in_time, const char *text)
{
	json_t *result = in_time ? json_loads(text, 0, NULL) : NULL;
	int status = 0;

	if (!in_time)
		kill(pid, SIGKILL);
	reap(pid, &status);
	if (result)
		return result;
	if (!in_time)
		return json_pack("{so}", "why",
			json_sprintf("the check did not end within %d s",
				(int)(CHILD_NS / TERN_NS_PER_S)));
	if (WIFSIGNALED(status))
		return json_pack("{so}", "why",
			json_sprintf("killed by signal %d (%s)", WTERMSIG(status),
				strsignal(WTERMSIG(status))));
	return json_pack("{ss}", "why", "it ended without a result");
}

static json_t *in_child(
	json_t *(*work)(const struct target *), const struct target *target)
{
	static char text[1u << 20];
	json_t *result;
	int fds[2];
	pid_t pid;

	if (pipe(fds) < 0)
		return json_pack("{ss}", "why", strerror(errno));
	pid = fork();
	if (pid == 0)
		be_child(work, target, fds[1]);
	close(fds[1]);
	if (pid < 0)
		result = json_pack("{ss}", "why", strerror(errno));
	else
		result = conclude(pid,
			read_all(fds[0], text, sizeof(text), tern_clock_ns() + CHILD_NS),
			text);
	close(fds[0]);
	return result;
}

/* ---- the command ---- */

struct run {
	const char *verbs; /* value of --verbs */
	struct output out;
	json_t *checks;
	bool failed;
};

/* Prints the result of one check and keeps it for the JSON output. `check` is {"fabric",
 * ...} with "skipped", or with "ok" and either "ms" or "why". */
static void add(struct run *run, json_t *check)
{
	bool named = json_object_get(check, "device");
	char name[160];

	snprintf(name, sizeof(name), "%s%s%s%s%s", info_text(check, "fabric"),
		named ? " " : "", info_text(check, "device"),
		json_object_get(check, "address") ? " " : "",
		info_text(check, "address"));
	if (json_object_get(check, "skipped"))
		output_line(
			&run->out, "%s skipped: %s", name, info_text(check, "skipped"));
	else if (json_is_true(json_object_get(check, "ok")))
		output_line(&run->out, "%s ok %s, %.0f ms", name, SIZES_TEXT,
			json_number_value(json_object_get(check, "ms")));
	else
		output_line(&run->out, "%s FAILED: %s", name, info_text(check, "why"));
	json_array_append_new(run->checks, check);
}

static void check(struct run *run, const struct target *target)
{
	json_t *one = json_pack("{ss ss* ss* sb}", "fabric",
		fabric_names()[target->fabric], "device", target->device, "address",
		target->address, "ok", false);
	json_t *result = in_child(check_pair, target);

	json_object_update(one, result);
	json_decref(result);
	run->failed |= !json_is_true(json_object_get(one, "ok"));
	add(run, one);
}

static void skip_device(struct run *run, const struct target *target, json_t *why)
{
	add(run, json_pack("{ss ss so}", "fabric", fabric_names()[target->fabric],
			 "device", target->device, "skipped", why));
}

static const char *address_of(const json_t *device, json_int_t port)
{
	json_t *one;
	size_t i;

	json_array_foreach(json_object_get(device, "addresses"), i, one)
	{
		if (json_integer_value(json_object_get(one, "port")) == port)
			return info_text(one, "address");
	}
	return NULL;
}

/* Checks an RDMA device once through each of its active ports that have an IP address. */
static void check_device(struct run *run, int fabric, const json_t *device)
{
	struct target target = {.fabric = fabric,
		.verbs = run->verbs,
		.device = info_text(device, "name")};
	json_t *differences = json_object_get(device, "differences"), *port;
	size_t i;

	if (!json_is_true(json_object_get(device, "used"))) {
		skip_device(run, &target,
			json_incref(json_array_get(
				differences, json_array_size(differences) - 1)));
		return;
	}
	json_array_foreach(json_object_get(device, "ports"), i, port)
	{
		json_int_t number = json_integer_value(json_object_get(port, "port"));

		target.address = address_of(device, number);
		if (strcmp(info_text(port, "state"), "active") != 0)
			skip_device(run, &target,
				json_sprintf("port %d is not active", (int)number));
		else if (!target.address)
			skip_device(run, &target,
				json_sprintf("port %d has no IP address", (int)number));
		else
			check(run, &target);
	}
}

static void check_fabric(struct run *run, const json_t *listed, int fabric)
{
	const char *name = fabric_names()[fabric];
	json_t *why = json_object_get(json_object_get(listed, "fabrics"), name);
	json_t *device;
	size_t i;

	if (json_is_string(why)) {
		add(run, json_pack("{ss sO}", "fabric", name, "skipped", why));
		return;
	}
	if (!fabric_row(fabric)->devices) {
		check(run, &(struct target){.fabric = fabric, .verbs = run->verbs});
		return;
	}
	json_array_foreach(
		json_object_get(json_object_get(listed, "rdma"), "devices"), i, device)
	{
		check_device(run, fabric, device);
	}
}

/* Checks all fabrics. Those within this host, which are the last of fabric_names(), come
 * first. */
static void check_fabrics(struct run *run, const json_t *listed)
{
	for (int i = fabric_count() - 1; i > FABRIC_AUTO; i--)
		check_fabric(run, listed, i);
}

int info_check(const struct fabric_settings *settings, bool json)
{
	struct run run = {.verbs = settings->verbs, .checks = json_array()};
	json_t *listed = in_child(list, &(struct target){.verbs = settings->verbs});

	output_init(&run.out, json);
	if (json_object_get(listed, "why")) {
		run.failed = true;
		output_error(&run.out, "info", "looking for fabrics: %s",
			info_text(listed, "why"));
	} else {
		check_fabrics(&run, listed);
	}
	if (json)
		output_json(json_pack("{ss sO sb}", "version", tern_version(), "checks",
			run.checks, "ok", !run.failed));
	json_decref(listed);
	json_decref(run.checks);
	return run.failed ? EXIT_JOB : EXIT_OK;
}
