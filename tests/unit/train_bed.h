/* SPDX-License-Identifier: Apache-2.0 */
/* Servers and workers of a job in one process, with contexts and job threads of their
 * own, driven in turn. */
#ifndef TERN_TESTS_TRAIN_BED_H
#define TERN_TESTS_TRAIN_BED_H

#include "tests/cmocka.h"

#include <pthread.h>

#include "client/internal.h"
#include "server/internal.h"

#define MEMBERS_MAX 8

struct member { /* a process of the job, in this one */
	struct tern_env *env;
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_server *server;
	struct tern_worker *worker;
	struct tern_engine *engine;   /* a worker's */
	struct tern_updater *updater; /* a server's */
	bool ended, closed;
	pthread_t leaver; /* closed: frees what it had */
	int status;
	char text[400];
	struct tern_worker_results results;
	uint64_t step;
	bool has_more, finishes; /* it was given slots; it evaluates and saves */
};

struct setup {
	const char *fabric, *model, *optimizer;
	unsigned servers, workers, slots;
	uint64_t steps;
	enum tern_mode mode;
	double clip_norm;
};

extern struct tern_dataset *data, *test; /* two classes apart by a plane, some noise */
extern uint64_t staging_bytes;           /* of servers; 0: their default */

int make_data(void **state);
int free_data(void **state);
void worker_ended(void *arg, int status, const char *text,
	const struct tern_worker_results *results);
void open_worker(struct member *m, const struct tern_model *model);
void close_member(struct member *m);
/* All that are not closed yet; when it returns, nothing of any is left. */
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

#endif
