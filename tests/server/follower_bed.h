/* SPDX-License-Identifier: Apache-2.0 */
/* Test bed with a job (train_bed.h), and processes that follow its server 0. */
#ifndef TERN_TESTS_FOLLOWER_BED_H
#define TERN_TESTS_FOLLOWER_BED_H

#include "server/follower.h"
#include "tests/server/train_bed.h"

#define NEVER_ENDS 100000u /* steps */

struct process { /* a process that follows, simulated within this one */
	struct tern_env *env;
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_updater *updater;
	struct tern_follower *follower;
	uint64_t memory_bytes; /* limit of the follower's parameters and state; 0: none */
	bool ended;
	int status;
	char text[600], noted[600]; /* why it has ended; its last note */
	unsigned noted_count;       /* of notes */
};

/* A job of one server and two workers, which make steps for ever, with tensors of several chunks. */
extern const struct setup usual;

/* For adjust_server: servers that can be followed. */
void take_snapshots(struct tern_server_opts *opts);
/* Starts a job, and waits until it makes steps. Returns its server 0. */
struct tern_server *start_job(struct job *j, const struct setup *setup);
/* The version of server 0's first chunk. */
uint64_t step_of(const struct job *j);

void open_process(struct process *p);
/* Lets an open process follow the server at this address. */
void begin(struct process *p, const char *server);
/* Opens a process that follows the server at this address. */
void follow(struct process *p, const char *server);
void close_process(struct process *p);
struct tern_follower_stats stats_of(const struct process *p);
/* The connection of the server with its follower, which it must have. */
struct server_peer *follower_of(const struct tern_server *s);

/* Runs all members of the job, and the process, until `cond` is true. */
#define BOTH_UNTIL(job_, process_, cond)                                                 \
	JOB_UNTIL(job_, (tern_progress((process_)->ctx), cond))

#endif
