/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the server.
 *
 *     server.c  connections, goodbyes, failures, the end
 *     heard.c   which messages are allowed from whom, and when
 *     guests.c  peers that have not joined yet
 *     join.c    workers and servers that join, and the job
 *     shard.c   this server's parameters: memory, versions, the sends of a version
 *     sync.c    the state machine of a chunk
 *     lease.c   which worker computes which slot, and what happens when a worker is lost
 *     late.c    workers that make no progress
 *     balance.c slots that move from slow workers to others
 *     change.c  workers that join during the steps, and slots that move
 *     leaving.c workers that are asked to end
 *     blobs.c   what the job's program keeps beside the parameters
 *     back.c    a lost or ended server: the job goes back to a snapshot
 *     memory.c  going on with what all servers have in memory
 *     members.c servers that come in the place of lost ones, at new addresses
 *     follow.c  a process that keeps a copy of this server's share (follower.h)
 *     spare.c   workers without a slot
 *     grow.c    more workers than the job began with
 *     start.c   the time until the steps begin: workers that leave before, and the start
 *     given.c   initial values that a worker gives, before version 0
 *     others.c  the servers of a job among themselves
 *     skip.c    tensors that no slot of a step has pushed
 *     twice.c   slots that two workers have computed
 *     omit.c    slots whose loss is no number, and which are left out
 *     norm.c    the norm over all chunks and servers that a step may need
 *     async.c   gradients applied as they arrive
 *     cut.c     which of them a snapshot has (cut.h)
 *     snapshot.c, snapshots.c, resume.c  see snapshots.h
 *     store.c, store_part.c, remote.c, remote_part.c  see store.h
 *     progress.c  what workers say of their losses and metrics, and reports of it
 *     status.c  answers to `tern status`
 *
 * A slot is one of the R gradients of a step; a version of a chunk is its parameters
 * after that many updates; a guest is a connected process that has not joined the job.
 */
#ifndef TERN_SERVER_SERVER_STATE_H
#define TERN_SERVER_SERVER_STATE_H

#include <tern/tern.h>

#include "base/env.h"
#include "ps/blob.h"
#include "ps/given.h"
#include "ps/job.h"
#include "ps/metric.h"
#include "ps/plan.h"
#include "ps/talk.h"
#include "ps/view.h"
#include "server/balance.h"
#include "server/server.h"
#include "transport/context.h"

/* Largest part of the staging pool that gradients may take, in bytes. The rest is for
 * norms, and for the ends of slabs (the memory segments of the pool), where no chunk
 * fits. */
#define STAGING_MOST (TERN_POOL_BYTES_MAX / 16 * 15)

/* A connected process: a worker or server of the job, or a guest (guests.c). */
struct server_peer {
	struct tern_list node;
	struct tern_server *server;
	struct tern_peer *peer;
	struct tern_talk talk;
	struct tern_channel *data;
	/* If both are false, the peer is a guest or server 0 (tern_server.to_zero). */
	bool is_worker, is_server;
	bool is_follower; /* follow.c */
	bool is_followed; /* another server: it has a complete follower */
	bool said_bye;
	/* Refused, or sent away to come again: its further messages are ignored. */
	bool refused;
	bool done;                     /* async: the worker has taken its last step */
	bool gone;                     /* down or cut off: no request may be posted */
	bool freed;                    /* the peer was given to tern_peer_free() */
	bool unlinked;                 /* the connection is lost, and may be restored */
	uint64_t came_ns, broken_ns;   /* members.c: when it was accepted, and lost */
	struct tern_timer guest_timer; /* deadline of a guest, see guests.c */
	bool asks_again;               /* guest_timer asks the guest to join again */
	bool has_status;               /* status.c: this guest's question was answered */
	bool takes_pieces;    /* store.c: a piece of a snapshot was sent to this guest */
	uint8_t answer_count; /* store.c: answers to this guest besides pieces */
	/* guests.c: end of the time for this guest's question, or for its piece; 0: neither. */
	uint64_t question_until_ns;
	bool lost; /* the job continues without this worker */
	/* leaving.c: the worker was asked to end; server 0 has allowed it to end. */
	bool leaving, may_go;
	/* Answers of the worker to the last roll call of leaving.c. */
	bool answered, has_parameters;
	bool welcome; /* the worker was sent "welcome", and is in joined_count */
	/* change.c, for a worker that joins during the steps. `returning`: it waits for
	 * server 0 to let it in; `ready`: every server has welcomed it; `chosen`: the change
	 * under way lets it in. */
	bool returning, ready, chosen;
	bool waits_for_place; /* grow.c: it was noted that this guest waits for a new place */
	bool replaced;        /* a lost worker: another one has taken its place */
	/* A random number of the worker, another one each time that it is made anew. */
	uint64_t incarnation;
	json_t *incarnations; /* on server 0, of another server: those of its workers */
	uint64_t begins_at;   /* on server 0, of another server: its first version */
	bool goes_back;       /* back.c: the worker can go back with the job */
	bool failed;          /* the worker has failed by itself */
	/* change.c: messages of this worker that wait until the change under way is carried
	 * out here, and their bytes. */
	json_t *kept;
	uint64_t kept_bytes;
	/* blobs.c: version of the blob for which this worker waits for an answer; 0: it does not. */
	uint64_t keep_step;
	bool is_new; /* the worker has come during the steps, and sent no gradient yet */
	/* On server 0, of another server: whether that server has said "pausing" and "paused"
	 * in the change under way. */
	bool pausing, paused;
	/* Number of slots that were moved away, for which the worker has not said yet with
	 * which version it stops. */
	uint32_t moved_count;
	uint32_t marks_count; /* skip.c: receives of this worker's marks under way */
	bool left;            /* the worker left before the steps began, see start.c */
	bool absent;          /* stands for a worker that has not come (start.c) */
	/* The address of a server that comes in the place of a lost one (members.c); NULL: the peer
	 * is no such server. */
	char *address;
	bool follower_waits; /* members.c: it waits to take this server's place */
	bool stays;     /* such a server was not lost, and all know its address already */
	bool has_begun; /* its process has been in the job, and may have it in memory */
	uint64_t claim; /* of such a server: members_claim() as it has told it */
	/* Life of the job (memory.c) in which the steps have begun with it; 0: they have not. */
	uint64_t life;
	bool up; /* server 0: the connection was there once */
	/* Address of server 0, as this worker (to_zero: worker 0) has sent it. */
	char zero[128];
	/* Number of this worker; index of this server in the job, but if it has told its address
	 * (`address`) its number. */
	uint32_t index;
	/* sync: number of slots that the worker owns; valid only while sync.c counts
	 * them. */
	uint32_t slot_count;
	/* Gradients that this server reads, or will read, in the worker's memory. */
	uint32_t in_place_count;

