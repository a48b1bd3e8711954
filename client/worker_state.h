/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the worker.
 *
 *     worker.c    joining, the end
 *     versions.c  parameters: two buffers, one in use, one being received
 *     keep.c      the job's blob
 *     give.c      initial values that this worker has, and gives to the servers
 *     slots.c     gradients: begun slot by slot, sent while they are computed
 *     early.c     the next slot, while its parameters arrive
 *     compute.h   the seam to the code that computes gradients and evaluates
 *     ready.c     which chunks of a gradient are final
 *     marks.c     tensors that a slot does not push
 *     omit.c      slots whose loss is no number, if the servers leave them out
 *     rooms.c     the buffers for gradients ("rooms"), at most two
 *     spare.c     a worker without a slot
 *     change.c    joining during the steps; slots that move to another worker
 *     twice.c     digests of slots that were taken over
 *     lease.c     slots of workers that were lost; answers to "late"
 *     ahead.c     which slots come next, for a program that loads its data early
 *     wait.c      which process is waited for
 *     places.c    where a server is, if another process has taken its place
 *     report.c    loss and metrics, which server 0 is told
 *     finish.c    the end of the job: evaluation, saving
 *     let_go.c    ending on a context that lives on
 *
 *     JOINING --all servers said welcome--> RUNNING --last version--> FINISHING
 *     FINISHING --the results are safe--> LEAVING -> ended()
 */
#ifndef TERN_CLIENT_WORKER_STATE_H
#define TERN_CLIENT_WORKER_STATE_H

#include <tern/tern.h>

#include "base/env.h"
#include "client/compute.h"
#include "client/ready.h"
#include "client/worker.h"
#include "ps/given.h"
#include "ps/metric.h"
#include "ps/plan.h"
#include "ps/talk.h"
#include "transport/context.h"

struct worker_server {
	struct tern_worker *worker;
	struct tern_peer *peer;
	struct tern_talk talk;
	struct tern_channel *data;
	uint32_t index;   /* in the job */
	uint32_t number;  /* its name for users (ps/view.h) */
	bool up;          /* the connection was there once */
	bool unlinked;    /* the connection is broken, and may be restored */
	bool is_replaced; /* "abort" said: another process is this server now */
	bool welcome, gone;
	/* "welcome" has said: how much right its process has to be this server (members_claim()), and that the
	 * process does not have the job in memory. */
	uint64_t claim;
	bool lacks_memory;
	bool placed;    /* spare.c: its answer to "where" was received */
	bool was_given; /* give.c: it has asked for the given initial values */
	bool counted;   /* finish.c: its message "applied" was received */
};

/*
 *     JOINING --welcome of all servers--> RUNNING --last version--> FINISHING --> LEAVING
 *        |                                   |
 *        +--last version--> FINISHING        +--failure, or asked to leave--> LEAVING
 *
 * A server without a chunk may send its welcome when the last version is already here:
 * then FINISHING follows on JOINING. LEAVING may follow on any state.
 */
enum worker_state {
	WORKER_JOINING,
	WORKER_RUNNING,
	WORKER_FINISHING,
	WORKER_LEAVING,
};

struct version_part { /* a chunk of a version being received */
	struct tern_req req;
	struct tern_worker *worker;
	uint64_t version;
	unsigned parity;
	bool is_here; /* it has been received */
};

struct gradient_part { /* a chunk of a gradient being sent */
	struct tern_req req;
	struct room *room;
};

/*
 * Tells whether the computer holds the buffer, and so may write in it. The computer lets
 * go of the buffer when it ends the slot, also if the slot was revoked before.
 *
 *     IDLE --begin()--> COMPUTING --revoked--> REVOKED
 *       ^                   |                     |
 *       +--- end or fail ---+---------------------+
 */
enum room_state {
	ROOM_IDLE,
	ROOM_COMPUTING,
	ROOM_REVOKED,
};

struct room { /* buffer of one gradient */
	struct tern_worker *worker;
	enum room_state state;
	/* The slot whose gradient the computer computes into this buffer (compute.h). */
	struct tern_work work;
	struct tern_buf gradient; /* gradient of all parameters */
	/* The chunks that are sent as bf16, one after the other (struct tern_chunk). */
	struct tern_buf bf16;
	struct gradient_part *parts; /* one entry per chunk */
	uint32_t sends_out;          /* number of chunks whose sends have not ended */
	/* Version of the parameters from which the gradient is computed, and its slot. */
	uint64_t version;
	uint32_t slot;
	bool used; /* a gradient was computed in the buffer */
	/* The slot was taken over with this gradient, so a lost worker may have computed
	 * it, too. */
	bool taken_over;
	bool wanted;       /* the servers were asked to take the gradient out of turn */
	bool omitted;      /* omit.c: the slot is left out, so zeros are sent */
	uint64_t begun_ns; /* when its computation began */
};

