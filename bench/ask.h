/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The benchmarks of many connections (connections.c, peers/raw_connections.c) have a
 * client and a server process with a socket pair between them. Over it the client asks
 * the server for its memory and its processor time.
 */
#ifndef TERN_BENCH_ASK_H
#define TERN_BENCH_ASK_H

#include <stdint.h>

enum ask { ASK_MEMORY = 1, ASK_CPU, ASK_END };

/* Returns the resident memory of this process in bytes. */
uint64_t ask_own_memory(void);

/* Client: asks for `what` of the server and waits for the answer. */
uint64_t ask_other(int fd, enum ask what);

/* Server: called when the socket is readable. Answers the question; exits if the client
 * asks for that. */
void ask_answer(int fd);

/* Raises the limit of open files to the hard limit. */
void ask_for_files(void);

struct ask_result {
	unsigned connections;
	/* of the first connection: from connect() to the first answer */
	uint64_t first_byte_ns;
	/* until all other connections, started at once, were up */
	uint64_t all_up_ns;
	/* memory that all connections added, sum of both processes */
	uint64_t memory_bytes;
	uint64_t idle_ns, idle_cpu_ns;
	/* Median round trip on the first connection, while the others are idle. */
	uint64_t trip_ns;
};
void ask_print(const struct ask_result *r);

#endif
