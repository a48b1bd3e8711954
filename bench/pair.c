/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See pair.h. This file measures other libraries as `tern bench` (tools/bench_pair.c) measures
 * Tern: with the same warm-up and rounds, and with the same clock readings and figures.
 *
 * ends.c starts the two ends. One connection serves all sizes. Between sizes both ends
 * synchronise over the socket, so that no message of one size is counted with the next.
 */
#include "bench/pair.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/ends.h"
#include "bench/two.h"

#define SIZES_MAX    256
#define STEPS_WARMUP 3u
#define THREADS_MAX  64u
#define COUNTS_MAX   8u
/* Limit for opening the connection, and for each size, in s. A size takes seconds; if it takes
 * longer, something is broken. */
#define LIMIT_S 120

struct plan {
	const char *test;
	/* Size of the messages, and number of rounds, of each measurement. If steps are
	 * measured, `sizes` has the sizes of one step's messages, and `rounds` one number. */
	uint64_t sizes[SIZES_MAX], rounds[SIZES_MAX];
	unsigned size_count;
	/* The numbers of threads that are measured one after the other. */
	uint64_t threads[COUNTS_MAX];
	unsigned threads_count; /* 0: each end has only its main thread */
	bool pin;
	const char *connect; /* address of a receiver on another host; NULL: fork one */
};

struct run {
	const struct pair_ops *ops;
	struct plan plan;
	/* All threads of this end wait here before each size, and again when their warm-up has
	 * ended. NULL: there is only the main thread. */
	pthread_barrier_t *gate;
	/* Sockets that join thread i of one end with thread i of the other. */
	int fds[THREADS_MAX][2];
};

struct pair_slot {
	size_t bytes, offset;
};

struct span {
	uint64_t start, end;
};

struct timing {
	struct span time, cpu;   /* in ns; `cpu`: processor time of the process */
	struct span other_cpu;   /* at the sender: `cpu` of the receiver */
	struct span ticks;       /* `time` in ticks of the processor */
	bool in_ticks;           /* trip_clock() counts ticks, and not ns */
	uint64_t *trips;         /* by trip_clock() */
	pthread_barrier_t *gate; /* the gate of struct run */
};

bool pair_answered(const struct pair *p, uint64_t n)
{
	return p->reply_each || n == p->warmup - 1 || n == p->total - 1 ||
	       (p->in_steps && (n + 1) % p->inflight == 0);
}

size_t pair_bytes(const struct pair *p, uint64_t n)
{
	return p->slots[pair_slot(p, n)].bytes;
}

unsigned char *pair_tensor(const struct pair *p, uint64_t n)
{
	return p->tensors + p->slots[pair_slot(p, n)].offset;
}

unsigned char *pair_reply(const struct pair *p, uint64_t n)
{
	return pair_tensor(p, n) + p->replies_at;
}

void pair_tell(const struct pair *p, const void *data, size_t bytes)
{
	two_tell(p->fd, data, bytes);
}

void pair_hear(const struct pair *p, void *data, size_t bytes)
{
	two_hear(p->fd, data, bytes);
}

/* True if pair_hear() has something to read. */
static bool is_told(const struct pair *p)
{
	struct pollfd fd = {.fd = p->fd, .events = POLLIN};

	return poll(&fd, 1, 0) > 0;
}

static void meet(const struct pair *p)
{
	char byte = 0;

	pair_tell(p, &byte, 1);
	pair_hear(p, &byte, 1);
}

/* ---- where the tensors are ---- */

/* Places the tensors of all slots one after the other. `sizes` has one size for all slots, or in
 * steps one for each. Returns how many bytes of memory the tensors take. */
static size_t lay_out(struct pair *p, const uint64_t *sizes)
{
	size_t offset = 0;

	for (unsigned i = 0; i < p->inflight; i++) {
		p->slots[i].bytes = sizes[p->in_steps ? i : 0];
		p->slots[i].offset = offset;
		offset += (p->slots[i].bytes + 63) / 64 * 64;
	}
	return offset;
}

static void get_tensors(
	const struct pair_ops *ops, const struct plan *plan, struct pair *p)
{
	size_t bytes = 0;

	p->slots = calloc(p->inflight, sizeof(*p->slots));
	if (!p->slots)
		pair_die("no memory for %u slots", p->inflight);
	for (unsigned i = 0; i < plan->size_count; i++) {
		size_t needed = lay_out(p, p->in_steps ? plan->sizes : &plan->sizes[i]);

		if (needed > bytes)
			bytes = needed;
		if (plan->sizes[i] > p->size_max)
			p->size_max = plan->sizes[i];
	}
	p->replies_at = bytes;
	if (p->both_ways)
		bytes *= 2;
	p->tensors = ops->memory ? ops->memory(p, bytes) : bench_memory(bytes, false);
}

