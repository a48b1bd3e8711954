/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan: how the flat vector of parameters is divided into chunks, and which server
 * has each. The plan is a pure function of the numbers of elements and of servers, so
 * each process computes it itself. The division into chunks does not depend on the number
 * of servers, so the results of a job in sync mode do not either.
 */
#ifndef TERN_PS_PLAN_H
#define TERN_PS_PLAN_H

#include <stddef.h>
#include <stdint.h>

struct tern_chunk {
	uint64_t first, count; /* its range of the flat vector, in elements */
	uint32_t server;
	uint64_t gradient_key, parameter_key, marks_key;
};

struct tern_plan {
	uint64_t element_count;
	uint32_t chunk_count, server_count;
	uint64_t chunk_elements; /* of every chunk; the last one may have fewer */
	struct tern_chunk *chunks;
};

/*
 * Makes a plan. A chunk has an eighth of the parameters up to 128 KiB of float32, or a
 * 64th of them if that is more; at least 16 KiB and at most 1 MiB, and a multiple of 64
 * bytes; the last chunk may be smaller. The servers get chunks
 * in turn (with 32 chunks per server or more, the largest share is at most 1.05 times the
 * smallest). -ENOMEM; -EINVAL: no elements, no servers, or 2^32 - 1 full chunks or more.
 */
int tern_plan_init(struct tern_plan *plan, uint64_t element_count, uint32_t server_count);
void tern_plan_fini(struct tern_plan *plan);

/* As tern_plan_init(), but without the list of chunks (plan->chunks is NULL), so it
 * allocates nothing and takes constant time. Errors: -EINVAL. */
int tern_plan_measure(
	struct tern_plan *plan, uint64_t element_count, uint32_t server_count);

struct tern_plan_share {
	uint32_t chunk_count;
	uint64_t element_count;
};

/* Numbers of chunks and elements of one server. plan->chunks may be NULL. */
struct tern_plan_share tern_plan_share(const struct tern_plan *plan, uint32_t server);

#endif
