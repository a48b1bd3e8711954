/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A storm of sends and receives between two peers, the same on every fabric and in the
 * simulator: random sizes around every threshold, random order of the two halves, the
 * same triple many times, receives of all three kinds, cancels. It checks the rules of
 * the rendezvous: each request ends once; received data equals sent data, dtype and shape
 * included; the k-th send of a triple meets the k-th receive (with cancels, the order is
 * kept); no buffer is accessed after its request has ended.
 */
#ifndef TERN_TESTS_STORM_H
#define TERN_TESTS_STORM_H

#include <tern/tern.h>

#include "base/rng.h"

struct storm_opts {
	uint64_t seed;
	unsigned pair_count;   /* number of sends, and of receives, in each direction */
	unsigned triple_count; /* number of different triples that they use */
	uint64_t bytes_max;    /* largest size of a tensor */
	uint32_t eager_bytes;  /* sizes are concentrated around it */
	unsigned cancel_permille;
	unsigned small_room_permille; /* receives whose room is too small */
	unsigned copy_fail_permille;  /* steps in which a copy of a GPU fails */
	enum {
		STORM_NEAR, /* receives are posted roughly in the order of the sends */
		STORM_SHUFFLED, /* in any order */
		STORM_LAST_FIRST
	} order;
	unsigned lag; /* each receive is posted only after this number of further sends */
	unsigned open_most; /* at most this number of receives at a time; 0: no limit */
};

struct storm;

/* Access to memory that the CPU does not reach, and a fault for its next copy. */
struct storm_memory {
	void (*write)(uint64_t address, const void *from, uint64_t bytes);
	void (*read)(void *to, uint64_t address, uint64_t bytes);
	void (*refuse)(unsigned which);
};

/* One end: a channel of a peer, and a pool of its domain (also the peer's opts.pool).
 * Half of its data and rooms come from `other`, if there is one. */
struct storm_end {
	struct tern_channel *channel;
	struct tern_pool *pool, *other;
	const struct storm_memory *memory; /* NULL: all of it is host memory */
};

struct storm *storm_new(const struct storm_opts *opts, const struct storm_end ends[2]);

/* Posts a few more requests, and checks those that have ended. Call it between rounds
 * of progress. */
void storm_step(struct storm *storm);

/* True if everything was posted and has ended. */
bool storm_is_over(const struct storm *storm);

/* A peer went down: requests may end with any error from now on. */
void storm_peer_down(struct storm *storm);

/* The first error, as a sentence; NULL: none so far. */
const char *storm_error(const struct storm *storm);

/* Prints the requests that have not ended. */
void storm_print_left(const struct storm *storm);

/* Number of requests that ended with 0. */
unsigned storm_delivered(const struct storm *storm);

/* The last checks; all requests must have ended. 0, or -EIO: there was an error, which
 * was printed with the seed. */
int storm_free(struct storm *storm);

#endif
