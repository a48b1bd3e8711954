/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two ends of a pair (pair.h): how their processes are started and how they find each
 * other. Each function sets p->sender, p->fd (a socket to the other end, for pair_tell()
 * and pair_hear()) and p->host, and exits with an error line if the other end does not
 * come.
 */
#ifndef TERN_BENCH_ENDS_H
#define TERN_BENCH_ENDS_H

#include "bench/pair.h"

/* Forks: the parent sends, the child receives. Runs run() in both, and returns 0 in the
 * parent when both have ended well. The child exits. */
int ends_fork(struct pair *p, void (*run)(struct pair *p, void *arg), void *arg);
/* The receiver calls this when the sender needs it no longer: that it exits is no error
 * from now on. */
void ends_over(void);

/* For one of two processes that mpirun has started: process 0 sends, process 1
 * receives. */
void ends_rank(struct pair *p, int rank);

/*
 * On two hosts, which trust each other and the network between them. The receiver listens
 * at `address` (HOST:PORT, IPv4; port 0: any), prints the line {"listening": "HOST:PORT"},
 * waits for a sender, and gets its arguments: the returned list is as that of main(), with
 * `name` in front, and *argc its length.
 */
char **ends_serve(struct pair *p, const char *address, char *name, int *argc);
/* The sender connects to a receiver, and sends it those arguments after the first that are
 * not `--connect ADDRESS`. */
void ends_connect(struct pair *p, const char *address, int argc, char **argv);

#endif
