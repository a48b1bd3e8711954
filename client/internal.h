/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the worker.
 *
 *     worker.c    joining, the end
 *     versions.c  parameters: two buffers, one in use, one being filled
 *     slots.c     gradients: computed one slot after the other, sent while they come
 *     finish.c    evaluation, writing, saving
 *
 *     JOINING -all servers said welcome-> RUNNING -last version-> FINISHING -> LEAVING ->
 * over
 */
#ifndef TERN_CLIENT_INTERNAL_H
#define TERN_CLIENT_INTERNAL_H

#include <stdatomic.h>

#include <tern/tern.h>

#include "base/env.h"
#include "client/worker.h"
#include "ps/plan.h"
#include "ps/talk.h"
#include "transport/context.h"

struct worker_server {
	struct tern_worker *worker;
	struct tern_peer *peer;
	struct tern_talk talk;
	struct tern_channel *data;
	uint32_t index;
	bool welcome, gone;
};

enum worker_state {
	WORKER_JOINING,
	WORKER_RUNNING,
	WORKER_FINISHING,
	WORKER_LEAVING,
};

struct version_part { /* a chunk of a version on its way here */
	struct tern_req req;
	struct tern_worker *worker;
	uint64_t version;
	unsigned parity;
};

struct gradient_part { /* a chunk of a gradient on its way out */
	struct tern_req req;
	struct slot *slot;
};

/* A slot of this worker, of every step. */
struct slot {
	struct tern_worker *worker;
	uint32_t number;
	struct tern_buf gradient;    /* of all parameters */
	struct gradient_part *parts; /* [chunks] */
	uint32_t sends_out;
};

#define WORKER_LOSS_WINDOW 100u

struct tern_worker {
	struct tern_worker_opts opts;
	struct tern_env *env;
	struct tern_ps_job job;
	struct tern_plan plan;
	uint64_t my_steps;
	enum worker_state state;
	struct worker_server *servers;
	struct tern_pool *talk_pool, *pool;

	/* versions.c */
	struct tern_buf w[2];
	struct version_part *parts[2]; /* [chunks] */
	uint32_t missing[2];
	uint64_t version; /* the newest complete one */

	/* slots.c */
	struct slot *slots;
	uint32_t slot_count, slot_at; /* of this step: computing this one, or done */
	bool computing;
	struct tern_job job_item;
	struct tern_workspace *workspace;
	struct tern_batch batch;
	uint64_t *records;
	struct tern_result result;
	_Atomic uint64_t ready_first; /* elements from here on are final */
	uint32_t unsent;              /* chunks 0..unsent-1 are still to be sent */
	double step_loss;
	double losses[WORKER_LOSS_WINDOW];
	uint64_t loss_count, record_count, byte_count;

	/* finish.c */
	struct tern_job finish_job;
	struct tern_workspace *test_workspace;
	struct tern_batch test_batch;
	struct tern_worker_results results;
	char *written;
	float *scores;
	int32_t *score_labels;
	struct tern_file_op file;
	struct iovec *file_parts;

	/* The end. */
	bool over, told;
	int status;
	char text[512];
	struct tern_deferred end_call;
	struct tern_timer end_timer;
};

/* worker.c */
void worker_fail(struct tern_worker *w, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void worker_leave(struct tern_worker *w); /* it has all it needs */
int worker_submit(struct tern_worker *w, struct tern_job *job, uint64_t cost_ns);

/* versions.c */
int versions_init(struct tern_worker *w);
void versions_fini(struct tern_worker *w);
void versions_complete(struct tern_worker *w, uint64_t version);
void versions_receive(struct tern_worker *w, uint64_t version);
const float *versions_current(const struct tern_worker *w);

/* slots.c */
int slots_init(struct tern_worker *w);
void slots_fini(struct tern_worker *w);
void slots_run(struct tern_worker *w); /* a version is complete, or a buffer is free */
int batch_new(const struct tern_dataset *data, size_t rows, struct tern_batch *out);
void batch_free(struct tern_batch *batch);

/* finish.c */
void finish_start(struct tern_worker *w);
void finish_fini(struct tern_worker *w);

#endif