/* ---- measuring one size, or one kind of step ---- */

/* Returns the number from which the contents of message n are made. It differs from thread
 * to thread, so the check of contents also finds a message that came to the wrong thread. */
static uint64_t message_number(const struct pair *p, uint64_t n)
{
	return n + ((uint64_t)p->thread << 32);
}

/* Returns the number from which the contents of answer n are made. It is not that of its
 * message, so a message that is sent back is no right answer. */
static uint64_t reply_number(const struct pair *p, uint64_t n)
{
	return ~message_number(p, n);
}

/* Exits with an error line if message or answer n, one of the first `inflight`, does not have the
 * contents that are made from `number`. Later ones are not checked. */
static void check(const struct pair *p, const char *what, const unsigned char *tensor,
	uint64_t n, uint64_t number)
{
	if (n < p->inflight && !bench_holds(tensor, pair_bytes(p, n), number))
		pair_die("%s %llu of %zu bytes arrived with other contents", what,
			(unsigned long long)n, pair_bytes(p, n));
}

/* Returns how many lines of figures there are: one for each size, or one for steps. */
static unsigned points_of(const struct plan *plan, const struct pair *p)
{
	return p->in_steps ? 1 : plan->size_count;
}

/* Returns how many messages are measured as one round. */
static unsigned per_round(const struct pair *p)
{
	return p->in_steps ? p->inflight : 1;
}

static void wait_at(pthread_barrier_t *gate)
{
	if (gate)
		pthread_barrier_wait(gate);
}

/* The time from which, and to which, a round trip counts, in ticks of the processor or in ns.
 * tools/bench_end.c, which says why, does the same. */
static uint64_t trip_clock(const struct timing *t)
{
	return t->in_ticks ? tern_clock_ticks() : bench_now_ns();
}

/* Returns how many us a unit of trip_clock() takes, found over the whole measurement. */
static double trip_unit_us(const struct timing *t)
{
	return t->in_ticks ? (double)(t->time.end - t->time.start) / 1e3 /
				     (double)(t->ticks.end - t->ticks.start)
			   : 1e-3;
}

static void count_message(const struct pair *p, struct timing *t, uint64_t n)
{
	if (n + 1 == p->warmup) {
		wait_at(t->gate);
		t->time.start = bench_now_ns();
		t->ticks.start = tern_clock_ticks();
		t->cpu.start = bench_cpu_ns();
	}
	if (n + 1 == p->total) {
		t->time.end = bench_now_ns();
		t->ticks.end = tern_clock_ticks();
		t->cpu.end = bench_cpu_ns();
	}
}

