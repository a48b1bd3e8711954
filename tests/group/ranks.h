/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The test bed of the collectives: up to eight ranks in one process, each with a domain and
 * a context of its own, all connected with each other over the fabric of an instance.
 */
#ifndef TERN_TESTS_GROUP_RANKS_H
#define TERN_TESTS_GROUP_RANKS_H

#include "tests/harness/bed.h"

#include <tern/group.h>

#define RANKS_MAX 8u

struct ranks;

struct rank {
	struct ranks *ranks;
	uint32_t number;
	struct tern_domain *domain;
	struct tern_context *ctx; /* NULL: the rank has ended */
	struct tern_listener *listener;
	struct tern_peer *peers[RANKS_MAX];
	bool down[RANKS_MAX];
	struct log_env log;
	struct memory_box box;
	struct tern_group *group;
	bool asleep; /* it makes no progress */
	bool working;
};

struct ranks {
	const struct instance *instance;
	uint32_t count;
	struct rank of[RANKS_MAX];
};

/* An operation of a test at one rank, and how it ended. */
struct turn {
	struct tern_group_req req;
	struct rank *rank;
	unsigned done_count;
};

/* Makes the ranks, connected, without groups. */
struct ranks *ranks_new(const struct instance *instance, uint32_t count);
/* Makes the group of all ranks. opts: all but rank, size and peers. */
void ranks_group(struct ranks *ranks, const struct tern_group_opts *opts);
/* Small pieces, so that short tensors take every way. */
struct tern_group_opts ranks_opts(void);
void ranks_free(struct ranks *ranks);
void ranks_turn(struct ranks *ranks);
/* Ends a rank without a word, as a process that is killed does. */
void rank_end(struct rank *rank);
/* Host memory of the rank. */
struct tern_buf rank_memory(struct rank *rank, uint64_t bytes);
#define RANKS_PUMP(ranks_, cond)                                                         \
	PUMP_WITH(ranks_turn(ranks_), (ranks_)->instance->name, cond)

void turn_init(struct turn *turn, struct rank *rank);
/* True if the operations of all ranks that have not ended and are not asleep have ended. */
bool turns_over(const struct turn *turns, uint32_t count);

extern const struct conformance_test group_results[];
extern const struct conformance_test group_failures[];

#endif
