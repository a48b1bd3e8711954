/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Initial values that workers have (TERN_INIT_GIVEN), such as those of a model that was
 * trained before. A worker sends them to the servers chunk by chunk, and only them: a chunk
 * may also have values that the servers compute.
 *
 * Every worker puts a digest of each given tensor into its job, so workers whose values
 * differ have different jobs, and the comparison of jobs names the tensor. A digest of 0
 * stands for values that are not compared (init_from_first in <tern/train.h>).
 */
#ifndef TERN_PS_GIVEN_H
#define TERN_PS_GIVEN_H

#include "ps/job.h"
#include "ps/plan.h"

/* Key of the messages with given values. The number of a message is that of its first
 * element in the flat vector. */
uint64_t tern_given_key(void);

/* The digest of a tensor's values: a function of their bits and order, the same on all
 * machines, and never 0. */
uint64_t tern_given_digest(const float *values, uint64_t count);

/* Number of the first value that is NaN or infinite; `count`: there is none. */
uint64_t tern_given_first_wrong(const float *values, uint64_t count);

/*
 * Checks the values of all given tensors, whose numbers in the job are those of `given`. Sets
 * their digests if workers are to be compared. -EINVAL: a value is not a finite number;
 * why->text names it.
 */
int tern_given_describe(struct tern_ps_job *job, const float *const *given, bool compare,
	struct tern_ps_text *why);

bool tern_given_any(const struct tern_ps_job *job); /* has the job a given tensor? */

/* A part of a chunk that is sent in one message: given values that follow each other. */
struct tern_given_range {
	uint64_t first, count; /* elements of the flat vector */
};

/* Finds the first range of the chunk at or behind element `from` of the flat vector.
 * Ranges are as long as they can be within the chunk. False: there is none. */
bool tern_given_next(const struct tern_ps_job *job, const struct tern_chunk *chunk,
	uint64_t from, struct tern_given_range *out);

#endif
