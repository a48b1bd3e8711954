/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <tern/channel.h>

#include "base/util.h"

#define CHUNK_BYTES_MIN (16u << 10)
/* The messages of a smaller chunk cost more than it saves by leaving earlier. */
#define CHUNK_BYTES_LOW (128u << 10)
#define CHUNK_BYTES_MAX (1u << 20)

static uint64_t chunk_elements(uint64_t element_count)
{
	uint64_t all = element_count * sizeof(float);
	uint64_t bytes = TERN_MAX(all / 64, TERN_MIN(all / 8, (uint64_t)CHUNK_BYTES_LOW));

	bytes = TERN_MAX(bytes, (uint64_t)CHUNK_BYTES_MIN);
	bytes = TERN_MIN(bytes, (uint64_t)CHUNK_BYTES_MAX);
	return tern_align_up(bytes, 64) / sizeof(float);
}

static uint64_t key_of(const char *what, uint32_t chunk)
{
	char name[48];

	snprintf(name, sizeof(name), "%s/%u", what, chunk);
	return tern_key(name);
}

int tern_plan_measure(
	struct tern_plan *plan, uint64_t element_count, uint32_t server_count)
{
	/* The number of chunks must fit into 32 bits. */
	if (element_count == 0 || server_count == 0 ||
		element_count / (CHUNK_BYTES_MAX / sizeof(float)) >= UINT32_MAX)
		return -EINVAL;
	*plan = (struct tern_plan){.element_count = element_count,
		.server_count = server_count,
		.chunk_elements = chunk_elements(element_count)};
	plan->chunk_count = (uint32_t)((element_count + plan->chunk_elements - 1) /
				       plan->chunk_elements);
	return 0;
}

struct tern_plan_share tern_plan_share(const struct tern_plan *plan, uint32_t server)
{
	uint32_t last = plan->chunk_count - 1;
	struct tern_plan_share share = {
		.chunk_count = plan->chunk_count / plan->server_count +
			       (server < plan->chunk_count % plan->server_count)};

	share.element_count = share.chunk_count * plan->chunk_elements;
	if (server == last % plan->server_count) /* the last chunk may be smaller */
		share.element_count -=
			plan->chunk_count * plan->chunk_elements - plan->element_count;
	return share;
}

int tern_plan_init(struct tern_plan *plan, uint64_t element_count, uint32_t server_count)
{
	int r = tern_plan_measure(plan, element_count, server_count);

	if (r < 0)
		return r;
	plan->chunks = calloc(plan->chunk_count, sizeof(*plan->chunks));
	if (!plan->chunks) {
		tern_plan_fini(plan);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < plan->chunk_count; i++) {
		struct tern_chunk *c = &plan->chunks[i];

		c->first = i * plan->chunk_elements;
		c->count = TERN_MIN(plan->chunk_elements, element_count - c->first);
		c->server = i % server_count;
		c->gradient_key = key_of("gradient", i);
		c->parameter_key = key_of("parameter", i);
		c->marks_key = key_of("marks", i);
	}
	return 0;
}

void tern_plan_fini(struct tern_plan *plan)
{
	free(plan->chunks);
	*plan = (struct tern_plan){0};
}
