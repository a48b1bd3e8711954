/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the worker.
 *
 *     worker.c    joining, the end
 *     versions.c  parameters: two buffers, one in use, one being filled
 *     slots.c     gradients: computed one slot after the other, sent while they come
 *     rooms.c     the two buffers that they are computed in
 *     spare.c     a worker without a slot
 *     lease.c     slots of workers that were lost; what keeps this one
 *     wait.c      who is waited for
 *     finish.c    evaluation, writing, saving
 *
 *     JOINING -all servers said welcome-> RUNNING -last version-> FINISHING -the results
 *     are safe-> LEAVING -> over
 */
#ifndef TERN_CLIENT_INTERNAL_H
#define TERN_CLIENT_INTERNAL_H

#include <stdatomic.h>

#include <tern/tern.h>

#include "base/env.h"
#include "client/worker.h"
#include "ps/plan.h"
#include "ps/talk.h"
#include "transport/context.h"

struct worker_server {
	struct tern_worker *worker;
	struct tern_peer *peer;
	struct tern_talk talk;
	struct tern_channel *data;
	uint32_t index;
	bool welcome, gone;
	bool placed;  /* spare.c: its version is known */
	bool counted; /* finish.c: what was applied there is known */
};

enum worker_state {
	WORKER_JOINING,
	WORKER_RUNNING,
	WORKER_FINISHING,
	WORKER_LEAVING,
};

struct version_part { /* a chunk of a version on its way here */
	struct tern_req req;
	struct tern_worker *worker;
	uint64_t version;
	unsigned parity;
};

struct gradient_part { /* a chunk of a gradient on its way out */
	struct tern_req req;
	struct room *room;
};

/* While one gradient is on its way out, the next one is computed. */
#define WORKER_ROOMS 2u

struct room { /* for one gradient */
	struct tern_worker *worker;
	struct tern_buf gradient;    /* of all parameters */
	struct gradient_part *parts; /* [chunks] */
	uint32_t sends_out;
	uint64_t version; /* what its gradient is of */
	uint32_t slot;
	bool announced; /* the engine knows the buffer */
	bool wanted;    /* the servers were asked to take the gradient at once */
};

#define WORKER_LOSS_WINDOW 100u

/* A slot of this worker, of every step. */
struct slot {
	uint32_t number;
	uint64_t generation; /* of the decision that gave it to this worker; 0: first */
	bool taken;          /* the servers know that it comes from here */
	bool pending;        /* of this step it was not computed yet */
	double losses[WORKER_LOSS_WINDOW];
	uint64_t loss_count;
};

struct tern_worker {
	struct tern_worker_opts opts;
	struct tern_env *env;
	struct tern_ps_job job;
	struct tern_plan plan;
	uint64_t my_steps;
	enum worker_state state;
	struct worker_server *servers;
	struct tern_pool *talk_pool, *pool;

	/* versions.c */
	struct tern_buf w[2];
	struct version_part *parts[2]; /* [chunks] */
	uint32_t missing[2];
	uint64_t version; /* the newest complete one */
	bool last_posted; /* the receives of the last one */

	/* spare.c */
	bool spare;              /* it has no slot and gets no versions */
	uint32_t unplaced_count; /* servers that are still asked */
	bool follows;            /* it gets all versions from this one on: */
	uint64_t follow_from;

	/* slots.c */
	struct slot *slots;
	uint32_t slot_count;
	struct room rooms[WORKER_ROOMS];
	uint32_t room_count;
	bool computing;
	struct slot *slot; /* that is being computed, */
	struct room *room; /* and where its gradient goes */
	struct tern_job job_item;
	uint64_t *records;
	struct tern_result result;
	int compute_status;           /* of the engine, for `result` */
	_Atomic uint64_t ready_first; /* elements from here on are final */
	uint32_t unsent;              /* chunks 0..unsent-1 are still to be sent */
	double step_loss;             /* sum over `step_slots` slots */
	uint32_t step_slots;
	double losses[WORKER_LOSS_WINDOW], first_loss;
	uint64_t loss_count, record_count, byte_count;

	/* lease.c */
	uint64_t worked_ns; /* when the engine was last done with something */
	uint32_t finisher;  /* the worker that evaluates and saves */
	bool all_done;      /* async: nobody that is left has a step to take */
	bool finished;      /* it has */
	bool begun;         /* it has had a version: the others may go on without it */
	bool leaving;       /* it was asked to end */
	bool interrupted;   /* the job was: what there is of the parameters is saved */
	char leave_text[200];
	struct tern_timer leave_timer;
	/* wait.c: where the worker was when it was looked at last, and for how long it
	 * has been there when the timer fires. */
	struct tern_timer wait_timer;
	bool wait_begun;
	uint64_t wait_version, wait_ns;

