/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A storm of sends and receives between two peers, the same on every fabric and in the
 * simulator: random sizes around every threshold, random order of the two halves, the
 * same triple many times, receives of all three kinds, cancels. It checks what the
 * rendezvous promises: each request ends once; what is delivered is what was sent, dtype
 * and shape included; the k-th send of a triple meets the k-th receive (cancelled ones
 * aside: order is kept); no buffer is touched once its request has ended.
 */
#ifndef TERN_TESTS_STORM_H
#define TERN_TESTS_STORM_H

#include <tern/tern.h>

#include "base/rng.h"

struct storm_opts {
	uint64_t seed;
	unsigned pair_count;   /* sends, and receives, in each direction */
	unsigned triple_count; /* how many different triples they share */
	uint64_t bytes_max;    /* of a large tensor */
	uint32_t eager_bytes;  /* sizes crowd around it */
	unsigned cancel_permille;
	unsigned small_room_permille; /* receives whose room is too small */
	unsigned copy_fail_permille;  /* steps in which a copy of a GPU is refused */
	enum {
		STORM_NEAR,     /* receives are posted about in the order of the sends, */
		STORM_SHUFFLED, /* in any order, */
		STORM_LAST_FIRST
	} order;
	unsigned lag;       /* and only behind so many sends of their direction */
	unsigned open_most; /* and at most so many at a time; 0: any number */
};

struct storm;

/* How to get at memory that the CPU does not reach, and how to have the next copy of it
 * refused. */
struct storm_memory {
	void (*write)(uint64_t address, const void *from, uint64_t bytes);
	void (*read)(void *to, uint64_t address, uint64_t bytes);
	void (*refuse)(unsigned which);
};

/* One end: a channel of a peer, and a pool of its domain (also the peer's opts.pool).
 * Half of what it sends and of its rooms is from `other`, if there is one. */
struct storm_end {
	struct tern_channel *channel;
	struct tern_pool *pool, *other;
	const struct storm_memory *memory; /* NULL: all of it is the host's */
};

struct storm *storm_new(const struct storm_opts *opts, const struct storm_end ends[2]);

/* Posts a few more requests, looks at what ended. Call between rounds of progress. */
void storm_step(struct storm *storm);

/* Everything was posted and has ended. */
bool storm_is_over(const struct storm *storm);

/* A peer went down: requests may end with any error from now on. */
void storm_peer_down(struct storm *storm);

/* What went wrong, in a sentence; NULL: nothing so far. */
const char *storm_error(const struct storm *storm);

/* What has not ended, for a message. */
void storm_print_left(const struct storm *storm);

/* How many requests ended with 0. */
unsigned storm_delivered(const struct storm *storm);

/* The last checks; all requests must have ended. 0, or -EIO: something went wrong, and
 * was printed with the seed. */
int storm_free(struct storm *storm);

#endif
