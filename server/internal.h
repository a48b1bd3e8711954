/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the server.
 *
 *     server.c  who is here: joining, goodbye, failure
 *     guests.c  who has not said what it is, and is not known to belong here
 *     shard.c   the parameters held here: memory, versions, the sends of a version
 *     sync.c    the step machine of a chunk
 *     lease.c   who computes which slot, and what happens when a worker is lost
 *     late.c    workers that make no progress
 *     leaving.c workers that are asked to end
 *     spare.c   workers without a slot
 *     start.c   until the steps begin: workers that leave before, and the start itself
 *     others.c  the servers of a job among themselves
 *     norm.c    the number over all chunks and servers that a step may need
 *     async.c   gradients applied as they come
 */
#ifndef TERN_SERVER_INTERNAL_H
#define TERN_SERVER_INTERNAL_H

#include <tern/tern.h>

#include "base/env.h"
#include "ps/job.h"
#include "ps/plan.h"
#include "ps/talk.h"
#include "server/server.h"
#include "transport/context.h"

/* Of the staging pool, for gradients. The rest is for messages, and for the ends of
 * slabs, where no chunk fits. */
#define STAGING_MOST (TERN_POOL_BYTES_MAX / 16 * 15)

/* Another process of the job. */
struct server_peer {
	struct tern_list node;
	struct tern_server *server;
	struct tern_peer *peer;
	struct tern_talk talk;
	struct tern_channel *data;
	bool is_worker, is_server, said_bye, refused;
	bool done;  /* async: it has taken its last step */
	bool gone;  /* nothing may be posted any more */
	bool freed; /* the peer was given to tern_peer_free() */
	struct tern_timer guest_timer;
	bool lost;            /* a worker that the job goes on without */
	bool leaving, may_go; /* a worker that was asked to end, see leaving.c */
	bool welcome;         /* a worker that counts as joined */
	bool left;            /* a worker that is gone before the start, see start.c */
	char zero[128];       /* a worker's address of server 0 */
	uint32_t index;
	uint32_t in_place_count; /* gradients that are read in its memory, or will be */
	struct tern_ps_job job;  /* a server's: what it knows of it */

	bool follows;      /* sync: a worker that is sent every version */
	struct pull *pull; /* async: it gets the parameters once more; else NULL */

	/* late.c, a worker's */
	uint64_t slot_since_ns;      /* when it could begin with its present slot */
	bool owes;                   /* others may wait for it, for this: */
	uint64_t owed_step;          /* UINT64_MAX: for the end of the job */
	uint32_t owed_slot;          /* sync */
	uint64_t silent_ns, late_ns; /* without progress; while another one waits */
	uint32_t waits_for_server;   /* + 1, as it said itself; 0: for none */
};

/* A worker or a server of the job. A server that came before the job did can say that it
 * is one, and is none until it was compared. */
bool server_has_joined(const struct server_peer *p);

/* Times of slots that the median is taken of. */
#define LATE_SLOTS 31u

/* Of a worker's last copies (async.c): how many steps of each worker they contain. */
struct pull {
	uint32_t chunks_left;
	uint64_t *least, *most; /* [workers]: in all chunks that were copied, in any */
	uint64_t counts[];
};

/* Who computes a slot. */
struct lease {
	struct server_peer *holder; /* NULL: lost, and nobody has taken the slot yet */
	struct server_peer *owner;  /* the holder, or whom server 0 gave the slot to */
	uint64_t generation;        /* of the taking; 0: as the job began */
};

/*
 * A chunk in sync mode:
 *
 *     HOLDING --budget--> GATHERING --all slots--> [SUMMING -> WAITING for the norm ->]
 *     APPLYING --> (sends of the new version) --> HOLDING the next
 *
 * HOLDING: version `version` is complete, nobody's gradient is being received.
 */
enum chunk_state {
	CHUNK_HOLDING,
	CHUNK_GATHERING,
	CHUNK_SUMMING,
	CHUNK_WAITING,
	CHUNK_APPLYING,
};

struct gradient { /* of one slot */
	struct tern_req req;
	struct chunk *chunk;
	struct tern_buf room;
	struct server_peer *from; /* whom it is being received from; NULL: nobody */
	struct server_peer
		*in_place; /* in whose memory it is read, or will be; else NULL */
	bool arrived;
	bool wanted; /* before its turn: its worker needs the buffer */
};

struct publication { /* a version on its way to a worker */
	struct tern_req req;
	struct chunk *chunk;
	unsigned parity;
};

