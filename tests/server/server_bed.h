/* SPDX-License-Identifier: Apache-2.0 */
/* Test bed with one server, and visitors that connect to it: guests (processes that have
 * not joined the job), workers and other servers, which send what a test wants. */
#ifndef TERN_TESTS_SERVER_BED_H
#define TERN_TESTS_SERVER_BED_H

#include "tests/harness/cmocka.h"

#include "server/server_state.h"

struct end { /* one process, simulated within this one */
	struct tern_env *env;
	struct tern_domain *domain;
	struct tern_context *ctx;
};

struct visitor {
	struct tern_talk talk;
	struct tern_peer *peer;
	bool down, welcome, refused, again, aborted, removed, complete;
	bool serves; /* a follower was told that its server lives */
	bool told;   /* a worker was told the address of a server */
	bool later;  /* `refused`, but it may ask again */
	/* An operator who asks for a removal was told that it is to come, and that it is done. */
	bool draining, drained;
	/* A worker was asked for the given initial values; a server heard that all servers
	 * have them. */
	bool gives, begins;
	json_int_t snapshot; /* that the server named when the job ended; 0: none */
	char text[400];      /* reason why it was refused, or why the job ended */
};

struct rig {
	struct end at, guests;
	/* `pool`: memory of the guests; `small`: a pool of one page, or NULL. */
	struct tern_pool *pool, *small;
	struct tern_updater *updater;
	struct tern_server *server;
	bool ended;
	char text[600];
	unsigned refusals; /* how many refusals the server has logged */
	char noted[200];   /* the server's last logged note */
};

void open_rig(struct rig *rig);
/* Opens a server that begins with what is in memory, which it owns then. NULL: nothing is. */
void open_rig_from(struct rig *rig, struct tern_server_memory *memory);
void close_rig(struct rig *rig);
void step(struct rig *rig);
/* Runs the server and the visitors until *flag is true. */
void run_until(struct rig *rig, const bool *flag);
void visitor_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg);
void visit(struct rig *rig, struct visitor *v);
/* A job like `like`, for `servers` servers, with `param_count` parameters w0, w1, ... of
 * `count` elements each, and the types of the parameter of `like`, if that has one. Its
 * optimizer and number of steps are those of `like`, or else sgd and 1. */
json_t *job_of(const struct rig *rig, const struct tern_ps_job *like,
	unsigned param_count, uint64_t count, unsigned servers);
void say_join(struct visitor *v, json_t *job, unsigned worker);
/* Makes the visitor join as worker number `worker`, with the job `like` and one parameter
 * of `count` elements. */
void join(struct rig *rig, struct visitor *v, const struct tern_ps_job *like,
	uint64_t count, unsigned worker);
/* Makes the visitor join with a job of one chunk, and waits until the server welcomes it. */
void join_well(struct rig *rig, struct visitor *v, const struct tern_ps_job *job,
	unsigned worker);
/* Creates a server, and makes a visitor join for each worker of `job`, so that the job
 * starts. */
void open_with_workers(struct rig *rig, struct visitor *v, const struct tern_ps_job *job);
/* Checks that the server has not ended, stops it, and closes the rig. No guest answers
 * the server's goodbye, so the server's end timer is made to fire at once. */
void stop_and_close(struct rig *rig);
/* Runs until the server and its context have this number of peers. */
void until_peers(struct rig *rig, unsigned count);
struct server_peer *newest(const struct rig *rig);
void say_bye(struct visitor *v);
/* Checks that only this visitor is refused, and that the server takes the next job. */
void refused_alone(struct rig *rig, struct visitor *v);

#endif