#define PAGE_BYTES_MAX     (64ull << 10) /* of any system that Tern runs on */
#define WORKER_LOSS_WINDOW 100u

/* A slot (a share of each step's records) whose gradient this worker computes in every
 * step. */
struct slot {
	uint32_t number;
	/* Number of server 0's decision that gave the slot to this worker; 0: the
	 * worker has had it since the start. */
	uint64_t generation;
	bool taken;   /* the servers know that this worker sends its gradients */
	bool pending; /* the slot's computation has not begun yet in this step */
	double losses[WORKER_LOSS_WINDOW];
	uint64_t loss_count;
	bool moved; /* another worker's now, but still being computed here (change.c) */
};

/* A slot that was moved to another worker. */
struct moved {
	uint32_t slot;
	uint64_t generation; /* number of server 0's decision */
	uint64_t stop;  /* this worker sends no gradient of this and later versions */
	uint32_t asked; /* number of servers that have asked for `stop` */
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
	struct tern_pool *bf16_pool; /* rooms.c; NULL: no gradient is sent as bf16 */

	/* versions.c */
	struct tern_buf w[2];
	struct version_part *parts[2]; /* one entry per chunk */
	uint32_t missing[2];
	uint64_t version; /* complete, and in use; the next one may be here, too */
	/* The job's first version, which is being received before it is complete: 0, or that
	 * of a snapshot. It is known when a server has said welcome, or all have, if they begin with what
	 * they have in memory. */
	uint64_t first_version;
	/* The version with which this worker begins: the job's first one, unless it has joined
	 * during the steps. */
	uint64_t own_version;
	json_int_t first_number; /* of the snapshot */
	/* Servers begin with what they have in memory, of this life of the job (server/memory.c): then
	 * first_version is the lowest that they have named so far. 0: they begin with a snapshot. */
	json_int_t life;
	bool welcomed;    /* the first version is known, and being received */
	bool heard_begun; /* server 0 has told this worker, a spare, that the steps begin */
	bool back_is_possible; /* opts.goes_back, and the servers may go back, too */
	bool server_is_gone; /* a connection has ended, so this worker is not to blame */
	json_t *view; /* the view with which the job goes back, told to all servers; NULL: none */
	/* change.c: a random number of this process; whether it has joined during the steps;
	 * slots that were moved away, until all servers have asked about them. */
	uint64_t incarnation;
	bool joined_late;
	struct moved *moved;
	uint32_t moved_count, moved_room;
	bool last_posted; /* the receives of the last version are posted */

	/* give.c */
	bool has_given; /* give_values has the initial values that this worker gives */
	struct tern_buf give_values; /* w[1], or memory of give_pool */
	struct tern_pool *give_pool; /* NULL: the parameters are in host memory */
	struct give_part *give_parts;
	uint32_t give_count;

	/* spare.c */
	bool spare;              /* began without a slot, and has no version yet */
	uint32_t unplaced_count; /* servers whose answer to "where" is missing */
	bool follows;            /* has asked for all versions from follow_from on */
	uint64_t follow_from;

	/* slots.c */
	struct slot *slots;
	uint32_t slot_count;
	struct room rooms[TERN_GRADIENT_BUFFERS];
	uint32_t room_count;
	bool beginning; /* slots_run() is under way */
	/* The computer holds a slot that was not revoked. */
	bool computing;
	/* If `computing`: this slot, the buffer for its gradient, and the chunks of the
	 * gradient that can be sent. */
	struct slot *slot;
	struct room *room;
	struct ready ready;

	/* early.c: a slot is announced to the computer, and which one. */
	bool is_announced;
	struct tern_work announced;

	/* marks.c: a bit for each tensor that this slot has not pushed, and their number. */
	uint8_t *unpushed;
	uint32_t unpushed_count;
	uint8_t *marks; /* what marks_of() returns */

	/* omit.c: the servers leave slots out; zeros, which are sent for all of their chunks. */
	bool omits;
	struct tern_pool *zeros_pool; /* NULL: no slot was left out yet */
	struct tern_buf zeros;

