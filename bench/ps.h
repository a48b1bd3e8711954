/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every parameter server of the peers shares: processes, the model, timing and the
 * line of JSON. S servers hold 1/S of the parameters each; in a round each of W workers
 * pushes its gradient to all servers, which sum the W gradients, apply p -= RATE * mean,
 * and each worker gets the parameters into its own array.
 *
 * Gradient and rate are null_model.c's, so the parameters are known exactly after every
 * round, and workers check some of them.
 */
#ifndef TERN_BENCH_PS_H
#define TERN_BENCH_PS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PS_RATE        (1.0f / 1024)
#define PS_PIECE_BYTES (256u << 10) /* stays in the cache from arrival to sum */
#define PS_MOST        16u          /* servers, workers */

struct ps_shared;

struct ps {
	const char *variant;
	unsigned servers, workers;
	size_t count;    /* parameters in all */
	unsigned rounds; /* with the warm-up */
	unsigned index;  /* of this server or worker */
	struct ps_shared *shared;
	float *gradient, *params; /* worker: all of them */
	void *state;
};

struct ps_ops {
	const char *name, *variants, *wait;
	const char *(*version)(void);
	/* Before any process is started; may be NULL. */
	void (*prepare)(struct ps *p);
	/* A server's life: at least p->rounds rounds. It is killed when the workers are
	 * done. */
	void (*serve)(struct ps *p);
	/* A worker: connected when it returns. */
	void (*join)(struct ps *p);
	/* One round: the gradient goes out, p->params come back. */
	void (*round)(struct ps *p);
};

int ps_main(int argc, char **argv, const struct ps_ops *ops);

/* Elements of server s: [ps_first(s), ps_first(s + 1)). */
size_t ps_first(const struct ps *p, unsigned server);

/* A server's port, for the workers; they wait for it. */
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
