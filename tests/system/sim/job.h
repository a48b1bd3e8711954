/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training job in the simulator: servers, workers, and the disturbances (crashes,
 * stalls, cut connections). The scenario chooses the model and the data, and checks the
 * result.
 */
#ifndef TERN_TESTS_SYSTEM_SIM_JOB_H
#define TERN_TESTS_SYSTEM_SIM_JOB_H

#include "client/data/dataset.h"
#include "client/engine/engine.h"
#include "client/worker_state.h"
#include "server/server_state.h"
#include "transport/sim/sim.h"

#define MEMBERS_MAX 32

struct member;

/* Where a server's or worker's callbacks find its member, also after another one has taken the
 * place. */
struct seat {
	struct member *member;
};

struct member {
	struct tern_sim_process *process;
	struct seat *seat;
	struct tern_context *ctx;
	struct tern_server *server;
	struct tern_worker *worker;
	struct tern_engine *engine;
	struct engine_computer *computer;
	/* The engine's own operations, which gradient_or_hang() wraps. */
	const struct tern_engine_ops *engine_ops;
	/* Computes in place of the engine, if job.users; else NULL. */
	struct user *user;
	/* If job.sessions: has the worker, in place of the member; else NULL. */
	struct program *program;
	struct tern_updater *updater;
	unsigned index; /* of a server or worker */
	bool has_begun; /* of a server: the steps have begun with its process */
	struct tern_server_memory *memory; /* of a server: what it is made with */
	bool ended;
	bool asked; /* a worker that was asked to leave */
	/* A worker in the place of one that was lost during the steps; or a lost one in whose
	 * place another one is. */
	bool returned, replaced;
	uint64_t
		missing_ns; /* time since which nobody is in the place of the lost worker */
	unsigned
		stage; /* of server 0: how far a change is (server/change.c); 0: none is */
	uint32_t
		lost_most; /* of a server: largest number of workers that were lost at a time */
	/* May be lost without a crash: it was stalled for long, hangs, fails, is not
	 * deterministic or was cut off. Then the others go on without it. Its status is not checked. */
	bool stalled;
	/* The member's engine or user hangs for so long that the member is lost, while the
	 * thread of its context still answers. */
	bool hangs;
	bool fickle; /* its program computes other gradients each time */
	bool fails;  /* its user fails in the middle, or at the end, of its next slot */
	/* With job.goes_back, of a worker: where it has heard that the servers are that its user
	 * has named. */
	char (*servers)[128];
	struct tern_view *view; /* the job's servers, as it knows them; NULL: not yet */
	struct tern_worker_place *places; /* where else they may be; NULL: not yet */
	uint64_t again_ns;                /* when the member is made anew; 0: it is not */
	bool again;                       /* it was made anew */
	bool stays_away;                  /* it is lost, and is not made anew */
	/* It lives, but another one is started in its place. `address`: its own, at which it is made
	 * anew when it has heard that the job has gone back. */
	bool doubled;
	char address[128];
	uint64_t still_ns; /* it stands still until then */
	char told
		[100]; /* of a server: the manifest to go on from; "": the newest one\'s */
	char met[128]; /* of a server in the place of a lost one: what it was told */
	/* If the member is a server that was made with the memory of a follower: the server that was followed,
	 * and the others of the job (followers.c). */
	char follows[128];
	char (*others)[128];
	unsigned other_count;
	char zero[128]; /* of a server that has been in the job: where server 0 is */
	char via[128]; /* of a server without a directory: where it has been told that server 0 is */
	bool crowded;   /* of a server: it has had a reason to raise its staging budget */
	uint64_t shown; /* of server 0: the step that it has reported last */
	int status;
	char text[300];
	struct tern_worker_results results; /* of a worker: its results */
};

