/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See pair.h. The counterpart of `tern bench` (tools/bench_pair.c): the same number of
 * tensors in flight, rounds, clock readings and figures in the last line.
 *
 * ends.c starts the two ends. One connection serves all sizes. Between sizes both ends
 * synchronise over the socket, so that no message of one size is counted with the next.
 */
#include "bench/pair.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bench/ends.h"

#define SIZES_MAX 32
/* Limit for one size, in s. A size takes seconds; if it takes longer, something is
 * broken. */
#define LIMIT_S 120

struct plan {
	const char *test;
	uint64_t sizes[SIZES_MAX], rounds[SIZES_MAX];
	unsigned size_count;
	bool pin;
	const char *connect; /* address of a receiver on another host; NULL: fork one */
};

struct run {
	const struct pair_ops *ops;
	struct plan plan;
};

struct timing {
	uint64_t start_ns, end_ns, start_cpu_ns, cpu_ns;
	uint64_t *trips_ns;
};

bool pair_answered(const struct pair *p, uint64_t n)
{
	return p->reply_each || n == p->warmup - 1 || n == p->total - 1;
}

unsigned char *pair_tensor(const struct pair *p, uint64_t n)
{
	size_t stride = (p->size + 63) / 64 * 64;

	return p->tensors + n % p->inflight * stride;
}

