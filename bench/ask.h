/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions of a connections program's client to its server, over the socket pair between
 * them: the server's memory and its processor time.
 */
#ifndef TERN_BENCH_ASK_H
#define TERN_BENCH_ASK_H

#include <stdint.h>

enum ask { ASK_MEMORY = 1, ASK_CPU, ASK_END };

/* Resident memory of this process, in bytes. */
uint64_t ask_own_memory(void);

/* Client: asks, and waits for the answer. */
uint64_t ask_other(int fd, enum ask what);

/* Server: called when its socket is readable. Answers; ends the process when asked to. */
void ask_answer(int fd);

/* Raises the limit of open files to its maximum. */
void ask_for_files(void);

struct ask_result {
	unsigned connections;
	uint64_t first_byte_ns; /* first connection: from connect to the first answer */
	uint64_t all_up_ns;     /* the other connections, all started at once */
	uint64_t memory_bytes;  /* memory of both ends, minus that before */
	uint64_t idle_ns, idle_cpu_ns;
	/* Median round trip on the first connection while the others are idle. */
	uint64_t trip_ns;
};
void ask_print(const struct ask_result *r);

#endif
