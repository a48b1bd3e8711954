/* SPDX-License-Identifier: Apache-2.0 */
/* The state of `tern run`, for its two files: run.c (the start, output, events, the course
 * of the job) and run_ends.c (how workers and servers have ended, and which one is the cause
 * of a failure). */
#ifndef TERN_TOOLS_RUN_STATE_H
#define TERN_TOOLS_RUN_STATE_H

#include "tools/launch.h"
#include "tools/place.h"
#include "tools/restart.h"

/* Finds the reason in what a Python program prints before it exits with code 1: the line
 * after the frames of its last traceback. */
struct reason {
	bool in_traceback;
	char text[560];
};

struct run {
	struct launch l;
	struct launch_settings *settings;
	struct tern_recent *restarts;
	uint64_t verify_first, eval_every; /* UINT64_MAX: not given */
	struct place place;
	char **program; /* PROGRAM ARGS..., NULL-terminated */
	struct reason reasons[SUPERVISE_CHILDREN_MAX]; /* [child] */
	json_t *progress;   /* the last event "progress"; NULL: none yet */
	json_int_t joined;  /* number of workers that have joined server 0 */
	bool begun;         /* the steps have begun on server 0 */
	unsigned succeeded; /* number of workers that have ended with exit code 0 */
	/* How the first worker has ended that did so before the steps, whatever its exit
	 * code, and the time since when others wait for it in vain; 0: none do. */
	char early[640];
	uint64_t early_ns;
	/* Time when this process first saw that all workers have ended; 0: not yet. The
	 * servers may still have something to say. */
	uint64_t ended_ns;
	/* How the first worker that failed has ended, without those whose loss was told:
	 * cause_of is its child number. cause_is_code: that is an exit code, and the worker
	 * has not printed a reason. */
	char cause[640];
	unsigned cause_of;
	bool cause_is_code;
	bool cause_is_signal;  /* that worker was killed by a signal */
	char dead_server[960]; /* how the first server that failed has ended */
	/* That server was killed by a signal, or dead_server has the reason why the job cannot go
	 * on in place after one that was killed. */
	bool server_killed;
	/* With l.opts.goes_back. fallen: how the first process was killed since the job has made a
	 * new step, more than `reached`. last_taken: the last worker that has ended is one of these. */
	char fallen[160];
	json_int_t reached;
	bool last_taken;
	/* A server reported an error when all workers had ended or were lost: one of them
	 * is the cause, and those that still run, such as one that prints its traceback, may
	 * tell more. */
	bool blames_workers;
	bool input_error; /* the user made the error in l.error */
	/* The job is being ended: failures of children are only a consequence. */
	bool ending;
};

/* ---- run_ends.c ---- */

/* True if this process has started all of its servers and workers. */
bool run_all_started(const struct run *r);
/* Number of workers of other ranks of which this process, as rank 0, does not know that
 * they have ended. */
uint64_t run_others_running(const struct run *r);
bool run_all_workers_ended(const struct run *r);
/* True if a worker is about to be started again without which the job cannot go on. */
bool run_awaits_worker(const struct run *r);
/* Server 0 says that this many steps were made. */
void run_on_step(struct run *r, json_int_t step);
/* Takes the event "begun" of a server. */
void run_take_begun(struct run *r, const struct child *c, const json_t *event);
/* The steps have begun on a server: on_begun() of struct launch. */
void run_on_begun(struct launch *l);
/* Looks for the reason of a failure in a line that a worker has printed on stderr. */
void run_look_for_reason(struct reason *reason, const char *text, size_t bytes);
/* A child has ended: the supervisor's on_exit(). `arg` is the struct run. */
void run_on_exit_of(void *arg, struct child *c);
/* Reports losses that did not end the job. A worker that has ended well is none, even if
 * it did not say goodbye to the servers. */
void run_tell_losses(struct run *r);
/* Fails the job if workers wait in vain, or it cannot go on in place. Else reports losses, when
 * it is time for that. */
void run_settle_losses(struct run *r);
/* How long to wait for a better cause of a failure. */
uint64_t run_patience_ns(const struct run *r);
/* True if `ns` have passed since `since_ns`; 0: that time has not come yet. */
bool run_has_passed(uint64_t since_ns, uint64_t ns);
/* Writes the one cause of the failure. */
void run_name_cause(const struct run *r, char *text, size_t bytes);
bool run_has_succeeded(const struct run *r);
/* True if the job has failed because a server, or the last worker, was killed. */
bool run_was_killed(const struct run *r);

#endif