	/* progress.c, for a worker: loss of its last step; loss_weight 0: not known. */
	double loss, loss_weight;
	struct balance_times times;

	bool follows;      /* sync: every version is sent to this worker */
	struct pull *pull; /* async: the worker's request for last copies; NULL: none */

	/* late.c, for a worker: */
	uint64_t slot_since_ns; /* time since which it can compute its present slot */
	bool owes;              /* other processes may wait for this worker */
	/* If `owes`: the step whose gradient others wait for; UINT64_MAX: they wait for
	 * this worker to finish the job, or for its goodbye; UINT64_MAX - 1: for the initial
	 * values that it gives. */
	uint64_t owed_step;
	uint32_t owed_slot; /* sync: the slot of that gradient */
	uint64_t silent_ns; /* time without progress */
	/* Part of silent_ns that has passed since another process first waited for this
	 * worker. */
	uint64_t late_ns;
	bool stalled; /* the server has warned that the job waits for this worker */
	/* Number + 1 of the server that this worker reported to wait for; 0: none. */
	uint32_t waits_for_server;
};

/* True for a worker or a server of the job. */
bool server_has_joined(const struct server_peer *p);

/* The median time of a slot is computed from this many last times (late.c). */
#define LATE_SLOTS 31u

/* A worker's request for a last copy of every chunk (async.c). Counts, for each worker,
 * the steps that the copies made so far contain. */
struct pull {
	uint32_t chunks_left;
	uint64_t *least; /* by worker: steps that each of these copies contains */
	uint64_t *most;  /* by worker: steps that at least one of them contains */
	uint64_t counts[];
};

/* Which worker computes a slot, that is, one of the R gradients of each step. */
struct lease {
	/* Worker from which this server receives the slot's gradients. NULL: that worker
	 * was lost, and no other worker has taken the slot yet. */
	struct server_peer *holder;
	/* The holder, or the worker to which server 0 has given the slot and which has
	 * not taken it yet; until this decision is known here, the lost worker. */
	struct server_peer *owner;
	/* Number of server 0's decision that gave the slot to the holder; 0: none, the
	 * holder has had it since the start. */
	uint64_t generation;
	/* Where and from whom the slot was last moved to another worker (change.c); and whether
	 * a "take" of that worker may still come, by an earlier decision. */
	uint64_t moved_at;
	uint32_t moved_from;
	bool awaits_take;
};

