/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training job in the simulator: servers and workers, and the disturbances. The
 * scenario chooses the training and checks the result.
 */
#ifndef TERN_TESTS_SYSTEM_SIM_JOB_H
#define TERN_TESTS_SYSTEM_SIM_JOB_H

#include "client/worker_state.h"
#include "server/server_state.h"
#include "transport/sim/sim.h"

#define MEMBERS_MAX 12

struct member {
	struct tern_sim_process *process;
	struct tern_context *ctx;
	struct tern_server *server;
	struct tern_worker *worker;
	struct tern_engine *engine;
	const struct tern_engine_ops *engine_ops; /* without gradient_or_hang() */
	struct tern_updater *updater;
	bool ended;
	bool asked;   /* it was asked to leave */
	bool stalled; /* stalled for so long that the others go on without it */
	bool hangs;   /* its engine hangs for so long, while its thread answers */
	bool crowded; /* server: a worker had more slots than buffers */
	int status;
	char text[300];
	struct tern_worker_results results; /* of a worker */
};

struct job {
	struct tern_sim *sim;
	struct member members[MEMBERS_MAX];
	unsigned servers, workers, count;
	unsigned cut_permille, hurt_permille, nap_permille;
	unsigned losses;   /* number of workers that are still to crash */
	bool polite;       /* every other one is asked to leave instead */
	bool server_falls; /* a server crashes, which ends the job */
	bool stalls;       /* a worker is stalled */
	bool hangs;        /* the engine of a worker hangs for ever */
	bool server_naps;  /* a server is stalled for longer than a worker may be */
	uint64_t worker_timeout_ns; /* 0: default of the servers */
	bool async;
	/* The workers' job, except mode, servers and workers. */
	struct tern_ps_job plan;
	uint64_t staging_bytes; /* of each server, for received gradients */
	/* Makes an engine for batches of plan.batch. Not NULL. */
	struct tern_engine *(*engine)(void *arg, size_t rows);
	void *engine_arg;

	uint64_t reconnect_ns;
	uint64_t leave_ns; /* time that server 0 waits before it decides; 0: 1 ms */
	/* Called at each instant: until the steps begin, and from then on. NULL: none. */
	void (*prologue)(struct job *j), (*script)(struct job *j);

	unsigned stage;                   /* used by the script */
	char addresses[MEMBERS_MAX][128]; /* of the servers */
	const struct tern_dataset *data;
	bool doomed; /* a server has crashed, or the last worker */
	bool broken; /* a server's accounts were wrong at some instant */
	uint64_t next_ns;
};

/* Options for tern_sim_new(): a fabric without faults; any kind of fabric, which has
 * no room now and then and refuses some connections. */
struct tern_sim_opts job_sim_opts(uint64_t seed, bool verbose);
struct tern_sim_opts job_rough_sim_opts(uint64_t seed, bool verbose);
/*
 * Starts the processes in j->sim: the workers train on `data`, and the finisher saves the
 * parameters in the file "result".
 */
void job_start(struct job *j, const struct tern_dataset *data);
/* Adds a worker in the place of the lost one with that index. */
struct member *job_add_worker(struct job *j, unsigned index);
/* Called by tern_sim_run() at each instant, with the job as its argument: disturbs the
 * job and checks the servers' accounts. True when all have ended. */
bool job_disturb(void *job);
/* Checks that all members that did not crash have ended: with success, or the job
 * could not succeed. Prints which have not. */
bool job_judge(const struct job *j);
/* Number of workers that were not crashed, stalled or asked to leave. */
unsigned job_workers_left(const struct job *j);
/* The saved parameters; NULL, with a message, if there are none. */
const float *job_result(const struct job *j);
/* Ends the processes, but not the simulator. */
void job_finish(struct job *j);

#endif
