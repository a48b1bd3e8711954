/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a tensor is shared between the connections of a session that carry puts: each chunk
 * goes to the one that is expected to have carried it first, by what was measured of them.
 * So a connection over a slow network card is given less, and the last chunks do not wait
 * in its queue while others have nothing left to do.
 */
#ifndef TERN_RENDEZVOUS_LOAD_H
#define TERN_RENDEZVOUS_LOAD_H

#include <stdint.h>

struct tern_load {
	/* Bytes that it was given since `since_ns`, when it had nothing to carry. */
	uint64_t given;
	uint64_t asked; /* value of `given` when the peer was last asked to confirm */
	uint64_t since_ns;
	uint64_t free_ns;   /* when it is expected to have carried all of it */
	double ns_per_byte; /* as measured; 0: not yet */
};

/* Called when the connection was given a chunk. */
void tern_load_give(struct tern_load *load, uint64_t bytes, uint64_t now_ns);
/* Called when the connection has carried all that it was given. */
void tern_load_carried(struct tern_load *load, uint64_t now_ns);

/*
 * Returns the connection for the next chunk, or `count` if it is better to wait for room on
 * one of those that have none. `up`, `room`: bit sets of those that carry chunks, and of
 * those that have room for one now. Of several that are as good the first one from `first`
 * on is taken.
 */
unsigned tern_load_best(const struct tern_load *loads, unsigned count, uint32_t up,
	uint32_t room, unsigned first, uint64_t bytes, uint64_t now_ns);

#endif