/* A change of who is in the job, or has which slot, between two steps: change.c. */
struct change {
	/* The version at which all servers stop for it; UINT64_MAX: none is under way. */
	uint64_t version;
	bool reached; /* all chunks of this server are at that version */
	/* Server 0: number of servers that do not know the version yet, and of those that are
	 * not there yet. */
	uint32_t unheard, unpaused;
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
 * budget: the chunk has got its share of the memory for received gradients (sync.c).
 */
enum chunk_state {
	CHUNK_HOLDING,
	CHUNK_GATHERING,
	CHUNK_SUMMING,
	CHUNK_WAITING,
	CHUNK_APPLYING,
};

struct seen {          /* twice.c: the gradient of a version, as it has arrived */
	uint64_t step; /* version + 1; 0: none yet */
	uint64_t digest;
	uint32_t worker; /* which has sent it */
};

struct gradient { /* gradient of one slot, for one chunk */
	struct tern_req req;
	struct chunk *chunk;
	/* Buffer that the gradient is received into, unless it is read in place. */
	struct tern_buf room;
	struct server_peer *from; /* worker of the posted receive; NULL: none is posted */
	/* Worker in whose memory the gradient is, or will be, read; NULL: none. */
	struct server_peer *in_place;
	bool arrived;
	bool wanted;  /* received before its turn, because the worker needs its buffer */
	bool omitted; /* omit.c: the slot is left out of this step */
	struct seen seen[2]; /* by parity of the version */
};

struct publication { /* the send of one version of a chunk to one worker */
	struct tern_req req;
	struct chunk *chunk;
	uint32_t worker;
	unsigned parity;
};

struct chunk {
	/* In server->holding, while the chunk waits for a part of staging_left. */
	struct tern_list node;
	struct tern_server *server;
	const struct tern_chunk *plan;
	uint32_t number; /* index of the chunk in server->plan.chunks */
	enum chunk_state state;
	uint64_t version;
	/* sync: the newest version that is in memory, which the task of the update sets: `version`, or
	 * the one after it, if the chunk is ahead (memory.c) or the task is running. And the oldest
	 * one that has been in memory. */
	uint64_t made, oldest;
	/* Parameters, by parity of the version; async, and if they are sent as bf16: w[0]
	 * only. */
	struct tern_buf w[2];
	/* sync: the parameters rounded to bf16, by parity of the version, if they are sent
	 * so. */
	struct tern_buf bf16[2];
	struct tern_updater_chunk *kept; /* state of the optimizer */
	/* Parts of the chunk with different rules; NULL: the chunk has one rule. */
	struct tern_updater_segment *segments;
	struct skips *skips;        /* skip.c; NULL: no gradient had marks yet */
	int status;                 /* status of the updater in the last task */
	double squares;             /* clipping: sum of squares of the mean gradient */
	double clip;                /* clipping: factor for the mean gradient */
	struct gradient *gradients; /* sync: by slot */
	unsigned arrived_count;
	/* Number of slots, counted from the first, whose gradients are in partial
	 * sums. */
	uint32_t folded;
	uint32_t omitted_count; /* omit.c: slots that are left out of the present step */
	uint32_t wanted_count;  /* number of gradients with `wanted` set */
	bool folding;           /* a task is adding up the next gradients */
	/* Sends of this chunk's parameters, by worker; each has two, by parity of the version. They
	 * stay where they are when the job gets more workers (grow.c). */
	struct publication **publications;
	unsigned sends_out[2]; /* number of these sends under way, by parity */
	/* sync: by slot: the slot's gradient, or the partial sum that begins with it */
	float **sources;
	struct tern_task task;
	struct stream *streams; /* async: by worker */
	struct tern_list ready; /* async: streams that wait for their turn, see async.c */
	struct tern_list held;  /* async: streams that wait for others, see async.c */
	/* async: streams whose gradients are applied when the chunk was copied (cut.h) */
	struct tern_list deferred;
	bool computing; /* async: `task` is running */
	bool copies;    /* async: `task` makes a copy for the worker */
	bool waits;     /* sync: applying waits, see may_update() in sync.c */
	struct follow_chunk
		*follow; /* follow.c: the present update is for a follower, too */
	/* snapshot.c: room for a copy, or the copy; NULL: none is wanted. And whether the
	 * task that updates the chunk makes it. */
	struct chunk_copy *copy;
	bool copies_next;
};

/* A gradient of one slot and chunk that the worker `from` sends although the server
 * already has it. The server refuses it, for each of the versions `version` to `last` in
 * turn. */
struct extra {
	struct tern_list node; /* in server->extras */
	struct tern_req req;
	struct chunk *chunk;
	struct server_peer *from;
	uint32_t slot;
	uint64_t version, last;
};

/* The tensors of a chunk, and in which updates they are skipped (skip.c). */
struct skips;

struct chunk_copy; /* a chunk at the end of a step (snapshot_state.h) */
struct snapshots;  /* snapshot_state.h */
struct resume;     /* resume.c */

struct stream {                /* async: the exchange of one chunk with one worker */
	struct tern_list node; /* in chunk->ready */
	struct chunk *chunk;
	uint32_t worker;
	uint64_t step; /* the worker's step that is exchanged now or next */
	/* Steps of the worker that the snapshot with which the job began has in this chunk. The worker
	 * begins with the lowest number of all chunks, and what it sends before this one is refused. */
	uint64_t had;
	uint64_t seen; /* version of the chunk that was last sent to the worker */
	struct tern_req gradient_req, parameter_req;
	struct tern_buf gradient, copy;
	uint8_t *marks; /* room for marks; NULL: no gradient of the stream had any yet */
	bool marked;    /* the gradient has come with `marks` */
	bool sending;   /* a copy is being sent */
	/* The stream's present turn applies no gradient: it only makes the first copy, the
	 * last one, or one that was held. */
	bool pulled;
	bool held;     /* the worker is ahead, and its copy is still to be made */
	bool deferred; /* its gradient is in chunk->deferred */
};

struct norm_share { /* server 0: partial sums of one server */
	struct tern_req req;
	struct tern_server *server;
	struct tern_buf buf;
	uint32_t index;
	bool arrived;
};

/* status.c: step of this server at some times in the past, the newest STATUS_MARKS of them. */
#define STATUS_MARKS 16u

struct status_marks {
	struct status_mark {
		uint64_t ns, step;
	} ring[STATUS_MARKS];
	uint64_t count;     /* of all marks that were made */
	uint64_t gradients; /* stats.gradients_added at the last look */
	uint64_t moved_ns;  /* when it was seen to grow, or the steps began */
	/* The step at the last look, when it was seen to be reached, and how long the last
	 * step took before that; 0 s: no step was made yet. */
	uint64_t step, step_ns;
	double step_s;
};

struct given_part { /* a range of given initial values, in version 0 of a chunk */
	struct tern_req req;
	struct chunk *chunk;
	struct tern_given_range range;
};

/*
 * Given initial values of this server's chunks:
 *
 *     UNASKED --the giver is asked--> ARRIVING --all are here--> CHECKING --> HERE
 *
 * To UNASKED from any state: server 0 has named another giver, or (not from HERE) the giver
 * is lost.
 */
enum given_state {
	GIVEN_UNASKED,
	GIVEN_ARRIVING,
	GIVEN_CHECKING,
	GIVEN_HERE,
};

struct given {
	enum given_state state;
	/* The steps of this server have to wait for given values. */
	bool awaited;
	/* Server 0 has begun the steps: the values are final. */
	bool begun;
	struct server_peer *giver; /* the worker that gives; NULL: none, or it is lost */
	/* The given ranges, in the order of the chunks; freed when the steps begin. */
	struct given_part *parts;
	uint32_t part_count, missing_count;
	uint32_t out_count; /* receives that have not ended */
	bool checking;      /* a task looks at a chunk's values */
	uint32_t checked;   /* ranges that were found to be numbers */
	uint64_t
		wrong; /* element of the flat vector that is no number; UINT64_MAX: none */
	/* Server 0: the worker that it has named last, and which servers have that worker's
	 * values. `has` is NULL if the job has no given values. */
	uint32_t chosen;
	bool *has;
};

struct tern_server {
	struct tern_server_opts opts;
	struct tern_env *env;
	struct tern_listener *listener;
	/* Pools. talk_pool: control messages. staging, in host memory: norms, and
	 * gradients. rooms: gradients of sync mode that are not read in place; `staging`
	 * itself, or a pool of its own if they are in memory of a GPU. store: parameters,
	 * and the gradients and copies of async mode. */
	struct tern_pool *talk_pool, *staging, *rooms, *store;
	struct tern_pool *pieces; /* of files (store.h): no gradient waits for them */
	struct tern_list peers;
	struct server_peer **workers; /* [job.workers] */
	uint32_t joined_count, bye_count;
	struct tern_talk_budget guest_text; /* limits guests' messages */
	uint64_t notes_ns; /* end of the interval for which notes_left counts */
	uint32_t notes_left, notes_dropped;
	struct tern_timer notes_timer; /* logs how many notes were dropped */

