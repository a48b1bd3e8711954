/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cut of a snapshot in async mode: for each worker k a number t_k, such that the snapshot has
 * the gradients of the steps 0 to t_k - 1 of worker k in every chunk, and no other.
 *
 *     OPEN --"cut" of server 0--> CLOSED --"snapshot" of server 0--> DRAINING --all are copied--> OPEN
 *                                   +--no memory for the copies--> OPEN
 *
 * CLOSED: this server applies no gradient, and has told server 0 the steps of each worker that it
 * has applied to some chunk. t_k is the largest number that a server has told.
 * DRAINING: a chunk applies the steps before the cut, is copied when it has all of them, and
 * applies the others after that.
 *
 * No worker is asked anything. A step before the cut was applied to some chunk, so its worker had
 * all parameters of that step, and its gradient is on its way to all other chunks. So DRAINING
 * waits for gradients that are being sent, and never for a worker that waits for a server.
 *
 * A worker that is lost while its gradient is on its way leaves a torn step: some chunks have it,
 * and others will not get it. The snapshot says so (ps/snapshot.h). When a job goes on from a snapshot
 * with a torn step, some chunks have this step from the start. So the cut of the next snapshot has it,
 * too, and that snapshot waits until the worker of the torn step has made it again, or is lost.
 */
#ifndef TERN_SERVER_CUT_H
#define TERN_SERVER_CUT_H

#include "server/server_state.h"

enum cut_state {
	CUT_OPEN,
	CUT_CLOSED,
	CUT_DRAINING,
};

struct cut {
	enum cut_state state;
	uint32_t number; /* of the snapshot */
	/* By worker: the cut. While server 0 hears from the others: the largest numbers so far. */
	uint64_t *steps;
	/* By worker: how many steps every chunk of a server has; on server 0 of all servers. */
	uint64_t *least;
	/* Server 0: which servers have told their steps, and how many have not. */
	bool *heard;
	uint32_t unheard;
};

int cut_init(struct tern_server *s); /* -ENOMEM; nothing in sync mode */
void cut_fini(struct cut *cut);

/* Server 0: asks all servers for their steps. cut_known() follows, perhaps in this call. */
void cut_begin(struct tern_server *s, uint32_t number);
/* Server 0: another server is lost, and tells nothing any more. */
void cut_on_lost(struct tern_server *s, uint32_t server);
/* Server 0: the cut is in `steps`. In snapshots.c. */
void cut_known(struct tern_server *s);

/* The sum of the cut: the step of the snapshot. */
uint64_t cut_sum(const struct tern_server *s);
/* Reads a list of one number for each worker. False: it is none, or a number is larger than the
 * steps of the worker. */
bool cut_read(const struct tern_server *s, const json_t *list, uint64_t *steps);
json_t *cut_list(const struct tern_server *s, const uint64_t *steps);

/* Applies what is before the cut, and copies the chunks. */
void cut_drain(struct tern_server *s);
/* The snapshot has all copies of this server, or none is wanted any more. */
void cut_open(struct tern_server *s);

/* True if the gradient of this step must not be applied to the chunk yet. */
bool cut_defers(const struct chunk *c, uint32_t worker, uint64_t step);
/* Called when no gradient of the chunk can be applied now: copies it, if it has what a snapshot
 * needs. */
void cut_maybe_copy(struct chunk *c);
void cut_on_cut(struct server_peer *zero, const json_t *message);
void cut_on_steps(struct server_peer *server, const json_t *message);

#endif
