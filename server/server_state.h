/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the server.
 *
 *     server.c  connections, goodbyes, failures, the end
 *     heard.c   which messages are allowed from whom, and when
 *     guests.c  peers that have not joined yet
 *     join.c    workers and servers that join, and the job
 *     shard.c   the parameters held here: memory, versions, the sends of a version
 *     sync.c    the state machine of a chunk
 *     lease.c   which worker computes which slot, and what happens when a worker is lost
 *     late.c    workers that make no progress
 *     leaving.c workers that are asked to end
 *     spare.c   workers without a slot
 *     start.c   the time until the steps begin: workers that leave before, and the start
 *     others.c  the servers of a job among themselves
 *     norm.c    the norm over all chunks and servers that a step may need
 *     async.c   gradients applied as they arrive
 */
#ifndef TERN_SERVER_SERVER_STATE_H
#define TERN_SERVER_SERVER_STATE_H

#include <tern/tern.h>

#include "base/env.h"
#include "ps/job.h"
#include "ps/plan.h"
#include "ps/talk.h"
#include "server/server.h"
#include "transport/context.h"

/* Largest part of the staging pool that gradients may take, in bytes. The rest is for
 * messages, and for the ends of slabs, where no chunk fits. */
#define STAGING_MOST (TERN_POOL_BYTES_MAX / 16 * 15)

/* A connected process: of the job, or a guest. */
struct server_peer {
	struct tern_list node;
	struct tern_server *server;
	struct tern_peer *peer;
	struct tern_talk talk;
	struct tern_channel *data;
	/* If neither: it is a guest, or the connection to server 0
	 * (tern_server.to_zero). */
	bool is_worker, is_server;
	bool said_bye;
	bool refused;                  /* its messages are not read any more */
	bool done;                     /* async: the worker has taken its last step */
	bool gone;                     /* no request may be posted to it any more */
	bool freed;                    /* the peer was given to tern_peer_free() */
	struct tern_timer guest_timer; /* deadline of a guest, see guests.c */
	bool lost;                     /* the job continues without this worker */
	bool leaving, may_go;          /* the worker was asked to end, see leaving.c */
	/* Answers of the worker to the last roll call of leaving.c. */
	bool answered, has_parameters;
	bool welcome;   /* the worker counts as joined */
	bool left;      /* the worker left before the steps began, see start.c */
	char zero[128]; /* address of server 0, as this worker has written it */
	uint32_t index; /* number of the worker or server in the job */
	/* sync: number of slots that it owns, used while sync.c counts. */
	uint32_t slot_count;
	uint32_t in_place_count; /* gradients that are, or will be, read in its memory */

	bool follows;      /* sync: it is sent every version */
	struct pull *pull; /* async: its last copies; NULL: it has not asked for them */

	/* late.c, for a worker: */
	uint64_t slot_since_ns; /* time since which it could compute its present slot */
	bool owes;              /* others may wait for its gradient */
	uint64_t owed_step; /* step of that gradient; UINT64_MAX: they wait for the end */
	uint32_t owed_slot; /* sync: slot of that gradient */
	uint64_t silent_ns; /* time without progress */
	uint64_t
		late_ns; /* part of silent_ns in which another worker waited for this one */
	/* Number + 1 of the server that it says it waits for; 0: none. */
	uint32_t waits_for_server;
};

/* True for a worker or a server of the job. */
bool server_has_joined(const struct server_peer *p);

/* Number of slot times that the median is computed from (late.c). */
#define LATE_SLOTS 31u

/* The last copies that a worker has asked for (async.c): which steps of each worker
 * the copies made so far contain. */
struct pull {
	uint32_t chunks_left;
	uint64_t *least; /* by worker: steps that each of these copies contains */
	uint64_t *most;  /* by worker: steps that at least one of them contains */
	uint64_t counts[];
};

/* Which worker computes a slot. */
struct lease {
	/* NULL: it was lost, and no other worker has taken the slot yet. */
	struct server_peer *holder;
	/* The holder, or the worker to which server 0 gave the slot. */
	struct server_peer *owner;
	/* Number of the decision by which it was taken; 0: since the start. */
	uint64_t generation;
};

/*
 * A chunk in sync mode:
 *
 *     HOLDING --budget--> GATHERING --all slots-----------------------------> APPLYING
 *        ^                    |                                                   |
 *        |                    +--the norm is needed--> SUMMING -> WAITING for it -+
 *        |                                                                        |
 *        +---------------------- the new version is sent -------------------------+
 *
 * HOLDING: version `version` is complete, and no gradient is being received.
 */
enum chunk_state {
	CHUNK_HOLDING,
	CHUNK_GATHERING,
	CHUNK_SUMMING,
	CHUNK_WAITING,
	CHUNK_APPLYING,
};

