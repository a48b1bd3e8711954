/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the client of a connections program asks the server for, over the socket pair
 * between them: its memory and its processor time.
 */
#ifndef TERN_BENCH_ASK_H
#define TERN_BENCH_ASK_H

#include <stdint.h>

enum ask { ASK_MEMORY = 1, ASK_CPU, ASK_END };

/* Resident bytes of this process. */
uint64_t ask_own_memory(void);

/* Client: asks, and waits for the answer. */
uint64_t ask_other(int fd, enum ask what);

/* Server: its socket is readable. Answers; ends the process when asked to. */
void ask_answer(int fd);

/* Lets this process have as many files as it may. */
void ask_for_files(void);

struct ask_result {
	unsigned connections;
	uint64_t first_byte_ns; /* from connect to the first answer, on the first one */
	uint64_t all_up_ns;     /* the other ones, asked for at once */
	uint64_t memory_bytes;  /* that both ends have more than before */
	uint64_t idle_ns, idle_cpu_ns;
	uint64_t trip_ns; /* median, on the first connection, the others idle */
};
void ask_print(const struct ask_result *r);

#endif
