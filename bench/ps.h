/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code that the parameter servers of all peers share: processes, the model, timing and
 * the JSON line. Each of S servers holds 1/S of the parameters. In a round each of W
 * workers pushes its gradient to all servers, which sum the W gradients and apply p -=
 * RATE * mean; then each worker gets the parameters into its own array.
 *
 * Gradient and rate are those of null_model.c, so the parameters are known exactly after
 * every round, and workers check some of them.
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
/* Small enough to stay in the cache from arrival to sum. */
#define PS_PIECE_BYTES (256u << 10)
#define PS_MOST        16u /* largest number of servers, and of workers */

struct ps_shared;

struct ps {
	const char *variant;
	unsigned servers, workers;
	size_t count;    /* number of all parameters */
	unsigned rounds; /* number of rounds, warm-up included */
	unsigned index;  /* number of this server or worker */
	struct ps_shared *shared;
	float *gradient, *params; /* worker: all elements */
	void *state;
};

struct ps_ops {
	const char *name, *variants, *wait;
	const char *(*version)(void);
	/* Called before any process is started; may be NULL. */
	void (*prepare)(struct ps *p);
	/* Runs a server for at least p->rounds rounds. It is killed when the workers
	 * are done. */
	void (*serve)(struct ps *p);
	/* Connects a worker. */
	void (*join)(struct ps *p);
	/* Runs one round: sends the gradient and receives p->params. */
	void (*round)(struct ps *p);
};

int ps_main(int argc, char **argv, const struct ps_ops *ops);

/* First element of server s, which has [ps_first(s), ps_first(s + 1)). */
size_t ps_first(const struct ps *p, unsigned server);

/* Tells the workers a server's port; they wait for it. */
void ps_tell_port(struct ps *p, int port);
int ps_port(const struct ps *p, unsigned server);

/* to[i] += from[i] */
void ps_add(float *to, const float *from, size_t count);
/* params[i] -= RATE / W * sums[i]; sums[i] = 0 */
void ps_apply(const struct ps *p, float *params, float *sums, size_t count);

#ifdef __cplusplus
}
#endif
#endif
