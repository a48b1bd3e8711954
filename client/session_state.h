/* SPDX-License-Identifier: Apache-2.0 */
/* A session, for its files: session_start.c (tensors, the job, the start), session.c (slots
 * and the end), ahead.c (the slots that come next) and session_back.c (going back). */
#ifndef TERN_CLIENT_SESSION_STATE_H
#define TERN_CLIENT_SESSION_STATE_H

#include <stdatomic.h>

#include <tern/train.h>

#include "base/recent.h"
#include "client/compute.h"
#include "client/verify.h"
#include "client/worker.h"
#include "kernels/kernels.h"
#include "ps/blob.h"
#include "ps/job.h"
#include "ps/view.h"
#include "transport/context.h"

/*
 * The slot of a session.
 *
 *     IDLE --on_begin()--> OFFERED --next()--> HELD --end or fail--> IDLE
 *       |                                       ^
 *       +--on_announce()--> ANNOUNCED           | on_begin() of this work
 *                               +---next()--> EARLY
 *
 * EARLY: `held` and `early`. If the announcement is taken back, an early slot is revoked:
 * the program ends it, and the worker's next slot is offered after that.
 */
struct tern_slot {
	struct tern_session *session;
	struct tern_work *work; /* NULL: the worker has begun no slot */
	/* The work that the worker has announced, and will begin next; NULL: none. */
	const struct tern_work *announced;
	/* The program holds a slot: `now` is its work, and does not change. */
	bool held;
	struct tern_work now;
	/* The program holds it since its announcement, and has this work. A thread without the
	 * lock may read a tensor that is here when another thread begins the work. */
	atomic_bool early;
	const struct tern_work *early_work;
	bool revoked;
	bool evaluate;    /* the program is to evaluate the parameters */
	double weight;    /* of its loss */
	bool *pushed;     /* one entry per tensor, by id */
	uint32_t pushing; /* number of tensors that are reserved */
};

/*
 * Going back with the job (session_back.c).
 *
 *     AT_WORK --ended() with -EAGAIN--> ENDING --the old worker is gone--> AT_WORK
 *        |                                |
 *        |                                +--server_wait_s is over, or the program leaves-->
 *        |                                         the session has ended
 *        +--ended() with -EAGAIN, and this worker is the finisher--> ALONE
 */
enum back_state {
	BACK_AT_WORK, /* the worker is in the job, or joins it */
	BACK_ENDING,  /* the worker is over, and another one takes its place */
	BACK_ALONE,   /* the worker is over, and the program uses the final parameters */
};

struct session_back {
	uint64_t wait_ns; /* 0: the session does not go back */
	enum back_state state;
	/* When the job is given up; 0: it does not go back now. */
	uint64_t limit_ns;
	uint64_t pause_ns, next_ns; /* before the next worker, and when that is made */
	struct tern_timer timer, limit_timer;
	char why[512];         /* the last reason, which is told once */
	uint64_t next_note_ns; /* no other reason is told before */
	/* The session ends with the worker, for this reason: */
	bool ends;
	int end_status;
	char end_why[512];
	/* The finisher has used the results: the loss of a server ends the session well. */
	bool finished;
	bool has_begun; /* the steps have begun once */
	/* The program was given a slot of step `reached` - 1 last; 0: it was given none. */
	uint64_t reached;
	uint64_t rolled_from; /* for the next slot: struct tern_slot_info */
	struct tern_recent
		cuts; /* the job has gone on without this worker, which lives */
	struct tern_view
		*view; /* the servers, where they are now; job.servers: those of `join` */
	struct tern_worker_place *places; /* where else they may be, by number */
	/* By the tensors' places in the job: copies of given initial values; NULL: there are
	 * none. The job may go back to its first step. */
	float **given;
};

struct tern_session {
	struct tern_session_opts opts;
	struct tern_context *ctx;
	struct tern_computer computer;
	struct tern_worker *worker; /* NULL: not started */
	/* The tensors in job.params are in an order that follows from their names,
	 * sizes and types from the start on, so that workers agree however they declare them;
	 * params_of[id] is the tensor's place there. */
	struct tern_ps_job job;
	uint32_t *params_of, tensor_room;
	/* By id: the rule of a tensor that has one of its own. */
	struct tensor_rule {
		bool given;
		struct tern_optimizer rule;
	} * rules_of;
	/* By id: the program's values of a given tensor, until the start. */
	const float **values_of;
	struct tern_slot slot;
	struct verify verify; /* the slots that are computed twice */
	uint32_t index;       /* which worker this is */
	bool early;           /* slots are given out when they are announced */
	uint64_t eval_every;  /* 0: no slot is marked */
	bool noted_empty;     /* a slot has pushed nothing, which was noted */
	/* All steps are done: these are the parameters. */
	const struct tern_buf *final;
	struct tern_evaluation *evaluation; /* this worker is the finisher */
	bool was_finisher; /* and was told so, perhaps before it has finished */
	struct session_back back;
	/* The blob that the worker has begun with; is_kept_known: one has. */
	struct tern_blob kept;
	bool is_kept_known;
	/* The job is complete, and its memory is its own; before that, the tensors' names
	 * are the session's. */
	bool settled;
	bool started, ended;
	int status; /* if `ended` */
	char end_text[512];
	char text[600]; /* what went wrong in the last call that failed */
};

/* Describes a slot that is not repeated. */
struct tern_slot_info session_info(
	const struct tern_session *s, uint64_t step, uint32_t slot);

/* Sets the text of the session. Returns `status`. */
int session_complain(struct tern_session *s, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Returns tensor `id` of the job. NULL: there is no such tensor, or the session has not
 * started. */
const struct tern_param *session_param(const struct tern_session *s, uint32_t id);

/* Frees the names of the tensors that the program has declared. */
void session_forget_tensors(struct tern_session *s);

/* Makes the worker, which joins the job. `given`, `pools`: as in struct tern_worker_opts. */
int session_join(struct tern_session *s, const float *const *given,
	struct tern_worker_pools *pools);
void session_note(struct tern_session *s, const char *text);
/* Ends the session. */
void session_end(struct tern_session *s, int status, const char *text);

/* session_back.c */
/* Prepares for going back, before the first worker is made. */
int session_back_init(struct tern_session *s, const float *const *given);
void session_back_fini(struct tern_session *s);
/* Sets the options of the next worker that have to do with going back, and in a copy of the job
 * where the servers are. */
void session_back_join(
	struct tern_session *s, struct tern_worker_opts *opts, struct tern_ps_job *job);
/* The worker has ended. True: the session goes on nevertheless. */
bool session_back_ended(struct tern_session *s, int status, const char *text, bool cut);
/* The program is given a slot of this step. Returns `rolled_back_from` of the slot. */
uint64_t session_back_given(struct tern_session *s, uint64_t step);
/* The program has ended its slot, which perhaps was all that the next worker waits for. */
void session_back_slot_ended(struct tern_session *s);
/* The program leaves. False: the worker is to be asked. */
bool session_back_leave(struct tern_session *s, const char *why);
/* The finisher has finished, or could not (`text`). True: its worker has ended. */
bool session_back_finished(struct tern_session *s, const char *text);
/* Why the worker does not move, if it is over; returns false if it is not. */
bool session_back_describe(const struct tern_session *s, char *text, size_t bytes);

#endif
