/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two ends of a pair (pair.h): how their processes are started and how they find each
 * other. The functions set p->sender, which is false before, and p->fd (a socket to the other
 * end, for pair_tell() and pair_hear()); those for two hosts also set p->host and p->local. A process that
 * cannot reach the other end exits with an error line; on two hosts, one whose other end
 * has not come after 60 s is ended by SIGALRM.
 */
#ifndef TERN_BENCH_ENDS_H
#define TERN_BENCH_ENDS_H

#include "bench/pair.h"

/* Forks: the parent sends, the child receives. Runs run() in both, and returns 0 in the
 * parent when both have ended well. The child exits. */
int ends_fork(struct pair *p, void (*run)(struct pair *p, void *arg), void *arg);
/* The sender calls this when it needs the receiver no longer: until then, the exit of a
 * receiver that ends_fork() has started is an error, which ends the sender. (Elsewhere a call
 * has no effect.) */
void ends_over(void);

/* For one of two processes that mpirun has started: process 0 sends, process 1
 * receives. */
void ends_rank(struct pair *p, int rank);

/*
 * On two hosts, which trust each other and the network between them. The receiver listens
 * at `address` (HOST:PORT, IPv4; port 0: any), prints the line {"listening": "HOST:PORT"},
 * waits for a sender, and gets the sender's command-line arguments. Returns them like argv
 * of main(), with `name` in front; *argc is their number.
 */
char **ends_serve(struct pair *p, const char *address, char *name, int *argc);
/* The sender connects to a receiver at `address`, and sends it argv[1] and the following
 * arguments, without `--connect ADDRESS`. */
void ends_connect(struct pair *p, const char *address, int argc, char **argv);

#endif
