/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training job in the simulator: servers and workers, and what happens to them. What is
 * trained, and what must come out of it, is the scenario's.
 */
#ifndef TERN_TESTS_SIM_JOB_H
#define TERN_TESTS_SIM_JOB_H

#include "client/internal.h"
#include "server/internal.h"
#include "transport/sim.h"

#define MEMBERS_MAX 9

struct member {
	struct tern_sim_process *process;
	struct tern_context *ctx;
	struct tern_server *server;
	struct tern_worker *worker;
	struct tern_engine *engine;
	const struct tern_engine_ops *engine_ops; /* without gradient_or_hang() */
	struct tern_updater *updater;
	bool ended;
	bool asked;   /* to leave */
	bool stalled; /* for so long that the others go on without it */
	bool hangs;   /* the same of its engine, while its thread answers */
	int status;
	char text[300];
	struct tern_worker_results results; /* a worker's */
};

struct job {
	struct tern_sim *sim;
	struct member members[MEMBERS_MAX];
	unsigned servers, workers, count;
	unsigned cut_permille, hurt_permille, nap_permille;
	unsigned losses;   /* workers that are still to crash */
	bool polite;       /* or to be asked to leave, every other one */
	bool server_falls; /* a server crashes: the end of the job */
	bool stalls;       /* a worker stands still */
	bool hangs;        /* a worker's engine never comes back */
	bool server_naps;  /* a server stands still for longer than a worker may */
	uint64_t worker_timeout_ns; /* 0: the servers' default */
	bool async;
	/* What the workers bring: all of it but mode, servers and workers. */
	struct tern_ps_job plan;
	uint64_t staging_bytes; /* of each server, for gradients that arrive */
	/* An engine for batches of plan.batch. Not NULL. */
	struct tern_engine *(*engine)(void *arg, size_t rows);
	void *engine_arg;

	uint64_t reconnect_ns;
	uint64_t leave_ns; /* how long server 0 waits before it decides; 0: 1 ms */
	void (*script)(struct job
			*j); /* called at each instant once steps are made; NULL: none */

	unsigned stage; /* the script's own */
	bool doomed;    /* a server has crashed, or the last worker */
	bool broken;    /* a server's books were wrong at some instant */
	uint64_t next_ns;
};

/*
 * Starts the processes in j->sim: the workers train on `data`, and the one that finishes
 * saves the parameters in the file "result".
 */
void job_start(struct job *j, const struct tern_dataset *data);
/* What tern_sim_run() calls at each instant, with the job as its argument: disturbs it
 * and checks the servers' books. True when all have ended. */
bool job_disturb(void *job);
/* Has everybody ended who did not crash: well, or the job was doomed? Says who has not.
 */
bool job_judge(const struct job *j);
/* Neither crashed nor stalled nor asked to leave. */
unsigned job_workers_left(const struct job *j);
/* The parameters that were saved; NULL, and says so, if there are none. */
const float *job_result(const struct job *j);
/* Ends the processes. The simulator stays. */
void job_finish(struct job *j);

#endif
