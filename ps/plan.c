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

/* Tensors that follow each other and have the same types on the wire. */
struct run {
	uint64_t count; /* elements */
	bool push_bf16, pull_bf16;
};

/* Sets *run to the tensors from number *next on that have the same types, and *next to the
 * number of the first one behind them. False: there are none. */
static bool next_run(const struct tern_ps_job *job, uint32_t *next, struct run *run)
{
	const struct tern_param *first = &job->params[*next];

	if (*next == job->param_count)
		return false;
	*run = (struct run){0, first->push_bf16, first->pull_bf16};
	while (*next < job->param_count &&
		job->params[*next].push_bf16 == run->push_bf16 &&
		job->params[*next].pull_bf16 == run->pull_bf16)
		run->count += job->params[(*next)++].count;
	return true;
}

static uint64_t chunks_in(const struct tern_plan *plan, const struct run *run)
{
	return run->count / plan->chunk_elements +
	       (run->count % plan->chunk_elements > 0);
}

int tern_plan_measure(struct tern_plan *plan, const struct tern_ps_job *job)
{
	uint64_t chunk_count = 0;
	uint32_t next = 0;
	struct run run;

	/* The size of all parameters must fit into 64 bits, and the number of chunks into
	 * 32. */
	if (job->element_count == 0 || job->server_count == 0 ||
		job->element_count / (CHUNK_BYTES_MAX / sizeof(float)) >= UINT32_MAX)
		return -EINVAL;
	*plan = (struct tern_plan){.element_count = job->element_count,
		.server_count = job->server_count,
		.chunk_elements = chunk_elements(job->element_count)};
	while (next_run(job, &next, &run)) {
		chunk_count += chunks_in(plan, &run);
		plan->bf16_count += run.push_bf16 ? run.count : 0;
	}
	if (chunk_count >= UINT32_MAX)
		return -EINVAL;
	plan->chunk_count = (uint32_t)chunk_count;
	return 0;
}

/* Number of chunks before number `end` that the server has. */
static uint64_t chunks_of(const struct tern_plan *plan, uint64_t end, uint32_t server)
{
	return end / plan->server_count + (server < end % plan->server_count);
}

struct tern_plan_share tern_plan_share(
	const struct tern_plan *plan, const struct tern_ps_job *job, uint32_t server)
{
	struct tern_plan_share share = {
		.chunk_count = (uint32_t)chunks_of(plan, plan->chunk_count, server)};
	uint64_t end = 0;
	uint32_t next = 0;
	struct run run;

	share.element_count = share.chunk_count * plan->chunk_elements;
	while (next_run(job, &next, &run)) {
		uint64_t rest = run.count % plan->chunk_elements;

		end += chunks_in(plan, &run);
		/* The last chunk of the run may be smaller. */
		if (rest && (end - 1) % plan->server_count == server)
			share.element_count -= plan->chunk_elements - rest;
	}
	return share;
}

uint32_t tern_plan_chunk_at(const struct tern_plan *plan, uint64_t element)
{
	/* Chunks before the last one of a run are of the full size, so the chunk cannot have
	 * a lower number than this. */
	uint32_t low = (uint32_t)(element / plan->chunk_elements),
		 high = plan->chunk_count - 1;

	while (low < high) {
		uint32_t middle = low + (high - low + 1) / 2;

		if (plan->chunks[middle].first <= element)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
}

/* Lists the chunks of a run, which begins at element `first`; number is that of its first
 * chunk, bf16_first as in struct tern_chunk. */
static void list_chunks(struct tern_plan *plan, const struct run *run, uint32_t number,
	uint64_t first, uint64_t bf16_first)
{
	for (uint64_t at = 0; at < run->count; at += plan->chunk_elements, number++)
		plan->chunks[number] = (struct tern_chunk){.first = first + at,
			.count = TERN_MIN(plan->chunk_elements, run->count - at),
			.server = number % plan->server_count,
			.push_bf16 = run->push_bf16,
			.pull_bf16 = run->pull_bf16,
			.bf16_first = bf16_first + at,
			.gradient_key = key_of("gradient", number),
			.parameter_key = key_of("parameter", number),
			.marks_key = key_of("marks", number)};
}

int tern_plan_init(struct tern_plan *plan, const struct tern_ps_job *job)
{
	int r = tern_plan_measure(plan, job);
	uint64_t first = 0, bf16_first = 0;
	uint32_t next = 0, number = 0;
	struct run run;

	if (r < 0)
		return r;
	plan->chunks = calloc(plan->chunk_count, sizeof(*plan->chunks));
	if (!plan->chunks) {
		tern_plan_fini(plan);
		return -ENOMEM;
	}
	while (next_run(job, &next, &run)) {
		list_chunks(plan, &run, number, first, bf16_first);
		number += (uint32_t)chunks_in(plan, &run);
		first += run.count;
		bf16_first += run.push_bf16 ? run.count : 0;
	}
	return 0;
}

void tern_plan_fini(struct tern_plan *plan)
{
	free(plan->chunks);
	*plan = (struct tern_plan){0};
}
