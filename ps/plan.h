/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan: how the flat vector of parameters is cut into chunks and where they live. It
 * is a pure function of the number of elements and of servers, so both ends compute it
 * alone. The cut does not depend on the number of servers, hence neither do the results.
 */
#ifndef TERN_PS_PLAN_H
#define TERN_PS_PLAN_H

#include <stddef.h>
#include <stdint.h>

struct tern_chunk {
	uint64_t first, count; /* elements of the flat vector */
	uint32_t server;
	uint64_t gradient_key, parameter_key;
};

struct tern_plan {
	uint64_t element_count;
	uint32_t chunk_count, server_count;
	uint64_t chunk_elements; /* of every chunk but the last */
	struct tern_chunk *chunks;
};

/*
 * Chunks of 1/64 of the whole, at least 16 KiB and at most 1 MiB of float32, a multiple
 * of 64 bytes; they go to the servers in turn (max/min <= 1.05 from 32 chunks per
 * server). -ENOMEM; -EINVAL: no elements, no servers, or 2^32 chunks.
 */
int tern_plan_init(struct tern_plan *plan, uint64_t element_count, uint32_t server_count);
void tern_plan_fini(struct tern_plan *plan);

/* The same without the chunks: it takes neither memory nor time. -EINVAL. */
int tern_plan_measure(
	struct tern_plan *plan, uint64_t element_count, uint32_t server_count);

struct tern_plan_share {
	uint32_t chunk_count;
	uint64_t element_count;
};

/* What a server of a measured plan has of it. */
struct tern_plan_share tern_plan_share(const struct tern_plan *plan, uint32_t server);

#endif