struct gradient { /* gradient of one slot, for one chunk */
	struct tern_req req;
	struct chunk *chunk;
	/* Buffer that it is received into, unless it is read in place. */
	struct tern_buf room;
	struct server_peer *from; /* worker from which it is being received; NULL: none */
	struct server_peer *in_place; /* worker in whose memory it is, or will be, read */
	bool arrived;
	bool wanted; /* receive it before its turn, because its worker needs the buffer */
};

struct publication { /* a version being sent to a worker */
	struct tern_req req;
	struct chunk *chunk;
	unsigned parity;
};

struct chunk {
	struct tern_list node; /* in server->holding, while it waits for the budget */
	struct tern_server *server;
	const struct tern_chunk *plan;
	uint32_t number; /* number of the chunk in the plan */
	enum chunk_state state;
	uint64_t version;
	struct tern_buf w[2];            /* parameters, by parity of the version */
	struct tern_updater_chunk *kept; /* state of the optimizer */
	int status;                      /* status of the updater in the last task */
	double squares;             /* clipping: sum of squares of the mean gradient */
	double clip;                /* clipping: factor of that gradient */
	struct gradient *gradients; /* sync: by slot */
	unsigned arrived_count;
	/* Number of slots, counted from the first, whose gradients are in partial
	 * sums. */
	uint32_t folded;
	uint32_t wanted_count;            /* number of gradients with `wanted` set */
	bool folding;                     /* a task is adding up the next gradients */
	struct publication *publications; /* [2][workers] */
	unsigned sends_out[2];            /* sends under way, by parity of the version */
	float **sources; /* sync: by slot: where the gradients or their sums are */
	struct tern_task task;
	struct stream *streams; /* async: by worker */
	struct tern_list ready; /* async: streams whose gradient waits to be applied */
	bool computing;         /* async: the task is running */
	bool waits_for_sends;   /* sync: applying waits for sends of an older version */
};

/* A worker sends a chunk of a slot's gradient that is already here. It is refused, for
 * each of the versions `version` to `last` in turn. */
struct extra {
	struct tern_list node; /* in server->extras */
	struct tern_req req;
	struct chunk *chunk;
	struct server_peer *from;
	uint32_t slot;
	uint64_t version, last;
};

struct stream {                /* async: the exchange of one chunk with one worker */
	struct tern_list node; /* in chunk->ready */
	struct chunk *chunk;
	uint32_t worker;
	uint64_t step; /* step of this worker */
	uint64_t seen; /* version of the chunk that the worker was sent last */
	struct tern_req gradient_req, parameter_req;
	struct tern_buf gradient, copy;
	bool sending; /* a copy is being sent */
	/* This turn has no gradient: it makes the first copy, or the last one. */
	bool pulled;
};

struct norm_share { /* server 0: partial sums of one server */
	struct tern_req req;
	struct tern_server *server;
	struct tern_buf buf;
	uint32_t index;
	bool arrived;
};

struct tern_server {
	struct tern_server_opts opts;
	struct tern_env *env;
	struct tern_listener *listener;
	struct tern_pool *talk_pool, *staging, *store;
	struct tern_list peers;
	struct server_peer **workers; /* [job.workers] */
	uint32_t joined_count, bye_count;
	struct tern_talk_budget guest_text; /* text of all guests' incomplete messages */
	uint64_t notes_ns; /* until then, notes about guests are limited */
	uint32_t notes_left, notes_dropped;
	struct tern_timer notes_timer; /* tells how many notes were dropped */

	/* lease.c */
	struct lease *leases; /* sync: [slots] */
	uint64_t generation;  /* server 0: number of the newest decision */
	uint32_t lost_count;  /* number of lost workers */
	char first_loss[400]; /* reason of the first loss */
	bool all_done; /* server 0, async: the workers were told that all are done */
	/* Server 0, sync: the workers without a slot were told that the next version is the
	 * last one. */
	bool said_last;
	struct tern_list extras; /* duplicates that are still expected */
	/* leaving.c */
	/* Time of the decision, or the end of `interrupting`. */
	struct tern_timer leave_timer;
	uint32_t roll_count; /* roll calls without a decision */
	bool interrupting;   /* the job ends as soon as it is known which worker saves */
	char interrupt_text[400];
	struct tern_timer zero_timer;  /* start.c: next attempt to reach server 0 */
	struct tern_timer start_timer; /* start.c: next note about missing processes */
	uint32_t again_count; /* start.c: how often server 0 said "again" in a row */

	struct tern_ps_job job;
	uint32_t index; /* number of this server */
	struct tern_plan plan;
	bool has_job, running, over, told;
	int64_t finisher; /* if over: the worker that saves; -1: not known here */
	/* If over by a signal: the worker that finishes saves its parameters. */
	bool save;
	int status; /* if over: the result; `text` is the reason */
	char text[512];
	struct tern_deferred end_call;
	struct tern_timer end_timer;