struct job {
	struct tern_sim *sim;
	struct member members[MEMBERS_MAX];
	unsigned servers, workers, count;
	unsigned cut_permille, hurt_permille, nap_permille;
	bool all_nap; /* servers stand still for some milliseconds, too, not only workers */
	/* While a worker is let in, server 0 and another process are separated for a moment,
	 * and with `polite` no worker crashes, which would be known late. */
	bool parts;
	/* How long the member, a worker, computes at a slot now; 0: as all do. May be NULL. */
	uint64_t (*slow_ns)(const struct job *j, const struct member *m);
	unsigned losses; /* number of workers that will still crash (see `polite`) */
	/* About every second loss is a worker that is asked to leave, instead of a
	 * crash. */
	bool polite;
	unsigned returns;  /* number of lost workers in whose place others will come */
	bool keeps_one;    /* at least one worker is left at any time */
	bool server_falls; /* a server crashes, so the job must fail */
	/* The job goes back to a snapshot when servers are lost or asked to end, and the members
	 * are made anew (again.c): those that have crashed, too. */
	bool goes_back;
	unsigned falls; /* number of servers that will still be lost */
	bool loses_all; /* all workers crash at once, while some chunks are ahead of others */
	unsigned
		drains; /* number of servers that will still be removed, to be added again perhaps */
	unsigned adds; /* number of workers of new numbers that will still come */
	bool launched; /* the servers are made for the first workers, as a launcher's are */
	bool followed;             /* the servers have followers (followers.c) */
	struct standby **standbys; /* by server */
	/* Members that were made anew, as they were, until they are freed. */
	struct member **former;
	unsigned former_count;
	unsigned moves; /* servers that were made anew at another address */
	/* With goes_back: true if there is a snapshot to go on from. */
	bool (*has_snapshot)(const struct job *j);
	bool has_begun; /* the steps have begun once */
	bool has_lost;  /* a process was lost, or asked to end */
	/* With goes_back: the lowest version of a chunk when the steps were last made on all servers, and the
	 * number of these servers' view. And whether since then a server was lost: the job may begin at
	 * a lower version then, and with another view. */
	uint64_t step_made;
	uint32_t view_made;
	bool forgets, stands; /* stands: the steps are not being made on all servers */
	bool stalls;          /* a worker is stalled until it is lost */
	bool hangs;           /* the engine or user of a worker hangs for ever */
	bool fails;           /* the user of a worker fails */
	bool users; /* simulated users (user.h) compute the gradients, not engines */
	/* The job names no number of records (struct tern_ps_job). */
	bool no_records;
	bool omits; /* job_omits() says of which slots the loss is no number */
	/* Simulated programs (program.h) train in sessions; there are no engines. */
	bool sessions;
	/* So many of the workers, the last ones, have programs that are not deterministic. */
	unsigned fickle;
	/* If job.sessions: which tensors of the programs have given initial values, one bit for
	 * each; 0: none. */
	unsigned given;
	/* If job.sessions: which tensors of the programs travel as bf16, one bit for each. */
	unsigned push_bf16, pull_bf16;
	/* The workers have different given values, and those of the lowest live worker
	 * count. */
	bool from_first;
	/* Initial value of an element; NULL: all are 0. */
	float (*initial)(const struct job *j, uint64_t element);
	/* True for an element that the ledger does not count; NULL: there is none. */
	bool (*apart)(uint64_t element);
	/* A server is stalled, for longer than the time limit of a worker. */
	bool server_naps;
	/* Time without progress after which a worker is lost; 0: the servers' default. */
	uint64_t worker_timeout_ns;
	bool async;
	uint64_t ssp; /* with async: as in struct tern_ps_job */
	/* Description of the job, except its mode and its numbers of servers and
	 * workers. */
	struct tern_ps_job plan;
	uint64_t staging_bytes; /* memory of each server for received gradients */
	/* Creates an engine that computes batches of plan.batch records. Must be set. */
	struct tern_engine *(*engine)(void *arg, size_t rows);
	void *engine_arg;

	/* Snapshots are taken in "snapshots"; directory NULL: none. And whether the job goes on
	 * from the newest one. */
	struct tern_server_snapshot_opts snapshots;
	bool resumes;
	/* Only server 0 has the directory, and keeps the parts of the others (server/store.h). */
	bool via;
	/* Disks of the servers, by server; NULL: that of all other processes. */
	struct tern_sim_disk *disks[MEMBERS_MAX];
	/* Called on server 0. May be NULL. */
	void (*snapshot)(struct job *j, const struct tern_server_snapshot *snapshot);
	/* Does what job_run() does, in another way. May be NULL. */
	void (*perform)(struct job *j, const struct tern_dataset *data);
	unsigned
		generation; /* jobs in one simulator have servers at different addresses */

