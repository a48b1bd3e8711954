/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern bench`: measurements on this machine by a single command. lat, bw and rate use
 * one engine (bench_pair.c) with different windows; pool allocates and frees memory in
 * this process. Prints one row of a table or one JSON object per size.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/util.h"
#include "tools/bench_pair.h"
#include "tools/command.h"
#include "tools/info_machine.h"
#include "tools/log.h"
#include "tools/output.h"
#include "tools/secret.h"

struct bench_settings {
	struct fabric_settings fabric;
	const char *listen;
	struct secret_settings secret; /* only `insecure` is used */
	struct secret made;
	int wait;
	struct byte_list size, rounds;
	uint64_t inflight;
	int receive, pin;
	bool rewrite, json;
	enum tern_log_level log_level;
};

enum bench_wait { WAIT_AUTO, WAIT_POLL, WAIT_SLEEP };

static const char *const waits[] = {"auto", "poll", "sleep", NULL};    /* bench_wait */
static const char *const receives[] = {"room", "alloc", "peek", NULL}; /* bench_receive */
static const char *const pins[] = {"auto", "yes", "no", NULL};         /* bench_pin */

static const struct option options[] = {
	FABRIC_OPTIONS(struct bench_settings, fabric),
	OPTION(ADDRESS, "listen", "HOST:PORT",
		"where one end listens; default 127.0.0.1:0, for verbs the first "
		"device's address",
		struct bench_settings, listen),
	INSECURE_OPTION(struct bench_settings, secret),
	OPTION(BYTES, "size", "N,...",
		"bytes of a tensor, such as 64, 4K or 1.5MiB; default: a range that "
		"suits the test",
		struct bench_settings, size, .min = 1, .max = 1ull << 36),
	OPTION(COUNT, "inflight", "K",
		"tensors on their way at once; default 1 (lat), 16 (bw), "
		"256 (rate)",
		struct bench_settings, inflight, .min = 1, .max = 4096),
	OPTION(CHOICE, "wait", "HOW",
		"between events; auto: poll, or sleep where both ends share one core",
		struct bench_settings, wait, .initial = "auto", .choices = waits),
	OPTION(COUNTS, "rounds", "M,...",
		"how many tensors are measured: one number for all sizes, or one for "
		"each; "
		"default: by size",
		struct bench_settings, rounds, .min = 1, .max = 1e9),
	OPTION(CHOICE, "receive", "WHERE",
		"into room that is there, room taken from the pool, or read in place",
		struct bench_settings, receive, .initial = "room", .choices = receives),
	OPTION(FLAG, "rewrite", NULL,
		"the sender writes its tensor anew before each message, which "
		"the round trip does not count",
		struct bench_settings, rewrite),
	OPTION(CHOICE, "pin", "HOW", "each end to a core; auto: when they poll",
		struct bench_settings, pin, .initial = "auto", .choices = pins),
	OPTION(FLAG, "json", NULL, "one JSON object per size", struct bench_settings,
		json),
	LOG_LEVEL_OPTION(struct bench_settings, log_level),
	OPTION_END,
};

/* Default settings of a test. */
struct kind {
	const char *name, *sizes;
	uint64_t inflight;
	/* Limits of the number of rounds, which transfer about `bytes`. */
	uint64_t bytes, rounds_min, rounds_max;
	bool reply_each;
};

static const struct kind kinds[] = {
	{"lat", "8,64,512,4K,64K,1M", 1, 1ull << 30, 200, 20000, true},
	{"bw", "64K,1M,16M,64M", 16, 8ull << 30, 64, 20000, true},
	{"rate", "8,64,512", 256, 1ull << 30, 10000, 500000, false},
	{"pool", "64,4K,1M", 256, 1ull << 40, 1000000, 1000000, false},
};

static const struct kind *find_kind(const char *name)
{
	for (size_t i = 0; i < TERN_ARRAY_SIZE(kinds); i++) {
		if (strcmp(kinds[i].name, name) == 0)
			return &kinds[i];
	}
	return NULL;
}

static uint64_t rounds_of(
	const struct kind *kind, const struct bench_settings *s, size_t index)
{
	uint64_t rounds = kind->bytes / s->size.bytes[index];

	if (s->rounds.count)
		return s->rounds.bytes[s->rounds.count == 1 ? 0 : index];
	return TERN_MAX(kind->rounds_min, TERN_MIN(rounds, kind->rounds_max));
}

/* ---- two processes ---- */

/* For people: names the columns, in lines of at most 79 characters. */
static void print_heading(const struct kind *kind, struct output *out)
{
	if (strcmp(kind->name, "pool") == 0)
		output_line(out, "%11s %16s %5s", "bytes", "ns a put and get", "regs");
	else
		output_line(out, "%-5s %11s%s %7s %8s %9s %5s", "", "bytes",
			kind->reply_each ? "   p50 us   p99 us p99.9 us" : "", "GB/s",
			"msgs/s", "cpu s/GB", "regs");
}

/* Decimals of a time in us, in eight columns. */
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
	json_object_set_new(o, "gb_per_s", json_real(gb / seconds));
	json_object_set_new(o, "msgs_per_s", json_real((double)c->rounds / seconds));
	json_object_set_new(o, "cpu_s_per_gb", json_real(cpu_s / gb));
	json_object_set_new(
		o, "registrations", json_integer((json_int_t)r->registrations));
	output_json(o);
}

static int run_pair(const struct command *command, const struct kind *kind,
	const struct bench_settings *s, size_t index, struct output *out)
{
	uint64_t size = s->size.bytes[index];
	struct bench_config config = {
		.fabric = s->fabric,
		.listen = s->listen,
		.secret = secret_text(&s->made),
		.size = size,
		.inflight = (uint32_t)(s->inflight ? s->inflight : kind->inflight),
		.rounds = rounds_of(kind, s, index),
		.sleep = s->wait == WAIT_SLEEP,
		.rewrite = s->rewrite,
		.receive = (enum bench_receive)s->receive,
		.pin = (enum bench_pin)s->pin,
		.reply_each = kind->reply_each,
	};
	struct bench_result result;
	struct bench_error error;

	/* Each slot is used at least once. */
	config.warmup = TERN_MAX(config.inflight, 2u);
	config.warmup = TERN_MAX(config.warmup, config.rounds / 20);
	if (bench_pair_run(&config, &result, &error)) {
		if (error.input)
			return command_refuse(command, "%s", error.text);
		command_refuse(command, "%s %s %llu: %s", kind->name,
			fabric_name(&s->fabric), (unsigned long long)size, error.text);
		return EXIT_JOB;
	}
	print_pair(kind, s, &config, &result, out);
	return EXIT_OK;
}

/* ---- pool ---- */

#define POOL_BATCH 1000u

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* `window` buffers are allocated; each round frees one at random and allocates it
 * again. */
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
 * Frees and allocates in a shuffled order, so that free lists are neither always empty
 * nor in the order of addresses. Returns ns of one pair: the median of batches, since a
 * mean over all rounds would include whatever else the processor did meanwhile.
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
	if (r) {
		command_refuse(command, "pool %llu: %s", (unsigned long long)size,
			tern_status_text(r));
		return EXIT_JOB;
	}
	after.registration_count -= before.registration_count;
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

/* Two ends that poll on one core would wait for the end of each other's time slices. */
static void settle_wait(struct bench_settings *s)
{
	bool two = has_two_cores();

	if (s->wait == WAIT_AUTO)
		s->wait = two ? WAIT_POLL : WAIT_SLEEP;
	else if (s->wait == WAIT_POLL && !two)
		fputs("tern bench: warning: both ends poll on one core, so the times are "
		      "the scheduler's; --wait sleep measures Tern\n",
			stderr);
}

static int bench_run(int argc, char **argv)
{
	const struct command *self = &bench_command;
	struct bench_settings s = {0};
	const struct kind *kind = argc ? find_kind(argv[0]) : NULL;
	struct output out;
	struct message error;

	if (!kind)
		return command_refuse(self,
			"%s%sthe test must be one of lat, bw, rate, pool",
			argc ? argv[0] : "", argc ? ": " : "");
	if (options_parse(options, argc - 1, argv + 1, &s, &error) ||
		log_open("bench", s.log_level, &error) || fabric_check(&s.fabric, &error))
		return command_refuse(self, "%s", error.text);
	if (!s.secret.insecure && secret_make(&s.made) < 0)
		return command_refuse(self, "no random numbers for a secret");
	if (secret_check_listen(&s.secret, &s.made, &s.fabric, s.listen, &error))
		return command_refuse(self, "%s", error.text);
	if (fabric_check_listen(&s.fabric, s.listen, &error))
		return command_refuse(self, "%s", error.text);
	if (!s.size.count)
		tern_assert(options_parse_bytes(kind->sizes, &s.size) == 0);
	if (s.rounds.count > 1 && s.rounds.count != s.size.count)
		return command_refuse(self,
			"--rounds has %zu values, --size %zu: give one, or one for each",
			s.rounds.count, s.size.count);
	if (strcmp(kind->name, "pool") != 0)
		settle_wait(&s);
	output_init(&out, s.json);
	print_heading(kind, &out);
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
	.usage = "lat|bw|rate|pool [options]",
	.summary = "measure round trips, bandwidth, message rate or the memory pool here",
	.options = options,
	.run = bench_run,
};