	struct chunk *chunks;
	uint32_t chunk_count, made_count;
	struct tern_list holding;
	uint64_t staging_bytes; /* budget for received gradients */
	uint64_t staging_left;  /* part of the budget that no chunk has taken */
	uint64_t staging_most;  /* bytes that all chunks together need */
	/* Bytes of gradients received before their turn, beyond the budget. */
	uint64_t wanted_bytes;
	uint32_t window; /* sync: number of slots that a chunk receives at a time */
	/* sync: largest number of gradients and partial sums in a chunk. */
	uint32_t held_most;
	unsigned tasks_out;

	struct server_peer *to_zero; /* others.c: connection to server 0 */

	/* late.c */
	struct tern_timer late_timer;
	/* Interval, time of the last tick, number of ticks. */
	uint64_t tick_ns, ticked_ns, tick_count;
	/* Times of the last slots; number of all slots. */
	uint64_t slot_ns[LATE_SLOTS], slot_count;
	uint64_t quiet_ns;        /* time since the last gradient was added */
	uint64_t quiet_gradients; /* number of gradients that had been added by then */

	/* norm.c */
	uint32_t summed_count; /* chunks whose mean gradient is computed */
	uint64_t norm_step;
	struct norm_share *shares; /* server 0: by server */
	struct tern_buf partials, total;
	struct tern_req partials_req, total_req;
	struct tern_req *total_reqs; /* server 0: by server */
	unsigned totals_out;

	struct tern_server_stats stats;
};