struct chunk {
	struct tern_list node; /* server->holding, while it waits for the budget */
	struct tern_server *server;
	const struct tern_chunk *plan;
	uint32_t number; /* in the plan */
	enum chunk_state state;
	uint64_t version;
	struct tern_buf w[2];            /* by parity of the version */
	struct tern_updater_chunk *kept; /* the updater's: what only it needs */
	int status;                      /* of the updater, in the last job */
	double squares;
	struct gradient *gradients; /* sync: [slots] */
	unsigned arrived_count;
	uint32_t folded; /* slots whose gradients are in partial sums, the first ones */
	bool folding;    /* a job adds the next ones */
	struct publication *publications; /* [2][workers] */
	unsigned sends_out[2];
	float **sources; /* [slots]: where they lie */
	struct tern_job job;
	struct stream *streams; /* async: [workers] */
	struct tern_list ready; /* async: streams whose gradient waits to be applied */
	bool busy;              /* async: a job is running */
};

/* A chunk of a slot's gradient that a worker sends although it is here: for versions
 * `version` to `last`, one after the other. */
struct extra {
	struct tern_list node; /* server->extras */
	struct tern_req req;
	struct chunk *chunk;
	struct server_peer *from;
	uint32_t slot;
	uint64_t version, last;
};

struct stream {                /* async: a worker's way with one chunk */
	struct tern_list node; /* chunk->ready */
	struct chunk *chunk;
	uint32_t worker;
	uint64_t step; /* the worker's own */
	uint64_t seen; /* version that it was sent */
	struct tern_req gradient_req, parameter_req;
	struct tern_buf gradient, copy;
	bool sending; /* the copy is on its way */
	bool pulled;  /* its turn has no gradient: the first copy, or one more at the end
		       */
};

struct norm_share { /* server 0: partials of one server */
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
	uint64_t guest_bytes_left; /* for what guests say, in all */
	uint64_t notes_ns;         /* notes about guests are rationed until then */
	uint32_t notes_left, notes_dropped;

	/* lease.c */
	struct lease *leases;    /* sync: [slots] */
	uint64_t generation;     /* server 0: of the newest decision */
	uint32_t lost_count;     /* workers */
	char first_loss[400];    /* why the first one was */
	bool all_done;           /* server 0, async: the workers have been told so */
	bool said_last;          /* server 0, sync: the spares have been told */
	struct tern_list extras; /* duplicates that are still to come */
	struct tern_timer leave_timer; /* leaving.c */
	struct tern_timer zero_timer;  /* start.c: the next attempt to reach server 0 */
	struct tern_timer start_timer; /* start.c: who is waited for is said */

	struct tern_ps_job job;
	uint32_t index; /* which server this is */
	struct tern_plan plan;
	bool has_job, running, over, told;
	int64_t finisher; /* once over: the worker that saves; -1: as it knows */
	bool save;  /* `over` by a signal: the worker that finishes saves what it has */
	int status; /* once over: how it ended, and the sentence */
	char text[512];
	struct tern_deferred end_call;
	struct tern_timer end_timer;

	struct chunk *chunks;
	uint32_t chunk_count, made_count;
	struct tern_list holding;
	uint64_t staging_left, staging_bytes; /* of the budget */
	uint64_t staging_most;                /* what all chunks at once need */
	uint32_t window;    /* sync: slots that a chunk receives at a time */
	uint32_t held_most; /* sync: gradients and partial sums that a chunk holds */
	unsigned jobs_out;

	struct server_peer *to_zero; /* others.c */

	/* late.c */
	struct tern_timer late_timer;
	uint64_t tick_ns, ticked_ns, tick_count; /* length of a tick, the last one */
	uint64_t slot_ns[LATE_SLOTS], slot_count;
	uint64_t quiet_ns, quiet_gradients; /* without a step; added until then */

	/* norm.c */
	uint32_t summed_count;
	uint64_t norm_step;
	struct norm_share *shares;
	struct tern_buf partials, total;
	struct tern_req partials_req, total_req;
	struct tern_req *total_reqs; /* server 0: [servers] */
	unsigned totals_out;

	struct tern_server_stats stats;
};