	uint64_t reconnect_ns;
	/* Time that server 0 waits before it decides about leaving workers; 0: 1 ms. */
	uint64_t leave_ns;
	/* Called at each instant of virtual time: `prologue` until the training steps
	 * begin, `script` from then on. May be NULL. */
	void (*prologue)(struct job *j), (*script)(struct job *j);

	/* A further check of the results, after the job and before members are freed. May
	 * be NULL. */
	bool (*also)(const struct job *j);

	unsigned stage;                   /* for use by the script */
	char addresses[MEMBERS_MAX][128]; /* addresses of the servers */
	const struct tern_dataset *data;
	/* Members may end with an error: a server has crashed, no worker is left, or the
	 * test has stopped the job. */
	bool doomed;
	/* A check has failed before the end: of the state of a server or worker, of what
	 * a worker promises its user, or of a script. */
	bool broken;
	uint64_t next_ns;
	uint64_t turns; /* calls of job_disturb() */
};

/* Options for tern_sim_new(). job_sim_opts(): a network without faults.
 * job_rough_sim_opts(): a random kind of fabric, which sometimes has no space for a
 * message and refuses some connections. */
struct tern_sim_opts job_sim_opts(uint64_t seed, bool verbose);
struct tern_sim_opts job_rough_sim_opts(uint64_t seed, bool verbose);
/*
 * Starts the servers and workers in j->sim. The workers train on `data`, and the finisher
 * (the worker that saves) writes the parameters to the file "result".
 */
void job_start(struct job *j, const struct tern_dataset *data);
/* Starts the job and runs it to its end. */
void job_run(struct job *j, const struct tern_dataset *data);
/* Starts server i, which is member m, at the address. m->met: that of another server, if it comes in
 * the place of a lost one; "": it does not. */
void job_start_server(struct job *j, struct member *m, unsigned i, const char *address);
/* Starts the worker that is member m, anew if it `returns` (struct tern_worker_opts). */
void job_start_worker(struct job *j, struct member *m, unsigned index, bool returns);
/* With j->goes_back: makes members anew that have crashed, or have ended since the job goes back,
 * each some time after that. Called at each instant. */
void job_make_again(struct job *j);
/* True if the member has crashed or ended, and will be made anew. */
bool job_comes_again(const struct job *j, const struct member *m);
/* True if the member is a server that was removed from the job, and is not to be added again. */
bool job_has_removed(const struct job *j, const struct member *m);
/* True if the member was made anew, or stood still, and the job came to its end before that. */
bool job_is_too_late(const struct job *j, const struct member *m);
/* Chooses one of the members that still run, at random, from `count` members starting with number
 * `first`; NULL: none runs. */
struct member *job_victim(struct job *j, unsigned first, unsigned count);
/* A worker has heard of a server's new address, or of another view of the servers. */
void job_on_moved(void *seat, uint32_t server, const char *address);
bool job_on_viewed(void *seat, const struct tern_view *view);
/* True if the loss of this slot is no number, so that it is left out of its step: with j->omits, one
 * slot of each step, if there are several. */
bool job_omits(const struct job *j, uint64_t version, uint32_t slot);
/* Number of slots whose gradients count in each step; sync mode. */
uint32_t job_slots_counted(const struct job *j);
/* Crashes all members at once. */
void job_crash(struct job *j);
/* Adds worker `index`, also in place of one that was lost. */
struct member *job_add_worker(struct job *j, unsigned index);
/* For tern_sim_run(), which calls it at each instant with the job as its argument:
 * disturbs the job, and checks the servers' state. Returns true when all members have
 * ended. */
bool job_disturb(void *job);
/* Checks that all members that did not crash have ended: with success, or with an error
 * if the job could not succeed, or the member was asked to leave or is `stalled`. Prints
 * those that have not. Also false if j->broken. */
bool job_judge(const struct job *j);
/* Number of workers that did not crash, are not `stalled` and were not asked to leave, and
 * that were let in if they have come during the steps. */
unsigned job_workers_left(const struct job *j);
/* The parameters that were saved; if there are none, prints that and returns NULL. */
const float *job_result(const struct job *j);
/* Frees all of a member but its process. */
void job_free_member(struct member *m);
/* Frees the servers and workers, but not the simulator. */
void job_finish(struct job *j);

#endif
