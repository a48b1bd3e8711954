/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all processes of a job must agree on. The first worker brings it, the servers hold
 * every other one to it. It travels as JSON.
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
#define TERN_PARAMS_MAX  65536u

struct tern_ps_job {
	enum tern_mode mode;
	uint64_t steps, seed;
	uint32_t slots;         /* R */
	uint32_t workers;       /* N */
	uint32_t batch;         /* records per slot */
	uint64_t records, data; /* to train on: how many, and tern_dataset_digest() */
	struct tern_optimizer optimizer;
	double clip_norm;     /* 0: no clipping */
	char arithmetic[128]; /* fingerprint: equal strings, equal bits */
	struct tern_param *params;
	uint32_t param_count;
	uint64_t element_count; /* of all parameters; derived */
	char (*servers)[128];   /* addresses, in order */
	uint32_t server_count;
};

struct tern_ps_text {
	char text[400];
};

/* malloc'd JSON text, terminated; NULL: no memory. */
char *tern_ps_job_encode(const struct tern_ps_job *job);

/*
 * Reads what a peer sent: everything is checked. -EINVAL with why->text naming the field;
 * -ENOMEM. Freed with tern_ps_job_fini.
 */
int tern_ps_job_decode(const char *json, size_t bytes, struct tern_ps_job *out,
	struct tern_ps_text *why);

/* Reads a job that is parsed already: checks and errors as tern_ps_job_decode(). */
int tern_ps_job_read(
	const json_t *root, struct tern_ps_job *out, struct tern_ps_text *why);

/* Memory that it takes. */
uint64_t tern_ps_job_bytes(const struct tern_ps_job *job);

/* Where `theirs`, of `who`, differs from the job: true, and why->text says it in a line.
 */
bool tern_ps_job_differs(const struct tern_ps_job *job, const struct tern_ps_job *theirs,
	const char *who, struct tern_ps_text *why);

int tern_ps_job_copy(
	struct tern_ps_job *to, const struct tern_ps_job *from); /* -ENOMEM */
void tern_ps_job_fini(struct tern_ps_job *job);

const char *tern_mode_name(enum tern_mode mode);

/* Whose slot `slot` is as the job begins, of every step. Later losses of workers move it:
 * server/lease.c. */
static inline uint32_t tern_slot_owner(const struct tern_ps_job *job, uint32_t slot)
{
	return slot % job->workers;
}

/* Steps that worker `index` takes: all of them in sync mode, its share in async mode. */
uint64_t tern_ps_job_steps_of(const struct tern_ps_job *job, uint32_t index);

#endif
