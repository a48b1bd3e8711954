/* SPDX-License-Identifier: Apache-2.0 */
/* Test bed with the servers and workers of a job in one process. Each has a context and
 * task threads of its own; the test calls them in turn. */
#ifndef TERN_TESTS_TRAIN_BED_H
#define TERN_TESTS_TRAIN_BED_H

#include "tests/harness/cmocka.h"

#include <pthread.h>

#include <tern/train.h>

#include "base/clock.h"
#include "client/data/dataset.h"
#include "client/engine_computer.h"
#include "client/worker_state.h"
#include "server/server_state.h"

#define MEMBERS_MAX 8

struct member { /* one process of the job, simulated within this one */
	struct tern_env *env;
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_server *server;
	struct tern_worker *worker;
	struct tern_engine *engine; /* for a worker, as is its computer */
	struct engine_computer *computer;
	struct tern_updater *updater; /* for a server */
	struct tern_session *session; /* for a worker that has one; its own worker */
	bool ended, closed;
	pthread_t leaver; /* thread that frees what a closed member had */
	int status;
	char text[400];
	struct tern_worker_results results;
	uint64_t step;
	/* has_more: it got the slots of a lost worker; finishes: it evaluates and saves
	 * the model. */
	bool has_more, finishes;
};

struct setup {
	const char *fabric, *model, *optimizer;
	unsigned servers, workers, slots;
	uint64_t steps;
	enum tern_mode mode;
	double clip_norm;
};

/* A job: its servers, followed by its workers in the order in which they were added. */
struct job {
	const struct setup *setup;
	struct tern_model *model;
	char addresses[MEMBERS_MAX][128];
	struct member m[MEMBERS_MAX];
	unsigned count;
};

/* Training and test data: two classes separated by a plane. */
extern struct tern_dataset *data, *test;
/* Memory of each server for received gradients; 0: the servers' default. */
extern uint64_t staging_bytes;
/* Changes the job that workers bring; NULL: nothing is changed. */
extern void (*adjust_job)(struct tern_ps_job *job);
/* Changes the options of each server; NULL: nothing is changed. */
extern void (*adjust_server)(struct tern_server_opts *opts);

int make_data(void **state);
int free_data(void **state);
void worker_ended(void *arg, int status, const char *text,
	const struct tern_worker_results *results);
void open_member(struct member *m);
void open_worker(struct member *m, const struct tern_model *model);
void close_member(struct member *m);
/* Closes all members that are still open, and waits until all their memory is freed. */
void close_members(struct member *members, unsigned count);
void step_all(struct member *members, unsigned count);
bool all_ended(const struct member *members, unsigned count);
void start_servers(struct member *m, const struct setup *setup, char addresses[][128]);
struct tern_model *make_model(const struct setup *setup);
void start_worker(struct member *m, const struct setup *setup,
	const struct tern_model *model, char addresses[][128], const char *save,
	unsigned index);
void start_workers(struct member *m, const struct setup *setup,
	const struct tern_model *model, char addresses[][128], const char *save);
void run_out(struct member *m, unsigned count);

void job_open(struct job *j, const struct setup *setup); /* opens only the servers */
/* Opens the servers and all workers of the setup. */
void job_start(struct job *j, const struct setup *setup);
/* Adds a member, which the caller must open. */
struct member *job_add(struct job *j);
/* Adds and opens worker number `index`. */
struct member *job_join(struct job *j, unsigned index);
void job_step(struct job *j);
void job_run_out(struct job *j);
void job_close(struct job *j);

/* Runs all members of the job until `cond` is true. */
#define JOB_UNTIL(job_, cond)                                                            \
	do {                                                                             \
		uint64_t limit_ns_ = tern_clock_ns() + 30 * TERN_NS_PER_S;               \
		while (!(cond)) {                                                        \
			job_step(job_);                                                  \
			if (tern_clock_ns() > limit_ns_)                                 \
				fail_msg("never happened: %s", #cond);                   \
		}                                                                        \
	} while (0)

void until_step(struct job *j, unsigned member, uint64_t step);
/* Runs all members until `count` members from number `first` on have ended. */
void until_ended(struct job *j, unsigned first, unsigned count);
void until_joined(struct job *j, unsigned server, uint32_t count);
/* Checks that the members with a bit in `but` have failed, and the others have not. */
void check_good(const struct job *j, unsigned but);

#endif
