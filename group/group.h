/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internal declarations of the collectives. This table says which file implements what:
 *
 *     group    make and free a group; its calls; failures                     group.c
 *     op       an operation that has begun: its signature and its lanes          op.c
 *     lane     one piece of an operation under way: a list of rounds           lane.c
 *     plan     the rounds of each operation, and which algorithm is used       plan.c
 *     watch    messages between ranks about the group; the deadline           watch.c
 *
 * A piece of a tensor goes through a list of rounds. A round sends at most one range,
 * receives at most one range, and then computes something with what it has received. Pieces
 * do not depend on each other, so that several lanes keep the network and the processor
 * busy at the same time. All ranks start the pieces in the same order, operation by
 * operation. The earliest piece that has not ended anywhere is therefore under way at
 * every rank or has ended there, whatever the numbers of lanes are, so there is no
 * deadlock.
 *
 * Messages of one piece have a key made of the operation's number and signature (kind,
 * size, type, operator, root), so data of two operations that differ never meets.
 */
#ifndef TERN_GROUP_GROUP_H
#define TERN_GROUP_GROUP_H

#include <tern/group.h>

#include "base/list.h"
#include "kernels/reduce.h"
#include "transport/context.h"

#define GROUP_OPS    16u /* operations that have begun and not ended */
#define GROUP_NOBODY UINT32_MAX

/* The values travel on the wire. */
enum group_kind {
	GROUP_ALLREDUCE = 1,
	GROUP_REDUCE = 2,
	GROUP_BROADCAST = 3,
	GROUP_GATHER = 4,
	GROUP_SCATTER = 5,
	GROUP_ALL_GATHER = 6,
	GROUP_REDUCE_SCATTER = 7,
	GROUP_ALL_TO_ALL = 8,
	GROUP_BARRIER = 9,
	GROUP_ALL_TO_ALL_V = 10,
	GROUP_KIND_COUNT
};

/* The parameters of an operation that all ranks must agree on. A signature is sent as it
 * is: peers of the other byte order are refused. */
struct group_signature {
	uint64_t number, bytes;
	uint64_t shape; /* group.shape */
	uint32_t kind, dtype, how, root;
};

/* A call, in the space of its struct tern_group_req. */
struct group_call {
	struct tern_list node; /* in group.waiting, op.call's slot, or group.ended */
	struct group_signature sig;
	struct tern_buf in, out;
	/* ALL_TO_ALL_V: bytes of each rank's part of `in` and of `out`; else NULL. */
	const uint64_t *in_bytes, *out_bytes;
	/* True if `in` and `out` are the same memory. */
	bool in_place;
	int status; /* with which it has ended */
	uint64_t began_ns, due_ns;
};

/* Where a range of a round lies. SCRATCH is the lane's own scratch memory. */
enum group_area { GROUP_IN, GROUP_OUT, GROUP_SCRATCH };

/* The computation at the end of a round, with `to`, `a` and `b` of `bytes` each. */
enum group_work {
	GROUP_NOTHING,
	GROUP_COPY,    /* to = a */
	GROUP_COMBINE, /* to = a (how) b */
	GROUP_FINAL,   /* to = a (how) b, and AVG divides */
	/* f16 and bf16, with sums in f32 at `to` or `a`: */
	GROUP_WIDEN,  /* to = a */
	GROUP_WIDE,   /* to = to (how) a */
	GROUP_NARROW, /* to = a, and AVG divides */
};

struct group_range {
	enum group_area area;
	uint64_t at;
};

struct group_round {
	uint32_t send_to, recv_from; /* GROUP_NOBODY */
	struct group_range send, recv;
	uint64_t send_bytes, recv_bytes;
	enum group_work work;
	struct group_range to, a, b;
	uint64_t bytes; /* size of the work's operands, in the operation's dtype */
};

struct group_op {
	struct tern_group *group;
	struct group_call *call; /* NULL: the slot is free */
	uint64_t key;
	uint64_t piece_count, next_piece, ended_pieces;
	unsigned outstanding; /* of sig_send and sig_recv */
	struct tern_req sig_send, sig_recv;
	struct tern_buf mine, theirs; /* signatures; `theirs` is the previous rank's */
};

struct group_lane {
	struct tern_group *group;
	struct group_op *op; /* NULL: the lane is free */
	uint64_t piece;
	struct group_round *rounds;
	unsigned round_count, round;
	bool begun; /* the requests of the round were posted */
	bool sending, receiving;
	struct tern_req send, recv;
	struct tern_buf scratch;
};

/* A message about the group, apart from data. */
#define GROUP_TEXT_MAX 200u
enum group_note_kind {
	GROUP_ALIVE = 1, /* keep-alive: how far the sender is */
	GROUP_ABORT = 2, /* the group has failed, with status and text */
	GROUP_LEFT = 3,  /* the sender has left the group; its last note */
};
struct group_note {
	uint32_t kind;
	int32_t status;
	uint64_t called; /* operations that the sender has called */
	uint64_t moved;  /* rounds that the sender has ended */
	/* ALIVE: interval in ms at which the waiting sender wants answers; 0: it waits for
	 * nothing. */
	uint32_t ask_ms;
	char text[GROUP_TEXT_MAX];
	uint32_t reserved;
};

