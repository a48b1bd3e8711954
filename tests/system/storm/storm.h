/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A storm: random sends and receives between two peers, the same on every fabric and in
 * the simulator. Sizes are around every threshold, send and receive come in random order,
 * the same triple (channel, key, step) is used many times, receives are of all three
 * kinds, and some requests are cancelled. The storm checks the rules of the rendezvous:
 * each request ends once; received data equals sent data, with dtype and shape; the k-th
 * send of a triple meets the k-th receive (after cancels, only the order is kept); no
 * buffer is accessed after its request has ended.
 */
#ifndef TERN_TESTS_STORM_H
#define TERN_TESTS_STORM_H

#include <tern/tern.h>

#include "base/rng.h"

struct storm_opts {
	uint64_t seed;
	unsigned pair_count; /* number of sends, and of receives, in each direction */
	/* Number of different triples (channel, key, step) among them. */
	unsigned triple_count;
	uint64_t bytes_max;   /* largest size of a tensor */
	uint32_t eager_bytes; /* eager threshold: many sizes are close to it */
	unsigned cancel_permille;
	/* Share of receives whose memory may be too small for the tensor. */
	unsigned small_room_permille;
	/* Share of steps that make one of the GPU's next operations fail. */
	unsigned copy_fail_permille;
	enum {
		STORM_NEAR, /* receives are posted roughly in the order of the sends */
		STORM_SHUFFLED, /* receives are posted in any order */
		STORM_LAST_FIRST
	} order;
	/* No receive is posted before this number of sends, in its direction. */
	unsigned lag;
	/* At most this number of receives is open at a time, in each direction; 0: no
	 * limit. */
	unsigned open_most;
};

struct storm;

/* Access to memory that the CPU cannot access. refuse() makes one of the device's next
 * operations fail. */
struct storm_memory {
	void (*write)(uint64_t address, const void *from, uint64_t bytes);
	void (*read)(void *to, uint64_t address, uint64_t bytes);
	void (*refuse)(unsigned which);
};

/* One end: a channel of a peer, and a pool of its domain (also the peer's opts.pool). If
 * `other` is set, half of its buffers come from that pool. */
struct storm_end {
	struct tern_channel *channel;
	struct tern_pool *pool, *other;
	/* For pools in GPU memory; NULL: both pools are in host memory. */
	const struct storm_memory *memory;
};

struct storm *storm_new(const struct storm_opts *opts, const struct storm_end ends[2]);

/* Posts some more requests, and checks those that have ended. To be called between calls
 * of tern_progress(). */
void storm_step(struct storm *storm);

/* True if all requests were posted and have ended, or after an error. */
bool storm_is_over(const struct storm *storm);

/* To be called when a peer went down: from then on requests may end with any error. */
void storm_peer_down(struct storm *storm);

/* The first error, as a sentence; NULL: no error so far. */
const char *storm_error(const struct storm *storm);

/* Prints the requests that have not ended. */
void storm_print_left(const struct storm *storm);

/* Number of requests that ended with success. */
unsigned storm_delivered(const struct storm *storm);

/* Makes the final checks and frees the storm. All requests must have ended. Returns 0, or
 * -EIO after an error, which is printed with the seed. */
int storm_free(struct storm *storm);

#endif
