/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the server.
 *
 *     server.c  who is here: joining, goodbye, failure
 *     shard.c   the parameters held here: memory, versions, the sends of a version
 *     sync.c    the step machine of a chunk
 *     norm.c    the number over all chunks and servers that a step may need
 *     async.c   gradients applied as they come
 */
#ifndef TERN_SERVER_INTERNAL_H
#define TERN_SERVER_INTERNAL_H

#include <tern/tern.h>

#include "base/env.h"
#include "ps/job.h"
#include "ps/plan.h"
#include "ps/sum.h"
#include "ps/talk.h"
#include "server/server.h"
#include "transport/context.h"

/* Another process of the job. */
struct server_peer {
	struct tern_list node;
	struct tern_server *server;
	struct tern_peer *peer;
	struct tern_talk talk;
	struct tern_channel *data;
	bool is_worker, is_server, said_bye, gone;
	uint32_t index;
};

/*
 * A chunk in sync mode:
 *
 *     HOLDING --budget--> GATHERING --all slots--> [SUMMING -> WAITING for the norm ->]
 *     APPLYING --> (sends of the new version) --> HOLDING the next
 *
 * HOLDING: version `version` is complete, nobody's gradient is being received.
 */
enum chunk_state {
	CHUNK_HOLDING,
	CHUNK_GATHERING,
	CHUNK_SUMMING,
	CHUNK_WAITING,
	CHUNK_APPLYING,
};

struct gradient { /* of one slot */
	struct tern_req req;
	struct chunk *chunk;
	struct tern_buf room;
	bool arrived;
};

struct publication { /* a version on its way to a worker */
	struct tern_req req;
	struct chunk *chunk;
	unsigned parity;
};

struct chunk {
	struct tern_list node; /* server->holding, while it waits for the budget */
	struct tern_server *server;
	const struct tern_chunk *plan;
	uint32_t number; /* in the plan */
	enum chunk_state state;
	uint64_t version;
	struct tern_buf w[2]; /* by parity of the version */
	float *m, *v;
	float *mean; /* two-phase steps: the summed gradient */
	double squares;
	struct gradient *gradients; /* sync: [slots] */
	unsigned arrived_count;
	struct publication *publications; /* [2][workers] */
	unsigned sends_out[2];
	const float **sources; /* [slots]: where they lie */
	struct tern_job job;
	struct stream *streams; /* async: [workers] */
	struct tern_list ready; /* async: streams whose gradient waits to be applied */
	bool busy;              /* async: a job is running */
};

struct stream {                /* async: a worker's way with one chunk */
	struct tern_list node; /* chunk->ready */
	struct chunk *chunk;
	uint32_t worker;
	uint64_t step; /* the worker's own */
	uint64_t seen; /* version that it was sent */
	struct tern_req gradient_req, parameter_req;
	struct tern_buf gradient, copy;
};

struct norm_share { /* server 0: partials of one server */
	struct tern_req req;
	struct tern_server *server;
	struct tern_buf buf;
	uint32_t index;
	bool arrived;
};

struct tern_server {
	struct tern_server_opts opts;
	struct tern_env *env;
	struct tern_listener *listener;
	struct tern_pool *staging, *store;
	struct tern_list peers;
	struct server_peer **workers; /* [job.workers] */
	uint32_t joined_count, bye_count;

	struct tern_ps_job job;
	uint32_t index; /* which server this is */
	struct tern_plan plan;
	bool has_job, running, over, told;
	int status; /* once over: how it ended, and the sentence */
	char text[512];
	struct tern_deferred end_call;
	struct tern_timer end_timer;

	struct chunk *chunks;
	uint32_t chunk_count;
	struct tern_list holding;
	uint64_t staging_left;
	unsigned jobs_out;

	/* norm.c */
	struct server_peer **servers; /* server 0: the others; others: [0] */
	uint32_t server_count;        /* connected */
	struct server_peer *to_zero;
	uint32_t summed_count;
	uint64_t norm_step;
	struct norm_share *shares;
	struct tern_buf partials, total;
	struct tern_req partials_req, total_req;
	struct tern_req *total_reqs; /* server 0: [servers] */
	unsigned totals_out;

	struct tern_server_stats stats;
};

/* server.c */
void server_fail(struct tern_server *s, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void server_maybe_start(struct tern_server *s);
void server_note(struct tern_server *s, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* shard.c */
int shard_init(struct tern_server *s);
void shard_fini(struct tern_server *s);
float *chunk_w(const struct chunk *c, uint64_t version);
void chunk_publish(struct chunk *c); /* sends its version to every worker */
struct tern_update chunk_update(const struct chunk *c, uint64_t step,
	const float *const *g, unsigned n, float scale, float clip);
void chunk_submit(
	struct chunk *c, void (*run)(struct tern_job *), void (*done)(struct tern_job *));

/* sync.c */
void sync_start(struct tern_server *s);
void sync_next(struct tern_server *s); /* more budget: let the next chunks gather */
void sync_apply(struct chunk *c, double clip);
void sync_sends_ended(struct chunk *c);

/* norm.c */
int norm_init(struct tern_server *s);
void norm_chunk_summed(struct chunk *c);
void norm_fini(struct tern_server *s);
void norm_peer_ready(struct server_peer *p);
bool norm_is_connected(const struct tern_server *s);
int norm_connect(struct tern_server *s);

/* async.c */
int async_init(struct chunk *c);
void async_fini(struct chunk *c);
void async_start(struct tern_server *s);

#endif
