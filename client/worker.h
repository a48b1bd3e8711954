/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker: joins the servers of a job, receives the versions of the parameters, and
 * sends the gradients of its slots (shares of each step's records). At the end one
 * worker, the finisher, evaluates and saves: worker 0, or if it was lost, the first one
 * that is left.
 *
 * The worker knows no model and no data: a computer (compute.h) computes gradients and
 * evaluates. Everything else runs on the context's thread, except for the check that the
 * final parameters are numbers, which is a task of the context's environment.
 */
#ifndef TERN_CLIENT_WORKER_H
#define TERN_CLIENT_WORKER_H

#include <tern/context.h>

#include "ps/blob.h"
#include "ps/job.h"
#include "ps/vector.h"

struct tern_computer;
struct tern_domain;
struct tern_view;
struct tern_worker;

struct tern_worker_progress {
	uint64_t step; /* number of steps done */
	/* Weighted mean of this worker's slots in that step; NAN: it had no slot, or all of its slots
	 * were left out (tern server --on-nan skip). */
	double loss;
	uint64_t records; /* records that this worker has computed */
	uint64_t bytes;   /* bytes of gradients and parameters that it has transferred */
};

struct tern_slot_loss {
	uint32_t slot;
	/* Mean over the records of the slot's last steps that this worker has computed,
	 * at most 100 steps. */
	double loss;
};

struct tern_worker_results {
	/* Sync mode: steps of the job; async mode: steps of this worker. */
	uint64_t steps;
	/* finisher: steps of the job that were applied to all parameters. */
	uint64_t steps_made;
	/* finisher: steps of lost workers that were applied to some parameters only. */
	uint64_t steps_torn;
	double loss;       /* mean of progress->loss over the last steps, at most 100 */
	double first_loss; /* progress->loss of this worker's first step */
	/* Sync mode: losses of each slot that this worker has computed. The mean over
	 * all slots of a job, in their order, does not depend on which worker computed
	 * which slot. */
	const struct tern_slot_loss *slot_losses;
	uint32_t slot_loss_count;
	bool finisher; /* this worker was the one to evaluate, write and save */
	bool alone;    /* only this worker failed: others may go on, and save */
	bool cut;      /* the others go on, and this worker may come again (goes_back) */
	bool left;     /* tern_worker_ask_to_leave(), and server 0 let this worker go */
	bool can_resume; /* a server knows a snapshot to go on from */
	bool was_last;   /* `left`, and asked to save, as no other was seen to go on */
	bool job_waits;  /* `left`, and no other worker is here: the job waits for one */
	/* Path of the saved parameters; NULL: nothing was saved. The parameters of an
	 * interrupted job are those after `saved_step` steps. In async mode these are
	 * steps of this worker (saved_own); other workers have taken steps of their
	 * own meanwhile. */
	const char *saved_path;
	uint64_t saved_step;
	bool saved_own;
	uint64_t bytes;
};

/* Metadata in the file of an interrupted job: opts.job_name, and the number of steps. */
#define TERN_WORKER_METADATA_JOB  "tern_job"
#define TERN_WORKER_METADATA_STEP "tern_step"

/* Pools of a worker's versions and gradients. A `values` of NULL means that there are none. */
struct tern_worker_pools {
	struct tern_pool *values, *bf16;
};

/* Where a server may be, besides its address in the job (places.c). */
enum tern_place_kind {
	TERN_PLACE_OWN,      /* the user has named it, or steps were made there */
	TERN_PLACE_FOLLOWER, /* the server has told it, as that of its follower */
	TERN_PLACE_NEW, /* others have told it, as that of a process in the server's place */
};

struct tern_worker_place {
	char address[128];         /* "": no other place is known */
	enum tern_place_kind kind; /* of `address` */
	enum tern_place_kind here; /* of the address in the job */
	/* Since steps were made last: turns from one address to the other, and how many of them the
	 * worker made because a server that it was connected to has not welcomed it. */
	uint32_t turns, silences;
	/* The highest claim of a process to which the worker has turned since steps were made, and whether it
	 * has turned to one that may have the job in memory. */
	uint64_t claim;
	bool searched;
};

struct tern_worker_opts {
	struct tern_domain *domain;
	struct tern_context *ctx;
	/* Computes gradients and evaluates. Owned by the caller, but used by this worker
	 * alone until the worker is freed. */
	struct tern_computer *computer;
	/* Where parameters and gradients are: host memory, or memory of the computer's
	 * GPU. */
	struct tern_vector_memory memory;
	const struct tern_ps_job *job; /* copied */
	uint32_t index;
	/* The worker may go back with its job: if that goes back to a snapshot (server/back.c),
	 * ended() has the status -EAGAIN, and a worker that is made anew, with the servers'
	 * new addresses (moved()), takes this one's place. */
	bool goes_back;
	/* Time for which a worker that was asked to end waits for the decision of server 0 about
	 * it; 0: 6 s. */
	uint64_t decision_ns;
	/* Such a worker was made anew. So what a server cannot do now it may do in a moment, and
	 * ended() has -EAGAIN for that, too. */
	bool returns;
	bool has_begun; /* the job's steps have begun for such a worker */
	/* By server number, TERN_SERVERS_MAX of them: where else a server may be. The worker reads
	 * and writes them, and the next one needs them as they are then; all zero for the first one.
	 * Owned by the caller; used until ended(). NULL: only if not goes_back. */
	struct tern_worker_place *places;
	/* Memory of a former worker of the same job (tern_worker_free_for_next()), which this one
	 * takes over, also if it cannot be made; NULL: it makes its own. */
	struct tern_worker_pools *pools;
	/* Values of the tensors whose `init` is TERN_INIT_GIVEN, by the numbers that they have
	 * in the job; used until tern_worker_new() returns. NULL: there is no such tensor. */
	const float *const *given;
	/* Used only if this worker becomes the finisher, as any worker may: where to save
	 * the parameters; NULL: nowhere. */
	const char *save_path;
	/* Where to save the parameters if the job ends early; may be NULL. */
	const char *interrupted_path;
	/* Written into the file at interrupted_path, so that a later run can tell whether
	 * the file is of the same job. May be NULL. */
	const char *job_name;
	/* Called when this worker is the finisher, so that the caller can prepare. If it
	 * returns an error, with why->text, this worker fails alone, and another one
	 * finishes. Called again before each further attempt to save, and if the job ends
	 * before the final parameters are saved: after an error that attempt fails. May be
	 * NULL. */
	int (*finishing)(void *arg, struct tern_ps_text *why);
	/* Called when the job ends early and this worker is about to save its first
	 * `step` steps to interrupted_path, so that the caller can prepare. If it returns
	 * an error, with why->text, nothing is saved. May be NULL. */
	int (*interrupted)(void *arg, uint64_t step, struct tern_ps_text *why);
	/* All processes are connected and the steps begin, from first_step on: 0, or the
	 * step of a snapshot. May be NULL. */
	void (*begun)(void *arg, uint64_t first_step);
	/* Called before begun(): the blob of the job (ps/blob.h) that belongs to first_step; its step
	 * is 0 if there is none. Valid during the call. May be NULL. */
	void (*kept)(void *arg, const struct tern_blob *blob);
	void (*progress)(void *arg, const struct tern_worker_progress *progress);
	/* Something worth a log line has happened; may be NULL. */
	void (*note)(void *arg, const char *text);
	/* Server 0 has decided that another worker is lost; `text` says why, and
	 * what this worker takes over from it. May be NULL. */
	void (*lost)(void *arg, uint32_t worker, const char *text);
	/* A server is at another address, or may be, which is valid during the call: another process has
	 * taken its place, or will. The next worker has to join it there. Before the steps the worker
	 * then ends with -EAGAIN, if it goes_back. May be NULL. */
	void (*moved)(void *arg, uint32_t server, const char *address);
	/* The job has other servers now, or will have (ps/view.h); valid during the call. False: the
	 * worker cannot know where they are, and fails. Else it ends with -EAGAIN. NULL: it
	 * fails in any case. */
	bool (*viewed)(void *arg, const struct tern_view *view);
	/* No step was done for 10 s (again after 20 s, 40 s, and so on); `text` says what
	 * this worker waits for. May be NULL. */
	void (*waiting)(void *arg, const char *text);
	/* From now on a file is being written, until ended() or unsaved(); may be
	 * NULL. */
	void (*saving)(void *arg);
	/* Saving has failed; `text` says whether it will be tried again until it
	 * works, or the end has come and nothing is saved. Called once for each of the
	 * two; may be NULL. */
	void (*unsaved)(void *arg, const char *text);
	/* The end, reported once: 0 and results, or a status (-EAGAIN: goes_back) and a
	 * sentence. The worker must be freed afterwards, but not inside this call. */
	void (*ended)(void *arg, int status, const char *text,
		const struct tern_worker_results *results);
	void *arg;
};

/* Makes a worker and starts to connect. -EINVAL, -E2BIG (the model is too large) and
 * other errors, with why->text. After an error *out may be set: it must be freed as
 * any other worker. */
int tern_worker_new(const struct tern_worker_opts *opts, struct tern_worker **out,
	struct tern_ps_text *why);

/* Ends the whole job (before the steps have begun, only this worker): `why` is sent to
 * the servers, then ended() is called with -ECANCELED. Nothing is saved, except a file
 * that is being written already. */
void tern_worker_stop(struct tern_worker *worker, const char *why);

/*
 * Asks the worker to leave; `why` gives the reason in a few words. Unless the worker ends
 * for another reason first, ended() is called with -ECANCELED:
 *
 * - before the steps have begun: within 2 s;
 * - if the other workers go on: when server 0 has decided, after about a second, and the
 *   connections are closed (2 s at most), with results->left;
 * - if it is the last worker, or all were asked: when server 0 has ended the job, and, if
 *   this worker is chosen to save, when it has saved the parameters to
 *   `interrupted_path`;
 * - if no other worker was seen to go on: after some seconds, with results->left. One of
 *   the workers that were asked is chosen to save: it has results->was_last;
 * - if server 0 does not answer: after 6 s, when this worker has saved the parameters, if
 *   it may (interrupted()).
 *
 * A second call does nothing.
 */
void tern_worker_ask_to_leave(struct tern_worker *worker, const char *why);

/* True if this worker is the lowest live one: it would be the finisher now. */
bool tern_worker_is_finisher(const struct tern_worker *worker);

/* Sets a metric (ps/metric.h), which server 0 is told soon, at the step that the worker is at, or
 * at `step` if that is later. -EINVAL: the name is not valid; -E2BIG: there are TERN_METRICS_MAX
 * others. */
int tern_worker_metric(
	struct tern_worker *worker, const char *name, double value, uint64_t step);

/* Writes, in a few words, which step the worker is at and what it waits for. */
void tern_worker_describe(const struct tern_worker *worker, char *text, size_t bytes);

/* Device memory that the worker holds, in bytes, without that of its computer. */
uint64_t tern_worker_device_bytes(const struct tern_worker *worker);

/* True if a file is being written: ended() is called only after that. */
bool tern_worker_is_saving(const struct tern_worker *worker);

/*
 * Lets a worker go off its context, which lives on, after ended() was called: frees its peers at
 * the first call. Returns true when no request and no task of the worker is under way any more.
 * Until then the caller calls it again and again, from deferred calls or timers. Peers that read
 * gradients in place may keep it waiting as long as they read.
 */
bool tern_worker_let_go(struct tern_worker *worker);

/* Frees the worker. Its tasks must have ended (host_env_stop), its computer must touch no
 * slot any more, and the context must have been freed, or tern_worker_let_go() must have returned
 * true. */
void tern_worker_free(struct tern_worker *worker);
/* As tern_worker_free(), but hands over the pools, so that the next worker of the job has its
 * buffers in the same memory. The caller gives them to that worker, or frees them. */
void tern_worker_free_for_next(
	struct tern_worker *worker, struct tern_worker_pools *pools);
void tern_worker_pools_free(struct tern_worker_pools *pools);

#endif
