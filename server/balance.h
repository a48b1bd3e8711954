/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which slot should be computed by another worker, because its worker is slow. See balance.c.
 */
#ifndef TERN_SERVER_BALANCE_H
#define TERN_SERVER_BALANCE_H

#include <stdbool.h>
#include <stdint.h>

struct server_peer;
struct tern_server;

/* The number of a worker's last slots whose times count. */
#define BALANCE_SLOTS 3u

/* The times that a worker took for its last slots, as it has told them. */
struct balance_times {
	uint64_t ns[BALANCE_SLOTS]; /* a ring */
	uint64_t count;             /* of all times that were told */
};

void balance_note(struct balance_times *times, uint64_t ns);
/* The worker has other slots now: times that were told before do not count. */
void balance_forget(struct balance_times *times);

/* A worker of the job, as balance_find() looks at it. */
struct balance_worker {
	const struct balance_times *times;
	uint32_t slots; /* number of its slots */
	bool takes;     /* it can take one more */
};

/* Finds the worker that holds the others up most, and the one that can take a slot of it. False:
 * each slot stays where it is. */
bool balance_find(const struct balance_worker *workers, uint32_t count, uint32_t *from,
	uint32_t *to);

/* Server 0: the same for the job, whose workers have so many slots (loads, by worker). */
bool balance_find_move(
	const struct tern_server *s, const uint32_t *loads, uint32_t *from, uint32_t *to);

#endif