/* Another rank. */
struct group_link {
	struct tern_group *group;
	uint32_t rank;
	struct tern_peer *peer;
	struct tern_channel *channel;
	struct tern_req send, recv;
	struct tern_buf send_buf, recv_buf;
	bool sending, receiving;
	bool gone;     /* the peer is down, and may have been freed */
	char name[72]; /* the peer's, once it is gone */
	bool cut;      /* its connection was cut by this end */
	bool left;     /* the rank has left the group */
	/* Notes to be sent when `send` is free. */
	bool want_alive, want_abort, want_left;
	bool told;         /* ABORT came or is queued */
	bool stirred;      /* something came since the last tick */
	uint64_t heard_ns; /* time of the last tick after which something had come */
	uint64_t alive_ns; /* time of its last ALIVE */
	uint64_t said_ns;  /* time of our last ALIVE */
	uint64_t called, moved;
};

struct tern_group {
	struct tern_context *ctx;
	struct tern_env *env;
	struct tern_pool *pool;
	uint32_t rank, size;
	uint32_t host_count;
	/* For each rank: its host's index, from 0. For each host: its ranks, ascending, as
	 * members[first[host]] to members[first[host + 1]]. */
	uint32_t *host_of, *members, *first;
	uint32_t *leaders; /* used while a piece is planned: one rank of each host */
	/* Hash of what the ranks' groups must have in common besides: their size,
	 * piece_bytes and hosts. */
	uint64_t shape;
	uint64_t timeout_ns, tick_ns;
	uint32_t piece_bytes, lane_count, round_max;
	struct group_link *links; /* by rank; that of this rank is unused */
	struct group_lane *lanes;
	struct group_op ops[GROUP_OPS];
	struct tern_list waiting, ended; /* calls */
	uint64_t called, moved;
	/* Number of the oldest operation that has pieces to start. */
	uint64_t starting;
	unsigned op_count;
	unsigned left_count;    /* ranks that have left */
	unsigned outstanding;   /* requests of lanes and signatures that have not ended */
	unsigned notes;         /* requests of links that have not ended */
	struct tern_buf memory; /* all buffers of the group */
	struct tern_deferred finish;
	struct tern_timer tick;
	uint64_t patient_until_ns; /* no deadline counts before this time */
	int status;                /* of the failure */
	bool freed, in_step, in_finish;
	bool ticking;
	bool late;       /* tick came late */
	uint64_t cut_ns; /* after a failure: when what has not ended is cut */
	char text[GROUP_TEXT_MAX];
};

/* group.c */

/* Ends the group with `status`; the first call counts. The text names the culprit. */
void group_fail(struct tern_group *g, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Starts what can be started, ends what has ended. */
void group_step(struct tern_group *g);
/* Writes "rank 3 (NAME)", at most GROUP_WHO_MAX bytes; returns `out`. */
#define GROUP_WHO_MAX 96u
const char *group_who(const struct tern_group *g, uint32_t rank, char *out);
/* To be called at the end of each done() of a request: frees a group that its owner has
 * freed, when nothing is under way any more. */
void group_settle(struct tern_group *g);
/* Fails because the request with this rank has ended with `status`. */
void group_fail_with(struct tern_group *g, uint32_t rank, int status);
/* Ends the call in the next round of deferred calls. */
void group_end_call(struct tern_group *g, struct group_call *call, int status);
static inline struct tern_group_req *group_req(struct group_call *call)
{
	return tern_container_of(call, struct tern_group_req, priv);
}

/* op.c */
void group_op_start(struct tern_group *g, struct group_call *call);
/* Writes "allreduce of 4096 bytes, f32, sum". */
void group_describe(const struct group_signature *sig, char *out, size_t bytes);
void group_op_cancel(struct group_op *op);
/* Ends the operation if nothing of it is left to do. */
void group_op_check(struct group_op *op);

/* lane.c */
void group_lane_start(struct group_lane *lane, struct group_op *op, uint64_t piece);
void group_lane_cancel(struct group_lane *lane);

/* plan.c */
uint64_t group_plan_pieces(const struct tern_group *g, const struct group_call *call);
/* Most rounds that a piece can have. */
uint32_t group_plan_rounds_max(uint32_t size);
/* Writes the rounds of a piece; returns how many. */
unsigned group_plan(const struct tern_group *g, const struct group_call *call,
	uint64_t piece, struct group_round *out);

/* watch.c */
/* Posts the first receives of notes. */
int group_watch_start(struct tern_group *g);
/* Sets the tick timer for a new call. */
void group_watch_called(struct tern_group *g, const struct group_call *call);
/* Tells all ranks of the failure, and sees to it that all requests end. */
void group_watch_failed(struct tern_group *g);
/* Tells all ranks that this one leaves. */
void group_watch_leave(struct tern_group *g);

#endif