/* server.c */
void server_fail(struct tern_server *s, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Ends the job because a process was asked to end; the parameters are saved as they are.
 */
void server_interrupt(struct tern_server *s, const char *why);
void server_aborted(struct server_peer *p, const char *name, const json_t *message);
void server_shard_made(struct tern_server *s);
void server_forget_job(struct tern_server *s);
void server_meet_zero(struct tern_server *s); /* all workers are here: server 0 is told */
void server_maybe_end(struct tern_server *s);
void server_refuse(struct server_peer *p, const char *text);
void server_drop(struct server_peer *p);
void server_broken(struct tern_talk *talk, int status);
void server_updater_note(struct tern_server *s);
void server_note(struct tern_server *s, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* guests.c */
void guests_init(struct tern_server *s);
/* Charges guests with what the job takes that a server has brought. -ENOBUFS. */
int guests_keep_job(struct server_peer *p);
void guests_forget_job(struct server_peer *p);
/* Is it worth a line that one was refused? Not if that happens all the time. */
bool guests_may_note(struct tern_server *s);
void guests_enter(struct server_peer *p); /* it has just been accepted */
void guests_leave(struct server_peer *p); /* it is one of the job */
/* It was refused, and has a moment to hear why. */
void guests_refused(struct server_peer *p);
/* Frees those that are gone: strangers may come and go for as long as a job runs. */
void guests_reap(struct tern_server *s);

/* shard.c */
/* Is there room for its share of this job? Before anything is made. -E2BIG. */
int shard_check(const struct tern_server *s, const struct tern_ps_job *job,
	uint32_t index, struct tern_ps_text *why);
int shard_init(struct tern_server *s); /* the books of it, and the pool */
/* Makes the chunks, one after the other in jobs: of a large model it takes seconds, in
 * which connections want to be answered. server_shard_made() comes then. */
void shard_make(struct tern_server *s);
bool shard_is_made(const struct tern_server *s);
void shard_fini(struct tern_server *s);
float *chunk_w(const struct chunk *c, uint64_t version);
void chunk_publish(struct chunk *c); /* sends its version to whoever follows */
/* A version that it has; the worker is not being sent one of the same parity. */
void chunk_publish_to(struct chunk *c, uint64_t version, struct server_peer *worker);
/* In a job: from version `from` into `to`, which may be the same, with `scale` times the
 * sum of n gradients, or with what was summed if g is NULL; scale is 1 then. */
void chunk_apply(struct chunk *c, uint64_t from, uint64_t to, const float *const *g,
	unsigned n, float scale, float clip);
/* After a job: whether it failed, which has ended the server. */
bool chunk_failed(struct chunk *c);
void chunk_pin(struct chunk *c, const struct tern_buf *buf);
void chunk_submit(
	struct chunk *c, void (*run)(struct tern_job *), void (*done)(struct tern_job *));

/* sync.c */
void sync_start(struct tern_server *s);
bool sync_is_done(const struct tern_server *s); /* its chunks have the last version */
void sync_next(struct tern_server *s); /* more budget: let the next chunks gather */
void sync_apply(struct chunk *c, double clip);
void sync_sends_ended(struct chunk *c);
/* The slot has a new holder, who sends what belongs to `version` and all later ones. */
void sync_taken(struct tern_server *s, uint32_t slot, uint64_t version);
/* Its holder needs the buffer of what it has computed for `version`. */
void sync_wanted(struct tern_server *s, uint32_t slot, uint64_t version);

/* lease.c */
int lease_init(struct tern_server *s);
void lease_fini(struct tern_server *s);
void lease_start(struct tern_server *s);
bool lease_is_live(const struct server_peer *worker);
/* The worker that evaluates and saves; one of them must be live. */
uint32_t lease_finisher(const struct tern_server *s);
void lease_lost(struct server_peer *worker, bool known, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void lease_on_lost(struct server_peer *p, const json_t *message);
void lease_tell_lost(struct server_peer *p, uint32_t lost, const char *text);
void lease_on_take(struct server_peer *p, const json_t *message);
void lease_on_holds(struct server_peer *p, const json_t *message);
void lease_on_bye(struct tern_server *s);
void lease_on_done(struct server_peer *p);
void lease_maybe_done(struct tern_server *s);
void lease_refuse_extra(struct chunk *c, uint32_t slot, uint64_t first, uint64_t last);

/* start.c */
bool start_has_workers(const struct tern_server *s);
void start_maybe(struct tern_server *s);
void start_wait(struct tern_server *s); /* it has a job */
/* Who has not come yet; how many bytes were written. */
size_t start_name_missing(const struct tern_server *s, char *text, size_t bytes);
void start_left(struct server_peer *p, const char *text);
void start_on_lost(struct server_peer *p, uint32_t worker, const char *text);
void start_on_start(struct tern_server *s);
void start_again(struct tern_server *s);
void start_forget(struct tern_server *s);

/* leaving.c */
void leaving_on_leave(struct server_peer *p, const json_t *message);
/* Server 0, as the job is interrupted: who saves. -1: nobody is here. */
int64_t leaving_finisher(const struct tern_server *s);

/* spare.c */
void spare_start(struct tern_server *s);
void spare_say_last(struct tern_server *s);
void spare_on_where(struct server_peer *p);
void spare_on_follow(struct server_peer *p, const json_t *message);

/* late.c */
void late_start(struct tern_server *s);
void late_progress(struct server_peer *worker); /* it took in something, or sent it */
/* Chunk `c` of a version has reached it; a slot's gradient for `c` came from it. */
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
bool async_is_done(const struct server_peer *p); /* this worker has made all its steps */
void async_on_pull(struct server_peer *p);

#endif
