/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which chunks of a gradient are final, that is, will not change any more. Whoever
 * computes the gradient says which elements are final, in any order, since the order in
 * which back-propagation through a graph of layers finishes them is not known before. A
 * chunk is final when all of its elements are.
 *
 * Two threads may use it: one says what is final (ready_say), another takes the chunks
 * (ready_take). What the first has written before ready_say() the second may read after
 * ready_take().
 */
#ifndef TERN_CLIENT_READY_H
#define TERN_CLIENT_READY_H

#include <stdatomic.h>
#include <stdbool.h>

#include "ps/plan.h"

struct ready {
	const struct tern_plan *plan;
	uint64_t *left;         /* of each chunk: number of elements that are not final */
	uint32_t *order;        /* chunks in the order in which they became final */
	_Atomic uint32_t final; /* number of entries of `order` */
	uint32_t taken;
};

/* `plan` must outlive `r`. -ENOMEM. */
int ready_init(struct ready *r, const struct tern_plan *plan);
void ready_fini(struct ready *r);

/* A new gradient begins: nothing of it is final. No other thread may use `r` now. */
void ready_begin(struct ready *r);

/* Elements first to first + count - 1 are final. The calls for one gradient must cover
 * each element exactly once. */
void ready_say(struct ready *r, uint64_t first, uint64_t count);

/* Takes the next final chunk that was not taken yet. False: there is none now. */
bool ready_take(struct ready *r, uint32_t *chunk);

#endif
