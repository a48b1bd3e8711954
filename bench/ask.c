/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/ask.h"

#include <poll.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/pair.h"
#include "bench/two.h"

#define COUNTS_MAX 8
#define TRIPS      1000u
/* With MANY connections or more, a program that has quiet_ns first rests that long, and
 * the processor time of its idle connections is measured for MANY_IDLE_NS. In all other
 * cases it is measured for IDLE_NS, without a rest. */
#define MANY         1000u
#define IDLE_NS      1000000000ull
#define MANY_IDLE_NS 5000000000ull

enum question { MEMORY, CPU };

struct result {
	unsigned connections;
	/* of the first connection: from connect() to the first answer */
	uint64_t first_byte_ns;
	/* of the other connections, all started at once: until the last has its first answer */
	uint64_t all_up_ns;
	/* memory that all connections added, sum of both processes */
	uint64_t memory_bytes;
	uint64_t idle_ns, idle_cpu_ns;
	/* Median round trip on the first connection, while the others are idle. */
	uint64_t trip_ns;
};

/* ---- between the two processes ---- */

/* Returns the resident memory of this process in bytes. */
static uint64_t own_memory(void)
{
	unsigned long long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	if (!f || fscanf(f, "%*u %llu", &pages) != 1)
		pair_die("/proc/self/statm cannot be read");
	fclose(f);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

void ask_answer(int fd)
{
	uint64_t word = two_question(fd) == MEMORY ? own_memory() : bench_cpu_ns();

	two_tell(fd, &word, sizeof(word));
}

static uint64_t of_server(int fd, enum question what)
{
	uint64_t word;

	two_ask(fd, what, &word, sizeof(word));
	return word;
}

static uint64_t memory_of_both(int fd)
{
	return own_memory() + of_server(fd, MEMORY);
}

static uint64_t cpu_ns_of_both(int fd)
{
	return bench_cpu_ns() + of_server(fd, CPU);
}

/* ---- the client ---- */

static void rest(const struct ask_ops *ops, uint64_t for_ns)
{
	if (ops->rest)
		ops->rest(for_ns);
	else
		poll(NULL, 0, (int)(for_ns / 1000000));
}

static void stay_idle(const struct ask_ops *ops, int fd, struct result *r)
{
	bool many = ops->quiet_ns && r->connections >= MANY;
	uint64_t start_ns, cpu_ns;

	if (many)
		rest(ops, ops->quiet_ns);
	cpu_ns = cpu_ns_of_both(fd);
	start_ns = bench_now_ns();
	rest(ops, many ? MANY_IDLE_NS : IDLE_NS);
	r->idle_cpu_ns = cpu_ns_of_both(fd) - cpu_ns;
	r->idle_ns = bench_now_ns() - start_ns;
}

static void trip(const struct ask_ops *ops, unsigned i)
{
	ops->ask(i);
	ops->get_answer(i);
}

static void print(const struct result *r)
{
	unsigned others = r->connections - 1;

	printf("{\"point\": \"%u\", \"first_byte_us\": %.1f, \"kib_per_connection\": "
	       "%.2f, "
	       "\"idle_cpu_percent\": %.3f, \"p50_us\": %.2f",
		r->connections, (double)r->first_byte_ns / 1e3,
		(double)r->memory_bytes / 1024 / r->connections,
		(double)r->idle_cpu_ns / (double)r->idle_ns * 100,
		(double)r->trip_ns / 1e3);
	if (others)
		printf(", \"connections_per_s\": %.0f",
			(double)others / ((double)r->all_up_ns / 1e9));
	printf("}\n");
	fflush(stdout);
}

static void measure(const struct ask_ops *ops, int fd, unsigned count)
{
	struct result r = {.connections = count};
	uint64_t start_ns, before, took_ns[TRIPS];

	ops->prepare(fd, count);
	before = memory_of_both(fd);
	start_ns = bench_now_ns();
	ops->connect(0);
	trip(ops, 0);
	r.first_byte_ns = bench_now_ns() - start_ns;
	start_ns = bench_now_ns();
	for (unsigned i = 1; i < count; i++)
		ops->connect(i);
	for (unsigned i = 1; i < count; i++)
		ops->ask(i);
	for (unsigned i = 1; i < count; i++)
		ops->get_answer(i);
	r.all_up_ns = bench_now_ns() - start_ns;
	r.memory_bytes = memory_of_both(fd) - before;
	for (unsigned i = 0; i < TRIPS; i++) {
		start_ns = bench_now_ns();
		trip(ops, 0);
		took_ns[i] = bench_now_ns() - start_ns;
	}
	r.trip_ns = bench_percentile(took_ns, TRIPS, 0.5);
	stay_idle(ops, fd, &r);
	print(&r);
}

/* ---- the two processes ---- */

static void run(const struct ask_ops *ops, unsigned count)
{
	bool client;
	int fd = two_fork(&client);

	if (!client)
		ops->serve(fd, count);
	measure(ops, fd, count);
	two_end(fd);
	wait(NULL);
}

/* Raises the limit of open files to the hard limit. */
static void raise_files(void)
{
	struct rlimit files;

	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
}

int ask_main(int argc, char **argv, const struct ask_ops *ops)
{
	uint64_t counts[COUNTS_MAX];
	unsigned n = argc > 1 ? bench_sizes(argv[argc - 1], counts, COUNTS_MAX) : 0;

	if (!n)
		pair_die("usage: %s", ops->usage);
	raise_files();
	for (unsigned i = 0; i < n; i++) {
		int status;
		pid_t pid = fork();

		if (pid == 0) {
			run(ops, (unsigned)counts[i]);
			_exit(0);
		}
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
			return 1;
	}
	return 0;
}
