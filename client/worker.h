/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker: joins the servers of a job, follows the versions of the parameters,
 * computes the gradients of its slots, and at the end evaluates and saves if it is the
 * first of those that are left: worker 0, if nothing happened to it.
 *
 * Everything happens on the context's thread, except arithmetic, which is submitted to
 * the context's environment.
 */
#ifndef TERN_CLIENT_WORKER_H
#define TERN_CLIENT_WORKER_H

#include <tern/context.h>

#include "client/data/dataset.h"
#include "client/engine/engine.h"
#include "ps/job.h"

struct tern_worker;

struct tern_worker_progress {
	uint64_t step;    /* steps done */
	double loss;      /* mean over the records of this worker's slots of that step */
	uint64_t records; /* that this worker has computed */
	uint64_t bytes;   /* of gradients and parameters that it has moved */
};

struct tern_slot_loss {
	uint32_t slot;
	double loss; /* mean over the records of its last steps, at most 100; since a
			lost worker's slot was taken over, counted anew */
};

struct tern_worker_results {
	uint64_t steps;      /* of the job in sync mode, this worker's own in async */
	uint64_t steps_made; /* the finisher's: of the job, applied to all parameters */
	uint64_t steps_torn; /* applied to some of them: of workers that were lost */
	double loss;         /* mean of `loss` over the last steps, at most 100 */
	double first_loss;   /* of the first step that this worker has computed */
	/* Sync: of each slot that this worker has computed. The mean over all slots of a
	 * job, in their order, does not depend on who computed which. */
	const struct tern_slot_loss *slot_losses;
	uint32_t slot_loss_count;
	bool finisher; /* it was this worker that evaluated, wrote and saved */
	bool alone;    /* it failed alone: others may go on, and save */
	bool left;     /* it was asked to end, and the job goes on without it */
	/* Path of the saved parameters; NULL: nothing was saved. The parameters of an
	 * interrupted job are those after `saved_step` steps; in async mode these are
	 * this worker's own (saved_own), and the others have taken theirs meanwhile. */
	const char *saved_path;
	uint64_t saved_step;
	bool saved_own;
	double test_loss; /* mean over the records; NAN: no test set, or another worker */
	double test_accuracy; /* NAN as well */
	double test_auc;      /* two classes only; else NAN */
	uint64_t bytes;
	const char
		*written; /* what the model wrote, terminated; NULL: nothing was asked */
};

struct tern_worker_opts {
	struct tern_domain *domain;
	struct tern_context *ctx;
	/* The caller's, and used by this worker alone until it is freed. It is made for
	 * the model, and for batches of job->batch. */
	struct tern_engine *engine;
	/* Of `job`: everything but params and arithmetic, which follow from the engine,
	 * and what is said of the data. Copied. */
	const struct tern_ps_job *job;
	uint32_t index;
	const struct tern_dataset *train;
	/* For the worker that finishes the job, which may be any: */
	const struct tern_dataset *test; /* NULL: none */
	const char *save_path;           /* for the parameters; NULL: nowhere */
	const char *interrupted_path; /* where they go if the job is ended before; or NULL
				       */
	uint32_t write_count;         /* charlm: symbols that the model is to write */
	/* It is this one: last preparations. An error, with why->text, is this worker's
	 * alone: another one finishes then. May be NULL. */
	int (*finishing)(void *arg, struct tern_ps_text *why);
	void (*begun)(void *arg); /* all are here, the steps begin; may be NULL */
	void (*progress)(void *arg, const struct tern_worker_progress *progress);
	/* Something worth a line happened; may be NULL. */
	void (*note)(void *arg, const char *text);
	/* Another worker is lost, as the servers have decided, and what this one takes
	 * over from it; may be NULL. */
	void (*lost)(void *arg, uint32_t worker, const char *text);
	/* No step for 10 s, and who is waited for; may be NULL. */
	void (*waiting)(void *arg, const char *text);
	/* A file is being written from now on, until ended() or unsaved(); may be NULL.
	 */
	void (*saving)(void *arg);
	/* Saving failed: it is tried again until it works, or the end has come and
	 * nothing is saved, as `text` says. Once for each; may be NULL. */
	void (*unsaved)(void *arg, const char *text);
	/* The end, once: 0 and results, or a status and a sentence. The worker is to be
	 * freed afterwards, not in here. */
	void (*ended)(void *arg, int status, const char *text,
		const struct tern_worker_results *results);
	void *arg;
};

/* Starts to connect. -EINVAL with why->text; -ENOMEM. */
int tern_worker_new(const struct tern_worker_opts *opts, struct tern_worker **out,
	struct tern_ps_text *why);

/* Ends the job from outside: the servers are told `why`, then ended() comes with
 * -ECANCELED. Nothing is saved. */
void tern_worker_stop(struct tern_worker *worker, const char *why);

/*
 * Asks the worker to leave, `why` in a few words. ended() comes with -ECANCELED: within
 * about a second, with results->left, when the others have its slots; or, if it is the
 * last one, or all are asked, when it has saved what it has to `interrupted_path`. Twice
 * is harmless.
 */
void tern_worker_ask_to_leave(struct tern_worker *worker, const char *why);

/* In a few words: how far it is, and what it waits for. */
void tern_worker_describe(const struct tern_worker *worker, char *text, size_t bytes);

/* The end waits for a file that is being written. */
bool tern_worker_is_saving(const struct tern_worker *worker);

/* Jobs must have ended (host_env_stop) and the context must be freed first. */
void tern_worker_free(struct tern_worker *worker);

#endif