static void finish_message(const struct pair_ops *ops, struct pair *p, struct timing *t,
	const uint64_t *posted, uint64_t n)
{
	unsigned per = per_round(p);

	ops->await(p, n);
	if ((p->reply_each || (p->in_steps && (n + 1) % per == 0)) && n >= p->warmup) {
		uint64_t now = trip_clock(t); /* before the slow divisions */

		t->trips[(n - p->warmup) / per] = now - posted[pair_slot(p, n + 1 - per)];
	}
	if (p->both_ways)
		check(p, "answer", pair_reply(p, n), n, reply_number(p, n));
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

/* Returns the time, by trip_clock(), from which the round trip of message n counts. With `every_ns`
 * that is the time at which message n is due; waits until then. It is the same if the answers before
 * came too late to send message n in time: a client that waits for slow answers would otherwise
 * leave out what its users wait for (coordinated omission). */
static uint64_t start_of(const struct pair *p, const struct timing *t, uint64_t n)
{
	uint64_t due_ns = t->time.start + (n - p->warmup) * p->every_ns;

	if (!p->every_ns || n < p->warmup)
		return trip_clock(t);
	wait_until(p, due_ns);
	return due_ns;
}

/* Sends all messages of one size. The measurement starts when the warm-up is complete, so
 * that none of its messages is in flight. */
static void send_all(const struct pair_ops *ops, struct pair *p, struct timing *t)
{
	uint64_t *posted = calloc(p->inflight, sizeof(*posted));
	uint64_t done = 0;

	for (uint64_t n = 0; n < p->total; n++) {
		while (n - done == p->inflight || (n == p->warmup && done < n))
			finish_message(ops, p, t, posted, done++);
		while (p->in_steps && n % p->inflight == 0 && done < n)
			finish_message(ops, p, t, posted, done++);
		if (p->rewrite && n >= p->inflight)
			bench_fill(pair_tensor(p, n), pair_bytes(p, n),
				message_number(p, n));
		posted[pair_slot(p, n)] = start_of(p, t, n);
		ops->post(p, n);
	}
	while (done < p->total)
		finish_message(ops, p, t, posted, done++);
	free(posted);
}

static void receive_all(const struct pair_ops *ops, struct pair *p, struct timing *t)
{
	for (uint64_t n = 0; n < p->total; n++) {
		ops->receive(p, n);
		check(p, "message", pair_tensor(p, n), n, message_number(p, n));
		ops->answer(p, n);
		if (ops->flush && (n + 1 == p->warmup || n + 1 == p->total))
			ops->flush(p);
		count_message(p, t, n);
	}
}

/* Returns how many rounds of the present size each thread measures. */
static uint64_t rounds_of(const struct pair *p)
{
	return (p->total - p->warmup) / per_round(p);
}

static double seconds_of(struct span span)
{
	return (double)(span.end - span.start) / 1e9;
}

static void print(const struct pair_ops *ops, const struct plan *plan,
	const struct pair *p, const struct timing *t)
{
	uint64_t rounds = rounds_of(p) * (p->threads ? p->threads : 1);
	double messages = (double)(rounds * per_round(p)), seconds = seconds_of(t->time);
	double gb = (double)p->size * (double)rounds * (p->both_ways ? 2 : 1) / 1e9;
	double cpu_s = seconds_of(t->cpu) + seconds_of(t->other_cpu);
	double unit_us = trip_unit_us(t);

	printf("{\"bench\": \"%s\", \"peer\": \"%s\", \"variant\": \"%s\", \"version\": "
	       "\"%s\", \"wait\": \"%s\", \"size\": %zu, \"inflight\": %u, \"rounds\": "
	       "%llu, \"pinned\": %s",
		plan->test, ops->name, p->variant, ops->version(),
		p->poll ? "poll" : "sleep", p->size, p->inflight,
		(unsigned long long)rounds_of(p), plan->pin ? "true" : "false");
	if (p->threads)
		printf(", \"threads\": %u", p->threads);
	if (p->every_ns)
		printf(", \"offered_per_s\": %llu",
			(unsigned long long)(1000000000u / p->every_ns));
	if (p->reply_each || p->in_steps)
		printf(", \"p50_us\": %.3f, \"p99_us\": %.3f, \"p999_us\": %.3f",
			(double)bench_percentile(t->trips, rounds, 0.5) * unit_us,
			(double)bench_percentile(t->trips, rounds, 0.99) * unit_us,
			(double)bench_percentile(t->trips, rounds, 0.999) * unit_us);
	printf(", \"gb_per_s\": %.6f, \"msgs_per_s\": %.1f, \"cpu_s_per_gb\": %.6f, "
	       "\"cpu_per_message_us\": %.4f}\n",
		gb / seconds, messages / seconds, cpu_s / gb, cpu_s * 1e6 / messages);
	fflush(stdout);
}

/* Fills the tensors that this end sends. In both directions the sender also clears the tensors of
 * the answers, which still have the answers of the size before. */
static void fill_first(const struct pair *p)
{
	for (unsigned i = 0; i < p->inflight; i++) {
		if (p->sender)
			bench_fill(pair_tensor(p, i), pair_bytes(p, i),
				message_number(p, i));
		if (p->sender && p->both_ways)
			memset(pair_reply(p, i), 0, pair_bytes(p, i));
		if (!p->sender && p->both_ways)
			bench_fill(
				pair_reply(p, i), pair_bytes(p, i), reply_number(p, i));
	}
}

/* Prepares `p` for measurement i of the plan: messages of size plan->sizes[i] or, with
 * in_steps (pair.h), steps of several messages; i is then 0. */
static void set_size(const struct plan *plan, struct pair *p, unsigned i)
{
	const uint64_t *sizes = &plan->sizes[i];
	uint64_t rounds = plan->rounds[i];

	lay_out(p, sizes);
	p->size = p->in_steps ? 0 : sizes[0];
	for (unsigned k = 0; p->in_steps && k < p->inflight; k++)
		p->size += sizes[k];
	/* uses each tensor at least once */
	p->warmup = p->inflight < 2 ? 2 : p->inflight;
	if (p->in_steps)
		p->warmup = STEPS_WARMUP * p->inflight;
	else if (p->warmup < rounds / 20)
		p->warmup = rounds / 20;
	p->total = p->warmup + rounds * per_round(p);
}

static void run_size(const struct run *run, struct pair *p, unsigned i, struct timing *t)
{
	const struct pair_ops *ops = run->ops;

	set_size(&run->plan, p, i);
	t->gate = run->gate;
	t->in_ticks = !p->every_ns && tern_clock_ticks_are_steady();
	t->trips = calloc(rounds_of(p), sizeof(uint64_t));
	if (!t->trips)
		pair_die("no memory for %llu rounds", (unsigned long long)rounds_of(p));
	fill_first(p);
	if (ops->begin)
		ops->begin(p);
	alarm(LIMIT_S);
	wait_at(t->gate);
	meet(p);
	(p->sender ? send_all : receive_all)(ops, p, t);
	if (p->sender) {
		while (ops->progress && !is_told(p))
			ops->progress(p);
		pair_hear(p, &t->other_cpu, sizeof(t->other_cpu));
	} else {
		pair_tell(p, &t->cpu, sizeof(t->cpu));
	}
}

/* Opens one connection and measures all sizes on it. The sender prints the figures; with
 * --threads print_all() does. */
static void run_sizes(const struct run *run, struct pair *p, struct timing *timings)
{
	const struct plan *plan = &run->plan;

	get_tensors(run->ops, plan, p);
	alarm(LIMIT_S);
	run->ops->open(p);
	for (unsigned i = 0; i < points_of(plan, p); i++) {
		run_size(run, p, i, &timings[i]);
		if (run->gate)
			continue;
		if (p->sender)
			print(run->ops, plan, p, &timings[i]);
		free(timings[i].trips);
	}
}

static void run_end(struct pair *p, void *arg)
{
	static struct timing timings[SIZES_MAX];
	const struct run *run = arg;

	if (run->plan.pin && !bench_pin(p->sender ? 0 : 1))
		pair_die("there are fewer than two cores to pin the two ends to");
	run_sizes(run, p, timings);
	/* The sender needs the receiver only for meet(), which fails if the receiver exits early. */
	ends_over();
	meet(p);
	if (run->ops->close)
		run->ops->close(p);
}

/* ---- several threads ---- */

struct thread {
	pthread_t id;
	const struct run *run;
	struct pair p;
	struct timing timings[SIZES_MAX];
};

static void *run_thread(void *arg)
{
	struct thread *thread = arg;

	run_sizes(thread->run, &thread->p, thread->timings);
	return NULL;
}

static struct span joined(struct span a, struct span b)
{
	return (struct span){
		a.start < b.start ? a.start : b.start, a.end > b.end ? a.end : b.end};
}

/* Prints the figures of the i-th size, of all threads together: what they have sent, over the
 * time from the start of the first thread to the end of the last one. */
static void print_all(
	const struct run *run, struct thread *threads, unsigned count, unsigned i)
{
	struct pair *p = &threads[0].p;
	struct timing all = threads[0].timings[i];

	set_size(&run->plan, p, i);
	all.trips = calloc(count * rounds_of(p), sizeof(uint64_t));
	if (!all.trips)
		pair_die("no memory for the figures of %u threads", count);
	for (unsigned k = 0; k < count; k++) {
		const struct timing *t = &threads[k].timings[i];

		all.time = joined(all.time, t->time);
		all.ticks = joined(all.ticks, t->ticks);
		all.cpu = joined(all.cpu, t->cpu);
		all.other_cpu = joined(all.other_cpu, t->other_cpu);
		memcpy(all.trips + k * rounds_of(p), t->trips,
			rounds_of(p) * sizeof(uint64_t));
	}
	print(run->ops, &run->plan, p, &all);
	free(all.trips);
}

/* The processes end right after this, so no thread closes its connection. */
static void run_threads(struct pair *p, void *arg)
{
	struct thread *threads = calloc(p->threads, sizeof(*threads));
	struct run *run = arg;
	pthread_barrier_t gate;

	if (!threads || pthread_barrier_init(&gate, NULL, p->threads) != 0)
		pair_die("no memory for %u threads", p->threads);
	run->gate = &gate;
	for (unsigned i = 0; i < p->threads; i++) {
		struct thread *thread = &threads[i];

		close(run->fds[i][p->sender ? 1 : 0]);
		thread->run = run;
		thread->p = *p;
		thread->p.thread = i;
		thread->p.fd = run->fds[i][p->sender ? 0 : 1];
		if (pthread_create(&thread->id, NULL, run_thread, thread) != 0)
			pair_die("thread %u cannot be started", i);
	}
	for (unsigned i = 0; i < p->threads; i++)
		pthread_join(threads[i].id, NULL);
	for (unsigned i = 0; p->sender && i < points_of(&run->plan, p); i++)
		print_all(run, threads, p->threads, i);
	ends_over();
	meet(p);
}

static int fork_threads(const struct run *plan, const struct pair *pair, unsigned count)
{
	struct run run = *plan;
	struct pair p = *pair;

	p.threads = count;
	for (unsigned i = 0; i < count; i++) {
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, run.fds[i]) < 0)
			pair_die("socketpair: %s", strerror(errno));
	}
	return ends_fork(&p, run_threads, &run);
}

