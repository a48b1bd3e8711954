/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern bench`: measures on this machine, or between two hosts. The tests lat, bw and
 * rate run the same code (bench_end.c) with different numbers of tensors in flight;
 * allreduce and alltoall are collective operations of two ranks (bench_group.c), window is
 * puts and gets (bench_window.c); the test
 * pool allocates and frees memory in this process. Prints one row of a table, or one
 * JSON object, per size.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/util.h"
#include "tools/bench_hosts.h"
#include "tools/bench_pair.h"
#include "tools/command.h"
#include "tools/info_machine.h"
#include "tools/log.h"
#include "tools/output.h"
#include "tools/report.h"
#include "tools/secret.h"

struct bench_settings {
	struct fabric_settings fabric;
	const char *listen;
	const char *serve, *connect;
	bool once, all;
	struct secret_settings secret;
	/* the secret of both ends, see get_secret() */
	struct secret known;
	int wait;
	struct byte_list size, rounds;
	uint64_t inflight;
	int receive, pin;
	bool rewrite, json;
	uint64_t offer;
	enum tern_log_level log_level;
};

enum bench_wait { WAIT_AUTO, WAIT_POLL, WAIT_SLEEP };

/* names of enum bench_wait */
static const char *const waits[] = {"auto", "poll", "sleep", NULL};
/* names of enum bench_receive */
static const char *const receives[] = {"room", "alloc", "peek", NULL};
/* names of enum bench_pin */
static const char *const pins[] = {"auto", "yes", "no", NULL};

static const struct option options[] = {
	FABRIC_OPTIONS(struct bench_settings, fabric),
	OPTION(ADDRESS, "listen", "HOST:PORT",
		"address at which the receiving end listens; default 127.0.0.1:0, for "
		"verbs the first device's address",
		struct bench_settings, listen),
	OPTION(ADDRESS, "serve", "HOST:PORT",
		"receive what clients on other hosts send (--connect); they choose all "
		"other options",
		struct bench_settings, serve),
	OPTION(FLAG, "once", NULL, "with --serve: end after one client",
		struct bench_settings, once),
	OPTION(TEXT, "connect", "ADDRESS",
		"measure against a tern bench --serve on another host, which has printed "
		"this address",
		struct bench_settings, connect),
	SECRET_OPTIONS(struct bench_settings, secret),
	INSECURE_OPTION(struct bench_settings, secret),
	OPTION(BYTES, "size", "N,...",
		"bytes of a tensor, such as 64, 4K or 1.5MiB; default: a range that "
		"suits the test",
		struct bench_settings, size, .min = 1, .max = BENCH_SIZE_MAX),
	OPTION(FLAG, "all", NULL,
		"measure each power of two from 1 B to 1 GiB, in one table",
		struct bench_settings, all),
	OPTION(COUNT, "inflight", "K",
		"tensors in flight; default 1 (lat, window, allreduce, alltoall), 16 "
		"(bw), "
		"256 (rate)",
		struct bench_settings, inflight, .min = 1, .max = BENCH_INFLIGHT_MAX),
	OPTION(CHOICE, "wait", "HOW",
		"how the ends wait for events; auto: poll, or sleep if both ends share "
		"one core",
		struct bench_settings, wait, .initial = "auto", .choices = waits),
	OPTION(COUNTS, "rounds", "M,...",
		"number of tensors to measure: one number for all sizes, or one for "
		"each; default: by size",
		struct bench_settings, rounds, .min = 1, .max = BENCH_ROUNDS_MAX),
	OPTION(CHOICE, "receive", "WHERE",
		"where a tensor is received: in a buffer that exists already, in one "
		"taken from the pool, or read in place",
		struct bench_settings, receive, .initial = "room", .choices = receives),
	OPTION(FLAG, "rewrite", NULL,
		"the sender writes new contents into its tensor before each message; the "
		"round trip does not include this",
		struct bench_settings, rewrite),
	OPTION(COUNT, "offer", "R",
		"lat: send R tensors a second, whether or not the answers keep up; a "
		"round trip counts from when its tensor was due; default: the next "
		"tensor when the last one is answered",
		struct bench_settings, offer, .min = 1, .max = TERN_NS_PER_S),
	OPTION(CHOICE, "pin", "HOW",
		"pin each end to its own core; auto: only if they poll",
		struct bench_settings, pin, .initial = "auto", .choices = pins),
	OPTION(FLAG, "json", NULL, "one JSON object per size", struct bench_settings,
		json),
	LOG_LEVEL_OPTION(struct bench_settings, log_level),
	OPTION_END,
};

/* A test of `tern bench` with its default settings. */
struct kind {
	const char *name, *sizes;
	uint64_t inflight;
	/* Default number of rounds: as many as transfer `bytes`, within these limits. */
	uint64_t bytes, rounds_min, rounds_max;
	bool reply_each;
	enum bench_collective collective;
	bool window;
};

#define KINDS "lat, bw, rate, window, allreduce, alltoall, pool"
static const struct kind kinds[] = {
	{"lat", "8,64,512,4K,64K,1M", 1, 1ull << 30, 200, 20000, true, 0, false},
	{"bw", "64K,1M,16M,64M", 16, 8ull << 30, 64, 20000, true, 0, false},
	{"rate", "8,64,512", 256, 1ull << 30, 10000, 500000, false, 0, false},
	{"window", "8,64,512,4K,64K,1M", 1, 1ull << 28, 100, 5000, true, 0, true},
	{"allreduce", "8,4K,64K,1M,16M,64M", 1, 4ull << 30, 20, 20000, true,
		BENCH_ALLREDUCE, false},
	{"alltoall", "8,4K,64K,1M,16M,64M", 1, 4ull << 30, 20, 20000, true,
		BENCH_ALLTOALL, false},
	{"pool", "64,4K,1M", 256, 1ull << 40, 1000000, 1000000, false, 0, false},
};

static const struct kind *find_kind(const char *name)
{
	for (size_t i = 0; i < TERN_ARRAY_SIZE(kinds); i++) {
		if (strcmp(kinds[i].name, name) == 0)
			return &kinds[i];
	}
	return NULL;
}

/* --all: sizes above ALL_SIZE_LARGE get fewer rounds, but at least ALL_ROUNDS_MIN, so
 * that the table takes a minute or two instead of ten. */
#define ALL_SIZE_LARGE (1ull << 20)
#define ALL_ROUNDS_MIN (uint64_t)4

static uint64_t rounds_of(
	const struct kind *kind, const struct bench_settings *s, size_t index)
{
	uint64_t rounds = kind->bytes / s->size.bytes[index];

	if (s->rounds.count)
		return s->rounds.bytes[s->rounds.count == 1 ? 0 : index];
	if (s->all && s->size.bytes[index] > ALL_SIZE_LARGE)
		return TERN_MAX(rounds, ALL_ROUNDS_MIN);
	return TERN_MAX(kind->rounds_min, TERN_MIN(rounds, kind->rounds_max));
}

/* --all without --inflight: at most this many bytes are in flight, but always 2 tensors
 * (test lat: 1). More large tensors would take much memory without changing the result. */
#define INFLIGHT_BYTES (256ull << 20)

static uint32_t inflight_of(
	const struct kind *kind, const struct bench_settings *s, size_t index)
{
	uint64_t fitting = TERN_MAX(INFLIGHT_BYTES / s->size.bytes[index], 2u);

	if (s->inflight)
		return (uint32_t)s->inflight;
	return (uint32_t)(s->all ? TERN_MIN(kind->inflight, fitting) : kind->inflight);
}

/* ---- the tests lat, bw and rate ---- */

/* Prints the heading of the table, with lines of at most 79 characters; nothing with
 * --json. It is printed with the first row, so no failure stands below an empty table. */
static void print_heading(const struct kind *kind, struct output *out)
{
	if (strcmp(kind->name, "pool") == 0)
		output_line(out, "%11s %16s %5s", "bytes", "ns a put and get", "regs");
	else if (kind->window)
		output_line(out, "%-5s %11s %-8s %8s %8s %8s %7s %7s", "", "bytes", "",
			"p50 us", "p99 us", "p99.9 us", "GB/s", "of send");
	else
		output_line(out, "%-5s %11s%s %7s %8s %9s %5s", "", "bytes",
			kind->reply_each ? "   p50 us   p99 us p99.9 us" : "", "GB/s",
			"msgs/s", "cpu s/GB", "regs");
}

/* Returns the number of decimals with which a time in us fits into eight columns. */
static int decimals(double us)
{
	return us < 1e5 ? 2 : 0;
}

static void print_row(const struct kind *kind, const struct bench_result *r,
	uint64_t size, double gb_per_s, double msgs_per_s, double cpu_s_per_gb,
	struct output *out)
{
	double p50_us = (double)r->p50_ns / 1e3, p99_us = (double)r->p99_ns / 1e3;
	double p999_us = (double)r->p999_ns / 1e3;
	char trip[96] = "";

	if (kind->reply_each)
		snprintf(trip, sizeof(trip), " %8.*f %8.*f %8.*f", decimals(p50_us),
			p50_us, decimals(p99_us), p99_us, decimals(p999_us), p999_us);
	output_line(out, "%-5s %11llu%s %7.3f %8.0f %9.3f %5llu", r->fabric,
		(unsigned long long)size, trip, gb_per_s, msgs_per_s, cpu_s_per_gb,
		(unsigned long long)r->registrations);
}

static void print_pair(const struct kind *kind, const struct bench_settings *s,
	const struct bench_config *c, const struct bench_result *r, struct output *out)
{
	double seconds = (double)r->elapsed_ns / 1e9;
	double gb = (double)c->size * (double)c->rounds / 1e9;
	double p50_us = (double)r->p50_ns / 1e3, p99_us = (double)r->p99_ns / 1e3;
	double p999_us = (double)r->p999_ns / 1e3, cpu_s = (double)r->cpu_ns / 1e9;
	json_t *o;

	if (!s->json) {
		print_row(kind, r, c->size, gb / seconds, (double)c->rounds / seconds,
			cpu_s / gb, out);
		return;
	}
	o = json_pack("{ss ss ss ss sI sI sI sb}", "bench", kind->name, "fabric",
		r->fabric, "wait", waits[s->wait], "receive", receives[s->receive],
		"size", (json_int_t)c->size, "inflight", (json_int_t)c->inflight,
		"rounds", (json_int_t)c->rounds, "pinned", r->pinned);
	if (kind->reply_each) {
		json_object_set_new(o, "p50_us", json_real(p50_us));
		json_object_set_new(o, "p99_us", json_real(p99_us));
		json_object_set_new(o, "p999_us", json_real(p999_us));
	}
	if (s->offer)
		json_object_set_new(
			o, "offered_per_s", json_integer((json_int_t)s->offer));
	json_object_set_new(o, "gb_per_s", json_real(gb / seconds));
	json_object_set_new(o, "msgs_per_s", json_real((double)c->rounds / seconds));
	json_object_set_new(o, "cpu_s_per_gb", json_real(cpu_s / gb));
	json_object_set_new(
		o, "registrations", json_integer((json_int_t)r->registrations));
	output_json(o);
}

static void print_op(const struct bench_settings *s, const struct bench_config *c,
	const struct bench_result *r, enum bench_op op, struct output *out)
{
	static const char *const names[] = {"put", "put+note", "get", "send"};
	const struct bench_op_result *o = &r->ops[op];
	double p50_us = (double)o->p50_ns / 1e3, p99_us = (double)o->p99_ns / 1e3;
	double p999_us = (double)o->p999_ns / 1e3;
	double gb_per_s = (double)c->size * (double)c->rounds / (double)o->took_ns;
	double ratio = (double)o->p50_ns / (double)r->ops[BENCH_SEND].p50_ns;

	if (s->json)
		output_json(json_pack("{ss ss ss ss sI sI sI sb sf sf sf sf sf}", "bench",
			"window", "op", names[op], "fabric", r->fabric, "wait",
			waits[s->wait], "size", (json_int_t)c->size, "inflight",
			(json_int_t)c->inflight, "rounds", (json_int_t)c->rounds,
			"pinned", r->pinned, "p50_us", p50_us, "p99_us", p99_us,
			"p999_us", p999_us, "gb_per_s", gb_per_s, "of_send", ratio));
	else
		output_line(out, "%-5s %11llu %-8s %8.*f %8.*f %8.*f %7.3f %7.2f",
			r->fabric, (unsigned long long)c->size, names[op],
			decimals(p50_us), p50_us, decimals(p99_us), p99_us,
			decimals(p999_us), p999_us, gb_per_s, ratio);
}

static void print_ops(const struct bench_settings *s, const struct bench_config *c,
	const struct bench_result *r, struct output *out)
{
	for (unsigned op = 0; op < BENCH_OPS; op++)
		print_op(s, c, r, (enum bench_op)op, out);
}

static int run_pair(const struct command *command, const struct kind *kind,
	const struct bench_settings *s, size_t index, struct output *out)
{
	uint64_t size = s->size.bytes[index];
	struct bench_config config = {
		.fabric = s->fabric,
		.listen = s->listen,
		.connect = s->connect,
		.last = index + 1 == s->size.count,
		.secret = secret_text(&s->known),
		.size = size,
		.inflight = inflight_of(kind, s, index),
		.rounds = rounds_of(kind, s, index),
		.sleep = s->wait == WAIT_SLEEP,
		.rewrite = s->rewrite,
		.receive = (enum bench_receive)s->receive,
		.pin = (enum bench_pin)s->pin,
		.reply_each = kind->reply_each,
		.collective = kind->collective,
		.window = kind->window,
		.every_ns = s->offer ? TERN_NS_PER_S / s->offer : 0,
	};
	struct bench_result result;
	struct bench_error error;

	/* The warm-up uses the buffers of each bench slot (message n uses slot n %
	 * inflight) at least once. */
	config.warmup = TERN_MAX(config.inflight, 2u);
	config.warmup = TERN_MAX(config.warmup, config.rounds / 20);
	if (bench_pair_run(&config, &result, &error)) {
		if (error.input)
			return command_refuse(command, "%s", error.text);
		return command_fail(command, "%s %s %llu: %s", kind->name,
			s->connect ? s->connect : fabric_name(&s->fabric),
			(unsigned long long)size, error.text);
	}
	if (index == 0)
		print_heading(kind, out);
	if (kind->window)
		print_ops(s, &config, &result, out);
	else
		print_pair(kind, s, &config, &result, out);
	return EXIT_OK;
}

/* ---- the test pool ---- */

#define POOL_BATCH 1000u

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* `window` buffers are allocated. Each round frees one of them, chosen at random, and
 * allocates it again. */
static int churn_pool(struct tern_pool *pool, struct tern_buf *bufs, uint64_t window,
	uint64_t rounds, struct tern_rng *rng)
{
	uint64_t size = bufs[0].bytes;
	int r = 0;

	for (uint64_t i = 0; i < rounds && r == 0; i++) {
		struct tern_buf *buf = &bufs[tern_rng_below(rng, window)];

		tern_pool_put(pool, buf);
		r = tern_pool_get(pool, size, buf);
	}
	return r;
}

/*
 * Times the pool: buffers are freed and allocated in random order, so that free lists are
 * neither always empty nor in the order of addresses. *alloc_ns: ns for one free plus one
 * allocation, the median over batches of rounds. A mean over all rounds would include
 * whatever else the processor did meanwhile.
 */
static int time_pool(struct tern_pool *pool, uint64_t size, uint64_t window,
	uint64_t rounds, double *alloc_ns)
{
	uint64_t batch = TERN_MIN(rounds, (uint64_t)POOL_BATCH), count = rounds / batch;
	TERN_CLEANUP(tern_cleanup_free)
	struct tern_buf *bufs = calloc(window, sizeof(*bufs));
	TERN_CLEANUP(tern_cleanup_free)
	uint64_t *took_ns = calloc(count, sizeof(*took_ns));
	struct tern_rng rng = {.seed = 1};
	int r = bufs && took_ns ? 0 : -ENOMEM;

	for (uint64_t i = 0; i < window && r == 0; i++)
		r = tern_pool_get(pool, size, &bufs[i]);
	for (uint64_t i = 0; i < count && r == 0; i++) {
		uint64_t start_ns = tern_clock_ns();

		r = churn_pool(pool, bufs, window, batch, &rng);
		took_ns[i] = tern_clock_ns() - start_ns;
	}
	for (uint64_t i = 0; bufs && i < window; i++)
		tern_pool_put(pool, &bufs[i]);
	if (r)
		return r;
	qsort(took_ns, count, sizeof(*took_ns), by_value);
	*alloc_ns = (double)took_ns[count / 2] / (double)batch;
	return 0;
}

static int run_pool(const struct command *command, const struct kind *kind,
	const struct bench_settings *s, size_t index, struct output *out)
{
	uint64_t size = s->size.bytes[index];
	uint64_t window = s->inflight ? s->inflight : kind->inflight;
	uint64_t rounds = rounds_of(kind, s, index);
	struct tern_pool_opts opts = {
		.slab_bytes = tern_align_up(size + 64, 64) * window * 2};
	struct tern_domain *domain = NULL;
	struct tern_pool *pool = NULL;
	struct tern_domain_stats before = {0}, after = {0};
	double alloc_ns = 0;
	struct tern_domain_opts domain_opts = fabric_domain_opts(&s->fabric);
	int r = tern_domain_new(&domain_opts, &domain);

	if (r == 0)
		r = tern_pool_new(domain, &opts, &pool);
	if (r == 0) {
		tern_domain_stats(domain, &before);
		r = time_pool(pool, size, window, rounds, &alloc_ns);
		tern_domain_stats(domain, &after);
	}
	tern_pool_free(pool);
	tern_domain_free(domain);
	if (r)
		return command_fail(command, "pool %llu: %s", (unsigned long long)size,
			tern_status_text(r));
	after.registration_count -= before.registration_count;
	if (index == 0)
		print_heading(kind, out);
	if (s->json)
		output_json(json_pack("{ss sI sI sI sf sI}", "bench", kind->name, "size",
			(json_int_t)size, "inflight", (json_int_t)window, "rounds",
			(json_int_t)rounds, "alloc_ns", alloc_ns, "registrations",
			(json_int_t)after.registration_count));
	else
		output_line(out, "%11llu %16.1f %5llu", (unsigned long long)size,
			alloc_ns, (unsigned long long)after.registration_count);
	return EXIT_OK;
}

/* ---- the command ---- */

static bool has_two_cores(void)
{
	struct cgroup_limits limits;
	cpu_set_t cpus;

	info_cgroup_limits("", &limits);
	return (sched_getaffinity(0, sizeof(cpus), &cpus) < 0 || CPU_COUNT(&cpus) > 1) &&
	       (limits.cpus == 0 || limits.cpus >= 2);
}

/* Decides for --wait auto, and warns about --wait poll on one core. Two ends that poll on
 * one core would wait for the end of each other's time slices, so `auto` means to sleep
 * if there is only one core. */
static void settle_wait(struct bench_settings *s)
{
	bool two = has_two_cores();

	if (s->wait == WAIT_AUTO)
		s->wait = two ? WAIT_POLL : WAIT_SLEEP;
	else if (s->wait == WAIT_POLL && !two)
		fputs("tern bench: warning: both ends poll on one core, so the times "
		      "measure the scheduler and not Tern; use --wait sleep\n",
			stderr);
}

static void tell_address(const char *address)
{
	printf("%s\n", address);
	fflush(stdout);
}

static void tell_address_json(const char *address)
{
	output_json(json_pack("{ss ss}", "event", "listening", "address", address));
}

static void tell_served(const struct bench_served *served)
{
	const struct bench_config *c = &served->config;

	if (served->status < 0)
		command_refuse(&bench_command, "%s%s%s", served->client,
			*served->client ? ": " : "", served->error.text);
	else
		printf("%s: %llu tensors of %llu bytes\n", served->client,
			(unsigned long long)c->rounds, (unsigned long long)c->size);
	fflush(stdout);
}

static void tell_served_json(const struct bench_served *served)
{
	const struct bench_config *c = &served->config;

	output_json(json_pack("{ss ss sI sI si so}", "event", "served", "client",
		served->client, "size", (json_int_t)c->size, "rounds",
		(json_int_t)c->rounds, "status", served->status, "text",
		report_text(served->error.text)));
}

static int serve(const struct command *self, const struct bench_settings *s)
{
	const struct bench_config config = {.fabric = s->fabric,
		.listen = s->serve,
		.secret = secret_text(&s->known)};
	struct bench_error error = {0};

	if (bench_hosts_serve(&config, s->once,
		    s->json ? tell_address_json : tell_address,
		    s->json ? tell_served_json : tell_served, &error) == 0)
		return EXIT_OK;
	return error.input ? command_refuse(self, "%s", error.text)
			   : command_fail(self, "%s", error.text);
}

/* Checks the options that place the two ends on hosts. -EINVAL: `error` has one line. */
static int check_ends(
	const struct kind *kind, const struct bench_settings *s, struct message *error)
{
	bool is_pool = kind && strcmp(kind->name, "pool") == 0;

	if (s->serve && (kind || s->connect || s->listen))
		return options_refuse(error,
			"--serve excludes %s: the client (--connect) chooses what is "
			"measured",
			kind         ? kind->name
			: s->connect ? "--connect"
				     : "--listen");
	if (s->serve && (s->size.count || s->rounds.count || s->inflight || s->all))
		return options_refuse(error,
			"--serve takes no --size, --all, --rounds or --inflight: "
			"the client (--connect) chooses them");
	if (s->once && !s->serve)
		return options_refuse(error, "--once belongs to --serve");
	if (s->connect && (s->listen || is_pool))
		return options_refuse(error, "--connect excludes %s",
			is_pool ? "pool, which needs no other host" : "--listen");
	if (s->all && s->size.count)
		return options_refuse(error, "--all excludes --size");
	if (s->offer && (!kind || strcmp(kind->name, "lat") != 0))
		return options_refuse(error, "--offer belongs to lat: the other tests "
					     "send as fast as they can");
	return 0;
}

/* Checks the options of a test with operations of its own. -EINVAL: `error` has one line. */
static int check_operations(
	const struct kind *kind, const struct bench_settings *s, struct message *error)
{
	if (!kind || !(kind->collective || kind->window))
		return 0;
	for (size_t i = 0; kind->collective && i < s->size.count; i++)
		if (s->size.bytes[i] % BENCH_COLLECTIVE_BYTES)
			return options_refuse(error,
				"--size %llu: %s needs a multiple of %u bytes: f32 for "
				"two ranks",
				(unsigned long long)s->size.bytes[i], kind->name,
				BENCH_COLLECTIVE_BYTES);
	if (s->all || s->rewrite || s->receive)
		return options_refuse(error, "%s excludes %s", kind->name,
			s->all       ? "--all"
			: s->rewrite ? "--rewrite"
				     : "--receive");
	return 0;
}

/* Gets the secret: for two hosts the user's; for one host too, if it is an option, else a
 * new random one. There is none with --insecure. */
static int get_secret(struct bench_settings *s, struct message *error)
{
	if (s->serve || s->connect || s->secret.file || s->secret.fd)
		return secret_read(&s->secret, &s->known, error);
	if (!s->secret.insecure && secret_make(&s->known) < 0)
		return options_refuse(
			error, "the system gives no random numbers for a secret");
	return 0;
}

static void list_all_sizes(struct byte_list *sizes)
{
	for (sizes->count = 0; sizes->count <= 30; sizes->count++)
		sizes->bytes[sizes->count] = 1ull << sizes->count;
}

static int bench_run(int argc, char **argv)
{
	const struct command *self = &bench_command;
	struct bench_settings s = {0};
	const struct kind *kind = argc ? find_kind(argv[0]) : NULL;
	struct output out;
	struct message error;

	bool named = argc && strncmp(argv[0], "--", 2) != 0;
	const char *listen;

	if (named && !kind)
		return command_refuse(
			self, "%s: the test must be one of " KINDS, argv[0]);
	if (options_parse(options, argc - named, argv + named, &s, &error) ||
		check_ends(kind, &s, &error) || check_operations(kind, &s, &error))
		return command_refuse(self, "%s", error.text);
	if (!kind && !s.serve)
		return command_refuse(self, "the test must be one of " KINDS);
	listen = s.serve ? s.serve : s.listen;
	if (log_open("bench", s.log_level, &error) || fabric_check(&s.fabric, &error) ||
		get_secret(&s, &error) ||
		secret_check_listen(&s.secret, &s.known, &s.fabric,
			s.serve ? "--serve" : "--listen", listen, &error) ||
		fabric_check_listen(&s.fabric, listen, &error))
		return command_refuse(self, "%s", error.text);
	if (s.serve)
		return serve(self, &s);
	if (s.all)
		list_all_sizes(&s.size);
	if (!s.size.count)
		tern_assert(options_parse_bytes(kind->sizes, &s.size) == 0);
	if (s.rounds.count > 1 && s.rounds.count != s.size.count)
		return command_refuse(self,
			"--rounds has %zu values, --size has %zu: give one value of "
			"--rounds, or one for each size",
			s.rounds.count, s.size.count);
	if (strcmp(kind->name, "pool") != 0)
		settle_wait(&s);
	output_init(&out, s.json);
	for (size_t i = 0; i < s.size.count; i++) {
		int (*run)(const struct command *, const struct kind *,
			const struct bench_settings *, size_t, struct output *) =
			strcmp(kind->name, "pool") == 0 ? run_pool : run_pair;
		int code = run(self, kind, &s, i, &out);

		if (code != EXIT_OK)
			return code;
	}
	return EXIT_OK;
}

const struct command bench_command = {
	.name = "bench",
	.usage = "lat|bw|rate|window|allreduce|alltoall|pool [options], or --serve "
		 "HOST:PORT",
	.summary = "measure round trips, bandwidth, message rate, puts and gets, and "
		   "collectives here or between two hosts, or the memory pool",
	.options = options,
	.run = bench_run,
};
