/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/ask.h"

#include <errno.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/pair.h"

uint64_t ask_own_memory(void)
{
	unsigned long long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	if (!f || fscanf(f, "%*u %llu", &pages) != 1)
		pair_die("/proc/self/statm cannot be read");
	fclose(f);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t ask_other(int fd, enum ask what)
{
	uint64_t word = what;

	if (send(fd, &word, sizeof(word), MSG_NOSIGNAL) != sizeof(word) ||
		recv(fd, &word, sizeof(word), MSG_WAITALL) != sizeof(word))
		pair_die("the server is gone");
	return word;
}

void ask_answer(int fd)
{
	uint64_t word = 0;

	if (recv(fd, &word, sizeof(word), MSG_WAITALL) != sizeof(word))
		_exit(1);
	switch ((enum ask)word) {
	case ASK_MEMORY:
		word = ask_own_memory();
		break;
	case ASK_CPU:
		word = bench_cpu_ns();
		break;
	case ASK_END:
		_exit(0);
	}
	if (send(fd, &word, sizeof(word), MSG_NOSIGNAL) != sizeof(word))
		_exit(1);
}

void ask_for_files(void)
{
	struct rlimit files;

	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
}

void ask_print(const struct ask_result *r)
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