	/* lease.c */
	struct lease *leases; /* sync: [slots] */
	/* Number of server 0's newest decision, as far as this server has heard. */
	uint64_t generation;
	uint32_t lost_count; /* number of lost workers */
	/* Server 0: the worker that evaluates and saves. It stays so until it is lost, also if
	 * a worker with a lower number comes. */
	uint32_t finisher_now;
	struct change change; /* change.c */
	char first_loss[500]; /* reason of the first loss */
	bool all_done; /* server 0, async: the workers were told that no step is left */
	/* Server 0, sync: the workers without a slot were told that the next version is
	 * the last one. */
	bool said_last;
	bool said_may_live; /* start.c: it was noted that all workers are waited for */
	struct tern_list extras; /* duplicate gradients that are still to be refused */
	bool twice_told;         /* twice.c: two computations differ, which was noted */
	bool asked;              /* server.c: this process was asked to end */
	/* leaving.c */
	/* Fires at the end of a roll call: the server then decides which workers may
	 * leave, or, if the job is interrupted, which one saves. */
	struct tern_timer leave_timer;
	uint32_t roll_count; /* roll calls without a decision */
	bool interrupting;   /* the job ends as soon as it is known which worker saves */
	char interrupt_text[400];
	char leave_text[300]; /* why the last worker leaves that said so */
	/* abort.c: an operator has ended the job, so it does not go back. */
	bool by_operator;
	/* back.c: the job goes back as soon as a snapshot is published that was begun after
	 * `back_ns`, for this reason, or when the timer fires; "": it does not. */
	char back_text[300];
	uint64_t back_ns;
	/* view.c: the newest view that is known; number 0: that of the users. On server 0 the next
	 * one, if it has a higher number. */
	struct tern_view view, next_view;
	bool failed_last; /* the last worker that was lost has failed by itself */
	bool no_workers;  /* the job goes back since no worker is left */
	struct tern_timer back_timer;
	struct member_link *member_links; /* members.c */
	uint32_t member_link_count;
	struct tern_timer zero_timer;  /* start.c: next attempt to reach server 0 */
	struct tern_timer start_timer; /* start.c: next note about missing processes */
	struct tern_timer
		absent_timer;     /* start.c: begins without those that are missing */
	uint64_t absent_since_ns; /* since when, if the timer is set */
	uint32_t again_count;     /* start.c: how often server 0 said "again" in a row */
	bool tries_workers_zero;  /* others.c: at which address server 0 is tried next */

