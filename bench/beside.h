/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code that the benchmarks of head-of-line blocking share: round trips of 4 KiB there and
 * 8 bytes back on a connection that is idle, and on one that also carries large tensors,
 * two at a time. A program provides the operations of struct beside_ops. Client and server
 * are two processes, each pinned to a core, with a socket pair between them, over which the
 * client asks the server how many bytes of large tensors it has got.
 */
#ifndef TERN_BENCH_BESIDE_H
#define TERN_BENCH_BESIDE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BESIDE_SMALL_BYTES 4096u
#define BESIDE_REPLY_BYTES 8u
#define BESIDE_LARGE_BYTES ((size_t)256 * 1000 * 1000)
#define BESIDE_FLOWS       2u

/*
 * Marks by which a receiver sees how much of a large tensor has arrived, to the MiB: a fast
 * machine may complete none of them while it is measured. The sender writes the tensor's
 * number (from 1) at the start of each MiB, before it sends the tensor.
 */
void beside_mark(void *tensor, uint64_t number);
size_t beside_arrived(const void *tensor, uint64_t number);

struct beside_ops {
	const char *usage;
	/* Server: tells the client over `fd` how to connect, and serves. When `fd` is
	 * readable, it calls beside_answer(). Does not return. */
	void (*serve)(int fd);
	void (*connect)(int fd); /* client: hears how, connects and waits for that */
	void (*trip)(void);      /* client: one round trip */
	/* Client: starts the large tensors, each of which is followed by the next. */
	void (*start_flows)(void);
};

/* The last argument is the number of round trips, of which fewer are made if they take
 * more than 4 s. Returns the exit code. */
int beside_main(int argc, char **argv, const struct beside_ops *ops);
/* Server: `bytes` is what it has got of large tensors by now. Exits if the client is done. */
void beside_answer(int fd, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