/* server.c */
void server_fail(struct tern_server *s, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Ends the job at once because a process was asked to end; the present parameters are
 * saved. */
void server_interrupt(struct tern_server *s, const char *why);
void server_aborted(struct server_peer *p, const char *name, const json_t *message);
void server_on_bye(struct server_peer *p);
void server_maybe_end(struct tern_server *s);
void server_refuse(struct server_peer *p, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void server_drop(struct server_peer *p);
void server_broken(struct tern_talk *talk, int status);
void server_updater_note(struct tern_server *s);
void server_note(struct tern_server *s, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* heard.c */
void server_heard(struct tern_talk *talk, const json_t *message); /* the talk's heard() */

/* join.c */
void join_on_join(struct server_peer *p, const json_t *message);
void join_on_peer(struct server_peer *p, const json_t *message);
void join_shard_made(struct tern_server *s);
void join_forget_job(struct tern_server *s);
/* All workers have joined this server: tells server 0. */
void join_meet_zero(struct tern_server *s);

/* guests.c */
void guests_init(struct tern_server *s);
/* True if a refusal may be noted: notes about guests are limited in rate. */
bool guests_may_note(struct tern_server *s);
void guests_end(struct tern_server *s);   /* the server ends */
void guests_enter(struct server_peer *p); /* p was accepted just now */
void guests_leave(struct server_peer *p); /* p has joined the job */
/* p was refused: it is cut unless it closes the connection within LEAVING_NS. */
void guests_refused(struct server_peer *p);
/* Frees guests that have gone, since any number may come and go during a job. */
void guests_reap(struct tern_server *s);

/* shard.c */
/* Checks that this server's share of the job fits, without allocating it. -E2BIG. */
int shard_check(const struct tern_server *s, const struct tern_ps_job *job,
	uint32_t index, struct tern_ps_text *why);
int shard_init(struct tern_server *s); /* allocates the list of chunks, and their pool */
/* Makes the chunks one after the other, in tasks: for a large model this takes seconds,
 * during which connections must be served. At the end join_shard_made() is called. */
void shard_make(struct tern_server *s);
bool shard_is_made(const struct tern_server *s);
void shard_fini(struct tern_server *s);
float *chunk_w(const struct chunk *c, uint64_t version);
/* Sends the newest version to all workers that follow the versions (`follows`): those
 * with a slot. */
void chunk_publish(struct chunk *c);
/* Sends a version that the chunk still has. The worker must not be receiving another
 * version of the same parity. */
void chunk_publish_to(struct chunk *c, uint64_t version, struct server_peer *worker);
/* Called in a task. Makes version `to` out of `from`, which may be the same, with
 * `scale` times the sum of n gradients. If g is NULL, it uses the mean gradient that
 * the updater has computed before, and scale 1. */
void chunk_apply(struct chunk *c, uint64_t from, uint64_t to, const float *const *g,
	unsigned n, float scale, float clip);
/* Called after a job. True: the job has failed, and with it the server. */
bool chunk_failed(struct chunk *c);
void chunk_pin(struct chunk *c, const struct tern_buf *buf);
/* True if what a receive got is a gradient for the chunk: its type and size are right.
 * Otherwise ends the job. For requests of status 0 and -EMSGSIZE. */
bool chunk_takes(const struct chunk *c, uint32_t worker, const struct tern_req *req);
void chunk_submit(struct chunk *c, void (*run)(struct tern_task *),
	void (*done)(struct tern_task *));

/* sync.c */
void sync_start(struct tern_server *s);
bool sync_is_done(const struct tern_server *s); /* all chunks have the last version */
/* Lets chunks gather, as far as the budget allows. */
void sync_next(struct tern_server *s);
void sync_apply(struct chunk *c, double clip);
void sync_sends_ended(struct chunk *c);
/* Slots have new owners, so chunks may need more of the staging budget. */
void sync_owners_changed(struct tern_server *s);
/* The slot has a new holder, which sends the gradients for `version` and all later
 * versions. */
void sync_taken(struct tern_server *s, uint32_t slot, uint64_t version);
/* The slot's holder needs the buffer of its gradient for `version`. */
void sync_wanted(struct tern_server *s, uint32_t slot, uint64_t version);

/* lease.c */
int lease_init(struct tern_server *s);
void lease_fini(struct tern_server *s);
void lease_start(struct tern_server *s);
bool lease_is_live(const struct server_peer *worker);
/* The worker that evaluates and saves. At least one worker must be live. */
uint32_t lease_finisher(const struct tern_server *s);
void lease_lost(struct server_peer *worker, bool known, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void lease_on_failed(struct server_peer *p, const json_t *message);
void lease_on_report(struct server_peer *p, const json_t *message);
void lease_on_decision(struct server_peer *p, const json_t *message);
void lease_tell_lost(struct server_peer *p, uint32_t lost, const char *text);
void lease_on_take(struct server_peer *p, const json_t *message);
void lease_on_holds(struct server_peer *p, const json_t *message);
void lease_on_bye(struct tern_server *s);
void lease_on_done(struct server_peer *p);
void lease_maybe_done(struct tern_server *s);
void lease_refuse_extra(struct chunk *c, uint32_t slot, uint64_t first, uint64_t last);

/* start.c */
/* Server 0 may answer "again" this often in a row, a second apart: by then its workers
 * have reached it, or given up (--wait). */
#define START_AGAIN_MAX 300u
bool start_has_workers(const struct tern_server *s);
void start_maybe(struct tern_server *s);
void start_wait(struct tern_server *s); /* called when the server has a job */
/* Writes which processes are missing. Returns the number of bytes written. */
size_t start_name_missing(const struct tern_server *s, char *text, size_t bytes);
void start_left(struct server_peer *p, const char *text);
void start_on_lost(struct server_peer *p, uint32_t worker, const char *text);
void start_on_start(struct tern_server *s);
void start_on_again(struct tern_server *s);
void start_again(struct tern_server *s);
void start_forget(struct tern_server *s);
/* Server p has told server 0 that all workers have joined it. It is told that they
 * have not, or that server 0 has no job yet, and will come again. */
void start_send_away(struct server_peer *p);

/* leaving.c */
void leaving_on_leave(struct server_peer *p, const json_t *message);
void leaving_on_here(struct server_peer *p, const json_t *message);
/* A process was asked to end: the job ends when it is known which worker can save. */
void leaving_interrupt(struct tern_server *s, const char *why);
/* Server 0, for an interrupted job: the worker that saves; -1: no worker is here. */
int64_t leaving_finisher(const struct tern_server *s);

/* spare.c */
void spare_start(struct tern_server *s);
void spare_say_last(struct tern_server *s);
void spare_on_where(struct server_peer *p);
void spare_on_follow(struct server_peer *p, const json_t *message);

/* late.c */
void late_start(struct tern_server *s);
/* The worker has received something, or sent it. */
void late_progress(struct server_peer *worker);
/* A version of chunk `c` has reached the worker; the worker's gradient for `c` has
 * arrived. */
void late_slot_begins(struct chunk *c, struct server_peer *worker);
void late_slot_ended(struct chunk *c, struct server_peer *worker);
void late_on_busy(struct server_peer *worker, const json_t *message);

/* others.c */
int others_connect(struct tern_server *s);
void others_lost(struct server_peer *p, int status, const char *name);
bool others_are_connected(const struct tern_server *s);
struct server_peer *others_find(const struct tern_server *s, uint32_t index);

/* norm.c */
int norm_init(struct tern_server *s);
void norm_chunk_summed(struct chunk *c);
void norm_fini(struct tern_server *s);

/* async.c */
int async_init(struct chunk *c);
void async_fini(struct chunk *c);
void async_start(struct tern_server *s);
bool async_is_done(const struct server_peer *p); /* the worker has taken all its steps */
void async_on_pull(struct server_peer *p);

#endif
