/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code that the benchmarks of head-of-line blocking share: round trips of 4 KiB there and
 * 8 bytes back, first alone, then while large tensors are sent, two at a time, on the
 * same connection or (with a program's argument `apart`) on another one. A program
 * provides the operations of struct beside_ops. Client and server are two processes
 * (two.h) with a socket pair between them, over which the client asks the server how many
 * bytes of large tensors it has got.
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
 * Marks by which a receiver sees how much of a large tensor has arrived, to the MiB. (A
 * measurement may be so short that no large tensor is completed in it.) beside_mark(): the
 * sender writes the tensor's number (from 1) at the start of each MiB, before it sends the
 * tensor. beside_arrived(): the receiver counts the bytes of each MiB with this number.
 */
void beside_mark(void *tensor, uint64_t number);
size_t beside_arrived(const void *tensor, uint64_t number);

struct beside_ops {
	const char *usage;
	/* Server: tells the client over `fd` how to connect, and serves. When `fd` is
	 * readable, it calls beside_answer(). Does not return. */
	void (*serve)(int fd);
	/* Client: hears over `fd` how to connect, and connects. The connection may come up as
	 * late as in the first trip(). */
	void (*connect)(int fd);
	void (*trip)(void); /* client: one round trip */
	/* Client: starts BESIDE_FLOWS flows of large tensors: when a tensor of a flow is sent,
	 * the next one starts. Does not wait. */
	void (*start_flows)(void);
};

/* The last argument is the number of round trips, of which fewer are made if they take
 * more than 4 s. Does not return: ends the process, with status 0 or 1. */
int beside_main(int argc, char **argv, const struct beside_ops *ops);
/* Server: reads a question of the client from `fd`, and answers that it has got `bytes` bytes
 * of large tensors by now. Exits if the client is done. */
void beside_answer(int fd, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
