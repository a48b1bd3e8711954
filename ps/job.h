/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The properties of a job. Every worker that joins a server sends them, as JSON, and so
 * does a server that connects to server 0. The server takes the job from the first worker
 * and refuses a process with other properties. Two properties may differ: the addresses
 * of the servers, and in async mode the arithmetic.
 */
#ifndef TERN_PS_JOB_H
#define TERN_PS_JOB_H

#include <jansson.h>

#include "kernels/kernels.h"
#include "ps/param.h"

enum tern_mode {
	TERN_MODE_SYNC,
	TERN_MODE_ASYNC,
};

#define TERN_WORKERS_MAX 4096u
#define TERN_SLOTS_MAX   4096u
#define TERN_SERVERS_MAX 256u
#define TERN_PARAMS_MAX  100000u
/* Most times that the types on the wire change from one tensor to the next. */
#define TERN_TYPE_CHANGES_MAX 64u
/* Optimizers of a job besides the first. */
#define TERN_JOB_RULES_MAX 16u

/* Largest number of gradient buffers of a worker: while one gradient is sent, the next
 * one is computed. */
#define TERN_GRADIENT_BUFFERS 2u

struct tern_ps_job {
	enum tern_mode mode;
	/* async: K + 1 of the mode ssp:K (stale synchronous parallel): a worker that has
	 * taken c steps gets parameters with at least the first c - K steps of every live
	 * worker. 0: no limit. */
	uint64_t ssp;
	uint64_t steps, seed;
	uint32_t slots;   /* sync: R, number of gradients (slots) of each step */
	uint32_t workers; /* N: number of workers */
	uint32_t batch;   /* number of records that one slot is computed from */
	/* Training data: number of records, and digest. 0 records: whoever computes the
	 * gradients chooses what to compute them from. */
	uint64_t records, data;
	struct tern_optimizer optimizer; /* rule 0 */
	/* Rules 1, 2, ...: optimizers of tensors that name them (struct tern_param). */
	struct tern_optimizer rules[TERN_JOB_RULES_MAX];
	uint32_t rule_count;  /* without rule 0 */
	double clip_norm;     /* 0: no clipping */
	char arithmetic[128]; /* engine's fingerprint: equal strings mean equal bits */
	struct tern_param *params; /* the tensors; no name occurs twice */
	uint32_t param_count;
	char *names; /* memory of the tensors' names; NULL: it belongs to others */
	uint64_t element_count; /* number of elements in all tensors; from params */
	char (*servers)[128];   /* addresses of the servers, by server number */
	uint32_t server_count;
	/* Which servers these are (ps/view.h): the number of the view, and unless that is 0, the
	 * servers' numbers, and which were added. */
	uint32_t view, numbers[TERN_SERVERS_MAX];
	bool added[TERN_SERVERS_MAX];
};

struct tern_ps_text {
	char text[400];
};

/* The job as JSON; NULL: no memory. */
json_t *tern_ps_job_json(const struct tern_ps_job *job);
/* Returns the job as NUL-terminated JSON text from malloc(); NULL: no memory. */
char *tern_ps_job_encode(const struct tern_ps_job *job);

/*
 * Decodes a job that a peer sent, and checks every field. -EINVAL, with why->text naming
 * the field; -ENOMEM. The job is freed with tern_ps_job_fini().
 */
int tern_ps_job_decode(const char *json, size_t bytes, struct tern_ps_job *out,
	struct tern_ps_text *why);

/* Reads a job from parsed JSON, with the checks and errors of tern_ps_job_decode(). */
int tern_ps_job_read(
	const json_t *root, struct tern_ps_job *out, struct tern_ps_text *why);

/* Compares the job with `theirs`, the job of the process named `who`. True if they
 * differ: why->text then names the first difference, in one line. Addresses of servers
 * are not compared, and arithmetic only in sync mode. */
bool tern_ps_job_differs(const struct tern_ps_job *job, const struct tern_ps_job *theirs,
	const char *who, struct tern_ps_text *why);

int tern_ps_job_copy(
	struct tern_ps_job *to, const struct tern_ps_job *from); /* -ENOMEM */
void tern_ps_job_fini(struct tern_ps_job *job);

/* Returns the number of the tensor that contains an element of the flat vector. */
uint32_t tern_ps_job_tensor_at(const struct tern_ps_job *job, uint64_t element);

/* The optimizer of a tensor. */
static inline const struct tern_optimizer *tern_ps_job_rule(
	const struct tern_ps_job *job, const struct tern_param *param)
{
	return param->rule ? &job->rules[param->rule - 1] : &job->optimizer;
}

/* Largest K of the mode ssp:K. */
#define TERN_SSP_MAX (1ull << 40)
#define TERN_MODES   "sync, async, or ssp:K with K from 0 to 2^40"

struct tern_mode_text {
	char text[32];
};

/* "sync", "async" or "ssp:K". */
struct tern_mode_text tern_mode_text(enum tern_mode mode, uint64_t ssp);
/* Reads such a text. False: it is none. */
bool tern_mode_parse(const char *text, enum tern_mode *mode, uint64_t *ssp);

/* Sync mode: number of the worker that computes `slot` (one of the R gradients of every
 * step), as long as that worker is not lost. The slots of a lost worker go to others
 * (server/lease.c). */
static inline uint32_t tern_slot_owner(const struct tern_ps_job *job, uint32_t slot)
{
	return slot % job->workers;
}

/* Number of steps of worker `index`: all steps in sync mode, its share in async mode. */
uint64_t tern_ps_job_steps_of(const struct tern_ps_job *job, uint32_t index);

#endif