	struct tern_ps_job job;
	uint32_t index; /* number of this server */
	struct tern_plan plan;
	/* The job's steps begin with it: 0, a snapshot's step (and its number), or the memory's step. */
	uint64_t first_version;
	uint32_t first_number;
	uint64_t made_ns; /* time when this server was made */
	/* Step of the newest snapshot that this process went on from or heard of; 0: none. */
	uint64_t snapshot_step;
	struct snapshots *snapshots; /* NULL: none are taken */
	struct resume *resume;       /* NULL: the job begins at step 0 */
	struct remote *remote;       /* remote.c; NULL: nothing is read from server 0 */
	/* With opts.snapshots.via: where server 0 is, as the last worker that joined has said; "":
	 * none has. */
	char heard_zero[TERN_ADDRESS_BYTES];
	struct tern_list readings; /* store.c */
	uint32_t reading_count;
	/* Server 0: the newest blob of the job and the one before it (blobs.c); step 0: none. */
	struct tern_blob blobs[TERN_BLOBS];
	struct follow *follow; /* follow.c; NULL: this server has no follower */
	/* memory.c: what this server begins with; NULL: nothing, or the steps have begun. Whether they
	 * have begun with it. Which steps these are, see struct tern_server_memory; 0: not known yet. */
	struct tern_server_memory *from_memory;
	bool forgets; /* the next server is not to have what this one has in memory */
	uint32_t replaced; /* since a process without memory has come as this server */
	bool goes_on;
	uint64_t life;
	bool has_job, running, over, told;
	bool held;        /* server_maybe_end() has waited for a snapshot */
	int64_t finisher; /* if over: the worker that saves; -1: unknown */
	/* If over: the job was interrupted, and the finisher saves the parameters that it
	 * has. */
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
	uint64_t staging_most;  /* budget that all chunks need at one time */
	/* Bytes of gradients received before their turn, beyond the budget. */
	uint64_t wanted_bytes;
	uint32_t window; /* sync: number of slots that a chunk receives at a time */
	/* sync: largest number of gradients and partial sums in a chunk. */
	uint32_t held_most;

	struct server_peer *to_zero; /* others.c: connection to server 0 */

	struct given given; /* given.c */

	/* late.c */
	struct tern_timer late_timer;
	/* Interval, time of the last tick, number of ticks. */
	uint64_t tick_ns, ticked_ns, tick_count;
	/* Durations of the last slots, a ring; number of all slots that were timed. */
	uint64_t slot_ns[LATE_SLOTS], slot_count;
	uint64_t quiet_ns;        /* time since the last gradient was added */
	uint64_t quiet_gradients; /* stats.gradients_added at the start of quiet_ns */

	/* progress.c, on server 0: */
	struct tern_metrics metrics;
	bool metric_refused; /* a metric had no place in `metrics`, and that was noted */
	bool progress_due;   /* a worker has said something since the last report */
	/* Time of the last report; what it had: the step, stats.gradients_added and
	 * stats.staleness_sum. */
	uint64_t progress_ns, progress_step, progress_gradients, progress_staleness;
	struct tern_timer progress_timer;

	/* status.c */
	struct tern_server_history own_history; /* if the options have none */
	struct tern_server_history *history;
	struct status_marks marks;
	uint64_t questions_ns; /* limits the rate of answers */

	/* norm.c */
	uint32_t summed_count; /* chunks whose mean gradient is computed */
	uint64_t norm_step;
	struct norm_share *shares; /* server 0: by server */
	struct tern_buf partials, total;
	struct tern_req partials_req, total_req;
	struct tern_req *total_reqs; /* server 0: by server */

