/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code that the benchmarks of many connections to one server share: 64 bytes are sent on
 * a connection and 8 come back. A program provides the operations of struct ask_ops, and
 * ask_main() measures with them, so that all figures mean the same. Client and server are
 * two processes (two.h) with a socket pair between them, over which the client asks the
 * server for its memory and its processor time.
 */
#ifndef TERN_BENCH_ASK_H
#define TERN_BENCH_ASK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ASK_BYTES       64u
#define ASK_REPLY_BYTES 8u

struct ask_ops {
	const char *usage;
	/* Server: tells the client over `fd` where it listens, and serves `count`
	 * connections. Calls ask_answer() when `fd` is readable. Does not return. */
	void (*serve)(int fd, unsigned count);
	/* Client: gets ready for `count` connections, and hears from the server where it
	 * listens. */
	void (*prepare)(int fd, unsigned count);
	/* Client: starts the connection with number `i`. */
	void (*connect)(unsigned i);
	/* Client: ask() sends on connection i, which need not be up yet; get_answer() waits
	 * for the answer. Other connections may be asked in between. */
	void (*ask)(unsigned i);
	void (*get_answer)(unsigned i);
	/* Client: drives its connections for `for_ns`, while no message is sent. NULL: they
	 * need no driving. */
	void (*rest)(uint64_t for_ns);
	/* Time to rest before the processor time of 1,000 idle connections or more is
	 * measured; that measurement is then longer, too. 0: none. */
	uint64_t quiet_ns;
};

/* The last argument has the numbers of connections, as "1,100,1000". Each number is measured
 * by new processes, so that it does not affect the next one. Returns the exit code. */
int ask_main(int argc, char **argv, const struct ask_ops *ops);

/* Server: reads a question of the client from `fd`, and answers it; waits if there is none
 * yet. Exits if the client asks for that. */
void ask_answer(int fd);

#ifdef __cplusplus
}
#endif
#endif
