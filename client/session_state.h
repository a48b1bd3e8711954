/* SPDX-License-Identifier: Apache-2.0 */
/* A session, for its files: session_start.c (tensors, the job, the start), session.c (slots
 * and the end) and ahead.c (the slots that come next). */
#ifndef TERN_CLIENT_SESSION_STATE_H
#define TERN_CLIENT_SESSION_STATE_H

#include <stdatomic.h>

#include <tern/train.h>

#include "client/compute.h"
#include "client/verify.h"
#include "kernels/kernels.h"
#include "ps/job.h"

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

/* Makes the worker, which joins the job. `given`: as in struct tern_worker_opts. */
int session_join(struct tern_session *s, const float *const *given);

#endif