	/* finish.c */
	uint32_t uncounted_count; /* servers that have not said what was applied */
	uint64_t *least_made, *most_made; /* [workers]: steps that all chunks have, any */
	struct tern_job finish_job;
	int finish_status;
	bool final;                   /* the parameters are those of the job's end */
	bool saving;                  /* `file` is under way */
	bool save_failed;             /* it has been said */
	struct tern_timer save_timer; /* the next attempt */
	struct tern_worker_results results;
	char *written;
	float *scores;
	int32_t *score_labels;
	struct tern_slot_loss *slot_losses;
	struct tern_file_op file;
	struct iovec *file_parts;

	/* The end. */
	bool over, told;
	int status;
	char text[512];
	struct tern_deferred end_call;
	struct tern_timer end_timer;
	bool end_due; /* end_timer has fired: the end waits for no connection */
};

/* worker.c */
void worker_fail(struct tern_worker *w, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void worker_leave(struct tern_worker *w); /* it has all it needs */
void worker_saved(struct tern_worker *w); /* what an interrupted job left, or not */
/* It fails alone: the job goes on without this worker, if there are others. */
void worker_give_up(struct tern_worker *w, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* A request for this chunk has failed: mostly its server is down. */
void worker_failed(struct tern_worker *w, uint32_t chunk, int status);
void worker_engine_failed(struct tern_worker *w, int status);
void worker_engine_note(struct tern_worker *w); /* says what the engine has to say */
/* Room for a value of every parameter; announced to the engine, which must be idle. Taken
 * only if 0 is returned. */
int worker_get_vector(struct tern_worker *w, struct tern_buf *out);
int worker_submit(struct tern_worker *w, struct tern_job *job, uint64_t cost_ns);

/* versions.c */
int versions_init(struct tern_worker *w);
void versions_fini(struct tern_worker *w);
void versions_complete(struct tern_worker *w, uint64_t version);
void versions_receive(struct tern_worker *w, uint64_t version);
void versions_pull(struct tern_worker *w); /* async: once more, behind the last step */
struct tern_engine_params versions_current(const struct tern_worker *w);

/* slots.c */
int slots_init(struct tern_worker *w);
void slots_fini(struct tern_worker *w);
void slots_run(struct tern_worker *w); /* a version is complete, or a buffer is free */
bool slots_are_due(const struct tern_worker *w);
int slots_add(struct tern_worker *w, uint32_t number, uint64_t generation);
void slots_begin(struct tern_worker *w); /* a step: all of them are to be computed */

/* rooms.c */
/* Makes another gradient buffer, if there are fewer than WORKER_ROOMS. The engine is told
 * of a buffer that is made `late` only when it is first used: rooms_announce(). */
int rooms_add(struct tern_worker *w, bool late);
void rooms_fini(struct tern_worker *w);
struct room *rooms_find(struct tern_worker *w); /* whose sends have ended; or NULL */
/* No room is free for this slot. */
void rooms_want(struct tern_worker *w, const struct slot *slot);
/* Tells the engine of a buffer that was made late, when the engine may have been busy.
 * Called in a job. */
int rooms_announce(struct tern_worker *w, struct room *room);

/* spare.c */
void spare_init(struct tern_worker *w);
/* True: the spare worker follows from an older version and has to compute that before
 * `version`. */
bool spare_is_behind(const struct tern_worker *w, uint64_t version);
void spare_follow(struct tern_worker *w); /* it has a slot now */
void spare_on_begun(struct worker_server *s);
void spare_on_last(struct worker_server *s);
void spare_on_at(struct worker_server *s, const json_t *message);

/* lease.c */
void worker_on_lost(struct worker_server *s, const json_t *message);
void worker_on_done(struct worker_server *s);
void worker_on_finished(struct worker_server *s);
void worker_on_late(struct worker_server *s, const json_t *message);
void worker_take(struct tern_worker *w, struct slot *slot);

/* wait.c */
void worker_wait_start(struct tern_worker *w);

/* finish.c */
void finish_start(struct tern_worker *w);
void finish_next(struct tern_worker *w); /* who finishes, or whether, has changed */
void finish_run(struct tern_worker *w);  /* the version that counts is here */
void finish_on_applied(struct worker_server *s, const json_t *message);
/* Saves the parameters as they are, if it is this worker that would have finished. */
void finish_interrupted(struct tern_worker *w);
void finish_fini(struct tern_worker *w);

#endif
