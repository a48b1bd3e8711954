/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan: how the flat vector of parameters is divided into chunks, and which server
 * has each. The plan is a pure function of the job's tensors and its number of servers, so
 * each process computes it itself. The division into chunks does not depend on the number
 * of servers, so the results of a job in sync mode do not either.
 *
 * A chunk travels as one message, so all of its elements have the same type on the wire: a
 * chunk ends where the type of the tensors' gradients or of their values changes.
 */
#ifndef TERN_PS_PLAN_H
#define TERN_PS_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "ps/job.h"

struct tern_chunk {
	uint64_t first, count; /* its range of the flat vector, in elements */
	uint32_t server;
	/* The chunk's gradients (push) or values (pull) travel as bf16; else as f32. */
	bool push_bf16, pull_bf16;
	/* If push_bf16: number of elements of such chunks before this one. */
	uint64_t bf16_first;
	uint64_t gradient_key, parameter_key, marks_key;
};

struct tern_plan {
	uint64_t element_count;
	uint32_t chunk_count, server_count;
	/* Most elements of a chunk. Only chunks before the end or a change of the type have
	 * fewer. */
	uint64_t chunk_elements;
	uint64_t bf16_count; /* elements whose gradients travel as bf16 */
	struct tern_chunk *chunks;
};

/*
 * Makes the plan of a job, which need have no more than its tensors (count, push_bf16 and
 * pull_bf16 of each), element_count and server_count. A chunk has an eighth of the
 * parameters up to 128 KiB of float32, or a 64th of them if that is more; at least 16 KiB
 * and at most 1 MiB, and a multiple of 64 bytes; the last chunk before a change of the type,
 * or the end, may be smaller. The servers get chunks in turn (with 32 chunks of full size per
 * server or more, the largest share is at most 1.05 times the smallest). -ENOMEM; -EINVAL: no
 * elements, no servers, or 2^32 - 1 chunks or more.
 */
int tern_plan_init(struct tern_plan *plan, const struct tern_ps_job *job);
void tern_plan_fini(struct tern_plan *plan);

/* As tern_plan_init(), but without the list of chunks (plan->chunks is NULL), so it
 * allocates nothing. Errors: -EINVAL. */
int tern_plan_measure(struct tern_plan *plan, const struct tern_ps_job *job);

struct tern_plan_share {
	uint32_t chunk_count;
	uint64_t element_count;
};

/* Numbers of chunks and elements of one server. plan->chunks may be NULL; `job` is that of
 * the plan. */
struct tern_plan_share tern_plan_share(
	const struct tern_plan *plan, const struct tern_ps_job *job, uint32_t server);

/* Returns the number of the chunk that contains an element of the flat vector. */
uint32_t tern_plan_chunk_at(const struct tern_plan *plan, uint64_t element);

#endif
