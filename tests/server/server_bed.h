/* SPDX-License-Identifier: Apache-2.0 */
/* A server, and visitors that connect to it: guests, workers and servers that send
 * what a test wants. */
#ifndef TERN_TESTS_SERVER_BED_H
#define TERN_TESTS_SERVER_BED_H

#include "tests/harness/cmocka.h"

#include "server/server_state.h"

struct end { /* a process, simulated in this one */
	struct tern_env *env;
	struct tern_domain *domain;
	struct tern_context *ctx;
};

struct visitor {
	struct tern_talk talk;
	struct tern_peer *peer;
	bool down, welcome, refused, again, aborted;
	char text[200]; /* why it was refused, or why the job ended */
};

struct rig {
	struct end at, guests;
	struct tern_pool *pool, *small; /* for the guests; small: NULL, or one page */
	struct tern_updater *updater;
	struct tern_server *server;
	bool ended;
	char text[600];
	unsigned refusals; /* refusals that the server has noted */
	char noted[200];   /* its last note */
};

void open_rig(struct rig *rig);
void close_rig(struct rig *rig);
void step(struct rig *rig);
/* Runs server and visitors until *flag is set. */
void run_until(struct rig *rig, const bool *flag);
void visitor_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg);
void visit(struct rig *rig, struct visitor *v);
/* A job as `like`, for one server or more, with parameters w0, w1, ... of the given
 * sizes. */
json_t *job_of(const struct rig *rig, const struct tern_ps_job *like,
	unsigned param_count, uint64_t count, unsigned servers);
void say_join(struct visitor *v, json_t *job, unsigned worker);
/* Joins as the worker with that index, with `job` and one parameter of `count`
 * elements. */
void join(struct rig *rig, struct visitor *v, const struct tern_ps_job *like,
	uint64_t count, unsigned worker);
/* Joins with a job of one chunk. */
void join_well(struct rig *rig, struct visitor *v, const struct tern_ps_job *job,
	unsigned worker);
/* Makes a server with all workers of such a job, so that it runs. */
void open_with_workers(struct rig *rig, struct visitor *v, const struct tern_ps_job *job);
/* Checks that the server still works, and closes it. No guest answers its goodbye. */
void stop_and_close(struct rig *rig);
/* Runs until the server, and the layer below it, have this number of peers. */
void until_peers(struct rig *rig, unsigned count);
struct server_peer *newest(const struct rig *rig);
void say_bye(struct visitor *v);
/* Checks that only the visitor ends, and that the server takes the next job. */
void refused_alone(struct rig *rig, struct visitor *v);

#endif