/* Measures each number of threads in new processes, since a process in which a library has
 * started threads cannot be forked. Returns the exit code. */
static int run_counts(const struct run *run, const struct pair *p)
{
	for (unsigned i = 0; i < run->plan.threads_count; i++) {
		int status;
		pid_t pid = fork();

		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			_exit(fork_threads(run, p, (unsigned)run->plan.threads[i]));
		}
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
			return 1;
	}
	return 0;
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
		"usage: %s --test lat|bw|rate%s --size N,... --rounds M,... "
		"[--inflight K] [--variant V] [--wait W] [--rewrite] "
		"[--pin no] [--offer R]\n"
		"or, steps of K tensors with a size each: --test step --size N1,...,NK "
		"--rounds M --inflight K\n"
		"variants: %s; waits: %s\n",
		program_invocation_short_name, ops->both_ways ? "|both" : "",
		*ops->variants ? ops->variants : "none", ops->waits);
	if (ops->threads)
		fprintf(stderr,
			"several threads at each end: --threads N,..., each number from "
			"1 to %u; not with --test both, --offer or --connect\n",
			THREADS_MAX);
	if (!ops->rank)
		fprintf(stderr,
			"on two hosts: --serve HOST:PORT alone on one of them, and "
			"--connect HOST:PORT beside the other options on the other\n");
	exit(2);
}