	/* Sums over the slots of the present step: their weights, and their losses times
	 * their weights. */
	double step_weight, step_loss;
	double losses[WORKER_LOSS_WINDOW], first_loss;
	uint64_t loss_count, record_count, byte_count;

	/* lease.c */
	uint64_t worked_ns; /* time at which a computation last completed something */
	uint64_t slot_ns;  /* how long the last slot was computed; 0: server 0 knows it */
	uint32_t finisher; /* the worker that evaluates and saves */
	bool all_done;     /* async: all remaining workers have taken their last step */
	bool finished;     /* a worker has said bye: the results are safe */
	bool begun;   /* the steps have begun: the job may go on without this worker */
	bool leaving; /* this worker was asked to leave */
	bool interrupted; /* the job is interrupted: save the present parameters */
	bool by_operator; /* an operator has ended the job, which does not go back */
	char leave_text[200];
	struct tern_timer leave_timer;
	/* wait.c: values of `begun` and `version` when the wait last started anew, and
	 * for how long they have been unchanged when the timer fires next. */
	struct tern_timer wait_timer;
	bool wait_begun;
	uint64_t wait_version, wait_ns;

	/* places.c: when this worker was made. */
	uint64_t joined_ns;
	struct tern_timer places_timer;

	struct worker_keep {            /* keep.c */
		struct tern_blob given; /* in the present slot; step 0: none */
		bool slot_ends;         /* the slot's last part may be sent */
		bool awaited; /* the slot has ended, with this loss, but for server 0's answer */
		double loss;
		struct tern_blob begins[TERN_BLOBS]; /* until the steps begin */
	} keep;

	/* report.c */
	struct tern_metrics metrics;
	bool metric_is_new[TERN_METRICS_MAX]; /* by metric: server 0 was not told of it */
	double report_loss, report_weight;    /* of the last step; weight 0: none yet */
	bool report_due;                      /* server 0 was not told all of that */
	uint64_t reported_ns;                 /* time of the last message; 0: none yet */
	struct tern_timer report_timer;

	/* finish.c */
	/* If the parameters are in memory of a GPU: the copy of a version that is saved.
	 * fetched_version: UINT64_MAX if there is none yet. */
	float *fetched;
	uint64_t fetched_version;
	uint32_t uncounted_count; /* servers whose message "applied" is missing */
	/* For each worker: how many of its steps were applied to all chunks, and to at
	 * least one. */
	uint64_t *least_made, *most_made;
	struct tern_task finish_task; /* checks that the parameters are numbers */
	bool checking;                /* finish_task is under way */
	bool finish_numbers;          /* they are */
	struct tern_evaluation evaluation;
	bool final;                   /* the parameters are the final ones */
	bool saving;                  /* `file` is being written */
	int save_failed;              /* the last failure that was reported; 0: none */
	struct tern_timer save_timer; /* after a failed attempt: starts the next one */
	struct tern_worker_results results;
	struct tern_slot_loss *slot_losses;
	struct tern_file_op file;
	struct iovec *file_parts;

	/* worker.c: how the worker ends. */
	bool over, told;
	int status;
	char text[512];
	struct tern_deferred end_call;
	struct tern_timer end_timer;
	bool end_due; /* end_timer has fired: the end no longer waits for connections */
};