void pair_tell(const struct pair *p, const void *data, size_t bytes)
{
	if (send(p->fd, data, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
		pair_die("the other process is gone");
}

void pair_hear(const struct pair *p, void *data, size_t bytes)
{
	if (recv(p->fd, data, bytes, MSG_WAITALL) != (ssize_t)bytes)
		pair_die("the other process is gone");
}

static void meet(const struct pair *p)
{
	char byte = 0;

	pair_tell(p, &byte, 1);
	pair_hear(p, &byte, 1);
}

/* ---- measuring one size ---- */

static void count_message(const struct pair *p, struct timing *t, uint64_t n)
{
	if (n + 1 == p->warmup) {
		t->start_ns = bench_now_ns();
		t->start_cpu_ns = bench_cpu_ns();
	}
	if (n + 1 == p->total) {
		t->end_ns = bench_now_ns();
		t->cpu_ns = bench_cpu_ns() - t->start_cpu_ns;
	}
}

static void finish_message(const struct pair_ops *ops, struct pair *p, struct timing *t,
	const uint64_t *posted_ns, uint64_t n)
{
	ops->await(p, n);
	if (p->reply_each && n >= p->warmup)
		t->trips_ns[n - p->warmup] = bench_now_ns() - posted_ns[n % p->inflight];
	count_message(p, t, n);
}

/* Waits until the time comes, in the way in which the ends wait. */
static void wait_until(const struct pair *p, uint64_t at_ns)
{
	struct timespec at = {.tv_sec = (time_t)(at_ns / 1000000000u),
		.tv_nsec = (long)(at_ns % 1000000000u)};

	while (bench_now_ns() < at_ns) {
		if (p->poll)
			pair_relax();
		else
			clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
	}
}

/* Returns the time from which the round trip of message n counts. With `every_ns` that is
 * when it was due, even if the answers before it came too late to send it then: a client
 * that waits for slow answers would otherwise leave out what its users wait for (coordinated
 * omission). */
static uint64_t start_of(const struct pair *p, const struct timing *t, uint64_t n)
{
	uint64_t due_ns = t->start_ns + (n - p->warmup) * p->every_ns;

	if (!p->every_ns || n < p->warmup)
		return bench_now_ns();
	wait_until(p, due_ns);
	return due_ns;
}

/* Sends all messages of one size. The measurement starts when the warm-up is complete, so
 * that none of its messages is in flight. */
static void send_all(const struct pair_ops *ops, struct pair *p, struct timing *t)
{
	uint64_t *posted_ns = calloc(p->inflight, sizeof(*posted_ns));
	uint64_t done = 0;

	for (uint64_t n = 0; n < p->total; n++) {
		while (n - done == p->inflight || (n == p->warmup && done < n))
			finish_message(ops, p, t, posted_ns, done++);
		if (p->rewrite && n >= p->inflight)
			bench_fill(pair_tensor(p, n), p->size, n);
		posted_ns[n % p->inflight] = start_of(p, t, n);
		ops->post(p, n);
	}
	while (done < p->total)
		finish_message(ops, p, t, posted_ns, done++);
	free(posted_ns);
}

static void receive_all(const struct pair_ops *ops, struct pair *p, struct timing *t)
{
	for (uint64_t n = 0; n < p->total; n++) {
		ops->receive(p, n);
		if (n < p->inflight && !bench_holds(pair_tensor(p, n), p->size, n))
			pair_die("message %llu of %zu bytes arrived with other contents",
				(unsigned long long)n, p->size);
		count_message(p, t, n);
		ops->answer(p, n);
	}
}

static void print(const struct pair_ops *ops, const struct plan *plan,
	const struct pair *p, struct timing *t, uint64_t cpu_ns)
{
	uint64_t rounds = p->total - p->warmup;
	double seconds = (double)(t->end_ns - t->start_ns) / 1e9;
	double gb = (double)p->size * (double)rounds / 1e9;

	printf("{\"bench\": \"%s\", \"peer\": \"%s\", \"variant\": \"%s\", \"version\": "
	       "\"%s\", \"wait\": \"%s\", \"size\": %zu, \"inflight\": %u, \"rounds\": "
	       "%llu, \"pinned\": %s",
		plan->test, ops->name, p->variant, ops->version(),
		p->poll ? "poll" : "sleep", p->size, p->inflight,
		(unsigned long long)rounds, plan->pin ? "true" : "false");
	if (p->every_ns)
		printf(", \"offered_per_s\": %llu",
			(unsigned long long)(1000000000u / p->every_ns));
	if (p->reply_each)
		printf(", \"p50_us\": %.3f, \"p99_us\": %.3f, \"p999_us\": %.3f",
			(double)bench_percentile_ns(t->trips_ns, rounds, 0.5) / 1e3,
			(double)bench_percentile_ns(t->trips_ns, rounds, 0.99) / 1e3,
			(double)bench_percentile_ns(t->trips_ns, rounds, 0.999) / 1e3);
	printf(", \"gb_per_s\": %.6f, \"msgs_per_s\": %.1f, \"cpu_s_per_gb\": %.6f}\n",
		gb / seconds, (double)rounds / seconds,
		(double)(t->cpu_ns + cpu_ns) / 1e9 / gb);
	fflush(stdout);
}

static void run_size(const struct pair_ops *ops, const struct plan *plan, struct pair *p,
	uint64_t size, uint64_t rounds)
{
	struct timing t = {.trips_ns = calloc(rounds, sizeof(uint64_t))};
	uint64_t other_cpu_ns;

	if (!t.trips_ns)
		pair_die("no memory for %llu rounds", (unsigned long long)rounds);
	p->size = size;
	/* uses each tensor at least once */
	p->warmup = p->inflight < 2 ? 2 : p->inflight;
	if (p->warmup < rounds / 20)
		p->warmup = rounds / 20;
	p->total = p->warmup + rounds;
	for (unsigned i = 0; p->sender && i < p->inflight; i++)
		bench_fill(pair_tensor(p, i), size, i);
	if (ops->begin)
		ops->begin(p);
	alarm(LIMIT_S);
	meet(p);
	(p->sender ? send_all : receive_all)(ops, p, &t);
	if (p->sender) {
		pair_hear(p, &other_cpu_ns, sizeof(other_cpu_ns));
		print(ops, plan, p, &t, other_cpu_ns);
	} else {
		pair_tell(p, &t.cpu_ns, sizeof(t.cpu_ns));
	}
	free(t.trips_ns);
}

static void run_end(struct pair *p, void *arg)
{
	const struct run *run = arg;
	const struct pair_ops *ops = run->ops;
	const struct plan *plan = &run->plan;

	for (unsigned i = 0; i < plan->size_count; i++) {
		if (plan->sizes[i] > p->size_max)
			p->size_max = plan->sizes[i];
	}
	if (plan->pin && !bench_pin(p->sender ? 0 : 1))
		pair_die("there are fewer than two cores to pin the two ends to");
	p->tensors = bench_memory((p->size_max + 63) / 64 * 64 * p->inflight, false);
	alarm(LIMIT_S);
	ops->open(p);
	for (unsigned i = 0; i < plan->size_count; i++)
		run_size(ops, plan, p, plan->sizes[i], plan->rounds[i]);
	ends_over(); /* if the receiver exits before it gets to meet(), meet() fails here */
	meet(p);
	if (ops->close)
		ops->close(p);
}

/* ---- command line ---- */

/* True if `name` is in the comma-separated `list`. */
static bool listed(const char *list, const char *name)
{
	size_t length = strlen(name);

	for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
		if (strncmp(p, name, length) == 0 && (!p[length] || p[length] == ','))
			return true;
	}
	return false;
}

static void usage(const struct pair_ops *ops)
{
	fprintf(stderr,
		"usage: %s --test lat|bw|rate --size N,... --rounds M,... [--inflight K] "
		"[--variant V] [--wait W] [--rewrite] [--pin no] [--offer R]\n"
		"variants: %s; waits: %s\n",
		program_invocation_short_name, *ops->variants ? ops->variants : "none",
		ops->waits);
	if (!ops->rank)
		fprintf(stderr,
			"on two hosts: --serve HOST:PORT alone on one of them, and "
			"--connect HOST:PORT beside the other options on the other\n");
	exit(2);
}

static void parse(int argc, char **argv, const struct pair_ops *ops, struct plan *plan,
	struct pair *p)
{
	static const struct option longs[] = {{"test", 1, 0, 't'}, {"size", 1, 0, 's'},
		{"rounds", 1, 0, 'r'}, {"inflight", 1, 0, 'k'}, {"variant", 1, 0, 'v'},
		{"wait", 1, 0, 'w'}, {"rewrite", 0, 0, 'R'}, {"pin", 1, 0, 'p'},
		{"connect", 1, 0, 'c'}, {"offer", 1, 0, 'o'}, {0}};
	unsigned rounds_count = 0, offer = 0;
	const char *wait = NULL;
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (c) {
		case 't':
			plan->test = optarg;
			break;
		case 's':
			plan->size_count = bench_sizes(optarg, plan->sizes, SIZES_MAX);
			break;
		case 'r':
			rounds_count = bench_sizes(optarg, plan->rounds, SIZES_MAX);
			break;
		case 'k':
			p->inflight = (unsigned)atoi(optarg);
			break;
		case 'v':
			p->variant = optarg;
			break;
		case 'w':
			wait = optarg;
			break;
		case 'R':
			p->rewrite = true;
			break;
		case 'o':
			offer = (unsigned)atoi(optarg);
			p->every_ns = offer ? 1000000000u / offer : 0;
			break;
		case 'p':
			plan->pin = strcmp(optarg, "no") != 0;
			break;
		case 'c':
			if (ops->rank)
				usage(ops);
			plan->connect = optarg;
			break;
		default:
			usage(ops);
		}
	}
	if (!plan->test || !listed("lat,bw,rate", plan->test) || !plan->size_count ||
		rounds_count != plan->size_count || !p->inflight ||
		!listed(ops->variants, p->variant) || !wait ||
		!listed(ops->waits, wait) ||
		(p->every_ns && (strcmp(plan->test, "lat") != 0 || p->inflight != 1)))
		usage(ops);
	p->reply_each = strcmp(plan->test, "rate") != 0;
	p->poll = strcmp(wait, "poll") == 0;
}

int pair_main(int argc, char **argv, const struct pair_ops *ops)
{
	struct run run = {.ops = ops, .plan = {.pin = true}};
	struct pair p = {
		.variant = "", .inflight = 1, .host = "127.0.0.1", .local = "127.0.0.1"};
	bool serves = argc == 3 && strcmp(argv[1], "--serve") == 0;

	if (serves && !ops->rank)
		argv = ends_serve(&p, argv[2], argv[0], &argc);
	parse(argc, argv, ops, &run.plan, &p);
	if (!serves && !run.plan.connect && !ops->rank)
		return ends_fork(&p, run_end, &run);
	if (ops->rank)
		ends_rank(&p, ops->rank());
	else if (!serves)
		ends_connect(&p, run.plan.connect, argc, argv);
	run_end(&p, &run);
	return 0;
}