/* False if --threads is wrong. It is refused with --test both, which could wait for ever: a
 * receiver that flushes its answers needs a sender that drives its library, but a thread of the
 * sender that has ended its warm-up waits for the sender's other threads. */
static bool threads_are_right(
	const struct pair_ops *ops, const struct plan *plan, const struct pair *p)
{
	for (unsigned i = 0; i < plan->threads_count; i++) {
		if (plan->threads[i] < 1 || plan->threads[i] > THREADS_MAX)
			return false;
	}
	return !plan->threads_count ||
	       (ops->threads && !plan->connect && !p->both_ways && !p->every_ns);
}

static void parse(int argc, char **argv, const struct pair_ops *ops, struct plan *plan,
	struct pair *p)
{
	static const struct option longs[] = {{"test", 1, 0, 't'}, {"size", 1, 0, 's'},
		{"rounds", 1, 0, 'r'}, {"inflight", 1, 0, 'k'}, {"variant", 1, 0, 'v'},
		{"wait", 1, 0, 'w'}, {"rewrite", 0, 0, 'R'}, {"pin", 1, 0, 'p'},
		{"connect", 1, 0, 'c'}, {"offer", 1, 0, 'o'}, {"threads", 1, 0, 'T'},
		{0}};
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
		case 'T':
			plan->threads_count =
				bench_sizes(optarg, plan->threads, COUNTS_MAX);
			plan->pin = false;
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
	p->in_steps = plan->test && strcmp(plan->test, "step") == 0;
	p->both_ways = plan->test && strcmp(plan->test, "both") == 0;
	if (!plan->test || !listed("lat,bw,rate,step,both", plan->test) ||
		(p->both_ways && !ops->both_ways) || !plan->size_count ||
		rounds_count != (p->in_steps ? 1 : plan->size_count) || !p->inflight ||
		(p->in_steps && p->inflight != plan->size_count) ||
		!listed(ops->variants, p->variant) || !wait ||
		!listed(ops->waits, wait) || !threads_are_right(ops, plan, p) ||
		(p->every_ns && (strcmp(plan->test, "lat") != 0 || p->inflight != 1)))
		usage(ops);
	p->reply_each = strcmp(plan->test, "rate") != 0 && !p->in_steps;
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
	if (run.plan.threads_count && !serves)
		return run_counts(&run, &p);
	if (!serves && !run.plan.connect && !ops->rank)
		return ends_fork(&p, run_end, &run);
	if (ops->rank)
		ends_rank(&p, ops->rank());
	else if (!serves)
		ends_connect(&p, run.plan.connect, argc, argv);
	run_end(&p, &run);
	return 0;
}
