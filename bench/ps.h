/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code that the parameter servers in C and C++ of the peers (what Tern is compared with)
 * share: processes, the model, timing and the JSON line. Each of S servers holds 1/S of
 * the parameters, and the last one also the rest. In a round each of W workers pushes its
 * gradient to all servers, which sum the W gradients and apply p -= RATE * mean. Then
 * each worker gets the parameters into its own array.
 *
 * Gradient and rate are those of null_model.c, so the value of each parameter after every
 * round is known exactly, and workers check some of them.
 */
#ifndef TERN_BENCH_PS_H
#define TERN_BENCH_PS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PS_RATE (1.0f / 1024)
/* raw_ps.c receives and sums gradients in pieces of at most this size, so that a piece is
 * still in the cache when it is summed. */
#define PS_PIECE_BYTES (256u << 10)
#define PS_MOST        32u /* largest number of servers, and of workers */

struct ps_shared;

struct ps {
	const char *variant;
	unsigned servers, workers;
	size_t count;    /* number of all parameters */
	unsigned rounds; /* number of rounds, including the warm-up */
	unsigned index;  /* number of this server or worker, from 0 */
	struct ps_shared *shared;
	float *gradient, *params; /* a worker's arrays, of `count` elements */
	void *state;
};

struct ps_ops {
	const char *name, *variants, *wait;
	const char *(*version)(void);
	/* Called before the processes are forked; may be NULL. */
	void (*prepare)(struct ps *p);
	/* Runs a server for at least p->rounds rounds. If it has not returned when the workers
	 * are done, its process is killed. */
	void (*serve)(struct ps *p);
	/* Connects a worker to all servers. */
	void (*join)(struct ps *p);
	/* Runs one round of a worker: sends the gradient to all servers, and receives
	 * p->params from them. */
	void (*round)(struct ps *p);
};

int ps_main(int argc, char **argv, const struct ps_ops *ops);

/* Returns the first element of a server: server s has the elements [ps_first(s),
 * ps_first(s + 1)). */
size_t ps_first(const struct ps *p, unsigned server);

/* ps_tell_port(): a server tells the workers its port. ps_port(): returns the port of a
 * server; waits until the server has told it. */
void ps_tell_port(struct ps *p, int port);
int ps_port(const struct ps *p, unsigned server);

/* For all i: to[i] += from[i]. */
void ps_add(float *to, const float *from, size_t count);
/* For all i: params[i] -= PS_RATE / p->workers * sums[i], then sums[i] = 0. */
void ps_apply(const struct ps *p, float *params, float *sums, size_t count);

#ifdef __cplusplus
}
#endif
#endif