/* worker.c */
/* Changes the state, as the diagram of enum worker_state allows. */
void worker_enter(struct tern_worker *w, enum worker_state next);
/* True if this worker may be made anew, as its servers may. */
bool worker_may_go_back(const struct tern_worker *w);
void worker_fail(struct tern_worker *w, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Leaves the job: the worker needs nothing more from the servers. */
void worker_leave(struct tern_worker *w);
/* Saving has ended, with or without success, when the worker is over already. */
void worker_saved(struct tern_worker *w);
/* Only this worker fails: the job goes on without it, if there are others. */
void worker_give_up(struct tern_worker *w, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* A request for this chunk has failed, usually because the chunk's server is down. If the
 * event DOWN does not follow within a second, this worker gives up. */
void worker_failed(struct tern_worker *w, uint32_t chunk, int status);
/* Takes a buffer for the flat vector of all parameters from the pool, and announces it to
 * the computer, which must be idle. On an error no buffer is taken, and w->text may say
 * why. */
int worker_get_vector(struct tern_worker *w, struct tern_buf *out);

/* versions.c */
int versions_init(struct tern_worker *w);
void versions_fini(struct tern_worker *w);
void versions_complete(struct tern_worker *w, uint64_t version);
void versions_receive(struct tern_worker *w, uint64_t version);
/* async: asks for the parameters once more after the last step. */
void versions_pull(struct tern_worker *w);
const struct tern_buf *versions_current(const struct tern_worker *w);

/* keep.c */
/* A slot begins, in which no blob was given yet. */
void keep_begin_slot(struct tern_worker *w);
/* True if the last part of the present slot's gradient must not be sent yet. */
bool keep_holds_last(const struct tern_worker *w);
/* The computer has ended the slot. True: slots_end() follows when server 0 has the blob, unless the
 * slot is revoked before. */
bool keep_awaits(struct tern_worker *w, double loss);
/* The slot is revoked. True: the computer has ended it, and server 0's answer is not needed. */
bool keep_stop(struct tern_worker *w);
void keep_on_kept(struct worker_server *s, const json_t *message);
/* Takes the blobs of "welcome" or "yours". False: they were wrong, and the worker has failed. */
bool keep_hear(struct worker_server *s, const json_t *message);
/* The steps of this worker begin with this version: says which blob belongs to it. */
void keep_begin(struct tern_worker *w, uint64_t version);
void keep_fini(struct tern_worker *w);

/* give.c */
int give_init(struct tern_worker *w);
void give_fini(struct tern_worker *w);
/* True while given values are being sent. */
bool give_is_moving(const struct tern_worker *w);
/* Handles "give": sends this server's share of the given initial values. */
void give_on_give(struct worker_server *s);

/* slots.c */
int slots_init(struct tern_worker *w);
void slots_fini(struct tern_worker *w);
/* Begins the next slot if that is possible now. Called when a version is complete, a
 * buffer is free, or a slot was computed or added. */
void slots_run(struct tern_worker *w);
/* Ends the slot that the computer has ended: its last part can be sent. */
void slots_end(struct tern_worker *w, double loss);
/* Revokes the slot that is being computed, if there is one: its gradient is not needed any
 * more. */
void slots_revoke(struct tern_worker *w);
bool slots_are_due(const struct tern_worker *w);
int slots_add(struct tern_worker *w, uint32_t number, uint64_t generation);
/* Returns the worker's slot of this number; NULL: it has none. */
struct slot *slots_find(const struct tern_worker *w, uint32_t number);
/* The slot is another worker's now. If it is being computed, that goes on to its end. */
void slots_remove(struct tern_worker *w, struct slot *slot);
/* Completes the next version, if it is here and no slot is left to be computed. Then a slot
 * has ended, or is gone. */
bool slots_complete_step(struct tern_worker *w);
void slots_begin(struct tern_worker *w); /* begins a step: all slots are to be computed */
/* tern_work.first of this slot of this version; in async mode of worker `index`. */
uint64_t slots_first_record(
	const struct tern_ps_job *job, uint32_t index, uint64_t version, uint32_t slot);

/* Sets *work to what the computer is to compute for the slot, without a gradient. */
void slots_describe(const struct tern_worker *w, uint32_t slot, uint64_t version,
	struct tern_work *work);

/* early.c */
/* Announces the next slot to the computer, if it is time. Called when a slot was
 * computed. */
void early_run(struct tern_worker *w);
void early_arrived(struct tern_worker *w); /* a chunk of a version was received */
void early_cancel(struct tern_worker *w);  /* the announced slot will not be begun */

/* marks.c */
int marks_init(struct tern_worker *w);
void marks_begin(struct tern_worker *w); /* another slot begins */
/* The slot that is being computed does not push this tensor of the job. */
void marks_say(struct tern_worker *w, uint32_t param);
/* True if a tensor of the chunk was not pushed: then the marks of the chunk are sent, under
 * the step of its gradient. */
bool marks_send(struct tern_worker *w, uint32_t chunk, uint64_t step);
/* Returns the marks of the chunk, of *bytes, until the next call; NULL: all its tensors were
 * pushed. */
const uint8_t *marks_of(const struct tern_worker *w, uint32_t chunk, uint64_t *bytes);
void marks_fini(struct tern_worker *w);

/* omit.c */
/* The slot that was computed in this room is left out. Negative errno: it cannot be. */
int omit_slot(struct tern_worker *w, struct room *room);
void omit_fini(struct tern_worker *w);

/* twice.c */
/* The gradient in the room is computed. */
void twice_say(struct tern_worker *w, const struct room *room);

/* rooms.c */
/* Makes the pool for what is sent as bf16. */
int rooms_init_bf16(struct tern_worker *w);
/* The part of a gradient that chunk number `chunk` is, as a tensor that can be sent: zeros if the
 * slot is left out. */
struct tern_tensor rooms_tensor(const struct room *room, uint32_t chunk);
/* Makes another gradient buffer; there must be fewer than TERN_GRADIENT_BUFFERS. With
 * `late`, the buffer is not announced to the computer, which may be busy. */
int rooms_add(struct tern_worker *w, bool late);
void rooms_fini(struct tern_worker *w);
/* Returns a gradient buffer that no computer holds and that is not being sent; or
 * NULL. */
struct room *rooms_find(struct tern_worker *w);
/* No gradient buffer is free for this slot: asks the servers to take gradients of later
 * slots, which are in the buffers, out of turn. */
void rooms_want(struct tern_worker *w, const struct slot *slot);

/* spare.c */
void spare_init(struct tern_worker *w);
/* True if a spare worker (one without a slot until now) follows the versions from one
 * older than `version` on: it must first compute its slots from that older version. */
bool spare_is_behind(const struct tern_worker *w, uint64_t version);
void spare_follow(struct tern_worker *w); /* when it gets a slot: asks for versions */
void spare_maybe_begin(struct tern_worker *w); /* when the first version is known, too */
void spare_on_begun(struct worker_server *s);
void spare_on_last(struct worker_server *s);
void spare_on_at(struct worker_server *s, const json_t *message);

/* change.c */
/* All servers have welcomed this worker while the steps run. */
void change_ready(struct tern_worker *w);
void change_on_yours(struct worker_server *s, const json_t *message);
/* The job has more workers now. */
void change_on_grown(struct worker_server *s, const json_t *message);
void change_on_moved(struct worker_server *s, const json_t *message);
/* True if the slot was moved away by a later decision than this one. */
bool change_is_gone(const struct tern_worker *w, uint32_t slot, uint64_t generation);
void change_fini(struct tern_worker *w);

/* lease.c */
void worker_on_lost(struct worker_server *s, const json_t *message);
void worker_on_done(struct worker_server *s);
void worker_on_finished(struct worker_server *s);
void worker_on_late(struct worker_server *s, const json_t *message);
void worker_take(struct tern_worker *w, struct slot *slot);

/* wait.c */
void worker_wait_start(struct tern_worker *w);

/* places.c */
void places_start(struct tern_worker *w); /* the worker joins its servers */
void places_end(struct tern_worker *w);
bool places_has_other(
	const struct worker_server *s); /* the server's other address is known */
/* The next worker joins this server at its other address, if anybody has told that one. False: nobody
 * has. The caller ends this worker with -EAGAIN. */
bool places_turn(struct worker_server *s);
/* Ends this worker, whose next one joins this server at its other address. False: none is known. */
bool places_look_elsewhere(struct worker_server *s);
/* The steps have not begun for long: turns to the other address of a server. False: no server has one
 * that is worth a try. */
bool places_turn_at_last(struct tern_worker *w);
/* Some servers have the job in memory, and some do not: ends the worker, whose next one joins one of those
 * that do not at its other address, if the process there may have it, and was not tried since the steps. */
bool places_look_for_memory(struct tern_worker *w);
/* This server cannot be reached, and no other address of it is known: ends the worker, whose next one
 * joins another server at its other address, the one that was turned least. False: none has one. */
bool places_ask_elsewhere(const struct worker_server *unreached);
void places_on_address(struct worker_server *from, const json_t *message);
void places_on_follower(struct worker_server *s, const json_t *message);

/* report.c */
/* The worker's loss in the step that has ended, and the sum of its slots' weights. */
void report_loss(struct tern_worker *w, double loss, double weight);
/* Tells server 0 now what it was not told yet. */
void report_say(struct tern_worker *w);

/* finish.c */
int finish_init(struct tern_worker *w);
void finish_start(struct tern_worker *w);
/* Called when the finisher or the state of the job has changed: starts to finish the
 * job, or leaves it, if it is time. */
void finish_next(struct tern_worker *w);
void finish_run(struct tern_worker *w); /* evaluates and saves the final version */
void finish_on_applied(struct worker_server *s, const json_t *message);
/* Saves the present parameters, if there are any and this worker is the `finisher`. */
void finish_interrupted(struct tern_worker *w);
void finish_fini(struct tern_worker *w);

#endif