	struct tern_server_stats stats;
};

/* server.c */
void server_fail(struct tern_server *s, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* The same, with the arguments in `ap`. */
void server_fail_args(struct tern_server *s, int status, const char *fmt, va_list ap)
	__attribute__((format(printf, 3, 0)));
/* Ends the job immediately, because a process was asked to end. The finisher saves the
 * present parameters. */
void server_interrupt(struct tern_server *s, const char *why);
void server_aborted(struct server_peer *p, const char *name, const json_t *message);
void server_on_bye(struct server_peer *p);
void server_maybe_end(struct tern_server *s);
void server_refuse(struct server_peer *p, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* The same, but the peer may try again, if it has reason to think that this will change. */
void server_refuse_for_now(struct server_peer *p, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void server_drop(struct server_peer *p);
/* The event TERN_PEER_SUSPECT of the peer. */
void server_suspects(struct server_peer *p, int status);
void server_broken(struct tern_talk *talk, int status);
void server_updater_note(struct tern_server *s);
void server_tell_joined(struct tern_server *s);
void server_note(struct tern_server *s, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* server_note() of a process that has come or left. */
void server_note_coming(struct tern_server *s, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void server_warn(struct tern_server *s, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* heard.c */
void server_heard(struct tern_talk *talk, const json_t *message); /* the talk's heard() */

/* join.c */
void join_on_join(struct server_peer *p, const json_t *message);
void join_on_peer(struct server_peer *p, const json_t *message);
void join_shard_made(struct tern_server *s);
void join_forget_job(struct tern_server *s);
/* Called when all workers have joined this server: connects to server 0, unless this is
 * server 0, and reports that they have joined. */
void join_meet_zero(struct tern_server *s);

/* Tells a worker that it has joined; running: during the steps. */
void join_say_welcome(struct server_peer *p, bool running);

/* guests.c */
void guests_init(struct tern_server *s);
/* True if a note about a guest may be logged: the rate of these notes is limited. */
bool guests_may_note(struct tern_server *s);
void guests_end(struct tern_server *s); /* called when the server ends */
/* A piece of a snapshot is sent to the guest: its time begins anew, and guests_ask_later() does not
 * renew it. */
void guests_stay(struct server_peer *p);
void guests_enter(struct server_peer *p); /* p was accepted, and is a guest now */
void guests_leave(struct server_peer *p); /* p has joined the job: a guest no more */
/* Sets the limits of a guest's message to what a job like this one needs, which p's last
 * message has brought; NULL: to what any job may need. */
void guests_know_job(struct tern_server *s, const struct server_peer *p);
/* Asks guest p to send its message again in a moment: what it asks for may be free then. */
void guests_ask_later(struct server_peer *p);
/* Guest p asks what the job does. The time of a guest runs from its first question on, and
 * guests_ask_later() does not renew it. */
void guests_asked(struct server_peer *p);
/* p was refused: if p is a guest and does not close the connection within LEAVING_NS
 * (guests.c), the server cuts it. */
void guests_refused(struct server_peer *p);
/* Frees guests, and workers in whose place another one is, when their connection has ended:
 * any number may come and go during a job. */
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
/* True if the version travels to the worker as bf16. */
bool chunk_pulls_bf16(const struct chunk *c, uint64_t version, uint32_t worker);
/* sync: rounds a version of the chunk to bf16 if it is sent so. */
void chunk_round(struct chunk *c, uint64_t version);
/* The chunk's parameters in a buffer, as a tensor that can be sent. */
struct tern_tensor chunk_tensor(
	const struct chunk *c, const struct tern_buf *buf, bool bf16);
/* Bytes of a gradient for the chunk on the wire. */
uint64_t chunk_gradient_bytes(const struct chunk *c);
float *chunk_w(const struct chunk *c, uint64_t version);
/* A version that is in memory, as workers pull it, and which is not the job's last: its bytes,
 * and copying it to and from host memory. Negative errno of the updater. */
size_t chunk_version_bytes(const struct chunk *c);
int chunk_get_version(struct chunk *c, uint64_t version, void *out);
int chunk_set_version(struct chunk *c, uint64_t version, const void *values);
/* True if parameters and gradients are in memory of the updater's GPU. */
bool shard_is_on_device(const struct tern_server *s);
/* Sends the newest version to all workers that follow the versions (`follows`): those
 * that began with a slot, or have asked for the versions since. Sends the job's last
 * version to every worker. */
void chunk_publish(struct chunk *c);
/* Sends a version that is still in the chunk's memory. No other version of the same
 * parity may be on its way to this worker. */
void chunk_publish_to(struct chunk *c, uint64_t version, struct server_peer *worker);
/* Called in a task. Makes version `to` out of `from`, which may be the same, with
 * `scale` times the sum of n gradients. If g is NULL, it uses the mean gradient that
 * the updater has computed before, and scale 1. */
void chunk_apply(struct chunk *c, uint64_t from, uint64_t to, const float *const *g,
	unsigned n, float scale, float clip);
/* Called after a task that used the updater. True: the updater has failed, and the server
 * ends the job. */
bool chunk_failed(struct chunk *c);
void chunk_pin(struct chunk *c, const struct tern_buf *buf);
/* True if the received tensor is a gradient for the chunk: its type and size are right.
 * Otherwise ends the job. For requests of status 0 and -EMSGSIZE. */
bool chunk_takes(const struct chunk *c, uint32_t worker, const struct tern_req *req);
void chunk_submit(struct chunk *c, void (*run)(struct tern_task *),
	void (*done)(struct tern_task *));
/* The values of a snapshot are loaded: the chunks are made. */
void shard_loaded(struct tern_server *s);

/* sync.c */
void sync_start(struct tern_server *s);
bool sync_is_done(const struct tern_server *s); /* all chunks have the last version */
/* Lets chunks begin to receive gradients, as far as the staging budget allows. */
void sync_next(struct tern_server *s);
void sync_apply(struct chunk *c, double clip);
/* Applies, if the chunk has only waited for what is over now. */
void sync_maybe_apply(struct chunk *c);
/* Called when slots have new owners: raises the staging budget if a worker has more slots
 * than buffers now. */
void sync_owners_changed(struct tern_server *s);
/* Called when the slot has a new holder, which sends the gradients for `version` and all
 * later versions: receives those that are missing, and refuses those that are here. */
void sync_taken(struct tern_server *s, uint32_t slot, uint64_t version);
/* Called when the slot's holder needs the buffer of its gradient for `version`: receives
 * that gradient before its turn. */
void sync_wanted(struct tern_server *s, uint32_t slot, uint64_t version);

/* lease.c */
int lease_init(struct tern_server *s);
void lease_fini(struct tern_server *s);
void lease_start(struct tern_server *s);
bool lease_is_live(const struct server_peer *worker);
/* The worker that evaluates and saves. At least one worker must be live. */
uint32_t lease_finisher(struct tern_server *s);
void lease_lost(struct server_peer *worker, bool known, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void lease_on_failed(struct server_peer *p, const json_t *message);
void lease_on_report(struct server_peer *p, const json_t *message);
void lease_on_decision(struct server_peer *p, const json_t *message);
/* Tells server 0 (p) that this server has lost a worker; or tells worker p that it is cut off:
 * then `lost` is p. */
void lease_tell_lost(
	struct server_peer *p, const struct server_peer *lost, const char *text);
void lease_on_take(struct server_peer *p, const json_t *message);
void lease_on_holds(struct server_peer *p, const json_t *message);
void lease_on_bye(struct tern_server *s);
void lease_on_done(struct server_peer *p);
void lease_maybe_done(struct tern_server *s);
/* Refuses the gradients of the versions `first` to `last` that the worker sends of the slot
 * although they are here, or come from another worker. */
void lease_refuse_extra(struct chunk *c, struct server_peer *from, uint32_t slot,
	uint64_t first, uint64_t last);

/* given.c */
int given_init(struct tern_server *s);
void given_fini(struct tern_server *s);
/* Called when all processes are connected. If given_is_awaited() then, start_steps() is
 * called later. */
void given_start(struct tern_server *s);
/* True if the steps of this server have to wait for given initial values. */
bool given_is_awaited(const struct tern_server *s);
bool steps_have_begun(const struct tern_server *s);
/* The worker whose given values this server is receiving; NULL: none. */
struct server_peer *given_owing(const struct tern_server *s);
void given_on_lost(struct server_peer *worker); /* the steps may have begun */
void given_on_giver(struct server_peer *zero, const json_t *message);
void given_on_report(struct server_peer *server, const json_t *message);
void given_on_begin(struct server_peer *zero);

/* leaving.c */
void leaving_on_leave(struct server_peer *p, const json_t *message);
void leaving_on_here(struct server_peer *p, const json_t *message);
/* A process was asked to end: ends the job as soon as it is known which worker can save
 * the parameters. */
void leaving_interrupt(struct tern_server *s, const char *why);
/* For an interrupted job: the worker that saves; -1: the steps have not begun, or no
 * worker is left. */
int64_t leaving_finisher(const struct tern_server *s);

/* spare.c */
void spare_start(struct tern_server *s);
void spare_say_last(struct tern_server *s);
void spare_on_where(struct server_peer *p);
void spare_on_follow(struct server_peer *p, const json_t *message);

/* late.c */
void late_start(struct tern_server *s);
/* Something was received from the worker, or has reached it: its time without progress
 * starts at 0 again. */
void late_progress(struct server_peer *worker);
/* late_slot_begins(): a version of chunk `c` has reached the worker. late_slot_ended():
 * the worker's gradient for `c` has arrived. */
void late_slot_begins(struct chunk *c, struct server_peer *worker);
void late_slot_ended(struct chunk *c, struct server_peer *worker);
void late_on_busy(struct server_peer *worker, const json_t *message);
/* Writes the names of the processes that are waited for, and for what. Returns the number of
 * bytes; 0: no other process is waited for. */
size_t late_name_owing(struct tern_server *s, char *names, size_t bytes);
/* Writes what this worker owes ("slot 1 of step 242"). False: nothing, as far as the last tick or
 * late_name_owing() has seen. */
bool late_describe_owed(const struct server_peer *worker, char *text, size_t bytes);

/* progress.c */
void progress_start(struct tern_server *s); /* the steps begin */
void progress_end(struct tern_server *s);   /* reports what was not reported yet */
void progress_on_progress(struct server_peer *worker, const json_t *message);
void progress_forget(struct tern_server *s); /* the metrics of a job that is forgotten */

/* The mean of the workers' last losses by their weights; NAN: there is none. */
double progress_loss(const struct tern_server *s);
/* Learning rate of this step, of tensors without a rule of their own. */
double progress_lr(const struct tern_server *s, uint64_t step);

/* status.c */
void status_init(struct tern_server *s);
void status_steps_begin(struct tern_server *s);
void status_goes_back(struct tern_server *s); /* the job goes back, now or still */
void status_snapshot_ended(
	struct tern_server *s, const struct tern_server_snapshot *snapshot);
void status_mark(struct tern_server *s); /* notes which step this server is at */
/* Answers the question of a guest, or asks it to repeat the question later. */
void status_on_status(struct server_peer *guest, const json_t *message);
/* Makes the message "status": what this server knows of the job, with the workers from number
 * `from` on. */
json_t *status_answer(struct tern_server *s, uint32_t from);

/* others.c */
int others_connect(struct tern_server *s);
void others_lost(struct server_peer *p, int status, const char *name);
bool others_are_connected(const struct tern_server *s);
/* Server 0, when all are connected: true if they and this server have the same process of each
 * worker. A worker that begins anew before the steps leaves one server sooner than another. */
bool others_have_same_workers(const struct tern_server *s);
struct server_peer *others_find(const struct tern_server *s, uint32_t index);
/* Finds another server by its number (ps/view.h); NULL: it is not connected. */
struct server_peer *others_find_number(const struct tern_server *s, uint32_t number);

/* skip.c */
/* A gradient of `from` has come under `step`, and its marks follow (ps/marks.h): receives
 * them, and then calls got(), also if that fails (status below 0). got NULL: the gradient was
 * refused, and its marks are dropped. */
void skip_receive(struct chunk *c, struct server_peer *from, uint64_t step,
	void (*got)(void *arg, int status, const uint8_t *marks), void *arg);
/* Size of the marks of a gradient of this chunk. */
uint64_t skip_marks_bytes(const struct chunk *c);
void skip_begin(struct chunk *c); /* the gradients of another update are received */
/* A gradient of this update has these marks. */
void skip_add(struct chunk *c, const uint8_t *marks);
/* Called in the task of an update: the segments of this step. */
void skip_prepare(struct chunk *c, struct tern_updater_step *step);
/* The last step is done: warns of tensors that were left out of all of them. */
void skip_warn(struct tern_server *s);
void skip_fini(struct chunk *c);
uint32_t skip_tensor_count(const struct chunk *c);
/* Copies by how many updates each tensor was left out of, to memory from malloc(); *skipped
 * is NULL if all were in every update. -ENOMEM. */
int skip_copy(const struct chunk *c, uint64_t **skipped, uint32_t *count);
int skip_set(struct chunk *c, const uint64_t *skipped); /* -ENOMEM */

/* omit.c */
/* A gradient has arrived: notes whether its slot is left out. False: the job ends. */
bool omit_take(struct gradient *g, const struct server_peer *from);
/* All gradients of a step are here: counts the slots that are left out. False: the job ends. */
bool omit_count(struct chunk *c);
/* Slots that were left out of the steps of a snapshot, from which the job goes on. */
void omit_know(struct tern_server *s, const struct tern_omitted *list);

/* twice.c */
/* A gradient has arrived, with these values and these marks; NULL: without marks. */
void twice_note(struct gradient *g, const struct server_peer *from, const float *values,
	const uint8_t *marks);
void twice_on_digests(struct server_peer *p, const json_t *message);

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
void async_worker_lost(struct tern_server *s);
/* How many steps the worker has taken if it waits for a copy that is held until others have
 * taken theirs, or until a snapshot has its copy (cut.h); UINT64_MAX: it does not. The least
 * number of all chunks: while a snapshot is taken, one chunk may defer a gradient that another
 * chunk has applied. */
uint64_t async_held_at(const struct tern_server *s, uint32_t worker);
/* Number of the worker's steps that were applied to the chunk, with the one that is being applied. */
uint64_t async_steps_begun(const struct chunk *c, uint32_t worker);
/* Applies the gradients that wait for the chunk, unless they still have to. */
void async_go_on(struct chunk *c);

#endif
