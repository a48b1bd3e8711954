/* SPDX-License-Identifier: Apache-2.0 */
/* See ps.h. There may be more processes than cores, so no process spins or is pinned. */
#include "bench/ps.h"

#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/pair.h"

#define WARMUP  2u
#define CHECKS  64u
#define LIMIT_S 120

struct ps_shared {
	pthread_barrier_t workers;
	atomic_int ports[PS_MOST];
	atomic_uint_fast64_t slowest_ns; /* time of the slowest worker */
};

size_t ps_first(const struct ps *p, unsigned server)
{
	return p->count / p->servers * server +
	       (server == p->servers ? p->count % p->servers : 0);
}

void ps_tell_port(struct ps *p, int port)
{
	atomic_store(&p->shared->ports[p->index], port);
}

int ps_port(const struct ps *p, unsigned server)
{
	while (!atomic_load(&p->shared->ports[server]))
		usleep(1000);
	return atomic_load(&p->shared->ports[server]);
}

void ps_add(float *restrict to, const float *restrict from, size_t count)
{
	for (size_t i = 0; i < count; i++)
		to[i] += from[i];
}

void ps_apply(
	const struct ps *p, float *restrict params, float *restrict sums, size_t count)
{
	float rate = PS_RATE / (float)p->workers;

	for (size_t i = 0; i < count; i++) {
		params[i] -= rate * sums[i];
		sums[i] = 0;
	}
}

static float gradient_at(size_t i)
{
	return (float)(i % 8) / 8;
}

static void check(const struct ps *p, unsigned rounds_done)
{
	for (size_t k = 0; k < CHECKS; k++) {
		size_t i = p->count / CHECKS * k + k % 8;
		float want = -PS_RATE * (float)rounds_done * gradient_at(i);

		if (i < p->count && p->params[i] != want)
			pair_die("parameter %zu is %g after %u rounds, not %g", i,
				(double)p->params[i], rounds_done, (double)want);
	}
}

static void be_worker(const struct ps_ops *ops, struct ps *p)
{
	uint64_t start_ns = 0, took_ns, seen = 0;

	p->gradient = bench_memory(p->count * sizeof(float), false);
	p->params = bench_memory(p->count * sizeof(float), false);
	for (size_t i = 0; i < p->count; i++)
		p->gradient[i] = gradient_at(i);
	ops->join(p);
	for (unsigned r = 0; r < p->rounds; r++) {
		if (r == WARMUP) {
			pthread_barrier_wait(&p->shared->workers);
			start_ns = bench_now_ns();
		}
		ops->round(p);
		check(p, r + 1);
	}
	took_ns = bench_now_ns() - start_ns;
	while (seen < took_ns &&
		!atomic_compare_exchange_weak(&p->shared->slowest_ns, &seen, took_ns))
		;
}

static pid_t start(const struct ps_ops *ops, struct ps *p, unsigned index, bool server)
{
	pid_t pid = fork();

	if (pid < 0)
		pair_die("fork failed");
	if (pid > 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(LIMIT_S);
	p->index = index;
	if (server)
		ops->serve(p);
	else
		be_worker(ops, p);
	_exit(0);
}

/* Waits for the workers to exit. Servers may still run; they are killed when this process
 * ends. If a worker or a server fails, this process ends, and all with it, because the others
 * would wait for ever. */
static void wait_for_workers(const pid_t *workers, unsigned count)
{
	for (unsigned left = count; left;) {
		int status;
		pid_t pid = wait(&status);

		if (pid < 0 || status != 0)
			pair_die("a process ended with status %x", (unsigned)status);
		for (unsigned i = 0; i < count; i++)
			left -= workers[i] == pid;
	}
}

static void parse(int argc, char **argv, const struct ps_ops *ops, struct ps *p)
{
	static const struct option longs[] = {{"bytes", 1, 0, 'b'},
		{"servers", 1, 0, 's'}, {"workers", 1, 0, 'w'}, {"rounds", 1, 0, 'r'},
		{"variant", 1, 0, 'v'}, {0}};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 'b')
			p->count = strtoull(optarg, NULL, 10) / sizeof(float);
		else if (c == 's')
			p->servers = (unsigned)atoi(optarg);
		else if (c == 'w')
			p->workers = (unsigned)atoi(optarg);
		else if (c == 'r')
			p->rounds = (unsigned)atoi(optarg);
		else if (c == 'v')
			p->variant = optarg;
		else
			exit(2);
	}
	if (!p->count || !p->rounds || !p->servers || p->servers > PS_MOST ||
		!p->workers || p->workers > PS_MOST || !strstr(ops->variants, p->variant))
		pair_die("usage: --bytes N --servers S --workers W --rounds R --variant "
			 "V; "
			 "variants: %s",
			ops->variants);
}

int ps_main(int argc, char **argv, const struct ps_ops *ops)
{
	struct ps p = {.variant = ""};
	pthread_barrierattr_t attr;
	pid_t workers[PS_MOST];
	unsigned rounds;
	double ms;

	parse(argc, argv, ops, &p);
	rounds = p.rounds;
	p.rounds += WARMUP;
	p.shared = bench_memory(sizeof(*p.shared), true);
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&p.shared->workers, &attr, p.workers);
	if (ops->prepare)
		ops->prepare(&p);
	for (unsigned i = 0; i < p.servers; i++)
		start(ops, &p, i, true);
	for (unsigned i = 0; i < p.workers; i++)
		workers[i] = start(ops, &p, i, false);
	wait_for_workers(workers, p.workers);
	ms = (double)atomic_load(&p.shared->slowest_ns) / 1e6 / rounds;
	printf("{\"peer\": \"%s\", \"variant\": \"%s\", \"version\": \"%s\", \"wait\": "
	       "\"%s\", "
	       "\"bytes\": %zu, \"workers\": %u, \"servers\": %u, \"rounds\": %u, "
	       "\"ms_per_round\": %.3f}\n",
		ops->name, p.variant, ops->version(), ops->wait, p.count * sizeof(float),
		p.workers, p.servers, rounds, ms);
	return 0;
}
